//! Requests of the owner's paired flows, as far as the pairings ask about them.

use std::time::Duration;

use super::windows::SLACK;
use super::{FlowKey, Hosts};
use crate::wire::Psn;

/// The requests of the owner's paired flows, where a response is at hand, and an answer may take so
/// long.
pub trait Flows {
    /// Returns whether, and how, the response may be for this flow, which has its requester for its
    /// partner.
    fn claim(&self, flow: &FlowKey, patience: Duration) -> Candidacy;

    /// Returns how the response may answer any paired flow between these hosts, other than these
    /// two. Only those count that have sent something without asking for their turn, no longer ago
    /// than `patience`, and have no answer to it.
    fn rival(&mut self, hosts: Hosts, but: [Option<FlowKey>; 2], patience: Duration) -> Option<Rival>;
}

/// How a response that answers a question of another flow's may be for the flow that has its
/// requester for its partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidacy {
    /// It has sent this PSN and has no answer to it, and its target has spoken since the last
    /// timeout and the last rest. Or it has the answer, but has sent anything no longer ago than
    /// `patience`, so that a copy may come. Or the target says unasked what is news.
    Good,
    /// It has sent this PSN, and its target has not answered for a timeout, or not since all was
    /// answered: its requester may have another partner by now.
    Doubtful,
    /// It cannot be answered so.
    None,
}

/// How a response may answer what other flows have sent, besides the one that is asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rival {
    /// By its PSN it does not. But a request that was answered before runs again, and has no answer
    /// yet: its target may be in another incarnation, and stand anywhere.
    Elsewhere,
    /// Its PSN is one that was sent, or lies within 2^16 of what runs again.
    Here,
}

impl Rival {
    /// How a response with this PSN may answer a request that runs again, from `start` to `end`.
    pub fn of_repeat(start: Psn, end: Psn, psn: Psn) -> Rival {
        let slack = SLACK.cast_signed();
        let is_near = psn.distance(start) >= -slack && psn.distance(end) <= slack;
        if is_near { Rival::Here } else { Rival::Elsewhere }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_runs_again_may_be_answered_near_by() {
        let (start, near) = (Psn::new(0xff_fff0), 1 << 16);
        let (end, before) = (start + 100_000, (1 << 24) - near);
        for psn in [start, end, start + 50_000, end + near, start + before] {
            assert_eq!(Rival::of_repeat(start, end, psn), Rival::Here);
        }
        for psn in [end + near + 1, start + before - 1] {
            assert_eq!(Rival::of_repeat(start, end, psn), Rival::Elsewhere);
        }
    }
}
