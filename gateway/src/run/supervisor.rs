//! One peer's supervisor: passes on what its control connection tells, and what is asked for, until
//! the gateway stops.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use config::Relation;
use session::control::{Claim, Command, Control, DownReason, Event, Hold, SocketLost};
use session::identity::Identity;
use session::message::{GoodbyeReason, Pairing};
use session::resumption::Resumption;
use splice::SessionEnd;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::telling::Telling;
use super::workers::Workers;
use super::{RunError, Towards, completes_locally};
use crate::admin::Admin;
use crate::events::EventKind;
use crate::logs::printable;
use crate::reload::{Reloader, reload_all};
use crate::renewal::{Renewal, Stamp};
use crate::requests::Answer;
use crate::telemetry::{SessionState, Telemetry, Validity};

/// How a gateway is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Not yet.
    No,
    /// Flows may finish.
    Drain,
    /// Nothing carries them any more.
    AtOnce,
}

/// A request to a supervisor.
pub(super) enum Ask {
    /// Have the files read again.
    Reload(oneshot::Sender<Answer>),
    /// Have the session stand still, while another process may take over.
    Hold(Holding),
}

/// The time in which a session stands still.
pub(super) struct Holding {
    /// Told when it does: what the other process has to hold, or why no flow would go on.
    pub(super) standing: oneshot::Sender<Result<Option<Arc<Resumption>>, String>>,
    /// True: the other process has taken over. False, or no answer: the session goes on.
    pub(super) taken: oneshot::Receiver<bool>,
}

/// How long the end of things is waited for.
struct Times {
    /// That of flows, when the gateway stops.
    drain: Duration,
    /// That of a session whose peer is silent.
    dead_after: Duration,
}

/// Passes the sessions that control finds on to the data plane, and the policies that are asked
/// for, until it is time to stop.
pub(super) struct Supervisor {
    name: String,
    control: Control,
    workers: Workers,
    telemetry: Arc<Telemetry>,
    flows: Vec<watch::Sender<Arc<[Pairing]>>>,
    outlives: Arc<AtomicBool>,
    reloader: Reloader,
    renewal: Renewal,
    telling: Telling,
    times: Times,
    /// Other gateways of the site take over when this one ends.
    has_siblings: bool,
    /// The peer is one of them, and no flow is in a session with it.
    is_sibling: bool,
}

impl Supervisor {
    /// `place`: the peer's number where there are several.
    pub(super) fn new(
        peer: Towards,
        control: Control,
        workers: Workers,
        (path, identity): (PathBuf, (Identity, Stamp)),
        admin: Option<Arc<Admin>>,
        place: Option<usize>,
    ) -> Self {
        let Towards { gateway, policy, telemetry, flows, outlives, .. } = peer;
        let config::Peer { name, dead_after, .. } = gateway.peer.clone();
        let times = Times { drain: gateway.limits.drain.get(), dead_after: dead_after.get() };
        let renewal = Renewal::new(path, &gateway, identity, control.renewal(), Arc::clone(&telemetry));
        let renewal = if place.is_some_and(|nth| nth > 0) { renewal.of_another_peer() } else { renewal };
        let telling = Telling::new(&gateway.wan, &gateway.peer);
        let telling = match place {
            None => telling,
            Some(nth) => telling.naming(&name, nth == 0),
        };
        let has_siblings = !gateway.site.gateways.is_empty();
        let is_sibling = gateway.peer.relation == Relation::Sibling;
        let reloader = Reloader::new(gateway, policy, Arc::clone(&telemetry), admin);
        Self {
            name,
            control,
            workers,
            telemetry,
            flows,
            outlives,
            reloader,
            renewal,
            telling,
            times,
            has_siblings,
            is_sibling,
        }
    }

    /// Runs until `stopped` says so. Each of `asked` has the files read again. `news` of this
    /// machine's interfaces is told at once.
    pub(super) async fn run(
        self,
        mut asked: mpsc::Receiver<Ask>,
        (mut stopped, mut news): (watch::Receiver<Stop>, watch::Receiver<()>),
    ) -> Result<(), RunError> {
        let Self { name, control, workers, telemetry, flows, outlives, has_siblings, is_sibling, .. } = self;
        let (mut reloader, mut renewal, mut telling) = (self.reloader, self.renewal, self.telling);
        let Times { drain, dead_after } = self.times;
        let ((events_in, events), (commands, commands_out)) = (mpsc::channel(16), mpsc::channel(4));
        let (claim, is_up, peer) = (control.claim(), false, name.clone());
        let control = tokio::spawn(control.run(events_in, commands_out));
        let mut sessions =
            Sessions { peer, workers, telemetry, flows, dead_after, events, claim, is_up, is_sibling };
        let mut watchdog = tokio::time::interval(Duration::from_secs(1));
        let stop = loop {
            tokio::select! {
                stop = told_to_stop(&mut stopped) => break stop,
                event = sessions.events.recv() => match event {
                    Some(event) => sessions.handle(event).await,
                    None => break Stop::Drain,
                },
                Some(ask) = asked.recv() => match ask {
                    Ask::Reload(reply) => {
                        let adopt = async |policy, cells| {
                            // For good: nobody knows what is told early and has not arrived yet.
                            outlives.fetch_and(!completes_locally(&policy), Ordering::Relaxed);
                            sessions.workers.adopt(policy, cells).await
                        };
                        // Whoever asked may not have waited.
                        let _ = reply.send(reload_all(&mut renewal, &mut reloader, adopt).await);
                    }
                    Ask::Hold(holding) => if sessions.hold(holding, &commands).await {
                        sessions.events.close();
                        return leave(control, &name).await;
                    },
                },
                Ok(()) = news.changed() => telling.look_early(&sessions.telemetry, Instant::now()),
                _ = watchdog.tick() => {
                    telling.look(&sessions.telemetry, Instant::now());
                    renewal.look().await;
                    sessions.telemetry.pulse();
                }
            }
        };
        let Sessions { workers, telemetry, mut events, .. } = sessions;
        if stop == Stop::Drain {
            telemetry.session(SessionState::Draining, None, Instant::now());
            wind_up(&name, &workers, drain).await;
        }
        let parted = workers.await_shutdown(Instant::now() + PART);
        // If control is gone, so is whoever would hear it.
        let _ = commands.send(last_word(has_siblings)).await;
        events.close();
        leave(control, &name).await?;
        if stop == Stop::Drain {
            // Who has not heard of it by then goes without.
            parted.all().await;
        }
        Ok(())
    }
}

/// Returns the last word to control. Where other gateways of the site take over, flows wait at the
/// peers, and go on by these.
fn last_word(has_siblings: bool) -> Command {
    if has_siblings { Command::HandOver } else { Command::Goodbye(GoodbyeReason::Shutdown) }
}

/// Waits for the control connection's end.
async fn leave(control: JoinHandle<Result<(), SocketLost>>, name: &str) -> Result<(), RunError> {
    if control.await.is_err() {
        warn!(peer = name, "the control connection did not end cleanly");
    }
    Ok(())
}

/// The control connection's events, on their way to the data plane.
struct Sessions {
    /// The name of the peer.
    peer: String,
    workers: Workers,
    telemetry: Arc<Telemetry>,
    flows: Vec<watch::Sender<Arc<[Pairing]>>>,
    dead_after: Duration,
    events: mpsc::Receiver<Event>,
    claim: Claim,
    /// There is a session, or its flows wait for it.
    is_up: bool,
    /// No flow is in it.
    is_sibling: bool,
}

impl Sessions {
    async fn handle(&mut self, event: Event) {
        self.is_up = !matches!(event, Event::Down(_));
        handle_event(self, event).await;
    }

    /// Stands still until it is known who goes on. Returns true if that is another process.
    async fn hold(&mut self, holding: Holding, commands: &mpsc::Sender<Command>) -> bool {
        let Holding { standing, taken } = holding;
        let (stands, mut is_standing) = oneshot::channel();
        let (verdict, is_taken) = oneshot::channel();
        let hold = Hold { standing: stands, taken: is_taken };
        if commands.send(Command::Hold(hold)).await.is_err() {
            return false;
        }
        loop {
            tokio::select! {
                // What was told before belongs to what the other process is given.
                biased;
                Some(event) = self.events.recv() => self.handle(event).await,
                stands = &mut is_standing => match stands {
                    Ok(()) => break,
                    Err(_) => return false,
                },
            }
        }
        while let Ok(event) = self.events.try_recv() {
            self.handle(event).await;
        }
        let claim = self.claim.get();
        let ends = self.is_up && claim.is_none() && !self.is_sibling;
        let answer = if ends { Err(NOTHING_GOES_ON.to_owned()) } else { Ok(claim) };
        // Nobody may wait for it any more; then nobody answers either.
        let _ = standing.send(answer);
        let is_taken = taken.await.unwrap_or(false);
        // Control goes on as well if nobody answers.
        let _ = verdict.send(is_taken);
        is_taken
    }
}

/// Why a session cannot be handed over.
const NOTHING_GOES_ON: &str = "flows would end with their session, since peer.resume_for is 0 s here or at \
                               the peer: that takes a restart";

/// Has the files read again for each peer, and puts the answers together.
pub(super) async fn reload_at_all(asks: &[mpsc::Sender<Ask>]) -> Answer {
    // All at once: whoever asks waits for a few seconds only.
    let mut waiting = Vec::new();
    for ask in asks {
        let (reply, answer) = oneshot::channel();
        if ask.send(Ask::Reload(reply)).await.is_ok() {
            waiting.push(answer);
        }
    }
    let mut answers = Vec::new();
    for answer in waiting {
        answers.extend(answer.await);
    }
    Answer::of_all(answers)
}

/// Waits until the gateway stops.
async fn told_to_stop(stopped: &mut watch::Receiver<Stop>) -> Stop {
    stopped.wait_for(|stop| *stop != Stop::No).await.map_or(Stop::Drain, |stop| *stop)
}

/// Lets flows finish, and ends those that are left.
async fn wind_up(name: &str, workers: &Workers, drain: Duration) {
    info!(peer = name, within = ?drain, "stopping: no new flows, those there may finish");
    if !workers.drain(Instant::now() + drain).await {
        warn!("flows were still busy at the end of the drain time; they end in errors");
    }
    workers.down(SessionEnd::Closed).await;
}

/// Waits for an end that may take long, and shows all the while that somebody does.
pub(super) async fn pulsing(telemetries: &[Arc<Telemetry>], end: impl Future<Output = ()>) {
    let mut end = pin!(end);
    let mut pulses = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            () = &mut end => return,
            // What has ended already pulses no more.
            _ = pulses.tick() => telemetries.iter().for_each(|telemetry| telemetry.pulse_waiting()),
        }
    }
}

/// How long programs have to hear that their flows are over. Where a target has not answered since
/// a rest, only what a requester comes back to three times can be refused: two timeouts of its NIC,
/// of half a second each, and some tries of ours.
pub(super) const PART: Duration = Duration::from_secs(3);

async fn handle_event(sessions: &Sessions, event: Event) {
    let Sessions { peer, workers, telemetry, flows, dead_after, .. } = sessions;
    match event {
        Event::Up(session) => {
            let (resumes, outlives) = (session.resumes, session.outlives);
            let site = session.peer.site.clone();
            telemetry.session_up(resumes, Instant::now());
            let peer = &session.peer;
            telemetry.set_expiry(Validity::Peer, peer.valid_until);
            telemetry.set_peer_build(&peer.build);
            let text = format!(
                "with {} at {}, version {}, certificate {}",
                peer.site,
                peer.address,
                if peer.build.is_empty() { "unknown" } else { &peer.build },
                peer.certificate.as_ref().map_or_else(|| "unknown".to_owned(), ToString::to_string)
            );
            telemetry.events().push(EventKind::SessionUp, &text);
            let flows: usize = workers.up(*session).all().await.iter().sum();
            if resumes {
                info!(peer = site, flows, "the session goes on; flows waited for it");
            } else if outlives {
                info!(peer = site, flows, "the peer has died and come back; flows waited for it");
            }
        }
        Event::Lost(reason) => {
            let why = printable(&reason.to_string());
            // Keys that are used up, or of a certificate that is revoked, serve no more.
            let is_over = matches!(reason, DownReason::Spent | DownReason::Revoked);
            let patience = (!is_over).then_some(*dead_after);
            let (known, waiting) = workers.lost(patience).await;
            warn!(peer, reason = why, flows = waiting, "session lost; flows wait for the session to go on");
            telemetry
                .events()
                .push(EventKind::SessionLost, &format!("{why}; {waiting} flows wait for it to go on"));
            telemetry.session(SessionState::Lost, Some(why), Instant::now());
            for (flows, known) in flows.iter().zip(known) {
                flows.send_replace(known);
            }
        }
        Event::Down(reason) => {
            let why = printable(&reason.to_string());
            let open: u64 = telemetry.snapshot(Instant::now()).flows.iter().sum();
            telemetry.events().push(EventKind::SessionLost, &format!("{why}; {open} flows were open"));
            telemetry.session(SessionState::Connecting, Some(why), Instant::now());
            let end = if reason.ends_flows() { SessionEnd::Closed } else { SessionEnd::Lost };
            // Until its flows have ended, no new session may begin. What the plane last showed of
            // them may lack the youngest.
            for (flows, known) in flows.iter().zip(workers.down(end).await) {
                flows.send_replace(known);
            }
        }
    }
}
