//! The emulator and the software hosts as commands, for a program of ours to offer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use roce::wire::PathMtu;

use crate::hostio::{
    Bound, Endpoint, EndpointConfig, EndpointError, Limit, Mix, Report, Role, Workload, run_pair,
};
use link_emulator::{Bridge, BridgeSpec, EmulatorStats, Interface, Port, Relay, RelaySpec, Side};
use linksim::impair::LinkSpec;
use soft_nic::QpConfig;

/// How often to look whether to stop.
const TICK: Duration = Duration::from_millis(50);

/// Relays UDP between two sides through an impaired link.
#[derive(Debug, Clone, clap::Args)]
pub struct RelayArgs {
    /// A port mapping `A_LISTEN[>A_PEER],B_LISTEN[>B_PEER]`; a side without a peer is answered
    /// where it last sent from. May be repeated.
    #[arg(long = "port", value_parser = parse_port, required = true)]
    pub ports: Vec<Port>,
    /// The link from A to B, e.g. "delay 10ms loss 1% rate 200mbit limit 1000".
    #[arg(long, default_value = "")]
    pub a_to_b: LinkSpec,
    /// The link from B to A; that from A to B if not given.
    #[arg(long)]
    pub b_to_a: Option<LinkSpec>,
    /// Seed of both links.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Stop after so many seconds; otherwise run until ended.
    #[arg(long)]
    pub seconds: Option<f64>,
}

/// Runs a relay until its time is over or `stop` is set.
pub fn run_relay(args: &RelayArgs, stop: &AtomicBool) -> std::io::Result<EmulatorStats> {
    let b_to_a = args.b_to_a.unwrap_or(args.a_to_b);
    let spec =
        RelaySpec { ports: args.ports.clone(), lanes: 1, a_to_b: args.a_to_b, b_to_a, seed: args.seed };
    let relay = Relay::start(&spec)?;
    wait_until(args.seconds, stop, || relay.is_running());
    relay.stop()
}

/// Bridges two interfaces through an impaired link.
#[derive(Debug, Clone, clap::Args)]
pub struct BridgeArgs {
    /// Side A: an interface, or NETNS:INTERFACE.
    pub a: Interface,
    /// Side B.
    pub b: Interface,
    /// The link from A to B, e.g. "delay 10ms loss 1% rate 200mbit limit 1000".
    #[arg(long, default_value = "")]
    pub a_to_b: LinkSpec,
    /// The link from B to A; that from A to B if not given.
    #[arg(long)]
    pub b_to_a: Option<LinkSpec>,
    /// Seed of both links.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Stop after so many seconds; otherwise run until ended.
    #[arg(long)]
    pub seconds: Option<f64>,
}

/// Runs a bridge until its time is over or `stop` is set.
pub fn run_bridge(args: &BridgeArgs, stop: &AtomicBool) -> std::io::Result<EmulatorStats> {
    let bridge = Bridge::start(&BridgeSpec {
        a: args.a.clone(),
        b: args.b.clone(),
        a_to_b: args.a_to_b,
        b_to_a: args.b_to_a.unwrap_or(args.a_to_b),
        seed: args.seed,
    })?;
    wait_until(args.seconds, stop, || bridge.is_running());
    bridge.stop()
}

/// Runs RDMA operations between two software hosts in this process.
#[derive(Debug, Clone, clap::Args)]
pub struct RdmaArgs {
    /// Where the client sends its packets: a gateway's LAN socket. Without it the hosts talk to
    /// each other directly.
    #[arg(long, requires = "server_gateway")]
    pub client_gateway: Option<SocketAddr>,
    /// Where the server sends its packets.
    #[arg(long, requires = "client_gateway")]
    pub server_gateway: Option<SocketAddr>,
    /// The client's socket.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub client_bind: SocketAddr,
    /// The server's socket.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub server_bind: SocketAddr,
    /// The client's address in its packets.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)))]
    pub client_ip: IpAddr,
    /// The server's address in its packets.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1)))]
    pub server_ip: IpAddr,
    /// Queue pairs.
    #[arg(long, default_value_t = 4)]
    pub qps: u32,
    /// Bytes per message.
    #[arg(long, default_value_t = 65536)]
    pub size: u32,
    /// Messages outstanding per queue pair.
    #[arg(long, default_value_t = 16)]
    pub depth: u32,
    /// Weights of the operations: write, write with immediate, send, read, atomic.
    #[arg(long, value_parser = parse_mix, default_value = "1,0,0,0,0")]
    pub mix: Mix,
    /// Seconds to run.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Seconds at the start that are not measured.
    #[arg(long, default_value_t = 0.5)]
    pub warmup: f64,
    /// Path MTU: 256, 512, 1024, 2048 or 4096.
    #[arg(long, value_parser = parse_mtu, default_value = "4096")]
    pub mtu: PathMtu,
    /// Most packets not acknowledged per queue pair.
    #[arg(long, default_value_t = 128)]
    pub window: u32,
    /// ACK timeout in milliseconds.
    #[arg(long, default_value_t = 67.0)]
    pub timeout: f64,
    /// Check all contents.
    #[arg(long)]
    pub verify: bool,
    /// Seed of contents and order.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Runs the workload to its end; the reports of client and server.
pub fn run_rdma(args: &RdmaArgs) -> Result<(Report, Report), EndpointError> {
    let workload = workload(args)?;
    let (client, server) = (Bound::new(args.client_bind)?, Bound::new(args.server_bind)?);
    let client_config = EndpointConfig {
        bind: args.client_bind,
        gateway: args.client_gateway.unwrap_or(server.address()?),
        ip: args.client_ip,
        remote_ip: args.server_ip,
        role: Role::Client,
        workload: workload.clone(),
    };
    let server_config = EndpointConfig {
        bind: args.server_bind,
        gateway: args.server_gateway.unwrap_or(client.address()?),
        ip: args.server_ip,
        remote_ip: args.client_ip,
        role: Role::Server,
        workload,
    };
    let server = Endpoint::start_on(server, &server_config)?;
    run_pair(Endpoint::start_on(client, &client_config)?, server)
}

fn workload(args: &RdmaArgs) -> Result<Workload, EndpointError> {
    let seconds =
        |seconds: f64, what| Duration::try_from_secs_f64(seconds).map_err(|_| EndpointError::Workload(what));
    let timeout = seconds(args.timeout / 1e3, "the timeout is not a time")?;
    Ok(Workload {
        qps: args.qps,
        mix: args.mix,
        message: args.size,
        limit: Limit::Time(seconds(args.seconds, "the duration is not a time")?),
        depth: args.depth,
        warmup: seconds(args.warmup, "the warm-up is not a time")?,
        verify: args.verify,
        seed: args.seed,
        qp: QpConfig { mtu: args.mtu, window: args.window, timeout: Some(timeout), ..QpConfig::default() },
        ..Workload::default()
    })
}

fn wait_until(seconds: Option<f64>, stop: &AtomicBool, running: impl Fn() -> bool) {
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let end = duration.and_then(|duration| Instant::now().checked_add(duration));
    while running() && !stop.load(Ordering::Acquire) && end.is_none_or(|end| Instant::now() < end) {
        std::thread::sleep(TICK);
    }
}

fn parse_port(text: &str) -> Result<Port, String> {
    let (a, b) = text.split_once(',').ok_or("two sides with a comma between are wanted")?;
    Ok(Port { a: parse_side(a)?, b: parse_side(b)? })
}

fn parse_side(text: &str) -> Result<Side, String> {
    let address = |text: &str| {
        text.trim().parse().map_err(|_| format!("`{text}` is not an address such as 127.0.0.1:5000"))
    };
    match text.split_once('>') {
        Some((listen, peer)) => {
            Ok(Side { listen: address(listen)?, peer: Some(address(peer)?), learn: false })
        }
        None => Ok(Side { listen: address(text)?, peer: None, learn: true }),
    }
}

fn parse_mix(text: &str) -> Result<Mix, String> {
    let wanted = || format!("`{text}` is not five weights such as 1,0,0,0,0");
    let weights: Vec<u32> =
        text.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| wanted())?;
    match weights.as_slice() {
        &[write, write_imm, send, read, atomic] => Ok(Mix { write, write_imm, send, read, atomic }),
        _ => Err(wanted()),
    }
}

fn parse_mtu(text: &str) -> Result<PathMtu, String> {
    let mtu = text.parse().ok().and_then(PathMtu::from_bytes);
    mtu.ok_or_else(|| format!("`{text}` is not one of 256, 512, 1024, 2048, 4096"))
}
