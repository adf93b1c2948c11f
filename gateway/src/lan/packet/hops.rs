//! Where packets go on the link: what the kernel's routes and neighbour tables say. A thread beside
//! the packet path asks, since the kernel may keep whoever asks waiting while somebody changes its
//! network configuration.

use std::array;
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rtnetlink::packet_core::NLM_F_ACK;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::net::SocketAddrAny;

use super::ring::link_address;
use crate::lan::netlink::Netlink;

/// Destinations known at a time. Packets for more go the long way.
const SLOTS: usize = 256;
/// Slots that a destination may be in.
const WAYS: usize = 4;
/// After this time the kernel is asked again, if there is a packet.
const FRESH: Duration = Duration::from_secs(1);
/// The same where the kernel does not know (yet): the packets that go the long way make it look.
const UNKNOWN: Duration = Duration::from_millis(250);
/// How long an answer holds beyond that, while the next one is waited for. A destination that is
/// not sent to so long loses its slot.
const GRACE: Duration = Duration::from_secs(1);
/// Questions under way.
const QUESTIONS: usize = 64;

/// The link-layer addresses by which destinations are reached through one interface.
pub(super) struct Hops {
    /// The interface.
    index: u32,
    slots: Box<[Slot; SLOTS]>,
    unanswered: usize,
    questions: SyncSender<Question>,
    answers: Receiver<Answer>,
}

struct Slot {
    destination: IpAddr,
    /// The kernel's answer, `None` if it does not know.
    address: Option<SocketAddrAny>,
    fresh_until: Instant,
    is_asked: bool,
}

#[derive(Clone, Copy)]
struct Question {
    index: u32,
    destination: IpAddr,
}

struct Answer {
    question: Question,
    address: Option<SocketAddrAny>,
}

impl Hops {
    /// In the calling thread's network name space.
    pub(super) fn new(index: u32, now: Instant) -> io::Result<Self> {
        let mut netlink = Netlink::connect()?;
        let (questions, asked) = sync_channel::<Question>(QUESTIONS);
        let (answer, answers) = sync_channel(QUESTIONS);
        // Ends when the questions' other end is gone.
        thread::Builder::new().name("lan-hops".to_owned()).spawn(move || {
            for question in asked {
                // An error is the kernel's way to say that there is none.
                let address = ask(&mut netlink, question).ok().flatten();
                if answer.send(Answer { question, address }).is_err() {
                    break;
                }
            }
        })?;
        let nowhere =
            || Slot { destination: IpAddr::V4(0.into()), address: None, fresh_until: now, is_asked: false };
        let slots = Box::new(array::from_fn(|_| nowhere()));
        Ok(Self { index, slots, unanswered: 0, questions, answers })
    }

    /// Where to send what is for `destination`, if that is known; if not, or not for sure much
    /// longer, the kernel is asked.
    pub(super) fn find(&mut self, destination: IpAddr, now: Instant) -> Option<&SocketAddrAny> {
        let nth = self.slot(destination, now)?;
        let may_ask = self.unanswered < QUESTIONS;
        let slot = self.slots.get_mut(nth)?;
        if now >= slot.fresh_until && !slot.is_asked && may_ask {
            let question = Question { index: self.index, destination };
            slot.is_asked = self.questions.try_send(question).is_ok();
            self.unanswered += usize::from(slot.is_asked);
        }
        slot.address.as_ref().filter(|_| now < slot.fresh_until + GRACE)
    }

    /// Takes in what the kernel has said since.
    pub(super) fn learn(&mut self, now: Instant) {
        while self.unanswered > 0
            && let Ok(Answer { question, address }) = self.answers.try_recv()
        {
            self.unanswered -= 1;
            let slots = self.slots.iter_mut();
            let slot =
                slots.filter(|slot| slot.is_asked).find(|slot| slot.destination == question.destination);
            if let Some(slot) = slot
                && question.index == self.index
            {
                slot.is_asked = false;
                slot.fresh_until = now + if address.is_some() { FRESH } else { UNKNOWN };
                slot.address = address;
            }
        }
    }

    /// Begins anew, on the interface of that number.
    pub(super) fn begin_anew(&mut self, index: u32, now: Instant) {
        self.index = index;
        self.forget_all(now);
    }

    /// Asks about everything again before it is used.
    pub(super) fn forget_all(&mut self, now: Instant) {
        for slot in self.slots.iter_mut() {
            (slot.address, slot.is_asked, slot.fresh_until) = (None, false, now);
        }
    }

    /// The destination's slot, which it is given if there is a free one.
    fn slot(&mut self, destination: IpAddr, now: Instant) -> Option<usize> {
        let first = hash(destination);
        let ways = || (0..WAYS).map(|way| (first + way) % SLOTS);
        let is = |test: &dyn Fn(&Slot) -> bool| ways().find(|nth| self.slots.get(*nth).is_some_and(test));
        if let Some(nth) = is(&|slot| slot.destination == destination) {
            return Some(nth);
        }
        let free = is(&|slot| {
            slot.address.is_none() && slot.fresh_until <= now && !slot.is_asked
                || slot.fresh_until + GRACE <= now
        })?;
        *self.slots.get_mut(free)? = Slot { destination, address: None, fresh_until: now, is_asked: false };
        Some(free)
    }
}

/// Spreads neighbouring addresses over all slots: by 2^64 divided by the golden ratio, an odd
/// number.
fn hash(destination: IpAddr) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let bits = match destination {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            (bits >> 64) as u64 ^ bits as u64
        }
    };
    (bits.wrapping_mul(SPREAD) >> 32) as usize % SLOTS
}

/// By which link-layer address the destination is reached, if by this interface and without ado.
/// Also when the kernel doubts: then it shall see packets, which make it look.
fn ask(netlink: &mut Netlink, question: Question) -> io::Result<Option<SocketAddrAny>> {
    let Some(hop) = next_hop(netlink, question)? else { return Ok(None) };
    let mut wanted = NeighbourMessage::default();
    let (family, address) = match hop {
        IpAddr::V4(hop) => (AddressFamily::Inet, NeighbourAddress::Inet(hop)),
        IpAddr::V6(hop) => (AddressFamily::Inet6, NeighbourAddress::Inet6(hop)),
    };
    (wanted.header.family, wanted.header.ifindex) = (family, question.index);
    wanted.attributes = vec![NeighbourAttribute::Destination(address)];
    let answers = netlink.request(RouteNetlinkMessage::GetNeighbour(wanted), NLM_F_ACK)?;
    let neighbour = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewNeighbour(neighbour) => Some(neighbour),
        _ => None,
    });
    let Some(neighbour) = neighbour.filter(|neighbour| is_sure(neighbour.header.state)) else {
        return Ok(None);
    };
    let ethertype = if question.destination.is_ipv4() { libc::ETH_P_IP } else { libc::ETH_P_IPV6 };
    Ok(neighbour.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => link_address(question.index, ethertype as u16, bytes),
        _ => None,
    }))
}

fn is_sure(state: NeighbourState) -> bool {
    use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable};
    matches!(state, Reachable | Delay | Probe | Noarp | Permanent)
}

/// The next router, or the destination itself.
fn next_hop(netlink: &mut Netlink, Question { index, destination }: Question) -> io::Result<Option<IpAddr>> {
    let mut wanted = RouteMessage::default();
    let (family, address, bits) = match destination {
        IpAddr::V4(destination) => (AddressFamily::Inet, RouteAddress::Inet(destination), 32),
        IpAddr::V6(destination) => (AddressFamily::Inet6, RouteAddress::Inet6(destination), 128),
    };
    (wanted.header.address_family, wanted.header.destination_prefix_length) = (family, bits);
    wanted.attributes = vec![RouteAttribute::Destination(address), RouteAttribute::Oif(index)];
    let answers = netlink.request(RouteNetlinkMessage::GetRoute(wanted), NLM_F_ACK)?;
    let route = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    });
    let Some(route) = route.filter(|route| {
        route.header.kind == RouteType::Unicast && route.attributes.contains(&RouteAttribute::Oif(index))
    }) else {
        return Ok(None);
    };
    let mut hop = destination;
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(router)) => hop = (*router).into(),
            RouteAttribute::Gateway(RouteAddress::Inet6(router)) => hop = (*router).into(),
            // Tunnels, and routers of the other family.
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) | RouteAttribute::Encap(_) => {
                return Ok(None);
            }
            _ => {}
        }
    }
    Ok(Some(hop))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lan::netns::Site;
    use rustix::net::netdevice::name_to_index;
    use socket2::{Domain, Socket, Type};
    use std::net::Ipv4Addr;

    fn hops(site: &Site, now: Instant) -> Hops {
        site.gateway.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            Hops::new(name_to_index(&socket, "g0").unwrap(), now).unwrap()
        })
    }

    /// Returns what the kernel says of a destination.
    fn learnt(hops: &mut Hops, destination: &str, now: Instant) -> Option<SocketAddrAny> {
        assert!(hops.find(destination.parse().unwrap(), now).is_none(), "{destination} was known");
        assert_eq!(hops.unanswered, 1, "{destination}");
        while hops.unanswered > 0 {
            hops.learn(now);
            thread::yield_now();
        }
        hops.find(destination.parse().unwrap(), now).cloned()
    }

    #[test]
    fn the_kernel_says_where_packets_go_or_that_it_shall_send_them_itself() {
        let site = Site::new(1500);
        let now = Instant::now();
        let mut hops = hops(&site, now);
        site.gateway.ip("neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 nud permanent dev g0");
        site.gateway.ip("neigh add 10.0.0.8 lladdr 02:00:00:00:00:08 nud stale dev g0");
        site.gateway.ip("route add 10.0.1.0/24 via 10.0.0.9");
        site.gateway.ip("route add 10.0.2.0/24 via inet6 fd00::1 dev g0");
        site.gateway.ip("route add unreachable 10.0.3.0/24");
        site.gateway.ip("route add fd01::/64 via fd00::1");
        let at =
            |protocol: libc::c_int, last| link_address(hops.index, protocol as u16, &[2, 0, 0, 0, 0, last]);
        let (v4, v6) = (|last| at(libc::ETH_P_IP, last), |last| at(libc::ETH_P_IPV6, last));
        let expected = [
            ("10.0.0.1", v4(1)),
            ("10.0.1.77", v4(9)),
            ("fd00::1", v6(1)),
            ("fd01::5", v6(1)),
            ("10.0.0.8", None),
            ("10.0.0.7", None),
            ("10.0.2.1", None),
            ("10.0.3.1", None),
            ("10.9.9.9", None),
            ("10.0.0.254", None),
            ("127.0.0.1", None),
            ("224.0.0.1", None),
            ("10.0.0.255", None),
        ];
        for (destination, expected) in expected {
            assert_eq!(learnt(&mut hops, destination, now), expected, "{destination}");
        }
    }

    #[test]
    fn answers_age_and_the_table_is_bounded() {
        let site = Site::new(1500);
        let now = Instant::now();
        let mut hops = hops(&site, now);
        let host: IpAddr = Ipv4Addr::new(10, 0, 0, 1).into();
        let first = learnt(&mut hops, "10.0.0.1", now).unwrap();
        assert_eq!(hops.unanswered, 0, "fresh");
        site.gateway.ip("neigh replace 10.0.0.1 lladdr 02:00:00:00:00:05 dev g0");
        // Asked again, and used meanwhile.
        let later = now + FRESH;
        assert_eq!(hops.find(host, later), Some(&first));
        assert_eq!(hops.find(host, later), Some(&first));
        assert_eq!(hops.unanswered, 1);
        while hops.unanswered > 0 {
            hops.learn(later);
            thread::yield_now();
        }
        let second = hops.find(host, later).cloned().unwrap();
        assert_ne!(first, second);
        // Not used when nobody has asked for long.
        assert_eq!(hops.find(host, later + FRESH + GRACE), None);

        // On another interface, an answer about this one says nothing.
        hops.begin_anew(hops.index + 1, later);
        while hops.unanswered > 0 {
            hops.learn(later);
            thread::yield_now();
        }
        assert_eq!(hops.find(host, later), None);

        let many = |number: u32| IpAddr::V4((0x0a00_0100 + number).into());
        for number in 0..10_000 {
            assert_eq!(hops.find(many(number), later), None);
            assert!(hops.unanswered <= QUESTIONS);
            hops.learn(later);
        }
        let held: std::collections::HashSet<_> = hops.slots.iter().map(|slot| slot.destination).collect();
        assert!(held.len() > SLOTS / 2, "{}", held.len());
    }
}
