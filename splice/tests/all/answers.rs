//! A target's answer comes before what its program then sends back, whichever record the link
//! loses.
//!
//! Rule: `docs/protocol.md#rule-response-twice`.

use std::time::Duration;

use crate::sites::{STEP, Sites, write_request};
use reliability::stream::{Kind, classify};
use roce::ip::Datagram;
use roce::wire::{Bth, Opcode, Psn, Qpn};

/// The queue pairs of one connection, by site.
const ENDS: [Qpn; 2] = [Qpn::new(0x11), Qpn::new(0x22)];

struct World {
    sites: Sites,
    /// The prompt stream of this site's gateway gets nothing across.
    mute: Option<usize>,
    /// The packets that came to the sites' hosts.
    came: [Vec<(Opcode, u32)>; 2],
}

impl World {
    /// Both directions of the connection are in use.
    fn new() -> Self {
        let mut world =
            Self { sites: Sites::new(0xc123, |settings| settings), mute: None, came: Default::default() };
        for site in [0, 1] {
            world.write(site, 0);
            world.acknowledge(1 - site, 0);
            world.came = Default::default();
        }
        world
    }

    /// The site's host sends a message to the other's.
    fn write(&mut self, site: usize, psn: u32) {
        let mut request = write_request(ENDS[1 - site], 256);
        Bth::set_psn(request.first_chunk_mut().unwrap(), Psn::new(psn));
        let datagram = Datagram { addressing: self.sites.addressing[site], transport: &request };
        self.sites.gateways[site].handle_lan(&datagram, self.sites.now);
        self.run();
    }

    /// The site's host acknowledges what the other's has sent.
    fn acknowledge(&mut self, site: usize, psn: u32) {
        self.sites.acknowledge_at(site, ENDS[1 - site], Psn::new(psn), psn + 1);
        self.run();
    }

    fn run(&mut self) {
        for _ in 0..100 {
            self.step();
        }
    }

    fn step(&mut self) {
        let mute = self.mute;
        self.sites.cross_but(|site, packet| {
            let prompt = matches!(classify(packet), Ok((Kind::Data, stream)) if stream.0 == 0);
            mute == Some(site) && prompt
        });
        for site in [0, 1] {
            while let Some(bth) = self.sites.deliver(site) {
                self.came[site].push((bth.opcode, bth.psn.get()));
            }
        }
        self.sites.now += STEP;
    }
}

#[test]
fn a_message_brings_the_answer_before_it() {
    for site in [0, 1] {
        let mut world = World::new();
        world.write(1 - site, 1);
        world.mute = Some(site);
        world.acknowledge(site, 1);
        assert_eq!(world.came[1 - site], [], "lost");
        world.write(site, 1);
        let pong = [(Opcode::Acknowledge, 1), (Opcode::WriteOnly, 1)];
        assert_eq!(world.came[1 - site], pong, "site {site}");
        // The answer itself is repaired, and is not one more.
        world.mute = None;
        world.run();
        assert_eq!(world.came[1 - site], pong);
        let [a, b] = world.sites.gateways.each_mut().map(|gateway| gateway.stats().bad_records);
        assert_eq!((a, b), (0, 0));
    }
}

#[test]
fn an_answer_goes_along_once() {
    let mut world = World::new();
    world.write(0, 1);
    world.acknowledge(1, 1);
    let sent =
        |world: &World| world.sites.gateways[1].classes().map(|class| class.sent[1].records).sum::<u64>();
    let before = sent(&world);
    world.write(1, 1);
    assert_eq!(sent(&world), before + 2);
    world.write(1, 2);
    assert_eq!(sent(&world), before + 3);
    let pongs = [(Opcode::Acknowledge, 1), (Opcode::WriteOnly, 1), (Opcode::WriteOnly, 2)];
    assert_eq!(world.came[0], pongs);
}

/// The later ACK says what the lost one said as well.
#[test]
fn an_ack_does_not_wait_for_a_lost_one() {
    let mut world = World::new();
    world.write(0, 1);
    world.write(0, 2);
    world.mute = Some(1);
    world.sites.acknowledge_at(1, ENDS[0], Psn::new(1), 2);
    world.step();
    assert_eq!(world.came[0], [], "lost");
    world.mute = None;
    world.sites.acknowledge_at(1, ENDS[0], Psn::new(2), 3);
    world.step();
    assert_eq!(world.came[0], [(Opcode::Acknowledge, 2)], "before the other is repaired");
    world.run();
    assert_eq!(world.came[0].len(), 1, "{:?}", world.came[0]);
    assert_eq!(world.sites.gateways[0].stats().near.odd_responses, 1, "the other, late");
}

/// By then its flow may have had so many responses to READs that its number means another.
#[test]
fn an_answer_of_long_ago_does_not_go_along() {
    let mut world = World::new();
    world.write(0, 1);
    world.acknowledge(1, 1);
    world.sites.now += Duration::from_secs(11);
    world.run();
    let bulk =
        |world: &World| world.sites.gateways[1].classes().map(|class| class.sent[1].records).sum::<u64>();
    let before = bulk(&world);
    world.write(1, 1);
    assert_eq!(bulk(&world), before + 1);
    assert_eq!(world.came[0], [(Opcode::Acknowledge, 1), (Opcode::WriteOnly, 1)]);
}

/// Only a message of one packet goes before what others have waiting. An answer in front of a
/// longer one changes nothing about that.
#[test]
fn a_long_message_waits_for_its_turn_with_its_answer() {
    let send = |world: &mut World, target: Qpn, psn: u32, begins_long: bool| {
        let mut request = write_request(target, 256);
        Bth::set_psn(request.first_chunk_mut().unwrap(), Psn::new(psn));
        if begins_long {
            request[0] = Opcode::WriteFirst.to_u8();
            request[24..28].copy_from_slice(&1024_u32.to_be_bytes());
        }
        let datagram = Datagram { addressing: world.sites.addressing[1], transport: &request };
        world.sites.gateways[1].handle_lan(&datagram, world.sites.now);
    };
    let mut world = World::new();
    // A further connection whose ends are known, with PSNs of which none could be taken for
    // another's: flows that ask for their requesters come after all others at their target.
    send(&mut world, Qpn::new(0x44), 499_999, false);
    world.run();
    for _ in 0..2 {
        world.sites.acknowledge_at(0, Qpn::new(0x55), Psn::new(499_999), 1);
        world.run();
    }
    world.write(0, 1);
    world.mute = Some(1);
    world.acknowledge(1, 1);
    world.came = Default::default();
    // Another flow's, more than share packets.
    (0..100).for_each(|psn| send(&mut world, Qpn::new(0x33), psn, false));
    send(&mut world, ENDS[0], 1, true);
    send(&mut world, Qpn::new(0x44), 500_000, false);
    world.run();
    let at = |bth| world.came[0].iter().position(|came| *came == bth).unwrap();
    let (long, small) = (at((Opcode::WriteFirst, 1)), at((Opcode::WriteOnly, 500_000)));
    assert!(small < long, "{small}, {long}");
    assert!(at((Opcode::Acknowledge, 1)) < long);
}
