//! A bridge of two interfaces with an impaired link in each direction.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::control::{Core, EmulatorStats, Handle};
use super::frames::{FrameSocket, MAX_FRAME, SendResult};
use super::offload::{Checksums, Missing, Offload};
use linksim::impair::LinkSpec;

/// Frames taken from one interface before the other has its turn.
const BUDGET: usize = 64;

/// An interface, perhaps in a network name space of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The name space: a name below `/run/netns`, or a path such as `/proc/123/ns/net`. `None`: the
    /// caller's.
    pub netns: Option<String>,
    /// The interface's name.
    pub name: String,
}

impl FromStr for Interface {
    type Err = std::convert::Infallible;

    /// `NAME` or `NETNS:NAME`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.rsplit_once(':') {
            Some((netns, name)) => Self { netns: Some(netns.into()), name: name.into() },
            None => Self { netns: None, name: text.into() },
        })
    }
}

/// The description of a bridge.
#[derive(Debug, Clone, PartialEq)]
pub struct BridgeSpec {
    /// Side A.
    pub a: Interface,
    /// Side B.
    pub b: Interface,
    /// The link from A to B.
    pub a_to_b: LinkSpec,
    /// The link from B to A.
    pub b_to_a: LinkSpec,
    /// Seed of both links.
    pub seed: u64,
}

/// A running bridge: one thread, a system call per frame. Stops when dropped. A frame enters its
/// link when its sender's interface hands it over, however late the thread takes it. Needs
/// `CAP_NET_RAW`, and for a name space `CAP_SYS_ADMIN`.
///
/// Frames of every protocol pass, promiscuously. The interfaces should carry no addresses, or the
/// kernel answers for itself as well. Segmentation that virtual interfaces left to the hardware is
/// done in software, TCP and UDP directly over IP, so every packet takes its chance alone.
/// Checksums that they left to it are computed on a link that flips bits, and pass for verified on
/// others. Other batches are dropped and counted ([`super::DirectionStats::uncut`]). VLAN tags that
/// the kernel keeps beside the frame are lost: leave VLANs away from the interfaces, or switch
/// `rxvlan` off with ethtool.
#[derive(Debug)]
pub struct Bridge {
    handle: Handle,
}

impl Bridge {
    /// Opens both interfaces and starts bridging.
    pub fn start(spec: &BridgeSpec) -> io::Result<Bridge> {
        let sockets = [open(&spec.a)?, open(&spec.b)?];
        let work = move |core| Worker::new(sockets, core).run();
        Ok(Bridge { handle: Handle::start([spec.a_to_b, spec.b_to_a], 1, spec.seed, work)? })
    }

    /// Changes both links under way (frames on them keep their times). `loss 100%` is a partition.
    pub fn set_links(&self, a_to_b: LinkSpec, b_to_a: LinkSpec) {
        self.handle.set_links(a_to_b, b_to_a);
    }

    /// Counters, at most some 20 ms old.
    pub fn stats(&self) -> EmulatorStats {
        self.handle.stats()
    }

    /// Returns true while the thread runs; it ends by itself only on an error, which
    /// [`Bridge::stop`] returns.
    pub fn is_running(&self) -> bool {
        self.handle.is_running()
    }

    /// Stops; what is under way is lost.
    pub fn stop(self) -> io::Result<EmulatorStats> {
        self.handle.stop()
    }
}

/// Opens an interface from within its name space: the socket stays there, wherever the thread goes.
fn open(interface: &Interface) -> io::Result<FrameSocket> {
    let Some(netns) = &interface.netns else {
        return FrameSocket::open(&interface.name);
    };
    let path =
        if netns.contains('/') { PathBuf::from(netns) } else { PathBuf::from("/run/netns").join(netns) };
    let inside = || {
        let netns = File::open(&path)?;
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?;
        FrameSocket::open(&interface.name)
    };
    // A thread of its own changes name spaces, and ends with them.
    std::thread::scope(|scope| scope.spawn(inside).join())
        .unwrap_or_else(|_| Err(io::Error::other("opening the interface panicked")))
}

/// The state that the thread owns.
struct Worker {
    sockets: [FrameSocket; 2],
    core: Core,
    /// When the newest frame of each side arrived.
    arrived: [Instant; 2],
    buffer: Box<[u8]>,
    scratch: Vec<u8>,
}

impl Worker {
    fn new(sockets: [FrameSocket; 2], core: Core) -> Self {
        let scratch = Vec::with_capacity(MAX_FRAME);
        let arrived = [Instant::now(); 2];
        Self { sockets, core, arrived, buffer: vec![0; MAX_FRAME].into_boxed_slice(), scratch }
    }

    fn run(mut self) -> io::Result<()> {
        while self.core.goes_on() {
            let more = self.intake(0)? | self.intake(1)?;
            let now = Instant::now();
            self.output(0, now);
            self.output(1, now);
            self.core.publish();
            if !more {
                let mut fds = self
                    .sockets
                    .each_ref()
                    .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
                self.core.sleep(&mut fds)?;
            }
        }
        for (stats, socket) in self.core.stats.iter_mut().zip(&self.sockets) {
            stats.overrun = socket.overrun()?;
        }
        self.core.publish();
        Ok(())
    }

    /// Receives what one side sent; true if there may be more.
    fn intake(&mut self, side: usize) -> io::Result<bool> {
        let Self { sockets, core, arrived, buffer, scratch } = self;
        let (Some(socket), Some(link), Some(stats), Some(arrived)) = (
            sockets.get(side),
            core.links.get_mut(side).and_then(|links| links.first_mut()),
            core.stats.get_mut(side),
            arrived.get_mut(side),
        ) else {
            return Ok(false);
        };
        let clocks = Clocks::read();
        for _ in 0..BUDGET {
            let Some(received) = socket.receive(buffer)? else {
                return Ok(false);
            };
            let Some((header, frame)) =
                buffer.get_mut(..received.len).and_then(|packet| packet.split_first_chunk_mut())
            else {
                stats.uncut += 1;
                continue;
            };
            let taken = Instant::now();
            let at = received.at.and_then(|at| clocks.instant(at)).unwrap_or(taken);
            *arrived = at.clamp(*arrived, taken.max(*arrived));
            let now = *arrived;
            // Who flips bits does not want them covered up.
            let checksums = if link.spec().corrupt > 0.0 { Checksums::Complete } else { Checksums::Leave };
            let each = &mut |packet: &[u8], missing| {
                stats.received += 1;
                stats.received_bytes += u64::try_from(packet.len()).unwrap_or(0);
                link.submit_tagged(now, packet, Missing::tag(missing));
            };
            if Offload::parse(header).undo(frame, checksums, scratch, each).is_err() {
                stats.uncut += 1;
            }
        }
        Ok(true)
    }

    /// Sends what comes out of a link now.
    fn output(&mut self, direction: usize, now: Instant) {
        let Self { sockets, core, .. } = self;
        let (Some(socket), Some(link), Some(stats)) = (
            sockets.get(1 - direction),
            core.links.get_mut(direction).and_then(|links| links.first_mut()),
            core.stats.get_mut(direction),
        ) else {
            return;
        };
        while let Some((packet, tag)) = link.poll_tagged(now) {
            match socket.send(&Missing::header(tag), packet) {
                SendResult::Sent => {
                    stats.forwarded += 1;
                    stats.forwarded_bytes += u64::try_from(packet.len()).unwrap_or(0);
                }
                SendResult::Full => stats.send_full += 1,
                SendResult::Refused => stats.refused += 1,
            }
        }
    }
}

/// The time of day and the clock that does not jump, at the same moment.
struct Clocks {
    day: Duration,
    now: Instant,
}

impl Clocks {
    fn read() -> Self {
        Self { day: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), now: Instant::now() }
    }

    /// That time of day on the other clock, if it is about now: the time of day may have been set
    /// meanwhile.
    fn instant(&self, day: Duration) -> Option<Instant> {
        let (past, to_come) = (self.day.saturating_sub(day), day.saturating_sub(self.day));
        if past.max(to_come) > Self::NEAR {
            return None;
        }
        self.now.checked_sub(past)?.checked_add(to_come)
    }

    const NEAR: Duration = Duration::from_secs(1);
}
