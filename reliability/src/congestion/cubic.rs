//! As a TCP CUBIC sender would grow and yield (RFC 9438), in bytes.

/// Bytes of the segments that the law counts in: those of whom it shares with, whatever the length
/// of the packets here.
pub(super) const SEGMENT: f64 = 1500.0;
/// RFC 9438, sections 4.1 and 4.6.
const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// RFC 9438, section 4.3: what makes AIMD with this decrease as fast as Reno.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// A congestion window in segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cubic {
    pub(super) window: f64,
    most: f64,
    /// Seconds since the last decrease, and until the window is again what it was.
    since: f64,
    back: f64,
    /// The window that Reno would have.
    reno: f64,
}

impl Cubic {
    /// At this window, where growth begins.
    pub(super) fn new(bytes: f64) -> Self {
        let window = (bytes / SEGMENT).max(4.0);
        Self { window, most: window, since: 0.0, back: 0.0, reno: window }
    }

    /// A round of `time` seconds without congestion. The window grows by half at most (section
    /// 4.4).
    pub(super) fn grow(&mut self, time: f64) {
        self.since += time;
        let cubic = C * (self.since + time - self.back).powi(3) + self.most;
        self.reno += if self.reno < self.most { ALPHA } else { 1.0 };
        self.window = cubic.max(self.reno).clamp(self.window, self.window * 1.5);
    }

    /// A round with losses of congestion.
    pub(super) fn shrink(&mut self) {
        // Fast convergence, section 4.7.
        self.most = if self.window < self.most { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        let before = self.window;
        self.window = (self.window * BETA).max(4.0);
        self.back = ((self.most - self.window).max(0.0) / C).cbrt();
        self.since = 0.0;
        self.reno = self.window;
        debug_assert!(self.window <= before.max(4.0));
    }

    /// Keeps this part of the window, and begins to grow there.
    pub(super) fn keep(&mut self, part: f64) {
        *self = Self::new(self.bytes() * part);
    }

    pub(super) fn bytes(&self) -> f64 {
        self.window * SEGMENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_back_after_the_time_that_the_rfc_gives() {
        let mut cubic = Cubic::new(1000.0 * SEGMENT);
        cubic.shrink();
        assert!((cubic.window - 700.0).abs() < 1e-9);
        let mut time = 0.0;
        while cubic.window < 999.0 {
            cubic.grow(0.1);
            time += 0.1;
        }
        assert!((time - (300.0_f64 / 0.4).cbrt()).abs() < 1.5, "{time}");
    }
}
