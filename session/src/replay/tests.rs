//! Rule: `docs/protocol.md#rule-replay-window`.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// The window in its plainest form: a set of all numbers ever taken in.
#[derive(Default)]
struct Model {
    newest: u64,
    seen: BTreeSet<u64>,
}

impl Model {
    fn check(&self, number: u64) -> Result<(), Rejected> {
        if number + REPLAY_WINDOW <= self.newest {
            Err(Rejected::TooOld)
        } else if self.seen.contains(&number) {
            Err(Rejected::Replay)
        } else {
            Ok(())
        }
    }

    fn mark(&mut self, number: u64) {
        self.newest = self.newest.max(number);
        self.seen.insert(number);
    }
}

#[test]
fn the_edges_of_the_window() {
    let mut window = ReplayWindow::default();
    assert_eq!(window.check(0), Ok(()));
    window.mark(0);
    assert_eq!(window.check(0), Err(Rejected::Replay));
    window.mark(REPLAY_WINDOW);
    assert_eq!(window.check(0), Err(Rejected::TooOld));
    assert_eq!(window.check(1), Ok(()));
    window.mark(1);
    assert_eq!(window.check(1), Err(Rejected::Replay));
    window.mark(u64::MAX);
    assert_eq!(window.check(u64::MAX), Err(Rejected::Replay));
    assert_eq!(window.check(u64::MAX - 1), Ok(()));
    assert_eq!(window.check(REPLAY_WINDOW), Err(Rejected::TooOld));
}

const _: () =
    assert!(REPLAY_WINDOW >= 1 << 16, "lanes and offloads reorder over tens of thousands of packets");

#[test]
fn reordering_over_the_whole_window_loses_nothing() {
    let mut window = ReplayWindow::default();
    window.mark(REPLAY_WINDOW - 1);
    for number in 0..REPLAY_WINDOW - 1 {
        assert_eq!(window.check(number), Ok(()));
        window.mark(number);
    }
    for number in 0..REPLAY_WINDOW {
        assert_eq!(window.check(number), Err(Rejected::Replay));
    }
}

fn step() -> impl Strategy<Value = i64> {
    let window = REPLAY_WINDOW as i64;
    prop_oneof![
        8 => -200..=200_i64,
        2 => -window - 70..=-window + 70,
        2 => window - 70..=window + 70,
        1 => -2 * window..=2 * window,
        1 => Just(64 * 3),
    ]
}

proptest! {
    #[test]
    fn agrees_with_the_model(start in 0..3 * REPLAY_WINDOW, steps in prop::collection::vec(step(), 1..300)) {
        let (mut window, mut model) = (ReplayWindow::default(), Model::default());
        window.mark(start);
        model.mark(start);
        for step in steps {
            let number = model.newest.saturating_add_signed(step);
            let expected = model.check(number);
            prop_assert_eq!(window.check(number), expected);
            if expected.is_ok() {
                window.mark(number);
                model.mark(number);
            }
            prop_assert_eq!(window.newest(), model.newest);
        }
        for &number in &model.seen {
            prop_assert!(window.check(number).is_err());
        }
    }
}
