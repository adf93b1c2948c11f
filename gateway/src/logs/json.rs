//! One event as one object of JSON in a line.
//!
//! Its members: `time`, `level`, `target`, `message`, `spans` (outermost first), `fields`, and
//! `left_out` as in text. A line that would be cut has neither spans nor fields, and `cut` is true.

use std::fmt::{Debug, Write};

use serde_json::{Map, Value};
use tracing::Level;
use tracing::field::{Field, Visit};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Bytes of a line; what is longer is cut.
pub(super) const LONGEST: usize = 16 << 10;
/// Characters of the message in a line that would be cut.
const SHORT: usize = 1000;

/// An event's message and fields.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) message: String,
    pub(super) fields: Map<String, Value>,
}

impl Record {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => drop(self.fields.insert(name.to_owned(), value)),
        }
    }
}

impl Visit for Record {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, format!("{value:?}").into());
    }
}

/// Writes the line, with its newline.
pub(super) fn line(level: Level, target: &str, spans: Vec<String>, record: Record, left_out: u64) -> String {
    let mut object = head(level, target, &record.message);
    if !spans.is_empty() {
        object.insert("spans".to_owned(), spans.into());
    }
    if !record.fields.is_empty() {
        object.insert("fields".to_owned(), record.fields.into());
    }
    if left_out > 0 {
        object.insert("left_out".to_owned(), left_out.into());
    }
    let line = finish(object);
    if line.len() <= LONGEST {
        return line;
    }
    let short: String = record.message.chars().take(SHORT).collect();
    let mut object = head(level, target, &short);
    object.insert("cut".to_owned(), true.into());
    finish(object)
}

fn head(level: Level, target: &str, message: &str) -> Map<String, Value> {
    let mut time = String::new();
    // Writing to a String never fails.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let text = |name: &str, text: &str| (name.to_owned(), Value::from(text));
    [text("time", &time), text("level", level.as_str()), text("target", target), text("message", message)]
        .into_iter()
        .collect()
}

/// Escapes what JSON may leave as it is and a terminal would obey.
fn finish(object: Map<String, Value>) -> String {
    let text = Value::from(object).to_string();
    let mut line = String::with_capacity(text.len() + 1);
    for character in text.chars() {
        let is_plain = character <= '~' || character.escape_debug().next() == Some(character);
        if is_plain {
            line.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a String never fails.
            let _ = write!(line, "\\u{unit:04x}");
        }
    }
    line.push('\n');
    line
}
