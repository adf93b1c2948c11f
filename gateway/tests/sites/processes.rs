//! Gateways and commands as processes, and the transfers that are carried by them.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use testbed::hostio::{Endpoint, run_pair};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// Starts a gateway, which appends its log to this file.
pub(crate) fn start_gateway(config: &Path, log: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_longhaul"))
        .args(["gateway", "--with-parent", "--config"])
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::options().create(true).append(true).open(log).unwrap())
        .spawn()
        .unwrap()
}

/// Runs the program; whether it ended well, and what it printed.
pub(crate) fn longhaul(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_longhaul")).args(args).output().unwrap();
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// Returns how many messages a requester's host has had completed.
pub(crate) fn done(client: &Endpoint) -> u64 {
    client.progress().messages.load(Ordering::Relaxed)
}

/// Waits for something to come about. `state` says where it stands if it does not.
pub(crate) fn wait_until(is_reached: impl Fn() -> bool, state: impl Fn() -> String) {
    let end = Instant::now() + PATIENCE;
    while !is_reached() {
        assert!(Instant::now() < end, "{}", state());
        std::thread::sleep(TICK);
    }
}

/// Waits for the end of a transfer of so many messages, all of them as they were sent.
pub(crate) fn complete([client, server]: [Endpoint; 2], messages: u64) {
    let (client, server) = run_pair(client, server).unwrap();
    assert!(client.is_clean() && client.messages == messages, "{client}");
    assert!(server.is_clean() && server.messages > 0, "{server}");
}
