//! Sending less until a queue is gone, and what it tells of the share one has.

use super::cubic::SEGMENT;
use super::sent::Mark;

/// Less than so much is too little to be seen missing.
const LEAST_HELD: f64 = 8.0 * SEGMENT;

/// Less is sent until the queue is gone that this session has its part in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    /// Bytes in flight that end it.
    pub(super) target: f64,
    /// When it ends whatever is in flight, in microseconds.
    pub(super) until: u64,
    /// It is over; what was sent since begins with this number.
    pub(super) over: Option<u64>,
    /// The state when it began: bytes sent before, arrivals in bytes per second, and the round-trip
    /// time.
    pub(super) began: Mark,
    pub(super) delivered: f64,
    pub(super) trip: f64,
    /// Our share of the path's capacity, as far as the queue has told.
    pub(super) share: f64,
}

impl Drain {
    /// Measures the share, from the round-trip time that packets sent up to a mark have met. What
    /// was held back until then is missing in the queue, which is so much shorter, by the path's
    /// capacity: others still send what they did, for one round trip.
    pub(super) fn measure(&mut self, mark: Mark, trip: f64) {
        let time = mark.at.saturating_sub(self.began.at) as f64 / 1e6;
        let held = self.delivered * time - mark.bytes.saturating_sub(self.began.bytes) as f64;
        if time <= self.trip && held >= LEAST_HELD {
            self.share = (self.delivered * (self.trip - trip) / held).clamp(0.0, 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_tells_the_share_by_how_fast_it_falls() {
        let (capacity, delivered) = (10e6, 4e6);
        let began = Mark { at: 1_000_000, number: 0, bytes: 500 };
        let mut drain = Drain { target: 0.0, until: 0, over: None, began, delivered, trip: 0.1, share: 0.0 };
        // Half is sent, so the queue gets shorter by a fifth of the time that goes by.
        let at = |time: f64| Mark {
            at: began.at + (time * 1e6) as u64,
            number: 0,
            bytes: began.bytes + (delivered / 2.0 * time) as u64,
        };
        drain.measure(at(1e-3), 0.05);
        assert!(drain.share.abs() < 1e-9, "too early to tell");
        drain.measure(at(0.05), 0.1 - 0.05 * delivered / 2.0 / capacity);
        assert!((drain.share - 0.4).abs() < 1e-3, "{}", drain.share);
        drain.measure(at(0.11), 0.0);
        assert!((drain.share - 0.4).abs() < 1e-3, "others answer by now");
    }
}
