//! Streams through changes of policy, against receivers that check that each record arrives once.

use std::collections::{BTreeMap, BTreeSet};

use reliability::selector::Bucket;
use reliability::stream::Alternation;

use super::shares::LEAST_BACKLOG;
use super::*;
use crate::class::Allowed;
use crate::receivers::Receivers;
use crate::sizes::Found;

const MAX_PACKET: usize = 1400;

/// Senders and receivers joined by a link without delay, in virtual time.
struct Pair {
    senders: Senders,
    receivers: Receivers,
    classes: Vec<Class>,
    now: Instant,
    /// Times each record arrived, by its number.
    arrived: BTreeMap<u32, u32>,
    next: u32,
    /// Every so many-th packet is lost; 0: none.
    lose: usize,
    packets: usize,
    /// Nothing arrives.
    cut: bool,
    /// Stream and coding of each data packet sent.
    sent: Vec<(u16, u8)>,
}

/// A class with a fixed scheme.
fn class(name: &str, scheme: Scheme) -> Class {
    let flush = (!matches!(scheme, Scheme::None | Scheme::Sr { .. })).then_some(Duration::from_millis(5));
    Class { repair: Repair::Fixed { scheme, flush }, ..Class::new(name) }
}

fn ranked_class(name: &str, priority: u8) -> Class {
    Class { priority, ..Class::new(name) }
}

/// A class that is chosen for, in so many parts.
fn auto(name: &str, parts: usize) -> Vec<Class> {
    let part = |part: usize| Class {
        name: if part + 1 < parts { format!("{name} {part}") } else { name.to_owned() },
        repair: Repair::Auto(Allowed::ALL),
        max_overhead: 0.5,
        joins_next: part + 1 < parts,
        priority: 0,
    };
    (0..parts).map(part).collect()
}

/// The same, and a class of selective repeat after it.
fn auto_and_rest(parts: usize) -> Vec<Class> {
    [auto("auto", parts), named(&["rest"])].concat()
}

/// Classes of selective repeat with these names.
fn named(names: &[&str]) -> Vec<Class> {
    names.iter().map(|name| Class::new(*name)).collect()
}

fn up(config: &Config, classes: &[Class], now: Instant) -> Senders {
    let link = Link::new(config.rate, config.rtt, 0.0, MAX_PACKET);
    Senders::up(config, classes, &link, MAX_PACKET, now)
}

/// A record of its number, of no source in particular, and so many bytes.
fn push(
    senders: &mut Senders,
    class: usize,
    urgency: Urgency,
    number: u32,
    len: usize,
    now: Instant,
) -> Result<(), Full> {
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&number.to_be_bytes());
    let source = u64::from(urgency == Urgency::Bulk);
    let place = Place { source, group: 0, goes_first: false };
    senders.push(class, urgency, place, &[&head, &vec![0; len]], now)
}

const HEAD: usize = 10;

impl Pair {
    fn new(classes: Vec<Class>, total_buffer: usize) -> Self {
        let now = crate::test_clock();
        let config = Config { total_buffer, ..Config::new(1_000_000_000, MAX_PACKET) };
        Self {
            senders: up(&config, &classes, now),
            receivers: Receivers::new(&config),
            classes,
            now,
            arrived: BTreeMap::new(),
            next: 0,
            lose: 0,
            packets: 0,
            cut: false,
            sent: Vec::new(),
        }
    }

    fn set_classes(&mut self, classes: Vec<Class>) -> Result<(), Undrained> {
        let would = self.senders.places_for(&self.classes, &classes).map(|_| ());
        let adopted = self.senders.set_classes(&self.classes, &classes, self.now);
        assert_eq!(adopted, would);
        if adopted.is_ok() {
            self.classes = classes;
        }
        adopted
    }

    fn push(&mut self, class: usize, urgency: Urgency, len: usize) -> Result<(), Full> {
        push(&mut self.senders, class, urgency, self.next, len, self.now)?;
        self.next += 1;
        Ok(())
    }

    fn fill(&mut self, class: usize, records: usize) {
        for _ in 0..records {
            self.push(class, Urgency::Bulk, 1200).unwrap();
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut out = vec![0; MAX_PACKET];
        while self.now < end {
            while let Some((len, kind)) = self.senders.poll(self.now, &mut out) {
                self.packets += 1;
                let packet = &out[..len];
                let stream = u16::from_be_bytes([packet[2], packet[3]]);
                if kind == TransmitKind::Data {
                    self.sent.push((stream, packet[16]));
                }
                if self.cut || (self.lose > 0 && self.packets.is_multiple_of(self.lose)) {
                    continue;
                }
                let arrived = &mut self.arrived;
                let mut deliver = |record: &[u8]| {
                    *arrived.entry(u32::from_be_bytes(*record.first_chunk().unwrap())).or_default() += 1;
                };
                self.receivers.handle_packet(StreamId(stream), packet, self.now, &mut deliver).unwrap();
            }
            self.receivers.handle_timeout(self.now);
            while let Some(len) = self.receivers.poll(self.now, &mut out) {
                let stream = StreamId(u16::from_be_bytes([out[2], out[3]]));
                self.senders.handle_report(stream, &out[..len], self.now).unwrap();
            }
            self.senders.handle_timeout(self.now);
            self.now += Duration::from_micros(50);
        }
    }

    /// Every record pushed so far is there, once.
    fn check(&self) {
        assert!(self.senders.is_idle());
        let expected: BTreeMap<u32, u32> = (0..self.next).map(|record| (record, 1)).collect();
        assert!(self.arrived == expected, "{} of {} records", self.arrived.len(), self.next);
    }

    fn places(&self) -> Vec<usize> {
        (0..self.classes.len()).map(|class| self.senders.place(class).unwrap()).collect()
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn what_waits_for_the_pacer_is_woken_for_though_its_time_has_come() {
    let mut pair = Pair::new(named(&["default"]), 512 << 20);
    pair.fill(0, 2000);
    let mut out = vec![0; MAX_PACKET];
    while pair.senders.poll(pair.now, &mut out).is_some() {}
    assert!(pair.senders.is_held());
    let due = pair.senders.next_timeout(pair.now).unwrap();
    // Whoever sleeps from now on looks at the clock a little later than it has sent.
    assert_eq!(pair.senders.next_timeout(due + Duration::from_micros(1)), Some(due));
}

#[test]
fn parity_that_waits_for_the_pacer_is_woken_for_though_its_time_has_come() {
    let mut out = vec![0; MAX_PACKET];
    let mut refused = 0;
    for records in 1..200 {
        let mut pair = Pair::new(vec![class("a", Scheme::Mds { k: 4, m: 4, depth: 1 })], 512 << 20);
        pair.fill(0, records);
        while pair.senders.poll(pair.now, &mut out).is_some() {}
        let pacer = pair.senders.pacer.as_ref().unwrap();
        if pacer.ready(pair.now) || pacer.is_held() {
            continue;
        }
        refused += 1;
        let due = pair.senders.next_timeout(pair.now).unwrap();
        assert_eq!(due, pacer.next_ready(), "{records} records");
        assert_eq!(pair.senders.next_timeout(due + Duration::from_micros(1)), Some(due), "{records} records");
    }
    assert!(refused > 0);
}

/// Of a rate of 1 Gbit/s, which others use as well.
#[test]
fn a_part_of_the_rate_is_kept_to_and_what_waits_for_it_is_known() {
    let mut pair = Pair::new(named(&["default"]), 512 << 20);
    assert!(!pair.senders.is_held(), "nothing waits");
    let mut sent = |rate: Option<u64>| {
        rate.into_iter().for_each(|rate| pair.senders.set_rate(rate));
        pair.run(SECOND / 20);
        let before = pair.packets;
        pair.fill(0, 2000);
        pair.run(SECOND / 100);
        assert!(pair.senders.is_held());
        let sent = pair.packets - before;
        pair.run(SECOND);
        assert!(!pair.senders.is_held());
        sent as f64
    };
    let whole = sent(None);
    for part in [2, 4] {
        let less = sent(Some(1_000_000_000 / part)) * part as f64 / whole;
        // The burst after a pause is the same.
        assert!((0.95..1.3).contains(&less), "1/{part}: {less}");
    }
    assert!((0.95..1.05).contains(&(sent(Some(1_000_000_000)) / whole)));
    pair.check();
}

#[test]
fn a_class_keeps_its_streams_by_its_name_and_takes_its_new_scheme_with_the_next_block() {
    let mds = Scheme::Mds { k: 8, m: 2, depth: 1 };
    let mut pair = Pair::new(vec![Class::new("a"), class("b", mds)], 512 << 20);
    pair.lose = 50;
    pair.fill(1, 100);
    // In the middle of a block: 100 is no multiple of 8.
    pair.run(Duration::from_micros(200));
    let before = pair.sent.len();
    assert!((1..100).contains(&before), "{before} packets are out");
    let xor = Scheme::Xor { k: 4, m: 2, depth: 1 };
    pair.set_classes(vec![class("b", xor), Class::new("c")]).unwrap();
    assert_eq!(pair.places(), [1, 2], "b where it was, c where nobody was");
    pair.fill(0, 100);
    pair.fill(1, 100);
    pair.run(SECOND);
    pair.check();
    let of_b: Vec<u8> =
        pair.sent.iter().filter(|(stream, _)| *stream == 3).map(|(_, coding)| *coding).collect();
    let (old, new) = (
        of_b.iter().filter(|coding| **coding == 3).count(),
        of_b.iter().filter(|coding| **coding == 2).count(),
    );
    assert_eq!(old + new, of_b.len());
    assert!(of_b.is_sorted_by(|a, b| a >= b), "the new scheme from one block on, and for good");
    assert_eq!(old, before.next_multiple_of(8), "the block under way was finished as it was begun");
    assert!(new > 0);
}

#[test]
fn what_a_removed_class_holds_arrives_and_then_its_streams_serve_another() {
    let mut pair = Pair::new(named(&["old", "default"]), 512 << 20);
    pair.lose = 20;
    for urgency in [Urgency::Prompt, Urgency::Bulk] {
        for _ in 0..200 {
            pair.push(0, urgency, 1000).unwrap();
        }
    }
    pair.run(Duration::from_micros(100));
    pair.set_classes(named(&["default"])).unwrap();
    assert_eq!(pair.places(), [1]);
    let (streams, bytes) = pair.senders.draining();
    assert!(streams == 2 && bytes > 300_000, "{streams} streams with {bytes} bytes");
    pair.run(SECOND);
    pair.check();
    assert_eq!(pair.senders.draining(), (0, 0));

    // Slots come in turn, the one free the longest first; at last that of the class removed, whose receiver goes on counting.
    for (round, place) in (2..SLOTS).chain([0, 2]).enumerate() {
        pair.set_classes(named(&[&format!("new{round}"), "default"])).unwrap();
        pair.fill(0, 20);
        pair.run(SECOND / 10);
        pair.check();
        assert_eq!(pair.places()[0], place);
    }
    assert!(pair.senders.slots.iter().all(Option::is_some));
}

#[test]
fn only_streams_that_may_have_something_to_send_are_asked() {
    let mut pair = Pair::new(named(&["a", "b"]), 64 << 20);
    assert_eq!(pair.senders.turns.streams(), [0, 2, 1, 3]);
    pair.fill(0, 10);
    pair.set_classes(named(&["b"])).unwrap();
    assert_eq!(pair.senders.turns.streams(), [0, 2, 1, 3], "what drains goes first");
    pair.run(Duration::from_millis(20));
    assert_eq!(pair.senders.turns.streams(), [2, 3]);
    pair.check();
}

/// What a class is known by is its own, also where another class had its streams before.
#[test]
fn a_class_begins_with_nothing_counted() {
    let mut pair = Pair::new(named(&["0", "rest"]), 64 << 20);
    let mut places = BTreeSet::new();
    for round in 1..=2 * SLOTS {
        assert_eq!(pair.senders.alternation(0), Alternation::default());
        pair.fill(0, 40);
        pair.run(SECOND / 10);
        assert!(pair.senders.alternation(0).own > 30 * 1200, "{:?}", pair.senders.alternation(0));
        places.insert(pair.senders.place(0));
        pair.set_classes(named(&[&round.to_string(), "rest"])).unwrap();
    }
    assert!(places.len() < 2 * SLOTS, "some are used again");
}

#[test]
fn a_policy_that_finds_no_streams_is_refused_and_changes_nothing() {
    let names = |round: usize| -> Vec<String> { (0..8).map(|class| format!("r{round}c{class}")).collect() };
    let all = |round: usize| named(&names(round).iter().map(String::as_str).collect::<Vec<_>>());
    let mut pair = Pair::new(all(0), 512 << 20);
    pair.cut = true;
    let fill_all = |pair: &mut Pair| (0..8).for_each(|class| pair.fill(class, 10));
    fill_all(&mut pair);
    pair.run(SECOND / 100);
    // As many as take all slots.
    let last = SLOTS / 8 - 1;
    for round in 1..=last {
        pair.set_classes(all(round)).unwrap();
        fill_all(&mut pair);
    }
    let places = pair.places();
    assert_eq!(places, (8 * last..SLOTS).collect::<Vec<_>>());
    assert_eq!(pair.set_classes(all(last + 1)), Err(Undrained { missing: 8 }));
    // Keeping six, two are missing; keeping all, in whatever order, none.
    let mut six = names(last);
    six[2..4].clone_from_slice(&["x".to_owned(), "y".to_owned()]);
    let six: Vec<&str> = six.iter().map(String::as_str).collect();
    assert_eq!(pair.set_classes(named(&six)), Err(Undrained { missing: 2 }));
    assert_eq!(
        (pair.places(), pair.senders.draining().0),
        (places, 8 * last),
        "bulk streams only hold something"
    );
    let turned: Vec<String> = names(last).into_iter().rev().collect();
    pair.set_classes(named(&turned.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
    assert_eq!(pair.places(), (8 * last..SLOTS).rev().collect::<Vec<_>>());
    pair.cut = false;
    pair.run(20 * SECOND);
    pair.check();
    pair.set_classes(all(last + 1)).unwrap();
    fill_all(&mut pair);
    pair.run(SECOND);
    pair.check();
}

#[test]
fn what_drains_counts_against_what_may_be_held() {
    const TOTAL: usize = 256 << 20;
    let mut pair = Pair::new(named(&["a", "default"]), TOTAL);
    let limit = |pair: &Pair| pair.senders.slot(0).unwrap().max_buffered;
    assert_eq!(limit(&pair), TOTAL / 4);
    pair.cut = true;
    let mut pushed = 0;
    for _ in 0..6 {
        while pair.senders.has_room(0, 60_000) {
            pair.push(0, Urgency::Bulk, 60_000).unwrap();
            pushed += 60_000;
        }
        pair.run(SECOND / 10);
    }
    assert!(pushed > 30 << 20, "{pushed}");
    pair.set_classes(named(&["default"])).unwrap();
    let (_, held) = pair.senders.draining();
    assert!(held >= pushed);
    assert_eq!(limit(&pair), (TOTAL - held) / 2);
    pair.cut = false;
    pair.run(60 * SECOND);
    pair.check();
    assert_eq!(limit(&pair), TOTAL / 2, "the room came back");
}

#[test]
fn priority_decides_who_goes_first_and_acknowledgements_go_before_all() {
    let mut pair = Pair::new(vec![ranked_class("low", 0), ranked_class("high", 5)], 512 << 20);
    pair.fill(0, 3000);
    pair.fill(1, 3000);
    for _ in 0..20 {
        pair.push(0, Urgency::Prompt, 1000).unwrap();
    }
    pair.run(3 * SECOND);
    pair.check();
    let order: Vec<u16> = pair.sent.iter().map(|(stream, _)| *stream).collect();
    let prompt = order.iter().take_while(|stream| **stream == 0).count();
    assert_eq!(
        Some(prompt - 1),
        order.iter().rposition(|stream| *stream == 0),
        "the low class's, and before all else"
    );
    let last = |stream| order.iter().rposition(|other| *other == stream).unwrap();
    assert!(last(3) < last(1));
    let between = order[..=last(3)].iter().filter(|stream| **stream == 1).count();
    let high_packets = order.iter().filter(|stream| **stream == 3).count();
    // One when others have sent 16 full packets' worth of bytes, and these are not quite full.
    let share = high_packets / 20..=high_packets / 16;
    assert!(share.contains(&between), "{between} of the low class among {high_packets}");

    // The other way round from now on.
    pair.set_classes(vec![ranked_class("low", 7), ranked_class("high", 0)]).unwrap();
    pair.sent.clear();
    pair.fill(0, 1000);
    pair.fill(1, 1000);
    pair.run(SECOND);
    pair.check();
    let order: Vec<u16> = pair.sent.iter().map(|(stream, _)| *stream).collect();
    assert!(order[..16].iter().all(|stream| *stream == 1));
}

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
fn answer(pair: &mut Pair, class: usize, claim: &mut Claim, mut bytes: usize) {
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
        let mut claim = Claim::default();
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
    let (mut one, mut other) = (Claim::default(), Claim::default());
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
            while let Some((len, _)) = senders.poll(*now, &mut out) {
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
    let mut claim = Claim::default();
    senders.await_responses(0, &mut claim, piece);
    assert!(senders.read_room(0) < piece, "one at a time");
    assert_eq!(senders.read_room(1), 0);
    // It is taken when it comes, whatever the others have.
    assert!(senders.has_room_for_response(0, Urgency::Bulk, piece));
}

/// Requesters are slowed before anything of theirs is dropped, also where several parts of a class fill its room together.
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
    let mut claim = Claim::default();
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
    let mut claim = Claim::default();
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
