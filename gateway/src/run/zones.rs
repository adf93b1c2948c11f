//! Follows the interfaces of link-local addresses that the gateway file has by name.
//!
//! A socket that is bound to a link-local address is bound to its interface's index, too. One that
//! is deleted and made again has another, and the socket would never hear of it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use socket2::SockRef;
use tracing::{info, warn};

use super::workers::WorkerResources;
use super::{RunError, Towards};
use crate::zone;

/// The interfaces of `wan.listen` and of the peers' addresses.
#[derive(Default)]
pub(super) struct Zones {
    listen: Option<Listen>,
    /// The interface by which each peer is reached, and where its dialler finds the index.
    peers: Vec<(String, Arc<AtomicU32>)>,
}

/// The interface of `wan.listen`.
struct Listen {
    name: String,
    /// The index that the sockets are bound to.
    index: u32,
    /// Copies of all sockets of the link.
    sockets: Vec<OwnedFd>,
}

impl Zones {
    /// Takes copies of the link's sockets, if the file names their interface.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn of(
        gateway: &config::Gateway,
        peers: &[Towards],
        controls: &[std::net::UdpSocket],
        threads: &[WorkerResources],
    ) -> Result<Self, RunError> {
        let reached = |peer: &Towards| Some((peer.gateway.peer.zone.clone()?, Arc::clone(&peer.scope)));
        let peers = peers.iter().filter_map(reached).collect();
        let Some(name) = gateway.wan.zone.clone() else { return Ok(Self { listen: None, peers }) };
        let copy = |socket: &std::net::UdpSocket| socket.try_clone().map(OwnedFd::from);
        let bulk = threads.iter().flat_map(|thread| &thread.peers).flat_map(|peer| peer.bulk.sockets());
        let sockets = controls.iter().map(copy).chain(bulk.map(|socket| socket.try_clone_to_owned()));
        let sockets: Vec<OwnedFd> = sockets.collect::<io::Result<_>>().map_err(RunError::System)?;
        // They may have been bound a moment before the interface was made again.
        let bound =
            sockets.first().and_then(|socket| SockRef::from(socket).local_addr().ok()?.as_socket_ipv6());
        let index = bound.map_or(0, |address| address.scope_id());
        Ok(Self { listen: Some(Listen { name, index, sockets }), peers })
    }

    /// Looks at the interfaces, and moves the sockets to where they are now.
    pub(super) fn look(&mut self) {
        self.peers.iter().for_each(|(name, scope)| zone::look(name, scope));
        let Some(Listen { name, index, sockets }) = &mut self.listen else { return };
        // While there is none, the sockets stay where they were.
        let Ok(now) = zone::index(name) else { return };
        if now == std::mem::replace(index, now) {
            return;
        }
        let moved =
            sockets.iter().try_for_each(|socket| SockRef::from(socket).bind_device(Some(name.as_bytes())));
        match moved {
            Ok(()) => info!(
                interface = name.as_str(),
                index = now,
                "the WAN interface was made again, and is used again"
            ),
            Err(error) => warn!(
                interface = name.as_str(),
                index = now,
                "the WAN interface was made again, and its sockets cannot go there: {error}: give the gateway \
                 CAP_NET_RAW, or start it again"
            ),
        }
    }
}
