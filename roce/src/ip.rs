//! IP and UDP around a RoCEv2 packet, and its ICRC.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::icrc;
use crate::wire::BTH_LEN;

/// The UDP destination port of RoCEv2.
pub const PORT: u16 = 4791;

const V4_LEN: usize = 20;
const V6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const UDP: u8 = 17;
/// The next header of a GRH before a BTH (IBTA 1.5, 8.3); with Ethertype 0x8915, RoCE v1.
const GRH_BASE: u8 = 0x1b;

/// Where a packet comes from, where it goes, and what the network may read of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Addressing {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family.
    pub dst: IpAddr,
    /// UDP source port. The destination port is always [`PORT`].
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class: DSCP and ECN.
    pub tclass: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
}

/// One RoCEv2 packet within an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Addresses, source port, traffic class, time to live.
    pub addressing: Addressing,
    /// BTH to padding, without the ICRC.
    pub transport: &'a [u8],
}

/// A datagram whose ICRC was checked, with what was summed up for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// The datagram.
    pub datagram: Datagram<'a>,
    /// CRC-32 of its headers, and of all.
    pub sums: icrc::Sums,
}

/// A datagram of the right shape, whose ICRC was not checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unverified<'a> {
    /// The datagram.
    pub datagram: Datagram<'a>,
    /// From the IP header to the padding.
    packet: &'a [u8],
    icrc: [u8; icrc::LEN],
}

/// Why an IP packet is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Reject {
    /// Neither IPv4 nor IPv6.
    #[error("neither IPv4 nor IPv6")]
    NotIp,
    /// Shorter than its headers say.
    #[error("shorter than its headers say")]
    Truncated,
    /// Carries another protocol than UDP.
    #[error("not UDP")]
    NotUdp,
    /// UDP to another port than 4791.
    #[error("not to the RoCEv2 port")]
    NotRoce,
    /// A fragment: the ICRC covers the whole packet, so RoCEv2 never fragments.
    #[error("an IP fragment")]
    Fragment,
    /// An IPv4 header of other than 20 bytes or IPv6 extension headers, which RoCEv2 does not use.
    #[error("IP options or extension headers")]
    IpOptions,
    /// RoCE v1: an InfiniBand GRH in place of the IP header.
    #[error("RoCE v1, which is not routed")]
    RoceV1,
    /// IPv4 header checksum wrong.
    #[error("wrong IP header checksum")]
    IpChecksum,
    /// The UDP length differs from what IP says, or leaves no room for a BTH and the ICRC.
    #[error("wrong UDP length")]
    UdpLength,
    /// ICRC wrong.
    #[error("wrong ICRC")]
    BadIcrc,
}

impl Reject {
    /// Every reason; a reason's place is its [`index`](Reject::index).
    pub const ALL: [Reject; 10] = [
        Reject::NotIp,
        Reject::Truncated,
        Reject::NotUdp,
        Reject::NotRoce,
        Reject::Fragment,
        Reject::IpOptions,
        Reject::RoceV1,
        Reject::IpChecksum,
        Reject::UdpLength,
        Reject::BadIcrc,
    ];

    /// Place in [`ALL`](Reject::ALL), for an array of counters.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// A short label for a metric.
    pub const fn name(self) -> &'static str {
        match self {
            Reject::NotIp => "not_ip",
            Reject::Truncated => "truncated",
            Reject::NotUdp => "not_udp",
            Reject::NotRoce => "not_roce",
            Reject::Fragment => "fragment",
            Reject::IpOptions => "ip_options",
            Reject::RoceV1 => "roce_v1",
            Reject::IpChecksum => "ip_checksum",
            Reject::UdpLength => "udp_length",
            Reject::BadIcrc => "bad_icrc",
        }
    }

    /// Returns true if this is simply other traffic and no sign of damage.
    pub const fn is_foreign(self) -> bool {
        matches!(self, Reject::NotIp | Reject::NotUdp | Reject::NotRoce)
    }
}

impl<'a> Datagram<'a> {
    /// Reads one IP packet, from the IP header on. Bytes after the IP packet's own length (Ethernet
    /// padding) are cut. The UDP checksum is not looked at: RoCEv2 sends 0, and the ICRC says more.
    pub fn parse(l3: &'a [u8]) -> Result<Datagram<'a>, Reject> {
        Received::parse(l3).map(|received| received.datagram)
    }
}

impl<'a> Received<'a> {
    /// As [`Datagram::parse`].
    #[inline]
    pub fn parse(l3: &'a [u8]) -> Result<Received<'a>, Reject> {
        Unverified::parse(l3)?.verify()
    }
}

impl<'a> Unverified<'a> {
    /// As [`Datagram::parse`], without a look at the payload.
    #[inline]
    pub fn parse(l3: &'a [u8]) -> Result<Unverified<'a>, Reject> {
        match l3.first().ok_or(Reject::NotIp)? >> 4 {
            4 => parse_v4(l3),
            6 => parse_v6(l3),
            _ => Err(Reject::NotIp),
        }
    }

    /// Checks the ICRC.
    #[inline]
    pub fn verify(self) -> Result<Received<'a>, Reject> {
        let Self { datagram, packet, icrc } = self;
        let sums = match datagram.addressing.src {
            IpAddr::V4(_) => packet.split_first_chunk().map(|(headers, rest)| icrc::sums_v4(headers, rest)),
            IpAddr::V6(_) => packet.split_first_chunk().map(|(headers, rest)| icrc::sums_v6(headers, rest)),
        };
        let sums = sums.ok_or(Reject::UdpLength)?;
        if sums.icrc() == icrc { Ok(Received { datagram, sums }) } else { Err(Reject::BadIcrc) }
    }
}

fn parse_v4(l3: &[u8]) -> Result<Unverified<'_>, Reject> {
    let header = l3.first_chunk::<V4_LEN>().ok_or(Reject::Truncated)?;
    let [version, tos, t0, t1, _, _, f0, f1, ttl, protocol, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = *header;
    if protocol != UDP {
        return Err(Reject::NotUdp);
    }
    let header_len = usize::from(version & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([t0, t1]));
    let packet = l3.get(..total).ok_or(Reject::Truncated)?;
    let body = packet.get(header_len.max(V4_LEN)..).ok_or(Reject::Truncated)?;
    let flags = u16::from_be_bytes([f0, f1]);
    if flags & 0x1fff != 0 {
        return Err(Reject::Fragment);
    }
    let src_port = source_port_to_roce(body)?;
    if flags & 0x2000 != 0 {
        return Err(Reject::Fragment);
    }
    if header_len != V4_LEN {
        return Err(Reject::IpOptions);
    }
    if checksum(header) != 0 {
        return Err(Reject::IpChecksum);
    }
    let (packet, icrc) = split_icrc(packet, V4_LEN)?;
    let addressing = Addressing {
        src: Ipv4Addr::new(s0, s1, s2, s3).into(),
        dst: Ipv4Addr::new(d0, d1, d2, d3).into(),
        src_port,
        tclass: tos,
        ttl,
    };
    let transport = packet.get(V4_LEN + UDP_LEN..).ok_or(Reject::UdpLength)?;
    Ok(Unverified { datagram: Datagram { addressing, transport }, packet, icrc })
}

fn parse_v6(l3: &[u8]) -> Result<Unverified<'_>, Reject> {
    let (header, after) = l3.split_first_chunk::<V6_LEN>().ok_or(Reject::Truncated)?;
    let ([v0, v1, _, _, l0, l1, next_header, hop_limit], addresses) =
        header.split_first_chunk::<8>().ok_or(Reject::Truncated)?;
    let (src, dst) = addresses.split_first_chunk::<16>().ok_or(Reject::Truncated)?;
    let dst = dst.first_chunk::<16>().ok_or(Reject::Truncated)?;
    match *next_header {
        UDP => {}
        44 => return Err(Reject::Fragment),
        0 | 43 | 60 => return Err(Reject::IpOptions),
        GRH_BASE => return Err(Reject::RoceV1),
        _ => return Err(Reject::NotUdp),
    }
    let length = usize::from(u16::from_be_bytes([*l0, *l1]));
    let body = after.get(..length).ok_or(Reject::Truncated)?;
    let packet = l3.get(..V6_LEN + length).ok_or(Reject::Truncated)?;
    let src_port = source_port_to_roce(body)?;
    let (packet, icrc) = split_icrc(packet, V6_LEN)?;
    let addressing = Addressing {
        src: Ipv6Addr::from(*src).into(),
        dst: Ipv6Addr::from(*dst).into(),
        src_port,
        tclass: v0 << 4 | v1 >> 4,
        ttl: *hop_limit,
    };
    let transport = packet.get(V6_LEN + UDP_LEN..).ok_or(Reject::UdpLength)?;
    Ok(Unverified { datagram: Datagram { addressing, transport }, packet, icrc })
}

/// The UDP source port, if the destination is RoCEv2's.
fn source_port_to_roce(udp: &[u8]) -> Result<u16, Reject> {
    let [s0, s1, d0, d1] = *udp.first_chunk::<4>().ok_or(Reject::Truncated)?;
    if u16::from_be_bytes([d0, d1]) != PORT {
        return Err(Reject::NotRoce);
    }
    Ok(u16::from_be_bytes([s0, s1]))
}

/// Checks the UDP length against the packet's and splits off the ICRC.
fn split_icrc(packet: &[u8], ip_len: usize) -> Result<(&[u8], [u8; icrc::LEN]), Reject> {
    let udp = packet.get(ip_len..).ok_or(Reject::UdpLength)?;
    let [_, _, _, _, l0, l1, _, _] = *udp.first_chunk::<UDP_LEN>().ok_or(Reject::UdpLength)?;
    let length = usize::from(u16::from_be_bytes([l0, l1]));
    if length != udp.len() || length < UDP_LEN + BTH_LEN + icrc::LEN {
        return Err(Reject::UdpLength);
    }
    let (rest, icrc) = packet.split_last_chunk::<{ icrc::LEN }>().ok_or(Reject::UdpLength)?;
    Ok((rest, *icrc))
}

/// Why an IP packet could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// The buffer is shorter than [`buffer_len`].
    #[error("buffer too small")]
    TooSmall,
    /// The transport bytes are shorter than a BTH, or longer than an IP packet can carry.
    #[error("transport length out of range")]
    Length,
    /// One address is IPv4, the other IPv6.
    #[error("addresses of different families")]
    Families,
}

/// Length of the IP packet around `transport_len` bytes of BTH to padding.
pub const fn buffer_len(addressing: &Addressing, transport_len: usize) -> usize {
    let ip = match addressing.dst {
        IpAddr::V4(_) => V4_LEN,
        IpAddr::V6(_) => V6_LEN,
    };
    ip + UDP_LEN + transport_len + icrc::LEN
}

/// Where in the IP packet the transport bytes start.
pub const fn headroom(addressing: &Addressing) -> usize {
    buffer_len(addressing, 0) - icrc::LEN
}

/// Writes a whole IP packet around `transport` (BTH to padding), ICRC included, and returns its
/// length.
///
/// IPv4: don't-fragment is set and `ident` is the identification, which the ICRC covers; 0 is sent
/// as 1, since raw sockets replace a 0 and so break the ICRC. IPv6: `ident` is not used and the
/// flow label is
/// 0. The UDP checksum is 0 on both, as RoCEv2 allows.
pub fn emit(
    addressing: &Addressing,
    ident: u16,
    transport: &[u8],
    out: &mut [u8],
) -> Result<usize, EmitError> {
    let start = headroom(addressing);
    let place = out.get_mut(start..start + transport.len());
    place.ok_or(EmitError::TooSmall)?.copy_from_slice(transport);
    frame(addressing, ident, transport.len(), out)
}

/// As [`emit`], but the transport bytes stand in `out` already, from [`headroom`] on.
pub fn frame(
    addressing: &Addressing,
    ident: u16,
    transport_len: usize,
    out: &mut [u8],
) -> Result<usize, EmitError> {
    let length = buffer_len(addressing, transport_len);
    let out = out.get_mut(..length).ok_or(EmitError::TooSmall)?;
    let udp_len = u16::try_from(UDP_LEN + transport_len + icrc::LEN).map_err(|_| EmitError::Length)?;
    let total = u16::try_from(length).map_err(|_| EmitError::Length)?;
    let udp = udp_header(addressing.src_port, udp_len);
    let (packet, check) = out.split_last_chunk_mut::<{ icrc::LEN }>().ok_or(EmitError::TooSmall)?;
    *check = match (addressing.src, addressing.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = v4_header(src, dst, addressing, ident.max(1), total);
            let (headers, rest) = put(packet, &ip, &udp)?;
            icrc::v4(headers, rest)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let ip = v6_header(src, dst, addressing, udp_len);
            let (headers, rest) = put(packet, &ip, &udp)?;
            icrc::v6(headers, rest)
        }
        _ => return Err(EmitError::Families),
    };
    Ok(length)
}

/// Writes the headers to the front; all headers up to the BTH, and what follows.
fn put<'a, const HEADERS: usize>(
    packet: &'a mut [u8],
    ip: &[u8],
    udp: &[u8],
) -> Result<(&'a [u8; HEADERS], &'a [u8]), EmitError> {
    let mut room = &mut *packet;
    for part in [ip, udp] {
        room.split_off_mut(..part.len()).ok_or(EmitError::TooSmall)?.copy_from_slice(part);
    }
    packet.split_first_chunk().ok_or(EmitError::Length)
}

fn concat<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut whole = [0; N];
    let mut rest = whole.as_mut_slice();
    for part in parts {
        if let Some(to) = rest.split_off_mut(..part.len()) {
            to.copy_from_slice(part);
        }
    }
    whole
}

fn udp_header(src_port: u16, length: u16) -> [u8; UDP_LEN] {
    let [s0, s1] = src_port.to_be_bytes();
    let [d0, d1] = PORT.to_be_bytes();
    let [l0, l1] = length.to_be_bytes();
    [s0, s1, d0, d1, l0, l1, 0, 0]
}

fn v4_header(src: Ipv4Addr, dst: Ipv4Addr, addressing: &Addressing, ident: u16, total: u16) -> [u8; V4_LEN] {
    let Addressing { tclass, ttl, .. } = *addressing;
    let [t0, t1] = total.to_be_bytes();
    let [i0, i1] = ident.to_be_bytes();
    let [s0, s1, s2, s3] = src.octets();
    let [d0, d1, d2, d3] = dst.octets();
    let with_sum = |[c0, c1]: [u8; 2]| {
        [0x45, tclass, t0, t1, i0, i1, 0x40, 0, ttl, UDP, c0, c1, s0, s1, s2, s3, d0, d1, d2, d3]
    };
    with_sum(checksum(&with_sum([0, 0])).to_be_bytes())
}

fn v6_header(src: Ipv6Addr, dst: Ipv6Addr, addressing: &Addressing, payload: u16) -> [u8; V6_LEN] {
    let Addressing { tclass, ttl, .. } = *addressing;
    let [l0, l1] = payload.to_be_bytes();
    concat(&[&[0x60 | tclass >> 4, tclass << 4, 0, 0, l0, l1, UDP, ttl], &src.octets(), &dst.octets()])
}

/// The Internet checksum; 0 over a header whose own checksum is right.
fn checksum(header: &[u8; V4_LEN]) -> u16 {
    let (words, _) = header.as_chunks::<2>();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}
