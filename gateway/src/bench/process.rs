//! What the system says of a process.

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
        let me = std::process::id();
        let (memory, files) = (resident(me).unwrap(), open_files(me).unwrap());
        let held = vec![1_u8; 64 << 20];
        let file = std::fs::File::open("/proc/self/status").unwrap();
        assert!(resident(me).unwrap() > memory + (32 << 20) && open_files(me).unwrap() > 0 && files > 0);
        drop((held, file));
    }
}
