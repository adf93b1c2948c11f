//! Choices of `auto`, as /status and /metrics tell them.

use std::fmt;
use std::time::Instant;

use config::Policy;
use reliability::human;
use reliability::selector::{Decision, Judged};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::choose::{Choice, STREAMS, scheme_name};

/// The scheme in force on a stream of a class of scheme `auto`, and why. Times are in seconds,
/// shares from 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChoiceStatus {
    /// The class.
    pub class: String,
    /// "bulk", which carries the data, or "prompt", which carries ACKs and the like.
    pub stream: String,
    /// In force, as "mds(32,8)"; absent without a session.
    pub scheme: Option<String>,
    /// For how long.
    pub since: Option<f64>,
    /// The percentile of the completion time that is to be small, in percent.
    pub percentile: f64,
    /// Parity per data at most.
    pub max_overhead: f64,
    /// For which messages it was decided, as "messages of 16 KiB to 64 KiB"; absent, as all that
    /// follows, while nothing is decided: the scheme is what a session begins with.
    pub messages: Option<String>,
    /// The decision's expectations.
    pub expected: Option<Expected>,
    /// The best of each other kind that is allowed, best first.
    pub runners_up: Vec<Expected>,
    /// The link as it was known then.
    pub link: Option<LinkStatus>,
    /// Why it was decided then.
    pub because: Option<String>,
    /// For how long the decision has held.
    pub decided: Option<f64>,
    /// The reason why there is no decision, or no newer one.
    pub missing: Option<String>,
}

/// A scheme and what is expected of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Expected {
    /// As "mds(32,8)".
    pub scheme: String,
    /// The percentile of the completion time at the low, the likely and the high loss rate.
    pub time: [f64; 3],
    /// Packets beyond one per data packet, per data packet.
    pub overhead: f64,
}

/// A link as a decision saw it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LinkStatus {
    /// Bit/s.
    pub rate: u64,
    /// Round-trip time without queueing.
    pub rtt: f64,
    /// Share of packets lost: low, likely, high.
    pub drop: [f64; 3],
    /// Mean number of packets lost in a row.
    pub burst: f64,
    /// Payload of a full packet in bytes.
    pub packet: u64,
}

impl ChoiceStatus {
    pub(super) fn new(choice: &Choice, now: Instant) -> Self {
        let ago = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
        let decision = choice.decision.as_ref();
        Self {
            class: choice.class.clone(),
            stream: choice.stream.to_owned(),
            scheme: choice.scheme.map(scheme_name),
            since: choice.since.map(ago),
            percentile: choice.objective.percentile,
            max_overhead: choice.objective.max_overhead,
            messages: decision.map(|decision| decision.bucket.to_string()),
            expected: decision.map(|decision| Expected::new(&decision.chosen)),
            runners_up: decision
                .map_or_else(Vec::new, |decision| decision.runners_up.iter().map(Expected::new).collect()),
            link: decision.map(LinkStatus::new),
            because: decision.map(|decision| decision.reason.to_string()),
            decided: decision.map(|decision| ago(decision.at)),
            missing: choice.missing.map(|missing| missing.to_string()),
        }
    }

    /// The line above a class's streams.
    pub(super) fn heading(&self) -> String {
        let Self { class, percentile, max_overhead, .. } = self;
        let overhead = human::share(*max_overhead);
        format!(
            "class {class}: auto, for {percentile} % of messages to complete soon within an overhead of {overhead}\n"
        )
    }
}

impl Expected {
    fn new(judged: &Judged) -> Self {
        let time = judged.times().map(|time| time.as_secs_f64());
        Self { scheme: judged.candidate.to_string(), time, overhead: judged.overhead }
    }
}

impl LinkStatus {
    fn new(decision: &Decision) -> Self {
        let estimate = &decision.estimate;
        Self {
            rate: estimate.link.rate,
            rtt: estimate.link.rtt_seconds(),
            drop: [estimate.drop_low, estimate.link.drop(), estimate.drop_high],
            burst: estimate.link.burst(),
            packet: estimate.link.payload() as u64,
        }
    }
}

/// Lines for a terminal, below [`ChoiceStatus::heading`].
impl fmt::Display for ChoiceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {:<8}", self.stream)?;
        match (&self.scheme, self.since) {
            (Some(scheme), Some(since)) => writeln!(f, "{scheme}, for {}", human::span(since))?,
            (Some(scheme), None) => writeln!(f, "{scheme}")?,
            (None, _) => writeln!(f, "none in force")?,
        }
        if let (Some(messages), Some(expected)) = (&self.messages, &self.expected) {
            let [low, likely, high] = expected.time.map(human::seconds);
            writeln!(
                f,
                "    for       {messages}: {} % within {likely} ({low} to {high} over the loss rates), overhead {}",
                self.percentile,
                human::share(expected.overhead)
            )?;
            let others: Vec<String> = self.runners_up.iter().map(Expected::in_short).collect();
            let others =
                if others.is_empty() { "nothing else is allowed".to_owned() } else { others.join(", ") };
            writeln!(f, "    else      {others}")?;
        }
        if let Some(LinkStatus { rate, rtt, drop, burst, packet }) = self.link {
            let [low, likely, high] = drop.map(human::share);
            writeln!(
                f,
                "    link      {}, RTT {}, loss {likely} ({low} to {high}) in runs of {burst:.1}, packets of {packet} B",
                human::rate(rate as f64),
                human::seconds(rtt)
            )?;
        }
        match (&self.because, self.decided) {
            (Some(because), Some(decided)) => {
                writeln!(f, "    because   {because}; decided {} ago", human::span(decided))?;
            }
            _ => writeln!(f, "    because   nothing is decided yet: sessions begin with it")?,
        }
        match &self.missing {
            Some(missing) => writeln!(f, "    missing   {missing}"),
            None => Ok(()),
        }
    }
}

impl Expected {
    fn in_short(&self) -> String {
        let [_, likely, _] = self.time;
        format!("{} {} with overhead {}", self.scheme, human::seconds(likely), human::share(self.overhead))
    }
}

/// The choices for classes that the policy leaves to the gateway, in its order: what was chosen
/// last may have been under another.
pub(super) fn of<'a>(policy: &'a Policy, choices: &'a [Choice]) -> impl Iterator<Item = &'a Choice> {
    let classes = policy.classes().iter().filter(|class| matches!(class.scheme, config::Scheme::Auto(_)));
    classes.flat_map(|class| choices.iter().filter(|choice| choice.class == class.name))
}

/// Which scheme is in force, in Prometheus' way of telling what is no number: a series per stream
/// whose value is 1. Its labels change with the scheme, so it stands in no table. Names need no
/// escaping: see `config`.
pub(super) fn metric(site: &str, peer: &str, policy: &Policy, choices: &[Choice]) -> String {
    let mut text = "# HELP longhaul_scheme_info The scheme in force on each stream of each class\n\
                    # TYPE longhaul_scheme_info gauge\n"
        .to_owned();
    let [prompt, _] = STREAMS;
    for class in policy.classes() {
        for stream in STREAMS {
            let is_it = |choice: &&Choice| choice.class == class.name && choice.stream == stream;
            let scheme = match class.scheme {
                config::Scheme::Auto(_) => {
                    choices.iter().find(is_it).and_then(|choice| choice.scheme).map(scheme_name)
                }
                // What is prompt is repaired in any case.
                config::Scheme::None if stream == prompt => Some("sr".to_owned()),
                _ => Some(super::units::scheme_name(&class.scheme)),
            };
            let Some(scheme) = scheme else { continue };
            text += &format!(
                "longhaul_scheme_info{{site=\"{site}\",peer=\"{peer}\",class=\"{}\",stream=\"{stream}\",scheme=\"{scheme}\"}} 1\n",
                class.name
            );
        }
    }
    text
}
