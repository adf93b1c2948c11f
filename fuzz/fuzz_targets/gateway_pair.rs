//! Two whole gateways between NICs of both sites, and a judge: nothing completes at a requester
//! that its own target has not acknowledged, no data is wrong, no atomic runs twice, nothing hangs.
#![no_main]

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::nic::{Mood, Requester, Responder, What};
use longhaul_fuzz::site::{self, Site, TOTAL_BUFFER};
use longhaul_fuzz::{Script, epoch, within};
use roce::ip::{Addressing, Datagram};
use roce::pairing::source_port;
use roce::wire::{Packet, Psn, Qpn};
use splice::Arrival;

const MOST_CONNECTIONS: u8 = 6;

/// As in `gateway_lan`, and as much for what the hosts and links of this world hold.
const BOUND: u64 = 2 * (3 * TOTAL_BUFFER + (8 << 20)) as u64 + (8 << 20);

fuzz_target!(|input: &[u8]| within(BOUND, "two gateways and their hosts", || run(input)));

fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut world = World::new(&mut script);
    while !script.is_over() {
        world.step(&mut script);
    }
    world.finish();
}

/// A queue pair.
#[derive(Debug)]
struct End {
    host: IpAddr,
    own: Qpn,
    port: u16,
    requester: Requester,
    responder: Responder,
}

/// Two queue pairs, one at each site.
#[derive(Debug)]
struct Connection {
    ends: [End; 2],
}

struct World {
    now: Instant,
    sites: [Site; 2],
    connections: Vec<Connection>,
    /// From and to the hosts of each site.
    up: [VecDeque<(Addressing, Vec<u8>)>; 2],
    down: [VecDeque<(Addressing, Vec<u8>)>; 2],
    /// To the other site.
    wan: [VecDeque<(Vec<u8>, Arrival)>; 2],
}

impl World {
    fn new(script: &mut Script<'_>) -> Self {
        let now = epoch();
        let how = script.u8();
        let connections = (0..=how % MOST_CONNECTIONS).map(|at| connection(script, how, at)).collect();
        Self {
            now,
            sites: [Site::new(0, 1, now), Site::new(1, 1, now)],
            connections,
            up: Default::default(),
            down: Default::default(),
            wan: Default::default(),
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let (what, which) = (script.u8(), script.u8());
        let at = usize::from(which >> 1) % self.connections.len();
        let here = usize::from(which & 1);
        let end = &mut self.connections[at].ends[here];
        match what % 12 {
            0 | 1 => {
                let message = [What::Write, What::Send, What::Read, What::FetchAdd];
                let message = script.pick(&message);
                end.requester.post(message, u32::from(script.u8() % 12));
            }
            2 | 3 => self.send(at, here, 1 + usize::from(script.u8() % 16)),
            4 => end.requester.go_back(),
            5 => self.lan_up(here, script.u16()),
            6 => self.lan_down(here, script.u16()),
            7 | 8 => self.cross(here, script.u16()),
            9 if which >= 0xe0 => self.upgrade(here),
            9 => self.wait(script.span()),
            10 => {
                let moods = [Mood::Prompt, Mood::Lazy, Mood::NotReady, Mood::Deaf, Mood::Lazy];
                end.responder.mood = script.pick(&moods);
                end.responder.tell();
                self.answer(at, here);
            }
            _ => self.poll(here),
        }
    }

    fn send(&mut self, at: usize, here: usize, most: usize) {
        for _ in 0..most {
            let Some(packet) = self.connections[at].ends[here].requester.transmit() else { return };
            self.hand_over(at, here, packet);
        }
    }

    fn answer(&mut self, at: usize, here: usize) {
        while let Some(packet) = self.connections[at].ends[here].responder.out.pop_front() {
            self.hand_over(at, here, packet);
        }
    }

    fn hand_over(&mut self, at: usize, here: usize, packet: Vec<u8>) {
        let ends = &self.connections[at].ends;
        let (from, to) = (&ends[here], &ends[1 - here]);
        let addressing = Addressing { src: from.host, dst: to.host, src_port: from.port, tclass: 0, ttl: 64 };
        self.up[here].push_back((addressing, packet));
    }

    fn lan_up(&mut self, here: usize, fates: u16) {
        for at in 0..8.min(self.up[here].len()) {
            let Some((addressing, packet)) = self.up[here].pop_front() else { return };
            for _ in 0..copies(fates, at) {
                self.sites[here].gateway.handle_lan(&Datagram { addressing, transport: &packet }, self.now);
            }
            if fates >> (2 * at) & 3 == 3 {
                self.up[here].push_back((addressing, packet));
            }
        }
        self.poll(here);
    }

    fn lan_down(&mut self, here: usize, fates: u16) {
        for at in 0..8.min(self.down[here].len()) {
            let Some((addressing, packet)) = self.down[here].pop_front() else { return };
            for _ in 0..copies(fates, at) {
                self.arrive(here, &addressing, &packet);
            }
            if fates >> (2 * at) & 3 == 3 {
                self.down[here].push_back((addressing, packet));
            }
        }
    }

    /// A packet comes to the host that it names.
    fn arrive(&mut self, here: usize, addressing: &Addressing, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("gateways emit packets");
        let is_for = |connection: &Connection| {
            let end = &connection.ends[here];
            (end.host, end.own) == (addressing.dst, packet.bth.dest_qp)
        };
        let at = self.connections.iter().position(is_for);
        let at = at.unwrap_or_else(|| panic!("for nobody: {addressing:?} {:?}", packet.bth));
        let [one, other] = &mut self.connections[at].ends;
        let (own, peer) = if here == 0 { (one, other) } else { (other, one) };
        if packet.bth.opcode.is_request() {
            assert_eq!(addressing.src, peer.host, "a request from another host");
            own.responder.handle(&packet, &peer.requester);
        } else {
            own.requester.handle(&packet, &peer.responder);
        }
        self.answer(at, here);
    }

    fn cross(&mut self, here: usize, fates: u16) {
        for at in 0..8.min(self.wan[here].len()) {
            let Some((packet, arrival)) = self.wan[here].pop_front() else { return };
            match fates >> (2 * at) & 3 {
                0 | 2 => self.sites[1 - here].gateway.handle_wan(&packet, arrival, self.now),
                1 => {}
                _ => self.wan[here].push_back((packet, arrival)),
            }
        }
        self.poll(1 - here);
    }

    fn poll(&mut self, here: usize) {
        let (now, down, wan) = (self.now, &mut self.down[here], &mut self.wan[here]);
        let site = &mut self.sites[here];
        site.lan(now, |datagram| down.push_back((datagram.addressing, datagram.transport.to_vec())));
        site.wan(now, |packet, arrival| wan.push_back((packet.to_vec(), arrival)));
    }

    fn wait(&mut self, span: Duration) {
        self.now += span;
        for here in 0..2 {
            self.sites[here].wait(self.now);
            self.poll(here);
        }
    }

    /// Another process takes a gateway's place, and the session goes on.
    fn upgrade(&mut self, here: usize) {
        self.wan.iter_mut().for_each(VecDeque::clear);
        self.sites[1 - here].gateway.session_lost(self.now);
        self.sites[here].take_over(here as u8, self.now);
        for here in 0..2 {
            self.sites[here].resume(self.now);
            self.poll(here);
        }
    }

    /// Each requester is done, or has seen an error; or its target's queue pair is in error and
    /// answers nothing, so that its own NIC gives up.
    fn is_over(&self) -> bool {
        let is_over = |one: &End, other: &End| {
            one.requester.is_idle() || one.requester.is_broken || other.responder.is_broken
        };
        self.connections.iter().all(|Connection { ends: [a, b] }| is_over(a, b) && is_over(b, a))
    }

    /// Nothing is lost any more and everybody answers: all completes, or its requester sees an
    /// error.
    fn finish(mut self) {
        for end in self.connections.iter_mut().flat_map(|connection| &mut connection.ends) {
            end.responder.mood = Mood::Prompt;
        }
        for round in 0..2000_u32 {
            if self.is_over() {
                break;
            }
            for at in 0..self.connections.len() {
                for here in 0..2 {
                    if round % 100 == 99 {
                        self.connections[at].ends[here].requester.go_back();
                    }
                    self.send(at, here, 200);
                }
            }
            self.exchange();
            // A flow that failed is remembered for a minute, and cannot refuse a requester that
            // nothing has named.
            let pause = [1, 20, 500][usize::from(round > 400) + usize::from(round > 1000)];
            self.wait(Duration::from_millis(pause));
        }
        if !self.is_over() {
            let stats = self.sites.each_mut().map(|site| site.gateway.stats().clone());
            panic!("hangs: {:#?}\n{stats:#?}", self.connections);
        }
        for end in self.connections.iter().flat_map(|connection| &connection.ends) {
            let requester = &end.requester;
            let results = requester.values.iter().copied();
            assert!(results.eq(0..requester.values.len() as u64), "{:?}", requester.values);
        }
    }

    fn exchange(&mut self) {
        for here in [0, 1, 0, 1] {
            while !self.up[here].is_empty() {
                self.lan_up(here, 0);
            }
            while !self.wan[here].is_empty() {
                self.cross(here, 0);
            }
            while !self.down[here].is_empty() {
                self.lan_down(here, 0);
            }
        }
    }
}

/// How often a packet arrives now.
fn copies(fates: u16, at: usize) -> usize {
    [1, 0, 2, 0][usize::from(fates >> (2 * at) & 3)]
}

/// Queue pairs that no other connection has, and ports as NICs choose them.
fn connection(script: &mut Script<'_>, how: u8, at: u8) -> Connection {
    let bits = script.u8();
    let numbers = [0x40 + u32::from(at), 0x45 + u32::from(at)].map(Qpn::new);
    let first = [Psn::new(0), Psn::new(u32::from(script.u16()) << 8), Psn::new(0xff_fff0)];
    let first = first[usize::from(how >> 3) % 3];
    let port = |own: usize| match how >> 5 {
        // The product, both ways alike.
        0..3 => source_port(numbers[0], numbers[1]),
        3 => 0xc000,
        4 => numbers[own].get() as u16,
        5 => 0xc000 + u16::from(bits >> (4 * own) & 3),
        _ => 0xc000 + u16::from(at),
    };
    let end = |own: usize| End {
        host: site::host(own as u8, bits >> own),
        own: numbers[own],
        port: port(own),
        requester: Requester::new(numbers[own], numbers[1 - own], first),
        responder: Responder::new(numbers[own], numbers[1 - own], first),
    };
    Connection { ends: [end(0), end(1)] }
}
