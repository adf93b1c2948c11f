//! How much each class may hold, ask for and count on.

use super::*;
use crate::bounds::LEAST_BACKLOG;

#[test]
fn a_backlog_is_bounded_by_what_its_share_of_the_link_can_send() {
    let senders = |classes: &[Class], rate, total_buffer| {
        let config = Config { total_buffer, ..Config::new(rate, MAX_PACKET) };
        up(&config, classes, crate::test_clock())
    };
    let backlogs =
        |senders: &Senders| senders.slots.iter().flatten().map(|slot| slot.max_backlog).collect::<Vec<_>>();
    const GIGABIT: u64 = 1_000_000_000;
    let one = named(&["default"]);
    assert_eq!(backlogs(&senders(&one, GIGABIT, 512 << 20)), [25_000_000]);
    assert_eq!(backlogs(&senders(&one, GIGABIT, 40 << 20)), [10 << 20]);
    assert_eq!(backlogs(&senders(&one, GIGABIT, 1 << 20)), [LEAST_BACKLOG]);
    let ranked = [("a", 3), ("b", 3), ("c", 0)].map(|(name, priority)| ranked_class(name, priority));
    assert_eq!(backlogs(&senders(&ranked, GIGABIT, 512 << 20)), [12_500_000, 12_500_000, 8 << 20]);
    assert_eq!(
        backlogs(&senders(&ranked, 100 * GIGABIT, 1 << 34)),
        [1_250_000_000, 1_250_000_000, 156_250_000]
    );
    assert_eq!(backlogs(&senders(&ranked, GIGABIT, 64 << 20)), [8 << 20, 8 << 20, 1 << 20]);
    assert_eq!(backlogs(&senders(&ranked, GIGABIT, 1 << 20)), [4 << 20, 4 << 20, 512 << 10]);
}

#[test]
fn without_a_session_every_policy_is_taken() {
    let mut senders = Senders::down();
    let (a, b) = (named(&["a"]), named(&["b", "c"]));
    assert_eq!(senders.set_classes(&a, &b, crate::test_clock()), Ok(()));
    assert!(!senders.is_up() && senders.class(0).is_none());
}

#[test]
fn a_piece_of_a_read_has_room_whatever_the_policy_becomes() {
    let one = named(&["default"]);
    for (rate, total) in [(1_000_000, 1 << 20), (1_000_000_000, 64 << 20), (400_000_000_000, 1 << 34)] {
        let config = Config { total_buffer: total, ..Config::new(rate, MAX_PACKET) };
        let mut senders = up(&config, &one, crate::test_clock());
        let piece = senders.read_piece();
        assert!(senders.read_room(0) >= 3 * piece);
        let ranked = ranked();
        senders.set_classes(&one, &ranked, crate::test_clock()).unwrap();
        assert_eq!(senders.read_piece(), piece, "flows there cut as before");
        assert!((0..8).all(|class| senders.read_room(class) >= piece), "{rate} bit/s, {total} bytes");
    }
}

/// Eight classes, the last one, "default", more urgent than the others.
fn ranked() -> Vec<Class> {
    let lower = named(&["a", "b", "c", "d", "e", "f", "g"]);
    [lower, vec![ranked_class("default", 1)]].concat()
}

#[test]
fn a_change_of_policy_leaves_classes_the_room_that_a_session_with_it_gives_them() {
    let one = named(&["a"]);
    for (rate, total) in [(1_000_000, 1 << 20), (10_000_000_000, 512 << 20), (400_000_000_000, 1 << 34)] {
        let config = Config { total_buffer: total, ..Config::new(rate, MAX_PACKET) };
        let mut changed = up(&config, &one, crate::test_clock());
        changed.set_classes(&one, &ranked(), crate::test_clock()).unwrap();
        let fresh = up(&config, &ranked(), crate::test_clock());
        for class in 0..8 {
            let [changed, fresh] = [&changed, &fresh].map(|senders| {
                let slot = senders.slot(class).unwrap();
                (slot.max_backlog, slot.max_buffered, senders.read_room(class))
            });
            assert_eq!(changed, fresh, "class {class} at {rate} bit/s with {total} bytes");
        }
    }
}

/// Delivers what the claim says, in records of a READ's responses.
fn answer(pair: &mut Pair, class: usize, claim: &mut Reservation, mut bytes: usize) {
    while bytes > 0 {
        pair.senders.await_responses(class, claim, bytes);
        assert!(pair.senders.has_room_for_response(class, Urgency::Bulk, 1040), "{bytes} bytes to come");
        pair.push(class, Urgency::Bulk, 1040).unwrap();
        bytes -= bytes.min(1024);
    }
    pair.senders.await_responses(class, claim, 0);
}

#[test]
fn what_targets_were_asked_for_has_its_room_until_it_is_sent_whatever_the_policy_becomes() {
    // The class stays; it is another, of which the flow's claim does not know yet.
    for name in ["a", "old"] {
        let mut pair = Pair::new(named(&[name]), 512 << 20);
        let mut claim = Reservation::default();
        let asked = pair.senders.read_room(0);
        assert_eq!(asked, 10_000_000);
        pair.senders.await_responses(0, &mut claim, asked);
        pair.fill(0, 9000);
        pair.set_classes(ranked()).unwrap();
        let bound = pair.senders.slot(0).unwrap().max_backlog;
        assert!(bound <= 8 << 20, "{bound}");
        answer(&mut pair, 0, &mut claim, asked);
        assert!(pair.senders.class(0).unwrap()[1].backlog() > bound, "more than there is room for");
        assert_eq!(pair.senders.read_room(0), 0, "no more is asked for");
        let order = pair.senders.turns.streams();
        let place = |class: usize| order.iter().position(|stream| *stream == 2 * pair.places()[class] + 1);
        assert!(
            place(0) < place(7),
            "{order:?}: it goes before more urgent ones, which must not overtake it by far"
        );
        pair.run(SECOND);
        pair.check();
        // And that was all.
        let slot = pair.senders.slot(0).unwrap();
        let bound = slot.max_backlog;
        assert!(!slot.is_beyond() && slot.has_room(bound - 1000) && !slot.has_room(bound));
        let first_bulk = pair.senders.turns.streams()[8];
        assert_eq!(first_bulk, 2 * pair.places()[7] + 1, "by their ranks again");
    }
}

#[test]
fn requesters_go_on_while_their_class_comes_down_to_its_bounds() {
    let mut pair = Pair::new(named(&["a", "default"]), 512 << 20);
    while pair.senders.has_room(0, 1200) {
        pair.push(0, Urgency::Bulk, 1200).unwrap();
    }
    pair.set_classes(ranked()).unwrap();
    let backlog = |pair: &Pair| pair.senders.class(0).unwrap()[1].backlog();
    let (before, pushed) = (backlog(&pair), pair.next);
    let bound = pair.senders.slot(0).unwrap().max_backlog;
    let mut last = before;
    while backlog(&pair) > bound {
        pair.run(Duration::from_millis(5));
        while pair.senders.has_room(0, 1200) {
            pair.push(0, Urgency::Bulk, 1200).unwrap();
        }
        assert!(backlog(&pair) < last, "{} bytes", backlog(&pair));
        last = backlog(&pair);
    }
    let taken = (pair.next - pushed) as usize * 1200;
    let range = (before - bound) * 3 / 4..=before - bound;
    assert!(range.contains(&taken), "{taken} bytes of requests while {} had to go", before - bound);
    pair.run(SECOND);
    pair.check();
}

#[test]
fn what_a_class_has_beyond_its_part_is_taken_off_the_others() {
    const TOTAL: usize = 512 << 20;
    const PART: usize = TOTAL / 16;
    let mut pair = Pair::new(named(&["a", "default"]), TOTAL);
    pair.cut = true;
    for _ in 0..6 {
        while pair.senders.has_room(0, 60_000) {
            pair.push(0, Urgency::Bulk, 60_000).unwrap();
        }
        pair.run(SECOND / 10);
    }
    let held = pair.senders.slot(0).unwrap().held();
    assert!(held > PART + (8 << 20), "{held}");
    pair.set_classes(ranked()).unwrap();
    let parts = |pair: &Pair| [0, 1, 7].map(|class| pair.senders.slot(class).unwrap().max_buffered);
    let [own, lower, default] = parts(&pair);
    assert_eq!((own, lower), (PART, default));
    assert!(held + own + 7 * 2 * lower <= TOTAL && lower > PART * 9 / 10, "{lower}");
    pair.cut = false;
    pair.run(60 * SECOND);
    pair.check();
    assert_eq!(parts(&pair), [PART; 3]);
}

#[test]
fn what_flows_count_on_moves_with_their_class() {
    let (before, after) = (named(&["a", "b"]), named(&["b", "c"]));
    let config = Config::new(1_000_000_000, MAX_PACKET);
    let mut senders = up(&config, &before, crate::test_clock());
    let (mut one, mut other) = (Reservation::default(), Reservation::default());
    let room = senders.read_room(0);
    senders.await_responses(0, &mut one, 1000);
    senders.await_responses(1, &mut other, 500);
    assert_eq!([0, 1].map(|class| room - senders.read_room(class)), [1000, 500]);
    assert!(senders.may_join(0, &one) && !senders.may_join(1, &one));
    senders.set_classes(&before, &after, crate::test_clock()).unwrap();
    // b has kept its streams, and a flow of a is one of c now.
    let room = senders.read_room(1);
    senders.await_responses(0, &mut other, 400);
    senders.await_responses(1, &mut one, 1000);
    assert_eq!([room - senders.read_room(0), room - senders.read_room(1)], [400, 1000]);
    senders.await_responses(0, &mut one, 0);
    senders.await_responses(0, &mut other, 0);
    assert_eq!([0, 1].map(|class| senders.read_room(class)), [room; 2]);
    // What nobody took back is not laid to the charge of the classes that have the streams next.
    senders.await_responses(1, &mut one, 1000);
    let mut last = after;
    for round in 0..SLOTS {
        let next = named(&[&format!("new{round}"), "b"]);
        senders.set_classes(&last, &next, crate::test_clock()).unwrap();
        assert_eq!([0, 1].map(|class| senders.read_room(class)), [room; 2], "round {round}");
        last = next;
    }
    senders.await_responses(1, &mut one, 400);
    assert_eq!([0, 1].map(|class| room - senders.read_room(class)), [0, 400]);
    let mut down = Senders::down();
    down.await_responses(0, &mut one, 10);
    assert!(down.may_join(0, &one), "without a session there is nothing to count on");
}

#[test]
fn what_was_chosen_for_a_class_stays_until_the_class_says_something_else() {
    let with = |repair: Repair| {
        let class = Class { repair, max_overhead: 0.5, ..Class::new("a") };
        vec![class, Class::new("default")]
    };
    let first = with(Repair::Auto(Allowed::ALL));
    let config = Config::new(1_000_000_000, MAX_PACKET);
    let mut senders = up(&config, &first, crate::test_clock());
    let chosen = Scheme::Mds { k: 16, m: 4, depth: 1 };
    senders.tune(0, &Tuning { prompt: chosen, bulk: chosen, drop: 0.01, burst: 1.0 });
    let scheme = |senders: &Senders, class| senders.class(class).unwrap().map(Sender::scheme);
    // Another place, another rank.
    let second = vec![Class::new("new"), Class { priority: 3, ..first[0].clone() }];
    senders.set_classes(&first, &second, crate::test_clock()).unwrap();
    assert_eq!(scheme(&senders, 1), [chosen; 2]);
    let third = with(Repair::Auto(Allowed { mds: false, hybrid: false, ..Allowed::ALL }));
    senders.set_classes(&second, &third, crate::test_clock()).unwrap();
    assert_eq!(scheme(&senders, 0), [Scheme::Xor { k: 32, m: 8, depth: 1 }; 2], "as a session begins");
    let hybrid = Scheme::Hybrid { k: 8, m: 2, depth: 1 };
    let fourth = with(class("a", hybrid).repair);
    senders.set_classes(&third, &fourth, crate::test_clock()).unwrap();
    assert_eq!(scheme(&senders, 0), [hybrid; 2]);
}

#[test]
fn the_parts_of_a_class_share_its_room_and_none_is_left_without() {
    let filled = |parts: usize, class: usize| {
        let mut pair = Pair::new(auto_and_rest(parts), 512 << 20);
        pair.cut = true;
        let mut bytes = 0;
        while pair.senders.has_room(class, 1200) {
            pair.push(class, Urgency::Bulk, 1200).unwrap();
            bytes += 1200;
            if bytes % (1 << 20) < 1200 {
                pair.run(Duration::from_millis(10));
            }
        }
        (pair, bytes)
    };
    let (_, whole) = filled(1, 0);
    let (mut pair, part) = filled(3, 2);
    assert!(part * 10 > whole * 9, "one part alone has the class's room: {part} of {whole} bytes");
    // The others have their share nevertheless, and nobody more than that.
    for other in [0, 1] {
        let mut bytes = 0;
        while pair.senders.has_room(other, 1200) && bytes < whole {
            pair.push(other, Urgency::Bulk, 1200).unwrap();
            bytes += 1200;
            assert!(!pair.senders.has_room(2, 1200));
        }
        assert!((1 << 20..=whole / 3 + (1 << 20)).contains(&bytes), "{bytes} of {whole} bytes");
        assert!(pair.senders.read_room(other) <= 1200);
    }
    let left = pair.senders.slot(3).unwrap().max_buffered;
    assert!(pair.senders.has_room(3, 1200) && left >= 512 << 17, "the other class has its own: {left}");
}

#[test]
fn no_more_is_sent_than_any_receiver_takes_until_it_has_said_what_it_takes() {
    let now = crate::test_clock();
    let config = Config { total_buffer: 4 << 30, ..Config::new(100_000_000_000, MAX_PACKET) };
    assert_eq!(config.window(MAX_PACKET), 1 << 19);
    let mut senders = up(&config, &named(&["one"]), now);
    let fewer = Config { total_buffer: (2 * config.base_packet) << 16, ..config };
    assert_eq!(fewer.received_window(), 1 << 16);
    let mut receivers = Receivers::new(&fewer);
    let mut out = vec![0; MAX_PACKET];
    let mut now = now;
    let mut send = |senders: &mut Senders, now: &mut Instant, records: usize| {
        let mut packets = Vec::new();
        for _ in 0..records {
            let _ = push(senders, 0, Urgency::Bulk, 0, 1200, *now);
            while let Some((_, Transmit { len, .. })) = senders.poll(*now, &mut out) {
                packets.push(out[..len].to_vec());
            }
            *now += Duration::from_nanos(200);
        }
        packets
    };
    let packets = send(&mut senders, &mut now, 200_000);
    assert_eq!(packets.len(), 1 << 15);
    // The first packet is lost, all others are there: the window is the receiver's from now on.
    for packet in &packets[1..] {
        receivers.handle_packet(StreamId(1), packet, now, &mut |_| {}).unwrap();
    }
    now += Duration::from_millis(50);
    receivers.handle_timeout(now);
    let mut report = vec![0; MAX_PACKET];
    while let Some(len) = receivers.poll(now, &mut report) {
        senders.handle_report(StreamId(1), &report[..len], now).unwrap();
    }
    for packet in send(&mut senders, &mut now, 400_000) {
        receivers.handle_packet(StreamId(1), &packet, now, &mut |_| {}).unwrap();
    }
    assert_eq!(receivers.stats(0).map(|stats| stats.beyond_window).sum::<u64>(), 0);
}

/// Nor when it is what is under way that a class may have no more of.
#[test]
fn who_fills_the_link_beyond_the_buffers_is_slowed_before_it_is_refused() {
    let mut pair = Pair::new(named(&["all"]), 64 << 20);
    pair.cut = true;
    while pair.senders.has_room(0, 20_000) {
        let few = pair.senders.slot(0).unwrap().waiting() < 1 << 20;
        assert!(few, "it leaves as it comes");
        pair.fill(0, 10);
        pair.run(Duration::from_micros(150));
    }
    assert!(!pair.senders.has_headroom(0));
    pair.cut = false;
    pair.run(SECOND);
    assert!(pair.senders.has_headroom(0) && pair.senders.is_idle());
}

/// However many parts a class has, and however little its link carries in a while.
#[test]
fn a_part_may_ask_for_a_piece_of_a_read_beside_full_ones() {
    let config = Config::new(200_000_000, MAX_PACKET);
    let mut senders = up(&config, &auto_and_rest(5), crate::test_clock());
    let piece = senders.read_piece();
    let now = crate::test_clock();
    while (1..5).any(|part| senders.has_room(part, 1200)) {
        for part in 1..5 {
            if senders.has_room(part, 1200) {
                push(&mut senders, part, Urgency::Bulk, 0, 1200, now).unwrap();
            }
        }
    }
    assert!(senders.read_room(0) >= piece, "{} of {piece}", senders.read_room(0));
    let mut claim = Reservation::default();
    senders.await_responses(0, &mut claim, piece);
    assert!(senders.read_room(0) < piece, "one at a time");
    assert_eq!(senders.read_room(1), 0);
    // It is taken when it comes, whatever the others have.
    assert!(senders.has_room_for_response(0, Urgency::Bulk, piece));
}

/// Requesters are slowed before anything of theirs is dropped, also where several parts of a class
/// fill its room together.
#[test]
fn parts_that_fill_a_class_are_slowed_before_they_are_refused() {
    for parts in [1, 2, 3] {
        let mut pair = Pair::new(auto_and_rest(3), 512 << 20);
        let (mut withheld, mut marked, mut taken) = ([None; 3], [0; 3], 0_u32);
        while (0..parts).all(|part| pair.senders.has_room(part, 1200)) {
            for part in 0..parts {
                let has_headroom = pair.senders.has_headroom(part);
                withheld[part] = withheld[part].or((!has_headroom).then_some(taken));
                marked[part] += u32::from(pair.senders.marks(part));
                pair.push(part, Urgency::Bulk, 1200).unwrap();
                taken += 1200;
            }
        }
        for part in 0..parts {
            let from = f64::from(withheld[part].unwrap_or(taken)) / f64::from(taken);
            assert!((0.45..0.55).contains(&from), "{parts} parts: {from} of what fits");
            let share = f64::from(marked[part]) * 1200.0 * parts as f64 / f64::from(taken);
            assert!((0.2..0.3).contains(&share), "{parts} parts: {share} marked");
        }
        for part in parts..3 {
            assert!(pair.senders.has_headroom(part), "{parts} parts: what is empty is not slowed");
        }
    }
}

#[test]
fn a_part_that_has_too_much_takes_no_other_part_along() {
    let mut pair = Pair::new(auto_and_rest(3), 64 << 20);
    let rank = |pair: &Pair, place: usize| {
        let mut sharers = pair.senders.sharers().into_iter();
        sharers.find(|(places, _)| places.contains(&place)).unwrap()
    };
    assert_eq!(rank(&pair, 1), (vec![0, 1, 2], 0));
    // The middle one has promised more than it may hold.
    let mut claim = Reservation::default();
    pair.senders.await_responses(1, &mut claim, 1 << 30);
    pair.set_classes(auto_and_rest(3)).unwrap();
    assert_eq!(rank(&pair, 1), (vec![1], MOST_URGENT));
    assert_eq!(rank(&pair, 2), (vec![0, 2], 0), "in the turn they had");
}

#[test]
fn a_message_finds_what_goes_before_it() {
    let classes = [("first", 5), ("same", 3), ("own", 3), ("last", 1)];
    let classes = classes.map(|(name, priority)| ranked_class(name, priority)).into();
    let mut pair = Pair::new(classes, 64 << 20);
    for (class, records) in [(0, 1), (1, 20), (2, 10), (3, 40)] {
        pair.fill(class, records);
    }
    let waiting = |pair: &Pair, class: usize| pair.senders.class(class).unwrap()[1].backlog();
    let [first, same, own] = [0, 1, 2].map(|class| waiting(&pair, class));
    assert!(first < own && own < same);
    assert_eq!(pair.senders.found(2), Found { waiting: first + own + own, same: own, under_way: 0 });
    assert_eq!(pair.senders.found(1), Found { waiting: first + same + own, same, under_way: 0 });
    pair.senders.note_message(2, 4096, 0);
    let found = pair.senders.sizes(2)[Bucket::of(4096).index()];
    assert_eq!((found.messages, found.waiting, found.same), (1, (first + own + own) as u64, own as u64));
    let mut claim = Reservation::default();
    pair.senders.expect(2, &mut claim, 1 << 20);
    assert_eq!(pair.senders.found(2).waiting, first + own + own, "whatever is about to come");
    while pair.senders.has_headroom(2) {
        pair.fill(2, 10);
    }
    let (found, full) = (pair.senders.found(2).waiting, waiting(&pair, 2));
    assert_eq!(found, first + same + full + (1 << 20), "its senders are slowed down");
    pair.senders.expect(2, &mut claim, 0);
    pair.cut = true;
    pair.run(Duration::from_millis(100));
    let sent: usize = (0..4).map(|class| pair.senders.class(class).unwrap()[1].in_flight()).sum();
    assert_eq!(pair.senders.found(2), Found { waiting: 0, same: 0, under_way: sent });
    assert!(sent > 71 * 1200, "{sent}");
}
