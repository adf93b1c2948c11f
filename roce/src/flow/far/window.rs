//! Responder side: requests kept until the target acknowledged them.

use std::collections::VecDeque;

use super::read::Progress;
use crate::flow::horizon::MtuSet;
use crate::flow::near::Class;
use crate::wire::{Kind, Opcode, Psn};

#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Entry<B> {
    pub(super) packet: B,
    pub(super) kind: Kind,
    /// Its last packet's acknowledgement completes a message.
    pub(super) ends: bool,
    /// PSNs and progress; a SEND's or WRITE's packet spans one.
    pub(super) read: Progress,
}

impl<B: AsRef<[u8]>> Entry<B> {
    fn starts(&self) -> bool {
        Opcode::of(self.packet.as_ref()).is_some_and(Opcode::starts_message)
    }
}

impl<B> Window<B> {
    /// The packets, in PSN order.
    pub(super) fn packets_mut(&mut self) -> impl Iterator<Item = &mut B> {
        self.entries.iter_mut().map(|entry| &mut entry.packet)
    }
}

impl<B> Entry<B> {
    pub(super) fn psn(&self) -> Psn {
        self.read.start
    }

    /// It is acknowledged by its own response only.
    pub(super) fn is_answered(&self) -> bool {
        Class::of(self.kind) != Class::Plain
    }
}

/// The effect of an acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Advance {
    pub(super) moved: bool,
    pub(super) completed: bool,
    /// It stopped at a READ or atomic: the answer to that was lost.
    pub(super) blocked: bool,
}

/// Entries in PSN order; the first `sent` of them are in flight.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Window<B> {
    entries: VecDeque<Entry<B>>,
    sent: usize,
    sent_bytes: usize,
    /// READs and atomics among those in flight.
    sent_reads: usize,
    /// READ data that those in flight are still to bring.
    sent_read_bytes: usize,
    /// Bytes asked for, from its beginning, of a READ in pieces that is the entry after those in
    /// flight.
    part: u32,
    bytes: usize,
    /// Everything before is acknowledged or answered.
    una: Psn,
    /// Everything before has been sent at least once.
    high: Psn,
}

impl<B: AsRef<[u8]>> Window<B> {
    pub(super) fn at(psn: Psn) -> Window<B> {
        Window {
            entries: VecDeque::new(),
            sent: 0,
            sent_bytes: 0,
            sent_reads: 0,
            sent_read_bytes: 0,
            part: 0,
            bytes: 0,
            una: psn,
            high: psn,
        }
    }

    pub(super) fn una(&self) -> Psn {
        self.una
    }

    pub(super) fn high(&self) -> Psn {
        self.high
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn is_allocated(&self) -> bool {
        self.entries.capacity() != 0
    }

    pub(super) fn compact(&mut self) {
        self.entries.shrink_to_fit();
    }

    pub(super) fn in_flight(&self) -> usize {
        self.sent + usize::from(self.part_awaited() > 0)
    }

    pub(super) fn in_flight_bytes(&self) -> usize {
        self.sent_bytes
    }

    pub(super) fn reads_in_flight(&self) -> usize {
        self.sent_reads
    }

    /// READ data asked for and not here yet, in bytes.
    pub(super) fn awaited(&self) -> usize {
        self.sent_read_bytes + self.part_awaited()
    }

    fn part_awaited(&self) -> usize {
        self.unsent(0).map_or(0, |entry| entry.read.between(0, self.part))
    }

    /// The next to send is a READ of which a piece was asked for.
    pub(super) fn is_amid_read(&self) -> bool {
        self.part > 0
    }

    /// From where to ask for the next to send, a READ, in bytes from its beginning.
    pub(super) fn ask_from(&self, piece: u32, mtu: MtuSet) -> u32 {
        let resume = || self.unsent(0).map_or(0, |entry| entry.read.resume_at(piece, mtu));
        if self.part > 0 { self.part } else { resume() }
    }

    pub(super) fn push(&mut self, entry: Entry<B>) {
        self.bytes += entry.packet.as_ref().len();
        self.entries.push_back(entry);
    }

    /// Keeps a newer copy of a request in place of the one kept, if it is the same but for its
    /// payload. What is sent again is the newest.
    pub(super) fn renew(&mut self, newer: Entry<B>) -> bool {
        let at = self.entries.partition_point(|entry| entry.psn().is_before(newer.psn()));
        let Some(entry) = self.entries.get_mut(at).filter(|entry| entry.psn() == newer.psn()) else {
            return false;
        };
        let same = entry.kind == newer.kind
            && entry.ends == newer.ends
            && entry.packet.as_ref().len() == newer.packet.as_ref().len();
        if same {
            entry.packet = newer.packet;
        }
        same
    }

    /// The next to send, at `ahead` places after the first.
    pub(super) fn unsent(&self, ahead: usize) -> Option<&Entry<B>> {
        self.entries.get(self.sent + ahead)
    }

    /// The next to send, a READ, is cut there, whatever the path MTU turns out to be.
    pub(super) fn cut(&mut self, upto: u32) {
        if let Some(entry) = self.entries.get_mut(self.sent) {
            entry.read.cut = upto;
        }
    }

    /// The next to send was sent, if it is a READ its bytes up to `upto`; `end` is the PSN after
    /// all that consumes.
    pub(super) fn mark_sent(&mut self, end: Psn, upto: u32) {
        if let Some(entry) = self.entries.get_mut(self.sent) {
            entry.read.asks += 1;
            if upto < entry.read.length {
                self.part = upto;
            } else {
                self.sent_bytes += entry.packet.as_ref().len();
                self.sent_reads += usize::from(entry.is_answered());
                self.sent_read_bytes += entry.read.left();
                self.sent += 1;
                self.part = 0;
            }
        }
        if end.is_after(self.high) {
            self.high = end;
        }
    }

    /// Sends everything again from the oldest.
    pub(super) fn go_back(&mut self) {
        self.sent = 0;
        self.sent_bytes = 0;
        self.sent_reads = 0;
        self.sent_read_bytes = 0;
        self.part = 0;
    }

    fn pop(&mut self) {
        let Some(head) = self.entries.pop_front() else {
            return;
        };
        let len = head.packet.as_ref().len();
        self.bytes -= len;
        if self.sent > 0 {
            self.sent -= 1;
            self.sent_bytes -= len;
            self.sent_reads -= usize::from(head.is_answered());
            self.sent_read_bytes -= head.read.left();
        } else {
            self.part = 0;
        }
    }

    /// The target has executed everything before `to`.
    pub(super) fn advance(&mut self, to: Psn) -> Advance {
        let mut result = Advance::default();
        while let Some(head) = self.entries.front() {
            if !head.psn().is_before(to) {
                break;
            }
            if head.is_answered() {
                result.blocked = head.read.next().is_before(to);
                break;
            }
            self.una = head.psn().next();
            result.moved = true;
            result.completed |= head.ends;
            self.pop();
        }
        result
    }

    /// Returns how many SENDs and WRITEs are complete once everything before `to` is, of those that
    /// were sent.
    pub(super) fn completed_by(&self, to: Psn) -> i64 {
        let sent = self.entries.iter().take_while(|entry| entry.psn().is_before(self.high));
        let completed = sent.take_while(|entry| entry.psn().is_before(to));
        completed.map(|entry| i64::from(entry.ends && !entry.is_answered())).sum()
    }

    /// The oldest READ or atomic that was sent and waits for a response.
    pub(super) fn awaiting(&self) -> Option<&Entry<B>> {
        self.entries.get(self.awaiting_at()?)
    }

    fn awaiting_at(&self) -> Option<usize> {
        let mut sent = self.entries.iter().take_while(|entry| entry.psn().is_before(self.high));
        sent.position(|entry| entry.is_answered())
    }

    /// Returns the first and the last PSN within a message that the target may expect now, having
    /// got what was sent. `next`: the request that is still to come goes on with one.
    pub(super) fn within(&self, next: Option<Psn>) -> Option<(Psn, Psn)> {
        let is_within = |entry: &&Entry<B>| !entry.starts() && !entry.psn().is_after(self.high);
        let first = self.entries.iter().find(is_within).map(Entry::psn).or(next)?;
        let last = next.or_else(|| self.entries.iter().rfind(is_within).map(Entry::psn))?;
        Some((first, last))
    }

    /// A request of one of these kinds was sent that this PSN answers.
    pub(super) fn has_asked(&self, psn: Psn, kinds: &[Kind], mtu: MtuSet) -> bool {
        let mut sent = self.entries.iter().take_while(|entry| entry.psn().is_before(self.high));
        let answers = |entry: &Entry<B>| {
            kinds.contains(&entry.kind) && psn.is_within(entry.psn(), entry.read.most_psns(entry.kind, mtu))
        };
        sent.any(answers)
    }

    /// A response of what is [awaited](Window::awaiting) was lost.
    pub(super) fn note_gap(&mut self) {
        if let Some(entry) = self.awaiting_at().and_then(|at| self.entries.get_mut(at)) {
            entry.read.gaps += 1;
        }
    }

    /// The oldest entry, once [`advance`](Window::advance) went up to a READ or atomic.
    pub(super) fn head_mut(&mut self) -> Option<&mut Entry<B>> {
        self.entries.front_mut()
    }

    /// A response of the oldest entry was taken, with which it got as far as this.
    pub(super) fn answered(&mut self, read: Progress) {
        if let Some(head) = self.entries.front_mut() {
            let before = head.read.left();
            head.read = read;
            self.una = read.next();
            if self.sent > 0 {
                self.sent_read_bytes -= before - read.left();
            }
        }
        if self.una.is_after(self.high) {
            self.high = self.una;
        }
    }

    /// The oldest entry, a READ or atomic, is answered.
    pub(super) fn complete(&mut self) {
        self.pop();
    }

    pub(super) fn newest_mut(&mut self) -> Option<&mut Entry<B>> {
        self.entries.back_mut()
    }

    /// Where the second-oldest entry stands, if there is one.
    pub(super) fn second(&self) -> Option<Psn> {
        self.entries.get(1).map(Entry::psn)
    }

    /// Forgets everything from `psn` on.
    pub(super) fn truncate(&mut self, psn: Psn) {
        while let Some(last) = self.entries.back()
            && !last.psn().is_before(psn)
        {
            let len = last.packet.as_ref().len();
            self.bytes -= len;
            if self.sent == self.entries.len() {
                self.sent -= 1;
                self.sent_bytes -= len;
                self.sent_reads -= usize::from(last.is_answered());
                self.sent_read_bytes -= last.read.left();
            } else if self.sent + 1 == self.entries.len() {
                self.part = 0;
            }
            self.entries.pop_back();
        }
        if self.high.is_after(psn) {
            self.high = psn;
        }
    }
}
