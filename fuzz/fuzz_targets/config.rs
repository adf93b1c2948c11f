//! Gateway and policy files: any text is read or refused with its places, and a policy takes
//! every message.
#![no_main]

use std::path::Path;

use config::{Gateway, Invalid, MAX_CLASSES, Policy, Style, Traffic};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let (kind, text) = match input.split_first() {
        Some((kind, text)) => (kind, String::from_utf8_lossy(text)),
        None => return,
    };
    if kind & 1 == 0 {
        read_gateway(&text);
    } else {
        read_policy(&text);
    }
});

fn read_gateway(text: &str) {
    let gateway = match Gateway::parse(Path::new("gateway.toml"), text) {
        Ok(gateway) => gateway,
        Err(invalid) => return refused(&invalid, text),
    };
    let _ = (gateway.peer.bulk_address(), gateway.wan.bulk_listen());
    assert!(gateway.wan.lanes_of(0).count() >= 1);
    assert!(gateway.wan.longest_packet() >= gateway.wan.usual_packet());
}

fn read_policy(text: &str) {
    let policy = match Policy::parse(Path::new("policy.toml"), text) {
        Ok(policy) => policy,
        Err(invalid) => return refused(&invalid, text),
    };
    let classes = policy.classes().len();
    assert!((1..=MAX_CLASSES).contains(&classes));
    assert!(policy.differences(&policy).is_empty());
    let _ = policy.differences(&Policy::default());
    let traffic = Traffic { src: [10, 0, 0, 1].into(), dst: [10, 0, 1, 1].into(), dscp: 26, qp: 0x11 };
    for size in [None, Some(0), Some(1 << 16), Some(u64::MAX)] {
        assert!(policy.classify(&traffic, size) < classes);
    }
    assert!((0..classes).any(|class| policy.takes_empty(class)));
}

/// The report names places within the text.
fn refused(invalid: &Invalid, text: &str) {
    assert!(!invalid.problems().is_empty());
    assert!(invalid.problems().iter().any(config::Problem::is_error));
    for problem in invalid.problems() {
        assert!(!problem.message().is_empty());
        if let Some((line, column)) = problem.position() {
            assert!(line >= 1 && column >= 1 && line <= text.split('\n').count() + 1, "{line}:{column}");
        }
    }
    assert!(!invalid.render(Style::Plain).is_empty());
}
