//! Requests for a reload, and their answers: between whoever asks and [`crate::reload`]. Likewise
//! processes that want to take over.

use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::problems::CheckedProblem;

/// The outcome of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// True if the files are in force now, perhaps the same as before.
    pub adopted: bool,
    /// The file.
    pub file: Option<PathBuf>,
    /// Counts the files adopted, from 1 at the start.
    pub generation: u64,
    /// The differences to the policy before, one a line; empty if there are none.
    pub differences: Vec<String>,
    /// Errors and warnings on the files, as text with excerpts.
    pub problems: String,
    /// Those of them that are about the policy file, one by one.
    #[serde(default)]
    pub findings: Vec<CheckedProblem>,
    /// Changes of the identity and of `peer.revoked`, one a line; empty if there are none.
    #[serde(default)]
    pub identity: Vec<String>,
}

impl Answer {
    /// Puts the answers for several peers together; one at least. What is the same is told once.
    pub(crate) fn of_all(answers: Vec<Self>) -> Self {
        let mut answers = answers.into_iter();
        let Some(mut all) = answers.next() else { return Self::too_late() };
        for Self { adopted, file, generation, differences, problems, findings, identity } in answers {
            if all.adopted && !adopted {
                // The one that was refused is what matters.
                all.file = file;
            }
            all.adopted &= adopted;
            all.generation = all.generation.max(generation);
            let news = |all: &[String], line: &String| !all.contains(line);
            let (more, changes): (Vec<_>, Vec<_>) = (
                differences.into_iter().filter(|line| news(&all.differences, line)).collect(),
                identity.into_iter().filter(|line| news(&all.identity, line)).collect(),
            );
            all.differences.extend(more);
            all.identity.extend(changes);
            let findings: Vec<_> =
                findings.into_iter().filter(|finding| !all.findings.contains(finding)).collect();
            all.findings.extend(findings);
            if !all.problems.contains(&problems) {
                all.problems += &problems;
            }
        }
        all
    }

    /// The answer of a gateway that is stopping.
    fn too_late() -> Self {
        Self::refused(0, "the gateway is stopping\n".to_owned())
    }

    /// The answer if certificates or keys are bad: the policy of this generation stays as well.
    pub(crate) fn refused(generation: u64, problems: String) -> Self {
        Self {
            adopted: false,
            file: None,
            generation,
            differences: Vec::new(),
            problems,
            findings: Vec::new(),
            identity: Vec::new(),
        }
    }
}

impl fmt::Display for Answer {
    /// Some lines for a terminal, without the problems.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.identity.iter().try_for_each(|change| writeln!(f, "{change}"))?;
        if self.file.is_none() && self.adopted {
            let identity = if self.identity.is_empty() { ", nor has the identity changed" } else { "" };
            return writeln!(f, "the gateway file names no policy.file, so no policy is read{identity}");
        }
        let file = self.file.as_deref().map_or_else(|| "the policy".into(), |file| file.to_string_lossy());
        if !self.adopted && self.file.is_none() {
            return writeln!(f, "the identity is refused; the former one and the policy stay");
        }
        if !self.adopted {
            return writeln!(f, "{file} is refused; the policy stays at generation {}", self.generation);
        }
        let changes = if self.differences.is_empty() { ", nothing has changed" } else { "" };
        writeln!(f, "{file} is the policy now, generation {}{changes}", self.generation)?;
        self.differences.iter().try_for_each(|difference| writeln!(f, "  {difference}"))
    }
}

/// Where a reload is asked for, and a take-over; cheap to clone.
#[derive(Clone, Debug)]
pub struct Requests {
    reloads: mpsc::Sender<oneshot::Sender<Answer>>,
    /// `None`: this gateway hands nothing over.
    heirs: Option<(mpsc::Sender<Claimant>, Arc<Semaphore>)>,
}

/// A process that wants to take over. As long as this lives, there is no other.
#[derive(Debug)]
pub struct Claimant {
    /// The connection to it.
    pub stream: UnixStream,
    /// Its place.
    pub place: OwnedSemaphorePermit,
}

/// The place of a process that wants to take over, kept for it.
#[derive(Debug)]
pub struct HeirPlace(mpsc::Sender<Claimant>, OwnedSemaphorePermit);

/// Where processes come out that want to take over.
pub type Heirs = mpsc::Receiver<Claimant>;

/// Where the requests come out.
pub type Reloads = mpsc::Receiver<oneshot::Sender<Answer>>;

/// Requests that wait at a time; who asks beyond it waits for its turn.
const REQUESTS: usize = 4;

/// A way to ask, and where the requests come out.
pub fn channel() -> (Requests, Reloads) {
    let (reloads, receiver) = mpsc::channel(REQUESTS);
    (Requests { reloads, heirs: None }, receiver)
}

impl Requests {
    /// The same with a way for processes that want to take over, and where they come out.
    #[must_use]
    pub fn with_heirs(self) -> (Self, Heirs) {
        let (heirs, receiver) = mpsc::channel(1);
        (Self { heirs: Some((heirs, Arc::new(Semaphore::new(1)))), ..self }, receiver)
    }

    /// Returns the place for a process that wants to take over; `None`: there is none, or another
    /// one is in it.
    pub fn heir(&self) -> Option<HeirPlace> {
        let (heirs, places) = self.heirs.clone()?;
        let place = places.try_acquire_owned().ok()?;
        (!heirs.is_closed()).then_some(HeirPlace(heirs, place))
    }

    /// Has the policy file read again; `None`: the gateway is stopping.
    pub async fn reload(&self) -> Option<Answer> {
        let (reply, answer) = oneshot::channel();
        self.reloads.send(reply).await.ok()?;
        answer.await.ok()
    }
}

impl HeirPlace {
    /// Passes the connection on.
    pub async fn fill(self, stream: UnixStream) {
        let Self(heirs, place) = self;
        // Fails only when the gateway is stopping, which ends the connection.
        let _ = heirs.send(Claimant { stream, place }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(adopted: bool, file: &str, generation: u64, differences: &[&str], problems: &str) -> Answer {
        Answer {
            adopted,
            file: Some(file.into()),
            generation,
            differences: differences.iter().map(|line| (*line).to_owned()).collect(),
            problems: problems.to_owned(),
            findings: Vec::new(),
            identity: vec!["certificate 1".to_owned()],
        }
    }

    #[test]
    fn of_several_peers_what_is_the_same_is_told_once_and_a_refusal_counts() {
        let all = Answer::of_all(vec![
            answer(true, "policy", 2, &["x: sr -> xor"], ""),
            answer(true, "policy", 2, &["x: sr -> xor"], ""),
            answer(false, "other", 1, &[], "bad\n"),
        ]);
        assert_eq!(all, answer(false, "other", 2, &["x: sr -> xor"], "bad\n"));
        let one = answer(true, "policy", 3, &["a", "b"], "warning\n");
        assert_eq!(Answer::of_all(vec![one.clone(), one.clone()]), one);
        assert!(!Answer::of_all(Vec::new()).adopted);
    }
}
