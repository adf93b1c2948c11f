//! Serialised discovery: where nothing tells the flows between two hosts apart, they take turns.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::table::Waiting;
use super::{Discovery, FlowKey, Hosts};

/// After so many quiet times a turn is given although responses still come: a stray sender must not stop
/// everyone.
const PATIENCE: u32 = 16;

/// The pairs of hosts in dispute. Each has at least one waiting flow, so there are no more of them than
/// flows.
#[derive(Debug)]
pub(super) struct Disputes {
    quiet: Duration,
    turn: Duration,
    disputes: BTreeMap<Hosts, Dispute>,
    /// No dispute changes before this.
    wake: Option<Instant>,
}

#[derive(Debug)]
struct Dispute {
    phase: Phase,
    /// When the phase ends.
    until: Instant,
    /// Who had the turn last.
    last: Option<FlowKey>,
}

#[derive(Debug)]
enum Phase {
    /// Ends no later than `latest`, however many responses come.
    Quiet {
        latest: Instant,
    },
    Turn(FlowKey),
}

impl Disputes {
    pub(super) fn new(quiet: Duration, turn: Duration) -> Disputes {
        Disputes { quiet, turn, disputes: BTreeMap::new(), wake: None }
    }

    pub(super) fn state(&self, hosts: Hosts) -> Discovery {
        match self.disputes.get(&hosts).map(|dispute| &dispute.phase) {
            None => Discovery::Free,
            Some(Phase::Quiet { .. }) => Discovery::Quiet,
            Some(Phase::Turn(flow)) => Discovery::Turn(*flow),
        }
    }

    /// A response came that could be several flows': the quiet time begins, or begins again.
    pub(super) fn raise(&mut self, hosts: Hosts, now: Instant) {
        let until = now + self.quiet;
        let dispute = self.disputes.entry(hosts).or_insert_with(|| Dispute::quiet(self.quiet, None, now));
        if let Phase::Quiet { latest } = dispute.phase {
            dispute.until = until.min(latest);
        }
        self.wake_at(until);
    }

    /// A flow between these hosts was paired: a turn of its passes on at once, or the dispute ends with
    /// the last of them.
    pub(super) fn settle_paired(&mut self, hosts: Hosts, waiting: &Waiting, now: Instant) {
        let Some(dispute) = self.disputes.get_mut(&hosts) else {
            return;
        };
        match (&dispute.phase, waiting.after(hosts, dispute.last)) {
            (_, None) => {
                self.disputes.remove(&hosts);
            }
            (Phase::Turn(flow), Some(next)) if !waiting.contains(flow) => {
                dispute.give_turn(next, now + self.turn);
                self.wake_at(now + self.turn);
            }
            _ => {}
        }
    }

    /// A flow was given up without being paired: a response to it may still come, so a turn of its ends
    /// in quiet.
    pub(super) fn settle_unpaired(&mut self, flow: &FlowKey, waiting: &Waiting, now: Instant) {
        let hosts = flow.hosts();
        let Some(dispute) = self.disputes.get_mut(&hosts) else {
            return;
        };
        if waiting.after(hosts, None).is_none() {
            self.disputes.remove(&hosts);
        } else if matches!(dispute.phase, Phase::Turn(holder) if holder == *flow) {
            *dispute = Dispute::quiet(self.quiet, dispute.last, now);
            self.wake_at(now + self.quiet);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.wake
    }

    pub(super) fn handle_timeout(&mut self, waiting: &Waiting, now: Instant) {
        if self.wake.is_none_or(|wake| now < wake) {
            return;
        }
        let (quiet, turn) = (self.quiet, self.turn);
        self.disputes.retain(|hosts, dispute| dispute.advance(*hosts, waiting, quiet, turn, now));
        self.wake = self.disputes.values().map(|dispute| dispute.until).min();
    }

    fn wake_at(&mut self, at: Instant) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

impl Dispute {
    fn quiet(quiet: Duration, last: Option<FlowKey>, now: Instant) -> Dispute {
        Dispute { phase: Phase::Quiet { latest: now + quiet * PATIENCE }, until: now + quiet, last }
    }

    fn give_turn(&mut self, flow: FlowKey, until: Instant) {
        *self = Dispute { phase: Phase::Turn(flow), until, last: Some(flow) };
    }

    /// Moves on when the phase is over. False when nobody waits any more.
    fn advance(
        &mut self,
        hosts: Hosts,
        waiting: &Waiting,
        quiet: Duration,
        turn: Duration,
        now: Instant,
    ) -> bool {
        let Some(next) = waiting.after(hosts, self.last) else {
            return false;
        };
        if now >= self.until {
            match self.phase {
                Phase::Quiet { .. } => self.give_turn(next, now + turn),
                Phase::Turn(_) => *self = Dispute::quiet(quiet, self.last, now),
            }
        }
        true
    }
}
