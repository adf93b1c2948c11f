//! A site of several gateways, as one data-plane thread of one of them sees it
//! (`docs/adr/0024-several-gateways.md`).
//!
//! There is a [`Gateway`] for each member of the peer's site, as for a peer of its own, and one for
//! each other member of this site. All flows of two hosts are in the one towards the member that
//! speaks for them there: their *seat*. [`Site`] says which that is, what becomes of what comes
//! from the LAN, and what may go to it. It moves flows when the speaker at either site changes.
//!
//! - If nothing has come for the two hosts for long, the flows here are forgotten.
//! - If another process has spoken for the two hosts here since, the flows here are forgotten.
//! - If another one speaks for them there, the flows go to their new seat. Requesters may go on
//!   from there, and the peer is told of targets whose requesters may go on.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::Gateway;
use crate::gateway::moves::Released;
use crate::members::wire::Word;
use crate::members::{Came, Fate, HostPair, MemberId, Members, Message, Process, Since, Times, Towards};

mod kept;

/// Where a frame of the LAN goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To this gateway.
    Here(usize),
    /// To the member of this site that this gateway leads to ([`Gateway::hand_over`]).
    HandOver(usize),
    /// Nowhere: its sender repeats.
    Dropped,
}

/// Counts of frames and pairs of hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteStats {
    /// Frames handed over to another member.
    pub handed_over: u64,
    /// Frames, and packets for hosts, dropped while nobody speaks for their hosts yet.
    pub not_yet: u64,
    /// Frames dropped that had been handed over, and packets for hosts that others speak for.
    pub strays: u64,
    /// Frames dropped, since there were too many pairs of hosts.
    pub full: u64,
    /// Pairs of hosts whose flows went to another seat, or were forgotten.
    pub moved: u64,
    /// Their flows.
    pub flows_moved: u64,
    /// Messages of members that break the format, or are about hosts that are not the two sites'.
    pub malformed: u64,
}

/// Pairs of hosts that this member speaks for, and what has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spoken {
    /// All of them.
    pub pairs: usize,
    /// Pairs that it began to speak for, and one of them.
    pub begun: (usize, Option<HostPair>),
    /// Pairs that it speaks for no more, and one of them.
    pub ended: (usize, Option<HostPair>),
}

/// The sender and the receiver of a packet.
pub type Ends = [IpAddr; 2];

/// The parts of a [`Site`]. Members are named with the place of the [`Gateway`] that leads to
/// them.
#[derive(Clone, Debug)]
pub struct SiteConfig {
    /// This process.
    pub me: Process,
    /// The other members of this site.
    pub others: Vec<(MemberId, usize)>,
    /// The members of the peer's site.
    pub peers: Vec<(MemberId, usize)>,
    /// The peer's site, as the other members of this one know it.
    pub towards: Towards,
    /// Where the peer's hosts are.
    pub remote: Vec<IpNet>,
    /// Times of the members.
    pub times: Times,
    /// Pairs of hosts at most; what comes for one more is dropped and counted.
    pub pairs: usize,
}

/// A thread's part in its site, towards one other site.
///
/// # Driver contract
/// - Ask [`Site::arrived`] for each frame of the LAN, and [`Site::may_speak`] for each packet that
///   a gateway has for it.
/// - Hand messages that gateways received to [`Site::handle_word`], and take those to be sent by
///   [`Site::poll_word`].
/// - Call [`Site::settle`] after that, and [`Site::handle_timeout`] at [`Site::next_timeout`].
///
/// # Bounds
/// [`SiteConfig::pairs`], and as many more of which it is to be told. Flows are moved at most every
/// [`MOVE_EVERY`], all that are to move then.
#[derive(Debug)]
pub struct Site {
    members: Members,
    me: Process,
    others: Vec<(MemberId, usize)>,
    peers: Vec<(MemberId, usize)>,
    remote: Vec<IpNet>,
    pairs: usize,
    seats: BTreeMap<HostPair, Seat>,
    /// Seats of pairs that this member spoke for at the last [`Site::take_spoken`].
    told: BTreeSet<HostPair>,
    /// Pairs whose flows are to move.
    moving: BTreeSet<HostPair>,
    next_move: Instant,
    next_sweep: Instant,
    stats: SiteStats,
}

/// The gateway that has the flows of two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Seat {
    /// The time in which this member speaks.
    stand: u64,
    /// The agreement with the peer's member, once there was one.
    since: Option<Since>,
    gateway: usize,
}

/// Flows that go one way together: from a gateway to another, or nowhere.
type Route = (usize, Option<usize>);

/// Between two looks at all flows.
pub const MOVE_EVERY: Duration = Duration::from_millis(5);
/// Between two looks at all seats.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The gateways of a thread, by their places.
pub trait Gateways {
    /// Returns the one at a place.
    fn gateway(&mut self, place: usize) -> Option<&mut Gateway>;
}

impl Gateways for Vec<Gateway> {
    fn gateway(&mut self, place: usize) -> Option<&mut Gateway> {
        self.get_mut(place)
    }
}

impl Site {
    /// A thread's part that has just begun.
    #[must_use]
    pub fn new(config: SiteConfig, now: Instant) -> Self {
        let SiteConfig { me, others, peers, towards, remote, times, pairs } = config;
        let ids = |members: &[(MemberId, usize)]| members.iter().map(|(member, _)| *member).collect();
        let (other_ids, peer_ids): (Vec<_>, Vec<_>) = (ids(&others), ids(&peers));
        Self {
            members: Members::new((me, towards), &other_ids, &peer_ids, (times, pairs), now),
            me,
            others,
            peers,
            remote,
            pairs,
            seats: BTreeMap::new(),
            told: BTreeSet::new(),
            moving: BTreeSet::new(),
            next_move: now,
            next_sweep: now + SWEEP_EVERY,
            stats: SiteStats::default(),
        }
    }

    /// Decides what becomes of a frame of the LAN. `handed_by`: the member that handed it over, if
    /// one did. Such a one is never handed over again. A frame from or to other hosts is nobody's
    /// here, and the first gateway refuses it.
    pub fn arrived(&mut self, [from, to]: Ends, handed_by: Option<MemberId>, now: Instant) -> Way {
        if self.is_remote(from) {
            self.stats.strays += 1;
            return Way::Dropped;
        }
        if !self.is_remote(to) {
            return self.peers.first().map_or(Way::Dropped, |(_, gateway)| Way::Here(*gateway));
        }
        let pair = HostPair::new(from, to);
        match self.members.arrived(pair, Came { from, handed_by }, now) {
            Fate::Here => match self.seat(pair, now) {
                Some(gateway) => return Way::Here(gateway),
                None => self.stats.not_yet += 1,
            },
            Fate::HandOver(member) => {
                let other = self.others.iter().find(|(other, _)| *other == member);
                if let Some((_, gateway)) = other {
                    self.stats.handed_over += 1;
                    return Way::HandOver(*gateway);
                }
                self.stats.strays += 1;
            }
            Fate::NotYet => self.stats.not_yet += 1,
            Fate::Stray => self.stats.strays += 1,
            Fate::Full => self.stats.full += 1,
        }
        Way::Dropped
    }

    /// Decides whether a packet that a gateway has for a host may go there. If nobody speaks for
    /// the hosts yet, this member is about to.
    pub fn may_speak(&mut self, [from, to]: Ends, gateway: usize, now: Instant) -> bool {
        if !self.is_remote(from) || self.is_remote(to) {
            self.stats.strays += 1;
            return false;
        }
        let pair = HostPair::new(from, to);
        let fate = self.members.arrived(pair, Came { from, handed_by: None }, now);
        let speaks = fate == Fate::Here && self.seat(pair, now) == Some(gateway);
        match fate {
            Fate::Here if speaks => {}
            Fate::HandOver(_) | Fate::Stray => self.stats.strays += 1,
            Fate::Here | Fate::NotYet => self.stats.not_yet += 1,
            Fate::Full => self.stats.full += 1,
        }
        speaks
    }

    fn is_remote(&self, address: IpAddr) -> bool {
        self.remote.iter().any(|prefix| prefix.contains(&address))
    }

    /// Returns true if one of the hosts is at the peer's site, and the other one is not.
    fn is_between_sites(&self, pair: HostPair) -> bool {
        let [low, high] = pair.ends();
        self.is_remote(low) != self.is_remote(high)
    }

    /// Returns the gateway that has the flows of two hosts that this member speaks for. `None`:
    /// they are to move, or there is none.
    fn seat(&mut self, pair: HostPair, now: Instant) -> Option<usize> {
        let is_known = self.seats.contains_key(&pair);
        let wanted = self.wanted_seat(pair, now)?;
        if !is_known && self.seats.len() >= self.pairs {
            return None;
        }
        let seat = self.seats.entry(pair).or_insert(wanted);
        if *seat == wanted {
            return Some(seat.gateway);
        }
        if (seat.stand, seat.gateway, seat.since) == (wanted.stand, wanted.gateway, None) {
            *seat = wanted;
            return Some(seat.gateway);
        }
        self.moving.insert(pair);
        None
    }

    /// Returns where the flows belong. Without an agreement with a member of the peer's they stay,
    /// or begin with its owner.
    fn wanted_seat(&mut self, pair: HostPair, now: Instant) -> Option<Seat> {
        let stand = self.members.stand(pair, now)?;
        let before = self.seats.get(&pair).copied();
        let (member, since) = match (self.members.holder(pair, now), before) {
            (Some((member, since)), _) => (member, Some(since)),
            (None, Some(Seat { since, gateway, .. })) => return Some(Seat { stand, since, gateway }),
            (None, None) => (self.members.towards(pair, now)?, None),
        };
        let gateway = self.peers.iter().find(|(peer, _)| *peer == member)?.1;
        Some(Seat { stand, since, gateway })
    }

    /// Moves the flows that are to move. Returns when to call it again, if it is too early.
    pub fn settle(&mut self, gateways: &mut impl Gateways, now: Instant) -> Option<Instant> {
        while let Some(pair) = self.members.poll_news() {
            if !self.seats.contains_key(&pair) {
                continue;
            }
            if self.members.knows(pair) {
                // If they are to move, it notes that.
                let _ = self.seat(pair, now);
            } else {
                self.moving.insert(pair);
            }
        }
        if self.moving.is_empty() || now < self.next_move {
            return Some(self.next_move).filter(|_| !self.moving.is_empty());
        }
        self.next_move = now + MOVE_EVERY;
        let mut routes: BTreeMap<Route, BTreeSet<HostPair>> = BTreeMap::new();
        for pair in std::mem::take(&mut self.moving) {
            if !self.members.knows(pair) {
                if let Some(seat) = self.seats.remove(&pair) {
                    routes.entry((seat.gateway, None)).or_default().insert(pair);
                }
                continue;
            }
            let Some(wanted) = self.wanted_seat(pair, now) else { continue };
            let Some(seat) = self.seats.insert(pair, wanted) else { continue };
            let to = (seat.stand == wanted.stand).then_some(wanted.gateway);
            routes.entry((seat.gateway, to)).or_default().insert(pair);
            self.stats.moved += 1;
        }
        for ((from, to), pairs) in routes {
            let released = gateways.gateway(from).map(|gateway| gateway.release_hosts(&pairs, now));
            self.stats.flows_moved += released.as_ref().map_or(0, Released::flows) as u64;
            let to = to.and_then(|to| gateways.gateway(to));
            if let (Some(released), Some(to)) = (released, to) {
                to.adopt_hosts(released, now);
            }
        }
        None
    }

    /// Takes a message of a member, which its session proves. What breaks the format, or is about
    /// other hosts, is ignored and counted.
    pub fn handle_word(&mut self, from: MemberId, word: &Word, now: Instant) {
        let read = word.read();
        let is_ours = |message: &Message| message.pair().is_none_or(|pair| self.is_between_sites(pair));
        let Some((incarnation, message)) = read.filter(|(_, message)| is_ours(message)) else {
            self.stats.malformed += 1;
            return;
        };
        self.members.handle_message(Process { member: from, incarnation }, message, now);
    }

    /// Returns the next message, and the gateway that leads to the member that it is for.
    pub fn poll_word(&mut self) -> Option<(usize, Word)> {
        loop {
            let (to, message) = self.members.poll_transmit()?;
            let mut all = self.others.iter().chain(&self.peers);
            if let Some((_, gateway)) = all.find(|(member, _)| *member == to) {
                return Some((*gateway, Word::new(self.me.incarnation, &message)));
            }
        }
    }

    /// Returns the member of this site that a gateway leads to.
    #[must_use]
    pub fn other_at(&self, gateway: usize) -> Option<MemberId> {
        self.others.iter().find(|(_, place)| *place == gateway).map(|(member, _)| *member)
    }

    /// Returns the member of either site that a gateway leads to.
    #[must_use]
    pub fn member_at(&self, gateway: usize) -> Option<MemberId> {
        let mut all = self.others.iter().chain(&self.peers);
        all.find(|(_, place)| *place == gateway).map(|(member, _)| *member)
    }

    /// Returns when [`Site::handle_timeout`] is to be called.
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        let moves = Some(self.next_move).filter(|_| !self.moving.is_empty());
        moves.map_or(self.members.next_timeout(), |at| at.min(self.members.next_timeout()))
    }

    /// Sends what is due, and looks for hosts of which nothing has come for long.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.members.handle_timeout(now);
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP_EVERY;
            let Self { members, seats, moving, .. } = self;
            moving.extend(seats.keys().filter(|pair| !members.knows(**pair)));
        }
    }

    /// A session with another member has begun: what is said every while is said now.
    pub fn beat_at_once(&mut self, now: Instant) {
        self.members.beat_at_once(now);
    }

    /// This process did not run for so long. That is nobody's silence.
    pub fn excuse_pause(&mut self, pause: Duration, now: Instant) {
        self.members.excuse_pause(pause, now);
    }

    /// Speaks for no hosts any more: the process is about to end. The other members take over.
    pub fn leave(&mut self) {
        self.members.leave();
    }

    /// Takes whether hosts can be reached. As long as they cannot, the other members speak.
    pub fn set_hosts_reached(&mut self, are_reached: bool) {
        self.members.set_hosts_reached(are_reached);
    }

    /// Returns the members of this site that take part, as this one sees them.
    pub fn live(&self, now: Instant) -> impl Iterator<Item = MemberId> {
        self.members.live(now)
    }

    /// Returns true if this member speaks for two hosts.
    #[must_use]
    pub fn speaks(&self, pair: HostPair, now: Instant) -> bool {
        self.members.speaks(pair, now)
    }

    /// Returns the pairs of hosts that this member speaks for, and what has changed since the last
    /// call. Looks at all that it knows.
    pub fn take_spoken(&mut self, now: Instant) -> Spoken {
        let Self { members, seats, told, .. } = self;
        let mut spoken = Spoken::default();
        told.retain(|pair| {
            let speaks = members.speaks(*pair, now);
            if !speaks {
                spoken.ended = (spoken.ended.0 + 1, spoken.ended.1.or(Some(*pair)));
            }
            speaks
        });
        for pair in seats.keys().filter(|pair| members.speaks(**pair, now)) {
            spoken.pairs += 1;
            if told.insert(*pair) {
                spoken.begun = (spoken.begun.0 + 1, spoken.begun.1.or(Some(*pair)));
            }
        }
        spoken
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn stats(&self) -> SiteStats {
        self.stats
    }
}
