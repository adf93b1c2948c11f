//! The invariant CRC.
//!
//! CRC-32 (IEEE) over eight bytes of ones in place of a local routing header, then the IP header,
//! UDP header, BTH and the rest, with every field that may change on the way taken as all ones:
//! IPv4 TOS, TTL and header checksum (IPv6 traffic class, flow label and hop limit), the UDP
//! checksum, and BTH byte 4. Appended in little-endian order.

use crc32fast::Hasher;

/// Length of the ICRC in bytes.
pub const LEN: usize = 4;

/// CRC of the eight leading bytes of ones.
const INITIAL: u32 = 0x2144_df1c;

const UDP_LEN: usize = 8;
const BTH_LEN: usize = 12;

/// Headers up to and including the BTH over IPv4 without options.
pub const V4_HEADERS: usize = 20 + UDP_LEN + BTH_LEN;
/// Headers up to and including the BTH over IPv6 without extension headers.
pub const V6_HEADERS: usize = 40 + UDP_LEN + BTH_LEN;

/// ICRC of an IPv4 packet: `headers` up to and including the BTH, `rest` from there to the padding.
pub fn v4(headers: &[u8; V4_HEADERS], rest: &[u8]) -> [u8; LEN] {
    let mut masked = *headers;
    let [_, tos, _, _, _, _, _, _, ttl, _, sum0, sum1, .., u0, u1, _, _, _, _, ecn, _, _, _, _, _, _, _] =
        &mut masked;
    for byte in [tos, ttl, sum0, sum1, u0, u1, ecn] {
        *byte = 0xff;
    }
    finish(&masked, rest)
}

/// ICRC of an IPv6 packet: `headers` up to and including the BTH, `rest` from there to the padding.
pub fn v6(headers: &[u8; V6_HEADERS], rest: &[u8]) -> [u8; LEN] {
    let mut masked = *headers;
    let [version, flow0, flow1, flow2, _, _, _, hops, .., u0, u1, _, _, _, _, ecn, _, _, _, _, _, _, _] =
        &mut masked;
    *version |= 0x0f;
    for byte in [flow0, flow1, flow2, hops, u0, u1, ecn] {
        *byte = 0xff;
    }
    finish(&masked, rest)
}

fn finish(masked: &[u8], rest: &[u8]) -> [u8; LEN] {
    let mut hasher = Hasher::new_with_initial(INITIAL);
    hasher.update(masked);
    hasher.update(rest);
    hasher.finalize().to_le_bytes()
}
