//! `longhaul gateway`: everything of one running gateway, from its files to its end.

mod chooser;
mod guarding;
mod patience;
mod publisher;
#[cfg(test)]
mod strangers;
mod telling;
mod workers;

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{Congestion, LanMode, Policy};
use guarding::Guarding;
use patience::Teller;
pub use patience::remedy;
use publisher::Publisher;
use reliability::estimator::ProbeConfig;
use reliability::mtu::BASE_DATAGRAM;
use session::control::{self, Command, Control, DownReason, Event, StartError};
use session::identity::{Identity, IdentityError, SerialNumber};
use session::key_log::KeyLog;
use session::message::{Ciphers, GoodbyeReason, Pairing};
use session::seal::max_datagram;
use session::{Cipher, OVERHEAD};
use splice::{SessionEnd, Settings};
use telling::Telling;
use tokio::net::TcpListener;
use tokio::sync::{mpsc as async_mpsc, oneshot, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::{info, warn};
use workers::{WorkerResources, Workers};

use crate::admin::{Admin, Doors, Serving};
use crate::cells::Cells;
use crate::choose::PathSnapshot;
use crate::lan::guard::{Guard, GuardError};
use crate::lan::packet::{Packet, PacketConfig};
use crate::lan::socket::{Socket, SocketConfig};
use crate::lan::{Lan, MAX_PACKET};
use crate::logs::printable;
use crate::plane::Share;
use crate::recorder::Recorder;
use crate::reload::{Reloader, reload_all};
use crate::renewal::{Renewal, Stamp};
use crate::requests::{Reloads, Requests};
use crate::service::Notifier;
use crate::steering::{self, Key, Part};
use crate::telemetry::{Limits, SessionState, Telemetry, Validity};
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
    /// The policy file's classes, or the default.
    pub policy: config::Policy,
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
    let Files { gateway, policy, path, doors, key_log } = files;
    let stamp = Stamp::of(&gateway.identity);
    let identity =
        Identity::load(&gateway.identity.certificate, &gateway.identity.key, &gateway.identity.authority)?;
    let patience = gateway.peer.dead_after.get();
    let telemetry = Telemetry::new(Instant::now()).with_limits(limits(&gateway), patience);
    let telemetry = Arc::new(telemetry);
    let threads = gateway.data_plane.threads;
    let flows: Vec<_> = Part::all(threads).map(|_| watch::Sender::new(Arc::<[Pairing]>::from([]))).collect();
    let teller = Teller { notifier, telemetry: &telemetry };
    let bind = || Ok(Control::bind(control_config(&gateway, (&identity, &key_log), &flows, &telemetry))?);
    let Some(control) = patience::until_there(&mut stop, &teller, bind).await? else { return Ok(()) };
    let Some((mut guard, lans)) = local_side(&gateway, &mut stop, &teller).await? else { return Ok(()) };
    let lan_mtu = lans.first().map_or(Ok(MAX_PACKET), |lan| lan_mtu(lan, &gateway.lan))?;
    // The very same for all threads and the chooser: that is how orders tell for which policy they
    // are.
    let shared = Arc::new(policy.clone());
    let settings = settings(&gateway, &shared, lan_mtu);
    let recorder = Arc::new(Recorder::default());
    let cells = Arc::new(Cells::new(&policy));
    let nothing = PathSnapshot::nothing(Arc::clone(&shared), cells);
    let bulks = open_bulk(&gateway)?;
    let shares = Share::all(settings.rate, threads, Instant::now());
    let mut resources = Vec::new();
    let sockets = lans.into_iter().zip(bulks).zip(shares);
    for ((part, flows), ((lan, bulk), share)) in Part::all(threads).zip(&flows).zip(sockets) {
        let first_lane = usize::from(part.thread) * usize::from(gateway.wan.lanes);
        let publisher =
            Publisher::new(part, first_lane, &telemetry, &recorder, flows.clone(), nothing.clone());
        resources.push(WorkerResources { part, lan, bulk, share, publisher });
    }
    let sighted = resources.iter().map(|resources| resources.publisher.sightings()).collect();
    let busy_poll = gateway.data_plane.busy_poll.get();
    let workers = Workers::start(&settings, resources, gateway.peer.bulk_address(), busy_poll)?;
    let chooser = workers.choose(sighted, Arc::clone(&telemetry))?;
    let (admin, listener) =
        listen(&gateway, doors, &policy, &telemetry, &flows, recorder, requests.clone()).await?;
    let version = env!("CARGO_PKG_VERSION");
    telemetry.events().push("started", &format!("version {version}"));
    info!(version, site = gateway.site.name, peer = gateway.peer.name, "gateway started");
    notifier.status(&format!("running: site {}, peer {}", gateway.site.name, gateway.peer.name));
    notifier.ready(&telemetry);
    let times = Times { drain: gateway.limits.drain.get(), dead_after: gateway.peer.dead_after.get() };
    let renewal = Renewal::new(path, &gateway, (identity, stamp), control.renewal(), Arc::clone(&telemetry));
    let telling = Telling::new(gateway.wan.listen, gateway.peer.address);
    let reloading = (Reloader::new(gateway, policy, Arc::clone(&telemetry), admin), renewal, reloads);
    let ended =
        supervise(control, &workers, &telemetry, &flows, reloading, (&mut guard, telling), times, stop).await;
    drop(chooser);
    close(workers, guard, listener).await?;
    ended
}

/// Ends the threads, and puts back what was changed on this machine.
async fn close(workers: Workers, guard: Guarding, listener: Serving) -> Result<(), RunError> {
    workers.stop().await?;
    if let Some(guard) = guard.end().await {
        remove(guard).await?;
    }
    listener.iter().for_each(JoinHandle::abort);
    info!("gateway stopped");
    Ok(())
}

/// Serves admin, where the gateway file asks for it.
async fn listen(
    gateway: &config::Gateway,
    doors: Doors,
    policy: &Policy,
    telemetry: &Arc<Telemetry>,
    flows: &[watch::Sender<Arc<[Pairing]>>],
    recorder: Arc<Recorder>,
    requests: Requests,
) -> Result<(Option<Arc<Admin>>, Serving), RunError> {
    let Some(config) = &gateway.admin else { return Ok((None, Serving::new())) };
    let address = config.listen;
    let listener = TcpListener::bind(address).await.map_err(|source| RunError::Admin { address, source })?;
    let shown = flows.iter().map(watch::Sender::subscribe).collect();
    let admin = Admin::new(gateway, policy, Arc::clone(telemetry), recorder, requests, Instant::now());
    let (socket, token) = doors.into_parts();
    let admin = Arc::new(admin.with_flows(shown).with_token(token));
    let serving = admin.start(listener.into(), socket).map_err(RunError::System)?;
    Ok((Some(admin), serving))
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

/// How long the end of things is waited for.
struct Times {
    /// That of flows, when the gateway stops.
    drain: Duration,
    /// That of a session whose peer is silent.
    dead_after: Duration,
}

/// Passes the sessions that control finds on to the data plane, and the policies that are asked
/// for, until it is time to stop.
#[expect(clippy::too_many_arguments, reason = "each is another part of the one gateway")]
async fn supervise(
    control: Control,
    workers: &Workers,
    telemetry: &Telemetry,
    flows: &[watch::Sender<Arc<[Pairing]>>],
    (mut reloader, mut renewal, mut reloads): (Reloader, Renewal, Reloads),
    (guard, mut telling): (&mut Guarding, Telling),
    Times { drain, dead_after }: Times,
    mut stop: oneshot::Receiver<()>,
) -> Result<(), RunError> {
    let (events_in, mut events) = async_mpsc::channel(16);
    let (commands, commands_out) = async_mpsc::channel(4);
    let control = tokio::spawn(control.run(events_in, commands_out));
    let mut watchdog = tokio::time::interval(Duration::from_secs(1));
    let ended = loop {
        tokio::select! {
            _ = &mut stop => break Ok(()),
            event = events.recv() => match event {
                Some(event) => handle_event(event, workers, telemetry, flows, dead_after).await,
                None => break Ok(()),
            },
            Some(reply) = reloads.recv() => {
                let adopt = async |policy, cells| workers.adopt(policy, cells).await;
                let answer = reload_all(&mut renewal, &mut reloader, adopt).await;
                // Whoever asked may not have waited.
                let _ = reply.send(answer);
            }
            _ = watchdog.tick() => {
                if workers.has_ended() {
                    break Err(RunError::PlaneEnded);
                }
                telling.look(telemetry, Instant::now());
                guard.look(telemetry).await;
                renewal.look().await;
                telemetry.pulse();
            }
        }
    };
    // From here on who asks hears that it is too late.
    drop(reloads);
    if ended.is_ok() {
        telemetry.session(SessionState::Draining, None, Instant::now());
        info!(within = ?drain, "stopping: no new flows, those there may finish");
        pulsing(telemetry, wind_up(workers, drain)).await;
    }
    let parted = workers.await_shutdown(Instant::now() + PART);
    // If control is gone, so is whoever would hear it.
    let _ = commands.send(Command::Goodbye(GoodbyeReason::Shutdown)).await;
    events.close();
    if control.await.is_err() {
        warn!("the control connection did not end cleanly");
    }
    if ended.is_ok() {
        // Who has not heard of it by then goes without.
        parted.all().await;
    }
    ended
}

/// Lets flows finish, and ends those that are left.
async fn wind_up(workers: &Workers, drain: Duration) {
    if !workers.drain(Instant::now() + drain).await {
        warn!("flows were still busy at the end of the drain time; they end in errors");
    }
    workers.down(SessionEnd::Closed).await;
}

/// Waits for an end that may take long, and shows all the while that somebody does.
async fn pulsing(telemetry: &Telemetry, end: impl Future<Output = ()>) {
    let mut end = pin!(end);
    let mut pulses = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            () = &mut end => return,
            _ = pulses.tick() => telemetry.pulse(),
        }
    }
}

/// How long programs have to hear that their flows are over. Where a target has not answered since
/// a rest, only what a requester comes back to three times can be refused: two timeouts of its NIC,
/// of half a second each, and some tries of ours.
const PART: Duration = Duration::from_secs(3);

async fn handle_event(
    event: Event,
    workers: &Workers,
    telemetry: &Telemetry,
    flows: &[watch::Sender<Arc<[Pairing]>>],
    dead_after: Duration,
) {
    match event {
        Event::Up(session) => {
            let (resumes, site) = (session.resumes, session.peer.site.clone());
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
            telemetry.events().push("session_up", &text);
            let flows: usize = workers.up(*session).all().await.iter().sum();
            if resumes {
                info!(peer = site, flows, "the session goes on; so many flows waited for it");
            }
        }
        Event::Lost(reason) => {
            let why = printable(&reason.to_string());
            // Keys that are used up, or of a certificate that is revoked, serve no more.
            let is_over = matches!(reason, DownReason::Spent | DownReason::Revoked);
            let patience = (!is_over).then_some(dead_after);
            let (known, waiting) = workers.lost(patience).await;
            warn!(reason = why, flows = waiting, "session lost; so many flows wait for it to go on");
            telemetry.events().push("session_lost", &format!("{why}; {waiting} flows wait for it to go on"));
            telemetry.session(SessionState::Lost, Some(why), Instant::now());
            for (flows, known) in flows.iter().zip(known) {
                flows.send_replace(known);
            }
        }
        Event::Down(reason) => {
            let why = printable(&reason.to_string());
            let open: u64 = telemetry.snapshot(Instant::now()).flows.iter().sum();
            telemetry.events().push("session_lost", &format!("{why}; {open} flows were open"));
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

/// Returns the bytes of memory that a gateway of these files takes at most.
#[must_use]
pub fn most_memory(gateway: &config::Gateway, policy: &Policy) -> usize {
    settings(gateway, &Arc::new(policy.clone()), MAX_PACKET).most_memory()
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

/// For each data-plane thread.
fn open_bulk(gateway: &config::Gateway) -> Result<Vec<Bulk>, RunError> {
    let (wan, threads) = (&gateway.wan, gateway.data_plane.threads);
    let address = wan.bulk_listen();
    // Marks tell of congestion where somebody answers to them.
    let adaptive = gateway.peer.congestion == Congestion::Adaptive;
    let ecn = adaptive.then_some(EcnCodepoint::Ect0);
    let config = BulkConfig { gso: wan.gso, ecn, ..BulkConfig::default() };
    let failed = |address| move |source| RunError::Bulk { address, source };
    let sockets = steering::bind(address, threads, Key::Sender).map_err(failed(address))?;
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
            bulk.add_lane(lane).map_err(failed(lane))?;
        }
        bulks.push(bulk);
    }
    Ok(bulks)
}
