//! The page for browsers, of a pair under traffic.

use std::path::Path;

use serde::Deserialize;
use testbed::browser::{self, Window};

use super::*;

/// Two classes, by the size of messages. The gateway chooses the scheme of one, which is divided.
const POLICY: &str = "[[class]]\nname = \"bulk\"\nmatch = { size = { at_least = \"256 KiB\" } }\n\
    scheme = \"mds\"\nk = 32\nm = 4\n[[class]]\nname = \"default\"\nscheme = \"auto\"\ndivide = [\"64 KiB\"]\n";

/// Tells how the page stands in its window.
const MEASURE: &str = include_str!("page/measure.js");

/// Has tables keep their lines whole, so that some are cut.
const BREAK: &str = "document.head.append(Object.assign(document.createElement('style'), \
    { textContent: 'tr { display: flex !important; } td { white-space: nowrap !important; }' }));\n";

/// The answer of [`MEASURE`].
#[derive(Debug, Deserialize)]
struct Measured {
    /// CSS pixels: of the window, and of what is in it.
    width: u32,
    content: u32,
    height: u32,
    /// How many pieces of text were looked at.
    texts: usize,
    /// Texts and elements of which a part lies outside at a side.
    clipped: Vec<String>,
    /// Texts that differ too little from what is behind them.
    faint: Vec<String>,
    /// The gateway did not answer.
    is_stale: bool,
    is_dark: bool,
    /// Relative luminance, from 0 to 1.
    light_behind: f64,
    light_of_text: f64,
}

fn measured(pair: &Pair, window: Window, script: &str) -> Measured {
    let said = browser::measure(pair.testbed.admin(Site::A), window, script).unwrap();
    serde_json::from_str(&said).unwrap()
}

/// Nothing is cut in a narrow window and in a wide one, and dark is dark.
fn stands_in_any_window(pair: &Pair) {
    for size in [(360, 740), (1000, 800)] {
        for is_dark in [false, true] {
            let it = measured(pair, Window { size, is_dark }, MEASURE);
            assert_eq!((it.width, it.is_dark, it.is_stale), (size.0, is_dark, false), "{it:?}");
            assert!(it.texts > 100, "{it:?}");
            assert!(it.content <= it.width, "it scrolls sideways: {it:?}");
            assert!(it.clipped.is_empty() && it.faint.is_empty(), "{it:?}");
            let (dark, light) = if is_dark {
                (it.light_behind, it.light_of_text)
            } else {
                (it.light_of_text, it.light_behind)
            };
            assert!(dark < 0.1 && light > 0.5, "{it:?}");
        }
    }
    // Would anything be seen?
    let it = measured(pair, Window { size: (360, 740), is_dark: false }, &[BREAK, MEASURE].concat());
    assert!(it.clipped.iter().any(|text| text.contains("(the requester is here)")), "{it:?}");
}

/// Writes the guide's pictures, each as high as the page.
fn draw(pair: &Pair, folder: &Path) {
    let url = format!("http://{}/", pair.testbed.admin(Site::A));
    for (width, is_dark) in [(1000, false), (360, true)] {
        // In a window that is high enough nothing scrolls.
        let it = measured(pair, Window { size: (width, 4000), is_dark }, MEASURE);
        let window = Window { size: (width, it.height), is_dark };
        let to = folder.join(format!("page-{width}.png"));
        browser::picture(&url, window, 8000, &to).unwrap();
    }
}

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
        // Addresses as long as they may be.
        for (hosts, last) in plan.hosts.iter_mut().zip(["5671", "5672"]) {
            hosts[1].0 = format!("2001:db8:1234:5678:9abc:def0:1234:{last}").parse().unwrap();
        }
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
    wait_until("nothing is chosen", &|| {
        let is_it = |choice: &gateway::admin::ChoiceStatus| {
            (choice.class.as_str(), choice.stream.as_str()) == ("default/64KiB", "bulk")
        };
        pair.status(Site::A).choices.iter().any(|choice| is_it(choice) && choice.because.is_some())
    });
    let url = format!("http://{}/", pair.testbed.admin(Site::A));
    let page = browser::page(&url, 3000).unwrap();
    for piece in [
        "a - b",
        ">up</span>",
        ">bulk<",
        "mds(32,4)",
        ">default/64KiB<",
        "Why: it is the first choice",
        ": 99.9 % within ",
        "0 failed",
        ">session_up<",
        ">in use<",
    ] {
        assert!(page.contains(piece), "no {piece} in\n{page}");
    }
    assert!(!page.contains("nothing outlives the process"), "{page}");
    stands_in_any_window(&pair);
    if let Ok(pictures) = std::env::var("LONGHAUL_PICTURES") {
        draw(&pair, Path::new(&pictures));
    }
    for (client, server) in transfers {
        let (client, server) = (client.stop().unwrap(), server.stop().unwrap());
        assert!(client.corrupt == 0 && server.corrupt == 0 && failed(&client) == 0, "{client}\n{server}");
    }
    pair.testbed.stop().unwrap();
}
