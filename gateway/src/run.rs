//! `longhaul gateway`: everything of one running gateway, from its files to its end.

mod chooser;
mod devices;
mod guarding;
mod patience;
mod publisher;
#[cfg(test)]
mod strangers;
mod supervisor;
mod telling;
mod workers;

use std::io;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{Congestion, LanMode, Policy};
use devices::Devices;
use guarding::Guarding;
use patience::Teller;
pub use patience::remedy;
use publisher::Publisher;
use reliability::estimator::ProbeConfig;
use reliability::mtu::BASE_DATAGRAM;
use session::control::{self, Control, StartError};
use session::identity::{Identity, IdentityError, SerialNumber};
use session::key_log::KeyLog;
use session::message::{Ciphers, Pairing};
use session::seal::max_datagram;
use session::{Cipher, OVERHEAD};
use splice::Settings;
use supervisor::{PART, Stop, Supervisor, pulsing};
use tokio::net::TcpListener;
use tokio::sync::{mpsc as async_mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::timeout;
use tracing::{info, warn};
use workers::{PeerResources, Threads, WorkerResources};

use crate::admin::{Admin, Doors, Serving};
use crate::cells::Cells;
use crate::choose::PathSnapshot;
use crate::events::{EventKind, EventLog};
use crate::lan::guard::{Guard, GuardError};
use crate::lan::packet::{Packet, PacketConfig};
use crate::lan::socket::{Socket, SocketConfig};
use crate::lan::{Lan, MAX_PACKET};
use crate::plane::{PeerAddress, Share};
use crate::recorder::Recorder;
use crate::renewal::Stamp;
use crate::requests::{Answer, Reloads, Requests};
use crate::service::Notifier;
use crate::steering::{self, Key, Part};
use crate::telemetry::{Limits, Telemetry};
use crate::wan::{Bulk, BulkConfig, EcnCodepoint};

const _: () =
    assert!(config::Wan::MOST_LANES == session::MOST_LANES, "a session carries every lane of a file");
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
    /// Where the keys of bulk data are logged, if anywhere.
    pub key_log: Option<KeyLog>,
}

/// Runs a gateway until `stop` completes (or its sender is gone), then stops it gracefully: within
/// `limits.drain` flows finish or end in an error, and what was changed on this machine is put
/// back. Until then it reads its policy file again whenever `reloads` says so; `requests` is the
/// way there for the admin listener. `notifier` hears when it is ready.
///
/// # Errors
/// See [`RunError`].
pub async fn run(
    files: Files,
    mut stop: oneshot::Receiver<()>,
    requests: Requests,
    reloads: Reloads,
    notifier: &Arc<Notifier>,
) -> Result<(), RunError> {
    let Files { gateway, policies, path, doors, key_log } = files;
    let stamp = Stamp::of(&gateway.identity);
    let identity =
        Identity::load(&gateway.identity.certificate, &gateway.identity.key, &gateway.identity.authority)?;
    let events = EventLog::default();
    let log_of =
        |peer: &str| if gateway.others.is_empty() { EventLog::default() } else { events.about(peer) };
    let towards = |(view, policy): (config::Gateway, Policy)| {
        let log = log_of(&view.peer.name);
        Towards::new(view, policy, log)
    };
    let peers: Vec<_> = gateway.views().into_iter().zip(policies).map(towards).collect();
    let telemetries: Vec<_> = peers.iter().map(|peer| Arc::clone(&peer.telemetry)).collect();
    let teller = Teller { notifier, telemetries: &telemetries };
    let bind = || bind_controls(&gateway, &peers, (&identity, &key_log));
    let Some(controls) = patience::until_there(&mut stop, &teller, bind).await? else { return Ok(()) };
    let Some((mut guard, lans)) = local_side(&gateway, &mut stop, &teller).await? else { return Ok(()) };
    let resources = resources(&gateway, &peers, lans)?;
    let sightings: Vec<Vec<_>> = (0..peers.len())
        .map(|nth| resources.iter().filter_map(|thread| thread.peers.get(nth)).map(sightings_of).collect())
        .collect();
    let (threads, workers) = Threads::start(resources, gateway.data_plane.busy_poll.get())?;
    let mut choosers = Vec::new();
    for ((workers, sightings), telemetry) in workers.iter().zip(sightings).zip(&telemetries) {
        choosers.push(workers.choose(sightings, Arc::clone(telemetry))?);
    }
    let (admins, listener) = listen(&gateway, doors, &peers, requests.clone()).await?;
    tell_start(&gateway, &telemetries, notifier);
    let (stopping, stopped) = watch::channel(Stop::No);
    let (mut tasks, mut asks) = (JoinSet::new(), Vec::new());
    let mut admins = admins.into_iter();
    for (nth, ((peer, control), workers)) in peers.into_iter().zip(controls).zip(workers).enumerate() {
        let (ask, asked) = async_mpsc::channel(1);
        asks.push(ask);
        let renewal = (path.clone(), (identity.clone(), stamp.clone()));
        let place = (!gateway.others.is_empty()).then_some(nth);
        let supervisor = Supervisor::new(peer, control, workers, renewal, admins.next(), place);
        tasks.spawn(supervisor.run(asked, stopped.clone()));
    }
    let mut lan = (Devices::of(&gateway.lan.mode), &mut guard, &telemetries[..]);
    let mut ended = watch_over(&threads, &mut tasks, &mut lan, (reloads, asks), stop).await;
    stopping.send_replace(if ended.is_ok() { Stop::Drain } else { Stop::AtOnce });
    let rest = async {
        while let Some(task) = tasks.join_next().await {
            let task = task.unwrap_or(Err(RunError::PlaneEnded));
            ended = std::mem::replace(&mut ended, Ok(())).and(task);
        }
    };
    pulsing(&telemetries, rest).await;
    drop(choosers);
    close(threads, guard, listener).await?;
    ended
}

/// Looks after everything until it is time to stop. From then on who asks for a reload hears that
/// it is too late.
async fn watch_over(
    threads: &Threads,
    tasks: &mut JoinSet<Result<(), RunError>>,
    (devices, guard, telemetries): &mut (Devices, &mut Guarding, &[Arc<Telemetry>]),
    (mut reloads, asks): (Reloads, Vec<async_mpsc::Sender<oneshot::Sender<Answer>>>),
    mut stop: oneshot::Receiver<()>,
) -> Result<(), RunError> {
    let mut watchdog = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = &mut stop => return Ok(()),
            Some(ended) = tasks.join_next() => return ended.unwrap_or(Err(RunError::PlaneEnded)),
            Some(reply) = reloads.recv() => {
                // Whoever asked may not have waited.
                let _ = reply.send(reload_at_all(&asks).await);
            }
            _ = watchdog.tick() => {
                if threads.has_ended() {
                    return Err(RunError::PlaneEnded);
                }
                if let Some(telemetry) = telemetries.first() {
                    guard.look(telemetry).await;
                    devices.look(telemetry, Instant::now()).await;
                }
            }
        }
    }
}

fn sightings_of(peer: &PeerResources) -> watch::Receiver<PathSnapshot> {
    peer.publisher.sightings()
}

fn tell_start(gateway: &config::Gateway, telemetries: &[Arc<Telemetry>], notifier: &Arc<Notifier>) {
    let version = env!("CARGO_PKG_VERSION");
    let names: Vec<&str> = gateway.peers().map(|peer| peer.name.as_str()).collect();
    let peer = names.join(", ");
    if let Some(telemetry) = telemetries.first() {
        telemetry.events().push(EventKind::Started, &format!("version {version}"));
    }
    info!(version, site = gateway.site.name, peer, "gateway started");
    notifier.status(&format!("running: site {}, peer {peer}", gateway.site.name));
    notifier.ready(telemetries);
}

/// Has the files read again for each peer, and puts the answers together.
async fn reload_at_all(asks: &[async_mpsc::Sender<oneshot::Sender<Answer>>]) -> Answer {
    // All at once: whoever asks waits for a few seconds only.
    let mut waiting = Vec::new();
    for ask in asks {
        let (reply, answer) = oneshot::channel();
        if ask.send(reply).await.is_ok() {
            waiting.push(answer);
        }
    }
    let mut answers = Vec::new();
    for answer in waiting {
        answers.extend(answer.await);
    }
    Answer::of_all(answers)
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

/// One peer, before its supervisor runs.
struct Towards {
    /// The gateway as if it had no other peer.
    gateway: config::Gateway,
    policy: Policy,
    telemetry: Arc<Telemetry>,
    /// By thread.
    flows: Vec<watch::Sender<Arc<[Pairing]>>>,
    recorder: Arc<Recorder>,
}

impl Towards {
    fn new(gateway: config::Gateway, policy: Policy, events: EventLog) -> Self {
        let telemetry = Telemetry::new(Instant::now())
            .with_limits(limits(&gateway), gateway.peer.dead_after.get())
            .with_events(events);
        let parts = Part::all(gateway.data_plane.threads);
        let flows = parts.map(|_| watch::Sender::new(Arc::<[Pairing]>::from([]))).collect();
        Self { gateway, policy, telemetry: Arc::new(telemetry), flows, recorder: Arc::default() }
    }
}

/// Opens the socket, or a socket for each of several peers on one port.
fn bind_controls(
    gateway: &config::Gateway,
    peers: &[Towards],
    identity: (&Identity, &Option<KeyLog>),
) -> Result<Vec<Control>, RunError> {
    let mut configs =
        peers.iter().map(|peer| control_config(&peer.gateway, identity, &peer.flows, &peer.telemetry));
    if let [_] = peers {
        return configs.map(|config| Ok(Control::bind(config)?)).collect();
    }
    let address = gateway.wan.listen;
    let sockets = steering::bind_for_peers(address, &peer_addresses(gateway), None)
        .map_err(|source| StartError::Bind { address, source })?;
    let sockets = sockets.into_iter().flatten();
    sockets.zip(&mut configs).map(|(socket, config)| Ok(Control::on(socket, config)?)).collect()
}

fn peer_addresses(gateway: &config::Gateway) -> Vec<IpAddr> {
    gateway.peers().map(|peer| peer.address.ip()).collect()
}

/// Makes the resources that each data-plane thread owns.
fn resources(
    gateway: &config::Gateway,
    peers: &[Towards],
    lans: Vec<Lan>,
) -> Result<Vec<WorkerResources>, RunError> {
    let threads = gateway.data_plane.threads;
    let lan_mtu = lans.first().map_or(Ok(MAX_PACKET), |lan| lan_mtu(lan, &gateway.lan))?;
    let mut threads: Vec<_> = Part::all(threads)
        .zip(lans)
        .map(|(part, lan)| WorkerResources { part, lan, peers: Vec::new() })
        .collect();
    for (nth, (peer, bulks)) in peers.iter().zip(open_bulk(gateway, peers)?).enumerate() {
        // The very same for all threads and the chooser: that is how orders tell for which policy
        // they are.
        let shared = Arc::new(peer.policy.clone());
        let settings = settings(&peer.gateway, &shared, lan_mtu);
        let cells = Arc::new(Cells::new(&peer.policy));
        let nothing = PathSnapshot::nothing(Arc::clone(&shared), cells);
        let shares = Share::all(settings.rate, gateway.data_plane.threads, Instant::now());
        let to = PeerAddress {
            name: peer.gateway.peer.name.clone(),
            bulk: peer.gateway.peer.bulk_address(),
            remote: peer.gateway.lan.remote.clone(),
            max_packet: settings.max_packet,
        };
        let each = threads.iter_mut().zip(&peer.flows).zip(bulks).zip(shares);
        for (((thread, flows), bulk), share) in each {
            let first_lane = usize::from(thread.part.thread) * usize::from(gateway.wan.lanes);
            let publisher = Publisher::new(
                thread.part,
                nth == 0,
                first_lane,
                &peer.telemetry,
                &peer.recorder,
                flows.clone(),
                nothing.clone(),
            );
            let (to, settings) = (to.clone(), settings.clone());
            thread.peers.push(PeerResources { to, settings, bulk, share, publisher });
        }
    }
    Ok(threads)
}

/// Serves admin, where the gateway file asks for it. Returns what answers for each peer.
async fn listen(
    gateway: &config::Gateway,
    doors: Doors,
    peers: &[Towards],
    requests: Requests,
) -> Result<(Vec<Arc<Admin>>, Serving), RunError> {
    let Some(config) = &gateway.admin else { return Ok((Vec::new(), Serving::new())) };
    let address = config.listen;
    let listener = TcpListener::bind(address).await.map_err(|source| RunError::Admin { address, source })?;
    let (socket, token) = doors.into_parts();
    let admin_of = |peer: &Towards| {
        let Towards { gateway, policy, telemetry, recorder, .. } = peer;
        let (telemetry, recorder) = (Arc::clone(telemetry), Arc::clone(recorder));
        Admin::new(gateway, policy, telemetry, recorder, requests.clone(), Instant::now())
    };
    let others: Vec<_> = peers.iter().skip(1).map(|peer| Arc::new(admin_of(peer))).collect();
    let Some(first) = peers.first() else { return Ok((Vec::new(), Serving::new())) };
    let admin = Arc::new(admin_of(first).with_token(token).with_others(others.clone()));
    let serving = admin.start(listener.into(), socket).map_err(RunError::System)?;
    Ok((std::iter::once(admin).chain(others).collect(), serving))
}

/// Opens the LAN, for each data-plane thread, as soon as it is there. `None`: the gateway is to
/// stop.
async fn local_side(
    gateway: &config::Gateway,
    stop: &mut oneshot::Receiver<()>,
    teller: &Teller<'_>,
) -> Result<Option<(Guarding, Vec<Lan>)>, RunError> {
    // Before the first packet can come: rules go by names, and need no interface.
    let guard = match &gateway.lan.mode {
        LanMode::Packet { interface } => Some(Guard::install(interface, &gateway.lan.remote)?),
        LanMode::Socket { .. } => None,
    };
    let open = || open_lan(&gateway.lan, gateway.data_plane.threads);
    let lans = patience::until_there(stop, teller, open).await?;
    Ok(lans.map(|lans| (Guarding::new(guard), lans)))
}

fn limits(gateway: &config::Gateway) -> Limits {
    Limits {
        link_rate_bytes: gateway.peer.rate.bytes_per_second(),
        buffer_bytes: gateway.limits.total_buffer.bytes(),
        flows: gateway.limits.flows.into(),
    }
}

fn control_config(
    gateway: &config::Gateway,
    (identity, key_log): (&Identity, &Option<KeyLog>),
    flows: &[watch::Sender<Arc<[Pairing]>>],
    telemetry: &Telemetry,
) -> control::Config {
    control::Config {
        site: gateway.site.name.clone(),
        peer: gateway.peer.name.clone(),
        listen: gateway.wan.listen,
        peer_address: gateway.peer.address,
        identity: identity.clone(),
        revoked: gateway.peer.revoked.iter().map(|serial| SerialNumber::new(serial.as_bytes())).collect(),
        dead_after: gateway.peer.dead_after.get(),
        resume_for: gateway.peer.resume_for.get(),
        // What this gateway sends is another matter.
        max_datagram: max_datagram(config::Wan::LARGEST, gateway.wan.listen.is_ipv6()),
        lanes: gateway.wan.lanes,
        threads: gateway.data_plane.threads,
        ciphers: ciphers(&gateway.wan.ciphers),
        remote: gateway.lan.remote.clone(),
        pairings: flows.iter().map(watch::Sender::subscribe).collect(),
        build: env!("CARGO_PKG_VERSION").to_owned(),
        pulse: telemetry.control_pulse(),
        refusals: telemetry.refusals(),
        key_log: key_log.clone(),
    }
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

fn ciphers(allowed: &[config::Cipher]) -> Ciphers {
    let allowed: Vec<_> = allowed
        .iter()
        .map(|cipher| match cipher {
            config::Cipher::Aegis128L => Cipher::Aegis128L,
            config::Cipher::Aes128Gcm => Cipher::Aes128Gcm,
            config::Cipher::ChaCha20Poly1305 => Cipher::ChaCha20Poly1305,
        })
        .collect();
    Ciphers::detect(&allowed)
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
        ..Settings::new(gateway.lan.remote.clone(), gateway.peer.rate.bits_per_second(), max_packet)
    }
}

/// Returns the bytes of memory that a gateway of these files takes at most. `policy`: that which
/// the gateway file names for all peers.
#[must_use]
pub fn most_memory(gateway: &config::Gateway, policy: &Policy) -> usize {
    let policy = Arc::new(policy.clone());
    gateway.views().iter().map(|view| settings(view, &policy, MAX_PACKET).most_memory()).sum()
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
    let name = UnixAddress::from_abstract_name(format!("longhaul/lan/{interface}"));
    match name.and_then(|name| UnixListener::bind_addr(&name)) {
        Ok(lock) => Ok(Some(lock)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(RunError::Taken(interface.clone())),
        Err(error) => Err(RunError::System(error)),
    }
}

/// Header and frame check sequence; what preamble and gap add is the provisioned rate's own affair.
const ETHERNET: usize = 18;

/// For each data-plane thread.
fn open_lan(lan: &config::Lan, threads: u8) -> Result<Vec<Lan>, RunError> {
    let mtu = lan.mtu.map_or(MAX_PACKET, usize::from);
    match &lan.mode {
        LanMode::Packet { interface } => Part::all(threads)
            .map(|part| {
                let groups = lan.multicast.clone();
                Packet::open(&PacketConfig { mtu, part, groups, ..PacketConfig::new(interface) })
            })
            .map(|packet| packet.map(Lan::Packet))
            .collect::<io::Result<_>>()
            .map_err(|source| RunError::Lan { what: interface.clone(), source }),
        LanMode::Socket { listen, hosts } => {
            let config = SocketConfig {
                listen: *listen,
                hosts: hosts.iter().map(|(inner, outer)| (*inner, *outer)).collect(),
                learn: true,
                mtu,
                udp: BulkConfig::default(),
            };
            Socket::bind_all(&config, threads)
                .map(|sockets| sockets.into_iter().map(Lan::Socket).collect())
                .map_err(|source| RunError::Lan { what: listen.to_string(), source })
        }
    }
}

/// The longest IP packet for the LAN as it is now; the data plane goes on watching it.
fn lan_mtu(lan: &Lan, config: &config::Lan) -> Result<usize, RunError> {
    let LanMode::Packet { interface } = &config.mode else { return Ok(lan.mtu().unwrap_or(MAX_PACKET)) };
    let mtu = lan.mtu().map_err(|source| RunError::Lan { what: interface.clone(), source })?;
    if let Some(configured) = config.mtu
        && usize::from(configured) > mtu
    {
        warn!(configured, interface, mtu, "lan.mtu is more than can be sent; the lesser value holds");
    }
    Ok(mtu)
}

/// For each peer, and for each data-plane thread. Peers share the ports.
fn open_bulk(gateway: &config::Gateway, peers: &[Towards]) -> Result<Vec<Vec<Bulk>>, RunError> {
    let (wan, threads) = (&gateway.wan, gateway.data_plane.threads);
    let address = wan.bulk_listen();
    let failed = |address| move |source| RunError::Bulk { address, source };
    let is_one = peers.len() < 2;
    let sockets = match is_one {
        true => steering::bind(address, threads, Key::Sender).map(|sockets| vec![sockets]),
        false => steering::bind_for_peers(address, &peer_addresses(gateway), Some(threads)),
    };
    let mut all = Vec::new();
    for (nth, (peer, sockets)) in peers.iter().zip(sockets.map_err(failed(address))?).enumerate() {
        // Marks tell of congestion where somebody answers to them.
        let adaptive = peer.gateway.peer.congestion == Congestion::Adaptive;
        let ecn = adaptive.then_some(EcnCodepoint::Ect0);
        let config = BulkConfig { gso: wan.gso, ecn, ..BulkConfig::default() };
        let mut bulks = Vec::new();
        for (part, socket) in Part::all(threads).zip(sockets) {
            let mut bulk = Bulk::from_socket(socket, config).map_err(failed(address))?;
            let mut lanes = wan.lanes_of(part.thread);
            // All receive by the same port; the first thread also sends by it.
            match part.thread {
                0 => drop(lanes.next()),
                _ => bulk = bulk.without_lanes(),
            }
            for lane in lanes {
                let socket = steering::bind_lane(lane, nth == 0, !is_one).map_err(failed(lane))?;
                bulk.add_lane_by(socket).map_err(failed(lane))?;
            }
            bulks.push(bulk);
        }
        all.push(bulks);
    }
    Ok(all)
}
