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

/// CRC-32 of a packet, its variant fields taken as ones: of its headers up to and including the
/// BTH, and of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    headers: u32,
    whole: u32,
}

impl Sums {
    fn of(masked: &[u8], rest: &[u8]) -> Self {
        let mut hasher = Hasher::new_with_initial(INITIAL);
        hasher.update(masked);
        let headers = hasher.clone().finalize();
        hasher.update(rest);
        Self { headers, whole: hasher.finalize() }
    }

    /// The packet's ICRC.
    pub fn icrc(&self) -> [u8; LEN] {
        self.whole.to_le_bytes()
    }

    /// CRC-32 of the packet's last `len` bytes, which follow `between` behind the BTH. Nothing of
    /// them is read: a CRC of two parts is the sum of what each contributes. Less than 64 KiB.
    pub fn of_last(&self, between: &[u8], len: usize) -> u32 {
        // Inside a message nothing lies between.
        if between.is_empty() {
            return self.whole ^ shift(self.headers, len);
        }
        let mut hasher = Hasher::new_with_initial(self.headers);
        hasher.update(between);
        self.whole ^ shift(hasher.finalize(), len)
    }
}

const POLYNOMIAL: u32 = 0xedb8_8320;

/// The product of two polynomials modulo that of the CRC, the highest powers in the lowest bits.
const fn times(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, 32);
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}

/// By n, by place and by value: what a nibble contributes to a CRC after 2^n bytes more.
static SHIFTS: [[[u32; 16]; 8]; 16] = shifts();

#[expect(clippy::indexing_slicing, reason = "run by the compiler")]
const fn shifts() -> [[[u32; 16]; 8]; 16] {
    let mut shifts = [[[0; 16]; 8]; 16];
    // x^8.
    let (mut factor, mut power) = (0x0080_0000, 0);
    while power < 16 {
        let mut at = 0;
        while at < 128 {
            let (place, value) = (at / 16, at % 16);
            shifts[power][place][value] = times(factor, (value as u32) << (4 * place));
            at += 1;
        }
        factor = times(factor, factor);
        power += 1;
    }
    shifts
}

/// The contribution of bytes with this CRC to that of all, if so many bytes follow them.
fn shift(crc: u32, len: usize) -> u32 {
    let (mut crc, mut left) = (crc, len);
    // A payload is a power of two mostly.
    while let Some(places) = SHIFTS.get(left.trailing_zeros() as usize) {
        let nibbles = (0..).step_by(4).map(|bits| (crc >> bits & 0xf) as usize);
        crc =
            places.iter().zip(nibbles).fold(0, |sum, (values, value)| sum ^ values.get(value).unwrap_or(&0));
        left &= left - 1;
    }
    crc
}

/// ICRC of an IPv4 packet: `headers` up to and including the BTH, `rest` from there to the padding.
pub fn v4(headers: &[u8; V4_HEADERS], rest: &[u8]) -> [u8; LEN] {
    sums_v4(headers, rest).icrc()
}

/// As [`v4`], with all that is summed up for it.
pub fn sums_v4(headers: &[u8; V4_HEADERS], rest: &[u8]) -> Sums {
    let mut masked = *headers;
    let [_, tos, _, _, _, _, _, _, ttl, _, sum0, sum1, .., u0, u1, _, _, _, _, ecn, _, _, _, _, _, _, _] =
        &mut masked;
    for byte in [tos, ttl, sum0, sum1, u0, u1, ecn] {
        *byte = 0xff;
    }
    Sums::of(&masked, rest)
}

/// ICRC of an IPv6 packet: `headers` up to and including the BTH, `rest` from there to the padding.
pub fn v6(headers: &[u8; V6_HEADERS], rest: &[u8]) -> [u8; LEN] {
    sums_v6(headers, rest).icrc()
}

/// As [`v6`], with all that is summed up for it.
pub fn sums_v6(headers: &[u8; V6_HEADERS], rest: &[u8]) -> Sums {
    let mut masked = *headers;
    let [version, flow0, flow1, flow2, _, _, _, hops, .., u0, u1, _, _, _, _, ecn, _, _, _, _, _, _, _] =
        &mut masked;
    *version |= 0x0f;
    for byte in [flow0, flow1, flow2, hops, u0, u1, ecn] {
        *byte = 0xff;
    }
    Sums::of(&masked, rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Found without a look at the last bytes, it is the CRC-32 of them.
        #[test]
        fn the_sum_of_the_last_bytes_follows_from_that_of_all(
            headers in any::<[u8; V4_HEADERS]>(),
            between in prop::collection::vec(any::<u8>(), 0..40),
            last in prop::collection::vec(any::<u8>(), 0..9000),
        ) {
            let rest = [between.as_slice(), &last].concat();
            prop_assert_eq!(sums_v4(&headers, &rest).of_last(&between, last.len()), crc32fast::hash(&last));
            let mut longer = [0x5a; V6_HEADERS];
            longer[..V4_HEADERS].copy_from_slice(&headers);
            prop_assert_eq!(sums_v6(&longer, &rest).of_last(&between, last.len()), crc32fast::hash(&last));
        }
    }

    #[test]
    fn the_longest_and_the_shortest_are_found_alike() {
        for len in [0, 1, 255, 256, 4096, 65_535] {
            let last = vec![0xa5; len];
            assert_eq!(sums_v4(&[7; V4_HEADERS], &last).of_last(&[], len), crc32fast::hash(&last), "{len}");
        }
    }
}
