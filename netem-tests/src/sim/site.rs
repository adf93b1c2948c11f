//! One site: its hosts, their links, and the gateway at the edge.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use config::Policy;
use ipnet::IpNet;
use roce::wire::Qpn;
use snapshot::{Refused, Segments};
use splice::retention::{Age, Memory, Retention};
use splice::{Gateway, Settings};

use super::ahead::Ahead;
use super::control::Order;
use super::scenario::Scenario;
use crate::host::{Host, MAX_PACKET};
use linksim::impair::Link;

pub(super) struct Site {
    index: usize,
    settings: Settings,
    /// `None`: crashed and not yet replaced, or paused.
    pub(super) gateway: Option<Gateway>,
    /// Memory for the process that will take its place.
    pub(super) ahead: Option<Ahead>,
    /// The memory of the process before, while there is none.
    memory: Option<Box<dyn Memory>>,
    pub(super) paused: Option<Paused>,
    pub(super) hosts: Vec<Station>,
    /// Gateways that stood here before.
    pub(super) restarts: u64,
    /// Policies refused for want of streams.
    pub(super) refused: u64,
    /// How often processes that have ended carried what was retained.
    carried: u64,
}

/// A gateway whose process stands still.
pub(super) struct Paused {
    pub(super) gateway: Gateway,
    pub(super) since: Instant,
    pub(super) until: Instant,
    /// They wait for it.
    pub(super) orders: Vec<Order>,
}

/// The snapshot of a gateway.
pub(super) struct Taken {
    pub(super) snapshot: Vec<u8>,
    /// Packets beside it.
    pub(super) segments: Segments,
    pub(super) at: Instant,
    /// The policy in force then.
    pub(super) policy: Arc<Policy>,
}

/// A host on its LAN.
pub(super) struct Station {
    pub(super) ip: IpAddr,
    pub(super) host: Host,
    /// To the gateway.
    pub(super) up: Link,
    /// From the gateway.
    pub(super) down: Link,
    /// Cut off until then; `None`: it is not.
    pub(super) silent: Option<Silence>,
    /// The uses of its queue pairs, where there were any.
    pub(super) uses: BTreeMap<Qpn, Use>,
}

/// The use of a queue pair so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    /// Since when it is free; `None`: it is not.
    pub(super) left: Option<Instant>,
    /// Added to the PSNs of the lives to come.
    pub(super) moved: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    Until(Instant),
    ForGood,
}

impl Site {
    pub(super) fn new(index: usize, scenario: &Scenario, now: Instant) -> Self {
        let max_packet = scenario.max_packet_there.filter(|_| index == 1);
        let settings = Settings {
            remote: vec![prefix(1 - index, scenario.ipv6)],
            max_packet: max_packet.unwrap_or(scenario.settings.max_packet),
            ..scenario.settings.clone()
        };
        let stations = scenario.hosts.get(index).copied().unwrap_or(1);
        let hosts = (0..stations).map(|number| Station::new(index, number, scenario)).collect();
        let mut site = Self {
            index,
            gateway: None,
            memory: (scenario.retained > 0)
                .then(|| Box::new(vec![0u8; scenario.retained]) as Box<dyn Memory>),
            ahead: None,
            paused: None,
            settings,
            hosts,
            restarts: 0,
            refused: 0,
            carried: 0,
        };
        site.begin(Gateway::new(site.settings.clone(), now), now);
        site
    }

    pub(super) fn restart(&mut self, now: Instant) {
        self.restarts += 1;
        self.begin(Gateway::new(self.settings.clone(), now), now);
    }

    fn begin(&mut self, mut gateway: Gateway, now: Instant) {
        if let Some(memory) = self.memory.take() {
            let until = now + self.settings.idle_flow.max(self.settings.linger);
            gateway.retain(Retention::new(memory, MAX_PACKET, until, |_| Age::Recent));
        }
        self.gateway = Some(gateway);
    }

    /// The gateway's process ends: that of the next one finds what it retained.
    pub(super) fn end(&mut self) -> Option<Gateway> {
        self.carried = self.retained_carried();
        let mut gateway = self.gateway.take()?;
        self.memory = gateway.take_retention().map(Retention::into_memory);
        Some(gateway)
    }

    /// Returns how often this site's gateways carried what was retained.
    pub(super) fn retained_carried(&self) -> u64 {
        let now = self.gateway.as_ref().and_then(Gateway::retention).map_or(0, Retention::carried);
        self.carried + now
    }

    /// The gateway's process stands still until then. Not if there is none, or it does already.
    pub(super) fn pause(&mut self, now: Instant, until: Instant) -> bool {
        let taken = self.gateway.take();
        let is_taken = taken.is_some();
        if let Some(gateway) = taken {
            self.paused = Some(Paused { gateway, since: now, until, orders: Vec::new() });
        }
        is_taken
    }

    /// Its process goes on, if that is due. Returns the orders that waited for it.
    pub(super) fn go_on(&mut self, now: Instant) -> Option<Vec<Order>> {
        let Paused { mut gateway, since, orders, .. } = self.paused.take_if(|paused| paused.until <= now)?;
        gateway.excuse_pause(now.saturating_duration_since(since), now);
        self.gateway = Some(gateway);
        Some(orders)
    }

    /// Another process goes on where the gateway stood. One that cannot adopt the policy that there
    /// is by now has the one before.
    pub(super) fn take_over(&mut self, taken: &Taken, now: Instant) -> Result<(), Refused> {
        let Taken { snapshot, segments, at, .. } = taken;
        let read = |settings: &Settings| Gateway::restore_beside(settings.clone(), snapshot, segments, *at);
        let gateway = match read(&self.settings) {
            Err(Refused::Setting("policy")) => {
                self.refused += 1;
                self.settings.policy = Arc::clone(&taken.policy);
                read(&self.settings)?
            }
            read => read?,
        };
        self.begin(gateway, now);
        Ok(())
    }

    /// The gateway, if there is one, adopts a policy now; so does whichever comes after it.
    pub(super) fn adopt(&mut self, policy: &Policy, now: Instant) {
        let refused = match &mut self.gateway {
            Some(gateway) => gateway.set_policy(Arc::new(policy.clone()), now).is_err(),
            None => false,
        };
        self.refused += u64::from(refused);
        if !refused {
            self.settings.policy = policy.clone().into();
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn station_of(&mut self, ip: IpAddr) -> Option<&mut Station> {
        self.hosts.iter_mut().find(|station| station.ip == ip)
    }

    /// Malformed packets that got in from the LAN stand in the hosts' counters; this is the site's
    /// number for traces.
    pub(super) fn name(&self) -> char {
        if self.index == 0 { 'a' } else { 'b' }
    }
}

impl Station {
    fn new(site: usize, number: usize, scenario: &Scenario) -> Self {
        let ip = address(site, number, scenario.ipv6);
        let seed = scenario.seed.wrapping_mul(64).wrapping_add((site * 16 + number * 2) as u64 + 8);
        let mut host = Host::new(ip, scenario.first_qpn);
        host.watch();
        Self {
            ip,
            host,
            up: Link::new(scenario.lan, seed),
            down: Link::new(scenario.lan, seed + 1),
            silent: None,
            uses: BTreeMap::new(),
        }
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent.is_some()
    }
}

pub(super) fn address(site: usize, number: usize, ipv6: bool) -> IpAddr {
    let (site, number) = (site as u8, number as u8 + 1);
    if ipv6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, u16::from(site), 0, 0, 0, u16::from(number)))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 0, site, number))
    }
}

pub(super) fn prefix(site: usize, ipv6: bool) -> IpNet {
    let length = if ipv6 { 64 } else { 24 };
    IpNet::new_assert(address(site, 0, ipv6), length).trunc()
}
