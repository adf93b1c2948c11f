//! Privileges of a running gateway.

use super::*;

/// A value of a task's status, a set of capabilities in hexadecimal digits.
fn set(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
}

/// The number of the task's filters of system calls.
fn filters(status: &str) -> u64 {
    set(status, "Seccomp_filters")
}

#[test]
fn no_thread_keeps_what_it_does_not_need() {
    const DAC_READ_SEARCH: u64 = 1 << 2;
    const NET_ADMIN: u64 = 1 << 12;
    let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let needed = set(&own, "CapPrm") & (DAC_READ_SEARCH | NET_ADMIN);
    let may_shrink_bounds = set(&own, "CapEff") & 1 << 8 != 0;
    let mut pair = Pair::start(SCHEMES[0], 1);
    pair.complete_transfer(20);
    for site in [Site::A, Site::B] {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", pair.testbed.pid(site))).unwrap();
        let mut names = Vec::new();
        for task in tasks {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let name = status.lines().next().unwrap().trim_start_matches("Name:").trim().to_owned();
            let kept = if name == "log" { 0 } else { needed };
            assert_eq!((set(&status, "CapPrm"), set(&status, "CapEff")), (kept, kept), "{name}");
            assert_eq!((set(&status, "CapInh"), set(&status, "CapAmb")), (0, 0), "{name}");
            assert!(set(&status, "CapBnd") & !needed == 0 || !may_shrink_bounds, "{name}");
            assert_eq!(set(&status, "NoNewPrivs"), 1, "{name}");
            assert_eq!(filters(&status), filters(&own) + 2, "{name}");
            names.push(name);
        }
        for name in ["longhaul", "log", "data-plane-0", "chooser"] {
            assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
        }
    }
    // It still reads its policy anew.
    pair.testbed.write_policy("[[class]]\nname = \"default\"\nscheme = \"none\"\n").unwrap();
    assert!(pair.reload(Site::A).adopted);
    pair.testbed.stop().unwrap();
}

/// Whoever has to do without the filter can.
#[test]
fn system_calls_are_not_filtered_where_the_file_says_so() {
    let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let mut pair = Pair::start_otherwise(1, |plan| {
        plan.limits += "\n[security]\nfilter_system_calls = false";
    });
    pair.complete_transfer(20);
    let status = std::fs::read_to_string(format!("/proc/{}/status", pair.testbed.pid(Site::A))).unwrap();
    assert_eq!(filters(&status), filters(&own));
    pair.testbed.stop().unwrap();
}
