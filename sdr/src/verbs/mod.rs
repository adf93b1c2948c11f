//! The back end on RDMA devices: unreliable connections, a write with immediate for each packet.
//!
//! Payload goes from the sender's memory into the receiver's buffer without a copy.
//! A queue pair has an unreliable connection for each channel, one for credits and control, and one
//! thread that drives its engine.
//!
//! Each slot has a memory window of type 1, which is bound to the buffer of its receive.
//! Closing a receive binds the window to nothing. Until that is done, the device has the buffer.
//! Each binding makes another key, so packets that come late find no memory and vanish.
//! KEYS tell the sender where each receive stands, and are repeated until it knows.
//!
//! There is no seal: whoever can send to the device's queue pairs is trusted, as with all RDMA.
//!
//! ```no_run
//! use sdr::QpAttr;
//! use sdr::verbs::Unconnected;
//!
//! # fn exchange(ours: &[u8]) -> Vec<u8> { ours.to_vec() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let unconnected = Unconnected::open(QpAttr::default(), "mlx5_0")?;
//! // Out of band, over TCP for instance.
//! let peer = exchange(&unconnected.blob());
//! let pair = unconnected.connect(&peer)?;
//! # drop(pair);
//! # Ok(())
//! # }
//! ```

mod details;
mod device;
mod drive;
#[cfg(feature = "mlx5")]
mod indirect;
mod keys;
mod windows;

use std::io;
use std::sync::Arc;
use std::task::Waker;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};

use self::details::Details;
use self::device::{Device, Pair, Queue, Registrar};
pub use self::drive::VerbsStats;
use self::drive::{CONTROL_DEPTH, Driver, RECEIVE_DEPTH, SEND_DEPTH};
use self::keys::Means;
use crate::blob::{BLOB_BYTES, Blob, Mismatch};
use crate::engine::{Connected, connect};
use crate::link::Alarm;
use crate::memory::Registry;
use crate::receive::RecvQp;
use crate::shape::{AttrError, QpAttr, Shape};
use crate::udp::now;

/// Bytes that a packet takes on the wire beyond its payload: IPv4, UDP, BTH, RETH, immediate, ICRC.
const WIRE_OVERHEAD: usize = 20 + 8 + 12 + 16 + 4 + 4;

/// Reasons why a queue pair was not made or not connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The attributes make no queue pair.
    #[error(transparent)]
    Attributes(#[from] AttrError),
    /// The peer's blob does not fit.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The device's MTU, or the peer's, is below that of the queue pair.
    #[error("packets of {wanted} bytes, and the path carries {path}")]
    Mtu {
        /// Payload bytes of a full packet.
        wanted: u32,
        /// Bytes that the smaller of both devices' MTUs allows.
        path: u32,
    },
    /// The device, its library, or the thread.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A queue pair that is not connected yet.
pub struct Unconnected {
    blob: Blob,
    ours: Details,
    device: Arc<Device>,
    queue: Arc<Queue>,
    control: Pair,
    channels: Vec<Pair>,
    means: Means,
}

impl Unconnected {
    /// Opens the device `name`, such as `mlx5_0`, and makes what the channels need.
    ///
    /// # Errors
    /// [`VerbsError`]; without libibverbs or such a device it is `Io`.
    pub fn open(attr: QpAttr, name: &str) -> Result<Self, VerbsError> {
        Unconnected::open_by(attr, name, Means::Windows)
    }

    /// The same on an mlx5 device, with indirect keys: late packets fall into a NULL key, and each
    /// of [`crate::blob::MLX5_GENERATIONS`] generations has queue pairs of its own.
    ///
    /// Untried: we had no such device. The peer has to open its device in this way as well.
    ///
    /// # Errors
    /// [`VerbsError`]; without libmlx5, or if the device is another one, it is `Io`.
    #[cfg(feature = "mlx5")]
    pub fn open_indirect(attr: QpAttr, name: &str) -> Result<Self, VerbsError> {
        Unconnected::open_by(attr, name, Means::Indirect(indirect::Library::load()?))
    }

    fn open_by(attr: QpAttr, name: &str, means: Means) -> Result<Self, VerbsError> {
        Shape::new(&attr)?;
        let device = means.open(name)?;
        check_mtu(&attr, device.mtu_log)?;
        let channels = u32::from(attr.channels) * means.sets();
        let entries = (channels * (SEND_DEPTH + RECEIVE_DEPTH)) + 2 * CONTROL_DEPTH;
        let queue = Queue::new(&device, entries)?;
        let control = Pair::new(&device, &queue, (CONTROL_DEPTH, CONTROL_DEPTH, 1))?;
        let depths = (SEND_DEPTH, RECEIVE_DEPTH, drive::BATCH);
        let channels =
            (0..channels).map(|_| Pair::new(&device, &queue, depths)).collect::<io::Result<Vec<_>>>()?;
        let mut psn = [0; 4];
        SystemRandom::new().fill(&mut psn).map_err(|_| io::Error::other("no random numbers"))?;
        let ours = Details {
            gid: device.gid,
            mtu_log: device.mtu_log,
            psn: u32::from_be_bytes(psn) >> 8,
            control: control.number(),
            channels: channels.iter().map(Pair::number).collect(),
        };
        let blob = Blob::new(attr, means.back_end(), ours.encode())?;
        Ok(Unconnected { blob, ours, device, queue, control, channels, means })
    }

    /// Returns what the peer needs to connect.
    #[must_use]
    pub fn blob(&self) -> [u8; BLOB_BYTES] {
        self.blob.encode()
    }

    /// Connects to the peer whose blob this is, and starts the thread.
    ///
    /// # Errors
    /// [`VerbsError`] names what does not fit.
    pub fn connect(self, peer: &[u8]) -> Result<QueuePair, VerbsError> {
        let peer = Blob::decode(peer)?;
        let theirs = Details::decode(&peer.details).ok_or(Mismatch::BackEnd)?;
        let Connected { send, receive, control, mut engine, agreed } =
            connect(&self.blob, &peer, WIRE_OVERHEAD, now())?;
        let mtu_log = self.ours.mtu_log.min(theirs.mtu_log);
        check_mtu(&self.blob.attr, mtu_log)?;
        if theirs.channels.len() != self.channels.len() {
            return Err(Mismatch::BackEnd.into());
        }
        let registrar = Arc::new(Registrar(Arc::clone(&self.device)));
        engine.set_registry(&(Arc::clone(&registrar) as Arc<dyn Registry>));
        let alarm = Arc::new(Alarm::new()?);
        engine.set_waker(Waker::from(Arc::clone(&alarm)));
        let stats = Arc::new(VerbsStats::default());
        let lander = receive.as_ref().map(RecvQp::lander);
        let mut driver = Driver::new(
            (engine, lander, agreed),
            (self.device, self.queue, registrar),
            (self.control, self.channels, &self.means),
            (Arc::clone(&alarm), Arc::clone(&stats)),
        )?;
        driver.connect(&self.ours, &theirs, mtu_log)?;
        let thread = std::thread::Builder::new().name("sdr".into()).spawn(|| driver.run())?;
        let link = Link::new(alarm, stats, thread);
        Ok(QueuePair { send, receive, control, link, agreed })
    }
}

/// A connected queue pair.
pub type QueuePair = crate::link::QueuePair<VerbsStats>;
/// The thread of a queue pair.
pub type Link = crate::link::Link<VerbsStats>;

/// Checks that a full packet is a single one on a path of this MTU.
fn check_mtu(attr: &QpAttr, mtu_log: u8) -> Result<(), VerbsError> {
    let (wanted, path) = (attr.mtu.bytes(), 1 << mtu_log);
    if wanted > path { Err(VerbsError::Mtu { wanted, path }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also where libibverbs is missing.
    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        assert!(matches!(Unconnected::open(QpAttr::default(), "nosuchdevice"), Err(VerbsError::Io(_))));
    }

    /// Also where libmlx5 is missing.
    #[cfg(feature = "mlx5")]
    #[test]
    fn an_mlx5_device_that_is_not_there_is_an_error() {
        let opened = Unconnected::open_indirect(QpAttr::default(), "nosuchdevice");
        assert!(matches!(opened, Err(VerbsError::Io(_))));
    }
}
