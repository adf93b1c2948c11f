//! Two hosts in network name spaces of their own and the emulated link between them.
//!
//! The name spaces have no names: each lives as long as a process that does nothing but hold it,
//! and that ends with this program, whatever ends this program. So nothing is left behind,
//! interrupted or not.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use link_emulator::{Bridge, BridgeSpec, Interface};
use linksim::impair::LinkSpec;

/// The sender's address, and the receiver's.
pub(crate) const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];
/// Both hosts' interface.
const INTERFACE: &str = "wan";
/// The emulator's interfaces.
const ENDS: [&str; 2] = ["end-a", "end-b"];
const PATIENCE: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(5);
/// The size to which TCP may grow a connection's buffers to: the default stops at 4 MiB for
/// sending.
const SETTINGS: [(&str, &str); 4] = [
    ("net/ipv4/tcp_wmem", "4096 65536 134217728"),
    ("net/ipv4/tcp_rmem", "4096 131072 134217728"),
    ("net/ipv4/tcp_no_metrics_save", "1"),
    ("net/ipv4/tcp_slow_start_after_idle", "0"),
];

/// Where a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// Where messages are sent.
    Sender,
    /// Where they are received.
    Receiver,
}

/// The name spaces. They are gone when this is dropped.
pub(crate) struct Lab {
    mtu: u16,
    hosts: [Space; 2],
    emulator: Space,
}

/// A name space and its holder.
struct Space(Child);

impl Lab {
    /// Makes both hosts, with links of this MTU (bytes of an IP packet). Needs root.
    pub(crate) fn new(mtu: u16) -> io::Result<Self> {
        let lab = Self { mtu, hosts: [Space::new()?, Space::new()?], emulator: Space::new()? };
        for ((host, end), address) in lab.hosts.iter().zip(ENDS).zip(ADDRESSES) {
            let pid = host.0.id();
            lab.emulator.ip(&format!(
                "link add {end} mtu {mtu} type veth peer name {INTERFACE} mtu {mtu} netns {pid}"
            ))?;
            lab.emulator.ip(&format!("link set {end} up"))?;
            host.ip(&format!("address add {address}/24 dev {INTERFACE}"))?;
            host.ip(&format!("link set {INTERFACE} up"))?;
            host.ip("link set lo up")?;
            for (name, value) in SETTINGS {
                finish(host.command("sh").arg("-c").arg(format!("echo {value} > /proc/sys/{name}")))?;
            }
        }
        Ok(lab)
    }

    /// Bytes of an IP packet, at most.
    pub(crate) fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Joins the hosts by a link, the same in both directions.
    pub(crate) fn link(&self, spec: LinkSpec, seed: u64) -> io::Result<Bridge> {
        let [a, b] = ENDS.map(|name| Interface { netns: Some(self.emulator.path()), name: name.to_owned() });
        Bridge::start(&BridgeSpec { a, b, a_to_b: spec, b_to_a: spec, seed })
    }

    /// Starts a program at a site, its standard input and output ours, what it complains about in a
    /// file.
    pub(crate) fn start(&self, site: Site, program: &Path, log: &Path) -> io::Result<Launch> {
        let [sender, receiver] = &self.hosts;
        let space = if site == Site::Sender { sender } else { receiver };
        let mut command = space.command(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(fs::File::create(log)?);
        Ok(Launch { command })
    }
}

/// A program about to be started.
pub(crate) struct Launch {
    /// For its arguments and environment.
    pub(crate) command: Command,
}

impl Launch {
    pub(crate) fn spawn(mut self) -> io::Result<Running> {
        let mut child = self.command.spawn()?;
        let stdin = child.stdin.take();
        Ok(Running { child, stdin })
    }
}

/// A program that runs at a site; killed when dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
}

impl Running {
    /// Closes its standard input, which is how it is told to end.
    pub(crate) fn release(&mut self) {
        self.stdin = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Space {
    fn new() -> io::Result<Self> {
        let mut holder = Command::new("setpriv");
        holder.args(["--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"]).stdin(Stdio::null());
        let space = Self(holder.spawn()?);
        let ours = fs::read_link("/proc/self/ns/net")?;
        let end = Instant::now() + PATIENCE;
        // Between its start and its change of name space it has ours.
        while fs::read_link(space.path()).map_or(true, |theirs| theirs == ours) {
            if Instant::now() >= end {
                return Err(io::Error::other("no network name space: unshare --net failed (root is needed)"));
            }
            std::thread::sleep(TICK);
        }
        Ok(space)
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    /// A program in this name space that ends with ours. Every step is an exec, so the process
    /// started is the program itself.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "nsenter"]).arg(format!("--net={}", self.path()));
        command.arg("--").arg(program.as_ref());
        command
    }

    fn ip(&self, arguments: &str) -> io::Result<()> {
        finish(self.command("ip").args(arguments.split(' ')))
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn finish(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
