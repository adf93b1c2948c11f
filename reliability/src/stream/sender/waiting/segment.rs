//! Packets of equal length, for segmentation offload.

/// The length of packets: the most, and the one that they are padded to if they nearly have it.
///
/// The kernel takes datagrams of equal length in one call, of which the last may be shorter (UDP
/// GSO, udp(7)). A message's first packet is longer than those behind it by its RETH, so each
/// message would end a batch. A packet that lacks no more than a 128th of the longest of late is
/// padded instead, as QUIC implementations do.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Segment {
    capacity: usize,
    /// Bytes of the longest of the packets before, of [`Segment::SPAN`] or more.
    #[serde(skip)]
    longest: usize,
    /// The same of those since then.
    #[serde(skip)]
    since: usize,
    /// How many those are.
    #[serde(skip)]
    packets: u32,
}

impl Segment {
    /// Part of the longest one that padding is at most.
    const PART: usize = 128;
    /// Packets after which a length is forgotten that none has had.
    const SPAN: u32 = 64;
    const ZEROS: [u8; 512] = [0; 512];

    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, longest: 0, since: 0, packets: 0 }
    }

    /// Bytes of a packet at most.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// Returns the zeros to append to a packet of so many bytes.
    pub(super) fn padding(&mut self, len: usize) -> &'static [u8] {
        self.since = self.since.max(len);
        self.longest = self.longest.max(len);
        self.packets += 1;
        let lacks = self.longest - len;
        let most = (self.longest / Self::PART).min(self.capacity.saturating_sub(len));
        if self.packets >= Self::SPAN {
            (self.longest, self.since, self.packets) = (self.since, 0, 0);
        }
        // Two zeros end the frames; one alone is malformed.
        match (2..=most).contains(&lacks) {
            true => Self::ZEROS.get(..lacks).unwrap_or_default(),
            false => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(segment: &mut Segment, len: usize) -> usize {
        len + segment.padding(len).len()
    }

    #[test]
    fn packets_are_as_long_as_the_longest_of_late_if_they_nearly_are() {
        let mut segment = Segment::new(9000);
        let lengths = [8265, 8249, 8264, 8201, 8200, 300, 8249];
        let expected = [8265, 8265, 8264, 8265, 8200, 300, 8265];
        assert_eq!(lengths.map(|len| padded(&mut segment, len)), expected);
    }

    #[test]
    fn a_length_that_no_packet_has_any_more_is_forgotten() {
        let mut segment = Segment::new(9000);
        padded(&mut segment, 8265);
        let lengths: Vec<_> = (0..300).map(|_| padded(&mut segment, 8249)).collect();
        assert!(lengths.starts_with(&[8265; 63]), "{lengths:?}");
        assert!(lengths.ends_with(&[8249; 100]), "{lengths:?}");
    }

    #[test]
    fn padding_goes_no_further_than_a_packet_may() {
        let mut segment = Segment::new(1429);
        assert_eq!([1429, 1425].map(|len| padded(&mut segment, len)), [1429, 1429]);
        segment.set_capacity(1428);
        assert_eq!(padded(&mut segment, 1425), 1425);
    }
}
