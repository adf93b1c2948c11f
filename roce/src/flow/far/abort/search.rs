//! Responder side: where a target stands of which the ACKs do not tell it.

use crate::wire::Psn;

/// The search for the PSN that a target expects.
///
/// A packet ahead of that is answered by a sequence NAK that names it, unless the target has
/// complained of this gap before. Then it meets silence, and one behind is acknowledged, so that
/// each packet halves what is left. The one that hits is the poison itself.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Search {
    bounds: [Psn; 2],
    /// The first PSN that the target may expect, and the last.
    left: [Psn; 2],
    /// The next packet goes ahead of all.
    is_ahead: bool,
    /// The last packet met silence. It may be lost, so it goes out once more.
    was_silent: bool,
}

impl Search {
    /// Begins the search from the first to the last of these PSNs. `had`: one that the target had
    /// before.
    pub(super) fn new(bounds: [Psn; 2], had: Option<Psn>) -> Search {
        let mut search = Search { bounds, left: bounds, is_ahead: true, was_silent: false };
        if let Some(psn) = had.filter(|psn| search.is_left(*psn)) {
            search.left[0] = psn.next();
        }
        search
    }

    /// PSN of the next packet. `ahead`: one ahead of all.
    pub(super) fn next(&self, ahead: Psn) -> Psn {
        let [first, last] = self.left;
        if self.is_ahead || self.is_over() { ahead } else { first + last.distance(first).unsigned_abs() / 2 }
    }

    /// The target has acknowledged the packet of this PSN. Returns whether that is news: one ahead
    /// is never acknowledged, but an earlier one may be so late.
    pub(super) fn acknowledge(&mut self, sent: Psn) -> bool {
        let is_news = !self.is_ahead && self.is_left(sent);
        if is_news {
            self.was_silent = false;
            self.left[0] = sent.next();
        }
        is_news
    }

    /// The packet of this PSN met silence. Returns whether nothing is left, since answers were lost
    /// or late. Then the search begins again.
    pub(super) fn is_in_vain(&mut self, sent: Psn) -> bool {
        if !std::mem::replace(&mut self.was_silent, true) {
            return false;
        }
        self.was_silent = false;
        if std::mem::take(&mut self.is_ahead) {
            return false;
        }
        if self.is_left(sent) {
            self.left[1] = sent.prev();
        }
        let is_over = self.is_over();
        if is_over {
            *self = Search::new(self.bounds, None);
        }
        is_over
    }

    fn is_over(&self) -> bool {
        let [first, last] = self.left;
        first.is_after(last)
    }

    fn is_left(&self, psn: Psn) -> bool {
        let [first, last] = self.left;
        !psn.is_before(first) && !psn.is_after(last)
    }
}
