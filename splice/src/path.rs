//! The path to the peer: its lanes' observers and estimates.

use std::ops::Range;
use std::time::{Duration, Instant};

use config::Congestion;
use reliability::congestion::{self, Controller};
use reliability::estimator::{
    Activity, Arrival, EstimateConfig, LaneId, ObserverConfig, PathEstimate, PathObserver, PathReport,
    Prober, Summary, parse_probe,
};
use reliability::stream::{Kind, Malformed, StreamId};
use reliability::trace::Entry;

use crate::Settings;

/// One lane both ways: what comes is observed, what goes is estimated.
struct Lane {
    id: LaneId,
    observer: PathObserver,
    estimate: PathEstimate,
    prober: Prober,
    /// Where the way to the peer is shared.
    control: Option<Control>,
}

/// What decides how much is sent.
struct Control {
    controller: Controller,
    /// When the last report that the estimate was told of had been sent: it is made for one in a round trip.
    estimated: Option<u32>,
    /// The rate that was last told.
    rate: u64,
}

/// A lane as known at this gateway.
#[derive(Clone, Debug)]
pub struct PathStats {
    /// Which.
    pub lane: LaneId,
    /// The way to the peer.
    pub summary: Summary,
    /// The way from the peer, as it was observed up to the last report.
    pub observed: PathReport,
    /// Reports of the way from the peer that were sent.
    pub reports: u64,
    /// Probes sent.
    pub probes: u64,
    /// How much is sent, unless that is fixed.
    pub congestion: Option<congestion::State>,
}

/// Share of the packets that may be sent again though they were only late.
const ASKED_IN_VAIN: f64 = 0.002;
/// On a path that reorders, a lost packet may be missed this much longer however short the round trip is.
const TOLERABLE: Duration = Duration::from_millis(10);

impl Lane {
    fn handle_report(&mut self, report: &PathReport, now: Instant) -> Result<(), Malformed> {
        let Some(control) = &mut self.control else { return self.estimate.handle_report(report, now) };
        control.controller.handle_report(report, now)?;
        self.observer.ask(control.controller.interval());
        let apart = PathEstimate::report_interval(self.estimate.rtt()).as_micros();
        let soon = |last: u32| u128::from(report.sent_at.wrapping_sub(last)) < apart;
        if !control.estimated.is_some_and(soon) {
            control.estimated = Some(report.sent_at);
            self.estimate.handle_report(report, now)?;
        }
        Ok(())
    }
}

/// All lanes of a session; none without a session. There is one lane, number 0, as yet.
pub(crate) struct Paths {
    lanes: Vec<Lane>,
}

impl Paths {
    pub(crate) fn down() -> Self {
        Self { lanes: Vec::new() }
    }

    pub(crate) fn up(settings: &Settings, now: Instant) -> Self {
        let id = LaneId(0);
        let adaptive = settings.congestion == Congestion::Adaptive;
        let control = adaptive.then(|| {
            let config = congestion::Config { ceiling: settings.rate, rtt: settings.rtt };
            Control { controller: Controller::new(config, now), estimated: None, rate: 0 }
        });
        let lane = Lane {
            id,
            control,
            observer: PathObserver::new(ObserverConfig::new(settings.rtt), now),
            estimate: PathEstimate::new(EstimateConfig::new(settings.rtt), now),
            prober: Prober::new(settings.probes, id, now),
        };
        Self { lanes: vec![lane] }
    }

    /// A datagram of the peer's, and what it is if that is known.
    pub(crate) fn observe(&mut self, arrival: &Arrival, kind: Option<Kind>, now: Instant) {
        let activity = match kind {
            Some(Kind::Data | Kind::Parity | Kind::Report) => Activity::Traffic,
            Some(Kind::Probe) => Activity::Probe,
            Some(Kind::Path) | None => Activity::Silent,
        };
        if let Some(lane) = self.lanes.first_mut() {
            lane.observer.observe(arrival, activity, now);
        }
    }

    pub(crate) fn observe_copy(&mut self) {
        if let Some(lane) = self.lanes.first_mut() {
            lane.observer.observe_copy();
        }
    }

    pub(crate) fn observe_overrun(&mut self, datagrams: u64) {
        if let Some(lane) = self.lanes.first_mut() {
            lane.observer.observe_overrun(datagrams);
        }
    }

    /// A PATH packet, of the lane that stands in place of the stream.
    pub(crate) fn handle_report(
        &mut self,
        lane: StreamId,
        packet: &[u8],
        now: Instant,
    ) -> Result<(), Malformed> {
        let lane = self.lane(lane)?;
        let report = PathReport::parse(packet)?;
        lane.handle_report(&report, now)?;
        lane.observer.observe_stamp(report.sent_at);
        lane.observer.set_rtt(lane.estimate.rtt());
        lane.observer.set_wanted(report.wanted);
        Ok(())
    }

    /// A PROBE packet.
    pub(crate) fn handle_probe(&mut self, lane: StreamId, packet: &[u8]) -> Result<(), Malformed> {
        let lane = self.lane(lane)?;
        lane.observer.observe_stamp(parse_probe(packet)?);
        Ok(())
    }

    fn lane(&mut self, id: StreamId) -> Result<&mut Lane, Malformed> {
        self.lanes.iter_mut().find(|lane| lane.id.0 == id.0).ok_or(Malformed::Stream(id))
    }

    /// A stream measured a round-trip time.
    pub(crate) fn sample_rtt(&mut self, rtt: Duration, now: Instant) {
        if let Some(lane) = self.lanes.first_mut() {
            lane.estimate.sample_rtt(rtt, now);
            lane.observer.set_rtt(lane.estimate.rtt());
        }
    }

    /// The report or probe that is due.
    pub(crate) fn poll(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        self.lanes
            .iter_mut()
            .find_map(|lane| lane.observer.poll_report(now, out).or_else(|| lane.prober.poll(now, out)))
    }

    /// How long a stream's receiver should wait for a packet that others have overtaken: so long that next to nothing is asked for in vain, but where a
    /// repair takes longer than [`TOLERABLE`], not longer than that (as RFC 8985, section 6.2, step 4).
    pub(crate) fn reorder_time(&self) -> Duration {
        let lane = |lane: &Lane| {
            let most = lane.estimate.rtt().max(TOLERABLE);
            lane.observer.lateness_beyond(ASKED_IN_VAIN).min(most)
        };
        self.lanes.iter().map(lane).max().unwrap_or_default()
    }

    /// A packet of so many bytes on the wire uses the next number; `traffic`: it is none of `poll`'s.
    pub(crate) fn sent(&mut self, bytes: usize, traffic: bool, now: Instant) {
        if let Some(lane) = self.lanes.first_mut() {
            lane.estimate.sent(bytes);
            if let Some(control) = &mut lane.control {
                control.controller.sent(bytes, traffic, now);
            }
            if traffic {
                lane.prober.traffic(now);
            }
        }
    }

    /// These numbers never left this machine.
    pub(crate) fn unsent(&mut self, numbers: Range<u64>) {
        if let Some(lane) = self.lanes.first_mut() {
            lane.estimate.unsent(numbers);
        }
    }

    /// Whether a packet that could wait may leave.
    pub(crate) fn may_send(&self) -> bool {
        self.lanes
            .first()
            .and_then(|lane| lane.control.as_ref())
            .is_none_or(|control| control.controller.may_send())
    }

    /// The rate at which to send from now on, in bit/s, if it has changed.
    pub(crate) fn new_rate(&mut self) -> Option<u64> {
        let control = self.lanes.first_mut()?.control.as_mut()?;
        let rate = control.controller.rate();
        (std::mem::replace(&mut control.rate, rate) != rate).then_some(rate)
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let due = |lane: &Lane| {
            let silence = lane.control.as_ref().and_then(|control| control.controller.next_timeout());
            [lane.observer.next_timeout(), lane.prober.next_timeout(), silence]
        };
        self.lanes.iter().flat_map(due).flatten().min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for control in self.lanes.iter_mut().filter_map(|lane| lane.control.as_mut()) {
            control.controller.handle_timeout(now);
        }
    }

    pub(crate) fn stats(&self, now: Instant) -> impl Iterator<Item = PathStats> + '_ {
        self.lanes.iter().map(move |lane| {
            let observed = lane.observer.observed();
            PathStats {
                lane: lane.id,
                summary: lane.estimate.summary(now),
                observed,
                reports: u64::from(observed.number),
                probes: lane.prober.sent(),
                congestion: lane.control.as_ref().map(|control| control.controller.state()),
            }
        })
    }

    pub(crate) fn drain_runs(&mut self, take: &mut dyn FnMut(Entry)) {
        if let Some(lane) = self.lanes.first_mut() {
            lane.observer.drain_runs(take);
        }
    }
}
