//! The way out to the peer: each class's streams behind one pacer.

mod admission;
mod load;
mod pacer;
mod shares;
mod slot;
mod turns;

use std::ops::Range;
use std::time::{Duration, Instant};

use config::Policy;
use reliability::link::Link;
use reliability::pacing::Pacer;
use reliability::stream::{Full, Malformed, Scheme, Sender, SenderConfig, StreamId, TransmitKind};
use roce::wire::Opcode;

use self::pacer::link_time;
pub(crate) use self::shares::part_of;
use self::shares::{FRAMED, LEAST_PART, LEAST_PIECE, backlog_of, fitting_piece, framed, kin, shares};
pub(crate) use self::slot::Claim;
use self::slot::Slot;
use self::turns::Turns;
use crate::hosts::HostGroup;
use crate::record::Head;
use crate::settings::{self, Settings};

/// Which of a class's two streams a record takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// ACKs, NAKs, connection management: small, and a round trip waits for each. Sent before any bulk.
    Prompt,
    /// Everything with a payload.
    Bulk,
}

/// Which turn a record takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Whose: see [`Head::source`].
    pub(crate) source: u64,
    /// Group of the host: see [`Senders::group`].
    pub(crate) group: u8,
    /// It belongs to a message of one packet.
    pub(crate) goes_first: bool,
}

/// A policy could not be adopted yet: classes removed by earlier ones still hold as many streams as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the streams of classes removed before are still in use, and {missing} of the new classes would have none"
)]
pub struct Undrained {
    /// Classes without streams.
    pub missing: usize,
}

/// What a class of scheme `auto` is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// For the stream of what is small and urgent: ACKs, NAKs, connection management.
    pub prompt: Scheme,
    /// For the stream of everything with a payload.
    pub bulk: Scheme,
    /// Share of packets that the path loses, for `hybrid`; NaN: not known.
    pub drop: f64,
    /// Mean run of lost packets, for `hybrid`.
    pub burst: f64,
}

/// All sending streams of a session. Without a session there are none, and every push is refused.
///
/// A class has a *slot*, and a slot two streams, one for prompt records and one for bulk. When the policy changes, a class keeps its slot by its
/// name. The slot of a class that is gone takes nothing new and sends what it holds; once that is acknowledged, another class may have it. Its
/// streams go on counting, since the peer does: they are idle, not new.
///
/// Bounds: each stream's backlog and buffer, and each host's share of the backlog
/// ([`Senders::serve`]); above half the backlog mid-message ACKs are withheld and targets are asked
/// for no further READ data, above five eighths requesters are told to slow down, ever more of
/// them, above the whole requests are dropped. What targets were asked for has its room kept, up to
/// half a backlog, and a piece of a READ fits that under any policy. [`SLOTS`] slots; a policy
/// whose classes find none is refused ([`Undrained`]).
///
/// Where a change of policy leaves a class less room than it uses, or less than it has promised for what targets were asked for, its bulk
/// stream comes down to its bounds by and by ([`Excess`]), goes first until it has, and asks for no READ data meanwhile. What it holds beyond its part
/// of the buffers is taken off the others' parts.
pub(crate) struct Senders {
    /// By half the stream's number.
    slots: Box<[Option<Slot>]>,
    /// Each class's slot.
    places: Vec<usize>,
    /// Slots without a class; the one that has been so the longest first.
    spare: Vec<usize>,
    /// Spare slots that still hold something, and slots beyond their bounds, when last looked at.
    unsettled: usize,
    turns: Turns,
    /// Sender of the packet that is being handled.
    host: Option<HostGroup>,
    pacer: Option<Pacer>,
    /// When last asked the pacer let nothing go, though there may be something: parity and repairs are no backlog.
    refused: bool,
    /// Each class's share of the link, as a divisor, when all have something to send.
    shares: Vec<usize>,
    /// Where the parts stand of the class that each class is a part of: they have one turn, one share, and one part of the buffers.
    kin: Vec<Range<usize>>,
    /// READ data to ask a target for at a time, in bytes: whatever the policy, for as long as the gateway runs.
    read_piece: usize,
    link_backlog: usize,
    total_buffer: usize,
    /// Longest packet that is built now.
    max_packet: usize,
    /// What new streams begin with: round-trip time, bit/s, packets under way now and at most, and how long a block of `auto` may fill.
    rtt: Duration,
    rate: u64,
    window: usize,
    most_window: usize,
    auto_flush: Duration,
}

/// As many as there may be classes, and as many again that drain.
pub(crate) const SLOTS: usize = 2 * config::MAX_CLASSES;
/// Backlog a stream may hold: what it sends in this time, within bounds.
const BACKLOG: Duration = Duration::from_millis(200);
/// What a DATA packet's and a record's own headers take at most, for telling whether a record will fit.
const FRAMING: usize = 256;
/// Of priorities.
const MOST_URGENT: u8 = 7;
const URGENCIES: [Urgency; 2] = [Urgency::Prompt, Urgency::Bulk];

impl Senders {
    pub(crate) fn down() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| None).collect(),
            places: Vec::new(),
            spare: Vec::new(),
            unsettled: 0,
            turns: Turns::new(std::iter::empty(), 0),
            host: None,
            pacer: None,
            refused: false,
            shares: Vec::new(),
            kin: Vec::new(),
            read_piece: LEAST_PIECE,
            link_backlog: 0,
            total_buffer: 0,
            max_packet: 0,
            rtt: Duration::ZERO,
            rate: 0,
            window: 0,
            most_window: 0,
            auto_flush: Duration::ZERO,
        }
    }

    /// For a new session that begins with packets of up to so many bytes: each class has the slot of its own number.
    pub(crate) fn up(
        settings: &Settings,
        policy: &Policy,
        link: &Link,
        max_packet: usize,
        now: Instant,
    ) -> Self {
        let backlog = link_time(settings.rate, BACKLOG);
        let classes = policy.classes().len().min(SLOTS);
        let mut senders = Self {
            pacer: Some(pacer::new(settings, now)),
            spare: (classes..SLOTS).collect(),
            read_piece: fitting_piece(backlog, settings.total_buffer),
            link_backlog: backlog,
            total_buffer: settings.total_buffer,
            max_packet,
            rtt: settings.rtt,
            rate: settings.rate,
            window: settings.window(max_packet),
            // Shorter packets may be more.
            most_window: settings.window(max_packet.min(settings.base_packet)),
            auto_flush: settings::auto_flush(link),
            ..Self::down()
        };
        senders.settle((0..classes).collect(), policy, now);
        senders
    }

    pub(crate) fn is_up(&self) -> bool {
        self.pacer.is_some()
    }

    /// Goes over from one policy to another, or refuses to, and nothing has changed.
    pub(crate) fn set_policy(&mut self, from: &Policy, to: &Policy, now: Instant) -> Result<(), Undrained> {
        let places = self.places_for(from, to)?;
        if !self.is_up() {
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

    /// The slots of another policy's classes: the one that a class of that name has, or one that is spare and holds nothing. None without a session.
    pub(crate) fn places_for(&self, from: &Policy, to: &Policy) -> Result<Vec<usize>, Undrained> {
        if !self.is_up() {
            return Ok(Vec::new());
        }
        let kept = |name: &str| {
            let index = from.classes().iter().position(|class| class.name == name)?;
            self.places.get(index).copied()
        };
        let drained =
            |slot: &usize| self.slots.get(*slot).is_some_and(|slot| slot.as_ref().is_none_or(Slot::is_idle));
        let mut free = self.spare.iter().copied().filter(drained);
        let places: Vec<_> =
            to.classes().iter().map(|class| kept(&class.name).or_else(|| free.next())).collect();
        let missing = places.iter().filter(|place| place.is_none()).count();
        if missing > 0 {
            return Err(Undrained { missing });
        }
        Ok(places.into_iter().flatten().collect())
    }

    /// Gives each class its slot, with the class's scheme, bounds and turn.
    fn settle(&mut self, places: Vec<usize>, policy: &Policy, now: Instant) {
        (self.shares, self.kin) = (shares(policy), kin(policy));
        for (place, class) in places.iter().zip(policy.classes()) {
            let told = Some((class.scheme, class.max_overhead));
            let config = |urgency: Urgency| {
                let half = usize::from(urgency == Urgency::Bulk);
                let id = StreamId(u16::try_from(2 * place + half).unwrap_or(u16::MAX));
                let new = SenderConfig::new(id, self.max_packet);
                let flush = self.flush(class).unwrap_or(new.flush);
                let (rtt_hint, rate, window) = (self.rtt, Some(self.rate), self.most_window);
                let first_window = settings::LEAST_WINDOW;
                SenderConfig {
                    scheme: settings::scheme(class, urgency),
                    rtt_hint,
                    rate,
                    window,
                    first_window,
                    flush,
                    ..new
                }
            };
            let (configs, flush, window) = (URGENCIES.map(config), self.flush(class), self.window);
            let Some(slot) = self.slots.get_mut(*place) else { continue };
            let slot = slot.get_or_insert_with(|| Slot::new(configs.map(|config| Sender::new(config, now))));
            slot.priority = class.priority;
            // What was chosen for a class of scheme `auto`, and what its streams were told of the path, stays as long as the class says the same.
            let begins_anew = slot.told != told;
            slot.told = told;
            for urgency in URGENCIES {
                let stream = slot.stream_mut(urgency);
                stream.set_window(window);
                if begins_anew {
                    stream.set_drop(f64::NAN);
                    stream.set_burst(1.0);
                    stream.set_scheme(settings::scheme(class, urgency));
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
    fn flush(&self, class: &config::Class) -> Option<Duration> {
        match class.scheme {
            config::Scheme::Auto(_) => Some(self.auto_flush),
            _ => class.scheme.block().map(|block| block.flush.get()),
        }
    }

    /// Divides what may be held among the classes, after what drains has had its part and who has more than its part keeps it, and the turns among all.
    fn share_out(&mut self) {
        self.release_spare();
        let total = self.total_buffer.saturating_sub(self.drains().map(|(_, slot)| slot.held()).sum());
        let classes = self.families().count().max(1);
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
        self.turns = Turns::new(turns, self.max_packet);
    }

    /// The slots that share a turn, and its priority. What drains or has more than it should goes first and for itself, so that it ends, and so that what
    /// its flows send now does not overtake it by far.
    fn sharers(&self) -> Vec<(Vec<usize>, u8)> {
        let alone = |(place, _): (usize, &Slot)| (vec![place], MOST_URGENT);
        let mut sharers: Vec<_> = self.drains().map(alone).collect();
        for kin in self.families() {
            let slots = kin.clone().filter_map(|class| self.place(class).zip(self.slot(class)));
            let (beyond, within): (Vec<_>, Vec<_>) = slots.partition(|(_, slot)| slot.is_beyond());
            sharers.extend(beyond.into_iter().map(alone));
            if let Some((_, first)) = within.first() {
                sharers.push((within.iter().map(|(place, _)| *place).collect(), first.priority));
            }
        }
        sharers
    }

    /// The classes of each that the policy file names.
    fn families(&self) -> impl Iterator<Item = &Range<usize>> {
        self.kin.iter().enumerate().filter(|(class, kin)| kin.start == *class).map(|(_, kin)| kin)
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

    /// Whether the response of a target, `len` bytes, will be taken on the class's stream of this urgency.
    pub(crate) fn has_room_for_response(&self, class: usize, urgency: Urgency, len: usize) -> bool {
        self.slot(class).is_some_and(|slot| slot.fits(urgency, len))
    }

    /// READ data that targets may be asked for on behalf of the class's flows, in bytes.
    pub(crate) fn read_room(&self, class: usize) -> usize {
        let Some(slot) = self.slot(class).filter(|_| self.has_headroom(class)) else { return 0 };
        let common = self.common_room(class) / (FRAMED + 1) * FRAMED;
        // A part's even share may be less than a piece, and it must not starve beside the others: so it may ask for one at a time.
        let least = if slot.awaits_nothing() { self.read_piece } else { 0 };
        slot.read_room().min(common.max(least))
    }

    /// Bytes that the class may still take or ask for, beside what the other parts of the same one hold: each part may have its share of the class's room,
    /// and beyond that what the others leave.
    fn common_room(&self, class: usize) -> usize {
        let Some((slot, kin)) = self.slot(class).zip(self.kin.get(class)).filter(|(_, kin)| kin.len() > 1)
        else {
            return usize::MAX;
        };
        let room = |most: usize, of: fn(&Slot) -> usize| {
            let left = most.saturating_sub(self.slots_of(kin).map(of).sum());
            left.max((most / kin.len()).saturating_sub(of(slot)))
        };
        room(slot.max_backlog, Slot::waiting).min(room(slot.max_buffered, Slot::promised))
    }

    /// READ data to ask a target for at a time, in bytes: always the same, since a flow's READs are cut alike as long as it is there, and so little that
    /// each class may ask for it under any policy.
    pub(crate) fn read_piece(&self) -> usize {
        self.read_piece
    }

    /// A flow now waits for `bytes` of READ data of the class, where it waited for what `claim` says: the room for them is kept.
    pub(crate) fn await_responses(&mut self, class: usize, claim: &mut Claim, bytes: usize) {
        let moves = !self.holds(class, claim);
        self.move_claim(class, claim, framed(bytes), Slot::keep);
        // What was asked for under an earlier policy is still to be taken.
        if moves && self.slot_mut(class).is_some_and(Slot::honour) {
            self.share_out();
        }
    }

    /// Whether what is claimed, if anything, counts for the streams that the class has now.
    pub(crate) fn holds(&self, class: usize, claim: &Claim) -> bool {
        let place = self.place(class).filter(|place| *place == claim.place());
        let slot = place.and_then(|place| self.slots.get(place)?.as_ref());
        claim.bytes == 0 || slot.is_some_and(|slot| slot.era == claim.era)
    }

    /// Whether a flow that waits for READ data may ask for more of the class: all of it takes the same streams.
    pub(crate) fn may_join(&self, class: usize, claim: &Claim) -> bool {
        claim.bytes == 0 || self.place(class) == Some(claim.place())
    }

    /// Whether more than is needed may be asked for: there is less than half a backlog.
    pub(crate) fn has_headroom(&self, class: usize) -> bool {
        let pressed = self.pressed(class);
        self.slot(class).is_some_and(|slot| slot.has_headroom(pressed))
    }

    /// Bytes that the class's backlog may grow by before requesters are slowed down.
    pub(crate) fn headroom(&self, class: usize) -> usize {
        let pressed = self.pressed(class);
        self.slot(class).map_or(0, |slot| slot.headroom(pressed))
    }

    /// Of the backlog that the class may have, what counts as taken: all of it when nothing more is. A part of a divided class has the room that the others
    /// leave, and its even share in any case; so what all of them have counts, unless it is more than what so many like this one would have.
    fn pressed(&self, class: usize) -> usize {
        let Some((own, kin)) = self.slot(class).zip(self.kin.get(class)) else { return 0 };
        let all: usize = self.slots_of(kin).map(|slot| slot.bulk.backlog()).sum();
        all.min(own.bulk.backlog() * kin.len())
    }

    /// Those of a divided class's parts.
    fn slots_of(&self, kin: &Range<usize>) -> impl Iterator<Item = &Slot> {
        kin.clone().filter_map(|class| self.slot(class))
    }

    /// Whether so much waits in the class's bulk stream that the sender of a packet that comes for it now is to be told to slow down.
    pub(crate) fn marks(&mut self, class: usize) -> bool {
        let pressed = self.pressed(class);
        self.slot_mut(class).is_some_and(|slot| slot.marks(pressed))
    }

    pub(crate) fn push(
        &mut self,
        class: usize,
        urgency: Urgency,
        head: &Head,
        body: [&[u8]; 2],
        now: Instant,
    ) -> Result<(), Full> {
        // What is small and urgent shares packets.
        let (source, group) = match (urgency, head.source()) {
            (Urgency::Prompt, _) => (0, 0),
            // What is no flow's is its host's.
            (Urgency::Bulk, 0) => (self.group().into(), self.group()),
            (Urgency::Bulk, source) => (source, self.group()),
        };
        let place = Place { source, group, goes_first: is_message(body[0]) };
        self.push_in(place, class, urgency, head, body, now)
    }

    /// As [`push`](Self::push), in the place of another record.
    pub(crate) fn push_in(
        &mut self,
        place: Place,
        class: usize,
        urgency: Urgency,
        head: &Head,
        [front, back]: [&[u8]; 2],
        now: Instant,
    ) -> Result<(), Full> {
        let slot = self.slot_mut(class).ok_or(Full::Backlog)?;
        let stream = slot.stream_mut(urgency);
        stream.push_from(
            (place.source, place.group),
            place.goes_first,
            &[head.emit().as_ref(), front, back],
            now,
        )
    }

    /// A flow now expects `bytes` more for the class's bulk stream, where it expected what `claim` says.
    pub(crate) fn expect(&mut self, class: usize, claim: &mut Claim, bytes: usize) {
        self.move_claim(class, claim, bytes, Slot::expect);
    }

    /// Withdraws a claim where it was made, unless that slot has lost its class since, and makes it in the class's slot.
    fn move_claim(
        &mut self,
        class: usize,
        claim: &mut Claim,
        bytes: usize,
        change: impl Fn(&mut Slot, usize, usize),
    ) {
        let before = std::mem::take(claim);
        let place = self.place(class);
        let slot = self.slots.get_mut(before.place()).and_then(Option::as_mut);
        let slot = slot.filter(|slot| before.bytes > 0 && slot.era == before.era);
        let moves = place != Some(before.place());
        let withdrawn = match slot {
            Some(slot) if moves => {
                change(slot, before.bytes, 0);
                0
            }
            Some(_) => before.bytes,
            None => 0,
        };
        if let Some((place, slot)) = place.zip(self.slot_mut(class)) {
            change(slot, withdrawn, bytes);
            *claim = Claim { place: place as u16, era: slot.era, bytes };
        }
    }

    /// Changes the class's schemes from their next blocks on, and what its streams know of the path.
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
    pub(crate) fn set_max_packet(&mut self, settings: &Settings, policy: &Policy, link: &Link, bytes: usize) {
        (self.max_packet, self.window) = (bytes, settings.window(bytes));
        self.auto_flush = settings::auto_flush(link);
        for slot in self.slots.iter_mut().flatten() {
            for urgency in URGENCIES {
                let stream = slot.stream_mut(urgency);
                stream.set_max_packet(bytes);
                stream.set_window(self.window);
            }
        }
        let auto = policy.classes().iter().zip(&self.places);
        for (_, place) in auto.filter(|(class, _)| matches!(class.scheme, config::Scheme::Auto(_))) {
            let Some(slot) = self.slots.get_mut(*place).and_then(Option::as_mut) else { continue };
            for urgency in URGENCIES {
                slot.stream_mut(urgency).set_flush(self.auto_flush);
            }
        }
        self.share_out();
    }

    /// Whether something waits for the pacer.
    pub(crate) fn is_held(&self) -> bool {
        self.pacer.as_ref().is_some_and(Pacer::is_held)
    }

    /// What waits is not held by the pacer.
    pub(crate) fn excuse(&mut self) {
        if let Some(pacer) = &mut self.pacer {
            pacer.hold(false);
        }
        self.refused = false;
    }

    /// The next packet in turn, if the pacer lets one go.
    pub(crate) fn poll(&mut self, now: Instant, out: &mut [u8]) -> Option<(usize, TransmitKind)> {
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
            Some((transmit.len, transmit.kind))
        });
        let Some((len, kind)) = served else {
            // What waits now, waits for room in the receiver's window.
            self.pacer.as_mut()?.hold(false);
            return None;
        };
        self.consume(len, now);
        Some((len, kind))
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

    /// When there is something to do: the pacer lets the next packet go, or a stream's timer is due.
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

/// Whether a packet is a whole message, or all of an answer, by its BTH.
fn is_message(transport: &[u8]) -> bool {
    Opcode::of(transport).is_some_and(|opcode| opcode.starts_message() && opcode.ends_message())
}

/// Of the stream of this number.
fn urgency_of(stream: usize) -> Urgency {
    if stream.is_multiple_of(2) { Urgency::Prompt } else { Urgency::Bulk }
}

#[cfg(test)]
mod tests;
