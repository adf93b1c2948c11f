//! Standard error that is full, dead or stalled: no flow and no end of a gateway waits for it.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use super::*;

/// Where the gateways' logs go.
#[derive(Clone, Copy, Debug)]
enum Sink {
    /// A disk without room.
    FullDisk,
    /// A pipe whose reader ends once the gateways run.
    DeadReader,
    /// A pipe whose reader has never read anything, and that has no room.
    StalledFromTheBeginning,
    /// A pipe whose reader stalls once the gateways run.
    StalledReader,
    /// A file that must not grow beyond some kilobytes (RLIMIT_FSIZE).
    LongFile,
}

/// A pipe with a name, and its reader, which does not wait.
pub(super) struct Fifo {
    pub(super) path: PathBuf,
    pub(super) reader: File,
}

impl Fifo {
    pub(super) fn new(folder: &Path) -> Self {
        let path = folder.join("log");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let reader = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&path);
        Self { reader: reader.unwrap(), path }
    }

    fn fill(&self) {
        let flags = OFlags::NONBLOCK.bits() as i32;
        let mut writer = OpenOptions::new().write(true).custom_flags(flags).open(&self.path).unwrap();
        while writer.write(&[b'.'; 4096]).is_ok() {}
        while writer.write(b".").is_ok() {}
    }

    /// Returns what there is to read.
    pub(super) fn read(&mut self) -> String {
        let mut bytes = Vec::new();
        match self.reader.read_to_end(&mut bytes) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
            _ => String::from_utf8(bytes).unwrap(),
        }
    }
}

/// The program with its log sent elsewhere, as talkative as can be.
fn program(folder: &Path, log: &Path) -> PathBuf {
    program_after("", folder, log)
}

/// The same after a command of the shell.
fn program_after(command: &str, folder: &Path, log: &Path) -> PathBuf {
    let binary = env!("CARGO_BIN_EXE_longhaul");
    let log = log.to_str().unwrap();
    script(folder, &format!("{command}\nLONGHAUL_LOG=trace exec {binary} \"$@\" 2>> {log}\n"))
}

/// A script of the shell in place of the program.
pub(super) fn script(folder: &Path, commands: &str) -> PathBuf {
    let path = folder.join("longhaul");
    std::fs::write(&path, format!("#!/bin/sh\n{commands}")).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    path
}

pub(super) fn lost(pair: &Pair, site: Site) -> u64 {
    pair.counted(site, "longhaul_log_lines_lost_total", |labels| !labels.contains("reason=\"rate\""))
}

/// How long flows run over each sink: `LONGHAUL_LOG_SECONDS` in all.
fn load() -> Duration {
    let seconds = std::env::var("LONGHAUL_LOG_SECONDS").map_or(4.0, |text| text.parse().unwrap());
    Duration::from_secs_f64(seconds / 5.0)
}

#[test]
fn no_flow_and_no_end_waits_for_the_log() {
    for sink in
        [Sink::FullDisk, Sink::DeadReader, Sink::StalledFromTheBeginning, Sink::StalledReader, Sink::LongFile]
    {
        let folder = tempfile::tempdir().unwrap();
        let mut fifo = Fifo::new(folder.path());
        let log = match sink {
            Sink::FullDisk => Path::new("/dev/full"),
            Sink::LongFile => &folder.path().join("long.log"),
            Sink::StalledFromTheBeginning => {
                fifo.fill();
                &fifo.path
            }
            Sink::DeadReader | Sink::StalledReader => &fifo.path,
        };
        let limit = if let Sink::LongFile = sink { "ulimit -f 16" } else { "" };
        let program = program_after(limit, folder.path(), log);
        let mut pair = Pair::start_otherwise(3, |plan| {
            plan.program = program;
            // It may run for an hour, and a busy machine shows nothing more.
            plan.rate = "50 Mbit/s".to_owned();
        });
        pair.complete_transfer(40);
        if let Sink::DeadReader = sink {
            let log = fifo.read();
            let started = log.lines().find(|line| line.contains("gateway started")).unwrap();
            assert!(started.contains(" version="), "{started}");
            // Values are shown as what they are, and not as results.
            assert!(!log.lines().any(|line| line.contains(" INFO ") && line.contains("=Ok(")), "{log}");
            fifo.reader = File::open("/dev/null").unwrap();
        }
        pair.complete_transfer(80);
        pair.testbed.write_policy("[[class]]\nname = \"default\"\nscheme = \"sr\"\n").unwrap();
        for site in [Site::A, Site::B] {
            let answer = pair.reload(site);
            assert!(answer.adopted, "{sink:?}: {answer:?}");
            let end = Instant::now() + PATIENCE;
            while lost(&pair, site) == 0 {
                assert!(Instant::now() < end, "{sink:?} at {site:?}: no line was lost");
                std::thread::sleep(TICK);
            }
        }
        let (client, server) = pair.transfer(Limit::Time(load()));
        let (client, server) = testbed::hostio::run_pair(client, server).unwrap();
        assert!(client.is_clean() && client.messages > 0, "{sink:?}: {client}");
        assert!(server.is_clean() && server.messages > 0, "{sink:?}: {server}");
        for site in [Site::A, Site::B] {
            let status = pair.status(site);
            assert!(status.flows.opened >= 9 && status.flows.failed == 0, "{sink:?}: {status:?}");
        }
        let lost = [Site::A, Site::B].map(|site| lost(&pair, site));
        println!("{sink:?}: {} messages in {:?}, {lost:?} lines lost", client.messages, client.elapsed);
        pair.testbed.stop().unwrap_or_else(|error| panic!("{sink:?}: {error}"));
    }
}

/// A reader that comes back hears how many lines it has missed, and then all that follow.
#[test]
fn a_reader_that_comes_back_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut fifo = Fifo::new(folder.path());
    fifo.fill();
    let program = program(folder.path(), &fifo.path);
    let pair = Pair::start_otherwise(1, |plan| plan.program = program);
    let end = Instant::now() + PATIENCE;
    while lost(&pair, Site::A) == 0 || lost(&pair, Site::B) == 0 {
        assert!(Instant::now() < end, "no line was lost");
        std::thread::sleep(TICK);
    }
    let mut read = String::new();
    while read.matches("lines of this log were lost lost=").count() < 2 {
        assert!(Instant::now() < end, "nobody says what was lost: {read}");
        read += &fifo.read();
        std::thread::sleep(TICK);
    }
    let reading = std::thread::spawn(move || {
        let end = Instant::now() + PATIENCE;
        while read.matches("gateway stopped").count() < 2 && Instant::now() < end {
            read += &fifo.read();
            std::thread::sleep(TICK);
        }
        read
    });
    pair.testbed.stop().unwrap();
    let read = reading.join().unwrap();
    assert_eq!(read.matches("gateway stopped").count(), 2, "{read}");
}
