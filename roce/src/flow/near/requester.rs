//! Requester side: the requester as its packets and connection management show it.

use std::time::Instant;

use crate::cm::Terms;
use crate::flow::rewritten::Style;
use crate::wire::Qpn;

/// A requester's queue pair and habits.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Requester {
    /// `None`: nothing can be said to it yet.
    pub(super) qpn: Option<Qpn>,
    pub(super) style: Style,
    /// It takes RNR without end.
    is_patient: bool,
    /// There was a READ.
    has_read: bool,
    /// True if its last packet is neither outstanding nor next: it may be of another incarnation.
    is_strange: bool,
    /// Modulo 256.
    duplicates_in_row: u8,
    /// Counts the times that it began with nothing outstanding.
    window: u32,
    /// When it last sent anything.
    #[serde_as(as = "snapshot::At")]
    heard: Instant,
}

impl Requester {
    pub(super) fn new(now: Instant) -> Requester {
        Requester {
            qpn: None,
            style: Style::DEFAULT,
            is_patient: false,
            has_read: false,
            is_strange: false,
            duplicates_in_row: 0,
            window: 0,
            heard: now,
        }
    }

    pub(super) fn set_terms(&mut self, terms: &Terms) {
        self.is_patient = terms.retries_without_end();
    }

    pub(super) fn is_patient(&self) -> bool {
        self.is_patient
    }

    pub(super) fn has_read(&self) -> bool {
        self.has_read
    }

    pub(super) fn note_read(&mut self) {
        self.has_read = true;
    }

    pub(super) fn is_strange(&self) -> bool {
        self.is_strange
    }

    pub(super) fn note_strange(&mut self, is_strange: bool) {
        self.is_strange = is_strange;
    }

    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    pub(super) fn note_heard(&mut self, now: Instant) {
        self.heard = now;
    }

    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// It begins with nothing outstanding.
    pub(super) fn begin_window(&mut self) {
        self.window = self.window.wrapping_add(1);
    }

    /// A duplicate came. Returns true for every `every`th in a row.
    pub(super) fn count_duplicate(&mut self, every: u32) -> bool {
        self.duplicates_in_row = self.duplicates_in_row.wrapping_add(1);
        u32::from(self.duplicates_in_row).is_multiple_of(every.max(1))
    }

    /// It is about to hear of them.
    pub(super) fn end_duplicates(&mut self) {
        self.duplicates_in_row = 0;
    }
}
