//! The half at the requester's gateway.

mod answers;
mod config;
mod copies;
mod failed;
mod gap;
mod incarnation;
mod resend;
mod respond;
mod ring;
mod rnr;
mod transmit;
mod turn;
mod waiting;

use std::sync::Arc;
use std::time::Instant;

use self::answers::Replays;
pub use self::config::{NearConfig, NearCounters, NearStats};
use self::failed::Failed;
use self::gap::Dropped;
use self::incarnation::{Lost, Proof, Questions};
pub use self::resend::{Data, Resend};
pub(super) use self::ring::Class;
use self::ring::Ring;
use self::rnr::Rnr;
use self::turn::LanTurn;
use super::horizon::{Horizon, MtuSet, NEARBY, Order};
use super::passed::{Passed, Style};
use crate::cm::Terms;
use crate::wire::{Kind, Packet, PathMtu, Place, Psn, Qpn, Syndrome, Transport};

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
    /// first packet of a flow of which the target has not spoken yet. After a restart of the
    /// gateway this is a message that can no longer complete.
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
    /// Send it to the requester at once, as [`Passed`] says.
    Emit(Passed),
    /// Taken in; [`Near::poll_transmit`] may have something to say about it.
    Absorbed,
}

/// Where a PSN stands for this flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
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

#[derive(Debug, Default)]
struct Due {
    ack: bool,
    nak: bool,
    /// The last ACK again, for duplicates.
    duplicate: bool,
    keepalive: bool,
    /// RNR, for want of room here.
    pause: bool,
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
///   requester goes back twice to an earlier PSN, or to the one right before. Nobody else's word
///   moves the flow.
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
/// - **Bounds**: `max_messages` and `hard_limit` drop packets (the requester sends again),
///   `mid_ack_limit` withholds ACKs inside messages; sixteen replays at once.
/// - **Many that wait**: [`NearConfig::keepalive`] is for each flow. An owner of thousands says
///   less where it may: [`may_put_off`](Near::may_put_off).
pub struct Near {
    config: Arc<NearConfig>,
    stats: Arc<NearCounters>,
    requester: Option<Qpn>,
    style: Style,
    mtu: MtuSet,
    started: bool,
    proof: Proof,
    horizon: Horizon,
    /// PSNs this flow has seen before the horizon, up to [`SEEN_MAX`], and the horizon they are
    /// counted to.
    seen: u32,
    seen_to: Psn,
    ring: Ring,
    /// Everything before is acknowledged to the requester.
    told: Psn,
    /// The PSN before `told` is a SEND's or WRITE's: a plain ACK may name it.
    told_plain: bool,
    /// When the requester was last told something new, or refused.
    told_at: Instant,
    /// When the requester was first told something since it last sent anything.
    told_first: Option<Instant>,
    turn: LanTurn,
    open: Option<Box<Questions>>,
    dropped: Option<Box<Dropped>>,
    /// There was a READ.
    has_read: bool,
    /// Counts the times that the requester began with nothing outstanding.
    window: u32,
    /// The next packet was refused for want of room outside this flow, and came from the
    /// incarnation of which the target has spoken.
    refused: bool,
    /// The target itself named the PSN expected, and that has not come since.
    placed: bool,
    /// Targets of this and of earlier flows have named a PSN to which the requester does not go
    /// back.
    lost: Option<Lost>,
    /// Where the requester of the incarnation before goes on, if this flow began in its place.
    before: Option<Psn>,
    msn: u32,
    credits: Syndrome,
    writable: bool,
    /// The next message is done for its requester once it is complete.
    local: bool,
    /// Packets were dropped for want of room: that of so many PSNs, 0 if none was.
    blocked: u32,
    /// The last sequence NAK, while its gap is open.
    gap: Option<Instant>,
    /// Packets came ahead of a gap before anything could be said to the requester.
    unsaid_gap: bool,
    /// The requester asked for an ACK that could not be given yet.
    ack_wanted: bool,
    /// Modulo 256.
    duplicates_in_row: u8,
    /// The target is not ready to receive.
    rnr: Option<Box<Rnr>>,
    /// `told` is the first PSN that connection management told, until the first packet comes.
    first_told: bool,
    /// The requester takes RNR without end.
    is_patient: bool,
    /// The requester asked again for a READ from here on: the response with this PSN is a First or
    /// Only to it.
    restart: Option<Psn>,
    /// Where the READ or atomic begins that was answered last.
    answer_from: Psn,
    due: Due,
    replays: Replays,
    failed: Option<Box<Failed>>,
    /// When the requester last sent anything.
    heard: Instant,
    /// When the target last answered anything.
    answered: Instant,
    /// When something was last sent to the requester.
    spoke: Instant,
    /// How often the word that keeps it waiting was put off since it was told something new.
    put_off: u8,
    /// It was left without a word, and sent again what waits for the target.
    is_impatient: bool,
    /// True if the last packet is neither outstanding nor next: it may be of another incarnation.
    is_strange: bool,
}

const SEEN_MAX: u32 = 1 << 22;

impl Near {
    /// A flow that waits for its first packet. Flows of one configuration share it, and those of
    /// one owner their counters.
    pub fn new(config: impl Into<Arc<NearConfig>>, stats: Arc<NearCounters>, now: Instant) -> Near {
        let config = config.into();
        Near {
            stats,
            requester: None,
            style: Style::DEFAULT,
            mtu: MtuSet::new(config.mtu),
            started: false,
            proof: Proof::Unproven,
            horizon: Horizon::at(Psn::default()),
            seen: 0,
            seen_to: Psn::default(),
            ring: Ring::at(Psn::default()),
            told: Psn::default(),
            told_plain: false,
            told_at: now,
            told_first: None,
            turn: LanTurn::default(),
            open: None,
            dropped: None,
            has_read: false,
            window: 0,
            refused: false,
            placed: false,
            lost: None,
            before: None,
            msn: 0,
            credits: Syndrome::ACK,
            writable: true,
            local: false,
            blocked: 0,
            gap: None,
            unsaid_gap: false,
            ack_wanted: false,
            duplicates_in_row: 0,
            rnr: None,
            first_told: false,
            is_patient: false,
            restart: None,
            answer_from: Psn::default(),
            due: Due::default(),
            replays: Replays::default(),
            failed: None,
            heard: now,
            answered: now,
            spoke: now,
            put_off: 0,
            is_impatient: false,
            is_strange: false,
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
        if self.failed.is_some() {
            return Verdict::Drop(self.refuse(packet, now));
        }
        if !self.started && !self.start(packet) {
            return Verdict::Drop(Why::Orphan);
        }
        if self.mtu.known().is_none() {
            self.learn_mtu(packet);
        }
        self.note_incarnation(packet, now);
        let verdict = match self.order(packet) {
            Order::Exact => self.accept(packet, now),
            Order::Ahead => Verdict::Drop(self.ahead(packet.bth.psn, now)),
            Order::Behind => self.behind(packet, now),
        };
        self.is_strange = !self.fits(packet.bth.psn);
        (self.heard, self.told_first) = (now, None);
        verdict
    }

    fn order(&self, packet: &Packet<'_>) -> Order {
        let open = self.horizon.exact(self.mtu).is_none();
        match self.horizon.order(packet.bth.psn, self.mtu) {
            // A guess at the span of the READ before, and nothing but a start of message can follow
            // that.
            Order::Exact if open && !packet.bth.opcode.starts_message() => Order::Ahead,
            order => order,
        }
    }

    fn start(&mut self, packet: &Packet<'_>) -> bool {
        let psn = packet.bth.psn;
        let told = self.first_told && self.told == psn;
        if !told && !packet.bth.opcode.starts_message() {
            return false;
        }
        self.begin(packet);
        self.proof = if told { Proof::Proven } else { Proof::Unproven };
        true
    }

    fn begin(&mut self, packet: &Packet<'_>) {
        self.style = Style::of(&packet.bth);
        self.started = true;
        self.restart_at(packet.bth.psn);
    }

    /// Everything before `psn` is none of this flow's business; nothing from there on has been
    /// seen.
    fn restart_at(&mut self, psn: Psn) {
        self.horizon = Horizon::at(psn);
        self.seen = 0;
        self.seen_to = psn;
        self.ring = Ring::at(psn);
        self.told = psn;
        self.told_plain = false;
        self.rnr = None;
        (self.dropped, self.open) = (None, None);
    }

    fn accept(&mut self, packet: &Packet<'_>, now: Instant) -> Verdict {
        if self.has_no_room_for(packet) {
            // One that waits comes by itself.
            self.blocked = if self.pause(packet, now) { 0 } else { self.span_of(packet) };
            self.gap = Some(now);
            return Verdict::Drop(Why::Full);
        }
        self.note_rest(now);
        let opcode = packet.bth.opcode;
        let read = (opcode.kind() == Kind::Read).then(|| packet.ext.reth().map_or(0, |reth| reth.dma_length));
        self.has_read |= read.is_some();
        let before = self.horizon.pass(packet.bth.psn, read, &mut self.mtu);
        if let Some(span) = before {
            self.ring.settle_read(span);
        }
        if matches!(opcode.place(), Place::First | Place::Middle) {
            self.mtu.learn_full(packet.payload.len());
        }
        self.ring.push(packet, read.and_then(|length| self.mtu.span(length)), self.local);
        self.count_seen();
        if std::mem::take(&mut self.placed) {
            self.lost = None;
        }
        self.blocked = 0;
        self.refused = false;
        self.pass_strange();
        self.gap = None;
        self.unsaid_gap = false;
        self.due.nak = false;
        self.note_gap_closed(now);
        self.ack_inside(packet.bth.ack_req || self.local && opcode.ends_message());
        Verdict::Forward
    }

    fn has_no_room_for(&self, packet: &Packet<'_>) -> bool {
        let slot = packet.bth.opcode.starts_message() && self.ring.len() >= self.config.max_messages;
        let bytes = self.ring.bytes() + packet.bytes.len() > self.config.hard_limit;
        slot || bytes && !self.ring.is_empty() || !self.has_psns_for(self.span_of(packet))
    }

    /// The PSNs that a request takes, at most.
    fn span_of(&self, packet: &Packet<'_>) -> u32 {
        let read = packet.ext.reth().filter(|_| packet.bth.opcode.kind() == Kind::Read);
        read.map_or(1, |reth| {
            self.mtu.span(reth.dma_length).unwrap_or_else(|| PathMtu::B256.psn_span(reth.dma_length))
        })
    }

    /// PSNs are compared as signed differences: what is outstanding must stay well below half of
    /// their space.
    fn has_psns_for(&self, more: u32) -> bool {
        self.ring.is_empty()
            || self.horizon.floor().distance(self.ring.done()).unsigned_abs() + more <= 1 << 22
    }

    fn count_seen(&mut self) {
        let floor = self.horizon.floor();
        let more = floor.distance(self.seen_to).max(0).unsigned_abs();
        self.seen = self.seen.saturating_add(more).min(SEEN_MAX);
        self.seen_to = floor;
    }

    /// Packets of the oldest message were accepted: acknowledge now and then.
    fn ack_inside(&mut self, asked: bool) {
        let ready = self.bound().distance(self.told);
        if ready > 0 && (asked || self.ack_wanted || ready.unsigned_abs() >= self.config.ack_every) {
            self.due.ack = true;
        } else if asked {
            self.ack_wanted = true;
        }
    }

    /// The PSN (exclusive) up to which the requester may be acknowledged.
    fn bound(&self) -> Psn {
        let done = later(self.ring.done(), self.told);
        let inside = self.proof == Proof::Proven
            && self.writable
            && self.ring.bytes() <= self.config.mid_ack_limit
            && !self.is_at_rnr()
            && !self.is_doubted();
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
            let may_begin = opcode.starts_message() || self.is_hinted(psn);
            if !may_begin || psn.distance(self.told) < -NEARBY || !self.begins_earlier(psn, now) {
                return Verdict::Drop(Why::Orphan);
            }
            self.stats.rewinds.one();
            self.restart_at(psn);
            return self.accept(packet, now);
        }
        // Another request than the one outstanding at its PSN retries nothing.
        let is_another = self.ring.repeats(packet) == Some(false);
        if !is_another {
            self.note_impatience(psn, now);
            self.note_retry(psn, now);
            self.note_standstill(psn, now);
        }
        if self.failed.is_some() {
            return Verdict::Drop(Why::Failed);
        }
        if !is_another && self.ring.holds(psn) && self.renews(packet, now) {
            return Verdict::Replay;
        }
        let verdict = match Class::of(opcode.kind()) {
            Class::Plain if self.ring.holds(psn) => Verdict::Drop(self.repeat_ack(packet)),
            Class::Plain if self.ask_again(psn, now) => Verdict::Replay,
            // It has crossed its ACK, or the target is asked about one before it.
            Class::Plain if self.has_seen(psn) => Verdict::Drop(Why::Duplicate),
            Class::Read if self.may_replay(psn) => self.read_again(packet, now),
            Class::Once if self.may_replay(psn) => self.result_again(psn, now),
            _ => Verdict::Drop(Why::Stale),
        };
        if verdict == Verdict::Replay {
            self.note_another(packet);
        }
        verdict
    }

    /// Returns true if the requester goes back before its first packet here, of which the target
    /// has not spoken.
    fn is_rewind(&self, psn: Psn) -> bool {
        self.proof == Proof::Unproven && psn.is_before(self.told)
    }

    /// Seen, or so little before the first packet that it may be a request whose answer was lost
    /// together with an earlier flow: the answer, if there is one, comes from the target itself.
    fn may_replay(&self, psn: Psn) -> bool {
        self.has_seen(psn) || psn.distance(self.seen_to) > -NEARBY
    }

    fn has_seen(&self, psn: Psn) -> bool {
        let back = self.seen_to.distance(psn);
        back > 0 && back.unsigned_abs() <= self.seen
    }

    fn is_recent(&self, psn: Psn) -> bool {
        let back = self.seen_to.distance(psn);
        self.has_seen(psn) && back.unsigned_abs() <= self.config.recent
    }

    /// A SEND or WRITE came again: our ACK may be lost. Once per batch, where the requester waits
    /// for one.
    fn repeat_ack(&mut self, packet: &Packet<'_>) -> Why {
        self.duplicates_in_row = self.duplicates_in_row.wrapping_add(1);
        let asked = packet.bth.ack_req || packet.bth.opcode.ends_message();
        let often = u32::from(self.duplicates_in_row).is_multiple_of(self.config.ack_every.max(1));
        self.due.duplicate |= asked || often;
        // Whoever sends again has waited long enough for what can be acknowledged.
        self.due.ack |= self.bound().is_after(self.told);
        self.ack_wanted |= asked;
        Why::Duplicate
    }

    /// Sets the terms that connection management agreed on. The path MTU and the first PSN are of
    /// use before the first request only.
    pub fn set_terms(&mut self, terms: &Terms, first_psn: Option<Psn>) {
        self.is_patient = terms.retries_without_end();
        if self.started || self.failed.is_some() {
            return;
        }
        self.mtu.hint(terms.path_mtu);
        if let Some(psn) = first_psn {
            self.restart_at(psn);
            self.first_told = true;
        }
    }

    /// The requester's queue pair number is known from now on.
    pub fn pair(&mut self, requester_qpn: Qpn) {
        self.requester = Some(requester_qpn);
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
        self.refused
    }

    /// Returns whether ACKs inside messages may be given; `false` slows the requester down. With
    /// `true` one whose packet was refused ([`pause`](Near::pause)) is told to send it again.
    pub fn set_writable(&mut self, writable: bool, now: Instant) {
        let opened = writable && !self.writable;
        self.writable = writable;
        if opened && self.failed.is_none() {
            self.ack_inside(false);
            // Who was refused waits: if its queue pair was reset since, then with a request under
            // way.
            let may_speak = self.proof == Proof::Proven && !self.is_doubted();
            if std::mem::take(&mut self.refused) && may_speak {
                self.due.nak = true;
                self.gap = Some(now);
            }
        }
    }

    /// When to call [`Near::handle_timeout`]; `None`: no timer.
    pub fn next_timeout(&self) -> Option<Instant> {
        let replays = self.replay_expiry();
        let failed = self.failed.as_deref().and_then(Failed::timeout);
        let spare = self.is_spent() && self.ring.is_allocated();
        let compact = spare.then(|| self.spent_at());
        let keepalive = self.may_keep_alive().then(|| self.keepalive_at());
        [replays, failed, compact, keepalive, self.gap_timeout()].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.expire_replays(now);
        if let Some(failed) = &mut self.failed {
            failed.handle_timeout(now);
        }
        if self.is_to_keep_alive(now) {
            self.spoke = now;
            self.due.keepalive = true;
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
        self.heard.max(self.answered) + self.config.compact_after
    }

    /// Nothing outstanding, nothing to send, no replay running.
    pub fn is_idle(&self) -> bool {
        let due = &self.due;
        let again = (due.duplicate || self.has_answer()) && self.may_repeat();
        let to_say = due.nak || due.pause || again || self.has_rnr_to_say();
        self.ring.is_empty()
            && self.replays.is_empty()
            && !to_say
            && (!due.ack || !self.bound().is_after(self.told))
    }

    /// The flow failed and has lingered long enough: forget it.
    pub fn is_dead(&self) -> bool {
        self.failed.as_deref().is_some_and(Failed::is_over)
    }

    /// The flow failed: every request is refused.
    pub fn is_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Until when a flow that failed goes on answering.
    pub fn refuses_until(&self) -> Option<Instant> {
        self.failed.as_deref().map(Failed::until)
    }

    /// The requester was told that messages are done, or is to be, which the target has not
    /// acknowledged.
    pub fn is_ahead(&self) -> bool {
        self.ring.is_ahead()
    }

    /// Bytes forwarded and not yet acknowledged by the target.
    pub fn outstanding_bytes(&self) -> usize {
        self.ring.bytes()
    }

    /// Where `psn` stands.
    pub fn classify(&self, psn: Psn) -> Standing {
        if !self.started {
            return Standing::InOrder;
        }
        match self.horizon.order(psn, self.mtu) {
            Order::Exact => Standing::InOrder,
            Order::Ahead => Standing::Ahead,
            Order::Behind => Standing::Duplicate { recent: self.is_recent(psn) },
        }
    }

    /// Returns true if a request with this PSN would be taken as the next.
    pub fn expects(&self, psn: Psn) -> bool {
        self.classify(psn) == Standing::InOrder
    }

    /// Returns true if a first packet was accepted.
    pub fn is_started(&self) -> bool {
        self.started
    }

    /// The path MTU in bytes, once known.
    pub fn mtu(&self) -> Option<u32> {
        self.mtu.known()
    }

    /// Returns the counts of this flow and those that share its counters.
    pub fn stats(&self) -> NearStats {
        self.stats.get()
    }
}

fn later(a: Psn, b: Psn) -> Psn {
    if a.is_after(b) { a } else { b }
}
