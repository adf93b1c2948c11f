//! How long the messages are that a class sends.

use reliability::selector::Bucket;
use roce::wire::Packet;

/// What a message counts at least: its headers. So what carries no data of its own (a READ's request, an atomic) counts as small, and not as nothing.
const LEAST: u64 = 64;

/// The messages that a class sent, counted by [`Bucket`] in the order of [`Bucket::all`]. Counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Messages of each bucket.
    pub messages: [u64; Bucket::COUNT],
    /// Their bytes, each message's at least 64.
    pub bytes: [u64; Bucket::COUNT],
}

impl Sizes {
    pub(crate) fn note(&mut self, size: u64) {
        let bytes = size.max(LEAST);
        let index = Bucket::of(bytes).index();
        if let (Some(messages), Some(total)) = (self.messages.get_mut(index), self.bytes.get_mut(index)) {
            *messages += 1;
            *total = total.saturating_add(bytes);
        }
    }
}

/// The present message of a flow's requester.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measure(u64);

impl Measure {
    /// The flow's next request packet, in order. The message's length in bytes, once: a WRITE states it in its first packet, of a SEND it is known
    /// at the end. A READ's data goes the other way, and counts there.
    pub(crate) fn follow(&mut self, packet: &Packet<'_>) -> Option<u64> {
        let opcode = packet.bth.opcode;
        if opcode.starts_message() {
            self.0 = 0;
            if let Some(reth) = packet.ext.reth() {
                // The rest is counted already.
                self.0 = u64::MAX;
                return Some(if opcode.has_payload() { reth.dma_length.into() } else { 0 });
            }
        }
        self.0 = self.0.saturating_add(packet.payload.len() as u64);
        (opcode.ends_message() && self.0 < u64::MAX).then_some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use roce::wire::{AtomicEth, Bth, Ext, Opcode, Psn, Qpn, Repr, Reth};

    use super::*;

    fn follow(measure: &mut Measure, opcode: Opcode, ext: Ext, len: usize) -> Option<u64> {
        let bth = Bth::new(opcode, Qpn::new(9), Psn::new(0));
        let mut out = [0; 5000];
        let len = Repr { bth, ext, payload: &vec![0; len] }.emit(&mut out).unwrap();
        measure.follow(&Packet::parse(&out[..len]).unwrap())
    }

    #[test]
    fn each_message_is_measured_once() {
        let mut measure = Measure::default();
        let mut step = |opcode, ext, len| follow(&mut measure, opcode, ext, len);
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
    fn counts_stand_in_their_buckets() {
        let mut sizes = Sizes::default();
        for size in [0, 64, 1024, 1025, 1 << 20, u64::MAX] {
            sizes.note(size);
        }
        assert_eq!(sizes.messages[..2], [3, 1]);
        assert_eq!(sizes.bytes[..2], [64 + 64 + 1024, 1025]);
        assert_eq!(sizes.bytes[Bucket::of(1 << 20).index()], 1 << 20);
        assert_eq!(sizes.bytes[Bucket::COUNT - 1], u64::MAX);
        assert_eq!(sizes.messages.iter().sum::<u64>(), 6);
    }
}
