//! The back end's part of a connection blob.
//!
//! ```text
//! GID 16 B | log of the path MTU u8 | first PSN u32 | control queue pair u32 | channels u8
//! | a queue pair u32 each
//! ```

use bytes::{Buf, BufMut, TryGetError};

use crate::blob::MLX5_GENERATIONS;
use crate::shape::MAX_CHANNELS;

/// Most queue pairs for data: a set for each generation where there are several.
const MOST_PAIRS: u32 = MAX_CHANNELS as u32 * MLX5_GENERATIONS;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Details {
    pub(super) gid: [u8; 16],
    /// The device's MTU, as a logarithm to base 2.
    pub(super) mtu_log: u8,
    /// First packet number of all queue pairs, 24 bits.
    pub(super) psn: u32,
    /// Number of the queue pair that carries credits and control.
    pub(super) control: u32,
    /// Numbers of the queue pairs that carry data, by channel, and within it by generation.
    pub(super) channels: Vec<u32>,
}

impl Details {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.gid.to_vec();
        bytes.put_u8(self.mtu_log);
        bytes.put_u32(self.psn);
        bytes.put_u32(self.control);
        bytes.put_u8(self.channels.len() as u8);
        self.channels.iter().for_each(|number| bytes.put_u32(*number));
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        Details::read(&mut &*bytes).ok().flatten()
    }

    /// Reads all of `bytes`; `None` if they have the right length and make no sense.
    fn read(bytes: &mut &[u8]) -> Result<Option<Self>, TryGetError> {
        let mut gid = [0; 16];
        bytes.try_copy_to_slice(&mut gid)?;
        let mtu_log = bytes.try_get_u8()?;
        let (psn, control) = (bytes.try_get_u32()?, bytes.try_get_u32()?);
        let count = bytes.try_get_u8()?;
        if u32::from(count) > MOST_PAIRS || bytes.len() != 4 * usize::from(count) {
            return Ok(None);
        }
        let channels: Vec<u32> = (0..count).map(|_| bytes.try_get_u32()).collect::<Result<_, _>>()?;
        let is_number = |number: &u32| *number < 1 << 24;
        let fits = (8..=12).contains(&mtu_log) && [psn, control].iter().chain(&channels).all(is_number);
        Ok(fits.then_some(Details { gid, mtu_log, psn, control, channels }))
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
        assert_eq!((with(16, 13), with(17, 1), with(25, 33)), (None, None, None));
        assert_eq!(Details::decode(&bytes), Some(details));
    }
}
