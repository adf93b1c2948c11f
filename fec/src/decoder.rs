//! Recovery of a block's missing packets.

use crate::{
    Code, Engine, Kind, MAX_PACKET, PARITY_OVERHEAD, Source, engine,
    rows::{Header, Rows, header, plus},
};

/// Packets handed to the engine together: a multiple of every engine's batch, and most blocks'
/// packets.
const TOGETHER: usize = 32;

/// Recovers missing packets. Holds nothing between blocks but scratch memory, so one serves any
/// number of codes and streams.
///
/// For `e` missing packets of an MDS block, `e` of its parities and the present data are points of
/// one polynomial, of which the missing are others: each is a sum of multiples of the `k` points,
/// with factors known in closed form ([`Code`]). So there is one pass over what is at hand,
/// straight into the caller's memory; no matrix is inverted, no packet copied.
///
/// Scratch grows to the largest `e x k` bytes of factors met (and one more), and is never given
/// back.
#[derive(Debug)]
pub struct Decoder {
    engine: &'static dyn Engine,
    missing: Vec<usize>,
    /// The parity that makes up for each missing packet, in the same order.
    used: Vec<usize>,
    /// The factor of each packet at hand for each missing one.
    coefs: Vec<u8>,
}

/// The packets a [`Decoder`] recovered, in reusable memory of the caller's, which grows to the
/// largest `e x packet` met, at most `m` parity packets' worth, and is never given back.
#[derive(Debug, Default)]
pub struct Recovered {
    rows: Rows,
    /// Index in the block and length in bytes, by row.
    packets: Vec<(usize, usize)>,
}

/// Why nothing was recovered. What the network brings can cause each of these; none leaves a trace
/// in the decoder.
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
    /// The packet recovered for this index is none: its length exceeds its bytes, or its padding is
    /// not zero. Some packet of the block is not what was encoded.
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
        Self { engine, missing: Vec::new(), used: Vec::new(), coefs: Vec::new() }
    }

    /// Bytes of scratch held.
    pub fn memory(&self) -> usize {
        (self.missing.capacity() + self.used.capacity()) * size_of::<usize>() + self.coefs.capacity()
    }

    /// Recovers every `None` in `data` into `out`, and returns how many there were.
    ///
    /// `data` is the block as it was encoded: one entry per data packet pushed, hence of the
    /// block's own length `k' <= k`. `parity` is by parity index; it may end early. On error `out`
    /// is empty.
    pub fn decode(
        &mut self,
        code: &Code,
        data: &[Option<&[u8]>],
        parity: &[Option<&[u8]>],
        out: &mut Recovered,
    ) -> Result<usize, DecodeError> {
        out.packets.clear();
        let longest_present = self.plan(code, data, parity)?;
        if self.missing.is_empty() {
            return Ok(0);
        }
        let longest = self.check_parity(parity)?;
        if longest_present > longest {
            return Err(too_long(data, longest));
        }
        out.rows.prepare(self.missing.len(), longest);
        match code.kind() {
            Kind::Mds => self.interpolate(code, data, parity, &mut out.rows),
            Kind::Xor => self.subtract(code, data, parity, &mut out.rows),
        }
        out.read_lengths(&self.missing, longest)?;
        Ok(out.packets.len())
    }

    /// Finds what is missing, and the parity to recover it from; the longest packet present has the
    /// bytes returned.
    fn plan(
        &mut self,
        code: &Code,
        data: &[Option<&[u8]>],
        parity: &[Option<&[u8]>],
    ) -> Result<usize, DecodeError> {
        let (k, m) = (code.k(), code.m());
        if data.len() > k {
            return Err(DecodeError::TooMuchData { data: data.len(), k });
        }
        if parity.len() > m {
            return Err(DecodeError::TooMuchParity { parity: parity.len(), m });
        }
        self.missing.clear();
        let mut longest = 0;
        for (index, packet) in data.iter().enumerate() {
            match packet {
                Some(packet) => longest = longest.max(packet.len()),
                None => self.missing.push(index),
            }
        }
        self.used.clear();
        match code.kind() {
            Kind::Mds => self.used.extend(present(parity).map(|(i, _)| i).take(self.missing.len())),
            Kind::Xor => self.used.extend(self.missing.iter().map(|j| j % m)),
        }
        let shortfall = match code.kind() {
            Kind::Mds => self.missing.len() - self.used.len(),
            Kind::Xor => code.shortfall(
                data.len(),
                |j| data.get(j).is_some_and(Option::is_some),
                |i| parity.get(i).is_some_and(Option::is_some),
            ),
        };
        if shortfall > 0 {
            return Err(DecodeError::Unrecoverable { missing: self.missing.len(), shortfall });
        }
        Ok(longest)
    }

    /// How long the longest data packet is, according to the parity used.
    fn check_parity(&self, parity: &[Option<&[u8]>]) -> Result<usize, DecodeError> {
        let mut lengths = self.used.iter().map(|&index| (index, at(parity, index).len()));
        let (_, first) = lengths.clone().next().unwrap_or_default();
        let wrong = |len| len != first || !(PARITY_OVERHEAD..=PARITY_OVERHEAD + MAX_PACKET).contains(&len);
        match lengths.find(|&(_, len)| wrong(len)) {
            Some((index, len)) => Err(DecodeError::ParityLength { index, len }),
            None => Ok(first - PARITY_OVERHEAD),
        }
    }

    /// Sums up each missing packet of an MDS block.
    fn interpolate(&mut self, code: &Code, data: &[Option<&[u8]>], parity: &[Option<&[u8]>], out: &mut Rows) {
        code.interpolate(&self.used, &self.missing, present(data).map(|(j, _)| j), &mut self.coefs);
        let mut coefs = self.coefs.chunks(self.missing.len().max(1));
        // In a block of `k` the factors for a missing packet add up to one, for a constant
        // polynomial is its own interpolation. So one header counts whole, and of the others only
        // by how much they differ from it: nothing, for most blocks.
        let first = self.used.first().map_or(&[][..], |&index| at(parity, index));
        let common = first.first_chunk().filter(|_| data.len() == code.k()).copied().unwrap_or_default();
        let longest = first.len().saturating_sub(PARITY_OVERHEAD);
        out.set_headers(common);
        // The parities first: they are the longest, so the first pass clears what the others add
        // to.
        let mut sum =
            Sum { engine: self.engine, out, longest, sources: [Source::default(); TOGETHER], count: 0 };
        for (&index, coefs) in self.used.iter().zip(&mut coefs) {
            if let Some((&header, body)) = at(parity, index).split_first_chunk() {
                sum.add(coefs, plus(header, common), body);
            }
        }
        for (packet, coefs) in data.iter().flatten().zip(&mut coefs) {
            sum.add(coefs, plus(header(packet.len()), common), packet);
        }
        sum.finish();
    }

    /// Takes what the present data contributed out of each class's parity: the missing packet of
    /// the class remains.
    fn subtract(&self, code: &Code, data: &[Option<&[u8]>], parity: &[Option<&[u8]>], out: &mut Rows) {
        for (row, &index) in self.used.iter().enumerate() {
            if let Some((&header, body)) = at(parity, index).split_first_chunk() {
                out.load(row, header, body);
            }
        }
        for (j, packet) in present(data) {
            if let Some(row) = self.used.iter().position(|&i| i == j % code.m()) {
                out.add_to(self.engine, row, header(packet.len()), packet);
            }
        }
    }
}

/// Sources on their way into rows.
struct Sum<'a> {
    engine: &'static dyn Engine,
    out: &'a mut Rows,
    /// Bytes of the longest.
    longest: usize,
    sources: [Source<'a>; TOGETHER],
    count: usize,
}

impl<'a> Sum<'a> {
    #[inline]
    fn add(&mut self, coefs: &'a [u8], header: Header, bytes: &'a [u8]) {
        if header != Header::default() {
            self.out.add_header(self.engine, coefs, header);
        }
        if let Some(source) = self.sources.get_mut(self.count) {
            *source = Source { coefs, bytes };
            self.count += 1;
        }
        if self.count == TOGETHER {
            self.finish();
        }
    }

    fn finish(&mut self) {
        self.out.add_bodies(self.engine, self.sources.get(..self.count).unwrap_or_default(), self.longest);
        self.count = 0;
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

    /// Bytes held, whatever stands in them.
    pub fn memory(&self) -> usize {
        self.rows.memory() + self.packets.capacity() * size_of::<(usize, usize)>()
    }

    /// How many packets were recovered.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns true if none was recovered.
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

/// Names the first packet longer than `longest`, of which there is one.
fn too_long(data: &[Option<&[u8]>], longest: usize) -> DecodeError {
    let mut lengths = present(data).map(|(index, packet)| (index, packet.len()));
    let (index, len) = lengths.find(|&(_, len)| len > longest).unwrap_or_default();
    DecodeError::DataLength { index, len, longest }
}

/// The packet of this index; empty if there is none.
fn at<'a>(packets: &[Option<&'a [u8]>], index: usize) -> &'a [u8] {
    packets.get(index).copied().flatten().unwrap_or_default()
}

/// The packets that are there, with their indices.
fn present<'a>(packets: &[Option<&'a [u8]>]) -> impl Iterator<Item = (usize, &'a [u8])> {
    packets.iter().enumerate().filter_map(|(index, packet)| Some((index, (*packet)?)))
}
