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

/// The lab's commands as they stand in the guide, in name spaces of its own.
///
/// Other are the folder of the programs, which cargo may have elsewhere, and the secret's file.
#[test]
fn the_guides_lab_of_three_sites_works_literally() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let guide = std::fs::read_to_string(root.join("docs/sdr.md")).unwrap();
    let lab = guide.split("<!-- lab: run by sdr/tests/guide.rs -->\n```\n").nth(1).unwrap();
    let commands = lab.split("```").next().unwrap();
    let test = std::env::current_exe().unwrap();
    let programs = test.ancestors().nth(2).unwrap().join("examples");
    let secret = std::env::temp_dir().join(format!("sdr-secret-{}", std::process::id()));
    let commands = commands
        .replace("target/release/examples", programs.to_str().unwrap())
        .replace("/tmp/secret", secret.to_str().unwrap())
        .replace("cargo build", "cargo build --quiet --offline");
    let output = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c"])
        .arg(format!("set -e; mount -t tmpfs tmpfs /run\n{commands}"))
        .current_dir(&root)
        .output()
        .unwrap();
    let _ = std::fs::remove_file(secret);
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "name spaces need root, ip and nft; otherwise: {errors}");
    for site in 0..3 {
        let line = format!("site {site} of 3: 1048576 bytes a segment, mds:8,3, sums right, ");
        assert!(told.contains(&line), "{told}{errors}");
    }
    let whole = told.lines().find(|line| line.starts_with("1000 whole, 0 chunks lost, "));
    assert!(whole.is_some_and(|line| line.ends_with(", contents checked")), "{told}{errors}");
}
