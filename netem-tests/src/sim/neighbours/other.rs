//! A gateway at the requesters' site with a peer of its own, which lies, and requests for hosts
//! behind that.

use std::time::{Duration, Instant};

use ipnet::IpNet;
use roce::wire::{PathMtu, Psn, Qpn};
use splice::Gateway;

use super::Neighbours;
use super::gateways::{LANES, MAX_WAN, Site, metered};
use crate::host::{Access, Host, HostError, QpConfig, RegionHandle, Remote, RemoteAddr};
use crate::sim::numbers::Numbers;
use crate::sim::site::{address, prefix};
use linksim::impair::Link;

/// The number of the site behind the peer.
const THERE: usize = 2;
/// A connection begins each such time, and has so many WRITEs.
const EACH: Duration = Duration::from_millis(4);
const WRITES: u64 = 16;
const MESSAGE: usize = 1024;
/// The target's memory, which nobody has.
const RKEY: u32 = 0x77;

pub(super) struct Other {
    /// Its gateway. It has no hosts of its own.
    pub(super) site: Site,
    /// Numbers of the packets to it.
    pub(super) numbers: Numbers,
    /// Addresses behind its peer.
    pub(super) hosts: IpNet,
    local: RegionHandle,
    target: Remote,
    begins: Instant,
}

impl Other {
    pub(super) fn new(plan: &Neighbours, host: &mut Host, now: Instant) -> Result<Option<Self>, HostError> {
        let hosts = prefix(THERE, plan.ipv6);
        let gateway = metered(plan.meter, || {
            let mut gateway = Box::new(Gateway::new(plan.settings(hosts), now));
            gateway.session_up(plan.wan.delay * 2, MAX_WAN, LANES, &[], now);
            gateway
        });
        let Some(gateway) = gateway else { return Ok(None) };
        Ok(Some(Self {
            site: Site::bare(gateway, plan.meter, Link::new(plan.wan, plan.seed)),
            numbers: Numbers::new(LANES),
            hosts,
            local: host.register(vec![0; MESSAGE], Access::LOCAL),
            target: Remote { ip: address(THERE, 0, plan.ipv6), qpn: Qpn::new(0x100), psn: Psn::new(0) },
            begins: now,
        }))
    }

    pub(super) fn next_timeout(&self, asked: Instant) -> Option<Instant> {
        self.site.gateway.next_timeout(asked).into_iter().chain([self.begins]).min()
    }

    /// Lets time pass, and begins another connection if it is time. True if anything happened.
    pub(super) fn drive(&mut self, host: &mut Host, now: Instant) -> Result<bool, HostError> {
        let is_due = self.site.gateway.next_timeout(now).is_some_and(|at| at <= now);
        if is_due {
            self.site.metered(|gateway| gateway.handle_timeout(now));
        }
        if now < self.begins {
            return Ok(is_due);
        }
        self.begins += EACH;
        self.target.qpn = Qpn::new(self.target.qpn.get() + 1);
        let qpn = host.create_qp(QpConfig { mtu: PathMtu::B1024, ..QpConfig::default() })?;
        host.connect(qpn, Psn::new(0), self.target)?;
        for number in 0..WRITES {
            let remote = RemoteAddr { va: 0, rkey: RKEY };
            host.post_write(qpn, number, self.local.slice(0, MESSAGE as u32), remote, None)?;
        }
        Ok(true)
    }
}
