//! The receiving half of a stream.

mod blocks;
mod gaps;
mod join;
mod report;

use std::time::{Duration, Instant};

use self::blocks::{Blocks, Lost, Place as BlockPlace, Unused};
use self::gaps::Gaps;
use self::join::Joins;
use self::report::Schedule;
use super::StreamId;
use super::clock::Clock;
use super::wire::{self, Data, FLAG_QUIET, Frame, Frames, Malformed, Parity, ToReceiver};
use crate::bitmap::{Bitmap, WORD};

/// How a [`Receiver`] is set up.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct ReceiverConfig {
    /// The stream's name within session and direction.
    pub stream: StreamId,
    /// Longest packet in bytes that the sender makes.
    pub max_packet: usize,
    /// Most bytes held for cut records that wait for further pieces, with what is kept for reuse:
    /// what the sender may have under way.
    pub join_buffer: usize,
    /// Longest record in bytes, at most 8 MiB.
    pub max_record: usize,
    /// Packets beyond the first missing one that are accepted. The sender's window should not be
    /// larger.
    pub window: usize,
    /// The round-trip time assumed until the sender tells.
    pub rtt_hint: Duration,
    /// A packet overtaken by others is not asked for before this time has passed ...
    pub reorder_time: Duration,
    /// ... and this many later packets have arrived (or `reorder_time` has passed without any).
    pub reorder_packets: usize,
    /// A block that has fallen silent without enough parity is asked for after
    /// `reorder_time + beta * RTT`.
    pub beta: f64,
    /// Most bytes held for decoding, with what is kept for reuse. Beyond it, the oldest blocks are
    /// repaired packet by packet.
    pub decode_buffer: usize,
}

/// In place of a round-trip time that packets cannot tell.
const LONGEST_RTT: Duration = Duration::from_secs(10);

/// Unless configured otherwise.
const WINDOW: usize = 32 << 10;

impl ReceiverConfig {
    /// Defaults that go with [`super::SenderConfig::new`], for packets of up to so many bytes.
    #[must_use]
    pub fn new(stream: StreamId, max_packet: usize) -> Self {
        Self {
            stream,
            max_packet,
            join_buffer: WINDOW.saturating_mul(max_packet),
            max_record: 64 << 10,
            window: WINDOW,
            rtt_hint: Duration::from_millis(50),
            reorder_time: Duration::from_millis(1),
            reorder_packets: 3,
            beta: 0.25,
            decode_buffer: 64 << 20,
        }
    }
}

/// Counters since the receiver was made. Packets unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReceiverStats {
    /// DATA and PARITY packets that arrived for this stream, copies included.
    pub arrived: u64,
    /// Bytes of them, headers included.
    pub bytes: u64,
    /// Data packets accepted from the wire: first of their number to arrive.
    pub data_packets: u64,
    /// Repairs among `data_packets`: what selective repeat brought back.
    pub repaired: u64,
    /// Data packets recovered from parity.
    pub decoded: u64,
    /// Data packets dropped because they had already arrived or been decoded.
    pub duplicates: u64,
    /// Data packets dropped because the stream had moved on by more than a window.
    pub late: u64,
    /// Data packets dropped because they lie beyond the window.
    pub beyond_window: u64,
    /// Packets that were missing when the sender gave them up.
    pub abandoned: u64,
    /// Parity packets that arrived.
    pub parity_packets: u64,
    /// Parity packets whose block needed none any more.
    pub parity_unused: u64,
    /// Records delivered.
    pub records: u64,
    /// Their bytes.
    pub record_bytes: u64,
    /// Blocks whose copies were given up for want of room, or did not decode; what they missed was
    /// repaired packet by packet.
    pub blocks_given_up: u64,
    /// Cut records given up: a piece of them was, or there was no room.
    pub records_abandoned: u64,
    /// Pieces dropped since they contradict others of their record.
    pub contradictions: u64,
    /// Pieces dropped since their record had been given up.
    pub late_pieces: u64,
    /// REPORT packets written.
    pub reports: u64,
    /// Packets asked for, repetitions included.
    pub nacks: u64,
    /// Malformed packets.
    pub malformed: u64,
}

/// Receives records over numbered packets.
///
/// # Driver contract
/// Feed every DATA and PARITY packet of the stream to [`Receiver::handle_packet`]; records are
/// delivered from within, each exactly once, in any order. After a batch of packets, and after
/// [`Receiver::handle_timeout`], call [`Receiver::poll_report`] until it returns `None`. Call
/// `handle_timeout` at or after [`Receiver::next_timeout`]. `now` must not run backwards; if it
/// does, it is taken as standing still.
///
/// # Bounds
/// Packets beyond the window are dropped and counted (the sender repairs them). What is held beyond
/// that, and what is kept for reuse, is [`Receiver::memory`], each part of which has its bound
/// ([`Receiver::set_bounds`]); a piece of a record or a copy may exceed it by itself. At
/// `join_buffer` the oldest incomplete records are given up and counted: only a stream that breaks
/// its own rules meets it. At `decode_buffer` the oldest blocks are repaired packet by packet.
/// A bitmap of two windows is held beside that.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Receiver {
    config: ReceiverConfig,
    clock: Clock,
    window: Window,
    joins: Joins,
    gaps: Gaps,
    #[serde(skip)]
    blocks: Blocks,
    /// The sender's round-trip time.
    rtt: Duration,
    /// The blocks at the end were asked for after this arrival; they are again only after another
    /// one.
    fallback_after: Option<u64>,
    schedule: Schedule,
    stats: ReceiverStats,
}

/// Which packets have arrived. Below `cumulative`, one window's worth of history tells late packets
/// from copies.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Window {
    bits: Bitmap,
    size: u64,
    /// Everything below has arrived or was given up by the sender.
    cumulative: u64,
    /// One past the highest packet that arrived.
    highest: u64,
}

enum Place {
    New,
    Duplicate,
    Late,
    Beyond,
}

impl Receiver {
    /// A receiver that has seen nothing.
    #[must_use]
    pub fn new(mut config: ReceiverConfig, now: Instant) -> Self {
        config.window = config.window.clamp(1, 1 << 24);
        config.max_record = config.max_record.min(wire::MAX_RECORD);
        Self {
            clock: Clock::new(now),
            window: Window {
                bits: Bitmap::new(2 * config.window + 2 * WORD as usize),
                size: config.window as u64,
                cumulative: 0,
                highest: 0,
            },
            joins: Joins::new(&config),
            gaps: Gaps::new(config.reorder_time, config.reorder_packets),
            blocks: Blocks::new(&config),
            rtt: config.rtt_hint,
            fallback_after: None,
            schedule: Schedule::new(config.rtt_hint),
            stats: ReceiverStats::default(),
            config,
        }
    }

    /// Takes a DATA or PARITY packet and delivers the records that it completes.
    ///
    /// # Errors
    /// [`Malformed`] if it is none or contradicts itself; it changed nothing but the counter.
    pub fn handle_packet(
        &mut self,
        packet: &[u8],
        now: Instant,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Malformed> {
        self.clock.advance(now);
        let parsed = self.parse(packet);
        let parsed = parsed.inspect_err(|_| self.stats.malformed += 1)?;
        self.stats.arrived += 1;
        self.stats.bytes += packet.len() as u64;
        let (flags, timestamp) = match parsed {
            ToReceiver::Data(header, _) => (header.flags, header.timestamp),
            ToReceiver::Parity(header, _) => (header.flags, header.timestamp),
        };
        self.schedule.arrived(packet.len(), timestamp, self.clock.micros());
        self.blocks.arrived(self.clock.micros());
        match parsed {
            ToReceiver::Data(header, payload) => self.handle_data(&header, payload, deliver),
            ToReceiver::Parity(header, symbol) => self.handle_parity(&header, symbol, deliver),
        }
        if flags & FLAG_QUIET != 0 {
            self.schedule.end(self.clock.micros());
        }
        self.blocks.settle(self.window.cumulative);
        self.stats.blocks_given_up = self.blocks.given_up();
        self.gaps.arrived(&self.window, self.clock.micros());
        self.look_for_losses();
        self.schedule.pace(self.clock.micros(), self.window.highest - self.window.cumulative);
        if self.window.cumulative == self.window.highest {
            self.schedule.whole(self.clock.micros());
        }
        Ok(())
    }

    /// How long an overtaken packet is waited for from now on, as [`ReceiverConfig::reorder_time`].
    /// What counts as lost already goes on doing so.
    pub fn set_reorder_time(&mut self, time: Duration) {
        self.config.reorder_time = time;
        self.gaps.set_time(time);
    }

    /// Writes the next part of a report to `out`; `None` if none is due. `out` should hold a whole
    /// packet; under 256 bytes, a report may not fit and none comes.
    pub fn poll_report(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        self.clock.advance(now);
        let len = self.write_report(out)?;
        self.stats.reports += 1;
        Some(len)
    }

    /// When [`Receiver::poll_report`] has a report next, as far as is known; `None` if there is
    /// nothing to report.
    #[must_use]
    pub fn next_report(&self) -> Option<Instant> {
        self.clock.at(self.schedule.due()?)
    }

    /// When [`Receiver::handle_timeout`] is due; `None` if no timer runs.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let gap = self.gaps.next_timeout(&self.window, self.schedule.last_arrival());
        let due = [self.schedule.due(), gap, self.fallback_at()];
        let due = due.into_iter().flatten().min()?;
        self.clock.at(due)
    }

    /// Runs the timers that are due; a report may be due after that.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.clock.advance(now);
        self.look_for_losses();
        if self.fallback_at().is_some_and(|at| at <= self.clock.micros()) {
            self.fallback_after = Some(self.schedule.last_arrival());
            self.schedule.alarm(self.clock.micros(), self.window.highest - self.window.cumulative);
        }
    }

    /// Gives back the memory kept for packets to come, up to what is bounded by window and
    /// `decode_buffer`. It is taken anew as it is needed.
    pub fn release_spare(&mut self) {
        self.blocks.release_spare();
        self.joins.release_spare();
    }

    /// Gives up the blocks under way: what is missing of them is asked for packet by packet. A
    /// snapshot has no blocks, so its writer does this, and so does its reader.
    pub fn begin_blocks_anew(&mut self) {
        self.release_spare();
        self.joins.make_whole();
        self.blocks = Blocks::anew(&self.config, self.window.highest, self.stats.blocks_given_up);
    }

    /// Bytes held for cut records, and for decoding, each with what is kept for reuse.
    #[must_use]
    pub fn memory(&self) -> [usize; 2] {
        [self.joins.memory(), self.blocks.memory()]
    }

    /// Changes the bounds of the two: `join_buffer` and `decode_buffer`. What is beyond goes with
    /// the next packet.
    pub fn set_bounds(&mut self, [join_buffer, decode_buffer]: [usize; 2]) {
        self.joins.set_bound(join_buffer);
        self.blocks.set_bound(decode_buffer);
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> &ReceiverStats {
        &self.stats
    }

    /// Checks all of the packet but whether its number is new.
    fn parse<'a>(&self, packet: &'a [u8]) -> Result<ToReceiver<'a>, Malformed> {
        let parsed = ToReceiver::parse(packet, self.window.highest)?;
        let stream = match parsed {
            ToReceiver::Data(header, _) => header.stream,
            ToReceiver::Parity(header, _) => header.stream,
        };
        if stream != self.config.stream {
            return Err(Malformed::Stream(stream));
        }
        if let ToReceiver::Data(header, payload) = parsed {
            self.check_frames(payload, header.sequence)?;
        }
        Ok(parsed)
    }

    fn check_frames(&self, payload: &[u8], sequence: u64) -> Result<(), Malformed> {
        for frame in Frames::new(payload, sequence) {
            match frame? {
                Frame::Cut(fragment) if fragment.total as usize > self.config.max_record => {
                    return Err(Malformed::RecordLength(fragment.total));
                }
                Frame::Whole(_) | Frame::Cut(_) => {}
            }
        }
        Ok(())
    }

    fn handle_data(&mut self, header: &Data, payload: &[u8], deliver: &mut dyn FnMut(&[u8])) {
        self.rtt = header.rtt.value().map_or(LONGEST_RTT, |rtt| Duration::from_micros(rtt * wire::RTT_UNIT));
        self.schedule.set_rtt(self.rtt);
        self.give_up_below(header.floor());
        match self.window.place(header.sequence) {
            Place::New => {}
            Place::Duplicate => {
                self.stats.duplicates += 1;
                return self.schedule.hurry(self.clock.micros()); // The sender did not know.
            }
            Place::Late => {
                self.stats.late += 1;
                return self.schedule.hurry(self.clock.micros());
            }
            Place::Beyond => {
                self.stats.beyond_window += 1;
                return self.schedule.hurry(self.clock.micros());
            }
        }
        self.stats.data_packets += 1;
        if header.flags & wire::FLAG_REPAIR != 0 {
            self.stats.repaired += 1;
        }
        self.accept(header.sequence, payload, deliver);
        if header.shape.is_coded() {
            let (sequence, position) = (header.sequence, header.position);
            let recovered = self.blocks.add_data(sequence, header.shape, position, payload);
            self.take_recovered(recovered, deliver);
        } else {
            self.blocks.add_uncoded(header.sequence);
        }
    }

    fn handle_parity(&mut self, header: &Parity, symbol: &[u8], deliver: &mut dyn FnMut(&[u8])) {
        self.stats.parity_packets += 1;
        match self.blocks.add_parity(header, symbol, &self.window) {
            Ok(recovered) => {
                // The data of the block was sent before its parity.
                self.window.sent(header.base + u64::from(header.count));
                self.take_recovered(recovered, deliver);
            }
            Err(Unused) => self.stats.parity_unused += 1,
        }
    }

    /// Accepts what was decoded.
    fn take_recovered(&mut self, place: Option<BlockPlace>, deliver: &mut dyn FnMut(&[u8])) {
        let Some(place) = place else { return };
        let recovered = std::mem::take(&mut self.blocks.recovered);
        for (index, payload) in recovered.iter() {
            let sequence = place.sequence(index);
            // A packet that does not parse was not what the sender encoded: it stays missing, and
            // is asked for.
            if matches!(self.window.place(sequence), Place::New)
                && self.check_frames(payload, sequence).is_ok()
            {
                self.stats.decoded += 1;
                self.accept(sequence, payload, deliver);
            }
        }
        self.blocks.recovered = recovered;
    }

    /// A data packet is here for the first time: its records go up at once.
    fn accept(&mut self, sequence: u64, payload: &[u8], deliver: &mut dyn FnMut(&[u8])) {
        self.window.set(sequence);
        let stats = &mut self.stats;
        let mut deliver = |record: &[u8]| {
            stats.records += 1;
            stats.record_bytes += record.len() as u64;
            deliver(record);
        };
        // Errors were ruled out for packets from the wire; a decoded packet ends at its first one.
        for frame in Frames::new(payload, sequence).map_while(Result::ok) {
            match frame {
                Frame::Whole(record) => deliver(record),
                Frame::Cut(fragment) => self.joins.add(&fragment, sequence, &mut deliver),
            }
        }
        self.stats.records_abandoned = self.joins.abandoned();
        self.stats.contradictions = self.joins.contradictions();
        self.stats.late_pieces = self.joins.late();
        self.window.settle();
    }

    /// The sender will repair nothing below `floor` any more.
    fn give_up_below(&mut self, floor: u64) {
        if floor > self.window.cumulative {
            self.stats.abandoned += self.window.skip_to(floor);
            self.joins.expire(self.window.low());
        }
    }

    fn look_for_losses(&mut self) {
        let moved = self.gaps.update(&self.window, self.clock.micros(), self.schedule.last_arrival());
        if moved.is_some_and(|from| self.blocks.is_news(from, self.lost(), &self.window)) {
            self.schedule.alarm(self.clock.micros(), self.window.highest - self.window.cumulative);
        }
    }

    fn lost(&self) -> Lost {
        Lost {
            horizon: self.gaps.horizon(),
            silent: self.schedule.last_arrival() + self.fallback() <= self.clock.micros(),
        }
    }

    /// When the blocks at the end are asked for, if nothing comes before that.
    fn fallback_at(&self) -> Option<u64> {
        let last = self.schedule.last_arrival();
        let missing = self.window.cumulative < self.window.highest;
        let open = missing && self.fallback_after != Some(last) && self.blocks.waits(self.gaps.horizon());
        open.then_some(last + self.fallback())
    }

    /// Silence after which no more of a block is expected.
    fn fallback(&self) -> u64 {
        let wait = self.config.reorder_time + self.rtt.mul_f64(self.config.beta.clamp(0.0, 100.0));
        wait.as_micros() as u64
    }
}

impl Window {
    fn place(&self, sequence: u64) -> Place {
        if sequence < self.low() {
            Place::Late
        } else if sequence >= self.cumulative + self.size {
            Place::Beyond
        } else if self.bits.get(sequence) {
            Place::Duplicate
        } else {
            Place::New
        }
    }

    /// The oldest packet that is remembered.
    fn low(&self) -> u64 {
        self.cumulative.saturating_sub(self.size)
    }

    fn set(&mut self, sequence: u64) {
        self.bits.set(sequence);
        self.highest = self.highest.max(sequence + 1);
    }

    /// The packets below `end` are known to have been sent.
    fn sent(&mut self, end: u64) {
        self.highest = self.highest.max(end);
    }

    /// Moves past what has arrived without a gap.
    fn settle(&mut self) {
        let end = self.bits.first_clear(self.cumulative, self.highest).unwrap_or(self.highest);
        self.move_to(end.max(self.cumulative));
    }

    /// Moves to `floor`, and past what stands there; the number of packets given up.
    fn skip_to(&mut self, floor: u64) -> u64 {
        let known = self.highest.clamp(self.cumulative, floor);
        let missing = self.bits.count_clear(self.cumulative, known) + (floor - known);
        self.move_to(floor);
        self.highest = self.highest.max(floor);
        self.settle();
        missing
    }

    fn move_to(&mut self, cumulative: u64) {
        let from = self.low();
        self.cumulative = cumulative;
        let to = self.low();
        // After a jump beyond the ring, every place of it is to be cleared once.
        let from = from.max(to.saturating_sub(self.bits.capacity() as u64));
        self.bits.clear(from, to);
    }
}
