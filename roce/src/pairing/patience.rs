//! How long an answer may take.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Before the first answer: a thousand times what a NIC takes.
const UNKNOWN: Duration = Duration::from_millis(50);
/// The slowest answer of a host is taken to be no faster than this in its first epoch. One with a
/// software NIC answers as slowly when its processors are busy, or many queue pairs ask.
const ASSUMED: Duration = Duration::from_millis(10);
/// A host with a software NIC may be at something else for a time slice of its scheduler (4 ms at
/// 250 Hz).
const LEAST: Duration = Duration::from_millis(5);
/// No target's answer is waited for longer: the neighbours of a slow one would wait longer than the
/// NICs' ACK timeouts.
pub const MOST_PATIENCE: Duration = Duration::from_millis(200);
/// No question is repeated sooner.
const LEAST_REPEAT: Duration = Duration::from_micros(500);
/// A slowest answer counts for this long at least, and twice as long at most.
const EPOCH: Duration = Duration::from_secs(60);

/// The slowest first answers of each target host, measured all the time.
///
/// Bound: `most` hosts. One of which nothing counts any more gives way to another. Where there is
/// none, one more host is not measured, and is waited for as an unknown one: to forget what counts
/// of another host would be to wait too short a time for its answers.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Patience {
    most: usize,
    hosts: BTreeMap<IpAddr, Slowest>,
    /// The hosts, in the order in which their epochs began.
    #[serde(skip)]
    order: BTreeSet<(Instant, IpAddr)>,
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
    /// Its answers were waited for so long before, and until then still are.
    #[serde(skip)]
    before: Option<(Duration, Instant)>,
}

impl Slowest {
    fn patience(&self) -> Duration {
        let slowest = self.by_epoch.into_iter().fold(Duration::ZERO, Duration::max);
        (slowest * 2).clamp(LEAST, MOST_PATIENCE)
    }
}

impl Patience {
    pub(super) fn new(most: usize) -> Patience {
        Patience { most, hosts: BTreeMap::new(), order: BTreeSet::new() }
    }

    /// Puts the hosts of a snapshot in order.
    pub(super) fn order(&mut self) {
        self.order = self.hosts.iter().map(|(host, slowest)| (slowest.since, *host)).collect();
    }

    /// Hosts that it times at most.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Makes room for one more host.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.hosts.len() < self.most {
            return true;
        }
        let is_over = |(since, _): &(Instant, IpAddr)| now.saturating_duration_since(*since) >= EPOCH * 2;
        let Some((since, host)) = self.order.first().copied().filter(is_over) else { return false };
        self.order.remove(&(since, host));
        self.hosts.remove(&host).is_some()
    }

    /// A target at this host has answered after so long. `is_clear`: it was asked once.
    pub(super) fn note(&mut self, host: IpAddr, took: Duration, is_clear: bool, now: Instant) {
        if !self.hosts.contains_key(&host) {
            if !self.make_room(now) {
                return;
            }
            self.order.insert((now, host));
        }
        let waited = self.hosts.get(&host).map_or(UNKNOWN, Slowest::patience);
        let slowest = self.hosts.entry(host).or_insert(Slowest {
            by_epoch: [took, ASSUMED],
            clear: None,
            since: now,
            before: None,
        });
        if now.saturating_duration_since(slowest.since) >= EPOCH {
            let [last, _] = slowest.by_epoch;
            self.order.remove(&(slowest.since, host));
            self.order.insert((now, host));
            *slowest = Slowest { by_epoch: [took, last], clear: None, since: now, before: slowest.before };
        }
        let [last, _] = &mut slowest.by_epoch;
        *last = took.max(*last);
        if slowest.patience() < waited {
            slowest.before = Some((waited, now + waited));
        }
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

    /// How long an answer of this host's may take: twice as long as the slowest of late. One that
    /// is under way is still waited for as long as when it was asked for.
    pub(super) fn of(&self, host: IpAddr, now: Instant) -> Duration {
        let Some(slowest) = self.hosts.get(&host) else { return UNKNOWN };
        let before = slowest.before.filter(|(_, until)| now < *until).map_or(Duration::ZERO, |(was, _)| was);
        slowest.patience().max(before)
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
        assert_eq!((patience.of(host, now), patience.usual(host)), (UNKNOWN, None));
        let millis = Duration::from_millis;
        for (took, expected) in [(30, 60), (1, 60), (40, 80), (1000, 200)] {
            patience.note(host, millis(took), took < 1000, now);
            assert_eq!(patience.of(host, now), millis(expected));
        }
        assert_eq!(patience.usual(host), Some(millis(80)), "the last had been asked twice");
        for expected in [200, 5] {
            now += EPOCH;
            patience.note(host, millis(1), true, now);
            assert_eq!(patience.of(host, now), millis(200), "what is under way is waited for");
            now += millis(200);
            assert_eq!(patience.of(host, now), millis(expected));
        }
        let other = IpAddr::from([10, 0, 0, 2]);
        patience.note(other, millis(1), true, now);
        assert_eq!(patience.of(other, now), UNKNOWN, "there is no room for it");
        now += EPOCH * 2 - millis(201);
        patience.note(other, millis(1), true, now);
        assert_eq!((patience.of(other, now), patience.of(host, now)), (UNKNOWN, LEAST), "it still counts");
        now += millis(1);
        patience.note(other, millis(40), true, now);
        assert_eq!(patience.of(other, now), millis(80));
        assert_eq!(patience.of(host, now), UNKNOWN, "nothing does any more");
        patience.order.clear();
        patience.order();
        assert_eq!(patience.order.len(), 1);
    }

    /// A fast first answer shortens what is asked from then on.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
    fn what_was_asked_before_the_first_answer_is_waited_for_as_long_as_it_was_to_be() {
        let (host, now) = (IpAddr::from([10, 0, 0, 1]), Instant::now());
        let mut patience = Patience::new(1);
        let milli = Duration::from_millis(1);
        for after in 0..49 {
            patience.note(host, milli, true, now + milli * after);
            assert_eq!(patience.of(host, now + milli * after), UNKNOWN);
        }
        assert_eq!(patience.of(host, now + UNKNOWN), 2 * ASSUMED);
    }
}
