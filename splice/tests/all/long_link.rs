//! One flow over a link that holds much.

use std::time::Duration;

use crate::sites::{STEP, Sites, write_request};
use roce::ip::Datagram;
use roce::wire::{Bth, Ext, Opcode, Psn, Qpn, Repr};

const TARGET: Qpn = Qpn::new(0x22);
const REQUESTER: Qpn = Qpn::new(0x11);
const MESSAGE: u32 = 20 << 20;
const MTU: usize = 1024;

/// A packet of the middle of a WRITE.
fn middle(psn: u32) -> Vec<u8> {
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::WriteMiddle, TARGET, Psn::new(psn)) };
    let repr = Repr { bth, ext: Ext::None, payload: &[5; MTU] };
    let mut packet = vec![0; repr.buffer_len()];
    repr.emit(&mut packet).unwrap();
    packet
}

/// At 10 Gbit/s and 25 ms the link holds 31 MB. A requester that is let have less on its way before
/// its target has said a word cannot fill it.
#[test]
fn a_single_flow_may_fill_the_link() {
    let mut sites = Sites::new(0xc123, |settings| settings);
    let now = sites.now;
    for gateway in &mut sites.gateways {
        gateway.session_up(Duration::from_millis(25), 1400, 1, &[], now);
    }
    let mut told = None;
    let mut carry = |sites: &mut Sites, packet: &[u8]| {
        let datagram = Datagram { addressing: sites.addressing[0], transport: packet };
        sites.gateways[0].handle_lan(&datagram, sites.now);
        sites.cross();
        while sites.deliver(1).is_some() {}
        while let Some(bth) = sites.deliver(0) {
            told = told.max(Some(bth.psn.get()));
        }
        sites.now += STEP / 10;
        told
    };
    carry(&mut sites, &write_request(TARGET, 256));
    sites.acknowledge(REQUESTER, Psn::new(0), 1);
    let mut first = write_request(TARGET, MESSAGE);
    first.resize(first.len() - 256 + MTU, 5);
    let head = Bth { ack_req: true, ..Bth::new(Opcode::WriteFirst, TARGET, Psn::new(1)) };
    head.emit(first.first_chunk_mut().unwrap());
    carry(&mut sites, &first);
    let packets = MESSAGE / MTU as u32 - 2;
    let mut last = None;
    for psn in 2..2 + packets {
        last = carry(&mut sites, &middle(psn));
    }
    assert!(last.is_some_and(|psn| psn + 100 > packets), "told up to {last:?} of {packets}");
}
