//! The screen as a terminal of 80 columns and 24 lines has it.

use std::net::{IpAddr, Ipv4Addr};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use tokio::net::TcpSocket;

use super::*;
use crate::admin::{
    BackPressure, Buffers, ChoiceStatus, ClassStatus, Flow, Flows, LanMistakes, LaneState, LaneStatus,
    PathStatus, PolicyStatus, Rates, SessionStatus, Spread, State, Surroundings,
};

/// Shows the picture in the guide, too.
const GUIDE: &str = include_str!("../../../docs/operate.md");

fn screen(view: &View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen::draw(frame, view)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let lines = buffer.content().chunks(usize::from(width));
    lines
        .map(|cells| cells.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned() + "\n")
        .collect()
}

fn path() -> PathStatus {
    PathStatus {
        drop: [90e-6, 120e-6, 163e-6],
        drop_long_run: [0.0, 1e-6, 0.02],
        packets: 400_000,
        burst: None,
        overrun: 0,
        congestive: 0.5,
        rtt: [0.020, 0.020_125, 0.000_08],
        delivered_bits: 6.1e9,
        delivered_peak_bits: 8e9,
        reordered: 0.0,
        lag_packets: 0,
        lag: 0.0,
        duplicates: 0.0,
        ce: 0.0,
        age: 0.02,
        reports_bits: None,
        congestion: None,
    }
}

fn class(name: &str, scheme: &str, backlog_bytes: u64) -> ClassStatus {
    ClassStatus {
        name: name.to_owned(),
        scheme: scheme.to_owned(),
        backlog_bytes,
        in_flight_bytes: backlog_bytes * 5,
        sent: 1_230_000,
        repairs: 148,
        parity: 0,
        received: 0,
        decoded: 0,
        duplicates: 0,
        abandoned: 0,
        queueing: None,
        completion: None,
    }
}

fn choice() -> ChoiceStatus {
    ChoiceStatus {
        class: "bulk".to_owned(),
        stream: "bulk".to_owned(),
        scheme: Some("mds(32,8)".to_owned()),
        since: Some(64.0),
        percentile: 99.9,
        max_overhead: 0.5,
        messages: None,
        expected: None,
        runners_up: Vec::new(),
        link: None,
        because: Some("the loss rate changed".to_owned()),
        decided: Some(60.0),
        missing: None,
    }
}

fn status() -> Status {
    let lane = |lane, state, drop| LaneStatus {
        lane,
        state,
        share: 0.5,
        drop: Some(drop),
        rtt: Some(0.020_125),
        leaves: 0,
    };
    Status {
        version: "0.1.0".to_owned(),
        site: "a".to_owned(),
        peer: "b".to_owned(),
        peers: vec!["b".to_owned()],
        peer_address: "10.9.0.2:14791".parse().unwrap(),
        link_rate: 10_000_000_000,
        uptime: 65.0,
        surroundings: Surroundings::default(),
        session: SessionStatus {
            state: "up".to_owned(),
            to_peer: "alive".to_owned(),
            from_peer: "alive".to_owned(),
            since: 64.0,
            established: 1,
            resumed: 0,
            waiting: 0,
            rtt: Some(0.020_125),
            last_error: None,
            last_error_age: None,
        },
        path: Some(path()),
        mtu: None,
        lanes: vec![lane(0, LaneState::InUse, 120e-6), lane(1, LaneState::Lossy, 0.21)],
        rates: Rates { wan_sent_bits: Some(6.12e9), wan_received_bits: Some(0.4e9), ..Rates::default() },
        flows: Flows { near: 3, far: 1, unpaired: 1, opened: 7, failed: 1 },
        buffers: Buffers { count: 12, bytes: 48 << 20, limit: 512 << 20, timers: 9 },
        back_pressure: BackPressure { marked: 310, notified: 12, refused: 0 },
        policy: PolicyStatus { file: None, generation: 1, loaded: String::new(), refused: 0 },
        classes: vec![class("bulk", "auto", 3 << 20), class("default", "sr", 0)],
        lan_mistakes: LanMistakes::default(),
        choices: vec![choice()],
    }
}

fn view() -> View {
    let host = |site, host| IpAddr::V4(Ipv4Addr::new(10, 0, site, host));
    let flow = |side: &str, number: u8, requester_qpn| Flow {
        side: side.to_owned(),
        requester: host(0, number),
        requester_qpn,
        target: host(1, number),
        target_qpn: 0x20 + u32::from(number),
        class: if number == 2 { "bulk" } else { "default" }.to_owned(),
        state: if number == 2 { State::Active } else { State::Idle },
    };
    let event = |number, kind: &str, text: &str| Event {
        peer: None,
        class: None,
        number,
        time: format!("2026-11-27T04:00:0{number}Z"),
        kind: kind.to_owned(),
        text: text.to_owned(),
    };
    View {
        status: Some(status()),
        flows: FlowList {
            peer: "b".to_owned(),
            total: 3,
            flows: vec![flow("near", 1, Some(0x11)), flow("near", 2, Some(0x12)), flow("far", 3, None)],
        },
        events: vec![
            event(0, "started", "version 0.1.0"),
            event(1, "session_up", "with b at 10.9.0.2:14791"),
            event(2, "policy", "generation 1"),
        ],
        ..View::default()
    }
}

#[test]
fn the_screen_is_the_one_in_the_guide() {
    let shown = screen(&view(), 80, 24);
    let (_, rest) = GUIDE.split_once("<!-- top: checked by gateway/src/top/tests.rs -->\n```\n").unwrap();
    let (expected, _) = rest.split_once("\n```").unwrap();
    assert_eq!(shown.trim_end(), expected, "the screen is\n{shown}");
}

#[test]
fn of_several_peers_one_is_shown_and_each_in_its_turn() {
    let mut view = view();
    let status = view.status.as_mut().unwrap();
    status.peers = ["b", "c", "d"].map(str::to_owned).to_vec();
    view.events[1].peer = Some("c".to_owned());
    let shown = screen(&view, 80, 30);
    assert!(shown.contains("peer     1 of 3; n shows the next\n"), "{shown}");
    assert!(shown.contains("session_up    towards c: with b at"), "{shown}");
    let mut admin = Endpoint::from(std::net::SocketAddr::from(([127, 0, 0, 1], 1)));
    View::default().turn(&mut admin);
    assert_eq!(admin.peer(), None, "no peer is known");
    for expected in ["c", "d", "b"] {
        view.turn(&mut admin);
        assert_eq!(admin.peer(), Some(expected));
        view.status.as_mut().unwrap().peer = expected.to_owned();
    }
}

#[test]
fn without_a_session_nothing_is_said_of_the_link() {
    let mut view = view();
    let status = view.status.as_mut().unwrap();
    (status.path, status.rates, status.lanes) = (None, Rates::default(), Vec::new());
    status.session.state = "connecting".to_owned();
    status.session.last_error = Some("timed out".to_owned());
    let shown = screen(&view, 80, 24);
    for piece in ["nothing is known of the path", "no session", "connecting for 1 min 4 s", "timed out"] {
        assert!(shown.contains(piece), "no {piece} in\n{shown}");
    }
    assert!(!shown.contains("RTT"), "{shown}");
}

/// Text without room shows that it goes on, and more room shows more.
#[test]
fn wider_screens_show_more_and_nothing_is_cut_in_silence() {
    const REASON: &str = "the loss rate changed";
    let mut view = view();
    view.events[2].text = format!("version 0.1.0{}", ", and so on".repeat(20));
    let status = view.status.as_mut().unwrap();
    status.session.last_error = Some("no session: the peer does not answer at all".to_owned());
    status.session.last_error_age = Some(3600.0);
    status.classes.push(class("checkpoints-of-llms", "hybrid(128,32)x16", 1));
    status.classes[0].completion = Some(Spread { median: 0.0204, p99: 0.0812, count: 90 });
    let [narrow, middle, wide] = [(80, 24), (100, 30), (160, 50)].map(|(w, h)| screen(&view, w, h));
    for (shown, width) in [(&narrow, 80), (&middle, 100), (&wide, 160)] {
        assert!(shown.contains("last error: no session: "), "{shown}");
        assert!(shown.contains("answer at all, 1 h 0 min ago\n"), "{shown}");
        let event = shown.lines().find(|line| line.contains("version 0.1.0, and so on")).unwrap();
        assert!(event.ends_with('\u{2026}') && event.chars().count() == width, "{shown}");
    }
    assert!(narrow.contains("checkpoints-\u{2026} hybrid(128,32)\u{2026}"), "{narrow}");
    assert!(narrow.contains("the loss r\u{2026}\n"), "{narrow}");
    for shown in [&middle, &wide] {
        assert!(shown.contains("checkpoints-of-llms hybrid(128,32)x16"), "{shown}");
        assert!(shown.contains(REASON), "{shown}");
    }
    assert!(!middle.contains("decoded") && wide.contains(" parity decoded p99 "), "{middle}\n{wide}");
    assert!(wide.contains("81.2 ms"), "{wide}");
    let bar = |shown: &str| {
        shown.lines().find(|line| line.contains("Gbit/s of")).map(|line| line.matches(['#', '.']).count())
    };
    assert!(bar(&narrow) < bar(&middle) && bar(&middle) < bar(&wide), "{narrow}\n{middle}\n{wide}");
}

/// Any terminal gets a screen, and what others wrote does not command it.
#[test]
fn any_size_will_do_and_foreign_text_is_escaped() {
    let mut view = view();
    view.events[0].text = "\u{1b}[2J\u{7}".to_owned();
    view.error = Some("gone\u{1b}[0m".to_owned());
    let status = view.status.as_mut().unwrap();
    status.classes = (0..40).map(|number| class(&format!("class{number}"), "sr", number)).collect();
    for (width, height) in [(80, 24), (1, 1), (20, 5), (200, 100), (360, 3)] {
        let shown = screen(&view, width, height);
        assert!(!shown.contains('\u{1b}'), "{shown}");
    }
    let shown = screen(&view, 80, 40);
    assert!(shown.contains("stale    gone\\u{1b}[0m") && shown.contains("34 more"), "{shown}");
    assert_eq!(screen(&View::default(), 30, 1), "asking the gateway\n");
}

#[tokio::test]
async fn a_gateway_that_does_not_answer_leaves_what_was_known() {
    // A port that nobody else gets, and at which nobody listens.
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let endpoint = Endpoint::from(silent.local_addr().unwrap());
    let mut view = view();
    view.ask(&endpoint).await;
    assert!(view.error.as_ref().unwrap().contains("nothing answers"), "{view:?}");
    assert_eq!(view.status, Some(status()));
}

#[tokio::test]
async fn a_gateway_is_asked_for_all_three() {
    let (admin, telemetry) = crate::admin::tests::admin(std::time::Instant::now());
    telemetry.events().push(crate::events::EventKind::Started, "once");
    let endpoint = Endpoint::from(crate::admin::tests::listening(&admin).await);
    let mut view = View::default();
    for times in 1..=2 {
        view.ask(&endpoint).await;
        assert_eq!((view.error.as_deref(), view.events.len()), (None, 1), "{times}");
    }
    assert_eq!(view.status.map(|status| status.site), Some("a".to_owned()));
}
