//! Settings of a gateway's core: bounds, classes, the link.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use config::{Congestion, Policy};
use ipnet::IpNet;
use reliability::estimator::ProbeConfig;
use reliability::stream::Scheme;
use roce::ip::{Addressing, buffer_len};
use transport::{Allowed, BASE_PACKET, Class, Config, MAX_CLASSES, MOST_LANES, Repair};

use crate::hosts::Grouping;
use crate::pool::EACH;
use crate::stale_flows::{FlowSide, StaleFlow};

/// Everything a [`crate::Gateway`] is told at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Prefixes of the hosts behind the peer. Packets for other addresses are not ours.
    pub remote: Vec<IpNet>,
    /// Where this site's hosts are. Packets of other sources are dropped and counted. Empty:
    /// anywhere that is not behind the peer.
    pub local: Vec<IpNet>,
    /// Multicast groups that both sites share: UD packets to them are carried, no other.
    pub groups: Vec<IpAddr>,
    /// The classes to begin with; [`crate::Gateway::set_policy`] changes them.
    pub policy: Arc<Policy>,
    /// Longest WAN packet that is sent in any session, plaintext bytes. A session uses what its
    /// peer takes, if that is less.
    pub max_packet: usize,
    /// True if `max_packet` is the most that is looked for: how long packets may be, each session
    /// finds by probing ([`reliability::mtu`]).
    pub find_mtu: bool,
    /// Longest WAN packet that every path carries on which there can be a session, plaintext bytes.
    pub base_packet: usize,
    /// Longest IP packet emitted on the LAN; [`crate::Gateway::set_lan_mtu`] changes it. A RoCE
    /// packet cannot be fragmented: a flow that has a longer one ends in an error that both
    /// programs see, any other longer packet is dropped and counted.
    pub lan_mtu: usize,
    /// Bytes that sealing, UDP and IP add to a WAN packet.
    pub ip_overhead: usize,
    /// These and what the link adds: what the pacer counts on top.
    pub packet_overhead: usize,
    /// The rate that the link is provisioned for, bit/s.
    pub rate: u64,
    /// Selects whether `rate` is what is sent, or the most that is.
    pub congestion: Congestion,
    /// Round-trip time: to assume before the first measurement, and as measured since, to an
    /// eighth.
    pub rtt: Duration,
    /// The probes sent over an otherwise idle link so that it stays known.
    pub probes: ProbeConfig,
    /// True if requesters are told to slow down when much waits for the link.
    pub notify_backlog: bool,
    /// Lanes to send on, 1 to [`config::Wan::MOST_LANES`].
    pub lanes: u8,
    /// Per flow: bytes carried and not yet acknowledged by the target at which packets are dropped;
    /// from half of it on mid-message ACKs are withheld. `None`: what the link calls for
    /// (`Settings::flow_buffer`).
    pub flow_buffer: Option<usize>,
    /// All flows: bytes held for targets; also what the streams together hold for repair.
    pub total_buffer: usize,
    /// Flows on each side. A request beyond it is dropped and counted.
    pub flows: usize,
    /// An idle flow is forgotten after this. Nothing is lost by it: the next request opens it anew
    /// at its PSN.
    pub idle_flow: Duration,
    /// A target that answers nothing for this long is dead: its requesters are refused as their
    /// class says, by silence or by NAK 0x63.
    pub target_dead: Duration,
    /// A requester that was told RNR and has not tried again for this long has given up.
    pub rnr: Duration,
    /// How long the flows of an ended session are remembered and refused.
    pub linger: Duration,
    /// Puts hosts in the groups that share: made for a number that nobody else knows.
    pub grouping: Grouping,
    /// True if one of the two sites has several gateways ([`crate::site`]).
    pub is_member: bool,
}

/// Returns true if one of the prefixes has the address, or if there is none to be held to.
pub(crate) fn is_in(address: IpAddr, prefixes: &[IpNet]) -> bool {
    prefixes.is_empty() || prefixes.iter().any(|prefix| prefix.contains(&address))
}

impl Settings {
    /// Bounds as in a gateway file without `[limits]`, selective repeat, for a link of `rate` bit/s
    /// that carries plaintext packets of `max_packet` bytes.
    #[must_use]
    pub fn new(remote: Vec<IpNet>, rate: u64, max_packet: usize) -> Self {
        let limits = config::Limits::default();
        Self {
            remote,
            local: Vec::new(),
            groups: Vec::new(),
            policy: Arc::default(),
            max_packet,
            find_mtu: false,
            base_packet: BASE_PACKET,
            lan_mtu: usize::from(u16::MAX),
            ip_overhead: 0,
            packet_overhead: 0,
            rate,
            congestion: Congestion::default(),
            rtt: Duration::from_millis(50),
            probes: ProbeConfig::default(),
            notify_backlog: true,
            lanes: 1,
            flow_buffer: limits.flow_buffer.map(|size| size.as_usize()),
            total_buffer: limits.total_buffer.as_usize(),
            flows: limits.flows as usize,
            idle_flow: limits.idle_flow.get(),
            target_dead: limits.target_dead.get(),
            rnr: limits.rnr.get(),
            linger: Duration::from_secs(60),
            grouping: Grouping::new(0),
            is_member: false,
        }
    }

    /// Bytes that one flow may have carried without its target's word. Where nobody said, its half,
    /// from which on requesters are slowed, is four times what the link carries in a round trip:
    /// one flow is to fill the link by itself, while losses are repaired and repairs are lost, too.
    /// A target's flows may hold half of the buffers.
    pub(crate) fn flow_buffer(&self) -> usize {
        let micros = u64::try_from(self.rtt.as_micros()).unwrap_or(u64::MAX);
        let wanted = usize::try_from(self.rate.saturating_mul(micros) / 1_000_000).unwrap_or(usize::MAX);
        let fitting = wanted.min(self.total_buffer / 2).max(LEAST_FLOW_BUFFER).min(self.total_buffer);
        self.flow_buffer.unwrap_or(fitting)
    }

    /// The time for which nothing that is in use need give way to something new: twice what an
    /// answer takes, and what hosts and queues add to that.
    pub(crate) fn grace(&self) -> Duration {
        2 * self.rtt + Duration::from_millis(50)
    }

    /// The most memory that a [`crate::Gateway`] allocates, in bytes, whatever the hosts and the
    /// peer send. The driver's sockets and buffers come on top.
    #[must_use]
    pub fn most_memory(&self) -> usize {
        let classes = self.policy.written().count().max(1);
        let packets = self.total_buffer + self.total_buffer / EACH * PLACE + 3 * reorder_buffer(self);
        packets + self.wan().most_memory(classes) + self.flows * FLOW + BASE
    }

    /// Returns those of these settings that the connection to the peer takes.
    pub(crate) fn wan(&self) -> Config {
        Config {
            max_packet: self.max_packet,
            find_mtu: self.find_mtu,
            base_packet: self.base_packet,
            ip_overhead: self.ip_overhead,
            packet_overhead: self.packet_overhead,
            rate: self.rate,
            congestion: match self.congestion {
                config::Congestion::Fixed => transport::Congestion::Fixed,
                config::Congestion::Adaptive => transport::Congestion::Adaptive,
            },
            rtt: self.rtt,
            probes: self.probes,
            lanes: self.lanes,
            total_buffer: self.total_buffer,
        }
    }

    /// Returns true if a packet of so many bytes from the BTH to the padding fits the LAN.
    pub(crate) fn fits_lan(&self, addressing: &Addressing, transport_len: usize) -> bool {
        buffer_len(addressing, transport_len) <= self.lan_mtu
    }

    pub(crate) fn is_remote(&self, address: IpAddr) -> bool {
        self.remote.iter().any(|prefix| prefix.contains(&address))
    }

    /// True for an address that a host of this site may have.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
        let is_nobodys = address.is_multicast() || address.is_unspecified() || address.is_loopback();
        !is_broadcast && !is_nobodys && is_in(address, &self.local)
    }

    /// Returns true if what is sent to this address is for somebody behind the peer, and maybe for
    /// hosts here, too.
    pub(crate) fn leads_to_peer(&self, address: IpAddr) -> bool {
        if address.is_multicast() { self.groups.contains(&address) } else { self.is_remote(address) }
    }

    /// Returns true if a packet of the peer's goes from where the peer stands to one host where we
    /// do, since a peer cannot speak for others.
    pub(crate) fn is_for_here(&self, addressing: &Addressing) -> bool {
        self.are_apart(addressing.src, addressing.dst)
    }

    /// Returns true if a flow that the peer remembers is one between its hosts and ours.
    pub(crate) fn may_remember(&self, flow: &StaleFlow) -> bool {
        let [there, here] = match flow.side {
            FlowSide::Near => [flow.requester, flow.target],
            FlowSide::Far => [flow.target, flow.requester],
        };
        self.are_apart(there, here)
    }

    /// A host behind the peer, and one that may be of this site.
    fn are_apart(&self, there: IpAddr, here: IpAddr) -> bool {
        self.is_remote(there) && !self.is_remote(here) && self.is_local(here)
    }

    /// The same of one for hosts where we stand that are members of a group.
    pub(crate) fn is_for_group(&self, addressing: &Addressing) -> bool {
        self.is_remote(addressing.src) && self.groups.contains(&addressing.dst)
    }
}

const LEAST_FLOW_BUFFER: usize = 16 << 20;
/// Bytes of a packet's place in a queue, which may double as it grows.
const PLACE: usize = 160;
/// Bytes of a flow on both sides, with what tables remember of it and of connections: of each
/// there are as many as flows, or twice as many.
const FLOW: usize = 12 << 10;
/// Queues of fixed length, lanes and the like.
const BASE: usize = 24 << 20;
/// The classes of a policy, as their streams need to know them.
pub(crate) fn classes(policy: &Policy) -> Vec<Class> {
    let class = |class: &config::Class| Class {
        name: class.name.clone(),
        priority: class.priority,
        repair: repair(&class.scheme),
        max_overhead: class.max_overhead,
        joins_next: class.part.is_some(),
    };
    policy.classes().iter().map(class).collect()
}

const _: () = assert!(config::MAX_CLASSES == MAX_CLASSES, "every class of a policy has its streams");
const _: () = assert!(config::Wan::MOST_LANES == MOST_LANES, "every lane of a file can be sent on");

fn repair(scheme: &config::Scheme) -> Repair {
    let flush = scheme.block().map(|block| block.flush.get());
    let scheme = match *scheme {
        config::Scheme::Auto(config::Allowed { sr, xor, mds, hybrid }) => {
            return Repair::Auto(Allowed { sr, xor, mds, hybrid });
        }
        config::Scheme::None => Scheme::None,
        config::Scheme::Sr { alpha } => Scheme::Sr { alpha },
        config::Scheme::Xor(block) => Scheme::Xor { k: block.k, m: block.m, depth: block.interleave },
        config::Scheme::Mds(block) => Scheme::Mds { k: block.k, m: block.m, depth: block.interleave },
        config::Scheme::Hybrid(block) => Scheme::Hybrid { k: block.k, m: block.m, depth: block.interleave },
    };
    Repair::Fixed { scheme, flush }
}

/// Bytes that each side's flows may take to keep records in order, beyond the records themselves:
/// an eighth of what these may take.
pub(crate) fn reorder_buffer(settings: &Settings) -> usize {
    settings.total_buffer / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flow_may_fill_the_link_as_far_as_there_are_buffers() {
        let mut settings = Settings::new(Vec::new(), 10_000_000_000, 1400);
        settings.rtt = Duration::from_millis(25);
        assert_eq!(settings.flow_buffer(), 8 * 31_250_000);
        settings.rtt = Duration::from_millis(250);
        assert_eq!(settings.flow_buffer(), 256 << 20, "half of all");
        settings.total_buffer = 4 << 20;
        assert_eq!(settings.flow_buffer(), 4 << 20);
        (settings.rtt, settings.total_buffer) = (Duration::from_micros(10), 512 << 20);
        assert_eq!(settings.flow_buffer(), 16 << 20);
        settings.flow_buffer = Some(1 << 20);
        assert_eq!(settings.flow_buffer(), 1 << 20);
    }
}
