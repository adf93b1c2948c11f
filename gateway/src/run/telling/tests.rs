//! Events and lines of the log, as states change.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use config::Policy;
use splice::OpenedBetween;
use splice::record::Reason;

use super::*;
use crate::lan::usable::{Family, Fault};
use crate::telemetry::SessionState;

fn at(start: Instant, seconds: u64) -> Instant {
    start + Duration::from_secs(seconds)
}

/// A gateway of which nothing has been told.
fn silent() -> (Instant, Telemetry, Telling) {
    let start = Instant::now();
    (start, Telemetry::new(start), telling("127.0.0.1:14791"))
}

/// One of a gateway that listens there, whose peer is on this machine, too.
fn telling(listen: &str) -> Telling {
    let text = include_str!("../../../../docs/examples/gateway-a.toml");
    let text = text.replace("10.9.0.1:14791", listen).replace("10.9.0.2:14791", "127.0.0.2:14791");
    let gateway = config::Gateway::parse(Path::new("a.toml"), &text).unwrap();
    Telling::new(&gateway.wan, &gateway.peer)
}

/// A policy with one class.
fn policy() -> Arc<Policy> {
    let text = "[[class]]\nname = \"default\"\nscheme = \"sr\"\n";
    Arc::new(Policy::parse(Path::new("policy.toml"), text).unwrap())
}

fn kinds(telemetry: &Telemetry) -> Vec<String> {
    telemetry.events().since(0).events.into_iter().map(|event| event.kind).collect()
}

#[test]
fn back_pressure_is_told_when_it_begins_and_when_it_has_ended() {
    let start = Instant::now();
    let mut pressure = Pressure::default();
    assert_eq!(pressure.observe(0, start), None);
    assert_eq!(pressure.observe(5, at(start, 1)), Some(Change::Began));
    for second in 2..30 {
        assert_eq!(pressure.observe(5 + second, at(start, second)), None);
    }
    for second in 30..39 {
        assert_eq!(pressure.observe(34, at(start, second)), None, "a pause is no end");
    }
    let ended = Change::Ended { after: Duration::from_secs(28), packets: 34 };
    assert_eq!(pressure.observe(34, at(start, 39)), Some(ended));
    assert_eq!(pressure.observe(34, at(start, 40)), None);
    assert_eq!(pressure.observe(35, at(start, 41)), Some(Change::Began));
}

#[test]
fn pressure_that_comes_and_goes_does_not_fill_the_log() {
    let start = Instant::now();
    let mut pressure = Pressure::default();
    let changes = (0..3600).filter(|second| pressure.observe(second / 2, at(start, *second)).is_some());
    assert_eq!(changes.count(), 1);
}

#[test]
fn every_change_is_an_event() {
    let (start, telemetry, mut telling) = silent();
    let plane = telemetry.plane();
    for (second, marked) in [(0, 0), (1, 7), (2, 7), (12, 7), (13, 7)] {
        plane.store(&Snapshot { lan_backlog_marked: marked, ..Snapshot::default() });
        telling.look(&telemetry, at(start, second));
    }
    assert_eq!(kinds(&telemetry), ["pressure_began", "pressure_ended"]);
}

#[test]
fn flows_that_fail_are_told_of_with_both_ends_and_many_at_once_are_counted() {
    let (start, telemetry, mut telling) = silent();
    let sender = telemetry.failures().sender();
    let failure = |target_qpn| FlowFailure {
        side: FlowSide::Near,
        requester: [10, 0, 0, 1].into(),
        requester_qpn: Some(Qpn::new(0x11)),
        target: [10, 0, 1, 1].into(),
        target_qpn: Qpn::new(target_qpn),
        cause: Reason::TargetDead.into(),
        by: By::Peer,
        class: 0,
    };
    let sender = |failure| sender.send((failure, policy()));
    sender(failure(0x21));
    telling.look(&telemetry, start);
    telling.look(&telemetry, start);
    (0..1000).for_each(|number| sender(failure(number)));
    telemetry.failures().sender().miss(7);
    telling.look(&telemetry, start);
    let events = telemetry.events().since(0).events;
    assert!(events.iter().all(|event| event.kind == "flow_failed"));
    let told = "10.0.0.1 0x11 > 10.0.1.1 0x21: target_dead (class default, the requester is here, the peer gave it up)";
    assert_eq!(events[0].text, told);
    assert_eq!(events.len(), 1 + FAILURES + 1);
    assert_eq!(events.last().map(|event| event.text.as_str()), Some("997 more at the same time"));
}

#[test]
fn flows_that_end_with_their_session_are_one_event_with_some_named() {
    let (start, telemetry, mut telling) = silent();
    let (sender, plane) = (telemetry.failures().sender(), telemetry.plane());
    let failure = |cause, target_qpn| FlowFailure {
        side: FlowSide::Far,
        requester: [10, 0, 0, 1].into(),
        requester_qpn: Some(Qpn::new(0x11)),
        target: [10, 0, 1, 1].into(),
        target_qpn: Qpn::new(target_qpn),
        cause,
        by: By::Us,
        class: 0,
    };
    let ended = |counted| {
        let mut snapshot = Snapshot::default();
        snapshot.flows_failed[0] = counted;
        plane.store(&snapshot);
    };
    // Four, of which the news comes a little before the count.
    (0x21..0x25).for_each(|number| sender.send((failure(Cause::Session, number), policy())));
    telling.look(&telemetry, start);
    ended(4);
    telling.look(&telemetry, start);
    telling.look(&telemetry, start);
    // A thousand, of which some get no place in the queue, and one that fails by itself.
    sender.send((failure(Cause::Nak, 0x99), policy()));
    (0..200).for_each(|number| sender.send((failure(Cause::Session, number), policy())));
    sender.miss(800);
    ended(1004);
    telling.look(&telemetry, start);
    let events = telemetry.events().since(0).events;
    let texts: Vec<_> = events.iter().map(|event| event.text.as_str()).collect();
    let [four, single, thousand] = &texts[..] else { panic!("{texts:?}") };
    assert!(four.starts_with("4 ended with their session: 10.0.0.1 0x11 > 10.0.1.1 0x21, "), "{four}");
    assert!(four.ends_with(" 0x24"), "{four}");
    assert!(single.contains("0x99: nak"), "{single}");
    assert!(thousand.starts_with("1000 ended with") && thousand.ends_with(" and 994 more"), "{thousand}");
    assert!(events.iter().all(|event| event.kind == "flow_failed"));
}

#[test]
fn flows_that_go_on_after_a_process_are_one_event_with_some_named() {
    let (start, telemetry, mut telling) = silent();
    let (sender, plane) = (telemetry.openings().sender(), telemetry.plane());
    let restored = |target_qpn| FlowOpening {
        side: FlowSide::Near,
        requester: [10, 0, 0, 1].into(),
        requester_qpn: Some(Qpn::new(0x11)),
        target: [10, 0, 1, 1].into(),
        target_qpn: Qpn::new(target_qpn),
    };
    plane.store(&Snapshot { flows_restored: 10, ..Snapshot::default() });
    (0x21..0x2b).for_each(|number| sender.send(Opened::Restored(restored(number))));
    telling.look(&telemetry, start);
    telling.look(&telemetry, start);
    let events = telemetry.events().since(0).events;
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!(event.kind, "flow_restored");
    let text = &event.text;
    assert!(
        text.starts_with("10 go on after the end of a process: 10.0.0.1 0x11 > 10.0.1.1 0x21, "),
        "{text}"
    );
    assert!(text.ends_with("0x26 and 4 more"), "{text}");
}

fn opening(requester: u8, target_qpn: u32) -> Opened {
    Opened::Flow(FlowOpening {
        side: FlowSide::Far,
        requester: [10, 0, 0, requester].into(),
        requester_qpn: None,
        target: [10, 0, 1, 1].into(),
        target_qpn: Qpn::new(target_qpn),
    })
}

/// The flows that texts of events speak of.
fn counted(texts: &[String]) -> u64 {
    let count = |text: &String| {
        let (before, _) = text.split_once(" more")?;
        before.rsplit(' ').next()?.parse::<u64>().ok()
    };
    texts.iter().map(|text| count(text).unwrap_or(1)).sum()
}

#[test]
fn flows_that_open_are_told_of_at_a_bounded_rate_and_all_are_counted() {
    let (start, telemetry, mut telling) = silent();
    let sender = telemetry.openings().sender();
    sender.send(opening(1, 0x21));
    telling.look(&telemetry, start);
    let texts = || telemetry.events().since(0).events.into_iter().map(|event| event.text);
    assert_eq!(texts().next().unwrap(), "10.0.0.1 ? > 10.0.1.1 0x21 (the target is here)");
    // A storm of ten minutes: 700 a second, of which some do not even get into the queue.
    for second in 1..=600 {
        (0..300).for_each(|number| sender.send(opening(1, number)));
        sender.miss(400);
        telling.look(&telemetry, at(start, second));
    }
    telling.look(&telemetry, at(start, 700));
    let texts: Vec<_> = texts().collect();
    assert!(kinds(&telemetry).iter().all(|kind| kind == "flow_opened"));
    assert_eq!(counted(&texts), 1 + 600 * 700);
    let gathered = texts.iter().filter(|text| text.starts_with("10.0.0.1 > 10.0.1.1: ")).count();
    assert!((60..=62).contains(&gathered), "{gathered}");
    assert!(texts.len() < 200, "{}", texts.len());
    // After a rest, ten at once have an event each.
    let before = telemetry.events().since(0).next;
    (0..10).for_each(|number| sender.send(opening(1, number)));
    telling.look(&telemetry, at(start, 900));
    assert_eq!(telemetry.events().since(before).events.len(), 10);
}

/// Through a core, its queue and the telling, as a worker has them.
#[test]
fn a_hundred_thousand_flows_that_open_push_out_no_failure() {
    let (start, telemetry, mut telling) = silent();
    let failure = FlowFailure {
        side: FlowSide::Near,
        requester: [10, 0, 0, 7].into(),
        requester_qpn: None,
        target: [10, 0, 1, 7].into(),
        target_qpn: Qpn::new(7),
        cause: Reason::TargetDead.into(),
        by: By::Us,
        class: 0,
    };
    telemetry.failures().sender().send((failure, policy()));
    telling.look(&telemetry, start);
    let sender = telemetry.openings().sender();
    for second in 0..1000 {
        let [.., high, low] = u32::to_be_bytes(second);
        sender.send(opening(low, second));
        let between = OpenedBetween {
            side: FlowSide::Near,
            requester: [10, 2, high, low].into(),
            target: [10, 0, 1, 1].into(),
            count: 99,
        };
        sender.send_many(Opened::Between(between), 99);
        telling.look(&telemetry, at(start, second.into()));
    }
    telling.look(&telemetry, at(start, 2000));
    let all = telemetry.events().since(0);
    let failed: Vec<_> = all.events.iter().filter(|event| event.kind == "flow_failed").collect();
    let [failed] = &failed[..] else { panic!("{failed:?}") };
    assert!(failed.names([10, 0, 1, 7].into()) && failed.class.as_deref() == Some("default"));
    let texts: Vec<_> = all.events.iter().map(|event| event.text.clone()).collect();
    assert_eq!((counted(&texts), all.gone), (1 + 100_000, 0));
    // So many hosts are not told of one by one.
    assert!(texts.iter().any(|text| text.contains(" more, between other hosts")), "{texts:?}");
}

#[test]
fn the_lan_interface_is_told_of_by_its_name() {
    let (start, telemetry, mut telling) = silent();
    telemetry.name_lan("eth1");
    let plane = telemetry.plane();
    let no_address = Some(Fault::NoAddress(Family::V4));
    for (lan_up, fault) in [
        (0, None),
        (2, None),
        (1, None),
        (1, Some(Fault::Down)),
        (1, Some(Fault::Down)),
        (2, None),
        (2, no_address),
        (2, no_address),
        (2, None),
    ] {
        plane.store(&Snapshot { lan_up, ..Snapshot::default() });
        telemetry.set_lan_fault(fault);
        telling.look(&telemetry, start);
        let metric = telemetry.snapshot(start).lan_up;
        let is_down = telemetry.lan().unusable().is_some();
        assert_eq!(metric, if fault.is_some() { 1 } else { lan_up });
        assert_eq!(is_down, metric == 1, "status and metric agree");
    }
    let expected = ["lan_down", "lan_down", "lan_up", "lan_down", "lan_up"];
    assert_eq!(kinds(&telemetry), expected);
    let texts: Vec<_> = telemetry.events().since(0).events.into_iter().map(|event| event.text).collect();
    assert!(texts.iter().all(|text| text.contains("eth1")), "{texts:?}");
    assert_eq!(texts[1], "eth1 is down");
    assert!(texts[3].contains("no IPv4 address"), "{texts:?}");
}

/// The workers' word of the interface may be of before the kernel's news.
#[test]
fn an_early_look_tells_of_what_the_kernel_says_only() {
    let (start, telemetry, mut telling) = silent();
    telemetry.name_lan("eth1");
    let plane = telemetry.plane();
    plane.store(&Snapshot { lan_up: 1, ..Snapshot::default() });
    telling.look_early(&telemetry, start);
    assert_eq!(kinds(&telemetry), [""; 0]);
    telemetry.set_lan_fault(Some(Fault::NoCarrier));
    telling.look_early(&telemetry, start);
    assert_eq!(kinds(&telemetry), ["lan_down"]);
    telemetry.set_lan_fault(None);
    telling.look_early(&telemetry, start);
    plane.store(&Snapshot { lan_up: 2, ..Snapshot::default() });
    telling.look(&telemetry, start);
    assert_eq!(kinds(&telemetry), ["lan_down", "lan_up"]);
}

/// The kernel's news has it looked at, too.
#[test]
fn an_early_look_tells_of_an_address_that_is_gone() {
    let (start, telemetry) = (Instant::now(), Telemetry::new(Instant::now()));
    telling("192.0.2.1:14791").look_early(&telemetry, start);
    assert_eq!(kinds(&telemetry), ["wan_down"]);
}

/// The LAN is all peers'.
#[test]
fn what_is_about_the_lan_names_none_of_several_peers() {
    let (start, telemetry, telling) = silent();
    let telemetry = telemetry.with_events(crate::events::EventLog::default().about("b"));
    let mut telling = telling.naming("b", true);
    let plane = telemetry.plane();
    let mut snapshot = Snapshot { lan_up: 1, lan_backlog_marked: 7, ..Snapshot::default() };
    snapshot.lan_rejected[Reject::RoceV1.index()] = 1;
    plane.store(&snapshot);
    telling.look(&telemetry, start);
    let events = telemetry.events().since(0).events;
    let peers: Vec<_> = events.iter().map(|event| (event.kind.as_str(), event.peer.as_deref())).collect();
    assert_eq!(peers, [("lan_down", None), ("pressure_began", Some("b")), ("lan_mistake", None)]);
}

/// The warnings among the lines that are logged meanwhile.
fn warnings(log: impl FnOnce()) -> Vec<String> {
    crate::logs::written(log).into_iter().filter(|line| line.trim_start().starts_with("WARN")).collect()
}

/// A carrier that is lost shows first at the workers, and then by its reason. They are the last to
/// know that it is back.
#[test]
fn an_interface_that_is_lost_is_one_warning() {
    let (start, telemetry, mut telling) = silent();
    telemetry.name_lan("eth1");
    let plane = telemetry.plane();
    let warned = warnings(|| {
        let (no_carrier, down) = (Some(Fault::NoCarrier), Some(Fault::Down));
        let course = [(2, None), (1, None), (1, no_carrier), (1, down), (1, None), (2, None)];
        for (second, (lan_up, fault)) in (0..).zip(course) {
            plane.store(&Snapshot { lan_up, ..Snapshot::default() });
            telemetry.set_lan_fault(fault);
            telling.look(&telemetry, at(start, second));
        }
    });
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert_eq!(kinds(&telemetry), ["lan_down", "lan_down", "lan_down", "lan_up"]);
}

/// A cut link ends the control connection in the same moment, which is told of by itself.
#[test]
fn a_dead_data_path_is_warned_of_where_control_stays_up() {
    for is_cut in [true, false] {
        let (start, telemetry, mut telling) = silent();
        telemetry.session(SessionState::Up, None, start);
        let (plane, mut snapshot) = (telemetry.plane(), Snapshot::default());
        let is_told = || kinds(&telemetry).iter().filter(|kind| *kind == "data_path").count() >= 2;
        let warned = warnings(|| {
            for second in 0..30 {
                snapshot.wan_sent_packets += 4;
                snapshot.wan_opened[0] += if second <= 10 { 4 } else { 0 };
                snapshot.path_age_micros = if second <= 10 { 20_000 } else { (second - 10) * 1_000_000 };
                plane.store(&snapshot);
                telling.look(&telemetry, at(start, second));
                if is_cut && second > 10 && is_told() {
                    telemetry.session(SessionState::Lost, None, at(start, second));
                }
            }
        });
        assert!(is_told(), "{:?}", kinds(&telemetry));
        assert_eq!(warned.len(), usize::from(!is_cut), "{warned:?}");
        assert!(warned.iter().all(|line| line.contains("control is up, and no data crosses")));
    }
}

#[test]
fn a_hosts_mistake_is_told_once_an_hour_with_the_remedy() {
    let (start, telemetry, mut telling) = silent();
    let plane = telemetry.plane();
    let mut snapshot = Snapshot::default();
    for minute in 0..150 {
        snapshot.lan_rejected[Reject::RoceV1.index()] += 3;
        plane.store(&snapshot);
        telling.look(&telemetry, at(start, 60 * minute));
    }
    snapshot.lan_rejected[Reject::IpOptions.index()] += 1;
    plane.store(&snapshot);
    telling.look(&telemetry, at(start, 60 * 150));
    let events = telemetry.events().since(0).events;
    assert_eq!(events.len(), 4, "{events:?}");
    assert!(events[0].text.contains("RoCE v2 GID (3 packets") && events[3].text.contains("extension"));
}

#[test]
fn a_thiefs_attempts_are_an_event_a_minute_at_most() {
    let (start, telemetry, mut telling) = silent();
    let thief: SocketAddr = "192.0.2.9:4000".parse().unwrap();
    telemetry.refusals().count(Refusal::Authentication, thief);
    telling.look(&telemetry, start);
    for second in 1..=100 {
        telemetry.refusals().count(Refusal::Address, thief);
        telling.look(&telemetry, at(start, second));
    }
    telemetry.refusals().count(Refusal::Revoked, thief);
    telling.look(&telemetry, at(start, 200));
    let events = telemetry.events().since(0).events;
    let told: Vec<_> = events.iter().map(|event| (event.kind.as_str(), event.text.as_str())).collect();
    let [first, second, third] = &told[..] else { panic!("{told:?}") };
    assert!(told.iter().all(|(kind, text)| *kind == "impostor" && text.contains("192.0.2.9:4000")));
    let mistake = "192.0.2.9:4000 and refused, since peer.address is 127.0.0.2:14791: a mistake there, or a thief; 1 such";
    assert!(first.1.contains(mistake), "{told:?}");
    assert!(second.1.contains(" 60 such") && third.1.contains("revoked certificate"), "{told:?}");
}

#[test]
fn an_address_that_is_gone_is_seen() {
    let start = Instant::now();
    let telemetry = Telemetry::new(start);
    // TEST-NET-1 (RFC 5737) is no machine's.
    let mut telling = telling("192.0.2.1:14791");
    assert_eq!(telemetry.snapshot(start).wan_up, 0);
    telling.look(&telemetry, start);
    assert_eq!(telemetry.snapshot(start).wan_up, 1);
    telling.way = self::telling("127.0.0.1:14791").way;
    telling.look(&telemetry, start);
    assert_eq!(telemetry.snapshot(start).wan_up, 2);
    assert_eq!(kinds(&telemetry), ["wan_down", "wan_up"]);
}
