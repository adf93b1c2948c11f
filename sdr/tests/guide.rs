//! The guide shows the examples as they are, they are short, and they run.

#![cfg(feature = "udp")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::process::Command;

#[test]
fn the_guide_shows_the_examples_in_sixty_lines_each() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let guide = read("docs/sdr.md");
    for example in ["sdr/examples/partial.rs", "sdr-c/examples/partial.c"] {
        let text = read(example);
        assert!(guide.contains(&text), "docs/sdr.md does not show {example} as it is");
        assert!(text.lines().count() <= 60, "{example} is too long");
    }
}

/// Runs an example of this crate, and returns what it printed.
fn example(name: &str, arguments: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["run", "--quiet", "--release", "--offline", "--package", "sdr", "--example", name, "--"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_guides_program_completes_partially() {
    let told = example("partial", &[]);
    assert!(told.contains("first byte of chunk 9: Some(9)") && told.contains("1 chunk missing"), "{told}");
}

#[test]
fn an_allreduce_over_loopback_is_right_on_each_layer() {
    let told = example("sdr_allreduce", &["native"]);
    // Five layers, each at four drop rates.
    assert_eq!(told.matches("sums right").count(), 20, "{told}");
}
