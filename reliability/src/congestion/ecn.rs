//! ECN validation of one lane (RFC 9000, 13.4.2 and A.4).

use std::time::{Duration, Instant};

/// Shortest silence after which marked packets count as dropped by the path.
const SILENCE: Duration = Duration::from_secs(1);
/// The same in round trips.
const ROUND_TRIPS: u32 = 4;
/// Packets that must be lost in a row besides (RFC 9000, A.4).
const LOST: u32 = 10;

/// How a lane stands with ECN-capable packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EcnState {
    /// Packets are marked, and none has been reported with its mark.
    Testing,
    /// Packets are marked, and arrive so.
    Capable,
    /// Marked packets stopped arriving. Packets are not marked until the path proves to be there.
    Suspended,
    /// Marked packets do not arrive. No packet is marked in this session.
    Failed,
}

/// As [`EcnState`], with the reason why packets are not marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Testing,
    Capable,
    /// Silence before any mark was known to arrive.
    Doubted,
    /// Silence after that.
    Suspended,
    Failed,
}

/// Decides whether the packets of a lane are ECN-capable.
///
/// A path that drops ECN-capable packets looks like one that is cut. So marking stops after a
/// silence. If what is not marked arrives then, marks are tried once more. Where none was ever
/// known to arrive, that is so only if the silence went on: the path was cut.
#[derive(Debug)]
pub struct EcnValidation {
    state: State,
    rtt: Duration,
    /// When the first packet left that nothing reported has followed, and how many since.
    unheard: Option<(Instant, u32)>,
    /// When the last packet left.
    last: Option<Instant>,
    /// Packets that arrived, and those with a mark, as reported last.
    arrived: u64,
    ect: u64,
}

impl EcnValidation {
    /// Begins to mark, on a path whose round trip is about this.
    #[must_use]
    pub fn new(rtt: Duration) -> Self {
        Self { state: State::Testing, rtt, unheard: None, last: None, arrived: 0, ect: 0 }
    }

    /// Returns where it stands.
    #[must_use]
    pub fn state(&self) -> EcnState {
        match self.state {
            State::Testing => EcnState::Testing,
            State::Capable => EcnState::Capable,
            State::Doubted | State::Suspended => EcnState::Suspended,
            State::Failed => EcnState::Failed,
        }
    }

    /// Returns true if packets are to be ECN-capable.
    #[must_use]
    pub fn marks(&self) -> bool {
        matches!(self.state, State::Testing | State::Capable)
    }

    /// A packet leaves that the peer reports on.
    pub fn sent(&mut self, now: Instant) {
        self.last = Some(now);
        let (_, packets) = self.unheard.get_or_insert((now, 0));
        *packets = packets.saturating_add(1);
        if *packets < LOST || !self.is_silent() {
            return;
        }
        match self.state {
            State::Testing => self.enter(State::Doubted),
            State::Capable => self.enter(State::Suspended),
            State::Doubted | State::Suspended | State::Failed => {}
        }
    }

    /// Returns true if no report has followed what was sent for so long.
    fn is_silent(&self) -> bool {
        let silence = SILENCE.max(self.rtt.saturating_mul(ROUND_TRIPS));
        let unheard = self.unheard.zip(self.last);
        unheard.is_some_and(|((since, _), last)| last.saturating_duration_since(since) >= silence)
    }

    /// The peer reports: so many packets arrived since the session began, and so many of them
    /// ECN-capable.
    pub fn reported(&mut self, arrived: u64, ect: u64, rtt: Duration) {
        self.rtt = rtt;
        if arrived <= self.arrived {
            return;
        }
        let was_cut = self.is_silent();
        self.unheard = None;
        match self.state {
            State::Testing | State::Doubted if ect > self.ect => self.enter(State::Capable),
            State::Doubted if was_cut => self.enter(State::Testing),
            State::Doubted => self.enter(State::Failed),
            State::Suspended if ect == self.ect => self.enter(State::Testing),
            State::Testing | State::Capable | State::Suspended | State::Failed => {}
        }
        (self.arrived, self.ect) = (arrived, ect);
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.unheard = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(20);

    /// One end of a path, ten packets a second.
    struct Path {
        validation: EcnValidation,
        now: Instant,
        arrived: u64,
        ect: u64,
    }

    impl Path {
        fn new() -> Self {
            #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
            let now = Instant::now();
            Self { validation: EcnValidation::new(RTT), now, arrived: 0, ect: 0 }
        }

        /// Runs so many seconds, in which `carries` says of a packet with or without a mark whether
        /// it arrives. Returns how many were lost.
        fn run(&mut self, seconds: u32, carries: impl Fn(bool) -> bool) -> u32 {
            let mut lost = 0;
            for _ in 0..seconds * 10 {
                self.now += Duration::from_millis(100);
                let marked = self.validation.marks();
                self.validation.sent(self.now);
                if carries(marked) {
                    self.arrived += 1;
                    self.ect += u64::from(marked);
                } else {
                    lost += 1;
                }
                self.validation.reported(self.arrived, self.ect, RTT);
            }
            lost
        }
    }

    #[test]
    fn a_path_that_carries_marks_is_used_with_them() {
        let mut path = Path::new();
        assert_eq!(path.run(10, |_| true), 0);
        assert_eq!(path.validation.state(), EcnState::Capable);
    }

    #[test]
    fn a_path_that_drops_marks_is_used_without_after_a_second() {
        let mut path = Path::new();
        let lost = path.run(60, |marked| !marked);
        assert!((10..=12).contains(&lost), "{lost}");
        assert_eq!(path.validation.state(), EcnState::Failed);
        // And if it comes to drop them later, after two.
        let mut path = Path::new();
        path.run(5, |_| true);
        let lost = path.run(60, |marked| !marked);
        assert!((20..=24).contains(&lost), "{lost}");
        assert_eq!(path.validation.state(), EcnState::Failed);
    }

    #[test]
    fn a_path_that_was_cut_is_used_with_marks_again() {
        let mut path = Path::new();
        path.run(5, |_| true);
        path.run(30, |_| false);
        assert_eq!(path.validation.state(), EcnState::Suspended);
        assert_eq!(path.run(5, |_| true), 0);
        assert_eq!(path.validation.state(), EcnState::Capable);
    }

    /// Its first packets say nothing of marks.
    #[test]
    fn a_path_that_was_cut_from_the_first_is_used_with_marks() {
        let mut path = Path::new();
        path.run(5, |_| false);
        assert_eq!(path.validation.state(), EcnState::Suspended);
        assert_eq!(path.run(5, |_| true), 0);
        assert_eq!(path.validation.state(), EcnState::Capable);
        // One that drops marks besides is found out by the next silence.
        let mut path = Path::new();
        path.run(5, |_| false);
        path.run(5, |marked| !marked);
        assert_eq!(path.validation.state(), EcnState::Failed);
    }

    #[test]
    fn marks_that_are_bleached_do_no_harm() {
        let mut path = Path::new();
        for _ in 0..600 {
            path.now += RTT;
            path.validation.sent(path.now);
            path.arrived += 1;
            path.validation.reported(path.arrived, 0, RTT);
        }
        assert!(path.validation.marks());
    }

    #[test]
    fn a_few_lost_packets_prove_nothing() {
        let mut path = Path::new();
        for _ in 0..LOST - 1 {
            path.now += Duration::from_secs(10);
            path.validation.sent(path.now);
        }
        assert_eq!(path.validation.state(), EcnState::Testing);
    }
}
