//! Selective repeat.

use rand::{Rng, RngExt};
use std::time::Duration;

use super::Transfer;
use crate::model::completion::{Completion, Tail, Train, seconds};

impl Transfer {
    /// `T_SR = max_i X_i + RTT` with `X_i = i T + O (Y_i - 1)`, `Y_i ~ Geometric(1 - p)` and
    /// `O = rto RTT + T`. `rto` is [`SR_RTO`](super::SR_RTO) or [`SR_NACK`](super::SR_NACK).
    #[must_use]
    pub fn sr(&self, rto: f64) -> Completion {
        self.sr_chunks(self.chunks() as f64, rto)
    }

    pub(super) fn sr_chunks(&self, chunks: f64, rto: f64) -> Completion {
        let (drop, injection) = (self.chunk_drop(), self.injection());
        let period = self.period(rto);
        let lost_so_often = std::iter::successors(Some(drop), |lost| Some(lost * drop));
        let train = Train::new(chunks, injection, 0.0, (period, period), lost_so_often);
        Completion {
            floor: chunks * injection + self.rtt(),
            trains: vec![train],
            tail: Tail::default(),
            overhead: drop / (1.0 - drop),
        }
    }

    /// One message: draws `Y_i` for each chunk that is lost at all.
    pub fn sample_sr(&self, rto: f64, rng: &mut impl Rng) -> Duration {
        seconds(self.sample_sr_chunks(self.chunks(), rto, rng))
    }

    pub(super) fn sample_sr_chunks(&self, chunks: u64, rto: f64, rng: &mut impl Rng) -> f64 {
        let (drop, injection, period) = (self.chunk_drop(), self.injection(), self.period(rto));
        let mut complete = chunks as f64 * injection;
        for (chunk, uniform) in Hits::new(drop, chunks, rng) {
            // At least one loss: the number of losses is geometric from one on.
            let losses = 1.0 + gap(drop, uniform);
            complete = complete.max((chunk + 1) as f64 * injection + losses * period);
        }
        complete + self.rtt()
    }

    fn period(&self, rto: f64) -> f64 {
        rto.max(0.0) * self.rtt() + self.injection()
    }
}

/// The indices below `end` at which an event of probability `p` happens, found by their distances;
/// with each comes one uniform draw.
pub(super) struct Hits<'a, R> {
    miss: f64,
    next: f64,
    end: u64,
    rng: &'a mut R,
}

impl<'a, R: Rng> Hits<'a, R> {
    pub(super) fn new(p: f64, end: u64, rng: &'a mut R) -> Self {
        let miss = 1.0 - p;
        let next = if p > 0.0 { log_ratio(rng.random(), (-p).ln_1p()) } else { f64::INFINITY };
        Self { miss, next, end, rng }
    }
}

impl<R: Rng> Iterator for Hits<'_, R> {
    type Item = (u64, f64);

    fn next(&mut self) -> Option<(u64, f64)> {
        let at = self.next;
        if at >= self.end as f64 {
            return None;
        }
        self.next = at + 1.0 + gap(self.miss, self.rng.random());
        Some((at as u64, self.rng.random()))
    }
}

/// Consecutive events of probability `p` before the first that does not happen, from a uniform
/// draw.
fn gap(p: f64, uniform: f64) -> f64 {
    if p <= 0.0 { 0.0 } else { log_ratio(uniform, p.ln()) }
}

/// `floor(ln(1 - uniform) / log)`: `uniform` may be 0, but not 1.
fn log_ratio(uniform: f64, log: f64) -> f64 {
    ((-uniform).ln_1p() / log).floor()
}
