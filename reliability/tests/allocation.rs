//! Once warm, a busy stream allocates nothing.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test may fail, and any instant will do as the origin of virtual time"
)]

use std::time::{Duration, Instant};

use reliability::stream::{Receiver, ReceiverConfig, Scheme, Sender, SenderConfig, StreamId};

const MAX_PACKET: usize = 1400;
/// Packets on their way.
const DELAY: usize = 200;

struct Pair {
    now: Instant,
    sender: Sender,
    receiver: Receiver,
    path: Vec<(usize, [u8; MAX_PACKET])>,
    turn: usize,
    delivered: usize,
}

impl Pair {
    fn new(scheme: Scheme) -> Self {
        let now = Instant::now();
        let rtt_hint = Duration::from_millis(2);
        let sender = SenderConfig {
            scheme,
            rtt_hint,
            max_backlog: 64 << 10,
            window: 2048,
            ..SenderConfig::new(StreamId(1), MAX_PACKET)
        };
        let receiver =
            ReceiverConfig { rtt_hint, window: 2048, ..ReceiverConfig::new(StreamId(1), MAX_PACKET) };
        Self {
            now,
            sender: Sender::new(sender, now),
            receiver: Receiver::new(receiver, now),
            path: vec![(0, [0; MAX_PACKET]); DELAY],
            turn: 0,
            delivered: 0,
        }
    }

    /// One packet each 10 us, every 50th lost, records of 3000 bytes: cut, joined, repaired, decoded.
    fn turns(&mut self, turns: usize) {
        let record = [7; 3000];
        let mut report = [0; MAX_PACKET];
        for _ in 0..turns {
            self.now += Duration::from_micros(10);
            self.turn += 1;
            let (len, packet) = &mut self.path[self.turn % DELAY];
            if *len > 0 && !self.turn.is_multiple_of(50) {
                let deliver = &mut |record: &[u8]| self.delivered += record.len();
                self.receiver.handle_packet(&packet[..*len], self.now, deliver).unwrap();
            }
            self.receiver.handle_timeout(self.now);
            while let Some(len) = self.receiver.poll_report(self.now, &mut report) {
                self.sender.handle_report(&report[..len], self.now).unwrap();
            }
            self.sender.handle_timeout(self.now);
            while self.sender.push(&[&record[..9], &record[9..]], self.now).is_ok() {}
            *len = self.sender.poll_transmit(self.now, packet).map_or(0, |transmit| transmit.len);
        }
    }
}

#[test]
fn a_busy_stream_allocates_nothing() {
    for scheme in [
        Scheme::None,
        Scheme::sr(),
        Scheme::xor(32, 8),
        Scheme::mds(32, 8),
        Scheme::Mds { k: 16, m: 1, depth: 4 },
        Scheme::hybrid(32, 8),
        Scheme::Hybrid { k: 16, m: 1, depth: 4 },
    ] {
        let mut pair = Pair::new(scheme);
        pair.turns(60_000);
        let before = pair.delivered;
        let allocated = allocation_counter::measure(|| pair.turns(20_000));
        assert!(pair.delivered - before > 10_000_000, "{scheme:?}: only {}", pair.delivered - before);
        assert_eq!(allocated.count_total, 0, "{scheme:?}");
        if scheme != Scheme::None {
            assert!(pair.sender.stats().repairs + pair.receiver.stats().decoded > 400);
        }
    }
}
