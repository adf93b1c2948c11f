//! The plan as a picture of letters.

use std::io::{self, Write};

use config::Style;
use reliability::model::Candidate;
use reliability::model::plan::Cell as Times;

use super::{Subject, curve_sizes};

const ROWS: usize = 12;
const PER_OCTAVE: u32 = 2;
/// Beyond this many times the time without loss, curves leave the picture.
const MOST: f64 = 64.0;

/// Slowdown over message size, both logarithmic: a letter per scheme, `*` where several meet.
pub(super) fn write(out: &mut dyn Write, subject: &Subject, style: Style) -> io::Result<()> {
    let curves = curves(subject);
    let highest = curves.iter().flatten().copied().fold(1.5, f64::max).min(MOST);
    let mut grid = vec![vec![Cell::Empty; curves.first().map_or(0, Vec::len)]; ROWS];
    for (candidate, curve) in curves.iter().enumerate() {
        for (column, slowdown) in curve.iter().enumerate() {
            let row = (slowdown.ln() / highest.ln() * (ROWS - 1) as f64).round() as usize;
            if let Some(cell) = grid.get_mut(row).and_then(|row| row.get_mut(column)) {
                *cell = cell.and(candidate);
            }
        }
    }
    let letters = letters(&subject.candidates);
    for (index, row) in grid.iter().enumerate().rev() {
        let label = if index % 3 == 0 || index == ROWS - 1 {
            format!("{:.1}x", highest.powf(index as f64 / (ROWS - 1) as f64))
        } else {
            String::new()
        };
        write!(out, "{label:>7} |")?;
        for cell in row {
            write!(out, "{}", cell.text(&letters, style))?;
        }
        writeln!(out)?;
    }
    axis(out)?;
    let legend: Vec<String> = subject
        .candidates
        .iter()
        .enumerate()
        .map(|(index, candidate)| format!("{} {candidate}", Cell::One(index).text(&letters, style)))
        .collect();
    writeln!(out, "         {}, * several", legend.join(", "))
}

/// How many times longer than without loss or parity, by candidate and size.
pub(super) fn curves_at(subject: &Subject, sizes: &[u64]) -> Vec<Vec<f64>> {
    let plan = subject.plan(sizes);
    let slowdown = |index: usize| {
        let cells = plan.rows.iter().filter_map(|row| Some((row.size, row.cells.get(index)?)));
        let ratio = |(size, cell): (u64, &Times)| {
            cell.percentile.as_secs_f64() / subject.lossless(size).as_secs_f64().max(1e-12)
        };
        cells.map(ratio).map(|ratio| ratio.max(1.0)).collect()
    };
    (0..plan.candidates.len()).map(slowdown).collect()
}

fn curves(subject: &Subject) -> Vec<Vec<f64>> {
    curves_at(subject, &curve_sizes(PER_OCTAVE))
}

/// Who is at a place.
#[derive(Clone, Copy, PartialEq)]
enum Cell {
    Empty,
    One(usize),
    Several,
}

impl Cell {
    fn and(self, candidate: usize) -> Self {
        match self {
            Self::Empty => Self::One(candidate),
            Self::One(_) | Self::Several => Self::Several,
        }
    }

    fn text(self, letters: &[char], style: Style) -> String {
        match self {
            Self::Empty => " ".to_owned(),
            Self::Several => "*".to_owned(),
            Self::One(index) => {
                let letter = letters.get(index).copied().unwrap_or('?');
                match style {
                    Style::Plain => letter.to_string(),
                    // Red, green, yellow, blue, magenta, cyan.
                    Style::Colour => format!("\x1b[3{}m{letter}\x1b[0m", 1 + index % 6),
                }
            }
        }
    }
}

/// The first letters of the schemes' names; a second one of the same name gets the capital, further
/// ones digits.
fn letters(candidates: &[Candidate]) -> Vec<char> {
    let mut letters: Vec<char> = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        let small = candidate.name().chars().next().unwrap_or('?');
        let digit = char::from_digit(index as u32 % 10, 10).unwrap_or('?');
        let free =
            [small, small.to_ascii_uppercase(), digit].into_iter().find(|letter| !letters.contains(letter));
        letters.push(free.unwrap_or('?'));
    }
    letters
}

fn axis(out: &mut dyn Write) -> io::Result<()> {
    let columns = curve_sizes(PER_OCTAVE).len();
    writeln!(out, "        +{}", "-".repeat(columns))?;
    let mut labels = String::new();
    for (column, name) in [(0, "1 KiB"), (20, "1 MiB"), (40, "1 GiB")] {
        labels = format!("{labels:<column$}{name}");
    }
    writeln!(out, "         {labels}")
}
