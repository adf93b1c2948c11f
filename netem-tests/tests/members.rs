//! Two sites of two gateways each, with whole gateway cores: members die, return, and are cut off
//! from each other, from the peers and from the hosts. `docs/adr/0024-several-gateways.md`.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test code, also where no function is a test"
)]

#[path = "members/traffic.rs"]
mod traffic;
#[path = "members/world.rs"]
mod world;

use std::ops::Range;
use std::time::Duration;

use rand::RngExt as _;

use splice::members::{HostPair, Message, Term};
use traffic::{HOSTS, Traffic, ip};
use world::{ALL, SIZE, World, site_of};

/// A message that fits a packet of the path MTU.
const ONE_PACKET: u32 = 1024;

/// Seeds: `LONGHAUL_MEMBERS_SEED=4711` one, `LONGHAUL_MEMBERS_SEEDS=1000..2000` a range.
fn seeds(usual: Range<u64>) -> Range<u64> {
    if let Ok(one) = std::env::var("LONGHAUL_MEMBERS_SEED") {
        let one = one.parse().unwrap();
        return one..one + 1;
    }
    netem_tests::seeds("LONGHAUL_MEMBERS_SEEDS", usual)
}

/// A world in which all speak.
fn settled(seed: u64, traffic: Traffic) -> World {
    println!("LONGHAUL_MEMBERS_SEED={seed}");
    let mut world = World::new(seed, traffic, 100);
    world.run(Duration::from_secs(5));
    world
}

/// Every flow that has not failed gets on within this time.
fn check_progress(world: &mut World, within: Duration) {
    let before = world.traffic.completed();
    world.run(within);
    world.traffic.check();
    let flows: Vec<_> = world.traffic.flows.iter().flatten().cloned().collect();
    for (place, ((flow, before), after)) in
        flows.iter().zip(before).zip(world.traffic.completed()).enumerate()
    {
        assert!(
            flow.has_failed || after > before,
            "flow {place} stands still: {flow:?}\n{}",
            world.describe(place % HOSTS)
        );
    }
}

fn check_one_speaker(world: &World) {
    for site in 0..2 {
        for host in 0..HOSTS {
            let speakers = world.speakers(site, [ip(0, host), ip(1, host)]);
            assert_eq!(speakers.len(), 1, "site {site}, hosts {host}: {speakers:?}");
        }
    }
}

/// Routers of both sites lead each packet anywhere.
#[test]
fn strays_come_to_their_speaker_and_all_of_both_sites_work() {
    for seed in seeds(0..2) {
        let mut world = settled(seed, Traffic::new(ONE_PACKET, 4));
        check_one_speaker(&world);
        check_progress(&mut world, Duration::from_secs(2));
        let speakers = |site: usize| -> Vec<usize> {
            (0..HOSTS).flat_map(|host| world.speakers(site, [ip(0, host), ip(1, host)])).collect()
        };
        for site in 0..2 {
            let speakers = speakers(site);
            assert!((0..SIZE).all(|place| speakers.contains(&(site * SIZE + place))), "{speakers:?}");
        }
        assert_eq!(world.traffic.failed(), 0);
        assert!(world.handed_over > 1000, "{}", world.handed_over);
    }
}

/// Messages of one packet: a death, and a return, cost time only.
#[test]
fn a_member_dies_and_returns_and_its_hosts_go_on() {
    for seed in seeds(0..4) {
        let mut world = settled(seed, Traffic::new(ONE_PACKET, 4));
        world.loss = world.rng.random_range(0..10);
        let dead = world.rng.random_range(0..ALL);
        world.kill(dead);
        let routes = world.ways;
        // Routes find out.
        world.ways[site_of(dead)] = [Some(1 - dead % SIZE); HOSTS];
        world.run(Duration::from_secs(6));
        check_progress(&mut world, Duration::from_secs(3));
        check_one_speaker(&world);
        world.begin(dead);
        world.ways = routes;
        world.run(Duration::from_secs(8));
        check_progress(&mut world, Duration::from_secs(3));
        check_one_speaker(&world);
        let speaks =
            (0..HOSTS).any(|host| world.speakers(site_of(dead), [ip(0, host), ip(1, host)]) == [dead]);
        assert!(speaks, "who returned speaks for nobody");
        assert_eq!(world.traffic.failed(), 0, "seed {seed}");
    }
}

/// A world with loss, whose routers choose a way for each host or, by odd seeds, for each packet.
fn about_to_upgrade(seed: u64) -> World {
    let mut world = retaining(seed, 4 << 20);
    world.loss = world.rng.random_range(0..15);
    if seed.is_multiple_of(2) {
        world.route();
    }
    world.run(Duration::from_secs(1));
    world
}

/// Other processes take the members' places, one after the other and then several at once, while
/// messages of many packets are under way: no flow ends. No pair moves while one is replaced.
#[test]
fn members_are_upgraded_and_no_flow_ends() {
    for seed in seeds(0..3) {
        let mut world = about_to_upgrade(seed);
        for round in 0..3 * ALL {
            let node = round % ALL;
            // Counts begin anew with a process.
            let moved = |world: &World| {
                (0..ALL).map(|other| if other == node { 0 } else { world.stats(other).moved }).sum::<u64>()
            };
            let before = moved(&world);
            let ticks = world.rng.random_range(1..1500);
            world.upgrade(node, ticks);
            world.run(Duration::from_millis(ticks + 1500));
            // Under loss a flow has stood still for more than 5 s, and went on.
            check_progress(&mut world, Duration::from_secs(15));
            check_one_speaker(&world);
            assert_eq!(world.traffic.failed(), 0, "round {round}");
            assert_eq!((moved(&world), world.stats(node).moved), (before, 0), "round {round}");
        }
    }
}

/// Two are replaced at once, of one site or of both.
#[test]
fn two_members_are_upgraded_at_once_and_no_flow_ends() {
    for seed in seeds(0..3) {
        let mut world = about_to_upgrade(seed);
        for round in 0..6 {
            let one = world.rng.random_range(0..ALL);
            let other = (one + world.rng.random_range(1..ALL)) % ALL;
            let ticks = [one, other].map(|node| {
                let ticks = world.rng.random_range(1..1500);
                world.upgrade(node, ticks);
                ticks
            });
            world.run(Duration::from_millis(ticks[0].max(ticks[1]) + 1500));
            check_progress(&mut world, Duration::from_secs(15));
            check_one_speaker(&world);
            assert_eq!(world.traffic.failed(), 0, "round {round}: {one} and {other}");
        }
    }
}

/// Hosts that only answer say nothing before they are asked. So nothing but records tells a gateway
/// that returns of them, and these go to the one that spoke meanwhile.
#[test]
fn hosts_that_only_answer_are_spoken_to_by_a_gateway_that_returns() {
    for seed in seeds(0..4) {
        let mut world = settled(seed, Traffic::new(ONE_PACKET, 4));
        let dead = world.rng.random_range(0..ALL);
        let asking = 1 - site_of(dead);
        world.kill(dead);
        let routes = world.ways;
        world.ways[site_of(dead)] = [Some(1 - dead % SIZE); HOSTS];
        world.run(Duration::from_secs(6));
        world.traffic.is_stopped = [true; 2];
        world.run(Duration::from_secs(1));
        world.begin(dead);
        world.ways = routes;
        world.run(Duration::from_secs(3));
        let before: Vec<_> = world.traffic.flows[asking].iter().map(|flow| flow.completed).collect();
        world.traffic.is_stopped[asking] = false;
        world.run(Duration::from_secs(5));
        world.traffic.check();
        for (host, before) in before.into_iter().enumerate() {
            let flow = &world.traffic.flows[asking][host];
            assert!(flow.completed > before && !flow.has_failed, "{flow:?}\n{}", world.describe(host));
        }
        let speaks =
            (0..HOSTS).any(|host| world.speakers(site_of(dead), [ip(0, host), ip(1, host)]) == [dead]);
        assert!(speaks, "who returned speaks for nobody");
    }
}

/// Each fault by itself, and its end.
#[test]
fn members_are_cut_off_and_their_hosts_go_on() {
    for seed in seeds(0..3) {
        let only = std::env::var("LONGHAUL_MEMBERS_KIND").ok().and_then(|kind| kind.parse().ok());
        for kind in (0..4).filter(|kind| only.is_none_or(|only: i32| only == *kind)) {
            println!("kind {kind}");
            let mut world = settled(seed, Traffic::new(ONE_PACKET, 4));
            let node = world.rng.random_range(0..ALL);
            let is_own = |other: usize| site_of(other) == site_of(node);
            let routes = world.ways;
            match kind {
                // From each other only, where routers lead each host's packets one way.
                0 => {
                    (0..ALL).filter(|other| is_own(*other)).for_each(|other| world.cut_both(node, other));
                    world.route();
                }
                // From the peers only.
                1 => (0..ALL).filter(|other| !is_own(*other)).for_each(|other| world.cut_both(node, other)),
                // From the hosts only, whose routes find out.
                2 => {
                    world.deaf[node] = true;
                    world.ways[site_of(node)] = [Some(1 - node % SIZE); HOSTS];
                }
                // From one peer only.
                _ => world.cut_both(node, (site_of(node) ^ 1) * SIZE),
            }
            world.run(Duration::from_secs(7));
            // Packets that hosts get go out by a member that they do not reach.
            if kind != 2 {
                check_progress(&mut world, Duration::from_secs(5));
                assert_eq!(world.traffic.failed(), 0, "seed {seed}, kind {kind}");
            }
            (world.cut, world.deaf, world.ways) = Default::default();
            world.ways = routes;
            world.run(Duration::from_secs(8));
            check_progress(&mut world, Duration::from_secs(4));
            check_one_speaker(&world);
        }
    }
}

/// A gateway whose interface is down still reaches all others. They speak for its hosts.
#[test]
fn the_hosts_of_a_gateway_whose_lan_is_down_go_on_by_the_other() {
    for seed in seeds(0..3) {
        let mut world = settled(seed, Traffic::new(ONE_PACKET, 4));
        let node = world.rng.random_range(0..ALL);
        let routes = world.ways;
        world.set_lan(node, false);
        world.ways[site_of(node)] = [Some(1 - node % SIZE); HOSTS];
        world.run(Duration::from_secs(3));
        check_progress(&mut world, Duration::from_secs(3));
        check_one_speaker(&world);
        let speakers = |world: &World, host: usize| world.speakers(site_of(node), [ip(0, host), ip(1, host)]);
        assert!((0..HOSTS).all(|host| speakers(&world, host) != [node]));
        world.set_lan(node, true);
        world.ways = routes;
        world.run(Duration::from_secs(4));
        check_progress(&mut world, Duration::from_secs(3));
        assert!((0..HOSTS).any(|host| speakers(&world, host) == [node]), "it speaks for nobody");
        assert_eq!(world.traffic.failed(), 0, "seed {seed}");
    }
}

/// Hosts that there are not, in frames and in messages of members, take nobody's place.
#[test]
fn floods_of_hosts_that_there_are_not_take_nobodys_place() {
    for seed in seeds(0..2) {
        println!("LONGHAUL_MEMBERS_SEED={seed}");
        let mut world = World::new(seed, Traffic::new(ONE_PACKET, 4), 3 * HOSTS);
        world.run(Duration::from_secs(5));
        for _ in 0..3000 {
            for _ in 0..3 {
                let host = |world: &mut World, site: usize| ip(site, world.rng.random_range(HOSTS..250));
                let (one, other) = (host(&mut world, 0), host(&mut world, 1));
                let (node, outside) = (world.rng.random_range(0..ALL), host(&mut world, 7));
                let own = [one, other][site_of(node)];
                let there = [other, one][site_of(node)];
                for ends in [[own, there], [outside, there], [own, outside], [there, own], [outside, outside]]
                {
                    world.inject(node, ends);
                }
                let to = (site_of(node) ^ 1) * SIZE + node % SIZE;
                let (pair, by) = (HostPair::new(own, outside), world.process(node));
                world.say(node, to, &Message::Claim(pair, Term { count: u64::MAX, by }));
                world.say(node, to, &Message::Wanted(pair));
                world.say(node, to, &Message::Wanted(HostPair::new(own, there)));
            }
            world.run(Duration::from_millis(1));
        }
        check_progress(&mut world, Duration::from_secs(3));
        check_one_speaker(&world);
        assert_eq!(world.traffic.failed(), 0);
        let malformed: u64 = (0..ALL).map(|node| world.stats(node).malformed).sum();
        assert!(malformed > 1000, "{malformed}");
    }
}

/// Only members of the own site hand frames over.
#[test]
fn a_frame_that_another_site_hands_over_is_refused() {
    let mut world = settled(0, Traffic::new(ONE_PACKET, 4));
    let before = [world.stats(0).not_yet, world.bad_records(0, SIZE)];
    assert!(world.hand_over(SIZE, 0, [ip(0, 0), ip(1, 0)]));
    world.run(Duration::from_millis(50));
    assert_eq!([world.stats(0).not_yet, world.bad_records(0, SIZE)], [before[0], before[1] + 1]);
}

/// Long messages, and faults in any order: what arrives is right and comes once, and who fails
/// does so at both ends.
#[test]
fn whatever_happens_contents_are_right_and_come_once() {
    let (mut failed, mut completed) = (0, 0);
    for seed in seeds(0..6) {
        let mut world = settled(seed, Traffic::new(20_000, 3));
        world.loss = world.rng.random_range(0..20);
        // As routers do, which keep the order of a host's packets.
        world.route();
        for _ in 0..world.rng.random_range(2..8) {
            let (node, other) = (world.rng.random_range(0..ALL), world.rng.random_range(0..ALL));
            match world.rng.random_range(0..6) {
                0 if world.lives(node) => world.kill(node),
                0 | 1 if !world.lives(node) => world.begin(node),
                1 | 2 => world.cut_both(node, other),
                3 => (world.cut, world.deaf) = Default::default(),
                4 => world.route(),
                _ => world.deaf[node] ^= true,
            }
            let time = world.rng.random_range(1..4000);
            world.run(Duration::from_millis(time));
            world.traffic.check();
        }
        (world.cut, world.deaf, world.loss) = Default::default();
        (0..ALL).filter(|node| !world.lives(*node)).collect::<Vec<_>>().into_iter().for_each(|node| {
            world.begin(node);
        });
        world.run(Duration::from_secs(40));
        check_one_speaker_of_working(&world);
        check_progress(&mut world, Duration::from_secs(5));
        failed += world.traffic.failed();
        completed += world.traffic.completed().iter().sum::<u64>();
    }
    println!("{failed} flows failed, {completed} operations completed");
    assert!(completed > 0);
}

/// A world whose flows send messages of many packets, and whose gateways retain so many bytes.
fn retaining(seed: u64, bytes: usize) -> World {
    println!("LONGHAUL_MEMBERS_SEED={seed}");
    let mut world = World::new(seed, Traffic::new(20_000, 3), 100);
    world.retained_bytes = Some(bytes);
    (0..ALL).for_each(|node| world.begin(node));
    world.run(Duration::from_secs(5));
    world
}

/// Returns how many requests these gateways retain.
fn retained(world: &World, is_meant: impl Fn(usize) -> bool) -> u32 {
    (0..ALL).filter(|node| is_meant(*node)).map(|node| world.retained(node)).sum()
}

/// Waits until these gateways retain something: requesters are told ahead of their targets.
fn await_retained(world: &mut World, is_meant: impl Fn(usize) -> bool) {
    let mut patience = 0..5000;
    while retained(world, &is_meant) < 5 && patience.next().is_some() {
        world.run(Duration::from_millis(1));
    }
    assert!(retained(world, &is_meant) >= 5, "nothing is retained");
}

/// A gateway dies, is cut off from the other site, or loses its LAN.
fn take_away(world: &mut World, node: usize, kind: u64) {
    let others = (0..ALL).filter(|other| site_of(*other) != site_of(node));
    match kind {
        0 => world.kill(node),
        1 => others.for_each(|other| world.cut_both(node, other)),
        _ => world.set_lan(node, false),
    }
}

/// Returns how many flows of a site's requesters have failed.
fn failed_of(world: &World, site: usize) -> usize {
    world.traffic.flows[site].iter().filter(|flow| flow.has_failed).count()
}

/// A speaker goes, amid messages of many packets. Its pairs get another one. Flows of the other
/// site's requesters move there with what is retained of them, and hardly any ends. Of those that
/// left it behind, a quarter did.
#[test]
fn what_is_retained_goes_along_with_flows_that_move() {
    let (mut failed, mut flows) = (0, 0);
    for seed in seeds(0..10) {
        let mut world = retaining(seed, 1 << 20);
        world.loss = 20;
        world.route();
        let node = world.rng.random_range(0..ALL);
        let living = 1 - site_of(node);
        await_retained(&mut world, |node| site_of(node) == living);
        take_away(&mut world, node, seed % 3);
        world.ways[site_of(node)] = [Some(1 - node % SIZE); HOSTS];
        world.run(Duration::from_secs(30));
        check_progress(&mut world, Duration::from_secs(5));
        (failed, flows) = (failed + failed_of(&world, living), flows + HOSTS);
    }
    println!("{failed} of {flows} flows failed");
    assert!(10 * failed <= flows, "{failed} of {flows}");
}

/// If its own site's speaker changes, what is retained of a flow stays behind with another process.
/// The flow goes on without that, or it ends at both ends: nothing that its requester was told is
/// missing behind a success.
#[test]
fn what_is_retained_is_missed_by_nobody_when_flows_move() {
    let (mut failed, mut moved) = (0, 0);
    for seed in seeds(0..6) {
        let mut world = retaining(seed, 1 << 20);
        world.loss = 20;
        world.route();
        for _ in 0..3 {
            await_retained(&mut world, |_| true);
            let node = world.rng.random_range(0..ALL);
            let before =
                (0..ALL).filter(|node| world.lives(*node)).map(|node| world.stats(node).moved).sum::<u64>();
            take_away(&mut world, node, seed % 3);
            let routes = world.ways;
            world.ways[site_of(node)] = [Some(1 - node % SIZE); HOSTS];
            world.run(Duration::from_secs(4));
            world.traffic.check();
            let lives: Vec<_> = (0..ALL).filter(|node| world.lives(*node)).collect();
            moved += lives.iter().map(|node| world.stats(*node).moved).sum::<u64>().saturating_sub(before);
            world.cut = Default::default();
            if !world.lives(node) {
                world.begin(node);
            }
            world.set_lan(node, true);
            world.ways = routes;
            world.run(Duration::from_secs(4));
            world.traffic.check();
            if world.traffic.failed() == 2 * HOSTS {
                break;
            }
        }
        world.loss = 0;
        world.run(Duration::from_secs(40));
        check_progress(&mut world, Duration::from_secs(5));
        world.traffic.is_stopped = [true; 2];
        world.run(Duration::from_secs(5));
        world.traffic.check();
        failed += world.traffic.failed();
        // Nothing is kept for a flow that is gone.
        if world.traffic.failed() == 0 {
            assert_eq!(retained(&world, |_| true), 0, "seed {seed}");
        }
    }
    println!("{failed} flows failed, {moved} pairs moved");
    assert!(moved > 0);
}

/// Hosts whose programs have failed send nothing that anybody would speak for.
fn check_one_speaker_of_working(world: &World) {
    for site in 0..2 {
        for host in (0..HOSTS).filter(|host| !world.traffic.flows[0][*host].has_failed) {
            let speakers = world.speakers(site, [ip(0, host), ip(1, host)]);
            assert_eq!(speakers.len(), 1, "site {site}, hosts {host}: {speakers:?}");
        }
    }
}
