//! The far half, rule by rule.

mod aborts;
mod asking;
mod bounds;
mod lives;
mod reads;
mod replays;
mod sending;
mod starting_over;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{R, Rng, T, acknowledge, aeth, atomic_response, epoch, parse, read_response, request};
use crate::flow::far::{Failure, Far, FarConfig, MAX_PACKET, Refused, Verdict, Why};
use crate::wire::{Bth, Opcode, PathMtu, Psn, Qpn};

pub(super) struct Bench {
    pub(super) far: Far<Vec<u8>>,
    pub(super) now: Instant,
}

impl Bench {
    pub(super) fn new() -> Bench {
        Bench::with(Bench::config())
    }

    pub(super) fn config() -> FarConfig {
        FarConfig { mtu: Some(PathMtu::B256), rto_initial: Duration::from_millis(10), ..FarConfig::default() }
    }

    pub(super) fn with(config: FarConfig) -> Bench {
        let now = epoch();
        Bench { far: Far::new(config, Arc::default(), now), now }
    }

    pub(super) fn request(&mut self, opcode: Opcode, psn: u32, length: u32) {
        let bytes = request(opcode, psn, length);
        assert_eq!(self.far.handle_request(bytes, self.now), Ok(()));
    }

    pub(super) fn message(&mut self, psn: u32, packets: u32) {
        for at in 0..packets {
            let opcode = match (at, packets - at) {
                (0, 1) => Opcode::SendOnly,
                (0, _) => Opcode::SendFirst,
                (_, 1) => Opcode::SendLast,
                _ => Opcode::SendMiddle,
            };
            self.request(opcode, psn + at, 256);
        }
    }

    /// All that goes to the target, each within what the flow has said that it asks about.
    pub(super) fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        let mut out = [0; MAX_PACKET];
        loop {
            let ask = self.far.next_ask(self.now);
            let Some(len) = self.far.poll_transmit(self.now, &mut out) else {
                assert_eq!(ask, None);
                return sent;
            };
            let bth = parse(&out[..len]).bth;
            assert_eq!(bth.dest_qp, T);
            assert!(ask.is_some_and(|span| bth.psn.is_within(span.first, span.count)), "{bth:?} {ask:?}");
            sent.push(out[..len].to_vec());
        }
    }

    pub(super) fn sent_psns(&mut self) -> Vec<u32> {
        let sent = self.sent();
        sent.iter().map(|bytes| parse(bytes).bth.psn.get()).collect()
    }

    pub(super) fn response(&mut self, bytes: &[u8]) -> Verdict {
        self.far.handle_response(&parse(bytes), self.now)
    }

    /// The record a response is relayed as.
    pub(super) fn relayed(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        match self.response(bytes) {
            Verdict::Relay(passed) => Some(passed.parts(bytes).concat()),
            _ => None,
        }
    }

    pub(super) fn own(&mut self) -> Option<(u32, u8)> {
        self.far.poll_response().map(|reply| aeth(&reply))
    }

    /// Lets timers run for `time`.
    pub(super) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.far.next_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.far.handle_timeout(self.now);
        }
        self.now = end;
    }
}

/// All responses of a READ's bytes `from .. to`, of a target that has counted `msn` messages.
pub(super) fn responses(first: u32, from: u32, to: u32, msn: u32) -> Vec<Vec<u8>> {
    let count = (to - from).div_ceil(256);
    let one = |at: u32| {
        let opcode = match (at, at + 1 == count) {
            (0, true) => Opcode::ReadResponseOnly,
            (0, false) => Opcode::ReadResponseFirst,
            (_, false) => Opcode::ReadResponseMiddle,
            (_, true) => Opcode::ReadResponseLast,
        };
        read_response(opcode, first + from / 256 + at, (to - from - at * 256).min(256), msn)
    };
    (0..count).map(one).collect()
}
