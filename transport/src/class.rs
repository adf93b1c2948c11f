//! Classes as their streams know them: who goes first, and what is done about losses.

use std::time::Duration;

pub use reliability::selector::Allowed;
use reliability::stream::Scheme;

/// Most classes that there may be at a time: each has two streams, and streams are few.
pub const MAX_CLASSES: usize = 24;
/// As many as there may be classes, and as many again that drain.
pub(crate) const SLOTS: usize = 2 * MAX_CLASSES;

/// Which of a class's two streams a record takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Answers and control: small, and a round trip waits for each. Sent before any bulk.
    Prompt,
    /// Everything with a payload.
    Bulk,
}

/// A class of traffic.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Class {
    /// Unique among the classes. A class with the name of a former one keeps that one's streams.
    pub name: String,
    /// 0 to 7; the higher one is sent first when the link is short.
    pub priority: u8,
    /// How its streams repair losses.
    pub repair: Repair,
    /// Most parity packets per data packet.
    pub max_overhead: f64,
    /// True if it shares turn, share and room with the class after it: both are parts of one.
    pub joins_next: bool,
}

/// How a class's streams repair losses.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Repair {
    /// Always the same.
    Fixed {
        /// The bulk stream's scheme, and the prompt stream's unless that would repair nothing.
        scheme: Scheme,
        /// How long a block may fill; `None`: there are no blocks.
        flush: Option<Duration>,
    },
    /// Whatever the owner chooses from these as it learns about the path
    /// ([`Connection::tune`](crate::Connection::tune)).
    Auto(Allowed),
}

impl Class {
    /// A class of its own with selective repeat and the lowest priority.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let repair = Repair::Fixed { scheme: Scheme::sr(), flush: None };
        Self { name: name.into(), priority: 0, repair, max_overhead: 1.0, joins_next: false }
    }

    /// The scheme that a stream of the class begins with. What is prompt is repaired in any
    /// case: a round trip waits for it.
    pub(crate) fn scheme(&self, urgency: Urgency) -> Scheme {
        match self.repair {
            Repair::Auto(allowed) => beginning(allowed, self.max_overhead),
            Repair::Fixed { scheme: Scheme::None, .. } if urgency == Urgency::Prompt => Scheme::sr(),
            Repair::Fixed { scheme, .. } => scheme,
        }
    }
}

/// Returns the scheme that `auto` begins with, as long as nothing is known: of what is allowed, one
/// that does well nearly everywhere, with some parity.
fn beginning(allowed: Allowed, max_overhead: f64) -> Scheme {
    const K: u8 = 32;
    const MOST: u8 = 8;
    // Saturates.
    let m = ((f64::from(K) * max_overhead) as u8).min(MOST);
    let depth = 1;
    match allowed {
        _ if m == 0 => Scheme::sr(),
        Allowed { hybrid: true, .. } => Scheme::Hybrid { k: K, m, depth },
        Allowed { mds: true, .. } => Scheme::Mds { k: K, m, depth },
        Allowed { xor: true, .. } => Scheme::Xor { k: K, m, depth },
        _ => Scheme::sr(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_begins_within_what_is_allowed() {
        let all = Allowed::ALL;
        assert_eq!(beginning(all, 0.5), Scheme::Hybrid { k: 32, m: 8, depth: 1 });
        assert_eq!(beginning(all, 0.1), Scheme::Hybrid { k: 32, m: 3, depth: 1 });
        assert_eq!(beginning(all, 0.0), Scheme::sr());
        let coded = Allowed { sr: false, hybrid: false, ..all };
        assert_eq!(beginning(coded, 4.0), Scheme::Mds { k: 32, m: 8, depth: 1 });
        assert_eq!(beginning(Allowed { mds: false, ..coded }, 4.0), Scheme::Xor { k: 32, m: 8, depth: 1 });
        assert_eq!(beginning(Allowed { sr: true, xor: false, mds: false, ..coded }, 4.0), Scheme::sr());
    }

    #[test]
    fn what_is_prompt_is_repaired_though_its_class_is_not() {
        let repair = Repair::Fixed { scheme: Scheme::None, flush: None };
        let class = Class { repair, ..Class::new("raw") };
        assert_eq!(
            [Urgency::Prompt, Urgency::Bulk].map(|urgency| class.scheme(urgency)),
            [Scheme::sr(), Scheme::None]
        );
    }
}
