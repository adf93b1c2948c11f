//! `longhaul bundle`: what somebody else needs to help, in one archive, and no key.

mod machine;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use config::{Content, Gateway, Style};
use flate2::Compression;
use flate2::write::GzEncoder;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::admin::{self, Endpoint, Status};
use crate::check::{self, live::Running};

/// Stands in the archive in place of what it must not hold.
const LEFT_OUT: &str = "left out";
/// The entry with the gateway file.
const GATEWAY: &str = "gateway.json";
/// Parts of the names of keys whose values are left out.
const SECRET: [&str; 5] = ["secret", "passw", "token", "private", "credential"];
/// A line of key material has so many characters at least.
const LEAST_SECRET: usize = 16;
/// Bytes of an entry at most; longer ones are cut.
const LONGEST: usize = 8 << 20;
/// Answers of the gateway, and the entries they become.
const ASKED: [(&str, &str); 5] = [
    ("/status", "status.json"),
    ("/metrics", "metrics.txt"),
    ("/flows", "flows.json"),
    ("/doctor", "doctor.json"),
    ("/events", "events.json"),
];

/// Paths that are about one peer.
const OF_PEERS: [&str; 3] = ["/status", "/flows", "/doctor"];

/// Asks a running gateway for its status towards each of its peers.
async fn statuses(admin: &Endpoint) -> Vec<Status> {
    let Ok(first) = admin::ask::<Status>(admin, "/status").await else { return Vec::new() };
    let names = other_peers(&first);
    let mut all = vec![first];
    for name in names {
        all.extend(admin::ask(&admin.about(Some(&name)), "/status").await);
    }
    all
}

/// Returns the peers of a running gateway but for the first.
fn other_peers(status: &Status) -> Vec<String> {
    let names = status.peers.iter().skip(1).filter(|name| config::is_site_name(name));
    names.take(config::Gateway::MOST_PEERS).cloned().collect()
}

/// An archive's list, as `longhaul bundle --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Summary {
    /// The file.
    pub archive: PathBuf,
    /// Its entries, in their order.
    pub entries: Vec<Entry>,
}

/// An entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Why it holds nothing; null: it does.
    pub left_empty: Option<String>,
}

impl Summary {
    /// Lists what an archive holds, and what it does not.
    #[must_use]
    pub fn new(archive: PathBuf, bundle: &Bundle) -> Self {
        let entry = |(name, why): (&str, Option<&str>)| Entry {
            name: name.to_owned(),
            left_empty: why.map(str::to_owned),
        };
        Self { archive, entries: bundle.names().map(entry).collect() }
    }
}

/// Entries of an archive, none of which holds key material.
#[derive(Debug, Default)]
pub struct Bundle {
    entries: Vec<(String, String)>,
    /// Entries that say why they hold nothing, by their place.
    empty: Vec<usize>,
    /// Lines of keys and tokens of this machine.
    secrets: Vec<String>,
}

impl Bundle {
    /// Collects what is known of a gateway: of its file if there is one, and of a running one at
    /// `admin`. What cannot be had says why in its place.
    pub async fn collect(file: Option<&Path>, admin: &Endpoint) -> Self {
        let mut bundle = Self::default();
        bundle.add("version.txt", format!("longhaul {}\n", env!("CARGO_PKG_VERSION")));
        let statuses = statuses(admin).await;
        if let Some(file) = file {
            bundle.add_files(file, &statuses);
        }
        for (path, name) in ASKED {
            bundle.add_or_why(name, admin::fetch(admin, path).await);
        }
        for peer in statuses.first().map(other_peers).unwrap_or_default() {
            let about = admin.about(Some(&peer));
            for (path, name) in ASKED.iter().filter(|(path, _)| OF_PEERS.contains(path)) {
                bundle.add_or_why(&format!("{peer}-{name}"), admin::fetch(&about, path).await);
            }
        }
        for (name, text) in machine::facts() {
            bundle.add(&name, text);
        }
        bundle
    }

    /// Adds the gateway file, the policy file it names, and what `check --live` says.
    fn add_files(&mut self, file: &Path, statuses: &[Status]) {
        let running =
            |gateway: &Gateway| statuses.iter().find_map(|status| Running::of_file(gateway, status));
        let report = check::check_live(file, &|gateway| running(gateway).unwrap_or_default());
        self.add("check.txt", config::render(report.problems(), Style::Plain));
        if let Some(Content::Gateway(gateway, _)) = report.content() {
            self.learn(&gateway.identity.key);
            if let Some(token) = gateway.admin.as_ref().and_then(|admin| admin.token.as_ref()) {
                self.learn(token);
            }
            if let Some(tls) = gateway.admin.as_ref().and_then(|admin| admin.tls.as_ref()) {
                self.learn(&tls.key);
            }
            if let Some(policy) = &gateway.policy.file {
                self.add_or_why("policy.json", without_secrets(policy));
            }
            for peer in gateway.peers().filter(|peer| peer.policy != gateway.policy.file) {
                if let Some(policy) = &peer.policy {
                    self.add_or_why(&format!("{}-policy.json", peer.name), without_secrets(policy));
                }
            }
        }
        self.add_or_why(GATEWAY, without_secrets(file));
    }

    /// Remembers a file's lines as what no entry may hold.
    fn learn(&mut self, file: &Path) {
        let Ok(text) = std::fs::read_to_string(file) else { return };
        let lines = text.lines().map(str::trim).filter(|line| line.len() >= LEAST_SECRET);
        // Armour is no secret, and certificates have it as well.
        self.secrets.extend(lines.filter(|line| !line.starts_with("-----")).map(str::to_owned));
    }

    /// Adds what was to be had, or why it was not.
    fn add_or_why(&mut self, name: &str, text: Result<String, impl Display>) {
        let text = text.unwrap_or_else(|why| {
            self.empty.push(self.entries.len());
            format!("{why}\n")
        });
        self.add(name, text);
    }

    fn add(&mut self, name: &str, mut text: String) {
        if text.len() > LONGEST {
            text.truncate(text.floor_char_boundary(LONGEST));
        }
        self.entries.push((name.to_owned(), text));
    }

    /// An entry's text, unless it holds key material for whatever reason.
    fn safe<'a>(&self, text: &'a str) -> &'a str {
        let holds = |secret: &String| text.contains(secret.as_str());
        if text.contains("PRIVATE KEY") || self.secrets.iter().any(holds) { LEFT_OUT } else { text }
    }

    /// Returns the entries' names, in their order, and why an entry holds nothing.
    pub fn names(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let why = |place: usize, text| self.empty.contains(&place).then(|| self.safe(text).trim_end());
        self.entries.iter().enumerate().map(move |(place, (name, text))| (name.as_str(), why(place, text)))
    }

    /// Returns why the gateway file is not among the entries, if it was to be.
    pub fn lacks_file(&self) -> Option<&str> {
        self.names().find_map(|(name, why)| why.filter(|_| name == GATEWAY))
    }

    /// Writes the archive: tar, compressed by gzip.
    ///
    /// # Errors
    /// `out` does not take it.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        let mut archive = tar::Builder::new(GzEncoder::new(out, Compression::default()));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for (name, text) in &self.entries {
            let bytes = self.safe(text).as_bytes();
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(now);
            archive.append_data(&mut header, Path::new("longhaul").join(name), bytes)?;
        }
        archive.into_inner()?.finish()?.flush()
    }
}

/// Returns a TOML file as JSON: without comments, and without the values of keys that may be
/// secret. The error has the path.
fn without_secrets(path: &Path) -> Result<String, String> {
    let named = |why: &str| format!("{}: {why}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(&error.to_string()))?;
    // TOML's own error would show the line.
    let mut value = toml::from_str::<Value>(&text).map_err(|_| named("no TOML; check.txt says where"))?;
    leave_out(&mut value);
    Ok(format!("{value:#}\n"))
}

fn leave_out(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let name = name.to_lowercase();
                if SECRET.iter().any(|word| name.contains(word)) {
                    *member = LEFT_OUT.into();
                } else {
                    leave_out(member);
                }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(leave_out),
        _ => {}
    }
}
