//! The machine's clock, where somebody sets it while the gateway runs.

use std::time::{Duration, Instant};

use reliability::human;
use rustls_pki_types::UnixTime;
use session::identity::Date;

use crate::seldom::{A_MINUTE, Seldom};

/// A clock that was set by less is not told of. A leap second is less.
const LEAST: Duration = Duration::from_secs(2);

/// Between two readings of a clock that no pause came between.
const AT_ONCE: u64 = 100;

/// Reads the clock, and the milliseconds since the machine's start. `None`: something came between
/// the two, such as a machine that was stopped, so that their difference says nothing.
pub(super) fn read(
    mut uptime: impl FnMut() -> u64,
    clock: impl FnOnce() -> Duration,
) -> Option<(Duration, u64)> {
    let before = uptime();
    let clock = clock();
    let after = uptime();
    (after.saturating_sub(before) <= AT_ONCE).then_some((clock, after))
}

/// Compares the clock with the time since the machine's start. Both go equally fast, so that their
/// difference changes only when the clock is set.
#[derive(Debug)]
pub(super) struct Clock {
    /// The difference that was told last.
    told: Option<i128>,
    /// Bounds how often it is told.
    again: Seldom,
    /// The difference at the last look.
    seen: Option<i128>,
}

/// The outcome of a look at the clock.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// It was set since the last look.
    pub(super) is_set: bool,
    /// A line about it, if one is due.
    pub(super) text: Option<String>,
}

impl Default for Clock {
    fn default() -> Self {
        Self { told: None, again: Seldom::new(A_MINUTE), seen: None }
    }
}

impl Clock {
    /// `clock`: since 1970. `uptime`: since the machine's start, in milliseconds.
    pub(super) fn observe(&mut self, clock: Duration, uptime: u64, now: Instant) -> Seen {
        let difference = clock.as_millis().cast_signed() - i128::from(uptime);
        let known = *self.told.get_or_insert(difference);
        let before = self.seen.replace(difference).unwrap_or(difference);
        let is_set = is_step(difference - before);
        let text = (is_step(difference - known) && self.again.tell(now)).then(|| {
            self.told = Some(difference);
            text(difference - known, clock)
        });
        Seen { is_set, text }
    }
}

fn is_step(milliseconds: i128) -> bool {
    milliseconds.unsigned_abs() >= LEAST.as_millis()
}

fn text(step: i128, clock: Duration) -> String {
    let way = if step > 0 { "forward" } else { "back" };
    let span = human::span((step.unsigned_abs() as f64 / 1e3).round());
    let date = Date(UnixTime::since_unix_epoch(clock));
    format!(
        "this machine's clock was set {way} by {span}, and says {date}: sessions go on, and certificates of new \
         ones are judged by it; if it is wrong, set it (`timedatectl`)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    /// Time passes alike for both clocks, and before each look one is set by so many seconds.
    fn told(steps: &[(u64, i64)]) -> (usize, Vec<String>) {
        let (start, mut clock) = (Instant::now(), Clock::default());
        let mut ahead = 1_700_000_000_i64;
        let mut sets = 0;
        let mut lines = Vec::new();
        for (after, step) in steps {
            ahead += step;
            let wall = Duration::from_secs((ahead + *after as i64) as u64);
            let seen = clock.observe(wall, after * 1000, start + Duration::from_secs(*after));
            sets += usize::from(seen.is_set);
            lines.extend(seen.text);
        }
        (sets, lines)
    }

    #[test]
    fn a_clock_that_is_set_is_told_of_once() {
        let (sets, lines) = told(&[(0, 0), (1, 0), (2, 3600), (3, 0), (80, -7200), (81, 0)]);
        assert_eq!(sets, 2);
        assert!(
            lines[0].contains("was set forward by 1 h") && lines[0].contains("2023-11-14T23:"),
            "{lines:?}"
        );
        assert!(lines[1].contains("was set back by 2 h") && lines.len() == 2, "{lines:?}");
    }

    #[test]
    fn a_clock_that_keeps_being_set_fills_no_log() {
        let flapping: Vec<_> =
            (0..HOUR).map(|second| (second, if second % 2 == 0 { 86_400 } else { -86_400 })).collect();
        let (sets, lines) = told(&flapping);
        assert!(sets as u64 >= HOUR - 1 && lines.len() <= 60, "{sets} {}", lines.len());
        // Where it stands at last is told when a line is due.
        let (_, lines) = told(&[(0, 0), (1, 3600), (2, -1800), (30, 0), (61, 0), (62, 0)]);
        assert!(lines.len() == 2 && lines[1].contains("set back by"), "{lines:?}");
    }

    #[test]
    fn a_pause_between_the_clocks_is_no_set_clock() {
        let reading = |pause: u64| {
            let mut uptimes = [5_000, 5_000 + pause].into_iter();
            read(|| uptimes.next().unwrap(), || Duration::from_secs(9))
        };
        assert_eq!(reading(0), Some((Duration::from_secs(9), 5_000)));
        assert_eq!(reading(100), Some((Duration::from_secs(9), 5_100)));
        assert_eq!(reading(101), None);
        assert_eq!(reading(10_000), None);
    }

    #[test]
    fn a_leap_second_is_nothing() {
        assert_eq!(told(&[(0, 0), (1, -1), (2, 0)]), (0, Vec::new()));
    }
}
