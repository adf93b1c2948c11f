//! A peer that holds its key and lies: what it gets of a gateway's memory, and what it takes from
//! flows that it says nothing about.
//!
//! `LONGHAUL_LIARS=10000` plays so many seeds, `LONGHAUL_LIARS=5000..10000` those,
//! `LONGHAUL_SEED=n` that one alone. `LONGHAUL_LIE=Response` has all lie in this way.

#![expect(clippy::unwrap_used, reason = "test code, also where no function is a test")]

use std::cell::Cell;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netem_tests::sim::{Liar, Lie, LiedTo, Lies, Neighbour, Neighbours, Reach};
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use roce::ip::Datagram;
use roce::wire::{Psn, Qpn};
use splice::{Arrival, Ecn, FlowSide, Gateway, LaneId, Settings, StaleFlow};

const TOTAL: usize = 64 << 20;
const FLOWS: usize = 2000;
/// Packets of a liar a second, without those of its honest part.
const RATE: u32 = 20_000;
/// The least share of their goodput without lies that honest flows have, and the most of their p99.
const LEAST_GOODPUT: f64 = 0.95;
/// The same where requests share the link with what the gateway answers the liar.
/// That is an eighth of it for reports, a 32nd for words on unknown flows, the bytes of each that
/// may go at once, and a word for each flow that it opens and that gives way.
const LEAST_BESIDE_ANSWERS: f64 = 0.7;
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

/// `LONGHAUL_LIE=Response` plays this one alone.
fn only() -> Option<Lie> {
    let name = std::env::var("LONGHAUL_LIE").ok()?;
    Lie::ALL.into_iter().find(|lie| format!("{lie:?}") == name)
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

/// A liar of a seed, beside so many honest hosts. Of every second seed the gateways may be members.
fn beside(honest: usize, lies: Lies) -> Neighbours {
    Neighbours { honest, members: lies.seed % 2 == 1, ..plan(Some(lies)) }
}

/// Whatever it lies about, also the flows and the link of its own hosts.
fn memory(to: LiedTo, default: u64) {
    let mut highest = (0, 0);
    let mut hurt = 0;
    for seed in seeds(default) {
        let lies = Lies { seed, reach: Reach::Anything, only: only(), rate: RATE, to };
        let (neighbour, most) = play(&beside(1, lies));
        highest = highest.max((most, seed));
        hurt += u64::from(neighbour.failed > 0);
        let lies = Liar::new(seed, Reach::Anything);
        assert!(most <= bound(), "LONGHAUL_SEED={seed}, {:?}: {most} of {}", lies.lies(), bound());
        assert_eq!(neighbour.stray, 0, "LONGHAUL_SEED={seed}, {:?}", lies.lies());
    }
    let (most, seed) = highest;
    println!(
        "{to:?}: at most {} MiB of {} MiB, LONGHAUL_SEED={seed}; {hurt} ended flows of their own",
        most >> 20,
        bound() >> 20
    );
}

#[test]
fn a_lying_peer_gets_no_more_memory_than_is_documented() {
    memory(LiedTo::Targets, 300);
}

#[test]
fn a_peer_that_lies_to_requesters_gets_no_more_memory_than_is_documented() {
    memory(LiedTo::Requesters, 300);
}

/// The first host has what it has beside a liar that says nothing.
fn isolation(to: LiedTo, reach: Reach, honest: usize, least: f64, default: u64) {
    let (without, usual) = play(&beside(honest, Lies { seed: 0, reach, only: None, rate: 1, to }));
    let mut worst = (f64::INFINITY, 0.0_f64);
    let (mut aimed, mut broken) = (0, Vec::new());
    for seed in seeds(default) {
        let lies = Lies { seed, reach, only: only(), rate: RATE, to };
        let (neighbour, most) = play(&beside(honest, lies));
        let goodput = neighbour.goodput / without.goodput;
        let p99 = neighbour.p99.as_secs_f64() / without.p99.as_secs_f64();
        worst = (worst.0.min(goodput), worst.1.max(p99));
        aimed += neighbour.aimed;
        let is_right = neighbour.failed == 0 && neighbour.wrong == 0 && neighbour.stray == 0;
        if !is_right || goodput < least || p99 > MOST_P99 || most > bound() {
            let lies = Liar::new(seed, reach);
            broken
                .push(format!("LONGHAUL_SEED={seed} {goodput:.3} {p99:.3} {:?} {neighbour:?}", lies.lies()));
        }
    }
    let (goodput, p99) = worst;
    println!(
        "{to:?}: without lies {without:?}, {usual} bytes; with them goodput {goodput:.3}, p99 {p99:.3} at \
         worst, {aimed} aimed"
    );
    assert!(broken.is_empty(), "{} of them:\n{}", broken.len(), broken.join("\n"));
}

/// Flows that the peer carries as it should have what they have without the lies.
#[test]
fn flows_that_a_lying_peer_says_nothing_about_do_not_suffer() {
    isolation(LiedTo::Targets, Reach::Aside, 1, LEAST_GOODPUT, 300);
}

/// Two hosts WRITE, and the peer lies about what one of them is answered.
#[test]
fn requesters_that_a_lying_peer_says_nothing_about_do_not_suffer() {
    isolation(LiedTo::Requesters, Reach::Aside, 2, LEAST_BESIDE_ANSWERS, 300);
}

/// A host WRITEs to two sites. What one of them lies about is nothing to what the other answers.
#[test]
fn what_a_peer_lies_about_changes_nothing_between_its_victims_and_another_peer() {
    isolation(LiedTo::Other, Reach::Anything, 1, LEAST_GOODPUT, 300);
}

/// A flow that a peer may say it remembers: of hosts here and there, or of others.
fn remembered(rng: &mut impl Rng) -> StaleFlow {
    let mut host = |site| IpAddr::from([10, 0, site, rng.random_range(0..8)]);
    let (there, here, third) = (host(0), host(1), host(2));
    let side = if rng.random() { FlowSide::Near } else { FlowSide::Far };
    let (requester, target) = if side == FlowSide::Near { (there, here) } else { (here, there) };
    StaleFlow {
        requester: if rng.random_bool(0.1) { third } else { requester },
        target: if rng.random_bool(0.1) { third } else { target },
        target_qpn: Qpn::new(rng.random_range(0..4000)),
        requester_qpn: Qpn::new(rng.random_range(0..4000)),
        psn: Psn::new(rng.random_range(0..1 << 24)),
        src_port: rng.random(),
        side,
        lives: rng.random(),
    }
}

/// It tells of ever other flows as sessions begin, in as many ways as they do.
#[test]
fn what_a_lying_peer_says_that_it_remembers_is_bounded() {
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let rtt = Duration::from_millis(4);
    let mut now = Instant::now();
    let mut out = vec![0; 10_000];
    let mut settings = plan(None).settings("10.0.0.0/24".parse().unwrap());
    settings.local = vec!["10.0.1.0/24".parse().unwrap()];
    HELD.set((0, 0));
    let mut gateway = None;
    meter(&mut || gateway = Some(Gateway::new(settings.clone(), now)));
    let mut gateway = gateway.unwrap();
    let (mut told, mut refused) = (0, 0);
    for round in 0..40 {
        let flows: Vec<_> = (0..2 * FLOWS).map(|_| remembered(&mut rng)).collect();
        told += flows.len() as u64;
        meter(&mut || match round % 4 {
            0 | 1 => gateway.session_up(rtt, 1400, 1, &flows, now),
            2 => gateway.session_reborn(rtt, 1400, 1, &flows, now),
            _ => gateway.await_requesters(&flows, now),
        });
        let end = now + Duration::from_millis(500);
        while now < end {
            now = gateway.next_timeout(now).map_or(end, |next| next.clamp(now + rtt, end));
            meter(&mut || {
                gateway.handle_timeout(now);
                while let Some(len) = gateway.poll_lan(now, &mut out) {
                    let to = Datagram::parse(&out[..len]).unwrap().addressing.dst;
                    assert!(settings.local[0].contains(&to), "{to}");
                }
                while gateway.poll_wan(now, &mut out).is_some() {}
            });
        }
        refused = gateway.stats().bad_records;
    }
    let most = HELD.get().1;
    println!("{told} flows told of, {refused} refused, {} KiB of {} MiB", most >> 10, bound() >> 20);
    assert!(refused > told / 10 && most <= bound(), "{refused} of {told}, {most}");
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
