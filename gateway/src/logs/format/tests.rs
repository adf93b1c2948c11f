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
pub(crate) fn written(log: impl FnOnce()) -> Vec<String> {
    let lines = written_as(Form::Plain, log).into_iter();
    lines.map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
}

fn written_as(form: Form, log: impl FnOnce()) -> Vec<String> {
    let written = Written::default();
    let subscriber = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_max_level(Level::DEBUG)
        .with_writer(written.clone())
        .with_ansi(false)
        .fmt_fields(Fields)
        .event_format(Lines::new(form))
        .finish();
    tracing::subscriber::with_default(subscriber, log);
    let bytes = written.0.lock().unwrap().clone();
    let text = String::from_utf8(bytes).unwrap();
    text.lines().map(str::to_owned).collect()
}

const FOREIGN: &str =
    "bye\n2026-01-01T00:00:00Z  INFO gateway: session up peer=b\u{1b}[2J\u{1b}]0;x\u{7}\r\u{9b}m\u{2028}";

/// A stranger's close reason, a name out of a certificate, an excerpt of a file: whatever it is, it
/// stays within its value.
#[test]
fn foreign_text_forges_neither_lines_nor_values() {
    let foreign = FOREIGN;
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

/// A program reads from a line of JSON what was logged, and a terminal finds nothing to obey.
#[test]
fn a_line_of_json_holds_what_was_logged_and_nothing_else() {
    let lines = written_as(Form::Json, || {
        let _span = info_span!("connection", name = FOREIGN).entered();
        warn!(reason = FOREIGN, count = 7_u64, ratio = 0.5, "of {FOREIGN}");
        warn!(long = "x".repeat(1 << 20), "{}", "\u{1f600}".repeat(10_000));
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains(|c: char| c.is_control() || c == '\u{2028}')));
    let [first, second] = [0, 1].map(|at| serde_json::from_str::<serde_json::Value>(&lines[at]).unwrap());
    assert_eq!((&first["level"], &first["message"]), (&"WARN".into(), &format!("of {FOREIGN}").into()));
    assert_eq!(first["fields"], serde_json::json!({"reason": FOREIGN, "count": 7, "ratio": 0.5}));
    assert!(first["spans"][0].as_str().unwrap().starts_with("connection{name=\"bye\\n2026"), "{first}");
    assert!(first["time"].as_str().unwrap().ends_with('Z') && first["target"].is_string(), "{first}");
    assert_eq!((&second["cut"], second.get("fields")), (&true.into(), None), "a line is bounded");
}

#[test]
fn the_journal_gets_priorities() {
    let lines = written_as(Form::Journal, || {
        tracing::error!("one");
        warn!(reason = FOREIGN, "two");
        tracing::info!("three");
        debug!("four");
    });
    let begins = ["<3>ERROR ", "<4>WARN ", "<6>INFO ", "<7>DEBUG "];
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines.iter().zip(begins).all(|(line, begin)| line.starts_with(begin)), "{lines:?}");
    assert_eq!(block(Level::ERROR, "a\n  b\u{1b}[2J\n", Form::Journal), "<3>a\n<3>  b\\u{1b}[2J\n");
}

/// Lost lines and blocks of text have the form of all others.
#[test]
fn whatever_is_written_has_the_same_form() {
    for line in [confession(3, Form::Json), block(Level::WARN, "a\nb\n", Form::Json)] {
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(value["level"] == "WARN" && line.ends_with("}\n") && line.lines().count() == 1, "{line}");
    }
    assert!(confession(3, Form::Journal).starts_with("<4>WARN "));
    assert_eq!(block(Level::WARN, "a\nb\n", Form::Plain), "a\nb\n");
}
