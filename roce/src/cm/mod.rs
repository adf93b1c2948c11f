//! Connection management: the MADs on queue pair 1 by which two programs agree on queue pairs, PSNs
//! and timeouts.
//!
//! Read to learn which queue pairs belong together and what their programs agreed on, and changed
//! in two respects: the ACK timeouts both sides announce may be raised ([`raise_ack_timeout`]),
//! which is lawful and keeps a NIC from retrying across a long link, and vendor options are cleared
//! ([`clear_vendor_options`]). Byte offsets: InfiniBand Architecture Specification, volume 1,
//! chapter 12; `include/rdma/ibta_vol1_c12.h` of Linux.

mod terms;
mod views;

use std::time::Duration;

use crate::wire::{BTH_LEN, Deth, Opcode, Packet, Qpn};

pub(crate) use terms::Offer;
pub use terms::Terms;
pub use views::{Apr, Cma, Drep, Dreq, Lap, MessageKind, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};

/// Length of a MAD's header in bytes.
const MAD_HEADER: usize = 24;
/// Length of a CM message in bytes: a MAD without its header.
pub const BODY_LEN: usize = 232;

/// A connection management MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad<'a> {
    /// MAD status.
    pub status: u16,
    /// Transaction: a retransmission repeats it.
    pub transaction: u64,
    /// The attribute modifier. In REQ, REP and SIDR_REP it holds the vendor options (ECE).
    pub attribute_modifier: u32,
    /// The sender's queue pair, normally 1.
    pub src_qp: Qpn,
    /// Its message.
    pub message: Message<'a>,
}

/// A CM message by attribute ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// 0x10: request for communication.
    Req(Req<'a>),
    /// 0x11: message receipt acknowledgement: more time is needed.
    Mra(Mra<'a>),
    /// 0x12: reject.
    Rej(Rej<'a>),
    /// 0x13: reply to a request.
    Rep(Rep<'a>),
    /// 0x14: ready to use.
    Rtu(Rtu<'a>),
    /// 0x15: disconnect request.
    Dreq(Dreq<'a>),
    /// 0x16: disconnect reply.
    Drep(Drep<'a>),
    /// 0x17: service ID resolution request.
    SidrReq(SidrReq<'a>),
    /// 0x18: service ID resolution reply.
    SidrRep(SidrRep<'a>),
    /// 0x19: load alternate path.
    Lap(Lap<'a>),
    /// 0x1a: alternate path response.
    Apr(Apr<'a>),
    /// Another attribute; carried, not understood.
    Other(u16),
}

impl<'a> Mad<'a> {
    /// Reads a packet as a CM MAD; `None` when it is something else: not UD, not for queue pair 1,
    /// not of the communication management class, or cut short.
    pub fn parse(packet: &Packet<'a>) -> Option<Mad<'a>> {
        let deth = packet.ext.deth()?;
        if packet.bth.opcode != Opcode::UdSendOnly || packet.bth.dest_qp != Qpn::GSI {
            return None;
        }
        let (header, body) = packet.payload.split_first_chunk::<MAD_HEADER>()?;
        let [1, 7, 2, 3, s0, s1, _, _, t0, t1, t2, t3, t4, t5, t6, t7, a0, a1, _, _, m0, m1, m2, m3] =
            *header
        else {
            return None;
        };
        Some(Mad {
            status: u16::from_be_bytes([s0, s1]),
            transaction: u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            attribute_modifier: u32::from_be_bytes([m0, m1, m2, m3]),
            src_qp: deth.src_qp,
            message: Message::new(u16::from_be_bytes([a0, a1]), body.first_chunk()?),
        })
    }
}

/// Tells whether this is a general management datagram as the InfiniBand Architecture has them
/// (volume 1, section 13.4): UD to queue pair 1, 256 bytes, of a base version, a class and a method
/// that exist.
#[must_use]
pub fn is_management(packet: &Packet<'_>) -> bool {
    if packet.bth.opcode != Opcode::UdSendOnly || packet.bth.dest_qp != Qpn::GSI {
        return false;
    }
    let [1, class, version, method, ..] = *packet.payload else { return false };
    // Subnet administration and connection management are at their second version.
    let is_class = match class {
        0x03 | 0x07 => version == 2,
        0x04..=0x06 | 0x08 => version == 1,
        _ => false,
    };
    // Get, Set, Send, Trap, Report, TrapRepress; GetResp, ReportResp; those of subnet
    // administration alone.
    let is_method = match method {
        0x01 | 0x02 | 0x03 | 0x05 | 0x06 | 0x07 | 0x81 | 0x86 => true,
        0x12..=0x15 | 0x92..=0x95 => class == 0x03,
        _ => false,
    };
    packet.payload.len() == MAD_HEADER + BODY_LEN && is_class && is_method
}

impl<'a> Message<'a> {
    const fn new(attribute: u16, body: &'a [u8; BODY_LEN]) -> Message<'a> {
        match attribute {
            0x10 => Message::Req(Req(body)),
            0x11 => Message::Mra(Mra(body)),
            0x12 => Message::Rej(Rej(body)),
            0x13 => Message::Rep(Rep(body)),
            0x14 => Message::Rtu(Rtu(body)),
            0x15 => Message::Dreq(Dreq(body)),
            0x16 => Message::Drep(Drep(body)),
            0x17 => Message::SidrReq(SidrReq(body)),
            0x18 => Message::SidrRep(SidrRep(body)),
            0x19 => Message::Lap(Lap(body)),
            0x1a => Message::Apr(Apr(body)),
            other => Message::Other(other),
        }
    }
}

/// A timeout as CM and queue pairs encode it, 5 bits: 4.096 us * 2^code.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Timeout(u8);

impl Timeout {
    /// The low five bits of `code`.
    pub const fn new(code: u8) -> Timeout {
        Timeout(code & 0x1f)
    }

    /// The code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// 4.096 us * 2^code. For an ACK timeout the code 0 means no timeout at all instead.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }

    /// The shortest timeout that is not shorter than `wait`, or the longest there is.
    pub fn at_least(wait: Duration) -> Timeout {
        (0..31).map(Timeout).find(|timeout| timeout.duration() >= wait).unwrap_or(Timeout(31))
    }
}

/// Raises the ACK timeout that a REQ or a LAP (local ACK timeout) or a REP (target ACK delay)
/// announces, in the bytes from the BTH on. Never lowers it, and leaves a REQ's or a LAP's 0 ("no
/// timeout") alone. Returns the value before if it changed anything; the ICRC must be computed anew
/// then.
pub fn raise_ack_timeout(transport: &mut [u8], at_least: Timeout) -> Option<Timeout> {
    let before = match Mad::parse(&Packet::parse(transport).ok()?)?.message {
        Message::Req(req) if req.local_ack_timeout().0 != 0 => req.local_ack_timeout(),
        Message::Rep(rep) => rep.target_ack_delay(),
        Message::Lap(lap) if lap.local_ack_timeout().0 != 0 => lap.local_ack_timeout(),
        _ => return None,
    };
    if before >= at_least {
        return None;
    }
    set_ack_timeout(transport, at_least)
}

/// Sets the ACK timeout that a REQ, a REP or a LAP announces to just this, in the bytes from the
/// BTH on. Returns the value before; `None`, and nothing changed, when the bytes are none of these.
pub fn set_ack_timeout(transport: &mut [u8], timeout: Timeout) -> Option<Timeout> {
    let (offset, before) = match Mad::parse(&Packet::parse(transport).ok()?)?.message {
        Message::Req(req) => (views::REQ_LOCAL_ACK_TIMEOUT, req.local_ack_timeout()),
        Message::Rep(rep) => (views::REP_TARGET_ACK_DELAY, rep.target_ack_delay()),
        Message::Lap(lap) => (views::LAP_LOCAL_ACK_TIMEOUT, lap.local_ack_timeout()),
        _ => return None,
    };
    let byte = transport.get_mut(BODY + offset)?;
    *byte = *byte & 0x07 | timeout.0 << 3;
    Some(before)
}

/// Where the attribute modifier stands, from the BTH on.
const ATTRIBUTE_MODIFIER: usize = BTH_LEN + Deth::LEN + 20;
/// Where a CM message begins, from the BTH on.
const BODY: usize = BTH_LEN + Deth::LEN + MAD_HEADER;

/// Clears the vendor options of a REQ, a REP or a SIDR_REP, in the bytes from the BTH on. Returns
/// whether it changed anything; the ICRC must be computed anew then.
///
/// By these (Enhanced Connection Establishment) two NICs agree on what the architecture does not
/// have, such as selective repeat, in which whoever stands between them takes no part. Vendor ID 0
/// says that the sender has none. The options are the MAD's attribute modifier; the vendor ID is
/// `CM_REQ_VENDOR_ID`, `CM_REP_VENDOR_ID_{H,M,L}` and `CM_SIDR_REP_VENDOR_ID_{H,L}` of
/// `include/rdma/ibta_vol1_c12.h` of Linux.
pub fn clear_vendor_options(transport: &mut [u8]) -> bool {
    let Some(mad) = Packet::parse(transport).ok().and_then(|packet| Mad::parse(&packet)) else {
        return false;
    };
    let (vendor_id, places) = match mad.message {
        Message::Req(req) => (req.vendor_id(), views::REQ_VENDOR_ID),
        Message::Rep(rep) => (rep.vendor_id(), views::REP_VENDOR_ID),
        Message::SidrRep(reply) => (reply.vendor_id(), views::SIDR_REP_VENDOR_ID),
        _ => return false,
    };
    if vendor_id == 0 && mad.attribute_modifier == 0 {
        return false;
    }
    let options = ATTRIBUTE_MODIFIER..ATTRIBUTE_MODIFIER + 4;
    for place in options.chain(places.into_iter().map(|place| BODY + place)) {
        if let Some(byte) = transport.get_mut(place) {
            *byte = 0;
        }
    }
    true
}
