//! What is still to come of a message under way.

use roce::wire::Packet;

/// Bytes of payload that a requester has still to send of its present message, as far as its packets tell: a WRITE states its length in its first
/// packet, a SEND does not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Coming(u64);

impl Coming {
    /// The flow's next request packet, in order.
    pub(crate) fn follow(&mut self, packet: &Packet<'_>) {
        let opcode = packet.bth.opcode;
        if opcode.starts_message() {
            let stated = packet.ext.reth().filter(|_| opcode.has_payload());
            self.0 = stated.map_or(0, |reth| reth.dma_length.into());
        }
        // Whatever was stated, nothing comes after the last packet.
        self.0 = if opcode.ends_message() { 0 } else { self.0.saturating_sub(packet.payload.len() as u64) };
    }

    pub(crate) fn bytes(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use roce::wire::{Bth, Ext, Opcode, Psn, Qpn, Repr, Reth};

    use super::*;

    fn follow(coming: &mut Coming, opcode: Opcode, len: usize, stated: u32) -> u64 {
        let reth = Reth { virtual_address: 0, rkey: 0, dma_length: stated };
        let ext = match opcode {
            Opcode::WriteFirst | Opcode::WriteOnly | Opcode::ReadRequest => Ext::Reth(reth),
            _ => Ext::None,
        };
        let payload = vec![0; len];
        let bth = Bth::new(opcode, Qpn::new(9), Psn::new(0));
        let mut out = [0; 5000];
        let len = Repr { bth, ext, payload: &payload }.emit(&mut out).unwrap();
        coming.follow(&Packet::parse(&out[..len]).unwrap());
        coming.bytes()
    }

    #[test]
    fn a_write_states_its_length() {
        let mut coming = Coming::default();
        let mut step = |opcode, len, stated| follow(&mut coming, opcode, len, stated);
        assert_eq!(step(Opcode::WriteFirst, 4096, 10_000), 5904);
        assert_eq!(step(Opcode::WriteMiddle, 4096, 0), 1808);
        assert_eq!(step(Opcode::WriteLast, 1808, 0), 0);
        assert_eq!(step(Opcode::WriteOnly, 100, 100), 0);
    }

    #[test]
    fn what_states_no_length_is_not_guessed_at() {
        let mut coming = Coming::default();
        let mut step = |opcode, len, stated| follow(&mut coming, opcode, len, stated);
        assert_eq!(step(Opcode::SendFirst, 4096, 0), 0);
        assert_eq!(step(Opcode::SendMiddle, 4096, 0), 0);
        assert_eq!(step(Opcode::ReadRequest, 0, 1 << 30), 0, "that comes the other way");
        assert_eq!(step(Opcode::WriteFirst, 4096, 1 << 30), (1 << 30) - 4096);
        assert_eq!(step(Opcode::SendOnly, 10, 0), 0, "the WRITE was given up");
        assert_eq!(step(Opcode::WriteFirst, 4096, 10), 0, "more than was stated");
    }
}
