//! The throughput of sealed UDP on this machine: the measure that the gateway's goodput is compared
//! with.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use gateway::lan::wake::{PollFd, PollFlags, poll, precise_timers};
use gateway::wan::{Bulk, BulkConfig};

const KEY: [u8; 16] = [7; 16];
/// In the clear and authenticated, as in the bulk datagram: its last 8 bytes are the packet number.
const HEADER: usize = 16;
const TAG: usize = 16;
/// Bytes on their way at most, and never more than the receiver's buffer holds. On a busy machine
/// the sender would otherwise overrun the receiver, and the ceiling would be one of losses.
const WINDOW: usize = 4 * 1024 * 1024;
/// For the window to open; much less than it lasts.
const PAUSE: Duration = Duration::from_micros(20);
/// The receiver sleeps no longer than that.
const NAP: Duration = Duration::from_millis(1);
/// Until the pipeline runs, nothing is counted.
const WARM_UP: Duration = Duration::from_millis(100);
/// How long a short measurement is drawn out where the machine leaves the threads no time at all;
/// then the answer is zero.
const PATIENCE: Duration = Duration::from_secs(10);

/// Gbit/s of UDP payload that one thread can seal (AES-128-GCM, each packet by itself) into GSO
/// batches and another open from GRO batches, over loopback, with datagrams of `segment` bytes,
/// measured for `seconds`. Only datagrams that authenticated count.
///
/// # Errors
/// Whatever setting up the two sockets says; `InvalidInput` for a `segment` too short for header
/// and tag or above 65,507.
pub(super) fn ceiling(seconds: f64, segment: usize) -> io::Result<f64> {
    let length = Duration::try_from_secs_f64(seconds).ok().filter(|length| !length.is_zero());
    let (Some(length), true) = (length, (HEADER + TAG..=65_507).contains(&segment)) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a positive duration and 32 to 65,507 bytes are needed",
        ));
    };
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let receiver = Bulk::bind(loopback, BulkConfig::default())?;
    // One batch at a time; a longer queue would only blur the window.
    let sender = Bulk::bind(loopback, BulkConfig { queue: 0, ..BulkConfig::default() })?;
    // A quarter, since the kernel counts its own overhead too.
    let window = WINDOW.min(receiver.socket_buffers().receive / 4) / segment;
    let destination = receiver.local_addr()?;
    let progress = Progress::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            // Without it a pause would last three times as long.
            let _ = precise_timers();
            send(sender, destination, segment, window as u64, &progress);
        });
        let rate = receive(receiver, length, &progress);
        progress.stop.store(true, Ordering::Relaxed);
        rate
    })
}

/// Progress that the two threads tell each other.
#[derive(Default)]
struct Progress {
    /// One more than the number of the last packet received, lost ones included.
    seen: AtomicU64,
    stop: AtomicBool,
}

fn send(mut socket: Bulk, destination: SocketAddr, segment: usize, window: u64, progress: &Progress) {
    let Some(key) = key() else { return };
    let mut number = 0;
    while !progress.stop.load(Ordering::Relaxed) {
        if number > progress.seen.load(Ordering::Relaxed) + window {
            // Spinning would be counted as work.
            thread::sleep(PAUSE);
            continue;
        }
        while let Some(datagram) = socket.reserve(segment) {
            if seal(&key, number, datagram).is_none() {
                return;
            }
            socket.commit(segment, destination);
            number += 1;
        }
        socket.flush();
    }
}

fn receive(mut socket: Bulk, length: Duration, progress: &Progress) -> io::Result<f64> {
    let key = key().ok_or(io::ErrorKind::Unsupported)?;
    let mut bytes = 0u64;
    let mut start = Instant::now();
    let mut warm = false;
    loop {
        let received = socket.receive(1024, &mut |datagram, _| {
            if let Some(number) = open(&key, datagram) {
                bytes += datagram.len() as u64;
                progress.seen.store(number + 1, Ordering::Relaxed);
            }
        });
        let elapsed = start.elapsed();
        if !warm && elapsed >= WARM_UP {
            (warm, bytes, start) = (true, 0, Instant::now());
        } else if warm && elapsed >= length && (bytes > 0 || elapsed >= length + PATIENCE) {
            return Ok(bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e9);
        }
        if received == 0 {
            poll(&mut [PollFd::from_borrowed_fd(socket.fd(), PollFlags::IN)], Some(NAP))?;
        }
    }
}

fn key() -> Option<LessSafeKey> {
    UnboundKey::new(&AES_128_GCM, &KEY).ok().map(LessSafeKey::new)
}

fn nonce(number: [u8; 8]) -> Nonce {
    let mut nonce = [0; 12];
    for (byte, digit) in nonce.iter_mut().skip(4).zip(number) {
        *byte = digit;
    }
    Nonce::assume_unique_for_key(nonce)
}

fn seal(key: &LessSafeKey, number: u64, datagram: &mut [u8]) -> Option<()> {
    let number = number.to_be_bytes();
    let (header, rest) = datagram.split_first_chunk_mut::<HEADER>()?;
    let (_, digits) = header.split_last_chunk_mut::<8>()?;
    *digits = number;
    let (body, tag) = rest.split_last_chunk_mut::<TAG>()?;
    let sealed = key.seal_in_place_separate_tag(nonce(number), Aad::from(&*header), body).ok()?;
    tag.copy_from_slice(sealed.as_ref());
    Some(())
}

/// The datagram's number, if it is authentic.
fn open(key: &LessSafeKey, datagram: &mut [u8]) -> Option<u64> {
    let (header, sealed) = datagram.split_first_chunk_mut::<HEADER>()?;
    let (_, number) = header.split_last_chunk::<8>()?;
    key.open_in_place(nonce(*number), Aad::from(&*header), sealed).ok()?;
    Some(u64::from_be_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_opens_and_nothing_else_does() {
        let key = key().unwrap();
        let mut datagram = [0x55; 100];
        seal(&key, 9, &mut datagram).unwrap();
        let mut forged = datagram;
        forged[3] ^= 1;
        assert_eq!(open(&key, &mut forged), None);
        assert_ne!(datagram[16..84], [0x55; 68]);
        assert_eq!(open(&key, &mut datagram), Some(9));
        assert_eq!(datagram[16..84], [0x55; 68]);
    }

    #[test]
    fn a_short_run_moves_data() {
        assert!(ceiling(0.05, 1448).unwrap() > 0.0);
        assert!(ceiling(0.05, 31).is_err());
        assert!(ceiling(f64::NAN, 1448).is_err());
    }
}
