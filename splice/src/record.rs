//! Records: what the two gateways tell each other about flows, carried as opaque bytes by a stream.
//!
//! Every record stands alone (streams deliver in any order): a request carries the flow's full
//! address until the peer is known to have seen one that did. The layout is in
//! `docs/protocol.md#records`.

use std::net::{IpAddr, Ipv6Addr};

use roce::ip::Addressing;

use crate::sixteen::to_sixteen;

/// Longest record head: type and flags, flow, sequence number and a full address.
pub const MAX_HEAD: usize = 1 + 5 + 4 + ADDRESSING_LEN;

const ADDRESSING_LEN: usize = 1 + 16 + 16 + 2 + 1 + 1;
const FLAG_OPEN: u8 = 0x10;
const FLAG_REPLAY: u8 = 0x20;
const FLAG_RESTED: u8 = 0x40;
const FLAG_SHORT: u8 = 0x80;
/// Bits of the first byte that tell the type.
const KIND: u8 = 0x0f;

/// Names a flow within a session; chosen by the gateway at the requester's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct FlowId(pub u32);

/// Why a flow is ended before its time.
///
/// Rule: `docs/protocol.md#rule-reasons`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// A gateway is stopping.
    Stopping = 1,
    /// The requester went silent in the middle of a message.
    RequesterGone = 2,
    /// The target did not answer within `limits.target_dead`.
    TargetDead = 3,
    /// A bound was reached: too many flows, or no buffer left.
    NoRoom = 4,
    /// The peer named a flow this gateway does not know.
    UnknownFlow = 5,
    /// The flow broke a rule that cannot be mended.
    Protocol = 6,
    /// A packet is longer than the LAN it is for carries.
    TooLong = 7,
    /// There was no place for the far half: nothing of the flow is known there, and its requester
    /// may begin it again.
    NoPlace = 8,
}

impl Reason {
    /// Every reason, by its number from 1 on.
    pub const ALL: [Self; 8] = [
        Self::Stopping,
        Self::RequesterGone,
        Self::TargetDead,
        Self::NoRoom,
        Self::UnknownFlow,
        Self::Protocol,
        Self::TooLong,
        Self::NoPlace,
    ];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stopping => "stopping",
            Self::RequesterGone => "requester_gone",
            Self::TargetDead => "target_dead",
            Self::NoRoom => "no_room",
            Self::UnknownFlow => "unknown_flow",
            Self::Protocol => "protocol",
            Self::TooLong => "too_long",
            Self::NoPlace => "no_place",
        }
    }

    fn from_u8(value: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u8 == value)
    }
}

/// How much a request says of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The flow's address: the peer may not know the flow.
    Full(Addressing),
    /// The body begins with a BTH, as in other records.
    Known,
    /// The body begins with a short header instead, `docs/protocol.md#rule-short-header`.
    Short,
}

/// A record's head; what follows it is the body.
///
/// In [`Head::Request`], [`Head::Response`], [`Head::Datagram`] and [`Head::Ordered`] that is a
/// RoCE packet from its BTH to its padding. A short header replaces the BTH if the head says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A request packet, requester's gateway to target's.
    Request {
        /// The flow.
        flow: FlowId,
        /// Position among the flow's requests, from 0.
        seq: u32,
        /// Sent again by its requester, outside the flow's sequence of new requests.
        replay: bool,
        /// All that the flow had before was answered, and its target has not spoken since.
        rested: bool,
        /// How its body begins.
        opens: Opening,
    },
    /// A response packet of the target, target's gateway to requester's.
    Response {
        /// The flow.
        flow: FlowId,
        /// Position among the flow's responses, from 0.
        seq: u32,
        /// Its body begins with a short header, `docs/protocol.md#rule-short-response`.
        is_short: bool,
    },
    /// A packet that is carried and not terminated, and needs no order: UD, CM.
    Datagram(Addressing),
    /// A packet that is carried and not terminated, and has its place among those for the same
    /// queue pair: UC.
    Ordered {
        /// Names the queue pair and its sender; chosen by the gateway at the sender's side, beside
        /// the numbers of flows.
        flow: FlowId,
        /// Position among the packets to it, from 0.
        seq: u32,
        /// The packet's address.
        addressing: Addressing,
    },
    /// Requester's gateway: end the flow so that the target's program sees an error.
    Abort {
        /// The flow.
        flow: FlowId,
        /// Why.
        reason: Reason,
    },
    /// Target's gateway: end the flow so that the requester's program sees an error.
    Fail {
        /// The flow.
        flow: FlowId,
        /// Why.
        reason: Reason,
    },
    /// Requester's gateway: the flow is forgotten here, forget it too.
    Close {
        /// The flow.
        flow: FlowId,
        /// Requests the flow has had; one that comes later is of no use any more.
        requests: u32,
    },
    /// Requester's gateway: the requester, which was told of an RNR NAK, tries again.
    Retry {
        /// The flow.
        flow: FlowId,
    },
    /// Requester's gateway: the requester may be in another incarnation than what is outstanding,
    /// or is not after all.
    Suspend {
        /// The flow.
        flow: FlowId,
        /// Counts these records of the flow, from 1. Odd: send nothing that is outstanding.
        count: u32,
    },
    /// Target's gateway: the flow has been idle for long. If it is not known any more, answer with
    /// `Close`.
    Idle {
        /// The flow.
        flow: FlowId,
    },
    /// The body is a message between gateways that are members of sites.
    Word,
    /// The body is a frame of the LAN that another member of the site hands over, from its IP
    /// header on.
    HandedOver,
    /// Target's gateway: the body names a flow whose far half knows no flow of the peer's any more.
    Lives,
}

/// A record that breaks the format. It is counted and changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends before its head does.
    #[error("a record of {0} bytes ends inside its head")]
    Truncated(usize),
    /// Its type is none of those known.
    #[error("record type {0} is unknown")]
    Kind(u8),
    /// Its address family is neither 4 nor 6.
    #[error("address family {0} is neither 4 nor 6")]
    Family(u8),
    /// Its reason is none of those known.
    #[error("reason {0} is unknown")]
    Reason(u8),
    /// Its address is said to be IPv4 and is not mapped.
    #[error("the address {0} is no mapped IPv4 address")]
    NotMapped(Ipv6Addr),
    /// Bits of its flow's first byte are set that are zero in a number of five bytes.
    #[error("bits {0:#04x} of a flow's first byte are not zero")]
    Form(u8),
    /// Its flow's number stands in more bytes than it takes.
    #[error("flow {0} takes fewer bytes")]
    Flow(u32),
    /// It opens a flow of which it leaves out what only such a record says.
    #[error("an opening request with a short header")]
    Opening,
}

/// A head in its bytes.
#[derive(Clone, Copy, Debug)]
pub struct HeadBytes {
    bytes: [u8; MAX_HEAD],
    len: usize,
}

impl AsRef<[u8]> for HeadBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl HeadBytes {
    fn put(&mut self, field: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + field.len()) {
            room.copy_from_slice(field);
            self.len += field.len();
        }
    }

    /// The upper two bits of the first byte tell the bytes that follow: 0, 1, 3, and 4 without the
    /// rest of the first.
    fn put_flow(&mut self, flow: FlowId) {
        let [a, b, c, d] = flow.0.to_be_bytes();
        match flow.0 {
            0..0x40 => self.put(&[d]),
            0x40..0x4000 => self.put(&[0x40 | c, d]),
            0x4000..0x4000_0000 => self.put(&[0x80 | a, b, c, d]),
            _ => self.put(&[0xc0, a, b, c, d]),
        }
    }

    /// A head that says nothing but a number of its flow.
    fn put_counted(&mut self, first: u8, flow: FlowId, count: u32) {
        self.put(&[first]);
        self.put_flow(flow);
        self.put(&count.to_be_bytes());
    }

    fn put_addressing(&mut self, addressing: &Addressing) {
        let family = if addressing.src.is_ipv4() { 4 } else { 6 };
        self.put(&[family]);
        self.put(&to_sixteen(addressing.src));
        self.put(&to_sixteen(addressing.dst));
        self.put(&addressing.src_port.to_be_bytes());
        self.put(&[addressing.tclass, addressing.ttl]);
    }
}

impl Head {
    /// Returns the source that takes turns with others within a class: a flow's requests, a flow's
    /// responses, and all that is in no flow, together.
    pub(crate) fn source(&self) -> u64 {
        match self {
            Self::Request { flow, .. } => Self::source_of_requests(*flow),
            Self::Response { flow, .. } => (2 << 32) | u64::from(flow.0),
            _ => 0,
        }
    }

    /// Returns the source of a flow's requests, where its requester is here.
    pub(crate) fn source_of_requests(flow: FlowId) -> u64 {
        (1 << 32) | u64::from(flow.0)
    }

    /// The head in wire format.
    #[must_use]
    pub fn emit(&self) -> HeadBytes {
        let mut out = HeadBytes { bytes: [0; MAX_HEAD], len: 0 };
        match *self {
            Self::Request { flow, seq, replay, rested, opens } => {
                let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
                let opening = match opens {
                    Opening::Full(_) => FLAG_OPEN,
                    Opening::Known => 0,
                    Opening::Short => FLAG_SHORT,
                };
                out.put(&[1 | opening | flag(replay, FLAG_REPLAY) | flag(rested, FLAG_RESTED)]);
                out.put_flow(flow);
                out.put(&seq.to_be_bytes());
                if let Opening::Full(addressing) = opens {
                    out.put_addressing(&addressing);
                }
            }
            Self::Response { flow, seq, is_short } => {
                out.put_counted(2 | if is_short { FLAG_SHORT } else { 0 }, flow, seq);
            }
            Self::Datagram(addressing) => {
                out.put(&[3]);
                out.put_addressing(&addressing);
            }
            Self::Ordered { flow, seq, addressing } => {
                out.put(&[8]);
                out.put_flow(flow);
                out.put(&seq.to_be_bytes());
                out.put_addressing(&addressing);
            }
            Self::Abort { flow, reason } => {
                out.put(&[4, reason as u8]);
                out.put_flow(flow);
            }
            Self::Fail { flow, reason } => {
                out.put(&[5, reason as u8]);
                out.put_flow(flow);
            }
            Self::Close { flow, requests } => out.put_counted(6, flow, requests),
            Self::Idle { flow } => {
                out.put(&[7]);
                out.put_flow(flow);
            }
            Self::Retry { flow } => {
                out.put(&[9]);
                out.put_flow(flow);
            }
            Self::Suspend { flow, count } => out.put_counted(10, flow, count),
            Self::Word => out.put(&[11]),
            Self::HandedOver => out.put(&[12]),
            Self::Lives => out.put(&[13]),
        }
        out
    }

    /// Splits a record into its head and its body.
    ///
    /// # Errors
    /// [`Malformed`] says what is wrong; nothing may be done with such a record.
    pub fn parse(record: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut rest = Reader { bytes: record, whole: record.len() };
        let [first] = rest.array::<1>()?;
        let head = match first & KIND {
            1 => Self::Request {
                flow: rest.flow()?,
                seq: rest.u32()?,
                replay: first & FLAG_REPLAY != 0,
                rested: first & FLAG_RESTED != 0,
                opens: match (first & FLAG_OPEN, first & FLAG_SHORT) {
                    (0, 0) => Opening::Known,
                    (0, _) => Opening::Short,
                    (_, 0) => Opening::Full(rest.addressing()?),
                    (_, _) => return Err(Malformed::Opening),
                },
            },
            2 => {
                let is_short = first & FLAG_SHORT != 0;
                Self::Response { flow: rest.flow()?, seq: rest.u32()?, is_short }
            }
            3 => Self::Datagram(rest.addressing()?),
            4 => Self::Abort { reason: rest.reason()?, flow: rest.flow()? },
            5 => Self::Fail { reason: rest.reason()?, flow: rest.flow()? },
            6 => Self::Close { flow: rest.flow()?, requests: rest.u32()? },
            7 => Self::Idle { flow: rest.flow()? },
            8 => Self::Ordered { flow: rest.flow()?, seq: rest.u32()?, addressing: rest.addressing()? },
            9 => Self::Retry { flow: rest.flow()? },
            10 => Self::Suspend { flow: rest.flow()?, count: rest.u32()? },
            11 => Self::Word,
            12 => Self::HandedOver,
            13 => Self::Lives,
            other => return Err(Malformed::Kind(other)),
        };
        Ok((head, rest.bytes))
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    whole: usize,
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.bytes.split_first_chunk::<N>().ok_or(Malformed::Truncated(self.whole))?;
        self.bytes = rest;
        Ok(*field)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    fn reason(&mut self) -> Result<Reason, Malformed> {
        let [reason] = self.array()?;
        Reason::from_u8(reason).ok_or(Malformed::Reason(reason))
    }

    fn flow(&mut self) -> Result<FlowId, Malformed> {
        let [first] = self.array()?;
        let (least, flow) = match (first >> 6, first & 0x3f) {
            (0, d) => (0, u32::from(d)),
            (1, c) => {
                let [d] = self.array()?;
                (0x40, u32::from_be_bytes([0, 0, c, d]))
            }
            (2, a) => {
                let [b, c, d] = self.array()?;
                (0x4000, u32::from_be_bytes([a, b, c, d]))
            }
            (3, 0) => (0x4000_0000, self.u32()?),
            (_, first) => return Err(Malformed::Form(first)),
        };
        if flow < least { Err(Malformed::Flow(flow)) } else { Ok(FlowId(flow)) }
    }

    fn addressing(&mut self) -> Result<Addressing, Malformed> {
        let [family] = self.array::<1>()?;
        let src = address(family, self.array()?)?;
        let dst = address(family, self.array()?)?;
        let src_port = u16::from_be_bytes(self.array()?);
        let [tclass, ttl] = self.array::<2>()?;
        Ok(Addressing { src, dst, src_port, tclass, ttl })
    }
}

fn address(family: u8, octets: [u8; 16]) -> Result<IpAddr, Malformed> {
    let address = Ipv6Addr::from(octets);
    match family {
        4 => address.to_ipv4_mapped().map(IpAddr::V4).ok_or(Malformed::NotMapped(address)),
        6 => Ok(IpAddr::V6(address)),
        other => Err(Malformed::Family(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addressing(v6: bool) -> Addressing {
        let (src, dst) = if v6 { ("fd00::1", "fd00:1::2") } else { ("10.0.0.1", "10.0.1.1") };
        Addressing {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            src_port: 0xc123,
            tclass: 0x68,
            ttl: 63,
        }
    }

    fn full(v6: bool) -> Opening {
        Opening::Full(addressing(v6))
    }

    fn all() -> Vec<Head> {
        [0, 0x3f, 0x40, 0x3fff, 0x4000, 0x3fff_ffff, 0x4000_0000, u32::MAX].map(FlowId).map(of).concat()
    }

    fn of(flow: FlowId) -> Vec<Head> {
        vec![
            Head::Request { flow, seq: 7, replay: false, rested: true, opens: Opening::Known },
            Head::Request { flow, seq: 8, replay: true, rested: false, opens: Opening::Short },
            Head::Request { flow, seq: u32::MAX, replay: true, rested: true, opens: full(false) },
            Head::Request { flow, seq: 0, replay: false, rested: false, opens: full(true) },
            Head::Response { flow, seq: 9, is_short: false },
            Head::Response { flow, seq: 9, is_short: true },
            Head::Datagram(addressing(true)),
            Head::Ordered { flow, seq: 10, addressing: addressing(false) },
            Head::Abort { flow, reason: Reason::RequesterGone },
            Head::Fail { flow, reason: Reason::TargetDead },
            Head::Close { flow, requests: 12 },
            Head::Idle { flow },
            Head::Retry { flow },
            Head::Suspend { flow, count: 13 },
        ]
    }

    #[test]
    fn every_head_reads_back_as_written_and_leaves_the_body() {
        for head in all() {
            let mut record = head.emit().as_ref().to_vec();
            record.extend_from_slice(b"body");
            assert_eq!(Head::parse(&record), Ok((head, &b"body"[..])));
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        for head in all() {
            let bytes = head.emit();
            for end in 0..bytes.as_ref().len() {
                assert_eq!(Head::parse(&bytes.as_ref()[..end]), Err(Malformed::Truncated(end)), "{head:?}");
            }
        }
    }

    #[test]
    fn unknown_kinds_families_and_reasons_are_refused() {
        assert_eq!(Head::parse(&[0x1e, 0, 0, 0, 0, 0]), Err(Malformed::Kind(14)));
        assert_eq!(Head::parse(&[4, 99, 0, 0, 0, 0]), Err(Malformed::Reason(99)));
        let mut bytes = Head::Datagram(addressing(false)).emit().as_ref().to_vec();
        bytes[1] = 5;
        assert_eq!(Head::parse(&bytes), Err(Malformed::Family(5)));
        bytes[1] = 4;
        bytes[2] = 1;
        let address = "100::ffff:a00:1".parse().unwrap();
        assert_eq!(Head::parse(&bytes), Err(Malformed::NotMapped(address)));
    }

    #[test]
    fn a_flow_has_one_form() {
        for (bytes, flow) in
            [(&[0x40, 0x3f][..], 0x3f), (&[0x80, 0, 0x3f, 0xff], 0x3fff), (&[0xc0, 0, 0, 0, 7], 7)]
        {
            assert_eq!(Head::parse(&[&[7], bytes].concat()), Err(Malformed::Flow(flow)));
        }
        assert_eq!(Head::parse(&[7, 0xff, 0xff, 0xff, 0xff, 0xff]), Err(Malformed::Form(0x3f)));
        assert_eq!(Head::parse(&[0x91, 1, 0, 0, 0, 0]), Err(Malformed::Opening), "open, and short");
    }

    #[test]
    fn golden_bytes() {
        let request = |flow, opens| Head::Request {
            flow: FlowId(flow),
            seq: 0x0102_0304,
            replay: true,
            rested: true,
            opens,
        };
        assert_eq!(request(0x3f, Opening::Short).emit().as_ref(), [0xe1, 0x3f, 1, 2, 3, 4]);
        assert_eq!(request(0x1234, Opening::Known).emit().as_ref(), [0x61, 0x52, 0x34, 1, 2, 3, 4]);
        let opening = request(0x0012_3456, full(false)).emit();
        assert_eq!(opening.as_ref()[..10], [0x71, 0x80, 0x12, 0x34, 0x56, 1, 2, 3, 4, 4]);
        let response = |is_short| Head::Response { flow: FlowId(0x40), seq: 0x0102_0304, is_short };
        assert_eq!(response(false).emit().as_ref(), [0x02, 0x40, 0x40, 1, 2, 3, 4]);
        assert_eq!(response(true).emit().as_ref(), [0x82, 0x40, 0x40, 1, 2, 3, 4]);
        let fail = Head::Fail { flow: FlowId(u32::MAX), reason: Reason::NoRoom };
        assert_eq!(fail.emit().as_ref(), [5, 4, 0xc0, 0xff, 0xff, 0xff, 0xff]);
    }
}
