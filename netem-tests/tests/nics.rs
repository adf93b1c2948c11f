//! Crowds of queue pairs with real NICs' habits, over gateways and over plain routing, before an
//! independent judge.
//!
//! `LONGHAUL_SIM_SEEDS=0..100000 cargo test -p netem-tests --release --test nics crowds` plays
//! others; `LONGHAUL_SIM_SEED=77` one alone, and says what happened in it if it fails.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code, also where no function is a test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use linksim::impair::{LinkSpec, Loss};
use netem_tests::host::{AckPolicy, Personality, QpConfig};
use netem_tests::sim::{
    Crowd, CrowdLife, CrowdOp, CrowdWorld, Flaw, Outcome, Route, Spoofed, Spoofing, Tamper,
};
use roce::ip::{Datagram, emit};
use roce::wire::{Aeth, AtomicAckEth, Bth, Ext, Nak, Packet, PathMtu, Psn, Qpn, Syndrome};

fn play(crowd: Crowd, route: Route) -> Result<Outcome, String> {
    let played = catch_unwind(AssertUnwindSafe(|| CrowdWorld::new(crowd, route)?.run()));
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// A turn in which a target answers one first request: two round trips on its LAN and its NIC's
/// slowness, a millisecond at least.
fn turn(crowd: &Crowd) -> Duration {
    let slowness = |qp: &QpConfig| match qp.personality.acks {
        AckPolicy::Coalesced(late) | AckPolicy::Late(late) => late,
        AckPolicy::Asked | AckPolicy::Each => Duration::ZERO,
    };
    let slowest = crowd.queue_pairs.iter().flatten().map(slowness).max().unwrap_or_default();
    let lan = crowd.lan.iter().map(|lan| lan.delay * 2).max().unwrap_or_default();
    ((lan + slowest) * 2).max(Duration::from_millis(1))
}

/// One seed, over gateways, and over plain routing for comparison.
struct Seed {
    /// Flaws that no one excuses.
    flaws: Vec<Flaw>,
    /// Messages confirmed falsely where plain RC may fail too: over gateways, over plain routing.
    excused: [u64; 2],
    /// Incarnations, and those of them that are excused.
    lives: [u64; 2],
    /// How much longer than over plain routing without loss the slowest first message took beyond
    /// what is allowed, negative if none did.
    late: f64,
    checked: u64,
}

fn play_seed(seed: u64) -> Result<Seed, String> {
    let crowd = Crowd::draw(seed);
    let least = play(crowd.lossless(), Route::Plain)?;
    let over = play(crowd.clone(), Route::Gateways)?;
    let excused = over.excused.iter().any(|excused| *excused);
    let plain = if excused { play(crowd.clone(), Route::Plain)? } else { Outcome::default() };
    let flaws: Vec<_> = over.flaws.iter().filter(|flaw| !flaw.excused).cloned().collect();
    let mut late = f64::NEG_INFINITY;
    for (life, (took, needs)) in over.first.iter().zip(&least.first).enumerate() {
        if over.excused[life] || least.excused[life] || !crowd.has_clean_lans() {
            continue;
        }
        for (took, needs) in took.iter().zip(needs) {
            let (Some(took), Some(needs)) = (took, needs) else { continue };
            let turns = u32::try_from(over.waiting + 64).unwrap_or(u32::MAX);
            let most = *needs + crowd.rtt * 3 + turn(&crowd) * turns;
            late = late.max((took.as_secs_f64() - most.as_secs_f64()) / crowd.rtt.as_secs_f64());
        }
    }
    Ok(Seed {
        flaws,
        excused: [over.false_ends(true), plain.false_ends(true)],
        lives: [over.excused.len() as u64, over.excused.iter().filter(|excused| **excused).count() as u64],
        late,
        checked: over.checked,
    })
}

fn seeds(count: u64) -> Range<u64> {
    netem_tests::seeds("LONGHAUL_SIM_SEEDS", 0..count)
}

/// The outcome of many seeds.
#[derive(Default)]
struct Sum {
    failed: Vec<u64>,
    /// Seeds by the first rule that each broke.
    rules: BTreeMap<String, Vec<u64>>,
    excused: [u64; 2],
    lives: [u64; 2],
    /// How late the seeds were that were late, and which they are.
    late: Vec<(f64, u64)>,
    checked: u64,
}

impl Sum {
    /// `again`: what plays a seed again, in its environment and by its name.
    fn add(&mut self, seed: u64, result: Result<Seed, String>, again: fn(u64) -> String) {
        let broken = match result {
            Err(why) => Some((why.split(':').next().unwrap_or_default().to_owned(), why)),
            Ok(played) => {
                for index in 0..2 {
                    self.excused[index] += played.excused[index];
                    self.lives[index] += played.lives[index];
                }
                self.checked += played.checked;
                self.late.extend((played.late > 0.0).then_some((played.late, seed)));
                played.flaws.first().map(|flaw| (flaw.rule.to_owned(), format!("{flaw:?}")))
            }
        };
        if let Some((rule, why)) = broken {
            let known = self.rules.entry(rule).or_default();
            if known.len() < 5 {
                eprintln!("seed {seed}: {why}\n  {}", again(seed));
            }
            known.push(seed);
            self.failed.push(seed);
        }
    }
}

const COMMAND: &str = "cargo test -p netem-tests --release --test nics";

fn play_all(seeds: Range<u64>, play: fn(u64) -> Result<Seed, String>, again: fn(u64) -> String) -> Sum {
    let (next, sum) = (AtomicU64::new(seeds.start), Mutex::new(Sum::default()));
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let result = play(seed);
                    sum.lock().unwrap().add(seed, result, again);
                }
            });
        }
    });
    sum.into_inner().unwrap()
}

/// So many of the latest seeds are named.
const SHOWN_LATE: usize = 10;

/// No false completion, no wrong data, nothing twice, no healthy queue pair failed. Where something
/// was under way at a reset, plain RC fails now and then as well, and gateways must not do so more
/// often.
#[test]
fn crowds_are_told_only_what_is_true() {
    if let Ok(seed) = std::env::var("LONGHAUL_SIM_SEED") {
        return explain(seed.parse().unwrap());
    }
    let seeds = seeds(2000);
    let count = seeds.end - seeds.start;
    let Sum { failed, rules, excused, lives, mut late, checked } = play_all(seeds, play_seed, |seed| {
        format!("LONGHAUL_SIM_SEED={seed} {COMMAND} crowds_are -- --nocapture")
    });
    println!("{count} seeds, {} incarnations, {checked} message ends checked", lives[0]);
    println!(
        "{} incarnations after a reset with requests under way: {} false completions, {} over plain routing",
        lives[1], excused[0], excused[1]
    );
    late.sort_by(|one, other| other.0.total_cmp(&one.0));
    println!(
        "{} seeds with a first message later than three round trips and 64 LAN turns more than over plain routing",
        late.len()
    );
    for (more, seed) in late.iter().take(SHOWN_LATE) {
        println!("  seed {seed}: {more:.1} round trips later than that");
    }
    for (rule, seeds) in &rules {
        println!("{rule}: {} seeds, such as {:?}", seeds.len(), &seeds[..seeds.len().min(8)]);
    }
    assert!(excused[0] <= excused[1], "gateways confirm falsely more often than plain routing: {excused:?}");
    assert!(failed.is_empty(), "{} of {count} seeds failed", failed.len());
}

/// Seeds beyond those of the test above, each of which was told what was not true, or lost a
/// connection: requests and answers were taken for another incarnation's.
#[test]
fn crowds_that_went_wrong_once_hold() {
    for seed in [
        4968, 5166, 5336, 5639, 7083, 7138, 7623, 7739, 9107, 9471, 9835, 10170, 13863, 14797, 16398, 17834,
        17881, 22790, 24005, 24214, 24918, 27086, 29638, 30310, 31084, 31744, 33374, 35294, 38726, 40627,
        40844, 44379, 45989, 47624, 50803, 57313, 58842, 60028, 85621,
    ] {
        let played = play_seed(seed).unwrap();
        assert!(played.flaws.is_empty(), "seed {seed}: {:?}", played.flaws);
    }
}

/// Switches of both LANs mark nearly every third packet that may be marked, and NICs with DCQCN
/// notify gateways as they would notify requesters.
#[test]
fn crowds_whose_switches_mark_are_told_only_what_is_true() {
    let mut notified = 0;
    for seed in 0..200 {
        let crowd = Crowd { marks: [0.3; 2], ..Crowd::draw(seed) };
        let outcome = play(crowd, Route::Gateways).unwrap();
        let flaws: Vec<_> = outcome.flaws.iter().filter(|flaw| !flaw.excused).collect();
        assert!(flaws.is_empty(), "seed {seed}: {flaws:?}");
        notified += outcome.notified;
    }
    println!("{notified} notifications");
    assert!(notified > 1000, "{notified}");
}

/// The judge and the NICs are right by themselves: over plain routing, with losses and all, nothing
/// is wrong that nobody excuses.
#[test]
fn plain_routing_passes_every_rule() {
    let plain = |seed| {
        let outcome = play(Crowd::draw(seed), Route::Plain)?;
        let flaws: Vec<_> = outcome.flaws.iter().filter(|flaw| !flaw.excused).cloned().collect();
        let lives = [outcome.excused.len() as u64, 0];
        Ok(Seed { flaws, excused: [0, outcome.false_ends(true)], lives, late: 0.0, checked: outcome.checked })
    };
    let Sum { failed, excused, lives, checked, .. } = play_all(seeds(1000), plain, |seed| {
        format!("LONGHAUL_SIM_SEEDS={seed}..{} {COMMAND} plain", seed + 1)
    });
    println!("{} incarnations, {checked} message ends checked, {} false ones excused", lives[0], excused[1]);
    assert!(failed.is_empty(), "{} seeds failed", failed.len());
}

/// The outcome of spoofed packets over one route.
#[derive(Debug, Default)]
struct Believed {
    spoofed: Spoofed,
    /// Connections that ended in an error or never ended.
    ended: u64,
    /// Packets believed: requests executed, answers taken.
    believed: u64,
    /// Packets on the long link more than without a spoofer.
    wan: i64,
    /// How long the hosts' requests took, beside a spoofer and without one.
    took: [Vec<Duration>; 2],
    /// Those where anything was amiss.
    seeds: Vec<u64>,
}

impl Believed {
    /// Packets on the long link for each spoofed one.
    fn cost(&self) -> f64 {
        self.wan as f64 / self.spoofed.total() as f64
    }

    /// How much longer requests take beside a spoofer: all in a row, and at the 99th percentile.
    fn slower(&self) -> [f64; 2] {
        let all = self.took.each_ref().map(|took| took.iter().sum::<Duration>());
        let late = self.took.each_ref().map(|took| {
            let mut took = took.clone();
            took.sort_unstable();
            took[took.len() * 99 / 100]
        });
        [all, late].map(|[beside, alone]| beside.as_secs_f64() / alone.as_secs_f64())
    }
}

/// Every other seed's crowd speaks IPv6.
fn drawn(seed: u64) -> Crowd {
    Crowd { ipv6: seed % 2 == 1, ..Crowd::draw(seed) }
}

fn spoofed(seed: u64, reach: Option<u32>) -> Crowd {
    let crowd = drawn(seed);
    Crowd { spoofing: Some(Spoofing { every: crowd.rtt / 20, most: 300, reach }), ..crowd }
}

/// Plays crowds with somebody on both LANs who sends in the hosts' names.
fn spoof(seeds: Range<u64>, reach: Option<u32>, route: Route) -> Believed {
    let (next, sum) = (AtomicU64::new(seeds.start), Mutex::new(Believed::default()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let played = play(spoofed(seed, reach), route)
                        .and_then(|outcome| Ok((outcome, play(drawn(seed), route)?)));
                    let mut sum = sum.lock().unwrap();
                    let (outcome, alone) = match played {
                        Ok(played) => played,
                        Err(why) => {
                            eprintln!("seed {seed}: {why}");
                            sum.ended += 1;
                            sum.seeds.push(seed);
                            continue;
                        }
                    };
                    sum.spoofed = sum.spoofed.with(outcome.spoofed);
                    sum.wan += outcome.wan as i64 - alone.wan as i64;
                    for (took, outcome) in sum.took.iter_mut().zip([&outcome, &alone]) {
                        took.extend(outcome.took.iter().flatten());
                    }
                    let bad = outcome.flaws.iter().filter(|flaw| !flaw.excused);
                    let (ended, believed): (Vec<_>, Vec<_>) =
                        bad.partition(|flaw| matches!(flaw.rule, "failed" | "stuck"));
                    sum.ended += ended.len() as u64;
                    sum.believed += believed.len() as u64;
                    if !ended.is_empty() || !believed.is_empty() {
                        sum.seeds.push(seed);
                    }
                }
            });
        }
    });
    sum.into_inner().unwrap()
}

/// Over gateways, and over plain routing; prints both.
fn spoof_both(seeds: Range<u64>, reach: Option<u32>) -> [Believed; 2] {
    [(Route::Gateways, "gateways"), (Route::Plain, "plain routing")].map(|(route, name)| {
        let sum = spoof(seeds.clone(), reach, route);
        let Spoofed { sent: [requests, responses, management], hits, chance } = sum.spoofed;
        println!(
            "over {name}: {requests} requests, {responses} responses, {management} messages of management"
        );
        println!(
            "  hits: {hits:?} of requests and responses, by chance {:.3} and {:.3}; believed: {}",
            chance[0], chance[1], sum.believed
        );
        println!(
            "  {:.2} packets on the long link each; ended: {}; seeds {:?}",
            sum.cost(),
            sum.ended,
            sum.seeds
        );
        let [all, late] = sum.slower();
        println!(
            "  requests take {all:.2} of the time that they take alone, {late:.2} at the 99th percentile"
        );
        sum
    })
}

/// Requests and responses in the hosts' names at any PSN, and connection management with any
/// communication ID: no connection ends, and no more is believed than by plain RC, or by chance.
#[test]
fn spoofed_packets_are_believed_no_more_than_by_plain_rc() {
    if let Ok(seed) = std::env::var("LONGHAUL_SIM_SEED") {
        return explain_crowd(spoofed(seed.parse().unwrap(), None));
    }
    let [gateways, plain] = spoof_both(seeds(300), None);
    assert!(gateways.spoofed.sent.iter().all(|sent| *sent > 10_000), "{:?}", gateways.spoofed);
    assert_eq!(gateways.ended, 0, "connections end");
    assert!(gateways.believed <= plain.believed, "{} are believed", gateways.believed);
    let hits: u64 = gateways.spoofed.hits.iter().sum();
    assert!(gateways.believed <= hits, "{} are believed", gateways.believed);
    assert!(gateways.cost() < MOST_COST, "{}", gateways.cost());
    let [all, late] = gateways.slower();
    assert!(all < MOST_SLOWER && late < MOST_LATER, "{all:.2} and {late:.2} of the time");
}

/// The same by somebody who has an idea of the PSNs.
#[test]
fn packets_spoofed_near_by_are_believed_no_more_than_by_plain_rc() {
    if let Ok(seed) = std::env::var("LONGHAUL_SIM_SEED") {
        return explain_crowd(spoofed(seed.parse().unwrap(), Some(1 << 16)));
    }
    let [gateways, plain] = spoof_both(seeds(150), Some(1 << 16));
    assert!(gateways.ended <= plain.ended, "{} connections end", gateways.ended);
    assert!(gateways.believed <= plain.believed, "{} are believed", gateways.believed);
    assert!(gateways.cost() < MOST_COST, "{}", gateways.cost());
}

/// Beyond the seeds of the tests above: a spoofed request has a target say where it stands, while a
/// flow with a dead target asks about PSNs near that, or about that very PSN; or it has a flow ask
/// far from where it asked before, and answers are guessed in between.
#[test]
fn spoofed_crowds_that_went_wrong_once_hold() {
    let near = [548, 871, 1257, 1555, 2054, 4927].map(|seed| (seed, Some(1 << 16)));
    for (seed, reach) in [796, 740, 1621, 1277, 5056].map(|seed| (seed, None)).into_iter().chain(near) {
        let outcome = play(spoofed(seed, reach), Route::Gateways).unwrap();
        let flaws: Vec<_> = outcome.flaws.iter().filter(|flaw| !flaw.excused).collect();
        assert!(flaws.is_empty(), "{seed}: {flaws:?}");
    }
}

/// Packets on the long link for each spoofed packet, at most.
const MOST_COST: f64 = 1.0;
/// How much longer requests may take beside a spoofer. A connection that begins behind a strange
/// request waits once for its NIC's retry, 1.07 s here where a round trip takes 1 to 100 ms.
const MOST_SLOWER: f64 = 4.0;
const MOST_LATER: f64 = 3.5;

/// A connection that READs over a clean link of 20 ms, with a requester whose LAN has packets
/// overtake each other.
fn reading(seed: u64, (count, len, depth): (usize, u32, usize), reorder: f64) -> Crowd {
    let mut crowd = Crowd::draw(seed);
    let delay = Duration::from_micros(20);
    let qp = QpConfig { mtu: PathMtu::B4096, ..Personality::MLX5_UCX.qp() };
    let rtt = Duration::from_millis(20);
    let wan = LinkSpec { delay: rtt / 2, rate: Some(10_000_000_000), ..LinkSpec::default() };
    let work = [vec![CrowdOp::Read(len); count], Vec::new()];
    let life = CrowdLife { ends: [0, 0], work, depth, ..crowd.lives.remove(0) };
    let life = CrowdLife { pause: rtt, skew: Duration::ZERO, cut: None, dead: false, restless: None, ..life };
    let mut settings = splice::Settings::new(Vec::new(), 9_000_000_000, 8900);
    settings.rtt = rtt;
    Crowd {
        rtt,
        session_rtt: rtt,
        wan: [wan; 2],
        lan: [LinkSpec { delay, reorder, ..LinkSpec::default() }, LinkSpec { delay, ..LinkSpec::default() }],
        settings,
        queue_pairs: [vec![qp], vec![qp]],
        lives: vec![life],
        ..crowd
    }
}

/// A response overtaken on the requester's LAN costs a turn there, and no round trip to the target:
/// 30, 76 and 172 of them where each repeat goes to the target.
#[test]
fn reads_overtaken_on_the_requesters_lan_are_answered_from_near() {
    // One at a time, some at once, and many small ones.
    for (work, most) in [((16, 1 << 20, 1), 4.0), ((64, 256 << 10, 16), 4.0), ((800, 16 << 10, 16), 60.0)] {
        let [clean, overtaken] = [0.0, 0.01].map(|reorder| {
            let mut world = CrowdWorld::new(reading(1, work, reorder), Route::Gateways).unwrap();
            let outcome = world.run().unwrap();
            assert!(outcome.flaws.is_empty(), "{:#?}", outcome.flaws);
            outcome.busy
        });
        let trips = overtaken.saturating_sub(clean).as_secs_f64() / 0.02;
        println!("{work:?}: {clean:?} in order, {overtaken:?} overtaken, {trips:.1} round trips more");
        assert!(trips < most, "{work:?}: {trips:.1} round trips");
    }
}

/// Ten queue pairs of each host that connect again and again with the same numbers and first PSN
/// 0, 0, 20 or 100 ms after everything was answered. Every other time one end is 30 ms later. So
/// does the lab's `identity.py`, with an ACK timeout of 67 ms, over a LAN of the second host that
/// loses. Hosts answer after `slow`.
fn reconnecting(seed: u64, rounds: usize, slow: Duration, loss: f64) -> Crowd {
    const PAIRS: usize = 10;
    let work = [CrowdOp::Write(2500), CrowdOp::Send(1500), CrowdOp::FetchAdd(7), CrowdOp::Read(2300)];
    let base = reading(seed, (1, 8, 4), 0.0);
    let mut qp = QpConfig { retry_cnt: 6, ..Personality::SOFT_ROCE.qp() };
    if !slow.is_zero() {
        qp.personality.acks = AckPolicy::Late(slow);
    }
    let lives = (0..PAIRS * rounds).map(|number| {
        let (pair, round) = (number % PAIRS, number / PAIRS);
        let mut work = [work, work].map(Vec::from);
        work[0].rotate_left(number % 4);
        work[1].rotate_left((number + round) % 4);
        let late = if (pair + round) % 2 == 0 { 30 } else { 0 };
        let pause = Duration::from_millis([0, 20, 100][(pair + round) % 3]);
        let (skew, psn) = (Duration::from_millis(late), [0; 2]);
        CrowdLife { ends: [pair; 2], work, depth: 4, pause, skew, psn, ..base.lives[0].clone() }
    });
    let lossy = LinkSpec { loss: Loss::Random(loss), ..base.lan[1] };
    Crowd {
        seed,
        lan: [base.lan[0], lossy],
        queue_pairs: [vec![qp; PAIRS], vec![qp; PAIRS]],
        lives: lives.collect(),
        ..base
    }
}

/// Without loss every such connection does its work, however slow its hosts. With 5 % of the
/// packets lost on the LAN of one host as many do as over plain routing, but for chance. Where
/// everything was answered before a reset, no message end is told falsely; where requests were
/// under way, no more than over plain routing.
///
/// `LONGHAUL_SIM_SLOW=10` plays hosts that answer after so many milliseconds, which
/// `docs/nics.md` has as an open end.
#[test]
fn connections_begun_anew_do_their_work() {
    if let Ok(seed) = std::env::var("LONGHAUL_SIM_SEED") {
        return explain_crowd(reconnecting(seed.parse().unwrap(), 50, Duration::ZERO, 0.05));
    }
    let mut worlds = vec![(0, 0.0, 1), (3, 0.0, 1), (10, 0.0, 2), (0, 0.05, 4), (3, 0.05, 4), (10, 0.05, 4)];
    if let Ok(millis) = std::env::var("LONGHAUL_SIM_SLOW") {
        worlds = vec![(millis.parse().unwrap(), 0.05, 4)];
    }
    for (millis, loss, count) in worlds {
        let (seeds, slow) = (seeds(count), Duration::from_millis(millis));
        let [gateways, plain] = [Route::Gateways, Route::Plain].map(|route| {
            let mut sum = Begun::default();
            for seed in seeds.clone() {
                sum.add(&play(reconnecting(seed, 50, slow, loss), route).unwrap());
            }
            let lost = loss * 100.0;
            println!("{route:?}, hosts answer after {millis} ms, {lost} % lost: {sum}");
            sum
        });
        assert_eq!(gateways.told, 0, "told falsely");
        assert!(gateways.excused <= plain.excused, "{} told falsely after resets", gateways.excused);
        // Each route draws losses of its own: equal shares differ by the root of their sum.
        let by_chance = 1.5 * ((gateways.failed + plain.failed) as f64).sqrt();
        let most = plain.failed as f64 + by_chance;
        assert!(gateways.failed as f64 <= most, "{} failed, {most} may", gateways.failed);
        assert!(loss > 0.0 || gateways.failed + plain.failed == 0, "some failed without loss");
    }
}

/// Connections that were begun again and again, and what became of them.
#[derive(Default)]
struct Begun {
    lives: usize,
    failed: usize,
    checked: u64,
    /// Message ends told falsely, though everything was answered before the reset.
    told: u64,
    /// And where it was not.
    excused: u64,
}

impl Begun {
    fn add(&mut self, outcome: &Outcome) {
        let ended = outcome.flaws.iter().filter(|flaw| matches!(flaw.rule, "failed" | "stuck"));
        self.failed += ended.map(|flaw| flaw.life).collect::<BTreeSet<_>>().len();
        self.lives += outcome.excused.len();
        self.checked += outcome.checked;
        self.told += outcome.false_ends(false);
        self.excused += outcome.false_ends(true);
    }
}

impl fmt::Display for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Begun { lives, failed, checked, told, excused } = self;
        let well = lives - failed;
        write!(f, "{well} of {lives} connections well, of {checked} ends {told} told falsely")?;
        write!(f, ", and {excused} after a reset with requests under way")
    }
}

#[test]
fn every_personality_comes_up_at_each_end() {
    let mut seen = [BTreeMap::new(), BTreeMap::new()];
    for crowd in (0..600).map(Crowd::draw) {
        for (seen, qps) in seen.iter_mut().zip(&crowd.queue_pairs) {
            *seen.entry(qps[0].personality.name).or_insert(0) += 1;
        }
    }
    for seen in &seen {
        assert!(
            Personality::ALL.iter().all(|nic| seen.get(nic.name).is_some_and(|count| *count > 15)),
            "{seen:?}"
        );
    }
}

#[test]
fn a_crowd_plays_the_same_way_twice() {
    for route in [Route::Gateways, Route::Plain] {
        let [first, second] = [7, 7].map(|seed| format!("{:?}", play(Crowd::draw(seed), route).unwrap()));
        assert_eq!(first, second);
    }
}

/// Changes a response: its addressee, its PSN, its extension.
type Change = fn(&mut Bth, &mut Ext);

/// Has each response on a plain route changed.
fn changing(change: Change) -> Tamper {
    Box::new(move |_, bytes| {
        let Ok(datagram) = Datagram::parse(bytes) else { return true };
        let Ok(packet) = Packet::parse(datagram.transport) else { return true };
        let mut repr = packet.repr();
        if packet.bth.opcode.is_response() {
            change(&mut repr.bth, &mut repr.ext);
        }
        let mut transport = vec![0; repr.buffer_len()];
        let len = repr.emit(&mut transport).unwrap();
        let mut out = vec![0; 9000];
        let len = emit(&datagram.addressing, 1, &transport[..len], &mut out).unwrap();
        out.truncate(len);
        *bytes = out;
        true
    })
}

/// Whatever a route does to answers, the judge finds in whole worlds.
#[test]
fn planted_faults_are_found_in_worlds() {
    let planted: [(&str, &[&str], Change); 6] = [
        ("answers go to the queue pair beside", &["told", "answer"], |bth, _| {
            bth.dest_qp = Qpn::new(bth.dest_qp.get() ^ 1);
        }),
        ("ACKs are too far", &["told"], |bth, ext| {
            if matches!(ext, Ext::Aeth(Aeth { syndrome: Syndrome::Ack { .. }, .. })) {
                bth.psn += 1;
            }
        }),
        ("ACKs become sequence NAKs too far", &["told"], |bth, ext| {
            if let Ext::Aeth(aeth) = ext
                && bth.opcode.kind() == roce::wire::Kind::Acknowledge
            {
                aeth.syndrome = Syndrome::Nak(Nak::PsnSequence);
                bth.psn += 2;
            }
        }),
        ("results of atomics are others", &["answer"], |_, ext| {
            if let Ext::AtomicAck(_, AtomicAckEth(value)) = ext {
                *value += 1;
            }
        }),
        ("READ data is at another place", &["told", "answer"], |bth, _| {
            if bth.opcode.kind() == roce::wire::Kind::ReadResponse {
                bth.psn += 1;
            }
        }),
        ("PSNs begin anew", &["told"], |bth, _| bth.psn = Psn::new(bth.psn.get() | 7)),
    ];
    for (what, rules, change) in planted {
        let found: usize = (0..30)
            .map(|seed| {
                let mut world = CrowdWorld::new(Crowd::draw(seed), Route::Plain).unwrap();
                world.tamper(changing(change));
                let outcome = world.run().unwrap();
                usize::from(outcome.flaws.iter().any(|flaw| rules.contains(&flaw.rule)))
            })
            .sum();
        println!("{what}: found in {found} of 30 worlds");
        assert!(found >= 4, "{what}: {found}");
    }
}

/// One seed with its crowd, and its last lines if it fails.
fn explain(seed: u64) {
    explain_crowd(Crowd::draw(seed));
    let played = play_seed(seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    assert!(played.flaws.is_empty(), "seed {seed}: {:#?}", played.flaws);
}

fn explain_crowd(crowd: Crowd) {
    eprintln!("{crowd:#?}");
    let mut world = CrowdWorld::new(crowd, Route::Gateways).unwrap();
    world.record();
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    let skip = std::env::var("LONGHAUL_SIM_LINES").ok().and_then(|lines| lines.parse().ok()).unwrap_or(300);
    for line in world.trace().iter().skip(world.trace().len().saturating_sub(skip)) {
        eprintln!("{line}");
    }
    eprintln!("{}", world.describe());
    eprintln!("{result:#?}");
}
