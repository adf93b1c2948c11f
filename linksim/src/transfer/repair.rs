//! How losses are repaired, as text.

use std::fmt;
use std::str::FromStr;

use reliability::stream::Scheme;

/// A scheme, and whether the receiver asks for what is missing.
///
/// Text form: `none`, `sr`, `sr-rto`, `xor:K:M[:DEPTH]`, `mds:K:M[:DEPTH]`, `hybrid:K:M[:DEPTH]`.
/// Likewise `mds(K,M)`, as the pages write it.
/// `sr-rto` is selective repeat without requests of the receiver and with a timeout of three round
/// trips in all: what the literature compares with, no scheme of a gateway's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repair {
    /// The stream's scheme.
    pub scheme: Scheme,
    /// The receiver asks for what it misses.
    pub nack: bool,
}

impl Repair {
    /// As a gateway does it.
    #[must_use]
    pub const fn by(scheme: Scheme) -> Self {
        Self { scheme, nack: true }
    }

    /// Selective repeat by timeouts of `3 RTT` alone.
    #[must_use]
    pub const fn timeout_only() -> Self {
        Self { scheme: Scheme::sr(), nack: false }
    }
}

impl Default for Repair {
    /// Selective repeat.
    fn default() -> Self {
        Self::by(Scheme::sr())
    }
}

/// The text names no scheme.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no scheme: {reason}")]
pub struct UnknownScheme {
    text: String,
    reason: &'static str,
}

impl FromStr for Repair {
    type Err = UnknownScheme;

    fn from_str(text: &str) -> Result<Self, UnknownScheme> {
        let unknown = |reason| UnknownScheme { text: text.to_owned(), reason };
        let plain = text.strip_suffix(')').and_then(|text| text.split_once('('));
        let plain = plain.map(|(name, shape)| format!("{}:{}", name.trim(), shape.replace(',', ":")));
        let mut parts = plain.as_deref().unwrap_or(text).split(':').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let numbers: Result<Vec<u8>, _> = parts.map(str::parse).collect();
        let numbers = numbers.map_err(|_| unknown("packets are numbers from 1 to 254"))?;
        let block = || match *numbers.as_slice() {
            [k, m] => Ok((k, m, 1)),
            [k, m, depth] => Ok((k, m, depth)),
            _ => Err(unknown(
                "write data and parity packets per block, as in mds:32:8, or depth too, as in mds:32:8:4",
            )),
        };
        let valid = |(k, m, depth): (u8, u8, u8), most_parity: u8| {
            if k == 0 || m == 0 || depth == 0 {
                Err(unknown("nothing in it may be 0"))
            } else if u16::from(k) + u16::from(m) > 255 {
                Err(unknown("a block has at most 255 packets"))
            } else if m > most_parity {
                Err(unknown("an xor block has no more parity than data"))
            } else {
                Ok((k, m, depth))
            }
        };
        let scheme = match name {
            "mds" => {
                let (k, m, depth) = valid(block()?, u8::MAX)?;
                Scheme::Mds { k, m, depth }
            }
            "hybrid" => {
                let (k, m, depth) = valid(block()?, u8::MAX)?;
                Scheme::Hybrid { k, m, depth }
            }
            "xor" => {
                let block = block()?;
                let (k, m, depth) = valid(block, block.0)?;
                Scheme::Xor { k, m, depth }
            }
            "none" | "sr" | "sr-rto" if !numbers.is_empty() => return Err(unknown("it takes no numbers")),
            "none" => Scheme::None,
            "sr" => Scheme::sr(),
            "sr-rto" => return Ok(Self::timeout_only()),
            _ => return Err(unknown("there are none, sr, sr-rto, xor:K:M, mds:K:M, hybrid:K:M")),
        };
        Ok(Self::by(scheme))
    }
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, k, m, depth) = match self.scheme {
            Scheme::None => return f.pad("none"),
            Scheme::Sr { .. } => return f.pad(if self.nack { "sr" } else { "sr-rto" }),
            Scheme::Xor { k, m, depth } => ("xor", k, m, depth),
            Scheme::Mds { k, m, depth } => ("mds", k, m, depth),
            Scheme::Hybrid { k, m, depth } => ("hybrid", k, m, depth),
        };
        if depth == 1 { f.pad(&format!("{name}:{k}:{m}")) } else { f.pad(&format!("{name}:{k}:{m}:{depth}")) }
    }
}
