//! What a code is: its kind, its size and its coefficients.

use std::{fmt, sync::Arc};

use crate::{MAX_BLOCK, gf};

/// The family of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Reed-Solomon over GF(2^8), maximum distance separable: any `m` packets of a block may be lost.
    Mds,
    /// Parity `i` is the XOR of the data packets `j` with `j mod m == i`: one loss per residue class.
    Xor,
}

/// A systematic `(k, m)` code: up to `k` data packets protected by up to `m` parity packets.
///
/// Cheap to clone. Building one costs `O(k (k + m))` field multiplications (under 0.1 ms for the largest) and one allocation, so a
/// receiver of blocks that describe themselves keeps the last few.
///
/// MDS coefficients are those of `reed_solomon_erasure::galois_8::ReedSolomon::new(k, m)`. Parity `i` depends on `k` and `i`
/// alone, so a code with the same `k` and a larger `m` extends a block by further parity without touching what was sent.
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

/// The Vandermonde matrix of `n` rows `x = 0, 1, ..`, made systematic, maps data to a polynomial's values: data packet `j` is the value
/// at `x = j`, parity `i` the value at `x = k + i`. So its coefficients are Lagrange's:
/// `c(i, j) = N(x_i) / ((x_i - j) w(j))`, `N(x) = prod_t (x - t)`, `w(j) = prod_{t != j} (j - t)`, `t` over `0..k`.
/// That is a Cauchy matrix scaled by row and by column: every square part of it is invertible, in closed form.
#[derive(PartialEq, Eq)]
struct Mds {
    /// `c(i, j)` at `j * m + i`: what one data packet adds to each parity stands together.
    coefs: Vec<u8>,
    /// `1 / N(x_i)` by parity `i`.
    inv_node: Vec<u8>,
    /// `w(j)` by data packet `j`.
    weight: Vec<u8>,
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

    /// How many parity packets, from 0 on, protect anything in a block of `data` data packets.
    pub fn parity_for(&self, data: usize) -> usize {
        match self.kind {
            _ if data == 0 => 0,
            Kind::Mds => self.m,
            Kind::Xor => self.m.min(data),
        }
    }

    /// How many packets short of recovery a block of `data` data packets is; 0 means [`Decoder::decode`](crate::Decoder::decode)
    /// will find enough. For MDS any parity packets make up for it; for XOR the parity of the class or the data itself.
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

    /// What data packet `j` is multiplied by for parity `i`.
    pub fn coefficient(&self, i: usize, j: usize) -> u8 {
        match &self.mds {
            Some(mds) if i < self.m => mds.coefs.get(j * self.m + i).copied().unwrap_or(0),
            Some(_) => 0,
            None => u8::from(j < self.k && i == j % self.m),
        }
    }

    /// The coefficients of data packet `j` for all parity of an MDS code; empty for an XOR code.
    pub(crate) fn column(&self, j: usize) -> &[u8] {
        let coefs = self.mds.as_ref().map_or(&[][..], |mds| &mds.coefs);
        coefs.get(j * self.m..).and_then(|rest| rest.get(..self.m)).unwrap_or(&[])
    }

    /// Writes into `out` the inverse of the MDS submatrix (parity `rows`) x (data `columns`), of the same number, all in range and
    /// distinct: `e x e`, by columns, i.e. what syndrome `r` is multiplied by for each missing packet stands together.
    ///
    /// By Cauchy's formula, with `x` over `rows` and `y` over `columns`:
    /// `inv(y, x) = A(x) B(y) / (x + y)`,
    /// `A(x) = prod_y' (x + y') / (N(x) prod_{x' != x} (x + x'))`, `B(y) = w(y) prod_x' (x' + y) / prod_{y' != y} (y + y')`.
    /// That is `O(e^2)` where elimination takes `O(e^3)`, and it cannot meet a zero pivot.
    pub(crate) fn invert(&self, rows: &[usize], columns: &[usize], out: &mut Vec<u8>) {
        out.clear();
        let Some(mds) = &self.mds else { return };
        let x = |row: usize| point(self.k + row);
        let y = |column: usize| point(column);
        let mut column_factors = [0_u8; MAX_BLOCK];
        for (factor, &column) in column_factors.iter_mut().zip(columns) {
            let across = gf::product(rows.iter().map(|&r| x(r) ^ y(column)));
            let beside = columns.iter().filter(|&&other| other != column);
            let beside = gf::product(beside.map(|&other| y(other) ^ y(column)));
            let weight = mds.weight.get(column).copied().unwrap_or(0);
            *factor = gf::mul(weight, gf::mul(across, gf::inv(beside)));
        }
        for &row in rows {
            let across = gf::product(columns.iter().map(|&c| x(row) ^ y(c)));
            let beside = rows.iter().filter(|&&other| other != row);
            let beside = gf::product(beside.map(|&other| x(other) ^ x(row)));
            let inv_node = mds.inv_node.get(row).copied().unwrap_or(0);
            let row_factor = gf::mul(inv_node, gf::mul(across, gf::inv(beside)));
            out.extend(
                columns
                    .iter()
                    .zip(&column_factors)
                    .map(|(&column, &b)| gf::mul(gf::mul(row_factor, b), gf::inv(x(row) ^ y(column)))),
            );
        }
    }
}

impl Mds {
    fn new(k: usize, m: usize) -> Self {
        let data = || (0..k).map(point);
        let parity = || (k..k + m).map(point);
        let weight: Vec<u8> =
            data().map(|j| gf::product(data().filter(|&t| t != j).map(|t| j ^ t))).collect();
        let node: Vec<u8> = parity().map(|x| gf::product(data().map(|t| x ^ t))).collect();
        let coefs = data()
            .zip(&weight)
            .flat_map(|(j, &w)| {
                let node = &node;
                parity().zip(node).map(move |(x, &n)| gf::mul(n, gf::inv(gf::mul(x ^ j, w))))
            })
            .collect();
        Self { coefs, inv_node: node.iter().map(|&n| gf::inv(n)).collect(), weight }
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
