//! Requester side: hosts that are known to be there, since targets have answered them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::pairing::FlowKey;

use super::answered::AnsweredFlows;
use super::debts::{Account, OpeningDebts};
use super::{NearFlow, NearKey, NearSide};
use crate::context::Context;
use crate::hosts::Grouping;
use crate::surplus::Kind;

/// All that was sent before a host was known to be there has left the queue by then: it has half
/// of the link, and the queue holds 0.2 s.
const DRAINED: Duration = Duration::from_millis(500);
/// A flow counts as so many while its group's are read in part only: what it costs a gateway is to
/// leave time for others.
const FLOODED: u32 = 4;

/// Hosts with flows whose target has spoken, or that connection management has named, and what
/// they and others have begun.
///
/// Bound: an entry for each host that has such a flow.
#[derive(Debug, Default)]
pub(super) struct Heard {
    hosts: BTreeMap<IpAddr, Host>,
    debts: OpeningDebts,
    flows: AnsweredFlows,
    /// The packet that is handled is one of a flood, of which only a part is read.
    is_flooded: bool,
    /// The groups that are charged. `None` only until what a snapshot has is restored.
    grouping: Option<Grouping>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Host {
    flows: usize,
    standing: Standing,
}

/// Where what the host sends waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    /// Among those whose names may be invented.
    #[default]
    Unproven,
    /// Still there, where what it sent before waits: nothing is to overtake that. Since then.
    Leaving(Instant),
    Proven,
}

impl Heard {
    pub(super) fn new(grouping: Grouping) -> Self {
        Self { grouping: Some(grouping), ..Self::default() }
    }

    /// Read from a snapshot: hosts are grouped like this, in this process.
    pub(super) fn set_grouping(&mut self, grouping: Grouping) {
        self.grouping = Some(grouping);
    }

    /// One more flow was answered.
    fn join(&mut self, flow: &FlowKey) {
        self.hosts.entry(flow.requester).or_default().flows += 1;
        if let Some(grouping) = self.grouping {
            self.flows.enter(flow, grouping);
        }
    }

    /// One of them is gone.
    pub(super) fn leave(&mut self, flow: &FlowKey) {
        if let Some(grouping) = self.grouping {
            self.flows.leave(flow, grouping);
        }
        let host = flow.requester;
        if let Some(entry) = self.hosts.get_mut(&host) {
            entry.flows -= 1;
            if entry.flows == 0 {
                self.hosts.remove(&host);
            }
        }
    }

    /// This host begins a flow of which nothing is known. Returns who is charged for it. `None`: it
    /// is not to begin.
    pub(super) fn begin(&mut self, host: IpAddr, grouping: Grouping, now: Instant) -> Option<Account> {
        let account = self.account(host);
        let cost = if self.is_flooded { FLOODED } else { 1 };
        self.debts.take(account, grouping.group(host), cost, now).then_some(account)
    }

    fn account(&self, host: IpAddr) -> Account {
        if self.hosts.contains_key(&host) { Account::Proven } else { Account::Unproven }
    }

    /// A flow was answered that this account was charged for.
    fn answered(&mut self, account: Account, flow: &FlowKey) {
        if let Some(grouping) = self.grouping {
            self.debts.give_back(account, grouping.group(flow.requester));
        }
        self.join(flow);
    }

    /// Returns whether the host was answered, and nothing of it waits among the unproven any more,
    /// as `waits` tells.
    fn is_proven(&mut self, host: IpAddr, now: Instant, waits: impl FnOnce() -> bool) -> bool {
        let Some(Host { standing, .. }) = self.hosts.get_mut(&host) else { return false };
        let since = match *standing {
            Standing::Unproven => now,
            Standing::Leaving(since) => since,
            Standing::Proven => return true,
        };
        let has_left = !waits() || now.saturating_duration_since(since) >= DRAINED;
        *standing = if has_left { Standing::Proven } else { Standing::Leaving(since) };
        has_left
    }
}

impl NearSide {
    /// Counts the flow among those of its host whose target has spoken, if it has.
    pub(super) fn note_heard(heard: &mut Heard, flow: &mut NearFlow) {
        if flow.marks.account != Account::Answered && !flow.is_unheard() {
            let account = std::mem::replace(&mut flow.marks.account, Account::Answered);
            heard.answered(account, &flow.key());
        }
    }

    /// The next packet is one of a flood, of which only a part is read.
    pub(crate) fn set_flooded(&mut self, is_flooded: bool) {
        self.heard.is_flooded = is_flooded;
    }

    /// Returns what a request asks for that begins a message; `None`: it may be of a flow that was
    /// answered.
    pub(crate) fn kind_of_request(&self, flow: &FlowKey, grouping: Grouping) -> Option<Kind> {
        if self.heard.flows.may_have(flow, grouping) {
            return None;
        }
        let is_proven = self.heard.account(flow.requester) == Account::Proven;
        Some(if is_proven { Kind::Proven } else { Kind::Unproven })
    }

    /// Sends for the flow from now on. Until a target has answered its host, anybody may have
    /// invented that.
    pub(super) fn serve(&mut self, slot: NearKey, ctx: &mut Context<'_>) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let (host, grouping) = (flow.addressing.src, ctx.settings.grouping);
        flow.marks.is_proven = flow.marks.is_proven
            || !flow.run.is_empty()
            || self.heard.is_proven(host, ctx.now, || ctx.senders.has_backlog_of(grouping.unproven(host)));
        if flow.marks.is_proven {
            ctx.senders.serve(grouping.rc(host));
        }
    }
}

#[cfg(test)]
mod tests {
    use roce::wire::Qpn;

    use super::*;

    fn flow(host: IpAddr) -> FlowKey {
        FlowKey { requester: host, target: [10, 0, 1, 1].into(), target_qpn: Qpn::new(5) }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
    fn a_host_is_proven_while_it_has_a_flow_that_was_answered() {
        let (host, now) = (IpAddr::from([10, 0, 0, 1]), Instant::now());
        let mut heard = Heard::default();
        assert!(!heard.is_proven(host, now, || false));
        heard.join(&flow(host));
        heard.join(&flow(host));
        heard.leave(&flow(host));
        assert!(heard.is_proven(host, now, || false));
        heard.leave(&flow(host));
        assert!(!heard.is_proven(host, now, || false) && heard.hosts.is_empty());
    }

    /// Others in its group may keep that full for ever.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
    fn nothing_overtakes_what_a_host_sent_before_it_was_proven() {
        let (host, now) = (IpAddr::from([10, 0, 0, 1]), Instant::now());
        let mut heard = Heard::default();
        heard.join(&flow(host));
        assert!(!heard.is_proven(host, now, || true));
        assert!(!heard.is_proven(host, now + DRAINED / 2, || true));
        assert!(heard.is_proven(host, now + DRAINED, || true));
        assert!(heard.is_proven(host, now + DRAINED, || true), "from then on");
    }
}
