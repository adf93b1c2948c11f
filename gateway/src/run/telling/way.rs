//! The way to the peer: an address of this machine, and a route from there.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};

use rustix::io::Errno;

use crate::zone;

/// Where packets to the peer leave from, and go to.
pub(super) struct Way {
    listen: (SocketAddr, Option<String>),
    peer: (SocketAddr, Option<String>),
    /// The address of `wan.listen`, for who reads it.
    pub(super) from: String,
    /// `peer.address`, for who reads it.
    pub(super) to: String,
}

impl Way {
    pub(super) fn new(wan: &config::Wan, peer: &config::Peer) -> Self {
        let ip = wan.listen.ip();
        let from = wan.zone.as_ref().map_or_else(|| ip.to_string(), |name| format!("{ip}%{name}"));
        let to = zone::shown(peer.address, peer.zone.as_deref());
        Self { listen: (wan.listen, wan.zone.clone()), peer: (peer.address, peer.zone.clone()), from, to }
    }

    /// Asks the kernel, without sending anything, for the address and for a route from there.
    pub(super) fn look(&self) -> io::Result<()> {
        let now = |(address, name): &(SocketAddr, Option<String>)| zone::at_now(*address, name.as_deref());
        let mut local = now(&self.listen)?;
        local.set_port(0);
        UdpSocket::bind(local)?.connect(now(&self.peer)?)
    }
}

/// Returns true for the kernel's words that it has no way there. A link-local address has none
/// without its interface (ENODEV).
pub(super) fn is_no_way(error: &io::Error) -> bool {
    let kinds = [
        ErrorKind::AddrNotAvailable,
        ErrorKind::NetworkUnreachable,
        ErrorKind::HostUnreachable,
        ErrorKind::NetworkDown,
        ErrorKind::InvalidInput,
    ];
    kinds.contains(&error.kind()) || Errno::from_io_error(error) == Some(Errno::NODEV)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::lan::netns::Ns;

    fn way(scope: &str) -> Way {
        let text = include_str!("../../../../docs/examples/gateway-a.toml");
        let text = text.replace("10.9.0.1:14791", &format!("[fe80::1%{scope}]:14791"));
        let text = text.replace("10.9.0.2:14791", &format!("[fe80::2%{scope}]:14791"));
        let gateway = config::Gateway::parse(Path::new("a.toml"), &text).unwrap();
        Way::new(&gateway.wan, &gateway.peer)
    }

    /// An interface that is made again has another index, and the same name.
    #[test]
    fn without_its_interface_a_link_local_address_has_no_way() {
        let ns = Ns::new();
        let made = |index: u32| {
            ns.ip(&format!("link add w0 index {index} type veth peer name w1"));
            ns.ip("addr add fe80::1/64 dev w0 nodad");
            ns.ip("link set w1 up");
            ns.ip("link set w0 up");
            ns.settle("w0");
        };
        let by = |scope: &str| {
            let way = way(scope);
            let found = ns.run(|| way.look());
            found.map_err(|error| is_no_way(&error))
        };
        made(70);
        assert_eq!([by("70"), by("w0")], [Ok(()), Ok(())]);
        ns.ip("link del w0");
        assert_eq!([by("70"), by("w0")], [Err(true), Err(true)]);
        made(80);
        assert_eq!([by("70"), by("w0"), by("80")], [Err(true), Ok(()), Ok(())]);
        let named = way("w0");
        assert_eq!((named.from.as_str(), named.to.as_str()), ("fe80::1%w0", "[fe80::2%w0]:14791"));
    }
}
