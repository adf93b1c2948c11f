//! Responder side: how long a target has been silent.

use std::time::{Duration, Instant};

/// The target's silence, as far as it counts.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Silence {
    /// From when the retransmission timeout counts.
    #[serde_as(as = "snapshot::At")]
    from: Instant,
    /// When the target last said anything.
    #[serde_as(as = "snapshot::At")]
    heard: Instant,
    /// How long it has been waited for without progress, up to the last timeout.
    total: Duration,
}

/// Excuses of a target for its silence, in one byte. Two of them have to be so together, and it has
/// one if it is asked nothing. It also holds who is to try again where the target was not ready.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Excuse(u8);

impl Excuse {
    const AWAITS_EARLIER: u8 = 1;
    const CUT_OFF: u8 = 2;
    const SUSPENDED: u8 = 4;
    const LEFT: u8 = 8;

    /// The target has said that it expects an earlier request, which only the requester can bring.
    pub(super) fn set_awaits_earlier(&mut self, awaits: bool) {
        self.set(Excuse::AWAITS_EARLIER, awaits);
    }

    pub(super) fn awaits_earlier(self) -> bool {
        self.0 & Excuse::AWAITS_EARLIER != 0
    }

    /// Nothing comes from the requester's gateway for now.
    pub(super) fn set_cut_off(&mut self, is_cut_off: bool) {
        self.set(Excuse::CUT_OFF, is_cut_off);
    }

    /// Nothing that is outstanding is sent to it.
    pub(super) fn set_suspended(&mut self, is_suspended: bool) {
        self.set(Excuse::SUSPENDED, is_suspended);
    }

    pub(super) fn is_suspended(self) -> bool {
        self.0 & Excuse::SUSPENDED != 0
    }

    /// Only the requester may try again what the target is not ready for.
    pub(super) fn set_left(&mut self, is_left: bool) {
        self.set(Excuse::LEFT, is_left);
    }

    pub(super) fn is_left(self) -> bool {
        self.0 & Excuse::LEFT != 0
    }

    pub(super) fn holds(self) -> bool {
        let both = Excuse::AWAITS_EARLIER | Excuse::CUT_OFF;
        self.0 & both == both
    }

    fn set(&mut self, bit: u8, is_set: bool) {
        self.0 = if is_set { self.0 | bit } else { self.0 & !bit };
    }
}

impl Silence {
    pub(super) fn new(now: Instant) -> Silence {
        Silence { from: now, heard: now, total: Duration::ZERO }
    }

    pub(super) fn from(&self) -> Instant {
        self.from
    }

    /// The retransmission timeout counts from now on.
    pub(super) fn restart_timer(&mut self, now: Instant) {
        self.from = now;
    }

    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    pub(super) fn note_heard(&mut self, now: Instant) {
        self.heard = now;
    }

    pub(super) fn total(&self) -> Duration {
        self.total
    }

    /// The target is not silent.
    pub(super) fn end(&mut self) {
        self.total = Duration::ZERO;
    }

    /// Counts the time since the timeout began to count as silence.
    pub(super) fn count(&mut self, now: Instant) {
        self.add(now.saturating_duration_since(self.from));
    }

    /// Leaves out this much time up to now: nobody looked whether the target spoke.
    pub(super) fn leave_out(&mut self, pause: Duration, now: Instant) {
        self.from = (self.from + pause).min(now);
    }

    pub(super) fn add(&mut self, silence: Duration) {
        self.total += silence;
    }
}
