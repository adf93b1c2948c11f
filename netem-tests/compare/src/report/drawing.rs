//! Drawings: a panel for each message size and number outstanding, a curve for each peer, over the
//! losses.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::Row;
use gateway::drawing::{LabelRow, logarithmic, tick, ticks};

use crate::cell::{Cell, Drops, rate_name};
use crate::measure::Figures;
use crate::peer::{Congestion, Peer};
use reliability::human;

type Failure = Box<dyn std::error::Error>;

const PANEL: (u32, u32) = (460, 330);
const COLUMNS: usize = 3;
/// Above the panels: the title, then what explains the curves.
const TITLE: u32 = 34;
const LEGEND_LINE: u32 = 22;
const LEGEND_COLUMN: u32 = 110;
/// Height of a label, and width of one of its letters.
const HEIGHT: f64 = 13.0;
const LETTER: f64 = 8.0;
/// Values at the vertical axis, at most.
const VALUES: usize = 7;

/// Its name, its colour, and whose figures it shows.
type Curve = (&'static str, RGBColor, fn(Peer) -> bool);

/// The best of several rows of one kind. Okabe and Ito's colours and grey, Longhaul in black.
const CURVES: [Curve; 9] = [
    ("TCP cubic", RGBColor(0xd5, 0x5e, 0x00), |peer| {
        matches!(peer, Peer::Tcp(Congestion::Cubic) | Peer::TcpEach(Congestion::Cubic))
    }),
    ("TCP bbr", RGBColor(0xe6, 0x9f, 0x00), |peer| {
        matches!(peer, Peer::Tcp(Congestion::Bbr) | Peer::TcpEach(Congestion::Bbr))
    }),
    ("QUIC", RGBColor(0x00, 0x72, 0xb2), |peer| matches!(peer, Peer::Quic(_))),
    ("TLS", RGBColor(0xf0, 0xe4, 0x42), |peer| matches!(peer, Peer::Tls(_))),
    ("WireGuard", RGBColor(0x80, 0x80, 0x80), |peer| matches!(peer, Peer::WireGuard(_))),
    ("SRT", RGBColor(0xcc, 0x79, 0xa7), |peer| peer == Peer::Srt),
    ("UDT", RGBColor(0x56, 0xb4, 0xe9), |peer| peer == Peer::Udt),
    ("kcptun", RGBColor(0x00, 0x9e, 0x73), |peer| peer == Peer::Kcptun),
    ("Longhaul", RGBColor(0, 0, 0), Peer::is_longhaul),
];

/// The value of a cell that is drawn.
struct Quantity {
    title: &'static str,
    of: fn(&Cell, &Figures) -> f64,
    /// The lowest of several rows of a kind is best.
    lowest: bool,
}

/// The 99th percentile in times of the ideal.
pub(super) fn p99(rows: &[Row]) -> Result<String, String> {
    let of = |cell: &Cell, figures: &Figures| figures.p99 / cell.ideal();
    draw(rows, &Quantity { title: "p99 of completion by the lossless ideal", of, lowest: true })
}

/// Goodput as a share of the ideal.
pub(super) fn goodput(rows: &[Row]) -> Result<String, String> {
    let of = |cell: &Cell, figures: &Figures| figures.goodput / cell.ideal_goodput();
    draw(rows, &Quantity { title: "goodput by the lossless ideal", of, lowest: false })
}

fn draw(rows: &[Row], quantity: &Quantity) -> Result<String, String> {
    let mut text = String::new();
    picture(rows, quantity, &mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn picture(rows: &[Row], quantity: &Quantity, text: &mut String) -> Result<(), Failure> {
    // The link without its losses, and the messages.
    let panel_of = |cell: &Cell| Cell { drops: Drops { share: 0.0, bursty: false }, ..*cell };
    let mut panels: Vec<Cell> = Vec::new();
    for Row { cell, .. } in rows {
        let panel = panel_of(cell);
        if !panels.contains(&panel) {
            panels.push(panel);
        }
    }
    let (columns, lines) = (panels.len().clamp(1, COLUMNS), panels.len().div_ceil(COLUMNS).max(1));
    let width = PANEL.0 * u32::try_from(columns)?;
    let in_line = (width / LEGEND_COLUMN).max(1);
    let is_there =
        |belongs: fn(Peer) -> bool| rows.iter().flat_map(Row::measured).any(|(peer, _)| belongs(peer));
    let curves: Vec<_> = CURVES.into_iter().filter(|(_, _, belongs)| is_there(*belongs)).collect();
    let legend = u32::try_from(curves.len())?.div_ceil(in_line).max(1) * LEGEND_LINE;
    let size = (width, PANEL.1 * u32::try_from(lines)? + TITLE + legend);
    let area = SVGBackend::with_string(text, size).into_drawing_area();
    area.fill(&WHITE)?;
    let (head, body) = area.split_vertically(TITLE + legend);
    head.draw(&Text::new(quantity.title, (16, 8), ("sans-serif", 20)))?;
    for (place, (name, colour, _)) in (0..).zip(curves) {
        let x = i32::try_from(16 + place % in_line * LEGEND_COLUMN)?;
        let y = i32::try_from(TITLE + place / in_line * LEGEND_LINE)?;
        head.draw(&PathElement::new([(x, y + 12), (x + 22, y + 12)], colour.stroke_width(2)))?;
        head.draw(&Text::new(name, (x + 28, y + 4), ("sans-serif", 14)))?;
    }
    for (area, panel) in body.split_evenly((lines, columns)).iter().zip(panels) {
        let of_panel: Vec<_> = rows.iter().filter(|row| panel_of(&row.cell) == panel).collect();
        draw_panel(area, &of_panel, quantity, &panel)?;
    }
    area.present()?;
    Ok(())
}

/// A curve's points: for each row its best value of the peers that belong to it.
fn points(rows: &[&Row], quantity: &Quantity, belongs: fn(Peer) -> bool) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    for (x, row) in (0i32..).zip(rows) {
        let values = row.measured().filter(|(peer, _)| belongs(*peer));
        let values = values.map(|(_, figures)| (quantity.of)(&row.cell, figures).clamp(1e-3, 1e3));
        let best = if quantity.lowest { values.reduce(f64::min) } else { values.reduce(f64::max) };
        points.extend(best.map(|value| (f64::from(x), value)));
    }
    points
}

/// Over the losses in the run's order, evenly spaced; the vertical axis is logarithmic.
fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    rows: &[&Row],
    quantity: &Quantity,
    cell: &Cell,
) -> Result<(), Failure> {
    let drops: Vec<Drops> = rows.iter().map(|row| row.cell.drops).collect();
    let curves = CURVES.map(|(_, colour, belongs)| (colour, points(rows, quantity, belongs)));
    let values = curves.iter().flat_map(|(_, points)| points).map(|(_, value)| *value);
    let (lowest, highest) = values.fold((0.5, 1.5), |(lowest, highest), value| {
        (f64::min(lowest, value / 1.1), f64::max(highest, value * 1.1))
    });
    let Cell { rtt, mtu, rate, size, outstanding, .. } = *cell;
    let (rate, size) = (rate_name(rate), human::size(size));
    let title = format!("{rate}, {rtt} ms, MTU {mtu}, {size} x {outstanding}");
    let last = drops.len().saturating_sub(1) as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(
            -0.3..last + 0.3,
            (lowest..highest).log_scale().with_key_points(ticks(&(lowest..highest), VALUES)),
        )?;
    let (width, height) = chart.plotting_area().dim_in_pixel();
    let (row, column) = (LabelRow::default(), LabelRow::default());
    let label = |x: &f64| {
        let whole = (x - x.round()).abs() < 0.01;
        let drop = drops.get(x.round().max(0.0) as usize).filter(|_| whole);
        drop.map_or_else(String::new, |drop| {
            let bursts = if drop.bursty { " b" } else { "" };
            let text = match drop.share {
                0.0 => "0".to_owned(),
                share => format!("{}{bursts}", human::share(share)),
            };
            let at = (x + 0.3) / (last + 0.6) * f64::from(width);
            if row.takes(at, text.len() as f64 * LETTER) { text } else { String::new() }
        })
    };
    let value = |value: &f64| match column.takes(logarithmic(*value, &(lowest..highest), height), HEIGHT) {
        true => tick(*value),
        false => String::new(),
    };
    chart
        .configure_mesh()
        .x_desc("drop (b: in bursts)")
        // With more, ticks would stand between the losses.
        .x_labels(drops.len())
        .x_label_formatter(&label)
        .y_label_formatter(&value)
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    for (colour, points) in curves {
        chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Outcome;

    fn row(cell: Cell, spread: f64) -> Row {
        let peers = [Peer::Tcp(Congestion::Cubic), Peer::Quic(Congestion::Bbr), Peer::Srt, Peer::Kcptun];
        let outcomes = (0..).zip(peers).map(|(place, peer)| {
            let worse = f64::powi(spread, place);
            let figures = Figures {
                goodput: cell.ideal_goodput() / worse,
                messages: 100,
                unfinished: 0,
                first: 1.0,
                p50: 1.0,
                p99: cell.ideal() * worse,
                p999: 1.0,
                wire: 1.0,
                forward: 1.0,
                cpu: 1.0,
                cpu_carriers: 1.0,
                memory: 1,
                memory_carriers: 1,
                congested: 0.0,
                overrun: 0,
            };
            Outcome { cell, peer, figures: Ok(figures), stolen: None, times: 1 }
        });
        Row { cell, outcomes: outcomes.collect() }
    }

    /// Each loss has its tick, and values stand at three of the vertical axis' at least.
    #[test]
    fn every_tick_has_its_label() {
        for losses in 1..=4 {
            for spread in [1.0, 1.3, 4.0, 12.0] {
                let cell = |loss| Cell {
                    rtt: 25,
                    mtu: 9000,
                    rate: 1_000_000_000,
                    drops: Drops { share: f64::from(loss) * 1e-3, bursty: false },
                    size: 1 << 20,
                    outstanding: 1,
                };
                let rows: Vec<_> = (0..losses).map(|loss| row(cell(loss), spread)).collect();
                for drawing in [p99(&rows).unwrap(), goodput(&rows).unwrap()] {
                    let labels = testbed::drawing::labels(&drawing);
                    let values = labels.iter().filter(|label| label.text.parse::<f64>().is_ok());
                    let names: Vec<_> = labels.iter().map(|label| label.text.as_str()).collect();
                    let shares = (0..losses).map(|loss| match loss {
                        0 => "0".to_owned(),
                        loss => human::share(f64::from(loss) * 1e-3),
                    });
                    assert!(shares.clone().all(|share| names.contains(&share.as_str())), "{names:?}");
                    // The loss of 0 is a number as well.
                    let values = values.count() - 1;
                    assert!((3..=8).contains(&values), "{losses} losses, spread {spread}: {names:?}");
                }
            }
        }
    }

    /// Who was not measured has no curve, and is not explained.
    #[test]
    fn only_curves_that_are_there_are_explained() {
        let cell = Cell {
            rtt: 25,
            mtu: 9000,
            rate: 1_000_000_000,
            drops: Drops { share: 0.0, bursty: false },
            size: 1 << 20,
            outstanding: 1,
        };
        let drawing = p99(&[row(cell, 1.3)]).unwrap();
        let labels = testbed::drawing::labels(&drawing);
        let named = |name: &str| labels.iter().any(|label| label.text == name);
        let there = CURVES.map(|(name, ..)| name).into_iter().filter(|name| named(name));
        assert_eq!(there.collect::<Vec<_>>(), ["TCP cubic", "QUIC", "SRT", "kcptun"]);
    }

    /// One panel to seven, with one loss to eight, and values that are much alike or not at all.
    #[test]
    fn no_label_lies_on_another_one() {
        for (panels, losses) in [(1, 1), (2, 2), (3, 5), (7, 8)] {
            for spread in [1.0, 1.3, 4.0, 12.0] {
                let cells = (0..panels).flat_map(|panel| {
                    (0..losses).map(move |loss| Cell {
                        rtt: 100,
                        mtu: 1500,
                        rate: 200_000_000,
                        drops: Drops { share: f64::from(loss) * 1.37e-3, bursty: loss % 2 == 1 },
                        size: 1 << (20 + panel),
                        outstanding: 64,
                    })
                });
                let rows: Vec<_> = cells.map(|cell| row(cell, spread)).collect();
                for drawing in [p99(&rows).unwrap(), goodput(&rows).unwrap()] {
                    let found = testbed::drawing::collisions(&drawing);
                    assert_eq!(found, [""; 0], "{panels} panels, {losses} losses, spread {spread}");
                }
            }
        }
    }
}
