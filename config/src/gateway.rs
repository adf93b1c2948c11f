//! The gateway file: its types here, reading them in `sections`, the checks across sections in
//! `clashes`.

mod blocks;
mod clashes;
mod members;
mod sections;
mod values;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;

use crate::policy::{Policy, read_policy};
use crate::problem::{Invalid, Problem};
use crate::read;
use crate::serial::Serial;
use crate::units::{ByteSize, Duration, Rate};

pub(crate) use blocks::{SlowBlocks, slow_blocks};
pub(crate) use members::check_policy as check_members_policy;
pub use members::number as member_number;
pub(crate) use sections::read_gateway;
pub use values::is_site_name;

/// A gateway file. Paths in it are resolved against the file's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// `[site]`
    pub site: Site,
    /// `[lan]`
    pub lan: Lan,
    /// `[wan]`
    pub wan: Wan,
    /// `[peer]`, or the first `[[peer]]`.
    pub peer: Peer,
    /// The further `[[peer]]`s, and the other gateways of this site; [`Gateway::MOST_PEERS`] in all
    /// at most.
    pub others: Vec<Peer>,
    /// `[identity]`
    pub identity: Identity,
    /// `[admin]`; without the section there is no admin listener.
    pub admin: Option<Admin>,
    /// `[policy]`
    pub policy: PolicyFile,
    /// `[limits]`
    pub limits: Limits,
    /// `[retention]`
    pub retention: Retention,
    /// `[data_plane]`
    pub data_plane: DataPlane,
    /// `[security]`
    pub security: Security,
}

/// `[site]`: this gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// A DNS label (lower case), also the name in the certificate. The site whose name sorts first
    /// dials.
    pub name: String,
    /// All gateways of the site, this one among them; empty if it is the only one.
    pub gateways: Vec<SiteGateway>,
}

/// One of `site.gateways`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteGateway {
    /// Its `site.name`.
    pub name: String,
    /// Its `wan.listen`.
    pub address: SocketAddr,
    /// As [`Peer::zone`].
    pub zone: Option<String>,
}

/// `[lan]`: the side of the RDMA hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lan {
    /// How packets are taken from and given to the hosts.
    pub mode: LanMode,
    /// The prefixes behind all peers, which do not overlap; at least one.
    pub remote: Vec<IpNet>,
    /// Where this site's hosts are; empty: anywhere that is not behind a peer.
    pub local: Vec<IpNet>,
    /// The groups that both sites share, without duplicates; [`Lan::MOST_GROUPS`] at most, none in
    /// socket mode.
    pub multicast: Vec<IpAddr>,
    /// The largest IP packet on the LAN side in bytes; `None` is the interface's own MTU.
    pub mtu: Option<u16>,
    /// Hosts that send faster than the link carries are told so by congestion notifications.
    pub notify: bool,
}

impl Lan {
    /// Multicast groups at most: each is a membership on the interface, and a comparison for each
    /// multicast packet that comes by it.
    pub const MOST_GROUPS: usize = 64;
    /// Prefixes behind a peer that it is told of at most. If there are more, it is told of none.
    pub const MOST_TOLD: usize = 64;
    /// Bytes of IP, UDP, BTH, RETH and ICRC in a packet of RoCE at most, beyond its payload.
    const ROCE_HEADERS: u32 = 80;
    const PATH_MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];
    /// The path MTU that most queue pairs have at least, as the usual MTU of 1500 holds it.
    pub const USUAL_PATH_MTU: u32 = 1024;

    /// Returns the largest path MTU of RoCE whose packets are no longer than an IP packet of so
    /// many bytes; 0 if none is.
    #[must_use]
    pub fn path_mtu(packet: u32) -> u32 {
        let fits = |path_mtu: &u32| path_mtu + Self::ROCE_HEADERS <= packet;
        Self::PATH_MTUS.into_iter().rev().find(fits).unwrap_or(0)
    }
}

/// `lan.mode`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LanMode {
    /// Raw packets on an interface; the gateway is the next hop for the remote prefixes.
    Packet {
        /// The interface's name.
        interface: String,
    },
    /// UDP datagrams, each holding one whole IP packet.
    Socket {
        /// Where the hosts send to.
        listen: SocketAddr,
        /// Each local host: the address inside its IP packets, and where it receives UDP.
        hosts: BTreeMap<IpAddr, SocketAddr>,
    },
}

/// `[wan]`: the side of the long link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wan {
    /// The QUIC control port (UDP); bulk data uses the next port up, which therefore exists.
    pub listen: SocketAddr,
    /// The name of the interface that a link-local `listen` is on (RFC 4007, section 11), whose
    /// index is to be put in. `None`: the file has an index, or the address needs none.
    pub zone: Option<String>,
    /// The largest IP packet to send over the WAN, in bytes.
    pub mtu: Option<u16>,
    /// True if the packet size that the path carries is found by probing, up to `mtu`; otherwise
    /// `mtu` is used.
    pub probe_mtu: bool,
    /// True if batches are handed to the kernel to be cut (UDP GSO).
    pub gso: bool,
    /// The ciphers bulk data may be sealed with; which of them is the fastest that both sides have
    /// hardware for.
    pub ciphers: Vec<Cipher>,
    /// Probes per second on an idle link, 0 to 100; 0: none.
    pub probes: u32,
    /// UDP source ports that the bulk data of a [pair of threads](Gateway::thread_pairs) leaves
    /// by, 1 to [`Wan::MOST_LANES`] for all pairs together: that of `listen`'s next port, and
    /// those that follow it, which exist.
    pub lanes: u8,
}

impl Wan {
    /// The largest IP packet that is ever sent, in bytes.
    pub fn longest_packet(&self) -> u16 {
        let most = if self.probe_mtu { Self::LARGEST } else { Self::USUAL };
        self.mtu.unwrap_or(most)
    }

    /// The largest IP packet to reckon with while nothing is known of the path, in bytes.
    pub fn usual_packet(&self) -> u16 {
        self.mtu.unwrap_or(Self::USUAL)
    }

    /// The largest IP packet that any gateway sends, and takes.
    pub const LARGEST: u16 = 9000;
    /// Lanes that a gateway sends on at most, a source port each.
    pub const MOST_LANES: u8 = 64;
    /// Data-plane threads that a gateway has at most.
    pub const MOST_THREADS: u8 = 8;
    const USUAL: u16 = 1500;
}

/// A cipher for bulk data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AEGIS-128L (draft-irtf-cfrg-aegis-aead).
    Aegis128L,
    /// AES-128-GCM (RFC 5116).
    Aes128Gcm,
    /// ChaCha20-Poly1305 (RFC 8439).
    ChaCha20Poly1305,
}

impl Cipher {
    /// Every cipher with its name in the file.
    pub const ALL: [(&'static str, Cipher); 3] = [
        ("aegis-128l", Cipher::Aegis128L),
        ("aes-128-gcm", Cipher::Aes128Gcm),
        ("chacha20-poly1305", Cipher::ChaCha20Poly1305),
    ];
}

impl Wan {
    /// Where bulk data is received, and what it leaves by on lane 0 of the first pair of threads.
    pub fn bulk_listen(&self) -> SocketAddr {
        next_port(self.listen)
    }

    /// Returns the source addresses of the bulk data of a pair of threads, one for each lane; the
    /// first pair is 0.
    pub fn lanes_of(&self, pair: u8) -> impl Iterator<Item = SocketAddr> + use<> {
        let (address, lanes) = (self.bulk_listen(), u16::from(self.lanes));
        let first = address.port().saturating_add(u16::from(pair) * lanes);
        (0..lanes).map(move |lane| with_port(address, first.saturating_add(lane)))
    }

    /// Returns true if another socket on this port would be in the way of the link's, with so many
    /// pairs of threads.
    pub(crate) fn takes_port(&self, port: u16, pairs: u8) -> bool {
        let most = u16::from(self.lanes) * u16::from(pairs);
        port.checked_sub(self.listen.port()).is_some_and(|above| above <= most)
    }
}

/// `[peer]`: the other gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its site name, which its certificate must carry.
    pub name: String,
    /// Its `wan.listen`; bulk data goes to the next port up.
    pub address: SocketAddr,
    /// The name of this machine's interface that a link-local `address` is reached by, as
    /// [`Wan::zone`].
    pub zone: Option<String>,
    /// The provisioned rate of the link towards it, counted in IP packets; the pacer never sends
    /// faster.
    pub rate: Rate,
    /// Who decides how fast to send within that.
    pub congestion: Congestion,
    /// How long it may be silent before the session is lost.
    pub dead_after: Duration,
    /// How long flows wait for a session that is lost. Zero: they end with it.
    pub resume_for: Duration,
    /// Serial numbers of certificates that are not taken any more, whoever signed them.
    pub revoked: Vec<Serial>,
    /// The prefixes behind it: `peer.remote`, or `lan.remote` if there is one peer. They do not
    /// overlap those of other peers.
    pub remote: Vec<IpNet>,
    /// The policy file for what is exchanged with it: `peer.policy`, or else `policy.file`.
    pub policy: Option<PathBuf>,
    /// How it stands to this gateway.
    pub relation: Relation,
    /// How many data-plane threads it has. `None`: as many as this gateway.
    pub threads: Option<u8>,
}

impl Peer {
    /// Returns how many data-plane threads it has, if there are so many here.
    #[must_use]
    pub fn threads(&self, here: u8) -> u8 {
        self.threads.unwrap_or(here)
    }

    /// Returns how many pairs of a thread here and one there exchange data, if there are so many
    /// here: the least common multiple of both numbers.
    #[must_use]
    pub fn thread_pairs(&self, here: u8) -> u8 {
        let (here, there) = (u16::from(here.max(1)), u16::from(self.threads(here).max(1)));
        u8::try_from(num_integer::lcm(here, there)).unwrap_or(u8::MAX)
    }
}

/// How another gateway stands to this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relation {
    /// It is its site's only gateway.
    Alone,
    /// `peer.site`: it is one of the gateways of this site, which have the same prefixes.
    MemberOf(String),
    /// It is another gateway of this site.
    Sibling,
}

/// `peer.congestion`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// Nobody: the link is provisioned, and `peer.rate` is sent.
    #[default]
    Fixed,
    /// The gateway, from what the peer reports: the bottleneck is shared.
    Adaptive,
}

impl Congestion {
    /// Every kind with its name in the file.
    pub const ALL: [(&'static str, Congestion); 2] =
        [("fixed", Congestion::Fixed), ("adaptive", Congestion::Adaptive)];
}

impl Peer {
    /// The most that [`Peer::revoked`] may list.
    pub const MOST_REVOKED: usize = 1024;

    /// Where bulk data is sent.
    pub fn bulk_address(&self) -> SocketAddr {
        next_port(self.address)
    }
}

/// `[identity]`: PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// This site's certificate, followed by intermediate ones if there are any.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that signed the peer's certificate.
    pub authority: PathBuf,
}

/// `[admin]`: a TCP address, a Unix socket, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// TCP address of the HTTP listener. `None`: only the socket answers.
    pub listen: Option<SocketAddr>,
    /// From where the gateway may be told to read its policy file again.
    pub reload_from: Vec<IpNet>,
    /// Path of a Unix socket, for this machine's own commands.
    pub socket: Option<PathBuf>,
    /// Path of a file with the bearer token that requests over TCP have to carry.
    pub token: Option<PathBuf>,
    /// Names beside addresses and `localhost` that requests may be for.
    pub hosts: Vec<String>,
    /// With it, the TCP listener speaks TLS.
    pub tls: Option<AdminTls>,
}

/// `admin.certificate` and `admin.key`: PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminTls {
    /// The certificate that clients see, followed by intermediate ones if there are any.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Admin {
    /// The default of `reload_from`: 127.0.0.0/8 and ::1/128.
    pub(crate) fn loopback() -> Vec<IpNet> {
        vec![
            IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
            IpNet::new_assert(Ipv6Addr::LOCALHOST.into(), 128),
        ]
    }

    /// Returns true if a client at this address may have the policy file read again. An IPv4
    /// address may come mapped into IPv6.
    pub fn may_reload(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        self.reload_from.iter().any(|prefix| prefix.contains(&client))
    }
}

/// `[policy]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyFile {
    /// The policy file; `None` is [`Policy::default`].
    pub file: Option<PathBuf>,
}

/// `[limits]`: what is held at most, and how long is waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes carried per flow and not yet acknowledged by its target, at most; from half of it on
    /// the requester is slowed by withholding mid-message ACKs. `None`: as many as the link calls
    /// for.
    pub flow_buffer: Option<ByteSize>,
    /// Bytes buffered in all; at the bound every flow is slowed.
    pub total_buffer: ByteSize,
    /// Flows at a time; beyond it new flows are refused, counted, and their packets dropped.
    pub flows: u32,
    /// A flow without a packet for this long is forgotten.
    pub idle_flow: Duration,
    /// How long a gateway that is told to stop still carries everything, so that routes can move
    /// hosts elsewhere first.
    pub withdraw: Duration,
    /// How long a graceful stop waits for what is in flight.
    pub drain: Duration,
    /// How long a target may answer RNR before the requester is told.
    pub rnr: Duration,
    /// How long a target may be silent before its flow fails.
    pub target_dead: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            flow_buffer: None,
            total_buffer: ByteSize::mib(512),
            flows: 100_000,
            idle_flow: Duration::secs(300),
            withdraw: Duration::secs(0),
            drain: Duration::secs(5),
            rnr: Duration::secs(30),
            target_dead: Duration::secs(10),
        }
    }
}

/// `[retention]`: memory that outlives the process, for what requesters were acknowledged inside a
/// message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Where its files are, on a file system in memory. `None`: in the directory that systemd made
    /// for the service, or nowhere.
    pub directory: Option<PathBuf>,
    /// Bytes for all peers and threads. `None`: a quarter of `limits.total_buffer`.
    pub size: Option<ByteSize>,
}

/// `[data_plane]`: the data-plane threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataPlane {
    /// How many there are, 1 to [`Wan::MOST_THREADS`]; a peer with another number is told of by
    /// [`Peer::threads`]. All queue pairs of two hosts share one.
    pub threads: u8,
    /// How long one goes on looking for packets before it sleeps.
    pub busy_poll: Duration,
}

impl Default for DataPlane {
    fn default() -> Self {
        Self { threads: 1, busy_poll: Duration::secs(0) }
    }
}

/// `[security]`: what the gateway may do on its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Security {
    /// True if the kernel refuses system calls that a running gateway does not make.
    pub filter_system_calls: bool,
}

impl Default for Security {
    fn default() -> Self {
        Self { filter_system_calls: true }
    }
}

impl Gateway {
    /// Peers at most.
    pub const MOST_PEERS: usize = 16;

    /// Returns true if this site has several gateways, or the peers' sites have.
    pub fn is_member(&self) -> bool {
        !self.site.gateways.is_empty() || self.peers().any(|peer| peer.relation != Relation::Alone)
    }

    /// Returns how many pairs of a thread here and one of the first peer's exchange data. In a
    /// [view](Gateway::views) that is its peer.
    #[must_use]
    pub fn thread_pairs(&self) -> u8 {
        self.peer.thread_pairs(self.data_plane.threads)
    }

    /// Returns the same of the peer with which there are most. Ports are shared by peers.
    #[must_use]
    pub fn most_thread_pairs(&self) -> u8 {
        self.peers().map(|peer| peer.thread_pairs(self.data_plane.threads)).max().unwrap_or(1)
    }

    /// Returns every peer, in the file's order, and then the other gateways of this site.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        std::iter::once(&self.peer).chain(&self.others)
    }

    /// Returns the gateway towards each of its peers, as if it had no other: with that peer's
    /// prefixes and policy, and its share of the limits.
    ///
    /// Of `limits.total_buffer` and `retention.size` each peer has a share in proportion to its
    /// rate, of `limits.flows` an equal one. A gateway with one peer is returned as it is.
    pub fn views(&self) -> Vec<Self> {
        let count = u32::try_from(self.others.len() + 1).unwrap_or(u32::MAX);
        self.peers()
            .map(|peer| Self {
                peer: peer.clone(),
                others: Vec::new(),
                lan: Lan { remote: peer.remote.clone(), ..self.lan.clone() },
                policy: PolicyFile { file: peer.policy.clone() },
                limits: Limits {
                    total_buffer: self.share_of(self.limits.total_buffer, peer),
                    flows: (self.limits.flows / count).max(1),
                    ..self.limits.clone()
                },
                retention: Retention {
                    size: self.retention.size.map(|size| self.share_of(size, peer)),
                    ..self.retention.clone()
                },
                ..self.clone()
            })
            .collect()
    }

    /// Bytes that each peer's side may retain.
    pub fn retention_size(&self) -> ByteSize {
        self.retention.size.unwrap_or(ByteSize::from_bytes(self.limits.total_buffer.bytes() / 4))
    }

    fn share_of(&self, size: ByteSize, peer: &Peer) -> ByteSize {
        let rate = |peer: &Peer| match peer.relation {
            // It gets what comes to the wrong gateway, and passes it on at once.
            Relation::Sibling => u128::from(peer.rate.bits_per_second() / 8),
            Relation::Alone | Relation::MemberOf(_) => u128::from(peer.rate.bits_per_second()),
        };
        let all: u128 = self.peers().map(rate).sum();
        let bytes = u128::from(size.bytes()) * rate(peer) / all.max(1);
        ByteSize::from_bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Reads a gateway file, but not the policy file it names.
    pub fn load(path: &Path) -> Result<Self, Invalid> {
        let source = read::load(path)?;
        read_gateway(&source, folder(path)).map(|(gateway, _)| gateway)
    }

    /// As [`Gateway::load`], for who must not wait: what has become a pipe or a device is refused.
    pub fn load_again(path: &Path) -> Result<Self, Invalid> {
        let source = read::load_named(path)?;
        read_gateway(&source, folder(path)).map(|(gateway, _)| gateway)
    }

    /// As [`Gateway::load`], from text that stands in `path`.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Invalid> {
        let source = read::source(path, text.to_owned());
        read_gateway(&source, folder(path)).map(|(gateway, _)| gateway)
    }

    /// The policy this file names, or the default one.
    pub fn load_policy(&self) -> Result<Policy, Invalid> {
        self.check_policy().map(|(policy, _)| policy)
    }

    /// As [`Gateway::load_policy`], with the warnings that [`crate::check()`] has for it at this
    /// gateway, but for those on prefixes. The file is read each time.
    pub fn check_policy(&self) -> Result<(Policy, Vec<Problem>), Invalid> {
        let source = self.policy.file.as_deref().map(read::load_named).transpose()?;
        let read = source.as_ref().map(read_policy).transpose()?;
        let (policy, mut warnings) = read.unwrap_or_default();
        if self.is_member() {
            members::check_policy(&policy)?;
        }
        let slow = slow_blocks(self, &policy).into_iter();
        warnings.extend(slow.map(|slow| slow.in_policy(source.as_ref())));
        Ok((policy, warnings))
    }
}

pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn next_port(address: SocketAddr) -> SocketAddr {
    with_port(address, address.port().saturating_add(1))
}

/// Returns the address with another port. An IPv6 address keeps its scope, without which a
/// link-local one cannot be bound.
fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bulk_port_of_a_link_local_address_is_on_the_same_interface() {
        let address: SocketAddr = "[fe80::1%3]:14791".parse().unwrap();
        assert_eq!(next_port(address).to_string(), "[fe80::1%3]:14792");
    }
}
