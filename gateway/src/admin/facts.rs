//! Series about the program and its process, beside those of the metric table.

use std::fs;

/// Memory pages, in bytes. It is what Linux has on x86-64, and by default on AArch64.
const PAGE: u64 = 4096;
/// Clock ticks of /proc in a second, on every architecture that we know.
const TICKS: f64 = 100.0;

/// Prometheus text: the version, and what Prometheus' own client libraries tell of a process.
pub(super) fn metrics(site: &str, peer: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!(
        "# HELP longhaul_build_info The program's version\n# TYPE longhaul_build_info gauge\n\
         longhaul_build_info{{site=\"{site}\",peer=\"{peer}\",version=\"{version}\"}} 1\n"
    );
    let Some(process) = Process::look() else { return text };
    let Process { resident, cpu } = process;
    for (name, kind, help, value) in [
        ("process_resident_memory_bytes", "gauge", "Resident memory in bytes", resident as f64),
        ("process_cpu_seconds_total", "counter", "User and system processor time in seconds", cpu),
    ] {
        text += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    }
    text
}

struct Process {
    /// Bytes.
    resident: u64,
    /// Seconds.
    cpu: f64,
}

impl Process {
    fn look() -> Option<Self> {
        let pages = fs::read_to_string("/proc/self/statm").ok()?;
        let pages: u64 = pages.split(' ').nth(1)?.parse().ok()?;
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The name in parentheses may hold blanks. Behind it, utime and stime are 12th and 13th.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut ticks = rest.split(' ').skip(11).map_while(|field| field.parse::<u64>().ok());
        let cpu = (ticks.next()? + ticks.next()?) as f64 / TICKS;
        Some(Self { resident: pages * PAGE, cpu })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_and_process_are_told() {
        let text = metrics("a", "b");
        assert!(text.contains("longhaul_build_info{site=\"a\",peer=\"b\",version=\"0.1.0\"} 1\n"), "{text}");
        let resident = text.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
        assert!(resident.unwrap().parse::<f64>().unwrap() > 100_000.0, "{text}");
        assert!(text.lines().any(|line| line.starts_with("process_cpu_seconds_total ")), "{text}");
    }
}
