//! The results as a drawing.

use config::ByteSize;
use plotters::prelude::*;

use super::SimulateError;
use super::row::Row;
use crate::drawing::{LabelRow, PALETTE, logarithmic, tick, ticks};

const SIZE: (u32, u32) = (1000, 600);
/// Width of what explains the lines.
const LEGEND: u32 = 180;
/// Height of a label, and width of one of its letters.
const HEIGHT: f64 = 13.0;
const LETTER: f64 = 8.0;
/// Values at the vertical axis, at most.
const VALUES: usize = 9;

/// Completion time over message size, both logarithmic: for each scheme the mean as a line with
/// dots and the highest percentile known as a thin one, and the time without loss in grey.
pub(super) fn draw(rows: &[Row], title: &str) -> Result<String, SimulateError> {
    let mut text = String::new();
    picture(rows, title, &mut text)
        .map_err(|error| SimulateError::Output(std::io::Error::other(error.to_string())))?;
    Ok(text)
}

fn picture(rows: &[Row], title: &str, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let sizes = rows.iter().map(|row| row.size as f64);
    let (smallest, largest) = (sizes.clone().fold(f64::MAX, f64::min), sizes.fold(0.0, f64::max));
    let (lowest, highest) = times(rows);
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (head, area) = area.split_vertically(64);
    head.draw(&Text::new("Completion time by message size", (24, 12), ("sans-serif", 20)))?;
    head.draw(&Text::new(title.to_owned(), (24, 40), ("sans-serif", 14)))?;
    let (area, legend) = area.split_horizontally(SIZE.0 - LEGEND);
    let (across, up) = (smallest / 1.2..largest * 1.2, lowest * 1e3 / 1.3..highest * 1e3 * 1.3);
    let mut chart =
        ChartBuilder::on(&area).margin(16).x_label_area_size(44).y_label_area_size(72).build_cartesian_2d(
            across.clone().log_scale().base(2.0),
            up.clone().log_scale().with_key_points(ticks(&up, VALUES)),
        )?;
    let (width, height) = chart.plotting_area().dim_in_pixel();
    let (row, column) = (LabelRow::default(), LabelRow::default());
    chart
        .configure_mesh()
        .x_desc("message size")
        .y_desc("completion time [ms]")
        .x_label_formatter(&|size| {
            let text = ByteSize::from_bytes(size.round() as u64).to_string();
            let is_free = row.takes(logarithmic(*size, &across, width), text.len() as f64 * LETTER);
            if is_free { text } else { String::new() }
        })
        .y_label_formatter(&|time| match column.takes(logarithmic(*time, &up, height), HEIGHT) {
            true => tick(*time),
            false => String::new(),
        })
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    let mut lines = Vec::new();
    let grey = BLACK.mix(0.4).stroke_width(1);
    chart.draw_series(LineSeries::new(points(rows.iter(), |row| row.ideal), grey))?;
    lines.push(("no loss".to_owned(), grey));
    for (scheme, colour) in schemes(rows).into_iter().zip(PALETTE.iter().cycle()) {
        let own = rows.iter().filter(|row| row.scheme == scheme);
        let (mean, thick, thin) =
            (points(own.clone(), |row| row.mean), colour.stroke_width(2), colour.mix(0.6));
        chart.draw_series(mean.iter().map(|at| Circle::new(*at, 3, colour.filled())))?;
        chart.draw_series(LineSeries::new(mean, thick))?;
        chart.draw_series(LineSeries::new(points(own, tail), thin.stroke_width(1)))?;
        lines.push((format!("{scheme}, mean"), thick));
        lines.push((format!("{scheme}, {}", which(rows)), thin.stroke_width(1)));
    }
    for (line, (name, style)) in (0..).zip(lines) {
        let y = 24 + 22 * line;
        legend.draw(&PathElement::new([(0, y), (24, y)], style))?;
        legend.draw(&Text::new(name, (32, y - 7), ("sans-serif", 14)))?;
    }
    area.present()?;
    Ok(())
}

/// The schemes, each once, in the order given.
fn schemes(rows: &[Row]) -> Vec<&str> {
    let mut schemes: Vec<&str> = Vec::new();
    for row in rows {
        if !schemes.contains(&row.scheme.as_str()) {
            schemes.push(&row.scheme);
        }
    }
    schemes
}

/// The shortest and the longest time that is drawn. What is given up may take less than a whole
/// message without loss.
fn times(rows: &[Row]) -> (f64, f64) {
    let times = rows.iter().flat_map(|row| [row.ideal, row.mean, tail(row)]);
    (times.clone().fold(f64::MAX, f64::min), times.fold(0.0, f64::max))
}

/// The highest percentile known.
fn tail(row: &Row) -> f64 {
    row.p999.or(row.p99).unwrap_or(row.mean)
}

/// Which one that is.
fn which(rows: &[Row]) -> &'static str {
    match rows.first() {
        Some(Row { p999: Some(_), .. }) => "p99.9",
        Some(Row { p99: Some(_), .. }) => "p99",
        _ => "mean",
    }
}

/// Size in bytes and time in milliseconds, by size, each once.
fn points<'a>(rows: impl Iterator<Item = &'a Row>, value: impl Fn(&Row) -> f64) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = rows.map(|row| (row.size as f64, value(row) * 1e3)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.dedup_by(|a, b| a.0 == b.0);
    points
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use super::*;

    fn row(size: u64, scheme: &str, mean: f64) -> Row {
        Row {
            size,
            scheme: scheme.to_owned(),
            until: "acknowledged",
            sites: None,
            rate_bit_s: 1,
            rtt: 0.01,
            lost_packets: 0.0,
            count: 1,
            mean,
            standard_error: 0.0,
            p50: mean,
            p99: Some(mean * 1.5),
            p999: None,
            delivered_mean: mean,
            ideal: mean / 2.0,
            slowdown: 2.0,
            wire_bytes_per_byte: 1.0,
            repaired: 0.0,
            lost: 0.0,
            packets: 1,
            seed: 1,
        }
    }

    #[test]
    fn all_that_is_drawn_is_within_the_axes() {
        let quick = Row { ideal: 0.03, ..row(64, "none", 0.01) };
        assert_eq!(times(&[row(64, "sr", 0.04), quick]), (0.01, 0.04 * 1.5));
    }

    /// Axes of one size and of eight decades, and times that are much alike or not at all.
    #[test]
    fn no_label_lies_on_another_one() {
        for largest in [10, 11, 12, 13, 15, 18, 22, 26, 34] {
            for growth in [1.0, 1.01, 1.2, 2.0] {
                let sizes = (10..largest).chain(once(largest));
                let rows = sizes.flat_map(|power| {
                    let time = 1e-4 * f64::powi(growth, power);
                    ["sr", "mds:32:8", "hybrid:32:8:4"].map(|scheme| row((1 << power) - 1, scheme, time))
                });
                let drawing = draw(&rows.collect::<Vec<_>>(), "1 Gbit/s").unwrap();
                let found = testbed::drawing::collisions(&drawing);
                assert_eq!(found, [""; 0], "largest 2^{largest}, times {growth} each");
                assert!(testbed::drawing::labels(&drawing).len() >= 10);
            }
        }
    }
}
