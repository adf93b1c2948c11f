//! Our own schemes, as [`crate::stream`] runs them: when is a message of so many bytes complete?
//!
//! Completion is counted from the first byte's injection to the arrival of the answer that leaves
//! the far side as the last packet is there. What the schemes do is in `docs/protocol.md#streams`;
//! what of it counts here:
//!
//! - `sr`: a loss is named `reorder_time` after the next packet arrived, sent again before new
//!   data, and named once per round trip. A loss at the very end, which the receiver cannot miss,
//!   waits for the timeout.
//! - `xor`, `mds`: what parity restores costs its own time on the wire, and `flush` if the last
//!   block is short. A group that falls short asks for as many packets as it lacks when something
//!   beyond it has arrived, or after `reorder_time + beta RTT` of silence.
//! - `hybrid`: the packets that could not be repaired within the transfer are coded as in `mds`,
//!   but with no more parity than the losses call for; the others are repaired as in `sr`. What
//!   repairs the last packets is sent more than once.
//! - Repairs go before new data, so they delay it.
//! - Bursts go by time: parity that waits for `flush`, and repairs, need not fear the burst that
//!   hit what they stand in for.
//! - What others send between a message's packets takes its share of the losses; what they send
//!   after them fills up its last block, and tells the receiver of a loss at its end.
//!
//! Not in the model: a window too small for rate times round-trip time, lost reports (the next one
//! says it again), and processing time.

mod delays;
mod group;
mod protection;
mod sample;

use std::time::Duration;

pub use sample::sample;

use self::delays::Delays;
use self::group::{Group, Layout};
use self::protection::Protection;
use super::candidate::Candidate;
use super::completion::{Completion, Tail, Train};
use super::losses::Losses;
use crate::link::Link;

/// Probabilities below this end the description of a tail ...
const NEGLIGIBLE: f64 = 1e-11;
/// ... and so do this many rounds of repair.
const MAX_ROUNDS: usize = 256;
/// A group's parities that take no longer than this share of the round-trip time are taken to come
/// all at once.
const COARSE: f64 = 0.01;

/// The streams' settings that the completion time depends on; see [`crate::stream::SenderConfig`]
/// and [`crate::stream::ReceiverConfig`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timers {
    /// A packet overtaken by others is not taken for lost before this time.
    pub reorder_time: Duration,
    /// A block without more data is closed this long after its first packet.
    pub flush: Duration,
    /// The fallback timeout of a block that fell silent, in round-trip times.
    pub beta: f64,
    /// Slack of the retransmission timeout of `sr`, in round-trip times.
    pub alpha: f64,
}

impl Default for Timers {
    /// The streams' defaults.
    fn default() -> Self {
        Self {
            reorder_time: Duration::from_millis(1),
            flush: Duration::from_micros(200),
            beta: 0.25,
            alpha: 1.0,
        }
    }
}

/// A message to be carried, and what else its stream carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Bytes.
    pub size: u64,
    /// Bytes of the same stream that go first. The clock then starts when the message is handed
    /// over.
    pub backlog: u64,
    /// Bytes of others that leave between its own, evenly spread.
    pub beside: u64,
    /// Bytes of others that follow it at once.
    pub behind: u64,
}

impl Message {
    /// A message alone on its stream.
    #[must_use]
    pub const fn new(size: u64) -> Self {
        Self { size, backlog: 0, beside: 0, behind: 0 }
    }
}

/// When the message is complete under the scheme.
#[must_use]
pub fn completion(link: &Link, timers: &Timers, candidate: Candidate, message: Message) -> Completion {
    Transfer::new(link, timers, candidate, message).completion()
}

/// A message laid out on the link, with what leaves between its packets: packets repaired one by
/// one, then groups of blocks. Times in seconds.
#[derive(Debug)]
struct Transfer {
    losses: Losses,
    delays: Delays,
    rtt: f64,
    /// On the wire, per data packet, per one of those that follow, and per parity.
    packet: f64,
    behind: f64,
    parity: f64,
    plan: Plan,
    /// The message's part of the data packets.
    own: f64,
    backlog: f64,
    /// `hybrid` sees to it that repairs arrive.
    protection: Option<Protection>,
}

/// Which packets of a message are in blocks.
#[derive(Debug)]
struct Plan {
    uncoded: f64,
    /// Full groups that are not the last.
    groups: f64,
    full: Group,
    /// The last group.
    last: Option<Group>,
    /// Data packets of the last group that follow the message.
    fill: f64,
    /// So many more follow.
    beyond: f64,
}

impl Transfer {
    fn new(link: &Link, timers: &Timers, candidate: Candidate, message: Message) -> Self {
        let losses = Losses::new(link);
        let Message { size, backlog, beside, behind } = message;
        let count = |bytes: u64| if bytes > 0 { link.packets(bytes) as f64 } else { 0.0 };
        let seconds = |bytes: u64| if bytes > 0 { link.wire_seconds(bytes) } else { 0.0 };
        let own = link.packets(size) as f64;
        let packets = own + count(beside);
        let packet = (link.wire_seconds(size) + seconds(beside)) / packets;
        let parity = link.wire_seconds(size.max(beside).max(behind).min(link.payload() as u64));
        let delays = Delays::new(link, timers, candidate, packet);
        let repair = delays.tail / parity;
        let following = count(behind);
        let protection = match candidate {
            Candidate::Hybrid(block) => Some(Protection::new(link, block, packets + following, repair)),
            Candidate::Sr | Candidate::Xor(_) | Candidate::Mds(_) => None,
        };
        let layout = Layout::of(candidate, protection.as_ref());
        let coded = match &protection {
            Some(protection) => (protection.exposed() - following).ceil().clamp(0.0, packets),
            None => packets,
        };
        let parities = candidate.block().map_or(0.0, |block| f64::from(block.m) * f64::from(block.depth));
        let precise = parities * parity > COARSE * link.rtt_seconds();
        Self {
            losses,
            delays,
            rtt: link.rtt_seconds(),
            packet,
            behind: seconds(behind) / following.max(1.0),
            parity,
            plan: Plan::new(
                &losses,
                layout.as_ref(),
                (packets, coded, following),
                [delays.flush, delays.quiet].map(|time| time / packet),
                precise,
            ),
            own: own / packets,
            backlog: seconds(backlog),
            protection,
        }
    }

    /// Probability that the message has a part in `lost` packets of which `own` is its part.
    fn hit(own: f64, lost: f64) -> f64 {
        1.0 - (1.0 - own).powf(lost.max(1.0))
    }

    fn completion(&self) -> Completion {
        let injection = self.injection();
        let mut trains = Vec::with_capacity(2);
        if let Some(train) = self.uncoded_train(&injection) {
            trains.push(train);
        }
        if let Some(train) = self.coded_train() {
            trains.push(train);
        }
        let tail = match &self.plan.last {
            Some(group) => self.coded_tail(group),
            None => self.uncoded_tail(),
        };
        Completion { floor: self.ahead() + injection.end + self.rtt, trains, tail, overhead: self.overhead() }
    }

    /// Seconds until the backlog is out of the way, its parity and repairs included.
    fn ahead(&self) -> f64 {
        let parity = if self.plan.uncoded > 0.0 { 0.0 } else { self.plan.full.parity / self.plan.full.data };
        self.backlog * (1.0 + parity * self.parity / self.packet) / (1.0 - self.repair_share())
    }

    /// Share of the wire that repairs take once the first losses have been named.
    fn repair_share(&self) -> f64 {
        let drop = self.losses.drop();
        if self.plan.uncoded > 0.0 {
            drop
        } else {
            let full = &self.plan.full;
            (full.repairs / (1.0 - drop) / (full.data + full.parity)).min(drop)
        }
    }

    /// When what is sent for the first time has left. Repairs of what was lost go before it, from
    /// the first repair delay on.
    fn injection(&self) -> Injection {
        let Plan { uncoded, groups, full, .. } = &self.plan;
        let delay = self.delays.repair;
        let stretched = |time: f64, share: f64| {
            if time > delay { delay + (time - delay) / (1.0 - share) } else { time }
        };
        let drop = self.losses.drop();
        let uncoded_end = stretched(uncoded * self.packet, drop);
        let coded = groups * self.group_seconds(full) + self.last_seconds();
        let share = (full.repairs / (1.0 - drop) / (full.data + full.parity).max(1.0)).min(drop);
        // Repairs of the uncoded packets sent last, while the coded ones are sent.
        let repairs = drop * uncoded_end.min(coded).min(delay);
        Injection { uncoded: uncoded_end, end: uncoded_end + repairs + stretched(coded, share) }
    }

    fn group_seconds(&self, group: &Group) -> f64 {
        group.data * self.packet + group.parity * self.parity
    }

    /// From the beginning of the last group to the end of the message.
    fn last_seconds(&self) -> f64 {
        let Plan { last, fill, .. } = &self.plan;
        last.as_ref().map_or(0.0, |group| (group.data - fill) * self.packet)
    }

    /// Probability that `lost` packets sent again together are not all there after 0, 1, 2, ...
    /// times.
    fn repeats(&self, lost: f64, coded: bool) -> impl Iterator<Item = f64> {
        self.losses.repeats(lost, self.lost_again(lost, coded))
    }

    /// Where repairs are protected: the probability that one fails.
    fn lost_again(&self, lost: f64, coded: bool) -> Option<f64> {
        let protection = self.protection.as_ref()?;
        Some(if coded { protection.falls_short_again(lost) } else { protection.lost_with_copies() })
    }

    /// Packets that are repaired one by one, and followed by others.
    fn uncoded_train(&self, injection: &Injection) -> Option<Train> {
        let Plan { uncoded, ref last, beyond, .. } = self.plan;
        let is_end = last.is_none() && beyond == 0.0;
        let followed = uncoded - f64::from(is_end);
        if followed < 1.0 {
            return None;
        }
        // The last packet is the message's own in any case.
        let own = (self.own * uncoded - f64::from(is_end)) / followed;
        let spacing = injection.uncoded / uncoded;
        let after = injection.end - injection.uncoded;
        let lead = if is_end { after.max(spacing) } else { after };
        let cluster = self.losses.cluster();
        let lost = self.losses.drop() / cluster * self.losses.cluster_hits(own.clamp(0.0, 1.0));
        let rounds = (self.delays.repair, self.delays.again);
        let incomplete = self.repeats(cluster, false).map(|open| lost * open);
        Some(Train::new(followed, spacing, lead, rounds, incomplete))
    }

    /// Groups of blocks that others follow.
    fn coded_train(&self) -> Option<Train> {
        let Plan { groups, full, .. } = &self.plan;
        if *groups < 1.0 {
            return None;
        }
        let rounds = (self.delays.repair, self.delays.again);
        let fail = full.fail * Self::hit(self.own, full.missing);
        let incomplete = self.repeats(full.lost_if_failed(), true).map(|open| fail * open);
        Some(Train::new(*groups, self.group_seconds(full), self.last_seconds(), rounds, incomplete))
    }

    /// The losses at the very end of a message without parity.
    fn uncoded_tail(&self) -> Tail {
        let mut later = Vec::new();
        let Plan { uncoded, beyond, .. } = self.plan;
        let several = if uncoded > 1.0 { 1.0 - self.losses.leave() } else { 0.0 };
        self.time_out(0.0, self.losses.all_of(1.0 + beyond), several, &mut later);
        Tail::new(later)
    }

    /// Losses with probability `lost` that the receiver does not know of. The first packet is sent
    /// again as a probe after the timeout, and if that is lost, ever more rarely. Its arrival tells
    /// that the others, with probability `several` there are any, are to be sent again too.
    fn time_out(&self, from: f64, lost: f64, several: f64, later: &mut Vec<(f64, f64)>) {
        let mut open = lost;
        for (probe, packets) in self.delays.probes() {
            let fails = self.losses.all_of(packets.into());
            let arrives = open * (1.0 - fails);
            later.push((from + probe, arrives * (1.0 - several)));
            open *= fails;
            let mut time = from + probe + self.rtt + self.delays.report;
            let mut rest = arrives * several;
            for again in self.repeats(self.losses.cluster(), false).skip(1).take(MAX_ROUNDS) {
                if rest <= NEGLIGIBLE {
                    break;
                }
                later.push((time, rest - arrives * several * again));
                rest = arrives * several * again;
                time += self.delays.timeout;
            }
            if open <= NEGLIGIBLE {
                break;
            }
        }
    }

    /// Returns the completion of the last group after its last data packet was sent.
    fn coded_tail(&self, group: &Group) -> Tail {
        let mut later = Vec::new();
        let Plan { fill, beyond, .. } = self.plan;
        let own = self.own * (group.data - fill) / group.data;
        let row = group.lanes * self.parity;
        let closed = fill * self.behind + group.pause * self.packet;
        let any = self.losses.any_of_share(self.own, group.data - fill);
        let mut open = any;
        for stage in &group.stages {
            let incomplete = stage.single * any + stage.incomplete * Self::hit(own, stage.missing);
            later.push((closed + stage.parities * row, open - incomplete));
            open = open.min(incomplete);
        }
        let sent = closed + group.parity * self.parity;
        let hit = Self::hit(own, group.missing);
        let fail = (group.fail * hit).min(open);
        let unheard = self.losses.all_of_apart(group.pause, group.parity + beyond);
        let unknown = unheard.min(group.fail) * hit;
        let several = if group.data > 1.0 { 1.0 - self.losses.leave() } else { 0.0 };
        self.time_out(sent, unknown, several, &mut later);
        let known = (fail - unknown).max(0.0);
        let mut open = known;
        let (first, step) = match beyond > 0.0 {
            true => (self.delays.repair, self.delays.again),
            false => (self.delays.silence, self.delays.again_at_end),
        };
        let mut time = sent + first;
        for again in self.repeats(group.lost_if_failed(), true).skip(1).take(MAX_ROUNDS) {
            later.push((time, open - known * again));
            open = known * again;
            time += step;
            if open <= NEGLIGIBLE {
                break;
            }
        }
        Tail::new(later)
    }

    /// Parity and repairs per data packet.
    fn overhead(&self) -> f64 {
        let Plan { uncoded, groups, full, last, .. } = &self.plan;
        let drop = self.losses.drop();
        let (mut data, mut extra) = (*uncoded, uncoded * drop / (1.0 - drop));
        let coded = std::iter::once((*groups, full)).chain(last.as_ref().map(|group| (1.0, group)));
        for (count, group) in coded {
            data += count * group.data;
            extra += count * (group.parity + group.repairs / (1.0 - drop));
        }
        extra / data.max(1.0)
    }
}

/// Seconds from the first byte until the uncoded packets, and all of the message's, have left for
/// the first time.
#[derive(Debug)]
struct Injection {
    uncoded: f64,
    end: f64,
}

impl Plan {
    /// The last `coded` of `packets` in groups, the last one filled up with those `behind`; `flush`
    /// and quiet time in packets' time, `precise` if the time that single parities take matters.
    fn new(
        losses: &Losses,
        layout: Option<&Layout>,
        (packets, coded, behind): (f64, f64, f64),
        flush: [f64; 2],
        precise: bool,
    ) -> Self {
        let size = layout.map_or(1.0, |layout| f64::from(layout.packets()));
        let groups = ((coded / size).ceil() - 1.0).max(0.0);
        let remainder = coded - groups * size;
        let fill = (size - remainder).min(behind);
        let Some(layout) = layout.filter(|layout| coded > 0.0 && layout.has_parity((coded + fill) as u32))
        else {
            let full = Group::default();
            return Self { uncoded: packets, groups: 0.0, full, last: None, fill: 0.0, beyond: behind };
        };
        let last = Group::new(losses, layout, (remainder + fill) as u32, flush, precise);
        let full = if groups > 0.0 {
            Group::new(losses, layout, layout.packets(), flush, false)
        } else {
            last.clone()
        };
        Self { uncoded: packets - coded, groups, full, last: Some(last), fill, beyond: behind - fill }
    }
}

#[cfg(test)]
mod tests;
