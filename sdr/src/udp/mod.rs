//! The back end on UDP: datagrams sealed by [`session`], sent and received in batches, paced.
//!
//! A queue pair has a socket for each channel, and one thread that drives its engine.
//! Both sides share a secret of 32 bytes. Each connection derives keys of its own from it:
//!
//! ```text
//! root     = HKDF-Extract(salt = "longhaul/1 sdr", secret)
//! exporter = HKDF-Expand(root, lower nonce | higher nonce, 32)
//! ```
//!
//! The nonces stand in the blobs. The side with the lower one is the dialer of the key schedule.
//!
//! ```no_run
//! use sdr::{Buffer, QpAttr};
//! use sdr::udp::Unconnected;
//!
//! # fn exchange(ours: &[u8]) -> Vec<u8> { ours.to_vec() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let unconnected = Unconnected::bind(QpAttr::default(), "10.0.0.1".parse()?)?;
//! // Out of band, over TCP for instance.
//! let peer = exchange(&unconnected.blob());
//! let pair = unconnected.connect(&peer, &[7; 32])?;
//! if let Some(mut receive) = pair.receive {
//!     let handle = receive.post(Buffer::zeroed(1 << 20))?;
//!     while !handle.bitmap().all() && !handle.has_ended() {
//!         std::thread::yield_now();
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod details;
mod drive;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use rustix::net::sockopt;
use session::schedule::{EXPORTER_BYTES, KeyError, Role, Secrets};
use session::seal::{most_forgeries, packets_per_epoch};
use session::{Cipher, OVERHEAD, Opener, Sealer};

use self::details::Details;
pub use self::drive::UdpStats;
#[cfg(feature = "verbs")]
pub(crate) use self::drive::timespec;
use self::drive::{Channel, Driver};
use crate::blob::{BLOB_BYTES, BackEnd, Blob, Mismatch};
use crate::engine::{Connected, connect, max_datagram};
use crate::link::Alarm;
use crate::shape::{AttrError, QpAttr};

/// Bytes of the secret that two sides share.
pub const SECRET_BYTES: usize = 32;

const SALT: &[u8] = b"longhaul/1 sdr";
const CIPHER: Cipher = Cipher::Aes128Gcm;
/// Bytes of the headers of IPv6 and UDP.
const IP_UDP: usize = 48;
/// By how much a header of IPv4 is shorter.
const IPV4_SHORTER: usize = 20;

/// Returns the instant of now: the back end is where the core's time comes from.
#[expect(clippy::disallowed_methods, reason = "a back end hands the core its time")]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Reasons why a queue pair was not made or not connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
    /// The attributes make no queue pair.
    #[error(transparent)]
    Attributes(#[from] AttrError),
    /// The peer's blob does not fit.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The blob is this side's own: it was reflected.
    #[error("the peer's blob is this side's own")]
    Reflected,
    /// The address is not one that a peer could send to.
    #[error("{0} is no address that a peer could send to")]
    Address(IpAddr),
    /// Not a port for each channel.
    #[error("{given} ports, and there are {wanted} channels")]
    Ports {
        /// Channels of the queue pair.
        wanted: usize,
        /// Ports that were named.
        given: usize,
    },
    /// A full packet is larger than what the way to the peer carries. Nothing is fragmented.
    #[error(
        "a packet has {needed} bytes with its headers, and the way to the peer carries {mtu}: \
             take a smaller MTU"
    )]
    PathMtu {
        /// Bytes of the largest packet, with all headers.
        needed: usize,
        /// MTU of the way to the peer, as far as the system knows.
        mtu: usize,
    },
    /// Sockets, random numbers or the thread.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Keys could not be derived.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// A queue pair that is not connected yet.
pub struct Unconnected {
    blob: Blob,
    ours: Details,
    channels: Vec<Channel>,
}

impl Unconnected {
    /// Binds a socket for each channel at `address`, on ports that are free.
    ///
    /// # Errors
    /// [`UdpError`]; the address has to be one that the peer can send to.
    pub fn bind(attr: QpAttr, address: IpAddr) -> Result<Self, UdpError> {
        crate::shape::Shape::new(&attr)?;
        if address.is_unspecified() || address.is_multicast() {
            return Err(UdpError::Address(address));
        }
        let channels: Vec<Channel> = (0..attr.channels)
            .map(|_| Channel::bind(SocketAddr::new(address, 0)))
            .collect::<io::Result<_>>()?;
        let ports = channels.iter().map(Channel::port).collect::<io::Result<_>>()?;
        let ours = Details::new(address, ports)?;
        let blob = Blob::new(attr, BackEnd::Udp, ours.encode())?;
        Ok(Unconnected { blob, ours, channels })
    }

    /// Returns what the peer needs to connect.
    #[must_use]
    pub fn blob(&self) -> [u8; BLOB_BYTES] {
        self.blob.encode()
    }

    /// Returns the ports that this side receives at, by channel.
    #[must_use]
    pub fn ports(&self) -> &[u16] {
        &self.ours.ports
    }

    /// Returns a blob for a peer that reaches this side by way of `address` and `ports`, one for
    /// each channel: through a relay, or a router that maps ports.
    ///
    /// # Errors
    /// [`UdpError::Ports`] if they are not as many as the channels.
    pub fn blob_by_way_of(&self, address: IpAddr, ports: &[u16]) -> Result<[u8; BLOB_BYTES], UdpError> {
        let (wanted, given) = (self.channels.len(), ports.len());
        if wanted != given {
            return Err(UdpError::Ports { wanted, given });
        }
        let details = self.ours.at(address, ports).encode();
        Ok(Blob { details, ..self.blob.clone() }.encode())
    }

    /// Connects to the peer whose blob this is, and starts the thread.
    ///
    /// # Errors
    /// [`UdpError`] names what does not fit.
    pub fn connect(self, peer: &[u8], secret: &[u8; SECRET_BYTES]) -> Result<QueuePair, UdpError> {
        let peer = Blob::decode(peer)?;
        let theirs = Details::decode(&peer.details).ok_or(Mismatch::BackEnd)?;
        if theirs.nonce == self.ours.nonce {
            return Err(UdpError::Reflected);
        }
        let size = max_datagram(&self.blob.attr) + OVERHEAD;
        let start = now();
        let Connected { send, receive, control, mut engine, agreed } =
            connect(&self.blob, &peer, OVERHEAD + IP_UDP, start)?;
        let peers: Vec<SocketAddr> =
            theirs.ports.iter().map(|port| SocketAddr::new(theirs.address, *port)).collect();
        let is_nowhere = theirs.address.is_unspecified()
            || theirs.address.is_multicast()
            || theirs.address == IpAddr::V4(Ipv4Addr::BROADCAST)
            || theirs.ports.contains(&0);
        let is_v4 = self.ours.address.is_ipv4();
        if is_nowhere || peers.len() != self.channels.len() || theirs.address.is_ipv4() != is_v4 {
            return Err(Mismatch::BackEnd.into());
        }
        let needed = size + IP_UDP - if theirs.address.is_ipv4() { IPV4_SHORTER } else { 0 };
        for peer in &peers {
            if let Some(mtu) = path_mtu(self.ours.address, *peer).filter(|mtu| *mtu < needed) {
                return Err(UdpError::PathMtu { needed, mtu });
            }
        }
        let secrets = secrets(secret, &self.ours, &theirs)?;
        let datagram = u16::try_from(size).unwrap_or(u16::MAX);
        let alarm = Arc::new(Alarm::new()?);
        let waker = Waker::from(Arc::clone(&alarm));
        let sealer = Sealer::new(theirs.session, secrets.send, packets_per_epoch(datagram))?;
        let opener = Opener::new(self.ours.session, secrets.receive, self.blob.attr.channels)?
            .within(most_forgeries(CIPHER), waker.clone());
        engine.set_waker(waker);
        let stats = Arc::new(UdpStats::default());
        let driver = Driver::new(
            engine,
            self.channels,
            peers,
            (sealer, opener),
            (Arc::clone(&alarm), Arc::clone(&stats)),
            size,
        );
        let thread = std::thread::Builder::new().name("sdr".into()).spawn(|| driver.run())?;
        let link = Link::new(alarm, stats, thread);
        Ok(QueuePair { send, receive, control, link, agreed })
    }
}

/// A connected queue pair.
pub type QueuePair = crate::link::QueuePair<UdpStats>;
/// The thread of a queue pair.
pub type Link = crate::link::Link<UdpStats>;

/// Returns the MTU of the way to `peer`, if the system knows it.
fn path_mtu(from: IpAddr, peer: SocketAddr) -> Option<usize> {
    let socket = UdpSocket::bind(SocketAddr::new(from, 0)).ok()?;
    // This sends nothing: it looks for the route.
    socket.connect(peer).ok()?;
    let mtu = if peer.is_ipv4() { sockopt::ip_mtu(&socket) } else { sockopt::ipv6_mtu(&socket) };
    usize::try_from(mtu.ok()?).ok()
}

/// Derives the connection's keys.
fn secrets(secret: &[u8; SECRET_BYTES], ours: &Details, theirs: &Details) -> Result<Secrets, KeyError> {
    let role = if ours.nonce < theirs.nonce { Role::Dialer } else { Role::Listener };
    let (low, high) = (ours.nonce.min(theirs.nonce), ours.nonce.max(theirs.nonce));
    let mut exporter = [0; EXPORTER_BYTES];
    Salt::new(HKDF_SHA256, SALT).extract(secret).expand(&[&low, &high], Exporter)?.fill(&mut exporter)?;
    Secrets::derive(&exporter, role, CIPHER)
}

struct Exporter;

impl KeyType for Exporter {
    fn len(&self) -> usize {
        EXPORTER_BYTES
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    use rustix::net::Shutdown;

    use super::*;

    /// The peer, whose sockets work, hears of it by the goodbye.
    #[test]
    fn a_socket_that_is_shut_down_ends_both_sides() {
        let attr = QpAttr { patience: Duration::from_secs(3600), channels: 2, ..QpAttr::default() };
        let bind = || Unconnected::bind(attr, "127.0.0.1".parse().unwrap()).unwrap();
        let (near, far) = (bind(), bind());
        let socket = near.channels.last().unwrap().socket.try_clone().unwrap();
        let (near_blob, far_blob) = (near.blob(), far.blob());
        let near = near.connect(&far_blob, &[7; 32]).unwrap();
        let far = far.connect(&near_blob, &[7; 32]).unwrap();
        // Linux shuts it down, and says that it was not connected.
        let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        while !(near.control.has_ended() && far.control.has_ended()) {
            std::thread::yield_now();
        }
        let failed = [&near, &far].map(|side| side.link.stats().failed.load(Relaxed));
        assert_eq!(failed, [1, 0]);
    }
}
