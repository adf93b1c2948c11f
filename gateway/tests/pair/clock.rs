//! Somebody sets the machine's clock while gateways run, by hours or by decades.
//!
//! By libfaketime, which the clock that nobody sets is left alone by, as settimeofday leaves it.

use std::fs;
use std::path::Path;

use super::logs::script;
use super::*;

/// The library of Debian's package `libfaketime`.
pub(super) const CLOCK: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// Returns what has a gateway that is started after it follow the clock of `time`.
pub(super) fn follow(time: &Path) -> String {
    assert!(Path::new(CLOCK).exists(), "libfaketime is installed, as test-all does");
    let time = time.to_str().unwrap();
    format!(
        "export FAKETIME_TIMESTAMP_FILE={time} FAKETIME_CACHE_DURATION=1 DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1\n\
         export LD_PRELOAD={CLOCK}"
    )
}

const SITES: [Site; 2] = [Site::A, Site::B];
const HOUR: i64 = 3600;
const YEAR: i64 = 31_556_952;

/// How far a year is from now, in seconds.
fn until(year: i64) -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    (year - 1970) * YEAR - now.as_secs() as i64
}

/// A pair whose gateways follow the clock of `time`, in a folder.
fn start(folder: &Path, time: &Path, transfers: u8) -> Pair {
    let binary = env!("CARGO_BIN_EXE_longhaul");
    let gateways = format!(
        "case \"$*\" in\ngateway*)\n{}\nexec {binary} \"$@\";;\nesac\nexec {binary} \"$@\"\n",
        follow(time)
    );
    let program = script(folder, &gateways);
    Pair::start_otherwise(transfers, |plan| plan.program = program)
}

#[test]
fn a_clock_that_is_set_ends_no_flow_and_what_is_wrong_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let time = folder.path().join("time");
    let set = |ahead: i64| fs::write(&time, format!("{ahead:+}")).unwrap();
    set(0);
    let started = Instant::now();
    let mut pair = start(folder.path(), &time, 2);
    let (client, server) = pair.transfer(Limit::Messages(1_000_000));
    let done = |client: &Endpoint| client.progress().messages.load(Ordering::Relaxed);
    let events = |pair: &Pair, site| -> Vec<String> {
        let answer: gateway::events::Events =
            serde_json::from_str(&pair.testbed.fetch(site, "/events").unwrap()).unwrap();
        let of_clock = answer.events.into_iter().filter(|event| event.kind == "clock_set");
        of_clock.map(|event| event.text).collect()
    };
    for (sets, ahead) in (1..).step_by(2).zip([2 * HOUR, -2 * HOUR, until(1971), until(2100)]) {
        set(ahead);
        for site in SITES {
            wait_until("nobody notices", &|| noticed(&pair, site) == sets);
            // What the gateway shows goes on, and so do policies and what is revoked.
            let answer = pair.reload(site);
            assert!(answer.adopted, "{ahead}: {answer:?}");
            let is_judged = answer.problems.contains("valid from") || answer.problems.contains("expired at");
            assert_eq!(is_judged, ahead.abs() > YEAR, "{ahead}: {answer:?}");
            assert!(pair.status(site).is_up(), "{ahead}");
        }
        let before = done(&client);
        wait_until("the transfer does not go on", &|| done(&client) > before + 100);
        if ahead.abs() > YEAR {
            gets_no_session(&pair);
        }
        set(0);
        SITES.iter().for_each(|site| wait_until("nobody notices", &|| noticed(&pair, *site) == sets + 1));
        pair.testbed.wait_for_session(&|| false).unwrap();
    }
    let (client, server) = (client.stop().unwrap(), server.stop().unwrap());
    assert!(client.corrupt == 0 && server.corrupt == 0, "{client}\n{server}");
    for site in SITES {
        let told = events(&pair, site);
        let most = 2 + started.elapsed().as_secs() / 60;
        assert!(!told.is_empty() && told.len() as u64 <= most, "once a minute: {told:?}");
        assert!(told[0].contains("was set forward by 2") && told[0].contains("timedatectl"), "{told:?}");
        assert_eq!(pair.status(site).flows.failed, 0);
    }
    pair.complete_transfer(40);
    pair.testbed.stop().unwrap();
}

/// Nobody waits for the right time to turn a stolen key away.
#[test]
fn a_certificate_is_revoked_while_the_clock_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let time = folder.path().join("time");
    let set = |ahead: i64| fs::write(&time, format!("{ahead:+}")).unwrap();
    set(0);
    let mut pair = start(folder.path(), &time, 1);
    pair.make_keys("b");
    let stolen = pair.renewed(Site::B);
    pair.change_session();
    set(until(2100));
    SITES.iter().for_each(|site| wait_until("nobody notices", &|| noticed(&pair, *site) == 1));
    let file = pair.testbed.folder().join("a.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("[peer]\n", &format!("[peer]\nrevoked = [\"{stolen}\"]\n"))).unwrap();
    let answer = pair.reload(Site::A);
    assert!(answer.adopted && answer.problems.contains("expired at"), "{answer:?}");
    assert_eq!(answer.identity, ["peer.revoked: 0 -> 1 certificates"], "{answer:?}");
    pair.wait_for("the session is not lost", |status| !status.is_up());
    set(0);
    SITES.iter().for_each(|site| wait_until("nobody notices", &|| noticed(&pair, *site) == 2));
    wait_until("who is revoked is not refused", &|| {
        pair.status(Site::A).session.last_error.is_some_and(|why| why.to_lowercase().contains("revoked"))
    });
    pair.make_keys("b");
    pair.renewed(Site::B);
    pair.testbed.wait_for_session(&|| false).unwrap();
    pair.testbed.stop().unwrap();
}

/// A machine without a battery for its clock begins in another year, and its network tells the time
/// later.
#[test]
fn a_gateway_starts_before_the_clock_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let time = folder.path().join("time");
    let set = |ahead: i64| fs::write(&time, format!("{ahead:+}")).unwrap();
    let binary = env!("CARGO_BIN_EXE_longhaul");
    let only_a = format!("case \"$*\" in\ngateway*a.toml*)\n{}\nesac\nexec {binary} \"$@\"\n", follow(&time));
    let program = script(folder.path(), &only_a);
    set(0);
    let mut pair = Pair::start_otherwise(1, |plan| plan.program = program);
    pair.testbed.stop_one(Site::A).unwrap();
    set(until(1971));
    pair.testbed.restart(Site::A).unwrap();
    wait_until("nobody says that it is the clock", &|| {
        let status: Result<Status, _> = pair.testbed.status(Site::A);
        status.is_ok_and(|status| status.session.last_error.is_some_and(|error| error.contains("clock")))
    });
    let admin = pair.testbed.admin(Site::A).to_string();
    let shown = longhaul_that_ends_with(3, &["status", "--admin", &admin]);
    assert!(shown.contains("last error: ") && shown.contains("clock"), "{shown}");
    longhaul_that_ends_with(3, &["healthy", "--admin", &admin]);
    let log = fs::read_to_string(pair.testbed.folder().join("a.log")).unwrap();
    assert!(log.contains("set this machine's clock"), "{log}");
    set(0);
    pair.testbed.wait_for_session(&|| false).unwrap();
    pair.complete_transfer(20);
    pair.testbed.stop().unwrap();
}

fn noticed(pair: &Pair, site: Site) -> u64 {
    pair.counted(site, "longhaul_clock_sets_total", |_| true)
}

/// A session that is lost comes to no other one, and whoever looks learns that it is the clock.
fn gets_no_session(pair: &Pair) {
    pair.testbed.block_control(true);
    let is_lost = |site| !pair.status(site).is_up();
    wait_until("the session is not lost", &|| is_lost(Site::A) && is_lost(Site::B));
    pair.testbed.block_control(false);
    wait_until("nobody says that it is the clock", &|| {
        let error = pair.status(Site::A).session.last_error;
        error.is_some_and(|error| error.contains("clock"))
    });
    assert!(is_lost(Site::A) && is_lost(Site::B));
}
