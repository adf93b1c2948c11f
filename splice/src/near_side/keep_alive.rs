//! Requester side: how many requesters are kept waiting at a time.

use std::time::{Duration, Instant};

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
