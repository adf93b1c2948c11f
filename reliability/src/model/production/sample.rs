//! The same transfers packet by packet: every loss is drawn from the Gilbert channel, in the order
//! of the wire.

use std::time::Duration;

use rand::{Rng, RngExt};

use super::group::Layout;
use super::{Message, Plan, Timers, Transfer};
use crate::link::Link;
use crate::model::candidate::Candidate;
use crate::model::completion::seconds;
use crate::model::losses::Losses;

/// Draws one message's completion time. The cost is proportional to the number of packets.
pub fn sample(
    link: &Link,
    timers: &Timers,
    candidate: Candidate,
    message: Message,
    rng: &mut impl Rng,
) -> Duration {
    let transfer = Transfer::new(link, timers, candidate, message);
    let mut channel = Channel::new(transfer.losses, rng);
    let mut drawn = Drawn::new(&transfer);
    drawn.uncoded(&mut channel);
    if let Some(layout) = Layout::of(candidate, transfer.protection.as_ref()) {
        drawn.coded(&layout, &mut channel);
    }
    seconds(transfer.ahead() + drawn.complete + transfer.rtt)
}

/// Loses packets one after the other.
struct Channel<'a, R> {
    losses: Losses,
    bad: bool,
    rng: &'a mut R,
}

impl<'a, R: Rng> Channel<'a, R> {
    fn new(losses: Losses, rng: &'a mut R) -> Self {
        let mut channel = Self { losses, bad: false, rng };
        channel.part();
        channel
    }

    /// Forgets the channel's state: the next packets are sent so much later that nothing of it
    /// remains.
    fn part(&mut self) {
        self.bad = self.rng.random::<f64>() < self.losses.drop();
    }

    fn loses(&mut self) -> bool {
        let lost = self.bad;
        let turn = if lost { self.losses.leave() } else { self.losses.enter() };
        self.bad ^= self.rng.random::<f64>() < turn;
        lost
    }

    /// Nothing is sent for as long as so many packets would have taken.
    fn pause(&mut self, packets: f64) {
        let passed = self.losses.every(packets);
        let turn = if self.bad { passed.leave() } else { passed.enter() };
        self.bad ^= self.rng.random::<f64>() < turn;
    }

    /// Returns true if the message, whose share of the packets is `own`, has a part in those that
    /// were lost.
    fn hits(&mut self, own: f64, lost: u64) -> bool {
        (0..lost).any(|_| self.rng.random::<f64>() < own)
    }

    /// Packets lost of `count` sent together.
    fn lost_of(&mut self, count: u64) -> u64 {
        self.part();
        (0..count).map(|_| u64::from(self.loses())).sum()
    }

    /// How many times more than once `count` packets are sent again, together, until all are there;
    /// or, if each time fails with a known probability, how many times fail.
    fn repeats(&mut self, mut count: u64, protected: Option<f64>) -> f64 {
        let mut failed = 0.0;
        loop {
            count = self.lost_of(count);
            let fails = protected.map_or(count > 0, |fails| self.rng.random::<f64>() < fails);
            if !fails {
                return failed;
            }
            failed += 1.0;
        }
    }
}

/// The sample drawn so far. Seconds since the first byte.
struct Drawn<'a> {
    transfer: &'a Transfer,
    /// The latest part's completion, half a round trip later than it happens at the receiver.
    complete: f64,
    end: f64,
    uncoded_end: f64,
}

impl<'a> Drawn<'a> {
    fn new(transfer: &'a Transfer) -> Self {
        let injection = transfer.injection();
        Self { transfer, complete: injection.end, end: injection.end, uncoded_end: injection.uncoded }
    }

    fn uncoded<R: Rng>(&mut self, channel: &mut Channel<'_, R>) {
        let count = self.transfer.plan.uncoded as u64;
        let spacing = self.uncoded_end / count as f64;
        let delays = &self.transfer.delays;
        let mut run = 0;
        let mut lost_runs = Vec::new();
        for packet in 0..count {
            if channel.loses() {
                run += 1;
            } else if run > 0 {
                lost_runs.push((packet as f64 * spacing, std::mem::take(&mut run)));
            }
        }
        // Repairs are sent among other packets, and do not touch the state of what follows.
        let state = channel.bad;
        for (sent, run) in lost_runs {
            if !channel.hits(self.transfer.own, run) {
                continue;
            }
            let repeats = self.repeats(run, false, channel);
            self.done(sent + delays.repair + repeats * delays.again);
        }
        let Plan { last, beyond, .. } = &self.transfer.plan;
        if run > 0 && last.is_none() && (0..*beyond as u64).all(|_| channel.loses()) {
            // The last packet is the message's own.
            let late = self.time_out(run, channel);
            self.done(self.end + late);
        } else if run > 0 && channel.hits(self.transfer.own, run) {
            let repeats = self.repeats(run, false, channel);
            self.done(self.uncoded_end + delays.repair + repeats * delays.again);
        }
        channel.bad = state;
    }

    /// How much later the last packets are there if the receiver does not know of them.
    fn time_out<R: Rng>(&self, count: u64, channel: &mut Channel<'_, R>) -> f64 {
        let delays = &self.transfer.delays;
        let answered = |&(_, packets): &(f64, u8)| channel.lost_of(packets.into()) < packets.into();
        let probe = delays.probes().find(answered).map_or(f64::MAX, |(probe, _)| probe);
        if count == 1 {
            return probe;
        }
        let again = self.repeats(count - 1, false, channel) * delays.timeout;
        probe + self.transfer.rtt + delays.report + again
    }

    fn coded<R: Rng>(&mut self, layout: &Layout, channel: &mut Channel<'_, R>) {
        let plan = &self.transfer.plan;
        let Some(last) = &plan.last else { return };
        let delays = &self.transfer.delays;
        let length = self.transfer.group_seconds(&plan.full);
        for group in 1..=plan.groups as u64 {
            let packets = layout.packets();
            let missing = Missing::draw(layout, packets, 0.0, (packets, self.transfer.own), channel);
            if missing.finally > 0 && missing.hits {
                let ended = self.end - self.transfer.last_seconds() - (plan.groups - group as f64) * length;
                let state = channel.bad;
                let repeats = self.repeats(missing.finally, true, channel);
                self.done(ended + delays.repair + repeats * delays.again);
                channel.bad = state;
            }
        }
        let closed = self.end + plan.fill * self.transfer.behind + last.pause * self.transfer.packet;
        let own = ((last.data - plan.fill) as u32, self.transfer.own);
        let missing = Missing::draw(layout, last.data as u32, last.pause, own, channel);
        let all_sent = closed + last.parity * self.transfer.parity;
        if !missing.hits {
            return;
        }
        let unheard = missing.unknown && (0..plan.beyond as u64).all(|_| channel.loses());
        if plan.beyond > 0.0 && missing.finally > 0 && !unheard {
            let again = self.repeats(missing.finally, true, channel) * delays.again;
            self.done(all_sent + delays.repair + again);
        } else if unheard {
            let late = self.time_out(missing.finally, channel);
            self.done(all_sent + late);
        } else if missing.finally > 0 {
            let again = self.repeats(missing.finally, true, channel) * delays.again_at_end;
            self.done(all_sent + delays.silence + again);
        } else if missing.rows > 0 {
            self.done(closed + missing.rows as f64 * last.lanes * self.transfer.parity);
        }
    }

    fn repeats<R: Rng>(&self, lost: u64, coded: bool, channel: &mut Channel<'_, R>) -> f64 {
        channel.repeats(lost, self.transfer.lost_again(lost as f64, coded))
    }

    fn done(&mut self, time: f64) {
        self.complete = self.complete.max(time);
    }
}

/// The packets that a group misses.
struct Missing {
    /// Any of them is the message's, of the codes that fall short, or of all if none does.
    hits: bool,
    /// Packets to be sent again.
    finally: u64,
    /// Rows of parities until nothing is missing.
    rows: usize,
    /// The last data packet and all parities are lost.
    unknown: bool,
}

impl Missing {
    /// Draws the losses of a group; the share `own` of its first `span` data packets is the
    /// message's.
    fn draw<R: Rng>(
        layout: &Layout,
        data: u32,
        pause: f64,
        (span, own): (u32, f64),
        channel: &mut Channel<'_, R>,
    ) -> Self {
        let depth = usize::from(layout.block.depth);
        let lost: Vec<bool> = (0..data).map(|_| channel.loses()).collect();
        let own: Vec<bool> =
            (0..).zip(&lost).map(|(place, lost)| *lost && place < span && channel.hits(own, 1)).collect();
        channel.pause(pause);
        // Per lane: data packets lost, by class in an XOR block.
        let count = |packets: &[bool]| -> Vec<Vec<usize>> {
            let lane = |lane| {
                let block: Vec<bool> = packets.iter().copied().skip(lane).step_by(depth).collect();
                let classes = if layout.xor { layout.parities(block.len(), data) } else { 1 };
                let class = |class| block.iter().skip(class).step_by(classes).filter(|one| **one).count();
                (0..classes).map(class).collect()
            };
            (0..depth.min(data as usize)).map(lane).collect()
        };
        let (lanes, own) = (count(&lost), count(&own));
        let lens = (0..lanes.len()).map(|lane| (data as usize - lane).div_ceil(depth));
        let parities: Vec<usize> = lens.map(|len| layout.parities(len, data)).collect();
        let mut open = lanes;
        let mut missing = Self { hits: false, finally: 0, rows: 0, unknown: lost.last() == Some(&true) };
        for row in 0..parities.iter().copied().max().unwrap_or(0) {
            let before: usize = open.iter().flatten().sum();
            for (lane, _) in parities.iter().enumerate().filter(|(_, parities)| row < **parities) {
                let arrived = !channel.loses();
                missing.unknown &= !arrived;
                let classes = open.get_mut(lane).map(|classes| classes.as_mut_slice()).unwrap_or_default();
                let class = if layout.xor { row } else { 0 };
                if let Some(lost) = classes.get_mut(class).filter(|_| arrived) {
                    *lost = lost.saturating_sub(1);
                }
            }
            if before > 0 {
                missing.rows = row + 1;
            }
        }
        missing.finally = open.iter().flatten().sum::<usize>() as u64;
        let mut codes = own.iter().flatten().zip(open.iter().flatten());
        missing.hits = codes.any(|(own, open)| *own > 0 && (*open > 0 || missing.finally == 0));
        missing.unknown &= missing.finally > 0;
        missing
    }
}
