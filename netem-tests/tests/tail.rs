//! The slowest of many messages under losses, in virtual time.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test code, also where no function is a test"
)]

use std::time::Duration;

use linksim::impair::LinkSpec;
use netem_tests::host::QpConfig;
use netem_tests::sim::{Connection, Life, Op, Scenario, Work, World};
use roce::wire::{PathMtu, Psn};
use splice::Settings;

const RATE: u64 = 1_000_000_000;
const RTT: Duration = Duration::from_millis(25);
/// Bytes of each message; a packet of 9000 bytes holds less than an eighth of it.
const MESSAGE: u32 = 64 << 10;
const FLOWS: usize = 64;
const MESSAGES: usize = 40;
/// While the MTU of the path is looked for, and until the host has moved to the groups of those
/// that were answered, 0.5 s after its first answer. One message of every fifth flow takes a third
/// longer then, once.
const FIRST: usize = 16;

/// One message after the other on each of the flows, over packets of `mtu` bytes of which such a
/// share is lost each way; the times, in order.
fn times(seed: u64, mtu: usize, loss: &str) -> Vec<Duration> {
    let settings = Settings { packet_overhead: 66, rtt: RTT, ..Settings::new(Vec::new(), RATE, mtu - 52) };
    let mut scenario = Scenario::new(seed, settings);
    let link: LinkSpec = format!("delay 12500us loss {loss} rate 1gbit").parse().unwrap();
    scenario.wan = [link; 2];
    scenario.lan = "delay 20us rate 20gbit".parse().unwrap();
    let work = Work { ops: vec![Op::Write(MESSAGE, None); MESSAGES], depth: 1, ..Work::default() };
    let life = Life { psn: [Psn::new(7); 2], work: [work, Work::default()], ..Life::default() };
    let qp = QpConfig { mtu: PathMtu::B4096, ..QpConfig::default() };
    scenario.connections = vec![Connection { hosts: [0, 0], qp, lives: vec![life] }; FLOWS];
    let report = World::new(scenario).unwrap().run().unwrap();
    let mut times: Vec<_> =
        report.times.chunks(MESSAGES).flat_map(|times| times[FIRST..].iter().copied()).collect();
    times.sort();
    times
}

/// Some eight packets carry a message, so eight or nine in a thousand messages lose one. With parts
/// of several messages in a packet, or its ACK in several ones, it would be more than one in a
/// hundred.
#[test]
fn a_loss_is_one_messages() {
    let link_time = Duration::from_secs(1) * MESSAGE * 8 * FLOWS as u32 / RATE as u32;
    // Of one run's messages some 17 lose a packet, give or take 4, and a hundredth are 20.
    let mut times: Vec<_> = (1..=10).flat_map(|seed| times(seed, 9000, "0.1%")).collect();
    assert_eq!(times.len(), 10 * FLOWS * (MESSAGES - FIRST));
    times.sort();
    let p99 = times[times.len() * 99 / 100];
    let late = times.iter().filter(|time| **time >= link_time * 105 / 100).count();
    println!("{late} of {} lose a packet", times.len());
    assert!(p99 < link_time * 105 / 100, "{p99:?}, where the link takes {link_time:?} for all; {late} late");
}

/// Where nothing is lost all messages take as long as the link's share for all of them, and no
/// turn, batch or report makes one longer. At 1500 bytes that is three hundredths of headers.
#[test]
fn without_losses_the_slowest_message_is_as_fast_as_the_others() {
    for (mtu, most) in [(1500, 1.04), (9000, 1.015)] {
        let times = times(1, mtu, "0%");
        let mtu = mtu as f64;
        let wire = f64::from(MESSAGE) * (mtu + 14.0) / (mtu - 28.0);
        let ideal = wire * 8.0 * FLOWS as f64 / RATE as f64;
        let [p50, p99] = [50, 99].map(|share| times[times.len() * share / 100].as_secs_f64() / ideal);
        println!("MTU {mtu}: p50 {p50:.3}, p99 {p99:.3} of the ideal");
        assert!(p99 < most && p99 < p50 * 1.01, "MTU {mtu}: p50 {p50:.3}, p99 {p99:.3}");
    }
}
