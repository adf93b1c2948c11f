//! PSNs that a question has asked about.

use super::{Span, Word};
use crate::wire::Psn;

/// Runs of PSNs that were asked about. What lies between two of them was not: a target that stands
/// there has not been asked.
///
/// Bound: [`Asked::MOST`] runs. For one more the oldest is forgotten, and an answer to that proves
/// as little as one to a PSN near by.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked([Option<Span>; Asked::MOST]);

impl Asked {
    const MOST: usize = 4;

    /// These are asked about.
    pub(super) fn add(&mut self, span: &Span) {
        let mut run = *span;
        for known in &mut self.0 {
            if let Some(known) = known.take_if(|known| touch(known, &run)) {
                run = known.with(&run);
            }
        }
        let mut before = self.0.into_iter().flatten();
        if before.clone().count() == Asked::MOST {
            before.next();
        }
        self.0 = std::array::from_fn(|_| before.next());
        if let Some(free) = self.0.iter_mut().find(|known| known.is_none()) {
            *free = Some(run);
        }
    }

    /// Returns whether a target that was asked about this PSN may say this.
    pub(super) fn may_be_answered(&self, psn: Psn, word: Word) -> bool {
        self.0.iter().flatten().filter(|run| psn.is_within(run.first, run.count)).any(|run| match word {
            Word::Ack | Word::SequenceNak | Word::Refusal | Word::NotReady => true,
            Word::Read => run.reads,
            Word::Atomic => run.atomics,
        })
    }
}

/// Returns whether nothing lies between them.
fn touch(one: &Span, other: &Span) -> bool {
    let reaches = |from: &Span, to: &Span| to.first.is_within(from.first, from.count.saturating_add(1));
    reaches(one, other) || reaches(other, one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: u32, count: u32) -> Span {
        Span::of(Psn::new(first), count)
    }

    fn has(asked: &Asked, psn: u32) -> bool {
        asked.may_be_answered(Psn::new(psn), Word::Ack)
    }

    #[test]
    fn what_lies_between_was_not_asked_about() {
        let mut asked = Asked::default();
        for run in [span(40_926, 1), span(8724, 1), span(8725, 2), span(8722, 2)] {
            asked.add(&run);
        }
        for (psn, is_asked) in
            [(8721, false), (8722, true), (8726, true), (8727, false), (28_012, false), (40_926, true)]
        {
            assert_eq!(has(&asked, psn), is_asked, "{psn}");
        }
        assert_eq!(asked.0.iter().flatten().count(), 2);
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let mut asked = Asked::default();
        (0..=Asked::MOST as u32).for_each(|at| asked.add(&span(100 * at, 1)));
        assert!(!has(&asked, 0));
        assert!((1..=Asked::MOST as u32).all(|at| has(&asked, 100 * at)));
        // One that grows is new again.
        [101, 500, 600, 700].into_iter().for_each(|psn| asked.add(&span(psn, 1)));
        assert!(!has(&asked, 200) && !has(&asked, 400));
        assert!(has(&asked, 100) && has(&asked, 101));
    }

    #[test]
    fn data_answers_what_asks_for_data() {
        let mut asked = Asked::default();
        asked.add(&Span { reads: true, ..span((1 << 24) - 2, 4) });
        asked.add(&Span { atomics: true, ..span(50, 1) });
        let says = |psn, word| asked.may_be_answered(Psn::new(psn), word);
        assert!(says(1, Word::Read) && says(50, Word::Atomic) && says(50, Word::Refusal));
        assert!(!says(1, Word::Atomic) && !says(50, Word::Read) && !says(2, Word::Ack));
    }
}
