//! Responder side: what the target is not ready for (RNR).

use std::time::Instant;

use super::respond;
use super::{Far, FarConfig, Verdict, Why};
use crate::wire::{Aeth, Packet, Psn, RnrTimer, Syndrome};

/// The shortest wait that [`Syndrome::WAIT_OVER`] does not say: 20 us.
const NEXT_SHORTEST: RnrTimer = RnrTimer::new(2);

/// A request that the target was not ready for, and whose the next try is.
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Rnr {
    psn: Psn,
    /// When the target first said so.
    #[serde_as(as = "snapshot::At")]
    since: Instant,
    #[serde_as(as = "snapshot::At")]
    pub(super) until: Instant,
    /// True while the RNR back-off timer runs.
    pub(super) waiting: bool,
    /// How often it said so.
    count: u32,
    /// The requester is told, and has not tried again since.
    shown: bool,
}

impl Rnr {
    /// Returns whether the next try is this side's, if the requester need not be asked.
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

    /// The target was not ready for what it expects, and has not taken it since.
    pub fn is_put_off(&self) -> bool {
        self.rnr.is_some()
    }

    /// Returns true while the RNR back-off timer runs.
    pub fn is_at_rnr(&self) -> bool {
        self.rnr.as_ref().is_some_and(|rnr| rnr.waiting)
    }

    /// Says whether only the requester can know if it still wants what is outstanding. If so, each
    /// RNR NAK is relayed, and the next try is the requester's. To be told before such a NAK is
    /// handed in, and before the back-off timer ends.
    pub fn leave_to_requester(&mut self, is_left: bool) {
        self.excuse.set_left(is_left);
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
        let is_own = !self.excuse.is_left() && rnr.is_own(&self.config, now);
        let show = !is_own && !rnr.shown;
        self.rnr = Some(Box::new(Rnr { shown: rnr.shown || show, ..rnr }));
        if show {
            self.relay.tell(psn);
            // A target that asks for the shortest wait has said so by itself.
            let is_shortest = aeth.syndrome == Syndrome::WAIT_OVER;
            let timer = if is_shortest { NEXT_SHORTEST } else { timer };
            let aeth = Aeth { syndrome: Syndrome::Rnr { timer }, ..aeth };
            return Verdict::Relay(respond::readdressed(packet, psn, aeth));
        }
        self.relay_progress(packet, advance, aeth, now)
    }

    /// Ends the RNR back-off timer if it is time. What is left to the requester since the target
    /// spoke is shown to it then: that has waited as long as the target asked for.
    pub(super) fn end_rnr_timer(&mut self, now: Instant) {
        let (is_left, is_patient) = (self.excuse.is_left(), self.agreed.is_patient());
        let Some(rnr) = self.rnr.as_deref_mut().filter(|rnr| now >= rnr.until) else { return };
        rnr.waiting = false;
        if !is_left || is_patient || rnr.shown {
            return;
        }
        rnr.shown = true;
        let psn = rnr.psn;
        self.relay.tell(psn);
        let aeth = Aeth { syndrome: Syndrome::WAIT_OVER, ..self.said.corrected(self.said.aeth()) };
        self.relay.respond(self.peers.reply(psn, aeth));
    }
}
