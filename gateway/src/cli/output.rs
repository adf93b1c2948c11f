//! Results on standard output: as JSON for programs, or in words.

use std::io::{self, Write};

use serde::Serialize;

use super::failure::{Outcome, failed, output_failed};
use crate::json;

/// Prints a result as JSON if that was asked for, and in words otherwise.
pub(super) fn show<T: Serialize + ?Sized>(
    as_json: bool,
    result: &T,
    words: impl FnOnce(&T) -> String,
) -> Outcome {
    if as_json { print_json(result) } else { print(&words(result)) }
}

/// Prints a result as `--json` shows it.
pub(super) fn print_json(result: &(impl Serialize + ?Sized)) -> Outcome {
    print(&json::pretty(result).map_err(failed)?)
}

/// Prints what is to stand there as it is. It is there when this returns.
pub(super) fn print(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(output_failed)
}
