//! Values that go in come out, once, under their name.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use reliability::times::Times;
use session::control::Refusal;

use super::*;
use crate::cells::Cells;

/// A snapshot in which every number differs: 1, 2, 3, ... in the order of the series.
fn numbered(classes: usize) -> (WorkerCounters, Vec<u64>) {
    let mut snapshot = Snapshot::default();
    let mut next = 0;
    snapshot.fill(classes, &mut || {
        next += 1;
        next
    });
    let plane = WorkerCounters::default();
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
    assert_eq!((sum.classes[0].rtt_micros, sum.session_rtt_micros), (70, 0));
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
    let cells = telemetry.plane();
    cells.store(&plane);
    assert_eq!(telemetry.snapshot(now).session_rtt_micros, 20_125);
    // Who does not report any more says nothing of now.
    plane.path_age_micros = 60_000_000;
    cells.store(&plane);
    assert_eq!(telemetry.snapshot(now).session_rtt_micros, 0);
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
    assert_eq!((info.last_error.as_deref(), info.last_error_at), (Some("no answer"), Some(at(1))));
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
        telemetry.refusals().count(Refusal::Version, ([192, 0, 2, 1], 7).into());
    };
    let last = || {
        let info = telemetry.session_info();
        assert_eq!(info.last_error.is_some(), info.last_error_at.is_some());
        info.last_error
    };
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
        assert_eq!(
            name.ends_with("_total"),
            matches!(metric.kind, Kind::Counter | Kind::Restarting),
            "{name}"
        );
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
fn without_a_session_rates_and_ratios_are_absent() {
    let now = Instant::now();
    let telemetry = Telemetry::new(now);
    let plane = telemetry.plane();
    let mut counted = Snapshot { path_age_micros: 1, path_rtt_micros: [1, 2, 3], ..Snapshot::default() };
    counted.lane_state[0] = 1;
    counted.classes[0].rtt_micros = 7;
    plane.store(&counted);
    let policy = config::Policy::default();
    let exporter = Exporter::new("a", "b", &Cells::new(&policy));
    let has = |text: &str, name: &str| text.lines().any(|line| line.starts_with(name));
    let names = [
        "longhaul_path_drop_ratio{",
        "longhaul_path_rtt_seconds{",
        "longhaul_path_delivered_bytes_per_second{",
        "longhaul_lane_share_ratio{",
        "longhaul_session_rtt_seconds{",
        "longhaul_stream_rtt_seconds{",
        "longhaul_data_path_up{",
    ];
    let text = exporter.render(&telemetry.snapshot(now));
    assert!(names.iter().all(|name| !has(&text, name)), "{text}");
    assert!(has(&text, "longhaul_session_up{") && has(&text, "longhaul_wan_sent_packets_total{"), "{text}");
    telemetry.session(SessionState::Up, None, now);
    for second in 0..3 {
        counted.wan_sent_packets += 4;
        counted.wan_opened[0] += 4;
        plane.store(&counted);
        telemetry.judge_data_path(now + Duration::from_secs(second));
    }
    let text = exporter.render(&telemetry.snapshot(now));
    assert!(names.iter().all(|name| has(&text, name)), "{text}");
    assert!(!text.contains("lane_share_ratio{site=\"a\",peer=\"b\",lane=\"1\"}"), "{text}");
}

/// The bulk port is blocked, and control is not.
#[test]
fn a_session_without_a_data_path_is_not_up() {
    let start = Instant::now();
    let telemetry = Telemetry::new(start);
    let plane = telemetry.plane();
    telemetry.session(SessionState::Up, None, start);
    let mut changes = Vec::new();
    for second in 0..30 {
        plane.store(&Snapshot { wan_sent_packets: 4 * second, ..Snapshot::default() });
        changes.extend(telemetry.judge_data_path(start + Duration::from_secs(second)));
    }
    assert_eq!(changes.len(), 1, "told once: {changes:?}");
    assert!(changes[0].is_dead());
    let snapshot = telemetry.snapshot(start + Duration::from_secs(30));
    assert_eq!((snapshot.session_up, snapshot.data_path), (0, [0, 1]));
}

#[test]
fn alerts_ask_for_series_that_there_are() {
    let rules = include_str!("../../../dashboards/rules.yml");
    // What the rules record themselves has a colon, and is not the gateway's.
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
    let names = rules.lines().flat_map(|line| line.split(|c| !is_part(c)));
    let names: HashSet<&str> = names.filter(|name| name.starts_with("longhaul_")).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let is_there = METRICS.iter().any(|metric| metric.name == name)
            || ["longhaul_build_info", "longhaul_peer_info"].contains(&name);
        assert!(is_there, "no series {name}");
    }
}

#[test]
fn alerts_that_the_docs_promise_are_there() {
    let rules = include_str!("../../../dashboards/rules.yml");
    let docs = include_str!("../../../docs/operate.md");
    let table = docs.split("Each of these has an alert").nth(1).unwrap().split("\n\n").nth(1).unwrap();
    let expressions: Vec<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split("` |").next())
        .map(|expression| expression.replace("\\|", "|"))
        .collect();
    assert!(expressions.len() > 15, "{expressions:?}");
    for expression in expressions {
        assert!(rules.contains(&format!("expr: {expression}")), "no alert on {expression}");
    }
}

/// Whoever reads one text sees no other.
#[test]
fn every_help_text_stands_by_itself() {
    for Metric { name, meaning, .. } in METRICS {
        let leans = ["Of these", "Of those", "Their ", "The same", "It ", "Its "];
        assert!(!leans.iter().any(|start| meaning.starts_with(start)), "{name}: {meaning}");
        let words: Vec<&str> = meaning.split([' ', ',', ';', ':']).collect();
        for pair in words.windows(2) {
            assert!(
                !matches!(pair, ["in", "them"] | ["of", "it"] | ["that", "it"] | ["Times", "it"]),
                "{name}"
            );
        }
    }
}

/// A count "in this session" would fall from one session to the next.
#[test]
fn counts_of_a_session_go_on_in_the_next() {
    for Metric { name, kind, meaning, .. } in METRICS {
        assert!(kind.prometheus() == "counter" || !meaning.contains("in this session"), "{name}");
    }
    let telemetry = Telemetry::new(Instant::now());
    let plane = telemetry.plane();
    for leaves in [0, 2, 3, 0, 1] {
        let mut snapshot = Snapshot { path_changes: leaves, ..Snapshot::default() };
        snapshot.lane_leaves[1] = leaves;
        plane.store(&snapshot);
    }
    let total = telemetry.snapshot(Instant::now());
    assert_eq!((total.path_changes, total.lane_leaves[1]), (4, 4));
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
    for metric in METRICS.iter().filter(|metric| metric.kind != Kind::Histogram) {
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
                Unit::Known => (value - 1).to_string(),
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

/// Counts go on from session to session, add up over threads, and are cumulative in the text.
#[test]
fn histograms_are_prometheus_histograms() {
    let telemetry = Telemetry::new(Instant::now());
    for _ in 0..2 {
        let plane = telemetry.plane();
        let mut snapshot = Snapshot::default();
        [50, 200, 200, 20_000_000].into_iter().for_each(|micros| snapshot.classes[0].queueing.note(micros));
        plane.store(&snapshot);
        // Another session begins, and then the cell is another class's.
        snapshot.classes[0].queueing = Times::default();
        snapshot.classes[0].queueing.note(200);
        snapshot.classes[1].completion.note(7);
        plane.store(&snapshot);
        plane.restart(1, &snapshot.classes[1]);
        plane.store(&snapshot);
    }
    let text = Exporter::new("a", "b\"", &Cells::new(&config::Policy::default()))
        .render(&telemetry.snapshot(Instant::now()));
    let labels = "site=\"a\",peer=\"b\\\"\",class=\"default\"";
    for line in [
        "# TYPE longhaul_stream_queueing_seconds histogram".to_owned(),
        format!("longhaul_stream_queueing_seconds_bucket{{{labels},le=\"0.0001\"}} 2"),
        format!("longhaul_stream_queueing_seconds_bucket{{{labels},le=\"0.00025\"}} 8"),
        format!("longhaul_stream_queueing_seconds_bucket{{{labels},le=\"10\"}} 8"),
        format!("longhaul_stream_queueing_seconds_bucket{{{labels},le=\"+Inf\"}} 10"),
        format!("longhaul_stream_queueing_seconds_sum{{{labels}}} 40.0013"),
        format!("longhaul_stream_queueing_seconds_count{{{labels}}} 10"),
        format!("longhaul_message_completion_seconds_count{{{labels}}} 0"),
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
    let restarted = telemetry.snapshot(Instant::now()).classes[1].completion;
    assert_eq!(restarted.total(), 0, "of the class before");
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
            Some((label, ["0", .., last])) => format!("`{label}`: 0 to {last}"),
            Some((label, values)) => format!("`{label}`: {}", values.join(", ")),
        };
        text += &format!("| `{name}` | {} | {} | {label} | {meaning} |\n", kind.prometheus(), unit.name());
    }
    text
}
