//! Packets that leave a flow: passed on, or made here.

use std::ops::Deref;

use crate::wire::{Aeth, BTH_LEN, Bth, Ext, Opcode, Packet, Psn, Qpn, Repr};

/// How to pass on a packet that was handed in: its own bytes, or with the headers in front
/// replaced. Nothing is copied until the owner copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewrittenPacket {
    head: [u8; HEAD],
    head_len: u8,
    skip: u8,
}

const HEAD: usize = BTH_LEN + Aeth::LEN;

impl RewrittenPacket {
    const VERBATIM: RewrittenPacket = RewrittenPacket { head: [0; HEAD], head_len: 0, skip: 0 };

    /// `packet` as it came, but for the reserved bit of its syndrome: not every NIC ignores that
    /// (Soft-RoCE's `check_ack` compares three bits).
    pub(super) fn unchanged(packet: &Packet<'_>) -> RewrittenPacket {
        match packet.ext.aeth() {
            Some(aeth) if packet.bytes.get(BTH_LEN) != Some(&aeth.syndrome.to_u8()) => {
                RewrittenPacket::rewritten(packet, packet.bth, Some(*aeth))
            }
            _ => RewrittenPacket::VERBATIM,
        }
    }

    /// `packet` with another opcode, PSN and AETH; its payload stays.
    pub(super) fn rewritten(packet: &Packet<'_>, bth: Bth, aeth: Option<Aeth>) -> RewrittenPacket {
        let mut head = [0; HEAD];
        if let Some(front) = head.first_chunk_mut() {
            bth.emit(front);
        }
        if let (Some(aeth), Some(back)) = (aeth, head.last_chunk_mut()) {
            *back = aeth.to_bytes();
        }
        RewrittenPacket {
            head,
            head_len: (BTH_LEN + aeth.map_or(0, |_| Aeth::LEN)) as u8,
            // The result of an atomic stays with what follows.
            skip: match packet.ext {
                Ext::AtomicAck(..) => (BTH_LEN + Aeth::LEN) as u8,
                ext => (BTH_LEN + ext.layout().len()) as u8,
            },
        }
    }

    /// The bytes to pass on, in two pieces; `packet` is the very packet that was handed in.
    pub fn parts<'a>(&'a self, packet: &'a [u8]) -> [&'a [u8]; 2] {
        [
            self.head.get(..usize::from(self.head_len)).unwrap_or_default(),
            packet.get(usize::from(self.skip)..).unwrap_or_default(),
        ]
    }

    /// Copies the bytes to pass on to the front of `out`; `None` when it is too small.
    pub fn copy(&self, packet: &[u8], out: &mut [u8]) -> Option<usize> {
        let [head, tail] = self.parts(packet);
        let len = head.len() + tail.len();
        let (front, back) = out.get_mut(..len)?.split_at_mut_checked(head.len())?;
        front.copy_from_slice(head);
        back.copy_from_slice(tail);
        Some(len)
    }

    /// Returns true if the packet goes on as it came.
    pub fn is_verbatim(&self) -> bool {
        self.skip == 0
    }
}

/// A packet made by a flow, from the BTH on: an ACK or a NAK. It has no payload.
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Reply {
    #[serde_as(as = "[_; Reply::MAX]")]
    bytes: [u8; Reply::MAX],
    len: u8,
}

impl Reply {
    /// The longest reply in bytes: BTH, AETH.
    pub const MAX: usize = BTH_LEN + Aeth::LEN;

    /// An ACK or NAK.
    pub(super) fn acknowledge(style: Style, to: Qpn, psn: Psn, aeth: Aeth) -> Reply {
        Reply::make(style.bth(Opcode::Acknowledge, to, psn), Ext::Aeth(aeth))
    }

    fn make(bth: Bth, ext: Ext) -> Reply {
        let mut bytes = [0; Reply::MAX];
        let repr = Repr { bth, ext, payload: &[] };
        // The only failures are a short buffer and headers that do not fit the opcode; the callers
        // above exclude both.
        let len = repr.emit(&mut bytes).unwrap_or_default() as u8;
        Reply { bytes, len }
    }
}

impl Deref for Reply {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Header fields that packets made here share with those of the connection.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Style {
    pkey: u16,
    migreq: bool,
}

impl Style {
    pub(super) const DEFAULT: Style = Style { pkey: 0xffff, migreq: false };

    pub(super) fn new(pkey: u16) -> Style {
        Style { pkey, ..Style::DEFAULT }
    }

    pub(super) fn of(bth: &Bth) -> Style {
        Style { pkey: bth.pkey, migreq: bth.migreq }
    }

    pub(super) fn bth(self, opcode: Opcode, to: Qpn, psn: Psn) -> Bth {
        Bth { pkey: self.pkey, migreq: self.migreq, ..Bth::new(opcode, to, psn) }
    }
}
