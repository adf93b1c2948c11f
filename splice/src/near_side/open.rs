//! Requester side: flows that begin: with a first request, with one that may be of another life of
//! the queue pair, or with one that is to be refused.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use roce::flow::near::{Near, NearConfig};
use roce::ip::Addressing;
use roce::pairing::FlowKey;
use roce::wire::{Packet, Psn};

use super::debts::Account;
use super::{Demand, Early, Heard, Marks, NearFlow, NearKey, NearSide, Places};
use crate::Settings;
use crate::classes::traffic;
use crate::congestion::Notified;
use crate::context::Context;
use crate::openings::FlowOpening;
use crate::record::FlowId;
use crate::renewals::Renewal;
use crate::retention::{Revival, Run};
use crate::session_end::SILENCE;
use crate::short::Headers;
use crate::stale_flows::{Came, FlowSide};
use crate::stats::LanDrop;

/// A flow that begins, and what it has of the one whose place it takes.
struct Beginning {
    near: Near,
    revival: Option<Revival>,
    run: Run,
    account: Account,
    is_anew: bool,
    /// The target of the one before has spoken.
    was_heard: bool,
}

impl Beginning {
    /// In nobody's place. `is_back`: a process that has ended knew it.
    fn new(near: Near, is_back: bool, account: Account) -> Self {
        let revival = is_back.then(Revival::default);
        Self { near, revival, run: Run::default(), account, is_anew: false, was_heard: false }
    }
}

impl NearSide {
    /// Finds the flow of `key`, or opens it, and renews the bounds of flows.
    pub(super) fn find_or_open(
        &mut self,
        key: FlowKey,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Option<NearKey> {
        self.renew_config(ctx.settings);
        let found = match self.replace(&key, packet, ctx) {
            Ok(Some(anew)) => Ok(anew),
            Ok(None) => self.begin(key, addressing, packet, ctx),
            Err(known) => Err(known),
        };
        match found {
            Ok(beginning) => Some(self.open_with(beginning, key, addressing, packet, ctx)),
            Err(known) => known,
        }
    }

    /// Ends the flow of `key` if a new one is to have its place, and returns that. `Err`: it goes
    /// on, or the packet is dropped.
    fn replace(
        &mut self,
        key: &FlowKey,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Result<Option<Beginning>, Option<NearKey>> {
        let Some(slot) = self.by_key.get(key) else { return Ok(None) };
        let is_stranded = self.is_stranded(slot);
        let Some(flow) = self.flows.get_mut(slot) else { return Ok(None) };
        // A new flow would get nowhere without a session, and this one has failed.
        if !(is_stranded || flow.near.doubts(packet, ctx.now)) || !ctx.senders.has_streams() {
            flow.go_back_to_run(packet, ctx);
            return Err(Some(slot));
        }
        let was_heard = flow.places.unheard.is_none();
        let account = match was_heard {
            true => Account::Nobody,
            false => Self::charge(&mut self.heard, key.requester, ctx).ok_or(None)?,
        };
        let near = flow.near.anew(Arc::clone(self.config.newest()), packet, ctx.now);
        let revival = flow.take_revival(ctx);
        ctx.stats.replaced += 1;
        let run = self.take_run(slot);
        self.close(slot, ctx);
        Ok(Some(Beginning { near, revival, run, account, is_anew: true, was_heard }))
    }

    fn open_with(
        &mut self,
        beginning: Beginning,
        key: FlowKey,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> NearKey {
        let Beginning { mut near, revival, run, account, is_anew, was_heard } = beginning;
        let requester_qpn = ctx.pairings.open_near(key, ctx.now);
        let first_psn = ctx.pairings.take_first_psn(&key);
        if let Some(terms) = ctx.pairings.terms(&key) {
            near.set_terms(&terms, first_psn);
        }
        let slot = self.open(key, addressing, packet.bth.psn, near, ctx);
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.marks.account = account;
        }
        self.note_renewal(slot, is_anew, ctx);
        self.adopt_run(slot, (run, revival), first_psn.is_some(), ctx);
        self.begin_with_run(slot, packet, ctx);
        if let Some(requester_qpn) = requester_qpn {
            self.pair(&key, requester_qpn, ctx);
        }
        if !was_heard && packet.bth.opcode.starts_message() {
            self.enter_unheard(slot);
        }
        slot
    }

    /// Charges a host for a flow of which nothing is known. `None`: it is to begin none now.
    fn charge(heard: &mut Heard, host: IpAddr, ctx: &mut Context<'_>) -> Option<Account> {
        let account = heard.begin(host, ctx.settings.grouping, ctx.now);
        if account.is_none() {
            ctx.stats.drop_lan(LanDrop::TooManyFlows);
        }
        account
    }

    /// A flow begins that takes no other's place. `Err`: it does not begin, or it does to be
    /// refused.
    fn begin(
        &mut self,
        key: FlowKey,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Result<Beginning, Option<NearKey>> {
        if !ctx.senders.has_streams() || self.closed {
            ctx.stats.drop_lan(LanDrop::NoSession);
            return Err(None);
        }
        let came = Came::of(addressing, packet);
        let goes_on = !came.starts && Self::may_go_on(&key, &came, ctx);
        let is_known = goes_on
            || !came.starts
            || ctx.stale_flows.may_go_on(&key, &came)
            || ctx.pairings.terms(&key).is_some();
        let account = if is_known {
            Account::Nobody
        } else {
            Self::charge(&mut self.heard, key.requester, ctx).ok_or(None)?
        };
        let has_room = if came.starts || goes_on {
            self.make_room(key.requester, ctx)
        } else {
            self.has_room(key.requester, ctx.settings.flows)
        };
        if !has_room {
            ctx.stats.drop_lan(LanDrop::TooManyFlows);
            return Err(None);
        }
        if came.starts {
            let is_back = ctx.stale_flows.comes_back(&key, &came);
            return Ok(Beginning::new(self.fresh(ctx), is_back, account));
        }
        if goes_on {
            return Ok(Beginning::new(self.begin_amid(&key, &came, packet, ctx), true, account));
        }
        let doomed = self.open_doomed(key, addressing, packet, ctx);
        if doomed.is_none() {
            ctx.stats.drop_lan(LanDrop::Orphan);
        }
        Err(doomed)
    }

    /// The first packet that comes of a flow begins no message, and the gateway before this one
    /// knew the flow. Returns the one to ask its target.
    ///
    /// Rule: `docs/protocol.md#rule-reborn`.
    fn begin_amid(&mut self, key: &FlowKey, came: &Came, packet: &Packet<'_>, ctx: &mut Context<'_>) -> Near {
        ctx.stale_flows.goes_on(key, came);
        let config = self.config(ctx.settings);
        Near::amid(config, Arc::clone(&self.counters), packet, ctx.now)
    }

    /// The gateway before this one knew a flow that a request may go on with, which begins no
    /// message.
    fn may_go_on(key: &FlowKey, came: &Came, ctx: &mut Context<'_>) -> bool {
        ctx.stale_flows.may_go_on(key, came) || Self::continues_retained(key, came, ctx)
    }

    /// The flow is over. If its target is in the midst of its next incarnation's message, another
    /// takes its place, for the rest of that.
    pub(super) fn succeed(&mut self, slot: NearKey, ctx: &mut Context<'_>) {
        let config = self.config(ctx.settings);
        let Some(flow) = self.flows.get(slot) else { return };
        let (key, addressing) = (flow.key(), flow.addressing);
        let amid = flow.near.anew_amid(config, ctx.now);
        ctx.stats.replaced += 1;
        self.close(slot, ctx);
        let is_free = self.by_key.get(&key).is_none() && ctx.senders.has_streams();
        if let Some(near) = amid.filter(|_| is_free) {
            let psn = near.expected();
            let _ = ctx.pairings.open_near(key, ctx.now);
            let slot = self.open(key, &addressing, psn, near, ctx);
            self.note_renewal(slot, true, ctx);
            self.touch(slot);
        }
    }

    /// The flow has just begun: `is_anew`, in another one's place.
    fn note_renewal(&mut self, slot: NearKey, is_anew: bool, ctx: &mut Context<'_>) {
        if let Some(flow) = self.flows.get_mut(slot).filter(|_| is_anew) {
            flow.places.renewal = Some(ctx.renewals.count());
        }
    }

    /// Returns whether the flow of this key took another one's place, and when.
    pub(crate) fn renewal(&self, key: &FlowKey) -> Option<Renewal> {
        self.flows.get(self.by_key.get(key)?)?.places.renewal
    }

    /// The rest of a message of an earlier session that this gateway, restarted, does not know, or
    /// had forgotten without its peer: a flow is opened for it that has failed. Which PSN to refuse
    /// it finds out; a NAK for just any that comes would acknowledge what is before it.
    fn open_doomed(
        &mut self,
        key: FlowKey,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Option<NearKey> {
        let came = Came::of(addressing, packet);
        let doomed = ctx.stale_flows.doomed(&key, &came)?;
        let class = ctx.classes.classify(&traffic(addressing, key.target_qpn.get()), None);
        if doomed.meets_silence(ctx.classes, class, ctx.now) {
            return None;
        }
        let near = self.fresh(ctx);
        let slot = self.open(key, addressing, packet.bth.psn, near, ctx);
        let flow = self.flows.get_mut(slot)?;
        flow.pair(doomed.flow.requester_qpn);
        flow.near.fail_amid(ctx.now);
        ctx.stats.doomed += 1;
        Some(slot)
    }

    /// The bounds of flows, and the round trip as it is measured now.
    pub(super) fn config(&mut self, settings: &Settings) -> Arc<NearConfig> {
        self.renew_config(settings);
        Arc::clone(self.config.newest())
    }

    /// Has [`NearSide::config`] tell the round trip as it is measured now.
    fn renew_config(&mut self, settings: &Settings) {
        if self.config_rtt != Some(settings.rtt) {
            self.config_rtt = Some(settings.rtt);
            self.config.renew(near_config(settings));
        }
    }

    fn fresh(&mut self, ctx: &Context<'_>) -> Near {
        let config = self.config(ctx.settings);
        Near::new(config, Arc::clone(&self.counters), ctx.now)
    }

    fn open(
        &mut self,
        key: FlowKey,
        addressing: &Addressing,
        psn: Psn,
        near: Near,
        ctx: &mut Context<'_>,
    ) -> NearKey {
        let id = FlowId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        let choice = ctx.classes.choice(&traffic(addressing, key.target_qpn.get()));
        let slot = self.flows.insert(Box::new(NearFlow {
            near,
            id,
            addressing: *addressing,
            target_qpn: key.target_qpn,
            requester_qpn: None,
            choice,
            demand: Demand::default(),
            requests: 0,
            headers: Headers::default(),
            suspended: 0,
            last_psn: psn,
            last_activity: ctx.now,
            last_progress: ctx.now,
            early: Early::new(),
            kept: None,
            armed: None,
            places: Places::new(self.targets.join(key.target, key.requester)),
            run: Run::default(),
            marks: Marks::default(),
            notified: Notified::default(),
        }));
        self.by_key.insert(key, slot);
        self.by_id.insert(id, slot);
        self.hosts.join(key.requester);
        ctx.stats.near_opened += 1;
        let partner = ctx.pairings.partner(&key);
        ctx.openings.push(&FlowOpening::new(FlowSide::Near, &key, partner));
        slot
    }
}

fn near_config(settings: &Settings) -> NearConfig {
    NearConfig {
        mid_ack_limit: settings.flow_buffer() / 2,
        hard_limit: settings.flow_buffer(),
        linger: REFUSE_FOR,
        silence: SILENCE,
        rtt: settings.rtt,
        ..NearConfig::default()
    }
}

/// How long a failed flow goes on answering: some retries of any requester.
const REFUSE_FOR: Duration = Duration::from_secs(10);
