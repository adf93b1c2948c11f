//! The outcome of an upgrade, for whoever started the new process.

use std::io::{self, Write};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Stand;

/// The outcome of an upgrade, as `longhaul upgrade --json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Announcement {
    /// In a word.
    pub outcome: Outcome,
    /// The same in words, with the reason of a failure.
    pub text: String,
    /// The flows that went over to the new process; null: none.
    pub taken: Option<Taken>,
}

/// The outcome of an upgrade in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The new process has the flows, and the one before ends.
    Upgraded,
    /// The running gateway is this very program, and goes on.
    Unchanged,
    /// If a gateway runs with this file, it goes on.
    Failed,
}

/// The flows that went over to a new process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Taken {
    /// The process that goes on.
    pub process: u32,
    /// Its version.
    pub version: String,
    /// The process that ends.
    pub former_process: u32,
    /// Its version.
    pub former_version: String,
    /// Flows of both sides.
    pub flows: u64,
    /// Bytes of packets that waited.
    pub bytes: u64,
    /// How long neither process carried anything, in seconds.
    pub stood_still: f64,
}

impl Taken {
    /// The flows that go over to this process.
    pub(crate) fn new(from: &Stand, flows: u64, bytes: u64, stood_still: Duration) -> Self {
        Self {
            process: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            former_process: from.pid,
            former_version: from.build.clone(),
            flows,
            bytes,
            stood_still: stood_still.as_secs_f64(),
        }
    }
}

impl From<Taken> for Announcement {
    fn from(taken: Taken) -> Self {
        let text = format!(
            "version {}, process {}, took over from version {}, process {}: {} flows, {} bytes, in {:.0} ms",
            taken.version,
            taken.process,
            taken.former_version,
            taken.former_process,
            taken.flows,
            taken.bytes,
            taken.stood_still * 1e3
        );
        Self { outcome: Outcome::Upgraded, text, taken: Some(taken) }
    }
}

impl Announcement {
    /// Nothing went over, for this reason.
    #[must_use]
    pub fn nothing(outcome: Outcome, text: &str) -> Self {
        Self { outcome, text: text.trim_end().to_owned(), taken: None }
    }

    /// Says it to whoever started this process.
    ///
    /// # Errors
    /// Nobody listens any more.
    pub fn say(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(crate::json::line(self)?.as_bytes())?;
        out.flush()
    }

    /// Reads what a new process has said.
    #[must_use]
    pub fn read(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read() {
        let failed = Announcement::nothing(Outcome::Failed, "no\n  help: yes\n");
        let line = serde_json::to_string(&failed).unwrap();
        assert!(!line.contains('\n') && line.contains("\"failed\""), "{line}");
        assert_eq!(Announcement::read(&line), Some(failed));
        assert_eq!(Announcement::read(""), None);
        let taken = Taken {
            process: 2,
            version: "1.1".to_owned(),
            former_process: 1,
            former_version: "1.0".to_owned(),
            flows: 3,
            bytes: 4,
            stood_still: 0.0126,
        };
        let text =
            "version 1.1, process 2, took over from version 1.0, process 1: 3 flows, 4 bytes, in 13 ms";
        assert_eq!(Announcement::from(taken).text, text);
    }
}
