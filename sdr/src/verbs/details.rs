//! The back end's part of a connection blob.
//!
//! ```text
//! GID 16 B | log of the path MTU u8 | first PSN u32 | control queue pair u32 | channels u8
//! | a queue pair u32 each
//! ```

use crate::shape::MAX_CHANNELS;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Details {
    pub(super) gid: [u8; 16],
    /// The device's MTU, as a logarithm to base 2.
    pub(super) mtu_log: u8,
    /// First packet number of all queue pairs, 24 bits.
    pub(super) psn: u32,
    /// Number of the queue pair that carries credits and control.
    pub(super) control: u32,
    /// Numbers of the queue pairs that carry data, by channel.
    pub(super) channels: Vec<u32>,
}

impl Details {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.gid.to_vec();
        bytes.push(self.mtu_log);
        bytes.extend(self.psn.to_be_bytes());
        bytes.extend(self.control.to_be_bytes());
        bytes.push(self.channels.len() as u8);
        bytes.extend(self.channels.iter().flat_map(|number| number.to_be_bytes()));
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (gid, rest) = bytes.split_first_chunk::<16>()?;
        let (&mtu_log, rest) = rest.split_first()?;
        let (psn, rest) = rest.split_first_chunk()?;
        let (control, rest) = rest.split_first_chunk()?;
        let (&count, rest) = rest.split_first()?;
        let (numbers, []) = rest.as_chunks::<4>() else {
            return None;
        };
        let [psn, control] = [psn, control].map(|number| u32::from_be_bytes(*number));
        let fits =
            numbers.len() == usize::from(count) && count <= MAX_CHANNELS && (8..=12).contains(&mtu_log);
        let channels: Vec<u32> = numbers.iter().map(|number| u32::from_be_bytes(*number)).collect();
        let is_number = |number: &u32| *number < 1 << 24;
        (fits && is_number(&psn) && is_number(&control) && channels.iter().all(is_number))
            .then_some(Details { gid: *gid, mtu_log, psn, control, channels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_survive_the_way_and_cut_ones_are_refused() {
        let details =
            Details { gid: [7; 16], mtu_log: 12, psn: 0xff_ffff, control: 17, channels: vec![18, 19] };
        let bytes = details.encode();
        for cut in 0..bytes.len() {
            assert_eq!(Details::decode(&bytes[..cut]), None, "{cut}");
        }
        assert_eq!(Details::decode(&[&bytes[..], &[0]].concat()), None);
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Details::decode(&bytes)
        };
        assert_eq!((with(16, 13), with(17, 1), with(25, 9)), (None, None, None));
        assert_eq!(Details::decode(&bytes), Some(details));
    }
}
