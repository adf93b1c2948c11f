//! A gateway's snapshot with bytes changed, or any bytes in its place: it is read or refused,
//! without a panic, within bounded memory. What was read can be written, and goes on.
//!
//! The header is always made to fit: its checks would hide everything behind.
#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::site::{self, Site, TOTAL_BUFFER, WAN_PACKET};
use longhaul_fuzz::{Script, epoch, within};
use roce::ip::Datagram;
use splice::Gateway;

/// By `docs/configure.md#sizing`, as for the gateway itself: its buffers, streams and tables.
const BOUND: u64 = (3 * TOTAL_BUFFER + (8 << 20)) as u64;
const LANES: u8 = 2;
/// Changes of a snapshot, so that most of it stays.
const CHANGES: usize = 8;

fuzz_target!(|input: &[u8]| run(input));

fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let now = epoch();
    let mut snapshot = match script.u8() {
        how if how < 0xc0 => changed(usize::from(how & 15), &mut script),
        _ => [&[0; snapshot::HEADER][..], script.rest()].concat(),
    };
    snapshot::seal(&mut snapshot, snapshot::OLDEST);
    within(BOUND, "a snapshot that is read", || {
        let Ok(mut gateway) = Gateway::restore(site::settings(0, LANES), &snapshot, now) else { return };
        let again = gateway.snapshot(now).expect("what was read can be written");
        assert!(again.len() > snapshot::HEADER);
        go_on(gateway, now);
    });
}

/// The session is lost, and goes on or not. Timers run.
fn go_on(mut gateway: Gateway, mut now: Instant) {
    gateway.session_lost(now);
    turn(&mut gateway, now);
    let rtt = Duration::from_millis(2);
    if !gateway.session_resumed(rtt, WAN_PACKET, LANES, now) {
        let remembered: Vec<_> = gateway.remembered().collect();
        gateway.session_up(rtt, WAN_PACKET, LANES, &remembered, now);
    }
    for seconds in [0, 1, 600] {
        now += Duration::from_secs(seconds);
        turn(&mut gateway, now);
    }
}

/// Takes some of what there is to send, and runs the timers that are due.
fn turn(gateway: &mut Gateway, now: Instant) {
    let mut out = [0; 10_000];
    gateway.handle_timeout(now);
    for _ in 0..64 {
        let lan = gateway.poll_lan(now, &mut out);
        let wan = gateway.poll_wan(now, &mut out);
        if lan.is_none() && wan.is_none() {
            return;
        }
    }
}

/// The snapshot of a gateway that some packets of both sites' hosts have come to, with some bytes
/// changed, taken out or put in.
fn changed(packets: usize, script: &mut Script<'_>) -> Vec<u8> {
    let now = epoch();
    let mut sites = [0, 1].map(|here| Site::new(here, LANES, now));
    for _ in 0..packets {
        let from = script.u8() & 1;
        let addressing = site::addressing(script, from);
        let transport = site::roce(script);
        let [near, far] = &mut sites;
        let (here, there) = if from == 0 { (near, far) } else { (far, near) };
        here.gateway.handle_lan(&Datagram { addressing, transport: &transport }, now);
        cross(here, there, now);
        cross(there, here, now);
    }
    let [site, _] = &mut sites;
    let mut snapshot = site.gateway.snapshot(now).expect("no time lies far away");
    for _ in 0..CHANGES {
        if script.is_over() {
            break;
        }
        let place = snapshot::HEADER + usize::from(script.u16()) % (snapshot.len() - snapshot::HEADER + 1);
        match (script.u8() & 3, snapshot.get_mut(place)) {
            (0, _) => snapshot.insert(place, script.u8()),
            (1, Some(_)) => drop(snapshot.remove(place)),
            (_, Some(byte)) => *byte = script.u8(),
            _ => {}
        }
    }
    snapshot
}

/// Takes what one gateway has for the other there, and lets its hosts' packets lie.
fn cross(from: &mut Site, to: &mut Site, now: Instant) {
    from.wan(now, |packet, arrival| to.gateway.handle_wan(packet, arrival, now));
    to.lan(now, |_| {});
}
