//! The common parts of the project's drawings.

use std::cell::RefCell;
use std::ops::Range;

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
pub fn logarithmic(value: f64, range: &Range<f64>, pixels: u32) -> f64 {
    f64::from(pixels) * (value / range.start).ln() / (range.end / range.start).ln()
}

/// First digits of the values at an axis, from the most to the fewest in a decade.
const DIGITS: [&[f64]; 3] = [&[1.0, 2.0, 3.0, 5.0, 7.0], &[1.0, 2.0, 5.0], &[1.0, 3.0]];
/// An axis whose end is less than so many times its start has values of equal distances.
const NARROW: f64 = 3.0;

/// Returns the round values that stand at a logarithmic axis: `most` of them, or somewhat fewer.
///
/// The drawing library names powers only, of which an axis may have one or none.
#[must_use]
pub fn ticks(range: &Range<f64>, most: usize) -> Vec<f64> {
    let most = most.max(2);
    if range.end < range.start * NARROW {
        return even(range, most);
    }
    let several = DIGITS.iter().map(|digits| decades(range, digits)).find(|ticks| ticks.len() <= most);
    several.unwrap_or_else(|| {
        let powers = decades(range, &[1.0]);
        let apart = powers.len().div_ceil(most).max(1);
        powers.into_iter().step_by(apart).collect()
    })
}

/// Values with these first digits.
fn decades(range: &Range<f64>, digits: &[f64]) -> Vec<f64> {
    let exponents = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let values = exponents.flat_map(|power| digits.iter().map(move |digit| digit * f64::powi(10.0, power)));
    values.filter(|value| (range.start..=range.end).contains(value)).collect()
}

/// Multiples of a round step.
fn even(range: &Range<f64>, most: usize) -> Vec<f64> {
    let least = (range.end - range.start) / most as f64;
    let power = f64::powi(10.0, least.log10().floor() as i32);
    let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
    let step = steps.into_iter().find(|step| *step >= least).unwrap_or(least);
    let numbers = (range.start / step).ceil() as i64..=(range.end / step).floor() as i64;
    numbers.map(|number| number as f64 * step).collect()
}

/// Returns a value of [`ticks`] with the digits that it has, and no more.
#[must_use]
pub fn tick(value: f64) -> String {
    let texts = (0..9).map(|digits| format!("{value:.digits$}"));
    let is_it =
        |text: &String| text.parse().is_ok_and(|back: f64| (back - value).abs() <= value.abs() * 1e-9);
    texts.into_iter().find(is_it).unwrap_or_else(|| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_round_values_and_neither_one_alone_nor_too_many() {
        let texts = |range: Range<f64>| ticks(&range, 7).into_iter().map(tick).collect::<Vec<_>>();
        assert_eq!(texts(0.5..9.0), ["0.5", "0.7", "1", "2", "3", "5", "7"]);
        assert_eq!(texts(0.5..280.0), ["1", "3", "10", "30", "100"]);
        assert_eq!(texts(0.5..1.2), ["0.5", "0.6", "0.7", "0.8", "0.9", "1", "1.1"]);
        assert_eq!(texts(1.0..1.013), ["1", "1.002", "1.004", "1.006", "1.008", "1.01", "1.012"]);
        assert_eq!(texts(1e-4..1e6).len(), 6);
        for start in [1e-3, 0.02, 0.5, 1.0, 7.0, 3e4] {
            for growth in [1.01, 1.1, 1.5, 2.0, 3.0, 4.0, 10.0, 77.0, 1e3, 1e5, 1e9] {
                let found = texts(start..start * growth);
                assert!((3..=8).contains(&found.len()), "{start}, {growth}: {found:?}");
                assert!(growth > 1e5 || found.iter().all(|text| text.len() <= 11), "{found:?}");
            }
        }
    }

    #[test]
    fn a_label_leaves_room_for_those_before() {
        let row = LabelRow::default();
        assert!(row.takes(10.0, 10.0));
        assert!(!row.takes(10.0, 10.0) && !row.takes(19.0, 10.0) && !row.takes(12.0, 1.0));
        assert!(row.takes(20.0, 10.0) && row.takes(0.0, 10.0));
        assert_eq!(logarithmic(100.0, &(10.0..1000.0), 400), 200.0);
    }
}
