//! The program that a package ships, built without `demo`: nothing of the laboratory is in it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Crates of the laboratory, as symbols name them and as paths in line tables do.
const LABORATORY: [&str; 7] =
    ["netem_tests", "soft_nic", "link_emulator", "7testbed", "netem-tests/", "longhaul_lab", "longhaul-lab"];

/// The program as the tests run it.
const DEFAULT: &str = env!("CARGO_BIN_EXE_longhaul");

/// Builds the program without `demo`, of what else cargo has built already, in a folder of its own.
fn build() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let own = target.join("product");
    let is_release = Path::new(DEFAULT).parent().unwrap().ends_with("release");
    let profile = if is_release { ("release", "release") } else { ("dev", "debug") };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--package", "gateway", "--no-default-features", "--offline", "--quiet"])
        .args(["--profile", profile.0, "--target-dir"])
        .arg(&own)
        .env("CARGO_BUILD_BUILD_DIR", target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    own.join(profile.1).join("longhaul")
}

/// How often the program's file has the text: symbols, line tables and strings.
fn count(program: &Path, text: &str) -> usize {
    let bytes = fs::read(program).unwrap();
    bytes.windows(text.len()).filter(|window| *window == text.as_bytes()).count()
}

fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

#[test]
fn a_product_has_nothing_of_the_laboratory() {
    let product = build();
    for text in LABORATORY {
        assert_eq!(count(&product, text), 0, "{text} in {}", product.display());
    }
    // What is sought is there where it should be.
    for program in [product.as_path(), Path::new(DEFAULT)] {
        assert!(count(program, "linksim") > 0, "no symbols in {}", program.display());
    }
    #[cfg(feature = "demo")]
    for text in ["soft_nic", "link_emulator", "7testbed", "netem-tests/"] {
        assert!(count(Path::new(DEFAULT), text) > 0, "no {text} where it should be");
    }

    let help = String::from_utf8(run(&product, &["--help"]).stdout).unwrap();
    for command in ["gateway", "check", "keys", "status", "reload", "plan", "simulate", "record"] {
        assert!(help.contains(&format!("\n  {command} ")), "no {command} in\n{help}");
    }
    let of_the_laboratory: [&[&str]; 6] = [
        &["demo"],
        &["bench"],
        &["bench", "pair"],
        &["plan", "--paper"],
        &["simulate", "--paper"],
        &["simulate", "--plane"],
    ];
    for arguments in of_the_laboratory {
        let output = run(&product, arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(
            error.contains("unrecognized subcommand") || error.contains("unexpected argument"),
            "{error}"
        );
    }
}

/// Holds the container file's paths to the tree, and its build to that of packages. Its commands
/// are those of the documentation, which `packaging/try-container` runs.
#[test]
fn the_container_file_names_what_there_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let recipe = fs::read_to_string(root.join("packaging/Containerfile")).unwrap();
    let package = fs::read_to_string(root.join("packaging/package")).unwrap();
    let words = recipe.split_whitespace();
    let copied: Vec<&str> = words.filter_map(|word| word.strip_prefix("/src/")).collect();
    assert!(copied.len() >= 3, "{copied:?}");
    for path in &copied {
        let is_built = ["target/dist/longhaul", "packaging/generated/schema/"].contains(path);
        assert!(is_built || root.join(path).exists(), "no {path}");
    }
    for flags in ["--no-default-features -p gateway", "--locked"] {
        assert!(recipe.contains(flags) && package.contains(flags), "{flags}");
    }
    let ignored = fs::read_to_string(root.join(".containerignore")).unwrap();
    assert!(ignored.lines().any(|line| line == "target"), "{ignored}");
    // Docker looks beside the recipe.
    let of_docker = fs::read_to_string(root.join("packaging/Containerfile.dockerignore")).unwrap();
    assert_eq!(of_docker, ignored);
    // Of a folder the contents are copied, so schemas need a folder named for them.
    let folders = recipe.lines().filter(|line| line.starts_with("COPY") && line.contains("/schema"));
    assert!(
        folders.clone().count() == 1 && folders.clone().all(|line| line.ends_with("/schema/")),
        "{recipe}"
    );
    assert!(recipe.contains("longhaul generate packaging/generated\n"), "{recipe}");
    let page = fs::read_to_string(root.join("docs/install.md")).unwrap();
    let commands: Vec<&str> = recipe.lines().filter_map(|line| line.strip_prefix("#   ")).collect();
    assert!(commands.len() >= 4 && page.contains(&commands.join("\n")), "{commands:?}");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap();
    let image = format!("rust:{}-", version.trim_matches('"'));
    assert!(recipe.contains(&image), "{image} builds it");
}
