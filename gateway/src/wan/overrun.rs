//! Datagrams that the kernel dropped because a socket's receive buffer was full.
#![expect(unsafe_code, reason = "a socket option without a safe wrapper")]

use std::fs::File;
use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::ptr;

/// Words of the answer; later kernels may know more.
const WORDS: usize = libc::SK_MEMINFO_DROPS as usize + 1;

/// Packets dropped since the socket was made, modulo 2^32 (`SO_MEMINFO`, Linux 4.12). One that GRO
/// had joined counts once.
pub(super) fn drops(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut words = [0_u32; WORDS];
    let mut length = size_of_val(&words) as libc::socklen_t;
    // SAFETY: `words` and `length` are alive during the call, and the kernel writes no more than
    // `length` bytes.
    let result = unsafe {
        let value = ptr::from_mut(&mut words).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, value, &mut length)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let [.., drops] = words;
    Ok(drops)
}

/// Counts of UDP datagrams with a wrong checksum. The kernel counts them among a socket's drops,
/// too, though no buffer was full: anybody can send such.
///
/// They are those of all sockets in the name space. What others got meanwhile makes an overrun look
/// smaller, and the path's loss greater.
#[derive(Debug)]
pub(super) struct Damaged {
    /// `/proc/net/snmp` and `snmp6`, as far as they can be read.
    files: [Option<File>; 2],
    /// Their sum when it was last asked for.
    seen: u64,
}

/// Bytes of either file at most; what lies beyond is not looked at.
const LONGEST: usize = 16 << 10;

impl Damaged {
    /// Counts from now on.
    pub(super) fn new() -> Self {
        let files = ["/proc/thread-self/net/snmp", "/proc/thread-self/net/snmp6"];
        let mut damaged = Self { files: files.map(|file| File::open(file).ok()), seen: 0 };
        damaged.seen = damaged.sum();
        damaged
    }

    /// Returns how many there were since this was last asked.
    pub(super) fn take(&mut self) -> u64 {
        let sum = self.sum();
        sum.saturating_sub(std::mem::replace(&mut self.seen, sum))
    }

    fn sum(&self) -> u64 {
        let mut buffer = [0; LONGEST];
        let counts = self.files.iter().flatten().map(|file| {
            let length = file.read_at(&mut buffer, 0).unwrap_or(0);
            let text = buffer.get(..length).and_then(|text| std::str::from_utf8(text).ok());
            text.map_or(0, |text| in_rows(text).or_else(|| in_lines(text)).unwrap_or(0))
        });
        counts.sum()
    }
}

/// In `snmp` a row of names stands above one of numbers.
fn in_rows(text: &str) -> Option<u64> {
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, numbers) = rows.next().zip(rows.next())?;
    let place = names.split(' ').position(|name| name == "InCsumErrors")?;
    numbers.split(' ').nth(place)?.parse().ok()
}

/// In `snmp6` each name stands before its number.
fn in_lines(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Udp6InCsumErrors"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stand_in_rows_or_lines() {
        let rows = "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams NoPorts InCsumErrors\nUdp: 5 6 7\nUdpLite: InCsumErrors\nUdpLite: 9\n";
        assert_eq!(in_rows(rows), Some(7));
        assert_eq!((in_rows("Udp: InCsumErrors\n"), in_rows("")), (None, None));
        assert_eq!(in_lines("Udp6InErrors\t1\nUdp6InCsumErrors                \t12\n"), Some(12));
    }
}
