//! A sender's view of the path and of what is still to be sent.

use std::time::Duration;

use super::Sender;
use super::protection::Losses;
use crate::rtt::Estimator;
use crate::stream::{Scheme, report_interval};

/// Hints from the sender's owner.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Hints {
    /// Bits per second at which packets leave.
    pub(super) rate: Option<u64>,
    /// Bytes still to be pushed.
    pub(super) expected: u64,
    pub(super) losses: Losses,
}

impl Hints {
    pub(super) fn new(rate: Option<u64>) -> Self {
        Self { rate, expected: 0, losses: Losses::default() }
    }
}

/// A moment's view of the transfer under way. In packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outlook {
    /// Still to be sent for the first time.
    pub(super) remaining: u64,
    /// Sent and not yet acknowledged, counted from the oldest one.
    pub(super) in_flight: u64,
    /// Packets that the link carries while a loss is repaired; all there may ever be if the rate is
    /// not known.
    pub(super) repair: u64,
    pub(super) losses: Losses,
}

impl Outlook {
    /// Returns true if a packet that is sent now and lost could not be repaired before everything
    /// else is sent.
    pub(super) fn is_tail(&self) -> bool {
        self.remaining < self.repair
    }

    /// Packets among which a loss that is not made up for costs the transfer a round trip: as many
    /// as are sent while one is repaired, or all.
    pub(super) fn exposed(&self) -> u64 {
        self.remaining.saturating_add(self.in_flight).min(self.repair).max(1)
    }
}

impl Sender {
    /// Returns the backlog of a group of sources, in bytes.
    #[must_use]
    pub fn backlog_of(&self, group: u8) -> usize {
        self.queue.waiting_of(group)
    }

    /// Returns the backlog of all groups from [`FIRST_OTHER`](super::FIRST_OTHER) on, in bytes, but
    /// for what counts apart.
    #[must_use]
    pub fn backlog_of_others(&self) -> usize {
        self.queue.waiting_of_others()
    }

    /// Returns the backlog of those groups that [counts apart](super::Origin::is_apart), in bytes.
    #[must_use]
    pub fn backlog_apart(&self) -> usize {
        self.queue.waiting_apart()
    }

    /// Tells how many bytes of records are still to be pushed, as far as the caller knows; it
    /// replaces what was said before. They are taken to come as fast as they can be sent: of a
    /// source that pauses, the last packets before the pause may travel unprotected.
    pub fn expect(&mut self, bytes: u64) {
        self.hints.expected = bytes;
    }

    /// Tells at how many bits per second packets leave (see [`rate`](super::SenderConfig::rate)).
    pub fn set_rate(&mut self, rate: u64) {
        self.hints.rate = Some(rate);
        self.foresee();
    }

    /// Tells the share of packets that the path loses, 0 to 1; NaN for unknown. `hybrid` sends as
    /// much parity and as many copies as it calls for, within `m`: none if a loss among the packets
    /// in question is unlikely. Unknown, it sends as much as `mds`.
    pub fn set_drop(&mut self, drop: f64) {
        self.hints.losses.set_drop(drop);
    }

    /// Tells the mean length of a run of lost packets, 1 if they are lost independently. `hybrid`
    /// interleaves so deep that 99 % of the runs can be borne (their lengths taken as geometrically
    /// distributed), up to 64 and no less than its own depth.
    pub fn set_burst(&mut self, mean_run: f64) {
        self.hints.losses.set_run(mean_run);
    }

    /// Follows the measured round-trip time.
    pub(super) fn foresee(&mut self) {
        let packets =
            |rate| repair_packets(rate, self.config.max_packet, &self.rtt, self.config.reorder_time);
        self.repair_packets = self.hints.rate.map_or(u64::MAX, packets);
    }

    pub(super) fn outlook(&self) -> Outlook {
        let bytes = (self.queue.backlog() as u64).saturating_add(self.hints.expected);
        Outlook {
            remaining: bytes.div_ceil(self.queue.capacity() as u64),
            in_flight: self.queue.next() - self.queue.base(),
            repair: self.repair_packets,
            losses: self.hints.losses,
        }
    }

    /// In a transfer's tail, how many extra copies each repair gets: its loss could not be repaired
    /// in time either.
    pub(super) fn copies(&self) -> u8 {
        let outlook = self.outlook();
        if !matches!(self.config.scheme, Scheme::Hybrid { .. }) || !outlook.is_tail() {
            return 0;
        }
        outlook.losses.copies(self.loss.repairs_waiting() + 1, outlook.in_flight)
    }
}

/// Packets of `bytes` that leave at `rate` while a lost one is repaired: its loss is noticed after
/// `reorder`, told within a report interval, and the repair under way for the rest of a round trip.
fn repair_packets(rate: u64, bytes: usize, rtt: &Estimator, reorder: Duration) -> u64 {
    let smoothed = rtt.smoothed();
    let margin = (4 * rtt.variation()).max(Duration::from_millis(1));
    let time = smoothed + reorder + report_interval(smoothed) + margin;
    let bits = u128::from(rate).saturating_mul(time.as_nanos()) / 1_000_000_000;
    let packets = bits / (8 * bytes.max(1) as u128);
    u64::try_from(packets).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repair_takes_a_round_trip_and_what_it_takes_to_notice() {
        let mut rtt = Estimator::new(Duration::from_millis(40));
        for _ in 0..200 {
            rtt.sample(Duration::from_millis(40));
        }
        // 40 ms, 2 ms, 10 ms and 1 ms; 1000 bytes take 1 ms.
        assert_eq!(repair_packets(8_000_000, 1000, &rtt, Duration::from_millis(2)), 53);
        assert_eq!(repair_packets(u64::MAX, 0, &Estimator::new(Duration::MAX / 8), Duration::ZERO), u64::MAX);
    }

    #[test]
    fn the_tail_begins_where_a_repair_takes_longer_than_the_rest() {
        let outlook =
            |remaining, in_flight| Outlook { remaining, in_flight, repair: 100, losses: Losses::default() };
        assert!(!outlook(100, 0).is_tail() && outlook(99, 5000).is_tail());
        assert_eq!(
            [outlook(7, 3), outlook(7, 5000), outlook(5000, 0), outlook(0, 0)].map(|o| o.exposed()),
            [10, 100, 100, 1]
        );
    }
}
