//! How long messages take, and how patient hosts are.

use gateway::admin::{DoctorReport, PatienceSource, Verdict};

use super::*;

#[test]
fn messages_are_timed_and_requesters_are_judged() {
    let mut pair = Pair::start_otherwise(1, |plan| {
        plan.link = "delay 5ms".parse().unwrap();
        plan.limits = "idle_flow = \"60 s\"".to_owned();
    });
    pair.complete_transfer(40);
    let timed = |pair: &Pair, name| pair.counted(Site::A, name, |_| true);
    wait_until("no message was timed", &|| timed(&pair, "longhaul_message_completion_seconds_count") > 0);
    wait_until("no packet was timed", &|| timed(&pair, "longhaul_stream_queueing_seconds_count") > 0);
    let class = pair.status(Site::A).classes.remove(0);
    let (completion, queueing) = (class.completion.unwrap(), class.queueing.unwrap());
    // A round trip is 10 ms; its bucket begins at 5 ms, since times are rounded down within it.
    assert!(completion.median >= 0.005 && completion.p99 >= completion.median, "{completion:?}");
    assert!(queueing.count > completion.count, "{queueing:?}");

    let report = || -> DoctorReport {
        serde_json::from_str(&pair.testbed.fetch(Site::A, "/doctor").unwrap()).unwrap()
    };
    wait_until("no flow is judged", &|| report().total >= 3);
    let report = report();
    assert!(report.rtt.is_some_and(|rtt| rtt >= 0.01), "{report:?}");
    // Without connection management, nothing is known but what repeats show.
    for flow in &report.flows {
        let is_known = flow.source == PatienceSource::Repeats;
        assert!(is_known == (flow.repeats > 0) && is_known == (flow.verdict != Verdict::Unknown), "{flow:?}");
    }
    let admin = pair.testbed.admin(Site::A).to_string();
    let shown = longhaul(&["doctor", "--admin", &admin]);
    assert!(shown.starts_with("link: RTT ") && shown.contains(&host_ip(Site::A, 1).to_string()), "{shown}");
    pair.testbed.stop().unwrap();
}
