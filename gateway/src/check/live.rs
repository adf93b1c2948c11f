//! `longhaul check --live`: what this machine says of a gateway file.
//!
//! [`Machine::look`] asks the machine, [`judge`] compares its answers with the file. Nothing is
//! changed, and nobody but this machine is asked.

mod machine;
mod ports;

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use config::{ByteSize, Gateway, Label, LanMode, Peer, Rate};
use ipnet::IpNet;
use rustix::thread::CapabilitySet;
use rustls_pki_types::UnixTime;
use session::identity::Date;

pub(super) use machine::held;
pub use machine::{Interface, Machine, Running};

use crate::keys::YOUNGEST;
use crate::lan::usable::Fault;
use crate::plan::buffer_needed;

/// One thing that the file and the machine do not agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// True if the gateway cannot do its work like that.
    pub is_error: bool,
    /// The key of the file that it is about.
    pub key: &'static str,
    /// The place of the peer whose key it is, of several.
    pub peer: Option<usize>,
    /// In one line.
    pub message: String,
    /// For the place in the file.
    pub label: Label,
    /// The remedy.
    pub help: String,
}

impl Finding {
    /// Returns the key as it stands in the file.
    #[must_use]
    pub fn place(&self) -> Cow<'static, str> {
        match (self.peer, self.key.split_once('.')) {
            (Some(peer), Some((_, key))) => format!("peer.{peer}.{key}").into(),
            _ => self.key.into(),
        }
    }
}

/// Bytes that each bulk socket asks for in either direction.
const SOCKET_BUFFER: u64 = 32 << 20;

/// Compares a file with the machine. `most_memory`: bytes that the gateway takes at most.
pub fn judge(gateway: &Gateway, most_memory: usize, machine: &Machine) -> Vec<Finding> {
    let mut findings = Findings(Vec::new());
    if machine.time < YOUNGEST {
        let message = "this machine's clock is wrong".to_owned();
        let found =
            format!("it says {}", Date(UnixTime::since_unix_epoch(Duration::from_secs(machine.time))));
        findings.error("identity.certificate", message, &found, "set it: certificates are judged by it");
    }
    memory(&mut findings, gateway, most_memory, machine);
    wan(&mut findings, gateway, machine);
    let views = gateway.views();
    for (view, running) in views.iter().zip(&machine.running) {
        link(&mut findings, (gateway, view), *running);
    }
    sockets(&mut findings, gateway, machine);
    capabilities(&mut findings, gateway, machine);
    if let Some(why) = &machine.retention {
        // The gateway's log has the same. It starts, and flows outlive lost sessions.
        let message = format!("long messages end if the gateway is killed: {why}");
        findings.warn(why.key(), message, "", &why.remedy());
    }
    if let LanMode::Packet { interface } = &gateway.lan.mode {
        if let Some(fault) = machine.lan {
            // The gateway is told of the same.
            let is_gone = fault == Fault::Gone;
            let help = fault.remedy(interface);
            findings.add(is_gone, "lan.interface", fault.text(interface), Label::NAMED, &help);
        }
        if let Some(lan) = machine.interfaces.iter().find(|other| other.name == *interface) {
            local_side(&mut findings, gateway, lan, machine);
            prefixes(&mut findings, gateway, lan);
        }
        views.iter().for_each(|view| forwarding(&mut findings, (gateway, view), interface, machine));
    }
    // What is so of several peers is told once.
    let mut told: Vec<Finding> = Vec::new();
    for finding in findings.0 {
        if !told.contains(&finding) {
            told.push(finding);
        }
    }
    told
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(
        &mut self,
        is_error: bool,
        key: &'static str,
        message: String,
        label: impl Into<Label>,
        help: &str,
    ) {
        let (label, help) = (label.into(), help.to_owned());
        self.0.push(Finding { is_error, key, peer: None, message, label, help });
    }

    /// Says of the last finding whose it is, if there are several peers.
    fn of_peer(&mut self, gateway: &Gateway, is_it: impl Fn(&Peer) -> bool) {
        let place = gateway.peers().position(is_it).filter(|_| !gateway.others.is_empty());
        if let Some(last) = self.0.last_mut() {
            last.peer = place;
        }
    }

    fn error(&mut self, key: &'static str, message: String, label: impl Into<Label>, help: &str) {
        self.add(true, key, message, label, help);
    }

    fn warn(&mut self, key: &'static str, message: String, label: impl Into<Label>, help: &str) {
        self.add(false, key, message, label, help);
    }
}

fn memory(findings: &mut Findings, gateway: &Gateway, most: usize, machine: &Machine) {
    let Some(memory) = machine.memory else { return };
    let shown = |bytes: u64| reliability::human::size(bytes);
    let buffer = gateway.limits.total_buffer;
    let help = "a smaller limits.total_buffer, or more memory: docs/configure.md, \"Sizing\"";
    if buffer > ByteSize::from_bytes(memory) {
        let message = "`limits.total_buffer` is more than this machine has memory".to_owned();
        findings.error("limits.total_buffer", message, format!("it has {}", shown(memory)), help);
    } else if most as u64 > memory {
        let message = "the gateway may take more memory than this machine has".to_owned();
        let found = format!("up to {} for {buffer}; it has {}", shown(most as u64), shown(memory));
        findings.warn("limits.total_buffer", message, &found, help);
    }
}

fn wan(findings: &mut Findings, gateway: &Gateway, machine: &Machine) {
    let listen = gateway.wan.listen.ip();
    if listen.is_unspecified() {
        return;
    }
    // All of 127.0.0.0/8 is this machine's, whichever addresses are named.
    let own = if listen.is_loopback() && listen.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { listen };
    let scope = match gateway.wan.listen {
        SocketAddr::V6(listen) => listen.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let mut holders =
        machine.interfaces.iter().filter(|interface| interface.has(listen) || interface.has(own));
    let is_named = |interface: &&Interface| match &gateway.wan.zone {
        Some(name) => interface.name == *name,
        None => scope == 0 || scope == interface.index,
    };
    let Some(holder) = holders.clone().find(is_named) else {
        let message = format!("this machine does not have the address {listen}");
        let help = match holders.next() {
            Some(Interface { name, .. }) if gateway.wan.zone.is_some() => {
                format!("{name} has it: write that name behind the %")
            }
            // One that was made again has another number.
            Some(Interface { name, index, .. }) => {
                format!(
                    "{name}, which has it, has the number {index}, not {scope}: write its name, which stays"
                )
            }
            None => "see `ip addr`; a gateway that is started waits for it".to_owned(),
        };
        return findings.error("wan.listen", message, Label::NAMED, &help);
    };
    let longest = u32::from(gateway.wan.longest_packet());
    if !gateway.wan.probe_mtu && longest > holder.mtu {
        let message = format!("packets to the peer are longer than {} carries", holder.name);
        let found = format!("its MTU is {}, and {longest} bytes are sent unprobed", holder.mtu);
        findings.error("wan.mtu", message, &found, "a smaller wan.mtu, or wan.probe_mtu = true");
    }
    let all = gateway.peers().map(|peer| peer.rate.bits_per_second()).fold(0, u64::saturating_add);
    let (rate, speed) = (Rate::from_bits_per_second(all), holder.speed);
    if let Some(speed) = speed.filter(|speed| rate.bits_per_second() / 1_000_000 > *speed) {
        let of = if gateway.others.is_empty() { "`peer.rate` is" } else { "`peer.rate` of all peers are" };
        let message = format!("{of} more than {} carries", holder.name);
        let found = format!("{rate}, its link has {speed} Mbit/s");
        findings.warn(
            "peer.rate",
            message,
            &found,
            "a smaller peer.rate: what is beyond waits in the kernel",
        );
    }
    if let Some(found) = machine.strict_by(&holder.name) {
        let message = format!("reverse-path filtering is strict on {}", holder.name);
        let help = "if packets from the peer may come by another interface than packets to it leave by: \
                    net.ipv4.conf.INTERFACE.rp_filter = 2";
        findings.warn("wan.listen", message, &found, help);
    }
}

/// A gateway of the file that runs has them. Its rules stand where its admin port is not asked.
fn sockets(findings: &mut Findings, gateway: &Gateway, machine: &Machine) {
    let runs = machine.running.iter().any(|running| running.answers) || !machine.guarded.is_empty();
    for (key, address) in machine.held.iter().filter(|_| !runs) {
        let message = format!("another program has the port {}", address.port());
        let help = "see `ss -lnup` for UDP, `ss -lntp` for admin.listen: stop it, or write another port";
        findings.error(key, message, address.to_string(), help);
    }
    if !machine.at_risk.is_empty() {
        let ports = ports::shown(&machine.at_risk);
        let message = format!("the kernel may give other programs ports of this file: {ports}");
        let help =
            format!("sysctl net.ipv4.ip_local_reserved_ports={ports}, with those that stand there already");
        findings.warn("wan.listen", message, "net.ipv4.ip_local_port_range has them", &help);
    }
    for peer in &machine.cut_off {
        let message = format!("this machine has no way to the peer at {}", peer.ip());
        let help = "see `ip route get`; a gateway that is started waits for it";
        findings.warn("peer.address", message, Label::NAMED, help);
        findings.of_peer(gateway, |other| other.address == *peer);
    }
}

/// Judges the file by the link, as the gateway that runs knows it.
fn link(findings: &mut Findings, (gateway, view): (&Gateway, &Gateway), running: Running) {
    if let Some(rtt) = running.rtt {
        let (under_way, needed) = buffer_needed(view.peer.rate, rtt, 1, view.thread_pairs());
        if ByteSize::from_bytes(needed) > view.limits.total_buffer {
            let shown = reliability::human::size;
            let message = "`limits.total_buffer` is too small for one flow to fill the link".to_owned();
            let found = format!("{} are under way at an RTT of {rtt:.1?}", shown(under_way));
            let help = format!("{} or more, in both gateways: docs/configure.md, \"Sizing\"", shown(needed));
            findings.warn("limits.total_buffer", message, &found, &help);
        }
    }
    if let Some(reports) = running.reports {
        let message = "the way to the peer carries fewer reports than the peer's packets ask for".to_owned();
        let found = format!("they are thinned to {}", reliability::human::rate(reports));
        let help = "losses on the way from the peer are repaired later; reports want 2 % of the peer's rate";
        findings.warn("peer.rate", message, &found, help);
        findings.of_peer(gateway, |peer| peer.name == view.peer.name);
    }
}

fn capabilities(findings: &mut Findings, gateway: &Gateway, machine: &Machine) {
    const HELP: &str = "run it as root, with AmbientCapabilities= in its unit, or after \
                        `setcap cap_net_raw,cap_net_admin+ep` on the program";
    if let LanMode::Packet { .. } = gateway.lan.mode {
        for (capability, name) in
            [(CapabilitySet::NET_RAW, "CAP_NET_RAW"), (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN")]
        {
            if !machine.capabilities.contains(capability) {
                let message = format!("packet mode needs {name}, which this process does not have");
                findings.error("lan.interface", message, "", HELP);
            }
        }
    }
    if gateway.wan.zone.is_some() && !machine.capabilities.contains(CapabilitySet::NET_RAW) {
        let message = "the link's sockets cannot follow their interface".to_owned();
        let found = "that needs CAP_NET_RAW, which this process does not have";
        let help = "without it, start the gateway again after the interface was deleted and made again";
        findings.warn("wan.listen", message, found, help);
    }
    let least = machine.socket_buffers.iter().copied().min().unwrap_or(u64::MAX);
    if !machine.capabilities.contains(CapabilitySet::NET_ADMIN) && least < SOCKET_BUFFER {
        let message = "sockets get smaller buffers than the gateway asks for".to_owned();
        let found = format!("{least} bytes at most, {SOCKET_BUFFER} are asked for");
        let help = "sysctl net.core.rmem_max=33554432 net.core.wmem_max=33554432, or CAP_NET_ADMIN";
        findings.warn("wan.listen", message, &found, help);
    }
}

fn local_side(findings: &mut Findings, gateway: &Gateway, lan: &Interface, machine: &Machine) {
    let name = &lan.name;
    if let Some((whole, kind)) = lan.part_of.as_ref().filter(|_| !lan.is_seen_through(machine)) {
        let message =
            format!("{name} is a part of {whole}, and the kernel takes hosts' packets for those of {whole}");
        let help = match kind.as_str() {
            "vrf" => format!(
                "take {name} out of the VRF, or take Linux 5.18 or later: before, the rules that keep the kernel from \
                 forwarding RoCE unsealed go by {name}, and hold for no packet of a VRF"
            ),
            "bridge" | "bond" | "team" => format!(
                "name {whole}: the rules that keep the kernel from forwarding RoCE unsealed go by lan.interface"
            ),
            _ => format!(
                "take {name} out of {whole}, or name the interface that has this machine's address there: the rules \
                 that keep the kernel from forwarding RoCE unsealed go by lan.interface"
            ),
        };
        let found = match kind.as_str() {
            "" => format!("{whole} tells no kind"),
            kind => format!("the kind of {whole} is {kind}"),
        };
        findings.error("lan.interface", message, found, &help);
    }
    if let Some(mtu) = gateway.lan.mtu.map(u32::from).filter(|mtu| *mtu > lan.mtu) {
        let message = format!("`lan.mtu` is more than {name} carries");
        findings.warn("lan.mtu", message, format!("{mtu}, its MTU is {}", lan.mtu), "the lesser value holds");
    }
    // What the file's own value is too small for is told without asking the machine.
    let path_mtu = config::Lan::path_mtu(lan.mtu);
    if path_mtu < config::Lan::USUAL_PATH_MTU {
        let message = format!("{name} is too small for the usual path MTUs of RoCE");
        let found = format!("{} bytes hold a path MTU of {path_mtu}", lan.mtu);
        findings.warn("lan.interface", message, &found, "1500 for a path MTU of 1024, 4200 for 4096");
    }
    for device in &machine.rdma {
        findings.warn("lan.interface", device.warning(), Label::NAMED, &device.remedy);
    }
    if lan.follows_routers {
        let message =
            format!("any host on {name} can give this machine a default route, by a router advertisement");
        let help = format!(
            "sysctl net.ipv6.conf.{name}.accept_ra=0; where a network manager reads them itself, its own \
             setting, such as systemd-networkd's IPv6AcceptRA=no"
        );
        let found = format!("net.ipv6.conf.{name}.accept_ra lets it");
        findings.warn("lan.interface", message, &found, &help);
    }
    if let Some(found) = machine.strict_by(name) {
        let message = format!("reverse-path filtering is strict on {name}");
        let help = "it drops other traffic of hosts that this machine reaches by another interface: \
                    net.ipv4.conf.INTERFACE.rp_filter = 2";
        findings.warn("lan.interface", message, &found, help);
    }
}

fn prefixes(findings: &mut Findings, gateway: &Gateway, lan: &Interface) {
    for remote in &gateway.lan.remote {
        let own = lan.addresses.iter().find(|own| remote.contains(&own.addr()));
        if let Some(own) = own {
            let message = "`lan.remote` names this site's own prefix".to_owned();
            let found = format!("{} has {own}, which is in {remote}", lan.name);
            findings.error("lan.remote", message, &found, "write the prefixes of the other site's hosts");
            findings.of_peer(gateway, |peer| peer.remote.contains(remote));
        } else if let Some(own) = lan.addresses.iter().find(|own| own.trunc().contains(remote)) {
            let message = "`lan.remote` lies in the prefix of this site's LAN".to_owned();
            let found = format!("{remote} is in {}", own.trunc());
            let help = "hosts that take it for their own LAN look for it there: give them a longer route, or \
                        the LAN a narrower prefix";
            findings.warn("lan.remote", message, &found, help);
            findings.of_peer(gateway, |peer| peer.remote.contains(remote));
        }
    }
}

/// Programs find each other by TCP, which the gateway leaves to the kernel. And RoCE it must not
/// leave to it.
fn forwarding(
    findings: &mut Findings,
    (gateway, view): (&Gateway, &Gateway),
    interface: &str,
    machine: &Machine,
) {
    // A default route is guarded in two halves.
    let guarded = IpNet::aggregate(&machine.guarded);
    let is_guarded = |prefix: &IpNet| guarded.iter().any(|other| other.contains(prefix));
    let remote = &view.lan.remote;
    let is_its = |peer: &Peer| peer.name == view.peer.name;
    if machine.guarded.is_empty() {
        if let Some(prefix) = remote.iter().find(|prefix| machine.forwards(prefix)) {
            let message = "no gateway keeps the kernel from forwarding RoCE now".to_owned();
            let help = format!(
                "as long as none runs on {interface}, RoCE to the other site leaves unsealed: start it, or let \
                 a firewall drop UDP port 4791"
            );
            findings.warn("lan.remote", message, format!("{} is 1", forwarding_of(prefix)), &help);
        }
    } else if let Some(prefix) = remote.iter().find(|prefix| !is_guarded(prefix)) {
        let message = "a rule is missing that keeps the kernel from forwarding RoCE".to_owned();
        let help = "packets may cross twice, once unsealed; a gateway that runs puts it back: see its log";
        findings.error("lan.remote", message, format!("none for {prefix} in `ip rule`"), help);
        findings.of_peer(gateway, is_its);
    }
    for prefix in remote {
        if !machine.forwards(prefix) {
            let sysctl = forwarding_of(prefix);
            let way = if matches!(prefix, IpNet::V4(_)) { "ip route" } else { "ip -6 route" };
            let message = "programs' TCP to the other site has no way through this machine".to_owned();
            let help = format!(
                "if they have no other network: `sysctl {sysctl}=1`, `{way} add {prefix} via {}`, and the same at \
                 the other site",
                view.peer.address.ip()
            );
            findings.warn("lan.remote", message, format!("{sysctl} is 0"), &help);
            findings.of_peer(gateway, is_its);
        } else if machine.unreachable.contains(prefix) {
            let message = "this machine has no route for programs' TCP to the other site".to_owned();
            let help =
                format!("ip route add {prefix} via {}, or whatever leads there", view.peer.address.ip());
            findings.warn("lan.remote", message, format!("nothing leads to {prefix}"), &help);
            findings.of_peer(gateway, is_its);
        }
    }
}

/// Returns the name of the setting by which the kernel forwards to a prefix.
fn forwarding_of(prefix: &IpNet) -> &'static str {
    match prefix {
        IpNet::V4(_) => "net.ipv4.ip_forward",
        IpNet::V6(_) => "net.ipv6.conf.all.forwarding",
    }
}

/// The first kernel whose rules take the packets of an interface in a VRF for the interface's.
const RULES_SEE_VRFS: (u32, u32) = (5, 18);

impl Interface {
    /// Returns the VRF that it is in, if it is.
    fn vrf(&self) -> Option<&str> {
        self.part_of.as_ref().filter(|(_, kind)| kind == "vrf").map(|(name, _)| name.as_str())
    }

    /// Returns true if rules for it hold though it is a part of another one.
    fn is_seen_through(&self, machine: &Machine) -> bool {
        self.vrf().is_some() && machine.kernel >= RULES_SEE_VRFS
    }

    fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.addr() == address)
    }
}

impl Machine {
    /// Returns the setting by which reverse-path filtering is strict on an interface, if it is.
    fn strict_by(&self, interface: &str) -> Option<String> {
        let by = self.strict.iter().find(|name| *name == interface || *name == "all")?;
        Some(format!("net.ipv4.conf.{by}.rp_filter is 1"))
    }

    fn forwards(&self, prefix: &IpNet) -> bool {
        match prefix {
            IpNet::V4(_) => self.forwarding.0,
            IpNet::V6(_) => self.forwarding.1,
        }
    }
}

#[cfg(test)]
mod tests;
