//! `longhaul gateway`: everything of one running gateway, from its files to its end.

use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use config::{Congestion, LanMode, Policy};
use reliability::estimator::ProbeConfig;
use reliability::mtu::BASE_DATAGRAM;
use reliability::selector;
use roce::wire::{Psn, Qpn};
use splice::{Gateway, Remembered, SessionEnd, Settings, Stood};
use tokio::sync::{mpsc as async_mpsc, oneshot, watch};
use tracing::{info, warn};

use crate::admin::Admin;
use crate::choose::thread::ChooserThread;
use crate::choose::{Chooser, Sighting};
use crate::lan::guard::{Guard, GuardError};
use crate::lan::packet::{Packet, PacketConfig};
use crate::lan::socket::{Socket, SocketConfig};
use crate::lan::wake::{Waker, waker};
use crate::lan::{Lan, MAX_PACKET};
use crate::plane::{Counts, Observer, Order, Plane};
use crate::record::Recorder;
use crate::reload::{Reloader, Reloads, Requests};
use crate::session::control::{self, Command, Control, DownReason, Event, Refusals, StartError};
use crate::session::identity::{Identity, IdentityError};
use crate::session::message::{Ciphers, Direction, GoodbyeReason, MAX_PAIRINGS, Pairing};
use crate::session::seal::max_datagram;
use crate::session::{Cipher, OVERHEAD};
use crate::telemetry::{self, Cells, ClassSnapshot, SessionState, Snapshot, Telemetry};
use crate::wan::{Bulk, BulkConfig, EcnCodepoint};

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
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The kernel could not be kept from forwarding what the gateway carries.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// The bulk socket could not be opened.
    #[error("cannot open the bulk socket {address}")]
    Bulk {
        /// Its address.
        address: std::net::SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The admin listener could not be opened.
    #[error("cannot open the admin listener")]
    Admin(#[source] io::Error),
    /// Threads, signals or descriptors are not to be had.
    #[error("the system refused a resource")]
    System(#[source] io::Error),
    /// The data-plane thread ended by itself.
    #[error("the data plane ended by itself")]
    PlaneEnded,
}

/// A gateway's files, read and checked.
#[derive(Clone, Debug)]
pub struct Files {
    /// The gateway file.
    pub gateway: config::Gateway,
    /// The policy file's classes, or the default.
    pub policy: config::Policy,
}

/// Runs a gateway until `stop` completes (or its sender is gone), then stops it gracefully: within `limits.drain` flows finish or end in
/// an error, and what was changed on this machine is put back. Until then it reads its policy file again whenever `reloads` says so; `requests` is the
/// way there for the admin listener.
///
/// # Errors
/// See [`RunError`].
pub async fn run(
    files: Files,
    stop: oneshot::Receiver<()>,
    requests: Requests,
    reloads: Reloads,
) -> Result<(), RunError> {
    let Files { gateway, policy } = files;
    let identity =
        Identity::load(&gateway.identity.certificate, &gateway.identity.key, &gateway.identity.authority)?;
    let telemetry = Arc::new(Telemetry::new(Instant::now()));
    let (pairings, pairings_seen) = watch::channel(Arc::<[Pairing]>::from([]));
    let ipv6 = gateway.wan.listen.is_ipv6();
    let datagram = max_datagram(gateway.wan.longest_packet(), ipv6);
    let refusals = Arc::new(Refusals::default());
    let control = Control::bind(control::Config {
        site: gateway.site.name.clone(),
        peer: gateway.peer.name.clone(),
        listen: gateway.wan.listen,
        peer_address: gateway.peer.address,
        identity,
        dead_after: gateway.peer.dead_after.get(),
        // What this gateway sends is another matter.
        max_datagram: max_datagram(config::Wan::LARGEST, ipv6),
        lanes: gateway.wan.lanes,
        ciphers: ciphers(&gateway.wan.ciphers),
        pairings: pairings_seen,
        refusals: Arc::clone(&refusals),
    })?;
    let lan = open_lan(&gateway.lan)?;
    let guard = match &gateway.lan.mode {
        LanMode::Packet { interface } => Some(Guard::install(interface, &gateway.lan.remote)?),
        LanMode::Socket { .. } => None,
    };
    let bulk = open_bulk(&gateway)?;
    let settings = settings(&gateway, &policy, datagram, lan_mtu(&lan, &gateway.lan)?);
    let recorder = Arc::new(Recorder::default());
    let cells = Arc::new(Cells::new(&policy));
    let nothing = Sighting::nothing(Arc::new(policy.clone()), Arc::clone(&cells));
    let (sightings, sighted) = watch::channel(nothing);
    let publisher = Publisher {
        plane: telemetry.plane(),
        recorder: Arc::clone(&recorder),
        cells,
        restarted: Vec::new(),
        pairings: pairings.clone(),
        sightings,
        shown: 0,
        next: Instant::now(),
    };
    let busy_poll = gateway.plane.busy_poll.get();
    let plane = PlaneThread::start(settings, lan, bulk, gateway.peer.bulk_address(), publisher, busy_poll)?;
    let chooser = plane.choose(sighted, Arc::clone(&telemetry))?;
    let (admin, listener) = match &gateway.admin {
        Some(config) => {
            let listener = tokio::net::TcpListener::bind(config.listen).await.map_err(RunError::Admin)?;
            let (telemetry, recorder) = (Arc::clone(&telemetry), Arc::clone(&recorder));
            let admin = Admin::new(&gateway, &policy, telemetry, recorder, requests, Instant::now());
            let admin = Arc::new(admin);
            (Some(Arc::clone(&admin)), Some(tokio::spawn(admin.serve(listener))))
        }
        None => (None, None),
    };
    info!(site = gateway.site.name, peer = gateway.peer.name, "gateway started");
    let drain = gateway.limits.drain.get();
    let reloader = Reloader::new(gateway, policy, Arc::clone(&telemetry), admin);
    let ended = supervise(control, &plane, &telemetry, &pairings, (reloader, reloads), drain, stop).await;
    drop(chooser);
    plane.stop().await?;
    if let Some(guard) = guard {
        guard.remove()?;
    }
    if let Some(listener) = listener {
        listener.abort();
    }
    info!("gateway stopped");
    ended
}

/// Passes the sessions that control finds on to the data plane, and the policies that are asked for, until it is time to stop.
async fn supervise(
    control: Control,
    plane: &PlaneThread,
    telemetry: &Telemetry,
    pairings: &watch::Sender<Arc<[Pairing]>>,
    (mut reloader, mut reloads): (Reloader, Reloads),
    drain: Duration,
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
                Some(event) => handle_event(event, plane, telemetry, pairings).await,
                None => break Ok(()),
            },
            Some(reply) = reloads.recv() => {
                let answer = reloader.reload(async |policy, cells| plane.adopt(policy, cells).await).await;
                // Whoever asked may not have waited.
                let _ = reply.send(answer);
            }
            _ = watchdog.tick() => if plane.has_ended() { break Err(RunError::PlaneEnded) },
        }
    };
    // From here on who asks hears that it is too late.
    drop(reloads);
    if ended.is_ok() {
        telemetry.session(SessionState::Draining, None, Instant::now());
        info!(within = ?drain, "stopping: no new flows, those there may finish");
        let (reply, quiet) = oneshot::channel();
        plane.order(Order::Drain(Instant::now() + drain, reply));
        if !quiet.await.unwrap_or(true) {
            warn!("flows were still busy at the end of the drain time; they end in errors");
        }
        let (reply, done) = oneshot::channel();
        plane.order(Order::Down(SessionEnd::Closed, reply));
        // The thread may be gone already.
        let _ = done.await;
    }
    let (reply, parted) = oneshot::channel();
    plane.order(Order::Part(Instant::now() + PART, reply));
    // If control is gone, so is whoever would hear it.
    let _ = commands.send(Command::Goodbye(GoodbyeReason::Shutdown)).await;
    events.close();
    if control.await.is_err() {
        warn!("the control connection did not end cleanly");
    }
    if ended.is_ok() {
        // Who has not heard of it by then goes without.
        let _ = parted.await;
    }
    ended
}

/// How long programs have to hear that their flows are over: some tries of ours, and a timeout of theirs.
const PART: Duration = Duration::from_secs(1);

async fn handle_event(
    event: Event,
    plane: &PlaneThread,
    telemetry: &Telemetry,
    pairings: &watch::Sender<Arc<[Pairing]>>,
) {
    match event {
        Event::Up(session) => {
            telemetry.session(SessionState::Up, None, Instant::now());
            plane.order(Order::Up {
                sealer: Box::new(session.sealer),
                opener: Box::new(session.opener),
                rtt: session.peer.rtt,
                max_packet: usize::from(session.peer.max_datagram).saturating_sub(OVERHEAD),
                lanes: session.peer.lanes,
                remembered: session.pairings.iter().filter_map(from_wire).collect(),
            });
        }
        Event::Down(reason) => {
            telemetry.session(SessionState::Connecting, Some(reason.to_string()), Instant::now());
            let (reply, done) = oneshot::channel();
            let end = match reason {
                DownReason::Silent => SessionEnd::Silence,
                _ => SessionEnd::Closed,
            };
            plane.order(Order::Down(end, reply));
            // Until its flows have ended, no new session may begin. What the plane last showed of them may lack the youngest.
            if let Ok(flows) = done.await {
                pairings.send_replace(flows.iter().take(MAX_PAIRINGS).map(to_wire).collect());
            }
        }
        Event::Stats(_) => {}
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

fn settings(gateway: &config::Gateway, policy: &config::Policy, datagram: u16, lan_mtu: usize) -> Settings {
    let limits = &gateway.limits;
    let max_packet = usize::from(datagram).saturating_sub(OVERHEAD);
    let ip_udp = usize::from(gateway.wan.longest_packet()).saturating_sub(usize::from(datagram));
    Settings {
        policy: policy.clone(),
        lan_mtu,
        notify_backlog: gateway.lan.notify,
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

/// Header and frame check sequence; what preamble and gap add is the provisioned rate's own affair.
const ETHERNET: usize = 18;

fn open_lan(lan: &config::Lan) -> Result<Lan, RunError> {
    let mtu = lan.mtu.map_or(MAX_PACKET, usize::from);
    match &lan.mode {
        LanMode::Packet { interface } => Packet::open(&PacketConfig { mtu, ..PacketConfig::new(interface) })
            .map(Lan::Packet)
            .map_err(|source| RunError::Lan { what: interface.clone(), source }),
        LanMode::Socket { listen, hosts } => {
            let config = SocketConfig {
                listen: *listen,
                hosts: hosts.iter().map(|(inner, outer)| (*inner, *outer)).collect(),
                learn: true,
                mtu,
                udp: BulkConfig::default(),
            };
            Socket::bind(&config)
                .map(Lan::Socket)
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

fn open_bulk(gateway: &config::Gateway) -> Result<Bulk, RunError> {
    let address = gateway.wan.bulk_listen();
    // Marks tell of congestion where somebody answers to them.
    let adaptive = gateway.peer.congestion == Congestion::Adaptive;
    let ecn = adaptive.then_some(EcnCodepoint::Ect0);
    let config = BulkConfig { gso: gateway.wan.gso, ecn, ..BulkConfig::default() };
    let failed = |address| move |source| RunError::Bulk { address, source };
    let mut bulk = Bulk::bind(address, config).map_err(failed(address))?;
    for lane in gateway.wan.further_lanes() {
        bulk.add_lane(lane).map_err(failed(lane))?;
    }
    Ok(bulk)
}

/// The data-plane thread, and the way to talk to it.
struct PlaneThread {
    orders: mpsc::Sender<Order>,
    waker: Waker,
    thread: JoinHandle<io::Result<()>>,
}

impl PlaneThread {
    fn start(
        settings: Settings,
        lan: Lan,
        bulk: Bulk,
        peer: std::net::SocketAddr,
        publisher: Publisher,
        busy_poll: Duration,
    ) -> Result<Self, RunError> {
        let (orders, receiver) = mpsc::channel();
        let (waker, wakeup) = waker().map_err(RunError::System)?;
        let max_packet = settings.max_packet;
        let thread = std::thread::Builder::new()
            .name("data-plane".to_owned())
            .spawn(move || {
                let now = Instant::now();
                let core = Gateway::new(settings, now);
                Plane::new(core, lan, bulk, peer, max_packet, receiver, wakeup, publisher, now)
                    .with_busy_poll(busy_poll)
                    .run()
            })
            .map_err(RunError::System)?;
        Ok(Self { orders, waker, thread })
    }

    fn order(&self, order: Order) {
        // Fails only when the thread has ended, which the watchdog reports.
        let _ = self.orders.send(order);
        self.waker.wake();
    }

    /// Starts the thread that chooses the schemes of this one.
    fn choose(
        &self,
        sightings: watch::Receiver<Sighting>,
        telemetry: Arc<Telemetry>,
    ) -> Result<ChooserThread, RunError> {
        let (orders, waker) = (self.orders.clone(), self.waker.clone());
        let order = move |policy: &Arc<Policy>, class, tuning| {
            // Fails only when the data plane has ended.
            let _ = orders.send(Order::Scheme { policy: Arc::clone(policy), class, tuning });
            waker.wake();
        };
        let chooser = Chooser::new(selector::Config::default());
        ChooserThread::start(chooser, sightings, telemetry, order).map_err(RunError::System)
    }

    /// Puts a policy in force, or says why not.
    async fn adopt(&self, policy: Policy, cells: Cells) -> Result<(), String> {
        let (reply, adopted) = oneshot::channel();
        self.order(Order::Policy(Arc::new(policy), Arc::new(cells), reply));
        match adopted.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(undrained)) => {
                Err(format!("{undrained}; they empty themselves, so try again in a moment"))
            }
            Err(_) => Err("the data plane has ended".to_owned()),
        }
    }

    fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    async fn stop(self) -> Result<(), RunError> {
        self.order(Order::Stop);
        let thread = self.thread;
        match tokio::task::spawn_blocking(move || thread.join()).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(RunError::System(error)),
            Ok(Err(_)) | Err(_) => Err(RunError::PlaneEnded),
        }
    }
}

/// Hands the data plane's numbers to telemetry, and its flows to the control connection, for the day they are needed.
struct Publisher {
    plane: Arc<telemetry::Plane>,
    recorder: Arc<Recorder>,
    cells: Arc<Cells>,
    /// Cells that have got another class since the last observation.
    restarted: Vec<usize>,
    pairings: watch::Sender<Arc<[Pairing]>>,
    /// For the chooser. It takes a copy at once, so that the data plane never waits for it.
    sightings: watch::Sender<Sighting>,
    /// Flows last shown.
    shown: usize,
    next: Instant,
}

/// Showing many flows takes a while, so it is done the more rarely the more there are.
const SHOW_FLOWS_PER_SECOND: u32 = 10_000;

impl Observer for Publisher {
    fn observe(&mut self, core: &mut Gateway, counts: &Counts, bulk: &Bulk, lan: &Lan, session: bool) {
        let mut snapshot = Snapshot::default();
        snapshot.set_core(core.stats());
        snapshot.set_counts(counts);
        snapshot.set_wan(bulk.stats());
        snapshot.set_lan(lan);
        for (cell, class) in self.cells.order().iter().zip(core.classes()) {
            snapshot.set_class(*cell, &class);
        }
        for cell in self.restarted.drain(..) {
            self.plane.restart(cell, snapshot.classes.get(cell).unwrap_or(&ClassSnapshot::default()));
        }
        let now = Instant::now();
        let way = core.way(now);
        snapshot.set_way(way.as_ref());
        core.paths(now).for_each(|lane| snapshot.set_lane(&lane));
        self.plane.store(&snapshot);
        self.sightings.send_replace(Sighting::of(core, session, way, Arc::clone(&self.cells)));
        self.recorder.take(session, |take| core.drain_runs(take));
        if session && now >= self.next {
            self.show_flows(core, now);
        }
    }

    fn reclassify(&mut self, cells: Arc<Cells>) {
        self.restarted = cells.changed(&self.cells).collect();
        self.cells = cells;
    }
}

impl Publisher {
    fn show_flows(&mut self, core: &Gateway, now: Instant) {
        let flows: Arc<[Pairing]> = core.remembered().take(MAX_PAIRINGS).map(|flow| to_wire(&flow)).collect();
        let count = u32::try_from(flows.len()).unwrap_or(u32::MAX);
        self.next = now + Duration::from_secs(1) * count / SHOW_FLOWS_PER_SECOND;
        if !flows.is_empty() || self.shown > 0 {
            self.shown = flows.len();
            self.pairings.send_replace(flows);
        }
    }
}

fn to_wire(flow: &Remembered) -> Pairing {
    Pairing {
        direction: match flow.stood {
            Stood::Near => Direction::Outbound,
            Stood::Far => Direction::Inbound,
        },
        requester: flow.requester,
        target: flow.target,
        target_qpn: flow.target_qpn.get(),
        requester_qpn: Some(flow.requester_qpn.get()),
        psn: Some(flow.psn.get()),
    }
}

fn from_wire(pairing: &Pairing) -> Option<Remembered> {
    Some(Remembered {
        requester: pairing.requester,
        target: pairing.target,
        target_qpn: Qpn::new(pairing.target_qpn),
        requester_qpn: Qpn::new(pairing.requester_qpn?),
        psn: Psn::new(pairing.psn?),
        stood: match pairing.direction {
            Direction::Outbound => Stood::Near,
            Direction::Inbound => Stood::Far,
        },
    })
}
