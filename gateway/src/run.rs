//! `longhaul gateway`: everything of one running gateway, from its files to its end.

mod changes;
mod chooser;
mod devices;
mod front;
mod guarding;
mod handover;
mod interface;
mod machine;
mod opening;
mod patience;
mod publisher;
#[cfg(test)]
mod strangers;
mod supervisor;
mod takeover;
mod telling;
mod withdrawal;
mod workers;
mod zones;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use chooser::ChooserThread;
use config::{Completion, LanMode, Policy};
use devices::Devices;
use front::{Answering, Front};
use guarding::Guarding;
use handover::{Legacy, Preparing};
use interface::Interface;
use machine::Machine;
use opening::{admin_side, bind_controls, lan_mtu, local_side, open_bulk};
use patience::Teller;
pub use patience::remedy;
use publisher::Publisher;
use reliability::estimator::ProbeConfig;
use reliability::mtu::BASE_DATAGRAM;
use session::OVERHEAD;
use session::control::{Control, StartError};
use session::identity::{Identity, IdentityError};
use session::key_log::KeyLog;
use session::message::{MAX_PAIRINGS, Pairing};
use session::replay::REPLAY_WINDOW;
use session::seal::max_datagram;
use splice::{Grouping, Settings};
use supervisor::{Ask, PART, Stop, Supervisor, pulsing, reload_at_all};
pub use takeover::{Former, inherited_lock};
use tokio::sync::{mpsc as async_mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::timeout;
use tracing::{info, warn};
use withdrawal::Withdrawal;
use workers::{PeerResources, Threads, WorkerResources, Workers};
use zones::Zones;

use crate::admin::{Admin, Doors, Serving};
use crate::cells::Cells;
use crate::choose::PathSnapshot;
use crate::events::{EventKind, EventLog};
use crate::lan::guard::{Guard, GuardError};
use crate::lan::{Lan, MAX_PACKET};
use crate::plane::{Membership, PeerAddress, Share};
use crate::recorder::Recorder;
use crate::renewal::{ListenerRenewal, Stamp};
use crate::requests::{Answer, Heirs, Reloads, Requests};
use crate::retention::RetainedFiles;
use crate::service::Notifier;
use crate::steering::Part;
use crate::telemetry::{Limits, Telemetry};
use crate::upgrade::{Announcement, Giver, Heir, NotTaken};
use crate::zone;

const _: () =
    assert!(config::Wan::MOST_LANES == session::MOST_LANES, "a session carries every lane of a file");
const _: () = assert!(config::Lan::MOST_TOLD == session::message::MOST_PREFIXES, "a peer is told as many");
const _: () =
    assert!(config::Wan::MOST_THREADS == session::MOST_THREADS, "a session has the threads of any file");

/// Why a gateway did not start, or ended with a failure.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Certificates or key.
    #[error("the identity cannot be used")]
    Identity(#[from] IdentityError),
    /// The control connection could not start.
    #[error("the control connection cannot start")]
    Control(#[from] StartError),
    /// The LAN interface or socket could not be opened.
    #[error("cannot open the LAN side ({what})")]
    Lan {
        /// Interface or address.
        what: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Another gateway works on the interface.
    #[error("another gateway of this machine works on {0}: there is one for each interface")]
    Taken(String),
    /// The kernel could not be kept from forwarding what the gateway carries.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// The bulk socket could not be opened.
    #[error("cannot open the bulk socket {address}")]
    Bulk {
        /// Its address.
        address: std::net::SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The admin listener could not be opened.
    #[error("cannot open the admin listener {address}")]
    Admin {
        /// Its address.
        address: std::net::SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Threads, signals or descriptors are not to be had.
    #[error("the system refused a resource")]
    System(#[source] io::Error),
    /// The place of the running gateway could not be taken.
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
    /// A data-plane thread ended by itself.
    #[error("the data plane ended by itself")]
    PlaneEnded,
}

/// A gateway's files, read and checked.
#[derive(Debug)]
pub struct Files {
    /// The gateway file.
    pub gateway: config::Gateway,
    /// The classes of the policy towards each peer, in the gateway file's order.
    pub policies: Vec<config::Policy>,
    /// The gateway file's path, to read it again.
    pub path: PathBuf,
    /// The admin listener's socket and token, opened before privileges are given up.
    pub doors: Doors,
    /// Memory that outlives the process, opened before, too.
    pub retained: RetainedFiles,
    /// The lock that keeps other gateways off the interface: [`lock`].
    pub lock: Option<UnixListener>,
    /// The interface of the process before.
    pub former: Former,
    /// Where the keys of bulk data are logged, if anywhere.
    pub key_log: Option<KeyLog>,
    /// The running gateway whose place this one takes.
    pub heir: Option<Heir>,
    /// Who hears, in a line, that the place is taken.
    pub announce: Option<oneshot::Sender<Announcement>>,
}

/// Runs a gateway until `stop` completes (or its sender is gone), then stops it gracefully. For
/// `limits.withdraw` it goes on and is not healthy.
/// Within `limits.drain` flows finish or end in an error, and what was changed on this machine is
/// put back. Until then it reads its policy file again whenever `asked` says so; `requests` is the
/// way there for the admin listener. If another process takes over, it ends at once, and leaves
/// everything as it is. `notifier` hears when it is ready.
///
/// # Errors
/// See [`RunError`].
pub async fn run(
    files: Files,
    mut stop: oneshot::Receiver<()>,
    requests: Requests,
    asked: (Reloads, Heirs),
    notifier: &Arc<Notifier>,
) -> Result<(), RunError> {
    // Given up with the gateway, if the process before it lives for longer.
    let mut locking = JoinSet::new();
    locking.spawn(files.retained.lock());
    let Some(mut running) = set_up(files, &mut stop, requests, notifier).await? else { return Ok(()) };
    let (reloads, heirs) = asked;
    let mut ended = running.watch_over(reloads, heirs, stop).await;
    let Running { threads, choosers, mut tasks, machine, telemetries, stopping, serving, .. } = running;
    match &ended {
        Ok(End::Asked) => drop(stopping.send_replace(Stop::Drain)),
        Ok(End::Taken(_)) => serving.iter().for_each(JoinHandle::abort),
        Err(_) => drop(stopping.send_replace(Stop::AtOnce)),
    }
    let rest = async {
        while let Some(task) = tasks.join_next().await {
            if let Err(error) = task.unwrap_or(Err(RunError::PlaneEnded))
                && ended.is_ok()
            {
                ended = Err(error);
            }
        }
    };
    pulsing(&telemetries, rest).await;
    drop(choosers);
    let guard = machine.into_guard();
    let Ok(End::Taken(giver)) = ended else {
        close(threads, guard, serving).await?;
        return ended.map(drop);
    };
    threads.stop().await?;
    guard.leave().await;
    // Whoever started this process takes its end for the gateway's, unless it knows better.
    let _ = spawn_blocking(|| giver.wait_until_known()).await;
    info!("gateway ended: another process has taken over");
    Ok(())
}

/// How a gateway's work ends.
enum End {
    /// It is told to stop.
    Asked,
    /// Another process has taken over.
    Taken(Giver),
}

/// A gateway at work.
struct Running {
    threads: Threads,
    choosers: Vec<ChooserThread>,
    /// Each peer's supervisor, and the way to it.
    tasks: JoinSet<Result<(), RunError>>,
    asks: Vec<async_mpsc::Sender<Ask>>,
    machine: Machine,
    devices: Devices,
    telemetries: Vec<Arc<Telemetry>>,
    stopping: watch::Sender<Stop>,
    serving: Serving,
    listener: Option<ListenerRenewal>,
    withdrawal: Withdrawal,
    /// Beside it what keeps other gateways off the interface, as long as it lives.
    legacy: (Legacy, Option<UnixListener>),
}

impl Running {
    /// Looks after everything until it is time to stop. From then on who asks for a reload hears
    /// that it is too late.
    async fn watch_over(
        &mut self,
        mut reloads: Reloads,
        mut heirs: Heirs,
        mut stop: oneshot::Receiver<()>,
    ) -> Result<End, RunError> {
        let mut watchdog = tokio::time::interval(Duration::from_secs(1));
        let mut preparing: Option<Preparing> = None;
        loop {
            tokio::select! {
                _ = &mut stop, if !self.withdrawal.has_begun() => {
                    self.withdrawal.begin(&self.telemetries, tokio::time::Instant::now());
                }
                () = self.withdrawal.end() => return Ok(End::Asked),
                Some(ended) = self.tasks.join_next() => {
                    return Err(ended.unwrap_or(Ok(())).err().unwrap_or(RunError::PlaneEnded));
                }
                Some(reply) = reloads.recv() => {
                    // Whoever asked may not have waited.
                    let _ = reply.send(self.reload().await);
                }
                Some(claimant) = heirs.recv(), if preparing.is_none() => {
                    match self.withdrawal.has_begun() {
                        true => handover::turn_away(claimant, handover::STOPPING.to_owned()),
                        false => preparing = self.greet(claimant).await,
                    }
                }
                (prepared, place) = handover::prepared(&mut preparing) => {
                    // Whoever takes over would go on with a gateway that is to end.
                    if self.withdrawal.has_begun() {
                        prepared.into_iter().for_each(|mut giver| giver.refuse(handover::STOPPING));
                    } else if let Some(giver) = self.hand_over(prepared).await {
                        return Ok(End::Taken(giver));
                    }
                    drop(place);
                }
                never = self.machine.watch(&self.telemetries) => match never {},
                _ = watchdog.tick() => {
                    if self.threads.has_ended() {
                        return Err(RunError::PlaneEnded);
                    }
                    if let Some(listener) = &mut self.listener {
                        listener.look().await;
                    }
                    self.devices.look(&self.telemetries, Instant::now()).await;
                }
            }
        }
    }
}

impl Running {
    /// Has all files read again. If the admin listener's are bad, all stay as they are; if others
    /// are, so do the listener's.
    async fn reload(&mut self) -> Answer {
        let Some(listener) = &mut self.listener else { return reload_at_all(&self.asks).await };
        let read = match listener.read().await {
            Ok(read) => read,
            Err(why) => {
                warn!("a reload is refused, and all stays as it is: {why}");
                let policy = self.telemetries.first().map(|telemetry| telemetry.policy_info().generation);
                return Answer::refused(policy.unwrap_or(0), format!("{why}\n"));
            }
        };
        let mut answer = reload_at_all(&self.asks).await;
        if answer.adopted {
            answer.identity.extend(listener.adopt(read));
        }
        answer
    }
}

/// Opens and starts everything. `None`: the gateway is to stop.
async fn set_up(
    files: Files,
    stop: &mut oneshot::Receiver<()>,
    requests: Requests,
    notifier: &Arc<Notifier>,
) -> Result<Option<Running>, RunError> {
    let Files { gateway, policies, path, doors, retained, lock, former, key_log, mut heir, announce } = files;
    let (pem, stamp) = (&gateway.identity, Stamp::of(&gateway.identity));
    let identity = Identity::load(&pem.certificate, &pem.key, &pem.authority)?;
    let peers = towards(&gateway, policies);
    let telemetries: Vec<_> = peers.iter().map(|peer| Arc::clone(&peer.telemetry)).collect();
    let front = Some(Front::new(&gateway, doors, &peers, &requests));
    let mut teller = Teller { notifier, telemetries: &telemetries, front, is_patient: heir.is_none() };
    let bind = || bind_controls(&gateway, &peers, (&identity, &key_log), heir.as_mut());
    let mut legacy = Legacy::new(&gateway, notifier, &retained);
    let Some((controls, sockets)) = patience::until_there(stop, &mut teller, bind).await? else {
        return Ok(None);
    };
    let Some((mut guard, lans)) =
        local_side((&gateway, former.is_same()), heir.as_mut(), stop, &mut teller).await?
    else {
        return Ok(None);
    };
    let Some(mut front) = admin_side(&mut teller, heir.as_mut(), stop).await? else { return Ok(None) };
    let resources = resources(&gateway, &peers, lans, retained, heir.as_mut())?;
    let zones = Zones::of(&gateway, &peers, &sockets, &resources)?;
    legacy.keep_all(&controls, sockets, lock.as_ref(), front.copies())?;
    let sightings = (0..peers.len()).map(|nth| sightings(&resources, nth)).collect();
    let (threads, workers) = Threads::start(resources, gateway.data_plane.busy_poll.get())?;
    // Whatever may fail comes before the process before ends.
    let choosers = choosers(&workers, sightings, &telemetries)?;
    let (told, stopping) = ((notifier, telemetries.as_slice(), announce), watch::Sender::new(Stop::No));
    let controls = match heir {
        Some(heir) => takeover::take_over(heir, &limits_of(&peers), &threads, controls, told)?,
        None => threads.begin_anew().map(|()| controls)?,
    };
    guard.own();
    drop(spawn_blocking(|| former.clear()));
    front.answer()?;
    let Answering { listener, admins, serving } = front.into_answering();
    tell_start(&gateway, &telemetries, notifier);
    let each = peers.into_iter().zip(controls).zip(workers);
    let machine = Machine::new((guard, Interface::of(&gateway.lan, &telemetries), zones), machine::EVERY);
    let (tasks, asks) = supervise(each, &(path, (identity, stamp)), admins, (&stopping, machine.news()));
    Ok(Some(Running {
        threads,
        choosers,
        tasks,
        asks,
        machine,
        devices: Devices::of(&gateway.lan.mode),
        telemetries,
        stopping,
        serving,
        listener,
        withdrawal: Withdrawal::new(gateway.limits.withdraw.get()),
        legacy: (legacy, lock),
    }))
}

/// Starts the thread that chooses the schemes towards each peer.
fn choosers(
    workers: &[Workers],
    sightings: Vec<Vec<watch::Receiver<PathSnapshot>>>,
    telemetries: &[Arc<Telemetry>],
) -> Result<Vec<ChooserThread>, RunError> {
    let each = workers.iter().zip(sightings).zip(telemetries);
    each.map(|((workers, sightings), telemetry)| workers.choose(sightings, Arc::clone(telemetry))).collect()
}

/// Starts each peer's supervisor. Returns the tasks, and the ways to them.
fn supervise(
    each: impl ExactSizeIterator<Item = ((Towards, Control), Workers)>,
    renewal: &(PathBuf, (Identity, Stamp)),
    admins: Vec<Arc<Admin>>,
    (stopping, news): (&watch::Sender<Stop>, &watch::Sender<()>),
) -> (JoinSet<Result<(), RunError>>, Vec<async_mpsc::Sender<Ask>>) {
    let (mut tasks, mut asks) = (JoinSet::new(), Vec::new());
    let (mut admins, are_several) = (admins.into_iter(), each.len() > 1);
    for (nth, ((peer, control), workers)) in each.enumerate() {
        let (ask, asked) = async_mpsc::channel(1);
        asks.push(ask);
        let place = are_several.then_some(nth);
        let supervisor = Supervisor::new(peer, control, workers, renewal.clone(), admins.next(), place);
        tasks.spawn(supervisor.run(asked, (stopping.subscribe(), news.subscribe())));
    }
    (tasks, asks)
}

/// Returns what may be taken over of another process.
fn limits_of(peers: &[Towards]) -> takeover::Limits {
    let settings = |peer: &Towards| settings(&peer.gateway, &Arc::new(peer.policy.clone()), MAX_PACKET);
    takeover::Limits {
        memory: peers.iter().map(|peer| memory_of(&peer.gateway, &settings(peer))).sum(),
        resume_for: peers.iter().map(|peer| peer.gateway.peer.resume_for.get()).collect(),
    }
}

/// Returns what is seen of the paths to a peer.
fn sightings(threads: &[WorkerResources], peer: usize) -> Vec<watch::Receiver<PathSnapshot>> {
    let sides = threads.iter().flat_map(|thread| &thread.peers);
    let of_peer = sides.filter(|side| usize::from(side.to.number) == peer);
    of_peer.map(|side| side.publisher.sightings()).collect()
}

fn tell_start(gateway: &config::Gateway, telemetries: &[Arc<Telemetry>], notifier: &Arc<Notifier>) {
    let version = env!("CARGO_PKG_VERSION");
    let names: Vec<&str> = gateway.peers().map(|peer| peer.name.as_str()).collect();
    let peer = names.join(", ");
    if let Some(telemetry) = telemetries.first() {
        telemetry.events().about_all().push(EventKind::Started, &format!("version {version}"));
    }
    info!(version, site = gateway.site.name, peer, "gateway started");
    notifier.status(&format!("running: site {}, peer {peer}", gateway.site.name));
    notifier.ready(telemetries);
}

/// Ends the threads, and puts back what was changed on this machine.
async fn close(threads: Threads, guard: Guarding, listener: Serving) -> Result<(), RunError> {
    threads.stop().await?;
    if let Some(guard) = guard.end().await {
        remove(guard).await?;
    }
    listener.iter().for_each(JoinHandle::abort);
    info!("gateway stopped");
    Ok(())
}

/// Makes what there is for each peer.
fn towards(gateway: &config::Gateway, policies: Vec<Policy>) -> Vec<Towards> {
    let events = EventLog::default();
    let log_of =
        |peer: &str| if gateway.others.is_empty() { EventLog::default() } else { events.about(peer) };
    let towards = |(view, policy): (config::Gateway, Policy)| {
        let log = log_of(&view.peer.name);
        Towards::new(view, policy, log)
    };
    gateway.views().into_iter().zip(policies).map(towards).collect()
}

/// One peer, before its supervisor runs.
struct Towards {
    /// The gateway as if it had no other peer.
    gateway: config::Gateway,
    policy: Policy,
    telemetry: Arc<Telemetry>,
    /// By pair of threads.
    flows: Vec<watch::Sender<Arc<[Pairing]>>>,
    recorder: Arc<Recorder>,
    /// Flows may outlive a process: see [`session::control::Config::outlives`].
    outlives: Arc<AtomicBool>,
    /// See [`session::control::Config::peer_scope`].
    scope: Arc<AtomicU32>,
}

impl Towards {
    fn new(gateway: config::Gateway, policy: Policy, events: EventLog) -> Self {
        let telemetry = Telemetry::new(Instant::now())
            .with_limits(limits(&gateway), gateway.peer.dead_after.get())
            .with_events(events);
        let parts = Part::all(gateway.thread_pairs());
        let flows = parts.map(|_| watch::Sender::new(Arc::<[Pairing]>::from([]))).collect();
        let outlives = Arc::new(AtomicBool::new(!completes_locally(&policy)));
        let (telemetry, recorder) = (Arc::new(telemetry), Arc::default());
        Self { gateway, policy, telemetry, flows, recorder, outlives, scope: Arc::default() }
    }

    /// Has the peer dialled by its interface's index of now, if there is one.
    fn look_for_interface(&self) {
        if let Some(name) = &self.gateway.peer.zone {
            zone::look(name, &self.scope);
        }
    }
}

fn membership(gateway: &config::Gateway) -> Option<Membership> {
    gateway.is_member().then(|| Membership {
        name: gateway.site.name.clone(),
        incarnation: RandomState::new().hash_one(0),
        pairs: gateway.limits.flows as usize,
    })
}

/// Makes the resources that each data-plane thread owns.
fn resources(
    gateway: &config::Gateway,
    peers: &[Towards],
    lans: Vec<Lan>,
    mut retained: RetainedFiles,
    heir: Option<&mut Heir>,
) -> Result<Vec<WorkerResources>, RunError> {
    let membership = membership(gateway);
    let lan_mtu = lans.first().map_or(Ok(MAX_PACKET), |lan| lan_mtu(lan, &gateway.lan))?;
    let mut threads: Vec<_> = Part::all(gateway.data_plane.threads)
        .zip(lans)
        .map(|(part, lan)| WorkerResources { part, lan, peers: Vec::new(), membership: membership.clone() })
        .collect();
    for ((number, peer), bulks) in (0..).zip(peers).zip(open_bulk(gateway, peers, heir)?) {
        // The very same for all threads and the chooser: that is how orders tell for which policy
        // they are.
        let shared = Arc::new(peer.policy.clone());
        let settings = settings(&peer.gateway, &shared, lan_mtu);
        let cells = Arc::new(Cells::new(&peer.policy));
        let nothing = PathSnapshot::nothing(Arc::clone(&shared), cells);
        let pairs = peer.gateway.thread_pairs();
        let shares = Share::all(settings.rate, pairs, Instant::now());
        let to = PeerAddress {
            name: peer.gateway.peer.name.clone(),
            number,
            bulk: peer.gateway.peer.bulk_address(),
            remote: peer.gateway.lan.remote.clone(),
            relation: peer.gateway.peer.relation.clone(),
            max_packet: settings.max_packet,
        };
        let each = Part::all(pairs).zip(&peer.flows).zip(bulks).zip(shares);
        for (((part, flows), bulk), share) in each {
            let count = threads.len().max(1);
            let Some(thread) = threads.get_mut(usize::from(part.thread) % count) else { continue };
            let first_lane = usize::from(part.thread) * usize::from(gateway.wan.lanes);
            let publisher = Publisher::new(
                part,
                thread.peers.is_empty(),
                first_lane,
                &peer.telemetry,
                &peer.recorder,
                flows.clone(),
                nothing.clone(),
            );
            let (to, settings) = (to.clone(), settings.clone());
            let (retained, why) = match retained.take(number.into(), part.thread) {
                Ok(retained) => (Some(retained), None),
                Err(why) => (None, Some(why)),
            };
            if let Some(why) = &why {
                peer.telemetry.set_no_retention(format!("{why}; {}", why.remedy()));
            }
            let publisher = publisher.without_retention(why);
            thread.peers.push(PeerResources { to, part, settings, bulk, share, retained, publisher });
        }
    }
    Ok(threads)
}

fn limits(gateway: &config::Gateway) -> Limits {
    Limits {
        link_rate_bytes: gateway.peer.rate.bytes_per_second(),
        buffer_bytes: gateway.limits.total_buffer.bytes(),
        flows: gateway.limits.flows.into(),
    }
}

/// Returns true if some requester may be told of what its target has not.
fn completes_locally(policy: &Policy) -> bool {
    policy.classes().iter().any(|class| class.completion == Completion::Local)
}

/// Puts back what was changed on this machine. The kernel makes whoever asks wait while somebody
/// else changes its rules; rules that
/// remain are taken over at the next start.
async fn remove(guard: Guard) -> Result<(), RunError> {
    match timeout(PART, spawn_blocking(move || guard.remove())).await {
        Ok(Ok(removed)) => Ok(removed?),
        Ok(Err(_)) | Err(_) => {
            warn!("policy routing rules may remain: the kernel did not answer in time");
            Ok(())
        }
    }
}

fn settings(gateway: &config::Gateway, policy: &Arc<Policy>, lan_mtu: usize) -> Settings {
    let limits = &gateway.limits;
    let datagram = max_datagram(gateway.wan.longest_packet(), gateway.wan.listen.is_ipv6());
    let max_packet = usize::from(datagram).saturating_sub(OVERHEAD);
    let ip_udp = usize::from(gateway.wan.longest_packet()).saturating_sub(usize::from(datagram));
    Settings {
        policy: Arc::clone(policy),
        lan_mtu,
        notify_backlog: gateway.lan.notify,
        local: gateway.lan.local.clone(),
        groups: gateway.lan.multicast.clone(),
        congestion: gateway.peer.congestion,
        find_mtu: gateway.wan.probe_mtu,
        lanes: gateway.wan.lanes,
        base_packet: BASE_DATAGRAM - OVERHEAD,
        ip_overhead: OVERHEAD + ip_udp,
        packet_overhead: OVERHEAD + ip_udp + ETHERNET,
        flow_buffer: limits.flow_buffer.map(|size| size.as_usize()),
        total_buffer: limits.total_buffer.as_usize(),
        flows: limits.flows as usize,
        idle_flow: limits.idle_flow.get(),
        target_dead: limits.target_dead.get(),
        rnr: limits.rnr.get(),
        probes: ProbeConfig { per_second: gateway.wan.probes, ..ProbeConfig::default() },
        grouping: Grouping::new(RandomState::new().hash_one(0)),
        is_member: gateway.is_member(),
        ..Settings::new(gateway.lan.remote.clone(), gateway.peer.rate.bits_per_second(), max_packet)
    }
}

/// Returns the bytes of memory that a gateway of these files takes at most. `policy`: that which
/// the gateway file names for all peers.
#[must_use]
pub fn most_memory(gateway: &config::Gateway, policy: &Policy) -> usize {
    let policy = Arc::new(policy.clone());
    gateway.views().iter().map(|view| memory_of(view, &settings(view, &policy, MAX_PACKET))).sum()
}

/// Each pair of threads has a part, and what is least for each of them. Beside that a peer tells of
/// pairings, and each lane of two sessions at a time has a window against replays.
fn memory_of(view: &config::Gateway, settings: &Settings) -> usize {
    let threads = view.thread_pairs();
    let part = workers::part_of(settings, Part { thread: 0, threads });
    let lanes = usize::from(threads) * usize::from(view.wan.lanes);
    let windows = 2 * lanes * (REPLAY_WINDOW / 8) as usize;
    let told = MAX_PAIRINGS * size_of::<Pairing>();
    usize::from(threads).saturating_mul(part.most_memory()).saturating_add(windows + told)
}

/// Before the name of an interface.
const LOCK: &str = "longhaul/lan/";

fn lock_name(interface: &str) -> String {
    format!("{LOCK}{interface}")
}

/// Returns the interface that a lock of this name is for.
fn locked_interface(name: &[u8]) -> Option<&str> {
    std::str::from_utf8(name).ok()?.strip_prefix(LOCK)
}

/// Keeps other gateways of this machine, or of its network name space, off the interface for as
/// long as the returned value lives. To be called before system calls are filtered.
///
/// # Errors
/// [`RunError::Taken`], [`RunError::System`].
pub fn lock(lan: &config::Lan) -> Result<Option<UnixListener>, RunError> {
    let LanMode::Packet { interface } = &lan.mode else { return Ok(None) };
    // An abstract name goes with its process. It belongs to the network name space, as interfaces
    // do.
    let name = UnixAddress::from_abstract_name(lock_name(interface));
    match name.and_then(|name| UnixListener::bind_addr(&name)) {
        Ok(lock) => Ok(Some(lock)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(RunError::Taken(interface.clone())),
        Err(error) => Err(RunError::System(error)),
    }
}

/// Header and frame check sequence; what preamble and gap add is the provisioned rate's own affair.
const ETHERNET: usize = 18;
