//! UD to the multicast groups that both sites share is carried from one LAN to the other, once;
//! nothing else to a group is.
//!
//! Rule: `docs/protocol.md#rule-multicast`.

use std::net::IpAddr;

use crate::sites::{STEP, Sites, write_request};
use reliability::stream::{Sender, SenderConfig, StreamId};
use roce::ip::{Addressing, Datagram};
use roce::wire::{Bth, Deth, Ext, ImmDt, Opcode, Packet, Psn, Qpn, Repr};
use splice::record::{FlowId, Head, Opening};
use splice::{Arrival, Ecn, LanDrop, LaneId, Settings};

const GROUPS: [&str; 2] = ["239.1.1.1", "ff1e::7"];
/// Source, and group, of a packet at either site.
const SENT: [[&str; 2]; 2] = [["10.0.0.1", "239.1.1.1"], ["10.0.1.1", "239.1.1.1"]];

fn sites(groups: &[&str]) -> Sites {
    let groups: Vec<IpAddr> = groups.iter().map(|group| group.parse().unwrap()).collect();
    Sites::new(0xc123, |mut settings| {
        // Of the requesters' gateway, the targets' site is remote.
        let is_requesters = settings.remote[0].contains(&SENT[1][0].parse::<IpAddr>().unwrap());
        settings.remote.push(if is_requesters { "fd01::/64" } else { "fd00::/64" }.parse().unwrap());
        Settings { groups: groups.clone(), ..settings }
    })
}

fn between([src, dst]: [&str; 2]) -> Addressing {
    let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
    Addressing { src, dst, src_port: 0xc123, tclass: 0x48, ttl: 64 }
}

fn packet(opcode: Opcode, ext: Ext, target: Qpn, payload: &[u8]) -> Vec<u8> {
    let repr = Repr { bth: Bth::new(opcode, target, Psn::new(9)), ext, payload };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut bytes).unwrap();
    bytes
}

const DETH: Deth = Deth { qkey: 0x0111_1111, src_qp: Qpn::GSI };

fn ud(target: Qpn) -> Vec<u8> {
    packet(Opcode::UdSendOnly, Ext::Deth(DETH), target, &[7; 1021])
}

/// Hands this to a site's gateway; what comes out at the other's.
fn cross(sites: &mut Sites, from: usize, addressing: Addressing, transport: &[u8]) -> Vec<Vec<u8>> {
    sites.gateways[from].handle_lan(&Datagram { addressing, transport }, sites.now);
    for _ in 0..10 {
        sites.cross();
        sites.now += STEP;
    }
    let mut out = vec![0; 10_000];
    let gateway = &mut sites.gateways[1 - from];
    std::iter::from_fn(|| gateway.poll_lan(sites.now, &mut out).map(|len| out[..len].to_vec())).collect()
}

/// Where the gateway counts that it dropped this, and nothing else.
fn dropped(sites: &mut Sites, addressing: Addressing, transport: &[u8], why: LanDrop) {
    let before = sites.gateways[0].stats().clone();
    assert!(cross(sites, 0, addressing, transport).is_empty(), "{why:?}");
    let after = sites.gateways[0].stats().clone();
    for reason in LanDrop::ALL {
        let counted = after.lan_drops[reason as usize] - before.lan_drops[reason as usize];
        assert_eq!(counted, u64::from(reason == why), "{why:?}: {reason:?}");
    }
    assert_eq!((after.datagrams, sites.gateways[1].stats().bad_records), (before.datagrams, 0), "{why:?}");
}

#[test]
fn a_packet_to_a_shared_group_comes_out_as_it_was_sent() {
    let mut sites = sites(&GROUPS);
    let immediate = Ext::DethImm(DETH, ImmDt([1, 2, 3, 4]));
    let kinds = [ud(Qpn::MULTICAST), packet(Opcode::UdSendOnlyImmediate, immediate, Qpn::MULTICAST, &[7; 8])];
    for (from, sent) in [(0, SENT[0]), (1, SENT[1]), (0, ["fd00::1", "ff1e::7"]), (1, ["fd01::1", "ff1e::7"])]
    {
        for transport in &kinds {
            let addressing = between(sent);
            let out = cross(&mut sites, from, addressing, transport);
            assert_eq!(out.len(), 1, "{sent:?}");
            // Parsed: header checksum and ICRC are right.
            let datagram = Datagram::parse(&out[0]).unwrap();
            assert_eq!(datagram.addressing, Addressing { ttl: 63, ..addressing });
            assert_eq!(datagram.transport, transport);
        }
    }
    assert_eq!(sites.gateways.each_mut().map(|gateway| gateway.stats().datagrams), [4, 4]);
}

#[test]
fn what_came_from_the_peer_does_not_go_back_to_it() {
    let mut sites = sites(&GROUPS);
    let transport = ud(Qpn::MULTICAST);
    let emitted = cross(&mut sites, 1, between(SENT[1]), &transport).remove(0);
    // A switch, or another of the LAN's hosts, sends it back.
    let looped = Datagram::parse(&emitted).unwrap();
    dropped(&mut sites, looped.addressing, looped.transport, LanDrop::SourceRemote);
}

#[test]
fn what_is_not_for_a_shared_group_or_not_ud_is_dropped_and_counted() {
    let mut sites = sites(&GROUPS);
    let to_group = between(SENT[0]);
    let transport = ud(Qpn::MULTICAST);
    for group in ["239.1.1.2", "ff1e::8", "224.0.0.251"] {
        let source = if group.starts_with("ff") { "fd00::1" } else { "10.0.0.1" };
        dropped(&mut sites, between([source, group]), &transport, LanDrop::NotRemote);
    }
    for ttl in [0, 1] {
        dropped(&mut sites, Addressing { ttl, ..to_group }, &transport, LanDrop::TimeToLive);
    }
    dropped(&mut sites, to_group, &transport[..15], LanDrop::Malformed);
    let mut xrc = transport.clone();
    xrc[0] = 0xa4;
    let others = [
        ud(Qpn::new(0x11)),
        ud(Qpn::GSI),
        packet(Opcode::UcSendOnly, Ext::None, Qpn::MULTICAST, &[7; 8]),
        packet(Opcode::SendOnly, Ext::None, Qpn::MULTICAST, &[7; 8]),
        packet(Opcode::Cnp, Ext::None, Qpn::MULTICAST, &[0; 16]),
        write_request(Qpn::MULTICAST, 256),
        xrc,
    ];
    for transport in &others {
        dropped(&mut sites, to_group, transport, LanDrop::Multicast);
    }
}

/// As without the key.
#[test]
fn without_groups_nothing_to_one_is_carried() {
    let mut sites = sites(&[]);
    // Even if somebody takes groups for hosts.
    let everything = "0.0.0.0/0".parse().unwrap();
    let mut wide = Sites::new(0xc123, |settings| Settings { remote: vec![everything], ..settings });
    for sites in [&mut sites, &mut wide] {
        dropped(sites, between(SENT[0]), &ud(Qpn::MULTICAST), LanDrop::NotRemote);
    }
}

/// A peer that has other groups, or is of ill will, makes no host here hear anything.
#[test]
fn a_peer_s_records_to_a_group_are_held_to_the_same_rules() {
    let mut sites = sites(&GROUPS);
    let mut sender = Sender::new(SenderConfig::new(StreamId(1), 1400), sites.now);
    let (ud, uc) = (ud(Qpn::MULTICAST), packet(Opcode::UcSendOnly, Ext::None, Qpn::MULTICAST, &[7; 8]));
    let here = between(SENT[0]);
    let unlisted = between(["10.0.0.1", "239.1.1.2"]);
    let of_ours = between(SENT[1]);
    let flow = FlowId(1);
    let rc = write_request(Qpn::MULTICAST, 256);
    let refused = [
        (Head::Datagram(unlisted), &ud),
        (Head::Datagram(of_ours), &ud),
        (Head::Datagram(here), &uc),
        (Head::Ordered { flow, seq: 0, addressing: here }, &uc),
        (Head::Ordered { flow, seq: 0, addressing: here }, &ud),
        (Head::Request { flow, seq: 0, replay: false, rested: false, opens: Opening::Full(here) }, &rc),
    ];
    let good = (Head::Datagram(here), &ud);
    let mut out = [0; 10_000];
    for (number, (head, body)) in (0..).zip(refused.iter().chain([&good])) {
        sender.push(&[head.emit().as_ref(), body], sites.now).unwrap();
        let len = sender.poll_transmit(sites.now, &mut out).unwrap().len;
        let arrival = Arrival { lane: LaneId(0), number, bytes: len, ecn: Ecn::NotEct };
        sites.gateways[1].handle_wan(&out[..len], arrival, sites.now);
        let emitted = sites.gateways[1].poll_lan(sites.now, &mut out);
        let expected = number.min(refused.len() as u64 - 1) + 1;
        assert_eq!(sites.gateways[1].stats().bad_records, expected, "{head:?}");
        assert_eq!(emitted.is_some(), number == refused.len() as u64, "{head:?}");
        if let Some(len) = emitted {
            assert!(Packet::parse(Datagram::parse(&out[..len]).unwrap().transport).unwrap().is_multicast());
        }
    }
}
