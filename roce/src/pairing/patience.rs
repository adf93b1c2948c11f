//! How long an answer may take.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Before the first answer: a thousand times what a NIC takes. A host with a software NIC may pause
/// for some 20 ms when its processors are busy, or it has many queue pairs to serve at a time.
const UNKNOWN: Duration = Duration::from_millis(50);
/// A host with a software NIC may be at something else for a time slice of its scheduler (4 ms at
/// 250 Hz).
const LEAST: Duration = Duration::from_millis(5);
/// No target's answer is waited for longer: the neighbours of a slow one would wait longer than the
/// NICs' ACK timeouts.
pub const MOST_PATIENCE: Duration = Duration::from_millis(200);
/// No question is repeated sooner.
const LEAST_REPEAT: Duration = Duration::from_micros(500);
/// A slowest answer counts for this long at least, and twice as long at most. So does what is
/// assumed before the first: an answer under way is still waited for as long as when it was asked
/// for.
const EPOCH: Duration = Duration::from_secs(60);

/// The slowest first answers of each target host, measured all the time.
///
/// Bound: `most` hosts. One more is not measured, and is waited for as an unknown one.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Patience {
    most: usize,
    hosts: BTreeMap<IpAddr, Slowest>,
}

#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Slowest {
    /// The slowest of this epoch, and of the one before.
    by_epoch: [Duration; 2],
    /// The slowest of this epoch to a question that was asked once. Of others it is not known which
    /// asking they answer.
    clear: Option<Duration>,
    #[serde_as(as = "snapshot::At")]
    since: Instant,
}

impl Patience {
    pub(super) fn new(most: usize) -> Patience {
        Patience { most, hosts: BTreeMap::new() }
    }

    /// A target at this host has answered after so long. `is_clear`: it was asked once.
    pub(super) fn note(&mut self, host: IpAddr, took: Duration, is_clear: bool, now: Instant) {
        if self.hosts.len() >= self.most && !self.hosts.contains_key(&host) {
            return;
        }
        let slowest = self.hosts.entry(host).or_insert(Slowest {
            by_epoch: [took, UNKNOWN / 2],
            clear: None,
            since: now,
        });
        if now.saturating_duration_since(slowest.since) >= EPOCH {
            let [last, _] = slowest.by_epoch;
            *slowest = Slowest { by_epoch: [took, last], clear: None, since: now };
        }
        let [last, _] = &mut slowest.by_epoch;
        *last = took.max(*last);
        if is_clear {
            slowest.clear = Some(slowest.clear.map_or(took, |before| before.max(took)));
        }
    }

    /// How long its answers to what was asked once have taken of late at most, doubled. A question
    /// that has none by then is likely lost. `None`: there were none.
    pub(super) fn usual(&self, host: IpAddr) -> Option<Duration> {
        let slowest = self.hosts.get(&host)?.clear?;
        Some((slowest * 2).max(LEAST_REPEAT))
    }

    /// How long an answer of this host's may take: twice as long as the slowest of late.
    pub(super) fn of(&self, host: IpAddr) -> Duration {
        let slowest = self.hosts.get(&host).map(|slowest| slowest.by_epoch.into_iter().max());
        slowest.flatten().map_or(UNKNOWN, |slowest| (slowest * 2).clamp(LEAST, MOST_PATIENCE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
    fn the_slowest_answer_of_late_counts_twice() {
        let host = IpAddr::from([10, 0, 0, 1]);
        let mut now = Instant::now();
        let mut patience = Patience::new(1);
        assert_eq!((patience.of(host), patience.usual(host)), (UNKNOWN, None));
        let millis = Duration::from_millis;
        for (took, expected) in [(30, 60), (1, 60), (40, 80), (1000, 200)] {
            patience.note(host, millis(took), took < 1000, now);
            assert_eq!(patience.of(host), millis(expected));
        }
        assert_eq!(patience.usual(host), Some(millis(80)), "the last had been asked twice");
        for expected in [200, 5] {
            now += EPOCH;
            patience.note(host, millis(1), true, now);
            assert_eq!(patience.of(host), millis(expected));
        }
        let other = IpAddr::from([10, 0, 0, 2]);
        patience.note(other, millis(1), true, now);
        assert_eq!(patience.of(other), UNKNOWN, "there is no room for it");
    }
}
