//! The two-site lab: unmodified RDMA programs on real kernel verbs, over real `tc netem`, in a
//! virtual machine.
//!
//! The scripts are `netem-tests/lab/`'s; each prints what it found and says by its exit status
//! whether it was good.

#![expect(clippy::expect_used, reason = "a test that cannot start fails")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Runs a script of the lab in a machine of its own, its output on ours.
fn boot(script: &str, seconds: u32, variables: &[(&str, &str)], out: &Path) -> bool {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../netem-tests/lab");
    Command::new(lab.join("boot.sh"))
        .arg(script)
        .arg(seconds.to_string())
        .env("LAB_LONGHAUL", env!("CARGO_BIN_EXE_longhaul"))
        .env("LAB_OUT", out)
        .envs(variables.iter().copied())
        .status()
        .expect("netem-tests/lab/boot.sh starts")
        .success()
}

/// Without the virtual machine's programs there is no lab: a failure in continuous integration, a
/// note elsewhere.
fn has_lab() -> bool {
    has_lab_with(&[])
}

/// The same, for scripts that want further programs.
fn has_lab_with(programs: &[&'static str]) -> bool {
    let found = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|folder| folder.join(program).exists())
    };
    let mut missing: Vec<_> = [
        "qemu-system-x86_64",
        "busybox",
        "cpio",
        "ib_write_bw",
        "ibv_rc_pingpong",
        "rping",
        "tcpdump",
        "python3",
    ]
    .into_iter()
    .chain(programs.iter().copied())
    .filter(|program| !found(program))
    .collect();
    if !Path::new("/usr/lib/python3/dist-packages/pyverbs").exists() {
        missing.push("python3-pyverbs");
    }
    if missing.is_empty() {
        return true;
    }
    let strict = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!strict, "the lab needs {missing:?}; test-all installs them");
    println!("skipped: the lab needs {missing:?}; test-all installs them");
    false
}

/// One machine at a time: they would share two cores, and what they print would mix.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn out(name: &str) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&out).expect("a folder for the lab's results");
    out
}

/// Every program ends well with either scheme, and both gateways end empty. A sample of sizes,
/// queue-pair counts, losses and path MTUs; all of them, and plain routing beside them, take half
/// an hour: `LAB_LONGHAUL=target/release/longhaul netem-tests/lab/boot.sh matrix.sh 3600`.
#[test]
fn unmodified_programs_cross_the_lossy_link() {
    if has_lab() {
        let out = out("lab-matrix");
        let variables =
            [("LAB_ROWS", "short"), ("LAB_SCHEMES", "sr mds:32:8"), ("LAB_CELLS", "1:1500 3:4200")];
        let good = boot("matrix.sh", 2400, &variables, &out);
        assert!(good, "see above; results in {}", out.display());
    }
}

/// Programs end well through the gateways with losses, and those that fail do so with the same
/// completion statuses as by plain routing without losses. These are the short ones;
/// `netem-tests/lab/programs-table` runs all of them, each by plain routing as well.
#[test]
fn programs_see_through_the_gateways_what_they_see_without() {
    if has_lab() {
        let out = out("lab-programs");
        let variables = [
            ("LAB_GROUPS", "pingpong cm errors ipv6"),
            ("LAB_SCHEMES", "plain sr"),
            ("LAB_PLAIN", "errors"),
            // Its sender at times ends before Soft-RoCE has sent what it posted.
            ("LAB_EXCEPT", "mckey"),
        ];
        assert!(boot("programs.sh", 2400, &variables, &out), "see above; results in {}", out.display());
    }
}

/// A link that is cut for longer than a session lives ends what is under way as it would without
/// gateways, and nothing after; a target that is gone, too.
#[test]
fn programs_give_up_by_themselves_when_the_link_is_cut() {
    if has_lab() {
        let out = out("lab-faults");
        let variables = [
            ("LAB_GROUPS", "faults"),
            ("LAB_SCHEMES", "sr"),
            ("LAB_ONLY", "killed_write|cut_1s_send|cut_long_write"),
        ];
        assert!(boot("programs.sh", 900, &variables, &out), "see above; results in {}", out.display());
    }
}

/// Kernels that do RDMA themselves: a disk by `nvme-rdma`, read and written with checksums, and a
/// tree of files by NFS, copied there and back. The short ones;
/// `netem-tests/lab/programs-table nvme nfs` runs all of them, by plain routing as well.
#[test]
fn disks_and_files_of_the_other_site_are_used_without_an_error() {
    if has_lab_with(&["nvme", "fio", "mount.nfs", "rpc.nfsd", "rpcbind"]) {
        let out = out("lab-storage");
        let variables = [
            ("LAB_GROUPS", "nvme nfs"),
            ("LAB_SCHEMES", "sr"),
            ("LAB_ONLY", "nvme.sh 4k|nfs.sh 4.2"),
            ("LAB_SECONDS", "20"),
        ];
        assert!(boot("programs.sh", 900, &variables, &out), "see above; results in {}", out.display());
    }
}

/// Flow labels chosen per end: all is done and right, and no requester is told more than its own
/// target acknowledged. The queue pairs wait half a second for an answer, as UCX's do for one, so
/// that a busy machine makes few of them repeat what is being answered.
#[test]
fn partners_that_are_hard_to_tell_are_told_apart() {
    identity("labels", "labels:12 labels:12:5 labels:64 labels:64:5");
}

/// As above, for queue pairs that are connected again with the same numbers and first PSN.
#[test]
#[ignore = "to be run by name until busy machines have passed it: docs/nics.md, Open ends"]
fn connections_begun_anew_are_told_apart() {
    identity("reconnect", "reconnect:500");
}

fn identity(name: &str, parts: &str) {
    if has_lab() {
        let out = out(&format!("lab-{name}"));
        let variables = [("LAB_ACK_TIMEOUT", "17"), ("LAB_PARTS", parts)];
        assert!(
            boot("identity.sh", 900, &variables, &out),
            "see above; captures in {}",
            out.join("judge").display()
        );
    }
}

/// With `completion = "local"` programs work as ever, and see WRITEs and SENDs complete before a
/// round trip is over, but neither READs nor atomics.
#[test]
#[ignore = "takes minutes: `--ignored` runs the whole lab"]
fn a_local_completion_does_not_wait_for_the_link() {
    if has_lab() {
        let out = out("lab-local");
        assert!(boot("local.sh", 600, &[], &out), "see above; logs in {}", out.display());
    }
}

/// Packets that the gateways put on either LAN carry the right ICRC, as another program reckons it,
/// and nothing else is there.
#[test]
fn every_packet_on_the_lans_has_a_right_icrc() {
    if has_lab() {
        let out = out("lab-wire");
        assert!(boot("wire.sh", 600, &[], &out), "see above; captures in {}", out.display());
        let captures = ["sr", "mds"]
            .iter()
            .flat_map(|scheme| [0, 1].map(|side| out.join(format!("v{side}-{scheme}.pcap"))));
        let checked = Command::new("python3")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../netem-tests/lab/icrc.py"))
            .args(captures)
            .status()
            .expect("python3 starts");
        assert!(checked.success(), "see above; captures in {}", out.display());
    }
}

/// Programs go on where a gateway is killed and started again, in the midst of long messages, too.
/// Under one program, with time to resume; `netem-tests/lab/boot.sh kill.sh 900` has three, and
/// none.
#[test]
fn programs_go_on_when_a_gateway_is_killed() {
    if has_lab() {
        let out = out("lab-kill");
        assert!(
            boot("kill.sh", 900, &[("LAB_KILLED", "send"), ("LAB_WAITS", "60")], &out),
            "see above; logs in {}",
            out.display()
        );
    }
}

/// One of two gateways under FRR is killed at the requesters' site, and started again: programs go
/// on. It is the one that speaks for the hosts.
///
/// Open: a LAN interface that goes down, a machine that is cut off, and all of it at the targets'
/// site (docs/adr/0024-several-gateways.md, "What remains"). `LAB_DEEDS` of `members.sh` has each.
/// Two at both sites at once are too much for two emulated processors; `tests/frr.rs` has all of it
/// with other hosts.
#[test]
#[ignore = "takes minutes: `--ignored` runs the whole lab"]
fn programs_go_on_when_one_of_two_gateways_is_gone() {
    if has_lab_with(&["vtysh"]) {
        let out = out("lab-members");
        let variables = [
            ("LAB_TWO", "a"),
            ("LAB_DEEDS", "kill:a"),
            ("LAB_PROGRAMS", "write send"),
            ("LAB_TIMEOUT", "20"),
        ];
        assert!(boot("members.sh", 900, &variables, &out), "see above; logs in {}", out.display());
    }
}

/// The kernel's table of neighbours is full before the gateways start, and whoever fills it goes
/// on: the gateways find each other, and their hosts.
#[test]
#[ignore = "takes minutes: `--ignored` runs the whole lab"]
fn a_full_table_of_neighbours_starves_nobody() {
    if has_lab() {
        let out = out("lab-neighbours");
        assert!(boot("neighbours.sh", 600, &[], &out), "see above; logs in {}", out.display());
    }
}

/// In a VRF, too, what hosts send crosses by the gateways and not beside them.
#[test]
#[ignore = "takes a minute: `--ignored` runs the whole lab"]
fn a_lan_interface_in_a_vrf_is_sealed_like_another() {
    if has_lab() {
        let out = out("lab-vrf");
        assert!(boot("vrf.sh", 600, &[], &out), "see above; logs in {}", out.display());
    }
}

/// A link that puts packets out of order and loses none is not taken for a lossy one, and next to
/// nothing is sent again.
#[test]
#[ignore = "takes minutes: `--ignored` runs the whole lab"]
fn reordering_is_not_taken_for_loss() {
    if has_lab() {
        let out = out("lab-reorder");
        assert!(
            boot("reorder.sh", 600, &[("LAB_SECONDS", "10")], &out),
            "see above; logs in {}",
            out.display()
        );
    }
}

/// SDR programs on Soft-RoCE: every layer makes all messages whole.
///
/// The link loses packets, in bursts too, and puts them out of order.
/// C and Rust talk to each other.
///
/// Runs if `LAB_SDR` names `sdr_bw`, built with the feature `verbs`, as test-all does.
#[test]
fn sdr_programs_run_on_devices() {
    if std::env::var_os("LAB_SDR").is_none() {
        println!("skipped: LAB_SDR names no program");
    } else if has_lab() {
        let out = out("lab-sdr");
        assert!(boot("sdr.sh", 600, &[("LAB_MESSAGES", "16")], &out), "see above; logs in {}", out.display());
    }
}

/// While a program runs the link loses ever more, in bursts, and moves away: what is measured is
/// true, `auto` follows, and the program notices nothing.
#[test]
#[ignore = "takes minutes: `--ignored` runs the whole lab"]
fn the_choice_follows_a_link_that_changes() {
    if has_lab() {
        let out = out("lab-auto");
        assert!(boot("auto.sh", 900, &[], &out), "see above; logs in {}", out.display());
    }
}
