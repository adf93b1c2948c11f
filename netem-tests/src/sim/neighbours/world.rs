//! Two sites, their gateways, and the link that all share.

#![expect(clippy::indexing_slicing, reason = "sites are 0 and 1, and lengths come with their buffers")]

use std::time::{Duration, Instant};

use ipnet::IpNet;
use roce::ip::Datagram;
use splice::{Arrival, Gateway, LaneId};

use super::writer::Writer;
use super::{Meter, Neighbour, Neighbours};
use crate::flood::Flood;
use crate::host::{Host, HostError, MAX_PACKET};
use crate::sim::liar::Liar;
use crate::sim::numbers::{self, Numbers, PREFIX};
use crate::sim::site::{address, prefix};
use linksim::impair::{Link, LinkSpec};

/// Longest WAN packet, plaintext bytes.
pub(super) const MAX_WAN: usize = 1400;
/// Lanes from the peer: the second is a liar's.
const LANES: u8 = 2;
const LIARS_LANE: LaneId = LaneId(1);
/// A LAN is so many times as fast as the link.
const LAN_RATE: u64 = 20;
const LAN_DELAY: Duration = Duration::from_micros(5);
/// Number of the host that floods, and of one that is not there.
const FLOODS: usize = 100;
const ABSENT: usize = 200;
/// So much later than it last polled does a driver ask when to come again.
const ASKED_AFTER: Duration = Duration::from_micros(20);

/// The network of invented names, behind the requesters' gateway.
pub(super) fn invented(ipv6: bool) -> IpNet {
    let name = if ipv6 { "fd0a:80::/64" } else { "10.128.0.0/16" };
    name.parse().unwrap_or_default()
}

struct Station {
    host: Host,
    /// To the gateway, and from it.
    up: Link,
    down: Link,
}

struct Site {
    gateway: Box<Gateway>,
    meter: Meter,
    /// In the order of their addresses.
    stations: Vec<Station>,
    /// Packets from here to the other site.
    wan: Link,
    numbers: Numbers,
}

pub(super) struct World {
    plan: Neighbours,
    sites: [Site; 2],
    /// One for each station of the requesters.
    writers: Vec<Writer>,
    flood: Option<Flood>,
    /// When it lies next.
    liar: Option<(Liar, Instant)>,
    stray: u64,
    now: Instant,
    buffer: Vec<u8>,
}

impl World {
    pub(super) fn new(plan: &Neighbours) -> Result<Self, HostError> {
        let now = Instant::now();
        let [Some(near), Some(far)] = [0, 1].map(|index| Site::new(index, plan, now)) else {
            return Err(HostError::Config("a meter that runs nothing"));
        };
        let mut sites = [near, far];
        let [near, far] = &mut sites;
        let writers = near.stations.iter_mut().enumerate().map(|(index, near)| {
            let target = &mut far.stations[plan.target_of(index)];
            Writer::new(&mut near.host, &mut target.host)
        });
        let writers = writers.collect::<Result<_, _>>()?;
        let buffer = vec![0; MAX_PACKET + 256];
        Ok(Self { plan: *plan, sites, writers, flood: None, liar: None, stray: 0, now, buffer })
    }

    /// The flood and the lies begin, and what is measured.
    pub(super) fn begin(&mut self) {
        let (rate, now) = (self.plan.rate, self.now);
        self.flood = self.plan.flood.map(|(kind, times)| {
            let to = if kind.is_to_absent_host() { ABSENT } else { 0 };
            let ends = [(0, FLOODS), (1, to)].map(|(site, number)| address(site, number, self.plan.ipv6));
            let ends = if self.plan.names > 0 { [invented(self.plan.ipv6).addr(), ends[1]] } else { ends };
            Flood::new(kind, rate as f64 * times, ends, now).in_names(self.plan.names)
        });
        self.liar = self.plan.lies.map(|lies| (Liar::new(lies.seed, lies.reach), now));
        self.writers.iter_mut().for_each(Writer::begin);
    }

    /// Plays on for so long.
    pub(super) fn run(&mut self, time: Duration) -> Result<(), String> {
        let end = self.now + time;
        loop {
            self.settle().map_err(|error| error.to_string())?;
            let next = self.next_event().ok_or("nothing moves any more")?;
            if next >= end {
                self.now = end;
                return Ok(());
            }
            self.now = self.now.max(next);
        }
    }

    pub(super) fn neighbours(&self, time: Duration) -> Vec<Neighbour> {
        let result = |writer: &Writer| writer.result(self.now, self.plan.rate, time);
        self.writers.iter().map(|writer| Neighbour { stray: self.stray, ..result(writer) }).collect()
    }

    fn next_event(&self) -> Option<Instant> {
        let asked = self.now + ASKED_AFTER;
        let sites = self.sites.iter().flat_map(|site| {
            let stations = site.stations.iter().flat_map(|station| {
                [station.host.next_timeout(), station.up.next_timeout(), station.down.next_timeout()]
            });
            stations.chain([site.gateway.next_timeout(asked), site.wan.next_timeout()])
        });
        let flood = self.flood.as_ref().map(Flood::next_timeout);
        sites.chain([flood, self.liar.as_ref().map(|(_, next)| *next)]).flatten().min()
    }

    fn settle(&mut self) -> Result<(), HostError> {
        let mut moved = true;
        while moved {
            moved = self.programs_act()?;
            self.flood_sends();
            self.liar_sends();
            for site in 0..2 {
                moved |= self.hosts_send(site);
                moved |= self.wan_delivers(site);
                moved |= self.gateway_acts(site);
                moved |= self.hosts_hear(site);
            }
        }
        Ok(())
    }

    fn programs_act(&mut self) -> Result<bool, HostError> {
        let mut moved = false;
        let [near, far] = &mut self.sites;
        for (index, (writer, near)) in self.writers.iter_mut().zip(&mut near.stations).enumerate() {
            let target = &mut far.stations[self.plan.target_of(index)];
            moved |= writer.drive(&mut near.host, &mut target.host, self.now)?;
        }
        Ok(moved)
    }

    /// By a cable of its own.
    fn flood_sends(&mut self) {
        let Some(flood) = &mut self.flood else { return };
        while let Some(len) = flood.poll_transmit(self.now, &mut self.buffer) {
            if let Ok(datagram) = Datagram::parse(&self.buffer[..len]) {
                self.sites[0].gateway.handle_lan(&datagram, self.now);
            }
        }
    }

    /// By a lane of its own, which the peer's honest part knows nothing of.
    fn liar_sends(&mut self) {
        let (Some((liar, next)), Some(lies)) = (&mut self.liar, self.plan.lies) else { return };
        while *next <= self.now {
            *next += Duration::from_secs(1) / lies.rate;
            let packet = liar.packet();
            let [near, far] = &mut self.sites;
            let mut datagram = vec![0; PREFIX + packet.len()];
            near.numbers.stamp(LIARS_LANE, &mut datagram);
            let (arrival, _) = numbers::split(&datagram);
            let arrival = Arrival { bytes: far.gateway.wire_bytes(packet.len()), ..arrival };
            let now = self.now;
            far.metered(|gateway| gateway.handle_wan(&packet, arrival, now));
        }
    }

    fn hosts_send(&mut self, site: usize) -> bool {
        let mut moved = false;
        let Site { gateway, meter, stations, .. } = &mut self.sites[site];
        for Station { host, up, .. } in stations {
            while let Some(len) = host.poll_transmit(self.now, &mut self.buffer) {
                moved = true;
                up.submit(self.now, &self.buffer[..len]);
            }
            while let Some(bytes) = up.poll(self.now) {
                moved = true;
                if let Ok(datagram) = Datagram::parse(bytes) {
                    let now = self.now;
                    metered(*meter, || gateway.handle_lan(&datagram, now));
                }
            }
        }
        moved
    }

    fn wan_delivers(&mut self, site: usize) -> bool {
        let mut moved = false;
        let [near, far] = &mut self.sites;
        let (from, to) = if site == 0 { (far, near) } else { (near, far) };
        while let Some(bytes) = from.wan.poll(self.now) {
            moved = true;
            let (arrival, packet) = numbers::split(bytes);
            let arrival = Arrival { bytes: to.gateway.wire_bytes(packet.len()), ..arrival };
            let now = self.now;
            to.metered(|gateway| gateway.handle_wan(packet, arrival, now));
        }
        moved
    }

    fn gateway_acts(&mut self, site: usize) -> bool {
        let now = self.now;
        let mut moved = self.sites[site].gateway.next_timeout(now).is_some_and(|at| at <= now);
        if moved {
            self.sites[site].metered(|gateway| gateway.handle_timeout(now));
        }
        let buffer = &mut self.buffer;
        while let Some(len) = self.sites[site].metered(|gateway| gateway.poll_lan(now, buffer)).flatten() {
            moved = true;
            let Ok(datagram) = Datagram::parse(&buffer[..len]) else { continue };
            let (from, to) = (datagram.addressing.src, datagram.addressing.dst);
            let is_known = [prefix(1 - site, self.plan.ipv6), invented(self.plan.ipv6)];
            let is_there = is_known.iter().any(|prefix| prefix.contains(&from))
                && prefix(site, self.plan.ipv6).contains(&to);
            self.stray += u64::from(!is_there);
            // Whoever is not there hears nothing.
            let mut stations = self.sites[site].stations.iter_mut();
            if let Some(station) = stations.find(|station| station.host.ip() == to) {
                station.down.submit(now, &buffer[..len]);
            }
        }
        while let Some(len) =
            self.sites[site].metered(|gateway| gateway.poll_wan(now, &mut buffer[PREFIX..])).flatten()
        {
            moved = true;
            let Site { gateway, wan, numbers, .. } = &mut self.sites[site];
            let datagram = &mut buffer[..PREFIX + len];
            numbers.stamp(gateway.wan_lane(), datagram);
            wan.submit(now, datagram);
        }
        moved
    }

    fn hosts_hear(&mut self, site: usize) -> bool {
        let mut moved = false;
        for Station { host, down, .. } in &mut self.sites[site].stations {
            while let Some(bytes) = down.poll(self.now) {
                moved = true;
                host.handle_packet(bytes, self.now);
            }
            if host.next_timeout().is_some_and(|at| at <= self.now) {
                moved = true;
                host.handle_timeout(self.now);
            }
        }
        moved
    }
}

impl Site {
    fn new(index: usize, plan: &Neighbours, now: Instant) -> Option<Self> {
        // It is the targets' gateway that is lied to.
        let meter: Meter = if index == 1 { plan.meter } else { |act| act() };
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
        Some(Self {
            gateway,
            meter,
            stations: (0..if index == 1 { targets } else { plan.honest }).map(station).collect(),
            wan: Link::new(plan.wan, seed + 255),
            numbers: Numbers::new(LANES),
        })
    }

    fn metered<T>(&mut self, act: impl FnOnce(&mut Gateway) -> T) -> Option<T> {
        let Self { gateway, meter, .. } = self;
        metered(*meter, || act(gateway))
    }
}

/// Has a meter run this; what comes of it, if it does.
fn metered<T>(meter: Meter, act: impl FnOnce() -> T) -> Option<T> {
    let (mut act, mut result) = (Some(act), None);
    meter(&mut || result = act.take().map(|act| act()));
    result
}
