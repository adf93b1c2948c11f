//! The common parts of the drawings of `plan` and `simulate`.

use plotters::style::RGBColor;

/// Distinguishable for most eyes: Okabe and Ito's palette.
pub(crate) const PALETTE: [RGBColor; 6] = [
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
];
