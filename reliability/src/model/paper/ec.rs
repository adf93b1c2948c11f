//! Erasure coding with a fallback to selective repeat.

use std::time::Duration;

use rand::Rng;

use super::Transfer;
use super::sr::Hits;
use crate::model::completion::{Completion, seconds};

/// Numbers of failed submessages that the distribution tells apart, at most.
const CASES: usize = 64;

/// EC(k, m).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Any k of the k + m chunks are enough.
    Mds {
        /// Data chunks of a submessage.
        k: usize,
        /// Parity chunks.
        m: usize,
    },
    /// Parity i is the XOR of the data chunks j with `j mod m == i`.
    Xor {
        /// Data chunks of a submessage.
        k: usize,
        /// Parity chunks.
        m: usize,
    },
}

impl Code {
    fn shape(self) -> (usize, usize) {
        let (Self::Mds { k, m } | Self::Xor { k, m }) = self;
        let k = k.clamp(1, 254);
        (k, m.clamp(1, 255 - k))
    }
}

/// A coded transfer: `(M + ceil(M / R)) T` to inject it, and if a submessage fails,
/// `RTT + beta RTT` until the receiver has said so, and selective repeat of all chunks of the
/// submessages that failed. Every case ends with the acknowledgement's way back, which the
/// published expectation leaves out where nothing failed.
#[derive(Clone, Debug)]
pub struct Ec {
    transfer: Transfer,
    k: usize,
    /// Until the last parity is injected, in seconds.
    injected: f64,
    beta: f64,
    rto: f64,
    /// L: submessages.
    submessages: u64,
    /// `1 - P_EC`.
    failure: f64,
    /// Probability of so many failed submessages, and how long their repeat takes; without the case
    /// that none fails.
    cases: Vec<(f64, Completion)>,
}

impl Transfer {
    /// The transfer under a code; `beta` is the slack of the fallback timeout in round-trip times,
    /// `rto` the retransmission timeout of the selective repeat that follows.
    #[must_use]
    pub fn ec(&self, code: Code, beta: f64, rto: f64) -> Ec {
        let (k, m) = code.shape();
        let losses = self.losses();
        let failure = match code {
            Code::Mds { .. } => losses.more_than(m, k + m).probability,
            Code::Xor { .. } => {
                // P_XOR is the product over the parities, each with its data chunks.
                let long = losses.more_than(1, k.div_ceil(m) + 1).probability;
                let short = losses.more_than(1, k / m + 1).probability;
                let log = (k % m) as f64 * (-long).ln_1p() + (m - k % m) as f64 * (-short).ln_1p();
                -log.exp_m1()
            }
        };
        let chunks = self.chunks();
        let parity = (chunks as f64 * m as f64 / k as f64).ceil();
        let submessages = chunks.div_ceil(k as u64);
        let cases = failures(submessages, failure);
        Ec {
            transfer: *self,
            k,
            injected: (chunks as f64 + parity) * self.injection(),
            beta,
            rto,
            submessages,
            failure,
            cases: cases.map(|(weight, failed)| (weight, self.sr_chunks(failed * k as f64, rto))).collect(),
        }
    }
}

impl Ec {
    /// `P_fallback = 1 - P_EC^L`.
    #[must_use]
    pub fn fallback(&self) -> f64 {
        -(self.submessages as f64 * (-self.failure).ln_1p()).exp_m1()
    }

    /// Expected time.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let repeat = |(weight, sr): &(f64, Completion)| weight * (self.asked() + sr.mean_seconds());
        let repeats = self.cases.iter().map(repeat).sum::<f64>();
        let fallback = self.cases.iter().map(|(weight, _)| weight).sum::<f64>();
        seconds(self.injected + (1.0 - fallback) * self.transfer.rtt() + repeats)
    }

    /// Probability of being complete within `time`.
    #[must_use]
    pub fn probability(&self, time: Duration) -> f64 {
        self.probability_seconds(time.as_secs_f64())
    }

    fn probability_seconds(&self, time: f64) -> f64 {
        let incomplete =
            |(weight, sr): &(f64, Completion)| weight * (1.0 - sr.probability_seconds(time - self.started()));
        let incomplete = self.cases.iter().map(incomplete).sum::<f64>();
        if time < self.injected + self.transfer.rtt() { 0.0 } else { 1.0 - incomplete }
    }

    /// The time within which `percent` per cent of messages are complete.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        let target = percent.clamp(0.0, 99.999_999_9) / 100.0;
        let mut low = self.injected + self.transfer.rtt();
        if self.probability_seconds(low) >= target {
            return seconds(low);
        }
        let worst = |(_, sr): &(f64, Completion)| self.started() + sr.percentile_seconds(percent);
        let mut high = self.cases.iter().map(worst).fold(low, f64::max);
        while high - low > 1e-9 * high {
            let middle = low + (high - low) / 2.0;
            if self.probability_seconds(middle) >= target {
                high = middle;
            } else {
                low = middle;
            }
        }
        seconds(high)
    }

    /// One message: draws which submessages fail, then the repeat.
    pub fn sample(&self, rng: &mut impl Rng) -> Duration {
        let failed = Hits::new(self.failure, self.submessages, rng).count() as u64;
        if failed == 0 {
            return seconds(self.injected + self.transfer.rtt());
        }
        let repeat = self.transfer.sample_sr_chunks(failed * self.k as u64, self.rto, rng);
        seconds(self.started() + repeat)
    }

    /// When the selective repeat begins.
    fn started(&self) -> f64 {
        self.injected + self.asked()
    }

    /// From the last injection until the sender was asked for more: there and back, and the
    /// timeout's slack.
    fn asked(&self) -> f64 {
        (1.0 + self.beta.max(0.0)) * self.transfer.rtt()
    }
}

/// The binomial distribution of the number of failures among `count`, without zero. Many of them
/// are taken together by equal distances.
fn failures(count: u64, probability: f64) -> impl Iterator<Item = (f64, f64)> {
    let count = count as f64;
    let mean = count * probability;
    let deviation = (mean * (1.0 - probability)).sqrt();
    let first = (mean - 8.0 * deviation).floor().max(1.0);
    let last = (mean + 8.0 * deviation + 12.0).floor().min(count);
    let step = ((last - first) / CASES as f64).ceil().max(1.0);
    let odds = probability / (1.0 - probability);
    // Term by term from the first one on; its logarithm by a sum where that is short, by Stirling's
    // series where it is not.
    let log_first =
        log_choose(count, first) + first * probability.ln() + (count - first) * (-probability).ln_1p();
    let mut term = log_first.exp();
    let mut at = first;
    std::iter::from_fn(move || {
        if probability.is_nan() || probability <= 0.0 || at > last {
            return None;
        }
        let (from, mut weight) = (at, 0.0);
        while at < from + step && at <= last {
            weight += term;
            term *= (count - at) / (at + 1.0) * odds;
            at += 1.0;
        }
        Some((weight, (from + at - 1.0) / 2.0))
    })
}

fn log_choose(n: f64, k: f64) -> f64 {
    log_factorial(n) - log_factorial(k) - log_factorial(n - k)
}

/// ln n!, by Stirling's series; exact sums below 16.
fn log_factorial(n: f64) -> f64 {
    if n < 16.0 {
        return (2..=n as u32).map(|i| f64::from(i).ln()).sum();
    }
    let inverse = 1.0 / n;
    n * n.ln() - n + 0.5 * (std::f64::consts::TAU * n).ln() + inverse / 12.0 - inverse.powi(3) / 360.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_make_up_their_distribution() {
        for (count, probability) in
            [(1, 0.3), (4, 1e-12), (1024, 1e-3), (524_288, 1e-9), (524_288, 0.2), (100_000, 0.999)]
        {
            let cases: Vec<_> = failures(count, probability).collect();
            let any = cases.iter().map(|(weight, _)| weight).sum::<f64>();
            let mean = cases.iter().map(|(weight, failed)| weight * failed).sum::<f64>();
            let expected = -(count as f64 * (-probability).ln_1p()).exp_m1();
            assert!((any / expected - 1.0).abs() < 1e-6, "{count} {probability}: {any} {expected}");
            assert!(
                (mean / (count as f64 * probability) - 1.0).abs() < 1e-3,
                "{count} {probability}: {mean}"
            );
            assert!(cases.len() <= CASES + 1);
        }
    }
}
