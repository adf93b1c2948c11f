//! What the data plane shows of itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use roce::wire::{Psn, Qpn};
use splice::{Gateway, Remembered, Stood};
use tokio::sync::watch;

use crate::choose::Sighting;
use crate::lan::Lan;
use crate::plane::{Counts, Observer};
use crate::record::Recorder;
use crate::session::message::{Direction, MAX_PAIRINGS, Pairing};
use crate::steering::Part;
use crate::telemetry::{self, Cells, ClassSnapshot, Snapshot, Telemetry};
use crate::wan::Bulk;

/// Hands a data-plane thread's numbers to telemetry, and its flows to the control connection, for the day they are needed.
pub(super) struct Publisher {
    part: Part,
    /// The number of the thread's first lane among all threads'.
    first_lane: usize,
    plane: Arc<telemetry::Plane>,
    recorder: Arc<Recorder>,
    cells: Arc<Cells>,
    /// Cells that have got another class since the last observation.
    restarted: Vec<usize>,
    /// What the peer is to hear of when the next session begins.
    flows: watch::Sender<Arc<[Pairing]>>,
    /// For the chooser. It takes a copy at once, so that the data plane never waits for it.
    sightings: watch::Sender<Sighting>,
    /// Flows last shown.
    shown: usize,
    next: Instant,
}

impl Publisher {
    /// Of a thread whose first lane has this number among all threads' lanes.
    pub(super) fn new(
        part: Part,
        first_lane: usize,
        telemetry: &Telemetry,
        recorder: &Arc<Recorder>,
        flows: watch::Sender<Arc<[Pairing]>>,
        nothing: Sighting,
    ) -> Self {
        Self {
            part,
            first_lane,
            plane: telemetry.plane(),
            recorder: Arc::clone(recorder),
            cells: Arc::clone(&nothing.cells),
            restarted: Vec::new(),
            flows,
            sightings: watch::Sender::new(nothing),
            shown: 0,
            next: Instant::now(),
        }
    }

    pub(super) fn sightings(&self) -> watch::Receiver<Sighting> {
        self.sightings.subscribe()
    }
}

/// Showing many flows takes a while, so it is done the more rarely the more there are.
const SHOW_FLOWS_PER_SECOND: u32 = 10_000;

impl Observer for Publisher {
    fn observe(&mut self, core: &mut Gateway, counts: &Counts, bulk: &Bulk, lan: &Lan, session: bool) {
        let mut snapshot = Snapshot::default();
        snapshot.set_core(core.stats());
        snapshot.set_counts(counts);
        snapshot.set_wan(bulk.stats());
        snapshot.set_lan(lan);
        for (cell, class) in self.cells.order().iter().zip(core.classes()) {
            snapshot.set_class(*cell, &class);
        }
        for cell in self.restarted.drain(..) {
            self.plane.restart(cell, snapshot.classes.get(cell).unwrap_or(&ClassSnapshot::default()));
        }
        let now = Instant::now();
        let way = core.way(now);
        snapshot.set_way(way.as_ref());
        core.paths(now).for_each(|lane| snapshot.set_lane(self.first_lane, &lane));
        self.plane.store(&snapshot);
        self.sightings.send_replace(Sighting::of(core, session, way, Arc::clone(&self.cells)));
        if self.part.thread == 0 {
            self.recorder.take(session, |take| core.drain_runs(take));
        } else {
            // A trace is of one way.
            core.drain_runs(&mut |_| {});
        }
        if session && now >= self.next {
            self.show_flows(core, now);
        }
    }

    fn reclassify(&mut self, cells: Arc<Cells>) {
        self.restarted = cells.changed(&self.cells).collect();
        self.cells = cells;
    }
}

impl Publisher {
    fn show_flows(&mut self, core: &Gateway, now: Instant) {
        let flows = to_tell(core.remembered());
        let count = u32::try_from(flows.len()).unwrap_or(u32::MAX);
        self.next = now + Duration::from_secs(1) * count / SHOW_FLOWS_PER_SECOND;
        if !flows.is_empty() || self.shown > 0 {
            self.shown = flows.len();
            self.flows.send_replace(flows);
        }
    }
}

/// A thread's flows, as many as the peer takes in of all: of several threads one may have all there are.
pub(super) fn to_tell(flows: impl Iterator<Item = Remembered>) -> Arc<[Pairing]> {
    flows.take(MAX_PAIRINGS).map(|flow| to_wire(&flow)).collect()
}

fn to_wire(flow: &Remembered) -> Pairing {
    Pairing {
        direction: match flow.stood {
            Stood::Near => Direction::Outbound,
            Stood::Far => Direction::Inbound,
        },
        requester: flow.requester,
        target: flow.target,
        target_qpn: flow.target_qpn.get(),
        requester_qpn: Some(flow.requester_qpn.get()),
        psn: Some(flow.psn.get()),
    }
}

pub(super) fn from_wire(pairing: &Pairing) -> Option<Remembered> {
    Some(Remembered {
        requester: pairing.requester,
        target: pairing.target,
        target_qpn: Qpn::new(pairing.target_qpn),
        requester_qpn: Qpn::new(pairing.requester_qpn?),
        psn: Psn::new(pairing.psn?),
        stood: match pairing.direction {
            Direction::Outbound => Stood::Near,
            Direction::Inbound => Stood::Far,
        },
    })
}
