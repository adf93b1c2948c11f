//! The way in from the peer: a receiver for each of its streams.

use std::time::{Duration, Instant};

use reliability::mtu::LARGEST;
use reliability::stream::{Malformed, Receiver, ReceiverConfig, ReceiverStats, StreamId};

use crate::bounds::Config;
use crate::senders::SLOTS;

/// Streams a peer may have: two for each of the classes that there may be, and for each of those
/// that drain after a change of them. A packet of any other is refused.
pub(crate) const STREAMS: usize = 2 * SLOTS;

/// On a path not known to reorder: what a network card or a multi-queue link may.
const LEAST_REORDER_TIME: Duration = Duration::from_millis(1);

/// A stream that nothing came of for so long gives back the memory that it keeps for packets to
/// come: its class may be gone.
const REST: Duration = Duration::from_secs(10);

/// Receivers, made when their stream's first packet comes.
///
/// # Bounds
/// [`STREAMS`] streams. What they hold together for cut records and for decoding
/// ([`Receiver::memory`]) is bounded by the settings, whatever the peer sends: half of each bound
/// is divided evenly among all streams that there may be, the other half is whose need comes first.
/// Each has its bitmap beside that.
pub(crate) struct Receivers {
    streams: Vec<Option<Stream>>,
    window: usize,
    /// Bounds of what all hold for cut records, and for decoding.
    bounds: [usize; 2],
    /// Bytes that all hold of these.
    held: [usize; 2],
    /// How long overtaken packets are waited for.
    reorder_time: Duration,
}

struct Stream {
    receiver: Receiver,
    /// When it has rested for long enough, unless a packet comes.
    rests_at: Option<Instant>,
}

impl Receivers {
    /// For packets of any length; of how many and of how many bytes under way, the settings say.
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            streams: Vec::new(),
            window: config.received_window(),
            bounds: config.receive_buffers(),
            held: [0; 2],
            reorder_time: LEAST_REORDER_TIME,
        }
    }

    /// Overtaken packets are waited for so long from now on, or longer.
    pub(crate) fn set_reorder_time(&mut self, time: Duration) {
        let time = time.max(LEAST_REORDER_TIME);
        if time != self.reorder_time {
            self.reorder_time = time;
            self.streams.iter_mut().flatten().for_each(|stream| stream.receiver.set_reorder_time(time));
        }
    }

    pub(crate) fn handle_packet(
        &mut self,
        stream: StreamId,
        packet: &[u8],
        now: Instant,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Malformed> {
        let index = usize::from(stream.0);
        if index >= STREAMS {
            return Err(Malformed::Stream(stream));
        }
        if self.streams.len() <= index {
            self.streams.resize_with(index + 1, || None);
        }
        let slot = self.streams.get_mut(index).ok_or(Malformed::Stream(stream))?;
        let Self { window, reorder_time, .. } = *self;
        let stream = slot.get_or_insert_with(|| {
            let config = ReceiverConfig::new(stream, LARGEST);
            let receiver = Receiver::new(ReceiverConfig { window, reorder_time, ..config }, now);
            Stream { receiver, rests_at: None }
        });
        stream.rests_at = Some(now + REST);
        let before = stream.receiver.memory();
        stream.receiver.set_bounds(bounds(self.bounds, self.held, before));
        let handled = stream.receiver.handle_packet(packet, now, deliver);
        self.held = moved(self.held, before, stream.receiver.memory());
        handled
    }

    /// Bytes held for cut records and for decoding.
    pub(crate) fn memory(&self) -> usize {
        self.held.iter().sum()
    }

    /// Pieces of records that contradict others.
    pub(crate) fn contradictions(&self) -> u64 {
        self.streams.iter().flatten().map(|stream| stream.receiver.stats().contradictions).sum()
    }

    /// The next report that is due.
    pub(crate) fn poll(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        self.streams.iter_mut().flatten().find_map(|stream| stream.receiver.poll_report(now, out))
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let timeouts = |stream: &Stream| [stream.receiver.next_timeout(), stream.rests_at];
        self.streams.iter().flatten().flat_map(timeouts).flatten().min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for Stream { receiver, rests_at } in self.streams.iter_mut().flatten() {
            if receiver.next_timeout().is_some_and(|at| at <= now) {
                receiver.handle_timeout(now);
            }
            if rests_at.take_if(|at| *at <= now).is_some() {
                let before = receiver.memory();
                receiver.release_spare();
                self.held = moved(self.held, before, receiver.memory());
            }
        }
    }

    /// Counters of the streams of one class: prompt, bulk, as far as the peer has used them.
    /// `place` is half their number.
    pub(crate) fn stats(&self, place: usize) -> impl Iterator<Item = &ReceiverStats> {
        self.streams.iter().skip(2 * place).take(2).flatten().map(|stream| stream.receiver.stats())
    }
}

/// Returns what a stream may hold that holds `own`, where all streams hold so much: its even
/// share of one half, and what others leave of both.
fn bounds(bounds: [usize; 2], held: [usize; 2], own: [usize; 2]) -> [usize; 2] {
    let bound = |((bound, held), own): ((usize, usize), usize)| {
        let common = (bound / 2).saturating_sub(held.saturating_sub(own));
        common.max(bound / 2 / STREAMS)
    };
    let [joins, decoding] = [0, 1].map(|which| {
        let of = |values: [usize; 2]| values.get(which).copied().unwrap_or(0);
        bound(((of(bounds), of(held)), of(own)))
    });
    [joins, decoding]
}

/// Returns what all hold when one holds something else than before.
fn moved(held: [usize; 2], before: [usize; 2], after: [usize; 2]) -> [usize; 2] {
    let [joins, decoding] = held;
    let ([joins_before, decoding_before], [joins_after, decoding_after]) = (before, after);
    [joins - joins_before + joins_after, decoding - decoding_before + decoding_after]
}
