//! A minute of what `longhaul-lab bench soak` does for an hour. `LONGHAUL_SEED` runs what a failure
//! printed again.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::path::PathBuf;

use longhaul_lab::bench::Soak;

#[test]
fn a_gateway_keeps_nothing_of_what_has_passed() {
    let seed = std::env::var("LONGHAUL_SEED").map_or_else(|_| rand_seed(), |seed| seed.parse().unwrap());
    let soak = Soak { program: PathBuf::from(env!("CARGO_BIN_EXE_longhaul-lab")), seconds: 60.0, seed };
    let mut out = Vec::new();
    let result = soak.run(&mut out, &|| false);
    println!("LONGHAUL_SEED={seed}\n{}", String::from_utf8(out).unwrap());
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Another one each time.
fn rand_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::from(since.unwrap().subsec_nanos())
}
