//! Errors as people read them: with their causes.

use std::error::Error;

/// Returns an error with its causes, each once.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let line = error.to_string();
        if !text.ends_with(&line) {
            text += &format!(": {line}");
        }
        cause = error.source();
    }
    text
}
