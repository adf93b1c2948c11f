//! A class's two streams, and what is known of what they will have to carry.

use std::time::Instant;

use reliability::stream::{Alternation, Malformed, Scheme, Sender, Transmit};
use reliability::times::Times;

use super::FRAMING;
use super::shares::{FRAMED, framed};
use crate::class::{Repair, Urgency};
use crate::group::Group;
use crate::marker::Marker;
use crate::sizes::Sizes;

/// Two streams, so that an ACK never queues behind megabytes going the same way; order within a
/// flow is restored by the records' own numbers.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct Slot {
    pub(super) prompt: Sender,
    pub(super) bulk: Sender,
    /// Bounds of each stream, but for the excess of the bulk stream.
    pub(super) max_backlog: usize,
    pub(super) max_buffered: usize,
    excess: Excess,
    pub(super) priority: u8,
    /// The repair that its class asked for: scheme, parity per data at most. Streams of `auto` go
    /// on as they are as long as that stands.
    pub(super) told: Option<(Repair, f64)>,
    /// Classes it has lost: claims made before are void.
    pub(super) generation: u32,
    /// Bytes that sources will still push to the bulk stream, as far as known.
    expected: usize,
    /// Room in the bulk stream kept for what was asked for elsewhere, in bytes.
    awaited: usize,
    /// Bytes to come of messages that were taken whole, as far as room is kept for them; by group.
    begun: usize,
    begun_of: Box<[usize]>,
    /// Messages of its class that go out on the bulk stream.
    pub(super) sizes: Sizes,
    /// How long messages of its class took, of those whose time was taken.
    pub(super) completions: Times,
    /// How the bulk stream's sources had taken turns when its class came.
    alternated: Alternation,
    marker: Marker,
}

/// Bytes that a main group may have for each that is free (Choudhury and Hahne, IEEE/ACM
/// Transactions on Networking 6(2), 1998).
const ALPHA: usize = 8;
/// The part of a backlog that groups whose sources may be invented leave to all others.
const LEFT: usize = 8;
/// The part that all groups may have together whose sources heed nothing, and what each may have of
/// that for each byte that is free.
const OTHERS: usize = 4;
const OTHERS_ALPHA: usize = 2;

/// By how many bytes a bulk stream may exceed its bounds, after a change of classes has left its
/// own less room than it uses or has promised.
///
/// Requesters go on sending before they notice, so it falls by half of what leaves the stream; the
/// other half is theirs. What was promised always fits. Once the stream is within its bounds, there
/// is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Excess {
    backlog: usize,
    /// Excess of backlog and unacknowledged bytes together.
    buffered: usize,
}

/// Bytes that a flow has a class's stream count on, and with which slot.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Reservation {
    /// A slot's number, less than `SLOTS`.
    pub(super) place: u16,
    pub(super) generation: u32,
    pub(super) bytes: usize,
}

impl Reservation {
    pub(super) fn place(&self) -> usize {
        self.place.into()
    }

    /// Bytes that are counted on.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Slot {
    /// With streams that nothing was pushed to, and no room yet.
    pub(super) fn new([prompt, bulk]: [Sender; 2]) -> Self {
        Self {
            prompt,
            bulk,
            max_backlog: 0,
            max_buffered: 0,
            excess: Excess::default(),
            priority: 0,
            told: None,
            generation: 0,
            expected: 0,
            awaited: 0,
            begun: 0,
            begun_of: vec![0; Group::EACH_KIND].into(),
            sizes: Sizes::default(),
            completions: Times::default(),
            alternated: Alternation::default(),
            marker: Marker::default(),
        }
    }

    /// Another class has it now.
    pub(super) fn begin_class(&mut self) {
        (self.told, self.sizes, self.alternated) = (None, Sizes::default(), self.bulk.alternation());
        self.completions = Times::default();
    }

    /// How the sources of its class took turns.
    pub(super) fn alternation(&self) -> Alternation {
        self.bulk.alternation().since(self.alternated)
    }

    pub(super) fn stream(&self, urgency: Urgency) -> &Sender {
        match urgency {
            Urgency::Prompt => &self.prompt,
            Urgency::Bulk => &self.bulk,
        }
    }

    pub(super) fn stream_mut(&mut self, urgency: Urgency) -> &mut Sender {
        match urgency {
            Urgency::Prompt => &mut self.prompt,
            Urgency::Bulk => &mut self.bulk,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.prompt.is_idle() && self.bulk.is_idle()
    }

    /// Bytes not sent or not acknowledged.
    pub(super) fn held(&self) -> usize {
        [&self.prompt, &self.bulk].iter().map(|stream| stream.backlog() + stream.in_flight()).sum()
    }

    /// Bytes not sent yet, or asked for and still to come.
    pub(super) fn waiting(&self) -> usize {
        self.bulk.backlog() + self.awaited
    }

    /// Targets were asked for nothing that has not come.
    pub(super) fn awaits_nothing(&self) -> bool {
        self.awaited == 0
    }

    /// Bytes not sent yet or asked for; where sources are slowed down, also what is still to come
    /// of messages that have begun.
    pub(super) fn ahead(&self) -> usize {
        let has_headroom = self.has_headroom(self.bulk.backlog());
        self.waiting() + if has_headroom { 0 } else { self.expected + self.begun }
    }

    /// Bytes that the bulk stream holds, and what was asked for on its behalf.
    pub(super) fn promised(&self) -> usize {
        self.bulk.backlog() + self.bulk.in_flight() + self.awaited
    }

    /// Changes the bounds. What is held and promised stays.
    pub(super) fn set_bounds(&mut self, max_backlog: usize, max_buffered: usize) {
        (self.max_backlog, self.max_buffered) = (max_backlog, max_buffered);
        self.excess = self.needed_excess();
        self.prompt.set_limits(max_backlog, max_buffered);
        self.limit_bulk();
    }

    /// Lets in what was asked for and this slot did not know of before, as far as the stream's
    /// buffer has room; whether it first exceeds its bounds with that.
    pub(super) fn honour(&mut self) -> bool {
        let before = self.is_beyond();
        self.excess.backlog = self.excess.backlog.max(self.needed_excess().backlog);
        self.limit_bulk();
        self.is_beyond() && !before
    }

    /// More is held or promised than the bounds allow.
    pub(super) fn is_beyond(&self) -> bool {
        self.excess != Excess::default()
    }

    fn needed_excess(&self) -> Excess {
        Excess {
            backlog: (self.bulk.backlog() + self.awaited).saturating_sub(self.max_backlog),
            buffered: self.promised().saturating_sub(self.max_buffered),
        }
    }

    fn limit_bulk(&mut self) {
        let Excess { backlog, buffered } = self.excess;
        self.bulk.set_limits(self.max_backlog + backlog, self.max_buffered + buffered);
    }

    /// So many bytes of the bulk stream were sent for the first time, and so many need not be kept
    /// any more.
    fn lower(&mut self, sent: usize, freed: usize) {
        let needed = self.needed_excess();
        let fall = |excess: usize, left: usize, needed: usize| match needed {
            0 => 0,
            _ => excess.saturating_sub(left / 2),
        };
        self.excess = Excess {
            backlog: fall(self.excess.backlog, sent, needed.backlog),
            buffered: fall(self.excess.buffered, freed, needed.buffered),
        };
        self.limit_bulk();
    }

    /// The stream's next packet.
    pub(super) fn poll(&mut self, urgency: Urgency, now: Instant, out: &mut [u8]) -> Option<Transmit> {
        let before = self.bulk.backlog();
        let transmit = self.stream_mut(urgency).poll_transmit(now, out);
        if self.is_beyond() {
            self.lower(before.saturating_sub(self.bulk.backlog()), 0);
        }
        transmit
    }

    pub(super) fn handle_report(
        &mut self,
        urgency: Urgency,
        packet: &[u8],
        now: Instant,
    ) -> Result<(), Malformed> {
        let before = self.bulk.in_flight();
        self.stream_mut(urgency).handle_report(packet, now)?;
        if self.is_beyond() {
            self.lower(0, before.saturating_sub(self.bulk.in_flight()));
        }
        Ok(())
    }

    /// Returns whether a record of `len` bytes of body will be taken on the bulk stream, beside
    /// what was asked for.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.fits(Urgency::Bulk, self.awaited + len)
    }

    /// Tells whether so much more of this group leaves others their share of the backlog.
    pub(super) fn has_share(&self, group: Option<Group>, len: usize) -> bool {
        let Some(group) = group else { return true };
        let own = self.bulk.backlog_of(group.number()) + len;
        if group.is_main() {
            let free = (self.max_backlog + self.excess.backlog).saturating_sub(self.bulk.backlog());
            return own <= free.saturating_mul(ALPHA);
        }
        let max = self.max_backlog;
        let (part, used, alpha) = match group.is_unproven() {
            true => (max - max / LEFT, self.bulk.backlog_apart(), ALPHA),
            false => (max / OTHERS, self.bulk.backlog_of_others(), OTHERS_ALPHA),
        };
        own <= part.saturating_sub(used).saturating_mul(alpha)
    }

    pub(super) fn fits(&self, urgency: Urgency, len: usize) -> bool {
        let stream = self.stream(urgency);
        let excess = match urgency {
            Urgency::Prompt => Excess::default(),
            Urgency::Bulk => self.excess,
        };
        let backlog = stream.backlog() + len + FRAMING;
        backlog <= self.max_backlog + excess.backlog
            && backlog + stream.in_flight() <= self.max_buffered + excess.buffered
    }

    /// Returns whether less than half of the backlog is taken, of which so much counts as taken,
    /// and what is under way leaves room as well.
    pub(super) fn has_headroom(&self, effective_backlog: usize) -> bool {
        let held = self.bulk.backlog() + self.bulk.in_flight();
        effective_backlog < self.max_backlog / 2 && held < self.max_buffered / 16 * 15
    }

    /// Bytes that the backlog may grow by before that is so no more.
    pub(super) fn headroom(&self, effective_backlog: usize) -> usize {
        (self.max_backlog / 2).saturating_sub(effective_backlog)
    }

    /// Tells whether a message of this group may begin for which `len` bytes are to be kept;
    /// `marker` is its source's. What is kept for other groups counts no more than an eighth of
    /// the backlog.
    pub(super) fn takes_message(
        &self,
        group: Group,
        len: usize,
        marker: &mut Marker,
        effective_backlog: usize,
    ) -> bool {
        let own = self.begun_of.get(group.place()).copied().unwrap_or(0);
        let others = (self.begun - own).min(self.max_backlog / 8);
        let fits = own + others == 0 || self.has_room(framed(len.saturating_add(own + others)));
        // Its group's part of what all others have, if those that have begun leave it that.
        let waiting = self.bulk.backlog_of(group.number());
        let rest = self.bulk.backlog_of_others().saturating_sub(waiting).saturating_add(framed(others));
        let part = (self.max_backlog / OTHERS).saturating_sub(rest) / (OTHERS_ALPHA + 1) * OTHERS_ALPHA;
        let used = waiting.saturating_add(framed(own));
        let filled = |queued: usize, most: usize| queued as f64 / most.max(1) as f64;
        let picks = if filled(used, part) - 0.5 > filled(effective_backlog, self.max_backlog) - 0.25 {
            marker.picks(used, part, 0.5)
        } else {
            marker.picks(effective_backlog, self.max_backlog, 0.25)
        };
        !picks && self.has_headroom(effective_backlog) && fits && used.saturating_add(framed(len)) <= part
    }

    /// Returns true if the sender of a packet that comes now is to be told to slow down.
    pub(super) fn marks(&mut self, effective_backlog: usize) -> bool {
        self.marker.marks(effective_backlog, self.max_backlog)
    }

    /// Bytes that may be asked for where there is headroom.
    pub(super) fn read_room(&self) -> usize {
        let held = self.bulk.backlog() + self.awaited;
        let room = (self.max_backlog / 2).saturating_sub(self.awaited);
        let room = room.min(self.max_backlog.saturating_sub(held));
        room.min(self.max_buffered.saturating_sub(held + self.bulk.in_flight())) / (FRAMED + 1) * FRAMED
    }

    /// Gives back the memory that empty streams without a class have no use for.
    pub(super) fn release_spare(&mut self) {
        for stream in [&mut self.prompt, &mut self.bulk] {
            stream.set_scheme(Scheme::sr());
            stream.release_spare();
        }
    }

    /// Its class is gone: it takes nothing more, so nothing is to come.
    pub(super) fn retire(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.expect(self.expected, 0);
        (self.awaited, self.begun) = (0, 0);
        self.begun_of.fill(0);
    }

    /// Counts on `bytes` more or less from sources.
    pub(super) fn expect(&mut self, less: usize, more: usize) {
        self.expected = self.expected.saturating_sub(less).saturating_add(more);
        self.bulk.expect(self.expected as u64);
    }

    /// Counts that `bytes` more or less are to come of messages that were taken whole.
    pub(super) fn promise(&mut self, group: Group, less: usize, more: usize) {
        if let Some(own) = self.begun_of.get_mut(group.place()) {
            let before = *own;
            *own = own.saturating_sub(less).saturating_add(more);
            self.begun = self.begun - before + *own;
        }
    }

    /// Keeps room for `bytes` more or less.
    pub(super) fn keep(&mut self, less: usize, more: usize) {
        self.awaited = self.awaited.saturating_sub(less).saturating_add(more);
        if self.is_beyond() {
            self.lower(0, 0);
        }
    }
}
