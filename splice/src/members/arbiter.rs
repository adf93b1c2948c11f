//! The part for the other site: with which of its members this one agrees.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{HostPair, LeaseId, MOST_MEMBERS, MemberId, Message, Outbox, Process, Term};

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
    /// The term agreed to, and the number of the lease that it stands under.
    holder: Option<(Term, u64)>,
}

/// Processes that may have a lease: some lives of each member.
const MOST_TENANTS: usize = 4 * MOST_MEMBERS;

impl Arbiter {
    pub(super) fn new(incarnation: u64, most: usize, abstains_until: Instant) -> Self {
        let by_pair = BTreeMap::new();
        Self { incarnation, abstains_until, leases: 0, tenants: Vec::new(), by_pair, most }
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
    pub(super) fn holder(&self, pair: HostPair, now: Instant) -> Option<MemberId> {
        let (term, _) = self.valid_holder(self.by_pair.get(&pair)?, now)?;
        Some(term.by.member)
    }

    /// Returns the holder if its lease is still that of the agreement.
    fn valid_holder(&self, agreement: &Agreement, now: Instant) -> Option<(Term, u64)> {
        agreement.holder.filter(|(term, lease)| self.lease(term.by, now) == Some(*lease))
    }

    /// Takes a claim: agrees, asks the holder to yield first, or says which term is higher.
    pub(super) fn claim(
        &mut self,
        pair: HostPair,
        term: Term,
        from: Process,
        now: Instant,
        out: &mut Outbox,
    ) {
        let is_honest = term.by == from && now >= self.abstains_until;
        if !is_honest || self.lease(from, now).is_none() {
            return;
        }
        if self.by_pair.len() >= self.most && !self.by_pair.contains_key(&pair) {
            return;
        }
        let agreement = self.by_pair.entry(pair).or_insert(Agreement { highest: term, holder: None });
        if agreement.highest > term {
            return out.push(from.member, Message::Outbid(pair, term, agreement.highest));
        }
        agreement.highest = term;
        self.settle(pair, now, out);
    }

    /// The holder says that it is silent for a higher term.
    pub(super) fn yielded(
        &mut self,
        pair: HostPair,
        to: Term,
        from: Process,
        now: Instant,
        out: &mut Outbox,
    ) {
        let Some(agreement) = self.by_pair.get_mut(&pair) else { return };
        if agreement.holder.take_if(|(term, _)| term.by == from && *term < to).is_some() {
            self.settle(pair, now, out);
        }
    }

    /// The holder says that it is silent.
    pub(super) fn release(
        &mut self,
        pair: HostPair,
        term: Term,
        from: Process,
        now: Instant,
        out: &mut Outbox,
    ) {
        let Some(agreement) = self.by_pair.get_mut(&pair) else { return };
        if agreement.holder.take_if(|(held, _)| term.by == from && *held == term).is_some()
            && agreement.highest > term
        {
            self.settle(pair, now, out);
        }
    }

    /// Agrees with the highest term, once nobody else can still count on an agreement.
    fn settle(&mut self, pair: HostPair, now: Instant, out: &mut Outbox) {
        let Some(agreement) = self.by_pair.get(&pair) else { return };
        let highest = agreement.highest;
        let Some(lease) = self.lease(highest.by, now) else { return };
        if let Some((held, _)) = self.valid_holder(agreement, now)
            && held.by != highest.by
        {
            return out.push(held.by.member, Message::Yield(pair, highest));
        }
        if let Some(agreement) = self.by_pair.get_mut(&pair) {
            agreement.holder = Some((highest, lease));
        }
        let lease = LeaseId { incarnation: self.incarnation, count: lease };
        out.push(highest.by.member, Message::Agreed(pair, highest, lease));
    }

    /// Forgets pairs that nobody can count on: neither a holder nor a claim has a lease.
    pub(super) fn forget_void(&mut self, now: Instant) {
        self.tenants.retain(|tenant| now < tenant.until);
        let tenants = &self.tenants;
        let is_leased = |process: Process| tenants.iter().any(|tenant| tenant.process == process);
        self.by_pair.retain(|_, agreement| {
            is_leased(agreement.highest.by) || agreement.holder.is_some_and(|(term, _)| is_leased(term.by))
        });
    }
}
