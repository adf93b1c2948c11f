//! Finds classes of which earlier ones leave nothing.

use std::net::IpAddr;

use ipnet::IpNet;

use super::matching::Match;

/// Source, destination, DSCP, queue pair, size.
const DIMENSIONS: usize = 5;
/// Where messages of unknown size stand, which meet no condition on it.
const UNKNOWN: u128 = u128::MAX;
/// Pieces of what is left of a class. With more the question stays open.
const MOST_PIECES: usize = 4096;

/// Disjoint intervals in ascending order, both ends included.
type Set = Vec<(u128, u128)>;

/// Everything whose value in each dimension lies in that dimension's set.
#[derive(Clone)]
struct Region([Set; DIMENSIONS]);

/// Returns true if the `earlier` matches together take all that `later` would. If that takes too
/// long to find out, it returns false.
pub(super) fn is_covered<'a>(later: &Match, earlier: impl Iterator<Item = &'a Match>) -> bool {
    let whole = Region::of(later);
    if whole.is_empty() {
        // Its values were refused; there is nothing to judge.
        return false;
    }
    let mut left = vec![whole];
    for matches in earlier {
        let taken = Region::of(matches);
        left = left.iter().flat_map(|region| region.without(&taken)).collect();
        if left.len() > MOST_PIECES {
            return false;
        }
    }
    left.is_empty()
}

impl Region {
    fn of(matches: &Match) -> Self {
        let numbers = |list: &Vec<u8>| union(list.iter().map(|dscp| (u128::from(*dscp), u128::from(*dscp))));
        let size = matches.size.map(|bounds| {
            let at_least = bounds.at_least.map_or(0, |size| u128::from(size.bytes()));
            let at_most = bounds.at_most.map_or(UNKNOWN - 1, |size| u128::from(size.bytes()));
            vec![(at_least, at_most)]
        });
        Self([
            matches.src.as_deref().map_or_else(all, prefixes),
            matches.dst.as_deref().map_or_else(all, prefixes),
            matches.dscp.as_ref().map_or_else(all, numbers),
            matches.qp.as_ref().map_or_else(all, |list| {
                union(list.iter().map(|range| (u128::from(range.first()), u128::from(range.last()))))
            }),
            size.unwrap_or_else(all),
        ])
    }

    /// Returns the rest of it, in disjoint pieces: for each dimension what lies outside there, and
    /// inside in all dimensions before.
    fn without(&self, taken: &Self) -> Vec<Self> {
        let mut pieces = Vec::new();
        let mut inside = self.clone();
        for dimension in 0..DIMENSIONS {
            let (Some(own), Some(other)) = (self.0.get(dimension), taken.0.get(dimension)) else { continue };
            let outside = subtract(own, other);
            if !outside.is_empty() {
                let mut piece = inside.clone();
                piece.set(dimension, outside);
                pieces.push(piece);
            }
            inside.set(dimension, intersect(own, other));
        }
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }

    fn is_empty(&self) -> bool {
        self.0.iter().any(Vec::is_empty)
    }

    fn set(&mut self, dimension: usize, set: Set) {
        if let Some(place) = self.0.get_mut(dimension) {
            *place = set;
        }
    }
}

fn all() -> Set {
    vec![(0, u128::MAX)]
}

/// IPv4 addresses stand where they are mapped into IPv6.
fn prefixes(list: &[IpNet]) -> Set {
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    union(list.iter().map(|prefix| (number(prefix.network()), number(prefix.broadcast()))))
}

fn union(intervals: impl Iterator<Item = (u128, u128)>) -> Set {
    let mut sorted: Set = intervals.collect();
    sorted.sort_unstable();
    let mut set: Set = Vec::with_capacity(sorted.len());
    for (first, last) in sorted {
        match set.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => set.push((first, last)),
        }
    }
    set
}

fn intersect(a: &Set, b: &Set) -> Set {
    let overlaps = a.iter().flat_map(|(a, z)| b.iter().map(|(b, y)| (*a.max(b), *z.min(y))));
    union(overlaps.filter(|(first, last)| first <= last))
}

fn subtract(a: &Set, b: &Set) -> Set {
    let mut left = Vec::new();
    for &(first, last) in a {
        let mut next = Some(first);
        for &(begin, end) in b.iter().filter(|(begin, end)| *begin <= last && *end >= first) {
            if let Some(next) = next
                && begin > next
            {
                left.push((next, begin - 1));
            }
            next = end.checked_add(1);
        }
        if let Some(next) = next
            && next <= last
        {
            left.push((next, last));
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Policy;

    /// Returns true if the last of the matches is covered by those before.
    fn covered(matches: &[&str]) -> bool {
        let class = |(number, text): (usize, &&str)| {
            format!("[[class]]\nname = \"c{number}\"\nmatch = {text}\nscheme = \"sr\"\n")
        };
        let text: String = matches.iter().enumerate().map(class).collect();
        let text = text + "[[class]]\nname = \"rest\"\nscheme = \"sr\"\n";
        let policy = Policy::parse(Path::new("x"), &text).unwrap_or_else(|invalid| panic!("{invalid}"));
        let read: Vec<&Match> = policy.written().map(|class| &class.matches).take(matches.len()).collect();
        let (last, earlier) = read.split_last().unwrap();
        is_covered(last, earlier.iter().copied())
    }

    #[test]
    fn one_or_several_earlier_classes_may_leave_nothing() {
        let dscp = "{ dscp = [46] }";
        assert!(covered(&[dscp, dscp]));
        assert!(covered(&["{ dscp = [1, 46] }", "{ dscp = [46], qp = [7] }"]));
        assert!(!covered(&["{ dscp = [46], qp = [7] }", dscp]));
        // Two halves.
        assert!(covered(&[
            "{ src = [\"10.0.0.0/9\"] }",
            "{ src = [\"10.128.0.0/9\"] }",
            "{ src = [\"10.0.0.0/8\"] }"
        ]));
        assert!(!covered(&["{ src = [\"10.0.0.0/9\"] }", "{ src = [\"10.0.0.0/8\"] }"]));
        assert!(covered(&[
            "{ qp = [\"0-0x7fffff\"] }",
            "{ qp = [\"0x800000-0xffffff\"] }",
            "{ qp = [\"1-0xfffffe\"] }"
        ]));
        // Halves in different dimensions leave a corner.
        let corner = "{ dscp = [1, 2], qp = [1, 2] }";
        assert!(!covered(&["{ dscp = [1] }", "{ qp = [1] }", corner]));
        assert!(covered(&["{ dscp = [1] }", "{ qp = [1] }", "{ dscp = [2], qp = [2] }", corner]));
        // Messages of unknown size meet no condition on it.
        let sizes = ["{ size = { at_most = \"1 KiB\" } }", "{ size = { at_least = \"1 KiB\" } }"];
        assert!(!covered(&[sizes[0], sizes[1], dscp]));
        assert!(covered(&[sizes[0], "{ size = { at_most = \"512 B\" }, dscp = [3] }"]));
        assert!(!covered(&["{ dst = [\"fd00::/8\"] }", "{ dst = [\"10.0.0.0/8\"] }"]));
    }
}
