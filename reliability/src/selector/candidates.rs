//! The schemes that may be chosen: a bounded set.

use super::{Allowed, Objective};
use crate::model::{Block, Candidate};

/// Data packets per block.
const LENGTHS: [u8; 6] = [4, 8, 16, 32, 64, 128];
/// Blocks per parity.
const SHARES: [u8; 5] = [16, 8, 4, 2, 1];
const MAX_DEPTH: f64 = 64.0;
/// Runs of losses on average longer than this are worth interleaving.
const BURSTY: f64 = 1.5;

/// Everything that the objective allows for messages of so many packets on a link whose runs of
/// losses are `burst` packets long on average. If that is nothing, selective repeat. At most 181.
pub(super) fn candidates(objective: &Objective, packets: u64, burst: f64) -> Vec<Candidate> {
    let Allowed { sr, xor, mds, hybrid } = objective.allowed;
    let mut found = Vec::new();
    if sr {
        found.push(Candidate::Sr);
    }
    for block in blocks(objective, packets) {
        let interleaved = Block { depth: depth(block.m, burst), ..block };
        let depths = [Some(block), Some(interleaved).filter(|block| block.depth > 1)];
        for block in depths.into_iter().flatten() {
            if xor {
                found.push(Candidate::Xor(block));
            }
            if mds {
                found.push(Candidate::Mds(block));
            }
        }
        // It interleaves by itself.
        if hybrid {
            found.push(Candidate::Hybrid(block));
        }
    }
    if found.is_empty() {
        found.push(Candidate::Sr);
    }
    found
}

/// Returns true if the objective allows a candidate.
pub(super) fn allows(objective: &Objective, candidate: Candidate) -> bool {
    let Allowed { sr, xor, mds, hybrid } = objective.allowed;
    let kind = match candidate {
        Candidate::Sr => sr || !xor && !mds && !hybrid,
        Candidate::Xor(_) => xor,
        Candidate::Mds(_) => mds,
        Candidate::Hybrid(_) => hybrid,
    };
    let fits = candidate.block().is_none_or(|block| block.k <= objective.max_block);
    kind && fits && candidate.parity() <= objective.max_overhead
}

/// Blocks within the overhead, no longer than allowed, and not much longer than the messages.
fn blocks(objective: &Objective, packets: u64) -> impl Iterator<Item = Block> {
    let Objective { max_overhead: most, max_block, .. } = *objective;
    let short = move |k: &u8| *k <= max_block && (*k == 4 || u64::from(*k) < packets.saturating_mul(2));
    LENGTHS.into_iter().filter(short).flat_map(move |k| {
        let block = move |share| (k >= share).then(|| Block::new(k, k / share).valid());
        SHARES.into_iter().filter_map(block).filter(move |block| block.overhead() <= most)
    })
}

/// So deep that a block bears runs twice as long as the average.
fn depth(m: u8, burst: f64) -> u8 {
    if burst > BURSTY { (2.0 * burst / f64::from(m)).ceil().clamp(1.0, MAX_DEPTH) as u8 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objective(max_overhead: f64, allowed: Allowed) -> Objective {
        Objective { percentile: 99.9, max_overhead, max_block: u8::MAX, allowed }
    }

    #[test]
    fn blocks_are_no_longer_than_allowed() {
        for (max_block, longest) in [(u8::MAX, 128), (32, 32), (31, 16), (4, 4), (3, 0)] {
            let objective = Objective { max_block, ..objective(1.0, Allowed::ALL) };
            let found = candidates(&objective, u64::MAX, 1.0);
            let blocks = found.iter().filter_map(|candidate| candidate.block());
            assert_eq!(blocks.map(|block| block.k).max().unwrap_or(0), longest);
            assert!(found.iter().all(|candidate| allows(&objective, *candidate)));
            assert_eq!(allows(&objective, Candidate::mds(64, 8)), max_block >= 64);
        }
    }

    #[test]
    fn the_set_is_bounded_and_within_the_overhead() {
        for (overhead, packets, burst) in [(4.0, u64::MAX, 1000.0), (0.25, 1 << 20, 1.0), (0.0, 1, 1.0)] {
            let objective = objective(overhead, Allowed::ALL);
            let found = candidates(&objective, packets, burst);
            assert!((1..=181).contains(&found.len()), "{}", found.len());
            for candidate in &found {
                assert!(allows(&objective, *candidate), "{candidate}");
                if let Some(block) = candidate.block() {
                    assert_eq!(block, block.valid(), "{candidate}");
                }
            }
            let mut distinct = found.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len(), found.len());
        }
    }

    #[test]
    fn where_nothing_is_allowed_it_is_selective_repeat() {
        let none = Allowed { sr: false, xor: false, mds: false, hybrid: false };
        assert_eq!(candidates(&objective(1.0, none), 100, 1.0), [Candidate::Sr]);
        let parity = Allowed { mds: true, ..none };
        assert_eq!(candidates(&objective(0.01, parity), 100, 1.0), [Candidate::Sr]);
        assert!(allows(&objective(1.0, none), Candidate::Sr));
        assert!(!allows(&objective(1.0, parity), Candidate::Sr));
    }
}
