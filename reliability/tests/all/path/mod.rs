//! One direction of a path in virtual time, and both ends of its estimation. Everything follows
//! from the seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

pub use crate::world::{Loss, MS};

use crate::world::origin;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use reliability::estimator::{
    Activity, Arrival, Ecn, EstimateConfig, LaneId, ObserverConfig, PathEstimate, PathObserver, PathReport,
};

impl Loss {
    /// Bursts of this mean length in which everything is lost, so that this share is lost in all.
    pub fn bursts(share: f64, length: f64) -> Self {
        Self::Bursts { enter: share / (1.0 - share) / length, leave: 1.0 / length, loss: 1.0 }
    }

    /// Mean run of losses.
    pub fn burst(self) -> f64 {
        match self {
            Self::Independent(share) => 1.0 / (1.0 - share),
            Self::Bursts { leave, loss, .. } => 1.0 / (1.0 - loss * (1.0 - leave)),
        }
    }

    pub fn share(self) -> f64 {
        match self {
            Self::Independent(share) => share,
            Self::Bursts { enter, leave, loss } => loss * enter / (enter + leave),
        }
    }
}

/// The path, its traffic, and what both ends make of it.
pub struct Path {
    pub now: Instant,
    pub rtt: Duration,
    /// From one packet to the next.
    pub spacing: Duration,
    pub bytes: usize,
    pub loss: Loss,
    /// Chance of a second copy.
    pub duplicate: f64,
    /// Chance to go without delay, as netem reorders.
    pub hurry: f64,
    /// Most of an evenly distributed additional delay.
    pub jitter: Duration,
    /// Delay that a queue adds to each way.
    pub queue: Duration,
    pub ecn: Ecn,
    pub observer: PathObserver,
    pub estimate: PathEstimate,
    pub lost: u64,
    pub rng: Pcg64Mcg,
    in_burst: bool,
    /// Packets until the next independent loss, or until a burst begins or ends.
    gap: u64,
    flying: BinaryHeap<Reverse<(Instant, u64)>>,
    back: VecDeque<(Instant, PathReport)>,
}

impl Path {
    /// 1400-byte packets.
    pub fn new(seed: u64, rtt: Duration, per_second: u32, loss: Loss) -> Self {
        let start = origin();
        let mut path = Self {
            now: start,
            rtt,
            spacing: Duration::from_secs(1) / per_second,
            bytes: 1400,
            loss,
            duplicate: 0.0,
            hurry: 0.0,
            jitter: Duration::ZERO,
            queue: Duration::ZERO,
            ecn: Ecn::NotEct,
            observer: PathObserver::new(ObserverConfig::new(rtt), start),
            estimate: PathEstimate::new(EstimateConfig::new(rtt), start),
            lost: 0,
            rng: Pcg64Mcg::seed_from_u64(seed),
            in_burst: false,
            gap: 0,
            flying: BinaryHeap::new(),
            back: VecDeque::new(),
        };
        path.set_loss(loss);
        path
    }

    pub fn set_loss(&mut self, loss: Loss) {
        self.loss = loss;
        self.in_burst = false;
        self.draw_gap();
    }

    /// How long the chain stays in its state, so that rare losses cost no dice.
    fn draw_gap(&mut self) {
        let chance = match self.loss {
            Loss::Independent(share) => share,
            Loss::Bursts { enter, .. } if !self.in_burst => enter,
            Loss::Bursts { leave, .. } => leave,
        };
        self.gap = match chance {
            0.0 => u64::MAX,
            chance => ((1.0 - self.rng.random::<f64>()).ln() / (-chance).ln_1p()) as u64,
        };
    }

    fn loses(&mut self) -> bool {
        let turn = self.gap == 0;
        if turn {
            self.in_burst ^= matches!(self.loss, Loss::Bursts { .. });
            self.draw_gap();
        } else {
            self.gap -= 1;
        }
        match self.loss {
            Loss::Independent(_) => turn,
            Loss::Bursts { loss, .. } => self.in_burst && (loss >= 1.0 || self.rng.random::<f64>() < loss),
        }
    }

    /// Sends so many packets, and lets so much time pass as that takes.
    pub fn run(&mut self, packets: u64) {
        let orderly = self.duplicate == 0.0 && self.hurry == 0.0 && self.jitter.is_zero();
        for _ in 0..packets {
            self.now += self.spacing;
            let number = self.estimate.numbers();
            self.estimate.sent(self.bytes);
            let lost = self.loses();
            if orderly && self.flying.is_empty() {
                // Time at the far end runs ahead by the delay.
                self.lost += u64::from(lost);
                if !lost {
                    self.arrive(number);
                }
                self.report();
            } else {
                self.fly(number, lost);
                self.land();
            }
        }
    }

    /// Time passes without packets.
    pub fn rest(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += MS.min(until - self.now);
            self.land();
        }
    }

    fn fly(&mut self, number: u64, lost: bool) {
        // Of a duplicated packet, loss takes one copy.
        let copies = 1 + u64::from(self.rng.random::<f64>() < self.duplicate);
        self.lost += u64::from(lost && copies == 1);
        for _ in u64::from(lost)..copies {
            let hurries = self.hurry > 0.0 && self.rng.random::<f64>() < self.hurry;
            let delay = if hurries { Duration::ZERO } else { self.rtt / 2 + self.queue };
            let delay = delay + self.jitter.mul_f64(self.rng.random::<f64>());
            self.flying.push(Reverse((self.now + delay, number)));
        }
    }

    fn land(&mut self) {
        while let Some(Reverse((at, number))) = self.flying.peek().copied()
            && at <= self.now
        {
            self.flying.pop();
            let arrival = Arrival { lane: LaneId(0), number, bytes: self.bytes, ecn: self.ecn };
            self.observer.observe(&arrival, Activity::Traffic, at);
        }
        self.report();
    }

    fn arrive(&mut self, number: u64) {
        let arrival = Arrival { lane: LaneId(0), number, bytes: self.bytes, ecn: self.ecn };
        self.observer.observe(&arrival, Activity::Traffic, self.now);
    }

    fn report(&mut self) {
        let mut out = [0; 200];
        if self.observer.next_timeout().is_some_and(|due| due <= self.now)
            && let Some(len) = self.observer.poll_report(self.now, &mut out)
        {
            let report = PathReport::parse(&out[..len]).unwrap();
            self.back.push_back((self.now + self.rtt / 2, report));
        }
        while let Some((_, report)) = self.back.pop_front_if(|(at, _)| *at <= self.now) {
            self.estimate.sample_rtt(self.rtt + 2 * self.queue, self.now);
            self.observer.set_rtt(self.estimate.rtt());
            self.estimate.handle_report(&report, self.now).unwrap();
        }
    }
}
