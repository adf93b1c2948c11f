//! The laboratory's program as a shell sees it: exit status, and what goes where.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

use std::path::Path;
use std::process::{Command, Output};

fn lab(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul-lab"));
    command.args(arguments).current_dir(folder).env_remove("LONGHAUL_LOG").output().unwrap()
}

fn parts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn usage() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = parts(&lab(folder.path(), &["--help"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("Usage: longhaul-lab <COMMAND>"), "{out}");
    for wrong in [
        &[][..],
        &["plan"],
        &["simulate"],
        &["simulate", "--paper", "--plane"],
        &["simulate", "--paper", "--size", "1 MiB"],
        &["simulate", "--plane", "--drop", "0.1%"],
        &["simulate", "--plane", "--observed", "none"],
        &["bench", "everything"],
    ] {
        let (code, out, err) = parts(&lab(folder.path(), wrong));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{wrong:?}");
        assert!(!err.is_empty(), "{wrong:?}");
    }
}

#[test]
fn the_published_figures_are_shown_and_met() {
    let folder = tempfile::tempdir().unwrap();
    let (code, text, err) = parts(&lab(folder.path(), &["plan", "--paper"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(text.matches("\n  published    ").count(), 9, "{text}");
    assert!(text.contains("6.5x and 12.2x"), "{text}");
    assert!(!text.contains("NOT"), "{text}");
}

#[test]
fn a_sweep_and_the_published_cells_leave_files() {
    let folder = tempfile::tempdir().unwrap();
    let plane = ["simulate", "--plane", "--size", "4 KiB", "--budget", "1000", "--csv", "plane.csv"];
    let (code, out, err) = parts(&lab(folder.path(), &plane));
    assert!(code == Some(0) && out.contains("108 cells are simulated"), "{code:?}\n{out}{err}");
    assert!(folder.path().join("plane.csv").exists());
    let (code, out, err) =
        parts(&lab(folder.path(), &["simulate", "--paper", "--budget", "2000", "--json", "p.json"]));
    assert!(code == Some(0) && out.contains("SR RTO over EC, mean"), "{code:?}\n{out}{err}");
    assert!(folder.path().join("p.json").exists());
}

/// The figures are the machine's; that there are any, and that they add up, is not.
#[test]
fn bench_latency_says_what_a_pair_adds_and_what_of() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = parts(&lab(folder.path(), &["bench", "latency", "--seconds", "0.3"]));
    assert_eq!(code, Some(0), "{out}{err}");
    let numbers = |row: &str| -> Vec<f64> {
        let line = out.lines().find(|line| line.trim_start().starts_with(row));
        let line = line.unwrap_or_else(|| panic!("no {row} in\n{out}"));
        let words: Vec<_> = line.split_whitespace().rev().map_while(|word| word.parse().ok()).collect();
        words.into_iter().rev().collect()
    };
    let [alone, through, polling] = ["hosts alone", "through a pair", "likewise"].map(numbers);
    let [added, added_polling] = ["added ", "added, busy"].map(numbers);
    for (times, added) in [(&through, &added), (&polling, &added_polling)] {
        assert!(alone[2] > 100.0 && times[2] > 20.0, "{out}");
        for at in 0..2 {
            assert!((times[at] - alone[at] - added[at]).abs() < 0.2, "{out}");
        }
    }
    let stages = ["LAN in", "WAN out", "seal", "open", "WAN in", "LAN out"].map(|stage| numbers(stage)[0]);
    assert!(stages.iter().all(|time| *time > 0.0), "{out}");
    let [together, hops, rest] = ["together", "4 UDP hops", "the rest"].map(|row| numbers(row)[0]);
    assert!((together + hops + rest - added[0]).abs() < 0.3, "{out}");
}
