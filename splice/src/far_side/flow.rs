//! Responder side: A far flow: how it begins, what it asks its classes for, and how long it may
//! stand still.

use std::time::{Duration, Instant};

use reliability::message::{Pages, Reassembly};
use roce::flow::far::{Far, Refused};
use roce::ip::Addressing;
use roce::pairing::{FlowKey, Response, Word};
use roce::wire::{Opcode, Packet, Psn, Qpn};
use transport::Reservation;

use super::{Asking, FarFlow, Last, Request, Turn};
use crate::Settings;
use crate::back_pressure::Lists;
use crate::classes::{Choice, Classes, traffic};
use crate::congestion::Notified;
use crate::context::{Context, REORDER};
use crate::failures::{By, Cause, FlowFailure};
use crate::flow_report::{FlowReport, FlowState};
use crate::near_side::NearSide;
use crate::pool::Buf;
use crate::record::{FlowId, Reason};
use crate::renewals::Renewals;
use crate::short::Headers;
use crate::stale_flows::{FlowSide, StaleFlow};

impl FarFlow {
    /// Nothing has come for it yet, its requester is not known, and it is in no table. `addressing`
    /// is what this gateway speaks to the target with.
    pub(super) fn new(
        far: Far<Buf>,
        id: FlowId,
        addressing: Addressing,
        target_qpn: Qpn,
        last_psn: Psn,
        now: Instant,
    ) -> Self {
        Self {
            far,
            id,
            addressing,
            target_qpn,
            requester_qpn: None,
            headers: Headers::default(),
            choice: Choice::default(),
            asked: 0,
            requests: Reassembly::new(0, REORDER),
            waiting: 0,
            responses: 0,
            last: Last { psn: last_psn, is_amid_message: false, came_after: Renewals::default() },
            last_activity: now,
            armed: None,
            queued: None,
            withheld: Lists::default(),
            asking: Asking::new(None),
            kept: Reservation::default(),
            notified: Notified::default(),
            orphaned: false,
        }
    }

    /// Nothing but requests is known of it: its target has not spoken, nor has connection
    /// management told of its requester, nor the peer.
    pub(super) fn is_unheard(&self) -> bool {
        self.far.has_heard_nothing() && self.requester_qpn.is_none() && self.asking.expects.is_none()
    }

    /// Hands the far half the requests whose turn it is. Returns why the flow is to be given up, if
    /// it is.
    pub(super) fn hand_over(
        &mut self,
        pages: &mut Pages<Request>,
        ctx: &mut Context<'_>,
    ) -> Result<(), Reason> {
        while let Some(Request { packet, how }) = self.requests.pop(pages) {
            self.waiting -= packet.as_ref().len();
            if how.rested {
                self.far.note_rest();
            }
            if how.replay {
                if self.far.handle_replay(packet, ctx.now) {
                    self.doubt_partner(ctx);
                }
                continue;
            }
            let mut asked = None;
            if let Ok(parsed) = Packet::parse(packet.as_ref()) {
                let is_read = parsed.bth.opcode == Opcode::ReadRequest;
                asked = parsed.ext.reth().filter(|_| is_read).map(|reth| reth.dma_length);
                self.last.psn = parsed.bth.psn;
                self.last.is_amid_message = !parsed.bth.opcode.ends_message();
                if !ctx.settings.fits_lan(&self.addressing, parsed.bytes.len()) {
                    // The requester is told by the far half, which may first have to find out who
                    // that is.
                    ctx.stats.lan_too_long += 1;
                    ctx.fail(self.failure(Reason::TooLong, ctx.classes));
                    self.far.refuse(&parsed, ctx.now);
                    break;
                }
            }
            match self.far.handle_request(packet, ctx.now) {
                Ok(()) => {
                    // What a READ asks for goes out from here.
                    if let Some(length) = asked {
                        let class = self.class_of(length.into(), ctx.classes);
                        ctx.senders.note_message(class, length.into(), 0);
                    }
                }
                Err(Refused::Full) => return Err(Reason::NoRoom),
                Err(_) => return Err(Reason::Protocol),
            }
        }
        Ok(())
    }

    /// A request runs again that the target has answered. If the target has left unanswered for a
    /// timeout what was sent last, both may be in another incarnation, with other partners. So the
    /// flow asks in its turn, and the answer names its requester.
    ///
    /// Rule: `docs/protocol.md#rule-replay`.
    fn doubt_partner(&mut self, ctx: &mut Context<'_>) {
        if !self.asking.asks && self.far.is_overdue() {
            self.asking.asks = true;
            ctx.pairings.ask_anew(&self.key());
        }
    }

    /// The failure of this flow, which is given up here.
    pub(super) fn failure(&self, why: impl Into<Cause>, classes: &Classes) -> FlowFailure {
        let (key, class) = (self.key(), self.last_class(classes));
        FlowFailure::new(FlowSide::Far, &key, self.requester_qpn, (why.into(), By::Us), class)
    }

    /// The class of its last answer.
    fn last_class(&self, classes: &Classes) -> usize {
        let mut choice = self.choice;
        let traffic = || traffic(&self.addressing, self.target_qpn.get());
        classes.choose(&mut choice, traffic, self.asked)
    }

    /// The target is not ready for a request. If its queue pair has begun anew as a requester since
    /// the last request came, only the requester knows whether it still wants that. Of a connection
    /// that connection management made it also tells the end.
    ///
    /// Rule: `docs/protocol.md#rule-rnr-anew`.
    pub(super) fn look_for_renewal(&mut self, near: &NearSide, ctx: &Context<'_>) {
        let key = self.key();
        let FlowKey { requester, target, .. } = key;
        let back = |target_qpn| FlowKey { requester: target, target: requester, target_qpn };
        let renewal = self.requester_qpn.and_then(|requester_qpn| near.renewal(&back(requester_qpn)));
        let is_anew = renewal.is_some_and(|renewal| renewal.is_after(self.last.came_after));
        self.far.leave_to_requester(is_anew && ctx.pairings.terms(&key).is_none());
    }

    pub(super) fn key(&self) -> FlowKey {
        FlowKey { requester: self.addressing.src, target: self.addressing.dst, target_qpn: self.target_qpn }
    }

    /// Returns whose turn it is: whether it may send to its target now what it is about to send,
    /// which nobody else could be answered.
    pub(super) fn turn(&self, ctx: &mut Context<'_>) -> Turn {
        let Some(span) = self.far.next_ask(ctx.now) else {
            ctx.pairings.pass(&self.key(), ctx.now);
            return Turn::Nothing;
        };
        if ctx.pairings.may_send(&self.key(), &span, ctx.now) { Turn::Own } else { Turn::Others }
    }

    /// Returns true if it has sent anything no longer ago than an answer may take.
    pub(super) fn has_asked(&self, patience: Duration, now: Instant) -> bool {
        self.asking.spoke.is_some_and(|at| now < at + patience)
    }

    /// The same without asking for its turn. What it asked in turn nobody else is taken to have
    /// been answered.
    pub(super) fn has_asked_freely(&self, patience: Duration, now: Instant) -> bool {
        self.asking.spoke_freely.is_some_and(|at| now < at + patience)
    }

    /// Returns true if anything it has sent may still be answered. What its target was not ready
    /// for has had its answer, and waits for the next try.
    pub(super) fn has_out(&self, patience: Duration, now: Instant) -> bool {
        self.far.has_out() || !self.far.is_put_off() && self.has_asked(patience, now)
    }

    /// Returns true if nothing it has sent may be answered so any more. Then its requester has
    /// another partner by now, or somebody sends in its target's name. But a target refuses only
    /// once, however late.
    pub(super) fn is_another_targets(
        &self,
        packet: &Packet<'_>,
        response: &Response,
        ctx: &Context<'_>,
    ) -> bool {
        if self.far.has_out() || response.word == Word::Refusal {
            return false;
        }
        let patience = ctx.pairings.patience(response.hosts, ctx.now);
        self.far.awaits(packet.bth.psn, response.word) && !self.has_out(patience, ctx.now)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.far.is_idle() && self.waiting == 0
    }

    /// The class of a message of so many bytes. What is told about the flow is a message of none.
    pub(super) fn class_of(&mut self, size: u64, classes: &Classes) -> usize {
        let (addressing, target_qpn) = (self.addressing, self.target_qpn);
        classes.choose(&mut self.choice, || traffic(&addressing, target_qpn.get()), size)
    }

    /// The class of a response. One to a READ is part of what the READ asked for; any other has no
    /// length.
    pub(super) fn class_of_response(&mut self, packet: &Packet<'_>, classes: &Classes) -> usize {
        let size = match packet.payload {
            [] => 0,
            _ if classes.are_by_size() => self.far.read_length(packet.bth.psn).map_or(self.asked, u64::from),
            _ => self.asked,
        };
        self.class_of(size, classes)
    }

    /// The flow as it stands, with a session or while it waits for the next one.
    pub(super) fn report(&self, classes: &Classes, is_parked: bool) -> FlowReport {
        let FlowKey { requester, target, target_qpn } = self.key();
        let state = match () {
            () if self.far.is_ending() => FlowState::Failed,
            () if is_parked || self.orphaned => FlowState::Waiting,
            () if self.withheld.is_any() => FlowState::HeldBack,
            () if self.is_idle() => FlowState::Idle,
            () => FlowState::Active,
        };
        FlowReport {
            side: FlowSide::Far,
            requester,
            requester_qpn: self.requester_qpn,
            target,
            target_qpn,
            class: self.last_class(classes),
            state,
        }
    }

    pub(super) fn remembered(&self) -> Option<StaleFlow> {
        Some(StaleFlow {
            requester: self.addressing.src,
            target: self.addressing.dst,
            target_qpn: self.target_qpn,
            requester_qpn: self.requester_qpn?,
            psn: self.last.psn,
            src_port: self.addressing.src_port,
            side: FlowSide::Far,
            lives: !self.far.is_ending(),
        })
    }

    /// Tells the class's stream what the target is still to bring.
    pub(super) fn keep_room(&mut self, ctx: &mut Context<'_>) {
        let class = self.class_of(self.asked, ctx.classes);
        ctx.senders.await_responses(class, &mut self.kept, self.far.awaited());
    }

    /// Tells the far half for how much READ data there is room; `false` if that depends on what it
    /// has been asked for already, in another class.
    pub(super) fn give_room(&mut self, ctx: &mut Context<'_>) -> bool {
        // The class of what was asked for may have got other streams since.
        self.keep_room(ctx);
        let next = self.far.next_read_length().map_or(self.asked, u64::from);
        let class = self.class_of(next, ctx.classes);
        let may_join = ctx.senders.may_join(class, &self.kept);
        if may_join {
            self.asked = next;
        }
        self.far.set_room(if may_join { ctx.senders.read_room(class) } else { 0 });
        may_join
    }

    pub(super) fn next_timeout(&self, settings: &Settings) -> Option<Instant> {
        if self.far.is_dead() {
            return Some(self.last_activity);
        }
        let idle = self.last_activity + settings.idle_flow * 2;
        Some(self.far.next_timeout().map_or(idle, |at| at.min(idle)))
    }
}
