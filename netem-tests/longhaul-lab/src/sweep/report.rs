//! The sweep in words and tables.

use std::cmp::Ordering;
use std::io::{self, Write};

use config::ByteSize;
use reliability::human::{self, millis};

use super::cell::{Cell, Entry, Ratio};
use super::grid::{DROPS, FIXED};
use super::{AGAIN, Known, LEAST, OF_BEST, OF_SR, Sweep};

/// Cells printed in full.
const WORST: usize = 6;

pub(super) fn write(
    out: &mut dyn Write,
    sweep: &Sweep<'_>,
    sizes: &[u64],
    cells: &[Cell],
    again: usize,
) -> io::Result<()> {
    headline(out, sweep, cells)?;
    table(out, "auto over the best fixed scheme, p99", sizes, cells, Cell::over_best, OF_BEST)?;
    table(out, "auto over sr, p99", sizes, cells, Cell::over_sr, OF_SR)?;
    choices(out, sizes, cells)?;
    worst(out, cells)?;
    agreement(out, cells)?;
    writeln!(out)?;
    if again > 0 {
        writeln!(
            out,
            "{again} cells looked bad without being surely so, and ran again with other losses and {AGAIN} times as many messages."
        )?;
    }
    verdict(out, "within 10 % of the best fixed scheme's p99", cells, Cell::over_best, OF_BEST)?;
    verdict(out, "never worse than 1.25 of sr's p99", cells, Cell::over_sr, OF_SR)
}

fn headline(out: &mut dyn Write, sweep: &Sweep<'_>, cells: &[Cell]) -> io::Result<()> {
    let known = match sweep.known {
        Known::Exactly => "the link exactly".to_owned(),
        Known::After(packets) => format!("what the estimator tells of the losses after {packets} packets"),
    };
    let fixed: Vec<String> = FIXED.iter().map(ToString::to_string).collect();
    let simulated = cells.iter().filter(|cell| cell.is_simulated()).count();
    writeln!(
        out,
        "What `auto` chooses against fixed schemes: {} cells, RTT 1, 25, 100 ms x 10, 100, 400 Gbit/s x losses one by one and in runs of 4,\n\
         4096 bytes in a packet, messages one at a time. `auto` minimises p99 and knows {known}.\n\
         Fixed: {}.\n\
         {simulated} cells are simulated, at most {} data packets for each scheme; the others, of sizes of which not even {LEAST} messages are\n\
         within that bound, are judged by the model. Seed {}.",
        cells.len(),
        fixed.join(", "),
        sweep.budget,
        sweep.seed
    )
}

/// The worst of the links of each size and drop rate.
fn worst_of(
    cells: &[Cell],
    size: u64,
    drop: f64,
    ratio: impl Fn(&Cell) -> Option<Ratio>,
    limit: f64,
) -> Option<(&Cell, Ratio)> {
    let here = cells.iter().filter(|cell| cell.key.size == size && cell.key.drop == drop);
    here.filter_map(|cell| Some((cell, ratio(cell)?))).max_by(|(_, a), (_, b)| order(a, b, limit))
}

/// Orders ratios: those surely beyond the limit come before all that look worse.
fn order(a: &Ratio, b: &Ratio, limit: f64) -> Ordering {
    let key = |ratio: &Ratio| if ratio.sure > limit { ratio.sure } else { 0.0 };
    key(a).total_cmp(&key(b)).then(a.point.total_cmp(&b.point)).then(a.sure.total_cmp(&b.sure))
}

fn heading(out: &mut dyn Write, what: &str, width: usize) -> io::Result<()> {
    write!(out, "\n{what:<38}")?;
    for drop in DROPS {
        write!(out, "{:>width$}", human::share(drop))?;
    }
    writeln!(out)
}

fn table(
    out: &mut dyn Write,
    what: &str,
    sizes: &[u64],
    cells: &[Cell],
    ratio: impl Fn(&Cell) -> Option<Ratio>,
    limit: f64,
) -> io::Result<()> {
    heading(out, what, 11)?;
    for &size in sizes {
        let simulated = cells.iter().any(|cell| cell.key.size == size && cell.is_simulated());
        write!(out, "{:<38}", name(size) + if simulated { "" } else { " (model)" })?;
        for drop in DROPS {
            let worst = worst_of(cells, size, drop, &ratio, limit)
                .map_or("-".to_owned(), |(_, worst)| mark(worst, limit));
            write!(out, "{worst:>11}")?;
        }
        writeln!(out)?;
    }
    writeln!(
        out,
        "The worst of 18 links. `!`: surely beyond {limit:.2}; `?`: beyond it, but maybe by chance."
    )
}

fn mark(ratio: Ratio, limit: f64) -> String {
    let mark = if ratio.sure > limit {
        "!"
    } else if ratio.point > limit {
        "?"
    } else {
        " "
    };
    format!("{:.2}{mark}", ratio.point)
}

fn choices(out: &mut dyn Write, sizes: &[u64], cells: &[Cell]) -> io::Result<()> {
    heading(out, "auto's choice where it is worst", 16)?;
    for &size in sizes {
        write!(out, "{:<38}", name(size))?;
        for drop in DROPS {
            let worst = worst_of(cells, size, drop, Cell::over_best, OF_BEST);
            let choice = worst.map_or(String::new(), |(cell, _)| cell.auto.scheme.to_string());
            write!(out, "{choice:>16}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn worst(out: &mut dyn Write, cells: &[Cell]) -> io::Result<()> {
    writeln!(out, "\nWorst cells")?;
    let mut ranked: Vec<(&Cell, Ratio)> = cells
        .iter()
        .filter_map(|cell| Some((cell, cell.over_best()?)))
        .filter(|(_, ratio)| ratio.point > 1.0)
        .collect();
    ranked.sort_by(|(_, a), (_, b)| order(b, a, OF_BEST));
    if ranked.is_empty() {
        return writeln!(out, "  none: nowhere is a fixed scheme faster");
    }
    for (cell, ratio) in ranked.into_iter().take(WORST) {
        let by = if cell.is_simulated() {
            format!("{} messages", cell.messages)
        } else {
            "by the model".to_owned()
        };
        writeln!(out, "  {}: {:.3} of the best, surely {:.3} ({by})", cell.key, ratio.point, ratio.sure)?;
        line(out, "auto", cell, &cell.auto)?;
        if let Some((best, _)) = cell.best() {
            line(out, "best", cell, best)?;
        }
        if let Some(sr) = cell.fixed.iter().find(|entry| entry.scheme.block().is_none()) {
            line(out, "", cell, sr)?;
        }
    }
    Ok(())
}

fn line(out: &mut dyn Write, role: &str, cell: &Cell, entry: &Entry) -> io::Result<()> {
    let Some(p99) = cell.p99(entry) else { return Ok(()) };
    write!(out, "    {role:<5} {:<16} p99 {:>9} ms", entry.scheme.to_string(), millis(p99.value))?;
    if cell.is_simulated() {
        write!(out, ", within {} and {}; model {}", millis(p99.low), millis(p99.high), millis(entry.model))?;
    }
    writeln!(out)
}

/// How far the model may be trusted with the cells that it judges.
fn agreement(out: &mut dyn Write, cells: &[Cell]) -> io::Result<()> {
    let mut off: Vec<(f64, f64, &Cell, &Entry)> = cells
        .iter()
        .flat_map(|cell| cell.agreements().map(move |(ratio, entry)| (ratio.ln().abs(), ratio, cell, entry)))
        .collect();
    off.sort_by(|a, b| a.0.total_cmp(&b.0));
    let at = |share: f64| off.get(((off.len() as f64 * share) as usize).min(off.len().saturating_sub(1)));
    let (Some(median), Some(most), Some(worst)) = (at(0.5), at(0.95), off.last()) else {
        return writeln!(out, "\nNothing was simulated.");
    };
    let share = |off: f64| human::share(off.exp() - 1.0);
    let (_, ratio, cell, entry) = worst;
    writeln!(
        out,
        "\nThe model's p99 against the simulator's, {} pairs: {} off in the median, {} at the 95th percentile; at worst the simulator\n\
         takes {ratio:.2} of the model's: {} in {}.",
        off.len(),
        share(median.0),
        share(most.0),
        entry.scheme,
        cell.key
    )
}

fn verdict(
    out: &mut dyn Write,
    what: &str,
    cells: &[Cell],
    ratio: impl Fn(&Cell) -> Option<Ratio>,
    limit: f64,
) -> io::Result<()> {
    let ratios: Vec<Ratio> = cells.iter().filter_map(&ratio).collect();
    let violated = ratios.iter().filter(|ratio| ratio.sure > limit).count();
    let open = ratios.iter().filter(|ratio| ratio.point > limit && ratio.sure <= limit).count();
    let worst = ratios.iter().copied().max_by(|a, b| order(a, b, limit));
    let worst = worst.map_or(String::new(), |worst| format!("; worst {:.3}", worst.point));
    let verdict = match (violated, open) {
        (0, 0) => "holds everywhere".to_owned(),
        (0, open) => format!("holds, with {open} of {} cells open", ratios.len()),
        (violated, open) => format!("VIOLATED in {violated} of {} cells, {open} more open", ratios.len()),
    };
    writeln!(out, "auto {what}: {verdict}{worst}")
}

fn name(size: u64) -> String {
    ByteSize::from_bytes(size).to_string()
}
