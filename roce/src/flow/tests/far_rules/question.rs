//! A target that was asked by an earlier gateway, and says nothing more.

use super::*;

/// Far behind the first request.
const BEHIND: u32 = 110_u32.wrapping_sub(1 << 17) & 0xff_ffff;

fn unheard() -> Bench {
    let mut bench = Bench::new();
    bench.message(110, 1);
    assert_eq!(bench.sent_psns(), [110]);
    bench
}

/// Lets the timeout expire, and returns what goes out then.
fn silence(bench: &mut Bench) -> Vec<u32> {
    let at = bench.far.next_timeout().unwrap();
    bench.wait(at - bench.now);
    bench.sent_psns()
}

#[test]
fn a_silent_target_is_asked_from_far_behind() {
    let mut bench = unheard();
    assert!(!bench.far.awaits(Psn::new(104), Word::Ack));
    assert_eq!(silence(&mut bench), [110]);
    for _ in 0..3 {
        assert_eq!(silence(&mut bench), [BEHIND, 110]);
    }
    assert!(bench.far.awaits(Psn::new(104), Word::Ack) && !bench.far.awaits(Psn::new(104), Word::Read));
    let told = bench.relayed(&acknowledge(104, 0x1f, 3)).unwrap();
    assert_eq!((aeth(&told), parse(&told).ext.aeth().unwrap().msn), ((105, 0x60), 3));
    // It is known where it stands.
    assert_eq!(silence(&mut bench), [110]);
    // The requester, or what was retained, goes on there.
    bench.message(105, 1);
    assert_eq!(bench.sent_psns(), [105]);
    let done = acknowledge(105, 0x1f, 4);
    assert_eq!(bench.relayed(&done).unwrap(), done);
    assert!(!bench.far.awaits(Psn::new(104), Word::Ack));
}

#[test]
fn what_says_nothing_of_where_it_stands_is_no_answer() {
    let far_away = 110_u32.wrapping_sub(1 << 17) & 0xff_ffff;
    for (named, count) in [(104, 0), (109, 3), (120, 0), (far_away, 3)] {
        let mut bench = unheard();
        (0..2).for_each(|_| drop(silence(&mut bench)));
        assert_eq!(bench.relayed(&acknowledge(named, 0x1f, count)), None, "{named} {count}");
    }
    // Not asked, it is an old word.
    let mut bench = unheard();
    assert_eq!(bench.relayed(&acknowledge(104, 0x1f, 3)), None);
}

#[test]
fn a_target_that_has_spoken_is_not_asked() {
    let mut bench = unheard();
    bench.response(&acknowledge(110, 0x1f, 1));
    bench.message(111, 1);
    bench.sent();
    (0..5).for_each(|_| assert_eq!(silence(&mut bench), [111]));
    let mut bench = unheard();
    bench.response(&acknowledge(105, 0x60, 1));
    bench.sent();
    (0..5).for_each(|_| assert_eq!(silence(&mut bench), [110]));
}

/// Flows that take turns have no timeout of their own.
#[test]
fn turns_in_vain_count_as_silence() {
    let mut bench = unheard();
    let mut vain = || {
        bench.far.take_back(bench.now);
        bench.sent_psns()
    };
    assert_eq!([vain(), vain(), vain()], [vec![110], vec![BEHIND, 110], vec![BEHIND, 110]]);
}
