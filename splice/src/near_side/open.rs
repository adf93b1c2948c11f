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

impl NearSide {
    /// Finds the flow of `key`, or opens it, and renews the bounds of flows.
    pub(super) fn find_or_open(
        &mut self,
        key: FlowKey,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Option<NearKey> {
        let (mut anew, mut revival, mut was_heard, mut run) = (None, None, false, Run::default());
        let mut account = Account::Nobody;
        self.renew_config(ctx.settings);
        let known = self.by_key.get(&key);
        let is_stranded = known.is_some_and(|slot| self.is_stranded(slot));
        if let Some(slot) = known
            && let Some(flow) = self.flows.get_mut(slot)
        {
            // A new flow would get nowhere without a session, and this one has failed.
            if !(is_stranded || flow.near.doubts(packet, ctx.now)) || !ctx.senders.has_streams() {
                flow.go_back_to_run(packet, ctx);
                return Some(slot);
            }
            was_heard = flow.places.unheard.is_none();
            if !was_heard {
                account = Self::charge(&mut self.heard, key.requester, ctx)?;
            }
            anew = Some(flow.near.anew(Arc::clone(self.config.newest()), packet, ctx.now));
            revival = flow.take_revival(ctx);
            ctx.stats.replaced += 1;
            run = self.take_run(slot);
            self.close(slot, ctx);
        }
        if !ctx.senders.has_streams() || (self.closed && anew.is_none()) {
            ctx.stats.drop_lan(LanDrop::NoSession);
            return None;
        }
        let is_anew = anew.is_some();
        let is_new = !was_heard && packet.bth.opcode.starts_message();
        let mut near = match anew {
            // It takes the place of the one before.
            Some(near) => near,
            None => match self.begin(key, addressing, packet, ctx) {
                Ok((near, is_back, charged)) => {
                    revival = is_back.then(Revival::default);
                    account = charged;
                    near
                }
                Err(refused) => return refused,
            },
        };
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
        if is_new {
            self.enter_unheard(slot);
        }
        Some(slot)
    }

    /// Charges a host for a flow of which nothing is known. `None`: it is to begin none now.
    fn charge(heard: &mut Heard, host: IpAddr, ctx: &mut Context<'_>) -> Option<Account> {
        let account = heard.begin(host, ctx.settings.grouping, ctx.now);
        if account.is_none() {
            ctx.stats.drop_lan(LanDrop::TooManyFlows);
        }
        account
    }

    /// A flow begins that takes no other's place. Returns it, whether a process that has ended knew
    /// it, and who is charged for it. `Err`: it does not begin, or it does to be refused.
    fn begin(
        &mut self,
        key: FlowKey,
        addressing: &Addressing,
        packet: &Packet<'_>,
        ctx: &mut Context<'_>,
    ) -> Result<(Near, bool, Account), Option<NearKey>> {
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
            return Ok((self.fresh(ctx), ctx.stale_flows.comes_back(&key, &came), account));
        }
        if goes_on {
            return Ok((self.begin_amid(&key, &came, packet, ctx), true, account));
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
