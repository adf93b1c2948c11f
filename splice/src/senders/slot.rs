//! A class's two streams, and what is known of what they will have to carry.

use reliability::stream::Sender;

use super::{FRAMED, FRAMING, Urgency};
use crate::sizes::Sizes;

/// Two streams, so that an ACK never queues behind megabytes going the same way; order within a flow is restored by the records' own numbers.
pub(super) struct Slot {
    pub(super) prompt: Sender,
    pub(super) bulk: Sender,
    pub(super) max_backlog: usize,
    pub(super) max_buffered: usize,
    pub(super) priority: u8,
    /// What its class said of losses: scheme, parity per data at most. Streams of `auto` go on as they are as long as that stands.
    pub(super) told: Option<(config::Scheme, f64)>,
    /// Classes it has lost: claims made before are void.
    pub(super) era: u32,
    /// Bytes that requesters will still send for the bulk stream, as far as known.
    expected: usize,
    /// Room in the bulk stream kept for what targets were asked for, in bytes.
    awaited: usize,
    /// Messages of its class that go out on the bulk stream.
    pub(super) sizes: Sizes,
}

/// Bytes that a flow has a class's stream count on, and with which slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Claim {
    pub(super) place: usize,
    pub(super) era: u32,
    pub(super) bytes: usize,
}

impl Slot {
    /// With streams that nothing was pushed to, and no room yet.
    pub(super) fn new([prompt, bulk]: [Sender; 2]) -> Self {
        Self {
            prompt,
            bulk,
            max_backlog: 0,
            max_buffered: 0,
            priority: 0,
            told: None,
            era: 0,
            expected: 0,
            awaited: 0,
            sizes: Sizes::default(),
        }
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

    /// Whether a record of `len` bytes of body will be taken on the bulk stream, beside what targets were asked for.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.fits(Urgency::Bulk, self.awaited + len)
    }

    pub(super) fn fits(&self, urgency: Urgency, len: usize) -> bool {
        let stream = self.stream(urgency);
        let backlog = stream.backlog() + len + FRAMING;
        backlog <= self.max_backlog && backlog + stream.in_flight() <= self.max_buffered
    }

    pub(super) fn has_headroom(&self) -> bool {
        self.bulk.backlog() < self.max_backlog / 2
    }

    /// READ data that targets may be asked for, in bytes.
    pub(super) fn read_room(&self) -> usize {
        if !self.has_headroom() {
            return 0;
        }
        let held = self.bulk.backlog() + self.awaited;
        let room = (self.max_backlog / 2).saturating_sub(self.awaited);
        let room = room.min(self.max_backlog.saturating_sub(held));
        room.min(self.max_buffered.saturating_sub(held + self.bulk.in_flight())) / (FRAMED + 1) * FRAMED
    }

    /// Its class is gone: it takes nothing more, so nothing is to come.
    pub(super) fn retire(&mut self) {
        self.era = self.era.wrapping_add(1);
        self.expect(self.expected, 0);
        self.awaited = 0;
    }

    /// Counts on `bytes` more or less from requesters.
    pub(super) fn expect(&mut self, less: usize, more: usize) {
        self.expected = self.expected.saturating_sub(less).saturating_add(more);
        self.bulk.expect(self.expected as u64);
    }

    /// Keeps room for `bytes` more or less.
    pub(super) fn keep(&mut self, less: usize, more: usize) {
        self.awaited = self.awaited.saturating_sub(less).saturating_add(more);
    }
}
