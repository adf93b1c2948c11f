//! A host whose processors are busy: it answers, and takes its time for each packet. Hundreds of
//! its queue pairs are written to at once, by others that nothing is known of.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::sites::{STEP, Sites};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use roce::ip::{Addressing, Datagram};
use roce::pairing::source_port;
use roce::wire::{Aeth, Bth, Ext, Nak, Opcode, Packet, Psn, Qpn, Repr, Reth, Syndrome};

const FLOWS: u32 = 400;
/// Messages of each, those outstanding at a time, and the packets of one.
const MESSAGES: u32 = 4;
const DEPTH: u32 = 2;
const PACKETS: u32 = 4;
const MTU: usize = 256;
/// As a queue pair's attributes.
const TIMEOUT: Duration = Duration::from_millis(500);
const RETRIES: u32 = 7;
const REQUESTER: u32 = 0x1000;
const TARGET: u32 = 0x2000;

/// Writes messages of [`PACKETS`] packets.
struct Requester {
    number: u32,
    first: Psn,
    /// Packets sent, and acknowledged.
    sent: u32,
    acknowledged: u32,
    heard: Instant,
    retries: u32,
    failed: bool,
}

/// A queue pair of the target's.
#[derive(Clone, Copy)]
struct Responder {
    first: Psn,
    expected: u32,
    is_nak_out: bool,
}

impl Requester {
    fn is_done(&self) -> bool {
        self.failed || self.acknowledged == MESSAGES * PACKETS
    }

    /// The next packet that may be sent, if there is one.
    fn send(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.is_done() {
            return None;
        }
        if self.sent > self.acknowledged && now - self.heard > TIMEOUT {
            self.retries += 1;
            self.failed = self.retries > RETRIES;
            (self.sent, self.heard) = (self.acknowledged, now);
        }
        let window = (self.acknowledged / PACKETS + DEPTH).min(MESSAGES) * PACKETS;
        if self.failed || self.sent >= window {
            return None;
        }
        if self.sent == self.acknowledged {
            self.heard = now;
        }
        let opcode = match self.sent % PACKETS {
            0 => Opcode::WriteFirst,
            3 => Opcode::WriteLast,
            _ => Opcode::WriteMiddle,
        };
        let reth = Reth { virtual_address: 0, rkey: 7, dma_length: PACKETS * MTU as u32 };
        let ext = if opcode == Opcode::WriteFirst { Ext::Reth(reth) } else { Ext::None };
        let ack_req = opcode == Opcode::WriteLast;
        let bth = Bth { ack_req, ..Bth::new(opcode, Qpn::new(TARGET + self.number), self.first + self.sent) };
        let repr = Repr { bth, ext, payload: &[5; MTU] };
        let mut request = vec![0; repr.buffer_len()];
        repr.emit(&mut request).unwrap();
        self.sent += 1;
        Some(request)
    }

    fn hear(&mut self, psn: Psn, syndrome: Syndrome, now: Instant) {
        // One before the first is none of its own.
        let Ok(at) = u32::try_from(psn.distance(self.first)) else { return };
        let done = match syndrome {
            Syndrome::Ack { .. } => at + 1,
            Syndrome::Nak(Nak::PsnSequence) => at,
            other => panic!("{other:?}"),
        };
        if done < self.acknowledged || done > self.sent {
            return;
        }
        if done > self.acknowledged {
            (self.acknowledged, self.heard, self.retries) = (done, now, 0);
        }
        if matches!(syndrome, Syndrome::Nak(_)) {
            self.sent = done;
        }
    }
}

impl Responder {
    /// Executes a request; what it answers.
    fn execute(&mut self, bth: &Bth) -> Option<(Psn, Aeth)> {
        let (psn, syndrome) = self.answer(bth)?;
        Some((psn, Aeth { syndrome, msn: self.expected / PACKETS }))
    }

    fn answer(&mut self, bth: &Bth) -> Option<(Psn, Syndrome)> {
        let expected = self.first + self.expected;
        if bth.psn == expected {
            self.expected += 1;
            self.is_nak_out = false;
            return bth.ack_req.then_some((bth.psn, Syndrome::ACK));
        }
        if bth.psn.is_before(expected) {
            return Some((expected.prev(), Syndrome::ACK));
        }
        (!std::mem::replace(&mut self.is_nak_out, true))
            .then_some((expected, Syndrome::Nak(Nak::PsnSequence)))
    }
}

fn answer(number: u32, (psn, aeth): (Psn, Aeth)) -> [u8; 16] {
    let mut bytes = [0; 16];
    let bth = Bth::new(Opcode::Acknowledge, Qpn::new(REQUESTER + number), psn);
    Repr { bth, ext: Ext::Aeth(aeth), payload: &[] }.emit(&mut bytes).unwrap();
    bytes
}

/// Both hosts, with gateways between them or without.
struct World {
    sites: Sites,
    requesters: Vec<Requester>,
    responders: Vec<Responder>,
    by_gateways: bool,
    /// Requests that the target host has not looked at yet, and when it looks at the next.
    arrived: VecDeque<Bth>,
    next: Instant,
}

impl World {
    fn new(seed: u64, by_gateways: bool) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let sites = Sites::new(1, |settings| settings);
        let heard = sites.now;
        let requesters: Vec<_> = (0..FLOWS)
            .map(|number| {
                let first = Psn::new(random.random_range(0..1 << 24));
                Requester { number, first, sent: 0, acknowledged: 0, heard, retries: 0, failed: false }
            })
            .collect();
        let responder =
            |requester: &Requester| Responder { first: requester.first, expected: 0, is_nak_out: false };
        let responders = requesters.iter().map(responder).collect();
        Self { sites, requesters, responders, by_gateways, arrived: VecDeque::new(), next: heard }
    }

    /// Everybody sends what it may.
    fn ask(&mut self) {
        let now = self.sites.now;
        for requester in &mut self.requesters {
            while let Some(request) = requester.send(now) {
                if self.by_gateways {
                    let ends = [REQUESTER, TARGET].map(|base| base + requester.number);
                    hand(&mut self.sites, 0, ends, &request);
                } else {
                    self.arrived.push_back(Packet::parse(&request).unwrap().bth);
                }
            }
        }
        self.sites.cross();
        while let Some(bth) = self.sites.deliver(1) {
            self.arrived.push_back(bth);
        }
    }

    /// The target host looks at as many requests as it can in a step, and answers.
    fn answer(&mut self, takes: Duration) {
        let now = self.sites.now;
        self.next = self.next.max(now);
        let mut answers = Vec::new();
        while self.next < now + STEP
            && let Some(bth) = self.arrived.pop_front()
        {
            let number = bth.dest_qp.get() - TARGET;
            answers.extend(self.responders[number as usize].execute(&bth).map(|word| (number, word)));
            self.next += takes;
        }
        for (number, word) in answers {
            if self.by_gateways {
                hand(&mut self.sites, 1, [TARGET + number, REQUESTER + number], &answer(number, word));
            } else {
                self.requesters[number as usize].hear(word.0, word.1.syndrome, now);
            }
        }
    }

    /// The requesters hear what the gateway has for them.
    fn hear(&mut self) {
        let (now, mut out) = (self.sites.now, vec![0; 10_000]);
        self.sites.cross();
        while let Some(len) = self.sites.gateways[0].poll_lan(now, &mut out) {
            let packet = Packet::parse(Datagram::parse(&out[..len]).unwrap().transport).unwrap();
            let Some(Aeth { syndrome, .. }) = packet.ext.aeth() else { continue };
            let number = packet.bth.dest_qp.get() - REQUESTER;
            self.requesters[number as usize].hear(packet.bth.psn, *syndrome, now);
        }
    }
}

/// Hands a packet of one queue pair for another to its site's gateway.
fn hand(sites: &mut Sites, site: usize, ends: [u32; 2], transport: &[u8]) {
    let [from, to] = ends.map(Qpn::new);
    let addressing = Addressing { src_port: source_port(from, to), ..sites.addressing[site] };
    sites.gateways[site].handle_lan(&Datagram { addressing, transport }, sites.now);
}

/// Writes all; how long that took, and how many queue pairs failed.
fn write(seed: u64, takes: Duration, by_gateways: bool) -> (Duration, usize) {
    let mut world = World::new(seed, by_gateways);
    let start = world.sites.now;
    while world.requesters.iter().any(|requester| !requester.is_done()) {
        world.ask();
        world.answer(takes);
        world.hear();
        world.sites.now += STEP;
    }
    let failed = world.requesters.iter().filter(|requester| requester.failed).count();
    (world.sites.now - start, failed)
}

/// All wait for what stands before the host, so questions are to add little to it.
#[test]
fn hundreds_that_begin_at_once_are_answered() {
    for micros in [5, 50, 200, 400] {
        let takes = Duration::from_micros(micros);
        let [(time, failed), (plain, _)] = [true, false].map(|by_gateways| write(1, takes, by_gateways));
        assert_eq!(failed, 0, "{takes:?} a packet");
        assert!(time < plain * 4 / 3, "{takes:?} a packet: {time:?}, without gateways {plain:?}");
    }
}
