//! Parity, accumulated packet by packet.

use crate::{
    Code, Engine, Kind, MAX_PACKET, PARITY_OVERHEAD, Source,
    engine::{self, MAX_BATCH},
    gf,
    interleaved::Interleaved,
    rows::{Header, Rows, header, plus},
};

/// Accumulates the parity of one block at a time.
///
/// `push` each data packet as it is sent, or [`push_batch`](Self::push_batch) so many as
/// [`batch`](Self::batch) says, four at most: what limits the wider engines is reading and writing
/// the parities, and that is done once for a batch. So the work is spread evenly, and none is left
/// for the block's end but that for a batch the caller has not pushed yet. No packet is copied.
/// When the block is closed - full or early - read [`parity`](Self::parity) `0..`
/// [`parity_count`](Self::parity_count), then `reset` for the next. Parity may be read at any time;
/// it is that of the packets pushed so far.
///
/// Holds `m (max_packet + ~128)` bytes, allocated once; on an engine that
/// [`interleaves`](Engine::interleaves) twice that. At `k` packets `push` refuses with
/// [`PushError::Full`].
#[derive(Debug)]
pub struct Encoder {
    code: Code,
    engine: &'static dyn Engine,
    max_packet: usize,
    pushed: usize,
    longest: usize,
    /// The first packet's header.
    common: Header,
    /// One row per parity; in their headers only by how much packets' headers differ from `common`,
    /// if the code is MDS.
    rows: Rows,
    /// The bodies' sums, where the engine would rather have them so.
    interleaved: Option<Interleaved>,
    /// True if `rows` holds all that is in `interleaved`.
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
    /// An encoder for packets of up to `max_packet` bytes (at most [`MAX_PACKET`], to which it is
    /// clamped), on the fastest engine.
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
        Self {
            code,
            engine,
            max_packet,
            pushed: 0,
            longest: 0,
            common: [0; 2],
            rows,
            interleaved,
            stored: true,
        }
    }

    /// Adds the block's next data packet, and returns its index in the block. Empty packets count
    /// as any other.
    pub fn push(&mut self, packet: &[u8]) -> Result<usize, PushError> {
        self.push_batch(&[packet])
    }

    /// Adds the block's next data packets, and returns the index of the first. Either all are added
    /// or, on error, none.
    pub fn push_batch(&mut self, packets: &[&[u8]]) -> Result<usize, PushError> {
        let first = self.pushed;
        if packets.len() > self.code.k() - first {
            return Err(PushError::Full);
        }
        if let Some(packet) = packets.iter().find(|packet| packet.len() > self.max_packet) {
            return Err(PushError::TooLong { len: packet.len(), max: self.max_packet });
        }
        match self.code.kind() {
            Kind::Mds => packets.chunks(self.batch()).for_each(|batch| self.add_batch(batch)),
            Kind::Xor => {
                for (index, packet) in (first..).zip(packets) {
                    self.rows.add_to(self.engine, index % self.code.m(), header(packet.len()), packet);
                    self.pushed += 1;
                }
            }
        }
        self.longest = packets.iter().map(|packet| packet.len()).fold(self.longest, usize::max);
        Ok(first)
    }

    /// How many packets are best pushed together, 1 to 4.
    pub fn batch(&self) -> usize {
        match self.code.kind() {
            Kind::Mds if self.interleaved.is_none() => engine::batch(self.engine),
            Kind::Mds | Kind::Xor => 1,
        }
    }

    /// Adds at most [`MAX_BATCH`] packets to the parities of an MDS code.
    fn add_batch(&mut self, packets: &[&[u8]]) {
        let mut sources = [Source::default(); MAX_BATCH];
        for (source, bytes) in sources.iter_mut().zip(packets) {
            let (coefs, header) = (self.code.column(self.pushed), header(bytes.len()));
            if self.pushed == 0 {
                self.common = header;
            }
            // Nothing, for most blocks.
            self.rows.add_header(self.engine, coefs, plus(header, self.common));
            *source = Source { coefs, bytes };
            self.pushed += 1;
        }
        let sources = sources.get(..packets.len()).unwrap_or_default();
        match &mut self.interleaved {
            Some(sums) => {
                sources.iter().for_each(|source| sums.add(source.coefs, source.bytes));
                self.stored = false;
            }
            None => {
                let longest = packets.iter().map(|packet| packet.len()).max().unwrap_or(0);
                self.rows.add_bodies(self.engine, sources, longest);
            }
        }
    }

    /// Begins the next block.
    pub fn reset(&mut self) {
        if let Some(sums) = &mut self.interleaved {
            sums.clear(self.longest);
        }
        self.rows.clear();
        self.stored = true;
        self.pushed = 0;
        self.longest = 0;
    }

    /// Parity `i` of the packets pushed so far, [`parity_len`](Self::parity_len) bytes; `None` from
    /// `m` on.
    ///
    /// Exclusive because the parities are put in place only here; it changes nothing that can be
    /// seen.
    pub fn parity(&mut self, i: usize) -> Option<&[u8]> {
        if let (Some(sums), false) = (&self.interleaved, self.stored) {
            sums.store(&mut self.rows, self.longest);
            self.stored = true;
        }
        let weight = self.code.weight(i, self.pushed);
        self.rows.symbol(i, self.longest, self.common.map(|byte| gf::mul(weight, byte)))
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

    /// Returns true if the block has no packet yet.
    pub fn is_empty(&self) -> bool {
        self.pushed == 0
    }

    /// Returns true if the block has all `k` packets.
    pub fn is_full(&self) -> bool {
        self.pushed >= self.code.k()
    }

    /// The code in use.
    pub fn code(&self) -> &Code {
        &self.code
    }
}
