//! Figures of the system on a process.

use std::fs::{read_dir, read_to_string};
use std::io;

/// Bytes of its memory that are resident.
pub(super) fn resident(process: u32) -> io::Result<u64> {
    let status = read_to_string(format!("/proc/{process}/status"))?;
    parse(&status).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/PID/status"))
}

/// Open file descriptors.
pub(super) fn open_files(process: u32) -> io::Result<usize> {
    Ok(read_dir(format!("/proc/{process}/fd"))?.count())
}

/// The line is `VmRSS:     1234 kB`, of 1024 bytes each.
fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_files_are_those_of_the_process() {
        assert_eq!(parse("Name:\tx\nVmRSS:\t    1234 kB\nVmData: 1 kB\n"), Some(1234 * 1024));
        assert_eq!(parse("Name:\tx\n"), None);
        // Other tests run in this process, so there are lower bounds only.
        let me = std::process::id();
        let held = std::hint::black_box(vec![1_u8; 64 << 20]);
        let files: Vec<_> = (0..50).map(|_| std::fs::File::open("/proc/self/status").unwrap()).collect();
        assert!(resident(me).unwrap() >= 64 << 20);
        assert!(open_files(me).unwrap() >= 50);
        drop((held, files));
    }
}
