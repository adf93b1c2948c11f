use std::time::Duration;

use reliability::model::Candidate;
use reliability::selector::Estimate;

use super::*;

const KEY: grid::Key = grid::Key {
    size: 1 << 20,
    drop: 1e-2,
    rtt: Duration::from_millis(25),
    rate: 100_000_000_000,
    burst: None,
};

fn p99(low: f64, value: f64, high: f64) -> Option<P99> {
    Some(P99 { low, value, high })
}

/// `auto`'s choice and all fixed schemes with these percentiles.
fn cell(auto: Option<P99>, sr: Option<P99>, others: Option<P99>) -> Cell {
    let mut cell = Cell::plan(KEY, &Estimate::exact(KEY.link()), 1000);
    cell.auto.simulated = auto;
    for entry in &mut cell.fixed {
        entry.simulated = if entry.scheme == Candidate::Sr { sr } else { others };
    }
    cell
}

#[test]
fn a_cell_is_violated_only_where_the_bounds_say_so() {
    let as_good = cell(p99(1.0, 1.0, 1.0), p99(2.0, 2.0, 2.0), p99(1.0, 1.0, 1.0));
    assert!(!as_good.is_violated() && !as_good.is_open());
    // A tenth worse is allowed.
    let slower = |low, value| cell(p99(low, value, value), p99(2.0, 2.0, 2.0), p99(1.0, 1.0, 1.05));
    assert!(!slower(1.0, 1.09).is_open());
    assert!(slower(1.15, 1.2).is_open() && !slower(1.15, 1.2).is_violated());
    assert!(slower(1.16, 1.2).is_violated() && !slower(1.16, 1.2).is_open());
    // Worse than selective repeat by a quarter, but for chance.
    let than_sr = |low| cell(p99(low, 1.3, 1.4), p99(0.9, 1.0, 1.0), None);
    assert!(than_sr(1.26).is_violated() && than_sr(1.05).is_open());
    let ratio = than_sr(1.05).over_sr().unwrap();
    assert!((ratio.point - 1.3).abs() < 1e-9 && (ratio.sure - 1.05).abs() < 1e-9);
    // Where nothing was simulated, nothing is judged by it.
    assert_eq!(cell(None, None, None).over_best(), None);
}

#[test]
fn the_luckiest_of_many_is_not_taken_for_the_best() {
    // One looks better, and its bound is worse than that of another.
    let mut cell = cell(p99(1.11, 1.2, 1.3), p99(1.0, 1.1, 1.15), p99(0.8, 1.0, 1.4));
    assert!(cell.is_open() && !cell.is_violated());
    assert_eq!(cell.best().unwrap().1.value, 1.0);
    cell.auto.simulated = p99(1.3, 1.3, 1.3);
    assert!(cell.is_violated());
}

#[test]
fn what_auto_chose_runs_once_and_counts_as_fixed_too() {
    let key = grid::Key { size: 4096, drop: 1e-6, ..KEY };
    let mut cell = Cell::plan(key, &Estimate::exact(key.link()), 1000);
    assert_eq!(cell.auto.scheme, Candidate::Sr);
    let schemes: Vec<usize> = cell.transfers().unwrap().into_iter().map(|(scheme, _)| scheme).collect();
    assert_eq!((schemes[0], schemes.len()), (0, grid::FIXED.len()), "so short messages run with each");
    assert!(schemes[1..].iter().all(|scheme| cell.fixed[scheme - 1].scheme != Candidate::Sr));
    cell.take(0, p99(1.0, 1.0, 1.0));
    assert_eq!(cell.best().unwrap().0.scheme, Candidate::Sr);
    assert_eq!(cell.sr(), p99(1.0, 1.0, 1.0));
    cell.messages = 0;
    assert!(cell.transfers().unwrap().is_empty());
    assert!(cell.over_sr().is_some(), "the model judges");
}

#[test]
fn a_budget_buys_messages_in_full_or_none() {
    assert_eq!(messages(1, BUDGET), MOST);
    assert_eq!(messages(512, BUDGET), BUDGET / SHARE / 512);
    assert_eq!(messages(4096, BUDGET), LEAST);
    assert_eq!(messages(65_536, BUDGET), 0);
    assert_eq!(messages(2, 1999), 0);
}

/// Runs the plane at these sizes within the budget.
fn run(sizes: &[u64], budget: u64, threads: usize) -> (Judged, String) {
    let sizes: Vec<ByteSize> = sizes.iter().map(|size| ByteSize::from_bytes(*size)).collect();
    let mut out = Vec::new();
    let plane = Sweep { sizes: &sizes, known: Known::After(1_000_000), budget, seed: 3, threads };
    let judged = plane.run(&mut out).unwrap();
    (judged, String::from_utf8(out).unwrap())
}

#[test]
fn a_small_plane_runs_and_threads_change_nothing() {
    let (judged, text) = run(&[4096, 16 << 20], 1000, 2);
    let cells = 2 * 6 * 18;
    assert_eq!(judged.rows.len(), cells * (1 + grid::FIXED.len()));
    for piece in [
        "216 cells",
        "108 cells are simulated",
        "4 KiB      ",
        "16 MiB (model)",
        "auto within 10 % of the best fixed scheme's p99: ",
        "auto never worse than 1.25 of sr's p99: ",
        "The model's p99 against the simulator's, ",
    ] {
        assert!(text.contains(piece), "no {piece:?} in\n{text}");
    }
    let csv = judged.csv();
    assert_eq!(csv.lines().count(), 1 + judged.rows.len());
    let header = csv.lines().next().unwrap_or_default();
    let fields = |line: &str| line.replace("(32,8)", "").matches(',').count();
    for line in csv.lines().filter(|line| line.contains("\"hybrid(32,8)\"")) {
        assert_eq!(fields(line), fields(header), "{line}");
    }
    assert_eq!(run(&[4096, 16 << 20], 1000, 1).1, text);
}
