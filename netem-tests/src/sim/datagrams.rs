//! Packets that no gateway terminates: carried as they are, or dropped and counted.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use roce::ip::{Addressing, Datagram};
use roce::wire::{Opcode, Packet, Qpn, Transport};

use super::Broken;
use super::flow::fingerprint;
use super::scenario::Burst;

/// Copies of each packet that a gateway was given, and that its peer emitted.
#[derive(Debug, Default)]
pub(super) struct Carried {
    packets: BTreeMap<(usize, u64), (u64, u64)>,
    pub(super) offered: u64,
    pub(super) emitted: u64,
    /// Packets of connection management: taken in by a gateway that had a session, and emitted by
    /// its peer.
    pub(super) mads: (u64, u64),
}

/// Returns true if a gateway terminates this packet: RC with an opcode that exists.
pub(super) fn is_terminated(transport: &[u8]) -> bool {
    transport.first().is_some_and(|code| code >> 5 == 0 && Opcode::from_u8(*code).is_some())
}

/// Returns true if this is for queue pair 1, whose packets are carried reliably.
pub(super) fn is_mad(transport: &[u8]) -> bool {
    let bth = Packet::parse(transport).map(|packet| packet.bth);
    bth.is_ok_and(|bth| bth.opcode.transport() == Transport::Ud && bth.dest_qp == Qpn::GSI)
}

impl Carried {
    /// Given to the gateway at `site`.
    pub(super) fn offer(&mut self, site: usize, datagram: &Datagram<'_>) {
        self.packets.entry((site, print(datagram))).or_default().0 += 1;
        self.offered += 1;
    }

    /// Emitted by the gateway at the other site.
    pub(super) fn emit(&mut self, from: usize, datagram: &Datagram<'_>) -> Result<(), Broken> {
        let opcode = datagram.transport.first().copied().unwrap_or(0);
        if is_notification(datagram.transport) {
            return Ok(());
        }
        let known = self.packets.get_mut(&(from, print(datagram)));
        let Some((offered, emitted)) = known.filter(|_| is_carried(opcode)) else {
            return Err(("I8", format!("a packet with opcode {opcode:#x} comes out that nobody sent")));
        };
        *emitted += 1;
        self.emitted += 1;
        self.mads.1 += u64::from(is_mad(datagram.transport));
        if emitted > offered {
            return Err((
                "I8",
                format!(
                    "a packet with opcode {opcode:#x} comes out {emitted} times and went in {offered} times"
                ),
            ));
        }
        Ok(())
    }
}

/// RC opcodes that do not exist go no further. Congestion notifications may: their receiver may
/// have sent what is carried.
fn is_carried(opcode: u8) -> bool {
    opcode >> 5 != 0
}

const CNP: u8 = 0x81;

/// A congestion notification as gateways make them: BECN and sixteen zeros. Those that hosts send
/// are made of random bytes.
fn is_notification(transport: &[u8]) -> bool {
    let becn = transport.get(4).is_some_and(|flags| flags & 0x40 != 0);
    let zeros = transport.get(12..).is_some_and(|body| body == [0; 16]);
    transport.first() == Some(&CNP) && becn && zeros
}

fn print(datagram: &Datagram<'_>) -> u64 {
    let Addressing { src, dst, src_port, tclass, .. } = datagram.addressing;
    let mut hasher = DefaultHasher::new();
    // No checksum covers IPv6's traffic class.
    let tclass = if src.is_ipv4() { tclass } else { 0 };
    (src, dst, src_port, tclass, fingerprint(datagram.transport)).hash(&mut hasher);
    hasher.finish()
}

/// A packet of a burst, from the BTH on.
pub(super) fn transport(burst: &Burst, rng: &mut Pcg64Mcg) -> Vec<u8> {
    let mut bytes = vec![0; 12 + burst.len / 4 * 4];
    rng.fill(&mut bytes[..]);
    let [_, q0, q1, q2] = burst.qpn.to_be_bytes();
    if let Some(head) = bytes.first_chunk_mut::<9>() {
        // Neither padding nor a header version, which would be malformed.
        *head = [burst.opcode, 0x40, 0xff, 0xff, 0, q0, q1, q2, 0];
    }
    bytes
}
