//! Once warm, neither a busy stream nor what watches its path allocates anything.
#![allow(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]

use std::time::{Duration, Instant};

use reliability::estimator::{
    Activity, Arrival, Ecn, EstimateConfig, LaneId, ObserverConfig, PathEstimate, PathObserver, PathReport,
    ProbeConfig, Prober,
};
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
    /// Nothing more is pushed.
    ends: bool,
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
            ends: false,
        }
    }

    /// One packet each 10 us, every 50th lost, records of 3000 bytes: cut, joined, repaired,
    /// decoded.
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
            while !self.ends && self.sender.push(&[&record[..9], &record[9..]], self.now).is_ok() {}
            *len = self.sender.poll_transmit(self.now, packet).map_or(0, |transmit| transmit.len);
        }
    }

    /// Until all has arrived.
    fn drain(&mut self) {
        self.ends = true;
        self.turns(100_000);
        self.ends = false;
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

/// A path with losses, reordering, copies and leaps, observed, reported and estimated, and its
/// recorded runs drained.
#[test]
fn a_path_under_observation_allocates_nothing() {
    let now = Instant::now();
    let rtt = Duration::from_millis(2);
    let mut observer = PathObserver::new(ObserverConfig::new(rtt), now);
    let mut estimate = PathEstimate::new(EstimateConfig::new(rtt), now);
    let mut prober = Prober::new(ProbeConfig::default(), LaneId(0), now);
    let mut out = [0; MAX_PACKET];
    let (mut reports, mut recorded) = (0, 0);
    let mut packets = |from: u64, to: u64| {
        for turn in from..to {
            let now = now + Duration::from_micros(10) * turn as u32;
            estimate.sent(1000);
            // Every 50th is lost, 10 of every 10000 in a row; every 7th is late by 20, or comes
            // twice.
            let number = if turn % 7 == 3 { turn.saturating_sub(20) } else { turn };
            if turn % 50 != 0 && turn % 10_000 >= 10 {
                observer.observe(
                    &Arrival { lane: LaneId(0), number, bytes: 1000, ecn: Ecn::Ce },
                    Activity::Traffic,
                    now,
                );
            }
            if turn % 5000 == 0 {
                estimate.unsent(turn..turn + 1);
            }
            prober.poll(now, &mut out);
            if let Some(len) = observer.poll_report(now, &mut out) {
                let report = PathReport::parse(&out[..len]).unwrap();
                estimate.sample_rtt(rtt, now);
                estimate.handle_report(&report, now).unwrap();
                observer.drain_runs(&mut |_| recorded += 1);
                reports += 1;
            }
        }
        assert!(estimate.summary(now).packets > 100.0);
        (reports, recorded)
    };
    packets(0, 200_000);
    let mut seen = (0, 0);
    let allocated = allocation_counter::measure(|| seen = packets(200_000, 600_000));
    assert!(seen.0 > 300 && seen.1 > 10_000, "{seen:?}");
    assert_eq!(allocated.count_total, 0);
}

/// A stream that is not used any more, with and without losses behind it, holds about as much as
/// one that never was.
#[test]
fn a_stream_gives_its_spare_memory_back() {
    for scheme in [Scheme::sr(), Scheme::mds(32, 8), Scheme::Hybrid { k: 16, m: 1, depth: 4 }] {
        let mut pair = None;
        let fresh = allocation_counter::measure(|| pair = Some(Pair::new(scheme))).bytes_current;
        let mut pair = pair.unwrap();
        let used = allocation_counter::measure(|| {
            pair.turns(60_000);
            pair.drain();
        });
        assert!(pair.sender.is_idle());
        let given = allocation_counter::measure(|| {
            pair.sender.set_scheme(Scheme::sr());
            pair.sender.release_spare();
            pair.receiver.release_spare();
        });
        let left = used.bytes_current + given.bytes_current;
        assert!(used.bytes_current > 500_000, "{scheme:?}: {} bytes in use", used.bytes_current);
        assert!(
            left < 50_000,
            "{scheme:?}: {left} bytes beside {fresh} of a new one, {} before",
            used.bytes_current
        );
        // And goes on.
        let before = pair.delivered;
        pair.turns(1000);
        pair.drain();
        assert!(pair.sender.is_idle() && pair.delivered - before > 500_000);
    }
}
