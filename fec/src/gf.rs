//! Scalar arithmetic in GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11D), the field of
//! `reed-solomon-erasure`. Addition is XOR; products of many factors are sums of logarithms, to the
//! base 2, modulo [`ORDER`].

use reed_solomon_erasure::galois_8;

/// Elements that have a logarithm: all but 0.
pub(crate) const ORDER: usize = 255;

/// The product. Products with the same `a` share cache lines.
pub(crate) fn mul(a: u8, b: u8) -> u8 {
    galois_8::mul(a, b)
}

/// The logarithm of `a`, below [`ORDER`]; 0 for 0, which has none, so that a product passes over
/// it.
#[expect(clippy::indexing_slicing, reason = "a u8 indexes 256 entries; tables are filled by the compiler")]
#[inline]
pub(crate) fn log(a: u8) -> usize {
    static LOGS: [u8; 256] = {
        let mut logs = [0; 256];
        let mut power = 0;
        while power < ORDER {
            logs[POWERS[power] as usize] = power as u8;
            power += 1;
        }
        logs
    };
    usize::from(LOGS[usize::from(a)])
}

/// 2 to the power of `log`, a sum of at most three numbers below [`ORDER`].
#[expect(clippy::indexing_slicing, reason = "the mask keeps it below the table's length")]
#[inline]
pub(crate) fn exp(log: usize) -> u8 {
    POWERS[log & (POWERS.len() - 1)]
}

#[expect(clippy::indexing_slicing, reason = "filled by the compiler")]
static POWERS: [u8; 1024] = {
    let mut powers = [0; 1024];
    let (mut log, mut power) = (0, 1_u8);
    while log < powers.len() {
        powers[log] = power;
        power = power << 1 ^ if power >> 7 == 1 { 0x1D } else { 0 };
        log += 1;
    }
    powers
};
