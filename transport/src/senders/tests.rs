//! Streams through changes of policy, against receivers that check that each record arrives once.

mod room;

use std::collections::{BTreeMap, BTreeSet};

use reliability::selector::Bucket;
use reliability::stream::{Alternation, TransmitKind};

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
    let place = Place { source, group: Group::main(0), goes_first: false };
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
            while let Some((_, Transmit { len, kind, .. })) = self.senders.poll(self.now, &mut out) {
                self.packets += 1;
                let packet = &out[..len];
                let stream = u16::from(packet[1]);
                if kind == TransmitKind::Data {
                    self.sent.push((stream, packet[0] >> 2 & 3));
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

/// A part of 1 Gbit/s, which others use as well.
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

    // Slots come in turn, the one free the longest first; at last that of the class removed, whose
    // receiver goes on counting.
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

/// A class has its own name and counters, also where another class had its streams before.
#[test]
fn a_class_begins_with_nothing_counted() {
    let mut pair = Pair::new(named(&["0", "rest"]), 64 << 20);
    let mut places = BTreeSet::new();
    for round in 1..=2 * SLOTS {
        assert_eq!(pair.senders.alternation(0), Alternation::default());
        assert_eq!(pair.senders.completions(0).total(), 0);
        pair.senders.note_completion(0, Duration::from_millis(30));
        assert_eq!(pair.senders.completions(0).total(), 1);
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
