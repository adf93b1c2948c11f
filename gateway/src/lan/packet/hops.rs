//! Where packets go on the link: what the kernel's routes and neighbour tables say, as far as it is
//! known. [`Resolver`] asks, in a thread beside the packet path.
//!
//! Known is a destination whose next hop has answered the kernel for its link-layer address.
//! Packets for any other destination wait elsewhere, and take nothing from those for the known.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::SocketAddrAny;

use super::resolve::{Answer, By, Question, Resolver, Verdict};
use crate::lan::wake::{Wakeup, waker};

/// Destinations known at a time.
const KNOWN: usize = 4096;
/// After this time the kernel is asked again, if there is a packet.
const FRESH: Duration = Duration::from_secs(1);
/// The same for a destination that only the kernel can send to.
const KERNELS: Duration = Duration::from_millis(250);
/// How long an answer holds beyond that, while the next one is waited for: about as long as the
/// kernel itself takes a neighbour for reachable that it has not heard of again.
const KEPT: Duration = Duration::from_secs(30);
/// The same by UDP, where the kernel resolves again for each packet: one that has just answered is
/// known to the kernel for 3 s at least, whatever becomes of it.
const KEPT_BY_UDP: Duration = Duration::from_millis(1500);
/// Questions under way about destinations that are known.
const REFRESHES: usize = 64;
/// The same for those that are not. The kernel has a neighbour in doubt for each of them.
pub(in crate::lan) const SEARCHES: usize = 256;
/// While the table is full, old places are looked for as often as this.
const SWEEP: Duration = Duration::from_millis(100);

/// The way to a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::lan) enum Hop {
    /// The next hop's link-layer address on the interface.
    Link(SocketAddrAny),
    /// By UDP: the kernel knows it.
    Known,
    /// Groups, tunnels, what has no route here: the kernel sends it, or says why not.
    Kernel,
}

/// The ways to the destinations that are known, through one interface or by UDP. Bound: 4096.
pub(in crate::lan) struct Hops {
    /// The interface; 0: whichever the routes say.
    index: u32,
    /// How long an answer holds beyond its time.
    kept: Duration,
    known: HashMap<IpAddr, Known>,
    /// Questions under way about what is known, and about what is not.
    refreshing: usize,
    searching: usize,
    /// Searches at most.
    most_searches: usize,
    swept: Instant,
    questions: SyncSender<Question>,
    answers: Receiver<Answer>,
    wakeup: Wakeup,
}

struct Known {
    hop: Hop,
    fresh_until: Instant,
    is_asked: bool,
}

impl Hops {
    /// In the calling thread's network name space. `threads`: as many have one each.
    pub(in crate::lan) fn new(by: By, threads: u8, now: Instant) -> io::Result<Self> {
        let (questions, asked) = sync_channel::<Question>(REFRESHES + SEARCHES);
        let (answer, answers) = sync_channel(REFRESHES + SEARCHES);
        let (waker, wakeup) = waker()?;
        let resolver = Resolver::connect(by, asked, answer, waker)?;
        // Ends when the questions' other end is gone.
        thread::Builder::new().name("lan-hops".to_owned()).spawn(move || resolver.run())?;
        let (index, kept) = match by {
            By::Interface(index) => (index, KEPT),
            By::Udp(_) => (0, KEPT_BY_UDP),
        };
        Ok(Self {
            index,
            kept,
            known: HashMap::with_capacity(KNOWN),
            refreshing: 0,
            searching: 0,
            most_searches: (SEARCHES / usize::from(threads.max(1))).max(1),
            swept: now,
            questions,
            answers,
            wakeup,
        })
    }

    /// The way to `destination`, if that is known; the kernel is asked again when it is due.
    pub(in crate::lan) fn find(&mut self, destination: IpAddr, now: Instant) -> Option<&Hop> {
        let known = self.known.get_mut(&destination)?;
        if now >= known.fresh_until && !known.is_asked && self.refreshing < REFRESHES {
            let question = Question { index: self.index, destination, is_search: false };
            known.is_asked = self.questions.try_send(question).is_ok();
            self.refreshing += usize::from(known.is_asked);
        }
        Some(&known.hop).filter(|_| now < known.fresh_until + self.kept)
    }

    /// Has the kernel look for a destination that is not known. Returns false if it has too many to
    /// look for.
    pub(in crate::lan) fn search(&mut self, destination: IpAddr) -> bool {
        let question = Question { index: self.index, destination, is_search: true };
        let is_asked = self.searching < self.most_searches && self.questions.try_send(question).is_ok();
        self.searching += usize::from(is_asked);
        is_asked
    }

    /// Takes in what the kernel has said since. `found` hears of what was searched for: the way
    /// there, or `None` if nobody answers.
    pub(in crate::lan) fn learn(&mut self, now: Instant, found: &mut dyn FnMut(IpAddr, Option<&Hop>)) {
        if self.refreshing + self.searching == 0 {
            return;
        }
        self.wakeup.clear();
        while let Ok(Answer { question, verdict }) = self.answers.try_recv() {
            let Question { destination, is_search, index } = question;
            let under_way = if is_search { &mut self.searching } else { &mut self.refreshing };
            *under_way = under_way.saturating_sub(1);
            if index != self.index {
                continue;
            }
            let (hop, fresh) = match verdict {
                Verdict::Link(address) => (Some(Hop::Link(address)), FRESH),
                Verdict::Known => (Some(Hop::Known), FRESH),
                Verdict::Kernel => (Some(Hop::Kernel), KERNELS),
                Verdict::Nobody => (None, FRESH),
            };
            if is_search {
                found(destination, hop.as_ref());
            }
            match hop {
                // What was forgotten meanwhile is not known any more.
                Some(_) if !is_search && !self.known.contains_key(&destination) => {}
                Some(hop) => {
                    self.keep(destination, Known { hop, fresh_until: now + fresh, is_asked: false }, now);
                }
                None => {
                    self.known.remove(&destination);
                }
            }
        }
    }

    /// Begins anew, on the interface of that number.
    pub(super) fn begin_anew(&mut self, index: u32) {
        self.index = index;
        self.forget_all();
    }

    /// Asks about everything again before it is used.
    pub(super) fn forget_all(&mut self) {
        self.known.clear();
    }

    /// Readable when something that was searched for is answered.
    pub(in crate::lan) fn fd(&self) -> BorrowedFd<'_> {
        self.wakeup.fd()
    }

    /// Remembers it if there is room. What finds none is searched for again each time.
    fn keep(&mut self, destination: IpAddr, known: Known, now: Instant) {
        if let Some(place) = self.known.get_mut(&destination) {
            *place = known;
            return;
        }
        if self.known.len() >= KNOWN && now >= self.swept + SWEEP {
            self.swept = now;
            // What only the kernel can send to has no neighbour that could have answered.
            let kept = self.kept;
            self.known.retain(|_, known| now < known.fresh_until + kept && known.hop != Hop::Kernel);
        }
        if self.known.len() < KNOWN {
            self.known.insert(destination, known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lan::netns::Site;
    use crate::lan::packet::ring::link_address;
    use rustix::net::netdevice::name_to_index;
    use socket2::{Domain, Socket, Type};
    use std::net::Ipv4Addr;

    fn hops(site: &Site, now: Instant) -> Hops {
        site.gateway.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            Hops::new(By::Interface(name_to_index(&socket, "g0").unwrap()), 1, now).unwrap()
        })
    }

    /// Takes in all answers that are to come.
    fn settle(hops: &mut Hops, now: Instant) -> Vec<(IpAddr, Option<Hop>)> {
        let mut found = Vec::new();
        while hops.refreshing + hops.searching > 0 {
            hops.learn(now, &mut |destination, hop| found.push((destination, hop.cloned())));
            thread::yield_now();
        }
        found
    }

    #[test]
    fn the_kernel_says_where_packets_go_or_that_it_shall_send_them_itself() {
        let site = Site::new(1500);
        let now = Instant::now();
        let mut hops = hops(&site, now);
        site.gateway.ip("neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 nud permanent dev g0");
        site.gateway.ip("neigh add 10.0.0.8 lladdr 02:00:00:00:00:08 nud stale dev g0");
        site.gateway.ip("neigh del 10.0.0.1 dev g0");
        site.gateway.ip("neigh del fd00::1 dev g0");
        site.gateway.ip("route add 10.0.1.0/24 via 10.0.0.9");
        site.gateway.ip("route add 10.0.2.0/24 via inet6 fd00::1 dev g0");
        site.gateway.ip("route add 10.0.4.0/24 via 10.0.0.7");
        site.gateway.ip("route add unreachable 10.0.3.0/24");
        site.gateway.ip("route add fd01::/64 via fd00::1");
        let at = |protocol: libc::c_int, last| {
            link_address(hops.index, protocol as u16, &[2, 0, 0, 0, 0, last]).map(Hop::Link)
        };
        let (v4, v6) = (|last| at(libc::ETH_P_IP, last), |last| at(libc::ETH_P_IPV6, last));
        let mut expected = [
            // The host answers for these two, when the kernel looks.
            ("10.0.0.1", v4(1)),
            ("fd00::1", v6(1)),
            ("10.0.1.77", v4(9)),
            ("fd01::5", v6(1)),
            // Doubted, yet it has answered once: the kernel would send there as well.
            ("10.0.0.8", v4(8)),
            // Nobody is there, nor is the router.
            ("10.0.0.7", None),
            ("10.0.4.1", None),
            ("fd00::77", None),
            // Without a route, IPv4 takes a destination for one on the link.
            ("10.0.3.1", None),
            ("10.9.9.9", None),
            ("127.0.0.1", None),
            ("10.0.2.1", Some(Hop::Kernel)),
            ("2001:db8::1", Some(Hop::Kernel)),
            ("10.0.0.254", Some(Hop::Kernel)),
            ("224.0.0.1", Some(Hop::Kernel)),
            ("10.0.0.255", Some(Hop::Kernel)),
        ]
        .map(|(destination, hop)| (destination.parse::<IpAddr>().unwrap(), hop));
        for (destination, _) in &expected {
            assert!(hops.find(*destination, now).is_none() && hops.search(*destination), "{destination}");
        }
        let mut found = settle(&mut hops, now);
        found.sort_by_key(|(destination, _)| *destination);
        expected.sort_by_key(|(destination, _)| *destination);
        assert_eq!(found, expected);
        for (destination, hop) in &expected {
            assert_eq!(hops.find(*destination, now), hop.as_ref(), "{destination}");
        }
    }

    /// By UDP, with and without the right to have the kernel look for a neighbour.
    #[test]
    fn by_udp_only_those_are_known_whom_the_kernel_need_not_look_for() {
        for is_privileged in [true, false] {
            let site = Site::new(1500);
            let now = Instant::now();
            site.gateway.ip("neigh del 10.0.0.1 dev g0");
            site.gateway.ip("neigh add 10.0.0.7 lladdr 02:00:00:00:00:07 nud probe dev g0");
            site.gateway.ip("neigh add 10.0.0.8 lladdr 02:00:00:00:00:08 nud stale dev g0");
            site.gateway.ip("neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 nud permanent dev g0");
            site.gateway.ip("route add 10.0.1.0/24 via 10.0.0.1");
            site.gateway.ip("route add 10.0.2.0/24 via 10.0.0.6");
            site.gateway.ip("tuntap add tun0 mode tun");
            site.gateway.ip("addr add 10.1.0.1 peer 10.1.0.2 dev tun0");
            site.gateway.ip("link set tun0 up");
            let mut hops = site.gateway.run(|| {
                if !is_privileged {
                    crate::privileges::give_up_all().unwrap();
                }
                Hops::new(By::Udp(Ipv4Addr::UNSPECIFIED.into()), 1, now).unwrap()
            });
            let expected = [
                // Here.
                ("10.0.0.254", Some(Hop::Kernel)),
                // A link without addresses.
                ("10.1.0.2", Some(Hop::Kernel)),
                // It answers when it is looked for.
                ("10.0.0.1", Some(Hop::Known)),
                ("10.0.1.5", Some(Hop::Known)),
                // It is not being asked just now.
                ("10.0.0.8", Some(Hop::Known)),
                ("10.0.0.9", Some(Hop::Known)),
                // It is asked whether it is still there, and is not.
                ("10.0.0.7", None),
                ("10.0.0.6", None),
                ("10.0.2.5", None),
            ]
            .map(|(destination, hop)| (destination.parse::<IpAddr>().unwrap(), hop));
            for (destination, _) in &expected {
                assert!(hops.find(*destination, now).is_none() && hops.search(*destination), "{destination}");
            }
            let mut found = settle(&mut hops, now);
            found.sort_by_key(|(destination, _)| *destination);
            let mut sorted = expected.clone();
            sorted.sort_by_key(|(destination, _)| *destination);
            assert_eq!(found, sorted, "privileged: {is_privileged}");
            // Whoever is not heard of again is soon not known.
            let host = expected[2].0;
            assert!(hops.find(host, now + FRESH).is_some());
            assert!(hops.find(host, now + FRESH + KEPT_BY_UDP).is_none());
        }
    }

    /// A table that knows one host.
    fn with_a_host() -> (Site, Instant, Hops, IpAddr) {
        let site = Site::new(1500);
        let now = Instant::now();
        let mut hops = hops(&site, now);
        let host: IpAddr = Ipv4Addr::new(10, 0, 0, 1).into();
        assert!(hops.search(host));
        settle(&mut hops, now);
        (site, now, hops, host)
    }

    #[test]
    fn answers_age_and_one_that_is_due_serves_until_the_next() {
        let (site, now, mut hops, host) = with_a_host();
        let first = hops.find(host, now).cloned().unwrap();
        assert_eq!(hops.refreshing, 0, "fresh");
        site.gateway.ip("neigh replace 10.0.0.1 lladdr 02:00:00:00:00:05 dev g0");
        // Asked again, and used meanwhile.
        let later = now + FRESH;
        assert_eq!(hops.find(host, later), Some(&first));
        assert_eq!(hops.find(host, later), Some(&first));
        assert_eq!(hops.refreshing, 1);
        settle(&mut hops, later);
        let second = hops.find(host, later).cloned().unwrap();
        assert_ne!(first, second);
        // Not used when nobody has asked for long.
        assert_eq!(hops.find(host, later + FRESH + KEPT), None);
        settle(&mut hops, later);

        // On another interface, an answer about this one says nothing.
        assert!(hops.search(host));
        hops.begin_anew(hops.index + 1);
        assert_eq!(settle(&mut hops, later), []);
        assert_eq!(hops.find(host, later), None);
    }

    /// The searches for many that are not there keep nobody's answer from being renewed.
    #[test]
    fn table_and_questions_are_bounded_and_the_known_keep_their_own() {
        let (_site, now, mut hops, host) = with_a_host();
        let many = |number: u32| IpAddr::V4((0x0a00_0002 + number).into());
        let asked = (0..10_000).filter(|number| hops.search(many(*number % 200))).count();
        assert_eq!(asked, SEARCHES);
        let later = now + FRESH;
        assert!(hops.find(host, later).is_some() && hops.refreshing == 1);
        while hops.refreshing > 0 {
            hops.learn(later, &mut |_, _| {});
            thread::yield_now();
        }
        assert!(hops.find(host, later).is_some() && hops.refreshing == 0, "fresh again");
        for number in 0..10_000 {
            hops.keep(
                many(number),
                Known { hop: Hop::Kernel, fresh_until: later, is_asked: false },
                later + SWEEP,
            );
            assert!(hops.known.len() <= KNOWN);
        }
        assert!(hops.find(host, later).is_some());
    }
}
