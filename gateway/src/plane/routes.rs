//! The side towards a peer that a local host's packet is for.

use ipnet::IpNet;
use roce::ip::Addressing;

use crate::steering::{Part, thread_of};

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// To this side, by its place.
    One(usize),
    /// To every peer ([`Routes::sides`]): its destination is a group's.
    All,
}

/// The prefixes behind each peer, longest first. The gateway file has none that overlap.
#[derive(Debug)]
pub(super) struct Routes {
    prefixes: Vec<(IpNet, usize)>,
    peers: Vec<Sides>,
    /// There is one side.
    is_single: bool,
}

/// A worker's sides towards one peer: one for each thread there that it exchanges data with.
#[derive(Clone, Copy, Debug)]
struct Sides {
    /// The place of the first.
    first: usize,
    /// How many there are.
    count: u8,
    /// Pairs of threads, all workers' together.
    pairs: u8,
}

impl Sides {
    /// The side of two hosts. The pair's number modulo this site's threads is this worker, so the
    /// quotient counts its sides.
    fn of(self, addressing: &Addressing) -> usize {
        if self.count < 2 {
            return self.first;
        }
        let pair = thread_of(addressing.src, addressing.dst, self.pairs);
        let threads = self.pairs / self.count;
        self.first + usize::from(pair / threads.max(1))
    }
}

impl Routes {
    /// Takes the prefixes of each side's peer, and its part, in the sides' order. All sides of a
    /// peer have the same number and prefixes, and stand together.
    pub(super) fn new<'a>(sides: impl Iterator<Item = (u8, &'a [IpNet], Part)>) -> Self {
        let (mut peers, mut prefixes): (Vec<Sides>, Vec<(IpNet, usize)>) = (Vec::new(), Vec::new());
        let mut before = None;
        for (first, (peer, behind, part)) in sides.enumerate() {
            match peers.last_mut().filter(|_| before == Some(peer)) {
                Some(sides) => sides.count = sides.count.saturating_add(1),
                None => {
                    prefixes.extend(behind.iter().map(|prefix| (*prefix, peers.len())));
                    peers.push(Sides { first, count: 1, pairs: part.threads });
                }
            }
            before = Some(peer);
        }
        prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.prefix_len()));
        let is_single = peers.iter().map(|sides| usize::from(sides.count)).sum::<usize>() < 2;
        Self { prefixes, peers, is_single }
    }

    /// Returns where a packet with these addresses goes. What is behind no peer goes to the first,
    /// which drops and counts it.
    pub(super) fn of(&self, addressing: &Addressing) -> Route {
        if self.is_single {
            return Route::One(0);
        }
        if self.peers.len() > 1 && addressing.dst.is_multicast() {
            return Route::All;
        }
        let found = self.prefixes.iter().find(|(prefix, _)| prefix.contains(&addressing.dst));
        let sides = self.peers.get(found.map_or(0, |(_, peer)| *peer));
        Route::One(sides.map_or(0, |sides| sides.of(addressing)))
    }

    /// Returns the side of two hosts towards each peer.
    pub(super) fn sides(&self, addressing: &Addressing) -> impl Iterator<Item = usize> {
        self.peers.iter().map(move |sides| sides.of(addressing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(prefixes: &[&str]) -> Vec<IpNet> {
        prefixes.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn routes(peers: &[&[&str]]) -> Routes {
        let peers: Vec<_> = peers.iter().map(|prefixes| parsed(prefixes)).collect();
        Routes::new((0..).zip(&peers).map(|(nth, prefixes)| (nth, prefixes.as_slice(), Part::WHOLE)))
    }

    fn addressing(src: &str, dst: &str) -> Addressing {
        Addressing { src: src.parse().unwrap(), dst: dst.parse().unwrap(), src_port: 9, tclass: 0, ttl: 9 }
    }

    fn of(routes: &Routes, destination: &str) -> Route {
        let src = if destination.contains(':') { "fd00::1" } else { "10.0.0.1" };
        routes.of(&addressing(src, destination))
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

    #[test]
    fn hosts_have_a_side_towards_each_peer() {
        // The second of two threads. The first peer has three threads, and the second one has two.
        let (far, near) = (parsed(&["10.0.1.0/24"]), parsed(&["10.0.2.0/24"]));
        let sides = || {
            let far = [1, 3, 5].map(|thread| (0, far.as_slice(), Part { thread, threads: 6 }));
            far.into_iter().chain([(1, near.as_slice(), Part { thread: 1, threads: 2 })])
        };
        let routes = Routes::new(sides());
        let parts: Vec<_> = sides().map(|(_, _, part)| part).collect();
        let mut used = std::collections::BTreeSet::new();
        for host in 1..=40 {
            let addressing = addressing("10.0.0.7", &format!("10.0.1.{host}"));
            let Addressing { src, dst, .. } = addressing;
            if thread_of(src, dst, 2) == 0 {
                continue;
            }
            let Route::One(side) = routes.of(&addressing) else { panic!("to one peer") };
            assert!(parts[side].has(src, dst) && side < 3, "{dst}");
            used.insert(side);
        }
        assert_eq!(used.len(), 3);
        assert_eq!(routes.of(&addressing("10.0.0.7", "10.0.2.1")), Route::One(3));
        let group = addressing("10.0.0.7", "239.1.1.1");
        assert_eq!(routes.of(&group), Route::All);
        let sides: Vec<_> = routes.sides(&group).collect();
        assert!(matches!(sides[..], [0..3, 3]), "one for each peer: {sides:?}");
    }
}
