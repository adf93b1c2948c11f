//! Requester side: the half at the requester's gateway.

mod amid;
mod answers;
mod back;
mod config;
mod copies;
mod due;
mod failed;
mod gap;
mod hint;
mod incarnation;
mod owed;
mod requester;
mod resend;
mod respond;
mod retained;
mod ring;
mod rnr;
mod seen;
mod state;
mod strangers;
mod target;
mod told;
mod transmit;
mod turn;
mod waiting;

use std::sync::Arc;
use std::time::Instant;

use self::answers::Replays;
pub use self::config::{NearConfig, NearCounters, NearStats};
use self::due::{Due, Say};
use self::failed::Failed;
use self::gap::Gap;
use self::incarnation::Incarnation;
use self::requester::Requester;
pub use self::resend::{Data, Resend};
pub(super) use self::ring::Class;
use self::ring::Ring;
use self::seen::Seen;
use self::target::Target;
use self::told::Told;
use self::turn::LanTurn;
use self::waiting::KeepAlive;
use super::horizon::{MtuSet, NEARBY, Order};
use super::rewritten::{RewrittenPacket, Style};
use crate::cm::Terms;
use crate::wire::{Kind, Packet, Psn, Qpn, Transport};

/// The fate of a request packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Push its bytes as the next request record.
    Forward,
    /// Push its bytes as a replay: a READ answered before that the requester wants again, or an
    /// atomic whose result is not kept here.
    Replay,
    /// Not for the target.
    Drop(Why),
}

/// Why a request packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Not an RC request.
    NotARequest,
    /// The flow has not started, and this packet does not start a message; or it lies before the
    /// first packet of a flow of which the target has not spoken yet, and comes for the first time.
    Orphan,
    /// Ahead of the PSN expected; the requester is told.
    Ahead,
    /// Seen before; acknowledged again if it may be.
    Duplicate,
    /// A READ or atomic seen before and not answered yet, or being run again already.
    Pending,
    /// Behind, but nothing this flow has seen: a very late packet, or a new life of the queue pair.
    Stale,
    /// Too much is outstanding.
    Full,
    /// The flow failed; the requester is told.
    Failed,
    /// The flow failed and has lingered long enough.
    Dead,
}

/// The fate of a response record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deliver {
    /// Send it to the requester at once, as [`RewrittenPacket`] says.
    Emit(RewrittenPacket),
    /// Taken in; [`Near::poll_transmit`] may have something to say about it.
    Absorbed,
}

/// Where a PSN stands for this flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PsnPosition {
    /// The one expected (any, before the first).
    InOrder,
    /// Behind; `recent`: this flow has seen it, not too long ago in PSNs.
    Duplicate {
        /// See above.
        recent: bool,
    },
    /// Ahead.
    Ahead,
}

/// The responder towards the requester's NIC.
///
/// Driving it: [`handle_request`](Near::handle_request) for each request packet from the LAN,
/// [`handle_response`](Near::handle_response) for each response record, in order or as
/// [`may_overtake`](Near::may_overtake) says; after a batch of either,
/// [`poll_transmit`](Near::poll_transmit) until `None`. Call
/// [`handle_timeout`](Near::handle_timeout) at or after [`next_timeout`](Near::next_timeout), which
/// may change with every other call. Nothing is sent before [`pair`](Near::pair).
///
/// - **The first PSN** is the first packet's. If the requester's very first packet was lost, that
///   PSN is too high, and any ACK or NAK would complete what was lost. So until the target has said
///   a word about it (any response at or beyond it), nothing at all is sent to the requester,
///   unless connection management told just this PSN ([`set_terms`](Near::set_terms)), which spares
///   the first message that wait. When the far side reports that the target expects an earlier PSN,
///   the requester hears that. If it goes back there the flow starts over; so it does where the
///   requester goes back twice to an earlier PSN, or to the message right before. Nobody else's
///   word moves the flow.
/// - **A new incarnation of the queue pair** may begin at any PSN, and mostly begins where the last
///   one did (UCX and NCCL at 0). No packet says so. Whatever is said from memory could complete
///   what nobody has, and no length of time proves anything. So memory confirms nothing: where only
///   the target can tell, [`doubts`](Near::doubts) says so, and the owner has a new flow ask it. On
///   a flow at rest that is any request but the next; on one that waits for its target, see
///   `incarnation.rs`. A repeat within two LAN turns of its ACK has crossed it, and is dropped
///   without a word. After a rest nothing is said either, not even inside a message, before the
///   target has answered the first request that follows. A last ACK that the LAN loses therefore
///   costs a round trip between the sites.
/// - **An outstanding request that comes again** is a repetition if its headers agree, whatever its
///   UDP port. If only its payload differs (buffers are read when sent), the new bytes are carried
///   under the same PSN, once per round trip at most.
/// - **Atomics run at most once.** One that comes again is carried to the target again, with its
///   PSN. The target executes only the PSN that it expects, and expects each once in an
///   incarnation. What lies behind it answers from its own memory or, if that is gone, not at all;
///   then the flow ends in an error.
/// - **Local completion** ([`set_local`](Near::set_local)): what is complete is acknowledged before
///   the target did, within the bounds of ACKs inside messages. So it waits for room as they do,
///   and never goes past an unanswered READ or atomic.
/// - **Duplicates** are acknowledged again only if this flow has seen them
///   ([`NearConfig::recent`]).
/// - **Sequence NAKs** carry not the PSN expected but the first one not yet acknowledgeable, since
///   they acknowledge all before: the requester sends again what is still on its way, and that is
///   dropped here as duplicate.
/// - **READs of unknown span** (path MTU unknown): the next request's PSN tells; if it told wrongly
///   because that request was the one after a lost one, the far side finds out from the responses
///   and reports the PSN to start over from.
/// - **Requesters that repeat selectively** send again only what a NAK names. So what was dropped
///   behind a gap is named once the gap has closed, and the target has acknowledged all before it.
/// - **Survival**: an ACK inside a message covers only what the owner retains beyond this process,
///   where it has said what it does not ([`note_unretained`](Near::note_unretained)).
/// - **Bounds**: `max_messages` and `hard_limit` drop packets (the requester sends again),
///   `mid_ack_limit` withholds ACKs inside messages; sixteen replays at once.
/// - **Many that wait**: [`NearConfig::keepalive`] is for each flow. An owner of thousands says
///   less where it may: [`may_put_off`](Near::may_put_off).
#[derive(serde::Serialize, serde::Deserialize)]
pub struct Near {
    #[serde(skip)]
    config: Arc<NearConfig>,
    #[serde(skip)]
    stats: Arc<NearCounters>,
    state: State,
    requester: Requester,
    seen: Seen,
    ring: Ring,
    told: Told,
    turn: LanTurn,
    incarnation: Incarnation,
    gap: Gap,
    target: Target,
    replays: Replays,
    due: Due,
    keepalive: KeepAlive,
    /// ACKs inside messages may be given.
    writable: bool,
    /// The next message is done for its requester once it is complete.
    local: bool,
}

/// The state of a flow.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum State {
    /// Waits for its first packet.
    Fresh,
    /// The same; connection management has told the PSN of that packet, up to which all counts as
    /// told.
    Announced,
    /// A first packet was accepted.
    Open(Proof),
    /// Every request is refused.
    Failed(Box<Failed>),
}

/// On whose word the requester may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Proof {
    /// Nobody's: the target has not spoken, and the first PSN may be too high.
    Unproven,
    /// Nobody's any more: all was answered, and what came since may be of another incarnation,
    /// whose first packets were lost.
    Rested,
    /// The target's: it has answered requests of this incarnation, or connection management told
    /// its first PSN.
    Proven,
}

impl State {
    /// The proof of a flow that has started.
    fn stood(&self) -> Option<Proof> {
        match self {
            State::Fresh | State::Announced => None,
            State::Open(proof) => Some(*proof),
            State::Failed(failed) => failed.stood(),
        }
    }
}

impl Near {
    /// A flow that waits for its first packet. Flows of one configuration share it, and those of
    /// one owner their counters.
    pub fn new(config: impl Into<Arc<NearConfig>>, stats: Arc<NearCounters>, now: Instant) -> Near {
        let config = config.into();
        Near {
            stats,
            state: State::Fresh,
            requester: Requester::new(now),
            seen: Seen::new(MtuSet::new(config.mtu)),
            ring: Ring::at(Psn::default()),
            told: Told::new(now),
            turn: LanTurn::default(),
            incarnation: Incarnation::default(),
            gap: Gap::default(),
            target: Target::new(now),
            replays: Replays::default(),
            due: Due::default(),
            keepalive: KeepAlive::new(now),
            writable: true,
            local: false,
            config,
        }
    }

    /// A request packet from the requester's NIC.
    pub fn handle_request(&mut self, packet: &Packet<'_>, now: Instant) -> Verdict {
        let verdict = self.judge(packet, now);
        match verdict {
            Verdict::Forward => {
                self.stats.forwarded.one();
                self.stats.forwarded_bytes.add(packet.bytes.len() as u64);
            }
            Verdict::Replay => self.stats.replays.one(),
            Verdict::Drop(Why::Ahead) => self.stats.ahead.one(),
            Verdict::Drop(Why::Duplicate | Why::Pending) => self.stats.duplicates.one(),
            Verdict::Drop(Why::Orphan | Why::Stale) => self.stats.stale.one(),
            Verdict::Drop(Why::Full) => self.stats.full.one(),
            Verdict::Drop(_) => {}
        }
        verdict
    }

    fn judge(&mut self, packet: &Packet<'_>, now: Instant) -> Verdict {
        let opcode = packet.bth.opcode;
        if opcode.transport() != Transport::Rc || !opcode.is_request() {
            return Verdict::Drop(Why::NotARequest);
        }
        if self.is_failed() {
            return Verdict::Drop(self.refuse(packet, now));
        }
        if !self.is_started() && !self.start(packet) {
            return Verdict::Drop(Why::Orphan);
        }
        if self.seen.mtu().known().is_none() {
            self.learn_mtu(packet);
        }
        self.note_incarnation(packet, now);
        let verdict = match self.seen.order(packet) {
            Order::Exact if self.breaks_off(packet, now) => Verdict::Drop(Why::Orphan),
            Order::Exact => self.accept(packet, now),
            Order::Ahead => Verdict::Drop(self.ahead(packet.bth.psn, now)),
            Order::Behind => self.behind(packet, now),
        };
        self.requester.note_strange(!self.fits(packet.bth.psn));
        self.note_heard(now);
        verdict
    }

    /// The requester has sent something.
    fn note_heard(&mut self, now: Instant) {
        self.requester.note_heard(now);
        self.told.note_heard();
    }

    fn start(&mut self, packet: &Packet<'_>) -> bool {
        let psn = packet.bth.psn;
        let told = self.is_announced() && self.told.to() == psn;
        if !told && !packet.bth.opcode.starts_message() {
            return false;
        }
        self.begin(psn, Style::of(&packet.bth));
        if told {
            self.prove();
        }
        true
    }

    fn begin(&mut self, psn: Psn, style: Style) {
        self.requester.style = style;
        self.state = State::Open(Proof::Unproven);
        self.restart_at(psn);
    }

    /// Everything before `psn` is none of this flow's business; nothing from there on has been
    /// seen. Returns what was outstanding.
    fn restart_at(&mut self, psn: Psn) -> Ring {
        self.keep_owed();
        self.keep_amid(psn);
        self.seen.restart_at(psn);
        let outstanding = std::mem::replace(&mut self.ring, Ring::at(psn));
        self.told.restart_at(psn);
        self.target.rnr = None;
        self.gap.forget_dropped();
        self.incarnation.forget_questions();
        outstanding
    }

    fn accept(&mut self, packet: &Packet<'_>, now: Instant) -> Verdict {
        if self.has_no_room_for(packet) {
            // One that waits comes by itself.
            let psns = if self.pause(packet, now) { 0 } else { self.seen.span_of(packet) };
            self.gap.block(psns, now);
            return Verdict::Drop(Why::Full);
        }
        self.note_rest(now);
        let opcode = packet.bth.opcode;
        let read = (opcode.kind() == Kind::Read).then(|| packet.ext.reth().map_or(0, |reth| reth.dma_length));
        if read.is_some() {
            self.requester.note_read();
        }
        if let Some(span) = self.seen.pass(packet, read) {
            self.ring.settle_read(span);
        }
        self.ring.push(packet, read.and_then(|length| self.seen.mtu().span(length)), self.local);
        self.seen.count();
        self.note_taken_again(packet);
        self.note_amid_reached();
        if self.seen.take_placed() {
            self.incarnation.forget_lost();
        }
        self.pass_strange();
        self.gap.close();
        self.due.remove(Say::Nak);
        self.note_gap_closed(now);
        self.ack_inside(packet.bth.ack_req || self.local && opcode.ends_message());
        Verdict::Forward
    }

    fn has_no_room_for(&self, packet: &Packet<'_>) -> bool {
        let slot = packet.bth.opcode.starts_message() && self.ring.len() >= self.config.max_messages;
        let bytes = self.ring.bytes() + packet.bytes.len() > self.config.hard_limit;
        slot || bytes && !self.ring.is_empty() || !self.has_psns_for(self.seen.span_of(packet))
    }

    /// PSNs are compared as signed differences: what is outstanding must stay well below half of
    /// their space.
    fn has_psns_for(&self, more: u32) -> bool {
        self.ring.is_empty() || self.seen.floor().distance(self.ring.done()).unsigned_abs() + more <= 1 << 22
    }

    /// Packets of the oldest message were accepted: acknowledge now and then.
    fn ack_inside(&mut self, asked: bool) {
        let ready = self.bound().distance(self.told.to());
        if ready > 0 && (asked || self.told.is_awaited() || ready.unsigned_abs() >= self.config.ack_every) {
            self.due.add(Say::Ack);
        } else if asked {
            self.told.await_ack(true);
        }
    }

    /// The PSN (exclusive) up to which the requester may be acknowledged. While it is to hear what
    /// the target named in answer to a repeat, nothing later.
    fn bound(&self) -> Psn {
        let done = later(self.ring.done(), self.told.to());
        let inside = self.is_proven()
            && self.writable
            && self.ring.bytes() <= self.config.mid_ack_limit
            && !self.is_at_rnr()
            && !self.is_doubted()
            && !self.has_answer();
        match self.ring.ackable() {
            Some(ackable) if inside => later(done, ackable),
            _ => done,
        }
    }

    fn behind(&mut self, packet: &Packet<'_>, now: Instant) -> Verdict {
        let (psn, opcode) = (packet.bth.psn, packet.bth.opcode);
        if self.is_rewind(psn) {
            // The requester goes back before what we took for its first packet, and the target has
            // not spoken: start over here.
            if psn.distance(self.told.to()) < -NEARBY || !self.begins_earlier(packet, now) {
                return Verdict::Drop(Why::Orphan);
            }
            self.stats.rewinds.one();
            self.start_over_at(psn);
            return self.accept(packet, now);
        }
        // Another request than the one outstanding at its PSN retries nothing.
        let is_another = self.ring.repeats(packet) == Some(false);
        if !is_another {
            self.note_impatience(psn, now);
            self.note_retry(psn, now);
            self.note_standstill(psn, now);
        }
        if self.is_failed() {
            return Verdict::Drop(Why::Failed);
        }
        if !is_another && self.ring.holds(psn) && self.renews(packet, now) {
            return Verdict::Replay;
        }
        let verdict = match Class::of(opcode.kind()) {
            Class::Plain
                if self.ring.holds(psn) && !self.ring.breaks_into(packet) && !self.is_held_back(psn) =>
            {
                Verdict::Drop(self.repeat_ack(packet))
            }
            Class::Plain if self.ask_again(psn, now) => Verdict::Replay,
            // It has crossed its ACK, or the target is asked about one before it.
            Class::Plain if self.seen.has(psn) => Verdict::Drop(Why::Duplicate),
            Class::Read if self.seen.may_have(psn) => self.read_again(packet, now),
            Class::Once if self.seen.may_have(psn) => self.result_again(psn, now),
            _ => Verdict::Drop(Why::Stale),
        };
        if verdict == Verdict::Replay {
            self.note_another(packet);
        }
        verdict
    }

    /// Returns true if the requester goes back before the first packet here, retained ones among
    /// them, of which the target has not spoken.
    fn is_rewind(&self, psn: Psn) -> bool {
        self.is_unproven() && psn.is_before(self.ring.done())
    }

    /// A SEND or WRITE came again: our ACK may be lost. Once per batch, where the requester waits
    /// for one.
    fn repeat_ack(&mut self, packet: &Packet<'_>) -> Why {
        let asked = packet.bth.ack_req || packet.bth.opcode.ends_message();
        let often = self.requester.count_duplicate(self.config.ack_every);
        self.due.add_if(Say::Duplicate, asked || often);
        // Whoever sends again has waited long enough for what can be acknowledged.
        self.due.add_if(Say::Ack, self.bound().is_after(self.told.to()));
        self.told.await_ack(asked);
        Why::Duplicate
    }

    /// Sets the terms that connection management agreed on. The path MTU and the first PSN are of
    /// use before the first request only.
    pub fn set_terms(&mut self, terms: &Terms, first_psn: Option<Psn>) {
        self.requester.set_terms(terms);
        if !matches!(self.state, State::Fresh | State::Announced) {
            return;
        }
        self.seen.hint_mtu(terms.path_mtu);
        if let Some(psn) = first_psn {
            self.restart_at(psn);
            self.state = State::Announced;
        }
    }

    /// The requester's queue pair number is known from now on.
    pub fn pair(&mut self, requester_qpn: Qpn) {
        self.requester.qpn = Some(requester_qpn);
    }

    /// Says of the messages that begin from now on whether their requester is told that they are
    /// done as soon as they have all come (`completion = "local"`; SENDs and WRITEs only, and not
    /// before the target has said its first word), or when the target acknowledged them. What was
    /// done that way and fails at the target, or is lost with the session, the requester does not
    /// learn of but by the failure of the flow: its next request is refused.
    pub fn set_local(&mut self, local: bool) {
        self.local = local;
    }

    /// Returns whether a requester is to be told to go on once there is room outside this flow.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.gap.is_refused()
    }

    /// Returns whether ACKs inside messages may be given; `false` slows the requester down. With
    /// `true` one whose packet was refused ([`pause`](Near::pause)) is told to send it again.
    pub fn set_writable(&mut self, writable: bool, now: Instant) {
        let opened = writable && !self.writable;
        self.writable = writable;
        if opened && !self.is_failed() {
            self.ack_inside(false);
            // Who was refused waits: if its queue pair was reset since, then with a request under
            // way.
            let may_speak = self.is_proven() && !self.is_doubted();
            if self.gap.take_refusal() && may_speak {
                self.say_where_to_go_on(now);
            }
        }
    }

    /// Returns true if its requester is slowed down or refused for want of room.
    #[must_use]
    pub fn waits_for_room(&self) -> bool {
        !self.writable && (self.is_refused() || !self.is_idle())
    }

    /// When to call [`Near::handle_timeout`]; `None`: no timer.
    pub fn next_timeout(&self) -> Option<Instant> {
        let replays = self.replay_expiry();
        let failed = self.failed().and_then(Failed::timeout);
        let spare = self.is_spent() && self.ring.is_allocated();
        let compact = spare.then(|| self.spent_at());
        let keepalive = self.may_keep_alive().then(|| self.keepalive_at());
        [replays, failed, compact, keepalive, self.gap_timeout()].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.expire_replays(now);
        if let State::Failed(failed) = &mut self.state {
            failed.handle_timeout(now);
        }
        if self.is_to_keep_alive(now) {
            self.keepalive.note_spoken(now);
            self.due.add(Say::Keepalive);
        }
        if self.gap_timeout().is_some_and(|at| at <= now) {
            self.name_gap(now);
        }
        if self.is_spent() && self.spent_at() <= now {
            self.ring.compact();
        }
    }

    fn is_spent(&self) -> bool {
        self.ring.is_empty()
    }

    fn spent_at(&self) -> Instant {
        self.requester.heard().max(self.target.answered()) + self.config.compact_after
    }

    /// Nothing outstanding, nothing to send, no replay running.
    pub fn is_idle(&self) -> bool {
        let due = self.due;
        let again = (due.has(Say::Duplicate) || self.has_answer()) && self.may_repeat();
        let to_say = due.has(Say::Nak) || due.has(Say::Pause) || again || self.has_rnr_to_say();
        self.ring.is_empty()
            && self.replays.is_empty()
            && !to_say
            && !(due.has(Say::Ack) && self.has_ack_to_say())
    }

    fn has_ack_to_say(&self) -> bool {
        let bound = self.bound();
        bound.is_after(self.told.to()) && !self.holds_back(bound)
    }

    /// Returns true if the target has never spoken, and the requester was told nothing. It has all
    /// that it sent, so that it may begin with another flow as well.
    pub fn has_heard_nothing(&self) -> bool {
        let is_told = self.told.to() != self.ring.done();
        !self.is_failed() && !self.is_proven() && !is_told && !self.incarnation.is_known_from_before()
    }

    /// The flow failed and has lingered long enough: forget it.
    pub fn is_dead(&self) -> bool {
        self.failed().is_some_and(Failed::is_over)
    }

    /// Until when a flow that failed goes on answering.
    pub fn refuses_until(&self) -> Option<Instant> {
        self.failed().map(Failed::until)
    }

    /// The requester was told that messages are done, or is to be, which the target has not
    /// acknowledged.
    pub fn is_ahead(&self) -> bool {
        self.ring.is_ahead()
    }

    /// Everything before this PSN was acknowledged or answered by the target.
    pub fn done(&self) -> Psn {
        self.ring.done()
    }

    /// Bytes forwarded and not yet acknowledged by the target.
    pub fn outstanding_bytes(&self) -> usize {
        self.ring.bytes()
    }

    /// Where `psn` stands.
    pub fn classify(&self, psn: Psn) -> PsnPosition {
        if !self.is_started() {
            return PsnPosition::InOrder;
        }
        match self.seen.order_of(psn) {
            Order::Exact => PsnPosition::InOrder,
            Order::Ahead => PsnPosition::Ahead,
            Order::Behind => PsnPosition::Duplicate { recent: self.seen.has_lately(psn, self.config.recent) },
        }
    }

    /// The least PSN that the next request may have.
    pub fn expected(&self) -> Psn {
        self.seen.floor()
    }

    /// Returns true if a request with this PSN would be taken as the next.
    pub fn expects(&self, psn: Psn) -> bool {
        self.classify(psn) == PsnPosition::InOrder
    }

    /// The path MTU in bytes, once known.
    pub fn mtu(&self) -> Option<u32> {
        self.seen.mtu().known()
    }

    /// Returns the counts of this flow and those that share its counters.
    pub fn stats(&self) -> NearStats {
        self.stats.get()
    }
}

fn later(a: Psn, b: Psn) -> Psn {
    if a.is_after(b) { a } else { b }
}
