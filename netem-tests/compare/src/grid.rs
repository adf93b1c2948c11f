//! Which cells, and how long each.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::cell::{Cell, Drops, Effort};

const MBIT: u64 = 1_000_000;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Most cells have these: round-trip time in milliseconds, and bytes of an IP packet.
const RTT: u32 = 25;
const MTU: u16 = 9000;
/// Most long links carry this.
const SHORT: u16 = 1500;
const FAR: u32 = 100;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Extent {
    /// One cell, few messages, every content checked: whether everything works
    Check,
    /// A few minutes
    Quick,
    /// Less than an hour
    Standard,
    /// Every cell, at length: hours
    Full,
}

const NONE: Drops = Drops { share: 0.0, bursty: false };

const fn single(share: f64) -> Drops {
    Drops { share, bursty: false }
}

const fn bursts(share: f64) -> Drops {
    Drops { share, bursty: true }
}

impl Extent {
    pub(crate) fn effort(self) -> Effort {
        match self {
            Self::Check => Effort { messages: 5.0, seconds: (0.5, 0.5), patience: 60.0, verify: true },
            Self::Quick => Effort { messages: 60.0, seconds: (1.5, 2.0), patience: 1.5, verify: false },
            Self::Standard => Effort { messages: 250.0, seconds: (2.0, 6.5), patience: 2.0, verify: false },
            Self::Full => Effort { messages: 400.0, seconds: (5.0, 15.0), patience: 10.0, verify: false },
        }
    }

    pub(crate) fn cells(self) -> Vec<Cell> {
        match self {
            Self::Check => cells(&[200 * MBIT], &[single(1e-2)], &[(64 * KIB, 8)]),
            Self::Quick => {
                cells(&[1000 * MBIT], &[NONE, single(1e-2)], &[(64 * KIB, 1), (MIB, 1), (64 * KIB, 64)])
            }
            Self::Standard => {
                // Losses so rare that less than one message in a hundred meets them say nothing
                // about p99.
                let seen = [NONE, single(1e-3), single(1e-2), bursts(1e-2)];
                let drops = [NONE, single(1e-4), single(1e-3), single(1e-2), bursts(1e-2)];
                let mut all = cells(&[1000 * MBIT], &seen, &[(64 * KIB, 1), (MIB, 1)]);
                all.extend(cells(&[1000 * MBIT], &seen, &[(16 * MIB, 1), (MIB, 64)]));
                all.extend(cells(&[1000 * MBIT], &drops, &[(64 * KIB, 64)]));
                all.extend(cells(&[1000 * MBIT], &[NONE, single(1e-2)], &[(16 * MIB, 64)]));
                let some = [NONE, single(1e-3), single(1e-2)];
                all.extend(cells(&[5000 * MBIT], &some, &[(MIB, 1), (64 * KIB, 64), (MIB, 64)]));
                all.extend(cells(&[200 * MBIT], &[NONE, single(1e-2)], &[(MIB, 1), (64 * KIB, 64)]));
                let jobs = [(64 * KIB, 1), (MIB, 1), (64 * KIB, 64), (MIB, 64)];
                all.extend(over(&cells(&[1000 * MBIT], &some, &jobs), RTT, SHORT));
                let jobs = [(MIB, 1), (64 * KIB, 64)];
                let far = cells(&[1000 * MBIT], &some, &jobs);
                all.extend(over(&far, FAR, MTU));
                all.extend(over(&far, FAR, SHORT));
                all
            }
            Self::Full => {
                let drops = [
                    NONE,
                    single(1e-4),
                    single(1e-3),
                    single(1e-2),
                    bursts(1e-4),
                    bursts(1e-3),
                    bursts(1e-2),
                ];
                let jobs =
                    [(64 * KIB, 1), (64 * KIB, 64), (MIB, 1), (MIB, 64), (16 * MIB, 1), (16 * MIB, 64)];
                let near = cells(&[5000 * MBIT, 1000 * MBIT, 200 * MBIT], &drops, &jobs);
                let links = [(RTT, MTU), (RTT, SHORT), (FAR, MTU), (FAR, SHORT)];
                links.iter().flat_map(|&(rtt, mtu)| over(&near, rtt, mtu)).collect()
            }
        }
    }
}

/// The same on another link.
fn over(cells: &[Cell], rtt: u32, mtu: u16) -> Vec<Cell> {
    cells.iter().map(|cell| Cell { rtt, mtu, ..*cell }).collect()
}

fn cells(rates: &[u64], drops: &[Drops], jobs: &[(u64, u32)]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &rate in rates {
        for &(size, outstanding) in jobs {
            cells.extend(drops.iter().map(|&drops| Cell {
                rtt: RTT,
                mtu: MTU,
                rate,
                drops,
                size,
                outstanding,
            }));
        }
    }
    cells
}
