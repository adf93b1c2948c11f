//! One peer in one cell.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ChildStdout;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use link_emulator::EmulatorStats;
use serde::{Deserialize, Serialize};

use crate::cell::{Cell, Effort, Schedule};
use crate::job::Job;
use crate::lab::{Lab, Running};
use crate::peer::{Part, Peer, Ready, Stage};
use crate::usage;

/// Programs start within tenths of a second; a busy machine takes longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between the last confirmation and reading the counters, which are as old as some 20 ms.
const SETTLE: Duration = Duration::from_millis(30);
/// Share of the processors' time, given to other machines, above which a measurement is repeated.
pub(crate) const STOLEN: f64 = 0.02;
/// The last lines of a log, shown when its program failed.
const LAST_WORDS: usize = 600;

/// The outcome.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The cell.
    pub(crate) cell: Cell,
    /// Who.
    pub(crate) peer: Peer,
    /// The figures; `Err`: why there are none.
    pub(crate) figures: Result<Figures, String>,
    /// Share of the processors' time that the host gave to other machines meanwhile, if known.
    #[serde(default)]
    pub(crate) stolen: Option<f64>,
    /// How often it was measured; this is the time when least was stolen.
    #[serde(default = "once")]
    pub(crate) times: u32,
}

fn once() -> u32 {
    1
}

/// The quantity measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Payload bit/s confirmed.
    pub(crate) goodput: f64,
    /// Messages whose times are counted, those never confirmed included.
    pub(crate) messages: u64,
    /// Those never confirmed; they count with their age when the client gave up.
    pub(crate) unfinished: u64,
    /// Seconds from posting to confirmation: the first message of the run.
    pub(crate) first: f64,
    /// Median.
    pub(crate) p50: f64,
    /// 99th percentile.
    pub(crate) p99: f64,
    /// 99.9th percentile.
    pub(crate) p999: f64,
    /// Frame bytes both ways that the peers sent into the link, per payload byte confirmed; the
    /// whole run.
    pub(crate) wire: f64,
    /// The part of those that went the messages' way.
    pub(crate) forward: f64,
    /// Processor seconds per GiB confirmed, all programs, the whole run.
    pub(crate) cpu: f64,
    /// The part of those that programs used which carry messages for others.
    pub(crate) cpu_carriers: f64,
    /// Peak memory of all programs, bytes.
    pub(crate) memory: u64,
    /// The part of those that programs used which carry messages for others.
    pub(crate) memory_carriers: u64,
    /// Packets dropped by the link's full queue, per packet.
    pub(crate) congested: f64,
    /// Frames that the emulator itself could not take or pass on: it, not the link, was the limit.
    pub(crate) overrun: u64,
}

/// The programs to measure with.
pub(crate) struct Bench<'a> {
    pub(crate) program: &'a Path,
    pub(crate) harness: &'a Path,
    pub(crate) seed: u64,
    pub(crate) effort: Effort,
    /// Where a gateway's status goes, with a name for each measurement.
    pub(crate) status: Option<&'a Path>,
}

impl Bench<'_> {
    /// Measures a peer in a cell; once more if another machine had much of the processors
    /// meanwhile, whoever it is that was measured.
    pub(crate) fn measure(&self, lab: &Lab, peer: Peer, cell: &Cell) -> Outcome {
        let first = self.measure_once(lab, peer, cell);
        let taken = |outcome: &Outcome| outcome.stolen.unwrap_or(0.0);
        if taken(&first) <= STOLEN {
            return first;
        }
        let second = self.measure_once(lab, peer, cell);
        let better = if second.figures.is_ok() && taken(&second) < taken(&first) { second } else { first };
        Outcome { times: 2, ..better }
    }

    /// Starts all programs of a peer over a fresh link, measures, ends them.
    fn measure_once(&self, lab: &Lab, peer: Peer, cell: &Cell) -> Outcome {
        let before = usage::machine().ok();
        let figures = self.try_measure(lab, peer, cell);
        let stolen = before.zip(usage::machine().ok()).map(|(before, after)| {
            after.1.saturating_sub(before.1) as f64 / after.0.saturating_sub(before.0).max(1) as f64
        });
        Outcome { cell: *cell, peer, figures, stolen, times: 1 }
    }

    fn try_measure(&self, lab: &Lab, peer: Peer, cell: &Cell) -> Result<Figures, String> {
        let dir = tempfile::Builder::new().prefix("longhaul-compare-").tempdir().map_err(text)?;
        let schedule = self.effort.schedule(cell, peer.connections(cell), peer.learns());
        let bridge = lab.link(cell.link(), self.seed).map_err(text)?;
        let stage = Stage {
            lab,
            program: self.program,
            harness: self.harness,
            dir: dir.path(),
            cell,
            job: &schedule.job,
        };
        let mut cast = Cast::default();
        for mut part in stage.parts(peer).map_err(text)? {
            if let (Ready::Sends, Some(folder)) = (part.ready, self.status.filter(|_| peer.is_longhaul())) {
                let name = format!("{cell}-{}.json", peer.name()).replace(['/', ' ', ','], "_");
                part.launch.command.env("COMPARE_STATUS", folder.join(name));
            }
            cast.enter(part)?;
        }
        cast.await_line("begin", PATIENCE)?;
        let before = (cast.cpu()?, bridge.stats());
        cast.await_line("done", schedule.job.time + schedule.job.patience + PATIENCE)?;
        let cpu = cast.cpu()?.since(before.0);
        thread::sleep(SETTLE);
        let after = bridge.stats();
        let record = cast.record()?;
        let memory = cast.memory()?;
        cast.finish();
        let stopped = bridge.stop().map_err(text)?;
        let mut figures = figures(&schedule, &record)?;
        let confirmed = record.confirmed().count();
        if schedule.job.verify && confirmed == 0 {
            return Err(format!("nothing confirmed of {} messages", record.messages.len()));
        }
        // Where nothing is, the figures are as if one message were.
        let bytes = confirmed.max(1) as f64 * cell.size as f64;
        let gib = bytes / f64::from(1u32 << 30);
        let ([there, back], [there_before, back_before]) = (wire(&after), wire(&before.1));
        let (there, back) = ((there - there_before) / bytes, (back - back_before) / bytes);
        (figures.wire, figures.forward) = (there + back, there.max(back));
        (figures.cpu, figures.cpu_carriers) = (cpu.all() / gib, cpu.carriers / gib);
        (figures.memory, figures.memory_carriers) = (memory.all() as u64, memory.carriers as u64);
        (figures.congested, figures.overrun) = troubles(&stopped);
        Ok(figures)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Frame bytes that went into the link from either side.
fn wire(stats: &EmulatorStats) -> [f64; 2] {
    [stats.a_to_b, stats.b_to_a].map(|way| way.received_bytes as f64)
}

/// Share of packets that found the link's queue full, and frames lost to the emulator's own limits.
fn troubles(stats: &EmulatorStats) -> (f64, u64) {
    let both = [stats.a_to_b, stats.b_to_a];
    let sum = |of: fn(&link_emulator::DirectionStats) -> u64| both.iter().map(of).sum::<u64>();
    let congested = sum(|way| way.link.queue_full) as f64 / sum(|way| way.received).max(1) as f64;
    (congested, sum(|way| way.overrun + way.send_full + way.refused + way.uncut + way.link.over_capacity))
}

/// A sum over the programs.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    carriers: f64,
    ends: f64,
}

impl Used {
    fn all(self) -> f64 {
        self.carriers + self.ends
    }

    fn since(self, before: Self) -> Self {
        Self { carriers: self.carriers - before.carriers, ends: self.ends - before.ends }
    }
}

/// The programs that run. Killed when dropped.
#[derive(Default)]
struct Cast {
    players: Vec<Player>,
}

struct Player {
    running: Running,
    lines: Receiver<String>,
    carries: bool,
    log: PathBuf,
}

impl Cast {
    /// Starts a program and waits until it is ready.
    fn enter(&mut self, part: Part) -> Result<(), String> {
        let Part { launch, carries, ready, log } = part;
        let program = format!("{:?}", launch.command.get_program());
        let mut running = launch.spawn().map_err(|error| format!("{program}: {error}"))?;
        let output = running.child.stdout.take().ok_or("no standard output")?;
        let lines = lines(output);
        self.players.push(Player { running, lines, carries, log });
        match ready {
            Ready::Says => self.await_line("ready", PATIENCE),
            Ready::After(time) => {
                thread::sleep(time);
                Ok(())
            }
            Ready::Sends => Ok(()),
        }
    }

    /// The newest program says a word.
    fn await_line(&mut self, wanted: &str, patience: Duration) -> Result<(), String> {
        let end = Instant::now() + patience;
        let player = self.players.last().ok_or("nobody plays")?;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match player.lines.recv_timeout(left) {
                Ok(line) if line == wanted => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("no `{wanted}`{}", player.last_words()));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("ended before `{wanted}`{}", player.last_words()));
                }
            }
        }
    }

    /// The sender's last word.
    fn record(&self) -> Result<Record, String> {
        let player = self.players.last().ok_or("nobody plays")?;
        let mut record = Record::default();
        loop {
            let line = player
                .lines
                .recv_timeout(PATIENCE)
                .map_err(|_| format!("no report{}", player.last_words()))?;
            if let Some(wrong) = line.strip_prefix("wrong ") {
                let wrong: u64 = wrong.parse().map_err(text)?;
                return if wrong == 0 { Ok(record) } else { Err(format!("{wrong} messages wrong")) };
            }
            record.messages.push(message(&line).ok_or_else(|| format!("`{line}` is not two times"))?);
        }
    }

    fn cpu(&self) -> Result<Used, String> {
        self.sum(|process| usage::cpu(process).map(|time| time.as_secs_f64()))
    }

    fn memory(&self) -> Result<Used, String> {
        self.sum(|process| usage::peak_memory(process).map(|bytes| bytes as f64))
    }

    fn sum(&self, of: impl Fn(u32) -> io::Result<f64>) -> Result<Used, String> {
        let mut used = Used::default();
        for player in &self.players {
            let value = of(player.running.child.id())
                .map_err(|error| format!("a program is gone: {error}{}", player.last_words()))?;
            *if player.carries { &mut used.carriers } else { &mut used.ends } += value;
        }
        Ok(used)
    }

    /// Lets the ends end by themselves; carriers are killed.
    fn finish(&mut self) {
        for player in self.players.iter_mut().rev() {
            player.running.release();
        }
    }
}

impl Player {
    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let from = log.char_indices().rev().nth(LAST_WORDS).map_or(0, |(at, _)| at);
        let name = self.log.file_stem().unwrap_or_default().to_string_lossy();
        format!(" ({name}: {})", log.get(from..).unwrap_or_default().trim())
    }
}

/// A program's output; a thread reads it, so that one may wait for a line for a while.
fn lines(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// When messages were posted and confirmed, by the sender's clock from the start.
#[derive(Debug, Default)]
struct Record {
    messages: Vec<(Duration, Option<Duration>)>,
}

fn message(line: &str) -> Option<(Duration, Option<Duration>)> {
    let (posted, confirmed) = line.split_once(' ')?;
    let time = |text: &str| text.parse().ok().map(Duration::from_nanos);
    Some((time(posted)?, if confirmed == "-" { None } else { Some(time(confirmed)?) }))
}

impl Record {
    /// Messages confirmed between two times: each counts by the part of its own time, from posting
    /// to confirmation, that lies there. Where many end together, whole ones would be some percent
    /// too many or too few.
    fn carried(&self, from: Duration, to: Duration) -> f64 {
        let part = |(posted, confirmed): &(Duration, Option<Duration>)| {
            let confirmed = (*confirmed)?;
            let within = confirmed.min(to).saturating_sub((*posted).max(from));
            let all = confirmed.saturating_sub(*posted);
            Some(if all.is_zero() { 0.0 } else { within.as_secs_f64() / all.as_secs_f64() })
        };
        self.messages.iter().filter_map(part).sum()
    }

    fn confirmed(&self) -> impl Iterator<Item = Duration> {
        self.messages.iter().filter_map(|(_, confirmed)| *confirmed)
    }
}

/// Goodput and times; the rest is zero.
fn figures(schedule: &Schedule, record: &Record) -> Result<Figures, String> {
    let Job { size, time, patience, .. } = schedule.job;
    let gave_up = time + patience;
    let warm_up = schedule.warm_up.unwrap_or_default();
    let mut times = Histogram::<u64>::new_with_bounds(1, 3_600_000_000_000, 3).map_err(text)?;
    let mut unfinished = 0;
    for (posted, confirmed) in &record.messages {
        unfinished += u64::from(confirmed.is_none());
        let ended = confirmed.unwrap_or(gave_up);
        if ended >= warm_up {
            let nanos = ended.saturating_sub(*posted).as_nanos();
            times.saturating_record(u64::try_from(nanos).unwrap_or(u64::MAX));
        }
    }
    let seconds = |quantile| Duration::from_nanos(times.value_at_quantile(quantile)).as_secs_f64();
    // Cut out of a longer run, or the whole of it until the last confirmation, or until the client
    // gave up. What is posted at the end of a run soon has the link to itself, so where a message
    // takes long that part is left out.
    let (from, to) = match schedule.warm_up {
        Some(warm_up) => {
            let usual = Duration::from_secs_f64(seconds(0.5)).min(time.saturating_sub(warm_up) / 2);
            (warm_up, time.saturating_sub(usual))
        }
        None if unfinished > 0 => (Duration::ZERO, gave_up),
        None => (Duration::ZERO, record.confirmed().max().unwrap_or(gave_up)),
    };
    let first = record.messages.iter().min_by_key(|(posted, _)| *posted);
    Ok(Figures {
        goodput: record.carried(from, to) * size as f64 * 8.0 / (to - from).as_secs_f64(),
        messages: times.len(),
        unfinished,
        first: first.map_or(0.0, |(posted, confirmed)| {
            confirmed.unwrap_or(gave_up).saturating_sub(*posted).as_secs_f64()
        }),
        p50: seconds(0.5),
        p99: seconds(0.99),
        p999: seconds(0.999),
        wire: 0.0,
        forward: 0.0,
        cpu: 0.0,
        cpu_carriers: 0.0,
        memory: 0,
        memory_carriers: 0,
        congested: 0.0,
        overrun: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn record(messages: impl Iterator<Item = (u32, u32)>) -> Record {
        let at = |ms: u32| MILLISECOND * ms;
        Record { messages: messages.map(|(posted, confirmed)| (at(posted), Some(at(confirmed)))).collect() }
    }

    /// 64 messages in 540 ms, all at once or one after the other, whenever one begins to count.
    #[test]
    fn what_is_carried_does_not_depend_on_who_ends_together() {
        let rate = 64.0 / 540.0;
        let waves = record((0..10).flat_map(|wave| (0..64).map(move |_| (wave * 540, (wave + 1) * 540))));
        let row = record((0..640).map(|at| (at * 540 / 64, (at + 64) * 540 / 64)));
        for (from, to) in [(700, 4000), (700, 3700), (1079, 1081), (1500, 1600)] {
            let expected = rate * f64::from(to - from);
            for record in [&waves, &row] {
                let carried = record.carried(MILLISECOND * from, MILLISECOND * to);
                assert!((carried / expected - 1.0).abs() < 0.02, "{from} to {to}: {carried}, {expected}");
            }
        }
    }

    #[test]
    fn what_was_not_confirmed_was_not_carried() {
        let mut record = record([(0, 100), (50, 150), (100, 300)].into_iter());
        record.messages.push((Duration::ZERO, None));
        let carried = |from, to| record.carried(MILLISECOND * from, MILLISECOND * to);
        assert_eq!((carried(0, 300), carried(300, 400), carried(50, 100)), (3.0, 0.0, 1.0));
    }
}
