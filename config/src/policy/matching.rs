//! `match`: what a class takes.

use std::fmt;
use std::net::IpAddr;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use ipnet::IpNet;
use toml::de::DeValue;

use super::bounds::{self, Bounds};
use crate::hosts::{impossible, prefix};
use crate::problem::{Label, Sink};
use crate::read::{Section, Wrong, integer, unit};
use crate::units::ByteSize;

/// The properties that all of a flow's messages share: from its first request packet, as that
/// enters from the LAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Source address of the IP packet: the requester.
    pub src: IpAddr,
    /// Destination address: the target, behind the peer.
    pub dst: IpAddr,
    /// The upper six bits of the traffic class.
    pub dscp: u8,
    /// The target's queue pair (24 bits).
    pub qp: u32,
}

/// `match`: conditions that all have to hold; one that is `None` always does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Match {
    /// The source address lies in one of these.
    pub src: Option<Vec<IpNet>>,
    /// The destination address lies in one of these.
    pub dst: Option<Vec<IpNet>>,
    /// The DSCP is one of these (0 to 63).
    pub dscp: Option<Vec<u8>>,
    /// The target's queue pair lies in one of these.
    pub qp: Option<Vec<QpRange>>,
    /// The message's size lies within these. Judged message by message, the others once per flow.
    pub size: Option<Bounds<ByteSize>>,
}

impl Match {
    /// Returns true if all conditions hold but the one on the size, which is not looked at.
    pub fn covers(&self, traffic: &Traffic) -> bool {
        let inside = |prefixes: &Option<Vec<IpNet>>, address: IpAddr| {
            prefixes.as_ref().is_none_or(|prefixes| prefixes.iter().any(|prefix| prefix.contains(&address)))
        };
        inside(&self.src, traffic.src)
            && inside(&self.dst, traffic.dst)
            && self.dscp.as_ref().is_none_or(|list| list.contains(&traffic.dscp))
            && self.qp.as_ref().is_none_or(|list| list.iter().any(|range| range.contains(traffic.qp)))
    }

    /// Returns true if the condition on the size holds. A size that is not known meets no
    /// condition.
    pub fn admits(&self, size: Option<u64>) -> bool {
        self.size.is_none_or(|bounds| size.is_some_and(|size| bounds.contains(ByteSize::from_bytes(size))))
    }

    /// Returns true if it has no condition.
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// Queue pair numbers from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpRange {
    first: u32,
    last: u32,
}

/// Queue pair numbers have 24 bits.
const MAX_QP: u32 = 0xff_ffff;

impl QpRange {
    /// `None` if it is empty, or goes beyond 24 bits.
    pub fn new(range: RangeInclusive<u32>) -> Option<Self> {
        let (first, last) = range.into_inner();
        (first <= last && last <= MAX_QP).then_some(Self { first, last })
    }

    /// Returns the lowest number.
    pub(super) fn first(self) -> u32 {
        self.first
    }

    /// Returns the highest number.
    pub(super) fn last(self) -> u32 {
        self.last
    }

    /// Returns true if the queue pair is one of them.
    pub fn contains(&self, qp: u32) -> bool {
        (self.first..=self.last).contains(&qp)
    }
}

/// Not a queue pair number, nor two with a hyphen in between, the first not above the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a range of queue pairs")]
pub struct NotQps;

impl FromStr for QpRange {
    type Err = NotQps;

    /// "0x100-0x1ff" or "17", each number in decimal or hexadecimal.
    fn from_str(text: &str) -> Result<Self, NotQps> {
        let number = |text: &str| {
            let text = text.trim();
            let parsed = match text.strip_prefix("0x") {
                Some(digits) if !digits.starts_with('+') => u32::from_str_radix(digits, 16),
                None if !text.starts_with('+') => text.parse(),
                _ => return Err(NotQps),
            };
            parsed.map_err(|_| NotQps)
        };
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(text)?, number(text)?),
        };
        Self::new(first..=last).ok_or(NotQps)
    }
}

impl fmt::Display for QpRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.first)?;
        if self.last > self.first {
            write!(f, "-{:#x}", self.last)?;
        }
        Ok(())
    }
}

/// Largest message of the InfiniBand architecture.
pub(super) const MAX_MESSAGE: ByteSize = ByteSize::gib(2);

pub(super) fn read(sink: &mut Sink, mut section: Section<'_, '_>) -> Match {
    let matches = Match {
        src: prefixes(sink, &mut section, "src"),
        dst: prefixes(sink, &mut section, "dst"),
        dscp: plain(section.list(sink, "dscp", "dscp = [46] or [\"ef\"]", dscp)),
        qp: plain(section.list(sink, "qp", "qp = [\"0x100-0x1ff\", 17]", qps)),
        size: bounds::read(
            sink,
            &mut section,
            "size",
            "{ at_most = \"64 KiB\" }",
            unit(ByteSize::from_bytes(0)..=MAX_MESSAGE, "64 KiB"),
        ),
    };
    section.finish(sink);
    matches
}

/// `match.src` and `match.dst`, with a warning of prefixes that no packet has. A target may be a
/// multicast group.
fn prefixes(sink: &mut Sink, section: &mut Section<'_, '_>, key: &'static str) -> Option<Vec<IpNet>> {
    let list = section.list(sink, key, &format!("{key} = [\"10.0.1.0/24\"]"), prefix);
    for (prefix, span) in list.iter().flatten() {
        match impossible(prefix) {
            Some(("multicast", _)) if key == "dst" => {}
            Some((kind, why)) => {
                let message = format!("`{}` holds {kind} addresses only, and no host", section.name(key));
                sink.warning(span.clone(), message, Label::Value(format!("{prefix}")), Some(why.to_owned()));
            }
            None => {}
        }
    }
    plain(list)
}

/// A list without the places of its elements.
fn plain<T>(list: Option<Vec<(T, Range<usize>)>>) -> Option<Vec<T>> {
    list.map(|list| list.into_iter().map(|(element, _)| element).collect())
}

// Converters.

fn qps(value: &DeValue<'_>) -> Result<QpRange, Wrong> {
    let help = "a number from 0 to 0xffffff, or a range such as \"0x100-0x1ff\"";
    match value.as_str() {
        Some(text) => text.parse().map_err(|error: NotQps| Wrong::new(error.to_string(), help)),
        None => {
            let qp = integer(0..=MAX_QP)(value).map_err(|_| Wrong::new(NotQps.to_string(), help))?;
            Ok(QpRange { first: qp, last: qp })
        }
    }
}

/// A number, or a name of RFC 2474, 2597, 3246, 5865 and 8622.
fn dscp(value: &DeValue<'_>) -> Result<u8, Wrong> {
    let Some(name) = value.as_str() else {
        return integer(0..=63)(value);
    };
    let name = name.to_ascii_lowercase();
    let digits = |prefix: &str| name.strip_prefix(prefix).map(str::as_bytes);
    let named = match name.as_str() {
        "be" | "df" => Some(0),
        "le" => Some(1),
        "va" => Some(44),
        "ef" => Some(46),
        _ => match (digits("cs"), digits("af")) {
            (Some([class @ b'0'..=b'7']), _) => Some((class - b'0') * 8),
            (_, Some([class @ b'1'..=b'4', drop @ b'1'..=b'3'])) => {
                Some((class - b'0') * 8 + (drop - b'0') * 2)
            }
            _ => None,
        },
    };
    named.ok_or_else(|| Wrong::new("is not a DSCP", "0 to 63, or a name such as \"ef\", \"af41\" or \"cs3\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn queue_pairs_in_every_spelling() {
        for (text, first, last) in [
            ("17", 17, 17),
            ("0x11", 17, 17),
            ("0x100-0x1ff", 0x100, 0x1ff),
            (" 5 - 0xffffff ", 5, 0xff_ffff),
            ("7-7", 7, 7),
        ] {
            assert_eq!(text.parse(), Ok(QpRange { first, last }), "{text}");
        }
        for text in ["", "-", "1-", "-1", "2-1", "0x", "0x1000000", "16777216", "+1", "0x+1", "a", "1-2-3"] {
            assert_eq!(text.parse::<QpRange>(), Err(NotQps), "{text}");
        }
        let range = QpRange::new(0x100..=0x1ff).unwrap();
        assert_eq!([0xff, 0x100, 0x1ff, 0x200].map(|qp| range.contains(qp)), [false, true, true, false]);
    }

    #[test]
    fn an_unknown_size_meets_no_condition_on_it() {
        let bounds = Bounds { at_least: None, at_most: Some(ByteSize::kib(64)) };
        let small = Match { size: Some(bounds), ..Match::default() };
        assert_eq!(
            [Some(0), Some(65_536), Some(65_537), None].map(|size| small.admits(size)),
            [true, true, false, false]
        );
        assert!(Match::default().admits(None) && !small.is_everything());
    }

    proptest! {
        #[test]
        fn what_is_displayed_parses_to_the_same_queue_pairs(a in 0..=MAX_QP, b in 0..=MAX_QP) {
            let range = QpRange { first: a.min(b), last: a.max(b) };
            prop_assert_eq!(range.to_string().parse(), Ok(range));
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC*") {
            let _ = text.parse::<QpRange>();
        }
    }
}
