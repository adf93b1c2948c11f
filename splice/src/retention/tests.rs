use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use roce::ip::Addressing;
use roce::pairing::FlowKey;
use roce::wire::{Packet, Psn, Qpn};

use super::{Age, Found, MOST_FATAL_READS, Memory, Retention, Run, fatal_reads};
use crate::test_clock;

const LONGEST: usize = 200;

fn addressing(port: u16) -> Addressing {
    let [src, dst] = [1, 2].map(|host| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)));
    Addressing { src, dst, src_port: port, tclass: 0, ttl: 64 }
}

fn key(qpn: u32) -> FlowKey {
    let Addressing { src, dst, .. } = addressing(0);
    FlowKey { requester: src, target: dst, target_qpn: Qpn::new(qpn) }
}

/// A packet in the midst of a SEND.
fn middle(qpn: u32, psn: u32, fill: u8) -> Vec<u8> {
    let mut bytes = vec![1, 0, 0xff, 0xff, 0];
    bytes.extend_from_slice(&qpn.to_be_bytes()[1..]);
    bytes.push(0);
    bytes.extend_from_slice(&(psn & 0xff_ffff).to_be_bytes()[1..]);
    bytes.extend_from_slice(&[fill; 64]);
    bytes
}

fn put(retention: &mut Retention, run: &mut Run, bytes: &[u8]) -> bool {
    let packet = Packet::parse(bytes).unwrap();
    retention.note_taken(run, packet.bth.psn);
    retention.put(run, 1, (&addressing(0xc000), &packet), false)
}

fn at(memory: impl Memory + 'static, now: Instant) -> Retention {
    Retention::new(Box::new(memory), LONGEST, now + Duration::from_secs(60), |_| Age::Recent)
}

fn fresh(slots: usize) -> Retention {
    at(vec![0xaa; 64 + slots * 320], test_clock())
}

fn again(retention: Retention) -> Retention {
    let bytes = (*retention.into_memory()).as_ref().to_vec();
    at(bytes, test_clock())
}

fn read(retention: &mut Retention, run: &Run, from: u32, to: u32) -> Vec<Vec<u8>> {
    read_of(7, retention, run, from, to)
}

fn read_of(qpn: u32, retention: &mut Retention, run: &Run, from: u32, to: u32) -> Vec<Vec<u8>> {
    let mut read = Vec::new();
    retention.read_between(run, &key(qpn), (Psn::new(from), Psn::new(to)), |packet| {
        read.push(packet.bytes.to_vec());
        true
    });
    read
}

#[test]
fn what_is_retained_is_found_by_the_next_process() {
    let mut retention = fresh(16);
    let mut run = Run::default();
    let packets: Vec<_> = (0xff_fffe..0x100_0003).map(|psn| middle(7, psn, psn as u8)).collect();
    for packet in &packets {
        assert!(put(&mut retention, &mut run, packet));
    }
    let mut retention = again(retention);
    assert_eq!(retention.used(), 5);
    assert!(retention.continues(&key(7), 0xc000, Psn::new(3)));
    assert!(!retention.continues(&key(7), 0xc000, Psn::new(4)), "nothing came there");
    assert!(!retention.continues(&key(7), 0xc001, Psn::new(3)), "another port");
    assert!(!retention.continues(&key(8), 0xc000, Psn::new(3)), "another queue pair");
    let mut run = retention.adopt(&key(7));
    assert_eq!(read(&mut retention, &run, 0xff_ffff, 3), packets[1..]);
    assert_eq!(retention.bytes_between(&run, Psn::new(0xff_ffff), Psn::new(3)), Some(4 * 76));
    retention.release(&mut run, Psn::new(1));
    assert_eq!(retention.used(), 2);
    assert_eq!(retention.bytes_between(&run, Psn::new(0), Psn::new(3)), None, "the first is gone");
    retention.clear(&mut run);
    let mut retention = again(retention);
    assert_eq!((retention.used(), retention.adopt(&key(7)).is_empty()), (0, true));
}

#[test]
fn a_flow_that_goes_back_overwrites_what_it_had() {
    let mut retention = fresh(8);
    let mut run = Run::default();
    for psn in 0..4 {
        assert!(put(&mut retention, &mut run, &middle(7, psn, 1)));
    }
    assert!(put(&mut retention, &mut run, &middle(7, 2, 2)));
    assert_eq!(retention.used(), 3);
    let fills: Vec<_> = read(&mut retention, &run, 0, 3).iter().map(|packet| packet[12]).collect();
    assert_eq!(fills, [1, 1, 2]);
    assert!(put(&mut retention, &mut run, &middle(7, 0xff_fff0, 3)));
    assert_eq!(retention.used(), 1);
}

/// A queue pair that was reset sends other messages at the same PSNs, and a part of none may be
/// among them.
#[test]
fn what_was_retained_from_the_next_request_on_is_forgotten() {
    let mut retention = fresh(8);
    let mut run = Run::default();
    for psn in 0..6 {
        assert!(put(&mut retention, &mut run, &middle(7, psn, 1)));
    }
    retention.note_taken(&mut run, Psn::new(6));
    assert_eq!(retention.used(), 6);
    retention.note_taken(&mut run, Psn::new(4));
    assert_eq!((retention.used(), read(&mut retention, &run, 0, 9).len()), (4, 4));
    retention.note_taken(&mut run, Psn::new(0));
    assert_eq!((retention.used(), run.is_empty()), (0, true));
}

/// Whoever wrote the file knew its sum, which is no secret.
#[test]
fn nothing_but_parts_of_sends_and_writes_is_read() {
    // SEND First, Middle, Last and Only, SEND Last with Immediate, UC's SEND First.
    for (opcode, is_part) in [(0u8, true), (1, true), (2, false), (4, false), (3, false), (0x20, false)] {
        let mut part = middle(7, 3, 1);
        part[0] = opcode;
        let mut retention = fresh(8);
        assert!(put(&mut retention, &mut Run::default(), &part));
        assert_eq!(again(retention).used(), u32::from(is_part), "{opcode:#x}");
    }
    let mut retention = fresh(8);
    let mut run = Run::default();
    assert!(put(&mut retention, &mut run, &middle(7, 0, 1)));
    assert_eq!(read_of(8, &mut retention, &run, 0, 1).len(), 0, "another flow's");
    retention.forget(&key(7));
    assert_eq!(retention.used(), 1, "it belongs to a flow");
    let mut retention = again(retention);
    retention.forget(&key(7));
    assert_eq!(retention.used(), 0);
}

#[test]
fn without_a_free_slot_nothing_is_retained() {
    let mut retention = fresh(2);
    let mut run = Run::default();
    assert!(
        put(&mut retention, &mut run, &middle(7, 0, 1)) && put(&mut retention, &mut run, &middle(7, 1, 1))
    );
    assert!(!put(&mut retention, &mut run, &middle(7, 2, 1)));
    assert_eq!((retention.used(), retention.unretained(), retention.slots()), (2, 1, 2));
    retention.release(&mut run, Psn::new(1));
    assert!(put(&mut retention, &mut run, &middle(7, 3, 1)));
    assert_eq!(retention.bytes_between(&run, Psn::new(1), Psn::new(4)), None, "there is a hole");
}

#[test]
fn no_host_has_more_than_its_share() {
    let mut retention = fresh(90);
    let mut greedy = Run::default();
    let mut psn = 0;
    while put(&mut retention, &mut greedy, &middle(7, psn, 1)) {
        psn += 1;
    }
    assert_eq!(retention.used(), 80, "eight times what is free");
    let other = Addressing { src: [10, 0, 0, 9].into(), ..addressing(0xc000) };
    let bytes = middle(8, 0, 1);
    assert!(retention.put(&mut Run::default(), 9, (&other, &Packet::parse(&bytes).unwrap()), false));
    retention.clear(&mut greedy);
    assert!(put(&mut retention, &mut greedy, &middle(7, 0, 1)));
}

#[test]
fn memory_of_another_layout_or_time_is_begun_anew() {
    let mut retention = fresh(8);
    assert!(put(&mut retention, &mut Run::default(), &middle(7, 0, 1)));
    retention.note_time(1_000);
    let bytes = (*retention.into_memory()).as_ref().to_vec();
    let until = test_clock();
    let open = |longest, age: fn(u64) -> Age| {
        let retention = Retention::new(Box::new(bytes.clone()), longest, until, age);
        (retention.used(), retention.found())
    };
    assert_eq!(open(LONGEST, |time| if time == 1_000 { Age::Recent } else { Age::Old }), (1, Found::Kept));
    assert_eq!(open(LONGEST, |time| if time == 1_000 { Age::Old } else { Age::Recent }), (0, Found::Kept));
    assert_eq!(open(LONGEST, |_| Age::ToCome), (0, Found::ToCome(1_000)));
    assert_eq!(open(2 * LONGEST, |_| Age::Recent), (0, Found::Cut { size: 320, slots: 8 }));
}

/// Nobody reads it, and whoever started the process learns of it.
#[test]
fn memory_that_holds_anything_else_is_told_of() {
    assert_eq!(at(vec![0; 64 + 8 * 320], test_clock()).found(), Found::Nothing);
    let garbage = fresh(8);
    assert_eq!((garbage.used(), garbage.found()), (0, Found::Foreign([0xaa; 8])));
    assert_eq!(garbage.found().to_string(), format!("it begins with \"{}\"", r"\xaa".repeat(8)));
    assert_eq!(again(garbage).found(), Found::Kept, "it is begun anew");
    let mut retention = fresh(8);
    let mut run = Run::default();
    (0..5).for_each(|psn| assert!(put(&mut retention, &mut run, &middle(7, psn, 1))));
    let mut bytes = (*retention.into_memory()).as_ref().to_vec();
    // A bit of the payload, one of the addresses, and the sum of a slot that was free.
    let in_use: Vec<_> =
        (0..8).map(|slot| 64 + slot * 320).filter(|at| bytes[*at..][..4] != [0; 4]).collect();
    assert_eq!(in_use.len(), 5);
    for at in [in_use[0] + 64 + 40, in_use[1] + 20] {
        bytes[at] ^= 1;
    }
    let free = (0..8).map(|slot| 64 + slot * 320).find(|at| !in_use.contains(at)).unwrap();
    bytes[free] = 1;
    let damaged = at(bytes, test_clock());
    assert_eq!((damaged.used(), damaged.found()), (3, Found::Damaged(3)));
    assert_eq!(damaged.found().wrong(), Some((3, 3)));
    assert_eq!(again(damaged).found(), Found::Kept, "it is told once");
}

#[test]
fn what_nobody_comes_for_is_forgotten() {
    let mut retention = fresh(8);
    assert!(put(&mut retention, &mut Run::default(), &middle(7, 0, 1)));
    let mut retention = again(retention);
    let until = retention.next_timeout().unwrap();
    retention.handle_timeout(until - Duration::from_nanos(1));
    assert_eq!(retention.used(), 1);
    retention.handle_timeout(until);
    assert_eq!((retention.used(), retention.next_timeout()), (0, None));
    assert!(again(retention).adopt(&key(7)).is_empty());
}

/// Memory that takes a number of bytes more, and then no more: its writer is killed.
struct Dying {
    bytes: Vec<u8>,
    before: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Step {
    Put(u32, u8),
    Release(u32),
    Back(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..2u32, any::<u8>()).prop_map(|(qpn, fill)| Step::Put(qpn, fill)),
        1 => (0..2u32).prop_map(Step::Release),
        1 => (0..2u32).prop_map(Step::Back),
    ];
    proptest::collection::vec(step, 1..40)
}

/// The bytes that differ are written from the last to the first, but for the first word of a slot,
/// which comes last: as the processor may have done it when the process was killed.
fn killed(dying: &Dying, written: usize) -> Vec<u8> {
    let mut bytes = dying.before.clone();
    let differing: Vec<_> = (0..bytes.len()).filter(|&at| bytes[at] != dying.bytes[at]).collect();
    let is_word = |at: &usize| at.checked_sub(64).is_some_and(|at| at % 320 < 4);
    let (words, rest): (Vec<_>, Vec<_>) = differing.into_iter().partition(is_word);
    for at in rest.into_iter().rev().take(written) {
        bytes[at] = dying.bytes[at];
    }
    let _ = words;
    bytes
}

proptest! {
    /// However much of a request was written when the process was killed, it is not there, and all
    /// those before are.
    #[test]
    fn whoever_is_killed_leaves_whole_requests(steps in steps(), written in 0..90usize) {
        let mut retention = fresh(64);
        let mut runs = [Run::default(), Run::default()];
        let mut ends = [0x10u32, 0x20];
        let mut begins = ends;
        let mut fills: [Vec<u8>; 2] = Default::default();
        for step in steps {
            let before = (*retention.memory).as_ref().to_vec();
            match step {
                Step::Put(qpn, fill) => {
                    let i = qpn as usize;
                    if !put(&mut retention, &mut runs[i], &middle(qpn, ends[i], fill)) {
                        break;
                    }
                    let dying = Dying { bytes: (*retention.memory).as_ref().to_vec(), before };
                    let found = at(killed(&dying, written), test_clock());
                    prop_assert_eq!(found.used() + 1, retention.used());
                    prop_assert_eq!(found.found(), Found::Kept);
                    ends[i] += 1;
                    fills[i].push(fill);
                }
                Step::Release(qpn) => {
                    let i = qpn as usize;
                    let by = (ends[i] - begins[i]) / 2;
                    begins[i] += by;
                    fills[i].drain(..by as usize);
                    retention.release(&mut runs[i], Psn::new(begins[i]));
                }
                Step::Back(qpn) => {
                    let i = qpn as usize;
                    ends[i] = begins[i].max(ends[i].saturating_sub(2));
                    fills[i].truncate((ends[i] - begins[i]) as usize);
                    if begins[i] < ends[i] {
                        ends[i] -= 1;
                        let fill = fills[i].pop().unwrap();
                        prop_assert!(put(&mut retention, &mut runs[i], &middle(qpn, ends[i], fill)));
                        ends[i] += 1;
                        fills[i].push(fill);
                    } else {
                        retention.clear(&mut runs[i]);
                    }
                }
            }
            let mut found = again(Retention::new(
                Box::new((*retention.memory).as_ref().to_vec()), LONGEST, test_clock(), |_| Age::Recent,
            ));
            for i in 0..2 {
                let run = found.adopt(&key(i as u32));
                let read = read_of(i as u32, &mut found, &run, begins[i], ends[i]);
                prop_assert_eq!(read.iter().map(|packet| packet[12]).collect::<Vec<_>>(), fills[i].clone());
            }
        }
    }

    /// Any bytes at all are read without a panic, and nothing that is not whole is handed over.
    #[test]
    fn any_memory_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..2_000)) {
        let mut magic = b"LHRETN01".to_vec();
        magic.extend_from_slice(&320u32.to_ne_bytes());
        magic.extend_from_slice(&(((bytes.len() + 16).saturating_sub(64) / 320) as u32).to_ne_bytes());
        magic.extend_from_slice(&bytes);
        let found = at(magic, test_clock());
        prop_assert_eq!(found.used(), 0);
    }
}

/// Memory whose reader dies at the read after so many. It sends what it held when that is over.
struct Fatal {
    bytes: Vec<u8>,
    reads: std::cell::Cell<usize>,
    back: std::sync::mpsc::Sender<Vec<u8>>,
}

impl AsRef<[u8]> for Fatal {
    fn as_ref(&self) -> &[u8] {
        let left = self.reads.get().checked_sub(1).expect("this read ends the process");
        self.reads.set(left);
        &self.bytes
    }
}

impl AsMut<[u8]> for Fatal {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Fatal {
    fn drop(&mut self) {
        self.back.send(std::mem::take(&mut self.bytes)).unwrap();
    }
}

/// Dies at the read after so many, and returns what the memory holds then.
fn die(bytes: Vec<u8>, reads: usize) -> Vec<u8> {
    let (back, memory) = std::sync::mpsc::channel();
    let fatal = Fatal { bytes, reads: reads.into(), back };
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut retention = at(fatal, test_clock());
        let run = retention.adopt(&key(7));
        read(&mut retention, &run, 1, 3)
    }));
    assert!(died.is_err());
    memory.recv().unwrap()
}

#[test]
fn processes_that_end_while_they_read_are_counted() {
    // As many are read at the start, and one for the port.
    const SLOTS: usize = 4;
    let mut retention = fresh(SLOTS);
    let mut run = Run::default();
    assert!([1, 2].into_iter().all(|psn| put(&mut retention, &mut run, &middle(7, psn, 0))));
    let mut bytes = (*retention.into_memory()).as_ref().to_vec();
    assert_eq!(fatal_reads(&bytes), 0);
    // At the first read, among others, and when a flow's are carried.
    for (count, reads) in (1..=MOST_FATAL_READS).zip([0, SLOTS - 1, SLOTS + 1]) {
        bytes = die(bytes, reads);
        assert_eq!(fatal_reads(&bytes), count, "{reads}");
    }
    // One that lives, but not for long, changes nothing.
    let now = test_clock();
    let mut retention = at(bytes, now);
    let run = retention.adopt(&key(7));
    assert_eq!(read(&mut retention, &run, 1, 3).len(), 2);
    let count = |retention: &Retention| fatal_reads((*retention.memory).as_ref());
    assert_eq!(count(&retention), MOST_FATAL_READS);
    let until = retention.next_timeout().unwrap();
    retention.handle_timeout(until);
    assert_eq!((count(&retention), retention.next_timeout()), (0, None));
}

#[test]
fn bytes_and_flows_that_are_retained_are_counted() {
    let mut retention = fresh(8);
    let mut runs = [7, 8].map(|qpn| (qpn, Run::default()));
    for (qpn, run) in &mut runs {
        assert!((1..4).all(|psn| put(&mut retention, run, &middle(*qpn, psn, 0))));
    }
    assert_eq!((retention.bytes(), retention.flows(), retention.orphans()), (6 * 76, 2, 0));
    let mut retention = again(retention);
    assert_eq!((retention.bytes(), retention.flows(), retention.orphans()), (6 * 76, 2, 2));
    let mut run = retention.adopt(&key(7));
    retention.release(&mut run, Psn::new(3));
    assert_eq!((retention.bytes(), retention.flows(), retention.orphans()), (4 * 76, 2, 1));
    retention.note_taken(&mut run, Psn::new(1));
    assert_eq!((retention.bytes(), retention.flows()), (3 * 76, 1));
    retention.forget(&key(8));
    assert_eq!((retention.bytes(), retention.flows(), retention.orphans()), (0, 0, 0));
    assert_eq!(retention.most_bytes(), 8 * 256);
}

/// Requests that a flow retained in one memory go over to another, all or none.
#[test]
fn what_is_retained_goes_over_to_another_gateway() {
    let until = test_clock() + Duration::from_secs(60);
    let filled = || {
        let (mut from, mut run) = (fresh(8), Run::default());
        let packets: Vec<_> = (0xff_fffe..0x100_0002).map(|psn| middle(7, psn, psn as u8)).collect();
        assert!(packets.iter().all(|packet| put(&mut from, &mut run, packet)));
        run.acknowledged = Some(Psn::new(0xff_ffff));
        (from, run, packets)
    };
    let (mut from, run, packets) = filled();
    let moved = from.take_out(run, &key(7), addressing(0xc000)).unwrap();
    assert_eq!((from.used(), from.flows()), (0, 0));
    let mut to = fresh(8);
    to.take_in(key(7), &moved, 1, until);
    assert_eq!((to.used(), to.flows(), to.orphans()), (4, 1, 1));
    assert!(to.continues(&key(7), 0xc000, Psn::new(2)) && !to.continues(&key(7), 0xc001, Psn::new(2)));
    // The time of what an earlier process left is over before.
    to.handle_timeout(until - Duration::from_millis(1));
    assert!(to.take_orphans(|meant| *meant == key(8)).is_empty());
    let [(of, again_moved)] = &to.take_orphans(|meant| *meant == key(7))[..] else { panic!("one flow") };
    assert_eq!((*of, to.used()), (key(7), 0));
    to.take_in(key(7), again_moved, 1, until);
    let run = to.adopt(&key(7));
    assert_eq!(run.acknowledged, Some(Psn::new(0xff_ffff)));
    assert_eq!(read(&mut to, &run, 0xff_fffe, 2), packets);
    // A later process finds it as if it had been there all the while.
    assert_eq!(again(to).used(), 4);
    let mut small = fresh(3);
    small.take_in(key(7), &moved, 1, until);
    assert_eq!((small.used(), small.flows(), small.orphans()), (0, 0, 0));
    // Another flow's, or nothing.
    let (mut from, run, _) = filled();
    assert!(from.take_out(run, &key(8), addressing(0xc000)).is_none());
    assert_eq!(from.used(), 0);
    assert!(from.take_out(Run::default(), &key(7), addressing(0xc000)).is_none());
}
