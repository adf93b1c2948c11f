//! The sending side: admission, one-shot and streaming sends, and their local completion.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::imm::{IMM_PACKETS, PacketImm, fragment};
use crate::memory::{Registry, Slice};
use crate::receive::Peer;
use crate::shape::Shape;
use crate::sync::{Acquire, AtomicBool, AtomicU32, AtomicU64, Relaxed, Release};

/// Writes that wait for the engine at most.
const MOST_WRITES: usize = 4096;

/// Reasons why a send was refused. Nothing of it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No slot, no credit, or the id would come round too soon. Try again later.
    #[error("no message slot or no credit at the moment")]
    Retry,
    /// It has no byte.
    #[error("nothing to send")]
    Empty,
    /// It ends beyond the largest message.
    #[error("the write ends at byte {end} of a message, and a message has at most {most}")]
    TooLong {
        /// Where it ends.
        end: u64,
        /// Bytes of the largest message.
        most: u32,
    },
    /// The message has fewer than eight packets, or not all residues, so it cannot carry an
    /// immediate.
    #[error("an immediate needs packets at eight offsets in a row")]
    Immediate,
    /// The device does not take the memory.
    #[error("the device refuses the memory")]
    Device,
    /// The peer is gone, or the queue pair was closed.
    #[error("the queue pair has ended")]
    Ended,
}

/// Progress of a message, shared by program and engine.
struct Progress {
    /// Writes handed to the engine.
    queued: AtomicU32,
    /// Writes whose last packet left.
    injected: AtomicU32,
    /// Nanoseconds since the queue pair's start, at which the last packet left.
    last: AtomicU64,
    /// No further write will come.
    closed: AtomicBool,
}

impl Progress {
    fn is_done(&self) -> bool {
        self.closed.load(Acquire) && self.injected.load(Acquire) == self.queued.load(Acquire)
    }
}

/// One contiguous write of a message.
struct Write {
    number: u32,
    first_packet: u32,
    imm: u32,
    flying: Arc<Flying>,
}

/// The memory of a write, which each of its packets in flight holds.
pub(crate) struct Flying {
    pub(crate) data: Slice,
    /// By what a device knows the memory; 0 without one.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only devices ask"))]
    pub(crate) device: usize,
    progress: Arc<Progress>,
    start: Instant,
}

impl Flying {
    /// Notes that all of the write has left.
    pub(crate) fn finish(&self, now: Instant) {
        let last = now.saturating_duration_since(self.start).as_nanos();
        self.progress.last.fetch_max(u64::try_from(last).unwrap_or(u64::MAX), Relaxed);
        self.progress.injected.fetch_add(1, Release);
    }
}

struct Common {
    shape: Shape,
    peer: Arc<Peer>,
    issued: AtomicU32,
    /// Payload bytes that have left.
    injected: AtomicU64,
    writes: SyncSender<Write>,
    start: Instant,
    /// Makes memory known to a device that reads it by itself.
    registry: OnceLock<Arc<dyn Registry>>,
}

impl Common {
    /// Checks a write, and returns its first packet.
    fn check(&self, chunk: u32, data: &Slice) -> Result<u32, SendError> {
        if self.peer.has_ended() {
            return Err(SendError::Ended);
        }
        if data.is_empty() {
            return Err(SendError::Empty);
        }
        let end = u64::from(chunk) * u64::from(self.shape.chunk()) + data.len() as u64;
        let most = self.shape.max_message();
        if end > u64::from(most) {
            return Err(SendError::TooLong { end, most });
        }
        Ok(chunk * self.shape.packets_per_chunk())
    }

    fn hand_over(
        &self,
        number: u32,
        first_packet: u32,
        data: Slice,
        imm: u32,
        progress: &Arc<Progress>,
    ) -> Result<(), SendError> {
        let device = match self.registry.get() {
            None => 0,
            Some(registry) => registry.register(data.buffer().region()).map_err(|_| SendError::Device)?,
        };
        let flying = Flying { data, device, progress: Arc::clone(progress), start: self.start };
        let write = Write { number, first_packet, imm, flying: Arc::new(flying) };
        progress.queued.fetch_add(1, Release);
        let result = self.writes.try_send(write);
        if result.is_err() {
            progress.queued.fetch_sub(1, Release);
        }
        self.peer.wake();
        result.map_err(|error| match error {
            TrySendError::Full(_) => SendError::Retry,
            TrySendError::Disconnected(_) => SendError::Ended,
        })
    }
}

/// The sending side of a queue pair.
///
/// The n-th message lands in the n-th receive that the peer posts.
///
/// Three bounds apply, and each answers [`SendError::Retry`]: a credit, which the peer gives by
/// posting;
/// a slot, which the message `slots` before this one holds until it left; and time.
/// An id and generation come round only when all packets of their last use are dead.
pub struct SendQp {
    common: Arc<Common>,
    start: Instant,
    /// Messages in flight by slot.
    slots: Vec<Option<Arc<Progress>>>,
    /// The latest end of a message of each round of ids, by round modulo generations.
    rounds: Vec<Duration>,
    generations: u32,
    lifetime: Duration,
}

impl SendQp {
    /// Makes a sending side and the injector that its engine drives.
    pub(crate) fn new(
        shape: Shape,
        generations: u32,
        lifetime: Duration,
        peer: Arc<Peer>,
        start: Instant,
    ) -> (Self, Injector) {
        let (writes, waiting) = sync_channel(MOST_WRITES);
        let (issued, injected) = (AtomicU32::new(0), AtomicU64::new(0));
        let common =
            Arc::new(Common { shape, peer, issued, injected, writes, start, registry: OnceLock::new() });
        let injector = Injector { shape, generations, waiting, current: None, common: Arc::clone(&common) };
        let slots = (0..shape.slots()).map(|_| None).collect();
        let rounds = vec![Duration::ZERO; generations as usize];
        (SendQp { common, start, slots, rounds, generations, lifetime }, injector)
    }

    /// Returns the sizes of the queue pair.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.common.shape
    }

    /// Returns how many messages were issued, modulo 2^32.
    #[must_use]
    pub fn issued(&self) -> u32 {
        self.common.issued.load(Relaxed)
    }

    /// Returns how many payload bytes have left, of all that was ever handed over, in that order.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.common.injected.load(Acquire)
    }

    /// Sends `data` as one message, which starts at `chunk` of the peer's buffer.
    ///
    /// `data` ends with a full packet, or where the peer's buffer ends.
    /// A short packet elsewhere is refused there, since its bit would stand for bytes that are
    /// missing.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn post(
        &mut self,
        data: Slice,
        chunk: u32,
        imm: Option<u32>,
        now: Instant,
    ) -> Result<SendHandle, SendError> {
        let first_packet = self.common.check(chunk, &data)?;
        if imm.is_some() && self.common.shape.packets(data.len() as u32) < IMM_PACKETS {
            return Err(SendError::Immediate);
        }
        let number = self.admit(now)?;
        let progress = new_progress();
        progress.closed.store(true, Release);
        let imm = imm.unwrap_or(0);
        self.common.hand_over(number, first_packet, data, imm, &progress)?;
        self.issue(number, &progress);
        Ok(SendHandle { progress, peer: Arc::clone(&self.common.peer) })
    }

    /// Opens a message without data.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn stream(&mut self, imm: Option<u32>, now: Instant) -> Result<SendStream, SendError> {
        if self.common.peer.has_ended() {
            return Err(SendError::Ended);
        }
        let number = self.admit(now)?;
        let progress = new_progress();
        self.issue(number, &progress);
        Ok(SendStream { common: Arc::clone(&self.common), number, imm, residues: 0, progress })
    }

    /// Returns the number of the next message, if it may be issued.
    fn admit(&mut self, now: Instant) -> Result<u32, SendError> {
        let shape = self.common.shape;
        let number = self.issued();
        let credits = self.common.peer.posted.load(Acquire).wrapping_sub(number);
        if credits == 0 || credits > u32::MAX / 2 {
            return Err(SendError::Retry);
        }
        let round = number >> shape.slots_log();
        let place = self.slots.get_mut(shape.slot(number) as usize).ok_or(SendError::Retry)?;
        if let Some(before) = place {
            if !before.is_done() {
                return Err(SendError::Retry);
            }
            let end = Duration::from_nanos(before.last.load(Relaxed));
            let last_round = round.wrapping_sub(1) & (self.generations - 1);
            if let Some(latest) = self.rounds.get_mut(last_round as usize) {
                *latest = end.max(*latest);
            }
            *place = None;
        }
        // The peer posts at most `slots` beyond what it knows to be issued. So it cannot reuse an
        // id
        // and generation before the message one round less than all generations later was issued.
        let oldest = round.wrapping_add(1) & (self.generations - 1);
        let latest = self.rounds.get(oldest as usize).copied().unwrap_or_default();
        let is_used = number >= (self.generations - 1) << shape.slots_log() || latest > Duration::ZERO;
        if is_used && now.saturating_duration_since(self.start) < latest + self.lifetime {
            return Err(SendError::Retry);
        }
        Ok(number)
    }

    fn issue(&mut self, number: u32, progress: &Arc<Progress>) {
        let slot = self.common.shape.slot(number) as usize;
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(Arc::clone(progress));
        }
        self.common.issued.store(number.wrapping_add(1), Release);
    }
}

fn new_progress() -> Arc<Progress> {
    Arc::new(Progress {
        queued: AtomicU32::new(0),
        injected: AtomicU32::new(0),
        last: AtomicU64::new(0),
        closed: AtomicBool::new(false),
    })
}

/// A message to which chunks are written in any order and any number of times.
///
/// `end` takes it by value, so nothing can be written afterwards:
///
/// ```compile_fail,E0382
/// fn after(mut stream: sdr::SendStream) {
///     let handle = stream.end();
///     let _ = stream.write(0, vec![0; 64].into());
/// #   drop(handle);
/// }
/// ```
///
/// Dropped, it ends, and nobody learns whether its immediate was whole.
pub struct SendStream {
    common: Arc<Common>,
    number: u32,
    imm: Option<u32>,
    /// Fragments of the immediate that were sent.
    residues: u8,
    progress: Arc<Progress>,
}

impl SendStream {
    /// Returns the message's number, counted from 0 and modulo 2^32.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Writes `data` from `chunk` on: the first time, or again as a repair.
    ///
    /// `data` ends with a full packet, or where the peer's buffer ends.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn write(&mut self, chunk: u32, data: Slice) -> Result<(), SendError> {
        let first_packet = self.common.check(chunk, &data)?;
        let packets = self.common.shape.packets(data.len() as u32);
        let imm = self.imm.unwrap_or(0);
        self.common.hand_over(self.number, first_packet, data, imm, &self.progress)?;
        for packet in (first_packet..first_packet + packets).take(IMM_PACKETS as usize) {
            self.residues |= 1 << (packet % IMM_PACKETS);
        }
        Ok(())
    }

    /// Returns true if everything written so far has left.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.progress.injected.load(Acquire) == self.progress.queued.load(Acquire)
    }

    /// Returns true if the peer is gone.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.common.peer.has_ended()
    }

    /// Returns a handle of the message, which is done once the stream ended and all of it has left.
    #[must_use]
    pub fn handle(&self) -> SendHandle {
        SendHandle { progress: Arc::clone(&self.progress), peer: Arc::clone(&self.common.peer) }
    }

    /// Ends the message: no more chunks.
    ///
    /// # Errors
    /// [`SendError::Immediate`] if what was written does not carry the whole immediate. The message
    /// has ended.
    pub fn end(self) -> Result<SendHandle, SendError> {
        if self.imm.is_some() && self.residues != u8::MAX {
            return Err(SendError::Immediate);
        }
        Ok(self.handle())
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        self.progress.closed.store(true, Release);
    }
}

/// A send whose data was handed over.
pub struct SendHandle {
    progress: Arc<Progress>,
    peer: Arc<Peer>,
}

impl SendHandle {
    /// Returns true if all of it has left. It says nothing of delivery.
    ///
    /// # Errors
    /// [`SendError::Ended`] if the peer is gone and the rest will never leave.
    pub fn poll(&self) -> Result<bool, SendError> {
        match self.progress.is_done() {
            true => Ok(true),
            false if self.peer.has_ended() => Err(SendError::Ended),
            false => Ok(false),
        }
    }
}

/// A data packet whose payload was copied out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) generation: u8,
    pub(crate) imm: u32,
    pub(crate) len: usize,
}

/// Cuts writes into packets, first come first served.
pub(crate) struct Injector {
    shape: Shape,
    generations: u32,
    waiting: Receiver<Write>,
    current: Option<(Write, usize)>,
    common: Arc<Common>,
}

impl Injector {
    /// Returns how many messages were issued.
    pub(crate) fn issued(&self) -> u32 {
        self.common.issued.load(Acquire)
    }

    /// Returns true if a packet waits.
    pub(crate) fn is_waiting(&mut self) -> bool {
        if self.current.is_none() {
            self.current = match self.waiting.try_recv() {
                Ok(write) => Some((write, 0)),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
            };
        }
        self.current.is_some()
    }

    /// Writes the next packet's payload to `out`, which has room for a full packet.
    pub(crate) fn next(&mut self, now: Instant, out: &mut [u8]) -> Option<Packet> {
        let next = self.take()?;
        let payload = next.flying.data.as_bytes().get(next.start..next.start + next.len)?;
        out.get_mut(..payload.len())?.copy_from_slice(payload);
        if next.is_last {
            next.flying.finish(now);
        }
        let generation = self.shape.generation(next.number, self.generations) as u8;
        Some(Packet { generation, imm: next.imm, len: next.len })
    }

    /// Returns the next packet, whose bytes stay where they are.
    ///
    /// Who takes it finishes the write when its last packet in flight is gone.
    pub(crate) fn take(&mut self) -> Option<Outgoing> {
        if !self.is_waiting() {
            return None;
        }
        let (write, sent) = self.current.as_mut()?;
        let rest = write.flying.data.len().checked_sub(*sent)?;
        let (start, len) = (*sent, rest.min(self.shape.mtu() as usize));
        let offset = write.first_packet + self.shape.packets(start as u32);
        let fragment = fragment(write.imm, offset);
        let next = Outgoing {
            number: write.number,
            offset,
            imm: PacketImm { id: self.shape.slot(write.number), offset, fragment }.encode(),
            flying: Arc::clone(&write.flying),
            start,
            len,
            is_last: len == rest,
        };
        *sent += len;
        self.common.injected.fetch_add(len as u64, Release);
        if next.is_last {
            self.current = None;
        }
        Some(next)
    }

    /// Has memory that is handed over from now on made known to a device.
    #[cfg(feature = "verbs")]
    pub(crate) fn set_registry(&self, registry: Arc<dyn Registry>) {
        self.common.registry.get_or_init(|| registry);
    }
}

/// A packet that leaves: its payload is a part of the program's memory.
pub(crate) struct Outgoing {
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only devices ask"))]
    pub(crate) number: u32,
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only devices ask"))]
    pub(crate) offset: u32,
    pub(crate) imm: u32,
    pub(crate) flying: Arc<Flying>,
    /// Where the payload starts in the write.
    pub(crate) start: usize,
    pub(crate) len: usize,
    is_last: bool,
}
