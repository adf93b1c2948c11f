//! Events that the scenario has happen on the way: faults, changes of policy, packets of other
//! transports.

#![expect(clippy::indexing_slicing, reason = "sites are numbered by the world that made them")]

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use roce::ip::{Addressing, emit};
use snapshot::Unwritable;
use splice::{Gateway, SessionEnd, Settings};

use super::World;
use super::check::check_policy;
use super::orders::Restart;
use crate::sim::Broken;
use crate::sim::ahead::Ahead;
use crate::sim::datagrams::transport;
use crate::sim::numbers::PREFIX;
use crate::sim::scenario::Fault;
use crate::sim::site::{Silence, Taken};
use linksim::impair::LinkSpec;

/// How long before an upgrade packets are copied: some round trips.
const COPYING: Duration = Duration::from_millis(50);

impl World {
    pub(super) fn play_faults(&mut self) -> Result<(), Broken> {
        while let Some((_, fault)) = self.faults.pop_front_if(|(at, _)| *at <= self.now) {
            self.line(|| format!("{fault:?}"));
            match fault {
                Fault::Partition(time) => self.cut(time),
                // Dead already.
                Fault::Crash { site, .. } if self.sites[site].gateway.is_none() => {}
                Fault::Crash { site, down, noticed } => {
                    self.sites[site].end();
                    self.watch.garbage[site] = 0;
                    self.restarts.push(Restart { at: self.now + down, site, from: None });
                    self.control.crashed(site);
                    self.control.lose(SessionEnd::Lost, self.now, [noticed; 2]);
                }
                Fault::Pause { site, time } => self.pause(site, time),
                Fault::Upgrade { site, .. } if self.sites[site].gateway.is_none() => {}
                Fault::Upgrade { site, down } => self.upgrade(site, down)?,
                Fault::Reconnect => {
                    let rtt = self.scenario.wan[0].delay;
                    self.control.lose(SessionEnd::Closed, self.now, [Duration::ZERO, rtt]);
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
        Ok(())
    }

    /// Gateways that are to be upgraded soon copy their packets ahead, meanwhile.
    pub(super) fn copy_ahead(&mut self) {
        let soon = self.now + COPYING;
        for (_, fault) in self.faults.iter().take_while(|(at, _)| *at <= soon) {
            let Fault::Upgrade { site, .. } = fault else { continue };
            let Some(site) = self.sites.get_mut(*site) else { continue };
            if let Some(gateway) = &mut site.gateway {
                site.ahead.get_or_insert_with(Ahead::new).step(gateway);
            }
        }
    }

    /// A gateway hands its state to another process and ends. What it writes, that process would
    /// write as well.
    fn upgrade(&mut self, site: usize, down: Duration) -> Result<(), Broken> {
        let Some(mut gateway) = self.sites[site].end() else { return Ok(()) };
        let refused = |what: &dyn ToString| ("snapshot", format!("of gateway {site}: {}", what.to_string()));
        let plain = gateway.snapshot(self.now).map_err(|error| refused(&error))?;
        let (snapshot, segments) = match self.sites[site].ahead.take() {
            Some(ahead) => ahead.take(&mut gateway, self.now).map_err(|error| refused(&error))?,
            None => (plain.clone(), Vec::new()),
        };
        let settings =
            Settings { policy: Arc::clone(gateway.policy()), ..self.sites[site].settings().clone() };
        for (snapshot, segments) in [(&plain, &[][..]), (&snapshot, &segments)] {
            let restored = Gateway::restore_beside(settings.clone(), snapshot, segments, self.now);
            let again = restored.map_err(|error| refused(&error))?.snapshot(self.now);
            if again.as_ref() != Ok(&plain) {
                return Err(refused(&"another one is written by whoever has read it"));
            }
        }
        self.watch.upgraded += 1;
        let from = Some(Taken { snapshot, segments, at: self.now, policy: Arc::clone(gateway.policy()) });
        self.restarts.push(Restart { at: self.now + down, site, from });
        self.control.upgraded(site, self.now, self.scenario.wan[site].delay);
        Ok(())
    }

    /// A gateway stands still. Its peer hears nothing, which it finds out itself once it goes on.
    fn pause(&mut self, site: usize, time: Duration) {
        let dead_after = self.scenario.dead_after;
        if self.sites[site].pause(self.now, self.now + time) && time >= dead_after {
            let mut delays = [dead_after; 2];
            delays[site] = time;
            self.control.lose(SessionEnd::Lost, self.now, delays);
        }
    }

    /// Returns what a site's gateway would hand to another process now; `None` without a gateway.
    ///
    /// # Errors
    /// See [`Gateway::snapshot`].
    pub fn snapshot(&mut self, site: usize) -> Option<Result<Vec<u8>, Unwritable>> {
        Some(self.sites.get_mut(site)?.gateway.as_mut()?.snapshot(self.now))
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
