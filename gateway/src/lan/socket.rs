//! [`Socket`]: the local side without privileges, for hosts that speak RoCEv2 over a UDP socket of
//! their own.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::packet::hops::Hops;
use super::packet::resolve::By;
use super::packet::waiting::Waiting;
use super::{MAX_PACKET, inner};
use crate::steering::{self, Key, Part};
use crate::wan::{Bulk, BulkConfig, BulkStats};

/// Hosts learnt at most; from then on only those known are served.
const MAX_LEARNT: usize = 4096;

/// How a [`Socket`] is set up.
#[derive(Debug, Clone)]
pub struct SocketConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Hosts known beforehand: the address in their packets, and where they listen. Never
    /// overridden by what is learnt.
    pub hosts: Vec<(IpAddr, SocketAddr)>,
    /// True to learn hosts from the packets they send. Whoever can reach the socket can then claim
    /// any address that is not among `hosts`, as on a local network.
    pub learn: bool,
    /// Longest IP packet to send, in bytes; at most [`MAX_PACKET`] is used.
    pub mtu: usize,
    /// The UDP socket's own settings.
    pub udp: BulkConfig,
}

/// Counters beyond those of the UDP socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketStats {
    /// Packets dropped because it is not known where their destination listens.
    pub unknown_host: u64,
    /// Packets to be sent dropped because they are no IP packets.
    pub not_ip: u64,
    /// Times a host was learnt or had moved.
    pub learnt: u64,
    /// Packets of new hosts received while the table was full: handed out, but their sender was not
    /// learnt.
    pub table_full: u64,
    /// Packets dropped because nobody answered for the next hop's link-layer address.
    pub no_neighbour: u64,
    /// Packets dropped because too many waited for such an answer, in all or of their source.
    pub wait_full: u64,
    /// Packets of another thread's hosts, dropped: their sender had them joined with some of this
    /// one's (GSO), or they came before the sockets were sorted.
    pub other_thread: u64,
}

/// A UDP socket, of which each datagram holds one whole IP packet exactly as it would stand on the
/// wire; where a packet goes is looked up by its destination address.
///
/// What the kernel has for a host whose next hop does not answer would fill the socket, and hold up
/// what is for others. So packets leave once the kernel knows the next hop, and wait apart until
/// then: four for each of 64 pairs of source and destination, 3 s at most. Not so for hosts on this
/// machine, nor for link-local addresses.
///
/// Bounds: see [`Bulk`] for what is queued. The table holds the configured hosts and up to 4096
/// learnt ones; the one that several threads' sockets share, 4096 for each.
pub struct Socket {
    udp: Bulk,
    part: Part,
    hosts: Hosts,
    /// `None`: the kernel keeps what waits.
    ways: Option<Box<Ways>>,
    mtu: usize,
    stats: SocketStats,
}

/// The hosts that the kernel knows the way to, and the packets for others.
struct Ways {
    hops: Hops,
    waiting: Waiting,
    /// When packets were last looked at.
    now: Instant,
}

impl Ways {
    /// For a socket that listens there, and so many threads.
    fn new(listen: IpAddr, threads: u8) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self { hops: Hops::new(By::Udp(listen), threads, now)?, waiting: Waiting::new(), now })
    }

    /// Returns true if a packet has to wait for the way to a host.
    fn holds_up(&mut self, source: IpAddr, host: IpAddr) -> bool {
        let is_local = match host {
            IpAddr::V4(host) => host.is_loopback(),
            IpAddr::V6(host) => host.is_loopback() || host.is_unicast_link_local(),
        };
        !is_local && (self.hops.find(host, self.now).is_none() || self.waiting.holds(source, host))
    }
}

impl Socket {
    /// Binds the socket.
    pub fn bind(config: &SocketConfig) -> io::Result<Self> {
        Self::new(Bulk::bind(config.listen, config.udp)?, config, Part::WHOLE, None)
    }

    /// Binds a socket for each of so many threads. Each gets what its hosts send, and what one
    /// learns all know.
    pub fn bind_all(config: &SocketConfig, threads: u8) -> io::Result<Vec<Self>> {
        Self::adopt_all(config, steering::bind(config.listen, threads, Key::Packet)?)
    }

    /// As [`Socket::bind_all`], with a bound socket for each thread.
    pub fn adopt_all(config: &SocketConfig, sockets: Vec<UdpSocket>) -> io::Result<Vec<Self>> {
        let threads = u8::try_from(sockets.len()).unwrap_or(u8::MAX);
        let learnt = (threads > 1).then(Arc::<Learnt>::default);
        Part::all(threads)
            .zip(sockets)
            .map(|(part, socket)| {
                Self::new(Bulk::from_socket(socket, config.udp)?, config, part, learnt.clone())
            })
            .collect()
    }

    fn new(udp: Bulk, config: &SocketConfig, part: Part, learnt: Option<Arc<Learnt>>) -> io::Result<Self> {
        let hosts = Hosts { all: learnt, ..Hosts::new(&config.hosts, config.learn) };
        // What listens on this machine alone has no neighbours.
        let ways = match config.listen.ip() {
            listen if listen.is_loopback() => None,
            listen => Ways::new(listen, part.threads)
                .map(Box::new)
                .inspect_err(|error| tracing::warn!(%error, "absent hosts may delay others: no netlink"))
                .ok(),
        };
        let mtu = config.mtu.min(MAX_PACKET);
        Ok(Self { udp, part, hosts, ways, mtu, stats: SocketStats::default() })
    }

    /// Hands packets to `f`, and returns how many. What a system call brought is handed out whole,
    /// so it may be more than `budget`.
    pub fn receive(&mut self, budget: usize, f: &mut dyn FnMut(&[u8])) -> usize {
        let Self { udp, part, hosts, stats, .. } = self;
        udp.receive(budget, &mut |packet, arrival| {
            if let Some(addresses) = inner(packet) {
                let (source, destination) = (addresses.source(), addresses.destination());
                if part.threads > 1 && !part.has(source, destination) {
                    stats.other_thread += 1;
                    return;
                }
                hosts.learn(source, arrival.from, stats);
            }
            f(packet);
        })
    }

    /// Room for one packet of up to [`MAX_PACKET`] bytes, or `None` while the queue is full.
    pub fn reserve(&mut self) -> Option<&mut [u8]> {
        if self.udp.backlog() == 0 {
            self.look();
        }
        self.udp.reserve(MAX_PACKET)
    }

    /// Takes the first `len` bytes of the last reservation as a packet for the host of its
    /// destination address.
    pub fn commit(&mut self, len: usize) {
        let Some(addresses) = self.udp.reserved(len).and_then(inner) else {
            self.stats.not_ip += 1;
            return;
        };
        let Some(host) = self.hosts.find(addresses.destination()) else {
            self.stats.unknown_host += 1;
            return;
        };
        let source = addresses.source();
        if let Some(ways) = &mut self.ways
            && ways.holds_up(source, host.ip())
        {
            let packet = self.udp.reserved(len).unwrap_or_default();
            self.stats.wait_full += ways.waiting.push(source, host.ip(), packet, ways.now);
            return;
        }
        self.udp.commit(len, host);
    }

    /// Looks at the clock and at what is new of hosts, and queues the packets that have waited for
    /// it. Only between a commit and the next reservation.
    fn look(&mut self) {
        let Self { udp, hosts, ways: Some(ways), stats, .. } = self else { return };
        let Ways { hops, waiting, now } = &mut **ways;
        *now = Instant::now();
        hops.learn(*now, &mut |host, hop| stats.no_neighbour += waiting.answer(host, hop));
        if waiting.is_empty() {
            return;
        }
        stats.no_neighbour += waiting.expire(*now);
        waiting.ask(|host| hops.search(host));
        waiting.release(&mut |_, host, packet| {
            // It may have moved meanwhile.
            let listens = inner(packet).and_then(|addresses| hosts.find(addresses.destination()));
            let Some(listens) = listens.filter(|listens| listens.ip() == host) else {
                stats.unknown_host += 1;
                return true;
            };
            let Some(room) = udp.reserve(packet.len()) else { return false };
            room.copy_from_slice(packet);
            udp.commit(packet.len(), listens);
            true
        });
    }

    /// Sends what was committed, as far as the kernel takes it, and returns how many packets it
    /// took.
    pub fn flush(&mut self) -> usize {
        if self.udp.backlog() > 0 || self.ways_fd().is_some() {
            self.look();
        }
        self.udp.flush()
    }

    /// To be polled for reading while packets wait for the way to their host; then flush.
    pub fn ways_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ways.as_ref().filter(|ways| !ways.waiting.is_empty()).map(|ways| ways.hops.fd())
    }

    /// Longest IP packet that can be sent, in bytes.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// To be polled for reading.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.udp.fd()
    }

    /// To be polled for writing, while packets wait to be sent.
    pub fn blocked_fd(&self) -> Option<BorrowedFd<'_>> {
        self.udp.blocked_fds().next()
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// Counters of the UDP socket.
    pub fn udp_stats(&self) -> &BulkStats {
        self.udp.stats()
    }

    /// Counters of the table.
    pub fn stats(&self) -> &SocketStats {
        &self.stats
    }
}

/// Where each host listens.
struct Hosts {
    table: HashMap<IpAddr, Host>,
    learn: bool,
    learnt: usize,
    /// The last pairs seen and asked for: most packets are of the same host as the one before.
    seen: Option<(IpAddr, SocketAddr)>,
    asked: Option<(IpAddr, Option<SocketAddr>)>,
    /// The addresses that the other threads' sockets know as well.
    all: Option<Arc<Learnt>>,
    /// As many changes of that were there when `asked` was looked up.
    changes: u64,
}

/// The hosts learnt by all threads' sockets. Locked by who learns one, and once by each of the
/// others for a host that it sends to after something has changed; for one that nobody knows, once
/// for all packets in a row. Whether something has changed is a number to be read.
#[derive(Default)]
struct Learnt {
    changes: AtomicU64,
    table: Mutex<HashMap<IpAddr, SocketAddr>>,
}

struct Host {
    listens: SocketAddr,
    fixed: bool,
    /// After so many changes of what all know.
    changes: u64,
}

impl Hosts {
    fn new(hosts: &[(IpAddr, SocketAddr)], learn: bool) -> Self {
        let mut table = HashMap::with_capacity(hosts.len() + if learn { MAX_LEARNT } else { 0 });
        let fixed = |&(address, listens)| (address, Host { listens, fixed: true, changes: 0 });
        table.extend(hosts.iter().map(fixed));
        Self { table, learn, learnt: 0, seen: None, asked: None, all: None, changes: 0 }
    }

    fn find(&mut self, address: IpAddr) -> Option<SocketAddr> {
        let changes = self.all.as_ref().map_or(0, |all| all.changes.load(Acquire));
        if let Some((last, listens)) = self.asked
            && last == address
            && self.changes == changes
        {
            return listens;
        }
        if self.table.get(&address).is_none_or(|host| !host.fixed && host.changes != changes) {
            self.hear(address, changes);
        }
        let listens = self.table.get(&address).map(|host| host.listens);
        (self.asked, self.changes) = (Some((address, listens)), changes);
        listens
    }

    fn learn(&mut self, address: IpAddr, from: SocketAddr, stats: &mut SocketStats) {
        if !self.learn || self.seen == Some((address, from)) {
            return;
        }
        match self.table.get(&address) {
            Some(host) if host.fixed || host.listens == from => {}
            None if self.learnt >= MAX_LEARNT => {
                stats.table_full += 1;
                return;
            }
            _ => {
                let changes = self.tell(address, from);
                self.enter(address, from, changes);
                stats.learnt += 1;
            }
        }
        self.seen = Some((address, from));
    }

    /// Enters a host that is not configured, if there is room for it.
    fn enter(&mut self, address: IpAddr, listens: SocketAddr, changes: u64) {
        match self.table.get_mut(&address) {
            Some(host) => (host.listens, host.changes) = (listens, changes),
            None if self.learnt < MAX_LEARNT => {
                self.table.insert(address, Host { listens, fixed: false, changes });
                self.learnt += 1;
            }
            None => {}
        }
        self.asked = None;
    }

    /// Lets the other threads' sockets know; how many changes there were by then.
    fn tell(&self, address: IpAddr, listens: SocketAddr) -> u64 {
        let Some(all) = &self.all else { return 0 };
        all.table.lock().unwrap_or_else(PoisonError::into_inner).insert(address, listens);
        all.changes.fetch_add(1, Release) + 1
    }

    /// Takes over what the other threads' sockets know of a host.
    fn hear(&mut self, address: IpAddr, changes: u64) {
        let Some(all) = &self.all else { return };
        let known = all.table.lock().unwrap_or_else(PoisonError::into_inner).get(&address).copied();
        if let Some(listens) = known {
            self.enter(address, listens, changes);
            // What was last seen of it here may be older.
            self.seen = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::time::Duration;

    use super::*;
    use crate::lan::Lan;
    use crate::lan::netns::{Ns, Site};
    use crate::lan::wake::{PollFd, PollFlags, poll};

    fn loopback() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 0).into()
    }

    fn bind(hosts: Vec<(IpAddr, SocketAddr)>, learn: bool) -> Socket {
        let udp = BulkConfig::default();
        Socket::bind(&SocketConfig { listen: loopback(), hosts, learn, mtu: MAX_PACKET, udp }).unwrap()
    }

    fn v4(source: u8, destination: u8, len: usize) -> Vec<u8> {
        let mut packet = vec![len as u8; len];
        packet[0] = 0x45;
        packet[12..16].copy_from_slice(&[10, 0, 0, source]);
        packet[16..20].copy_from_slice(&[10, 0, 0, destination]);
        packet
    }

    fn v6(source: u8, destination: u8, len: usize) -> Vec<u8> {
        let address = |last: u8| Ipv6Addr::from(u128::from(last)).octets();
        let mut packet = vec![len as u8; len];
        packet[0] = 0x60;
        packet[8..24].copy_from_slice(&address(source));
        packet[24..40].copy_from_slice(&address(destination));
        packet
    }

    fn send(socket: &mut Socket, packet: &[u8]) {
        socket.reserve().unwrap()[..packet.len()].copy_from_slice(packet);
        socket.commit(packet.len());
    }

    fn take(socket: &mut Socket, count: usize) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        while got.len() < count {
            if socket.receive(count, &mut |packet| got.push(packet.to_vec())) == 0 {
                let ready = poll(
                    &mut [PollFd::from_borrowed_fd(socket.fd(), PollFlags::IN)],
                    Some(Duration::from_secs(5)),
                );
                assert!(ready.unwrap() > 0, "{} of {count} came", got.len());
            }
        }
        got
    }

    #[test]
    fn what_is_more_than_the_queue_holds_leaves_in_one_go() {
        let host = bind(vec![], false);
        let gateway = bind(vec![("10.0.0.1".parse().unwrap(), host.local_addr().unwrap())], false);
        let mut lan = Lan::Socket(gateway);
        let packet = v4(9, 1, 4140);
        let mut due = 500;
        for (sent, left) in [(400, 100), (100, 0)] {
            let mut next = |room: &mut [u8]| {
                due = u32::checked_sub(due, 1)?;
                room[..packet.len()].copy_from_slice(&packet);
                Some(packet.len())
            };
            assert_eq!(lan.send(400, &mut next), sent);
            assert_eq!(due, left);
        }
    }

    #[test]
    fn packets_find_configured_and_learnt_hosts_in_both_families() {
        let mut host = bind(vec![], false);
        let host_address = host.local_addr().unwrap();
        let mut gateway = bind(vec![("10.0.0.1".parse().unwrap(), host_address)], true);
        host.hosts = Hosts::new(
            &[
                ("10.0.0.9".parse().unwrap(), gateway.local_addr().unwrap()),
                ("::9".parse().unwrap(), gateway.local_addr().unwrap()),
            ],
            false,
        );
        let packets = [v4(9, 1, 1041), v4(9, 1, 1041), v4(9, 1, 1041), v4(9, 1, 63), v4(9, 1, 4400)];
        packets.iter().for_each(|packet| send(&mut gateway, packet));
        assert_eq!(gateway.flush(), 5);
        assert!(take(&mut host, 5) == packets);
        assert_eq!(gateway.udp_stats().sent_batches, 2, "equal lengths leave together");

        send(&mut gateway, &v6(9, 1, 100));
        assert_eq!(gateway.stats().unknown_host, 1);
        send(&mut host, &v6(1, 9, 100));
        host.flush();
        assert!(take(&mut gateway, 1) == [v6(1, 9, 100)]);
        send(&mut gateway, &v6(9, 1, 101));
        assert_eq!(gateway.flush(), 1);
        assert!(take(&mut host, 1) == [v6(9, 1, 101)]);
        assert_eq!(host.stats().learnt, 0);
    }

    #[test]
    fn what_one_threads_socket_learns_all_know() {
        let config = SocketConfig {
            listen: loopback(),
            hosts: Vec::new(),
            learn: true,
            mtu: MAX_PACKET,
            udp: BulkConfig::default(),
        };
        let mut sockets = Socket::bind_all(&config, 2).unwrap();
        let gateway = sockets[0].local_addr().unwrap();
        assert_eq!(sockets[1].local_addr().unwrap(), gateway);
        let of = |thread: u8, packet: &[u8]| {
            let addresses = inner(packet).unwrap();
            steering::thread_of(addresses.source(), addresses.destination(), 2) == thread
        };
        // A host that has only ever spoken to the first thread's hosts, of one of the second's,
        // after it has moved.
        for _ in 0..2 {
            let mut host = bind(Vec::new(), false);
            host.hosts = Hosts::new(
                &(1..=255).map(|last| (Ipv4Addr::new(10, 0, 0, last).into(), gateway)).collect::<Vec<_>>(),
                false,
            );
            let first = (1..=255).map(|last| v4(1, last, 100)).find(|packet| of(0, packet)).unwrap();
            send(&mut host, &first);
            host.flush();
            assert_eq!(take(&mut sockets[0], 1), [first]);
            let second = (2..=255).map(|last| v4(last, 1, 200)).find(|packet| of(1, packet)).unwrap();
            send(&mut sockets[1], &second);
            assert_eq!(sockets[1].flush(), 1);
            assert_eq!(take(&mut host, 1), [second]);
        }
    }

    #[test]
    fn a_host_that_moves_is_followed_unless_it_is_configured() {
        let fixed: IpAddr = "10.0.0.1".parse().unwrap();
        let learnt: IpAddr = "10.0.0.2".parse().unwrap();
        let places = [1, 2, 3].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let mut hosts = Hosts::new(&[(fixed, places[0])], true);
        let mut stats = SocketStats::default();
        for place in places {
            hosts.learn(fixed, place, &mut stats);
            hosts.learn(learnt, place, &mut stats);
            hosts.learn(learnt, place, &mut stats);
            assert_eq!((hosts.find(fixed), hosts.find(learnt)), (Some(places[0]), Some(place)));
        }
        assert_eq!(stats.learnt, 3);
    }

    /// Packets to nobody must not make one thread wait for another.
    #[test]
    fn who_is_unknown_is_asked_for_once_until_something_changes() {
        let all = Arc::<Learnt>::default();
        let mut hosts = Hosts { all: Some(Arc::clone(&all)), ..Hosts::new(&[], true) };
        let (nobody, another) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let place = loopback();
        assert_eq!(hosts.find(nobody), None);
        all.table.lock().unwrap().insert(nobody, place);
        assert_eq!(hosts.find(nobody), None);
        Hosts { all: Some(all), ..Hosts::new(&[], true) }.learn(another, place, &mut SocketStats::default());
        assert_eq!([nobody, another].map(|address| hosts.find(address)), [Some(place); 2]);
    }

    #[test]
    fn the_table_is_bounded_and_those_known_are_served() {
        let place = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut hosts = Hosts::new(&[], true);
        let mut stats = SocketStats::default();
        for number in 0..2 * MAX_LEARNT as u32 {
            hosts.learn(IpAddr::V4(number.into()), place(1), &mut stats);
        }
        assert_eq!((stats.learnt, stats.table_full), (MAX_LEARNT as u64, MAX_LEARNT as u64));
        hosts.learn(IpAddr::V4(7.into()), place(2), &mut stats);
        assert_eq!(hosts.find(IpAddr::V4(7.into())), Some(place(2)));
        assert_eq!(hosts.find(IpAddr::V4((MAX_LEARNT as u32).into())), None);
    }

    /// Drives the gateway as its worker does until `host` has so many packets. The kernel may have
    /// to look for a host again that it knew.
    fn until_heard(gateway: &mut Socket, host: &mut Socket, heard: &mut Vec<usize>, count: usize) {
        loop {
            gateway.flush();
            host.receive(9, &mut |packet| heard.push(packet.len()));
            if heard.len() >= count {
                return;
            }
            let arrivals = PollFd::from_borrowed_fd(host.fd(), PollFlags::IN);
            let ways = gateway.ways_fd().map(|ways| PollFd::from_borrowed_fd(ways, PollFlags::IN));
            let mut polled: Vec<_> = [arrivals].into_iter().chain(ways).collect();
            let ready = poll(&mut polled, Some(Duration::from_secs(5))).unwrap();
            assert!(ready > 0, "{} of {count} came: {:?}", heard.len(), gateway.stats());
        }
    }

    #[test]
    fn absent_hosts_hold_up_nobody_elses_packets() {
        const ROUNDS: u8 = 200;
        let site = Site::new(1500);
        site.gateway.ip("neigh del 10.0.0.1 dev g0");
        site.host.ip("addr add 10.0.0.2/24 dev v0");
        let at = |last| SocketAddr::from(([10, 0, 0, last], 7000));
        let bind = |ns: &Ns, listen, hosts: &[u8]| {
            let hosts = hosts.iter().map(|&last| (IpAddr::from([10, 0, 0, last]), at(last))).collect();
            // As much as an unprivileged one gets.
            let udp = BulkConfig { socket_buffer: 100_000, ..BulkConfig::default() };
            let config = SocketConfig { listen, hosts, learn: false, mtu: MAX_PACKET, udp };
            ns.run(|| Socket::bind(&config).unwrap())
        };
        let all: Vec<u8> = (1..254).collect();
        let mut gateway = bind(&site.gateway, at(254), &all);
        let mut host = bind(&site.host, SocketAddr::from(([0; 4], 7000)), &[]);
        let mut heard = Vec::new();
        for number in 0..ROUNDS {
            send(&mut gateway, &v4(9, 1, 200 + usize::from(number)));
            for absent in 0..100 {
                send(&mut gateway, &v4(8, 100 + absent, 1000));
            }
            gateway.flush();
            assert!(gateway.blocked_fd().is_none(), "{:?}", gateway.stats());
            if number == 0 {
                // Others than the known may wait for an answer, however long that takes.
                send(&mut gateway, &v4(7, 2, 100));
                until_heard(&mut gateway, &mut host, &mut heard, 2);
                heard.sort_unstable();
                assert_eq!(heard, [100, 200]);
                heard.clear();
            } else {
                until_heard(&mut gateway, &mut host, &mut heard, usize::from(number));
            }
        }
        assert!(heard.into_iter().eq((1..ROUNDS).map(|number| 200 + usize::from(number))));
        let stats = *gateway.stats();
        let waiting = 100 * u64::from(ROUNDS) - stats.wait_full - stats.no_neighbour;
        assert!(stats.wait_full > 0 && waiting <= 256, "{stats:?}");
        assert_eq!(gateway.udp_stats().blocked, 0);
    }

    #[test]
    fn what_is_no_ip_packet_is_not_sent_and_not_learnt_from() {
        let mut a = bind(vec![], true);
        for junk in [&b""[..], b"junk", &[0x45; 19], &[0x60; 39]] {
            send(&mut a, junk);
        }
        assert_eq!((a.stats().not_ip, a.flush()), (4, 0));
        let other = std::net::UdpSocket::bind(loopback()).unwrap();
        other.send_to(&[0x45; 19], a.local_addr().unwrap()).unwrap();
        assert_eq!(take(&mut a, 1), [vec![0x45; 19]]);
        assert_eq!(a.stats().learnt, 0);
    }
}
