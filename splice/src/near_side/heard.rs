//! Requester side: hosts that are known to be there, since targets have answered them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::debts::{Account, OpeningDebts};
use super::{NearFlow, NearKey, NearSide};
use crate::context::Context;
use crate::hosts::Grouping;

/// All that was sent before a host was known to be there has left the queue by then: it has half
/// of the link, and the queue holds 0.2 s.
const DRAINED: Duration = Duration::from_millis(500);

/// Hosts with flows whose target has spoken, or that connection management has named, and what
/// they and others have begun.
///
/// Bound: an entry for each host that has such a flow.
#[derive(Debug, Default)]
pub(super) struct Heard {
    hosts: BTreeMap<IpAddr, Host>,
    debts: OpeningDebts,
    /// The groups that are charged, once one was.
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
    /// One more flow of this host was answered.
    fn join(&mut self, host: IpAddr) {
        self.hosts.entry(host).or_default().flows += 1;
    }

    /// One of them is gone.
    pub(super) fn leave(&mut self, host: IpAddr) {
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
        self.grouping = Some(grouping);
        let is_there = self.hosts.contains_key(&host);
        let account = if is_there { Account::Proven } else { Account::Unproven };
        self.debts.take(account, grouping.group(host), now).then_some(account)
    }

    /// A flow of this host was answered that this account was charged for.
    fn answered(&mut self, account: Account, host: IpAddr) {
        if let Some(grouping) = self.grouping {
            self.debts.give_back(account, grouping.group(host));
        }
        self.join(host);
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
            heard.answered(account, flow.addressing.src);
        }
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
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
    fn a_host_is_proven_while_it_has_a_flow_that_was_answered() {
        let (host, now) = (IpAddr::from([10, 0, 0, 1]), Instant::now());
        let mut heard = Heard::default();
        assert!(!heard.is_proven(host, now, || false));
        heard.join(host);
        heard.join(host);
        heard.leave(host);
        assert!(heard.is_proven(host, now, || false));
        heard.leave(host);
        assert!(!heard.is_proven(host, now, || false) && heard.hosts.is_empty());
    }

    /// Others in its group may keep that full for ever.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
    fn nothing_overtakes_what_a_host_sent_before_it_was_proven() {
        let (host, now) = (IpAddr::from([10, 0, 0, 1]), Instant::now());
        let mut heard = Heard::default();
        heard.join(host);
        assert!(!heard.is_proven(host, now, || true));
        assert!(!heard.is_proven(host, now + DRAINED / 2, || true));
        assert!(heard.is_proven(host, now + DRAINED, || true));
        assert!(heard.is_proven(host, now + DRAINED, || true), "from then on");
    }
}
