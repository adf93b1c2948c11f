//! Two sites of two gateways each in virtual time: hosts whose packets come to any gateway of
//! their site, links between all gateways, and the sessions on them.

#[path = "upgrade.rs"]
mod upgrade;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use netem_tests::host::MAX_PACKET;
use rand::{RngExt as _, SeedableRng};
use rand_pcg::Pcg64Mcg;
use roce::ip::{Addressing, Datagram, emit};
use roce::wire::{Bth, Ext, Opcode, Psn, Qpn, Repr};
use splice::members::wire::Word;
use splice::members::{HostPair, MemberId, Message, Process, Times, Towards};
use splice::retention::{Age, Retention};
use splice::site::{Gateways, Site, SiteConfig, SiteStats, Way};
use splice::{Arrival, Ecn, Gateway, LaneId, Settings, StaleFlow};

use super::traffic::{HOSTS, Traffic};
use upgrade::Heir;

/// Gateways of a site.
pub(crate) const SIZE: usize = 2;
/// Gateways of both sites: those of the first, and then those of the other.
pub(crate) const ALL: usize = 2 * SIZE;
const TICK: Duration = Duration::from_millis(1);
const RTT: Duration = Duration::from_millis(10);
/// Ticks that a packet takes between the sites, and within one.
const FAR: u64 = 5;
const NEAR: u64 = 1;
/// Silence after which a session is lost, in ticks.
const SILENT: u64 = 1000;
const LONGEST: usize = 1400;

pub(crate) fn site_of(node: usize) -> usize {
    node / SIZE
}

fn member(node: usize) -> MemberId {
    MemberId(u32::try_from(node).unwrap() + 1)
}

/// A gateway's process: a [`Gateway`] towards each other one, by their order.
struct Node {
    cores: Vec<Gateway>,
    site: Site,
    incarnation: u64,
}

/// The session between two gateways.
#[derive(Clone, Debug, Default)]
struct Session {
    /// Between these lives of both.
    lives: [u64; 2],
    is_up: bool,
    /// Counts sessions.
    number: u64,
    /// Since when nothing can pass.
    cut_since: Option<u64>,
    /// Packets sent, from either end.
    numbers: [u64; 2],
}

/// A packet between gateways: to, from, the session's number, its own, its bytes.
type UnderWay = (usize, usize, u64, u64, Vec<u8>);

pub(crate) struct World {
    pub(crate) rng: Pcg64Mcg,
    start: Instant,
    tick: u64,
    nodes: Vec<Option<Node>>,
    /// Processes that are about to take the place of others.
    heirs: Vec<Heir>,
    lives: u64,
    sessions: BTreeMap<(usize, usize), Session>,
    /// By the tick of arrival.
    air: BTreeMap<(u64, u64), UnderWay>,
    serial: u64,
    pub(crate) cut: [[bool; ALL]; ALL],
    /// Gateways that hosts' packets do not reach, and whose packets reach no host.
    pub(crate) deaf: [bool; ALL],
    /// Where packets of a site's hosts go; `None`: anywhere, each time anew.
    pub(crate) ways: [[Option<usize>; HOSTS]; 2],
    /// Pairs of hosts that a gateway may know.
    pub(crate) pairs: usize,
    /// Bytes that each gateway retains requests in, from its next start on.
    pub(crate) retained_bytes: Option<usize>,
    /// WAN packets lost, in thousandths.
    pub(crate) loss: u32,
    pub(crate) traffic: Traffic,
    pub(crate) handed_over: u64,
}

fn settings(node: usize, to: usize) -> Settings {
    let prefix = IpNet::new_assert([10, 0, site_of(to) as u8, 0].into(), 24);
    let remote = if site_of(to) == site_of(node) { Vec::new() } else { vec![prefix] };
    let settings = Settings::new(remote, 1_000_000_000, LONGEST);
    Settings { is_member: true, rtt: RTT, ..settings }
}

/// The place of the gateway that leads from one node to another.
fn place(from: usize, to: usize) -> usize {
    if to > from { to - 1 } else { to }
}

fn node_at(from: usize, place: usize) -> usize {
    if place >= from { place + 1 } else { place }
}

impl World {
    pub(crate) fn new(seed: u64, traffic: Traffic, pairs: usize) -> Self {
        let start = Instant::now();
        let mut world = Self {
            rng: Pcg64Mcg::seed_from_u64(seed),
            start,
            tick: 0,
            nodes: (0..ALL).map(|_| None).collect(),
            heirs: Vec::new(),
            lives: 0,
            sessions: BTreeMap::new(),
            air: BTreeMap::new(),
            serial: 0,
            cut: Default::default(),
            deaf: Default::default(),
            ways: Default::default(),
            pairs,
            retained_bytes: None,
            loss: 0,
            traffic,
            handed_over: 0,
        };
        for from in 0..ALL {
            for to in from + 1..ALL {
                world.sessions.insert((from, to), Session { cut_since: Some(0), ..Session::default() });
            }
        }
        (0..ALL).for_each(|node| world.begin(node));
        world
    }

    pub(crate) fn now(&self) -> Instant {
        self.start + TICK * u32::try_from(self.tick).unwrap()
    }

    pub(crate) fn lives(&self, node: usize) -> bool {
        self.nodes[node].is_some()
    }

    /// A process begins.
    pub(crate) fn begin(&mut self, node: usize) {
        self.lives += 1;
        let now = self.now();
        let towards = |to: usize| {
            let mut core = Gateway::new(settings(node, to), now);
            if let Some(bytes) = self.retained_bytes {
                let until = now + Duration::from_secs(60);
                core.retain(Retention::new(Box::new(vec![0; bytes]), LONGEST, until, |_| Age::Old));
            }
            core
        };
        let cores = (0..ALL).filter(|other| *other != node).map(towards).collect();
        let site = Site::new(self.config(node, self.lives), now);
        self.nodes[node] = Some(Node { cores, site, incarnation: self.lives });
    }

    fn config(&self, node: usize, incarnation: u64) -> SiteConfig {
        let others = (0..ALL).filter(|other| *other != node);
        let named = |other: usize| (member(other), place(node, other));
        let (own, peers): (Vec<_>, Vec<_>) = others.partition(|other| site_of(*other) == site_of(node));
        SiteConfig {
            me: Process { member: member(node), incarnation },
            others: own.into_iter().map(named).collect(),
            peers: peers.into_iter().map(named).collect(),
            towards: Towards::default(),
            remote: vec![IpNet::new_assert([10, 0, 1 - site_of(node) as u8, 0].into(), 24)],
            times: Times::default(),
            pairs: self.pairs,
        }
    }

    /// Routers of each site choose a way for each host, each for itself.
    pub(crate) fn route(&mut self) {
        for way in self.ways.iter_mut().flatten() {
            *way = Some(self.rng.random_range(0..SIZE));
        }
    }

    /// Nothing passes between two gateways.
    pub(crate) fn cut_both(&mut self, one: usize, other: usize) {
        (self.cut[one][other], self.cut[other][one]) = (true, true);
    }

    /// The interface towards hosts comes or goes, and the gateway knows.
    pub(crate) fn set_lan(&mut self, node: usize, is_up: bool) {
        self.deaf[node] = !is_up;
        if let Some(process) = &mut self.nodes[node] {
            process.site.set_hosts_reached(is_up);
        }
    }

    /// A gateway gets a packet of a host, or of somebody in its name.
    pub(crate) fn inject(&mut self, node: usize, ends: [IpAddr; 2]) {
        let packet = self.packet(ends);
        self.arrive(node, &packet, None);
    }

    /// A gateway hands a packet over to another one, as none would that is honest.
    pub(crate) fn hand_over(&mut self, from: usize, to: usize, ends: [IpAddr; 2]) -> bool {
        let (packet, now) = (self.packet(ends), self.now());
        self.core(from, to).unwrap().hand_over(&packet, now)
    }

    fn packet(&mut self, [src, dst]: [IpAddr; 2]) -> Vec<u8> {
        let psn = Psn::new(self.rng.random_range(0..1 << 24));
        let repr =
            Repr { bth: Bth::new(Opcode::SendOnly, Qpn::new(77), psn), ext: Ext::None, payload: &[0; 64] };
        let mut transport = vec![0; repr.buffer_len()];
        repr.emit(&mut transport).unwrap();
        let addressing = Addressing { src, dst, src_port: 0xc001, tclass: 0, ttl: 64 };
        let mut packet = vec![0; MAX_PACKET];
        let len = emit(&addressing, 1, &transport, &mut packet).unwrap();
        packet.truncate(len);
        packet
    }

    /// A gateway sends a message to another one that its core has not made.
    pub(crate) fn say(&mut self, from: usize, to: usize, message: &Message) {
        let now = self.now();
        let incarnation = self.nodes[from].as_ref().unwrap().incarnation;
        self.core(from, to).unwrap().send_word(&Word::new(incarnation, message), now);
    }

    /// Returns what the site of a gateway has counted.
    pub(crate) fn stats(&self, node: usize) -> SiteStats {
        self.nodes[node].as_ref().unwrap().site.stats()
    }

    /// Returns the counts of the records that came to a gateway from another one.
    pub(crate) fn bad_records(&mut self, node: usize, from: usize) -> u64 {
        self.core(node, from).unwrap().stats().bad_records
    }

    /// Returns how many requests a gateway retains.
    pub(crate) fn retained(&self, node: usize) -> u32 {
        let cores = self.nodes[node].iter().flat_map(|node| &node.cores);
        cores.filter_map(Gateway::retention).map(Retention::used).sum()
    }

    pub(crate) fn process(&self, node: usize) -> Process {
        Process { member: member(node), incarnation: self.nodes[node].as_ref().unwrap().incarnation }
    }

    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node] = None;
    }

    /// Runs for so long.
    pub(crate) fn run(&mut self, time: Duration) {
        for _ in 0..time.as_millis() {
            self.tick += 1;
            self.go_on();
            self.tend_sessions();
            self.deliver();
            for node in 0..ALL {
                self.run_timers(node);
            }
            // What one sends others may answer at once.
            for _ in 0..4 {
                self.send_from_hosts();
                for node in 0..ALL {
                    self.flush(node);
                }
            }
            let now = self.now();
            self.traffic.run(now);
        }
    }

    fn tend_sessions(&mut self) {
        for (from, to) in self.sessions.keys().copied().collect::<Vec<_>>() {
            let ends = [from, to];
            let passes = !self.cut[from][to] && !self.cut[to][from];
            let lives = ends.map(|node| self.nodes[node].as_ref().map_or(0, |node| node.incarnation));
            let Some(session) = self.sessions.get_mut(&(from, to)) else { continue };
            let is_alive = !lives.contains(&0) && passes;
            if session.is_up && session.lives == lives && is_alive {
                session.cut_since = None;
                continue;
            }
            let since = *session.cut_since.get_or_insert(self.tick);
            if session.is_up && (self.tick - since >= SILENT || session.lives != lives && is_alive) {
                session.is_up = false;
                let known = session.lives;
                self.lose(ends, known);
            } else if !session.is_up && is_alive {
                self.connect(ends, lives);
            }
        }
    }

    fn core(&mut self, from: usize, to: usize) -> Option<&mut Gateway> {
        self.nodes[from].as_mut()?.cores.gateway(place(from, to))
    }

    fn lose(&mut self, [from, to]: [usize; 2], known: [u64; 2]) {
        let now = self.now();
        for ((node, other), life) in [(from, to), (to, from)].into_iter().zip(known) {
            if self.nodes[node].as_ref().is_some_and(|node| node.incarnation == life)
                && let Some(core) = self.core(node, other)
            {
                core.session_lost(now);
            }
        }
    }

    /// A session begins: the same two processes go on, or one of them is another.
    fn connect(&mut self, ends: [usize; 2], lives: [u64; 2]) {
        let now = self.now();
        let Some(session) = self.sessions.get_mut(&(ends[0], ends[1])) else { return };
        let before = std::mem::replace(&mut session.lives, lives);
        (session.is_up, session.numbers, session.cut_since) = (true, [0; 2], None);
        session.number += 1;
        let ways = [(ends[0], ends[1]), (ends[1], ends[0])];
        if before == lives {
            for (node, other) in ways {
                assert!(self.core(node, other).unwrap().session_resumed(RTT, LONGEST, 1, now));
            }
            return;
        }
        let knew = [0, 1].map(|end| before[end] == lives[end]);
        let remembered = ways.map(|(node, other)| -> Vec<StaleFlow> {
            self.core(node, other).unwrap().remembered().collect()
        });
        for (end, (node, other)) in ways.into_iter().enumerate() {
            let told = &remembered[1 - end];
            let is_gone = |flow: &&StaleFlow| !flow.lives;
            let ended: Vec<_> = told.iter().filter(is_gone).copied().collect();
            let awaited: Vec<_> = told.iter().filter(|flow| !is_gone(flow)).copied().collect();
            let core = self.core(node, other).unwrap();
            if knew[end] {
                core.session_reborn(RTT, LONGEST, 1, &ended, now);
            } else {
                core.session_up(RTT, LONGEST, 1, &ended, now);
                let targets = awaited.into_iter().filter(|flow| flow.side == splice::FlowSide::Far);
                core.await_requesters(&targets.collect::<Vec<_>>(), now);
            }
        }
    }

    fn deliver(&mut self) {
        let later = self.air.split_off(&(self.tick + 1, 0));
        let now = self.now();
        for (_, (to, from, session, number, packet)) in std::mem::replace(&mut self.air, later) {
            let known = self.sessions.get(&(from.min(to), from.max(to)));
            let is_valid = known.is_some_and(|known| known.is_up && known.number == session);
            if !is_valid || self.cut[from][to] {
                continue;
            }
            if let Some(core) = self.core(to, from) {
                let bytes = core.wire_bytes(packet.len());
                core.handle_wan(&packet, Arrival { lane: LaneId(0), number, bytes, ecn: Ecn::NotEct }, now);
            }
            self.take_from_members(to);
        }
    }

    /// Messages and frames that came from other gateways.
    fn take_from_members(&mut self, node: usize) {
        let now = self.now();
        let Some(process) = &mut self.nodes[node] else { return };
        let mut frames = Vec::new();
        for (place, core) in process.cores.iter_mut().enumerate() {
            let from = process.site.member_at(place).unwrap();
            while let Some(word) = core.take_word() {
                process.site.handle_word(from, &word, now);
            }
            while let Some(frame) = core.take_handed_over() {
                frames.push((from, frame.as_ref().to_vec()));
            }
        }
        for (from, frame) in frames {
            self.arrive(node, &frame, Some(from));
        }
    }

    fn run_timers(&mut self, node: usize) {
        let now = self.now();
        let Some(process) = &mut self.nodes[node] else { return };
        if process.site.next_timeout() <= now {
            process.site.handle_timeout(now);
        }
        for core in &mut process.cores {
            if core.next_timeout(now).is_some_and(|at| at <= now) {
                core.handle_timeout(now);
            }
        }
    }

    fn send_from_hosts(&mut self) {
        let now = self.now();
        let mut buffer = vec![0; MAX_PACKET];
        for site in 0..2 {
            for host in 0..HOSTS {
                while let Some(len) = self.traffic.hosts[site][host].poll_transmit(now, &mut buffer) {
                    let place = self.ways[site][host].unwrap_or_else(|| self.rng.random_range(0..SIZE));
                    let node = site * SIZE + place;
                    if !self.deaf[node] {
                        self.arrive(node, &buffer[..len], None);
                    }
                }
            }
        }
    }

    /// A frame of the LAN.
    fn arrive(&mut self, node: usize, frame: &[u8], handed_by: Option<MemberId>) {
        let now = self.now();
        let Some(process) = &mut self.nodes[node] else { return };
        let datagram = Datagram::parse(frame).unwrap();
        let ends = [datagram.addressing.src, datagram.addressing.dst];
        match process.site.arrived(ends, handed_by, now) {
            Way::Here(place) => process.cores[place].handle_lan(&datagram, now),
            Way::HandOver(place) => {
                assert_eq!(handed_by, None, "handed over twice");
                assert_eq!(site_of(node_at(node, place)), site_of(node));
                self.handed_over += 1;
                process.cores[place].hand_over(frame, now);
            }
            Way::Dropped => {}
        }
    }

    /// Sends all that a gateway has.
    fn flush(&mut self, node: usize) {
        let now = self.now();
        let mut buffer = vec![0; MAX_PACKET.max(16_384)];
        let Some(Node { cores, site, .. }) = &mut self.nodes[node] else { return };
        site.settle(cores, now);
        while let Some((place, word)) = site.poll_word() {
            cores[place].send_word(&word, now);
        }
        for (place, core) in cores.iter_mut().enumerate() {
            while let Some(len) = core.poll_lan(now, &mut buffer) {
                let datagram = Datagram::parse(&buffer[..len]).unwrap();
                let (src, dst) = (datagram.addressing.src, datagram.addressing.dst);
                if site.may_speak([src, dst], place, now) && !self.deaf[node] {
                    self.traffic.host(site_of(node), dst).handle_datagram(&datagram, now);
                }
            }
            let to = node_at(node, place);
            let Some(session) = self.sessions.get_mut(&(node.min(to), node.max(to))) else { continue };
            while let Some(len) = core.poll_wan(now, &mut buffer) {
                let end = usize::from(node > to);
                let number = session.numbers[end];
                session.numbers[end] += 1;
                let is_far = site_of(node) != site_of(to);
                if is_far && self.rng.random_range(0..1000) < self.loss {
                    continue;
                }
                self.serial += 1;
                let at = self.tick + if is_far { FAR } else { NEAR };
                self.air
                    .insert((at, self.serial), (to, node, session.number, number, buffer[..len].to_vec()));
            }
        }
    }

    /// Says how the gateways stand to two hosts.
    pub(crate) fn describe(&self, host: usize) -> String {
        let hosts = [super::ip(0, host), super::ip(1, host)];
        let mut text = format!("speakers: {:?}\n", [0, 1].map(|site| self.speakers(site, hosts)));
        for (node, process) in self.nodes.iter().enumerate() {
            let Some(Node { cores, site, .. }) = process else { continue };
            let live: Vec<_> = site.live(self.now()).collect();
            text += &format!("{node}: {live:?} {:?}\n", site.stats());
            for (place, core) in cores.iter().enumerate() {
                let to = node_at(node, place);
                let flows: Vec<_> = core
                    .reports()
                    .filter(|flow| hosts.contains(&flow.requester) && hosts.contains(&flow.target))
                    .map(|flow| format!("{:?} of {} {:?}", flow.side, flow.requester, flow.state))
                    .collect();
                text += &format!("  to {to}: {flows:?}\n");
            }
        }
        text
    }

    /// Returns the gateways of a site that speak for a pair of hosts.
    pub(crate) fn speakers(&self, site: usize, [one, other]: [IpAddr; 2]) -> Vec<usize> {
        let now = self.now();
        let speaks = |node: &usize| {
            let process = self.nodes[*node].as_ref();
            process.is_some_and(|process| process.site.speaks(HostPair::new(one, other), now))
        };
        (site * SIZE..(site + 1) * SIZE).filter(speaks).collect()
    }
}
