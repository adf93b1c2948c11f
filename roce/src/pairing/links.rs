//! Ends that belong together.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, Instant};

use super::idle::Idle;
use super::{FlowKey, Hosts, Response, Span, reverse, windows};
use crate::cm::{Terms, Timeout};
use crate::unheard::Room;
use crate::wire::{PathMtu, Psn, Qpn};

/// The PSNs that a flow which is gone has asked for, and until when it may be answered.
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Late {
    pub(super) flow: FlowKey,
    pub(super) asked: Span,
    #[serde_as(as = "snapshot::At")]
    pub(super) until: Instant,
}

/// Connections: each stands twice, once per direction, under the flow of that direction. The other
/// direction's entry is how a response finds its flow.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Links {
    links: BTreeMap<ByQpn, Link>,
    /// The first PSNs, needed once, when a flow begins. They are kept apart, since links are many.
    first_psns: BTreeMap<FlowKey, Psn>,
    /// Directions opposite to flows that are gone and may still be answered, until then.
    late: BTreeMap<FlowKey, Late>,
    /// Under which of these a flow that is gone stands.
    late_of: BTreeMap<FlowKey, FlowKey>,
    #[serde_as(as = "BTreeSet<(snapshot::At, _)>")]
    ends: BTreeSet<(Instant, FlowKey)>,
    #[serde_as(as = "snapshot::At")]
    epoch: Instant,
    /// Connections of which a direction is held.
    used: usize,
    cursor: Option<ByQpn>,
    /// Connections of which none is, in the order in which they give way.
    #[serde(skip)]
    idle: Idle,
}

/// A direction, in the order of its queue pairs' numbers and then of its hosts. Each response is
/// looked up, most of few hosts with thousands of queue pairs: one word mostly tells two apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct ByQpn(FlowKey);

impl Ord for ByQpn {
    fn cmp(&self, other: &Self) -> Ordering {
        let (own, other) = (&self.0, &other.0);
        own.target_qpn.cmp(&other.target_qpn).then_with(|| own.cmp(other))
    }
}

impl PartialOrd for ByQpn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Link {
    requester_qpn: Qpn,
    /// The terms of this direction, if CM told of the connection.
    terms: Option<Packed>,
    /// The communication IDs of the connection, replier's and caller's, if CM told it.
    ids: (u32, u32),
    hold: Hold,
    /// CM made it, and no flow of this direction has been opened since.
    fresh: bool,
    /// A DREQ passed.
    closing: bool,
    /// When it was learned or released: milliseconds since the table began, which come round after
    /// 49 days, when an entry that nobody holds is long gone.
    since: u32,
}

/// Who has taken on a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum Hold {
    Nobody,
    /// The half at its target.
    Target,
    /// The half at its requester.
    Requester,
}

impl Link {
    /// Returns true if a connection that CM establishes now is another one. A reply sent again is
    /// not: it has the same IDs.
    fn is_renewed(&self, by_cm: Option<&ByCm>) -> bool {
        by_cm.is_some_and(|by_cm| {
            let other = self.terms.is_some() && self.ids != by_cm.ids;
            other || self.closing
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

/// [`Terms`] in four bytes, from the top: eight unused bits, ACK timeout (5), retries (3), a 1, an
/// unused bit, which of [`MTUS`] or none (3), RNR retries (3), READs (8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Packed(NonZeroU32);

impl Packed {
    fn new(terms: &Terms) -> Packed {
        let mtu =
            terms.path_mtu.and_then(|mtu| MTUS.iter().position(|other| *other == mtu)).unwrap_or(MTUS.len());
        let patience = terms.ack_timeout.code() << 3 | terms.retries & 7;
        let habits = 1 << 7 | (mtu as u8) << 3 | terms.rnr_retry & 7;
        let bits = u32::from_be_bytes([0, patience, habits, terms.max_reads]);
        Packed(NonZeroU32::new(bits).unwrap_or(NonZeroU32::MIN))
    }

    fn terms(self) -> Terms {
        let [_, patience, habits, max_reads] = self.0.get().to_be_bytes();
        Terms {
            path_mtu: MTUS.get(usize::from(habits >> 3 & 7)).copied(),
            max_reads,
            rnr_retry: habits & 7,
            ack_timeout: Timeout::new(patience >> 3),
            retries: patience & 7,
        }
    }
}

const MTUS: [PathMtu; 5] = [PathMtu::B256, PathMtu::B512, PathMtu::B1024, PathMtu::B2048, PathMtu::B4096];

impl Links {
    pub(super) fn new(now: Instant) -> Links {
        Links {
            links: BTreeMap::new(),
            first_psns: BTreeMap::new(),
            late: BTreeMap::new(),
            late_of: BTreeMap::new(),
            ends: BTreeSet::new(),
            epoch: now,
            used: 0,
            cursor: None,
            idle: Idle::default(),
        }
    }

    fn millis(&self, now: Instant) -> u32 {
        now.saturating_duration_since(self.epoch).as_millis() as u32
    }

    fn age(&self, link: &Link, now: Instant) -> Duration {
        Duration::from_millis(self.millis(now).wrapping_sub(link.since).into())
    }

    /// Connections of which no direction is held.
    pub(super) fn unused(&self) -> usize {
        self.links.len() / 2 - self.used
    }

    /// Puts those of a snapshot in the order in which they may give way.
    pub(super) fn order(&mut self) {
        let is_idle = |flow: &FlowKey| !is_used(&self.links, flow);
        let mut idle: Vec<_> = self
            .links
            .iter()
            .filter(|(ByQpn(flow), _)| is_idle(flow))
            .map(|(flow, link)| (link.since, flow.0))
            .collect();
        idle.sort();
        idle.into_iter().for_each(|(_, flow)| self.rest(&flow));
    }

    /// Makes room for one more connection of this host's, where there may be `most` of which no
    /// direction is held.
    pub(super) fn make_room(&mut self, host: IpAddr, most: usize) -> bool {
        match self.idle.room_for(host, self.unused(), most) {
            Room::Free => true,
            Room::InPlaceOf(flow) => {
                self.untie(&flow);
                true
            }
            Room::None => false,
        }
    }

    /// No direction of this connection is held, so that it gives way from now on.
    fn rest(&mut self, flow: &FlowKey) {
        if let Some(requester_qpn) = self.partner(flow) {
            self.idle.enter(flow.requester, flow.min(&reverse(flow, requester_qpn)));
        }
    }

    /// A direction of this connection is held, or it is forgotten.
    fn wake(&mut self, flow: &FlowKey) {
        if let Some(requester_qpn) = self.partner(flow) {
            self.idle.leave(flow.min(&reverse(flow, requester_qpn)));
        }
    }

    /// Flows that are gone and may still be answered.
    pub(super) fn late(&self) -> usize {
        self.late.len()
    }

    pub(super) fn partner(&self, flow: &FlowKey) -> Option<Qpn> {
        self.links.get(&ByQpn(*flow)).map(|link| link.requester_qpn)
    }

    pub(super) fn terms(&self, flow: &FlowKey) -> Option<Terms> {
        self.links.get(&ByQpn(*flow))?.terms.map(Packed::terms)
    }

    pub(super) fn take_first_psn(&mut self, flow: &FlowKey) -> Option<Psn> {
        self.first_psns.remove(flow)
    }

    /// Returns true if the half at its target has taken on this direction.
    pub(super) fn is_held(&self, flow: &FlowKey) -> bool {
        self.links.get(&ByQpn(*flow)).is_some_and(|link| link.hold == Hold::Target)
    }

    pub(super) fn is_closing(&self, flow: &FlowKey) -> bool {
        self.links.get(&ByQpn(*flow)).is_some_and(|link| link.closing)
    }

    /// The flow that has this queue pair of the requester's host for its partner, and is held.
    pub(super) fn held_flow(&self, hosts: Hosts, requester_qpn: Qpn) -> Option<FlowKey> {
        self.flow_of(hosts, requester_qpn).filter(|flow| self.is_held(flow))
    }

    /// The same, whether or not it is held.
    pub(super) fn flow_of(&self, hosts: Hosts, requester_qpn: Qpn) -> Option<FlowKey> {
        let target_qpn = self.partner(&opposite(hosts, requester_qpn))?;
        Some(FlowKey { requester: hosts.requester, target: hosts.target, target_qpn })
    }

    /// Returns until when a response to this queue pair may be the answer to a flow of it that is
    /// gone.
    pub(super) fn is_late_until(&self, response: &Response, now: Instant) -> Option<Instant> {
        let late = self.late.get(&opposite(response.hosts, response.requester_qpn))?;
        let is_late = now < late.until && windows::may_answer(&late.asked, response.psn);
        is_late.then_some(late.until)
    }

    /// A flow is gone whose partner may be answered about these PSNs until then.
    pub(super) fn expect_late(&mut self, requester_qpn: Qpn, late: Late) {
        let end = reverse(&late.flow, requester_qpn);
        let before = self.forget_late(&end);
        let late = before.map_or(late, |before| Late {
            asked: late.asked.with(&before.asked),
            until: late.until.max(before.until),
            ..late
        });
        self.late_of.insert(late.flow, end);
        self.late.insert(end, late);
        self.ends.insert((late.until, end));
    }

    /// Returns until when an earlier flow of this name may be answered.
    pub(super) fn late_until(&self, flow: &FlowKey) -> Option<Instant> {
        let late = self.late_of.get(flow).and_then(|end| self.late.get(end));
        late.map(|late| late.until)
    }

    fn forget_late(&mut self, end: &FlowKey) -> Option<Late> {
        let late = self.late.remove(end)?;
        self.ends.remove(&(late.until, *end));
        if self.late_of.get(&late.flow) == Some(end) {
            self.late_of.remove(&late.flow);
        }
        Some(late)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.ends.first().map(|(at, _)| *at)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, end)) = self.ends.first().copied().filter(|(at, _)| *at <= now) {
            self.forget_late(&end);
        }
    }

    /// The owner takes on this direction of a connection that CM made, and is the first to do so
    /// since.
    pub(super) fn take_fresh(&mut self, flow: &FlowKey, by: Hold) -> Option<Qpn> {
        let requester_qpn = self.links.get(&ByQpn(*flow)).filter(|link| link.fresh)?.requester_qpn;
        self.hold(flow, by);
        Some(requester_qpn)
    }

    /// The owner takes on this direction, if it is known.
    pub(super) fn hold(&mut self, flow: &FlowKey, by: Hold) {
        let was_used = self.is_used(flow);
        if let Some(link) = self.links.get_mut(&ByQpn(*flow)) {
            (link.hold, link.fresh) = (by, false);
            self.used += usize::from(!was_used);
        }
        self.wake(flow);
    }

    /// The owner gives this direction up. What CM told of the connection stays for a while.
    pub(super) fn release(&mut self, flow: &FlowKey, now: Instant) {
        let was_used = self.is_used(flow);
        let since = self.millis(now);
        let Some(link) = self.links.get_mut(&ByQpn(*flow)) else { return };
        (link.hold, link.fresh, link.since) = (Hold::Nobody, false, since);
        let is_of_cm = link.terms.is_some();
        let is_used = self.is_used(flow);
        self.used -= usize::from(was_used && !is_used);
        match (is_used, is_of_cm) {
            (true, _) => {}
            (false, true) => self.rest(flow),
            (false, false) => {
                self.untie(flow);
            }
        }
    }

    fn is_used(&self, flow: &FlowKey) -> bool {
        is_used(&self.links, flow)
    }

    /// Ties two ends together, by a CM reply with these communication IDs or without one, and
    /// returns the held flows of the connections that either was part of before.
    pub(super) fn tie(
        &mut self,
        flow: FlowKey,
        requester_qpn: Qpn,
        by_cm: Option<&ByCm>,
        now: Instant,
    ) -> [Option<(FlowKey, Hold)>; 4] {
        let back = reverse(&flow, requester_qpn);
        let since = self.millis(now);
        let known = self.links.get(&ByQpn(flow)).filter(|link| link.requester_qpn == requester_qpn);
        let ids = by_cm.map_or((0, 0), |by_cm| by_cm.ids);
        let terms = by_cm.map_or([None; 2], |by_cm| by_cm.terms.map(|terms| Some(Packed::new(&terms))));
        if known.is_some_and(|link| !link.is_renewed(by_cm)) {
            for (end, terms) in [flow, back].into_iter().zip(terms) {
                if let Some(link) = self.links.get_mut(&ByQpn(end)) {
                    link.since = since;
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
            let (hold, closing, fresh) = (Hold::Nobody, false, terms.is_some());
            self.links.insert(ByQpn(end), Link { requester_qpn, terms, ids, hold, fresh, closing, since });
        }
        for (end, psn) in [flow, back].into_iter().zip(by_cm.into_iter().flat_map(|by_cm| by_cm.first_psns)) {
            self.first_psns.insert(end, psn);
        }
        self.rest(&flow);
        [one, two, three, four]
    }

    /// Forgets a connection and returns which of its directions were held.
    pub(super) fn untie(&mut self, flow: &FlowKey) -> [Option<(FlowKey, Hold)>; 2] {
        let Some(requester_qpn) = self.links.get(&ByQpn(*flow)).map(|link| link.requester_qpn) else {
            return [None; 2];
        };
        self.used -= usize::from(self.is_used(flow));
        self.wake(flow);
        [*flow, reverse(flow, requester_qpn)].map(|end| {
            self.first_psns.remove(&end);
            let hold = self.links.remove(&ByQpn(end)).map(|link| link.hold)?;
            (hold != Hold::Nobody).then_some((end, hold))
        })
    }

    /// Returns whether these communication IDs are a connection's. In a request to take down an
    /// earlier one of the same queue pairs, which was late or is repeated, they are not: the queue
    /// pair answers it without effect (Linux, `cm_dreq_handler`). Nor are they where CM did not
    /// tell of the connection.
    pub(super) fn is_of(&self, flow: &FlowKey, ids: [u32; 2]) -> bool {
        let told = self.links.get(&ByQpn(*flow)).filter(|link| link.terms.is_some());
        told.is_some_and(|link| {
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
            let link = self.links.get_mut(&ByQpn(end))?;
            (link.closing, link.fresh) = (true, false);
            (link.hold != Hold::Nobody).then_some(end)
        })
    }

    /// Looks at up to `budget` entries and drops the connections of which no direction is held,
    /// once older than `lifetime`. True when the end of the table was reached.
    pub(super) fn sweep(&mut self, budget: usize, lifetime: Duration, now: Instant) -> bool {
        let mut expired = Vec::new();
        let links = &self.links;
        let mut cursor = self.cursor;
        let end = step(links, &mut cursor, budget, |ByQpn(flow), link| {
            if self.age(link, now) >= lifetime && !is_used(links, flow) {
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

/// The direction of a connection that is opposite to the requests of this queue pair.
const fn opposite(hosts: Hosts, requester_qpn: Qpn) -> FlowKey {
    FlowKey { requester: hosts.target, target: hosts.requester, target_qpn: requester_qpn }
}

/// Returns true if a direction of this connection is held.
fn is_used(links: &BTreeMap<ByQpn, Link>, flow: &FlowKey) -> bool {
    links.get(&ByQpn(*flow)).is_some_and(|link| {
        let is_held = |link: &Link| link.hold != Hold::Nobody;
        is_held(link) || links.get(&ByQpn(reverse(flow, link.requester_qpn))).is_some_and(is_held)
    })
}

/// Visits up to `budget` entries after the cursor and moves it on. True when the end was reached;
/// the next step starts over.
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
