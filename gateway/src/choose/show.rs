//! A choice for people to see.

use std::time::Instant;

use reliability::human;
use reliability::model::Candidate;
use reliability::selector::{Decision, Judged, Objective};
use reliability::stream::Scheme;

use super::Missing;

/// The scheme in force on a stream of a class of scheme `auto`, and why.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The class's name.
    pub class: String,
    /// One of [`super::STREAMS`].
    pub stream: &'static str,
    /// Returns the objective of the class.
    pub objective: Objective,
    /// In force; `None` without a session.
    pub scheme: Option<Scheme>,
    /// Since then.
    pub since: Option<Instant>,
    /// The decision behind it; `None` while there is none, and the scheme is what a session begins
    /// with.
    pub decision: Option<Decision>,
    /// The reason why there is no decision, or no newer one.
    pub missing: Option<Missing>,
}

/// `mds(32,8)`, as decisions and /status spell it.
pub fn scheme_name(scheme: Scheme) -> String {
    Candidate::of(scheme).map_or_else(|| "none".to_owned(), |candidate| candidate.to_string())
}

/// One line for each decision that is obeyed.
pub(super) fn log(class: &str, stream: &str, was: Option<Scheme>, decision: &Decision) {
    let link = &decision.estimate.link;
    let runners_up: Vec<String> = decision.runners_up.iter().map(judged).collect();
    tracing::info!(
        class,
        stream,
        scheme = %decision.chosen.candidate,
        was = was.map(scheme_name),
        because = %decision.reason,
        messages = %decision.bucket,
        percentile = decision.objective.percentile,
        expected = judged(&decision.chosen),
        runners_up = runners_up.join(", "),
        rate = human::rate(link.rate as f64),
        rtt = ?link.rtt,
        drop = link.drop(),
        drop_low = decision.estimate.drop_low,
        drop_high = decision.estimate.drop_high,
        burst = link.burst(),
        packet = link.payload(),
        waiting = decision.load.waiting as u64,
        under_way = decision.load.under_way as u64,
        between = decision.load.between,
        "scheme chosen"
    );
}

/// `mds(32,8) 25.1 ms +25 %`: the percentile at the likely loss rate, and the overhead.
fn judged(one: &Judged) -> String {
    let [_, likely, _] = one.times();
    format!("{} {} +{}", one.candidate, human::time(likely), human::share(one.overhead))
}
