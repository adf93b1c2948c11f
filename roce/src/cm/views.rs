//! Views of the CM messages: each field read where it stands.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{BODY_LEN, Timeout};
use crate::port::flow_label_port;
use crate::wire::{PathMtu, Psn, Qpn};

pub(super) const REQ_LOCAL_ACK_TIMEOUT: usize = 95;
pub(super) const REP_TARGET_ACK_DELAY: usize = 26;
pub(super) const LAP_LOCAL_ACK_TIMEOUT: usize = 63;

/// Where the three bytes of the vendor ID stand, the high one first.
pub(super) const REQ_VENDOR_ID: [usize; 3] = [5, 6, 7];
pub(super) const REP_VENDOR_ID: [usize; 3] = [15, 19, 23];
pub(super) const SIDR_REP_VENDOR_ID: [usize; 3] = [6, 7, 11];

type Body = [u8; BODY_LEN];

/// `N` bytes at a fixed offset. Out of range does not compile.
const fn at<const OFFSET: usize, const N: usize>(body: &Body) -> [u8; N] {
    const { assert!(OFFSET + N <= BODY_LEN) };
    match body.split_at(OFFSET).1.first_chunk() {
        Some(bytes) => *bytes,
        None => [0; N],
    }
}

const fn byte<const OFFSET: usize>(body: &Body) -> u8 {
    let [byte] = at::<OFFSET, 1>(body);
    byte
}

const fn be16<const OFFSET: usize>(body: &Body) -> u16 {
    u16::from_be_bytes(at::<OFFSET, 2>(body))
}

const fn be24<const OFFSET: usize>(body: &Body) -> u32 {
    let [a, b, c] = at::<OFFSET, 3>(body);
    u32::from_be_bytes([0, a, b, c])
}

const fn be32<const OFFSET: usize>(body: &Body) -> u32 {
    u32::from_be_bytes(at::<OFFSET, 4>(body))
}

const fn be64<const OFFSET: usize>(body: &Body) -> u64 {
    u64::from_be_bytes(at::<OFFSET, 8>(body))
}

/// A vendor ID, whose bytes need not stand together.
fn vendor_id(places: [usize; 3], body: &Body) -> u32 {
    let [high, middle, low] = places.map(|place| body.get(place).copied().unwrap_or_default());
    u32::from_be_bytes([0, high, middle, low])
}

/// The address a GID stands for: IPv4-mapped GIDs are IPv4.
fn gid<const OFFSET: usize>(body: &Body) -> IpAddr {
    Ipv6Addr::from(at::<OFFSET, 16>(body)).to_canonical()
}

/// Declares a view and the accessors most messages share.
macro_rules! view {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name<'a>(pub(super) &'a Body);
    };
    ($(#[$doc:meta])* $name:ident, ids) => {
        view!($(#[$doc])* $name);

        impl $name<'_> {
            /// The sender's name for the connection.
            pub const fn local_comm_id(self) -> u32 {
                be32::<0>(self.0)
            }

            /// The receiver's name for the connection.
            pub const fn remote_comm_id(self) -> u32 {
                be32::<4>(self.0)
            }
        }

        impl fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("local_comm_id", &self.local_comm_id())
                    .field("remote_comm_id", &self.remote_comm_id())
                    .finish_non_exhaustive()
            }
        }
    };
}

view! {
    /// Request for communication.
    Req
}

impl<'a> Req<'a> {
    /// The sender's name for the connection.
    pub const fn local_comm_id(self) -> u32 {
        be32::<0>(self.0)
    }

    /// Whose vendor options it offers, an OUI; 0: none.
    pub fn vendor_id(self) -> u32 {
        vendor_id(REQ_VENDOR_ID, self.0)
    }

    /// The service asked for; [`Req::cma`] tells the port of an rdma_cm service.
    pub const fn service_id(self) -> u64 {
        be64::<8>(self.0)
    }

    /// The sender's queue pair.
    pub const fn qpn(self) -> Qpn {
        Qpn::new(be24::<32>(self.0))
    }

    /// READs and atomics the sender's responder can hold.
    pub const fn responder_resources(self) -> u8 {
        byte::<35>(self.0)
    }

    /// READs and atomics the sender will have outstanding.
    pub const fn initiator_depth(self) -> u8 {
        byte::<39>(self.0)
    }

    /// How long the receiver may take to answer a CM message.
    pub const fn remote_response_timeout(self) -> Timeout {
        Timeout::new(byte::<43>(self.0) >> 3)
    }

    /// Transport service: 0 RC, 1 UC, 2 RD, 3 see the extended type (XRC).
    pub const fn transport_service(self) -> u8 {
        byte::<43>(self.0) >> 1 & 3
    }

    /// Returns true if the sender does end-to-end flow control.
    pub const fn flow_control(self) -> bool {
        byte::<43>(self.0) & 1 != 0
    }

    /// The first PSN that the receiver will send (`rq_psn` of its sender, `sq_psn` of its receiver
    /// in `cm.c` of Linux).
    pub const fn starting_psn(self) -> Psn {
        Psn::new(be24::<44>(self.0))
    }

    /// How long the sender may take to answer a CM message.
    pub const fn local_response_timeout(self) -> Timeout {
        Timeout::new(byte::<47>(self.0) >> 3)
    }

    /// Retries of the receiver's queue pair, 0 to 7.
    pub const fn retry_count(self) -> u8 {
        byte::<47>(self.0) & 7
    }

    /// Partition key.
    pub const fn pkey(self) -> u16 {
        be16::<48>(self.0)
    }

    /// Path MTU; `None` for a reserved code.
    pub const fn path_mtu(self) -> Option<PathMtu> {
        match byte::<50>(self.0) >> 4 {
            1 => Some(PathMtu::B256),
            2 => Some(PathMtu::B512),
            3 => Some(PathMtu::B1024),
            4 => Some(PathMtu::B2048),
            5 => Some(PathMtu::B4096),
            _ => None,
        }
    }

    /// RNR retries of the receiver's queue pair, 0 to 7; 7 is without end.
    pub const fn rnr_retry_count(self) -> u8 {
        byte::<50>(self.0) & 7
    }

    /// How often CM messages are sent again.
    pub const fn max_cm_retries(self) -> u8 {
        byte::<51>(self.0) >> 4
    }

    /// Returns true if the sender's queue pair has a shared receive queue.
    pub const fn srq(self) -> bool {
        byte::<51>(self.0) & 8 != 0
    }

    /// The sender's address on the primary path.
    pub fn local_gid(self) -> IpAddr {
        gid::<56>(self.0)
    }

    /// The receiver's address on the primary path.
    pub fn remote_gid(self) -> IpAddr {
        gid::<72>(self.0)
    }

    /// Flow label of the primary path, 20 bits; 0 when not set.
    pub const fn flow_label(self) -> u32 {
        be32::<88>(self.0) >> 12
    }

    /// The UDP source port both directions will use, if a flow label tells.
    pub const fn src_port(self) -> Option<u16> {
        match self.flow_label() {
            0 => None,
            label => Some(flow_label_port(label)),
        }
    }

    /// Traffic class.
    pub const fn traffic_class(self) -> u8 {
        byte::<92>(self.0)
    }

    /// Hop limit.
    pub const fn hop_limit(self) -> u8 {
        byte::<93>(self.0)
    }

    /// ACK timeout of the sender's side: what the receiver's queue pair shall use; 0 is no timeout.
    pub const fn local_ack_timeout(self) -> Timeout {
        Timeout::new(byte::<REQ_LOCAL_ACK_TIMEOUT>(self.0) >> 3)
    }

    /// Private data, 92 bytes; rdma_cm's own header ([`Req::cma`]) takes the first 36.
    pub const fn private_data(self) -> &'a [u8] {
        self.0.split_at(140).1
    }

    /// rdma_cm's header, when the service is one of its port spaces.
    pub const fn cma(self) -> Option<Cma> {
        Cma::parse(self.service_id(), at::<140, { Cma::LEN }>(self.0))
    }
}

impl fmt::Debug for Req<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Req")
            .field("local_comm_id", &self.local_comm_id())
            .field("service_id", &self.service_id())
            .field("qpn", &self.qpn())
            .field("starting_psn", &self.starting_psn())
            .finish_non_exhaustive()
    }
}

/// The header rdma_cm puts in front of a REQ's private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cma {
    /// Port space: 0x0106 TCP, 0x0111 UDP, 0x0002 IPoIB, 0x013f IB.
    pub port_space: u16,
    /// Port of the service.
    pub dst_port: u16,
    /// Port of the caller.
    pub src_port: u16,
    /// Address of the caller.
    pub src: IpAddr,
    /// Address of the service.
    pub dst: IpAddr,
}

impl Cma {
    const LEN: usize = 36;

    /// `service` is 0, 0, 0, 0, port space, port, 16 bits each but the zeros: `RDMA_IB_IP_PS_MASK`
    /// of Linux.
    const fn parse(service: u64, header: [u8; Cma::LEN]) -> Option<Cma> {
        let [0, 0, 0, 0, s0, s1, d0, d1] = service.to_be_bytes() else {
            return None;
        };
        let port_space = u16::from_be_bytes([s0, s1]);
        if !matches!(port_space, 0x0106 | 0x0111 | 0x0002 | 0x013f) {
            return None;
        }
        let ([0, family, p0, p1, ..], addresses) = header.split_at(4) else {
            return None;
        };
        let (Some(src), Some(dst)) = (addresses.first_chunk::<16>(), addresses.last_chunk::<16>()) else {
            return None;
        };
        let (src, dst) = match *family >> 4 {
            4 => (v4(src), v4(dst)),
            6 => (v6(src), v6(dst)),
            _ => return None,
        };
        let (dst_port, src_port) = (u16::from_be_bytes([d0, d1]), u16::from_be_bytes([*p0, *p1]));
        Some(Cma { port_space, dst_port, src_port, src, dst })
    }
}

/// An IPv4 address in the last four of sixteen bytes.
const fn v4(bytes: &[u8; 16]) -> IpAddr {
    let [.., a, b, c, d] = *bytes;
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6(bytes: &[u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_octets(*bytes))
}

view! {
    /// Reply to a request.
    Rep, ids
}

impl<'a> Rep<'a> {
    /// The sender's queue pair.
    pub const fn qpn(self) -> Qpn {
        Qpn::new(be24::<12>(self.0))
    }

    /// Whose vendor options it agrees to, an OUI; 0: none.
    pub fn vendor_id(self) -> u32 {
        vendor_id(REP_VENDOR_ID, self.0)
    }

    /// The first PSN that the receiver will send (`rq_psn` of its sender, `sq_psn` of its receiver
    /// in `cm.c` of Linux).
    pub const fn starting_psn(self) -> Psn {
        Psn::new(be24::<20>(self.0))
    }

    /// READs and atomics the sender's responder can hold.
    pub const fn responder_resources(self) -> u8 {
        byte::<24>(self.0)
    }

    /// READs and atomics the sender will have outstanding.
    pub const fn initiator_depth(self) -> u8 {
        byte::<25>(self.0)
    }

    /// How long the sender may take to acknowledge; the receiver adds it to its ACK timeout.
    pub const fn target_ack_delay(self) -> Timeout {
        Timeout::new(byte::<REP_TARGET_ACK_DELAY>(self.0) >> 3)
    }

    /// RNR retries of the receiver's queue pair, 0 to 7; 7 is without end.
    pub const fn rnr_retry_count(self) -> u8 {
        byte::<27>(self.0) >> 5
    }

    /// Returns true if the sender's queue pair has a shared receive queue.
    pub const fn srq(self) -> bool {
        byte::<27>(self.0) & 0x10 != 0
    }

    /// Private data, 196 bytes.
    pub const fn private_data(self) -> &'a [u8] {
        self.0.split_at(36).1
    }
}

view! {
    /// Ready to use.
    Rtu, ids
}

view! {
    /// Disconnect request.
    Dreq, ids
}

impl Dreq<'_> {
    /// The receiver's queue pair.
    pub const fn remote_qpn(self) -> Qpn {
        Qpn::new(be24::<8>(self.0))
    }
}

view! {
    /// Disconnect reply.
    Drep, ids
}

/// The message that an MRA or a REJ is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// A LAP for MRA, no message in particular for REJ.
    Third,
    /// Any other.
    Other,
}

impl MessageKind {
    const fn new(bits: u8) -> MessageKind {
        match bits >> 6 {
            0 => MessageKind::Req,
            1 => MessageKind::Rep,
            2 => MessageKind::Third,
            _ => MessageKind::Other,
        }
    }
}

view! {
    /// Message receipt acknowledgement.
    Mra, ids
}

impl Mra<'_> {
    /// The message that was received.
    pub const fn message(self) -> MessageKind {
        MessageKind::new(byte::<8>(self.0))
    }

    /// How long the answer may take.
    pub const fn service_timeout(self) -> Timeout {
        Timeout::new(byte::<9>(self.0) >> 3)
    }
}

view! {
    /// Reject.
    Rej, ids
}

impl<'a> Rej<'a> {
    /// The message that is rejected.
    pub const fn message(self) -> MessageKind {
        MessageKind::new(byte::<8>(self.0))
    }

    /// Why: 28 for a program that does not want the connection, 8 for no such service.
    pub const fn reason(self) -> u16 {
        be16::<10>(self.0)
    }

    /// Private data, 148 bytes.
    pub const fn private_data(self) -> &'a [u8] {
        self.0.split_at(84).1
    }
}

view! {
    /// Load alternate path.
    Lap, ids
}

impl Lap<'_> {
    /// The receiver's queue pair.
    pub const fn remote_qpn(self) -> Qpn {
        Qpn::new(be24::<12>(self.0))
    }

    /// The sender's address on the alternate path.
    pub fn local_gid(self) -> IpAddr {
        gid::<24>(self.0)
    }

    /// The receiver's address on the alternate path.
    pub fn remote_gid(self) -> IpAddr {
        gid::<40>(self.0)
    }

    /// ACK timeout on the alternate path; 0 is no timeout.
    pub const fn local_ack_timeout(self) -> Timeout {
        Timeout::new(byte::<LAP_LOCAL_ACK_TIMEOUT>(self.0) >> 3)
    }
}

view! {
    /// Alternate path response.
    Apr, ids
}

impl Apr<'_> {
    /// 0 when the path is loaded.
    pub const fn status(self) -> u8 {
        byte::<9>(self.0)
    }
}

view! {
    /// Service ID resolution request: asks for the queue pair of a UD service.
    SidrReq
}

impl<'a> SidrReq<'a> {
    /// The sender's name for the request.
    pub const fn request_id(self) -> u32 {
        be32::<0>(self.0)
    }

    /// Partition key.
    pub const fn pkey(self) -> u16 {
        be16::<4>(self.0)
    }

    /// The service asked for.
    pub const fn service_id(self) -> u64 {
        be64::<8>(self.0)
    }

    /// Private data, 216 bytes.
    pub const fn private_data(self) -> &'a [u8] {
        self.0.split_at(16).1
    }
}

impl fmt::Debug for SidrReq<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SidrReq")
            .field("request_id", &self.request_id())
            .field("service_id", &self.service_id())
            .finish_non_exhaustive()
    }
}

view! {
    /// Service ID resolution reply.
    SidrRep
}

impl SidrRep<'_> {
    /// The name of the request it answers.
    pub const fn request_id(self) -> u32 {
        be32::<0>(self.0)
    }

    /// 0 when the service is there.
    pub const fn status(self) -> u8 {
        byte::<4>(self.0)
    }

    /// The queue pair of the service.
    pub const fn qpn(self) -> Qpn {
        Qpn::new(be24::<8>(self.0))
    }

    /// Whose vendor options it has, an OUI; 0: none.
    pub fn vendor_id(self) -> u32 {
        vendor_id(SIDR_REP_VENDOR_ID, self.0)
    }

    /// The service.
    pub const fn service_id(self) -> u64 {
        be64::<12>(self.0)
    }

    /// The queue key of the service.
    pub const fn qkey(self) -> u32 {
        be32::<20>(self.0)
    }
}

impl fmt::Debug for SidrRep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SidrRep")
            .field("request_id", &self.request_id())
            .field("status", &self.status())
            .field("qpn", &self.qpn())
            .finish_non_exhaustive()
    }
}
