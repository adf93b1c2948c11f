//! Chooses the schemes of the classes whose policy says `auto`, beside the data plane: an
//! evaluation takes milliseconds.
//!
//! The data plane shows about ten times a second what it knows ([`PathSnapshot`]); twice a second a
//! [`Chooser`] weighs it, and what it chooses goes back as an order. [`thread`] drives it with real
//! clocks and channels; the logic itself has neither.

mod known;
mod named;
mod show;
mod spread;

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{Class, Policy};
use reliability::estimator::Summary;
use reliability::link::Link;
use reliability::model::Timers;
use reliability::selector::{self, Allowed, Bucket, Decision, Estimate, Load, Objective, Selector};
use reliability::stream::{Alternation, Scheme};
use splice::{Gateway, Sizes, Tuning, auto_flush};

use crate::cells::Cells;

pub(crate) use known::is_tight;
pub use known::{Missing, estimate_of};
pub use show::{Choice, scheme_name};

use named::Named;
use spread::Spread;

/// The data plane's knowledge at one time.
#[derive(Clone, Debug)]
pub struct PathSnapshot {
    /// The session's number; `None` while there is none.
    pub session: Option<u64>,
    /// The way to the peer as assumed, without losses.
    pub link: Link,
    /// As estimated.
    pub path: Option<Summary>,
    /// The policy in force.
    pub policy: Arc<Policy>,
    /// Where its classes are counted.
    pub cells: Arc<Cells>,
    /// Its classes in their order.
    pub classes: Vec<ClassSighting>,
}

/// A class's streams.
#[derive(Clone, Debug)]
pub struct ClassSighting {
    /// The schemes in force: of the prompt stream, of the bulk stream; `None` without a session.
    pub schemes: Option<[Scheme; 2]>,
    /// The messages sent in this session. Counts only grow, unless the class is another.
    pub sizes: Sizes,
    /// How their sources took turns in this session; likewise.
    pub alternation: Alternation,
    /// How long the peer waits for a packet that others have overtaken.
    pub reorder_time: Duration,
}

impl PathSnapshot {
    /// Before anything was seen, under a policy.
    pub fn nothing(policy: Arc<Policy>, cells: Arc<Cells>) -> Self {
        let link = Link::new(0, Duration::ZERO, 0.0, 1);
        Self { session: None, link, path: None, policy, cells, classes: Vec::new() }
    }

    /// Combines those of all data-plane threads; `None` of none, and while they do not agree:
    /// sessions and policies reach them one after the other.
    ///
    /// The way is the same for all, so it is told by whoever has sent the most lately: not by who
    /// has seen no change for the longest, perhaps since it is idle. The messages are everybody's.
    /// Of the schemes in force those are told which are not the first thread's, if there are any:
    /// so they are all set anew.
    pub fn of_all(threads: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut threads = threads.into_iter();
        let mut all = threads.next()?;
        for other in threads {
            if other.session != all.session || !Arc::ptr_eq(&other.policy, &all.policy) {
                return None;
            }
            let worth =
                |path: &Option<Summary>| path.as_ref().map(|path| worth(path.age, path.delivered_peak));
            if worth(&other.path) > worth(&all.path) {
                (all.path, all.link) = (other.path, other.link);
            }
            for (class, other) in all.classes.iter_mut().zip(other.classes) {
                for (sent, other) in class.sizes.iter_mut().zip(&other.sizes) {
                    sent.add(other);
                }
                class.alternation.add(other.alternation);
                class.reorder_time = class.reorder_time.max(other.reorder_time);
                if other.schemes != class.schemes {
                    class.schemes = other.schemes;
                }
            }
        }
        Some(all)
    }

    /// Takes what `core` knows, with its summary of the path.
    pub fn of(core: &Gateway, session: bool, path: Option<Summary>, cells: Arc<Cells>) -> Self {
        let class = |class: splice::ClassStats| {
            let splice::ClassStats { schemes, sizes, alternation, reorder_time, .. } = class;
            ClassSighting { schemes, sizes, alternation, reorder_time }
        };
        Self {
            session: session.then(|| core.sessions()),
            link: core.assumed_link(),
            path,
            policy: Arc::clone(core.policy()),
            cells,
            classes: core.classes().map(class).collect(),
        }
    }
}

/// How well a thread knows the path, to be compared with others: what is not stale goes before what
/// rests on more traffic. No age: it never heard of it.
pub fn worth(age: Option<Duration>, delivered_peak: f64) -> (bool, u64) {
    (age.is_some_and(|age| age <= STALE), delivered_peak as u64)
}

/// The streams of a class, in the order of [`ClassSighting::schemes`].
pub const STREAMS: [&str; 2] = ["prompt", "bulk"];

/// Every message of a prompt stream is small, an ACK mostly, and each of them completes a message
/// of the other direction: it is chosen for as what it is. With the bulk stream's scheme, which may
/// be a repetition for gigabytes, a lost ACK would cost what parity for the message had saved.
const PROMPT_SIZE: u64 = 64;

/// Estimates older than this choose nothing.
pub(crate) const STALE: Duration = Duration::from_secs(10);

/// Hints to `hybrid` are renewed when they have changed by this factor.
const NOTABLE: f64 = 1.25;

/// Chooses for all classes of a policy whose scheme is `auto`, and tells those of scheme `hybrid`
/// of the path. Where another policy is in force, a class with the name of a former one goes on
/// with what is known and chosen, unless it wants something else now.
///
/// # Driver contract
/// Call [`Chooser::step`] about twice a second with the newest sighting; `now` must not run
/// backwards. Give what it returns to [`Gateway::tune`], with the sighting's policy. What was lost
/// on the way it returns again: it goes by the schemes that the sighting shows in force.
///
/// # Bounds
/// Two [`Selector`]s' evaluations per class and step. A stream changes its scheme once per
/// [`selector::Config::dwell`] at most, but for the first choice of a session, which comes as soon
/// as enough is known and may be corrected after a fifth of that.
pub struct Chooser {
    /// With the timers that this session's streams begin with.
    config: selector::Config,
    session: Option<u64>,
    policy: Option<Arc<Policy>>,
    /// Those of the policy whose scheme is `auto`.
    classes: Vec<Auto>,
    /// Those whose scheme is `hybrid`.
    named: Vec<Named>,
}

/// A class.
struct Auto {
    index: usize,
    /// Something takes the prompt stream.
    prompts: bool,
    name: String,
    selector: Selector,
    spread: Spread,
    streams: [Stream; 2],
    /// Changes of either stream's scheme since the start.
    switches: u64,
    /// The hints on the path that the streams were last given.
    hints: Option<[f64; 2]>,
}

/// A stream of it, in this session.
#[derive(Clone, Debug, Default)]
struct Stream {
    /// The decision that is obeyed.
    decision: Option<Decision>,
    /// It has called for another scheme, and does not again before.
    rests_until: Option<Instant>,
    /// The scheme in force.
    scheme: Option<Scheme>,
    /// Since when, as seen here.
    since: Option<Instant>,
    /// Why there is no newer decision.
    missing: Option<Missing>,
}

impl Chooser {
    /// Before the first sighting. `config.timers` are the streams' own, and follow from the link.
    pub const fn new(config: selector::Config) -> Self {
        Self { config, session: None, policy: None, classes: Vec::new(), named: Vec::new() }
    }

    /// Weighs what is known: each class's index and what to set on its streams, where that is not
    /// so already.
    pub fn step(&mut self, sighting: &PathSnapshot, now: Instant) -> Vec<(usize, Tuning)> {
        if sighting.session != self.session {
            self.session = sighting.session;
            self.config.timers.flush = auto_flush(&sighting.link);
            for class in &mut self.classes {
                class.begin_session(self.config);
            }
            self.named.iter_mut().for_each(Named::begin_session);
        }
        if self.policy.as_ref().is_none_or(|policy| !Arc::ptr_eq(policy, &sighting.policy)) {
            self.adopt(&sighting.policy);
        }
        let estimate = known::estimate(sighting);
        let config = self.config;
        let step = |class: &mut Auto| {
            let seen = sighting.classes.get(class.index)?;
            class.selector.set_timers(Timers { reorder_time: seen.reorder_time, ..config.timers });
            let tuning = class.step(seen, estimate, &config, now)?;
            Some((class.index, tuning))
        };
        let named = self.named.iter_mut().filter_map(|class| class.step(&sighting.classes, estimate.ok()));
        self.classes.iter_mut().filter_map(step).chain(named).collect()
    }

    fn adopt(&mut self, policy: &Arc<Policy>) {
        let mut former = std::mem::take(&mut self.classes);
        let is_auto = |class: &Class| matches!(class.scheme, config::Scheme::Auto(_));
        for (index, class) in policy.classes().iter().enumerate().filter(|(_, class)| is_auto(class)) {
            let known = former.iter().position(|auto| auto.name == class.name);
            let mut auto = known.map_or_else(|| Auto::new(class, self.config), |at| former.swap_remove(at));
            auto.index = index;
            auto.prompts = policy.takes_empty(index);
            // An order under the former policy may have come too late, and a class that is new
            // begins without hints.
            auto.hints = None;
            auto.want(objective(class), self.config);
            self.classes.push(auto);
        }
        // Whose streams begin without hints, if another class or another scheme had them before.
        self.named = Named::all(policy);
        self.policy = Some(Arc::clone(policy));
    }

    /// How often the class at this index has changed the scheme of one of its streams since the
    /// start.
    pub fn switches(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.classes.iter().map(|class| (class.index, class.switches))
    }

    /// Returns the choices, and why they were made.
    pub fn choices(&self) -> impl Iterator<Item = Choice> + '_ {
        self.classes.iter().flat_map(Auto::choices)
    }
}

impl Auto {
    fn new(class: &Class, config: selector::Config) -> Self {
        Self {
            index: 0,
            prompts: true,
            name: class.name.clone(),
            selector: Selector::new(objective(class), config),
            spread: Spread::default(),
            streams: Default::default(),
            switches: 0,
            hints: None,
        }
    }

    /// The streams begin anew, with what the core begins with, and the estimates as well.
    fn begin_session(&mut self, config: selector::Config) {
        self.selector = Selector::new(*self.selector.objective(), config);
        self.spread = Spread::default();
        self.streams = Default::default();
        self.hints = None;
    }

    /// The class wants this from now on. If that is something else than before, it is chosen anew;
    /// what messages it sends is known.
    fn want(&mut self, objective: Objective, config: selector::Config) {
        if *self.selector.objective() != objective {
            self.selector = Selector::new(objective, config);
            self.streams = Default::default();
            self.hints = None;
        }
    }

    fn step(
        &mut self,
        seen: &ClassSighting,
        estimate: Result<Estimate, Missing>,
        config: &selector::Config,
        now: Instant,
    ) -> Option<Tuning> {
        self.spread.follow(&seen.sizes, seen.alternation, config.dwell, now);
        // What is prompt waits for nothing.
        let prompt = (Bucket::of(PROMPT_SIZE), Load::default());
        let bulk = self.spread.bucket().map(|bucket| (bucket, self.spread.load(bucket)));
        let messages = [Some(prompt), bulk];
        for (index, messages) in messages.into_iter().enumerate().skip(usize::from(!self.prompts)) {
            let in_force = seen.schemes.and_then(|schemes| schemes.get(index).copied());
            self.decide(index, messages, in_force, estimate, config, now);
        }
        let estimate = estimate.ok()?;
        let [prompt_now, bulk_now] = seen.schemes?;
        let [prompt, bulk] = &self.streams;
        let wanted = |stream: &Stream, in_force| {
            stream.decision.as_ref().map_or(in_force, |decision| decision.chosen.candidate.scheme())
        };
        // Rather too much parity than too little, while the rate is not known well.
        let tuning = Tuning {
            prompt: wanted(prompt, prompt_now),
            bulk: wanted(bulk, bulk_now),
            drop: estimate.drop_high,
            burst: estimate.link.burst(),
        };
        let hints = [tuning.drop, tuning.burst];
        let is_news = self.hints.is_none_or(|told| differ(told, hints));
        if [tuning.prompt, tuning.bulk] == [prompt_now, bulk_now] && !is_news {
            return None;
        }
        self.hints = Some(hints);
        Some(tuning)
    }

    /// Brings a stream's decision up to date.
    fn decide(
        &mut self,
        index: usize,
        messages: Option<(Bucket, Load)>,
        in_force: Option<Scheme>,
        estimate: Result<Estimate, Missing>,
        config: &selector::Config,
        now: Instant,
    ) {
        let Some(stream) = self.streams.get_mut(index) else { return };
        stream.see(in_force, now);
        let question = estimate.and_then(|estimate| Ok((estimate, messages.ok_or(Missing::Messages)?)));
        stream.missing = question.err();
        let Ok((estimate, (bucket, load))) = question else { return };
        let decision = self.selector.evaluate(bucket, &load, &estimate, now);
        let obeyed = stream.decision.as_ref();
        if obeyed.is_some_and(|obeyed| (obeyed.at, obeyed.bucket) == (decision.at, decision.bucket)) {
            return;
        }
        let was = obeyed.map(|obeyed| obeyed.chosen.candidate.scheme()).or(in_force);
        let changes = was != Some(decision.chosen.candidate.scheme());
        if changes && stream.rests_until.is_some_and(|until| now < until) {
            return;
        }
        show::log(&self.name, STREAMS.get(index).copied().unwrap_or_default(), was, decision);
        if changes {
            stream.rests_until = Some(now + config.rest(obeyed.is_none()));
            self.switches += 1;
        }
        stream.decision = Some(decision.clone());
    }

    fn choices(&self) -> impl Iterator<Item = Choice> + '_ {
        let choice = |(name, stream): (&'static str, &Stream)| Choice {
            class: self.name.clone(),
            stream: name,
            objective: *self.selector.objective(),
            scheme: stream.scheme,
            since: stream.since,
            decision: stream.decision.clone(),
            missing: stream.missing,
        };
        STREAMS.into_iter().zip(&self.streams).skip(usize::from(!self.prompts)).map(choice)
    }
}

impl Stream {
    fn see(&mut self, in_force: Option<Scheme>, now: Instant) {
        if in_force != self.scheme {
            self.scheme = in_force;
            self.since = in_force.map(|_| now);
        }
    }
}

/// Returns true if hints have changed so much that `hybrid` should know.
fn differ(told: [f64; 2], hints: [f64; 2]) -> bool {
    told.into_iter().zip(hints).any(|(told, hint)| {
        let (less, more) = if told < hint { (told, hint) } else { (hint, told) };
        more > less * NOTABLE
    })
}

fn objective(class: &Class) -> Objective {
    let Class { percentile, max_overhead, scheme, .. } = class;
    let allowed = allowed(scheme);
    Objective { percentile: *percentile, max_overhead: *max_overhead, max_block: u8::MAX, allowed }
}

/// Returns the schemes that may be chosen for a class, or instead of its scheme.
pub fn allowed(scheme: &config::Scheme) -> Allowed {
    let config::Scheme::Auto(config::Allowed { sr, xor, mds, hybrid }) = *scheme else { return Allowed::ALL };
    Allowed { sr, xor, mds, hybrid }
}

#[cfg(test)]
mod tests;
