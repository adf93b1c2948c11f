//! Gateways as processes that take the places of others.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use gateway::upgrade::Announcement;
use rustix::process::{Pid, Signal, kill_process};

/// A gateway that took another one's place. It ends with this.
pub(crate) struct Successor(Pid);

impl Drop for Successor {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// Has another process take the place of the gateway with this file, as an operator does. It
/// appends its log to that of the one before.
pub(crate) fn upgrade(config: &Path, log: &Path) -> Successor {
    let output = Command::new(env!("CARGO_BIN_EXE_longhaul"))
        .args(["upgrade", "--json"])
        .arg(config)
        .stdin(Stdio::null())
        .stderr(File::options().create(true).append(true).open(log).unwrap())
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let taken = serde_json::from_str::<Announcement>(&told).ok().and_then(|told| told.taken);
    let Some(taken) = taken else {
        panic!("no upgrade: {told}\n{}", std::fs::read_to_string(log).unwrap_or_default());
    };
    println!("{}: {:.0} ms", config.display(), taken.stood_still * 1e3);
    Successor(Pid::from_raw(taken.process.cast_signed()).unwrap())
}
