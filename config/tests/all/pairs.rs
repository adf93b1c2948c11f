//! Two files of a pair that contradict each other.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

use std::fs;

use config::{Report, check, check_pair};

const A: &str = include_str!("../../../docs/examples/gateway-a.toml");
const B: &str = include_str!("../../../docs/examples/gateway-b.toml");

/// Returns errors and warnings of the second file against the first.
fn against(a: &str, b: &str) -> (Vec<String>, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let report = |name: &str, text: &str| -> Report {
        let path = folder.path().join(name);
        fs::write(&path, text.replace("[policy]\nfile = \"policy.toml\"\n", "")).expect("a file");
        check(&path)
    };
    let first = report("a.toml", a);
    let mut second = report("b.toml", b);
    assert!(first.is_valid() && second.is_valid(), "{:?} {:?}", first.problems(), second.problems());
    let before = second.problems().len();
    check_pair(&first, &mut second);
    let place = folder.path().join("a.toml").display().to_string();
    let texts = |is_error| {
        let found = second.problems().iter().skip(before).filter(|problem| problem.is_error() == is_error);
        found.map(|problem| problem.message().replace(&place, "A")).collect()
    };
    (texts(true), texts(false))
}

#[test]
fn the_examples_agree_and_strangers_are_no_pair() {
    assert_eq!(against(A, B), (vec![], vec![]));
    let stranger = B.replace("\"b\"", "\"d\"").replace("\"a\"", "\"c\"").replace("10.9.0.", "10.8.0.");
    assert_eq!(against(A, &stranger), (vec![], vec![]));
}

#[test]
fn of_several_peers_the_other_file_is_held_against_its_own() {
    let several = A.replace("remote = [\"10.0.1.0/24\"]", "").replace(
        "[peer]\n",
        "[[peer]]\nname = \"c\"\naddress = \"10.9.0.3:14791\"\nrate = \"1 Gbit/s\"\nremote = [\"10.0.2.0/24\"]\n\
         [[peer]]\nremote = [\"10.0.1.0/24\"]\n",
    );
    let (errors, warnings) = against(&several, B);
    assert!(errors.is_empty(), "{errors:?}");
    // Its share of the buffers there is half of them.
    assert_eq!(warnings, ["`limits.total_buffer` differs from that in A"]);
    let elsewhere = B.replace("\"10.9.0.1:", "\"10.9.0.7:");
    assert_eq!(against(&several, &elsewhere).0, ["`peer.address` is not `wan.listen` in A"]);
}

#[test]
fn contradictions_are_named() {
    let one = |from: &str, to: &str| {
        let changed = B.replace(from, to);
        assert_ne!(changed, B, "{from}");
        against(A, &changed)
    };
    let errors = |from, to| one(from, to).0;
    assert_eq!(errors("name = \"a\"", "name = \"c\""), ["`peer.name` is not `site.name` in A"]);
    assert_eq!(errors("name = \"b\"", "name = \"c\""), ["`site.name` is not `peer.name` in A"]);
    assert_eq!(errors("\"10.9.0.1:", "\"10.9.0.7:"), ["`peer.address` is not `wan.listen` in A"]);
    assert_eq!(errors("\"10.9.0.2:14791", "\"10.9.0.2:24791"), ["`wan.listen` is not `peer.address` in A"]);
    assert_eq!(errors("10.0.0.0/24", "10.0.0.0/23"), ["`lan.remote` overlaps `lan.remote` in A"]);
    assert_eq!(
        errors("[policy]", "[data_plane]\nthreads = 2\n[policy]"),
        ["`data_plane.threads` differs from that in A"]
    );
    let group = one("# multicast = ", "multicast = ");
    assert_eq!(group, (vec![], vec!["`lan.multicast` differs from that in A".to_owned()]));
    let buffer = one("[policy]", "[limits]\ntotal_buffer = \"1 GiB\"\n[policy]");
    assert_eq!(buffer, (vec![], vec!["`limits.total_buffer` differs from that in A".to_owned()]));
    let far = one("rate = \"1 Gbit/s\"", "rate = \"15 Mbit/s\"");
    assert_eq!(far, (vec![], vec!["`peer.rate` is far from that in A".to_owned()]));
    assert_eq!(one("rate = \"1 Gbit/s\"", "rate = \"20 Mbit/s\""), (vec![], vec![]));
    // Behind a translator or not: any address will do.
    assert_eq!(one("listen = \"10.9.0.2:", "listen = \"0.0.0.0:").0, [""; 0]);
}

#[test]
fn numbers_of_threads_may_differ_where_both_files_say_so() {
    let with = |text: &str, own: u8, peer: &str| {
        let text = text.replace("[policy]", &format!("[data_plane]\nthreads = {own}\n[policy]"));
        text.replace("[peer]\n", &format!("[peer]\n{peer}\n"))
    };
    assert_eq!(against(&with(A, 2, "threads = 3"), &with(B, 3, "threads = 2")).0, [""; 0]);
    let unsaid = ["`data_plane.threads` differs from that in A"];
    assert_eq!(against(&with(A, 2, ""), &with(B, 3, "")).0, unsaid);
    assert_eq!(against(&with(A, 2, ""), &with(B, 3, "threads = 2")).0, unsaid, "by one of them");
    let wrong = ["`peer.threads` is not `data_plane.threads` in A"];
    assert_eq!(against(&with(A, 2, "threads = 3"), &with(B, 3, "threads = 4")).0, wrong);
}

#[test]
fn ciphers_have_to_have_one_in_common() {
    let with =
        |text: &str, cipher: &str| text.replace("[wan]\n", &format!("[wan]\nciphers = [\"{cipher}\"]\n"));
    let (errors, _) = against(&with(A, "aes-128-gcm"), &with(B, "aegis-128l"));
    assert_eq!(errors, ["`wan.ciphers` has none of those in A"]);
}
