//! Transmission of whole IP packets. Routing and neighbour resolution are the kernel's, but not for
//! each packet: to a destination whose link-layer address it has told ([`Hops`]), packets go by
//! AF_PACKET.
//! While the kernel looks for one, its packets wait here ([`Waiting`]) and not in the kernel, whose
//! queues for absent neighbours count against the socket that fills them.
//! Raw sockets send what only the kernel can: to groups, and through tunnels.
//!
//! Packets for AF_PACKET wait for nothing but the interface: a raw socket that is full drops.

use std::array;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use super::hops::{Hop, Hops};
use super::resolve::By;
use super::waiting::Waiting;
use crate::lan::{MAX_PACKET, inner};

/// Packets kept at most.
const SLOTS: usize = 1024;
/// Packets handed to the kernel by one system call.
const BATCH: usize = 32;
/// Bytes asked of the kernel for each socket's send buffer.
const SEND_BUFFER: usize = 8 * 1024 * 1024;

/// Counters of transmission.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransmitStats {
    /// Packets the kernel took.
    pub sent: u64,
    /// Their bytes, from the IP header on.
    pub sent_bytes: u64,
    /// Packets taken for which the kernel needed not look up a route.
    pub direct: u64,
    /// Times the kernel had no room (EAGAIN); the rest was kept.
    pub blocked: u64,
    /// Packets that the interface's queueing discipline dropped (ENOBUFS), or for which a raw
    /// socket had no room. Raw sockets do not tell of what the queueing discipline drops.
    pub no_room: u64,
    /// Packets dropped for exceeding the interface's MTU (EMSGSIZE).
    pub too_big: u64,
    /// Packets dropped for want of a route (EHOSTUNREACH, ENETUNREACH).
    pub unreachable: u64,
    /// Packets dropped because the interface is down or gone.
    pub link_down: u64,
    /// Packets dropped because they are neither IPv4 nor, where the system has it, IPv6.
    pub not_ip: u64,
    /// Packets dropped because nobody answered for the next hop's link-layer address.
    pub no_neighbour: u64,
    /// Packets dropped because too many waited for such an answer, in all or of their source.
    pub wait_full: u64,
    /// Packets dropped for any other error, a firewall's EPERM for instance.
    pub failed: u64,
}

/// A bounded queue of packets, and the sockets they leave by. All share the queue, so packets for a
/// destination leave in the order they were committed.
pub(super) struct Sender {
    link: Socket,
    hops: Hops,
    /// Packets for destinations that are not known.
    waiting: Waiting,
    /// When packets were last looked at.
    now: Instant,
    v4: Socket,
    /// `None` on a system without IPv6.
    v6: Option<Socket>,
    /// The packets, each in a slot of [`MAX_PACKET`] bytes.
    slots: Box<[u8]>,
    queue: VecDeque<Queued>,
    /// The oldest packet's slot; the others follow, in a ring.
    head: usize,
    stats: TransmitStats,
}

struct Queued {
    /// Where it stands in `slots`.
    start: usize,
    len: usize,
    way: Way,
    destination: SocketAddrAny,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By AF_PACKET, with the destination's link-layer address.
    Link,
    V4,
    V6,
}

impl Sender {
    /// `threads`: as many have a sender each.
    pub(super) fn new(interface: &str, index: u32, threads: u8) -> io::Result<Self> {
        // Protocol 0: such a socket receives nothing.
        let link = prepare(Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(0)))?)?;
        let now = Instant::now();
        let v4 = raw(Domain::IPV4)?;
        v4.set_header_included_v4(true)?;
        // What is sent to a group that this host is a member of would come back to it.
        v4.set_multicast_loop_v4(false)?;
        let v6 = match raw(Domain::IPV6) {
            Ok(socket) => {
                socket.set_header_included_v6(true)?;
                socket.set_multicast_loop_v6(false)?;
                Some(socket)
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) => None,
            Err(error) => return Err(error),
        };
        let sender = Self {
            link,
            hops: Hops::new(By::Interface(index), threads, now)?,
            waiting: Waiting::new(),
            now,
            v4,
            v6,
            slots: vec![0; SLOTS * MAX_PACKET].into_boxed_slice(),
            queue: VecDeque::with_capacity(SLOTS),
            head: 0,
            stats: TransmitStats::default(),
        };
        sender.bind_raw(interface)?;
        Ok(sender)
    }

    /// Ties all sockets to the interface as it is now.
    pub(super) fn bind(&mut self, interface: &str, index: u32) -> io::Result<()> {
        // What waits is for the interface of before.
        self.stats.link_down += self.queue.len() as u64 + self.waiting.clear();
        self.queue.clear();
        self.hops.begin_anew(index);
        self.bind_raw(interface)
    }

    /// Forgets what is known of destinations: the interface is down or gone.
    pub(super) fn forget(&mut self) {
        self.hops.forget_all();
    }

    fn bind_raw(&self, interface: &str) -> io::Result<()> {
        self.v4.bind_device(Some(interface.as_bytes()))?;
        self.v6.iter().try_for_each(|socket| socket.bind_device(Some(interface.as_bytes())))
    }

    pub(super) fn reserve(&mut self) -> Option<&mut [u8]> {
        if self.queue.is_empty() {
            // Slots that were written a moment ago are still in the processor's cache.
            self.head = 0;
            self.look();
        }
        if self.queue.len() >= SLOTS {
            return None;
        }
        let start = self.slot(self.queue.len());
        self.slots.get_mut(start..start + MAX_PACKET)
    }

    pub(super) fn commit(&mut self, len: usize) {
        if self.queue.len() >= SLOTS {
            return;
        }
        let start = self.slot(self.queue.len());
        let len = len.min(MAX_PACKET);
        let Some(packet) = self.slots.get_mut(start..start + len) else { return };
        let Some(inner) = inner(packet) else {
            self.stats.not_ip += 1;
            return;
        };
        let (source, destination) = (inner.source(), inner.destination());
        let way = match self.hops.find(destination, self.now) {
            Some(hop) if !self.waiting.holds(source, destination) => way(hop, destination, self.v6.is_some()),
            _ => {
                self.stats.wait_full += self.waiting.push(source, destination, packet, self.now);
                return;
            }
        };
        let Some((way, destination)) = way else {
            self.stats.not_ip += 1;
            return;
        };
        if way == Way::Link {
            complete(packet);
        }
        self.queue.push_back(Queued { start, len, way, destination });
    }

    /// Looks at the clock and at what is new of destinations, and queues the packets that have
    /// waited for it. Only between a commit and the next reservation.
    fn look(&mut self) {
        let now = Instant::now();
        let Self { hops, waiting, stats, queue, slots, head, v6, .. } = self;
        self.now = now;
        hops.learn(now, &mut |destination, hop| stats.no_neighbour += waiting.answer(destination, hop));
        if waiting.is_empty() {
            return;
        }
        stats.no_neighbour += waiting.expire(now);
        waiting.ask(|destination| hops.search(destination));
        waiting.release(&mut |hop, destination, packet| {
            if queue.len() >= SLOTS {
                return false;
            }
            let start = slot(*head, queue.len());
            let (Some((way, destination)), Some(room)) =
                (way(hop, destination, v6.is_some()), slots.get_mut(start..start + packet.len()))
            else {
                stats.not_ip += 1;
                return true;
            };
            room.copy_from_slice(packet);
            if way == Way::Link {
                complete(room);
            }
            queue.push_back(Queued { start, len: packet.len(), way, destination });
            true
        });
    }

    /// Sends what is queued, as far as the kernel takes it; an error is the interface's, and then
    /// the queue is empty: what it held would be stale when the interface returns.
    pub(super) fn flush(&mut self) -> io::Result<usize> {
        if !self.queue.is_empty() || !self.waiting.is_empty() {
            self.look();
        }
        let before = self.stats.sent;
        while let Some(result) = self.send_batch() {
            match result {
                // A raw socket may wait for one destination alone.
                Ok(0) | Err(Errno::AGAIN) if !self.goes_by_link() => self.drop_oldest(Errno::NOBUFS),
                Ok(0) | Err(Errno::AGAIN) => {
                    self.stats.blocked += 1;
                    break;
                }
                Ok(sent) => self.count_sent(sent),
                Err(Errno::INTR) => {}
                Err(error @ (Errno::NETDOWN | Errno::NODEV | Errno::NXIO)) => {
                    self.stats.link_down += self.queue.len() as u64;
                    self.queue.clear();
                    return Err(error.into());
                }
                Err(error) => self.drop_oldest(error),
            }
        }
        Ok((self.stats.sent - before) as usize)
    }

    /// Packets that wait for the interface, or for the way to their destination.
    pub(super) fn backlog(&self) -> usize {
        self.queue.len() + self.waiting.packets()
    }

    /// To be polled for reading while packets wait for the way to their destination.
    pub(super) fn ways_fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.waiting.is_empty()).then(|| self.hops.fd())
    }

    fn goes_by_link(&self) -> bool {
        self.queue.front().is_some_and(|oldest| oldest.way == Way::Link)
    }

    /// The socket that the oldest packet waits for.
    pub(super) fn blocked_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket(self.queue.front()?.way).as_fd())
    }

    pub(super) fn stats(&self) -> &TransmitStats {
        &self.stats
    }

    /// Offers the kernel the oldest packets of one way. An error concerns the very first of them.
    /// `None`: nothing to send.
    fn send_batch(&self) -> Option<rustix::io::Result<usize>> {
        let first = self.queue.front()?;
        let batch = self.queue.iter().take(BATCH).take_while(|queued| queued.way == first.way).count();
        let mut parts: [_; BATCH] = array::from_fn(|nth| {
            let queued = self.queue.get(nth).unwrap_or(first);
            let packet = self.slots.get(queued.start..queued.start + queued.len).unwrap_or_default();
            (&queued.destination, [IoSlice::new(packet)], SendAncillaryBuffer::default())
        });
        let mut messages = parts
            .each_mut()
            .map(|(destination, packet, control)| MMsgHdr::new_with_addr(destination, packet, control));
        Some(sendmmsg(self.socket(first.way), messages.get_mut(..batch)?, SendFlags::DONTWAIT))
    }

    fn count_sent(&mut self, count: usize) {
        for _ in 0..count {
            if let Some(sent) = self.pop() {
                self.stats.sent += 1;
                self.stats.direct += u64::from(sent.way == Way::Link);
                self.stats.sent_bytes += sent.len as u64;
            }
        }
    }

    fn drop_oldest(&mut self, error: Errno) {
        self.pop();
        *match error {
            Errno::MSGSIZE => &mut self.stats.too_big,
            Errno::HOSTUNREACH | Errno::NETUNREACH => &mut self.stats.unreachable,
            // Waiting for room would let one host's share of the queue hold up all others, and what
            // a filter drops has none ever.
            Errno::NOBUFS => &mut self.stats.no_room,
            _ => &mut self.stats.failed,
        } += 1;
    }

    fn pop(&mut self) -> Option<Queued> {
        let oldest = self.queue.pop_front()?;
        self.head = (self.head + 1) % SLOTS;
        Some(oldest)
    }

    /// Where the packet after the `nth` oldest ones is stored.
    fn slot(&self, nth: usize) -> usize {
        slot(self.head, nth)
    }

    fn socket(&self, way: Way) -> &Socket {
        match (way, &self.v6) {
            (Way::Link, _) => &self.link,
            (Way::V6, Some(v6)) => v6,
            _ => &self.v4,
        }
    }
}

fn slot(head: usize, nth: usize) -> usize {
    (head + nth) % SLOTS * MAX_PACKET
}

/// How a packet goes by a hop; `None` for IPv6 where the system has none.
fn way(hop: &Hop, destination: IpAddr, has_v6: bool) -> Option<(Way, SocketAddrAny)> {
    match (hop, destination) {
        (Hop::Link(address), _) => Some((Way::Link, address.clone())),
        (Hop::Kernel | Hop::Known, IpAddr::V4(destination)) => {
            Some((Way::V4, SocketAddrV4::new(destination, 0).as_any()))
        }
        (Hop::Kernel | Hop::Known, IpAddr::V6(destination)) if has_v6 => {
            Some((Way::V6, SocketAddrV6::new(destination, 0, 0, 0).as_any()))
        }
        (Hop::Kernel | Hop::Known, IpAddr::V6(_)) => None,
    }
}

fn raw(domain: Domain) -> io::Result<Socket> {
    // IPPROTO_RAW: such a socket receives nothing.
    prepare(Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?)
}

fn prepare(socket: Socket) -> io::Result<Socket> {
    socket.set_nonblocking(true)?;
    let _ = sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER)
        .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER));
    Ok(socket)
}

/// Fills in an IPv4 header's total length and checksum, as the kernel does for raw sockets.
fn complete(packet: &mut [u8]) {
    let length = packet.len() as u16;
    let Some(&first) = packet.first().filter(|first| *first >> 4 == 4) else { return };
    let Some(header) = packet.get_mut(..usize::from(first & 15) * 4) else { return };
    let mut put = |at: usize, value: u16| {
        if let Some(field) = header.get_mut(at..at + 2) {
            field.copy_from_slice(&value.to_be_bytes());
        }
    };
    put(2, length);
    put(10, 0);
    let (words, _) = header.as_chunks::<2>();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    // At most thirty words: two carries are all.
    let sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    if let Some(field) = header.get_mut(10..12) {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lan::netns::Site;
    use crate::lan::packet::{Packet, PacketConfig, tests};
    use crate::lan::wake::{PollFd, PollFlags, poll};
    use rustix::net::netdevice::name_to_index;
    use std::net::IpAddr;
    use std::time::Duration;

    fn sender(site: &Site) -> Sender {
        let open = || {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            Sender::new("g0", name_to_index(&socket, "g0").unwrap(), 1).unwrap()
        };
        site.gateway.run(open)
    }

    fn commit(sender: &mut Sender, bytes: &[u8]) {
        sender.reserve().unwrap()[..bytes.len()].copy_from_slice(bytes);
        sender.commit(bytes.len());
    }

    #[test]
    fn what_the_kernel_has_no_room_for_is_kept_and_sent_later() {
        const PACKETS: u16 = 60;
        let site = Site::new(1500);
        let mut sender = sender(&site);
        let mut host = site.host.run(|| Packet::open(&PacketConfig::new("v0"))).unwrap();
        let packet = |number: u16| {
            let mut payload = [0; 1000];
            payload[..2].copy_from_slice(&number.to_be_bytes());
            tests::datagram(IpAddr::from([10, 0, 1, 1]), [10, 0, 0, 1].into(), &payload)
        };
        while sender.stats.direct == 0 {
            commit(&mut sender, &packet(PACKETS));
            sender.flush().unwrap();
        }
        // The interface takes its time, and the kernel no more than a few packets meanwhile.
        site.gateway.tc("qdisc add dev g0 root tbf rate 4mbit burst 3kb limit 1mb");
        sender.link.set_send_buffer_size(0).unwrap();
        let before = sender.stats;
        (0..PACKETS).for_each(|number| commit(&mut sender, &packet(number)));
        let sent = sender.flush().unwrap();
        assert!(sent < usize::from(PACKETS) && sender.stats.blocked == 1, "{:?}", sender.stats);
        assert_eq!(sender.backlog(), usize::from(PACKETS) - sent);

        while let Some(fd) = sender.blocked_fd() {
            assert!(
                poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], Some(Duration::from_secs(5)))
                    .unwrap()
                    > 0
            );
            sender.flush().unwrap();
        }
        assert_eq!(
            (sender.stats.sent - before.sent, sender.stats.sent_bytes - before.sent_bytes),
            (u64::from(PACKETS), 1028 * u64::from(PACKETS))
        );
        let mut numbers = Vec::new();
        while numbers.len() < usize::from(PACKETS) {
            let packets = tests::take(&mut host, 1);
            numbers.extend(packets.iter().map(|packet| u16::from_be_bytes([packet[28], packet[29]])));
            numbers.retain(|number| *number < PACKETS);
        }
        assert!(numbers.into_iter().eq(0..PACKETS));
    }

    /// Packets that only the kernel can send may wait for one tunnel or group alone.
    #[test]
    fn a_raw_socket_that_is_full_holds_up_nobody_else() {
        let site = Site::new(1500);
        let mut sender = sender(&site);
        let packet = |destination: [u8; 4]| {
            tests::datagram(IpAddr::from([10, 0, 1, 1]), destination.into(), &[7; 1000])
        };
        let (host, group) = ([10, 0, 0, 1], [239, 1, 1, 1]);
        while sender.stats.direct == 0 || sender.stats.direct == sender.stats.sent {
            commit(&mut sender, &packet(host));
            commit(&mut sender, &packet(group));
            sender.flush().unwrap();
        }
        site.gateway.tc("qdisc add dev g0 root tbf rate 4mbit burst 3kb limit 1mb");
        sender.v4.set_send_buffer_size(0).unwrap();
        let before = sender.stats;
        for _ in 0..20 {
            commit(&mut sender, &packet(group));
        }
        commit(&mut sender, &packet(host));
        sender.flush().unwrap();
        assert_eq!((sender.backlog(), sender.stats.direct), (0, before.direct + 1), "{:?}", sender.stats);
        assert!(sender.stats.no_room > before.no_room && sender.stats.blocked == 0, "{:?}", sender.stats);
    }

    #[test]
    fn what_the_interface_drops_holds_up_nobody_else() {
        let site = Site::new(1500);
        // It has no room for a longer packet, ever.
        site.gateway.tc("qdisc add dev g0 root bfifo limit 600");
        let mut host = site.host.run(|| Packet::open(&PacketConfig::new("v0"))).unwrap();
        let mut sender = sender(&site);
        let packet = |length: usize, number: u8| {
            let source = IpAddr::from([10, 0, 1, 1]);
            tests::datagram(source, [10, 0, 0, 1].into(), &vec![number; length])
        };
        // Until the way to the host is known.
        while sender.stats.direct == 0 {
            commit(&mut sender, &packet(50, 0));
            sender.flush().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        for (length, number) in [(1000, 1), (50, 2), (1000, 3), (50, 4)] {
            commit(&mut sender, &packet(length, number));
        }
        sender.flush().unwrap();
        assert_eq!(
            (sender.backlog(), sender.stats.blocked, sender.stats.no_room),
            (0, 0, 2),
            "{:?}",
            sender.stats
        );
        let mut numbers = Vec::new();
        while numbers.last() != Some(&4) {
            numbers.extend(tests::take(&mut host, 1).iter().map(|packet| packet[28]));
        }
        numbers.retain(|number| *number > 0);
        assert_eq!(numbers, [2, 4]);
    }
}
