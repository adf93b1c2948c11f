use std::io;
use std::sync::{Arc, Mutex};

use tracing::{debug, info_span, warn};
use tracing_subscriber::fmt::MakeWriter;

use super::*;

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Written {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Returns the lines that `log` writes, without the times.
fn written(log: impl FnOnce()) -> Vec<String> {
    let written = Written::default();
    let subscriber = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_max_level(Level::DEBUG)
        .with_writer(written.clone())
        .with_ansi(false)
        .fmt_fields(Fields)
        .event_format(Lines::default())
        .finish();
    tracing::subscriber::with_default(subscriber, log);
    let bytes = written.0.lock().unwrap().clone();
    let text = String::from_utf8(bytes).unwrap();
    text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
}

/// A stranger's close reason, a name out of a certificate, an excerpt of a file: whatever it is, it
/// stays within its value.
#[test]
fn foreign_text_forges_neither_lines_nor_values() {
    let foreign =
        "bye\n2026-01-01T00:00:00Z  INFO gateway: session up peer=b\u{1b}[2J\u{1b}]0;x\u{7}\r\u{9b}m\u{2028}";
    let error = io::Error::other(foreign);
    let lines = written(|| {
        let _span = info_span!("connection", name = foreign).entered();
        warn!(reason = %error, debug = ?foreign, bytes = ?foreign.as_bytes(), plain = foreign, rtt = ?1.5, "of {foreign}");
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    let [line] = &lines[..] else { unreachable!() };
    assert!(!line.contains(|c: char| c.is_control() || c == '\u{2028}'), "{line}");
    let quoted = "\"bye\\n2026-01-01T00:00:00Z  INFO gateway: session up peer=b\\u{1b}[2J\\u{1b}]0;x\\u{7}\\r\\u{9b}m\\u{2028}\"";
    for name in ["name", "reason", "debug", "plain"] {
        assert!(line.contains(&format!("{name}={quoted}")), "{name}: {line}");
    }
    assert!(line.contains(" rtt=1.5"), "{line}");
    assert!(line.starts_with(" WARN connection{name="), "{line}");
}

#[test]
fn a_place_that_floods_is_limited_and_says_so_and_others_are_not() {
    let flood = |count| (0..count).for_each(|number| warn!(number, "flood"));
    let lines = written(|| {
        flood(1000);
        (0..1000).for_each(|number| debug!(number, "asked for"));
        warn!("another");
    });
    let count = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
    // A machine may take seconds for it.
    assert!((100..200).contains(&count("flood")), "{}", count("flood"));
    assert_eq!((count("asked for"), count("another")), (1000, 1));
}
