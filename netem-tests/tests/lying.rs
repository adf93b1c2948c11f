//! A peer that holds its key and lies: what it gets of a gateway's memory, and what it takes from
//! flows that it says nothing about.
//!
//! `LONGHAUL_LIARS=10000` plays so many seeds, `LONGHAUL_LIARS=5000..10000` those,
//! `LONGHAUL_SEED=n` that one alone.

#![expect(clippy::unwrap_used, reason = "test code, also where no function is a test")]

use std::cell::Cell;
use std::time::{Duration, Instant};

use netem_tests::sim::{Liar, Lie, Lies, Neighbour, Neighbours, Reach};
use splice::{Arrival, Ecn, Gateway, LaneId, Settings};

const TOTAL: usize = 64 << 20;
const FLOWS: usize = 2000;
/// Packets of a liar a second, without those of its honest part.
const RATE: u32 = 20_000;
/// The least share of their goodput without lies that honest flows have, and the most of their p99.
const LEAST_GOODPUT: f64 = 0.95;
const MOST_P99: f64 = 1.5;

fn seeds(default: u64) -> std::ops::Range<u64> {
    if let Ok(seed) = std::env::var("LONGHAUL_SEED") {
        let seed = seed.parse().unwrap();
        return seed..seed + 1;
    }
    let Ok(liars) = std::env::var("LONGHAUL_LIARS") else { return 0..default };
    let (from, to) = liars.split_once("..").unwrap_or(("0", &liars));
    from.parse().unwrap()..to.parse().unwrap()
}

thread_local! {
    /// Bytes that the gateway holds, and the most that it has held.
    static HELD: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

/// Counts what the gateway that is lied to allocates, and nobody else.
fn meter(act: &mut dyn FnMut()) {
    let measured = allocation_counter::measure(act);
    let (held, most) = HELD.get();
    let peak = held + i64::try_from(measured.bytes_max).unwrap();
    HELD.set((held + measured.bytes_current, most.max(peak)));
}

fn plan(lies: Option<Lies>) -> Neighbours {
    Neighbours {
        lies,
        limits: (TOTAL, FLOWS),
        meter,
        warm_up: Duration::from_millis(50),
        time: Duration::from_millis(200),
        ..Neighbours::new(100_000_000, "delay 2ms".parse().unwrap())
    }
}

/// Plays it; what became of the honest host, and the most that the gateway allocated.
fn play(plan: &Neighbours) -> (Neighbour, i64) {
    HELD.set((0, 0));
    let neighbour = plan.play().unwrap();
    (neighbour, HELD.get().1)
}

/// The documented bound, with the 5 % that are granted to the tests.
fn bound() -> i64 {
    let settings = plan(None).settings("10.0.0.0/24".parse().unwrap());
    i64::try_from(settings.most_memory() * 105 / 100).unwrap()
}

/// Whatever it lies about, also the flows and the link of its own hosts.
#[test]
fn a_lying_peer_gets_no_more_memory_than_is_documented() {
    let mut highest = (0, 0);
    let mut hurt = 0;
    for seed in seeds(300) {
        let lies = Lies { seed, reach: Reach::Anything, rate: RATE };
        let (neighbour, most) = play(&plan(Some(lies)));
        highest = highest.max((most, seed));
        hurt += u64::from(neighbour.failed > 0);
        let lies = Liar::new(seed, Reach::Anything);
        assert!(most <= bound(), "LONGHAUL_SEED={seed}, {:?}: {most} of {}", lies.lies(), bound());
        assert_eq!(neighbour.stray, 0, "LONGHAUL_SEED={seed}, {:?}", lies.lies());
    }
    let (most, seed) = highest;
    println!(
        "at most {} MiB of {} MiB, LONGHAUL_SEED={seed}; {hurt} ended flows of their own",
        most >> 20,
        bound() >> 20
    );
}

/// Flows that the peer carries as it should have what they have without the lies.
#[test]
fn flows_that_a_lying_peer_says_nothing_about_do_not_suffer() {
    let (without, usual) = play(&plan(None));
    let mut worst = (f64::INFINITY, 0.0_f64);
    for seed in seeds(300) {
        let lies = Lies { seed, reach: Reach::Aside, rate: RATE };
        let (neighbour, most) = play(&plan(Some(lies)));
        let goodput = neighbour.goodput / without.goodput;
        let p99 = neighbour.p99.as_secs_f64() / without.p99.as_secs_f64();
        worst = (worst.0.min(goodput), worst.1.max(p99));
        let told =
            || format!("LONGHAUL_SEED={seed}, {:?}: {neighbour:?}", Liar::new(seed, Reach::Aside).lies());
        assert!(neighbour.failed == 0 && neighbour.wrong == 0 && neighbour.stray == 0, "{}", told());
        assert!(goodput >= LEAST_GOODPUT && p99 <= MOST_P99, "{goodput:.3} {p99:.3} {}", told());
        assert!(most <= bound(), "{most} of {}, {}", bound(), told());
    }
    let (goodput, p99) = worst;
    println!(
        "without lies {without:?}, {usual} bytes; with them goodput {goodput:.3}, p99 {p99:.3} at worst"
    );
}

/// A gateway without hosts of its own, and so many packets of a liar at it.
fn endure(liar: &mut Liar, packets: u64) {
    let mut now = Instant::now();
    let remote = vec!["10.0.0.0/24".parse().unwrap()];
    let settings =
        Settings { total_buffer: TOTAL, flows: FLOWS, ..Settings::new(remote, 1_000_000_000, 1400) };
    let mut gateway = Gateway::new(settings, now);
    gateway.session_up(Duration::from_millis(10), 1400, 1, &[], now);
    let mut out = vec![0; 10_000];
    for number in 0..packets {
        let packet = liar.packet();
        let arrival = Arrival { lane: LaneId(0), number, bytes: packet.len(), ecn: Ecn::NotEct };
        gateway.handle_wan(&packet, arrival, now);
        if number % 50 == 0 {
            now += Duration::from_micros(number % 500);
            gateway.handle_timeout(now);
            while gateway.poll_wan(now, &mut out).is_some() {}
            // Half of the time the LAN is slow.
            while number % 100 == 0 && gateway.poll_lan(now, &mut out).is_some() {}
        }
    }
}

/// Each lie by itself and for long, against a much lower figure where no more is needed.
#[test]
fn each_lie_by_itself_is_bounded() {
    for lie in Lie::ALL {
        let measured = allocation_counter::measure(|| endure(&mut Liar::of(lie, 1), 200_000));
        println!("{lie:?}: {} KiB", measured.bytes_max >> 10);
        // Buffers of cut records and blocks, the pool and what keeps order.
        assert!(measured.bytes_max < (5 * TOTAL) as u64, "{lie:?}: {}", measured.bytes_max);
    }
}
