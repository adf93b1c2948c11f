//! Connection management on its way between two sites.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::panic,
    reason = "test code"
)]

#[allow(dead_code, reason = "each test uses some of it")]
mod sites;

use std::path::Path;
use std::time::Duration;

use config::Policy;
use roce::cm::{Mad, Message, Timeout};
use roce::ip::Datagram;
use roce::wire::Packet;
use sites::{STEP, Sites};
use splice::Settings;

/// A REQ, from 10.0.0.1, and a REP, among what rping sends.
const REQ: usize = 0;
const REP: usize = 1;

fn frames() -> Vec<Vec<u8>> {
    let lines = include_str!("../../roce/tests/golden/rping.txt").lines();
    let bytes = |line: &str| {
        let digits = line.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
        digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect()
    };
    lines.filter(|line| !line.starts_with('#')).map(bytes).collect()
}

/// What a REQ or REP says of ACK timeouts.
fn announced(frame: &[u8]) -> Timeout {
    let datagram = Datagram::parse(frame).unwrap();
    match Mad::parse(&Packet::parse(datagram.transport).unwrap()).unwrap().message {
        Message::Req(req) => req.local_ack_timeout(),
        Message::Rep(rep) => rep.target_ack_delay(),
        other => panic!("{other:?}"),
    }
}

/// The frame that leaves at the other site.
fn cross(sites: &mut Sites, from: usize, frame: &[u8]) -> Vec<u8> {
    sites.gateways[from].handle_lan(&Datagram::parse(frame).unwrap(), sites.now);
    sites.cross();
    let mut out = vec![0; 10_000];
    let len = sites.gateways[1 - from].poll_lan(sites.now, &mut out).unwrap();
    out[..len].to_vec()
}

#[test]
fn ack_timeouts_are_raised_to_what_the_link_takes() {
    let frames = frames();
    for (rtt, [request, reply]) in [(1, [17, 15]), (100, [17, 17]), (300, [19, 19])] {
        let mut sites = Sites::new(55410, |settings| settings);
        for gateway in &mut sites.gateways {
            gateway.session_up(Duration::from_millis(rtt), 1400, 1, &[], sites.now);
        }
        for (from, number, code) in [(0, REQ, request), (1, REP, reply)] {
            let passed = cross(&mut sites, from, &frames[number]);
            assert_eq!(announced(&passed), Timeout::new(code), "{rtt} ms");
            let [before, after] = [&frames[number], &passed].map(|frame| Datagram::parse(frame).unwrap());
            let differ = before.transport.iter().zip(after.transport).filter(|(one, other)| one != other);
            assert!(differ.count() <= 1 && before.transport.len() == after.transport.len());
        }
    }
}

/// UD does without repairs where it is told to, but nobody connects without its REQ.
#[test]
fn connection_management_is_repaired_in_any_class() {
    let text = "[[class]]\nname = \"default\"\nscheme = \"none\"\n";
    let policy = std::sync::Arc::<Policy>::from(Policy::parse(Path::new("policy.toml"), text).unwrap());
    let mut sites = Sites::new(55410, |settings| Settings { policy: policy.clone(), ..settings });
    let frames = frames();
    sites.gateways[0].handle_lan(&Datagram::parse(&frames[REQ]).unwrap(), sites.now);
    sites.cross_but(|site, _| site == 0);
    let mut out = vec![0; 10_000];
    for _ in 0..50_000 {
        sites.now += STEP;
        sites.cross();
        if let Some(len) = sites.gateways[1].poll_lan(sites.now, &mut out) {
            assert_eq!(announced(&out[..len]), announced(&frames[REQ]));
            return;
        }
    }
    panic!("it never came");
}
