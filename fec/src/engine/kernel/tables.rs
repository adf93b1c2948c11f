//! Tables that kernels need for each coefficient, computed at compile time.

/// Multiplication by `coef` as the 8x8 bit matrix of GF2P8AFFINEQB, which knows no field: GFNI's
/// own multiplication is modulo 0x11B, not 0x11D. Output bit `i` is the parity of the input masked
/// with byte `7 - i`.
#[cfg(target_arch = "x86_64")]
#[expect(clippy::indexing_slicing, reason = "a u8 indexes 256 entries; tables are filled by the compiler")]
#[inline]
pub(super) fn matrix(coef: u8) -> i64 {
    static MATRICES: [i64; 256] = {
        let mut all = [0; 256];
        let mut coef = 0;
        while coef < 256 {
            all[coef] = multiplication_matrix(coef as u8);
            coef += 1;
        }
        all
    };
    MATRICES[usize::from(coef)]
}

/// The multiples of `coef` by the sixteen low nibbles, and by the sixteen high ones.
#[expect(clippy::indexing_slicing, reason = "a u8 indexes 256 entries; tables are filled by the compiler")]
#[inline]
pub(super) fn nibbles(coef: u8) -> &'static [[u8; 16]; 2] {
    static NIBBLES: [[[u8; 16]; 2]; 256] = {
        let mut all = [[[0; 16]; 2]; 256];
        let mut coef = 0;
        while coef < 256 {
            let mut nibble = 0;
            while nibble < 16 {
                all[coef][0][nibble] = mul(coef as u8, nibble as u8);
                all[coef][1][nibble] = mul(coef as u8, (nibble as u8) << 4);
                nibble += 1;
            }
            coef += 1;
        }
        all
    };
    &NIBBLES[usize::from(coef)]
}

#[cfg(target_arch = "x86_64")]
const fn multiplication_matrix(coef: u8) -> i64 {
    let mut matrix = 0_u64;
    let mut column = 0;
    while column < 8 {
        let product = mul(coef, 1 << column);
        let mut row = 0;
        while row < 8 {
            let bit = (product >> row & 1) as u64;
            matrix |= bit << (8 * (7 - row) + column);
            row += 1;
        }
        column += 1;
    }
    matrix.cast_signed()
}

/// `a * b` modulo 0x11D.
const fn mul(a: u8, b: u8) -> u8 {
    let (mut product, mut power, mut rest) = (0, a, b);
    while rest != 0 {
        if rest & 1 == 1 {
            product ^= power;
        }
        power = power << 1 ^ if power >> 7 == 1 { 0x1D } else { 0 };
        rest >>= 1;
    }
    product
}
