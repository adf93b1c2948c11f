//! A way back that carries less than the 2 % of a full way there which reports want.

use super::*;

/// The way there, and a way back that holds all reports.
const THERE: &str = "delay 10ms rate 80mbit limit 400";
/// A two-hundredth of that, with a queue of 50 ms.
const BACK: &str = "delay 10ms rate 400kbit limit 2500b";
const MEASURED: Duration = Duration::from_secs(3);

/// Returns how many bytes a second complete, and the share that the way back dropped meanwhile.
fn measure(pair: &Pair, client: &Endpoint) -> (f64, f64) {
    let seen = || {
        let back = pair.testbed.link_stats().b_to_a.link;
        let bytes = client.progress().bytes.load(Ordering::Relaxed);
        (Instant::now(), bytes as f64, back.queue_full as f64, back.submitted as f64)
    };
    let before = seen();
    std::thread::sleep(MEASURED);
    let after = seen();
    let goodput = (after.1 - before.1) / (after.0 - before.0).as_secs_f64();
    (goodput, (after.2 - before.2) / (after.3 - before.3))
}

/// The gateway that reports says that it thins them, and so does `check --live` of its file.
#[test]
fn a_thin_way_back_leaves_the_way_there_full() {
    let [there, back] = [THERE, BACK].map(|link| link.parse().unwrap());
    let mut pair = Pair::start_otherwise(1, |plan| {
        (plan.congestion, plan.link, plan.rate) = ("adaptive", there, "80 Mbit/s".to_owned());
        SCHEMES[0].clone_into(&mut plan.policy);
    });
    let (client, server) = pair.transfer_otherwise(Limit::Messages(1_000_000), |workload| {
        (workload.mix, workload.message, workload.depth) = (Mix::WRITE, 128 << 10, 8);
    });
    let reports = |pair: &Pair| pair.status(Site::B).path.and_then(|path| path.reports_bits);
    let warning = "the way to the peer carries fewer reports than the peer's packets ask for";
    let file = pair.testbed.folder().join("b.toml");
    let check = || longhaul(&["check", "--live", "--json", file.to_str().unwrap()]);
    wait_until("nothing crosses", &|| client.progress().messages.load(Ordering::Relaxed) > 100);
    let (wide, _) = measure(&pair, &client);
    pair.testbed.set_lane(0, there, back);
    wait_until("reports are not thinned", &|| reports(&pair).is_some());
    // What has queued up leaves.
    std::thread::sleep(MEASURED);
    let counted = pair.counted(Site::B, "longhaul_wan_reports_thinned_bytes_per_second", |_| true);
    assert!((1..50_000).contains(&counted), "{counted}");
    let shown = longhaul(&["status", "--admin", &pair.testbed.admin(Site::B).to_string()]);
    assert!(shown.contains("reports to the peer are thinned to"), "{shown}");
    assert!(check().contains(warning), "{}", check());
    let (thin, dropped) = measure(&pair, &client);
    println!("{:.1} of {:.1} Mbit/s, {dropped:.3} dropped on the way back", thin * 8e-6, wide * 8e-6);
    assert!(thin > 0.6 * wide && dropped < 0.3);

    let admin = pair.testbed.admin(Site::A).to_string();
    let plan = longhaul(&["plan", "--admin", &admin, "--back", "400 kbit/s"]);
    assert!(plan.contains("warning: reports take up to 1.60 Mbit/s of the way back"), "{plan}");
    let ends = [client, server].map(|end| end.stop().unwrap());
    assert!(ends.iter().all(|report| report.corrupt == 0), "{ends:?}");
    pair.testbed.stop().unwrap();
}
