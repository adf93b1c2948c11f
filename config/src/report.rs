//! The outcome of a check of one file.

use std::path::{Path, PathBuf};

use miette::Severity;

use crate::gateway::Gateway;
use crate::policy::Policy;
use crate::problem::{Label, Problem, Source};
use crate::read::locate;

/// The outcome of [`crate::check()`] on one file.
#[derive(Clone, Debug)]
pub struct Report {
    pub(crate) path: PathBuf,
    pub(crate) source: Option<Source>,
    pub(crate) content: Option<Content>,
    pub(crate) problems: Vec<Problem>,
}

/// A file that was read without error.
#[derive(Clone, Debug)]
pub enum Content {
    /// A gateway file, with the policy it names or the default one.
    Gateway(Box<Gateway>, Policy),
    /// A policy file.
    Policy(Policy),
}

impl Report {
    /// The file that was checked.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file's content; `None` if there were errors.
    pub fn content(&self) -> Option<&Content> {
        self.content.as_ref()
    }

    /// Errors and warnings in the order of the text.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns true if there is no error; warnings may stand.
    pub fn is_valid(&self) -> bool {
        !self.problems.iter().any(Problem::is_error)
    }

    /// Adds an error found by other means, at a key of the checked file ("identity.key").
    pub fn error_at(
        &mut self,
        key: &str,
        message: impl Into<String>,
        label: impl Into<Label>,
        help: Option<String>,
    ) {
        self.add(Severity::Error, key, message.into(), label.into(), help);
    }

    /// Adds a warning, as [`Report::error_at`] adds an error.
    pub fn warning_at(
        &mut self,
        key: &str,
        message: impl Into<String>,
        label: impl Into<Label>,
        help: Option<String>,
    ) {
        self.add(Severity::Warning, key, message.into(), label.into(), help);
    }

    fn add(&mut self, severity: Severity, key: &str, message: String, label: Label, help: Option<String>) {
        let problem = Problem::new(severity, message).help(help);
        let place = self.source.as_ref().and_then(|source| {
            // With several peers each has its prefixes.
            let other = (key == "lan.remote").then_some("peer.remote");
            let span = locate(source.inner(), key).or_else(|| locate(source.inner(), other?))?;
            Some((source, span))
        });
        self.problems.push(match place {
            Some((source, span)) => problem.at(source, span, label),
            None => problem.without_place(label),
        });
    }
}
