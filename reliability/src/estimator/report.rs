//! Layout of PATH and PROBE packets. Big-endian; `docs/protocol.md#path` has the figures.

use super::sizes::{BLOCK, BySize, SIZES};
use crate::stream::wire::{Reader, Start, Writer};
use crate::stream::{Kind, Malformed, StreamId};

use super::LaneId;

/// Bytes of a PATH packet of this version.
pub const PATH_PACKET: usize = 188;
/// Fewest bytes of a PROBE packet.
pub const PROBE_PACKET: usize = 32;

/// Version of the layout below. A later one appends fields.
const VERSION: u8 = 2;
/// In place of a holding time: nothing to echo.
const NO_ECHO: u32 = u32::MAX;

/// A receiver's report on a path. All counts are of packet numbers or packets since it began to
/// observe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathReport {
    /// The lane observed.
    pub lane: LaneId,
    /// Counts the reports, modulo 2^32. A repeated one has a number of its own.
    pub number: u32,
    /// When it was sent, by the reporting gateway's clock in microseconds, modulo 2^32.
    pub sent_at: u32,
    /// The latest time stamp that came from the other side.
    pub echo: Option<Echo>,
    /// Every packet number below is judged, but for those left out by a jump.
    pub horizon: u64,
    /// Numbers judged, arrived or lost.
    pub judged: u64,
    /// Numbers judged lost. Falls when one arrives after all.
    pub lost: u64,
    /// Runs of losses: numbers lost whose predecessor is not.
    pub runs: u64,
    /// Packets that arrived, each number once.
    pub arrived: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that arrived after one with a higher number.
    pub reordered: u64,
    /// Packets whose number had arrived.
    pub duplicates: u64,
    /// Packets that arrived ECN-capable, marked ones included.
    pub ect: u64,
    /// Packets that arrived marked Congestion Experienced.
    pub ce: u64,
    /// The longest run of losses, saturating.
    pub longest: u32,
    /// Times the numbers leapt further than any loss explains. What lies between was not judged.
    pub jumps: u32,
    /// How far out of order packets arrived in the last half minute to minute.
    pub extents: Extents,
    /// Up to here (the end of a block of 4096 numbers) `by_size` counts.
    pub size_horizon: u64,
    /// Packets that arrived, by their size, see [`super::SIZE_BOUNDS`].
    pub by_size: BySize,
    /// Packets that the receiving machine dropped for want of buffers before they were observed.
    /// Some may have been none of this path's.
    pub overrun: u64,
    /// The highest number that arrived; `None` before anything has.
    pub newest: Option<Newest>,
    /// How often whoever sends this wants to be reported to while it sends, in microseconds; 0: as
    /// usual.
    pub wanted: u32,
}

/// Up to where the numbers have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    /// The number after the highest that arrived.
    pub next: u64,
    /// How long before the report that one arrived, in microseconds, saturating.
    pub age: u32,
}

/// A time stamp that goes back to whose clock made it: the round-trip time is now less both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// As it was received.
    pub sent_at: u32,
    /// How long ago, in microseconds; below 2^32 - 1.
    pub held: u32,
}

/// How far packets came behind one with a higher number: how far below the highest, and how long
/// after it was noticed that they were missing. All saturating.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// 99 of 100 lay no further back, in packet numbers.
    pub packets_p99: u32,
    /// The furthest.
    pub packets_max: u32,
    /// 99 of 100 came no later, in microseconds.
    pub micros_p99: u32,
    /// The latest.
    pub micros_max: u32,
}

impl PathReport {
    /// Writes it to the front of `out`.
    pub fn emit(&self, out: &mut [u8; PATH_PACKET]) {
        let mut writer = Writer::new(out);
        writer.start(Kind::Path, VERSION, StreamId(self.lane.0));
        let (echo, held) = self.echo.map_or((0, NO_ECHO), |echo| (echo.sent_at, echo.held));
        for word in [self.number, self.sent_at, echo, held] {
            writer.put(&word.to_be_bytes());
        }
        let counts = [
            self.horizon,
            self.judged,
            self.lost,
            self.runs,
            self.arrived,
            self.bytes,
            self.reordered,
            self.duplicates,
            self.ect,
            self.ce,
        ];
        for count in counts {
            writer.put(&count.to_be_bytes());
        }
        let Extents { packets_p99, packets_max, micros_p99, micros_max } = self.extents;
        for word in [self.longest, self.jumps, packets_p99, packets_max, micros_p99, micros_max] {
            writer.put(&word.to_be_bytes());
        }
        writer.put(&self.size_horizon.to_be_bytes());
        for count in self.by_size {
            writer.put(&count.to_be_bytes());
        }
        writer.put(&self.overrun.to_be_bytes());
        let Newest { next, age } = self.newest.unwrap_or(Newest { next: 0, age: 0 });
        writer.put(&next.to_be_bytes());
        writer.put(&age.to_be_bytes());
        writer.put(&self.wanted.to_be_bytes());
    }

    /// Reads a PATH packet of this or a later version.
    ///
    /// # Errors
    /// [`Malformed`] if it is none, ends too early, or its counts contradict one another.
    pub fn parse(packet: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(packet);
        let Start { kind, flags: version, stream: lane, .. } = reader.start()?;
        if kind != Kind::Path {
            return Err(Malformed::Direction(kind));
        }
        let (number, sent_at) = (reader.u32()?, reader.u32()?);
        let (echo, held) = (reader.u32()?, reader.u32()?);
        let mut report = Self {
            lane: LaneId(lane.0),
            number,
            sent_at,
            echo: (held != NO_ECHO).then_some(Echo { sent_at: echo, held }),
            horizon: reader.u64()?,
            judged: reader.u64()?,
            lost: reader.u64()?,
            runs: reader.u64()?,
            arrived: reader.u64()?,
            bytes: reader.u64()?,
            reordered: reader.u64()?,
            duplicates: reader.u64()?,
            ect: reader.u64()?,
            ce: reader.u64()?,
            longest: reader.u32()?,
            jumps: reader.u32()?,
            extents: Extents {
                packets_p99: reader.u32()?,
                packets_max: reader.u32()?,
                micros_p99: reader.u32()?,
                micros_max: reader.u32()?,
            },
            size_horizon: reader.u64()?,
            by_size: [0; SIZES],
            overrun: 0,
            newest: None,
            wanted: 0,
        };
        for count in &mut report.by_size {
            *count = reader.u64()?;
        }
        report.overrun = reader.u64()?;
        let newest = Newest { next: reader.u64()?, age: reader.u32()? };
        report.newest = (newest.next > 0).then_some(newest);
        report.wanted = reader.u32()?;
        if version >= VERSION && report.is_possible() { Ok(report) } else { Err(Malformed::Path) }
    }

    /// Up to where it tells of packets. Where the newest that arrived is not named, that is what is
    /// judged: later, so that delays seem longer.
    pub(crate) fn told(&self) -> Newest {
        self.newest.unwrap_or(Newest { next: self.horizon, age: 0 })
    }

    fn is_possible(&self) -> bool {
        let by_size = self.by_size.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count));
        self.judged <= self.horizon
            && self.lost <= self.judged
            && self.runs <= self.lost
            && self.judged - self.lost <= self.arrived
            && self.reordered <= self.arrived
            && self.ect <= self.arrived
            && self.ce <= self.ect
            && self.size_horizon.is_multiple_of(BLOCK)
            && by_size.is_some_and(|sum| sum <= self.arrived)
            && self.newest.is_none_or(|newest| newest.next >= self.horizon)
    }
}

/// Writes a PROBE of all of `out`, at least [`PROBE_PACKET`] bytes. `sent_at` as in [`PathReport`].
pub(super) fn emit_probe(lane: LaneId, sent_at: u32, out: &mut [u8]) {
    out.fill(0);
    let mut writer = Writer::new(out);
    writer.start(Kind::Probe, 0, StreamId(lane.0));
    writer.put(&sent_at.to_be_bytes());
}

/// A PROBE's time stamp, for [`super::PathObserver::observe_stamp`].
///
/// # Errors
/// [`Malformed`] if it is none, or ends too early.
pub fn parse_probe(packet: &[u8]) -> Result<u32, Malformed> {
    let mut reader = Reader(packet);
    let Start { kind, .. } = reader.start()?;
    if kind != Kind::Probe {
        return Err(Malformed::Direction(kind));
    }
    let sent_at = reader.u32()?;
    if packet.len() < PROBE_PACKET { Err(Malformed::Truncated) } else { Ok(sent_at) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> PathReport {
        PathReport {
            lane: LaneId(0x0102),
            number: 0x0304_0506,
            sent_at: 0x0708_090a,
            echo: Some(Echo { sent_at: 11, held: 12 }),
            horizon: 1 << 40,
            judged: 1 << 39,
            lost: 300,
            runs: 100,
            arrived: 1 << 41,
            bytes: 1 << 50,
            reordered: 7,
            duplicates: 8,
            ect: 20,
            ce: 19,
            longest: 9,
            jumps: 2,
            extents: Extents { packets_p99: 3, packets_max: 4, micros_p99: 5, micros_max: 6 },
            size_horizon: 8192,
            by_size: [1, 2, 3, 4],
            overrun: 77,
            newest: Some(Newest { next: (1 << 40) + 5, age: 21 }),
            wanted: 22,
        }
    }

    fn emitted(report: &PathReport) -> [u8; PATH_PACKET] {
        let mut packet = [0; PATH_PACKET];
        report.emit(&mut packet);
        packet
    }

    #[test]
    fn golden_bytes() {
        let packet = emitted(&report());
        assert_eq!(packet[..8], [4, 2, 1, 2, 3, 4, 5, 6]);
        assert_eq!(packet[8..20], [7, 8, 9, 10, 0, 0, 0, 11, 0, 0, 0, 12]);
        assert_eq!(packet[36..52], [0, 0, 0, 0, 0, 0, 1, 44, 0, 0, 0, 0, 0, 0, 0, 100]);
        assert_eq!(
            packet[100..124],
            [0, 0, 0, 9, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 6]
        );
        assert_eq!(packet[124..132], [0, 0, 0, 0, 0, 0, 32, 0]);
        assert_eq!(packet[156..172], [0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 77]);
        assert_eq!(packet[172..], [0, 0, 1, 0, 0, 0, 0, 5, 0, 0, 0, 21, 0, 0, 0, 22]);
    }

    #[test]
    fn reads_back_as_written_and_with_what_a_later_version_appends() {
        for echo in [report().echo, None] {
            let report = PathReport { echo, ..report() };
            let packet = emitted(&report);
            assert_eq!(PathReport::parse(&packet), Ok(report));
            let mut later = packet.to_vec();
            later[1] = 3;
            later.extend([1, 2, 3]);
            assert_eq!(PathReport::parse(&later), Ok(report));
        }
    }

    #[test]
    fn an_earlier_version_is_refused() {
        let mut packet = emitted(&report());
        packet[1] = 1;
        assert_eq!(PathReport::parse(&packet), Err(Malformed::Path));
    }

    #[test]
    fn the_impossible_is_refused() {
        let packet = emitted(&report());
        for len in 0..packet.len() {
            assert!(PathReport::parse(&packet[..len]).is_err(), "{len} bytes");
        }
        let good = report();
        for bad in [
            PathReport { judged: good.horizon + 1, ..good },
            PathReport { lost: good.judged + 1, ..good },
            PathReport { runs: good.lost + 1, ..good },
            PathReport { arrived: 1 << 38, ..good },
            PathReport { reordered: good.arrived + 1, ..good },
            PathReport { ect: good.arrived + 1, ..good },
            PathReport { ce: good.ect + 1, ..good },
            PathReport { size_horizon: 8191, ..good },
            PathReport { by_size: [u64::MAX, 1, 0, 0], ..good },
            PathReport { newest: Some(Newest { next: good.horizon - 1, age: 0 }), ..good },
        ] {
            assert_eq!(PathReport::parse(&emitted(&bad)), Err(Malformed::Path), "{bad:?}");
        }
        let mut old = packet;
        old[1] = 0;
        assert_eq!(PathReport::parse(&old), Err(Malformed::Path));
        old[0] = 3;
        assert_eq!(PathReport::parse(&old), Err(Malformed::Direction(Kind::Report)));
    }

    #[test]
    fn probes() {
        let mut packet = [7; 40];
        emit_probe(LaneId(3), 0x0102_0304, &mut packet);
        assert_eq!(packet[..9], [5, 0, 0, 3, 1, 2, 3, 4, 0]);
        assert_eq!(parse_probe(&packet), Ok(0x0102_0304));
        assert_eq!(parse_probe(&packet[..31]), Err(Malformed::Truncated));
        assert_eq!(parse_probe(&emitted(&report())), Err(Malformed::Direction(Kind::Path)));
    }
}
