//! Scalar arithmetic in GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11D), the field of `reed-solomon-erasure`.
//! Addition is XOR.

use reed_solomon_erasure::galois_8;

pub(crate) fn mul(a: u8, b: u8) -> u8 {
    galois_8::mul(a, b)
}

/// The inverse of `a`; 0 for 0, which has none.
pub(crate) fn inv(a: u8) -> u8 {
    if a == 0 { 0 } else { galois_8::div(1, a) }
}

pub(crate) fn product(factors: impl Iterator<Item = u8>) -> u8 {
    factors.fold(1, mul)
}
