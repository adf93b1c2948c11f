//! Requester side: READ responses that the requester's LAN may have lost or had overtaken, kept to
//! be given again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use roce::flow::near::{Data, Resend};
use roce::hosts::ALPHA;
use roce::wire::{Packet, Psn};
use transport::Group;

use super::{Delivered, NearFlow, NearSide};
use crate::Settings;
use crate::context::Context;
use crate::hosts::Grouping;
use crate::pool::Buf;

/// A response that has gone to the LAN.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Response {
    psn: Psn,
    /// When it last went.
    #[serde_as(as = "snapshot::At")]
    at: Instant,
    packet: Buf,
}

/// Responses of a flow's READs that have gone to its requester, each for
/// [`Near::resend_for`](roce::flow::near::Near::resend_for), counted anew when it goes once more.
/// Those of one [`window`](roce::flow::near::Near::window) only.
///
/// Bound: see [`Budget`]. What finds no room in it is not kept, and a READ that is repeated for its
/// sake goes to the target.
#[serde_with::serde_as]
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Kept {
    /// In PSN order: those of READs outstanding, and those of READs run again.
    lanes: [VecDeque<Response>; 2],
    bytes: usize,
    window: u32,
    /// When to look for what has been kept long enough.
    #[serde_as(as = "Option<snapshot::At>")]
    expiry: Option<Instant>,
    /// How long that is.
    time: Duration,
    /// When a response last went.
    #[serde_as(as = "Option<snapshot::At>")]
    newest: Option<Instant>,
}

/// The memory for responses is given back when none has come for so long.
const IDLE: Duration = Duration::from_secs(1);

/// Bytes that all flows together may keep: a sixteenth of the packet buffers.
///
/// A requester's host may have [`ALPHA`] times as much as is free of that; hosts whose addresses
/// have the same hash share. Where there is no room, the flow's own oldest responses go first. All
/// of it goes when others need the buffers.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Budget {
    most: usize,
    all: usize,
    #[serde_as(as = "[_; Group::EACH_KIND]")]
    hosts: [usize; Group::EACH_KIND],
}

/// Part of the packet buffers, as a divisor.
const PART: usize = 16;

impl Budget {
    pub(super) fn new(total_buffer: usize) -> Self {
        Self { most: total_buffer / PART, all: 0, hosts: [0; Group::EACH_KIND] }
    }

    /// Counts anew what each flow keeps: read from a snapshot, hosts have other groups.
    pub(super) fn regroup<'a>(&mut self, flows: impl Iterator<Item = &'a NearFlow>, grouping: Grouping) {
        self.hosts = [0; Group::EACH_KIND];
        for flow in flows {
            let bytes = flow.kept.as_ref().map_or(0, |kept| kept.bytes);
            if let Some(own) = self.host(grouping.rc(flow.addressing.src)) {
                *own += bytes;
            }
        }
    }

    fn host(&mut self, host: Group) -> Option<&mut usize> {
        self.hosts.get_mut(host.place())
    }

    fn takes(&mut self, host: Group, len: usize) -> bool {
        let free = self.most.saturating_sub(self.all);
        self.host(host).is_some_and(|own| *own + len <= free.saturating_mul(ALPHA)) && len <= free
    }

    fn count(&mut self, host: Group, more: usize, less: usize) {
        self.all = self.all + more - less;
        if let Some(host) = self.host(host) {
            *host = *host + more - less;
        }
    }

    /// Lets go of the flow's oldest response.
    fn drop_oldest(&mut self, flow: &mut NearFlow, grouping: Grouping) -> bool {
        let Some(kept) = &mut flow.kept else { return false };
        let Some(oldest) = kept.oldest_lane().and_then(VecDeque::pop_front) else { return false };
        let len = oldest.packet.as_ref().len();
        kept.bytes -= len;
        self.count(grouping.rc(flow.addressing.src), 0, len);
        true
    }

    /// Lets go of what has been kept long enough.
    pub(super) fn expire(&mut self, flow: &mut NearFlow, grouping: Grouping, now: Instant) {
        let due = |kept: &Kept| kept.expiry.is_some_and(|expiry| expiry <= now);
        if !flow.kept.as_deref().is_some_and(due) {
            return;
        }
        while flow.kept.as_deref().and_then(Kept::oldest_expiry).is_some_and(|expiry| expiry <= now) {
            self.drop_oldest(flow, grouping);
        }
        if let Some(kept) = &mut flow.kept {
            kept.expiry = kept.oldest_expiry().or_else(|| kept.newest.map(|at| at + IDLE));
            if kept.expiry.is_none_or(|expiry| expiry <= now) {
                flow.kept = None;
            }
        }
    }

    /// Lets go of what the response with this PSN does not belong with: of another window, or at or
    /// beyond it in its lane, since the flow or its requester has gone back.
    fn make_way(&mut self, flow: &mut NearFlow, grouping: Grouping, psn: Psn, data: Data) {
        let Some(kept) = flow.kept.as_deref_mut() else { return };
        let mut freed = 0;
        if kept.window != flow.near.window() {
            freed = kept.bytes;
            kept.lanes.iter_mut().for_each(VecDeque::clear);
        }
        while let Some(beyond) = kept.lane(data).pop_back_if(|newest| !newest.psn.is_before(psn)) {
            freed += beyond.packet.as_ref().len();
        }
        kept.bytes -= freed;
        self.count(grouping.rc(flow.addressing.src), 0, freed);
    }

    /// Lets go of all that the flow keeps.
    pub(super) fn forget(&mut self, flow: &mut NearFlow, grouping: Grouping) {
        if let Some(kept) = flow.kept.take() {
            self.count(grouping.rc(flow.addressing.src), 0, kept.bytes);
        }
    }
}

impl Kept {
    /// The responses.
    pub(super) fn packets_mut(&mut self) -> impl Iterator<Item = &mut Buf> {
        self.lanes.iter_mut().flatten().map(|response| &mut response.packet)
    }

    pub(super) fn expiry(&self) -> Option<Instant> {
        self.expiry
    }

    fn oldest_expiry(&self) -> Option<Instant> {
        self.lanes.iter().filter_map(|lane| lane.front()).map(|oldest| oldest.at + self.time).min()
    }

    fn oldest_lane(&mut self) -> Option<&mut VecDeque<Response>> {
        let lanes = self.lanes.iter_mut().filter(|lane| !lane.is_empty());
        lanes.min_by_key(|lane| lane.front().map(|oldest| oldest.at))
    }

    fn lane(&mut self, data: Data) -> &mut VecDeque<Response> {
        let [fresh, again] = &mut self.lanes;
        match data {
            Data::Fresh => fresh,
            Data::Again => again,
        }
    }

    /// The responses in question, if all of them are kept, and new enough.
    fn find(&mut self, resend: Resend) -> Option<Run<'_>> {
        self.lanes.iter_mut().find_map(|lane| find(lane, resend))
    }
}

type Run<'a> = std::collections::vec_deque::IterMut<'a, Response>;

fn find(lane: &mut VecDeque<Response>, resend: Resend) -> Option<Run<'_>> {
    let from = lane.partition_point(|response| response.psn.is_before(resend.from));
    let count = usize::try_from(resend.to.distance(resend.from)).ok().filter(|count| *count > 0)?;
    let last = from.checked_add(count - 1)?;
    let [first_psn, last_psn] = [lane.get(from)?.psn, lane.get(last)?.psn];
    let is_whole = first_psn == resend.from && last_psn.next() == resend.to;
    let is_fresh = || lane.range(from..=last).all(|response| response.at >= resend.since);
    (is_whole && is_fresh()).then(|| lane.range_mut(from..=last))
}

impl NearFlow {
    /// Answers a READ that comes again from what was kept; `false` if that cannot be.
    pub(super) fn resend(&mut self, packet: &Packet<'_>, ctx: &mut Context<'_>) -> bool {
        let Some(mut kept) = self.kept.take() else { return false };
        let asked = self.near.resend(packet, ctx.now);
        let resent = asked.is_some_and(|resend| self.give(&mut kept, resend, ctx));
        self.kept = Some(kept);
        resent
    }

    fn give(&mut self, kept: &mut Kept, resend: Resend, ctx: &mut Context<'_>) -> bool {
        if kept.window != self.near.window() {
            return false;
        }
        let Some(run) = kept.find(resend) else { return false };
        let addressing = self.reply_addressing();
        for response in run {
            let Ok(packet) = Packet::parse(response.packet.as_ref()) else { break };
            let passed = self.near.pass_again(&packet, response.psn == resend.from);
            // Where there is no room it is lost like any packet on the LAN.
            match ctx.pool.concat(&passed.parts(response.packet.as_ref())) {
                Some(copy) => ctx.lan.push(addressing, copy),
                None => ctx.lan.dropped += 1,
            }
            response.at = ctx.now;
        }
        self.near.note_resent(resend, ctx.now);
        true
    }
}

impl NearSide {
    /// A packet has gone to the LAN; keeps it if it is a response of a READ.
    pub(crate) fn keep(
        &mut self,
        delivered: Option<Delivered>,
        packet: Buf,
        settings: &Settings,
        now: Instant,
    ) {
        let Some(Delivered { slot, psn, data, window }) = delivered else { return };
        let Some(flow) = self.flows.get_mut(slot).filter(|flow| !flow.near.is_failed()) else { return };
        if flow.near.window() != window {
            return;
        }
        let (len, grouping) = (packet.as_ref().len(), settings.grouping);
        let host = grouping.rc(flow.addressing.src);
        self.budget.make_way(flow, grouping, psn, data);
        while !self.budget.takes(host, len) {
            if !self.budget.drop_oldest(flow, grouping) {
                return;
            }
        }
        self.budget.count(host, len, 0);
        let expiry = now + flow.near.resend_for();
        let kept = flow.kept.get_or_insert_default();
        kept.bytes += len;
        (kept.time, kept.newest) = (flow.near.resend_for(), Some(now));
        kept.window = window;
        kept.lane(data).push_back(Response { psn, at: now, packet });
        if kept.expiry.is_none_or(|later| expiry < later) {
            kept.expiry = Some(expiry);
            self.timers.arm(&mut flow.armed, Some(expiry), slot);
        }
    }

    /// Others need the buffers.
    pub(crate) fn forget_kept(&mut self, settings: &Settings) {
        for flow in self.flows.values_mut() {
            self.budget.forget(flow, settings.grouping);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;

    #[expect(clippy::disallowed_methods, reason = "no other way to get an Instant")]
    fn epoch() -> Instant {
        Instant::now()
    }

    #[test]
    fn no_host_keeps_all_and_none_more_than_there_is() {
        let mut budget = Budget::new(PART * 9000);
        let [one, other] = [1, 2].map(|host| Grouping::new(0).rc([10, 0, 0, host].into()));
        let fill = |budget: &mut Budget, host| {
            let packets = std::iter::repeat_n(100, 1000).take_while(|len| {
                let takes = budget.takes(host, *len);
                budget.count(host, if takes { *len } else { 0 }, 0);
                takes
            });
            packets.sum::<usize>()
        };
        let first = fill(&mut budget, one);
        let second = fill(&mut budget, other);
        assert!((7900..=8000).contains(&first), "{first}");
        assert!((800..=1000).contains(&second) && budget.all <= 9000, "{second}");
        budget.count(one, 0, first);
        assert!(fill(&mut budget, other) > 6000);
    }

    #[test]
    fn only_a_whole_and_fresh_run_is_found() {
        let (pool, start) = (Pool::new(1 << 20), epoch());
        let at = |micros| start + Duration::from_micros(micros);
        let response = |psn: u32| Response {
            psn: Psn::new(psn),
            at: at(u64::from(psn & 0xff)),
            packet: pool.copy(&[psn as u8]).unwrap(),
        };
        // A SEND stands at 3; PSNs begin anew.
        let mut kept = Kept::default();
        kept.lanes[0].extend([0xff_fffe, 0xff_ffff, 0, 1, 2, 4, 5].map(response));
        kept.lanes[0].iter_mut().take(2).for_each(|response| response.at = start);
        kept.lanes[1].extend([10, 11].map(response));
        let mut find = |from, to, since| {
            let resend = Resend { from: Psn::new(from), to: Psn::new(to), since: at(since) };
            let run = kept.find(resend);
            run.map(|run| run.map(|response| response.psn.get()).collect::<Vec<_>>())
        };
        assert_eq!(find(0xff_ffff, 3, 0), Some(vec![0xff_ffff, 0, 1, 2]));
        assert_eq!(find(0xff_ffff, 3, 1), None, "too old");
        assert_eq!(find(1, 3, 1), Some(vec![1, 2]));
        assert_eq!(find(4, 6, 1), Some(vec![4, 5]));
        assert_eq!(find(10, 12, 1), Some(vec![10, 11]));
        for (from, to) in [(2, 5), (4, 7), (0xff_fffd, 1), (3, 4), (6, 7), (11, 13), (12, 12)] {
            assert_eq!(find(from, to, 0), None, "{from} {to}");
        }
    }
}
