//! Dependencies between the crates point down only, and the cores know nothing of I/O.
//!
//! The picture stands in docs/architecture.md. A crate that is not in the table fails, so that
//! whoever adds one says where it belongs.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Each crate of the workspace, and those of it that it may depend on, for its tests too.
const MAY: [(&str, &[&str]); 18] = [
    ("snapshot", &[]),
    ("fec", &[]),
    ("reliability", &["fec", "snapshot"]),
    ("transport", &["reliability", "snapshot"]),
    ("roce", &["snapshot"]),
    ("config", &[]),
    ("splice", &["config", "reliability", "roce", "snapshot", "transport"]),
    ("session", &[]),
    ("linksim", &["reliability"]),
    ("soft-nic", &["linksim", "roce"]),
    ("link-emulator", &["linksim"]),
    // Its programs measure over emulated links.
    ("sdr", &["fec", "link-emulator", "linksim", "reliability", "session"]),
    ("sdr-c", &["sdr"]),
    (
        "netem-tests",
        &["config", "linksim", "reliability", "roce", "snapshot", "soft-nic", "splice", "transport"],
    ),
    ("testbed", &["link-emulator", "linksim", "reliability", "roce", "soft-nic"]),
    (
        "gateway",
        &[
            "config",
            "link-emulator",
            "linksim",
            // For tests: its liar.
            "netem-tests",
            "reliability",
            "roce",
            "session",
            "snapshot",
            "soft-nic",
            "splice",
            "testbed",
            "transport",
        ],
    ),
    ("compare", LABORATORY),
    ("longhaul-lab", LABORATORY),
];

/// Crates that measure the product may use all of it.
const LABORATORY: &[&str] = &[
    "config",
    "gateway",
    "link-emulator",
    "linksim",
    "reliability",
    "roce",
    "session",
    "snapshot",
    "soft-nic",
    "splice",
    "testbed",
    "transport",
];

/// The crates without I/O and clock.
const CORES: [&str; 10] = [
    "snapshot",
    "fec",
    "reliability",
    "transport",
    "roce",
    "config",
    "splice",
    "linksim",
    "soft-nic",
    "netem-tests",
];

/// Crates that do I/O, or keep keys.
const BEYOND_CORES: [&str; 14] = [
    "aegis",
    "aws-lc-rs",
    "hyper",
    "libc",
    "metrics",
    "quinn",
    "quinn-proto",
    "quinn-udp",
    "rtnetlink",
    "rustix",
    "rustls",
    "socket2",
    "tokio",
    "tracing",
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns what cargo prints, run in the workspace.
fn cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(arguments).current_dir(workspace()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns what cargo says of each crate of the workspace.
fn packages() -> Vec<Value> {
    let metadata = cargo(&["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    list(&metadata, "packages")
}

fn list(value: &Value, key: &str) -> Vec<Value> {
    value.get(key).and_then(Value::as_array).unwrap().clone()
}

fn name(value: &Value) -> String {
    value.get("name").and_then(Value::as_str).unwrap().to_owned()
}

/// The direct dependencies of each crate of the workspace, of every kind.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    packages()
        .iter()
        .map(|package| (name(package), list(package, "dependencies").iter().map(name).collect()))
        .collect()
}

#[test]
fn dependencies_point_down() {
    let found = dependencies();
    let named: BTreeSet<&str> = MAY.iter().map(|(name, _)| *name).collect();
    assert_eq!(found.keys().map(String::as_str).collect::<BTreeSet<_>>(), named);
    let (mut allowed, mut below) = (BTreeMap::new(), BTreeSet::new());
    for (name, may) in MAY {
        // Each line names earlier ones only: so there is no circle.
        assert!(may.iter().all(|other| below.contains(other)), "{name}");
        below.insert(name);
        allowed.insert(name, BTreeSet::from_iter(may.iter().copied()));
    }
    for (name, found) in &found {
        let ours: BTreeSet<&str> =
            found.iter().map(String::as_str).filter(|name| named.contains(name)).collect();
        let beyond: Vec<_> = ours.difference(&allowed[name.as_str()]).collect();
        assert!(beyond.is_empty(), "{name} depends on {beyond:?}");
    }
}

/// The laboratory is in the product only as its feature `demo`, which is on by default and may be
/// switched off.
#[test]
fn the_product_needs_nothing_of_the_laboratory() {
    let packages = packages();
    let gateway = packages.iter().find(|package| name(package) == "gateway").unwrap();
    let laboratory = ["soft-nic", "link-emulator", "netem-tests", "testbed", "longhaul-lab", "compare"];
    for dependency in list(gateway, "dependencies") {
        let is_for_tests = dependency.get("kind").and_then(Value::as_str) == Some("dev");
        let is_optional = dependency.get("optional").and_then(Value::as_bool).unwrap();
        let is_laboratory = laboratory.contains(&name(&dependency).as_str());
        assert!(!is_laboratory || is_optional || is_for_tests, "{dependency}");
    }
    let features = gateway.get("features").unwrap().as_object().unwrap();
    let enabling: Vec<&str> = features
        .iter()
        .filter(|(_, enables)| laboratory.iter().any(|name| enables.to_string().contains(name)))
        .map(|(feature, _)| feature.as_str())
        .collect();
    assert_eq!(enabling, ["demo"]);
    assert_eq!(features["default"], serde_json::json!(["demo"]));
}

#[test]
fn cores_know_nothing_of_io() {
    let found = dependencies();
    for core in CORES {
        let beyond: Vec<_> = BEYOND_CORES.iter().filter(|name| found[core].contains(**name)).collect();
        assert!(beyond.is_empty(), "{core} depends on {beyond:?}");
    }
}

/// Returns path and text of each source file in `folder` and below.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let (mut folders, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found
}

/// Nor in words: whoever reads `transport` need not know what it carries.
#[test]
fn transport_does_not_name_what_stands_above_it() {
    let sources = sources(&workspace().join("transport/src"));
    assert!(sources.len() > 10, "{} files were looked at", sources.len());
    for (path, text) in sources {
        for word in ["roce", "rdma", "use config", "quinn", "tokio", "queue pair"] {
            assert!(!text.to_lowercase().contains(word), "{}: {word}", path.display());
        }
    }
}

/// Crates of the QUIC connection, which `session` has by its feature `quic` only.
const QUIC: [&str; 5] = ["quinn", "quinn-proto", "quinn-udp", "tokio", "tracing"];

#[test]
fn session_without_quic_has_nothing_of_it() {
    let packages = packages();
    let session = packages.iter().find(|package| name(package) == "session").unwrap();
    for dependency in list(session, "dependencies") {
        let is_optional = dependency.get("optional").and_then(Value::as_bool).unwrap();
        assert!(is_optional || !QUIC.contains(&name(&dependency).as_str()), "{dependency}");
    }
    let features = session.get("features").unwrap().as_object().unwrap();
    let enabling: Vec<&str> = features
        .iter()
        .filter(|(_, enables)| QUIC.iter().any(|name| enables.to_string().contains(name)))
        .map(|(feature, _)| feature.as_str())
        .collect();
    assert_eq!(enabling, ["quic"]);
}

/// Nor does it come along with another crate.
#[test]
fn what_session_needs_without_quic_does_not_need_it_either() {
    let arguments = "tree --package session --no-default-features --edges normal --prefix none --offline";
    let tree = cargo(&arguments.split(' ').collect::<Vec<_>>());
    let needed: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(needed.contains("rustls"), "{tree}");
    let beyond: Vec<_> = QUIC.iter().filter(|name| needed.contains(**name)).collect();
    assert!(beyond.is_empty(), "session needs {beyond:?}");
}

#[test]
fn session_names_quinn_and_tokio_only_where_it_connects() {
    let session = workspace().join("session/src");
    let (connection, rest): (Vec<_>, Vec<_>) =
        sources(&session).into_iter().partition(|(path, _)| path.starts_with(session.join("control")));
    assert!(connection.iter().any(|(_, text)| text.contains("quinn")));
    assert!(rest.len() > 5, "{} files were looked at", rest.len());
    for (path, text) in rest {
        for word in ["quinn", "tokio"] {
            assert!(!text.to_lowercase().contains(word), "{}: {word}", path.display());
        }
    }
}

/// Crates of the `udp` back end of `sdr`, which a program with a back end of its own does not need.
const SDR_UDP: [&str; 3] = ["aws-lc-rs", "quinn-udp", "session"];

#[test]
fn the_sdr_core_knows_nothing_of_io() {
    let packages = packages();
    let sdr = packages.iter().find(|package| name(package) == "sdr").unwrap();
    for dependency in list(sdr, "dependencies") {
        let is_optional = dependency.get("optional").and_then(Value::as_bool).unwrap();
        let is_io = BEYOND_CORES.contains(&name(&dependency).as_str())
            || SDR_UDP.contains(&name(&dependency).as_str());
        assert!(is_optional || !is_io, "{dependency}");
    }
    let features = sdr.get("features").unwrap().as_object().unwrap();
    let enabling: Vec<&str> = features
        .iter()
        .filter(|(_, enables)| SDR_UDP.iter().any(|name| enables.to_string().contains(name)))
        .map(|(feature, _)| feature.as_str())
        .collect();
    assert_eq!(enabling, ["udp"]);
}
