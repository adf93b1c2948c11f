//! Requester side: where a requester goes back to, before the first packet of a flow whose target
//! has not spoken.

use std::time::{Duration, Instant};

use thin_vec::ThinVec;

use crate::wire::Psn;

/// PSNs to which the requester went back, and when it first did so, each before the next. Somebody
/// else may have sent some of them.
///
/// Bound: [`Back::MOST`]. For one more the lowest is forgotten.
#[serde_with::serde_as]
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Back {
    #[serde_as(as = "Option<(_, snapshot::At)>")]
    lowest: Option<(Psn, Instant)>,
    /// Those that came since. Version 1 of snapshots does not know of them.
    #[serde(skip)]
    others: ThinVec<(Psn, Instant)>,
}

impl Back {
    const MOST: usize = 16;

    /// The requester goes back to this PSN. Returns whether it did so before, `apart` ago at least,
    /// and to none before it in between. What is sent together begins with the lowest.
    pub(super) fn comes_again(&mut self, psn: Psn, apart: Duration, now: Instant) -> bool {
        while self.others.last().is_some_and(|(known, _)| psn.is_before(*known)) {
            self.others.pop();
        }
        self.lowest.take_if(|(known, _)| psn.is_before(*known));
        let Some((known, at)) = self.others.last().copied().or(self.lowest) else {
            self.lowest = Some((psn, now));
            return false;
        };
        let is_apart = now.saturating_duration_since(at) >= apart;
        if known != psn && is_apart {
            self.push(psn, now);
        }
        known == psn && is_apart
    }

    fn push(&mut self, psn: Psn, now: Instant) {
        if self.others.len() >= Back::MOST {
            self.lowest = Some(self.others.remove(0));
        }
        self.others.push((psn, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::tests::epoch;

    const APART: Duration = Duration::from_millis(1);

    /// PSNs, and the milliseconds at which they come.
    fn believed(comes: &[(u32, u32)]) -> Vec<u32> {
        let mut back = Back::default();
        let comes = comes.iter().map(|(psn, at)| (Psn::new(*psn), epoch() + *at * APART));
        comes.filter(|(psn, now)| back.comes_again(*psn, APART, *now)).map(|(psn, _)| psn.get()).collect()
    }

    #[test]
    fn a_requester_begins_where_it_always_goes_back_to() {
        assert_eq!(believed(&[(9, 0), (10, 0), (9, 0), (9, 5)]), [9]);
        assert_eq!(believed(&[(10, 0), (9, 0), (10, 5), (9, 5)]), [9], "by two ways");
    }

    /// Each comes once, at another time.
    #[test]
    fn what_others_send_before_that_does_not_keep_it_from_it() {
        assert_eq!(believed(&[(9, 0), (5, 1), (9, 5), (9, 10)]), [9]);
        assert_eq!(believed(&[(5, 0), (7, 1), (9, 5), (10, 5), (9, 10)]), [9]);
        let many: Vec<_> = (0..40).map(|at| (100 + at, at)).chain([(200, 50), (200, 60)]).collect();
        assert_eq!(believed(&many), [200]);
        assert_eq!(believed(&[(9, 0), (5, 1), (9, 5), (5, 6), (9, 10), (9, 15)]), [5, 9]);
    }
}
