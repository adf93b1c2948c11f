use reed_solomon_erasure::galois_8::ReedSolomon;

use super::*;
use crate::PARITY_OVERHEAD;

/// `reed-solomon-erasure` over the same packets, as symbols.
fn reference_parity(packets: &[Vec<u8>], k: usize, m: usize, len: usize) -> Vec<Vec<u8>> {
    let mut shards: Vec<_> = packets.iter().map(|packet| symbol(packet, len + PARITY_OVERHEAD)).collect();
    shards.resize(k + m, vec![0; len + PARITY_OVERHEAD]);
    ReedSolomon::new(k, m).unwrap().encode(&mut shards).unwrap();
    shards.split_off(k)
}

#[test]
fn coefficients_are_those_of_reed_solomon_erasure() {
    let sizes = (1..=40).flat_map(|k| [1, 2, 3, 8, 13].map(|m| (k, m)));
    for (k, m) in sizes.chain([(1, 254), (254, 1), (128, 127), (223, 32), (100, 50)]) {
        // Parity of the unit vectors is the matrix.
        let mut shards = vec![vec![0; k]; k + m];
        for (j, shard) in shards[..k].iter_mut().enumerate() {
            shard[j] = 1;
        }
        ReedSolomon::new(k, m).unwrap().encode(&mut shards).unwrap();
        let code = Code::mds(k, m).unwrap();
        for (i, row) in shards[k..].iter().enumerate() {
            let ours: Vec<_> = (0..k).map(|j| code.coefficient(i, j)).collect();
            assert_eq!(&ours, row, "parity {i} of ({k}, {m})");
        }
    }
}

#[test]
fn parity_is_byte_identical() {
    for engine in engine::available() {
        for (k, m) in [(1, 1), (2, 1), (3, 3), (10, 4), (32, 4), (32, 8), (17, 19), (128, 32)] {
            for len in [1, 62, 63, 64, 200, 1400] {
                let packets: Vec<_> = (0..k).map(|j| noise(len, j + len)).collect();
                let mut encoder = Encoder::with_engine(Code::mds(k, m).unwrap(), len, engine);
                let expected = reference_parity(&packets, k, m, len);
                assert!(encode(&mut encoder, &packets) == expected, "({k}, {m}), {len} bytes, {engine:?}");
            }
        }
    }
}

#[test]
fn short_blocks_and_short_packets_are_zero_padded() {
    for engine in engine::available() {
        let packets: Vec<_> = (0..5).map(|j| noise(40 * j, j)).collect();
        let mut encoder = Encoder::with_engine(Code::mds(12, 5).unwrap(), 500, engine);
        assert_eq!(encode(&mut encoder, &packets), reference_parity(&packets, 12, 5, 160));
    }
}
