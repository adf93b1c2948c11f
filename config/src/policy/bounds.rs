//! `{ at_least = .., at_most = .. }`: a range with one end or both.

use std::fmt;

use toml::de::DeValue;

use crate::problem::{Label, Sink};
use crate::read::{Section, Wrong, found};

/// From one value to another, both included; an end that is `None` is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds<T> {
    /// The least.
    pub at_least: Option<T>,
    /// The most.
    pub at_most: Option<T>,
}

impl<T> Default for Bounds<T> {
    fn default() -> Self {
        Self { at_least: None, at_most: None }
    }
}

impl<T: PartialOrd + Copy> Bounds<T> {
    /// Returns true if the value lies within.
    pub fn contains(&self, value: T) -> bool {
        self.at_least.is_none_or(|least| least <= value) && self.at_most.is_none_or(|most| value <= most)
    }
}

impl<T: fmt::Display> fmt::Display for Bounds<T> {
    /// "at least 1 KiB, at most 64 KiB"; "any" without an end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.at_least, &self.at_most) {
            (None, None) => f.write_str("any"),
            (Some(least), None) => write!(f, "at least {least}"),
            (None, Some(most)) => write!(f, "at most {most}"),
            (Some(least), Some(most)) => write!(f, "at least {least}, at most {most}"),
        }
    }
}

/// The bounds under `key`, of which at least one has to be there; `example` is how to write them.
/// What is wrong with them is reported.
pub(super) fn read<T: PartialOrd>(
    sink: &mut Sink,
    section: &mut Section<'_, '_>,
    key: &'static str,
    example: &str,
    convert: impl Fn(&DeValue<'_>) -> Result<T, Wrong>,
) -> Option<Bounds<T>> {
    let value = section.value(key)?;
    let (name, span) = (section.name(key), value.span());
    let help = Some(format!("write: {key} = {example}"));
    let DeValue::Table(table) = value.get_ref() else {
        sink.error(span, format!("`{name}` must be bounds"), found(value.get_ref()), help);
        return None;
    };
    if table.is_empty() {
        sink.error(span, format!("`{name}` is empty"), "no bound", help);
        return None;
    }
    let mut inner = Section::new(name.clone(), span.clone(), table);
    let bounds = Bounds {
        at_least: inner.optional(sink, "at_least", &convert),
        at_most: inner.optional(sink, "at_most", &convert),
    };
    inner.finish(sink);
    if let (Some(least), Some(most)) = (&bounds.at_least, &bounds.at_most)
        && least > most
    {
        let help = Some("nothing lies within: swap the two, or remove one".to_owned());
        sink.error(
            span,
            format!("`{name}`: at_least is more than at_most"),
            Label::place("found here"),
            help,
        );
    }
    Some(bounds)
}
