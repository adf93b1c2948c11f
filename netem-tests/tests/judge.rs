//! The lab's judge finds what is planted for it to find. The lab itself is run by
//! `gateway/tests/lab.rs`.

use std::path::Path;
use std::process::Command;

/// Every kind of fault by the right rule, nothing where all is well, and a refusal where a capture
/// has holes.
#[test]
fn the_labs_judge_finds_every_planted_fault() {
    let judge = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/judge.py");
    let status = Command::new("python3").arg("-B").arg(judge).arg("--self-test").status();
    assert!(status.expect("python3 starts; test-all installs it").success(), "see above");
}
