//! The sending half of a stream.

mod copying;
mod group;
mod hybrid;
pub(crate) mod loss;
mod outlook;
pub(crate) mod protection;
mod queue;
mod redundancy;
mod reports;
mod schemes;
mod waiting;

pub use self::copying::Copying;
pub use self::waiting::{FIRST_OTHER, Origin};

use std::time::{Duration, Instant};

use self::loss::Loss;
use self::outlook::Hints;
use self::queue::Queue;
use self::redundancy::{Placement, Redundancy};
use super::clock::Clock;
use super::wire::{self, Coarse, Coding, DATA_HEADER, Data, FLAG_QUIET, FLAG_REPAIR};
use super::{InBlock, Scheme, StreamId, quiet};
use crate::rtt::Estimator;
use crate::times::Times;

/// How a [`Sender`] is set up.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct SenderConfig {
    /// The stream's name within session and direction.
    pub stream: StreamId,
    /// The first scheme; [`Sender::set_scheme`] changes it later.
    pub scheme: Scheme,
    /// Longest packet in bytes, as handed to the seal. At least 256 is used.
    pub max_packet: usize,
    /// Longest record in bytes, at most 8 MiB.
    pub max_record: usize,
    /// Most packets sent and not yet acknowledged, counted from the oldest one.
    pub window: usize,
    /// As many at first, until the receiver has said what it takes.
    pub first_window: usize,
    /// Most bytes pushed and not yet sent, framing included.
    pub max_backlog: usize,
    /// Most bytes held in all: backlog and what was sent and is not yet acknowledged.
    pub max_buffered: usize,
    /// The round-trip time assumed until the first measurement.
    pub rtt_hint: Duration,
    /// The receiver does not take a packet overtaken by others for lost before this time. Assumed
    /// until its reports tell.
    pub reorder_time: Duration,
    /// A block that found no more data is closed, and its parity sent, this long after its first
    /// packet; or a 64th of the round-trip time after its last one if nothing waits or is expected
    /// ([`Sender::expect`]), whichever is first.
    pub flush: Duration,
    /// Bits per second at which packets leave, for telling how long what remains will take. Without
    /// it, `hybrid` protects all packets.
    pub rate: Option<u64>,
    /// Where packets stand in their block is told ([`Sender::in_block`]): there is more than one
    /// lane to spread blocks over.
    pub tells_block: bool,
}

/// Bounds of `max_packet`.
const LEAST_PACKET: usize = 256;
const _: () = assert!(wire::MAX_RECORD / (LEAST_PACKET - DATA_HEADER - 11) < u16::MAX as usize);
const MOST_PACKET: usize = 65_000;

impl SenderConfig {
    /// Defaults for a path of `max_packet` bytes: selective repeat, a window of 32768 packets, 16
    /// MiB of backlog, 256 MiB in all.
    #[must_use]
    pub fn new(stream: StreamId, max_packet: usize) -> Self {
        Self {
            stream,
            scheme: Scheme::sr(),
            max_packet,
            max_record: 64 << 10,
            window: 32 << 10,
            first_window: usize::MAX,
            max_backlog: 16 << 20,
            max_buffered: 256 << 20,
            rtt_hint: Duration::from_millis(50),
            reorder_time: Duration::from_millis(1),
            flush: Duration::from_micros(200),
            rate: None,
            tells_block: true,
        }
    }
}

/// A record was refused, and nothing was taken of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// The backlog is full; room comes as packets are sent.
    #[error("the backlog is full")]
    Backlog,
    /// Backlog and unacknowledged packets together are at their limit; room comes with reports.
    #[error("too much is unacknowledged")]
    Buffered,
    /// Longer than `max_record`: it will never fit.
    #[error("the record is longer than this stream takes")]
    Oversize,
}

/// The kind of a transmitted packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitKind {
    /// Records, for the first time.
    Data,
    /// A packet again, since it was lost.
    Repair,
    /// Redundancy.
    Parity,
}

/// A packet was written to the buffer handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Its length in bytes.
    pub len: usize,
    /// Its kind.
    pub kind: TransmitKind,
}

/// Counters since the sender was made. Packets unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SenderStats {
    /// Records taken by `push`.
    pub records: u64,
    /// Their bytes, without framing.
    pub record_bytes: u64,
    /// Records refused by `push`.
    pub refused: u64,
    /// Data packets sent for the first time.
    pub data_packets: u64,
    /// Bytes of all packets sent, headers included.
    pub bytes: u64,
    /// Data packets sent again.
    pub repairs: u64,
    /// Repairs that the receiver turned out not to have needed: it reported the packet before the
    /// repair can have arrived.
    pub spurious_repairs: u64,
    /// Extra copies among the repairs, in case the first one is lost as well.
    pub copies: u64,
    /// Parity packets sent.
    pub parity_packets: u64,
    /// Further parity packets among these, for blocks that fell short.
    pub further_parities: u64,
    /// Blocks closed before they were full.
    pub short_blocks: u64,
    /// Packets that a receiver asked for, repetitions included.
    pub nacks: u64,
    /// Retransmission timeouts that led to a repair.
    pub rto_firings: u64,
    /// Repairs sent to find out whether the receiver is still there.
    pub probes: u64,
    /// Reports taken.
    pub reports: u64,
    /// DATA and PARITY packets that had arrived, copies included, by the newest report.
    pub reported_arrived: u64,
    /// How long data packets waited from their first record's push until they were first sent.
    pub queueing: Times,
}

/// How sources of records took turns, in bytes of packets sent for the first time, framing
/// included. Counts only grow. While so little waits that all share packets they are one source;
/// and of one that has no more waiting whenever its turn comes, nothing is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Alternation {
    /// Bytes of packets that waited already when the one before of the same source was sent.
    pub own: u64,
    /// Bytes of other sources' packets, sent between these two.
    pub others: u64,
}

impl Alternation {
    /// Counts another stream's as well.
    pub fn add(&mut self, other: Self) {
        self.own = self.own.saturating_add(other.own);
        self.others = self.others.saturating_add(other.others);
    }

    /// Returns the counts since it was `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { own: self.own.saturating_sub(earlier.own), others: self.others.saturating_sub(earlier.others) }
    }
}

/// Sends records over numbered packets.
///
/// # Driver contract
/// `push` records; while a packet may leave (ask the pacer first), call [`Sender::poll_transmit`]
/// until it returns `None`. Feed every REPORT to [`Sender::handle_report`]. Call
/// [`Sender::handle_timeout`] at or after [`Sender::next_timeout`]. After each of `push`,
/// `handle_report` and `handle_timeout`, there may be packets to transmit and another
/// `next_timeout`. `now` must not run backwards; if it does, it is taken as standing still.
///
/// # Bounds
/// At `max_backlog` or `max_buffered`, `push` answers [`Full`] and takes nothing. At `window`, or
/// at the receiver's advertised window if that is smaller, `poll_transmit` sends only repairs and
/// parity until reports make room. Packet metadata and buffers are bounded by the window and the
/// backlog together; `hybrid` keeps packets that have arrived until the others of their group have.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Sender {
    config: SenderConfig,
    clock: Clock,
    queue: Queue,
    /// First sequence number beyond the receiver's window.
    limit: u64,
    /// Packets that the receiver last said it has room for.
    advertised: u64,
    #[serde(skip, default = "schemes::nothing")]
    redundancy: Box<dyn Redundancy>,
    hints: Hints,
    /// Packets that leave while a loss is repaired, by the hinted rate and the measured round-trip
    /// time.
    repair_packets: u64,
    /// The scheme of the blocks to come, if it differs from the current one.
    next_scheme: Option<Scheme>,
    /// The largest `max_packet` so far: packets built for it may still be there.
    longest: usize,
    /// The largest window there may be: that of the beginning.
    most_window: usize,
    loss: Loss,
    rtt: Estimator,
    last_report: Option<u32>,
    #[serde(skip)]
    in_block: Option<InBlock>,
    stats: SenderStats,
}

impl Sender {
    /// An idle sender.
    #[must_use]
    pub fn new(mut config: SenderConfig, now: Instant) -> Self {
        config.max_packet = config.max_packet.clamp(LEAST_PACKET, MOST_PACKET);
        config.window = config.window.clamp(1, 1 << 24);
        config.max_record = config.max_record.min(wire::MAX_RECORD);
        let capacity = config.max_packet - DATA_HEADER;
        let mut sender = Self {
            clock: Clock::new(now),
            queue: Queue::new(capacity, config.window),
            limit: config.window.min(config.first_window) as u64,
            advertised: config.window.min(config.first_window) as u64,
            redundancy: schemes::new(config.scheme, capacity, &config),
            hints: Hints::new(config.rate),
            repair_packets: u64::MAX,
            next_scheme: None,
            longest: config.max_packet,
            most_window: config.window,
            loss: Loss::new(config.scheme.alpha(), config.reorder_time),
            rtt: Estimator::new(config.rtt_hint),
            last_report: None,
            in_block: None,
            stats: SenderStats::default(),
            config,
        };
        sender.foresee();
        sender
    }

    /// Takes one record: the concatenation of `record`'s slices.
    ///
    /// # Errors
    /// [`Full`] if a bound is reached; nothing was taken.
    pub fn push(&mut self, record: &[&[u8]], now: Instant) -> Result<(), Full> {
        self.push_from(Origin::default(), false, record, now)
    }

    /// Takes one record of a source, which may be any number, and its group: sources take turns
    /// (deficit round robin, RFC 8290), and share no packets but short ones, once more than 16 KiB
    /// wait. A source that has nothing waiting may go first, for 4 KiB. Groups take turns as well,
    /// whatever the number of their sources, and those from [`FIRST_OTHER`] on have half of the
    /// stream at most while others wait. Records leave in the order in which they were pushed, but
    /// for that.
    ///
    /// # Errors
    /// [`Full`] if a bound is reached; nothing was taken.
    pub fn push_from(
        &mut self,
        origin: Origin,
        goes_first: bool,
        record: &[&[u8]],
        now: Instant,
    ) -> Result<(), Full> {
        self.clock.advance(now);
        let len = record.iter().map(|part| part.len()).sum::<usize>();
        let result = self.admit(len);
        match result {
            Ok(()) => {
                self.queue.push(origin, goes_first, record, len, self.clock.micros());
                self.stats.records += 1;
                self.stats.record_bytes += len as u64;
            }
            Err(_) => self.stats.refused += 1,
        }
        result
    }

    /// Bytes pushed and not yet sent, framing included.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.queue.backlog()
    }

    /// Bytes sent and not yet acknowledged, or kept for parity over them; framing included.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// How sources took turns so far.
    #[must_use]
    pub fn alternation(&self) -> Alternation {
        self.queue.alternation()
    }

    /// The number of the packet in which the record pushed last ends, if all records are of one
    /// source; `None` before the first one. With [`Sender::first_unacknowledged`] it tells when a
    /// run of records is known to have arrived.
    #[must_use]
    pub fn last_packet(&self) -> Option<u64> {
        self.queue.newest()
    }

    /// The first of the packets `from..to` that is not acknowledged, sent or not; `None` if all
    /// are. Takes a step per 64 packets.
    #[must_use]
    pub fn first_unacknowledged(&self, from: u64, to: u64) -> Option<u64> {
        self.queue.first_unacknowledged(from, to)
    }

    /// Writes the next packet to `out`, which must hold the largest `max_packet` so far; `None` if
    /// there is none to send (or `out` is too short).
    pub fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<Transmit> {
        self.clock.advance(now);
        self.in_block = None;
        let out = out.get_mut(..self.longest)?;
        let transmit = self
            .transmit_repair(out)
            .or_else(|| self.transmit_parity(out))
            .or_else(|| self.transmit_data(out))
            .or_else(|| {
                self.flush_if_due();
                self.transmit_parity(out)
            })
            .or_else(|| self.transmit_copy(out))?;
        self.stats.bytes += transmit.len as u64;
        match transmit.kind {
            TransmitKind::Data => self.stats.data_packets += 1,
            TransmitKind::Repair => self.stats.repairs += 1,
            TransmitKind::Parity => self.stats.parity_packets += 1,
        }
        Some(transmit)
    }

    /// Where the packet that was polled last stands in its block, if it was sent for the first time
    /// and that is to be told ([`SenderConfig::tells_block`]).
    #[must_use]
    pub fn in_block(&self) -> Option<&InBlock> {
        self.in_block.as_ref()
    }

    /// Changes the scheme from the next block on; packets already sent keep theirs.
    pub fn set_scheme(&mut self, scheme: Scheme) {
        if scheme != self.config.scheme {
            self.config.scheme = scheme;
            self.next_scheme = Some(scheme);
            self.adopt_scheme();
        }
    }

    /// Gives up the blocks under way: what the receiver still lacks of them is repaired packet by
    /// packet. A snapshot has no blocks, so its writer does this, and so does its reader.
    pub fn begin_blocks_anew(&mut self) {
        self.redundancy = schemes::nothing();
        self.next_scheme = Some(self.config.scheme);
        self.adopt_scheme();
    }

    /// Changes when a block that finds no more data is closed, from the next block on.
    pub fn set_flush(&mut self, flush: Duration) {
        if flush != self.config.flush {
            self.config.flush = flush;
            self.next_scheme.get_or_insert(self.config.scheme);
            self.adopt_scheme();
        }
    }

    /// Changes how long packets are built from now on; those that wait keep their length. Longer
    /// ones than ever before are built once the block under way is closed, and what the receiver
    /// still lacks of earlier blocks then is repaired packet by packet.
    pub fn set_max_packet(&mut self, bytes: usize) {
        let bytes = bytes.clamp(LEAST_PACKET, MOST_PACKET);
        if bytes == self.config.max_packet {
            return;
        }
        self.config.max_packet = bytes;
        if bytes <= self.longest {
            self.queue.set_capacity(bytes - DATA_HEADER);
        } else {
            self.next_scheme.get_or_insert(self.config.scheme);
            self.adopt_scheme();
        }
        self.foresee();
    }

    /// Changes [`SenderConfig::window`], up to what it was at first.
    pub fn set_window(&mut self, packets: usize) {
        self.config.window = packets.clamp(1, self.most_window);
    }

    /// Changes the bounds of what [`Sender::push`] takes. What is held already stays, also beyond
    /// them.
    pub fn set_limits(&mut self, max_backlog: usize, max_buffered: usize) {
        self.config.max_backlog = max_backlog;
        self.config.max_buffered = max_buffered;
    }

    /// The scheme last set.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.config.scheme
    }

    /// Nothing to send and nothing unacknowledged. Parity may still be on its way out; it serves no
    /// one any more.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// When [`Sender::handle_timeout`] is due; `None` if no timer runs.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let flush = self.flush_at().filter(|_| self.is_stalled());
        let loss = self.loss.next_timeout(&self.queue, &self.rtt, &*self.redundancy);
        let due = match (flush, loss) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }?;
        self.clock.at(due)
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.clock.advance(now);
        self.flush_if_due();
        self.loss.handle_timeout(
            self.clock.micros(),
            &mut self.queue,
            &self.rtt,
            &*self.redundancy,
            &mut self.stats,
        );
        self.loss.settle(&self.queue);
    }

    /// Copies packets ahead of a snapshot, for about so many bytes' time: `budget` is lessened by
    /// that. Returns true once it has come to all of them.
    pub fn copy_ahead(&mut self, at: &mut Copying, to: &mut snapshot::Beside, budget: &mut usize) -> bool {
        self.queue.copy_ahead(at, to, budget)
    }

    /// Gives back the memory kept for packets to come, up to a window's worth. It is taken anew as
    /// it is needed.
    pub fn release_spare(&mut self) {
        self.queue.release_spare();
        self.redundancy.release_spare();
        self.loss.release_spare();
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> &SenderStats {
        &self.stats
    }

    /// The path's round-trip time as measured from reports.
    #[must_use]
    pub fn rtt(&self) -> &Estimator {
        &self.rtt
    }

    /// How long the receiver waits for a packet that others have overtaken, as it says.
    #[must_use]
    pub fn reorder_time(&self) -> Duration {
        self.config.reorder_time
    }

    fn admit(&self, len: usize) -> Result<(), Full> {
        if len > self.config.max_record {
            return Err(Full::Oversize);
        }
        // A record always fits into an empty backlog, so that no limit set too low stops a stream
        // for good.
        let (backlog, in_flight) = (self.backlog(), self.in_flight());
        if backlog > 0 && backlog + len > self.config.max_backlog {
            return Err(Full::Backlog);
        }
        if backlog + in_flight > 0 && backlog + in_flight + len > self.config.max_buffered {
            return Err(Full::Buffered);
        }
        Ok(())
    }

    fn transmit_repair(&mut self, out: &mut [u8]) -> Option<Transmit> {
        let sequence = self.loss.next_repair(&self.queue)?;
        let quiet = self.loss.repairs_waiting() == 0 && self.is_stalled();
        let header = self.header(sequence, FLAG_REPAIR | if quiet { FLAG_QUIET } else { 0 });
        let copies = self.loss.probe_copies(sequence).unwrap_or_else(|| self.copies());
        self.loss.repaired(sequence, copies, self.clock.micros(), &mut self.queue, &self.rtt);
        let len = write_data(out, &header, &self.queue.slot(sequence)?.bytes)?;
        Some(Transmit { len, kind: TransmitKind::Repair })
    }

    /// When there is nothing else to send: until then, the repair may turn out to have arrived.
    fn transmit_copy(&mut self, out: &mut [u8]) -> Option<Transmit> {
        let sequence = self.loss.next_copy(self.clock.micros(), &mut self.queue)?;
        let quiet = self.loss.copies_waiting() == 0;
        let header = self.header(sequence, FLAG_REPAIR | if quiet { FLAG_QUIET } else { 0 });
        let len = write_data(out, &header, &self.queue.slot(sequence)?.bytes)?;
        self.stats.copies += 1;
        Some(Transmit { len, kind: TransmitKind::Repair })
    }

    fn transmit_parity(&mut self, out: &mut [u8]) -> Option<Transmit> {
        let (mut header, symbol) = self.redundancy.poll_parity(&self.queue, self.clock.micros(), out)?;
        header.stream = self.config.stream;
        header.timestamp = self.timestamp();
        self.stats.further_parities += u64::from(header.flags & FLAG_REPAIR != 0);
        // Each of them may be the one that makes the transfer whole, and the last one may be lost.
        if self.is_stalled() {
            header.flags |= FLAG_QUIET;
        }
        header.emit(out.first_chunk_mut()?);
        self.adopt_scheme();
        if self.config.tells_block && header.flags & FLAG_REPAIR == 0 {
            self.in_block = Some(header.place());
        }
        Some(Transmit { len: wire::PARITY_HEADER + symbol, kind: TransmitKind::Parity })
    }

    fn transmit_data(&mut self, out: &mut [u8]) -> Option<Transmit> {
        let sequence = self.queue.next();
        let unset = wire::Shape::uncoded(Coding::Sr);
        if sequence >= self.window_end() {
            return None;
        }
        let since = self.queue.transmit_next(self.clock.micros(), unset)?;
        self.stats.queueing.note(self.clock.micros().saturating_sub(since));
        let outlook = self.outlook();
        let placement = self.redundancy.add(sequence, &self.queue, &outlook, self.clock.micros());
        let slot = self.queue.slot_mut(sequence)?;
        (slot.shape, slot.position, slot.held) = (placement.shape, placement.position, placement.held);
        let unrepaired = slot.shape.coding == Coding::None;
        let quiet = self.is_stalled();
        let header = self.header(sequence, if quiet { FLAG_QUIET } else { 0 });
        let len = write_data(out, &header, &self.queue.slot(sequence)?.bytes)?;
        if unrepaired {
            self.queue.acknowledge(sequence);
            self.queue.release();
            self.loss.settle(&self.queue);
        }
        if self.config.tells_block && placement.shape.is_coded() {
            self.in_block = Some(self.place(sequence, placement));
        }
        self.adopt_scheme();
        Some(Transmit { len, kind: TransmitKind::Data })
    }

    /// Where a data packet stands that was placed so.
    fn place(&self, sequence: u64, Placement { shape, position, .. }: Placement) -> InBlock {
        let wire::Shape { k, m, depth, .. } = shape;
        let row = (position / u16::from(depth)) as u8;
        let missing = usize::from(shape.packets() - position - 1);
        let is_filled = self.queue.backlog() >= missing * (self.config.max_packet - DATA_HEADER);
        let lanes = shape.lanes(u32::from(position) + 1);
        let spare = if is_filled { m } else { protection::parities(shape, usize::from(row) + 1, lanes) };
        InBlock { group: sequence - u64::from(position), row, is_parity: false, k, m, depth, spare }
    }

    fn header(&self, sequence: u64, flags: u8) -> Data {
        let (shape, position) = self
            .queue
            .slot(sequence)
            .map_or((wire::Shape::uncoded(Coding::Sr), 0), |slot| (slot.shape, slot.position));
        // What is not repaired is given up as it is sent, so the floor of such a packet is the
        // packet itself.
        let floor = self.queue.base().min(sequence);
        let rtt = self.rtt.smoothed().as_micros() as u64 / wire::RTT_UNIT;
        Data {
            flags,
            stream: self.config.stream,
            timestamp: self.timestamp(),
            sequence,
            shape,
            position,
            rtt: Coarse::at_least(rtt),
            floor: Coarse::at_least(sequence - floor),
        }
    }

    /// The sending time of what leaves now, as packets tell it.
    fn timestamp(&self) -> u32 {
        (self.clock.micros() % wire::TIME_SPAN / wire::TIME_UNIT) as u32
    }

    /// First sequence number that may not be sent yet.
    fn window_end(&self) -> u64 {
        let base = self.queue.base();
        // Unrepaired packets are acknowledged by nobody: the receiver follows the floor, so its
        // room counts from there.
        let receiver = self.limit.max(base + self.advertised);
        receiver.min(base + self.config.window as u64)
    }

    /// Nothing can be sent for the first time: no backlog, or no window.
    fn is_stalled(&self) -> bool {
        self.queue.backlog() == 0 || self.queue.next() >= self.window_end()
    }

    /// When the block under way is to be closed. What waits for room in the window, and what is
    /// still to come of a message that is half here, is waited for.
    fn flush_at(&self) -> Option<u64> {
        let is_all = self.hints.expected == 0 && self.queue.backlog() == 0;
        let quiet = is_all.then(|| quiet(self.rtt.smoothed()).as_micros() as u64);
        self.redundancy.flush_at(quiet)
    }

    fn flush_if_due(&mut self) {
        if self.is_stalled() && self.flush_at().is_some_and(|at| at <= self.clock.micros()) {
            let mut outlook = self.outlook();
            if self.queue.backlog() == 0 {
                // Whatever is expected, it is not here in time.
                outlook.remaining = 0;
            }
            self.redundancy.close(&outlook, self.clock.micros());
            self.stats.short_blocks += 1;
        }
    }

    /// Takes up the scheme asked for, if no block is under way.
    fn adopt_scheme(&mut self) {
        if self.redundancy.is_between_blocks()
            && let Some(scheme) = self.next_scheme.take()
        {
            if self.config.max_packet > self.longest {
                // Of longer packets fewer are kept.
                self.queue.release_spare();
                self.longest = self.config.max_packet;
            }
            // Room for any packet that was built: also longer ones than are built by now.
            self.redundancy = schemes::new(scheme, self.longest - DATA_HEADER, &self.config);
            self.queue.set_capacity(self.config.max_packet - DATA_HEADER);
            self.loss.set_alpha(scheme.alpha());
            // What the former scheme held is repaired packet by packet from now on.
            self.queue.unhold(self.queue.base(), self.queue.next());
            self.queue.release();
        }
    }
}

fn write_data(out: &mut [u8], header: &Data, payload: &[u8]) -> Option<usize> {
    let (head, _) = out.split_first_chunk_mut::<DATA_HEADER>()?;
    let begin = header.emit(head);
    let end = begin + payload.len();
    out.get_mut(begin..end)?.copy_from_slice(payload);
    Some(end)
}
