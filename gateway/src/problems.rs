//! Errors and warnings of a file, as JSON has them.

use config::Problem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An error or a warning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedProblem {
    /// True if the file cannot be used because of it.
    pub error: bool,
    /// In one line.
    pub message: String,
    /// The file it is in: a gateway file's policy is another one.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<usize>,
    /// Column, from 1, in characters.
    pub column: Option<usize>,
    /// The value found, in the file or on this machine; null where the message says all.
    pub found: Option<String>,
    /// The remedy.
    pub help: Option<String>,
}

impl CheckedProblem {
    /// Takes what is told of a problem.
    pub(crate) fn new(problem: &Problem) -> Self {
        let (line, column) = problem.position().unzip();
        Self {
            error: problem.is_error(),
            message: problem.message().to_owned(),
            file: problem.file().map(str::to_owned),
            line,
            column,
            found: problem.found().map(str::to_owned),
            help: problem.remedy().map(str::to_owned),
        }
    }
}
