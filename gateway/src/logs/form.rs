//! The form of lines: text for people, priorities for the journal, JSON for programs.

use std::io;

use tracing::Level;

use super::takes_colour;

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Text.
    #[default]
    Plain,
    /// Text with colours.
    Colour,
    /// Text that begins with a priority as in `sd-daemon(3)`, and has no time: the journal has one.
    Journal,
    /// An object of JSON for each line.
    Json,
}

impl Form {
    /// Reads `LONGHAUL_LOG_FORMAT`. Without it, the journal is recognized by `JOURNAL_STREAM`.
    ///
    /// # Errors
    /// A line that says what the variable holds, and what it may hold.
    pub fn of_standard_error() -> Result<Self, String> {
        match std::env::var("LONGHAUL_LOG_FORMAT") {
            Ok(text) if !text.trim().is_empty() => Self::parse(text.trim()),
            Ok(_) | Err(_) if is_journal() => Ok(Self::Journal),
            Ok(_) | Err(_) => Ok(Self::text()),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::text()),
            "journal" => Ok(Self::Journal),
            "json" => Ok(Self::Json),
            other => Err(format!("LONGHAUL_LOG_FORMAT={other}: text, journal and json are formats")),
        }
    }

    fn text() -> Self {
        if takes_colour(&io::stderr()) { Self::Colour } else { Self::Plain }
    }
}

/// Returns true if standard error is the journal's stream.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(io::stderr()).is_ok_and(|stat| is_stream(&stream, stat.st_dev, stat.st_ino))
}

/// Returns true if `stream`, a device and an inode as `DEVICE:INODE`, names this one.
fn is_stream(stream: &str, device: u64, inode: u64) -> bool {
    let numbers = stream
        .split_once(':')
        .and_then(|(device, inode)| Some((device.parse::<u64>().ok()?, inode.parse::<u64>().ok()?)));
    numbers == Some((device, inode))
}

/// The journal's priority, from syslog.
pub(super) fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_that_is_none_is_refused() {
        assert_eq!(Form::parse("json"), Ok(Form::Json));
        assert_eq!(Form::parse("journal"), Ok(Form::Journal));
        assert!(matches!(Form::parse("text"), Ok(Form::Plain | Form::Colour)));
        for bad in ["JSON", "logfmt", "json,text"] {
            assert!(Form::parse(bad).is_err_and(|error| error.contains(bad)), "{bad}");
        }
    }

    #[test]
    fn the_journal_is_recognized_by_device_and_inode() {
        assert!(is_stream("9:12345", 9, 12345));
        for other in ["9:12346", "8:12345", "9", "", "9:", ":12345", "9:12345:1", "a:b"] {
            assert!(!is_stream(other, 9, 12345), "{other}");
        }
    }
}
