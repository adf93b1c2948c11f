//! Everyone carries messages over the lossy link, and every byte is right.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Longest time that everyone together may take; a busy machine takes ten times as long as an idle
/// one.
const SECONDS: &str = "600";

/// Without name spaces there is no link: a failure in continuous integration, a note elsewhere.
fn has_name_spaces() -> bool {
    let tried = Command::new("unshare").args(["--net", "true"]).stderr(Stdio::null()).status();
    let possible = tried.is_ok_and(|status| status.success());
    let strict = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(possible || !strict, "the comparison needs root and network name spaces");
    if !possible {
        println!("skipped: the comparison needs root and network name spaces");
    }
    possible
}

/// Installs and builds the peers; where their senders and receivers are.
fn prepare() -> PathBuf {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("run");
    let prepared = Command::new(run).arg("--prepare").stderr(Stdio::inherit()).output().expect("run starts");
    assert!(prepared.status.success(), "the peers can be installed and built");
    PathBuf::from(String::from_utf8(prepared.stdout).unwrap().trim_end())
}

/// A sender and a receiver of every peer, and both gateways, check each other's contents; the page
/// names each.
#[test]
fn everyone_carries_messages_rightly() {
    if !has_name_spaces() {
        return;
    }
    let harness = prepare();
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("comparison");
    std::fs::create_dir_all(&out).unwrap();
    let status = Command::new("timeout")
        .args([SECONDS, env!("CARGO_BIN_EXE_longhaul-compare"), "run", "--extent", "check"])
        .arg("--harness")
        .arg(harness)
        .arg("--raw")
        .arg(out.join("raw.jsonl"))
        .arg("--docs")
        .arg(&out)
        .status()
        .expect("longhaul-compare starts");
    assert!(status.success(), "see above");
    let page = std::fs::read_to_string(out.join("comparison.md")).unwrap();
    let peers = [
        "TCP cubic",
        "TCP bbr",
        "TLS bbr",
        "WireGuard bbr",
        "QUIC cubic",
        "QUIC bbr",
        "SRT",
        "UDT",
        "kcptun",
        "**Longhaul auto**",
    ];
    for peer in peers {
        assert!(page.lines().any(|line| line.starts_with(&format!("| {peer} |"))), "{peer} has no figures");
    }
    assert!(!page.contains("failed:"), "{page}");
    for drawing in ["comparison-p99.svg", "comparison-goodput.svg"] {
        assert!(std::fs::read_to_string(out.join(drawing)).unwrap().contains("Longhaul"));
    }
}

/// Killed in the middle, it leaves no process behind, and with them go the name spaces.
#[test]
fn nothing_is_left_behind() {
    if !has_name_spaces() {
        return;
    }
    let raw = Path::new(env!("CARGO_TARGET_TMPDIR")).join("killed.jsonl");
    let mut run = Command::new(env!("CARGO_BIN_EXE_longhaul-compare"))
        .args(["run", "--extent", "standard", "--peers", "Longhaul sr", "--harness", "."])
        .arg("--raw")
        .arg(raw)
        .stdout(Stdio::null())
        .spawn()
        .expect("longhaul-compare starts");
    // Three holders of name spaces, two gateways, two hosts.
    wait_until(|| children(run.id()).len() == 7);
    let children = children(run.id());
    run.kill().unwrap();
    run.wait().unwrap();
    wait_until(|| children.iter().all(|child| !Path::new(&format!("/proc/{child}")).exists()));
}

fn wait_until(holds: impl Fn() -> bool) {
    let mut tries = 0..3000;
    while !holds() {
        assert!(tries.next().is_some(), "not after a minute");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// The processes that a process started and that have not ended.
fn children(of: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| parent(*pid) == Some(of)).collect()
}

/// Field 4 of proc_pid_stat(5); the name in field 2 may hold anything, but it ends at the last
/// parenthesis.
fn parent(of: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{of}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
