use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::*;
use crate::stream::wire::{Frame, Frames};

const CAPACITY: usize = 1000;
/// A source beside those that a test is about.
const OTHER: u64 = 0x99;

/// Both ends: records name their source and their place among its own.
struct Bench {
    waiting: Waiting,
    pool: Pool,
    pushed: BTreeMap<u64, u32>,
    taken: BTreeMap<u64, BTreeSet<u32>>,
    /// The record whose pieces are coming: number, bytes so far.
    half: Option<(u64, Vec<u8>)>,
    /// Packets taken.
    packets: u64,
    /// All that is pushed counts apart.
    is_apart: bool,
}

impl Bench {
    fn new() -> Self {
        Self {
            waiting: Waiting::new(CAPACITY),
            pool: Pool::new(64),
            pushed: BTreeMap::new(),
            taken: BTreeMap::new(),
            half: None,
            packets: 0,
            is_apart: false,
        }
    }

    /// So much waits that the next records are told apart by their source; it leaves first or in
    /// turn.
    fn load(&mut self) {
        (0..=SHARED / 900).for_each(|_| self.push(OTHER, 900));
    }

    fn push(&mut self, source: u64, len: usize) {
        self.push_of(0, source, len);
    }

    fn push_of(&mut self, group: u8, source: u64, len: usize) {
        let count = self.pushed.entry(source).or_default();
        let head = [source.to_be_bytes().as_slice(), &count.to_be_bytes()].concat();
        *count += 1;
        let body = vec![source as u8; len.max(head.len()) - head.len()];
        let (len, small) = (head.len() + body.len(), body.len() < 100);
        let origin = Origin { source, group, is_apart: self.is_apart };
        self.waiting.push(origin, small, &[&head, &body], len, (0, &mut self.pool));
    }

    /// Takes a packet; its length and whose records end in it. What the packets say has to be what
    /// a receiver relies on.
    fn take(&mut self) -> Option<(usize, Vec<u64>)> {
        let before = self.waiting.backlog();
        let (packet, _) = self.waiting.take(&mut self.pool)?;
        let padding = packet.len() - (before - self.waiting.backlog());
        assert!(!packet.is_empty() && packet.len() <= CAPACITY && padding <= packet.len() / 128);
        let mut whole = Vec::new();
        self.packets += 1;
        for frame in Frames::new(&packet, self.packets) {
            match frame.unwrap() {
                Frame::Whole(record) => {
                    assert!(self.half.is_none(), "pieces stand in consecutive packets");
                    whole.push(self.check(record));
                }
                Frame::Cut(piece) => {
                    let (number, mut bytes) = self.half.take().unwrap_or((self.packets, Vec::new()));
                    assert_eq!((piece.record, piece.offset as usize), (number, bytes.len()), "in a row");
                    bytes.extend_from_slice(piece.bytes);
                    if bytes.len() < piece.total as usize {
                        self.half = Some((number, bytes));
                    } else {
                        whole.push(self.check(&bytes));
                    }
                }
            }
        }
        let len = packet.len();
        self.pool.give(packet.into_buffer());
        Some((len, whole))
    }

    /// The source of a record, which has not come before.
    fn check(&mut self, record: &[u8]) -> u64 {
        let source = u64::from_be_bytes(record[..8].try_into().unwrap());
        let count = u32::from_be_bytes(record[8..12].try_into().unwrap());
        assert!(record[12..].iter().all(|byte| *byte == source as u8));
        assert!(self.taken.entry(source).or_default().insert(count), "record {count} of {source} twice");
        source
    }

    fn take_all(&mut self) -> Vec<(usize, Vec<u64>)> {
        let packets: Vec<_> = std::iter::from_fn(|| self.take()).collect();
        let taken = self.taken.iter().map(|(source, records)| (*source, records.len() as u32)).collect();
        assert_eq!((&self.pushed, self.waiting.backlog()), (&taken, 0));
        assert!(self.half.is_none() && self.waiting.fresh.is_empty() && self.waiting.queued == 0);
        packets
    }
}

/// Sources of the records, without repetitions that follow each other.
fn order(packets: &[(usize, Vec<u64>)]) -> Vec<u64> {
    let mut order: Vec<u64> = packets.iter().flat_map(|(_, sources)| sources.iter().copied()).collect();
    order.dedup();
    order
}

#[test]
fn all_packets_of_messages_whose_first_records_are_longer_leave_in_one_batch() {
    let mut bench = Bench::new();
    for record in 0..64 {
        // Two records fit a packet, and each eighth packet begins a message.
        bench.push(1, if record % 16 == 0 { 494 } else { 490 });
    }
    let lengths: Vec<_> = bench.take_all().iter().map(|(len, _)| *len).collect();
    assert_eq!(lengths, [988; 32]);
}

#[test]
fn a_packet_has_records_of_one_source() {
    let mut bench = Bench::new();
    bench.load();
    // As hosts send them: in turn, packet by packet.
    for _ in 0..16 {
        (1..=8).for_each(|source| bench.push(source, 400));
    }
    let mut packets = bench.take_all();
    packets.retain(|(_, sources)| *sources != [OTHER]);
    assert_eq!(packets.len(), 8 * 7, "full ones");
    for (_, sources) in &packets {
        assert_eq!(sources.iter().collect::<BTreeSet<_>>().len(), 1, "{sources:?}");
    }
    assert_eq!(order(&packets), [1, 2, 3, 4, 5, 6, 7, 8], "each within its quantum");
}

#[test]
fn sources_share_evenly_whatever_their_records() {
    let mut bench = Bench::new();
    bench.load();
    let lens = [(1, 50), (2, 900), (3, 4000)];
    for (source, len) in lens {
        (0..(1 << 20) / len).for_each(|_| bench.push(source, len));
    }
    // Until each has had its first turn, which may be longer than others'.
    (0..300).for_each(|_| assert!(bench.take().is_some()));
    let mut sent = BTreeMap::new();
    for _ in 0..1500 {
        for source in bench.take().unwrap().1.into_iter().filter(|source| *source != OTHER) {
            *sent.entry(source).or_insert(0) += lens.iter().find(|(name, _)| *name == source).unwrap().1;
        }
    }
    let (least, most) = (sent.values().min().unwrap(), sent.values().max().unwrap());
    // One has half a record more for its framing than another.
    assert!(sent.len() == 3 && most - least <= 2 * QUANTUM + most / 16, "{sent:?}");
    bench.take_all();
}

/// Three sources with as much to send each: two packets of others for each of one's own, and none
/// where one is alone or has no more waiting.
#[test]
fn sources_alternate_while_each_has_more_waiting() {
    let mut bench = Bench::new();
    bench.load();
    bench.take_all();
    let Alternation { own: alone, others } = bench.waiting.alternation();
    assert!(alone > 0 && others == 0, "{alone}, {others}");
    for source in [1, 2, OTHER] {
        (0..100 * QUANTUM / 950).for_each(|_| bench.push(source, 950));
    }
    bench.take_all();
    let seen = bench.waiting.alternation();
    let share = seen.others as f64 / (seen.own - alone) as f64;
    assert!((1.9..2.05).contains(&share), "{share}");
    // One by one, beside one that has much waiting: each is a source's only one.
    bench.load();
    for _ in 0..10 {
        for source in [1, 2] {
            bench.push(source, 90);
        }
        bench.take();
    }
    assert_eq!(bench.waiting.alternation().others, seen.others);
}

#[test]
fn who_had_nothing_waiting_goes_first_but_does_not_live_on_it() {
    let mut bench = Bench::new();
    (0..1000).for_each(|_| bench.push(1, 900));
    (0..20).for_each(|_| assert_eq!(bench.take().unwrap().1, [1]));
    bench.push(2, 100);
    assert_eq!(bench.take().unwrap().1, [2], "at once");
    // One that always has the next message when the last one is gone.
    let mut turns = [0, 0];
    for _ in 0..200 {
        bench.push(2, 100);
        while let Some((_, sources)) = bench.take() {
            if sources.contains(&2) {
                turns[1] += 1;
                break;
            }
            turns[0] += sources.len();
        }
    }
    assert!(turns[0] > 100, "{turns:?}");
    bench.take_all();
}

#[test]
fn a_message_of_who_comes_back_leaves_in_a_row() {
    let mut bench = Bench::new();
    for _ in 0..500 {
        (1..=3).for_each(|source| bench.push(source, 900));
    }
    let mut runs = Vec::new();
    for _ in 0..4 {
        // Others are given as much meanwhile.
        (0..3 * LONGEST_TURN / 900 + 20).for_each(|_| assert!(bench.take().is_some()));
        (0..LONGEST_TURN / 910).for_each(|_| bench.push(4, 900));
        let left: Vec<bool> =
            (0..200).map(|_| bench.take().is_some_and(|(_, sources)| sources == [4])).collect();
        let begin = left.iter().position(|own| *own).unwrap();
        runs.push(left[begin..].iter().take_while(|own| **own).count());
    }
    assert_eq!(runs, [LONGEST_TURN / 910; 4]);
    bench.take_all();
}

#[test]
fn long_turns_are_no_more_than_a_fair_share() {
    for pause in [0, 10, 50, 100] {
        let mut bench = Bench::new();
        for _ in 0..3000 {
            (1..=3).for_each(|source| bench.push(source, 900));
        }
        let (mut own, mut others, mut waiting, mut rest) = (0, 0, 0, 0_usize);
        for _ in 0..3000 {
            // The next message so many packets after the last one was gone.
            if waiting == 0 && rest == 0 {
                waiting = LONGEST_TURN / 910;
                (0..waiting).for_each(|_| bench.push(4, 900));
                rest = pause;
            }
            if bench.take().unwrap().1 == [4] {
                (own, waiting) = (own + 1, waiting - 1);
            } else {
                others += 1;
                rest = rest.saturating_sub(usize::from(waiting == 0));
            }
        }
        assert!(own > 300 && own <= others / 3 + LONGEST_TURN / 900 + 20, "pause {pause}: {own} of {others}");
        bench.take_all();
    }
}

#[test]
fn short_packets_of_several_are_one() {
    let mut bench = Bench::new();
    (0..60).for_each(|source| bench.push(source, 30));
    let packets = bench.take_all();
    assert_eq!(packets.len(), 2, "{packets:?}");
    // The end of a message, and two small ones.
    bench.load();
    for (source, len) in [(1, 900), (1, 300), (2, 300), (3, 150), (4, 900)] {
        bench.push(source, len);
    }
    let mut sources: Vec<_> = bench.take_all().into_iter().map(|(_, sources)| sources).collect();
    sources.retain(|sources| *sources != [OTHER]);
    assert_eq!(sources, [vec![1], vec![1, 2, 3], vec![4]]);
}

#[test]
fn a_small_message_waits_for_a_quantum_of_each_other_and_not_for_all_they_have() {
    let mut bench = Bench::new();
    bench.load();
    // Records that are all cut, and would be joined to one run each.
    for _ in 0..500 {
        (1..=4).for_each(|source| bench.push(source, 4138));
    }
    // Until each has had its first.
    (0..100).for_each(|_| assert!(bench.take().is_some()));
    bench.push(5, 64);
    let waited: usize = std::iter::from_fn(|| bench.take())
        .take_while(|(_, sources)| !sources.contains(&5))
        .map(|(len, _)| len)
        .sum();
    assert!(waited <= RUN + 4200, "{waited}");
    bench.take_all();
}

#[test]
fn while_little_waits_packets_are_shared() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        (1..=8).for_each(|source| bench.push(source, 400));
    }
    let packets = bench.take_all();
    assert_eq!(packets.len(), 24 * 402 / CAPACITY + 1, "{packets:?}");
}

/// Two groups share packets while little waits. Then one has very much: what the other has in them
/// leaves in the turn of those that share, whatever of that is used up.
#[test]
fn what_shares_packets_waits_for_no_group_that_has_more() {
    for before in 0..100 {
        let mut bench = Bench::new();
        (0..12).for_each(|_| bench.push_of(1, 1, 900));
        for _ in 0..before {
            bench.push_of(1, 1, 900);
            bench.take();
        }
        bench.push_of(2, 2, 900);
        (0..500).for_each(|source| bench.push_of(1, 100 + source, 900));
        let mut bytes = 0;
        while let Some((len, sources)) = bench.take() {
            bytes += len;
            if sources.contains(&2) {
                break;
            }
        }
        assert!(bytes < 2 * GROUP_QUANTUM as usize, "{bytes} bytes after {before}");
        bench.take_all();
    }
}

/// Four groups have ever new sources, and share the places. Another one's source waits for a turn
/// of each, and not for all that one of them has.
#[test]
fn groups_with_very_many_sources_leave_places_to_others() {
    for own in 0..200 {
        let mut bench = Bench::new();
        for group in [1, 2, 3, 4] {
            (0..2000).for_each(|source| bench.push_of(group, 10_000 * u64::from(group) + source, 300));
        }
        bench.push_of(5, own, 900);
        let mut bytes = 0;
        while let Some((len, sources)) = bench.take() {
            bytes += len;
            if sources.contains(&own) {
                break;
            }
        }
        assert!(bytes < 8 * GROUP_QUANTUM as usize, "{bytes} bytes before source {own}");
    }
}

#[test]
fn one_by_itself_fills_its_packets() {
    let mut bench = Bench::new();
    (0..1000).for_each(|_| bench.push(0, 4138));
    let packets = bench.take_all();
    let bytes: usize = packets.iter().map(|(len, _)| len).sum();
    assert!(packets.len() <= bytes / CAPACITY * 102 / 100, "{} for {bytes}", packets.len());
}

/// However many sources a group has, and if each of its messages could go first.
#[test]
fn groups_share_evenly_whatever_their_sources() {
    for len in [40, 900] {
        let mut bench = Bench::new();
        let (mut next, mut taken) = (0, [0_usize; 2]);
        for turn in 0..40_000 {
            // One flow of the first group, and ever new ones of the second.
            while bench.waiting.waiting_of(1) < 20_000 {
                bench.push_of(1, 1, 900);
            }
            while bench.waiting.waiting_of(200) < 400_000 {
                next += 1;
                bench.push_of(200, 100 + next % 5000, len);
            }
            let before = [bench.waiting.waiting_of(1), bench.waiting.waiting_of(200)];
            assert_eq!(before.iter().sum::<usize>(), bench.waiting.backlog());
            assert_eq!(before[1], bench.waiting.waiting_of_others());
            bench.take();
            let after = [bench.waiting.waiting_of(1), bench.waiting.waiting_of(200)];
            if turn > 1000 {
                taken[0] += before[0] - after[0];
                taken[1] += before[1] - after[1];
            }
        }
        let share = taken[0] as f64 / (taken[0] + taken[1]) as f64;
        assert!((0.47..0.60).contains(&share), "{share} with messages of {len}");
        bench.take_all();
        assert_eq!((bench.waiting.waiting_of(1), bench.waiting.waiting_of_others()), (0, 0));
    }
}

#[test]
fn memory_goes_when_nothing_waits() {
    let mut bench = Bench::new();
    (0..5000).for_each(|source| bench.push(source, 500));
    bench.waiting.release_spare();
    bench.take_all();
    assert!(bench.waiting.packets.len() >= 5000 / 2);
    bench.waiting.release_spare();
    assert_eq!(bench.waiting.packets.len(), 0);
    bench.push(1, 5);
    bench.take_all();
}

#[test]
fn neighbours_have_places_of_their_own() {
    for side in [1, 2_u64] {
        let places: BTreeSet<_> = (0..512).map(|flow| place_of((side << 32) | flow)).collect();
        assert!(places.len() > 480, "{}", places.len());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push { source: u64, len: usize },
    Take,
    Capacity(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let source = prop_oneof![0..4_u64, 0..5000_u64];
    let len = prop_oneof![12..80_usize, 12..1100_usize, 3900..4300_usize, 12..70_000_usize];
    prop_oneof![
        4 => (source, len).prop_map(|(source, len)| Step::Push { source, len }),
        6 => Just(Step::Take),
        1 => (300..=CAPACITY).prop_map(Step::Capacity),
    ]
}

fn play(steps: Vec<Step>) -> TestCaseResult {
    let mut bench = Bench::new();
    for step in steps {
        match step {
            Step::Push { source, len } => bench.push(source, len),
            Step::Take => drop(bench.take()),
            Step::Capacity(capacity) => bench.waiting.set_capacity(capacity),
        }
    }
    bench.take_all();
    Ok(())
}

proptest! {
    #[test]
    fn every_record_leaves_once_and_in_order(steps in prop::collection::vec(step(), 0..400)) {
        play(steps)?;
    }
}

/// RoCE packets of 4096 bytes over an MTU of 1500, with IPv4 and with IPv6: no packet more than
/// their bytes fill, but for one at the end of each run.
#[test]
fn cut_records_take_no_more_packets_than_their_bytes_fill() {
    for (capacity, len) in [(1429, 4096 + 26), (1409, 4096 + 26), (1429, 4096 + 10), (1409, 4096 + 29)] {
        for count in 1..=15 {
            let (mut waiting, mut pool) = (Waiting::new(capacity), Pool::new(64));
            (0..count).for_each(|_| {
                waiting.push(
                    Origin { source: 7, ..Origin::default() },
                    false,
                    &[&vec![1; len]],
                    len,
                    (0, &mut pool),
                );
            });
            let bytes = waiting.backlog();
            let packets: Vec<_> = std::iter::from_fn(|| waiting.take(&mut pool)).collect();
            let least = bytes.div_ceil(capacity);
            let fits = (least..=least + bytes / RUN).contains(&packets.len());
            assert!(fits, "{count} of {len} in {capacity}: {} packets for {bytes} bytes", packets.len());
            // Three bytes before the first piece of each, five before the others.
            assert!(bytes <= count * (len + 3 + 3 * 5), "{bytes}");
        }
    }
}

/// A packet waits since its first record came, whatever joins it.
#[test]
fn a_packet_tells_since_when_it_waits() {
    let (mut waiting, mut pool) = (Waiting::new(1400), Pool::new(64));
    for (now, len) in [(5, 100), (9, 100), (20, 1300)] {
        waiting.push(
            Origin { source: 7, ..Origin::default() },
            false,
            &[&vec![1; len]],
            len,
            (now, &mut pool),
        );
    }
    let since: Vec<u64> = std::iter::from_fn(|| waiting.take(&mut pool)).map(|(_, since)| since).collect();
    assert_eq!(since, [5, 20]);
}

/// Bytes of each of these groups' sources that leave in so many packets; all always have more.
fn shares(groups: &[(u8, u64)], packets: usize) -> BTreeMap<u64, usize> {
    let mut bench = Bench::new();
    let mut left = BTreeMap::new();
    for _ in 0..packets {
        for (group, source) in groups {
            while bench.waiting.waiting_of(*group) < 8 << 10 {
                bench.push_of(*group, *source, 90);
            }
        }
        let (len, whose) = bench.take().unwrap();
        let of: BTreeSet<_> = whose.into_iter().collect();
        of.iter().for_each(|source| *left.entry(*source).or_default() += len / of.len());
    }
    left
}

/// However many the others are, and whether or not their sources go first.
#[test]
fn main_groups_have_half_of_the_stream_beside_any_number_of_others() {
    let others: Vec<_> = (0..128).map(|group| (128 + group, 1000 + u64::from(group))).collect();
    for mains in [1_u8, 3] {
        let mains: Vec<_> = (0..mains).map(|group| (group, u64::from(group) + 1)).collect();
        let left = shares(&[mains.clone(), others.clone()].concat(), 40_000);
        let all: usize = left.values().sum();
        for (_, source) in &mains {
            let share = left[source] as f64 / all as f64 * mains.len() as f64;
            assert!((0.47..=0.53).contains(&share), "{share} of the stream");
        }
        let fair = all as f64 / 2.0 / others.len() as f64;
        for (_, source) in &others {
            let share = left.get(source).copied().unwrap_or(0) as f64 / fair;
            assert!((0.5..=1.5).contains(&share), "{share} of an even share");
        }
    }
}

/// Few others have what each group has.
#[test]
fn one_of_the_others_has_no_more_than_a_main_group() {
    let left = shares(&[(0, 1), (1, 2), (2, 3), (128, 4)], 8000);
    let all: usize = left.values().sum();
    for (source, bytes) in &left {
        let share = *bytes as f64 / all as f64 * 4.0;
        assert!((0.9..=1.1).contains(&share), "{source}: {share} of an even share");
    }
}

#[test]
fn what_counts_apart_is_not_among_the_others() {
    let mut bench = Bench::new();
    for (group, is_apart) in [(0, true), (128, true), (128, false), (200, true)] {
        bench.is_apart = is_apart;
        (0..40).for_each(|_| bench.push_of(group, u64::from(group), 900));
    }
    let each = |bench: &Bench| [bench.waiting.waiting_of_others(), bench.waiting.waiting_apart()];
    let [others, apart] = each(&bench);
    assert!(others > 36_000 && apart > 72_000 && apart < 80_000, "{others} and {apart}");
    while bench.take().is_some() {}
    assert_eq!(each(&bench), [0, 0]);
}
