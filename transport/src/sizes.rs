//! How long the messages are that a class sends, and what they find before them.

use reliability::selector::Bucket;

/// The least that a message counts: its headers. So what carries no data of its own counts as
/// small, and not as nothing.
const LEAST: u64 = 64;

/// The messages that a class sent, by [`Bucket`] in the order of [`Bucket::all`]. Counts only grow.
pub type Sizes = [Sent; Bucket::COUNT];

/// The messages of one bucket. Sums stop at the most that they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sent {
    /// How many.
    pub messages: u64,
    /// Their bytes, each message's at least 64.
    pub bytes: u64,
    /// The sum of what each found waiting before it as it came, in bytes of data.
    pub waiting: u64,
    /// The part of `waiting` that waited in the class's own stream.
    pub same: u64,
    /// The sum of what each found under way: sent and not acknowledged.
    pub under_way: u64,
}

impl Sent {
    /// Counts another connection's messages as well.
    pub fn add(&mut self, other: &Self) {
        let Self { messages, bytes, waiting, same, under_way } = other;
        self.messages = self.messages.saturating_add(*messages);
        self.bytes = self.bytes.saturating_add(*bytes);
        self.waiting = self.waiting.saturating_add(*waiting);
        self.same = self.same.saturating_add(*same);
        self.under_way = self.under_way.saturating_add(*under_way);
    }
}

/// The bytes of data that a message finds before it as it comes. What waits may wait with hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) waiting: usize,
    /// The part of `waiting` in the class's own stream.
    pub(crate) same: usize,
    pub(crate) under_way: usize,
}

impl Found {
    /// Returns the same without the last `own` bytes to come, which are one's own.
    pub(crate) fn without(self, own: usize) -> Self {
        let rest = own.saturating_sub(self.waiting);
        Self {
            waiting: self.waiting.saturating_sub(own),
            same: self.same.saturating_sub(own),
            under_way: self.under_way.saturating_sub(rest),
        }
    }
}

/// Counts a message.
pub(crate) fn note(sizes: &mut Sizes, size: u64, found: &Found) {
    let bytes = size.max(LEAST);
    let Some(sent) = sizes.get_mut(Bucket::of(bytes).index()) else { return };
    sent.messages += 1;
    sent.bytes = sent.bytes.saturating_add(bytes);
    sent.waiting = sent.waiting.saturating_add(found.waiting as u64);
    sent.same = sent.same.saturating_add(found.same as u64);
    sent.under_way = sent.under_way.saturating_add(found.under_way as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stand_in_their_buckets() {
        let mut sizes = Sizes::default();
        for size in [0, 64, 1024, 1025, 1 << 20, u64::MAX] {
            note(&mut sizes, size, &Found { waiting: 5, same: 3, under_way: 7 });
        }
        assert_eq!(
            sizes[0],
            Sent { messages: 3, bytes: 64 + 64 + 1024, waiting: 15, same: 9, under_way: 21 }
        );
        assert_eq!(sizes[1], Sent { messages: 1, bytes: 1025, waiting: 5, same: 3, under_way: 7 });
        assert_eq!(sizes[Bucket::of(1 << 20).index()].bytes, 1 << 20);
        assert_eq!(sizes[Bucket::COUNT - 1].bytes, u64::MAX);
        assert_eq!(sizes.iter().map(|sent| sent.messages).sum::<u64>(), 6);
    }
}
