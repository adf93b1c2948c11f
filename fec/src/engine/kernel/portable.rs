//! The reference: the slice functions of `reed-solomon-erasure`, on any processor.

use reed_solomon_erasure::galois_8;

use crate::Engine;

#[derive(Debug)]
pub(crate) struct Portable;

impl Portable {
    pub(crate) const NAME: &str = "portable";
}

impl Engine for Portable {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn mul_add(&self, coef: u8, src: &[u8], dst: &mut [u8]) {
        assert_eq!(src.len(), dst.len(), "slices of different length");
        match coef {
            0 => {}
            1 => dst.iter_mut().zip(src).for_each(|(d, s)| *d ^= s),
            _ => galois_8::mul_slice_xor(coef, src, dst),
        }
    }
}
