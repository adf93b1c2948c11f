//! Requester side: how patient a flow's requester is, as connection management says and as its
//! repeats show.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::cm::Terms;
use roce::flow::near::{Verdict, Why};
use roce::pairing::Pairings;
use roce::wire::Qpn;

use super::{NearFlow, NearSide};

/// Silence before a repeat that no NIC's ACK timeout is shorter than: what comes again sooner was
/// asked for.
const LEAST: Duration = Duration::from_millis(1);

/// A requester that waits for its target at the other site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Its address.
    pub requester: IpAddr,
    /// Its queue pair, if it is known.
    pub requester_qpn: Option<Qpn>,
    /// The target's address.
    pub target: IpAddr,
    /// The target's queue pair.
    pub target_qpn: Qpn,
    /// The terms of the connection, if connection management told them.
    pub terms: Option<Terms>,
    /// How often it sent again what it had sent, after a silence.
    pub repeats: u32,
    /// The shortest of these silences, from the last packet of the flow either way. The ACK timeout
    /// is no longer, but for packets of the gateway's own in between.
    pub interval: Option<Duration>,
}

/// Repeats that were seen.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Observed {
    repeats: u32,
    /// The shortest silence before one, in microseconds; of more than an hour, as many.
    interval: u32,
}

impl Observed {
    /// A request came after this silence of the flow, and was judged like this.
    pub(super) fn note(&mut self, verdict: &Verdict, silence: Duration) {
        let is_again = matches!(verdict, Verdict::Replay | Verdict::Drop(Why::Duplicate | Why::Pending));
        if !is_again || silence < LEAST {
            return;
        }
        let micros = u32::try_from(silence.as_micros()).unwrap_or(u32::MAX);
        self.interval = if self.repeats == 0 { micros } else { self.interval.min(micros) };
        self.repeats = self.repeats.saturating_add(1);
    }

    fn interval(self) -> Option<Duration> {
        (self.repeats > 0).then(|| Duration::from_micros(self.interval.into()))
    }
}

impl NearFlow {
    /// Something of the flow's came. Returns how long nothing had.
    pub(super) fn note_activity(&mut self, now: Instant) -> Duration {
        now.saturating_duration_since(std::mem::replace(&mut self.last_activity, now))
    }
}

impl NearSide {
    /// Returns what is known of each flow's requester.
    pub(crate) fn patience<'a>(&'a self, pairings: &'a Pairings) -> impl Iterator<Item = Patience> + 'a {
        self.flows.values().map(|flow| Patience {
            requester: flow.addressing.src,
            requester_qpn: flow.requester_qpn,
            target: flow.addressing.dst,
            target_qpn: flow.target_qpn,
            terms: pairings.terms(&flow.key()),
            repeats: flow.demand.observed.repeats,
            interval: flow.demand.observed.interval(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_silence_before_a_repeat_counts() {
        let mut observed = Observed::default();
        let millis = Duration::from_millis;
        observed.note(&Verdict::Forward, millis(500));
        observed.note(&Verdict::Drop(Why::Ahead), millis(500));
        observed.note(&Verdict::Drop(Why::Duplicate), Duration::from_micros(90));
        assert_eq!((observed.repeats, observed.interval()), (0, None));
        observed.note(&Verdict::Drop(Why::Duplicate), millis(160));
        observed.note(&Verdict::Replay, millis(134));
        observed.note(&Verdict::Drop(Why::Pending), millis(400));
        assert_eq!((observed.repeats, observed.interval()), (3, Some(millis(134))));
    }
}
