use std::time::Duration;

use reliability::stream::Scheme;

use super::*;
use crate::impair::Loss;
use record::Form;

const GBIT: u64 = 1_000_000_000;
const MS: Duration = Duration::from_millis(1);
const MIB: u64 = 1 << 20;

fn transfer(gbit: u64, rtt: Duration, scheme: &str, size: u64, drop: f64) -> Transfer {
    let mut transfer = Transfer::new(gbit * GBIT, rtt, scheme.parse().unwrap(), size);
    transfer.forward.loss = Loss::Random(drop);
    transfer.messages = 20;
    transfer
}

fn run(transfer: &Transfer) -> Outcome {
    transfer.run(&mut |_| {}).unwrap()
}

fn assert_near(what: &str, value: f64, expected: f64, tolerance: f64) {
    let off = value / expected - 1.0;
    assert!(off.abs() <= tolerance, "{what}: {value:e} for {expected:e}, {:.2} % off", off * 100.0);
}

#[test]
fn a_lossless_message_takes_its_serialisation_and_a_round_trip() {
    for (gbit, rtt) in [(1, 25 * MS), (10, MS), (100, 5 * MS), (400, 25 * MS), (800, 300 * MS)] {
        for size in [1000, 4096, 128 << 10, 3 * MIB + 12345, 32 * MIB] {
            let transfer = Transfer { messages: 5, ..transfer(gbit, rtt, "sr", size, 0.0) };
            let outcome = run(&transfer);
            let ideal = transfer.ideal().as_secs_f64();
            let name = format!("{gbit} Gbit/s, {rtt:?}, {size} bytes");
            for quantile in [0.0, 1.0] {
                assert_near(&name, outcome.completion.quantile(quantile), ideal, 0.02);
            }
            assert_near(&name, outcome.delivery.mean(), ideal - rtt.as_secs_f64() / 2.0, 0.02);
            assert_eq!((outcome.completion.count(), outcome.lost, outcome.repaired), (5, 0, 0), "{name}");
        }
    }
}

#[test]
fn parity_costs_its_share_of_serialisation_but_for_the_last_block() {
    for scheme in ["mds:32:8", "xor:32:8", "mds:32:8:4"] {
        let transfer = transfer(400, 25 * MS, scheme, 512 * MIB, 0.0);
        let outcome = run(&Transfer { messages: 3, ..transfer.clone() });
        let serialisation = (transfer.ideal() - transfer.rtt()).as_secs_f64();
        let expected = 0.025 + serialisation * 1.25;
        assert_near(scheme, outcome.completion.mean(), expected, 0.02);
        assert_near(scheme, outcome.wire_bytes_per_byte(), 1.25 * (4096.0 + 91.0) / 4096.0, 0.002);
    }
}

#[test]
fn selective_repeat_by_timeouts_takes_what_the_model_says() {
    let injection = Duration::from_secs_f64(4187.0 * 8.0 / 400e9);
    let cells = [(128 << 10, 1e-2, 5000), (MIB, 1e-3, 3000), (4 * MIB, 1e-3, 2000), (16 * MIB, 1e-3, 300)];
    for (size, drop, messages) in cells {
        let transfer = Transfer { messages, ..transfer(400, 25 * MS, "sr-rto", size, drop) };
        let outcome = run(&transfer);
        let model = selective_repeat(transfer.packets(), injection, drop, 75 * MS, 25 * MS).as_secs_f64();
        let tolerance = 0.02 + 4.0 * outcome.completion.standard_error() / model;
        assert!(tolerance < 0.09, "too few messages for {size}");
        assert_near(&format!("{size} bytes at {drop}"), outcome.completion.mean(), model, tolerance);
        assert_eq!(outcome.sent.nacks, 0);
    }
}

#[test]
fn a_request_repairs_in_a_round_trip() {
    // One loss in a message is noticed after the reordering time of 1 ms, and repaired a round trip
    // after that at most.
    let transfer = Transfer { messages: 400, ..transfer(400, 25 * MS, "sr", 32 * MIB, 1e-5) };
    let outcome = run(&transfer);
    let (n, p) = (transfer.packets() as i32, 1e-5_f64);
    let whole = (1.0 - p).powi(n);
    let repaired = outcome.repaired as f64 / 400.0;
    assert!((repaired - (1.0 - whole)).abs() < 4.0 * (whole * (1.0 - whole) / 400.0).sqrt(), "{repaired}");
    // Detection takes 1 to 2 ms; where in the message the loss is, anything down to that.
    let (ideal, rtt) = (transfer.ideal().as_secs_f64(), 0.025);
    let later = (outcome.completion.mean() - ideal) / repaired;
    assert!(later > rtt && later < rtt + 0.003, "{later}");
}

#[test]
fn a_single_packet_waits_for_the_timeout() {
    let transfer = Transfer { messages: 20_000, ..transfer(10, 10 * MS, "sr-rto", 4096, 0.02) };
    let outcome = run(&transfer);
    // The first loss costs a timeout, the second one as well, further ones twice as much each.
    let extra = 0.030 * (0.02 + 0.02_f64.powi(2) + 2.0 * 0.02_f64.powi(3));
    let expected = transfer.ideal().as_secs_f64() + extra;
    let tolerance = 0.01 + 4.0 * outcome.completion.standard_error() / expected;
    assert_near("single packets", outcome.completion.mean(), expected, tolerance);
}

#[test]
fn reed_solomon_falls_back_as_often_as_the_binomial_says() {
    // One block of 32 packets and 4 parities per message.
    let p = 0.05;
    let transfer = Transfer { messages: 6000, ..transfer(400, 25 * MS, "mds:32:4", 128 << 10, p) };
    let outcome = run(&transfer);
    let mut term = (1.0 - p).powi(36);
    let mut decodes = 0.0;
    for lost in 0..=4 {
        decodes += term;
        term *= f64::from(36 - lost) / f64::from(lost + 1) * p / (1.0 - p);
    }
    // It also completes if all the data came, whatever became of the parity.
    let whole = (1.0 - p).powi(32);
    let beyond = whole * (1.0 - (0..=4).map(|lost| binomial(4, lost, p)).sum::<f64>());
    let expected = 1.0 - decodes - beyond;
    let share = outcome.repaired as f64 / 6000.0;
    assert!((share - expected).abs() < 4.0 * (expected / 6000.0).sqrt(), "{share} for {expected}");
}

fn binomial(n: i32, k: i32, p: f64) -> f64 {
    let ways = (0..k).map(|i| f64::from(n - i) / f64::from(i + 1)).product::<f64>();
    ways * p.powi(k) * (1.0 - p).powi(n - k)
}

#[test]
fn a_burst_is_over_when_the_repair_comes() {
    // Single packets with ten milliseconds between them; by number, a burst of 50 would take all of
    // a message's repairs.
    let mut transfer = Transfer { messages: 4000, ..transfer(100, 10 * MS, "sr", 4096, 0.0) };
    transfer.forward.loss =
        Loss::GilbertElliott { to_bad: 0.02 * 0.02 / 0.98, to_good: 0.02, loss_bad: 1.0, loss_good: 0.0 };
    let outcome = run(&transfer);
    let repaired = outcome.repaired as f64 / 4000.0;
    assert!((repaired - 0.02).abs() < 4.0 * (0.02_f64 / 4000.0).sqrt(), "{repaired}");
}

#[test]
fn hybrid_protects_the_last_round_trip_as_far_as_losses_call_for() {
    let base = Transfer { messages: 3, ..transfer(10, MS, "hybrid:32:8", 64 * MIB, 0.0) };
    let parities = |told: Option<Told>| {
        let outcome = run(&Transfer { told, ..base.clone() });
        outcome.sent.parity_packets as f64 / 3.0
    };
    // A round trip, and about three milliseconds until a repair: 1200 packets of 16384, and a
    // parity for four of them.
    let unknown = parities(None);
    assert!((200.0..450.0).contains(&unknown), "{unknown}");
    let told = |drop| parities(Some(Told { drop, burst: 1.0 }));
    let (few, none) = (told(1e-3), told(1e-9));
    assert!(none == 0.0 && few > 0.0 && few < 0.7 * unknown, "{none} {few} {unknown}");
}

#[test]
fn an_open_queue_waits_as_long_as_queueing_theory_says() {
    // M/D/1: the mean wait is load * service / (2 (1 - load)).
    let load = 0.7;
    let transfer = Transfer {
        messages: 20_000,
        pattern: Pattern::Open { load },
        ..transfer(10, 2 * MS, "sr", 256 << 10, 0.0)
    };
    let outcome = run(&transfer);
    let service = (transfer.ideal() - transfer.rtt()).as_secs_f64();
    let load = load * (4096.0 + 91.0) / 4096.0;
    // Until delivered: the sender learns of it by a report that may wait for others.
    let wait = outcome.delivery.mean() - (transfer.ideal() - transfer.rtt() / 2).as_secs_f64();
    assert_near("waiting", wait, load * service / (2.0 * (1.0 - load)), 0.1);
    assert!(outcome.peak_messages > 5);
}

#[test]
fn messages_in_a_row_share_the_round_trip() {
    let one = transfer(10, 10 * MS, "sr", 64 << 10, 0.0);
    let four = Transfer { pattern: Pattern::Closed { depth: 4 }, ..one.clone() };
    let (one, four) = (run(&one), run(&four));
    assert_near("four at a time", four.elapsed.as_secs_f64(), one.elapsed.as_secs_f64() - 15.0 * 0.01, 0.02);
    assert_eq!(four.peak_messages, 4);
}

#[test]
fn small_messages_share_packets() {
    let transfer = Transfer {
        messages: 1000,
        pattern: Pattern::Closed { depth: 64 },
        ..transfer(1, 10 * MS, "sr", 200, 0.001)
    };
    let outcome = run(&transfer);
    assert_eq!(outcome.completion.count(), 1000);
    assert!(outcome.sent.data_packets < 200, "{}", outcome.sent.data_packets);
}

#[test]
fn without_repair_a_message_arrives_or_does_not() {
    let transfer = Transfer { messages: 3000, ..transfer(100, 5 * MS, "none", 64 << 10, 0.01) };
    let outcome = run(&transfer);
    let expected = 1.0 - 0.99_f64.powi(16);
    let share = outcome.lost as f64 / 3000.0;
    assert!(
        (share - expected).abs() < 4.0 * (expected * (1.0 - expected) / 3000.0).sqrt(),
        "{share} for {expected}"
    );
    assert_eq!(outcome.delivery.count() + outcome.lost, 3000);
    assert_eq!(outcome.completion.count(), 0);
}

#[test]
fn short_records_stand_for_long_ones() {
    for scheme in ["sr", "mds:16:2", "xor:8:2:2", "sr-rto"] {
        let mut transfer = transfer(100, 5 * MS, scheme, 5 * MIB + 100, 0.01);
        transfer.forward.jitter = Duration::from_micros(20);
        transfer.backward.loss = Loss::Random(0.01);
        let run = |form| World::new(&transfer, form).unwrap().run(&mut |_| {}).unwrap();
        let (short, whole) = (run(Form::StandIn), run(Form::True));
        assert_eq!(short.sent.data_packets, whole.sent.data_packets, "{scheme}");
        assert_eq!(short.bytes, whole.bytes);
        // Decoding, repairs and reports are the same; parity over short packets at a message's end
        // is taken for long.
        assert_near(scheme, short.completion.mean(), whole.completion.mean(), 0.02);
        assert_near(scheme, short.forward.bytes as f64, whole.forward.bytes as f64, 0.005);
    }
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    let outcome = |seed, scheme| {
        let mut transfer = Transfer { seed, ..transfer(100, 5 * MS, scheme, MIB, 0.005) };
        transfer.forward.jitter = Duration::from_micros(50);
        transfer.forward.duplicate = 0.01;
        transfer.forward.corrupt = 0.001;
        transfer.backward.loss =
            Loss::GilbertElliott { to_bad: 0.01, to_good: 0.2, loss_bad: 1.0, loss_good: 0.0 };
        transfer.pattern = Pattern::Open { load: 0.3 };
        let outcome = run(&transfer);
        (
            outcome.completion.total(),
            outcome.delivery.total(),
            outcome.sent,
            outcome.received,
            outcome.elapsed,
        )
    };
    for scheme in ["none", "sr", "sr-rto", "xor:32:8", "mds:32:8:2"] {
        assert_eq!(outcome(7, scheme), outcome(7, scheme));
        assert_ne!(outcome(7, scheme), outcome(8, scheme));
    }
}

#[test]
fn a_trace_is_played_over_and_over_from_anywhere() {
    let runs = [(3, 1), (0, 0), (2, 2), (0, 1), (1, 0)];
    let played: Vec<bool> =
        runs.iter().flat_map(|&(a, l)| [vec![false; a], vec![true; l]].concat()).collect();
    let runs = runs.map(|(arrived, lost)| (arrived as u64, lost as u64));
    let mut begins = [false; 10];
    for seed in 0..100 {
        let mut replay = replay::Replay::new(runs, seed).unwrap();
        let fates: Vec<bool> = (0..30).map(|_| replay.loses()).collect();
        let matches = |begin: &usize| (0..30).all(|i| fates[i] == played[(begin + i) % 10]);
        begins[(0..10).find(matches).unwrap()] = true;
    }
    assert_eq!(begins, [true; 10]);
    assert!(replay::Replay::new([(0, 0)], 1).is_none());

    let transfer = Transfer { trace: vec![(97, 3)], ..transfer(100, 5 * MS, "none", MIB, 0.5) };
    let outcome = run(&transfer);
    assert_near("share lost", outcome.forward.lost as f64 / outcome.forward.packets as f64, 0.03, 0.03);
}

#[test]
fn a_ring_waits_for_its_slowest_hop() {
    let mut hops = Times::new().unwrap();
    hops.record(1_000_000);
    let ring = Ring { sites: 4 };
    let even = ring.run(&hops, 10, 1).unwrap();
    assert_near("even hops", even.mean(), 6e-3, 0.002);
    // One hop in ten takes ten times as long.
    (0..8).for_each(|_| hops.record(1_000_000));
    hops.record(10_000_000);
    let uneven = ring.run(&hops, 2000, 1).unwrap();
    assert_eq!(uneven.total(), ring.run(&hops, 2000, 1).unwrap().total());
    // At least the sum of the mean hops; and no less than one slow hop as often as one of all 24 is
    // slow and on the way.
    assert!(uneven.mean() > 6.0 * 1.9e-3 && uneven.mean() < 24.0 * 1.9e-3, "{}", uneven.mean());
    assert!(ring.run(&Times::new().unwrap(), 1, 1).is_err());
    // Two sites, two rounds, hops of 1 or 2: the slower of two paths that have nothing in common
    // but their length.
    let mut hops = Times::new().unwrap();
    [1_000_000, 2_000_000].into_iter().for_each(|hop| hops.record(hop));
    let pair = Ring { sites: 2 }.run(&hops, 200_000, 3).unwrap();
    // Round 1: max(X, Y) begins round 2 at both sites: E max of two = 1.75; and again.
    assert_near("a pair", pair.mean(), 3.5e-3, 0.005);
}

#[test]
fn schemes_survive_a_round_trip_through_text() {
    for text in ["none", "sr", "sr-rto", "xor:32:8", "mds:32:8", "mds:200:55:3", "hybrid:32:8"] {
        assert_eq!(text.parse::<Repair>().unwrap().to_string(), text);
    }
    for text in ["mds:32:8", "mds(32,8)", "mds(32, 8)", "mds(32,8,1)"] {
        assert_eq!(text.parse(), Ok(Repair::by(Scheme::mds(32, 8))), "{text}");
    }
    for text in [
        "",
        "mds",
        "mds:32",
        "mds:32:8:1:1",
        "mds:0:8",
        "mds:250:8",
        "mds:32:300",
        "xor:4:5",
        "sr:1",
        "ec:32:8",
        "mds(32,8",
        "mds(32)",
        "sr()",
    ] {
        let error = text.parse::<Repair>().unwrap_err();
        assert!(error.to_string().starts_with(&format!("`{text}` is no scheme: ")), "{error}");
    }
}

#[test]
fn impossible_transfers_are_refused() {
    let good = transfer(1, MS, "sr", 4096, 0.0);
    for bad in [
        Transfer { rate: 0, ..good.clone() },
        Transfer { packet: 100, ..good.clone() },
        Transfer { size: 3, ..good.clone() },
        Transfer { pattern: Pattern::Open { load: 0.0 }, ..good.clone() },
    ] {
        assert!(matches!(bad.run(&mut |_| {}), Err(Failure::Impossible(_))));
    }
    let dead = transfer(1, MS, "sr", 4096, 1.0);
    assert!(matches!(dead.run(&mut |_| {}), Err(Failure::Stuck { done: 0, .. })));
}
