//! The path to the peer: its lanes' observers and estimates.

use std::ops::Range;
use std::time::{Duration, Instant};

use config::Congestion;
use reliability::congestion::{self, Controller};
use reliability::estimator::{
    Activity, Arrival, EstimateConfig, LaneId, ObserverConfig, PathEstimate, PathObserver, PathReport,
    Prober, Summary, parse_probe,
};
use reliability::mtu::{self, Answerer, Message, Search};
use reliability::stream::{Kind, Malformed, StreamId};
use reliability::trace::Entry;

use crate::Settings;

/// One lane both ways: what comes is observed, what goes is estimated.
struct Lane {
    id: LaneId,
    observer: PathObserver,
    estimate: PathEstimate,
    prober: Prober,
    answerer: Answerer,
    /// Where it is found how long packets may be.
    search: Option<Search>,
    /// The packet about to be sent is a probe longer than what is in use.
    probes: bool,
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
    /// How long packets to the peer may be.
    pub mtu: mtu::Status,
    /// The longest packet that the peer uses, plaintext bytes, as it says; 0: it has not.
    pub peer_packet: u16,
    /// How much is sent, unless that is fixed.
    pub congestion: Option<congestion::State>,
}

/// Share of the packets that may be sent again though they were only late.
const ASKED_IN_VAIN: f64 = 0.002;
/// On a path that reorders, a lost packet may be missed this much longer however short the round trip is.
const TOLERABLE: Duration = Duration::from_millis(10);

impl Lane {
    fn poll(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        let due = self.answerer.poll(out).or_else(|| self.observer.poll_report(now, out));
        due.or_else(|| self.poll_search(now, out)).or_else(|| self.prober.poll(now, out))
    }

    fn poll_search(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        let search = self.search.as_mut()?;
        search.set_rtt(self.estimate.rtt());
        let polled = search.poll(self.estimate.numbers(), now, out);
        self.probes = polled.is_some_and(|len| len > search.packet());
        self.settle_excuses();
        polled
    }

    /// The loss of a probe that was longer than what is in use says nothing of the path's losses.
    fn settle_excuses(&mut self) {
        let Some(search) = &mut self.search else { return };
        let [sent, arrived] = search.take_excused();
        self.estimate.excuse(sent);
        self.estimate.readmit(arrived);
    }

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
    /// As long as packets may be where nothing is searched.
    fixed: mtu::Status,
}

/// The one lane.
pub(crate) const LANE: LaneId = LaneId(0);

impl Paths {
    pub(crate) fn down() -> Self {
        Self { lanes: Vec::new(), fixed: mtu::Status::default() }
    }

    /// For a session with packets of up to `most` bytes; of the session before, `hint` is what was found.
    pub(crate) fn up(settings: &Settings, most: usize, hint: Option<usize>, now: Instant) -> Self {
        let id = LANE;
        let overhead = settings.ip_overhead;
        let search = settings.find_mtu.then(|| {
            let (base, rate, rtt) = (settings.base_packet, settings.rate, settings.rtt);
            Search::new(mtu::Config { lane: id, base, most, hint, overhead, rate, rtt }, now)
        });
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
            answerer: Answerer::new(id),
            search,
            probes: false,
        };
        let fixed = mtu::Status { packet: most, mtu: most + overhead, ..mtu::Status::default() };
        Self { lanes: vec![lane], fixed }
    }

    pub(crate) fn is_up(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// The longest packet to be sent to the peer now, plaintext bytes.
    pub(crate) fn packet(&self) -> usize {
        let lane = self.lanes.first();
        lane.and_then(|lane| lane.search.as_ref()).map_or(self.fixed.packet, Search::packet)
    }

    /// A datagram of the peer's, and what it is if that is known.
    pub(crate) fn observe(&mut self, packet: &[u8], arrival: &Arrival, kind: Option<Kind>, now: Instant) {
        let activity = match kind {
            Some(Kind::Data | Kind::Parity | Kind::Report | Kind::Piece) => Activity::Traffic,
            Some(Kind::Probe) => Activity::Probe,
            Some(Kind::Mtu) => match Message::parse(packet) {
                Ok(Message::Probe(_)) => Activity::Probe,
                Ok(Message::Answer(_)) | Err(_) => Activity::Silent,
            },
            Some(Kind::Path) | None => Activity::Silent,
        };
        if let Some(lane) = self.lanes.first_mut() {
            lane.answerer.arrived(packet.len());
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

    /// An MTU packet: the peer asks, or answers.
    pub(crate) fn handle_mtu(
        &mut self,
        lane: StreamId,
        packet: &[u8],
        now: Instant,
    ) -> Result<(), Malformed> {
        let lane = self.lane(lane)?;
        match Message::parse(packet)? {
            Message::Probe(probe) => lane.answerer.handle_probe(&probe),
            Message::Answer(answer) => {
                if let Some(search) = &mut lane.search {
                    search.handle_answer(&answer, now);
                    lane.settle_excuses();
                }
            }
        }
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

    /// The answer, report or probe that is due. Only a probe of the search is longer than [`Paths::packet`].
    pub(crate) fn poll(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        self.lanes.iter_mut().find_map(|lane| lane.poll(now, out))
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
            let probes = std::mem::take(&mut lane.probes);
            lane.estimate.sent(bytes);
            if let Some(control) = &mut lane.control {
                control.controller.sent(bytes, traffic, now);
                if probes {
                    control.controller.excuse();
                }
            }
            if traffic {
                lane.prober.traffic(now);
                if let Some(search) = &mut lane.search {
                    search.set_used(bytes);
                }
            }
        }
    }

    /// These numbers never left this machine; `too_long`: since its interface does not carry them.
    pub(crate) fn unsent(&mut self, numbers: Range<u64>, too_long: bool) {
        if let Some(lane) = self.lanes.first_mut() {
            if let Some(search) = &mut lane.search {
                search.unsent(&numbers, too_long);
            }
            lane.settle_excuses();
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
            let search = lane.search.as_ref().and_then(Search::next_timeout);
            [lane.observer.next_timeout(), lane.prober.next_timeout(), silence, search]
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
                mtu: lane.search.as_ref().map_or(self.fixed, Search::status),
                peer_packet: lane.answerer.in_use(),
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
