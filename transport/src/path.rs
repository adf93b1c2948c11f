//! The path to the peer: its lanes' observers and estimates.

use std::ops::Range;
use std::time::{Duration, Instant};

use reliability::congestion::{self, Controller, EcnState, EcnValidation};
use reliability::estimator::{
    Activity, Arrival, EstimateConfig, LaneId, ObserverConfig, PATH_PACKET, PathEstimate, PathObserver,
    PathReport, Prober, Skew, Summary, parse_probe,
};
use reliability::lanes::{self, Lanes};
use reliability::mtu::{self, Answerer, Joiner, Message, Search};
use reliability::stream::{InBlock, Kind, Malformed, StreamId, sending_time};
use reliability::trace::Entry;

use crate::bounds::{Config, Congestion, MOST_LANES};
use crate::thinning::Thinning;

/// A lane to the peer.
struct TxLane {
    id: LaneId,
    estimate: PathEstimate,
    prober: Prober,
    /// Where it is found how long packets may be.
    search: Option<Search>,
    /// The packet about to be sent is a probe longer than what is in use.
    probes: bool,
    /// Where the way to the peer is shared.
    control: Option<Controller>,
    /// Where packets are ECN-capable: somebody answers to marks.
    ecn: Option<EcnValidation>,
    /// Bounds what reports take of it.
    thinning: Thinning,
    /// Bytes a second that reports usually take at most. Thinned to more than that, they lack
    /// nothing.
    usual_reports: u64,
    /// When the last report that the estimate was told of had been sent: it is made for one in a
    /// round trip.
    estimated: Option<u32>,
}

/// A lane from the peer.
struct RxLane {
    observer: PathObserver,
    answerer: Answerer,
    joiner: Joiner,
}

/// A lane as known at this end.
#[derive(Clone, Debug)]
pub struct PathStats {
    /// Which.
    pub lane: LaneId,
    /// The way to the peer.
    pub summary: Summary,
    /// How it stands among the lanes to the peer.
    pub health: lanes::State,
    /// The way from the peer on its lane of this number, as it was observed up to the last report.
    pub observed: PathReport,
    /// Reports of the way from the peer that were sent.
    pub reports: u64,
    /// Bytes a second that reports are thinned to, since the way to the peer carries no more;
    /// `None`: they are not thinned to less than they usually take.
    pub thinned: Option<u64>,
    /// Probes sent.
    pub probes: u64,
    /// How long packets to the peer may be.
    pub mtu: mtu::Status,
    /// The longest packet that the peer uses, plaintext bytes, as it says; 0: it has not.
    pub peer_packet: u16,
    /// How much is sent, unless that is fixed.
    pub congestion: Option<congestion::State>,
    /// How it stands with ECN-capable packets, if any are sent.
    pub ecn: Option<EcnState>,
}

/// A packet of the path's own.
pub(crate) struct Polled {
    pub(crate) lane: LaneId,
    pub(crate) len: usize,
    /// The peer reports on it.
    asks: bool,
}

/// The part that a sent packet plays for the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is for the streams.
    Traffic,
    /// It is a packet of the path's own.
    Own { asks: bool },
}

impl Polled {
    pub(crate) fn sent(&self) -> Sent {
        Sent::Own { asks: self.asks }
    }
}

/// Share of the packets that may be sent again though they were only late.
const ASKED_IN_VAIN: f64 = 0.002;
/// On a path that reorders, a lost packet may be missed this much longer however short the round
/// trip is.
const TOLERABLE: Duration = Duration::from_millis(10);
/// Reports on each of several lanes are wanted so often in a round trip: one may be lost, and
/// silence is to be told from bad luck.
const REPORTS: u32 = 4;

/// The part of the peer's rate that reports on a full way from there take: a fiftieth.
const USUAL: u64 = 50;

/// Reports of all lanes take this share of the rate at most, in bytes a second.
pub(crate) fn reports_of(rate: u64) -> u64 {
    (rate / 8 / 8).max(1)
}

impl TxLane {
    fn new(id: LaneId, config: &Config, most: usize, hint: Option<usize>, now: Instant) -> Self {
        let (overhead, rate, rtt) = (config.ip_overhead, config.rate, config.rtt);
        let search = config.find_mtu.then(|| {
            let base = config.base_packet;
            Search::new(mtu::Config { lane: id, base, most, hint, overhead, rate, rtt }, now)
        });
        let adaptive = config.congestion == Congestion::Adaptive;
        Self {
            id,
            estimate: PathEstimate::new(EstimateConfig { lane: id, ..EstimateConfig::new(rtt) }, now),
            prober: Prober::new(config.probes, id, now),
            search,
            probes: false,
            control: adaptive.then(|| Controller::new(congestion::Config { ceiling: rate, rtt }, now)),
            ecn: adaptive.then(|| EcnValidation::new(rtt)),
            thinning: Thinning::new(reports_of(rate) / u64::from(config.lanes.max(1))),
            usual_reports: rate / 8 / USUAL / u64::from(config.lanes.max(1)),
            estimated: None,
        }
    }

    fn poll(&mut self, lanes: &mut Lanes, now: Instant, out: &mut [u8]) -> Option<Polled> {
        let len = self.poll_search(lanes, now, out).or_else(|| self.prober.poll(now, out))?;
        Some(Polled { lane: self.id, len, asks: true })
    }

    fn poll_search(&mut self, lanes: &mut Lanes, now: Instant, out: &mut [u8]) -> Option<usize> {
        let search = self.search.as_mut()?;
        search.set_rtt(self.estimate.rtt());
        let polled = search.poll(self.estimate.numbers(), now, out);
        self.probes = polled.is_some_and(|len| len > search.packet());
        self.settle_excuses(lanes);
        polled
    }

    /// The loss of a probe that was longer than what is in use says nothing of the path's losses.
    fn settle_excuses(&mut self, lanes: &mut Lanes) {
        let Some(search) = &mut self.search else { return };
        let [sent, arrived] = search.take_excused();
        self.estimate.exclude(sent);
        self.estimate.include(arrived);
        lanes.exclude(self.id, sent, arrived);
    }

    /// `often`: reports come more often than the estimate is to be told of.
    fn handle_report(&mut self, report: &PathReport, often: bool, now: Instant) -> Result<(), Malformed> {
        self.estimate.check(report)?;
        if let Some(ecn) = &mut self.ecn {
            ecn.reported(report.arrived, report.ect, self.estimate.rtt());
        }
        if let Some(controller) = &mut self.control {
            controller.handle_report(report, now)?;
        } else if !often {
            return self.estimate.handle_report(report, now);
        }
        self.thinning.handle_report(report, self.estimate.rtt(), now);
        let apart = PathEstimate::report_interval(self.estimate.rtt()).as_micros();
        let soon = |last: u32| u128::from(report.sent_at.wrapping_sub(last)) < apart;
        if !self.estimated.is_some_and(soon) {
            self.estimated = Some(report.sent_at);
            self.estimate.handle_report(report, now)?;
        }
        Ok(())
    }

    /// How often reports are wanted, if more often than they come of themselves.
    fn wanted(&self, often: bool) -> Option<Duration> {
        match &self.control {
            Some(controller) => Some(controller.interval()),
            None => often.then(|| self.estimate.rtt() / REPORTS),
        }
    }
}

/// Returns true if there is room for the lane's packets, and its controller lets one go, if it has
/// one.
fn may_send(outward: &[TxLane], full: u64, lane: LaneId) -> bool {
    let control = outward.get(usize::from(lane.0)).and_then(|lane| lane.control.as_ref());
    has_room(full, lane) && control.is_none_or(Controller::may_send)
}

fn has_room(full: u64, lane: LaneId) -> bool {
    1_u64.checked_shl(lane.0.into()).is_none_or(|bit| full & bit == 0)
}

/// All lanes of a session, each direction's; none without a session.
pub(crate) struct Paths {
    outward: Vec<TxLane>,
    inward: Vec<RxLane>,
    lanes: Lanes,
    /// Lanes whose packets would wait in this machine while those of others do not, a bit for each.
    full: u64,
    skew: Skew,
    /// As long as packets may be where nothing is searched.
    fixed: mtu::Status,
    /// The most to be sent, in bit/s, and what was last told.
    ceiling: u64,
    rate: u64,
    /// Bytes around a packet.
    packet_overhead: usize,
    /// Cache of what follows from the lanes in use ([`Paths::packet`], [`Paths::report_rate`]).
    packet: usize,
    report_rate: Option<u64>,
    /// When [`Paths::poll`] may have something; at once if more has happened since than arrivals.
    due: Option<Instant>,
    is_stirred: bool,
}

impl Paths {
    pub(crate) fn down(now: Instant) -> Self {
        Self {
            outward: Vec::new(),
            inward: Vec::new(),
            lanes: Lanes::new(1, Duration::ZERO, now),
            full: 0,
            skew: Skew::new(0, now),
            fixed: mtu::Status::default(),
            ceiling: 0,
            rate: 0,
            packet_overhead: 0,
            packet: 0,
            report_rate: None,
            due: None,
            is_stirred: false,
        }
    }

    /// For a session with packets of up to `most` bytes, in which the peer sends on so many lanes;
    /// of the session before, `hint` is what was found.
    pub(crate) fn up(
        config: &Config,
        most: usize,
        peer_lanes: u8,
        hint: Option<usize>,
        now: Instant,
    ) -> Self {
        let bounded = |lanes: u8| lanes.clamp(1, MOST_LANES);
        let (lanes, peer_lanes) = (bounded(config.lanes), bounded(peer_lanes));
        let ids = |lanes: u8| (0..u16::from(lanes)).map(LaneId);
        let observer = |lane| ObserverConfig { lane, ..ObserverConfig::new(config.rtt) };
        let inward = |lane| RxLane {
            observer: PathObserver::new(observer(lane), now),
            answerer: Answerer::new(lane),
            joiner: Joiner::default(),
        };
        let overhead = config.ip_overhead;
        let mut paths = Self {
            outward: ids(lanes).map(|lane| TxLane::new(lane, config, most, hint, now)).collect(),
            inward: ids(peer_lanes).map(inward).collect(),
            lanes: Lanes::new(lanes, config.rtt, now),
            full: 0,
            skew: Skew::new(peer_lanes, now),
            fixed: mtu::Status { packet: most, mtu: most + overhead, ..mtu::Status::default() },
            ceiling: config.rate,
            rate: 0,
            packet_overhead: config.packet_overhead,
            packet: most,
            report_rate: None,
            due: None,
            is_stirred: true,
        };
        if paths.lanes.are_several() {
            paths.ask();
        }
        paths.settle();
        paths
    }

    pub(crate) fn is_up(&self) -> bool {
        !self.outward.is_empty()
    }

    fn usable(&self) -> impl Iterator<Item = &TxLane> {
        self.outward.iter().filter(|lane| self.lanes.is_usable(lane.id))
    }

    /// The longest packet to be sent to the peer now, plaintext bytes: one that every lane in use
    /// carries.
    pub(crate) fn packet(&self) -> usize {
        self.packet
    }

    /// Works out what follows from the lanes in use, and has [`Paths::poll`] look at all of them:
    /// what is known of a lane has changed.
    fn settle(&mut self) {
        let found = self.usable().filter_map(|lane| lane.search.as_ref()).map(Search::packet);
        self.packet = found.min().unwrap_or(self.fixed.packet);
        let thin = self.usable().any(|lane| lane.thinning.rate().is_some());
        self.report_rate = thin.then(|| self.usable().map(|lane| lane.thinning.allowed()).sum());
        self.is_stirred = true;
    }

    /// The round-trip time of the longest way that is used.
    pub(crate) fn rtt(&self) -> Duration {
        self.usable().map(|lane| lane.estimate.rtt()).max().unwrap_or_default()
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
        if let Some(lane) = self.inward.get_mut(usize::from(arrival.lane.0)) {
            lane.answerer.arrived(packet.len());
            lane.observer.observe(arrival, activity, now);
            // Nothing else of the lanes has changed, so nobody looks at all of them for it.
            self.due = self.due.into_iter().chain(lane.observer.next_timeout()).min();
        }
        if kind == Some(Kind::Data)
            && let Some(sent_at) = sending_time(packet)
        {
            self.skew.observe(arrival.lane, sent_at, now);
        }
    }

    /// Returns the joiner of the pieces that come on this lane; `None` if the peer has announced no
    /// such lane.
    pub(crate) fn joiner(&mut self, lane: LaneId) -> Option<&mut Joiner> {
        self.inward.get_mut(usize::from(lane.0)).map(|lane| &mut lane.joiner)
    }

    pub(crate) fn observe_copy(&mut self, lane: LaneId) {
        if let Some(lane) = self.inward.get_mut(usize::from(lane.0)) {
            lane.observer.observe_copy();
        }
    }

    /// Nobody knows on which lanes these would have come: on all alike.
    pub(crate) fn observe_overrun(&mut self, datagrams: u64) {
        let lanes = self.inward.len() as u64;
        for (lane, inward) in (0..lanes).zip(&mut self.inward) {
            inward.observer.observe_overrun(datagrams / lanes + u64::from(lane < datagrams % lanes));
        }
    }

    /// A PATH packet, of the lane that stands in place of the stream, which came on another,
    /// perhaps.
    pub(crate) fn handle_report(
        &mut self,
        lane: StreamId,
        came_on: LaneId,
        packet: &[u8],
        now: Instant,
    ) -> Result<(), Malformed> {
        let often = self.lanes.are_several();
        let known = self.outward.iter_mut().find(|known| known.id.0 == lane.0);
        let lane = known.ok_or(Malformed::Stream(lane))?;
        let report = PathReport::parse(packet)?;
        lane.handle_report(&report, often, now)?;
        self.lanes.handle_report(&report, lane.estimate.rtt(), now);
        if often || lane.control.is_some() {
            self.ask();
        }
        self.hurry();
        self.settle();
        if let Some(inward) = self.inward.get_mut(usize::from(came_on.0)) {
            inward.observer.observe_stamp(report.sent_at);
        }
        let rtt = self.rtt();
        let apart = self.reports_apart();
        for RxLane { observer, .. } in &mut self.inward {
            observer.set_rtt(rtt);
            observer.set_wanted(report.wanted);
            observer.set_apart(apart);
        }
        Ok(())
    }

    /// Returns how many bytes a second reports may take on the lanes in use, if the way to the peer
    /// carries less than they might.
    pub(crate) fn report_rate(&self) -> Option<u64> {
        self.report_rate
    }

    /// Returns how far apart reports on each lane have to be, of which all take half of what
    /// reports may.
    fn reports_apart(&self) -> Duration {
        let Some(rate) = self.report_rate() else { return Duration::ZERO };
        let bytes = (PATH_PACKET + self.packet_overhead) as u64 * self.inward.len() as u64;
        Duration::from_micros(bytes.saturating_mul(2_000_000) / rate.max(1))
    }

    /// Has the peer told how often reports are wanted.
    fn ask(&mut self) {
        let often = self.lanes.are_several();
        let Some(wanted) = self.usable().filter_map(|lane| lane.wanted(often)).min() else { return };
        for RxLane { observer, .. } in &mut self.inward {
            observer.ask(wanted);
        }
    }

    /// Has lanes probed whose health is in doubt.
    fn hurry(&mut self) {
        for lane in &mut self.outward {
            lane.prober.hurry(self.lanes.probing(lane.id));
        }
    }

    /// A PROBE packet.
    pub(crate) fn handle_probe(&mut self, lane: StreamId, packet: &[u8]) -> Result<(), Malformed> {
        let lane = self.inward.get_mut(usize::from(lane.0)).ok_or(Malformed::Stream(lane))?;
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
        let index = usize::from(lane.0);
        match Message::parse(packet)? {
            Message::Probe(probe) => {
                let lane = self.inward.get_mut(index).ok_or(Malformed::Stream(lane))?;
                lane.answerer.handle_probe(&probe);
                self.is_stirred = true;
            }
            Message::Answer(answer) => {
                let lane = self.outward.get_mut(index).ok_or(Malformed::Stream(lane))?;
                if let Some(search) = &mut lane.search {
                    search.handle_answer(&answer, now);
                    lane.settle_excuses(&mut self.lanes);
                    self.settle();
                }
            }
        }
        Ok(())
    }

    /// A stream measured a round-trip time; of which lane, only one that is alone can tell.
    pub(crate) fn sample_rtt(&mut self, rtt: Duration, now: Instant) {
        if let [lane] = self.outward.as_mut_slice() {
            lane.estimate.sample_rtt(rtt, now);
            let rtt = lane.estimate.rtt();
            self.inward.iter_mut().for_each(|inward| inward.observer.set_rtt(rtt));
        }
    }

    /// The lane of a packet that must not wait.
    pub(crate) fn any_lane(&mut self) -> LaneId {
        let Self { lanes, full, .. } = self;
        lanes.rotate(|lane| has_room(*full, lane))
    }

    /// Returns true if a packet that could wait may leave on some lane.
    pub(crate) fn may_send(&self) -> bool {
        self.lanes.may_any(|lane| may_send(&self.outward, self.full, lane))
    }

    /// The lane of a stream's packet that could wait, and that stands there in its block. One may
    /// send.
    pub(crate) fn lane(&mut self, stream: StreamId, block: Option<&InBlock>) -> LaneId {
        let Self { lanes, outward, full, .. } = self;
        let may = |lane| may_send(outward, *full, lane);
        let chosen = match block {
            Some(block) => lanes.choose_in_block(stream, block, may),
            None => lanes.choose(may),
        };
        chosen.unwrap_or_else(|| lanes.rotate(|lane| has_room(*full, lane)))
    }

    /// From now on, these lanes get no packet that could take another, a bit for each.
    pub(crate) fn set_full_lanes(&mut self, full: u64) {
        self.full = full;
    }

    /// Returns true if the lane's packets are to be ECN-capable.
    pub(crate) fn marks(&self, lane: LaneId) -> bool {
        let ecn = self.outward.get(usize::from(lane.0)).and_then(|lane| lane.ecn.as_ref());
        ecn.is_some_and(EcnValidation::marks)
    }

    /// There is nothing more to send for now.
    pub(crate) fn end_run(&mut self) {
        self.lanes.end_run();
    }

    /// The answer, report or probe that is due. Only a probe of the search is longer than
    /// [`Paths::packet`].
    pub(crate) fn poll(&mut self, now: Instant, out: &mut [u8]) -> Option<Polled> {
        if !self.is_stirred && self.due.is_none_or(|due| due > now) {
            return None;
        }
        let polled = self.poll_lanes(now, out);
        self.settle();
        if polled.is_none() {
            (self.is_stirred, self.due) = (false, self.next_poll());
        }
        polled
    }

    /// When a report, an answer or a probe is due next.
    fn next_poll(&self) -> Option<Instant> {
        let outward =
            |lane: &TxLane| [lane.prober.next_timeout(), lane.search.as_ref().and_then(Search::next_timeout)];
        let inward = self.inward.iter().filter_map(|lane| lane.observer.next_timeout());
        self.outward.iter().flat_map(outward).flatten().chain(inward).min()
    }

    fn poll_lanes(&mut self, now: Instant, out: &mut [u8]) -> Option<Polled> {
        let told =
            |lane: &mut RxLane| lane.answerer.poll(out).or_else(|| lane.observer.poll_report(now, out));
        if let Some(len) = self.inward.iter_mut().find_map(told) {
            return Some(Polled { lane: self.any_lane(), len, asks: false });
        }
        let Self { lanes, outward, .. } = self;
        outward.iter_mut().find_map(|lane| lane.poll(lanes, now, out))
    }

    /// Returns true if a report on a lane from the peer is due.
    pub(crate) fn reports(&self, now: Instant) -> bool {
        self.inward.iter().any(|lane| lane.observer.next_timeout().is_some_and(|due| due <= now))
    }

    /// How long a stream's receiver should wait for a packet that others have overtaken: so long
    /// that next to nothing is asked for in vain, but where a repair takes longer than
    /// [`TOLERABLE`], not longer than that (as RFC 8985, section 6.2, step 4).
    pub(crate) fn reorder_time(&mut self) -> Duration {
        let within = self.inward.iter().map(|lane| lane.observer.lateness_beyond(ASKED_IN_VAIN)).max();
        let between = self.skew.lateness_beyond(ASKED_IN_VAIN);
        let most = self.rtt().max(TOLERABLE);
        (within.unwrap_or_default() + between).min(most)
    }

    /// A packet of so many bytes on the wire uses the lane's next number.
    pub(crate) fn sent(&mut self, lane: LaneId, bytes: usize, what: Sent, now: Instant) {
        let traffic = what == Sent::Traffic;
        let Some(lane) = self.outward.get_mut(usize::from(lane.0)) else { return };
        self.lanes.sent(lane.id, what != Sent::Own { asks: false }, now);
        if let Some(ecn) = lane.ecn.as_mut().filter(|_| what != Sent::Own { asks: false }) {
            ecn.sent(now);
        }
        let probes = std::mem::take(&mut lane.probes);
        lane.estimate.sent(bytes);
        if let Some(controller) = &mut lane.control {
            controller.sent(bytes, traffic, now);
            if probes {
                controller.exclude();
            }
        }
        if traffic {
            lane.prober.traffic(now);
            if let Some(search) = &mut lane.search {
                self.is_stirred |= search.set_used(bytes);
            }
        }
    }

    /// These numbers of a lane never left this machine; `too_long`: since its interface does not
    /// carry them.
    pub(crate) fn unsent(&mut self, lane: LaneId, numbers: Range<u64>, too_long: bool) {
        let Some(lane) = self.outward.get_mut(usize::from(lane.0)) else { return };
        if let Some(search) = &mut lane.search {
            search.unsent(&numbers, too_long);
        }
        lane.settle_excuses(&mut self.lanes);
        self.lanes.exclude(lane.id, numbers.end.saturating_sub(numbers.start), 0);
        lane.estimate.unsent(numbers);
        self.settle();
    }

    /// From now on at most so many bit/s are to be sent. Whether the lanes find out themselves how
    /// much.
    pub(crate) fn set_ceiling(&mut self, rate: u64) -> bool {
        self.ceiling = rate;
        self.outward.iter().any(|lane| lane.control.is_some())
    }

    /// Returns the sum of the rates of the lanes in use, in bit/s; `None` without congestion
    /// control.
    pub(crate) fn most_rate(&self) -> Option<u64> {
        self.usable().filter_map(|lane| Some(lane.control.as_ref()?.rate())).reduce(u64::saturating_add)
    }

    /// The rate at which to send from now on, in bit/s, if it has changed: what the lanes in use
    /// may send together.
    pub(crate) fn new_rate(&mut self) -> Option<u64> {
        for lane in &self.outward {
            let Some(controller) = &lane.control else { continue };
            self.lanes.set_share(lane.id, controller.rate() as f64);
        }
        let rate = self.most_rate()?.min(self.ceiling);
        (std::mem::replace(&mut self.rate, rate) != rate).then_some(rate)
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let silence = |lane: &TxLane| lane.control.as_ref().and_then(Controller::next_timeout);
        let silences = self.outward.iter().filter_map(silence);
        let due = if self.is_stirred { self.next_poll() } else { self.due };
        silences.chain(due).chain(self.lanes.next_timeout()).min()
    }

    /// Runs the timers that are due, and returns true if another set of lanes is used from now on.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> bool {
        for controller in self.outward.iter_mut().filter_map(|lane| lane.control.as_mut()) {
            controller.handle_timeout(now);
        }
        let changed = self.lanes.handle_timeout(now);
        self.is_stirred = true;
        if self.lanes.are_several() {
            self.hurry();
            self.settle();
        }
        changed
    }

    /// The way to the peer, over all lanes in use; `None` without a session.
    pub(crate) fn summary(&self, now: Instant) -> Option<Summary> {
        let part = |lane: &TxLane| (self.lanes.state(lane.id).share, lane.estimate.summary(now));
        Summary::together(&self.outward.iter().map(part).collect::<Vec<_>>())
    }

    pub(crate) fn stats(&self, now: Instant) -> impl Iterator<Item = PathStats> + '_ {
        self.outward.iter().map(move |lane| {
            let inward = self.inward.get(usize::from(lane.id.0));
            let observed = inward.map(|inward| inward.observer.observed()).unwrap_or_default();
            PathStats {
                lane: lane.id,
                summary: lane.estimate.summary(now),
                health: self.lanes.state(lane.id),
                observed,
                reports: u64::from(observed.number),
                thinned: lane.thinning.below(lane.usual_reports),
                probes: lane.prober.sent(),
                mtu: lane.search.as_ref().map_or(self.fixed, Search::status),
                peer_packet: inward.map_or(0, |inward| inward.answerer.in_use()),
                congestion: lane.control.as_ref().map(Controller::state),
                ecn: lane.ecn.as_ref().map(EcnValidation::state),
            }
        })
    }

    /// Drains the runs of losses of the first lane: a trace is of one lane.
    pub(crate) fn drain_runs(&mut self, take: &mut dyn FnMut(Entry)) {
        if let Some(lane) = self.inward.first_mut() {
            lane.observer.drain_runs(take);
        }
    }
}

#[cfg(test)]
mod tests;
