//! Figures read from a gateway at rest, and what follows from them.

use std::fmt;

/// Gateway A at rest, after a round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Resident bytes.
    pub(super) resident: u64,
    /// The most that were in the round.
    pub(super) peak: u64,
    /// Resident bytes of gateway B, which has just been started.
    pub(super) peer: u64,
    /// Open file descriptors.
    pub(super) files: usize,
    /// Flows opened since the start.
    pub(super) opened: u64,
    /// Flows of earlier sessions, whose requesters may still try.
    pub(super) remembered: u64,
}

impl Sample {
    pub(super) const HEADER: &str = "                  gateway a                               gateway b\n\
                                     \x20round  at rest [MiB]  peak [MiB]  files    flows  remembered  at rest [MiB]";
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resident, peak, peer, files, opened, remembered } = self;
        let [resident, peak, peer] = [resident, peak, peer].map(|bytes| mebibytes(*bytes));
        write!(f, "{resident:>14.1} {peak:>11.1} {files:>6} {opened:>8} {remembered:>11} {peer:>14.1}")
    }
}

/// The most of the second half of the rounds beside the most of the first, a quarter for warming up
/// left out.
///
/// What is compared is a maximum, at rest: an allocator keeps a part of what was needed at once, so
/// what is resident then rises to a level within some rounds, each of which needs as much as any
/// other, and stays; half of the rounds have seen that level as well as the other half. A leak goes
/// on: it grows by as much in the second half as in the first. [`MOST_GROWTH`] is what the maxima
/// of two halves without a leak may differ by, and so it says what is found: an hour's second half
/// has some hundred rounds, a minute's has three.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verdict {
    resident: [u64; 2],
    files: [usize; 2],
    /// In the second half.
    flows: u64,
    rounds: usize,
}

/// Bytes resident.
const MOST_GROWTH: u64 = 16 << 20;
/// A request to the admin listener may not have been closed yet.
const MORE_FILES: usize = 2;

impl Verdict {
    pub(super) fn of(samples: &[Sample]) -> Self {
        let warm = samples.get(samples.len().div_ceil(4)..).unwrap_or_default();
        let (first, second) = warm.split_at(warm.len() / 2);
        let resident = [first, second].map(|half| half.iter().map(|s| s.resident).max().unwrap_or(0));
        let files = [first, second].map(|half| half.iter().map(|s| s.files).max().unwrap_or(0));
        let opened = |half: &[Sample]| half.last().map_or(0, |sample| sample.opened);
        Self { resident, files, flows: opened(second).saturating_sub(opened(first)), rounds: second.len() }
    }

    pub(super) fn trouble(&self) -> Option<String> {
        let Self { resident: [before, after], files: [files, more], .. } = *self;
        if after > before + MOST_GROWTH {
            return Some("resident memory grows".to_owned());
        }
        (more > files + MORE_FILES).then(|| "file descriptors stay open".to_owned())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resident, files: [files, more], flows, rounds } = self;
        let [before, after] = resident.map(mebibytes);
        write!(
            f,
            "at rest, the most in the second half of the rounds beside that in the first (a quarter to warm up left out): {after:.1} MiB to \
             {before:.1} MiB, {more} to {files} files.\nAllowed: {:.0} MiB more, which over these {rounds} rounds is {} bytes for each of {flows} \
             flows, and {MORE_FILES} files.",
            mebibytes(MOST_GROWTH),
            MOST_GROWTH / (*flows).max(1),
        )
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Returns what a gateway that is to be empty holds, by its own account; a series that it does not
/// have speaks of nothing, and so counts as held.
pub(super) fn held(metrics: &str) -> String {
    const HELD: [&str; 7] = [
        "longhaul_flows",
        "longhaul_flows_unpaired",
        "longhaul_buffers",
        "longhaul_buffer_bytes",
        "longhaul_streams_draining",
        "longhaul_stream_backlog_bytes",
        "longhaul_stream_in_flight_bytes",
    ];
    let counts = HELD.into_iter().filter_map(|name| match sum(metrics, name) {
        Some(0) => None,
        Some(count) => Some(format!("{count} {name}")),
        None => Some(format!("an unknown number of {name}")),
    });
    counts.collect::<Vec<String>>().join(", ")
}

/// Returns the sum of all series of that name, if there is one.
pub(super) fn sum(metrics: &str, name: &str) -> Option<u64> {
    let values = metrics.lines().filter_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once(' ')?.1;
        value.parse::<f64>().ok()
    });
    values.map(|value| value as u64).reduce(|sum, value| sum.saturating_add(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(resident: u64, files: usize) -> Sample {
        Sample { resident, peak: 0, peer: 0, files, opened: 0, remembered: 0 }
    }

    #[test]
    fn a_level_is_no_growth_and_a_leak_is() {
        let of = |resident: fn(u64) -> u64, files: fn(u64) -> usize| {
            let samples: Vec<Sample> = (0..16).map(|round| sample(resident(round), files(round))).collect();
            Verdict::of(&samples).trouble()
        };
        // It rises while it warms up, and then goes up and down.
        assert_eq!(of(|round| (20 << 20) + (round.min(3) << 22) + ((round % 3) << 19), |_| 20), None);
        assert_eq!(of(|round| (20 << 20) + (round << 22), |_| 20).as_deref(), Some("resident memory grows"));
        let leaky = of(|_| 1, |round| 20 + round as usize);
        assert_eq!(leaky.as_deref(), Some("file descriptors stay open"));
    }

    #[test]
    fn series_of_one_name_are_added() {
        let metrics =
            "longhaul_flows{side=\"near\"} 3\nlonghaul_flows{side=\"far\"} 4\nlonghaul_flows_unpaired{} 0\n";
        assert_eq!((sum(metrics, "longhaul_flows"), sum(metrics, "longhaul_flow")), (Some(7), None));
        let held = held(metrics);
        assert!(held.starts_with("7 longhaul_flows, an unknown number of longhaul_buffers, "), "{held}");
        assert!(!held.contains("unpaired"), "{held}");
    }
}
