//! How much processor time something took.

use std::fs::read_to_string;
use std::io;
use std::time::{Duration, Instant};

use super::ceiling::ceiling;

/// The kernel's clock ticks per second in /proc: 100 on every Linux that Rust runs on.
const TICKS: u64 = 100;

/// A rate and what it took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Gbit/s.
    pub(super) rate: f64,
    /// Processors kept busy, on average.
    pub(super) cores: f64,
}

impl Pace {
    /// The ceiling's, see [`ceiling`].
    pub(super) fn of_ceiling(seconds: f64, segment: usize) -> io::Result<Self> {
        let meter = CpuMeter::start(&[std::process::id()])?;
        let rate = ceiling(seconds, segment)?;
        Ok(Self { rate, cores: meter.cores()? })
    }

    pub(super) fn mean(self, other: Self) -> Self {
        Self { rate: (self.rate + other.rate) / 2.0, cores: (self.cores + other.cores) / 2.0 }
    }

    pub(super) fn per_core(self) -> f64 {
        self.rate / self.cores.max(f64::MIN_POSITIVE)
    }

    /// Seconds of processor time for a GiB.
    pub(super) fn seconds_per_gib(self) -> f64 {
        const GBIT_PER_GIB: f64 = 8.0 * 1.073_741_824;
        GBIT_PER_GIB / self.per_core()
    }
}

/// Adds up the processor time of some processes.
pub(super) struct CpuMeter {
    processes: Vec<u32>,
    began: Instant,
    used: Duration,
}

impl CpuMeter {
    pub(super) fn start(processes: &[u32]) -> io::Result<Self> {
        Ok(Self { processes: processes.to_vec(), began: Instant::now(), used: used(processes)? })
    }

    /// Processors kept busy since the start, on average.
    pub(super) fn cores(&self) -> io::Result<f64> {
        let used = used(&self.processes)?.saturating_sub(self.used);
        Ok(used.as_secs_f64() / self.began.elapsed().as_secs_f64())
    }
}

fn used(processes: &[u32]) -> io::Result<Duration> {
    processes.iter().map(|process| of(*process)).sum()
}

/// User and system time of all threads of a process.
fn of(process: u32) -> io::Result<Duration> {
    let stat = read_to_string(format!("/proc/{process}/stat"))?;
    let ticks = parse(&stat).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/PID/stat"))?;
    Ok(Duration::from_millis(ticks * 1000 / TICKS))
}

/// Fields 14 and 15 (proc_pid_stat(5)); the name in field 2 may hold anything, but it ends at the
/// last parenthesis.
fn parse(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    times.next()??.checked_add(times.next()??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_whatever_the_name() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 100 0 0 0 123 45 6 7 20 0 1 0";
        assert_eq!(parse(stat), Some(168));
        assert_eq!(parse("42 (a) S 1 2"), None);
        assert!(CpuMeter::start(&[std::process::id()]).unwrap().cores().unwrap() >= 0.0);
    }
}
