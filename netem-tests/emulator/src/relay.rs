//! A UDP relay with an impaired link in each direction.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use quinn_udp::EcnCodepoint;
use rustix::event::{PollFd, PollFlags};

use super::control::{Core, DirectionStats, EmulatorStats, Handle};
use crate::nonces::{NonceReport, Nonces};
use crate::udp::{Batch, Inbox, Outbox, Sent, Socket};
use linksim::impair::LinkSpec;

/// Receive calls on one socket before the others have their turn.
const ROUNDS: usize = 4;

/// One end of a relayed port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    /// Where the relay listens for this side; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Where this side's program listens; until it is known, what is for it is dropped.
    pub peer: Option<SocketAddr>,
    /// True if `peer` becomes whatever address this side last sent from.
    pub learn: bool,
}

/// A port mapping: what arrives at `a.listen` leaves from `b.listen` for `b.peer`, and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Side A.
    pub a: Side,
    /// Side B.
    pub b: Side,
}

impl Port {
    /// The two ports of a pair of gateways: QUIC on the ports given, where the dialling side may
    /// send from a port of its own, and bulk on the next ones up, where replies go to the listening
    /// port whatever lane something came from. Gateway A listens on `a_gateway` and is told that
    /// its peer is at `a_listen`; B likewise.
    pub fn gateway_pair(
        a_listen: SocketAddr,
        a_gateway: SocketAddr,
        b_listen: SocketAddr,
        b_gateway: SocketAddr,
    ) -> [Port; 2] {
        let side = |listen, gateway, learn| Side { listen, peer: Some(gateway), learn };
        let quic = Port { a: side(a_listen, a_gateway, true), b: side(b_listen, b_gateway, true) };
        let bulk = Port {
            a: side(next_port(a_listen), next_port(a_gateway), false),
            b: side(next_port(b_listen), next_port(b_gateway), false),
        };
        [quic, bulk]
    }
}

fn next_port(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port().saturating_add(1))
}

/// The description of a relay.
#[derive(Debug, Clone, PartialEq)]
pub struct RelaySpec {
    /// The ports relayed. All share the links of their direction.
    pub ports: Vec<Port>,
    /// Links in each direction, at least one, all alike at first. What comes from the n-th port
    /// above that of its side's peer takes the n-th link after the first, if there is one: as a
    /// network that spreads flows by their ports carries a gateway's lanes.
    pub lanes: usize,
    /// The link from A to B.
    pub a_to_b: LinkSpec,
    /// The link from B to A.
    pub b_to_a: LinkSpec,
    /// Seed of the links.
    pub seed: u64,
}

/// A running relay: one thread. Stops when dropped.
///
/// Loss and everything else is decided per datagram, also where the kernel hands over many at once.
/// While a direction's link is perfect ([`LinkSpec::is_perfect`]) and empty, batches of datagrams
/// pass as they came, in one system call. ECN bits are kept. What the relay itself cannot help
/// dropping is counted apart from what the link dropped; datagrams that the kernel drops because
/// the relay is too slow are not seen by it (`nstat -az UdpRcvbufErrors`).
#[derive(Debug)]
pub struct Relay {
    handle: Handle,
    /// By port mapping: everything that comes from side A is dropped, or from side B.
    blocked: Arc<[[AtomicBool; 2]]>,
    addresses: Vec<(SocketAddr, SocketAddr)>,
    watched: Watched,
}

/// The port mapping whose datagrams are watched, if any, and what was seen.
type Watched = Arc<Mutex<Option<(usize, Nonces)>>>;

impl Relay {
    /// Binds all ports and starts relaying.
    pub fn start(spec: &RelaySpec) -> io::Result<Relay> {
        let mut pairs = Vec::with_capacity(spec.ports.len());
        let mut addresses = Vec::with_capacity(spec.ports.len());
        for port in &spec.ports {
            let sockets = [Socket::bind(port.a.listen)?, Socket::bind(port.b.listen)?];
            let [a, b] = &sockets;
            addresses.push((a.local_addr()?, b.local_addr()?));
            let (peers, learns) = ([port.a.peer, port.b.peer], [port.a.learn, port.b.learn]);
            pairs.push(Pair { sockets, peers, learns });
        }
        let blocked: Arc<[[AtomicBool; 2]]> = pairs.iter().map(|_| Default::default()).collect();
        let seen = Arc::clone(&blocked);
        let watched = Watched::default();
        let watching = Arc::clone(&watched);
        let work = move |core| Worker { watched: watching, ..Worker::new(pairs, seen, core) }.run();
        let handle = Handle::start([spec.a_to_b, spec.b_to_a], spec.lanes, spec.seed, work)?;
        Ok(Relay { handle, blocked, addresses, watched })
    }

    /// The addresses bound for port mapping `index`: for side A and side B.
    pub fn addresses(&self, index: usize) -> Option<(SocketAddr, SocketAddr)> {
        self.addresses.get(index).copied()
    }

    /// Changes all links under way (packets on them keep their times). `loss 100%` is a partition.
    pub fn set_links(&self, a_to_b: LinkSpec, b_to_a: LinkSpec) {
        self.handle.set_links(a_to_b, b_to_a);
    }

    /// Changes the links of one lane.
    pub fn set_lane(&self, lane: usize, a_to_b: LinkSpec, b_to_a: LinkSpec) {
        self.handle.set_lane(lane, a_to_b, b_to_a);
    }

    /// Drops from now on what comes for port mapping `index` from either side, or no longer.
    pub fn block(&self, index: usize, blocked: bool) {
        self.block_each(index, [blocked; 2]);
    }

    /// Drops from now on what comes for port mapping `index` from these sides, A and B, and only
    /// from these.
    pub fn block_each(&self, index: usize, blocked: [bool; 2]) {
        for (side, blocked) in self.blocked.get(index).into_iter().flatten().zip(blocked) {
            side.store(blocked, Ordering::Relaxed);
        }
    }

    /// Compares from now on the headers of all bulk datagrams of port mapping `index`, as either
    /// side sends them.
    pub fn watch_nonces(&self, index: usize) {
        *self.watched.lock().unwrap_or_else(PoisonError::into_inner) = Some((index, Nonces::default()));
    }

    /// Returns what [`Relay::watch_nonces`] has found.
    pub fn nonces(&self) -> NonceReport {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.as_ref().map(|(_, nonces)| nonces.report()).unwrap_or_default()
    }

    /// Counters, at most some 20 ms old.
    pub fn stats(&self) -> EmulatorStats {
        self.handle.stats()
    }

    /// Returns true while the thread runs; it ends by itself only on an error, which
    /// [`Relay::stop`] returns.
    pub fn is_running(&self) -> bool {
        self.handle.is_running()
    }

    /// Stops; what is under way is lost.
    pub fn stop(self) -> io::Result<EmulatorStats> {
        self.handle.stop()
    }
}

/// The two sockets of a port; index 0 is side A.
struct Pair {
    sockets: [Socket; 2],
    peers: [Option<SocketAddr>; 2],
    learns: [bool; 2],
}

/// The state that the thread owns.
struct Worker {
    pairs: Vec<Pair>,
    blocked: Arc<[[AtomicBool; 2]]>,
    watched: Watched,
    core: Core,
    inbox: Inbox,
    outbox: Outbox,
    /// Sockets that may have something to read: two per pair.
    ready: Vec<bool>,
}

impl Worker {
    fn new(pairs: Vec<Pair>, blocked: Arc<[[AtomicBool; 2]]>, core: Core) -> Self {
        let ready = vec![true; 2 * pairs.len()];
        let watched = Watched::default();
        Self { pairs, blocked, watched, core, inbox: Inbox::new(), outbox: Outbox::new(), ready }
    }

    fn run(mut self) -> io::Result<()> {
        while self.core.goes_on() {
            for place in 0..self.ready.len() {
                if self.ready.get(place) == Some(&true) {
                    let more = self.intake(place / 2, place % 2)?;
                    self.ready.iter_mut().skip(place).take(1).for_each(|ready| *ready = more);
                }
            }
            let now = Instant::now();
            for direction in 0..2 {
                self.output(direction, now);
            }
            self.core.publish();
            if !self.ready.contains(&true) {
                self.sleep()?;
            }
        }
        Ok(())
    }

    /// Receives what side `side` of a port sent; true if there may be more.
    fn intake(&mut self, port: usize, side: usize) -> io::Result<bool> {
        let blocked = self.blocked.get(port).and_then(|sides| sides.get(side));
        let is_blocked = blocked.is_some_and(|blocked| blocked.load(Ordering::Relaxed));
        let Self { pairs, core: Core { links, stats, .. }, inbox, watched, .. } = self;
        let (Some(pair), Some(links), Some(stats)) =
            (pairs.get_mut(port), links.get_mut(side), stats.get_mut(side))
        else {
            return Ok(false);
        };
        for _ in 0..ROUNDS {
            let Some(socket) = pair.sockets.get(side) else {
                return Ok(false);
            };
            if !socket.receive(inbox)? {
                return Ok(false);
            }
            let now = Instant::now();
            if let Some((_, nonces)) =
                watched.lock().unwrap_or_else(PoisonError::into_inner).as_mut().filter(|(of, _)| *of == port)
            {
                let datagrams = inbox.batches().flat_map(|batch| batch.datagrams());
                datagrams.for_each(|datagram| nonces.note(side, datagram));
            }
            for batch in inbox.batches() {
                stats.received += batch.count();
                stats.received_bytes += u64::try_from(batch.bytes.len()).unwrap_or(0);
                let lane = pair.lane(side, batch.from, links.len());
                let Some(link) = links.get_mut(lane) else { continue };
                pair.learn(side, batch.from);
                if is_blocked {
                    continue;
                }
                if link.is_empty() && link.spec().is_perfect() {
                    pair.forward(1 - side, &batch, stats);
                    continue;
                }
                let tag = tag(port, batch.ecn);
                for datagram in batch.datagrams() {
                    link.submit_tagged(now, datagram, tag);
                }
            }
        }
        Ok(true)
    }

    /// Sends what comes out of a link now.
    fn output(&mut self, direction: usize, now: Instant) {
        let Self { pairs, core: Core { links, stats, .. }, outbox, .. } = self;
        let (Some(links), Some(stats)) = (links.get_mut(direction), stats.get_mut(direction)) else {
            return;
        };
        let far = 1 - direction;
        let mut current = None;
        for link in links {
            while let Some((packet, tag)) = link.poll_tagged(now) {
                if current.is_some_and(|current| current != tag) {
                    flush(pairs, outbox, current, far, stats);
                }
                current = Some(tag);
                let Some((socket, to, ecn)) = destination(pairs, tag, far) else {
                    stats.no_peer += 1;
                    continue;
                };
                let Some(room) = outbox.room().get_mut(..packet.len()) else {
                    continue;
                };
                room.copy_from_slice(packet);
                stats.add(outbox.commit(packet.len(), socket, to, ecn));
            }
        }
        flush(pairs, outbox, current, far, stats);
    }

    fn sleep(&mut self) -> io::Result<()> {
        let sockets = self.pairs.iter().flat_map(|pair| &pair.sockets);
        let mut fds: Vec<PollFd<'_>> =
            sockets.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)).collect();
        self.core.sleep(&mut fds)?;
        for (ready, fd) in self.ready.iter_mut().zip(&fds) {
            *ready = !fd.revents().is_empty();
        }
        Ok(())
    }
}

impl Pair {
    fn learn(&mut self, side: usize, from: SocketAddr) {
        if let (Some(peer), Some(true)) = (self.peers.get_mut(side), self.learns.get(side)) {
            *peer = Some(from);
        }
    }

    /// Which link something from there takes.
    fn lane(&self, side: usize, from: SocketAddr, lanes: usize) -> usize {
        let known = self.peers.get(side).copied().flatten().map(|peer| peer.port());
        let above = known.and_then(|port| from.port().checked_sub(port)).map(usize::from);
        above.filter(|lane| *lane < lanes).unwrap_or(0)
    }

    /// Passes a batch on as it came.
    fn forward(&self, far: usize, batch: &Batch<'_>, stats: &mut DirectionStats) {
        match (self.sockets.get(far), self.peers.get(far).copied().flatten()) {
            (Some(socket), Some(to)) => {
                stats.add(socket.send(to, batch.ecn, batch.bytes, batch.stride));
            }
            _ => stats.no_peer += batch.count(),
        }
    }
}

impl DirectionStats {
    fn add(&mut self, sent: Sent) {
        self.forwarded += sent.datagrams;
        self.forwarded_bytes += sent.bytes;
        self.send_full += sent.full;
        self.refused += sent.refused;
    }
}

fn flush(pairs: &[Pair], outbox: &mut Outbox, tag: Option<u32>, far: usize, stats: &mut DirectionStats) {
    if let Some((socket, to, ecn)) = tag.and_then(|tag| destination(pairs, tag, far)) {
        stats.add(outbox.flush(socket, to, ecn));
    }
}

/// A datagram's way through the link: its port and ECN bits in one number.
fn tag(port: usize, ecn: Option<EcnCodepoint>) -> u32 {
    let port = u32::try_from(port).unwrap_or(u32::MAX >> 2);
    port << 2 | ecn.map_or(0, |ecn| ecn as u32)
}

fn destination(pairs: &[Pair], tag: u32, far: usize) -> Option<(&Socket, SocketAddr, Option<EcnCodepoint>)> {
    let pair = pairs.get(usize::try_from(tag >> 2).ok()?)?;
    let ecn = EcnCodepoint::from_bits(u8::try_from(tag & 3).ok()?);
    Some((pair.sockets.get(far)?, (*pair.peers.get(far)?)?, ecn))
}
