//! Membership in multicast groups, so that the interface, and switches that watch IGMP and MLD, let
//! their packets come to us.

use std::io;
use std::net::IpAddr;

use socket2::{Domain, InterfaceIndexOrAddress, Socket, Type};

/// Memberships on one interface. They end with it.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// A socket for each: the kernel counts IPv4's by the socket (`net.ipv4.igmp_max_memberships`,
    /// 20). Not bound, they receive nothing.
    members: Vec<(IpAddr, Socket)>,
}

impl Groups {
    pub(super) fn join(groups: &[IpAddr], interface: u32) -> io::Result<Self> {
        let one = |&group: &IpAddr| {
            let domain = if group.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
            let joined = Socket::new(domain, Type::DGRAM, None).and_then(|socket| {
                join(&socket, group, interface)?;
                Ok(socket)
            });
            let joined = joined.map_err(|error| {
                io::Error::new(error.kind(), format!("joining the multicast group {group}: {error}"))
            });
            Ok((group, joined?))
        };
        Ok(Self { members: groups.iter().map(one).collect::<io::Result<_>>()? })
    }

    /// From an interface that is gone to another one.
    pub(super) fn follow(&self, from: u32, to: u32) -> io::Result<()> {
        for (group, socket) in &self.members {
            // What is left of the membership counts, too. There is none where this was begun before
            // and failed.
            let _ = leave(socket, *group, from);
            let _ = leave(socket, *group, to);
            join(socket, *group, to)?;
        }
        Ok(())
    }
}

fn join(socket: &Socket, group: IpAddr, interface: u32) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface)),
        IpAddr::V6(group) => socket.join_multicast_v6(&group, interface),
    }
}

fn leave(socket: &Socket, group: IpAddr, interface: u32) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => socket.leave_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface)),
        IpAddr::V6(group) => socket.leave_multicast_v6(&group, interface),
    }
}

#[cfg(test)]
mod tests;
