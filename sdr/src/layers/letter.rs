//! Control datagrams of the layers. All numbers are big-endian.
//!
//! ```text
//! REPORT 01 | flags u8 (1 NACK, 2 fallback) | bits u16 | part u32 | base u32 | bitmap
//! DONE   02 | 0 u8 | 0 u16 | part u32 | below u32
//! ASK    03 | 0 u8 | 0 u16 | part u32
//! FAILED 04 | 0 u8 | 0 u16 | part u32
//! PING   05 | 0 u8 | 0 u16 | 0 u32 | stamp u64 | rate of the sender in bit/s u64
//! PONG   06 | 0 u8 | 0 u16 | 0 u32 | the stamp of a PING u64
//! ```
//!
//! All parts before a DONE's `below` are there as well. So the next DONE stands in for a lost one.
//! All chunks below `base` are there, and those of the bitmap.
//! The bitmap begins at `base`, with the lowest bit of its first byte.

use crate::wire::CONTROL_BYTES;

const HEAD: usize = 12;
const MOST_BITS: u32 = ((CONTROL_BYTES - HEAD) * 8) as u32;

/// A datagram of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Letter {
    Report {
        part: u32,
        nack: bool,
        fallback: bool,
        base: u32,
        chunks: Vec<bool>,
    },
    Done {
        part: u32,
        below: u32,
    },
    Ask {
        part: u32,
    },
    /// The part was completed and cannot be recovered.
    Failed {
        part: u32,
    },
    /// Asks for a PONG with the same stamp.
    Ping {
        stamp: u64,
        rate: u64,
    },
    Pong {
        stamp: u64,
    },
}

impl Letter {
    /// Makes a report on the chunks of a part, as many as fit.
    pub(super) fn report(part: u32, nack: bool, fallback: bool, chunks: &[bool]) -> Self {
        let base = chunks.iter().position(|there| !there).unwrap_or(chunks.len());
        let rest = chunks.iter().skip(base).take(MOST_BITS as usize).copied().collect();
        Letter::Report { part, nack, fallback, base: base as u32, chunks: rest }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Letter::Report { part, nack, fallback, base, chunks } => {
                let mut bytes = vec![1, u8::from(*nack) | (u8::from(*fallback) << 1)];
                bytes.extend((chunks.len() as u16).to_be_bytes());
                bytes.extend(part.to_be_bytes());
                bytes.extend(base.to_be_bytes());
                bytes.extend(
                    chunks.chunks(8).map(|eight| {
                        eight.iter().rev().fold(0, |byte, there| (byte << 1) | u8::from(*there))
                    }),
                );
                bytes
            }
            Letter::Done { part, below } => [&plain(2, *part)[..], &below.to_be_bytes()].concat(),
            Letter::Ask { part } => plain(3, *part),
            Letter::Failed { part } => plain(4, *part),
            Letter::Ping { stamp, rate } => {
                [&plain(5, 0)[..], &stamp.to_be_bytes(), &rate.to_be_bytes()].concat()
            }
            Letter::Pong { stamp } => [&plain(6, 0)[..], &stamp.to_be_bytes()].concat(),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[kind, flags, b0, b1, p0, p1, p2, p3], rest) = bytes.split_first_chunk()?;
        let part = u32::from_be_bytes([p0, p1, p2, p3]);
        let bits = usize::from(u16::from_be_bytes([b0, b1]));
        match (kind, flags, bits, rest) {
            (2, 0, 0, below) => {
                let below = u32::from_be_bytes(below.try_into().ok()?);
                return Some(Letter::Done { part, below });
            }
            (3, 0, 0, []) => return Some(Letter::Ask { part }),
            (4, 0, 0, []) => return Some(Letter::Failed { part }),
            (5, 0, 0, rest) if part == 0 => {
                let &[stamp, rate] = whole(rest.as_chunks::<8>())?;
                let [stamp, rate] = [stamp, rate].map(u64::from_be_bytes);
                return Some(Letter::Ping { stamp, rate });
            }
            (6, 0, 0, rest) if part == 0 => {
                let &[stamp] = whole(rest.as_chunks::<8>())?;
                return Some(Letter::Pong { stamp: u64::from_be_bytes(stamp) });
            }
            (1, 0..=3, ..) => {}
            _ => return None,
        }
        let (base, bitmap) = rest.split_first_chunk()?;
        if bitmap.len() != bits.div_ceil(8) {
            return None;
        }
        let chunks = bitmap.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1));
        Some(Letter::Report {
            part,
            nack: flags & 1 != 0,
            fallback: flags & 2 != 0,
            base: u32::from_be_bytes(*base),
            chunks: chunks.take(bits).collect(),
        })
    }
}

/// Returns the chunks if nothing is left over and they are as many as wanted.
fn whole<'a, const N: usize>((chunks, rest): (&'a [[u8; 8]], &[u8])) -> Option<&'a [[u8; 8]; N]> {
    chunks.try_into().ok().filter(|_| rest.is_empty())
}

fn plain(kind: u8, part: u32) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(part.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_survive_the_way_and_cut_ones_are_refused() {
        let chunks: Vec<bool> = (0..21).map(|chunk| chunk < 3 || chunk % 4 == 1).collect();
        let report = Letter::report(7, true, false, &chunks);
        assert!(matches!(&report, Letter::Report { base: 3, chunks, .. } if chunks.len() == 18));
        for letter in [
            report,
            Letter::Done { part: 1, below: u32::MAX },
            Letter::Ask { part: u32::MAX },
            Letter::Failed { part: 2 },
            Letter::Ping { stamp: 1, rate: u64::MAX },
            Letter::Pong { stamp: u64::MAX },
        ] {
            let bytes = letter.encode();
            for cut in 0..bytes.len() {
                assert_eq!(Letter::decode(&bytes[..cut]), None);
            }
            assert_eq!(Letter::decode(&[&bytes[..], &[0]].concat()), None);
            assert_eq!(Letter::decode(&bytes), Some(letter));
        }
        assert!(Letter::report(0, false, false, &[false; 10_000]).encode().len() <= CONTROL_BYTES);
    }
}
