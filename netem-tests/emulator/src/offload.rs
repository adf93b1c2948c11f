//! Undoing offloads in software, so that a link treats every packet by itself.
//!
//! A frame that one virtual interface hands to another was never on a wire: its checksum may not be
//! computed yet, and it may stand for a whole train of packets (TSO, UDP GSO). The kernel says so
//! in a header of its own in front of the frame.
//!
//! Where nothing on the way changes a packet its checksum may stay missing: the receiver takes it
//! as from hardware that has verified it.

use std::ops::Range;

/// `struct virtio_net_hdr` as `PACKET_VNET_HDR` puts it in front of frames (native byte order).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Offload {
    /// The checksum from `csum_start` on is missing; what stands at `csum_offset` behind it is the
    /// pseudo-header's sum.
    needs_csum: bool,
    gso: Gso,
    gso_size: usize,
    csum_start: usize,
    csum_offset: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Gso {
    #[default]
    None,
    Tcp,
    Udp,
    Other,
}

/// A packet's checksum from `start` on is missing; its place, `offset` behind that, holds the
/// pseudo-header's sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Missing {
    start: u16,
    offset: u16,
}

impl Missing {
    /// None is missing from a frame's very beginning on.
    fn new(start: usize, offset: usize) -> Option<Self> {
        (start > 0).then_some(())?;
        Some(Self { start: start.try_into().ok()?, offset: offset.try_into().ok()? })
    }

    /// Adds what the sender left out.
    fn complete(self, packet: &mut [u8]) -> Option<()> {
        let [start, offset] = [self.start, self.offset].map(usize::from);
        let checksum = !fold(sum(packet.get(start..)?));
        // 0 would say "no checksum" to UDP; to TCP both mean the same.
        put(packet, start + offset, if checksum == 0 { 0xffff } else { checksum })
    }

    /// In one number; 0: none is missing.
    pub(super) fn tag(missing: Option<Self>) -> u32 {
        missing.map_or(0, |Self { start, offset }| u32::from(start) << 16 | u32::from(offset))
    }

    /// Returns the header that the kernel wants in front of a packet with this number.
    pub(super) fn header(tag: u32) -> [u8; Offload::LEN] {
        let [s0, s1, o0, o1] = tag.to_be_bytes();
        let [[s0, s1], [o0, o1]] = [[s0, s1], [o0, o1]].map(|field| u16::from_be_bytes(field).to_ne_bytes());
        [u8::from(tag != 0), 0, 0, 0, 0, 0, s0, s1, o0, o1]
    }
}

/// The handling of checksums that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checksums {
    Complete,
    /// They stay missing, and what is cut has none.
    Leave,
}

/// A batch that cannot be cut: not TCP or UDP directly over IP.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Uncut;

impl Offload {
    /// Length of the header.
    pub(super) const LEN: usize = 10;

    pub(super) fn parse(header: &[u8; Offload::LEN]) -> Self {
        let [flags, gso, _, _, s0, s1, c0, c1, o0, o1] = *header;
        let gso = match gso & 0x7f {
            0 => Gso::None,
            1 | 4 => Gso::Tcp,
            5 => Gso::Udp,
            _ => Gso::Other,
        };
        Self {
            needs_csum: flags & 1 != 0,
            gso,
            gso_size: usize::from(u16::from_ne_bytes([s0, s1])),
            csum_start: usize::from(u16::from_ne_bytes([c0, c1])),
            csum_offset: usize::from(u16::from_ne_bytes([o0, o1])),
        }
    }

    /// Hands out the packets that `frame` stands for, each as it would be on a wire but for
    /// checksums that are left missing. `scratch` is for building them in.
    pub(super) fn undo(
        &self,
        frame: &mut [u8],
        checksums: Checksums,
        scratch: &mut Vec<u8>,
        each: &mut dyn FnMut(&[u8], Option<Missing>),
    ) -> Result<(), Uncut> {
        if self.gso == Gso::None {
            let missing =
                self.needs_csum.then(|| Missing::new(self.csum_start, self.csum_offset).ok_or(Uncut));
            return hand_out(frame, missing.transpose()?, checksums, each).ok_or(Uncut);
        }
        let layout = Layout::of(frame).filter(|layout| layout.gso == self.gso).ok_or(Uncut)?;
        cut(frame, &layout, self.gso_size, checksums, scratch, each).ok_or(Uncut)
    }
}

/// Where the headers of a TCP or UDP packet stand.
struct Layout {
    gso: Gso,
    ip: usize,
    v6: bool,
    transport: usize,
    payload: usize,
}

const TCP: u8 = 6;
const UDP: u8 = 17;

impl Layout {
    fn of(frame: &[u8]) -> Option<Layout> {
        let mut ip = 14;
        while matches!(frame.get(ip - 2..ip)?, [0x81, 0x00] | [0x88, 0xa8]) {
            ip += 4;
        }
        let (v6, protocol, transport) = match *frame.get(ip)? >> 4 {
            4 => (false, *frame.get(ip + 9)?, ip + usize::from(*frame.get(ip)? & 15) * 4),
            6 => (true, *frame.get(ip + 6)?, ip + 40),
            _ => return None,
        };
        let (gso, header) = match protocol {
            TCP => (Gso::Tcp, usize::from(*frame.get(transport + 12)? >> 4) * 4),
            UDP => (Gso::Udp, 8),
            _ => return None,
        };
        let payload = transport + header;
        (payload <= frame.len()).then_some(Layout { gso, ip, v6, transport, payload })
    }
}

/// Cuts a batch into packets of `size` payload bytes.
fn cut(
    frame: &[u8],
    layout: &Layout,
    size: usize,
    checksums: Checksums,
    scratch: &mut Vec<u8>,
    each: &mut dyn FnMut(&[u8], Option<Missing>),
) -> Option<()> {
    let (headers, payload) = frame.split_at_checked(layout.payload)?;
    let count = payload.len().div_ceil(size.max(1));
    for (index, part) in payload.chunks(size.max(1)).enumerate() {
        scratch.clear();
        scratch.extend_from_slice(headers);
        scratch.extend_from_slice(part);
        fix_ip(scratch, layout, index)?;
        match layout.gso {
            Gso::Tcp => fix_tcp(scratch, layout, index, size, index + 1 == count)?,
            _ => fix_udp(scratch, layout)?,
        }
        let missing = begin_checksum(scratch, layout)?;
        hand_out(scratch, Some(missing), checksums, each)?;
    }
    Some(())
}

fn fix_ip(packet: &mut [u8], layout: &Layout, index: usize) -> Option<()> {
    let ip = layout.ip;
    let length = packet.len() - ip;
    if layout.v6 {
        return put(packet, ip + 4, u16::try_from(length - 40).ok()?);
    }
    put(packet, ip + 2, u16::try_from(length).ok()?)?;
    let ident = get(packet, ip + 4)?.wrapping_add(u16::try_from(index).ok()?);
    put(packet, ip + 4, ident)?;
    put(packet, ip + 10, 0)?;
    let checksum = fold(sum(packet.get(ip..layout.transport)?));
    put(packet, ip + 10, !checksum)
}

/// Each segment has its own sequence number; FIN and PSH belong to the last, CWR to the first (RFC
/// 3168, as the kernel does).
fn fix_tcp(packet: &mut [u8], layout: &Layout, index: usize, size: usize, last: bool) -> Option<()> {
    let at = layout.transport + 4;
    let sequence = packet.get_mut(at..at + 4)?.first_chunk_mut::<4>()?;
    let offset = u32::try_from(index.checked_mul(size)?).ok()?;
    *sequence = u32::from_be_bytes(*sequence).wrapping_add(offset).to_be_bytes();
    let flags = packet.get_mut(layout.transport + 13)?;
    if !last {
        *flags &= !0x09;
    }
    if index > 0 {
        *flags &= !0x80;
    }
    Some(())
}

fn fix_udp(packet: &mut [u8], layout: &Layout) -> Option<()> {
    let length = u16::try_from(packet.len() - layout.transport).ok()?;
    put(packet, layout.transport + 4, length)
}

/// Puts the pseudo-header's sum where the checksum belongs.
fn begin_checksum(packet: &mut [u8], layout: &Layout) -> Option<Missing> {
    let (protocol, offset) = if layout.gso == Gso::Tcp { (TCP, 16) } else { (UDP, 6) };
    let addresses: Range<usize> =
        if layout.v6 { layout.ip + 8..layout.ip + 40 } else { layout.ip + 12..layout.ip + 20 };
    let length = u64::try_from(packet.len() - layout.transport).ok()?;
    let pseudo = sum(packet.get(addresses)?) + u64::from(protocol) + length;
    put(packet, layout.transport + offset, fold(pseudo))?;
    Missing::new(layout.transport, offset)
}

fn hand_out(
    packet: &mut [u8],
    mut missing: Option<Missing>,
    checksums: Checksums,
    each: &mut dyn FnMut(&[u8], Option<Missing>),
) -> Option<()> {
    if checksums == Checksums::Complete
        && let Some(missing) = missing.take()
    {
        missing.complete(packet)?;
    }
    each(packet, missing);
    Some(())
}

fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |byte| u64::from(*byte) << 8);
    words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>() + last
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(u16::MAX)
}

fn get(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk::<2>()?))
}

fn put(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut::<2>()? = value.to_be_bytes();
    Some(())
}
