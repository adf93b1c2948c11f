//! Reading a TOML document key by key, so that every problem is found in one pass and carries its
//! place.
//!
//! A [`Section`] is asked for each key it may hold; what nobody asked for is an unknown key.
//! Converters turn a value into a type or say what is [`Wrong`] with it.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use miette::{NamedSource, Severity};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::foreign;
use crate::problem::{Invalid, Label, Problem, Sink, Source};
use crate::units::UnitError;
use crate::utf8::utf8;

/// Longer files are refused: no gateway or policy file comes near it.
const MAX_FILE: u64 = 1 << 20;

pub(crate) type Value<'i> = Spanned<DeValue<'i>>;

/// The text of a file that another file names, or of one that is read again, bounded. A pipe or
/// device is refused: who opens it may wait for ever.
pub(crate) fn load_named(path: &Path) -> Result<Source, Invalid> {
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(unreadable(path, "it is no regular file")),
        Ok(_) => load(path),
        Err(error) => Err(unreadable(path, &error.to_string())),
    }
}

fn unreadable(path: &Path, reason: &str) -> Invalid {
    Problem::new(Severity::Error, format!("cannot read {}: {reason}", path.display())).into()
}

/// The text of a file, bounded.
pub(crate) fn load(path: &Path) -> Result<Source, Invalid> {
    let problem = |reason: String| unreadable(path, &reason);
    let mut bytes = Vec::new();
    // Of what is no regular file, the length is known only afterwards.
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes));
    let size = read.map_err(|error| problem(error.to_string()))? as u64;
    if size > MAX_FILE {
        return Err(problem(format!("it has more than {MAX_FILE} bytes")));
    }
    if let Some(kind) = foreign::kind(&bytes) {
        return Err(problem(format!("{kind}, and neither a gateway file nor a policy file")));
    }
    utf8(bytes).map(|text| source(path, text)).map_err(problem)
}

pub(crate) fn source(path: &Path, text: String) -> Source {
    Arc::new(NamedSource::new(path.display().to_string(), text))
}

/// The document, or all its syntax errors.
pub(crate) fn parse(source: &Source) -> Result<Spanned<DeTable<'_>>, Invalid> {
    let (document, errors) = DeTable::parse_recoverable(source.inner());
    let mut sink = Sink::new(source);
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        let is_twice = source.inner().get(span.clone()).is_some_and(|key| key == "peer");
        if is_twice && has_both(source.inner(), "peer") {
            let help = "write either one [peer], or [[peer]] for each of several sites".to_owned();
            sink.error(span, "[peer] and [[peer]] are both in the file", Label::place("here"), Some(help));
        } else {
            sink.error(span, format!("not valid TOML: {}", error.message()), Label::place("here"), None);
        }
    }
    sink.finish(Some(document)).map(|(document, _)| document)
}

/// Returns true if a text has a section of this name as well as a list of such sections.
fn has_both(text: &str, key: &str) -> bool {
    let has = |header: String| text.lines().any(|line| line.trim_start().starts_with(&header));
    has(format!("[{key}]")) && has(format!("[[{key}]]"))
}

/// Where a dotted key's value stands. A number chooses from a list of sections, the first being 0,
/// which is also chosen without one.
pub(crate) fn locate(text: &str, key: &str) -> Option<Range<usize>> {
    let (document, _) = DeTable::parse_recoverable(text);
    let mut parts = key.split('.').peekable();
    let (_, mut value) =
        document.get_ref().iter().find(|(name, _)| Some(name.get_ref().as_ref()) == parts.peek().copied())?;
    parts.next();
    while let Some(part) = parts.peek() {
        value = match value.get_ref() {
            DeValue::Table(inner) => {
                let (_, value) = inner.iter().find(|(name, _)| name.get_ref() == part)?;
                parts.next();
                value
            }
            DeValue::Array(elements) => {
                let number = part.parse().ok();
                if number.is_some() {
                    parts.next();
                }
                elements.get(number.unwrap_or(0))?
            }
            _ => return Some(value.span()),
        };
    }
    Some(value.span())
}

/// Why a converter refuses a value.
pub(crate) struct Wrong {
    /// Continues "`wan.mtu` ...".
    what: String,
    help: Option<String>,
}

impl Wrong {
    pub(crate) fn new(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { what: what.into(), help: Some(help.into()) }
    }

    pub(crate) fn report(self, sink: &mut Sink, name: &str, value: &Value<'_>) {
        sink.error(value.span(), format!("`{name}` {}", self.what), found(value.get_ref()), self.help);
    }
}

/// A table of the document.
pub(crate) struct Section<'a, 'i> {
    /// As messages name it: "wan", "class `bulk`"; empty for the whole file.
    path: String,
    span: Range<usize>,
    table: &'a DeTable<'i>,
    known: Vec<&'static str>,
    missing: Vec<Missing>,
}

/// A required key that is not there. Reported last, and only if no other key is a misspelling of
/// it.
struct Missing {
    key: &'static str,
    example: String,
    section: bool,
}

impl<'a, 'i> Section<'a, 'i> {
    pub(crate) fn new(path: impl Into<String>, span: Range<usize>, table: &'a DeTable<'i>) -> Self {
        Self { path: path.into(), span, table, known: Vec::new(), missing: Vec::new() }
    }

    /// Names it better once more is known.
    pub(crate) fn rename(&mut self, path: String) {
        self.path = path;
    }

    /// Where the table's header stands.
    pub(crate) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Where a key's value stands, or the table's header if it is absent.
    pub(crate) fn span_of(&self, key: &str) -> Range<usize> {
        self.find(key).map_or_else(|| self.span(), Spanned::span)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    fn find(&self, key: &str) -> Option<&'a Value<'i>> {
        let (_, value) = self.table.iter().find(|(name, _)| name.get_ref() == key)?;
        Some(value)
    }

    /// The value of a key this section may hold.
    pub(crate) fn value(&mut self, key: &'static str) -> Option<&'a Value<'i>> {
        self.known.push(key);
        self.find(key)
    }

    pub(crate) fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// A key that may be left out.
    pub(crate) fn optional<T>(
        &mut self,
        sink: &mut Sink,
        key: &'static str,
        convert: impl Fn(&DeValue<'_>) -> Result<T, Wrong>,
    ) -> Option<T> {
        let value = self.value(key)?;
        self.convert(sink, key, value, &convert)
    }

    /// A key with a default. A refused value is reported, and the default stands in for it.
    pub(crate) fn or<T>(
        &mut self,
        sink: &mut Sink,
        key: &'static str,
        default: T,
        convert: impl Fn(&DeValue<'_>) -> Result<T, Wrong>,
    ) -> T {
        self.optional(sink, key, convert).unwrap_or(default)
    }

    /// A key that must be there; `example` is the line to add.
    pub(crate) fn required<T>(
        &mut self,
        sink: &mut Sink,
        key: &'static str,
        example: &str,
        convert: impl Fn(&DeValue<'_>) -> Result<T, Wrong>,
    ) -> Option<T> {
        let Some(value) = self.value(key) else {
            self.missing(key, example, false);
            return None;
        };
        self.convert(sink, key, value, &convert)
    }

    fn convert<T>(
        &self,
        sink: &mut Sink,
        key: &str,
        value: &Value<'_>,
        convert: impl Fn(&DeValue<'_>) -> Result<T, Wrong>,
    ) -> Option<T> {
        match convert(value.get_ref()) {
            Ok(converted) => Some(converted),
            Err(wrong) => {
                wrong.report(sink, &self.name(key), value);
                None
            }
        }
    }

    /// A list, with the place of each element; elements that are refused are reported and left out.
    /// `None` if the key is absent.
    pub(crate) fn list<T>(
        &mut self,
        sink: &mut Sink,
        key: &'static str,
        example: &str,
        convert: impl Fn(&DeValue<'_>) -> Result<T, Wrong>,
    ) -> Option<Vec<(T, Range<usize>)>> {
        if self.is_empty_list(key) {
            let message = format!("`{}` is empty", self.name(key));
            sink.error(self.span_of(key), message, "no element", Some(format!("write: {example}")));
        }
        self.list_or_none(sink, key, example, convert)
    }

    /// As [`Section::list`], but an empty list is as good as none.
    pub(crate) fn list_or_none<T>(
        &mut self,
        sink: &mut Sink,
        key: &'static str,
        example: &str,
        convert: impl Fn(&DeValue<'_>) -> Result<T, Wrong>,
    ) -> Option<Vec<(T, Range<usize>)>> {
        let value = self.value(key)?;
        let DeValue::Array(elements) = value.get_ref() else {
            let message = format!("`{}` must be a list", self.name(key));
            sink.error(value.span(), message, found(value.get_ref()), Some(format!("write: {example}")));
            return Some(Vec::new());
        };
        let mut list = Vec::with_capacity(elements.len());
        for element in elements.iter() {
            if let Some(converted) = self.convert(sink, key, element, &convert) {
                list.push((converted, element.span()));
            }
        }
        Some(list)
    }

    /// Returns true if the key is there and holds an empty list.
    pub(crate) fn is_empty_list(&self, key: &'static str) -> bool {
        matches!(self.find(key).map(Spanned::get_ref), Some(DeValue::Array(elements)) if elements.is_empty())
    }

    /// A list that must be there.
    pub(crate) fn required_list<T>(
        &mut self,
        sink: &mut Sink,
        key: &'static str,
        example: &str,
        convert: impl Fn(&DeValue<'_>) -> Result<T, Wrong>,
    ) -> Vec<(T, Range<usize>)> {
        match self.list(sink, key, example, convert) {
            Some(list) => list,
            None => {
                self.missing(key, example, false);
                Vec::new()
            }
        }
    }

    /// A table within this one. A value of another type is reported.
    pub(crate) fn section(&mut self, sink: &mut Sink, key: &'static str) -> Option<Section<'a, 'i>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Section::new(self.name(key), value.span(), table)),
            other => {
                let message = format!("`{}` must be a section", self.name(key));
                sink.error(value.span(), message, found(other), Some(format!("write: [{}]", self.name(key))));
                None
            }
        }
    }

    /// Returns true if the key is there and holds a list.
    pub(crate) fn is_list(&self, key: &'static str) -> bool {
        matches!(self.find(key).map(Spanned::get_ref), Some(DeValue::Array(_)))
    }

    /// Tables of one name, `[[key]]`, one at least; elements of another type are reported and left
    /// out. They are named by the key alone.
    pub(crate) fn sections(
        &mut self,
        sink: &mut Sink,
        key: &'static str,
        example: &str,
    ) -> Vec<Section<'a, 'i>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let DeValue::Array(elements) = value.get_ref() else { return Vec::new() };
        if elements.is_empty() {
            let help = Some(format!("write: {example}"));
            sink.error(value.span(), format!("`{}` is empty", self.name(key)), "no element", help);
        }
        let mut sections = Vec::with_capacity(elements.len());
        for element in elements.iter() {
            match element.get_ref() {
                DeValue::Table(table) => sections.push(Section::new(self.name(key), element.span(), table)),
                other => {
                    let message = format!("`{}` must be sections", self.name(key));
                    sink.error(element.span(), message, found(other), Some(format!("write: {example}")));
                }
            }
        }
        sections
    }

    /// A table by the name that it had before. Nobody is told that it is known here.
    pub(crate) fn former_section(&mut self, sink: &mut Sink, key: &'static str) -> Option<Section<'a, 'i>> {
        self.find(key)?;
        self.section(sink, key)
    }

    /// A table that must be there; `example` is what to add.
    pub(crate) fn required_section(
        &mut self,
        sink: &mut Sink,
        key: &'static str,
        example: &str,
    ) -> Option<Section<'a, 'i>> {
        if self.find(key).is_none() {
            self.known.push(key);
            self.missing(key, example, true);
            return None;
        }
        self.section(sink, key)
    }

    /// Reports a key that is there but has no meaning beside the others.
    pub(crate) fn refuse(&mut self, sink: &mut Sink, key: &'static str, because: &str, help: &str) {
        self.known.push(key);
        let entry = self.table.iter().find(|(name, _)| name.get_ref() == key);
        if let Some((name, _)) = entry {
            sink.error(
                name.span(),
                format!("`{}` {because}", self.name(key)),
                Label::place("found here"),
                Some(help.to_owned()),
            );
        }
    }

    pub(crate) fn missing(&mut self, key: &'static str, example: &str, section: bool) {
        let example = example.to_owned();
        self.missing.push(Missing { key, example, section });
    }

    /// Every entry of a table whose keys are data.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a str, Range<usize>, &'a Value<'i>)> {
        self.table.iter().map(|(name, value)| (name.get_ref().as_ref(), name.span(), value))
    }

    /// Reports the keys that nobody asked for, and those that were asked for in vain.
    pub(crate) fn finish(self, sink: &mut Sink) {
        let unknown = self.table.iter().filter(|(name, _)| !self.known.contains(&name.get_ref().as_ref()));
        let mut misspelt = Vec::new();
        for (name, value) in unknown {
            let key = name.get_ref();
            let table = matches!(value.get_ref(), DeValue::Table(_));
            let kind = if table { "section" } else { "key" };
            let message = format!("unknown {kind} `{}`", self.name(key));
            let near = nearest(key, &self.known);
            let help = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known here: {}", self.known.join(", ")),
            };
            misspelt.extend(near);
            sink.error(
                name.span(),
                message,
                Label::place(near.map_or("unknown", |_| "misspelt?")),
                Some(help),
            );
        }
        for missing in self.missing.iter().filter(|missing| !misspelt.contains(&missing.key)) {
            let name = self.name(missing.key);
            let help = Some(format!("add: {}", missing.example));
            if missing.section {
                sink.error(self.span(), format!("the section [{name}] is missing"), "", help);
            } else {
                let found = format!("this section has no `{}`", missing.key);
                sink.error(self.span(), format!("`{name}` is missing"), found, help);
            }
        }
    }
}

/// "found 900", for labels.
pub(crate) fn found(value: &DeValue<'_>) -> Label {
    match value {
        DeValue::String(text) => Label::Value(format!("{:?}", shorten(text))),
        DeValue::Integer(number) => Label::Value(format!("{number}")),
        DeValue::Float(number) => Label::Value(format!("{number}")),
        DeValue::Boolean(flag) => Label::Value(format!("{flag}")),
        DeValue::Datetime(_) => Label::Value("a date or time".to_owned()),
        DeValue::Array(_) => Label::Value("a list".to_owned()),
        DeValue::Table(_) => Label::Value("a section".to_owned()),
    }
}

fn shorten(text: &str) -> String {
    const MAX: usize = 60;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Help for a word that is none of `names`: the nearest of them, or else `otherwise`.
pub(crate) fn did_you_mean(word: &str, names: &[&str], otherwise: &str) -> String {
    nearest(word, names).map_or_else(|| otherwise.to_owned(), |near| format!("did you mean {near:?}?"))
}

/// The name that `word` is most likely a misspelling of.
pub(crate) fn nearest<'n>(word: &str, names: &[&'n str]) -> Option<&'n str> {
    let tolerance = (word.chars().count() / 3).max(1);
    names
        .iter()
        .map(|name| (distance(&word.to_lowercase(), name), *name))
        .filter(|(distance, name)| *distance <= tolerance && *distance < name.len())
        .min()
        .map(|(_, name)| name)
}

/// Edits (insert, delete, replace, swap neighbours) between two words: the optimal string alignment
/// distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    let mut previous = None;
    for (row, a) in a.chars().enumerate() {
        let mut current = Vec::with_capacity(last.len());
        current.push(row + 1);
        let mut left = row + 1;
        let mut neighbour = None;
        for (column, &b) in b.iter().enumerate() {
            let at = |row: &Vec<usize>, column: usize| row.get(column).copied().unwrap_or(usize::MAX - 1);
            let mut best =
                (at(&last, column) + usize::from(a != b)).min(at(&last, column + 1) + 1).min(left + 1);
            if column > 0 && previous == Some(b) && neighbour == Some(a) {
                best = best.min(at(&before_last, column - 1) + 1);
            }
            current.push(best);
            left = best;
            neighbour = Some(b);
        }
        previous = Some(a);
        before_last = std::mem::replace(&mut last, current);
    }
    last.last().copied().unwrap_or(0)
}

// Converters.

pub(crate) fn text<'v>(value: &'v DeValue<'_>, example: &str) -> Result<&'v str, Wrong> {
    value.as_str().ok_or_else(|| Wrong::new("must be a string in quotes", format!("such as {example:?}")))
}

pub(crate) fn boolean(value: &DeValue<'_>) -> Result<bool, Wrong> {
    value.as_bool().ok_or_else(|| Wrong::new("must be true or false", "write true or false, without quotes"))
}

/// A whole number within a range.
pub(crate) fn integer<T>(range: RangeInclusive<T>) -> impl Fn(&DeValue<'_>) -> Result<T, Wrong>
where
    T: TryFrom<i64> + PartialOrd + Display,
{
    move |value| {
        let allowed = format!("a whole number from {} to {}", range.start(), range.end());
        let Some(number) = value.as_integer() else {
            return Err(Wrong::new("must be a whole number", allowed));
        };
        i64::from_str_radix(number.as_str(), number.radix())
            .ok()
            .and_then(|number| T::try_from(number).ok())
            .filter(|number| range.contains(number))
            .ok_or_else(|| Wrong::new("is out of range", allowed))
    }
}

/// A number within a range, with or without decimals.
pub(crate) fn number(range: RangeInclusive<f64>) -> impl Fn(&DeValue<'_>) -> Result<f64, Wrong> {
    move |value| {
        let allowed = format!("a number from {} to {}", range.start(), range.end());
        let number = match value {
            DeValue::Float(float) => float.as_str().parse().ok(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().parse().ok(),
            _ => return Err(Wrong::new("must be a number", allowed)),
        };
        number.filter(|number| range.contains(number)).ok_or_else(|| Wrong::new("is out of range", allowed))
    }
}

/// A value with a unit, within a range.
pub(crate) fn unit<T>(
    range: RangeInclusive<T>,
    example: &'static str,
) -> impl Fn(&DeValue<'_>) -> Result<T, Wrong>
where
    T: FromStr<Err = UnitError> + PartialOrd + Display,
{
    move |value| {
        if matches!(value, DeValue::Integer(_) | DeValue::Float(_)) {
            return Err(Wrong::new(
                "has no unit",
                format!("write a string with a unit, such as {example:?}"),
            ));
        }
        let parsed: T = text(value, example)?.parse().map_err(|error: UnitError| {
            let (fault, hint) = error.parts();
            let hint = hint.map(|hint| format!("{hint}, ")).unwrap_or_default();
            Wrong::new(fault, format!("{hint}such as {example:?}"))
        })?;
        if !range.contains(&parsed) {
            return Err(Wrong::new("is out of range", format!("{} to {}", range.start(), range.end())));
        }
        Ok(parsed)
    }
}

/// An address with a port. Host names are not resolved: a gateway has to start while name service
/// is down.
pub(crate) fn socket_address(example: &'static str) -> impl Fn(&DeValue<'_>) -> Result<SocketAddr, Wrong> {
    move |value| {
        let text = text(value, example)?;
        let address: SocketAddr = text.parse().map_err(|_| {
            // Only addresses of the link have interfaces that come and go.
            let scope = text.split_once('%').map(|(_, scope)| scope);
            let is_named =
                scope.is_some_and(|scope| !scope.starts_with(|first: char| first.is_ascii_digit()));
            let help = match is_named {
                true => "behind the % stands the interface's number, as `ip link` shows it: such as \
                         \"[fe80::1%3]:14791\""
                    .to_owned(),
                false => format!("such as {example:?}; host names are not looked up"),
            };
            Wrong::new("is not an IP address and port", help)
        })?;
        if address.port() == 0 {
            return Err(Wrong::new("has port 0", format!("name the port, such as {example:?}")));
        }
        Ok(address)
    }
}

/// A path, relative to `folder` unless absolute.
pub(crate) fn path(folder: &Path, example: &'static str) -> impl Fn(&DeValue<'_>) -> Result<PathBuf, Wrong> {
    move |value| match text(value, example)? {
        "" => Err(Wrong::new("is empty", format!("such as {example:?}"))),
        text => Ok(folder.join(text)),
    }
}
