//! The whole: packets of a session in and out.

mod observed;
mod parked;

use std::ops::Range;
use std::time::{Duration, Instant};

use reliability::estimator::{Arrival, LaneId};
use reliability::link::Link;
use reliability::mtu::{Cutter, PIECE_HEADER};
use reliability::stream::{self, Kind, Malformed, StreamId, Transmit, TransmitKind};

pub use self::observed::ClassStats;
pub use self::parked::Parked;
use crate::bounds::Config;
use crate::class::Class;
use crate::path::{Paths, Polled, Sent};
use crate::receivers::Receivers;
use crate::senders::{Senders, Tuning, Undrained};

/// One end of a connection, through all its sessions.
///
/// # Driver contract
/// Between [`Connection::begin`] and [`Connection::end`] there is a session; without one nothing is
/// taken, and [`Connection::poll_transmit`] has nothing. A session whose path is lost is parked
/// ([`Connection::park`]) and goes on over another ([`Connection::resume`]), if both ends do so. In
/// a session:
/// - Push records by [`Connection::senders`].
/// - Feed every authenticated packet of the peer, once, to [`Connection::handle_datagram`]. Records
///   that become whole with it are delivered at once, in any order, each of them once.
/// - After each input or batch of inputs, and after [`Connection::handle_timeout`], call
///   [`Connection::poll_event`] and [`Connection::poll_transmit`] until both return `None`. Packets
///   get the numbers of their lane from 0, in the order in which they are polled.
/// - Then sleep until input comes or [`Connection::next_timeout`] is reached, and in the latter
///   case call [`Connection::handle_timeout`].
///
/// `now` never runs backwards.
///
/// # Bounds
/// Those of [`Config`]; [`Config::most_memory`] tells what they come to. Once warm, nothing is
/// allocated per packet.
pub struct Connection {
    config: Config,
    classes: Vec<Class>,
    senders: Senders,
    receivers: Receivers,
    paths: Paths,
    /// Packets built when the path carried longer ones.
    cutter: Cutter,
    /// Longest packet of this session, plaintext bytes: of what may be looked for, and of those
    /// that are sent now.
    max_packet: usize,
    packet: usize,
    /// Longest packet that streams may have built, plaintext bytes: before the session was parked
    /// they may have been longer.
    longest: usize,
    /// The longest packet that was found to be carried in an earlier session.
    found: Option<usize>,
    /// The most to be sent, bit/s: this connection's share of the link's rate.
    share: u64,
    /// Events that wait.
    is_roomier: bool,
    has_new_rtt: bool,
}

/// Parameters that a session begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// A first estimate of the round-trip time.
    pub rtt: Duration,
    /// Longest packet that the peer takes, plaintext bytes; [`Config::max_packet`] bounds it.
    pub max_packet: usize,
    /// How many lanes the peer sends on.
    pub lanes: u8,
}

/// Something that the owner has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Streams hold less than before: what was held back for want of room may come now.
    Room,
    /// The round-trip time is another one than was assumed, by more than an eighth.
    Rtt(Duration),
}

/// A packet to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePacket {
    /// The lane that it leaves on.
    pub lane: LaneId,
    /// Its length in plaintext bytes.
    pub len: usize,
}

impl Connection {
    /// A connection without a session.
    #[must_use]
    pub fn new(config: Config, classes: Vec<Class>, now: Instant) -> Self {
        Self {
            classes,
            senders: Senders::down(),
            receivers: Receivers::new(&config),
            paths: Paths::down(now),
            cutter: Cutter::default(),
            max_packet: config.max_packet,
            packet: config.max_packet,
            longest: config.max_packet,
            found: None,
            share: config.rate,
            is_roomier: false,
            has_new_rtt: false,
            config,
        }
    }

    /// A session begins; one that there is ends.
    pub fn begin(&mut self, session: &Session, now: Instant) {
        if self.is_up() {
            self.end(now);
        }
        self.take_path(session, now);
        self.longest = self.max_packet;
        self.senders = Senders::up(&self.config, &self.classes, &self.assumed_link(), self.packet, now);
        self.set_rate(self.share);
        self.receivers = Receivers::new(&self.config);
    }

    fn take_path(&mut self, session: &Session, now: Instant) {
        self.config.rtt = session.rtt;
        self.max_packet = session.max_packet.min(self.config.max_packet);
        self.paths = Paths::up(&self.config, self.max_packet, session.lanes, self.found, now);
        self.packet = self.paths.packet();
    }

    /// The session is over: what its streams hold is gone.
    pub fn end(&mut self, now: Instant) {
        self.leave_path(now);
        self.senders = Senders::down();
        self.receivers = Receivers::new(&self.config);
        (self.is_roomier, self.has_new_rtt) = (false, false);
    }

    /// The session's path is lost, and another may come: nothing is sent and taken, and no timer
    /// runs, but both directions keep all that they hold. Records may be pushed, and classes
    /// changed.
    pub fn park(&mut self, now: Instant) {
        if self.is_up() {
            self.leave_path(now);
            self.senders.park();
        }
    }

    /// True after [`Connection::park`], until the session goes on or ends.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        !self.is_up() && self.senders.has_streams()
    }

    /// A parked session goes on where it stood: what was on its way is repaired, and each record is
    /// still delivered once. The peer has to do the same. Numbers of packets begin at 0 on each
    /// lane. If nothing is parked, this is [`Connection::begin`].
    ///
    /// Streams tell the time in 32 bits of microseconds: a session may be parked for 35 minutes.
    pub fn resume(&mut self, session: &Session, now: Instant) {
        if !self.is_parked() {
            return self.begin(session, now);
        }
        self.take_path(session, now);
        self.longest = self.longest.max(self.max_packet);
        let link = self.assumed_link();
        self.senders.resume(&self.config, &self.classes, &link, self.packet, now);
        self.set_rate(self.share);
    }

    fn leave_path(&mut self, now: Instant) {
        let found = self.paths.is_up().then_some(self.packet);
        self.found = found.filter(|packet| *packet > self.config.base_packet).or(self.found);
        self.paths = Paths::down(now);
        self.cutter = Cutter::default();
    }

    /// True while there is a session that is not parked.
    #[inline]
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.senders.is_up()
    }

    /// The sending streams: where records are pushed, and what there is room for.
    #[inline]
    pub fn senders(&mut self) -> &mut Senders {
        &mut self.senders
    }

    /// A packet of the peer's: authenticated, in plaintext, not seen before. `arrival.bytes` is
    /// [`Connection::wire_bytes`] of its length. Each record that it completes is handed to
    /// `deliver` with the sending streams, for what answers it.
    ///
    /// # Errors
    /// The packet breaks the format. It is to be counted, and has changed nothing but what is known
    /// of the path.
    pub fn handle_datagram(
        &mut self,
        packet: &[u8],
        arrival: Arrival,
        now: Instant,
        deliver: &mut impl FnMut(&[u8], &mut Senders),
    ) -> Result<(), Malformed> {
        if !self.is_up() {
            return Ok(());
        }
        let classified = stream::classify(packet);
        self.paths.observe(packet, &arrival, classified.ok().map(|(kind, _)| kind), now);
        match classified? {
            (Kind::Data | Kind::Parity, stream) => {
                let Self { senders, receivers, .. } = self;
                receivers.handle_packet(stream, packet, now, &mut |record| deliver(record, senders))
            }
            (Kind::Piece, NO_LANE) => {
                let Self { paths, senders, receivers, .. } = self;
                let joiner = paths.joiner(arrival.lane).ok_or(Malformed::Stream(StreamId(arrival.lane.0)))?;
                let Some(whole) = joiner.handle(packet)? else { return Ok(()) };
                match stream::classify(whole)? {
                    (Kind::Data | Kind::Parity, stream) => {
                        receivers.handle_packet(stream, whole, now, &mut |record| deliver(record, senders))
                    }
                    (kind, _) => Err(Malformed::Direction(kind)),
                }
            }
            (kind, stream) => self.handle_control(kind, stream, arrival.lane, packet, now),
        }
    }
    /// A packet of the session's own.
    fn handle_control(
        &mut self,
        kind: Kind,
        stream: StreamId,
        came_on: LaneId,
        packet: &[u8],
        now: Instant,
    ) -> Result<(), Malformed> {
        match kind {
            Kind::Report => {
                if let Some(rtt) = self.senders.handle_report(stream, packet, now)? {
                    self.paths.sample_rtt(rtt, now);
                    self.follow_rtt();
                }
                self.is_roomier = true;
            }
            Kind::Path => {
                self.paths.handle_report(stream, came_on, packet, now)?;
                self.follow_rate();
                self.follow_rtt();
            }
            Kind::Probe => self.paths.handle_probe(stream, packet)?,
            Kind::Mtu => {
                self.paths.handle_mtu(stream, packet, now)?;
                self.follow_path();
            }
            Kind::Piece | Kind::Data | Kind::Parity => return Err(Malformed::Stream(stream)),
        }
        Ok(())
    }

    /// Returns the next thing that the owner has to know; `None`: nothing more.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.has_new_rtt) {
            return Some(Event::Rtt(self.config.rtt));
        }
        std::mem::take(&mut self.is_roomier).then_some(Event::Room)
    }

    /// The next packet for the peer, in plaintext, written to `out`, which must hold the longest
    /// packet of the session, or of what it was before it was parked. One longer than
    /// [`Connection::packet`] is a probe, which may be longer than the path carries.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<LanePacket> {
        if !self.is_up() {
            return None;
        }
        let out = out.get_mut(..self.longest)?;
        let carried = out.get_mut(..self.packet)?;
        if let Some((lane, len)) = self.cutter.poll(carried) {
            // The packet itself was counted when it was cut.
            self.senders.consume(PIECE_HEADER, now);
            return Some(self.leave(lane, len, Sent::Traffic, now));
        }
        if let Some(len) = self.receivers.poll(now, carried) {
            self.senders.consume(len, now);
            // It must not wait for a lane's turn.
            let lane = self.paths.any_lane();
            return Some(self.leave(lane, len, Sent::Traffic, now));
        }
        if let Some(polled) = self.paths.poll(now, out) {
            let Polled { lane, len, .. } = polled;
            self.follow_path();
            self.receivers.set_reorder_time(self.paths.reorder_time());
            self.receivers.set_report_rate(self.paths.report_rate().map(|rate| rate / 2));
            self.senders.consume(len, now);
            return Some(self.leave(lane, len, polled.sent(), now));
        }
        self.follow_path();
        if !self.paths.may_send() {
            self.senders.exclude();
            return None;
        }
        let Some((stream, Transmit { mut len, kind })) = self.senders.poll(now, out) else {
            self.paths.end_run();
            return None;
        };
        let lane = self.paths.lane(stream, self.senders.in_block(stream));
        if len > self.packet {
            self.cutter.cut(out.get(..len)?, lane, self.packet);
            (_, len) = self.cutter.poll(out.get_mut(..self.packet)?)?;
        }
        self.is_roomier |= kind == TransmitKind::Data;
        Some(self.leave(lane, len, Sent::Traffic, now))
    }

    fn leave(&mut self, lane: LaneId, len: usize, what: Sent, now: Instant) -> LanePacket {
        self.paths.sent(lane, self.wire_bytes(len), what, now);
        LanePacket { lane, len }
    }

    /// When to call [`Connection::handle_timeout`] at the latest; `None` if nothing is pending.
    #[must_use]
    pub fn next_timeout(&self, now: Instant) -> Option<Instant> {
        if !self.is_up() {
            return None;
        }
        let due = [self.senders.next_timeout(now), self.receivers.next_timeout(), self.paths.next_timeout()];
        due.into_iter().flatten().min()
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.is_up() {
            return;
        }
        self.senders.handle_timeout(now);
        if self.paths.handle_timeout(now) {
            self.follow_rate();
        }
        self.receivers.handle_timeout(now);
    }

    /// Builds packets as long as the path carries them by now.
    fn follow_path(&mut self) {
        if self.paths.packet() != self.packet {
            self.packet = self.paths.packet();
            self.cutter.clear();
            let link = self.assumed_link();
            self.senders.set_max_packet(&self.config, &self.classes, &link, self.packet);
        }
    }

    /// Buffers and patience suit the round trip as it is measured now, not as it was when the
    /// session began.
    fn follow_rtt(&mut self) {
        let (measured, known) = (self.paths.rtt(), self.config.rtt);
        if !measured.is_zero() && measured.abs_diff(known) > known / 8 {
            self.config.rtt = measured;
            self.has_new_rtt = true;
        }
    }

    fn follow_rate(&mut self) {
        if let Some(rate) = self.paths.new_rate() {
            self.senders.set_rate(rate);
        }
    }

    /// From now on at most so many bit/s are sent, of the [`Config::rate`] that windows and buffers
    /// are made for: others send over the link, too.
    pub fn set_rate(&mut self, rate: u64) {
        self.share = rate;
        if self.is_up() && self.paths.set_ceiling(rate) {
            self.follow_rate();
        } else {
            self.senders.set_rate(rate);
        }
    }

    /// The most that is sent, in bit/s: as [`Connection::set_rate`] said last.
    #[inline]
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.share
    }

    /// While more waits to be sent than the rate lets go: how much would be sent if others sent
    /// nothing, in bit/s.
    #[must_use]
    pub fn held_from(&self) -> Option<u64> {
        let most = self.paths.most_rate().unwrap_or(self.config.rate);
        self.senders.is_held().then_some(most.min(self.config.rate))
    }

    /// Returns true if packets of the lane are to be ECN-capable.
    ///
    /// Source: RFC 9000, 13.4.2.
    #[must_use]
    pub fn marks(&self, lane: LaneId) -> bool {
        self.paths.marks(lane)
    }

    /// Leaves these lanes out for now, a bit for each: what they were given would wait in this
    /// machine, while others have room. If all wait, there is nothing to choose: then say none.
    /// Holds until the session's end.
    pub fn set_full_lanes(&mut self, full: u64) {
        self.paths.set_full_lanes(full);
    }

    /// A datagram came on this lane under a number taken in before, and was refused: a copy.
    pub fn note_copy(&mut self, lane: LaneId) {
        self.paths.observe_copy(lane);
    }

    /// So many datagrams came that this machine dropped before they could be taken in. Tell before
    /// [`Connection::poll_transmit`] reports on what came after them
    /// ([`Connection::reports_on_path`]).
    pub fn note_overrun(&mut self, datagrams: u64) {
        self.paths.observe_overrun(datagrams);
    }

    /// Returns whether [`Connection::poll_transmit`] tells the peer at this time what came from it.
    #[must_use]
    pub fn reports_on_path(&self, now: Instant) -> bool {
        self.paths.reports(now)
    }

    /// Packets of [`Connection::poll_transmit`] that this machine dropped, by their lane and
    /// numbers, in ascending order: they are no loss of the path's. `too_long`: since its interface
    /// does not carry them.
    pub fn note_unsent(&mut self, lane: LaneId, numbers: Range<u64>, too_long: bool) {
        self.paths.unsent(lane, numbers, too_long);
    }

    /// Goes over to other classes, without disturbing what their streams hold.
    ///
    /// A class with the name of a former one keeps that one's streams, which use the class's scheme
    /// from the next block on; what was chosen for it ([`Connection::tune`]) stays as long as its
    /// [`Repair`](crate::Repair) and overhead are the same. The streams of a class that is gone go
    /// on until all they hold is acknowledged.
    ///
    /// # Errors
    /// So many classes were renamed or replaced before, so shortly, that there are no streams for
    /// the new ones; nothing has changed.
    pub fn set_classes(&mut self, classes: Vec<Class>, now: Instant) -> Result<(), Undrained> {
        self.senders.set_classes(&self.classes, &classes, now)?;
        self.classes = classes;
        Ok(())
    }

    /// Returns whether [`Connection::set_classes`] would take them now.
    ///
    /// # Errors
    /// As there.
    pub fn would_adopt(&self, classes: &[Class]) -> Result<(), Undrained> {
        self.senders.places_for(&self.classes, classes).map(|_| ())
    }

    /// Changes what the streams of a class do about losses, from their next blocks on. Nothing that
    /// is under way is disturbed: blocks say of themselves what they are. Without effect without a
    /// session.
    pub fn tune(&mut self, class: usize, tuning: &Tuning) {
        self.senders.tune(class, tuning);
    }

    /// The way to the peer as it was assumed when the session began, without losses, with packets
    /// as long as it carries by now.
    #[must_use]
    pub fn assumed_link(&self) -> Link {
        self.config.link(self.packet)
    }
}

/// In place of a PIECE's lane, which is the one that it comes on.
const NO_LANE: StreamId = StreamId(0);

#[cfg(test)]
mod tests;
