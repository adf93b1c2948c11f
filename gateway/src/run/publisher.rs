//! Publishes the state of the data plane.

use std::sync::Arc;
use std::time::{Duration, Instant};

use roce::wire::{Psn, Qpn};
use session::message::{Direction, MAX_PAIRINGS, Pairing};
use splice::{FlowSide, Gateway, StaleFlow};
use tokio::sync::watch;

use crate::cells::Cells;
use crate::choose::PathSnapshot;
use crate::lan::Lan;
use crate::plane::{Counts, Observer};
use crate::recorder::Recorder;
use crate::retention::{NoRetention, wants_retention};
use crate::steering::Part;
use crate::telemetry::{self, ClassSnapshot, Failed, NewsSender, Opened, ShownFlows, Snapshot, Telemetry};
use crate::wan::Bulk;

/// Hands a data-plane thread's numbers to telemetry, and its flows to the control connection, for
/// the day they are needed.
pub(super) struct Publisher {
    part: Part,
    /// True if the LAN's own numbers go with this peer's.
    is_first: bool,
    /// The number of the thread's first lane among all threads'.
    first_lane: usize,
    plane: Arc<telemetry::WorkerCounters>,
    recorder: Arc<Recorder>,
    cells: Arc<Cells>,
    /// Cells that have got another class since the last observation.
    restarted: Vec<usize>,
    shown: PublishedFlows,
    /// Why nothing outlives the process.
    no_retention: Option<NoRetention>,
    /// For the log and the events.
    failures: NewsSender<Failed>,
    openings: NewsSender<Opened>,
    /// For the chooser. It takes a copy at once, so that the data plane never waits for it.
    sightings: watch::Sender<PathSnapshot>,
}

/// The flows that the peer is to hear of when the next session begins. Without one, too: flows that
/// are forgotten meanwhile must not be told of, since their queue pairs may be others' by then.
struct PublishedFlows {
    flows: watch::Sender<Arc<[Pairing]>>,
    /// For people.
    shown: watch::Sender<ShownFlows>,
    next: Instant,
    /// Flows that wait for a session to go on.
    waiting: usize,
}

impl Publisher {
    /// Creates that of a thread whose first lane has this number among all threads' lanes, towards
    /// the first peer or another one.
    pub(super) fn new(
        part: Part,
        is_first: bool,
        first_lane: usize,
        telemetry: &Telemetry,
        recorder: &Arc<Recorder>,
        flows: watch::Sender<Arc<[Pairing]>>,
        nothing: PathSnapshot,
    ) -> Self {
        Self {
            part,
            is_first,
            first_lane,
            plane: telemetry.plane(),
            recorder: Arc::clone(recorder),
            cells: Arc::clone(&nothing.cells),
            restarted: Vec::new(),
            shown: PublishedFlows::new(flows, telemetry.flows_of_thread(), Instant::now()),
            failures: telemetry.failures().sender(),
            openings: telemetry.openings().sender(),
            no_retention: None,
            sightings: watch::Sender::new(nothing),
        }
    }

    /// The same, where nothing outlives the process, and why.
    #[must_use]
    pub(super) fn without_retention(self, why: Option<NoRetention>) -> Self {
        Self { no_retention: why, ..self }
    }

    pub(super) fn sightings(&self) -> watch::Receiver<PathSnapshot> {
        self.sightings.subscribe()
    }
}

/// Showing many flows takes a while, so it is done the more rarely the more there are.
const SHOW_FLOWS_PER_SECOND: u32 = 10_000;

impl Observer for Publisher {
    fn observe(&mut self, core: &mut Gateway, counts: &Counts, bulk: &Bulk, lan: &Lan, session: bool) {
        let mut snapshot = Snapshot::default();
        snapshot.set_core(core.stats());
        snapshot.set_retention(core.retention());
        if let Some(why) = self.no_retention.as_ref().filter(|_| wants_retention(core.policy())) {
            snapshot.set_retention_off(why);
        }
        snapshot.set_counts(counts);
        snapshot.set_wan(bulk.stats());
        if self.is_first {
            snapshot.set_lan(lan);
        }
        snapshot.flows_waiting = self.shown.waiting as u64;
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
        // Whoever sees the count finds the flows themselves.
        let policy = Arc::clone(core.policy());
        let missed = core.take_failures(&mut |failure| self.failures.send((failure, Arc::clone(&policy))));
        self.failures.miss(missed);
        self.plane.store(&snapshot);
        self.sightings.send_replace(PathSnapshot::of(core, session, way, Arc::clone(&self.cells)));
        if self.part.thread == 0 {
            self.recorder.take(session, |take| core.drain_runs(take));
        } else {
            // A trace is of one way.
            core.drain_runs(&mut |_| {});
        }
        self.shown.renew(core, now);
        let openings = &self.openings;
        let missed =
            core.take_openings(&mut |opening| openings.send(Opened::Flow(opening)), &mut |between| {
                openings.send_many(Opened::Between(between), between.count);
            });
        // The metric counts those that are not named.
        core.take_restored(&mut |flow| openings.send(Opened::Restored(flow)));
        self.openings.miss(missed);
    }

    fn reclassify(&mut self, cells: Arc<Cells>) {
        self.restarted = cells.changed(&self.cells).collect();
        self.cells = cells;
    }
}

impl PublishedFlows {
    fn new(flows: watch::Sender<Arc<[Pairing]>>, shown: watch::Sender<ShownFlows>, now: Instant) -> Self {
        Self { flows, shown, next: now, waiting: 0 }
    }

    fn renew(&mut self, core: &Gateway, now: Instant) {
        if !core.is_parked() {
            self.waiting = 0;
        }
        if now < self.next {
            return;
        }
        if core.is_parked() {
            self.waiting = core.waiting_flows();
        }
        let flows = to_tell(core.remembered());
        let shown = ShownFlows {
            policy: Some(Arc::clone(core.policy())),
            flows: core.reports().take(MAX_PAIRINGS).collect(),
            patience: core.patience().take(MAX_PAIRINGS).collect(),
        };
        let count = u32::try_from(flows.len().max(shown.flows.len())).unwrap_or(u32::MAX);
        self.next = now + Duration::from_secs(1) * count / SHOW_FLOWS_PER_SECOND;
        if !flows.is_empty() || !self.flows.borrow().is_empty() {
            self.flows.send_replace(flows);
        }
        if !shown.flows.is_empty() || !self.shown.borrow().flows.is_empty() {
            self.shown.send_replace(shown);
        }
    }
}

/// A thread's flows, as many as the peer takes in of all: of several threads one may have all there
/// are.
pub(super) fn to_tell(flows: impl Iterator<Item = StaleFlow>) -> Arc<[Pairing]> {
    flows.take(MAX_PAIRINGS).map(|flow| to_wire(&flow)).collect()
}

fn to_wire(flow: &StaleFlow) -> Pairing {
    Pairing {
        direction: match flow.side {
            FlowSide::Near => Direction::Outbound,
            FlowSide::Far => Direction::Inbound,
        },
        requester: flow.requester,
        target: flow.target,
        target_qpn: flow.target_qpn.get(),
        requester_qpn: Some(flow.requester_qpn.get()),
        psn: Some(flow.psn.get()),
        src_port: flow.src_port,
        lives: flow.lives,
    }
}

pub(super) fn from_wire(pairing: &Pairing) -> Option<StaleFlow> {
    Some(StaleFlow {
        requester: pairing.requester,
        target: pairing.target,
        target_qpn: Qpn::new(pairing.target_qpn),
        requester_qpn: Qpn::new(pairing.requester_qpn?),
        psn: Psn::new(pairing.psn?),
        src_port: pairing.src_port,
        side: match pairing.direction {
            Direction::Outbound => FlowSide::Near,
            Direction::Inbound => FlowSide::Far,
        },
        lives: pairing.lives,
    })
}

#[cfg(test)]
mod tests {
    use roce::ip::Datagram;
    use roce::wire::{Bth, Ext, Opcode, Repr};
    use splice::{Arrival, Ecn, FlowState, LaneId, SessionEnd, Settings};

    use super::*;

    /// Returns what rping sends first: a REQ and its REP.
    fn frames() -> Vec<Vec<u8>> {
        let lines = include_str!("../../../roce/tests/golden/rping.txt").lines();
        let bytes = |line: &str| {
            let digits = line.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
            digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect()
        };
        lines.filter(|line| !line.starts_with('#')).take(2).map(bytes).collect()
    }

    #[test]
    fn flows_forgotten_without_a_session_are_not_told_of() {
        let mut now = Instant::now();
        let [mut core, mut peer] = ["10.0.1.0/24", "10.0.0.0/24"].map(|remote| {
            let settings = Settings::new(vec![remote.parse().unwrap()], 1_000_000_000, 1400);
            let mut gateway = Gateway::new(settings, now);
            gateway.session_up(Duration::from_millis(1), 1400, 1, &[], now);
            gateway
        });
        let [req, rep] = [0, 1].map(|number| frames().swap_remove(number));
        let req = Datagram::parse(&req).unwrap();
        core.handle_lan(&req, now);
        peer.handle_lan(&Datagram::parse(&rep).unwrap(), now);
        let mut out = [0; 2000];
        for number in 0.. {
            let Some(len) = peer.poll_wan(now, &mut out) else { break };
            let arrival = Arrival { lane: LaneId(0), number, bytes: peer.wire_bytes(len), ecn: Ecn::NotEct };
            core.handle_wan(&out[..len], arrival, now);
        }
        let bth = Bth::new(Opcode::SendOnly, Qpn::new(0x34), Psn::new(1));
        let mut bytes = [0; 64];
        let repr = Repr { bth, ext: Ext::None, payload: &[7; 8] };
        repr.emit(&mut bytes).unwrap();
        let request = Datagram { addressing: req.addressing, transport: &bytes[..repr.buffer_len()] };
        core.handle_lan(&request, now);

        let (flows, people) = (watch::channel(Arc::from([])).0, watch::channel(ShownFlows::default()).0);
        let mut shown = PublishedFlows::new(flows, people, now);
        shown.renew(&core, now);
        assert_eq!(shown.flows.borrow().len(), 1);
        // As the REQ and its REP have it; what is sent is this gateway's to wait for.
        let people = shown.shown.borrow().clone();
        let [patience] = &*people.patience else { panic!("one flow: {people:?}") };
        assert!(patience.terms.is_some_and(|terms| terms.retries == 7), "{patience:?}");
        let [flow] = &*people.flows else { panic!("one flow: {people:?}") };
        assert_eq!((flow.class, flow.state), (0, FlowState::Active));
        core.session_down(SessionEnd::Lost, now);
        // As a worker does after whatever comes: flows are served then, and their timers armed.
        while core.poll_lan(now, &mut out).is_some() {}
        now += Duration::from_secs(1);
        shown.renew(&core, now);
        assert!(!shown.flows.borrow().is_empty(), "it lingers");
        for _ in 0..3 {
            now += Settings::new(Vec::new(), 1_000_000_000, 1400).linger;
            core.handle_timeout(now);
            while core.poll_lan(now, &mut out).is_some() {}
        }
        shown.renew(&core, now);
        assert_eq!(shown.flows.borrow().len(), 0);
    }
}
