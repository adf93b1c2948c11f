//! Which class a message takes.

use std::sync::Arc;

use config::{Candidates, Completion, Policy, Refuse, Survive, Traffic};
use roce::ip::Addressing;

use crate::session_end::SessionEnd;

/// The policy in force. A change of it reaches each flow with the flow's next message.
pub(crate) struct Classes {
    policy: Arc<Policy>,
    generation: u32,
    /// Some class has a condition on the message's size.
    by_size: bool,
}

/// The classes that a flow's messages may take, worked out once per flow and policy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Choice {
    candidates: Candidates,
    generation: u32,
}

impl Classes {
    pub(crate) fn new(policy: Arc<Policy>) -> Self {
        let by_size = has_sizes(&policy);
        Self { policy, generation: 0, by_size }
    }

    pub(crate) fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    pub(crate) fn set(&mut self, policy: Arc<Policy>) {
        self.by_size = has_sizes(&policy);
        self.policy = policy;
        self.generation = self.generation.wrapping_add(1);
    }

    /// Returns true if the size of a message matters.
    pub(crate) fn are_by_size(&self) -> bool {
        self.by_size
    }

    /// For a new flow.
    pub(crate) fn choice(&self, traffic: &Traffic) -> Choice {
        Choice { candidates: self.policy.candidates(traffic), generation: self.generation }
    }

    /// The class of a flow's message of so many bytes; `traffic` is the flow's, asked for after a
    /// change of policy only.
    pub(crate) fn choose(&self, choice: &mut Choice, traffic: impl FnOnce() -> Traffic, size: u64) -> usize {
        if choice.generation != self.generation {
            *choice = self.choice(&traffic());
        }
        self.policy.choose(choice.candidates, Some(size))
    }

    /// Returns true if requesters are told that the class's messages are done before their targets
    /// had them.
    pub(crate) fn completes_locally(&self, class: usize) -> bool {
        self.policy.classes().get(class).is_some_and(|class| class.completion == Completion::Local)
    }

    /// Says what requests of the class outlive.
    pub(crate) fn survival(&self, class: usize) -> Survive {
        self.policy.classes().get(class).map(|class| class.survive).unwrap_or_default()
    }

    /// Returns true if requesters of the class get no answer for a while when their flows end with
    /// a session that ended like this, rather than a NAK at once.
    pub(crate) fn refuses_by_silence(&self, class: usize, ended: SessionEnd) -> bool {
        match self.policy.classes().get(class).and_then(|class| class.refuse) {
            Some(refuse) => refuse == Refuse::Silence,
            None => ended == SessionEnd::Lost,
        }
    }

    /// The class of what belongs to no flow.
    pub(crate) fn classify(&self, traffic: &Traffic, size: Option<u64>) -> usize {
        self.policy.classify(traffic, size)
    }
}

fn has_sizes(policy: &Policy) -> bool {
    policy.classes().iter().any(|class| class.matches.size.is_some())
}

/// Returns the properties that a flow is classified by; `addressing` is that of its requests, `qp`
/// the target's queue pair.
pub(crate) fn traffic(addressing: &Addressing, qp: u32) -> Traffic {
    Traffic { src: addressing.src, dst: addressing.dst, dscp: addressing.tclass >> 2, qp }
}
