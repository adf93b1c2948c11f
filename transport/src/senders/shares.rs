//! How the buffers, the backlog and the link are divided among classes.

use std::ops::Range;

use super::drr::SHARE;
use crate::bounds::{LEAST_BACKLOG, part_of};
use crate::class::{Class, MAX_CLASSES};

/// To so many bytes that were asked for comes one of heads and framing, at most.
pub(super) const FRAMED: usize = 4;
/// Bytes to ask for at a time, at least and at most. With its framing the least fits half of the
/// least backlog there is: a `SHARE`-th of [`LEAST_BACKLOG`].
pub(super) const LEAST_PIECE: usize = 128 << 10;
const MOST_PIECE: usize = 64 << 20;

/// Returns the bytes that may wait in a stream of a class with this share of the link, as a
/// divisor, and this part of the `total` buffers.
pub(super) fn backlog_of(link_backlog: usize, total: usize, share: usize, part: usize) -> usize {
    // While a full backlog goes out at its share of the link, others send `share` times as much at
    // most: a quarter of the whole. So the peer has room for it, even if it is of the same flows
    // and has to wait there for what it overtook.
    let most = (total / (4 * share)).max(LEAST_BACKLOG / share);
    (link_backlog / share).max(LEAST_BACKLOG).min(most).min(part / 2)
}

/// Bytes to ask for at a time: as many as a class may ask for that has least room among any
/// classes.
pub(super) fn fitting_piece(link_backlog: usize, total: usize) -> usize {
    let least = backlog_of(link_backlog, total, SHARE, part_of(total, MAX_CLASSES));
    let mut piece = LEAST_PIECE;
    while piece < MOST_PIECE && framed(2 * piece) <= least / 2 {
        piece *= 2;
    }
    piece
}

/// Returns the most bytes that so many bytes that were asked for take in a stream.
pub(super) fn framed(bytes: usize) -> usize {
    bytes.saturating_add(bytes.div_ceil(FRAMED))
}

/// Returns the part of the link that each class gets at least, about and as a divisor: those of the
/// highest priority share it but for what each other class gets in its turn.
pub(super) fn shares(classes: &[Class]) -> Vec<usize> {
    let whole = || classes.iter().filter(|class| !class.joins_next);
    let highest = whole().map(|class| class.priority).max().unwrap_or(0);
    let at_top = whole().filter(|class| class.priority == highest).count();
    classes.iter().map(|class| if class.priority == highest { at_top } else { SHARE }).collect()
}

/// For each class: which ones are parts of the same.
pub(super) fn siblings(classes: &[Class]) -> Vec<Range<usize>> {
    let mut siblings: Vec<Range<usize>> = Vec::with_capacity(classes.len());
    for (class, _) in classes.iter().enumerate().filter(|(_, class)| !class.joins_next) {
        let first = siblings.len();
        siblings.resize(class + 1, first..class + 1);
    }
    siblings
}
