//! A target that is not ready to receive, a requester that tries again as often as it likes, and a
//! gateway without room.
//!
//! Rules: `docs/protocol.md#rule-rnr`, `rule-rnr-anew`, `rule-retry`, `rule-rnr-seven`.

use std::time::{Duration, Instant};

use crate::sites::{Sites, packet, rping, write_request};
use roce::cm::Mad;
use roce::ip::Datagram;
use roce::wire::{Aeth, Bth, Ext, Opcode, Packet, Psn, Qpn, Repr, RnrTimer, Syndrome};
use splice::{LanDrop, Settings};

const REQUESTER: Qpn = Qpn::new(0x28);
const TARGET: Qpn = Qpn::new(0x34);
const STEP: Duration = Duration::from_micros(200);
/// The timer that the target asks for: 0.96 ms.
const TIMER: RnrTimer = RnrTimer::new(13);

fn send(sites: &mut Sites, psn: Psn) {
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::SendOnly, TARGET, psn) };
    let repr = Repr { bth, ext: Ext::None, payload: &[5; 512] };
    let mut request = vec![0; repr.buffer_len()];
    repr.emit(&mut request).unwrap();
    let datagram = Datagram { addressing: sites.addressing[0], transport: &request };
    sites.gateways[0].handle_lan(&datagram, sites.now);
}

fn answer(sites: &mut Sites, psn: Psn, syndrome: Syndrome) {
    let mut bytes = [0; 16];
    let bth = Bth::new(Opcode::Acknowledge, REQUESTER, psn);
    let msn = psn.get() + u32::from(syndrome.is_ack());
    Repr { bth, ext: Ext::Aeth(Aeth { syndrome, msn }), payload: &[] }.emit(&mut bytes).unwrap();
    let datagram = Datagram { addressing: sites.addressing[1], transport: &bytes };
    sites.gateways[1].handle_lan(&datagram, sites.now);
}

/// A SEND, PSN 0, that the target answers.
fn complete_first(sites: &mut Sites) {
    send(sites, Psn::new(0));
    sites.cross();
    assert_eq!(sites.deliver(1).unwrap().psn, Psn::new(0));
    answer(sites, Psn::new(0), Syndrome::ACK);
    sites.cross();
    while sites.deliver(0).is_some() {}
}

/// The responses that a requester has heard to its SEND, and the tries that a target has seen of
/// it.
#[derive(Default)]
struct Seen {
    rnrs: u32,
    done: bool,
    tries: u32,
}

/// Hosts whose first SEND is done, and whose second, PSN 1, finds no receive.
struct Hosts {
    sites: Sites,
    seen: Seen,
    /// The retries that the requester has left, if it is not patient without end.
    retries: Option<u32>,
    tries_at: Option<Instant>,
    ready_at: Option<Instant>,
}

impl Hosts {
    fn new(retries: Option<u32>) -> Self {
        let mut sites = Sites::new(49_152, |settings| settings);
        complete_first(&mut sites);
        send(&mut sites, Psn::new(1));
        Self { sites, seen: Seen::default(), retries, tries_at: None, ready_at: None }
    }

    fn run(&mut self, time: Duration, step: Duration) {
        let end = self.sites.now + time;
        while self.sites.now < end {
            self.sites.now += step;
            self.sites.cross();
            while let Some(request) = self.sites.deliver(1) {
                assert!(request.psn == Psn::new(1) && request.dest_qp == TARGET, "{request:?}");
                self.seen.tries += 1;
                let is_ready = self.ready_at.is_some_and(|at| self.sites.now >= at);
                let syndrome = if is_ready { Syndrome::ACK } else { Syndrome::Rnr { timer: TIMER } };
                answer(&mut self.sites, Psn::new(1), syndrome);
            }
            self.sites.cross();
            self.requester();
        }
    }

    fn requester(&mut self) {
        let mut out = [0; 4096];
        while let Some(len) = self.sites.gateways[0].poll_lan(self.sites.now, &mut out) {
            let datagram = Datagram::parse(&out[..len]).unwrap();
            let packet = Packet::parse(datagram.transport).unwrap();
            match packet.ext.aeth().unwrap().syndrome {
                Syndrome::Rnr { timer } => {
                    assert_eq!((packet.bth.psn, timer), (Psn::new(1), TIMER));
                    self.seen.rnrs += 1;
                    self.tries_at = match &mut self.retries {
                        Some(0) => None,
                        Some(left) => {
                            *left -= 1;
                            Some(self.sites.now + TIMER.duration())
                        }
                        None => Some(self.sites.now + TIMER.duration()),
                    };
                }
                Syndrome::Ack { .. } => self.seen.done |= packet.bth.psn == Psn::new(1),
                other => panic!("{other:?}"),
            }
        }
        if self.tries_at.take_if(|at| *at <= self.sites.now).is_some() {
            send(&mut self.sites, Psn::new(1));
        }
    }
}

#[test]
fn what_a_requester_has_given_up_is_not_done_after_all() {
    for retries in [0, 1, 6] {
        let mut hosts = Hosts::new(Some(retries));
        hosts.run(Duration::from_secs(2), STEP);
        assert_eq!(
            (hosts.seen.rnrs, hosts.seen.done),
            (retries + 1, false),
            "it hears as many as it can bear"
        );
        hosts.ready_at = Some(hosts.sites.now);
        let tries = hosts.seen.tries;
        hosts.run(Duration::from_secs(40), Duration::from_millis(1));
        assert_eq!((hosts.seen.tries, hosts.seen.done), (tries, false));
        // And the target's queue pair is none the worse: nothing was sent to it.
        assert_eq!(hosts.sites.gateways[0].stats().rnr_given_up, 1);
        assert!(hosts.sites.gateways.iter().all(splice::Gateway::has_parted));
    }
}

#[test]
fn who_tries_for_longer_than_any_bound_gets_there() {
    let mut hosts = Hosts::new(None);
    hosts.ready_at = Some(hosts.sites.now + Duration::from_secs(100));
    hosts.run(Duration::from_secs(99), STEP);
    assert!(hosts.seen.rnrs > 1000 && !hosts.seen.done);
    hosts.run(Duration::from_secs(2), STEP);
    assert!(hosts.seen.done);
    assert_eq!(hosts.sites.gateways[0].stats().rnr_given_up, 0);
}

/// A target that is ready soon costs no round trip, and its requester hears nothing.
#[test]
fn a_short_wait_is_not_shown() {
    let mut hosts = Hosts::new(Some(0));
    hosts.ready_at = Some(hosts.sites.now + Duration::from_millis(50));
    hosts.run(Duration::from_millis(60), STEP);
    assert!(hosts.seen.done && hosts.seen.rnrs == 0 && hosts.seen.tries > 10);
}

/// When the target's queue pair begins anew as a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anew {
    Never,
    BeforeTheRequest,
    BeforeItsAnswer,
    WhileItWaits,
}

/// The target sends this PSN to the requester's queue pair, which answers if it is the first.
fn request_back(sites: &mut Sites, bytes: &[u8], answers: bool) {
    let datagram = Datagram { addressing: sites.addressing[1], transport: bytes };
    sites.gateways[1].handle_lan(&datagram, sites.now);
    sites.cross();
    while sites.deliver(0).is_some() {}
    if answers {
        sites.acknowledge_at(0, TARGET, Psn::new(0), 1);
        sites.cross();
        while sites.deliver(1).is_some() {}
    }
}

/// Another request than the target's queue pair had sent at its first PSN.
fn begin_anew(sites: &mut Sites) {
    sites.now += Duration::from_millis(20);
    sites.cross();
    while sites.deliver(1).is_some() {}
    let replaced = sites.gateways[1].stats().replaced;
    request_back(sites, &packet(Opcode::SendOnly, REQUESTER.get(), 0, Ext::None, 8), false);
    assert_eq!(sites.gateways[1].stats().replaced, replaced + 1);
}

/// The next try of the requester's first SEND, which the target is not ready for.
fn refuse_next_try(sites: &mut Sites) {
    for _ in 0..10_000 {
        sites.now += STEP;
        sites.cross();
        let mut comes = false;
        while let Some(bth) = sites.deliver(1) {
            comes |= bth.opcode == Opcode::SendOnly;
        }
        if comes {
            return answer(sites, Psn::new(0), Syndrome::Rnr { timer: TIMER });
        }
    }
    panic!("no try");
}

/// The tries that the target sees for a while, to none of which it says anything, and the RNR NAKs
/// that its requester hears.
fn tries_and_rnrs(sites: &mut Sites, time: Duration) -> (u32, u32) {
    let (end, mut seen) = (sites.now + time, (0, 0));
    while sites.now < end {
        sites.cross();
        while let Some(bth) = sites.deliver(1) {
            seen.0 += u32::from(bth.opcode == Opcode::SendOnly);
        }
        sites.cross();
        let mut out = [0; 4096];
        while let Some(len) = sites.gateways[0].poll_lan(sites.now, &mut out) {
            let datagram = Datagram::parse(&out[..len]).unwrap();
            let aeth = Packet::parse(datagram.transport).unwrap().ext.aeth().copied();
            seen.1 += u32::from(aeth.is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Rnr { .. })));
        }
        sites.now += STEP;
    }
    seen
}

/// The connection may have ended since the request came, and the requester with it. The target's
/// next incarnation is not to have what that one's was to.
#[test]
fn what_came_before_the_target_began_anew_is_left_to_its_requester() {
    for anew in [Anew::Never, Anew::BeforeTheRequest, Anew::BeforeItsAnswer, Anew::WhileItWaits] {
        let mut sites = Sites::new(49_152, |settings| settings);
        request_back(&mut sites, &write_request(REQUESTER, 256), true);
        if anew == Anew::BeforeTheRequest {
            begin_anew(&mut sites);
        }
        send(&mut sites, Psn::new(0));
        sites.cross();
        assert_eq!(sites.deliver(1).unwrap().opcode, Opcode::SendOnly);
        if anew == Anew::BeforeItsAnswer {
            begin_anew(&mut sites);
        }
        refuse_next_try(&mut sites);
        if anew == Anew::WhileItWaits {
            let datagram = packet(Opcode::SendOnly, REQUESTER.get(), 0, Ext::None, 8);
            request_back(&mut sites, &datagram, false);
            assert_eq!(sites.gateways[1].stats().replaced, 1);
        }
        let seen = tries_and_rnrs(&mut sites, Duration::from_millis(60));
        let is_left = matches!(anew, Anew::BeforeItsAnswer | Anew::WhileItWaits);
        assert_eq!((seen.0 == 0, seen.1 == 1), (is_left, is_left), "{anew:?}: {seen:?}");
        if is_left {
            // Its requester is there, and tries again.
            send(&mut sites, Psn::new(0));
            assert_eq!(tries_and_rnrs(&mut sites, TIMER.duration()).0, 1, "{anew:?}");
        }
    }
}

/// Flows of the target's own that take no other's place tell nothing of its incarnation.
#[test]
fn a_first_request_of_the_target_changes_nothing() {
    let mut sites = Sites::new(49_152, |settings| settings);
    send(&mut sites, Psn::new(0));
    sites.cross();
    assert_eq!(sites.deliver(1).unwrap().opcode, Opcode::SendOnly);
    request_back(&mut sites, &write_request(REQUESTER, 256), true);
    refuse_next_try(&mut sites);
    let seen = tries_and_rnrs(&mut sites, Duration::from_millis(60));
    assert!(seen.0 > 0 && seen.1 == 0, "{seen:?}");
}

/// A NIC gives up after seven requests that are not answered. One that takes RNR without end need
/// not.
#[test]
fn a_requester_for_which_there_is_no_room_is_told_to_wait() {
    for retries in [6, 7] {
        let mut sites = Sites::new(49_152, |settings| Settings { total_buffer: 4 << 20, ..settings });
        let mut first = Psn::new(0);
        for (from, frame) in rping().iter().take(2).enumerate() {
            let datagram = Datagram::parse(frame).unwrap();
            let mut transport = datagram.transport.to_vec();
            match Mad::parse(&Packet::parse(&transport).unwrap()).unwrap().message {
                roce::cm::Message::Req(_) => {}
                // Where it wants its peer to begin, and what to bear, in a REP's top bits there.
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
        fill_for_good(&mut sites);
        send(&mut sites, first);
        let told = heard(&mut sites);
        let waits = Syndrome::Rnr { timer: RnrTimer::new(20) };
        assert_eq!(told, (retries == 7).then_some((first, REQUESTER, waits)));
    }
}

/// A request that is outstanding needs no room as it comes again.
#[test]
fn a_repetition_is_answered_though_there_is_no_room() {
    let mut sites = Sites::new(49_152, |settings| Settings { total_buffer: 4 << 20, ..settings });
    complete_first(&mut sites);
    send(&mut sites, Psn::new(1));
    fill_for_good(&mut sites);
    let dropped = |sites: &mut Sites| sites.gateways[0].stats().lan_drops[LanDrop::NoRoom as usize];
    let before = dropped(&mut sites);
    assert!(before > 0);
    send(&mut sites, Psn::new(2));
    assert_eq!((heard(&mut sites), dropped(&mut sites)), (None, before + 1));
    send(&mut sites, Psn::new(1));
    let (psn, qpn, syndrome) = heard(&mut sites).unwrap();
    assert!(matches!(syndrome, Syndrome::Ack { .. }) && (psn, qpn) == (Psn::new(0), REQUESTER), "{psn:?}");
    assert_eq!(dropped(&mut sites), before + 1);
}

/// By the time there is room, the target has answered all that came before the packet refused.
#[test]
fn a_requester_that_was_refused_is_told_of_room() {
    let roomy = |settings| Settings { total_buffer: 64 << 20, notify_backlog: false, ..settings };
    let mut sites = Sites::new(49_152, roomy);
    complete_first(&mut sites);
    send(&mut sites, Psn::new(1));
    sites.cross();
    while sites.deliver(1).is_some() {}
    fill(&mut sites);
    send(&mut sites, Psn::new(2));
    answer(&mut sites, Psn::new(1), Syndrome::ACK);
    let mut told = Vec::new();
    for _ in 0..100 {
        sites.now += STEP;
        sites.cross();
        while sites.deliver(1).is_some() {}
        told.extend(std::iter::from_fn(|| heard(&mut sites)).map(|(psn, _, said)| (psn.get(), said)));
    }
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(matches!(told[0], (1, Syndrome::Ack { .. })), "{told:?}");
    assert_eq!(told[1], (2, Syndrome::Nak(roce::wire::Nak::PsnSequence)));
}

/// Other queue pairs take all the room there is.
fn fill(sites: &mut Sites) {
    let mut others = 0u32;
    while sites.gateways[0].stats().lan_drops.iter().sum::<u64>() == 0 {
        write(sites, others / 1000, others % 1000);
        others += 1;
    }
}

fn write(sites: &mut Sites, other: u32, psn: u32) {
    let mut request = write_request(Qpn::new(0x99 + other), 256);
    request[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
    let datagram = Datagram { addressing: sites.addressing[0], transport: &request };
    sites.gateways[0].handle_lan(&datagram, sites.now);
}

/// The same of queue pairs that the target has answered, so that nothing gives way.
fn fill_for_good(sites: &mut Sites) {
    let others = 0..8;
    for other in others.clone() {
        write(sites, other, 0);
        sites.now += STEP;
        sites.cross();
        while sites.deliver(1).is_some() {}
        sites.acknowledge(Qpn::new(0x4000 + other), Psn::new(0), 1);
        sites.cross();
        assert!(heard(sites).is_some_and(|(_, qpn, _)| qpn == Qpn::new(0x4000 + other)));
    }
    for psn in 1.. {
        for other in others.clone() {
            write(sites, other, psn);
            if sites.gateways[0].stats().lan_drops.iter().sum::<u64>() > 0 {
                return;
            }
        }
    }
}

/// The next packet for the requester: PSN, queue pair and what it says.
fn heard(sites: &mut Sites) -> Option<(Psn, Qpn, Syndrome)> {
    let mut out = [0; 4096];
    let len = sites.gateways[0].poll_lan(sites.now, &mut out)?;
    let datagram = Datagram::parse(&out[..len]).unwrap();
    let packet = Packet::parse(datagram.transport).unwrap();
    Some((packet.bth.psn, packet.bth.dest_qp, packet.ext.aeth().unwrap().syndrome))
}
