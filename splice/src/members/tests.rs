//! Members of two sites, in a simulated world and one by one.

mod liars;
mod world;

use std::ops::Range;

use rand::RngExt as _;

use super::*;
use world::{PAIRS, SIZE, World, came, host, id, pair, site};

/// Seeds: `LONGHAUL_MEMBERS_SEED=4711` one, `LONGHAUL_MEMBERS_SEEDS=1000..2000` a range.
fn seeds(usual: Range<u64>) -> Range<u64> {
    let number = |text: &str| text.parse::<u64>().unwrap();
    if let Ok(one) = std::env::var("LONGHAUL_MEMBERS_SEED") {
        return number(&one)..number(&one) + 1;
    }
    let Ok(range) = std::env::var("LONGHAUL_MEMBERS_SEEDS") else { return usual };
    let (first, end) = range.split_once("..").unwrap();
    number(first)..number(end)
}

/// One fault, or the end of one.
fn fault(world: &mut World) {
    let node = world.rng.random_range(0..2 * SIZE);
    let own = node / SIZE * SIZE..node / SIZE * SIZE + SIZE;
    let is_cut = world.rng.random_bool(0.6);
    let kind = world.rng.random_range(0..11);
    world.note(&format!("fault {kind} of {:?}: {is_cut}", id(node)));
    match kind {
        // From each other only: a whole site, or one member.
        0 => own.clone().for_each(|a| own.clone().for_each(|b| world.cut[a][b] = is_cut)),
        1 => own.for_each(|other| (world.cut[node][other], world.cut[other][node]) = (is_cut, is_cut)),
        // From the peers only.
        2 => (0..2 * SIZE).filter(|peer| !own.contains(peer)).for_each(|peer| {
            (world.cut[node][peer], world.cut[peer][node]) = (is_cut, is_cut);
        }),
        // From the hosts only.
        3 => world.deaf[node] = is_cut,
        // Any way, one direction only.
        4 => {
            let to = world.rng.random_range(0..2 * SIZE);
            world.cut[node][to] = is_cut;
        }
        // Islands: the same place of both sites.
        5 => {
            let is_in = |other: usize| other % SIZE == node % SIZE;
            for a in 0..2 * SIZE {
                for b in 0..2 * SIZE {
                    world.cut[a][b] = is_cut && is_in(a) != is_in(b);
                }
            }
        }
        6 => world.route(),
        7 => {
            let number = world.rng.random_range(0..PAIRS);
            world.ways[node / SIZE][number] = None;
        }
        8 | 9 if world.nodes[node].core.is_some() => {
            let ticks = world.rng.random_range(1..2500);
            world.upgrade(node, ticks);
        }
        _ if world.nodes[node].core.is_some() || world.nodes[node].heir.is_some() => world.kill(node),
        _ => world.start(node),
    }
}

/// Whatever is cut, dies and returns: no peer agrees with two at a time, which each step checks.
/// Once faults cease, each pair has one speaker within the bound, and keeps it.
#[test]
fn nobody_speaks_beside_another_and_in_the_end_each_pair_has_its_owner() {
    let mut total = world::Counts::default();
    let (mut moves, mut islands) = (0, 0);
    for seed in seeds(0..40) {
        println!("LONGHAUL_MEMBERS_SEED={seed}");
        let mut world = World::new(seed);
        world.loss = world.rng.random_range(0..20);
        for _ in 0..world.rng.random_range(5..25) {
            fault(&mut world);
            let ticks = world.rng.random_range(1..1500);
            world.run(ticks);
        }
        for own in [0, 1] {
            if (0..SIZE).all(|place| world.nodes[own * SIZE + place].core.is_none()) {
                world.start(own * SIZE);
            }
        }
        world.heal();
        // What is on its way is a fault's, too.
        world.run(2000);
        world.run(World::settled());
        let terms = world.check_settled();
        let before = world.counts;
        for _ in 0..500 {
            world.run(1);
            assert_eq!(world.check_settled(), terms, "it moves without a fault");
        }
        let (counts, after) = (&mut total, world.counts);
        assert_eq!((after.waited, after.strays), (before.waited, before.strays), "something was dropped");
        assert!(after.across > before.across + 500, "records do not arrive");
        counts.here += after.here;
        counts.handed += after.handed;
        counts.waited += after.waited;
        counts.strays += after.strays;
        (moves, islands) = (moves + world.moves, islands + world.islands);
    }
    println!("{total:?}, {moves} moves, {islands} times two islands");
    // The faults did what they were meant to.
    assert!(total.handed > 0 && total.waited > 0 && total.strays > 0 && moves > 0, "{total:?}");
}

/// A death moves the dead member's pairs only, and its return only those that it gets.
#[test]
fn a_death_and_a_return_move_no_other_pair() {
    for seed in seeds(0..10) {
        println!("LONGHAUL_MEMBERS_SEED={seed}");
        let mut world = World::new(seed);
        world.run(World::settled());
        let before = world.check_settled();
        let dead = world.rng.random_range(0..2 * SIZE);
        world.kill(dead);
        let bound = World::settled();
        let is_others =
            |key: &(usize, usize), term: &Term| key.0 != dead / SIZE || term.by.member != id(dead);
        let others: Vec<_> = before.iter().filter(|(key, term)| is_others(key, term)).collect();
        assert!(others.len() < before.len() && others.len() >= PAIRS);
        for _ in 0..bound {
            world.run(1);
            for ((own, number), term) in &others {
                let speakers = world.speakers(*own, *number);
                assert!(matches!(speakers[..], [(_, now)] if now == **term), "pair {number}: {speakers:?}");
            }
        }
        // Routers still lead frames to the dead; those of other ways come to the new owner.
        world.heal();
        world.run(bound);
        let without = world.check_settled();
        world.start(dead);
        world.run(bound);
        let after = world.check_settled();
        for (key, term) in &without {
            assert!(after[key] == *term || after[key].by.member == id(dead), "{key:?} moved");
        }
        assert!(after.values().any(|term| term.by.member == id(dead)));
    }
}

/// Other processes take the members' places one by one, wherever frames come: no pair moves. Who
/// goes on speaks under the same terms, and nobody did meanwhile.
#[test]
fn an_upgrade_moves_no_pair() {
    for seed in seeds(0..20) {
        println!("LONGHAUL_MEMBERS_SEED={seed}");
        let mut world = World::new(seed);
        world.run(World::settled());
        let before = world.check_settled();
        for node in 0..2 * SIZE {
            let ticks = world.rng.random_range(1..2000);
            world.upgrade(node, ticks);
            for tick in 0..ticks + 20 * world::WAY {
                world.run(1);
                for ((own, number), term) in &before {
                    let speakers = world.speakers(*own, *number);
                    let is_replaced = term.by.member == id(node);
                    assert!(
                        matches!(speakers[..], [(_, now)] if now == *term)
                            || is_replaced && speakers.is_empty(),
                        "pair {number} at tick {tick} of {ticks}: {speakers:?}"
                    );
                }
            }
            assert_eq!(world.check_settled(), before);
        }
        assert_eq!(world.moves, 0);
    }
}

/// Whoever says that it pauses, and never returns, is replaced when that time is over.
#[test]
fn who_pauses_and_dies_is_replaced() {
    for seed in seeds(0..5) {
        println!("LONGHAUL_MEMBERS_SEED={seed}");
        let mut world = World::new(seed);
        world.run(World::settled());
        let node = world.rng.random_range(0..2 * SIZE);
        world.upgrade(node, u64::MAX / 2);
        world.run(1000);
        world.kill(node);
        world.heal();
        world.run(kept::LONGEST_PAUSE.as_millis() as u64 + World::settled());
        world.check_settled();
    }
}

#[test]
fn owners_are_alike_everywhere_and_spread() {
    let members = site(0);
    let mut shares = [0; SIZE];
    for number in 0..200 {
        let owned = owner(pair(number), members);
        assert_eq!(owned, owner(pair(number), members.into_iter().rev()));
        let place = members.iter().position(|member| Some(*member) == owned).unwrap();
        shares[place] += 1;
        // Without another, the pair stays.
        for gone in members.iter().filter(|member| Some(**member) != owned) {
            let rest = members.iter().copied().filter(|member| member != gone);
            assert_eq!(owner(pair(number), rest), owned);
        }
    }
    assert!(shares.iter().all(|share| (40..100).contains(share)), "{shares:?}");
    assert_eq!(owner(pair(1), []), None);
    let (one, other) = ("fd00::1".parse().unwrap(), "10.0.0.1".parse().unwrap());
    assert_eq!(HostPair::new(one, other), HostPair::new(other, one));
}

fn process(member: MemberId, incarnation: u64) -> Process {
    Process { member, incarnation }
}

/// Takes what a member has to say to the peer.
fn said(member: &mut Members) -> Vec<Message> {
    std::iter::from_fn(|| member.poll_transmit()).map(|(_, message)| message).collect()
}

/// A member alone at its site and its peer, with a lease.
fn alone() -> (Members, Process, LeaseId, Instant) {
    let (times, now) = (Times::default(), crate::test_clock());
    let (me, peer) = (process(MemberId(1), 7), process(MemberId(9), 8));
    let mut member =
        Members::new((me, Towards(7)), &[MemberId(2), MemberId(3)], &[peer.member], (times, 2), now);
    let now = now + times.dead;
    member.handle_timeout(now);
    let lease = LeaseId { incarnation: 8, count: 3 };
    let sent = said(&mut member).into_iter().find_map(|message| match message {
        Message::Beat(sent) => Some(sent),
        _ => None,
    });
    member.handle_message(peer, Message::Beaten(sent.unwrap(), Some(lease)), now);
    (member, peer, lease, now)
}

#[test]
fn without_agreement_or_after_the_lease_nothing_is_said() {
    let (mut member, peer, lease, now) = alone();
    assert_eq!(member.arrived(pair(1), came(0, 1, None), now), Fate::NotYet);
    let [Message::Claim(_, term)] = said(&mut member)[..] else { panic!("no claim") };
    assert_eq!(member.arrived(pair(1), came(0, 1, None), now), Fate::NotYet);
    assert_eq!(said(&mut member), [], "asked a moment ago");
    // Of another term, of another lease, of a stranger.
    let later = Term { count: term.count + 1, ..term };
    let other = LeaseId { count: 4, ..lease };
    member.handle_message(peer, Message::Agreed(pair(1), later, lease, Since(1)), now);
    member.handle_message(peer, Message::Agreed(pair(1), term, other, Since(1)), now);
    member.handle_message(process(MemberId(5), 1), Message::Agreed(pair(1), term, lease, Since(1)), now);
    assert!(!member.speaks(pair(1), now));
    member.handle_message(peer, Message::Agreed(pair(1), term, lease, Since(1)), now);
    assert_eq!((member.term(pair(1), now), member.speaks(pair(2), now)), (Some(term), false));
    assert_eq!(member.arrived(pair(1), came(0, 1, None), now), Fate::Here);
    let end = now + Times::default().lease;
    assert!(member.speaks(pair(1), end - Duration::from_nanos(1)) && !member.speaks(pair(1), end));
}

/// Where hosts say nothing only records come, and they come to the one that the peers agree with.
#[test]
fn who_is_owner_no_more_tells_the_owner_that_the_pair_is_wanted() {
    let (mut member, peer, lease, now) = alone();
    let is_others = |number: &usize| owner(pair(*number), [1, 2].map(MemberId)) == Some(MemberId(2));
    let number = (1..50).find(is_others).unwrap();
    let arrive = |member: &mut Members, now| member.arrived(pair(number), came(0, number, None), now);
    arrive(&mut member, now);
    let [Message::Claim(_, term)] = said(&mut member)[..] else { panic!("no claim") };
    member.handle_message(peer, Message::Agreed(pair(number), term, lease, Since(1)), now);
    assert!(member.speaks(pair(number), now));
    let reach = Reach { steadily: 1, lately: 1 };
    member.handle_message(process(MemberId(2), 1), Message::Alive(Towards(7), reach), now);
    // Now and then, until the owner has claimed it.
    let now = now + Times::default().retry;
    for told in [&[Message::Wanted(pair(number))][..], &[]] {
        assert_eq!(arrive(&mut member, now), Fate::HandOver(MemberId(2)));
        assert_eq!(said(&mut member), told);
    }
    let to = Term { count: term.count + 1, by: process(MemberId(2), 1) };
    member.handle_message(peer, Message::Yield(pair(number), to), now);
    assert_eq!(said(&mut member), [Message::Yielded(pair(number), to)]);
    let now = now + Times::default().retry;
    assert_eq!(arrive(&mut member, now), Fate::HandOver(MemberId(2)));
    assert_eq!(said(&mut member), []);
}

#[test]
fn an_owner_claims_what_another_member_says_is_wanted() {
    let (mut member, peer, lease, now) = alone();
    member.handle_message(process(MemberId(2), 1), Message::Wanted(pair(1)), now);
    let [Message::Claim(_, term)] = said(&mut member)[..] else { panic!("no claim") };
    member.handle_message(peer, Message::Agreed(pair(1), term, lease, Since(1)), now);
    assert!(member.speaks(pair(1), now));
    // Not of a stranger, nor where another one is the owner.
    member.handle_message(process(MemberId(5), 1), Message::Wanted(pair(2)), now);
    let reach = Reach { steadily: 1, lately: 1 };
    member.handle_message(process(MemberId(2), 1), Message::Alive(Towards(7), reach), now);
    let is_others = |number: &usize| owner(pair(*number), [1, 2].map(MemberId)) == Some(MemberId(2));
    let number = (2..50).find(is_others).unwrap();
    member.handle_message(process(MemberId(2), 1), Message::Wanted(pair(number)), now);
    assert_eq!(said(&mut member), []);
}

#[test]
fn who_is_outbid_is_silent_says_so_and_hands_over_once() {
    let (mut member, peer, lease, now) = alone();
    member.arrived(pair(1), came(0, 1, None), now);
    let [Message::Claim(_, term)] = said(&mut member)[..] else { panic!("no claim") };
    member.handle_message(peer, Message::Agreed(pair(1), term, lease, Since(1)), now);
    let to = Term { count: term.count + 4, by: process(MemberId(2), 1) };
    member.handle_message(peer, Message::Yield(pair(1), to), now);
    assert_eq!(said(&mut member), [Message::Yielded(pair(1), to)]);
    // What the peer had said before is void.
    member.handle_message(peer, Message::Agreed(pair(1), term, lease, Since(1)), now);
    assert!(!member.speaks(pair(1), now));
    assert_eq!(member.arrived(pair(1), came(0, 1, None), now), Fate::HandOver(MemberId(2)));
    assert_eq!(member.arrived(pair(1), came(0, 1, Some(MemberId(3))), now), Fate::Stray);
    assert_eq!(said(&mut member), []);
    // Who outbid it hands the pair over, or is left in peace for a while.
    assert_eq!(member.arrived(pair(1), came(0, 1, Some(MemberId(2))), now), Fate::NotYet);
    let [Message::Claim(_, next)] = said(&mut member)[..] else { panic!("no claim") };
    assert!(next.is_above(to) && next.by == term.by);
    // Pairs of which both hosts were heard make room for no other.
    for number in [1, 2] {
        assert_ne!(member.arrived(pair(number), came(0, number, None), now), Fate::Full);
        assert_ne!(member.arrived(pair(number), came(1, number, None), now), Fate::Full);
    }
    assert_eq!(member.arrived(pair(3), came(0, 3, None), now), Fate::Full);
}

#[test]
fn a_peer_just_started_agrees_with_nobody_and_a_liar_gets_nothing() {
    let (times, start) = (Times::default(), crate::test_clock());
    let mut arbiter = Members::new(
        (process(MemberId(9), 8), Towards(7)),
        &[],
        &[MemberId(1), MemberId(2)],
        (times, 2),
        start,
    );
    let one = process(MemberId(1), 7);
    let term = Term { count: 1, by: one };
    arbiter.handle_message(one, Message::Beat(5), start);
    arbiter.handle_message(one, Message::Claim(pair(1), term), start);
    assert_eq!(said(&mut arbiter), [Message::Beaten(5, None)]);
    let now = start + times.lease_by_peer();
    arbiter.handle_message(one, Message::Claim(pair(1), term), now);
    assert_eq!(said(&mut arbiter), [], "without a lease");
    arbiter.handle_message(one, Message::Beat(6), now);
    arbiter.handle_message(one, Message::Claim(pair(1), Term { by: process(MemberId(2), 7), ..term }), now);
    let said = said(&mut arbiter);
    assert!(matches!(said[..], [Message::Beaten(6, Some(_))]), "in another's name: {said:?}");
    assert_eq!(arbiter.towards(pair(1), now), Some(MemberId(1)));
    assert_eq!(arbiter.towards(pair(1), now + times.lease_by_peer()), None);
}
