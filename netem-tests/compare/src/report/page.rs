//! The page.

use std::fmt::Write;

use reliability::human;

use super::{Against, Row, Setup, Verdict};
use crate::cell::{BURST, WARM_UP};
use crate::measure::{Figures, Outcome, STOLEN};
use crate::peer::Peer;

/// Times of the lossless ideal that the 99th percentile may take at a loss of 1 %.
const NEAR_IDEAL: f64 = 1.15;
/// A ratio this near 1 is within what two runs of the same differ by.
const SAME: f64 = 0.02;

/// Load average of a machine that does other things, too.
const BUSY: f64 = 0.5;

const METHOD: &str = "\
## What is measured

A sender keeps a number of messages of one size outstanding.
A message is complete when its sender has the receiver's word that all of it has reached the receiving program.
The time runs from its posting, by one clock, the sender's, and by the same definition for everyone.
For RDMA that word is the completion of the WRITE: Longhaul gives it when the target's host has acknowledged it.

Sender, receiver and emulator are on one machine, in network name spaces of their own.
Whole Ethernet frames pass the emulator, so kernel TCP does as well.
Both directions have the same rate, delay, losses and queue (one bandwidth-delay product).
The losses' seed is the same for everyone. One peer runs after the other, each on a fresh link, cell by cell.

* *goodput*: payload confirmed per second, after the warm-up.
  A message counts by the part of its time, from posting to confirmation, that lies in the measurement.
  At the end of that as much is left out as the median message takes.
  Where what is outstanding takes longer than a measurement, these messages are sent once and the whole counts.
  That includes slow start, for everyone; there is no warm-up then.
* *p50, p99, p99.9*: completion.
  Messages not confirmed when the sender gave up count with their age (`>`: the percentile is at least that).
  With fewer than 100 (1000) messages, p99 (p99.9) is the longest.
* *first*: the first message of the run, which is not among them unless the whole run counts.
* *wire*: bytes of frames that both ends sent into the link per payload byte confirmed, over the whole run.
* *CPU*: user and system seconds of all programs of a peer at both ends per GiB, over the whole run.
  The kernel's work for a receiver while the emulator hands it a frame counts to the emulator, and thus for nobody.
  TCP gains most by that.
* *carriers*: of that, programs that carry messages for others (gateways, kcptun).
  The rest are the programs at the ends: for Longhaul hosts that do in software what RDMA hardware does.
* *memory*: sum of the programs' peak resident memory, with message buffers and without the kernel's socket buffers.
* *ideal*: one message's bytes with Ethernet, IP and UDP headers at the link's rate, and a round trip.
  If that is longer, it is the time the link needs for all messages that are outstanding.
* *with overhead*: the same with the bytes of frames that were *sent* the messages' way for each byte of theirs.
  Repairs and parity are included.

## Settings

* TCP: `TCP_NODELAY`, buffers up to 128 MiB, no slow start after idle, no metrics of earlier connections.
  Everything is on one connection, or each outstanding message has a connection (\"each its own\").
* TLS: the same TCP on one connection, with TLS 1.3 (rustls, AES-128-GCM) in the programs at the ends.
* WireGuard: the same TCP on one connection, through `wireguard-go` at both ends; the kernel's is not compared.
  Its interface takes packets of the link's MTU less 80 bytes.
* QUIC: quinn; a stream for each message on one connection; windows of 256 MiB; cubic as it comes, and its BBR.
  Packets are as long as the link takes, and 6,500 bytes at most.
  Above that its batches exceed what the kernel takes.
* SRT: libsrt, file transmission, whole messages in any order on one connection.
  Buffers of 128 MiB, window of 100,000 packets, 1,500 bytes each (its most).
* UDT: libudt, whole messages in any order on one connection.
  Buffers of 128 MiB, window of 100,000 packets, as long as the link takes.
* kcptun: `--mode fast3`, its default of 3 parity packets to 10, aes-128, no compression.
  Windows are three bandwidth-delay products (parity included), smux 2 with 32 MiB for a stream.
  Packets have 1,400 bytes, since its buffers hold no more than 1,500.
  TCP goes through it, with a connection for each outstanding message.
* Longhaul: two gateways, LAN over UDP sockets, `peer.rate` and `wan.mtu` the link's.
  The class has defaults for everything but the scheme (\"interleaved\": by 4).
  Software hosts do RDMA WRITEs, with a queue pair for each outstanding message.
  `auto` sends for 6 s more before the measurement, to learn the link, and is told that the 99th percentile counts.
  Hosts have 1,024 packets under way to their gateway at most, since loopback has no flow control.
  A packet lost there costs a host's ACK timeout (1.07 s).
* UDP sockets of all ask for 32 MiB; `run` raises `net.core.rmem_max` and `wmem_max` for as long as it measures.
";

pub(super) fn page(setup: &Setup, rows: &[Row]) -> String {
    let mut text = String::from("# Longhaul and its peers over the same link\n\n");
    // Writing to a String never fails.
    let _ = write_page(&mut text, setup, rows);
    text
}

fn write_page(out: &mut String, setup: &Setup, rows: &[Row]) -> std::fmt::Result {
    let Setup { seed, extent, kernel, processor, processors, load } = setup;
    writeln!(
        out,
        "Written by `netem-tests/compare/run --extent {}`; not to be edited.\n\
         A cell names the link's rate, its round-trip time and its longest IP packet, then losses and messages.\n\
         Seed of the losses: {seed}.\n\
         Machine: {processors} processors ({processor}), Linux {kernel}; load average when it began: {load:.1}.\n",
        format!("{extent:?}").to_lowercase(),
    )?;
    if *load > BUSY {
        writeln!(
            out,
            "**Preliminary**: other programs wanted the processors as well.\n\
             Everyone's times and rates show that, those the more who take more of them.\n"
        )?;
    }
    stolen(out, rows)?;
    verdict(out, rows)?;
    writeln!(
        out,
        "![99th percentile of completion, in times of the ideal](comparison-p99.svg)\n\n![goodput, as a share of the ideal](comparison-goodput.svg)\n"
    )?;
    overview(out, rows)?;
    stretches(out, rows)?;
    out.push_str(METHOD);
    writeln!(
        out,
        "* Warm-up: {} ms. Bursts of losses have {BURST} packets in the mean (Gilbert-Elliott).\n",
        WARM_UP.as_millis()
    )?;
    writeln!(out, "## All figures\n")?;
    rows.iter().try_for_each(|row| details(out, row))
}

/// The share of the processors that other machines on the same host took.
fn stolen(out: &mut String, rows: &[Row]) -> std::fmt::Result {
    let outcomes = || rows.iter().flat_map(|row| &row.outcomes);
    let known: Vec<f64> = outcomes().filter_map(|outcome| outcome.stolen).collect();
    let most = known.iter().copied().fold(0.0, f64::max);
    if most <= 0.0 {
        return Ok(());
    }
    let again = outcomes().filter(|outcome| outcome.times > 1).count();
    writeln!(
        out,
        "The host gave {} of the processors' time to other machines (`steal`; known of {} measurements of {}).\n\
         In the worst measurement it was {}. {again} measurements, those with more than {}, were made twice.\n\
         They count as they were when less was taken.\n",
        human::share(known.iter().sum::<f64>() / known.len() as f64),
        known.len(),
        outcomes().count(),
        human::share(most),
        human::share(STOLEN),
    )
}

/// In how many cells what should hold does, and where it does so least.
fn verdict(out: &mut String, rows: &[Row]) -> std::fmt::Result {
    let verdicts: Vec<_> = rows.iter().filter_map(|row| Some((row, row.verdict()?))).collect();
    writeln!(out, "With the scheme of Longhaul that compares best in each of {} cells:\n", verdicts.len())?;
    counts(out, &verdicts.iter().map(|(_, verdict)| verdict).collect::<Vec<_>>())?;
    let stretches: Vec<_> = rows.iter().filter_map(Stretch::of).collect();
    let near = |stretch: fn(&Stretch<'_>) -> f64| {
        stretches.iter().filter(|found| stretch(found) <= NEAR_IDEAL).count()
    };
    writeln!(
        out,
        "* at a loss of 1 %, the lowest p99 of a scheme is within {NEAR_IDEAL} times the lossless ideal in {} of {} cells;\n\
         * that is {} cells if what the scheme sends beyond the messages is counted to the ideal.",
        near(|found| found.plain),
        stretches.len(),
        near(|found| found.with_overhead)
    )?;
    let auto: Vec<_> =
        rows.iter().filter_map(|row| row.verdict_of(Peer::learns, Against::Everyone)).collect();
    if !auto.is_empty() {
        writeln!(out, "\nWith `auto` in all of {} cells, for which nobody has to choose:\n", auto.len())?;
        counts(out, &auto.iter().collect::<Vec<_>>())?;
    }
    let sealed: Vec<_> =
        rows.iter().filter_map(|row| row.verdict_of(Peer::is_longhaul, Against::Encrypted)).collect();
    if !sealed.is_empty() {
        writeln!(out, "\nAgainst the peers that encrypt, in all of {} cells:\n", sealed.len())?;
        counts(out, &sealed.iter().collect::<Vec<_>>())?;
    }
    if let Some((row, v)) = verdicts.iter().min_by(|(_, a), (_, b)| a.least().total_cmp(&b.least())) {
        writeln!(
            out,
            "\nThe worst cell: {}.\nThere {} has {:.2} times the goodput of {} and {:.2} times the p99 of {}.",
            row.cell,
            v.longhaul.0.name(),
            v.goodput,
            v.fastest.0.name(),
            v.p99,
            v.promptest.0.name()
        )?;
    }
    let limited: Vec<_> = rows.iter().filter(|row| row.measured().any(|(_, f)| f.overrun > 0)).collect();
    if !limited.is_empty() {
        writeln!(
            out,
            "\nThe emulator lost frames for want of processor time, beyond the losses asked for, in {} cells.\n\
             (See column *lost by the emulator*.)\n\
             Their figures say what this machine can do rather than what the link allows.",
            limited.len()
        )?;
    }
    writeln!(out)
}

/// In how many cells goodput and p99 are what they should be.
fn counts(out: &mut String, verdicts: &[&Verdict<'_>]) -> std::fmt::Result {
    let count = |holds: &dyn Fn(&Verdict<'_>) -> bool| verdicts.iter().filter(|v| holds(v)).count();
    let same = human::share(SAME);
    writeln!(
        out,
        "* its goodput is at least every peer's in {} cells, within {same} of it or above in {};",
        count(&|v| v.goodput >= 1.0),
        count(&|v| v.goodput >= 1.0 - SAME)
    )?;
    writeln!(
        out,
        "* its p99 is below every peer's in {} cells, within {same} of it or below in {};",
        count(&|v| v.p99 < 1.0),
        count(&|v| v.p99 <= 1.0 + SAME)
    )
}

fn overview(out: &mut String, rows: &[Row]) -> std::fmt::Result {
    writeln!(out, "## Cell by cell\n")?;
    writeln!(
        out,
        "| cell | ideal p99 | Longhaul | p99 by ideal | best peer's p99 by ideal | p99 ratio | goodput by ideal | best peer's goodput by ideal | goodput ratio |"
    )?;
    writeln!(out, "|---|--:|---|--:|---|--:|--:|---|--:|")?;
    for row in rows {
        let Some(v) = row.verdict() else { continue };
        let (ideal, most) = (row.cell.ideal(), row.cell.ideal_goodput());
        writeln!(
            out,
            "| {} | {} | {} | {:.2} | {:.2} ({}) | **{:.2}** | {:.2} | {:.2} ({}) | **{:.2}** |",
            row.cell,
            millis(ideal),
            short(v.longhaul.0),
            v.longhaul.1.p99 / ideal,
            v.promptest.1.p99 / ideal,
            v.promptest.0.name(),
            v.p99,
            v.longhaul.1.goodput / most,
            v.fastest.1.goodput / most,
            v.fastest.0.name(),
            v.goodput
        )?;
    }
    writeln!(out, "\nRatios are Longhaul's by the peer's: p99 is to be below 1, goodput at least 1.\n")
}

/// Longhaul's promptest scheme at a loss of 1 %, in times of what is possible without losses.
struct Stretch<'a> {
    row: &'a Row,
    scheme: (Peer, &'a Figures),
    plain: f64,
    /// The ideal being that of one who sends as much as the scheme did.
    with_overhead: f64,
}

impl<'a> Stretch<'a> {
    fn of(row: &'a Row) -> Option<Self> {
        let scheme = row.promptest_scheme().filter(|_| row.cell.drops.share >= 1e-2)?;
        let Figures { p99, forward, .. } = *scheme.1;
        let plain = row.cell.ideal();
        // Who sent nothing but the messages cannot do better than the ideal without overhead.
        let with_overhead = row.cell.ideal_with(forward).max(plain);
        Some(Self { row, scheme, plain: p99 / plain, with_overhead: p99 / with_overhead })
    }
}

fn stretches(out: &mut String, rows: &[Row]) -> std::fmt::Result {
    let mut stretches = rows.iter().filter_map(Stretch::of).peekable();
    if stretches.peek().is_none() {
        return Ok(());
    }
    writeln!(out, "## At a loss of 1 %\n")?;
    writeln!(
        out,
        "The scheme of Longhaul with the lowest p99, and how near it comes to a link without losses:\n"
    )?;
    writeln!(out, "| cell | scheme | p99 | by ideal | sent | by ideal with overhead |")?;
    writeln!(out, "|---|---|--:|--:|--:|--:|")?;
    for Stretch { row, scheme: (peer, figures), plain, with_overhead } in stretches {
        writeln!(
            out,
            "| {} | {} | {} | {plain:.2} | {:.2} | **{with_overhead:.2}** |",
            row.cell,
            short(peer),
            millis(figures.p99),
            figures.forward,
        )?;
    }
    writeln!(out)
}

fn details(out: &mut String, row: &Row) -> std::fmt::Result {
    let (ideal, most) = (row.cell.ideal(), row.cell.ideal_goodput());
    writeln!(out, "### {}\n", row.cell)?;
    writeln!(out, "At best {} and {:.0} Mbit/s.\n", millis(ideal), most / 1e6)?;
    writeln!(
        out,
        "| | encrypted | goodput [Mbit/s] | p50 [ms] | p99 [ms] | p99.9 [ms] | p99 by ideal | first [ms] | wire | CPU [s/GiB] (carriers) | memory [MB] (carriers) | messages (unfinished) | queue full | lost by the emulator |"
    )?;
    writeln!(out, "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")?;
    for Outcome { peer, figures, .. } in &row.outcomes {
        let name = if peer.is_longhaul() { format!("**{}**", peer.name()) } else { peer.name() };
        let name = format!("{name} | {}", if peer.encrypts() { "yes" } else { "no" });
        match figures {
            Err(error) => {
                let error = error.lines().next().unwrap_or_default();
                writeln!(out, "| {name} | failed: {error} | | | | | | | | | | | |")?;
            }
            Ok(figures) => line(out, &name, figures, ideal)?,
        }
    }
    writeln!(out)
}

fn line(out: &mut String, name: &str, figures: &Figures, ideal: f64) -> std::fmt::Result {
    let Figures { p50, p99, p999, messages, unfinished, .. } = *figures;
    // Counted from the top: the percentiles that fall among messages that never ended.
    let mark = |quantile: f64| {
        let above = messages as f64 * (1.0 - quantile);
        if unfinished as f64 > above { ">" } else { "" }
    };
    write!(out, "| {name} | {:.1} ", figures.goodput / 1e6)?;
    write!(out, "| {}{:.1} ", mark(0.5), p50 * 1e3)?;
    write!(out, "| {}{:.1} | {}{:.1} ", mark(0.99), p99 * 1e3, mark(0.999), p999 * 1e3)?;
    write!(out, "| {}{:.2} | {:.1} ", mark(0.99), p99 / ideal, figures.first * 1e3)?;
    if unfinished == messages {
        write!(out, "| | ")?;
    } else {
        write!(out, "| {:.2} | {} ", figures.wire, with_part(figures.cpu, figures.cpu_carriers))?;
    }
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    write!(out, "| {} ", with_part(megabytes(figures.memory), megabytes(figures.memory_carriers)))?;
    write!(out, "| {messages}")?;
    if unfinished > 0 {
        write!(out, " ({unfinished})")?;
    }
    writeln!(out, " | {:.1e} | {} |", figures.congested, figures.overrun)
}

fn with_part(all: f64, part: f64) -> String {
    if part > 0.0 { format!("{all:.1} ({part:.1})") } else { format!("{all:.1}") }
}

fn millis(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

fn short(peer: Peer) -> String {
    peer.name().trim_start_matches("Longhaul ").to_owned()
}
