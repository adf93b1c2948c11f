//! Ports that were free a moment ago.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// A pair of neighbouring ports is found at the first or second try, unless nearly all are taken.
const TRIES: usize = 64;

/// What both gateways and the link between them listen on.
pub(super) struct Ports {
    /// Site A's, then site B's.
    pub(super) sites: [SitePorts; 2],
}

/// One site's.
#[derive(Clone, Copy, Debug)]
pub(super) struct SitePorts {
    /// The gateway's QUIC port; bulk data uses the next one up.
    pub(super) wan: SocketAddr,
    /// The link's end at this site, which the gateway takes for its peer; the next port up belongs to it too.
    pub(super) relay: SocketAddr,
    /// Where the RDMA hosts send to.
    pub(super) lan: SocketAddr,
    /// The admin listener (TCP).
    pub(super) admin: SocketAddr,
}

impl Ports {
    /// Finds them all. They are held until all are found, so that none is found twice, and then let go.
    pub(super) fn find() -> io::Result<Self> {
        let mut held = Held::default();
        let mut site = || {
            Ok::<_, io::Error>(SitePorts {
                wan: held.pair()?,
                relay: held.pair()?,
                lan: held.udp()?,
                admin: held.tcp()?,
            })
        };
        Ok(Self { sites: [site()?, site()?] })
    }
}

#[derive(Default)]
struct Held {
    udp: Vec<UdpSocket>,
    tcp: Vec<TcpListener>,
}

impl Held {
    fn udp(&mut self) -> io::Result<SocketAddr> {
        let socket = UdpSocket::bind((LOOPBACK, 0))?;
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

    /// The lower one of two neighbouring ports.
    fn pair(&mut self) -> io::Result<SocketAddr> {
        let mut last = io::ErrorKind::AddrInUse.into();
        for _ in 0..TRIES {
            let lower = self.udp()?;
            let Some(next) = lower.port().checked_add(1) else { continue };
            match UdpSocket::bind((LOOPBACK, next)) {
                Ok(upper) => {
                    self.udp.push(upper);
                    return Ok(lower);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}
