//! Members that lie, that are old, or that want everything: what they say harms nobody once they
//! are gone, and nobody else's pairs before.

use std::net::Ipv4Addr;

use super::*;

/// Leases of all peers, whose process is 8, from a beat that was just sent.
fn lease(member: &mut Members, peers: &[MemberId], now: Instant) {
    let mut sent = Vec::new();
    while let Some((to, message)) = member.poll_transmit() {
        if let Message::Beat(number) = message {
            sent.push((to, number));
        }
    }
    for peer in peers {
        let (_, number) = sent.iter().find(|(to, _)| to == peer).unwrap();
        let lease = LeaseId { incarnation: 8, count: 1 };
        member.handle_message(process(*peer, 8), Message::Beaten(*number, Some(lease)), now);
    }
}

/// Whatever one of them says, no honest peer agrees with two honest members at a time. Once it is
/// gone each pair has its owner within the bound, and so again after it has come back, honest.
#[test]
fn a_member_that_lies_harms_nobody_for_longer_than_it_lives() {
    for seed in seeds(0..30) {
        println!("LONGHAUL_MEMBERS_SEED={seed}");
        let mut world = World::new(seed);
        world.run(World::settled());
        let liars = [world.rng.random_range(0..2 * SIZE), world.rng.random_range(0..2 * SIZE)];
        // At least one of each site is honest.
        for liar in liars {
            world.nodes[liar].lies = true;
        }
        for _ in 0..world.rng.random_range(1..6) {
            fault(&mut world);
            let ticks = world.rng.random_range(1..1500);
            world.run(ticks);
        }
        for liar in liars {
            world.kill(liar);
            world.nodes[liar].lies = false;
        }
        for own in [0, 1] {
            if (0..SIZE).all(|place| world.nodes[own * SIZE + place].core.is_none()) {
                let honest = (0..SIZE).find(|place| !liars.contains(&(own * SIZE + place))).unwrap();
                world.start(own * SIZE + honest);
            }
        }
        // Hosts that there are not are forgotten as others are.
        world.full_until = world.tick + 2000 + World::times().idle.as_millis() as u64 * 11 / 10;
        world.heal();
        // A liar may have said at last that it pauses.
        world.run(2000 + kept::LONGEST_PAUSE.as_millis() as u64);
        world.run(World::settled());
        world.check_settled();
        for liar in liars {
            world.start(liar);
        }
        world.run(World::settled());
        world.check_settled();
    }
}

/// The highest count is followed by the lowest one.
#[test]
fn no_term_is_the_last_one() {
    let term = |count, member| Term { count, by: process(MemberId(member), 1) };
    for count in [0, 5, 1 << 63, u64::MAX] {
        assert!(term(count.wrapping_add(1), 1).is_above(term(count, 2)));
        assert!(!term(count, 2).is_above(term(count.wrapping_add(1), 1)));
        assert!(term(count, 2).is_above(term(count, 1)) && !term(count, 1).is_above(term(count, 1)));
        let (one, opposite) = (term(count, 1), term(count.wrapping_add(1 << 63), 2));
        assert_ne!(one.is_above(opposite), opposite.is_above(one));
    }
    // A member that is told of the highest one claims again.
    for told in [u64::MAX, u64::MAX - 1, 1 << 63] {
        let (mut member, peer, _, now) = alone();
        member.arrived(pair(1), came(0, 1, None), now);
        let [Message::Claim(_, claimed)] = said(&mut member)[..] else { panic!("no claim") };
        let high = term(told, 2);
        let above = high.is_above(claimed);
        member.handle_message(peer, Message::Outbid(pair(1), claimed, high), now);
        member.handle_message(peer, Message::Yield(pair(1), high), now);
        let _ = said(&mut member);
        let now = now + Times::default().hold_off.max(Times::default().retry);
        member.handle_timeout(now);
        lease(&mut member, &[peer.member], now);
        assert_eq!(member.arrived(pair(1), came(0, 1, None), now), Fate::NotYet);
        let [Message::Claim(_, next)] = said(&mut member)[..] else { panic!("no claim after {told}") };
        assert!(!above || next.is_above(high), "{next:?}");
    }
}

/// Terms bind as long as whoever claimed them has a lease.
#[test]
fn what_a_dead_process_claimed_is_in_nobodys_way() {
    let (times, start) = (Times::default(), crate::test_clock());
    let mut arbiter = arbiter_of(&[1, 2], 10, start);
    let now = start + times.lease_by_peer();
    let (liar, honest) = (process(MemberId(1), 7), process(MemberId(2), 7));
    arbiter.handle_message(liar, Message::Beat(1), now);
    arbiter.handle_message(honest, Message::Beat(1), now);
    let high = Term { count: u64::MAX, by: liar };
    let low = Term { count: 1 << 62, by: honest };
    arbiter.handle_message(liar, Message::Claim(pair(1), high), now);
    let _ = said(&mut arbiter);
    arbiter.handle_message(honest, Message::Claim(pair(1), low), now);
    assert!(
        matches!(said(&mut arbiter)[..], [Message::Yield(_, to)] if to == low),
        "0 is ahead of the highest"
    );
    let behind = Term { count: u64::MAX - 5, by: honest };
    arbiter.handle_message(honest, Message::Claim(pair(2), Term { count: u64::MAX - 9, by: honest }), now);
    arbiter.handle_message(liar, Message::Claim(pair(2), high), now);
    let _ = said(&mut arbiter);
    arbiter.handle_message(honest, Message::Claim(pair(2), behind), now);
    assert!(matches!(said(&mut arbiter)[..], [Message::Outbid(_, _, by)] if by == high));
    // The liar dies.
    let later = now + times.lease_by_peer() / 2;
    arbiter.handle_message(honest, Message::Beat(2), later);
    let later = now + times.lease_by_peer();
    let _ = said(&mut arbiter);
    arbiter.handle_message(honest, Message::Claim(pair(2), behind), later);
    assert!(matches!(said(&mut arbiter)[..], [Message::Agreed(_, term, ..)] if term == behind));
}

/// A peer that says so falsely would have it released at the others while it is spoken for.
#[test]
fn an_outbid_by_a_term_that_is_not_above_ends_no_claim() {
    let (mut member, peer, lease, now) = alone();
    member.arrived(pair(1), came(0, 1, None), now);
    let [Message::Claim(_, term)] = said(&mut member)[..] else { panic!("no claim") };
    member.handle_message(peer, Message::Agreed(pair(1), term, lease, Since(1)), now);
    let lower = Term { count: term.count - 1, by: process(MemberId(2), 1) };
    for by in [lower, term] {
        member.handle_message(peer, Message::Outbid(pair(1), term, by), now);
        assert_eq!(said(&mut member), []);
        assert_eq!(member.term(pair(1), now), Some(term));
    }
}

fn arbiter_of(members: &[u32], pairs: usize, start: Instant) -> Members {
    let members: Vec<_> = members.iter().map(|number| MemberId(*number)).collect();
    let me = (process(MemberId(9), 8), Towards(7));
    Members::new(me, &[], &members, (Times::default(), pairs), start)
}

/// Says whether a claim was agreed to.
fn is_agreed(arbiter: &mut Members, number: usize, term: Term, now: Instant) -> bool {
    arbiter.handle_message(term.by, Message::Claim(pair(number), term), now);
    said(arbiter).iter().any(|message| matches!(message, Message::Agreed(..)))
}

#[test]
fn lives_of_one_member_leave_leases_to_the_others() {
    let times = Times::default();
    let start = crate::test_clock();
    let mut arbiter = arbiter_of(&[1, 2], 10, start);
    let now = start + times.lease_by_peer();
    for life in 0..1000 {
        arbiter.handle_message(process(MemberId(1), life), Message::Beat(1), now);
    }
    let _ = said(&mut arbiter);
    arbiter.handle_message(process(MemberId(2), 7), Message::Beat(1), now);
    assert!(matches!(said(&mut arbiter)[..], [Message::Beaten(1, Some(_))]));
}

/// Over its life a gateway sees more pairs than it may know at a time.
#[test]
fn pairs_that_are_released_leave_room_for_others() {
    let (times, start) = (Times::default(), crate::test_clock());
    let mut arbiter = arbiter_of(&[1], 10, start);
    let (one, mut now) = (process(MemberId(1), 7), start + times.lease_by_peer());
    for number in 0..100 {
        arbiter.handle_message(one, Message::Beat(1), now);
        let term = Term { count: 1, by: one };
        assert!(is_agreed(&mut arbiter, number, term, now), "pair {number}");
        arbiter.handle_message(one, Message::Release(pair(number), term), now);
        now += times.beat;
    }
    // A word that a pair is released may be lost: the holder is asked.
    for number in 0..10 {
        assert!(is_agreed(&mut arbiter, number, Term { count: 1, by: one }, now), "pair {number}");
    }
    let mut asked = Vec::new();
    for _ in 0..30 {
        now += times.beat;
        arbiter.handle_message(one, Message::Beat(1), now);
        arbiter.handle_timeout(now);
        let all = said(&mut arbiter).into_iter();
        asked.extend(all.filter_map(|message| match message {
            Message::Yield(pair, term) => Some((pair, term)),
            _ => None,
        }));
    }
    assert!(asked.len() >= 10, "{asked:?}");
    // Who claims it says nothing else, and who does not releases it.
    let (mut member, peer, lease, now) = alone();
    member.arrived(pair(1), came(0, 1, None), now);
    let [Message::Claim(_, term)] = said(&mut member)[..] else { panic!("no claim") };
    member.handle_message(peer, Message::Agreed(pair(1), term, lease, Since(1)), now);
    member.handle_message(peer, Message::Yield(pair(1), term), now);
    assert_eq!((said(&mut member), member.speaks(pair(1), now)), (vec![], true));
    member.handle_message(peer, Message::Yield(pair(2), term), now);
    assert_eq!(said(&mut member), [Message::Release(pair(2), term)]);
}

#[test]
fn a_member_that_claims_everything_leaves_room_for_the_others() {
    let (times, start) = (Times::default(), crate::test_clock());
    let mut arbiter = arbiter_of(&[1, 2], 90, start);
    let (greedy, other) = (process(MemberId(1), 7), process(MemberId(2), 7));
    let now = start + times.lease_by_peer();
    arbiter.handle_message(greedy, Message::Beat(1), now);
    arbiter.handle_message(other, Message::Beat(1), now);
    let count =
        (0..250).filter(|number| is_agreed(&mut arbiter, *number, Term { count: 1, by: greedy }, now));
    assert_eq!(count.count(), 91, "one alone may have as many as it may claim");
    let own = (200..250).filter(|number| is_agreed(&mut arbiter, *number, Term { count: 1, by: other }, now));
    assert!(own.count() >= 8);
}

/// A host that sends to everybody, or in everybody's name.
#[test]
fn a_flood_of_pairs_displaces_none_that_answers_and_leaves_room_for_a_new_one() {
    let (times, start) = (Times::default(), crate::test_clock());
    let (me, peer) = (process(MemberId(1), 7), process(MemberId(9), 8));
    let mut member = Members::new((me, Towards(7)), &[], &[peer.member], (times, 40), start);
    let now = start + times.dead;
    member.handle_timeout(now);
    lease(&mut member, &[peer.member], now);
    let agree = |member: &mut Members| {
        let lease = LeaseId { incarnation: 8, count: 1 };
        for message in said(member) {
            if let Message::Claim(pair, term) = message {
                member.handle_message(peer, Message::Agreed(pair, term, lease, Since(1)), now);
            }
        }
    };
    let speak = |member: &mut Members, number: usize| {
        for _ in 0..2 {
            member.arrived(pair(number), came(0, number, None), now);
            agree(member);
            member.arrived(pair(number), came(1, number, None), now);
        }
    };
    (0..10).for_each(|number| speak(&mut member, number));
    for one_host in [true, false] {
        for number in 0..2000_u32 {
            let other = IpAddr::V4(Ipv4Addr::from_bits(0x0a09_0000 + number));
            let from = if one_host { host(0, 99) } else { other };
            let to = if one_host { other } else { host(1, 99) };
            member.arrived(HostPair::new(from, to), Came { from, handed_by: None }, now);
            agree(&mut member);
        }
        let number = 20 + usize::from(one_host);
        speak(&mut member, number);
        assert!(member.speaks(pair(number), now), "a new one");
    }
    assert!((0..10).all(|number| member.speaks(pair(number), now)));
    // What gave way is told of.
    let news: Vec<_> = std::iter::from_fn(|| member.poll_news()).collect();
    let gone = news.into_iter().filter(|pair| !member.knows(*pair)).count();
    assert!(gone > 1000, "{gone}");
}

/// A member of which others are told more than there is.
#[test]
fn who_says_that_it_reaches_more_is_alone_for_nobody() {
    let (times, now) = (Times::default(), crate::test_clock());
    let (me, peers) = (process(MemberId(1), 7), [MemberId(9)]);
    let mut member = Members::new((me, Towards(7)), &[MemberId(2)], &peers, (times, 4), now);
    let other = process(MemberId(2), 1);
    let mut now = now;
    for _ in 0..20 {
        now += times.beat;
        member.handle_timeout(now);
        lease(&mut member, &peers, now);
    }
    let live = |member: &Members| member.live(now).collect::<Vec<_>>();
    assert_eq!(live(&member), [MemberId(1)]);
    for (steadily, lately) in [(255, 255), (2, 2), (1, 0), (255, 0)] {
        let reach = Reach { steadily, lately };
        member.handle_message(other, Message::Alive(Towards(7), reach), now);
        assert_eq!(live(&member), [MemberId(2), MemberId(1)], "{reach:?}");
    }
    // It reaches nobody of another site.
    member.handle_message(other, Message::Alive(Towards(8), Reach::default()), now);
    assert_eq!(live(&member), [MemberId(2), MemberId(1)]);
    member.handle_message(other, Message::Alive(Towards(7), Reach::default()), now);
    assert_eq!(live(&member), [MemberId(1)]);
}

/// A member without hosts takes no part, and keeps what it had if nobody took it.
#[test]
fn a_member_that_reaches_no_hosts_is_silent_until_it_does() {
    let (mut member, peer, lease, now) = alone();
    member.arrived(pair(1), came(0, 1, None), now);
    let [Message::Claim(_, term)] = said(&mut member)[..] else { panic!("no claim") };
    member.handle_message(peer, Message::Agreed(pair(1), term, lease, Since(1)), now);
    let stand = member.stand(pair(1), now);
    assert!(stand.is_some());
    member.set_hosts_reached(false);
    assert_eq!((member.speaks(pair(1), now), member.live(now).count()), (false, 0));
    assert_eq!(member.arrived(pair(1), came(0, 1, None), now), Fate::NotYet);
    member.set_hosts_reached(true);
    assert_eq!(member.stand(pair(1), now), stand);
    member.leave();
    member.set_hosts_reached(true);
    assert!(!member.speaks(pair(1), now), "it ends");
}
