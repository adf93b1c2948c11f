//! `longhaul-lab plan --paper`: what was published, and what comes out here.

use std::io::{self, Write};

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use reliability::human;

use super::model::figures::{Unit, Value, figures};

/// The samples of one row are drawn from this, so that the output is the same every time.
const SEED: u64 = 0x5d12;

const INTRODUCTION: &str = "\
SDR-RDMA (Khalilov et al., arXiv 2505.05366), 400 Gbit/s over 25 ms: what was published, what its formulas give here, and
what the schemes of this program are expected to do on the same link.";

/// Writes each published figure beside what its formulas and our schemes give.
///
/// # Errors
/// The output.
pub fn write(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{INTRODUCTION}")?;
    for figure in figures(&mut Pcg64Mcg::seed_from_u64(SEED)) {
        writeln!(out, "\n{}", figure.what)?;
        writeln!(out, "  published    {}", figure.published)?;
        for value in &figure.reproduced {
            let verdict = if value.holds() { "" } else { "   NOT in the accepted range" };
            writeln!(out, "  its formulas {}{verdict}", line(value))?;
        }
        for value in &figure.ours {
            writeln!(out, "  ours         {}", line(value))?;
        }
        if !figure.note.is_empty() {
            writeln!(out, "  note         {}", figure.note)?;
        }
    }
    Ok(())
}

fn line(value: &Value) -> String {
    let number = number(value);
    if value.of.is_empty() { number } else { format!("{number:<10} {}", value.of) }
}

fn number(value: &Value) -> String {
    match value.unit {
        Unit::Times => format!("{:.1}x", value.value),
        Unit::Share => human::share(value.value),
        Unit::Drop => human::share(value.value),
        Unit::Size => human::size(value.value as u64),
    }
}
