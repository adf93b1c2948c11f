//! Interfaces of link-local addresses by their names (RFC 4007, section 11).
//!
//! An interface that is deleted and made again has another index. So a name's index is looked up
//! whenever it is needed.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::net::netdevice::name_to_index;
use session::control::with_scope;
use socket2::{Domain, Socket, Type};

/// Returns the index that an interface has now.
///
/// # Errors
/// ENODEV if there is no such interface.
pub fn index(name: &str) -> io::Result<u32> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    Ok(name_to_index(&socket, name)?)
}

/// Has `scope` hold the index that an interface has now. If there is none, it stays as it was.
pub fn look(name: &str, scope: &AtomicU32) {
    if let Ok(index) = index(name) {
        scope.store(index, Relaxed);
    }
}

/// Returns an address with its interface's index of now. One without a name stays as it is.
///
/// # Errors
/// As [`index`].
pub fn at_now(address: SocketAddr, zone: Option<&str>) -> io::Result<SocketAddr> {
    Ok(with_scope(address, zone.map_or(Ok(0), index)?))
}

/// Returns `[wan]` with the index of its interface.
///
/// # Errors
/// As [`index`].
pub fn wan_at_now(wan: &config::Wan) -> io::Result<config::Wan> {
    Ok(config::Wan { listen: at_now(wan.listen, wan.zone.as_deref())?, ..wan.clone() })
}

/// Returns an address as the gateway file has it.
#[must_use]
pub fn shown(address: SocketAddr, zone: Option<&str>) -> String {
    match zone {
        Some(name) => format!("[{}%{name}]:{}", address.ip(), address.port()),
        None => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;
    use crate::lan::netns::Ns;

    #[test]
    fn a_name_has_the_index_of_now() {
        let ns = Ns::new();
        let address: SocketAddr = "[fe80::1]:14791".parse().unwrap();
        let now = || ns.run(|| at_now(address, Some("w0")));
        let missing = now().unwrap_err();
        assert_eq!(Errno::from_io_error(&missing), Some(Errno::NODEV));
        for index in [70, 80] {
            ns.ip(&format!("link add w0 index {index} type veth peer name w1"));
            assert_eq!(now().unwrap().to_string(), format!("[fe80::1%{index}]:14791"));
            ns.ip("link del w0");
        }
        let numbered = "[fe80::1%70]:14791".parse().unwrap();
        assert_eq!(at_now(numbered, None).unwrap(), numbered);
        assert_eq!(shown(address, Some("w0")), "[fe80::1%w0]:14791");
        assert_eq!(shown(numbered, None), "[fe80::1%70]:14791");
    }
}
