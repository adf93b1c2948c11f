//! The results as a drawing.

use config::ByteSize;
use plotters::prelude::*;

use super::SimulateError;
use super::row::Row;
use crate::drawing::PALETTE;

const SIZE: (u32, u32) = (1000, 600);
/// Width of what explains the lines.
const LEGEND: u32 = 180;

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
    let lowest = rows.iter().map(|row| row.ideal).fold(f64::MAX, f64::min) * 1e3;
    let highest = rows.iter().map(|row| tail(row).max(row.mean) * 1e3).fold(lowest, f64::max);
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (head, area) = area.split_vertically(64);
    head.draw(&Text::new("Completion time by message size", (24, 12), ("sans-serif", 20)))?;
    head.draw(&Text::new(title.to_owned(), (24, 40), ("sans-serif", 14)))?;
    let (area, legend) = area.split_horizontally(SIZE.0 - LEGEND);
    let mut chart =
        ChartBuilder::on(&area).margin(16).x_label_area_size(44).y_label_area_size(56).build_cartesian_2d(
            (smallest / 1.2..largest * 1.2).log_scale().base(2.0),
            (lowest / 1.3..highest * 1.3).log_scale().base(2.0),
        )?;
    chart
        .configure_mesh()
        .x_desc("message size")
        .y_desc("completion time [ms]")
        .x_label_formatter(&|size| ByteSize::from_bytes(size.round() as u64).to_string())
        .y_label_formatter(&|time| time.to_string())
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
