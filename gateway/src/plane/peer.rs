//! A worker's side towards one peer: its flows, its session, its bulk sockets, its orders. What
//! happens to one peer's is no other's business.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use config::{Policy, Relation, Wan};
use ipnet::IpNet;
use quinn_udp::EcnCodepoint;
use roce::ip::{Datagram, Received, Reject};
use session::control::with_scope;
use session::{HEADER, Header, OVERHEAD, Opener, Rejected, Sealer};
use snapshot::Written;
use splice::{Arrival, Ecn, Gateway, LaneId, SessionEnd, StaleFlow, Undrained};

use super::ahead::{Ahead, CopyingAhead};
use super::freeze::Taken;
use super::{BLOCKED, BUDGET, Counts, Freeze, GoOn, Lent, MemberCounts, Observer, Order, PerLane, Share};
use crate::cells::Cells;
use crate::lan::Lan;
use crate::retention::uptime;
use crate::steering::Part;
use crate::wan::Bulk;

/// A worker's side towards one peer.
pub struct PeerSide<O> {
    name: String,
    /// The peer's number, in the gateway file's order.
    number: u8,
    /// The pair of a thread here and one of the peer's.
    part: Part,
    core: Gateway,
    bulk: Bulk,
    address: SocketAddr,
    remote: Vec<IpNet>,
    relation: Relation,
    /// The gateway is to stop.
    is_leaving: bool,
    /// Longest WAN packet of any session, plaintext bytes.
    max_packet: usize,
    session: Option<Session>,
    /// One has begun since that was last asked.
    has_begun: bool,
    /// By lane: the bulk socket's ordinal of the session's packet number 0.
    first: Ordinals,
    orders: Receiver<Order>,
    awaited: Option<Awaited>,
    ahead: Option<CopyingAhead>,
    observer: O,
    counts: Counts,
    /// Longest packet to the peer, as it was last told.
    wan_packet: usize,
    share: Share,
}

/// A peer's name and place.
#[derive(Clone, Debug)]
pub struct PeerAddress {
    /// Its site name.
    pub name: String,
    /// Its number, in the gateway file's order.
    pub number: u8,
    /// Where bulk data go.
    pub bulk: SocketAddr,
    /// The prefixes behind it.
    pub remote: Vec<IpNet>,
    /// How it stands to this gateway.
    pub relation: Relation,
    /// Longest WAN packet of any session, plaintext bytes.
    pub max_packet: usize,
}

/// The step after the orders that have come.
pub(super) enum Next {
    GoOn,
    Freeze(Freeze),
    Stop,
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

/// Until when to sleep. While none of the bulk sockets takes anything, what is due to be sent stays
/// due, and it is no use to look at it at once again; that one takes something wakes as well.
fn wake_at(core: Option<Instant>, house: Instant, is_blocked: bool, now: Instant) -> Instant {
    let least = if is_blocked { now + BLOCKED } else { now };
    core.map_or(house, |at| at.max(least).min(house))
}

impl<O: Observer> PeerSide<O> {
    /// For a core whose WAN packets are at most as long as `to` says, and go there. `part`: the
    /// pair of a thread here and one of the peer's, of all of them.
    pub fn new(
        (to, part): (PeerAddress, Part),
        core: Gateway,
        bulk: Bulk,
        share: Share,
        orders: Receiver<Order>,
        observer: O,
    ) -> Self {
        let PeerAddress { name, number, bulk: address, remote, relation, max_packet } = to;
        Self {
            name,
            number,
            part,
            core,
            bulk,
            address,
            remote,
            relation,
            is_leaving: false,
            max_packet,
            session: None,
            has_begun: false,
            first: Ordinals::default(),
            orders,
            awaited: None,
            ahead: None,
            observer,
            counts: Counts::default(),
            wan_packet: 0,
            share,
        }
    }

    /// Returns all that another process needs to go on with the flows.
    pub(super) fn snapshot(&mut self, now: Instant) -> Result<Taken, String> {
        match self.ahead.take() {
            Some(ahead) => ahead.snapshot(&mut self.core, now),
            None => {
                let snapshot = self.core.snapshot(now).map_err(|error| error.to_string())?;
                Ok((Written::Apart(snapshot), None))
            }
        }
    }

    /// Copies some packets ahead of a take-over. Returns true if there is more to copy.
    pub(super) fn copy_ahead(&mut self) -> bool {
        self.ahead.as_mut().is_some_and(|ahead| ahead.step(&mut self.core))
    }

    /// Forgets what was copied for a process that takes over no more.
    pub(super) fn check_ahead(&mut self) {
        if let Some(ahead) = self.ahead.take_if(|ahead| ahead.is_over()) {
            ahead.give_up();
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn number(&self) -> u8 {
        self.number
    }

    pub(super) fn part(&self) -> Part {
        self.part
    }

    pub(super) fn relation(&self) -> &Relation {
        &self.relation
    }

    /// Returns true if a session has begun since the last call.
    pub(super) fn has_begun_session(&mut self) -> bool {
        std::mem::take(&mut self.has_begun)
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    pub(super) fn core_mut(&mut self) -> &mut Gateway {
        &mut self.core
    }

    pub(super) fn remote(&self) -> &[IpNet] {
        &self.remote
    }

    pub(super) fn excuse_pause(&mut self, pause: Duration, now: Instant) {
        self.core.excuse_pause(pause, now);
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.core.next_timeout(now).is_some_and(|at| at <= now) {
            self.core.handle_timeout(now);
        }
    }

    /// Takes a packet of a local host, of so many bytes with its IP header.
    pub(super) fn handle_lan(&mut self, received: &Received<'_>, bytes: usize, now: Instant) {
        self.counts.lan_packets += 1;
        self.counts.lan_bytes += bytes as u64;
        self.core.handle_received(received, now);
    }

    /// Drops a packet of a local host, of so many bytes, if its host has had its share. Returns
    /// true if it did.
    pub(super) fn drop_surplus(&mut self, datagram: &Datagram<'_>, bytes: usize, now: Instant) -> bool {
        let is_surplus = self.core.drop_surplus(datagram, now);
        if is_surplus {
            self.counts.lan_packets += 1;
            self.counts.lan_bytes += bytes as u64;
        }
        is_surplus
    }

    /// Counts a packet of a local host that is for no peer.
    pub(super) fn refuse_lan(&mut self, reject: Reject, bytes: usize) {
        self.counts.lan_packets += 1;
        self.counts.lan_bytes += bytes as u64;
        if let Some(count) = self.counts.lan_rejects.get_mut(reject.index()) {
            *count += 1;
        }
    }

    /// Writes the next packet for a local host into `room`, and returns its length.
    pub(super) fn poll_lan(&mut self, now: Instant, room: &mut [u8]) -> Option<usize> {
        let len = self.core.poll_lan(now, room)?;
        self.counts.lan_sent_bytes += len as u64;
        Some(len)
    }

    pub(super) fn set_lan_mtu(&mut self, mtu: usize) {
        self.core.set_lan_mtu(mtu);
    }

    pub(super) fn set_lan_up(&mut self, state: u64) {
        self.counts.lan_up = state;
    }

    pub(super) fn set_members(&mut self, members: MemberCounts) {
        self.counts.members = members;
    }

    pub(super) fn note_sleep(&mut self) {
        self.counts.sleeps += 1;
    }

    pub(super) fn rtt(&self) -> Duration {
        self.core.rtt()
    }

    /// Returns the bytes that the kernel holds for it at most. It says twice of that.
    pub(super) fn receive_buffer(&self) -> usize {
        self.bulk.socket_buffers().receive / 2
    }

    pub(super) fn handed_over(&self) -> u64 {
        self.core.handed_over()
    }

    pub(super) fn arrivals(&self) -> u64 {
        self.bulk.stats().received_batches
    }

    pub(super) fn bulk_fd(&self) -> BorrowedFd<'_> {
        self.bulk.fd()
    }

    pub(super) fn blocked_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.bulk.blocked_fds()
    }

    /// Until when the thread may sleep for all that this peer asks for.
    pub(super) fn wake_at(&self, house: Instant, now: Instant) -> Instant {
        let is_blocked = self.bulk.backlog() > 0 && self.bulk.full_lanes() == 0;
        wake_at(self.core.next_timeout(now), house, is_blocked, now)
    }

    /// Carries out the orders that have come.
    pub(super) fn handle_commands(&mut self, lan: &Lan) -> Next {
        loop {
            let now = Instant::now();
            match self.orders.try_recv() {
                Ok(Order::Up {
                    scope,
                    keys: (sealer, opener),
                    rtt,
                    max_packet,
                    lanes,
                    takes,
                    begins_again,
                    remembered,
                    resumes,
                }) => {
                    let max_packet = max_packet.min(self.max_packet);
                    self.meet(scope, begins_again);
                    if self.change_session((rtt, max_packet, lanes), remembered, resumes, lan, now) {
                        self.core.peer_takes(takes);
                        self.begin(Session { sealer, opener, max_packet, lost: None, heard: now });
                    }
                }
                Ok(Order::Lost(patience, reply)) => {
                    self.lose_control(patience, lan, now);
                    // Nobody may care to know any more.
                    let _ = reply.send((self.core.remembered().collect(), self.core.waiting_flows()));
                }
                Ok(Order::Down(end, reply)) => {
                    self.end_session(end, lan, now);
                    // Nobody may care to know any more.
                    let _ = reply.send(self.core.remembered().collect());
                }
                Ok(Order::Scheme { policy, class, tuning }) => self.core.tune(&policy, class, &tuning),
                Ok(Order::Consider(policy, reply)) => {
                    // Nobody may care to know any more.
                    let _ = reply.send(self.core.would_adopt(&policy));
                }
                Ok(Order::Policy(policy, cells, reply)) => {
                    // Nobody may care to know any more.
                    let _ = reply.send(self.adopt(policy, cells, lan, now));
                }
                Ok(Order::Drain(deadline, reply)) => {
                    self.core.stop_accepting();
                    self.is_leaving = true;
                    self.awaited = Some(Awaited { reached: Gateway::is_quiet, deadline, reply });
                }
                Ok(Order::Part(deadline, reply)) => {
                    self.awaited = Some(Awaited { reached: Gateway::has_parted, deadline, reply });
                }
                // Nobody may care to know any more.
                Ok(Order::Lend(reply)) => {
                    drop(reply.send(Lent::of(&self.bulk, lan, self.core.waiting_bytes())));
                }
                Ok(Order::CopyAhead(ahead)) => self.copy_ahead_to(*ahead),
                Ok(Order::Freeze(freeze)) => return Next::Freeze(freeze),
                Ok(Order::Stop) | Err(TryRecvError::Disconnected) => return Next::Stop,
                Err(TryRecvError::Empty) => return Next::GoOn,
            }
        }
    }

    /// Puts a policy into force.
    fn adopt(
        &mut self,
        policy: Arc<Policy>,
        cells: Arc<Cells>,
        lan: &Lan,
        now: Instant,
    ) -> Result<(), Undrained> {
        self.core.set_policy(policy, now)?;
        self.observer.reclassify(cells);
        // At once: whoever hears that the policy is in force also sees its classes' numbers.
        self.observe(lan);
        Ok(())
    }

    /// Copies ahead for a process that is to take over. For another one nobody does any more.
    fn copy_ahead_to(&mut self, ahead: Ahead) {
        let before = self.ahead.replace(CopyingAhead::new(ahead));
        before.into_iter().for_each(CopyingAhead::give_up);
    }

    /// Begins a session over a path of this round trip, longest packet and lanes. Flows that waited
    /// go on, or have ended. Returns false if there is nothing to go on with.
    fn change_session(
        &mut self,
        (rtt, max_packet, lanes): (Duration, usize, u8),
        remembered: Vec<StaleFlow>,
        resumes: Option<GoOn>,
        lan: &Lan,
        now: Instant,
    ) -> bool {
        let Some(GoOn { outlive, waited }) = resumes else {
            self.end_session(SessionEnd::Closed, lan, now);
            let (awaited, ended): (Vec<_>, Vec<_>) = remembered.into_iter().partition(|flow| flow.lives);
            self.core.session_up(rtt, max_packet, lanes, &ended, now);
            self.core.await_requesters(&awaited, now);
            return true;
        };
        self.park(lan, now);
        // Nobody may care to know any more.
        let _ = waited.send(self.core.waiting_flows());
        if outlive {
            self.core.session_reborn(rtt, max_packet, lanes, &remembered, now);
            return true;
        }
        let resumed = self.core.session_resumed(rtt, max_packet, lanes, now);
        if !resumed {
            // Streams of two generations must never meet.
            tracing::error!(peer = self.name, "there is nothing for the session to go on with");
        }
        resumed
    }

    /// Has bulk data leave by the interface of this index, as control does, and learns what the
    /// peer can do.
    fn meet(&mut self, scope: u32, begins_again: bool) {
        self.core.peer_begins_again(begins_again);
        self.address = with_scope(self.address, scope);
    }

    /// Goes over to a session's keys.
    fn begin(&mut self, session: Session) {
        self.session = Some(session);
        self.has_begun = true;
        self.first = PerLane(std::array::from_fn(|lane| self.bulk.committed(lane)));
        // What was dropped before is none of this session's.
        let _ = self.bulk.take_overrun();
    }

    /// Ends the session if there is one, and shows the observer both its last state and that it is
    /// over, however soon the next one begins.
    fn end_session(&mut self, end: SessionEnd, lan: &Lan, now: Instant) {
        if self.session.is_some() || self.core.is_parked() {
            self.observe(lan);
            self.session = None;
            self.core.session_down(end, now);
            self.observe(lan);
        }
    }

    /// Goes on without a control connection until bulk data have not come for so long.
    fn lose_control(&mut self, patience: Option<Duration>, lan: &Lan, now: Instant) {
        match (patience, &mut self.session) {
            (Some(_), Some(session)) => session.lost = patience,
            _ => self.park(lan, now),
        }
    }

    /// Drops the keys, and has the flows wait.
    fn park(&mut self, lan: &Lan, now: Instant) {
        if self.session.is_some() {
            self.observe(lan);
            self.session = None;
            self.core.session_lost(now);
            self.observe(lan);
        }
    }

    /// Without a control connection, and with nothing from the peer for long: it is cut off.
    pub(super) fn check_silence(&mut self, lan: &Lan, now: Instant) {
        let is_silent = self.session.as_ref().is_some_and(|session| {
            session.lost.is_some_and(|patience| now.saturating_duration_since(session.heard) >= patience)
        });
        if is_silent {
            // Who lost the control connection has warned of it.
            let flows = self.core.waiting_flows();
            tracing::info!(peer = self.name, flows, "no data from the peer either; flows wait");
            self.park(lan, now);
        }
    }

    pub(super) fn receive_wan(&mut self, now: Instant) -> usize {
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

    pub(super) fn send_wan(&mut self, now: Instant) -> usize {
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
                Ok(sealed) if probes => self.bulk.commit_alone(place, sealed, self.address),
                Ok(sealed) => self.bulk.commit_on(place, sealed, self.address),
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

    /// Answers who waits for something of this peer's, if it has come about.
    pub(super) fn answer_awaited(&mut self, now: Instant) {
        if let Some(awaited) = self.awaited.take() {
            let reached = (awaited.reached)(&self.core);
            if reached || now >= awaited.deadline {
                // Nobody may care to know any more.
                let _ = awaited.reply.send(reached);
            } else {
                self.awaited = Some(awaited);
            }
        }
    }

    pub(super) fn tell_wan_mtu(&mut self, now: Instant) {
        if self.core.wan_packet() == self.wan_packet {
            return;
        }
        self.wan_packet = self.core.wan_packet();
        if let Some(mtu) = self.core.paths(now).next().map(|path| path.mtu) {
            tracing::info!(peer = self.name, mtu = mtu.mtu, "the longest packet to the peer has changed");
        }
    }

    pub(super) fn observe(&mut self, lan: &Lan) {
        self.note_overrun();
        self.follow_marks();
        self.core.note_time(uptime());
        self.observer.observe(&mut self.core, &self.counts, &self.bulk, lan, self.session.is_some());
    }

    /// Marks packets where the path carries marked ones. Without a session nothing is sent.
    fn follow_marks(&mut self) {
        if self.session.is_none() {
            return;
        }
        for lane in 0..Wan::MOST_LANES {
            let marks = self.core.marks(LaneId(lane.into()));
            if self.bulk.set_marked(lane.into(), marks) {
                tracing::info!(
                    peer = self.name,
                    lane,
                    marks,
                    "ECN: whether the path carries marked packets has changed"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::OBSERVE_EVERY;
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
