//! One behaviour suite for every kind of code on every engine, the kernels against schoolbook
//! multiplication, and the whole against `reed-solomon-erasure`. Randomised tests print their seed;
//! `FEC_SEED` repeats one.
//!
//! Miri runs the kernels, also those of other processors (`cargo miri test -p fec --lib kernels::`,
//! with `--target aarch64-unknown-linux-gnu` for NEON, with
//! `RUSTFLAGS=-Ctarget-feature=+gfni,+avx512f,+avx512bw` for the others), under
//! `MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-tree-borrows'`: `reed-solomon-erasure` breaks the
//! older stacked borrows.

mod allocation;
mod behaviour;
mod kernels;
mod reference;

use std::hash::{BuildHasher, RandomState};

use proptest::{
    strategy::Strategy,
    test_runner::{Config, RngSeed, TestCaseResult, TestRunner},
};

use crate::{Code, Decoder, Encoder, Engine, Kind, Source, engine};

/// Runs a property `cases` times from a printed seed.
fn check<S: Strategy>(what: &str, cases: u32, strategy: &S, test: impl Fn(S::Value) -> TestCaseResult) {
    let seed = std::env::var("FEC_SEED")
        .map_or_else(|_| RandomState::new().hash_one(what), |seed| seed.parse().expect("FEC_SEED is a u64"));
    println!("{what}: FEC_SEED={seed}");
    let config =
        Config { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() };
    if let Err(error) = TestRunner::new(config).run(strategy, test) {
        panic!("{what}, FEC_SEED={seed}: {error}");
    }
}

/// An engine by name, or `None`, said aloud, where this processor lacks it.
fn engine_or_skip(name: &str) -> Option<&'static dyn Engine> {
    assert!(engine::NAMES.contains(&name), "{name} is not compiled in");
    let found = engine::available().find(|engine| engine.name() == name);
    if found.is_none() {
        println!("SKIPPED: this processor has no {name}");
    }
    found
}

/// Deterministic filler that no linear structure of the code can hide behind.
fn noise(len: usize, seed: usize) -> Vec<u8> {
    let mut state = (seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(step).collect()
}

/// A packet as the code sees it: length, bytes, zeros up to `len`.
fn symbol(packet: &[u8], len: usize) -> Vec<u8> {
    let mut symbol = u16::try_from(packet.len()).unwrap().to_be_bytes().to_vec();
    symbol.extend_from_slice(packet);
    symbol.resize(len, 0);
    symbol
}

fn encode(encoder: &mut Encoder, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    encoder.reset();
    for (index, packet) in packets.iter().enumerate() {
        assert_eq!(encoder.push(packet), Ok(index));
    }
    let m = encoder.code().m();
    (0..m).map(|i| encoder.parity(i).unwrap().to_vec()).collect()
}

/// Hides what `lost` names, indices of data first and parity after.
fn hide(packets: &[Vec<u8>], lost: impl Fn(usize) -> bool) -> Vec<Option<&[u8]>> {
    let indexed = packets.iter().enumerate();
    indexed.map(|(index, packet)| (!lost(index)).then_some(&packet[..])).collect()
}
