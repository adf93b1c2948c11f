//! Two sites, their gateways, and the link that all share.

#![expect(clippy::indexing_slicing, reason = "sites are 0 and 1, and lengths come with their buffers")]

use std::time::{Duration, Instant};

use roce::ip::Datagram;
use roce::wire::{Packet, Transport};
use splice::{Arrival, LaneId};

use super::gateways::{Site, Station, invented, metered};
use super::other::Other;
use super::writer::Writer;
use super::{LiedTo, Neighbour, Neighbours};
use crate::flood::Flood;
use crate::host::{HostError, MAX_PACKET};
use crate::sim::liar::{Liar, Reach};
use crate::sim::numbers::{self, PREFIX};
use crate::sim::site::{address, prefix};

const LIARS_LANE: LaneId = LaneId(1);
/// Number of the host that floods, and of one that is not there.
const FLOODS: usize = 100;
const ABSENT: usize = 200;
/// So much later than it last polled does a driver ask when to come again.
const ASKED_AFTER: Duration = Duration::from_micros(20);

pub(super) struct World {
    plan: Neighbours,
    sites: [Site; 2],
    /// One for each station of the requesters.
    writers: Vec<Writer>,
    flood: Option<Flood>,
    /// When it lies next, once it has begun.
    liar: Option<(Liar, Option<Instant>)>,
    other: Option<Other>,
    stray: u64,
    aimed: u64,
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
        let liar = plan.lies.map(|lies| (liar(plan, lies), None));
        let has_other = plan.lies.is_some_and(|lies| lies.to == LiedTo::Other);
        let other = if has_other { Other::new(plan, &mut sites[0].stations[0].host, now)? } else { None };
        let (stray, aimed) = (0, 0);
        Ok(Self { plan: *plan, sites, writers, flood: None, liar, other, stray, aimed, now, buffer })
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
        if let Some((_, next)) = &mut self.liar {
            *next = Some(now);
        }
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
        let (stray, aimed) = (self.stray, self.aimed);
        self.writers.iter().map(|writer| Neighbour { stray, aimed, ..result(writer) }).collect()
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
        let other = self.other.as_ref().and_then(|other| other.next_timeout(asked));
        sites.chain([flood, self.liar.as_ref().and_then(|(_, next)| *next), other]).flatten().min()
    }

    fn settle(&mut self) -> Result<(), HostError> {
        let mut moved = true;
        while moved {
            moved = self.programs_act()?;
            self.flood_sends();
            self.liar_sends();
            moved |= self.other_acts()?;
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
        let (Some((liar, Some(next))), Some(lies)) = (&mut self.liar, self.plan.lies) else { return };
        while *next <= self.now {
            *next += Duration::from_secs(1) / lies.rate;
            let packet = liar.packet();
            let [near, far] = &mut self.sites;
            let (from, to) = match (lies.to, &mut self.other) {
                (LiedTo::Targets, _) => (&mut near.numbers, far),
                (LiedTo::Requesters, _) => (&mut far.numbers, near),
                (LiedTo::Other, Some(Other { numbers, site, .. })) => (numbers, site),
                (LiedTo::Other, None) => return,
            };
            let mut datagram = vec![0; PREFIX + packet.len()];
            from.stamp(LIARS_LANE, &mut datagram);
            let (arrival, _) = numbers::split(&datagram);
            let arrival = Arrival { bytes: to.gateway.wire_bytes(packet.len()), ..arrival };
            let now = self.now;
            to.metered(|gateway| gateway.handle_wan(&packet, arrival, now));
        }
    }

    /// The gateway with another peer, whose honest part hears all and says nothing.
    fn other_acts(&mut self) -> Result<bool, HostError> {
        let (Some(other), Some((liar, _))) = (&mut self.other, &mut self.liar) else { return Ok(false) };
        let (now, buffer) = (self.now, &mut self.buffer);
        let mut moved = other.drive(&mut self.sites[0].stations[0].host, now)?;
        while let Some(len) = other.site.metered(|gateway| gateway.poll_lan(now, buffer)).flatten() {
            moved = true;
            let Ok(datagram) = Datagram::parse(&buffer[..len]) else { continue };
            let (from, to) = (datagram.addressing.src, datagram.addressing.dst);
            let is_there = other.hosts.contains(&from) && prefix(0, self.plan.ipv6).contains(&to);
            self.stray += u64::from(!is_there);
            let mut hosts = self.sites[0].stations.iter_mut().zip(&self.writers);
            let Some((station, writer)) = hosts.find(|(station, _)| station.host.ip() == to) else {
                continue;
            };
            if let Ok(packet) = Packet::parse(datagram.transport) {
                let is_rc = packet.bth.opcode.transport() == Transport::Rc;
                self.aimed += u64::from(is_rc && writer.has(packet.bth.dest_qp));
            }
            station.down.submit(now, &buffer[..len]);
        }
        while let Some(len) = other.site.metered(|gateway| gateway.poll_wan(now, buffer)).flatten() {
            moved = true;
            liar.overhear(&buffer[..len]);
        }
        Ok(moved)
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
                    let other = self.other.as_mut().filter(|_| site == 0);
                    match other.filter(|other| other.hosts.contains(&datagram.addressing.dst)) {
                        Some(other) => other.site.metered(|gateway| gateway.handle_lan(&datagram, now)),
                        None => metered(*meter, || gateway.handle_lan(&datagram, now)),
                    };
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
            // What other peers say to each other nobody hears.
            if let Some((liar, _)) = self.liar.as_mut().filter(|_| self.other.is_none()) {
                liar.overhear(packet);
            }
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

/// The liar that stands beside the peer of a gateway.
fn liar(plan: &Neighbours, lies: super::Lies) -> Liar {
    let liar = Liar::new(lies.seed, lies.reach);
    let liar = if let Some(lie) = lies.only { liar.by(lie) } else { liar };
    let sites = match lies.to {
        LiedTo::Targets => return liar,
        LiedTo::Requesters => [1, 0],
        LiedTo::Other => [2, 0],
    };
    let is_aside = lies.reach == Reach::Aside && lies.to == LiedTo::Requesters;
    let liar = liar.between(sites);
    if is_aside { liar.sparing(address(0, 0, plan.ipv6)) } else { liar }
}
