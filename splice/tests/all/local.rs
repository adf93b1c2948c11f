//! `completion = "local"`: what is told early, and what is not.

use std::path::Path;
use std::time::Duration;

use crate::sites::{STEP, Sites, write_request};
use config::Policy;
use roce::ip::Datagram;
use roce::wire::{Bth, Opcode, Psn, Qpn};
use splice::{Cause, LanDrop, SessionEnd, Settings};

const TARGET: Qpn = Qpn::new(0x22);
const REQUESTER: Qpn = Qpn::new(0x11);

struct World {
    sites: Sites,
    /// The packets that the target got and has not acknowledged.
    at_target: Vec<u32>,
    /// The packets that the requester heard.
    heard: Vec<(Opcode, u32)>,
}

impl World {
    fn new(completion: &str) -> Self {
        Self::with(&format!("completion = \"{completion}\""))
    }

    /// With one class, which has this key.
    fn with(key: &str) -> Self {
        let text = format!("[[class]]\nname = \"default\"\nscheme = \"sr\"\n{key}");
        let policy = Policy::parse(Path::new("policy.toml"), &text).unwrap();
        let sites = Sites::new(0xc123, |settings| Settings { policy: policy.clone().into(), ..settings });
        Self { sites, at_target: Vec::new(), heard: Vec::new() }
    }

    fn write(&mut self, psn: u32) {
        let mut request = write_request(TARGET, 256);
        Bth::set_psn(request.first_chunk_mut().unwrap(), Psn::new(psn));
        let datagram = Datagram { addressing: self.sites.addressing[0], transport: &request };
        self.sites.gateways[0].handle_lan(&datagram, self.sites.now);
        self.run();
    }

    fn run(&mut self) {
        for _ in 0..200 {
            self.sites.cross();
            while let Some(bth) = self.sites.deliver(1) {
                self.at_target.push(bth.psn.get());
            }
            while let Some(bth) = self.sites.deliver(0) {
                self.heard.push((bth.opcode, bth.psn.get()));
            }
            self.sites.now += STEP;
        }
    }

    /// The target acknowledges all it got.
    fn acknowledge(&mut self) {
        let last = self.at_target.drain(..).max().unwrap();
        self.sites.acknowledge(REQUESTER, Psn::new(last), last + 1);
        self.run();
    }

    fn heard(&mut self) -> Vec<u32> {
        self.heard.drain(..).map(|(_, psn)| psn).collect()
    }
}

#[test]
fn a_message_is_done_when_the_gateway_has_it() {
    let mut world = World::new("local");
    world.write(0);
    assert_eq!(world.heard(), [], "whether this is the flow's first, only the target knows");
    world.acknowledge();
    assert_eq!(world.heard(), [0]);
    world.write(1);
    world.write(2);
    assert_eq!((world.heard(), &world.at_target[..]), (vec![1, 2], &[1, 2][..]));
    world.acknowledge();
    assert_eq!(world.heard(), [], "it knows");

    world.write(3);
    assert_eq!(world.heard(), [3]);
    let now = world.sites.now;
    world.sites.gateways.iter_mut().for_each(|gateway| gateway.session_down(SessionEnd::Closed, now));
    world.run();
    assert_eq!(world.heard(), [], "nothing is left to be refused");
    world.write(4);
    world.run();
    assert_eq!(world.heard, [(Opcode::Acknowledge, 4)], "the request after what was lost is refused");
    assert_eq!(world.sites.gateways[0].stats().near.fatal_naks, 1);
}

#[test]
fn otherwise_it_is_done_when_the_target_has_it() {
    let mut world = World::new("remote");
    world.write(0);
    world.acknowledge();
    world.write(1);
    assert_eq!((world.heard(), &world.at_target[..]), (vec![0], &[1][..]));
    world.acknowledge();
    assert_eq!(world.heard(), [1]);
}

/// A class may say what its requesters meet, however the session ended.
#[test]
fn a_class_refuses_as_it_says() {
    let by_default = [(SessionEnd::Lost, false), (SessionEnd::Closed, true)];
    let silence = by_default.map(|(end, _)| ("refuse = \"silence\"", end, false));
    let nak = by_default.map(|(end, _)| ("refuse = \"nak\"", end, true));
    for (key, end, is_refused) in
        by_default.map(|(end, nak)| ("", end, nak)).into_iter().chain(silence).chain(nak)
    {
        let mut world = World::with(key);
        world.write(0);
        world.acknowledge();
        world.write(1);
        assert_eq!(world.heard(), [0]);
        let now = world.sites.now;
        world.sites.gateways[0].session_down(end, now);
        // After a rest only what comes back three times is refused.
        (0..5).for_each(|_| world.write(1));
        assert_eq!(world.heard().contains(&1), is_refused, "{key} {end:?}");
        let stats = world.sites.gateways[0].stats();
        assert_eq!((stats.session_failed, stats.silenced), (1, u64::from(!is_refused)), "{key} {end:?}");
        let mut told = Vec::new();
        world.sites.gateways[0].take_failures(&mut |failure| told.push(failure.cause));
        assert_eq!(told, [Cause::Session], "{key} {end:?}");
    }
}

/// The link is cut. The requester's NIC is to give up by itself, and neither is it refused nor does
/// its retry begin another flow when there is a session again.
#[test]
fn a_requester_whose_session_ended_in_silence_is_answered_nothing() {
    let mut world = World::new("remote");
    world.write(0);
    world.acknowledge();
    world.write(1);
    assert_eq!(world.heard(), [0]);
    let now = world.sites.now;
    world.sites.gateways.iter_mut().for_each(|gateway| gateway.session_down(SessionEnd::Lost, now));
    world.run();
    world.sites.renew();
    for _ in 0..25 {
        world.sites.now += Duration::from_secs(1);
        world.write(1);
        assert_eq!(world.heard(), []);
    }
    let stats = world.sites.gateways[0].stats();
    assert_eq!((stats.near_opened, stats.near.fatal_naks, stats.near_flows), (1, 0, 1));
    // Who tries for ever is refused in the end, and then nothing is left.
    world.sites.now += Duration::from_secs(6);
    world.write(1);
    world.sites.now += Duration::from_millis(10);
    world.run();
    assert_eq!(world.heard(), [1]);
    for _ in 0..20 {
        world.sites.now += Duration::from_secs(1);
        world.run();
    }
    let stats = world.sites.gateways[0].stats();
    assert_eq!((stats.near.fatal_naks, stats.near_flows, stats.timers), (1, 0, 0));
}

/// A gateway had forgotten the flow as idle, the peer could not be told, and remembers it.
#[test]
fn a_forgotten_requester_whose_session_ended_in_silence_is_answered_nothing() {
    let mut world = World::new("remote");
    world.write(0);
    world.acknowledge();
    assert_eq!(world.heard(), [0]);
    world.sites.now += Duration::from_secs(1_000_000);
    let now = world.sites.now;
    let alone = &mut world.sites.gateways[0];
    alone.handle_timeout(now);
    assert_eq!(alone.stats().near_flows, 0);
    world.sites.gateways.iter_mut().for_each(|gateway| gateway.session_down(SessionEnd::Lost, now));
    world.sites.renew();
    for _ in 0..25 {
        world.sites.now += Duration::from_secs(1);
        world.write(1);
        assert_eq!(world.heard(), []);
    }
    let stats = world.sites.gateways[0].stats();
    assert_eq!((stats.near_opened, stats.doomed, stats.near.fatal_naks, stats.near_flows), (2, 0, 0, 1));
}

/// As many flows fell silent as there may be; the programs have made new connections.
#[test]
fn flows_that_failed_give_way_where_there_are_too_many() {
    let two = || {
        let mut world = World::new("remote");
        world.sites = Sites::new(0xc123, |settings| {
            let flows = if settings.remote[0].to_string() == "10.0.1.0/24" { 2 } else { 100 };
            Settings { flows, ..settings }
        });
        world
    };
    let write = |world: &mut World, target: u32| {
        let datagram = Datagram {
            addressing: world.sites.addressing[0],
            transport: &write_request(Qpn::new(target), 256),
        };
        world.sites.gateways[0].handle_lan(&datagram, world.sites.now);
        world.run();
    };
    let answer = |world: &mut World, target: u32| {
        world.sites.acknowledge(Qpn::new(0x100 + target), Psn::new(0), 1);
        world.run();
    };
    let too_many = |world: &mut World| {
        let stats = world.sites.gateways[0].stats();
        (stats.near_flows, stats.evicted, stats.lan_drops[LanDrop::TooManyFlows as usize])
    };
    let mut world = two();
    for target in [1, 2] {
        write(&mut world, target);
        answer(&mut world, target);
    }
    write(&mut world, 3);
    assert_eq!(too_many(&mut world), (2, 0, 1), "those that work stay");
    let mut world = two();
    write(&mut world, 1);
    write(&mut world, 2);
    let now = world.sites.now;
    world.sites.gateways.iter_mut().for_each(|gateway| gateway.session_down(SessionEnd::Lost, now));
    world.run();
    world.sites.renew();
    write(&mut world, 3);
    write(&mut world, 4);
    assert_eq!(too_many(&mut world), (2, 2, 0));
    write(&mut world, 5);
    assert_eq!(too_many(&mut world), (2, 3, 0), "the oldest was never answered");
}

/// It would open another flow, and its target, which is in error, answers nobody.
#[test]
fn a_flow_that_failed_does_not_give_way_before_its_requester_has_heard() {
    let mut world = World::new("remote");
    world.sites = Sites::new(0xc123, |settings| {
        let flows = if settings.remote[0].to_string() == "10.0.1.0/24" { 1 } else { 100 };
        Settings { flows, ..settings }
    });
    world.write(0);
    world.acknowledge();
    assert_eq!(world.heard(), [0]);
    let now = world.sites.now;
    world.sites.gateways.iter_mut().for_each(|gateway| gateway.session_down(SessionEnd::Closed, now));
    world.run();
    world.sites.renew();
    let others = |world: &mut World| {
        let transport = &write_request(Qpn::new(0x33), 256);
        let datagram = Datagram { addressing: world.sites.addressing[0], transport };
        world.sites.gateways[0].handle_lan(&datagram, world.sites.now);
        world.run();
        let stats = world.sites.gateways[0].stats();
        (stats.evicted, stats.lan_drops[LanDrop::TooManyFlows as usize])
    };
    assert_eq!(others(&mut world), (0, 1));
    // After a rest the refusal waits for what may come before, and others try meanwhile.
    let mut tries = 0;
    loop {
        assert_eq!(others(&mut world).0, 0);
        if !world.heard().is_empty() {
            break;
        }
        tries += 1;
        assert!(tries < 6, "never refused");
        world.write(1);
        if !world.heard().is_empty() {
            break;
        }
    }
    assert_eq!(world.sites.gateways[0].stats().near.fatal_naks, 1);
    assert_eq!(others(&mut world).0, 1, "now it may go");
}

/// One that does not try again keeps its place for no longer than without others.
#[test]
fn a_flow_that_failed_gives_way_in_the_end_although_its_requester_is_gone() {
    let mut world = World::new("remote");
    world.sites = Sites::new(0xc123, |settings| Settings { flows: 1, ..settings });
    world.write(0);
    world.acknowledge();
    let now = world.sites.now;
    world.sites.gateways.iter_mut().for_each(|gateway| gateway.session_down(SessionEnd::Closed, now));
    world.run();
    world.sites.renew();
    world.sites.now += Duration::from_secs(10);
    let transport = &write_request(Qpn::new(0x33), 256);
    let datagram = Datagram { addressing: world.sites.addressing[0], transport };
    world.sites.gateways[0].handle_lan(&datagram, world.sites.now);
    let stats = world.sites.gateways[0].stats();
    assert_eq!((stats.near_flows, stats.near_opened), (1, 2));
}

/// Nor does it hurt that what says so the first time is lost, or that the flow's end is told with
/// it.
#[test]
fn the_target_of_a_flow_that_gave_way_is_put_in_error() {
    for lost in [false, true] {
        let mut world = World::new("remote");
        world.sites = Sites::new(0xc123, |settings| {
            let flows = if settings.remote[0].to_string() == "10.0.1.0/24" { 1 } else { 100 };
            Settings { flows, ..settings }
        });
        let mut first = write_request(TARGET, 512);
        Bth::new(Opcode::WriteFirst, TARGET, Psn::new(5)).emit(first.first_chunk_mut().unwrap());
        let hand = |world: &mut World, transport: &[u8]| {
            let datagram = Datagram { addressing: world.sites.addressing[0], transport };
            world.sites.gateways[0].handle_lan(&datagram, world.sites.now);
        };
        hand(&mut world, &first);
        world.run();
        assert_eq!(world.at_target, [5]);
        // The rest does not come.
        world.sites.now += Duration::from_secs(100);
        if lost {
            world.sites.cross_but(|site, _| site == 0);
        } else {
            let now = world.sites.now;
            world.sites.gateways[0].handle_timeout(now);
        }
        hand(&mut world, &write_request(Qpn::new(0x33), 256));
        assert_eq!(world.sites.gateways[0].stats().evicted, 1);
        world.run();
        // What ends it waits for its turn: the other one has not been answered either.
        let end = world.sites.now + Duration::from_millis(200);
        while world.sites.now < end {
            world.run();
        }
        let ends = world.at_target.iter().filter(|psn| **psn == 5).count();
        assert_eq!(ends, 2, "what ends it has the PSN that is not acknowledged; lost: {lost}");
    }
}
