//! Several gateways of one site: which of them speaks for two hosts
//! (`docs/adr/0024-several-gateways.md`).
//!
//! A member is one of a site's gateways. Each runs one [`Members`]. For two hosts, one member of a
//! site is to speak to the host there. By its view that is the *owner*: the live member with the
//! highest hash of itself and the two hosts. Views differ for a while, so the owner also needs the
//! agreement of the other site's members. As long as it has that, it *speaks*.
//!
//! - *Leases.* A member sends beats to each member of the other site. The answers are its lease
//!   there. All that a peer agreed to is void as soon as the lease has ended.
//! - *Terms.* Each take-over of two hosts has a higher term. No two processes have the same one.
//!   A peer obeys the highest, and has the holder yield before it agrees with another.
//! - A member speaks while each peer that it has a lease of agrees, and one at least.
//!
//! So no peer agrees with two members at a time. Two members of a site can speak for the same hosts
//! only if no peer reaches both.
//!
//! A frame of the LAN, or a record of the peer, that comes to another member goes on to the owner
//! once, and is never handed over again.

mod arbiter;
mod claims;
mod kept;
mod lease;
mod times;
pub mod wire;

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use arbiter::Arbiter;
use claims::{Claim, Claims};
use lease::{Answer, PeerLease};
pub use times::Times;

/// Members of a site at most.
pub const MOST_MEMBERS: usize = 8;

/// A member: a number that all members of both sites know it by. No two have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct MemberId(pub u32);

/// One life of a member. A process that is started anew is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Process {
    /// The member.
    pub member: MemberId,
    /// Drawn at random for each start.
    pub incarnation: u64,
}

/// Two hosts, whichever of them sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct HostPair {
    low: IpAddr,
    high: IpAddr,
}

impl HostPair {
    /// The pair of these hosts.
    #[must_use]
    pub fn new(one: IpAddr, other: IpAddr) -> Self {
        Self { low: one.min(other), high: one.max(other) }
    }

    /// Returns both hosts, the lower address first.
    #[must_use]
    pub fn ends(self) -> [IpAddr; 2] {
        [self.low, self.high]
    }

    /// Returns how much a member is meant for the pair: the highest is.
    fn weight(self, member: MemberId) -> u64 {
        let mut hash = mix(u64::from(member.0));
        for address in [self.low, self.high] {
            let bits = match address {
                IpAddr::V4(address) => u128::from(address.to_bits()),
                IpAddr::V6(address) => address.to_bits(),
            };
            // Both halves of it.
            hash = mix(hash ^ (bits >> 64) as u64);
            hash = mix(hash ^ bits as u64);
        }
        hash
    }
}

/// Spreads all bits over all: the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Returns the pair's owner among these members, whatever their order.
#[must_use]
pub fn owner(pair: HostPair, members: impl IntoIterator<Item = MemberId>) -> Option<MemberId> {
    members.into_iter().max_by_key(|member| (pair.weight(*member), *member))
}

/// The order of take-overs. No two processes have the same term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Term {
    /// One more than any that the process knew of; 0 follows the highest.
    pub count: u64,
    /// The process that takes over.
    pub by: Process,
}

impl Term {
    /// Returns true if this take-over goes before the other one. Of two counts, the later one is
    /// less than half of all numbers ahead (RFC 1982). So no count is the last one, and whoever
    /// invents a high one has no pair for good.
    #[must_use]
    pub fn is_above(self, other: Self) -> bool {
        if self.count == other.count { self.by > other.by } else { is_later(self.count, other.count) }
    }
}

/// Returns true if the count comes after the other one. Of two that are half of all numbers apart
/// it is the greater one.
fn is_later(count: u64, other: u64) -> bool {
    const HALF: u64 = 1 << 63;
    let ahead = count.wrapping_sub(other);
    (1..HALF).contains(&ahead) || ahead == HALF && count > other
}

/// Returns the one of two counts that comes after the other.
fn later(count: u64, other: u64) -> u64 {
    if is_later(count, other) { count } else { other }
}

/// A lease, as the peer that gave it numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct LeaseId {
    /// The peer's life.
    pub incarnation: u64,
    /// Counts its leases.
    pub count: u64,
}

/// A word from one member to another. Whoever drives the core authenticates the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// To members of the own site: this process lives, takes its part towards another site, and
    /// reaches so many of its members.
    Alive(Towards, Reach),
    /// To members of the own site: this process takes its part towards another site, and is about
    /// to be silent for so many milliseconds at most, while another process takes its place.
    Pausing(Towards, u32),
    /// To a peer: extend the lease. Nanoseconds since the sender's start.
    Beat(u64),
    /// The peer's answer, with the number of the beat. Without a lease: it has just been started,
    /// and agrees with nobody yet.
    Beaten(u64, Option<LeaseId>),
    /// To peers: the sender is to speak for the pair under this term.
    Claim(HostPair, Term),
    /// The peer agrees, as long as this lease lasts, and has agreed with nobody else since.
    Agreed(HostPair, Term, LeaseId, Since),
    /// The peer does not agree with the first term: it knows of the second.
    Outbid(HostPair, Term, Term),
    /// The peer asks the holder to fall silent for this term. If the term is the holder's own, it
    /// asks whether it still claims the pair.
    Yield(HostPair, Term),
    /// The sender does not speak under any term below this one, nor will it.
    Yielded(HostPair, Term),
    /// The sender speaks no more under this term.
    Release(HostPair, Term),
    /// To the pair's owner: whoever spoke for the pair has no lease any more, says a peer; or
    /// something comes to the sender, who spoke for it and is not the owner.
    Wanted(HostPair),
}

impl Message {
    /// Returns the hosts that it is about, if it is about some.
    #[must_use]
    pub fn pair(&self) -> Option<HostPair> {
        match *self {
            Self::Alive(..) | Self::Pausing(..) | Self::Beat(_) | Self::Beaten(..) => None,
            Self::Claim(pair, _)
            | Self::Agreed(pair, ..)
            | Self::Outbid(pair, ..)
            | Self::Yield(pair, _)
            | Self::Yielded(pair, _)
            | Self::Release(pair, _)
            | Self::Wanted(pair) => Some(pair),
        }
    }
}

/// The other site, by a number that all members of this one know it by. A member that has several
/// other sites reaches each of them by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Towards(pub u32);

/// The number of an agreement, as the peer that agreed counts them. It stays the same as long as
/// the peer has agreed with nobody else in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Since(pub u64);

/// How many peers a member reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Reach {
    /// Peers that it has had a lease of without a break, for as long as a lease lasts.
    pub steadily: u8,
    /// Peers that it has a lease of, or had one of within the time that a lease lasts.
    pub lately: u8,
}

impl Reach {
    /// Bounds it by what may be true where there are so many peers. Another member may know more
    /// of them, as while one is added to the gateway files, or may lie.
    fn within(self, peers: usize) -> Self {
        let most = u8::try_from(peers).unwrap_or(u8::MAX);
        let steadily = self.steadily.min(most);
        Self { steadily, lately: self.lately.clamp(steadily, most) }
    }
}

/// A frame or a record that came for a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came {
    /// The host that sent it.
    pub from: IpAddr,
    /// The member that handed it over, if one did.
    pub handed_by: Option<MemberId>,
}

/// The fate of a frame of the LAN, or of a record of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is handled here: this member speaks for the pair.
    Here,
    /// It goes on to this member, marked as handed over.
    HandOver(MemberId),
    /// It is dropped: this member is about to speak for the pair. Senders repeat.
    NotYet,
    /// It is dropped: it was handed over, and this member does not speak for the pair.
    Stray,
    /// It is dropped: there are too many pairs.
    Full,
}

/// One member's knowledge of its site and of the other one.
///
/// # Driver contract
/// - After each call, take messages by [`Members::poll_transmit`] until `None`.
/// - Call [`Members::handle_timeout`] at [`Members::next_timeout`].
/// - `incarnation` and the numbers of members are unique. `now` never goes back.
/// - Ask [`Members::speaks`] before anything is sent to a host unasked, as for a timer.
/// - Messages may be lost, doubled and reordered. Their sender must be authenticated.
///
/// # Bounds
/// Memory for `pairs` pairs in each of the two roles, and for as many messages. A pair of which
/// both hosts were heard gives way to no other; a host and a peer have [shares](roce::hosts).
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Members {
    me: Process,
    towards: Towards,
    #[serde(skip)]
    times: Times,
    #[serde_as(as = "snapshot::At")]
    started: Instant,
    others: Vec<Other>,
    peers: Vec<PeerLease>,
    claims: Claims,
    arbiter: Arbiter,
    /// Messages that wait. Any may be lost, and is repeated.
    #[serde(skip)]
    out: Outbox,
    #[serde_as(as = "snapshot::At")]
    next_beat: Instant,
    /// When tables are next looked through for what can be forgotten.
    #[serde_as(as = "snapshot::At")]
    next_sweep: Instant,
    part: Part,
    news: News,
}

/// The part that a member takes in its site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Part {
    /// Its own.
    Taken,
    /// None for now: it has no hosts.
    Hostless,
    /// None any more: it is about to end.
    Left,
}

/// Pairs whose speaker at the other site has changed, and pairs that were displaced here.
///
/// # Bounds
/// An entry for each pair that either table may know.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
struct News(BTreeSet<HostPair>);

/// Another member of the own site.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Other {
    member: MemberId,
    #[serde_as(as = "Option<snapshot::At>")]
    heard: Option<Instant>,
    /// When it said that it is silent for a while, and lives; and until when that holds.
    #[serde_as(as = "Option<(snapshot::At, snapshot::At)>")]
    pause: Option<(Instant, Instant)>,
    reach: Reach,
}

impl Other {
    fn is_live(&self, dead: Duration, now: Instant) -> bool {
        let is_heard = self.heard.is_some_and(|heard| now.saturating_duration_since(heard) < dead);
        is_heard || self.pause.is_some_and(|(_, until)| now < until)
    }
}

/// Messages on their way out.
#[derive(Debug, Default)]
struct Outbox {
    queue: VecDeque<(MemberId, Message)>,
    most: usize,
}

impl Outbox {
    /// One beyond the bound is lost, as if the network had lost it.
    fn push(&mut self, to: MemberId, message: Message) {
        if self.queue.len() < self.most {
            self.queue.push_back((to, message));
        }
    }
}

impl Members {
    /// A member that has just been started. `others`: of its site; `peers`: of the other site. Of
    /// each, at most [`MOST_MEMBERS`] count.
    #[must_use]
    pub fn new(
        (me, towards): (Process, Towards),
        others: &[MemberId],
        peers: &[MemberId],
        (times, pairs): (Times, usize),
        now: Instant,
    ) -> Self {
        let others = others.iter().filter(|member| **member != me.member).take(MOST_MEMBERS - 1);
        let peers = peers.iter().take(MOST_MEMBERS);
        Self {
            me,
            towards,
            times,
            started: now,
            others: others
                .map(|member| Other { member: *member, heard: None, pause: None, reach: Reach::default() })
                .collect(),
            peers: peers.map(|peer| PeerLease::new(*peer)).collect(),
            claims: Claims::new(pairs),
            arbiter: Arbiter::new(me.incarnation, pairs, now + times.lease_by_peer()),
            part: Part::Taken,
            news: News::default(),
            out: Outbox { queue: VecDeque::new(), most: pairs.saturating_add(4 * MOST_MEMBERS) },
            next_beat: now,
            next_sweep: now + times.lease,
        }
    }

    /// Returns the live members of the own site, this one among them once it takes its part: it
    /// first listens for as long as others would need to be heard.
    ///
    /// One that reaches fewer peers than another does not count. The other must have reached more
    /// for a while, so that an outage of all ways, and its end, move no pair.
    pub fn live(&self, now: Instant) -> impl Iterator<Item = MemberId> {
        let most = self.heard(now).map(|(_, reach)| reach.steadily).max().unwrap_or(0);
        self.heard(now).filter(move |(_, reach)| reach.lately >= most).map(|(member, _)| member)
    }

    /// The members that live, and whom they reach.
    fn heard(&self, now: Instant) -> impl Iterator<Item = (MemberId, Reach)> {
        let me = self.takes_part(now).then(|| (self.me.member, self.reach(now)));
        let dead = self.times.dead;
        let is_live = move |other: &&Other| other.is_live(dead, now);
        self.others.iter().filter(is_live).map(|other| (other.member, other.reach)).chain(me)
    }

    /// Returns how many peers this member reaches.
    #[must_use]
    pub fn reach(&self, now: Instant) -> Reach {
        let count = |is_one: &dyn Fn(&&PeerLease) -> bool| {
            u8::try_from(self.peers.iter().filter(is_one).count()).unwrap_or(u8::MAX)
        };
        let lease = self.times.lease;
        Reach {
            steadily: count(&|peer| peer.is_held_for(lease, now)),
            lately: count(&|peer| peer.was_held_within(lease, now)),
        }
    }

    fn takes_part(&self, now: Instant) -> bool {
        self.part == Part::Taken && now.saturating_duration_since(self.started) >= self.times.dead
    }

    /// The process is about to end: it speaks for no pair any more, and lets its leases run out.
    pub fn leave(&mut self) {
        self.part = Part::Left;
    }

    /// Takes whether hosts can be reached. As long as they cannot, others speak, but leases go on:
    /// whoever has not been replaced goes on with its flows.
    pub fn set_hosts_reached(&mut self, are_reached: bool) {
        match self.part {
            Part::Left => {}
            Part::Taken | Part::Hostless => {
                self.part = if are_reached { Part::Taken } else { Part::Hostless };
            }
        }
    }

    /// Decides what becomes of a frame or a record of the pair.
    pub fn arrived(&mut self, pair: HostPair, came: Came, now: Instant) -> Fate {
        let Came { from, handed_by } = came;
        let owner = owner(pair, self.live(now));
        if owner != Some(self.me.member) {
            if let Some(owner) = owner {
                self.tell_owner(pair, owner, now);
            }
            return match (handed_by, owner) {
                (None, Some(owner)) => Fate::HandOver(owner),
                (None, None) => Fate::NotYet,
                (Some(_), _) => Fate::Stray,
            };
        }
        if !self.make_room(pair, from) {
            return Fate::Full;
        }
        self.claims.note_sender(pair, from);
        self.claim(pair, handed_by, now)
    }

    /// Something came here for a pair that another member owns. If peers agree with this one, it
    /// may be all that comes: a host that is sent nothing says nothing, and records go to whom the
    /// peers agree with. So the owner hears of it, and claims the pair.
    fn tell_owner(&mut self, pair: HostPair, owner: MemberId, now: Instant) {
        let claim = self.claims.known(pair);
        if claim.is_some_and(|claim| claim.may_ask(&self.times, now)) {
            self.out.push(owner, Message::Wanted(pair));
        }
    }

    /// Somebody says that something comes for the pair, and that nobody may speak for it.
    fn wanted(&mut self, pair: HostPair, now: Instant) {
        // Nobody has sent anything: either host stands for it.
        if owner(pair, self.live(now)) == Some(self.me.member) && self.make_room(pair, pair.low) {
            self.claim(pair, None, now);
        }
    }

    /// Claims the pair, or goes on to speak for it.
    fn claim(&mut self, pair: HostPair, handed_by: Option<MemberId>, now: Instant) -> Fate {
        let Some(claim) = self.claims.used(pair, now) else { return Fate::Full };
        if let Some((by, until)) = claim.outbid() {
            // Who took the pair over leaves it, if that one hands it over.
            if handed_by != Some(by.member) && now < until {
                return match handed_by {
                    Some(_) => Fate::Stray,
                    None if by.member == self.me.member => Fate::NotYet,
                    None => Fate::HandOver(by.member),
                };
            }
        }
        if claim.is_agreed(&self.peers, now) {
            return Fate::Here;
        }
        let term = claim.begin(self.me);
        if claim.may_ask(&self.times, now) {
            let peers = self.peers.iter().zip(0..);
            for (peer, _) in peers.filter(|(peer, place)| claim.lacks(peer, *place, now)) {
                self.out.push(peer.member(), Message::Claim(pair, term));
            }
        }
        Fate::NotYet
    }

    /// Has a claim for a pair that this host began. Where there are too many, one gives way of
    /// which only one host was heard. Returns false if there is none.
    fn make_room(&mut self, pair: HostPair, host: IpAddr) -> bool {
        let Ok(displaced) = self.claims.enter(pair, host) else { return false };
        if let Some((displaced, term)) = displaced {
            self.news.0.insert(displaced);
            if let Some(term) = term {
                self.tell_release(displaced, term);
            }
        }
        true
    }

    /// Returns true if this member may say something to hosts for the pair.
    #[must_use]
    pub fn speaks(&self, pair: HostPair, now: Instant) -> bool {
        self.term(pair, now).is_some()
    }

    /// Returns the term under which this member speaks for the pair.
    #[must_use]
    pub fn term(&self, pair: HostPair, now: Instant) -> Option<Term> {
        let claim = self.claims.find(pair)?;
        let is_mine = owner(pair, self.live(now)) == Some(self.me.member);
        claim.term().filter(|_| is_mine && claim.is_agreed(&self.peers, now))
    }

    /// Returns true if something has come for the pair lately that this member was to speak for.
    #[must_use]
    pub fn knows(&self, pair: HostPair) -> bool {
        self.claims.find(pair).is_some()
    }

    /// Returns the number of the time in which this member speaks for the pair, if it does. Within
    /// one time no other member has spoken that a peer which agrees knows of.
    pub fn stand(&mut self, pair: HostPair, now: Instant) -> Option<u64> {
        if !self.speaks(pair, now) {
            return None;
        }
        self.claims.stand(pair, &self.peers, now)
    }

    /// Returns the peer's member that speaks for the pair by this one's agreement, and since when.
    #[must_use]
    pub fn holder(&self, pair: HostPair, now: Instant) -> Option<(MemberId, Since)> {
        self.arbiter.holder(pair, now)
    }

    /// Returns a pair whose speaker at the other site has changed, by what this member agreed to,
    /// or that this member does not know any more.
    pub fn poll_news(&mut self) -> Option<HostPair> {
        self.news.0.pop_first()
    }

    /// Returns the peer's member that records of the pair go to: the one that this one agrees with,
    /// or else the owner among those that have a lease here.
    #[must_use]
    pub fn towards(&self, pair: HostPair, now: Instant) -> Option<MemberId> {
        let holder = self.arbiter.holder(pair, now).map(|(member, _)| member);
        holder.or_else(|| owner(pair, self.arbiter.leased(now)))
    }

    /// Takes a message of a process of either site. What does not come from a known member is
    /// ignored.
    pub fn handle_message(&mut self, from: Process, message: Message, now: Instant) {
        if let Message::Alive(towards, reach) = message {
            let mut others = self.others.iter_mut().filter(|_| towards == self.towards);
            if let Some(other) = others.find(|other| other.member == from.member) {
                (other.heard, other.reach) = (Some(now), reach.within(self.peers.len()));
                // What it said before may come after.
                other.pause.take_if(|(said, _)| now.saturating_duration_since(*said) >= self.times.dead);
            }
        } else if let Message::Pausing(towards, time) = message {
            self.handle_pausing(from, towards, time, now);
        } else if let Message::Wanted(pair) = message
            && self.is_of_site(from.member)
        {
            self.wanted(pair, now);
        } else if let Some(place) = self.peers.iter().position(|peer| peer.member() == from.member) {
            self.handle_peer(from, place, message, now);
        }
    }

    /// Takes a message of the peer at a place.
    fn handle_peer(&mut self, from: Process, place: usize, message: Message, now: Instant) {
        match message {
            Message::Alive(..) | Message::Pausing(..) => {}
            Message::Beat(sent) => {
                let lease = self.arbiter.beat(from, self.times.lease_by_peer(), now);
                let answer = Answer { to: from, beat: sent, lease };
                let peer = self.peers.get_mut(place);
                if let Some(answer) =
                    peer.map_or(Some(answer), |peer| peer.put_off(answer, self.times.beat, now))
                {
                    self.out.push(from.member, answer.message());
                }
            }
            Message::Beaten(sent, lease) => {
                let sent = self.started.checked_add(Duration::from_nanos(sent));
                let lease = lease.filter(|lease| lease.incarnation == from.incarnation);
                if let (Some(peer), Some(sent)) = (self.peers.get_mut(place), sent) {
                    peer.answered(sent, lease, &self.times, now);
                }
            }
            Message::Claim(..) | Message::Yielded(..) | Message::Release(..) => {
                let tell = (&mut self.out, &mut self.news);
                self.arbiter.handle(message, from, now, tell);
            }
            Message::Agreed(pair, term, lease, since) => {
                if let Some(claim) = self.claims.known(pair) {
                    claim.agreed(term, place, (lease, since));
                }
            }
            Message::Wanted(pair) => self.wanted(pair, now),
            Message::Outbid(pair, term, by) => {
                let is_claimed = self.claims.known(pair).is_some_and(|claim| claim.term() == Some(term));
                // What is not above a term ends no claim on it.
                if is_claimed && by.is_above(term) && self.is_of_site(by.by.member) {
                    self.claims.give_way(pair, by, now + self.times.hold_off);
                    self.tell_release(pair, term);
                }
            }
            Message::Yield(pair, to) if to.by == self.me => {
                // It asks whether this member still claims the pair.
                if self.claims.find(pair).and_then(Claim::term) != Some(to) {
                    self.out.push(from.member, Message::Release(pair, to));
                }
            }
            Message::Yield(_, to) if !self.is_of_site(to.by.member) => {}
            Message::Yield(pair, to) => {
                self.claims.give_way(pair, to, now + self.times.hold_off);
                self.out.push(from.member, Message::Yielded(pair, to));
            }
        }
    }

    /// Returns true for a member of the own site. Nobody else speaks to hosts here.
    fn is_of_site(&self, member: MemberId) -> bool {
        member == self.me.member || self.others.iter().any(|other| other.member == member)
    }

    fn tell_release(&mut self, pair: HostPair, term: Term) {
        for peer in &self.peers {
            self.out.push(peer.member(), Message::Release(pair, term));
        }
    }

    /// Returns the next message and the member that it is for.
    pub fn poll_transmit(&mut self) -> Option<(MemberId, Message)> {
        self.out.queue.pop_front()
    }

    /// Returns when [`Members::handle_timeout`] is to be called.
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        self.next_beat
    }

    /// Sends what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now < self.next_beat {
            return;
        }
        self.next_beat = now + self.times.beat;
        if self.takes_part(now) {
            let reach = self.reach(now);
            for other in &self.others {
                self.out.push(other.member, Message::Alive(self.towards, reach));
            }
        }
        let sent = now.saturating_duration_since(self.started).as_nanos();
        for peer in &mut self.peers {
            if self.part != Part::Left {
                self.out.push(peer.member(), Message::Beat(u64::try_from(sent).unwrap_or(u64::MAX)));
            }
            // Both are in one packet.
            if let Some(answer) = peer.take_answer(now) {
                self.out.push(peer.member(), answer.message());
            }
        }
        if now >= self.next_sweep {
            self.next_sweep = now + self.times.lease;
            for (pair, term) in self.claims.forget_idle(self.times.idle, now) {
                self.tell_release(pair, term);
            }
            self.arbiter.sweep(self.times.remembered, now, &mut self.out);
        }
    }
}

#[cfg(test)]
mod tests;
