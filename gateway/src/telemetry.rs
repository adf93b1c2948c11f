//! Counters of the gateway, and how they get out.
//!
//! All metrics are declared once, in [`table`]: that declaration makes the [`Snapshot`] a
//! data-plane thread fills in, the atomics behind it, the Prometheus series and the table in
//! `docs/reference.md`.
//!
//! A data-plane thread counts in plain integers of its own and now and then stores them all into
//! its [`WorkerCounters`], by relaxed stores: no lock and no shared cache line on the packet path.
//! A scrape loads and sums them; since nothing orders one number against another, two of them may
//! be a loop iteration apart.

mod collect;
#[cfg(test)]
mod dashboard;
mod export;
mod histogram;
mod news;
mod shown;
mod surroundings;
mod table;
mod times;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustls_pki_types::UnixTime;
use session::control::Refusals;
use tokio::sync::watch;

use crate::choose::Choice;
use crate::events::EventLog;
use crate::lan::usable::Fault;
use crate::liveness::{DataPath, Facts, Liveness, Way};
use crate::logs::{self, printable};

pub use export::Exporter;
pub use news::{Failed, NewsQueue, NewsSender, Opened, WAITING};
pub use shown::ShownFlows;
pub use surroundings::Standing;
use surroundings::Surroundings;
pub use table::{ClassSnapshot, FAR, Kind, METRICS, Metric, NEAR, Snapshot, Unit, WorkerCounters};

/// The default of `peer.dead_after`.
const PATIENCE: Duration = Duration::from_secs(5);

/// Classes that have numbers of their own; the policy file has no more.
pub const MAX_CLASSES: usize = config::MAX_CLASSES;

/// Everything the gateway knows of itself, shared by data plane, control and admin.
///
/// Data plane: [`Telemetry::plane`] once per thread, then now and then fill a [`Snapshot`] and
/// [`WorkerCounters::store`] it. Control: [`Telemetry::session`], [`Telemetry::refusals`],
/// [`Telemetry::policy_adopted`]. Admin: [`Telemetry::snapshot`], [`Telemetry::session_info`],
/// [`Telemetry::policy_info`].
#[derive(Debug)]
pub struct Telemetry {
    started: Instant,
    planes: Mutex<Vec<Arc<WorkerCounters>>>,
    /// By thread.
    shown: Mutex<Vec<watch::Receiver<ShownFlows>>>,
    established: AtomicU64,
    resumed: AtomicU64,
    session: Mutex<SessionInfo>,
    refusals: Arc<Refusals>,
    choices: Mutex<Vec<Choice>>,
    policy: Mutex<PolicyInfo>,
    events: EventLog,
    failures: NewsQueue<Failed>,
    openings: NewsQueue<Opened>,
    liveness: Mutex<Liveness>,
    /// Seconds since 1970 for each [`Validity`]; 0: unknown.
    expiries: [AtomicU64; Validity::ALL.len()],
    limits: Limits,
    guard_restored: AtomicU64,
    supervised: AtomicU64,
    controlled: Arc<AtomicU64>,
    surroundings: Mutex<Surroundings>,
    peer_build: Mutex<String>,
}

/// Whose time is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// This site's certificate, and those above it in its file.
    Own,
    /// Those that the peer showed last.
    Peer,
    /// The authority; of several the last to expire.
    Authority,
    /// The admin listener's certificate, and those above it in its file. No session depends on it.
    Admin,
}

impl Validity {
    /// Each of them.
    pub const ALL: [Self; 4] = [Self::Own, Self::Peer, Self::Authority, Self::Admin];

    /// As /status spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Peer => "peer",
            Self::Authority => "authority",
            Self::Admin => "admin",
        }
    }
}

/// Values that the files fix for as long as the gateway runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// `peer.rate`, byte/s.
    pub link_rate_bytes: u64,
    /// `limits.total_buffer`.
    pub buffer_bytes: u64,
    /// `limits.flows`.
    pub flows: u64,
}

/// Which policy is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyInfo {
    /// Counts the files adopted, from 1 at the start.
    pub generation: u64,
    /// When the one in force was.
    pub loaded: SystemTime,
    /// Files refused.
    pub refused: u64,
}

/// Where the session with the peer stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Now.
    pub state: SessionState,
    /// True while there is one; while draining, if there was one when that began.
    pub connected: bool,
    /// Since when the state is what it is.
    pub since: Instant,
    /// Why the last session ended or could not be set up.
    pub last_error: Option<String>,
    /// When that was.
    pub last_error_at: Option<Instant>,
}

/// The session's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// There is none yet, or no longer; it is being set up.
    Connecting,
    /// Packets flow.
    Up,
    /// It is lost, and its flows wait for it to go on.
    Lost,
    /// The gateway is stopping: what is in flight is finished, nothing new is taken.
    Draining,
}

impl SessionState {
    /// As /status spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Up => "up",
            Self::Lost => "lost",
            Self::Draining => "draining",
        }
    }
}

impl Telemetry {
    /// With the session connecting, and no data plane.
    pub fn new(now: Instant) -> Self {
        Self {
            started: now,
            planes: Mutex::default(),
            shown: Mutex::default(),
            established: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            session: Mutex::new(SessionInfo {
                state: SessionState::Connecting,
                connected: false,
                since: now,
                last_error: None,
                last_error_at: None,
            }),
            refusals: Arc::default(),
            choices: Mutex::default(),
            policy: Mutex::new(PolicyInfo { generation: 1, loaded: SystemTime::now(), refused: 0 }),
            events: EventLog::default(),
            failures: NewsQueue::default(),
            openings: NewsQueue::default(),
            liveness: Mutex::new(Liveness::new(PATIENCE)),
            expiries: Default::default(),
            limits: Limits::default(),
            guard_restored: AtomicU64::new(0),
            supervised: AtomicU64::new(0),
            controlled: Arc::default(),
            surroundings: Mutex::default(),
            peer_build: Mutex::default(),
        }
    }

    /// The same with what the files fix, and with the silence after which a way counts as dead.
    #[must_use]
    pub fn with_limits(self, limits: Limits, patience: Duration) -> Self {
        Self { limits, liveness: Mutex::new(Liveness::new(patience)), ..self }
    }

    /// The same with a log of events that it shares with those of other peers.
    #[must_use]
    pub fn with_events(self, events: EventLog) -> Self {
        Self { events, ..self }
    }

    fn expiries_of(&self, whose: Validity) -> &AtomicU64 {
        let [own, peer, authority, admin] = &self.expiries;
        match whose {
            Validity::Own => own,
            Validity::Peer => peer,
            Validity::Authority => authority,
            Validity::Admin => admin,
        }
    }

    /// Takes when something expires; `None`: that is unknown.
    pub fn set_expiry(&self, whose: Validity, until: Option<UnixTime>) {
        self.expiries_of(whose).store(until.map_or(0, |until| until.as_secs()), Relaxed);
    }

    /// Returns when something expires, if that is known.
    pub fn expiry(&self, whose: Validity) -> Option<UnixTime> {
        let seconds = self.expiries_of(whose).load(Relaxed);
        (seconds > 0).then(|| UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }

    /// Returns the log of events.
    pub fn events(&self) -> &EventLog {
        &self.events
    }

    /// Returns the queue of flows that have ended in an error.
    pub fn failures(&self) -> &NewsQueue<Failed> {
        &self.failures
    }

    /// Returns the queue of flows that have been opened.
    pub fn openings(&self) -> &NewsQueue<Opened> {
        &self.openings
    }

    /// Returns how the ways of the data path were judged last.
    pub fn data_path(&self) -> DataPath {
        lock(&self.liveness).path()
    }

    /// Returns since when nothing crosses, if there is a session: there is no way to the peer, or a
    /// way of the data path is dead.
    pub fn blocked_since(&self) -> Option<Instant> {
        if !self.session_info().connected {
            return None;
        }
        let no_way = self.wan().unusable().map(|(_, since)| since);
        [no_way, lock(&self.liveness).dead_since()].into_iter().flatten().min()
    }

    /// Judges the data path, about every second; returns the judgement if it has changed.
    pub fn judge_data_path(&self, now: Instant) -> Option<DataPath> {
        let snapshot = self.snapshot(now);
        let facts = self.session_info().connected.then(|| Facts {
            sent: snapshot.wan_sent_packets,
            opened: snapshot.wan_opened.iter().sum(),
            report_age: (snapshot.path_age_micros > 0)
                .then(|| Duration::from_micros(snapshot.path_age_micros)),
        });
        let mut liveness = lock(&self.liveness);
        liveness.observe(facts, now).then(|| liveness.path())
    }

    /// Shows that the supervisor makes progress; about every second.
    pub fn pulse(&self) {
        self.supervised.fetch_add(1, Relaxed);
    }

    /// Returns where the control connection's task shows that it makes progress.
    pub fn control_pulse(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.controlled)
    }

    /// Before the control connection runs, what waits for this machine shows progress for it.
    pub fn pulse_waiting(&self) {
        self.pulse();
        self.controlled.fetch_add(1, Relaxed);
    }

    /// Names the LAN's interface.
    pub fn name_lan(&self, interface: &str) {
        lock(&self.surroundings).interface = Some(interface.to_owned());
    }

    /// Takes what the kernel says of that interface, about every second, and after each change.
    pub fn set_lan_fault(&self, fault: Option<Fault>) {
        lock(&self.surroundings).fault = fault;
    }

    /// Returns true if the kernel says that hosts cannot use that interface.
    pub fn has_lan_fault(&self) -> bool {
        lock(&self.surroundings).fault.is_some()
    }

    /// Returns the LAN's interface, if it has one.
    pub fn lan_interface(&self) -> Option<String> {
        lock(&self.surroundings).interface.clone()
    }

    /// Judges the LAN, about every second; returns the judgement if it is news.
    pub fn judge_lan(&self, now: Instant) -> Option<Standing> {
        let mut links = Snapshot::default();
        lock(&self.planes).iter().for_each(|plane| plane.add_to(&mut links));
        lock(&self.surroundings).judge_lan(links.lan_up, now).cloned()
    }

    /// Takes why no way leads to the peer, if none does; returns that if it is news.
    pub fn judge_wan(&self, why: Option<String>, now: Instant) -> Option<Standing> {
        lock(&self.surroundings).judge_wan(why, now).cloned()
    }

    /// Takes that the gateway was told to stop. The first time counts.
    pub fn leave(&self, now: Instant) {
        lock(&self.surroundings).leaving.get_or_insert(now);
    }

    /// Returns when the gateway was told to stop, if it was.
    pub fn leaving(&self) -> Option<Instant> {
        lock(&self.surroundings).leaving
    }

    /// Returns how the LAN was judged last.
    pub fn lan(&self) -> Standing {
        lock(&self.surroundings).lan.clone()
    }

    /// Returns how the way to the peer was judged last.
    pub fn wan(&self) -> Standing {
        lock(&self.surroundings).wan.clone()
    }

    /// Takes why nothing outlives the process, and what to do about it.
    pub fn set_no_retention(&self, why: String) {
        lock(&self.surroundings).no_retention = Some(why);
    }

    /// Returns why nothing outlives the process, if that is so.
    pub fn no_retention(&self) -> Option<String> {
        lock(&self.surroundings).no_retention.clone()
    }

    /// Takes the peer's build, as it says; empty: it does not.
    pub fn set_peer_build(&self, build: &str) {
        build.clone_into(&mut lock(&self.peer_build));
    }

    /// Returns the build of the peer that there is a session with.
    pub fn peer_build(&self) -> Option<String> {
        self.session_info().connected.then(|| lock(&self.peer_build).clone())
    }

    /// Returns numbers that grow while their threads make progress: the supervisor's, the control
    /// connection's, and one for each data-plane thread.
    pub fn pulses(&self) -> Vec<u64> {
        let tasks = [self.supervised.load(Relaxed), self.controlled.load(Relaxed)];
        tasks.into_iter().chain(lock(&self.planes).iter().map(|plane| plane.stores())).collect()
    }

    /// Rules that keep the kernel from forwarding were missing, and are back.
    pub fn guard_restored(&self, rules: u64) {
        self.guard_restored.fetch_add(rules, Relaxed);
    }

    /// Somebody has set the machine's clock.
    pub fn clock_set(&self) {
        lock(&self.surroundings).clock_sets += 1;
    }

    /// Takes how many RDMA devices there are on the LAN's interface or below it, and how many
    /// packets they took since the last look.
    pub fn rdma_seen(&self, devices: u64, packets: u64) {
        let mut surroundings = lock(&self.surroundings);
        surroundings.rdma_devices = devices;
        surroundings.rdma_packets = surroundings.rdma_packets.saturating_add(packets);
    }

    /// Sets what `auto` has chosen, for every stream of every class of that scheme.
    pub fn set_choices(&self, choices: Vec<Choice>) {
        *lock(&self.choices) = choices;
    }

    /// Returns the choices set last; none where no class's scheme is `auto`.
    pub fn choices(&self) -> Vec<Choice> {
        lock(&self.choices).clone()
    }

    /// The policy file was read again, and is the policy now.
    pub fn policy_adopted(&self, at: SystemTime) {
        let mut policy = lock(&self.policy);
        policy.generation += 1;
        policy.loaded = at;
    }

    /// The policy file was read again, and refused.
    pub fn policy_refused(&self) {
        lock(&self.policy).refused += 1;
    }

    /// Which policy is in force.
    pub fn policy_info(&self) -> PolicyInfo {
        *lock(&self.policy)
    }

    /// The numbers of one more data-plane thread. What it stored stays counted when it has ended.
    pub fn plane(&self) -> Arc<WorkerCounters> {
        let plane = Arc::<WorkerCounters>::default();
        lock(&self.planes).push(Arc::clone(&plane));
        plane
    }

    /// Returns where one more data-plane thread shows its flows.
    pub fn flows_of_thread(&self) -> watch::Sender<ShownFlows> {
        let (shown, seen) = watch::channel(ShownFlows::default());
        lock(&self.shown).push(seen);
        shown
    }

    /// Returns the flows of each thread.
    pub fn flows(&self) -> Vec<ShownFlows> {
        lock(&self.shown).iter().map(|shown| shown.borrow().clone()).collect()
    }

    /// The session's state has changed, if it has; `error` says why a session ended or did not come
    /// up.
    pub fn session(&self, state: SessionState, error: Option<String>, now: Instant) {
        let mut session = self.up_to_date();
        if session.state != state {
            match state {
                SessionState::Connecting | SessionState::Lost => session.connected = false,
                SessionState::Up => {
                    session.connected = true;
                    self.established.fetch_add(1, Relaxed);
                }
                SessionState::Draining => {}
            }
            session.state = state;
            session.since = now;
        }
        if error.is_some() {
            (session.last_error, session.last_error_at) = (error, Some(now));
        }
    }

    /// A session is up; whether the one before goes on in it.
    pub fn session_up(&self, resumes: bool, now: Instant) {
        self.session(SessionState::Up, None, now);
        self.resumed.fetch_add(resumes.into(), Relaxed);
    }

    /// Where the session stands.
    pub fn session_info(&self) -> SessionInfo {
        self.up_to_date().clone()
    }

    /// Where whoever sets sessions up counts those that come to nothing.
    pub fn refusals(&self) -> Arc<Refusals> {
        Arc::clone(&self.refusals)
    }

    /// With what has been refused meanwhile. While there is a session, an attempt at another is no
    /// error of its.
    fn up_to_date(&self) -> MutexGuard<'_, SessionInfo> {
        let mut session = lock(&self.session);
        let refused = self.refusals.take_last();
        if !session.connected && refused.is_some() {
            session.last_error = refused.map(|text| printable(&text));
            // Somebody looks every second.
            session.last_error_at = Some(Instant::now());
        }
        session
    }

    /// When the gateway started.
    pub fn started(&self) -> Instant {
        self.started
    }

    fn add_surroundings(&self, snapshot: &mut Snapshot) {
        let surroundings = lock(&self.surroundings);
        snapshot.clock_sets = surroundings.clock_sets;
        snapshot.lan_rdma_devices = surroundings.rdma_devices;
        snapshot.lan_rdma_packets = surroundings.rdma_packets;
    }

    /// All numbers, over all threads.
    pub fn snapshot(&self, now: Instant) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let mut paths = Vec::new();
        for plane in lock(&self.planes).iter() {
            plane.add_to(&mut snapshot);
            let mut own = Snapshot::default();
            plane.add_to(&mut own);
            paths.push(own);
        }
        snapshot.set_path_of(&paths);
        let session = self.session_info();
        let crosses = session.connected && self.blocked_since().is_none();
        if session.state == SessionState::Lost {
            let lost = now.saturating_duration_since(session.since);
            snapshot.session_lost_micros = u64::try_from(lost.as_micros()).unwrap_or(u64::MAX);
        }
        snapshot.sessions_resumed = self.resumed.load(Relaxed);
        for class in &mut snapshot.classes {
            // While nothing crosses there is nothing but a guess.
            class.rtt_micros = if crosses { class.rtt_micros } else { 0 };
        }
        snapshot.session_rtt_micros = if crosses { snapshot.session_rtt() } else { 0 };
        let policy = self.policy_info();
        snapshot.policy_generation = policy.generation;
        snapshot.policy_reloads = [policy.generation - 1, policy.refused];
        let loaded = policy.loaded.duration_since(UNIX_EPOCH).unwrap_or_default();
        snapshot.policy_loaded_micros = u64::try_from(loaded.as_micros()).unwrap_or(u64::MAX);
        let path = self.data_path();
        snapshot.session_up = u64::from(crosses);
        snapshot.data_path = [path.to_peer, path.from_peer].map(|way| match way {
            Way::Unknown => 0,
            Way::Silent => 1,
            Way::Alive => 2,
        });
        let Limits { link_rate_bytes, buffer_bytes, flows } = self.limits;
        let expiry = |whose| self.expiries_of(whose).load(Relaxed).saturating_mul(1_000_000);
        snapshot.certificate_expiry_micros = expiry(Validity::Own);
        snapshot.peer_certificate_expiry_micros = expiry(Validity::Peer);
        snapshot.authority_expiry_micros = expiry(Validity::Authority);
        snapshot.admin_certificate_expiry_micros = expiry(Validity::Admin);
        (snapshot.lan_up, snapshot.wan_up) = (self.lan().known(), self.wan().known());
        snapshot.link_rate_bytes = link_rate_bytes;
        snapshot.buffer_limit_bytes = buffer_bytes;
        snapshot.flows_limit = flows;
        snapshot.guard_restored = self.guard_restored.load(Relaxed);
        self.add_surroundings(&mut snapshot);
        snapshot.sessions_established = self.established.load(Relaxed);
        snapshot.sessions_refused = self.refusals.counts();
        snapshot.control_unanswered = self.refusals.unanswered();
        snapshot.log_lost = logs::lost();
        snapshot.uptime_micros =
            u64::try_from(now.saturating_duration_since(self.started).as_micros()).unwrap_or(u64::MAX);
        snapshot
    }
}

/// A panicking holder leaves the value whole: each is replaced in one assignment or push.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
