//! Times taken down: percentiles from a histogram, the mean exactly.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::Failure;

/// Times in nanoseconds: an HdrHistogram of four significant digits (at most 0.01 % off, 128 kB for
/// each doubling), and the exact sum.
#[derive(Clone, Debug)]
pub struct Times {
    histogram: Histogram<u64>,
    sum: u128,
    squares: f64,
}

impl Times {
    /// None yet.
    ///
    /// # Errors
    /// The histogram cannot be made, which these bounds rule out.
    pub fn new() -> Result<Self, Failure> {
        let histogram = Histogram::new(4).map_err(|_| Failure::Impossible("the histogram's bounds"))?;
        Ok(Self { histogram, sum: 0, squares: 0.0 })
    }

    pub(super) fn record(&mut self, nanos: u64) {
        // It grows with its values; only a lack of memory could keep it from that.
        if self.histogram.record(nanos).is_err() {
            self.histogram.saturating_record(nanos);
        }
        self.sum += u128::from(nanos);
        self.squares += (nanos as f64).powi(2);
    }

    /// Times taken down.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Seconds; 0 if there are none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count().max(1) as f64 / 1e9
    }

    /// Standard error of the mean in seconds, if the times are independent.
    #[must_use]
    pub fn standard_error(&self) -> f64 {
        let count = self.count().max(1) as f64;
        let mean = self.sum as f64 / count;
        ((self.squares / count - mean * mean).max(0.0) / count).sqrt() / 1e9
    }

    /// The time that the share `quantile` of all does not exceed, in seconds.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> f64 {
        self.histogram.value_at_quantile(quantile) as f64 / 1e9
    }

    /// In nanoseconds.
    #[must_use]
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// The exact sum.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.sum).unwrap_or(u64::MAX))
    }
}
