//! A link over link-local addresses, whose interface is deleted and made again.
//!
//! Runs in a network name space of its own, where the interface of each gateway is one end of a
//! veth pair:
//! ```text
//! gateway a fe80::1 w0 - w1 fe80::2 gateway b
//! ```

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output};

use super::*;

/// The name of [`inside`], for the test program that runs it.
const INSIDE: &str = "zone::inside";
const SPACE: &str = "set -e; ip link set lo up; exec \"$0\" --exact \"$1\" --ignored --nocapture";

#[test]
fn a_link_comes_back_with_its_interface_though_its_index_is_another() {
    let status = Command::new("unshare")
        .args(["--net", "sh", "-c", SPACE])
        .arg(std::env::current_exe().unwrap())
        .arg(INSIDE)
        .status()
        .expect("unshare of util-linux");
    assert!(status.success(), "network name spaces need root; otherwise see above");
}

/// A gateway process, which ends with the test.
struct Gateway(Child);

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().expect("iproute2");
    assert!(status.success(), "ip {arguments}");
}

/// Makes both ends, the first with this index and the second with the next.
fn make(index: u32) {
    ip(&format!("link add w0 index {index} type veth peer name w1 index {}", index + 1));
    for (name, address) in [("w0", "fe80::1"), ("w1", "fe80::2")] {
        ip(&format!("addr add {address}/64 dev {name} nodad"));
        ip(&format!("link set {name} up"));
    }
}

fn longhaul(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_longhaul")).args(arguments).current_dir(folder).output().unwrap()
}

/// Site a is 1, and site b is 2.
fn start(folder: &Path, [name, other]: [&str; 2], own: u32, interface: &str) -> Gateway {
    let text = format!(
        "[site]\nname = \"{name}\"\n\
         [lan]\nmode = \"socket\"\nlisten = \"127.0.0.1:2479{own}\"\nremote = [\"10.0.{}.0/24\"]\n\
         [lan.hosts]\n\"10.0.{own}.1\" = \"127.0.0.1:2500{own}\"\n\
         [wan]\nlisten = \"[fe80::{own}%{interface}]:14791\"\nlanes = 2\n\
         [peer]\nname = \"{other}\"\naddress = \"[fe80::{}%{interface}]:14791\"\nrate = \"1 Gbit/s\"\n\
         dead_after = \"1 s\"\n\
         [identity]\ncertificate = \"{name}.crt\"\nkey = \"{name}.key\"\nauthority = \"ca.crt\"\n\
         [admin]\nlisten = \"127.0.0.1:946{own}\"\n",
        3 - own,
        3 - own,
    );
    let file = format!("{name}.toml");
    std::fs::write(folder.join(&file), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["gateway", "--config", &file]).current_dir(folder).env_remove("LONGHAUL_LOG");
    Gateway(command.spawn().unwrap())
}

/// Returns the value of a gauge towards the peer.
fn metric(own: u32, name: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", 9460 + u16::try_from(own).unwrap())).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let labelled = format!("{name}{{");
    let line = text.lines().find(|line| line.starts_with(&labelled))?;
    line.rsplit(' ').next().map(str::to_owned)
}

#[test]
#[ignore = "run by the other one, in a name space"]
fn inside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    assert!(longhaul(path, &["keys", "--dir", ".", "a", "b"]).status.success());
    make(70);
    let _gateways = [start(path, ["a", "b"], 1, "w0"), start(path, ["b", "a"], 2, "w1")];
    let both =
        |name: &str, value: &str| [1, 2].iter().all(|own| metric(*own, name).as_deref() == Some(value));
    let stands = || {
        let at = |own: u32| format!("127.0.0.1:946{own}");
        // Data cross both ways, or this is not 0.
        let is_up = |own| longhaul(path, &["status", "--admin", &at(own)]).status.success();
        is_up(1) && is_up(2) && both("longhaul_wan_up", "1")
    };
    let events = |own: u32| {
        let at = format!("127.0.0.1:946{own}");
        String::from_utf8(longhaul(path, &["events", "--admin", &at]).stdout).unwrap()
    };
    let count = |own: u32, kind: &str| events(own).lines().filter(|line| line.contains(kind)).count();
    wait_until("no session begins", &stands);
    for (times, index) in [(2, 80), (3, 90)] {
        ip("link del w0");
        wait_until("nobody says that there is no way", &|| {
            both("longhaul_wan_up", "0") && both("longhaul_session_up", "0")
        });
        make(index);
        // The one before may not be missed yet.
        let is_another = || [1, 2].iter().all(|own| count(*own, "session_up") >= times);
        wait_until("no session comes back", &|| is_another() && stands());
    }
    for own in [1, 2] {
        let events = events(own);
        let counts = ["wan_down", "wan_up", "session_lost", "session_up"].map(|kind| count(own, kind));
        assert!(counts[0] >= 2 && counts[1] == 2 && counts[3] >= 3, "{counts:?}\n{events}");
        assert!(events.contains("no way from fe80::") && events.contains("No such device"), "{events}");
    }
}
