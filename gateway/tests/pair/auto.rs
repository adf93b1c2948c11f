//! The scheme `auto`, and what gateways say of its choices.

use super::*;

/// `auto` on a link that loses packets: nothing is lost, and each gateway says what it chose, and
/// why.
#[test]
fn auto_carries_traffic_and_says_why() {
    // Of its two threads the second carries the second transfer.
    let mut pair = Pair::start_otherwise(2, |plan| {
        plan.threads = [2; 2];
        plan.policy = "scheme = \"auto\"".to_owned();
    });
    let begun = pair.status(Site::A);
    assert_eq!(begun.classes[0].scheme, "auto");
    let why = why(&pair, Site::A);
    assert!(why.starts_with("class default/64KiB: auto, for 99.9 % of messages"), "{why}");
    pair.complete_transfer(200);
    wait_until("nothing was chosen", &|| {
        [Site::A, Site::B].into_iter().all(|site| {
            let status = pair.status(site);
            // The others send nothing: the rest of the class, and what is up to 4 MiB.
            let mut short = status.choices.iter().filter(|choice| choice.class == "default/64KiB");
            status.choices.len() == 4 && short.all(|choice| choice.expected.is_some())
        })
    });
    let status = pair.status(Site::A);
    let is_it = |choice: &&gateway::admin::ChoiceStatus| {
        (choice.class.as_str(), choice.stream.as_str()) == ("default/64KiB", "bulk")
    };
    let bulk = status.choices.iter().find(is_it).unwrap();
    let link = bulk.link.unwrap();
    // 1 % is lost, of not too many packets.
    assert!(link.drop[0] < 0.01 && link.drop[2] > 0.002, "{bulk:?}");
    assert!((1e-3..0.5).contains(&link.rtt), "{bulk:?}");
    let messages = bulk.messages.as_deref().unwrap();
    assert!(
        messages == "messages of 4 KiB to 16 KiB" || messages == "messages of 1 KiB to 4 KiB",
        "{bulk:?}"
    );
    assert!((1..=3).contains(&bulk.runners_up.len()), "{bulk:?}");
    // What was decided is in force soon after.
    wait_until("the decision is not in force", &|| {
        let status = pair.status(Site::A);
        let agrees = |choice: &gateway::admin::ChoiceStatus| {
            let decided = choice.expected.as_ref().map(|expected| expected.scheme.as_str());
            choice.scheme.is_some() && choice.scheme.as_deref() == decided
        };
        status.choices.iter().filter(|choice| choice.class == "default/64KiB").all(agrees)
    });
    let why = self::why(&pair, Site::A);
    for part in [
        "  bulk ",
        "  prompt ",
        "    for       messages",
        "    else ",
        "    link      400 Mbit/s, RTT ",
        "    because ",
    ] {
        assert!(why.contains(part), "no {part} in\n{why}");
    }
    let metrics = pair.testbed.fetch(Site::A, "/metrics").unwrap();
    let lines = |name: &str| metrics.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(lines("longhaul_scheme_info{"), 4, "{metrics}");
    assert_eq!(lines("longhaul_scheme_switches_total{"), 3, "{metrics}");
    // What the gateway knows of the link is enough to plan by.
    let admin = pair.testbed.admin(Site::A).to_string();
    let plan = longhaul(&["plan", "--admin", &admin]);
    assert!(plan.starts_with("400 Mbit/s, RTT ") && plan.contains("% of messages complete within"), "{plan}");
    // Under the chosen schemes.
    pair.complete_transfer(100);
    pair.testbed.stop().unwrap();
}

/// Returns what `longhaul status --why` says.
fn why(pair: &Pair, site: Site) -> String {
    longhaul(&["status", "--why", "--admin", &pair.testbed.admin(site).to_string()])
}
