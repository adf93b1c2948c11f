//! One gateway process.

use std::fs::OpenOptions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::ports::SitePorts;
use super::{TICK, TestbedError};

/// Longer than `limits.drain`.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Longer than a gateway stands still for another one, or waits for its last word.
const LAST_WORD: Duration = Duration::from_secs(3);
/// Lines of the log that are shown when a gateway ended by itself.
const LAST_LINES: usize = 12;

/// The process that is left of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivor {
    /// The one that ran before.
    Before,
    /// The one that was to take its place.
    Next,
    /// Neither.
    Nobody,
}

pub(super) struct Gateway {
    site: char,
    ports: SitePorts,
    program: PathBuf,
    config: PathBuf,
    log: PathBuf,
    /// None after it was killed.
    child: Option<Child>,
}

impl Gateway {
    pub(super) fn start(
        program: &Path,
        dir: &Path,
        site: char,
        ports: &SitePorts,
    ) -> Result<Self, TestbedError> {
        let mut gateway = Self {
            site,
            ports: *ports,
            program: program.to_owned(),
            config: dir.join(format!("{site}.toml")),
            log: dir.join(format!("{site}.log")),
            child: None,
        };
        gateway.restart()?;
        Ok(gateway)
    }

    pub(super) fn restart(&mut self) -> Result<(), TestbedError> {
        self.child = Some(self.spawn(&self.program, &[])?);
        Ok(())
    }

    /// Starts `program` to take the running gateway's place. Returns true once that has ended, and
    /// false if the new process ends instead.
    pub(super) fn upgrade(&mut self, program: &Path, patience: Duration) -> Result<bool, TestbedError> {
        let mut next = self.spawn(program, &["--take-over"])?;
        let end = Instant::now() + patience;
        loop {
            if next.try_wait().map_err(TestbedError::io("a gateway process"))?.is_some() {
                self.check()?;
                return Ok(false);
            }
            let Some(child) = &mut self.child else { return Ok(false) };
            match child.try_wait().map_err(TestbedError::io("a gateway process"))? {
                Some(status) if status.success() => {
                    self.child = Some(next);
                    return Ok(true);
                }
                Some(status) => {
                    // Nobody is left to hear of an error.
                    let _ = next.kill().and_then(|()| next.wait());
                    return Err(self.ended(status.to_string()));
                }
                None if Instant::now() >= end => {
                    let _ = next.kill().and_then(|()| next.wait());
                    self.check()?;
                    return Ok(false);
                }
                None => std::thread::sleep(TICK),
            }
        }
    }

    /// Starts the same program to take the running gateway's place, and waits until one of the two
    /// has ended, in whatever way, and some time more.
    pub(super) fn contest(&mut self, patience: Duration) -> Result<Survivor, TestbedError> {
        let next = self.spawn(&self.program, &["--take-over"])?;
        let Some(before) = self.child.take() else { return Ok(Survivor::Nobody) };
        let mut both = [before, next];
        let have_ended = wait_for_one(&mut both, patience).map_err(TestbedError::io("a gateway process"))?;
        let [before, next] = both;
        let (left, survivor) = match have_ended {
            [false, true] => (before, Survivor::Before),
            [true, false] => (next, Survivor::Next),
            [true, true] => return Ok(Survivor::Nobody),
            [false, false] => {
                for mut child in [next, before] {
                    child
                        .kill()
                        .and_then(|()| child.wait())
                        .map_err(TestbedError::io("killing a gateway"))?;
                }
                return Err(self.ended("both gateways go on".to_owned()));
            }
        };
        self.child = Some(left);
        Ok(survivor)
    }

    fn spawn(&self, program: &Path, further: &[&str]) -> Result<Child, TestbedError> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .map_err(TestbedError::io("a gateway's log"))?;
        Command::new(program)
            .args(["gateway", "--with-parent"])
            .args(further)
            .arg("--config")
            .arg(&self.config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // A terminal's Ctrl-C is for whoever started us; we stop the gateways ourselves.
            .process_group(0)
            .spawn()
            .map_err(TestbedError::io("a gateway process"))
    }

    pub(super) fn lan(&self) -> SocketAddr {
        self.ports.lan
    }

    pub(super) fn admin(&self) -> SocketAddr {
        self.ports.admin
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Fails if it has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), TestbedError> {
        let Some(child) = &mut self.child else { return Ok(()) };
        match child.try_wait().map_err(TestbedError::io("a gateway process"))? {
            None => Ok(()),
            Some(status) => Err(self.ended(status.to_string())),
        }
    }

    fn ended(&self, status: String) -> TestbedError {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines.get(lines.len().saturating_sub(LAST_LINES)..).unwrap_or_default();
        TestbedError::Ended { site: self.site, status, log: last.join("\n") }
    }

    pub(super) fn kill(&mut self) -> Result<(), TestbedError> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let killed = child.kill().and_then(|()| child.wait());
        killed.map(drop).map_err(TestbedError::io("killing a gateway"))
    }

    pub(super) fn ask_to_stop(&self) -> Result<(), TestbedError> {
        let Some(child) = &self.child else { return Ok(()) };
        let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return Ok(()) };
        kill_process(pid, Signal::TERM).map_err(|errno| TestbedError::io("stopping a gateway")(errno.into()))
    }

    pub(super) fn wait_for_end(&mut self) -> Result<(), TestbedError> {
        let end = Instant::now() + STOP_PATIENCE;
        while let Some(child) = &mut self.child {
            match child.try_wait().map_err(TestbedError::io("a gateway process"))? {
                Some(status) if status.success() => self.child = None,
                Some(status) => return Err(self.ended(status.to_string())),
                None if Instant::now() >= end => {
                    return Err(self.ended("it did not stop when asked to".to_owned()));
                }
                None => std::thread::sleep(TICK),
            }
        }
        Ok(())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Nobody is left to hear of an error.
        let _ = self.kill();
    }
}

/// Waits until one has ended, or for so long, and then until the other one would have, too. Returns
/// who has.
fn wait_for_one(both: &mut [Child; 2], patience: Duration) -> io::Result<[bool; 2]> {
    let mut wait = |goes_on: fn([bool; 2]) -> bool, patience: Duration| {
        let end = Instant::now() + patience;
        loop {
            let [first, second] = both;
            let have_ended = [first.try_wait()?.is_some(), second.try_wait()?.is_some()];
            if !goes_on(have_ended) || Instant::now() >= end {
                return Ok(have_ended);
            }
            std::thread::sleep(TICK);
        }
    };
    match wait(|ended| ended == [false; 2], patience)? {
        [false, false] => Ok([false; 2]),
        // Whoever waits for the other one gives up by then.
        _ => wait(|ended| ended != [true; 2], LAST_WORD),
    }
}
