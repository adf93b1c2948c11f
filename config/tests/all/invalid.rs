//! Files that are refused, and the very words they are refused with: `invalid/NAME.toml` against
//! `invalid/NAME.txt`. `UPDATE_EXPECTED=1 cargo test -p config` writes the expected files anew.

use std::fs;
use std::path::Path;

use config::{Style, check, render};

#[test]
fn messages_are_as_expected() {
    // Relative, so that the messages name the same path everywhere; tests run in the crate's
    // folder.
    let folder = Path::new("tests/invalid");
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    names.sort();
    assert!(names.len() >= 10, "the files are gone");
    let mut failures = String::new();
    for path in names {
        let report = check(&path);
        let warns = path.file_stem().is_some_and(|name| name.to_string_lossy().starts_with("warning"));
        assert_eq!(report.is_valid(), warns, "{}", path.display());
        let text = render(report.problems(), Style::Plain);
        let expected = path.with_extension("txt");
        if std::env::var_os("UPDATE_EXPECTED").is_some() {
            fs::write(&expected, &text).unwrap();
        } else if fs::read_to_string(&expected).unwrap_or_default() != text {
            failures.push_str(&format!("{} now says:\n{text}\n", path.display()));
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn a_file_that_is_not_there() {
    let report = check(Path::new("tests/invalid/no-such-file"));
    assert!(!report.is_valid());
    assert!(report.problems()[0].message().starts_with("cannot read tests/invalid/no-such-file: "));
}

#[test]
fn what_never_ends_is_refused() {
    let report = check(Path::new("/dev/zero"));
    assert_eq!(report.problems()[0].message(), "cannot read /dev/zero: it has more than 1048576 bytes");
}

/// A key's lines would stand on the terminal, and in whatever collects its output.
#[test]
fn nothing_is_quoted_of_keys_and_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let (key, gateway) = (folder.path().join("a.key"), folder.path().join("gateway.toml"));
    let text = fs::read_to_string("../docs/examples/gateway-a.toml").unwrap();
    fs::write(&gateway, text.replace("file = \"policy.toml\"", "file = \"a.key\"")).unwrap();
    let pem = b"-----BEGIN PRIVATE KEY-----\nsecret1\nsecret2 = \"secret3\"\n-----END PRIVATE KEY-----\n";
    for (content, told) in [
        (&pem[..], "a.key: it is a private key (PEM), and neither a gateway file nor a policy file"),
        (b"\x30\x06secret", "a.key: it is a key or certificate (DER), and neither"),
        (b"secret\0\n", "a.key: it is no text, and neither"),
    ] {
        fs::write(&key, content).unwrap();
        for path in [&key, &gateway] {
            let report = check(path);
            let shown = render(report.problems(), Style::Plain);
            assert!(!report.is_valid() && !shown.contains("secret"), "{shown}");
            assert!(report.problems()[0].message().contains(told), "{shown}");
        }
    }
}

/// The place shows, in a policy file that a gateway file names as well.
#[test]
fn what_is_no_text_is_told_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let (policy, gateway) = (folder.path().join("policy.toml"), folder.path().join("gateway.toml"));
    fs::write(&policy, b"[[class]]\nname = \"default\" # f\xfcr\nscheme = \"sr\"\n").unwrap();
    fs::copy("../docs/examples/gateway-a.toml", &gateway).unwrap();
    for path in [&policy, &gateway] {
        let report = check(path);
        let told = "policy.toml: byte 21 of line 2 is 0xfc, which is no UTF-8: save it as UTF-8";
        assert!(report.problems()[0].message().ends_with(told), "{:?}", report.problems());
    }
}

/// A file that is read again may have become something that whoever opens it waits for.
#[test]
fn what_is_no_regular_file_is_not_read_again() {
    let invalid = config::Gateway::load_again(Path::new("/dev/zero")).unwrap_err();
    assert_eq!(invalid.problems()[0].message(), "cannot read /dev/zero: it is no regular file");
}

#[test]
fn positions_count_lines_and_characters_from_one() {
    let text = "[site]\nname = \"\u{fc}\"\n# \u{fc}\u{fc}\n[lan]\nmtu = 1\n";
    let invalid = config::Gateway::parse(Path::new("x.toml"), text).unwrap_err();
    let at = |message: &str| {
        let problem = invalid.problems().iter().find(|problem| problem.message().contains(message));
        problem.unwrap_or_else(|| panic!("no {message}: {invalid}")).position()
    };
    assert_eq!(at("site.name"), Some((2, 8)));
    assert_eq!(at("lan.mtu"), Some((5, 7)));
}

#[test]
fn problems_added_later_find_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    fs::write(&path, "[[class]]\nname = \"default\"\nscheme = \"sr\"\n").unwrap();
    let mut report = check(&path);
    assert!(report.is_valid());
    report.warning_at("class", "only a warning", "here", None);
    assert!(report.is_valid());
    report.error_at("class", "an error", "here", None);
    assert!(!report.is_valid());
    assert_eq!(report.problems().last().unwrap().position(), Some((1, 1)));
}
