//! A client's job, the same for every transport, and its report.

use std::io::{self, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A closed loop: `outstanding` messages of `size` bytes at a time, the next one posted when one is
/// confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Job {
    /// Payload bytes of a message.
    pub(crate) size: u64,
    /// Messages posted and not yet confirmed.
    pub(crate) outstanding: u32,
    /// Connections or queue pairs they are spread over, where that is the sender's to say.
    pub(crate) connections: u32,
    /// Posting ends this long after the first post.
    pub(crate) time: Duration,
    /// Posting ends after so many messages.
    pub(crate) count: u64,
    /// After the end of posting, how long the client waits for what is outstanding.
    pub(crate) patience: Duration,
    /// Every message has contents of its own, and the receiver checks them.
    pub(crate) verify: bool,
}

impl Job {
    /// As arguments of a client, in `messages.cc` as well: size, outstanding, connections, time and
    /// patience in ms, count, verify as 0 or 1.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let Self { size, outstanding, connections, time, count, patience, verify } = *self;
        let numbers = [
            size,
            outstanding.into(),
            connections.into(),
            millis(time),
            count,
            millis(patience),
            verify.into(),
        ];
        numbers.iter().map(u64::to_string).collect()
    }

    /// The reverse; `None` if that is not what they are.
    pub(crate) fn parse(arguments: &[u64]) -> Option<Self> {
        let &[size, outstanding, connections, time, count, patience, verify] = arguments else { return None };
        Some(Self {
            size,
            outstanding: u32::try_from(outstanding).ok()?,
            connections: u32::try_from(connections).ok()?.max(1),
            time: Duration::from_millis(time),
            count,
            patience: Duration::from_millis(patience),
            verify: verify != 0,
        })
    }
}

/// In front of each message: length of the body, then the message's number, little-endian.
pub(crate) const HEADER: usize = 16;
/// The receiver's confirmation: the number, or this where the contents were wrong.
pub(crate) const WRONG: u64 = u64::MAX;
/// Set in the number: check the contents, which are [`soft_nic::fill`]'s for this
/// number.
const CHECKED: u64 = 1 << 63;

/// The header of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    /// Bytes of the body.
    pub(crate) length: u64,
    /// As it is confirmed.
    pub(crate) number: u64,
}

impl Header {
    pub(crate) fn new(job: &Job, number: u64) -> Self {
        Self { length: job.size, number: if job.verify { number | CHECKED } else { number } }
    }

    pub(crate) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let (length, number) = bytes.split_at_mut(8);
        length.copy_from_slice(&self.length.to_le_bytes());
        number.copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: [u8; HEADER]) -> Self {
        let both = u128::from_le_bytes(bytes);
        let low = |value: u128| u64::try_from(value & u128::from(u64::MAX)).unwrap_or(0);
        Self { length: low(both), number: low(both >> 64) }
    }

    pub(crate) fn is_checked(self) -> bool {
        self.number & CHECKED != 0
    }

    /// Makes the body what the receiver expects.
    pub(crate) fn fill(self, body: &mut [u8]) {
        if self.is_checked() {
            soft_nic::fill(self.number, body);
        }
    }

    /// The answer of the receiver of the body.
    pub(crate) fn confirmation(self, body: &[u8]) -> u64 {
        let right = !self.is_checked() || soft_nic::holds(self.number, body);
        if right { self.number & !CHECKED } else { WRONG }
    }
}

/// When messages were posted and confirmed, by the client's clock; shared by its threads or tasks.
pub(crate) struct Tally {
    start: Instant,
    job: Job,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// From the start: posted, confirmed.
    messages: Vec<(Duration, Option<Duration>)>,
    confirmed: u64,
    wrong: u64,
}

impl Tally {
    /// Begins now, and tells the one who measures.
    pub(crate) fn begin(job: Job) -> io::Result<Self> {
        say("begin")?;
        Ok(Self { start: Instant::now(), job, inner: Mutex::default() })
    }

    /// The next message's number, posted now; `None` when there is to be none.
    pub(crate) fn post(&self) -> Option<u64> {
        let now = self.start.elapsed();
        let mut inner = self.lock();
        let number = u64::try_from(inner.messages.len()).ok()?;
        if now >= self.job.time || number >= self.job.count {
            return None;
        }
        inner.messages.push((now, None));
        Some(number)
    }

    /// A confirmation came. Nothing else is outstanding under a number that is wrong, so that is
    /// merely counted.
    pub(crate) fn confirm(&self, number: u64) {
        let now = self.start.elapsed();
        let mut inner = self.lock();
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        match inner.messages.get_mut(index) {
            Some((_, confirmed @ None)) => {
                *confirmed = Some(now);
                inner.confirmed += 1;
            }
            _ => inner.wrong += 1,
        }
    }

    /// Returns true when all is over: everything is posted and confirmed, patience has run out, or
    /// a content was wrong.
    pub(crate) fn is_over(&self) -> bool {
        let now = self.start.elapsed();
        let inner = self.lock();
        let posted = u64::try_from(inner.messages.len()).unwrap_or(u64::MAX);
        let posting = now < self.job.time && posted < self.job.count;
        (!posting && inner.confirmed == posted)
            || now >= self.job.time.saturating_add(self.job.patience)
            || inner.wrong > 0
    }

    /// Waits for the end and reports.
    pub(crate) fn finish(&self) -> io::Result<()> {
        while !self.is_over() {
            std::thread::sleep(Duration::from_millis(2));
        }
        let inner = self.lock();
        report(&inner.messages, inner.wrong)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that it is over, then when each message was posted and confirmed (ns from the start; `-`:
/// never), and how many were wrong.
pub(crate) fn report(messages: &[(Duration, Option<Duration>)], wrong: u64) -> io::Result<()> {
    say("done")?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for (posted, confirmed) in messages {
        let confirmed = confirmed.map_or_else(|| "-".to_owned(), |at| at.as_nanos().to_string());
        writeln!(out, "{} {confirmed}", posted.as_nanos())?;
    }
    writeln!(out, "wrong {wrong}")?;
    out.flush()
}

/// A line for the one who measures, at once.
pub(crate) fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Waits until the one who measures lets go: till then the process can be asked for its processor
/// time and memory.
pub(crate) fn wait_for_release() -> io::Result<()> {
    io::stdin().lock().read_to_end(&mut Vec::new()).map(drop)
}
