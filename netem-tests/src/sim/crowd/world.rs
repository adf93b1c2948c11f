//! A crowd in virtual time, over gateways or over plain routing.

#![expect(
    clippy::indexing_slicing,
    reason = "sites and queue pairs are numbered by the crowd that made them"
)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use roce::ip::{Datagram, emit};
use roce::wire::{Packet, Psn, Qpn};
use splice::{Gateway, Settings};

use super::life::Life;
use super::scenario::Crowd;
use super::spoofer::Spoofer;
use super::{Flaw, Outcome};
use crate::host::{Host, MAX_PACKET, Status};
use crate::sim::judge::{Bond, Judge, OUTLIVED, Wrong};
use crate::sim::numbers::{self, Numbers, PREFIX};
use crate::sim::site::{address, prefix};
use linksim::impair::Link;

/// The devices between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Two gateways.
    Gateways,
    /// LAN, long link, LAN.
    Plain,
}

/// A change to a packet on a plain route, given the site it comes from: `false` has it lost.
pub type Tamper = Box<dyn FnMut(usize, &mut Vec<u8>) -> bool + Send>;

struct Site {
    ip: IpAddr,
    host: Host,
    up: Link,
    down: Link,
    gateway: Option<Box<Gateway>>,
    qpns: Vec<Qpn>,
    /// Since when each queue pair is free, and what it took part in last; `None` while it is in
    /// use.
    free: Vec<Option<Free>>,
    /// Which packets towards the host a switch marks.
    marks: Pcg64Mcg,
}

#[derive(Clone, Copy, Debug)]
struct Free {
    since: Instant,
    /// Something was under way at its reset.
    dirty: bool,
}

/// A [`Crowd`] that is played.
pub struct CrowdWorld {
    crowd: Crowd,
    route: Route,
    sites: [Site; 2],
    wan: [Link; 2],
    numbers: [Numbers; 2],
    start: Instant,
    now: Instant,
    /// Lives that have not begun, in their order.
    next: Vec<usize>,
    running: Vec<Life>,
    judge: Judge,
    /// When either end of an incarnation last sent a request again.
    repeated: BTreeMap<u64, Instant>,
    outcome: Outcome,
    buffer: Vec<u8>,
    lines: Option<Vec<String>>,
    tamper: Option<Tamper>,
    spoofers: [Option<Spoofer>; 2],
}

/// How long programs wait for what must end.
const PATIENCE: Duration = Duration::from_secs(60);
/// For what plain RC may fail at as well.
const LESS_PATIENCE: Duration = Duration::from_secs(3);
const MOST_STEPS: u64 = 3_000_000;
/// So much later than it last polled does a driver ask when to come again.
const ASKED_AFTER: Duration = Duration::from_micros(20);

impl CrowdWorld {
    /// A world at its beginning.
    ///
    /// # Errors
    /// What is impossible about the crowd.
    pub fn new(crowd: Crowd, route: Route) -> Result<Self, String> {
        let start = Instant::now();
        let seed = crowd.seed.wrapping_mul(64);
        let mut sites = [0, 1].map(|index| Site::new(index, &crowd, route, start));
        for (site, qps) in sites.iter_mut().zip(&crowd.queue_pairs) {
            for qp in qps {
                let qpn = site.host.create_qp(*qp).map_err(|error| error.to_string())?;
                site.qpns.push(qpn);
                site.free.push(Some(Free { since: start + Duration::from_millis(5), dirty: false }));
            }
        }
        let mut world = Self {
            route,
            sites,
            wan: [0, 1].map(|index| Link::new(crowd.wan[index], seed + 40 + index as u64)),
            numbers: [Numbers::new(1), Numbers::new(1)],
            start,
            now: start,
            next: (0..crowd.lives.len()).collect(),
            running: Vec::new(),
            judge: Judge::default(),
            repeated: BTreeMap::new(),
            outcome: Outcome {
                first: vec![[None; 2]; crowd.lives.len()],
                took: vec![Vec::new(); crowd.lives.len()],
                excused: vec![false; crowd.lives.len()],
                ..Outcome::default()
            },
            buffer: vec![0; MAX_PACKET.max(crowd.settings.max_packet) + 256],
            lines: None,
            tamper: None,
            spoofers: [0, 1].map(|site| Some(Spoofer::new(crowd.spoofing?, seed + 50 + site as u64, start))),
            crowd,
        };
        for site in &mut world.sites {
            if let Some(gateway) = &mut site.gateway {
                gateway.session_up(world.crowd.session_rtt, world.crowd.settings.max_packet, 1, &[], start);
            }
        }
        Ok(world)
    }

    /// Keeps a line for each packet, for [`CrowdWorld::trace`].
    pub fn record(&mut self) {
        self.lines = Some(Vec::new());
    }

    /// Returns the lines recorded.
    #[must_use]
    pub fn trace(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }

    /// Has packets on a plain route changed or lost.
    pub fn tamper(&mut self, tamper: Tamper) {
        self.tamper = Some(tamper);
    }

    /// Plays to the end.
    ///
    /// # Errors
    /// What is impossible about the crowd, or that it does not come to rest.
    pub fn run(&mut self) -> Result<Outcome, String> {
        while self.step()? {}
        self.outcome.busy = self.now - self.start;
        self.outcome.checked = self.judge.checked;
        self.outcome.notified = self.sites.iter().map(|site| site.host.stats().cnps_out).sum();
        for spoofer in self.spoofers.iter().flatten() {
            self.outcome.spoofed = self.outcome.spoofed.with(spoofer.spoofed);
        }
        Ok(std::mem::take(&mut self.outcome))
    }

    fn step(&mut self) -> Result<bool, String> {
        self.settle()?;
        self.outcome.steps += 1;
        if self.outcome.steps > MOST_STEPS {
            return Err(format!("does not come to rest, {:?} after the start", self.now - self.start));
        }
        if self.next.is_empty() && self.running.is_empty() {
            return Ok(false);
        }
        let waiting = self.running.iter().map(|life| (0..2).filter(|end| life.waits(*end)).count()).sum();
        self.outcome.waiting = self.outcome.waiting.max(waiting);
        let next = self.next_event().ok_or("nothing moves any more")?;
        self.now = self.now.max(next);
        for site in &mut self.sites {
            site.host.handle_timeout(self.now);
        }
        Ok(true)
    }

    fn next_event(&self) -> Option<Instant> {
        let asked = self.now + ASKED_AFTER;
        let sites = self.sites.iter().flat_map(|site| {
            let gateway = site.gateway.as_ref().and_then(|gateway| gateway.next_timeout(asked));
            [site.host.next_timeout(), site.up.next_timeout(), site.down.next_timeout(), gateway]
        });
        let lives = self.running.iter().map(|life| life.next_event(self.patience(life)));
        let begins = self.beginning().into_iter().map(|(_, at)| Some(at));
        let spoofers = self.spoofers.iter().flatten().map(Spoofer::next);
        let sites = sites.chain(spoofers);
        sites.chain(self.wan.iter().map(Link::next_timeout)).chain(lives).chain(begins).flatten().min()
    }

    fn patience(&self, life: &Life) -> Duration {
        if self.outcome.excused[life.number] { LESS_PATIENCE } else { PATIENCE }
    }

    /// Lives whose queue pairs are free, and when each begins. A queue pair takes part in lives in
    /// their order.
    fn beginning(&self) -> Vec<(usize, Instant)> {
        let mut taken = [vec![false; self.sites[0].qpns.len()], vec![false; self.sites[1].qpns.len()]];
        let mut begins = Vec::new();
        for number in &self.next {
            let life = &self.crowd.lives[*number];
            let free: Vec<_> = (0..2)
                .filter_map(|end| {
                    self.sites[end].free[life.ends[end]].filter(|_| !taken[end][life.ends[end]])
                })
                .collect();
            if let [one, other] = free[..] {
                begins.push((*number, one.since.max(other.since) + life.pause));
            }
            (0..2).for_each(|end| taken[end][life.ends[end]] = true);
        }
        begins
    }

    fn settle(&mut self) -> Result<(), String> {
        let mut moved = true;
        while moved {
            moved = self.programs_act()?;
            for site in 0..2 {
                moved |= self.spoofer_sends(site);
                moved |= self.host_sends(site);
                moved |= self.lan_delivers(site);
                moved |= self.wan_delivers(site);
                moved |= self.gateway_acts(site);
                moved |= self.host_hears(site);
            }
        }
        Ok(())
    }

    fn programs_act(&mut self) -> Result<bool, String> {
        let mut acted = false;
        for (number, at) in self.beginning() {
            if at <= self.now {
                self.begin(number);
                acted = true;
            }
        }
        let mut running = std::mem::take(&mut self.running);
        for life in &mut running {
            acted |= self.live(life).map_err(|error| error.to_string())?;
        }
        let patience = |world: &Self, life: &Life| world.patience(life);
        let (over, running): (Vec<_>, Vec<_>) =
            running.into_iter().partition(|life| life.is_over(patience(self, life), self.now));
        self.running = running;
        acted |= !over.is_empty();
        for life in over {
            self.end(&life);
        }
        Ok(acted)
    }

    fn begin(&mut self, number: usize) {
        self.next.retain(|other| *other != number);
        let plan = self.crowd.lives[number].clone();
        let dirty =
            |world: &Self, end: usize| world.sites[end].free[plan.ends[end]].is_some_and(|free| free.dirty);
        // An ACK that a later one overtook may be under way for as long as the link takes.
        let overtaken = self.route == Route::Plain
            && plan.pause < self.crowd.rtt
            && self.crowd.wan.iter().any(|link| link.reorder > 0.0);
        self.outcome.excused[number] = dirty(self, 0) || dirty(self, 1) || overtaken;
        for end in 0..2 {
            self.sites[end].free[plan.ends[end]] = None;
        }
        let [one, other] = &mut self.sites;
        let life = Life::begin(number, &plan, &mut [&mut one.host, &mut other.host], self.now);
        let excused = self.outcome.excused[number];
        self.line(|| format!("life {number} begins, excused: {excused}, {plan:?}"));
        self.running.push(life);
    }

    fn live(&mut self, life: &mut Life) -> Result<bool, crate::host::HostError> {
        let mut acted = false;
        let qpns = [0, 1].map(|end: usize| self.sites[end].qpns[life.plan.ends[end]]);
        let ips = [0, 1].map(|end: usize| self.sites[end].ip);
        for end in 0..2 {
            let at = life.begun + if end == 1 { life.plan.skew } else { Duration::ZERO };
            if life.sides[end].connected.is_none() && at <= self.now && !(end == 1 && life.plan.dead) {
                let bond = Bond {
                    number: life.number as u64,
                    ends: [(ips[0], qpns[0]), (ips[1], qpns[1])],
                    psn: life.plan.psn.map(Psn::new),
                    mtu: self.crowd.queue_pairs[0][life.plan.ends[0]].mtu,
                };
                self.judge.connected(bond, end);
                life.connect(end, &mut self.sites[end].host, qpns, ips[1 - end], self.now)?;
                acted = true;
            }
            acted |= life.post(end, &mut self.sites[end].host, qpns[end], self.now)?;
        }
        if life.change_at.is_some_and(|at| at <= self.now) {
            let [one, other] = &mut self.sites;
            life.change([&mut one.host, &mut other.host], self.now);
        }
        Ok(acted)
    }

    /// Both queue pairs are reset.
    fn end(&mut self, life: &Life) {
        let number = life.number;
        let settled = life.is_done() && self.judge.is_answered(number as u64);
        let stuck = !life.is_done() && life.plan.cut.is_none() && !life.sides.iter().any(|side| side.failed);
        if stuck {
            let done = life.sides.each_ref().map(|side| side.done);
            self.flaw(
                "stuck",
                number,
                0,
                format!("{done:?} of {:?} are done", life.plan.work.each_ref().map(Vec::len)),
            );
        }
        // Copies of what was sent again, or their answers, may still be under way.
        let echo = self.crowd.rtt * 2 + Duration::from_millis(10);
        let repeated = self.repeated.get(&(number as u64)).is_some_and(|at| *at + echo > self.now);
        let dirty = !life.plan.dead && (!settled || repeated);
        self.line(|| format!("life {number} ends: settled {settled}, repeated {repeated}"));
        for end in 0..2 {
            let site = &mut self.sites[end];
            let qpn = site.qpns[life.plan.ends[end]];
            self.judge.reset((site.ip, qpn));
            // It was connected, or never was.
            let _ = site.host.fail(qpn);
            site.free[life.plan.ends[end]] = Some(Free { since: self.now, dirty });
            self.outcome.first[number][end] = life.first(end);
        }
        self.outcome.took[number].clone_from(&life.took);
        for site in 0..2 {
            self.host_completes(site);
        }
    }

    fn host_sends(&mut self, site: usize) -> bool {
        let mut moved = false;
        while let Some(len) = self.sites[site].host.poll_transmit(self.now, &mut self.buffer) {
            moved = true;
            let Site { ip, host, up, .. } = &mut self.sites[site];
            let (ip, sender) = (*ip, host.sender());
            up.submit(self.now, &self.buffer[..len]);
            let buffer = std::mem::take(&mut self.buffer);
            if let Some(packet) = self.see(site, "host>", &buffer[..len]) {
                let packet = &packet;
                let again = self.judge.leaves((ip, sender), packet);
                if let Some(number) = self.judge.incarnation((ip, sender)).filter(|_| again) {
                    self.repeated.insert(number, self.now);
                }
            }
            self.buffer = buffer;
        }
        moved
    }

    /// Somebody at this site sends in the name of its host. The judge is not told.
    fn spoofer_sends(&mut self, site: usize) -> bool {
        let now = self.now;
        let is_due = |spoofer: &&mut Spoofer| spoofer.next().is_some_and(|at| at <= now);
        let Some(spoofer) = self.spoofers[site].as_mut().filter(is_due) else { return false };
        let [from, to] = [&self.sites[site], &self.sites[1 - site]];
        let firsts: Vec<_> = self.running.iter().flat_map(|life| life.plan.psn).collect();
        if firsts.is_empty() {
            spoofer.put_off(now + Duration::from_millis(1));
            return false;
        }
        let (addressing, transport) = spoofer.draw([from.ip, to.ip], &to.qpns, &firsts);
        if let Ok(packet) = Packet::parse(&transport) {
            spoofer.spoofed.count(&packet, to.host.standing(packet.bth.dest_qp));
        }
        if let Some(gateway) = &mut self.sites[site].gateway {
            gateway.handle_lan(&Datagram { addressing, transport: &transport }, self.now);
        } else if let Ok(len) = emit(&addressing, 1, &transport, &mut self.buffer) {
            self.outcome.wan += 1;
            self.wan[site].submit(self.now, &self.buffer[..len]);
        }
        self.line(|| match Packet::parse(&transport) {
            Ok(Packet { bth, ext, .. }) => {
                format!(
                    "{site} spoof {:#x} {:?} psn {} {ext:?}",
                    bth.dest_qp.get(),
                    bth.opcode,
                    bth.psn.get()
                )
            }
            Err(error) => format!("{site} spoof {error}"),
        });
        true
    }

    /// Delivers what has come from a host to its gateway or router.
    fn lan_delivers(&mut self, site: usize) -> bool {
        let mut moved = false;
        loop {
            let Some(bytes) = self.sites[site].up.poll(self.now).map(<[u8]>::to_vec) else { return moved };
            moved = true;
            match self.route {
                Route::Plain => {
                    let mut bytes = bytes;
                    if self.tamper.as_mut().is_none_or(|tamper| tamper(site, &mut bytes)) {
                        self.outcome.wan += 1;
                        self.wan[site].submit(self.now, &bytes);
                    }
                }
                Route::Gateways => {
                    let Some(gateway) = &mut self.sites[site].gateway else { continue };
                    if let Ok(datagram) = Datagram::parse(&bytes) {
                        gateway.handle_lan(&datagram, self.now);
                    }
                }
            }
        }
    }

    fn wan_delivers(&mut self, site: usize) -> bool {
        let mut moved = false;
        while let Some(bytes) = self.wan[1 - site].poll(self.now) {
            moved = true;
            match &mut self.sites[site].gateway {
                None => self.sites[site].down.submit(self.now, bytes),
                Some(gateway) => {
                    let (arrival, packet) = numbers::split(bytes);
                    let arrival = splice::Arrival { bytes: gateway.wire_bytes(packet.len()), ..arrival };
                    gateway.handle_wan(packet, arrival, self.now);
                }
            }
        }
        moved
    }

    fn gateway_acts(&mut self, site: usize) -> bool {
        let Some(gateway) = &mut self.sites[site].gateway else { return false };
        let mut moved = gateway.next_timeout(self.now).is_some_and(|at| at <= self.now);
        if moved {
            gateway.handle_timeout(self.now);
        }
        while let Some(gateway) = &mut self.sites[site].gateway
            && let Some(len) = gateway.poll_lan(self.now, &mut self.buffer)
        {
            moved = true;
            self.sites[site].down.submit(self.now, &self.buffer[..len]);
            let buffer = std::mem::take(&mut self.buffer);
            self.see(site, "gate>", &buffer[..len]);
            self.buffer = buffer;
        }
        while let Some(gateway) = &mut self.sites[site].gateway
            && let Some(len) = gateway.poll_wan(self.now, &mut self.buffer[PREFIX..])
        {
            moved = true;
            let lane = gateway.wan_lane();
            let datagram = &mut self.buffer[..PREFIX + len];
            self.numbers[1 - site].stamp(lane, datagram);
            self.outcome.wan += 1;
            self.wan[site].submit(self.now, datagram);
        }
        moved
    }

    fn host_hears(&mut self, site: usize) -> bool {
        let mut moved = false;
        while let Some(bytes) = self.sites[site].down.poll(self.now).map(<[u8]>::to_vec) {
            moved = true;
            if let Some(packet) = self.see(site, "host<", &bytes) {
                let place = (self.sites[site].ip, packet.bth.dest_qp);
                if self.sites[site].host.is_ready(packet.bth.dest_qp) {
                    let verdict = self.judge.arrives(place, self.sites[1 - site].ip, &packet);
                    self.heed(verdict);
                }
            }
            self.host_takes(site, &bytes);
            while let Some((qpn, packet)) = self.sites[site].host.poll_executed() {
                if let Ok(packet) = Packet::parse(&packet) {
                    let verdict = self.judge.executed((self.sites[site].ip, qpn), &packet);
                    self.heed(verdict);
                }
            }
            self.host_completes(site);
        }
        moved | self.host_completes(site)
    }

    /// A switch may have marked the packet before.
    fn host_takes(&mut self, site: usize, bytes: &[u8]) {
        let Site { host, marks, .. } = &mut self.sites[site];
        let Ok(mut datagram) = Datagram::parse(bytes) else { return host.handle_packet(bytes, self.now) };
        if datagram.addressing.tclass & 3 != 0 && marks.random_bool(self.crowd.marks[site]) {
            datagram.addressing.tclass |= 3;
        }
        host.handle_datagram(&datagram, self.now);
    }

    fn host_completes(&mut self, site: usize) -> bool {
        let mut moved = false;
        while let Some(completion) = self.sites[site].host.poll_completion() {
            moved = true;
            self.line(|| format!("{site} done  {completion:?}"));
            if completion.status == Status::Success && !completion.operation.is_receive() {
                let verdict = self.judge.completed((self.sites[site].ip, completion.qpn));
                self.heed(verdict);
            }
            let number = (completion.wr_id & !super::life::RECEIVE) >> 32;
            let hosts = [&self.sites[0].host, &self.sites[1].host];
            let life = self.running.iter_mut().find(|life| life.number as u64 == number);
            let Some(life) = life else { continue };
            let done = life.completed(site, &completion, hosts, self.now);
            let dead = life.plan.dead;
            self.outcome.succeeded += u64::from(completion.status == Status::Success);
            if let Some((rule, what)) = done.filter(|(rule, _)| !(dead && *rule == "failed")) {
                self.flaw(rule, number as usize, 0, what);
            }
        }
        moved
    }

    fn heed(&mut self, verdict: Result<(), Wrong>) {
        if let Err(Wrong { rule, bond, ends, what }) = verdict {
            if rule == OUTLIVED
                && let Some(excused) = self.outcome.excused.get_mut(bond as usize)
            {
                *excused = true;
            }
            self.flaw(rule, bond as usize, ends, what);
        }
    }

    fn flaw(&mut self, rule: &'static str, life: usize, ends: u64, what: String) {
        let excused = self.outcome.excused.get(life).copied().unwrap_or(false);
        self.line(|| format!("FLAW {rule} in life {life}, excused {excused}: {what}"));
        self.outcome.flaws.push(Flaw { rule, life, excused, ends, at: self.now - self.start, what });
    }

    /// Notes a packet in the trace, and parses it.
    fn see<'a>(&mut self, site: usize, what: &str, bytes: &'a [u8]) -> Option<Packet<'a>> {
        let datagram = Datagram::parse(bytes).ok()?;
        let packet = Packet::parse(datagram.transport).ok()?;
        self.line(|| {
            let (bth, port) = (packet.bth, datagram.addressing.src_port);
            let ask = if bth.ack_req { " ackreq" } else { "" };
            format!(
                "{site} {what} qp {:#x} port {port:#x} {:?} psn {} {} bytes{ask} {:?}",
                bth.dest_qp.get(),
                bth.opcode,
                bth.psn.get(),
                packet.payload.len(),
                packet.ext
            )
        });
        Some(packet)
    }

    fn line(&mut self, what: impl FnOnce() -> String) {
        let at = self.now - self.start;
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{at:?} {}", what()));
        }
    }

    /// Both gateways' counters.
    #[must_use]
    pub fn describe(&mut self) -> String {
        let gateways = self.sites.iter_mut().filter_map(|site| site.gateway.as_mut());
        gateways.map(|gateway| format!("{:#?}\n", gateway.stats())).collect()
    }
}

impl Site {
    fn new(index: usize, crowd: &Crowd, route: Route, now: Instant) -> Self {
        let settings = Settings { remote: vec![prefix(1 - index, crowd.ipv6)], ..crowd.settings.clone() };
        let seed = crowd.seed.wrapping_mul(64) + 8 * index as u64;
        let ip = address(index, 0, crowd.ipv6);
        let mut host = Host::new(ip, crowd.first_qpn[index]);
        host.watch();
        Self {
            ip,
            host,
            up: Link::new(crowd.lan[index], seed),
            down: Link::new(crowd.lan[index], seed + 1),
            gateway: (route == Route::Gateways).then(|| Box::new(Gateway::new(settings, now))),
            qpns: Vec::new(),
            free: Vec::new(),
            marks: Pcg64Mcg::seed_from_u64(seed + 2),
        }
    }
}
