//! A code: its kind, its size and its coefficients.

use std::{fmt, sync::Arc};

use crate::{MAX_BLOCK, gf};

/// The family of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Reed-Solomon over GF(2^8), maximum distance separable: any `m` packets of a block may be
    /// lost.
    Mds,
    /// Parity `i` is the XOR of the data packets `j` with `j mod m == i`: one loss per residue
    /// class.
    Xor,
}

/// A systematic `(k, m)` code: up to `k` data packets protected by up to `m` parity packets.
///
/// Cheap to clone. Building one costs `O(k (k + m))` field multiplications (under 0.1 ms for the
/// largest) and one allocation, so a receiver of blocks that describe themselves keeps the last
/// few.
///
/// MDS coefficients are those of `reed_solomon_erasure::galois_8::ReedSolomon::new(k, m)`. Parity
/// `i` depends on `k` and `i` alone, so a code with the same `k` and a larger `m` extends a block
/// by further parity without touching what was sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Code {
    kind: Kind,
    k: usize,
    m: usize,
    mds: Option<Arc<Mds>>,
}

/// That code parameters make no code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// A block needs at least one data packet.
    #[error("a code needs at least one data packet per block (k is 0)")]
    NoData,
    /// A code without parity protects nothing.
    #[error("a code needs at least one parity packet per block (m is 0)")]
    NoParity,
    /// Data and parity together exceed [`MAX_BLOCK`].
    #[error("k + m = {0} is more than the 255 packets a block can have")]
    TooLarge(usize),
    /// XOR parity `i >= k` would protect nothing.
    #[error("an XOR code has at most one parity packet per data packet (k = {k}, m = {m})")]
    IdleParity {
        /// Data packets.
        k: usize,
        /// Parity packets.
        m: usize,
    },
}

/// The Vandermonde matrix of `n` rows `x = 0, 1, ..`, made systematic, maps data to a polynomial's
/// values: data packet `j` is the value at `x = j`, parity `i` the value at `x = k + i`. So its
/// coefficients are Lagrange's: `c(i, j) = N(x_i) / ((x_i - j) w(j))`, `N(x) = prod_t (x - t)`,
/// `w(j) = prod_{t != j} (j - t)`, `t` over `0..k`.
#[derive(PartialEq, Eq)]
struct Mds {
    /// `c(i, j)` at `j * m + i`: what one data packet adds to each parity stands together.
    coefs: Vec<u8>,
    /// The logarithm of `w(j)` by data packet `j`, then of `N(x_i)` by parity `i`: of the distances
    /// to all data points, but for the point's own.
    distances: Vec<u8>,
}

impl Code {
    /// A code of any kind with `k` data and `m` parity packets.
    pub fn new(kind: Kind, k: usize, m: usize) -> Result<Self, CodeError> {
        if k == 0 {
            return Err(CodeError::NoData);
        }
        if m == 0 {
            return Err(CodeError::NoParity);
        }
        if k.saturating_add(m) > MAX_BLOCK {
            return Err(CodeError::TooLarge(k.saturating_add(m)));
        }
        if kind == Kind::Xor && m > k {
            return Err(CodeError::IdleParity { k, m });
        }
        let mds = (kind == Kind::Mds).then(|| Arc::new(Mds::new(k, m)));
        Ok(Self { kind, k, m, mds })
    }

    /// A Reed-Solomon code: any `m` of the `k + m` packets may be lost.
    pub fn mds(k: usize, m: usize) -> Result<Self, CodeError> {
        Self::new(Kind::Mds, k, m)
    }

    /// An XOR code of `m` interleaved residue classes.
    pub fn xor(k: usize, m: usize) -> Result<Self, CodeError> {
        Self::new(Kind::Xor, k, m)
    }

    /// The code's family.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Data packets in a full block.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Most parity packets of a block.
    pub fn m(&self) -> usize {
        self.m
    }

    /// Bytes that the coefficients take, which all clones share.
    pub fn memory(&self) -> usize {
        self.mds.as_ref().map_or(0, |mds| size_of::<Mds>() + mds.coefs.capacity() + mds.distances.capacity())
    }

    /// How many parity packets, from 0 on, protect anything in a block of `data` data packets.
    pub fn parity_for(&self, data: usize) -> usize {
        match self.kind {
            _ if data == 0 => 0,
            Kind::Mds => self.m,
            Kind::Xor => self.m.min(data),
        }
    }

    /// How many packets short of recovery a block of `data` data packets is; 0 means
    /// [`Decoder::decode`](crate::Decoder::decode) will find enough. For MDS any parity packets
    /// make up for it; for XOR the parity of the class or the data itself.
    pub fn shortfall(
        &self,
        data: usize,
        has_data: impl Fn(usize) -> bool,
        has_parity: impl Fn(usize) -> bool,
    ) -> usize {
        let missing = |of: &mut dyn Iterator<Item = usize>| of.filter(|&j| !has_data(j)).count();
        match self.kind {
            Kind::Mds => {
                let parity = (0..self.m).filter(|&i| has_parity(i)).count();
                missing(&mut (0..data)).saturating_sub(parity)
            }
            Kind::Xor => (0..self.m)
                .map(|i| missing(&mut (i..data).step_by(self.m)).saturating_sub(usize::from(has_parity(i))))
                .sum(),
        }
    }

    /// Returns the factor of data packet `j` in parity `i`.
    pub fn coefficient(&self, i: usize, j: usize) -> u8 {
        match &self.mds {
            Some(mds) if i < self.m => mds.coefs.get(j * self.m + i).copied().unwrap_or(0),
            Some(_) => 0,
            None => u8::from(j < self.k && i == j % self.m),
        }
    }

    /// Returns the sum of an MDS code's coefficients of the first `packets` data packets for parity
    /// `i`. All of them add up to one, for a constant polynomial is its own interpolation. 0 for an
    /// XOR code.
    pub(crate) fn weight(&self, i: usize, packets: usize) -> u8 {
        match self.kind {
            Kind::Mds if packets == self.k => 1,
            Kind::Mds => (0..packets).fold(0, |sum, j| sum ^ self.coefficient(i, j)),
            Kind::Xor => 0,
        }
    }

    /// The coefficients of data packet `j` for all parity of an MDS code; empty for an XOR code.
    pub(crate) fn column(&self, j: usize) -> &[u8] {
        let coefs = self.mds.as_ref().map_or(&[][..], |mds| &mds.coefs);
        coefs.get(j * self.m..).and_then(|rest| rest.get(..self.m)).unwrap_or(&[])
    }

    /// Writes into `out` what the parities `used` and the data packets `present` are multiplied by
    /// to give the `missing` ones: parity by parity, then data packet by data packet, what it adds
    /// to each missing packet stands together. `used` are as many as `missing`; `present` are the
    /// others of the code's data packets, less any that are zero. All are distinct and in range.
    /// Nothing is written for an XOR code.
    ///
    /// The polynomial is the same whichever `k` of its points define it, here `Q`: all of the data
    /// points but the missing, and those used. So by Lagrange `c(q, y) = B(y) A(q) / (y - q)`,
    /// `B(y) = w(y) prod_x (y - x) / prod_{y' != y} (y - y')`,
    /// `A(q) = prod_y (q - y) / (D(q) prod_{x != q} (q - x))`, `D` being `w` for a data point and
    /// `N` for a parity's, `x` over `used`, `y` over `missing`. That is `O(k e)` sums of logarithms
    /// where elimination takes `O(k^3)` products, and it cannot meet a zero pivot.
    pub(crate) fn interpolate(
        &self,
        used: &[usize],
        missing: &[usize],
        present: impl Iterator<Item = usize>,
        out: &mut Vec<u8>,
    ) {
        out.clear();
        let Some(mds) = &self.mds else { return };
        // By far the most frequent case: what is left of the parity without the others, over the
        // coefficient of the missing one.
        if let (&[i], &[y]) = (used, missing) {
            let inverse = gf::exp(gf::ORDER - gf::log(self.coefficient(i, y)));
            let product = |column: &[u8]| gf::mul(inverse, column.get(i).copied().unwrap_or(0));
            out.push(inverse);
            out.extend(mds.coefs.chunks_exact(self.m).map(product));
            out.remove(1 + y);
            return;
        }
        let mut nodes = [0; MAX_BLOCK];
        nodes.iter_mut().zip(used).for_each(|(node, row)| *node = point(self.k + row));
        let mut places = [0; MAX_BLOCK];
        places.iter_mut().zip(missing).for_each(|(place, &column)| *place = point(column));
        let nodes = nodes.get(..used.len()).unwrap_or_default();
        let places = places.get(..missing.len()).unwrap_or_default();
        // Logarithms of products of distances, a point's distance to itself being passed over.
        let distance = |q: u8, to: &[u8]| to.iter().map(|&point| gf::log(q ^ point)).sum::<usize>();
        let to_data = |q: u8| mds.distances.get(usize::from(q)).copied().map_or(0, usize::from);
        let mut factors = [0; MAX_BLOCK];
        for (factor, &y) in factors.iter_mut().zip(places) {
            *factor = quotient(to_data(y) + distance(y, nodes), distance(y, places)) as u8;
        }
        out.resize(places.len() * self.k, 0);
        let points = nodes.iter().copied().chain(present.map(point));
        for (q, out) in points.zip(out.chunks_exact_mut(places.len().max(1))) {
            let own = quotient(distance(q, places), to_data(q) + distance(q, nodes));
            for ((out, &y), &factor) in out.iter_mut().zip(places).zip(&factors) {
                *out = gf::exp(own + usize::from(factor) + gf::ORDER - gf::log(q ^ y));
            }
        }
    }
}

impl Mds {
    fn new(k: usize, m: usize) -> Self {
        let distance = |q: u8| (0..k).map(|t| gf::log(q ^ point(t))).sum::<usize>() % gf::ORDER;
        let distances: Vec<usize> = (0..k + m).map(|q| distance(point(q))).collect();
        let (weights, nodes) = distances.split_at(k);
        let mut coefs = Vec::with_capacity(k * m);
        for (j, weight) in weights.iter().enumerate() {
            for (i, node) in nodes.iter().enumerate() {
                let divisor = gf::log(point(k + i) ^ point(j)) + weight;
                coefs.push(gf::exp(quotient(*node, divisor)));
            }
        }
        Self { coefs, distances: distances.into_iter().map(|log| log as u8).collect() }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({}, {})", self.kind, self.k, self.m)
    }
}

/// The field element that packet `index` of a block stands at; `index < MAX_BLOCK`.
fn point(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}

/// The logarithm of a quotient, below [`gf::ORDER`], from those of dividend and divisor, each a sum
/// for at most two blocks of factors.
fn quotient(dividend: usize, divisor: usize) -> usize {
    /// A multiple of the order that no divisor exceeds.
    const ENOUGH: usize = 2 * MAX_BLOCK * gf::ORDER;
    (dividend + ENOUGH - divisor) % gf::ORDER
}
