//! Requester side: requests that do not fit what is outstanding: the requester may be in another
//! incarnation.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::wire::Psn;

/// A request that does not fit what is outstanding.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Strange {
    psn: Psn,
    /// When it came first, in ticks.
    at: u32,
    /// [`Strangers::passed`] then.
    passed: u32,
}

/// Other requests than those outstanding at their PSNs. No requester sends such as retries.
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Contradiction {
    /// The lowest PSN of them.
    psn: Psn,
    /// When anything outstanding came again elsewhere, since the last of them.
    #[serde_as(as = "Option<snapshot::At>")]
    agreed: Option<Instant>,
}

/// Requests that do not fit what is outstanding, in the order in which they came. Any host of the
/// LAN can send such, so that one which comes again has to be found among others.
///
/// Bound: [`Strangers::MOST`] of 12 bytes; beyond, the oldest is forgotten.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Strangers {
    seen: VecDeque<Strange>,
    /// From when ticks count.
    #[serde_as(as = "snapshot::At")]
    epoch: Instant,
    /// When the last of them came first.
    #[serde_as(as = "snapshot::At")]
    latest: Instant,
    /// The PSN expected when the first of them came. What was accepted from there on may be of
    /// either incarnation.
    floor: Psn,
    /// Counts the next requests that have come meanwhile, in whichever incarnation; modulo 2^32.
    passed: u32,
    contradiction: Option<Contradiction>,
}

impl Strangers {
    /// A requester whose ACK timeout is 67 ms is found among 3,800 strange requests a second.
    const MOST: usize = 256;
    /// Microseconds. 32 bits of them come round after 4.7 hours.
    const TICK: u128 = 4;

    pub(super) fn new(floor: Psn, now: Instant) -> Strangers {
        Strangers { seen: VecDeque::new(), epoch: now, latest: now, floor, passed: 0, contradiction: None }
    }

    fn ticks(&self, at: Instant) -> u32 {
        (at.saturating_duration_since(self.epoch).as_micros() / Strangers::TICK) as u32
    }

    /// One comes at this PSN, `floor` being the one expected. Returns whether it came before, so
    /// long ago that this is no copy, and neither the target has answered since nor the next
    /// request has come. `least`: how long ago that has to be.
    pub(super) fn see(
        &mut self,
        psn: Psn,
        floor: Psn,
        answered: Instant,
        least: Duration,
        now: Instant,
    ) -> bool {
        let (answered, at) = (self.ticks(answered), self.ticks(now));
        let is_old = |known: &Strange| known.at < answered;
        while self.seen.len() >= Strangers::MOST || self.seen.front().is_some_and(is_old) {
            self.seen.pop_front();
        }
        if self.seen.is_empty() {
            (self.floor, self.contradiction) = (floor, None);
        }
        let fresh = Strange { psn, at, passed: self.passed };
        match self.seen.iter_mut().find(|known| known.psn == psn && !is_old(known)) {
            // Copies of one packet come together.
            Some(known) if known.passed == self.passed => {
                let ago = at.wrapping_sub(known.at);
                return u128::from(ago) * Strangers::TICK >= least.as_micros();
            }
            Some(known) => *known = fresh,
            None => self.seen.push_back(fresh),
        }
        self.latest = now;
        false
    }

    /// When the last of them came first.
    pub(super) fn latest(&self) -> Instant {
        self.latest
    }

    /// Returns whether this PSN was expected before the first of them came.
    pub(super) fn lie_behind(&self, psn: Psn) -> bool {
        self.seen.is_empty() || psn.is_before(self.floor)
    }

    /// The next request was accepted.
    pub(super) fn pass(&mut self) {
        self.passed = self.passed.wrapping_add(1);
    }

    /// Another request comes than the one outstanding at its PSN.
    pub(super) fn contradict(&mut self, psn: Psn) {
        let before = self.contradiction.map(|before| before.psn).filter(|before| before.is_before(psn));
        self.contradiction = Some(Contradiction { psn: before.unwrap_or(psn), agreed: None });
    }

    /// Returns whether there was such a request.
    pub(super) fn contradict_requests(&self) -> bool {
        self.contradiction.is_some()
    }

    /// An outstanding request comes again. Returns whether its requester must be the one
    /// that sends. If another request came in its place, two incarnations may agree in this one:
    /// then the very request has to come that was contradicted, or two retries in a row, `apart`
    /// from each other, that do not contradict.
    pub(super) fn agree(&mut self, psn: Psn, apart: Duration, now: Instant) -> bool {
        let Some(contradiction) = &mut self.contradiction else { return true };
        let since = *contradiction.agreed.get_or_insert(now);
        psn == contradiction.psn || now.saturating_duration_since(since) >= apart.max(LEAST_APART)
    }
}

/// Packets of one retry come within this time.
const LEAST_APART: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::tests::epoch;

    const MILLI: Duration = Duration::from_millis(1);

    fn contradicted(at: u32) -> Strangers {
        let (psn, floor) = (Psn::new(at), Psn::new(9));
        let mut strangers = Strangers::new(floor, epoch());
        strangers.see(psn, floor, epoch(), MILLI, epoch());
        strangers.contradict(psn);
        strangers
    }

    #[test]
    fn the_request_itself_ends_a_contradiction() {
        let mut strangers = contradicted(5);
        assert!(!strangers.agree(Psn::new(4), MILLI, epoch()), "both incarnations may begin so");
        assert!(!strangers.agree(Psn::new(6), MILLI, epoch()), "and go on so");
        assert!(strangers.agree(Psn::new(5), MILLI, epoch()));
    }

    #[test]
    fn the_lowest_contradiction_counts() {
        let mut strangers = contradicted(5);
        for (other, lowest) in [(6, 5), (3, 3), (4, 3)] {
            strangers.contradict(Psn::new(other));
            assert_eq!(strangers.contradiction.unwrap().psn, Psn::new(lowest));
        }
    }

    /// A NIC that repeats selectively sends its oldest request, and no other.
    #[test]
    fn two_retries_without_another_end_a_contradiction() {
        let mut strangers = contradicted(5);
        let retries = [10, 20, 30].map(|at| epoch() + at * MILLI);
        assert!(!strangers.agree(Psn::new(4), MILLI, retries[0]));
        strangers.contradict(Psn::new(5));
        assert!(!strangers.agree(Psn::new(4), MILLI, retries[1]), "the retry before contradicted");
        assert!(strangers.agree(Psn::new(4), MILLI, retries[2]));
    }

    #[test]
    fn what_the_target_has_answered_contradicts_no_more() {
        let mut strangers = contradicted(5);
        let (later, floor) = (epoch() + 10 * MILLI, Psn::new(9));
        strangers.see(Psn::new(7), floor, later, MILLI, later);
        assert!(!strangers.contradict_requests());
        assert!(strangers.agree(Psn::new(8), MILLI, later));
    }
}
