//! Checking a file without using it.

mod reach;

use std::path::Path;

use miette::Severity;
use toml::de::DeTable;

use crate::gateway::{
    Gateway, Lan, Peer, Relation, SlowBlocks, check_members_policy, folder, read_gateway, slow_blocks,
};
use crate::policy::{Policy, Survive, read_policy};
use crate::problem::{Invalid, Label, Problem, Source};
use crate::read;
use crate::report::{Content, Report};
use crate::units::Duration;

/// Reads a gateway or a policy file, whichever its content says it is, and reports everything wrong
/// with it. A gateway file's policy file is checked along with it.
pub fn check(path: &Path) -> Report {
    let source = match read::load(path) {
        Ok(source) => source,
        Err(invalid) => return report(path, None, Err(invalid)),
    };
    let outcome = read::parse(&source).and_then(|document| match kind(document.get_ref()) {
        Some(Kind::Gateway) => check_gateway(&source, path),
        Some(Kind::Policy) => {
            let (policy, warnings) = read_policy(&source)?;
            Ok((Content::Policy(policy), warnings))
        }
        None => Err(unknown(&source)),
    });
    report(path, Some(source), outcome)
}

fn report(path: &Path, source: Option<Source>, outcome: Result<(Content, Vec<Problem>), Invalid>) -> Report {
    let (content, problems) = match outcome {
        Ok((content, warnings)) => (Some(content), warnings),
        Err(invalid) => (None, invalid.into_problems()),
    };
    Report { path: path.to_owned(), source, content, problems }
}

fn check_gateway(source: &Source, path: &Path) -> Result<(Content, Vec<Problem>), Invalid> {
    let (gateway, mut problems) = read_gateway(source, folder(path))?;
    problems.extend(small_packets(source, &gateway));
    let load = |file: &Path| -> Result<(Policy, Vec<Problem>), Invalid> {
        let text = read::load_named(file).map_err(|invalid| unreadable(source, &invalid))?;
        let (policy, mut warnings) = read_policy(&text)?;
        warnings.extend(reach::out_of_reach(&text, &policy, &gateway, file));
        Ok((policy, warnings))
    };
    let policy = match &gateway.policy.file {
        None => Policy::default(),
        Some(file) => {
            let (policy, warnings) = load(file)?;
            problems.extend(warnings);
            policy
        }
    };
    for (index, view) in gateway.views().into_iter().enumerate() {
        let key = format!("peer.{index}.rate");
        let span = read::locate(source.inner(), &key).or_else(|| read::locate(source.inner(), "peer.rate"));
        let span = span.unwrap_or(0..0);
        let own;
        let policy = match &view.policy.file {
            Some(file) if view.policy.file != gateway.policy.file => {
                let (policy, warnings) = load(file)?;
                problems.extend(warnings);
                own = policy;
                &own
            }
            _ => &policy,
        };
        if view.is_member() {
            check_members_policy(policy)?;
        }
        // No flow goes that way.
        if view.peer.relation == Relation::Sibling {
            continue;
        }
        for SlowBlocks { warning, found, .. } in slow_blocks(&view, policy) {
            problems.push(warning.at(source, span.clone(), found));
        }
        problems.extend(short_buffers(source, &view));
        problems.extend(void_survival(source, &view, index, policy));
    }
    Ok((Content::Gateway(Box::new(gateway), policy), problems))
}

fn unreadable(source: &Source, invalid: &Invalid) -> Invalid {
    let span = read::locate(source.inner(), "policy.file").unwrap_or(0..0);
    let help = "the path is relative to the gateway file's folder".to_owned();
    Problem::new(Severity::Error, invalid.to_string()).at(source, span, Label::NAMED).help(Some(help)).into()
}

/// A `lan.mtu` that hosts' usual packets are longer than.
fn small_packets(source: &Source, gateway: &Gateway) -> Option<Problem> {
    let mtu = gateway.lan.mtu?;
    let path_mtu = Lan::path_mtu(mtu.into());
    if path_mtu >= Lan::USUAL_PATH_MTU {
        return None;
    }
    let span = read::locate(source.inner(), "lan.mtu").unwrap_or(0..0);
    let found = format!("{mtu} bytes hold a path MTU of {path_mtu}");
    let help = "1500 for a path MTU of 1024, 4200 for 4096; left out, the interface's holds";
    let message = "`lan.mtu` is too small for the usual path MTUs of RoCE";
    Some(Problem::new(Severity::Warning, message).at(source, span, found).help(Some(help.to_owned())))
}

/// Distances below this one are hardly worth a gateway.
const SHORT: f64 = 0.01;

/// Buffers that the link overruns at round-trip times of any long link. With several flows to one
/// host, 3 x rate x round-trip time is needed.
fn short_buffers(source: &Source, gateway: &Gateway) -> Option<Problem> {
    let (rate, buffer) = (gateway.peer.rate, gateway.limits.total_buffer);
    let rtt = buffer.bytes() as f64 / (3.0 * rate.bytes_per_second() as f64);
    if rtt >= SHORT {
        return None;
    }
    let span = read::locate(source.inner(), "limits.total_buffer")
        .or_else(|| read::locate(source.inner(), "peer.rate"))
        .unwrap_or(0..0);
    let found = format!("{buffer} at {rate} serve round-trip times up to {:.1} ms", rtt * 1e3);
    let help = "limits.total_buffer = 3 x peer.rate x round-trip time, at both gateways";
    let message = "`limits.total_buffer` is small for this rate";
    Some(Problem::new(Severity::Warning, message).at(source, span, found).help(Some(help.to_owned())))
}

/// A process that ended is seldom back before that: the package's unit alone waits for 2 s.
const START: Duration = Duration::secs(5);

/// Classes that are to outlive a process, without the time that this takes. The file has the key,
/// as its default is another.
fn void_survival(source: &Source, gateway: &Gateway, index: usize, policy: &Policy) -> Option<Problem> {
    let class = policy.written().find(|class| class.survive != Survive::Session)?;
    let Peer { dead_after, resume_for, .. } = gateway.peer;
    // The other end notices by then, and its flows wait from then on.
    let patience = Duration::new(dead_after.get() + resume_for.get());
    let (why, found) = match () {
        () if resume_for == Duration::secs(0) => {
            ("is void, as flows end with their session".to_owned(), "nothing goes on after it")
        }
        () if patience < START => {
            let why =
                format!("hardly helps: the peer gives flows up {patience} after this process has ended");
            (why, "dead_after and this are less than a start takes")
        }
        () => return None,
    };
    let span = read::locate(source.inner(), &format!("peer.{index}.resume_for"))
        .or_else(|| read::locate(source.inner(), "peer.resume_for"))
        .unwrap_or(0..0);
    let message = format!("class {}: `survive = \"{}\"` {why}", class.name, class.survive.name());
    let help =
        "resume_for = \"2 min\" at both gateways; or survive = \"session\" in the policy, which says so";
    Some(Problem::new(Severity::Warning, message).at(source, span, found).help(Some(help.to_owned())))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gateway,
    Policy,
}

const SECTIONS: [&str; 12] = [
    "plane",
    "site",
    "lan",
    "wan",
    "peer",
    "identity",
    "admin",
    "policy",
    "limits",
    "retention",
    "data_plane",
    "security",
];

/// By the names at the top of the file, allowing for misspelt ones.
fn kind(document: &DeTable<'_>) -> Option<Kind> {
    let near = |names: &[&str]| {
        document.keys().any(|key| {
            names.contains(&key.get_ref().as_ref()) || read::nearest(key.get_ref(), names).is_some()
        })
    };
    if near(&["class"]) {
        Some(Kind::Policy)
    } else if near(&SECTIONS) {
        Some(Kind::Gateway)
    } else {
        None
    }
}

fn unknown(source: &Source) -> Invalid {
    let help = "a gateway file begins with [site], a policy file with [[class]]".to_owned();
    Problem::new(Severity::Error, "neither a gateway file nor a policy file")
        .at(source, 0..0, "")
        .help(Some(help))
        .into()
}
