//! Rules one by one with packets made by hand, and whole flows between a simple requester and a
//! strict target in virtual time.

mod credits;
mod far_rules;
mod near_rules;
mod requester;
mod reserved;
mod rnr;
mod sim;
mod target;
mod unfit;

use std::time::Instant;

use crate::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Ext, Feth, Opcode, Packet, Psn, Qpn, Repr, Reth, Syndrome,
};

/// The requester's and the target's queue pairs.
const R: Qpn = Qpn::new(0x11);
const T: Qpn = Qpn::new(0x22);

/// Some instant; tests only add to it.
#[expect(clippy::disallowed_methods, reason = "no other way to get an Instant; only differences matter")]
pub(in crate::flow) fn epoch() -> Instant {
    Instant::now()
}

fn emit(bth: Bth, ext: Ext, payload: &[u8]) -> Vec<u8> {
    let repr = Repr { bth, ext, payload };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut bytes).unwrap();
    bytes
}

fn parse(bytes: &[u8]) -> Packet<'_> {
    Packet::parse(bytes).unwrap()
}

/// A request with the headers its opcode needs. `length` is that of the payload, or of the READ.
fn request(opcode: Opcode, psn: u32, length: u32) -> Vec<u8> {
    let mut bth = Bth::new(opcode, T, Psn::new(psn));
    bth.ack_req = opcode.ends_message();
    let reth = Reth { virtual_address: 0x1000, rkey: 7, dma_length: length };
    let atomic = AtomicEth { virtual_address: 0x1000, rkey: 7, swap_or_add: 1, compare: 0 };
    let (ext, payload) = match opcode {
        Opcode::ReadRequest => (Ext::Reth(reth), 0),
        Opcode::WriteFirst | Opcode::WriteOnly => (Ext::Reth(reth), length),
        Opcode::AtomicWrite => (Ext::Reth(reth), 8),
        Opcode::FetchAdd | Opcode::CompareSwap => (Ext::Atomic(atomic), 0),
        Opcode::Flush => (Ext::Flush(Feth(1), reth), 0),
        _ => (Ext::None, length),
    };
    emit(bth, ext, &vec![psn as u8; payload as usize])
}

fn acknowledge(psn: u32, syndrome: u8, msn: u32) -> Vec<u8> {
    let bth = Bth::new(Opcode::Acknowledge, R, Psn::new(psn));
    let syndrome = Syndrome::from_u8(syndrome);
    emit(bth, Ext::Aeth(Aeth { syndrome, msn }), &[])
}

fn read_response(opcode: Opcode, psn: u32, length: u32, msn: u32) -> Vec<u8> {
    let bth = Bth::new(opcode, R, Psn::new(psn));
    let syndrome = Syndrome::ACK;
    let ext = match opcode {
        Opcode::ReadResponseMiddle => Ext::None,
        _ => Ext::Aeth(Aeth { syndrome, msn }),
    };
    emit(bth, ext, &vec![psn as u8; length as usize])
}

fn atomic_response(psn: u32, value: u64, msn: u32) -> Vec<u8> {
    let bth = Bth::new(Opcode::AtomicAcknowledge, R, Psn::new(psn));
    let syndrome = Syndrome::ACK;
    let ext = Ext::AtomicAck(Aeth { syndrome, msn }, AtomicAckEth(value));
    emit(bth, ext, &[])
}

/// PSN and syndrome byte of an ACK or NAK.
fn aeth(bytes: &[u8]) -> (u32, u8) {
    let packet = parse(bytes);
    let syndrome = packet.ext.aeth().unwrap().syndrome;
    (packet.bth.psn.get(), syndrome.to_u8())
}

/// SplitMix64.
#[derive(Clone)]
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `per_mille / 1000`.
    fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
