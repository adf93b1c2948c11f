//! The back end's part of a connection blob.
//!
//! ```text
//! nonce 16 B | session u32 | family u8 (4, 6) | address 4 or 16 B | channels u8 | a port u16 each
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use bytes::{Buf, BufMut, TryGetError};

use crate::shape::MAX_CHANNELS;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Details {
    pub(super) nonce: [u8; 16],
    /// The number by which this side calls the session.
    pub(super) session: u32,
    pub(super) address: IpAddr,
    /// By channel.
    pub(super) ports: Vec<u16>,
}

impl Details {
    pub(super) fn new(address: IpAddr, ports: Vec<u16>) -> io::Result<Self> {
        let (mut nonce, mut session) = ([0; 16], [0; 4]);
        let random = SystemRandom::new();
        for bytes in [&mut nonce[..], &mut session[..]] {
            random.fill(bytes).map_err(|_| io::Error::other("no random numbers"))?;
        }
        Ok(Details { nonce, session: u32::from_be_bytes(session), address, ports })
    }

    /// Returns the same side as it is reached by way of other ports.
    pub(super) fn at(&self, address: IpAddr, ports: &[u16]) -> Self {
        Details { address, ports: ports.to_vec(), ..self.clone() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.nonce.to_vec();
        bytes.put_u32(self.session);
        match self.address {
            IpAddr::V4(address) => {
                bytes.put_u8(4);
                bytes.put_u32(address.to_bits());
            }
            IpAddr::V6(address) => {
                bytes.put_u8(6);
                bytes.put_u128(address.to_bits());
            }
        }
        bytes.put_u8(self.ports.len() as u8);
        self.ports.iter().for_each(|port| bytes.put_u16(*port));
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        Details::read(&mut &*bytes).ok().flatten()
    }

    /// Reads all of `bytes`; `None` if they have the right length and make no sense.
    fn read(bytes: &mut &[u8]) -> Result<Option<Self>, TryGetError> {
        let mut nonce = [0; 16];
        bytes.try_copy_to_slice(&mut nonce)?;
        let session = bytes.try_get_u32()?;
        let address = match bytes.try_get_u8()? {
            4 => Ipv4Addr::from_bits(bytes.try_get_u32()?).into(),
            6 => Ipv6Addr::from_bits(bytes.try_get_u128()?).into(),
            _ => return Ok(None),
        };
        let count = bytes.try_get_u8()?;
        if count > MAX_CHANNELS || bytes.len() != 2 * usize::from(count) {
            return Ok(None);
        }
        let ports = (0..count).map(|_| bytes.try_get_u16()).collect::<Result<_, _>>()?;
        Ok(Some(Details { nonce, session, address, ports }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_survive_the_way_and_cut_ones_are_refused() {
        for address in ["127.0.0.1", "fd00::1"] {
            let details = Details::new(address.parse().unwrap(), vec![1, 65_535]).unwrap();
            let bytes = details.encode();
            for cut in 0..bytes.len() {
                assert_eq!(Details::decode(&bytes[..cut]), None, "{cut}");
            }
            assert_eq!(Details::decode(&[&bytes[..], &[0]].concat()), None);
            let mut other = bytes.clone();
            other[20] = 5;
            assert_eq!(Details::decode(&other), None, "no such family");
            assert_eq!(Details::decode(&bytes), Some(details));
        }
    }
}
