//! The published figures, and what the cells say of each.

use std::time::Duration;

use linksim::transfer::{Ring, selective_repeat};
use reliability::human::share;

use super::{BUFFER, DROPS, GIB, Grid, MDS, MIB, NACK, RTO, RTT, SITES, SIZES, XOR, name};

/// Allreduces drawn.
const ALLREDUCES: u64 = 20_000;
/// Messages that had losses; with fewer, the mean is a matter of luck.
const FEW: u64 = 100;
/// A mean this much better or worse is neither.
const DRAW: f64 = 0.01;
/// A code has given way when so many messages need a repair.
const FALLS_BACK: f64 = 0.5;

pub(super) struct Finding {
    pub(super) what: &'static str,
    pub(super) published: &'static str,
    pub(super) ours: String,
    /// Why the two differ, where they do; what the formulas say is `longhaul-lab plan --paper`'s.
    pub(super) because: &'static str,
}

/// A value and where it was found.
type Found = (f64, u64, f64);

impl Grid {
    pub(super) fn findings(&self) -> Vec<Finding> {
        let finding = |what, published, ours| Finding { what, published, ours, because: "" };
        vec![
            finding(
                "Mean of SR RTO against its analytic expectation",
                "within 5 % (1000 samples)",
                self.against_theory(),
            ),
            finding("EC wins over SR RTO in the mean", "128 KiB to 1 GiB at 1e-6 to 1e-2", self.ec_wins()),
            finding(
                "Slowdown of SR RTO against EC, worst case",
                "6.5x mean, 12.2x p99.9",
                format!(
                    "{} mean, {} p99.9",
                    worst(self.over_ec(Self::mean)),
                    worst(self.over_ec(Self::tail))
                ),
            ),
            Finding {
                because: "by the formulas as well EC wins up to 13.5 GiB at 1e-5; not so at 8 GiB if chunks of 64 KiB are lost as rarely as that",
                ..finding("SR RTO wins", "drop below 1e-6; above 1 GiB (8 GiB at 1e-5)", self.sr_wins())
            },
            Finding {
                because: "n repeats take 1 + 3 n round trips or 1 + n, so by the formulas it stays below 3x",
                ..finding(
                    "SR NACK against SR RTO",
                    "up to 4x better, mean and tail",
                    format!(
                        "{} mean, {} p99.9",
                        worst(self.nack_gain(Self::mean)),
                        worst(self.nack_gain(Self::tail))
                    ),
                )
            },
            Finding {
                because: "by the formulas one message in ten does from 1.2e-3 on, every other from 2.9e-3",
                ..finding("128 MiB, XOR(32,8) falls back", "at about 1e-3", self.falls_back(XOR))
            },
            finding("128 MiB, MDS(32,8) holds", "beyond 1e-2", self.falls_back(MDS)),
            finding(
                "128 MiB, slowdown of SR RTO over lossless for p > 1e-4",
                "3x to 10x",
                self.over_lossless(),
            ),
            finding(
                "Ring Allreduce p99.9, SR RTO over EC, growing with the drop rate",
                "3x to more than 6x",
                self.allreduce(),
            ),
        ]
    }

    /// Where the model is exact: the message is sent within a timeout.
    fn against_theory(&self) -> String {
        let mut worst: Option<(Found, f64)> = None;
        for (size, drop) in pairs() {
            let Some(cell) = self.cell(RTO, size, drop) else { continue };
            let serialisation = cell.transfer.ideal() - RTT;
            // Means that are not known to 2 % tell nothing about 5 %, nor do those of few losses.
            let (mean, error) = (cell.outcome.completion.mean(), cell.outcome.completion.standard_error());
            if serialisation > 3 * RTT || error > 0.02 * mean || cell.outcome.repaired < FEW {
                continue;
            }
            let packets = cell.transfer.packets();
            let injection = Duration::from_secs_f64(serialisation.as_secs_f64() / packets as f64);
            let expected = selective_repeat(packets, injection, drop, 3 * RTT, RTT).as_secs_f64();
            let off = mean / expected - 1.0;
            if worst.is_none_or(|((most, ..), _)| off.abs() > f64::abs(most)) {
                worst = Some(((off, size, drop), error / mean));
            }
        }
        match worst {
            Some(((off, size, drop), error)) => format!(
                "{} off at most, at {} and {} (its standard error {})",
                share(off),
                name(size),
                share(drop),
                share(error)
            ),
            None => "no cell has enough messages".to_owned(),
        }
    }

    fn ec_wins(&self) -> String {
        let compared = self.over_ec(Self::mean);
        let wins = compared.iter().filter(|(ratio, ..)| *ratio > 1.0 + DRAW).count();
        // Where hardly anything is lost, parity costs more than it saves.
        let loses: Vec<String> = compared
            .iter()
            .filter(|(ratio, ..)| *ratio < 1.0 - DRAW)
            .map(|(ratio, size, drop)| format!(", {} at {} ({ratio:.2}x)", name(*size), share(*drop)))
            .collect();
        let even = compared.len() - wins - loses.len();
        format!(
            "in {wins} of {} cells; even to 1 % in {even}; not in {}{}",
            compared.len(),
            loses.len(),
            loses.concat()
        )
    }

    /// The ratio by cell of the grid.
    fn ratios(&self, of: &'static str, by: &'static str, value: Value) -> Vec<Found> {
        let ratio =
            |(size, drop)| Some((value(self, of, size, drop)? / value(self, by, size, drop)?, size, drop));
        pairs().into_iter().filter_map(ratio).collect()
    }

    fn over_ec(&self, value: Value) -> Vec<Found> {
        self.ratios(RTO, MDS, value)
    }

    fn nack_gain(&self, value: Value) -> Vec<Found> {
        self.ratios(RTO, NACK, value)
    }

    fn sr_wins(&self) -> String {
        let say = |what: &str, size, drop| {
            let ratio = self.mean(RTO, size, drop).zip(self.mean(MDS, size, drop)).map(|(sr, ec)| sr / ec);
            ratio.map_or(format!("{what}: not run"), |ratio| {
                format!("{what}: SR RTO takes {ratio:.2}x of EC's time")
            })
        };
        format!("{}; {}", say("128 MiB at 1e-7", 128 * MIB, 1e-7), say("8 GiB at 1e-5", 8 * GIB, 1e-5))
    }

    fn falls_back(&self, scheme: &'static str) -> String {
        let mut shares: Vec<(f64, f64)> = self
            .cells
            .iter()
            .filter(|(key, _)| (key.scheme, key.size) == (scheme, 128 * MIB))
            .map(|(key, cell)| {
                (key.drop, cell.outcome.repaired as f64 / cell.transfer.messages.max(1) as f64)
            })
            .collect();
        shares.sort_by(|a, b| a.0.total_cmp(&b.0));
        let first = shares.iter().find(|(_, share)| *share >= FALLS_BACK);
        let head = first.map_or("in no cell do half of the messages fall back".to_owned(), |(drop, _)| {
            format!("half of the messages fall back from {} on", share(*drop))
        });
        let shares = shares.iter().filter(|(drop, _)| *drop >= 1e-4);
        let shares: Vec<String> =
            shares.map(|(drop, fallen)| format!("{}: {}", share(*drop), share(*fallen))).collect();
        format!("{head} (that do: {})", shares.join(", "))
    }

    fn over_lossless(&self) -> String {
        let mut slowdowns: Vec<(f64, f64)> = self
            .cells
            .iter()
            .filter(|(key, _)| (key.scheme, key.size) == (RTO, 128 * MIB) && key.drop >= 1e-4)
            .map(|(key, cell)| {
                (key.drop, cell.outcome.completion.mean() / cell.transfer.ideal().as_secs_f64())
            })
            .collect();
        slowdowns.sort_by(|a, b| a.0.total_cmp(&b.0));
        let slowdowns: Vec<String> =
            slowdowns.iter().map(|(drop, slowdown)| format!("{}: {slowdown:.1}x", share(*drop))).collect();
        slowdowns.join(", ")
    }

    fn allreduce(&self) -> String {
        let ring = Ring { sites: SITES };
        let tail = |scheme, drop| {
            let hops = &self.cell(scheme, BUFFER / SITES, drop)?.outcome.completion;
            Some(ring.run(hops, ALLREDUCES, self.seed).ok()?.quantile(0.999))
        };
        let ratio = |drop| Some(format!("{}: {:.1}x", share(drop), tail(RTO, drop)? / tail(MDS, drop)?));
        let ratios: Vec<String> = [1e-4, 1e-3, 1e-2].into_iter().filter_map(ratio).collect();
        format!(
            "{} ({SITES} sites, {} in segments of {})",
            ratios.join(", "),
            name(BUFFER),
            name(BUFFER / SITES)
        )
    }
}

type Value = fn(&Grid, &'static str, u64, f64) -> Option<f64>;

fn pairs() -> Vec<(u64, f64)> {
    SIZES.iter().flat_map(|size| DROPS.map(|drop| (*size, drop))).collect()
}

/// The largest, and where it is.
fn worst(values: Vec<Found>) -> String {
    match values.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((value, size, drop)) => format!("{value:.1}x ({} at {})", name(size), share(drop)),
        None => "not known".to_owned(),
    }
}
