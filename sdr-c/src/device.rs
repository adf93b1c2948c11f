//! The back end that a device's name stands for.

use std::net::IpAddr;

use sdr::blob::BLOB_BYTES;
use sdr::udp::SECRET_BYTES;
use sdr::{ControlPath, QpAttr, RecvQp, SendQp};

use crate::error::Misuse;
use crate::other;

/// A device, by its name.
#[derive(Clone)]
pub(crate) enum Device {
    /// An address of this host: sealed UDP.
    Udp(IpAddr),
    /// An RDMA device: unreliable connections.
    #[cfg(feature = "verbs")]
    Verbs(String),
    /// The same with indirect keys.
    #[cfg(feature = "mlx5")]
    Indirect(String),
}

/// Stands before a device's name to ask for indirect keys.
#[cfg(feature = "mlx5")]
const INDIRECT: &str = "indirect:";

impl Device {
    pub(crate) fn named(name: &str) -> Result<Self, Misuse> {
        #[cfg(feature = "mlx5")]
        if let Some(name) = name.strip_prefix(INDIRECT) {
            return Ok(Device::Indirect(name.to_owned()));
        }
        match name.parse() {
            Ok(address) => Ok(Device::Udp(address)),
            #[cfg(feature = "verbs")]
            Err(_) if !name.is_empty() => Ok(Device::Verbs(name.to_owned())),
            Err(_) => Err(Misuse::Range("the device's name")),
        }
    }

    pub(crate) fn open(&self, attr: QpAttr) -> Result<Unconnected, Misuse> {
        match self {
            Device::Udp(address) => {
                sdr::udp::Unconnected::bind(attr, *address).map(Unconnected::Udp).map_err(other)
            }
            #[cfg(feature = "verbs")]
            Device::Verbs(name) => {
                sdr::verbs::Unconnected::open(attr, name).map(Unconnected::Verbs).map_err(other)
            }
            #[cfg(feature = "mlx5")]
            Device::Indirect(name) => {
                sdr::verbs::Unconnected::open_indirect(attr, name).map(Unconnected::Verbs).map_err(other)
            }
        }
    }
}

/// A queue pair that is not connected yet.
pub(crate) enum Unconnected {
    Udp(sdr::udp::Unconnected),
    #[cfg(feature = "verbs")]
    Verbs(sdr::verbs::Unconnected),
}

/// A connected queue pair.
pub(crate) struct Connected {
    pub(crate) send: Option<SendQp>,
    pub(crate) receive: Option<RecvQp>,
    pub(crate) control: ControlPath,
    /// Keeps the thread running.
    pub(crate) _link: Box<dyn Send>,
}

impl Unconnected {
    pub(crate) fn blob(&self) -> [u8; BLOB_BYTES] {
        match self {
            Unconnected::Udp(unconnected) => unconnected.blob(),
            #[cfg(feature = "verbs")]
            Unconnected::Verbs(unconnected) => unconnected.blob(),
        }
    }

    /// Returns true if both sides have to share a secret.
    pub(crate) fn needs_secret(&self) -> bool {
        matches!(self, Unconnected::Udp(_))
    }

    /// Connects. Only datagrams are sealed, so RDMA devices need no secret.
    pub(crate) fn connect(
        self,
        peer: &[u8],
        secret: Option<&[u8; SECRET_BYTES]>,
    ) -> Result<Connected, Misuse> {
        match self {
            Unconnected::Udp(unconnected) => {
                let pair = unconnected.connect(peer, secret.ok_or(Misuse::Secret)?).map_err(other)?;
                let (send, receive, control) = (pair.send, pair.receive, pair.control);
                Ok(Connected { send, receive, control, _link: Box::new(pair.link) })
            }
            #[cfg(feature = "verbs")]
            Unconnected::Verbs(unconnected) => {
                let pair = unconnected.connect(peer).map_err(other)?;
                let (send, receive, control) = (pair.send, pair.receive, pair.control);
                Ok(Connected { send, receive, control, _link: Box::new(pair.link) })
            }
        }
    }
}
