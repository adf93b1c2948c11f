//! A session that is lost and goes on.
//!
//! Rules: `docs/protocol.md#rule-resume-streams`, `rule-resume-carried`.

use std::time::Duration;

use crate::sites::{Sites, packet, rping};
use roce::cm::Mad;
use roce::ip::Datagram;
use roce::wire::{Bth, Ext, Opcode, Packet, Psn, Qpn, Repr, RnrTimer, Syndrome};
use splice::record::Reason;
use splice::{LanDrop, SessionEnd, Settings};

const TARGET: Qpn = Qpn::new(0x34);
const STEP: Duration = Duration::from_millis(10);
const RTT: Duration = Duration::from_micros(100);

fn send(sites: &mut Sites, psn: Psn) {
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::SendOnly, TARGET, psn) };
    let repr = Repr { bth, ext: Ext::None, payload: &[5; 512] };
    let mut request = vec![0; repr.buffer_len()];
    repr.emit(&mut request).unwrap();
    let datagram = Datagram { addressing: sites.addressing[0], transport: &request };
    sites.gateways[0].handle_lan(&datagram, sites.now);
}

/// The next packet for the requester: PSN and what it says.
fn heard(sites: &mut Sites) -> Option<(Psn, Syndrome)> {
    let mut out = [0; 4096];
    let len = sites.gateways[0].poll_lan(sites.now, &mut out)?;
    let datagram = Datagram::parse(&out[..len]).unwrap();
    let packet = Packet::parse(datagram.transport).unwrap();
    Some((packet.bth.psn, packet.ext.aeth().unwrap().syndrome))
}

/// Hosts whose connection management said how often the requester tries again after RNR, and whose
/// first SEND is done; the next PSN, and the requester's queue pair.
fn connected(retries: u8) -> (Sites, Psn) {
    let mut sites = Sites::new(49_152, |settings| settings);
    let mut first = Psn::new(0);
    let mut requester = Qpn::new(0);
    for (from, frame) in rping().iter().take(2).enumerate() {
        let datagram = Datagram::parse(frame).unwrap();
        let mut transport = datagram.transport.to_vec();
        match Mad::parse(&Packet::parse(&transport).unwrap()).unwrap().message {
            roce::cm::Message::Req(req) => requester = req.qpn(),
            roce::cm::Message::Rep(rep) => {
                first = rep.starting_psn();
                transport[12 + 8 + 24 + 27] = retries << 5;
            }
            other => panic!("{other:?}"),
        }
        let datagram = Datagram { addressing: datagram.addressing, transport: &transport };
        sites.gateways[from].handle_lan(&datagram, sites.now);
        sites.cross();
        sites.deliver(1 - from).unwrap();
    }
    send(&mut sites, first);
    sites.cross();
    assert_eq!(sites.deliver(1).unwrap().psn, first);
    sites.acknowledge(requester, first, 1);
    sites.cross();
    while heard(&mut sites).is_some() {}
    (sites, first.next())
}

fn lose(sites: &mut Sites) {
    let now = sites.now;
    sites.gateways.iter_mut().for_each(|gateway| gateway.session_lost(now));
    assert!(sites.gateways.iter().all(splice::Gateway::is_parked));
}

/// While the link is cut, a requester that takes RNR without end is held by it, however often its
/// timer runs out. Nothing that it hears confirms anything new.
#[test]
fn a_requester_that_takes_rnr_without_end_is_held() {
    for retries in [6, 7] {
        let (mut sites, next) = connected(retries);
        send(&mut sites, next);
        sites.cross_but(|_, _| true);
        lose(&mut sites);
        assert_eq!(sites.gateways[0].waiting_flows(), 1);
        let mut rnrs = 0;
        for _ in 0..2000 {
            sites.now += STEP;
            sites.gateways.iter_mut().for_each(|gateway| gateway.handle_timeout(sites.now));
            send(&mut sites, next);
            while let Some((psn, said)) = heard(&mut sites) {
                match said {
                    Syndrome::Rnr { timer } => {
                        assert_eq!((psn, timer), (next, RnrTimer::new(28)));
                        rnrs += 1;
                    }
                    Syndrome::Ack { .. } => assert!(psn.is_before(next), "{psn:?} of {next:?}"),
                    other => panic!("{other:?}"),
                }
            }
            assert!(sites.deliver(1).is_none());
        }
        assert_eq!(rnrs > 1000, retries == 7, "{rnrs}");
    }
}

/// All that is sent before, during and after the wait comes to the target once, in order.
#[test]
fn what_waited_comes_once() {
    let (mut sites, first) = connected(7);
    let mut next = first;
    let mut post = |sites: &mut Sites| {
        for _ in 0..10 {
            send(sites, next);
            next = next.next();
        }
    };
    for round in 0..3 {
        post(&mut sites);
        sites.cross_but(|_, packet| round > 0 && packet[0] == 1);
        lose(&mut sites);
        post(&mut sites);
        sites.now += Duration::from_secs(100);
        sites.gateways.iter_mut().for_each(|gateway| gateway.handle_timeout(sites.now));
        sites.resume();
        post(&mut sites);
    }
    let mut expected = first;
    for _ in 0..400 {
        sites.now += STEP;
        sites.cross();
        while let Some(bth) = sites.deliver(1) {
            assert!(!expected.is_before(bth.psn), "{bth:?}, not {expected:?}");
            if bth.psn == expected {
                expected = expected.next();
            }
            sites.acknowledge(Qpn::new(0x28), bth.psn, 2);
        }
        while let Some((_, said)) = heard(&mut sites) {
            assert!(matches!(said, Syndrome::Ack { .. } | Syndrome::Rnr { .. }), "{said:?}");
        }
    }
    assert_eq!(expected, next);
    let failed: u64 = sites.gateways.iter_mut().flat_map(|gateway| gateway.stats().failed).sum();
    assert_eq!(failed, 0);
}

/// Packets that are not terminated are dropped meanwhile, as by a network that is cut.
#[test]
fn what_is_not_terminated_does_not_wait() {
    let (mut sites, _) = connected(7);
    lose(&mut sites);
    let frame = &rping()[0];
    let datagram = Datagram::parse(frame).unwrap();
    sites.gateways[0].handle_lan(&datagram, sites.now);
    assert_eq!(sites.gateways[0].stats().lan_drops[LanDrop::NoSession as usize], 1);
}

/// A session that ends after all ends its flows, and nothing goes on with it.
#[test]
fn a_session_that_has_ended_does_not_go_on() {
    let (mut sites, next) = connected(7);
    send(&mut sites, next);
    lose(&mut sites);
    let now = sites.now;
    for gateway in &mut sites.gateways {
        gateway.session_down(SessionEnd::Closed, now);
        assert!(!gateway.is_parked() && !gateway.session_resumed(RTT, 1400, 1, now));
        assert!(gateway.stats().session_failed > 0);
    }
}

/// However long the wait, what is taken in meanwhile keeps within the bounds.
#[test]
fn what_waits_is_bounded() {
    let total_buffer = 4 << 20;
    let mut sites = Sites::new(49_152, |settings| Settings { total_buffer, ..settings });
    lose(&mut sites);
    for qpn in 0..100 {
        for psn in 0..1000_u32 {
            let bth = Bth { ack_req: true, ..Bth::new(Opcode::SendOnly, Qpn::new(qpn), Psn::new(psn)) };
            let repr = Repr { bth, ext: Ext::None, payload: &[5; 1024] };
            let mut request = vec![0; repr.buffer_len()];
            repr.emit(&mut request).unwrap();
            let datagram = Datagram { addressing: sites.addressing[0], transport: &request };
            sites.gateways[0].handle_lan(&datagram, sites.now);
        }
    }
    let waiting: usize = sites.gateways[0].classes().map(|class| class.backlog).sum();
    assert!(waiting > 1 << 20 && waiting <= total_buffer, "{waiting}");
    assert!(sites.gateways[0].stats().lan_drops[LanDrop::NoRoom as usize] > 0);
}

/// A process, or a machine, may stand still for longer than any silence is borne. A flow whose
/// target owes an answer goes on after it.
#[test]
fn a_pause_of_a_gateway_is_nobodys_silence() {
    for excused in [false, true] {
        let (mut sites, next) = connected(7);
        send(&mut sites, next);
        sites.cross();
        assert_eq!(sites.deliver(1).unwrap().psn, next);
        assert!(sites.deliver(1).is_none());
        let pause = Duration::from_secs(100);
        sites.now += pause;
        let (gateway, now) = (&mut sites.gateways[1], sites.now);
        if excused {
            gateway.excuse_pause(pause, now);
        }
        gateway.handle_timeout(now);
        gateway.handle_timeout(now + STEP);
        let failed = gateway.stats().failed[Reason::TargetDead as usize];
        assert_eq!(failed, u64::from(!excused), "{excused}");
    }
}

/// The beginning of a message, which its target has acknowledged.
fn begin_message(sites: &mut Sites, psn: Psn) {
    let bytes = packet(Opcode::SendFirst, TARGET.get(), psn.get(), Ext::None, 1024);
    let datagram = Datagram { addressing: sites.addressing[0], transport: &bytes };
    sites.gateways[0].handle_lan(&datagram, sites.now);
    sites.cross();
    assert_eq!(sites.deliver(1).unwrap().psn, psn);
    sites.acknowledge(Qpn::new(0x28), psn, 1);
    sites.cross();
    for site in 0..2 {
        while sites.deliver(site).is_some() {}
    }
}

/// The gateway of the target cannot tell a requester that is silent from a link that is, before its
/// session is lost.
#[test]
fn a_silent_link_is_not_taken_for_a_requester_that_is_gone() {
    let (mut sites, next) = connected(7);
    begin_message(&mut sites, next);
    for _ in 0..4 {
        sites.now += Settings::new(Vec::new(), 1, 1400).idle_flow;
        let now = sites.now;
        sites.gateways[1].handle_timeout(now);
        assert!(sites.deliver(1).is_none());
    }
    assert_eq!(sites.gateways[1].stats().failed.iter().sum::<u64>(), 0);
}

/// Its own gateway can, and the target's program learns that the rest will not come.
#[test]
fn a_requester_that_is_gone_amid_a_message_is_told_of() {
    let (mut sites, next) = connected(7);
    begin_message(&mut sites, next);
    let mut said = 0;
    for _ in 0..1000 {
        sites.now += Duration::from_secs(1);
        sites.cross();
        while sites.deliver(0).is_some() {}
        while sites.deliver(1).is_some() {
            said += 1;
        }
    }
    assert_eq!(sites.gateways[0].stats().failed[Reason::RequesterGone as usize], 1);
    assert!(said > 0);
}
