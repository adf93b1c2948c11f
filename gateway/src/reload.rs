//! Reading the files again while the gateway runs: on SIGHUP, or when the admin listener is asked.
//! This is about the policy file; [`crate::renewal`] is about the identity.
//!
//! A file with an error changes nothing. A policy without one replaces the former as a whole, in
//! the data plane at one moment between two packets; what that means to flows is said at
//! [`splice::Gateway::set_policy`].

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use config::{Invalid, Policy, Problem, Style};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::admin::Admin;
use crate::cells::Cells;
use crate::events::EventKind;
use crate::problems::CheckedProblem;
use crate::renewal::Renewal;
use crate::requests::Answer;
use crate::telemetry::Telemetry;

/// A file that cannot be read within this time, on a server that does not answer or a pipe without
/// a writer, is refused. Less than a client waits.
const PATIENCE: Duration = Duration::from_secs(3);

/// Knows the policy in force, and goes over to another.
pub struct Reloader {
    gateway: Arc<config::Gateway>,
    policy: Policy,
    cells: Cells,
    telemetry: Arc<Telemetry>,
    admin: Option<Arc<Admin>>,
    /// How long reading the file may take: whoever asks waits meanwhile, and so do sessions.
    patience: Duration,
    /// A reading that took longer. Until it ends there is no other, so that one thread hangs at
    /// most.
    overdue: Option<JoinHandle<Loaded>>,
    read: Read,
}

/// Reads the policy file of a gateway.
type Read = Arc<dyn Fn(&config::Gateway) -> Loaded + Send + Sync>;

/// A policy with the warnings about it.
type Loaded = Result<(Policy, Vec<Problem>), Invalid>;

impl Reloader {
    /// With the policy read at the start.
    pub fn new(
        gateway: config::Gateway,
        policy: Policy,
        telemetry: Arc<Telemetry>,
        admin: Option<Arc<Admin>>,
    ) -> Self {
        Self {
            gateway: Arc::new(gateway),
            cells: Cells::new(&policy),
            policy,
            telemetry,
            admin,
            patience: PATIENCE,
            overdue: None,
            read: Arc::new(config::Gateway::check_policy),
        }
    }

    /// Reads the file and, if it is good, hands the policy to `adopt`, which refuses it with a
    /// reason or puts it in force.
    pub async fn reload(&mut self, adopt: impl AsyncFnOnce(Policy, Cells) -> Result<(), String>) -> Answer {
        if self.gateway.policy.file.is_none() {
            return Answer { adopted: true, ..self.answer(String::new()) };
        }
        let outcome = self.load().await;
        let (policy, warnings) = match outcome {
            Ok(loaded) => loaded,
            Err(Refused { line, text, findings }) => {
                return Answer { findings, ..self.refuse(&line, text) };
            }
        };
        let differences = self.policy.differences(&policy);
        let cells = self.cells.next(&policy);
        if let Err(why) = adopt(policy.clone(), cells.clone()).await {
            return self.refuse(&why, format!("{why}\n"));
        }
        self.telemetry.policy_adopted(SystemTime::now());
        if let Some(admin) = &self.admin {
            admin.set_policy(&policy, &cells);
        }
        (self.policy, self.cells) = (policy, cells);
        let answer = Answer {
            adopted: true,
            differences: differences.iter().map(ToString::to_string).collect(),
            findings: warnings.iter().map(CheckedProblem::new).collect(),
            ..self.answer(config::render(&warnings, Style::Plain))
        };
        let (generation, changes) = (answer.generation, answer.differences.len());
        self.telemetry.events().push(
            EventKind::Policy,
            &format!("generation {generation}, {changes} change{}", plural(changes)),
        );
        info!(generation, changes, "the policy file was read again");
        for difference in &answer.differences {
            info!("policy: {difference}");
        }
        answer
    }

    /// Reads the file, away from the threads that serve others.
    async fn load(&mut self) -> Result<(Policy, Vec<Problem>), Refused> {
        if self.overdue.as_ref().is_some_and(|reading| !reading.is_finished()) {
            return Err(Refused::plain(
                "the policy file is still being read since an earlier reload".to_owned(),
            ));
        }
        let (gateway, read) = (Arc::clone(&self.gateway), Arc::clone(&self.read));
        let mut reading = spawn_blocking(move || read(&gateway));
        let Ok(loaded) = timeout(self.patience, &mut reading).await else {
            self.overdue = Some(reading);
            return Err(Refused::plain(format!(
                "reading the policy file took more than {:?}",
                self.patience
            )));
        };
        Ok(loaded.map_err(|error| Refused::plain(error.to_string()))??)
    }

    /// Returns the answer if the identity's files are bad: the policy stays as well.
    fn refuse_identity(&self, why: &str) -> Answer {
        let line = self.note_refused_identity(why);
        warn!("a reload is refused, and the former identity and policy stay: {line}");
        Answer { file: None, ..self.answer(format!("{}\n", why.trim_end())) }
    }

    /// Has an event say why the identity's files are refused. Returns it in one line.
    fn note_refused_identity(&self, why: &str) -> String {
        let line = why.trim_end().replace('\n', "; ");
        self.telemetry.events().push(EventKind::Identity, &format!("refused: {line}"));
        line
    }

    fn refuse(&self, line: &str, text: String) -> Answer {
        self.telemetry.policy_refused();
        self.telemetry.events().push(EventKind::Policy, &format!("refused: {line}"));
        warn!("the policy file is refused, and the former policy stays: {line}");
        self.answer(text)
    }

    /// Returns the answer on a file that was not adopted.
    fn answer(&self, problems: String) -> Answer {
        Answer {
            adopted: false,
            file: self.gateway.policy.file.clone(),
            generation: self.telemetry.policy_info().generation,
            differences: Vec::new(),
            problems,
            findings: Vec::new(),
            identity: Vec::new(),
        }
    }
}

/// Returns the end of a noun of which there are so many.
fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Why a file was not adopted: for the log, and with excerpts.
struct Refused {
    line: String,
    text: String,
    findings: Vec<CheckedProblem>,
}

impl Refused {
    /// With nothing to show of the file.
    fn plain(line: String) -> Self {
        Self { text: format!("{line}\n"), line, findings: Vec::new() }
    }
}

impl From<Invalid> for Refused {
    fn from(invalid: Invalid) -> Self {
        Self {
            line: invalid.to_string().replace('\n', "; "),
            text: invalid.render(Style::Plain),
            findings: invalid.problems().iter().map(CheckedProblem::new).collect(),
        }
    }
}

/// Reads all files again: the identity's, `peer.revoked` of the gateway file, and the policy's. If
/// one is bad, all stay as they are.
pub async fn reload_all(
    renewal: &mut Renewal,
    reloader: &mut Reloader,
    adopt: impl AsyncFnOnce(Policy, Cells) -> Result<(), String>,
) -> Answer {
    let read = match renewal.read().await {
        Ok(read) => read,
        Err(why) => return reloader.refuse_identity(&why),
    };
    let warnings = read.warnings.clone();
    let mut answer = reloader.reload(adopt).await;
    if !answer.adopted {
        return answer;
    }
    match renewal.adopt(read) {
        Ok(changes) => answer.identity = changes,
        Err(why) => {
            let line = reloader.note_refused_identity(&why);
            warn!("the former identity stays: {line}");
            answer.adopted = false;
            answer.problems += &format!("{why}\n");
        }
    }
    if answer.adopted && answer.file.is_none() {
        let (peer, identity_changes) = (&reloader.gateway.peer.name, answer.identity.len());
        info!(peer, identity_changes, "the gateway file names no policy.file, so no policy is read");
    }
    answer.problems.insert_str(0, &warnings);
    answer
}

#[cfg(test)]
mod tests;
