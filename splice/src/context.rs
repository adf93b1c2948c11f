//! The state that both sides' flow tables share while they handle one input.

use std::time::Instant;

use reliability::stream::Full;
use roce::pairing::Pairings;
use transport::{Senders, Urgency};

use crate::Settings;
use crate::carriage::{Came, Carriage, ReplyShare};
use crate::classes::Classes;
use crate::failures::FlowFailure;
use crate::from_member::FromMember;
use crate::kept::Kept;
use crate::lan_queue::LanQueue;
use crate::openings::Openings;
use crate::outgoing;
use crate::piggybacked_acks::PiggybackedAcks;
use crate::pool::Pool;
use crate::record::{Head, Reason};
use crate::renewals::Renewals;
use crate::retention::Retention;
use crate::session_end::{SILENCE, SessionEnd};
use crate::stale_flows::{ResetMark, StaleFlow, StaleFlows};
use crate::stats::Stats;

/// Records of one flow that may wait for an earlier one: a queue pair has no more than half of its
/// PSNs on their way. [`reorder_buffer`](crate::settings::reorder_buffer) bounds
/// what they may cost in memory.
pub(crate) const REORDER: u32 = 1 << 23;

/// Bytes that a short record takes on the wire, about: several share a packet.
const REPLY: usize = 16;

/// Tables that both sides' flows use, beside the connection to the peer.
pub(crate) struct Common {
    pub(crate) settings: Settings,
    pub(crate) classes: Classes,
    pub(crate) lan: LanQueue,
    pub(crate) pool: Pool,
    pub(crate) pairings: Pairings,
    pub(crate) stale_flows: StaleFlows,
    pub(crate) answers: PiggybackedAcks,
    pub(crate) carriage: Carriage,
    pub(crate) failures: Kept<FlowFailure>,
    pub(crate) openings: Openings,
    pub(crate) renewals: Renewals,
    /// `None`: nothing outlives the process.
    pub(crate) retention: Option<Retention>,
    /// See [`Gateway::peer_begins_again`](crate::Gateway::peer_begins_again).
    pub(crate) peer_begins_again: bool,
    /// `None`: neither site has several gateways.
    pub(crate) members: Option<FromMember>,
    pub(crate) stats: Stats,
}

impl Common {
    /// Lends it for one call, with the streams to the peer.
    pub(crate) fn context<'a>(&'a mut self, senders: &'a mut Senders, now: Instant) -> Context<'a> {
        Context {
            settings: &self.settings,
            classes: &self.classes,
            senders,
            lan: &mut self.lan,
            pool: &self.pool,
            pairings: &mut self.pairings,
            stale_flows: &mut self.stale_flows,
            answers: &mut self.answers,
            came: &mut self.carriage.came,
            replies: &mut self.carriage.replies,
            failures: &mut self.failures,
            openings: &mut self.openings,
            renewals: &mut self.renewals,
            retention: &mut self.retention,
            peer_begins_again: self.peer_begins_again,
            members: &mut self.members,
            stats: &mut self.stats,
            now,
        }
    }
}

/// Borrowed from the gateway for one call.
pub(crate) struct Context<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) classes: &'a Classes,
    pub(crate) senders: &'a mut Senders,
    pub(crate) lan: &'a mut LanQueue,
    pub(crate) pool: &'a Pool,
    pub(crate) pairings: &'a mut Pairings,
    pub(crate) stale_flows: &'a mut StaleFlows,
    pub(crate) answers: &'a mut PiggybackedAcks,
    pub(crate) came: &'a mut Came,
    pub(crate) replies: &'a mut ReplyShare,
    pub(crate) failures: &'a mut Kept<FlowFailure>,
    pub(crate) openings: &'a mut Openings,
    pub(crate) renewals: &'a mut Renewals,
    pub(crate) retention: &'a mut Option<Retention>,
    pub(crate) peer_begins_again: bool,
    pub(crate) members: &'a mut Option<FromMember>,
    pub(crate) stats: &'a mut Stats,
    pub(crate) now: Instant,
}

impl Context<'_> {
    /// Returns true if the session is lost and may go on: see
    /// [`Gateway::session_lost`](crate::Gateway::session_lost).
    pub(crate) fn is_parked(&self) -> bool {
        self.senders.has_streams() && !self.senders.is_up()
    }

    /// Returns what to say to the peer of a flow for which there is no place.
    ///
    /// Rule: `docs/protocol.md#rule-no-place`.
    pub(crate) fn no_place(&self) -> Reason {
        if self.peer_begins_again { Reason::NoPlace } else { Reason::NoRoom }
    }

    /// Counts a flow that has ended in an error, and keeps it for [`Gateway::take_failures`].
    ///
    /// [`Gateway::take_failures`]: crate::Gateway::take_failures
    pub(crate) fn fail(&mut self, failure: FlowFailure) {
        self.stats.fail(failure.cause);
        self.failures.push(failure);
    }

    /// The peer says of a flow that nobody here knows that it has ended: its requester is refused.
    pub(crate) fn mark_reset(&mut self, flow: &StaleFlow, ended: SessionEnd) {
        self.stale_flows.mark_reset(ResetMark {
            flow: *flow,
            ended,
            silent_until: self.now + SILENCE,
            until: self.now + self.settings.linger,
        });
    }

    /// Answers what the peer says of a flow that nobody here knows, as far as there is a share for
    /// that. Whoever asked in earnest asks again.
    pub(crate) fn reply(&mut self, head: &Head) {
        let rate = self.settings.rate;
        if self.replies.take(REPLY, rate, self.now) {
            // Without room it is as without a share.
            let _ = self.push(0, Urgency::Prompt, head, [&[], &[]]);
        }
    }

    /// Carries a record to the peer: see [`outgoing::push`].
    pub(crate) fn push(
        &mut self,
        class: usize,
        urgency: Urgency,
        head: &Head,
        body: [&[u8]; 2],
    ) -> Result<(), Full> {
        outgoing::push(self.senders, class, urgency, head, body, self.now)
    }
}
