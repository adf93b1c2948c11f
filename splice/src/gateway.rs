//! The whole: LAN packets in and out, WAN packets in and out.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Policy;
use ipnet::IpNet;
use reliability::estimator::{Arrival, LaneId};
use reliability::link::Link;
use roce::icrc::Sums;
use roce::ip::{self, Addressing, Datagram, Received};
use roce::pairing::{self, Event, Pairings};
use roce::wire::{self, Packet, Transport};
use transport::{Connection, LanePacket, Session, Tuning, Undrained};

use crate::Settings;
use crate::carriage::Carriage;
use crate::classes::Classes;
use crate::context::Common;
use crate::far_side::FarSide;
use crate::from_member::FromMember;
use crate::incoming::{RC, handle_record, note_connection};
use crate::kept::Kept;
use crate::lan_queue::{LanQueue, Waiting};
use crate::near_side::NearSide;
use crate::openings::Openings;
use crate::ordered::{Numbering, Ordering};
use crate::piggybacked_acks::PiggybackedAcks;
use crate::pool::Pool;
use crate::reclaimer::{Holder, Reclaimer};
use crate::renewals::Renewals;
use crate::session_end::SessionEnd;
use crate::settings::classes;
use crate::stale_flows::{FlowSide, StaleFlow, StaleFlows};
use crate::stats::{LanDrop, Stats};
use crate::surplus::Surplus;

/// One gateway of a pair.
///
/// # Driver contract
/// Feed every RoCE packet of the LAN to [`Gateway::handle_lan`] and every authenticated WAN packet
/// to [`Gateway::handle_wan`], with its packet number. Packets of [`Gateway::poll_wan`] leave on
/// the lane that [`Gateway::wan_lane`] names then, and get the numbers of that lane from 0, in the
/// order in which they are polled. After each input, or batch of inputs, and
/// after [`Gateway::handle_timeout`]: call [`Gateway::poll_lan`] and [`Gateway::poll_wan`] until
/// both return `None` (what one sends may let the other send), then sleep until input comes or
/// [`Gateway::next_timeout`] is reached, and in the latter case call [`Gateway::handle_timeout`].
/// `now` never runs backwards. Between [`Gateway::session_up`] and [`Gateway::session_down`] there
/// is a session; without one nothing is carried, and [`Gateway::poll_wan`] has nothing. In between,
/// [`Gateway::session_lost`] parks it, and [`Gateway::session_resumed`] goes on with it.
///
/// # Bounds
/// Those of [`Settings`]; each says what happens when it is reached. Nothing here allocates per
/// packet once warm.
pub struct Gateway {
    near: NearSide,
    far: FarSide,
    numbering: Numbering,
    ordering: Ordering,
    wan: Connection,
    /// The lane of the packet polled last.
    wan_lane: LaneId,
    common: Common,
    sessions: u64,
    /// See [`Gateway::peer_takes`].
    peer_takes: Arc<[IpNet]>,
    /// Source and destination of the last packet that had right ones.
    admitted: Option<(IpAddr, IpAddr)>,
    /// The session before.
    ended: SessionEnd,
    relief: Reclaimer,
    surplus: Surplus,
    /// IPv4 identification of the next packet for the LAN.
    ident: u16,
}

mod admission;
mod carried;
pub(crate) mod copying;
pub(crate) mod moves;
mod observed;
mod restore;
mod retained;
mod surplus;

impl Gateway {
    /// A gateway without a session and without flows.
    #[must_use]
    pub fn new(settings: Settings, now: Instant) -> Self {
        let pairing = pairing::Config { capacity: 2 * settings.flows, ..pairing::Config::default() };
        Self {
            near: NearSide::new(&settings),
            far: FarSide::new(&settings),
            numbering: Numbering::new(),
            ordering: Ordering::new(&settings),
            wan: Connection::new(settings.wan(), classes(&settings.policy), now),
            wan_lane: LaneId::default(),
            sessions: 0,
            peer_takes: Arc::default(),
            admitted: None,
            // A process without a past may have had one that ended in any way.
            ended: SessionEnd::Lost,
            relief: Reclaimer::new(settings.total_buffer),
            surplus: Surplus::new(settings.grouping.secret(), now),
            ident: 1,
            common: Common {
                classes: Classes::new(Arc::clone(&settings.policy)),
                lan: LanQueue::new(settings.total_buffer / 4),
                pool: Pool::new(settings.total_buffer),
                pairings: Pairings::new(pairing, now),
                stale_flows: StaleFlows::new(settings.flows),
                answers: PiggybackedAcks::new(),
                carriage: Carriage::new(settings.grouping.secret()),
                failures: Kept::new(),
                openings: Openings::new(),
                renewals: Renewals::default(),
                retention: None,
                peer_begins_again: true,
                members: settings.is_member.then(FromMember::default),
                stats: Stats::default(),
                settings,
            },
        }
    }

    /// A packet from the LAN.
    pub fn handle_lan(&mut self, datagram: &Datagram<'_>, now: Instant) {
        if !self.drop_surplus(datagram, now) {
            self.take_lan(datagram, None, now);
        }
    }

    /// A packet from the LAN that [`Gateway::drop_surplus`] has just let pass, and whose payload
    /// need not be read again for its sum.
    pub fn handle_received(&mut self, received: &Received<'_>, now: Instant) {
        self.take_lan(&received.datagram, Some(&received.sums), now);
    }

    fn take_lan(&mut self, datagram: &Datagram<'_>, sums: Option<&Sums>, now: Instant) {
        let judged = self.surplus.take_judged().map(|place| (place, self.common.stats.dropped_for_share()));
        self.near.set_flooded(judged.is_some_and(|(place, _)| self.surplus.is_in_part(place)));
        if let Err(why) = self.admit(datagram, sums, now) {
            self.common.stats.drop_lan(why);
        }
        if let Some((place, before)) = judged {
            self.surplus.note(place, self.common.stats.dropped_for_share() > before);
        }
        self.settle_pairings(now);
    }

    fn admit(&mut self, datagram: &Datagram<'_>, sums: Option<&Sums>, now: Instant) -> Result<(), LanDrop> {
        let addressing = &datagram.addressing;
        self.admit_hosts(addressing)?;
        if addressing.ttl <= 1 {
            return Err(LanDrop::TimeToLive);
        }
        self.wan.senders().serve(self.common.settings.grouping.other(addressing.src));
        if addressing.dst.is_multicast() {
            return self.carry_to_group(addressing, datagram.transport, now);
        }
        let mut packet = match Packet::parse(datagram.transport) {
            Ok(packet) => packet,
            Err(wire::Malformed::Opcode(code)) if code >> 5 == RC => return Err(LanDrop::Opcode),
            // Of a transport that is not understood (XRC and the like) not even the shape can be
            // judged: carried as it is.
            Err(wire::Malformed::Opcode(_)) => {
                return self.carry_in_order(addressing, datagram.transport, None, now);
            }
            Err(_) => return Err(LanDrop::Malformed),
        };
        if let Some(sums) = sums {
            packet.note_sums(sums);
        }
        if packet.bth.opcode.transport() == Transport::Rc {
            let (grouping, host) = (self.common.settings.grouping, addressing.src);
            let is_request = packet.bth.opcode.is_request();
            // A requester that is there is served otherwise once its flow is found.
            let group = if is_request { grouping.unproven(host) } else { grouping.rc(host) };
            self.wan.senders().serve(group);
        }
        let mut ctx = self.common.context(self.wan.senders(), now);
        match packet.bth.opcode.transport() {
            Transport::Rc if packet.bth.opcode.is_request() => {
                self.near.handle_request(addressing, &packet, &mut ctx);
            }
            Transport::Rc => self.far.handle_response(addressing, &packet, &self.near, &mut ctx),
            Transport::Ud => {
                self.carry_datagram(addressing, &packet, now)?;
                // What does not reach the other end changes nothing there, and is said again.
                note_connection(addressing, &packet, &mut self.common.context(self.wan.senders(), now));
            }
            Transport::Uc => return self.carry_in_order(addressing, packet.bytes, Some(&packet), now),
            Transport::Cnp => return self.handle_notification(addressing, &packet, now),
        }
        Ok(())
    }

    /// A WAN packet: authenticated, in plaintext, not seen before. `arrival.bytes` is
    /// [`Gateway::wire_bytes`] of its length.
    pub fn handle_wan(&mut self, packet: &[u8], arrival: Arrival, now: Instant) {
        if !self.wan.is_up() {
            return;
        }
        let Self { wan, near, far, ordering, common, .. } = self;
        let handled = wan.handle_datagram(packet, arrival, now, &mut |record, senders| {
            handle_record(record, near, far, ordering, &mut common.context(senders, now));
        });
        if handled.is_err() {
            self.common.stats.bad_packets += 1;
        }
        self.heed_wan(now);
        self.settle_pairings(now);
        let used = self.common.pool.bytes_in_use();
        if self.relief.is_due(used) {
            self.near.forget_kept(&self.common.settings);
            self.relieve(self.common.pool.bytes_in_use(), now);
        }
    }

    /// Acts on what the connection to the peer has found out.
    fn heed_wan(&mut self, now: Instant) {
        while let Some(event) = self.wan.poll_event() {
            match event {
                transport::Event::Rtt(rtt) => self.common.settings.rtt = rtt,
                transport::Event::Room if self.near.has_withheld() => {
                    self.near.release_withheld(&mut self.common.context(self.wan.senders(), now));
                }
                transport::Event::Room => {}
            }
        }
    }

    /// Ends the flows that hold more than their share of the buffers.
    fn relieve(&mut self, used: usize, now: Instant) {
        for holder in self.relief.choose(used, self.far.loads(), self.near.loads()) {
            let mut ctx = self.common.context(self.wan.senders(), now);
            match holder {
                Holder::Far(slot) => self.far.evict(slot, &mut ctx),
                Holder::Near(slot) => self.near.evict(slot, &mut ctx),
            }
        }
    }

    /// The LAN's longest IP packet has changed.
    pub fn set_lan_mtu(&mut self, mtu: usize) {
        self.common.settings.lan_mtu = mtu;
    }

    /// From now on at most so many bit/s go to the peer, of the [`Settings::rate`] that windows and
    /// buffers are made for: others send there, too.
    pub fn set_rate(&mut self, rate: u64) {
        self.wan.set_rate(rate);
    }

    /// While more waits to be sent than the rate lets go: how much would be sent if others sent
    /// nothing, in bit/s.
    #[must_use]
    pub fn held_from(&self) -> Option<u64> {
        self.wan.held_from()
    }

    /// A datagram came on this lane under a number taken in before, and was refused: a copy.
    pub fn note_copy(&mut self, lane: LaneId) {
        self.wan.note_copy(lane);
    }

    /// So many datagrams came that this machine dropped before they could be taken in. Tell before
    /// [`Gateway::poll_wan`] reports on what came after them ([`Gateway::reports_on_path`]).
    pub fn note_overrun(&mut self, datagrams: u64) {
        self.wan.note_overrun(datagrams);
    }

    /// Returns true if [`Gateway::poll_wan`] tells the peer at this time what came from it.
    #[must_use]
    pub fn reports_on_path(&self, now: Instant) -> bool {
        self.wan.reports_on_path(now)
    }

    /// Packets of [`Gateway::poll_wan`] that this machine dropped, by their lane and numbers, in
    /// ascending order: they are no loss of the path's. `too_long`: since its interface does not
    /// carry them.
    pub fn note_unsent(&mut self, lane: LaneId, numbers: Range<u64>, too_long: bool) {
        self.wan.note_unsent(lane, numbers, too_long);
    }

    /// The longest packet of [`Gateway::poll_wan`] that the path is known to carry; what is longer
    /// is a probe.
    #[must_use]
    pub fn wan_packet(&self) -> usize {
        self.wan.packet()
    }

    /// Returns true if packets of [`Gateway::poll_wan`] for this lane are to be ECN-capable.
    #[must_use]
    pub fn marks(&self, lane: LaneId) -> bool {
        self.wan.marks(lane)
    }

    /// Leaves these lanes out for now, a bit for each: what they were given would wait in this
    /// machine, while others have room. If all wait, there is nothing to choose: then say none.
    /// Holds until the session's end.
    pub fn set_full_lanes(&mut self, full: u64) {
        self.wan.set_full_lanes(full);
    }

    /// The lane that the last packet of [`Gateway::poll_wan`] leaves on.
    #[must_use]
    pub fn wan_lane(&self) -> LaneId {
        self.wan_lane
    }

    /// Returns the bytes that a WAN packet of `len` bytes takes on the wire, as the pacer counts
    /// it.
    #[must_use]
    pub fn wire_bytes(&self, len: usize) -> usize {
        self.wan.wire_bytes(len)
    }

    /// Hands the pairings' events to the flows that they concern, and returns true if there were
    /// any.
    fn settle_pairings(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(event) = self.common.pairings.poll_event() {
            any = true;
            let mut ctx = self.common.context(self.wan.senders(), now);
            match event {
                Event::Paired(flow, requester_qpn) => {
                    self.near.pair(&flow, requester_qpn, &mut ctx);
                    self.far.pair(&flow, requester_qpn, &mut ctx);
                }
                Event::Superseded(flow) => {
                    self.near.supersede(&flow, &mut ctx);
                    self.far.supersede(&flow, &mut ctx);
                }
                Event::Unpaired(flow) => self.far.unpair(&flow, &mut ctx),
                // The far half is closed by its near half.
                Event::Closing(flow) => self.near.end(&flow),
                Event::Doubted(flow) => self.far.doubt(&flow, &mut ctx),
                Event::Turn(flow) => self.far.take_turn(&flow, &mut ctx),
                Event::Repeat(flow) => self.far.repeat(&flow, &mut ctx),
                Event::InVain(flow) => self.far.end_turn(&flow, &mut ctx),
            }
        }
        any
    }

    /// The next packet for the LAN, written to `out` as a whole IP packet with its ICRC. `out` must
    /// hold [`Settings::lan_mtu`] bytes, or [`far::MAX_PACKET`](roce::flow::far::MAX_PACKET) and
    /// the headers around it if that is less.
    pub fn poll_lan(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        loop {
            let ident = self.ident;
            let written = if let Some(Waiting { addressing, packet, delivered }) = self.common.lan.pop() {
                let written = ip::emit(&addressing, ident, packet.as_ref(), out);
                self.near.keep(delivered, packet, &self.common.settings, now);
                written
            } else {
                let mut ctx = self.common.context(self.wan.senders(), now);
                let polled = self.near.poll(out, &mut ctx);
                let Some((addressing, len)) = polled.or_else(|| self.far.poll(out, &mut ctx)) else {
                    // A flow that had nothing to ask has passed its turn on.
                    if self.settle_pairings(now) {
                        continue;
                    }
                    return None;
                };
                ip::frame(&addressing, ident, len, out)
            };
            self.ident = self.ident.checked_add(1).unwrap_or(1);
            match written {
                // Taken in before the LAN's MTU became less. A flow that does not get on with that
                // ends as with a silent target.
                Ok(len) if len > self.common.settings.lan_mtu => self.common.stats.lan_too_long += 1,
                Ok(len) => {
                    self.common.stats.lan_emitted += 1;
                    return Some(len);
                }
                Err(_) => self.common.lan.dropped += 1,
            }
        }
    }

    /// Last packets of messages that [`Gateway::poll_lan`] has handed out for targets here, so far,
    /// repetitions included. When there is another one, an answer is about to come that a requester
    /// waits for.
    #[must_use]
    pub fn handed_over(&self) -> u64 {
        self.far.handed_over()
    }

    /// The next packet for the peer, in plaintext, written to `out`, which must hold the session's
    /// longest packet. One longer than [`Gateway::wan_packet`] is a probe, which may be longer than
    /// the path carries.
    pub fn poll_wan(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        let LanePacket { lane, len } = self.wan.poll_transmit(now, out)?;
        self.wan_lane = lane;
        self.heed_wan(now);
        Some(len)
    }

    /// When to call [`Gateway::handle_timeout`] at the latest; `None` if nothing is pending.
    #[must_use]
    pub fn next_timeout(&self, now: Instant) -> Option<Instant> {
        [
            self.near.next_timeout(),
            self.far.next_timeout(),
            self.numbering.next_timeout(),
            self.ordering.next_timeout(),
            self.wan.next_timeout(now),
            self.common.pairings.next_timeout(),
            self.common.stale_flows.next_timeout(),
            self.retention_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let mut ctx = self.common.context(self.wan.senders(), now);
        self.near.handle_timeout(&mut ctx);
        self.far.handle_timeout(&self.near, &mut ctx);
        self.ordering.handle_timeout(&mut ctx);
        self.numbering.handle_timeout(&self.common.settings, self.wan.senders(), now);
        self.wan.handle_timeout(now);
        self.common.stale_flows.handle_timeout(now);
        self.forget_orphans(now);
        if self.common.pairings.next_timeout().is_some_and(|at| at <= now) {
            self.common.pairings.handle_timeout(now);
        }
        self.settle_pairings(now);
    }

    /// A session has begun; `remembered` is what the peer knew of flows of the one before. `rtt` is
    /// a first estimate, `max_packet` the longest WAN packet (plaintext bytes) that the peer takes;
    /// [`Settings::max_packet`] bounds it. `lanes` is how many it sends on.
    pub fn session_up(
        &mut self,
        rtt: Duration,
        max_packet: usize,
        lanes: u8,
        remembered: &[StaleFlow],
        now: Instant,
    ) {
        if self.wan.is_up() || self.wan.is_parked() {
            self.session_down(SessionEnd::Closed, now);
        }
        self.sessions += 1;
        self.common.settings.rtt = rtt;
        self.wan.begin(&Session { rtt, max_packet, lanes }, now);
        self.common.stale_flows.clear_own();
        let mut ctx = self.common.context(self.wan.senders(), now);
        for flow in remembered {
            if !ctx.settings.may_remember(flow) {
                ctx.stats.bad_records += 1;
                continue;
            }
            match flow.side {
                FlowSide::Near => self.far.force_error(flow, &mut ctx),
                FlowSide::Far if self.near.knows(flow) => self.near.acquaint(flow, &mut ctx),
                FlowSide::Far => ctx.mark_reset(flow, self.ended),
            }
        }
    }

    /// The gateway before this one, whose state is lost, knew these flows of requesters here, and
    /// they have not ended. To be told right after [`Gateway::session_up`]. A requester may go on
    /// in the midst of a message, and a new flow asks the target where that stands.
    ///
    /// Rule: `docs/protocol.md#rule-reborn`.
    pub fn await_requesters(&mut self, flows: &[StaleFlow], now: Instant) {
        let until = now + self.common.settings.linger.max(self.common.settings.idle_flow);
        for flow in flows {
            if flow.side != FlowSide::Far || !self.common.settings.may_remember(flow) {
                self.common.stats.bad_records += 1;
            } else if !self.near.knows(flow) {
                self.common.stale_flows.await_requester(*flow, until);
            }
        }
    }

    /// A session with a process that knows none of the flows that this gateway has: the peer's
    /// died, and another one stands in its place. Flows go on by what requesters and targets know.
    /// Nothing new is told to a requester before its target has spoken. One that was acknowledged
    /// what only the dead process had ends in an error. `ended` are flows that the peer says have
    /// ended; the other arguments are those of [`Gateway::session_up`].
    ///
    /// Rule: `docs/protocol.md#rule-reborn`.
    pub fn session_reborn(
        &mut self,
        rtt: Duration,
        max_packet: usize,
        lanes: u8,
        ended: &[StaleFlow],
        now: Instant,
    ) {
        self.sessions += 1;
        self.common.settings.rtt = rtt;
        self.wan.end(now);
        self.forget_order();
        self.wan.begin(&Session { rtt, max_packet, lanes }, now);
        self.common.stale_flows.clear_own();
        let mut ctx = self.common.context(self.wan.senders(), now);
        self.near.strand_all(&mut ctx);
        self.far.strand_all(&mut ctx);
        for flow in ended {
            if !ctx.settings.may_remember(flow) {
                ctx.stats.bad_records += 1;
                continue;
            }
            match flow.side {
                FlowSide::Near => self.far.end_remembered(flow, &mut ctx),
                FlowSide::Far if self.near.end_remembered(flow, SessionEnd::Lost, &mut ctx) => {}
                FlowSide::Far => ctx.mark_reset(flow, SessionEnd::Lost),
            }
        }
    }

    /// Records of another session follow none of the one before.
    fn forget_order(&mut self) {
        self.numbering = Numbering::new();
        self.ordering = Ordering::new(&self.common.settings);
        self.common.answers = PiggybackedAcks::new();
    }

    /// The session is lost and may go on: [`Gateway::session_resumed`]. Flows wait meanwhile, and
    /// take what there is room for. What is not terminated is dropped, as by a network that is cut.
    ///
    /// No timer here ends the wait: the driver does, by [`Gateway::session_down`].
    pub fn session_lost(&mut self, now: Instant) {
        self.wan.park(now);
        self.far.wait(now);
    }

    /// Tells whether the peer takes it for no end of a flow that there was no place for its other
    /// half. One that does not is told that there was no room, which ends the flow. Holds until it
    /// is told anew, with each session; before, the peer does.
    pub fn peer_begins_again(&mut self, does: bool) {
        self.common.peer_begins_again = does;
    }

    /// Returns true between [`Gateway::session_lost`] and what ends that.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        self.wan.is_parked()
    }

    /// A session of the very same two processes takes the place of the one before: its flows and
    /// streams go on where they stood, under new keys. Each record is delivered once, whether it
    /// was sent before or after. Arguments are those of [`Gateway::session_up`].
    ///
    /// Returns false, and does nothing, if there is no session to go on with.
    #[must_use]
    pub fn session_resumed(&mut self, rtt: Duration, max_packet: usize, lanes: u8, now: Instant) -> bool {
        self.wan.park(now);
        if !self.wan.is_parked() {
            return false;
        }
        self.sessions += 1;
        self.common.settings.rtt = rtt;
        self.wan.resume(&Session { rtt, max_packet, lanes }, now);
        let ctx = self.common.context(self.wan.senders(), now);
        self.near.go_on(&ctx);
        self.far.go_on(now);
        true
    }

    /// This gateway has not run for so long up to now: its process stood still, or its machine did.
    /// That is nobody's silence, and no flow ends for it. To be called before what came meanwhile
    /// is handled, and before [`Gateway::handle_timeout`]. Takes a step for each flow.
    pub fn excuse_pause(&mut self, pause: Duration, now: Instant) {
        self.near.excuse_pause(pause, now);
        self.far.excuse_pause(pause, now);
    }

    /// Returns how many flows wait for something of the peer's or of a target's, on both sides.
    #[must_use]
    pub fn waiting_flows(&self) -> usize {
        self.near.waiting() + self.far.waiting()
    }

    /// The session is over. Every flow ends in an error that its programs see; what was on its way
    /// is gone.
    pub fn session_down(&mut self, end: SessionEnd, now: Instant) {
        self.ended = end;
        self.wan.end(now);
        self.forget_order();
        let mut ctx = self.common.context(self.wan.senders(), now);
        self.near.fail_all(end, &mut ctx);
        self.far.fail_all(&mut ctx);
    }

    /// Goes over to another policy, on the spot and without disturbing a flow: its messages from
    /// the next packet on take the classes that there are now, what it has handed to a stream
    /// before stays there, and the far side restores the order. A class with the name of a former
    /// one keeps that one's streams, which use the class's scheme from the next block on; what was
    /// chosen for a class of scheme `auto` stays as long as its scheme, what it allows and its
    /// overhead are the same. The streams of a class that is gone go on until all they hold is
    /// acknowledged. Takes a step for each flow that is held back for want of room, and none for
    /// the others.
    ///
    /// # Errors
    /// So many classes were renamed or replaced before, so shortly, that there are no streams for
    /// the new ones; nothing has changed.
    pub fn set_policy(&mut self, policy: Arc<Policy>, now: Instant) -> Result<(), Undrained> {
        self.wan.set_classes(classes(&policy), now)?;
        self.common.classes.set(policy);
        let mut ctx = self.common.context(self.wan.senders(), now);
        self.near.reclassify(&mut ctx);
        self.far.reclassify(&self.common.settings);
        Ok(())
    }

    /// Checks that [`Gateway::set_policy`] would take it now.
    ///
    /// # Errors
    /// As there.
    pub fn would_adopt(&self, policy: &Policy) -> Result<(), Undrained> {
        self.wan.would_adopt(&classes(policy))
    }

    /// Changes what the streams of a class of this policy do about losses, from their next blocks
    /// on. Nothing that is under way is disturbed: blocks say of themselves what they are. Without
    /// effect without a session, the next one begins with the policy's; and if another policy is in
    /// force by now, since its classes are others.
    pub fn tune(&mut self, policy: &Arc<Policy>, class: usize, tuning: &Tuning) {
        if Arc::ptr_eq(policy, self.common.classes.policy()) {
            self.wan.tune(class, tuning);
        }
    }

    /// The way to the peer as it was assumed when the session began, without losses, with packets
    /// as long as it carries by now.
    #[must_use]
    pub fn assumed_link(&self) -> Link {
        self.wan.assumed_link()
    }

    /// Returns the flows to tell the peer of when the next session begins: the paired flows there
    /// are, then those of the session before that are gone.
    pub fn remembered(&self) -> impl Iterator<Item = StaleFlow> + '_ {
        let is_gone = |flow: &StaleFlow| match flow.side {
            FlowSide::Near => !self.near.remembers(flow),
            FlowSide::Far => !self.far.remembers(flow),
        };
        self.near
            .remembered()
            .chain(self.far.remembered())
            .chain(self.common.stale_flows.own().filter(is_gone))
    }

    /// From now on no new flow is taken: the gateway is about to stop.
    pub fn stop_accepting(&mut self) {
        self.near.stop_accepting();
        self.far.stop_accepting();
    }

    /// Nothing is on its way: no requester waits, no target is in the midst of a message or owes an
    /// answer, no stream holds anything.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.near.is_quiet() && self.far.is_quiet() && self.wan.is_idle() && self.common.lan.len() == 0
    }

    /// After the end of a session: every target has been told that its flows are over, or does not
    /// answer, and no requester is left to be refused. What it is told once may be lost, so one is
    /// left until its flow is forgotten.
    #[must_use]
    pub fn has_parted(&self) -> bool {
        self.far.len() == 0 && self.near.len() == 0 && self.common.lan.len() == 0
    }
}

/// One hop further.
fn onward(addressing: &Addressing) -> Addressing {
    Addressing { ttl: addressing.ttl - 1, ..*addressing }
}
