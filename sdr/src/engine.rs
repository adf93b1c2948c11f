//! Drives a queue pair: what leaves, what arrives, and when.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::task::Waker;
use std::time::{Duration, Instant};

use reliability::pacing::Pacer;

use crate::blob::{Agreed, BackEnd, Blob, Mismatch};
use crate::receive::{Lander, Peer, RecvQp, Refused};
#[cfg(feature = "verbs")]
use crate::send::Outgoing;
use crate::send::{Injector, SendQp};
use crate::shape::QpAttr;
use crate::sync::{Acquire, Relaxed, Release};
use crate::wire::{
    CONTROL_BYTES, CONTROL_HEADER, CREDIT_BYTES, Credit, DATA_HEADER, Datagram, Malformed, control_header,
    data_header,
};

/// Control datagrams that wait at most, each way.
const MOST_CONTROL: usize = 1024;
/// Bytes that may leave at once after a pause.
const BURST: usize = 64 << 10;
/// Credits are repeated so often within a round trip until the peer has seen them ...
const REPEATS: u32 = 2;
/// ... and no more often than this.
const SHORTEST_REPEAT: Duration = Duration::from_millis(1);
/// Words to the peer within the time after which it would give us up.
const KEEP_ALIVES: u32 = 8;
/// Goodbyes when a side closes.
const GOODBYES: u8 = 3;

/// Bytes of the largest datagram of a queue pair.
#[must_use]
pub const fn max_datagram(attr: &QpAttr) -> usize {
    let data = DATA_HEADER + attr.mtu.bytes() as usize;
    let control = CONTROL_HEADER + CONTROL_BYTES;
    if data > control { data } else { control }
}

/// Both halves of a queue pair, its control path, and the engine that a back end drives.
pub struct Connected {
    /// The sending side, if this side sends to one that receives.
    pub send: Option<SendQp>,
    /// The receiving side, if the peer sends and this side receives.
    pub receive: Option<RecvQp>,
    /// The control path.
    pub control: ControlPath,
    /// The engine.
    pub engine: Engine,
    /// Terms that both sides agreed on.
    pub agreed: Agreed,
}

/// Connects a queue pair to the peer whose blob this is.
///
/// `overhead` is what each datagram takes on the wire beyond its own bytes.
///
/// # Errors
/// [`Mismatch`] names the first difference.
pub fn connect(ours: &Blob, peer: &Blob, overhead: usize, now: Instant) -> Result<Connected, Mismatch> {
    let agreed = ours.agree(peer)?;
    let Agreed { shape, generations, lifetime, .. } = agreed;
    let state = Peer::new();
    let (send, injector) =
        agreed.send.then(|| SendQp::new(shape, generations, lifetime, Arc::clone(&state), now)).unzip();
    let receive = agreed.receive.then(|| RecvQp::new(shape, generations, Arc::clone(&state)));
    let lander = receive.as_ref().map(RecvQp::lander);
    let (to_peer, outbox) = sync_channel(MOST_CONTROL);
    let (inbox, from_peer) = sync_channel(MOST_CONTROL);
    let engine = Engine {
        injector,
        lander,
        channels: ours.attr.channels,
        channel: 0,
        slots: shape.slots(),
        peer: Arc::clone(&state),
        pacer: Pacer::new(ours.attr.rate, BURST, overhead, now),
        outbox,
        inbox,
        repeat: (agreed.rtt / REPEATS).max(SHORTEST_REPEAT),
        patience: ours.attr.patience,
        told: None,
        echoed: Credit::default(),
        next_credit: now,
        last_heard: now,
        departed: None,
        goodbyes: 0,
        is_keyed: matches!(ours.back_end, BackEnd::VerbsUc | BackEnd::Mlx5),
        stats: Stats::default(),
    };
    let control = ControlPath { to_peer, from_peer, peer: state };
    Ok(Connected { send, receive, control, engine, agreed })
}

/// Small datagrams between the programs, in both directions. They may be lost, reordered and
/// repeated.
pub struct ControlPath {
    to_peer: SyncSender<Box<[u8]>>,
    from_peer: Receiver<Box<[u8]>>,
    peer: Arc<Peer>,
}

/// Reasons why a control datagram was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Too many wait. Try again later.
    #[error("too many control datagrams wait")]
    Retry,
    /// Longer than [`CONTROL_BYTES`].
    #[error("{0} bytes, and a control datagram has at most 1024")]
    TooLong(usize),
    /// The peer is gone, or the queue pair was closed.
    #[error("the queue pair has ended")]
    Ended,
}

impl ControlPath {
    /// Sends a datagram.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn send(&self, bytes: &[u8]) -> Result<(), ControlError> {
        if bytes.len() > CONTROL_BYTES {
            return Err(ControlError::TooLong(bytes.len()));
        }
        if self.has_ended() {
            return Err(ControlError::Ended);
        }
        let result = self.to_peer.try_send(bytes.into());
        self.peer.wake();
        result.map_err(|error| match error {
            TrySendError::Full(_) => ControlError::Retry,
            TrySendError::Disconnected(_) => ControlError::Ended,
        })
    }

    /// Returns the next datagram from the peer, if one waits.
    #[must_use]
    pub fn receive(&self) -> Option<Box<[u8]>> {
        self.from_peer.try_recv().ok()
    }

    /// Returns true if the peer is gone, or the queue pair was closed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.peer.has_ended()
    }
}

/// A datagram to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// The channel to send it by.
    pub channel: u8,
    /// Its bytes.
    pub len: usize,
}

/// Counters of an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Data packets handed out.
    pub data: u64,
    /// Other datagrams handed out.
    pub other: u64,
    /// Datagrams that made no sense.
    pub malformed: u64,
    /// Credits beyond what the peer can have.
    pub implausible: u64,
    /// Control datagrams dropped because the program did not read.
    pub unread: u64,
}

/// A datagram that was not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// It makes no sense.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A data packet that was refused.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Credits that the peer cannot have.
    #[error("implausible credits")]
    Implausible,
    /// The program does not read its control datagrams.
    #[error("too many control datagrams wait")]
    Unread,
}

/// The part of a queue pair that a back end drives.
///
/// # Driver contract
/// Call [`Engine::handle`] for each datagram, and [`Engine::poll_transmit`] until it returns
/// `None`.
/// Do the latter again at [`Engine::next_timeout`], and soon after the program posted or sent.
/// `now` does not run backwards. The engine never blocks and takes no lock per packet.
pub struct Engine {
    injector: Option<Injector>,
    lander: Option<Lander>,
    channels: u8,
    channel: u8,
    slots: u32,
    peer: Arc<Peer>,
    pacer: Pacer,
    outbox: Receiver<Box<[u8]>>,
    inbox: SyncSender<Box<[u8]>>,
    repeat: Duration,
    patience: Duration,
    /// The credits sent last.
    told: Option<Credit>,
    /// The peer's last word: `seen_*` is what it knows of us.
    echoed: Credit,
    next_credit: Instant,
    last_heard: Instant,
    /// When the peer said goodbye. Packets that were overtaken still count for a while.
    departed: Option<Instant>,
    goodbyes: u8,
    /// True if KEYS give credit, and CREDIT tells only what the peer knows already.
    is_keyed: bool,
    stats: Stats,
}

impl Engine {
    /// Has `waker` woken when the program posted, sent or wrote. The first one stays.
    pub fn set_waker(&mut self, waker: Waker) {
        self.peer.waker.get_or_init(|| waker);
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns true if the peer is gone, or the queue pair was closed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.peer.has_ended()
    }

    /// Ends the queue pair. What is handed out from now on says goodbye, three times.
    pub fn close(&mut self) {
        if !self.peer.ended.swap(true, Release) {
            self.goodbyes = GOODBYES;
        }
    }

    /// Takes in a datagram.
    ///
    /// # Errors
    /// [`Rejected`]; nothing but a counter changed.
    pub fn handle(&mut self, datagram: &[u8], now: Instant) -> Result<(), Rejected> {
        let datagram = Datagram::decode(datagram).inspect_err(|_| self.stats.malformed += 1)?;
        self.last_heard = now;
        match datagram {
            // Payload comes by the device, and keys are the back end's.
            Datagram::Data { .. } if self.is_keyed => return Err(Refused::Direction.into()),
            Datagram::Keys { .. } => return Err(Malformed::Kind.into()),
            Datagram::Data { generation, imm, payload } => {
                let lander = self.lander.as_ref().ok_or(Refused::Direction)?;
                lander.land(generation, imm, payload)?;
            }
            Datagram::Credit(credit) => self.credit(&credit, now)?,
            Datagram::Control(bytes) => {
                if self.inbox.try_send(bytes.into()).is_err() {
                    self.stats.unread += 1;
                    return Err(Rejected::Unread);
                }
            }
        }
        Ok(())
    }

    fn credit(&mut self, credit: &Credit, now: Instant) -> Result<(), Rejected> {
        // The peer cannot know of more than we did, be further than its slots, or issue without
        // credit.
        let ours = self.current();
        let is_known = ours.posted.wrapping_sub(credit.seen_posted) <= u32::MAX / 2
            && ours.issued.wrapping_sub(credit.seen_issued) <= u32::MAX / 2;
        let in_credit = ours.posted.wrapping_sub(credit.issued) <= u32::MAX / 2;
        let ahead = credit.posted.wrapping_sub(ours.issued);
        let in_slots = ahead > u32::MAX / 2 || ahead <= self.slots;
        if !(is_known && in_credit && in_slots) {
            self.stats.implausible += 1;
            return Err(Rejected::Implausible);
        }
        Peer::raise(&self.peer.posted, credit.posted, u32::MAX / 2);
        Peer::raise(&self.peer.issued, credit.issued, u32::MAX / 2);
        let newer = |old: u32, new: u32| if new.wrapping_sub(old) <= u32::MAX / 2 { new } else { old };
        self.echoed.seen_posted = newer(self.echoed.seen_posted, credit.seen_posted);
        self.echoed.seen_issued = newer(self.echoed.seen_issued, credit.seen_issued);
        if credit.closed {
            self.departed.get_or_insert(now);
        }
        Ok(())
    }

    /// Returns the credits as they are now.
    fn current(&self) -> Credit {
        Credit {
            posted: self.lander.as_ref().map_or(0, |lander| lander.0.posted.load(Acquire)),
            issued: self.injector.as_ref().map_or(0, Injector::issued),
            seen_posted: self.peer.posted.load(Relaxed),
            seen_issued: self.peer.issued.load(Relaxed),
            closed: self.peer.has_ended(),
        }
    }

    /// Returns the credits as they are told.
    fn shown(&self) -> Credit {
        let current = self.current();
        let posted = if self.is_keyed { self.echoed.seen_posted } else { current.posted };
        Credit { posted, ..current }
    }

    /// Returns true if credits are to be sent now.
    fn owes_credit(&self, current: &Credit, now: Instant) -> bool {
        let Some(told) = self.told else {
            return true;
        };
        if told.posted != current.posted || self.goodbyes > 0 {
            return true;
        }
        let is_seen = self.echoed.seen_posted == current.posted && self.echoed.seen_issued == current.issued;
        let owes_echo = told.seen_posted != current.seen_posted || told.seen_issued != current.seen_issued;
        let pause = if is_seen && !owes_echo { self.patience / KEEP_ALIVES } else { self.repeat };
        now >= self.next_credit + pause
    }

    /// Writes the next datagram to `out`, which has room for [`max_datagram`] bytes.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<Transmit> {
        if let Some(other) = self.poll_other(now, out) {
            return Some(other);
        }
        if self.is_silent() { None } else { self.data(now, out) }
    }

    /// Returns true if there is nobody to tell anything: the peer has left, or this side has ended.
    fn is_silent(&self) -> bool {
        self.departed.is_some() || self.peer.has_ended()
    }

    /// Writes the next datagram that is no DATA to `out`.
    pub(crate) fn poll_other(&mut self, now: Instant, out: &mut [u8]) -> Option<Transmit> {
        let has_left = self.departed.is_some_and(|at| now >= at + self.repeat);
        if has_left || now.saturating_duration_since(self.last_heard) > self.patience {
            self.peer.ended.store(true, Release);
        }
        if self.is_silent() && self.goodbyes == 0 {
            return None;
        }
        let current = self.shown();
        let len = if self.owes_credit(&current, now) {
            out.get_mut(..CREDIT_BYTES)?.copy_from_slice(&current.encode());
            self.goodbyes = self.goodbyes.saturating_sub(1);
            self.told = Some(current);
            self.next_credit = now;
            CREDIT_BYTES
        } else if let Ok(bytes) = self.outbox.try_recv() {
            out.get_mut(..CONTROL_HEADER)?.copy_from_slice(&control_header());
            out.get_mut(CONTROL_HEADER..CONTROL_HEADER + bytes.len())?.copy_from_slice(&bytes);
            CONTROL_HEADER + bytes.len()
        } else {
            return None;
        };
        self.stats.other += 1;
        self.pacer.consume(len, now);
        Some(Transmit { channel: 0, len })
    }

    /// Returns the channel of the next data packet. What is no data goes by channel 0.
    #[cfg(feature = "udp")]
    pub(crate) fn next_channel(&self) -> u8 {
        self.channel
    }

    /// Returns the injector if a data packet waits and may leave now.
    fn ready(&mut self, now: Instant) -> Option<&mut Injector> {
        let injector = self.injector.as_mut()?;
        if !injector.is_waiting() {
            self.pacer.hold(false);
            return None;
        }
        if !self.pacer.ready(now) {
            self.pacer.hold(true);
            return None;
        }
        Some(injector)
    }

    /// Returns the next data packet, for a device that reads the program's memory by itself.
    #[cfg(feature = "verbs")]
    pub(crate) fn poll_data(&mut self, now: Instant) -> Option<(u8, Outgoing)> {
        if self.is_silent() {
            return None;
        }
        let packet = self.ready(now)?.take()?;
        Some((self.count_data(packet.len, now), packet))
    }

    /// Counts a data packet, and returns its channel.
    fn count_data(&mut self, len: usize, now: Instant) -> u8 {
        self.pacer.consume(len, now);
        self.stats.data += 1;
        let channel = self.channel;
        self.channel = (channel + 1) % self.channels.max(1);
        channel
    }

    /// Notes that the peer is alive.
    #[cfg(feature = "verbs")]
    pub(crate) fn heard(&mut self, now: Instant) {
        self.last_heard = now;
    }

    /// Returns how many receives the peer knows of, modulo 2^32.
    #[cfg(feature = "verbs")]
    pub(crate) fn seen_posted(&self) -> u32 {
        self.echoed.seen_posted
    }

    /// Returns how many receives of the peer are known here, modulo 2^32.
    #[cfg(feature = "verbs")]
    pub(crate) fn peer_posted(&self) -> u32 {
        self.peer.posted.load(Relaxed)
    }

    /// Takes in that the keys of all receives of the peer below `posted` are known.
    ///
    /// # Errors
    /// [`Rejected::Implausible`] if the peer cannot have posted so many.
    #[cfg(feature = "verbs")]
    pub(crate) fn keyed(&mut self, posted: u32, now: Instant) -> Result<(), Rejected> {
        self.last_heard = now;
        let ahead = posted.wrapping_sub(self.current().issued);
        if ahead <= u32::MAX / 2 && ahead > self.slots {
            self.stats.implausible += 1;
            return Err(Rejected::Implausible);
        }
        Peer::raise(&self.peer.posted, posted, u32::MAX / 2);
        Ok(())
    }

    /// Has `registry` make memory known to the device, from now on.
    #[cfg(feature = "verbs")]
    pub(crate) fn set_registry(&self, registry: &Arc<dyn crate::memory::Registry>) {
        if let Some(injector) = &self.injector {
            injector.set_registry(Arc::clone(registry));
        }
        if let Some(lander) = &self.lander {
            lander.set_registry(Arc::clone(registry));
        }
    }

    fn data(&mut self, now: Instant, out: &mut [u8]) -> Option<Transmit> {
        let injector = self.ready(now)?;
        let (head, payload) = out.split_at_mut_checked(DATA_HEADER)?;
        let packet = injector.next(now, payload)?;
        head.copy_from_slice(&data_header(packet.generation, packet.imm));
        let len = DATA_HEADER + packet.len;
        Some(Transmit { channel: self.count_data(len, now), len })
    }

    /// Returns when [`Engine::poll_transmit`] has something to do again, if nobody posts or sends
    /// before.
    pub fn next_timeout(&mut self, now: Instant) -> Instant {
        if let Some(at) = self.departed {
            return (at + self.repeat).max(now);
        }
        let current = self.shown();
        let is_seen = self.echoed.seen_posted == current.posted && self.echoed.seen_issued == current.issued;
        let pause = if is_seen { self.repeat.max(self.patience / KEEP_ALIVES) } else { self.repeat };
        let credit = self.next_credit + pause;
        let dead = self.last_heard + self.patience;
        let data = self.injector.as_mut().is_some_and(Injector::is_waiting).then(|| self.pacer.next_ready());
        [Some(credit), Some(dead), data].into_iter().flatten().min().unwrap_or(now).max(now)
    }
}
