//! The plan as a drawing.

use plotters::prelude::*;
use reliability::human;

use super::plot::curves_at;
use super::{Subject, curve_sizes, headline};
use crate::drawing::PALETTE;

const SIZE: (u32, u32) = (960, 560);
const PER_OCTAVE: u32 = 8;

/// Slowdown over message size, both logarithmic, a curve per scheme.
///
/// # Errors
/// What the drawing library says.
pub(super) fn draw(subject: &Subject) -> Result<String, String> {
    let mut text = String::new();
    picture(subject, &mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

/// Tells whether labels at two sizes would lie on each other: of those, the last one is drawn.
fn is_beside(size: u64, next: u64) -> bool {
    // The axis has some 33 points for each power of two, and a label is 12 high.
    (next as f64) < size as f64 * 1.4
}

fn picture(subject: &Subject, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let sizes = curve_sizes(PER_OCTAVE);
    let curves = curves_at(subject, &sizes);
    let highest = curves.iter().flatten().copied().fold(1.5, f64::max) * 1.1;
    let (Some(smallest), Some(largest)) = (sizes.first(), sizes.last()) else { return Ok(()) };
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let name = subject.name.as_ref().map_or_else(String::new, |name| format!("class {name}: "));
    let title =
        format!("{name}p{} completion over the time without loss or parity", subject.objective.percentile);
    let (title_area, area) = area.split_vertically(64);
    title_area.draw(&Text::new(title, (24, 12), ("sans-serif", 20)))?;
    title_area.draw(&Text::new(headline(&subject.estimate), (24, 40), ("sans-serif", 14)))?;
    let mut chart =
        ChartBuilder::on(&area).margin(16).x_label_area_size(44).y_label_area_size(56).build_cartesian_2d(
            (*smallest as f64..*largest as f64).log_scale().base(4.0),
            (1.0..highest).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("message size")
        .y_desc("times as long")
        .x_labels(14)
        .x_label_formatter(&|size| human::size(*size as u64))
        .y_label_formatter(&|slowdown| format!("{slowdown:.1}x"))
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    for (index, (candidate, curve)) in subject.candidates.iter().zip(&curves).enumerate() {
        let colour = PALETTE.get(index % PALETTE.len()).copied().unwrap_or(BLACK);
        let points = sizes.iter().zip(curve).map(|(size, slowdown)| (*size as f64, *slowdown));
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(candidate.to_string())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
    }
    let crossovers = subject.plan(&sizes).crossovers;
    for (crossover, next) in crossovers.iter().zip(crossovers.iter().skip(1).map(Some).chain([None])) {
        let at = crossover.size as f64;
        let line = DashedLineSeries::new([(at, 1.0), (at, highest)], 3, 3, BLACK.mix(0.6).stroke_width(1));
        chart.draw_series(line)?;
        if next.is_some_and(|next| is_beside(crossover.size, next.size)) {
            continue;
        }
        let label = format!("{} from {} on", crossover.to, human::size(crossover.size));
        let style = ("sans-serif", 12).into_font().transform(FontTransform::Rotate90).color(&BLACK);
        chart.draw_series([Text::new(label, (at, highest), style)])?;
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    area.present()?;
    Ok(())
}
