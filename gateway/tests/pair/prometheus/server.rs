//! A Prometheus of a test's own, and what operators have it ask for.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The rules that operators get.
pub(crate) const RULES: &str = include_str!("../../../../dashboards/rules.yml");
/// The program of Debian's package `prometheus`.
const PROGRAM: &str = "prometheus";
/// The beginning of queries that a pair has nothing for: its sites have one gateway each.
pub(crate) const OF_SEVERAL_GATEWAYS: &str = "longhaul_member_live{";
/// Nothing here takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(20);

/// A Prometheus of our own, on loopback.
pub(crate) struct Prometheus {
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
    pub(crate) fn start(targets: &[SocketAddr], rules: &str) -> Self {
        let targets: Vec<String> = targets.iter().map(|target| format!("\"{target}\"")).collect();
        let targets = targets.join(", ");
        Self::with(
            &format!("[{{ job_name: longhaul, static_configs: [{{ targets: [{targets}] }}] }}]"),
            rules,
        )
    }

    /// Scrapes every second what the text of `scrape_configs` says.
    pub(crate) fn with(scrapes: &str, rules: &str) -> Self {
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
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
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
    pub(crate) fn count(&self, query: &str) -> usize {
        let answer = self.get(&format!("query?query={}", encoded(query)));
        answer.and_then(|data| Some(data["result"].as_array()?.len())).unwrap_or(0)
    }

    /// Waits until it is so.
    pub(crate) fn wait_for(&mut self, what: &str, wanted: impl Fn(&Self) -> bool) {
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
pub(crate) fn dashboard_queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(include_str!("../../../../dashboards/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let query = |target: &Value| target["expr"].as_str().unwrap().to_owned();
    targets
        .map(query)
        .map(|query| query.replace("$site", ".*").replace("$peer", ".*").replace("$__rate_interval", "30s"))
        .collect()
}
