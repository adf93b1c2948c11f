//! One host floods, another does what it always does: the class is shared, the link is short.

mod absent;
mod numbered;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::ip::{Addressing, Datagram};
use roce::wire::{Aeth, Bth, Deth, Ext, Opcode, Packet, Psn, Qpn, Repr, Reth, Syndrome};
use splice::{LanDrop, Settings};

use crate::sites::{STEP, Sites};

const RATE: u64 = 100_000_000;
const PAYLOAD: usize = 4096;
const IP_UDP: usize = 28;
const ICRC: usize = 4;
/// Messages that an honest requester has outstanding.
const WINDOW: usize = 16;
/// Time that it waits for an answer.
const TIMEOUT: Duration = Duration::from_millis(200);

fn host(number: u8) -> IpAddr {
    [10, 0, 0, number].into()
}

/// A requester of WRITEs of a packet each, that goes back to what is missing.
struct Requester {
    host: IpAddr,
    qpn: u32,
    target: u32,
    /// When each outstanding message was first sent.
    outstanding: VecDeque<Instant>,
    first: u32,
    next: u32,
    heard: Instant,
    latencies: Vec<Duration>,
    /// Told that its queue pair is over.
    ended: bool,
    /// Messages that it has to send in all.
    most: u32,
    /// Its target answers nothing.
    is_target_silent: bool,
}

impl Requester {
    fn new(number: u8, now: Instant) -> Self {
        Self {
            host: host(number),
            qpn: 0x10 + u32::from(number),
            target: 0x100 + u32::from(number),
            outstanding: VecDeque::new(),
            first: 0,
            next: 0,
            heard: now,
            latencies: Vec::new(),
            ended: false,
            most: u32::MAX,
            is_target_silent: false,
        }
    }

    /// One of many connections of a host, which sends so many messages.
    fn of_many(number: u8, connection: u32, most: u32, now: Instant) -> Self {
        let (qpn, target) = (0x2_0000 + connection, 0x3_0000 + connection);
        Self { qpn, target, most, ..Self::new(number, now) }
    }

    fn is_done(&self) -> bool {
        self.first == self.most && !self.ended
    }

    fn step(&mut self, sites: &mut Sites) {
        if self.ended {
            return;
        }
        if !self.outstanding.is_empty() && sites.now - self.heard > TIMEOUT {
            (self.next, self.heard) = (self.first, sites.now);
        }
        // As fast as a LAN may be that is ten times the link.
        for _ in 0..2 {
            let ahead = (self.next - self.first) as usize;
            if ahead >= WINDOW || self.next == self.most {
                break;
            }
            if ahead == self.outstanding.len() {
                self.outstanding.push_back(sites.now);
            }
            send(sites, self.host, &write(self.target, self.next));
            self.next += 1;
        }
    }

    fn hear(&mut self, packet: &Packet<'_>, now: Instant) {
        let Some(aeth) = packet.ext.aeth() else { return };
        let psn = packet.bth.psn.get();
        let code = aeth.syndrome.to_u8();
        let acknowledged = if code < 0x60 { psn + 1 } else { psn };
        while self.first < acknowledged
            && let Some(since) = self.outstanding.pop_front()
        {
            self.latencies.push(now - since);
            self.first += 1;
            self.heard = now;
        }
        self.next = self.next.max(self.first);
        if code == 0x60 {
            self.next = self.first;
        }
        self.ended |= code > 0x60;
    }
}

fn send(sites: &mut Sites, src: IpAddr, transport: &[u8]) {
    let addressing = Addressing { src, ..sites.addressing[0] };
    sites.gateways[0].handle_lan(&Datagram { addressing, transport }, sites.now);
}

fn packet(opcode: Opcode, to: u32, psn: u32, ext: Ext, payload: &[u8]) -> Vec<u8> {
    let bth = Bth { ack_req: true, ..Bth::new(opcode, Qpn::new(to), Psn::new(psn)) };
    let repr = Repr { bth, ext, payload };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut bytes).unwrap();
    bytes
}

fn write(to: u32, psn: u32) -> Vec<u8> {
    let ext = Ext::Reth(Reth { virtual_address: 0, rkey: 7, dma_length: PAYLOAD as u32 });
    packet(Opcode::WriteOnly, to, psn, ext, &[5; PAYLOAD])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ud,
    Uc,
    /// Messages of 4 GiB of which a packet comes now and then.
    UcClaims,
    Xrc,
    Cm,
    /// To queue pair 1, but no management datagrams.
    LikeCm,
    /// To one queue pair that is not there.
    RcAbsent,
    /// To very many.
    RcAbsentMany,
    /// Short ones, each to another.
    RcShort,
}

const KINDS: [Kind; 8] = [
    Kind::Ud,
    Kind::Uc,
    Kind::UcClaims,
    Kind::Xrc,
    Kind::Cm,
    Kind::LikeCm,
    Kind::RcAbsent,
    Kind::RcAbsentMany,
];

impl Kind {
    fn packet(self, number: u32) -> Vec<u8> {
        let deth = |src_qp| Ext::Deth(Deth { qkey: 0x8001_0000, src_qp: Qpn::new(src_qp) });
        let reth = |dma_length| Ext::Reth(Reth { virtual_address: 0, rkey: 7, dma_length });
        match self {
            Self::Ud => packet(Opcode::UdSendOnly, 77, number, deth(5), &[6; PAYLOAD]),
            Self::Uc => packet(Opcode::UcWriteOnly, 77, number, reth(PAYLOAD as u32), &[6; PAYLOAD]),
            Self::UcClaims => {
                packet(Opcode::UcWriteFirst, 1000 + number % 5000, number, reth(u32::MAX), &[6; PAYLOAD])
            }
            Self::Xrc => {
                let mut bytes = packet(Opcode::UdSendOnly, 77, number, deth(5), &[6; PAYLOAD]);
                bytes[0] = 0xa4;
                bytes
            }
            Self::Cm => {
                let mut mad = [0; 256];
                mad[..4].copy_from_slice(&[1, 7, 2, 3]);
                // REQs, each of another name.
                mad[17] = 0x10;
                mad[24..28].copy_from_slice(&number.to_be_bytes());
                packet(Opcode::UdSendOnly, 1, number, deth(1), &mad)
            }
            Self::LikeCm => packet(Opcode::UdSendOnly, 1, number, deth(1), &[6; PAYLOAD]),
            Self::RcAbsent => write(0x900, number),
            Self::RcAbsentMany => write(0x1000 + number % 3000, number / 3000),
            Self::RcShort => packet(Opcode::SendOnly, 0x1000 + number, 0, Ext::None, &[1; 16]),
        }
    }
}

/// Result of the honest requester.
#[derive(Debug)]
struct Outcome {
    /// Payload, of the link's rate.
    goodput: f64,
    p99: Duration,
    ended: bool,
}

struct World {
    sites: Sites,
    requesters: Vec<Requester>,
    flood: Option<(Kind, f64)>,
    /// Bytes that the flooding host may send by now.
    due: f64,
    sent: u32,
    out: Vec<u8>,
}

impl World {
    fn new(honest: u8, flood: Option<(Kind, f64)>) -> Self {
        let sites = Sites::new(0xc123, |settings| Settings { rate: RATE, ..settings });
        let requesters = (1..=honest).map(|number| Requester::new(number, sites.now)).collect();
        Self { sites, requesters, flood, due: 0.0, sent: 0, out: vec![0; 10_000] }
    }

    fn run(&mut self, time: Duration) {
        let end = self.sites.now + time;
        while self.sites.now < end {
            for requester in &mut self.requesters {
                requester.step(&mut self.sites);
            }
            if let Some((kind, times)) = self.flood {
                self.due += RATE as f64 * times / 8.0 * STEP.as_secs_f64();
                while self.due > 0.0 {
                    let packet = kind.packet(self.sent);
                    self.due -= (packet.len() + IP_UDP + ICRC) as f64;
                    self.sent += 1;
                    send(&mut self.sites, host(9), &packet);
                }
            }
            self.sites.cross();
            self.deliver();
            self.sites.now += STEP;
        }
    }

    fn deliver(&mut self) {
        let now = self.sites.now;
        while let Some(len) = self.sites.gateways[1].poll_lan(now, &mut self.out) {
            let Ok(packet) = Packet::parse(&self.out[IP_UDP..len - ICRC]) else { continue };
            let (to, psn) = (packet.bth.dest_qp.get(), packet.bth.psn);
            let Some(asks) = self.requesters.iter().find(|asks| asks.target == to) else { continue };
            if asks.is_target_silent {
                continue;
            }
            let ext = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: psn.get() + 1 });
            let mut bytes = [0; 16];
            let bth = Bth::new(Opcode::Acknowledge, Qpn::new(asks.qpn), psn);
            Repr { bth, ext, payload: &[] }.emit(&mut bytes).unwrap();
            let addressing = Addressing { dst: asks.host, ..self.sites.addressing[1] };
            self.sites.gateways[1].handle_lan(&Datagram { addressing, transport: &bytes }, now);
        }
        while let Some(len) = self.sites.gateways[0].poll_lan(now, &mut self.out) {
            let Ok(packet) = Packet::parse(&self.out[IP_UDP..len - ICRC]) else { continue };
            let to = packet.bth.dest_qp.get();
            if let Some(asks) = self.requesters.iter_mut().find(|asks| asks.qpn == to) {
                asks.hear(&packet, now);
            }
        }
    }
}

/// Plays one beside an honest host, or one that floods.
fn play(honest: u8, flood: Option<(Kind, f64)>) -> Outcome {
    let mut world = World::new(honest, None);
    world.run(Duration::from_millis(200));
    world.flood = flood;
    // What the flood has built up first counts as well.
    let before = world.requesters[0].latencies.len();
    let time = Duration::from_secs(2);
    world.run(time);
    let requester = &mut world.requesters[0];
    let mut latencies = requester.latencies.split_off(before);
    // What is still outstanding has waited for at least so long.
    latencies.extend(requester.outstanding.iter().map(|since| world.sites.now - *since));
    latencies.sort();
    let done = latencies.len() - requester.outstanding.len();
    Outcome {
        goodput: (done * PAYLOAD * 8) as f64 / time.as_secs_f64() / RATE as f64,
        p99: latencies[latencies.len() * 99 / 100],
        ended: requester.ended,
    }
}

/// The table that the documentation shows: nobody who floods has more than his share, of any kind,
/// and ends another's flow.
#[test]
fn a_host_that_floods_has_its_share_and_no_more() {
    let beside = play(2, None);
    println!("beside an honest host: goodput {:.2}, p99 {:?}", beside.goodput, beside.p99);
    println!("| kind | times the link's rate | goodput | p99 / p99 beside an honest host | ended |");
    println!("|---|---|---|---|---|");
    let mut failed = Vec::new();
    for kind in KINDS {
        for times in [1.04, 2.0, 10.0] {
            let outcome = play(1, Some((kind, times)));
            let ratio = outcome.p99.as_secs_f64() / beside.p99.as_secs_f64();
            println!("| {kind:?} | {times} | {:.2} | {ratio:.2} | {} |", outcome.goodput, outcome.ended);
            if outcome.goodput < 0.45 || ratio > 2.5 || outcome.ended {
                failed.push((kind, times));
            }
        }
    }
    assert_eq!(failed, []);
}

/// A UC message that claims all there is, and of which a packet comes now and then, keeps nobody's
/// from beginning.
#[test]
fn a_message_that_claims_more_than_it_brings_keeps_nobody_out() {
    let mut world = World::new(0, None);
    let mut sent = 0;
    for turn in 0..1000 {
        if turn % 90 == 0 {
            let bytes = Kind::UcClaims.packet(0);
            send(&mut world.sites, host(9), &bytes);
            world.sites.gateways[0].handle_timeout(world.sites.now);
        }
        send(&mut world.sites, host(1), &Kind::Uc.packet(turn));
        sent += 1;
        world.run(Duration::from_millis(1));
        world.sites.now += Duration::from_millis(9);
    }
    let drops = world.sites.gateways[0].stats().lan_drops;
    assert_eq!((sent, drops[LanDrop::NoRoom as usize], drops[LanDrop::Share as usize]), (1000, 0, 0));
}

/// Only well-formed management datagrams go before payload, and of one host no more than its part
/// of the link.
#[test]
fn what_is_no_management_waits_for_its_turn() {
    let mut world = World::new(1, None);
    world.run(Duration::from_millis(100));
    for number in 0..100 {
        send(&mut world.sites, host(9), &Kind::LikeCm.packet(number));
    }
    assert_eq!(world.sites.gateways[0].stats().mads_in_turn, 100);
    for number in 0..1000 {
        send(&mut world.sites, host(9), &Kind::Cm.packet(number));
    }
    let in_turn = world.sites.gateways[0].stats().mads_in_turn;
    // 64 KiB of them at once.
    assert_eq!(in_turn, 100 + 1000 - (64 << 10) / (12 + 8 + 256));
    // Another host's go first all the same.
    for number in 0..20 {
        send(&mut world.sites, host(8), &Kind::Cm.packet(number));
    }
    assert_eq!(world.sites.gateways[0].stats().mads_in_turn, in_turn);
}

/// A connection request that finds no room in its class is not remembered: it is sent again.
#[test]
fn requests_that_are_not_carried_are_not_remembered() {
    let mut sites = Sites::new(0xc123, |settings| Settings { flows: 900, rate: RATE, ..settings });
    let mut drops = Vec::new();
    for number in 0..100_000 {
        send(&mut sites, host(9), &Kind::Cm.packet(number));
        let stats = sites.gateways[0].stats();
        drops.push((stats.lan_drops[LanDrop::Share as usize], stats.calls_refused));
    }
    let full = drops.iter().position(|(dropped, _)| *dropped > 0).unwrap();
    let [(_, before), (dropped, after)] = [drops[full], drops[drops.len() - 1]];
    assert_eq!((dropped, after), (100_000 - full as u64, before), "from {full} on");
}

/// Flows of which nothing is known begin at a pace, of each host and of all that no target has
/// answered. Another's begin beside them.
#[test]
fn flows_of_one_host_begin_at_a_pace() {
    let mut world = World::new(1, None);
    world.run(Duration::from_millis(100));
    let opened = |world: &mut World| world.sites.gateways[0].stats().near_opened;
    let before = opened(&mut world);
    // So many a second that they would be all that a gateway does.
    let begin = |world: &mut World, number: u32| {
        send(&mut world.sites, host(9), &packet(Opcode::SendOnly, 0x1000 + number, 0, Ext::None, &[1; 16]));
    };
    let started = world.sites.now;
    for number in 0..200_000 {
        begin(&mut world, number);
        if number % 1000 == 999 {
            world.run(Duration::from_millis(2));
        }
    }
    let (own, time) = (opened(&mut world) - before, (world.sites.now - started).as_secs_f64());
    let [slow, pace] = [10_000.0, 40_000.0].map(|a_second| 16_384.0 + time * a_second);
    // Most of it finds no room, so each counts as four from then on.
    assert!(own as f64 <= pace + 1.0 && own as f64 >= slow, "{own} in {time} s");
    assert!((own as f64) < (slow + pace) / 2.0, "{own} in {time} s");
    let drops = world.sites.gateways[0].stats().lan_drops;
    assert!(drops[LanDrop::TooManyFlows as usize] + drops[LanDrop::Surplus as usize] > 100_000);
    // It is a host that no target has answered, and so is this one.
    world.requesters.push(Requester::of_many(2, 300, 2, world.sites.now));
    world.run(Duration::from_millis(100));
    assert!(world.requesters.iter().all(|requester| requester.is_done() || requester.most == u32::MAX));
    assert!(world.requesters[1].is_done());
    assert_eq!(failed(&mut world), 0);
}

/// A flood that mostly finds no room is read in part. Flows that were answered are read in full,
/// and so are other hosts.
#[test]
fn of_a_flood_a_part_is_read_and_of_others_all() {
    println!("| kind | sent | unread | goodput |");
    for kind in
        [Kind::Ud, Kind::Uc, Kind::UcClaims, Kind::Xrc, Kind::LikeCm, Kind::RcAbsentMany, Kind::RcShort]
    {
        let mut world = World::new(1, None);
        world.run(Duration::from_millis(200));
        let before = world.requesters[0].latencies.len();
        world.flood = Some((kind, 10.0));
        let flow = [write(world.requesters[0].target, 0)];
        let others = [Kind::Ud.packet(0), Kind::Uc.packet(0), Kind::RcShort.packet(0xfff)];
        for _ in 0..100 {
            world.run(Duration::from_millis(10));
            let now = world.sites.now;
            for (number, bytes) in flow.iter().chain(&others).map(|bytes| (1, bytes)) {
                let addressing = Addressing { src: host(number), ..world.sites.addressing[0] };
                let datagram = Datagram { addressing, transport: bytes };
                assert!(!world.sites.gateways[0].drop_surplus(&datagram, now), "{kind:?}");
            }
        }
        let unread = world.sites.gateways[0].stats().lan_drops[LanDrop::Surplus as usize];
        let done = world.requesters[0].latencies.len() - before;
        let goodput = (done * PAYLOAD * 8) as f64 / RATE as f64;
        println!("| {kind:?} | {} | {unread} | {goodput:.2} |", world.sent);
        assert!(unread * 3 > u64::from(world.sent) && goodput >= 0.45, "{kind:?}");
    }
}

/// Flows to hosts that are not there leave others room in the table.
#[test]
fn flows_of_one_host_leave_room_for_anothers() {
    let mut sites = Sites::new(0xc123, |settings| Settings { flows: 900, ..settings });
    for number in 0..2000 {
        send(&mut sites, host(9), &write(0x1000 + number, 0));
    }
    assert_eq!(sites.gateways[0].stats().near_flows, 800);
    for number in 0..50 {
        send(&mut sites, host(1), &write(0x1000 + number, 0));
    }
    let stats = sites.gateways[0].stats();
    // Its own have given way to its next ones.
    assert_eq!((stats.near_flows, stats.evicted), (850, 1200));
    assert_eq!(stats.lan_drops[LanDrop::TooManyFlows as usize], 0);
    for _ in 0..500 {
        sites.cross();
        sites.now += STEP;
    }
    assert_eq!(sites.gateways[1].stats().far_flows, 850, "the other gateway has its own shares");
}

/// Somebody on the LAN begins flows in ever other names, to queue pairs that are not there.
fn invent(world: &mut World, time: Duration) {
    let end = world.sites.now + time;
    while world.sites.now < end {
        invent_one(world);
        world.run(20 * STEP);
    }
}

fn invent_one(world: &mut World) {
    let request = packet(Opcode::SendOnly, 0x1000 + world.sent, 0, Ext::None, &[1; 16]);
    send(&mut world.sites, host(10 + (world.sent % 240) as u8), &request);
    world.sent += 1;
}

/// Fills the tables faster than any target answers.
fn invent_at_once(world: &mut World, flows: u32) {
    for _ in 0..flows {
        invent_one(world);
        world.run(STEP / 2);
    }
    let near = world.sites.gateways[0].stats().near_flows;
    let far = world.sites.gateways[1].stats().far_flows;
    assert!(near > 850 && far > 850, "{near} {far} are not full");
}

fn small(rate: u64) -> World {
    let mut world = World::new(0, None);
    world.sites = Sites::new(0xc123, |settings| Settings { flows: 900, rate, ..settings });
    world
}

fn failed(world: &mut World) -> u64 {
    world.sites.gateways.iter_mut().map(|gateway| gateway.stats().failed.iter().sum::<u64>()).sum()
}

/// A target that is silent for a time, while flows in invented names come: its flow may give way,
/// here or there, and its requester's next try begins it again. Nobody is told that it is over.
#[test]
fn a_flow_that_gives_way_begins_again() {
    for [near, far] in [[900, 900], [100_000, 900]] {
        let mut world = World::new(1, None);
        world.sites = Sites::new(0xc123, |settings| {
            let is_near = settings.remote.contains(&"10.0.1.0/24".parse().unwrap());
            Settings { flows: if is_near { near } else { far }, rate: RATE, ..settings }
        });
        world.requesters[0].is_target_silent = true;
        invent(&mut world, Duration::from_millis(900));
        assert_eq!(world.requesters[0].latencies.len(), 0);
        world.requesters[0].is_target_silent = false;
        // Its questions to a silent target rest for up to a second.
        invent(&mut world, Duration::from_millis(1500));
        let requester = &world.requesters[0];
        let done = requester.latencies.len();
        assert!(!requester.ended && done > 100, "{near} {far}: {done}");
        assert_eq!(failed(&mut world), 0, "{near} {far}");
    }
}

/// A host with many connections begins another one beside flows in invented names, however young
/// they are.
#[test]
fn a_host_with_many_connections_begins_another_beside_invented_names() {
    let mut world = small(1_000_000_000);
    world.requesters = (0..200).map(|number| Requester::of_many(1, number, 2, world.sites.now)).collect();
    world.run(Duration::from_millis(100));
    assert!(world.requesters.iter().all(Requester::is_done));
    invent_at_once(&mut world, 1000);
    world.requesters.push(Requester::of_many(1, 500, 2, world.sites.now));
    world.run(Duration::from_millis(50));
    assert!(world.requesters[200].is_done(), "{:?}", world.sites.gateways[0].stats());
    // Those that it had go on.
    world.requesters.iter_mut().for_each(|requester| requester.most = 4);
    world.run(Duration::from_millis(100));
    assert!(world.requesters.iter().all(Requester::is_done));
    assert_eq!(failed(&mut world), 0);
}

/// A flow that takes another one's place at a queue pair needs no other place.
#[test]
fn a_flow_in_anothers_place_needs_no_other() {
    let mut world = small(1_000_000_000);
    world.requesters = (0..200).map(|number| Requester::of_many(1, number, 8, world.sites.now)).collect();
    world.run(Duration::from_millis(200));
    assert!(world.requesters.iter().all(Requester::is_done));
    invent_at_once(&mut world, 1000);
    let replaced = |world: &mut World| world.sites.gateways[0].stats().replaced;
    let before = replaced(&mut world);
    // Somebody sends in the host's name, while its connections are at rest.
    for requester in 0..50 {
        let request = write(world.requesters[requester].target, 6);
        send(&mut world.sites, host(1), &request);
    }
    world.run(Duration::from_millis(20));
    assert_eq!(replaced(&mut world) - before, 50);
    assert_eq!(world.sites.gateways[0].stats().lan_drops[LanDrop::TooManyFlows as usize], 0);
    assert_eq!(failed(&mut world), 0);
    world.requesters.iter_mut().for_each(|requester| requester.most = 16);
    world.run(Duration::from_millis(600));
    assert!(world.requesters.iter().all(Requester::is_done));
}

/// Whoever sends in a host's name, to queue pairs that are not there, keeps that from nothing.
#[test]
fn flows_in_a_hosts_own_name_give_way_to_those_that_it_begins() {
    let mut world = small(RATE);
    for number in 0..2000 {
        // To another target: of questions between the same two hosts each waits for its turn.
        let request = packet(Opcode::SendOnly, 0x1000 + number, 0, Ext::None, &[1; 16]);
        let addressing = Addressing { src: host(1), dst: [10, 0, 1, 77].into(), ..world.sites.addressing[0] };
        let datagram = Datagram { addressing, transport: &request };
        world.sites.gateways[0].handle_lan(&datagram, world.sites.now);
        world.run(STEP);
    }
    world.requesters.push(Requester::new(1, world.sites.now));
    world.run(Duration::from_millis(300));
    let done = world.requesters[0].latencies.len();
    assert!(done > 100 && !world.requesters[0].ended, "{done}");
    assert_eq!(world.sites.gateways[0].stats().near_flows, 800);
}

/// Flows in invented names fill the table of either gateway. They give way to a host that begins,
/// and none gives way whose target has spoken.
#[test]
fn flows_in_invented_names_give_way_to_hosts_that_begin() {
    for [near, far] in [[900, 900], [100_000, 900]] {
        let mut world = World::new(1, None);
        world.sites = Sites::new(0xc123, |settings| {
            let is_near = settings.remote.contains(&"10.0.1.0/24".parse().unwrap());
            Settings { flows: if is_near { near } else { far }, rate: RATE, ..settings }
        });
        world.run(Duration::from_millis(50));
        invent(&mut world, Duration::from_millis(600));
        let flows = world.sites.gateways[1].stats().far_flows;
        assert!(flows > 850, "{near} {far}: {flows} are not full");
        let before = world.requesters[0].latencies.len();
        world.requesters.push(Requester::new(2, world.sites.now));
        invent(&mut world, Duration::from_millis(500));
        let [first, second] = &world.requesters[..] else { unreachable!() };
        assert!(!first.ended && first.latencies.len() > before + 100, "{near} {far}: {before}");
        let done = second.latencies.len();
        assert!(!second.ended && done > 100, "{near} {far}: {done} {:?}", world.sites.gateways[0].stats());
        let flows = world.sites.gateways.each_mut().map(|gateway| gateway.stats().near_flows);
        assert!(flows[0] <= near as u64, "{flows:?}");
    }
}

/// One host's packets to queue pairs of a target that are not there leave others their part of
/// what may be on its way to it.
#[test]
fn what_one_host_has_on_its_way_to_a_target_leaves_others_their_part() {
    let mut sites = Sites::new(0xc123, |settings| Settings { total_buffer: 16 << 20, ..settings });
    let no_room = |sites: &mut Sites| {
        let drops = sites.gateways[0].stats().lan_drops;
        drops[LanDrop::NoRoom as usize] + drops[LanDrop::Surplus as usize]
    };
    for number in 0..6000 {
        send(&mut sites, host(9), &write(0x1000 + number % 1000, number / 1000));
        if number % 50 == 0 {
            sites.now += Duration::from_millis(1);
            sites.cross();
        }
    }
    let before = no_room(&mut sites);
    assert!(before > 1000, "{before}");
    for number in 0..100 {
        send(&mut sites, host(1), &write(0x1000 + number % 50, number / 50));
    }
    assert_eq!(no_room(&mut sites), before);
}

/// One host's requests to many absent targets fill the buffers of the other gateway. Those that
/// hold more of them, and are answered, do not end for that.
#[test]
fn requests_to_many_absent_targets_end_no_flow_that_is_answered() {
    let mut world = World::new(1, None);
    world.sites =
        Sites::new(0xc123, |settings| Settings { total_buffer: 6 << 20, rate: 1_000_000_000, ..settings });
    world.run(Duration::from_millis(50));
    for number in 0..6000 {
        let dst = [10, 0, 1, 10 + (number % 200) as u8].into();
        let addressing = Addressing { src: host(9), dst, ..world.sites.addressing[0] };
        let request = write(0x1000 + number / 200, 0);
        let now = world.sites.now;
        world.sites.gateways[0].handle_lan(&Datagram { addressing, transport: &request }, now);
        world.run(STEP);
    }
    let used = world.sites.gateways[1].stats();
    assert!(used.evicted > 100, "{}", used.evicted);
    let requester = &world.requesters[0];
    assert!(!requester.ended && requester.latencies.len() > 1000, "{}", requester.latencies.len());
    assert_eq!(failed(&mut world), 0);
}
