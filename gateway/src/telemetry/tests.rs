//! Values that go in come out, once, under their name.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use session::control::Refusal;

use super::*;

/// A snapshot in which every number differs: 1, 2, 3, ... in the order of the series.
fn numbered(classes: usize) -> (Plane, Vec<u64>) {
    let mut snapshot = Snapshot::default();
    let mut next = 0;
    snapshot.fill(classes, &mut || {
        next += 1;
        next
    });
    let plane = Plane::default();
    plane.store(&snapshot);
    let mut loaded = Snapshot::default();
    plane.add_to(&mut loaded);
    let cells: Vec<usize> = (0..classes).collect();
    (plane, loaded.values(&cells))
}

#[test]
fn every_number_passes_through_the_plane() {
    for classes in 1..=MAX_CLASSES {
        let (_, values) = numbered(classes);
        let expected: Vec<u64> = (1..=values.len() as u64).collect();
        assert_eq!(values, expected);
    }
}

#[test]
fn threads_are_summed_and_peaks_are_not() {
    let now = Instant::now();
    let telemetry = Telemetry::new(now);
    telemetry.session(SessionState::Up, None, now);
    let mut one = Snapshot { lan_received_packets: 5, ..Snapshot::default() };
    one.classes[0].rtt_micros = 70;
    one.flows[NEAR] = 2;
    one.classes[1].decoded = 3;
    telemetry.plane().store(&one);
    let mut two = Snapshot { lan_received_packets: 6, ..one.clone() };
    two.classes[0].rtt_micros = 50;
    telemetry.plane().store(&two);
    let sum = telemetry.snapshot(now + Duration::from_secs(2));
    assert_eq!(sum.lan_received_packets, 11);
    assert_eq!(sum.session_rtt_micros, 70);
    assert_eq!(sum.flows, [4, 0]);
    assert_eq!(sum.classes[1].decoded, 6);
    assert_eq!(sum.uptime_micros, 2_000_000);
    telemetry.session(SessionState::Connecting, None, now);
    assert_eq!(telemetry.snapshot(now).session_rtt_micros, 0);
}

#[test]
fn the_sessions_round_trip_is_the_paths_not_that_of_a_class_that_rests() {
    let now = Instant::now();
    let telemetry = Telemetry::new(now);
    telemetry.session(SessionState::Up, None, now);
    let mut plane =
        Snapshot { path_age_micros: 1, path_rtt_micros: [20_000, 20_125, 80], ..Snapshot::default() };
    plane.classes[3].rtt_micros = 400_000;
    telemetry.plane().store(&plane);
    assert_eq!(telemetry.snapshot(now).session_rtt_micros, 20_125);
}

#[test]
fn a_session_is_established_once_however_often_it_is_reported() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let telemetry = Telemetry::new(start);
    telemetry.session(SessionState::Connecting, Some("no answer".to_owned()), at(1));
    assert_eq!(telemetry.session_info().since, start);
    telemetry.session(SessionState::Up, None, at(2));
    telemetry.session(SessionState::Up, None, at(3));
    let info = telemetry.session_info();
    assert_eq!((info.state, info.since), (SessionState::Up, at(2)));
    assert_eq!(info.last_error.as_deref(), Some("no answer"));
    let snapshot = telemetry.snapshot(at(4));
    assert_eq!((snapshot.session_up, snapshot.sessions_established), (1, 1));
    telemetry.session(SessionState::Draining, None, at(5));
    assert_eq!(telemetry.snapshot(at(5)).session_up, 1);
    telemetry.session(SessionState::Connecting, Some("peer silent".to_owned()), at(6));
    assert_eq!(telemetry.snapshot(at(6)).session_up, 0);
    telemetry.session(SessionState::Up, None, at(7));
    assert_eq!(telemetry.snapshot(at(7)).sessions_established, 2);
}

#[test]
fn a_lost_session_is_shown_until_it_goes_on() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let telemetry = Telemetry::new(start);
    let shown = |seconds| {
        let snapshot = telemetry.snapshot(at(seconds));
        (snapshot.session_up, snapshot.session_lost_micros, snapshot.sessions_resumed)
    };
    telemetry.session_up(false, at(1));
    telemetry.session(SessionState::Lost, Some("silence".to_owned()), at(3));
    assert_eq!(shown(5), (0, 2_000_000, 0));
    telemetry.session_up(true, at(6));
    assert_eq!(shown(7), (1, 0, 1));
    assert_eq!(telemetry.snapshot(at(7)).sessions_established, 2);
    telemetry.session(SessionState::Lost, None, at(8));
    telemetry.session(SessionState::Connecting, None, at(9));
    assert_eq!(shown(10), (0, 0, 1));
}

#[test]
fn attempts_that_come_to_no_session_are_counted_and_the_last_error_while_there_is_none() {
    let now = Instant::now();
    let telemetry = Telemetry::new(now);
    let refuse = |error: &str| {
        telemetry.refusals().remember(&error);
        telemetry.refusals().count(Refusal::Version);
    };
    let last = || telemetry.session_info().last_error;
    refuse("one");
    refuse("two");
    assert_eq!(last().as_deref(), Some("no session: two"));
    refuse("three");
    telemetry.session(SessionState::Up, None, now);
    assert_eq!(last().as_deref(), Some("no session: three"));
    refuse("another peer of that name");
    telemetry.session(SessionState::Connecting, Some("silence".to_owned()), now);
    assert_eq!(last().as_deref(), Some("silence"));
    refuse("from \u{1b}[31mthe peer\n");
    assert_eq!(last().as_deref(), Some("no session: from \\u{1b}[31mthe peer\\n"));
    assert_eq!(telemetry.snapshot(now).sessions_refused[Refusal::Version.index()], 5);
}

#[test]
fn classes_that_begin_anew_keep_counting() {
    let telemetry = Telemetry::new(Instant::now());
    let plane = telemetry.plane();
    for (decoded, backlog_bytes) in [(0, 0), (7, 100), (9, 50), (2, 10), (2, 3)] {
        let mut snapshot = Snapshot::default();
        snapshot.classes[0].decoded = decoded;
        snapshot.classes[0].backlog_bytes = backlog_bytes;
        plane.store(&snapshot);
    }
    let total = telemetry.snapshot(Instant::now());
    assert_eq!(total.classes[0].decoded, 11);
    assert_eq!(total.classes[0].backlog_bytes, 3);
}

#[test]
fn a_cell_that_another_class_gets_begins_at_0_whatever_its_streams_have_counted() {
    let telemetry = Telemetry::new(Instant::now());
    let plane = telemetry.plane();
    let mut snapshot = Snapshot::default();
    snapshot.classes[0].decoded = 7;
    plane.store(&snapshot);
    // The new class's streams were another's before.
    snapshot.classes[0].decoded = 100;
    plane.restart(0, &snapshot.classes[0]);
    plane.store(&snapshot);
    assert_eq!(telemetry.snapshot(Instant::now()).classes[0].decoded, 0);
    snapshot.classes[0].decoded = 103;
    plane.store(&snapshot);
    assert_eq!(telemetry.snapshot(Instant::now()).classes[0].decoded, 3);
}

#[test]
fn reloads_are_counted_and_the_generation_with_them() {
    let telemetry = Telemetry::new(Instant::now());
    let numbers = || {
        let snapshot = telemetry.snapshot(Instant::now());
        (snapshot.policy_generation, snapshot.policy_reloads)
    };
    assert_eq!(numbers(), (1, [0, 0]));
    telemetry.policy_refused();
    assert_eq!(numbers(), (1, [0, 1]));
    telemetry.policy_adopted(UNIX_EPOCH + Duration::from_millis(1500));
    assert_eq!(numbers(), (2, [1, 1]));
    assert_eq!(telemetry.snapshot(Instant::now()).policy_loaded_micros, 1_500_000);
}

#[test]
fn names_follow_the_conventions() {
    let mut names = HashSet::new();
    for metric in METRICS {
        let name = metric.name;
        assert!(names.insert(name), "{name} twice");
        assert!(name.starts_with("longhaul_"), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
        assert_eq!(name.ends_with("_seconds"), metric.unit == Unit::Seconds, "{name}");
        assert!(metric.unit != Unit::Bytes || name.contains("_bytes"), "{name}");
        assert_eq!(name.ends_with("_ratio"), metric.unit == Unit::Share, "{name}");
        assert!(!metric.meaning.ends_with('.'), "{name}");
        let values = metric.label.map_or(&[][..], |(_, values)| values);
        assert_eq!(values.iter().collect::<HashSet<_>>().len(), values.len(), "{name}");
        let plain = |value: &&str| {
            !value.is_empty()
                && value.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_')
        };
        assert!(values.iter().all(plain), "{name}: {values:?}");
    }
}

#[test]
fn prometheus_text_has_every_series_with_its_value() {
    let (_, values) = numbered(2);
    let telemetry = Telemetry::new(Instant::now());
    let mut snapshot = telemetry.snapshot(Instant::now());
    let mut next = 0;
    snapshot.fill(2, &mut || {
        next += 1;
        next
    });
    let policy = "[[class]]\nname = \"default\"\nmatch = { dscp = [1] }\nscheme = \"sr\"\n[[class]]\nname = \"bulk\"\nscheme = \"sr\"\n";
    let policy = config::Policy::parse(Path::new("x"), policy).unwrap();
    let exporter = Exporter::new("a", "b", &Cells::new(&policy));
    let text = exporter.render(&snapshot);
    let lines: HashSet<&str> = text.lines().collect();
    let mut values = values.into_iter();
    for metric in METRICS {
        assert!(
            lines.contains(format!("# TYPE {} {}", metric.name, metric.kind.prometheus()).as_str()),
            "{text}"
        );
        assert!(lines.contains(format!("# HELP {} {}", metric.name, metric.meaning).as_str()), "{text}");
        let labels: Vec<String> = match metric.label {
            None => vec![String::new()],
            Some((label, [])) => ["default", "bulk"].map(|value| format!(",{label}=\"{value}\"")).to_vec(),
            Some((label, values)) => values.iter().map(|value| format!(",{label}=\"{value}\"")).collect(),
        };
        for label in labels {
            let value = values.next().unwrap();
            let shown = match metric.unit {
                Unit::Seconds | Unit::Share | Unit::MeanPackets => {
                    (value as f64 / metric.unit.scale()).to_string()
                }
                _ => value.to_string(),
            };
            let line = format!("{}{{site=\"a\",peer=\"b\"{label}}} {shown}", metric.name);
            assert!(lines.contains(line.as_str()), "no {line} in\n{text}");
        }
    }
    assert_eq!(values.next(), None);
    // A later, larger value replaces the former.
    snapshot.lan_received_packets = 1_000_000;
    assert!(
        exporter
            .render(&snapshot)
            .contains("longhaul_lan_received_packets_total{site=\"a\",peer=\"b\"} 1000000\n")
    );
}

/// `UPDATE_EXPECTED=1 cargo test -p gateway telemetry` writes the table anew.
#[test]
fn the_documented_table_is_this_one() {
    const BEGIN: &str = "<!-- metrics: generated from gateway/src/telemetry/table.rs -->\n";
    const END: &str = "<!-- end of metrics -->";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = document.split_once(BEGIN).expect("the document has lost the mark before the table");
    let (table, after) = rest.split_once(END).expect("the document has lost the mark after the table");
    let current = markdown();
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{current}{END}{after}")).unwrap();
    } else {
        assert_eq!(table, current, "docs/reference.md is out of date");
    }
}

fn markdown() -> String {
    let mut text = "| metric | type | unit | label | meaning |\n|---|---|---|---|---|\n".to_owned();
    for Metric { name, kind, unit, label, meaning } in METRICS {
        let label = match label {
            None => String::new(),
            Some((label, [])) => format!("`{label}`"),
            Some((label, values)) => format!("`{label}`: {}", values.join(", ")),
        };
        text += &format!("| `{name}` | {} | {} | {label} | {meaning} |\n", kind.prometheus(), unit.name());
    }
    text
}
