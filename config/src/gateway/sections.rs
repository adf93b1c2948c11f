//! From the sections of the file to types.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use ipnet::IpNet;
use toml::de::DeValue;

use super::clashes::{self, Placed, PlacedLan, PlacedPeer, PlacedWan};
use super::members;
use super::values::{is_interface_name, quic_address, reachable, site_name};
use super::{
    Admin, AdminTls, Cipher, Congestion, DataPlane, Gateway, Identity, Lan, LanMode, Limits, Peer,
    PolicyFile, Relation, Retention, Security, Site, Wan,
};
use crate::hosts::{host_prefix, impossible, prefix};
use crate::problem::{Invalid, Label, Problem, Sink, Source};
use crate::read::{self, Section, Wrong, boolean, integer, path, socket_address, text, unit};
use crate::serial::Serial;
use crate::units::{ByteSize, Duration, Rate};

/// The gateway file with its warnings.
pub(crate) fn read_gateway(source: &Source, folder: &Path) -> Result<(Gateway, Vec<Problem>), Invalid> {
    let document = read::parse(source)?;
    let mut sink = Sink::new(source);
    let mut root = Section::new("", 0..0, document.get_ref());
    let gateway = gateway(&mut sink, &mut root, folder);
    root.finish(&mut sink);
    sink.finish(gateway)
}

fn gateway(sink: &mut Sink, root: &mut Section<'_, '_>, folder: &Path) -> Option<Gateway> {
    let site =
        root.required_section(sink, "site", "[site] with a name").and_then(|section| site(sink, section));
    let is_several = root.is_list("peer");
    let lan = root
        .required_section(sink, "lan", "[lan] with interface and remote")
        .and_then(|section| lan(sink, section, is_several));
    let wan = root
        .required_section(sink, "wan", "[wan] with listen = \"ADDRESS:PORT\"")
        .and_then(|section| wan(sink, section));
    let peers = peers(sink, root, folder);
    let identity = root
        .required_section(
            sink,
            "identity",
            "[identity] with certificate, key and authority; `longhaul keys` makes them",
        )
        .and_then(|section| identity(sink, section, folder));
    let admin = root.section(sink, "admin").map(|section| admin(sink, section, folder));
    let policy = root.section(sink, "policy").map(|section| policy(sink, section, folder));
    let limits = root.section(sink, "limits").map(|section| limits(sink, section));
    let retention = root.section(sink, "retention").map(|section| retention(sink, section, folder));
    let plane = named_plane(sink, root).map(|section| data_plane(sink, section));
    let security = root.section(sink, "security").map(|section| security(sink, section));
    let (limits, plane) = (limits.unwrap_or_default(), plane.unwrap_or_default());
    clashes::buffers(sink, &limits, &peers, &plane);
    let lan = lan.map(|lan| with_prefixes(sink, lan, &peers));
    clashes::check(sink, site.as_ref(), lan.as_ref(), wan.as_ref(), &peers, &plane);
    if let (Some(site), Some(lan), Some(wan)) = (&site, &lan, &wan) {
        members::check(sink, site, lan, wan, (&peers, plane.0.threads));
    }
    let siblings = site.as_ref().map(|(site, _)| members::siblings(site, &peers)).unwrap_or_default();
    let policy = policy.unwrap_or_default();
    let lan = lan?.value;
    let mut peers = peers.into_iter().map(|peer| Peer {
        remote: if is_several { peer.value.remote } else { lan.remote.clone() },
        policy: peer.value.policy.or_else(|| policy.file.clone()),
        ..peer.value
    });
    let gateway = Gateway {
        site: site?.0,
        wan: wan?.value,
        peer: peers.next()?,
        others: peers.chain(siblings).collect(),
        lan,
        identity: identity?,
        admin: match admin {
            Some(admin) => Some(admin?),
            None => None,
        },
        policy,
        limits,
        retention: retention.unwrap_or_default(),
        data_plane: plane.0,
        security: security.unwrap_or_default(),
    };
    clashes::shares(sink, &gateway, &plane.1);
    Some(gateway)
}

/// The section about the data plane, by its present name or its former one.
fn named_plane<'a, 'b>(sink: &mut Sink, root: &mut Section<'a, 'b>) -> Option<Section<'a, 'b>> {
    let plane = root.section(sink, "data_plane");
    if root.has("data_plane") {
        let help = "keep [data_plane], the present name";
        root.refuse(sink, "plane", "is a former name of [data_plane], which is here too", help);
    }
    plane.or_else(|| root.former_section(sink, "plane"))
}

/// `[peer]`, or each `[[peer]]`.
fn peers(sink: &mut Sink, root: &mut Section<'_, '_>, folder: &Path) -> Vec<PlacedPeer> {
    const EXAMPLE: &str = "[peer] with name, address and rate";
    if !root.is_list("peer") {
        let section = root.required_section(sink, "peer", EXAMPLE);
        return section.and_then(|section| peer(sink, section, folder, false)).into_iter().collect();
    }
    let sections = root.sections(sink, "peer", "[[peer]] with name, address, rate and remote");
    if let Some(section) = sections.get(Gateway::MOST_PEERS) {
        let found = format!("the first of {} too many", sections.len() - Gateway::MOST_PEERS);
        let help = format!("{} are the most", Gateway::MOST_PEERS);
        sink.error(section.span(), "there are too many [[peer]]", found, Some(help));
    }
    sections.into_iter().filter_map(|section| peer(sink, section, folder, true)).collect()
}

/// The LAN with the prefixes behind all peers, if they name them.
fn with_prefixes(sink: &mut Sink, mut lan: PlacedLan, peers: &[PlacedPeer]) -> PlacedLan {
    let prefixes = members::prefixes(sink, peers);
    peers.iter().for_each(|peer| clashes::untold(sink, "peer.remote", &peer.remote));
    if !prefixes.is_empty() {
        clashes::overlaps(sink, "peer.remote", &prefixes);
        clashes::local(sink, &lan.local, &prefixes);
        lan.value.remote = prefixes.into_iter().map(|(prefix, _)| prefix).collect();
    }
    lan
}

fn site(sink: &mut Sink, mut section: Section<'_, '_>) -> Option<Placed<Site>> {
    let name = section.required(sink, "name", "name = \"a\"", site_name);
    let span = section.span_of("name");
    let gateways = members::gateways(sink, &mut section).into_iter().map(|(gateway, _)| gateway).collect();
    section.finish(sink);
    Some((Site { name: name?, gateways }, span))
}

fn lan(sink: &mut Sink, mut section: Section<'_, '_>, is_several: bool) -> Option<PlacedLan> {
    let socket = section.or(sink, "mode", false, |value| match text(value, "packet")? {
        "packet" => Ok(false),
        "socket" => Ok(true),
        other => Err(Wrong::new(
            "is not a LAN mode",
            read::did_you_mean(
                other,
                &["packet", "socket"],
                "\"packet\" (raw packets on an interface) or \"socket\" (UDP, unprivileged)",
            ),
        )),
    });
    let listen_span = section.span_of("listen");
    let hosts_span = section.span_of("hosts");
    let mode = if socket { lan_socket(sink, &mut section) } else { lan_packet(sink, &mut section) };
    let remote = if is_several {
        const HELP: &str = "write remote = [...] in each [[peer]]";
        section.refuse(sink, "remote", "has no meaning with [[peer]]", HELP);
        Vec::new()
    } else {
        section.required_list(sink, "remote", REMOTE, host_prefix)
    };
    clashes::overlaps(sink, "lan.remote", &remote);
    clashes::untold(sink, "lan.remote", &remote);
    let local = section.list(sink, "local", "local = [\"10.0.0.0/24\"]", host_prefix).unwrap_or_default();
    clashes::local(sink, &local, &remote);
    let multicast = if socket { Vec::new() } else { groups(sink, &mut section) };
    let mtu = section.optional(sink, "mtu", integer(576..=u16::MAX));
    let notify = section.or(sink, "notify", true, boolean);
    section.finish(sink);
    let remote = remote.into_iter().map(|(prefix, _)| prefix).collect();
    let local_prefixes = local.iter().map(|(prefix, _)| *prefix).collect();
    let value = Lan { mode: mode?, remote, local: local_prefixes, multicast, mtu, notify };
    Some(PlacedLan { value, local, listen: listen_span, hosts: hosts_span })
}

/// An example of prefixes behind a peer.
const REMOTE: &str = "remote = [\"10.0.1.0/24\"]";

fn lan_packet(sink: &mut Sink, section: &mut Section<'_, '_>) -> Option<LanMode> {
    let interface =
        section.required(sink, "interface", "interface = \"eth1\", or mode = \"socket\"", interface_name);
    for key in ["listen", "hosts"] {
        section.refuse(sink, key, "has no meaning in packet mode", "remove it, or add mode = \"socket\"");
    }
    Some(LanMode::Packet { interface: interface? })
}

/// `lan.multicast`
fn groups(sink: &mut Sink, section: &mut Section<'_, '_>) -> Vec<IpAddr> {
    let groups = section.list(sink, "multicast", "multicast = [\"239.1.1.1\"]", group).unwrap_or_default();
    if let Some((_, span)) = groups.get(Lan::MOST_GROUPS) {
        let found = format!("the first of {} too many", groups.len() - Lan::MOST_GROUPS);
        let help =
            format!("{} are the most; remove those that one of the sites does without", Lan::MOST_GROUPS);
        sink.error(span.clone(), "`lan.multicast` has too many groups", found, Some(help));
    }
    clashes::repeated(sink, &groups);
    groups.into_iter().map(|(group, _)| group).collect()
}

fn lan_socket(sink: &mut Sink, section: &mut Section<'_, '_>) -> Option<LanMode> {
    section.refuse(
        sink,
        "interface",
        "has no meaning in socket mode",
        "remove it, or write mode = \"packet\"",
    );
    section.refuse(
        sink,
        "multicast",
        "has no meaning in socket mode",
        "remove it: groups are joined on an interface",
    );
    let listen =
        section.required(sink, "listen", "listen = \"127.0.0.1:4791\"", socket_address("127.0.0.1:4791"));
    let example = "[lan.hosts] with \"10.0.0.1\" = \"127.0.0.1:5001\" for each RDMA host of this site";
    let hosts = section.required_section(sink, "hosts", example).map(|hosts| lan_hosts(sink, &hosts));
    Some(LanMode::Socket { listen: listen?, hosts: hosts? })
}

fn lan_hosts(sink: &mut Sink, section: &Section<'_, '_>) -> BTreeMap<IpAddr, SocketAddr> {
    let mut hosts = BTreeMap::new();
    for (key, key_span, value) in section.entries() {
        let inner = key.parse::<IpAddr>();
        if let Some((kind, why)) = inner.as_ref().ok().and_then(|inner| impossible(&IpNet::from(*inner))) {
            let message = format!("`lan.hosts` has a key that is {kind}, and no host's address");
            sink.error(key_span, message, Label::Value(key.to_string()), Some(why.to_owned()));
            continue;
        }
        let Ok(inner) = inner else {
            let help = match value.get_ref() {
                DeValue::Table(_) => "a key with dots needs quotes: \"10.0.0.1\" = \"127.0.0.1:5001\"",
                _ => "each key is the host's IP address in quotes: \"10.0.0.1\" = \"127.0.0.1:5001\"",
            };
            sink.error(
                key_span,
                "`lan.hosts` has a key that is not an IP address",
                Label::Value(key.to_string()),
                Some(help.to_owned()),
            );
            continue;
        };
        match socket_address("127.0.0.1:5001")(value.get_ref()) {
            Ok(outer) if hosts.values().any(|other| *other == outer) => {
                let help = "each host needs an address of its own".to_owned();
                sink.error(
                    value.span(),
                    "`lan.hosts` has the same UDP address twice",
                    read::found(value.get_ref()),
                    Some(help),
                );
            }
            Ok(outer) => {
                hosts.insert(inner, outer);
            }
            Err(wrong) => wrong.report(sink, &section.name(key), value),
        }
    }
    if section.entries().next().is_none() {
        let help = "write: \"10.0.0.1\" = \"127.0.0.1:5001\" for each RDMA host of this site".to_owned();
        sink.error(section.span(), "`lan.hosts` is empty", "no host", Some(help));
    }
    hosts
}

fn wan(sink: &mut Sink, mut section: Section<'_, '_>) -> Option<PlacedWan> {
    let listen = section.required(sink, "listen", "listen = \"10.9.0.1:14791\"", quic_address);
    let mtu = section.optional(sink, "mtu", integer(1280..=Wan::LARGEST));
    let probe_mtu = section.or(sink, "probe_mtu", true, boolean);
    let gso = section.or(sink, "gso", true, boolean);
    let ciphers = match section.list(sink, "ciphers", "ciphers = [\"aes-128-gcm\"]", cipher) {
        Some(listed) => listed.into_iter().map(|(cipher, _)| cipher).collect(),
        None => Cipher::ALL.map(|(_, cipher)| cipher).to_vec(),
    };
    let probes = section.or(sink, "probes", 4, integer(0..=100));
    let lanes = section.or(sink, "lanes", 1, integer(1..=Wan::MOST_LANES));
    let span = section.span_of("listen");
    let lanes_span = section.span_of("lanes");
    section.finish(sink);
    let (listen, zone) = listen?;
    let value = Wan { listen, zone, mtu, probe_mtu, gso, ciphers, probes, lanes };
    Some(PlacedWan { value, listen: span, lanes: lanes_span })
}

fn cipher(value: &DeValue<'_>) -> Result<Cipher, Wrong> {
    let known = format!("known: {}", Cipher::ALL.map(|(name, _)| name).join(", "));
    one_of(&Cipher::ALL, text(value, "aes-128-gcm")?, "is not a cipher", &known)
}

fn peer(
    sink: &mut Sink,
    mut section: Section<'_, '_>,
    folder: &Path,
    is_several: bool,
) -> Option<PlacedPeer> {
    let name = section.required(sink, "name", "name = \"b\"", site_name);
    let address = section.required(sink, "address", "address = \"10.9.0.2:14791\"", reachable);
    const SLOWEST: Rate = Rate::from_bits_per_second(64_000);
    const FASTEST: Rate = Rate::from_bits_per_second(1_600_000_000_000);
    let rate = section.required(
        sink,
        "rate",
        "rate = \"1 Gbit/s\", what the link is provisioned for",
        unit(SLOWEST..=FASTEST, "1 Gbit/s"),
    );
    let congestion = section.or(sink, "congestion", Congestion::default(), congestion);
    let silence = Duration::millis(500)..=Duration::secs(60);
    let dead_after = section.or(sink, "dead_after", Duration::secs(5), unit(silence, "5 s"));
    let waiting = Duration::millis(0)..=Duration::secs(600);
    let resume_for = section.or(sink, "resume_for", Duration::secs(120), unit(waiting, "2 min"));
    let revoked = revoked(sink, &mut section);
    let threads = section.optional(sink, "threads", integer(1..=Wan::MOST_THREADS));
    let (remote, policy) = if is_several {
        let remote = section.required_list(sink, "remote", REMOTE, host_prefix);
        (remote, section.optional(sink, "policy", path(folder, "policy.toml")))
    } else {
        section.refuse(sink, "remote", "has no meaning in [peer]", "write lan.remote, or [[peer]]");
        section.refuse(sink, "policy", "has no meaning in [peer]", "write policy.file, or [[peer]]");
        section.refuse(
            sink,
            "site",
            "has no meaning in [peer]",
            "write [[peer]] for each gateway of its site",
        );
        (Vec::new(), None)
    };
    let of_site = if is_several { section.optional(sink, "site", site_name) } else { None };
    let relation = of_site.map_or(Relation::Alone, Relation::MemberOf);
    let [name_span, address_span, threads_span] =
        ["name", "address", "threads"].map(|key| section.span_of(key));
    section.finish(sink);
    let (name, (address, zone), rate) = (name?, address?, rate?);
    let prefixes = remote.iter().map(|(prefix, _)| *prefix).collect();
    let value = Peer {
        name,
        address,
        zone,
        rate,
        congestion,
        dead_after,
        resume_for,
        revoked,
        remote: prefixes,
        policy,
        relation,
        threads,
    };
    Some(PlacedPeer { value, remote, name: name_span, address: address_span, threads: threads_span })
}

/// `peer.revoked`
fn revoked(sink: &mut Sink, section: &mut Section<'_, '_>) -> Vec<Serial> {
    let serials = section.list_or_none(sink, "revoked", "revoked = [\"5f3a\"]", serial_number);
    let serials = serials.unwrap_or_default();
    if let Some((_, span)) = serials.get(Peer::MOST_REVOKED) {
        let found = format!("the first of {} too many", serials.len() - Peer::MOST_REVOKED);
        let help = "have another authority sign the peer's certificate, and name that one in [identity]";
        sink.error(span.clone(), "`peer.revoked` is too long", found, Some(help.to_owned()));
    }
    serials.into_iter().map(|(serial, _)| serial).collect()
}

fn serial_number(value: &DeValue<'_>) -> Result<Serial, Wrong> {
    Serial::parse(text(value, "5f3a")?).ok_or_else(|| {
        let help = "hexadecimal digits, two for each of up to 20 bytes, as `openssl x509 -noout -serial -in CERTIFICATE` prints them";
        Wrong::new("is not a certificate's serial number", help)
    })
}

fn congestion(value: &DeValue<'_>) -> Result<Congestion, Wrong> {
    const KNOWN: &str = "\"fixed\" (peer.rate is sent: a provisioned link) or \"adaptive\" (up to peer.rate, sharing the bottleneck)";
    one_of(&Congestion::ALL, text(value, "fixed")?, "is not a kind of congestion control", KNOWN)
}

/// Returns the value of this name.
fn one_of<T: Copy>(all: &[(&str, T)], name: &str, wrong: &str, known: &str) -> Result<T, Wrong> {
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let found = all.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).ok_or_else(|| Wrong::new(wrong, read::did_you_mean(name, &names, known)))
}

fn identity(sink: &mut Sink, mut section: Section<'_, '_>, folder: &Path) -> Option<Identity> {
    let certificate = section.required(sink, "certificate", "certificate = \"a.crt\"", path(folder, "a.crt"));
    let key = section.required(sink, "key", "key = \"a.key\"", path(folder, "a.key"));
    let authority = section.required(sink, "authority", "authority = \"ca.crt\"", path(folder, "ca.crt"));
    section.finish(sink);
    Some(Identity { certificate: certificate?, key: key?, authority: authority? })
}

fn admin(sink: &mut Sink, mut section: Section<'_, '_>, folder: &Path) -> Option<Admin> {
    const EXAMPLE: &str = "127.0.0.1:9464";
    let listen = section.optional(sink, "listen", socket_address(EXAMPLE));
    let socket = section.optional(sink, "socket", path(folder, "admin.sock"));
    let token = section.optional(sink, "token", path(folder, "admin.token"));
    let tls = admin_tls(sink, &mut section, folder);
    if token.is_none() && listen.is_some_and(|listen| !listen.ip().is_loopback()) {
        let help =
            "it answers without authentication; set admin.token and admin.certificate, or let a firewall restrict who reaches it"
                .to_owned();
        sink.warning(section.span_of("listen"), "`admin.listen` is not a loopback address", "", Some(help));
    }
    let reload_from = section.list(sink, "reload_from", "reload_from = [\"127.0.0.0/8\"]", prefix);
    let reload_from = reload_from.map(|list| list.into_iter().map(|(prefix, _)| prefix).collect());
    let hosts = section.list(sink, "hosts", "hosts = [\"gateway-a.example\"]", host).unwrap_or_default();
    let hosts = hosts.into_iter().map(|(name, _)| name).collect();
    admin_ways(sink, &mut section);
    section.finish(sink);
    let reload_from = reload_from.unwrap_or_else(Admin::loopback);
    Some(Admin { listen, reload_from, socket, token, hosts, tls })
}

/// TCP, the socket, or both. Keys about TCP alone are of no use without it.
fn admin_ways(sink: &mut Sink, section: &mut Section<'_, '_>) {
    const EXAMPLE: &str = "listen = \"127.0.0.1:9464\"; or, for this machine's own commands alone, \
                           socket = \"/run/longhaul/admin.sock\"";
    if section.has("listen") {
        return;
    }
    if !section.has("socket") {
        return section.missing("listen", EXAMPLE, false);
    }
    for key in ["token", "certificate", "reload_from"].into_iter().filter(|key| section.has(key)) {
        let message = format!("`admin.{key}` is about TCP, and there is no `admin.listen`");
        let help = "leave it out: who may open the socket is asked for nothing; or add listen".to_owned();
        sink.warning(section.span_of(key), message, Label::place("of no use"), Some(help));
    }
}

/// Both files, or neither.
fn admin_tls(sink: &mut Sink, section: &mut Section<'_, '_>, folder: &Path) -> Option<AdminTls> {
    let certificate = section.optional(sink, "certificate", path(folder, "admin.crt"));
    let key = section.optional(sink, "key", path(folder, "admin.key"));
    for (there, wanting, example) in
        [("certificate", "key", "key = \"admin.key\""), ("key", "certificate", "certificate = \"admin.crt\"")]
    {
        if section.has(there) && !section.has(wanting) {
            let help = format!("add {example}: TLS takes both, and plain HTTP neither");
            let message = format!("`admin.{there}` is without `admin.{wanting}`");
            sink.error(section.span_of(there), message, "", Some(help));
        }
    }
    Some(AdminTls { certificate: certificate?, key: key? })
}

fn host(value: &DeValue<'_>) -> Result<String, Wrong> {
    const EXAMPLE: &str = "gateway-a.example";
    let name = text(value, EXAMPLE)?;
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if (1..=253).contains(&name.len()) && name.bytes().all(is_fit) {
        return Ok(name.to_owned());
    }
    Err(Wrong::new("is no host name", format!("a name without a port, such as {EXAMPLE:?}")))
}

fn policy(sink: &mut Sink, mut section: Section<'_, '_>, folder: &Path) -> PolicyFile {
    let file = section.optional(sink, "file", path(folder, "policy.toml"));
    section.finish(sink);
    PolicyFile { file }
}

fn limits(sink: &mut Sink, mut section: Section<'_, '_>) -> Limits {
    let default = Limits::default();
    let gib = |gib: u64| ByteSize::mib(gib << 10);
    let limits = Limits {
        flow_buffer: section.optional(sink, "flow_buffer", unit(ByteSize::kib(64)..=gib(64), "16 MiB")),
        total_buffer: section.or(
            sink,
            "total_buffer",
            default.total_buffer,
            unit(ByteSize::mib(1)..=gib(1024), "512 MiB"),
        ),
        flows: section.or(sink, "flows", default.flows, integer(1..=4_000_000)),
        idle_flow: section.or(
            sink,
            "idle_flow",
            default.idle_flow,
            unit(Duration::secs(1)..=Duration::secs(86_400), "5 min"),
        ),
        withdraw: section.or(
            sink,
            "withdraw",
            default.withdraw,
            unit(Duration::secs(0)..=Duration::secs(60), "3 s"),
        ),
        drain: section.or(sink, "drain", default.drain, unit(Duration::secs(0)..=Duration::secs(600), "5 s")),
        rnr: section.or(sink, "rnr", default.rnr, unit(Duration::millis(1)..=Duration::secs(3600), "30 s")),
        target_dead: section.or(
            sink,
            "target_dead",
            default.target_dead,
            unit(Duration::millis(100)..=Duration::secs(600), "10 s"),
        ),
    };
    if let Some(flow_buffer) = limits.flow_buffer.filter(|flow_buffer| *flow_buffer > limits.total_buffer) {
        let message = "`limits.flow_buffer` is more than `limits.total_buffer`";
        let label = format!("{flow_buffer} for one flow, {} for all", limits.total_buffer);
        let help = "lower flow_buffer or raise total_buffer".to_owned();
        sink.error(section.span_of("flow_buffer"), message, label, Some(help));
    }
    section.finish(sink);
    limits
}

fn retention(sink: &mut Sink, mut section: Section<'_, '_>, folder: &Path) -> Retention {
    let most = ByteSize::mib(1024 << 10);
    let retention = Retention {
        directory: section.optional(sink, "directory", path(folder, "/run/longhaul")),
        size: section.optional(sink, "size", unit(ByteSize::mib(1)..=most, "128 MiB")),
    };
    section.finish(sink);
    retention
}

fn data_plane(sink: &mut Sink, mut section: Section<'_, '_>) -> Placed<DataPlane> {
    let range = Duration::secs(0)..=Duration::secs(1);
    let threads = section.or(sink, "threads", DataPlane::default().threads, integer(1..=Wan::MOST_THREADS));
    let busy_poll = section.or(sink, "busy_poll", DataPlane::default().busy_poll, unit(range, "50 us"));
    let span = section.span_of("threads");
    section.finish(sink);
    (DataPlane { threads, busy_poll }, span)
}

fn security(sink: &mut Sink, mut section: Section<'_, '_>) -> Security {
    let default = Security::default().filter_system_calls;
    let filter_system_calls = section.or(sink, "filter_system_calls", default, boolean);
    section.finish(sink);
    Security { filter_system_calls }
}

// Converters.

fn interface_name(value: &DeValue<'_>) -> Result<String, Wrong> {
    let name = text(value, "eth1")?;
    if !is_interface_name(name) {
        return Err(Wrong::new(
            "is not an interface name",
            "1 to 15 bytes without blanks, slashes and colons, such as \"eth1\"",
        ));
    }
    Ok(name.to_owned())
}

/// A multicast group that routers forward.
fn group(value: &DeValue<'_>) -> Result<IpAddr, Wrong> {
    const SUCH: &str = "such as \"239.1.1.1\" or \"ff05::1:1\"";
    let address: IpAddr =
        text(value, "239.1.1.1")?.parse().map_err(|_| Wrong::new("is not an IP address", SUCH))?;
    if !address.is_multicast() {
        let help = format!("IPv4 groups are 224.0.1.0 to 239.255.255.255, IPv6 ones begin with ff; {SUCH}");
        return Err(Wrong::new("is not a multicast group", help));
    }
    let stays_on_link = match address {
        IpAddr::V4(address) => address.octets().starts_with(&[224, 0, 0]),
        // The scope is four bits: 0 is reserved, 1 an interface's, 2 a link's.
        IpAddr::V6(address) => address.octets()[1] & 0xf <= 2,
    };
    if stays_on_link {
        let help =
            format!("no router forwards it, and neither does a gateway; take one of wider scope, {SUCH}");
        return Err(Wrong::new("is a group of one link's own", help));
    }
    Ok(address)
}
