//! The back end's part of a connection blob.
//!
//! ```text
//! nonce 16 B | session u32 | family u8 (4, 6) | address 4 or 16 B | channels u8 | a port u16 each
//! ```

use std::io;
use std::net::IpAddr;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};

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

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.nonce.to_vec();
        bytes.extend(self.session.to_be_bytes());
        match self.address {
            IpAddr::V4(address) => {
                bytes.push(4);
                bytes.extend(address.octets());
            }
            IpAddr::V6(address) => {
                bytes.push(6);
                bytes.extend(address.octets());
            }
        }
        bytes.push(self.ports.len() as u8);
        bytes.extend(self.ports.iter().flat_map(|port| port.to_be_bytes()));
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (nonce, rest) = bytes.split_first_chunk::<16>()?;
        let (session, rest) = rest.split_first_chunk::<4>()?;
        let (address, rest) = match rest.split_first()? {
            (4, rest) => {
                let (octets, rest) = rest.split_first_chunk::<4>()?;
                (IpAddr::from(*octets), rest)
            }
            (6, rest) => {
                let (octets, rest) = rest.split_first_chunk::<16>()?;
                (IpAddr::from(*octets), rest)
            }
            _ => return None,
        };
        let (count, rest) = rest.split_first()?;
        let (ports, []) = rest.as_chunks::<2>() else {
            return None;
        };
        if ports.len() != usize::from(*count) || *count > MAX_CHANNELS {
            return None;
        }
        let ports = ports.iter().map(|port| u16::from_be_bytes(*port)).collect();
        Some(Details { nonce: *nonce, session: u32::from_be_bytes(*session), address, ports })
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
            assert_eq!(Details::decode(&bytes), Some(details));
        }
    }
}
