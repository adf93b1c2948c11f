//! The member's own part: pairs that it speaks for, or would.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::hosts::Hosts;
use roce::unheard::{Room, Ticket, Unheard};

use super::lease::PeerLease;
use super::{HostPair, LeaseId, MOST_MEMBERS, Process, Since, Term, Times, later};

/// All pairs that something came for.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Claims {
    by_pair: BTreeMap<HostPair, Claim>,
    #[serde(skip)]
    most: usize,
    /// Pairs that each host has begun.
    #[serde(skip)]
    hosts: Hosts,
    /// Pairs of which one host was heard only: they give way to others.
    #[serde(skip)]
    unheard: Unheard<HostPair>,
    /// The highest count of a term for a pair that is not in the table. New claims are above it.
    floor: u64,
    /// Counts the times in which a pair was spoken for.
    stands: u64,
}

/// There is no room for one more pair of this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// A member's claim on one pair.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Claim {
    /// The highest count of a term that is known.
    known: u64,
    state: State,
    /// When something last came.
    #[serde_as(as = "Option<snapshot::At>")]
    used: Option<Instant>,
    stand: Stand,
    /// The host that began it.
    host: IpAddr,
    /// Which of the hosts have been heard, the lower address first.
    heard: [bool; 2],
    /// Until both have been.
    #[serde(skip)]
    unheard: Option<Ticket>,
}

/// The last time in which the member spoke for a pair.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
struct Stand {
    number: u64,
    /// The agreements that it had at last, in the peers' order.
    under: [Option<(u64, Since)>; MOST_MEMBERS],
}

#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum State {
    /// It claims nothing.
    Idle,
    /// It claims, and perhaps speaks.
    Claimed {
        term: Term,
        /// The leases under which peers agreed, in the peers' order.
        agreed: Box<[Option<(LeaseId, Since)>; MOST_MEMBERS]>,
        #[serde_as(as = "Option<snapshot::At>")]
        asked: Option<Instant>,
    },
    /// Another process has a higher term.
    Outbid {
        by: Process,
        #[serde_as(as = "snapshot::At")]
        until: Instant,
    },
}

impl Claims {
    pub(super) fn new(most: usize) -> Self {
        let (hosts, unheard) = (Hosts::default(), Unheard::default());
        Self { by_pair: BTreeMap::new(), most, hosts, unheard, floor: 0, stands: 0 }
    }

    /// Goes on with what another process had, where there are this many pairs at most. Which pair
    /// gives way first is another one than there. Returns false if it had more.
    pub(super) fn restore(&mut self, most: usize) -> bool {
        let Self { by_pair, hosts, unheard, .. } = self;
        for (pair, claim) in by_pair.iter_mut() {
            hosts.join(claim.host);
            if claim.heard != [true; 2] {
                claim.unheard = Some(unheard.enter(claim.host, *pair));
            }
        }
        self.most = most;
        self.by_pair.len() <= most
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Has a claim for a pair that this host began, if there is none. Returns the pair that gave
    /// way to it, and its term.
    pub(super) fn enter(
        &mut self,
        pair: HostPair,
        host: IpAddr,
    ) -> Result<Option<(HostPair, Option<Term>)>, Full> {
        if self.by_pair.contains_key(&pair) {
            return Ok(None);
        }
        let displaced = match self.unheard.room_for(host, &self.hosts, self.by_pair.len(), self.most) {
            Room::Free => None,
            Room::InPlaceOf(other) => self.remove(other).map(|claim| (other, claim.term())),
            Room::None => return Err(Full),
        };
        self.hosts.join(host);
        let claim = Claim {
            known: self.floor,
            state: State::Idle,
            used: None,
            stand: Stand::default(),
            host,
            heard: [false; 2],
            unheard: Some(self.unheard.enter(host, pair)),
        };
        self.by_pair.insert(pair, claim);
        Ok(displaced)
    }

    /// Forgets a claim. A later one has a higher term.
    fn remove(&mut self, pair: HostPair) -> Option<Claim> {
        let mut claim = self.by_pair.remove(&pair)?;
        self.hosts.leave(claim.host);
        self.unheard.leave(claim.host, &mut claim.unheard);
        self.floor = later(self.floor, claim.known);
        Some(claim)
    }

    /// Takes that one of the hosts has sent something.
    pub(super) fn note_sender(&mut self, pair: HostPair, from: IpAddr) {
        let Some(claim) = self.by_pair.get_mut(&pair) else { return };
        let [low, high] = &mut claim.heard;
        *(if from == pair.low { low } else { high }) = true;
        if claim.unheard.is_some() && claim.heard == [true; 2] {
            self.unheard.leave(claim.host, &mut claim.unheard);
        }
    }

    /// Returns the pair's claim for something that came.
    pub(super) fn used(&mut self, pair: HostPair, now: Instant) -> Option<&mut Claim> {
        let claim = self.by_pair.get_mut(&pair)?;
        claim.used = Some(now);
        Some(claim)
    }

    pub(super) fn find(&self, pair: HostPair) -> Option<&Claim> {
        self.by_pair.get(&pair)
    }

    /// Returns the number of the time in which the pair, which is agreed, is spoken for. It is
    /// another one unless a peer has agreed all the while.
    pub(super) fn stand(&mut self, pair: HostPair, peers: &[PeerLease], now: Instant) -> Option<u64> {
        let claim = self.by_pair.get_mut(&pair)?;
        let State::Claimed { agreed, .. } = &claim.state else { return None };
        let mut under = [None; MOST_MEMBERS];
        for ((place, peer), agreed) in under.iter_mut().zip(peers).zip(agreed.iter()) {
            let held = agreed.filter(|(lease, _)| peer.valid(now) == Some(*lease));
            *place = held.map(|(lease, since)| (lease.incarnation, since));
        }
        let before = claim.stand;
        let goes_on = under.iter().zip(before.under).any(|(now, then)| now.is_some() && *now == then);
        if !goes_on {
            self.stands += 1;
            claim.stand.number = self.stands;
        }
        claim.stand.under = under;
        Some(claim.stand.number)
    }

    pub(super) fn known(&mut self, pair: HostPair) -> Option<&mut Claim> {
        self.by_pair.get_mut(&pair)
    }

    /// Forgets pairs that nothing has come for, and returns the terms that are released with them.
    pub(super) fn forget_idle(&mut self, idle: Duration, now: Instant) -> Vec<(HostPair, Term)> {
        let is_idle =
            |claim: &Claim| claim.used.is_none_or(|used| now.saturating_duration_since(used) >= idle);
        let gone: Vec<_> =
            self.by_pair.iter().filter(|(_, claim)| is_idle(claim)).map(|(pair, _)| *pair).collect();
        gone.into_iter().filter_map(|pair| Some((pair, self.remove(pair)?.term()?))).collect()
    }

    /// Takes that another process has a higher term: this one falls silent, if it spoke.
    pub(super) fn give_way(&mut self, pair: HostPair, to: Term, until: Instant) {
        match self.by_pair.get_mut(&pair) {
            Some(claim) if claim.term().is_none_or(|term| to.is_above(term)) => claim.outbid_by(to, until),
            Some(_) => {}
            None => self.floor = later(self.floor, to.count),
        }
    }
}

impl Claim {
    pub(super) fn term(&self) -> Option<Term> {
        match self.state {
            State::Claimed { term, .. } => Some(term),
            State::Idle | State::Outbid { .. } => None,
        }
    }

    /// Returns who has a higher term, and until when that one is left in peace.
    pub(super) fn outbid(&self) -> Option<(Process, Instant)> {
        match self.state {
            State::Outbid { by, until } => Some((by, until)),
            State::Idle | State::Claimed { .. } => None,
        }
    }

    /// Returns true if each peer agrees that there is a lease of, and one at least.
    pub(super) fn is_agreed(&self, peers: &[PeerLease], now: Instant) -> bool {
        peers.iter().any(|peer| peer.valid(now).is_some())
            && self.term().is_some()
            && !peers.iter().zip(0..).any(|(peer, place)| self.lacks(peer, place, now))
    }

    /// Returns true if the peer at a place would have to agree, and has not.
    pub(super) fn lacks(&self, peer: &PeerLease, place: usize, now: Instant) -> bool {
        let State::Claimed { agreed, .. } = &self.state else { return peer.valid(now).is_some() };
        let agreed = agreed.get(place).copied().flatten().map(|(lease, _)| lease);
        peer.valid(now).is_some_and(|lease| agreed != Some(lease))
    }

    /// Returns the term that is claimed: a new one, if none was.
    pub(super) fn begin(&mut self, me: Process) -> Term {
        if let Some(term) = self.term() {
            return term;
        }
        self.known = self.known.wrapping_add(1);
        let term = Term { count: self.known, by: me };
        self.state = State::Claimed { term, agreed: Box::new([None; MOST_MEMBERS]), asked: None };
        term
    }

    /// Returns true if it is time to ask the peers, and takes it that they are.
    pub(super) fn may_ask(&mut self, times: &Times, now: Instant) -> bool {
        let State::Claimed { asked, .. } = &mut self.state else { return false };
        let is_time = asked.is_none_or(|last| now.saturating_duration_since(last) >= times.retry);
        if is_time {
            *asked = Some(now);
        }
        is_time
    }

    /// Takes that the peer at a place agrees with a term.
    pub(super) fn agreed(&mut self, with: Term, place: usize, agreement: (LeaseId, Since)) {
        if let State::Claimed { term, agreed, .. } = &mut self.state
            && *term == with
            && let Some(agreed) = agreed.get_mut(place)
        {
            *agreed = Some(agreement);
        }
    }

    /// Falls silent for a higher term.
    pub(super) fn outbid_by(&mut self, term: Term, until: Instant) {
        self.known = later(self.known, term.count);
        self.state = State::Outbid { by: term.by, until };
    }
}
