//! Responder side: how a flow ends before its time, and who is told.

use std::time::Instant;

use super::abort::{Abort, Outcome};
use super::{Failure, Far, NEARBY, State, Window};
use crate::flow::rewritten::Reply;
use crate::wire::{Aeth, Nak, Packet, Psn, Qpn, Syndrome};

/// So far before its first PSN a flow speaks of which the target has said nothing: further than the
/// near half may have gone back since.
const UNKNOWN: u32 = 2 * NEARBY as u32;

impl<B: AsRef<[u8]>> Far<B> {
    /// The target has, or is to get, the beginning of a message whose end has not come. Where it
    /// says that it has more than was sent, it has that end: a flow begun anew got repeats of which
    /// the rest was lost.
    pub fn is_inside(&self) -> bool {
        self.came.is_inside(self.beyond())
    }

    /// The PSNs within messages that the target may expect now, the first and the last. None where
    /// it has said that it expects an earlier request.
    pub(super) fn within(&self) -> Option<(Psn, Psn)> {
        let may_be = !self.excuse.awaits_earlier();
        may_be.then(|| self.window.within(self.came.within())).flatten()
    }

    /// Drops what is buffered and puts the target's queue pair in error, so that its program sees
    /// the end. Poll on until [`is_dead`](Far::is_dead).
    pub fn abort(&mut self, now: Instant) {
        let over = match self.state {
            State::Aborting { .. } => true,
            State::Over { failure, .. } => failure != Failure::TargetSilent,
            _ => false,
        };
        if over {
            return;
        }
        self.last_activity = now;
        let had = self.beyond().unwrap_or(self.window.high());
        let (una, high) = (self.window.una(), self.came.furthest(had));
        self.end(Failure::Aborted);
        if let Some(target) = self.peers.target() {
            self.stats.aborts.one();
            // The target expects this PSN or a later one; in the second case it says which.
            let abort = Abort::new(target, self.peers.style(), una, high);
            let is_heard = self.said.is_confirmed();
            let abort = if is_heard { abort.counted(self.said.aeth().msn) } else { abort.unheard() };
            let abort = Box::new(abort);
            self.state = State::Aborting { abort, refuses: self.state.refuses() };
        }
    }

    /// Ends the flow for both: `packet`, the next request in order, cannot be sent to the target.
    /// Once those before are done the target is dealt with as by [`abort`](Far::abort), and the
    /// requester is told by [`poll_response`](Far::poll_response) when the target has answered that
    /// (or has not): its answer names the requester's queue pair, which is not known before on a
    /// flow without CM.
    pub fn refuse(&mut self, packet: &Packet<'_>, now: Instant) {
        if self.is_ending() {
            return;
        }
        if matches!(self.state, State::Fresh) {
            self.peers.note_request(&packet.bth);
            self.start_over(packet.bth.psn);
        }
        self.last_activity = now;
        self.state = State::Refusing;
    }

    /// The flow is over: forget it once [`poll_response`](Far::poll_response) has nothing more.
    /// [`failure`](Far::failure) says why; after [`Failure::TargetSilent`] an [`abort`](Far::abort)
    /// can still tell the target's program.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, State::Over { .. })
    }

    /// The flow is over, or about to be: it takes no more requests.
    pub fn is_ending(&self) -> bool {
        matches!(self.state, State::Refusing | State::Aborting { .. } | State::Over { .. })
    }

    /// Why the flow is over.
    pub fn failure(&self) -> Option<Failure> {
        match self.state {
            State::Over { failure, .. } => Some(failure),
            _ => None,
        }
    }

    /// Reports the failure and ends the flow.
    pub(super) fn fail(&mut self, failure: Failure) {
        let syndrome = match failure {
            Failure::TargetSilent => Syndrome::TARGET_SILENT,
            _ => Syndrome::Nak(Nak::RemoteOperation),
        };
        self.tell_failure(syndrome, None);
        self.end(failure);
    }

    /// `psn`: the one the target expects, if it has just said so.
    fn tell_failure(&mut self, syndrome: Syndrome, psn: Option<Psn>) {
        // A fatal NAK acknowledges everything before its PSN. If the target never spoke, that is
        // more than is known, and the requester may have gone back since.
        let known = if self.said.is_confirmed() { self.window.una() } else { self.came.first() - UNKNOWN };
        let aeth = Aeth { syndrome, msn: 0 };
        self.relay.respond(self.peers.reply(psn.unwrap_or(known), aeth));
    }

    /// Returns a reply that tells the near side of a flow that is over who its requester is, and
    /// confirms nothing.
    pub fn introduction(&self, requester: Qpn) -> Reply {
        let aeth = Aeth { syndrome: Syndrome::TARGET_SILENT, msn: 0 };
        Reply::acknowledge(self.peers.style(), requester, self.came.first() - UNKNOWN, aeth)
    }

    pub(super) fn end(&mut self, failure: Failure) {
        self.state = State::Over { failure, refuses: self.state.refuses() };
        self.window = Window::at(self.window.una());
        self.replays.clear();
        self.rnr = None;
        self.relay.forget_owed();
    }

    /// `psn`: where the target said that it stands, if it did.
    pub(super) fn finish_abort(&mut self, outcome: Outcome, psn: Option<Psn>) {
        match outcome {
            Outcome::Going => return,
            Outcome::Poisoned => self.end(Failure::Aborted),
            Outcome::GivenUp => self.end(Failure::AbortUnanswered),
        }
        if self.state.refuses() {
            let psn = psn.filter(|_| outcome == Outcome::Poisoned);
            self.tell_failure(Syndrome::Nak(Nak::RemoteOperation), psn);
        }
    }
}
