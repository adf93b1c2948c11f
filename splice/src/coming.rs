//! The message that a requester has under way: how long it is, and what of it is still to come.

use roce::wire::{Kind, Packet};

/// Bytes of payload that a requester has still to send of its present message, as far as its
/// packets tell: a WRITE states its length in its first packet, a SEND does not.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Coming {
    left: u64,
    /// Its length was stated, or that it has no payload of its own.
    stated: bool,
    /// Bytes that have come of a message that did not state its length.
    sent: u64,
    /// The size that the message is judged by where a class is for messages of some size.
    size: u64,
}

impl Coming {
    /// The flow's next request packet, in order. The message's length in bytes, once: a WRITE
    /// states it in its first packet, of a SEND it is known at the end. A READ's data goes the
    /// other way, and counts there.
    pub(crate) fn follow(&mut self, packet: &Packet<'_>) -> Option<u64> {
        let opcode = packet.bth.opcode;
        let payload = packet.payload.len() as u64;
        let size = self.size_with(packet);
        let mut stated = None;
        if opcode.starts_message() {
            let own = |length: u32| if opcode.has_payload() { length.into() } else { 0 };
            stated = packet.ext.reth().map(|reth| own(reth.dma_length));
            *self = Self { left: stated.unwrap_or(0), stated: stated.is_some(), sent: 0, size };
        }
        self.sent = self.sent.saturating_add(payload);
        self.size = size;
        // Whatever was stated, nothing comes after the last packet.
        self.left = if opcode.ends_message() { 0 } else { self.left.saturating_sub(payload) };
        stated.or_else(|| (opcode.ends_message() && !self.stated).then_some(self.sent))
    }

    /// Returns the size that the message of the flow's next request packet is judged by: for a
    /// WRITE and a READ the length that they name, for a SEND what has been seen of it, for
    /// anything else 0.
    pub(crate) fn size_with(self, packet: &Packet<'_>) -> u64 {
        let opcode = packet.bth.opcode;
        let payload = packet.payload.len() as u64;
        if !opcode.starts_message() {
            return if self.stated { self.size } else { self.sent.saturating_add(payload) };
        }
        match (opcode.kind(), packet.ext.reth()) {
            (Kind::Write | Kind::Read, Some(reth)) => reth.dma_length.into(),
            (Kind::Send, _) => payload,
            _ => 0,
        }
    }

    /// Returns the bytes that have come of the message that the last packet belongs to.
    pub(crate) fn sent(self) -> u64 {
        self.sent
    }

    pub(crate) fn bytes(self) -> u64 {
        self.left
    }
}

#[cfg(test)]
mod tests {
    use roce::wire::{AtomicEth, Bth, Ext, Feth, Opcode, Psn, Qpn, Repr, Reth};

    use super::*;

    fn follow(coming: &mut Coming, opcode: Opcode, len: usize, stated: u32) -> u64 {
        let reth = Reth { virtual_address: 0, rkey: 0, dma_length: stated };
        let ext = match opcode {
            Opcode::WriteFirst | Opcode::WriteOnly | Opcode::ReadRequest => Ext::Reth(reth),
            _ => Ext::None,
        };
        length(coming, opcode, ext, len);
        coming.bytes()
    }

    fn length(coming: &mut Coming, opcode: Opcode, ext: Ext, len: usize) -> Option<u64> {
        let bth = Bth::new(opcode, Qpn::new(9), Psn::new(0));
        let mut out = [0; 5000];
        let len = Repr { bth, ext, payload: &vec![0; len] }.emit(&mut out).unwrap();
        coming.follow(&Packet::parse(&out[..len]).unwrap())
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

    #[test]
    fn each_message_is_measured_once() {
        let mut coming = Coming::default();
        let mut step = |opcode, ext, len| length(&mut coming, opcode, ext, len);
        let reth = |dma_length| Ext::Reth(Reth { virtual_address: 0, rkey: 0, dma_length });
        assert_eq!(step(Opcode::SendOnly, Ext::None, 10), Some(10));
        assert_eq!(step(Opcode::WriteFirst, reth(9000), 4096), Some(9000));
        assert_eq!(step(Opcode::WriteMiddle, Ext::None, 4096), None);
        assert_eq!(step(Opcode::WriteLast, Ext::None, 808), None);
        assert_eq!(step(Opcode::SendFirst, Ext::None, 4096), None);
        assert_eq!(step(Opcode::SendMiddle, Ext::None, 4096), None);
        assert_eq!(step(Opcode::SendLast, Ext::None, 8), Some(8200));
        assert_eq!(step(Opcode::ReadRequest, reth(1 << 30), 0), Some(0));
        assert_eq!(step(Opcode::WriteOnly, reth(0), 0), Some(0));
        let atomic = AtomicEth { virtual_address: 0, rkey: 0, swap_or_add: 1, compare: 0 };
        assert_eq!(step(Opcode::FetchAdd, Ext::Atomic(atomic), 0), Some(0));
    }

    #[test]
    fn a_write_and_a_read_say_their_size_and_a_send_is_counted() {
        let mut coming = Coming::default();
        let mut step = |opcode, ext, len| {
            length(&mut coming, opcode, ext, len);
            coming.size
        };
        let reth = |dma_length| Reth { virtual_address: 0, rkey: 0, dma_length };
        assert_eq!(step(Opcode::WriteFirst, Ext::Reth(reth(700)), 256), 700);
        assert_eq!(step(Opcode::WriteMiddle, Ext::None, 256), 700);
        assert_eq!(step(Opcode::WriteLast, Ext::None, 188), 700);
        assert_eq!(step(Opcode::SendFirst, Ext::None, 256), 256);
        assert_eq!(step(Opcode::SendMiddle, Ext::None, 256), 512);
        assert_eq!(step(Opcode::SendLast, Ext::None, 7), 519);
        assert_eq!(step(Opcode::SendOnly, Ext::None, 3), 3);
        assert_eq!(step(Opcode::ReadRequest, Ext::Reth(reth(1 << 31)), 0), 1 << 31);
        assert_eq!(step(Opcode::WriteOnly, Ext::Reth(reth(5)), 5), 5);
        // What a FLUSH names is not moved by it.
        assert_eq!(step(Opcode::Flush, Ext::Flush(Feth(0), reth(4096)), 0), 0);
    }
}
