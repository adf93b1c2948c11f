//! A lane that dies under load: what the messages around that moment notice of it.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gateway::admin::Status;
use linksim::impair::LinkSpec;
use testbed::hostio::{Limit, Report, Span, Workload};
use testbed::{Plan, Site, Testbed};

use super::hosts::{self, Hosts};
use super::{BenchError, clean_pair};

/// `longhaul-lab bench lane`: WRITEs through two gateway processes, and a lane's death among them.
#[derive(Debug, Clone)]
pub struct Lane {
    /// The `longhaul` program, started twice as a gateway for each line.
    pub program: PathBuf,
    /// Seconds before the death, and after it.
    pub seconds: f64,
}

const LANES: u8 = 5;
/// The one that dies.
const DIES: usize = 1;
const SCHEMES: [(&str, &str); 2] =
    [("mds(32,8)", "scheme = \"mds\"\nk = 32\nm = 8"), ("sr", "scheme = \"sr\"")];
const RATE: &str = "200 Mbit/s";
const LINK: &str = "delay 10ms";
const DEAD: &str = "loss 100%";
const MTU: u16 = 1500;
const QUEUE_PAIRS: u32 = 32;
const MESSAGE: u32 = 64 << 10;
/// Half of the time around the death in which messages count as those around it.
const HALF: Duration = Duration::from_millis(500);
/// At first the gateways estimate the link.
const WARM_UP: Duration = Duration::from_secs(1);

/// Transfers of each line, of which medians count: in one the machine may have done something else.
const TURNS: usize = 5;

const EXPLANATION: &str = "\
Medians of transfers (lowest to highest). before: messages that were done after the first second and half a second or more before the death. around: those under way within
half a second of it. sent again, data packets: of gateway A, from half a second before the death to the end, all turns together. The
quiet second: the same as `around`, for a moment one and a half seconds earlier: what the machine does by itself.";

/// Result of a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outcome {
    before: Duration,
    quiet: Duration,
    around: Duration,
    messages: usize,
    /// Data packets sent again, and all data packets, in that time.
    again: u64,
    data: u64,
}

impl Lane {
    /// Measures and writes a line for each scheme and way of dying.
    ///
    /// # Errors
    /// See [`BenchError`].
    pub fn run(&self, out: &mut dyn Write, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        writeln!(
            out,
            "WRITEs of 64 KiB of {QUEUE_PAIRS} queue pairs, one after the other on each, through two gateway processes: {RATE},\n\
             {LINK} each way, MTU {MTU}, {LANES} lanes. One of them dies after {} s.\n",
            self.seconds
        )?;
        writeln!(
            out,
            "| scheme | dies | p99 before [ms] | p99 of a quiet second | p99 around [ms] | around / before | messages around | sent again | data packets |"
        )?;
        writeln!(out, "|---|---|--:|--:|--:|---|--:|--:|--:|")?;
        for (name, policy) in SCHEMES {
            for (dies, both) in [("one way", false), ("both ways", true)] {
                let turns = (0..TURNS).map(|_| self.play(policy, both, interrupted));
                let turns: Vec<_> = turns.collect::<Result<_, _>>()?;
                writeln!(out, "| {name} | {dies} | {} |", Turns(&turns))?;
            }
        }
        writeln!(out, "\n{EXPLANATION}")?;
        Ok(())
    }

    fn play(&self, policy: &str, both: bool, interrupted: &dyn Fn() -> bool) -> Result<Outcome, BenchError> {
        let bound = hosts::bind(1)?;
        let link: LinkSpec = LINK.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let dead: LinkSpec = DEAD.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut plan = Plan {
            policy: policy.to_owned(),
            rate: RATE.to_owned(),
            mtu: [MTU; 2],
            lanes: LANES,
            link,
            ..clean_pair(&self.program)
        };
        hosts::known(&bound, &mut plan)?;
        let mut testbed = Testbed::start(&plan, interrupted)?;
        let gateways = [Site::A, Site::B].map(|site| testbed.lan(site));
        let bound = bound.into_iter().next().ok_or(BenchError::Interrupted)?;
        let hosts = Hosts { bound, gateways, index: 1, workload: self.workload() };
        let dies = WARM_UP + Duration::from_secs_f64(self.seconds);
        let began = Instant::now();
        let (mut died, mut sent) = (None, None);
        let report = hosts.watch(
            interrupted,
            &mut |_| {
                if sent.is_none() && began.elapsed() + HALF >= dies {
                    sent = Some(counted(&testbed)?);
                }
                if died.is_none() && began.elapsed() >= dies {
                    testbed.set_lane(DIES, dead, if both { dead } else { link });
                    died = Some(began.elapsed());
                }
                Ok(())
            },
            &mut || Ok(()),
        );
        testbed.check()?;
        let report = report?;
        let ([again, data], [again_before, data_before]) = (counted(&testbed)?, sent.unwrap_or_default());
        testbed.stop()?;
        let died = died.ok_or_else(|| BenchError::Transfer("it ended before the lane died".to_owned()))?;
        let outcome = judge(&report, died).ok_or_else(|| BenchError::Transfer(report.to_string()))?;
        Ok(Outcome { again: again - again_before, data: data - data_before, ..outcome })
    }

    fn workload(&self) -> Workload {
        Workload {
            qps: QUEUE_PAIRS,
            message: MESSAGE,
            depth: 1,
            limit: Limit::Time(WARM_UP + Duration::from_secs_f64(2.0 * self.seconds)),
            timeline: true,
            ..hosts::writes()
        }
    }
}

/// Several transfers alike.
struct Turns<'a>(&'a [Outcome]);

impl Turns<'_> {
    fn sorted(&self, of: impl Fn(&Outcome) -> f64) -> Vec<f64> {
        let mut values: Vec<f64> = self.0.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    fn median(&self, of: impl Fn(&Outcome) -> f64) -> f64 {
        let values = self.sorted(of);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

impl fmt::Display for Turns<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let ratio = |turn: &Outcome| turn.around.as_secs_f64() / turn.before.as_secs_f64();
        let ratios = self.sorted(ratio);
        let [least, most] = [ratios.first(), ratios.last()].map(|ratio| ratio.copied().unwrap_or(f64::NAN));
        write!(
            f,
            "{:.1} | {:.1} | {:.1} | {:.2} ({least:.2} to {most:.2}) | {} | {} | {}",
            self.median(|turn| millis(turn.before)),
            self.median(|turn| millis(turn.quiet)),
            self.median(|turn| millis(turn.around)),
            self.median(ratio),
            self.median(|turn| turn.messages as f64),
            self.0.iter().map(|turn| turn.again).sum::<u64>(),
            self.0.iter().map(|turn| turn.data).sum::<u64>()
        )
    }
}

/// Data packets that gateway A has sent again, and all of them.
fn counted(testbed: &Testbed) -> Result<[u64; 2], BenchError> {
    let status: Status = testbed.status(Site::A)?;
    let sum = |of: fn(&gateway::admin::ClassStatus) -> u64| status.classes.iter().map(of).sum();
    Ok([sum(|class| class.repairs), sum(|class| class.sent)])
}

/// Compares the messages around the death with those before; `None` if there are too few.
fn judge(report: &Report, died: Duration) -> Option<Outcome> {
    let spans = &report.timeline;
    let before = done(spans).filter(|(_, end)| (WARM_UP..died - HALF).contains(end));
    let around = done_around(spans, died);
    Some(Outcome {
        before: p99(before)?,
        quiet: p99(done_around(spans, died - 3 * HALF).into_iter())?,
        messages: around.len(),
        around: p99(around.into_iter())?,
        again: 0,
        data: 0,
    })
}

/// When each message was posted and done.
fn done(spans: &[Span]) -> impl Iterator<Item = (Duration, Duration)> + '_ {
    spans.iter().filter_map(|span| Some((span.posted, span.completed?)))
}

/// Those that were under way within half a second of a moment.
fn done_around(spans: &[Span], moment: Duration) -> Vec<(Duration, Duration)> {
    done(spans).filter(|(posted, end)| *end >= moment - HALF && *posted < moment + HALF).collect()
}

fn p99(messages: impl Iterator<Item = (Duration, Duration)>) -> Option<Duration> {
    let mut times: Vec<_> = messages.map(|(posted, end)| end.saturating_sub(posted)).collect();
    times.sort_unstable();
    (times.len() >= 100).then(|| times.get(times.len() * 99 / 100).copied())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_around_the_death_are_those_under_way_then() {
        let at = Duration::from_millis;
        let span = |posted: u64, took: u64| Span { posted: at(posted), completed: Some(at(posted + took)) };
        let mut timeline: Vec<_> = (0..500).map(|number| span(10 * number, 100)).collect();
        // Begun before the time around the death, done after it; and one never done.
        timeline.push(span(3400, 1300));
        timeline.push(span(3800, 1200));
        timeline.push(Span { posted: at(3900), completed: None });
        let around = done_around(&timeline, at(4000));
        assert_eq!(around.len(), 1 + 10 + 100 + 1, "{around:?}");
        // All but one in a hundred took no longer.
        assert_eq!(p99(around.into_iter()), Some(at(1200)));
        assert_eq!(p99((0..99).map(|number| (at(number), at(number + 1)))), None);
    }
}
