//! Nothing is allocated per packet, also while messages of one flow take several classes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::sites::{STEP, Sites, write_request};
use config::Policy;
use roce::ip::Datagram;
use roce::wire::{Bth, Psn, Qpn};
use splice::Settings;

const POLICY: &str = r#"
    [[class]]
    name = "small"
    match = { size = { at_most = "1 KiB" } }
    scheme = "mds"
    k = 4
    m = 2
    priority = 3
    [[class]]
    name = "middle"
    match = { qp = ["0x20-0x2f"], size = { at_most = "4 KiB" } }
    scheme = "xor"
    k = 4
    m = 2
    [[class]]
    name = "default"
    scheme = "sr"
"#;

/// A message is one packet, and names this size in turn.
const SIZES: [u32; 3] = [100, 2000, 900_000];

struct Pair {
    sites: Sites,
    sent: u32,
    acknowledged: u32,
    request: Vec<u8>,
    /// The requester posts nothing more.
    ends: bool,
}

impl Pair {
    fn new() -> Self {
        let policy = Policy::parse(Path::new("policy.toml"), POLICY).unwrap();
        let rate = 1_000_000_000;
        let sites = Sites::new(0xc123, |settings| Settings {
            policy: policy.clone().into(),
            ..Settings::new(settings.remote, rate, 1400)
        });
        Self { sites, sent: 0, acknowledged: 0, request: write_request(Qpn::new(0x22), 0), ends: false }
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            for _ in 0..4 {
                if !self.ends && self.sent - self.acknowledged < 500 {
                    self.post();
                }
            }
            self.sites.cross();
            self.target();
            while let Some(bth) = self.sites.deliver(0) {
                self.acknowledged = self.acknowledged.max(bth.psn.get() + 1);
            }
            self.sites.now += STEP;
        }
    }

    fn post(&mut self) {
        let size = SIZES[self.sent as usize % SIZES.len()];
        Bth::set_psn(self.request.first_chunk_mut().unwrap(), Psn::new(self.sent));
        self.request[24..28].copy_from_slice(&size.to_be_bytes());
        let datagram = Datagram { addressing: self.sites.addressing[0], transport: &self.request };
        self.sites.gateways[0].handle_lan(&datagram, self.sites.now);
        self.sent += 1;
    }

    /// Acknowledges what it is asked to.
    fn target(&mut self) {
        let mut newest = None;
        while let Some(bth) = self.sites.deliver(1) {
            newest = Some(bth.psn);
        }
        if let Some(psn) = newest {
            self.sites.acknowledge(Qpn::new(0x11), psn, psn.next().get());
        }
    }
}

#[test]
fn the_data_path_does_not_allocate() {
    let mut pair = Pair::new();
    // Buffers grow to their working size first.
    pair.run(50_000);
    let before =
        (pair.sent, pair.sites.gateways[0].classes().map(|class| class.sent[1].records).collect::<Vec<_>>());
    let allocated = allocation_counter::measure(|| pair.run(20_000));
    let sent = pair.sent - before.0;
    assert!(sent > 20_000, "{sent} messages");
    for (class, records) in pair.sites.gateways[0].classes().zip(before.1) {
        assert!(class.sent[1].records - records > 5000, "{} is hardly used", class.name);
    }
    assert_eq!(allocated.count_total, 0);
}

/// A class that is gone leaves no buffers behind: not where it sent once its streams have drained,
/// nor where it was received.
#[test]
fn streams_without_a_class_keep_nothing() {
    let mut pair = Pair::new();
    let used = allocation_counter::measure(|| pair.run(50_000)).bytes_current;
    pair.ends = true;
    let text = "[[class]]\nname = \"default\"\nscheme = \"sr\"";
    let policy = Arc::new(Policy::parse(Path::new("policy.toml"), text).unwrap());
    let give_back = |pair: &mut Pair, site: usize| {
        allocation_counter::measure(|| {
            match site {
                0 => pair.sites.gateways[0].set_policy(Arc::clone(&policy), pair.sites.now).unwrap(),
                _ => pair.sites.now += Duration::from_secs(11),
            }
            pair.run(1000);
        })
        .bytes_current
    };
    let [sent, received] = [0, 1].map(|site| give_back(&mut pair, site));
    assert!(pair.sites.gateways[0].is_quiet());
    assert!(used > 50_000 && sent < -4096 && received < -4096, "{used} bytes, {sent} and {received}");
}
