//! Processes' use of the machine.

use std::fs;
use std::io;
use std::time::Duration;

/// The kernel's clock ticks per second in /proc: 100 on every Linux that Rust runs on.
const TICKS: u64 = 100;

/// User and system time of all threads of a process so far (proc_pid_stat(5), fields 14 and 15).
pub(crate) fn cpu(process: u32) -> io::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name in field 2 may hold anything, but it ends at the last parenthesis.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_whitespace().skip(11).take(2));
    let ticks = fields.map(|fields| fields.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>());
    ticks.map(|ticks| Duration::from_millis(ticks * 1000 / TICKS)).ok_or_else(|| invalid("stat"))
}

/// The most memory a process had at a time, bytes (`VmHWM`). What the kernel holds for it, as in
/// socket buffers, is not in it.
pub(crate) fn peak_memory(process: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.map(|kilobytes| kilobytes << 10).ok_or_else(|| invalid("status"))
}

/// Time that all processors have had to do something so far, and how much of it the host gave to
/// other machines (proc_stat(5), `steal`), in ticks.
pub(crate) fn machine() -> io::Result<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).ok_or_else(|| invalid("stat"))?;
    // user, nice, system, idle, iowait, irq, softirq, steal; what follows is in `user` and `nice`
    // already.
    let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    match ticks[..] {
        [.., steal] if ticks.len() == 8 => Ok((ticks.iter().sum(), steal)),
        _ => Err(invalid("stat")),
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("/proc: {what}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_uses_something() {
        let process = std::process::id();
        super::cpu(process).unwrap();
        assert!(super::peak_memory(process).unwrap() > 1 << 20);
        let (all, stolen) = super::machine().unwrap();
        assert!(all > stolen);
    }
}
