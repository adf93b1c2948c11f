//! Rule: `docs/protocol.md#rule-thread-pairs`.

use super::*;

#[test]
fn each_thread_has_its_keys() {
    let threads = |site: &str, peer: &str, to| Config {
        threads: ThreadCounts::alike(3),
        lanes: 2,
        ..config(site, peer, ANYWHERE, to)
    };
    let mut b = Site::start(threads("b", "a", ANYWHERE));
    let mut a = Site::start(threads("a", "b", b.address));
    let (mut at_a, mut at_b) = (a.up(), b.up());
    assert_eq!(at_a.keys.len(), 3);
    assert_joined(&mut at_a, &mut at_b);
}

#[test]
fn sites_may_have_different_numbers_of_threads() {
    let with = |config: Config, here, there| Config { threads: ThreadCounts { here, there }, ..config };
    let mut b = Site::start(with(config("b", "a", ANYWHERE, ANYWHERE), 3, 2));
    let mut a = Site::start(with(config("a", "b", ANYWHERE, b.address), 2, 3));
    let (mut at_a, mut at_b) = (a.up(), b.up());
    assert_eq!(at_a.keys.len(), 6);
    assert_joined(&mut at_a, &mut at_b);
    let low = u32::from(crate::seal::DIFFERENCE);
    assert_eq!((at_a.peer.local_session | at_a.peer.remote_session) & low, 0, "room for the difference");
}

#[test]
fn more_lanes_than_all_pairs_of_threads_may_have_break_the_protocol() {
    // 5 by 7 threads make 35 pairs, with 2 lanes each. Either side has few enough by itself.
    let with =
        |config: Config, here, there| Config { threads: ThreadCounts { here, there }, lanes: 2, ..config };
    let mut b = Site::start(with(config("b", "a", ANYWHERE, ANYWHERE), 5, 7));
    let mut a = Site::start(with(config("a", "b", ANYWHERE, b.address), 7, 5));
    b.refused(Refusal::Protocol);
    a.no_session();
    b.no_session();
}

#[test]
fn a_peer_with_another_number_of_threads_than_expected_gets_no_session() {
    let mut b = listener();
    let threads = ThreadCounts { here: 2, there: 1 };
    let mut a = Site::start(Config { threads, ..config("a", "b", ANYWHERE, b.address) });
    b.refused(Refusal::Threads);
    a.no_session();
    b.no_session();
}
