//! Queue pairs that change their partner, or their port, without a word of connection management.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use config::Policy;
use roce::ip::{Addressing, Datagram};
use roce::pairing::source_port;
use roce::wire::{Aeth, Bth, Ext, Nak, Opcode, Psn, Qpn, Repr, Reth, Syndrome};
use splice::{Cause, FlowSide, SessionEnd, Settings, StaleFlow};

use crate::sites::{STEP, Sites};

const REQUESTER: Qpn = Qpn::new(0x11);
/// Another queue pair of the same host.
const OTHER: Qpn = Qpn::new(0x12);
const TARGET: Qpn = Qpn::new(0x22);
const MTU: usize = 256;

fn request(sites: &mut Sites, src_port: u16, opcode: Opcode, target: Qpn, psn: u32) {
    request_at(sites, 0, src_port, opcode, target, psn);
}

fn request_at(sites: &mut Sites, site: usize, src_port: u16, opcode: Opcode, target: Qpn, psn: u32) {
    let first = matches!(opcode, Opcode::WriteFirst | Opcode::WriteOnly);
    let dma_length = if opcode == Opcode::WriteOnly { MTU } else { 3 * MTU };
    let reth = Ext::Reth(Reth { virtual_address: 0, rkey: 7, dma_length: dma_length as u32 });
    let bth = Bth { ack_req: true, ..Bth::new(opcode, target, Psn::new(psn)) };
    let repr = Repr { bth, ext: if first { reth } else { Ext::None }, payload: &[5; MTU] };
    let mut transport = vec![0; repr.buffer_len()];
    repr.emit(&mut transport).unwrap();
    let addressing = Addressing { src_port, ..sites.addressing[site] };
    sites.gateways[site].handle_lan(&Datagram { addressing, transport: &transport }, sites.now);
}

fn acknowledge(sites: &mut Sites, src_port: u16, psn: u32, msn: u32) {
    answer(sites, src_port, psn, msn, Syndrome::ACK);
}

fn answer(sites: &mut Sites, src_port: u16, psn: u32, msn: u32, syndrome: Syndrome) {
    let mut transport = [0; 16];
    let ext = Ext::Aeth(Aeth { syndrome, msn });
    let bth = Bth::new(Opcode::Acknowledge, REQUESTER, Psn::new(psn));
    Repr { bth, ext, payload: &[] }.emit(&mut transport).unwrap();
    let addressing = Addressing { src_port, ..sites.addressing[1] };
    sites.gateways[1].handle_lan(&Datagram { addressing, transport: &transport }, sites.now);
}

/// Delivers what a site's hosts get: the opcode, the PSN, and the port.
fn deliver(sites: &mut Sites, site: usize) -> Vec<(Opcode, u32, u16)> {
    let mut out = vec![0; 10_000];
    let mut delivered = Vec::new();
    sites.now += STEP;
    sites.cross();
    while let Some(len) = sites.gateways[site].poll_lan(sites.now, &mut out) {
        let datagram = Datagram::parse(&out[..len]).unwrap();
        let bth = roce::wire::Packet::parse(datagram.transport).unwrap().bth;
        delivered.push((bth.opcode, bth.psn.get(), datagram.addressing.src_port));
    }
    delivered
}

/// The one before has said nothing for long, but is still remembered.
#[test]
fn a_requester_is_acknowledged_by_its_new_target() {
    let mut sites = Sites::new(1, |settings| settings);
    for (target, psn) in [(Qpn::new(0x22), 100), (Qpn::new(0x33), 7), (Qpn::new(0x44), 7)] {
        let src_port = source_port(target, REQUESTER);
        sites.now += Duration::from_secs(1);
        request(&mut sites, src_port, Opcode::WriteOnly, target, psn);
        assert_eq!(deliver(&mut sites, 1), [(Opcode::WriteOnly, psn, src_port)]);
        acknowledge(&mut sites, src_port, psn, 1);
        if psn == 7 {
            // One packet takes the requester away from no other target.
            assert_eq!(deliver(&mut sites, 1), [(Opcode::WriteOnly, psn, src_port)], "{target:?}");
            assert_eq!(deliver(&mut sites, 0), [], "{target:?}");
            acknowledge(&mut sites, src_port, psn, 1);
        }
        assert_eq!(deliver(&mut sites, 0), [(Opcode::Acknowledge, psn, src_port)], "{target:?}");
    }
    assert_eq!(sites.gateways[1].stats().far_flows, 3, "the others may be asked for more");
}

/// Somebody answers in a host's name, and so takes the requester away from a flow at rest. That is
/// still its own: its target says so when it is asked for more.
#[test]
fn a_flow_at_rest_outlives_the_loss_of_its_requester() {
    let mut sites = Sites::new(1, |settings| settings);
    for (target, psn) in [(TARGET, 100), (Qpn::new(0x33), 7), (TARGET, 101)] {
        let src_port = source_port(target, REQUESTER);
        request(&mut sites, src_port, Opcode::WriteOnly, target, psn);
        assert_eq!(deliver(&mut sites, 1), [(Opcode::WriteOnly, psn, src_port)]);
        acknowledge(&mut sites, src_port, psn, 1);
        if psn != 100 {
            assert_eq!(deliver(&mut sites, 1), [(Opcode::WriteOnly, psn, src_port)], "{target:?}");
            acknowledge(&mut sites, src_port, psn, 1);
        }
        assert_eq!(deliver(&mut sites, 0), [(Opcode::Acknowledge, psn, src_port)], "{target:?}");
    }
    assert_eq!(sites.gateways.each_mut().map(|gateway| gateway.stats().failed.iter().sum::<u64>()), [0; 2]);
}

/// The requester has another target since a rest, and its former target another requester. Both ask
/// at the same PSN, which is the next one of the flow that was.
#[test]
fn an_answer_after_a_rest_is_no_flows_that_another_may_have_got() {
    let mut sites = Sites::new(1, |settings| settings);
    let next = Qpn::new(0x33);
    write(&mut sites, 50_001, 100);
    assert_eq!(deliver(&mut sites, 1), [(Opcode::WriteOnly, 100, 50_001)]);
    acknowledge(&mut sites, 50_001, 100, 1);
    assert_eq!(deliver(&mut sites, 0), [(Opcode::Acknowledge, 100, 50_001)]);
    sites.now += Duration::from_secs(1);
    write(&mut sites, 50_001, 101);
    request(&mut sites, 50_002, Opcode::WriteOnly, next, 101);
    let both = [(Opcode::WriteOnly, 101, 50_001), (Opcode::WriteOnly, 101, 50_002)];
    assert_eq!(deliver(&mut sites, 1), both);
    // Only the new target answers this requester. Asked one at a time, it does so again.
    let mut asked = vec![50_002];
    let mut told = Vec::new();
    for _ in 0..10_000 {
        if asked.contains(&50_002) {
            acknowledge(&mut sites, 50_002, 101, 1);
        }
        asked = deliver(&mut sites, 1).into_iter().map(|(.., src_port)| src_port).collect();
        // Who waits hears ACKs of PSNs long past.
        told.extend(deliver(&mut sites, 0).into_iter().filter(|(_, psn, _)| *psn == 101));
        sites.now += Duration::from_millis(1);
        if !told.is_empty() {
            break;
        }
    }
    assert_eq!(told, [(Opcode::Acknowledge, 101, 50_002)]);
}

/// As NICs may that spread a queue pair's packets over several ways.
#[test]
fn a_port_that_changes_inside_a_message_does_not_end_it() {
    let mut sites = Sites::new(1, |settings| settings);
    let target = Qpn::new(0x22);
    let packets = [
        (Opcode::WriteFirst, 100, 50_000),
        (Opcode::WriteMiddle, 101, 50_001),
        (Opcode::WriteLast, 102, 50_002),
    ];
    for (opcode, psn, src_port) in packets {
        request(&mut sites, src_port, opcode, target, psn);
        let delivered = deliver(&mut sites, 1);
        assert!(matches!(delivered[..], [(passed, at, _)] if (passed, at) == (opcode, psn)), "{delivered:?}");
    }
    acknowledge(&mut sites, 50_000, 102, 1);
    assert_eq!(deliver(&mut sites, 0), [(Opcode::Acknowledge, 102, 50_002)]);
    assert_eq!(sites.gateways[0].stats().near_opened, 1);
}

/// Likewise; the port of before did not follow from the queue pairs' numbers, so that another one
/// says nothing.
#[test]
fn a_port_that_changes_with_each_message_ends_nothing() {
    let mut sites = Sites::new(1, |settings| settings);
    for message in 0..4 {
        let (src_port, psn) = (50_000 + message, 100 + u32::from(message));
        request(&mut sites, src_port, Opcode::WriteOnly, TARGET, psn);
        assert_eq!(deliver(&mut sites, 1), [(Opcode::WriteOnly, psn, 50_000)]);
        acknowledge(&mut sites, 50_000, psn, u32::from(message) + 1);
        assert_eq!(deliver(&mut sites, 0), [(Opcode::Acknowledge, psn, src_port)]);
    }
    assert_eq!((sites.gateways[0].stats().near_opened, sites.gateways[0].stats().replaced), (1, 0));
}

/// Else it could have us speak in the name of any host, to any.
#[test]
fn a_peer_remembers_only_flows_between_its_hosts_and_ours() {
    let mut sites = Sites::new(1, |settings| settings);
    let [here, there, other] = ["10.0.0.1", "10.0.1.1", "10.0.0.2"].map(|host| host.parse().unwrap());
    let flow = |requester, target, side| StaleFlow {
        requester,
        target,
        target_qpn: TARGET,
        requester_qpn: REQUESTER,
        psn: Psn::new(100),
        src_port: source_port(REQUESTER, TARGET),
        side,
        lives: false,
    };
    let group = "239.1.1.1".parse().unwrap();
    let bad = [
        flow(here, there, FlowSide::Near),
        flow(other, here, FlowSide::Near),
        flow(there, group, FlowSide::Near),
        flow(there, here, FlowSide::Far),
        flow(here, other, FlowSide::Far),
    ];
    sites.gateways[0].session_up(Duration::from_micros(100), 1400, 1, &bad, sites.now);
    let stats = sites.gateways[0].stats();
    assert_eq!((stats.bad_records, stats.far_flows, stats.remembered), (5, 0, 0));
    let good = [flow(there, here, FlowSide::Near), flow(here, there, FlowSide::Far)];
    sites.gateways[0].session_up(Duration::from_micros(100), 1400, 1, &good, sites.now);
    let stats = sites.gateways[0].stats();
    assert_eq!((stats.bad_records, stats.far_flows, stats.remembered), (5, 1, 1));
}

/// A WRITE from this port to the target.
fn write(sites: &mut Sites, src_port: u16, psn: u32) {
    request(sites, src_port, Opcode::WriteOnly, TARGET, psn);
}

/// The same, and again and again: what refuses it finds out which PSN comes back. What the
/// requesters' hosts get, and the target's.
fn insist(sites: &mut Sites, src_port: u16, psn: u32) -> [Vec<(Qpn, Opcode, u32)>; 2] {
    insist_on(sites, src_port, Opcode::WriteOnly, psn, 4)
}

fn insist_on(
    sites: &mut Sites,
    src_port: u16,
    opcode: Opcode,
    psn: u32,
    times: usize,
) -> [Vec<(Qpn, Opcode, u32)>; 2] {
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..times {
        request(sites, src_port, opcode, TARGET, psn);
        // At once, and when what waits is due: a gateway is polled after each input.
        for rest in [Duration::ZERO, Duration::from_millis(500)] {
            sites.now += rest;
            for (site, all) in all.iter_mut().enumerate() {
                all.extend(heard(sites, site));
            }
        }
    }
    all
}

/// Delivers what a site's hosts get: the queue pair, the opcode, and the PSN.
fn heard(sites: &mut Sites, site: usize) -> Vec<(Qpn, Opcode, u32)> {
    sites.now += STEP;
    sites.cross();
    let packets = std::iter::from_fn(|| sites.deliver(site));
    packets.map(|bth| (bth.dest_qp, bth.opcode, bth.psn.get())).collect()
}

/// Both gateways, with a flow between the two that has been answered.
fn connected() -> Sites {
    let mut sites = Sites::new(1, |settings| settings);
    let src_port = source_port(TARGET, REQUESTER);
    write(&mut sites, src_port, 100);
    assert_eq!(heard(&mut sites, 1), [(TARGET, Opcode::WriteOnly, 100)]);
    acknowledge(&mut sites, src_port, 100, 1);
    assert_eq!(heard(&mut sites, 0), [(REQUESTER, Opcode::Acknowledge, 100)]);
    sites
}

fn end_session(sites: &mut Sites, end: SessionEnd) {
    let now = sites.now;
    sites.gateways.iter_mut().for_each(|gateway| gateway.session_down(end, now));
}

/// A policy with one class, which refuses like this; empty: by default.
fn policy(refuse: &str) -> Arc<Policy> {
    let key = if refuse.is_empty() { String::new() } else { format!("refuse = \"{refuse}\"") };
    let text = format!("[[class]]\nname = \"default\"\nscheme = \"sr\"\n{key}");
    Policy::parse(Path::new("policy.toml"), &text).unwrap().into()
}

/// A flow between the two, whose requests' gateway has restarted and been told of it. It refuses
/// by NAK.
fn restarted() -> Sites {
    restarted_with("nak")
}

fn restarted_with(refuse: &str) -> Sites {
    let mut sites = connected();
    sites.now += Duration::from_secs(1);
    restart(&mut sites, refuse);
    end_session(&mut sites, SessionEnd::Lost);
    sites.renew();
    heard(&mut sites, 1);
    sites
}

fn restart(sites: &mut Sites, refuse: &str) {
    let [fresh, _] = Sites::new(1, |settings| Settings { policy: policy(refuse), ..settings }).gateways;
    sites.gateways[0] = fresh;
}

/// Waits for this at a site's hosts. What was to tell the target that its connection is over may
/// come before.
fn arrives(sites: &mut Sites, site: usize, awaited: (Qpn, Opcode, u32)) -> bool {
    (0..1000).any(|_| {
        sites.now += Duration::from_millis(1);
        heard(sites, site).contains(&awaited)
    })
}

const NAK: (Qpn, Opcode, u32) = (REQUESTER, Opcode::Acknowledge, 101);

/// The target was put in error, and answers nothing. Another requester may have it by now, at the
/// same PSNs.
#[test]
fn what_a_restarted_gateway_is_told_of_refuses_no_other_partner() {
    for (requester, is_refused) in [(REQUESTER, true), (OTHER, false)] {
        let mut sites = restarted();
        let src_port = source_port(TARGET, requester);
        let [told, delivered] = insist(&mut sites, src_port, 101);
        assert_eq!(told, [], "the target may be in its next incarnation");
        assert!(delivered.contains(&(TARGET, Opcode::WriteOnly, 101)), "{delivered:?}");
        let [told, _] = insist_on(&mut sites, src_port, Opcode::WriteOnly, 101, 30);
        assert_eq!(told.contains(&NAK), is_refused, "{told:?}");
    }
}

/// The target said whose it is when it refused what put it in error. Nothing has come from it
/// since, so that its requester must not wait for as long as silence lasts: it may try for ever.
#[test]
fn a_requester_is_refused_whose_target_named_it_while_it_was_put_in_error() {
    let mut sites = connected();
    sites.now += Duration::from_secs(1);
    restart(&mut sites, "nak");
    end_session(&mut sites, SessionEnd::Closed);
    let src_port = source_port(TARGET, REQUESTER);
    let poison = heard(&mut sites, 1);
    assert!(matches!(poison[..], [(TARGET, _, 101)]), "{poison:?}");
    answer(&mut sites, src_port, 101, 1, Syndrome::Nak(Nak::InvalidRequest));
    sites.renew();
    assert_eq!(heard(&mut sites, 1), []);
    let [told, delivered] = insist_on(&mut sites, src_port, Opcode::WriteOnly, 101, 34);
    assert!(delivered.contains(&(TARGET, Opcode::WriteOnly, 101)), "{delivered:?}");
    assert!(told.contains(&NAK), "{told:?}");
}

/// The requester goes on in the midst of a message, and with more messages, ever again. Whatever
/// the time between its packets, it is refused in the end.
#[test]
fn a_requester_of_several_messages_is_refused_after_a_restart() {
    for gap in [Duration::ZERO, Duration::from_millis(2), Duration::from_millis(10)] {
        let mut sites = restarted();
        let src_port = source_port(TARGET, REQUESTER);
        let message = [Opcode::WriteFirst, Opcode::WriteMiddle, Opcode::WriteLast];
        let mut told = Vec::new();
        for _ in 0..60 {
            for psn in 101..116 {
                request(&mut sites, src_port, message[(psn as usize - 100) % 3], TARGET, psn);
                sites.now += gap;
                told.extend(heard(&mut sites, 0));
                heard(&mut sites, 1);
            }
            sites.now += Duration::from_millis(300);
        }
        assert_eq!(told.first(), Some(&NAK), "{gap:?}");
    }
}

/// The program hears its target's own NAK, and whoever runs the requester's gateway is told.
#[test]
fn a_requesters_gateway_tells_of_a_targets_fatal_nak() {
    let mut sites = connected();
    let src_port = source_port(TARGET, REQUESTER);
    write(&mut sites, src_port, 101);
    assert!(arrives(&mut sites, 1, (TARGET, Opcode::WriteOnly, 101)));
    answer(&mut sites, src_port, 101, 1, Syndrome::Nak(Nak::RemoteAccess));
    assert!(arrives(&mut sites, 0, (REQUESTER, Opcode::Acknowledge, 101)));
    let mut told = Vec::new();
    let near = &mut sites.gateways[0];
    near.take_failures(&mut |failure| told.push((failure.side, failure.cause, failure.requester_qpn)));
    assert_eq!(told, [(FlowSide::Near, Cause::Nak, Some(REQUESTER))]);
}

/// Both programs have begun anew with the same numbers, at PSNs that lie near those of before, or
/// are the same. They lie within the place where the requester would be refused.
#[test]
fn a_job_begun_anew_over_a_restarted_gateway_is_not_refused() {
    for first in [0, 100, 5000] {
        let mut sites = restarted();
        let src_port = source_port(TARGET, REQUESTER);
        for (message, psn) in (first..first + 3).enumerate() {
            write(&mut sites, src_port, psn);
            assert!(arrives(&mut sites, 1, (TARGET, Opcode::WriteOnly, psn)), "{psn} from {first}");
            acknowledge(&mut sites, src_port, psn, message as u32 + 1);
            assert!(arrives(&mut sites, 0, (REQUESTER, Opcode::Acknowledge, psn)), "{psn} from {first}");
        }
        assert_eq!(sites.gateways[0].stats().near.fatal_naks, 0, "from {first}");
    }
}

/// The rest of a message can never complete: its beginning went with the session.
#[test]
fn a_message_that_a_restarted_gateway_cut_in_two_is_refused() {
    let mut sites = restarted();
    let src_port = source_port(TARGET, REQUESTER);
    let [told, delivered] = insist_on(&mut sites, src_port, Opcode::WriteMiddle, 101, 4);
    assert_eq!(told, [NAK]);
    assert!(!delivered.iter().any(|&(_, opcode, _)| opcode == Opcode::WriteMiddle), "{delivered:?}");
}

/// By default nobody says so before its NIC has given up. Who tries for longer is refused after
/// all.
#[test]
fn a_restarted_gateway_refuses_by_silence_at_first() {
    for (refuse, opcode) in
        [("", Opcode::WriteMiddle), ("silence", Opcode::WriteMiddle), ("", Opcode::WriteOnly)]
    {
        let mut sites = restarted_with(refuse);
        let src_port = source_port(TARGET, REQUESTER);
        let [told, _] = insist_on(&mut sites, src_port, opcode, 101, 56);
        assert_eq!(told, [], "{refuse} {opcode:?}: within 28 s");
        let [told, _] = insist_on(&mut sites, src_port, opcode, 101, 10);
        assert!(told.contains(&NAK), "{refuse} {opcode:?}: 5 s later: {told:?}");
    }
}

/// The silence is for the requester that was cut off, and for no other.
#[test]
fn a_job_begun_anew_over_a_silent_gateway_is_answered() {
    for first in [0, 100, 5000] {
        let mut sites = restarted_with("silence");
        let src_port = source_port(TARGET, REQUESTER);
        write(&mut sites, src_port, first);
        assert!(arrives(&mut sites, 1, (TARGET, Opcode::WriteOnly, first)), "{first}");
        acknowledge(&mut sites, src_port, first, 1);
        assert!(arrives(&mut sites, 0, (REQUESTER, Opcode::Acknowledge, first)), "{first}");
    }
}

/// The first packet of a job begun anew is lost on the LAN, so that the next one seems to go on in
/// the midst of a message.
#[test]
fn a_job_begun_anew_whose_first_packet_is_lost_is_not_refused() {
    let mut sites = restarted();
    let src_port = source_port(TARGET, REQUESTER);
    for psn in [102, 103] {
        request(&mut sites, src_port, Opcode::WriteMiddle, TARGET, psn);
    }
    sites.now += Duration::from_millis(20);
    assert_eq!(heard(&mut sites, 0), []);
    for (psn, opcode) in [(101, Opcode::WriteFirst), (102, Opcode::WriteMiddle), (103, Opcode::WriteLast)] {
        request(&mut sites, src_port, opcode, TARGET, psn);
    }
    assert!(arrives(&mut sites, 1, (TARGET, Opcode::WriteLast, 103)));
    acknowledge(&mut sites, src_port, 103, 1);
    assert!(arrives(&mut sites, 0, (REQUESTER, Opcode::Acknowledge, 103)));
}

/// The target's other partner sends a request that is lost with the session. What hosts here are
/// told when it comes again in the next one.
fn told_after_a_loss(sites: &mut Sites) -> Vec<(Qpn, Opcode, u32)> {
    // Two programs need longer than a packet on the LAN.
    sites.now += Duration::from_millis(10);
    let src_port = source_port(TARGET, OTHER);
    write(sites, src_port, 101);
    sites.now += STEP;
    sites.cross_but(|_, _| true);
    end_session(sites, SessionEnd::Closed);
    sites.renew();
    let [told, _] = insist(sites, src_port, 101);
    told
}

/// The target has another partner by now, whose requests the peer has not got. What it remembers is
/// of the one before.
#[test]
fn what_the_peer_remembers_acquaints_no_other_partner() {
    let mut sites = connected();
    let told = told_after_a_loss(&mut sites);
    assert_eq!(told, [], "the partner of before is refused");
}

/// As above, but the requesters' gateway has forgotten the flow, and the link was cut.
#[test]
fn what_the_peer_remembers_is_not_taken_for_another_partners() {
    let mut sites = connected();
    sites.now += Duration::from_secs(1_000_000);
    let now = sites.now;
    sites.gateways[0].handle_timeout(now);
    assert_eq!(sites.gateways[0].stats().near_flows, 0);
    end_session(&mut sites, SessionEnd::Lost);
    sites.renew();
    let src_port = source_port(TARGET, OTHER);
    write(&mut sites, src_port, 101);
    end_session(&mut sites, SessionEnd::Closed);
    let [told, _] = insist(&mut sites, src_port, 101);
    assert_eq!(told, [], "the partner of before is refused");
}
