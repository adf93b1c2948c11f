//! Instructions that a packet costs, which no other work on the machine changes.
//!
//! Both gateways' cores carry WRITEs on this thread, in virtual time, without seal and sockets.
//! Each of eight queue pairs has one message outstanding. Arguments: packets of a message, messages
//! of a queue pair. Only what the cores do is counted, the hosts' part is not:
//!
//! ```text
//! cargo bench -p splice --bench instructions --no-run
//! valgrind --tool=callgrind --callgrind-out-file=callgrind.out --collect-atstart=no \
//!     --toggle-collect='*instructions*carry*' target/release/deps/instructions-* 16 500
//! ```
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark begins with a time, and may fail"
)]

#[allow(dead_code, reason = "tests use more of it")]
#[path = "../tests/all/sites/mod.rs"]
mod sites;

use roce::ip::{self, Addressing, Received};
use roce::wire::{Bth, Ext, Opcode, Psn, Qpn, Repr, Reth};
use sites::{STEP, Sites};

const PAYLOAD: usize = 4096;
const QUEUE_PAIRS: u32 = 8;
/// A requester's queue pair is the target's and this.
const REQUESTER: u32 = 0x80_0000;
const PORT: u16 = 0xc000;
/// Steps that a round takes at most.
const PATIENCE: u32 = 100_000;

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let packets = arguments.next().unwrap_or(16);
    let rounds = arguments.next().unwrap_or(10);
    let mut sites = Sites::new(PORT, |settings| settings);
    for round in 0..rounds {
        let first = round * packets;
        let each = (0..packets).flat_map(|at| (1..=QUEUE_PAIRS).map(move |qp| (qp, at)));
        let frames: Vec<_> =
            each.map(|(qp, at)| frame(sites.addressing[0], qp, first, at, packets)).collect();
        carry(&mut sites, &frames, Psn::new(first + packets - 1), round + 1);
    }
    println!("{} packets of {PAYLOAD} bytes", QUEUE_PAIRS * packets * rounds);
}

/// A message on each queue pair, until all are acknowledged.
#[inline(never)]
fn carry(sites: &mut Sites, frames: &[Vec<u8>], last: Psn, msn: u32) {
    for frame in frames {
        sites.gateways[0].handle_received(&Received::parse(frame).unwrap(), sites.now);
    }
    let mut left = QUEUE_PAIRS;
    for _ in 0..PATIENCE {
        sites.cross();
        while let Some(bth) = sites.deliver(1) {
            if bth.psn == last {
                sites.acknowledge(Qpn::new(REQUESTER | bth.dest_qp.get()), last, msn);
            }
        }
        while let Some(bth) = sites.deliver(0) {
            left -= u32::from(bth.opcode == Opcode::Acknowledge && bth.psn == last);
        }
        sites.now += STEP;
        if left == 0 {
            return;
        }
    }
    panic!("{left} messages up to {last:?} are not acknowledged");
}

/// Packet `at` of a message that begins with PSN `first`, with its IP header.
fn frame(addressing: Addressing, qp: u32, first: u32, at: u32, packets: u32) -> Vec<u8> {
    let dma_length = packets * u32::try_from(PAYLOAD).unwrap();
    let reth = Ext::Reth(Reth { virtual_address: 0, rkey: 7, dma_length });
    let (opcode, ext) = match (at == 0, at + 1 == packets) {
        (true, true) => (Opcode::WriteOnly, reth),
        (true, false) => (Opcode::WriteFirst, reth),
        (false, false) => (Opcode::WriteMiddle, Ext::None),
        (false, true) => (Opcode::WriteLast, Ext::None),
    };
    let ack_req = at + 1 == packets;
    let bth = Bth { ack_req, ..Bth::new(opcode, Qpn::new(qp), Psn::new(first + at)) };
    let repr = Repr { bth, ext, payload: &[5; PAYLOAD] };
    let mut transport = vec![0; repr.buffer_len()];
    repr.emit(&mut transport).unwrap();
    let addressing = Addressing { src_port: PORT | u16::try_from(qp).unwrap(), ..addressing };
    let mut frame = vec![0; ip::buffer_len(&addressing, transport.len())];
    ip::emit(&addressing, 1, &transport, &mut frame).unwrap();
    frame
}
