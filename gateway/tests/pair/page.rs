//! The page for browsers, of a pair under traffic.

use std::path::Path;

use super::*;

/// Two classes, by the size of messages.
const POLICY: &str = "[[class]]\nname = \"bulk\"\nmatch = { size = { at_least = \"256 KiB\" } }\n\
    scheme = \"mds\"\nk = 32\nm = 4\n[[class]]\nname = \"default\"\nscheme = \"sr\"\n";

/// Runs Chromium on the page of a gateway that does its work, on a link that loses a packet in two
/// hundred. With LONGHAUL_PICTURES it also writes the guide's pictures there.
#[test]
#[ignore = "needs chromium: test-all has it"]
fn a_browser_shows_a_pair_at_work() {
    // As by the packaged unit, there is memory for what is to survive a process.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut pair = Pair::start_otherwise(2, |plan| {
        plan.retention = Some(memory.path().to_owned());
        plan.link = "delay 10ms rate 500mbit loss 0.5%".parse().unwrap();
        plan.mtu = [9000; 2];
        plan.probe_mtu = true;
        plan.lanes = 2;
    });
    pair.testbed.write_policy(POLICY).unwrap();
    for site in [Site::A, Site::B] {
        assert!(pair.reload(site).adopted);
    }
    let endless = Limit::Messages(1_000_000);
    let transfers = [(4 << 10, 4), (512 << 10, 2)].map(|(message, depth)| {
        pair.transfer_otherwise(endless, |workload| {
            (workload.message, workload.depth, workload.mix) = (message, depth, Mix::ALL);
        })
    });
    wait_until("no message of the long ones is done", &|| {
        transfers.iter().all(|(client, _)| client.progress().messages.load(Ordering::Relaxed) > 30)
    });
    // Rates are known after two of the listener's samples.
    wait_until("the page has no rate to show", &|| {
        pair.status(Site::A).rates.wan_sent_bits.is_some_and(|bits| bits > 1e6)
    });
    let url = format!("http://{}/", pair.testbed.admin(Site::A));
    let page = testbed::browser::page(&url, 3000).unwrap();
    for piece in ["a - b", ">up</span>", ">bulk<", "mds(32,4)", "0 failed", ">session_up<", ">in use<"] {
        assert!(page.contains(piece), "no {piece} in\n{page}");
    }
    assert!(!page.contains("nothing outlives the process"), "{page}");
    if let Ok(pictures) = std::env::var("LONGHAUL_PICTURES") {
        for size in [(1000, 1200), (360, 1700)] {
            let to = Path::new(&pictures).join(format!("page-{}.png", size.0));
            testbed::browser::picture(&url, size, 8000, &to).unwrap();
        }
    }
    for (client, server) in transfers {
        let (client, server) = (client.stop().unwrap(), server.stop().unwrap());
        assert!(client.corrupt == 0 && server.corrupt == 0 && failed(&client) == 0, "{client}\n{server}");
    }
    pair.testbed.stop().unwrap();
}
