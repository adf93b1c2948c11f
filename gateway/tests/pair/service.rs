//! Messages of a gateway to its service manager.

use std::os::unix::net::UnixDatagram;

use super::logs::script;
use super::*;

/// Waits for the next message.
fn hear(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 64];
    let len = manager.recv(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..len]).into()
}

/// Behind the filter of system calls, with a watchdog of a second and a half: the gateway says what
/// it does, that it is ready once, that it lives as long as it does, and that it stops.
#[test]
fn a_service_manager_hears_how_the_gateway_stands() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let commands = format!(
        "case \"$*\" in gateway*a.toml) export NOTIFY_SOCKET={} WATCHDOG_USEC=1500000;; esac\n\
         exec {} \"$@\"\n",
        socket.to_str().unwrap(),
        env!("CARGO_BIN_EXE_longhaul")
    );
    let program = script(folder.path(), &commands);
    let mut pair = Pair::start_otherwise(1, |plan| plan.program = program);
    assert_eq!(hear(&manager), "STATUS=running: site a, peer b");
    assert_eq!(hear(&manager), "READY=1");
    pair.complete_transfer(20);
    for _ in 0..5 {
        assert_eq!(hear(&manager), "WATCHDOG=1");
    }
    let signal = std::thread::spawn(move || pair.testbed.stop());
    let last = std::iter::repeat_with(|| hear(&manager)).find(|said| said != "WATCHDOG=1");
    assert_eq!(last.as_deref(), Some("STOPPING=1"));
    signal.join().unwrap().unwrap();
}

/// The service manager hears who goes on before the old process ends. The new one has the watchdog
/// of the old one, though nobody tells it.
#[test]
fn a_service_manager_hears_who_takes_over() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let commands = format!(
        "case \"$*\" in gateway*a.toml) export NOTIFY_SOCKET={};; esac\n\
         case \"$*\" in *take-over*) ;; gateway*a.toml) export WATCHDOG_USEC=1500000;; esac\n\
         exec {} \"$@\"\n",
        socket.to_str().unwrap(),
        env!("CARGO_BIN_EXE_longhaul")
    );
    let program = script(folder.path(), &commands);
    let mut pair = Pair::start_otherwise(1, |plan| plan.program.clone_from(&program));
    let next = || std::iter::repeat_with(|| hear(&manager)).find(|said| said != "WATCHDOG=1").unwrap();
    assert_eq!([next(), next()], ["STATUS=running: site a, peer b", "READY=1"]);
    for _ in 0..3 {
        assert!(pair.testbed.upgrade(Site::A, &program, PATIENCE).unwrap());
        // The old one has ended.
        assert_eq!(next(), format!("MAINPID={}", pair.testbed.pid(Site::A)));
        assert_eq!([next(), next()], ["STATUS=running: site a, peer b", "READY=1"]);
        assert_eq!(hear(&manager), "WATCHDOG=1");
    }
    pair.testbed.wait_for_session(&|| false).unwrap();
    pair.complete_transfer(20);
    drop(pair);
}

/// The address of its WAN is not on this machine, as while that boots. Whoever asks sees what is
/// missing.
#[test]
fn a_gateway_that_waits_at_its_start_answers() {
    let mut pair = Pair::start_otherwise(1, |_| {});
    pair.testbed.stop_one(Site::A).unwrap();
    let file = pair.testbed.folder().join("a.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, wan) = text.split_once("[wan]").unwrap();
    // TEST-NET-1 (RFC 5737).
    std::fs::write(&file, format!("{before}[wan]{}", wan.replacen("127.0.0.1", "192.0.2.1", 1))).unwrap();
    pair.testbed.restart(Site::A).unwrap();
    let limit = Instant::now() + PATIENCE;
    let metrics = loop {
        match pair.testbed.fetch(Site::A, "/metrics") {
            Ok(metrics) if metrics.contains("longhaul_wan_up{site=\"a\",peer=\"b\"} 0") => break metrics,
            other => assert!(Instant::now() < limit, "{other:?}"),
        }
        std::thread::sleep(TICK);
    };
    assert!(!metrics.contains("longhaul_session_rtt_seconds{"), "{metrics}");
    let events = pair.testbed.fetch(Site::A, "/events").unwrap();
    assert!(events.contains("wan_down") && events.contains("192.0.2.1"), "{events}");
    let admin = pair.testbed.admin(Site::A).to_string();
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_longhaul"))
        .args(["status", "--admin", &admin])
        .output()
        .unwrap();
    assert_eq!(status.status.code(), Some(3), "{status:?}");
    assert!(String::from_utf8_lossy(&status.stdout).contains("192.0.2.1"), "{status:?}");
    // It ends when it is told to.
    pair.testbed.stop_one(Site::A).unwrap();
}
