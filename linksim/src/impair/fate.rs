//! The fate of each packet: the decisions without the packets.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::spec::{Distribution, LinkSpec, Loss};

/// One copy of a packet, on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// When it comes out.
    pub at: Instant,
    /// The bit to flip, counted from the first byte's lowest.
    pub corrupt: Option<usize>,
}

/// Why a packet does not come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drop {
    /// The loss process took it.
    Lost,
    /// The bottleneck's queue is full.
    QueueFull,
    /// Longer than [`LinkSpec::mtu`].
    TooLong,
}

/// The fate of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fate {
    /// The packet itself, or why not.
    pub first: Result<Delivery, Drop>,
    /// A duplicate, if there is one, and what becomes of that.
    pub second: Option<Result<Delivery, Drop>>,
    /// The packet went without the delay.
    pub reordered: bool,
}

/// Decides the fate of packets of one direction, from a seed. Holds no packets, so a simulator may
/// keep its own.
///
/// Bounded by [`LinkSpec::limit_packets`] and `limit_bytes`; without them the queue of the
/// bottleneck, and so the time a packet waits, grows without bound when more is offered than the
/// rate.
#[derive(Debug, Clone)]
pub struct Impairer {
    spec: LinkSpec,
    rng: Pcg64Mcg,
    bad_state: bool,
    since_reorder: u32,
    bottleneck: Bottleneck,
}

impl Impairer {
    /// A fresh link in the good state with an empty queue.
    pub fn new(spec: LinkSpec, seed: u64) -> Self {
        Self {
            spec,
            rng: Pcg64Mcg::seed_from_u64(seed),
            bad_state: false,
            since_reorder: 0,
            bottleneck: Bottleneck::default(),
        }
    }

    /// The current description.
    pub fn spec(&self) -> &LinkSpec {
        &self.spec
    }

    /// Changes the link under way: packets already under way keep their times.
    pub fn set_spec(&mut self, spec: LinkSpec) {
        self.spec = spec;
    }

    /// Decides about a packet of `len` bytes that enters now. `now` must not run backwards.
    pub fn admit(&mut self, now: Instant, len: usize) -> Fate {
        let duplicate = self.chance(self.spec.duplicate);
        let lost = self.loses();
        let reordered = self.reorders();
        // As in netem: of a duplicated packet, loss takes one copy.
        match (lost, duplicate) {
            (true, false) => Fate { first: Err(Drop::Lost), second: None, reordered: false },
            (true, true) => {
                Fate { first: self.send(now, len, reordered), second: Some(Err(Drop::Lost)), reordered }
            }
            (false, true) => {
                let first = self.send(now, len, reordered);
                Fate { first, second: Some(self.send(now, len, false)), reordered }
            }
            (false, false) => Fate { first: self.send(now, len, reordered), second: None, reordered },
        }
    }

    /// So many packets that are not ours went by: the loss process is where it would be after them.
    /// Of independent losses nothing remains to be seen.
    pub fn pass(&mut self, packets: f64) {
        let Loss::GilbertElliott { to_bad, to_good, .. } = self.spec.loss else { return };
        let moves = to_bad + to_good;
        if moves > 0.0 {
            let bad = to_bad / moves;
            let memory = (1.0 - moves).max(0.0).powf(packets);
            let now = f64::from(u8::from(self.bad_state));
            self.bad_state = self.chance(bad + (now - bad) * memory);
        }
    }

    fn send(&mut self, now: Instant, len: usize, reordered: bool) -> Result<Delivery, Drop> {
        if self.spec.mtu.is_some_and(|mtu| len > mtu) {
            return Err(Drop::TooLong);
        }
        let departure = self.bottleneck.depart(&self.spec, now, len)?;
        let delay = if reordered { Duration::ZERO } else { self.delay() };
        let bits = len.saturating_mul(8);
        let corrupt = (bits > 0 && self.chance(self.spec.corrupt)).then(|| self.rng.random_range(0..bits));
        Ok(Delivery { at: departure + delay, corrupt })
    }

    fn delay(&mut self) -> Duration {
        let LinkSpec { delay, jitter, distribution, .. } = self.spec;
        if jitter.is_zero() {
            return delay;
        }
        let deviation = match distribution {
            Distribution::Uniform => self.rng.random_range(-1.0..1.0),
            Distribution::Normal => self.normal(),
        };
        let seconds = delay.as_secs_f64() + deviation * jitter.as_secs_f64();
        Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(delay)
    }

    /// Box-Muller.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.rng.random::<f64>()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.rng.random::<f64>()).cos()
    }

    fn loses(&mut self) -> bool {
        match self.spec.loss {
            Loss::None => false,
            Loss::Random(p) => self.chance(p),
            // The state moves first but the packet is judged by the state it found (sch_netem.c,
            // loss_gilb_ell).
            Loss::GilbertElliott { to_bad, to_good, loss_bad, loss_good } => {
                let bad = self.bad_state;
                let (moves, loss) = if bad { (to_good, loss_bad) } else { (to_bad, loss_good) };
                if self.chance(moves) {
                    self.bad_state = !bad;
                }
                self.chance(loss)
            }
        }
    }

    fn reorders(&mut self) -> bool {
        if self.spec.reorder <= 0.0 {
            return false;
        }
        let eligible = self.since_reorder >= self.spec.gap.saturating_sub(1);
        let reorders = eligible && self.chance(self.spec.reorder);
        self.since_reorder = if reorders { 0 } else { self.since_reorder.saturating_add(1) };
        reorders
    }

    fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.rng.random::<f64>() < p
    }
}

/// A serialiser of limited rate with a tail-drop queue in front. Holds times, not packets.
#[derive(Debug, Clone, Default)]
struct Bottleneck {
    /// When the last packet accepted has left.
    busy_until: Option<Instant>,
    /// Part of a nanosecond not yet accounted for, in units of 1/rate ns.
    remainder: u64,
    /// Packets waiting or being sent: when each leaves, and its length.
    queue: VecDeque<(Instant, usize)>,
    bytes: usize,
}

impl Bottleneck {
    fn depart(&mut self, spec: &LinkSpec, now: Instant, len: usize) -> Result<Instant, Drop> {
        let Some(rate) = spec.rate else {
            return Ok(now);
        };
        let len = len.saturating_add(usize::try_from(spec.overhead).unwrap_or(usize::MAX));
        while let Some((leaves, bytes)) = self.queue.front().copied()
            && leaves <= now
        {
            self.queue.pop_front();
            self.bytes -= bytes;
        }
        // The packet being sent does not wait.
        let waiting = self.queue.len().saturating_sub(1);
        let in_service = self.queue.front().map_or(0, |(_, bytes)| *bytes);
        let waiting_bytes = self.bytes - in_service;
        let would_wait = !self.queue.is_empty();
        if would_wait
            && (spec.limit_packets.is_some_and(|limit| waiting >= limit)
                || spec.limit_bytes.is_some_and(|limit| waiting_bytes.saturating_add(len) > limit))
        {
            return Err(Drop::QueueFull);
        }
        let start = match self.busy_until {
            Some(until) if until > now => until,
            _ => {
                self.remainder = 0;
                now
            }
        };
        let leaves = start + self.service_time(len, rate);
        self.busy_until = Some(leaves);
        self.queue.push_back((leaves, len));
        self.bytes += len;
        Ok(leaves)
    }

    /// Time to send `len` bytes; rounding errors do not add up.
    fn service_time(&mut self, len: usize, rate: u64) -> Duration {
        let bits = u64::try_from(len).unwrap_or(u64::MAX).saturating_mul(8);
        let scaled = bits.saturating_mul(1_000_000_000).saturating_add(self.remainder);
        self.remainder = scaled % rate;
        Duration::from_nanos(scaled / rate)
    }
}
