//! The contents of /doctor, and how `longhaul doctor` shows them: whether the patience of each
//! flow's requester suits the link.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use reliability::human;
use roce::cm::Timeout;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use splice::Patience;

use crate::telemetry::ShownFlows;

/// Flows told of at most.
const MOST: usize = 10_000;
/// Retries that programs mostly ask for. They are assumed of those that name none.
const USUAL_RETRIES: u8 = 7;
/// Round trips that a single ACK timeout should last: docs/install.md#ack-timeouts.
const ROUND_TRIPS: u32 = 4;

/// The patience of requesters at this site. Times are in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorReport {
    /// The site of the peer that the flows cross to; empty from a gateway that does not tell.
    #[serde(default)]
    pub peer: String,
    /// Smoothed round-trip time to the peer; absent without a session or before it is measured.
    pub rtt: Option<f64>,
    /// `peer.resume_for` of this site; the smaller of both sites' holds.
    pub resume_for: f64,
    /// The least exponent of the ACK timeout that suits the link.
    pub exponent: Option<u8>,
    /// The least exponent with which seven retries last as long as `resume_for`.
    pub resume_exponent: u8,
    /// How many flows have their requester at this site; where one host was asked about, of its.
    pub total: usize,
    /// The first 10,000 of them.
    pub flows: Vec<DoctoredFlow>,
}

/// A flow whose requester is at this site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DoctoredFlow {
    /// The requester's address.
    pub requester: IpAddr,
    /// The requester's queue pair, if it is known.
    pub requester_qpn: Option<u32>,
    /// The target's address.
    pub target: IpAddr,
    /// The target's queue pair.
    pub target_qpn: u32,
    /// Where the ACK timeout is known from.
    pub source: PatienceSource,
    /// The ACK timeout; absent if there is none, or it is not known.
    pub ack_timeout: Option<f64>,
    /// Retries after it; absent if they are not known.
    pub retries: Option<u8>,
    /// How long the requester waits before it gives up; absent if that is for ever or not known.
    pub patience: Option<f64>,
    /// How often it sent again what it had sent, after a silence.
    pub repeats: u32,
    /// The shortest of these silences.
    pub repeated_after: Option<f64>,
    /// The judgement: whether its patience suits the link.
    pub verdict: Verdict,
}

/// Where an ACK timeout is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PatienceSource {
    /// A REQ and its REP, as they reached the requester. A program may set another one afterwards.
    Cm,
    /// Requests that came again. Seven retries are assumed.
    Repeats,
    /// Nothing was seen yet.
    Nothing,
}

/// A judgement: whether a requester's patience suits the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It outlasts repairs, and a lost session.
    Suits,
    /// It outlasts repairs. It gives up before a lost session is given up.
    EndsInOutages,
    /// It waits for less than four round trips, and so sends again what only was repaired.
    RepeatsInVain,
    /// It waits for less than a round trip, and so sends everything again.
    TooShort,
    /// It gives up within four round trips.
    GivesUp,
    /// It has no ACK timeout: it never sends again, and never gives up.
    NeverRepeats,
    /// Too little is known of the flow, or of the link.
    Unknown,
}

impl Verdict {
    /// Says it in a few words.
    const fn text(self) -> &'static str {
        match self {
            Self::Suits => "suits",
            Self::EndsInOutages => "ends in outages",
            Self::RepeatsInVain => "repeats in vain",
            Self::TooShort => "too short",
            Self::GivesUp => "gives up",
            Self::NeverRepeats => "never repeats",
            Self::Unknown => "unknown",
        }
    }
}

/// The link as patience is judged by it.
#[derive(Clone, Copy, Debug)]
struct Judge {
    /// `None` if it is not known.
    rtt: Option<Duration>,
    resume_for: Duration,
}

impl Judge {
    /// Judges a requester that repeats after `timeout`, and gives up after `patience`.
    fn judge(self, timeout: Duration, patience: Duration) -> Verdict {
        let Some(rtt) = self.rtt else { return Verdict::Unknown };
        match () {
            () if patience < ROUND_TRIPS * rtt => Verdict::GivesUp,
            () if timeout < rtt => Verdict::TooShort,
            () if timeout < ROUND_TRIPS * rtt => Verdict::RepeatsInVain,
            () if patience < self.resume_for => Verdict::EndsInOutages,
            () => Verdict::Suits,
        }
    }

    fn of(self, flow: &Patience) -> DoctoredFlow {
        let told = flow.terms.map(|terms| (terms.ack_timeout, terms.retries));
        let (source, timeout, retries) = match (told, flow.interval) {
            (Some((timeout, retries)), _) => (PatienceSource::Cm, Some(timeout.duration()), Some(retries)),
            (None, Some(interval)) => (PatienceSource::Repeats, Some(interval), None),
            (None, None) => (PatienceSource::Nothing, None, None),
        };
        let is_endless = told.is_some_and(|(timeout, _)| timeout.code() == 0);
        let timeout = timeout.filter(|_| !is_endless);
        let patience = timeout.map(|timeout| patience(timeout, retries.unwrap_or(USUAL_RETRIES)));
        let verdict = match timeout.zip(patience) {
            None if is_endless => Verdict::NeverRepeats,
            None => Verdict::Unknown,
            Some((timeout, patience)) => self.judge(timeout, patience),
        };
        DoctoredFlow {
            requester: flow.requester,
            requester_qpn: flow.requester_qpn.map(|qpn| qpn.get()),
            target: flow.target,
            target_qpn: flow.target_qpn.get(),
            source,
            ack_timeout: timeout.map(|timeout| timeout.as_secs_f64()),
            retries,
            patience: patience.map(|patience| patience.as_secs_f64()),
            repeats: flow.repeats,
            repeated_after: flow.interval.map(|interval| interval.as_secs_f64()),
            verdict,
        }
    }
}

/// The first attempt and each retry: docs/hosts.md#how-patience-adds-up.
fn patience(timeout: Duration, retries: u8) -> Duration {
    timeout * (u32::from(retries) + 1)
}

impl DoctorReport {
    /// Judges the flows of each thread: all hosts', or one's.
    pub(super) fn of(
        threads: &[ShownFlows],
        host: Option<IpAddr>,
        rtt: Option<Duration>,
        resume_for: Duration,
    ) -> Self {
        let judge = Judge { rtt, resume_for };
        let lasts = |code: &u8| patience(Timeout::new(*code).duration(), USUAL_RETRIES) >= resume_for;
        let mut report = Self {
            rtt: rtt.map(|rtt| rtt.as_secs_f64()),
            resume_for: resume_for.as_secs_f64(),
            exponent: rtt.map(|rtt| Timeout::at_least(ROUND_TRIPS * rtt).code()),
            resume_exponent: (1..31).find(lasts).unwrap_or(31),
            ..Self::default()
        };
        let is_meant =
            |flow: &&Patience| host.is_none_or(|host| [flow.requester, flow.target].contains(&host));
        for flow in threads.iter().flat_map(|thread| thread.patience.iter()).filter(is_meant) {
            report.total += 1;
            if report.flows.len() < MOST {
                report.flows.push(judge.of(flow));
            }
        }
        report
    }

    /// Says what the verdicts that were given mean, and what to do.
    fn advice(&self) -> Vec<String> {
        let has = |verdict| self.flows.iter().any(|flow| flow.verdict == verdict);
        let exponent = self.exponent.map_or_else(|| "?".to_owned(), |exponent| exponent.to_string());
        let mut lines = Vec::new();
        if has(Verdict::GivesUp) || has(Verdict::TooShort) || has(Verdict::RepeatsInVain) {
            lines.push(format!(
                "gives up, too short, repeats in vain: an ACK timeout of {exponent} (exponent) or more, and 7 retries."
            ));
        }
        if has(Verdict::EndsInOutages) {
            lines.push(format!(
                "ends in outages: the program ends before a lost session does ({}); \
                 an ACK timeout of {} (exponent), and 7 retries, outlast it.",
                human::span(self.resume_for),
                self.resume_exponent
            ));
        }
        if has(Verdict::NeverRepeats) {
            lines.push("never repeats: one packet that the LAN loses halts the program for good.".to_owned());
        }
        if has(Verdict::Unknown) {
            let enough = match self.exponent {
                Some(exponent) => format!("is {exponent} or more"),
                None => format!("lasts {ROUND_TRIPS} round trips or more"),
            };
            lines.push(format!(
                "unknown: no connection management was seen, and no repeat; see that the timeout {enough}."
            ));
        }
        if self.flows.iter().any(|flow| flow.source == PatienceSource::Repeats) {
            lines.push(
                "From repeats: the timeout is the shortest silence before one, and 7 retries are assumed."
                    .to_owned(),
            );
        }
        lines
    }
}

impl fmt::Display for DoctorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rtt {
            Some(rtt) => write!(f, "link: RTT {}", human::seconds(rtt))?,
            None => write!(f, "link: RTT not known")?,
        }
        writeln!(f, ", flows wait {} for a lost session", human::span(self.resume_for))?;
        writeln!(
            f,
            "{:<24} {:<24} {:>9} {:>9} {:>8} verdict",
            "requester", "target", "timeout", "patience", "repeats"
        )?;
        for flow in &self.flows {
            let qpn = flow.requester_qpn.map_or_else(|| "?".to_owned(), |qpn| format!("{qpn:#x}"));
            let requester = format!("{} {qpn}", flow.requester);
            let target = format!("{} {:#x}", flow.target, flow.target_qpn);
            let mark = if flow.source == PatienceSource::Repeats { "~" } else { "" };
            let time = |time: Option<f64>| {
                time.map_or_else(|| "-".to_owned(), |time| format!("{mark}{}", human::seconds(time)))
            };
            writeln!(
                f,
                "{requester:<24} {target:<24} {:>9} {:>9} {:>8} {}",
                time(flow.ack_timeout),
                time(flow.patience),
                flow.repeats,
                flow.verdict.text()
            )?;
        }
        match self.total - self.flows.len().min(self.total) {
            0 => {}
            more => writeln!(f, "{more} more")?,
        }
        self.advice().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use roce::cm::Terms;
    use roce::wire::Qpn;

    use super::*;

    fn flow(terms: Option<(u8, u8)>, interval: Option<u64>) -> Patience {
        let terms = terms.map(|(code, retries)| Terms {
            ack_timeout: Timeout::new(code),
            retries,
            ..Terms::default()
        });
        Patience {
            requester: [10, 0, 0, 1].into(),
            requester_qpn: Some(Qpn::new(0x11)),
            target: [10, 0, 1, 1].into(),
            target_qpn: Qpn::new(0x21),
            terms,
            repeats: interval.map_or(0, |_| 3),
            interval: interval.map(Duration::from_millis),
        }
    }

    fn report_of(host: Option<IpAddr>, flows: Vec<Patience>, rtt: Option<u64>) -> DoctorReport {
        let thread = |flow| ShownFlows { patience: [flow].into(), ..ShownFlows::default() };
        let threads: Vec<_> = flows.into_iter().map(thread).collect();
        DoctorReport::of(&threads, host, rtt.map(Duration::from_millis), Duration::from_secs(120))
    }

    fn report(flows: Vec<Patience>, rtt: Option<u64>) -> DoctorReport {
        report_of(None, flows, rtt)
    }

    #[test]
    fn patience_is_judged_by_round_trips_and_by_outages() {
        let judged = |terms, interval, rtt| report(vec![flow(terms, interval)], rtt).flows[0].verdict;
        for (code, retries, expected) in [
            (8, 7, Verdict::GivesUp),
            (12, 7, Verdict::TooShort),
            (13, 7, Verdict::RepeatsInVain),
            (14, 0, Verdict::GivesUp),
            (15, 7, Verdict::EndsInOutages),
            (22, 7, Verdict::Suits),
            (0, 7, Verdict::NeverRepeats),
        ] {
            assert_eq!(judged(Some((code, retries)), None, Some(25)), expected, "{code}, {retries}");
        }
        assert_eq!(judged(None, Some(10), Some(25)), Verdict::GivesUp);
        assert_eq!(judged(None, Some(134), Some(25)), Verdict::EndsInOutages);
        assert_eq!(judged(None, None, Some(25)), Verdict::Unknown);
        assert_eq!(judged(Some((22, 7)), None, None), Verdict::Unknown);
        // Connection management's word counts before a guess from repeats.
        assert_eq!(judged(Some((22, 7)), Some(2), Some(25)), Verdict::Suits);
    }

    #[test]
    fn the_report_says_what_to_do() {
        let flows = vec![flow(Some((14, 7)), None), flow(None, Some(134)), flow(None, None)];
        let report = report(flows.clone(), Some(25));
        assert_eq!((report.exponent, report.resume_exponent, report.total), (Some(15), 22, 3));
        let shown = report.to_string();
        for piece in [
            "link: RTT 25.0 ms, flows wait 2 min 0 s for a lost session",
            "10.0.0.1 0x11            10.0.1.1 0x21              67.1 ms    537 ms        0 repeats in vain",
            "~134 ms",
            "an ACK timeout of 15 (exponent) or more",
            "an ACK timeout of 22 (exponent), and 7 retries, outlast it",
            "7 retries are assumed",
        ] {
            assert!(shown.contains(piece), "no {piece} in\n{shown}");
        }
        assert_eq!(report_of(Some([10, 0, 0, 9].into()), flows.clone(), None).total, 0);
        assert_eq!(report_of(Some([10, 0, 1, 1].into()), flows, None).total, 3);
    }
}
