//! Settings of a connection for its link, and the bounds that follow.

use std::time::Duration;

use reliability::estimator::ProbeConfig;
use reliability::link::Link;
use reliability::mtu::BASE_DATAGRAM;
use reliability::stream::{DATA_HEADER, FRAGMENT_HEADER};

use crate::class::SLOTS;

/// The link, and the bounds of what is held for it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Longest packet that is sent in any session, plaintext bytes. A session uses what its peer
    /// takes, if that is less.
    pub max_packet: usize,
    /// True if that is the most that is looked for: how long packets may be, each session finds by
    /// probing ([`reliability::mtu`]).
    pub find_mtu: bool,
    /// Longest packet that every path carries on which there can be a session, plaintext bytes.
    pub base_packet: usize,
    /// Bytes that sealing, UDP and IP add to a packet.
    pub ip_overhead: usize,
    /// These and what the link adds: what the pacer counts on top.
    pub packet_overhead: usize,
    /// The rate that the link is provisioned for, bit/s.
    pub rate: u64,
    /// Who decides how much of that is sent.
    pub congestion: Congestion,
    /// Round-trip time: to assume before the first measurement, and as measured since, to an
    /// eighth.
    pub rtt: Duration,
    /// Probes over an otherwise idle link, so that it stays known.
    pub probes: ProbeConfig,
    /// Lanes to send on, 1 to [`MOST_LANES`].
    pub lanes: u8,
    /// Bytes that all streams together hold for repair.
    pub total_buffer: usize,
}

/// Streams a peer may have: two for each of the classes that there may be, and for each of those
/// that drain after a change of them. A packet of any other is refused.
pub(crate) const STREAMS: usize = 2 * SLOTS;
/// Backlog a stream may hold, at least.
pub(crate) const LEAST_BACKLOG: usize = 8 << 20;
/// Bytes that a stream may hold in any case.
pub(crate) const LEAST_PART: usize = 2 * LEAST_BACKLOG;
/// Returns the bytes that each of a class's streams may hold, backlog and what is unacknowledged,
/// if so many classes share `total` bytes.
pub(crate) fn part_of(total: usize, classes: usize) -> usize {
    (total / (2 * classes)).max(LEAST_PART)
}

/// Most lanes of a session, each way.
pub const MOST_LANES: u8 = reliability::lanes::MOST_LANES;

/// Who decides how much is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// Nobody: the link is provisioned, and its rate is sent.
    #[default]
    Fixed,
    /// Each lane's controller, from what the peer reports: the bottleneck is shared.
    Adaptive,
}

impl Config {
    /// A provisioned link of `rate` bit/s that carries plaintext packets of `max_packet` bytes,
    /// with 512 MiB of buffers.
    #[must_use]
    pub fn new(rate: u64, max_packet: usize) -> Self {
        Self {
            max_packet,
            find_mtu: false,
            base_packet: BASE_PACKET,
            ip_overhead: 0,
            packet_overhead: 0,
            rate,
            congestion: Congestion::default(),
            rtt: Duration::from_millis(50),
            probes: ProbeConfig::default(),
            lanes: 1,
            total_buffer: 512 << 20,
        }
    }

    /// Packets that a stream may have under way, in either direction, if they are up to this long:
    /// the peer's link is taken to be as ours.
    pub(crate) fn window(&self, max_packet: usize) -> usize {
        // What arrives after a gap waits at the far side, where half of the buffers may be used for
        // it.
        let held = self.total_buffer / 2 / max_packet.max(1);
        window(self.rate, max_packet + self.packet_overhead).min(held.max(LEAST_WINDOW))
    }

    /// Packets that a receiver has room for: its peer may send packets of any length, of short ones
    /// the most.
    pub(crate) fn received_window(&self) -> usize {
        self.window(self.base_packet.min(self.max_packet))
    }

    /// Bytes that all streams from the peer may hold together for cut records, and for decoding; of
    /// each, one stream may have half. The peer's buffers are taken to be as ours: no class of its
    /// has more than half of them under way.
    pub(crate) fn receive_buffers(&self) -> [usize; 2] {
        [self.total_buffer.max(LEAST_RECEIVED), (self.total_buffer / 4).max(LEAST_RECEIVED)]
    }

    /// The most memory that the streams of so many classes allocate in bytes, whatever the peer
    /// sends; the parts of one ([`Class::joins_next`](crate::class::Class::joins_next)) count once.
    #[must_use]
    pub fn most_memory(&self, classes: usize) -> usize {
        let received =
            self.receive_buffers().iter().sum::<usize>() + STREAMS * (self.received_window() / 2 + STREAM);
        // Two streams each, and the packets' own heads.
        let sent =
            2 * classes * (part_of(self.total_buffer, classes) * 3 / 2 + self.window(self.max_packet) * HEAD);
        received + sent
    }

    /// The way to the peer as it is assumed, without losses, with packets of up to so many
    /// plaintext bytes.
    pub(crate) fn link(&self, packet: usize) -> Link {
        Link {
            overhead: self.packet_overhead + headers(),
            ..Link::new(self.rate, self.rtt, 0.0, packet.saturating_sub(headers()))
        }
    }
}

const LEAST_RECEIVED: usize = 64 << 20;
/// Bytes of a receiving stream beside bitmap and buffers.
const STREAM: usize = 32 << 10;
/// Bytes that are remembered of a packet that was sent.
const HEAD: usize = 160;
/// The least datagram that a path has to carry ([`BASE_DATAGRAM`]), less the seal.
pub const BASE_PACKET: usize = BASE_DATAGRAM - 24;

/// Returns the bytes of a full packet's plaintext that its own headers take.
const fn headers() -> usize {
    DATA_HEADER + FRAGMENT_HEADER
}

/// Packets that a stream may have under way: what a link of `rate` bit/s carries of packets this
/// long on the wire in two of the longest round trips there are, so that repairs stop nothing,
/// within bounds. The upper one is for the bitmaps that reports repeat.
#[must_use]
pub fn window(rate: u64, wire_packet: usize) -> usize {
    let packets = u128::from(rate) * LONGEST_RTT.as_millis() * 2 / 8000 / wire_packet.max(1) as u128;
    usize::try_from(packets).unwrap_or(MOST_WINDOW).clamp(LEAST_WINDOW, MOST_WINDOW).next_power_of_two()
}

/// Half around the Earth and back, through routers.
const LONGEST_RTT: Duration = Duration::from_millis(300);
/// Packets that every receiver takes, and all that are sent before a receiver has said what it
/// takes.
pub(crate) const LEAST_WINDOW: usize = 1 << 15;
const MOST_WINDOW: usize = 1 << 19;

/// How long a block of a class that is chosen for may fill: as long as the longest that is chosen
/// takes at the link's rate, within bounds.
#[must_use]
pub fn auto_flush(link: &Link) -> Duration {
    const LONGEST: f64 = 128.0;
    let time = LONGEST * link.packet_seconds();
    Duration::try_from_secs_f64(time).unwrap_or(Duration::MAX).clamp(LEAST_FLUSH, MOST_FLUSH)
}

const LEAST_FLUSH: Duration = Duration::from_micros(200);
const MOST_FLUSH: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_holds_two_long_round_trips_within_bounds() {
        for (gbit, packet, expected) in [
            (1, 1500, 1 << 16),
            (1, 9000, 1 << 15),
            (10, 1500, 1 << 19),
            (10, 9000, 1 << 17),
            (400, 9000, 1 << 19),
        ] {
            let rate = gbit * 1_000_000_000;
            assert_eq!(window(rate, packet), expected, "{gbit} Gbit/s, {packet} bytes");
            let carried = rate as f64 * 0.6 / 8.0 / packet as f64;
            assert!(expected as f64 >= carried || expected == MOST_WINDOW);
        }
        assert_eq!([window(0, 0), window(u64::MAX, 0)], [LEAST_WINDOW, MOST_WINDOW]);
    }

    #[test]
    fn blocks_of_auto_may_fill_at_any_rate() {
        let flush = |rate| auto_flush(&Link::new(rate, Duration::ZERO, 0.0, 1250));
        let times = [1_000_000, 1_000_000_000, 100_000_000_000].map(flush);
        assert_eq!(times, [5000, 1280, 200].map(Duration::from_micros));
    }
}
