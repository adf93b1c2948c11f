//! The way out to the peer: each class's streams behind one pacer.

mod admission;
mod claims;
mod copying;
mod drr;
mod load;
mod pacer;
mod shares;
mod slot;

use std::ops::Range;
use std::time::{Duration, Instant};

use reliability::link::Link;
use reliability::pacing::Pacer;
use reliability::stream::{
    Full, InBlock, Malformed, Origin, Scheme, Sender, SenderConfig, StreamId, Transmit,
};

pub use self::copying::StreamCopying;
use self::drr::DrrScheduler;
use self::pacer::link_time;
use self::shares::{FRAMED, LEAST_PIECE, backlog_of, fitting_piece, shares, siblings};
pub use self::slot::Reservation;
use self::slot::Slot;
use crate::bounds::{Config, LEAST_PART, LEAST_WINDOW, auto_flush, part_of};
use crate::class::{Class, Repair, SLOTS, Urgency};
use crate::group::Group;

/// Which turn a record takes.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Whose: sources of a group take turns. 0: it shares packets with others of that kind.
    pub source: u64,
    /// The group that it belongs to: see [`Senders::group`].
    pub group: Group,
    /// True for a whole message: it goes before what waits of its group in other turns.
    pub goes_first: bool,
}

/// Other classes could not be adopted yet: classes removed by earlier ones still hold as many
/// streams as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the streams of classes removed before are still in use, and {missing} of the new classes would have none"
)]
pub struct Undrained {
    /// Classes without streams.
    pub missing: usize,
}

/// The settings of a class of scheme `auto`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// For the stream of what is small and urgent.
    pub prompt: Scheme,
    /// For the stream of everything with a payload.
    pub bulk: Scheme,
    /// Share of packets that the path loses, for `hybrid`; NaN: not known.
    pub drop: f64,
    /// Mean run of lost packets, for `hybrid`.
    pub burst: f64,
}

/// All sending streams of a session. Without a session there are none, and every push is refused;
/// while it is parked, they take what they have room for.
///
/// A class has a *slot*, and a slot two streams, one for prompt records and one for bulk. When the
/// classes change, a class keeps its slot by its name. The slot of a class that is gone takes
/// nothing new and sends what it holds; once that is acknowledged, another class may have it. Its
/// streams go on counting, since the peer does: they are idle, not new.
///
/// Bounds: each stream's backlog and buffer, and each group's share of the backlog
/// ([`Senders::serve`]); above half the backlog sources have no headroom and no more may be asked
/// for, above five eighths a growing share of what comes is marked, above the whole records are
/// refused. What was asked for elsewhere has its room kept, up to half a backlog, and a piece of it
/// fits that under any set of classes. Twice [`MAX_CLASSES`](crate::MAX_CLASSES) slots; a set whose
/// classes find none is refused ([`Undrained`]).
///
/// Where a change of classes leaves one less room than it uses, or less than it has promised for
/// what was asked for, its bulk stream comes down to its bounds by and by, goes first until it has,
/// and nothing is asked for meanwhile. What it holds beyond its part of the buffers is taken off
/// the others' parts.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct Senders {
    /// By half the stream's number.
    slots: Box<[Option<Slot>]>,
    /// Each class's slot.
    places: Vec<usize>,
    /// Slots without a class; the one that has been so the longest first.
    spare: Vec<usize>,
    /// Spare slots that still hold something, and slots beyond their bounds, when last looked at.
    unsettled: usize,
    turns: DrrScheduler,
    /// Whose is what is pushed or asked about now.
    #[serde(skip)]
    served: Option<Group>,
    #[serde(skip)]
    pacer: Option<Pacer>,
    /// When last asked the pacer let nothing go, though there may be something: parity and repairs
    /// are no backlog.
    #[serde(skip)]
    refused: bool,
    /// Each class's share of the link, as a divisor, when all have something to send.
    shares: Vec<usize>,
    /// Where the parts stand of the class that each class is a part of: they have one turn, one
    /// share, and one part of the buffers.
    siblings: Vec<Range<usize>>,
    /// Bytes to ask for at a time, whatever the classes, for as long as the session lasts.
    read_piece: usize,
    link_backlog: usize,
    total_buffer: usize,
    /// Longest packet that is built now.
    max_packet: usize,
    /// Values that new streams begin with: round-trip time, bit/s, packets under way now and at
    /// most, and how long a block of `auto` may fill.
    rtt: Duration,
    rate: u64,
    window: usize,
    most_window: usize,
    auto_flush: Duration,
    /// Packets are spread over several lanes.
    has_lanes: bool,
}

/// Backlog a stream may hold: what it sends in this time, within bounds.
const BACKLOG: Duration = Duration::from_millis(200);
/// Most bytes of a DATA packet's and a record's own headers, for telling whether a record will
/// fit.
const FRAMING: usize = 256;
/// The most urgent of the priorities.
const MOST_URGENT: u8 = 7;
const URGENCIES: [Urgency; 2] = [Urgency::Prompt, Urgency::Bulk];

impl Senders {
    pub(crate) fn down() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| None).collect(),
            places: Vec::new(),
            spare: Vec::new(),
            unsettled: 0,
            turns: DrrScheduler::new(std::iter::empty(), 0),
            served: None,
            pacer: None,
            refused: false,
            shares: Vec::new(),
            siblings: Vec::new(),
            read_piece: LEAST_PIECE,
            link_backlog: 0,
            total_buffer: 0,
            max_packet: 0,
            rtt: Duration::ZERO,
            rate: 0,
            window: 0,
            most_window: 0,
            auto_flush: Duration::ZERO,
            has_lanes: false,
        }
    }

    /// For a new session that begins with packets of up to so many bytes: each class has the slot
    /// of its own number.
    pub(crate) fn up(
        config: &Config,
        classes: &[Class],
        link: &Link,
        max_packet: usize,
        now: Instant,
    ) -> Self {
        let backlog = link_time(config.rate, BACKLOG);
        let count = classes.len().min(SLOTS);
        let mut senders = Self {
            pacer: Some(pacer::new(config, now)),
            spare: (count..SLOTS).collect(),
            read_piece: fitting_piece(backlog, config.total_buffer),
            link_backlog: backlog,
            total_buffer: config.total_buffer,
            max_packet,
            rtt: config.rtt,
            rate: config.rate,
            window: config.window(max_packet),
            // Shorter packets may be more.
            most_window: config.window(max_packet.min(config.base_packet)),
            auto_flush: auto_flush(link),
            has_lanes: config.lanes > 1,
            ..Self::down()
        };
        senders.settle((0..count).collect(), classes, now);
        senders
    }

    /// True while there is a session.
    #[inline]
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.pacer.is_some()
    }

    /// True while there are streams to push to, whether or not they may send: while there is a
    /// session, and while one is parked.
    #[inline]
    #[must_use]
    pub fn has_streams(&self) -> bool {
        self.is_up() || !self.places.is_empty()
    }

    /// Nothing leaves any more and no timer runs, but streams keep what they hold and take more.
    pub(crate) fn park(&mut self) {
        (self.pacer, self.refused) = (None, false);
    }

    /// Streams that were parked go on, over a link that may be another one.
    pub(crate) fn resume(
        &mut self,
        config: &Config,
        classes: &[Class],
        link: &Link,
        bytes: usize,
        now: Instant,
    ) {
        self.pacer = Some(pacer::new(config, now));
        self.rtt = config.rtt;
        self.set_max_packet(config, classes, link, bytes);
    }

    pub(crate) fn begin_blocks_anew(&mut self) {
        let slots = self.slots.iter_mut().flatten();
        slots.flat_map(|slot| [&mut slot.prompt, &mut slot.bulk]).for_each(Sender::begin_blocks_anew);
    }

    /// Goes over from some classes to others, or refuses to, and nothing has changed.
    pub(crate) fn set_classes(
        &mut self,
        from: &[Class],
        to: &[Class],
        now: Instant,
    ) -> Result<(), Undrained> {
        let places = self.places_for(from, to)?;
        if !self.has_streams() {
            return Ok(());
        }
        for taken in places.iter().filter(|place| self.spare.contains(place)) {
            if let Some(slot) = self.slots.get_mut(*taken).and_then(Option::as_mut) {
                slot.begin_class();
            }
        }
        let left: Vec<usize> = self.places.iter().copied().filter(|slot| !places.contains(slot)).collect();
        self.spare.retain(|slot| !places.contains(slot));
        for place in left {
            if let Some(slot) = self.slots.get_mut(place).and_then(Option::as_mut) {
                slot.retire();
            }
            self.spare.push(place);
        }
        self.settle(places, to, now);
        Ok(())
    }

    /// The slots of other classes: the one that a class of that name has, or one that is spare and
    /// holds nothing. None without a session.
    pub(crate) fn places_for(&self, from: &[Class], to: &[Class]) -> Result<Vec<usize>, Undrained> {
        if !self.has_streams() {
            return Ok(Vec::new());
        }
        let kept = |name: &str| {
            let index = from.iter().position(|class| class.name == name)?;
            self.places.get(index).copied()
        };
        let drained =
            |slot: &usize| self.slots.get(*slot).is_some_and(|slot| slot.as_ref().is_none_or(Slot::is_idle));
        let mut free = self.spare.iter().copied().filter(drained);
        let places: Vec<_> = to.iter().map(|class| kept(&class.name).or_else(|| free.next())).collect();
        let missing = places.iter().filter(|place| place.is_none()).count();
        if missing > 0 {
            return Err(Undrained { missing });
        }
        Ok(places.into_iter().flatten().collect())
    }

    /// Gives each class its slot, with the class's scheme, bounds and turn.
    fn settle(&mut self, places: Vec<usize>, classes: &[Class], now: Instant) {
        (self.shares, self.siblings) = (shares(classes), siblings(classes));
        for (place, class) in places.iter().zip(classes) {
            let told = Some((class.repair, class.max_overhead));
            let config = |urgency: Urgency| {
                let half = usize::from(urgency == Urgency::Bulk);
                let id = StreamId(u16::try_from(2 * place + half).unwrap_or(u16::MAX));
                let new = SenderConfig::new(id, self.max_packet);
                let flush = self.flush(class).unwrap_or(new.flush);
                let (rtt_hint, rate, window) = (self.rtt, Some(self.rate), self.most_window);
                let first_window = LEAST_WINDOW;
                SenderConfig {
                    scheme: class.scheme(urgency),
                    rtt_hint,
                    rate,
                    window,
                    first_window,
                    flush,
                    tells_block: self.has_lanes,
                    ..new
                }
            };
            let (configs, flush, window) = (URGENCIES.map(config), self.flush(class), self.window);
            let Some(slot) = self.slots.get_mut(*place) else { continue };
            let slot = slot.get_or_insert_with(|| Slot::new(configs.map(|config| Sender::new(config, now))));
            slot.priority = class.priority;
            // What was chosen for a class of scheme `auto`, and what its streams were told of the
            // path, stays as long as the class says the same.
            let begins_anew = slot.told != told;
            slot.told = told;
            for urgency in URGENCIES {
                let stream = slot.stream_mut(urgency);
                stream.set_window(window);
                if begins_anew {
                    stream.set_drop(f64::NAN);
                    stream.set_burst(1.0);
                    stream.set_scheme(class.scheme(urgency));
                }
                if let Some(flush) = flush {
                    stream.set_flush(flush);
                }
            }
        }
        self.places = places;
        self.share_out();
    }

    /// How long a block may fill; `None`: the class has none.
    fn flush(&self, class: &Class) -> Option<Duration> {
        match class.repair {
            Repair::Auto(_) => Some(self.auto_flush),
            Repair::Fixed { flush, .. } => flush,
        }
    }

    /// Divides what may be held among the classes, after what drains has had its part and who has
    /// more than its part keeps it, and the turns among all.
    fn share_out(&mut self) {
        self.release_spare();
        let total = self.total_buffer.saturating_sub(self.drains().map(|(_, slot)| slot.held()).sum());
        let classes = self.sibling_groups().count().max(1);
        let part = part_of(total, classes);
        let beyond = |slot: &Slot| slot.promised().saturating_sub(part);
        let (count, excess) = (0..self.places.len())
            .filter_map(|class| Some(beyond(self.slot(class)?)))
            .filter(|beyond| *beyond > 0)
            .fold((0, 0), |(count, sum), beyond| (count + 1, sum + beyond));
        let less = excess.div_ceil(2 * classes.saturating_sub(count).max(1));
        for (place, share) in self.places.iter().zip(&self.shares) {
            let Some(slot) = self.slots.get_mut(*place).and_then(Option::as_mut) else { continue };
            let part = if beyond(slot) > 0 { part } else { part.saturating_sub(less).max(LEAST_PART) };
            slot.set_bounds(backlog_of(self.link_backlog, total, *share, part), part);
        }
        self.unsettled = self.count_unsettled();
        let turns = self.sharers().into_iter().flat_map(|(places, priority)| {
            let rank = MOST_URGENT - priority.min(MOST_URGENT);
            let streams = |half: usize| places.iter().map(|place| 2 * place + half).collect();
            [(streams(0), rank), (streams(1), rank + MOST_URGENT + 1)]
        });
        self.turns = DrrScheduler::new(turns, self.max_packet);
    }

    /// The slots that share a turn, and its priority. What drains or has more than it should goes
    /// first and for itself, so that it ends, and so that what its flows send now does not overtake
    /// it by far.
    fn sharers(&self) -> Vec<(Vec<usize>, u8)> {
        let alone = |(place, _): (usize, &Slot)| (vec![place], MOST_URGENT);
        let mut sharers: Vec<_> = self.drains().map(alone).collect();
        for siblings in self.sibling_groups() {
            let slots = siblings.clone().filter_map(|class| self.place(class).zip(self.slot(class)));
            let (beyond, within): (Vec<_>, Vec<_>) = slots.partition(|(_, slot)| slot.is_beyond());
            sharers.extend(beyond.into_iter().map(alone));
            if let Some((_, first)) = within.first() {
                sharers.push((within.iter().map(|(place, _)| *place).collect(), first.priority));
            }
        }
        sharers
    }

    /// The parts of each class that is divided; of any other, itself.
    fn sibling_groups(&self) -> impl Iterator<Item = &Range<usize>> {
        self.siblings
            .iter()
            .enumerate()
            .filter(|(class, siblings)| siblings.start == *class)
            .map(|(_, siblings)| siblings)
    }

    /// The slots without a class that still hold something, with their places.
    fn drains(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let slots = self.spare.iter().filter_map(|place| Some((*place, self.slots.get(*place)?.as_ref()?)));
        slots.filter(|(_, slot)| !slot.is_idle())
    }

    /// Has the streams without a class that hold nothing keep no memory for it.
    fn release_spare(&mut self) {
        for place in &self.spare {
            let slot = self.slots.get_mut(*place).and_then(Option::as_mut);
            if let Some(slot) = slot.filter(|slot| slot.is_idle()) {
                slot.release_spare();
            }
        }
    }

    fn count_unsettled(&self) -> usize {
        let beyond = self.slots.iter().flatten().filter(|slot| slot.is_beyond());
        self.drains().count() + beyond.count()
    }

    /// Gives the others the room of what has drained, or has come down to its bounds.
    fn look_after_unsettled(&mut self) {
        if self.unsettled > 0 && self.count_unsettled() < self.unsettled {
            self.share_out();
        }
    }

    /// Streams of classes that are gone which still hold something, and how many bytes.
    pub(crate) fn draining(&self) -> (usize, usize) {
        let streams = self.drains().flat_map(|(_, slot)| [&slot.prompt, &slot.bulk]);
        let busy = streams.filter(|stream| !stream.is_idle());
        (busy.count(), self.drains().map(|(_, slot)| slot.held()).sum())
    }

    /// Half the number of a class's streams.
    pub(crate) fn place(&self, class: usize) -> Option<usize> {
        self.places.get(class).copied()
    }

    fn slot(&self, class: usize) -> Option<&Slot> {
        self.slots.get(self.place(class)?)?.as_ref()
    }

    fn slot_mut(&mut self, class: usize) -> Option<&mut Slot> {
        let place = self.place(class)?;
        self.slots.get_mut(place)?.as_mut()
    }

    /// Returns whether what was asked for, `len` bytes of it, will be taken on the class's stream
    /// of this urgency.
    #[inline]
    #[must_use]
    pub fn has_room_for_response(&self, class: usize, urgency: Urgency, len: usize) -> bool {
        self.slot(class).is_some_and(|slot| slot.fits(urgency, len))
    }

    /// Bytes that may be asked for elsewhere to be pushed for the class when they come.
    #[must_use]
    pub fn read_room(&self, class: usize) -> usize {
        let Some(slot) = self.slot(class).filter(|_| self.has_headroom(class)) else { return 0 };
        let common = self.common_room(class) / (FRAMED + 1) * FRAMED;
        // A part's even share may be less than a piece, and it must not starve beside the others:
        // so it may ask for one at a time.
        let least = if slot.awaits_nothing() { self.read_piece } else { 0 };
        slot.read_room().min(common.max(least))
    }

    /// Bytes that the class may still take or ask for, beside what the other parts of the same one
    /// hold: each part may have its share of the class's room, and beyond that what the others
    /// leave.
    fn common_room(&self, class: usize) -> usize {
        let Some((slot, siblings)) =
            self.slot(class).zip(self.siblings.get(class)).filter(|(_, siblings)| siblings.len() > 1)
        else {
            return usize::MAX;
        };
        let room = |most: usize, of: fn(&Slot) -> usize| {
            let left = most.saturating_sub(self.slots_of(siblings).map(of).sum());
            left.max((most / siblings.len()).saturating_sub(of(slot)))
        };
        room(slot.max_backlog, Slot::waiting).min(room(slot.max_buffered, Slot::promised))
    }

    /// Bytes to ask for at a time: always the same, so that a flow's reads are cut alike as long as
    /// it is there, and so few that each class may ask for them whatever the classes become.
    #[inline]
    #[must_use]
    pub fn read_piece(&self) -> usize {
        self.read_piece
    }

    /// Returns true if more than is needed may be asked for: there is less than half a backlog.
    #[inline]
    #[must_use]
    pub fn has_headroom(&self, class: usize) -> bool {
        let effective_backlog = self.effective_backlog(class);
        self.slot(class).is_some_and(|slot| slot.has_headroom(effective_backlog))
    }

    /// Bytes that the class's backlog may grow by before requesters are slowed down.
    #[must_use]
    pub fn headroom(&self, class: usize) -> usize {
        let effective_backlog = self.effective_backlog(class);
        self.slot(class).map_or(0, |slot| slot.headroom(effective_backlog))
    }

    /// Returns the part of the backlog that the class may have which counts as taken: all of it
    /// when nothing more is. A part of a divided class has the room that the others leave, and its
    /// even share in any case; so what all of them have counts, unless it is more than what so many
    /// like this one would have.
    fn effective_backlog(&self, class: usize) -> usize {
        let Some((own, siblings)) = self.slot(class).zip(self.siblings.get(class)) else { return 0 };
        if siblings.len() == 1 {
            return own.bulk.backlog();
        }
        let all: usize = self.slots_of(siblings).map(|slot| slot.bulk.backlog()).sum();
        all.min(own.bulk.backlog() * siblings.len())
    }

    /// Those of a divided class's parts.
    fn slots_of(&self, siblings: &Range<usize>) -> impl Iterator<Item = &Slot> {
        siblings.clone().filter_map(|class| self.slot(class))
    }

    /// Returns whether so much waits in the class's bulk stream that the sender of a packet that
    /// comes for it now is to be told to slow down.
    pub fn marks(&mut self, class: usize) -> bool {
        let effective_backlog = self.effective_backlog(class);
        self.slot_mut(class).is_some_and(|slot| slot.marks(effective_backlog))
    }

    /// Takes a record, the concatenation of `parts`, for the class's stream of this urgency.
    ///
    /// # Errors
    /// There are no streams, or this one has no room for it.
    #[inline]
    pub fn push(
        &mut self,
        class: usize,
        urgency: Urgency,
        place: Place,
        parts: &[&[u8]],
        now: Instant,
    ) -> Result<(), Full> {
        let slot = self.slot_mut(class).ok_or(Full::Backlog)?;
        let stream = slot.stream_mut(urgency);
        let Place { source, group, goes_first } = place;
        let origin = Origin { source, group: group.number(), is_apart: group.is_unproven() };
        stream.push_from(origin, goes_first, parts, now)
    }

    /// Changes the class's schemes from their next blocks on, and what its streams know of the
    /// path.
    pub(crate) fn tune(&mut self, class: usize, tuning: &Tuning) {
        let Some(slot) = self.slot_mut(class) else { return };
        for (stream, scheme) in [(&mut slot.prompt, tuning.prompt), (&mut slot.bulk, tuning.bulk)] {
            stream.set_drop(tuning.drop);
            stream.set_burst(tuning.burst);
            stream.set_scheme(scheme);
        }
    }

    /// From now on, so many bit/s.
    pub(crate) fn set_rate(&mut self, rate: u64) {
        let Some(pacer) = &mut self.pacer else { return };
        pacer.set_rate(rate);
        self.rate = rate;
        for slot in self.slots.iter_mut().flatten() {
            for urgency in URGENCIES {
                slot.stream_mut(urgency).set_rate(rate);
            }
        }
    }

    /// From now on packets of up to so many bytes are built.
    pub(crate) fn set_max_packet(&mut self, config: &Config, classes: &[Class], link: &Link, bytes: usize) {
        (self.max_packet, self.window) = (bytes, config.window(bytes));
        self.auto_flush = auto_flush(link);
        for slot in self.slots.iter_mut().flatten() {
            for urgency in URGENCIES {
                let stream = slot.stream_mut(urgency);
                stream.set_max_packet(bytes);
                stream.set_window(self.window);
            }
        }
        let auto = classes.iter().zip(&self.places);
        for (_, place) in auto.filter(|(class, _)| matches!(class.repair, Repair::Auto(_))) {
            let Some(slot) = self.slots.get_mut(*place).and_then(Option::as_mut) else { continue };
            for urgency in URGENCIES {
                slot.stream_mut(urgency).set_flush(self.auto_flush);
            }
        }
        self.share_out();
    }

    /// Returns true if something waits for the pacer.
    pub(crate) fn is_held(&self) -> bool {
        self.pacer.as_ref().is_some_and(Pacer::is_held)
    }

    /// Notes that what waits is not held by the pacer.
    pub(crate) fn exclude(&mut self) {
        if let Some(pacer) = &mut self.pacer {
            pacer.hold(false);
        }
        self.refused = false;
    }

    /// The next packet in turn and its stream, if the pacer lets one go.
    pub(crate) fn poll(&mut self, now: Instant, out: &mut [u8]) -> Option<(StreamId, Transmit)> {
        if !self.pacer.as_ref()?.ready(now) {
            let waiting = self.streams().any(|stream| stream.backlog() > 0);
            self.refused = !self.is_idle();
            self.pacer.as_mut()?.hold(waiting);
            return None;
        }
        self.refused = false;
        let Self { slots, turns, .. } = self;
        let served = turns.serve(|stream| {
            let transmit = slots.get_mut(stream / 2)?.as_mut()?.poll(urgency_of(stream), now, out)?;
            Some((transmit.len, (StreamId(stream as u16), transmit)))
        });
        let Some((len, polled)) = served else {
            // What waits now, waits for room in the receiver's window.
            self.pacer.as_mut()?.hold(false);
            return None;
        };
        self.consume(len, now);
        Some(polled)
    }

    /// Where the stream's packet that was polled last stands in its block, if blocks are spread.
    pub(crate) fn in_block(&self, stream: StreamId) -> Option<&InBlock> {
        let stream = usize::from(stream.0);
        self.slots.get(stream / 2)?.as_ref()?.stream(urgency_of(stream)).in_block()
    }

    /// A packet left, be it one that does not wait for the pacer: a report or a probe.
    pub(crate) fn consume(&mut self, bytes: usize, now: Instant) {
        if let Some(pacer) = &mut self.pacer {
            pacer.consume(bytes, now);
        }
    }

    /// Takes a REPORT; the round-trip time if it told one.
    pub(crate) fn handle_report(
        &mut self,
        stream: StreamId,
        packet: &[u8],
        now: Instant,
    ) -> Result<Option<Duration>, Malformed> {
        let index = usize::from(stream.0);
        let slot = self.slots.get_mut(index / 2).and_then(Option::as_mut).ok_or(Malformed::Stream(stream))?;
        let urgency = urgency_of(index);
        let samples = slot.stream(urgency).rtt().samples();
        slot.handle_report(urgency, packet, now)?;
        let rtt = slot.stream(urgency).rtt();
        let latest = (rtt.samples() > samples).then(|| rtt.latest());
        self.look_after_unsettled();
        Ok(latest)
    }

    /// When there is something to do: the pacer lets the next packet go, or a stream's timer is
    /// due.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let pacer = self.pacer.as_ref()?;
        // What waited when it was last polled does so still, though its time has come meanwhile.
        let waits = self.refused || !pacer.ready(now) && !self.is_idle();
        let paced = waits.then(|| pacer.next_ready());
        self.streams().filter_map(Sender::next_timeout).chain(paced).min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for slot in self.slots.iter_mut().flatten() {
            for urgency in URGENCIES {
                let stream = slot.stream_mut(urgency);
                if stream.next_timeout().is_some_and(|at| at <= now) {
                    stream.handle_timeout(now);
                }
            }
        }
        self.look_after_unsettled();
    }

    /// Nothing to send and nothing unacknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.streams().all(Sender::is_idle)
    }

    fn streams(&self) -> impl Iterator<Item = &Sender> {
        self.slots.iter().flatten().flat_map(|slot| [&slot.prompt, &slot.bulk])
    }

    /// A class's streams: prompt, bulk.
    pub(crate) fn class(&self, class: usize) -> Option<[&Sender; 2]> {
        self.slot(class).map(|slot| [&slot.prompt, &slot.bulk])
    }
}

/// Returns the urgency of the stream of this number.
fn urgency_of(stream: usize) -> Urgency {
    if stream.is_multiple_of(2) { Urgency::Prompt } else { Urgency::Bulk }
}

#[cfg(test)]
mod tests;
