//! A point of the plane: what `auto` chose, what else there is, and how they compare.

use std::fmt::Write;
use std::time::Instant;

use gateway::simulate::SimulateError;
use linksim::transfer::{Told, Transfer};
use reliability::model::{Candidate, Message, Timers, completion};
use reliability::selector::{Allowed, Bucket, Config, Estimate, Load, Objective, Selector};
use serde::Serialize;
use splice::auto_flush;

use super::bounds::{P99, QUANTILE};
use super::grid::{FIXED, Key};
use super::{MAX_OVERHEAD, OF_BEST, OF_SR, known};

/// That any of a cell's bounds on one side does not hold.
pub(super) const RISK: f64 = 1e-3;
/// Fixed schemes that the model finds slower than the best one by more than this are not simulated
/// ...
const WORTH: f64 = 1.25;
/// ... beyond so many, unless they cost nearly nothing.
const CONTENDERS: usize = 4;
const CHEAP: u64 = 1_000_000;

/// A scheme in a cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) scheme: Candidate,
    /// The losses that its streams know of.
    told: Option<Told>,
    /// 99th percentile by the model, in seconds.
    pub(super) model: f64,
    /// By the simulator.
    pub(super) simulated: Option<P99>,
    /// To be simulated.
    contends: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) key: Key,
    /// Messages of each scheme simulated; none: the model judges.
    pub(super) messages: u64,
    pub(super) auto: Entry,
    pub(super) fixed: Vec<Entry>,
}

/// How many times longer `auto` takes than something else.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Ratio {
    /// By the percentiles measured.
    pub(super) point: f64,
    /// Surely more than this.
    pub(super) sure: f64,
}

impl Cell {
    /// Plans what the selector chooses, and what contends with it.
    pub(super) fn plan(key: Key, estimate: &Estimate, messages: u64) -> Self {
        let timers = Timers { flush: auto_flush(&key.link()), ..Timers::default() };
        let entry = |scheme, told| {
            let time = completion(&key.link(), &timers, scheme, Message::new(key.size));
            let model = time.percentile(QUANTILE * 100.0).as_secs_f64();
            Entry { scheme, told, model, simulated: None, contends: false }
        };
        let chosen = choice(&key, estimate, timers);
        let told = matches!(chosen, Candidate::Hybrid(_)).then(|| known::told(estimate));
        let mut cell = Self {
            key,
            messages,
            auto: Entry { contends: true, ..entry(chosen, told) },
            fixed: FIXED.map(|scheme| entry(scheme, None)).to_vec(),
        };
        cell.fixed.sort_by(|a, b| a.model.total_cmp(&b.model));
        cell.choose_contenders();
        cell
    }

    fn choose_contenders(&mut self) {
        let best = self.fixed.first().map_or(0.0, |best| best.model);
        let cheap = self.messages * self.key.packets() * FIXED.len() as u64 <= CHEAP;
        for (rank, entry) in self.fixed.iter_mut().enumerate() {
            let close = rank < CONTENDERS && entry.model <= best * WORTH;
            entry.contends = close || cheap || entry.scheme == Candidate::Sr;
        }
    }

    /// Returns the transfers to simulate: 0 is `auto`'s choice, then the fixed ones from 1. Where
    /// `auto` chose one of these, it runs once.
    pub(super) fn transfers(&self) -> Result<Vec<(usize, Transfer)>, SimulateError> {
        if self.messages == 0 {
            return Ok(Vec::new());
        }
        let entries = std::iter::once(&self.auto).chain(&self.fixed).enumerate();
        let to_run = entries.filter(|(index, entry)| entry.contends && (*index == 0 || !self.is_auto(entry)));
        to_run
            .map(|(index, entry)| {
                let transfer = self.key.transfer(entry.scheme, entry.told)?;
                Ok((index, Transfer { messages: self.messages, ..transfer }))
            })
            .collect()
    }

    fn is_auto(&self, entry: &Entry) -> bool {
        entry.scheme == self.auto.scheme && entry.told == self.auto.told
    }

    pub(super) fn take(&mut self, scheme: usize, p99: Option<P99>) {
        let chosen = self.auto;
        let same = |entry: &&mut Entry| entry.scheme == chosen.scheme && entry.told == chosen.told;
        match scheme.checked_sub(1) {
            None => {
                self.auto.simulated = p99;
                self.fixed.iter_mut().filter(same).for_each(|entry| entry.simulated = p99);
            }
            Some(fixed) => {
                if let Some(entry) = self.fixed.get_mut(fixed) {
                    entry.simulated = p99;
                }
            }
        }
    }

    /// By the simulator; else the model has to do.
    pub(super) fn is_simulated(&self) -> bool {
        self.messages > 0
    }

    /// The percentile by which the cell is judged; `None` if the scheme did not contend.
    pub(super) fn p99(&self, entry: &Entry) -> Option<P99> {
        if self.is_simulated() { entry.simulated } else { Some(P99::exact(entry.model)) }
    }

    pub(super) fn best(&self) -> Option<(&Entry, P99)> {
        let known = self.fixed.iter().filter_map(|entry| Some((entry, self.p99(entry)?)));
        known.min_by(|(_, a), (_, b)| a.value.total_cmp(&b.value))
    }

    pub(super) fn sr(&self) -> Option<P99> {
        self.fixed.iter().find(|entry| entry.scheme == Candidate::Sr).and_then(|entry| self.p99(entry))
    }

    /// The scheme that is surely below all others' bounds need not be the one that looks best.
    pub(super) fn over_best(&self) -> Option<Ratio> {
        let auto = self.p99(&self.auto)?;
        let (_, best) = self.best()?;
        let high =
            self.fixed.iter().filter_map(|entry| Some(self.p99(entry)?.high)).fold(f64::INFINITY, f64::min);
        Some(Ratio { point: auto.value / best.value, sure: auto.low / high })
    }

    pub(super) fn over_sr(&self) -> Option<Ratio> {
        let (auto, sr) = (self.p99(&self.auto)?, self.sr()?);
        Some(Ratio { point: auto.value / sr.value, sure: auto.low / sr.high })
    }

    pub(super) fn is_violated(&self) -> bool {
        self.exceeds(|ratio| ratio.sure)
    }

    /// It looks bad, and may be chance.
    pub(super) fn is_open(&self) -> bool {
        !self.is_violated() && self.exceeds(|ratio| ratio.point)
    }

    fn exceeds(&self, value: impl Fn(Ratio) -> f64) -> bool {
        let beyond = |ratio: Option<Ratio>, limit: f64| ratio.is_some_and(|ratio| value(ratio) > limit);
        beyond(self.over_best(), OF_BEST) || beyond(self.over_sr(), OF_SR)
    }

    /// Percentile of the simulator over that of the model, for each scheme that has both.
    pub(super) fn agreements(&self) -> impl Iterator<Item = (f64, &Entry)> {
        let entries =
            std::iter::once(&self.auto).chain(self.fixed.iter().filter(|entry| !self.is_auto(entry)));
        entries.filter_map(|entry| Some((entry.simulated?.value / entry.model, entry)))
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let auto = std::iter::once(("auto", &self.auto));
        let rows = auto.chain(self.fixed.iter().map(|entry| ("fixed", entry)));
        rows.map(|(role, entry)| Row {
            size: self.key.size,
            drop: self.key.drop,
            burst: self.key.burst,
            rtt: self.key.rtt.as_secs_f64(),
            rate_bit_s: self.key.rate,
            role,
            scheme: entry.scheme.to_string(),
            messages: if entry.simulated.is_some() { self.messages } else { 0 },
            model_p99: entry.model,
            p99: entry.simulated.map(|p99| p99.value),
            p99_low: entry.simulated.map(|p99| p99.low),
            p99_high: entry.simulated.map(|p99| p99.high),
            violated: self.is_violated(),
        })
        .collect()
    }
}

/// Returns the choice of the production selector at once, knowing this of the link.
fn choice(key: &Key, estimate: &Estimate, timers: Timers) -> Candidate {
    let objective = Objective {
        percentile: QUANTILE * 100.0,
        max_overhead: MAX_OVERHEAD,
        max_block: u8::MAX,
        allowed: Allowed::ALL,
    };
    let mut selector = Selector::new(objective, Config { timers, ..Config::default() });
    selector.evaluate(Bucket::of(key.size), &Load::default(), estimate, Instant::now()).chosen.candidate
}

/// A scheme in a cell. Times in seconds; empty where it was not simulated.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    size: u64,
    drop: f64,
    /// Mean run of losses; `None`: independent.
    burst: Option<f64>,
    rtt: f64,
    rate_bit_s: u64,
    /// `auto`, or `fixed`.
    role: &'static str,
    scheme: String,
    messages: u64,
    model_p99: f64,
    p99: Option<f64>,
    p99_low: Option<f64>,
    p99_high: Option<f64>,
    /// `auto` is surely too slow in this cell.
    violated: bool,
}

/// With a line per row.
pub(super) fn csv(rows: &[Row]) -> String {
    let mut text = String::from(
        "size,drop,burst,rtt,rate_bit_s,role,scheme,messages,model_p99,p99,p99_low,p99_high,violated\n",
    );
    for row in rows {
        let may = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        let [burst, p99, low, high] = [row.burst, row.p99, row.p99_low, row.p99_high].map(may);
        let Row { size, drop, rtt, rate_bit_s, role, scheme, messages, model_p99, violated, .. } = row;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{size},{drop},{burst},{rtt},{rate_bit_s},{role},\"{scheme}\",{messages},{model_p99},{p99},{low},{high},{violated}"
        );
    }
    text
}
