//! The files of both gateways.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;

use super::ports::{Ports, SitePorts};
use super::{Plan, TestbedError};

/// Writes keys, certificates, the policy and a gateway file for each site, `a.toml` and `b.toml`.
pub(super) fn write(dir: &Path, plan: &Plan, ports: &Ports) -> Result<(), TestbedError> {
    keys(dir, plan)?;
    let put = |name: &str, text: String| {
        std::fs::write(dir.join(name), text).map_err(TestbedError::io("a gateway's files"))
    };
    put("policy.toml", format!("[[class]]\nname = \"default\"\n{}\n", plan.policy))?;
    let [a, b] = &ports.sites;
    let [hosts_a, hosts_b] = &plan.hosts;
    let [mtus_a, mtus_b] = [0, 1].map(|site| mtus(plan, site));
    let [interface_a, interface_b] = plan.interface.each_ref().map(Option::as_deref);
    let (lan_a, lan_b) = (lan(interface_a, a.lan, hosts_a), lan(interface_b, b.lan, hosts_b));
    let [threads_a, threads_b] = plan.threads;
    let threads = [threads_a, threads_b];
    let remote = remote("10.0.1.0/24", hosts_b);
    put("a.toml", gateway("a", "b", &remote, (a, threads), &mtus_a, &lan_a, plan))?;
    let threads = [threads_b, threads_a];
    let remote = self::remote("10.0.0.0/24", hosts_a);
    put("b.toml", gateway("b", "a", &remote, (b, threads), &mtus_b, &lan_b, plan))
}

/// The value of `lan.remote`: the site's prefix, and each of its hosts that has an IPv6 address.
fn remote(prefix: &str, hosts: &[(IpAddr, SocketAddr)]) -> String {
    let others = hosts.iter().filter(|(inner, _)| inner.is_ipv6());
    others.fold(format!("\"{prefix}\""), |text, (inner, _)| format!("{text}, \"{inner}/128\""))
}

/// Has the program make an authority, and a certificate and key for each site.
fn keys(dir: &Path, plan: &Plan) -> Result<(), TestbedError> {
    let mut command = Command::new(&plan.program);
    let output = command.args(["keys", "--dir"]).arg(dir).args(["a", "b"]).output();
    let output = output.map_err(TestbedError::io("making certificates"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(TestbedError::Keys(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

fn retention(plan: &Plan) -> String {
    let directory = plan.retention.as_ref().map(|path| path.display().to_string());
    directory.map_or(String::new(), |path| format!("[retention]\ndirectory = {path:?}\nsize = \"32 MiB\"\n"))
}

/// The lines that say how long packets may be: of `[lan]`, of `[wan]`.
fn mtus(plan: &Plan, site: usize) -> [String; 2] {
    let line = |mtu: u16| format!("mtu = {mtu}");
    let lan = plan.lan_mtu.get(site).copied().flatten();
    let wan = plan.mtu.get(site).copied().map(line).unwrap_or_default();
    [lan.map(line).unwrap_or_default(), format!("{wan}\nprobe_mtu = {}", plan.probe_mtu)]
}

/// The lines of `[lan]` that differ by mode: at its beginning, and behind it.
fn lan(interface: Option<&str>, listen: SocketAddr, hosts: &[(IpAddr, SocketAddr)]) -> [String; 2] {
    if let Some(name) = interface {
        return [format!("interface = \"{name}\""), String::new()];
    }
    let hosts = hosts.iter().fold("[lan.hosts]\n".to_owned(), |mut text, (inner, outer)| {
        // Writing to a String never fails.
        let _ = writeln!(text, "\"{inner}\" = \"{outer}\"");
        text
    });
    [format!("mode = \"socket\"\nlisten = \"{listen}\""), hosts]
}

fn gateway(
    name: &str,
    peer: &str,
    remote: &str,
    (ports, [threads, there]): (&SitePorts, [u8; 2]),
    [lan_mtu, wan_mtu]: &[String; 2],
    [lan, hosts]: &[String; 2],
    plan: &Plan,
) -> String {
    let SitePorts { wan, relay, admin, .. } = ports;
    let Plan { rate, congestion, limits, busy_poll, dead_after, resume_for, lanes, .. } = plan;
    let peer_threads = if there == threads { String::new() } else { format!("threads = {there}") };
    let retention = retention(plan);
    format!(
        r#"[site]
name = "{name}"

[lan]
{lan}
remote = [{remote}]
{lan_mtu}

{hosts}
[wan]
listen = "{wan}"
{wan_mtu}
lanes = {lanes}

[peer]
name = "{peer}"
address = "{relay}"
rate = "{rate}"
congestion = "{congestion}"
dead_after = "{dead_after}"
resume_for = "{resume_for}"
{peer_threads}

[identity]
certificate = "{name}.crt"
key = "{name}.key"
authority = "ca.crt"

[admin]
listen = "{admin}"
socket = "{name}.sock"

[policy]
file = "policy.toml"

[limits]
{limits}

{retention}
[data_plane]
threads = {threads}
busy_poll = "{busy_poll}"
"#
    )
}
