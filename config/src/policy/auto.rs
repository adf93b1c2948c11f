//! `scheme = "auto"`: what the gateway may choose from, and for which messages apart.

use toml::de::DeValue;

use super::bounds::Bounds;
use super::matching::{MAX_MESSAGE, Match};
use crate::problem::Sink;
use crate::read::{self, Section, Wrong, text, unit};
use crate::units::ByteSize;

const CHOICES: [&str; 4] = ["sr", "xor", "mds", "hybrid"];
/// The least parity per data of a block that `auto` considers: 1 in 16.
const LEAST_OVERHEAD: f64 = 0.0625;
/// Parity per data at most, where nothing is said.
pub(super) const MAX_OVERHEAD: f64 = 0.5;
/// Where nothing is said, what fits a few blocks, and what takes a link of some Gbit/s about a long
/// round trip, is chosen for apart.
const DIVIDE: [ByteSize; 2] = [ByteSize::kib(64), ByteSize::mib(4)];
/// Sizes at which one class may be divided.
const MAX_CUTS: usize = 4;

/// `allowed`: what `auto` may choose, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Selective repeat.
    pub sr: bool,
    /// XOR parity.
    pub xor: bool,
    /// Reed-Solomon parity.
    pub mds: bool,
    /// Selective repeat with Reed-Solomon parity where it saves a round trip.
    pub hybrid: bool,
}

impl Allowed {
    /// All of them.
    pub const ALL: Self = Self { sr: true, xor: true, mds: true, hybrid: true };
    const NONE: Self = Self { sr: false, xor: false, mds: false, hybrid: false };

    /// Those that are allowed, as the file spells them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let Self { sr, xor, mds, hybrid } = self;
        CHOICES.into_iter().zip([sr, xor, mds, hybrid]).filter_map(|(name, allowed)| allowed.then_some(name))
    }

    /// Returns the schemes that either allows.
    const fn or(self, other: Self) -> Self {
        Self {
            sr: self.sr | other.sr,
            xor: self.xor | other.xor,
            mds: self.mds | other.mds,
            hybrid: self.hybrid | other.hybrid,
        }
    }
}

/// `allowed`: all if absent. Without `sr` there has to be room for some parity.
pub(super) fn read(sink: &mut Sink, section: &mut Section<'_, '_>, max_overhead: f64) -> Allowed {
    const EXAMPLE: &str = "allowed = [\"sr\", \"mds\"]";
    let Some(list) = section.list(sink, "allowed", EXAMPLE, choice) else { return Allowed::ALL };
    let allowed = list.into_iter().fold(Allowed::NONE, |allowed, (choice, _)| allowed.or(choice));
    if allowed != Allowed::NONE && !allowed.sr && max_overhead < LEAST_OVERHEAD {
        let message = format!("`{}` leaves nothing to choose", section.name("allowed"));
        let label = format!("all of them need parity, max_overhead = {max_overhead}");
        let help = format!("add \"sr\", or max_overhead = {LEAST_OVERHEAD} or more");
        sink.error(section.span_of("allowed"), message, label, Some(help));
    }
    allowed
}

/// `divide`: the sizes, in order, of which each ends a part of the class; those within its own
/// condition on the size if absent.
pub(super) fn divide(sink: &mut Sink, section: &mut Section<'_, '_>, matches: &Match) -> Vec<ByteSize> {
    const EXAMPLE: &str = "divide = [\"64 KiB\", \"4 MiB\"], or [] for none";
    let ends = matches.size.unwrap_or_default();
    if section.is_empty_list("divide") {
        section.value("divide");
        return Vec::new();
    }
    let size = unit(ByteSize::from_bytes(1)..=MAX_MESSAGE, "64 KiB");
    let Some(list) = section.list(sink, "divide", EXAMPLE, size) else {
        return DIVIDE.into_iter().filter(|cut| divides(&ends, *cut)).collect();
    };
    let name = section.name("divide");
    if list.len() > MAX_CUTS {
        let found = format!("{} of them", list.len());
        let message = format!("`{name}` has more than {MAX_CUTS} sizes");
        let help = "each part is streams of its own over the link; leave some out".to_owned();
        sink.error(section.span_of("divide"), message, found, Some(help));
    }
    let mut cuts: Vec<ByteSize> = Vec::with_capacity(list.len());
    for (cut, span) in list {
        let wrong = match cuts.last() {
            Some(last) if *last >= cut => Some((
                "is out of order",
                format!("comes after {last}"),
                "each size is more than the one before",
            )),
            _ if !divides(&ends, cut) => Some((
                "divides nothing",
                format!("match.size is {ends}"),
                "a size with messages of the class on either side",
            )),
            _ => None,
        };
        match wrong {
            Some((what, label, help)) => {
                sink.error(span, format!("`{name}`: {cut} {what}"), label, Some(help.to_owned()));
            }
            None => cuts.push(cut),
        }
    }
    cuts
}

/// Returns true if some messages within `ends` are on either side of `cut`.
fn divides(ends: &Bounds<ByteSize>, cut: ByteSize) -> bool {
    ends.at_least.is_none_or(|least| least <= cut) && ends.at_most.is_none_or(|most| cut < most)
}

fn choice(value: &DeValue<'_>) -> Result<Allowed, Wrong> {
    match text(value, "sr")? {
        "sr" => Ok(Allowed { sr: true, ..Allowed::NONE }),
        "xor" => Ok(Allowed { xor: true, ..Allowed::NONE }),
        "mds" => Ok(Allowed { mds: true, ..Allowed::NONE }),
        "hybrid" => Ok(Allowed { hybrid: true, ..Allowed::NONE }),
        "none" => Err(Wrong::new(
            "is not for `auto` to choose",
            "it loses data: give such a class scheme = \"none\"",
        )),
        other => Err(Wrong::new(
            "is not a scheme that `auto` can choose",
            read::did_you_mean(other, &CHOICES, "some of \"sr\", \"xor\", \"mds\", \"hybrid\""),
        )),
    }
}
