//! Which two queue pairs belong together.
//!
//! A BTH names the queue pair it is for, never the one it comes from: a request tells the target's,
//! a response the requester's. [`Pairings`] finds out which response belongs to which flow of
//! requests, on evidence: connection management, or the answer to a question that no other flow of
//! the two hosts can have been asked. Neither a UDP port nor likelihood decides anything.

mod asked;
mod calls;
mod flows;
mod former;
mod idle;
mod links;
mod patience;
mod share;
mod turns;
mod windows;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::cm::{Message, MessageKind, Offer, Rej, Rep, Terms};
use crate::wire::{Ext, Kind, Nak, Packet, Psn, Qpn, Syndrome, Transport};
use calls::{Call, Calls};
use former::Former;
use links::{ByCm, Hold, Late, Links};
use share::Shares;
use turns::{Asker, Turns, Weight};
use windows::{Fit, Heard};

pub use crate::port::{flow_label_port, source_port};
pub use flows::{Candidacy, Flows, Rival};
pub use patience::MOST_PATIENCE;

/// Requests of one requester's host to one queue pair of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct FlowKey {
    /// Who sends the requests.
    pub requester: IpAddr,
    /// Who executes them.
    pub target: IpAddr,
    /// The queue pair there.
    pub target_qpn: Qpn,
}

impl FlowKey {
    /// Its two hosts.
    pub const fn hosts(self) -> Hosts {
        Hosts { requester: self.requester, target: self.target }
    }
}

/// A directed pair of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Hosts {
    /// Who sends the requests.
    pub requester: IpAddr,
    /// Who executes them.
    pub target: IpAddr,
}

/// PSNs that requests ask about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Span {
    /// The first.
    pub first: Psn,
    /// How many there are.
    pub count: u32,
    /// READs are among the requests, or what else is answered as a READ is.
    pub reads: bool,
    /// Atomics are among them.
    pub atomics: bool,
}

impl Span {
    /// PSNs of requests that are acknowledged, and not answered with data.
    pub const fn of(first: Psn, count: u32) -> Span {
        Span { first, count, reads: false, atomics: false }
    }

    /// The same of requests of this kind.
    #[must_use]
    pub const fn of_kind(self, kind: Kind) -> Span {
        let reads = matches!(kind, Kind::Read | Kind::Flush | Kind::AtomicWrite);
        Span { reads, atomics: matches!(kind, Kind::Atomic), ..self }
    }

    /// Both, and what lies between them.
    #[must_use]
    pub fn with(&self, other: &Span) -> Span {
        let ahead = self.first.distance(other.first);
        let (first, before) = if ahead > 0 { (other.first, ahead.unsigned_abs()) } else { (self.first, 0) };
        let reach = other.first.distance(first).unsigned_abs().saturating_add(other.count);
        let count = self.count.saturating_add(before).max(reach).min(1 << 24);
        Span { first, count, reads: self.reads || other.reads, atomics: self.atomics || other.atomics }
    }
}

/// The statement of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// All up to its PSN is done.
    Ack,
    /// Its PSN is the next that is expected.
    SequenceNak,
    /// The target is not ready for its PSN.
    NotReady,
    /// The target refuses its PSN for good.
    Refusal,
    /// A response to a READ.
    Read,
    /// The result of an atomic.
    Atomic,
}

/// The fields of a response that matter for pairing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Where it comes from (its source) and where it goes (its destination: the requester).
    pub hosts: Hosts,
    /// Its destination queue pair.
    pub requester_qpn: Qpn,
    /// Its PSN.
    pub psn: Psn,
    /// Its statement.
    pub word: Word,
}

impl Response {
    /// Reads it from a packet. `None`: it is no RC response.
    pub fn of(hosts: Hosts, packet: &Packet<'_>) -> Option<Response> {
        let opcode = packet.bth.opcode;
        if opcode.transport() != Transport::Rc || !opcode.is_response() {
            return None;
        }
        let word = match (opcode.kind(), packet.ext) {
            (Kind::ReadResponse, _) => Word::Read,
            (Kind::AtomicAcknowledge, _) => Word::Atomic,
            (_, Ext::Aeth(aeth)) => match aeth.syndrome {
                Syndrome::Ack { .. } => Word::Ack,
                Syndrome::Rnr { .. } => Word::NotReady,
                Syndrome::Nak(Nak::PsnSequence) => Word::SequenceNak,
                Syndrome::Nak(_) | Syndrome::Reserved(_) => Word::Refusal,
            },
            _ => return None,
        };
        Some(Response { hosts, requester_qpn: packet.bth.dest_qp, psn: packet.bth.psn, word })
    }
}

/// The flow a response answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// It was paired before.
    Known(FlowKey),
    /// It is paired by this response.
    Paired(FlowKey),
    /// It answers a question, or another flow, whose partner may be another one by now: drop it.
    /// What it answers is asked again.
    Ambiguous,
    /// It may be the answer to this flow's question, and proves nothing by itself: have the flow
    /// ask the same again, in its turn. The second time it is [`Paired`](Match::Paired).
    Again(FlowKey),
    /// The target of this flow may expect an earlier PSN, which the requester can confirm by
    /// going back to it. Nothing else is known by this.
    Hint(FlowKey),
    /// It answers no question.
    Unknown,
}

/// An event beside the answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Event {
    /// Connection management told this flow's requester, which was not known.
    Paired(FlowKey, Qpn),
    /// By connection management the flow's queue pairs, or one of them, now belong to another
    /// connection: the flow is dead, and forgotten here.
    Superseded(FlowKey),
    /// The flow's requester is another flow's, as that one's target has said. This one asks again
    /// who its own is, with what it sends next.
    Unpaired(FlowKey),
    /// The connection of this flow is being taken down (a DREQ passed), or was refused after all (a
    /// REJ).
    Closing(FlowKey),
    /// The flow may have the turn: let it ask [`Pairings::may_send`] again.
    Turn(FlowKey),
    /// The flow's requester may have another partner by now: from now on it asks as if it had none.
    Doubted(FlowKey),
    /// The flow's question has no answer yet, though the target's host answers faster: let it send
    /// once more what it has asked in this turn.
    Repeat(FlowKey),
    /// The flow's turn is over, and it was not answered. What it has sent it may send again in its
    /// next turn.
    InVain(FlowKey),
}

/// There is no room for another flow of this requester's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for another flow")]
pub struct Full;

/// Bounds and times of [`Pairings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Config {
    /// Flows at most, waiting and paired together, and those that are gone and may still be
    /// answered; also connections learned from CM and not yet used, and CM requests not yet
    /// answered, each.
    pub capacity: usize,
    /// How long an unused connection learned from CM, or an unanswered CM request, is remembered.
    pub lifetime: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config { capacity: 65_536, lifetime: Duration::from_secs(300) }
    }
}

/// Learns which two queue pairs belong together, by nothing but evidence:
///
/// 1. CM: a REQ and its REP name both ([`handle_cm`](Pairings::handle_cm)). The first flow opened
///    after that is known at once.
/// 2. An answer: the first requests of any other flow are a *question* to its target. Its answer,
///    which names the requester, lies in a window of PSNs around them: from 2^16 before to 2^16
///    beyond. The windows of two questions between the same two hosts never overlap. So a response
///    in one is the answer to that question, or to a flow that has this requester for its partner.
///
/// Somebody else may send responses in the target's name. So an answer proves what it says only if
/// its PSN is one that was asked for. Others in the window count when the target, asked again,
/// says the same again ([`Match::Again`]), once of these while no other question is out. So does
/// an ACK or sequence NAK of what was asked for while another question is out, or a request runs
/// again elsewhere, since a target that stands elsewhere than it was asked about names any PSN;
/// and any answer that would take the requester away from another flow. A sequence NAK of what was
/// not asked, which no target repeats, is for the requester to confirm ([`Match::Hint`]).
///
/// Flows whose PSNs are distant ask at the same time; of those with like PSNs (many programs begin
/// at 0) one has the *turn*, and the next one has it once that is answered. A turn without an
/// answer is over after twice the slowest first answer of the target's host of the last one or two
/// minutes ([`patience`](Pairings::patience): 5 to 200 ms; 50 ms before the first answer, and 20
/// ms at least in the first minute). Until then its window is closed to others, also when the flow
/// is gone. In the first fourth of a turn a question is repeated ([`Event::Repeat`]) where the
/// host's answers have come faster of late. So a lost packet costs no turn. A flow whose turn was
/// in vain rests, for longer each time (up to 1 s), and goes behind those that have had fewer in
/// vain; every 17th turn is one of theirs. So a dead target's neighbours wait for a few turns,
/// however many are dead. A flow that was answered before goes before all others of these, until
/// it has had three turns in vain: who begins ever more flows that nobody answers does not keep it
/// from asking. A turn is not in vain if its question was answered to a requester whose earlier
/// flow may still be answered so: the flow asks again once that is over.
///
/// Partners change without a word, too. What was known of an earlier flow, or of the other
/// direction, or in an earlier session, is no evidence for a flow opened now: it asks. A paired
/// flow that is not answered any more asks anew ([`ask_anew`](Pairings::ask_anew)). The answer
/// names the partner, and whatever flow had this requester before asks whose it is. A response in a
/// question's window whose requester has a partner is that one's if that one may hear it; in doubt
/// that one asks anew, too ([`Candidacy`]). While any paired flow of the two hosts awaits the same
/// PSN, the response tells nothing.
///
/// What is assumed of a target: it answers within [`patience`](Pairings::patience), or not at all.
///
/// # Contract
///
/// The owner calls [`open`](Pairings::open) for each flow it takes on at a target, and
/// [`open_near`](Pairings::open_near) at a requester. While the former is unpaired, or asks anew,
/// it calls [`may_send`](Pairings::may_send) before each request it sends to the target, with what
/// it is about to send, and [`pass`](Pairings::pass) when it has nothing to send. It shows every
/// response to [`handle_response`](Pairings::handle_response) and every CM message to
/// [`handle_cm`](Pairings::handle_cm), and after any call it polls
/// [`poll_event`](Pairings::poll_event) dry. It calls [`handle_timeout`](Pairings::handle_timeout)
/// at or after [`next_timeout`](Pairings::next_timeout). When a flow ends it calls
/// [`forget`](Pairings::forget), or [`release`](Pairings::release) for one at its requester: an
/// opened flow never expires by itself.
///
/// # Bounds
///
/// - `capacity` flows at targets, with those that are gone and may still be answered. Of these one
///   requester's host has at most eight times what is still free: alone it gets eight ninths, and
///   the next one finds room. Beyond, `open` answers [`Full`].
/// - As many unused connections from CM, and as many CM requests. Of each the oldest of the host
///   that has most gives way to a further one, and the flows concerned ask.
/// - 127 windows of two hosts; further flows wait.
/// - The last requesters of flows that wait, and of 1,024 that are gone.
/// - Events: a few for each call, and for each flow one turn, one rest and one repeat.
///
/// A response costs a look-up of its window and one of its requester. One that answers a question
/// costs a look at the paired flows that await an answer at this time. A call of `may_send` looks
/// at eight flows that wait for each turn it gives.
///
/// ```
/// use roce::pairing::*;
/// use roce::wire::{Psn, Qpn};
/// # use std::time::{Duration, Instant};
/// # let now = Instant::now();
/// # struct Others;
/// # impl Flows for Others {
/// #     fn claim(&self, _: &FlowKey, _: Duration) -> Candidacy { Candidacy::Good }
/// #     fn rival(&mut self, _: Hosts, _: [Option<FlowKey>; 2], _: Duration) -> Option<Rival> {
/// #         None
/// #     }
/// # }
/// let hosts = Hosts { requester: [10, 0, 0, 1].into(), target: [10, 0, 1, 1].into() };
/// let Hosts { requester, target } = hosts;
/// let flow = FlowKey { requester, target, target_qpn: Qpn::new(0x1c) };
/// let mut pairings = Pairings::new(Config::default(), now);
///
/// assert_eq!(pairings.open(flow, now), Ok(None)); // not known yet
/// assert!(pairings.may_send(&flow, &Span::of(Psn::new(100), 1), now));
///
/// let (requester_qpn, psn) = (Qpn::new(0x2a), Psn::new(100));
/// let response = Response { hosts, requester_qpn, psn, word: Word::Ack };
/// let mut flows = Others;
/// assert_eq!(pairings.handle_response(&response, &mut flows, now), Match::Paired(flow));
/// assert_eq!(pairings.handle_response(&response, &mut flows, now), Match::Known(flow));
/// assert_eq!(pairings.partner(&flow), Some(Qpn::new(0x2a)));
/// ```
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Pairings {
    config: Config,
    links: Links,
    calls: Calls,
    turns: Turns,
    #[serde(skip)]
    former: Former,
    shares: Shares,
    events: VecDeque<Event>,
    #[serde_as(as = "snapshot::At")]
    next_sweep: Instant,
    /// Which tables this sweep has been through: calls, links.
    swept: [bool; 2],
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
            links: Links::new(now),
            calls: Calls::new(config.capacity),
            former: Former::default(),
            turns: Turns::new(config.capacity),
            shares: Shares::new(config.capacity),
            events: VecDeque::new(),
            next_sweep: now + config.lifetime / 4,
            swept: [false; 2],
        }
    }

    /// Takes on a flow at its target. The requester's queue pair if CM has told it and no flow has
    /// been opened since; otherwise the flow waits. Opening a flow that is open changes nothing.
    pub fn open(&mut self, flow: FlowKey, now: Instant) -> Result<Option<Qpn>, Full> {
        if self.turns.contains(&flow) {
            return Ok(None);
        }
        let is_held = self.links.is_held(&flow);
        if is_held && !self.links.is_closing(&flow) {
            return Ok(self.links.partner(&flow));
        }
        let gone = self.turns.ghosts() + self.links.late();
        // Another connection's takes the place of the one before.
        if !is_held && !self.shares.enter(flow.requester, gone) {
            return Err(Full);
        }
        if self.links.is_closing(&flow) {
            self.untie(&flow, now);
        }
        let known = self.links.take_fresh(&flow, Hold::Target);
        if known.is_none() {
            self.turns.insert(flow);
            // Until then its answer could be the answer to the one before, which had the same name.
            if let Some(until) = self.links.late_until(&flow).filter(|until| *until > now) {
                self.turns.rest(&flow, until);
            }
        }
        Ok(known)
    }

    /// Takes on a flow at its requester. The requester's queue pair if CM has told it and no flow
    /// has been opened since: otherwise the first answer tells it.
    pub fn open_near(&mut self, flow: FlowKey, now: Instant) -> Option<Qpn> {
        if self.links.is_closing(&flow) {
            self.untie(&flow, now);
        }
        self.links.take_fresh(&flow, Hold::Requester)
    }

    /// Forgets a connection that was taken down, and says so of the flows that are still there.
    fn untie(&mut self, flow: &FlowKey, now: Instant) {
        for (other, hold) in self.links.untie(flow).into_iter().flatten().filter(|(other, _)| other != flow) {
            self.supersede(&other, hold, now);
        }
    }

    fn supersede(&mut self, flow: &FlowKey, hold: Hold, now: Instant) {
        if hold == Hold::Target {
            self.shares.leave(flow.requester);
            self.turns.give_up(flow, now, &mut self.events);
        }
        self.event(Event::Superseded(*flow));
    }

    /// Returns true if the flow may send requests with these PSNs to the target now, and is then
    /// taken to send them. True for paired flows always. Otherwise the flow has a turn to come, and
    /// [`Event::Turn`] says when.
    pub fn may_send(&mut self, flow: &FlowKey, span: &Span, now: Instant) -> bool {
        self.turns.may_send(flow, span, now, &mut self.events)
    }

    /// The flow has nothing to send: a turn that it has not used goes to the next.
    pub fn pass(&mut self, flow: &FlowKey, now: Instant) {
        self.turns.pass(flow, now, &mut self.events);
    }

    /// A paired flow gets no answers: its target may have another partner by now. From now on it
    /// asks as if it had none.
    pub fn ask_anew(&mut self, flow: &FlowKey) {
        if self.links.is_held(flow) {
            self.turns.insert_answered(*flow);
        }
    }

    /// How long an answer of this target's host may take: whatever was asked longer ago is not
    /// answered any more.
    pub fn patience(&self, hosts: Hosts, now: Instant) -> Duration {
        self.turns.patience(hosts, now)
    }

    /// The flow that a response from the target answers.
    pub fn handle_response(&mut self, response: &Response, flows: &mut impl Flows, now: Instant) -> Match {
        let &Response { hosts, requester_qpn, psn, word } = response;
        let asker = self.turns.asker(hosts, psn, word);
        let known = self.links.flow_of(hosts, requester_qpn);
        let tied = known.filter(|flow| self.links.is_held(flow) && !self.turns.contains(flow));
        let patience = self.turns.patience(hosts, now);
        if let Some(flow) = tied {
            let is_contested = matches!(asker, Asker::Flow(..));
            match if is_contested { flows.claim(&flow, patience) } else { Candidacy::Good } {
                Candidacy::Good => {
                    self.turns.hear_again(&flow, psn, now);
                    return Match::Known(flow);
                }
                Candidacy::Doubtful => {
                    self.ask_anew(&flow);
                    self.event(Event::Doubted(flow));
                    return Match::Ambiguous;
                }
                Candidacy::None => {}
            }
        }
        let late_until = self.links.is_late_until(response, now);
        let Asker::Flow(flow, fit) = asker else { return Match::Unknown };
        if let Some(until) = late_until {
            self.turns.veil(&flow, until);
            return Match::Unknown;
        }
        // A flow whose target has another partner by now may have been answered just as well.
        let rival = flows.rival(hosts, [Some(flow), tied], patience);
        if rival == Some(Rival::Here) {
            return Match::Ambiguous;
        }
        if fit == Fit::Near && word == Word::SequenceNak {
            return Match::Hint(flow);
        }
        let near = (fit == Fit::Near).then_some(psn);
        // One packet's word takes no requester away from a flow that has it. And a target that was
        // asked about a PSN where it does not stand names any other.
        let is_alone = !self.turns.do_others_ask(&flow) && rival.is_none();
        let is_sure = match word {
            Word::Ack | Word::SequenceNak => is_alone,
            Word::NotReady | Word::Refusal => rival.is_none(),
            Word::Read | Word::Atomic => true,
        };
        let is_enough = near.is_none() && tied.is_none() && is_sure;
        let is_clear = is_enough || self.is_no_formers(&flow, requester_qpn);
        let heard = Heard { requester_qpn, near, asks: 0, is_alone, is_clear };
        match if is_enough { Weight::Enough } else { self.turns.weigh(&flow, heard, now) } {
            Weight::Enough => {}
            Weight::AskAgain => return Match::Again(flow),
            Weight::AskAlone => return Match::Ambiguous,
        }
        self.pair(flow, requester_qpn, now);
        Match::Paired(flow)
    }

    /// The flow's question was answered to this queue pair.
    fn pair(&mut self, flow: FlowKey, requester_qpn: Qpn, now: Instant) {
        for (other, hold) in self.links.tie(flow, requester_qpn, None, now).into_iter().flatten() {
            // The half at the requester of the other direction hears from its own target who its
            // partner is.
            if other != flow && hold == Hold::Target {
                self.turns.insert_answered(other);
                if other.hosts() == flow.hosts() {
                    self.former.note(other, requester_qpn);
                }
                self.event(Event::Unpaired(other));
            }
        }
        self.former.forget(&flow);
        self.links.hold(&flow, Hold::Target);
        self.turns.settle(&flow, true, now, &mut self.events);
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
            // RTU, DREP and APR end what is known by then; SIDR is of UD, which has no connections;
            // a LAP names another path for the same queue pairs.
            _ => {}
        }
    }

    fn handle_reply(&mut self, src: IpAddr, dst: IpAddr, rep: &Rep<'_>, now: Instant) {
        let Some(call) = self.calls.answer((dst, src), rep.remote_comm_id(), rep.qpn()) else { return };
        let flow = FlowKey { requester: dst, target: src, target_qpn: rep.qpn() };
        let reply = Offer::of_rep(rep);
        let Call { path_mtu, retries, .. } = call;
        let by_cm = ByCm {
            ids: (rep.local_comm_id(), rep.remote_comm_id()),
            terms: [call.offer.terms(&reply, path_mtu, retries), reply.terms(&call.offer, path_mtu, retries)],
            // Each names where the other begins.
            first_psns: [reply.peer_first_psn, call.offer.peer_first_psn],
        };
        self.learn(&by_cm, flow, call.qpn, now);
    }

    /// Either may reject: the callee the request, the caller the reply, and the callee when it was
    /// not told that the reply came.
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

    /// Returns the terms that connection management told of a flow.
    pub fn terms(&self, flow: &FlowKey) -> Option<Terms> {
        self.links.terms(flow)
    }

    /// The first PSN of a flow, if connection management told it and it was not asked for before:
    /// then the flow is not at its beginning any more.
    pub fn take_first_psn(&mut self, flow: &FlowKey) -> Option<Psn> {
        self.links.take_first_psn(flow)
    }

    /// Ties both ends together as CM has told, and ends the wait of the flows concerned.
    fn learn(&mut self, by_cm: &ByCm, flow: FlowKey, requester_qpn: Qpn, now: Instant) {
        let back = reverse(&flow, requester_qpn);
        let ends = [(flow, requester_qpn), (back, flow.target_qpn)];
        let wanted =
            ends.iter().any(|(end, _)| self.turns.contains(end)) || self.links.partner(&flow).is_some();
        if !wanted && !self.links.make_room(flow.requester, self.config.capacity) {
            return;
        }
        for (other, hold) in self.links.tie(flow, requester_qpn, Some(by_cm), now).into_iter().flatten() {
            self.supersede(&other, hold, now);
        }
        for (end, qpn) in ends {
            self.former.forget(&end);
            if self.turns.settle(&end, false, now, &mut self.events) {
                self.links.hold(&end, Hold::Target);
                self.event(Event::Paired(end, qpn));
            }
        }
    }

    /// The requester's queue pair of a flow, if known.
    pub fn partner(&self, flow: &FlowKey) -> Option<Qpn> {
        self.links.partner(flow)
    }

    /// The flow taken on at the target whose requester is this queue pair.
    pub fn of_requester(&self, hosts: Hosts, requester_qpn: Qpn) -> Option<FlowKey> {
        self.links.held_flow(hosts, requester_qpn)
    }

    /// Returns true if a flow of these hosts waits to be paired, so that its requester may be any
    /// queue pair.
    pub fn has_waiting(&self, hosts: Hosts) -> bool {
        self.turns.has_waiting(hosts)
    }

    /// A flow at its target is gone. `asked`: what it has sent, and when the last of it.
    pub fn forget(&mut self, flow: &FlowKey, asked: Option<(Span, Instant)>, now: Instant) {
        self.keep_former(flow);
        let waited = self.turns.give_up(flow, now, &mut self.events);
        let was_held = self.links.is_held(flow);
        if was_held && let Some(requester_qpn) = self.links.partner(flow) {
            let patience = self.turns.patience(flow.hosts(), now);
            let late = asked.map(|(asked, at)| Late { flow: *flow, asked, until: at + patience });
            if let Some(late) = late.filter(|late| late.until > now) {
                self.links.expect_late(requester_qpn, late);
            }
            self.links.release(flow, now);
        }
        if waited || was_held {
            self.shares.leave(flow.requester);
        }
    }

    /// A flow at its requester is gone.
    pub fn release(&mut self, flow: &FlowKey, now: Instant) {
        self.links.release(flow, now);
    }

    /// Returns the next event of another flow than the one asked about.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Flows taken on at their targets, waiting and paired.
    pub fn flows(&self) -> usize {
        self.shares.total()
    }

    /// CM requests not remembered until their reply, since as many were as there may be, of all or
    /// of one caller.
    pub fn refused_calls(&self) -> u64 {
        self.calls.refused()
    }

    /// Flows that wait to be paired, or to be confirmed.
    pub fn waiting(&self) -> usize {
        self.turns.len()
    }

    /// When to call [`handle_timeout`](Pairings::handle_timeout).
    pub fn next_timeout(&self) -> Option<Instant> {
        [self.turns.next_timeout(), self.links.next_timeout(), Some(self.next_sweep)]
            .into_iter()
            .flatten()
            .min()
    }

    /// Passes turns on and drops what expired. Looks at a bounded number of entries per call, and
    /// at those that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.turns.handle_timeout(now, &mut self.events);
        self.links.handle_timeout(now);
        if now < self.next_sweep {
            return;
        }
        let lifetime = self.config.lifetime;
        let [calls, links] = &mut self.swept;
        *calls = *calls || self.calls.sweep(SWEEP, lifetime, now);
        *links = *links || self.links.sweep(SWEEP, lifetime, now);
        let is_through = self.swept == [true; 2];
        if is_through {
            self.swept = [false; 2];
        }
        self.next_sweep = now + if is_through { lifetime / 4 } else { SWEEP_STEP };
    }
}

/// The flow of the same connection in the other direction.
const fn reverse(flow: &FlowKey, requester_qpn: Qpn) -> FlowKey {
    FlowKey { requester: flow.target, target: flow.requester, target_qpn: requester_qpn }
}
