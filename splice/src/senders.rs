//! The way out to the peer: each class's streams behind one pacer.

use std::time::{Duration, Instant};

use reliability::link::Link;
use reliability::pacing::Pacer;
use reliability::stream::{Full, Malformed, Scheme, Sender, SenderConfig, StreamId, Transmit, TransmitKind};

use crate::record::Head;
use crate::settings::{self, Settings};
use crate::sizes::Sizes;

/// Which of a class's two streams a record takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// ACKs, NAKs, connection management: small, and a round trip waits for each. Sent before any bulk.
    Prompt,
    /// Everything with a payload.
    Bulk,
}

/// A class's streams. Two, so that an ACK never queues behind megabytes going the same way; order within a flow is restored by the
/// records' own numbers.
struct Class {
    prompt: Sender,
    bulk: Sender,
    /// Bytes that requesters will still send for the bulk stream, as far as known.
    expected: u64,
    /// Room in the bulk stream kept for what targets were asked for, in bytes.
    awaited: usize,
    /// Messages that go out on the bulk stream.
    sizes: Sizes,
    /// Bytes that the stream of each urgency may send before it is the next class's turn; negative: it sent more.
    credit: [isize; 2],
}

impl Class {
    fn stream(&self, urgency: Urgency) -> &Sender {
        match urgency {
            Urgency::Prompt => &self.prompt,
            Urgency::Bulk => &self.bulk,
        }
    }

    fn credit(&self, urgency: Urgency) -> isize {
        let [prompt, bulk] = self.credit;
        if urgency == Urgency::Prompt { prompt } else { bulk }
    }

    fn credit_mut(&mut self, urgency: Urgency) -> &mut isize {
        let [prompt, bulk] = &mut self.credit;
        if urgency == Urgency::Prompt { prompt } else { bulk }
    }

    fn stream_mut(&mut self, urgency: Urgency) -> &mut Sender {
        match urgency {
            Urgency::Prompt => &mut self.prompt,
            Urgency::Bulk => &mut self.bulk,
        }
    }
}

/// What a class of scheme `auto` is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// For the stream of what is small and urgent: ACKs, NAKs, connection management.
    pub prompt: Scheme,
    /// For the stream of everything with a payload.
    pub bulk: Scheme,
    /// Share of packets that the path loses, for `hybrid`; NaN: not known.
    pub drop: f64,
    /// Mean run of lost packets, for `hybrid`.
    pub burst: f64,
}

/// All sending streams of a session. Without a session there are none, and every push is refused.
///
/// The prompt streams go first, which carry little; among those of one urgency the classes share the link evenly, by deficit round robin
/// (Shreedhar and Varghese, SIGCOMM 1995): a class that sends without end takes its share and no more, and what one leaves the others have.
///
/// Bounds: each stream's backlog and buffer; above half the backlog mid-message ACKs are withheld and targets are asked for no further READ data,
/// above the whole requests are dropped. What targets were asked for has its room kept, up to half a backlog.
pub(crate) struct Senders {
    classes: Vec<Class>,
    pacer: Option<Pacer>,
    /// Whose turn it is, by urgency.
    turn: [usize; 2],
    /// Bytes that a class may send in its turn: no less than a packet.
    quantum: isize,
    max_backlog: usize,
    max_buffered: usize,
}

/// Link time that one burst after a pause may take.
const BURST: Duration = Duration::from_micros(500);
/// No less than this at once, or a fast link starves on timer granularity.
const LEAST_BURST: usize = 64 << 10;
/// Link time, and bytes, that one burst may take where the data plane comes back too late for less: what a switch on the way has room for.
const LATE_BURST: Duration = Duration::from_millis(10);
const MOST_LATE_BURST: usize = 1 << 20;
/// Backlog a stream may hold: this much link time, within bounds.
const BACKLOG: Duration = Duration::from_millis(200);
const LEAST_BACKLOG: usize = 8 << 20;
/// Bytes that a class may send in its turn, at least.
const LEAST_QUANTUM: isize = 16 << 10;
/// To so many bytes of READ data comes one of heads and framing, with the smallest path MTU.
const FRAMED: usize = 4;
/// READ data to ask a target for at a time, at least and at most.
const LEAST_PIECE: usize = 1 << 20;
const MOST_PIECE: usize = 64 << 20;
/// What a DATA packet's and a record's own headers take at most, for telling whether a record will fit.
const FRAMING: usize = 256;

impl Senders {
    pub(crate) fn down() -> Self {
        Self { classes: Vec::new(), pacer: None, turn: [0; 2], quantum: 0, max_backlog: 0, max_buffered: 0 }
    }

    pub(crate) fn up(settings: &Settings, link: &Link, max_packet: usize, now: Instant) -> Self {
        let bytes_per_second = settings.rate / 8;
        let link_time = |time: Duration| {
            usize::try_from(u128::from(bytes_per_second) * time.as_nanos() / 1_000_000_000)
                .unwrap_or(usize::MAX)
        };
        let streams = 2 * settings.policy.classes().len().max(1);
        let max_buffered = (settings.total_buffer / streams).max(LEAST_BACKLOG * 2);
        let max_backlog = link_time(BACKLOG).clamp(LEAST_BACKLOG, max_buffered / 2);
        let sender = |index: usize, class: &config::Class| {
            let id = StreamId(u16::try_from(index).unwrap_or(u16::MAX));
            let mut config = SenderConfig {
                scheme: settings::scheme(class),
                max_backlog,
                max_buffered,
                rtt_hint: settings.rtt,
                rate: Some(settings.rate),
                ..SenderConfig::new(id, max_packet)
            };
            if let Some(block) = class.scheme.block() {
                config.flush = block.flush.get();
            } else if matches!(class.scheme, config::Scheme::Auto(_)) {
                config.flush = settings::auto_flush(link);
            }
            Sender::new(config, now)
        };
        let classes = settings
            .policy
            .classes()
            .iter()
            .enumerate()
            .map(|(index, class)| Class {
                prompt: sender(2 * index, class),
                bulk: sender(2 * index + 1, class),
                expected: 0,
                awaited: 0,
                sizes: Sizes::default(),
                credit: [0; 2],
            })
            .collect();
        let burst = link_time(BURST).max(LEAST_BURST);
        let late_burst = link_time(LATE_BURST).min(MOST_LATE_BURST);
        let pacer = Pacer::new(settings.rate, burst, settings.packet_overhead, now);
        let pacer = Some(pacer.with_most_burst(late_burst));
        let quantum = isize::try_from(max_packet).unwrap_or(isize::MAX).max(LEAST_QUANTUM);
        Self { classes, pacer, turn: [0; 2], quantum, max_backlog, max_buffered }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.pacer.is_some()
    }

    /// Whether a record of `len` bytes of body will be taken on the class's bulk stream, beside what targets were asked for.
    pub(crate) fn has_room(&self, class: usize, len: usize) -> bool {
        self.classes.get(class).is_some_and(|class| self.fits(&class.bulk, class.awaited + len))
    }

    /// Whether the response of a target, `len` bytes, will be taken on the class's stream of this urgency.
    pub(crate) fn has_room_for_response(&self, class: usize, urgency: Urgency, len: usize) -> bool {
        self.classes.get(class).is_some_and(|class| self.fits(class.stream(urgency), len))
    }

    fn fits(&self, stream: &Sender, len: usize) -> bool {
        let backlog = stream.backlog() + len + FRAMING;
        backlog <= self.max_backlog && backlog + stream.in_flight() <= self.max_buffered
    }

    /// READ data that targets may be asked for on behalf of the class's flows, in bytes.
    pub(crate) fn read_room(&self, class: usize) -> usize {
        let Some(class) = self.classes.get(class).filter(|_| self.has_headroom(class)) else { return 0 };
        let held = class.bulk.backlog() + class.awaited;
        let room = (self.max_backlog / 2).saturating_sub(class.awaited);
        let room = room.min(self.max_backlog.saturating_sub(held));
        room.min(self.max_buffered.saturating_sub(held + class.bulk.in_flight())) / (FRAMED + 1) * FRAMED
    }

    /// READ data to ask a target for at a time, in bytes: three of them fit what may be asked for.
    pub(crate) fn read_piece(&self) -> usize {
        let room = self.max_backlog / 2 / (FRAMED + 1) * FRAMED;
        let mut piece = LEAST_PIECE;
        while piece < MOST_PIECE && 6 * piece <= room {
            piece *= 2;
        }
        piece
    }

    /// A flow of the class now waits for `bytes` of READ data, where it waited for room for `before`. Returns the room that is kept for them.
    pub(crate) fn await_responses(&mut self, class: usize, before: usize, bytes: usize) -> usize {
        let Some(class) = self.classes.get_mut(class) else { return 0 };
        let kept = bytes + bytes.div_ceil(FRAMED);
        class.awaited = class.awaited.saturating_sub(before) + kept;
        kept
    }

    /// Whether more than is needed may be asked for: there is less than half a backlog.
    pub(crate) fn has_headroom(&self, class: usize) -> bool {
        self.classes.get(class).is_some_and(|class| class.bulk.backlog() < self.max_backlog / 2)
    }

    pub(crate) fn push(
        &mut self,
        class: usize,
        urgency: Urgency,
        head: &Head,
        body: [&[u8]; 2],
        now: Instant,
    ) -> Result<(), Full> {
        let class = self.classes.get_mut(class).ok_or(Full::Backlog)?;
        let [front, back] = body;
        class.stream_mut(urgency).push(&[head.emit().as_ref(), front, back], now)
    }

    /// A flow of the class now expects `bytes` more for the bulk stream, where it expected `before`.
    pub(crate) fn expect(&mut self, class: usize, before: u64, bytes: u64) {
        if let Some(class) = self.classes.get_mut(class) {
            class.expected = class.expected.saturating_sub(before).saturating_add(bytes);
            class.bulk.expect(class.expected);
        }
    }

    /// A message of `size` bytes of the class's goes out, or will.
    pub(crate) fn note_message(&mut self, class: usize, size: u64) {
        if let Some(class) = self.classes.get_mut(class) {
            class.sizes.note(size);
        }
    }

    /// The messages of the class in this session.
    pub(crate) fn sizes(&self, class: usize) -> Sizes {
        self.classes.get(class).map(|class| class.sizes).unwrap_or_default()
    }

    /// Changes the class's schemes from their next blocks on, and what its streams know of the path.
    pub(crate) fn tune(&mut self, class: usize, tuning: &Tuning) {
        let Some(class) = self.classes.get_mut(class) else { return };
        for (stream, scheme) in [(&mut class.prompt, tuning.prompt), (&mut class.bulk, tuning.bulk)] {
            stream.set_drop(tuning.drop);
            stream.set_burst(tuning.burst);
            stream.set_scheme(scheme);
        }
    }

    /// The next packet by urgency and turn, if the pacer lets one go.
    pub(crate) fn poll(&mut self, now: Instant, out: &mut [u8]) -> Option<(usize, TransmitKind)> {
        if !self.pacer.as_ref()?.ready(now) {
            let waiting = self.streams().any(|stream| stream.backlog() > 0);
            self.pacer.as_mut()?.hold(waiting);
            return None;
        }
        let transmit = self.poll_urgency(Urgency::Prompt, now, out);
        let Some(transmit) = transmit.or_else(|| self.poll_urgency(Urgency::Bulk, now, out)) else {
            // What waits now, waits for room in the receiver's window.
            self.pacer.as_mut()?.hold(false);
            return None;
        };
        self.consume(transmit.len, now);
        Some((transmit.len, transmit.kind))
    }

    fn poll_urgency(&mut self, urgency: Urgency, now: Instant, out: &mut [u8]) -> Option<Transmit> {
        let [prompt, bulk] = &mut self.turn;
        let turn = if urgency == Urgency::Prompt { prompt } else { bulk };
        // Once more than there are classes: the first may have used its credit up.
        for _ in 0..=self.classes.len() {
            let class = self.classes.get_mut(*turn)?;
            let transmit = if class.credit(urgency) > 0 {
                class.stream_mut(urgency).poll_transmit(now, out)
            } else {
                None
            };
            if let Some(transmit) = transmit {
                *class.credit_mut(urgency) -= isize::try_from(transmit.len).unwrap_or(isize::MAX);
                return Some(transmit);
            }
            // Who has nothing to send saves nothing up.
            let credit = class.credit_mut(urgency);
            *credit = (*credit).min(0);
            *turn = (*turn + 1) % self.classes.len();
            if let Some(next) = self.classes.get_mut(*turn) {
                *next.credit_mut(urgency) += self.quantum;
            }
        }
        None
    }

    /// A packet left, be it one that does not wait for the pacer: a report or a probe.
    pub(crate) fn consume(&mut self, bytes: usize, now: Instant) {
        if let Some(pacer) = &mut self.pacer {
            pacer.consume(bytes, now);
        }
    }

    /// Takes a REPORT; the round-trip time if it told one.
    pub(crate) fn handle_report(
        &mut self,
        stream: StreamId,
        packet: &[u8],
        now: Instant,
    ) -> Result<Option<Duration>, Malformed> {
        let index = usize::from(stream.0);
        let class = self.classes.get_mut(index / 2).ok_or(Malformed::Stream(stream))?;
        let urgency = if index.is_multiple_of(2) { Urgency::Prompt } else { Urgency::Bulk };
        let sender = class.stream_mut(urgency);
        let samples = sender.rtt().samples();
        sender.handle_report(packet, now)?;
        let rtt = sender.rtt();
        Ok((rtt.samples() > samples).then(|| rtt.latest()))
    }

    /// When there is something to do: the pacer lets the next packet go, or a stream's timer is due.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let pacer = self.pacer.as_ref()?;
        let paced =
            (!pacer.ready(now) && self.streams().any(|stream| !stream.is_idle())).then(|| pacer.next_ready());
        self.streams().filter_map(Sender::next_timeout).chain(paced).min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for class in &mut self.classes {
            for urgency in [Urgency::Prompt, Urgency::Bulk] {
                let stream = class.stream_mut(urgency);
                if stream.next_timeout().is_some_and(|at| at <= now) {
                    stream.handle_timeout(now);
                }
            }
        }
    }

    /// Nothing to send and nothing unacknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.streams().all(Sender::is_idle)
    }

    fn streams(&self) -> impl Iterator<Item = &Sender> {
        self.classes.iter().flat_map(|class| [&class.prompt, &class.bulk])
    }

    /// A class's streams: prompt, bulk.
    pub(crate) fn class(&self, class: usize) -> Option<[&Sender; 2]> {
        self.classes.get(class).map(|class| [&class.prompt, &class.bulk])
    }
}
