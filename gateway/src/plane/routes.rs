//! The peer that a local host's packet is for.

use std::net::IpAddr;

use ipnet::IpNet;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// To the peer of this number.
    One(usize),
    /// To every peer: its destination is a group's.
    All,
}

/// The prefixes behind each peer, longest first. The gateway file has none that overlap.
#[derive(Debug)]
pub(super) struct Routes {
    prefixes: Vec<(IpNet, usize)>,
    is_single: bool,
}

impl Routes {
    /// Takes the prefixes of each peer, in the peers' order.
    pub(super) fn new<'a>(peers: impl Iterator<Item = &'a [IpNet]>) -> Self {
        let peers: Vec<_> = peers.collect();
        let of_peer = |(nth, prefixes): (usize, &&'a [IpNet])| {
            prefixes.iter().map(move |prefix| (*prefix, nth)).collect::<Vec<_>>()
        };
        let mut prefixes: Vec<_> = peers.iter().enumerate().flat_map(of_peer).collect();
        prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.prefix_len()));
        Self { prefixes, is_single: peers.len() < 2 }
    }

    /// Returns where a packet for this address goes. What is behind no peer goes to the first,
    /// which drops and counts it.
    pub(super) fn of(&self, destination: IpAddr) -> Route {
        if self.is_single {
            return Route::One(0);
        }
        if destination.is_multicast() {
            return Route::All;
        }
        let found = self.prefixes.iter().find(|(prefix, _)| prefix.contains(&destination));
        Route::One(found.map_or(0, |(_, nth)| *nth))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(peers: &[&[&str]]) -> Routes {
        let parse = |prefixes: &&[&str]| prefixes.iter().map(|text| text.parse().unwrap()).collect();
        let peers: Vec<Vec<IpNet>> = peers.iter().map(parse).collect();
        Routes::new(peers.iter().map(Vec::as_slice))
    }

    fn of(routes: &Routes, destination: &str) -> Route {
        routes.of(destination.parse().unwrap())
    }

    #[test]
    fn a_packet_goes_to_the_peer_that_its_destination_is_behind() {
        let routes =
            routes(&[&["10.0.1.0/24", "fd01::/64"], &["10.0.2.0/24"], &["10.0.3.0/25", "fd03::/64"]]);
        for (destination, peer) in [
            ("10.0.1.255", 0),
            ("10.0.2.1", 1),
            ("10.0.3.127", 2),
            ("fd01::7", 0),
            ("fd03::7", 2),
            ("10.0.3.128", 0),
            ("fd02::1", 0),
        ] {
            assert_eq!(of(&routes, destination), Route::One(peer), "{destination}");
        }
    }

    #[test]
    fn a_packet_for_a_group_goes_to_every_peer() {
        let routes = routes(&[&["10.0.1.0/24"], &["10.0.2.0/24"]]);
        assert_eq!(of(&routes, "239.1.1.1"), Route::All);
        assert_eq!(of(&routes, "ff05::1"), Route::All);
    }

    #[test]
    fn the_longest_prefix_decides() {
        let routes = routes(&[&["10.0.0.0/8"], &["10.0.2.0/24"], &["10.0.0.0/16"]]);
        assert_eq!(of(&routes, "10.0.2.1"), Route::One(1));
        assert_eq!(of(&routes, "10.0.3.1"), Route::One(2));
        assert_eq!(of(&routes, "10.3.3.1"), Route::One(0));
    }

    #[test]
    fn with_one_peer_everything_is_its() {
        let routes = routes(&[&["10.0.1.0/24"]]);
        assert_eq!(of(&routes, "10.0.9.1"), Route::One(0));
        assert_eq!(of(&routes, "239.1.1.1"), Route::One(0));
    }
}
