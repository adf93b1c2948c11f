//! The hosts of a site, in a name space of their own: a gateway in packet mode stands before them.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::{Domain, Protocol, Socket, Type};
use soft_nic::flood::{Flood, FloodKind};

const ROCE_PORT: u16 = 4791;
/// Packets sent from a raw socket of this protocol bring their own IP header (raw(7)).
const RAW: i32 = 255;
const TICK: Duration = Duration::from_millis(50);

/// Carries whole IP packets between the hosts' UDP sockets and their interface. Ends when dropped.
pub(crate) struct Hosts {
    /// Where hosts send to.
    pub(crate) address: SocketAddr,
    /// Sends a packet as if it were a host's.
    interface: UdpSocket,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Hosts {
    /// `hosts`: the address of each in its packets, and its socket.
    pub(crate) fn start(name_space: &str, hosts: Vec<(IpAddr, SocketAddr)>) -> Self {
        let [sender, receiver, closed] = sockets(name_space);
        let outside = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = outside.local_addr().unwrap();
        for socket in [&receiver, &outside] {
            socket.set_read_timeout(Some(TICK)).unwrap();
            set_socket_recv_buffer_size_force(socket, 8 << 20).unwrap();
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let (interface, back) = (sender.try_clone().unwrap(), outside.try_clone().unwrap());
        let out = move |packet: &[u8]| send(&sender, packet);
        let r#in = move |packet: &[u8]| {
            let host = hosts.iter().find(|(ip, _)| *ip == destination(packet) && is_roce(packet));
            if let Some((_, socket)) = host {
                // The loopback interface may be down, too.
                let _ = back.send_to(packet, socket);
            }
            // Without anybody at the port the kernel would answer by itself.
            let _ = &closed;
        };
        let threads = vec![carry(outside, &is_over, out), carry(receiver, &is_over, r#in)];
        Self { address, interface, is_over, threads }
    }

    /// Offers UD packets of one host to another, at a rate (bit/s) for so long.
    pub(crate) fn flood(&self, [from, to]: [IpAddr; 2], rate: f64, time: Duration) {
        let end = Instant::now() + time;
        let mut flood = Flood::new(FloodKind::Ud, rate, [from, to], Instant::now());
        let mut packet = vec![0; 1 << 13];
        while Instant::now() < end {
            while let Some(len) = flood.poll_transmit(Instant::now(), &mut packet) {
                send(&self.interface, &packet[..len]);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// WRITEs of one host to a queue pair that the other does not have. Nobody tries again.
    pub(crate) fn write_to_nobody(&self, ips: [IpAddr; 2]) {
        // As if each were due when it is asked for.
        let mut flood = Flood::new(FloodKind::RcAbsentQueuePair, f64::INFINITY, ips, Instant::now());
        let mut packet = vec![0; 1 << 13];
        for _ in 0..3 {
            let len = flood.poll_transmit(Instant::now(), &mut packet).unwrap();
            send(&self.interface, &packet[..len]);
        }
    }

    /// A packet whose IP header has options, of one host to another.
    pub(crate) fn send_with_options(&self, from: Ipv4Addr, to: Ipv4Addr) {
        const NO_OPERATIONS: [u8; 4] = [1; 4];
        let mut packet = vec![0x46, 0, 0, 64, 0, 1, 0x40, 0, 64, 17, 0, 0];
        packet.extend([from.octets(), to.octets(), NO_OPERATIONS].concat());
        packet.extend([0xc0, 0, (ROCE_PORT >> 8) as u8, ROCE_PORT as u8, 0, 40, 0, 0]);
        packet.resize(64, 0);
        send(&self.interface, &packet);
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Sockets: to send, to receive, and one that keeps RoCE's port from being closed.
fn sockets(name_space: &str) -> [UdpSocket; 3] {
    let inside = || {
        let name_space = File::open(format!("/run/netns/{name_space}")).unwrap();
        move_into_link_name_space(name_space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let raw = |protocol| Socket::new(Domain::IPV4, Type::RAW, Some(protocol)).unwrap();
        let [sender, receiver] = [Protocol::from(RAW), Protocol::UDP].map(raw).map(UdpSocket::from);
        [sender, receiver, UdpSocket::bind((Ipv4Addr::UNSPECIFIED, ROCE_PORT)).unwrap()]
    };
    std::thread::scope(|scope| scope.spawn(inside).join()).unwrap()
}

fn carry(from: UdpSocket, is_over: &Arc<AtomicBool>, to: impl Fn(&[u8]) + Send + 'static) -> JoinHandle<()> {
    let is_over = Arc::clone(is_over);
    std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while !is_over.load(Ordering::Relaxed) {
            match from.recv(&mut bytes) {
                Ok(len) => to(&bytes[..len]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => std::thread::sleep(TICK),
            }
        }
    })
}

/// The interface may be down: then the packet is lost.
fn send(socket: &UdpSocket, packet: &[u8]) {
    let _ = socket.send_to(packet, (destination(packet), 0));
}

fn destination(packet: &[u8]) -> IpAddr {
    let octets: [u8; 4] = packet.get(16..20).and_then(|octets| octets.try_into().ok()).unwrap_or_default();
    Ipv4Addr::from(octets).into()
}

/// Returns true for RoCE without IP options.
fn is_roce(packet: &[u8]) -> bool {
    packet.get(22..24) == Some(&ROCE_PORT.to_be_bytes()[..])
}
