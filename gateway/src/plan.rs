//! `longhaul plan`: which scheme for which messages on a link, by the completion-time model.

mod json;
pub mod link;
pub mod outlook;
mod plot;
mod svg;
mod table;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use config::{ByteSize, Invalid, Limits, Policy, Rate, Style};
use reliability::link::Link;
use reliability::model::plan::{Crossover, Plan};
use reliability::model::{Block, Candidate, Timers};
use reliability::selector::{Allowed, Bucket, Config, Decision, Estimate, Load, Objective, Selector};
use reliability::{human, model};

use crate::choose;
pub use json::{PlanReport, PlannedClass, PlannedLink, PlannedScheme, PlannedSize};
use link::{Known, LinkArgs, NoLink};

/// Arguments of `longhaul plan`.
#[derive(Debug, Args)]
#[command(after_help = "A loss rate is a number or a percentage, or a range: 1e-3, 0.1%, 1e-4..1e-2.")]
pub struct PlanArgs {
    #[command(flatten)]
    link: LinkArgs,
    /// Rate of the way back, if that is another, such as "20 Mbit/s"
    #[arg(long, value_name = "RATE")]
    back: Option<Rate>,
    /// The percentile of the completion time that counts
    #[arg(long, default_value_t = 99.9, value_parser = percentile)]
    percentile: f64,
    /// Parity per data that `auto` may choose at most
    #[arg(long, default_value_t = 0.5, value_parser = overhead)]
    max_overhead: f64,
    /// Plan for each class of this policy file, by its scheme, percentile and overhead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["percentile", "max_overhead"])]
    policy: Option<PathBuf>,
    /// Show the plan as JSON
    #[arg(long)]
    json: bool,
    /// Draw the times by message size into this file, or the first class's
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The policy file.
    #[error("the policy file cannot be used")]
    Policy(Box<Invalid>),
    /// The link.
    #[error(transparent)]
    Link(#[from] NoLink),
    /// The picture.
    #[error("cannot draw {}: {error}", path.display())]
    Picture {
        /// Where it was to be.
        path: PathBuf,
        /// The drawing's error.
        error: String,
    },
    /// The output.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// The subject of a plan: a class of a policy, or the arguments.
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
    /// Returns the description of the link.
    pub fn link(&self) -> &LinkArgs {
        &self.link
    }

    /// Writes the plan to `out`, and the picture if there is to be one. `known`: of the link,
    /// beside the arguments.
    ///
    /// # Errors
    /// See [`PlanError`].
    pub fn run(&self, out: &mut dyn Write, style: Style, known: &Known) -> Result<(), PlanError> {
        let estimate = self.link.estimate(known)?;
        let subjects = self.subjects(estimate)?;
        let warnings = [
            window_warning(&estimate.link),
            buffer_warning(&estimate.link, subjects.len(), None),
            reports_warning(&estimate.link, self.back),
        ];
        let warnings = warnings.into_iter().flatten();
        if self.json {
            let classes = subjects.iter().map(PlannedClass::new).collect();
            let link = PlannedLink::new(&estimate);
            let report = PlanReport { link, warnings: warnings.collect(), classes };
            write!(out, "{}", crate::json::pretty(&report).map_err(io::Error::from)?)?;
        } else {
            writeln!(out, "{}", headline(&estimate))?;
            for warning in warnings {
                writeln!(out, "{warning}")?;
            }
            for subject in &subjects {
                writeln!(out)?;
                subject.write(out, style)?;
            }
        }
        if let (Some(path), Some(subject)) = (&self.svg, subjects.first()) {
            draw(path, subject)?;
            if !self.json {
                writeln!(out, "\ndrawn: {}", path.display())?;
            }
        }
        Ok(())
    }

    fn subjects(&self, estimate: Estimate) -> Result<Vec<Subject>, PlanError> {
        let Some(path) = &self.policy else {
            let objective = Objective {
                percentile: self.percentile,
                max_overhead: self.max_overhead,
                max_block: u8::MAX,
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
            max_block: u8::MAX,
            allowed: choose::allowed(&class.scheme),
        };
        Self { name: Some(class.name.clone()), candidates, objective, timers, estimate }
    }

    fn plan(&self, sizes: &[u64]) -> Plan {
        model::plan(&self.estimate.link, &self.timers, &self.candidates, sizes, self.objective.percentile)
    }

    /// Returns the choice of `auto` for each bucket.
    fn decisions(&self) -> Vec<Decision> {
        Bucket::all().map(|bucket| self.decision(bucket)).collect()
    }

    fn decision(&self, bucket: Bucket) -> Decision {
        let config = Config { timers: self.timers, ..Config::default() };
        Selector::new(self.objective, config)
            .evaluate(bucket, &Load::default(), &self.estimate, Instant::now())
            .clone()
    }

    fn write(&self, out: &mut dyn Write, style: Style) -> io::Result<()> {
        let plan = self.plan(&bucket_sizes());
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

/// Returns the schemes compared unless a policy names something else.
fn usual() -> Vec<Candidate> {
    vec![Candidate::Sr, Candidate::xor(32, 8), Candidate::mds(32, 8), Candidate::hybrid(32, 8)]
}

/// A policy's scheme as the model knows it, and the streams' settings under it. `none` loses data:
/// it has no completion time.
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
        format!(" ({} to {})", human::share(estimate.drop_low), human::share(estimate.drop_high))
    } else {
        String::new()
    };
    format!(
        "{}, RTT {}, loss {}{range} in runs of {:.1}, packets of {} and {} bytes of headers",
        human::rate(link.rate as f64),
        human::time(link.rtt),
        human::share(link.drop()),
        link.burst(),
        link.payload(),
        link.overhead,
    )
}

/// The model knows no window; streams do.
fn window_warning(link: &Link) -> Option<String> {
    let under_way = link.rtt_seconds() / link.packet_seconds();
    let window = splice::window(link.rate, link.payload() + link.overhead) as f64;
    (under_way > window).then(|| {
        let carried = link.rate as f64 * window / under_way;
        format!(
            "warning: {under_way:.0} packets are under way on this link, and a stream's window holds {window:.0}: a class carries {}\n\
             at most. The times below are those of a window that is large enough; larger packets help.",
            human::rate(carried)
        )
    })
}

/// Returns the bytes that are under way on a full link, and those that `limits.total_buffer` has to
/// have for one flow, or one of so many classes, to fill it.
pub(crate) fn buffer_needed(rate: Rate, rtt: Duration, classes: usize, threads: u8) -> (u64, u64) {
    let under_way = rate.bits_per_second() as f64 / 8.0 * rtt.as_secs_f64();
    let parts = (2 * classes).max(6) as f64 * f64::from(threads.max(1));
    (under_way as u64, (under_way * parts) as u64)
}

/// Warns of a way back that is too thin for reports (docs/configure.md).
fn reports_warning(link: &Link, back: Option<Rate>) -> Option<String> {
    let back = back?.bits_per_second();
    let reports = link.rate / REPORTS;
    (back < reports).then(|| {
        format!(
            "warning: reports take up to {} of the way back, which carries {}. There they are thinned, and losses\n\
             are repaired later. With `peer.congestion = \"adaptive\"`, below {} of it less is sent.",
            human::rate(reports as f64),
            human::rate(back as f64),
            human::rate(link.rate as f64 / 200.0),
        )
    })
}

/// The part of what a way carries that reports on it take of the way back at most.
const REPORTS: u64 = 50;

/// Warns of buffers that are too small for the link (docs/configure.md#sizing).
///
/// The model does not know what gateways hold until it is acknowledged. Of their buffers a flow may
/// have a sixth under way, those of a target host a third, and a class its part of the half.
/// `given` is `limits.total_buffer`, if it is known, and the data-plane threads that divide it.
fn buffer_warning(link: &Link, classes: usize, given: Option<(ByteSize, u8)>) -> Option<String> {
    let (buffer, threads) = given.unwrap_or((Limits::default().total_buffer, 1));
    let is = if given.is_some() { "it is" } else { "the default is" };
    let rate = Rate::from_bits_per_second(link.rate);
    let (under_way, needed) = buffer_needed(rate, link.rtt, classes, threads);
    let divided = match threads {
        0 | 1 => String::new(),
        _ => format!(", which {threads} data-plane threads, or pairs of them, divide among them"),
    };
    (needed > buffer.bytes()).then(|| {
        format!(
            "warning: {} are under way on this link. For one flow or class to fill it, `limits.total_buffer` has to be {} in both\n\
             gateways, and {} for the flows to one target host; {is} {}{divided}.",
            human::size(under_way),
            human::size(needed),
            human::size(under_way * 3 * u64::from(threads)),
            human::size(buffer.bytes()),
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

/// A size for each bucket, as a table has them.
fn bucket_sizes() -> Vec<u64> {
    Bucket::all().map(Bucket::size).collect()
}

/// Sizes for a curve: so many to a power of two, over all buckets.
fn curve_sizes(per_octave: u32) -> Vec<u64> {
    let octaves = 2 * (Bucket::COUNT as u32 - 1);
    let size = |step: u32| (1024.0 * (f64::from(step) / f64::from(per_octave)).exp2()).round() as u64;
    (0..=octaves * per_octave).map(size).collect()
}

// Argument parsers.

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
