//! The last events of a gateway, for whoever comes later.
//!
//! Each also stands in the log, in a line of its own.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Events kept; for one more, the oldest goes of those that there are most of.
const KEPT: usize = 1024;
/// Characters of an event's text; what is longer is cut.
const LONGEST: usize = 400;

/// Each kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum EventKind {
    /// The gateway has started.
    Started,
    /// There is a session.
    SessionUp,
    /// A session is gone.
    SessionLost,
    /// The data path of a session has changed.
    DataPath,
    /// The own address and a route to the peer are there again.
    WanUp,
    /// The own address, or the route to the peer, is gone.
    WanDown,
    /// The LAN interface is usable again.
    LanUp,
    /// The LAN interface is not usable.
    LanDown,
    /// Hosts send what cannot cross.
    LanMistake,
    /// Rules against forwarding were missing, and are back.
    GuardRestored,
    /// Somebody has set the machine's clock.
    ClockSet,
    /// A policy was adopted or refused.
    Policy,
    /// Certificates, keys or revocations were adopted or refused.
    Identity,
    /// A certificate expires soon.
    Expiry,
    /// Somebody was refused who may be a thief.
    Impostor,
    /// This process has taken the place of the one before.
    Upgraded,
    /// Another process was to take this one's place, and could not.
    UpgradeFailed,
    /// A flow has begun.
    FlowOpened,
    /// A flow has ended in an error.
    FlowFailed,
    /// Flows have gone on after the end of a process.
    FlowRestored,
    /// Hosts offer more than the link carries.
    PressureBegan,
    /// Hosts offer no more than the link carries.
    PressureEnded,
}

impl EventKind {
    /// All of them, as the documentation has them.
    pub const ALL: [Self; 22] = [
        Self::Started,
        Self::SessionUp,
        Self::SessionLost,
        Self::DataPath,
        Self::FlowOpened,
        Self::FlowFailed,
        Self::FlowRestored,
        Self::PressureBegan,
        Self::PressureEnded,
        Self::WanDown,
        Self::WanUp,
        Self::LanDown,
        Self::LanUp,
        Self::LanMistake,
        Self::GuardRestored,
        Self::ClockSet,
        Self::Policy,
        Self::Identity,
        Self::Expiry,
        Self::Impostor,
        Self::Upgraded,
        Self::UpgradeFailed,
    ];

    /// As events have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::SessionUp => "session_up",
            Self::SessionLost => "session_lost",
            Self::DataPath => "data_path",
            Self::WanUp => "wan_up",
            Self::WanDown => "wan_down",
            Self::LanUp => "lan_up",
            Self::LanDown => "lan_down",
            Self::LanMistake => "lan_mistake",
            Self::GuardRestored => "guard_restored",
            Self::ClockSet => "clock_set",
            Self::Policy => "policy",
            Self::Identity => "identity",
            Self::Expiry => "expiry",
            Self::Impostor => "impostor",
            Self::Upgraded => "upgraded",
            Self::UpgradeFailed => "upgrade_failed",
            Self::FlowOpened => "flow_opened",
            Self::FlowFailed => "flow_failed",
            Self::FlowRestored => "flow_restored",
            Self::PressureBegan => "pressure_began",
            Self::PressureEnded => "pressure_ended",
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Counted from 0 at the gateway's start.
    pub number: u64,
    /// RFC 3339, UTC.
    pub time: String,
    /// The name of a [`EventKind`]: "session_up".
    pub kind: String,
    /// The peer that it is about, where a gateway has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The class of the flow that it is about, if it is about one flow whose class is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// In one line.
    pub text: String,
}

impl Event {
    /// Returns its text, after the peer that it is about where a gateway has several.
    #[must_use]
    pub fn said(&self) -> Cow<'_, str> {
        match &self.peer {
            Some(peer) => format!("towards {peer}: {}", self.text).into(),
            None => self.text.as_str().into(),
        }
    }

    /// Returns true if its text has this address.
    #[must_use]
    pub fn names(&self, host: IpAddr) -> bool {
        let of_address = |c: char| c.is_ascii_hexdigit() || c == '.' || c == ':';
        let mut words = self.text.split(|c| !of_address(c));
        words.any(|word| {
            let word = word.trim_end_matches([':', '.']);
            word.parse() == Ok(host) || word.parse::<SocketAddr>().is_ok_and(|address| address.ip() == host)
        })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:<14} {}", self.time, self.kind, self.said())
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

/// The last events, which those of all peers go to. Bound: 1024.
///
/// Kinds have shares: for one more event, the oldest goes of the kind and peer that have most. So
/// flows that open, or a peer that comes and goes, push out nothing but their own.
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
    /// How many of each kind and peer are kept.
    counts: BTreeMap<Share, usize>,
}

/// The kind of an event, and its peer.
type Share = (String, Option<String>);

impl Ring {
    fn push(&mut self, event: Event) {
        if self.events.len() >= KEPT {
            self.make_room(&share(&event));
        }
        *self.counts.entry(share(&event)).or_default() += 1;
        self.events.push_back(event);
        self.next += 1;
    }

    /// `coming`: what for.
    fn make_room(&mut self, coming: &Share) {
        let with_it = |share: &Share, count: usize| (count + usize::from(share == coming), share == coming);
        let most = self.counts.iter().max_by_key(|(share, count)| with_it(share, **count));
        let Some(largest) = most.map(|(share, _)| share.clone()) else { return };
        let Some(oldest) = self.events.iter().position(|event| share(event) == largest) else { return };
        self.events.remove(oldest);
        if let Some(count) = self.counts.get_mut(&largest) {
            *count -= 1;
        }
        self.counts.retain(|_, count| *count > 0);
    }
}

fn share(event: &Event) -> Share {
    (event.kind.clone(), event.peer.clone())
}

impl EventLog {
    /// The same ring, for events about a peer.
    #[must_use]
    pub fn about(&self, peer: &str) -> Self {
        Self { ring: Arc::clone(&self.ring), peer: Some(peer.to_owned()) }
    }

    /// The same ring, for events about the gateway and all its peers.
    #[must_use]
    pub fn about_all(&self) -> Self {
        Self { ring: Arc::clone(&self.ring), peer: None }
    }

    /// Keeps an event. Control characters in the text are escaped.
    pub fn push(&self, kind: EventKind, text: &str) {
        self.push_of(kind, None, text);
    }

    /// Keeps an event about a flow of this class.
    pub fn push_of(&self, kind: EventKind, class: Option<&str>, text: &str) {
        self.push_at(SystemTime::now(), kind, class, text);
    }

    fn push_at(&self, time: SystemTime, kind: EventKind, class: Option<&str>, text: &str) {
        let time = OffsetDateTime::from(time).replace_nanosecond(0).map(|time| time.format(&Rfc3339));
        let text = crate::logs::printable(text).chars().take(LONGEST).collect();
        let mut ring = self.ring();
        let event = Event {
            number: ring.next,
            // Years beyond 9999 have no such form.
            time: time.ok().and_then(Result::ok).unwrap_or_default(),
            kind: kind.name().to_owned(),
            peer: self.peer.clone(),
            class: class.map(str::to_owned),
            text,
        };
        ring.push(event);
    }

    /// Returns those from a number on that are kept.
    pub fn since(&self, from: u64) -> Events {
        let ring = self.ring();
        let skip = ring.events.partition_point(|event| event.number < from);
        let events: Vec<_> = ring.events.iter().skip(skip).cloned().collect();
        Events {
            next: ring.next,
            gone: ring.next.saturating_sub(from).saturating_sub(events.len() as u64),
            events,
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

    /// `docs/operate.md` has a line for each.
    #[test]
    fn every_kind_is_documented() {
        let guide = include_str!("../../docs/operate.md");
        let (_, table) = guide.split_once("| event | it says |\n|---|---|\n").unwrap();
        let (table, _) = table.split_once("\n\n").unwrap();
        let told: Vec<_> = table.split('`').skip(1).step_by(2).filter(|word| !word.contains(' ')).collect();
        assert_eq!(told, EventKind::ALL.map(EventKind::name));
    }

    #[test]
    fn events_about_several_peers_are_in_one_row() {
        let log = EventLog::default();
        let [b, c] = ["b", "c"].map(|peer| log.about(peer));
        b.push(EventKind::SessionUp, "one");
        c.push(EventKind::SessionUp, "two");
        c.about_all().push(EventKind::Started, "three");
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
            log.push(EventKind::SessionUp, &number.to_string());
        }
        let all = log.since(0);
        assert_eq!((all.events.len(), all.gone, all.next), (KEPT, 10, KEPT as u64 + 10));
        assert_eq!(all.events[0].text, "10");
        let last = log.since(all.next - 1);
        assert_eq!((last.gone, last.events.len(), last.events[0].number), (0, 1, all.next - 1));
        assert!(log.since(all.next).events.is_empty() && log.since(u64::MAX).events.is_empty());
    }

    #[test]
    fn no_kind_and_no_peer_pushes_out_anothers_events() {
        let log = EventLog::default();
        let [b, c] = ["b", "c"].map(|peer| log.about(peer));
        for number in 0..100 {
            log.push(EventKind::FlowFailed, &number.to_string());
            c.push(EventKind::SessionLost, &number.to_string());
        }
        for _ in 0..10 * KEPT {
            log.push(EventKind::FlowOpened, "");
            b.push(EventKind::SessionLost, "");
        }
        let all = log.since(0);
        let of = |kind: &str, peer: Option<&str>| {
            let kept = all.events.iter().filter(|event| event.kind == kind && event.peer.as_deref() == peer);
            kept.count()
        };
        assert_eq!((of("flow_failed", None), of("session_lost", Some("c"))), (100, 100));
        assert_eq!((of("flow_opened", None), of("session_lost", Some("b"))), (412, 412));
        assert_eq!((all.events.len(), all.next), (KEPT, 200 + 20 * KEPT as u64));
        assert_eq!(all.gone, all.next - KEPT as u64);
        assert!(all.events.is_sorted_by_key(|event| event.number));
        // One kind alone has all the room there is, and leaves it to others again.
        (0..2 * KEPT).for_each(|_| log.push(EventKind::Policy, ""));
        let policies = log.since(0).events.into_iter().filter(|event| event.kind == "policy").count();
        assert!((KEPT / 4..KEPT - 200).contains(&policies), "{policies}");
        let from = log.since(0).events[5].number;
        assert_eq!(log.since(from).events[0].number, from);
    }

    #[test]
    fn events_are_found_by_the_addresses_that_they_name() {
        let log = EventLog::default();
        log.push(EventKind::FlowFailed, "10.0.0.1 0x11 > 10.0.1.12 0x21: target_dead (the target is here)");
        log.push(EventKind::FlowFailed, "fd00::1 ? > fd01::2 0x21: target_dead");
        log.push(EventKind::WanUp, "10.9.0.1 is there, with a route to 10.9.0.2:14791");
        log.push(EventKind::WanDown, "no way from 10.9.0.1: it is gone.");
        let of = |host: &str| {
            let host = host.parse().unwrap();
            let named = log.since(0).events.into_iter().filter(|event| event.names(host));
            named.map(|event| event.number).collect::<Vec<_>>()
        };
        assert_eq!(of("10.0.0.1"), [0]);
        assert_eq!(of("10.0.1.12"), [0]);
        assert_eq!(of("10.0.1.1"), [0; 0]);
        assert_eq!(of("fd01::2"), [1]);
        assert_eq!(of("10.9.0.1"), [2, 3]);
        assert_eq!(of("10.9.0.2"), [2]);
    }

    #[test]
    fn a_text_is_one_line_and_no_longer_than_it_may_be() {
        let log = EventLog::default();
        log.push_at(
            UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            EventKind::FlowFailed,
            None,
            "a\nb\u{1b}[2J",
        );
        log.push(EventKind::FlowFailed, &"x".repeat(10_000));
        let events = log.since(0).events;
        assert_eq!(events[0].to_string(), "2023-11-14T22:13:20Z flow_failed    a\\nb\\u{1b}[2J");
        assert_eq!(events[1].text.len(), LONGEST);
    }
}
