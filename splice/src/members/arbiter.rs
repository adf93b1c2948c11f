//! The part for the other site: with which of its members this one agrees.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{HostPair, LeaseId, MOST_MEMBERS, MemberId, Message, News, Outbox, Process, Since, Term, owner};

/// Leases given, and agreements under them.
#[derive(Debug)]
pub(super) struct Arbiter {
    incarnation: u64,
    /// Agreements of this member's former life may last until then.
    abstains_until: Instant,
    /// Counts leases.
    leases: u64,
    tenants: Vec<Tenant>,
    by_pair: BTreeMap<HostPair, Agreement>,
    most: usize,
    /// Counts agreements.
    agreements: u64,
}

/// A process of the other site, and its lease.
#[derive(Debug)]
struct Tenant {
    process: Process,
    lease: u64,
    until: Instant,
}

#[derive(Debug)]
struct Agreement {
    /// The highest term that was claimed.
    highest: Term,
    /// The term agreed to last.
    holder: Option<Holder>,
    /// When somebody last had a lease who holds the pair, or claims it.
    used: Instant,
}

/// Who speaks for a pair, as far as this member agreed.
#[derive(Clone, Copy, Debug)]
struct Holder {
    term: Term,
    /// The number of the lease that the agreement stands under.
    lease: u64,
    since: Since,
}

/// Where the arbiter's words go: messages, and what the own member has to know.
type Tell<'a> = (&'a mut Outbox, &'a mut News);

/// Processes that may have a lease: some lives of each member.
const MOST_TENANTS: usize = 4 * MOST_MEMBERS;

impl Arbiter {
    pub(super) fn new(incarnation: u64, most: usize, abstains_until: Instant) -> Self {
        let by_pair = BTreeMap::new();
        Self { incarnation, abstains_until, leases: 0, tenants: Vec::new(), by_pair, most, agreements: 0 }
    }

    /// Gives or extends a lease; `None`: it is too early, or there are too many.
    pub(super) fn beat(&mut self, from: Process, lasts: Duration, now: Instant) -> Option<LeaseId> {
        if now < self.abstains_until {
            return None;
        }
        self.tenants.retain(|tenant| now < tenant.until);
        let is_full = self.tenants.len() >= MOST_TENANTS;
        let known = self.tenants.iter_mut().find(|tenant| tenant.process == from);
        let count = match known {
            Some(tenant) => {
                tenant.until = now + lasts;
                tenant.lease
            }
            None if is_full => return None,
            None => {
                self.leases += 1;
                self.tenants.push(Tenant { process: from, lease: self.leases, until: now + lasts });
                self.leases
            }
        };
        Some(LeaseId { incarnation: self.incarnation, count })
    }

    /// Returns the number of a process's lease if it lasts.
    fn lease(&self, process: Process, now: Instant) -> Option<u64> {
        let is_it = |tenant: &&Tenant| tenant.process == process && now < tenant.until;
        self.tenants.iter().find(is_it).map(|tenant| tenant.lease)
    }

    /// Returns the members that have a lease.
    pub(super) fn leased(&self, now: Instant) -> impl Iterator<Item = MemberId> {
        let is_valid = move |tenant: &&Tenant| now < tenant.until;
        self.tenants.iter().filter(is_valid).map(|tenant| tenant.process.member)
    }

    /// Returns the member that this one agrees with.
    pub(super) fn holder(&self, pair: HostPair, now: Instant) -> Option<(MemberId, Since)> {
        let holder = self.valid_holder(self.by_pair.get(&pair)?, now)?;
        Some((holder.term.by.member, holder.since))
    }

    /// Returns the holder if its lease is still that of the agreement.
    fn valid_holder(&self, agreement: &Agreement, now: Instant) -> Option<Holder> {
        agreement.holder.filter(|holder| self.lease(holder.term.by, now) == Some(holder.lease))
    }

    /// Takes a message of a member that claims pairs.
    pub(super) fn handle(&mut self, message: Message, from: Process, now: Instant, tell: Tell<'_>) {
        match message {
            Message::Claim(pair, term) => self.claim(pair, term, from, now, tell),
            Message::Yielded(pair, to) => {
                self.give_up(pair, |term| term.by == from && term < to, now, tell);
            }
            Message::Release(pair, term) => {
                self.give_up(pair, |held| term.by == from && held == term, now, tell);
            }
            _ => {}
        }
    }

    /// Takes a claim: agrees, asks the holder to yield first, or says which term is higher.
    fn claim(&mut self, pair: HostPair, term: Term, from: Process, now: Instant, tell: Tell<'_>) {
        let is_honest = term.by == from && now >= self.abstains_until;
        if !is_honest || self.lease(from, now).is_none() {
            return;
        }
        if self.by_pair.len() >= self.most && !self.by_pair.contains_key(&pair) {
            self.forget_void(Duration::ZERO, now);
            if self.by_pair.len() >= self.most {
                return;
            }
        }
        let new = Agreement { highest: term, holder: None, used: now };
        let agreement = self.by_pair.entry(pair).or_insert(new);
        if agreement.highest > term {
            return tell.0.push(from.member, Message::Outbid(pair, term, agreement.highest));
        }
        agreement.highest = term;
        self.settle(pair, now, tell);
    }

    /// The holder says that it is silent, if its term is one that this is about.
    fn give_up(&mut self, pair: HostPair, is_it: impl Fn(Term) -> bool, now: Instant, tell: Tell<'_>) {
        let Some(agreement) = self.by_pair.get_mut(&pair) else { return };
        let Some(holder) = agreement.holder.take_if(|holder| is_it(holder.term)) else { return };
        if agreement.highest > holder.term {
            self.settle(pair, now, tell);
        }
    }

    /// Agrees with the highest term, once nobody else can still count on an agreement.
    fn settle(&mut self, pair: HostPair, now: Instant, (out, news): Tell<'_>) {
        let Some(agreement) = self.by_pair.get(&pair) else { return };
        let highest = agreement.highest;
        let Some(lease) = self.lease(highest.by, now) else { return };
        if let Some(holder) = self.valid_holder(agreement, now)
            && holder.term.by != highest.by
        {
            return out.push(holder.term.by.member, Message::Yield(pair, highest));
        }
        let before = agreement.holder.filter(|holder| holder.term == highest);
        let since = before.map_or(Since(self.agreements + 1), |holder| holder.since);
        if before.is_none() {
            self.agreements += 1;
            news.0.insert(pair);
        }
        if let Some(agreement) = self.by_pair.get_mut(&pair) {
            agreement.holder = Some(Holder { term: highest, lease, since });
            agreement.used = now;
        }
        let lease = LeaseId { incarnation: self.incarnation, count: lease };
        out.push(highest.by.member, Message::Agreed(pair, highest, lease, since));
    }

    /// Forgets pairs that nobody has had a lease for in so long. Tells owners of those whose
    /// speaker has none: they may speak.
    pub(super) fn sweep(&mut self, remembered: Duration, now: Instant, out: &mut Outbox) {
        self.forget_void(remembered, now);
        for (pair, agreement) in &self.by_pair {
            // Who said that nothing comes for the pair is not replaced.
            let is_widowed = agreement.holder.is_some() && self.valid_holder(agreement, now).is_none();
            if let Some(heir) = owner(*pair, self.leased(now)).filter(|_| is_widowed) {
                out.push(heir, Message::Wanted(*pair));
            }
        }
    }

    fn forget_void(&mut self, remembered: Duration, now: Instant) {
        self.tenants.retain(|tenant| now < tenant.until);
        let tenants = &self.tenants;
        let is_leased = |process: Process| tenants.iter().any(|tenant| tenant.process == process);
        self.by_pair.retain(|_, agreement| {
            let holder = agreement.holder.map(|holder| holder.term.by);
            if is_leased(agreement.highest.by) || holder.is_some_and(is_leased) {
                agreement.used = now;
            }
            let unused = now.saturating_duration_since(agreement.used);
            agreement.used == now || unused < remembered
        });
    }
}
