//! Failures of commands: their text, and the exit status that they end in.

use std::fmt::Display;
use std::io;

/// Exit status after something failed while running.
pub(super) const FAILED: u8 = 1;
/// Exit status after wrong usage, or for a file that cannot be used.
pub(super) const UNUSABLE: u8 = 2;
/// Exit status of `longhaul status` and `healthy` without a session.
pub(super) const NO_SESSION: u8 = 3;
/// Exit status of both for a session whose data path is dead.
pub(super) const BLOCKED: u8 = 4;
/// Exit status of both if hosts cannot use the LAN.
pub(super) const NO_LAN: u8 = 5;

/// Exit status of `longhaul healthy` if the gateway was told to stop.
pub(super) const STOPPING: u8 = 6;

/// Why a command did not do what it was asked.
pub(super) struct Failure {
    pub(super) code: u8,
    /// Nothing is printed if it is empty.
    pub(super) text: String,
}

pub(super) type Outcome = Result<(), Failure>;

/// Wrong usage, or a file that cannot be used.
pub(super) fn unusable(text: impl Into<String>) -> Failure {
    Failure { code: UNUSABLE, text: text.into() }
}

/// Something failed while running.
pub(super) fn failed(error: impl Display) -> Failure {
    Failure { code: FAILED, text: format!("longhaul: {error}") }
}

/// The result could not be written. Whoever reads no further, as `head` does, knows it.
#[expect(clippy::needless_pass_by_value, reason = "so that it fits map_err")]
pub(super) fn output_failed(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure { code: FAILED, text: String::new() };
    }
    failed(format!("cannot write the result: {error}"))
}
