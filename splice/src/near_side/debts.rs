//! Requester side: how fast flows begin whose targets have not answered.

use std::time::{Duration, Instant};

use crate::bucket::Bucket;
use crate::hosts::GROUPS;

/// Flows that are begun take up time, here and at the peer, which every host's packets need.
///
/// Whoever sends to ever other queue pairs that are not there begins a flow with each packet. So a
/// host has a number of them at once, and others at a pace. A flow that its target has answered
/// costs nothing, nor does one that is known otherwise: by connection management, or from before.
///
/// Names may be invented. So hosts that no target has answered have a pace together, too.
///
/// Bound: a moment for each group of hosts ([`crate::hosts::Grouping`]) and kind. Beyond the pace
/// the packet is dropped, as if the network had lost it.
#[derive(Debug, Default)]
pub(super) struct OpeningDebts {
    proven: Debts,
    unproven: Debts,
    /// The flows of all hosts that no target has answered.
    all: Bucket,
}

/// Who is charged for a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Account {
    #[default]
    Nobody,
    /// Nobody any more: its target has spoken.
    Answered,
    /// Its host, which was answered before.
    Proven,
    /// Its host, which was not.
    Unproven,
}

/// One in so much time, and so many at once.
#[derive(Clone, Copy)]
struct Pace {
    each: Duration,
    at_once: u32,
}

/// The pace of a host: far more than a NIC sets up.
const HOST: Pace = Pace { each: Duration::from_micros(25), at_once: 16_384 };
/// The pace of all hosts together that no target has answered.
const UNPROVEN: Pace = Pace { each: Duration::from_micros(20), at_once: 65_536 };

impl Pace {
    /// When it would be made up for if one more was begun; `None`: too late.
    fn after(self, begun: Bucket, cost: u32, now: Instant) -> Option<Instant> {
        begun.after(self.each * cost, self.each * self.at_once, now)
    }
}

#[derive(Debug)]
struct Debts([Bucket; GROUPS]);

impl Default for Debts {
    fn default() -> Self {
        Self([Bucket::default(); GROUPS])
    }
}

impl OpeningDebts {
    fn debt(&mut self, account: Account, group: u8) -> Option<&mut Bucket> {
        let debts = match account {
            Account::Nobody | Account::Answered => return None,
            Account::Proven => &mut self.proven,
            Account::Unproven => &mut self.unproven,
        };
        debts.0.get_mut(usize::from(group))
    }

    /// A host of this group begins a flow, which counts as `cost` of them. `false`: it is not to.
    pub(super) fn take(&mut self, account: Account, group: u8, cost: u32, now: Instant) -> bool {
        let all = match account {
            Account::Unproven => UNPROVEN.after(self.all, cost, now),
            _ => Some(now),
        };
        let Some(own) = self.debt(account, group) else { return true };
        let (Some(after), Some(all)) = (HOST.after(*own, cost, now), all) else { return false };
        own.pay(after);
        if account == Account::Unproven {
            self.all.pay(all);
        }
        true
    }

    /// A flow that they were charged for was answered.
    pub(super) fn give_back(&mut self, account: Account, group: u8) {
        if let Some(debt) = self.debt(account, group) {
            debt.give_back(HOST.each);
        }
        if account == Account::Unproven {
            self.all.give_back(UNPROVEN.each);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins as many as may begin now.
    fn begin(debts: &mut OpeningDebts, account: Account, group: u8, now: Instant) -> u32 {
        (0..).take_while(|_| debts.take(account, group, 1, now)).count() as u32
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
    fn each_group_has_a_pace_and_the_unproven_one_together() {
        let (mut debts, start) = (OpeningDebts::default(), Instant::now());
        for group in 0..4 {
            assert_eq!(begin(&mut debts, Account::Proven, group, start), HOST.at_once);
            assert_eq!(begin(&mut debts, Account::Unproven, group, start), HOST.at_once);
        }
        assert_eq!(begin(&mut debts, Account::Unproven, 4, start), 0, "the others have had all");
        assert_eq!(begin(&mut debts, Account::Proven, 4, start), HOST.at_once);
        let now = start + Duration::from_millis(100);
        assert_eq!(begin(&mut debts, Account::Proven, 0, now), 4000);
        assert_eq!(begin(&mut debts, Account::Unproven, 0, now), 4000);
        assert_eq!(begin(&mut debts, Account::Unproven, 4, now), 1000, "5,000 together");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
    fn whoever_floods_begins_others_at_a_slower_pace() {
        let (mut debts, start) = (OpeningDebts::default(), Instant::now());
        assert_eq!(begin(&mut debts, Account::Proven, 0, start), HOST.at_once);
        let now = start + Duration::from_millis(100);
        let begun = (0..).take_while(|_| debts.take(Account::Proven, 0, 4, now)).count();
        assert_eq!(begun, 1000);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
    fn flows_that_were_answered_cost_nothing() {
        let (mut debts, now) = (OpeningDebts::default(), Instant::now());
        for _ in 0..10 * UNPROVEN.at_once {
            assert!(debts.take(Account::Unproven, 7, 1, now));
            debts.give_back(Account::Unproven, 7);
        }
        assert!(debts.take(Account::Nobody, 7, 1, now));
        assert_eq!(begin(&mut debts, Account::Unproven, 7, now), HOST.at_once);
    }
}
