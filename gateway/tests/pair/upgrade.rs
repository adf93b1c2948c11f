//! Gateways whose place other processes take, under load: no flow ends.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gateway::upgrade::{Announcement, Broken, Heir, NotTaken, Outcome, STAND_STILL};
use rustix::process::{Pid, Signal, kill_process};
use testbed::Site;
use testbed::hostio::{Endpoint, Limit, Mix, run_pair};

use super::resume::{complete_without_an_end, kill_amid};
use super::{PATIENCE, Pair, SCHEMES, TICK, complete, failed, wait_until};

const SITES: [Site; 2] = [Site::A, Site::B];

fn done(client: &Endpoint) -> u64 {
    client.progress().messages.load(Ordering::Relaxed)
}

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_longhaul"))
}

/// Either side in turn, and both at a time; with several threads and lanes as well.
#[test]
fn processes_follow_one_another_and_no_flow_ends() {
    for (threads, lanes, policy) in
        [([1, 1], 1, SCHEMES[1]), ([2, 2], 2, SCHEMES[0]), ([2, 3], 1, SCHEMES[1])]
    {
        let mut pair = Pair::start_otherwise(3, |plan| {
            (plan.threads, plan.lanes) = (threads, lanes);
            plan.link = "delay 2ms loss 0.5%".parse().unwrap();
            policy.clone_into(&mut plan.policy);
        });
        const MESSAGES: u64 = 5000;
        let (client, server) = pair.transfer(Limit::Messages(MESSAGES));
        for round in 0..8 {
            let before = done(&client);
            wait_until("the transfer does not go on", &|| done(&client) > before + 30);
            let site = SITES[round % 2];
            let pid = pair.testbed.pid(site);
            assert!(pair.testbed.upgrade(site, binary(), PATIENCE).unwrap(), "round {round}");
            assert_ne!(pair.testbed.pid(site), pid);
            if round % 4 != 3 {
                pair.testbed.wait_for_session(&|| false).unwrap();
            }
        }
        pair.testbed.wait_for_session(&|| false).unwrap();
        complete_without_an_end(&mut pair, (client, server), MESSAGES);
        for site in SITES {
            let status = pair.status(site);
            assert_eq!(status.session.established, status.session.resumed, "{status:?}");
        }
        pair.testbed.stop().unwrap();
    }
}

/// A deed of a process, with its name.
type Step = (&'static str, fn(Heir));

/// The steps of a process that takes over, each the last before it fails. What it is told is
/// checked where it is told anything.
const STEPS: [Step; 9] = [
    ("it goes away at once", drop),
    ("it goes away while packets are copied ahead", |mut heir| {
        heir.offer_room().unwrap().unwrap();
    }),
    ("it does not want what was copied ahead", |mut heir| {
        heir.offer_room().unwrap().unwrap();
        heir.await_copied().unwrap();
        heir.refuse("not with these packets");
    }),
    ("it goes away with the flows, in shared memory", |mut heir| {
        heir.offer_room().unwrap().unwrap();
        heir.await_copied().unwrap();
        let given = heir.receive(MOST).unwrap();
        assert!(given.parts.iter().all(|part| part.room().is_some()));
    }),
    ("its file does not fit", |mut heir| heir.refuse("not with these files")),
    ("it has no room for the flows", |mut heir| {
        assert!(matches!(heir.receive(100), Err(NotTaken::Broken(Broken::Protocol(_)))));
    }),
    ("it goes away with the flows", |mut heir| drop(heir.receive(MOST).unwrap())),
    ("the flows do not fit", |mut heir| {
        heir.receive(MOST).unwrap();
        heir.refuse("not with these flows");
    }),
    ("it says nothing more", |mut heir| {
        heir.receive(MOST).unwrap();
        std::thread::sleep(STAND_STILL * 3 / 2);
        let late = heir.conclude();
        assert!(
            matches!(late, Err(NotTaken::Broken(Broken::Gone | Broken::Late | Broken::Refused(_)))),
            "{late:?}"
        );
    }),
];

const MOST: usize = 1 << 30;

/// Sessions so far, and those that went on with flows.
/// A process that took over is killed, amid long messages: it went on retaining where the one
/// before it had.
#[test]
fn flows_outlive_a_process_that_took_over() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut pair = Pair::start_otherwise(1, |plan| {
        plan.link = "delay 5ms loss 0.5%".parse().unwrap();
        plan.retention = Some(memory.path().to_owned());
    });
    let messages = 300;
    let transfer =
        pair.transfer_otherwise(Limit::Messages(messages), |workload| workload.message = 256 << 10);
    for site in [Site::A, Site::B] {
        let before = done(&transfer.0);
        wait_until("the transfer does not go on", &|| done(&transfer.0) > before + 10);
        assert!(pair.testbed.upgrade(site, binary(), PATIENCE).unwrap());
        pair.testbed.wait_for_session(&|| false).unwrap();
        kill_amid(&mut pair, &transfer.0, site, 10);
    }
    complete(transfer, messages);
    pair.testbed.stop().unwrap();
}

fn sessions(pair: &Pair, site: Site) -> (u64, u64) {
    let session = pair.status(site).session;
    (session.established, session.resumed)
}

/// The place of the one before is free a moment later.
fn connect(path: &Path) -> Heir {
    loop {
        match Heir::connect(path) {
            Err(NotTaken::Unable(_)) => std::thread::sleep(TICK),
            other => return other.unwrap(),
        }
    }
}

/// The running gateway goes on with its flows and its session, whatever becomes of the process that
/// was to take over, and another one takes over afterwards.
#[test]
fn a_process_that_fails_to_take_over_changes_nothing() {
    let mut pair = Pair::start_otherwise(3, |plan| {
        (plan.threads, plan.dead_after) = ([2; 2], "5 s".to_owned());
        plan.link = "delay 2ms loss 0.5%".parse().unwrap();
        // Shorter than a gateway may stand still, which is nobody's silence.
        plan.limits = "idle_flow = \"1 s\"\ntarget_dead = \"1 s\"".to_owned();
    });
    let (client, server) = pair.transfer(Limit::Messages(1_000_000));
    let goes_on = || {
        let before = done(&client);
        wait_until("the transfer does not go on", &|| done(&client) > before + 30);
    };
    goes_on();
    for site in SITES {
        let path = pair.testbed.folder().join(["a.sock", "b.sock"][site as usize]);
        let sessions_before = sessions(&pair, site);
        for (what, step) in STEPS {
            let heir = connect(&path);
            assert_eq!((heir.stand().threads, heir.stand().peers.len()), (2, 1));
            // Only one at a time.
            assert!(matches!(Heir::connect(&path), Err(NotTaken::Unable(_))), "{what}");
            step(heir);
            goes_on();
        }
        drop(connect(&path));
        // Programs that are none, and files that are none.
        let before = pair.testbed.pid(site);
        assert!(!pair.testbed.upgrade(site, Path::new("/bin/false"), PATIENCE).unwrap());
        let file = pair.testbed.folder().join(["a.toml", "b.toml"][site as usize]);
        let text = std::fs::read_to_string(&file).unwrap();
        for (from, to) in
            [("threads = 2", "threads = 1"), ("rate = \"400", "rate = \"401"), ("[site]", "[sote]")]
        {
            std::fs::write(&file, text.replace(from, to)).unwrap();
            assert!(!pair.testbed.upgrade(site, binary(), PATIENCE).unwrap(), "{to}");
        }
        std::fs::write(&file, text).unwrap();
        goes_on();
        assert_eq!(pair.testbed.pid(site), before);
        assert_eq!(sessions(&pair, site), sessions_before, "the session has not gone on");
        assert!(pair.testbed.upgrade(site, binary(), PATIENCE).unwrap());
        pair.testbed.wait_for_session(&|| false).unwrap();
        goes_on();
    }
    let (client, server) = (client.stop().unwrap(), server.stop().unwrap());
    assert!(client.corrupt == 0 && server.corrupt == 0 && failed(&client) == 0, "{client}\n{server}");
    pair.complete_transfer(40);
    pair.testbed.stop().unwrap();
}

/// A gateway that no testbed knows of. It ends with this.
struct Stranger(Pid);

impl Drop for Stranger {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill_process(self.0, Signal::TERM);
    }
}

impl Stranger {
    fn is_running(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.0.as_raw_nonzero()));
        status.is_ok_and(|status| !status.contains(") Z "))
    }
}

/// While routes go elsewhere, and after: the claimant hears why.
#[test]
fn nobody_takes_over_from_a_gateway_that_is_to_end() {
    let pair = Pair::start_otherwise(1, |plan| "withdraw = \"20 s\"".clone_into(&mut plan.limits));
    let path = pair.testbed.folder().join("a.sock");
    let mut early = Heir::connect(&path).unwrap();
    let pid = Pid::from_raw(pair.testbed.pid(Site::A).cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    wait_until("it does not withdraw", &|| pair.status(Site::A).surroundings.stopping_for.is_some());
    let is_told = |why: &NotTaken| matches!(why, NotTaken::Broken(Broken::Refused(why)) if why.contains("told to stop"));
    let refused = early.receive(1 << 20).unwrap_err();
    assert!(is_told(&refused), "{refused}");
    drop(early);
    // The place is free as soon as the other connection's end is seen.
    wait_until("a later one does not hear why", &|| Heir::connect(&path).is_err_and(|why| is_told(&why)));
}

/// Environment, arguments; exit code, standard output and error.
type Upgrade<'a> = dyn Fn(&[(&str, &str)], &[&str]) -> (Option<i32>, String, String) + 'a;

/// A certificate that has expired keeps a reload by systemd from nothing, and is told. Any other
/// mistake fails it.
fn expired_is_told_and_wrong_is_refused(file: &Path, upgrade: &Upgrade<'_>) {
    const NOTHING: &str = "is this very program: nothing to do";
    let later = [("LD_PRELOAD", super::clock::CLOCK), ("FAKETIME", "+80y"), ("DONT_FAKE_MONOTONIC", "1")];
    let (code, out, err) = upgrade(&later, &["--if-replaced"]);
    assert!(code == Some(0) && out.contains(NOTHING), "{out}{err}");
    assert!(out.contains("expired at") && err.contains("expired at"), "{out}{err}");
    let (code, out, err) = upgrade(&later, &[]);
    assert!(code == Some(2) && out.is_empty() && err.contains("expired at"), "{out}{err}");
    let text = std::fs::read_to_string(file).unwrap();
    for later in [&[][..], &later] {
        std::fs::write(file, text.replace("certificate = \"", "certificate = \"not-")).unwrap();
        for arguments in [&["--if-replaced"][..], &[]] {
            let (code, out, err) = upgrade(later, arguments);
            assert!(code == Some(2) && out.is_empty() && err.contains("not-"), "{out}{err}");
        }
    }
    std::fs::write(file, text).unwrap();
}

/// As an operator does it: the command ends, and the gateway that it started goes on.
#[test]
fn the_command_starts_a_gateway_that_outlives_it() {
    let mut pair = Pair::start(SCHEMES[0], 3);
    pair.complete_transfer(20);
    let file = pair.testbed.folder().join("a.toml");
    let log = pair.testbed.folder().join("upgrade.log");
    let upgrade_at = |environment: &[(&str, &str)], arguments: &[&str]| {
        // The gateway that goes on logs there, too.
        let errors = std::fs::File::create(&log).unwrap();
        let mut command = Command::new(binary());
        command.envs(environment.iter().copied());
        let output = command.arg("upgrade").args(arguments).arg(&file).stderr(errors).output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), out, std::fs::read_to_string(&log).unwrap())
    };
    let upgrade = |arguments: &[&str]| upgrade_at(&[], arguments);
    let (code, out, err) = upgrade(&["--if-replaced"]);
    assert!(code == Some(0) && out.contains("is this very program: nothing to do"), "{out}{err}");
    let (code, out, err) = upgrade(&["--json", "--if-replaced"]);
    let told: Announcement = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!((code, told.outcome, told.taken), (Some(0), Outcome::Unchanged, None));
    let text = std::fs::read_to_string(&file).unwrap();
    expired_is_told_and_wrong_is_refused(&file, &upgrade_at);
    // Whatever takes a restart is named by its key, and no flow ends of the attempt.
    for (from, to, words) in [
        ("threads = 1", "threads = 2", "data_plane.threads is 2 in the files and 1 in the running gateway"),
        (
            "resume_for = \"",
            "threads = 2\nresume_for = \"",
            "peer.threads is 2 in the files and 1 in the running gateway",
        ),
        ("rate = \"400", "rate = \"401", "`peer.rate` is another one here: that takes a restart"),
        ("lanes = 1", "lanes = 2", "for wan.lanes: that takes a restart"),
        (
            "resume_for = \"",
            "resume_for = \"0 s\" #\"",
            "peer.resume_for is 0 s in the files, and flows would",
        ),
    ] {
        let changed = text.replace(from, to);
        assert_ne!(changed, text, "{from}");
        std::fs::write(&file, changed).unwrap();
        let told = || pair.testbed.fetch(Site::A, "/events").unwrap().matches("upgrade_failed").count();
        let before = told();
        let (code, out, err) = upgrade(&[]);
        assert!(code == Some(1) && out.is_empty(), "{to}: {out}{err}");
        assert!(err.contains(words) && err.contains("it goes on"), "{to}: {err}");
        wait_until("the refusal is no event", &|| told() > before);
        let (code, out, err) = upgrade(&["--json"]);
        let told: Announcement = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{to}: {out}{err}"));
        assert_eq!((code, told.outcome), (Some(1), Outcome::Failed), "{to}");
        assert!(told.text.contains(words), "{to}: {told:?}");
    }
    std::fs::write(&file, text).unwrap();
    let (client, server) = pair.transfer(Limit::Messages(2000));
    wait_until("the transfer does not start", &|| done(&client) > 30);
    let mut before: Option<Stranger> = None;
    for arguments in [&[][..], &["--json"]] {
        let (code, out, err) = upgrade(arguments);
        assert_eq!(code, Some(0), "{out}{err}");
        let next = match serde_json::from_str::<Announcement>(&out) {
            Ok(told) => told.taken.unwrap().process.to_string(),
            Err(_) => out.split_once(", process ").unwrap().1.split_once(',').unwrap().0.to_owned(),
        };
        let next = Stranger(Pid::from_raw(next.parse().unwrap()).unwrap());
        match before.replace(next) {
            None => pair.testbed.stop_one(Site::A).unwrap(),
            Some(before) => wait_until("the one before does not end", &|| !before.is_running()),
        }
    }
    let (client, server) = run_pair(client, server).unwrap();
    assert!(client.is_clean() && server.is_clean(), "{client}\n{server}");
    pair.complete_transfer(20);
    let last = before.unwrap();
    kill_process(last.0, Signal::TERM).unwrap();
    wait_until("the last one does not end", &|| !last.is_running());
    pair.testbed.stop().unwrap();
}

/// Prints how long a gateway stands still that has many flows, with much that waits:
/// `cargo test -p gateway --release --test pair upgrade::with_ten -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement, which takes gigabytes of memory"]
fn with_ten_thousand_flows_and_a_gibibyte() {
    let number =
        |name: &str, usual: u32| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let flows = number("LONGHAUL_UPGRADE_FLOWS", 10_000);
    let message = number("LONGHAUL_UPGRADE_MESSAGE", 110_000);
    let clear = "delay 1ms".parse().unwrap();
    let mut pair = Pair::start_otherwise(1, |plan| {
        plan.link = clear;
        plan.rate = "10 Gbit/s".to_owned();
        plan.dead_after = "60 s".to_owned();
        plan.limits = "idle_flow = \"10 min\"\ntarget_dead = \"60 s\"\nflows = 20000\n\
                       total_buffer = \"6 GiB\"\nflow_buffer = \"8 MiB\""
            .to_owned();
        SCHEMES[0].clone_into(&mut plan.policy);
    });
    let (client, server) = pair.transfer_otherwise(Limit::Messages(3), |workload| {
        (workload.qps, workload.message, workload.depth) = (flows, message, 1);
        workload.mix = Mix::WRITE;
        workload.qp.timeout = Some(Duration::from_secs(4));
    });
    wait_until("not all flows are open", &|| done(&client) > u64::from(flows) * 5 / 4);
    pair.testbed.set_link("loss 100%".parse().unwrap());
    let waiting = || {
        let status = pair.status(Site::A);
        let streams: u64 =
            status.classes.iter().map(|class| class.backlog_bytes + class.in_flight_bytes).sum();
        streams + status.buffers.bytes
    };
    let mut before = 0;
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = waiting();
        if now <= before {
            break;
        }
        before = now;
    }
    println!("{} bytes wait, {:?}", before, pair.status(Site::A).flows);
    assert!(pair.testbed.upgrade(Site::A, binary(), PATIENCE).unwrap());
    let events = pair.testbed.fetch(Site::A, "/events").unwrap();
    let events: gateway::events::Events = serde_json::from_str(&events).unwrap();
    for event in events.events.iter().filter(|event| event.kind == "upgraded") {
        println!("{}", event.text);
    }
    pair.testbed.set_link(clear);
    pair.testbed.wait_for_session(&|| false).unwrap();
    let (client, server) = run_pair(client, server).unwrap();
    println!("{client}");
    assert!(client.is_clean() && server.is_clean(), "{client}\n{server}");
    pair.testbed.stop().unwrap();
}
