//! Extension headers.

use super::{Aeth, Layout, Qpn};

/// RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address at the responder.
    pub virtual_address: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length of the whole transfer in bytes.
    pub dma_length: u32,
}

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address at the responder.
    pub virtual_address: u64,
    /// Remote key.
    pub rkey: u32,
    /// The value to swap in or to add.
    pub swap_or_add: u64,
    /// The value to compare with.
    pub compare: u64,
}

/// Atomic acknowledge header: the value before the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth(pub u64);

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// The sender's queue pair.
    pub src_qp: Qpn,
}

/// Immediate data, in the sender's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt(pub [u8; 4]);

/// Invalidate header: the remote key to invalidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth(pub u32);

/// FLUSH header. Placement type stands in bits 3:0, selectivity in bits 5:4, the rest is reserved
/// and kept as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth(pub u32);

impl Feth {
    /// Placement type: bit 0 global visibility, bit 1 persistence.
    pub const fn placement(self) -> u8 {
        (self.0 & 0xf) as u8
    }

    /// Selectivity: 0 the range, 1 the whole memory region.
    pub const fn selectivity(self) -> u8 {
        (self.0 >> 4 & 3) as u8
    }
}

/// The extension headers of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ext {
    /// None.
    None,
    /// SEND or WRITE, last part, with immediate; SEND in one packet with immediate.
    Imm(ImmDt),
    /// WRITE First and Only, READ request, ATOMIC WRITE.
    Reth(Reth),
    /// WRITE Only with immediate.
    RethImm(Reth, ImmDt),
    /// ACK, NAK and READ responses other than Middle.
    Aeth(Aeth),
    /// Answer to an atomic.
    AtomicAck(Aeth, AtomicAckEth),
    /// Atomic request.
    Atomic(AtomicEth),
    /// SEND with invalidate.
    Ieth(Ieth),
    /// FLUSH.
    Flush(Feth, Reth),
    /// UD SEND.
    Deth(Deth),
    /// UD SEND with immediate.
    DethImm(Deth, ImmDt),
}

impl Ext {
    /// The AETH, if there is one.
    pub const fn aeth(&self) -> Option<&Aeth> {
        match self {
            Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _) => Some(aeth),
            _ => None,
        }
    }

    /// The RETH, if there is one.
    pub const fn reth(&self) -> Option<&Reth> {
        match self {
            Ext::Reth(reth) | Ext::RethImm(reth, _) | Ext::Flush(_, reth) => Some(reth),
            _ => None,
        }
    }

    /// The DETH, if there is one.
    pub const fn deth(&self) -> Option<&Deth> {
        match self {
            Ext::Deth(deth) | Ext::DethImm(deth, _) => Some(deth),
            _ => None,
        }
    }

    /// The immediate data, if there is any.
    pub const fn imm(&self) -> Option<ImmDt> {
        match self {
            Ext::Imm(imm) | Ext::RethImm(_, imm) | Ext::DethImm(_, imm) => Some(*imm),
            _ => None,
        }
    }

    /// Which headers these are.
    pub const fn layout(&self) -> Layout {
        match self {
            Ext::None => Layout::Bare,
            Ext::Imm(_) => Layout::Imm,
            Ext::Reth(_) => Layout::Reth,
            Ext::RethImm(..) => Layout::RethImm,
            Ext::Aeth(_) => Layout::Aeth,
            Ext::AtomicAck(..) => Layout::AethAtomicAck,
            Ext::Atomic(_) => Layout::Atomic,
            Ext::Ieth(_) => Layout::Ieth,
            Ext::Flush(..) => Layout::FethReth,
            Ext::Deth(_) => Layout::Deth,
            Ext::DethImm(..) => Layout::DethImm,
        }
    }

    /// Takes the headers off the front of `bytes`; `None` when it is too short.
    #[inline]
    pub(super) fn take(layout: Layout, bytes: &mut &[u8]) -> Option<Ext> {
        Some(match layout {
            Layout::Bare => Ext::None,
            Layout::Imm => Ext::Imm(ImmDt(take(bytes)?)),
            Layout::Reth => Ext::Reth(Reth::take(bytes)?),
            Layout::RethImm => Ext::RethImm(Reth::take(bytes)?, ImmDt(take(bytes)?)),
            Layout::Aeth => Ext::Aeth(Aeth::parse(take(bytes)?)),
            Layout::AethAtomicAck => {
                Ext::AtomicAck(Aeth::parse(take(bytes)?), AtomicAckEth(take_u64(bytes)?))
            }
            Layout::Atomic => Ext::Atomic(AtomicEth::take(bytes)?),
            Layout::Ieth => Ext::Ieth(Ieth(take_u32(bytes)?)),
            Layout::FethReth => Ext::Flush(Feth(take_u32(bytes)?), Reth::take(bytes)?),
            Layout::Deth => Ext::Deth(Deth::take(bytes)?),
            Layout::DethImm => Ext::DethImm(Deth::take(bytes)?, ImmDt(take(bytes)?)),
        })
    }

    /// Writes the headers to the front of `out` and moves it on; `None` when it is too short.
    pub(super) fn put(&self, out: &mut &mut [u8]) -> Option<()> {
        match self {
            Ext::None => Some(()),
            Ext::Imm(imm) => put(out, imm.0),
            Ext::Reth(reth) => reth.put(out),
            Ext::RethImm(reth, imm) => reth.put(out).and_then(|()| put(out, imm.0)),
            Ext::Aeth(aeth) => put(out, aeth.to_bytes()),
            Ext::AtomicAck(aeth, original) => {
                put(out, aeth.to_bytes()).and_then(|()| put(out, original.0.to_be_bytes()))
            }
            Ext::Atomic(atomic) => atomic.put(out),
            Ext::Ieth(ieth) => put(out, ieth.0.to_be_bytes()),
            Ext::Flush(feth, reth) => put(out, feth.0.to_be_bytes()).and_then(|()| reth.put(out)),
            Ext::Deth(deth) => deth.put(out),
            Ext::DethImm(deth, imm) => deth.put(out).and_then(|()| put(out, imm.0)),
        }
    }
}

impl Reth {
    /// Length in bytes.
    pub const LEN: usize = 16;

    fn take(bytes: &mut &[u8]) -> Option<Reth> {
        Some(Reth { virtual_address: take_u64(bytes)?, rkey: take_u32(bytes)?, dma_length: take_u32(bytes)? })
    }

    fn put(&self, out: &mut &mut [u8]) -> Option<()> {
        put(out, self.virtual_address.to_be_bytes())?;
        put(out, self.rkey.to_be_bytes())?;
        put(out, self.dma_length.to_be_bytes())
    }
}

impl AtomicEth {
    /// Length in bytes.
    pub const LEN: usize = 28;

    fn take(bytes: &mut &[u8]) -> Option<AtomicEth> {
        Some(AtomicEth {
            virtual_address: take_u64(bytes)?,
            rkey: take_u32(bytes)?,
            swap_or_add: take_u64(bytes)?,
            compare: take_u64(bytes)?,
        })
    }

    fn put(&self, out: &mut &mut [u8]) -> Option<()> {
        put(out, self.virtual_address.to_be_bytes())?;
        put(out, self.rkey.to_be_bytes())?;
        put(out, self.swap_or_add.to_be_bytes())?;
        put(out, self.compare.to_be_bytes())
    }
}

impl Deth {
    /// Length in bytes.
    pub const LEN: usize = 8;

    fn take(bytes: &mut &[u8]) -> Option<Deth> {
        Some(Deth { qkey: take_u32(bytes)?, src_qp: Qpn::new(take_u32(bytes)?) })
    }

    fn put(&self, out: &mut &mut [u8]) -> Option<()> {
        put(out, self.qkey.to_be_bytes())?;
        put(out, self.src_qp.get().to_be_bytes())
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes).map(u32::from_be_bytes)
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes).map(u64::from_be_bytes)
}

pub(super) fn put<const N: usize>(out: &mut &mut [u8], bytes: [u8; N]) -> Option<()> {
    out.split_off_mut(..N)?.copy_from_slice(&bytes);
    Some(())
}
