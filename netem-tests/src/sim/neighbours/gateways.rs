//! A site: a gateway, its hosts, and their links.

use std::time::{Duration, Instant};

use ipnet::IpNet;
use splice::Gateway;

use super::{LiedTo, Meter, Neighbours};
use crate::host::Host;
use crate::sim::numbers::Numbers;
use crate::sim::site::{address, prefix};
use linksim::impair::{Link, LinkSpec};

/// Longest WAN packet, plaintext bytes.
pub(super) const MAX_WAN: usize = 1400;
/// Lanes from the peer: the second is a liar's.
pub(super) const LANES: u8 = 2;
/// A LAN is so many times as fast as the link.
const LAN_RATE: u64 = 20;
const LAN_DELAY: Duration = Duration::from_micros(5);

/// The network of invented names, behind the requesters' gateway.
pub(super) fn invented(ipv6: bool) -> IpNet {
    let name = if ipv6 { "fd0a:80::/64" } else { "10.128.0.0/16" };
    name.parse().unwrap_or_default()
}

pub(super) struct Station {
    pub(super) host: Host,
    /// To the gateway, and from it.
    pub(super) up: Link,
    pub(super) down: Link,
}

pub(super) struct Site {
    pub(super) gateway: Box<Gateway>,
    pub(super) meter: Meter,
    /// In the order of their addresses.
    pub(super) stations: Vec<Station>,
    /// Packets from here to the other site.
    pub(super) wan: Link,
    pub(super) numbers: Numbers,
}

impl Site {
    pub(super) fn new(index: usize, plan: &Neighbours, now: Instant) -> Option<Self> {
        let lied_to = plan.lies.map_or(LiedTo::Targets, |lies| lies.to);
        let is_metered = lied_to != LiedTo::Other && index == lied_to.site();
        let meter: Meter = if is_metered { plan.meter } else { |act| act() };
        let gateway = metered(meter, || {
            let mut settings = plan.settings(prefix(1 - index, plan.ipv6));
            // Those of the requesters' site are remote to the other.
            settings.remote.extend((index == 1).then(|| invented(plan.ipv6)));
            let mut gateway = Box::new(Gateway::new(settings, now));
            gateway.session_up(plan.wan.delay * 2, MAX_WAN, LANES, &[], now);
            gateway
        })?;
        let lan = LinkSpec { delay: LAN_DELAY, rate: Some(plan.rate * LAN_RATE), ..LinkSpec::default() };
        let seed = plan.seed.wrapping_mul(512) + 256 * index as u64;
        let station = |number| {
            let seed = seed + 2 * number as u64;
            let host = Host::new(address(index, number, plan.ipv6), 0x11);
            Station { host, up: Link::new(lan, seed), down: Link::new(lan, seed + 1) }
        };
        let targets = if plan.incast { 1 } else { plan.honest };
        let mut site = Self::bare(gateway, meter, Link::new(plan.wan, seed + 255));
        site.stations = (0..if index == 1 { targets } else { plan.honest }).map(station).collect();
        Some(site)
    }

    /// A gateway without hosts.
    pub(super) fn bare(gateway: Box<Gateway>, meter: Meter, wan: Link) -> Self {
        Self { gateway, meter, stations: Vec::new(), wan, numbers: Numbers::new(LANES) }
    }

    pub(super) fn metered<T>(&mut self, act: impl FnOnce(&mut Gateway) -> T) -> Option<T> {
        let Self { gateway, meter, .. } = self;
        metered(*meter, || act(gateway))
    }
}

/// Has a meter run this; what comes of it, if it does.
pub(super) fn metered<T>(meter: Meter, act: impl FnOnce() -> T) -> Option<T> {
    let (mut act, mut result) = (Some(act), None);
    meter(&mut || result = act.take().map(|act| act()));
    result
}
