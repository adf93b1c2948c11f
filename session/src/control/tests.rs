//! Control tasks over loopback, each in a runtime of its own, so that a crash is one: nothing more
//! is sent.

mod ecn;
mod renewal;
mod replaced;
mod resume;
mod threads;

use std::collections::VecDeque;
use std::time::Instant;

use quinn::ConnectionError;
use quinn::crypto::rustls::QuicClientConfig;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::*;
use crate::Rejected;
use crate::message::{Direction, Hello, Message, VERSION};
use crate::seal::{HEADER, Header, OVERHEAD};
use crate::test_certificates::{certificates, identity};

/// Long enough for any machine, so that only what never happens fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn config_prefixes() -> Vec<IpNet> {
    vec!["10.0.2.0/24".parse().unwrap()]
}

fn config(site: &str, peer: &str, listen: SocketAddr, peer_address: SocketAddr) -> Config {
    Config {
        site: site.to_owned(),
        peer: peer.to_owned(),
        listen,
        peer_address,
        peer_scope: Arc::default(),
        identity: identity(certificates(), site),
        revoked: Vec::new(),
        dead_after: Duration::from_secs(20),
        resume_for: Duration::ZERO,
        outlives: Arc::default(),
        max_datagram: 1472,
        lanes: 4,
        threads: ThreadCounts::alike(1),
        ciphers: Ciphers::detect(&Cipher::ALL),
        remote: config_prefixes(),
        pairings: vec![watch::channel(Arc::from([])).1],
        build: "1.2.3".to_owned(),
        pulse: Arc::default(),
        refusals: Arc::default(),
        key_log: None,
    }
}

const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Awaits within a runtime, and not for ever.
fn patiently<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(async { timeout(PATIENCE, future).await }).expect("done in time")
}

/// One gateway's control.
struct Site {
    runtime: Runtime,
    address: SocketAddr,
    renewal: Renewal,
    claim: Claim,
    gate: Gate,
    events: mpsc::Receiver<Event>,
    commands: mpsc::Sender<Command>,
    refusals: Arc<Refusals>,
    task: Running,
}

type Running = tokio::task::JoinHandle<Result<(), SocketLost>>;

/// Runs it in the runtime that this is called in.
fn run(control: Control) -> (mpsc::Receiver<Event>, mpsc::Sender<Command>, Running) {
    let (events, received) = mpsc::channel(4);
    let (commands, given) = mpsc::channel(4);
    (received, commands, tokio::spawn(control.run(events, given)))
}

impl Site {
    fn start(config: Config) -> Site {
        Site::start_with(config, |config| Control::bind(config).unwrap())
    }

    fn start_with(config: Config, make: impl FnOnce(Config) -> Control) -> Site {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let refusals = Arc::clone(&config.refusals);
        let control = runtime.block_on(async { make(config) });
        let address = control.local_addr().unwrap();
        let (renewal, claim, gate) = (control.renewal(), control.claim(), control.gate());
        let (events, commands, task) = runtime.block_on(async { run(control) });
        Site { runtime, address, renewal, claim, gate, events, commands, refusals, task }
    }

    fn event(&mut self) -> Event {
        patiently(&self.runtime, self.events.recv()).expect("control runs")
    }

    fn up(&mut self) -> Box<Session> {
        match self.event() {
            Event::Up(session) => session,
            other => panic!("expected a session, not {other:?}"),
        }
    }

    fn down(&mut self) -> DownReason {
        match self.event() {
            Event::Down(reason) => reason,
            other => panic!("expected the end of a session, not {other:?}"),
        }
    }

    fn lost(&mut self) -> DownReason {
        match self.event() {
            Event::Lost(reason) => reason,
            other => panic!("expected the loss of a session, not {other:?}"),
        }
    }

    fn order(&self, command: Command) {
        self.runtime.block_on(self.commands.send(command)).unwrap();
    }

    /// Waits until a connection was refused for this reason.
    fn refused(&self, reason: Refusal) {
        patiently(&self.runtime, async {
            while self.refusals.get(reason) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }

    fn no_session(&mut self) {
        assert!(self.events.try_recv().is_err(), "nothing comes up");
    }

    /// Ends without a word, and frees the port.
    fn crash(self) {
        self.runtime.shutdown_timeout(PATIENCE);
    }
}

fn listener() -> Site {
    Site::start(config("b", "a", ANYWHERE, ANYWHERE))
}

fn dialer(to: SocketAddr) -> Site {
    Site::start(config("a", "b", ANYWHERE, to))
}

fn both_up(a: &mut Site, b: &mut Site) {
    a.up();
    b.up();
}

/// Packets go from one session to the other, in both directions, and nothing else does.
fn assert_joined(one: &mut Session, other: &mut Session) {
    let (one_peer, other_peer) = (one.peer.clone(), other.peer.clone());
    assert_eq!(one.keys.len(), other.keys.len());
    for ((sealer, opener), peer) in one.keys.iter_mut().zip(&mut other.keys).flat_map(|(one, other)| {
        [((&mut one.0, &mut other.1), &other_peer), ((&mut other.0, &mut one.1), &one_peer)]
    }) {
        let mut datagram = [0; OVERHEAD + 5];
        datagram[HEADER..HEADER + 5].copy_from_slice(b"hello");
        assert_eq!(sealer.seal(1, &mut datagram, 5), Ok(datagram.len()));
        let header = Header::parse(&datagram).unwrap();
        assert_eq!(header.session ^ peer.local_session as u16 & !7, header.session & 7);
        assert_eq!(opener.open(&mut datagram.clone()).unwrap(), b"hello");
        assert_eq!(opener.open(&mut datagram), Err(Rejected::Replay));
    }
}

#[test]
fn a_session_comes_up_with_the_same_keys_on_both_sides() {
    let mut b = listener();
    let mut a = dialer(b.address);
    let (mut at_a, mut at_b) = (a.up(), b.up());
    assert_joined(&mut at_a, &mut at_b);
    assert_eq!((at_a.peer.role, at_b.peer.role), (Role::Dialer, Role::Listener));
    assert_eq!((at_a.peer.site.as_str(), at_b.peer.site.as_str()), ("b", "a"));
    assert_eq!((at_a.peer.address, at_b.peer.address), (b.address, a.address));
    assert_eq!(at_a.peer.bulk.port(), b.address.port() + 1);
    assert_eq!(at_a.peer.cipher, at_b.peer.cipher);
    assert_eq!(at_a.peer.max_datagram, 1472);
    assert!([&at_a, &at_b].iter().all(|up| up.peer.build == "1.2.3" && up.peer.begins_again));
    assert_eq!([&at_a.peer.takes, &at_b.peer.takes], [&config_prefixes(), &config_prefixes()]);
}

#[test]
fn cipher_and_datagram_size_are_what_both_can() {
    let mut small = config("b", "a", ANYWHERE, ANYWHERE);
    small.max_datagram = 1200;
    (small.ciphers.hardware_aes, small.ciphers.hardware_gcm) = (false, false);
    let mut b = Site::start(small);
    let mut a = dialer(b.address);
    let (mut at_a, mut at_b) = (a.up(), b.up());
    assert_joined(&mut at_a, &mut at_b);
    for session in [&at_a, &at_b] {
        assert_eq!(session.peer.cipher, Cipher::ChaCha20Poly1305);
        assert_eq!(session.peer.max_datagram, 1200);
    }
}

/// Without a session and with one: a watchdog looks at it.
#[test]
fn control_shows_that_it_makes_progress() {
    let listening = config("b", "a", ANYWHERE, ANYWHERE);
    let pulse = Arc::clone(&listening.pulse);
    let grows = |site: &Site| {
        patiently(&site.runtime, async {
            let before = pulse.load(Ordering::Relaxed);
            while pulse.load(Ordering::Relaxed) < before + 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    };
    let mut b = Site::start(listening);
    grows(&b);
    let mut a = dialer(b.address);
    both_up(&mut a, &mut b);
    grows(&b);
}

#[test]
fn the_side_that_dials_waits_for_the_other_to_appear() {
    let place = std::net::UdpSocket::bind(ANYWHERE).unwrap();
    let address = place.local_addr().unwrap();
    drop(place);
    let mut a = dialer(address);
    let mut b = Site::start(config("b", "a", address, ANYWHERE));
    assert_joined(&mut a.up(), &mut b.up());
}

#[test]
fn pairings_reach_the_other_side() {
    // As many as the default of `limits.flows` has on both sides.
    let known: Vec<_> = (0..200_000)
        .map(|number| Pairing {
            direction: if number % 2 == 0 { Direction::Outbound } else { Direction::Inbound },
            requester: "10.0.1.2".parse().unwrap(),
            target: "10.0.2.2".parse().unwrap(),
            target_qpn: number,
            requester_qpn: (number % 3 == 0).then_some(number),
            psn: Some(number * 7),
            src_port: number as u16,
            lives: false,
        })
        .collect();
    let few = &known[..3];
    let mut many = config("b", "a", ANYWHERE, ANYWHERE);
    // By thread.
    many.pairings = known.chunks(known.len() / 2 + 1).map(|part| watch::channel(Arc::from(part)).1).collect();
    let mut b = Site::start(many);
    let mut config = config("a", "b", ANYWHERE, b.address);
    config.pairings = vec![watch::channel(Arc::from(few)).1];
    let mut a = Site::start(config);
    assert!(a.up().pairings == known, "all that the other side knows, over several messages");
    assert_eq!(b.up().pairings, few);
}

/// A link of 100 ms that loses a packet in thirty-three; the address to dial.
fn long_link(to: SocketAddr) -> SocketAddr {
    let delay = Duration::from_millis(50);
    let [front, back] = [(); 2].map(|()| std::net::UdpSocket::bind(ANYWHERE).unwrap());
    for socket in [&front, &back] {
        socket.set_nonblocking(true).unwrap();
    }
    let address = front.local_addr().unwrap();
    // It ends with the process, as the tests' other threads do.
    std::thread::spawn(move || {
        let mut under_way: VecDeque<(Instant, bool, Vec<u8>)> = VecDeque::new();
        let (mut dialer, mut packet) = (None, [0; 2000]);
        let mut sent = 0_u64;
        loop {
            let now = Instant::now();
            let mut moved = false;
            if let Ok((len, from)) = front.recv_from(&mut packet) {
                (dialer, moved) = (Some(from), true);
                under_way.push_back((now + delay, true, packet[..len].to_vec()));
            }
            if let Ok(len) = back.recv(&mut packet) {
                moved = true;
                under_way.push_back((now + delay, false, packet[..len].to_vec()));
            }
            while let Some((_, there, packet)) = under_way.pop_front_if(|(at, ..)| *at <= now) {
                sent += 1;
                let lost = sent.is_multiple_of(33);
                let _ = match (there, dialer) {
                    _ if lost => Ok(0),
                    (true, _) => back.send_to(&packet, to),
                    (false, Some(dialer)) => front.send_to(&packet, dialer),
                    (false, None) => Ok(0),
                };
            }
            if !moved {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    });
    address
}

/// More flows than a long link tells of in the time that one message may take.
#[test]
fn a_session_of_many_flows_comes_up_again_on_a_long_link() {
    let known: Vec<_> = (0..20_000)
        .map(|number| Pairing {
            direction: Direction::Outbound,
            target_qpn: number,
            requester_qpn: Some(number),
            psn: Some(number),
            src_port: number as u16,
            ..resume::flow()
        })
        .collect();
    let many = || vec![watch::channel(Arc::from(&known[..])).1];
    let mut b = Site::start(Config { pairings: many(), ..config("b", "a", ANYWHERE, ANYWHERE) });
    let to_b = long_link(b.address);
    let mut a = Site::start(Config { pairings: many(), ..config("a", "b", ANYWHERE, to_b) });
    assert!(a.up().pairings == known && b.up().pairings == known);
}

#[test]
fn a_goodbye_is_delivered_with_its_reason() {
    let mut b = listener();
    let mut a = dialer(b.address);
    both_up(&mut a, &mut b);
    a.order(Command::Goodbye(GoodbyeReason::Restart));
    assert_eq!(b.down(), DownReason::Goodbye(GoodbyeReason::Restart));
    let returned = patiently(&a.runtime, a.task);
    assert!(matches!(returned, Ok(Ok(()))), "control returns after the goodbye");

    let mut a = dialer(b.address);
    both_up(&mut a, &mut b);
    b.order(Command::Goodbye(GoodbyeReason::Shutdown));
    assert_eq!(a.down(), DownReason::Goodbye(GoodbyeReason::Shutdown));
}

#[test]
fn the_owner_that_drops_its_commands_means_goodbye() {
    let mut b = listener();
    let mut a = dialer(b.address);
    both_up(&mut a, &mut b);
    drop(a.commands);
    assert_eq!(b.down(), DownReason::Goodbye(GoodbyeReason::Shutdown));
}

#[test]
fn the_dialer_learns_at_once_that_the_listener_restarted() {
    let mut b = listener();
    let address = b.address;
    let mut a = dialer(address);
    let mut before = a.up();
    b.up();
    b.crash();
    let mut b = Site::start(config("b", "a", address, ANYWHERE));
    // Only the stateless reset can say this: silence would be `Silent`.
    assert_eq!(a.down(), DownReason::Restarted);
    let (mut at_a, mut at_b) = (a.up(), b.up());
    assert_joined(&mut at_a, &mut at_b);

    let mut stale = [0; OVERHEAD];
    before.keys[0].0.seal(0, &mut stale, 0).unwrap();
    assert!(matches!(
        at_b.keys[0].1.open(&mut stale),
        Err(Rejected::UnknownSession | Rejected::Authentication)
    ));
}

#[test]
fn a_restarted_dialer_replaces_its_session() {
    let mut b = listener();
    let mut a = dialer(b.address);
    let address = a.address;
    both_up(&mut a, &mut b);
    a.crash();
    let mut a = Site::start(config("a", "b", address, b.address));
    let mut at_a = a.up();
    assert!(matches!(b.down(), DownReason::Replaced | DownReason::Restarted));
    assert_joined(&mut at_a, &mut b.up());
}

#[test]
fn silence_ends_a_session() {
    let mut b = listener();
    let mut impatient = config("a", "b", ANYWHERE, b.address);
    impatient.dead_after = Duration::from_millis(400);
    let mut a = Site::start(impatient);
    both_up(&mut a, &mut b);
    b.crash();
    assert_eq!(a.down(), DownReason::Silent);
}

#[test]
fn a_certificate_of_another_authority_gets_no_session() {
    let mut b = listener();
    let mut config = config("a", "b", ANYWHERE, b.address);
    config.identity = identity(&certificates().join("other"), "a");
    let mut stranger = Site::start(config);
    stranger.refused(Refusal::Authentication);
    stranger.no_session();

    // The listener has been spoken to by a dialer that trusts it, but whose certificate it does not
    // know.
    let mut config = super::tests::config("a", "b", ANYWHERE, b.address);
    let dir = mixed_authorities();
    config.identity = identity(dir.path(), "a");
    let control = Runtime::new().unwrap().block_on(async { Control::bind(config) });
    assert!(matches!(control, Err(StartError::Identity(IdentityError::Own { .. }))));
    let reached = connect(&b, &identity(dir.path(), "a"), |_| Vec::new());
    assert_eq!(reached, None, "the handshake fails");
    b.refused(Refusal::Authentication);
    b.no_session();
}

/// The certificate of another authority, but the right authority's to trust.
fn mixed_authorities() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.crt", "a.key"] {
        std::fs::copy(certificates().join("other").join(name), dir.path().join(name)).unwrap();
    }
    std::fs::copy(certificates().join("ca.crt"), dir.path().join("ca.crt")).unwrap();
    dir
}

#[test]
fn a_certificate_of_the_right_authority_but_another_name_gets_no_session() {
    // The listener expects a, c dials: its certificate is good, but not a's.
    let mut b = listener();
    let reached = connect(&b, &identity(certificates(), "c"), |hello| {
        let mut bytes = Vec::new();
        Message::Hello(hello).encode(&mut bytes);
        bytes
    });
    assert_eq!(reached, None, "the handshake fails");
    b.refused(Refusal::Authentication);
    b.no_session();

    // The dialer expects c, b answers.
    let mut a = Site::start(config("a", "c", ANYWHERE, b.address));
    a.refused(Refusal::Authentication);
    a.no_session();
    b.no_session();
}

#[test]
fn what_a_stranger_fails_of_is_counted_and_does_not_cover_up_the_peers_failure() {
    let elsewhere = SocketAddr::new([127, 0, 0, 9].into(), 14791);
    let b = Site::start(config("b", "a", ANYWHERE, elsewhere));
    assert_eq!(connect(&b, &identity(certificates(), "a"), |_| vec![0xff; 64]), Some(close::ADDRESS));
    b.refused(Refusal::Address);
    assert_eq!(connect(&b, &identity(certificates(), "c"), |_| Vec::new()), None);
    b.refused(Refusal::Authentication);
    let last = b.refusals.take_last().unwrap();
    assert!(last.starts_with("no session: the session would be with 127.0.0.1:"), "{last}");
    assert!(last.ends_with(", and `peer.address` is 127.0.0.9:14791"), "{last}");
    assert_eq!(b.refusals.counts().iter().sum::<u64>(), 2);
}

/// A stolen certificate is of use only at the peer's own address.
#[test]
fn another_address_with_the_right_certificate_gets_no_session_and_ends_none() {
    let mut b = listener();
    let mut a = dialer(b.address);
    both_up(&mut a, &mut b);
    let elsewhere = SocketAddr::new([127, 0, 0, 2].into(), 0);
    let mut thief = Site::start(config("a", "b", elsewhere, b.address));
    b.refused(Refusal::Address);
    thief.refused(Refusal::ByPeer);
    let told = thief.refusals.take_last().unwrap();
    assert!(told.contains("would be with 127.0.0.2:") && told.contains("is 127.0.0.1:"), "{told}");
    thief.no_session();
    a.no_session();
    b.no_session();
}

#[test]
fn a_revoked_certificate_gets_no_session_of_either_side() {
    let revoked = |name: &str| {
        let certificate = identity(certificates(), name).certificate().cloned().unwrap();
        vec![SerialNumber::of(&certificate).unwrap()]
    };
    let mut b = Site::start(Config { revoked: revoked("a"), ..config("b", "a", ANYWHERE, ANYWHERE) });
    let mut a = dialer(b.address);
    b.refused(Refusal::Revoked);
    a.refused(Refusal::ByPeer);
    let why = b.refusals.take_last().unwrap();
    assert!(why.to_lowercase().contains("revoked"), "{why}");
    let impostor = b.refusals.take_impostor().unwrap();
    assert!(impostor.reason == Refusal::Revoked && impostor.address.ip() == a.address.ip(), "{impostor:?}");
    assert_eq!((a.refusals.take_impostor(), b.refusals.take_impostor().map(|_| ())), (None, None));
    b.no_session();
    a.no_session();

    let mut b = listener();
    let mut a = Site::start(Config { revoked: revoked("b"), ..config("a", "b", ANYWHERE, b.address) });
    a.refused(Refusal::Revoked);
    assert_eq!(a.refusals.take_impostor().map(|impostor| impostor.address), Some(b.address));
    a.no_session();
    b.no_session();

    // Somebody else's does not matter.
    let mut b = listener();
    let mut a = Site::start(Config { revoked: revoked("c"), ..config("a", "b", ANYWHERE, b.address) });
    let session = a.up();
    assert_eq!(session.peer.certificate.as_ref(), revoked("b").first());
    b.up();
}

/// Keys that are used up make way for new ones, at both sides and for every thread.
#[test]
fn forgeries_at_their_bound_end_the_session_and_another_begins() {
    let mut b = listener();
    let mut a = dialer(b.address);
    let (mut here, there) = (a.up(), b.up());
    use_up(&mut here, &mut a);
    assert_eq!((a.down(), b.down()), (DownReason::Spent, DownReason::Spent));
    let (again, _) = (a.up(), b.up());
    assert_ne!(again.peer.local_session, there.peer.remote_session);
    assert!(!again.resumes);
}

/// Has the session's keys used up by forgeries.
fn use_up(session: &mut Session, site: &mut Site) {
    session.keys[0].1.allow_forgeries(2);
    for left in [1, 0] {
        site.no_session();
        let session_number = session.peer.local_session as u16;
        let mut forged =
            Header { epoch: 0, thread: 0, lane: 0, session: session_number, packet_number: left };
        forged.packet_number += 1;
        let mut datagram = forged.encode().to_vec();
        datagram.extend_from_slice(&[0; 40]);
        assert_eq!(session.keys[0].1.open(&mut datagram), Err(Rejected::Authentication));
    }
}

#[test]
fn what_breaks_the_protocol_gets_no_session() {
    let mut b = listener();
    let a = || identity(certificates(), "a");
    let encoded = |message: &Message| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes
    };

    let other_version = |hello: Hello| {
        let mut bytes = encoded(&Message::Hello(hello));
        bytes[6] = 99;
        bytes
    };
    assert_eq!(connect(&b, &a(), other_version), Some(close::VERSION));
    b.refused(Refusal::Version);
    let why = format!("no session: the peer speaks protocol version 99, this gateway {VERSION}");
    assert_eq!(b.refusals.take_last(), Some(why));

    let other_site = |hello| encoded(&Message::Hello(Hello { site: "c".into(), ..hello }));
    let with_pairings = |mut bytes: Vec<u8>| {
        crate::message::encode_all_pairings(&[], &mut bytes);
        bytes
    };
    assert_eq!(connect(&b, &a(), |hello| with_pairings(other_site(hello))), Some(close::SITE));
    b.refused(Refusal::Site);

    let none = Ciphers { aegis: false, aes: false, chacha: false, hardware_aes: true, hardware_gcm: true };
    let no_cipher = |hello| with_pairings(encoded(&Message::Hello(Hello { ciphers: none, ..hello })));
    assert_eq!(connect(&b, &a(), no_cipher), Some(close::CIPHER));
    b.refused(Refusal::Cipher);

    assert_eq!(connect(&b, &a(), |_| vec![0xff; 64]), Some(close::PROTOCOL));
    assert_eq!(
        connect(&b, &a(), |_| encoded(&Message::Goodbye(GoodbyeReason::Shutdown))),
        Some(close::PROTOCOL)
    );
    b.refused(Refusal::Protocol);
    b.no_session();

    // None of it stands in the way of the true peer.
    let mut a = dialer(b.address);
    assert_joined(&mut a.up(), &mut b.up());
}

#[test]
fn connections_that_say_nothing_are_bounded_and_give_way() {
    let mut b = listener();
    let identity = identity(certificates(), "a");
    let runtime = Runtime::new().unwrap();
    let endpoint = runtime.block_on(async { open_towards_all(&identity) });
    let client = client_config(&identity);
    let address = b.address;
    let dial = || async { endpoint.connect_with(client.clone(), address, "b").unwrap().await };
    let silent: Vec<_> = (0..8).map(|_| patiently(&runtime, dial()).unwrap()).collect();
    assert!(patiently(&runtime, dial()).is_err(), "one too many");
    b.refused(Refusal::Busy);
    b.no_session();
    for connection in silent {
        connection.close(VarInt::from_u32(0), b"");
    }
    let mut a = dialer(b.address);
    assert_joined(&mut a.up(), &mut b.up());
}

#[test]
fn a_peer_that_breaks_the_protocol_later_loses_its_session() {
    let mut b = listener();
    let late_hello = |hello: Hello| {
        let mut bytes = Vec::new();
        Message::Hello(hello.clone()).encode(&mut bytes);
        crate::message::encode_all_pairings(&[], &mut bytes);
        Message::Hello(hello).encode(&mut bytes);
        bytes
    };
    assert_eq!(connect(&b, &identity(certificates(), "a"), late_hello), Some(close::PROTOCOL));
    b.up();
    assert_eq!(b.down(), DownReason::Protocol(MessageError::OutOfOrder(1)));
}

#[test]
fn a_configuration_that_cannot_work_is_refused() {
    let runtime = Runtime::new().unwrap();
    let bind = |config| runtime.block_on(async { Control::bind(config) }).unwrap_err();
    let taken = std::net::UdpSocket::bind(ANYWHERE).unwrap();
    let address = taken.local_addr().unwrap();
    let last = SocketAddr::new(ANYWHERE.ip(), u16::MAX);
    let ok = || config("a", "b", ANYWHERE, address);
    assert!(matches!(bind(config("a", "A", ANYWHERE, address)), StartError::SameName(_)));
    assert!(matches!(bind(config("a", "b", last, address)), StartError::NoBulkPort(_)));
    assert!(matches!(bind(config("a", "b", ANYWHERE, last)), StartError::NoBulkPort(_)));
    assert!(matches!(bind(config("a", "b", address, ANYWHERE)), StartError::Bind { .. }));
    assert!(matches!(
        bind(config("a", "no name", ANYWHERE, address)),
        StartError::Identity(IdentityError::Name(_))
    ));
    let other = Config { identity: identity(certificates(), "c"), ..ok() };
    assert!(matches!(bind(other), StartError::Identity(IdentityError::Own { .. })));
    let ages = Config { dead_after: Duration::MAX, ..ok() };
    assert!(matches!(bind(ages), StartError::DeadAfter(_)));
}

/// An endpoint whose peer is on this machine, as all are.
fn open_towards_all(identity: &Identity) -> quinn::Endpoint {
    let socket = std::net::UdpSocket::bind(ANYWHERE).unwrap();
    let strangers = Strangers::new(ANYWHERE.ip(), Arc::default());
    open(socket, identity, None, (strangers, Gate::default())).unwrap()
}

fn client_config(identity: &Identity) -> quinn::ClientConfig {
    let tls = identity.client_config("b", &[]).unwrap();
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
}

/// Dials b by hand, says what `greeting` makes of a faultless hello, and waits for b to close the
/// connection. Returns the code, or none if it was TLS that ended it.
fn connect(to: &Site, identity: &Identity, greeting: impl FnOnce(Hello) -> Vec<u8>) -> Option<VarInt> {
    let ciphers = Ciphers::detect(&Cipher::ALL);
    let hello = Hello { session: 1, ciphers, max_datagram: 1472, ..Hello::plain() };
    let bytes = greeting(hello);
    let closed = patiently(&Runtime::new().unwrap(), async {
        let endpoint = open_towards_all(identity);
        let client = client_config(identity);
        let connection = endpoint.connect_with(client, to.address, "b").unwrap().await?;
        let (mut send, _recv) = connection.open_bi().await?;
        // The other side may hang up meanwhile.
        let _ = send.write_all(&bytes).await;
        Err::<(), _>(connection.closed().await)
    });
    match closed.unwrap_err() {
        ConnectionError::ApplicationClosed(closed) => Some(closed.error_code),
        ConnectionError::ConnectionClosed(_) => None,
        other => panic!("{other}"),
    }
}
