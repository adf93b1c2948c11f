//! Requests that an earlier process retained, until their flows come for them.

use std::collections::BTreeMap;
use std::time::Instant;

use roce::pairing::FlowKey;
use roce::wire::Psn;

use super::Run;

/// The requests of one flow.
#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) run: Run,
    /// The UDP source port of the first.
    pub(super) src_port: u16,
}

/// All of them. Bound: as many as there are slots.
#[derive(Debug)]
pub(super) struct Orphans {
    by_key: BTreeMap<FlowKey, Orphan>,
    /// When they are forgotten.
    until: Instant,
}

impl Orphans {
    pub(super) fn new(until: Instant) -> Self {
        Self { by_key: BTreeMap::new(), until }
    }

    pub(super) fn add(&mut self, key: FlowKey, orphan: Orphan) {
        self.by_key.insert(key, orphan);
    }

    /// They are kept until then at least.
    pub(super) fn keep_until(&mut self, until: Instant) {
        self.until = self.until.max(until);
    }

    pub(super) fn get(&self, key: &FlowKey) -> Option<&Orphan> {
        self.by_key.get(key)
    }

    pub(super) fn take(&mut self, key: &FlowKey) -> Option<Orphan> {
        self.by_key.remove(key)
    }

    /// Returns the flows that are meant, and the UDP source port of each.
    pub(super) fn meant(&self, is_meant: impl Fn(&FlowKey) -> bool) -> Vec<(FlowKey, u16)> {
        let meant = self.by_key.iter().filter(|(key, _)| is_meant(key));
        meant.map(|(key, orphan)| (*key, orphan.src_port)).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        (!self.by_key.is_empty()).then_some(self.until)
    }

    /// Takes one out, if their time is over.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Run> {
        let is_over = self.until <= now;
        is_over.then(|| self.by_key.pop_first())?.map(|(_, orphan)| orphan.run)
    }
}

/// Groups requests by flow, in the order of their PSNs. Of two with one PSN, which only a writer
/// that was killed between a request and its repetition can leave, any may go first.
pub(super) fn runs(found: Vec<(FlowKey, Psn, u32)>) -> BTreeMap<FlowKey, Vec<(Psn, u32)>> {
    let mut runs: BTreeMap<FlowKey, Vec<(Psn, u32)>> = BTreeMap::new();
    for (key, psn, slot) in found {
        runs.entry(key).or_default().push((psn, slot));
    }
    for run in runs.values_mut() {
        // All lie within half of the PSNs of each other, so any of them serves as the middle.
        let Some(middle) = run.first().map(|(psn, _)| *psn) else { continue };
        run.sort_by_key(|(psn, _)| psn.distance(middle));
    }
    runs
}
