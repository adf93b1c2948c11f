//! `hybrid` completes as fast as the better of `sr` and `mds`. A few cells of what
//! `cargo run --example envelope` measures at length.

use std::time::Duration;

use crate::transfer::{Line, Outcome, RECORD, measure};
use reliability::stream::Scheme;

/// The factor that `hybrid` may take over the better of the others.
const TOLERANCE: f64 = 1.05;

/// 1 Gbit/s: 3.1 MB, or 757 packets, are on their way in 25 ms.
fn line(drop: f64, run: f64) -> Line {
    Line { rate: 1_000_000_000, rtt: Duration::from_millis(25), drop, run, told: true }
}

/// By `sr`, `mds` and `hybrid`: enough messages for 60,000 packets, but no more than 2,000.
fn outcomes(line: Line, size: usize) -> [Outcome; 3] {
    let count = (60_000 / size.div_ceil(RECORD)).min(2_000);
    [Scheme::sr(), Scheme::mds(32, 8), Scheme::hybrid(32, 8)]
        .map(|scheme| measure(scheme, line, size, count, 7))
}

/// Mean and 99th percentile are within the tolerance of the better one's.
fn assert_fast([sr, mds, hybrid]: &[Outcome; 3], what: &str) {
    let within = |of: fn(&Outcome) -> f64| {
        let (best, ours) = (of(sr).min(of(mds)), of(hybrid));
        assert!(ours <= best * TOLERANCE, "{what}: {ours} s, the better one {best} s");
    };
    within(Outcome::mean);
    within(|outcome| outcome.percentile(99.0));
}

/// And no more is sent than by `mds`.
fn assert_envelope(outcomes: &[Outcome; 3], what: &str) {
    assert_fast(outcomes, what);
    let [_, mds, hybrid] = outcomes;
    let (sent, most) = (hybrid.bytes_per_byte, mds.bytes_per_byte);
    assert!(sent <= most * 1.005, "{what}: {sent} bytes per byte, mds {most}");
}

#[test]
fn short_messages_are_as_fast_as_with_parity() {
    for (size, drop) in [(4 << 10, 1e-2), (16 << 10, 1e-2), (64 << 10, 1e-3), (64 << 10, 5e-2)] {
        let outcomes = outcomes(line(drop, 1.0), size);
        assert_envelope(&outcomes, &format!("{size} bytes at {drop}"));
    }
}

#[test]
fn where_losses_are_rare_nothing_is_added() {
    for (size, drop) in [(4 << 10, 1e-6), (1 << 20, 1e-6), (16 << 20, 1e-8)] {
        let outcomes = outcomes(line(drop, 1.0), size);
        assert_envelope(&outcomes, &format!("{size} bytes at {drop}"));
        let [sr, _, hybrid] = &outcomes;
        assert!(hybrid.bytes_per_byte <= sr.bytes_per_byte * 1.001, "{size} {drop}");
    }
}

/// From half a round trip's worth to five.
#[test]
fn messages_around_and_above_a_round_trip_beat_both() {
    for (size, drop) in
        [(1 << 20, 1e-3), (4 << 20, 1e-4), (4 << 20, 1e-2), (16 << 20, 1e-3), (16 << 20, 5e-2)]
    {
        let outcomes = outcomes(line(drop, 1.0), size);
        assert_envelope(&outcomes, &format!("{size} bytes at {drop}"));
        let [sr, mds, hybrid] = &outcomes;
        assert!(hybrid.percentile(99.0) < 0.95 * sr.percentile(99.0), "{size} {drop}");
        if drop <= 1e-2 {
            assert!(hybrid.mean() < 0.99 * mds.mean(), "{size} {drop}");
            assert!(hybrid.bytes_per_byte < 0.95 * mds.bytes_per_byte, "{size} {drop}");
        }
    }
}

#[test]
fn bursts_are_borne_where_their_length_is_known() {
    for (size, drop) in [(256 << 10, 1e-3), (4 << 20, 1e-3), (4 << 20, 1e-2)] {
        let outcomes = outcomes(line(drop, 5.0), size);
        assert_fast(&outcomes, &format!("{size} bytes at {drop} in runs of 5"));
    }
    let [_, mds, hybrid] = outcomes(line(1e-2, 5.0), 8 << 20);
    assert!(hybrid.percentile(99.0) < 0.8 * mds.percentile(99.0));
    assert!(hybrid.bytes_per_byte < 0.95 * mds.bytes_per_byte);
}

/// Without a drop rate the protected part has as much parity as with `mds`, the rest still none.
#[test]
fn an_unknown_drop_rate_costs_parity_only_in_the_tail() {
    let line = Line { told: false, ..line(1e-3, 1.0) };
    let outcomes = outcomes(line, 16 << 20);
    assert_fast(&outcomes, "16 MiB at an unknown drop rate");
    let [_, mds, hybrid] = &outcomes;
    assert!(hybrid.bytes_per_byte < 1.0 + 0.4 * (mds.bytes_per_byte - 1.0), "{}", hybrid.bytes_per_byte);
}
