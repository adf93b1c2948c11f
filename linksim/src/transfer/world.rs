//! The machines and what happens to them.
//!
//! It drives one stream below `transport::Connection`.
//! A transfer has one lane, one class and a known MTU, so nothing of that would be exercised.

use std::time::{Duration, Instant};

use reliability::pacing::Pacer;
use reliability::stream::{Receiver, ReceiverConfig, Scheme, Sender, SenderConfig, StreamId};

use super::load::Load;
use super::record::Form;
use super::replay::Replay;
use super::way::{Way, nanos};
use super::{Failure, Outcome, Transfer};
use crate::impair::{LinkSpec, Loss};

const STREAM: StreamId = StreamId(1);
/// Records are pushed until this many packets wait, whenever fewer than a quarter of it do: never
/// so few that the sender takes the message to be over, and few enough to stay in a cache.
const BACKLOG: usize = 64;
/// Bytes that may leave at once after a pause: what a gateway grants at least.
const BURST: usize = 64 << 10;
/// Copies that the receiver may keep for decoding, at least, as bytes in the core.
const DECODE_BUFFER: usize = 64 << 20;
/// Nothing completes for so long, and for a hundred times what it should take: it never will.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Longer than any run: the receiver never takes a gap for a loss.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// Times in nanoseconds since `origin`.
pub(super) struct World {
    form: Form,
    origin: Instant,
    /// Time within which whatever is due happens at its end.
    step: u64,
    at: u64,
    now: Instant,
    sender: Sender,
    receiver: Receiver,
    pacer: Pacer,
    forward: Way,
    backward: Way,
    load: Load,
    /// The sender has something to send, as far as known.
    busy: bool,
    sender_due: u64,
    receiver_due: u64,
    /// Message bytes in the longest record.
    longest: usize,
    /// Backlog in bytes below which records are pushed, and up to which.
    backlog: [usize; 2],
    unrepaired: bool,
    patience: u64,
}

impl World {
    pub(super) fn new(transfer: &Transfer, form: Form) -> Result<Self, Failure> {
        let origin = origin();
        let step = (transfer.rtt().as_nanos() as u64 / 1000).clamp(1, 1000);
        let max_packet = form.max_packet(transfer.packet);
        let (sender, receiver) = configs(transfer, max_packet);
        let replay = Replay::new(transfer.trace.iter().copied(), transfer.seed ^ 0x7ace);
        let loss = if replay.is_some() { Loss::None } else { transfer.forward.loss };
        let link = |spec: LinkSpec| LinkSpec {
            rate: Some(transfer.rate),
            overhead: transfer.overhead as u32,
            ..spec
        };
        let forward = LinkSpec { loss, ..link(transfer.forward) };
        let report_len = transfer.packet + super::record::HEADERS;
        let packet_time = packet_time(transfer);
        let bucket = BURST.max((2 * u128::from(step) * u128::from(transfer.rate) / 8_000_000_000) as usize);
        Ok(Self {
            form,
            origin,
            step,
            at: 0,
            now: origin,
            sender: told(Sender::new(sender, origin), transfer),
            receiver: Receiver::new(receiver, origin),
            pacer: Pacer::new(transfer.rate, bucket, transfer.overhead, origin),
            forward: Way::new(forward, replay, packet_time, max_packet, transfer.seed, origin),
            backward: Way::new(
                link(transfer.backward),
                None,
                packet_time,
                report_len,
                transfer.seed ^ 0x5eed,
                origin,
            ),
            load: Load::new(transfer, form)?,
            busy: true,
            sender_due: u64::MAX,
            receiver_due: u64::MAX,
            longest: transfer.packet.min(transfer.size as usize),
            backlog: [BACKLOG / 4, BACKLOG].map(|packets| packets * max_packet),
            unrepaired: transfer.repair.scheme == Scheme::None,
            patience: (transfer.ideal().saturating_mul(100) + PATIENCE).as_nanos() as u64,
        })
    }

    pub(super) fn run(mut self, progress: &mut dyn FnMut(u64)) -> Result<Outcome, Failure> {
        let (mut done, mut last) = (0, 0);
        loop {
            self.turn()?;
            if self.load.done > done {
                (done, last) = (self.load.done, self.at);
                progress(done);
            }
            if self.load.is_over() {
                break;
            }
            let next = self.next().filter(|_| self.at < last + self.patience);
            let stuck = Failure::Stuck { at: Duration::from_nanos(self.at), done };
            self.at = next.ok_or(stuck)?.max(self.at).next_multiple_of(self.step);
            self.now = self.origin + Duration::from_nanos(self.at);
        }
        Ok(Outcome {
            completion: self.load.completion,
            delivery: self.load.delivery,
            lost: self.load.lost,
            repaired: self.load.repaired,
            bytes: self.load.bytes,
            sent: self.sender.stats().clone(),
            received: self.receiver.stats().clone(),
            forward: self.forward.stats(),
            backward: self.backward.stats(),
            elapsed: Duration::from_nanos(self.at),
            peak_messages: self.load.peak,
        })
    }

    /// Everything that is due now.
    fn turn(&mut self) -> Result<(), Failure> {
        let arrived = self.arrive()?;
        if self.receiver_due <= self.at {
            self.receiver.handle_timeout(self.now);
        }
        if arrived || self.receiver_due <= self.at {
            self.report();
            self.receiver_due = self.due(self.receiver.next_timeout());
        }
        let heard = self.hear()?;
        let timed_out = self.sender_due <= self.at;
        if timed_out {
            self.sender.handle_timeout(self.now);
        }
        if heard {
            self.load.acknowledge(&self.sender, self.at);
        }
        self.busy |= heard || timed_out;
        let sent = self.transmit();
        let mut more = sent && self.unrepaired;
        while more {
            // What is sent is done with, so the next message may begin.
            self.load.acknowledge(&self.sender, self.at);
            more = self.transmit();
        }
        if self.unrepaired {
            self.load.retire(self.at);
        }
        if heard || timed_out || sent {
            self.sender_due = self.due(self.sender.next_timeout());
        }
        Ok(())
    }

    /// The receiver takes what comes out of the link.
    fn arrive(&mut self) -> Result<bool, Failure> {
        let mut arrived = false;
        while let Some((slot, len)) = self.forward.receive(self.at) {
            let (load, at) = (&mut self.load, self.at);
            let bytes = self.forward.bytes(slot).get(..len).unwrap_or_default();
            self.receiver.handle_packet(bytes, self.now, &mut |record| load.deliver(record, at))?;
            self.forward.free(slot);
            arrived = true;
        }
        Ok(arrived)
    }

    /// The sender takes what comes back.
    fn hear(&mut self) -> Result<bool, Failure> {
        let mut heard = false;
        while let Some((slot, len)) = self.backward.receive(self.at) {
            let bytes = self.backward.bytes(slot).get(..len).unwrap_or_default();
            self.sender.handle_report(bytes, self.now)?;
            self.backward.free(slot);
            heard = true;
        }
        Ok(heard)
    }

    fn report(&mut self) {
        loop {
            let slot = self.backward.slot();
            match self.receiver.poll_report(self.now, self.backward.bytes(slot)) {
                Some(len) => self.backward.send(slot, len, len, self.now),
                None => return self.backward.free(slot),
            }
        }
    }

    /// Sends what the pacer lets go; whether there was anything.
    fn transmit(&mut self) -> bool {
        let mut sent = false;
        let [low, high] = self.backlog;
        if self.sender.backlog() < low {
            let before = self.sender.backlog();
            self.load.push(&mut self.sender, high, self.at, self.now);
            self.busy |= self.sender.backlog() > before;
        }
        while self.busy && self.pacer.ready(self.now) {
            let slot = self.forward.slot();
            let Some(transmit) = self.sender.poll_transmit(self.now, self.forward.bytes(slot)) else {
                self.forward.free(slot);
                self.busy = false;
                break;
            };
            let wire = self.form.wire_len(transmit, self.forward.bytes(slot), self.longest);
            self.pacer.consume(wire, self.now);
            self.forward.send(slot, transmit.len, wire, self.now);
            sent = true;
            if self.sender.backlog() < low {
                self.load.push(&mut self.sender, high, self.at, self.now);
            }
        }
        sent
    }

    /// When something happens next.
    fn next(&self) -> Option<u64> {
        let paced = self.busy.then(|| nanos(self.origin, self.pacer.next_ready()));
        let next = [
            self.forward.next(),
            self.backward.next(),
            paced,
            self.load.next_arrival(self.at),
            self.load.next_timeout(),
        ];
        let due = self.sender_due.min(self.receiver_due);
        Some(next.into_iter().flatten().fold(due, u64::min)).filter(|next| *next < u64::MAX)
    }

    fn due(&self, timeout: Option<Instant>) -> u64 {
        timeout.map_or(u64::MAX, |timeout| nanos(self.origin, timeout))
    }
}

fn configs(transfer: &Transfer, max_packet: usize) -> (SenderConfig, ReceiverConfig) {
    let window = transfer.window.unwrap_or_else(|| window(transfer));
    let sender = SenderConfig {
        scheme: scheme(transfer),
        max_record: transfer.packet,
        window,
        max_backlog: 2 * BACKLOG * max_packet,
        max_buffered: usize::MAX / 4,
        rtt_hint: transfer.rtt(),
        flush: transfer.flush,
        rate: Some(rate(transfer, max_packet)),
        ..SenderConfig::new(STREAM, max_packet)
    };
    let receiver = ReceiverConfig {
        max_record: transfer.packet,
        window,
        rtt_hint: transfer.rtt(),
        join_buffer: window.saturating_mul(max_packet),
        decode_buffer: window.saturating_mul(max_packet).max(DECODE_BUFFER),
        ..ReceiverConfig::new(STREAM, max_packet)
    };
    let reorder_time = if transfer.repair.nack { receiver.reorder_time } else { NEVER };
    (sender, ReceiverConfig { reorder_time, ..receiver })
}

/// At which the core's packets leave, which stand for longer ones.
fn rate(transfer: &Transfer, max_packet: usize) -> u64 {
    let plain = transfer.packet + super::record::HEADERS;
    let rate = u128::from(transfer.rate) * max_packet as u128 / plain as u128;
    u64::try_from(rate).unwrap_or(u64::MAX)
}

fn told(mut sender: Sender, transfer: &Transfer) -> Sender {
    if let Some(told) = transfer.told {
        sender.set_drop(told.drop);
        sender.set_burst(told.burst);
    }
    sender
}

/// Nanoseconds that a full packet takes.
fn packet_time(transfer: &Transfer) -> f64 {
    let wire = transfer.packet + super::record::HEADERS + transfer.overhead;
    wire as f64 * 8e9 / transfer.rate as f64
}

/// Packets that may be unacknowledged: what the rate carries in six round trips and the reports'
/// delays, so that a packet repaired twice does not stop the others.
fn window(transfer: &Transfer) -> usize {
    let time = 6 * transfer.rtt() + Duration::from_millis(10);
    let packets = time.as_nanos() as f64 / packet_time(transfer);
    (packets as usize).clamp(1024, 1 << 24)
}

/// The scheme; if nothing is asked for, its timeout is three round trips with all that the sender
/// adds to it.
fn scheme(transfer: &Transfer) -> Scheme {
    match transfer.repair.scheme {
        Scheme::Sr { .. } if !transfer.repair.nack => {
            let rtt = transfer.rtt().as_secs_f64();
            let added = 1e-3 + (rtt / 4.0).clamp(1e-3, 25e-3);
            Scheme::Sr { alpha: (2.0 - added / rtt.max(1e-9)).max(0.0) }
        }
        scheme => scheme,
    }
}

/// Any instant will do as the origin of virtual time.
fn origin() -> Instant {
    Instant::now()
}
