//! The class that a policy chooses, the outlines of classes, and the differences between policies.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test code, also where no function is a test")]

use std::path::Path;

use config::{Policy, Traffic};
use proptest::prelude::*;

fn policy(text: &str) -> Policy {
    Policy::parse(Path::new("policy.toml"), text).unwrap_or_else(|invalid| panic!("{invalid}\n{text}"))
}

fn class(name: &str, keys: &str) -> String {
    format!("[[class]]\nname = \"{name}\"\n{keys}\n")
}

fn traffic(dscp: u8, qp: u32) -> Traffic {
    Traffic { src: "10.0.0.1".parse().unwrap(), dst: "10.0.1.1".parse().unwrap(), dscp, qp }
}

#[test]
fn queue_pair_and_size_choose_a_class() {
    let policy = policy(
        &[
            class(
                "pairs",
                "match = { qp = [\"0x100-0x1ff\", 17], size = { at_least = \"1 KiB\" } }\nscheme = \"sr\"",
            ),
            class("small", "match = { size = { at_most = \"64 KiB\" } }\nscheme = \"sr\""),
            class("marked", "match = { dscp = [\"ef\"] }\nscheme = \"sr\""),
            class("default", "scheme = \"sr\""),
        ]
        .concat(),
    );
    let choose = |dscp, qp, size| policy.classes()[policy.classify(&traffic(dscp, qp), size)].name.as_str();
    for (dscp, qp, size, expected) in [
        (0, 17, Some(1024), "pairs"),
        (0, 0x1ff, Some(1 << 30), "pairs"),
        (0, 0x200, Some(1 << 30), "default"),
        (0, 17, Some(1023), "small"),
        (0, 18, Some(0), "small"),
        (0, 18, Some(65_536), "small"),
        (46, 18, Some(65_537), "marked"),
        (0, 18, Some(65_537), "default"),
        // What has no size passes by every condition on it.
        (0, 17, None, "default"),
        (46, 17, None, "marked"),
    ] {
        assert_eq!(choose(dscp, qp, size), expected, "dscp {dscp}, qp {qp:#x}, size {size:?}");
    }
}

#[test]
fn what_is_left_to_the_gateway_is_divided_by_size() {
    let names = |policy: &Policy| policy.classes().iter().map(|class| class.name.clone()).collect::<Vec<_>>();
    let policy = policy(
        &[
            class(
                "long",
                "match = { dscp = [1], size = { at_least = \"1 MiB\" } }\nscheme = \"auto\"\npriority = 3",
            ),
            class("small", "match = { dscp = [2], size = { at_most = \"64 KiB\" } }\nscheme = \"auto\""),
            class("one", "match = { dscp = [3] }\nscheme = \"auto\"\ndivide = []"),
            class("fixed", "match = { dscp = [4] }\nscheme = \"sr\""),
            class("default", "scheme = \"auto\"\ndivide = [\"1000 B\", \"1 GiB\"]"),
        ]
        .concat(),
    );
    let expected = ["long/4MiB", "long", "small", "one", "fixed", "default/1kB", "default/1GiB", "default"];
    assert_eq!(names(&policy), expected);
    let written: Vec<&str> = policy.written().map(|class| class.name.as_str()).collect();
    assert_eq!(written, ["long", "small", "one", "fixed", "default"]);
    assert_eq!(policy.classes()[0].priority, 3, "what holds for the class holds for its parts");
    let choose = |dscp, size| policy.classes()[policy.classify(&traffic(dscp, 17), size)].name.as_str();
    for (dscp, size, expected) in [
        (1, Some(4 << 20), "long/4MiB"),
        (1, Some((4 << 20) + 1), "long"),
        (1, Some((1 << 20) - 1), "default/1GiB"),
        (2, Some(0), "small"),
        (3, Some(1 << 30), "one"),
        (0, Some(0), "default/1kB"),
        (0, Some(1000), "default/1kB"),
        (0, Some(1001), "default/1GiB"),
        (0, Some((1 << 30) + 1), "default"),
        // What has no size is nobody's but that of the class itself.
        (0, None, "default"),
        (3, None, "one"),
        (1, None, "default"),
    ] {
        assert_eq!(choose(dscp, size), expected, "dscp {dscp}, size {size:?}");
    }
    let empty: Vec<bool> = (0..9).map(|index| policy.takes_empty(index)).collect();
    assert_eq!(empty, [false, false, true, true, true, true, false, false, false]);
}

#[test]
fn priorities_are_0_to_7_and_0_if_nothing_is_said() {
    let policy = policy(
        &[
            class("urgent", "match = { dscp = [1] }\nscheme = \"auto\"\npriority = 7"),
            class("default", "scheme = \"sr\""),
        ]
        .concat(),
    );
    assert_eq!(policy.written().map(|class| class.priority).collect::<Vec<_>>(), [7, 0]);
}

#[test]
fn a_class_says_what_it_does_in_a_line() {
    for (keys, line) in [
        ("scheme = \"none\"", "none: nothing is repaired"),
        ("scheme = \"sr\"", "sr: each loss costs a round trip, timeout 2 RTT, no overhead"),
        (
            "scheme = \"sr\"\nrefuse = \"silence\"",
            "sr: each loss costs a round trip, timeout 2 RTT, no overhead, refuses by silence",
        ),
        (
            "scheme = \"sr\"\nrefuse = \"nak\"",
            "sr: each loss costs a round trip, timeout 2 RTT, no overhead, refuses by NAK",
        ),
        (
            "scheme = \"sr\"\nalpha = 0.5\npriority = 2\ncompletion = \"local\"",
            "sr: each loss costs a round trip, timeout 1.5 RTT, no overhead, priority 2, completes locally",
        ),
        (
            "scheme = \"mds\"\nk = 32\nm = 8",
            "mds: k = 32, m = 8, overhead 25 %, survives a burst of 8 packets",
        ),
        (
            "scheme = \"mds\"\nk = 32\nm = 8\ninterleave = 4",
            "mds: k = 32, m = 8 interleaved by 4, overhead 25 %, survives a burst of 32 packets",
        ),
        (
            "scheme = \"mds\"\nk = 3\nm = 1",
            "mds: k = 3, m = 1, overhead 33.3 %, survives a burst of 1 packet",
        ),
        (
            "scheme = \"xor\"\nk = 32\nm = 8",
            "xor: k = 32, m = 8, overhead 25 %, survives a burst of 8 packets",
        ),
        (
            "scheme = \"xor\"\nk = 10\nm = 4",
            "xor: k = 10, m = 4, overhead 40 %, survives a burst of 2 packets",
        ),
        (
            "scheme = \"hybrid\"\nk = 32\nm = 8",
            "hybrid: sr, and where that would cost a round trip k = 32, m = 8 at most, overhead 25 % at most",
        ),
        (
            "scheme = \"hybrid\"\nk = 3\nm = 1\ninterleave = 4\npriority = 1",
            "hybrid: sr, and where that would cost a round trip k = 3, m = 1 at most interleaved by 4, overhead 33.3 % at most, priority 1",
        ),
        (
            "scheme = \"auto\"",
            "auto: the best of sr, xor, mds, hybrid for the 99.9th percentile, overhead 50 % at most, apart for messages up to 64 KiB, 4 MiB, and longer ones",
        ),
        (
            "scheme = \"auto\"\nallowed = [\"mds\"]\ndivide = []\npercentile = 99\nmax_overhead = 0.2\npriority = 7",
            "auto: the best of mds for the 99th percentile, overhead 20 % at most, priority 7",
        ),
    ] {
        assert_eq!(policy(&class("default", keys)).written().next().unwrap().outline(), line, "{keys}");
    }
}

#[test]
fn differences_are_told_one_a_line() {
    let before = policy(
        &[
            class("gone", "match = { dscp = [1] }\nscheme = \"sr\""),
            class("bulk", "match = { dscp = [2] }\nscheme = \"mds\"\nk = 32\nm = 8"),
            class("small", "match = { size = { at_most = \"64 KiB\" } }\nscheme = \"sr\""),
            class("default", "scheme = \"sr\""),
        ]
        .concat(),
    );
    let after = policy(
        &[
            class("small", "match = { qp = [17, \"0x20-0x2f\"] }\nscheme = \"auto\"\nallowed = [\"sr\"]\nmax_overhead = 0.5"),
            class("bulk", "match = { dscp = [2] }\nscheme = \"mds\"\nk = 64\nm = 8\nflush = \"1 ms\""),
            class("new", "match = { src = [\"10.0.0.0/8\"] }\nscheme = \"xor\"\nk = 8\nm = 2\npriority = 3"),
            class("default", "scheme = \"sr\""),
        ]
        .concat(),
    );
    let lines: Vec<String> = before.differences(&after).iter().map(ToString::to_string).collect();
    let expected = [
        "class gone: removed",
        "class small: match.qp: unset -> [\"0x11\", \"0x20-0x2f\"]",
        "class small: match.size: at most 64 KiB -> unset",
        "class small: scheme: \"sr\" -> \"auto\"",
        "class small: allowed: unset -> [\"sr\"]",
        "class small: divide: unset -> [\"64 KiB\", \"4 MiB\"]",
        "class small: alpha: 1 -> unset",
        "class small: max_overhead: 1 -> 0.5",
        "class bulk: k: 32 -> 64",
        "class bulk: flush: \"5 ms\" -> \"1 ms\"",
        "class new: added before default: xor: k = 8, m = 2, overhead 25 %, survives a burst of 2 packets, priority 3",
        "order of classes: bulk, small, default -> small, bulk, default",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

/// A policy file of a few classes, from a small choice of names and keys.
fn some_policy() -> impl Strategy<Value = String> {
    let matches = prop::sample::select(vec![
        "match = { dscp = [1] }",
        "match = { dscp = [1, 2] }",
        "match = { src = [\"10.0.0.0/8\"] }",
        "match = { dst = [\"10.0.0.0/8\"] }",
        "match = { qp = [17] }",
        "match = { size = { at_most = \"1 KiB\" } }",
        "match = { size = { at_least = \"1 KiB\" } }",
    ]);
    let schemes = prop::sample::select(vec![
        "scheme = \"none\"",
        "scheme = \"sr\"",
        "scheme = \"sr\"\nalpha = 2",
        "scheme = \"xor\"\nk = 8\nm = 2",
        "scheme = \"mds\"\nk = 8\nm = 2",
        "scheme = \"mds\"\nk = 8\nm = 2\ninterleave = 2",
        "scheme = \"mds\"\nk = 8\nm = 2\nflush = \"1 ms\"",
        "scheme = \"hybrid\"\nk = 8\nm = 2",
        "scheme = \"auto\"",
        "scheme = \"auto\"\nallowed = [\"sr\"]",
        "scheme = \"auto\"\nmax_overhead = 0.75",
        "scheme = \"sr\"\npercentile = 99",
        "scheme = \"sr\"\npriority = 1",
    ]);
    let names = prop::sample::subsequence(vec!["a", "b", "c"], 0..=3).prop_shuffle();
    (names, prop::collection::vec((matches, schemes.clone()), 3), schemes).prop_map(
        |(names, classes, last)| {
            let mut text: String = names
                .iter()
                .zip(classes)
                .map(|(name, (matches, scheme))| class(name, &format!("{matches}\n{scheme}")))
                .collect();
            text += &class("default", last);
            text
        },
    )
}

proptest! {
    #[test]
    fn there_is_a_difference_exactly_if_they_differ(a in some_policy(), b in some_policy()) {
        let (a, b) = (policy(&a), policy(&b));
        prop_assert_eq!(a.differences(&b).is_empty(), a == b);
        prop_assert!(a.differences(&a).is_empty());
    }
}
