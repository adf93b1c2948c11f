//! The header, and a C program on the static library.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use sdr::blob::BLOB_BYTES;
use sdr::udp::{Unconnected, now};
use sdr::{Buffer, QpAttr};

const SECRET: &[u8; 32] = b"what both of these programs know";

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Generates the header from the sources.
fn header() -> String {
    let config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).unwrap();
    // The other files are found by their `mod`.
    let builder = cbindgen::Builder::new().with_config(config).with_src(folder().join("src/lib.rs"));
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

/// A program written against the published header compiles, in each language that includes it.
#[test]
fn the_header_declares_what_was_published_once() {
    for language in [&["c", "-std=c99"], &["c", "-std=c17"], &["c++", "-std=c++11"], &["c++", "-std=c++20"]] {
        let mut command = Command::new("cc");
        command.arg("-x").args(language).args(["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
        command.args(["-Wredundant-decls", "-I"]).arg(folder().join("include"));
        let output = command.arg(folder().join("tests/published.c")).output().expect("a C compiler");
        assert!(output.status.success(), "{language:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Answers beside success and error stand at the call and in the guide.
#[test]
fn calls_that_may_answer_retry_say_so() {
    const CALLS: [&str; 13] = [
        "sdr_recv_post",
        "sdr_recv_imm_get",
        "sdr_recv_complete",
        "sdr_send_post",
        "sdr_streaming_send_start",
        "sdr_streaming_send_continue",
        "sdr_send_poll",
        "sdr_ctrl_send",
        "sdr_ctrl_recv",
        "sdr_layer_send",
        "sdr_layer_expect",
        "sdr_layer_done",
        "sdr_layer_recv",
    ];
    let guide = std::fs::read_to_string(folder().join("../docs/sdr.md")).unwrap();
    let table = guide.split("### Return codes").nth(1).and_then(|rest| rest.split("## ").next()).unwrap();
    let header = header();
    // A declaration is the paragraph's end, after its comment.
    for paragraph in header.split("\n\n").filter(|paragraph| paragraph.ends_with(");")) {
        let (comment, declaration) = paragraph.split_once("\nint ").unwrap_or((paragraph, ""));
        let name = declaration.split('(').next().unwrap_or_default();
        let may_retry = CALLS.contains(&name);
        assert_eq!(comment.contains("SDR_RETRY"), may_retry, "{paragraph}");
        assert_eq!(table.contains(&format!("`{name}`")), may_retry, "{name} in the guide");
    }
}

/// Returns the folder with the libraries, which cargo builds for this test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let found = [deps, deps.parent().unwrap()].into_iter().find(|at| at.join("liblonghaul_sdr.a").exists());
    found.expect("the static library").to_owned()
}

/// Compiles a C program as the guide says, with warnings as errors.
fn compile(source: &str, to: &Path) {
    // The device names that are refused depend on the back ends that there are.
    let verbs = cfg!(feature = "verbs").then_some("-DSDR_VERBS");
    let output = Command::new("cc")
        .args(verbs)
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(folder().join("include"))
        .arg(folder().join(source))
        .arg(libraries().join("liblonghaul_sdr.a"))
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(to)
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Compiles and runs a test that is a C program.
fn passes(name: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join(name);
    compile(&format!("tests/{name}.c"), &program);
    let output = Command::new(&program).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"done\n", "{:?}: {told}", output.status);
}

#[test]
fn a_c_program_sends_receives_and_is_stopped_where_it_errs() {
    passes("loopback");
}

#[test]
fn each_misuse_is_an_error() {
    passes("misuse");
}

#[test]
fn descriptors_that_a_program_closes_end_its_queue_pairs() {
    passes("closed");
}

#[test]
fn the_guides_program_completes_partially() {
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join("partial");
    compile("examples/partial.c", &program);
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success() && output.stdout == b"bitmap of 2 bytes: df ff\n", "{output:?}");
}

/// Returns a port that is free on loopback.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// `sdr_bw` with contents checked, as a client or as a server.
fn bandwidth(program: &Path, secret: &Path, port: u16) -> Command {
    let mut command = Command::new(program);
    let port = port.to_string();
    command.env("SDR_SECRET_FILE", secret).args(["-a", "127.0.0.1", "-n", "60", "-v", "-p", &port]);
    command
}

fn secret(scratch: &Path) -> PathBuf {
    let file = scratch.join("secret");
    std::fs::write(&file, SECRET).unwrap();
    file
}

#[test]
fn sdr_bw_measures_between_two_processes() {
    let scratch = tempfile::tempdir().unwrap();
    let (program, secret) = (scratch.path().join("sdr_bw"), secret(scratch.path()));
    compile("examples/sdr_bw.c", &program);
    let port = free_port();
    for wrong in ["-h", "-?", "-s"] {
        let told = Command::new(&program).arg(wrong).output().unwrap();
        assert!(String::from_utf8(told.stderr).unwrap().contains("usage: sdr_bw -a ADDRESS"), "{wrong}");
    }
    let mut server = bandwidth(&program, &secret, port).spawn().unwrap();
    let client = bandwidth(&program, &secret, port).arg("127.0.0.1").output().unwrap();
    assert!(server.wait().unwrap().success() && client.status.success(), "{client:?}");
    let told = String::from_utf8(client.stdout).unwrap();
    assert!(told.contains("60 messages of 524288 bytes") && told.contains("contents checked"), "{told}");
}

#[test]
fn sdr_bw_repairs_losses_by_each_scheme() {
    let scratch = tempfile::tempdir().unwrap();
    let (program, secret) = (scratch.path().join("sdr_bw"), secret(scratch.path()));
    compile("examples/sdr_bw.c", &program);
    for scheme in ["rto", "nack", "mds:8,2", "xor:8,2"] {
        let port = free_port();
        let with = |command: &mut Command| {
            // More than a socket's buffer at a time: some is lost even here.
            command.args(["-S", scheme, "-c", "16384", "-r", "20000"]);
        };
        let mut server = bandwidth(&program, &secret, port);
        with(&mut server);
        let mut server = server.spawn().unwrap();
        let mut client = bandwidth(&program, &secret, port);
        with(&mut client);
        let client = client.arg("127.0.0.1").output().unwrap();
        assert!(server.wait().unwrap().success() && client.status.success(), "{scheme}: {client:?}");
        let told = String::from_utf8(client.stdout).unwrap();
        assert!(told.contains("60 whole, 0 chunks lost, contents checked"), "{scheme}: {told}");
    }
}

/// The client is the C program, the server this test.
#[test]
fn c_sends_to_rust() {
    const BYTES: usize = 512 << 10;
    let scratch = tempfile::tempdir().unwrap();
    let (program, secret) = (scratch.path().join("sdr_bw"), secret(scratch.path()));
    compile("examples/sdr_bw.c", &program);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = bandwidth(&program, &secret, port).arg("127.0.0.1").stdout(Stdio::piped()).spawn().unwrap();
    let mut meeting = listener.accept().unwrap().0;
    let attr = QpAttr {
        in_flight_log: 19 + 4,
        send: false,
        rate: 1_000_000_000,
        rtt: Duration::from_millis(1),
        ..QpAttr::default()
    };
    let unconnected = Unconnected::bind(attr, "127.0.0.1".parse().unwrap()).unwrap();
    let mut blob = [0; BLOB_BYTES];
    meeting.read_exact(&mut blob).unwrap();
    meeting.write_all(&unconnected.blob()).unwrap();
    let mut pair = unconnected.connect(&blob, SECRET).unwrap();
    let receive = pair.receive.as_mut().unwrap();
    let mut whole = 0_u64;
    let mut handles = VecDeque::new();
    for message in 0..60_u32 {
        while handles.len() < 16 {
            match receive.post(Buffer::zeroed(BYTES)) {
                Ok(handle) => handles.push_back(handle),
                Err(_) => break,
            }
        }
        let handle = handles.pop_front().unwrap();
        let (mut seen, mut since) = (0, now());
        while !handle.bitmap().all() && now().duration_since(since) < Duration::from_millis(300) {
            if handle.arrived() != seen {
                (seen, since) = (handle.arrived(), now());
            }
            std::thread::yield_now();
        }
        for chunk in 0..handle.chunks() {
            let byte = message.wrapping_mul(131).wrapping_add(chunk * 7 + 1) as u8;
            assert!(handle.chunk(chunk).is_none_or(|bytes| bytes.iter().all(|found| *found == byte)));
        }
        whole += u64::from(handle.bitmap().all());
        let mut closing = handle.complete();
        let completed = loop {
            match closing.poll() {
                Ok(completed) => break completed,
                Err(again) => closing = again,
            }
        };
        assert_eq!(completed.number, message);
    }
    meeting.write_all(&[whole, 0, 0].map(u64::to_ne_bytes).concat()).unwrap();
    let told = client.wait_with_output().unwrap();
    assert!(told.status.success() && whole > 0, "{told:?}");
}

#[test]
fn the_shared_library_has_every_call_and_its_soname() {
    const CALLS: [&str; 28] = [
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
        "sdr_layer_start",
        "sdr_layer_poll",
        "sdr_layer_send",
        "sdr_layer_done",
        "sdr_layer_expect",
        "sdr_layer_recv",
    ];
    let header = header();
    let library = std::fs::read(libraries().join("liblonghaul_sdr.so")).unwrap();
    let has = |name: &str| library.windows(name.len()).any(|bytes| bytes == name.as_bytes());
    for call in CALLS {
        assert!(header.contains(&format!("{call}(")) && has(call), "{call}");
    }
    assert!(has("liblonghaul_sdr.so.0"));
}

/// A prefix is taken from where the installer was called, as everywhere.
#[test]
fn the_installer_takes_a_relative_prefix() {
    let scratch = tempfile::tempdir().unwrap();
    // Nothing is built here: the libraries stand where a cargo that does nothing says.
    let bin = scratch.path().join("bin");
    let target = scratch.path().join("target");
    std::fs::create_dir_all(target.join("release")).unwrap();
    std::fs::create_dir(&bin).unwrap();
    for library in ["liblonghaul_sdr.a", "liblonghaul_sdr.so"] {
        std::fs::write(target.join("release").join(library), "").unwrap();
    }
    let cargo = format!("#!/bin/sh\necho '{{\"target_directory\":\"{}\"}}'\n", target.display());
    std::fs::write(bin.join("cargo"), cargo).unwrap();
    std::fs::set_permissions(bin.join("cargo"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut install = Command::new(folder().join("install"));
    let output = install.arg("a/b").current_dir(&scratch).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let prefix = scratch.path().join("a/b");
    let told = std::fs::read_to_string(prefix.join("lib/pkgconfig/longhaul-sdr.pc")).unwrap();
    assert!(told.starts_with(&format!("prefix={}\n", prefix.canonicalize().unwrap().display())), "{told}");
    assert!(prefix.join("include/longhaul-sdr.h").exists() && prefix.join("lib/liblonghaul_sdr.so").exists());
}
