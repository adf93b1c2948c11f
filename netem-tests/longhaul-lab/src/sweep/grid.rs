//! The links and sizes that are judged, and the schemes that an operator would name.

use std::fmt;
use std::time::Duration;

use config::ByteSize;
use gateway::simulate::{SimulateError, loss};
use linksim::transfer::{OVERHEAD, Repair, Told, Transfer};
use reliability::human;
use reliability::link::Link;
use reliability::model::{Block, Candidate};
use reliability::stream::{DATA_HEADER, RECORD_HEADER};
use splice::auto_flush;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const GBIT: u64 = 1_000_000_000;

pub(super) const SIZES: [u64; 6] = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, 8 * GIB];
pub(super) const DROPS: [f64; 6] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 5e-2];
pub(super) const RTTS: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(25), Duration::from_millis(100)];
pub(super) const RATES: [u64; 3] = [10 * GBIT, 100 * GBIT, 400 * GBIT];
/// Mean runs of losses; `None`: independent.
pub(super) const BURSTS: [Option<f64>; 2] = [None, Some(4.0)];
/// Message bytes in a packet.
const PACKET: usize = 4096;

/// Within `auto`'s default bound on parity, and such as an operator may think of: the published
/// evaluation's, lighter and heavier ones, for short messages and for long ones, one interleaved.
pub(super) const FIXED: [Candidate; 12] = [
    Candidate::Sr,
    Candidate::xor(32, 8),
    Candidate::mds(4, 1),
    Candidate::mds(4, 2),
    Candidate::mds(8, 2),
    Candidate::mds(8, 4),
    Candidate::mds(16, 4),
    Candidate::mds(32, 4),
    Candidate::mds(32, 8),
    Candidate::Mds(Block { k: 32, m: 8, depth: 4 }),
    Candidate::hybrid(32, 8),
    Candidate::hybrid(64, 8),
];

/// A point of the plane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Key {
    pub(super) size: u64,
    pub(super) drop: f64,
    pub(super) rtt: Duration,
    pub(super) rate: u64,
    pub(super) burst: Option<f64>,
}

/// All of them for these sizes.
pub(super) fn keys(sizes: &[u64]) -> Vec<Key> {
    let mut keys = Vec::new();
    for &size in sizes {
        for drop in DROPS {
            for burst in BURSTS {
                for rtt in RTTS {
                    keys.extend(RATES.map(|rate| Key { size, drop, rtt, rate, burst }));
                }
            }
        }
    }
    keys
}

impl Key {
    /// As the model sees it.
    pub(super) fn link(&self) -> Link {
        let link = Link {
            burst: self.burst.unwrap_or(1.0),
            overhead: DATA_HEADER + RECORD_HEADER + OVERHEAD,
            ..Link::new(self.rate, self.rtt, self.drop, PACKET)
        };
        Link { burst: link.burst(), ..link }
    }

    /// Data packets of a message.
    pub(super) fn packets(&self) -> u64 {
        self.link().packets(self.size)
    }

    /// As the simulator sees it. What a gateway chose itself it tells its streams of the losses; of
    /// a scheme in a policy they know nothing more. All blocks close as those of `auto`.
    pub(super) fn transfer(&self, scheme: Candidate, told: Option<Told>) -> Result<Transfer, SimulateError> {
        let mut transfer = Transfer::new(self.rate, self.rtt, Repair::by(scheme.scheme()), self.size);
        transfer.packet = PACKET;
        transfer.told = told;
        transfer.flush = auto_flush(&self.link());
        transfer.forward.loss = loss(self.drop, self.burst)?;
        Ok(transfer)
    }
}

/// `16 MiB at 0.10 % lost in runs of 4, 100 Gbit/s, 25.0 ms`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} lost ", ByteSize::from_bytes(self.size), human::share(self.drop))?;
        match self.burst {
            Some(burst) => write!(f, "in runs of {burst}")?,
            None => write!(f, "one by one")?,
        }
        write!(f, ", {}, {}", human::rate(self.rate as f64), human::time(self.rtt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_the_plane() {
        let keys = keys(&SIZES);
        assert_eq!(keys.len(), 6 * 6 * 3 * 3 * 2);
        let (first, last) = (keys[0], keys[keys.len() - 1]);
        assert_eq!(first.to_string(), "4 KiB at 0.00010 % lost one by one, 10 Gbit/s, 1.00 ms");
        assert_eq!(
            (last.size, last.drop, last.rate, last.burst),
            (8 << 30, 5e-2, 400_000_000_000, Some(4.0))
        );
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{key}");
        }
    }

    #[test]
    fn model_and_simulator_see_the_same_link() {
        for key in keys(&[1 << 20]) {
            let transfer = key.transfer(Candidate::Sr, None).unwrap();
            let link = key.link();
            assert!((transfer.forward.loss.mean() / link.drop() - 1.0).abs() < 1e-9, "{key}");
            let serialised = (transfer.ideal() - transfer.rtt()).as_secs_f64();
            assert!((serialised / link.wire_seconds(key.size) - 1.0).abs() < 1e-3, "{key}");
            assert_eq!(transfer.rtt(), key.rtt);
        }
    }

    #[test]
    fn the_fixed_schemes_are_within_what_auto_may_choose() {
        for scheme in FIXED {
            assert!(scheme.parity() <= super::super::MAX_OVERHEAD, "{scheme}");
            assert!(scheme.block().is_none_or(|block| block == block.valid()));
        }
        assert!(FIXED.contains(&Candidate::Sr));
    }
}
