//! Crowds: queue pairs with real NICs' habits between two hosts, over gateways or over plain
//! routing, before an independent judge.
//!
//! A [`Crowd`] says what happens; [`Crowd::draw`] makes one from a seed. A [`CrowdWorld`] plays it
//! over either [`Route`] and tells in its [`Outcome`] what was wrong. Nothing here knows the model
//! that [`super::World`] holds its gateways against.

mod life;
mod scenario;
mod spoofer;
mod world;

use std::time::Duration;

pub use scenario::{Crowd, CrowdLife, CrowdOp};
pub use spoofer::{Spoofed, Spoofing};
pub use world::{CrowdWorld, Route, Tamper};

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// A rule of the judge (`told`, `done`, `answer`, `ran`, `twice`), or `failed` for a request
    /// that ended in an error, `stuck` for one that never ended, `data` for memory that is not what
    /// was sent.
    pub rule: &'static str,
    /// Index of the incarnation.
    pub life: usize,
    /// Something was under way when one of its queue pairs was reset before: plain RC may fail as
    /// well.
    pub excused: bool,
    /// Messages confirmed falsely.
    pub ends: u64,
    /// Virtual time since the start.
    pub at: Duration,
    /// The event, in words.
    pub what: String,
}

/// The outcome of a crowd.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// In the order in which they happened.
    pub flaws: Vec<Flaw>,
    /// Time from the moment both ends were connected to each end's first success, by incarnation.
    pub first: Vec<[Option<Duration>; 2]>,
    /// How long each request took that succeeded, by incarnation.
    pub took: Vec<Vec<Duration>>,
    /// Which incarnations are excused.
    pub excused: Vec<bool>,
    /// Packets sent in others' names.
    pub spoofed: Spoofed,
    /// Congestion notifications of both hosts about packets that a switch had marked.
    pub notified: u64,
    /// Packets that went into the long link.
    pub wan: u64,
    /// Operations that succeeded.
    pub succeeded: u64,
    /// Message ends that were checked.
    pub checked: u64,
    /// Queue pairs that were waiting for a first answer at once, at most.
    pub waiting: usize,
    /// Events played.
    pub steps: u64,
    /// Virtual time.
    pub busy: Duration,
}

impl Outcome {
    /// Messages confirmed falsely in incarnations that are excused or not.
    #[must_use]
    pub fn false_ends(&self, excused: bool) -> u64 {
        self.flaws.iter().filter(|flaw| flaw.excused == excused).map(|flaw| flaw.ends).sum()
    }
}
