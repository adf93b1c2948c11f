//! Round-trip time: smoothed, variation and minimum.

use std::time::Duration;

/// RFC 6298 estimator. Samples come from echoed timestamps, so repairs need no special treatment
/// (no Karn's rule).
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Estimator {
    smoothed: Duration,
    variation: Duration,
    minimum: Duration,
    latest: Duration,
    samples: u64,
}

impl Estimator {
    /// Starts from `hint`, the configured or assumed round-trip time; the first sample replaces it.
    #[must_use]
    pub fn new(hint: Duration) -> Self {
        Self { smoothed: hint, variation: hint / 2, minimum: hint, latest: hint, samples: 0 }
    }

    /// Takes one measurement.
    pub fn sample(&mut self, rtt: Duration) {
        if self.samples == 0 {
            self.smoothed = rtt;
            self.variation = rtt / 2;
            self.minimum = rtt;
        } else {
            let error = self.smoothed.abs_diff(rtt);
            self.variation = (self.variation * 3 + error) / 4;
            self.smoothed = (self.smoothed * 7 + rtt) / 8;
            self.minimum = self.minimum.min(rtt);
        }
        self.latest = rtt;
        self.samples += 1;
    }

    /// SRTT of RFC 6298.
    #[must_use]
    pub fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// RTTVAR of RFC 6298.
    #[must_use]
    pub fn variation(&self) -> Duration {
        self.variation
    }

    /// Smallest sample (the hint before the first).
    #[must_use]
    pub fn minimum(&self) -> Duration {
        self.minimum
    }

    /// Last sample (the hint before the first).
    #[must_use]
    pub fn latest(&self) -> Duration {
        self.latest
    }

    /// Samples taken.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_first_sample_replaces_the_hint() {
        let mut rtt = Estimator::new(100 * MS);
        rtt.sample(20 * MS);
        assert_eq!((rtt.smoothed(), rtt.variation(), rtt.minimum()), (20 * MS, 10 * MS, 20 * MS));
    }

    #[test]
    fn rfc_6298_weights() {
        let mut rtt = Estimator::new(MS);
        rtt.sample(80 * MS);
        rtt.sample(160 * MS);
        assert_eq!(rtt.variation(), 50 * MS); // 3/4 * 40 + 1/4 * 80
        assert_eq!(rtt.smoothed(), 90 * MS); // 7/8 * 80 + 1/8 * 160
        assert_eq!((rtt.minimum(), rtt.latest(), rtt.samples()), (80 * MS, 160 * MS, 2));
    }
}
