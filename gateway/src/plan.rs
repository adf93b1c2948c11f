//! `longhaul plan`: which scheme for which messages on a link, by the completion-time model.

mod paper;
mod plot;
mod svg;
mod table;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use config::{ByteSize, Invalid, Policy, Rate, Style};
use reliability::link::Link;
use reliability::model::plan::{Crossover, Plan};
use reliability::model::{Block, Candidate, Timers};
use reliability::selector::{Allowed, Bucket, Config, Decision, Estimate, Objective, Selector};
use reliability::{human, model, stream};

use crate::{choose, session};

/// What a WAN packet takes on the wire beyond its share of a message: Ethernet, IPv4, UDP, the seal, the DATA header and a piece's header.
const OVERHEAD: usize = 18 + 20 + 8 + session::OVERHEAD + stream::DATA_HEADER + stream::FRAGMENT_HEADER;
/// What that leaves of an IP packet of 1500 bytes.
const PACKET: usize = 1500 + 18 - OVERHEAD;
/// A stream's window in packets, see [`stream::SenderConfig`].
const WINDOW: f64 = 32_768.0;

/// Arguments of `longhaul plan`.
#[derive(Debug, Args)]
#[command(after_help = "A loss rate is a number or a percentage, or a range: 1e-3, 0.1%, 1e-4..1e-2.")]
pub struct PlanArgs {
    /// What the link carries, such as "10 Gbit/s"
    #[arg(long, required_unless_present = "paper")]
    rate: Option<Rate>,
    /// Round-trip time, such as "25 ms"
    #[arg(long, required_unless_present = "paper")]
    rtt: Option<config::Duration>,
    /// Share of packets lost, or the range it lies in; the geometric mean of a range is taken as likely
    #[arg(long, required_unless_present = "paper", value_parser = drop_range)]
    drop: Option<DropRange>,
    /// Mean number of packets lost in a row
    #[arg(long, value_name = "PACKETS", default_value_t = 1.0, value_parser = burst)]
    burst: f64,
    /// Payload of a WAN packet [default: 1398 B, what an MTU of 1500 leaves]
    #[arg(long, value_name = "SIZE")]
    packet: Option<ByteSize>,
    /// The percentile of the completion time that counts
    #[arg(long, default_value_t = 99.9, value_parser = percentile)]
    percentile: f64,
    /// Parity per data that `auto` may choose at most
    #[arg(long, default_value_t = 0.5, value_parser = overhead)]
    max_overhead: f64,
    /// Plan for each class of this policy file, by its scheme, percentile and overhead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["percentile", "max_overhead"])]
    policy: Option<PathBuf>,
    /// Draw the times by message size into this file, or the first class's
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Show the published evaluation beside what its formulas and our schemes give
    #[arg(long, conflicts_with_all = ["rate", "rtt", "drop", "packet", "policy", "svg"])]
    paper: bool,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The policy file.
    #[error("the policy file cannot be used")]
    Policy(Box<Invalid>),
    /// The arguments make no sense together.
    #[error("{0}")]
    Usage(String),
    /// The picture.
    #[error("cannot draw {}: {error}", path.display())]
    Picture {
        /// Where it was to be.
        path: PathBuf,
        /// What the drawing says.
        error: String,
    },
    /// The output.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// `--drop`
#[derive(Clone, Copy, Debug, PartialEq)]
struct DropRange {
    low: f64,
    likely: f64,
    high: f64,
}

/// What is planned for: a class of a policy, or the arguments.
#[derive(Debug)]
struct Subject {
    /// `None` without a policy.
    name: Option<String>,
    /// The class's own scheme comes first.
    candidates: Vec<Candidate>,
    objective: Objective,
    timers: Timers,
    estimate: Estimate,
}

impl PlanArgs {
    /// Writes the plan to `out`, and the picture if there is to be one.
    ///
    /// # Errors
    /// See [`PlanError`].
    pub fn run(&self, out: &mut dyn Write, style: Style) -> Result<(), PlanError> {
        if self.paper {
            return Ok(paper::write(out)?);
        }
        let estimate = self.estimate()?;
        let subjects = self.subjects(estimate)?;
        writeln!(out, "{}", headline(&estimate))?;
        if let Some(warning) = window_warning(&estimate.link) {
            writeln!(out, "{warning}")?;
        }
        for subject in &subjects {
            writeln!(out)?;
            subject.write(out, style)?;
        }
        if let (Some(path), Some(subject)) = (&self.svg, subjects.first()) {
            draw(path, subject)?;
            writeln!(out, "\ndrawn: {}", path.display())?;
        }
        Ok(())
    }

    fn estimate(&self) -> Result<Estimate, PlanError> {
        let (Some(rate), Some(rtt), Some(drop)) = (self.rate, self.rtt, self.drop) else {
            return Err(PlanError::Usage("--rate, --rtt and --drop describe the link".to_owned()));
        };
        let packet = self.packet.map_or(PACKET, ByteSize::as_usize);
        if !(1..=usize::from(u16::MAX)).contains(&packet) {
            return Err(PlanError::Usage(format!("--packet: {packet} B is no packet, 1 to 65535 bytes are")));
        }
        if rate.bits_per_second() == 0 {
            return Err(PlanError::Usage("--rate: nothing can be sent at 0 bit/s".to_owned()));
        }
        let link = Link {
            rate: rate.bits_per_second(),
            rtt: rtt.get(),
            drop: drop.likely,
            burst: self.burst,
            packet,
            overhead: OVERHEAD,
        };
        Ok(Estimate { link, drop_low: drop.low, drop_high: drop.high })
    }

    fn subjects(&self, estimate: Estimate) -> Result<Vec<Subject>, PlanError> {
        let Some(path) = &self.policy else {
            let objective = Objective {
                percentile: self.percentile,
                max_overhead: self.max_overhead,
                allowed: Allowed::ALL,
            };
            let timers = Timers::default();
            return Ok(vec![Subject { name: None, candidates: usual(), objective, timers, estimate }]);
        };
        let policy = Policy::load(path).map_err(|invalid| PlanError::Policy(Box::new(invalid)))?;
        Ok(policy.written().map(|class| Subject::of_class(class, estimate)).collect())
    }
}

impl Subject {
    fn of_class(class: &config::Class, estimate: Estimate) -> Self {
        let (own, mut timers) = scheme(&class.scheme);
        if own.is_none() {
            timers.flush = splice::auto_flush(&estimate.link);
        }
        let mut candidates = usual();
        candidates.retain(|candidate| Some(*candidate) != own);
        candidates.splice(0..0, own);
        let objective = Objective {
            percentile: class.percentile,
            max_overhead: class.max_overhead,
            allowed: choose::allowed(&class.scheme),
        };
        Self { name: Some(class.name.clone()), candidates, objective, timers, estimate }
    }

    fn plan(&self, sizes: &[u64]) -> Plan {
        model::plan(&self.estimate.link, &self.timers, &self.candidates, sizes, self.objective.percentile)
    }

    /// What `auto` would choose, for each bucket.
    fn decisions(&self) -> Vec<Decision> {
        let config = Config { timers: self.timers, ..Config::default() };
        let mut selector = Selector::new(self.objective, config);
        Bucket::all()
            .map(|bucket| selector.evaluate(bucket, &self.estimate, Instant::now()).clone())
            .collect()
    }

    fn write(&self, out: &mut dyn Write, style: Style) -> io::Result<()> {
        let sizes: Vec<u64> = Bucket::all().map(Bucket::size).collect();
        let plan = self.plan(&sizes);
        let percentile = self.objective.percentile;
        match &self.name {
            Some(name) => writeln!(out, "Class {name}: {percentile} % of messages complete within")?,
            None => writeln!(out, "{percentile} % of messages complete within")?,
        }
        table::write(out, &plan, &self.decisions())?;
        writeln!(out, "\n{}", ranges(&plan))?;
        writeln!(out, "\nThe same, as a multiple of the time without loss or parity:")?;
        plot::write(out, self, style)
    }

    /// The time without loss or parity.
    fn lossless(&self, size: u64) -> Duration {
        let link = self.estimate.link.with_drop(0.0);
        model::completion(&link, &self.timers, Candidate::Sr, model::Message::new(size)).least()
    }
}

/// What is compared unless a policy names something else.
fn usual() -> Vec<Candidate> {
    vec![Candidate::Sr, Candidate::xor(32, 8), Candidate::mds(32, 8), Candidate::hybrid(32, 8)]
}

/// A policy's scheme as the model knows it, and the streams' settings under it. `none` loses data: it has no completion time.
fn scheme(scheme: &config::Scheme) -> (Option<Candidate>, Timers) {
    let mut timers = Timers::default();
    if let Some(block) = scheme.block() {
        timers.flush = block.flush.get();
    }
    let block = |block: &config::Block| Block { k: block.k, m: block.m, depth: block.interleave };
    let candidate = match scheme {
        // Its own choice is the table's last column.
        config::Scheme::Auto(_) | config::Scheme::None => None,
        config::Scheme::Sr { alpha } => {
            timers.alpha = *alpha;
            Some(Candidate::Sr)
        }
        config::Scheme::Xor(shape) => Some(Candidate::Xor(block(shape))),
        config::Scheme::Mds(shape) => Some(Candidate::Mds(block(shape))),
        config::Scheme::Hybrid(shape) => Some(Candidate::Hybrid(block(shape))),
    };
    (candidate, timers)
}

fn headline(estimate: &Estimate) -> String {
    let link = &estimate.link;
    let range = if estimate.drop_low < estimate.drop_high {
        format!(" ({} to {})", human::drop(estimate.drop_low), human::drop(estimate.drop_high))
    } else {
        String::new()
    };
    format!(
        "{}, RTT {}, loss {}{range} in runs of {:.1}, packets of {} and {} bytes of headers",
        human::rate(link.rate),
        human::time(link.rtt),
        human::drop(link.drop()),
        link.burst(),
        link.payload(),
        link.overhead,
    )
}

/// The model knows no window; streams do.
fn window_warning(link: &Link) -> Option<String> {
    let under_way = link.rtt_seconds() / link.packet_seconds();
    (under_way > WINDOW).then(|| {
        let carried = link.rate as f64 * WINDOW / under_way;
        format!(
            "warning: {under_way:.0} packets are under way on this link, and a stream's window holds {WINDOW:.0}: a class carries {}\n\
             at most. The times below are those of a window that is large enough; larger packets help.",
            human::rate(carried as u64)
        )
    })
}

/// Which scheme is fastest from which size on.
fn ranges(plan: &Plan) -> String {
    let name = |row: Option<&model::plan::Row>| {
        let best = row.and_then(|row| plan.candidates.get(row.best));
        best.map_or_else(String::new, ToString::to_string)
    };
    let step = |crossover: &Crossover| format!("{} from {} on", crossover.to, human::size(crossover.size));
    let first = name(plan.rows.first());
    let steps = plan.crossovers.iter().map(step);
    let all: Vec<String> = std::iter::once(first).chain(steps).collect();
    format!("best: {}", all.join(", "))
}

fn draw(path: &Path, subject: &Subject) -> Result<(), PlanError> {
    let failed = |error: String| PlanError::Picture { path: path.to_owned(), error };
    let picture = svg::draw(subject).map_err(failed)?;
    std::fs::write(path, picture).map_err(|error| failed(error.to_string()))
}

/// Sizes for a curve: so many to a power of two, over all buckets.
fn curve_sizes(per_octave: u32) -> Vec<u64> {
    let octaves = 2 * (Bucket::COUNT as u32 - 1);
    let size = |step: u32| (1024.0 * (f64::from(step) / f64::from(per_octave)).exp2()).round() as u64;
    (0..=octaves * per_octave).map(size).collect()
}

// Argument parsers.

fn drop_range(text: &str) -> Result<DropRange, String> {
    let one = |text: &str| {
        let (number, scale) = match text.trim().strip_suffix('%') {
            Some(number) => (number.trim_end(), 0.01),
            None => (text.trim(), 1.0),
        };
        let value = number.parse::<f64>().ok().map(|value| value * scale);
        value
            .filter(|drop| (0.0..=0.5).contains(drop))
            .ok_or_else(|| format!("{text:?} is no loss rate: a number from 0 to 0.5, or per cent up to 50%"))
    };
    let Some((low, high)) = text.split_once("..") else {
        return one(text).map(|drop| DropRange { low: drop, likely: drop, high: drop });
    };
    let (low, high) = (one(low)?, one(high)?);
    if low > high {
        return Err("the range ends below its beginning".to_owned());
    }
    Ok(DropRange { low, likely: (low * high).sqrt(), high })
}

fn burst(text: &str) -> Result<f64, String> {
    within(text, 1.0..=10_000.0, "a number of packets from 1 to 10000")
}

fn percentile(text: &str) -> Result<f64, String> {
    within(text, 50.0..=99.9999, "per cent, from 50 to 99.9999")
}

fn overhead(text: &str) -> Result<f64, String> {
    within(text, 0.0..=4.0, "parity per data, from 0 to 4")
}

fn within(text: &str, range: std::ops::RangeInclusive<f64>, rule: &str) -> Result<f64, String> {
    text.parse().ok().filter(|value| range.contains(value)).ok_or_else(|| rule.to_owned())
}

#[cfg(test)]
mod tests;
