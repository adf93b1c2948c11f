//! The data plane: threads that own their sockets, their keys and their flows each, and take no
//! lock. What one of them does is here; which packets are whose, in [`steering`](crate::steering).

mod ahead;
mod freeze;
mod members;
mod moderation;
mod peer;
mod periodic;
mod routes;
mod share;

use std::array;
use std::io;
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{Policy, Wan};
use ipnet::IpNet;
use roce::ip::{Received, Reject, Unverified};
use session::{Opener, Rejected, Sealer};
use splice::site::SiteStats;
use splice::{Gateway, SessionEnd, StaleFlow, Tuning, Undrained};

use crate::cells::Cells;
use crate::lan::Lan;
use crate::lan::wake::{PollFd, PollFlags, Wakeup, poll, precise_timers};
use crate::wan::Bulk;

pub use ahead::Ahead;
pub use freeze::{Freeze, Frozen, Lent};
pub use members::{Membership, Parts};
use moderation::InterruptModeration;
use peer::Next;
pub use peer::{PeerAddress, PeerSide};
use routes::{Route, Routes};
pub use share::Share;

/// How the flows of the session before go on.
pub struct GoOn {
    /// Without its streams: the peer's process is another one, which has no flows.
    pub outlive: bool,
    /// How many flows waited is sent back.
    pub waited: tokio::sync::oneshot::Sender<usize>,
}

/// An order from the control side to the data plane.
pub enum Order {
    /// A session has begun.
    Up {
        /// The interface's index by which a link-local peer is reached; 0: as it was.
        scope: u32,
        /// Seals what goes to the peer, and opens what comes from it.
        keys: (Box<Sealer>, Box<Opener>),
        /// A first estimate of the round-trip time.
        rtt: Duration,
        /// Longest WAN packet that the peer takes, plaintext bytes.
        max_packet: usize,
        /// Lanes that the peer's thread sends on.
        lanes: u8,
        /// Prefixes that the peer takes for this site's; none if it does not say.
        takes: Arc<[IpNet]>,
        /// The peer takes it for no end of a flow that there was no place for its other half.
        begins_again: bool,
        /// Flows of the session before that are this thread's, as the peer knows them.
        remembered: Vec<StaleFlow>,
        /// The flows of the session before go on.
        resumes: Option<GoOn>,
    },
    /// The control connection is lost, and the flows wait for the next session. Bulk data go on
    /// under the keys that there are, until nothing came for so long. `None`: the keys serve no
    /// more. The flows to tell the peer of, and how many wait, are sent back.
    Lost(Option<Duration>, tokio::sync::oneshot::Sender<(Vec<StaleFlow>, usize)>),
    /// The session is over. What the peer should be told of its flows is sent back.
    Down(SessionEnd, tokio::sync::oneshot::Sender<Vec<StaleFlow>>),
    /// A class's streams change their schemes, if the policy is still in force. Should the session
    /// have ended since, the next one begins with this.
    Scheme {
        /// The policy that it was chosen under.
        policy: Arc<Policy>,
        /// The class's index in it.
        class: usize,
        /// The settings.
        tuning: Tuning,
    },
    /// Answer whether there are streams for another policy.
    Consider(Arc<Policy>, tokio::sync::oneshot::Sender<Result<(), Undrained>>),
    /// Go over to another policy, whose classes' numbers go to these cells; answer whether there
    /// are streams for it.
    Policy(Arc<Policy>, Arc<Cells>, tokio::sync::oneshot::Sender<Result<(), Undrained>>),
    /// Take no new flow; answer when nothing is on its way any more, or at the deadline.
    Drain(Instant, tokio::sync::oneshot::Sender<bool>),
    /// After [`Order::Down`]: answer when the programs here have been told that their flows are
    /// over, or at the deadline.
    Part(Instant, tokio::sync::oneshot::Sender<bool>),
    /// Answer with copies of the sockets that another process may go on with.
    Lend(tokio::sync::oneshot::Sender<io::Result<Lent>>),
    /// Copy packets to memory shared with a process that may take over, and go on.
    CopyAhead(Box<Ahead>),
    /// Stand still, while another process may take over. For the whole thread, whichever peer's
    /// order it is.
    Freeze(Freeze),
    /// End the thread.
    Stop,
}

/// Counts that only the data plane can make.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// RoCE packets taken from the LAN for the peer.
    pub lan_packets: u64,
    /// Their bytes, IP header included.
    pub lan_bytes: u64,
    /// Bytes of IP packets sent to the LAN.
    pub lan_sent_bytes: u64,
    /// IP packets of the LAN that were refused, by [`Reject::index`]; with the first peer's counts.
    pub lan_rejects: [u64; Reject::ALL.len()],
    /// Bulk datagrams that were refused, by [`Rejected::index`].
    pub wan_rejects: [u64; Rejected::ALL.len()],
    /// Bulk datagrams that were authentic and new, by lane.
    pub wan_opened: PerLane,
    /// The LAN interface: 1 not usable, 2 usable.
    pub lan_up: u64,
    /// Bulk datagrams while there was no session.
    pub wan_no_session: u64,
    /// Packets that could not be sealed: the session's numbers are used up (2^64), so never in
    /// practice. Nothing leaves any more then.
    pub seal_failures: u64,
    /// Times there was nothing to do, and the thread slept; with the first peer's counts.
    pub sleeps: u64,
    /// The gateways of this site, if they are several or the peer's are.
    pub members: MemberCounts,
}

/// Counts of a site of several gateways, in what it does for the hosts behind a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberCounts {
    /// The part of a peer that is another gateway of this site: 1 takes none, 2 takes its part.
    pub takes_part: u64,
    /// Gateways of this site that take part.
    pub live: u64,
    /// Pairs of hosts that this gateway speaks for; with the first peer of their site, as all that
    /// follow.
    pub pairs: u64,
    /// Frames handed over, and so on.
    pub site: SiteStats,
}

/// Receives what the data plane has counted towards one peer, about ten times a second.
pub trait Observer: Send {
    /// Copies what it wants, without blocking.
    fn observe(&mut self, core: &mut Gateway, counts: &Counts, bulk: &Bulk, lan: &Lan, session: bool);

    /// The policy has changed; the next observation is of its classes.
    fn reclassify(&mut self, cells: Arc<Cells>);
}

/// Everything the thread owns. Made in it ([`Worker::run`] never returns until told to), since the
/// cores' buffers do not change threads.
///
/// Each peer has a [`PeerSide`] of its own: flows, session, sockets and orders. One with another
/// number of threads has several: one for each with which this one exchanges data. What a local
/// host sends goes to the peer that its destination is behind.
pub struct Worker<O> {
    lan: Lan,
    /// In the gateway file's order, and a peer's in that of the pairs of threads.
    peers: Vec<PeerSide<O>>,
    routes: Routes,
    /// `None`: each site has one gateway.
    members: Option<Parts>,
    next_told: Instant,
    /// The peer whose packets for the LAN come first.
    turn: usize,
    wakeup: Wakeup,
    /// When the last round began.
    last_round: Instant,
    next_observation: Instant,
    next_check: Instant,
    /// Longest IP packet for the LAN, as the cores know it.
    lan_mtu: usize,
    vigil: Vigil,
    rest: InterruptModeration,
}

/// How long a thread that has had nothing to do goes on looking.
struct Vigil {
    busy_poll: Duration,
    /// Until then it does not sleep.
    until: Instant,
}

/// Where there may be something to receive.
#[derive(Clone, Copy)]
struct Ready {
    orders: bool,
    lan: bool,
    /// A bit for each side, the first one's the lowest.
    wan: u128,
}

impl Ready {
    const ALL: Self = Self { orders: true, lan: true, wan: u128::MAX };
}

/// Sides that a worker has at most: one for each thread of each peer.
const MOST_SIDES: usize = config::Gateway::MOST_PEERS * Wan::MOST_THREADS as usize;
const _: () = assert!(MOST_SIDES <= u128::BITS as usize, "each side has a bit");

/// A number of each lane.
#[derive(Clone, Copy, Debug)]
pub struct PerLane(pub [u64; Wan::MOST_LANES as usize]);

impl Default for PerLane {
    fn default() -> Self {
        Self([0; Wan::MOST_LANES as usize])
    }
}

/// Datagrams taken from one side before the other gets its turn: few enough to stay in the cache,
/// and to keep acknowledgements prompt.
const BUDGET: usize = 128;
/// Descriptors that a thread sleeps at: orders, the LAN, which may be full or look for ways, a bulk
/// socket for each side, and lanes that are full.
const MOST_POLLED: usize = 4 + MOST_SIDES;
const _: () = assert!(MOST_SIDES > config::Gateway::MOST_PEERS + Wan::MOST_LANES as usize);
/// Timers are no finer while no bulk socket takes anything.
const BLOCKED: Duration = Duration::from_millis(1);
const OBSERVE_EVERY: Duration = Duration::from_millis(100);
/// A round that begins later than this after the last was kept from it: no sleep is as long as
/// [`OBSERVE_EVERY`].
const PAUSE: Duration = Duration::from_millis(200);
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// A thread that stops waits no longer for ways to hosts.
const LAST_WORDS: Duration = Duration::from_millis(50);

impl<O: Observer> Worker<O> {
    /// A data plane between `lan` and `peers`, of which there is one at least.
    pub fn new(lan: Lan, peers: Vec<PeerSide<O>>, wakeup: Wakeup, now: Instant) -> Self {
        // The cores were told the same. Should the interface have gone since, the first look at one
        // that is back tells them anew.
        let lan_mtu = lan.mtu().unwrap_or(0);
        Self {
            lan,
            routes: Routes::new(peers.iter().map(|side| (side.number(), side.remote(), side.part()))),
            peers,
            members: None,
            next_told: now,
            turn: 0,
            wakeup,
            last_round: now,
            next_observation: now,
            next_check: now,
            lan_mtu,
            vigil: Vigil { busy_poll: Duration::ZERO, until: now },
            rest: InterruptModeration::new(now),
        }
    }

    /// Goes on looking for so long after the last packet before it sleeps.
    #[must_use]
    pub fn with_busy_poll(mut self, busy_poll: Duration) -> Self {
        self.vigil.busy_poll = busy_poll;
        self
    }

    /// Takes its part in a site of several gateways, if it is one.
    #[must_use]
    pub fn with_members(mut self, members: Option<Parts>) -> Self {
        self.members = members;
        self
    }

    /// Runs until [`Order::Stop`], or until the control side of a peer is gone.
    ///
    /// # Errors
    /// Only of sleeping itself; trouble with a socket is counted and survived.
    pub fn run(mut self) -> io::Result<()> {
        precise_timers()?;
        let mut ready = Ready::ALL;
        loop {
            if ready.orders && self.wakeup.clear() && !self.handle_commands() {
                return Ok(());
            }
            let now = Instant::now();
            self.excuse_pause(now);
            let [from_lan, from_wan] = self.receive(ready, now);
            self.peers.iter_mut().for_each(|peer| peer.handle_timeout(now));
            self.tend_members(now);
            let sent = self.send(now);
            self.run_periodic(now);
            if from_lan + from_wan + sent > 0 {
                self.vigil.until = now + self.vigil.busy_poll;
            }
            let is_copying = self.peers.iter_mut().any(PeerSide::copy_ahead);
            let is_amid = is_copying || from_lan >= BUDGET || from_wan >= BUDGET || sent >= 2 * BUDGET;
            ready = if is_amid || now < self.vigil.until {
                Ready::ALL
            } else {
                self.sleep(from_lan + from_wan > 0)?
            };
        }
    }

    /// Carries out the orders that have come, and returns true to go on.
    fn handle_commands(&mut self) -> bool {
        let mut freeze = None;
        let Self { members, peers, .. } = self;
        let mut has_begun = false;
        for peer in peers {
            match peer.handle_commands(&self.lan) {
                Next::GoOn => has_begun |= peer.has_begun_session(),
                // Once what the other peers have been told is done.
                Next::Freeze(asked) => freeze = Some(asked),
                Next::Stop => {
                    self.say_last_words(Instant::now());
                    return false;
                }
            }
        }
        if let Some(members) = members.as_mut().filter(|_| has_begun) {
            members.beat_at_once(Instant::now());
        }
        if let Some(members) = members.as_mut().filter(|_| self.peers.iter().any(PeerSide::is_leaving)) {
            members.leave();
        }
        freeze.is_none_or(|freeze| self.stand_still(freeze))
    }

    /// Datagrams taken from the LAN, and the most taken from the WAN for a peer. Fewer than
    /// [`BUDGET`]: there are no more, and polling tells when there are, which is one system call
    /// instead of two in vain.
    fn receive(&mut self, ready: Ready, now: Instant) -> [usize; 2] {
        let lan = if ready.lan { self.receive_lan(now) } else { 0 };
        let is_ready = |nth: &usize| ready.wan & (1 << nth) != 0;
        let peers = self.peers.iter_mut().enumerate().filter(|(nth, _)| is_ready(nth));
        let wan = peers.map(|(_, peer)| peer.receive_wan(now)).max().unwrap_or(0);
        [lan, wan]
    }

    /// Sends until there is nothing more, or twice the budget to either side; how many packets.
    /// What one side sends may let the other send.
    fn send(&mut self, now: Instant) -> usize {
        let mut sent = 0;
        loop {
            let lan = self.send_lan(now);
            let wan = self.peers.iter_mut().map(|peer| peer.send_wan(now)).sum::<usize>();
            sent += lan + wan;
            if wan == 0 || sent >= 2 * BUDGET {
                return sent;
            }
        }
    }

    fn receive_lan(&mut self, now: Instant) -> usize {
        let Self { lan, peers, routes, members, .. } = self;
        let received = lan.receive(BUDGET, &mut |packet| {
            let taken = Unverified::parse(packet).and_then(|unverified| {
                let route = routes.of(&unverified.datagram.addressing);
                if let Route::One(nth) = route
                    && let Some(peer) = peers.get_mut(nth)
                    && peer.drop_surplus(&unverified.datagram, packet.len(), now)
                {
                    return Ok(());
                }
                let received = unverified.verify()?;
                hand_over(peers, members, routes, route, (&received, packet), now);
                Ok(())
            });
            if let (Err(reject), Some(peer)) = (taken, peers.first_mut()) {
                peer.refuse_lan(reject, packet.len());
            }
        });
        // The interface's state is watched and reported by keep_house.
        received.unwrap_or(0)
    }

    /// Peers take turns, packet by packet.
    fn send_lan(&mut self, now: Instant) -> usize {
        let Self { lan, peers, turn, members, .. } = self;
        lan.send(2 * BUDGET, &mut |room| {
            for _ in 0..peers.len() {
                *turn = if *turn + 1 < peers.len() { *turn + 1 } else { 0 };
                while let Some(len) = peers.get_mut(*turn).and_then(|peer| peer.poll_lan(now, room)) {
                    let packet = room.get(..len).unwrap_or_default();
                    if members.as_mut().is_none_or(|members| members.may_speak(*turn, packet, now)) {
                        return Some(len);
                    }
                }
            }
            None
        })
    }

    /// To hosts that were not spoken to lately, too.
    fn say_last_words(&mut self, now: Instant) {
        self.send_lan(now);
        self.lan.send_what_waits(LAST_WORDS);
        self.observe();
    }

    fn observe(&mut self) {
        let Self { peers, lan, rest, .. } = self;
        peers.iter_mut().for_each(|peer| peer.observe(lan));
        // The nearest peer is to be answered in time, and the smallest buffer must not overflow.
        if let Some(rtt) = peers.iter().map(PeerSide::rtt).min() {
            rest.set_path(rtt, peers.iter().map(PeerSide::receive_buffer).min().unwrap_or(0));
        }
    }

    /// Returns the arrivals so far that would each have woken the thread: datagrams, or several
    /// that came as one.
    fn arrivals(&self) -> u64 {
        self.peers.iter().map(PeerSide::arrivals).sum::<u64>() + self.lan.received_batches()
    }

    /// Until there is something to do; what there is. `amid`: something had come.
    fn sleep(&mut self, amid: bool) -> io::Result<Ready> {
        if let Some(peer) = self.peers.first_mut() {
            peer.note_sleep();
        }
        let now = Instant::now();
        let house = self.next_observation.min(self.next_check);
        let until = self.peers.iter().map(|peer| peer.wake_at(house, now)).min().unwrap_or(house);
        let members = self.members.as_ref().and_then(Parts::next_timeout);
        let until = members.map_or(until, |at| until.min(at.max(now)));
        let wakeup = || PollFd::from_borrowed_fd(self.wakeup.fd(), PollFlags::IN);
        let timeout = until.saturating_duration_since(now);
        let handed_over = self.peers.iter().map(PeerSide::handed_over).sum();
        let rest = self.rest.before_sleeping(handed_over, now);
        if let Some(rest) = rest.filter(|_| amid) {
            poll(&mut [wakeup()], Some(timeout.min(rest)))?;
            self.rest.woken(self.arrivals(), Instant::now());
            return Ok(Ready::ALL);
        }
        let lan = PollFd::from_borrowed_fd(self.lan.fd(), PollFlags::IN);
        let bulks = self.peers.iter().map(|peer| (peer.bulk_fd(), PollFlags::IN));
        // Lanes beyond the first receive nothing, and are polled only while they are blocked.
        let blocked =
            self.lan.blocked_fd().into_iter().chain(self.peers.iter().flat_map(PeerSide::blocked_fds));
        let blocked = blocked.zip(iter::repeat(PollFlags::OUT));
        let ways = self.lan.ways_fd().zip(Some(PollFlags::IN));
        let mut fds: [_; MOST_POLLED] = array::from_fn(|_| wakeup());
        let mut watched = 1;
        let more = bulks.chain(ways).chain(blocked).map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
        let mut more = iter::once(lan).chain(more);
        for (place, fd) in fds.iter_mut().skip(watched).zip(more.by_ref()) {
            *place = fd;
            watched += 1;
        }
        // Lanes of several peers may be more than there is room for: they are looked at again soon.
        let timeout = if more.next().is_some() { timeout.min(BLOCKED) } else { timeout };
        poll(fds.get_mut(..watched).unwrap_or_default(), Some(timeout))?;
        let mut came = fds.iter().map(|fd| !fd.revents().is_empty());
        let (orders, lan) = (came.next().unwrap_or(true), came.next().unwrap_or(true));
        let wan = came
            .take(self.peers.len())
            .enumerate()
            .fold(0, |bits, (nth, came)| bits | u128::from(came) << nth);
        self.rest.woken(self.arrivals(), Instant::now());
        Ok(Ready { orders, lan, wan })
    }
}

/// Hands a local host's packet to the sides that it is for.
fn hand_over<O: Observer>(
    peers: &mut [PeerSide<O>],
    members: &mut Option<Parts>,
    routes: &Routes,
    route: Route,
    (received, packet): (&Received<'_>, &[u8]),
    now: Instant,
) {
    match route {
        Route::One(nth) => {
            if let Some(members) = members {
                members.arrived(peers, (nth, None), (received, packet), now);
            } else if let Some(peer) = peers.get_mut(nth) {
                peer.handle_lan(received, packet.len(), now);
            }
        }
        Route::All => {
            for nth in routes.sides(&received.datagram.addressing) {
                if let Some(peer) = peers.get_mut(nth) {
                    peer.handle_lan(received, packet.len(), now);
                }
            }
        }
    }
}
