//! How long the messages are that a class sends.

use reliability::selector::Bucket;

/// What a message counts at least: its headers. So what carries no data of its own (a READ's request, an atomic) counts as small, and not as nothing.
const LEAST: u64 = 64;

/// The messages that a class sent, counted by [`Bucket`] in the order of [`Bucket::all`]. Counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Messages of each bucket.
    pub messages: [u64; Bucket::COUNT],
    /// Their bytes, each message's at least 64.
    pub bytes: [u64; Bucket::COUNT],
}

impl Sizes {
    pub(crate) fn note(&mut self, size: u64) {
        let bytes = size.max(LEAST);
        let index = Bucket::of(bytes).index();
        if let (Some(messages), Some(total)) = (self.messages.get_mut(index), self.bytes.get_mut(index)) {
            *messages += 1;
            *total = total.saturating_add(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stand_in_their_buckets() {
        let mut sizes = Sizes::default();
        for size in [0, 64, 1024, 1025, 1 << 20, u64::MAX] {
            sizes.note(size);
        }
        assert_eq!(sizes.messages[..2], [3, 1]);
        assert_eq!(sizes.bytes[..2], [64 + 64 + 1024, 1025]);
        assert_eq!(sizes.bytes[Bucket::of(1 << 20).index()], 1 << 20);
        assert_eq!(sizes.bytes[Bucket::COUNT - 1], u64::MAX);
        assert_eq!(sizes.messages.iter().sum::<u64>(), 6);
    }
}
