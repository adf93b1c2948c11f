//! Whose answer is whose, where no connection management tells: whatever ports NICs choose, at PSN
//! 0, with targets that are deaf or lose packets.
//!
//! The judge is the NICs' own account: what a requester's queue pair hears must never confirm more
//! than the queue pair at the other end of its connection has acknowledged.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use roce::ip::{Addressing, Datagram};
use roce::pairing::source_port;
use roce::wire::{Aeth, Bth, Ext, Nak, Opcode, Packet, Psn, Qpn, Repr, Reth, Syndrome};
use splice::Settings;

use crate::sites::Sites;

/// One direction of a connection.
struct Way {
    /// The requester's site.
    site: usize,
    requester: Qpn,
    target: Qpn,
    /// The source ports of requests and of answers; [`SPRAY`]: of each packet another one.
    ports: [u16; 2],
    /// Requests that the target takes before it falls silent.
    takes: u32,
    messages: u32,
    /// The target has had all before.
    expected: u32,
    /// The requester was told of all before.
    confirmed: u32,
    refused: bool,
    asked: Option<Duration>,
}

impl Way {
    fn is_done(&self) -> bool {
        self.confirmed >= self.messages
    }
}

struct World {
    sites: Sites,
    ways: Vec<Way>,
    /// By the site and number of the queue pair that requests come to, and that answers come to.
    targets: BTreeMap<(usize, Qpn), usize>,
    requesters: BTreeMap<(usize, Qpn), usize>,
    elapsed: Duration,
    /// A percentage of what goes to a target and comes from it.
    loss: u64,
    /// How long a target takes to answer, and the answers under way.
    takes: Duration,
    air: VecDeque<(Duration, usize, u16, Bth, Aeth)>,
    random: u64,
    /// The last port of a packet that has one of its own, without the upper two bits.
    sprayed: u16,
}

const STEP: Duration = Duration::from_micros(100);
const RETRY: Duration = Duration::from_millis(100);
/// No NIC sends from it.
const SPRAY: u16 = 0;

impl World {
    fn new(change: impl Fn(Settings) -> Settings) -> Self {
        let sites = Sites::new(1, change);
        Self {
            sites,
            ways: Vec::new(),
            targets: BTreeMap::new(),
            requesters: BTreeMap::new(),
            elapsed: Duration::ZERO,
            loss: 0,
            takes: Duration::ZERO,
            air: VecDeque::new(),
            random: 7,
            sprayed: 0,
        }
    }

    /// A queue pair here and one there. `ports`: of what either sends.
    fn connect(&mut self, here: u32, there: u32, ports: [u16; 2], both_ways: bool) {
        let [here, there] = [here, there].map(Qpn::new);
        self.way(0, here, there, ports);
        if both_ways {
            self.way(1, there, here, [ports[1], ports[0]]);
        }
    }

    fn way(&mut self, site: usize, requester: Qpn, target: Qpn, ports: [u16; 2]) {
        self.targets.insert((1 - site, target), self.ways.len());
        self.requesters.insert((site, requester), self.ways.len());
        self.ways.push(Way {
            site,
            requester,
            target,
            ports,
            takes: u32::MAX,
            messages: 4,
            expected: 0,
            confirmed: 0,
            refused: false,
            asked: None,
        });
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % 100 < percent
    }

    fn send(&mut self, site: usize, src_port: u16, bth: Bth, ext: Ext, len: usize) {
        let repr = Repr { bth, ext, payload: &vec![5; len] };
        let mut transport = vec![0; repr.buffer_len()];
        repr.emit(&mut transport).unwrap();
        let src_port = match src_port {
            SPRAY => {
                self.sprayed = (self.sprayed + 1) % 0x4000;
                0xc000 | self.sprayed
            }
            port => port,
        };
        let addressing = Addressing { src_port, ..self.sites.addressing[site] };
        let datagram = Datagram { addressing, transport: &transport };
        self.sites.gateways[site].handle_lan(&datagram, self.sites.now);
    }

    /// Sends the requests that are not confirmed, and again every now and then.
    fn request(&mut self) {
        for index in 0..self.ways.len() {
            let way = &mut self.ways[index];
            if way.is_done() || way.refused || way.asked.is_some_and(|at| self.elapsed < at + RETRY) {
                continue;
            }
            way.asked = Some(self.elapsed);
            let (site, port, target) = (way.site, way.ports[0], way.target);
            for psn in way.confirmed..way.messages {
                let bth = Bth { ack_req: true, ..Bth::new(Opcode::WriteOnly, target, Psn::new(psn)) };
                let reth = Reth { virtual_address: 0, rkey: 7, dma_length: 8 };
                self.send(site, port, bth, Ext::Reth(reth), 8);
            }
        }
    }

    fn deliver(&mut self, site: usize) {
        let mut out = vec![0; 10_000];
        while let Some(len) = self.sites.gateways[site].poll_lan(self.sites.now, &mut out) {
            let datagram = Datagram::parse(&out[..len]).unwrap();
            let packet = Packet::parse(datagram.transport).unwrap();
            if packet.bth.opcode.is_request() {
                self.execute(site, packet.bth);
            } else {
                self.hear(site, &packet);
            }
        }
    }

    fn execute(&mut self, site: usize, bth: Bth) {
        let Some(&index) = self.targets.get(&(site, bth.dest_qp)) else { return };
        if self.chance(self.loss) {
            return;
        }
        let way = &mut self.ways[index];
        let psn = bth.psn.get();
        let is_next = psn == way.expected && bth.opcode == Opcode::WriteOnly;
        if way.expected >= way.takes {
            return;
        }
        way.expected += u32::from(is_next);
        let (requester, port, msn) = (way.requester, way.ports[1], way.expected);
        let ahead = !is_next && bth.psn.distance(Psn::new(way.expected)) >= 0;
        let (syndrome, at) = match (bth.opcode, ahead) {
            (Opcode::WriteOnly, true) => (Syndrome::Nak(Nak::PsnSequence), msn),
            (Opcode::WriteOnly, false) => (Syndrome::ACK, msn.wrapping_sub(1)),
            // What ends the connection.
            _ if psn == msn => (Syndrome::Nak(Nak::InvalidRequest), msn),
            (_, true) => (Syndrome::Nak(Nak::PsnSequence), msn),
            (_, false) => (Syndrome::ACK, msn.wrapping_sub(1)),
        };
        if self.chance(self.loss) {
            return;
        }
        let bth = Bth::new(Opcode::Acknowledge, requester, Psn::new(at));
        self.air.push_back((self.elapsed + self.takes, site, port, bth, Aeth { syndrome, msn }));
        if self.takes.is_zero() {
            self.answer();
        }
    }

    /// Delivers the answers that are due to the targets' gateways.
    fn answer(&mut self) {
        while self.air.front().is_some_and(|(at, ..)| *at <= self.elapsed)
            && let Some((_, site, port, bth, aeth)) = self.air.pop_front()
        {
            self.send(site, port, bth, Ext::Aeth(aeth), 0);
        }
    }

    fn hear(&mut self, site: usize, packet: &Packet<'_>) {
        let Some(&index) = self.requesters.get(&(site, packet.bth.dest_qp)) else {
            panic!("{:?} asked nothing", packet.bth);
        };
        let way = &mut self.ways[index];
        let syndrome = packet.ext.aeth().unwrap().syndrome;
        let done = if syndrome.is_ack() { packet.bth.psn.next() } else { packet.bth.psn };
        let beyond = done.distance(Psn::new(way.expected));
        let name = format!("{:?} of {:?}: {syndrome:?} {:?}", way.requester, way.target, packet.bth.psn);
        assert!(beyond <= 0, "{name}, and its target has had {}", way.expected);
        way.confirmed = way.confirmed.max(u32::try_from(done.distance(Psn::new(0))).unwrap_or(0));
        way.refused |= syndrome.is_fatal();
        assert!(!way.refused || way.takes != u32::MAX, "{name}, and its target is well");
    }

    fn run(&mut self, time: Duration) {
        let end = self.elapsed + time;
        while self.elapsed < end && !self.are_done() {
            self.request();
            self.sites.now += STEP;
            self.elapsed += STEP;
            self.answer();
            self.sites.cross();
            (0..2).for_each(|site| self.deliver(site));
        }
    }

    fn are_done(&self) -> bool {
        self.ways.iter().all(|way| way.is_done() || way.takes != u32::MAX && way.refused)
    }

    /// Runs for so long at most, until all whose targets are well are done.
    fn all_connect(&mut self, within: Duration) {
        self.run(within);
        let left: Vec<_> = self.ways.iter().filter(|way| way.takes == u32::MAX && !way.is_done()).collect();
        assert!(left.is_empty(), "{} of {} are not done", left.len(), self.ways.len());
    }
}

/// How NICs choose the UDP source port, of what a queue pair sends to its partner.
#[derive(Clone, Copy, Debug)]
enum Ports {
    /// From both numbers, alike at both ends.
    Product,
    /// The sender's own number.
    Own,
    /// One for all.
    One,
    /// By turns from a short list.
    List,
    /// Another one for each, at random.
    Any,
    /// Another one for each packet.
    Spray,
}

const POLICIES: [Ports; 6] = [Ports::Product, Ports::Own, Ports::One, Ports::List, Ports::Any, Ports::Spray];

fn port(policy: Ports, own: u32, partner: u32, number: u32) -> u16 {
    match policy {
        Ports::Product => source_port(Qpn::new(own), Qpn::new(partner)),
        Ports::Own => own as u16,
        Ports::One => 0xc000,
        Ports::List => 0xc001 + (number % 8) as u16,
        Ports::Any => 0xc000 | (number.wrapping_mul(0x9e37) as u16) & 0x3fff,
        Ports::Spray => SPRAY,
    }
}

fn pairs(world: &mut World, count: u32, policies: [Ports; 2], both_ways: bool) {
    for number in 0..count {
        let (here, there) = (0x45 + number, 0x46 + number);
        let ports = [port(policies[0], here, there, number), port(policies[1], there, here, number * 5 + 3)];
        world.connect(here, there, ports, both_ways);
    }
}

/// As on NICs that choose the sender's own number: what 0x46 answers comes from the port of 0x46's
/// own requests, which is another connection's.
#[test]
fn an_answer_from_the_port_of_another_flow_is_not_taken_for_its() {
    for takes in [0, 1] {
        let mut world = World::new(|settings| Settings { target_dead: Duration::from_secs(1), ..settings });
        pairs(&mut world, 2, [Ports::Own; 2], false);
        world.ways[0].messages = 64;
        (world.ways[1].messages, world.ways[1].takes) = (1024, takes);
        world.all_connect(Duration::from_secs(1));
        world.run(Duration::from_secs(4));
        assert!(world.ways[1].confirmed <= takes);
    }
}

/// Requests both ways from one port: the product of some numbers fits crosswise.
#[test]
fn ports_that_fit_crosswise_pair_nobody() {
    let mut world = World::new(|settings| settings);
    for (here, there) in [(0x57, 0x234), (0x58, 0x235)] {
        world.connect(here, there, [0xc000; 2], true);
    }
    world.all_connect(Duration::from_millis(200));
    let mut world = World::new(|settings| settings);
    pairs(&mut world, 96, [Ports::One; 2], true);
    world.all_connect(Duration::from_millis(500));
}

/// Whatever ports are chosen at either end, and with losses between the targets and their gateway.
#[test]
fn all_connect_whatever_ports_are_chosen_at_either_end() {
    for (here, there) in POLICIES.into_iter().flat_map(|one| POLICIES.map(|other| (one, other))) {
        for loss in [0, 5] {
            let mut world = World::new(|settings| settings);
            world.loss = loss;
            pairs(&mut world, 12, [here, there], true);
            world.all_connect(if loss == 0 { Duration::from_millis(100) } else { Duration::from_secs(5) });
        }
    }
}

/// The connections of deaf targets end, and nobody hears of it but their own requesters, who hear
/// nothing that is not so.
#[test]
fn an_end_is_told_to_nobody_else() {
    let mut world = World::new(|settings| Settings { target_dead: Duration::from_secs(1), ..settings });
    pairs(&mut world, 24, [Ports::One; 2], false);
    for (number, way) in world.ways.iter_mut().enumerate() {
        if number % 2 == 0 {
            (way.takes, way.messages) = (number as u32 / 2 % 3, 8);
        }
    }
    world.all_connect(Duration::from_secs(3));
    world.run(Duration::from_secs(10));
}

/// 64 deaf targets have had their turns. Whoever comes then does not wait for 64 of them.
#[test]
fn deaf_neighbours_keep_nobody_waiting() {
    let mut world = World::new(|settings| settings);
    pairs(&mut world, 64, [Ports::One; 2], false);
    world.ways.iter_mut().for_each(|way| way.takes = 0);
    // 50 ms each, and each 17th is one that had its turn before.
    world.run(Duration::from_millis(64 * 50 * 17 / 16 + 100));
    for number in 64..72 {
        world.connect(0x45 + number, 0x46 + number, [0xc000; 2], false);
        world.all_connect(Duration::from_millis(150));
    }
}

/// The time until all are connected, from 1 to 1,000 queue pairs between two hosts, by the port
/// policies of either end.
#[test]
fn the_time_to_connect_grows_linearly() {
    let counts = [1, 10, 100, 1000];
    println!(
        "ports here, there | milliseconds until {counts:?} queue pairs have had 4 messages each, both ways"
    );
    for policies in POLICIES.into_iter().flat_map(|one| POLICIES.map(|other| [one, other])) {
        let times = counts.map(|count| {
            let mut world = World::new(|settings| settings);
            world.takes = STEP;
            pairs(&mut world, count, policies, true);
            let most = STEP * (2 * count + 10);
            world.all_connect(most);
            format!("{:.1}", world.elapsed.as_secs_f64() * 1e3)
        });
        println!("{policies:?} | {}", times.join(" "));
    }
}
