//! Requests that requesters were acknowledged inside a message, in memory that outlives the
//! process.
//!
//! A requester does not send again what it was acknowledged. Until the target has it, it is here,
//! in this gateway's streams, or at the peer. If either process ends, only what stands here goes
//! on. The memory is the driver's: a file of `tmpfs`, which a process that is killed leaves as it
//! was.
//!
//! # Layout
//! A head, then slots of one size. A slot is free if its first word is 0. A writer fills a slot
//! from its second word on, and writes the first one last. So whoever reads the memory after the
//! writer was killed finds whole requests only. All is in the byte order of the machine.

mod found;
mod layout;
mod moved;
mod orphans;
mod reads;
#[cfg(test)]
mod tests;

use std::sync::atomic::{Ordering, compiler_fence};
use std::time::Instant;

use roce::ip::Addressing;
use roce::pairing::FlowKey;
use roce::wire::{Packet, Psn};

pub use self::found::{Age, Found};
pub(crate) use self::layout::is_part;
use self::layout::{Layout, SlotHead};
pub(crate) use self::moved::Moved;
use self::orphans::{Orphan, Orphans};
use self::reads::Reads;
pub use self::reads::{HEAD, MOST_FATAL_READS, fatal_reads};
use crate::hosts::{GROUPS, Grouping};

/// Memory that may outlive the process.
pub trait Memory: AsRef<[u8]> + AsMut<[u8]> + Send {}

impl<M: AsRef<[u8]> + AsMut<[u8]> + Send> Memory for M {}

/// A flow that is to go on after the end of a process, and has not done so yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Revival {
    /// Where its class refuses by silence: until then. `None`: its requester has not come back.
    pub(crate) silent_until: Option<Instant>,
}

/// The requests of one flow, by ascending PSN. Empty by default; belongs to the [`Retention`] that
/// filled it, which has to be told before it is dropped ([`Retention::clear`]).
#[derive(Debug, Default)]
pub(crate) struct Run {
    head: Option<u32>,
    tail: Option<u32>,
    /// All before this PSN the target has acknowledged, where this process heard it do so and the
    /// flow has been stranded since. Until it speaks to a flow that takes its place.
    pub(crate) acknowledged: Option<Psn>,
    /// The messages that the target had completed when it last named a PSN before the first.
    pub(crate) msn: u32,
    /// The earliest request that came to the flow, and whether it begins a message.
    pub(crate) came: Option<(Psn, bool)>,
    /// The flow is to go on after the end of a process.
    pub(crate) revival: Option<Revival>,
}

impl Run {
    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_none()
    }
}

/// The place of a slot in a [`Run`], or among the free.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    next: Option<u32>,
    psn: Psn,
    /// Bytes of the request.
    len: u16,
    /// The group of its requester's host.
    group: u8,
}

/// A group of hosts has so many times what is free, at most.
const SHARE: u32 = 8;

/// Requests retained for all flows of a gateway.
///
/// Bound: the slots that fit the memory, and for each requester's host eight times what is free.
/// Beyond it a request is not retained, and its requester is acknowledged it when the target has
/// it. Nothing here allocates once made, but for flows that
/// [move](Moved) to another session.
pub struct Retention {
    memory: Box<dyn Memory>,
    layout: Layout,
    links: Vec<Link>,
    free: Option<u32>,
    used: u32,
    by_group: [u32; GROUPS],
    /// Bytes of the requests retained.
    bytes: u64,
    /// Flows that have any, those that nobody has come for among them.
    flows: u64,
    orphans: Orphans,
    reads: Reads,
    found: Found,
    /// Room for a request as it is read.
    room: Vec<u8>,
    /// Requests that found no slot, or were longer than one.
    unretained: u64,
    /// How often what a target lacked was carried from here.
    carried: u64,
}

impl std::fmt::Debug for Retention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Retention").field("layout", &self.layout).field("used", &self.used).finish()
    }
}

impl Retention {
    /// Takes memory into use, for requests of at most `longest` bytes from BTH to padding. What an
    /// earlier process retained there is kept for its flows until `until`, if it has the same
    /// layout and `age` says of its last [`Retention::note_time`] that it may still matter.
    pub fn new(
        mut memory: Box<dyn Memory>,
        longest: usize,
        until: Instant,
        age: impl FnOnce(u64) -> Age,
    ) -> Self {
        let bytes = (*memory).as_mut();
        let reads = Reads::begin(bytes, until);
        let layout = Layout::of(bytes.len(), longest);
        let (found, age) = match layout::time_of(bytes, &layout) {
            Err(found) => (found, Age::Old),
            Ok(time) => match age(time) {
                Age::ToCome => (Found::ToCome(time), Age::ToCome),
                age => (Found::Kept, age),
            },
        };
        if age != Age::Recent {
            layout::format(bytes, &layout);
        }
        let mut retention = Self {
            memory,
            links: vec![Link::default(); layout.slots as usize],
            free: None,
            used: 0,
            by_group: [0; GROUPS],
            bytes: 0,
            flows: 0,
            orphans: Orphans::new(until),
            reads,
            found,
            room: Vec::with_capacity(layout.slot_size),
            layout,
            unretained: 0,
            carried: 0,
        };
        retention.scan();
        retention.reads.end((*retention.memory).as_mut());
        retention
    }

    /// Finds out which slots are in use, and whose requests stand there.
    fn scan(&mut self) {
        let (mut found, mut damaged) = (Vec::new(), 0);
        for slot in (0..self.layout.slots).rev() {
            match self.head(slot) {
                Some(head) => {
                    // Which group it is of is not known before `regroup`.
                    self.take(slot, 0, head.len);
                    found.push((head.key, head.psn, slot));
                }
                None => {
                    damaged += u32::from(self.empty(slot));
                    self.put_back(slot);
                }
            }
        }
        if damaged > 0 {
            self.found = Found::Damaged(damaged);
        }
        for (key, run) in orphans::runs(found) {
            let mut taken = Run::default();
            for (psn, slot) in run {
                self.append(&mut taken, slot, psn);
            }
            let src_port = taken.head.and_then(|slot| self.head(slot)).map_or(0, |head| head.src_port);
            self.orphans.add(key, Orphan { run: taken, src_port });
        }
    }

    /// Counts anew what each host has, as hosts are grouped from now on.
    pub(crate) fn regroup(&mut self, grouping: Grouping) {
        self.by_group = [0; GROUPS];
        for slot in 0..self.layout.slots {
            let Some(head) = self.head(slot) else { continue };
            let group = grouping.group(head.key.requester);
            if let (Some(link), Some(has)) =
                (self.links.get_mut(slot as usize), self.by_group.get_mut(usize::from(group)))
            {
                link.group = group;
                *has += 1;
            }
        }
    }

    /// Returns the memory, as it would be found had the process ended.
    #[must_use]
    pub fn into_memory(self) -> Box<dyn Memory> {
        self.memory
    }

    /// Returns what the memory held when it was taken into use.
    #[must_use]
    pub fn found(&self) -> Found {
        self.found
    }

    /// Returns what it would have held instead, had nothing been wrong.
    #[must_use]
    pub fn expected(&self) -> String {
        match self.found {
            Found::Nothing | Found::Kept => "anything".to_owned(),
            Found::Foreign(_) => format!("it begins with \"{}\"", layout::MAGIC.escape_ascii()),
            Found::Cut { .. } => format!("{} places of {} bytes", self.layout.slots, self.layout.slot_size),
            Found::ToCome(_) => "a time that has passed".to_owned(),
            Found::Damaged(_) => "requests as they were written".to_owned(),
        }
    }

    /// Notes the time of the driver's clock, which goes on from process to process, for
    /// [`Retention::new`].
    pub fn note_time(&mut self, time: u64) {
        layout::note_time((*self.memory).as_mut(), time);
    }

    /// Requests retained now.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Requests that there is room for.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.layout.slots
    }

    /// Bytes of the requests retained now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of requests that there is room for, if they are as long as they may be.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        u64::from(self.layout.slots) * self.layout.longest() as u64
    }

    /// Flows with requests retained, [orphans](Retention::orphans) among them.
    #[must_use]
    pub fn flows(&self) -> u64 {
        self.flows
    }

    /// Flows of an earlier process whose requests nobody has come for.
    #[must_use]
    pub fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// Requests that were not retained so far for want of room.
    #[must_use]
    pub fn unretained(&self) -> u64 {
        self.unretained
    }

    /// Returns how often what a target lacked was carried from here.
    #[must_use]
    pub fn carried(&self) -> u64 {
        self.carried
    }

    /// A target lacked what is retained, and all of it is on its way.
    pub(crate) fn note_carried(&mut self) {
        self.carried += 1;
    }

    /// The flow has taken this request as its next. Whatever was retained from there on is what its
    /// requester went back before, or another incarnation's.
    pub(crate) fn note_taken(&mut self, run: &mut Run, psn: Psn) {
        if run.tail.is_some_and(|tail| !psn.is_after(self.psn(tail))) {
            self.truncate(run, psn);
        }
    }

    /// Retains a request as the last one of its flow, which has [taken](Retention::note_taken) it.
    /// `group`: that of its requester. `is_later`: its target had completed a message of this
    /// connection. Returns false if there is no room.
    pub(crate) fn put(
        &mut self,
        run: &mut Run,
        group: u8,
        (addressing, packet): (&Addressing, &Packet<'_>),
        is_later: bool,
    ) -> bool {
        let psn = packet.bth.psn;
        debug_assert!(run.tail.is_none_or(|tail| psn.is_after(self.psn(tail))), "it was taken");
        let has = self.by_group.get(usize::from(group)).copied().unwrap_or(u32::MAX);
        let may_have = SHARE.saturating_mul(self.layout.slots - self.used);
        let fits = packet.bytes.len() <= self.layout.longest() && has < may_have;
        let Some(slot) = self.free.filter(|_| fits) else {
            self.unretained += 1;
            return false;
        };
        self.free = self.link(slot).next;
        self.take(slot, group, packet.bytes.len() as u16);
        self.write(slot, (addressing, packet), is_later);
        self.append(run, slot, psn);
        true
    }

    /// A slot is in use from now on.
    fn take(&mut self, slot: u32, group: u8, len: u16) {
        self.used += 1;
        self.bytes += u64::from(len);
        if let Some(link) = self.links.get_mut(slot as usize) {
            (link.group, link.len) = (group, len);
        }
        if let Some(has) = self.by_group.get_mut(usize::from(group)) {
            *has += 1;
        }
    }

    /// The first word last: see the layout above.
    fn write(&mut self, slot: u32, request: (&Addressing, &Packet<'_>), is_later: bool) {
        let layout = self.layout;
        let Some(into) = layout.slot_of((*self.memory).as_mut(), slot) else { return };
        let sum = SlotHead::write(into, request, is_later);
        // Of one thread, so that the compiler alone could turn them round.
        compiler_fence(Ordering::Release);
        layout::set_word(into, sum);
    }

    fn append(&mut self, run: &mut Run, slot: u32, psn: Psn) {
        if let Some(link) = self.links.get_mut(slot as usize) {
            (link.next, link.psn) = (None, psn);
        }
        match run.tail {
            Some(tail) => self.set_next(tail, Some(slot)),
            None => {
                run.head = Some(slot);
                self.flows += 1;
            }
        }
        run.tail = Some(slot);
    }

    /// Forgets what the target has acknowledged: all before `done`.
    pub(crate) fn release(&mut self, run: &mut Run, done: Psn) {
        while let Some(slot) = run.head.filter(|head| self.psn(*head).is_before(done)) {
            self.pop(run, slot);
        }
    }

    /// Forgets all of a flow's.
    pub(crate) fn clear(&mut self, run: &mut Run) {
        while let Some(slot) = run.head {
            self.pop(run, slot);
        }
    }

    fn pop(&mut self, run: &mut Run, head: u32) {
        run.head = self.link(head).next;
        if run.head.is_none() {
            run.tail = None;
            self.flows -= 1;
        }
        self.give_back(head);
    }

    /// Forgets what is not before `psn`.
    fn truncate(&mut self, run: &mut Run, psn: Psn) {
        let (mut last, mut next) = (None, run.head);
        while let Some(slot) = next.filter(|slot| self.psn(*slot).is_before(psn)) {
            (last, next) = (next, self.link(slot).next);
        }
        match last {
            Some(last) => self.set_next(last, None),
            None => {
                self.flows -= u64::from(run.head.is_some());
                run.head = None;
            }
        }
        run.tail = last;
        while let Some(slot) = next {
            next = self.link(slot).next;
            self.give_back(slot);
        }
    }

    /// Writes that a slot is free. Returns false if it was so.
    fn empty(&mut self, slot: u32) -> bool {
        let layout = self.layout;
        let Some(into) = layout.slot_of((*self.memory).as_mut(), slot) else { return false };
        let was_free = layout::is_free(into);
        layout::set_word(into, 0);
        !was_free
    }

    /// Empties a slot that is in use.
    fn give_back(&mut self, slot: u32) {
        self.empty(slot);
        let Link { len, group, .. } = self.link(slot);
        self.used = self.used.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(len.into());
        let group = usize::from(group);
        if let Some(has) = self.by_group.get_mut(group) {
            *has = has.saturating_sub(1);
        }
        self.put_back(slot);
    }

    fn put_back(&mut self, slot: u32) {
        let next = self.free.replace(slot);
        self.set_next(slot, next);
    }

    fn link(&self, slot: u32) -> Link {
        self.links.get(slot as usize).copied().unwrap_or_default()
    }

    fn psn(&self, slot: u32) -> Psn {
        self.link(slot).psn
    }

    fn set_next(&mut self, slot: u32, next: Option<u32>) {
        if let Some(link) = self.links.get_mut(slot as usize) {
            link.next = next;
        }
    }

    /// Returns the head of a slot whose request is whole.
    fn head(&self, slot: u32) -> Option<SlotHead> {
        SlotHead::read(self.layout.slot_in((*self.memory).as_ref(), slot)?)
    }

    /// Returns the bytes of these requests, if all of them are retained, one after the other.
    pub(crate) fn bytes_between(&self, run: &Run, from: Psn, to: Psn) -> Option<usize> {
        let (mut psn, mut bytes) = (from, 0);
        let mut next = self.find(run, from);
        while psn != to {
            let slot = next.filter(|slot| self.psn(*slot) == psn)?;
            let link = self.link(slot);
            bytes += usize::from(link.len);
            (psn, next) = (psn.next(), link.next);
        }
        Some(bytes)
    }

    /// Returns the PSN of a flow's first request here, and whether its target had completed a
    /// message of the connection before it came.
    pub(crate) fn first(&self, run: &Run) -> Option<(Psn, bool)> {
        let slot = run.head?;
        Some((self.psn(slot), self.head(slot)?.is_later))
    }

    fn find(&self, run: &Run, psn: Psn) -> Option<u32> {
        let mut next = run.head;
        while let Some(slot) = next.filter(|slot| self.psn(*slot).is_before(psn)) {
            next = self.link(slot).next;
        }
        next
    }

    /// Reads the requests of a flow from one PSN up to another, in order, as long as `take` says
    /// so. None of them is trusted: what is not whole, or not the flow's, ends it.
    pub(crate) fn read_between(
        &mut self,
        run: &Run,
        key: &FlowKey,
        (from, to): (Psn, Psn),
        mut take: impl FnMut(&Packet<'_>) -> bool,
    ) -> bool {
        self.reads.begin_again((*self.memory).as_mut());
        let mut next = self.find(run, from);
        let mut is_whole = true;
        while let Some(slot) = next.filter(|slot| is_whole && self.psn(*slot).is_before(to)) {
            let mut room = std::mem::take(&mut self.room);
            let is_copied = self.copy(slot, key, &mut room);
            is_whole = is_copied && Packet::parse(&room).is_ok_and(|packet| take(&packet));
            self.room = room;
            next = self.link(slot).next;
        }
        self.reads.end((*self.memory).as_mut());
        is_whole
    }

    fn copy(&self, slot: u32, key: &FlowKey, room: &mut Vec<u8>) -> bool {
        let Some(bytes) = self.layout.slot_in((*self.memory).as_ref(), slot) else { return false };
        let head = SlotHead::read(bytes).filter(|head| head.key == *key && head.psn == self.psn(slot));
        let body = head.and_then(|head| head.body(bytes));
        room.clear();
        room.extend_from_slice(body.unwrap_or_default());
        body.is_some()
    }

    /// Returns true if a request that begins no message goes on with what an earlier process
    /// retained of its flow.
    pub(crate) fn continues(&self, key: &FlowKey, src_port: u16, psn: Psn) -> bool {
        let Some(orphan) = self.orphans.get(key).filter(|orphan| orphan.src_port == src_port) else {
            return false;
        };
        let first = orphan.run.head.map(|slot| self.psn(slot));
        first.and_then(|first| self.bytes_between(&orphan.run, first, psn)).is_some_and(|bytes| bytes > 0)
    }

    /// Hands over what an earlier process retained of this flow.
    pub(crate) fn adopt(&mut self, key: &FlowKey) -> Run {
        self.orphans.take(key).map(|orphan| orphan.run).unwrap_or_default()
    }

    /// Forgets what an earlier process retained of this flow.
    pub(crate) fn forget(&mut self, key: &FlowKey) {
        let mut run = self.adopt(key);
        self.clear(&mut run);
    }

    /// When to call [`Retention::handle_timeout`].
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        [self.orphans.next_timeout(), self.reads.next_timeout()].into_iter().flatten().min()
    }

    /// Forgets what nobody has come for.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(mut run) = self.orphans.expire(now) {
            self.clear(&mut run);
        }
        self.reads.handle_timeout((*self.memory).as_mut(), now);
    }
}
