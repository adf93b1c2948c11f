//! Requester side: the requests forwarded and not yet acknowledged by the target, message by
//! message.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use crc32fast::Hasher;
use thin_vec::ThinVec;

use super::copies::Copies;
use crate::flow::horizon::MtuSet;
use crate::wire::{BTH_LEN, Kind, Opcode, Packet, Place, Psn};

/// How the target answers a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::flow) enum Class {
    /// SEND, WRITE: an ACK.
    Plain,
    /// READ: as many responses as it consumes PSNs.
    Read,
    /// Atomics, FLUSH, ATOMIC WRITE: one response, to be kept, since they must not run twice.
    Once,
}

impl Class {
    pub(in crate::flow) fn of(kind: Kind) -> Class {
        match kind {
            Kind::Read => Class::Read,
            Kind::Atomic | Kind::Flush | Kind::AtomicWrite => Class::Once,
            _ => Class::Plain,
        }
    }
}

#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Message {
    start: Psn,
    /// PSNs so far; of a READ all it consumes, 0 while unknown.
    span: u32,
    /// Responses passed on.
    answered: u32,
    /// Bytes of its packets not yet acknowledged by the target.
    bytes: u32,
    /// Bytes of one packet in its middle.
    unit: u16,
    /// Fingerprint of its first packet.
    print: u32,
    /// Fingerprint of the address it may leave out as it comes again, or of a READ's end
    /// ([`address`]).
    address: Option<NonZeroU32>,
    class: Class,
    /// Its last packet was seen.
    complete: bool,
    /// The requester may be told that it is done as soon as it is complete.
    local: bool,
}

impl Message {
    fn end(&self) -> Psn {
        self.start + self.span
    }

    /// Up to which PSN (exclusive) it may be acknowledged before the target did.
    fn ackable(&self) -> Option<Psn> {
        match (self.class, self.complete) {
            (Class::Plain, true) if !self.local => Some(self.end().prev()),
            (Class::Plain, _) => Some(self.end()),
            _ => None,
        }
    }

    fn answered(&self) -> Answered {
        Answered {
            start: self.start,
            end: self.end(),
            print: self.print,
            address: self.address,
            class: self.class,
        }
    }

    fn is_done_locally(&self) -> bool {
        self.class == Class::Plain && self.complete && self.local
    }
}

/// A message of which the opcode and fingerprint are remembered.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Answered {
    start: Psn,
    end: Psn,
    print: u32,
    address: Option<NonZeroU32>,
    class: Class,
}

/// Messages answered last that are remembered; a NIC has 16 READs under way at a time.
const ANSWERED: usize = 16;

/// Messages in PSN order, the oldest first. Empty, it holds no memory until the first message, and
/// none after [`Ring::compact`].
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Ring {
    messages: VecDeque<Message>,
    /// Everything before is acknowledged or answered by the target.
    done: Psn,
    bytes: usize,
    /// So many of the oldest are done as far as the requester is concerned.
    local: usize,
    /// Apart, since most of the time nothing is outstanding.
    copies: Option<Box<Copies>>,
    /// Messages answered last, the oldest first; [`ANSWERED`] at most, beyond which the oldest is
    /// forgotten.
    answered: ThinVec<Answered>,
}

impl Ring {
    pub(super) fn at(psn: Psn) -> Ring {
        Ring {
            messages: VecDeque::new(),
            done: psn,
            bytes: 0,
            local: 0,
            copies: None,
            answered: ThinVec::new(),
        }
    }

    pub(super) fn done(&self) -> Psn {
        self.done
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The PSN of the next response to each READ and atomic that has not all of its answer.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = Psn> + '_ {
        let asking = self.messages.iter().filter(|message| message.class != Class::Plain);
        asking.map(|message| message.start + message.answered)
    }

    pub(super) fn is_allocated(&self) -> bool {
        self.messages.capacity() != 0 || self.copies.is_some() || self.answered.capacity() != 0
    }

    pub(super) fn compact(&mut self) {
        self.messages.shrink_to_fit();
        self.copies = None;
        self.answered = ThinVec::new();
    }

    /// Takes an accepted packet. A packet out of place (Middle without First, ...) is the target's
    /// to refuse: here it opens or closes a message so that the account stays whole. `read_span` is
    /// a READ's span if it is known; `local`: the message, should it begin here, is done for its
    /// requester once it is complete.
    pub(super) fn push(&mut self, packet: &Packet<'_>, read_span: Option<u32>, local: bool) {
        let bytes = packet.bytes.len() as u32;
        self.bytes += packet.bytes.len();
        if !packet.payload.is_empty() {
            self.copies.get_or_insert_default().push(packet);
        }
        let place = packet.bth.opcode.place();
        let class = Class::of(packet.bth.opcode.kind());
        let ends = matches!(place, Place::Last | Place::Only);
        if let Some(open) = self.messages.back_mut().filter(|last| !last.complete) {
            if class == Class::Plain && matches!(place, Place::Middle | Place::Last) {
                open.span += 1;
                open.bytes += bytes;
                open.unit = open.unit.max(bytes as u16);
                open.complete = ends;
                self.count_local();
                return;
            }
            open.complete = true;
        }
        self.messages.push_back(Message {
            start: packet.bth.psn,
            span: if class == Class::Read { read_span.unwrap_or(0) } else { 1 },
            answered: 0,
            bytes,
            unit: bytes as u16,
            print: print(packet),
            address: address(packet),
            class,
            complete: ends,
            local,
        });
        self.count_local();
    }

    fn count_local(&mut self) {
        while self.messages.get(self.local).is_some_and(Message::is_done_locally) {
            self.local += 1;
        }
    }

    fn pop(&mut self) {
        if let Some(done) = self.messages.pop_front() {
            if self.answered.len() >= ANSWERED {
                self.answered.remove(0);
            }
            self.answered.push(done.answered());
        }
        self.local = self.local.saturating_sub(1);
        self.count_local();
    }

    /// The newest message is a READ, and this is its span.
    pub(super) fn settle_read(&mut self, span: u32) {
        if let Some(read) = self.messages.back_mut()
            && read.class == Class::Read
        {
            read.span = span;
        }
        self.pop_answered();
    }

    /// The target acknowledged everything before `to`. Stops at a READ or atomic: only its response
    /// acknowledges that. Returns whether a message was completed.
    pub(super) fn advance(&mut self, to: Psn) -> bool {
        let mut completed = false;
        while let Some(head) = self.messages.front_mut() {
            if head.class != Class::Plain {
                break;
            }
            if head.complete && !to.is_before(head.end()) {
                self.done = head.end();
                self.bytes -= head.bytes as usize;
                self.pop();
                completed = true;
                continue;
            }
            let end = if to.is_before(head.end()) { to } else { head.end() };
            if let Ok(psns @ 1..) = u32::try_from(end.distance(self.done)) {
                let released = psns.saturating_mul(u32::from(head.unit)).min(head.bytes);
                head.bytes -= released;
                self.bytes -= released as usize;
                self.done = end;
            }
            break;
        }
        self.release_copies();
        completed
    }

    /// Returns whether the next packet cannot follow what is outstanding. It begins a message in
    /// another one, or goes on with one that has ended.
    pub(super) fn breaks_off(&self, packet: &Packet<'_>) -> bool {
        let starts = packet.bth.opcode.starts_message();
        self.messages.back().is_some_and(|last| last.complete != starts)
    }

    /// Returns whether the response with this PSN answers a message that is outstanding, and not
    /// one of another incarnation. Then all before it are acknowledged.
    pub(super) fn awaits(&self, psn: Psn) -> bool {
        let asking = self.messages.iter().find(|message| message.class != Class::Plain);
        asking.is_some_and(|message| message.start + message.answered == psn)
    }

    /// The response with this PSN answers the oldest message. Returns its class, or `None` if it
    /// does not.
    pub(super) fn answer(&mut self, psn: Psn, last: bool) -> Option<Class> {
        let head = self.messages.front_mut()?;
        if head.class == Class::Plain || head.start + head.answered != psn {
            return None;
        }
        head.answered += 1;
        self.done = psn.next();
        if last && head.span == 0 {
            head.span = head.answered;
        }
        let class = head.class;
        self.release_copies();
        self.pop_answered();
        Some(class)
    }

    fn pop_answered(&mut self) {
        if let Some(head) = self.messages.front()
            && head.class != Class::Plain
            && head.span != 0
            && head.answered >= head.span
        {
            self.bytes -= head.bytes as usize;
            self.pop();
        }
    }

    /// Returns whether a message that begins with this packet is another one than the one answered
    /// lately that began at its PSN, or than the oldest one, of which the target has this part. So
    /// it is no repetition of that.
    pub(super) fn differs(&self, packet: &Packet<'_>) -> bool {
        let known = self.answered.iter().rev().find(|known| known.start == packet.bth.psn);
        let at = address(packet);
        let differs =
            known.is_some_and(|known| print(packet) != known.print || !may_be_at(known.address, at));
        differs || self.breaks_into(packet)
    }

    /// Returns whether this packet begins another message within the oldest one, or in its place,
    /// where the target has acknowledged that.
    pub(super) fn breaks_into(&self, packet: &Packet<'_>) -> bool {
        let psn = packet.bth.psn;
        let Some(head) = self.messages.front().filter(|head| head.class == Class::Plain) else {
            return false;
        };
        let is_within = !psn.is_before(head.start) && psn.is_before(self.done);
        is_within && packet.bth.opcode.starts_message() && (psn != head.start || print(packet) != head.print)
    }

    /// Returns whether a READ that comes again asks for what is outstanding, too, though that is
    /// not its rest. So it is of another incarnation.
    pub(super) fn runs_into(&self, packet: &Packet<'_>, mtu: MtuSet) -> bool {
        let read = packet.ext.reth().filter(|_| packet.bth.opcode.kind() == Kind::Read);
        let Some(span) = read.and_then(|reth| mtu.span(reth.dma_length)) else { return false };
        let is_running = self.messages.front().is_some_and(|head| head.class == Class::Read);
        let (psn, end) = (packet.bth.psn, packet.bth.psn + span);
        psn.is_before(self.done) && end.is_after(self.done) && !is_running
    }

    /// Returns up to which PSN, exclusive, responses were passed on that a READ asks for which
    /// comes again, whole or its rest.
    pub(super) fn passed_on(&self, packet: &Packet<'_>, mtu: MtuSet) -> Option<Psn> {
        let psn = packet.bth.psn;
        if !psn.is_before(self.done) {
            return None;
        }
        let head = self.messages.front().filter(|head| head.class == Class::Read && head.span != 0);
        let reading = head.map(Message::answered);
        let mut known = reading.iter().chain(self.answered.iter().rev());
        let read = known.find(|known| !psn.is_before(known.start) && psn.is_before(known.end))?;
        if read.class != Class::Read {
            return None;
        }
        let span = mtu.span(packet.ext.reth()?.dma_length)?;
        let to = if read.end.is_after(self.done) { self.done } else { read.end };
        (psn + span == read.end && address(packet) == read.address).then_some(to)
    }

    /// Returns true if `psn` lies in or behind a message that is held here.
    pub(super) fn holds(&self, psn: Psn) -> bool {
        self.messages.front().is_some_and(|oldest| !psn.is_before(oldest.start))
    }

    /// Returns whether a request at a PSN held here is the one that was taken: its place, headers
    /// and length agree. `None`: it lies before. A READ's span may be a guess, and it may come
    /// again from its middle on.
    pub(super) fn repeats(&self, packet: &Packet<'_>) -> Option<bool> {
        let psn = packet.bth.psn;
        let after = self.messages.partition_point(|message| !psn.is_before(message.start));
        let message = self.messages.get(after.checked_sub(1)?)?;
        let starts = psn == message.start;
        let same = Class::of(packet.bth.opcode.kind()) == message.class;
        Some(match message.class {
            Class::Read if !starts => true,
            _ if starts => {
                same && print(packet) == message.print && may_be_at(message.address, address(packet))
            }
            _ => same && !packet.bth.opcode.starts_message() && self.is_as_long(packet),
        })
    }

    fn release_copies(&mut self) {
        if let Some(copies) = &mut self.copies {
            copies.release(self.done);
        }
    }

    fn is_as_long(&self, packet: &Packet<'_>) -> bool {
        let known = self.copies.as_ref().map(|copies| copies.is_as_long(packet));
        known.unwrap_or(packet.payload.is_empty())
    }

    /// Returns true if a repetition carries other bytes, and is to be carried for that.
    pub(super) fn would_renew(&self, packet: &Packet<'_>, rtt: Duration, now: Instant) -> bool {
        self.copies.as_ref().is_some_and(|copies| copies.would_renew(packet, rtt, now))
    }

    /// A repetition is carried with the bytes that it has now.
    pub(super) fn renew(&mut self, packet: &Packet<'_>, rtt: Duration, now: Instant) {
        if let Some(copies) = &mut self.copies {
            copies.renew(packet, rtt, now);
        }
    }

    /// Returns where the last message ends, as far as it has come, that the target may be amid.
    pub(super) fn amid_to(&self) -> Option<Psn> {
        let may_be_amid =
            |message: &&Message| message.class == Class::Plain && (message.span > 1 || !message.complete);
        self.messages.iter().rfind(may_be_amid).map(Message::end)
    }

    /// The target has a part of the oldest message, and not the rest.
    pub(super) fn is_half_done(&self) -> bool {
        let head = self.messages.front();
        head.is_some_and(|head| head.class == Class::Plain && self.done.is_after(head.start))
    }

    /// Returns true if all messages that begin at `psn` or before are SENDs and WRITEs.
    pub(super) fn is_plain_to(&self, psn: Psn) -> bool {
        let mut before = self.messages.iter().take_while(|message| !psn.is_before(message.start));
        before.all(|message| message.class == Class::Plain)
    }

    /// Returns true if the oldest message is a READ.
    pub(super) fn is_reading(&self) -> bool {
        let head = self.messages.front();
        head.is_some_and(|head| head.class == Class::Read)
    }

    /// Returns true if `psn` is the next response of the oldest message, a READ answered in part.
    pub(super) fn is_mid_read(&self, psn: Psn) -> bool {
        self.messages
            .front()
            .is_some_and(|head| head.class == Class::Read && head.answered > 0 && self.done == psn)
    }

    /// Up to which PSN (exclusive) the requester may be acknowledged before the target did: what is
    /// done for it, and of the next message what does not complete it, all but its last packet.
    /// `None` at a READ or atomic. No further than what is retained.
    pub(super) fn ackable(&self) -> Option<Psn> {
        let inside = self.messages.get(self.local).and_then(Message::ackable);
        let ackable = inside.or_else(|| Some(self.messages.get(self.local.checked_sub(1)?)?.end()))?;
        let unretained = self.copies.as_ref().and_then(|copies| copies.unretained());
        Some(unretained.filter(|psn| psn.is_before(ackable)).unwrap_or(ackable))
    }

    /// Something outstanding is nowhere but in this process.
    pub(super) fn has_unretained(&self) -> bool {
        self.copies.as_ref().is_some_and(|copies| copies.unretained().is_some())
    }

    /// The request at this PSN, the newest, is nowhere but in this process.
    pub(super) fn note_unretained(&mut self, psn: Psn) {
        self.copies.get_or_insert_default().note_unretained(psn);
    }

    /// The oldest message is done for its requester and not at its target.
    pub(super) fn is_ahead(&self) -> bool {
        self.local > 0
    }

    /// Messages that an acknowledgement of everything before `psn` completes for the requester and
    /// the target has not.
    pub(super) fn ahead_of_target(&self, psn: Psn) -> u32 {
        let done = self.messages.partition_point(|message| !psn.is_before(message.end()));
        done.min(self.local) as u32
    }

    /// Forgets everything from `psn` on.
    pub(super) fn truncate(&mut self, psn: Psn) {
        if let Some(copies) = &mut self.copies {
            copies.truncate(psn);
        }
        while let Some(last) = self.messages.back_mut() {
            if last.start.is_before(psn) {
                let kept = psn.distance(last.start).unsigned_abs();
                if last.class == Class::Read {
                    last.span = kept;
                } else if kept < last.span {
                    last.span = kept;
                    last.complete = false;
                }
                break;
            }
            self.bytes -= last.bytes as usize;
            self.messages.pop_back();
        }
        if psn.is_before(self.done) || self.messages.is_empty() {
            self.done = psn;
        }
        self.local = self.local.min(self.messages.len());
        self.pop_answered();
    }
}

/// Returns whether both can be the same address: what is left out, in the one or the other, may be
/// any.
fn may_be_at(one: Option<NonZeroU32>, other: Option<NonZeroU32>) -> bool {
    one.is_none() || other.is_none() || one == other
}

/// Length of the last field in a FetchAdd's header, the one that a CompareSwap compares with. It
/// means nothing, and Soft-RoCE leaves there what the memory held, another thing each time it sends
/// the request (`rxe_req.c`, `init_req_packet`).
const COMPARAND: usize = 8;

/// The address in an ATOMIC WRITE or FLUSH, for which Soft-RoCE puts 0 when it sends the request
/// again (`rxe_req.c`, `req_retry`).
const ADDRESS: usize = 8;
/// Length of the header before the address in a FLUSH.
const FETH: usize = 4;

/// Fingerprint of a request's opcode, length and extended headers, but for what a retry may change.
/// Its payload may change as well.
fn print(packet: &Packet<'_>) -> u32 {
    let mut hasher = Hasher::new();
    let ext = packet.ext.layout().len();
    let (kept, skipped, end) = match packet.bth.opcode {
        Opcode::FetchAdd => (0, 0, ext.saturating_sub(COMPARAND)),
        Opcode::AtomicWrite => (0, ADDRESS, ext),
        Opcode::Flush => (FETH, ADDRESS, ext),
        _ => (0, 0, ext),
    };
    let body = packet.bytes.get(BTH_LEN..).unwrap_or_default();
    let end = body.len().min(end);
    hasher.update(&[packet.bth.opcode as u8]);
    hasher.update(&(packet.bytes.len() as u32).to_be_bytes());
    hasher.update(body.get(..kept).unwrap_or_default());
    hasher.update(body.get(kept + skipped..end).unwrap_or_default());
    hasher.finalize()
}

/// Fingerprint of the address of an ATOMIC WRITE or FLUSH, unless it is left out; of a READ's key
/// and end, which are the same if it comes again from its middle on.
fn address(packet: &Packet<'_>) -> Option<NonZeroU32> {
    if packet.bth.opcode == Opcode::ReadRequest {
        let reth = packet.ext.reth()?;
        let end = reth.virtual_address.wrapping_add(reth.dma_length.into());
        let mut hasher = Hasher::new();
        hasher.update(&reth.rkey.to_be_bytes());
        hasher.update(&end.to_be_bytes());
        return NonZeroU32::new(hasher.finalize().max(1));
    }
    if !matches!(packet.bth.opcode, Opcode::AtomicWrite | Opcode::Flush) {
        return None;
    }
    let address = packet.ext.reth().map(|reth| reth.virtual_address).filter(|address| *address != 0)?;
    NonZeroU32::new(crc32fast::hash(&address.to_be_bytes()).max(1))
}
