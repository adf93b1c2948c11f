//! The world: everything that moves, in the order of its time.

#![expect(
    clippy::indexing_slicing,
    reason = "sites, hosts and programs are numbered by the world that made them"
)]

mod check;
mod faults;
mod lines;
mod orders;
mod part;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use config::Policy;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use roce::ip::{Addressing, Datagram};
use roce::wire::{Packet, Qpn};
use splice::{Arrival, ClassStats, Gateway, LanDrop, PathStats, Stats};

use check::{check_refused, garbage};
use lines::{broken, completes_locally, judge_arrival, places, trace};
use orders::Restart;
use part::Part;

use super::control::Control;
use super::datagrams::{Carried, is_mad, is_terminated};
use super::flow::{Atomics, runs_once};
use super::judge::Judge;
use super::numbers::{self, Numbers, PREFIX};
use super::program::{End, Program};
use super::scenario::{Burst, Fault, Scenario};
use super::site::{Silence, Site, address};
use super::{Broken, Violation};
use crate::host::{MAX_PACKET, Status};
use linksim::impair::Link;

/// Two sites and the long link between them.
///
/// Deterministic: the same [`Scenario`] always plays the same way. [`World::run`] plays it to its
/// end and checks the invariants after each step; [`World::step`] is one step of it.
pub struct World {
    scenario: Scenario,
    benign: bool,
    rng: Pcg64Mcg,
    start: Instant,
    now: Instant,
    sites: [Site; 2],
    /// From site 0, from site 1, by lane. Tagged with the session.
    wan: [Vec<Link>; 2],
    /// The packet numbers of what goes to site 0, to site 1.
    numbers: [Numbers; 2],
    cut_until: Option<Instant>,
    control: Control,
    programs: Vec<Program>,
    watch: Watch,
    bursts: VecDeque<Burst>,
    faults: VecDeque<(Instant, Fault)>,
    reloads: VecDeque<(Instant, usize, Policy)>,
    restarts: Vec<Restart>,
    buffer: Vec<u8>,
    finished: Option<Instant>,
    steps: u64,
    lines: Option<Vec<String>>,
}

/// The rules' view of a world: whose a packet is, and what was seen of it.
#[derive(Default)]
struct Watch {
    judge: Judge,
    /// Requests: from, to, the target's queue pair.
    requests: BTreeMap<(IpAddr, IpAddr, Qpn), Vec<Part>>,
    /// Responses: from, to, the requester's queue pair.
    responses: BTreeMap<(IpAddr, IpAddr, Qpn), Vec<Part>>,
    carried: Carried,
    /// Malformed packets fed to each gateway.
    garbage: [u64; 2],
    /// Snapshots that were taken.
    upgraded: u64,
}

impl Watch {
    /// The flows that a packet from `src` to `dst` may be of.
    fn parts(&self, is_request: bool, (src, dst): (IpAddr, IpAddr), to: Qpn) -> Option<&Vec<Part>> {
        let table = if is_request { &self.requests } else { &self.responses };
        table.get(&(src, dst, to))
    }
}

/// The report of a world that held all invariants.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Events played.
    pub steps: u64,
    /// Virtual time until the last operation ended.
    pub busy: Duration,
    /// Operations that succeeded.
    pub succeeded: u64,
    /// Operations that ended in an error their program saw.
    pub failed: u64,
    /// Operations that failed since the target had no receive (RNR retries used up): no target has
    /// them.
    pub not_received: u64,
    /// Operations never posted, since the queue pair had failed.
    pub not_posted: u64,
    /// Operations that only the program's own patience ended: no gateway could address it.
    pub gave_up: u64,
    /// Operations that succeeded before their target had them (`completion = "local"`).
    pub early: u64,
    /// Early operations whose target never had them, since their connection failed.
    pub lost: u64,
    /// How long each operation took that succeeded, from its posting, in no order.
    pub times: Vec<Duration>,
    /// The fates of atomics.
    pub atomics: Atomics,
    /// Packets of connection management that came out.
    pub mads: u64,
    /// Requests that a host's NIC took for duplicates, by site.
    pub duplicates: [u64; 2],
    /// Both gateways' counters at the end.
    pub gateways: [Stats; 2],
    /// WAN packets submitted and lost, by direction, over all lanes.
    pub wan: [(u64, u64); 2],
    /// Each gateway's paths to the other at the end.
    pub paths: [Vec<PathStats>; 2],
    /// Both gateways' streams at the end, by class.
    pub classes: [Vec<ClassStats>; 2],
    /// Policies refused for want of streams.
    pub policies_refused: u64,
    /// True if every operation had to succeed.
    pub benign: bool,
    /// How long nothing passed the long link, in all.
    pub outage: Duration,
    /// How often a gateway went on with the session before.
    pub resumed: u64,
    /// How often a gateway's flows outlived the other one's process.
    pub reborn: u64,
    /// No operation may fail although gateways die.
    pub outlives: bool,
    /// How often a gateway carried what an earlier process, or it itself, had retained.
    pub retained_carried: u64,
    /// How often another process took a gateway's place with its snapshot.
    pub upgraded: u64,
}

/// Steps beyond which a world is taken not to come to rest.
const MOST_STEPS: u64 = 2_000_000;
/// Nothing sensible comes from a host at a finer grain.
const LEAST_STEP: Duration = Duration::from_nanos(1);
/// So much later than it last polled does a driver ask when to come again: what became due in
/// between must not be forgotten.
const ASKED_AFTER: Duration = Duration::from_micros(20);

impl World {
    /// A world at its beginning, without a session yet.
    ///
    /// # Errors
    /// What is impossible about the scenario.
    pub fn new(scenario: Scenario) -> Result<Self, String> {
        let start = Instant::now();
        check(&scenario)?;
        let numbers = || Numbers::new(scenario.settings.lanes);
        let at = |at: Duration| start + at;
        let reload = |(after, site, policy): &(Duration, usize, Policy)| (at(*after), *site, policy.clone());
        let mut world = Self {
            rng: Pcg64Mcg::seed_from_u64(seed(&scenario) ^ 0x5e55),
            start,
            now: start,
            sites: [0, 1].map(|index| Site::new(index, &scenario, start)),
            wan: [links(&scenario, 0), links(&scenario, 1)],
            numbers: [numbers(), numbers()],
            cut_until: None,
            control: Control::new(scenario.resume_for, scenario.survives, start),
            programs: Vec::new(),
            watch: Watch::default(),
            bursts: scenario.bursts.iter().copied().collect(),
            faults: scenario.faults.iter().map(|(after, fault)| (at(*after), *fault)).collect(),
            reloads: scenario.reloads.iter().map(reload).collect(),
            restarts: Vec::new(),
            buffer: vec![0; MAX_PACKET.max(scenario.settings.max_packet) + 256],
            finished: None,
            steps: 0,
            lines: None,
            benign: scenario.is_benign(),
            scenario,
        };
        world.bursts.make_contiguous().sort_by_key(|burst| burst.at);
        world.faults.make_contiguous().sort_by_key(|(at, _)| *at);
        world.reloads.make_contiguous().sort_by_key(|(at, ..)| *at);
        world.connect()?;
        Ok(world)
    }

    fn connect(&mut self) -> Result<(), String> {
        let forgets = (self.scenario.is_forgetful(), self.scenario.is_traceless());
        let mut own = Vec::new();
        for connection in &self.scenario.connections {
            let mut ends = [End { site: 0, host: 0, qpn: Qpn::new(0) }; 2];
            for (site, end) in ends.iter_mut().enumerate() {
                let host = connection.hosts[site];
                let Site { hosts, .. } = &mut self.sites[site];
                let Some(station) = hosts.get_mut(host) else {
                    return Err(format!("no host {host} at site {}", self.sites[site].name()));
                };
                let qpn = station.host.create_qp(connection.qp).map_err(|error| error.to_string())?;
                *end = End { site, host, qpn };
            }
            own.push(ends);
        }
        for (number, connection) in self.scenario.connections.iter().enumerate() {
            let places = places(number, &self.scenario.connections, &own)?;
            for (life, ends) in places.iter().enumerate() {
                let ips = ends.map(|end| self.scenario_ip(end.site, end.host));
                for end in 0..2 {
                    let (me, peer) = (ips[end], ips[1 - end]);
                    let part = Part { program: number, life, end };
                    self.watch.requests.entry((me, peer, ends[1 - end].qpn)).or_default().push(part);
                    self.watch.responses.entry((peer, me, ends[end].qpn)).or_default().push(part);
                }
            }
            self.programs.push(Program::new(number, connection, own[number], places, forgets, self.now));
        }
        Ok(())
    }

    fn scenario_ip(&self, site: usize, host: usize) -> IpAddr {
        address(site, host, self.scenario.ipv6)
    }

    /// Keeps a line for each packet and each event, for [`World::trace`].
    pub fn record(&mut self) {
        self.lines = Some(Vec::new());
    }

    /// Returns the lines recorded.
    #[must_use]
    pub fn trace(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }

    /// Virtual time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.now.saturating_duration_since(self.start)
    }

    /// Plays the scenario to its end, and then the rest in which the gateways forget everything.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn run(&mut self) -> Result<Report, Violation> {
        while self.step()? {}
        self.report().map_err(|broken| self.violation(broken))
    }

    /// One step: everything that happens now, and on to the next moment in which something does.
    /// `false` when the world has come to its end.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn step(&mut self) -> Result<bool, Violation> {
        self.advance().map_err(|broken| self.violation(broken))
    }

    fn violation(&self, (rule, what): Broken) -> Violation {
        Violation { rule, at: self.elapsed(), what }
    }

    fn advance(&mut self) -> Result<bool, Broken> {
        self.settle()?;
        self.check_bounds()?;
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return Err(("I7", "the world does not come to rest".to_owned()));
        }
        if self.finished.is_none() && self.programs.iter().all(Program::is_over) && self.faults.is_empty() {
            self.finished = Some(self.now);
            self.line(|| "all programs are done".to_owned());
        }
        let end = self.finished.map(|at| at + self.scenario.rest());
        let Some(next) = self.next_event() else { return Ok(false) };
        if end.is_some_and(|end| next > end) {
            return Ok(false);
        }
        for program in &mut self.programs {
            program.check_patience(self.scenario.patience, &mut self.sites, self.now)?;
        }
        let patience = self
            .programs
            .iter()
            .filter_map(Program::running_since)
            .min()
            .map(|since| since + self.scenario.patience);
        let next = patience.map_or(next, |at| next.min(at.max(self.now + LEAST_STEP)));
        self.now = next.max(self.now);
        self.note_flows();
        self.play_orders()?;
        self.copy_ahead();
        self.play_faults()?;
        self.play_reloads()?;
        self.play_bursts();
        for site in &mut self.sites {
            for station in &mut site.hosts {
                if matches!(station.silent, Some(Silence::Until(at)) if at <= self.now) {
                    station.silent = None;
                }
                station.host.handle_timeout(self.now);
            }
        }
        Ok(true)
    }

    fn next_event(&self) -> Option<Instant> {
        let asked = self.now + ASKED_AFTER;
        let sites = self.sites.iter().flat_map(|site| {
            let gateway = site.gateway.as_ref().and_then(|gateway| gateway.next_timeout(asked));
            let hosts = site.hosts.iter().flat_map(|station| {
                let silence = match station.silent {
                    Some(Silence::Until(at)) => Some(at),
                    _ => None,
                };
                [station.host.next_timeout(), station.up.next_timeout(), station.down.next_timeout(), silence]
            });
            hosts.chain([gateway])
        });
        sites
            .chain(self.wan.iter().flatten().map(Link::next_timeout))
            .chain(self.programs.iter().map(|program| program.next_event(&self.sites)))
            .chain([
                self.control.next_order(),
                self.cut_until,
                self.faults.front().map(|(at, _)| *at),
                self.reloads.front().map(|(at, ..)| *at),
                self.bursts.front().map(|burst| self.start + burst.at),
                self.restarts.iter().map(|restart| restart.at).min(),
                self.sites.iter().filter_map(|site| Some(site.paused.as_ref()?.until)).min(),
            ])
            .flatten()
            .min()
    }

    /// Moves everything that can move at this moment.
    fn settle(&mut self) -> Result<(), Broken> {
        let mut moved = true;
        while moved {
            moved = false;
            for program in &mut self.programs {
                moved |= program.act(&mut self.sites, &mut self.watch.judge, self.now)?;
            }
            for site in 0..2 {
                moved |= self.hosts_send(site)?;
                moved |= self.gateway_hears_lan(site);
                moved |= self.gateway_hears_wan(site)?;
                moved |= self.gateway_wakes(site);
                moved |= self.gateway_speaks(site)?;
                moved |= self.hosts_hear(site)?;
            }
        }
        Ok(())
    }

    fn hosts_send(&mut self, site: usize) -> Result<bool, Broken> {
        let mut moved = false;
        for host in 0..self.sites[site].hosts.len() {
            loop {
                let station = &mut self.sites[site].hosts[host];
                let Some(len) = station.host.poll_transmit(self.now, &mut self.buffer) else { break };
                moved = true;
                if !station.is_silent() {
                    station.up.submit(self.now, &self.buffer[..len]);
                }
                let Ok(datagram) = Datagram::parse(&self.buffer[..len]) else {
                    return Err(("model", "a host sent a packet that does not parse".to_owned()));
                };
                let Ok(packet) = Packet::parse(datagram.transport) else { continue };
                trace(&mut self.lines, self.start, self.now, site, "host>", &datagram, &packet);
                let Addressing { src, dst, .. } = datagram.addressing;
                self.watch.judge.leaves((src, self.sites[site].hosts[host].host.sender()), &packet);
                let request = packet.bth.opcode.is_request();
                let parts = self.watch.parts(request, (src, dst), packet.bth.dest_qp);
                let Some(parts) = parts else { continue };
                let Some(flow) = Part::flow(parts, packet.bth.psn, &mut self.programs) else { continue };
                if request {
                    flow.request_sent(&packet, self.control.fresh_sessions())?;
                } else {
                    let host = &self.sites[site].hosts[host].host;
                    let standing = host.standing(host.sender());
                    flow.target_answered(&packet, standing.map(|standing| standing.expected));
                }
            }
        }
        Ok(moved)
    }

    fn gateway_hears_lan(&mut self, site: usize) -> bool {
        let mut moved = false;
        let Site { gateway, hosts, .. } = &mut self.sites[site];
        for station in hosts {
            while let Some(packet) = station.up.poll(self.now) {
                moved = true;
                let Some(gateway) = gateway else { continue };
                let Ok(datagram) = Datagram::parse(packet) else { continue };
                if !is_terminated(datagram.transport) {
                    self.watch.carried.offer(site, &datagram);
                }
                if let Ok(packet) = Packet::parse(datagram.transport) {
                    trace(&mut self.lines, self.start, self.now, site, "gate<", &datagram, &packet);
                    let Addressing { src, dst, .. } = datagram.addressing;
                    let known = self.watch.requests.get(&(src, dst, packet.bth.dest_qp));
                    if let Some(parts) = known.filter(|_| packet.bth.opcode.is_request())
                        && let Some(flow) = Part::flow(parts, packet.bth.psn, &mut self.programs)
                    {
                        let local = completes_locally(gateway.policy(), &datagram.addressing, &packet);
                        flow.request_heard(&packet, local);
                        if local {
                            self.watch.judge.completes_early(src, dst, &packet);
                        }
                    }
                }
                let sessionless =
                    |gateway: &mut Gateway| gateway.stats().lan_drops[LanDrop::NoSession as usize];
                let before = is_mad(datagram.transport).then(|| sessionless(gateway));
                gateway.handle_lan(&datagram, self.now);
                if let Some(before) = before {
                    self.watch.carried.mads.0 += u64::from(sessionless(gateway) == before);
                }
            }
        }
        moved
    }

    fn gateway_hears_wan(&mut self, site: usize) -> Result<bool, Broken> {
        let mut moved = false;
        for lane in 0..self.wan[1 - site].len() {
            moved |= self.gateway_hears_lane(site, lane)?;
        }
        Ok(moved)
    }

    fn gateway_hears_lane(&mut self, site: usize, lane: usize) -> Result<bool, Broken> {
        let mut moved = false;
        while let Some((bytes, tag)) = self.wan[1 - site][lane].poll_tagged(self.now) {
            moved = true;
            let (arrival, packet) = numbers::split(bytes);
            let cut = self.cut_until.is_some();
            let Some(gateway) = &mut self.sites[site].gateway else { continue };
            if cut || self.control.session(site) != Some(tag) {
                continue;
            }
            if self.rng.random_bool(self.scenario.garbage) {
                let garbage = garbage(packet, &mut self.rng);
                let before = gateway.stats().clone();
                // Under a number of the peer's: the packet itself is then a copy to the observer.
                gateway.handle_wan(&garbage, Arrival { bytes: garbage.len(), ..arrival }, self.now);
                self.watch.garbage[site] += 1;
                check_refused(&before, gateway.stats(), &garbage)?;
            }
            self.numbers[site].hear(&arrival);
            let arrival = Arrival { bytes: gateway.wire_bytes(packet.len()), ..arrival };
            gateway.handle_wan(packet, arrival, self.now);
        }
        Ok(moved)
    }

    fn gateway_wakes(&mut self, site: usize) -> bool {
        let Some(gateway) = &mut self.sites[site].gateway else { return false };
        let due = gateway.next_timeout(self.now).is_some_and(|at| at <= self.now);
        if due {
            gateway.handle_timeout(self.now);
        }
        due
    }

    fn gateway_speaks(&mut self, site: usize) -> Result<bool, Broken> {
        let mut moved = false;
        loop {
            let Some(gateway) = &mut self.sites[site].gateway else { return Ok(moved) };
            let Some(len) = gateway.poll_lan(self.now, &mut self.buffer) else { break };
            moved = true;
            self.gateway_emits(site, len)?;
        }
        loop {
            let Some(gateway) = &mut self.sites[site].gateway else { return Ok(moved) };
            let Some(len) = gateway.poll_wan(self.now, &mut self.buffer[PREFIX..]) else { break };
            moved = true;
            let datagram = &mut self.buffer[..PREFIX + len];
            let lane = gateway.wan_lane();
            self.numbers[1 - site].stamp(lane, datagram);
            if len > self.scenario.max_packet() {
                return Err(("I5", format!("a WAN packet of {len} bytes")));
            }
            if let (Some(session), None) = (self.control.session(site), self.cut_until) {
                let link = self.wan[site].get_mut(usize::from(lane.0));
                let link = link.ok_or_else(|| ("model", format!("there is no {lane:?}")))?;
                link.submit_tagged(self.now, datagram, session);
            }
        }
        Ok(moved)
    }

    /// The gateway sends the IP packet of `len` bytes at the front of the buffer to a host.
    fn gateway_emits(&mut self, site: usize, len: usize) -> Result<(), Broken> {
        if len > self.scenario.settings.lan_mtu {
            return Err(("I8", format!("an IP packet of {len} bytes for a LAN that does not carry it")));
        }
        let Ok(datagram) = Datagram::parse(&self.buffer[..len]) else {
            return Err(("I3", "a gateway emitted a packet that does not parse".to_owned()));
        };
        let Addressing { src, dst, .. } = datagram.addressing;
        if is_terminated(datagram.transport) {
            let packet = Packet::parse(datagram.transport)
                .map_err(|error| ("I3", format!("a gateway emitted {error}")))?;
            trace(&mut self.lines, self.start, self.now, site, "gate>", &datagram, &packet);
            let (opcode, qpn, psn) = (packet.bth.opcode, packet.bth.dest_qp, packet.bth.psn);
            let request = opcode.is_request();
            let Some(parts) = self.watch.parts(request, (src, dst), qpn) else {
                let what = format!("{opcode:?} from {src} to {dst} {qpn:?}, which does not exist");
                return Err(("I3", what));
            };
            let is_long_past = !request && Part::is_long_past(parts, psn, &self.programs);
            let flow = Part::flow(parts, psn, &mut self.programs);
            if let Some(flow) = flow.filter(|_| !is_long_past) {
                let Site { gateway, restarts, .. } = &mut self.sites[site];
                let Some(stats) = gateway.as_mut().map(Gateway::stats) else { return Ok(()) };
                if request {
                    flow.request_emitted(&packet, stats.far_opened + (*restarts << 32), self.benign)?;
                } else {
                    flow.response_emitted(&packet, stats.lan_queue_dropped > 0)?;
                }
            }
        } else {
            self.watch.carried.emit(1 - site, &datagram)?;
        }
        if let Some(station) = self.sites[site].station_of(dst).filter(|station| !station.is_silent()) {
            station.down.submit(self.now, &self.buffer[..len]);
        }
        Ok(())
    }

    fn hosts_hear(&mut self, site: usize) -> Result<bool, Broken> {
        let mut moved = false;
        for host in 0..self.sites[site].hosts.len() {
            let station = &mut self.sites[site].hosts[host];
            while let Some(bytes) = station.down.poll(self.now) {
                moved = true;
                if station.silent.is_some() {
                    continue;
                }
                judge_arrival(&mut self.watch.judge, &station.host, bytes)?;
                let before = *station.host.stats();
                station.host.handle_packet(bytes, self.now);
                let after = *station.host.stats();
                while let Some((qpn, packet)) = station.host.poll_executed() {
                    if let Ok(packet) = Packet::parse(&packet) {
                        self.watch.judge.executed((station.ip, qpn), &packet).map_err(broken)?;
                    }
                }
                let executed = after.atomics + after.flushes > before.atomics + before.flushes;
                if (executed || after.duplicates > before.duplicates)
                    && let Ok(datagram) = Datagram::parse(bytes)
                    && let Ok(packet) = Packet::parse(datagram.transport)
                    && runs_once(&packet)
                {
                    let Addressing { src, dst, .. } = datagram.addressing;
                    let parts = self.watch.requests.get(&(src, dst, packet.bth.dest_qp));
                    let parts = parts.map(Vec::as_slice).unwrap_or_default();
                    Part::atomic_arrived(parts, &packet, executed, &mut self.programs)?;
                }
            }
            self.hosts_complete(site, host, &mut moved)?;
        }
        Ok(moved)
    }

    fn hosts_complete(&mut self, site: usize, host: usize, moved: &mut bool) -> Result<(), Broken> {
        while let Some(completion) = self.sites[site].hosts[host].host.poll_completion() {
            *moved = true;
            let (name, ip) = (self.sites[site].name(), self.sites[site].hosts[host].ip);
            self.line(|| format!("{name} done  {completion:?}"));
            if completion.status == Status::Success && !completion.operation.is_receive() {
                self.watch.judge.completed((ip, completion.qpn)).map_err(broken)?;
            }
            if let Some(program) = self.programs.get_mut(Program::of(&completion)) {
                program.completed(site, &completion, &mut self.sites, self.now)?;
            }
        }
        Ok(())
    }

    fn line(&mut self, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:?} {}", self.now - self.start, what()));
        }
    }
}

/// Returns what is impossible about a scenario.
fn check(scenario: &Scenario) -> Result<(), String> {
    let (lanes, links) = (scenario.settings.lanes, 1 + scenario.lanes.len());
    if usize::from(lanes) != links {
        return Err(format!("{lanes} lanes, and links for {links}"));
    }
    if scenario.lan.delay < Duration::from_micros(1) {
        return Err("the LAN needs a delay of a microsecond at least".to_owned());
    }
    Ok(())
}

/// The first of the seeds that a scenario's world has for its links.
fn seed(scenario: &Scenario) -> u64 {
    scenario.seed.wrapping_mul(64)
}

/// The links from a site, by lane.
fn links(scenario: &Scenario, site: usize) -> Vec<Link> {
    let first = scenario.wan.get(site).into_iter();
    let further = scenario.lanes.iter().filter_map(|lane| lane.get(site));
    // The hosts' links have the seeds up to 47.
    let lane_seed = |lane: u64| if lane == 0 { 1 + site as u64 } else { 48 + 2 * lane + site as u64 };
    let link = |(lane, spec): (u64, &_)| Link::new(*spec, seed(scenario) + lane_seed(lane));
    (0..).zip(first.chain(further)).map(link).collect()
}
