//! A real Prometheus scrapes both gateways: the dashboard's queries, the rules and the alerts.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;

use super::*;

#[path = "prometheus/server.rs"]
mod server;

use server::{OF_SEVERAL_GATEWAYS, dashboard_queries};
pub(super) use server::{Prometheus, RULES};

/// The series that an expression asks for, each with its labels.
fn selectors(expression: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = expression;
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    while let Some(place) = rest.find("longhaul") {
        // A recorded name has its level in front.
        let start = rest[..place].rfind(|c| !is_part(c)).map_or(0, |before| before + 1);
        let is_value = rest[..start].ends_with('"');
        rest = &rest[start..];
        let mut end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if is_value {
            // A label's, such as the job's.
            rest = &rest[end..];
            continue;
        }
        if rest[end..].starts_with('{') {
            end += rest[end..].find('}').unwrap() + 1;
        }
        found.push(rest[..end].to_owned());
        rest = &rest[end..];
    }
    found
}

/// Has a site's gateway go on in a process whose admin listener speaks TLS and asks for a token.
///
/// Returns what it takes to ask there: the certificate's file, and the token's.
fn speak_tls(pair: &mut Pair, site: Site, letter: &str) -> [String; 2] {
    let folder = pair.testbed.folder().to_owned();
    let put = |name: &str, text: &str| {
        let path = folder.join(format!("{letter}-admin.{name}"));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let key = KeyPair::generate().unwrap();
    let mut names = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    // A healthy pair is none to be told of.
    names.not_after = rcgen::date_time_ymd(2500, 1, 1);
    let certificate = put("crt", &names.self_signed(&key).unwrap().pem());
    let (key, token) = (put("key", &key.serialize_pem()), put("token", "0123456789abcdef"));
    let file = folder.join(format!("{letter}.toml"));
    let text = fs::read_to_string(&file).unwrap();
    let admin = format!("[admin]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\ntoken = \"{token}\"\n");
    fs::write(&file, text.replace("[admin]\n", &admin)).unwrap();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_longhaul"));
    assert!(pair.testbed.upgrade(site, &program, PATIENCE).unwrap());
    [certificate, token]
}

/// One gateway is asked over TLS, and the other is not.
#[test]
fn a_prometheus_finds_what_dashboard_and_rules_ask_for() {
    // A healthy pair has memory for what is to survive a process.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut pair = Pair::start_otherwise(2, |plan| {
        SCHEMES[1].clone_into(&mut plan.policy);
        plan.retention = Some(memory.path().to_owned());
    });
    let [certificate, token] = speak_tls(&mut pair, Site::B, "b");
    let [plain, tls] = [Site::A, Site::B].map(|site| pair.testbed.admin(site));
    // Once the session goes on, the exit status says so.
    wait_until("no status is told over TLS", &|| {
        let url = format!("https://{tls}");
        let status = ["status", "--admin", &url, "--admin-authority", &certificate, "--admin-token", &token];
        Command::new(env!("CARGO_BIN_EXE_longhaul"))
            .args(status)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success()
    });
    let mut prometheus = Prometheus::with(
        &format!(
            "[{{ job_name: longhaul, static_configs: [{{ targets: [\"{plain}\"] }}] }}, \
              {{ job_name: longhaul-tls, scheme: https, tls_config: {{ ca_file: \"{certificate}\" }}, \
                 authorization: {{ credentials_file: \"{token}\" }}, relabel_configs: [{{ \
                 target_label: job, replacement: longhaul }}], static_configs: [{{ targets: [\"{tls}\"] }}] }}]"
        ),
        RULES,
    );
    pair.complete_transfer(300);
    prometheus.wait_for("a scrape of both", |prometheus| prometheus.count("up{job=\"longhaul\"} == 1") == 2);
    // What counted before the first scrape is no rate.
    pair.complete_transfer(300);
    let queries = dashboard_queries();
    assert!(queries.len() > 100, "{}", queries.len());
    // A rate has two scrapes, and the path's figures need reports of the peer.
    for query in queries.iter().filter(|query| !query.starts_with(OF_SEVERAL_GATEWAYS)) {
        prometheus.wait_for(query, |prometheus| prometheus.count(query) > 0);
    }
    let rules = |prometheus: &Prometheus| -> Vec<Value> {
        let data = prometheus.get("rules").unwrap_or_default();
        let groups = data["groups"].as_array().cloned().unwrap_or_default();
        groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect()
    };
    prometheus.wait_for("an evaluation of every rule", |prometheus| {
        let rules = rules(prometheus);
        !rules.is_empty() && rules.iter().all(|rule| rule["health"] == "ok")
    });
    let mut asked = BTreeSet::new();
    for rule in rules(&prometheus) {
        let (name, query) = (rule["name"].as_str().unwrap(), rule["query"].as_str().unwrap());
        asked.extend(selectors(query));
        match rule["type"].as_str().unwrap() {
            // A healthy pair is none to be told of, with a certificate of this day.
            "alerting" => assert_ne!(rule["state"], "firing", "{name}: {rule}"),
            "recording" => prometheus.wait_for(name, |prometheus| prometheus.count(name) > 0),
            other => panic!("{name} is {other}"),
        }
    }
    assert!(asked.len() > 20, "{asked:?}");
    for selector in &asked {
        prometheus.wait_for(selector, |prometheus| prometheus.count(selector) > 0);
    }
}
