//! Which two queue pairs belong together.
//!
//! A BTH names the queue pair it is for, never the one it comes from: a request tells the target's, a
//! response the requester's. [`Pairings`] finds out which response belongs to which flow of requests.

mod calls;
mod discovery;
mod port;
mod table;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::cm::{Message, MessageKind, Offer, Rej, Rep, Terms};
use crate::wire::{Psn, Qpn};
use calls::{Call, Calls};
use discovery::Disputes;
use table::{ByCm, Links, Waiting};

pub use port::{flow_label_port, source_port};

/// Requests of one requester's host to one queue pair of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    /// Who sends the requests.
    pub requester: IpAddr,
    /// Who executes them.
    pub target: IpAddr,
    /// The queue pair there.
    pub target_qpn: Qpn,
}

impl FlowKey {
    const fn hosts(self) -> Hosts {
        Hosts { requester: self.requester, target: self.target }
    }
}

/// A directed pair of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hosts {
    /// Who sends the requests.
    pub requester: IpAddr,
    /// Who executes them.
    pub target: IpAddr,
}

/// What a response tells about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Where it comes from (its source) and where it goes (its destination: the requester).
    pub hosts: Hosts,
    /// Its destination queue pair.
    pub requester_qpn: Qpn,
    /// Its UDP source port.
    pub src_port: u16,
    /// Its PSN.
    pub psn: Psn,
}

/// The flow a response answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// It was paired before.
    Known(FlowKey),
    /// It is paired by this response.
    Paired(FlowKey),
    /// One of several: drop the response and let [`Pairings::discovery`] order what is sent.
    Ambiguous,
    /// None of the flows known here.
    Unknown,
}

/// What happened beside the answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A flow that was waiting is paired with this queue pair of its requester.
    Paired(FlowKey, Qpn),
    /// The flow's queue pairs, or one of them, now belong to another connection: the flow is dead, and forgotten here.
    Superseded(FlowKey),
    /// The connection of this flow is being taken down (a DREQ passed), or was refused after all (a REJ).
    Closing(FlowKey),
}

/// Whose requests may go to a target whose flows cannot be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// Everyone's: there is no dispute.
    Free,
    /// No unpaired flow's: late responses are let run out.
    Quiet,
    /// Of the unpaired flows only this one's.
    Turn(FlowKey),
}

/// There is no room for another flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for another flow")]
pub struct Full;

/// Bounds and times of [`Pairings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Flows at most, waiting and paired together; also connections learned from CM and not yet used, and
    /// CM requests not yet answered, each.
    pub capacity: usize,
    /// How long an unused connection learned from CM, or an unanswered CM request, is remembered.
    pub lifetime: Duration,
    /// How long a target must have been silent before one flow is given the turn: more than its slowest
    /// response takes.
    pub quiet: Duration,
    /// How long a flow holds the turn without an answer before the next has it.
    pub turn: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            capacity: 65_536,
            lifetime: Duration::from_secs(300),
            quiet: Duration::from_millis(20),
            turn: Duration::from_millis(200),
        }
    }
}

/// Learns which two queue pairs belong together, by these rules in this order:
///
/// 1. CM: a REQ and its REP name both ([`handle_cm`](Pairings::handle_cm)). What is tied stays so; but without CM's word a queue pair that packets from another port
///    name has another partner by now, if these follow from the queue pairs' numbers, or are what another flow waits for.
/// 2. The UDP source port: a connection normally uses one port both ways. The only waiting flow with the
///    response's port is the one, if the port is also what the product of the two queue pair numbers
///    yields ([`source_port`]), or the PSN is near what the flow has sent. Requests both ways are paired
///    by port and product without any response.
/// 3. The PSN: of several flows with the port (of all when none has it), the only one that has sent the
///    response's PSN; the product decides between several.
/// 4. Otherwise the pair of hosts is in dispute: its unpaired flows take turns
///    ([`discovery`](Pairings::discovery)), and a response is the turn holder's.
///
/// # Contract
///
/// The owner calls [`open`](Pairings::open) for each flow it takes on. While the flow is unpaired it asks
/// [`may_send`](Pairings::may_send) before each request it sends to the target, and tells
/// [`sent`](Pairings::sent) when it does. It shows every response to
/// [`handle_response`](Pairings::handle_response) and every CM message to
/// [`handle_cm`](Pairings::handle_cm), and after these and `open` it polls
/// [`poll_event`](Pairings::poll_event) dry. It calls [`handle_timeout`](Pairings::handle_timeout) at or
/// after [`next_timeout`](Pairings::next_timeout). When a flow ends it calls
/// [`forget`](Pairings::forget), or [`release`](Pairings::release) when it only fell idle: an opened flow
/// never expires by itself.
///
/// # Bounds
///
/// `capacity` flows, after which `open` answers [`Full`]; as many unused connections from CM and
/// unanswered CM requests, after which further ones are not remembered, so that the other rules have to
/// do; as many events, of which the oldest is dropped. A response of a paired flow costs one look-up; one
/// of an unpaired flow a walk over the unpaired flows of the same two hosts.
///
/// ```
/// use roce::pairing::*;
/// use roce::wire::{Psn, Qpn};
/// # let now = std::time::Instant::now();
/// let hosts = Hosts { requester: [10, 0, 0, 1].into(), target: [10, 0, 1, 1].into() };
/// let flow = FlowKey { requester: hosts.requester, target: hosts.target, target_qpn: Qpn::new(0x1c) };
/// let src_port = source_port(Qpn::new(0x1c), Qpn::new(0x2a)); // as the requester's NIC chose it
/// let mut pairings = Pairings::new(Config::default(), now);
///
/// assert_eq!(pairings.open(flow, src_port, now), Ok(None)); // not known yet
/// assert!(pairings.may_send(&flow));
/// pairings.sent(&flow, Psn::new(100), 1);
///
/// let response = Response { hosts, requester_qpn: Qpn::new(0x2a), src_port, psn: Psn::new(100) };
/// assert_eq!(pairings.handle_response(&response, now), Match::Paired(flow));
/// assert_eq!(pairings.handle_response(&response, now), Match::Known(flow));
/// assert_eq!(pairings.partner(&flow), Some(Qpn::new(0x2a)));
/// ```
#[derive(Debug)]
pub struct Pairings {
    config: Config,
    waiting: Waiting,
    links: Links,
    calls: Calls,
    disputes: Disputes,
    events: VecDeque<Event>,
    next_sweep: Instant,
}

/// Entries of each table looked at in one call of `handle_timeout`.
const SWEEP: usize = 128;
/// Pause between two steps of one sweep.
const SWEEP_STEP: Duration = Duration::from_millis(5);

impl Pairings {
    /// An empty table.
    pub fn new(config: Config, now: Instant) -> Pairings {
        Pairings {
            config,
            waiting: Waiting::default(),
            links: Links::new(now),
            calls: Calls::new(config.capacity),
            disputes: Disputes::new(config.quiet, config.turn),
            events: VecDeque::new(),
            next_sweep: now + config.lifetime / 4,
        }
    }

    /// Takes on a flow whose requests carry this UDP source port. The requester's queue pair if it is
    /// known already; otherwise the flow waits. Opening a waiting flow again changes nothing but the
    /// port.
    pub fn open(&mut self, flow: FlowKey, src_port: u16, now: Instant) -> Result<Option<Qpn>, Full> {
        let is_new = !self.waiting.contains(&flow) && !self.links.is_held(&flow);
        if is_new && self.flows() >= self.config.capacity {
            return Err(Full);
        }
        if self.links.is_over(&flow) {
            self.links.untie(&flow);
        } else if self.links.is_refuted(&flow, src_port) {
            // The queue pair has another partner now, and what that of before still has open is over.
            for superseded in self.links.untie(&flow).into_iter().flatten().filter(|other| *other != flow) {
                self.event(Event::Superseded(superseded));
            }
        }
        if let Some(qpn) = self.links.hold(&flow, src_port) {
            return Ok(Some(qpn));
        }
        self.waiting.insert(flow, src_port);
        let Some(requester_qpn) = self.waiting.only_counterpart(&flow, src_port) else {
            return Ok(None);
        };
        self.link(flow, requester_qpn, None, now);
        Ok(Some(requester_qpn))
    }

    /// Whether a request of this flow may be sent to the target now. True for paired flows always.
    pub fn may_send(&self, flow: &FlowKey) -> bool {
        match self.disputes.state(flow.hosts()) {
            Discovery::Free => true,
            Discovery::Turn(holder) if holder == *flow => true,
            _ => self.links.partner(flow).is_some(),
        }
    }

    /// A request of a waiting flow was sent to the target: `span` PSNs from `psn` on (more than one for a
    /// READ). Sending again changes nothing.
    pub fn sent(&mut self, flow: &FlowKey, psn: Psn, span: u32) {
        self.waiting.sent(flow, psn, span);
    }

    /// The flow that a response from the target answers.
    pub fn handle_response(&mut self, response: &Response, now: Instant) -> Match {
        if let Some(flow) = self.links.answered(response) {
            let Some(other) = self.heir(&flow, response) else { return Match::Known(flow) };
            self.link(other, response.requester_qpn, None, now);
            return Match::Paired(other);
        }
        if self.links.is_late(response, self.config.quiet, now) {
            return Match::Unknown;
        }
        match self.choose(response) {
            Choice::One(flow) => {
                self.link(flow, response.requester_qpn, None, now);
                Match::Paired(flow)
            }
            Choice::Many => {
                self.disputes.raise(response.hosts, now);
                Match::Ambiguous
            }
            Choice::None => Match::Unknown,
        }
    }

    /// The waiting flow that has the requester's queue pair by now, which was this flow's: the port speaks against the one and for the other.
    fn heir(&self, flow: &FlowKey, response: &Response) -> Option<FlowKey> {
        if self.waiting.is_empty() || !self.links.is_contradicted(flow, response.src_port) {
            return None;
        }
        match self.by_rules(response) {
            Choice::One(other) if self.waiting.is_claimed(&other, response) => Some(other),
            _ => None,
        }
    }

    fn choose(&self, response: &Response) -> Choice {
        let choice = self.by_rules(response);
        match (&choice, self.disputes.state(response.hosts)) {
            (Choice::Many, Discovery::Turn(flow)) if self.waiting.has_sent(&flow, response.psn) => {
                Choice::One(flow)
            }
            _ => choice,
        }
    }

    fn by_rules(&self, response: &Response) -> Choice {
        let Response { hosts, src_port, psn, requester_qpn } = *response;
        let all = || self.waiting.between(hosts);
        let by_port = || all().filter(move |(_, wait)| wait.src_port == src_port);
        let is_product = |flow: &FlowKey| source_port(flow.target_qpn, requester_qpn) == src_port;
        match only(by_port()) {
            Choice::None => only(all().filter(|(_, wait)| wait.has_sent(psn))),
            Choice::One(flow) if is_product(&flow) => Choice::One(flow),
            Choice::One(_) => only(by_port().filter(|(_, wait)| wait.is_near(psn))),
            Choice::Many => {
                let sent = || by_port().filter(|(_, wait)| wait.has_sent(psn));
                match only(sent().filter(|(flow, _)| is_product(flow))) {
                    Choice::None => only(sent()),
                    choice => choice,
                }
            }
        }
    }

    /// A CM message passed from `src` to `dst`.
    pub fn handle_cm(&mut self, src: IpAddr, dst: IpAddr, message: &Message<'_>, now: Instant) {
        match message {
            Message::Req(req) => {
                self.calls.insert(src, dst, req.local_comm_id(), Call::new(req), now);
            }
            Message::Rep(rep) => self.handle_reply(src, dst, rep, now),
            // What is asked for takes its time; the reply must find the request remembered.
            Message::Mra(mra) if mra.message() == MessageKind::Req => {
                self.calls.touch(dst, src, mra.remote_comm_id(), now);
            }
            Message::Rej(rej) => self.handle_reject(src, dst, rej),
            Message::Dreq(dreq) => {
                let flow = FlowKey { requester: src, target: dst, target_qpn: dreq.remote_qpn() };
                if self.links.is_of(&flow, [dreq.local_comm_id(), dreq.remote_comm_id()]) {
                    self.close(&flow);
                }
            }
            // RTU, DREP and APR end what is known by then; SIDR is of UD, which has no connections; a LAP names another path for the same queue pairs.
            _ => {}
        }
    }

    fn handle_reply(&mut self, src: IpAddr, dst: IpAddr, rep: &Rep<'_>, now: Instant) {
        let Some(call) = self.calls.get_mut(dst, src, rep.remote_comm_id()) else { return };
        call.answered = Some(rep.qpn());
        let call = *call;
        let flow = FlowKey { requester: dst, target: src, target_qpn: rep.qpn() };
        let reply = Offer::of_rep(rep);
        let by_cm = ByCm {
            ids: (rep.local_comm_id(), rep.remote_comm_id()),
            terms: [call.offer.terms(&reply, call.path_mtu), reply.terms(&call.offer, call.path_mtu)],
            // Each names where the other begins.
            first_psns: [reply.peer_first_psn, call.offer.peer_first_psn],
        };
        self.learn_from(Some(&by_cm), flow, call.qpn, now);
    }

    /// Either may reject: the callee the request, the caller the reply, and the callee when it was not told that the reply came.
    fn handle_reject(&mut self, src: IpAddr, dst: IpAddr, rej: &Rej<'_>) {
        let (callee, call) = match self.calls.remove(dst, src, rej.remote_comm_id()) {
            Some(call) => (src, Some(call)),
            None => (dst, self.calls.remove(src, dst, rej.local_comm_id())),
        };
        let Some(call) = call else { return };
        let Some(target_qpn) = call.answered else { return };
        let caller = if callee == src { dst } else { src };
        let flow = FlowKey { requester: caller, target: callee, target_qpn };
        if self.links.partner(&flow) == Some(call.qpn) {
            self.close(&flow);
        }
    }

    fn close(&mut self, flow: &FlowKey) {
        for closing in self.links.close(flow).into_iter().flatten() {
            self.event(Event::Closing(closing));
        }
    }

    /// What connection management told of a flow that is paired.
    pub fn terms(&self, flow: &FlowKey) -> Option<Terms> {
        self.links.terms(flow)
    }

    /// The first PSN of a flow, if connection management told it and it was not asked for before: then the flow is not at its beginning any more.
    pub fn take_first_psn(&mut self, flow: &FlowKey) -> Option<Psn> {
        self.links.take_first_psn(flow)
    }

    /// A flow and its requester's queue pair, known from elsewhere. Not remembered when `capacity` such
    /// connections are already unused.
    pub fn learn(&mut self, flow: FlowKey, requester_qpn: Qpn, now: Instant) {
        self.learn_from(None, flow, requester_qpn, now);
    }

    /// The same, as it was some time ago, when its requests came from this port. `false`, and not learned, if the requester's queue pair has another
    /// partner by now.
    pub fn recall(&mut self, flow: FlowKey, requester_qpn: Qpn, src_port: u16, now: Instant) -> bool {
        let back = reverse(&flow, requester_qpn);
        let follows = source_port(flow.target_qpn, requester_qpn) == src_port;
        let port = self.waiting.port(&back).or_else(|| self.links.held_port(&back));
        if follows && port.is_some_and(|port| port != src_port) {
            return false;
        }
        self.learn(flow, requester_qpn, now);
        self.links.note_port(&flow, requester_qpn, src_port);
        true
    }

    fn learn_from(&mut self, by_cm: Option<&ByCm>, flow: FlowKey, requester_qpn: Qpn, now: Instant) {
        let wanted = self.waiting.contains(&flow)
            || self.waiting.contains(&reverse(&flow, requester_qpn))
            || self.links.partner(&flow).is_some();
        if (wanted || self.links.unused() < self.config.capacity)
            && self.link(flow, requester_qpn, by_cm, now)
        {
            self.event(Event::Paired(flow, requester_qpn));
        }
    }

    /// Ties both ends together, in place of what either was tied to, and ends the wait of the flows
    /// concerned. True if this one waited; only the other one's pairing is an event.
    fn link(&mut self, flow: FlowKey, requester_qpn: Qpn, by_cm: Option<&ByCm>, now: Instant) -> bool {
        for superseded in self.links.tie(flow, requester_qpn, by_cm, now).into_iter().flatten() {
            self.event(Event::Superseded(superseded));
        }
        let back = reverse(&flow, requester_qpn);
        if self.end_wait(&back, now) {
            self.event(Event::Paired(back, flow.target_qpn));
        }
        self.end_wait(&flow, now)
    }

    /// A paired flow waits no longer. True if it did.
    fn end_wait(&mut self, flow: &FlowKey, now: Instant) -> bool {
        let waited = self.waiting.remove(flow);
        if let Some(src_port) = waited {
            self.links.hold(flow, src_port);
            self.disputes.settle_paired(flow.hosts(), &self.waiting, now);
        }
        waited.is_some()
    }

    /// The requester's queue pair of a flow, if known.
    pub fn partner(&self, flow: &FlowKey) -> Option<Qpn> {
        self.links.partner(flow)
    }

    /// The connection of this flow is gone: both its directions are forgotten.
    pub fn forget(&mut self, flow: &FlowKey, now: Instant) {
        if self.links.unused() < self.config.capacity {
            self.links.bury(flow, now);
        } else {
            self.links.untie(flow);
        }
        self.stop_waiting(flow, now);
    }

    /// The owner gave up a flow that fell idle. Its pairing stays for the other direction's sake, or
    /// until it expires.
    pub fn release(&mut self, flow: &FlowKey, now: Instant) {
        self.links.release(flow, now);
        self.stop_waiting(flow, now);
    }

    /// Whether the flow is paired and the owner has taken on the other direction of its connection, too.
    pub fn is_open_both_ways(&self, flow: &FlowKey) -> bool {
        let back = self.links.partner(flow).map(|requester_qpn| reverse(flow, requester_qpn));
        back.is_some_and(|back| self.links.is_held(&back))
    }

    fn stop_waiting(&mut self, flow: &FlowKey, now: Instant) {
        if self.waiting.remove(flow).is_some() {
            self.disputes.settle_unpaired(flow, &self.waiting, now);
        }
    }

    /// Whose requests may be sent between these hosts; changes in
    /// [`handle_timeout`](Pairings::handle_timeout) and when flows are paired or given up.
    pub fn discovery(&self, hosts: Hosts) -> Discovery {
        self.disputes.state(hosts)
    }

    /// What happened to other flows than the one asked about.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn event(&mut self, event: Event) {
        if self.events.len() >= self.config.capacity {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Flows taken on, waiting and paired.
    pub fn flows(&self) -> usize {
        self.waiting.len() + self.links.held()
    }

    /// CM requests not remembered, since as many were as there may be, of all or of one caller.
    pub fn refused_calls(&self) -> u64 {
        self.calls.refused()
    }

    /// Flows that wait to be paired.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// When to call [`handle_timeout`](Pairings::handle_timeout).
    pub fn next_timeout(&self) -> Option<Instant> {
        Some(self.disputes.next_timeout().map_or(self.next_sweep, |at| at.min(self.next_sweep)))
    }

    /// Passes turns on and drops what expired. Looks at a bounded number of entries per call.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.disputes.handle_timeout(&self.waiting, now);
        if now < self.next_sweep {
            return;
        }
        let lifetime = self.config.lifetime;
        let calls_done = self.calls.sweep(SWEEP, lifetime, now);
        let links_done = self.links.sweep(SWEEP, lifetime, self.config.quiet, now);
        let pause = if calls_done && links_done { lifetime / 4 } else { SWEEP_STEP };
        self.next_sweep = now + pause;
    }
}

enum Choice {
    None,
    One(FlowKey),
    Many,
}

fn only<'a, V: 'a>(mut flows: impl Iterator<Item = (&'a FlowKey, V)>) -> Choice {
    match (flows.next(), flows.next()) {
        (None, _) => Choice::None,
        (Some((flow, _)), None) => Choice::One(*flow),
        _ => Choice::Many,
    }
}

/// The flow of the same connection in the other direction.
const fn reverse(flow: &FlowKey, requester_qpn: Qpn) -> FlowKey {
    FlowKey { requester: flow.target, target: flow.requester, target_qpn: requester_qpn }
}
