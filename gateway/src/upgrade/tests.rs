//! Two ends of a take-over over a pair of sockets.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use session::resumption::Resumption;
use snapshot::{Beside, Written};
use zeroize::Zeroizing;

use super::channel::Kind;
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

fn pair() -> [Channel; 2] {
    let (one, other) = UnixStream::pair().unwrap();
    [one, other].map(|stream| Channel::new(stream, PATIENCE).unwrap())
}

#[test]
fn the_highest_version_that_both_know_is_taken() {
    assert_eq!(common([1, 3], [2, 5]), Some(3));
    assert_eq!(common([2, 5], [1, 3]), Some(3));
    assert_eq!(common([1, 1], [1, 1]), Some(1));
    assert_eq!(common([1, 2], [3, 4]), None);
    assert_eq!(common([3, 4], [1, 2]), None);
}

#[test]
fn messages_arrive_whole_with_what_is_beside_them() {
    let [mut one, mut other] = pair();
    let file = tempfile::tempfile().unwrap();
    let long = vec![7; 3 << 20];
    let sender = std::thread::spawn(move || {
        one.send_json(Kind::Socket, &Place::Bulk(1, 2, 3), Some(file.as_fd())).unwrap();
        one.send(Kind::Snapshot, &[&[1, 2], &long]).unwrap();
        one.send(Kind::Whole, &[]).unwrap();
    });
    let (place, descriptor) = other.receive_json::<Place>(Kind::Socket).unwrap();
    assert!(place == Place::Bulk(1, 2, 3) && descriptor.is_some());
    let message = other.receive(|_| 4 << 20).unwrap();
    assert_eq!((message.kind, message.body.len()), (Kind::Snapshot, (3 << 20) + 2));
    assert!(message.descriptor.is_none() && message.body[..3] == [1, 2, 7]);
    other.expect(Kind::Whole).unwrap();
    sender.join().unwrap();
    assert!(matches!(other.expect(Kind::Whole), Err(Broken::Gone)));
}

#[test]
fn what_breaks_the_protocol_is_named() {
    let refused = |bytes: &[u8]| {
        let (mut one, other) = UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut one, bytes).unwrap();
        drop(one);
        let mut other = Channel::new(other, PATIENCE).unwrap();
        other.receive(|_| 10).unwrap_err().to_string()
    };
    assert_eq!(refused(&[99, 0, 0, 0, 0, 0, 0, 0, 0]), "the other process sent a message of kind 99");
    assert_eq!(
        refused(&[6, 11, 0, 0, 0, 0, 0, 0, 0]),
        "the other process sent Snapshot of 11 bytes, where 10 are allowed"
    );
    assert!(refused(&[6, 255, 255, 255, 255, 255, 255, 255, 255]).contains("where 10 are allowed"));
    assert_eq!(refused(&[6, 5, 0, 0, 0, 0, 0, 0, 0, 1]), "the other process has gone away");
    assert_eq!(refused(&[11, 2, 0, 0, 0, 0, 0, 0, 0, b'n', b'o']), "no");
    assert_eq!(refused(&[]), "the other process has gone away");
}

/// Whoever says nothing is given up.
#[test]
fn silence_ends_at_the_deadline() {
    let (stream, _silent) = UnixStream::pair().unwrap();
    let mut channel = Channel::new(stream, Duration::from_millis(20)).unwrap();
    assert!(matches!(channel.expect(Kind::Yours), Err(Broken::Late)));
    assert!(matches!(channel.expect(Kind::Yours), Err(Broken::Late)));
    // Nor is a reader that takes nothing waited for.
    channel.set_patience(Duration::from_millis(20));
    let result = channel.send(Kind::Snapshot, &[&vec![0; 64 << 20]]);
    assert!(matches!(result, Err(Broken::Late)), "{result:?}");
}

fn stand() -> Stand {
    Stand {
        protocol: 0,
        snapshot: 0,
        build: "1.2.3".to_owned(),
        executable: executable(),
        pid: std::process::id(),
        control_group: None,
        watchdog: None,
        site: "a".to_owned(),
        peers: vec!["b".to_owned(), "c".to_owned()],
        threads: 2,
        // An older version does not say: they have as many.
        peer_threads: Vec::new(),
        sockets: 0,
        waiting: vec![Waiting { thread: 1, peer: 0, bytes: 1 << 20 }],
        retained: None,
        is_member: true,
    }
}

#[test]
fn each_pair_of_threads_has_a_state() {
    assert_eq!((stand().pairs(0), stand().pairs(1), stand().all_pairs()), (2, 2, 4));
    let differing = Stand { peer_threads: vec![3, 2], ..stand() };
    assert_eq!((differing.pairs(0), differing.pairs(1), differing.all_pairs()), (6, 2, 8));
}

/// Plays the old process behind an admin socket, with `then` once it is to stand still.
fn old(path: &std::path::Path, then: impl FnOnce(Giver) + Send + 'static) -> std::thread::JoinHandle<()> {
    old_with_stream(path, |giver, _, _| then(giver))
}

/// The same, with the stream that its messages take, and the rooms that it was offered.
fn old_with_stream(
    path: &std::path::Path,
    then: impl FnOnce(Giver, UnixStream, Vec<Beside>) + Send + 'static,
) -> std::thread::JoinHandle<()> {
    let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").unwrap();
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        let same = stream.try_clone().unwrap();
        let mut rooms = Vec::new();
        let giver = Giver::prepare(stream, stand(), &[(Place::Control(1), file)], |offers| {
            rooms.extend(offers.into_iter().map(|offer| (offer.alive, offer.beside)));
        });
        if let Ok(giver) = giver {
            assert!(rooms.iter().all(|(alive, _)| alive.upgrade().is_some()));
            then(giver, same, rooms.into_iter().map(|(_, beside)| beside).collect());
        } else {
            assert!(rooms.iter().all(|(alive, _)| alive.upgrade().is_none()));
        }
    })
}

/// Plays an old process that has these bytes once it is to stand still.
fn raw_old(path: &std::path::Path, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
    old_with_stream(path, move |_giver, mut stream, _| {
        // Whoever has heard enough reads no further.
        let _ = std::io::Write::write_all(&mut stream, &bytes);
    })
}

fn give(giver: &mut Giver, snapshot: &[u8]) -> Result<(), Broken> {
    giver.site(1, Instant::now(), b"site")?;
    giver.claim(1, &Resumption::new(Zeroizing::new([9; 32])))?;
    for (thread, peer) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        giver.state(thread, peer, Instant::now(), snapshot)?;
    }
    giver.ask_if_taken()
}

#[test]
fn everything_crosses_and_the_old_process_hears_that_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let old = old(&path, |mut giver| {
        give(&mut giver, b"state").unwrap();
        giver.commit().unwrap();
        giver.wait_until_known();
    });
    let mut heir = Heir::connect(&path).unwrap();
    let Stand { protocol, snapshot, peers, .. } = heir.stand().clone();
    assert_eq!((protocol, snapshot, peers.len()), (3, snapshot::VERSION, 2));
    assert!(heir.take(Place::Control(1)).is_some() && heir.take(Place::Lock).is_none());
    let given = heir.receive(24).unwrap();
    let [site] = &given.sites[..] else { panic!("{:?}", given.sites) };
    assert!(site.thread == 1 && site.snapshot() == b"site" && site.then <= Instant::now());
    assert!(given.claims[0].is_none());
    assert_eq!(given.claims[1].as_ref().unwrap().exposed(), &[9; 32]);
    assert_eq!(given.parts.len(), 4);
    assert!(given.parts.iter().all(|part| part.snapshot() == b"state" && part.then <= Instant::now()));
    heir.conclude().unwrap();
    heir.dismiss();
    old.join().unwrap();
}

/// A thread's state crosses in its room, and the others' beside.
#[test]
fn a_state_crosses_in_shared_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let packet = |byte: u8| snapshot::Packet::from(vec![byte; 1000]);
    let old = old_with_stream(&path, move |mut giver, _, mut rooms| {
        let (mut packets, now) = ([packet(1), packet(2)], Instant::now());
        let mut room = rooms.pop().unwrap();
        assert_eq!(packets[0].copy_ahead(&mut room), 1000);
        // It has changed since.
        packets[0].extend_from_slice(&[3]);
        assert_eq!(packets[1].copy_ahead(&mut room), 1000);
        let (written, room) = snapshot::write_beside(&packets, now, room);
        let Written::There(len) = written.unwrap() else { panic!("it has room") };
        assert!(len < 100, "{len}");
        giver.keep(room.unwrap());
        for (thread, peer) in [(0, 0), (0, 1), (1, 1)] {
            giver.state(thread, peer, now, b"state").unwrap();
        }
        giver.state_in_room(1, 0, now, len).unwrap();
        giver.ask_if_taken().unwrap();
        giver.commit().unwrap();
    });
    let mut heir = Heir::connect(&path).unwrap();
    heir.offer_room().unwrap().unwrap();
    heir.await_copied().unwrap();
    let given = heir.receive(15).unwrap();
    let part = given.parts.last().unwrap();
    let segments = part.room().unwrap().segments();
    let read: [snapshot::Packet; 2] = snapshot::read_beside(part.snapshot(), segments, part.then).unwrap();
    assert!(read[0].starts_with(&[1; 1000]) && read[0].ends_with(&[1, 3]) && *read[1] == *packet(2));
    assert!(given.parts[..3].iter().all(|part| part.room().is_none() && part.snapshot() == b"state"));
    heir.conclude().unwrap();
    // Packets outlive everything else.
    drop((given, heir));
    old.join().unwrap();
    assert!(read[1].iter().all(|byte| *byte == 2));
}

/// Rooms that are none, and states that are in none.
#[test]
fn a_room_that_is_not_as_it_says_is_refused() {
    let extent = Extent::of(&Waiting { thread: 0, peer: 0, bytes: 100 });
    let (room, file) = Room::new(&extent).unwrap();
    assert!(room.state(extent.state).is_some() && room.state(extent.state + 1).is_none());
    assert!(open_room(&extent, &file).is_ok());
    let other = Extent { packets: extent.packets + snapshot::SEGMENT, ..extent };
    assert!(matches!(open_room(&other, &file), Err(NoRoom::Other)));
    // It could be cut while it is in use.
    let unsealed = tempfile::tempfile().unwrap();
    unsealed.set_len(extent.bytes() as u64).unwrap();
    assert!(open_room(&extent, &unsealed.into()).is_err());
    assert!(rustix::fs::ftruncate(&file, 0).is_err());
    assert!(matches!(super::room::check(usize::MAX), Err(NoRoom::Memory { .. })));
}

/// Whatever the new process does not like, and whenever it vanishes.
#[test]
fn the_old_process_hears_that_it_has_to_go_on() {
    let steps: [fn(Heir); 5] = [
        |heir| drop(heir),
        |mut heir| heir.refuse("the file is bad"),
        |mut heir| assert!(matches!(heir.receive(23), Err(NotTaken::Broken(Broken::Protocol(_))))),
        |mut heir| drop(heir.receive(24).unwrap()),
        |mut heir| {
            heir.receive(24).unwrap();
            heir.refuse("it does not fit");
        },
    ];
    for step in steps {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let old = old(&path, |mut giver| {
            let refused = give(&mut giver, b"state").unwrap_err();
            assert!(matches!(refused, Broken::Gone | Broken::Refused(_)), "{refused:?}");
        });
        step(Heir::connect(&path).unwrap());
        old.join().unwrap();
    }
}

#[test]
fn files_that_take_a_restart_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let old = old(&path, |_| {});
    let text = include_str!("../../../docs/examples/gateway-a.toml");
    let gateway = config::Gateway::parse(std::path::Path::new("etc/a.toml"), text).unwrap();
    let heir = Heir::connect(&path).unwrap();
    let why = heir.check(&gateway).unwrap_err().to_string();
    assert!(why.contains("in the files and") && why.ends_with("that takes a restart"), "{why}");
    drop(heir);
    old.join().unwrap();
}

/// Messages of every kind, and of none, with bodies of any length, said or true.
fn made_up() -> impl Strategy<Value = Vec<u8>> {
    let body = prop_oneof![
        vec(any::<u8>(), 0..80),
        // A claim of peer 0 or 1; a snapshot's numbers, and an age within a second or any.
        (0..3_u8).prop_map(|peer| [&[peer][..], &[9; 32]].concat()),
        ([0..3_u8, 0..3_u8], prop_oneof![0..1_000_000_000_u64, any::<u64>()], vec(any::<u8>(), 0..12))
            .prop_map(|(numbers, age, state)| [&numbers[..], &age.to_le_bytes(), &state].concat()),
    ];
    let kind = prop_oneof![1 => any::<u8>(), 8 => 4..=8_u8, 1 => Just(16)];
    let len = prop_oneof![9 => Just(None), 1 => any::<u64>().prop_map(Some)];
    let message = (kind, body, len).prop_map(|(kind, body, len)| {
        let len = len.unwrap_or(body.len() as u64);
        [&[kind][..], &len.to_le_bytes(), &body].concat()
    });
    vec(message, 0..8).prop_map(|messages| messages.concat())
}

proptest! {
    /// Whatever comes is read or named, and no body is longer than its kind may be.
    #[test]
    fn made_up_messages_are_read_or_named(bytes in made_up()) {
        let (mut one, other) = UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut one, &bytes).unwrap();
        drop(one);
        let mut channel = Channel::new(other, PATIENCE).unwrap();
        let mut left = bytes.len();
        loop {
            match channel.receive(|kind| kind as usize * 8) {
                Ok(message) => {
                    prop_assert!(message.body.len() <= message.kind as usize * 8);
                    left -= 9 + message.body.len();
                }
                Err(Broken::Gone | Broken::Protocol(_) | Broken::Refused(_)) => break,
                Err(other) => prop_assert!(false, "{other:?}"),
            }
        }
        prop_assert!(left <= bytes.len());
    }

    /// A new process takes the state of each thread and peer once, or nothing.
    #[test]
    fn made_up_state_is_taken_whole_or_not(bytes in made_up()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let old = raw_old(&path, bytes);
        let mut heir = Heir::connect(&path).unwrap();
        if let Ok(given) = heir.receive(40) {
            let mut places: Vec<_> = given.parts.iter().map(|part| (part.thread, part.peer)).collect();
            places.sort_unstable();
            prop_assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1)]);
            prop_assert!(given.parts.iter().map(|part| part.snapshot().len()).sum::<usize>() <= 40);
            prop_assert!(given.parts.iter().all(|part| part.then <= Instant::now()));
        }
        drop(heir);
        old.join().unwrap();
    }
}

/// A gateway that is stopped, for instance: nobody else is to be looked for.
#[test]
fn a_gateway_that_does_not_answer_is_told_from_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    assert!(matches!(Heir::connect(&path), Err(NotTaken::Nobody { .. })));
    let _silent = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(matches!(Heir::connect(&path), Err(NotTaken::Silent { .. })));
}
