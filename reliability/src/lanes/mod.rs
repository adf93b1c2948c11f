//! Several ways to one peer: which of them the next packet takes, and which are left for a while.
//!
//! A session's lanes differ in their UDP ports, so a network that spreads flows over parallel links
//! carries them on different ones. One that lets nothing through, or that loses or delays much more
//! than the best, is left: it carries probes until it has been good for a while.

mod health;
mod spread;

use std::time::{Duration, Instant};

use self::health::{Best, Health};
pub use self::spread::MOST_LANES;
use self::spread::Spread;
use crate::estimator::{LaneId, PathReport};
use crate::stream::{InBlock, StreamId};

/// Packets in a row that take one lane: a batch of the kernel's (GSO) is of one lane.
const RUN: u32 = 16;
/// Round trips of 10 ms at least for which nothing was heard of a lane while others were heard of:
/// it gets no more data. Where little is sent, a report may take two.
pub const SUSPECT_AFTER: f64 = 2.5;
/// Round trips after that, in which it is probed twice in each, until it is left.
pub const LEFT_AFTER: f64 = 1.5;
/// Others were heard of if it is no longer ago than so many round trips: less than
/// [`SUSPECT_AFTER`], or nothing would tell a lane from the whole link.
const LATELY: u32 = 2;
/// Step of the turn of the gateway's own packets: the golden ratio of 2^32, so that every n-th of
/// them comes to all lanes, too.
const TURN: u32 = 0x9e37_79b9;

/// Why a lane is not in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It lets nothing through.
    Silent,
    /// It loses much more than the best.
    Lossy,
    /// Its round trip is much longer than the best's.
    Slow,
}

/// A lane as it stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// `None`: it is in use.
    pub left: Option<Cause>,
    /// True if packets that could take another lane may take it now.
    pub usable: bool,
    /// Its part of the packets that could take any lane, from 0 to 1.
    pub share: f64,
    /// Times that it was left.
    pub leaves: u64,
}

impl Default for State {
    /// A lane without others.
    fn default() -> Self {
        Self { left: None, usable: true, share: 1.0, leaves: 0 }
    }
}

/// Spreads packets over lanes by what the peer's reports tell of each.
///
/// Data goes to all lanes in use, the better a lane the more (stride scheduling), in runs of 16
/// packets at most: a run ends where the owner has nothing more to send. The packets of a block are
/// spread so that a lane's death leaves as many as decode it, where its parities allow
/// ([`Lanes::choose_in_block`]). A lane is *suspect*, and
/// gets none for the moment, when others are known to have let packets through for
/// [`SUSPECT_AFTER`] round trips since it last did; after [`LEFT_AFTER`] more it is *left*. It is
/// also left when it loses 5 % more than one like the best, or its round trip is half as long again
/// and 10 ms longer. It returns when nothing spoke against it for 16 round trips, and twice as many
/// each time that it had to be left again soon, up to 64 times. If no lane is any good, all are
/// used: at least one always is.
///
/// # Driver contract
/// [`Lanes::sent`] for every packet number used, in order by lane; [`Lanes::end_run`] when there is
/// nothing more to send for now; [`Lanes::handle_report`] for every PATH packet that does not tell
/// of numbers never used. A probe is to be sent on a lane every [`Lanes::probing`]. Call
/// [`Lanes::handle_timeout`] at [`Lanes::next_timeout`].
///
/// # Bounds
/// As many lanes as it was made with, [`MOST_LANES`] at most; constant work per packet, linear in
/// the lanes per run and per report. Some 130 bytes for each stream that has blocks.
#[derive(Clone, Debug)]
pub struct Lanes {
    lanes: Vec<Lane>,
    spread: Spread,
    current: usize,
    /// Packets that the current lane still takes.
    run: u32,
    /// Whose turn it is among packets of the gateway's own.
    turn: u32,
    judged: Instant,
    /// A lane in use was in doubt then.
    in_doubt: bool,
}

#[derive(Clone, Debug)]
struct Lane {
    health: Health,
    usable: bool,
    weight: f64,
    /// The owner's factor to the weight.
    share: f64,
    /// Virtual time at which its next run is due.
    pass: f64,
}

impl Lanes {
    /// All in use. Without a measurement, each has this round-trip time.
    #[must_use]
    pub fn new(count: u8, rtt: Duration, now: Instant) -> Self {
        let lane = Lane { health: Health::new(rtt, now), usable: true, weight: 1.0, share: 1.0, pass: 0.0 };
        let lanes = vec![lane; usize::from(count.clamp(1, MOST_LANES))];
        Self { lanes, spread: Spread::default(), current: 0, run: 0, turn: 0, judged: now, in_doubt: false }
    }

    /// Returns true if there is a choice.
    #[must_use]
    pub fn are_several(&self) -> bool {
        self.lanes.len() > 1
    }

    /// The lane that the next packet takes, of those that `may`. None if none of those in use may.
    pub fn choose(&mut self, may: impl Fn(LaneId) -> bool) -> Option<LaneId> {
        let fits = |(index, lane): (usize, &Lane)| lane.usable && may(id(index));
        let goes_on =
            self.run > 0 && self.lanes.get(self.current).is_some_and(|lane| fits((self.current, lane)));
        if !goes_on {
            let lanes = self.lanes.iter().enumerate().filter(|lane| fits(*lane));
            let (index, chosen) = lanes.min_by(|(_, a), (_, b)| a.pass.total_cmp(&b.pass))?;
            (self.current, self.run) = (index, RUN);
            let pass = chosen.pass;
            for (index, lane) in self.lanes.iter_mut().enumerate() {
                // Who cannot take its turn has no claim to what goes elsewhere meanwhile.
                if !fits((index, &*lane)) {
                    lane.pass = lane.pass.max(pass);
                }
            }
        }
        Some(id(self.current))
    }

    /// The lane that the next packet of a stream's block takes, of those that `may`. None if none
    /// of those in use may.
    ///
    /// Rule: `docs/protocol.md#rule-spread`.
    pub fn choose_in_block(
        &mut self,
        stream: StreamId,
        place: &InBlock,
        may: impl Fn(LaneId) -> bool,
    ) -> Option<LaneId> {
        if !self.are_several() {
            return self.choose(may);
        }
        let fits = |index: usize, lane: &Lane| lane.usable && may(id(index));
        self.spread.choose(stream, place, &mut self.lanes, fits).map(id)
    }

    /// Returns true if a packet that could take any lane may leave, of those that `may`.
    pub fn may_any(&self, may: impl Fn(LaneId) -> bool) -> bool {
        self.lanes.iter().enumerate().any(|(index, lane)| lane.usable && may(id(index)))
    }

    /// There is nothing more to send for now: what comes next begins a run.
    pub fn end_run(&mut self) {
        self.run = 0;
        self.spread.pause();
    }

    /// The lane that the next packet of the gateway's own takes, of those that `may` if there are
    /// any: another one than the last, mostly, so that a lane that died unnoticed takes only some
    /// of them.
    pub fn rotate(&mut self, may: impl Fn(LaneId) -> bool) -> LaneId {
        if !self.are_several() {
            return LaneId::default();
        }
        let may_any = self.may_any(&may);
        let fits = |index: usize, lane: &Lane| lane.usable && (!may_any || may(id(index)));
        let usable = || self.lanes.iter().enumerate().filter(|(index, lane)| fits(*index, lane));
        self.turn = self.turn.wrapping_add(TURN);
        let nth = (u64::from(self.turn) * usable().count() as u64) >> u32::BITS;
        usable().nth(nth as usize).map(|(index, _)| id(index)).unwrap_or_default()
    }

    /// A packet was sent on this lane; `asks`: the peer's observer reports on it.
    pub fn sent(&mut self, lane: LaneId, asks: bool, now: Instant) {
        let index = usize::from(lane.0);
        if !self.are_several() {
            return;
        }
        if index == self.current {
            self.run = self.run.saturating_sub(1);
        }
        if let Some(lane) = self.lanes.get_mut(index) {
            lane.pass += 1.0 / lane.part();
            lane.health.sent(asks, now);
        }
    }

    /// So many packets, sent or about to be, may get lost for what they are; and so many of such
    /// did not.
    pub fn exclude(&mut self, lane: LaneId, sent: u64, arrived: u64) {
        if let Some(lane) = self.lanes.get_mut(usize::from(lane.0)) {
            lane.health.exclude(sent);
            lane.health.include(arrived);
        }
    }

    /// A report on a lane, whose round-trip time is this. Whether another set of lanes is to be
    /// used.
    pub fn handle_report(&mut self, report: &PathReport, rtt: Duration, now: Instant) -> bool {
        let index = usize::from(report.lane.0);
        let others = self.heard().of_others(index);
        let Some(lane) = self.lanes.get_mut(index) else { return false };
        lane.health.handle_report(report, rtt, others, now);
        self.judge(now)
    }

    /// Sets how much of what may be sent this lane can take, compared to the others.
    pub fn set_share(&mut self, lane: LaneId, share: f64) {
        if let Some(lane) = self.lanes.get_mut(usize::from(lane.0)) {
            lane.share = share.max(1.0);
        }
    }

    /// Returns true if packets that could take another lane may take this one.
    #[must_use]
    pub fn is_usable(&self, lane: LaneId) -> bool {
        self.lanes.get(usize::from(lane.0)).is_some_and(|lane| lane.usable)
    }

    /// How often this lane is to be probed while nothing else is sent on it, if more often than
    /// usual.
    #[must_use]
    pub fn probing(&self, lane: LaneId) -> Option<Duration> {
        let Lane { health, .. } = self.lanes.get(usize::from(lane.0))?;
        if health.left.is_some() {
            return Some(health.rare_probing(self.judged));
        }
        // All of them: what is to be told is whether others are heard of.
        self.in_doubt.then(|| health.trip() / 2)
    }

    /// How it stands.
    #[must_use]
    pub fn state(&self, lane: LaneId) -> State {
        let part = |lane: &Lane| if lane.usable { lane.part() } else { 0.0 };
        let all: f64 = self.lanes.iter().map(part).sum();
        self.lanes.get(usize::from(lane.0)).map_or_else(State::default, |lane| State {
            left: lane.health.left.map(|left| left.cause),
            usable: lane.usable,
            share: part(lane) / all,
            leaves: lane.health.leaves,
        })
    }

    /// When to call [`Lanes::handle_timeout`].
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        if !self.are_several() {
            return None;
        }
        let times = |Lane { health, .. }: &Lane| [health.doubtful_from(), health.left_at(), health.returns()];
        self.lanes.iter().flat_map(times).flatten().filter(|at| *at > self.judged).min()
    }

    /// Returns true if another set of lanes is to be used.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        self.next_timeout().is_some_and(|at| at <= now) && self.judge(now)
    }

    fn judge(&mut self, now: Instant) -> bool {
        if !self.are_several() {
            return false;
        }
        self.judged = now;
        let heard = self.heard();
        for (index, Lane { health, .. }) in self.lanes.iter_mut().enumerate() {
            health.doubt(heard.of_others(index), now);
        }
        let best = self.best();
        let count = |lanes: &[Lane], test: fn(&Lane) -> bool| lanes.iter().filter(|lane| test(lane)).count();
        let mut good = count(&self.lanes, Lane::is_good);
        let alive = count(&self.lanes, Lane::is_alive);
        for lane in &mut self.lanes {
            let was_good = lane.is_good();
            let (better, others) = (good > usize::from(was_good), alive > usize::from(lane.is_alive()));
            if lane.health.left.is_some() {
                lane.health.try_to_return(&best, now);
            } else if let Some(cause) = lane.health.fault(&best, now)
                && (better || others && cause == Cause::Silent)
            {
                lane.health.leave(cause, now);
            }
            good = good + usize::from(lane.is_good()) - usize::from(was_good);
        }
        let in_use = self.lanes.iter().filter(|lane| lane.health.left.is_none());
        self.in_doubt = in_use.filter_map(|lane| lane.health.doubtful_from()).any(|from| from <= now);
        self.settle(&best)
    }

    /// When lanes were last heard of.
    fn heard(&self) -> Heard {
        let mut heard = Heard::default();
        for (index, at) in
            self.lanes.iter().enumerate().filter_map(|(index, lane)| Some((index, lane.health.heard?)))
        {
            if heard.last.is_none_or(|(_, last)| at > last) {
                heard.before = heard.last.replace((index, at)).map(|(_, last)| last);
            } else {
                heard.before = heard.before.max(Some(at));
            }
        }
        heard
    }

    /// Returns the best values among the good lanes; among all if there are none.
    fn best(&self) -> Best {
        let any = self.lanes.iter().any(Lane::is_good);
        let judges = || self.lanes.iter().filter(|lane| !any || lane.is_good()).map(|lane| &lane.health);
        Best {
            loss: judges().filter_map(Health::loss).min_by(f64::total_cmp),
            rtt: judges().map(|health| health.rtt).min().unwrap_or_default(),
        }
    }

    /// Which are used from now on, and how much; whether that are others than before.
    fn settle(&mut self, best: &Best) -> bool {
        let any_good = self.lanes.iter().any(Lane::is_good);
        let any_alive = self.lanes.iter().any(Lane::is_alive);
        let mut changed = false;
        for lane in &mut self.lanes {
            // A bad one is better than a dead one.
            let usable = if any_good { lane.is_good() } else { !any_alive || lane.is_alive() };
            changed |= usable != lane.usable;
            lane.usable = usable;
            lane.weight = lane.health.weight(best);
        }
        changed
    }
}

/// The lane heard of last, and when another one was before.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    last: Option<(usize, Instant)>,
    before: Option<Instant>,
}

impl Heard {
    /// When any other lane was last heard of.
    fn of_others(&self, lane: usize) -> Option<Instant> {
        self.last.filter(|(last, _)| *last != lane).map_or(self.before, |(_, at)| Some(at))
    }
}

impl Lane {
    /// Its part of what is sent, as far as it compares to others'.
    fn part(&self) -> f64 {
        self.weight * self.share
    }

    /// In use, and not suspect.
    fn is_good(&self) -> bool {
        self.health.left.is_none() && self.is_alive()
    }

    /// Not suspect, whatever it was left for.
    fn is_alive(&self) -> bool {
        self.health.suspect.is_none()
    }
}

fn id(index: usize) -> LaneId {
    LaneId(index as u16)
}

#[cfg(test)]
mod tests;
