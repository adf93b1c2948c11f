//! Responder side: the half at the target's gateway.

mod abort;
mod asking;
mod came;
mod config;
mod dcqcn;
mod ending;
mod held;
mod peers;
mod read;
mod relay;
mod replay;
mod respond;
mod rnr;
mod room;
mod rtt;
mod said;
mod silence;
mod window;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::abort::Abort;
use self::came::Came;
pub use self::config::{FarConfig, FarCounters, FarStats};
use self::dcqcn::ReactionPoint;
use self::peers::{Agreed, Peers};
use self::read::Progress;
use self::relay::Relay;
use self::replay::Replays;
use self::rnr::Rnr;
use self::rtt::Rtt;
use self::said::Said;
use self::silence::{Excuse, Silence};
use self::window::{Entry, Window};
use super::horizon::{NEARBY, Order};
use super::rewritten::{Reply, RewrittenPacket};
use crate::cm::Terms;
use crate::wire::{Aeth, Bth, Kind, Nak, Packet, Psn, Qpn, Syndrome, Transport};

/// The longest packet from the BTH to the padding: a WRITE with immediate at the largest path MTU.
pub const MAX_PACKET: usize = 4096 + 12 + 16 + 4;

/// The fate of a packet from the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Push it as the next response record, as [`RewrittenPacket`] says.
    Relay(RewrittenPacket),
    /// Taken in.
    Absorbed,
    /// The packet is of no use.
    Drop(Why),
}

/// Why a packet from the target is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Not an RC response.
    NotAResponse,
    /// It answers nothing that was sent.
    Unexpected,
    /// Answered before.
    Duplicate,
    /// A READ or atomic response ahead of one that was lost; what was lost is asked for again.
    Ahead,
    /// A READ response whose size or place does not fit the READ.
    Mismatch,
    /// The flow is over.
    Dead,
}

/// Why a request record is refused. Except for `Dead` the two ends disagree on the flow: fail it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Not an RC request.
    #[error("not an RC request")]
    Malformed,
    /// Longer than [`MAX_PACKET`].
    #[error("longer than any packet")]
    TooLong,
    /// Not the next in order.
    #[error("not the next in order")]
    OutOfOrder,
    /// The buffer is full.
    #[error("buffer full")]
    Full,
    /// The flow is over.
    #[error("the flow is over")]
    Dead,
}

/// Why a flow is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Failure {
    /// The target refused a request for good; its queue pair is in error.
    Refused(Syndrome),
    /// The target did not answer for [`FarConfig::target_dead_after`].
    TargetSilent,
    /// Aborted, and the target's queue pair was put in error.
    Aborted,
    /// Aborted, but the target did not answer.
    AbortUnanswered,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum State {
    /// No request yet.
    Fresh,
    Open,
    /// Requests are discarded until the one comes from which the requester starts over.
    Rewinding,
    /// After what is in the window the flow is aborted, and the requester told. It takes no more
    /// requests.
    Refusing,
    /// The target's queue pair is being put in error. `refuses`: the requester is told of the end
    /// of that.
    Aborting {
        abort: Box<Abort>,
        refuses: bool,
    },
    /// `refuses`: of an abort that may still follow the requester is told.
    Over {
        failure: Failure,
        refuses: bool,
    },
}

impl State {
    /// Returns whether the requester is told of the end of an abort.
    fn refuses(&self) -> bool {
        match *self {
            State::Fresh | State::Open | State::Rewinding => false,
            State::Refusing => true,
            State::Aborting { refuses, .. } | State::Over { refuses, .. } => refuses,
        }
    }
}

/// The requester towards the target's NIC.
///
/// Driving it: [`handle_request`](Far::handle_request) and [`handle_replay`](Far::handle_replay)
/// for request records, in order; [`handle_response`](Far::handle_response) for each packet from
/// the target; after a batch of any of these [`poll_transmit`](Far::poll_transmit) and
/// [`poll_response`](Far::poll_response) until `None`. Call [`handle_timeout`](Far::handle_timeout)
/// at or after [`next_timeout`](Far::next_timeout), which may change with every other call.
///
/// - **Loss** on the target's LAN is repaired from the own buffer, go-back-N, and never shown to
///   the requester. A READ is asked for again from the beginning of its piece, and what comes is
///   rewritten so that the requester sees one READ.
/// - **READs** are asked for as there is room for their responses ([`set_room`](Far::set_room)), a
///   long one in pieces ([`FarConfig::read_piece`]). The target counts each piece as a message;
///   what it says of its count is corrected by that. A flow that was forgotten and is opened anew
///   no longer knows by how much.
/// - **RNR NAK**: retried here. After [`FarConfig::rnr_local_retries`] of them in a row, and
///   [`FarConfig::rnr_local_time`], one is relayed, and the target is left alone until the
///   requester has tried again ([`retry`](Far::retry)); so each one relayed counts against its
///   `rnr_retry`, and what it has given up is not done after all. What may be nobody's any more is
///   left to it at once ([`leave_to_requester`](Far::leave_to_requester)). One that takes RNR
///   without end ([`set_terms`](Far::set_terms)) is told, too, but not waited for. However long
///   that takes: when a requester is gone, the near side knows.
/// - **Congestion** on the target's LAN, of which its NIC tells ([`slow_down`](Far::slow_down)),
///   slows the flow as DCQCN has it.
/// - **Credits** for receives come with ACKs and answers as the target tells them. That it has room
///   for more, told unasked, is relayed after [`FarConfig::relay_delay`] (IBA volume 1, 9.7.7.2).
/// - **An ACK beyond what was sent**, if not by much, counts for what was sent: the target had all
///   of it before this gateway came to be.
/// - **Failure** is reported in order with the responses, as a fatal NAK from
///   [`poll_response`](Far::poll_response). It carries the oldest PSN not acknowledged, or one 2^17
///   before the first if the target never answered (then it confirms nothing).
/// - **Bounds**: [`FarConfig::max_buffered`] bytes and [`FarConfig::max_packets`], beyond which
///   requests are refused; the near side's own limits lie below, so that this does not happen.
///   Sixteen replays wait at most; more are dropped and asked for again.
#[serde_with::serde_as]
#[derive(serde::Serialize, serde::Deserialize)]
pub struct Far<B> {
    config: Arc<FarConfig>,
    #[serde(skip)]
    stats: Arc<FarCounters>,
    state: State,
    peers: Peers,
    agreed: Agreed,
    came: Came,
    window: Window<B>,
    replays: Replays<B>,
    said: Said,
    relay: Relay,
    silence: Silence,
    rtt: Rtt,
    rnr: Option<Box<Rnr>>,
    /// READ data that may still be asked for, in bytes.
    room: usize,
    /// A lost response was asked for again; until it comes what lies ahead of it is no further
    /// reason to ask.
    recovering: bool,
    excuse: Excuse,
    since_ack_req: u32,
    /// From a congestion notification until the flow has recovered from it.
    reaction: Option<Box<ReactionPoint>>,
    #[serde_as(as = "snapshot::At")]
    last_activity: Instant,
}

impl<B: AsRef<[u8]>> Far<B> {
    /// The flow to take this one's place ([`Near::anew`](crate::flow::Near::anew)). It knows the
    /// path MTU, and which message the target may be amid. It also knows where a READ was cut
    /// before the path MTU was known: asked for again, a long READ is cut where it was.
    pub fn anew(&self, config: impl Into<Arc<FarConfig>>, now: Instant) -> Far<B> {
        let came = self.came.anew(self.within(), self.has_sent());
        Far { came, ..Far::new(config, Arc::clone(&self.stats), now) }
    }

    /// A flow that waits for its first request. Flows of one configuration share it, and those of
    /// one owner their counters.
    pub fn new(config: impl Into<Arc<FarConfig>>, stats: Arc<FarCounters>, now: Instant) -> Far<B> {
        let config = config.into();
        Far {
            stats,
            state: State::Fresh,
            peers: Peers::new(),
            agreed: Agreed::default(),
            came: Came::new(config.mtu),
            window: Window::at(Psn::default()),
            replays: Replays::new(),
            said: Said::new(),
            relay: Relay::at(Psn::default()),
            silence: Silence::new(now),
            rtt: Rtt::default(),
            rnr: None,
            room: usize::MAX,
            recovering: false,
            excuse: Excuse::default(),
            since_ack_req: 0,
            reaction: None,
            last_activity: now,
            config,
        }
    }

    /// A flow of which nothing is known but the target's queue pair and, roughly, the PSN it is at
    /// (say, that of a packet in mid-message after the gateway lost its state): finds out the PSN
    /// and puts the queue pair in error.
    pub fn abort_unknown(
        config: impl Into<Arc<FarConfig>>,
        stats: Arc<FarCounters>,
        target: Qpn,
        pkey: u16,
        hint: Psn,
        now: Instant,
    ) -> Far<B> {
        let mut far = Far::new(config, stats, now);
        far.peers = Peers::of_target(target, pkey);
        let abort = Box::new(Abort::unknown(target, far.peers.style(), hint));
        far.state = State::Aborting { abort, refuses: false };
        far.stats.aborts.one();
        far
    }

    /// Has what flows share, after it was read from a snapshot. `shared` returns a configuration
    /// like its own.
    pub fn share(&mut self, shared: impl FnOnce(FarConfig) -> Arc<FarConfig>, stats: Arc<FarCounters>) {
        (self.config, self.stats) = (shared((*self.config).clone()), stats);
    }

    /// A request record, the next in order. It is kept until the target acknowledged it.
    pub fn handle_request(&mut self, packet: B, now: Instant) -> Result<(), Refused> {
        if self.is_ending() {
            return Err(Refused::Dead);
        }
        let Some(mut entry) = parse(packet)? else {
            return Err(Refused::Malformed);
        };
        self.last_activity = now;
        let psn = entry.bth.psn;
        match self.place(psn) {
            Place::Next => {}
            Place::StartOver => self.start_over(psn),
            Place::Ignored => {
                self.stats.discarded.one();
                return Ok(());
            }
            Place::Misjudged(expected) => {
                self.rewind_to(expected);
                self.stats.discarded.one();
                return Ok(());
            }
            Place::Wrong => return Err(Refused::OutOfOrder),
        }
        let bytes = entry.kept.packet.as_ref().len();
        if self.window.len() >= self.config.max_packets
            || self.window.bytes() + bytes > self.config.max_buffered
        {
            return Err(Refused::Full);
        }
        self.state = State::Open;
        self.peers.note_request(&entry.bth);
        let is_read = entry.kept.kind == Kind::Read;
        let read = is_read.then_some(entry.kept.read.length);
        if let Some(span) = self.came.pass(psn, read, entry.full_payload)
            && let Some(newest) = self.window.newest_mut()
            && newest.kind == Kind::Read
        {
            newest.read.span = span;
        }
        if let Some(length) = read {
            entry.kept.read.span = self.came.mtu.span(length).unwrap_or(0);
            entry.kept.read.cut = self.came.odd_cut_of(&entry.kept.read);
        }
        self.window.push(entry.kept);
        self.stats.requests.one();
        Ok(())
    }

    fn place(&self, psn: Psn) -> Place {
        if matches!(self.state, State::Fresh) {
            return Place::StartOver;
        }
        match self.came.order(psn) {
            Order::Exact => Place::Next,
            // The requester itself went back before what the near side took for its first packet,
            // and the near side, which had not heard from us and so told it nothing, follows. What
            // the target has already it will acknowledge again.
            Order::Behind if self.came.is_little_before(psn) => Place::StartOver,
            _ if matches!(self.state, State::Rewinding) => Place::Ignored,
            // The target's responses have told here, but not there yet, what the last READ really
            // consumes.
            Order::Ahead if self.came.horizon.follows_read() => Place::Misjudged(self.came.horizon.floor()),
            _ => Place::Wrong,
        }
    }

    /// The request after a READ was accepted at the wrong PSN, because its span was unknown and the
    /// one before was lost: from `psn` on everything is to come again.
    fn rewind_to(&mut self, psn: Psn) {
        self.note_going_back();
        self.window.truncate(psn);
        self.came.go_back_to(psn);
        if matches!(self.state, State::Open) {
            self.state = State::Rewinding;
        }
        self.stats.rewinds.one();
        let aeth = Aeth { syndrome: Syndrome::Nak(Nak::PsnSequence), msn: 0 };
        self.relay.respond(self.peers.reply(psn, aeth));
    }

    fn start_over(&mut self, psn: Psn) {
        self.note_going_back();
        self.came.begin_at(psn, self.within());
        self.relay.tell(psn);
        self.window = Window::at(psn);
        self.silence.end();
        self.excuse.set_awaits_earlier(false);
        self.rnr = None;
    }

    /// Writes the next packet for the target to the front of `out`, which must hold [`MAX_PACKET`]
    /// bytes, and returns its length.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        if matches!(self.state, State::Refusing) && self.window.is_empty() {
            self.abort(now);
        }
        if let State::Aborting { abort, .. } = &mut self.state {
            return abort.transmit(self.rtt.timeout(&self.config), now, out);
        }
        if !self.is_open() || self.is_held(now) {
            return None;
        }
        let piece = self.config.piece();
        self.replays.forget_past(self.window.una());
        if let Some(bytes) = self.replays.next_bytes(self.came.mtu, piece).filter(|bytes| *bytes <= self.room)
            && let Some(len) = self.replays.transmit(self.came.mtu, piece, now, out)
        {
            self.room -= bytes;
            self.count_rest(now);
            self.stats.sent.one();
            self.account_bytes(len, now);
            return Some(len);
        }
        if self.is_not_ready(now) {
            return None;
        }
        let len = self.transmit_next(now, out)?;
        self.account_bytes(len, now);
        Some(len)
    }

    /// The same for a flow that asks for its requester. The first packet wants an answer by itself:
    /// the rest of its message may still be on its way here.
    pub fn poll_question(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        if self.window.in_flight() == 0 {
            self.since_ack_req = self.config.ack_req_every;
        }
        self.poll_transmit(now, out)
    }

    /// Returns true while the target is left alone with what it was not ready for, or with all that
    /// is outstanding. What it has answered before is another matter: its next incarnation may be
    /// ready for that.
    fn is_not_ready(&self, now: Instant) -> bool {
        self.excuse.is_suspended()
            || self.awaits_retry()
            || self.rnr.as_ref().is_some_and(|rnr| now < rnr.until)
    }

    fn transmit_next(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        if !self.may_send(0) {
            return None;
        }
        let entry = self.window.unsent(0)?;
        let bytes = entry.packet.as_ref();
        let out = out.get_mut(..bytes.len())?;
        out.copy_from_slice(bytes);
        let (from, read) = (self.window.ask_from(self.config.piece(), self.came.mtu), entry.read);
        let upto = read.piece_end(from, self.config.piece(), self.came.mtu);
        if entry.kind == Kind::Read {
            read.ask(out, from, upto, self.came.mtu)?;
        }
        let psn = read.psn_at(from, self.came.mtu);
        let end = if upto == read.length {
            read.start + read.span.max(1)
        } else {
            read.psn_at(upto, self.came.mtu)
        };
        let answered = entry.is_answered();
        // The target reports its progress where it is asked to: now and then, and when nothing
        // follows for the moment.
        let is_due = self.since_ack_req + 1 >= self.config.ack_req_every || self.is_slow(out.len());
        let asks = !answered && (is_due || !self.may_send_after());
        if asks {
            Bth::set_ack_req(out.first_chunk_mut()?, true);
        }
        self.since_ack_req = if asks || answered { 0 } else { self.since_ack_req + 1 };
        self.room = self.room.saturating_sub(read.between(from, upto));
        if from == 0 && upto < read.length {
            // What is believed of the path MTU may turn out wrong.
            self.window.cut(upto);
        }
        let again = psn.is_before(self.window.high());
        if self.window.in_flight() == 0 {
            self.silence.restart_timer(now);
        }
        self.window.mark_sent(if end == psn { psn.next() } else { end }, upto);
        self.account_sent(psn, again, asks || answered, now);
        Some(out.len())
    }

    fn account_sent(&mut self, psn: Psn, again: bool, asks: bool, now: Instant) {
        self.stats.sent.one();
        if again {
            self.stats.retransmitted.one();
            self.rtt.spoil();
        } else if asks {
            self.rtt.sent(psn, now);
        }
    }

    /// Returns true if the window and the other limits let the unsent entry at this place go out,
    /// `ahead` others before it.
    fn may_send(&self, ahead: usize) -> bool {
        let Some(entry) = self.window.unsent(ahead) else {
            return false;
        };
        if (0..=ahead).map(|place| self.bytes_asked(place)).sum::<usize>() > self.room {
            return false;
        }
        let flying = self.window.in_flight() + ahead;
        if flying == 0 {
            return true;
        }
        if ahead == 0 && self.window.is_amid_read() {
            // Each piece once the one before is answered.
            return false;
        }
        // A target that has been silent for two timeouts, or has no receive posted, gets one packet
        // at a time: what follows would be dropped.
        let careful = self.rtt.is_silent() || self.rnr.is_some();
        let packets = if careful { 1 } else { self.config.window_packets };
        let bytes = self.window.in_flight_bytes() + entry.packet.as_ref().len();
        let reads = !entry.is_answered()
            || self.window.reads_in_flight() < self.agreed.max_reads(self.config.max_reads);
        flying < packets && bytes <= self.config.window_bytes && reads
    }

    fn may_send_after(&self) -> bool {
        self.may_send(1)
    }

    /// A response record made here: the failure of the flow, to be pushed like a relayed packet.
    /// Its destination queue pair is 0 while no response has told the requester's.
    pub fn poll_response(&mut self) -> Option<Reply> {
        self.relay.take_response()
    }

    /// When to call [`Far::handle_timeout`]; `None`: no timer.
    pub fn next_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Over { .. } | State::Fresh => return None,
            State::Aborting { abort, .. } => return abort.timeout(),
            State::Open | State::Rewinding | State::Refusing => {}
        }
        let replay = self.replay_timeout();
        if let Some(rnr) = self.rnr.as_ref().filter(|rnr| rnr.waiting) {
            let ready = (!self.awaits_retry()).then_some(rnr.until);
            return [ready, replay].into_iter().flatten().min();
        }
        let flying = self.window.in_flight() > 0;
        let rto = flying.then(|| self.silence.from() + self.patience());
        let news = self.relay.due_at(self.config.relay_delay);
        let spare = self.window.is_empty() && self.window.is_allocated();
        let compact = spare.then_some(self.last_activity + self.config.compact_after);
        [rto, replay, news, compact, self.release_at()].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        match &mut self.state {
            State::Over { .. } | State::Fresh => return,
            State::Aborting { abort, .. } => {
                let outcome = abort.handle_timeout(now);
                self.finish_abort(outcome, None);
                return;
            }
            State::Open | State::Rewinding | State::Refusing => {}
        }
        self.release(now);
        if self.is_at_rnr() {
            self.end_rnr_timer(now);
            self.expire_replay(now);
            return;
        }
        if self.window.in_flight() > 0 && now >= self.silence.from() + self.patience() {
            self.stats.timeouts.one();
            self.silence.count(now);
            self.rtt.back_off();
            self.go_back(now);
        }
        self.expire_replay(now);
        if self.is_target_dead() {
            self.fail(Failure::TargetSilent);
            return;
        }
        self.relay_late(now);
        if self.window.is_empty() && self.last_activity + self.config.compact_after <= now {
            self.window.compact();
        }
    }

    /// Sets the terms that connection management agreed on. The path MTU is of use before the first
    /// request only.
    pub fn set_terms(&mut self, terms: &Terms) {
        self.agreed = Agreed::on(terms);
        if matches!(self.state, State::Fresh) {
            self.came.mtu.hint(terms.path_mtu);
        }
    }

    /// How long to wait for the target before the next retry, or before giving up.
    fn patience(&self) -> Duration {
        let timeout = self.rtt.timeout(&self.config);
        if self.is_excused() {
            return timeout;
        }
        timeout.min(self.config.target_dead_after.saturating_sub(self.silence.total()))
    }

    fn go_back(&mut self, now: Instant) {
        self.window.go_back();
        // What comes now, but not in order, is what was asked for before: no further reason to ask.
        self.recovering = self.window.awaiting().is_some();
        self.since_ack_req = 0;
        self.silence.restart_timer(now);
    }

    /// Relays what is known for some time: the near side may wait for room.
    fn relay_late(&mut self, now: Instant) {
        if let Some(aeth) = self.relay.take_due(self.window.una(), self.config.relay_delay, now) {
            self.stats.relayed.one();
            let psn = self.window.una().prev();
            self.relay.respond(self.peers.reply(psn, aeth));
        }
    }

    /// Requests go to the target, and its responses come.
    fn is_open(&self) -> bool {
        matches!(self.state, State::Open | State::Rewinding | State::Refusing)
    }

    /// Nothing buffered, nothing under way.
    pub fn is_idle(&self) -> bool {
        let aborting = matches!(self.state, State::Aborting { .. });
        self.window.is_empty() && self.replays.is_empty() && self.relay.is_done() && !aborting
    }

    /// Bytes asked for by the READ, or the replay of one, whose next response stands at this PSN.
    pub fn read_length(&self, psn: Psn) -> Option<u32> {
        let awaited = self.window.awaiting().map(|entry| &entry.read).filter(|read| read.next() == psn);
        awaited.or_else(|| self.replays.running(psn)).map(|read| read.length)
    }

    /// Bytes of requests kept.
    pub fn buffered_bytes(&self) -> usize {
        self.window.bytes()
    }

    /// The target's queue pair, once a request told it.
    pub fn target_qpn(&self) -> Option<Qpn> {
        self.peers.target()
    }

    /// The path MTU in bytes, once known.
    pub fn mtu(&self) -> Option<u32> {
        self.came.mtu.known()
    }

    /// The smoothed round-trip time to the target and back.
    pub fn rtt(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    /// Returns the counts of this flow and those that share its counters.
    pub fn stats(&self) -> FarStats {
        self.stats.get()
    }
}

enum Place {
    Next,
    StartOver,
    Ignored,
    /// The near side guessed a READ's span wrongly; this is the PSN to go on from.
    Misjudged(Psn),
    Wrong,
}

struct Parsed<B> {
    bth: Bth,
    /// Payload of a First or Middle packet.
    full_payload: Option<usize>,
    kept: Entry<B>,
}

/// `Ok(None)`: no RC request.
fn parse<B: AsRef<[u8]>>(packet: B) -> Result<Option<Parsed<B>>, Refused> {
    if packet.as_ref().len() > MAX_PACKET {
        return Err(Refused::TooLong);
    }
    let parsed = Packet::parse(packet.as_ref()).map_err(|_| Refused::Malformed)?;
    let (bth, opcode) = (parsed.bth, parsed.bth.opcode);
    if opcode.transport() != Transport::Rc || !opcode.is_request() {
        return Ok(None);
    }
    let full = !opcode.ends_message();
    let full_payload = full.then_some(parsed.payload.len());
    let read = opcode.kind() == Kind::Read;
    let length = parsed.ext.reth().filter(|_| read).map_or(0, |reth| reth.dma_length);
    Ok(Some(Parsed {
        bth,
        full_payload,
        kept: Entry {
            packet,
            kind: opcode.kind(),
            ends: opcode.ends_message(),
            read: Progress {
                start: bth.psn,
                span: 1,
                answered: 0,
                taken: 0,
                length,
                asks: 0,
                gaps: 0,
                cut: 0,
            },
        },
    }))
}
