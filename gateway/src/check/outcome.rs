//! The outcome of `longhaul check` as JSON.

use std::path::PathBuf;

use config::{Content, Report};
use schemars::JsonSchema;
use serde::Serialize;

use crate::problems::CheckedProblem;

/// The findings on one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CheckedFile {
    /// The file.
    pub file: PathBuf,
    /// True if it can be used.
    pub valid: bool,
    /// Its kind, if it can be used.
    pub kind: Option<FileKind>,
    /// The policy's classes in their order.
    pub classes: Vec<CheckedClass>,
    /// Errors and warnings in the order of the text.
    pub problems: Vec<CheckedProblem>,
}

/// The kind of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A gateway file.
    Gateway {
        /// Its site.
        site: String,
        /// The peer's, the first if there are several.
        peer: String,
        /// All peers' sites.
        peers: Vec<String>,
    },
    /// A policy file.
    Policy,
}

/// A class of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CheckedClass {
    /// Its name.
    pub name: String,
    /// Outline of its scheme, in one line.
    pub outline: String,
}

impl CheckedFile {
    /// Takes what is told of a report.
    pub fn new(report: &Report) -> Self {
        let (kind, policy) = match report.content().filter(|_| report.is_valid()) {
            Some(Content::Gateway(gateway, policy)) => {
                let (site, peer) = (gateway.site.name.clone(), gateway.peer.name.clone());
                let peers = gateway.peers().map(|peer| peer.name.clone()).collect();
                (Some(FileKind::Gateway { site, peer, peers }), Some(policy))
            }
            Some(Content::Policy(policy)) => (Some(FileKind::Policy), Some(policy)),
            None => (None, None),
        };
        let class =
            |class: &config::Class| CheckedClass { name: class.name.clone(), outline: class.outline() };
        Self {
            file: report.path().to_owned(),
            valid: report.is_valid(),
            kind,
            classes: policy.map_or_else(Vec::new, |policy| policy.written().map(class).collect()),
            problems: report.problems().iter().map(CheckedProblem::new).collect(),
        }
    }
}
