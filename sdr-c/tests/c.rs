//! The header, and a C program on the static library.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Generates the header from the sources.
fn header() -> String {
    let config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in ["types.rs", "error.rs", "lib.rs", "message.rs"] {
        builder = builder.with_src(folder().join("src").join(file));
    }
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

/// `UPDATE_EXPECTED=1 cargo test -p sdr-c --release --test c` writes it.
#[test]
fn the_header_is_that_of_the_sources() {
    let file = folder().join("include/longhaul-sdr.h");
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(&file, header()).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == header(), "the header is out of date");
}

/// Returns the folder with the libraries, which cargo builds for this test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let found = [deps, deps.parent().unwrap()].into_iter().find(|at| at.join("liblonghaul_sdr.a").exists());
    found.expect("the static library").to_owned()
}

/// Compiles a C program with warnings as errors.
fn compile(source: &str, to: &Path) {
    let output = Command::new("cc")
        .args(["-std=c11", "-D_DEFAULT_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(folder().join("include"))
        .arg(folder().join(source))
        .arg(libraries().join("liblonghaul_sdr.a"))
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(to)
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_c_program_sends_receives_and_is_stopped_where_it_errs() {
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join("loopback");
    compile("tests/loopback.c", &program);
    let output = Command::new(&program).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"done\n", "{:?}: {told}", output.status);
}

#[test]
fn the_guides_program_completes_partially() {
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join("partial");
    compile("examples/partial.c", &program);
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success() && output.stdout == b"bitmap of 2 bytes: df ff\n", "{output:?}");
}

/// A program written against the published header compiles: names, members, enumerations.
#[test]
fn the_shared_library_has_every_call_and_its_soname() {
    const CALLS: [&str; 22] = [
        "sdr_context_create",
        "sdr_context_destroy",
        "sdr_qp_create",
        "sdr_qp_destroy",
        "sdr_qp_info_size_get",
        "sdr_qp_info_get",
        "sdr_qp_connect",
        "sdr_mr_reg",
        "sdr_mr_dereg",
        "sdr_mr_lkey_get",
        "sdr_mr_rkey_get",
        "sdr_recv_post",
        "sdr_recv_bitmap_get",
        "sdr_recv_bitmap_chunk_expand",
        "sdr_recv_imm_get",
        "sdr_recv_complete",
        "sdr_send_post",
        "sdr_streaming_send_start",
        "sdr_streaming_send_continue",
        "sdr_streaming_send_end",
        "sdr_send_poll",
        "sdr_last_error",
    ];
    let header = header();
    let library = std::fs::read(libraries().join("liblonghaul_sdr.so")).unwrap();
    let has = |name: &str| library.windows(name.len()).any(|bytes| bytes == name.as_bytes());
    for call in CALLS {
        assert!(header.contains(&format!("{call}(")) && has(call), "{call}");
    }
    assert!(has("liblonghaul_sdr.so.0"));
}
