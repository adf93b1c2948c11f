//! Recovery of a block's missing packets.

use crate::{
    Code, Engine, Kind, MAX_PACKET, PARITY_OVERHEAD, Source,
    engine::{self, MAX_BATCH},
    rows::{Header, Rows},
};

/// Recovers missing packets. Holds nothing between blocks but scratch memory, so one serves any number of codes and streams.
///
/// For `e` missing packets it accumulates `e` syndromes (parity less what the present data contributed) in one pass over the data, and
/// solves the `e x e` system; nothing of size `k x k` is ever inverted.
///
/// Scratch grows to the largest `e x packet` met, at most `m` parity packets' worth, and is never given back.
#[derive(Debug)]
pub struct Decoder {
    engine: &'static dyn Engine,
    syndromes: Rows,
    missing: Vec<usize>,
    /// The parity that makes up for each missing packet, in the same order.
    used: Vec<usize>,
    inverse: Vec<u8>,
    coefs: Vec<u8>,
}

/// The packets a [`Decoder`] recovered, in reusable memory of the caller's, which grows like the decoder's own. With XOR codes the two trade
/// their memory instead of copying.
#[derive(Debug, Default)]
pub struct Recovered {
    rows: Rows,
    /// Index in the block and length in bytes, by row.
    packets: Vec<(usize, usize)>,
}

/// Why nothing was recovered. What the network brings can cause each of these; none leaves a trace in the decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// More data packets than the code has.
    #[error("a block of {data} data packets in a code of {k}")]
    TooMuchData {
        /// Data packets claimed.
        data: usize,
        /// The code's.
        k: usize,
    },
    /// More parity packets than the code has.
    #[error("a block of {parity} parity packets in a code of {m}")]
    TooMuchParity {
        /// Parity packets claimed.
        parity: usize,
        /// The code's.
        m: usize,
    },
    /// Too few parity packets, or not those of the XOR classes that have losses.
    #[error("{missing} data packets are missing, {shortfall} more than the parity at hand makes up for")]
    Unrecoverable {
        /// Data packets missing.
        missing: usize,
        /// How many of them are beyond recovery, see [`Code::shortfall`].
        shortfall: usize,
    },
    /// A parity packet too short or too long to be one, or of another length than its siblings.
    #[error("parity {index} has an impossible length of {len} bytes")]
    ParityLength {
        /// Which parity packet.
        index: usize,
        /// Its bytes.
        len: usize,
    },
    /// A data packet longer than the parity says any of the block is.
    #[error("data packet {index} has {len} bytes where the parity covers {longest}")]
    DataLength {
        /// Which data packet.
        index: usize,
        /// Its bytes.
        len: usize,
        /// Bytes of the longest packet according to the parity.
        longest: usize,
    },
    /// The packet recovered for this index is none: its length exceeds its bytes, or its padding is not zero. Some packet of the block is
    /// not what was encoded.
    #[error("the block is inconsistent: data packet {index} does not come out as a packet")]
    Inconsistent {
        /// Which data packet.
        index: usize,
    },
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder on the fastest engine.
    pub fn new() -> Self {
        Self::with_engine(engine::detect())
    }

    /// A decoder on an engine of the caller's choice.
    pub fn with_engine(engine: &'static dyn Engine) -> Self {
        Self {
            engine,
            syndromes: Rows::default(),
            missing: Vec::new(),
            used: Vec::new(),
            inverse: Vec::new(),
            coefs: Vec::new(),
        }
    }

    /// Recovers every `None` in `data` into `out`, and returns how many there were.
    ///
    /// `data` is the block as it was encoded: one entry per data packet pushed, hence of the block's own length `k' <= k`. `parity` is by
    /// parity index; it may end early. On error `out` is empty.
    pub fn decode(
        &mut self,
        code: &Code,
        data: &[Option<&[u8]>],
        parity: &[Option<&[u8]>],
        out: &mut Recovered,
    ) -> Result<usize, DecodeError> {
        out.packets.clear();
        self.plan(code, data, parity)?;
        if self.missing.is_empty() {
            return Ok(0);
        }
        let longest = self.load_parity(parity)?;
        check_data(data, longest)?;
        self.subtract_data(code, data);
        match code.kind() {
            Kind::Mds => self.solve(code, longest, &mut out.rows),
            // Each syndrome is the missing packet of its class.
            Kind::Xor => std::mem::swap(&mut self.syndromes, &mut out.rows),
        }
        out.read_lengths(&self.missing, longest)?;
        Ok(out.packets.len())
    }

    /// Finds what is missing, and the parity to recover it from.
    fn plan(
        &mut self,
        code: &Code,
        data: &[Option<&[u8]>],
        parity: &[Option<&[u8]>],
    ) -> Result<(), DecodeError> {
        let (k, m) = (code.k(), code.m());
        if data.len() > k {
            return Err(DecodeError::TooMuchData { data: data.len(), k });
        }
        if parity.len() > m {
            return Err(DecodeError::TooMuchParity { parity: parity.len(), m });
        }
        self.missing.clear();
        self.missing.extend(indices(data, Option::is_none));
        let shortfall = code.shortfall(
            data.len(),
            |j| data.get(j).is_some_and(Option::is_some),
            |i| parity.get(i).is_some_and(Option::is_some),
        );
        if shortfall > 0 {
            return Err(DecodeError::Unrecoverable { missing: self.missing.len(), shortfall });
        }
        self.used.clear();
        match code.kind() {
            Kind::Mds => self.used.extend(indices(parity, Option::is_some).take(self.missing.len())),
            Kind::Xor => self.used.extend(self.missing.iter().map(|j| j % m)),
        }
        Ok(())
    }

    /// Starts each syndrome as its parity packet, and returns how long the longest data packet is.
    fn load_parity(&mut self, parity: &[Option<&[u8]>]) -> Result<usize, DecodeError> {
        let at = |i: usize| parity.get(i).copied().flatten().unwrap_or_default();
        let len = self.used.first().map_or(0, |&i| at(i).len());
        let longest = len.saturating_sub(PARITY_OVERHEAD);
        self.syndromes.prepare(self.used.len(), longest.min(MAX_PACKET));
        for (row, &index) in self.used.iter().enumerate() {
            match at(index).split_first_chunk() {
                Some((&header, body)) if body.len() == longest && longest <= MAX_PACKET => {
                    self.syndromes.load(row, header, body);
                }
                _ => {
                    let len = at(index).len();
                    return Err(DecodeError::ParityLength { index, len });
                }
            }
        }
        Ok(longest)
    }

    /// Takes what the present data contributed out of the syndromes.
    fn subtract_data(&mut self, code: &Code, data: &[Option<&[u8]>]) {
        let present = data.iter().enumerate().filter_map(|(j, packet)| Some((j, (*packet)?)));
        match code.kind() {
            Kind::Mds => {
                let mut present = present.peekable();
                while present.peek().is_some() {
                    self.subtract_batch(code, present.by_ref().take(engine::batch(self.engine)));
                }
            }
            Kind::Xor => {
                for (j, packet) in present {
                    if let Some(row) = self.used.iter().position(|&i| i == j % code.m()) {
                        self.syndromes.add_to(self.engine, row, header(packet.len()), packet);
                    }
                }
            }
        }
    }

    fn subtract_batch<'a>(&mut self, code: &Code, packets: impl Iterator<Item = (usize, &'a [u8])>) {
        let rows = self.used.len();
        let mut batch = [[].as_slice(); MAX_BATCH];
        let mut count = 0;
        self.coefs.clear();
        for ((j, packet), slot) in packets.zip(&mut batch) {
            let column = code.column(j);
            self.coefs.extend(self.used.iter().map(|&i| column.get(i).copied().unwrap_or_default()));
            let coefs = self.coefs.get(count * rows..).unwrap_or_default();
            self.syndromes.add_header(self.engine, coefs, header(packet.len()));
            *slot = packet;
            count += 1;
        }
        let mut sources = [Source::default(); MAX_BATCH];
        for ((source, coefs), bytes) in sources.iter_mut().zip(self.coefs.chunks(rows.max(1))).zip(batch) {
            *source = Source { coefs, bytes };
        }
        self.syndromes.add_bodies(self.engine, sources.get(..count).unwrap_or_default());
    }

    /// Multiplies the syndromes by the inverse of the coefficients of the missing packets.
    fn solve(&mut self, code: &Code, longest: usize, out: &mut Rows) {
        let missing = self.missing.len();
        code.invert(&self.used, &self.missing, &mut self.inverse);
        out.prepare(missing, longest);
        let batch = engine::batch(self.engine);
        for (begin, coefs) in self.inverse.chunks(batch * missing).enumerate() {
            let mut sources = [Source::default(); MAX_BATCH];
            for (place, (coefs, source)) in coefs.chunks(missing).zip(&mut sources).enumerate() {
                let row = begin * batch + place;
                out.add_header(self.engine, coefs, self.syndromes.header(row).unwrap_or_default());
                *source = Source { coefs, bytes: self.syndromes.body(row, longest).unwrap_or_default() };
            }
            out.add_bodies(self.engine, sources.get(..coefs.len() / missing).unwrap_or_default());
        }
    }
}

impl Recovered {
    /// No packets yet; memory comes with the first use.
    pub fn new() -> Self {
        Self::default()
    }

    /// The recovered packets with their indices in the block, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let packets = self.packets.iter().enumerate();
        packets.filter_map(|(row, &(index, len))| Some((index, self.rows.body(row, len)?)))
    }

    /// How many packets were recovered.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Takes each row, of bodies of `longest` bytes, for the packet of the index in `missing`.
    fn read_lengths(&mut self, missing: &[usize], longest: usize) -> Result<(), DecodeError> {
        for (row, &index) in missing.iter().enumerate() {
            match packet_len(&self.rows, row, longest) {
                Some(len) => self.packets.push((index, len)),
                None => {
                    self.packets.clear();
                    return Err(DecodeError::Inconsistent { index });
                }
            }
        }
        Ok(())
    }
}

/// The length a symbol states, if its body has that many bytes and only zeros after them.
fn packet_len(rows: &Rows, row: usize, longest: usize) -> Option<usize> {
    let len = usize::from(u16::from_be_bytes(rows.header(row)?));
    let padding = rows.body(row, longest)?.get(len..)?;
    padding.iter().all(|&byte| byte == 0).then_some(len)
}

fn check_data(data: &[Option<&[u8]>], longest: usize) -> Result<(), DecodeError> {
    let too_long = data.iter().enumerate().find_map(|(index, packet)| {
        let len = packet.as_ref()?.len();
        (len > longest).then_some(DecodeError::DataLength { index, len, longest })
    });
    too_long.map_or(Ok(()), Err)
}

/// The length field of a packet that was found to be no longer than [`MAX_PACKET`].
fn header(len: usize) -> Header {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

fn indices<'a>(
    packets: &'a [Option<&'a [u8]>],
    which: impl Fn(&Option<&'a [u8]>) -> bool + 'a,
) -> impl Iterator<Item = usize> + 'a {
    let found = packets.iter().enumerate();
    found.filter_map(move |(index, packet)| which(packet).then_some(index))
}
