//! The differences between two policies.

use std::fmt::{self, Display};

use super::{Block, Class, Completion, Scheme};

/// One thing in which two policies differ. Classes are told apart by their names: one that was
/// renamed is another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A class only the other policy has.
    Added {
        /// Its name.
        class: String,
        /// The class before which it stands; `None`: it is the last.
        before: Option<String>,
        /// The class's [outline](Class::outline).
        outline: String,
    },
    /// A class the other policy has not.
    Removed {
        /// Its name.
        class: String,
    },
    /// A key of a class in both.
    Changed {
        /// The class's name.
        class: String,
        /// The key, such as "match.dscp".
        key: &'static str,
        /// The value before, as in the file; `None`: the class had none, and no default for it.
        from: Option<String>,
        /// The value after.
        to: Option<String>,
    },
    /// The classes in both stand in another order, which decides what each of them takes.
    Reordered {
        /// In the order before.
        from: Vec<String>,
        /// In the order after.
        to: Vec<String>,
    },
}

pub(super) fn between(from: &[Class], to: &[Class]) -> Vec<Difference> {
    let find = |classes: &[Class], name: &str| classes.iter().position(|class| class.name == name);
    let mut list: Vec<Difference> = from
        .iter()
        .filter(|class| find(to, &class.name).is_none())
        .map(|class| Difference::Removed { class: class.name.clone() })
        .collect();
    for (index, class) in to.iter().enumerate() {
        match from.iter().find(|other| other.name == class.name) {
            Some(before) => changes(before, class, &mut list),
            None => list.push(Difference::Added {
                class: class.name.clone(),
                before: to.get(index + 1).map(|next| next.name.clone()),
                outline: class.outline(),
            }),
        }
    }
    let common = |of: &[Class], other: &[Class]| -> Vec<String> {
        of.iter().map(|class| class.name.clone()).filter(|name| find(other, name).is_some()).collect()
    };
    let (from, to) = (common(from, to), common(to, from));
    if from != to {
        list.push(Difference::Reordered { from, to });
    }
    list
}

fn changes(from: &Class, to: &Class, list: &mut Vec<Difference>) {
    for ((key, from), (_, value)) in from.values().into_iter().zip(to.values()) {
        if from != value {
            list.push(Difference::Changed { class: to.name.clone(), key, from, to: value });
        }
    }
}

impl Class {
    /// Every key but the name with its value as the file has it, always in the same order.
    fn values(&self) -> [(&'static str, Option<String>); 19] {
        let matches = &self.matches;
        let block = self.scheme.block();
        let (alpha, allowed) = match &self.scheme {
            Scheme::Sr { alpha } => (Some(alpha), None),
            Scheme::Auto(allowed) => (None, Some(allowed.names().collect::<Vec<_>>())),
            _ => (None, None),
        };
        let is_auto = matches!(self.scheme, Scheme::Auto(_));
        let shape = |value: fn(&Block) -> u8| block.map(|block| value(block).to_string());
        [
            ("match.src", matches.src.as_deref().map(quoted)),
            ("match.dst", matches.dst.as_deref().map(quoted)),
            ("match.dscp", matches.dscp.as_deref().map(|list| format!("{list:?}"))),
            ("match.qp", matches.qp.as_deref().map(quoted)),
            ("match.size", matches.size.map(|bounds| bounds.to_string())),
            ("priority", Some(self.priority.to_string())),
            ("scheme", Some(quote(self.scheme.name()))),
            ("allowed", allowed.as_deref().map(quoted)),
            ("divide", is_auto.then(|| quoted(&self.divide))),
            ("alpha", alpha.map(f64::to_string)),
            ("k", shape(|block| block.k)),
            ("m", shape(|block| block.m)),
            ("interleave", shape(|block| block.interleave)),
            ("flush", block.map(|block| quote(block.flush))),
            ("completion", Some(quote(self.completion.name()))),
            ("refuse", self.refuse.map(|refuse| quote(refuse.name()))),
            ("survive", (self.completion == Completion::Remote).then(|| quote(self.survive.name()))),
            ("percentile", Some(self.percentile.to_string())),
            ("max_overhead", Some(self.max_overhead.to_string())),
        ]
    }
}

fn quote(value: impl Display) -> String {
    format!("\"{value}\"")
}

fn quoted(list: &[impl Display]) -> String {
    format!("[{}]", list.iter().map(quote).collect::<Vec<_>>().join(", "))
}

impl Display for Difference {
    /// One line, without its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added { class, before: Some(next), outline } => {
                write!(f, "class {class}: added before {next}: {outline}")
            }
            Self::Added { class, before: None, outline } => {
                write!(f, "class {class}: added at the end: {outline}")
            }
            Self::Removed { class } => write!(f, "class {class}: removed"),
            Self::Changed { class, key, from, to } => {
                let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "unset".to_owned());
                write!(f, "class {class}: {key}: {} -> {}", shown(from), shown(to))
            }
            Self::Reordered { from, to } => {
                write!(f, "order of classes: {} -> {}", from.join(", "), to.join(", "))
            }
        }
    }
}
