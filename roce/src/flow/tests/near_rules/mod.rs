//! The near half, rule by rule.

mod acks;
mod again;
mod amid;
mod bounds;
mod duplicates;
mod failing;
mod imitated;
mod lives;
mod owed;
mod resend;
mod retained;
mod standing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{R, Rng, acknowledge, aeth, atomic_response, epoch, parse, read_response, request};
use crate::cm::Terms;
use crate::flow::near::{Deliver, Near, NearConfig, PsnPosition, Verdict, Why};
use crate::wire::{BTH_LEN, Bth, Opcode, PathMtu, Psn, Qpn};

const FORWARD: Verdict = Verdict::Forward;

pub(super) fn terms(rnr_retry: u8) -> Terms {
    Terms { max_reads: 16, rnr_retry, ..Terms::default() }
}

/// Where the ACK that keeps a requester waiting lies: 2^22 before what it was told.
pub(super) const LONG_PAST: u32 = (1 << 24) - (1 << 22);

pub(super) struct Bench {
    pub(super) near: Near,
    pub(super) now: Instant,
}

impl Bench {
    /// Paired, with a path MTU of 256 and the first PSN known, so that nothing waits for the
    /// target's first word.
    pub(super) fn new() -> Bench {
        Bench::told(Bench::config())
    }

    /// The same with other settings.
    pub(super) fn told(config: NearConfig) -> Bench {
        let mut bench = Bench::with(config);
        bench.near.set_terms(&terms(6), Some(Psn::new(100)));
        bench
    }

    pub(super) fn config() -> NearConfig {
        NearConfig { mtu: Some(PathMtu::B256), ..NearConfig::default() }
    }

    pub(super) fn with(config: NearConfig) -> Bench {
        let now = epoch();
        let mut near = Near::new(config, Arc::default(), now);
        near.pair(R);
        Bench { near, now }
    }

    pub(super) fn request(&mut self, opcode: Opcode, psn: u32, length: u32) -> Verdict {
        let bytes = request(opcode, psn, length);
        self.near.handle_request(&parse(&bytes), self.now)
    }

    /// A message of SENDs; returns nothing but demands that all are forwarded.
    pub(super) fn message(&mut self, psn: u32, packets: u32) {
        for at in 0..packets {
            let opcode = match (at, packets - at) {
                (0, 1) => Opcode::SendOnly,
                (0, _) => Opcode::SendFirst,
                (_, 1) => Opcode::SendLast,
                _ => Opcode::SendMiddle,
            };
            assert_eq!(self.request(opcode, psn + at, 256), FORWARD);
        }
    }

    pub(super) fn doubts(&mut self, opcode: Opcode, psn: u32) -> bool {
        self.near.doubts(&parse(&request(opcode, psn, 256)), self.now)
    }

    /// Returns true if it is doubted as what comes again in place of all that is outstanding.
    pub(super) fn doubts_again(&mut self, bytes: &[u8]) -> bool {
        assert!(!self.near.doubts(&parse(bytes), self.now), "one packet proves nothing");
        self.now += Duration::from_millis(2);
        self.near.doubts(&parse(bytes), self.now)
    }

    pub(super) fn response(&mut self, bytes: &[u8]) -> Deliver {
        self.near.handle_response(&parse(bytes), self.now)
    }

    pub(super) fn ack(&mut self, psn: u32) {
        assert_eq!(self.response(&acknowledge(psn, 0x1f, 1)), Deliver::Absorbed);
    }

    /// All that is said to the requester: PSN and syndrome.
    pub(super) fn said(&mut self) -> Vec<(u32, u8)> {
        let mut said = Vec::new();
        while let Some(reply) = self.near.poll_transmit(self.now) {
            assert_eq!(parse(&reply).bth.dest_qp, R);
            said.push(aeth(&reply));
        }
        said
    }

    pub(super) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.near.next_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.near.handle_timeout(self.now);
        }
        self.now = end;
    }
}

fn is_emitted(deliver: Deliver) -> bool {
    matches!(deliver, Deliver::Emit(_))
}

/// Ten messages from 100 on, done.
fn rested() -> Bench {
    let mut bench = Bench::new();
    for psn in 100..110 {
        bench.message(psn, 1);
        bench.ack(psn);
        bench.said();
    }
    bench
}
