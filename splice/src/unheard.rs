//! Flows whose targets have not spoken, in the order in which they were opened.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The least age of a flow that gives way, beside two round trips of the link: a target that is
/// there has mostly answered by then.
const AGE: Duration = Duration::from_millis(100);

/// Flows by age, for those whose targets have not spoken to give way when the table is full.
///
/// Whoever invents source addresses has a share of the table for each. Their targets answer nobody,
/// so these flows are what such a table is full of.
///
/// # Cost
/// Nothing per packet: a flow is entered when it is opened, and looked at when its turn to give way
/// comes, or twice as many are there as after the last look at all. What has gone or heard from its
/// target by then is struck out.
///
/// Bound: twice as many entries as flows have heard nothing, and [`Unheard::LEAST`].
#[derive(Debug)]
pub(crate) struct Unheard<K> {
    flows: VecDeque<(Instant, K)>,
    /// So many are there when all are looked at next.
    look_at: usize,
}

impl<K> Default for Unheard<K> {
    fn default() -> Self {
        Self { flows: VecDeque::new(), look_at: 0 }
    }
}

impl<K: Copy> Unheard<K> {
    const LEAST: usize = 64;

    /// Enters a flow that is opened.
    pub(crate) fn push(&mut self, key: K, now: Instant, is_unheard: impl Fn(K) -> bool) {
        if self.flows.len() >= self.look_at.max(Self::LEAST) {
            self.flows.retain(|(_, key)| is_unheard(*key));
            self.look_at = 2 * self.flows.len() + Self::LEAST;
            self.flows.shrink_to(self.look_at);
        }
        self.flows.push_back((now, key));
    }

    /// Takes out the oldest of those that have heard nothing, if it is old enough to give way.
    pub(crate) fn pop(&mut self, rtt: Duration, now: Instant, is_unheard: impl Fn(K) -> bool) -> Option<K> {
        while let Some((since, key)) = self.flows.front().copied() {
            let is_there = is_unheard(key);
            if is_there && now.saturating_duration_since(since) < 2 * rtt + AGE {
                return None;
            }
            self.flows.pop_front();
            if is_there {
                return Some(key);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any time will do")]
    fn the_oldest_that_has_heard_nothing_gives_way_and_none_that_is_young() {
        let (start, rtt) = (Instant::now(), Duration::from_millis(20));
        let at = |ms| start + Duration::from_millis(ms);
        let mut unheard = Unheard::default();
        (0..1000).for_each(|key| unheard.push(key, at(key), |_| true));
        let has_heard_nothing = |key: u64| key % 3 == 2;
        assert_eq!(unheard.pop(rtt, at(141), has_heard_nothing), None);
        assert_eq!(unheard.pop(rtt, at(142), has_heard_nothing), Some(2));
        assert_eq!(unheard.pop(rtt, at(142), has_heard_nothing), None);
        assert_eq!(unheard.pop(rtt, at(1000), has_heard_nothing), Some(5));
        (1000..2000).for_each(|key| unheard.push(key, at(key), has_heard_nothing));
        assert!(unheard.flows.len() <= 2 * 667 + 64, "{}", unheard.flows.len());
        (2000..3000).for_each(|key| unheard.push(key, at(key), |_| false));
        assert!(unheard.flows.len() <= 64 && unheard.flows.capacity() <= 128);
        assert_eq!(unheard.pop(rtt, at(3000), |_| false), None);
        assert!(unheard.flows.is_empty());
    }
}
