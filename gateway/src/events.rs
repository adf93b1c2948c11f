//! The last events of a gateway, for whoever comes later.
//!
//! Each also stands in the log, in a line of its own.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Events kept; the oldest make room.
const KEPT: usize = 1024;
/// Characters of an event's text; what is longer is cut.
const LONGEST: usize = 400;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Counted from 0 at the gateway's start.
    pub number: u64,
    /// RFC 3339, UTC.
    pub time: String,
    /// One of a few words: "session_up".
    pub kind: String,
    /// The peer that it is about, where a gateway has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// In one line.
    pub text: String,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:<14} ", self.time, self.kind)?;
        if let Some(peer) = &self.peer {
            write!(f, "towards {peer}: ")?;
        }
        f.write_str(&self.text)
    }
}

/// Events from a place on, and where to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Events {
    /// The number of the event after the last.
    pub next: u64,
    /// Events asked for that are gone.
    pub gone: u64,
    /// The others, the oldest first.
    pub events: Vec<Event>,
}

/// A ring of the last events, which those of all peers go to. Bound: 1024.
#[derive(Debug, Default)]
pub struct EventLog {
    ring: Arc<Mutex<Ring>>,
    /// The peer that its events are about, where there are several.
    peer: Option<String>,
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<Event>,
    next: u64,
}

impl EventLog {
    /// The same ring, for events about a peer.
    #[must_use]
    pub fn about(&self, peer: &str) -> Self {
        Self { ring: Arc::clone(&self.ring), peer: Some(peer.to_owned()) }
    }

    /// Keeps an event. Control characters in the text are escaped.
    pub fn push(&self, kind: &str, text: &str) {
        self.push_at(SystemTime::now(), kind, text);
    }

    fn push_at(&self, time: SystemTime, kind: &str, text: &str) {
        let time = OffsetDateTime::from(time).replace_nanosecond(0).map(|time| time.format(&Rfc3339));
        let text = crate::logs::printable(text).chars().take(LONGEST).collect();
        let mut ring = self.ring();
        let event = Event {
            number: ring.next,
            // Years beyond 9999 have no such form.
            time: time.ok().and_then(Result::ok).unwrap_or_default(),
            kind: kind.to_owned(),
            peer: self.peer.clone(),
            text,
        };
        if ring.events.len() >= KEPT {
            ring.events.pop_front();
        }
        ring.events.push_back(event);
        ring.next += 1;
    }

    /// Returns those from a number on that are kept.
    pub fn since(&self, from: u64) -> Events {
        let ring = self.ring();
        let oldest = ring.next - ring.events.len() as u64;
        let skip = usize::try_from(from.saturating_sub(oldest)).unwrap_or(usize::MAX);
        Events {
            next: ring.next,
            gone: oldest.saturating_sub(from),
            events: ring.events.iter().skip(skip).cloned().collect(),
        }
    }

    /// A panicking holder leaves at worst one event less.
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn events_about_several_peers_are_in_one_row() {
        let log = EventLog::default();
        let [b, c] = ["b", "c"].map(|peer| log.about(peer));
        b.push("session_up", "one");
        c.push("session_up", "two");
        log.push("started", "three");
        let events = log.since(0).events;
        let seen: Vec<_> = events.iter().map(|event| (event.number, event.peer.as_deref())).collect();
        assert_eq!(seen, [(0, Some("b")), (1, Some("c")), (2, None)]);
        assert!(events[1].to_string().ends_with("session_up     towards c: two"), "{}", events[1]);
    }

    #[test]
    fn events_are_kept_in_order_and_the_oldest_make_room() {
        let log = EventLog::default();
        assert_eq!(log.since(0), Events::default());
        for number in 0..KEPT + 10 {
            log.push("session_up", &number.to_string());
        }
        let all = log.since(0);
        assert_eq!((all.events.len(), all.gone, all.next), (KEPT, 10, KEPT as u64 + 10));
        assert_eq!(all.events[0].text, "10");
        let last = log.since(all.next - 1);
        assert_eq!((last.gone, last.events.len(), last.events[0].number), (0, 1, all.next - 1));
        assert!(log.since(all.next).events.is_empty() && log.since(u64::MAX).events.is_empty());
    }

    #[test]
    fn a_text_is_one_line_and_no_longer_than_it_may_be() {
        let log = EventLog::default();
        log.push_at(UNIX_EPOCH + Duration::from_secs(1_700_000_000), "flow_failed", "a\nb\u{1b}[2J");
        log.push("flow_failed", &"x".repeat(10_000));
        let events = log.since(0).events;
        assert_eq!(events[0].to_string(), "2023-11-14T22:13:20Z flow_failed    a\\nb\\u{1b}[2J");
        assert_eq!(events[1].text.len(), LONGEST);
    }
}
