//! The layout of requests in memory.

use std::net::IpAddr;

use roce::ip::Addressing;
use roce::pairing::FlowKey;
use roce::wire::{Kind, Packet, Place, Psn, Transport};

use super::found::Found;
use crate::sixteen::{of_sixteen, to_sixteen};

/// Says what the memory is; the last two digits are the layout's version.
pub(super) const MAGIC: [u8; 8] = *b"LHRETN01";
/// Bytes before the first slot.
pub(super) const HEAD: usize = 64;
/// Places of the slots' size, their number, the time, and the reads that ended a process in the
/// head. The last was 0 in the first build with this layout.
const SIZE: usize = 8;
const SLOTS: usize = 12;
const TIME: usize = 16;
const FATAL: usize = 24;

/// Bytes of a slot before the request: sum, length, port, flags, 32 bytes of addresses.
const SLOT_HEAD: usize = 64;
const LEN: usize = 4;
const PORT: usize = 6;
/// 0 in slots of builds that knew no flags.
const FLAGS: usize = 8;
/// The target had completed a message of the connection before this request came.
const LATER: u8 = 1;
const ADDRESSES: usize = 16;
/// A slot's size is a multiple of this, a line of the cache.
const ALIGN: usize = 64;

/// The cut of memory into slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) slot_size: usize,
    pub(super) slots: u32,
}

impl Layout {
    /// Returns the layout for memory of so many bytes and requests of at most `longest`.
    pub(super) fn of(bytes: usize, longest: usize) -> Self {
        let slot_size = (SLOT_HEAD + longest.min(usize::from(u16::MAX))).next_multiple_of(ALIGN);
        let slots = u32::try_from(bytes.saturating_sub(HEAD) / slot_size).unwrap_or(u32::MAX);
        Self { slot_size, slots }
    }

    /// Bytes of the longest request.
    pub(super) fn longest(&self) -> usize {
        self.slot_size - SLOT_HEAD
    }

    fn range(&self, slot: u32) -> std::ops::Range<usize> {
        let start = HEAD + slot as usize * self.slot_size;
        start..start + self.slot_size
    }

    pub(super) fn slot_of<'a>(&self, memory: &'a mut [u8], slot: u32) -> Option<&'a mut [u8]> {
        memory.get_mut(self.range(slot))
    }

    pub(super) fn slot_in<'a>(&self, memory: &'a [u8], slot: u32) -> Option<&'a [u8]> {
        memory.get(self.range(slot))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(into) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *into = value;
    }
}

/// Empties memory, and says how it is cut.
pub(super) fn format(memory: &mut [u8], layout: &Layout) {
    put(memory, 0, [0; 8]);
    for slot in 0..layout.slots {
        if let Some(slot) = layout.slot_of(memory, slot) {
            set_word(slot, 0);
        }
    }
    put(memory, SIZE, (layout.slot_size as u32).to_ne_bytes());
    put(memory, SLOTS, layout.slots.to_ne_bytes());
    put(memory, TIME, 0u64.to_ne_bytes());
    put(memory, FATAL, 0u32.to_ne_bytes());
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::Release);
    put(memory, 0, MAGIC);
}

/// Returns the time noted last, if the memory is cut like this.
pub(super) fn time_of(memory: &[u8], layout: &Layout) -> Result<u64, Found> {
    let magic = memory.first_chunk().copied().unwrap_or_default();
    let read = |at| word(memory, at).unwrap_or(0);
    match (magic, read(SIZE), read(SLOTS)) {
        // As a file is made, and as a process leaves it that is killed before it has begun.
        ([0, 0, 0, 0, 0, 0, 0, 0], ..) => Err(Found::Nothing),
        (MAGIC, size, slots) if size as usize == layout.slot_size && slots == layout.slots => {
            let time = memory.get(TIME..).and_then(|rest| rest.first_chunk());
            time.copied().map(u64::from_ne_bytes).ok_or(Found::Nothing)
        }
        (MAGIC, size, slots) => Err(Found::Cut { size, slots }),
        (magic, ..) => Err(Found::Foreign(magic)),
    }
}

/// Returns how many processes in a row have ended while they read the memory; 0: it is not ours.
pub(super) fn fatal_reads(memory: &[u8]) -> u32 {
    let is_ours = memory.starts_with(&MAGIC);
    word(memory, FATAL).filter(|_| is_ours).unwrap_or(0)
}

pub(super) fn note_fatal_reads(memory: &mut [u8], reads: u32) {
    put(memory, FATAL, reads.to_ne_bytes());
    // The process may end at the next access.
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

pub(super) fn note_time(memory: &mut [u8], time: u64) {
    put(memory, TIME, time.to_ne_bytes());
}

/// A slot's first word: 0 if it is free.
pub(super) fn set_word(slot: &mut [u8], word: u32) {
    put(slot, 0, word.to_ne_bytes());
}

/// Returns true if a slot's first word says that it is free.
pub(super) fn is_free(slot: &[u8]) -> bool {
    word(slot, 0).is_none_or(|word| word == 0)
}

/// The words of a slot about its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotHead {
    pub(super) key: FlowKey,
    pub(super) psn: Psn,
    pub(super) src_port: u16,
    /// Bytes of the request.
    pub(super) len: u16,
    /// The target had completed a message of the connection before it came.
    pub(super) is_later: bool,
}

impl SlotHead {
    /// Writes all but the first word, and returns that.
    pub(super) fn write(
        slot: &mut [u8],
        (addressing, packet): (&Addressing, &Packet<'_>),
        is_later: bool,
    ) -> u32 {
        let len = packet.bytes.len();
        put(slot, LEN, (len as u16).to_ne_bytes());
        put(slot, PORT, addressing.src_port.to_ne_bytes());
        put(slot, FLAGS, [u8::from(is_later) * LATER]);
        let [src, dst] = [addressing.src, addressing.dst].map(to_sixteen);
        put(slot, ADDRESSES, src);
        put(slot, ADDRESSES + 16, dst);
        if let Some(body) = slot.get_mut(SLOT_HEAD..SLOT_HEAD + len) {
            body.copy_from_slice(packet.bytes);
        }
        sum(slot, packet)
    }

    /// Reads a slot, if what stands there is whole, and a request that is ever retained.
    pub(super) fn read(slot: &[u8]) -> Option<Self> {
        let told = word(slot, 0).filter(|sum| *sum != 0)?;
        let len = u16::from_ne_bytes(*slot.get(LEN..)?.first_chunk()?);
        let packet = Packet::parse(slot.get(SLOT_HEAD..)?.get(..usize::from(len))?).ok()?;
        let [requester, target] = [ADDRESSES, ADDRESSES + 16].map(|at| address(slot, at));
        let key = FlowKey { requester: requester?, target: target?, target_qpn: packet.bth.dest_qp };
        let src_port = u16::from_ne_bytes(*slot.get(PORT..)?.first_chunk()?);
        let (psn, is_later) = (packet.bth.psn, *slot.get(FLAGS)? & LATER != 0);
        let is_whole = is_part(&packet) && sum(slot, &packet) == told;
        is_whole.then_some(Self { key, psn, src_port, len, is_later })
    }

    /// The request.
    pub(super) fn body<'a>(&self, slot: &'a [u8]) -> Option<&'a [u8]> {
        slot.get(SLOT_HEAD..)?.get(..usize::from(self.len))
    }
}

/// Returns whether a requester may be acknowledged this before its message ends: the beginning or
/// middle of a SEND or WRITE.
pub(crate) fn is_part(packet: &Packet<'_>) -> bool {
    let opcode = packet.bth.opcode;
    opcode.transport() == Transport::Rc
        && matches!(opcode.place(), Place::First | Place::Middle)
        && matches!(opcode.kind(), Kind::Send | Kind::Write)
}

/// Returns the sum over all that is written but the first word, and never 0. That of the payload is
/// known from its ICRC, mostly.
fn sum(slot: &[u8], packet: &Packet<'_>) -> u32 {
    let pad = usize::from(packet.bth.pad);
    let headers = packet.bytes.len().saturating_sub(packet.payload.len() + pad);
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(slot.get(LEN..SLOT_HEAD).unwrap_or_default());
    hasher.update(packet.bytes.get(..headers).unwrap_or_default());
    hasher.update(&packet.payload_crc().to_ne_bytes());
    hasher.finalize().max(1)
}

fn address(slot: &[u8], at: usize) -> Option<IpAddr> {
    slot.get(at..)?.first_chunk().copied().map(of_sixteen)
}
