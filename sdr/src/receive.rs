//! The receiving side: posts, handles, and the part that workers put packets in place with.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;

use crate::imm::PacketImm;
use crate::memory::{Buffer, Registry};
use crate::shape::Shape;
use crate::slot::{Pinned, Slot, Taken};
use crate::sync::{Acquire, AtomicBool, AtomicU32, AtomicU64, Relaxed, Release, SeqCst};

/// State that both sides of a queue pair share with the engine.
pub(crate) struct Peer {
    /// Receives that the peer posted, as far as we were told.
    pub(crate) posted: AtomicU32,
    /// Messages that the peer issued, as far as we know.
    pub(crate) issued: AtomicU32,
    /// True once the peer is gone or the queue pair was closed.
    pub(crate) ended: AtomicBool,
    /// Wakes the back end when the program has something for it.
    pub(crate) waker: OnceLock<Waker>,
}

impl Peer {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Peer {
            posted: AtomicU32::new(0),
            issued: AtomicU32::new(0),
            ended: AtomicBool::new(false),
            waker: OnceLock::new(),
        })
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Acquire)
    }

    /// Raises `count` to `to` if that is ahead of it by `most` at most. Returns false if it is not
    /// plausible.
    pub(crate) fn raise(count: &AtomicU32, to: u32, most: u32) -> bool {
        let mut old = count.load(Relaxed);
        loop {
            let ahead = to.wrapping_sub(old);
            if ahead > u32::MAX / 2 || ahead == 0 {
                return true;
            }
            if ahead > most {
                return false;
            }
            match count.compare_exchange(old, to, Release, Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
    }
}

/// Reasons to refuse a packet. A refused packet changed no bitmap and no buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// The packet was taken in before.
    #[error("duplicate")]
    Duplicate,
    /// Its message was completed, or its generation is not the slot's.
    #[error("late")]
    Late,
    /// Its id names no slot.
    #[error("no such slot")]
    Slot,
    /// It lies beyond the buffer, or is neither full nor the buffer's end.
    #[error("length")]
    Length,
    /// This side does not receive.
    #[error("this side does not receive")]
    Direction,
}

impl Refused {
    /// Every reason, in the order of [`Refused::index`].
    pub const ALL: [Refused; 5] =
        [Refused::Duplicate, Refused::Late, Refused::Slot, Refused::Length, Refused::Direction];

    /// The reason's place in [`Refused::ALL`], for an array of counters.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// A packet that was put in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// The message, counted from 0 and modulo 2^32.
    pub message: u32,
    /// The chunk that this packet finished, if it did.
    pub finished: Option<u32>,
}

pub(crate) struct Receiving {
    pub(crate) shape: Shape,
    generations: u32,
    slots: Box<[Slot]>,
    /// Receives posted so far.
    pub(crate) posted: AtomicU32,
    pub(crate) peer: Arc<Peer>,
    /// Slots whose handles are gone while workers might be inside, and the buffers of those that
    /// were dropped.
    orphans: Mutex<Vec<(u32, Option<Buffer>)>>,
    refused: [AtomicU64; Refused::ALL.len()],
    /// Makes buffers known to a device that writes to them by itself.
    registry: OnceLock<Arc<dyn Registry>>,
    /// True once that device has left all slots for good.
    device_left: AtomicBool,
}

impl Receiving {
    pub(crate) fn slot(&self, id: u32) -> Option<&Slot> {
        self.slots.get(id as usize)
    }

    /// Notes what a packet told beside its bytes.
    fn settle(&self, pinned: &Pinned<'_>, taken: Taken) -> Result<Placed, Refused> {
        match taken {
            Taken::Placed { chunk } => {
                let message = pinned.number;
                Peer::raise(&self.peer.issued, message.wrapping_add(1), self.shape.slots());
                Ok(Placed { message, finished: chunk })
            }
            Taken::Duplicate => Err(Refused::Duplicate),
            Taken::Length => Err(Refused::Length),
        }
    }

    /// Leaves slot `id` to be freed once no worker is inside.
    fn abandon(&self, id: u32, slot: &Slot, buffer: Option<Buffer>) {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner).push((id, buffer));
        self.reap(id, slot);
    }

    /// Frees slot `id` if its handle is gone and no worker is inside.
    fn reap(&self, id: u32, slot: &Slot) {
        let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.gate.is_vacant()
            && let Some(at) = orphans.iter().position(|(slot, _)| *slot == id)
        {
            orphans.swap_remove(at);
            slot.free.store(true, Release);
        }
    }
}

/// Puts packets in place. Workers have a clone each; none waits for another.
#[derive(Clone)]
pub struct Lander(pub(crate) Arc<Receiving>);

impl Lander {
    /// Takes in a packet that came by `generation` with immediate `imm`.
    ///
    /// # Errors
    /// [`Refused`]; nothing but a counter changed.
    pub fn land(&self, generation: u8, imm: u32, payload: &[u8]) -> Result<Placed, Refused> {
        self.place(generation, imm, payload).inspect_err(|reason| self.count(*reason))
    }

    /// Takes in a packet of `len` bytes that a device has put in place.
    ///
    /// It came by the queue pairs of `generation`. Without one, the key that it came with was that
    /// of the slot's message.
    ///
    /// # Errors
    /// [`Refused`]; nothing but a counter changed.
    #[cfg(feature = "verbs")]
    pub(crate) fn placed(&self, generation: Option<u32>, imm: u32, len: usize) -> Result<Placed, Refused> {
        let receiving = &*self.0;
        let PacketImm { id, offset, fragment } = PacketImm::decode(imm);
        let place = || {
            let slot = receiving.slot(id).ok_or(Refused::Slot)?;
            let of = |number| receiving.shape.generation(number, receiving.generations);
            let wanted = |number| generation.is_none_or(|generation| of(number) == generation);
            let pinned = slot.gate.enter(wanted).ok_or(Refused::Late)?;
            let taken = slot.take_placed(&receiving.shape, &pinned, (offset, fragment), len);
            receiving.settle(&pinned, taken)
        };
        place().inspect_err(|reason: &Refused| self.count(*reason))
    }

    /// Has buffers that are posted from now on made known to a device.
    #[cfg(feature = "verbs")]
    pub(crate) fn set_registry(&self, registry: Arc<dyn Registry>) {
        self.0.registry.get_or_init(|| registry);
    }

    /// Takes the device out of all slots. It writes nowhere any more.
    #[cfg(feature = "verbs")]
    pub(crate) fn device_leaves(&self) {
        self.0.device_left.store(true, SeqCst);
        self.0.slots.iter().for_each(Slot::device_leaves);
    }

    fn count(&self, reason: Refused) {
        self.0.refused.get(reason.index()).map(|count| count.fetch_add(1, Relaxed));
    }

    fn place(&self, generation: u8, imm: u32, payload: &[u8]) -> Result<Placed, Refused> {
        let receiving = &*self.0;
        let shape = &receiving.shape;
        let PacketImm { id, offset, fragment } = PacketImm::decode(imm);
        let slot = receiving.slot(id).ok_or(Refused::Slot)?;
        let wanted = |number| shape.generation(number, receiving.generations) == u32::from(generation);
        let pinned = slot.gate.enter(wanted).ok_or(Refused::Late)?;
        let taken = slot.take(shape, &pinned, (offset, fragment), payload);
        receiving.settle(&pinned, taken)
    }

    /// Packets refused so far for `reason`.
    #[must_use]
    pub fn refused(&self, reason: Refused) -> u64 {
        self.0.refused.get(reason.index()).map_or(0, |count| count.load(Relaxed))
    }
}

/// Reasons why a receive was not posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// No slot is free, or the peer has not issued what was posted before. Try again later.
    #[error("no message slot is free at the moment")]
    Retry,
    /// The buffer has no byte.
    #[error("the buffer is empty")]
    Empty,
    /// The buffer is larger than a message may be.
    #[error("the buffer has {len} bytes, and a message at most {most}")]
    TooLong {
        /// Bytes of the buffer.
        len: usize,
        /// Bytes of the largest message.
        most: u32,
    },
    /// The device does not take the buffer's memory.
    #[error("the device refuses the memory")]
    Device,
    /// The peer is gone, or the queue pair was closed.
    #[error("the queue pair has ended")]
    Ended,
}

/// A receive that was not posted, with its buffer.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unposted {
    /// The reason.
    pub error: PostError,
    /// The buffer, unchanged.
    pub buffer: Buffer,
}

/// The receiving side of a queue pair.
///
/// The n-th receive posted here gets the n-th message that the peer sends.
pub struct RecvQp(Arc<Receiving>);

impl RecvQp {
    /// Makes a receiving side and what workers need of it. `generations` is a power of two, 4 to
    /// 256.
    pub(crate) fn new(shape: Shape, generations: u32, peer: Arc<Peer>) -> Self {
        RecvQp(Arc::new(Receiving {
            shape,
            generations,
            slots: (0..shape.slots()).map(|_| Slot::new(&shape)).collect(),
            posted: AtomicU32::new(0),
            peer,
            orphans: Mutex::default(),
            refused: Default::default(),
            registry: OnceLock::new(),
            device_left: AtomicBool::new(false),
        }))
    }

    /// Returns a worker's part.
    #[must_use]
    pub fn lander(&self) -> Lander {
        Lander(Arc::clone(&self.0))
    }

    /// Returns the sizes of the queue pair.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// Returns how many receives were posted, modulo 2^32.
    #[must_use]
    pub fn posted(&self) -> u32 {
        self.0.posted.load(Relaxed)
    }

    /// Posts a receive into `buffer`, and gives the peer credit for one message.
    ///
    /// At most as many receives as there are slots are posted beyond what the peer has issued.
    /// So a receive that was completed without its message holds its place until the peer went past
    /// it.
    ///
    /// # Errors
    /// [`Unposted`] has the reason and the buffer.
    pub fn post(&mut self, buffer: Buffer) -> Result<RecvHandle, Unposted> {
        match self.slot_for(&buffer) {
            Err(error) => Err(Unposted { error, buffer }),
            Ok((number, id)) => {
                let receiving = &self.0;
                let device = match receiving.registry.get() {
                    None => 0,
                    Some(registry) => match registry.register(buffer.region()) {
                        Ok(device) => device,
                        Err(_) => return Err(Unposted { error: PostError::Device, buffer }),
                    },
                };
                if let Some(slot) = receiving.slot(id) {
                    slot.open(&receiving.shape, number, &buffer, device);
                    if receiving.device_left.load(SeqCst) {
                        slot.device_leaves();
                    }
                }
                receiving.posted.store(number.wrapping_add(1), Release);
                receiving.peer.wake();
                let live = Live { receiving: Arc::clone(receiving), id, buffer: Some(buffer) };
                Ok(RecvHandle { live, number })
            }
        }
    }

    fn slot_for(&self, buffer: &Buffer) -> Result<(u32, u32), PostError> {
        let receiving = &self.0;
        let shape = &receiving.shape;
        if receiving.peer.has_ended() {
            return Err(PostError::Ended);
        }
        if buffer.is_empty() {
            return Err(PostError::Empty);
        }
        if buffer.len() > shape.max_message() as usize {
            return Err(PostError::TooLong { len: buffer.len(), most: shape.max_message() });
        }
        let number = receiving.posted.load(Relaxed);
        let ahead = number.wrapping_sub(receiving.peer.issued.load(Acquire));
        // What the peer issued may be ahead of what was posted only if the peer is wrong.
        if ahead >= shape.slots() {
            return Err(PostError::Retry);
        }
        let id = shape.slot(number);
        let slot = receiving.slot(id).ok_or(PostError::Retry)?;
        if !slot.free.load(Acquire) {
            receiving.reap(id, slot);
        }
        if slot.free.load(Acquire) { Ok((number, id)) } else { Err(PostError::Retry) }
    }
}

/// A slot with its buffer, which goes to the orphans if it is dropped.
struct Live {
    receiving: Arc<Receiving>,
    id: u32,
    buffer: Option<Buffer>,
}

impl Live {
    fn slot(&self) -> Option<&Slot> {
        self.receiving.slot(self.id)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let (Some(buffer), Some(slot)) = (self.buffer.take(), self.receiving.slot(self.id)) else {
            return;
        };
        slot.gate.close();
        if self.receiving.registry.get().is_some() {
            self.receiving.peer.wake();
        }
        self.receiving.abandon(self.id, slot, Some(buffer));
    }
}

/// A posted receive. Its buffer fills while this lives.
///
/// `complete` takes it by value, so nothing can be asked of it afterwards:
///
/// ```compile_fail,E0382
/// fn twice(handle: sdr::RecvHandle) {
///     let closing = handle.complete();
///     handle.chunk(0);
/// #   drop(closing);
/// }
/// ```
///
/// A chunk is borrowed from the handle, so it cannot outlive `complete` either:
///
/// ```compile_fail,E0505
/// fn keep(handle: sdr::RecvHandle) -> usize {
///     let chunk = handle.chunk(0);
///     let closing = handle.complete();
/// #   drop(closing);
///     chunk.map_or(0, <[u8]>::len)
/// }
/// ```
pub struct RecvHandle {
    live: Live,
    number: u32,
}

impl RecvHandle {
    /// Returns the message's number, counted from 0 and modulo 2^32.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the bytes of the buffer.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.live.buffer.as_ref().map_or(0, |buffer| buffer.len() as u32)
    }

    /// Returns how many chunks the buffer has.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.live.receiving.shape.chunks(self.bytes())
    }

    /// Returns how many packets a full chunk has.
    #[must_use]
    pub fn packets_per_chunk(&self) -> u32 {
        self.live.receiving.shape.packets_per_chunk()
    }

    /// Returns true if all bytes of `chunk` are in place.
    #[must_use]
    pub fn has(&self, chunk: u32) -> bool {
        chunk < self.chunks() && self.live.slot().is_some_and(|slot| slot.bitmaps.chunk(chunk))
    }

    /// Returns the chunk bitmap.
    #[must_use]
    pub fn bitmap(&self) -> ChunkBitmap<'_> {
        ChunkBitmap(self)
    }

    /// Returns the bytes of `chunk` if all of them are in place. They do not change any more.
    #[must_use]
    pub fn chunk(&self, chunk: u32) -> Option<&[u8]> {
        if !self.has(chunk) {
            return None;
        }
        let size = self.live.receiving.shape.chunk();
        let range = span(chunk, size, self.bytes());
        self.live.buffer.as_ref()?.finished(range)
    }

    /// Returns which packets of `chunk` are in place, in order; empty if there is no such chunk.
    pub fn packets(&self, chunk: u32) -> impl Iterator<Item = bool> + '_ {
        let shape = &self.live.receiving.shape;
        let first = chunk.saturating_mul(shape.packets_per_chunk());
        let slot = self.live.slot();
        (first..first.saturating_add(shape.packets_of(chunk, self.bytes())))
            .map(move |packet| slot.is_some_and(|slot| slot.bitmaps.packet(packet)))
    }

    /// Returns how many packets came so far.
    #[must_use]
    pub fn arrived(&self) -> u32 {
        let packets = self.live.receiving.shape.packets(self.bytes());
        self.live.slot().map_or(0, |slot| slot.bitmaps.arrived(packets))
    }

    /// Returns the immediate, once packets with all eight fragments of it came.
    /// It is there at the latest when all chunks are.
    ///
    /// Where the peer sent none, this is 0.
    #[must_use]
    pub fn imm(&self) -> Option<u32> {
        self.live.slot()?.imm()
    }

    /// Returns true if the peer is gone. What is missing will not come.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.live.receiving.peer.has_ended()
    }

    /// Returns where the live bytes of the chunk bitmap stand, for programs in other languages.
    ///
    /// They are of this receive until [`RecvHandle::complete`], and are read atomically.
    /// They may not be written: a bit promises that nothing else touches its chunk.
    #[cfg(not(feature = "loom"))]
    #[must_use]
    pub fn live_bitmap(&self) -> Option<*const u8> {
        Some(self.live.slot()?.bitmaps.live()?.as_ptr().cast_const())
    }

    /// Completes the receive, at any time, also with chunks missing.
    ///
    /// From now on packets of this message are late, and change nothing.
    #[must_use = "the buffer comes from `Closing::poll`"]
    pub fn complete(self) -> Closing {
        if let Some(slot) = self.live.slot() {
            slot.gate.close();
        }
        if self.live.receiving.registry.get().is_some() {
            // The device is to leave.
            self.live.receiving.peer.wake();
        }
        let chunks = (0..self.chunks()).map(|_| false).collect();
        Closing { handle: self, chunks }
    }
}

/// Returns the bytes of chunk `chunk` of a buffer of `bytes` bytes.
fn span(chunk: u32, size: u32, bytes: u32) -> Range<usize> {
    let start = u64::from(chunk) * u64::from(size);
    let end = (start + u64::from(size)).min(u64::from(bytes));
    start.min(end) as usize..end as usize
}

/// A receive that is being completed: the back end may still be inside its buffer.
#[must_use = "the buffer comes from `Closing::poll`"]
pub struct Closing {
    handle: RecvHandle,
    chunks: Vec<bool>,
}

impl Closing {
    /// Returns the buffer, once the back end has let go of it.
    ///
    /// That is at once if all chunks are there and no device is inside: no worker writes then.
    ///
    /// # Errors
    /// The receive itself, to be polled again.
    pub fn poll(mut self) -> Result<Completed, Closing> {
        let Some(slot) = self.handle.live.slot() else {
            return Err(self);
        };
        let is_vacant = slot.gate.is_vacant();
        if !is_vacant && (slot.has_device() || !self.handle.bitmap().all()) {
            return Err(self);
        }
        // Asked only now: bits and fragments of the workers that have left are all visible.
        let imm = slot.imm();
        for (chunk, there) in (0..).zip(&mut self.chunks) {
            *there = self.handle.has(chunk);
        }
        let chunks = std::mem::take(&mut self.chunks);
        let Some(buffer) = self.handle.live.buffer.take() else {
            return Err(self);
        };
        let RecvHandle { live, number } = &self.handle;
        if let Some(slot) = live.slot() {
            if is_vacant {
                slot.free.store(true, Release);
            } else {
                live.receiving.abandon(live.id, slot, None);
            }
        }
        Ok(Completed { number: *number, buffer, chunks, imm })
    }
}

/// A completed receive: the buffer is the program's, and does not change any more.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed {
    /// The message's number.
    pub number: u32,
    /// The buffer.
    pub buffer: Buffer,
    /// By chunk: true if all of its bytes came. Bytes of other chunks are unspecified.
    pub chunks: Vec<bool>,
    /// The immediate, if all of it came.
    pub imm: Option<u32>,
}

impl Completed {
    /// Returns true if every chunk came.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.chunks.iter().all(|there| *there)
    }
}

/// The chunk bitmap of a receive, as it is at each look.
#[derive(Clone, Copy)]
pub struct ChunkBitmap<'a>(&'a RecvHandle);

impl ChunkBitmap<'_> {
    /// Returns true if all bytes of `chunk` are in place.
    #[must_use]
    pub fn get(&self, chunk: u32) -> bool {
        self.0.has(chunk)
    }

    /// Returns how many chunks there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.chunks()
    }

    /// Returns true if there is no chunk, which no receive has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if every chunk is in place.
    #[must_use]
    pub fn all(&self) -> bool {
        self.missing().next().is_none()
    }

    /// Returns the chunks that are not in place, ascending.
    pub fn missing(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).filter(|chunk| !self.get(*chunk))
    }
}

#[cfg(feature = "verbs")]
#[cfg(test)]
mod tests;
