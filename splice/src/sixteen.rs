//! Addresses in 16 bytes, IPv4 as mapped to IPv6 (RFC 4291, 2.5.5.2).

use std::net::{IpAddr, Ipv6Addr};

pub(crate) fn to_sixteen(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

pub(crate) fn of_sixteen(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written() {
        for address in ["10.0.0.1", "0.0.0.0", "fd00::2", "::1", "::"] {
            let address = address.parse().unwrap();
            assert_eq!(of_sixteen(to_sixteen(address)), address);
        }
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        assert_eq!(to_sixteen([10, 0, 0, 1].into()), mapped);
    }
}
