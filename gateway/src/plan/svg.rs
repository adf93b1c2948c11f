//! The plan as a drawing.

use std::ops::RangeInclusive;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use reliability::human;

use super::plot::curves_at;
use super::{Crossover, Subject, curve_sizes, headline};
use crate::drawing::{LabelRow, PALETTE, logarithmic, tick, ticks};

const SIZE: (u32, u32) = (1200, 560);
const HEAD: u32 = 64;
/// Width of what explains lines and numbers.
const LEGEND: u32 = 240;
const MARGIN: u32 = 16;
/// Sizes of the axes' labels.
const LABELS: (u32, u32) = (44, 56);
const PER_OCTAVE: u32 = 8;
/// Sizes from which on another scheme is fastest, as many as the legend has room for.
const CROSSOVERS: usize = 14;
/// Heights of a label and of a line of the legend; labels of the horizontal axis are no wider than
/// the last one.
const HEIGHT: f64 = 13.0;
const LINE: i32 = 22;
const WIDTH: f64 = 52.0;
/// Values at the vertical axis, at most.
const VALUES: usize = 9;
/// Width of two numbers with a hyphen between, and some room.
const NUMBERS: f64 = 48.0;

/// Slowdown over message size, both logarithmic, a curve per scheme.
///
/// # Errors
/// What the drawing library says.
pub(super) fn draw(subject: &Subject) -> Result<String, String> {
    let mut text = String::new();
    picture(subject, &mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

/// The numbers above the plot, each with its place: those that would lie on each other stand
/// together, as the first and the last of them.
fn numbers(crossovers: &[Crossover], place: impl Fn(u64) -> f64) -> Vec<(u64, String)> {
    let mut groups: Vec<(u64, RangeInclusive<usize>)> = Vec::new();
    for (number, crossover) in (1..).zip(crossovers) {
        let at = place(crossover.size);
        match groups.last_mut() {
            Some((first, group)) if at - place(*first) < NUMBERS => *group = *group.start()..=number,
            _ => groups.push((crossover.size, number..=number)),
        }
    }
    let text = |group: RangeInclusive<usize>| match (group.start(), group.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    };
    groups.into_iter().map(|(size, group)| (size, text(group))).collect()
}

/// The lines above a picture: what is drawn, and for which link.
fn titles(subject: &Subject) -> [String; 2] {
    let name = subject.name.as_ref().map_or_else(String::new, |name| format!("class {name}: "));
    let percentile = subject.objective.percentile;
    let title = format!("{name}p{percentile} completion over the time without loss or parity");
    [title, headline(&subject.estimate)]
}

fn picture(subject: &Subject, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let sizes = curve_sizes(PER_OCTAVE);
    let curves = curves_at(subject, &sizes);
    let highest = curves.iter().flatten().copied().fold(1.5, f64::max) * 1.1;
    let (Some(smallest), Some(largest)) = (sizes.first(), sizes.last()) else { return Ok(()) };
    let (across, up) = (*smallest as f64..*largest as f64, 1.0..highest);
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (head, area) = area.split_vertically(HEAD);
    for (title, (y, size)) in titles(subject).into_iter().zip([(12, 20), (40, 14)]) {
        head.draw(&Text::new(title, (24, y), ("sans-serif", size)))?;
    }
    let (area, legend) = area.split_horizontally(SIZE.0 - LEGEND);
    let values = up.clone().log_scale().with_key_points(ticks(&up, VALUES));
    let mut chart = ChartBuilder::on(&area)
        .margin(MARGIN)
        .x_label_area_size(LABELS.0)
        .y_label_area_size(LABELS.1)
        .build_cartesian_2d(across.clone().log_scale().base(4.0), values)?;
    let (width, height) = chart.plotting_area().dim_in_pixel();
    let (row, column) = (LabelRow::default(), LabelRow::default());
    chart
        .configure_mesh()
        .x_desc("message size")
        .y_desc("times as long")
        .x_labels(14)
        .x_label_formatter(&|size| match row.takes(logarithmic(*size, &across, width), WIDTH) {
            true => human::size(*size as u64),
            false => String::new(),
        })
        .y_label_formatter(&|times| match column.takes(logarithmic(*times, &up, height), HEIGHT) {
            true => format!("{}x", tick(*times)),
            false => String::new(),
        })
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    let y_of = |line: usize| i32::try_from(line).map(|line| 24 + LINE * line);
    for (index, (candidate, curve)) in subject.candidates.iter().zip(&curves).enumerate() {
        let style = PALETTE.get(index % PALETTE.len()).copied().unwrap_or(BLACK).stroke_width(2);
        let points = sizes.iter().zip(curve).map(|(size, slowdown)| (*size as f64, *slowdown));
        chart.draw_series(LineSeries::new(points, style))?;
        let y = y_of(index)?;
        legend.draw(&PathElement::new([(0, y), (24, y)], style))?;
        legend.draw(&Text::new(candidate.to_string(), (32, y - 7), ("sans-serif", 14)))?;
    }
    let crossovers: Vec<_> = subject.plan(&sizes).crossovers.into_iter().take(CROSSOVERS).collect();
    for (number, crossover) in (1..).zip(&crossovers) {
        let at = crossover.size as f64;
        chart.draw_series(DashedLineSeries::new([(at, 1.0), (at, highest)], 3, 3, BLACK.mix(0.6).into()))?;
        let label = format!("{number}  {} from {} on", crossover.to, human::size(crossover.size));
        let y = y_of(curves.len() + number - 1)?;
        legend.draw(&Text::new(label, (0, y), ("sans-serif", 14)))?;
    }
    let style = ("sans-serif", 12).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Bottom));
    let place = |size: u64| logarithmic(size as f64, &across, width);
    let texts = numbers(&crossovers, place).into_iter();
    chart.draw_series(texts.map(|(size, text)| Text::new(text, (size as f64, highest), style.clone())))?;
    area.present()?;
    Ok(())
}
