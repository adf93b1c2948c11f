//! The sending side of a layer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::letter::Letter;
use super::meter::{Meter, Path};
use super::{MOST_MESSAGES, MOST_PARTS, Scheme, SchemeError, Timing, coded};
use crate::engine::ControlPath;
use crate::memory::{Buffer, Slice};
use crate::send::{SendError, SendQp, SendStream};

/// Reasons why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// Too many messages wait. Try again later.
    #[error("too many messages wait")]
    Retry,
    /// It has no byte.
    #[error("nothing to send")]
    Empty,
    /// It has more than [`MOST_PARTS`] parts.
    #[error("the message has {parts} parts, and at most 1048576 may wait")]
    TooLong {
        /// Parts of the message.
        parts: usize,
    },
    /// The peer could not recover this message from what arrived, and gave up.
    #[error("the peer could not recover message {message}")]
    Undecodable {
        /// The message's number.
        message: u32,
    },
    /// The peer is gone, or the queue pair was closed.
    #[error("the queue pair has ended")]
    Ended,
}

/// A part that waits for its slots.
struct Waiting {
    message: u32,
    scheme: Arc<Scheme>,
    memory: Arc<Buffer>,
    start: usize,
    len: usize,
}

/// A part whose data was handed over.
struct Part {
    number: u32,
    stream: SendStream,
    from: Waiting,
    /// By chunk.
    chunks: Vec<Chunk>,
    /// When so many bytes have left, a chunk of it has; [`NONE_QUEUED`] if none waits to leave.
    next_end: u64,
    /// Parity that found no slot yet: no further part goes first.
    parity: Option<Slice>,
    /// True if chunks are repeated after a timeout.
    repeats: bool,
    /// The receiver is asked next after a timeout from here on, as long as timeouts are then.
    ask_from: Instant,
    done: bool,
}

#[derive(Clone, Copy)]
struct Chunk {
    there: bool,
    state: Leaving,
}

/// Stands for a part of which no chunk waits to leave.
const NONE_QUEUED: u64 = u64::MAX;

/// Where a chunk is, as far as the sender knows.
#[derive(Clone, Copy)]
enum Leaving {
    /// It has left when so many bytes have.
    Queued {
        end: u64,
    },
    Left(Instant),
    /// It is to be sent again.
    Lost,
}

/// Sends messages reliably, in order, on a queue pair of its own.
///
/// # Driver contract
/// Call [`Sending::poll`] often: at least several times in a round trip.
pub struct Sending {
    qp: SendQp,
    /// The scheme of messages that are taken from now on.
    scheme: Arc<Scheme>,
    meter: Meter,
    waiting: VecDeque<Waiting>,
    parts: VecDeque<Part>,
    /// Messages that are not acknowledged: number and parts left.
    messages: VecDeque<(u32, usize)>,
    next_message: u32,
    next_part: u32,
    /// Bytes handed over so far.
    queued: u64,
    /// Bytes handed over by the last poll.
    last_queued: u64,
    repeated: u64,
    /// The message that the peer gave up.
    failed: Option<u32>,
}

impl Sending {
    /// Makes a layer on a queue pair that nobody has sent on.
    ///
    /// # Errors
    /// [`SchemeError`] if parts do not fit into messages.
    pub fn new(qp: SendQp, scheme: Scheme, timing: Timing, now: Instant) -> Result<Self, SchemeError> {
        scheme.check(qp.shape())?;
        Ok(Sending {
            qp,
            scheme: Arc::new(scheme),
            meter: Meter::new(timing, now),
            waiting: VecDeque::new(),
            parts: VecDeque::new(),
            messages: VecDeque::new(),
            next_message: 0,
            next_part: 0,
            queued: 0,
            last_queued: 0,
            repeated: 0,
            failed: None,
        })
    }

    /// Takes a message, and returns its number.
    ///
    /// # Errors
    /// See [`TransferError`].
    pub fn send(&mut self, memory: &Arc<Buffer>) -> Result<u32, TransferError> {
        if self.messages.len() >= MOST_MESSAGES {
            return Err(TransferError::Retry);
        }
        if memory.is_empty() {
            return Err(TransferError::Empty);
        }
        let (message, mut start) = (self.next_message, 0);
        let lengths = self.scheme.parts(self.qp.shape(), memory.len());
        let parts = lengths.len();
        if parts > MOST_PARTS {
            return Err(TransferError::TooLong { parts });
        }
        if self.waiting.len() + parts > MOST_PARTS {
            return Err(TransferError::Retry);
        }
        for len in lengths {
            let scheme = Arc::clone(&self.scheme);
            self.waiting.push_back(Waiting { message, scheme, memory: Arc::clone(memory), start, len });
            start += len;
        }
        self.messages.push_back((message, parts));
        self.next_message = message.wrapping_add(1);
        Ok(message)
    }

    /// Uses `scheme` for messages that are taken from now on. The peer switches before the same
    /// message.
    ///
    /// # Errors
    /// [`SchemeError`] if parts do not fit into messages; the scheme stays.
    pub fn switch(&mut self, scheme: Scheme) -> Result<(), SchemeError> {
        scheme.check(self.qp.shape())?;
        self.scheme = Arc::new(scheme);
        Ok(())
    }

    /// Returns round trip and rate as they are measured.
    #[must_use]
    pub fn path(&self) -> Path {
        self.meter.path()
    }

    /// Returns true if the peer has all of every message.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns true if the peer has all of message `number`. Its memory is then free.
    #[must_use]
    pub fn is_done(&self, number: u32) -> bool {
        self.messages.iter().all(|(message, _)| *message != number)
    }

    /// Chunks that were sent again so far.
    #[must_use]
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Reads what the peer says, and sends what is due.
    ///
    /// # Errors
    /// [`TransferError::Ended`] if the peer is gone.
    /// [`TransferError::Undecodable`] from then on if the peer gave a message up.
    pub fn poll(&mut self, control: &ControlPath, now: Instant) -> Result<(), TransferError> {
        self.measure(now);
        while let Some(bytes) = control.receive() {
            // A letter that makes no sense is as good as lost.
            if let Some(letter) = Letter::decode(&bytes) {
                self.read(&letter, control, now);
            }
        }
        self.finish();
        if let Some(message) = self.failed {
            return Err(TransferError::Undecodable { message });
        }
        if control.has_ended() {
            return Err(TransferError::Ended);
        }
        self.meter.ping(control, !self.is_idle(), now);
        self.issue(now);
        self.repeat(control, now);
        Ok(())
    }

    /// Notes what has left since the last look.
    fn measure(&mut self, now: Instant) {
        let injected = self.qp.injected();
        // Something that was handed over by the last look still waits.
        self.meter.left(injected, injected < self.last_queued, now);
        self.last_queued = self.queued;
        for part in self.parts.iter_mut().filter(|part| part.next_end <= injected) {
            part.next_end = NONE_QUEUED;
            for chunk in &mut part.chunks {
                match chunk.state {
                    Leaving::Queued { end } if end <= injected => chunk.state = Leaving::Left(now),
                    Leaving::Queued { end } => part.next_end = part.next_end.min(end),
                    Leaving::Left(_) | Leaving::Lost => {}
                }
            }
        }
    }

    /// Returns when a part has left whose last byte is handed over now.
    fn leaves_at(&self, now: Instant) -> Instant {
        now + self.meter.timing().injection(self.queued.saturating_sub(self.qp.injected()))
    }

    fn read(&mut self, letter: &Letter, control: &ControlPath, now: Instant) {
        match letter {
            Letter::Ping { stamp, .. } => {
                // The next one measures as well.
                let _ = control.send(&Letter::Pong { stamp: *stamp }.encode());
            }
            Letter::Pong { stamp } => self.meter.pong(*stamp, now),
            Letter::Ask { .. } => {}
            Letter::Failed { part } => {
                let of = self.parts.iter().find(|known| known.number == *part);
                self.failed = self.failed.or(of.map(|part| part.from.message));
            }
            Letter::Done { part, below } => {
                let is_before = |number: u32| below.wrapping_sub(number).wrapping_sub(1) <= u32::MAX / 2;
                for known in &mut self.parts {
                    known.done |= known.number == *part || is_before(known.number);
                }
            }
            Letter::Report { part, nack, fallback, base, chunks } => {
                let Some(part) = self.parts.iter_mut().find(|known| known.number == *part) else {
                    return;
                };
                part.chunks.iter_mut().take(*base as usize).for_each(|chunk| chunk.there = true);
                part.repeats |= *fallback;
                let seen = chunks.iter().rposition(|there| *there).unwrap_or(0);
                let rtt = self.meter.timing().rtt;
                for (at, (chunk, there)) in
                    part.chunks.iter_mut().skip(*base as usize).zip(chunks).enumerate()
                {
                    chunk.there |= there;
                    // One that was sent again a moment ago may still be on its way.
                    let is_due = match chunk.state {
                        Leaving::Queued { .. } | Leaving::Lost => false,
                        Leaving::Left(left) => now.saturating_duration_since(left) >= rtt,
                    };
                    if is_due && (*nack && at < seen || *fallback) && !chunk.there {
                        chunk.state = Leaving::Lost;
                    }
                }
            }
        }
    }

    /// Forgets parts that the peer has.
    fn finish(&mut self) {
        let messages = &mut self.messages;
        self.parts.retain(|part| {
            let is_done = part.done && part.parity.is_none();
            if is_done
                && let Some(left) = messages.iter_mut().find(|(number, _)| *number == part.from.message)
            {
                left.1 -= 1;
            }
            !is_done
        });
        self.messages.retain(|(_, left)| *left > 0);
    }

    /// Hands over parts that have slot and credit, and their parity.
    fn issue(&mut self, now: Instant) {
        loop {
            if let Some(part) = self.parts.back_mut()
                && let Some(parity) = &part.parity
            {
                let bytes = parity.len() as u64;
                if self.qp.post(parity.clone(), 0, None, now).is_err() {
                    return;
                }
                part.parity = None;
                self.queued += bytes;
                let ask_from = self.leaves_at(now);
                if let Some(part) = self.parts.back_mut() {
                    part.ask_from = ask_from;
                }
            }
            if self.waiting.is_empty() {
                return;
            }
            let Ok(stream) = self.qp.stream(None, now) else {
                return;
            };
            if let Some(from) = self.waiting.pop_front() {
                self.begin(from, stream, now);
            }
        }
    }

    fn begin(&mut self, from: Waiting, stream: SendStream, now: Instant) {
        let chunk = self.qp.shape().chunk();
        let end = from.start + from.len;
        let data = from.memory.as_slice().get(from.start..end).unwrap_or_default();
        let code = from.scheme.code();
        let repeats = code.is_none();
        let parity = code.map(|code| coded::encode(code, data, chunk as usize).into());
        let mut end_of_chunk = self.queued;
        let mut chunks = Vec::new();
        for piece in data.chunks(chunk as usize) {
            end_of_chunk += piece.len() as u64;
            chunks.push(Chunk { there: false, state: Leaving::Queued { end: end_of_chunk } });
        }
        let (number, next_end) = (self.next_part, self.queued);
        let mut part =
            Part { number, stream, chunks, next_end, parity, repeats, ask_from: now, done: false, from };
        self.next_part = self.next_part.wrapping_add(1);
        let whole = Slice::new(&part.from.memory, part.from.start..end);
        if whole.is_some_and(|whole| part.stream.write(0, whole).is_ok()) {
            self.queued = end_of_chunk;
        } else {
            // The engine's queue is full: all of it goes as if it had been lost.
            part.repeats = true;
            part.chunks.iter_mut().for_each(|chunk| chunk.state = Leaving::Lost);
        }
        part.ask_from = self.leaves_at(now);
        self.parts.push_back(part);
    }

    /// Sends again what is due, and asks about parts of which nothing was heard.
    fn repeat(&mut self, control: &ControlPath, now: Instant) {
        let size = self.qp.shape().chunk() as usize;
        let rto = self.meter.timing().rto;
        for part in &mut self.parts {
            let repeated = if part.repeats { &mut part.chunks[..] } else { &mut [] };
            for (at, chunk) in repeated.iter_mut().enumerate() {
                let is_due = match chunk.state {
                    Leaving::Queued { .. } => false,
                    Leaving::Left(left) => now >= left + rto,
                    Leaving::Lost => true,
                };
                if chunk.there || !is_due {
                    continue;
                }
                let start = part.from.start + at * size;
                let end = (start + size).min(part.from.start + part.from.len);
                let Some(data) = Slice::new(&part.from.memory, start..end) else {
                    continue;
                };
                let bytes = data.len() as u64;
                match part.stream.write(at as u32, data) {
                    Ok(()) => {}
                    Err(SendError::Retry) => return,
                    Err(_) => continue,
                }
                self.repeated += 1;
                self.queued += bytes;
                chunk.state = Leaving::Queued { end: self.queued };
                part.next_end = part.next_end.min(self.queued);
            }
            if now >= part.ask_from + rto {
                part.ask_from = now;
                // Asked again if it is lost.
                let _ = control.send(&Letter::Ask { part: part.number }.encode());
            }
        }
    }
}
