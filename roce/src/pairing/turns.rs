//! Flows that wait for their requester to be known, and whose turn it is to ask.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::patience::Patience;
use super::windows::{Fit, Heard, Overlap, Question, Repeat, State, Windows};
use super::{Event, FlowKey, Hosts, Span, Word};
use crate::wire::{Psn, Qpn};

/// Queued flows looked at when a window falls free: those at the front may want other PSNs than
/// have.
const SCAN: usize = 8;
/// Packets that two hosts' questions may have out before each asks with one. Whatever stands before
/// a host that is busy is waited for by all that ask there, and of its answers one is enough.
const MOST_OUT: u32 = 64;
/// So many flows that have had no turn go before one that has had some in vain, while any of either
/// wait.
const STREAK: u32 = 16;
/// A flow that was answered before goes before all others that have had turns in vain, until it has
/// had so many itself.
const ANSWERED_TURNS: u8 = 3;
/// An answer that comes as many times later as its host's answers may take is another one.
const LATEST_ECHO: u32 = 3;
/// The longest rest after a turn in vain.
const MOST_REST: Duration = Duration::from_secs(1);

/// The flows that wait, and the questions that are out.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Turns {
    waits: BTreeMap<FlowKey, Wait>,
    pairs: BTreeMap<Hosts, Pair>,
    /// When the question in this window of these hosts is to be looked at.
    #[serde_as(as = "BTreeSet<(snapshot::At, _, _)>")]
    ends: BTreeSet<(Instant, Hosts, u32)>,
    #[serde_as(as = "BTreeSet<(snapshot::At, _)>")]
    rests: BTreeSet<(Instant, FlowKey)>,
    /// When a flow's question is repeated. One for each question at most; those of questions that
    /// are answered are struck out when they are due.
    #[serde_as(as = "BTreeSet<(snapshot::At, _)>")]
    repeats: BTreeSet<(Instant, FlowKey)>,
    patience: Patience,
    /// The last flow of each host that was answered after turns in vain. Bound: as many hosts as
    /// `patience` times; for one more that of another is forgotten.
    #[serde(skip)]
    echoes: BTreeMap<IpAddr, Echo>,
    /// The next place in a queue.
    ticket: u64,
    /// Questions whose flows are gone.
    ghosts: usize,
}

/// A question that was answered after turns in vain: its last asking, or an earlier one. If the
/// host is slow, the answer to the last one is still to come.
#[derive(Clone, Copy, Debug)]
struct Echo {
    flow: FlowKey,
    span: Span,
    asked: Instant,
}

/// A flow that may not send before it has a turn.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Wait {
    /// Turns that it has had in vain. One that was answered before begins with one.
    vain: u8,
    /// It was answered before.
    #[serde(skip)]
    is_answered: bool,
    /// In its next turn nobody else is to ask: what it heard may have been another target's word.
    wants_alone: bool,
    stage: Stage,
    /// Where the window of its question begins: of the one that is open, or of one in vain whose
    /// place nobody has wanted.
    window: Option<u32>,
}

#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
enum Stage {
    /// It has nothing to ask.
    Idle,
    Queued {
        ticket: u64,
        span: Span,
    },
    /// It has the turn.
    Asking,
    /// A turn was in vain; it queues up again then.
    Resting(#[serde_as(as = "snapshot::At")] Instant),
}

impl Wait {
    fn new(is_answered: bool) -> Wait {
        let vain = u8::from(is_answered);
        Wait { vain, is_answered, wants_alone: false, stage: Stage::Idle, window: None }
    }

    /// How long it rests after a turn in vain: as long as that after its first, twice as long each
    /// time after that.
    fn rest(&self, patience: Duration) -> Duration {
        let before = self.vain.saturating_sub(1 + u8::from(self.is_answered));
        (patience * (1 << before.min(16))).min(MOST_REST)
    }

    /// Place among those that have had turns in vain.
    fn rank(&self) -> u8 {
        if self.is_answered && self.vain <= ANSWERED_TURNS { 0 } else { self.vain }
    }
}

/// An ordered pair of hosts with flows that wait.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
struct Pair {
    windows: Windows,
    /// Flows that have had no turn.
    fresh: BTreeMap<u64, FlowKey>,
    /// Flows that have had turns in vain, those with the least [`Wait::rank`] first.
    tried: BTreeMap<(u8, u64), FlowKey>,
    /// Turns of fresh flows since one of the others had one.
    streak: u32,
}

impl Pair {
    fn is_empty(&self) -> bool {
        self.windows.is_empty() && self.fresh.is_empty() && self.tried.is_empty()
    }

    /// The flow is queued no more. In a snapshot it does not say that it was answered before.
    fn remove(&mut self, wait: &Wait, ticket: u64) {
        self.fresh.remove(&ticket);
        for rank in [0, wait.vain] {
            self.tried.remove(&(rank, ticket));
        }
    }

    /// The flows at the front, in the order of their turns.
    fn front(&self) -> impl Iterator<Item = FlowKey> + '_ {
        let due = usize::from(self.streak >= STREAK);
        let (first, then) = (self.tried.values().take(due), self.tried.values().skip(due));
        first.chain(self.fresh.values()).chain(then).copied().take(SCAN)
    }
}

impl Turns {
    pub(super) fn new(hosts: usize) -> Turns {
        Turns {
            waits: BTreeMap::new(),
            pairs: BTreeMap::new(),
            ends: BTreeSet::new(),
            rests: BTreeSet::new(),
            repeats: BTreeSet::new(),
            patience: Patience::new(hosts),
            echoes: BTreeMap::new(),
            ticket: 0,
            ghosts: 0,
        }
    }

    pub(super) fn ghosts(&self) -> usize {
        self.ghosts
    }

    pub(super) fn len(&self) -> usize {
        self.waits.len()
    }

    pub(super) fn contains(&self, flow: &FlowKey) -> bool {
        self.waits.contains_key(flow)
    }

    /// Returns true if a flow of these hosts waits.
    pub(super) fn has_waiting(&self, hosts: Hosts) -> bool {
        let Hosts { requester, target } = hosts;
        let of = |qpn| FlowKey { requester, target, target_qpn: Qpn::new(qpn) };
        let mut waits = self.waits.range(of(0)..=of(0xff_ffff));
        waits
            .any(|(_, wait)| !wait.is_answered || wait.window.is_some() || !matches!(wait.stage, Stage::Idle))
    }

    /// The flows between these hosts that have asked something which may still be answered.
    pub(super) fn out(&self, hosts: Hosts) -> impl Iterator<Item = FlowKey> + '_ {
        let windows = self.pairs.get(&hosts).map(|pair| &pair.windows);
        windows.into_iter().flat_map(Windows::out_flows)
    }

    /// How long an answer of this target's host may take.
    pub(super) fn patience(&self, hosts: Hosts, now: Instant) -> Duration {
        self.patience.of(hosts.target, now)
    }

    /// The flow waits from now on.
    pub(super) fn insert(&mut self, flow: FlowKey) {
        self.waits.entry(flow).or_insert(Wait::new(false));
    }

    /// The flow, which was answered before, waits from now on. Others that begin go before it.
    pub(super) fn insert_answered(&mut self, flow: FlowKey) {
        self.waits.entry(flow).or_insert(Wait::new(true));
    }

    /// Puts what a snapshot has no order of in order.
    pub(super) fn order(&mut self) {
        self.patience.order();
        // A snapshot tells no more than where the questions lie.
        for question in self.pairs.values_mut().flat_map(|pair| pair.windows.iter_mut()) {
            if question.sent.is_some() {
                question.asked.add(&question.span);
            }
        }
    }

    /// A flow that has asked nothing yet is to wait until then.
    pub(super) fn rest(&mut self, flow: &FlowKey, until: Instant) {
        if let Some(wait) = self.waits.get_mut(flow).filter(|wait| matches!(wait.stage, Stage::Idle)) {
            wait.stage = Stage::Resting(until);
            self.rests.insert((until, *flow));
        }
    }

    /// Returns true if the flow may send these PSNs now, which it then does. Otherwise it is
    /// queued.
    pub(super) fn may_send(
        &mut self,
        flow: &FlowKey,
        span: &Span,
        now: Instant,
        events: &mut VecDeque<Event>,
    ) -> bool {
        let Some(wait) = self.waits.get_mut(flow) else { return true };
        match wait.stage {
            Stage::Resting(_) => return false,
            Stage::Queued { ticket, .. } => {
                wait.stage = Stage::Queued { ticket, span: *span };
                return false;
            }
            Stage::Asking => {}
            Stage::Idle => {
                self.queue(flow, *span);
                self.grant(flow.hosts(), Some(flow), now, events);
            }
        }
        self.ask(flow, span, now)
    }

    /// The flow, whose turn it is, sends these PSNs, unless they are another question's, or the
    /// turn is over.
    fn ask(&mut self, flow: &FlowKey, span: &Span, now: Instant) -> bool {
        let hosts = flow.hosts();
        let patience = self.patience(hosts, now);
        let Some(wait) = self.waits.get(flow).filter(|wait| matches!(wait.stage, Stage::Asking)) else {
            return false;
        };
        let (Some(at), Some(pair)) = (wait.window, self.pairs.get_mut(&hosts)) else { return false };
        let question = pair.windows.get_mut(at);
        let open = question.filter(|question| matches!(question.state, State::Open(until) if now < until));
        let Some(is_first) = open.map(|question| question.out == 0) else { return false };
        if !is_first && pair.windows.out() >= MOST_OUT {
            return false;
        }
        let widened = loop {
            match pair.windows.widen(at, span) {
                Err(Overlap::Lapsed(other, from)) => evict(&mut self.waits, pair, &other, from),
                Err(Overlap::Open) => return false,
                Ok(widened) => break widened,
            }
        };
        if let Some(wait) = self.waits.get_mut(flow) {
            wait.window = Some(widened);
        }
        let Some(question) = pair.windows.get_mut(widened) else { return false };
        let State::Open(until) = question.state else { return false };
        if widened != at {
            self.ends.remove(&(until, hosts, at));
            self.ends.insert((until, hosts, widened));
        }
        let first = question.sent.map_or(now, |(first, _)| first);
        question.sent = Some((first, now));
        question.asks = question.asks.wrapping_add(1);
        question.asked.add(span);
        question.out += 1;
        question.patience = patience.max(question.patience);
        self.await_repeat(flow, now);
        true
    }

    /// The flow has asked. If its target's host has answered others by now, the question is
    /// repeated after twice the time that took, and after twice as long again each time, within a
    /// fourth of the turn. So a packet that the LAN loses costs no turn, and a dead target's turn
    /// is longer by a fourth at most.
    fn await_repeat(&mut self, flow: &FlowKey, now: Instant) {
        let usual = self.patience.usual(flow.target);
        let Some(question) = question_of(&self.waits, &mut self.pairs, flow) else { return };
        let after = match question.repeat {
            // All that is asked together is repeated together.
            Repeat::At(at, _) if at > now => return,
            Repeat::Over => return,
            Repeat::At(_, after) => Some(after),
            Repeat::None => usual,
        };
        let most = question.since + question.patience / 4;
        question.repeat = match after {
            Some(after) if now + after < most => Repeat::At(now + after, after * 2),
            _ => Repeat::Over,
        };
        if let Repeat::At(at, _) = question.repeat {
            self.repeats.insert((at, *flow));
        }
    }

    fn queue(&mut self, flow: &FlowKey, span: Span) {
        let Some(wait) = self.waits.get_mut(flow) else { return };
        let ticket = self.ticket;
        self.ticket += 1;
        wait.stage = Stage::Queued { ticket, span };
        let pair = self.pairs.entry(flow.hosts()).or_default();
        if wait.vain == 0 {
            pair.fresh.insert(ticket, *flow);
        } else {
            pair.tried.insert((wait.rank(), ticket), *flow);
        }
    }

    /// Gives turns to those at the front whose windows overlap none that is open, and says so, but
    /// to the one who asks.
    fn grant(&mut self, hosts: Hosts, asks: Option<&FlowKey>, now: Instant, events: &mut VecDeque<Event>) {
        let patience = self.patience(hosts, now);
        while let Some(pair) = self.pairs.get_mut(&hosts) {
            let mut front: Vec<_> = pair.front().collect();
            // Those behind one that is to ask alone wait until it has.
            let wants_alone = |flow: &FlowKey| self.waits.get(flow).is_some_and(|wait| wait.wants_alone);
            let first_alone = front.iter().position(wants_alone);
            front.truncate(first_alone.map_or(front.len(), |at| at + 1));
            let granted = front.into_iter().find(|flow| open(&mut self.waits, pair, flow, now, patience));
            let Some(flow) = granted else { break };
            if let Some(at) = self.waits.get(&flow).and_then(|wait| wait.window) {
                self.ends.insert((now + patience, hosts, at));
            }
            if asks != Some(&flow) {
                events.push_back(Event::Turn(flow));
            }
        }
        if self.pairs.get(&hosts).is_some_and(Pair::is_empty) {
            self.pairs.remove(&hosts);
        }
    }

    /// The flow has the turn and nothing to ask.
    pub(super) fn pass(&mut self, flow: &FlowKey, now: Instant, events: &mut VecDeque<Event>) {
        let hosts = flow.hosts();
        let Some(wait) = self.waits.get_mut(flow).filter(|wait| matches!(wait.stage, Stage::Asking)) else {
            return;
        };
        let (Some(at), Some(pair)) = (wait.window, self.pairs.get_mut(&hosts)) else { return };
        let Some(question) = pair.windows.get_mut(at).filter(|question| !question.has_asked()) else {
            return;
        };
        if let State::Open(until) = question.state {
            self.ends.remove(&(until, hosts, at));
        }
        lay_down(wait, &mut pair.windows, at);
        self.grant(hosts, None, now, events);
    }

    /// The flow whose question this may answer, or `Gone` if that flow is.
    pub(super) fn asker(&self, hosts: Hosts, psn: Psn, word: Word) -> Asker {
        let question = self.pairs.get(&hosts).and_then(|pair| pair.windows.asker(psn, word));
        match question {
            None => Asker::Nobody,
            Some((Question { sent: None, .. }, _)) => Asker::Nobody,
            Some((Question { state: State::Ghost(_), .. }, _)) => Asker::Gone,
            Some((question, fit)) => Asker::Flow(question.flow, fit),
        }
    }

    /// Returns whether another flow of these hosts has asked something that may still be answered.
    /// If its target stands elsewhere, its answer may have any PSN.
    pub(super) fn do_others_ask(&self, flow: &FlowKey) -> bool {
        let own = self.waits.get(flow).and_then(|wait| wait.window);
        self.pairs.get(&flow.hosts()).is_some_and(|pair| pair.windows.has_asked(own))
    }

    /// The flow was answered by what does not prove enough by itself. It does if the flow has been
    /// asked again since the same was said before, and once at least nothing was out that may have
    /// been answered so ([`Heard::is_its`]): a target that stands elsewhere than it is asked about
    /// says the same each time.
    /// To be asked again, the flow keeps its turn once for as long as the next answer may take.
    pub(super) fn weigh(&mut self, flow: &FlowKey, heard: Heard, now: Instant) -> Weight {
        let (hosts, patience) = (flow.hosts(), self.patience(flow.hosts(), now));
        let Some(wait) = self.waits.get_mut(flow) else { return Weight::AskAgain };
        let Some(at) = wait.window else { return Weight::AskAgain };
        let question = self.pairs.get_mut(&hosts).and_then(|pair| pair.windows.get_mut(at));
        let Some(question) = question else { return Weight::AskAgain };
        let heard = Heard { asks: question.asks, ..heard };
        if let Some(before) = question.heard.filter(|before| before.says(&heard)) {
            if before.asks == question.asks {
                return Weight::AskAgain;
            }
            if heard.is_its() || before.is_its() {
                return Weight::Enough;
            }
            wait.wants_alone = true;
            return Weight::AskAlone;
        }
        (question.heard, question.out) = (Some(heard), 0);
        let (State::Open(until) | State::Ending(until)) = question.state else { return Weight::AskAgain };
        if !question.is_extended {
            question.is_extended = true;
            let later = until.max(now + patience);
            question.state = State::Open(later);
            self.ends.remove(&(until, hosts, at));
            self.ends.insert((later, hosts, at));
        }
        Weight::AskAgain
    }

    /// The flow's question is answered, but until then an earlier flow may be answered so, too. It
    /// asks again after that, and not behind those whose targets are silent.
    pub(super) fn veil(&mut self, flow: &FlowKey, late_until: Instant) {
        let hosts = flow.hosts();
        let Some(wait) = self.waits.get_mut(flow) else { return };
        if let Stage::Resting(at) = wait.stage
            && at > late_until
        {
            self.rests.remove(&(at, *flow));
            self.rests.insert((late_until, *flow));
            wait.stage = Stage::Resting(late_until);
        }
        let Some(at) = wait.window else { return };
        let question = self.pairs.get_mut(&hosts).and_then(|pair| pair.windows.get_mut(at));
        let Some(question) = question.filter(|question| question.has_asked()) else { return };
        let (State::Open(until) | State::Ending(until), Some((_, last))) = (question.state, question.sent)
        else {
            return;
        };
        let later = late_until.max(last + question.patience);
        question.state = State::Veiled(later);
        self.ends.remove(&(until, hosts, at));
        self.ends.insert((later, hosts, at));
    }

    /// The flow is answered, by its own question's answer (`heard`) or as connection management
    /// told: it waits no longer. True if it did.
    pub(super) fn settle(
        &mut self,
        flow: &FlowKey,
        heard: bool,
        now: Instant,
        events: &mut VecDeque<Event>,
    ) -> bool {
        let Some(wait) = self.leave(flow) else { return false };
        let removed = wait.window.and_then(|at| self.close(flow.hosts(), at));
        if let Some(question) = removed.filter(|_| heard)
            && let Some((first, last)) = question.sent
        {
            // An earlier turn's question is taken for lost, or its target was not there. An answer
            // that comes after a turn and before the next counts in full.
            let since = first.max(question.since);
            let is_clear = wait.vain == 0 && !question.is_repeated;
            self.patience.note(flow.target, now.saturating_duration_since(since), is_clear, now);
            if first < question.since {
                if self.echoes.len() >= self.patience.most() {
                    self.echoes.pop_first();
                }
                self.echoes.insert(flow.target, Echo { flow: *flow, span: question.span, asked: last });
            }
        }
        self.grant(flow.hosts(), None, now, events);
        true
    }

    /// The flow, whose requester is known, is answered with this PSN. That may be the late answer
    /// to what it asked last in its turn.
    #[inline]
    pub(super) fn hear_again(&mut self, flow: &FlowKey, psn: Psn, now: Instant) {
        if !self.echoes.is_empty() {
            self.hear_echo(flow, psn, now);
        }
    }

    fn hear_echo(&mut self, flow: &FlowKey, psn: Psn, now: Instant) {
        let Some(Echo { span, asked, .. }) =
            self.echoes.get(&flow.target).copied().filter(|echo| echo.flow == *flow)
        else {
            return;
        };
        let took = now.saturating_duration_since(asked);
        let is_over = took > LATEST_ECHO * self.patience(flow.hosts(), now);
        let is_it = psn.is_within(span.first, span.count);
        if !is_over && is_it {
            self.patience.note(flow.target, took, false, now);
        }
        if is_over || is_it {
            self.echoes.remove(&flow.target);
        }
    }

    /// The flow is given up unanswered: until its answer can come no more its question keeps its
    /// window.
    pub(super) fn give_up(&mut self, flow: &FlowKey, now: Instant, events: &mut VecDeque<Event>) -> bool {
        let Some(wait) = self.leave(flow) else { return false };
        let hosts = flow.hosts();
        if let Some(at) = wait.window
            && let Some(question) = self.close(hosts, at)
            && let Some((_, last)) = question.sent
            && last + question.patience > now
        {
            let until = last + question.patience;
            let ghost = Question { state: State::Ghost(until), ..question };
            let pair = self.pairs.entry(hosts).or_default();
            if pair.windows.insert(ghost).is_ok() {
                self.ends.insert((until, hosts, at));
                self.ghosts += 1;
            }
        }
        self.grant(hosts, None, now, events);
        true
    }

    fn leave(&mut self, flow: &FlowKey) -> Option<Wait> {
        let wait = self.waits.remove(flow)?;
        match wait.stage {
            Stage::Queued { ticket, .. } => {
                if let Some(pair) = self.pairs.get_mut(&flow.hosts()) {
                    pair.remove(&wait, ticket);
                }
            }
            Stage::Resting(at) => {
                self.rests.remove(&(at, *flow));
            }
            Stage::Idle | Stage::Asking => {}
        }
        Some(wait)
    }

    fn close(&mut self, hosts: Hosts, at: u32) -> Option<Question> {
        let question = self.pairs.get_mut(&hosts)?.windows.remove(at)?;
        if let Some(until) = question.state.until() {
            self.ends.remove(&(until, hosts, at));
        }
        Some(question)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let end = self.ends.first().map(|(at, ..)| *at);
        let [rest, repeat] = [&self.rests, &self.repeats].map(|times| times.first().map(|(at, _)| *at));
        end.into_iter().chain(rest).chain(repeat).min()
    }

    /// Ends turns and rests that are over.
    pub(super) fn handle_timeout(&mut self, now: Instant, events: &mut VecDeque<Event>) {
        while let Some((_, flow)) = self.rests.first().copied().filter(|(at, _)| *at <= now) {
            self.rests.pop_first();
            if let Some(wait) = self.waits.get_mut(&flow) {
                wait.stage = Stage::Idle;
                // It says what it wants to send when it is asked.
                events.push_back(Event::Turn(flow));
            }
        }
        while let Some((at, flow)) = self.repeats.first().copied().filter(|(at, _)| *at <= now) {
            self.repeats.pop_first();
            let question = question_of(&self.waits, &mut self.pairs, &flow);
            let is_due =
                |question: &&mut Question| matches!(question.repeat, Repeat::At(due, _) if due == at);
            let is_open = |question: &&mut Question| matches!(question.state, State::Open(_));
            if let Some(question) = question.filter(is_due).filter(is_open) {
                (question.is_repeated, question.out) = (true, 0);
                events.push_back(Event::Repeat(flow));
            }
        }
        while let Some((until, hosts, at)) = self.ends.first().copied().filter(|(until, ..)| *until <= now) {
            self.ends.pop_first();
            self.end(hosts, at, until, now, events);
            self.grant(hosts, None, now, events);
        }
    }

    /// The time of a question is over, unless it has asked something since.
    fn end(&mut self, hosts: Hosts, at: u32, until: Instant, now: Instant, events: &mut VecDeque<Event>) {
        let Some(pair) = self.pairs.get_mut(&hosts) else { return };
        let Some(question) = pair.windows.get_mut(at) else { return };
        let (flow, patience) = (question.flow, question.patience);
        if let State::Ghost(_) = question.state {
            pair.windows.remove(at);
            self.ghosts -= 1;
            return;
        }
        let Some(wait) = self.waits.get_mut(&flow) else { return };
        if !question.has_asked() {
            return lay_down(wait, &mut pair.windows, at);
        }
        if let Some((_, last)) = question.sent.filter(|(_, last)| *last + patience > until.max(now)) {
            question.state = State::Ending(last + patience);
            self.ends.insert((last + patience, hosts, at));
            return;
        }
        wait.wants_alone &= !question.is_alone;
        // It was answered, though another may have been just as well.
        let is_in_vain = !matches!(question.state, State::Veiled(_)) && !wait.wants_alone;
        question.state = State::Lapsed;
        wait.vain = wait.vain.saturating_add(u8::from(is_in_vain));
        let rest = if is_in_vain { wait.rest(patience) } else { Duration::ZERO };
        wait.stage = Stage::Resting(now + rest);
        self.rests.insert((now + rest, flow));
        events.push_back(Event::InVain(flow));
    }
}

/// The question of a flow that has the turn.
fn question_of<'a>(
    waits: &BTreeMap<FlowKey, Wait>,
    pairs: &'a mut BTreeMap<Hosts, Pair>,
    flow: &FlowKey,
) -> Option<&'a mut Question> {
    let wait = waits.get(flow).filter(|wait| matches!(wait.stage, Stage::Asking))?;
    pairs.get_mut(&flow.hosts())?.windows.get_mut(wait.window?)
}

/// Weight of an answer that is to be given once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// It has been.
    Enough,
    AskAgain,
    /// It has been, but each time another target may have given it: nobody else is to ask in the
    /// flow's next turn.
    AskAlone,
}

/// Whose question a response may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    Nobody,
    Gone,
    Flow(FlowKey, Fit),
}

/// A turn ends in which nothing was asked. What was asked in an earlier one may still be answered.
fn lay_down(wait: &mut Wait, windows: &mut Windows, at: u32) {
    wait.stage = Stage::Idle;
    match windows.get_mut(at) {
        Some(question) if question.sent.is_some() => question.state = State::Lapsed,
        _ => {
            windows.remove(at);
            wait.window = None;
        }
    }
}

/// Gives a queued flow its turn, unless its window would overlap one that is open.
fn open(
    waits: &mut BTreeMap<FlowKey, Wait>,
    pair: &mut Pair,
    flow: &FlowKey,
    now: Instant,
    patience: Duration,
) -> bool {
    let Some(wait) = waits.get(flow) else { return false };
    let Stage::Queued { ticket, span } = wait.stage else { return false };
    let (own, is_alone) = (wait.window, wait.wants_alone);
    if pair.windows.is_taken_alone() || is_alone && pair.windows.is_any_out(own) {
        return false;
    }
    let before = own.and_then(|at| pair.windows.remove(at));
    let question = Question { is_alone, ..Question::open(*flow, span, before.as_ref(), now, patience) };
    let opened = loop {
        match pair.windows.insert(question) {
            Err(Overlap::Lapsed(other, from)) => evict(waits, pair, &other, from),
            Err(Overlap::Open) => break None,
            Ok(at) => break Some(at),
        }
    };
    let Some(wait) = waits.get_mut(flow) else { return false };
    let Some(at) = opened else {
        wait.window = before.and_then(|before| pair.windows.insert(before).ok());
        return false;
    };
    (wait.stage, wait.window) = (Stage::Asking, Some(at));
    pair.remove(wait, ticket);
    pair.streak = if wait.vain == 0 { pair.streak.saturating_add(1) } else { 0 };
    true
}

/// Another flow's question takes the place of this one's, which was in vain.
fn evict(waits: &mut BTreeMap<FlowKey, Wait>, pair: &mut Pair, flow: &FlowKey, at: u32) {
    pair.windows.remove(at);
    if let Some(wait) = waits.get_mut(flow) {
        wait.window = None;
    }
}
