//! The common parts of the project's drawings.

use std::cell::RefCell;

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

/// A row of labels along an axis, of which none comes to lie on another one.
///
/// The drawing library names some values twice, and others that have no room beside each other.
/// Bound: as many labels as it names.
#[derive(Debug, Default)]
pub struct LabelRow(RefCell<Vec<(f64, f64)>>);

impl LabelRow {
    /// Takes the place of a label around `at` if it is free.
    pub fn takes(&self, at: f64, width: f64) -> bool {
        let (start, end) = (at - width / 2.0, at + width / 2.0);
        let mut taken = self.0.borrow_mut();
        let is_free = taken.iter().all(|(from, to)| end <= *from || *to <= start);
        if is_free {
            taken.push((start, end));
        }
        is_free
    }
}

/// Returns the place of a value on a logarithmic axis of so many pixels.
#[must_use]
pub fn logarithmic(value: f64, range: &std::ops::Range<f64>, pixels: u32) -> f64 {
    f64::from(pixels) * (value / range.start).ln() / (range.end / range.start).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_leaves_room_for_those_before() {
        let row = LabelRow::default();
        assert!(row.takes(10.0, 10.0));
        assert!(!row.takes(10.0, 10.0) && !row.takes(19.0, 10.0) && !row.takes(12.0, 1.0));
        assert!(row.takes(20.0, 10.0) && row.takes(0.0, 10.0));
        assert_eq!(logarithmic(100.0, &(10.0..1000.0), 400), 200.0);
    }
}
