//! Chromium without a screen, for tests that look at a page.

use std::io;
use std::path::Path;
use std::process::Command;

/// Opens `url` in a browser that knows nothing yet, with these further arguments, and returns its
/// output.
///
/// # Errors
/// There is no Chromium, or it fails: its own words.
pub fn browse(url: &str, arguments: &[&str]) -> io::Result<String> {
    let profile = tempfile::tempdir()?;
    let mut chromium = Command::new("chromium");
    chromium.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    chromium.args(["--disable-background-networking", "--disable-dev-shm-usage"]);
    chromium.arg(format!("--user-data-dir={}", profile.path().display()));
    let output = chromium.args(arguments).arg(url).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// Returns the page at `url` as it is after its scripts have run for these milliseconds of the
/// browser's own time.
///
/// # Errors
/// See [`browse`].
pub fn page(url: &str, milliseconds: u32) -> io::Result<String> {
    browse(url, &[&format!("--virtual-time-budget={milliseconds}"), "--dump-dom"])
}

/// Draws the page at `url` into a file, in a window of this size, after so many milliseconds of the
/// browser's own time.
///
/// # Errors
/// See [`browse`].
pub fn picture(url: &str, size: (u32, u32), milliseconds: u32, to: &Path) -> io::Result<()> {
    let (width, height) = size;
    let arguments = [
        format!("--virtual-time-budget={milliseconds}"),
        format!("--window-size={width},{height}"),
        format!("--screenshot={}", to.display()),
    ];
    browse(url, &arguments.each_ref().map(String::as_str)).map(drop)
}
