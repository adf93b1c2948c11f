//! The last entries of the trace that `longhaul record` asks for.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reliability::trace::{Entry, Header, Writer};

/// Entries kept for whoever asks.
const KEPT: usize = 64 << 10;
/// In front of the place of the next entry, in a comment of what the admin listener answers.
pub(crate) const NEXT: &str = "# next ";

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

pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use reliability::trace::{Run, Trace};

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
