//! Series about the program and its process, beside those of the metric table.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::ClockId;

use session::message::VERSION as PROTOCOL;

/// Memory pages, in bytes. It is what Linux has on x86-64, and by default on AArch64.
const PAGE: u64 = 4096;
/// Clock ticks of /proc in a second, on every architecture that we know.
const TICKS: f64 = 100.0;

/// Prometheus text: the versions, and what Prometheus' own client libraries tell of a process.
/// `peer_build`: of the peer that there is a session with; empty if it does not say.
pub(super) fn metrics(site: &str, peer: &str, peer_build: Option<&str>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!(
        "# HELP longhaul_build_info The program's version\n# TYPE longhaul_build_info gauge\n\
         longhaul_build_info{{site=\"{site}\",peer=\"{peer}\",version=\"{version}\",protocol=\"{PROTOCOL}\"}} 1\n"
    );
    if let Some(build) = peer_build {
        let build = if build.is_empty() { "unknown" } else { build };
        text += &format!(
            "# HELP longhaul_peer_info The version of the peer that there is a session with\n\
             # TYPE longhaul_peer_info gauge\n\
             longhaul_peer_info{{site=\"{site}\",peer=\"{peer}\",version=\"{build}\",protocol=\"{PROTOCOL}\"}} 1\n"
        );
    }
    let Some(process) = Process::look() else { return text };
    for (name, kind, help, value) in process.series() {
        text += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    }
    text
}

struct Process {
    /// Bytes.
    resident: u64,
    virtually: u64,
    /// Seconds.
    cpu: f64,
    threads: u64,
    /// Seconds since 1970; `None`: the clock stands before that.
    started: Option<f64>,
    /// Open descriptors; Linux tells since 6.2.
    descriptors: u64,
    /// Most descriptors that there may be.
    descriptor_limit: Option<u64>,
}

impl Process {
    fn look() -> Option<Self> {
        let pages = fs::read_to_string("/proc/self/statm").ok()?;
        let mut pages = pages.split(' ').map_while(|field| field.parse::<u64>().ok());
        let (virtually, resident) = (pages.next()? * PAGE, pages.next()? * PAGE);
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The name in parentheses may hold blanks. Behind it utime is 12th, stime 13th, num_threads
        // 18th, starttime 20th (proc_pid_stat(5)).
        let (_, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let field = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok());
        let cpu = (field(11)? + field(12)?) as f64 / TICKS;
        let (threads, since_boot) = (field(17)?, field(19)? as f64 / TICKS);
        let descriptors = fs::metadata("/proc/self/fd").map_or(0, |folder| folder.len());
        Some(Self {
            resident,
            virtually,
            cpu,
            threads,
            started: boot_time().map(|boot| boot + since_boot),
            descriptors,
            descriptor_limit: descriptor_limit(),
        })
    }

    /// Name, type, help and value of each.
    fn series(&self) -> impl Iterator<Item = (&'static str, &'static str, &'static str, f64)> {
        let count = |value: u64| Some(value as f64);
        let known = |value: u64| Some(value as f64).filter(|_| value > 0);
        [
            ("process_resident_memory_bytes", "gauge", "Resident memory in bytes", count(self.resident)),
            ("process_virtual_memory_bytes", "gauge", "Virtual memory in bytes", count(self.virtually)),
            (
                "process_cpu_seconds_total",
                "counter",
                "User and system processor time in seconds",
                Some(self.cpu),
            ),
            ("process_threads", "gauge", "Threads of the process", count(self.threads)),
            ("process_start_time_seconds", "gauge", "When the process started, since 1970", self.started),
            ("process_open_fds", "gauge", "Open file descriptors", known(self.descriptors)),
            ("process_max_fds", "gauge", "Most file descriptors", self.descriptor_limit.and_then(count)),
        ]
        .into_iter()
        .filter_map(|(name, kind, help, value)| Some((name, kind, help, value?)))
    }
}

/// Returns when the machine started, in seconds since 1970, by its clock as it is set now.
fn boot_time() -> Option<f64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let since_boot = rustix::time::clock_gettime(ClockId::Boottime);
    Some(now.as_secs_f64() - since_boot.tv_sec as f64 - since_boot.tv_nsec as f64 / 1e9)
}

/// Returns the soft limit; `None`: there is none.
fn descriptor_limit() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_process_are_told() {
        let text = metrics("a", "b", None);
        let known = format!("site=\"a\",peer=\"b\",version=\"0.1.0\",protocol=\"{PROTOCOL}\"}} 1\n");
        assert!(text.contains(&format!("longhaul_build_info{{{known}")), "{text}");
        assert!(!text.contains("longhaul_peer_info"), "{text}");
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0, "{text}");
        assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"), "{text}");
        assert!(value("process_threads") >= 1.0 && value("process_cpu_seconds_total") >= 0.0, "{text}");
        assert!((1.5e9..1e11).contains(&value("process_start_time_seconds")), "{text}");
        assert!(value("process_max_fds") > 10.0, "{text}");
    }

    #[test]
    fn the_peers_version_is_told_with_a_session() {
        for (build, shown) in [("1.2.3", "1.2.3"), ("", "unknown")] {
            let text = metrics("a", "b", Some(build));
            let line = format!(
                "longhaul_peer_info{{site=\"a\",peer=\"b\",version=\"{shown}\",protocol=\"{PROTOCOL}\"}} 1\n"
            );
            assert!(text.contains(&line), "{text}");
        }
    }
}
