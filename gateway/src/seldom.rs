//! Bounds how often the same thing is told in the log and among the events.

use std::time::{Duration, Instant};

/// For what would otherwise be told each second, or as often as somebody wants.
pub(crate) const A_MINUTE: Duration = Duration::from_secs(60);

/// Lets something be told once in a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seldom {
    /// Between two times.
    every: Duration,
    told: Option<Instant>,
}

impl Seldom {
    /// It was never told.
    pub(crate) const fn new(every: Duration) -> Self {
        Self { every, told: None }
    }

    /// Returns true if it may be told now.
    pub(crate) fn may_tell(&self, now: Instant) -> bool {
        self.told.is_none_or(|told| now.saturating_duration_since(told) >= self.every)
    }

    /// Returns true if it may be told now. Then it counts as told.
    pub(crate) fn tell(&mut self, now: Instant) -> bool {
        let may_tell = self.may_tell(now);
        if may_tell {
            self.told = Some(now);
        }
        may_tell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_at_once_and_then_seldom() {
        let (start, mut seldom) = (Instant::now(), Seldom::new(A_MINUTE));
        let mut told = Vec::new();
        for second in 0..200 {
            let now = start + Duration::from_secs(second);
            let may_tell = seldom.may_tell(now);
            assert_eq!(seldom.tell(now), may_tell, "{second}");
            told.extend(may_tell.then_some(second));
        }
        assert_eq!(told, [0, 60, 120, 180]);
    }
}
