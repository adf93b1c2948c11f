//! Queue pairs that change their partner, or their port, without a word of connection management.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::panic,
    reason = "test code"
)]

#[allow(dead_code, reason = "each test uses some of it")]
mod sites;

use roce::ip::{Addressing, Datagram};
use roce::pairing::source_port;
use roce::wire::{Aeth, Bth, Ext, Opcode, Psn, Qpn, Repr, Reth, Syndrome};
use sites::{STEP, Sites};

const REQUESTER: Qpn = Qpn::new(0x11);
const MTU: usize = 256;

fn request(sites: &mut Sites, src_port: u16, opcode: Opcode, target: Qpn, psn: u32) {
    let first = matches!(opcode, Opcode::WriteFirst | Opcode::WriteOnly);
    let dma_length = if opcode == Opcode::WriteOnly { MTU } else { 3 * MTU };
    let reth = Ext::Reth(Reth { virtual_address: 0, rkey: 7, dma_length: dma_length as u32 });
    let bth = Bth { ack_req: true, ..Bth::new(opcode, target, Psn::new(psn)) };
    let repr = Repr { bth, ext: if first { reth } else { Ext::None }, payload: &[5; MTU] };
    let mut transport = vec![0; repr.buffer_len()];
    repr.emit(&mut transport).unwrap();
    let addressing = Addressing { src_port, ..sites.addressing[0] };
    sites.gateways[0].handle_lan(&Datagram { addressing, transport: &transport }, sites.now);
}

fn acknowledge(sites: &mut Sites, src_port: u16, psn: u32, msn: u32) {
    let mut transport = [0; 16];
    let ext = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn });
    let bth = Bth::new(Opcode::Acknowledge, REQUESTER, Psn::new(psn));
    Repr { bth, ext, payload: &[] }.emit(&mut transport).unwrap();
    let addressing = Addressing { src_port, ..sites.addressing[1] };
    sites.gateways[1].handle_lan(&Datagram { addressing, transport: &transport }, sites.now);
}

/// What a site's hosts get: the opcode, the PSN, and the port.
fn deliver(sites: &mut Sites, site: usize) -> Vec<(Opcode, u32, u16)> {
    let mut out = vec![0; 10_000];
    let mut delivered = Vec::new();
    sites.now += STEP;
    sites.cross();
    while let Some(len) = sites.gateways[site].poll_lan(sites.now, &mut out) {
        let datagram = Datagram::parse(&out[..len]).unwrap();
        let bth = roce::wire::Packet::parse(datagram.transport).unwrap().bth;
        delivered.push((bth.opcode, bth.psn.get(), datagram.addressing.src_port));
    }
    delivered
}

/// The one before has said nothing for long, but is still remembered.
#[test]
fn a_requester_is_acknowledged_by_its_new_target() {
    let mut sites = Sites::new(1, |settings| settings);
    for (target, psn) in [(Qpn::new(0x22), 100), (Qpn::new(0x33), 7), (Qpn::new(0x44), 7)] {
        let src_port = source_port(target, REQUESTER);
        request(&mut sites, src_port, Opcode::WriteOnly, target, psn);
        assert_eq!(deliver(&mut sites, 1), [(Opcode::WriteOnly, psn, src_port)]);
        acknowledge(&mut sites, src_port, psn, 1);
        assert_eq!(deliver(&mut sites, 0), [(Opcode::Acknowledge, psn, src_port)], "{target:?}");
    }
    assert_eq!(sites.gateways[1].stats().far_flows, 1, "the others are over");
}

/// As NICs may that spread a queue pair's packets over several ways.
#[test]
fn a_port_that_changes_inside_a_message_does_not_end_it() {
    let mut sites = Sites::new(1, |settings| settings);
    let target = Qpn::new(0x22);
    let packets = [
        (Opcode::WriteFirst, 100, 50_000),
        (Opcode::WriteMiddle, 101, 50_001),
        (Opcode::WriteLast, 102, 50_002),
    ];
    for (opcode, psn, src_port) in packets {
        request(&mut sites, src_port, opcode, target, psn);
        let delivered = deliver(&mut sites, 1);
        assert!(matches!(delivered[..], [(passed, at, _)] if (passed, at) == (opcode, psn)), "{delivered:?}");
    }
    acknowledge(&mut sites, 50_000, 102, 1);
    assert_eq!(deliver(&mut sites, 0), [(Opcode::Acknowledge, 102, 50_002)]);
    assert_eq!(sites.gateways[0].stats().near_opened, 1);
}
