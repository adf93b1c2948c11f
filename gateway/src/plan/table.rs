//! The plan as a table.

use std::io::{self, Write};

use reliability::human;
use reliability::model::plan::{Cell, Plan, Row};
use reliability::selector::Decision;

const COLUMN: usize = 13;

/// Completion times by size and scheme, the best marked, and what `auto` would choose; then what
/// each scheme sends beyond the data. There is a decision for each row.
pub(super) fn write(out: &mut dyn Write, plan: &Plan, decisions: &[Decision]) -> io::Result<()> {
    let names: Vec<String> = plan.candidates.iter().map(ToString::to_string).collect();
    header(out, &names, "auto")?;
    for (row, decision) in plan.rows.iter().zip(decisions) {
        let time = |index: usize, cell: &Cell| {
            let mark = if index == row.best { "*" } else { " " };
            format!("{}{mark}", human::time(cell.percentile))
        };
        line(out, row, &names, time)?;
        let [_, likely, _] = decision.chosen.times();
        writeln!(out, "   {} {}", decision.chosen.candidate, human::time(likely))?;
    }
    writeln!(
        out,
        "* fastest of these, or as fast with less overhead. Sent beyond the data, parity and repairs:"
    )?;
    header(out, &names, "auto")?;
    for (row, decision) in plan.rows.iter().zip(decisions) {
        line(out, row, &names, |_, cell| format!("{} ", human::share(cell.overhead)))?;
        writeln!(out, "   {}", human::share(decision.chosen.overhead))?;
    }
    Ok(())
}

fn header(out: &mut dyn Write, names: &[String], last: &str) -> io::Result<()> {
    write!(out, "{:>8} ", "size")?;
    for name in names {
        write!(out, "{:>width$} ", name, width = width(name) - 1)?;
    }
    writeln!(out, "   {last}")
}

fn line(
    out: &mut dyn Write,
    row: &Row,
    names: &[String],
    text: impl Fn(usize, &Cell) -> String,
) -> io::Result<()> {
    write!(out, "{:>8} ", human::size(row.size))?;
    for (index, (cell, name)) in row.cells.iter().zip(names).enumerate() {
        write!(out, "{:>width$}", text(index, cell), width = width(name))?;
    }
    Ok(())
}

fn width(name: &str) -> usize {
    COLUMN.max(name.len() + 2)
}
