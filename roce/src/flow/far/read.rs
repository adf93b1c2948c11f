//! A READ towards the target: which response comes next, what it must look like, and the request for the rest.

use crate::flow::horizon::MtuSet;
use crate::wire::{Aeth, BTH_LEN, Bth, Kind, Opcode, Packet, Place, Psn};

/// Progress of one READ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) start: Psn,
    /// PSNs it consumes; 0 while unknown.
    pub(super) span: u32,
    /// Responses taken.
    pub(super) answered: u32,
    /// Bytes asked for.
    pub(super) length: u32,
}

/// A response taken: what it is to a requester that asked for the READ as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) opcode: Opcode,
    pub(super) complete: bool,
    /// The path MTU was learnt from it.
    pub(super) learnt: bool,
}

impl Progress {
    pub(super) fn next(&self) -> Psn {
        self.start + self.answered
    }

    pub(super) fn end(&self) -> Psn {
        self.start + self.span
    }

    /// Takes the response that stands at [`next`](Progress::next). `None`: its size or place does not fit, so it is no answer to this READ.
    ///
    /// After a restart in mid-range the target starts anew with First; the requester, who knows nothing of it, must see Middle.
    fn take(&mut self, packet: &Packet<'_>, mtu: &mut MtuSet) -> Option<Taken> {
        let payload = packet.payload.len();
        let place = packet.bth.opcode.place();
        let last = matches!(place, Place::Last | Place::Only);
        if self.answered == 0 && matches!(place, Place::Middle | Place::Last) {
            // A straggler of an earlier run of this READ: the beginning of this one carries an AETH.
            return None;
        }
        let expected = match (last, self.answered) {
            // The first packet of all teaches the path MTU, or that the whole is not larger.
            (false, 0) => usize::try_from(self.length).ok().filter(|&length| payload < length),
            (true, 0) => usize::try_from(self.length).ok(),
            _ => self.payload_at(self.answered, mtu.known()?),
        };
        let fits = match (last, self.answered) {
            (false, 0) => expected.is_some() && payload.is_power_of_two() && (256..=4096).contains(&payload),
            (true, 0) => expected == Some(payload) && payload <= 4096,
            _ => expected == Some(payload) && last == self.ends_at(self.answered, mtu.known()?),
        };
        if !fits {
            return None;
        }
        let learnt = match (last, self.answered) {
            (false, 0) => mtu.learn_full(payload),
            (true, 0) => mtu.learn_fits(payload),
            _ => false,
        };
        let opcode = match (self.answered == 0, last) {
            (true, true) => Opcode::ReadResponseOnly,
            (true, false) => Opcode::ReadResponseFirst,
            (false, false) => Opcode::ReadResponseMiddle,
            (false, true) => Opcode::ReadResponseLast,
        };
        self.answered += 1;
        if last {
            self.span = self.answered;
        }
        Some(Taken { opcode, complete: last, learnt })
    }

    fn payload_at(&self, index: u32, mtu: u32) -> Option<usize> {
        let offset = index.checked_mul(mtu)?;
        let left = self.length.checked_sub(offset)?;
        usize::try_from(left.min(mtu)).ok()
    }

    fn ends_at(&self, index: u32, mtu: u32) -> bool {
        u64::from(index + 1) * u64::from(mtu) >= u64::from(self.length)
    }

    /// Turns the request's bytes in `out` into the request for what is still missing.
    pub(super) fn rest(&self, out: &mut [u8], mtu: MtuSet) -> Option<()> {
        if self.answered == 0 {
            return Some(());
        }
        let offset = self.answered.checked_mul(mtu.known()?)?;
        let left = self.length.checked_sub(offset)?;
        Bth::set_psn(out.first_chunk_mut()?, self.next());
        let reth = out.get_mut(BTH_LEN..)?;
        let va: &mut [u8; 8] = reth.first_chunk_mut()?;
        *va = u64::from_be_bytes(*va).wrapping_add(offset.into()).to_be_bytes();
        let length: &mut [u8; 4] = reth.get_mut(12..)?.first_chunk_mut()?;
        *length = left.to_be_bytes();
        Some(())
    }
}

/// Takes the response that stands next for an operation of this kind; `None` if it is none.
pub(super) fn take(kind: Kind, read: &mut Progress, packet: &Packet<'_>, mtu: &mut MtuSet) -> Option<Taken> {
    let opcode = packet.bth.opcode;
    let fits = match kind {
        Kind::Read if opcode.kind() == Kind::ReadResponse => return read.take(packet, mtu),
        Kind::Read => false,
        Kind::Atomic => opcode == Opcode::AtomicAcknowledge,
        _ => opcode == Opcode::ReadResponseOnly && packet.payload.is_empty(),
    };
    if !fits {
        return None;
    }
    read.answered = 1;
    Some(Taken { opcode, complete: true, learnt: false })
}

/// The AETH to go with `opcode`, which replaces the packet's own.
pub(super) fn aeth_for(opcode: Opcode, packet: &Packet<'_>) -> Option<Aeth> {
    match opcode {
        Opcode::ReadResponseMiddle => None,
        _ => packet.ext.aeth().copied(),
    }
}
