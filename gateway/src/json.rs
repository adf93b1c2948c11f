//! The two forms of JSON that Longhaul writes: on a terminal, into files, and by HTTP.

use serde::Serialize;

/// Returns a value in lines for readers too, with the end of the last.
///
/// # Errors
/// A value that JSON cannot hold.
pub fn pretty(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Returns a value in one line, with its end: one of many.
///
/// # Errors
/// A value that JSON cannot hold.
pub fn line(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    Ok(serde_json::to_string(value)? + "\n")
}
