//! Asks the kernel for the ways to destinations, and has it look for neighbours that it does not
//! know. A thread of its own: the kernel may keep whoever asks waiting while somebody changes its
//! network configuration.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_CREATE};
use rtnetlink::packet_route::link::{LinkFlags, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;
use rustix::net::SocketAddrAny;

use super::ring::link_address;
use crate::lan::netlink::Netlink;
use crate::lan::wake::Waker;

/// A neighbour that has not answered by then is absent: the kernel has asked it three times.
const PATIENCE: Duration = Duration::from_millis(2500);
/// The first look after the kernel was told to look for a neighbour. Each pause is twice as long
/// as the one before, up to [`LONGEST`].
const SOON: Duration = Duration::from_micros(500);
const LONGEST: Duration = Duration::from_millis(128);

/// The port that takes what nobody wants (RFC 863).
const DISCARD: u16 = 9;

/// How packets are sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::lan) enum By {
    /// Through the interface of this number, with the next hop's link-layer address.
    Interface(u32),
    /// By a UDP socket with this address of its own: the kernel looks for the next hop of each.
    Udp(IpAddr),
}

/// A question about a destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    /// The interface that it shall be reached by; 0: whichever the routes say.
    pub(super) index: u32,
    pub(super) destination: IpAddr,
    /// Nothing is known of it, and somebody waits.
    pub(super) is_search: bool,
}

/// The kernel's word on it.
pub(super) struct Answer {
    pub(super) question: Question,
    pub(super) verdict: Verdict,
}

/// The way to a destination.
#[derive(Debug)]
pub(super) enum Verdict {
    /// By the interface, to the next hop with this link-layer address.
    Link(SocketAddrAny),
    /// By UDP: the kernel knows the next hop, and does not wait for it just now.
    Known,
    /// Only the kernel can send there, or say why it cannot.
    Kernel,
    /// The next hop does not answer.
    Nobody,
}

/// Answers one [`Question`] after the other, each once: the neighbours that the kernel has to look
/// for by and by.
pub(super) struct Resolver {
    netlink: Netlink,
    /// For packets that are sent by UDP.
    udp: Option<Udp>,
    asked: Receiver<Question>,
    answers: SyncSender<Answer>,
    waker: Waker,
    /// As many as the two channels take: those who ask count.
    pending: Vec<Pending>,
}

/// The means to have the kernel look for a neighbour without CAP_NET_ADMIN: a datagram for it.
/// While nobody answers, the kernel keeps it, and so as many as there are searches: less than a
/// send buffer of Linux's default size.
struct Udp {
    source: IpAddr,
    socket: UdpSocket,
}

/// A destination whose next hop the kernel looks for.
#[derive(Clone, Copy)]
struct Pending {
    question: Question,
    hop: NextHop,
    next: Instant,
    pause: Duration,
    until: Instant,
}

/// The next router, or the destination itself, on the interface of that number.
#[derive(Clone, Copy)]
struct NextHop {
    index: u32,
    address: IpAddr,
}

impl Resolver {
    /// In the calling thread's network name space.
    pub(super) fn connect(
        by: By,
        asked: Receiver<Question>,
        answers: SyncSender<Answer>,
        waker: Waker,
    ) -> io::Result<Self> {
        let udp = match by {
            By::Interface(_) => None,
            By::Udp(source) => Some(Udp::bind(source)?),
        };
        Ok(Self { netlink: Netlink::connect()?, udp, asked, answers, waker, pending: Vec::new() })
    }

    /// Until nobody can ask any more.
    pub(super) fn run(mut self) {
        loop {
            let next = self.pending.iter().map(|pending| pending.next).min();
            let question = match next {
                None => self.asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(next) => self.asked.recv_timeout(next.saturating_duration_since(Instant::now())),
            };
            let goes_on = match question {
                Ok(question) => self.begin(question, Instant::now()),
                Err(RecvTimeoutError::Timeout) => true,
                Err(RecvTimeoutError::Disconnected) => false,
            };
            if !goes_on || !self.look_again(Instant::now()) {
                return;
            }
        }
    }

    /// Returns false if nobody wants to know any more.
    fn begin(&mut self, question: Question, now: Instant) -> bool {
        // An error is the kernel's way to say that there is none.
        let source = self.udp.as_ref().map(|udp| udp.source).filter(|source| !source.is_unspecified());
        let Some(hop) = next_hop(&mut self.netlink, question, source).ok().flatten() else {
            return self.answer(question, Verdict::Kernel);
        };
        // Where nobody is looked for, nobody is found.
        if self.udp.is_some() && !has_neighbours(&mut self.netlink, hop.index).unwrap_or(false) {
            return self.answer(question, Verdict::Kernel);
        }
        if let Some(verdict) = self.look(question, hop) {
            return self.answer(question, verdict);
        }
        self.pending.push(Pending { question, hop, next: now + SOON, pause: SOON, until: now + PATIENCE });
        true
    }

    /// Looks after those that are due. Returns false if nobody wants to know any more.
    fn look_again(&mut self, now: Instant) -> bool {
        let mut nth = 0;
        while let Some(&Pending { question, hop, next, until, .. }) = self.pending.get(nth) {
            if next > now {
                nth += 1;
                continue;
            }
            let verdict = self.look(question, hop).or_else(|| (until <= now).then_some(Verdict::Nobody));
            if let Some(verdict) = verdict {
                self.pending.swap_remove(nth);
                if !self.answer(question, verdict) {
                    return false;
                }
            } else if let Some(pending) = self.pending.get_mut(nth) {
                pending.pause = (2 * pending.pause).min(LONGEST);
                pending.next = now + pending.pause;
                nth += 1;
            }
        }
        true
    }

    /// The way by the next hop, if the kernel knows its address. If it does not, or doubts, it
    /// looks for it from now on.
    fn look(&mut self, question: Question, hop: NextHop) -> Option<Verdict> {
        let found = neighbour(&mut self.netlink, hop).ok().flatten();
        let state = found.as_ref().map_or(NeighbourState::None, |found| found.header.state);
        if self.udp.is_some() {
            return self.look_for_udp(question, hop, state);
        }
        let is_known = match state {
            NeighbourState::Reachable
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Noarp
            | NeighbourState::Permanent => true,
            NeighbourState::Incomplete => return None,
            // In doubt, it has answered once. If it does not now, it is not known the next time.
            state => {
                let nudged = nudge(&mut self.netlink, hop);
                // Without CAP_NET_ADMIN only packets make the kernel look.
                if nudged.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::PERM)) {
                    return Some(Verdict::Kernel);
                }
                state == NeighbourState::Stale
            }
        };
        let ethertype = if question.destination.is_ipv4() { libc::ETH_P_IP } else { libc::ETH_P_IPV6 };
        let address = found.filter(|_| is_known)?.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                link_address(question.index, ethertype as u16, bytes)
            }
            _ => None,
        });
        // Links without addresses are the kernel's.
        Some(address.map_or(Verdict::Kernel, Verdict::Link))
    }

    /// Known is whom the kernel does not wait for now, nor for another three seconds.
    fn look_for_udp(&mut self, question: Question, hop: NextHop, state: NeighbourState) -> Option<Verdict> {
        match state {
            NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Noarp
            | NeighbourState::Permanent => Some(Verdict::Known),
            NeighbourState::Incomplete | NeighbourState::Probe => None,
            _ => {
                if nudge(&mut self.netlink, hop).is_err()
                    && let Some(udp) = &self.udp
                {
                    udp.nudge(question.destination);
                }
                None
            }
        }
    }

    fn answer(&self, question: Question, verdict: Verdict) -> bool {
        let is_heard = self.answers.send(Answer { question, verdict }).is_ok();
        if question.is_search {
            self.waker.wake();
        }
        is_heard
    }
}

impl Udp {
    fn bind(source: IpAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(SocketAddr::new(source, 0))?;
        socket.set_nonblocking(true)?;
        Ok(Self { source, socket })
    }

    /// If the socket is full, the kernel has enough to look for: another look follows.
    fn nudge(&self, destination: IpAddr) {
        let _ = self.socket.send_to(&[], SocketAddr::new(destination, DISCARD));
    }
}

fn wanted(NextHop { index, address }: NextHop) -> NeighbourMessage {
    let mut wanted = NeighbourMessage::default();
    let (family, address) = match address {
        IpAddr::V4(hop) => (AddressFamily::Inet, NeighbourAddress::Inet(hop)),
        IpAddr::V6(hop) => (AddressFamily::Inet6, NeighbourAddress::Inet6(hop)),
    };
    (wanted.header.family, wanted.header.ifindex) = (family, index);
    wanted.attributes = vec![NeighbourAttribute::Destination(address)];
    wanted
}

fn neighbour(netlink: &mut Netlink, hop: NextHop) -> io::Result<Option<NeighbourMessage>> {
    let answers = netlink.request(RouteNetlinkMessage::GetNeighbour(wanted(hop)), NLM_F_ACK)?;
    Ok(answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewNeighbour(neighbour) => Some(neighbour),
        _ => None,
    }))
}

/// Has the kernel look for a neighbour as if it had a packet for it (`ip neigh add ... use`). Needs
/// CAP_NET_ADMIN.
fn nudge(netlink: &mut Netlink, hop: NextHop) -> io::Result<()> {
    let mut wanted = wanted(hop);
    wanted.header.flags = NeighbourFlags::Use;
    netlink.request(RouteNetlinkMessage::NewNeighbour(wanted), NLM_F_ACK | NLM_F_CREATE).map(drop)
}

/// Returns true if the kernel looks for neighbours on an interface.
fn has_neighbours(netlink: &mut Netlink, index: u32) -> io::Result<bool> {
    let mut wanted = LinkMessage::default();
    wanted.header.index = index;
    let answers = netlink.request(RouteNetlinkMessage::GetLink(wanted), NLM_F_ACK)?;
    let without = LinkFlags::Noarp | LinkFlags::Loopback | LinkFlags::Pointopoint;
    Ok(answers.into_iter().any(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => !link.header.flags.intersects(without),
        _ => false,
    }))
}

/// Where a destination's packets go, if that is on a link.
fn next_hop(
    netlink: &mut Netlink,
    question: Question,
    source: Option<IpAddr>,
) -> io::Result<Option<NextHop>> {
    let Question { index, destination, .. } = question;
    let mut wanted = RouteMessage::default();
    let (family, address, bits) = match destination {
        IpAddr::V4(destination) => (AddressFamily::Inet, RouteAddress::Inet(destination), 32),
        IpAddr::V6(destination) => (AddressFamily::Inet6, RouteAddress::Inet6(destination), 128),
    };
    (wanted.header.address_family, wanted.header.destination_prefix_length) = (family, bits);
    wanted.attributes = vec![RouteAttribute::Destination(address)];
    if index != 0 {
        wanted.attributes.push(RouteAttribute::Oif(index));
    }
    if let Some(source) = source {
        wanted.header.source_prefix_length = bits;
        wanted.attributes.push(RouteAttribute::Source(match source {
            IpAddr::V4(source) => RouteAddress::Inet(source),
            IpAddr::V6(source) => RouteAddress::Inet6(source),
        }));
    }
    let answers = netlink.request(RouteNetlinkMessage::GetRoute(wanted), NLM_F_ACK)?;
    let route = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    });
    let Some(route) = route.filter(|route| route.header.kind == RouteType::Unicast) else {
        return Ok(None);
    };
    let through = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(through) => Some(*through),
        _ => None,
    });
    let Some(through) = through.filter(|through| index == 0 || *through == index) else {
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
    Ok(Some(NextHop { index: through, address: hop }))
}
