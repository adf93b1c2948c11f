//! A real Prometheus scrapes both gateways: the dashboard's queries, the rules and the alerts.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;

use super::*;

/// The rules that operators get.
pub(super) const RULES: &str = include_str!("../../../dashboards/rules.yml");
/// The program of Debian's package `prometheus`.
const PROGRAM: &str = "prometheus";

/// A Prometheus of our own, on loopback.
pub(super) struct Prometheus {
    process: Child,
    address: SocketAddr,
    dir: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It has nothing to keep.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Prometheus {
    /// Scrapes the targets every second. `rules`: the text of a file of rules.
    pub(super) fn start(targets: &[SocketAddr], rules: &str) -> Self {
        let targets: Vec<String> = targets.iter().map(|target| format!("\"{target}\"")).collect();
        let targets = targets.join(", ");
        Self::with(
            &format!("[{{ job_name: longhaul, static_configs: [{{ targets: [{targets}] }}] }}]"),
            rules,
        )
    }

    /// Scrapes every second what the text of `scrape_configs` says.
    fn with(scrapes: &str, rules: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("rules.yml"), rules).unwrap();
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [rules.yml]\n\
             scrape_configs: {scrapes}\n"
        );
        fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        // Free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let process = Command::new(PROGRAM)
            .current_dir(dir.path())
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus is installed, as test-all does");
        Self { process, address, dir }
    }

    /// Returns the answer's `data`; `None` while there is no answer.
    fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let host = self.address;
        write!(stream, "GET /api/v1/{path} HTTP/1.0\r\nHost: {host}\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let mut answer: Value = serde_json::from_str(body).ok()?;
        assert!(answer["status"] == "success", "{path}: {answer}");
        Some(answer["data"].take())
    }

    /// Returns how many series a query has now.
    pub(super) fn count(&self, query: &str) -> usize {
        let answer = self.get(&format!("query?query={}", encoded(query)));
        answer.and_then(|data| Some(data["result"].as_array()?.len())).unwrap_or(0)
    }

    /// Waits until it is so.
    pub(super) fn wait_for(&mut self, what: &str, wanted: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !wanted(self) {
            let ended = self.process.try_wait().unwrap();
            if ended.is_some() || Instant::now() > end {
                let log = fs::read_to_string(self.dir.path().join("log")).unwrap();
                panic!("{what} does not come ({ended:?}); its log:\n{log}");
            }
            std::thread::sleep(TICK);
        }
    }
}

/// Percent-encodes all that is no letter or digit (RFC 3986, 2.1).
fn encoded(query: &str) -> String {
    let mut text = String::new();
    for byte in query.bytes() {
        match byte.is_ascii_alphanumeric() {
            true => text.push(char::from(byte)),
            false => write!(text, "%{byte:02X}").unwrap(),
        }
    }
    text
}

/// Every query of the dashboard, for all sites.
fn dashboard_queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(include_str!("../../../dashboards/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let query = |target: &Value| target["expr"].as_str().unwrap().to_owned();
    targets
        .map(query)
        .map(|query| query.replace("$site", ".*").replace("$peer", ".*").replace("$__rate_interval", "30s"))
        .collect()
}

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
    // A rate has two scrapes, and the path's figures need reports of the peer. Nobody is another
    // gateway of the same site.
    for query in queries.iter().filter(|query| !query.starts_with("longhaul_member_live{")) {
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
