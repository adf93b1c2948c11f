//! Judges from authenticated data whether the data path to the peer works, each way by itself.
//!
//! The control connection has a port of its own, so it says nothing of the bulk port. What counts
//! here is bulk data that opened under the session's keys, and the peer's reports on ours.
//!
//! [`Liveness`] does no I/O and has no clock: [`Liveness::observe`] is told what was counted.

use std::time::{Duration, Instant};

/// How one way over the long link stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// There is no session, or nothing yet that would show.
    #[default]
    Unknown,
    /// Data arrives.
    Alive,
    /// Nothing has arrived for the patience, although something should have.
    Silent,
}

impl Way {
    /// As /status spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Alive => "alive",
            Self::Silent => "silent",
        }
    }
}

/// Both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataPath {
    /// The way of this gateway's data.
    pub to_peer: Way,
    /// The way of the peer's data.
    pub from_peer: Way,
}

impl DataPath {
    /// Returns true if one of the ways is known to be dead.
    pub fn is_dead(self) -> bool {
        [self.to_peer, self.from_peer].contains(&Way::Silent)
    }
}

/// Reports that seem to be closer than this are one.
const SAME_REPORT: Duration = Duration::from_millis(300);

/// Counts until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Bulk datagrams sent.
    pub sent: u64,
    /// Bulk datagrams from the peer that were authentic and new.
    pub opened: u64,
    /// Time since the peer last reported on what it receives, if it has in this session.
    pub report_age: Option<Duration>,
}

/// Watches one session after the other.
#[derive(Debug)]
pub struct Liveness {
    patience: Duration,
    watch: Option<Watch>,
    path: DataPath,
    heard: Heard,
}

/// When each way of the session's data path last showed that it works; at first, when it had to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The peer's last report on what this gateway sends.
    pub to_peer: Option<Instant>,
    /// The last datagrams of the peer's.
    pub from_peer: Option<Instant>,
}

/// Knowledge of the session that is up.
#[derive(Debug)]
struct Watch {
    last: Facts,
    /// When the first datagram left that nothing has followed from the peer.
    unanswered: Option<Instant>,
    /// When the first datagram left that no report has followed.
    unreported: Option<Instant>,
    /// When the peer's last report came.
    reported: Option<Instant>,
}

impl Liveness {
    /// Judges a way silent after this time.
    pub fn new(patience: Duration) -> Self {
        Self { patience, watch: None, path: DataPath::default(), heard: Heard::default() }
    }

    /// Returns how the ways stand.
    pub fn path(&self) -> DataPath {
        self.path
    }

    /// Returns since when nothing has crossed, if a way is dead: as long as the way that has been
    /// silent for longest.
    pub fn dead_since(&self) -> Option<Instant> {
        let of = |way, heard: Option<Instant>| heard.filter(|_| way == Way::Silent);
        let (to_peer, from_peer) =
            (of(self.path.to_peer, self.heard.to_peer), of(self.path.from_peer, self.heard.from_peer));
        [to_peer, from_peer].into_iter().flatten().min()
    }

    /// Takes the counts, about every second. `facts` is `None` without a session. Returns true if
    /// the judgement has changed.
    pub fn observe(&mut self, facts: Option<Facts>, now: Instant) -> bool {
        let before = self.path;
        let Some(facts) = facts else {
            (self.watch, self.path, self.heard) = (None, DataPath::default(), Heard::default());
            return before != self.path;
        };
        let watch = self.watch.get_or_insert(Watch {
            last: facts,
            unanswered: None,
            unreported: None,
            reported: None,
        });
        let has_sent = facts.sent > watch.last.sent;
        let waits = |since: Option<Instant>| {
            since.is_some_and(|since| now.saturating_duration_since(since) > self.patience)
        };
        if facts.opened > watch.last.opened {
            watch.unanswered = None;
            self.path.from_peer = Way::Alive;
            self.heard.from_peer = Some(now);
        } else if has_sent {
            watch.unanswered.get_or_insert(now);
            self.heard.from_peer.get_or_insert(now);
        }
        if waits(watch.unanswered) {
            self.path.from_peer = Way::Silent;
        }
        let reported = facts.report_age.and_then(|age| now.checked_sub(age));
        // Ages are told in steps, so the same report seems to come a little earlier or later.
        let is_new = |at: &Instant| watch.reported.is_none_or(|known| *at > known + SAME_REPORT);
        if let Some(at) = reported.filter(is_new) {
            (watch.reported, watch.unreported) = (Some(at), None);
            self.path.to_peer = Way::Alive;
            self.heard.to_peer = Some(at);
        } else if has_sent {
            watch.unreported.get_or_insert(now);
            self.heard.to_peer.get_or_insert(now);
        }
        if waits(watch.unreported) {
            // Reports come by the other way: if that is dead, they say nothing of this one.
            self.path.to_peer = match self.path.from_peer {
                Way::Silent => Way::Unknown,
                Way::Alive | Way::Unknown if watch.unanswered.is_none() => Way::Silent,
                // Nothing comes just now: which way that is will show.
                Way::Alive | Way::Unknown => self.path.to_peer,
            };
        }
        watch.last = facts;
        before != self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    /// Observes a session second by second; `to` and `from` say if a way works in that second.
    fn run(seconds: &[(bool, bool)]) -> Vec<DataPath> {
        let start = Instant::now();
        let mut liveness = Liveness::new(PATIENCE);
        let (mut facts, mut reported) = (Facts::default(), None);
        let second = |(second, (to, from)): (u32, &(bool, bool))| {
            let now = start + Duration::from_secs(1) * second;
            facts.sent += 4;
            facts.opened += if *from { 4 } else { 0 };
            if *to && *from {
                reported = Some(now);
            }
            facts.report_age = reported.map(|at| now - at);
            liveness.observe(Some(facts), now);
            liveness.path()
        };
        (0..).zip(seconds).map(second).collect()
    }

    fn path(to_peer: Way, from_peer: Way) -> DataPath {
        DataPath { to_peer, from_peer }
    }

    #[test]
    fn a_path_that_works_is_alive() {
        let paths = run(&[(true, true); 20]);
        assert_eq!(paths[1], path(Way::Alive, Way::Alive));
        assert!(paths.iter().all(|path| !path.is_dead()));
    }

    #[test]
    fn a_blocked_bulk_port_shows_though_control_is_up() {
        // From the start, and later.
        let paths = run(&[(false, false); 20]);
        assert_eq!(paths[3], DataPath::default());
        assert_eq!(paths[19], path(Way::Unknown, Way::Silent));
        let later = [[(true, true); 10], [(false, false); 10]].concat();
        let paths = run(&later);
        assert_eq!(paths[12], path(Way::Alive, Way::Alive));
        assert!(paths[19].is_dead() && paths[19].from_peer == Way::Silent);
        // And it comes back.
        let back = [later, vec![(true, true); 3]].concat();
        assert_eq!(run(&back)[22], path(Way::Alive, Way::Alive));
    }

    #[test]
    fn one_way_alone_is_told_from_the_other() {
        let paths = run(&[[(true, true); 5], [(false, true); 5]].concat());
        assert!(!paths.last().unwrap().is_dead(), "five seconds are patience");
        let mut seconds = vec![(true, true); 5];
        seconds.extend([(false, true); 15]);
        assert_eq!(run(&seconds).last(), Some(&path(Way::Silent, Way::Alive)));
        let mut seconds = vec![(true, true); 5];
        seconds.extend([(true, false); 20]);
        assert_eq!(run(&seconds).last(), Some(&path(Way::Unknown, Way::Silent)));
    }

    /// Whoever reads "blocked for" looks for what happened then.
    #[test]
    fn a_dead_way_is_found_within_its_patience_and_dated_by_what_was_heard_last() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        for is_one_way in [true, false] {
            let mut liveness = Liveness::new(PATIENCE);
            let mut facts = Facts::default();
            let mut dead = None;
            for second in 0..30 {
                facts.sent += 4;
                facts.opened += if second <= 10 || is_one_way { 4 } else { 0 };
                // Stored by a worker up to a tenth of a second ago.
                let age = Duration::from_millis(100 * (second % 2));
                facts.report_age = Some(at(second) - at(second.min(10)) + age);
                liveness.observe(Some(facts), at(second));
                if liveness.path().is_dead() && dead.is_none() {
                    dead = Some(second);
                }
                assert!(liveness.path().is_dead() || liveness.dead_since().is_none());
            }
            let dead = dead.expect("the way is dead");
            assert!(dead <= 17, "one way {is_one_way}: found {} s later", dead - 10);
            let since = liveness.dead_since().expect("a time");
            assert!(since + Duration::from_secs(1) >= at(10) && since <= at(11), "one way {is_one_way}");
        }
    }

    #[test]
    fn nothing_sent_and_nothing_heard_proves_nothing() {
        let start = Instant::now();
        let mut liveness = Liveness::new(PATIENCE);
        for second in 0..100 {
            liveness.observe(Some(Facts::default()), start + Duration::from_secs(second));
        }
        assert_eq!(liveness.path(), DataPath::default());
    }

    #[test]
    fn without_a_session_nothing_is_known() {
        let start = Instant::now();
        let mut liveness = Liveness::new(PATIENCE);
        let facts = |sent| Facts { sent, ..Facts::default() };
        for second in 0..20 {
            liveness.observe(Some(facts(second)), start + Duration::from_secs(second));
        }
        assert!(liveness.path().is_dead());
        assert!(liveness.observe(None, start + PATIENCE * 5));
        assert_eq!(liveness.path(), DataPath::default());
        assert!(!liveness.observe(None, start + PATIENCE * 6));
    }
}
