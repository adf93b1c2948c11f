//! The part for the other site: with which of its members this one agrees.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::{Duration, Instant};

use roce::hosts::{ALPHA, Hosts};

use super::{HostPair, LeaseId, MOST_MEMBERS, MemberId, Message, News, Outbox, Process, Since, Term, owner};

/// Leases given, and agreements under them.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Arbiter {
    incarnation: u64,
    /// Agreements of this member's former life may last until then.
    #[serde_as(as = "snapshot::At")]
    abstains_until: Instant,
    /// Counts leases.
    leases: u64,
    tenants: Vec<Tenant>,
    by_pair: BTreeMap<HostPair, Agreement>,
    #[serde(skip)]
    most: usize,
    /// Pairs that each member has begun.
    #[serde(skip)]
    shares: Hosts<MemberId>,
    /// Counts agreements.
    agreements: u64,
    /// The last holder that was asked whether it still claims its pair.
    asked: Option<HostPair>,
    /// A full table is not looked through again before this.
    #[serde_as(as = "snapshot::At")]
    next_look: Instant,
}

/// A process of the other site, and its lease.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Tenant {
    process: Process,
    lease: u64,
    #[serde_as(as = "snapshot::At")]
    until: Instant,
}

#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Agreement {
    /// The member that began it.
    begun_by: MemberId,
    /// The highest term that was claimed.
    highest: Term,
    /// The term agreed to last.
    holder: Option<Holder>,
    /// When the holder last had a lease, or somebody last claimed the pair.
    #[serde_as(as = "snapshot::At")]
    used: Instant,
}

/// Who speaks for a pair, as far as this member agreed.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Holder {
    term: Term,
    /// The number of the lease that the agreement stands under.
    lease: u64,
    since: Since,
}

/// Where the arbiter's words go: messages, and what the own member has to know.
type Tell<'a> = (&'a mut Outbox, &'a mut News);

/// Lives of a member that may have a lease.
const MOST_LIVES: usize = 4;
const MOST_TENANTS: usize = MOST_LIVES * MOST_MEMBERS;
/// Holders that are asked in each sweep whether they still claim their pairs.
const ASKED: usize = 64;

impl Arbiter {
    pub(super) fn new(incarnation: u64, most: usize, abstains_until: Instant) -> Self {
        Self {
            incarnation,
            abstains_until,
            leases: 0,
            tenants: Vec::new(),
            by_pair: BTreeMap::new(),
            // A member that is alone has its share of these: as many as it may claim.
            most: most.saturating_add(most.div_ceil(ALPHA)),
            shares: Hosts::default(),
            agreements: 0,
            asked: None,
            next_look: abstains_until,
        }
    }

    /// Goes on with what another process had, where this many pairs may be claimed. Returns false
    /// if it had more of anything than there is room for.
    pub(super) fn restore(&mut self, most: usize) -> bool {
        self.most = most;
        for agreement in self.by_pair.values() {
            self.shares.join(agreement.begun_by);
        }
        self.by_pair.len() <= most && self.tenants.len() <= MOST_TENANTS
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Gives or extends a lease; `None`: it is too early, or there are too many.
    pub(super) fn beat(&mut self, from: Process, lasts: Duration, now: Instant) -> Option<LeaseId> {
        if now < self.abstains_until {
            return None;
        }
        self.tenants.retain(|tenant| now < tenant.until);
        let is_life = |tenant: &&Tenant| tenant.process.member == from.member;
        let is_full =
            self.tenants.len() >= MOST_TENANTS || self.tenants.iter().filter(is_life).count() >= MOST_LIVES;
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

    /// This process was silent since then, and heard no beats. Leases that lasted then have a while
    /// to be extended. It has agreed with nobody else meanwhile.
    pub(super) fn excuse(&mut self, silent_since: Instant, until: Instant) {
        for tenant in self.tenants.iter_mut().filter(|tenant| silent_since < tenant.until) {
            tenant.until = tenant.until.max(until);
        }
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
                self.give_up(pair, |term| term.by == from && to.is_above(term), now, tell);
            }
            Message::Release(pair, term) => {
                self.give_up(pair, |held| term.by == from && held == term, now, tell);
                let is_last = |agreement: &Agreement| agreement.holder.is_none() && agreement.highest == term;
                if self.by_pair.get(&pair).is_some_and(is_last) {
                    self.remove(pair);
                }
            }
            _ => {}
        }
    }

    /// Takes a claim: agrees, asks the holder to yield first, or says which term is higher.
    fn claim(&mut self, pair: HostPair, term: Term, from: Process, now: Instant, tell: Tell<'_>) {
        let is_honest = term.by == from && now >= self.abstains_until;
        if !is_honest || self.lease(from, now).is_none() || !self.make_room(pair, from.member, now) {
            return;
        }
        let begun_by = from.member;
        let new = || Agreement { begun_by, highest: term, holder: None, used: now };
        let highest = self.by_pair.get(&pair).and_then(|agreement| self.binding(agreement, now));
        let agreement = self.by_pair.entry(pair).or_insert_with(new);
        if let Some(highest) = highest.filter(|highest| highest.is_above(term)) {
            return tell.0.push(from.member, Message::Outbid(pair, term, highest));
        }
        (agreement.highest, agreement.used) = (term, now);
        self.settle(pair, now, tell);
    }

    /// Returns the term that a claim has to be above: the highest of those whose processes have a
    /// lease. What another process claimed binds nobody: it holds no pair.
    fn binding(&self, agreement: &Agreement, now: Instant) -> Option<Term> {
        let highest = Some(agreement.highest).filter(|term| self.lease(term.by, now).is_some());
        highest.or_else(|| Some(self.valid_holder(agreement, now)?.term))
    }

    /// Has room for a pair that a member claims. Each has a share by what is free, as
    /// [hosts](roce::hosts) have.
    fn make_room(&mut self, pair: HostPair, member: MemberId, now: Instant) -> bool {
        if self.by_pair.contains_key(&pair) {
            return true;
        }
        if !self.may_begin(member) && now >= self.next_look {
            self.next_look = now + LOOK_EVERY;
            self.forget_void(Duration::ZERO, now);
        }
        let may_begin = self.may_begin(member);
        if may_begin {
            self.shares.join(member);
        }
        may_begin
    }

    fn may_begin(&self, member: MemberId) -> bool {
        self.shares.may_join(member, self.by_pair.len(), self.most)
    }

    fn remove(&mut self, pair: HostPair) {
        if let Some(agreement) = self.by_pair.remove(&pair) {
            self.shares.leave(agreement.begun_by);
        }
    }

    /// The holder says that it is silent, if its term is one that this is about.
    fn give_up(&mut self, pair: HostPair, is_it: impl Fn(Term) -> bool, now: Instant, tell: Tell<'_>) {
        let Some(agreement) = self.by_pair.get_mut(&pair) else { return };
        let Some(holder) = agreement.holder.take_if(|holder| is_it(holder.term)) else { return };
        if agreement.highest.is_above(holder.term) {
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
        self.ask_holders(now, out);
    }

    /// Asks some holders whether they still claim their pairs: a word that they do not may be lost.
    fn ask_holders(&mut self, now: Instant, out: &mut Outbox) {
        let from = self.asked.take().map_or(Bound::Unbounded, Bound::Excluded);
        for (pair, agreement) in self.by_pair.range((from, Bound::Unbounded)).take(ASKED) {
            if let Some(holder) = self.valid_holder(agreement, now) {
                out.push(holder.term.by.member, Message::Yield(*pair, holder.term));
            }
            self.asked = Some(*pair);
        }
    }

    fn forget_void(&mut self, remembered: Duration, now: Instant) {
        self.tenants.retain(|tenant| now < tenant.until);
        let Self { tenants, by_pair, shares, .. } = self;
        let is_leased = |process: Process| tenants.iter().any(|tenant| tenant.process == process);
        by_pair.retain(|_, agreement| {
            if agreement.holder.is_some_and(|holder| is_leased(holder.term.by)) {
                agreement.used = now;
                return true;
            }
            // A claim that nobody agrees to is made again and again, as long as it is one.
            let time = if agreement.holder.is_some() { remembered } else { remembered.min(LOOK_EVERY) };
            let is_kept = now.saturating_duration_since(agreement.used) < time;
            if !is_kept {
                shares.leave(agreement.begun_by);
            }
            is_kept
        });
    }
}

/// How long a claim without an agreement is kept, and between two looks through a full table.
const LOOK_EVERY: Duration = Duration::from_secs(1);
