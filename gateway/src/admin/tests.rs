//! The listener over real sockets on loopback, and the numbers it shows.

mod health;
mod standing;

use std::net::SocketAddr;
use std::path::Path;
use std::time::UNIX_EPOCH;

use roce::wire::Qpn;
use splice::{FlowReport, FlowSide, FlowState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::requests::{Answer, Reloads};
use crate::telemetry::{SessionState, ShownFlows};

const POLICY: &str = "[[class]]\nname = \"bulk\"\nmatch = { dscp = [8] }\nscheme = \"mds\"\nk = 32\nm = 8\n[[class]]\nname = \"default\"\nscheme = \"sr\"\n";

pub(crate) fn admin(now: Instant) -> (Arc<Admin>, Arc<Telemetry>) {
    let (admin, telemetry, _) = admin_with("", now);
    (admin, telemetry)
}

/// With further keys in `[admin]`, and where its reloads come out.
fn admin_with(keys: &str, now: Instant) -> (Arc<Admin>, Arc<Telemetry>, Reloads) {
    let text = include_str!("../../../docs/examples/gateway-a.toml");
    let text = text.replace("[admin]\n", &format!("[admin]\n{keys}\n"));
    let gateway = config::Gateway::parse(Path::new("etc/a.toml"), &text).unwrap();
    let policy = Policy::parse(Path::new("policy.toml"), POLICY).unwrap();
    let telemetry = Arc::new(Telemetry::new(now));
    let (requests, reloads) = crate::requests::channel();
    let (recorder, seen) = (Arc::default(), Arc::clone(&telemetry));
    (Arc::new(Admin::new(&gateway, &policy, seen, recorder, requests, now)), telemetry, reloads)
}

fn counted(snapshot: &mut Snapshot) {
    snapshot.lan_received_packets = 1000;
    snapshot.lan_received_bytes = 1_250_000;
    snapshot.wan_sent_packets = 1100;
    snapshot.wan_sent_bytes = 1_375_000;
    snapshot.flows = [3, 1];
    snapshot.flows_opened = [5, 2];
    snapshot.flows_failed = [0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    snapshot.flows_unpaired = 1;
    (snapshot.retention_packets, snapshot.retention_room_packets) = (16, 7000);
    (snapshot.retention_bytes, snapshot.retention_limit_bytes) = (65_536, 31 << 20);
    (snapshot.retention_flows, snapshot.retention_orphans) = (2, 1);
    (snapshot.flows_restoring, snapshot.flows_restored, snapshot.flows_unrestored) = (2, 3, 1);
    snapshot.flows_remembered = 4;
    snapshot.buffers = 12;
    snapshot.buffer_bytes = 49_152;
    snapshot.timers = 9;
    snapshot.path_drop = [90_000, 120_000, 163_000];
    snapshot.path_drop_long_run = [0, 1_000, 20_000_000];
    snapshot.path_packets = 400_000;
    snapshot.path_burst = [1_000, 1_049, 1_500];
    snapshot.path_congestive = 500_000_000;
    snapshot.path_rtt_micros = [20_000, 20_125, 80];
    snapshot.path_delivered_bytes = 687_500;
    snapshot.path_delivered_peak_bytes = 12_500_000;
    snapshot.path_reordered = 12_000_000;
    snapshot.path_extent_packets = [3, 7];
    snapshot.path_extent_micros = [200, 1_250];
    snapshot.path_age_micros = 20_000;
    snapshot.lane_state[..2].copy_from_slice(&[1, 4]);
    snapshot.lane_share[0] = 1_000_000_000;
    snapshot.lane_drop[..2].copy_from_slice(&[120_000, 210_000_000]);
    snapshot.lane_rtt_micros[..2].copy_from_slice(&[20_125, 21_000]);
    snapshot.lane_leaves[1] = 2;
    let [bulk, default, ..] = &mut snapshot.classes;
    bulk.sent_data = 1000;
    bulk.sent_parity = 250;
    bulk.decoded = 17;
    bulk.backlog_bytes = 3 << 20;
    bulk.rtt_micros = 20_125;
    default.sent_data = 12;
    default.sent_repairs = 2;
    (0..90).for_each(|_| bulk.queueing.note(200));
    (0..90).for_each(|_| bulk.completion.note(20_400));
}

pub(crate) async fn listening(admin: &Arc<Admin>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(Arc::clone(admin).serve(listener));
    address
}

#[tokio::test]
async fn status_travels_whole_and_is_shown() {
    let start = Instant::now();
    let (admin, telemetry) = admin(start);
    telemetry.session(SessionState::Connecting, Some("timed out".to_owned()), start);
    telemetry.session(SessionState::Up, None, start + Duration::from_secs(1));
    let mut snapshot = Snapshot::default();
    counted(&mut snapshot);
    telemetry.plane().store(&snapshot);
    admin.tick(start + Duration::from_secs(2));
    telemetry.policy_adopted(UNIX_EPOCH + Duration::from_millis(1_700_000_000_999));
    telemetry.policy_refused();

    let status = admin.status(start + Duration::from_secs(65));
    assert_eq!(status.rates.lan_received_bits, 5_000_000.0);
    assert_eq!(status.rates.wan_sent_packets, Some(550.0));
    assert_eq!(status.rates.decoded, Some(8.5));
    assert_eq!(status.session.rtt, Some(0.020125));
    let shown = status.to_string();
    let expected = "\
longhaul 0.1.0, site a, up for 1 min 5 s
peer     b at 10.9.0.2:14791, link provisioned for 1 Gbit/s
session  up for 1 min 4 s, 1 set up, RTT 20.1 ms
         last error: timed out, 1 min 5 s ago
path     drop 0.012 % (0.0090 % to 0.016 %; 0.00010 % in the long run), bursts of 1.0 (1.0 to 1.5), 50 % congestive
         RTT 20.1 ms, at least 20.0 ms, variation 80.0 us
         5.50 Mbit/s arrive, 100 Mbit/s at most of late; last report 0.0 s ago
         1.2 % out of order by up to 7 packets or 1.25 ms, 0 % twice, 0 % marked CE
lane 0   100 % of packets, drop 0.012 %, RTT 20.1 ms, in use
lane 1   0 % of packets, drop 21 %, RTT 21.0 ms, left, loses more than others; left 2 times
flows    3 near, 1 far, 1 unpaired; 7 opened, 3 failed
survive  64 KiB of 31 MiB retained in 16 packets for 2 flows, 1 of the process before
         after a process: 3 restored, 1 ended, 2 to come; 4 ended flows kept in mind
held     12 buffers with 48 KiB, 9 timers
policy   etc/policy.toml, generation 2, read 2023-11-14T22:13:20Z; 1 refused

                               bit/s     packets/s
from local hosts                 5 M           500
to local hosts                     0             0
to the peer                   5.50 M           550
from the peer                      0             0
sent again                                       1
recovered from parity                         8.50

class    scheme          backlog in flight     sent    again   parity  received  decoded   double   lost
bulk     mds(32,8)         3 MiB       0 B      1 k        0      250         0       17        0      0
default  sr                  0 B       0 B       12        2        0         0        0        0      0
";
    assert_eq!(shown, expected, "got:\n{shown}");

    let text = fetch(&listening(&admin).await.into(), "/status").await.unwrap();
    let back: Status = serde_json::from_str(&text).unwrap();
    assert_eq!((&back.path, &back.lanes), (&status.path, &status.lanes));
    assert_eq!(back.path.map(|path| path.drop), Some([90e-6, 120e-6, 163e-6]));
    assert_eq!((back.site.as_str(), back.flows, &back.classes), ("a", status.flows, &status.classes));
}

#[tokio::test]
async fn metrics_follow_counters_and_policy() {
    let (admin, telemetry) = admin(Instant::now());
    let address = listening(&admin).await;
    let plane = telemetry.plane();
    let mut snapshot = Snapshot::default();
    counted(&mut snapshot);
    plane.store(&snapshot);
    let text = fetch(&address.into(), "/metrics").await.unwrap();
    assert!(text.contains("longhaul_flows{site=\"a\",peer=\"b\",side=\"near\"} 3\n"), "{text}");
    assert!(
        text.contains("longhaul_stream_decoded_packets_total{site=\"a\",peer=\"b\",class=\"bulk\"} 17\n"),
        "{text}"
    );
    snapshot.flows = [1, 0];
    plane.store(&snapshot);
    // The class of the name that stays keeps its cell; nothing else of a class is told.
    let next = Policy::default();
    let cells = Cells::new(&Policy::parse(Path::new("policy.toml"), POLICY).unwrap()).next(&next);
    admin.set_policy(&next, &cells);
    let text = fetch(&address.into(), "/metrics").await.unwrap();
    assert!(text.contains("longhaul_flows{site=\"a\",peer=\"b\",side=\"near\"} 1\n"), "{text}");
    assert!(!text.contains("class=\"bulk\""), "{text}");
    let sent = "longhaul_stream_sent_data_packets_total{site=\"a\",peer=\"b\",class=\"default\"} 12\n";
    assert!(text.contains(sent), "{text}");
    let classes = admin.status(Instant::now()).classes;
    assert_eq!(
        classes.iter().map(|class| (class.name.as_str(), class.sent)).collect::<Vec<_>>(),
        [("default", 12)]
    );
}

/// The status line and the text of what a raw request is answered with.
async fn raw(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

const POST: &str = "POST /reload HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn a_reload_is_passed_on_and_its_answer_back() {
    let (admin, _, mut reloads) = admin_with("", Instant::now());
    let address = listening(&admin).await;
    let answer = |adopted| Answer {
        identity: Vec::new(),
        adopted,
        file: Some("etc/policy.toml".into()),
        generation: 3,
        differences: vec!["class bulk: removed".to_owned()],
        problems: "no\n".to_owned(),
        findings: Vec::new(),
    };
    for adopted in [true, false] {
        let asked = tokio::spawn(async move { super::reload(&address.into()).await });
        reloads.recv().await.unwrap().send(answer(adopted)).unwrap();
        assert_eq!(asked.await.unwrap().unwrap(), answer(adopted));
    }
    assert_eq!(
        answer(true).to_string(),
        "etc/policy.toml is the policy now, generation 3\n  class bulk: removed\n"
    );
    assert_eq!(answer(false).to_string(), "etc/policy.toml is refused; the policy stays at generation 3\n");
    drop(reloads);
    let stopping = super::reload(&address.into()).await.unwrap_err().to_string();
    assert_eq!(stopping, format!("{address} answers 503 Service Unavailable: the gateway is stopping"));
}

#[tokio::test]
async fn a_reload_is_refused_to_others_to_pages_and_to_other_methods() {
    let (admin, _, mut reloads) = admin_with("", Instant::now());
    let address = listening(&admin).await;
    let page = POST.replace("host: localhost", "host: localhost\r\norigin: http://example.com");
    let got = POST.replace("POST", "GET");
    for (request, answer) in [(page, "HTTP/1.1 403 "), (got, "HTTP/1.1 405 ")] {
        let text = raw(address, &request).await;
        assert!(text.starts_with(answer), "{request:?}: {text}");
    }
    assert!(raw(address, &POST.replace("POST", "PUT")).await.contains("\r\nallow: POST\r\n"));
    // This machine is none of those from which it is taken.
    let (admin, ..) = admin_with("reload_from = [\"10.0.0.0/8\"]", Instant::now());
    let text = raw(listening(&admin).await, POST).await;
    assert!(text.starts_with("HTTP/1.1 403 ") && text.contains("not taken from 127.0.0.1"), "{text}");
    assert!(reloads.try_recv().is_err(), "nobody was asked");
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let (admin, _) = admin(Instant::now());
    let address = listening(&admin).await;
    let missing = fetch(&address.into(), "/etc/passwd").await;
    assert!(matches!(missing, Err(FetchError::Status { status: StatusCode::NOT_FOUND, .. })), "{missing:?}");
    for (request, answer) in [
        ("POST /status HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n", "HTTP/1.1 405 "),
        ("HEAD /status HTTP/1.1\r\nhost: localhost\r\n\r\n", "HTTP/1.1 200 "),
        ("nonsense\r\n\r\n", "HTTP/1.1 400 "),
        ("GET /status HTTP/1.1\r\nhost: localhost\r\nHost: evil.example\r\n\r\n", "HTTP/1.1 400 "),
        ("GET /status HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n", "HTTP/1.1 400 "),
        ("GET / HTTP/1.1\r\nhost: evil.example\r\nhost: localhost\r\n\r\n", "HTTP/1.1 400 "),
    ] {
        let text = raw(address, request).await;
        assert!(text.starts_with(answer), "{request:?}: {text}");
        assert!(!request.starts_with("HEAD") || text.ends_with("\r\n\r\n"), "{text}");
    }
}

/// Flows as a data-plane thread shows them: one that is held back, and an idle one.
fn show_flows(telemetry: &Telemetry) {
    let flow = |number: u8, class, state| FlowReport {
        side: if number == 1 { FlowSide::Near } else { FlowSide::Far },
        requester: [10, 0, 0, number].into(),
        requester_qpn: Some(Qpn::new(0x10 + u32::from(number))),
        target: [10, 0, 1, number].into(),
        target_qpn: Qpn::new(0x20 + u32::from(number)),
        class,
        state,
    };
    let policy = Some(Arc::new(Policy::parse(Path::new("policy.toml"), POLICY).unwrap()));
    let flows = [flow(1, 0, FlowState::HeldBack), flow(2, 1, FlowState::Idle)].into();
    telemetry.flows_of_thread().send_replace(ShownFlows { policy, flows, ..ShownFlows::default() });
}

#[tokio::test]
async fn flows_are_found_by_host_class_and_state() {
    let (admin, telemetry) = admin(Instant::now());
    show_flows(&telemetry);
    let address = listening(&admin).await;
    for (query, numbers) in [
        ("", &[0x21, 0x22][..]),
        ("?class=bulk", &[0x21]),
        ("?state=idle", &[0x22]),
        ("?host=10.0.1.1&state=held_back", &[0x21]),
        ("?class=bulk&state=idle", &[]),
        ("?peer=b&most=1", &[0x21]),
        ("?p%65er=%62&class=%62ulk", &[0x21]),
    ] {
        let (status, text) = asked(address, &format!("/flows{query}"), "host: localhost\r\n").await;
        let list: FlowList = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
        let found: Vec<_> = list.flows.iter().map(|flow| flow.target_qpn).collect();
        assert_eq!((status, &found[..]), (200, numbers), "{query}");
    }
    // Whoever mistypes a name is told, rather than that there are none.
    for query in [
        "?class=bluk",
        "?class=bluk%2F64KiB",
        "?state=%FF",
        "?state=busy",
        "?host=x",
        "?most=x",
        "?sort=class",
    ] {
        let (status, text) = asked(address, &format!("/flows{query}"), "host: localhost\r\n").await;
        let hint =
            if query.contains("class=bluk") { "/status lists those of the policy" } else { "state=STATE" };
        assert!(status == 400 && text.contains(hint), "{query}: {status} {text}");
    }
}

#[tokio::test]
async fn silent_connections_do_not_keep_others_out() {
    let (admin, _) = admin(Instant::now());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(admin.serve_within(listener.into(), Duration::from_millis(20), true));
    let mut silent = Vec::new();
    for _ in 0..2 * CONNECTIONS {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /status HTTP/1.1\r\n").await.unwrap();
        silent.push(stream);
    }
    // On a loaded machine even an honest request may be cut off at so short a time, so it may try
    // again; while the silent ones held their places no try would succeed.
    let mut answer = fetch(&address.into(), "/status").await;
    for _ in 0..50 {
        if answer.is_err() {
            answer = fetch(&address.into(), "/status").await;
        }
    }
    assert!(answer.is_ok(), "{answer:?}");
    for mut stream in silent {
        let mut text = Vec::new();
        // Closed by the gateway, whether by a reset or in order.
        let _ = stream.read_to_end(&mut text).await;
        assert!(text.is_empty(), "{text:?}");
    }
}

/// Nobody has to wait for others' time to be over.
#[tokio::test]
async fn idle_connections_do_not_delay_a_scrape() {
    let (admin, _) = admin(Instant::now());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let never = Duration::from_secs(100_000);
    tokio::spawn(admin.serve_within(listener.into(), never, true));
    let mut idle = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /status HTTP/1.1\r\n").await.unwrap();
        idle.push(stream);
    }
    for _ in 0..3 {
        let answer = timeout(Duration::from_secs(60), fetch(&address.into(), "/metrics")).await;
        assert!(answer.expect("no place is free").is_ok());
    }
    // Those that came last still may ask.
    let last = idle.last_mut().unwrap();
    last.write_all(b"host: localhost\r\n\r\n").await.unwrap();
    let mut text = String::new();
    last.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}

/// Who asks a round trip after it has come is heard, though twice as many as there are places came
/// after it.
#[tokio::test]
async fn a_scrape_among_idle_connections_is_answered_at_the_first_try() {
    let (admin, _) = admin(Instant::now());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // All of them are in the kernel's queue before the first one is taken.
    let connect = || std::net::TcpStream::connect(address).unwrap();
    let before: Vec<_> = (0..CONNECTIONS / 2).map(|_| connect()).collect();
    let scrape = connect();
    let after: Vec<_> = (0..2 * CONNECTIONS).map(|_| connect()).collect();
    tokio::spawn(admin.serve_within(listener.into(), Duration::from_secs(100_000), true));
    tokio::time::sleep(Duration::from_millis(10)).await;
    scrape.set_nonblocking(true).unwrap();
    let mut scrape = TcpStream::from_std(scrape).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut text = String::new();
    scrape.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    drop((before, after));
}

/// A class whose bulk stream was chosen for, and whose prompt stream waits for something.
#[tokio::test]
async fn choices_are_shown_with_their_reasons() {
    use reliability::link::Link;
    use reliability::selector::{Allowed, Bucket, Config, Estimate, Load, Objective, Selector};
    use reliability::stream::Scheme;

    use crate::choose::{Choice, Missing};

    let now = Instant::now();
    let (admin, telemetry) = admin(now);
    let auto = POLICY.replace("\"sr\"", "\"auto\"\ndivide = []");
    let auto = Policy::parse(Path::new("policy.toml"), &auto).unwrap();
    admin.set_policy(&auto, &Cells::new(&auto));
    let objective =
        Objective { percentile: 99.9, max_overhead: 0.5, max_block: u8::MAX, allowed: Allowed::ALL };
    let link = Link::new(10_000_000_000, Duration::from_millis(25), 0.01, 1398);
    let estimate = Estimate { link, drop_low: 0.009, drop_high: 0.011 };
    let mut selector = Selector::new(objective, Config::default());
    let decision = selector.evaluate(Bucket::of(1 << 20), &Load::default(), &estimate, now).clone();
    let scheme = decision.chosen.candidate;
    let bulk = Choice {
        class: "default".to_owned(),
        stream: "bulk",
        objective,
        scheme: Some(scheme.scheme()),
        since: Some(now),
        decision: Some(decision),
        missing: None,
    };
    let begins = Scheme::Hybrid { k: 32, m: 8, depth: 1 };
    let missing = Some(Missing::Losses { packets: 70 });
    let prompt = Choice { stream: "prompt", scheme: Some(begins), decision: None, missing, ..bulk.clone() };
    telemetry.set_choices(vec![prompt, bulk]);

    let status = admin.status(now + Duration::from_secs(65));
    let why = status.why();
    let lines: Vec<&str> = why.lines().collect();
    assert_eq!(lines[0], "class bulk: mds(32,8), as the policy file says", "{why}");
    assert!(lines[1].starts_with("class default: auto, for 99.9 % of messages"), "{why}");
    assert_eq!(lines[2], "  prompt  hybrid(32,8), for 1 min 5 s", "{why}");
    assert_eq!(lines[3], "    because   nothing is decided yet: sessions begin with it", "{why}");
    assert_eq!(lines[4], "    missing   70 packets are too few to tell the loss rate", "{why}");
    assert_eq!(lines[5], format!("  bulk    {scheme}, for 1 min 5 s"), "{why}");
    assert!(lines[6].starts_with("    for       messages of 256 KiB to 1 MiB: 99.9 % within "), "{why}");
    assert!(lines[7].starts_with("    else      ") && lines[7].contains(" with overhead "), "{why}");
    assert_eq!(
        lines[8],
        "    link      10 Gbit/s, RTT 25.0 ms, loss 1.0 % (0.90 % to 1.1 %) in runs of 1.0, packets of 1398 B"
    );
    assert_eq!(lines[9], "    because   it is the first choice; decided 1 min 5 s ago", "{why}");
    assert_eq!(lines.len(), 10, "{why}");
    assert!(status.to_string().contains(&format!("auto: {scheme}")), "{status}");

    let address = listening(&admin).await;
    let back: Status = serde_json::from_str(&fetch(&address.into(), "/status").await.unwrap()).unwrap();
    assert_eq!(back.choices.len(), 2);
    assert_eq!(back.choices[1].expected.as_ref().unwrap().scheme, scheme.to_string());
    let metrics = fetch(&address.into(), "/metrics").await.unwrap();
    let series = [
        "{site=\"a\",peer=\"b\",class=\"bulk\",stream=\"bulk\",scheme=\"mds(32,8)\"} 1".to_owned(),
        "{site=\"a\",peer=\"b\",class=\"default\",stream=\"prompt\",scheme=\"hybrid(32,8)\"} 1".to_owned(),
        format!("{{site=\"a\",peer=\"b\",class=\"default\",stream=\"bulk\",scheme=\"{scheme}\"}} 1"),
    ];
    for series in series {
        assert!(metrics.lines().any(|line| line == format!("longhaul_scheme_info{series}")), "{metrics}");
    }
}

/// Prompt records are repaired in a class of scheme `none` as well.
#[test]
fn the_scheme_in_force_is_the_streams_own() {
    let text = "[[class]]\nname = \"loose\"\nscheme = \"none\"\n";
    let policy = Policy::parse(Path::new("policy.toml"), text).unwrap();
    let metrics = choice::metric("a", "b", &policy, &[]);
    for (stream, scheme) in [("prompt", "sr"), ("bulk", "none")] {
        let labels = format!("class=\"loose\",stream=\"{stream}\",scheme=\"{scheme}\"");
        assert!(metrics.lines().any(|line| line.contains(&labels)), "{metrics}");
    }
}

/// Asks with these headers, and returns the status and all of the answer.
async fn asked(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\n{headers}\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

#[tokio::test]
async fn requests_for_a_foreign_name_are_refused() {
    let (admin, ..) = admin_with("hosts = [\"gw.example\"]", Instant::now());
    let address = listening(&admin).await;
    for (host, code) in [("gw.example:9464", 200), ("127.0.0.1", 200), ("evil.example", 421)] {
        for path in ["/", "/status", "/metrics", "/page.js"] {
            let (answer, text) = asked(address, path, &format!("Host: {host}\r\n")).await;
            assert_eq!(answer, code, "{host} {path}: {text}");
        }
    }
}

#[tokio::test]
async fn with_a_token_only_the_page_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    let token = Token::read(&file).unwrap();
    let (admin, ..) = admin(Instant::now());
    let admin = Arc::new(Arc::into_inner(admin).unwrap().with_token(Some(token.clone())));
    let address = listening(&admin).await;
    for (path, code) in [("/", 200), ("/page.css", 200), ("/status", 401), ("/metrics", 401), ("/none", 401)]
    {
        assert_eq!(asked(address, path, "Host: localhost\r\n").await.0, code, "{path}");
    }
    let wrong = "Host: localhost\r\nAuthorization: Bearer 0123456789abcdeg\r\n";
    assert_eq!(asked(address, "/status", wrong).await.0, 401);
    fetch(&Endpoint::new(Address::Tcp(address), Some(token), None).unwrap(), "/status").await.unwrap();
    let refused = fetch(&address.into(), "/status").await.unwrap_err().to_string();
    assert!(refused.contains("401") && refused.contains("admin.token"), "{refused}");
}

/// Who may open the socket is asked for nothing, and may have the files read again.
#[tokio::test]
async fn the_socket_asks_for_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let (path, token) = (folder.path().join("admin.sock"), folder.path().join("token"));
    std::fs::write(&token, "0123456789abcdef").unwrap();
    let keys = format!(
        "reload_from = [\"192.0.2.0/24\"]\nsocket = {path:?}\ntoken = {token:?}\nhosts = [\"gw.example\"]"
    );
    let (admin, _, mut reloads) = admin_with(&keys, Instant::now());
    let (socket, token, _) = Doors::open(admin.config.admin.as_ref()).unwrap().into_parts();
    assert!(token.is_some());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let serving = admin.start(Some(listener.into()), socket).unwrap();
    assert_eq!(serving.len(), 2);
    let endpoint = Endpoint::new(Address::Unix(path), None, None).unwrap();
    let status: Status = serde_json::from_str(&fetch(&endpoint, "/status").await.unwrap()).unwrap();
    assert_eq!(status.site, "a");
    tokio::spawn(async move { super::reload(&endpoint).await });
    assert!(reloads.recv().await.is_some());
}

/// Samples are a second apart, however many listeners there are: what is counted ten times a second
/// shows in each rate.
#[tokio::test]
async fn rates_are_known_beside_a_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let (admin, telemetry, _) = admin_with(&format!("socket = {path:?}"), Instant::now());
    let (socket, ..) = Doors::open(admin.config.admin.as_ref()).unwrap().into_parts();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    admin.start(Some(listener.into()), socket).unwrap();
    telemetry.session(SessionState::Up, None, Instant::now());
    let (plane, mut snapshot) = (telemetry.plane(), Snapshot::default());
    let mut known = 0;
    for round in 0..50 {
        snapshot.wan_sent_bytes += 1000;
        plane.store(&snapshot);
        sleep(Duration::from_millis(100)).await;
        let bits = admin.status(Instant::now()).rates.wan_sent_bits;
        known += usize::from(round >= 25 && bits.is_some_and(|bits| bits > 0.0));
    }
    assert_eq!(known, 25, "rounds with a rate");
}

#[tokio::test]
async fn a_take_over_goes_by_the_socket_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let (admin, _, _) = admin_with(&format!("socket = {path:?}"), Instant::now());
    let (socket, ..) = Doors::open(admin.config.admin.as_ref()).unwrap().into_parts();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    admin.start(Some(listener.into()), socket).unwrap();
    let take =
        POST.replace("/reload", "/take-over").replace("content-length", "upgrade: other\r\ncontent-length");
    assert!(raw(address, &take).await.starts_with("HTTP/1.1 403 "));
    let by_socket = async |request: &str| {
        let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    assert!(by_socket(&take.replace("POST", "GET")).await.starts_with("HTTP/1.1 405 "));
    // A browser that asks over SSH, for a name that somebody has made point there.
    assert!(by_socket(&take.replace("localhost", "evil.example")).await.starts_with("HTTP/1.1 421 "));
    assert!(by_socket(&take).await.starts_with("HTTP/1.1 400 "));
    // A gateway that hands nothing over.
    let take = take.replace("upgrade: other", &format!("upgrade: {}", crate::upgrade::NAME));
    assert!(by_socket(&take).await.starts_with("HTTP/1.1 409 "));
}

#[tokio::test]
async fn the_page_asks_nobody_else() {
    let (admin, _) = admin(Instant::now());
    let address = listening(&admin).await;
    for (path, kind) in [("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")] {
        let (code, text) = asked(address, path, "Host: localhost\r\n").await;
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let head = head.to_lowercase();
        assert_eq!(code, 200, "{path}");
        for piece in [kind, "default-src 'none'", "frame-ancestors 'none'", "nosniff", "no-store"] {
            assert!(head.contains(piece), "no {piece} for {path} in\n{head}");
        }
        assert!(!head.contains("unsafe-"), "{head}");
        // Nothing from elsewhere, and no text taken for HTML.
        for piece in [
            "http:",
            "https:",
            "//",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            let mut code = body.lines().filter(|line| !line.trim_start().starts_with("// "));
            assert!(!code.any(|line| line.contains(piece)), "{piece} in {path}");
        }
    }
}

/// Runs Chromium on the page, with text that would be taken for HTML.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs chromium: test-all has it"]
async fn a_browser_shows_the_page() {
    let start = Instant::now();
    let (admin, telemetry) = admin(start);
    telemetry.session(SessionState::Up, None, start);
    let mut snapshot = Snapshot::default();
    counted(&mut snapshot);
    let plane = telemetry.plane();
    tokio::spawn(async move {
        loop {
            snapshot.classes[0].completion.note(31_000);
            snapshot.wan_sent_bytes += 7_500_000;
            snapshot.wan_received_bytes += 2_000_000;
            plane.store(&snapshot);
            sleep(Duration::from_millis(100)).await;
        }
    });
    show_flows(&telemetry);
    telemetry.events().push(crate::events::EventKind::SessionUp, "with b");
    telemetry
        .events()
        .push(crate::events::EventKind::FlowFailed, "<img src=x onerror=document.title='taken'>");
    let address = listening(&admin).await;
    // Two of the listener's samples, for there to be rates.
    sleep(Duration::from_millis(2100)).await;
    let url = format!("http://{address}/");
    let page = tokio::task::block_in_place(|| testbed::browser::page(&url, 3000)).unwrap();
    for piece in [
        "a - b",
        ">up</span>",
        "mds(32,8)",
        "0.012 %",
        ">took (99 %)<",
        "ms (4",
        ">held back<",
        "session_up",
        "&lt;img src=x",
    ] {
        assert!(page.contains(piece), "no {piece} in\n{page}");
    }
    assert!(!page.contains("<img"), "{page}");
}
