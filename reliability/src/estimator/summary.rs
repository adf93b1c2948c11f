//! The estimate of a path, in plain numbers.

use std::time::Duration;

use super::Range;
use super::sizes::SIZES;

/// A path at one time, in the direction to the peer. Ranges hold the truth in 19 of 20 cases.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Summary {
    /// Share of packets lost since the path last changed. `likely` is 0 where nothing was lost:
    /// `high` says how little that means.
    pub drop: Range,
    /// The same over all of the memory, older counts less, whatever changed: with what comes and
    /// goes.
    pub drop_long_run: Range,
    /// Mean run of losses in packets; `None` while none was seen.
    pub burst: Option<Range>,
    /// Mean arrivals between two runs of losses; `None` while none was seen.
    pub gap: Option<f64>,
    /// The longest run of losses of the session.
    pub longest_burst: u32,
    /// Share of the losses in `drop` that came with an inflated round-trip time or with marks of
    /// congestion.
    pub congestive: f64,
    /// Share of packets lost by their size (see [`super::SIZE_BOUNDS`]), over the session.
    pub drop_by_size: [Range; SIZES],
    /// Smallest round-trip time of the last five to ten minutes, smoothed, and variation (RFC
    /// 6298).
    pub rtt: Rtt,
    /// The rate of arrivals in bit/s, over about a second. It is not what could arrive.
    pub delivered: f64,
    /// The most that arrived in a second of the last half minute to minute.
    pub delivered_peak: f64,
    /// Packets out of order.
    pub reordering: Reordering,
    /// Share of packets that came twice.
    pub duplicates: f64,
    /// Share of ECN-capable packets that were marked Congestion Experienced.
    pub ce: f64,
    /// Packets that `drop` rests on.
    pub packets: f64,
    /// Packet numbers used up here for datagrams that never left. They count as no loss.
    pub unsent: u64,
    /// Packets of the session that the peer's machine dropped for want of buffers. They count as no
    /// loss either.
    pub overrun: u64,
    /// How often the path was found to have changed.
    pub changes: u64,
    /// Since the last report; `None` before the first.
    pub age: Option<Duration>,
}

/// Round-trip times; the hint while there is no measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rtt {
    /// The smallest of late.
    pub minimum: Duration,
    /// SRTT of RFC 6298.
    pub smoothed: Duration,
    /// RTTVAR of RFC 6298.
    pub variation: Duration,
    /// Measurements taken.
    pub samples: u64,
}

/// Packets that arrived after one sent later (RFC 4737). The extents are of the last half minute to
/// minute.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Reordering {
    /// Their share since the path last changed.
    pub share: f64,
    /// How far below the highest number seen: 99 of 100, in packets.
    pub packets_p99: u32,
    /// The furthest.
    pub packets_max: u32,
    /// How long after they were noticed to be missing: 99 of 100.
    pub time_p99: Duration,
    /// The latest.
    pub time_max: Duration,
}

impl Rtt {
    /// Returns the slowest of several ways, measured as often as the one measured least.
    fn slowest(ways: &(impl Iterator<Item = Rtt> + Clone)) -> Rtt {
        let longest = |of: fn(Rtt) -> Duration| ways.clone().map(of).max().unwrap_or_default();
        Rtt {
            minimum: longest(|way| way.minimum),
            smoothed: longest(|way| way.smoothed),
            variation: longest(|way| way.variation),
            samples: ways.clone().map(|way| way.samples).min().unwrap_or_default(),
        }
    }
}

impl Reordering {
    /// Returns the furthest extents of several ways, without a share.
    fn furthest(ways: &(impl Iterator<Item = Reordering> + Clone)) -> Reordering {
        let packets = |of: fn(Reordering) -> u32| ways.clone().map(of).max().unwrap_or_default();
        let time = |of: fn(Reordering) -> Duration| ways.clone().map(of).max().unwrap_or_default();
        Reordering {
            share: 0.0,
            packets_p99: packets(|way| way.packets_p99),
            packets_max: packets(|way| way.packets_max),
            time_p99: time(|way| way.time_p99),
            time_max: time(|way| way.time_max),
        }
    }
}

impl Summary {
    /// Combines several ways that packets are spread over, each weighted by its part of the
    /// packets. The round-trip time is the slowest way's: a message that is spread waits for it. A
    /// way without a part counts only for what adds up. Returns `None` for no ways.
    pub fn together(ways: &[(f64, Self)]) -> Option<Self> {
        let used = || ways.iter().copied().filter(|(part, _)| *part > 0.0);
        let (_, first) = used().next().or_else(|| ways.first().copied())?;
        let apart = |(unsent, overrun, changes): (u64, u64, u64), (_, way): (f64, Self)| {
            (unsent + way.unsent, overrun + way.overrun, changes + way.changes)
        };
        let (unsent, overrun, changes) = ways.iter().copied().fold((0, 0, 0), apart);
        let whole = Self { unsent, overrun, changes, ..first };
        if used().count() <= 1 {
            return Some(whole);
        }
        let all: f64 = used().map(|(part, _)| part).sum();
        let mean = |of: &dyn Fn(&Self) -> f64| used().map(|(part, way)| part * of(&way)).sum::<f64>() / all;
        let sum = |of: &dyn Fn(&Self) -> f64| used().map(|(_, way)| of(&way)).sum::<f64>();
        let range = |of: &dyn Fn(&Self) -> Range| Range {
            low: mean(&|way| of(way).low),
            likely: mean(&|way| of(way).likely),
            high: mean(&|way| of(way).high),
        };
        let lost = |way: &Self| way.drop.likely;
        // By where the losses are.
        let of_losses = |of: &dyn Fn(&Self) -> f64| {
            let losses = mean(&lost);
            if losses > 0.0 { mean(&|way| lost(way) * of(way)) / losses } else { 0.0 }
        };
        let burst = |of: fn(&Range) -> f64| of_losses(&|way| way.burst.as_ref().map_or(1.0, of));
        Some(Self {
            drop: range(&|way| way.drop),
            drop_long_run: range(&|way| way.drop_long_run),
            burst: (mean(&lost) > 0.0).then(|| Range {
                low: burst(|range| range.low),
                likely: burst(|range| range.likely),
                high: burst(|range| range.high),
            }),
            gap: used().filter_map(|(_, way)| way.gap).min_by(f64::total_cmp),
            longest_burst: used().map(|(_, way)| way.longest_burst).max().unwrap_or_default(),
            congestive: of_losses(&|way| way.congestive),
            drop_by_size: std::array::from_fn(|size| {
                range(&|way| way.drop_by_size.get(size).copied().unwrap_or_default())
            }),
            rtt: Rtt::slowest(&used().map(|(_, way)| way.rtt)),
            delivered: sum(&|way| way.delivered),
            delivered_peak: sum(&|way| way.delivered_peak),
            reordering: Reordering {
                share: mean(&|way| way.reordering.share),
                ..Reordering::furthest(&used().map(|(_, way)| way.reordering))
            },
            duplicates: mean(&|way| way.duplicates),
            ce: mean(&|way| way.ce),
            packets: sum(&|way| way.packets),
            age: used().filter_map(|(_, way)| way.age).min(),
            ..whole
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(drop: f64, burst: Option<f64>, rtt: u64) -> Summary {
        let range = |likely: f64| Range { low: likely / 2.0, likely, high: likely * 2.0 };
        Summary {
            drop: range(drop),
            burst: burst.map(range),
            rtt: Rtt { smoothed: Duration::from_millis(rtt), samples: 9, ..Rtt::default() },
            delivered: 1e6,
            packets: 1000.0,
            overrun: 3,
            age: Some(Duration::from_millis(rtt)),
            ..Summary::default()
        }
    }

    #[test]
    fn packets_meet_the_losses_of_the_ways_they_take() {
        let ways = [(0.75, way(0.01, Some(2.0), 20)), (0.25, way(0.05, Some(4.0), 30))];
        let all = Summary::together(&ways).unwrap();
        assert!((all.drop.likely - 0.02).abs() < 1e-12 && (all.drop.high - 0.04).abs() < 1e-12, "{all:?}");
        // 0.0075 in runs of 2, 0.0125 in runs of 4.
        assert!((all.burst.unwrap().likely - 3.25).abs() < 1e-12, "{all:?}");
        assert_eq!((all.delivered, all.packets, all.overrun), (2e6, 2000.0, 6));
        assert_eq!(all.rtt.smoothed, Duration::from_millis(30), "messages wait for the slowest");
        assert_eq!(all.age, Some(Duration::from_millis(20)));
    }

    #[test]
    fn a_way_that_takes_nothing_counts_for_nothing() {
        let (good, bad) = (way(0.01, Some(2.0), 20), way(0.9, Some(9.0), 500));
        let all = Summary::together(&[(1.0, good), (0.0, bad)]).unwrap();
        assert_eq!(all, Summary { overrun: 6, ..good });
    }

    #[test]
    fn one_alone_is_itself() {
        let alone = way(0.01, None, 20);
        assert_eq!(Summary::together(&[(1.0, alone)]), Some(alone));
        assert_eq!(Summary::together(&[]), None);
    }
}
