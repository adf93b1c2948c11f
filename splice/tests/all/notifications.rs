//! Congestion notifications that a target's NIC sends: carried for what is carried, and nothing
//! else.

use std::time::Duration;

use crate::sites::{STEP, Sites, packet};
use roce::ip::{Addressing, Datagram};
use roce::wire::{Bth, Deth, Ext, Opcode, Packet, Psn, Qpn, Repr};
use splice::{LanDrop, Settings};

/// A queue pair that sends what is not terminated from site 0 to `RECEIVER` at site 1.
const SENDER: u32 = 0x44;
const RECEIVER: u32 = 0x22;
/// Queue pairs of an RC connection between the same hosts.
const REQUESTER: u32 = 0x45;
const TARGET: u32 = 0x23;
/// Codes of XRC and of a transport that nobody knows.
const XRC_SEND_ONLY: u8 = 0xa4;
const UNKNOWN: u8 = 0xc4;

fn notification(to: u32) -> Vec<u8> {
    let bth = Bth { becn: true, ..Bth::new(Opcode::Cnp, Qpn::new(to), Psn::new(0)) };
    let mut bytes = vec![0; 28];
    Repr { bth, ext: Ext::None, payload: &[0; 16] }.emit(&mut bytes).unwrap();
    bytes
}

fn uc() -> Vec<u8> {
    packet(Opcode::UcSendOnly, RECEIVER, 0, Ext::None, 256)
}

/// The same of another transport.
fn of(code: u8) -> Vec<u8> {
    let mut bytes = uc();
    bytes[0] = code;
    bytes
}

fn ud(to: u32) -> Vec<u8> {
    let deth = Deth { qkey: 1, src_qp: Qpn::new(SENDER) };
    packet(Opcode::UdSendOnly, to, 0, Ext::Deth(deth), 256)
}

struct World {
    sites: Sites,
}

impl World {
    fn new() -> Self {
        Self { sites: Sites::new(0xc123, |settings| settings) }
    }

    /// A packet of a site's host to the other's, and what of it comes out there.
    fn send(&mut self, from: usize, transport: &[u8]) -> Vec<(Addressing, Vec<u8>)> {
        let addressing = self.sites.addressing[from];
        self.send_as(from, addressing, transport)
    }

    fn send_as(
        &mut self,
        from: usize,
        addressing: Addressing,
        transport: &[u8],
    ) -> Vec<(Addressing, Vec<u8>)> {
        self.sites.gateways[from].handle_lan(&Datagram { addressing, transport }, self.sites.now);
        self.sites.cross();
        self.heard(1 - from)
    }

    fn heard(&mut self, site: usize) -> Vec<(Addressing, Vec<u8>)> {
        let mut out = vec![0; 10_000];
        let poll = || {
            let len = self.sites.gateways[site].poll_lan(self.sites.now, &mut out)?;
            let datagram = Datagram::parse(&out[..len]).unwrap();
            Some((datagram.addressing, datagram.transport.to_vec()))
        };
        std::iter::from_fn(poll).collect()
    }

    /// The target's NIC tells a queue pair to slow down; whether that hears of it.
    fn tell(&mut self, qpn: u32) -> bool {
        let mut addressing = self.sites.addressing[1];
        (addressing.tclass, addressing.src_port) = (48 << 2, 0xd00d);
        let heard = self.send_as(1, addressing, &notification(qpn));
        if let [(passed, transport)] = &heard[..] {
            assert_eq!((*passed, transport), (Addressing { ttl: 63, ..addressing }, &notification(qpn)));
        }
        assert!(heard.len() <= 1);
        heard.len() == 1
    }

    fn dropped(&mut self, why: LanDrop) -> u64 {
        self.sites.gateways[1].stats().lan_drops[why as usize]
    }

    /// Notifications that the target's gateway has carried, and has dropped.
    fn counted(&mut self) -> (u64, u64) {
        (self.sites.gateways[1].stats().cnps_carried, self.dropped(LanDrop::Cnp))
    }

    fn wait(&mut self, time: Duration) {
        let end = self.sites.now + time;
        while self.sites.now < end {
            self.sites.now += (time / 100).max(STEP);
            self.sites.cross();
            (0..2).for_each(|site| drop(self.heard(site)));
        }
    }

    /// A request of an RC connection, and the target's answer if it has any.
    fn request(&mut self, is_answered: bool) {
        let heard = self.send(0, &packet(Opcode::SendOnly, TARGET, 0, Ext::None, 256));
        assert_eq!(heard.len(), 1);
        if is_answered {
            self.sites.acknowledge(Qpn::new(REQUESTER), Psn::new(0), 1);
            self.wait(Duration::from_millis(1));
            assert_eq!(self.sites.gateways[1].stats().unpaired_flows, 0);
        }
    }
}

#[test]
fn senders_of_what_is_carried_hear_them() {
    for sent in [uc(), of(XRC_SEND_ONLY), of(UNKNOWN), ud(RECEIVER)] {
        let mut world = World::new();
        assert!(!world.tell(SENDER), "of what?");
        assert_eq!(world.send(0, &sent).len(), 1);
        assert!(world.tell(SENDER), "{:#x}", sent[0]);
        assert_eq!(world.counted(), (1, 1));
    }
}

/// Nothing that is carried has come from that host: from another, to another, or too long ago.
#[test]
fn nobody_else_does() {
    let mut world = World::new();
    let [there, back] = world.sites.addressing;
    let other = "10.0.1.2".parse().unwrap();
    world.send_as(0, Addressing { dst: other, ..there }, &uc());
    world.send_as(0, Addressing { src: "10.0.0.2".parse().unwrap(), ..there }, &uc());
    assert!(!world.tell(SENDER));
    // What is sent is not what has come.
    assert_eq!(world.send(1, &uc()).len(), 1);
    assert!(!world.tell(SENDER));
    assert_eq!(world.send_as(1, Addressing { src: other, ..back }, &notification(SENDER)).len(), 1);
    // A notification is none of the things that it may be about, nor is connection management.
    assert!(!world.tell(SENDER));
    world.send(0, &ud(1));
    assert!(!world.tell(SENDER));
    world.send(0, &uc());
    world.wait(Duration::from_secs(299));
    assert!(world.tell(SENDER));
    world.wait(Duration::from_secs(2));
    assert!(!world.tell(SENDER));
}

/// The notification to the target there comes from this gateway, and the one to the requester from
/// the other.
#[test]
fn those_for_rc_queue_pairs_end_here() {
    let mut world = World::new();
    world.send(0, &uc());
    world.request(true);
    assert!(!world.tell(REQUESTER), "a requester");
    assert_eq!((world.counted(), world.sites.gateways[1].stats().far.slowed), ((0, 0), 1));
    // Requests in the other direction of the connection.
    assert_eq!(world.send(1, &packet(Opcode::SendOnly, 0x46, 0, Ext::None, 256)).len(), 1);
    assert!(!world.tell(0x46), "a target");
    assert_eq!(world.counted(), (0, 1));
    assert!(world.tell(SENDER));
    assert_eq!(world.counted(), (1, 1));
}

/// Any queue pair that nothing is known of may be that of a flow that waits for its target's first
/// answer.
#[test]
fn while_a_flow_waits_to_be_paired_none_is_guessed_at() {
    let mut world = World::new();
    world.send(0, &uc());
    world.request(false);
    assert!(!world.tell(SENDER) && !world.tell(REQUESTER));
    assert_eq!(world.counted(), (0, 2));
    world.sites.acknowledge(Qpn::new(REQUESTER), Psn::new(0), 1);
    world.wait(Duration::from_millis(1));
    assert!(world.tell(SENDER) && !world.tell(REQUESTER));
    assert_eq!((world.counted(), world.sites.gateways[1].stats().far.slowed), ((1, 2), 1));
}

/// They go before all payload, as far as a host's share of the link goes, and none waits beyond
/// that.
#[test]
fn a_host_has_its_share_and_none_waits_behind_payload() {
    let rate = 100_000_000;
    let mut world = World { sites: Sites::new(0xc123, |settings| Settings { rate, ..settings }) };
    world.send(0, &uc());
    // Payload that takes the link a while, since the clock stands.
    let [_, back] = world.sites.addressing;
    for psn in 0..500 {
        let bytes = packet(Opcode::UcSendOnly, RECEIVER, psn, Ext::None, 1024);
        world.sites.gateways[1]
            .handle_lan(&Datagram { addressing: back, transport: &bytes }, world.sites.now);
    }
    let heard = world.send_as(1, back, &notification(SENDER));
    assert_eq!(heard.first().map(|(_, bytes)| bytes), Some(&notification(SENDER)));
    assert!(heard.len() < 400, "the rest waits: {}", heard.len());
    for _ in 0..10_000 {
        let (addressing, transport) = (back, &notification(SENDER)[..]);
        world.sites.gateways[1].handle_lan(&Datagram { addressing, transport }, world.sites.now);
    }
    let (carried, _) = world.counted();
    assert_eq!(world.dropped(LanDrop::Share), 10_001 - carried);
    assert!((200..1000).contains(&carried), "{carried}");
    // Another host's.
    let other = "10.0.1.7".parse().unwrap();
    world.send_as(0, Addressing { dst: other, ..world.sites.addressing[0] }, &uc());
    let (addressing, transport) = (Addressing { src: other, ..back }, &notification(SENDER)[..]);
    world.sites.gateways[1].handle_lan(&Datagram { addressing, transport }, world.sites.now);
    assert_eq!(world.counted().0, carried + 1);
}

/// Whoever is told here would be told once more by the receiver's NIC, a round trip later.
#[test]
fn a_mark_that_its_sender_was_told_of_goes_no_further() {
    let frames = crate::sites::rping();
    for is_known in [false, true] {
        let mut world = World::new();
        let mut target = RECEIVER;
        if is_known {
            for (from, frame) in frames.iter().take(2).enumerate() {
                let datagram = Datagram::parse(frame).unwrap();
                assert_eq!(world.send_as(from, datagram.addressing, datagram.transport).len(), 1);
            }
            target = 0x34;
        }
        let bytes = packet(Opcode::UcSendOnly, target, 0, Ext::None, 256);
        let addressing = Addressing { tclass: 26 << 2 | 3, ..world.sites.addressing[0] };
        let heard = world.send_as(0, addressing, &bytes);
        let tclasses: Vec<_> = heard.iter().map(|(addressing, _)| addressing.tclass).collect();
        assert_eq!(tclasses, [if is_known { 26 << 2 | 2 } else { 26 << 2 | 3 }]);
        let told: Vec<_> =
            world.heard(0).iter().map(|(_, bytes)| Packet::parse(bytes).unwrap().bth.opcode).collect();
        assert_eq!(told, if is_known { vec![Opcode::Cnp] } else { vec![] });
    }
}
