//! Requester side: flows that are to go on although a process of either gateway has ended.
//!
//! Such a flow has gone on when its target has answered the first request that came of it since. It
//! cannot if its requester was acknowledged what only that process had, or if anything else ends it
//! before. Then its class says what the requester meets: silence, for 30 s since it came back, or
//! NAK 0x63 at once.
//!
//! Rule: `docs/protocol.md#rule-reborn`.

use std::time::Instant;

use super::NearFlow;
use crate::context::Context;
use crate::failures::{By, Cause};
use crate::openings::FlowOpening;
use crate::record::Reason;
use crate::retention::Revival;
use crate::session_end::{SILENCE, SessionEnd};
use crate::stale_flows::FlowSide;

impl NearFlow {
    /// The flow is to go on although a process has ended.
    pub(super) fn revive(&mut self, revival: Revival, ctx: &mut Context<'_>) {
        if self.run.revival.replace(revival).is_none() {
            ctx.stats.restoring += 1;
        }
    }

    /// The same, for one whose requester has come back by now. Its silence counts from the first
    /// time.
    pub(super) fn come_back(&mut self, revival: Revival, ctx: &mut Context<'_>) {
        let silent_until = revival.silent_until.unwrap_or(ctx.now + SILENCE);
        self.revive(Revival { silent_until: Some(silent_until) }, ctx);
    }

    /// The flow goes on, or is over, or another takes its place.
    pub(super) fn take_revival(&mut self, ctx: &mut Context<'_>) -> Option<Revival> {
        let revival = self.run.revival.take();
        ctx.stats.restoring -= u64::from(revival.is_some());
        revival
    }

    /// The target may have answered.
    pub(super) fn note_restored(&mut self, ctx: &mut Context<'_>) {
        if self.run.revival.is_none() || self.near.is_failed() {
            return;
        }
        let came = self.run.came.zip(self.near.acknowledged());
        if came.is_some_and(|((first, _), done)| done.is_after(first)) {
            self.take_revival(ctx);
            ctx.stats.restored += 1;
            ctx.openings.push_restored(FlowOpening::new(FlowSide::Near, &self.key(), self.requester_qpn));
        }
    }

    /// Returns until when a flow waits for a requester that does not go back to what its target
    /// lacks.
    pub(super) fn waits_in_vain_until(&self) -> Option<Instant> {
        self.run.revival?.silent_until.filter(|_| self.near.stands_still())
    }

    /// Ends the flow in an error. `by` says which gateway gave it up.
    pub(super) fn end_in_error(&mut self, cause: Cause, by: By, ctx: &mut Context<'_>) {
        let revival = self.take_revival(ctx);
        let is_lost = revival.is_some() && (cause, by) == (Reason::Protocol.into(), By::Us);
        let cause = if is_lost { Cause::Process } else { cause };
        ctx.fail(self.failure((cause, by), ctx.classes));
        let is_silent = revival.is_some() && self.refuses_by_silence(ctx);
        ctx.stats.unrestored += u64::from(revival.is_some());
        match revival.filter(|_| is_silent) {
            Some(Revival { silent_until }) => {
                let end = silent_until.unwrap_or(ctx.now + SILENCE);
                ctx.stats.silenced += u64::from(ctx.now < end);
                // No effect on the other kind.
                self.near.mute_until(end);
                self.near.fall_silent_until(end, ctx.now);
            }
            None => self.near.fail(ctx.now),
        }
        self.expect(ctx);
    }

    /// Returns true if the requester of a flow that a process's end has ended gets no answer for a
    /// while.
    pub(super) fn refuses_by_silence(&mut self, ctx: &Context<'_>) -> bool {
        let class = self.class_of(self.demand.judged.into(), ctx.classes);
        ctx.classes.refuses_by_silence(class, SessionEnd::Lost)
    }
}
