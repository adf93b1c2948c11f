//! The load that a message waits for before it leaves, and how that depends on the scheme.

use crate::link::Link;
use crate::model::Message;

/// The load that a class's messages find before them as they come, and among them as they leave, in
/// the mean. The default is an idle link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Bytes of data that have not been sent yet, or have not come, and go first: before a message
    /// or, as others take turns with it, between its packets.
    pub waiting: f64,
    /// The part of `waiting` in the message's own stream.
    pub same: f64,
    /// Bytes that were sent and are not acknowledged.
    pub under_way: f64,
    /// Bytes of others in that stream that leave between two packets of a message which both wait,
    /// for each byte of the second one.
    pub between: f64,
}

impl Load {
    /// A message of so many bytes, and what is beside and behind it. Where messages come all the
    /// time, each leaves as much waiting as it has found; less one, since of those that come
    /// together the last one leaves nothing.
    pub(super) fn message(&self, size: u64, link: &Link) -> Message {
        let behind = (self.same as u64).saturating_sub(size);
        Message { beside: self.beside(size, link) as u64, behind, ..Message::new(size) }
    }

    /// Bytes of others between the packets of a message.
    fn beside(&self, size: u64, link: &Link) -> f64 {
        let followers = 1.0 - 1.0 / link.packets(size) as f64;
        (size as f64 * followers * self.between).clamp(0.0, self.same.min(self.waiting).max(0.0))
    }

    /// Returns the queue before a message of so many bytes, as seen on a link on which a byte of
    /// data takes `1 + overhead` bytes at present.
    pub(super) fn queue(&self, size: u64, link: &Link, overhead: f64) -> Queue {
        let seconds = |bytes: f64| if bytes > 0.0 { link.wire_seconds(bytes as u64) } else { 0.0 };
        let beside = self.beside(size, link);
        let [waiting, beside, under_way] = [self.waiting - beside, beside, self.under_way].map(seconds);
        let room = (link.rtt_seconds() - under_way * (1.0 + overhead)).max(0.0);
        Queue { waiting, beside, under_way, room, overhead }
    }
}

/// The queue before a message, in seconds that the link takes for it without any overhead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    waiting: f64,
    /// Data that leaves between its packets, and is not in `waiting`.
    beside: f64,
    under_way: f64,
    /// The part of a round trip in which the link is free.
    room: f64,
    /// With which it was seen.
    overhead: f64,
}

impl Queue {
    /// How long a message would wait, if a byte of data took `1 + overhead` bytes.
    ///
    /// Programs keep so many messages outstanding, whatever the scheme: what is not under way then
    /// waits. Another scheme's overhead makes what waits take longer, and moves data from the link
    /// into the queue once the link is full, or back: then also from what is beside the message,
    /// which is not counted here, so the answer may be less than nothing.
    pub(super) fn seconds(&self, overhead: f64) -> f64 {
        let more = self.under_way * (overhead - self.overhead);
        let moved = if more > 0.0 { (more - self.room).max(0.0) } else { more };
        (self.waiting * (1.0 + overhead) + moved).max(-self.beside * (1.0 + overhead))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// 1 Gbit/s over 25 ms: 3.1 MB fit.
    fn link() -> Link {
        Link { overhead: 0, ..Link::new(1_000_000_000, Duration::from_millis(25), 0.0, 1000) }
    }

    fn load(waiting: f64, under_way: f64) -> Load {
        Load { waiting, under_way, ..Load::default() }
    }

    #[track_caller]
    fn assert_near(seconds: f64, expected: f64) {
        assert!((seconds - expected).abs() < 1e-4, "{seconds} instead of {expected}");
    }

    /// Four megabytes outstanding take as long as the link needs for them, whichever scheme was in
    /// force when they were seen.
    #[test]
    fn what_is_outstanding_takes_the_links_time_for_it_and_its_overhead() {
        let outstanding = 4e6;
        for seen_with in [0.0, 0.25, 0.5] {
            let under_way = 3.125e6 / (1.0 + seen_with);
            let queue = load(outstanding - under_way, under_way).queue(1000, &link(), seen_with);
            for overhead in [0.0, 0.125, 0.5, 1.0] {
                assert_near(queue.seconds(overhead) + 0.025, 0.032 * (1.0 + overhead));
            }
        }
    }

    #[test]
    fn nobody_waits_for_what_is_under_way_while_the_link_has_room() {
        let queue = load(0.0, 1.5625e6).queue(1000, &link(), 0.0);
        assert_near(queue.seconds(1.0), 0.0);
        assert_near(queue.seconds(2.0), 0.0125);
        assert_near(load(0.0, 0.0).queue(1000, &link(), 0.0).seconds(4.0), 0.0);
    }

    /// Data that leaves between a message's packets is the message's time, and not its wait; both
    /// together take as long.
    #[test]
    fn turns_move_the_wait_into_the_message() {
        let size = 1_000_000;
        for seen_with in [0.0, 0.5] {
            let under_way = 3.125e6 / (1.0 + seen_with);
            let rows = Load { same: 10e6, ..load(10e6, under_way) };
            for between in [1.0, 4.0, 63.0] {
                let turns = Load { between, ..rows };
                let message = turns.message(size, &link());
                let most = 10e6 * f64::from(u8::from(between > 9.0)) + size as f64 * between * 0.999;
                assert!((message.beside as f64 - most.min(10e6)).abs() < 2.0, "{message:?}");
                assert_eq!(message.behind, 9_000_000);
                for overhead in [0.0, 0.25, 1.0] {
                    let [wait, among] =
                        [rows, turns].map(|load| load.queue(size, &link(), seen_with).seconds(overhead));
                    assert_near(among + message.beside as f64 * 8e-9 * (1.0 + overhead), wait);
                }
            }
        }
        let one_packet = Load { between: 63.0, same: 10e6, ..load(10e6, 0.0) }.message(1000, &link());
        assert_eq!((one_packet.beside, one_packet.behind), (0, 9_999_000));
    }

    /// Messages that come all at once find an idle link, and each other.
    #[test]
    fn a_burst_waits_for_itself() {
        let queue = load(1.25e6, 0.0).queue(1000, &link(), 0.0);
        assert_near(queue.seconds(0.0), 0.01);
        assert_near(queue.seconds(0.5), 0.015);
    }
}
