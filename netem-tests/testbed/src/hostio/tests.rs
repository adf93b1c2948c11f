//! Hosts on real sockets over loopback: directly, and through the emulator.

use std::net::Ipv4Addr;

use roce::wire::PathMtu;

use super::*;
use link_emulator::{Port, Relay, RelaySpec, Side};
use soft_nic::QpConfig;

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn config(role: Role, gateway: SocketAddr, workload: &Workload) -> EndpointConfig {
    let [a, b] = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
    let (ip, remote_ip) = if role == Role::Client { (a, b) } else { (b, a) };
    EndpointConfig { bind: loopback(), gateway, ip, remote_ip, role, workload: workload.clone() }
}

fn run_direct(workload: &Workload) -> (Report, Report) {
    let (client, server) = (Bound::new(loopback()).unwrap(), Bound::new(loopback()).unwrap());
    let (to_server, to_client) = (server.address().unwrap(), client.address().unwrap());
    let server = Endpoint::start_on(server, &config(Role::Server, to_client, workload)).unwrap();
    let client = Endpoint::start_on(client, &config(Role::Client, to_server, workload)).unwrap();
    run_pair(client, server).unwrap()
}

fn run_relayed(workload: &Workload, link: &str) -> (Report, Report, link_emulator::EmulatorStats) {
    let side = || Side { listen: loopback(), peer: None, learn: true };
    let (client, server) = (Bound::new(loopback()).unwrap(), Bound::new(loopback()).unwrap());
    let b = Side { peer: Some(server.address().unwrap()), ..side() };
    let link = link.parse().unwrap();
    let spec =
        RelaySpec { ports: vec![Port { a: side(), b }], lanes: 1, a_to_b: link, b_to_a: link, seed: 7 };
    let relay = Relay::start(&spec).unwrap();
    let (for_a, for_b) = relay.addresses(0).unwrap();
    let server = Endpoint::start_on(server, &config(Role::Server, for_b, workload)).unwrap();
    let client = Endpoint::start_on(client, &config(Role::Client, for_a, workload)).unwrap();
    let (client, server) = run_pair(client, server).unwrap();
    (client, server, relay.stop().unwrap())
}

fn all_operations(messages: u64) -> Workload {
    Workload {
        qps: 3,
        mix: Mix::ALL,
        message: 9001,
        limit: Limit::Messages(messages),
        depth: 5,
        qp: QpConfig { timeout: Some(Duration::from_millis(100)), ..QpConfig::default() },
        ..Workload::default()
    }
}

#[test]
fn all_operations_directly() {
    let workload = all_operations(200);
    let (client, server) = run_direct(&workload);
    assert!(client.is_clean() && server.failures.is_empty() && server.corrupt == 0, "{client:?} {server:?}");
    assert_eq!(client.messages, 600);
    assert_eq!(client.latency.len(), 600);
    let receives = (0..3).flat_map(|qp| (0..200).map(move |sequence| (qp, sequence)));
    let receives =
        receives.filter(|(qp, sequence)| workload.operation(*qp, *sequence).consumes_receive()).count();
    assert_eq!(server.messages, receives as u64);
    assert_eq!(client.refused + server.refused, 0);
}

#[test]
fn all_operations_through_a_lossy_relay() {
    let (client, server, relay) = run_relayed(&all_operations(60), "delay 200us loss 1% duplicate 0.5%");
    assert!(client.is_clean() && server.corrupt == 0, "{client:?} {server:?}");
    assert_eq!(client.messages, 180);
    assert!(relay.a_to_b.link.lost > 0 && relay.b_to_a.link.lost > 0, "{relay:?}");
    let forward = relay.a_to_b;
    assert_eq!(forward.link.submitted, forward.received);
    assert_eq!(
        forward.forwarded + forward.no_peer + forward.send_full + forward.refused,
        forward.link.delivered
    );
}

#[test]
fn batches_through_a_perfect_relay() {
    let workload = Workload {
        qp: QpConfig { mtu: PathMtu::B4096, ..QpConfig::default() },
        limit: Limit::Messages(300),
        ..Workload::default()
    };
    let (client, _, relay) = run_relayed(&workload, "");
    assert!(client.is_clean(), "{client:?}");
    assert_eq!(client.bytes, 300 * 65536);
    assert_eq!((relay.a_to_b.link.submitted, relay.a_to_b.no_peer), (0, 0));
    assert_eq!(relay.a_to_b.forwarded, relay.a_to_b.received);
}

#[test]
fn a_client_without_a_server_gives_up() {
    let workload =
        Workload { patience: Duration::from_millis(60), limit: Limit::Messages(1), ..Workload::default() };
    let bound = Bound::new(loopback()).unwrap();
    let nowhere = Bound::new(loopback()).unwrap();
    let config = config(Role::Client, nowhere.address().unwrap(), &workload);
    let report = Endpoint::start_on(bound, &config).unwrap().join().unwrap();
    assert!(report.stalled && !report.is_clean());
    assert_eq!(report.messages, 0);
}

#[test]
fn errors_are_reported() {
    let mut workload = Workload { limit: Limit::Messages(1), ..Workload::default() };
    workload.qp.retry_cnt = 0;
    workload.qp.timeout = Some(Duration::from_millis(5));
    let nowhere = Bound::new(loopback()).unwrap();
    let config = config(Role::Client, nowhere.address().unwrap(), &workload);
    let report = Endpoint::start(&config).unwrap().join().unwrap();
    assert_eq!(report.failures, [(Status::RetryExceeded, 1)]);
    assert!(!report.stalled);
    let impossible = Workload { mix: Mix::default(), ..workload };
    let config = self::config(Role::Client, config.gateway, &impossible);
    assert!(matches!(Endpoint::start(&config), Err(EndpointError::Workload(_))));
}

#[test]
fn a_run_of_some_time_ends() {
    let workload = Workload {
        limit: Limit::Time(Duration::from_millis(80)),
        warmup: Duration::from_millis(20),
        verify: false,
        ..Workload::default()
    };
    let (client, _) = run_direct(&workload);
    assert!(client.is_clean() && client.messages > 0 && client.goodput() > 0.0);
}

#[test]
fn a_timeline_has_every_message_also_those_never_completed() {
    let workload = Workload { timeline: true, limit: Limit::Messages(20), depth: 4, ..Workload::default() };
    let (client, _) = run_direct(&workload);
    assert_eq!((client.messages, client.timeline.len()), (20, 20));
    assert!(client.timeline.iter().all(|span| span.completed.is_some_and(|at| at >= span.posted)));
    let nowhere = Bound::new(loopback()).unwrap();
    let qp = QpConfig { timeout: None, ..QpConfig::default() };
    let config = config(Role::Client, nowhere.address().unwrap(), &Workload { qp, ..workload });
    let client = Endpoint::start(&config).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let report = client.stop().unwrap();
    assert!(report.timeline.len() == 4 && report.timeline.iter().all(|span| span.completed.is_none()));
}

#[test]
fn the_servers_memory_is_where_the_client_expects_it() {
    let workload = all_operations(1);
    let (_, mut host) = (workload.target(), Host::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1));
    for region in [workload.target(), workload.source(), workload.counters()] {
        let len = usize::try_from(region.len).unwrap();
        assert_eq!(host.register(vec![0; len], soft_nic::Access::ALL), region);
    }
}
