//! The program as a shell sees it: exit status, and what goes where.

#![expect(clippy::unwrap_used, reason = "test code, also where no function is a test")]

#[path = "cli/json.rs"]
mod json;
#[path = "common/schemas.rs"]
mod schemas;
#[path = "cli/terminal.rs"]
mod terminal;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use config::LanMode;
use gateway::run::{RunError, lock};
use rustix::process::{Pid, Signal, kill_process};
use schemas::Schemas;
use serde_json::Value;

fn longhaul(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(arguments).current_dir(folder).env_remove("LONGHAUL_LOG").output().unwrap()
}

fn parts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn usage() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = parts(&longhaul(folder.path(), &["--help"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("Usage: longhaul <COMMAND>"), "{out}");
    for wrong in [
        &[][..],
        &["gatewya"],
        &["check"],
        &["keys", "--dir", "d"],
        &["status", "--admin", "nowhere"],
        &["status", "--admin", "nowhere.sock"],
        &["reload", "now"],
        &["init", "--rate", "1 Gbit/s", "--site", "a,10.9.0.1,10.0.0.0/24,eth1"],
        &["record", "--force"],
    ] {
        let (code, out, err) = parts(&longhaul(folder.path(), wrong));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{wrong:?}");
        assert!(!err.is_empty(), "{wrong:?}");
    }
}

/// The commands that the help shows, but for itself.
fn commands(folder: &Path) -> BTreeSet<String> {
    let (_, help, _) = parts(&longhaul(folder, &["--help"]));
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let (list, _) = list.split_once("\n\n").unwrap();
    let names = list.lines().filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

/// Whoever reads of a command finds it in the help, and whoever finds one there can read of it.
#[test]
fn the_help_has_the_commands_of_the_documentation() {
    let folder = tempfile::tempdir().unwrap();
    let listed = commands(folder.path());
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let pages = ["install", "operate", "reference", "troubleshoot", "configure", "security"];
    let text: String =
        pages.map(|page| fs::read_to_string(docs.join(page).with_extension("md")).unwrap()).concat();
    let after = text
        .split("longhaul ")
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| !c.is_ascii_lowercase()).next());
    let told: BTreeSet<_> = after.collect();
    for name in &listed {
        assert!(told.contains(name.as_str()), "{name} stands in --help, and on no page");
    }
    for name in ["generate", "upgrade", "healthy", "bundle", "doctor", "top"] {
        assert!(listed.contains(name), "{name} stands on a page, and not in --help");
    }
}

#[test]
fn a_log_level_that_is_none_silences_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["check", "x"]).current_dir(folder.path()).env("LONGHAUL_LOG", "verbose");
    let (code, _, err) = parts(&command.output().unwrap());
    assert_eq!(code, Some(2));
    assert!(err.contains("\"verbose\" is no level"), "{err}");
}

/// Errors of a gateway that cannot start have the form of its log, and what is no form is refused.
#[test]
fn a_gateway_says_in_the_chosen_form_why_it_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let run = |form: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
        command.args(["gateway", "--config", "nowhere.toml"]).current_dir(folder.path());
        command.env_remove("LONGHAUL_LOG").env("LONGHAUL_LOG_FORMAT", form);
        let (code, _, err) = parts(&command.output().unwrap());
        assert_eq!(code, Some(2), "{err}");
        err
    };
    let json: Value = serde_json::from_str(&run("json")).unwrap();
    assert_eq!(json["level"], "ERROR");
    assert!(json["message"].as_str().unwrap().contains("nowhere.toml"), "{json}");
    let journal = run("journal");
    assert!(
        journal.contains("nowhere.toml") && journal.lines().all(|line| line.starts_with("<3>")),
        "{journal}"
    );
    assert!(run("xml").contains("LONGHAUL_LOG_FORMAT=xml"));
}

/// `longhaul plan ... | head` ends without a word, and not with success.
#[test]
fn a_reader_that_has_seen_enough_is_told_nothing() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["plan", "--rate", "1 Gbit/s", "--rtt", "25 ms", "--drop", "0.1%"]).stdout(writer);
    let (code, _, err) = parts(&command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap());
    assert_eq!((code, err.as_str()), (Some(1), ""));
}

/// A limit of the length of files (RLIMIT_FSIZE) is an error with a name, and no signal that ends
/// the process.
#[test]
fn files_that_may_not_be_so_long_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &str| {
        let mut shell = Command::new("sh");
        let script = format!("ulimit -f 0; exec \"$0\" {arguments}");
        let shell = shell.args(["-c", &script, env!("CARGO_BIN_EXE_longhaul")]).current_dir(folder.path());
        // The test's own log is a pipe.
        parts(&shell.output().unwrap())
    };
    for arguments in [
        "keys --dir keys a b",
        "init --dir pair --rate '1 Gbit/s' --site a,10.9.0.1,10.0.0.0/24,eth1 --site b,10.9.0.2,10.0.1.0/24,eth1",
        "generate out",
        "bundle bundle.tar.gz",
    ] {
        let (code, _, err) = run(arguments);
        assert_eq!(code, Some(1), "{arguments}: {err}");
        assert!(err.contains("File too large"), "{arguments}: {err}");
    }
}

#[test]
fn a_recording_is_not_overwritten_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    fs::write(&path, "hours").unwrap();
    let (code, _, err) = parts(&longhaul(folder.path(), &["record", "--admin", "127.0.0.1:1", "trace"]));
    assert_eq!(code, Some(2));
    assert!(err.contains("--force replaces it"), "{err}");
    assert_eq!(fs::read_to_string(path).unwrap(), "hours");
    // Nor does one that never began stand in the way of the next.
    let (code, _, err) = parts(&longhaul(folder.path(), &["record", "--admin", "127.0.0.1:1", "other"]));
    assert_eq!(code, Some(1), "{err}");
    assert!(!folder.path().join("other").exists());
}

/// The gateway is asked where its file says that it listens, and the answer is in the archive.
#[test]
fn a_bundle_asks_where_the_gateway_file_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let sites = ["a,10.9.0.1,10.0.0.0/24,eth1", "b,10.9.0.2,10.0.1.0/24,eth1"];
    let init = ["init", "--rate", "1 Gbit/s", "--site", sites[0], "--site", sites[1]];
    assert_eq!(parts(&longhaul(path, &init)).0, Some(0));
    // A port that nobody else gets, and at which somebody says what no gateway does.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let text = fs::read_to_string(path.join("a.toml")).unwrap();
    assert!(text.contains("127.0.0.1:9464"), "{text}");
    fs::write(path.join("a.toml"), text.replace("127.0.0.1:9464", &address)).unwrap();
    let (told, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let head = BufReader::new(client.try_clone().unwrap()).lines().map_while(Result::ok);
            told.send(head.take_while(|line| !line.is_empty()).next()).unwrap();
            client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").unwrap();
        }
    });
    let (code, out, err) = parts(&longhaul(path, &["bundle", "--config", "a.toml", "b.tgz"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("status.json\n") && out.contains("gateway.json\n"), "{out}");
    let asked: Vec<_> = asked.try_iter().flatten().collect();
    assert!(asked.iter().any(|line| line == "GET /status HTTP/1.1"), "{asked:?}");
}

/// The archive is written all the same, and whoever asked for it learns what it lacks.
#[test]
fn a_bundle_without_the_file_that_was_named_says_so_and_ends_in_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let nobody = ["bundle", "--admin", "127.0.0.1:1", "--config", "gatewya.toml", "b.tgz"];
    let (code, out, err) = parts(&longhaul(path, &nobody));
    assert_eq!(code, Some(2), "{err}");
    let why = "gatewya.toml: No such file or directory (os error 2)";
    assert_eq!(err, format!("longhaul: b.tgz lacks the gateway file: {why}\n"));
    assert!(out.contains(&format!("  gateway.json: left empty: {why}\n")), "{out}");
    assert!(out.contains("  status.json: left empty: nothing answers at 127.0.0.1:1: "), "{out}");
    assert!(path.join("b.tgz").exists());
    // One that is no TOML is what somebody may want help with.
    fs::write(path.join("bad.toml"), "[site\n").unwrap();
    let (code, out, _) =
        parts(&longhaul(path, &["bundle", "--admin", "127.0.0.1:1", "--config", "bad.toml", "c.tgz"]));
    assert_eq!(code, Some(2));
    assert!(out.contains("  gateway.json: left empty: bad.toml: no TOML; check.txt says where\n"), "{out}");
}

/// Whatever root's umask is, others never read a key, and the group of the package's folder reads
/// what its gateway needs. Nobody else reads the authority's key.
///
/// "Configuration wizard creates configuration file with open permissions"
/// (streamr-dev/network#171, yggdrasil-network/yggdrasil-go#1253), and the reverse
/// (deviceWISE/device-cloud-python#139).
#[test]
fn files_of_a_pair_are_for_those_who_need_them() {
    for umask in ["000", "022", "027", "077"] {
        for (folder_mode, key_mode) in [(0o2750, 0o640), (0o750, 0o600), (0o2775, 0o600), (0o2770, 0o600)] {
            let folder = tempfile::tempdir().unwrap();
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(folder_mode)).unwrap();
            let mut shell = Command::new("sh");
            let sites = "--site a,10.9.0.1,10.0.0.0/24,eth1 --site b,10.9.0.2,10.0.1.0/24,eth1";
            let script = format!("umask {umask}; exec \"$0\" init --rate '1 Gbit/s' {sites}");
            shell.args(["-c", &script, env!("CARGO_BIN_EXE_longhaul")]).current_dir(folder.path());
            let (code, _, err) = parts(&shell.output().unwrap());
            assert_eq!(code, Some(0), "{err}");
            let mode =
                |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o7777;
            let modes = ["a.key", "ca.key"].map(mode);
            assert_eq!(modes, [key_mode, 0o600], "{folder_mode:o}, umask {umask}");
            for name in ["a.crt", "ca.crt", "a.toml"] {
                let is_readable = mode(name) & 0o040 != 0;
                let is_shared = folder_mode == 0o2750;
                assert!(is_readable || !is_shared, "{name}: {folder_mode:o}, umask {umask}");
            }
        }
    }
}

#[test]
fn files_that_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("good.toml"), "[[class]]\nname = \"default\"\nscheme = \"sr\"\n").unwrap();
    fs::write(path.join("bad.toml"), "[[class]]\nname = \"default\"\nshceme = \"sr\"\n").unwrap();
    let good = "good.toml: ok, policy with default\n  default  sr: each loss costs a round trip, timeout 2 RTT, no overhead\n";
    let (code, out, err) = parts(&longhaul(path, &["check", "good.toml"]));
    assert_eq!((code, out.as_str(), err.as_str()), (Some(0), good, ""));
    let (code, out, err) = parts(&longhaul(path, &["check", "good.toml", "bad.toml", "none.toml"]));
    assert_eq!((code, out.as_str()), (Some(2), good));
    for piece in ["bad.toml:3:1", "did you mean `scheme`?", "cannot read none.toml"] {
        assert!(err.contains(piece), "no {piece} in\n{err}");
    }
    let (code, _, err) = parts(&longhaul(path, &["gateway", "--config", "bad.toml"]));
    assert_eq!(code, Some(2));
    assert!(err.contains("did you mean `scheme`?"), "{err}");
    let (code, _, err) = parts(&longhaul(path, &["gateway", "--config", "good.toml"]));
    assert_eq!(
        (code, err.as_str()),
        (Some(2), "good.toml is a policy file; the gateway needs a gateway file\n")
    );
}

/// Each by itself is in order. What the second contradicts is told with the first one's name.
#[test]
fn files_of_a_pair_are_held_against_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let init = |dir: &str| {
        let sites = ["a,10.9.0.1,10.0.0.0/24,lo", "b,10.9.0.2,10.0.1.0/24,lo"];
        let args = ["init", "--dir", dir, "--rate", "1 Gbit/s", "--site", sites[0], "--site", sites[1]];
        assert_eq!(parts(&longhaul(path, &args)).0, Some(0));
    };
    ["one", "other"].into_iter().for_each(init);
    let together = |second: &str| {
        let (code, _, err) = parts(&longhaul(path, &["check", "one/a.toml", second]));
        (code, err)
    };
    assert_eq!(together("one/b.toml"), (Some(0), String::new()));
    let (code, err) = together("other/b.toml");
    assert!(code == Some(2) && err.contains("is not of the authority that"), "{code:?} {err}");
    let text = fs::read_to_string(path.join("one/b.toml")).unwrap();
    fs::write(path.join("one/b.toml"), text.replace("\"10.9.0.1:", "\"10.9.0.7:")).unwrap();
    assert_eq!(parts(&longhaul(path, &["check", "one/b.toml"])).0, Some(0));
    let (code, err) = together("one/b.toml");
    assert!(
        code == Some(2) && err.contains("`peer.address` is not `wan.listen` in one/a.toml"),
        "{code:?} {err}"
    );
}

#[test]
fn a_policy_is_outlined_class_by_class() {
    let folder = tempfile::tempdir().unwrap();
    let policy = "[[class]]\nname = \"bulk\"\nmatch = { size = { at_least = \"1 MiB\" } }\nscheme = \"mds\"\nk = 32\nm = 8\ninterleave = 2\n\
                  [[class]]\nname = \"urgent\"\nmatch = { qp = [17] }\nscheme = \"xor\"\nk = 4\nm = 2\npriority = 7\n\
                  [[class]]\nname = \"default\"\nscheme = \"auto\"\nmax_overhead = 0.25\n";
    fs::write(folder.path().join("policy.toml"), policy).unwrap();
    let (code, out, err) = parts(&longhaul(folder.path(), &["check", "policy.toml"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let expected = "\
policy.toml: ok, policy with bulk, urgent, default
  bulk     mds: k = 32, m = 8 interleaved by 2, overhead 25 %, survives a burst of 16 packets
  urgent   xor: k = 4, m = 2, overhead 50 %, survives a burst of 2 packets, priority 7
  default  auto: the best of sr, xor, mds, hybrid for the 99.9th percentile, overhead 25 % at most, apart for messages up to 64 KiB, 4 MiB, and longer ones
";
    assert_eq!(out, expected, "got:\n{out}");

    // And what each would do on a link.
    let link = ["--rate", "10 Gbit/s", "--rtt", "25 ms", "--drop", "0.1%"];
    let (code, out, err) = parts(&longhaul(folder.path(), &[&["check", "policy.toml"], &link[..]].concat()));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let outlook = out.strip_prefix(expected).unwrap();
    assert!(outlook.starts_with("On a link of 10 Gbit/s, RTT 25.0 ms, loss 0.10 % "), "{outlook}");
    let sizes_of = |class: &str| -> Vec<String> {
        let lines = outlook.lines().skip_while(|line| !line.starts_with(&format!("  {class}  99.9 %")));
        let lines = lines.skip(1).take_while(|line| line.starts_with("    "));
        lines
            .map(|line| line.split("  ").find(|word| !word.trim().is_empty()).unwrap().trim().to_owned())
            .collect()
    };
    assert_eq!(sizes_of("bulk"), ["1 MiB", "16 MiB", "1 GiB"], "{outlook}");
    assert_eq!(sizes_of("default"), ["4 KiB", "64 KiB", "1 MiB", "16 MiB", "1 GiB"], "{outlook}");
    assert_eq!(
        (outlook.matches("mds(32,8)x2").count(), outlook.matches("xor(4,2)").count()),
        (3, 5),
        "{outlook}"
    );
    // A way back of 2 % holds the reports, and a thinner one does not.
    for (back, warned) in [("200 Mbit/s", false), ("20 Mbit/s", true)] {
        let args = [&["check", "policy.toml", "--back", back], &link[..]].concat();
        let (code, out, err) = parts(&longhaul(folder.path(), &args));
        assert_eq!((code, err.as_str()), (Some(0), ""));
        let warning = "warning: reports take up to 200 Mbit/s of the way back, which carries 20 Mbit/s.";
        assert_eq!(out.contains(warning), warned, "{back}: {out}");
    }
    // By itself it says nothing of the way there.
    for (further, missing) in [(&link[2..], "--rate"), (&["--back", "20 Mbit/s"], "--rate, --rtt, --drop")] {
        let (code, _, err) = parts(&longhaul(folder.path(), &[&["check", "policy.toml"], further].concat()));
        let wanting =
            format!("longhaul: give {missing} of the link, or --admin with a gateway that knows it\n");
        assert_eq!((code, err), (Some(2), wanting));
    }
}

#[test]
fn keys_and_no_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let (code, out, err) = parts(&longhaul(path, &["keys", "--dir", "keys", "a", "b"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("keys/a.crt") && out.contains("keys/b.key"), "{out}");
    assert!(path.join("keys/ca.crt").exists());
    let (code, _, err) = parts(&longhaul(path, &["keys", "--dir", "keys", "a"]));
    assert_eq!(code, Some(1));
    assert!(err.starts_with("longhaul: keys/a.crt is there") && err.contains("--force replaces"), "{err}");
    let (code, _, err) = parts(&longhaul(path, &["keys", "--dir", "other", "Site_A"]));
    assert_eq!(code, Some(2), "{err}");
    assert!(!path.join("other").exists());
    // An admin listener has a DNS name, which no site has.
    let (code, _, err) = parts(&longhaul(path, &["keys", "--dir", "admin", "gateway-a.example"]));
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("is no site name") && err.contains("--listener"), "{err}");
    let keys = ["keys", "--dir", "admin", "--listener", "gateway-a.example"];
    let (code, out, err) = parts(&longhaul(path, &keys));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("admin/gateway-a.example.crt"), "{out}");
    // Port 1 (tcpmux) has nobody listening.
    for command in ["status", "reload"] {
        let (code, out, err) = parts(&longhaul(path, &[command, "--admin", "127.0.0.1:1"]));
        assert_eq!((code, out.as_str()), (Some(1), ""));
        assert!(err.starts_with("longhaul: nothing answers at 127.0.0.1:1: "), "{err}");
    }
}

/// One with fewer could not answer a scrape, or would not get as far as that.
#[test]
fn a_gateway_with_too_few_descriptors_says_which_limit_and_what_it_needs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    assert!(longhaul(path, &["keys", "--dir", ".", "a", "b"]).status.success());
    let text = "[site]\nname = \"a\"\n[lan]\nmode = \"socket\"\nlisten = \"127.0.0.1:4791\"\n\
        remote = [\"10.0.1.0/24\"]\n[lan.hosts]\n\"10.0.0.1\" = \"127.0.0.1:5001\"\n\
        [wan]\nlisten = \"127.0.0.1:4800\"\n\
        [peer]\nname = \"b\"\naddress = \"127.0.0.1:4810\"\nrate = \"1 Gbit/s\"\n\
        [identity]\ncertificate = \"a.crt\"\nkey = \"a.key\"\nauthority = \"ca.crt\"\n\
        [admin]\nlisten = \"127.0.0.1:9464\"\n";
    fs::write(path.join("a.toml"), text).unwrap();
    for limit in ["8", "16", "40"] {
        let mut command = Command::new("sh");
        let start =
            format!("ulimit -n {limit}; exec {} gateway --config a.toml", env!("CARGO_BIN_EXE_longhaul"));
        command.args(["-c", &start]).current_dir(path).env_remove("LONGHAUL_LOG");
        let (code, _, err) = parts(&command.output().unwrap());
        assert_eq!(code, Some(1), "{limit}: {err}");
        let says = |words: &str| err.contains(words);
        assert!(
            says(&format!("may have {limit} file")) && says("RLIMIT_NOFILE") && says("ulimit -n "),
            "{err}"
        );
    }
}

/// Processes of a test, which end with it.
struct Ends(Vec<Pid>);

impl Drop for Ends {
    fn drop(&mut self) {
        for pid in &self.0 {
            // It may have ended.
            let _ = kill_process(*pid, Signal::KILL);
        }
    }
}

/// Returns how many TCP sockets a process has open.
fn tcp_sockets(pid: Pid) -> usize {
    let folder = format!("/proc/{}", pid.as_raw_nonzero());
    let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("{folder}/net/{table}")).unwrap());
    let inodes: Vec<_> = tables
        .iter()
        .flat_map(|text| text.lines().skip(1))
        .filter_map(|line| line.split_whitespace().nth(9))
        .collect();
    let descriptors = fs::read_dir(format!("{folder}/fd")).unwrap();
    let links = descriptors.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let is_tcp = |link: &std::path::PathBuf| {
        let inode = link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.contains(&inode))
    };
    links.filter(is_tcp).count()
}

/// A gateway file without a TCP listener.
fn socket_alone(address: &str) -> String {
    format!(
        "[site]\nname = \"a\"\n[lan]\nmode = \"socket\"\nlisten = \"{address}:4791\"\n\
         remote = [\"10.0.1.0/24\"]\n[lan.hosts]\n\"10.0.0.1\" = \"{address}:5001\"\n\
         [wan]\nlisten = \"{address}:14791\"\n\
         [peer]\nname = \"b\"\naddress = \"{address}:14891\"\nrate = \"1 Gbit/s\"\n\
         [identity]\ncertificate = \"a.crt\"\nkey = \"a.key\"\nauthority = \"ca.crt\"\n\
         [admin]\nsocket = \"a.sock\"\n"
    )
}

/// Every command finds it there, an upgrade among them, and nothing is open to the network.
#[test]
fn a_gateway_may_have_its_socket_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    assert!(longhaul(path, &["keys", "--dir", ".", "a", "b"]).status.success());
    // An address of this process's own, so that no port is another's.
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = format!("127.79.{high}.{low}");
    fs::write(path.join("a.toml"), socket_alone(&address)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["gateway", "--config", "a.toml"]).current_dir(path);
    let log = fs::File::create(path.join("log")).unwrap();
    let mut gateway = command.stderr(log.try_clone().unwrap()).stdout(log).spawn().unwrap();
    let mut ends = Ends(vec![Pid::from_child(&gateway)]);
    let ask = |arguments: &[&str]| parts(&longhaul(path, &[arguments, &["--admin", "./a.sock"]].concat()));
    let no_session = |(code, out, _): &(_, String, _)| *code == Some(3) && out.contains("site a");
    let began = std::time::Instant::now();
    while !no_session(&ask(&["status"])) {
        let log = fs::read_to_string(path.join("log")).unwrap();
        assert!(began.elapsed().as_secs() < 60 && gateway.try_wait().unwrap().is_none(), "{log}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(tcp_sockets(ends.0[0]), 0);
    for command in ["flows", "doctor", "events", "reload"] {
        assert_eq!(ask(&[command]).0, Some(0), "{command}");
    }
    let (code, out, err) = parts(&longhaul(path, &["bundle", "--config", "a.toml", "b.tgz"]));
    assert_eq!((code, out.contains("left empty")), (Some(0), false), "{out}{err}");
    // It asks the gateway, or another program would have the ports.
    let (code, _, err) = parts(&longhaul(path, &["check", "--live", "a.toml"]));
    assert!(code == Some(0) && !err.contains("has the port"), "{err}");

    let mut upgrade = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    upgrade
        .args(["upgrade", "--json", "a.toml"])
        .current_dir(path)
        .stderr(fs::File::create(path.join("log2")).unwrap());
    let out = String::from_utf8(upgrade.output().unwrap().stdout).unwrap();
    let pid = out.split("process ").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
    let pid = Pid::from_raw(
        pid.unwrap_or_else(|| panic!("{out}: {}", fs::read_to_string(path.join("log2")).unwrap())),
    );
    ends.0.extend(pid);
    assert_eq!(Schemas::generate().hold("upgrade", &out)["outcome"], "upgraded");
    assert!(gateway.wait().unwrap().success());
    ends.0.remove(0);
    assert!(no_session(&ask(&["status"])));
    assert_eq!(tcp_sockets(ends.0[0]), 0);
}

/// Memory that outlives the process is a file. Without it the gateway works all the same.
#[test]
fn a_gateway_that_may_make_no_long_file_says_so_and_runs() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path();
    assert!(longhaul(path, &["keys", "--dir", ".", "a", "b"]).status.success());
    let [.., high, low] = std::process::id().to_be_bytes();
    let text = socket_alone(&format!("127.80.{high}.{low}")) + "[retention]\ndirectory = \".\"\n";
    fs::write(path.join("a.toml"), text).unwrap();
    let mut shell = Command::new("sh");
    let script = "ulimit -f 0; exec \"$0\" gateway --config a.toml";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_longhaul")]).current_dir(path).stderr(Stdio::piped());
    let mut gateway = shell.spawn().unwrap();
    let mut log = BufReader::new(gateway.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(log.any(|line| line.contains("(RLIMIT_FSIZE)") && line.contains("LimitFSIZE=")), "it ended");
    assert!(log.any(|line| line.contains("gateway started")), "it ended");
    assert!(!path.join("retained-a-b-0").exists());
    let pid = Pid::from_child(&gateway);
    kill_process(pid, Signal::TERM).unwrap();
    assert!(log.all(|line| !line.contains("ERROR")));
    assert!(gateway.wait().unwrap().success());
}

/// Stops a process once it waits for something, and has it go on.
fn interrupt(pid: Pid) {
    let wait_for = |state: &str| {
        let is = |stat: &str| stat.rsplit(") ").next().unwrap().starts_with(state);
        while !is(&fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap()) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    wait_for("S");
    kill_process(pid, Signal::STOP).unwrap();
    wait_for("T");
    kill_process(pid, Signal::CONT).unwrap();
}

/// A process that takes another's place is stopped and goes on (signal(7)): that is no answer.
#[test]
fn a_take_over_outlives_signals() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    assert!(longhaul(path, &["keys", "--dir", ".", "a", "b"]).status.success());
    fs::write(path.join("a.toml"), socket_alone("127.0.0.1")).unwrap();
    let listener = UnixListener::bind(path.join("a.sock")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["gateway", "--config", "a.toml", "--take-over"]).current_dir(path);
    let heir = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_child(&heir);
    let mut ends = Ends(vec![pid]);
    let (mut stream, _) = listener.accept().unwrap();
    let mut head = BufReader::new(stream.try_clone().unwrap());
    assert!(head.by_ref().lines().any(|line| line.unwrap().is_empty()));
    interrupt(pid);
    stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").unwrap();
    let hello = read_message(&mut head);
    assert!(hello.contains("\"protocol\""), "{hello}");
    interrupt(pid);
    let words = b"not in the middle of a test";
    stream.write_all(&[&[11][..], &(words.len() as u64).to_le_bytes(), words].concat()).unwrap();
    let (code, _, err) = parts(&heir.wait_with_output().unwrap());
    ends.0.clear();
    assert!(code == Some(1) && err.contains("not in the middle of a test"), "{code:?} {err}");
}

/// The text of a message from one process to the other.
fn read_message(from: &mut impl Read) -> String {
    let (mut kind, mut len) = ([0], [0; 8]);
    from.read_exact(&mut kind).unwrap();
    from.read_exact(&mut len).unwrap();
    let mut text = String::new();
    from.take(u64::from_le_bytes(len)).read_to_string(&mut text).unwrap();
    text
}

/// Errors of files say which one, and what to do; none is found out after an hour's work.
#[test]
fn files_that_are_in_the_way_or_missing_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("file"), "").unwrap();
    fs::write(path.join("lost.trace"), "longhaul-trace 1\n0 7\n").unwrap();
    fs::write(path.join("latin.trace"), b"longhaul-trace 1\n# f\xfcr\n5 1\n").unwrap();
    let csv = ["simulate", "--messages", "1000000000", "--csv", "none/out.csv"];
    for (arguments, wanted, told) in [
        (&["keys", "--dir", "file", "a"][..], 1, "file is there and is no folder: name another one"),
        (&["generate", "file"], 1, "file/man: Not a directory (os error 20)"),
        (&csv, 2, "none/out.csv: there is no folder none"),
        (
            &["simulate", "--trace", "lost.trace"],
            2,
            "lost.trace: all of its 7 packets are lost: nothing would ever arrive",
        ),
        (
            &["simulate", "--trace", "latin.trace"],
            2,
            "latin.trace: byte 4 of line 2 is 0xfc, which is no UTF-8: save it as UTF-8",
        ),
    ] {
        let (code, _, err) = parts(&longhaul(path, arguments));
        assert_eq!((code, err), (Some(wanted), format!("longhaul: {told}\n")), "{arguments:?}");
    }
}

/// Every command that help shows has a manual page and stands in the completions; what the package
/// takes is there under the name that it takes it by.
#[test]
fn manual_pages_and_completions_are_those_of_the_commands() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let (code, _, err) = parts(&longhaul(path, &["generate", "packaging/generated"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let commands = commands(path);
    assert!(commands.len() >= 12, "{commands:?}");
    let read = |name: &str| fs::read_to_string(path.join("packaging/generated").join(name)).unwrap();
    assert!(read("man/longhaul.1").contains("LONGHAUL_LOG"));
    for name in &commands {
        assert!(read(&format!("man/longhaul-{name}.1")).contains(name), "{name}");
        for script in ["bash/longhaul.bash", "zsh/_longhaul", "fish/longhaul.fish"] {
            assert!(read(script).contains(name), "{name} in {script}");
        }
    }
    let manifest = include_str!("../Cargo.toml");
    let assets = manifest.lines().filter_map(|line| line.trim().strip_prefix("[\"../packaging/generated/"));
    let assets: Vec<&str> = assets.filter_map(|line| line.split('"').next()).collect();
    // Documents are not of the program's making.
    let assets: Vec<&str> = assets.into_iter().filter(|asset| !asset.starts_with("documents/")).collect();
    assert_eq!(assets.len(), 5, "{assets:?}");
    for asset in assets.iter().filter(|asset| !asset.contains('*')) {
        assert!(!read(asset).is_empty(), "{asset}");
    }
}

/// Ctrl-C in a demo: the rows that there are fit a terminal, and it is no success.
#[test]
fn a_demo_that_is_interrupted_shows_what_it_has_measured() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["demo", "--quick"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut demo = command.spawn().unwrap();
    // Elsewhere than on a terminal, there is a line for each transfer that has ended.
    let mut progress = BufReader::new(demo.stderr.take().unwrap()).lines();
    assert!(progress.any(|line| line.unwrap().starts_with(" 1/")), "no transfer ended");
    let pid = Pid::from_raw(demo.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let errors = std::thread::spawn(move || progress.map_while(Result::ok).collect::<Vec<_>>());
    let output = demo.wait_with_output().unwrap();
    let (code, out, _) = parts(&output);
    let errors = errors.join().unwrap();
    assert!(code != Some(0) && errors.iter().any(|line| line.contains("interrupted")), "{code:?} {errors:?}");
    assert!(out.lines().any(|line| line.contains("plain RC") && line.ends_with("right")), "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

#[test]
fn an_interface_has_one_gateway() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/gateway-a.toml");
    let mut lan = config::Gateway::parse(&file, &fs::read_to_string(&file).unwrap()).unwrap().lan;
    lan.mode = LanMode::Packet { interface: format!("lan{}", std::process::id()) };
    let first = lock(&lan).unwrap();
    assert!(first.is_some());
    let refused = lock(&lan).unwrap_err();
    assert!(matches!(&refused, RunError::Taken(interface) if interface.starts_with("lan")), "{refused}");
    drop(first);
    assert!(lock(&lan).unwrap().is_some());
}
