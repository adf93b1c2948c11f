//! Events that the scenario has happen on the way: faults, changes of policy, packets of other
//! transports.

#![expect(clippy::indexing_slicing, reason = "sites are numbered by the world that made them")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use roce::ip::{Addressing, emit};
use splice::{Gateway, SessionEnd};

use super::World;
use super::check::check_policy;
use crate::sim::Broken;
use crate::sim::datagrams::transport;
use crate::sim::numbers::PREFIX;
use crate::sim::scenario::Fault;
use crate::sim::site::Silence;
use linksim::impair::LinkSpec;

/// An upgrade under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Upgrade {
    site: usize,
    down: Duration,
    /// When it is given up.
    pub(super) until: Instant,
}

/// How long gateways may take to come to rest.
const LONGEST_HOLD: Duration = Duration::from_secs(1);

impl World {
    pub(super) fn play_faults(&mut self) {
        while let Some((_, fault)) = self.faults.pop_front_if(|(at, _)| *at <= self.now) {
            self.line(|| format!("{fault:?}"));
            match fault {
                Fault::Partition(time) => self.cut(time),
                // Dead already.
                Fault::Crash { site, .. } if self.sites[site].gateway.is_none() => {}
                Fault::Crash { site, down, noticed } => {
                    self.sites[site].gateway = None;
                    self.garbage[site] = 0;
                    self.restarts.push((self.now + down, site));
                    self.control.crashed(site);
                    self.control.lose(SessionEnd::Lost, self.now, [noticed; 2]);
                }
                Fault::Reconnect => {
                    let rtt = self.scenario.wan[0].delay;
                    self.control.lose(SessionEnd::Closed, self.now, [Duration::ZERO, rtt]);
                }
                // Another one has begun, or there is nothing to bring to rest.
                Fault::Upgrade { .. } if self.upgrade.is_some() || !self.control.are_up() => {}
                Fault::Upgrade { site, down } => {
                    self.gateways().for_each(Gateway::hold);
                    self.upgrade = Some(Upgrade { site, down, until: self.now + LONGEST_HOLD });
                }
                Fault::Silence { site, host, time } => {
                    let until = time.map_or(Silence::ForGood, |time| Silence::Until(self.now + time));
                    if let Some(station) = self.sites[site].hosts.get_mut(host) {
                        station.silent = Some(until);
                    }
                    for program in &mut self.programs {
                        if until == Silence::ForGood && program.ends[site].host == host {
                            program.stop(site, &mut self.sites);
                        }
                    }
                }
                Fault::Tune { site, tuning } => {
                    if let Some(gateway) = &mut self.sites[site].gateway {
                        let policy = Arc::clone(gateway.policy());
                        gateway.tune(&policy, 0, &tuning);
                    }
                }
                Fault::Mtu { site, packet } => {
                    for link in self.wan.get_mut(site).into_iter().flatten() {
                        link.set_spec(LinkSpec { mtu: Some(PREFIX + packet), ..*link.spec() });
                    }
                }
                Fault::Lane { site, lane, link } => {
                    if let Some(lane) = self.wan.get_mut(site).and_then(|lanes| lanes.get_mut(lane)) {
                        lane.set_spec(LinkSpec { mtu: lane.spec().mtu, ..link });
                    }
                }
                Fault::Stop { connection, site } => {
                    if let Some(program) = self.programs.get_mut(connection) {
                        program.stop(site, &mut self.sites);
                    }
                }
            }
        }
    }

    fn gateways(&mut self) -> impl Iterator<Item = &mut Gateway> {
        self.sites.iter_mut().filter_map(|site| site.gateway.as_mut())
    }

    /// Goes on with an upgrade once both gateways rest, or ends it when that takes too long.
    pub(super) fn play_upgrade(&mut self) {
        let Some(Upgrade { site, down, until }) = self.upgrade else { return };
        let now = self.now;
        let rests = self.control.are_up() && self.gateways().all(|gateway| gateway.rests());
        if rests {
            self.line(|| format!("gateway {site} is upgraded"));
            self.gateways().for_each(|gateway| gateway.session_rested(now));
            self.sites[site].gateway = None;
            self.garbage[site] = 0;
            self.restarts.push((now + down, site));
            self.control.rested();
            self.upgraded += 1;
            self.upgrade = None;
        } else if now >= until || !self.control.are_up() {
            self.line(|| format!("gateway {site} is not upgraded"));
            self.gateways().for_each(|gateway| gateway.release(now));
            self.upgrade = None;
        }
    }

    /// The link is cut; a session that hears nothing for too long ends, on each side at its own
    /// time.
    fn cut(&mut self, time: Duration) {
        let until = self.now + time;
        self.cut_until = Some(self.cut_until.map_or(until, |at| at.max(until)));
        let dead_after = self.scenario.dead_after;
        if time >= dead_after {
            let later = dead_after.mul_f64(self.rng.random_range(0.0..0.2));
            let mut delays = [dead_after, (dead_after + later).min(time)];
            if self.rng.random() {
                delays.reverse();
            }
            self.control.lose(SessionEnd::Lost, self.now, delays);
        }
    }

    pub(super) fn play_reloads(&mut self) -> Result<(), Broken> {
        while let Some((_, site, policy)) = self.reloads.pop_front_if(|(at, ..)| *at <= self.now) {
            self.line(|| format!("gateway {site} adopts {policy:?}"));
            let Some(site) = self.sites.get_mut(site) else { continue };
            site.adopt(&policy, self.now);
            check_policy(site)?;
        }
        Ok(())
    }

    pub(super) fn play_bursts(&mut self) {
        while let Some(burst) = self.bursts.pop_front_if(|burst| self.start + burst.at <= self.now) {
            let addressing = Addressing {
                src: self.scenario_ip(burst.site, 0),
                dst: self.scenario_ip(1 - burst.site, 0),
                src_port: self.rng.random_range(0xc000..=0xffff),
                tclass: self.rng.random::<u8>() & 0xfc,
                ttl: 64,
            };
            for count in 0..burst.count {
                let bytes = transport(&burst, &mut self.rng);
                let ident = u16::try_from(count + 1).unwrap_or(1);
                if let Ok(len) = emit(&addressing, ident, &bytes, &mut self.buffer)
                    && let Some(station) = self.sites[burst.site].hosts.first_mut()
                {
                    station.up.submit(self.now, &self.buffer[..len]);
                }
            }
        }
    }
}
