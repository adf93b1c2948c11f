//! Sessions that are lost and go on.

use std::sync::atomic::AtomicBool;

use zeroize::Zeroizing;

use super::*;
use crate::schedule::EXPORTER_BYTES;

const WAITS: Duration = Duration::from_secs(50);

/// With a flow to tell of, which waits.
pub(super) fn patient(site: &str, peer: &str, listen: SocketAddr, to: SocketAddr) -> Config {
    let pairings = tells(&[flow()]);
    let outlives = Arc::new(AtomicBool::new(true));
    Config { resume_for: WAITS, outlives, pairings, ..config(site, peer, listen, to) }
}

pub(super) fn flow() -> Pairing {
    Pairing {
        direction: Direction::Outbound,
        requester: "10.0.1.2".parse().unwrap(),
        target: "10.0.2.2".parse().unwrap(),
        target_qpn: 17,
        requester_qpn: Some(18),
        psn: Some(19),
        src_port: 20,
        lives: false,
    }
}

fn tells(pairings: &[Pairing]) -> Vec<watch::Receiver<Arc<[Pairing]>>> {
    vec![watch::channel(Arc::from(pairings)).1]
}

impl Site {
    /// With another process's flows.
    fn start_holding(config: Config, held: &Resumption) -> Site {
        let held = Resumption::new(Zeroizing::new(*held.exposed()));
        Site::start_with(config, |config| Control::bind(config).unwrap().holding(held))
    }

    /// Waits for the end that it was ordered, and frees the port.
    fn finish(self) {
        patiently(&self.runtime, self.task).expect("no panic").expect("the socket works");
        self.runtime.shutdown_timeout(PATIENCE);
    }
}

/// The same two processes go on, again and again, each time under other keys.
#[test]
fn a_session_that_is_lost_goes_on_in_the_next_one() {
    let mut b = Site::start(patient("b", "a", ANYWHERE, ANYWHERE));
    let mut a = Site::start(patient("a", "b", ANYWHERE, b.address));
    let (mut here, there) = (a.up(), b.up());
    assert!(!here.resumes && !there.resumes);
    assert_eq!([here.peer.resume_for, there.peer.resume_for], [WAITS; 2]);
    assert_eq!([here.pairings.len(), there.pairings.len()], [1, 1]);
    for _ in 0..3 {
        let before = here.peer.local_session;
        use_up(&mut here, &mut a);
        assert_eq!((a.lost(), b.lost()), (DownReason::Spent, DownReason::Spent));
        let mut there = b.up();
        here = a.up();
        assert!(here.resumes && there.resumes);
        assert!(here.pairings.is_empty() && there.pairings.is_empty(), "flows that go on are no news");
        assert_ne!(here.peer.local_session, before);
        assert_joined(&mut here, &mut there);
    }
}

/// A process without flows takes the place of one that died: those of the other side go on, and it
/// is told of those whose requesters are its own.
#[test]
fn flows_outlive_the_peers_process() {
    let with = |direction, lives| Pairing { direction, lives, ..flow() };
    let known = [
        with(Direction::Outbound, true),
        with(Direction::Inbound, true),
        with(Direction::Outbound, false),
        with(Direction::Inbound, false),
    ];
    let mut b = Site::start(Config { pairings: tells(&[]), ..patient("b", "a", ANYWHERE, ANYWHERE) });
    let address = b.address;
    let mut a = Site::start(Config { pairings: tells(&known), ..patient("a", "b", ANYWHERE, address) });
    both_up(&mut a, &mut b);
    b.crash();
    let mut b = Site::start(Config { pairings: tells(&[]), ..patient("b", "a", address, ANYWHERE) });
    assert_eq!(a.lost(), DownReason::Restarted);
    let (mut here, mut there) = (a.up(), b.up());
    assert!(here.outlives && !there.outlives && !here.resumes && !there.resumes);
    assert_eq!(there.pairings, known[1..], "those of its targets go on without it");
    assert_joined(&mut here, &mut there);
    // The session that began so is lost and goes on as any.
    use_up(&mut here, &mut a);
    assert_eq!((a.lost(), b.lost()), (DownReason::Spent, DownReason::Spent));
    let (here, there) = (a.up(), b.up());
    assert!(here.resumes && there.resumes && !here.outlives && !there.outlives);
}

#[test]
fn the_peer_may_be_another_process() {
    let mut b = Site::start(patient("b", "a", ANYWHERE, ANYWHERE));
    let address = b.address;
    let mut a = Site::start(patient("a", "b", ANYWHERE, address));
    both_up(&mut a, &mut b);
    b.crash();
    let mut b = Site::start(patient("b", "a", address, ANYWHERE));
    assert_eq!(a.lost(), DownReason::Restarted);
    let (here, there) = (a.up(), b.up());
    assert!(!here.resumes && !there.resumes && here.outlives);
    assert_eq!([here.pairings.len(), there.pairings.len()], [1, 1], "what each remembers");
}

/// Either site may have told requesters of more than their targets had.
#[test]
fn flows_end_with_the_peers_process_where_messages_complete_locally() {
    for local in 0..2 {
        let config = |site: usize, to, peer| Config {
            outlives: Arc::new(AtomicBool::new(site != local)),
            ..patient(["a", "b"][site], ["b", "a"][site], to, peer)
        };
        let mut b = Site::start(config(1, ANYWHERE, ANYWHERE));
        let address = b.address;
        let mut a = Site::start(config(0, ANYWHERE, address));
        both_up(&mut a, &mut b);
        b.crash();
        let mut b = Site::start(config(1, address, ANYWHERE));
        assert_eq!(a.lost(), DownReason::Restarted);
        assert_eq!(a.down(), DownReason::Restarted);
        let (here, there) = (a.up(), b.up());
        assert!(!here.outlives && !here.resumes && !there.resumes);
    }
}

/// In either role, several times, and while the session before is up or on its way.
#[test]
fn another_process_goes_on_with_the_flows_that_it_was_given() {
    let mut b = Site::start(patient("b", "a", ANYWHERE, ANYWHERE));
    let listens = b.address;
    let mut a = Site::start(patient("a", "b", ANYWHERE, listens));
    both_up(&mut a, &mut b);
    for round in 0..3 {
        let held = b.claim.get().expect("there are flows");
        b.order(Command::HandOver);
        b.finish();
        b = Site::start_holding(patient("b", "a", listens, ANYWHERE), &held);
        assert_eq!(a.lost(), DownReason::Replaced, "round {round}");
        assert!(a.up().resumes && b.up().resumes, "round {round}");
        let held = a.claim.get().expect("there are flows");
        a.order(Command::HandOver);
        a.finish();
        a = Site::start_holding(patient("a", "b", ANYWHERE, listens), &held);
        assert_eq!(b.lost(), DownReason::Replaced, "round {round}");
        let (mut here, mut there) = (a.up(), b.up());
        assert!(here.resumes && there.resumes, "round {round}");
        assert_joined(&mut here, &mut there);
    }
}

/// Whoever holds still tells nothing, and misses nothing if nobody takes over.
#[test]
fn who_stands_still_for_another_process_goes_on_without_it() {
    let mut b = Site::start(patient("b", "a", ANYWHERE, ANYWHERE));
    let mut a = Site::start(patient("a", "b", ANYWHERE, b.address));
    let (mut here, _) = (a.up(), b.up());
    for given_up in [true, false] {
        let (standing, stands) = oneshot::channel();
        let (go, taken) = oneshot::channel();
        b.order(Command::Hold(Hold { standing, taken }));
        patiently(&b.runtime, stands).unwrap();
        use_up(&mut here, &mut a);
        assert_eq!(a.lost(), DownReason::Spent);
        std::thread::sleep(Duration::from_millis(100));
        b.no_session();
        if given_up {
            drop(go);
        } else {
            go.send(false).unwrap();
        }
        assert_eq!(b.lost(), DownReason::Spent);
        assert!(b.up().resumes);
        here = a.up();
        assert!(here.resumes);
    }
}

/// By the very socket of the one before, which both hold for a while.
#[test]
fn another_process_takes_the_socket_over() {
    let listens = UdpSocket::bind(ANYWHERE).unwrap();
    let address = listens.local_addr().unwrap();
    let socket = || listens.try_clone().unwrap();
    let mut b = Site::start_with(patient("b", "a", address, ANYWHERE), |config| {
        Control::on(socket(), config).unwrap()
    });
    let mut a = Site::start(patient("a", "b", ANYWHERE, address));
    both_up(&mut a, &mut b);
    for _ in 0..3 {
        let held = b.claim.get().expect("there are flows");
        let held = Resumption::new(Zeroizing::new(*held.exposed()));
        let mut next = Site::start_with(patient("b", "a", address, ANYWHERE), |config| {
            Control::behind_gate(socket(), config).unwrap().holding(held)
        });
        let (standing, stands) = oneshot::channel();
        let (go, taken) = oneshot::channel();
        b.order(Command::Hold(Hold { standing, taken }));
        patiently(&b.runtime, stands).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        a.no_session();
        next.no_session();
        b.gate.shut();
        next.gate.open();
        go.send(true).unwrap();
        assert_eq!(a.lost(), DownReason::Replaced);
        let (mut here, mut there) = (a.up(), next.up());
        assert!(here.resumes && there.resumes);
        assert_joined(&mut here, &mut there);
        b.finish();
        b = next;
    }
}

/// Each died in its turn, one after it was taken the place of.
#[test]
fn flows_that_another_process_had_outlive_the_peer() {
    let b = Site::start(patient("b", "a", ANYWHERE, ANYWHERE));
    let stolen = Resumption::new(Zeroizing::new([7; EXPORTER_BYTES]));
    let mut a = Site::start_holding(patient("a", "b", ANYWHERE, b.address), &stolen);
    let session = a.up();
    assert!(session.outlives && !session.resumes);
}

#[test]
fn flows_that_another_process_had_wait_no_longer_than_others() {
    let stolen = Resumption::new(Zeroizing::new([7; EXPORTER_BYTES]));
    let mut impatient = patient("a", "b", ANYWHERE, ANYWHERE);
    impatient.resume_for = Duration::from_millis(300);
    let mut a = Site::start_holding(impatient, &stolen);
    assert_eq!(a.down(), DownReason::Replaced);
    assert!(a.claim.get().is_none());
}

#[test]
fn flows_that_have_waited_for_long_enough_end() {
    let mut b = Site::start(patient("b", "a", ANYWHERE, ANYWHERE));
    let mut impatient = patient("a", "b", ANYWHERE, b.address);
    (impatient.dead_after, impatient.resume_for) = (Duration::from_millis(400), Duration::from_millis(300));
    let mut a = Site::start(impatient);
    assert_eq!([a.up(), b.up()].map(|up| up.peer.resume_for), [Duration::from_millis(300); 2]);
    b.crash();
    assert_eq!(a.lost(), DownReason::Silent);
    assert_eq!(a.down(), DownReason::Silent);
}

#[test]
fn a_goodbye_ends_flows_that_would_wait() {
    let mut b = Site::start(patient("b", "a", ANYWHERE, ANYWHERE));
    let mut a = Site::start(patient("a", "b", ANYWHERE, b.address));
    both_up(&mut a, &mut b);
    b.order(Command::Goodbye(GoodbyeReason::Restart));
    assert_eq!(a.down(), DownReason::Goodbye(GoodbyeReason::Restart));
}
