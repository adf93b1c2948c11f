//! Asks this machine.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::{Gateway, LanMode};
use ipnet::IpNet;
use rtnetlink::packet_core::NLM_F_DUMP;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::AddressMessage;
use rtnetlink::packet_route::link::{LinkAttribute, LinkInfo, LinkMessage};
use rustix::thread::{CapabilitySet, capabilities};
use socket2::{Domain, Socket, Type};

use crate::admin::Status;
use crate::lan::guard;
use crate::lan::netlink::Netlink;
use crate::lan::rdma::{self, Device};
use crate::lan::usable::{self, Fault, address_of};
use crate::memory;
use crate::retention::{self, NoRetention};
use crate::zone;

/// A machine, as far as a gateway depends on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The kernel's version.
    pub kernel: (u32, u32),
    /// Its network interfaces.
    pub interfaces: Vec<Interface>,
    /// Why hosts cannot use the LAN's interface, if they cannot.
    pub lan: Option<Fault>,
    /// RDMA devices on the LAN's interface, and below it.
    pub rdma: Vec<Device>,
    /// True if it forwards IPv4, and IPv6.
    pub forwarding: (bool, bool),
    /// Interfaces with strict reverse-path filtering; "all" stands for every one.
    pub strict: Vec<String>,
    /// Prefixes that rules of a gateway on the LAN interface keep the kernel from forwarding to.
    pub guarded: Vec<IpNet>,
    /// Remote prefixes to which no route leads.
    pub unreachable: Vec<IpNet>,
    /// Addresses of peers to which no route leads from `wan.listen`.
    pub cut_off: Vec<SocketAddr>,
    /// Sockets of the file, by their key, that somebody has already: a gateway that runs, or
    /// another program.
    pub held: Vec<(&'static str, SocketAddr)>,
    /// Ports of the file that the kernel may give to any other program.
    pub at_risk: Vec<u16>,
    /// Bytes of memory that this process may have.
    pub memory: Option<u64>,
    /// Bytes of a socket's buffers, receiving and sending, without CAP_NET_ADMIN.
    pub socket_buffers: [u64; 2],
    /// Capabilities that this process has.
    pub capabilities: CapabilitySet,
    /// Why long messages would end with a process of the file, if they would.
    pub retention: Option<NoRetention>,
    /// Seconds since 1970.
    pub time: u64,
    /// The link to each peer, as a gateway of the file that runs here now knows it.
    pub running: Vec<Running>,
}

/// A link, as a running gateway knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Running {
    /// It answers.
    pub answers: bool,
    /// Its smoothed round-trip time.
    pub rtt: Option<Duration>,
    /// The rate that reports to the peer are thinned to, bit/s, if the way there carries no more.
    pub reports: Option<f64>,
    /// True if it retains requests, false if it ought to and cannot; `None`: no class wants it.
    pub retains: Option<bool>,
}

impl Running {
    /// As the gateway's status has it.
    pub fn of(status: &Status) -> Self {
        let path = status.path.as_ref();
        let rtt = path.and_then(|path| Duration::try_from_secs_f64(path.rtt[1]).ok());
        Self {
            answers: true,
            rtt: rtt.filter(|rtt| !rtt.is_zero()),
            reports: path.and_then(|path| path.reports_bits),
            retains: status.surroundings.survival.retains(),
        }
    }
}

impl Running {
    /// As the status has it, if that is of a gateway of this file, about its peer.
    pub fn of_file(gateway: &Gateway, status: &Status) -> Option<Self> {
        let is_its = status.site == gateway.site.name && status.peer == gateway.peer.name;
        is_its.then(|| Self::of(status))
    }
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number, which is the scope of link-local addresses.
    pub index: u32,
    /// Bytes of the longest IP packet.
    pub mtu: u32,
    /// Mbit/s, if it tells.
    pub speed: Option<u64>,
    /// Its addresses, each with its prefix's length.
    pub addresses: Vec<IpNet>,
    /// The interface that it is a part of, if it is, and that one's kind: "bridge", "bond", "vrf".
    pub part_of: Option<(String, String)>,
    /// True if the kernel takes a default route from any router that is advertised there (IPv6).
    pub follows_routers: bool,
}

impl Machine {
    /// Asks this machine what a gateway of this file depends on.
    ///
    /// # Errors
    /// The kernel does not tell its interfaces, addresses or rules.
    pub fn look(gateway: &Gateway) -> io::Result<Self> {
        let mut kernel = Netlink::connect()?;
        let interfaces = interfaces(&mut kernel)?;
        let (lan, guarded) = match &gateway.lan.mode {
            LanMode::Packet { interface } => {
                (usable::look(&gateway.lan, interface)?, guard::guarded(interface)?)
            }
            LanMode::Socket { .. } => (None, Vec::new()),
        };
        let remote = gateway.lan.remote.iter().copied();
        let vrf = match &gateway.lan.mode {
            LanMode::Packet { interface } => interfaces.iter().find(|other| other.name == *interface),
            LanMode::Socket { .. } => None,
        };
        let vrf = vrf.and_then(Interface::vrf).map(str::to_owned);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Ok(Self {
            kernel: kernel_version(),
            strict: strict(&interfaces),
            interfaces,
            lan,
            rdma: match &gateway.lan.mode {
                LanMode::Packet { interface } => rdma::taken(interface).into_keys().collect(),
                LanMode::Socket { .. } => Vec::new(),
            },
            forwarding: (is_one("net/ipv4/ip_forward"), is_one("net/ipv6/conf/all/forwarding")),
            guarded,
            unreachable: remote.filter(|prefix| !leads_to(prefix, vrf.as_deref())).collect(),
            cut_off: cut_off(gateway),
            held: Vec::new(),
            at_risk: super::ports::at_risk(gateway),
            memory: memory::most(),
            socket_buffers: ["rmem_max", "wmem_max"].map(|name| number(&format!("net/core/{name}"))),
            capabilities: capabilities(None).map(|sets| sets.effective).unwrap_or(CapabilitySet::empty()),
            retention: retention::look(gateway),
            time,
            running: Vec::new(),
        })
    }
}

/// Returns 0.0 for what is no version of Linux.
fn kernel_version() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Returns the sockets of a file, by their key, that somebody has already. Each is opened for a
/// moment.
pub(in crate::check) fn held(gateway: &Gateway) -> Vec<(&'static str, SocketAddr)> {
    let udp = |address| UdpSocket::bind(address).map(drop);
    let tcp = |address| TcpListener::bind(address).map(drop);
    let is_held =
        |opened: io::Result<()>| opened.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
    // What is on no interface is nobody's.
    let wan = zone::wan_at_now(&gateway.wan).unwrap_or_else(|_| gateway.wan.clone());
    let lanes = (0..gateway.most_thread_pairs()).flat_map(|pair| wan.lanes_of(pair));
    let bulk = lanes.filter(|lane| is_held(udp(*lane))).map(|lane| ("wan.lanes", lane));
    let control = Some(wan.listen).filter(|listen| is_held(udp(*listen)));
    let admin = gateway.admin.as_ref().and_then(|admin| admin.listen).filter(|listen| is_held(tcp(*listen)));
    let control = control.map(|listen| ("wan.listen", listen));
    control.into_iter().chain(bulk).chain(admin.map(|listen| ("admin.listen", listen))).collect()
}

/// Returns the addresses of peers to which the kernel knows no way. No packet is sent.
fn cut_off(gateway: &Gateway) -> Vec<SocketAddr> {
    // An address that is not here is told of by itself.
    let Ok(mut listen) = zone::wan_at_now(&gateway.wan).map(|wan| wan.listen) else { return Vec::new() };
    listen.set_port(0);
    let is_cut_off = |peer: &&config::Peer| {
        let connect = |socket: UdpSocket| socket.connect(zone::at_now(peer.address, peer.zone.as_deref())?);
        UdpSocket::bind(listen).is_ok_and(|socket| connect(socket).is_err())
    };
    gateway.peers().filter(is_cut_off).map(|peer| peer.address).collect()
}

fn interfaces(kernel: &mut Netlink) -> io::Result<Vec<Interface>> {
    let links = kernel.request(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP)?;
    let addresses = kernel.request(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)?;
    let of_link = |link: &RouteNetlinkMessage| {
        let RouteNetlinkMessage::NewLink(link) = link else { return None };
        let index = link.header.index;
        let mut interface = Interface {
            index,
            part_of: part_of(&links, link),
            addresses: addresses.iter().filter_map(|address| address_of(address, index)).collect(),
            ..Interface::default()
        };
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => {
                    interface.speed = speed(name);
                    interface.follows_routers = follows_routers(name);
                    interface.name.clone_from(name);
                }
                LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
                _ => {}
            }
        }
        Some(interface)
    };
    Ok(links.iter().filter_map(of_link).collect())
}

/// Returns name and kind of the bridge, bond or VRF that an interface is a part of.
fn part_of(links: &[RouteNetlinkMessage], part: &LinkMessage) -> Option<(String, String)> {
    let master = part.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Controller(index) => Some(*index),
        _ => None,
    })?;
    let master = links.iter().find_map(|link| match link {
        RouteNetlinkMessage::NewLink(link) if link.header.index == master => Some(link),
        _ => None,
    })?;
    let name = master.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })?;
    let kind = master.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.iter().find_map(|info| match info {
            LinkInfo::Kind(kind) => Some(kind.to_string()),
            _ => None,
        }),
        _ => None,
    });
    Some((name, kind.unwrap_or_default()))
}

/// Returns Mbit/s. Interfaces that have no such rate, or are down, tell none or -1.
fn speed(name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    text.trim().parse().ok().filter(|speed| *speed > 0)
}

/// Returns true if a router advertisement gives the kernel a default route. A machine that forwards
/// takes none, but where `accept_ra` is 2.
fn follows_routers(name: &str) -> bool {
    let value = |key: &str| number(&format!("net/ipv6/conf/{name}/{key}"));
    let accepts = match value("forwarding") {
        0 => value("accept_ra") > 0,
        _ => value("accept_ra") == 2,
    };
    accepts && value("accept_ra_defrtr") > 0 && value("disable_ipv6") == 0
}

fn strict(interfaces: &[Interface]) -> Vec<String> {
    let names = interfaces.iter().map(|interface| interface.name.as_str()).chain(["all"]);
    let is_strict = |name: &&str| is_one(&format!("net/ipv4/conf/{name}/rp_filter"));
    // The larger of the interface's value and that of all holds, and 2 is loose.
    let is_loose = number("net/ipv4/conf/all/rp_filter") == 2;
    names.filter(|_| !is_loose).filter(is_strict).map(str::to_owned).collect()
}

/// Returns true if the kernel knows a way to the prefix's first host, by the routes of a VRF if the
/// LAN is in one. No packet is sent.
fn leads_to(prefix: &IpNet, vrf: Option<&str>) -> bool {
    let Some(host) = prefix.hosts().next() else { return false };
    let domain = match prefix {
        IpNet::V4(_) => Domain::IPV4,
        IpNet::V6(_) => Domain::IPV6,
    };
    let Ok(socket) = Socket::new(domain, Type::DGRAM, None) else { return false };
    if vrf.is_some_and(|vrf| socket.bind_device(Some(vrf.as_bytes())).is_err()) {
        // Nothing is known of the VRF's routes.
        return true;
    }
    // The port is TCP's discard service: for RoCE's, a gateway's own rule would answer.
    socket.connect(&SocketAddr::new(host, 9).into()).is_ok()
}

fn number(name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/sys/{name}")).ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn is_one(name: &str) -> bool {
    number(name) == 1
}
