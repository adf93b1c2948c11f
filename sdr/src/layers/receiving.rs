//! The receiving side of a layer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::letter::Letter;
use super::meter::{Meter, Path};
use super::{MOST_MESSAGES, MOST_PARTS, Scheme, SchemeError, Timing, coded};
use crate::engine::ControlPath;
use crate::memory::Buffer;
use crate::receive::{Closing, Completed, RecvHandle, RecvQp};

/// Reasons why a message is not awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// Too many are awaited. Try again later.
    #[error("too many messages are awaited")]
    Retry,
    /// It would have no byte.
    #[error("nothing to receive")]
    Empty,
    /// It would have more than [`MOST_PARTS`] parts.
    #[error("the message would have {parts} parts, and at most 1048576 may wait")]
    TooLong {
        /// Parts of the message.
        parts: usize,
    },
    /// Parity did not recover a part of this message although enough of it came.
    /// The layer has ended, and the peer is told. Earlier messages can still be taken.
    #[error("message {message} cannot be recovered from what arrived")]
    Undecodable {
        /// The message's number.
        message: u32,
    },
    /// The peer is gone, or the queue pair was closed.
    #[error("the queue pair has ended")]
    Ended,
}

/// A receive on its way to being completed.
enum Half {
    Open(RecvHandle),
    Closing(Closing),
    Done(Completed),
}

impl Half {
    /// Completes it as far as that goes.
    fn close(self) -> Self {
        let closing = match self {
            Half::Open(handle) => handle.complete(),
            Half::Closing(closing) => closing,
            Half::Done(done) => return Half::Done(done),
        };
        closing.poll().map_or_else(Half::Closing, Half::Done)
    }

    fn chunks(&self) -> Vec<bool> {
        match self {
            Half::Open(handle) => (0..handle.chunks()).map(|chunk| handle.has(chunk)).collect(),
            Half::Closing(_) => Vec::new(),
            Half::Done(done) => done.chunks.clone(),
        }
    }

    fn arrived(&self) -> u32 {
        if let Half::Open(handle) = self { handle.arrived() } else { 0 }
    }
}

/// Outcome for a part whose receives are to be completed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Close {
    /// The back end is still inside a buffer.
    Waits,
    Done,
    /// Parity did not recover it.
    Failed,
}

/// A DONE that is said again, in case that it was lost and none follows.
#[derive(Clone, Copy)]
struct Again {
    part: u32,
    at: Instant,
    left: u8,
}

/// Times that the last DONE is said again.
const DONE_AGAIN: u8 = 2;

/// A part that cannot be recovered, which ended the layer.
#[derive(Clone, Copy)]
struct Failure {
    part: u32,
    message: u32,
}

/// A part that waits to be posted.
struct Waiting {
    message: u32,
    scheme: Arc<Scheme>,
    place: usize,
    bytes: usize,
}

struct Part {
    number: u32,
    message: u32,
    scheme: Arc<Scheme>,
    place: usize,
    data: Half,
    parity: Option<Half>,
    /// Parity that found no slot yet.
    parity_waits: bool,
    posted: Instant,
    /// When its first packet was seen.
    first: Option<Instant>,
    fallback: bool,
    /// When it is reported next.
    report: Instant,
    /// Packets that were there at the last look.
    arrived: u32,
    /// When it was looked at.
    looked: Instant,
    /// When it is looked at again, although nothing came: a round trip later at the latest.
    look: Instant,
    /// By chunk: when it is taken to be lost.
    lost: Vec<Option<Instant>>,
}

struct Message {
    number: u32,
    /// Parts by their place, once they are there.
    parts: Vec<Option<Buffer>>,
}

/// Receives messages reliably, in order, on a queue pair of its own.
///
/// # Driver contract
/// Call [`Receiving::poll`] often: at least several times in a round trip.
pub struct Receiving {
    qp: RecvQp,
    /// The scheme of messages that are expected from now on.
    scheme: Arc<Scheme>,
    meter: Meter,
    waiting: VecDeque<Waiting>,
    parts: VecDeque<Part>,
    messages: VecDeque<Message>,
    next_message: u32,
    next_part: u32,
    decoded: u64,
    again: Option<Again>,
    failure: Option<Failure>,
}

impl Receiving {
    /// Makes a layer on a queue pair that nobody has posted to.
    ///
    /// # Errors
    /// [`SchemeError`] if parts do not fit into messages.
    pub fn new(qp: RecvQp, scheme: Scheme, timing: Timing, now: Instant) -> Result<Self, SchemeError> {
        scheme.check(qp.shape())?;
        Ok(Receiving {
            qp,
            scheme: Arc::new(scheme),
            meter: Meter::new(timing, now),
            waiting: VecDeque::new(),
            parts: VecDeque::new(),
            messages: VecDeque::new(),
            next_message: 0,
            next_part: 0,
            decoded: 0,
            again: None,
            failure: None,
        })
    }

    /// Awaits a message of `bytes` bytes, as long as the peer sends it. Returns its number.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub fn expect(&mut self, bytes: usize) -> Result<u32, ReceiveError> {
        if self.messages.len() >= MOST_MESSAGES {
            return Err(ReceiveError::Retry);
        }
        if bytes == 0 {
            return Err(ReceiveError::Empty);
        }
        let number = self.next_message;
        let lengths = self.scheme.parts(self.qp.shape(), bytes);
        let parts = lengths.len();
        if parts > MOST_PARTS {
            return Err(ReceiveError::TooLong { parts });
        }
        if self.waiting.len() + parts > MOST_PARTS {
            return Err(ReceiveError::Retry);
        }
        let scheme = &self.scheme;
        self.waiting.extend(lengths.enumerate().map(|(place, bytes)| Waiting {
            message: number,
            scheme: Arc::clone(scheme),
            place,
            bytes,
        }));
        self.messages.push_back(Message { number, parts: (0..parts).map(|_| None).collect() });
        self.next_message = number.wrapping_add(1);
        Ok(number)
    }

    /// Uses `scheme` for messages that are expected from now on. The peer switches before the same
    /// message.
    ///
    /// # Errors
    /// [`SchemeError`] if parts do not fit into messages; the scheme stays.
    pub fn switch(&mut self, scheme: Scheme) -> Result<(), SchemeError> {
        scheme.check(self.qp.shape())?;
        self.scheme = Arc::new(scheme);
        Ok(())
    }

    /// Returns the round trip as it is measured, and the rate as the sender tells it.
    #[must_use]
    pub fn path(&self) -> Path {
        self.meter.path()
    }

    /// Returns the next message, once all of it is there.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        self.messages.front()?.parts.iter().all(Option::is_some).then_some(())?;
        let mut parts = self.messages.pop_front()?.parts.into_iter().flatten();
        let mut bytes = parts.next()?.into_vec();
        for part in parts {
            bytes.extend_from_slice(part.as_slice());
        }
        Some(bytes)
    }

    /// Parts that parity made whole so far.
    #[must_use]
    pub fn decoded(&self) -> u64 {
        self.decoded
    }

    /// Posts what has a slot, looks at the bitmaps, and tells the peer.
    ///
    /// # Errors
    /// [`ReceiveError::Ended`] if the peer is gone and something is still missing.
    /// [`ReceiveError::Undecodable`] from then on if a part cannot be recovered.
    pub fn poll(&mut self, control: &ControlPath, now: Instant) -> Result<(), ReceiveError> {
        if let Some(failure) = self.failure {
            return Err(failure.tell_again(control));
        }
        self.post(now);
        while let Some(bytes) = control.receive() {
            match Letter::decode(&bytes) {
                Some(Letter::Ask { part }) => self.answer(part, control, now),
                Some(Letter::Ping { stamp, rate }) => {
                    self.meter.peer_rate(rate);
                    // The next one measures as well.
                    let _ = control.send(&Letter::Pong { stamp }.encode());
                }
                Some(Letter::Pong { stamp }) => self.meter.pong(stamp, now),
                // A letter that makes no sense here is as good as lost.
                _ => {}
            }
        }
        self.meter.ping(control, !self.parts.is_empty(), now);
        let mut parts = std::mem::take(&mut self.parts);
        let mut finished = Vec::new();
        parts.retain_mut(|part| match self.advance(part, control, now) {
            Close::Waits => true,
            Close::Done => {
                finished.push(part.number);
                false
            }
            Close::Failed => false,
        });
        self.parts = parts;
        self.tell_finished(&finished, control, now);
        if let Some(failure) = self.failure {
            return Err(failure.error());
        }
        let is_complete = self.parts.is_empty() && self.waiting.is_empty();
        if control.has_ended() && !is_complete { Err(ReceiveError::Ended) } else { Ok(()) }
    }

    /// Says what is known of a part that the peer asks about.
    fn answer(&mut self, number: u32, control: &ControlPath, now: Instant) {
        let is_posted = self.next_part.wrapping_sub(number).wrapping_sub(1) <= u32::MAX / 2;
        match self.parts.iter_mut().find(|part| part.number == number) {
            Some(part) => (part.report, part.look) = (now, now),
            // Asked again if the answer is lost.
            None if is_posted => self.tell_done(number, control),
            None => {}
        }
    }

    /// Posts receives in the order in which the peer sends: data and parity of each part.
    fn post(&mut self, now: Instant) {
        loop {
            if let Some(part) = self.parts.back_mut()
                && part.parity_waits
                && let Some(code) = part.scheme.code()
            {
                let bytes = code.m() * self.qp.shape().chunk() as usize;
                let Ok(handle) = self.qp.post(Buffer::zeroed(bytes)) else {
                    return;
                };
                part.parity = Some(Half::Open(handle));
                part.parity_waits = false;
                part.look = now;
            }
            let Some(bytes) = self.waiting.front().map(|waiting| waiting.bytes) else {
                return;
            };
            let Ok(handle) = self.qp.post(Buffer::zeroed(bytes)) else {
                return;
            };
            let Some(Waiting { message, scheme, place, .. }) = self.waiting.pop_front() else {
                return;
            };
            let chunks = handle.chunks() as usize;
            self.parts.push_back(Part {
                number: self.next_part,
                message,
                place,
                data: Half::Open(handle),
                parity: None,
                parity_waits: scheme.code().is_some(),
                posted: now,
                first: None,
                fallback: false,
                report: now + self.meter.timing().report(),
                arrived: 0,
                looked: now,
                look: now,
                lost: vec![None; chunks],
                scheme,
            });
            self.next_part = self.next_part.wrapping_add(1);
        }
    }

    /// Brings a part on.
    fn advance(&mut self, part: &mut Part, control: &ControlPath, now: Instant) -> Close {
        if let Half::Open(_) = part.data {
            let arrived = part.data.arrived() + part.parity.as_ref().map_or(0, Half::arrived);
            // Timers follow what is measured, so none is waited for in one piece.
            let look = part.look.min(part.looked + self.meter.timing().rtt);
            if arrived == part.arrived && now < look {
                return Close::Waits;
            }
            (part.arrived, part.looked) = (arrived, now);
            let (data, parity) = (part.data.chunks(), part.parity.as_ref().map(Half::chunks));
            if part.parity_waits || !suffices(&part.scheme, &data, parity.as_deref().unwrap_or_default()) {
                self.tell(part, &data, control, now);
                return Close::Waits;
            }
        }
        let close = self.close(part);
        if close == Close::Failed {
            self.failure.get_or_insert(Failure { part: part.number, message: part.message });
            // Asked for again if it is lost.
            let _ = control.send(&Letter::Failed { part: part.number }.encode());
        }
        close
    }

    /// Tells the peer that parts are there, and says the last one again later.
    fn tell_finished(&mut self, finished: &[u32], control: &ControlPath, now: Instant) {
        let pause = self.meter.timing().report();
        finished.iter().for_each(|part| self.tell_done(*part, control));
        if let Some(part) = finished.last().copied() {
            self.again = Some(Again { part, at: now + pause, left: DONE_AGAIN });
        } else if let Some(again) = self.again.filter(|again| now >= again.at) {
            self.tell_done(again.part, control);
            let left = again.left - 1;
            self.again = (left > 0).then_some(Again { at: now + pause, left, ..again });
        }
    }

    fn tell_done(&self, part: u32, control: &ControlPath) {
        let below = self.parts.front().map_or(self.next_part, |part| part.number);
        // Said again, and asked for if that is lost too.
        let _ = control.send(&Letter::Done { part, below }.encode());
    }

    /// Completes the part's receives, and recovers what is missing.
    fn close(&mut self, part: &mut Part) -> Close {
        let Some(message) = self.messages.iter_mut().find(|message| message.number == part.message) else {
            return Close::Done;
        };
        replace(&mut part.data);
        part.parity.as_mut().map(replace);
        if part.parity.as_ref().is_some_and(|parity| !matches!(parity, Half::Done(_))) {
            return Close::Waits;
        }
        let Half::Done(data) = &mut part.data else {
            return Close::Waits;
        };
        if !data.is_whole() {
            let (Some(code), Some(Half::Done(parity))) = (part.scheme.code(), &part.parity) else {
                return Close::Failed;
            };
            let chunk = self.qp.shape().chunk() as usize;
            let there = std::mem::take(&mut data.chunks);
            let parity = (parity.buffer.as_slice(), &parity.chunks[..]);
            // `suffices` was asked before, but whether the bytes make sense shows only now.
            if !coded::decode(code, (data.buffer.as_mut_slice(), &there), parity, chunk) {
                return Close::Failed;
            }
            self.decoded += 1;
        }
        let buffer = std::mem::replace(&mut data.buffer, Buffer::zeroed(0));
        if let Some(place) = message.parts.get_mut(part.place) {
            *place = Some(buffer);
        }
        Close::Done
    }

    /// Reports a part that is not complete: at intervals, on a loss, and after the fallback
    /// timeout.
    fn tell(&self, part: &mut Part, data: &[bool], control: &ControlPath, now: Instant) {
        let arrived = part.arrived;
        if arrived > 0 && part.first.is_none() {
            part.first = Some(now);
        }
        let timing = self.meter.timing();
        let code = part.scheme.code();
        let mut fallback_at = None;
        if let Some(code) = code.filter(|_| !part.fallback) {
            let bytes = (data.len() + code.m()) as u64 * u64::from(self.qp.shape().chunk());
            let timeout = timing.injection(bytes) + timing.slack;
            let at = part.posted + timing.global + timeout;
            let at = part.first.map_or(at, |first| at.min(first + timeout));
            fallback_at = Some(at);
            if now >= at {
                part.fallback = true;
                part.report = now;
            }
        }
        let nack = matches!(*part.scheme, Scheme::SrNack) || part.fallback;
        let repeats = part.fallback || code.is_none() && arrived > 0;
        let (is_lost, loss_at) = if nack { finds_losses(part, data, &timing, now) } else { (false, None) };
        let is_due = is_lost || now >= part.report && repeats;
        if is_due {
            part.report = now + timing.report();
            let letter = Letter::report(part.number, nack, part.fallback, data);
            // The next one says the same.
            let _ = control.send(&letter.encode());
        }
        let report_at = repeats.then_some(part.report);
        let next = [fallback_at.filter(|_| !part.fallback), report_at, loss_at].into_iter().flatten().min();
        part.look = next.unwrap_or(now + timing.rtt);
    }
}

/// Returns true if a chunk has been overtaken for long enough, and when the next one will be due.
fn finds_losses(part: &mut Part, data: &[bool], timing: &Timing, now: Instant) -> (bool, Option<Instant>) {
    let Some(seen) = data.iter().rposition(|there| *there) else {
        return (false, None);
    };
    let (mut found, mut next) = (false, None::<Instant>);
    for (lost, there) in part.lost.iter_mut().zip(data).take(seen) {
        let due = *lost.get_or_insert(now + timing.reorder);
        if !there && now >= due {
            found = true;
            // Its repetition takes a round trip.
            *lost = Some(now + timing.rtt + timing.rtt / 2);
        }
        if let (false, Some(due)) = (there, *lost) {
            next = Some(next.map_or(due, |next| next.min(due)));
        }
    }
    (found, next)
}

impl Failure {
    fn error(self) -> ReceiveError {
        ReceiveError::Undecodable { message: self.message }
    }

    /// Tells the peer again if it asks, and returns the error.
    fn tell_again(self, control: &ControlPath) -> ReceiveError {
        while let Some(bytes) = control.receive() {
            if let Some(Letter::Ask { .. }) = Letter::decode(&bytes) {
                // Asked again if it is lost.
                let _ = control.send(&Letter::Failed { part: self.part }.encode());
            }
        }
        self.error()
    }
}

/// Returns true if a part is there, or can be recovered.
fn suffices(scheme: &Scheme, data: &[bool], parity: &[bool]) -> bool {
    let has = |chunks: &[bool], at: usize| chunks.get(at).copied().unwrap_or(false);
    data.iter().all(|there| *there)
        || scheme
            .code()
            .is_some_and(|code| code.shortfall(data.len(), |at| has(data, at), |at| has(parity, at)) == 0)
}

/// Completes a half as far as that goes.
fn replace(half: &mut Half) {
    let open = Half::Done(Completed { number: 0, buffer: Buffer::zeroed(0), chunks: Vec::new(), imm: None });
    *half = std::mem::replace(half, open).close();
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use fec::Code;

    use super::*;
    use crate::blob::{BackEnd, Blob};
    use crate::layers::{Sending, TransferError};
    use crate::{Connected, QpAttr, connect, max_datagram};

    /// Hands everything over that waits, from one side to the other.
    fn exchange(from: &mut Connected, to: &mut Connected, attr: &QpAttr, now: Instant) {
        let mut out = vec![0; max_datagram(attr)];
        while let Some(packet) = from.engine.poll_transmit(now, &mut out) {
            to.engine.handle(&out[..packet.len], now).unwrap();
        }
    }

    /// The last word that a message is there may be lost: the sender learns it long before it asks.
    #[test]
    fn a_lost_done_costs_no_timeout() {
        let attr = QpAttr { chunk_log: 10, ..QpAttr::default() };
        #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
        let mut now = Instant::now();
        let start = now;
        let blob = Blob::new(attr, BackEnd::None, Vec::new()).unwrap();
        let [mut near, mut far] = [0, 1].map(|_| connect(&blob, &blob, 0, now).unwrap());
        let timing = Timing::new(attr.rtt, attr.rate);
        let mut sending = Sending::new(near.send.take().unwrap(), Scheme::SrRto, timing, now).unwrap();
        let mut receiving = Receiving::new(far.receive.take().unwrap(), Scheme::SrRto, timing, now).unwrap();
        let messages = [0, 1].map(|_| {
            receiving.expect(4096).unwrap();
            sending.send(&Arc::new(Buffer::zeroed(4096))).unwrap()
        });
        receiving.poll(&far.control, now).unwrap();
        exchange(&mut far, &mut near, &attr, now);
        sending.poll(&near.control, now).unwrap();
        exchange(&mut near, &mut far, &attr, now);
        receiving.poll(&far.control, now).unwrap();
        assert!(receiving.take().is_some() && receiving.take().is_some());
        // All that the receiver said is lost.
        let mut out = vec![0; max_datagram(&attr)];
        while far.engine.poll_transmit(now, &mut out).is_some() {}
        while !messages.iter().all(|message| sending.is_done(*message)) {
            now += timing.rtt / 16;
            assert!(now < start + timing.rtt, "it is asked for after {:?} only", timing.rto);
            receiving.poll(&far.control, now).unwrap();
            exchange(&mut far, &mut near, &attr, now);
            sending.poll(&near.control, now).unwrap();
        }
    }

    /// The bits said that parity suffices, and decoding refuses: both programs learn it.
    #[test]
    fn a_part_that_cannot_be_decoded_ends_both_layers_in_an_error() {
        let attr = QpAttr { chunk_log: 10, ..QpAttr::default() };
        #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
        let mut now = Instant::now();
        let blob = Blob::new(attr, BackEnd::None, Vec::new()).unwrap();
        let [mut near, mut far] = [0, 1].map(|_| connect(&blob, &blob, 0, now).unwrap());
        let scheme = Scheme::Ec(Code::mds(4, 2).unwrap());
        let timing = Timing::new(attr.rtt, attr.rate);
        let mut sending = Sending::new(near.send.take().unwrap(), scheme.clone(), timing, now).unwrap();
        let mut receiving = Receiving::new(far.receive.take().unwrap(), scheme, timing, now).unwrap();
        let message = receiving.expect(4096).unwrap();
        sending.send(&Arc::new(Buffer::zeroed(4096))).unwrap();
        receiving.poll(&far.control, now).unwrap();
        exchange(&mut far, &mut near, &attr, now);
        sending.poll(&near.control, now).unwrap();
        exchange(&mut near, &mut far, &attr, now);
        // As if three chunks and both parities had turned out not to be there.
        let done = |chunks: &[bool]| {
            let (buffer, chunks) = (Buffer::zeroed(chunks.len() << 10), chunks.to_vec());
            Half::Done(Completed { number: 0, buffer, chunks, imm: None })
        };
        let part = receiving.parts.front_mut().unwrap();
        part.data = done(&[true, false, false, false]);
        part.parity = Some(done(&[false, false]));
        for _ in 0..3 {
            assert_eq!(receiving.poll(&far.control, now), Err(ReceiveError::Undecodable { message }));
            assert_eq!(receiving.take(), None);
        }
        // The first word of it is lost, and the sender asks.
        let mut out = vec![0; max_datagram(&attr)];
        while far.engine.poll_transmit(now, &mut out).is_some() {}
        assert_eq!(sending.poll(&near.control, now), Ok(()));
        now += timing.rto * 2 + Duration::from_millis(1);
        sending.poll(&near.control, now).unwrap();
        exchange(&mut near, &mut far, &attr, now);
        let _ = receiving.poll(&far.control, now);
        exchange(&mut far, &mut near, &attr, now);
        for _ in 0..3 {
            assert_eq!(sending.poll(&near.control, now), Err(TransferError::Undecodable { message }));
            assert!(!sending.is_done(message));
        }
    }
}
