//! Requester side: packets ahead of the one expected, and requesters that must be told what was
//! dropped.

use std::time::Instant;

use super::due::Say;
use super::{Near, Why};
use crate::flow::horizon::NEARBY;
use crate::wire::Psn;

/// A gap is not given up before a retry came so often at the same PSN and was told of it.
const GAP_NAKS: u8 = 16;

/// NAKs that name a dropped packet; then the requester's own timer has to find out.
const NAMED: u8 = 8;

/// Packets missing before the requester can go on, and whether it knows.
#[serde_with::serde_as]
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Gap {
    /// When the requester was last told where to go on, while its gap is open.
    #[serde_as(as = "Option<snapshot::At>")]
    told: Option<Instant>,
    /// Packets came ahead of a gap before anything could be said to the requester.
    is_unsaid: bool,
    /// Packets were dropped for want of room: that of so many PSNs, 0 if none was.
    blocked: u32,
    /// The next packet was refused for want of room outside this flow, and came from the
    /// incarnation of which the target has spoken.
    is_refused: bool,
    dropped: Option<Box<Dropped>>,
}

impl Gap {
    /// The packet expected was accepted.
    pub(super) fn close(&mut self) {
        (self.told, self.is_unsaid, self.blocked, self.is_refused) = (None, false, 0, false);
    }

    /// There is no room here for so many PSNs.
    pub(super) fn block(&mut self, psns: u32, now: Instant) {
        (self.blocked, self.told) = (psns, Some(now));
    }

    pub(super) fn unblock(&mut self) {
        self.blocked = 0;
    }

    /// The PSNs that found no room, if there were any.
    pub(super) fn blocked(&self) -> Option<u32> {
        (self.blocked > 0).then_some(self.blocked)
    }

    pub(super) fn refuse_if(&mut self, is_refused: bool) {
        self.is_refused |= is_refused;
    }

    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Returns whether a packet was refused; the next time it was not.
    pub(super) fn take_refusal(&mut self) -> bool {
        std::mem::take(&mut self.is_refused)
    }

    /// The requester is to be told where to go on once the target has spoken.
    pub(super) fn leave_unsaid(&mut self) {
        self.is_unsaid = true;
    }

    /// Returns whether there is a gap of which the requester could not be told; the next time
    /// there is none.
    pub(super) fn take_unsaid(&mut self) -> bool {
        std::mem::take(&mut self.is_unsaid)
    }

    pub(super) fn forget_dropped(&mut self) {
        self.dropped = None;
    }
}

/// Packets dropped since they came ahead of one that was missing.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Dropped {
    /// The PSN after the last of them.
    to: Psn,
    /// From when the requester's silence counts.
    #[serde_as(as = "snapshot::At")]
    quiet_from: Instant,
    /// How often the first of them was named.
    named: u8,
    stuck: Option<Stuck>,
}

/// A requester that was told of a gap, and begins every retry beyond it.
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Stuck {
    /// With this PSN.
    at: Psn,
    #[serde_as(as = "snapshot::At")]
    since: Instant,
    /// How often it came when a NAK was due.
    times: u8,
}

impl Stuck {
    /// A packet at this PSN is told of the gap. A retry begins with the lowest.
    fn follow(before: Option<Stuck>, psn: Psn, now: Instant) -> Stuck {
        let fresh = Stuck { at: psn, since: now, times: 1 };
        let Some(before) = before else { return fresh };
        match psn.distance(before.at) {
            0 => Stuck { times: before.times.saturating_add(1), ..before },
            1.. => before,
            _ => fresh,
        }
    }
}

impl Near {
    /// A packet came ahead of the one expected.
    pub(super) fn ahead(&mut self, psn: Psn, now: Instant) -> Why {
        if psn.distance(self.seen.floor()) > NEARBY {
            // No requester has so much under way.
            return Why::Ahead;
        }
        let is_at_rest = self.has_nothing_open() && !self.is_placed(now);
        if !self.is_proven() || is_at_rest || self.is_doubted() {
            // A NAK would confirm what is before the PSN that it names, and that may be of another
            // incarnation.
            self.gap.is_unsaid = true;
            return Why::Ahead;
        }
        self.note_dropped(psn, now);
        let quiet = self.gap.told.is_some_and(|sent| {
            self.gap.blocked().is_some() || now.saturating_duration_since(sent) < self.config.nak_rearm
        });
        if quiet {
            return Why::Ahead;
        }
        if self.is_gap_given_up(psn, now) {
            self.fail_beyond_gap(psn, now);
            return Why::Failed;
        }
        self.say_where_to_go_on(now);
        Why::Ahead
    }

    /// The requester is to be told where to go on.
    pub(super) fn say_where_to_go_on(&mut self, now: Instant) {
        self.due.add(Say::Nak);
        self.gap.told = Some(now);
    }

    /// A packet at this PSN is about to be answered with a NAK. Returns whether the flow is to fail
    /// instead.
    fn is_gap_given_up(&mut self, psn: Psn, now: Instant) -> bool {
        // It is this gateway that has no room for what is missing, and smaller packets may fit.
        if self.gap.is_refused() {
            return false;
        }
        let Some(dropped) = &mut self.gap.dropped else { return false };
        let stuck = Stuck::follow(dropped.stuck, psn, now);
        dropped.stuck = Some(stuck);
        stuck.at == psn && self.is_lost(stuck.since, stuck.times, now)
    }

    /// Returns whether the requester has been told often enough where to go on.
    pub(super) fn is_lost(&self, since: Instant, times: u8, now: Instant) -> bool {
        now.saturating_duration_since(since) >= self.config.gap_limit && times >= GAP_NAKS
    }

    fn note_dropped(&mut self, psn: Psn, now: Instant) {
        let fresh = || Dropped { to: psn.next(), quiet_from: now, named: 0, stuck: None };
        let dropped = self.gap.dropped.get_or_insert_with(|| Box::new(fresh()));
        (dropped.to, dropped.quiet_from) = (super::later(dropped.to, psn.next()), now);
    }

    /// The PSN expected has come.
    pub(super) fn note_gap_closed(&mut self, now: Instant) {
        let floor = self.seen.floor();
        match &mut self.gap.dropped {
            Some(dropped) if floor.is_before(dropped.to) => {
                (dropped.quiet_from, dropped.named) = (now, 0);
                dropped.stuck = None;
            }
            dropped => *dropped = None,
        }
    }

    /// When what was dropped is to be named: the requester says no more, and all before is
    /// acknowledged by the target.
    pub(super) fn gap_timeout(&self) -> Option<Instant> {
        let dropped = self.gap.dropped.as_ref().filter(|dropped| dropped.named < NAMED)?;
        let may_name = self.is_proven()
            && !self.is_failed()
            && self.gap.blocked().is_none()
            && !self.is_doubted()
            && self.bound() == self.seen.floor();
        let pause = if dropped.named == 0 { 2 * self.lan_turn() } else { self.config.nak_rearm };
        may_name.then(|| dropped.quiet_from + pause)
    }

    /// Names the first that was dropped.
    pub(super) fn name_gap(&mut self, now: Instant) {
        let Some(dropped) = &mut self.gap.dropped else { return };
        (dropped.quiet_from, dropped.named) = (now, dropped.named + 1);
        self.stats.gaps_named.one();
        self.due.add(Say::Nak);
    }
}
