//! Sockets of a gateway: new ones, or those of the process whose place it takes.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use config::{Congestion, LanMode};
use session::control::{self, Control, StartError};
use session::identity::{Identity, SerialNumber};
use session::key_log::KeyLog;
use session::message::Ciphers;
use session::seal::max_datagram;
use session::{Cipher, ThreadCounts};
use tokio::sync::{oneshot, watch};
use tracing::warn;

use super::front::Front;
use super::guarding::Guarding;
use super::patience::{self, Teller};
use super::{RunError, Towards, takeover};
use crate::lan::guard::Guard;
use crate::lan::packet::{Packet, PacketConfig};
use crate::lan::socket::{Socket, SocketConfig};
use crate::lan::{Lan, MAX_PACKET};
use crate::steering::{self, Key, Part};
use crate::upgrade::{Heir, NotTaken, Place};
use crate::wan::{Bulk, BulkConfig, EcnCodepoint};
use crate::zone;

/// Makes the control connections, each with a socket of its own, of which copies are returned as
/// well.
pub(super) fn bind_controls(
    gateway: &config::Gateway,
    peers: &[Towards],
    identity: (&Identity, &Option<KeyLog>),
    heir: Option<&mut Heir>,
) -> Result<(Vec<Control>, Vec<UdpSocket>), RunError> {
    let make = match heir {
        None => Control::on,
        Some(_) => Control::behind_gate,
    };
    let failed = |source| StartError::Bind { address: gateway.wan.listen, source };
    let address = zone::wan_at_now(&gateway.wan).map_err(failed)?.listen;
    // The peer's may come later, and is looked for again.
    peers.iter().for_each(Towards::look_for_interface);
    let sockets = control_sockets(gateway, peers, address, heir)?;
    let copies = sockets.iter().map(UdpSocket::try_clone).collect::<io::Result<_>>().map_err(failed)?;
    let configs = peers.iter().map(|peer| control_config(peer, identity));
    let controls = sockets.into_iter().zip(configs).map(|(socket, config)| make(socket, config));
    Ok((controls.collect::<Result<_, _>>()?, copies))
}

/// A socket, or one for each of several peers on one port.
fn control_sockets(
    gateway: &config::Gateway,
    peers: &[Towards],
    address: SocketAddr,
    heir: Option<&mut Heir>,
) -> Result<Vec<UdpSocket>, RunError> {
    if let Some(heir) = heir {
        let take = |(nth, _)| takeover::socket(heir, Place::Control(nth), "wan.listen", address);
        return Ok((0..).zip(peers).map(take).collect::<Result<_, _>>()?);
    }
    let alone: Vec<_> = gateway.peers().map(|peer| (peer.address.ip(), None)).collect();
    let sockets = match peers {
        [_] => UdpSocket::bind(address).map(|socket| vec![vec![socket]]),
        _ => steering::bind_for_peers(address, &alone),
    };
    let sockets = sockets.map_err(|source| StartError::Bind { address, source })?;
    Ok(sockets.into_iter().flatten().collect())
}

fn control_config(peer: &Towards, (identity, key_log): (&Identity, &Option<KeyLog>)) -> control::Config {
    let Towards { gateway, telemetry, flows, .. } = peer;
    control::Config {
        site: gateway.site.name.clone(),
        peer: gateway.peer.name.clone(),
        listen: gateway.wan.listen,
        peer_address: gateway.peer.address,
        peer_scope: Arc::clone(&peer.scope),
        identity: identity.clone(),
        revoked: gateway.peer.revoked.iter().map(|serial| SerialNumber::new(serial.as_bytes())).collect(),
        dead_after: gateway.peer.dead_after.get(),
        resume_for: gateway.peer.resume_for.get(),
        outlives: Arc::clone(&peer.outlives),
        // What this gateway sends is another matter.
        max_datagram: max_datagram(config::Wan::LARGEST, gateway.wan.listen.is_ipv6()),
        lanes: gateway.wan.lanes,
        threads: thread_counts(gateway),
        ciphers: ciphers(&gateway.wan.ciphers),
        remote: gateway.lan.remote.clone(),
        pairings: flows.iter().map(watch::Sender::subscribe).collect(),
        build: env!("CARGO_PKG_VERSION").to_owned(),
        pulse: telemetry.control_pulse(),
        refusals: telemetry.refusals(),
        key_log: key_log.clone(),
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

/// Returns the numbers of threads here and at the peer of a view.
fn thread_counts(view: &config::Gateway) -> ThreadCounts {
    let here = view.data_plane.threads;
    ThreadCounts { here, there: view.peer.threads(here) }
}

/// Opens the LAN, for each data-plane thread, as soon as it is there. `None`: the gateway is to
/// stop. `are_shared`: the running gateway has its rules on the same interface.
pub(super) async fn local_side(
    (gateway, are_shared): (&config::Gateway, bool),
    mut heir: Option<&mut Heir>,
    stop: &mut oneshot::Receiver<()>,
    teller: &mut Teller<'_>,
) -> Result<Option<(Guarding, Vec<Lan>)>, RunError> {
    // Before the first packet can come: rules go by names, and need no interface.
    let mut guard = match &gateway.lan.mode {
        LanMode::Packet { interface } => Some(Guard::install(interface, &gateway.lan.remote)?),
        LanMode::Socket { .. } => None,
    };
    // Should this process not take over, the rules are the other's still.
    guard.iter_mut().for_each(|guard| guard.share(are_shared));
    let open = || open_lan(&gateway.lan, gateway.data_plane.threads, heir.as_deref_mut());
    let lans = patience::until_there(stop, teller, open).await?;
    Ok(lans.map(|lans| (Guarding::new(guard), lans)))
}

/// Opens the admin listeners as soon as their address is there. `None`: the gateway is to stop.
pub(super) async fn admin_side<'a>(
    teller: &mut Teller<'a>,
    mut heir: Option<&mut Heir>,
    stop: &mut oneshot::Receiver<()>,
) -> Result<Option<Front<'a>>, RunError> {
    let Some(mut front) = teller.front.take() else { return Ok(None) };
    let open = || front.open(heir.as_deref_mut());
    let opened = patience::until_there(stop, teller, open).await?;
    Ok(opened.map(|()| front))
}

/// For each data-plane thread.
fn open_lan(lan: &config::Lan, threads: u8, heir: Option<&mut Heir>) -> Result<Vec<Lan>, RunError> {
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
            let opened = match heir {
                None => Socket::bind_all(&config, threads),
                Some(heir) => {
                    let take = |nth| takeover::socket(heir, Place::Lan(nth), "lan.listen", *listen);
                    Socket::adopt_all(&config, (0..threads).map(take).collect::<Result<_, _>>()?)
                }
            };
            opened
                .map(|sockets| sockets.into_iter().map(Lan::Socket).collect())
                .map_err(|source| RunError::Lan { what: listen.to_string(), source })
        }
    }
}

/// The longest IP packet for the LAN as it is now; the data plane goes on watching it.
pub(super) fn lan_mtu(lan: &Lan, config: &config::Lan) -> Result<usize, RunError> {
    let LanMode::Packet { interface } = &config.mode else { return Ok(lan.mtu().unwrap_or(MAX_PACKET)) };
    let mtu = lan.mtu().map_err(|source| RunError::Lan { what: interface.clone(), source })?;
    if let Some(configured) = config.mtu
        && usize::from(configured) > mtu
    {
        warn!(configured, interface, mtu, "lan.mtu is more than can be sent; the lesser value holds");
    }
    Ok(mtu)
}

/// For each peer, and for each pair of a thread here and one of the peer's. Peers share the ports.
pub(super) fn open_bulk(
    gateway: &config::Gateway,
    peers: &[Towards],
    mut heir: Option<&mut Heir>,
) -> Result<Vec<Vec<Bulk>>, RunError> {
    let failed = |address| move |source| RunError::Bulk { address, source };
    let wan = zone::wan_at_now(&gateway.wan).map_err(failed(gateway.wan.bulk_listen()))?;
    let address = wan.bulk_listen();
    let is_one = peers.len() < 2;
    let mut all = Vec::new();
    // Pairs whose ports some peer has before.
    let mut bound = 0;
    for ((nth, peer), sockets) in
        (0..).zip(peers).zip(bulk_sockets((gateway, address), peers, heir.as_deref_mut())?)
    {
        // Marks tell of congestion where somebody answers to them.
        let adaptive = peer.gateway.peer.congestion == Congestion::Adaptive;
        let ecn = adaptive.then_some(EcnCodepoint::Ect0);
        let config = BulkConfig { gso: wan.gso, ecn, ..BulkConfig::default() };
        let mut bulks = Vec::new();
        let pairs = peer.gateway.thread_pairs();
        for (part, socket) in Part::all(pairs).zip(sockets) {
            let mut bulk = Bulk::from_socket(socket, config).map_err(failed(address))?;
            let mut lanes = wan.lanes_of(part.thread);
            // All receive by the same port; the first pair also sends by it.
            match part.thread {
                0 => drop(lanes.next()),
                _ => bulk = bulk.without_lanes(),
            }
            for (further, lane) in (1..).zip(lanes) {
                let socket = match &mut heir {
                    None => {
                        let is_first = part.thread >= bound;
                        steering::bind_lane(lane, is_first, !is_one).map_err(failed(lane))?
                    }
                    Some(heir) => {
                        takeover::socket(heir, Place::Bulk(nth, part.thread, further), "wan.lanes", lane)?
                    }
                };
                bulk.add_lane_by(socket).map_err(failed(lane))?;
            }
            bulks.push(bulk);
        }
        bound = bound.max(pairs);
        all.push(bulks);
    }
    Ok(all)
}

/// Those that receive, for each peer and for each pair of threads.
fn bulk_sockets(
    (gateway, address): (&config::Gateway, SocketAddr),
    peers: &[Towards],
    heir: Option<&mut Heir>,
) -> Result<Vec<Vec<UdpSocket>>, RunError> {
    let threads = gateway.data_plane.threads;
    if let Some(heir) = heir {
        let mut take =
            |peer, pair| takeover::socket(heir, Place::Bulk(peer, pair, 0), "the port of bulk data", address);
        let of_peer = |(number, peer): (u8, &Towards)| {
            (0..peer.gateway.thread_pairs()).map(|pair| take(number, pair)).collect()
        };
        return Ok((0..).zip(peers).map(of_peer).collect::<Result<_, NotTaken>>()?);
    }
    let sockets = match peers {
        [peer] => {
            let key = Key::Threads(peer.gateway.peer.threads(threads));
            steering::bind(address, threads, key).map(|sockets| vec![sockets])
        }
        _ => {
            let of_peer =
                |peer: &Towards| (peer.gateway.peer.address.ip(), Some(thread_counts(&peer.gateway)));
            steering::bind_for_peers(address, &peers.iter().map(of_peer).collect::<Vec<_>>())
        }
    };
    sockets.map_err(|source| RunError::Bulk { address, source })
}
