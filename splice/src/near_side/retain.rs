//! Requester side: requests that outlive the process of either gateway.
//!
//! A requester that was acknowledged a request inside a message does not send it again. So each of
//! these is retained before its ACK leaves, or acknowledged when the target has it. After a process
//! has ended, a new flow asks the target, by the requester's next packet. If the target names a PSN
//! before that, and all in between is retained, that is carried as if the requester had gone back.
//!
//! Rule: `docs/protocol.md#rule-retained`.

use std::ops::ControlFlow;

use config::Survive;
use roce::pairing::FlowKey;
use roce::wire::{Packet, Psn};

use super::{NearFlow, NearKey, NearSide};
use crate::context::Context;
use crate::record::{MAX_HEAD, Reason};
use crate::retention::{Retention, Revival, Run, is_part};

impl NearFlow {
    /// A request was carried. If its requester may be acknowledged it before the message ends, it
    /// is retained, as its class wants it.
    pub(super) fn retain(&mut self, class: usize, packet: &Packet<'_>, ctx: &mut Context<'_>) {
        let (psn, opcode) = (packet.bth.psn, packet.bth.opcode);
        if self.run.came.is_none_or(|(first, _)| psn.is_before(first)) {
            self.run.came = Some((psn, opcode.starts_message()));
        }
        if let Some(retention) = ctx.retention.as_mut() {
            retention.note_taken(&mut self.run, psn);
        }
        if !is_part(packet) {
            return;
        }
        let is_retained = match (ctx.classes.survival(class), ctx.retention.as_mut()) {
            (Survive::Session, _) | (Survive::Process, None) => return,
            (Survive::Process, Some(retention)) => {
                let group = ctx.settings.grouping.group(self.addressing.src);
                let is_later = self.near.has_completed();
                retention.put(&mut self.run, group, (&self.addressing, packet), is_later)
            }
            (Survive::Gateway, _) => false,
        };
        if !is_retained {
            self.near.note_unretained(psn);
        }
    }

    /// Forgets what the target has, or what nobody waits for any more.
    pub(super) fn release(&mut self, retention: &mut Option<Retention>) {
        let Some(retention) = retention.as_mut().filter(|_| !self.run.is_empty()) else { return };
        if self.near.is_failed() {
            retention.clear(&mut self.run);
        } else if let Some(done) = self.near.acknowledged() {
            retention.release(&mut self.run, done);
        }
    }

    /// The target expects a PSN before the first one that came. If what lies between is retained,
    /// it is carried. `msn`: the messages that the target has completed, as it says.
    ///
    /// The target must be the one that those requests were for. A later incarnation has got nothing
    /// yet, since whatever it gets passes here, and what is retained from there on is forgotten
    /// then: it has completed no message, and expects the beginning of one. What came must go on
    /// with the message.
    pub(super) fn supply(&mut self, msn: u32, ctx: &mut Context<'_>) -> ControlFlow<()> {
        let Some((expected, first)) = self.near.missing() else { return ControlFlow::Continue(()) };
        self.run.msn = msn;
        if self.run.came != Some((first, false)) {
            return ControlFlow::Continue(());
        }
        let between = (expected, first);
        if !self.may_carry(between, msn > 0, ctx) {
            return ControlFlow::Continue(());
        }
        self.carry_retained(between, ctx)
    }

    /// This request came, and may be the first. Some before it may be what the target lacks, and is
    /// retained. It came too late for [`NearFlow::supply`] if others came before it.
    /// A target names the PSN that it expects once.
    pub(super) fn supply_again(&mut self, psn: Psn, ctx: &mut Context<'_>) -> ControlFlow<()> {
        match self.near.missing() {
            Some((_, first)) if first == psn => self.supply(self.run.msn, ctx),
            None if self.near.begins_at(psn) && self.run.came == Some((psn, false)) => {
                self.carry_unacknowledged(psn, ctx)
            }
            _ => ControlFlow::Continue(()),
        }
    }

    /// The requester goes back before the flow's first request, in the midst of a message, and the
    /// target has not spoken. If what lies before is retained, the flow begins here instead: nobody
    /// but its requester knows where it was acknowledged to.
    pub(super) fn go_back_to_run(&mut self, packet: &Packet<'_>, ctx: &Context<'_>) {
        let psn = packet.bth.psn;
        if !self.near.begins_after(psn) || packet.bth.opcode.starts_message() {
            return;
        }
        let lacks = |retention| self.unacknowledged(psn, retention).is_some();
        if ctx.retention.as_ref().is_some_and(lacks) {
            self.near.begin_retained(psn);
        }
    }

    /// Returns where that begins which is retained up to this PSN, and which the target may lack;
    /// and whether no later incarnation of the target could take it. So it is if this process has
    /// seen all since the target spoke, or if the target had completed a message before: whoever
    /// begins anew where this connection began does not get to it. Otherwise the first of it must
    /// begin no message.
    fn unacknowledged(&self, psn: Psn, retention: &Retention) -> Option<(Psn, bool)> {
        let from = match self.run.acknowledged {
            Some(from) => (from, true),
            None => retention.first(&self.run)?,
        };
        let is_whole = |from| retention.bytes_between(&self.run, from, psn).is_some();
        Some(from).filter(|(from, _)| from.is_before(psn) && is_whole(*from))
    }

    /// Carries all up to this PSN, with which the flow begins, that the target had not acknowledged
    /// when it was last heard. Its word is not waited for: it names a gap once, and may have named
    /// this one to a process that has ended.
    fn carry_unacknowledged(&mut self, psn: Psn, ctx: &mut Context<'_>) -> ControlFlow<()> {
        let lacking = ctx.retention.as_ref().and_then(|retention| self.unacknowledged(psn, retention));
        let Some((from, is_its)) = lacking else { return ControlFlow::Continue(()) };
        if !self.may_carry((from, psn), is_its, ctx) {
            return ControlFlow::Continue(());
        }
        self.near.begin_retained(from);
        let carried = self.carry_retained((from, psn), ctx);
        if !self.near.expects(psn) {
            // Not all of it could be read: as if nothing had been known.
            self.near.begin_retained(psn);
        }
        carried
    }

    /// Tells if what lies between these PSNs is all retained, of one message, and finds room.
    /// `may_begin`: the first of it may begin the message.
    fn may_carry(&mut self, between: (Psn, Psn), may_begin: bool, ctx: &mut Context<'_>) -> bool {
        let class = self.class_of(self.demand.judged.into(), ctx.classes);
        let fits = |bytes: &usize| {
            *bytes <= ctx.settings.flow_buffer() && ctx.senders.has_room(class, bytes + MAX_HEAD)
        };
        let Some(retention) = ctx.retention.as_mut() else { return false };
        if retention.bytes_between(&self.run, between.0, between.1).filter(fits).is_none() {
            return false;
        }
        let key = self.key();
        let mut message = None;
        retention.read_between(&self.run, &key, between, |packet| {
            let opcode = packet.bth.opcode;
            let kind = *message.get_or_insert(opcode.kind());
            let is_first = packet.bth.psn == between.0;
            kind == opcode.kind() && (!opcode.starts_message() || is_first && may_begin)
        })
    }

    /// Carries what lies between these PSNs, which it [may](Self::may_carry).
    fn carry_retained(&mut self, between: (Psn, Psn), ctx: &mut Context<'_>) -> ControlFlow<()> {
        let mut carried = ControlFlow::Continue(());
        let Some(mut retention) = ctx.retention.take() else { return carried };
        let run = std::mem::take(&mut self.run);
        let key = self.key();
        let is_whole = retention.read_between(&run, &key, between, |packet| {
            carried = self.carry_one(packet, ctx);
            carried.is_continue() && self.near.expects(packet.bth.psn.next())
        });
        if is_whole {
            self.near.note_all_retained(between.1);
            retention.note_carried();
        }
        self.run = run;
        *ctx.retention = Some(retention);
        carried
    }

    fn carry_one(&mut self, packet: &Packet<'_>, ctx: &mut Context<'_>) -> ControlFlow<()> {
        let addressing = self.addressing;
        let class = self.judge(&addressing, packet, ctx);
        if !self.near.handle_retained(packet, ctx.now) {
            return ControlFlow::Continue(());
        }
        // There was room for all of them a moment ago.
        match NearSide::carry(self, class, packet, false, ctx) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }
}

impl NearSide {
    /// Takes what another flow of this key had retained, if this one takes its place; otherwise
    /// what an earlier process did; and that it is to go on after that one. `is_new`: connection
    /// management has just begun the connection, so none of that is its.
    pub(super) fn adopt_run(
        &mut self,
        slot: NearKey,
        (mut run, revival): (Run, Option<Revival>),
        is_new: bool,
        ctx: &mut Context<'_>,
    ) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if let Some(retention) = ctx.retention {
            if run.is_empty() {
                run = retention.adopt(&flow.key());
            }
            if is_new {
                retention.clear(&mut run);
                run.acknowledged = None;
            }
            flow.run = run;
        }
        if let Some(revival) = revival.filter(|_| !is_new) {
            flow.come_back(revival, ctx);
        }
    }

    /// A flow takes the place of a stranded one, whose target had acknowledged less than what
    /// comes. If the rest is retained, the flow begins with that. This process has seen all that
    /// either sent, so nobody has to be asked.
    /// What comes goes on with the message, or it is another requester's. Where others have
    /// overtaken the first, [`NearFlow::supply_again`] does the same later.
    pub(super) fn begin_with_run(&mut self, slot: NearKey, packet: &Packet<'_>, ctx: &mut Context<'_>) {
        if packet.bth.opcode.starts_message() {
            return;
        }
        self.serve(slot, ctx);
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let carried = flow.carry_unacknowledged(packet.bth.psn, ctx);
        if carried.is_break() {
            self.give_up(slot, Reason::NoRoom, ctx);
        }
    }

    /// Takes away what a flow has retained whose target has not spoken, or whose peer is another
    /// process: the next flow of its key may need it.
    pub(super) fn take_run(&mut self, slot: NearKey) -> Run {
        let is_stranded = self.is_stranded(slot);
        let Some(flow) = self.flows.get_mut(slot) else { return Run::default() };
        let is_needed = is_stranded || flow.near.acknowledged().is_none();
        let mut run = if is_needed { std::mem::take(&mut flow.run) } else { Run::default() };
        run.came = None;
        run
    }

    /// A request that begins no message came, of which no flow is known. Returns true if it goes on
    /// with what an earlier process retained, and is not to be refused.
    pub(super) fn continues_retained(
        key: &FlowKey,
        came: &crate::stale_flows::Came,
        ctx: &mut Context<'_>,
    ) -> bool {
        let Some(retention) = ctx.retention else { return false };
        retention.continues(key, came.src_port, came.psn) && ctx.stale_flows.doomed(key, came).is_none()
    }

    /// Flows as they were read from a snapshot find what they had retained. What they have not is
    /// acknowledged when the target has it.
    pub(crate) fn adopt_retained(&mut self, retention: &mut Option<Retention>) {
        let Some(retention) = retention else { return };
        for flow in self.flows.values_mut() {
            flow.run = retention.adopt(&flow.key());
            let outstanding = flow.near.outstanding();
            if retention.bytes_between(&flow.run, outstanding.start, outstanding.end).is_none() {
                flow.near.note_unretained(outstanding.start);
                flow.near.note_unretained(outstanding.end.prev());
            }
        }
    }
}
