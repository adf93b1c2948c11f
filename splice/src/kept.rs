//! The first few of what happens often, for whoever asks from time to time.

use std::collections::VecDeque;

/// So many wait to be taken; of more, only the number is known.
const MOST: usize = 64;

/// Those since they were last taken. Bound: 64.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    kept: VecDeque<T>,
    missed: u64,
}

impl<T> Kept<T> {
    pub(crate) fn new() -> Self {
        Self { kept: VecDeque::with_capacity(MOST), missed: 0 }
    }

    pub(crate) fn push(&mut self, item: T) {
        if self.kept.len() < MOST {
            self.kept.push_back(item);
        } else {
            self.missed += 1;
        }
    }

    /// Returns true if the next one is kept.
    pub(crate) fn has_room(&self) -> bool {
        self.kept.len() < MOST
    }

    /// Hands all of them out, and returns how many there were besides.
    pub(crate) fn take(&mut self, take: &mut dyn FnMut(T)) -> u64 {
        self.kept.drain(..).for_each(take);
        std::mem::take(&mut self.missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_the_first_are_kept_and_the_others_counted() {
        let mut kept = Kept::new();
        (0..MOST + 5).for_each(|number| kept.push(number));
        let mut taken = Vec::new();
        assert_eq!(kept.take(&mut |number| taken.push(number)), 5);
        assert!(taken.into_iter().eq(0..MOST));
        assert_eq!(kept.take(&mut |number| panic!("{number} twice")), 0);
    }
}
