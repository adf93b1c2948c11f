//! Classes whose policy names `hybrid`: nothing is chosen for them, but their streams are told what
//! is known of the path.

use config::Policy;
use reliability::selector::Estimate;
use splice::Tuning;

use super::{ClassSighting, differ};

/// Such a class.
pub(super) struct Named {
    index: usize,
    /// The hints on the path that its streams were last given.
    hints: Option<[f64; 2]>,
}

impl Named {
    /// The policy's, told nothing yet.
    pub(super) fn all(policy: &Policy) -> Vec<Self> {
        let classes = policy.classes().iter().enumerate();
        let hybrid = classes.filter(|(_, class)| matches!(class.scheme, config::Scheme::Hybrid(_)));
        hybrid.map(|(index, _)| Self { index, hints: None }).collect()
    }

    /// The streams begin anew, and know nothing.
    pub(super) fn begin_session(&mut self) {
        self.hints = None;
    }

    /// The class's index and what to tell its streams, if that is news; their schemes stay.
    pub(super) fn step(
        &mut self,
        classes: &[ClassSighting],
        estimate: Option<Estimate>,
    ) -> Option<(usize, Tuning)> {
        let estimate = estimate?;
        let [prompt, bulk] = classes.get(self.index)?.schemes?;
        let hints = [estimate.drop_high, estimate.link.burst()];
        if self.hints.is_some_and(|told| !differ(told, hints)) {
            return None;
        }
        self.hints = Some(hints);
        let [drop, burst] = hints;
        Some((self.index, Tuning { prompt, bulk, drop, burst }))
    }
}
