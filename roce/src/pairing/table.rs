//! The tables of [`super::Pairings`]: flows that wait, and ends that are tied together.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::time::{Duration, Instant};

use super::{FlowKey, Hosts, Response, reverse, source_port};
use crate::cm::Terms;
use crate::wire::{PathMtu, Psn, Qpn};

/// How far beyond what was sent here a response's PSN may lie and still be taken for an answer, when
/// nothing but the port speaks for it: after a restart of the gateway the target may be ahead.
const SLACK: i32 = 1 << 16;

/// Flows without a partner.
#[derive(Debug, Default)]
pub(super) struct Waiting(BTreeMap<FlowKey, Wait>);

#[derive(Debug)]
pub(super) struct Wait {
    pub(super) src_port: u16,
    /// PSNs sent to the target: the first and how many.
    sent: Option<(Psn, u32)>,
}

impl Wait {
    pub(super) fn has_sent(&self, psn: Psn) -> bool {
        self.sent.is_some_and(|(first, count)| psn.is_within(first, count))
    }

    /// From one PSN before what was sent, with which a repeated request is answered, to a good way beyond it.
    pub(super) fn is_near(&self, psn: Psn) -> bool {
        self.sent
            .is_some_and(|(first, count)| (-1..count.cast_signed() + SLACK).contains(&psn.distance(first)))
    }

    fn extend(&mut self, psn: Psn, span: u32) {
        let (mut first, mut count) = self.sent.unwrap_or((psn, 0));
        let ahead = first.distance(psn);
        if ahead > 0 {
            first = psn;
            count += ahead.unsigned_abs();
        }
        let reach = psn.distance(first).unsigned_abs() + span;
        self.sent = Some((first, count.max(reach).min(1 << 23)));
    }
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn contains(&self, flow: &FlowKey) -> bool {
        self.0.contains_key(flow)
    }

    pub(super) fn insert(&mut self, flow: FlowKey, src_port: u16) {
        self.0.entry(flow).or_insert(Wait { src_port, sent: None }).src_port = src_port;
    }

    /// The flow's port, if it waits.
    pub(super) fn port(&self, flow: &FlowKey) -> Option<u16> {
        self.0.get(flow).map(|wait| wait.src_port)
    }

    /// The flow's port, if it waited.
    pub(super) fn remove(&mut self, flow: &FlowKey) -> Option<u16> {
        self.0.remove(flow).map(|wait| wait.src_port)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the port or the PSN speaks for it that this response answers the flow.
    pub(super) fn is_claimed(&self, flow: &FlowKey, response: &Response) -> bool {
        let by_product = source_port(flow.target_qpn, response.requester_qpn) == response.src_port;
        self.0.get(flow).is_some_and(|wait| {
            wait.src_port == response.src_port && (by_product || wait.has_sent(response.psn))
        })
    }

    pub(super) fn sent(&mut self, flow: &FlowKey, psn: Psn, span: u32) {
        if let Some(wait) = self.0.get_mut(flow) {
            wait.extend(psn, span);
        }
    }

    pub(super) fn has_sent(&self, flow: &FlowKey, psn: Psn) -> bool {
        self.0.get(flow).is_some_and(|wait| wait.has_sent(psn))
    }

    /// The flows between two hosts, in order of the target's queue pair.
    pub(super) fn between(&self, hosts: Hosts) -> impl Iterator<Item = (&FlowKey, &Wait)> {
        self.0.range((Included(lowest(hosts)), Included(highest(hosts))))
    }

    /// The flow between these hosts that follows `last` in turn.
    pub(super) fn after(&self, hosts: Hosts, last: Option<FlowKey>) -> Option<FlowKey> {
        let first = || self.between(hosts).next();
        let next = match last {
            Some(last) if last < highest(hosts) => {
                self.0.range((Excluded(last), Included(highest(hosts)))).next().or_else(first)
            }
            _ => first(),
        };
        next.map(|(flow, _)| *flow)
    }

    /// The requester's queue pair, if exactly one flow the other way has the same port and a queue pair
    /// number whose product with this flow's yields it, and that holds from the other flow's view as
    /// well.
    pub(super) fn only_counterpart(&self, flow: &FlowKey, src_port: u16) -> Option<Qpn> {
        let qpn = self.only_by_product(flow, src_port)?;
        let back = self.only_by_product(&reverse(flow, qpn), src_port)?;
        (back == flow.target_qpn).then_some(qpn)
    }

    fn only_by_product(&self, flow: &FlowKey, src_port: u16) -> Option<Qpn> {
        let opposite = Hosts { requester: flow.target, target: flow.requester };
        let mut matching = self.between(opposite).filter(|(back, wait)| {
            wait.src_port == src_port && source_port(back.target_qpn, flow.target_qpn) == src_port
        });
        let (only, _) = matching.next()?;
        matching.next().is_none().then_some(only.target_qpn)
    }
}

const fn lowest(hosts: Hosts) -> FlowKey {
    FlowKey { requester: hosts.requester, target: hosts.target, target_qpn: Qpn::new(0) }
}

const fn highest(hosts: Hosts) -> FlowKey {
    FlowKey { requester: hosts.requester, target: hosts.target, target_qpn: Qpn::new(u32::MAX) }
}

/// Connections: each stands twice, once per direction, under the flow of that direction.
#[derive(Debug)]
pub(super) struct Links {
    links: BTreeMap<FlowKey, Link>,
    /// What is needed once, when a flow begins, is kept apart: links are many.
    first_psns: BTreeMap<FlowKey, Psn>,
    epoch: Instant,
    /// Directions held.
    held: usize,
    /// Connections of which a direction is held.
    used: usize,
    cursor: Option<FlowKey>,
}

#[derive(Debug)]
struct Link {
    requester_qpn: Qpn,
    /// The UDP source port of this direction's requests, once there was one.
    src_port: Option<NonZeroU16>,
    /// What CM told of this direction, if it told of the connection.
    terms: Option<Packed>,
    /// The communication IDs of the connection, replier's and caller's, if CM told it.
    ids: (u32, u32),
    /// The owner has taken on this direction.
    held: bool,
    state: State,
    /// When it was learned, released or buried: milliseconds since the table began, which come round after 49 days, when an entry that
    /// nobody holds is long gone.
    since: u32,
}

impl Link {
    /// Whether a connection that CM establishes now is another one. A reply sent again is not: it has the same IDs.
    fn is_renewed(&self, by_cm: Option<&ByCm>) -> bool {
        by_cm.is_some_and(|by_cm| {
            let other = self.terms.is_some() && self.ids != by_cm.ids;
            other || self.state != State::Live
        })
    }
}

/// A connection as CM told it: of two directions the caller's requests first.
#[derive(Debug)]
pub(super) struct ByCm {
    /// The communication IDs, replier's and caller's.
    pub(super) ids: (u32, u32),
    pub(super) terms: [Terms; 2],
    pub(super) first_psns: [Psn; 2],
}

/// [`Terms`] in two bytes, from the top: a 1, an unused bit, which of [`MTUS`] or none (3 bits), RNR retries (3), READs (8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed(NonZeroU16);

impl Packed {
    fn new(terms: &Terms) -> Packed {
        let mtu =
            terms.path_mtu.and_then(|mtu| MTUS.iter().position(|other| *other == mtu)).unwrap_or(MTUS.len());
        let bits =
            1 << 15 | (mtu as u16) << 11 | u16::from(terms.rnr_retry & 7) << 8 | u16::from(terms.max_reads);
        Packed(NonZeroU16::new(bits).unwrap_or(NonZeroU16::MIN))
    }

    fn terms(self) -> Terms {
        let [high, max_reads] = self.0.get().to_be_bytes();
        Terms { path_mtu: MTUS.get(usize::from(high >> 3 & 7)).copied(), max_reads, rnr_retry: high & 7 }
    }
}

const MTUS: [PathMtu; 5] = [PathMtu::B256, PathMtu::B512, PathMtu::B1024, PathMtu::B2048, PathMtu::B4096];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Live,
    /// A DREQ passed.
    Closing,
    /// Forgotten, and kept only so that a late response is not taken for another flow's.
    Dead,
}

impl Links {
    pub(super) fn new(now: Instant) -> Links {
        Links {
            links: BTreeMap::new(),
            first_psns: BTreeMap::new(),
            epoch: now,
            held: 0,
            used: 0,
            cursor: None,
        }
    }

    fn millis(&self, now: Instant) -> u32 {
        now.saturating_duration_since(self.epoch).as_millis() as u32
    }

    fn age(&self, link: &Link, now: Instant) -> Duration {
        Duration::from_millis(self.millis(now).wrapping_sub(link.since).into())
    }

    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Connections of which no direction is held.
    pub(super) fn unused(&self) -> usize {
        self.links.len() / 2 - self.used
    }

    pub(super) fn partner(&self, flow: &FlowKey) -> Option<Qpn> {
        let link = self.links.get(flow)?;
        (link.state != State::Dead).then_some(link.requester_qpn)
    }

    pub(super) fn terms(&self, flow: &FlowKey) -> Option<Terms> {
        self.links.get(flow)?.terms.map(Packed::terms)
    }

    pub(super) fn take_first_psn(&mut self, flow: &FlowKey) -> Option<Psn> {
        self.first_psns.remove(flow)
    }

    pub(super) fn is_held(&self, flow: &FlowKey) -> bool {
        self.links.get(flow).is_some_and(|link| link.held)
    }

    pub(super) fn is_over(&self, flow: &FlowKey) -> bool {
        self.links.get(flow).is_some_and(|link| link.state != State::Live)
    }

    /// The flow a response answers, by the direction opposite to it.
    pub(super) fn answered(&self, response: &Response) -> Option<FlowKey> {
        let Hosts { requester, target } = response.hosts;
        let target_qpn = self.partner(&opposite(response))?;
        Some(FlowKey { requester, target, target_qpn })
    }

    /// Whether the port speaks against this flow's being what it was: the connection is known by its packets only, and they came from another port.
    pub(super) fn is_contradicted(&self, flow: &FlowKey, src_port: u16) -> bool {
        self.links
            .get(flow)
            .filter(|link| link.terms.is_none())
            .and_then(|link| self.port(flow, link))
            .is_some_and(|known| known != src_port)
    }

    /// The port of a connection's requests: of this direction, or else of the other.
    fn port(&self, flow: &FlowKey, link: &Link) -> Option<u16> {
        let other = || self.links.get(&reverse(flow, link.requester_qpn))?.src_port;
        link.src_port.or_else(other).map(NonZeroU16::get)
    }

    /// The same, where ports follow from the queue pairs, so that another one means another connection.
    pub(super) fn is_refuted(&self, flow: &FlowKey, src_port: u16) -> bool {
        let by_product =
            |link: &Link| self.port(flow, link) == Some(source_port(flow.target_qpn, link.requester_qpn));
        self.is_contradicted(flow, src_port) && self.links.get(flow).is_some_and(by_product)
    }

    /// Whether a response is for a queue pair whose connection was forgotten less than `quiet` ago.
    pub(super) fn is_late(&self, response: &Response, quiet: Duration, now: Instant) -> bool {
        self.links
            .get(&opposite(response))
            .is_some_and(|link| link.state == State::Dead && self.age(link, now) < quiet)
    }

    /// The owner takes on this direction, if it is known. Its requests come from this port.
    pub(super) fn hold(&mut self, flow: &FlowKey, src_port: u16) -> Option<Qpn> {
        let was_used = self.is_used(flow);
        let link = self.links.get_mut(flow)?;
        self.held += usize::from(!link.held);
        self.used += usize::from(!was_used);
        (link.held, link.src_port) = (true, NonZeroU16::new(src_port));
        Some(link.requester_qpn)
    }

    /// The port of a direction that the owner has taken on.
    pub(super) fn held_port(&self, flow: &FlowKey) -> Option<u16> {
        self.links.get(flow).filter(|link| link.held)?.src_port.map(NonZeroU16::get)
    }

    /// A flow's requests came from this port, as is known from elsewhere.
    pub(super) fn note_port(&mut self, flow: &FlowKey, requester_qpn: Qpn, src_port: u16) {
        if let Some(link) = self.links.get_mut(flow).filter(|link| link.requester_qpn == requester_qpn) {
            link.src_port = link.src_port.or(NonZeroU16::new(src_port));
        }
    }

    /// The owner gives this direction up.
    pub(super) fn release(&mut self, flow: &FlowKey, now: Instant) {
        let was_used = self.is_used(flow);
        let since = self.millis(now);
        let Some(link) = self.links.get_mut(flow) else {
            return;
        };
        self.held -= usize::from(link.held);
        (link.held, link.since) = (false, since);
        self.used -= usize::from(was_used && !self.is_used(flow));
    }

    fn is_used(&self, flow: &FlowKey) -> bool {
        is_used(&self.links, flow)
    }

    /// Ties two ends together, by a CM reply with these communication IDs or without one, and returns the held flows of the connections
    /// that either was part of before.
    pub(super) fn tie(
        &mut self,
        flow: FlowKey,
        requester_qpn: Qpn,
        by_cm: Option<&ByCm>,
        now: Instant,
    ) -> [Option<FlowKey>; 4] {
        let back = reverse(&flow, requester_qpn);
        let since = self.millis(now);
        let known = self.links.get(&flow).filter(|_| self.partner(&flow) == Some(requester_qpn));
        let ids = by_cm.map_or((0, 0), |by_cm| by_cm.ids);
        let terms = by_cm.map_or([None; 2], |by_cm| by_cm.terms.map(|terms| Some(Packed::new(&terms))));
        if known.is_some_and(|link| !link.is_renewed(by_cm)) {
            for (end, terms) in [flow, back].into_iter().zip(terms) {
                if let Some(link) = self.links.get_mut(&end) {
                    (link.state, link.since) = (State::Live, since);
                    if terms.is_some() {
                        (link.terms, link.ids) = (terms, ids);
                    }
                }
            }
            return [None; 4];
        }
        let [one, two] = self.untie(&flow);
        let [three, four] = self.untie(&back);
        for ((end, requester_qpn), terms) in
            [(flow, requester_qpn), (back, flow.target_qpn)].into_iter().zip(terms)
        {
            let state = State::Live;
            let link = Link { requester_qpn, src_port: None, terms, ids, held: false, state, since };
            self.links.insert(end, link);
        }
        for (end, psn) in [flow, back].into_iter().zip(by_cm.into_iter().flat_map(|by_cm| by_cm.first_psns)) {
            self.first_psns.insert(end, psn);
        }
        [one, two, three, four]
    }

    /// Forgets a connection and returns which of its directions were held.
    pub(super) fn untie(&mut self, flow: &FlowKey) -> [Option<FlowKey>; 2] {
        let Some(requester_qpn) = self.links.get(flow).map(|link| link.requester_qpn) else {
            return [None; 2];
        };
        self.used -= usize::from(self.is_used(flow));
        [*flow, reverse(flow, requester_qpn)].map(|end| {
            self.first_psns.remove(&end);
            let was_held = self.links.remove(&end).is_some_and(|link| link.held);
            self.held -= usize::from(was_held);
            was_held.then_some(end)
        })
    }

    /// Whether these communication IDs are a connection's, as far as is known; in a request to take down an earlier one of the same queue pairs, which was late
    /// or is repeated, they are not: the queue pair answers it without effect (Linux, `cm_dreq_handler`).
    pub(super) fn is_of(&self, flow: &FlowKey, ids: [u32; 2]) -> bool {
        let told = self.links.get(flow).filter(|link| link.terms.is_some());
        told.is_none_or(|link| {
            let (replier, caller) = link.ids;
            ids == [caller, replier] || ids == [replier, caller]
        })
    }

    /// Marks a connection as being taken down and returns which of its directions are held.
    pub(super) fn close(&mut self, flow: &FlowKey) -> [Option<FlowKey>; 2] {
        let Some(requester_qpn) = self.partner(flow) else {
            return [None; 2];
        };
        [*flow, reverse(flow, requester_qpn)].map(|end| {
            let link = self.links.get_mut(&end)?;
            link.state = State::Closing;
            link.held.then_some(end)
        })
    }

    /// Marks a connection as forgotten.
    pub(super) fn bury(&mut self, flow: &FlowKey, now: Instant) {
        let Some(requester_qpn) = self.partner(flow) else {
            return;
        };
        for end in [*flow, reverse(flow, requester_qpn)] {
            self.release(&end, now);
            if let Some(link) = self.links.get_mut(&end) {
                link.state = State::Dead;
            }
        }
    }

    /// Looks at up to `budget` entries and drops the connections of which no direction is held, once
    /// older than `lifetime`. True when the end of the table was reached.
    pub(super) fn sweep(&mut self, budget: usize, lifetime: Duration, quiet: Duration, now: Instant) -> bool {
        let mut expired = Vec::new();
        let links = &self.links;
        let mut cursor = self.cursor;
        let end = step(links, &mut cursor, budget, |flow, link| {
            let age = self.age(link, now);
            let expires = age >= lifetime && !is_used(links, flow);
            if expires || link.state == State::Dead && age >= quiet {
                expired.push(*flow);
            }
        });
        self.cursor = cursor;
        for flow in expired {
            self.untie(&flow);
        }
        end
    }
}

/// The direction of a connection that is opposite to the requests a response answers.
const fn opposite(response: &Response) -> FlowKey {
    let Hosts { requester, target } = response.hosts;
    FlowKey { requester: target, target: requester, target_qpn: response.requester_qpn }
}

/// Whether a direction of this connection is held.
fn is_used(links: &BTreeMap<FlowKey, Link>, flow: &FlowKey) -> bool {
    links.get(flow).is_some_and(|link| {
        link.held || links.get(&reverse(flow, link.requester_qpn)).is_some_and(|back| back.held)
    })
}

/// Visits up to `budget` entries after the cursor and moves it on. True when the end was reached; the
/// next step starts over.
pub(super) fn step<K: Ord + Copy, V>(
    map: &BTreeMap<K, V>,
    cursor: &mut Option<K>,
    budget: usize,
    mut visit: impl FnMut(&K, &V),
) -> bool {
    let start = cursor.map_or(Unbounded, Excluded);
    let mut visited = 0;
    let mut last = None;
    for (key, value) in map.range((start, Unbounded)).take(budget) {
        visit(key, value);
        last = Some(*key);
        visited += 1;
    }
    let end = visited < budget;
    *cursor = if end { None } else { last };
    end
}
