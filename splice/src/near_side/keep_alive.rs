//! Requester side: how many requesters are kept waiting at a time.

use std::time::{Duration, Instant};

use super::{NearKey, NearSide};

/// Words for keeping requesters waiting ([`Near::put_off`](roce::flow::near::Near::put_off)), for
/// all flows together: 10,000 a second. Two hundred flows that wait get one every 20 ms. Where ten
/// thousand did, the ACKs that say nothing were most of what the gateway and its hosts had to do,
/// everything waited for longer, and that made more of them.
#[serde_with::serde_as]
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct KeepAliveBudget {
    #[serde_as(as = "Option<snapshot::At>")]
    since: Option<Instant>,
    left: u32,
}

/// Flows looked at for one word. If a host begins more at a time, any may be meant.
const SCAN: usize = 64;

impl NearSide {
    /// Has a requester wait without a word that it might take for one about its next incarnation.
    ///
    /// A requester that READs is kept waiting by its last ACK ([`Near::about_to_repeat`]). Its
    /// queue pair may have begun anew with the same PSNs, towards another target: then it is
    /// the requester of a flow that nobody has answered. It would take the ACK for its own, and
    /// go on beyond what its target has.
    ///
    /// [`Near::about_to_repeat`]: roce::flow::near::Near::about_to_repeat
    pub(super) fn spare_next_incarnation(&mut self, slot: NearKey, now: Instant) {
        let Some(flow) = self.flows.get(slot) else { return };
        let Some(psn) = flow.near.about_to_repeat(now) else { return };
        let mut begun = self.unheard.all_of(flow.addressing.src);
        let may_await = |other: NearKey| self.flows.get(other).is_some_and(|other| other.near.may_await(psn));
        let is_another = begun.by_ref().take(SCAN).any(|other| other != slot && may_await(other));
        if (is_another || begun.next().is_some())
            && let Some(flow) = self.flows.get_mut(slot)
        {
            flow.near.skip_word(now);
        }
    }
}

/// So many in each such time.
const WORDS: u32 = 100;
const EACH: Duration = Duration::from_millis(10);

impl KeepAliveBudget {
    /// Takes one if there is one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= EACH) {
            (self.since, self.left) = (Some(now), WORDS);
        }
        let more = self.left.checked_sub(1);
        self.left = more.unwrap_or(0);
        more.is_some()
    }
}
