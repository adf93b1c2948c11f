//! Certificates, keys and revocations that change while gateways run: no flow ends of it.

use gateway::requests::Answer;
use testbed::Site;
use testbed::hostio::Limit;

use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{Pair, SCHEMES, complete, longhaul, wait_until};

impl Pair {
    /// A new certificate and key for a site, in its files.
    pub(super) fn make_keys(&self, site: &str) {
        let dir = self.testbed.folder().to_str().unwrap();
        longhaul(&["keys", "--dir", dir, "--force", site]);
    }

    /// Returns the serial number that a reload says the new certificate has.
    pub(super) fn renewed(&self, site: Site) -> String {
        let answer: Answer = self.reload(site);
        let changed = answer.identity.first().unwrap_or_else(|| panic!("{answer:?}"));
        assert!(answer.adopted && changed.contains(", expires at "), "{answer:?}");
        changed.trim_start_matches("certificate ").split(',').next().unwrap().to_owned()
    }

    /// Returns what a reload says is wrong.
    fn refused(&self, site: Site) -> String {
        let answer: Answer = self.reload(site);
        assert!(!answer.adopted && answer.identity.is_empty(), "{answer:?}");
        answer.problems
    }

    pub(super) fn says(&self, site: Site, words: &str) -> bool {
        self.testbed.fetch(site, "/events").unwrap().contains(words)
    }

    /// Cuts the link until the session is lost, and waits for the next one.
    pub(super) fn change_session(&mut self) {
        let clear = "delay 2ms loss 0.5%".parse().unwrap();
        self.testbed.set_link("loss 100%".parse().unwrap());
        self.wait_for("the session is not lost", |status| status.session.state == "lost");
        self.testbed.set_link(clear);
        self.testbed.wait_for_session(&|| false).unwrap();
    }

    fn metric(&self, site: Site, name: &str) -> String {
        let metrics = self.testbed.fetch(site, "/metrics").unwrap();
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name}{{")));
        line.and_then(|line| line.rsplit(' ').next()).unwrap_or_default().to_owned()
    }
}

const OWN: &str = "longhaul_certificate_expiry_timestamp_seconds";
const PEERS: &str = "longhaul_peer_certificate_expiry_timestamp_seconds";

/// One site reloads, and its session stays. The other, which dials, notices by itself, and makes a
/// session at once that shows both.
#[test]
fn certificates_are_renewed_under_load() {
    let mut pair = Pair::start(SCHEMES[0], 1);
    const MESSAGES: u64 = 5000;
    let (client, server) = pair.transfer(Limit::Messages(MESSAGES));
    pair.make_keys("b");
    let of_b = pair.renewed(Site::B);
    assert!(!pair.says(Site::A, &format!("certificate {of_b}")), "the session that is up stays");
    assert_eq!(pair.status(Site::A).session.established, 1);
    pair.make_keys("a");
    wait_until("changed files are not noticed", &|| pair.says(Site::A, "\"identity\""));
    wait_until("there is no other session", &|| pair.says(Site::A, &format!("certificate {of_b}")));
    assert_eq!(pair.status(Site::A).session.established, 2);
    for (site, other) in [(Site::A, Site::B), (Site::B, Site::A)] {
        wait_until("the peer's end is not shown", &|| pair.metric(site, PEERS) == pair.metric(other, OWN));
    }
    complete((client, server), MESSAGES);
    pair.testbed.stop().unwrap();
}

/// Said by file, with what would be right; the session and the next one go on with the old ones.
#[test]
fn bad_files_keep_the_former_identity() {
    let mut pair = Pair::start(SCHEMES[0], 1);
    let key = pair.testbed.folder().join("a.key");
    let good = std::fs::read(&key).unwrap();
    let own = pair.metric(Site::A, OWN);
    std::fs::write(&key, "no key").unwrap();
    let told = pair.refused(Site::A);
    assert!(told.contains("a.key") && told.contains("`longhaul keys "), "{told}");
    wait_until("bad files are not told of", &|| pair.says(Site::A, "refused: "));
    // A pipe would make whoever opens it wait for ever.
    std::fs::remove_file(&key).unwrap();
    mknodat(CWD, &key, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let told = pair.refused(Site::A);
    assert!(told.contains("a.key"), "{told}");
    std::fs::remove_file(&key).unwrap();
    // Those of the other site prove the wrong name.
    std::fs::copy(pair.testbed.folder().join("b.key"), &key).unwrap();
    let folder = pair.testbed.folder().to_owned();
    let certificate = std::fs::read(folder.join("a.crt")).unwrap();
    std::fs::copy(folder.join("b.crt"), folder.join("a.crt")).unwrap();
    let told = pair.refused(Site::A);
    assert!(told.contains("does not prove that this gateway is `a`"), "{told}");
    pair.change_session();
    assert_eq!(pair.metric(Site::A, OWN), own);
    std::fs::write(&key, good).unwrap();
    std::fs::write(folder.join("a.crt"), certificate).unwrap();
    assert!(pair.reload(Site::A).adopted);
    // A gateway file that became a pipe would hold up this reload and all later ones.
    let file = pair.testbed.folder().join("a.toml");
    let text = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    mknodat(CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let told = pair.refused(Site::A);
    assert!(told.contains("a.toml") && told.contains("it is no regular file"), "{told}");
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, text).unwrap();
    assert!(pair.reload(Site::A).adopted);
    pair.complete_transfer(20);
    pair.testbed.stop().unwrap();
}

/// The session of a revoked certificate is lost at once. With another certificate the same process
/// goes on with its flows.
#[test]
fn a_certificate_is_revoked_without_a_restart() {
    let mut pair = Pair::start(SCHEMES[0], 1);
    const MESSAGES: u64 = 3000;
    let (client, server) = pair.transfer(Limit::Messages(MESSAGES));
    pair.make_keys("b");
    let stolen = pair.renewed(Site::B);
    pair.change_session();
    let file = pair.testbed.folder().join("a.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let revoked = format!("[peer]\nrevoked = [\"{stolen}\"]\n");
    std::fs::write(&file, text.replace("[peer]\n", &revoked)).unwrap();
    let answer = pair.reload(Site::A);
    assert_eq!(answer.identity, ["peer.revoked: 0 -> 1 certificates"], "{answer:?}");
    pair.wait_for("the session is not lost", |status| status.session.state == "lost");
    let opened = || pair.counted(Site::A, "longhaul_wan_opened_packets_total", |_| true);
    // What was opened before is counted by then.
    std::thread::sleep(Duration::from_millis(1500));
    let before = opened();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(opened(), before, "the revoked peer's packets are opened");
    wait_until("who is revoked is not refused", &|| {
        pair.status(Site::A).session.last_error.is_some_and(|why| why.to_lowercase().contains("revoked"))
    });
    wait_until("who is revoked is no event", &|| pair.says(Site::A, "\"impostor\""));
    pair.make_keys("b");
    pair.renewed(Site::B);
    pair.testbed.wait_for_session(&|| false).unwrap();
    complete((client, server), MESSAGES);
    pair.testbed.stop().unwrap();
}
