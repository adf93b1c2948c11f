//! Responder side: what the target is not ready for (RNR).

use std::time::Instant;

use super::respond;
use super::{Far, FarConfig, Verdict, Why};
use crate::wire::{Aeth, Packet, Psn, RnrTimer, Syndrome};

/// The code of the shortest pause that an RNR NAK can ask for: 10 us.
const SHORTEST: u8 = 1;

/// A request that the target was not ready for, and whose the next try is.
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Rnr {
    pub(super) psn: Psn,
    /// When the target first said so.
    #[serde_as(as = "snapshot::At")]
    pub(super) since: Instant,
    #[serde_as(as = "snapshot::At")]
    pub(super) until: Instant,
    /// True while the RNR back-off timer runs.
    pub(super) waiting: bool,
    /// How often it said so.
    pub(super) count: u32,
    /// The requester is told, and has not tried again since.
    pub(super) shown: bool,
}

impl Rnr {
    /// Returns whether the next try is still this side's affair.
    fn is_own(&self, config: &FarConfig, now: Instant) -> bool {
        self.count <= config.rnr_local_retries
            || now.saturating_duration_since(self.since) < config.rnr_local_time
    }
}

impl<B: AsRef<[u8]>> Far<B> {
    /// The requester has tried again what the target was not ready for.
    pub fn retry(&mut self) {
        if let Some(rnr) = &mut self.rnr {
            rnr.shown = false;
        }
    }

    /// The target is left alone until the requester tries again.
    pub fn awaits_retry(&self) -> bool {
        !self.agreed.is_patient() && self.rnr.as_ref().is_some_and(|rnr| rnr.shown)
    }

    /// The target is not ready for what it names.
    pub(super) fn handle_rnr(
        &mut self,
        packet: &Packet<'_>,
        aeth: Aeth,
        timer: RnrTimer,
        now: Instant,
    ) -> Verdict {
        let psn = packet.bth.psn;
        self.stats.rnr_naks.one();
        if psn.is_before(self.window.una()) || !psn.is_before(self.window.high()) {
            return Verdict::Drop(Why::Unexpected);
        }
        let before = self.rnr.as_deref().copied().filter(|rnr| rnr.psn == psn);
        self.said.confirm();
        let advance = self.acknowledged(psn, now);
        self.go_back(now);
        self.silence.end();
        if advance.blocked {
            return Verdict::Absorbed;
        }
        let rnr = Rnr {
            psn,
            since: before.map_or(now, |rnr| rnr.since),
            until: now + timer.duration(),
            waiting: true,
            count: before.map_or(0, |rnr| rnr.count).saturating_add(1),
            shown: before.is_some_and(|rnr| rnr.shown),
        };
        let show = !rnr.is_own(&self.config, now) && !rnr.shown;
        self.rnr = Some(Box::new(Rnr { shown: rnr.shown || show, ..rnr }));
        if show {
            self.relay.tell(psn);
            return Verdict::Relay(respond::readdressed(packet, psn, aeth));
        }
        self.relay_progress(packet, advance, aeth, now)
    }

    /// The last try has no answer by now. Once the time for tries of this side is over, the next is
    /// the requester's, which may be gone.
    pub(super) fn leave_to_requester(&mut self, now: Instant) {
        let Some(rnr) = self.rnr.as_deref_mut().filter(|rnr| rnr.psn == self.window.una()) else { return };
        let is_own = rnr.is_own(&self.config, now);
        if is_own || rnr.shown || self.agreed.is_patient() {
            return;
        }
        rnr.shown = true;
        let psn = rnr.psn;
        self.relay.tell(psn);
        let aeth = Aeth { syndrome: Syndrome::Rnr { timer: RnrTimer::new(SHORTEST) }, msn: 0 };
        self.relay.respond(self.peers.reply(psn, aeth));
    }
}
