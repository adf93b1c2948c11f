//! The queue of what is sent for the first time: packets by source, and whose turn it is.

mod segment;
mod turns;

use std::collections::VecDeque;

use segment::Segment;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::pool::Pool;
use crate::stream::Alternation;
use crate::stream::wire::{self, Cut, RECORD_HEADER};

/// A record that has to be cut is begun in the packet at hand only if at least this much of it goes
/// there. Next to nothing: a packet that stays short ends a batch of equal ones, and with records
/// of 4 KiB over an MTU of 1500 each third packet did (`longhaul-lab bench wan`: half the rate).
const MIN_PIECE: usize = 8;
/// Bytes that a source sends in its turn.
const QUANTUM: usize = 16 << 10;
/// Bytes that a source sends in its first turn at most, if each of the others was given as much
/// since it last had something waiting. So a message of moderate length leaves in a row. Fewer
/// packets hold parts of it then, so fewer losses concern it, and its target has it all at once and
/// answers by one ACK (`netem-tests/tests/tail.rs`).
const LONGEST_TURN: usize = 64 << 10;
/// Bytes that a source which goes first sends before it waits for its turn like the others.
const FIRST: usize = 4 << 10;
/// While no more waits, there is one source: packets are filled with what comes, since nobody waits
/// for long.
const SHARED: usize = QUANTUM;
/// Packets that a record is cut across follow each other. So that others need not wait for long,
/// after at most so many bytes of packets joined thus comes one that is not: while others wait, and
/// in any case. From half of that on where a packet is nearly full.
const RUN: usize = QUANTUM;
const LONGEST_RUN: usize = 128 << 10;
/// Parts of a byte that shares are reckoned in.
const FINE: u64 = 256;
/// Sources that are told apart.
const PLACES: usize = 1024;
/// Places that are looked at for a source whose own is another's.
const PROBES: usize = 16;
/// Groups of sources that are told apart.
const GROUPS: usize = 256;
/// The place of those that share packets, which no source has for its own.
const COMMON: u16 = 0;
/// Its owner. It takes turns as a group of its own: in another group's turns, what it holds of one
/// group would wait behind all that the other has.
const OF_ALL: (u64, u16) = (0, GROUPS as u16);
/// Groups from here on are the others. While one before waits, these have half of the stream at
/// most.
pub const FIRST_OTHER: usize = 128;
/// Bytes that a group sends in its turn while others wait, and that its sources that go first may
/// send before its next one.
const GROUP_QUANTUM: isize = 2 * QUANTUM as isize;
const NONE: u32 = u32::MAX;

/// Returns whether this is the number of one of the others. That of all has no kind.
fn is_other(group: u16) -> bool {
    (FIRST_OTHER..GROUPS).contains(&usize::from(group))
}

/// Whose a record is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Any number: sources of a group take turns.
    pub source: u64,
    /// Its group. Groups take turns.
    pub group: u8,
    /// Where its group is one of the others, it counts for
    /// [`Sender::backlog_apart`](super::Sender::backlog_apart).
    pub is_apart: bool,
}

/// Packets without numbers, of sources that take turns.
///
/// A packet holds records of one source, so that a loss concerns one; what is left of a short one
/// is filled with other short ones. Alternation are those of RFC 8290, section 4.2: deficit round
/// robin with a quantum of [`QUANTUM`] bytes, and who had nothing waiting goes first, for [`FIRST`]
/// bytes, if it says so: a small message should; of a long one the rest is about to come, and fills
/// packets. So one that sends without end delays another's small message by what is sent in its
/// turn, not by all that it has waiting. Who comes back has a longer turn, by what each that waited
/// was given meanwhile ([`LONGEST_TURN`] at most): its share is the same, and a message that fits
/// leaves in a row. While less than [`SHARED`] bytes wait, all share packets, in a place that takes
/// turns like a group.
///
/// Sources belong to groups, which take turns in the same way ([`GROUP_QUANTUM`]): a group has its
/// share of the stream however many sources it has. A group by itself is served as if there were
/// none. While main groups wait, the others together send no more than they do: however many these
/// are, half of the stream is left.
///
/// # Bounds
/// [`PLACES`] sources, chosen by a hash of their numbers, as in RFC 8290; those that find their
/// place and its neighbours taken share one of their group's, or that of all. A group has no more
/// places than are free. [`GROUPS`] groups. Packets, by whoever asks before a push.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Waiting {
    packets: Vec<Packet>,
    /// Unused ones of these, linked.
    free: u32,
    sources: Box<[Source]>,
    /// Places of sources that go first.
    fresh: VecDeque<u16>,
    #[serde(serialize_with = "without_idle_one_of_all", deserialize_with = "with_that_of_all")]
    groups: Box<[Group]>,
    /// Groups with sources that wait for their turn, in the order of theirs.
    line: VecDeque<u16>,
    /// Places in `fresh`, and in the groups' turns.
    queued: usize,
    /// Source and group of the present push.
    pushing: (u64, u16),
    /// Its record counts apart.
    #[serde(skip)]
    pushes_apart: bool,
    /// When it is, in microseconds of the sender's clock.
    now: u64,
    /// Bytes that wait of groups from [`FIRST_OTHER`] on.
    others: usize,
    /// Those of them that count apart.
    #[serde(skip)]
    apart: usize,
    /// Bytes that other groups have sent more than main ones, while both waited.
    #[serde(skip)]
    lead: isize,
    /// The amount given to a source that always had something waiting, in bytes times [`FINE`];
    /// wraps.
    given: u64,
    /// The last packet taken was its, and ends within a record.
    midst: Option<u16>,
    /// Bytes of frames per packet.
    segment: Segment,
    backlog: usize,
    /// Packets that wait.
    count: usize,
    /// Bytes of all packets taken.
    taken: u64,
    alternation: Alternation,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Packet {
    frames: snapshot::Packet,
    /// The source's next one.
    next: u32,
    /// Its last record goes on in the next one.
    goes_on: bool,
    /// Group for which its bytes count.
    group: u16,
    /// They count apart.
    #[serde(skip)]
    is_apart: bool,
    /// When it was begun, in microseconds of the sender's clock.
    since: u64,
}

#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
struct Group {
    /// Places of its sources that wait for their turn, and of some that have nothing waiting any
    /// more.
    turns: VecDeque<u16>,
    /// True while it stands in `line`.
    in_line: bool,
    /// Bytes that it may still send in its turn.
    deficit: isize,
    /// Bytes of it that may still go first before its next turn.
    first: isize,
    /// Places of its sources, in `fresh` or `turns`, and the one taken last.
    places: usize,
    latest: u16,
    /// Bytes of frames that wait.
    waiting: usize,
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Source {
    /// Its number and group.
    owner: (u64, u16),
    first: u32,
    last: u32,
    /// Bytes that it may still send in this turn.
    deficit: isize,
    /// Bytes waiting since a packet last began with a record.
    run: usize,
    /// In `fresh` or `turns`.
    queued: bool,
    /// [`Waiting::given`] when it last was taken out.
    left: u64,
    /// [`Waiting::taken`] after a packet of its that did not leave it without another.
    went_on: Option<u64>,
}

impl Group {
    fn new() -> Self {
        Self { first: GROUP_QUANTUM, ..Self::default() }
    }
}

/// Writes the groups as earlier builds have them, unless the common place has something waiting.
fn without_idle_one_of_all<S: Serializer>(groups: &[Group], to: S) -> Result<S::Ok, S::Error> {
    match groups.split_last() {
        Some((of_all, others)) if of_all.places == 0 => others.serialize(to),
        _ => groups.serialize(to),
    }
}

/// Reads the groups of a snapshot, which may lack the last one.
fn with_that_of_all<'de, D: Deserializer<'de>>(from: D) -> Result<Box<[Group]>, D::Error> {
    let mut groups = Vec::deserialize(from)?;
    groups.resize_with(GROUPS + 1, Group::new);
    Ok(groups.into())
}

impl Waiting {
    pub(super) fn new(capacity: usize) -> Self {
        let source = Source {
            owner: (0, 0),
            first: NONE,
            last: NONE,
            deficit: 0,
            run: 0,
            queued: false,
            left: 0,
            went_on: None,
        };
        Self {
            packets: Vec::new(),
            free: NONE,
            sources: vec![source; PLACES].into(),
            fresh: VecDeque::new(),
            groups: vec![Group::new(); GROUPS + 1].into(),
            line: VecDeque::new(),
            queued: 0,
            pushing: (0, 0),
            pushes_apart: false,
            now: 0,
            others: 0,
            apart: 0,
            lead: 0,
            given: FINE * LONGEST_TURN as u64,
            midst: None,
            segment: Segment::new(capacity),
            backlog: 0,
            count: 0,
            taken: 0,
            alternation: Alternation::default(),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.segment.capacity()
    }

    /// Changes the bytes of frames of the packets to come. One that is open stays so as far as it
    /// has room.
    pub(super) fn set_capacity(&mut self, capacity: usize) {
        self.segment.set_capacity(capacity);
    }

    /// Bytes of frames.
    pub(super) fn backlog(&self) -> usize {
        self.backlog
    }

    /// Bytes of frames that wait of a group.
    pub(super) fn waiting_of(&self, group: u8) -> usize {
        self.groups.get(usize::from(group)).map_or(0, |group| group.waiting)
    }

    /// Bytes of frames that wait of the groups from [`FIRST_OTHER`] on, but for those apart.
    pub(super) fn waiting_of_others(&self) -> usize {
        self.others - self.apart
    }

    /// Bytes of frames that wait apart.
    pub(super) fn waiting_apart(&self) -> usize {
        self.apart
    }

    /// How sources took turns.
    pub(super) fn alternation(&self) -> Alternation {
        self.alternation
    }

    /// How many packets there are.
    pub(super) fn packets(&self) -> usize {
        self.count
    }

    /// Gives back the memory that no packet needs now.
    pub(super) fn release_spare(&mut self) {
        if self.backlog == 0 {
            (self.packets, self.free) = (Vec::new(), NONE);
        }
    }

    /// Appends a record of `len` bytes, the concatenation of `parts`, to what its source, of this
    /// group, has waiting. `now` is in microseconds of the sender's clock.
    pub(super) fn push(
        &mut self,
        Origin { source, group, is_apart }: Origin,
        goes_first: bool,
        parts: &[&[u8]],
        len: usize,
        (now, pool): (u64, &mut Pool),
    ) {
        self.pushing = (source, group.into());
        self.pushes_apart = is_apart && is_other(group.into());
        self.now = now;
        let place = self.place_for(source, group.into());
        let fits = |room: usize| len <= wire::MAX_WHOLE && RECORD_HEADER + len <= room;
        let room = self.room(place);
        let mut source = Reading::new(parts);
        if fits(room) || (fits(self.segment.capacity()) && !self.is_worth_cutting(place, room, len)) {
            let header = wire::record_header(len);
            self.append(place, &header, &mut source, len, pool);
        } else {
            self.push_cut(place, source, len, pool);
        }
        self.queue(place, goes_first);
    }

    fn place_for(&self, source: u64, group: u16) -> u16 {
        let own = place_of(source);
        let is_its = |place: &Source| place.owner == (source, group) && place.first != NONE;
        if self.source(own).is_some_and(is_its) {
            return own;
        }
        if self.backlog < SHARED && self.has_common() {
            return COMMON;
        }
        let Some(all) = self.groups.get(usize::from(group)) else { return own };
        let near = (0..PROBES as u16).map(|step| (own + step) % PLACES as u16);
        let near = near.filter(|place| *place != COMMON);
        let may_have_more = all.places < PLACES - self.queued;
        let fits = |place: &Source| match place.queued {
            true => place.owner == (source, group),
            false => may_have_more,
        };
        let found = near.clone().find(|place| self.source(*place).is_some_and(fits));
        let shared = |place: u16| self.source(place).filter(|place| place.queued && place.owner.1 == group);
        found
            .or_else(|| near.clone().find(|place| shared(*place).is_some()))
            .or_else(|| Some(all.latest).filter(|place| shared(*place).is_some()))
            .or_else(|| self.has_common().then_some(COMMON))
            .unwrap_or(own)
    }

    /// Returns true unless a source has the common place for its own, as in an earlier build's
    /// snapshot.
    fn has_common(&self) -> bool {
        self.source(COMMON).is_some_and(|place| !place.queued || place.owner == OF_ALL)
    }

    /// Returns true if a record is to be cut for which the next packet would hold whole. What is
    /// left out of the open one is not sent, so it costs no bandwidth; but a cut record has to be
    /// put together again, which is a copy more at the receiver.
    fn is_worth_cutting(&self, place: u16, room: usize, len: usize) -> bool {
        room >= (first_header(len) + MIN_PIECE).max(self.segment.capacity() / 8) && self.may_join(place, len)
    }

    /// Returns true if a record may be cut that begins in the open packet.
    fn may_join(&self, place: u16, len: usize) -> bool {
        // What shares packets is soon gone.
        let common = self.source(COMMON).is_some_and(|common| common.queued && place != COMMON);
        let most = if self.queued > 1 + usize::from(common) { RUN } else { LONGEST_RUN };
        let is_nearly_full = self.room(place) < self.segment.capacity() / 8;
        let run = self.source(place).map_or(0, |source| source.run);
        run + len <= most && !(is_nearly_full && run >= most / 2)
    }

    fn push_cut(&mut self, place: u16, mut source: Reading<'_>, len: usize, pool: &mut Pool) {
        let (mut offset, mut back) = (0, 0);
        while offset < len {
            let room = match self.room(place) {
                room if back == 0 && room >= first_header(len) + MIN_PIECE && self.may_join(place, len) => {
                    room
                }
                _ => self.begin(place, offset == 0, pool),
            };
            // All but the last piece go on to the end of their packet.
            let header = Cut::new(back, len as u32, offset as u32);
            let piece = (len - offset).min(room.saturating_sub(header.as_ref().len()));
            self.append(place, header.as_ref(), &mut source, piece, pool);
            offset += piece;
            back += 1;
            if let Some(packet) = self.last_mut(place) {
                packet.goes_on = offset < len;
            }
        }
    }

    /// Adds a frame to the open packet, or to a new one if it does not fit.
    fn append(&mut self, place: u16, header: &[u8], source: &mut Reading<'_>, len: usize, pool: &mut Pool) {
        if header.len() + len > self.room(place) {
            self.begin(place, true, pool);
        }
        let Some(packet) = self.last_mut(place) else { return };
        packet.frames.extend_from_slice(header);
        source.copy(len, &mut packet.frames);
        let (of, added) = ((packet.group, packet.is_apart), header.len() + len);
        self.backlog += added;
        self.count_waiting(of, 0, added);
        if let Some(source) = self.source_mut(place) {
            source.run += header.len() + len;
        }
    }

    /// Bytes left in the source's last packet.
    fn room(&self, place: u16) -> usize {
        let last = self.source(place).and_then(|source| self.packets.get(source.last as usize));
        last.map_or(0, |packet| self.segment.capacity().saturating_sub(packet.frames.len()))
    }

    /// Begins a packet of the source's, with a record or in its midst; the room in it.
    fn begin(&mut self, place: u16, with_record: bool, pool: &mut Pool) -> usize {
        let (group, since) = (self.pushing.1, self.now);
        let frames = pool.take().into();
        let is_apart = self.pushes_apart;
        let packet = Packet { frames, next: NONE, goes_on: false, group, is_apart, since };
        let index = match self.packets.get_mut(self.free as usize) {
            Some(unused) => {
                let index = self.free;
                self.free = std::mem::replace(unused, packet).next;
                index
            }
            None => {
                self.packets.push(packet);
                (self.packets.len() - 1) as u32
            }
        };
        let Some(source) = self.sources.get_mut(usize::from(place)) else { return self.segment.capacity() };
        match self.packets.get_mut(source.last as usize) {
            Some(last) => last.next = index,
            None => source.first = index,
        }
        source.last = index;
        self.count += 1;
        if with_record {
            source.run = 0;
        }
        self.segment.capacity()
    }

    fn queue(&mut self, place: u16, goes_first: bool) {
        let owner = if place == COMMON { OF_ALL } else { self.pushing };
        let may_go_first = goes_first && self.may_go_first(owner.1);
        let Some(source) = self.sources.get_mut(usize::from(place)) else { return };
        if std::mem::replace(&mut source.queued, true) {
            return;
        }
        source.owner = owner;
        self.queued += 1;
        if let Some(group) = self.groups.get_mut(usize::from(owner.1)) {
            group.places += 1;
            group.latest = place;
        }
        if may_go_first {
            source.deficit = FIRST as isize;
            self.fresh.push_back(place);
        } else {
            let meanwhile = self.given.wrapping_sub(source.left) / FINE;
            source.deficit = meanwhile.clamp(QUANTUM as u64, LONGEST_TURN as u64) as isize;
            self.line_up(place, owner.1);
        }
    }

    fn count_waiting(&mut self, (number, is_apart): (u16, bool), less: usize, more: usize) {
        let Some(group) = self.groups.get_mut(usize::from(number)) else { return };
        group.waiting = group.waiting + more - less;
        if is_other(number) {
            self.others = self.others + more - less;
        }
        if is_apart {
            self.apart = self.apart + more - less;
        }
    }

    /// The frames of the next packet, in turn, and since when it waited. Of packets that share it,
    /// the time is the first one's.
    pub(super) fn take(&mut self, pool: &mut Pool) -> Option<(snapshot::Packet, u64)> {
        let place = self.turn()?;
        let Taken { mut frames, goes_on, since } = self.take_first(place)?;
        self.midst = goes_on.then_some(place);
        if !goes_on {
            self.fill(&mut frames, place, pool);
            // A piece that its record goes on after fills its packet already.
            frames.extend_from_slice(self.segment.padding(frames.len()));
        }
        Some((frames, since))
    }

    /// Takes the source's first packet.
    fn take_first(&mut self, place: u16) -> Option<Taken> {
        let source = self.sources.get_mut(usize::from(place))?;
        let index = source.first;
        let packet = self.packets.get_mut(index as usize)?;
        let frames = std::mem::take(&mut packet.frames);
        let Packet { goes_on, group, is_apart, since, .. } = *packet;
        source.first = std::mem::replace(&mut packet.next, self.free);
        self.free = index;
        source.deficit -= frames.len() as isize;
        if let Some(group) = self.groups.get_mut(usize::from(source.owner.1)) {
            group.deficit -= frames.len() as isize;
            if self.fresh.front() == Some(&place) {
                group.first -= frames.len() as isize;
            }
        }
        if let Some(before) = source.went_on {
            self.alternation.own += frames.len() as u64;
            self.alternation.others += self.taken - before;
        }
        self.taken += frames.len() as u64;
        source.went_on = (source.first != NONE).then_some(self.taken);
        if source.first == NONE {
            (source.last, source.run) = (NONE, 0);
        }
        self.note_lead(group, frames.len());
        self.backlog -= frames.len();
        self.count_waiting((group, is_apart), frames.len(), 0);
        let waiting = self.queued.max(1);
        self.given = self.given.wrapping_add(FINE * frames.len() as u64 / waiting as u64);
        self.count -= 1;
        Some(Taken { frames, goes_on, since })
    }

    /// Adds short packets of others as far as they fit.
    fn fill(&mut self, frames: &mut snapshot::Packet, own: u16, pool: &mut Pool) {
        while let Some(place) = self.turn().filter(|place| *place != own) {
            let first = self.source(place).and_then(|source| self.packets.get(source.first as usize));
            let room = self.segment.capacity().saturating_sub(frames.len()).min(self.segment.capacity() / 2);
            if first.is_none_or(|packet| packet.goes_on || packet.frames.len() > room) {
                return;
            }
            let Some(Taken { frames: more, .. }) = self.take_first(place) else { return };
            frames.extend_from_slice(&more);
            pool.give(more.into_buffer());
        }
    }

    /// The frames at a place of those where packets wait, or have.
    pub(super) fn packet_mut(&mut self, place: usize) -> Option<&mut snapshot::Packet> {
        self.packets.get_mut(place).map(|packet| &mut packet.frames)
    }

    fn source(&self, place: u16) -> Option<&Source> {
        self.sources.get(usize::from(place))
    }

    fn source_mut(&mut self, place: u16) -> Option<&mut Source> {
        self.sources.get_mut(usize::from(place))
    }

    fn last_mut(&mut self, place: u16) -> Option<&mut Packet> {
        let last = self.source(place)?.last;
        self.packets.get_mut(last as usize)
    }
}

/// A packet that leaves.
struct Taken {
    frames: snapshot::Packet,
    /// Its last record goes on in the source's next one.
    goes_on: bool,
    since: u64,
}

/// Numbers given one after the other have places of their own, up to [`PLACES`] of them, or nearly
/// so: Fibonacci hashing (Knuth, volume 3, section 6.4). None has the common one.
fn place_of(source: u64) -> u16 {
    let place = source.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES.ilog2());
    (place as u16).max(COMMON + 1)
}

/// Bytes before the first piece of a record of `len` bytes.
fn first_header(len: usize) -> usize {
    Cut::new(0, len as u32, 0).as_ref().len()
}

/// Reads a record's parts as one.
struct Reading<'a> {
    parts: std::slice::Iter<'a, &'a [u8]>,
    current: &'a [u8],
}

impl<'a> Reading<'a> {
    fn new(parts: &'a [&'a [u8]]) -> Self {
        Self { parts: parts.iter(), current: &[] }
    }

    fn copy(&mut self, mut len: usize, out: &mut snapshot::Packet) {
        while len > 0 {
            if self.current.is_empty() {
                let Some(part) = self.parts.next() else {
                    return;
                };
                self.current = part;
                continue;
            }
            let (head, rest) = self.current.split_at(len.min(self.current.len()));
            out.extend_from_slice(head);
            self.current = rest;
            len -= head.len();
        }
    }
}

#[cfg(test)]
mod tests;
