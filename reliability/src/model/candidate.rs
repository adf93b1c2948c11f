//! The schemes that the model knows.

use std::fmt;

use crate::stream::Scheme;

/// A scheme to be judged. Unlike [`Scheme`] it has no variant that loses data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Candidate {
    /// Selective repeat.
    Sr,
    /// XOR parity, see [`Scheme::Xor`].
    Xor(Block),
    /// Reed-Solomon parity, see [`Scheme::Mds`].
    Mds(Block),
    /// Reed-Solomon parity over the end of a transfer, as much of it as could not be repaired
    /// within the transfer, and selective repeat before.
    Hybrid(Block),
}

/// The blocks of a coded scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// Data packets per block.
    pub k: u8,
    /// Parity packets per block.
    pub m: u8,
    /// Blocks interleaved with one another.
    pub depth: u8,
}

impl Block {
    /// Blocks without interleaving.
    #[must_use]
    pub const fn new(k: u8, m: u8) -> Self {
        Self { k, m, depth: 1 }
    }

    /// The nearest that makes a code, as streams make it: see [`Scheme`].
    #[must_use]
    pub fn valid(self) -> Self {
        let k = self.k.clamp(1, 254);
        Self { k, m: self.m.clamp(1, 255 - k), depth: self.depth.max(1) }
    }

    /// Parity packets per data packet in a full block.
    #[must_use]
    pub fn overhead(self) -> f64 {
        let valid = self.valid();
        f64::from(valid.m) / f64::from(valid.k)
    }
}

impl Candidate {
    /// `xor(k, m)`, not interleaved.
    #[must_use]
    pub const fn xor(k: u8, m: u8) -> Self {
        Self::Xor(Block::new(k, m))
    }

    /// `mds(k, m)`, not interleaved.
    #[must_use]
    pub const fn mds(k: u8, m: u8) -> Self {
        Self::Mds(Block::new(k, m))
    }

    /// `hybrid(k, m)`, not interleaved.
    #[must_use]
    pub const fn hybrid(k: u8, m: u8) -> Self {
        Self::Hybrid(Block::new(k, m))
    }

    /// Its blocks, if it has any.
    #[must_use]
    pub fn block(self) -> Option<Block> {
        match self {
            Self::Sr => None,
            Self::Xor(block) | Self::Mds(block) | Self::Hybrid(block) => Some(block),
        }
    }

    /// Parity packets per data packet where there is parity.
    #[must_use]
    pub fn parity(self) -> f64 {
        self.block().map_or(0.0, Block::overhead)
    }

    /// A stream's scheme; `None` for the one that repairs nothing.
    #[must_use]
    pub fn of(scheme: Scheme) -> Option<Self> {
        match scheme {
            Scheme::None => None,
            Scheme::Sr { .. } => Some(Self::Sr),
            Scheme::Xor { k, m, depth } => Some(Self::Xor(Block { k, m, depth })),
            Scheme::Mds { k, m, depth } => Some(Self::Mds(Block { k, m, depth })),
            Scheme::Hybrid { k, m, depth } => Some(Self::Hybrid(Block { k, m, depth })),
        }
    }

    /// Returns the scheme to set on a stream.
    #[must_use]
    pub fn scheme(self) -> Scheme {
        match self {
            Self::Sr => Scheme::sr(),
            Self::Xor(Block { k, m, depth }) => Scheme::Xor { k, m, depth },
            Self::Mds(Block { k, m, depth }) => Scheme::Mds { k, m, depth },
            Self::Hybrid(Block { k, m, depth }) => Scheme::Hybrid { k, m, depth },
        }
    }

    /// The name of its kind, as policy files spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sr => "sr",
            Self::Xor(_) => "xor",
            Self::Mds(_) => "mds",
            Self::Hybrid(_) => "hybrid",
        }
    }
}

/// `sr`, `mds(32,8)`, or `mds(32,8)x4` if four blocks are interleaved.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.name().to_owned();
        if let Some(Block { k, m, depth }) = self.block() {
            text += &format!("({k},{m})");
            if depth > 1 {
                text += &format!("x{depth}");
            }
        }
        f.pad(&text)
    }
}
