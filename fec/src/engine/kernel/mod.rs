//! One file per instruction set. A kernel's value exists only where its instructions do.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod gfni_avx2;
#[cfg(target_arch = "x86_64")]
mod gfni_avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod swar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tables;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vector;

pub(crate) use portable::Portable;
pub(crate) use swar::{LANES, Products, transposed};

use crate::Engine;

/// All kernels compiled in, fastest first.
pub(crate) const NAMES: &[&str] = &[
    #[cfg(target_arch = "x86_64")]
    gfni_avx512::GfniAvx512::NAME,
    #[cfg(target_arch = "x86_64")]
    gfni_avx2::GfniAvx2::NAME,
    #[cfg(target_arch = "x86_64")]
    avx2::Avx2::NAME,
    #[cfg(target_arch = "aarch64")]
    neon::Neon::NAME,
    swar::Swar::NAME,
    Portable::NAME,
];

/// Those of them that this processor has.
pub(crate) fn available() -> impl Iterator<Item = &'static dyn Engine> {
    let kernels: [Option<&'static dyn Engine>; NAMES.len()] = [
        #[cfg(target_arch = "x86_64")]
        gfni_avx512::GfniAvx512::get(),
        #[cfg(target_arch = "x86_64")]
        gfni_avx2::GfniAvx2::get(),
        #[cfg(target_arch = "x86_64")]
        avx2::Avx2::get(),
        #[cfg(target_arch = "aarch64")]
        neon::Neon::get(),
        Some(&swar::Swar),
        Some(&Portable),
    ];
    kernels.into_iter().flatten()
}
