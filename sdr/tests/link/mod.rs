//! One direction of a path: loss, bursts of it, repetition, delay, reordering.

use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

/// A path's misdeeds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// One packet in so many is lost; 0: none.
    pub(crate) loss: u64,
    /// Packets that a loss takes with it.
    pub(crate) burst: u64,
    /// One packet in so many comes twice; 0: none.
    pub(crate) twice: u64,
    /// One packet in so many is held up; 0: none.
    pub(crate) held: u64,
    /// The shortest way.
    pub(crate) delay: Duration,
    /// The longest that others are held up. Packets die within two round-trip times.
    pub(crate) most_held: Duration,
}

impl Faults {
    /// Faults of a seed: a third of the paths have none of each kind.
    #[allow(dead_code, reason = "not each program draws its faults")]
    pub(crate) fn drawn(rng: &mut Pcg64Mcg) -> Self {
        let mut one_in = |few: u64, many: u64| match rng.next_u64() % 3 {
            0 => 0,
            _ => few + rng.next_u64() % many,
        };
        Faults {
            loss: one_in(3, 60),
            burst: 1 + one_in(0, 20),
            twice: one_in(2, 20),
            held: one_in(2, 20),
            delay: Duration::from_millis(5),
            most_held: Duration::from_millis(14),
        }
    }
}

/// One direction.
pub(crate) struct Link {
    faults: Faults,
    /// Packets of the running burst still to be lost.
    losing: u64,
    flying: Vec<(Instant, u64, Vec<u8>)>,
    count: u64,
    /// DATA packets until one is lost on purpose.
    lose: Option<u64>,
}

impl Link {
    pub(crate) fn new(faults: Faults) -> Self {
        Link { faults, losing: 0, flying: Vec::new(), count: 0, lose: None }
    }

    /// From now on nothing is lost, repeated or held up.
    #[allow(dead_code, reason = "not each program repairs the path")]
    pub(crate) fn repair(&mut self) {
        self.faults = Faults { loss: 0, twice: 0, held: 0, ..self.faults };
        self.losing = 0;
    }

    /// From now on the way takes `delay`.
    #[allow(dead_code, reason = "not each program moves the path")]
    pub(crate) fn set_delay(&mut self, delay: Duration) {
        self.faults.delay = delay;
    }

    /// Loses the `nth` data packet from now on, from 1.
    #[allow(dead_code, reason = "not each program loses a packet on purpose")]
    pub(crate) fn lose_data(&mut self, nth: u64) {
        self.lose = Some(nth);
    }

    pub(crate) fn send(&mut self, bytes: &[u8], now: Instant, rng: &mut Pcg64Mcg) {
        let hits = |rng: &mut Pcg64Mcg, one_in: u64| one_in > 0 && rng.next_u64().is_multiple_of(one_in);
        if self.losing == 0 && hits(rng, self.faults.loss) {
            self.losing = 1 + rng.next_u64() % self.faults.burst;
        }
        if bytes.first() == Some(&1) {
            self.lose = self.lose.and_then(|left| left.checked_sub(1));
            if self.lose == Some(0) {
                return;
            }
        }
        if self.losing > 0 {
            self.losing -= 1;
            return;
        }
        for _ in 0..1 + u32::from(hits(rng, self.faults.twice)) {
            let held = match hits(rng, self.faults.held) {
                true => Duration::from_nanos(rng.next_u64() % self.faults.most_held.as_nanos() as u64),
                false => Duration::ZERO,
            };
            self.count += 1;
            self.flying.push((now + self.faults.delay + held, self.count, bytes.to_vec()));
        }
    }

    /// Returns packets that arrive by now, in order of arrival.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut due: Vec<_> = self.flying.extract_if(.., |(at, ..)| *at <= now).collect();
        due.sort_by_key(|(at, count, _)| (*at, *count));
        due.into_iter().map(|(.., bytes)| bytes).collect()
    }
}
