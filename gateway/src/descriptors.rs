//! File descriptors: a gateway has all that it may come to need, or does not start.
//!
//! One that runs out of them later could neither answer a scrape nor read its files again.

use config::{Gateway, LanMode};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

use crate::admin::Doors;

/// Standard streams, runtime, signals, control's socket and netlink's, the lock, the log, the
/// service manager's socket.
const BASE: u64 = 32;
/// Files read again, several at a time, and those that libraries open for a moment.
const FILES: u64 = 8;
/// An admin listener with its connections, one of them about to give way ([`crate::admin`]).
const ADMIN: u64 = 34;
/// A data-plane thread's besides its lanes: sockets, netlink's, and what wakes it.
const THREAD: u64 = 10;

/// The system allows too few.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "this process may have {allowed} file descriptors open (RLIMIT_NOFILE), and this gateway needs \
     {needed}: raise the limit (`ulimit -n {needed}`, or LimitNOFILE={needed} in the systemd unit)"
)]
pub struct TooFew {
    /// The hard limit, to which the other was raised.
    pub allowed: u64,
    /// As many as a gateway with this file may have open at a time.
    pub needed: u64,
}

/// Raises this process' limit as far as the system lets it.
///
/// # Errors
/// It is still less than a gateway with this file may need.
pub fn provide(gateway: &Gateway) -> Result<(), TooFew> {
    let needed = needed(gateway);
    let limits = getrlimit(Resource::Nofile);
    let allowed = limits.maximum.unwrap_or(u64::MAX);
    if allowed < needed {
        return Err(TooFew { allowed, needed });
    }
    if limits.current.is_some_and(|current| current < needed) {
        // No further: what is copied for a child, or closed one by one, stays few.
        let raised = Rlimit { current: Some(needed), maximum: limits.maximum };
        setrlimit(Resource::Nofile, raised)
            .map_err(|_| TooFew { allowed: limits.current.unwrap_or(allowed), needed })?;
    }
    Ok(())
}

fn needed(gateway: &Gateway) -> u64 {
    let groups = match gateway.lan.mode {
        LanMode::Packet { .. } => gateway.lan.multicast.len() as u64,
        LanMode::Socket { .. } => 0,
    };
    let threads = u64::from(gateway.data_plane.threads);
    // All lanes of all pairs of threads with each peer: each is a socket, and one more receives.
    let peers = gateway.peers().count() as u64;
    let pairs: u64 =
        gateway.peers().map(|peer| u64::from(peer.thread_pairs(gateway.data_plane.threads))).sum();
    let sockets = threads * THREAD + pairs * (u64::from(gateway.wan.lanes) + 1);
    // Copies by which they follow their interface.
    let copies = if gateway.wan.zone.is_some() { sockets + peers } else { 0 };
    let doors = u64::from(gateway.admin.as_ref().is_some_and(|admin| admin.listen.is_some()))
        + u64::from(Doors::path(gateway.admin.as_ref()).is_some());
    // Copies of them are lent to a process that takes over, and of the listeners.
    let admin = if doors > 0 { doors * ADMIN + sockets + 4 } else { 0 };
    // Control has two for each peer, and so has whoever asks for the way there.
    BASE + FILES + admin + groups + sockets + copies + 4 * (peers - 1)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn each_admin_listener_has_connections_of_its_own() {
        let example = include_str!("../../docs/examples/gateway-a.toml");
        let needed = |keys: &str| {
            let text = example.replace("listen = \"127.0.0.1:9464\"", keys);
            needed(&Gateway::parse(Path::new("a.toml"), &text).unwrap())
        };
        let [tcp, socket] = ["listen = \"127.0.0.1:9464\"", "socket = \"a.sock\""];
        assert_eq!(needed(tcp), needed(socket));
        assert_eq!(needed(&format!("{tcp}\n{socket}")), needed(tcp) + ADMIN);
    }
}
