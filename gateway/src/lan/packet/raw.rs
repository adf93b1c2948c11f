//! Transmission of whole IP packets. Routing and neighbour resolution are the kernel's, but not for
//! each packet: to a destination whose link-layer address it has told ([`Hops`]), packets go by
//! AF_PACKET; to others through raw sockets, which makes the kernel find out.

use std::array;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use super::hops::Hops;
use crate::lan::{Inner, MAX_PACKET, inner};

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
    /// Packets that the interface's queueing discipline dropped (ENOBUFS). The raw sockets do not
    /// tell of theirs.
    pub no_room: u64,
    /// Packets dropped for exceeding the interface's MTU (EMSGSIZE).
    pub too_big: u64,
    /// Packets dropped for want of a route (EHOSTUNREACH, ENETUNREACH).
    pub unreachable: u64,
    /// Packets dropped because the interface is down or gone.
    pub link_down: u64,
    /// Packets dropped because they are neither IPv4 nor, where the system has it, IPv6.
    pub not_ip: u64,
    /// Packets dropped for any other error, a firewall's EPERM for instance.
    pub failed: u64,
}

/// A bounded queue of packets, and the sockets they leave by. All share the queue, so packets leave
/// in the order they were committed.
pub(super) struct Sender {
    link: Socket,
    hops: Hops,
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
    pub(super) fn new(interface: &str, index: u32) -> io::Result<Self> {
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
            hops: Hops::new(index, now)?,
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
        self.stats.link_down += self.queue.len() as u64;
        self.queue.clear();
        self.hops.begin_anew(index, Instant::now());
        self.bind_raw(interface)
    }

    /// Forgets what is known of destinations: the interface is down or gone.
    pub(super) fn forget(&mut self) {
        self.hops.forget_all(Instant::now());
    }

    fn bind_raw(&self, interface: &str) -> io::Result<()> {
        self.v4.bind_device(Some(interface.as_bytes()))?;
        self.v6.iter().try_for_each(|socket| socket.bind_device(Some(interface.as_bytes())))
    }

    pub(super) fn reserve(&mut self) -> Option<&mut [u8]> {
        if self.queue.len() >= SLOTS {
            return None;
        }
        if self.queue.is_empty() {
            // Slots that were written a moment ago are still in the processor's cache.
            self.head = 0;
        }
        let start = self.slot(self.queue.len());
        self.slots.get_mut(start..start + MAX_PACKET)
    }

    pub(super) fn commit(&mut self, len: usize) {
        if self.queue.len() >= SLOTS {
            return;
        }
        if self.queue.is_empty() {
            self.look();
        }
        let start = self.slot(self.queue.len());
        let len = len.min(MAX_PACKET);
        let Some(packet) = self.slots.get_mut(start..start + len) else { return };
        let Some(inner) = inner(packet) else {
            self.stats.not_ip += 1;
            return;
        };
        let (way, destination) = match (self.hops.find(inner.destination(), self.now), inner) {
            (Some(hop), _) => {
                complete(packet);
                (Way::Link, hop.clone())
            }
            (None, Inner::V4 { destination, .. }) => (Way::V4, SocketAddrV4::new(destination, 0).as_any()),
            (None, Inner::V6 { destination, .. }) if self.v6.is_some() => {
                (Way::V6, SocketAddrV6::new(destination, 0, 0, 0).as_any())
            }
            _ => {
                self.stats.not_ip += 1;
                return;
            }
        };
        self.queue.push_back(Queued { start, len, way, destination });
    }

    /// Looks at the clock, and at what is new of destinations.
    fn look(&mut self) {
        self.now = Instant::now();
        self.hops.learn(self.now);
    }

    /// Sends what is queued, as far as the kernel takes it; an error is the interface's, and then
    /// the queue is empty: what it held would be stale when the interface returns.
    pub(super) fn flush(&mut self) -> io::Result<usize> {
        if !self.queue.is_empty() {
            self.look();
        }
        let before = self.stats.sent;
        while let Some(result) = self.send_batch() {
            match result {
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

    pub(super) fn backlog(&self) -> usize {
        self.queue.len()
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
        (self.head + nth) % SLOTS * MAX_PACKET
    }

    fn socket(&self, way: Way) -> &Socket {
        match (way, &self.v6) {
            (Way::Link, _) => &self.link,
            (Way::V6, Some(v6)) => v6,
            _ => &self.v4,
        }
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

    #[test]
    fn what_the_kernel_has_no_room_for_is_kept_and_sent_later() {
        const PACKETS: u16 = 60;
        let site = Site::new(1500);
        let open = || {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            Sender::new("g0", name_to_index(&socket, "g0").unwrap()).unwrap()
        };
        let mut sender = site.gateway.run(open);
        sender.v4.set_send_buffer_size(0).unwrap();
        let mut host = site.host.run(|| Packet::open(&PacketConfig::new("v0"))).unwrap();
        // For an address that nobody answers for yet: the kernel holds on to what it took, and soon
        // takes no more.
        let mut packet = [0; 1000];
        packet[..20]
            .copy_from_slice(&[0x45, 0, 3, 232, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 1, 1, 10, 0, 0, 77]);
        packet[20..26].copy_from_slice(&[0xc0, 0, 0x12, 0xb7, 3, 212]);
        for number in 0..PACKETS {
            packet[28..30].copy_from_slice(&number.to_be_bytes());
            sender.reserve().unwrap()[..1000].copy_from_slice(&packet);
            sender.commit(1000);
        }
        let sent = sender.flush().unwrap();
        assert!(sent < usize::from(PACKETS) && sender.stats.blocked == 1, "{:?}", sender.stats);
        assert_eq!(sender.backlog(), usize::from(PACKETS) - sent);

        site.gateway.ip("neigh replace 10.0.0.77 lladdr 02:00:00:00:00:01 dev g0");
        while let Some(fd) = sender.blocked_fd() {
            assert!(
                poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], Some(Duration::from_secs(5)))
                    .unwrap()
                    > 0
            );
            sender.flush().unwrap();
        }
        assert_eq!(
            (sender.stats.sent, sender.stats.sent_bytes),
            (u64::from(PACKETS), 1000 * u64::from(PACKETS))
        );
        let mut numbers = Vec::new();
        while numbers.len() < usize::from(PACKETS) {
            assert!(
                poll(&mut [PollFd::from_borrowed_fd(host.fd(), PollFlags::IN)], Some(Duration::from_secs(5)))
                    .unwrap()
                    > 0
            );
            host.receive(100, &mut |packet| {
                numbers.push(u16::from_be_bytes([packet[28], packet[29]]));
            })
            .unwrap();
        }
        assert!(numbers.into_iter().eq(0..PACKETS));
    }

    #[test]
    fn what_the_interface_drops_holds_up_nobody_else() {
        let site = Site::new(1500);
        // It has no room for a longer packet, ever.
        site.gateway.tc("qdisc add dev g0 root bfifo limit 600");
        let mut host = site.host.run(|| Packet::open(&PacketConfig::new("v0"))).unwrap();
        let open = || {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            Sender::new("g0", name_to_index(&socket, "g0").unwrap()).unwrap()
        };
        let mut sender = site.gateway.run(open);
        let packet = |length: usize, number: u8| {
            let source = IpAddr::from([10, 0, 1, 1]);
            tests::datagram(source, [10, 0, 0, 1].into(), &vec![number; length])
        };
        let commit = |sender: &mut Sender, bytes: &[u8]| {
            sender.reserve().unwrap()[..bytes.len()].copy_from_slice(bytes);
            sender.commit(bytes.len());
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
