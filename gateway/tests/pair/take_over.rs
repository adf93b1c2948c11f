//! Processes that are killed while one takes the other's place: at each message, and at random
//! moments.
//!
//! No packet number is sealed twice under one key, whoever goes on. Up to the old process's word
//! that it leaves everything, its flows go on if it lives; from then on if the new one does.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, kill_process};
use testbed::hostio::{Endpoint, Limit};
use testbed::{Site, Survivor};

use super::{PATIENCE, Pair, SCHEMES, TICK, failed, wait_until};

/// The messages in their order (`gateway::upgrade`), by their kinds.
const MESSAGES: [(u8, &str); 10] = [
    (1, "Hello"),
    (2, "Stand"),
    (3, "Socket"),
    (4, "Freeze"),
    (5, "Claim"),
    (6, "Snapshot"),
    (7, "Whole"),
    (8, "HaveIt"),
    (YOURS, "Yours"),
    (10, "Running"),
];
/// The word after which the old process never goes on.
const YOURS: u8 = 9;
/// Kind and length.
const HEADER: usize = 9;

/// A process of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Before,
    Next,
}

/// Stands at the place of a gateway's admin socket, and passes on what a process says that is to
/// take over, and what it hears. At the first message of a kind one of them is killed.
struct Between {
    place: PathBuf,
    real: PathBuf,
    passing: JoinHandle<io::Result<()>>,
}

impl Between {
    fn stand(place: &Path, before: u32, kind: u8, victim: Victim) -> Self {
        let real = place.with_extension("real");
        fs::rename(place, &real).unwrap();
        let (listener, there) = (UnixListener::bind(place).unwrap(), real.clone());
        let passing = thread::spawn(move || {
            let (next, _) = listener.accept()?;
            let pid = match victim {
                Victim::Before => Pid::from_raw(before.cast_signed()),
                Victim::Next => Some(socket_peercred(&next)?.pid),
            };
            let pid = pid.ok_or(io::ErrorKind::NotFound)?;
            let gateway = UnixStream::connect(there)?;
            let is_done = AtomicBool::new(false);
            let at = |came: u8| {
                if came != kind || is_done.swap(true, Ordering::SeqCst) {
                    return false;
                }
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::KILL);
                while is_running(pid) {
                    thread::sleep(Duration::from_millis(1));
                }
                true
            };
            thread::scope(|scope| {
                scope.spawn(|| pass(&next, &gateway, &at));
                pass(&gateway, &next, &at);
            });
            Ok(())
        });
        Self { place: place.to_owned(), real, passing }
    }

    /// Leaves the place to the gateway that there is, if there is one.
    fn leave(self) {
        self.passing.join().unwrap().unwrap();
        fs::remove_file(&self.place).unwrap();
        // Nobody listens there if no gateway is left.
        fs::rename(&self.real, &self.place).unwrap();
    }
}

fn is_running(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    status.is_ok_and(|status| !status.contains(") Z "))
}

/// Passes HTTP's head on, and then messages, until either end is gone. The message at which one was
/// killed is the last.
fn pass(from: &UnixStream, to: &UnixStream, at: &dyn Fn(u8) -> bool) {
    let passed = pass_head(from, to).and_then(|()| while_message(from, to, at));
    // The other end learns that there is nobody any more.
    for stream in [from, to] {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
    drop(passed);
}

fn pass_head(mut from: &UnixStream, mut to: &UnixStream) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        head.extend(byte);
    }
    to.write_all(&head)
}

fn while_message(from: &UnixStream, mut to: &UnixStream, at: &dyn Fn(u8) -> bool) -> io::Result<()> {
    loop {
        let (header, descriptor) = header(from)?;
        let [kind, len @ ..] = header;
        let was_killed = at(kind);
        match descriptor {
            None => to.write_all(&header)?,
            Some(descriptor) => {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut beside = SendAncillaryBuffer::new(&mut space);
                let descriptors = [descriptor.as_fd()];
                beside.push(SendAncillaryMessage::ScmRights(&descriptors));
                sendmsg(to, &[IoSlice::new(&header)], &mut beside, SendFlags::NOSIGNAL)?;
            }
        }
        io::copy(&mut from.take(u64::from_le_bytes(len)), &mut to)?;
        if was_killed {
            return Ok(());
        }
    }
}

fn header(mut from: &UnixStream) -> io::Result<([u8; HEADER], Option<OwnedFd>)> {
    let mut header = [0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let came =
        recvmsg(from, &mut [IoSliceMut::new(&mut header)], &mut beside, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut descriptor = None;
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last();
        }
    }
    if came == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    from.read_exact(&mut header[came..])?;
    Ok((header, descriptor))
}

/// A pair under load whose bulk datagrams are compared.
fn loaded() -> (Pair, (Endpoint, Endpoint)) {
    let mut pair = Pair::start_otherwise(2, |plan| {
        plan.link = "delay 2ms loss 0.5%".parse().unwrap();
        plan.dead_after = "2 s".to_owned();
        SCHEMES[1].clone_into(&mut plan.policy);
    });
    pair.testbed.watch_nonces();
    let transfer = pair.transfer(Limit::Messages(1_000_000));
    goes_on(&transfer.0, "the transfer does not start");
    (pair, transfer)
}

fn goes_on(client: &Endpoint, what: &str) {
    let done = || client.progress().messages.load(Ordering::Relaxed);
    let before = done();
    wait_until(what, &|| done() > before + 30);
}

/// Flows go on if anybody does, and nobody seals a number twice. Returns true if one seems to be.
fn judge(mut pair: Pair, (client, server): (Endpoint, Endpoint), left: Survivor, what: &str) -> bool {
    if left == Survivor::Nobody {
        pair.testbed.restart(Site::A).unwrap();
    }
    pair.testbed.wait_for_session(&|| false).unwrap();
    if left != Survivor::Nobody {
        goes_on(&client, &format!("{what}: flows do not go on"));
    }
    let (client, server) = (client.stop().unwrap(), server.stop().unwrap());
    assert!(client.corrupt == 0 && server.corrupt == 0, "{what}: {client}\n{server}");
    assert!(left == Survivor::Nobody || failed(&client) == 0, "{what}: {client}\n{server}");
    pair.complete_transfer(20);
    let nonces = pair.testbed.nonces();
    println!("{what}: {left:?} is left, {nonces:?}");
    assert!(nonces.new > 100 && nonces.copies == 0, "{what}: {nonces:?}");
    pair.testbed.stop().unwrap();
    nonces.reused > 0
}

/// A process that takes over is killed at a message, or the one before it.
fn killed_at(kind: u8, victim: Victim, what: &str) -> bool {
    let (mut pair, transfer) = loaded();
    let place = pair.testbed.folder().join("a.sock");
    let between = Between::stand(&place, pair.testbed.pid(Site::A), kind, victim);
    let left = pair.testbed.contest(Site::A, PATIENCE).unwrap();
    between.leave();
    let expected = match victim {
        Victim::Next if kind < YOURS => Survivor::Before,
        Victim::Before if kind >= YOURS => Survivor::Next,
        _ => Survivor::Nobody,
    };
    assert_eq!(left, expected, "{what}");
    judge(pair, transfer, left, what)
}

#[test]
#[ignore = "two minutes: `cargo test -p gateway --release --test pair take_over -- --ignored`"]
fn no_number_is_sealed_twice_whoever_is_killed_at_whichever_message() {
    for (kind, name) in MESSAGES {
        for victim in [Victim::Next, Victim::Before] {
            let what = format!("{victim:?} killed at {name}");
            // Two sessions may have the same half of a random number, but not twice in a row.
            assert!(
                !killed_at(kind, victim, &what) || !killed_at(kind, victim, &what),
                "{what}: a packet number is sealed twice"
            );
        }
    }
}

/// `LONGHAUL_SEED` and `LONGHAUL_KILLS` choose which and how many.
#[test]
fn no_number_is_sealed_twice_whoever_is_killed_whenever() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("LONGHAUL_SEED").unwrap_or_else(rand::random);
    println!("LONGHAUL_SEED={seed}");
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut reused = 0;
    for round in 0..number("LONGHAUL_KILLS").unwrap_or(3) {
        let (mut pair, transfer) = loaded();
        let victim = if random.random() { Victim::Next } else { Victim::Before };
        let after = Duration::from_micros(random.random_range(0..400_000));
        let (before, has_ended) = (pair.testbed.pid(Site::A), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&has_ended);
        let killer = thread::spawn(move || {
            thread::sleep(after);
            let pid = match victim {
                Victim::Before => Some(before),
                // The other child of this process with the same file.
                Victim::Next => loop {
                    match sibling(before) {
                        None if !ended.load(Ordering::SeqCst) => thread::sleep(TICK),
                        found => break found,
                    }
                },
            };
            if let Some(pid) = pid.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        let left = pair.testbed.contest(Site::A, PATIENCE).unwrap();
        has_ended.store(true, Ordering::SeqCst);
        killer.join().unwrap();
        let what = format!("round {round}, {victim:?} killed after {after:?}");
        reused += u32::from(judge(pair, transfer, left, &what));
    }
    // See `Nonces`: one of tens of thousands of rounds may look like it.
    assert!(reused < 2, "LONGHAUL_SEED={seed}: packet numbers are sealed twice");
}

/// Another process with the same command line, but for its wish to take over.
fn sibling(pid: u32) -> Option<u32> {
    let line = |pid: u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).ok();
    let config = line(pid)?.trim_end_matches('\0').rsplit('\0').next()?.to_owned();
    let mut processes =
        fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let is_it = |other: &u32| {
        *other != pid
            && line(*other).is_some_and(|line| line.contains("--take-over") && line.contains(&config))
    };
    processes.find(is_it)
}
