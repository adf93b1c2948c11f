//! Ports that were free a moment ago.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Neighbouring ports are found at the first or second try, unless nearly all are taken.
const TRIES: usize = 64;

/// The ports that both gateways and the link between them listen on.
pub(super) struct Ports {
    /// Site A's, then site B's.
    pub(super) sites: [SitePorts; 2],
}

/// One site's.
#[derive(Clone, Copy, Debug)]
pub(super) struct SitePorts {
    /// The gateway's QUIC port; bulk data uses the next one up, and one more for each further lane.
    pub(super) wan: SocketAddr,
    /// The link's end at this site, which the gateway takes for its peer; the next port up belongs
    /// to it too.
    pub(super) relay: SocketAddr,
    /// Where the RDMA hosts send to.
    pub(super) lan: SocketAddr,
    /// The admin listener (TCP).
    pub(super) admin: SocketAddr,
}

impl Ports {
    /// Finds them all, for gateways of so many lanes with these addresses of their WANs. They are
    /// held until all are found, so that none is found twice, and then let go.
    pub(super) fn find(lanes: u8, [a, b]: [Ipv4Addr; 2]) -> io::Result<Self> {
        let mut held = Held::default();
        let mut site = |wan| {
            Ok::<_, io::Error>(SitePorts {
                wan: held.row(wan, u16::from(lanes) + 1)?,
                relay: held.row(LOOPBACK, 2)?,
                lan: held.udp(LOOPBACK)?,
                admin: held.tcp()?,
            })
        };
        Ok(Self { sites: [site(a)?, site(b)?] })
    }
}

#[derive(Default)]
struct Held {
    udp: Vec<UdpSocket>,
    tcp: Vec<TcpListener>,
}

impl Held {
    fn udp(&mut self, ip: Ipv4Addr) -> io::Result<SocketAddr> {
        let socket = UdpSocket::bind((ip, 0))?;
        let address = socket.local_addr()?;
        self.udp.push(socket);
        Ok(address)
    }

    fn tcp(&mut self) -> io::Result<SocketAddr> {
        let socket = TcpListener::bind((LOOPBACK, 0))?;
        let address = socket.local_addr()?;
        self.tcp.push(socket);
        Ok(address)
    }

    /// The lowest of so many neighbouring ports.
    fn row(&mut self, ip: Ipv4Addr, count: u16) -> io::Result<SocketAddr> {
        let mut last = io::ErrorKind::AddrInUse.into();
        for _ in 0..TRIES {
            let lowest = self.udp(ip)?;
            let next = (1..count).map(|above| {
                let port = lowest.port().checked_add(above).ok_or(io::ErrorKind::AddrInUse)?;
                UdpSocket::bind((ip, port))
            });
            match next.collect::<io::Result<Vec<_>>>() {
                Ok(further) => {
                    self.udp.extend(further);
                    return Ok(lowest);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}
