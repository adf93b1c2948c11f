//! Sessions that are lost and go on: no flow ends of it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gateway::admin::Status;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use testbed::Site;
use testbed::hostio::{Endpoint, Limit};

use super::{Pair, SCHEMES, complete, failed, is_empty, wait_until};

/// How long an outage lasts: four times `peer.dead_after` of these pairs, or as many seconds as
/// `LONGHAUL_OUTAGE_SECONDS` says.
fn outage() -> Duration {
    let told = std::env::var("LONGHAUL_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(told.unwrap_or(4))
}

const SITES: [Site; 2] = [Site::A, Site::B];

fn done(client: &Endpoint) -> u64 {
    client.progress().messages.load(Ordering::Relaxed)
}

fn is_lost(status: &Status) -> bool {
    status.session.state == "lost"
}

/// The link is cut under load, again and again: the transfer ends well.
#[test]
fn flows_wait_for_a_link_that_is_cut() {
    let clear = "delay 2ms loss 0.5%".parse().unwrap();
    for (threads, policy) in [(2, SCHEMES[0]), (1, SCHEMES[1])] {
        let mut pair = Pair::start_otherwise(2, |plan| {
            (plan.threads, plan.link) = ([threads; 2], clear);
            policy.clone_into(&mut plan.policy);
        });
        const MESSAGES: u64 = 5000;
        let (client, server) = pair.transfer(Limit::Messages(MESSAGES));
        for cut in 1..=2 {
            let before = done(&client);
            wait_until("the transfer does not go on", &|| done(&client) > before + 30);
            pair.testbed.set_link("loss 100%".parse().unwrap());
            std::thread::sleep(outage());
            pair.wait_for("the session is not lost", is_lost);
            // The requesters wait. Their targets may have answered all that came.
            wait_until("no flow waits", &|| pair.status(Site::A).session.waiting > 0);
            for site in SITES {
                let admin = pair.testbed.admin(site).to_string();
                // Without a session.
                let shown = super::longhaul_that_ends_with(3, &["status", "--admin", &admin]);
                assert!(shown.contains("session  lost for ") && shown.contains(" flows wait"), "{shown}");
            }
            pair.testbed.set_link(clear);
            pair.testbed.wait_for_session(&|| false).unwrap();
            for site in SITES {
                // A busy machine may lose one more.
                let session = pair.status(site).session;
                assert!(session.resumed >= cut && session.established == session.resumed + 1, "{session:?}");
            }
        }
        complete_without_an_end(&mut pair, (client, server), MESSAGES);
        pair.testbed.stop().unwrap();
    }
}

/// Each side's log has one warning of a link that was cut, however long it was.
#[test]
fn a_link_that_is_cut_is_warned_of_once() {
    let clear = "delay 2ms loss 0.5%".parse().unwrap();
    let mut pair = Pair::start_otherwise(1, |plan| plan.link = clear);
    let (client, server) = pair.transfer(Limit::Messages(1_000_000));
    wait_until("the transfer does not start", &|| done(&client) > 30);
    let logs = ["a.log", "b.log"].map(|name| pair.testbed.folder().join(name));
    let read = || logs.each_ref().map(|path| std::fs::read_to_string(path).unwrap());
    let before = read().map(|log| log.len());
    pair.testbed.set_link("loss 100%".parse().unwrap());
    pair.wait_for("the session is not lost", is_lost);
    std::thread::sleep(outage());
    pair.testbed.set_link(clear);
    pair.testbed.wait_for_session(&|| false).unwrap();
    for (log, before) in read().iter().zip(before) {
        let log = log.get(before..).unwrap();
        let warnings: Vec<_> = log.lines().filter(|line| line.contains("WARN")).collect();
        assert!(warnings.len() == 1 && warnings[0].contains("session lost; flows wait"), "{log}");
    }
    let (client, server) = (client.stop().unwrap(), server.stop().unwrap());
    assert!(client.corrupt == 0 && server.corrupt == 0 && failed(&client) == 0, "{client}\n{server}");
    pair.testbed.stop().unwrap();
}

/// Only the control connection is cut: bulk data go on, by the old keys, and then by new ones.
#[test]
fn bulk_goes_on_while_control_is_cut_off() {
    let mut pair = Pair::start_otherwise(2, |plan| {
        (plan.threads, plan.link) = ([2; 2], "delay 2ms loss 0.5%".parse().unwrap());
        // A busy machine is not to be taken for a cut link.
        plan.dead_after = "2 s".to_owned();
    });
    let (client, server) = pair.transfer(Limit::Messages(1_000_000));
    wait_until("the transfer does not start", &|| done(&client) > 30);
    pair.testbed.block_control(true);
    pair.wait_for("the session is not lost", is_lost);
    std::thread::sleep(outage());
    let before = done(&client);
    wait_until("bulk data do not go on", &|| done(&client) > before + 300);
    for site in SITES {
        let status = pair.status(site);
        assert!(is_lost(&status) && status.session.waiting == 0, "{status:?}");
    }
    pair.testbed.block_control(false);
    pair.testbed.wait_for_session(&|| false).unwrap();
    let before = done(&client);
    wait_until("bulk data do not go on under new keys", &|| done(&client) > before + 300);
    for site in SITES {
        let session = pair.status(site).session;
        assert!(session.resumed >= 1 && session.established == session.resumed + 1, "{session:?}");
    }
    let (client, server) = (client.stop().unwrap(), server.stop().unwrap());
    assert!(client.corrupt == 0 && server.corrupt == 0 && failed(&client) == 0, "{client}\n{server}");
    pair.complete_transfer(40);
    pair.testbed.stop().unwrap();
}

/// Beyond `peer.resume_for` flows end. The target's program learns of it at once, and the
/// requester's NIC meets silence, as without gateways.
#[test]
fn flows_end_when_they_have_waited_for_long_enough() {
    let clear = "delay 2ms loss 0.5%".parse().unwrap();
    let mut pair = Pair::start_otherwise(2, |plan| {
        plan.link = clear;
        plan.resume_for = "500 ms".to_owned();
    });
    let (client, server) = pair.transfer(Limit::Messages(1_000_000));
    wait_until("the transfer does not start", &|| done(&client) > 30);
    pair.testbed.set_link("loss 100%".parse().unwrap());
    pair.wait_for("the session does not end", |status| status.session.state == "connecting");
    wait_until("the target's program is left waiting", &|| {
        server.progress().errors.load(Ordering::Relaxed) >= 3
    });
    let (client, server) = (client.stop().unwrap(), server.stop().unwrap());
    assert!(client.corrupt == 0 && server.corrupt == 0, "{client}\n{server}");
    pair.testbed.set_link(clear);
    pair.testbed.wait_for_session(&|| false).unwrap();
    assert_eq!(pair.status(Site::A).session.resumed, 0);
    pair.complete_transfer(40);
    pair.testbed.stop().unwrap();
}

/// Kills a gateway under a transfer once so many messages more are done, and starts it again.
pub(super) fn kill_amid(pair: &mut Pair, client: &Endpoint, site: Site, messages: u64) {
    let before = done(client);
    wait_until("the transfer does not go on", &|| done(client) > before + messages);
    assert!(client.is_running(), "over too soon");
    // A gateway writes down what it would tell a restarted peer about ten times a second.
    std::thread::sleep(Duration::from_millis(300));
    pair.testbed.kill(site).unwrap();
    pair.testbed.restart(site).unwrap();
    pair.testbed.wait_for_session(&|| false).unwrap();
}

/// Either gateway is killed, time after time. Requesters have what their targets have not, since
/// every message fits a packet, and no program sees an error.
#[test]
fn flows_outlive_gateways_that_are_killed() {
    let mut pair = Pair::start_otherwise(2, |plan| plan.threads = [2; 2]);
    let messages = 3000;
    let transfer = pair.transfer_otherwise(Limit::Messages(messages), |workload| workload.message = 1000);
    for site in [Site::B, Site::A, Site::B] {
        kill_amid(&mut pair, &transfer.0, site, 30);
    }
    complete(transfer, messages);
    pair.complete_transfer(40);
    pair.wait_for("something is left", is_empty);
    pair.testbed.stop().unwrap();
}

/// The same with messages of many packets, which requesters are acknowledged in parts: what they
/// will not send again stands in memory that outlives the process.
#[test]
fn long_messages_outlive_gateways_that_are_killed() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let clear = "delay 5ms loss 0.5%".parse().unwrap();
    let mut pair = Pair::start_otherwise(2, |plan| {
        (plan.threads, plan.link) = ([2; 2], clear);
        plan.retention = Some(memory.path().to_owned());
    });
    let messages = 600;
    let transfer =
        pair.transfer_otherwise(Limit::Messages(messages), |workload| workload.message = 256 << 10);
    for site in [Site::B, Site::A, Site::B, Site::A] {
        kill_amid(&mut pair, &transfer.0, site, 10);
    }
    complete(transfer, messages);
    pair.complete_transfer(40);
    pair.wait_for("something is left", is_empty);
    let carried = |site| pair.counted(site, "longhaul_retention_carried_total", |_| true);
    println!("sent again from memory: {} at a, {} at b", carried(Site::A), carried(Site::B));
    let mut restored = 0;
    for site in SITES {
        let survival = pair.status(site).surroundings.survival;
        assert_eq!((survival.retention.as_str(), survival.why.as_deref()), ("on", None), "{survival:?}");
        assert!(survival.unrestored == 0 && survival.limit > 16 << 20, "{survival:?}");
        assert_eq!(pair.counted(site, "longhaul_retention_off", |_| true), 0);
        let events = pair.testbed.fetch(site, "/events").unwrap();
        assert_eq!(events.contains(" go on after the end of a process: "), survival.restored > 0, "{events}");
        restored += survival.restored;
    }
    assert!(restored > 0);
    pair.testbed.stop().unwrap();
}

/// A gateway is killed at any moment of a transfer, or both are, again and again.
///
/// No program sees an error, and contents are right. `LONGHAUL_SEED` and `LONGHAUL_KILLS` choose
/// which kills, and how many.
#[test]
fn flows_outlive_gateways_that_are_killed_whenever() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("LONGHAUL_SEED").unwrap_or_else(rand::random);
    println!("LONGHAUL_SEED={seed}");
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut pair = Pair::start_otherwise(2, |plan| {
        (plan.threads, plan.link) = ([2; 2], "delay 5ms loss 0.5%".parse().unwrap());
        plan.retention = Some(memory.path().to_owned());
    });
    let unbounded = Limit::Messages(u32::MAX.into());
    let (client, server) = pair.transfer_otherwise(unbounded, |workload| workload.message = 60_000);
    let (mut kills, wanted) = (0, number("LONGHAUL_KILLS").unwrap_or(4));
    while kills < wanted {
        let before = done(&client);
        let stuck = format!("LONGHAUL_SEED={seed}: nothing goes on after {kills} kills");
        wait_until(&stuck, &|| done(&client) > before || !client.is_running());
        assert!(client.is_running(), "LONGHAUL_SEED={seed}: an end after {kills} kills");
        std::thread::sleep(Duration::from_micros(random.random_range(0..400_000)));
        let victims = match random.random_range(0..5) {
            0 => &SITES[..],
            1 | 2 => &SITES[..1],
            _ => &SITES[1..],
        };
        victims.iter().for_each(|site| pair.testbed.kill(*site).unwrap());
        victims.iter().for_each(|site| pair.testbed.restart(*site).unwrap());
        pair.testbed.wait_for_session(&|| false).unwrap();
        kills += victims.len() as u64;
    }
    let before = done(&client);
    wait_until("nothing goes on", &|| done(&client) > before + 30);
    let (client, server) = (client.stop().unwrap(), server.stop().unwrap());
    println!("{kills} kills\n{client}\n{server}");
    assert!(client.corrupt == 0 && server.corrupt == 0, "LONGHAUL_SEED={seed}: {client}\n{server}");
    assert_eq!((failed(&client), failed(&server)), (0, 0), "LONGHAUL_SEED={seed}: {client}\n{server}");
    pair.testbed.stop().unwrap();
}

/// Processes before have ended while they read a file, so the next one does not read it.
#[test]
fn a_file_that_ends_its_readers_ends_no_further_start() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut pair = Pair::start_otherwise(2, |plan| plan.retention = Some(memory.path().to_owned()));
    pair.complete_transfer(40);
    pair.testbed.kill(Site::A).unwrap();
    let path = memory.path().join("retained-a-b-0");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&3u32.to_ne_bytes(), 24).unwrap();
    pair.testbed.restart(Site::A).unwrap();
    pair.testbed.wait_for_session(&|| false).unwrap();
    pair.complete_transfer(40);
    assert!(memory.path().join("retained-a-b-0.unreadable").exists());
    assert_eq!(pair.status(Site::A).surroundings.survival.retention, "on");
    pair.testbed.stop().unwrap();
}

/// Garbage of the right length is no process's: it is counted, and told of once.
#[test]
fn what_no_process_retained_is_told_of() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let commands = format!("exec {} \"$@\" 2>> {}\n", env!("CARGO_BIN_EXE_longhaul"), log.display());
    let program = super::logs::script(folder.path(), &commands);
    let mut pair = Pair::start_otherwise(2, |plan| {
        plan.program = program;
        plan.retention = Some(memory.path().to_owned());
    });
    let forgotten = |pair: &Pair, reason: &str| {
        let label = format!("reason=\"{reason}\"");
        pair.counted(Site::A, "longhaul_retention_forgotten_total", |labels| labels.contains(&label))
    };
    pair.complete_transfer(40);
    let all = pair.counted(Site::A, "longhaul_retention_forgotten_total", |_| true);
    assert_eq!(all, 0, "a new file is in order");
    let path = memory.path().join("retained-a-b-0");
    let config = pair.testbed.folder().join("a.toml");
    let resize = || {
        let text = fs::read_to_string(&config).unwrap().replace("size = \"32 MiB\"", "size = \"16 MiB\"");
        fs::write(&config, text).unwrap();
    };
    for (round, (reason, words)) in [
        ("foreign", "it begins with"),
        ("damaged", "requests that are not whole: 1"),
        (
            "cut",
            "lan.mtu, limits.total_buffer, retention.size, data_plane.threads or peer.threads was changed",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        pair.testbed.kill(Site::A).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        match reason {
            "foreign" => file.write_all_at(&[0x5a; 1 << 16], 0).unwrap(),
            "damaged" => file.write_all_at(&[0x5a; 512], 64).unwrap(),
            _ => resize(),
        }
        pair.testbed.restart(Site::A).unwrap();
        pair.testbed.wait_for_session(&|| false).unwrap();
        assert_eq!(forgotten(&pair, reason), 1, "{reason}");
        let told = fs::read_to_string(&log).unwrap();
        assert_eq!(told.matches("is forgotten: flows that need it").count(), round + 1, "{told}");
        assert!(told.contains(words) && told.contains("expected"), "{told}");
        let warnings = told.lines().filter(|line| line.contains("WARN") && line.contains("retained-a-b-0"));
        assert_eq!(warnings.count(), round + 1, "each file once: {told}");
        assert_eq!(pair.status(Site::A).surroundings.survival.retention, "on");
    }
    pair.complete_transfer(40);
    pair.testbed.stop().unwrap();
}

#[test]
fn a_gateway_says_why_there_is_no_session() {
    let mut pair = Pair::start(SCHEMES[0], 1);
    pair.testbed.kill(Site::B).unwrap();
    wait_until("nothing is said of the peer that does not answer", &|| {
        let error = pair.status(Site::A).session.last_error;
        error.is_some_and(|error| error.starts_with("no session: "))
    });
    let metrics = pair.testbed.fetch(Site::A, "/metrics").unwrap();
    let refused = |line: &&str| line.starts_with("longhaul_sessions_refused_total{") && !line.ends_with(" 0");
    assert!(metrics.lines().any(|line| refused(&line)), "{metrics}");
}

/// Completes a transfer through something that ends no flow, and another one after it, which were
/// the only ones. Nothing is left of them.
pub(super) fn complete_without_an_end(pair: &mut Pair, transfer: (Endpoint, Endpoint), messages: u64) {
    complete(transfer, messages);
    pair.complete_transfer(40);
    // A status may be a tenth of a second old.
    pair.wait_for("something is left", is_empty);
    for site in SITES {
        let status = pair.status(site);
        assert_eq!((status.flows.opened, status.flows.failed), (6, 0), "{status:?}");
    }
}
