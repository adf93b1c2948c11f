//! Says in the log and among the events, once for each change, what the numbers show.

mod clock;
mod openings;
mod together;
mod way;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::ip::Reject;
use roce::wire::Qpn;
use session::control::{Impostor, Refusal};
use splice::{By, Cause, FlowFailure, FlowOpening, FlowSide, LanDrop};
use tracing::{info, warn};

use crate::events::EventKind;
use crate::liveness::DataPath;
use crate::recorder::since_1970;
use crate::retention::uptime;
use crate::seldom::{A_MINUTE, Seldom};
use crate::telemetry::{Opened, Snapshot, Telemetry, WAITING};
use clock::{Clock, Seen};
use openings::Openings;
use together::Together;
use way::{Way, is_no_way};

/// Back-pressure has ended when nothing was held back for so long.
const RELIEF: Duration = Duration::from_secs(10);
/// The same mistake of a host's is told again after this time at the earliest.
const AGAIN: Duration = Duration::from_secs(3600);

/// Flows told of each time, if many fail.
const FAILURES: usize = 10;

/// Remembers what was told last.
pub(super) struct Telling {
    way: Way,
    pressure: Pressure,
    mistakes: [Mistake; 2],
    /// Bounds how often attempts that look like a thief's are told of.
    impostor: Seldom,
    openings: Openings,
    ended: Together,
    restored: Together,
    /// A data path that was found dead at the last look, which the log has not told yet.
    dead: Option<DataPath>,
    /// The peer, in the log of a gateway that has several.
    about: String,
    /// The LAN and the machine are told of with one of them.
    tells_lan: bool,
    clock: Clock,
}

impl Telling {
    /// Has told nothing.
    pub(super) fn new(wan: &config::Wan, peer: &config::Peer) -> Self {
        let [roce_v1, extensions] = [(Reject::RoceV1, ROCE_V1), (Reject::IpOptions, EXTENSIONS)];
        Self {
            way: Way::new(wan, peer),
            pressure: Pressure::default(),
            mistakes: [roce_v1, extensions].map(|(reject, text)| Mistake::new(reject, text)),
            impostor: Seldom::new(A_MINUTE),
            openings: Openings::default(),
            ended: Together::default(),
            restored: Together::default(),
            dead: None,
            about: String::new(),
            tells_lan: true,
            clock: Clock::default(),
        }
    }

    /// Names the peer in the log, for a gateway that has several. The first also tells of the LAN
    /// and the machine.
    #[must_use]
    pub(super) fn naming(self, peer: &str, is_first: bool) -> Self {
        Self { about: format!("towards {peer}: "), tells_lan: is_first, ..self }
    }

    /// Looks at everything; about every second.
    pub(super) fn look(&mut self, telemetry: &Telemetry, now: Instant) {
        self.data_path(telemetry, now);
        self.wan(telemetry, now);
        self.lan(telemetry, now);
        self.clock(telemetry, now);
        self.impostors(telemetry, now);
        self.failures(telemetry, now);
        self.openings(telemetry, now);
        let snapshot = telemetry.snapshot(now);
        if let Some(change) = self.pressure.observe(held_back(&snapshot), now) {
            let text = change.text();
            telemetry.events().push(change.kind(), &text);
            info!("{}{text}", self.about);
        }
        for mistake in &mut self.mistakes {
            if let Some(text) = mistake.observe(&snapshot, now) {
                telemetry.events().about_all().push(EventKind::LanMistake, &text);
                warn!("{text}");
            }
        }
    }

    /// Looks at this machine's two sides early, since the kernel tells of a change.
    ///
    /// A LAN without a fault is judged by the workers' word as well, which may be of before.
    pub(super) fn look_early(&self, telemetry: &Telemetry, now: Instant) {
        self.wan(telemetry, now);
        if telemetry.has_lan_fault() {
            self.lan(telemetry, now);
        }
    }

    /// Tells of the first flows that failed, and how many others did at the same time. Those that
    /// ended with their session are told of together.
    fn failures(&mut self, telemetry: &Telemetry, now: Instant) {
        let about = &self.about;
        let tell = |text: &str, class: Option<&str>| {
            telemetry.events().push_of(EventKind::FlowFailed, class, text);
            warn!("{about}flow failed: {text}");
        };
        // Before the flows are taken, so that none is counted that is not among them yet.
        let counted = telemetry.snapshot(now).flows_failed.first().copied().unwrap_or(0);
        let (mut told, mut others) = (0, 0);
        let ended = &mut self.ended;
        others += telemetry.failures().take(WAITING, |(failure, policy)| {
            if failure.cause == Cause::Session {
                let FlowFailure { requester, requester_qpn, target, target_qpn, .. } = failure;
                ended.name(ends((requester, requester_qpn), (target, target_qpn)));
            } else if told < FAILURES {
                told += 1;
                let class = policy.classes().get(failure.class).map(|class| class.name.as_str());
                tell(&describe(&failure, class), class);
            } else {
                others += 1;
            }
        });
        if let Some((text, unnamed)) = ended.take(counted, "ended with their session") {
            others = others.saturating_sub(unnamed);
            telemetry.events().push(EventKind::FlowFailed, &text);
            warn!("{about}flow failed: {text}");
        }
        if others > 0 {
            tell(&format!("{others} more at the same time"), None);
        }
    }

    /// Tells of flows that were opened, as many as [`Openings`] lets it.
    fn openings(&mut self, telemetry: &Telemetry, now: Instant) {
        let about = &self.about;
        let tell = |text: &str| {
            telemetry.events().push(EventKind::FlowOpened, text);
            info!("{about}flow opened: {text}");
        };
        // As for those that failed.
        let counted = telemetry.snapshot(now).flows_restored;
        let restored = &mut self.restored;
        let mut left = self.openings.left(now);
        let waiting = &mut self.openings;
        let others = telemetry.openings().take(WAITING, |opened| match opened {
            Opened::Flow(opening) if left > 0 => {
                left -= 1;
                waiting.told();
                tell(&beginning(&opening));
            }
            Opened::Flow(opening) => waiting.others().add(opening.into()),
            Opened::Between(between) => waiting.others().add(between),
            Opened::Restored(FlowOpening { requester, requester_qpn, target, target_qpn, .. }) => {
                restored.name(ends((requester, requester_qpn), (target, target_qpn)));
            }
        });
        waiting.others().add_others(others);
        for text in waiting.due(now) {
            tell(&text);
        }
        if let Some((text, _)) = restored.take(counted, "go on after the end of a process") {
            telemetry.events().push(EventKind::FlowRestored, &text);
            info!("{about}flows restored: {text}");
        }
    }

    /// The log tells each refusal by itself.
    fn impostors(&mut self, telemetry: &Telemetry, now: Instant) {
        if !self.impostor.may_tell(now) {
            return;
        }
        let Some(Impostor { reason, address, attempts }) = telemetry.refusals().take_impostor() else {
            return;
        };
        self.impostor.tell(now);
        let what = match reason {
            Refusal::Revoked => format!("a revoked certificate was shown by {address} and refused"),
            _ => format!(
                "a certificate in order was shown by {address} and refused, since peer.address is {}: a mistake \
                 there, or a thief",
                self.way.to
            ),
        };
        let such = if attempts == 1 { "such attempt" } else { "such attempts" };
        let text = format!("{what}; {attempts} {such} since this was last told");
        telemetry.events().push(EventKind::Impostor, &text);
    }

    /// Says once for each change how the data path stands.
    ///
    /// The log tells of a dead one a look later. If control is lost in the same moment, as where a
    /// link is cut, that says it all.
    fn data_path(&mut self, telemetry: &Telemetry, now: Instant) {
        let about = &self.about;
        let judged = telemetry.judge_data_path(now);
        // Without a session nothing is known of either way.
        let is_lost = judged == Some(DataPath::default());
        if let Some(DataPath { to_peer, from_peer }) = self.dead.take().filter(|_| !is_lost) {
            let (to_peer, from_peer) = (to_peer.name(), from_peer.name());
            warn!(
                to_peer,
                from_peer, "{about}control is up, and no data crosses: the bulk port may be blocked"
            );
        }
        let Some(path) = judged else { return };
        let (to_peer, from_peer) = (path.to_peer.name(), path.from_peer.name());
        telemetry
            .events()
            .push(EventKind::DataPath, &format!("to the peer {to_peer}, from the peer {from_peer}"));
        self.dead = path.is_dead().then_some(path);
        if self.dead.is_none() {
            info!(to_peer, from_peer, "{about}the data path has changed");
        }
    }

    /// Counts each time that the clock was set, and tells of it once a minute at most.
    fn clock(&mut self, telemetry: &Telemetry, now: Instant) {
        if !self.tells_lan {
            return;
        }
        let Some((clock, uptime)) = clock::read(uptime, since_1970) else { return };
        let Seen { is_set, text } = self.clock.observe(clock, uptime, now);
        if is_set {
            telemetry.clock_set();
        }
        if let Some(text) = text {
            warn!("{text}");
            telemetry.events().about_all().push(EventKind::ClockSet, &text);
        }
    }

    /// All peers' status has the judgement; the first one's tells of it.
    fn lan(&self, telemetry: &Telemetry, now: Instant) {
        let Some(judged) = telemetry.judge_lan(now).filter(|_| self.tells_lan) else { return };
        match judged.unusable() {
            None => {
                let name = telemetry.lan_interface().unwrap_or_else(|| "the interface".to_owned());
                let text = format!("{name} is up, with a carrier and an address");
                telemetry.events().about_all().push(EventKind::LanUp, &text);
                info!("the LAN interface is up again: {text}");
            }
            Some((why, since)) => {
                telemetry.events().about_all().push(EventKind::LanDown, why);
                // One warning, whatever else is found out of it.
                match since == now {
                    true => warn!("the LAN interface is not usable: {why}"),
                    false => info!("the LAN interface is still not usable: {why}"),
                }
            }
        }
    }

    fn wan(&self, telemetry: &Telemetry, now: Instant) {
        let Way { from, to, .. } = &self.way;
        let why = match self.way.look() {
            Ok(()) => None,
            Err(error) if is_no_way(&error) => Some(format!("no way from {from} to {to}: {error}")),
            // Without a socket to ask by, nothing is known of the way.
            Err(_) => return,
        };
        let Some(judged) = telemetry.judge_wan(why, now) else { return };
        match judged.unusable() {
            None => {
                telemetry.events().push(EventKind::WanUp, &format!("{from} is there, with a route to {to}"));
                info!(address = from, peer = to, "the way to the peer begins again");
            }
            Some((why, since)) => {
                telemetry.events().push(EventKind::WanDown, why);
                match since == now {
                    true => warn!("{why}"),
                    false => info!("{why}"),
                }
            }
        }
    }
}

/// Names both ends of a flow that has begun.
fn beginning(opening: &FlowOpening) -> String {
    let FlowOpening { requester, requester_qpn, target, target_qpn, .. } = *opening;
    let end = end(opening.side);
    format!("{} (the {end} is here)", ends((requester, requester_qpn), (target, target_qpn)))
}

fn ends(requester: (IpAddr, Option<Qpn>), target: (IpAddr, Qpn)) -> String {
    let qpn = requester.1.map_or_else(|| "?".to_owned(), |qpn| format!("{:#x}", qpn.get()));
    format!("{} {qpn} > {} {:#x}", requester.0, target.0, target.1.get())
}

/// The end of a flow whose half is here.
fn end(side: FlowSide) -> &'static str {
    match side {
        FlowSide::Near => "requester",
        FlowSide::Far => "target",
    }
}

/// Names both ends of a flow, its class, and why it failed.
fn describe(failure: &FlowFailure, class: Option<&str>) -> String {
    let FlowFailure { requester, requester_qpn, target, target_qpn, .. } = *failure;
    let end = end(failure.side);
    let by = match failure.by {
        By::Us => "this gateway",
        By::Peer => "the peer",
    };
    let ends = ends((requester, requester_qpn), (target, target_qpn));
    let class = class.map(|class| format!("class {class}, ")).unwrap_or_default();
    format!("{ends}: {} ({class}the {end} is here, {by} gave it up)", failure.cause.name())
}

/// Returns how many packets of local hosts met a full link until now: senders were told to slow
/// down, or the packets found no room.
fn held_back(snapshot: &Snapshot) -> u64 {
    let dropped = [LanDrop::NoRoom, LanDrop::Share]
        .map(|drop| snapshot.lan_dropped.get(drop as usize).copied().unwrap_or(0));
    dropped.iter().fold(snapshot.lan_backlog_marked, |sum, count| sum.saturating_add(*count))
}

/// Judges if hosts offer more than the link carries.
#[derive(Debug, Default)]
struct Pressure {
    counted: u64,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Free,
    /// Since when, from what count on, and when a packet last met it.
    Pressed { since: Instant, from: u64, last: Instant },
}

/// A change of it.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Began,
    Ended { after: Duration, packets: u64 },
}

impl Change {
    fn kind(&self) -> EventKind {
        match self {
            Self::Began => EventKind::PressureBegan,
            Self::Ended { .. } => EventKind::PressureEnded,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Began => "back-pressure began: local hosts offer more than the link carries".to_owned(),
            Self::Ended { after, packets } => {
                let seconds = after.as_secs();
                format!("back-pressure ended after {seconds} s, in which it met {packets} packets")
            }
        }
    }
}

impl Pressure {
    /// Takes the count of packets that met it. Changes are a [`RELIEF`] apart or more, in pairs.
    fn observe(&mut self, counted: u64, now: Instant) -> Option<Change> {
        let before = std::mem::replace(&mut self.counted, counted);
        let has_grown = counted > before;
        match &mut self.state {
            State::Free if has_grown => {
                self.state = State::Pressed { since: now, from: before, last: now };
                Some(Change::Began)
            }
            State::Free => None,
            State::Pressed { last, .. } if has_grown => {
                *last = now;
                None
            }
            State::Pressed { since, from, last } if now.saturating_duration_since(*last) >= RELIEF => {
                let after = last.saturating_duration_since(*since);
                let ended = Change::Ended { after, packets: counted.saturating_sub(*from) };
                self.state = State::Free;
                Some(ended)
            }
            State::Pressed { .. } => None,
        }
    }
}

const ROCE_V1: &str = "a local host sends RoCE v1, which cannot cross: have it use a RoCE v2 GID";
const EXTENSIONS: &str = "a local host sends RoCE with IP options or extension headers, which cannot cross: take them off its route";

/// A common mistake in the set-up of hosts, whose packets go nowhere.
#[derive(Debug)]
struct Mistake {
    reject: Reject,
    text: &'static str,
    counted: u64,
    again: Seldom,
}

impl Mistake {
    fn new(reject: Reject, text: &'static str) -> Self {
        Self { reject, text, counted: 0, again: Seldom::new(AGAIN) }
    }

    fn observe(&mut self, snapshot: &Snapshot, now: Instant) -> Option<String> {
        let counted = snapshot.lan_rejected.get(self.reject.index()).copied().unwrap_or(0);
        let has_grown = counted > std::mem::replace(&mut self.counted, counted);
        if !has_grown || !self.again.tell(now) {
            return None;
        }
        let packets = if counted == 1 { "packet" } else { "packets" };
        Some(format!("{} ({counted} {packets} so far)", self.text))
    }
}

#[cfg(test)]
mod tests;
