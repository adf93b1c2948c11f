//! Parity, accumulated packet by packet.

use crate::{
    Code, Engine, Kind, MAX_PACKET, PARITY_OVERHEAD, Source,
    engine::{self, MAX_BATCH},
    interleaved::Interleaved,
    rows::Rows,
};

/// Accumulates the parity of one block at a time.
///
/// `push` each data packet as it is sent; the work is spread evenly, over as many packets as the engine takes at once ([`Engine::batch`], four at
/// most), and none but these is left for the block's end. When the block is closed - full
/// or early - read [`parity`](Self::parity) `0..` [`parity_count`](Self::parity_count), then `reset` for the next. Parity may be
/// read at any time; it is that of the packets pushed so far.
///
/// Holds `m (max_packet + ~128)` bytes, and up to three packets for a batch, allocated once; on an engine that [`interleaves`](Engine::interleaves) twice
/// the former. At `k` packets `push` refuses with [`PushError::Full`].
#[derive(Debug)]
pub struct Encoder {
    code: Code,
    engine: &'static dyn Engine,
    max_packet: usize,
    pushed: usize,
    longest: usize,
    /// One row per parity, zero beyond the first `longest` bytes of its body.
    rows: Rows,
    /// Packets that wait until they make a batch, `max_packet` bytes for each.
    waiting: Vec<u8>,
    /// How long they are.
    lengths: [usize; MAX_BATCH],
    /// How many they are.
    waits: usize,
    /// The bodies' sums, where the engine would rather have them so.
    interleaved: Option<Interleaved>,
    /// What is in `interleaved` is in `rows`.
    stored: bool,
}

/// Why a packet cannot join the block. The block is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The block has its `k` packets.
    #[error("the block has all of its data packets")]
    Full,
    /// Longer than the encoder was made for.
    #[error("a packet of {len} bytes is longer than the {max} this encoder was made for")]
    TooLong {
        /// Bytes of the packet.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
}

impl Encoder {
    /// An encoder for packets of up to `max_packet` bytes (at most [`MAX_PACKET`], to which it is clamped), on the fastest engine.
    pub fn new(code: Code, max_packet: usize) -> Self {
        Self::with_engine(code, max_packet, engine::detect())
    }

    /// The same on an engine of the caller's choice.
    pub fn with_engine(code: Code, max_packet: usize, engine: &'static dyn Engine) -> Self {
        let max_packet = max_packet.min(MAX_PACKET);
        let mut rows = Rows::default();
        rows.prepare(code.m(), max_packet);
        // XOR codes add a packet to one row only; and a single row gains nothing.
        let interleaves = engine.interleaves() && code.kind() == Kind::Mds && code.m() > 1;
        let interleaved = interleaves.then(|| Interleaved::new(code.m(), max_packet));
        let waiting = if code.kind() == Kind::Mds { engine::batch(engine) - 1 } else { 0 };
        Self {
            code,
            engine,
            max_packet,
            pushed: 0,
            longest: 0,
            rows,
            waiting: vec![0; waiting * max_packet],
            lengths: [0; MAX_BATCH],
            waits: 0,
            interleaved,
            stored: true,
        }
    }

    /// Adds the block's next data packet, and returns its index in the block. Empty packets count as any other.
    pub fn push(&mut self, packet: &[u8]) -> Result<usize, PushError> {
        let index = self.pushed;
        if index >= self.code.k() {
            return Err(PushError::Full);
        }
        let header = match u16::try_from(packet.len()) {
            Ok(len) if packet.len() <= self.max_packet => len.to_be_bytes(),
            _ => {
                return Err(PushError::TooLong { len: packet.len(), max: self.max_packet });
            }
        };
        match self.code.kind() {
            Kind::Mds => {
                let coefs = self.code.column(index);
                self.rows.add_header(self.engine, coefs, header);
                if let Some(sums) = &mut self.interleaved {
                    sums.add(coefs, packet);
                    self.stored = false;
                } else if !self.wait(packet) {
                    self.add_waiting(Some(packet));
                }
            }
            Kind::Xor => self.rows.add_to(self.engine, index % self.code.m(), header, packet),
        }
        self.pushed += 1;
        self.longest = self.longest.max(packet.len());
        Ok(index)
    }

    /// Keeps the packet for a batch, unless it is the last one of it.
    fn wait(&mut self, packet: &[u8]) -> bool {
        if self.waits + 1 >= engine::batch(self.engine) {
            return false;
        }
        let begin = self.waits * self.max_packet;
        let slot = self.waiting.get_mut(begin..begin + packet.len());
        let (Some(slot), Some(length)) = (slot, self.lengths.get_mut(self.waits)) else { return false };
        slot.copy_from_slice(packet);
        *length = packet.len();
        self.waits += 1;
        true
    }

    /// Adds what waits, and the packet after it, to the rows.
    fn add_waiting(&mut self, last: Option<&[u8]>) {
        let first = self.pushed - self.waits;
        let mut sources = [Source::default(); MAX_BATCH];
        let packets = self.waiting.chunks(self.max_packet.max(1)).zip(self.lengths).take(self.waits);
        let packets = packets.map(|(slot, length)| slot.get(..length).unwrap_or_default()).chain(last);
        let mut count = 0;
        for ((place, bytes), source) in packets.enumerate().zip(&mut sources) {
            *source = Source { coefs: self.code.column(first + place), bytes };
            count += 1;
        }
        self.rows.add_bodies(self.engine, sources.get(..count).unwrap_or_default());
        self.waits = 0;
    }

    /// Begins the next block.
    pub fn reset(&mut self) {
        match &mut self.interleaved {
            // The rows' bodies are written anew when they are asked for.
            Some(sums) => {
                sums.clear(self.longest);
                self.rows.clear(0);
            }
            None => self.rows.clear(self.longest),
        }
        self.stored = true;
        self.waits = 0;
        self.pushed = 0;
        self.longest = 0;
    }

    /// Parity `i` of the packets pushed so far, [`parity_len`](Self::parity_len) bytes; `None` from `m` on.
    ///
    /// Exclusive because the parities are put in place only here; it changes nothing that can be seen.
    pub fn parity(&mut self, i: usize) -> Option<&[u8]> {
        if let (Some(sums), false) = (&self.interleaved, self.stored) {
            sums.store(&mut self.rows, self.longest);
            self.stored = true;
        }
        if self.waits > 0 {
            self.add_waiting(None);
        }
        self.rows.symbol(i, self.longest)
    }

    /// How many parity packets, from 0 on, protect anything so far; see [`Code::parity_for`].
    pub fn parity_count(&self) -> usize {
        self.code.parity_for(self.pushed)
    }

    /// Bytes of each parity packet: 2 more than the longest data packet.
    pub fn parity_len(&self) -> usize {
        PARITY_OVERHEAD + self.longest
    }

    /// Data packets pushed into this block.
    pub fn len(&self) -> usize {
        self.pushed
    }

    /// Whether the block has no packet yet.
    pub fn is_empty(&self) -> bool {
        self.pushed == 0
    }

    /// Whether the block has all `k` packets.
    pub fn is_full(&self) -> bool {
        self.pushed >= self.code.k()
    }

    /// The code in use.
    pub fn code(&self) -> &Code {
        &self.code
    }
}
