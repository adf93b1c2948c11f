//! The data plane: threads that own their sockets, their keys and their flows each, and take no
//! lock. What one of them does is here; which packets are whose, in [`steering`](crate::steering).

mod moderation;
mod periodic;
mod share;

use std::array;
use std::io;
use std::iter;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use config::{Policy, Wan};
use ipnet::IpNet;
use quinn_udp::EcnCodepoint;
use roce::ip::{Datagram, Reject};
use session::{HEADER, Header, OVERHEAD, Opener, Rejected, Sealer};
use splice::{Arrival, Ecn, Gateway, LaneId, SessionEnd, StaleFlow, Tuning, Undrained};

use crate::cells::Cells;
use crate::lan::wake::{PollFd, PollFlags, Wakeup, poll, precise_timers};
use crate::lan::{Lan, Link};
use crate::wan::Bulk;

use moderation::InterruptModeration;
pub use share::Share;

/// An order from the control side to the data plane.
pub enum Order {
    /// A session has begun.
    Up {
        /// Seals what goes to the peer.
        sealer: Box<Sealer>,
        /// Opens what comes from it.
        opener: Box<Opener>,
        /// A first estimate of the round-trip time.
        rtt: Duration,
        /// Longest WAN packet that the peer takes, plaintext bytes.
        max_packet: usize,
        /// Lanes that the peer's thread sends on.
        lanes: u8,
        /// Prefixes that the peer takes for this site's; none if it does not say.
        takes: Arc<[IpNet]>,
        /// Flows of the session before that are this thread's, as the peer knows them.
        remembered: Vec<StaleFlow>,
        /// The flows and streams of the session before go on. How many flows waited is sent back.
        resumes: Option<tokio::sync::oneshot::Sender<usize>>,
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
    /// End the thread.
    Stop,
}

/// Counts that only the data plane can make.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// RoCE packets taken from the LAN.
    pub lan_packets: u64,
    /// Their bytes, IP header included.
    pub lan_bytes: u64,
    /// Bytes of IP packets sent to the LAN.
    pub lan_sent_bytes: u64,
    /// IP packets of the LAN that were refused, by [`Reject::index`].
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
    /// Times there was nothing to do, and the thread slept.
    pub sleeps: u64,
}

/// Receives what the data plane has counted, about ten times a second.
pub trait Observer: Send {
    /// Copies what it wants, without blocking.
    fn observe(&mut self, core: &mut Gateway, counts: &Counts, bulk: &Bulk, lan: &Lan, session: bool);

    /// The policy has changed; the next observation is of its classes.
    fn reclassify(&mut self, cells: Arc<Cells>);
}

/// Everything the thread owns. Made in it ([`Worker::run`] never returns until told to), since the
/// core's buffers do not change threads.
pub struct Worker<O> {
    core: Gateway,
    lan: Lan,
    bulk: Bulk,
    peer: SocketAddr,
    /// Longest WAN packet of any session, plaintext bytes.
    max_packet: usize,
    session: Option<Session>,
    /// By lane: the bulk socket's ordinal of the session's packet number 0.
    first: Ordinals,
    orders: Receiver<Order>,
    wakeup: Wakeup,
    awaited: Option<Awaited>,
    observer: O,
    counts: Counts,
    next_observation: Instant,
    next_check: Instant,
    link: Link,
    /// Longest IP packet for the LAN, as the core knows it.
    lan_mtu: usize,
    /// Longest packet to the peer, as it was last told.
    wan_packet: usize,
    vigil: Vigil,
    rest: InterruptModeration,
    share: Share,
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
    wan: bool,
}

impl Ready {
    const ALL: Self = Self { orders: true, lan: true, wan: true };
}

/// Something to be told when it is so, or at the deadline.
struct Awaited {
    reached: fn(&Gateway) -> bool,
    deadline: Instant,
    reply: tokio::sync::oneshot::Sender<bool>,
}

struct Session {
    sealer: Box<Sealer>,
    opener: Box<Opener>,
    /// Longest WAN packet, plaintext bytes.
    max_packet: usize,
    /// Without a control connection: the silence after which it is over.
    lost: Option<Duration>,
    /// When the peer's last authentic datagram came.
    heard: Instant,
}

/// A number of each lane.
#[derive(Clone, Copy, Debug)]
pub struct PerLane(pub [u64; Wan::MOST_LANES as usize]);

impl Default for PerLane {
    fn default() -> Self {
        Self([0; Wan::MOST_LANES as usize])
    }
}

/// Ordinals of datagrams by lane.
type Ordinals = PerLane;

/// Sends what waits, and says which of the session's packets the kernel refused. Every packet
/// sealed since `first` was committed, so the lanes' ordinals are the packet numbers; but for what
/// could not be sealed, after which nothing can.
fn flush(bulk: &mut Bulk, core: &mut Gateway, first: &Ordinals) -> usize {
    bulk.flush_noting(&mut |lane, dropped, too_long| {
        let first = first.0.get(lane).copied().unwrap_or(0);
        let numbers = dropped.start.saturating_sub(first)..dropped.end.saturating_sub(first);
        core.note_unsent(LaneId(lane as u16), numbers, too_long);
    })
}

fn ecn(bits: Option<EcnCodepoint>) -> Ecn {
    match bits {
        None => Ecn::NotEct,
        Some(EcnCodepoint::Ect0 | EcnCodepoint::Ect1) => Ecn::Ect,
        Some(EcnCodepoint::Ce) => Ecn::Ce,
    }
}

/// Until when to sleep. While none of the bulk sockets takes anything, what is due to be sent stays due, and
/// it is no use to look at it at once again; that the socket takes something wakes as well.
fn wake_at(core: Option<Instant>, house: Instant, is_blocked: bool, now: Instant) -> Instant {
    let least = if is_blocked { now + BLOCKED } else { now };
    core.map_or(house, |at| at.max(least).min(house))
}

/// Timers are no finer while the bulk socket takes nothing.
const BLOCKED: Duration = Duration::from_millis(1);
/// Datagrams taken from one side before the other gets its turn: few enough to stay in the cache,
/// and to keep acknowledgements prompt.
const BUDGET: usize = 128;
/// Descriptors that a thread sleeps at: orders, both sides, all lanes that are full, and the LAN
/// where it is full or looks for ways.
const MOST_POLLED: usize = 5 + Wan::MOST_LANES as usize;
const OBSERVE_EVERY: Duration = Duration::from_millis(100);
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// A thread that stops waits no longer for ways to hosts.
const LAST_WORDS: Duration = Duration::from_millis(50);

impl<O: Observer> Worker<O> {
    /// A data plane for `core`, whose WAN packets are at most `max_packet` bytes of plaintext and
    /// go to `peer`.
    #[expect(clippy::too_many_arguments, reason = "it is given everything it will own")]
    pub fn new(
        core: Gateway,
        lan: Lan,
        bulk: Bulk,
        peer: SocketAddr,
        max_packet: usize,
        orders: Receiver<Order>,
        wakeup: Wakeup,
        observer: O,
        share: Share,
        now: Instant,
    ) -> Self {
        // The core was told the same. Should the interface have gone since, the first look at one
        // that is back tells it anew.
        let lan_mtu = lan.mtu().unwrap_or(0);
        Self {
            core,
            lan,
            bulk,
            peer,
            max_packet,
            session: None,
            first: Ordinals::default(),
            orders,
            wakeup,
            awaited: None,
            observer,
            counts: Counts::default(),
            next_observation: now,
            next_check: now,
            link: Link::Up,
            lan_mtu,
            wan_packet: 0,
            vigil: Vigil { busy_poll: Duration::ZERO, until: now },
            rest: InterruptModeration::new(now),
            share,
        }
    }

    /// Goes on looking for so long after the last packet before it sleeps.
    #[must_use]
    pub fn with_busy_poll(mut self, busy_poll: Duration) -> Self {
        self.vigil.busy_poll = busy_poll;
        self
    }

    /// Runs until [`Order::Stop`], or until the control side is gone.
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
            let [from_lan, from_wan] = self.receive(ready, now);
            if self.core.next_timeout(now).is_some_and(|at| at <= now) {
                self.core.handle_timeout(now);
            }
            let sent = self.send(now);
            self.run_periodic(now);
            if from_lan + from_wan + sent > 0 {
                self.vigil.until = now + self.vigil.busy_poll;
            }
            let is_amid = from_lan >= BUDGET || from_wan >= BUDGET || sent >= 2 * BUDGET;
            ready = if is_amid || now < self.vigil.until {
                Ready::ALL
            } else {
                self.sleep(from_lan + from_wan > 0)?
            };
        }
    }

    /// Datagrams taken from the LAN and from the WAN. Fewer than [`BUDGET`]: there are no more, and
    /// polling tells when there are, which is one system call instead of two in vain.
    fn receive(&mut self, ready: Ready, now: Instant) -> [usize; 2] {
        let lan = if ready.lan { self.receive_lan(now) } else { 0 };
        let wan = if ready.wan { self.receive_wan(now) } else { 0 };
        [lan, wan]
    }

    /// Sends until there is nothing more, or twice the budget to either side; how many packets.
    /// What one side sends may let the other send.
    fn send(&mut self, now: Instant) -> usize {
        let mut sent = 0;
        loop {
            let lan = self.send_lan(now);
            let wan = self.send_wan(now);
            sent += lan + wan;
            if wan == 0 || sent >= 2 * BUDGET {
                return sent;
            }
        }
    }

    /// Carries out the orders that have come, and returns true to go on.
    fn handle_commands(&mut self) -> bool {
        loop {
            let now = Instant::now();
            match self.orders.try_recv() {
                Ok(Order::Up { sealer, opener, rtt, max_packet, lanes, takes, remembered, resumes }) => {
                    let max_packet = max_packet.min(self.max_packet);
                    let session = Session { sealer, opener, max_packet, lost: None, heard: now };
                    if let Some(reply) = resumes {
                        if !self.resume((rtt, max_packet, lanes), reply, now) {
                            continue;
                        }
                    } else {
                        self.end_session(SessionEnd::Closed, now);
                        self.core.session_up(rtt, max_packet, lanes, &remembered, now);
                    }
                    self.core.peer_takes(takes);
                    self.begin(session);
                }
                Ok(Order::Lost(patience, reply)) => {
                    self.lose_control(patience, now);
                    // Nobody may care to know any more.
                    let _ = reply.send((self.core.remembered().collect(), self.core.waiting_flows()));
                }
                Ok(Order::Down(end, reply)) => {
                    self.end_session(end, now);
                    // Nobody may care to know any more.
                    let _ = reply.send(self.core.remembered().collect());
                }
                Ok(Order::Scheme { policy, class, tuning }) => self.core.tune(&policy, class, &tuning),
                Ok(Order::Consider(policy, reply)) => {
                    // Nobody may care to know any more.
                    let _ = reply.send(self.core.would_adopt(&policy));
                }
                Ok(Order::Policy(policy, cells, reply)) => {
                    let adopted = self.core.set_policy(policy, now);
                    if adopted.is_ok() {
                        self.observer.reclassify(cells);
                        // At once, so that whoever hears that the policy is in force also sees its
                        // classes' numbers.
                        self.observe();
                    }
                    // Nobody may care to know any more.
                    let _ = reply.send(adopted);
                }
                Ok(Order::Drain(deadline, reply)) => {
                    self.core.stop_accepting();
                    self.awaited = Some(Awaited { reached: Gateway::is_quiet, deadline, reply });
                }
                Ok(Order::Part(deadline, reply)) => {
                    self.awaited = Some(Awaited { reached: Gateway::has_parted, deadline, reply });
                }
                Ok(Order::Stop) | Err(TryRecvError::Disconnected) => {
                    self.say_last_words(now);
                    return false;
                }
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Has the flows that waited go on over a path of this round trip, longest packet and lanes.
    /// Returns false if there is nothing to go on with.
    fn resume(
        &mut self,
        (rtt, max_packet, lanes): (Duration, usize, u8),
        reply: tokio::sync::oneshot::Sender<usize>,
        now: Instant,
    ) -> bool {
        self.park(now);
        // Nobody may care to know any more.
        let _ = reply.send(self.core.waiting_flows());
        let resumed = self.core.session_resumed(rtt, max_packet, lanes, now);
        if !resumed {
            // Streams of two generations must never meet.
            tracing::error!("there is nothing for the session to go on with");
        }
        resumed
    }

    /// Goes over to a session's keys.
    fn begin(&mut self, session: Session) {
        self.session = Some(session);
        self.first = PerLane(std::array::from_fn(|lane| self.bulk.committed(lane)));
        // What was dropped before is none of this session's.
        let _ = self.bulk.take_overrun();
    }

    /// Ends the session if there is one, and shows the observer both its last state and that it is
    /// over, however soon the next one begins.
    fn end_session(&mut self, end: SessionEnd, now: Instant) {
        if self.session.is_some() || self.core.is_parked() {
            self.observe();
            self.session = None;
            self.core.session_down(end, now);
            self.observe();
        }
    }

    /// Goes on without a control connection until bulk data have not come for so long.
    fn lose_control(&mut self, patience: Option<Duration>, now: Instant) {
        match (patience, &mut self.session) {
            (Some(_), Some(session)) => session.lost = patience,
            _ => self.park(now),
        }
    }

    /// Drops the keys, and has the flows wait.
    fn park(&mut self, now: Instant) {
        if self.session.is_some() {
            self.observe();
            self.session = None;
            self.core.session_lost(now);
            self.observe();
        }
    }

    /// Without a control connection, and with nothing from the peer for long: it is cut off.
    fn check_silence(&mut self, now: Instant) {
        let is_silent = self.session.as_ref().is_some_and(|session| {
            session.lost.is_some_and(|patience| now.saturating_duration_since(session.heard) >= patience)
        });
        if is_silent {
            tracing::warn!(flows = self.core.waiting_flows(), "no data from the peer either; flows wait");
            self.park(now);
        }
    }

    fn receive_lan(&mut self, now: Instant) -> usize {
        let Self { lan, core, counts, .. } = self;
        let received = lan.receive(BUDGET, &mut |packet| {
            counts.lan_packets += 1;
            counts.lan_bytes += packet.len() as u64;
            match Datagram::parse(packet) {
                Ok(datagram) => core.handle_lan(&datagram, now),
                Err(reject) => {
                    if let Some(count) = counts.lan_rejects.get_mut(reject.index()) {
                        *count += 1;
                    }
                }
            }
        });
        // The interface's state is watched and reported by keep_house.
        received.unwrap_or(0)
    }

    fn receive_wan(&mut self, now: Instant) -> usize {
        let Self { bulk, core, counts, session, .. } = self;
        bulk.receive(BUDGET, &mut |datagram, arrival| {
            let Some(Session { opener, heard, .. }) = session else {
                counts.wan_no_session += 1;
                return;
            };
            match opener.open_numbered(datagram) {
                Ok((origin, packet)) => {
                    *heard = now;
                    let (lane, number) = (LaneId(origin.lane.into()), origin.packet_number);
                    if let Some(count) = counts.wan_opened.0.get_mut(usize::from(origin.lane)) {
                        *count += 1;
                    }
                    let bytes = core.wire_bytes(packet.len());
                    core.handle_wan(packet, Arrival { lane, number, bytes, ecn: ecn(arrival.ecn) }, now);
                }
                Err(rejected) => {
                    if rejected == Rejected::Replay
                        && let Ok(header) = Header::parse(datagram)
                    {
                        core.note_copy(LaneId(header.lane.into()));
                    }
                    if let Some(count) = counts.wan_rejects.get_mut(rejected.index()) {
                        *count += 1;
                    }
                }
            }
        })
    }

    /// Notes what the kernel dropped. That is only told in reports, so it is asked before one and
    /// before an observation: a system call for each batch would be too many.
    fn note_overrun(&mut self) {
        self.core.note_overrun(self.bulk.take_overrun());
    }

    fn send_lan(&mut self, now: Instant) -> usize {
        let Self { lan, core, counts, .. } = self;
        lan.send(2 * BUDGET, &mut |room| {
            let len = core.poll_lan(now, room)?;
            counts.lan_sent_bytes += len as u64;
            Some(len)
        })
    }

    fn send_wan(&mut self, now: Instant) -> usize {
        if self.core.reports_on_path(now) {
            self.note_overrun();
        }
        let Some(Session { sealer, max_packet, .. }) = &mut self.session else {
            // What the last session left behind; nobody waits for it, but the socket would be
            // polled for it.
            return self.bulk.flush();
        };
        let mut sent = 0;
        while sent < 2 * BUDGET {
            let Some(room) = self.bulk.reserve(*max_packet + OVERHEAD) else {
                if flush(&mut self.bulk, &mut self.core, &self.first) == 0 {
                    break;
                }
                continue;
            };
            let Some(plaintext) = room.get_mut(HEADER..HEADER + *max_packet) else { break };
            let Some(len) = self.core.poll_wan(now, plaintext) else { break };
            // A probe may be longer than the interface carries, and takes nothing else with it.
            let probes = len > self.core.wan_packet();
            self.share.note(self.core.wire_bytes(len));
            let LaneId(lane) = self.core.wan_lane();
            let place = usize::from(lane);
            // There are no more lanes than fit; one that does not exist is refused.
            match sealer.seal(u8::try_from(lane).unwrap_or(u8::MAX), room, len) {
                Ok(sealed) if probes => self.bulk.commit_alone(place, sealed, self.peer),
                Ok(sealed) => self.bulk.commit_on(place, sealed, self.peer),
                Err(_) => self.counts.seal_failures += 1,
            }
            sent += 1;
        }
        flush(&mut self.bulk, &mut self.core, &self.first);
        self.core.set_full_lanes(self.bulk.full_lanes());
        if let Some(rate) = self.share.settle(self.core.held_from(), now) {
            self.core.set_rate(rate);
        }
        sent
    }

    /// To hosts that were not spoken to lately, too.
    fn say_last_words(&mut self, now: Instant) {
        self.send_lan(now);
        self.lan.send_what_waits(LAST_WORDS);
        self.observe();
    }

    fn observe(&mut self) {
        self.note_overrun();
        self.follow_marks();
        // The kernel says twice of what it holds.
        self.rest.set_path(self.core.rtt(), self.bulk.socket_buffers().receive / 2);
        self.observer.observe(&mut self.core, &self.counts, &self.bulk, &self.lan, self.session.is_some());
    }

    /// Returns the arrivals so far that would each have woken the thread: datagrams, or several
    /// that came as one.
    fn arrivals(&self) -> u64 {
        self.bulk.stats().received_batches + self.lan.received_batches()
    }

    /// Until there is something to do; what there is. `amid`: something had come.
    fn sleep(&mut self, amid: bool) -> io::Result<Ready> {
        self.counts.sleeps += 1;
        let now = Instant::now();
        let house = self.next_observation.min(self.next_check);
        let is_blocked = self.bulk.backlog() > 0 && self.bulk.full_lanes() == 0;
        let until = wake_at(self.core.next_timeout(now), house, is_blocked, now);
        let wakeup = || PollFd::from_borrowed_fd(self.wakeup.fd(), PollFlags::IN);
        let timeout = until.saturating_duration_since(now);
        let rest = self.rest.before_sleeping(self.core.handed_over(), now);
        if let Some(rest) = rest.filter(|_| amid) {
            poll(&mut [wakeup()], Some(timeout.min(rest)))?;
            self.rest.woken(self.arrivals(), Instant::now());
            return Ok(Ready::ALL);
        }
        let bulk = PollFd::from_borrowed_fd(self.bulk.fd(), PollFlags::IN);
        let lan = PollFd::from_borrowed_fd(self.lan.fd(), PollFlags::IN);
        // Lanes beyond the first receive nothing, and are polled only while they are blocked.
        let blocked = self.bulk.blocked_fds().chain(self.lan.blocked_fd()).zip(iter::repeat(PollFlags::OUT));
        let ways = self.lan.ways_fd().zip(Some(PollFlags::IN));
        let mut fds: [_; MOST_POLLED] = array::from_fn(|_| wakeup());
        let mut watched = 1;
        let more = [bulk, lan]
            .into_iter()
            .chain(blocked.chain(ways).map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
        for (place, fd) in fds.iter_mut().skip(watched).zip(more) {
            *place = fd;
            watched += 1;
        }
        poll(fds.get_mut(..watched).unwrap_or_default(), Some(timeout))?;
        let [orders, wan, lan, ..] = fds.map(|fd| !fd.revents().is_empty());
        self.rest.woken(self.arrivals(), Instant::now());
        Ok(Ready { orders, lan, wan })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_and_cannot_be_sent_does_not_keep_it_awake() {
        let now = Instant::now();
        let house = now + OBSERVE_EVERY;
        let past = now.checked_sub(Duration::from_millis(3)).unwrap_or(now);
        assert_eq!(wake_at(Some(past), house, true, now), now + BLOCKED);
        assert_eq!(wake_at(Some(past), house, false, now), now);
        for is_blocked in [false, true] {
            let later = now + 2 * BLOCKED;
            assert_eq!(wake_at(Some(later), house, is_blocked, now), later);
            assert_eq!(wake_at(None, house, is_blocked, now), house);
            assert_eq!(wake_at(Some(house + BLOCKED), house, is_blocked, now), house);
        }
    }
}
