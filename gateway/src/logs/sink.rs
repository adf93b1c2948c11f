//! The queue in front of standard error, and the thread that empties it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::format::confession;
use super::json::LONGEST;
use super::{Counts, Form, Lost};
use crate::lan::wake::{PollFd, PollFlags, poll};
use crate::privileges::give_up_all;

/// Lines that wait; further ones are lost.
const LINES: usize = 1024;
const CUT: &[u8] = b" [cut]\n";
/// How often a sink that refused is tried with the line that says so.
const RETRY: Duration = Duration::from_secs(1);
/// How often somebody looks who waits for the queue to be empty.
const TICK: Duration = Duration::from_millis(2);

/// Lines on their way: 1024 at most, of 16 KiB each. What does not fit is lost and counted; nobody
/// who logs ever waits.
#[derive(Debug)]
pub(super) struct Queue {
    lines: SyncSender<Vec<u8>>,
    /// Lines that are neither written nor lost yet.
    pending: Arc<AtomicUsize>,
    counts: &'static Counts,
}

/// Standard error under a number of its own, free of the lock that whoever prints takes.
pub(super) fn standard_error() -> io::Result<OwnedFd> {
    io::stderr().as_fd().try_clone_to_owned()
}

impl Queue {
    /// Starts the thread that writes to `sink`. It ends when the queue is dropped.
    pub(super) fn start(sink: OwnedFd, counts: &'static Counts, form: Form) -> io::Result<Self> {
        let (lines, receiver) = sync_channel(LINES);
        let pending = Arc::new(AtomicUsize::new(0));
        let writer =
            Writer { sink, state: State::Whole, confessed: 0, pending: Arc::clone(&pending), counts, form };
        std::thread::Builder::new().name("log".to_owned()).spawn(move || writer.run(&receiver))?;
        Ok(Self { lines, pending, counts })
    }

    pub(super) fn push(&self, mut line: Vec<u8>) {
        if line.len() > LONGEST {
            line.truncate(LONGEST - CUT.len());
            line.extend_from_slice(CUT);
        }
        self.pending.fetch_add(1, Ordering::Relaxed);
        if self.lines.try_send(line).is_err() {
            self.counts.add(Lost::QueueFull);
            self.pending.fetch_sub(1, Ordering::Release);
        }
    }

    pub(super) fn finish(&self, patience: Duration) {
        let end = Instant::now() + patience;
        while self.pending.load(Ordering::Acquire) > 0 && Instant::now() < end {
            std::thread::sleep(TICK);
        }
    }
}

/// Outcome of the last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A whole line.
    Whole,
    /// A part of a line: the next one begins with a newline.
    Torn,
}

struct Writer {
    sink: OwnedFd,
    state: State,
    /// Lost lines that the sink was told of.
    confessed: u64,
    pending: Arc<AtomicUsize>,
    counts: &'static Counts,
    form: Form,
}

impl Writer {
    fn run(mut self, lines: &Receiver<Vec<u8>>) {
        // It started before its maker gave up anything, and needs nothing. Where that fails it has
        // no more than before.
        let _ = give_up_all();
        loop {
            let line = match self.unconfessed() {
                0 => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
                _ => lines.recv_timeout(RETRY),
            };
            match line {
                Ok(line) => {
                    self.confess();
                    if self.write_line(&line).is_err() {
                        self.counts.add(Lost::Sink);
                    }
                    self.pending.fetch_sub(1, Ordering::Release);
                }
                Err(RecvTimeoutError::Timeout) => self.confess(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Lost lines that nobody has read of. Those over a place's rate stand in its next line.
    fn unconfessed(&self) -> u64 {
        let [full, sink, ..] = self.counts.all();
        full.saturating_add(sink).saturating_sub(self.confessed)
    }

    fn confess(&mut self) {
        let lost = self.unconfessed();
        if lost > 0 && self.write_line(confession(lost, self.form).as_bytes()).is_ok() {
            self.confessed += lost;
        }
    }

    fn write_line(&mut self, line: &[u8]) -> Result<(), Errno> {
        if self.state == State::Torn {
            self.write(b"\n")?;
            self.state = State::Whole;
        }
        self.write(line)
    }

    /// Waits for the sink as long as it takes, unless it refuses.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::io::write(&self.sink, rest) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => {
                    rest = rest.get(written..).unwrap_or_default();
                    self.state = if rest.is_empty() { State::Whole } else { State::Torn };
                }
                Err(Errno::INTR) => {}
                // Whoever shares the descriptor has made it non-blocking.
                Err(Errno::AGAIN) => self.wait_for_room(),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn wait_for_room(&self) {
        let mut room = [PollFd::new(&self.sink, PollFlags::OUT)];
        if poll(&mut room, Some(RETRY)).is_err() {
            std::thread::sleep(TICK);
        }
    }
}

#[cfg(test)]
mod tests;
