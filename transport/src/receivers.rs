//! The way in from the peer: a receiver for each of its streams.

use std::time::{Duration, Instant};

use reliability::mtu::LARGEST;
use reliability::stream::{Malformed, Receiver, ReceiverConfig, ReceiverStats, StreamId};

use crate::bounds::{Config, STREAMS};
use crate::path::reports_of;

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
///
/// Reports of all streams together take an eighth of the link, whatever the peer makes them tell
/// ([`Reports`]). Streams take turns by bytes: who tells little waits for none that tells much.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct Receivers {
    streams: Vec<Option<Stream>>,
    window: usize,
    /// Bounds of what all hold for cut records, and for decoding.
    bounds: [usize; 2],
    /// Bytes that all hold of these.
    held: [usize; 2],
    /// How long overtaken packets are waited for.
    reorder_time: Duration,
    reports: Reports,
}

#[serde_with::serde_as]
#[derive(serde::Serialize, serde::Deserialize)]
struct Stream {
    receiver: Receiver,
    /// Bytes of its reports, as [`Reports::turn`] counts them.
    told: u64,
    /// Bytes of the last one, which the next one is taken to have.
    last: usize,
    /// When it has rested for long enough, unless a packet comes.
    #[serde_as(as = "Option<snapshot::At>")]
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
            reports: Reports::new(reports_of(config.rate)),
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

    /// Reports take so many bytes a second from now on; `None`: as many as they may.
    pub(crate) fn set_report_rate(&mut self, rate: Option<u64>) {
        self.reports.rate = rate.unwrap_or(self.reports.most).clamp(1, self.reports.most);
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
            Stream { receiver, told: 0, last: LARGEST, rests_at: None }
        });
        stream.rests_at = Some(now + REST);
        let before = stream.receiver.memory();
        stream.receiver.set_bounds(bounds(self.bounds, self.held, before));
        let handled = stream.receiver.handle_packet(packet, now, deliver);
        self.held = moved(self.held, before, stream.receiver.memory());
        handled
    }

    pub(crate) fn begin_blocks_anew(&mut self) {
        self.held = [0; 2];
        for Stream { receiver, .. } in self.streams.iter_mut().flatten() {
            receiver.begin_blocks_anew();
            self.held = moved(self.held, [0; 2], receiver.memory());
        }
    }

    /// Bytes held for cut records and for decoding.
    pub(crate) fn memory(&self) -> usize {
        self.held.iter().sum()
    }

    /// Pieces of records that contradict others.
    pub(crate) fn contradictions(&self) -> u64 {
        self.streams.iter().flatten().map(|stream| stream.receiver.stats().contradictions).sum()
    }

    /// The next report that is due: of the streams that have one, that of the stream which has told
    /// the least with it.
    pub(crate) fn poll(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        let Self { streams, reports, .. } = self;
        let has_one = |stream: &&mut Stream| stream.receiver.next_report().is_some_and(|at| at <= now);
        let due = streams.iter_mut().flatten().filter(has_one);
        let next = due.min_by_key(|stream| reports.turn.max(stream.told) + stream.last as u64)?;
        if reports.opens_at(now) > now {
            return None;
        }
        let len = next.receiver.poll_report(now, out)?;
        (next.told, next.last) = (reports.taken(len, next.told, now), len);
        Some(len)
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let timeouts = |stream: &Stream| {
            let timeout = stream.receiver.next_timeout().map(|at| {
                let is_report = stream.receiver.next_report() == Some(at);
                if is_report { at.max(self.reports.opens_at(at)) } else { at }
            });
            [timeout, stream.rests_at]
        };
        self.streams.iter().flatten().flat_map(timeouts).flatten().min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for Stream { receiver, rests_at, .. } in self.streams.iter_mut().flatten() {
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

/// Bound on what leaves for reports: an eighth of the link, and 64 KiB at once.
#[serde_with::serde_as]
#[derive(serde::Serialize, serde::Deserialize)]
struct Reports {
    /// Bytes a second, and the most that they may be.
    rate: u64,
    most: u64,
    /// When what has left would have left at that rate.
    #[serde_as(as = "Option<snapshot::At>")]
    paid: Option<Instant>,
    /// Bytes that the stream whose turn it was last had told before it (start-time fair queueing).
    /// A stream that has told less counts from there, and so gains nothing by silence.
    turn: u64,
}

impl Reports {
    const BURST: u64 = 64 << 10;

    fn new(rate: u64) -> Self {
        Self { rate, most: rate, paid: None, turn: 0 }
    }

    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.rate)
    }

    /// When the next report may leave, from `now` on.
    fn opens_at(&self, now: Instant) -> Instant {
        // What is thin has little room for many at once.
        let burst = Self::BURST * self.rate / self.most;
        let opens = self.paid.and_then(|paid| paid.checked_sub(self.time_of(burst)));
        opens.map_or(now, |opens| opens.max(now))
    }

    /// A report leaves of a stream that has told so much; what it has told then.
    fn taken(&mut self, len: usize, told: u64, now: Instant) -> u64 {
        let len = len as u64;
        self.paid = Some(self.paid.map_or(now, |paid| paid.max(now)) + self.time_of(len));
        self.turn = self.turn.max(told);
        self.turn + len
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

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 100_000_000;

    /// A packet of nothing, uncoded.
    fn data(stream: u16, sequence: u64) -> Vec<u8> {
        // 98 ms, and nothing is given up.
        let mut packet = vec![0x84, stream as u8, 0x98, 0xff, 0, 0, 0];
        packet.extend((sequence as u32).to_be_bytes());
        packet
    }

    /// A peer leaves out every other packet of nearly all streams: what it is told of that leaves
    /// the link to others, and a stream without gaps is told as often as before.
    #[test]
    fn reports_of_gaps_leave_room_for_others() {
        let settings = Config::new(RATE, 1400);
        let begun = crate::test_clock();
        let mut now = begun;
        let mut receivers = Receivers::new(&settings);
        let take = |receivers: &mut Receivers, stream, sequence, now| {
            let packet = data(stream, sequence);
            receivers.handle_packet(StreamId(stream), &packet, now, &mut |_| {}).unwrap();
        };
        for stream in 2..STREAMS as u16 {
            (0..20_000).step_by(2).for_each(|sequence| take(&mut receivers, stream, sequence, now));
        }
        let (mut out, mut sequence) = ([0; 1400], 0);
        let (mut of_gaps, mut others, mut waited) = (0, 0, Duration::ZERO);
        while now < begun + Duration::from_secs(2) {
            if others == sequence {
                take(&mut receivers, 1, sequence, now);
                sequence += 1;
            }
            now += Duration::from_millis(1);
            waited += Duration::from_millis(1);
            receivers.handle_timeout(now);
            while let Some(len) = receivers.poll(now, &mut out) {
                if out[3] == 1 {
                    (others, waited) = (others + 1, Duration::ZERO);
                } else {
                    of_gaps += len as u64;
                }
            }
            // A quarter of the round-trip time, and what is being sent.
            assert!(waited <= Duration::from_millis(30), "{waited:?} at {:?}", now - begun);
        }
        let most = 2 * reports_of(RATE) + Reports::BURST + 1400;
        assert!(of_gaps <= most && of_gaps > most / 2, "{of_gaps} bytes of {most}");
        assert!(receivers.next_timeout().is_some_and(|at| at > now), "a report that must wait is due");
    }
}
