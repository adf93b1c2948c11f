//! Results that commands print with `--json`, and their schemas.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::schemas::Schemas;
use super::*;

/// Runs the program in a folder.
fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(arguments).current_dir(folder).stderr(Stdio::piped()).output().unwrap()
}

/// Runs a command with `--json`, which has to end with this status, and holds its result to its
/// schema.
fn held(schemas: &mut Schemas, folder: &Path, code: i32, arguments: &[&str]) -> Value {
    let output = run(folder, &[&arguments[..1], &["--json"], &arguments[1..]].concat());
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    schemas.hold(arguments[0], &String::from_utf8(output.stdout).unwrap())
}

/// Each command by itself, in its several forms: without a session and with one, with flows and
/// losses, refused and adopted.
#[test]
fn results_in_json_are_as_their_schemas_say() {
    let mut schemas = Schemas::generate();
    let mut pair = Pair::start_otherwise(1, |plan| {
        (plan.lanes, plan.probe_mtu, plan.congestion) = (2, true, "adaptive");
        plan.policy = "scheme = \"auto\"".to_owned();
    });
    let (client, server) = pair.transfer(Limit::Messages(100_000));
    let folder = pair.testbed.folder().to_owned();
    let admin = pair.testbed.admin(Site::A).to_string();
    wait_until("nothing was chosen and failed", &|| {
        let status = pair.status(Site::A);
        let flows = status.flows;
        status.choices.iter().any(|choice| choice.expected.is_some())
            && flows.near > 0
            && status.path.is_some()
    });
    asks_hold(&mut schemas, &folder, &admin);
    changes_hold(&mut schemas, &pair, &admin);
    pair.testbed.kill(Site::B).unwrap();
    wait_until("the session is not lost", &|| !pair.status(Site::A).is_up());
    let lost = held(&mut schemas, &folder, 3, &["status", "--admin", &admin]);
    assert!(lost["session"]["last_error"].is_string(), "{lost}");
    held(&mut schemas, &folder, 3, &["healthy", "--admin", &admin]);
    let failed = held(&mut schemas, &folder, 2, &["upgrade", "none.toml"]);
    assert_eq!(failed["outcome"], "failed");
    alone_hold(&mut schemas);
    drop((client, server));
    // The rest are tested where they are at hand, in cli.rs.
    let others = ["demo".to_owned()].into();
    assert_eq!(
        schemas.commands().difference(&schemas.seen).cloned().collect::<std::collections::BTreeSet<_>>(),
        others
    );
}

/// Commands that ask a gateway at work.
fn asks_hold(schemas: &mut Schemas, folder: &Path, admin: &str) {
    let status = held(schemas, folder, 0, &["status", "--admin", admin]);
    assert!(status["lanes"].as_array().unwrap().len() == 2 && status["path"].is_object(), "{status}");
    // A schema that takes anything would hold nothing.
    for (name, value) in [("more", json!(1)), ("flows", json!("many"))] {
        let mut wrong = status.clone();
        wrong[name] = value;
        assert_eq!(schemas.wrong("status", &wrong).len(), 1, "{name}");
    }
    let flows = held(schemas, folder, 0, &["flows", "--admin", admin]);
    assert_eq!(flows["flows"].as_array().unwrap().len(), 3, "{flows}");
    let doctor = held(schemas, folder, 0, &["doctor", "--admin", admin]);
    assert!(doctor.to_string().contains("\"verdict\""), "{doctor}");
    held(schemas, folder, 0, &["healthy", "--admin", admin]);
    held(schemas, folder, 0, &["plan", "--admin", admin]);
    held(schemas, folder, 0, &["check", "--live", "a.toml"]);
    for (command, rest) in [("events", &[][..]), ("record", &["--seconds", "2"][..])] {
        let output = run(folder, &[&[command, "--json", "--admin", admin], rest].concat());
        assert!(output.status.success(), "{output:?}");
        let lines = schemas.hold_lines(command, &String::from_utf8(output.stdout).unwrap());
        assert!(lines.len() > 1, "{command}: {lines:?}");
    }
    let bundle = held(schemas, folder, 0, &["bundle", "--admin", admin, "--config", "a.toml", "b.tgz"]);
    assert!(
        bundle["entries"].as_array().unwrap().iter().all(|entry| entry["left_empty"].is_null()),
        "{bundle}"
    );
    let unchanged = held(schemas, folder, 0, &["upgrade", "--if-replaced", "a.toml"]);
    assert_eq!(unchanged["outcome"], "unchanged");
}

/// A policy that is refused, and one that is adopted.
fn changes_hold(schemas: &mut Schemas, pair: &Pair, admin: &str) {
    let class = "[[class]]\nname = \"default\"\nscheme = \"sr\"\n";
    pair.testbed.write_policy(&class.replace("scheme", "shceme")).unwrap();
    let refused = held(schemas, pair.testbed.folder(), 2, &["reload", "--admin", admin]);
    assert!(refused["findings"].as_array().unwrap().len() == 1, "{refused}");
    pair.testbed.write_policy(class).unwrap();
    let adopted = held(schemas, pair.testbed.folder(), 0, &["reload", "--admin", admin]);
    assert!(!adopted["differences"].as_array().unwrap().is_empty(), "{adopted}");
}

/// Commands that need no gateway.
fn alone_hold(schemas: &mut Schemas) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    held(schemas, path, 0, &["keys", "--dir", "keys", "a", "b", "--listener", "admin.example"]);
    held(schemas, path, 0, &["keys", "--dir", "keys", "--force", "a"]);
    let sites = ["--site", "a,10.9.0.1,10.0.0.0/24,lo", "--site", "b,10.9.0.2,10.0.1.0/24,lo"];
    held(schemas, path, 0, &[&["init", "--rate", "1 Gbit/s"][..], &sites].concat());
    fs::write(path.join("bad.toml"), "[[class]]\nname = \"default\"\nshceme = \"sr\"\n").unwrap();
    fs::write(path.join("good.toml"), "[[class]]\nname = \"default\"\nscheme = \"sr\"\n").unwrap();
    held(schemas, path, 0, &["check", "a.toml", "b.toml", "good.toml"]);
    held(schemas, path, 2, &["check", "a.toml", "bad.toml", "none.toml"]);
    let link = ["--rate", "10 Gbit/s", "--rtt", "25 ms", "--drop", "0.1%..2%", "--back", "20 Mbit/s"];
    held(schemas, path, 0, &[&["plan"][..], &link].concat());
    let quick = ["--messages", "20", "--size", "64 KiB", "--scheme", "sr", "--threads", "1"];
    held(schemas, path, 0, &[&["simulate"][..], &quick].concat());
    held(schemas, path, 0, &["bundle", "--admin", "127.0.0.1:1", "b.tgz"]);
    held(schemas, path, 0, &["generate", "out"]);
}
