//! Pairing among simulated hosts whose NICs choose ports in different ways, lose packets and answer late.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use roce::pairing::{Config, Event, FlowKey, Hosts, Match, Pairings, Response, source_port};
use roce::wire::{Psn, Qpn};

use crate::pairing::{PORT, Y, start};

/// How the NICs of a simulated site choose the source port.
#[derive(Clone, Copy, Debug)]
enum Ports {
    /// From the product of the queue pair numbers.
    Product,
    /// Any, but the same both ways.
    Label,
    /// One for all.
    Fixed,
    /// One for all requests, another for all responses.
    FixedApart,
}

/// A requester with one flow: sends a window again and again until it is answered often enough.
#[derive(Clone, Copy)]
struct Peer {
    key: FlowKey,
    qpn: Qpn,
    ports: (u16, u16),
    next: Psn,
    sent_at: Option<Instant>,
    starts: Instant,
    answers: u32,
}

struct Site {
    pairings: Pairings,
    peers: Vec<Peer>,
    /// Responses on their way: when, whose, PSN.
    air: Vec<(Instant, usize, Psn)>,
    random: u64,
}

const ENOUGH: u32 = 4;

impl Site {
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    fn new(ports: Ports, flows: usize, zero_psn: bool, small: bool, seed: u64, now: Instant) -> Site {
        let pairings = Pairings::new(Config::default(), now);
        let mut site = Site { pairings, peers: Vec::new(), air: Vec::new(), random: seed | 1 };
        for i in 0..u32::try_from(flows).unwrap() {
            let spread = if small { 1 } else { 0x9_1237 };
            let (a, b) = (Qpn::new((0x11 + i) * spread), Qpn::new((0x80 - i) * spread));
            let label = 0xc000 | site.random(0x4000) as u16;
            let ports = match ports {
                Ports::Product => (source_port(a, b), source_port(a, b)),
                Ports::Label => (label, label),
                Ports::Fixed => (PORT, PORT),
                Ports::FixedApart => (PORT, PORT + 1),
            };
            let requester = [10, 0, 0, 1 + site.random(2) as u8].into();
            let (forth, other) = (FlowKey { requester, target: Y.into(), target_qpn: b }, requester);
            site.peer(forth, a, ports, zero_psn, now);
            if site.random(3) == 0 {
                let target = FlowKey { requester: Y.into(), target: other, target_qpn: a };
                site.peer(target, b, ports, zero_psn, now);
            }
        }
        site
    }

    fn peer(&mut self, key: FlowKey, qpn: Qpn, ports: (u16, u16), zero_psn: bool, now: Instant) {
        let psn = if zero_psn { 0 } else { self.random(1 << 24) as u32 };
        let starts = now + Duration::from_millis(self.random(60));
        let next = Psn::new(psn);
        self.peers.push(Peer { key, qpn, ports, next, sent_at: None, starts, answers: 0 });
    }

    fn step(&mut self, now: Instant) {
        for i in 0..self.peers.len() {
            self.request(i, now);
        }
        let (due, later) = std::mem::take(&mut self.air).into_iter().partition(|(at, ..)| *at <= now);
        self.air = later;
        for (_, i, psn) in due {
            self.respond(i, psn, now);
        }
        if self.pairings.next_timeout().is_some_and(|at| at <= now) {
            self.pairings.handle_timeout(now);
        }
        while let Some(event) = self.pairings.poll_event() {
            let Event::Paired(key, qpn) = event else { panic!("{event:?}") };
            assert_eq!(qpn, self.peers.iter().find(|peer| peer.key == key).unwrap().qpn);
        }
    }

    fn request(&mut self, i: usize, now: Instant) {
        let Peer { key, qpn, ports, next, sent_at, starts, answers } = self.peers[i];
        let is_due = sent_at.is_none_or(|at| now >= at + Duration::from_millis(5));
        if now < starts || !is_due || answers >= ENOUGH {
            return;
        }
        let partner = self.pairings.open(key, ports.0, now).unwrap();
        assert!(partner.is_none_or(|partner| partner == qpn), "{key:?} with {partner:?}");
        if !self.pairings.may_send(&key) {
            return;
        }
        self.peers[i].sent_at = Some(now);
        let count = 1 + self.random(3) as u32;
        for ahead in 0..count {
            self.pairings.sent(&key, next + ahead, 1);
        }
        if self.random(5) > 0 {
            let answered = next + self.random(u64::from(count)) as u32;
            let at = now + Duration::from_millis(self.random(19));
            self.air.push((at, i, answered));
        }
    }

    fn respond(&mut self, i: usize, psn: Psn, now: Instant) {
        let Peer { key, qpn, ports, answers, .. } = self.peers[i];
        let hosts = Hosts { requester: key.requester, target: key.target };
        let response = Response { hosts, requester_qpn: qpn, src_port: ports.1, psn };
        match self.pairings.handle_response(&response, now) {
            Match::Known(found) | Match::Paired(found) => {
                assert_eq!(found, key, "the answer to another flow");
                let peer = &mut self.peers[i];
                peer.answers += 1;
                peer.next = if psn.next().is_after(peer.next) { psn.next() } else { peer.next };
                let is_lone = !self.peers.iter().any(|peer| peer.qpn == key.target_qpn);
                if answers + 1 == ENOUGH && is_lone {
                    self.pairings.forget(&key, now);
                }
            }
            Match::Ambiguous => assert!(answers < ENOUGH),
            Match::Unknown => assert!(answers >= ENOUGH, "an answer to nobody"),
        }
    }

    fn is_done(&self) -> bool {
        self.peers.iter().all(|peer| peer.answers >= ENOUGH) && self.air.is_empty()
    }
}

fn ports() -> impl Strategy<Value = Ports> {
    prop_oneof![Just(Ports::Product), Just(Ports::Label), Just(Ports::Fixed), Just(Ports::FixedApart)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever the NICs do, no response is taken for another flow's, and every flow is paired in the end.
    #[test]
    fn every_flow_is_paired_rightly(
        ports in ports(),
        flows in 1..14usize,
        zero_psn in any::<bool>(),
        small in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut now = start();
        let mut site = Site::new(ports, flows, zero_psn, small, seed, now);
        let until = now + Duration::from_secs(60);
        while !site.is_done() {
            now += Duration::from_millis(1);
            prop_assert!(now < until, "{} flows still wait", site.pairings.waiting());
            site.step(now);
        }
    }
}
