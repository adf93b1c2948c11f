//! Sessions that come and go, and gateways that come back.

#![expect(clippy::indexing_slicing, reason = "sites are numbered by the world that made them")]

use std::time::{Duration, Instant};

use rand::RngExt;
use splice::SessionEnd;

use super::World;
use crate::sim::Broken;
use crate::sim::control::Order;
use crate::sim::site::Taken;

/// A gateway that is to come back.
pub(super) struct Restart {
    pub(super) at: Instant,
    pub(super) site: usize,
    /// With this state; `None`: with none.
    pub(super) from: Option<Taken>,
}

impl World {
    /// Notes what each gateway remembers, as one does on disk.
    pub(super) fn note_flows(&mut self) {
        for site in 0..2 {
            if let Some(gateway) = &self.sites[site].gateway
                && self.control.is_note_due(site, self.now)
            {
                self.control.remembered[site] = gateway.remembered().collect();
            }
        }
    }

    /// Does what is due now: link and gateways come back, sessions change, another one is planned.
    pub(super) fn play_orders(&mut self) -> Result<(), Broken> {
        if self.cut_until.is_some_and(|at| at <= self.now) {
            self.cut_until = None;
            self.line(|| "the long link is back".to_owned());
        }
        self.restart_gateways()?;
        self.wake_gateways()?;
        while let Some((site, order)) = self.control.pop(self.now) {
            self.line(|| format!("gateway {site}: {order:?}"));
            self.play_order(site, &order)?;
        }
        self.plan_session();
        Ok(())
    }

    fn restart_gateways(&mut self) -> Result<(), Broken> {
        let now = self.now;
        for Restart { site, from, .. } in
            self.restarts.extract_if(.., |restart| restart.at <= now).collect::<Vec<_>>()
        {
            match from {
                None => self.sites[site].restart(now),
                Some(taken) => self.take_over(site, &taken)?,
            }
            self.line(|| format!("gateway {site} is back"));
        }
        Ok(())
    }

    fn wake_gateways(&mut self) -> Result<(), Broken> {
        for site in 0..2 {
            let Some(orders) = self.sites[site].go_on(self.now) else { continue };
            self.line(|| format!("gateway {site} goes on"));
            for order in orders {
                self.play_order(site, &order)?;
            }
        }
        Ok(())
    }

    /// Another process has a gateway's snapshot, and finds its session lost or over.
    fn take_over(&mut self, site: usize, taken: &Taken) -> Result<(), Broken> {
        self.sites[site].take_over(taken, self.now).map_err(|refused| ("snapshot", refused.to_string()))?;
        let Some(gateway) = self.sites[site].gateway.as_mut().filter(|gateway| gateway.is_parked()) else {
            return Ok(());
        };
        if self.control.is_parked(site) {
            gateway.session_lost(self.now);
        } else {
            gateway.session_down(SessionEnd::Closed, self.now);
        }
        self.control.remembered[site] = gateway.remembered().collect();
        Ok(())
    }

    fn rtt(&self) -> Duration {
        self.scenario.wan[0].delay + self.scenario.wan[1].delay
    }

    fn play_order(&mut self, site: usize, order: &Order) -> Result<(), Broken> {
        let (rtt, lanes, max_packet) = (self.rtt(), self.scenario.settings.lanes, self.scenario.max_packet());
        if let Some(paused) = &mut self.sites[site].paused {
            paused.orders.push(order.clone());
            return Ok(());
        }
        let Some(gateway) = &self.sites[site].gateway else { return Ok(()) };
        match order {
            Order::Up { .. } | Order::Resumed { .. } | Order::Reborn { .. } => {
                self.numbers[site].listen();
                self.numbers[1 - site].restart();
            }
            Order::Lost(_) => self.check_numbers(site)?,
            Order::Down(_) if !gateway.is_parked() => self.check_numbers(site)?,
            Order::Down(_) => {}
        }
        let Some(gateway) = &mut self.sites[site].gateway else { return Ok(()) };
        match order {
            Order::Up { remembered, awaited, .. } => {
                gateway.session_up(rtt, max_packet, lanes, remembered, self.now);
                gateway.await_requesters(awaited, self.now);
            }
            Order::Reborn { ended, .. } => {
                gateway.session_reborn(rtt, max_packet, lanes, ended, self.now);
            }
            Order::Resumed { .. } => {
                if !gateway.session_resumed(rtt, max_packet, lanes, self.now) {
                    return Err(("model", format!("gateway {site} has nothing to go on with")));
                }
            }
            Order::Lost(_) => {
                gateway.session_lost(self.now);
                self.control.remembered[site] = gateway.remembered().collect();
            }
            Order::Down(end) => {
                gateway.session_down(*end, self.now);
                self.control.remembered[site] = gateway.remembered().collect();
            }
        }
        Ok(())
    }

    fn plan_session(&mut self) {
        let both = self.sites.iter().all(|site| site.gateway.is_some());
        if both && self.cut_until.is_none() && self.control.is_session_due() {
            let rtt = self.rtt();
            // The handshake, and what remains of the dialer's pause.
            let pause = Duration::from_millis(self.rng.random_range(0..200));
            let begin = self.now + rtt * 2 + pause;
            let skew = [self.rng.random_range(0.0..0.5), self.rng.random_range(0.0..0.5)];
            self.control.plan(skew.map(|part| begin + rtt.mul_f64(part)));
            if !self.scenario.resume_for.is_zero() && self.rng.random_bool(0.1) {
                self.control.tear(rtt);
            }
        }
    }
}
