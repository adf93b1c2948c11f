//! A recorded loss trace, read from its file.

use std::path::Path;

use linksim::transfer::Run;

use super::{SimulateError, file};

/// First line of a trace.
const MAGIC: &str = "longhaul-trace 1";
/// Lines that only describe it.
const ABOUT: [&str; 2] = ["link", "start"];
/// Packets of which nothing is known.
const BREAK: &str = "break";

/// The runs of a trace file: lines `arrived lost` after a header. Where the recording has a gap,
/// its two sides are put together.
pub(super) fn read(path: &Path) -> Result<Vec<Run>, SimulateError> {
    let bytes = std::fs::read(path).map_err(|error| file(path, format!("cannot be read: {error}")))?;
    let text = config::utf8(bytes).map_err(|reason| file(path, reason))?;
    let runs = runs(&text).map_err(|reason| file(path, reason))?;
    match arriving(&runs) {
        Ok(()) => Ok(runs),
        Err(reason) => Err(file(path, reason)),
    }
}

/// Refuses a course of losses that no message could cross.
fn arriving(runs: &[Run]) -> Result<(), String> {
    let count = |of: fn(&Run) -> u64| runs.iter().map(of).fold(0, u64::saturating_add);
    match (count(|run| run.0), count(|run| run.1)) {
        (0, 0) => Err("it tells of no packets".to_owned()),
        (0, lost) => Err(format!("all of its {lost} packets are lost: nothing would ever arrive")),
        _ => Ok(()),
    }
}

fn runs(text: &str) -> Result<Vec<Run>, String> {
    let mut runs = Vec::new();
    let mut begun = false;
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        let word = line.split(' ').next().unwrap_or_default();
        if line.is_empty() || line.starts_with('#') || (begun && (ABOUT.contains(&word) || line == BREAK)) {
            continue;
        }
        if !begun {
            begun = line == MAGIC;
            if begun {
                continue;
            }
            return Err(format!("line {number}: `{line}` is not `{MAGIC}`"));
        }
        let counts = line.split_once(' ').and_then(|(a, b)| a.parse().ok().zip(b.trim().parse().ok()));
        runs.push(
            counts.ok_or(format!("line {number}: `{line}` is not `ARRIVED LOST`, two counts of packets"))?,
        );
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_follow_a_header() {
        let text = "longhaul-trace 1\nlink a > b\nstart 1732212345.250\n# note\n1234 1\n88 3\nbreak\n400 0\n";
        assert_eq!(runs(text), Ok(vec![(1234, 1), (88, 3), (400, 0)]));
        for (text, wrong) in [
            ("5 1\n", "line 1"),
            ("longhaul-trace 1\n5 1\n5\n", "line 3"),
            ("longhaul-trace 1\n5 -1", "line 2"),
        ] {
            let reason = runs(text).unwrap_err();
            assert!(reason.starts_with(wrong), "{reason}");
        }
    }

    #[test]
    fn losses_alone_are_refused() {
        assert_eq!(arriving(&[(0, 3), (1, 0)]), Ok(()));
        assert_eq!(arriving(&[(0, 0)]), Err("it tells of no packets".to_owned()));
        let told = "all of its 7 packets are lost: nothing would ever arrive";
        assert_eq!(arriving(&[(0, 3), (0, 4)]), Err(told.to_owned()));
    }
}
