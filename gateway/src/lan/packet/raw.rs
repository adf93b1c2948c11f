//! Transmission: whole IP packets through raw sockets, so that routing and neighbour resolution stay the kernel's.

use std::array;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

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
    /// Times the kernel had no room (EAGAIN, ENOBUFS); the rest was kept.
    pub blocked: u64,
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

/// A bounded queue of packets, and the two sockets they leave by. Both families share the queue, so packets leave in the order they
/// were committed.
pub(super) struct Sender {
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
    family: Family,
    destination: SocketAddrAny,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Sender {
    pub(super) fn new(interface: &str) -> io::Result<Self> {
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
        let mut sender = Self {
            v4,
            v6,
            slots: vec![0; SLOTS * MAX_PACKET].into_boxed_slice(),
            queue: VecDeque::with_capacity(SLOTS),
            head: 0,
            stats: TransmitStats::default(),
        };
        sender.bind(interface)?;
        Ok(sender)
    }

    /// Ties both sockets to the interface as it is now.
    pub(super) fn bind(&mut self, interface: &str) -> io::Result<()> {
        self.v4.bind_device(Some(interface.as_bytes()))?;
        self.v6.iter().try_for_each(|socket| socket.bind_device(Some(interface.as_bytes())))
    }

    pub(super) fn reserve(&mut self) -> Option<&mut [u8]> {
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
        match self.slots.get(start..start + len).and_then(inner) {
            Some(Inner::V4 { destination, .. }) => {
                let destination = SocketAddrV4::new(destination, 0).as_any();
                self.queue.push_back(Queued { start, len, family: Family::V4, destination });
            }
            Some(Inner::V6 { destination, .. }) if self.v6.is_some() => {
                let destination = SocketAddrV6::new(destination, 0, 0, 0).as_any();
                self.queue.push_back(Queued { start, len, family: Family::V6, destination });
            }
            _ => self.stats.not_ip += 1,
        }
    }

    /// Sends what is queued, as far as the kernel takes it; an error is the interface's, and then the queue is empty: what it held
    /// would be stale when the interface returns.
    pub(super) fn flush(&mut self) -> io::Result<usize> {
        let before = self.stats.sent;
        while let Some(result) = self.send_batch() {
            match result {
                Ok(0) | Err(Errno::AGAIN | Errno::NOBUFS) => {
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
        Some(self.socket(self.queue.front()?.family).as_fd())
    }

    pub(super) fn stats(&self) -> &TransmitStats {
        &self.stats
    }

    /// Offers the kernel the oldest packets of one family. An error concerns the very first of them. `None`: nothing to send.
    fn send_batch(&self) -> Option<rustix::io::Result<usize>> {
        let first = self.queue.front()?;
        let batch = self.queue.iter().take(BATCH).take_while(|queued| queued.family == first.family).count();
        let mut parts: [_; BATCH] = array::from_fn(|nth| {
            let queued = self.queue.get(nth).unwrap_or(first);
            let packet = self.slots.get(queued.start..queued.start + queued.len).unwrap_or_default();
            (&queued.destination, [IoSlice::new(packet)], SendAncillaryBuffer::default())
        });
        let mut messages = parts
            .each_mut()
            .map(|(destination, packet, control)| MMsgHdr::new_with_addr(destination, packet, control));
        Some(sendmmsg(self.socket(first.family), messages.get_mut(..batch)?, SendFlags::DONTWAIT))
    }

    fn count_sent(&mut self, count: usize) {
        for _ in 0..count {
            if let Some(sent) = self.pop() {
                self.stats.sent += 1;
                self.stats.sent_bytes += sent.len as u64;
            }
        }
    }

    fn drop_oldest(&mut self, error: Errno) {
        self.pop();
        *match error {
            Errno::MSGSIZE => &mut self.stats.too_big,
            Errno::HOSTUNREACH | Errno::NETUNREACH => &mut self.stats.unreachable,
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

    fn socket(&self, family: Family) -> &Socket {
        match (family, &self.v6) {
            (Family::V6, Some(v6)) => v6,
            _ => &self.v4,
        }
    }
}

fn raw(domain: Domain) -> io::Result<Socket> {
    // IPPROTO_RAW: such a socket receives nothing.
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
    socket.set_nonblocking(true)?;
    let _ = sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER)
        .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER));
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lan::netns::Site;
    use crate::lan::packet::{Packet, PacketConfig};
    use crate::lan::wake::{PollFd, PollFlags, poll};
    use std::time::Duration;

    #[test]
    fn what_the_kernel_has_no_room_for_is_kept_and_sent_later() {
        const PACKETS: u16 = 60;
        let site = Site::new(1500);
        let mut sender = site.gateway.run(|| Sender::new("g0")).unwrap();
        sender.v4.set_send_buffer_size(0).unwrap();
        let mut host = site.host.run(|| Packet::open(&PacketConfig::new("v0"))).unwrap();
        // For an address that nobody answers for yet: the kernel holds on to what it took, and soon takes no more.
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
}
