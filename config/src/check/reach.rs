//! Finds classes that no flow of a gateway can belong to.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use miette::Severity;

use crate::gateway::{Gateway, Peer, Relation};
use crate::policy::{Class, Policy};
use crate::problem::{Problem, Source};
use crate::read;

/// Warns of classes whose `match.src` or `match.dst` has none of the addresses of the gateway file.
/// `source` is the policy's text, and `file` its path as the gateway has it.
pub(super) fn out_of_reach(source: &Source, policy: &Policy, gateway: &Gateway, file: &Path) -> Vec<Problem> {
    // A flow begins at a local host. No flow goes by way of a sibling.
    let takes = |peer: &&Peer| peer.policy.as_deref() == Some(file) && peer.relation != Relation::Sibling;
    let remote: Vec<IpNet> = gateway.peers().filter(takes).flat_map(|peer| peer.remote.clone()).collect();
    if remote.is_empty() {
        return Vec::new();
    }
    let classes = policy.written().enumerate();
    classes.filter_map(|(index, class)| one(source, (index, class), gateway, &remote)).collect()
}

fn one(
    source: &Source,
    (index, class): (usize, &Class),
    gateway: &Gateway,
    remote: &[IpNet],
) -> Option<Problem> {
    let lan = &gateway.lan;
    let is_target = |prefix: &IpNet| {
        let groups = lan.multicast.iter().any(|group: &IpAddr| prefix.contains(group));
        groups || remote.iter().any(|remote| overlap(prefix, remote))
    };
    let is_requester = |prefix: &IpNet| match lan.local.as_slice() {
        [] => !lan.remote.iter().any(|remote| remote.contains(prefix)),
        local => local.iter().any(|local| overlap(prefix, local)),
    };
    let (key, found, remedy) = match &class.matches {
        matches if matches.dst.as_ref().is_some_and(|dst| !dst.iter().any(is_target)) => (
            "dst",
            "nothing of it is in lan.remote or lan.multicast",
            "a target's prefix, which is behind the peer",
        ),
        matches if matches.src.as_ref().is_some_and(|src| !src.iter().any(is_requester)) => {
            let found = if lan.local.is_empty() {
                "all of it is in lan.remote"
            } else {
                "nothing of it is in lan.local"
            };
            ("src", found, "a requester's prefix, which is on this gateway's LAN")
        }
        _ => return None,
    };
    let span = read::locate(source.inner(), &format!("class.{index}.match.{key}")).unwrap_or(0..0);
    let message = format!("class {} can never match at this gateway", class.name);
    let help = format!("match.{key} names {remedy}; if the file is for both sites, leave it");
    Some(Problem::new(Severity::Warning, message).at(source, span, found).help(Some(help)))
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::Report;

    /// Checks a gateway with these lines in `[lan]`, and with a class that has this match.
    fn checked(lan: &str, matches: &str) -> Report {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.toml");
        let text = include_str!("../../../docs/examples/gateway-a.toml");
        fs::write(&path, text.replace("[wan]", &format!("{lan}\n[wan]"))).unwrap();
        let policy = format!(
            "[[class]]\nname = \"x\"\nmatch = {{ {matches} }}\nscheme = \"sr\"\n\
             [[class]]\nname = \"default\"\nscheme = \"sr\"\n"
        );
        fs::write(folder.path().join("policy.toml"), policy).unwrap();
        crate::check(&path)
    }

    #[test]
    fn classes_that_no_flow_belongs_to_are_told_of() {
        for (lan, matches, key) in [
            ("", "dst = [\"10.7.0.0/16\"]", Some("dst")),
            ("", "dst = [\"10.7.0.0/16\", \"10.0.1.9/32\"]", None),
            ("", "dst = [\"10.0.0.0/8\"]", None),
            ("multicast = [\"239.1.2.3\"]", "dst = [\"239.0.0.0/8\"]", None),
            ("", "src = [\"10.0.1.0/25\"]", Some("src")),
            ("", "src = [\"10.0.0.0/16\"]", None),
            ("local = [\"10.0.0.0/25\"]", "src = [\"10.0.0.128/25\"]", Some("src")),
            ("local = [\"10.0.0.0/25\"]", "src = [\"10.0.0.0/24\"]", None),
            ("", "dscp = [8]", None),
        ] {
            let report = checked(lan, matches);
            assert!(report.is_valid(), "{:?}", report.problems());
            let told: Vec<_> = report.problems().iter().map(|problem| problem.message()).collect();
            let expected: &[&str] =
                if key.is_some() { &["class x can never match at this gateway"] } else { &[] };
            assert_eq!(told, expected, "{lan} {matches}");
            if let Some(key) = key {
                let problem = &report.problems()[0];
                assert!(problem.remedy().unwrap().starts_with(&format!("match.{key} names ")), "{problem:?}");
                assert!(problem.file().unwrap().ends_with("policy.toml"));
                assert_eq!(problem.position().unwrap().0, 3);
            }
        }
    }
}
