//! `longhaul record`: losses on the way from the peer, from the data plane through the admin
//! listener into a trace.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use reliability::trace::{Entry, Header, Trace, Writer, Wrong};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::sleep;

use crate::admin::{self, Endpoint, FetchError};

/// Entries kept for whoever asks.
const KEPT: usize = 64 << 10;
/// Between two questions.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// In front of the place of the next entry, in a comment of what the admin listener answers.
const NEXT: &str = "# next ";

/// The last entries of the trace of the way from the peer, each at its place, counted from the
/// gateway's start.
///
/// Bound: 65536 entries; the oldest make room. Who asks for one that is gone is told of a break.
#[derive(Debug)]
pub struct Recorder {
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    entries: VecDeque<Entry>,
    /// Place of the entry after the last.
    next: u64,
    session: bool,
}

impl Default for Recorder {
    fn default() -> Self {
        let ring = Ring { entries: VecDeque::with_capacity(KEPT), next: 0, session: false };
        Self { ring: Mutex::new(ring) }
    }
}

impl Recorder {
    /// Takes what `drain` hands out, by the data plane, about ten times a second. While somebody
    /// reads it does nothing: what was not drained waits.
    pub fn take(&self, session: bool, drain: impl FnOnce(&mut dyn FnMut(Entry))) {
        let mut ring = match self.ring.try_lock() {
            Ok(ring) => ring,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if ring.session && !session {
            ring.push(Entry::Break);
        }
        ring.session = session;
        drain(&mut |entry| ring.push(entry));
    }

    /// The entries from a place on as a trace of `link`, and in a comment the place of the one
    /// after the last.
    pub fn trace(&self, from: u64, link: &str) -> String {
        let (next, entries) = self.since(from);
        let header = Header { link: link.to_owned(), start: since_1970() };
        let mut text = format!("{NEXT}{next}\n");
        // A String takes everything.
        let _ = write_trace(&mut text, &header, &entries);
        text
    }

    fn since(&self, from: u64) -> (u64, Vec<Entry>) {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = ring.next - ring.entries.len() as u64;
        let skip = usize::try_from(from.saturating_sub(oldest)).unwrap_or(usize::MAX);
        let gone = (from < oldest).then_some(Entry::Break);
        (ring.next, gone.into_iter().chain(ring.entries.iter().skip(skip).copied()).collect())
    }
}

impl Ring {
    fn push(&mut self, entry: Entry) {
        if self.entries.len() >= KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
        self.next += 1;
    }
}

fn write_trace(text: &mut String, header: &Header, entries: &[Entry]) -> std::fmt::Result {
    let mut writer = Writer::new(text, header)?;
    entries.iter().try_for_each(|entry| writer.push(*entry))?;
    writer.finish().map(|_| ())
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Why a recording ended early. What was written before is a whole trace.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The gateway did not answer.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// It answered with something else.
    #[error("{address} answers with no trace")]
    Answer {
        /// Who.
        address: String,
        /// The error in it.
        #[source]
        source: Wrong,
    },
    /// It answered without saying where to go on.
    #[error("{0} answers with a trace that does not say where it goes on")]
    Endless(String),
    /// The trace cannot be written.
    #[error("cannot write the trace")]
    Write(#[from] io::Error),
}

/// A line of a recording as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Line {
    /// The first line: the direction, and the time of the beginning in seconds since 1970.
    Header {
        /// As "b > a".
        link: String,
        /// Seconds.
        start: f64,
    },
    /// Packets in the order of their numbers.
    Run {
        /// So many arrived in a row.
        arrived: u64,
        /// Then so many were lost in a row.
        lost: u64,
    },
    /// Packets that nothing is known of.
    Unknown {
        /// Always true.
        unknown: bool,
    },
}

impl From<&Header> for Line {
    fn from(header: &Header) -> Self {
        Self::Header { link: header.link.clone(), start: header.start.as_secs_f64() }
    }
}

impl From<Entry> for Line {
    fn from(entry: Entry) -> Self {
        match entry {
            Entry::Run(run) => Self::Run { arrived: run.arrived, lost: run.lost },
            Entry::Break => Self::Unknown { unknown: true },
        }
    }
}

/// Records as [`record`] does, with a line of JSON for each entry.
///
/// # Errors
/// See [`RecordError`].
pub async fn record_json(
    admin: &Endpoint,
    out: &mut dyn Write,
    is_over: &dyn Fn() -> bool,
) -> Result<(), RecordError> {
    let (mut next, trace) = ask(admin, u64::MAX).await?;
    write_line(&Line::from(&Header { start: since_1970(), ..trace.header }), out)?;
    while !is_over() {
        sleep(ASK_EVERY).await;
        let (after, trace) = ask(admin, next).await?;
        let restarted = (after < next).then_some(Entry::Break);
        for entry in restarted.into_iter().chain(trace.entries) {
            write_line(&Line::from(entry), out)?;
        }
        next = after;
    }
    Ok(())
}

fn write_line(line: &Line, out: &mut dyn Write) -> Result<(), RecordError> {
    let text = serde_json::to_string(line).map_err(io::Error::from)?;
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Records from now on until `is_over`, from the gateway whose admin listener is at `admin`.
///
/// # Errors
/// See [`RecordError`].
pub async fn record(
    admin: &Endpoint,
    out: &mut dyn Write,
    is_over: &dyn Fn() -> bool,
) -> Result<(), RecordError> {
    // A place that is not there yet: nothing that was before.
    let (mut next, trace) = ask(admin, u64::MAX).await?;
    let mut text = String::new();
    let header = Header { start: since_1970(), ..trace.header };
    let mut writer = Writer::new(&mut text, &header).map_err(io::Error::other)?;
    loop {
        write_out(writer.get_mut(), out)?;
        if is_over() {
            break;
        }
        sleep(ASK_EVERY).await;
        let answer = ask(admin, next).await;
        let (after, trace) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                finish(writer, out)?;
                return Err(error);
            }
        };
        // The gateway was restarted.
        let restarted = (after < next).then_some(Entry::Break);
        for entry in restarted.into_iter().chain(trace.entries) {
            writer.push(entry).map_err(io::Error::other)?;
        }
        next = after;
    }
    finish(writer, out)
}

fn finish(writer: Writer<&mut String>, out: &mut dyn Write) -> Result<(), RecordError> {
    write_out(writer.finish().map_err(io::Error::other)?, out)
}

fn write_out(text: &mut String, out: &mut dyn Write) -> Result<(), RecordError> {
    out.write_all(text.as_bytes())?;
    out.flush()?;
    text.clear();
    Ok(())
}

/// Returns true if so much time has passed since `begin`; never if there is no such time.
pub fn is_past(begin: Instant, seconds: Option<f64>) -> bool {
    seconds.is_some_and(|seconds| begin.elapsed().as_secs_f64() >= seconds)
}

async fn ask(admin: &Endpoint, from: u64) -> Result<(u64, Trace), RecordError> {
    let text = admin::fetch(admin, &format!("/trace?from={from}")).await?;
    let next = text.lines().find_map(|line| line.strip_prefix(NEXT)?.parse().ok());
    let trace =
        Trace::parse(&text).map_err(|source| RecordError::Answer { address: admin.to_string(), source })?;
    Ok((next.ok_or_else(|| RecordError::Endless(admin.to_string()))?, trace))
}

#[cfg(test)]
mod tests {
    use reliability::trace::Run;

    use super::*;

    fn run(arrived: u64, lost: u64) -> Entry {
        Entry::Run(Run { arrived, lost })
    }

    fn give(recorder: &Recorder, session: bool, entries: &[Entry]) {
        recorder.take(session, |take| entries.iter().for_each(|entry| take(*entry)));
    }

    #[test]
    fn entries_are_kept_at_their_places() {
        let recorder = Recorder::default();
        give(&recorder, true, &[run(1, 1), run(2, 2)]);
        give(&recorder, true, &[run(3, 3)]);
        assert_eq!(recorder.since(0), (3, vec![run(1, 1), run(2, 2), run(3, 3)]));
        assert_eq!(recorder.since(2), (3, vec![run(3, 3)]));
        assert_eq!(recorder.since(u64::MAX), (3, vec![]));
        give(&recorder, false, &[]);
        give(&recorder, false, &[]);
        assert_eq!(recorder.since(3), (4, vec![Entry::Break]), "the session's end");
    }

    #[test]
    fn what_made_room_is_a_break() {
        let recorder = Recorder::default();
        let entries: Vec<Entry> = (0..KEPT as u64 + 5).map(|place| run(place, 1)).collect();
        give(&recorder, true, &entries);
        let (next, kept) = recorder.since(4);
        assert_eq!((next, kept.len()), (KEPT as u64 + 5, KEPT + 1));
        assert_eq!(kept[..2], [Entry::Break, run(5, 1)]);
        assert_eq!(recorder.since(5).1.len(), KEPT);
    }

    #[test]
    fn an_answer_is_a_trace() {
        let recorder = Recorder::default();
        give(&recorder, true, &[run(10, 0), run(5, 2), Entry::Break]);
        let text = recorder.trace(0, "b > a");
        assert!(text.starts_with("# next 3\nlonghaul-trace 1\nlink b > a\nstart "), "{text}");
        let trace = Trace::parse(&text).unwrap();
        assert_eq!(trace.entries, [run(15, 2), Entry::Break]);
        assert!(trace.header.start > Duration::from_secs(1_700_000_000));
    }

    #[test]
    fn a_reader_never_holds_up_the_data_plane() {
        let recorder = Recorder::default();
        let reader = recorder.ring.lock().unwrap();
        give(&recorder, true, &[run(1, 1)]);
        drop(reader);
        assert_eq!(recorder.since(0), (0, vec![]), "it was not even drained");
    }
}
