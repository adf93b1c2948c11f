//! The results as a table.

use std::io::{self, Write};

use config::ByteSize;
use reliability::human::{millis, share};

use super::row::Row;

/// A line per scheme, grouped by size.
pub(super) fn write(out: &mut dyn Write, rows: &[Row]) -> io::Result<()> {
    writeln!(
        out,
        "{:<10} {:<12} {:>38}  {:>9} {:>8}  {:>6} {:>9} {:>9}",
        "", "", "completion time [ms]", "ideal", "slow-", "wire", "repaired", "lost"
    )?;
    writeln!(
        out,
        "{:<10} {:<12} {:>9} {:>9} {:>9} {:>8}  {:>9} {:>8}  {:>6} {:>9} {:>9}",
        "size", "scheme", "mean", "p50", "p99", "p99.9", "[ms]", "down", "bytes", "", ""
    )?;
    let mut last = None;
    for row in rows {
        if last != Some(row.size) {
            writeln!(out, "{}", "-".repeat(110))?;
        }
        line(out, row, last != Some(row.size))?;
        last = Some(row.size);
    }
    if rows.iter().any(|row| row.until == "delivered") {
        writeln!(
            out,
            "\nWith `none` nobody knows what has arrived: its times end with the delivery of those messages that arrive whole."
        )?;
    }
    writeln!(
        out,
        "\nCompletion: from the first byte until the sender knows that all has arrived. Ideal: without loss and parity. Slowdown: mean by\n\
         ideal. Wire bytes: on both links, headers included, per byte of message. Repaired: messages in whose time something was sent again."
    )
}

fn line(out: &mut dyn Write, row: &Row, first: bool) -> io::Result<()> {
    let size = if first { ByteSize::from_bytes(row.size).to_string() } else { String::new() };
    let tail = |time: Option<f64>| time.map_or("-".to_owned(), millis);
    writeln!(
        out,
        "{size:<10} {:<12} {:>9} {:>9} {:>9} {:>8}  {:>9} {:>8.2}  {:>6.3} {:>9} {:>9}",
        row.scheme,
        millis(row.mean),
        millis(row.p50),
        tail(row.p99),
        tail(row.p999),
        millis(row.ideal),
        row.slowdown,
        row.wire_bytes_per_byte,
        share(row.repaired),
        share(row.lost),
    )
}
