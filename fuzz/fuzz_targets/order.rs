//! The order of a flow's records: each is released once, in order, against a model that keeps
//! everything.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::{Script, within};
use reliability::message::{Insert, Pages, Reassembly};

const LIMIT: usize = 1 << 16;

fuzz_target!(|input: &[u8]| within(2 << 20, "records that wait", || run(input)));

fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let first = script.u32();
    let window = script.u32() % 5000;
    let mut pages = Pages::new(LIMIT);
    let mut order = Reassembly::new(first, window);
    let window = window.max(1);
    let mut held = BTreeSet::new();
    let mut next = 0_u64;
    while !script.is_over() {
        match script.u8() % 8 {
            0 => {
                let released = order.pop(&mut pages);
                let expected = held.remove(&next).then_some(next);
                assert_eq!(released, expected);
                next += u64::from(released.is_some());
            }
            1 => {
                let to = held.first().copied().unwrap_or(next);
                assert_eq!(u64::from(order.skip(&mut pages)), to - next);
                next = to;
            }
            2 if script.u8() == 0 => {
                order.clear(&mut pages);
                held.clear();
            }
            how => {
                let distance = if how == 3 { script.u32() } else { u32::from(script.u16()) };
                let sequence = first.wrapping_add(next as u32).wrapping_add(distance);
                let place = next + u64::from(distance);
                match order.insert(sequence, place, &mut pages) {
                    Ok(()) => {
                        assert!(distance < window);
                        assert!(held.insert(place), "twice");
                    }
                    Err(Insert::Duplicate) => assert!(held.contains(&place)),
                    Err(Insert::Late) => assert!(distance > u32::MAX / 2),
                    Err(Insert::BeyondWindow) => assert!(distance >= window),
                    Err(Insert::NoRoom) => assert!(distance > 0 && distance < window),
                }
                let held = |distance: &u32| *distance < window && held.contains(&place);
                assert_eq!(order.contains(sequence), Some(distance).as_ref().is_some_and(held));
            }
        }
        assert_eq!((order.held(), order.is_empty()), (held.len(), held.is_empty()));
        assert_eq!(order.next(), first.wrapping_add(next as u32));
        assert!(pages.bytes_in_use() <= LIMIT.max(16 * 64 * 24));
    }
    order.clear(&mut pages);
    assert_eq!(pages.bytes_in_use(), 0);
}
