//! The plan for other programs. Times in seconds, shares from 0 to 1.

use reliability::model::plan::{Cell, Row};
use reliability::selector::Decision;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Estimate, Subject};

/// A plan: the link, and what is expected on it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PlanReport {
    /// The link that it is for.
    pub link: PlannedLink,
    /// Where the link is more than the model knows of.
    pub warnings: Vec<String>,
    /// One for each class of the policy; one without a policy.
    pub classes: Vec<PlannedClass>,
}

/// A link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PlannedLink {
    /// Bit/s.
    pub rate: u64,
    /// Round-trip time.
    pub rtt: f64,
    /// Share of packets lost: low, likely, high.
    pub drop: [f64; 3],
    /// Mean number of packets lost in a row.
    pub burst: f64,
    /// Payload of a full packet in bytes.
    pub packet: u64,
}

/// A class, or all traffic.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PlannedClass {
    /// Its name; absent without a policy.
    pub class: Option<String>,
    /// The percentile of the completion time, in percent.
    pub percentile: f64,
    /// One for each message size, ascending.
    pub sizes: Vec<PlannedSize>,
}

/// Messages of one size.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PlannedSize {
    /// Bytes.
    pub size: u64,
    /// The fastest scheme, or one as fast that sends less.
    pub best: String,
    /// Each scheme that was compared.
    pub schemes: Vec<PlannedScheme>,
    /// The choice of `auto`.
    pub auto: PlannedScheme,
}

/// A scheme.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PlannedScheme {
    /// As "mds(32,8)".
    pub scheme: String,
    /// Mean completion time; absent for `auto`.
    pub mean: Option<f64>,
    /// The percentile of the completion time.
    pub time: f64,
    /// Packets beyond one per data packet, per data packet.
    pub overhead: f64,
}

impl PlannedLink {
    pub(super) fn new(estimate: &Estimate) -> Self {
        let link = &estimate.link;
        Self {
            rate: link.rate,
            rtt: link.rtt_seconds(),
            drop: [estimate.drop_low, link.drop(), estimate.drop_high],
            burst: link.burst(),
            packet: link.payload() as u64,
        }
    }
}

impl PlannedClass {
    pub(super) fn new(subject: &Subject) -> Self {
        let plan = subject.plan(&super::bucket_sizes());
        let names: Vec<String> = plan.candidates.iter().map(ToString::to_string).collect();
        let sizes = plan.rows.iter().zip(subject.decisions());
        Self {
            class: subject.name.clone(),
            percentile: subject.objective.percentile,
            sizes: sizes.map(|(row, decision)| PlannedSize::new(&names, row, &decision)).collect(),
        }
    }
}

impl PlannedSize {
    fn new(names: &[String], row: &Row, decision: &Decision) -> Self {
        let scheme = |(name, cell): (&String, &Cell)| PlannedScheme {
            scheme: name.clone(),
            mean: Some(cell.mean.as_secs_f64()),
            time: cell.percentile.as_secs_f64(),
            overhead: cell.overhead,
        };
        let [_, likely, _] = decision.chosen.times();
        Self {
            size: row.size,
            best: names.get(row.best).cloned().unwrap_or_default(),
            schemes: names.iter().zip(&row.cells).map(scheme).collect(),
            auto: PlannedScheme {
                scheme: decision.chosen.candidate.to_string(),
                mean: None,
                time: likely.as_secs_f64(),
                overhead: decision.chosen.overhead,
            },
        }
    }
}
