//! The table that the demo shows in the end.

use std::fmt::{self, Write};

use reliability::human::share;

use super::measure::Measured;

/// A transfer of the table.
pub(super) struct Row {
    pub(super) link: &'static str,
    pub(super) carrier: &'static str,
    pub(super) measured: Measured,
}

const INTRODUCTION: &str = "\
Two gateways on this machine, an emulated link of 1 Gbit/s and 25 ms round trip
between them, two software RDMA hosts. 4 queue pairs, each with 8 messages of
64 KiB outstanding (2 MiB in all, less than the link holds): half of them
WRITEs, a quarter SENDs, a quarter READs.
Plain RC: the same hosts without gateways, go-back-N.
";

const EXPLANATION: &str = "\
How to read it: completion is the time from posting a message to its
completion, and p99 that of the slowest in a hundred: where a lost packet shows.
Plain RC goes back and sends its whole window again. `sr` sends again only what
was lost, at the price of a round trip. `mds(32,8)` sends 8 parity packets for
every 32, which repair most losses without one. `overhead` is everything on the
link beyond the payload. Every message's contents were checked where it went.
The link is emulated in real time: whatever else this machine is doing shows in
the figures, in the tail first.
";

const NEXT: &str = "\
Next: docs/install.md puts a pair of gateways between two sites, and
docs/reference.md has keys and metrics.
`longhaul-lab bench` measures what this machine can carry.
";

/// Columns of a terminal.
const WIDTH: usize = 80;

/// Returns the table, grouped by link.
pub(super) fn table(links: &[&str], rows: &[Row]) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, links, rows);
    out
}

fn write(out: &mut String, links: &[&str], rows: &[Row]) -> fmt::Result {
    writeln!(out, "{INTRODUCTION}")?;
    for [link, carrier, goodput, p50, p99, lost, again, parity, overhead, contents] in [
        ["link", "carried", "goodput", "p50", "p99", "lost", "again", "parity", "over-", "con-"],
        ["", "by", "Mbit/s", "ms", "ms", "pkt", "pkt", "pkt", "head", "tents"],
    ] {
        writeln!(
            out,
            "{link:<13} {carrier:<9} {goodput:>7} {p50:>6} {p99:>7} {lost:>6} {again:>6} {parity:>6} {overhead:>6} {contents:>5}"
        )?;
    }
    for link in links {
        let mut name = *link;
        let mut own = rows.iter().filter(|row| row.link == *link).peekable();
        if own.peek().is_some() {
            writeln!(out, "{}", "-".repeat(WIDTH))?;
        }
        for row in own {
            line(out, name, row)?;
            name = "";
        }
    }
    writeln!(out, "\n{EXPLANATION}\n{NEXT}")
}

fn line(out: &mut String, link: &str, row: &Row) -> fmt::Result {
    let measured = &row.measured;
    writeln!(
        out,
        "{:<13} {:<9} {:>7.0} {:>6.1} {:>7.1} {:>6} {:>6} {:>6} {:>6} {:>5}",
        link,
        row.carrier,
        measured.client.goodput() / 1e6,
        measured.completion(0.5),
        measured.completion(0.99),
        measured.wire.lost,
        measured.wire.resent,
        measured.wire.decoded,
        share(measured.overhead()),
        if measured.is_clean() { "right" } else { "WRONG" },
    )?;
    if measured.is_clean() { Ok(()) } else { writeln!(out, "{:<13} {}", "", measured.trouble()) }
}
