//! Responder side: answers for the near side.

use std::time::{Duration, Instant};

use crate::flow::rewritten::Reply;
use crate::wire::{Aeth, Psn};

/// The near side's knowledge, and what it is to hear.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Relay {
    /// It knows that everything before is acknowledged.
    to: Psn,
    /// The target's last AETH that was not relayed, and since when something waits to be.
    #[serde_as(as = "Option<(_, snapshot::At)>")]
    owed: Option<(Aeth, Instant)>,
    /// A response record made here.
    response: Option<Reply>,
}

impl Relay {
    pub(super) fn at(psn: Psn) -> Relay {
        Relay { to: psn, owed: None, response: None }
    }

    pub(super) fn to(&self) -> Psn {
        self.to
    }

    /// The near side hears now that everything before is acknowledged.
    pub(super) fn tell(&mut self, to: Psn) {
        (self.to, self.owed) = (to, None);
    }

    /// To be relayed in a while, with all that is acknowledged by then.
    pub(super) fn owe(&mut self, aeth: Aeth, now: Instant) {
        let since = self.owed.map_or(now, |(_, since)| since);
        self.owed = Some((aeth, since));
    }

    pub(super) fn forget_owed(&mut self) {
        self.owed = None;
    }

    /// When what is owed is to be relayed, if there is room for a response.
    pub(super) fn due_at(&self, delay: Duration) -> Option<Instant> {
        self.owed.filter(|_| self.response.is_none()).map(|(_, since)| since + delay)
    }

    /// Returns what is owed, if it is due. It counts as told with everything before `to`.
    pub(super) fn take_due(&mut self, to: Psn, delay: Duration, now: Instant) -> Option<Aeth> {
        self.due_at(delay).filter(|at| now >= *at)?;
        let (aeth, _) = self.owed?;
        self.tell(to);
        Some(aeth)
    }

    pub(super) fn respond(&mut self, response: Reply) {
        self.response = Some(response);
    }

    pub(super) fn take_response(&mut self) -> Option<Reply> {
        self.response.take()
    }

    /// Returns true if there is nothing to tell.
    pub(super) fn is_done(&self) -> bool {
        self.response.is_none() && self.owed.is_none()
    }
}
