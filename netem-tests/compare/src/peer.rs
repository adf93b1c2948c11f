//! Who is compared, with which settings.

use std::fs;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::{ADMIN, CERTIFICATE_FILE, HOST, LAN, RECEIVER, SENDER};
use crate::cell::{Cell, rate_name};
use crate::job::Job;
use crate::lab::{ADDRESSES, Lab, Launch, Site};

const PORT: u16 = 5001;
const KCP_PORT: u16 = 29900;
const KCP_LOCAL: u16 = 12948;
const KCP_START: Duration = Duration::from_millis(300);
const WAN: u16 = 14791;
/// IP, UDP and WireGuard's own, and its padding.
const WIREGUARD_HEADERS: u16 = 80;
/// Interface, private key, the other's public key, its address, MTU, own address, the other's.
/// wireguard-go makes the interface, and is configured as soon as it has; then the script is ready.
const WIREGUARD: &str = r#"
set -e
configure() {
  # A socket may be left of an interface that was, and answer for it.
  ip link show dev "$1" &&
    echo "$2" | wg set "$1" private-key /dev/stdin listen-port 51820 peer "$3" endpoint "$4:51820" allowed-ips "$7/32" &&
    ip address replace "$6/24" dev "$1" && ip link set "$1" mtu "$5" up
}
(
  for _ in $(seq 1000); do
    if configure "$@" > /dev/null 2>&1; then echo ready; break; fi
    sleep 0.02
  done
) &
LOG_LEVEL=error exec wireguard-go -f "$1"
"#;

/// One who carries messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Peer {
    /// The kernel's TCP, everything on one connection.
    Tcp(Congestion),
    /// The kernel's TCP, a connection for each message at a time.
    TcpEach(Congestion),
    /// The kernel's TCP, with TLS 1.3 in the programs at its ends, everything on one connection.
    Tls(Congestion),
    /// The kernel's TCP through WireGuard (wireguard-go), everything on one connection.
    WireGuard(Congestion),
    /// QUIC (quinn).
    Quic(Congestion),
    /// SRT (libsrt).
    Srt,
    /// UDT (libudt).
    Udt,
    /// TCP through kcptun.
    Kcptun,
    /// RDMA through Longhaul.
    Longhaul(Scheme),
}

/// Congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Congestion {
    /// The kernel's and quinn's default.
    Cubic,
    /// BBR.
    Bbr,
}

/// Longhaul's scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Scheme {
    /// Selective repeat.
    Sr,
    /// Reed-Solomon over 32 packets.
    Mds,
    /// Over 64 packets, with a quarter as much parity.
    MdsLight,
    /// Reed-Solomon over 32 packets, four blocks filled in turn, against bursts.
    MdsDeep,
    /// Both, where each pays.
    Hybrid,
    /// The gateway's own choice.
    Auto,
}

impl Congestion {
    fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Self::Sr => "sr",
            Self::Mds => "mds(32,8)",
            Self::MdsLight => "mds(64,4)",
            Self::MdsDeep => "mds(32,8) interleaved",
            Self::Hybrid => "hybrid(32,8)",
            Self::Auto => "auto",
        }
    }

    /// The keys of a policy file.
    fn policy(self) -> &'static str {
        match self {
            Self::Sr => "scheme = \"sr\"",
            Self::Mds => "scheme = \"mds\"\nk = 32\nm = 8",
            Self::MdsLight => "scheme = \"mds\"\nk = 64\nm = 4",
            Self::MdsDeep => "scheme = \"mds\"\nk = 32\nm = 8\ninterleave = 4",
            Self::Hybrid => "scheme = \"hybrid\"\nk = 32\nm = 8",
            // What is compared is what it is to keep small.
            Self::Auto => "scheme = \"auto\"\npercentile = 99",
        }
    }
}

impl Peer {
    /// All, in the order of the tables.
    pub(crate) const ALL: [Self; 19] = [
        Self::Tcp(Congestion::Cubic),
        Self::TcpEach(Congestion::Cubic),
        Self::Tcp(Congestion::Bbr),
        Self::TcpEach(Congestion::Bbr),
        Self::Tls(Congestion::Cubic),
        Self::Tls(Congestion::Bbr),
        Self::WireGuard(Congestion::Cubic),
        Self::WireGuard(Congestion::Bbr),
        Self::Quic(Congestion::Cubic),
        Self::Quic(Congestion::Bbr),
        Self::Srt,
        Self::Udt,
        Self::Kcptun,
        Self::Longhaul(Scheme::Sr),
        Self::Longhaul(Scheme::Mds),
        Self::Longhaul(Scheme::MdsLight),
        Self::Longhaul(Scheme::MdsDeep),
        Self::Longhaul(Scheme::Hybrid),
        Self::Longhaul(Scheme::Auto),
    ];

    /// As in the tables.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Tcp(congestion) => format!("TCP {}", congestion.name()),
            Self::TcpEach(congestion) => format!("TCP {}, each its own", congestion.name()),
            Self::Tls(congestion) => format!("TLS {}", congestion.name()),
            Self::WireGuard(congestion) => format!("WireGuard {}", congestion.name()),
            Self::Quic(congestion) => format!("QUIC {}", congestion.name()),
            Self::Srt => "SRT".to_owned(),
            Self::Udt => "UDT".to_owned(),
            Self::Kcptun => "kcptun".to_owned(),
            Self::Longhaul(scheme) => format!("Longhaul {}", scheme.name()),
        }
    }

    pub(crate) fn is_longhaul(self) -> bool {
        matches!(self, Self::Longhaul(_))
    }

    /// Returns true if its packets are encrypted on the link. kcptun does not authenticate its own.
    pub(crate) fn encrypts(self) -> bool {
        match self {
            Self::Tls(_) | Self::WireGuard(_) | Self::Quic(_) | Self::Kcptun | Self::Longhaul(_) => true,
            Self::Tcp(_) | Self::TcpEach(_) | Self::Srt | Self::Udt => false,
        }
    }

    /// Returns true if it needs a while to find out about the link.
    pub(crate) fn learns(self) -> bool {
        self == Self::Longhaul(Scheme::Auto)
    }

    /// Returns true if it differs from another row there, and may be the best of Longhaul's
    /// schemes.
    pub(crate) fn takes_part(self, cell: &Cell) -> bool {
        match self {
            Self::TcpEach(_) => cell.outstanding > 1,
            Self::Longhaul(Scheme::MdsLight) => cell.drops.share >= 1e-3 && !cell.drops.bursty,
            Self::Longhaul(Scheme::MdsDeep) => cell.drops.bursty,
            _ => true,
        }
    }

    /// Connections or queue pairs of the programs at the ends.
    pub(crate) fn connections(self, cell: &Cell) -> u32 {
        match self {
            Self::TcpEach(_) | Self::Kcptun | Self::Longhaul(_) => cell.outstanding,
            Self::Tcp(_) | Self::Tls(_) | Self::WireGuard(_) | Self::Quic(_) | Self::Srt | Self::Udt => 1,
        }
    }
}

/// One end of WireGuard's tunnel.
struct Tunnel {
    site: Site,
    /// Its interface. The sockets by which such are configured are in one folder of the machine.
    interface: &'static str,
    /// In the tunnel.
    address: &'static str,
    /// On the link.
    host: Ipv4Addr,
    private: String,
    public: String,
}

impl Tunnel {
    /// Makes an end with new keys.
    fn new(site: Site, interface: &'static str, address: &'static str, host: Ipv4Addr) -> io::Result<Tunnel> {
        let private = wg("genkey", "")?;
        let public = wg("pubkey", &private)?;
        Ok(Tunnel { site, interface, address, host, private, public })
    }
}

/// A line that wg(8) makes of another.
fn wg(what: &str, input: &str) -> io::Result<String> {
    let mut child = Command::new("wg").arg(what).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("wg {what}: {}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The parts that a program is made of.
pub(crate) struct Stage<'a> {
    pub(crate) lab: &'a Lab,
    /// This program.
    pub(crate) program: &'a Path,
    /// Where `messages-srt` and `messages-udt` are.
    pub(crate) harness: &'a Path,
    /// For files that last as long as the measurement.
    pub(crate) dir: &'a Path,
    pub(crate) cell: &'a Cell,
    pub(crate) job: &'a Job,
}

/// A program of a peer, in the order they are to be started.
pub(crate) struct Part {
    pub(crate) launch: Launch,
    /// Carries messages for others, rather than being an end of its own.
    pub(crate) carries: bool,
    /// When the next one may be started.
    pub(crate) ready: Ready,
    pub(crate) log: PathBuf,
}

/// How a program shows that it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ready {
    /// It says so.
    Says,
    /// It does not; a while is enough, or whoever talks to it waits.
    After(Duration),
    /// The last one: the sender.
    Sends,
}

impl Stage<'_> {
    /// The programs of a peer: carriers first, then the receiver, at last the sender.
    pub(crate) fn parts(&self, peer: Peer) -> io::Result<Vec<Part>> {
        let target = SocketAddr::new(ADDRESSES[1].into(), PORT).to_string();
        match peer {
            Peer::Tcp(congestion) | Peer::TcpEach(congestion) => {
                let congestion = ["--congestion", congestion.name()];
                self.ends("tcp", &[congestion.as_slice(), &[&target]].concat(), true)
            }
            Peer::Tls(congestion) => self.ends("tls", &["--congestion", congestion.name(), &target], true),
            Peer::WireGuard(congestion) => self.wireguard(congestion),
            Peer::Quic(congestion) => {
                let mtu = self.cell.mtu.to_string();
                self.ends("quic", &["--congestion", congestion.name(), "--mtu", &mtu, &target], true)
            }
            Peer::Srt => self.messages("messages-srt"),
            Peer::Udt => self.messages("messages-udt"),
            Peer::Kcptun => self.kcptun(),
            Peer::Longhaul(scheme) => self.longhaul(scheme),
        }
    }

    /// Receiver and sender of ours. The receiver gets the same arguments, and the job if it wants
    /// it.
    fn ends(&self, kind: &str, arguments: &[&str], addressed: bool) -> io::Result<Vec<Part>> {
        let mut receiver = self.part(Site::Receiver, self.program, Ready::Says)?;
        let mut sender = self.part(Site::Sender, self.program, Ready::Sends)?;
        for (part, end) in [(&mut receiver, "receive"), (&mut sender, "send")] {
            let command = &mut part.launch.command;
            command.args(["agent", &format!("{kind}-{end}")]).args(arguments);
            command.env(CERTIFICATE_FILE, self.dir.join("receiver.der"));
            if end == "send" || !addressed {
                command.args(self.job.arguments());
            }
        }
        Ok(vec![receiver, sender])
    }

    fn messages(&self, program: &str) -> io::Result<Vec<Part>> {
        let program = self.harness.join(program);
        let (port, mtu) = (PORT.to_string(), self.cell.mtu.to_string());
        let mut receiver = self.part(Site::Receiver, &program, Ready::Says)?;
        receiver.launch.command.args(["receive", &port, &mtu]);
        let mut sender = self.part(Site::Sender, &program, Ready::Sends)?;
        let command = &mut sender.launch.command;
        command.args(["send", &ADDRESSES[1].to_string(), &port, &mtu]).args(self.job.arguments());
        Ok(vec![receiver, sender])
    }

    fn wireguard(&self, congestion: Congestion) -> io::Result<Vec<Part>> {
        let [here, there] = ADDRESSES;
        let sender = Tunnel::new(Site::Sender, "compare-a", "10.78.0.1", here)?;
        let receiver = Tunnel::new(Site::Receiver, "compare-b", "10.78.0.2", there)?;
        let mtu = self.cell.mtu.saturating_sub(WIREGUARD_HEADERS).to_string();
        let mut parts = Vec::new();
        for (own, other) in [(&receiver, &sender), (&sender, &receiver)] {
            let mut part = self.part(own.site, Path::new("sh"), Ready::Says)?;
            part.carries = true;
            let command = &mut part.launch.command;
            command.args(["-c", WIREGUARD, "wireguard", own.interface, &own.private]);
            command.args([&other.public, &other.host.to_string(), &mtu]);
            command.args([own.address, other.address]);
            parts.push(part);
        }
        let target = format!("{}:{PORT}", receiver.address);
        parts.extend(self.ends("tcp", &["--congestion", congestion.name(), &target], true)?);
        Ok(parts)
    }

    fn kcptun(&self) -> io::Result<Vec<Part>> {
        // Packets in two bandwidth-delay products, and half as many again for parity.
        let product = self.cell.rate as f64 * self.cell.rtt().as_secs_f64() / 8.0;
        let window = ((product * 3.0 / 1300.0) as u64).max(1024).to_string();
        let common = [
            "--mode",
            "fast3",
            "--crypt",
            "aes-128",
            "--nocomp",
            "--mtu",
            "1400",
            "--sockbuf",
            "33554432",
            "--smuxver",
            "2",
            "--smuxbuf",
            "134217728",
            "--streambuf",
            "33554432",
            "--quiet",
        ];
        let mut server = self.part(Site::Receiver, Path::new("kcptun-server"), Ready::After(KCP_START))?;
        let mut client = self.part(Site::Sender, Path::new("kcptun-client"), Ready::After(KCP_START))?;
        let target = format!("127.0.0.1:{PORT}");
        let (remote, local) = (format!("{}:{KCP_PORT}", ADDRESSES[1]), format!("127.0.0.1:{KCP_LOCAL}"));
        server.launch.command.args(["--listen", &format!(":{KCP_PORT}"), "--target", &target]);
        client.launch.command.args(["--remoteaddr", &remote, "--localaddr", &local]);
        for part in [&mut server, &mut client] {
            part.carries = true;
            part.launch.command.args(common).args(["--sndwnd", &window, "--rcvwnd", &window]);
        }
        let mut receiver = self.part(Site::Receiver, self.program, Ready::Says)?;
        receiver.launch.command.args(["agent", "tcp-receive", &target]);
        let mut sender = self.part(Site::Sender, self.program, Ready::Sends)?;
        sender.launch.command.args(["agent", "tcp-send", &local]).args(self.job.arguments());
        Ok(vec![server, receiver, client, sender])
    }

    fn longhaul(&self, scheme: Scheme) -> io::Result<Vec<Part>> {
        let sites = ["a".to_owned(), "b".to_owned()];
        let request = gateway::keys::Request { dir: self.dir, sites: &sites, force: true };
        gateway::keys::generate(&request).map_err(io::Error::other)?;
        fs::write(
            self.dir.join("policy.toml"),
            format!("[[class]]\nname = \"default\"\n{}\n", scheme.policy()),
        )?;
        let mut parts = Vec::new();
        for (site, name) in [(Site::Receiver, "b"), (Site::Sender, "a")] {
            let file = self.dir.join(format!("{name}.toml"));
            fs::write(&file, self.gateway_file(site, name))?;
            let mut part = self.part(site, self.program, Ready::After(Duration::ZERO))?;
            part.carries = true;
            part.launch.command.arg("gateway").arg(file);
            parts.push(part);
        }
        parts.extend(self.ends("rdma", &[], false)?);
        Ok(parts)
    }

    fn gateway_file(&self, site: Site, name: &str) -> String {
        let ([here, there], peer, host, remote) = match site {
            Site::Sender => (ADDRESSES, "b", SENDER, "10.0.1.0/24"),
            Site::Receiver => ([ADDRESSES[1], ADDRESSES[0]], "a", RECEIVER, "10.0.0.0/24"),
        };
        let (mtu, rate) = (self.cell.mtu, rate_name(self.cell.rate));
        format!(
            r#"[site]
name = "{name}"
[lan]
mode = "socket"
listen = "{LAN}"
remote = ["{remote}"]
[lan.hosts]
"{host}" = "{HOST}"
[wan]
listen = "{here}:{WAN}"
mtu = {mtu}
probe_mtu = false
[peer]
name = "{peer}"
address = "{there}:{WAN}"
rate = "{rate}"
[identity]
certificate = "{name}.crt"
key = "{name}.key"
authority = "ca.crt"
[admin]
listen = "{ADMIN}"
[policy]
file = "policy.toml"
[limits]
total_buffer = "1 GiB"
"#
        )
    }

    fn part(&self, site: Site, program: &Path, ready: Ready) -> io::Result<Part> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let log = self.dir.join(format!("{name}-{site:?}-{ready:?}.log"));
        let launch = self.lab.start(site, program, &log)?;
        Ok(Part { launch, carries: false, ready, log })
    }
}
