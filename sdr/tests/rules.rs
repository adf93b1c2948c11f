//! Each bound of the core, and what bad input gets, one by one.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use sdr::blob::{BackEnd, Blob};
use sdr::imm::PacketImm;
use sdr::wire::{Credit, Malformed, data_header};
use sdr::{
    Buffer, Connected, ControlError, Mtu, PostError, QpAttr, RecvHandle, Refused, Rejected, SendError, Slice,
    connect, max_datagram,
};

/// Two slots of 1 KiB, chunks of 128 bytes, packets of 64, 1 Mbit/s over 25 ms.
fn attr() -> QpAttr {
    QpAttr {
        chunk_log: 7,
        in_flight_log: 11,
        messages_log: 1,
        mtu: Mtu::B64,
        rate: 1_000_000,
        ..QpAttr::default()
    }
}

fn start() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    Instant::now()
}

/// Two connected ends, and what goes between them without delay or loss.
struct Pair {
    near: Connected,
    far: Connected,
    now: Instant,
}

impl Pair {
    fn new() -> Self {
        let now = start();
        let blob = Blob::new(attr(), BackEnd::None, Vec::new()).unwrap();
        let end = || connect(&blob, &blob, 0, now).unwrap();
        Pair { near: end(), far: end(), now }
    }

    fn exchange(&mut self) {
        let mut out = vec![0; max_datagram(&attr())];
        let mut moved = true;
        while std::mem::take(&mut moved) {
            let (near, far) = (&mut self.near.engine, &mut self.far.engine);
            for (from, to) in [(&mut *near, &mut *far)] {
                while let Some(packet) = from.poll_transmit(self.now, &mut out) {
                    let _ = to.handle(&out[..packet.len], self.now);
                    moved = true;
                }
                while let Some(packet) = to.poll_transmit(self.now, &mut out) {
                    let _ = from.handle(&out[..packet.len], self.now);
                    moved = true;
                }
            }
        }
    }

    fn post(&mut self, bytes: usize) -> Result<RecvHandle, PostError> {
        self.far.receive.as_mut().unwrap().post(Buffer::zeroed(bytes)).map_err(|unposted| unposted.error)
    }

    fn send(&mut self, bytes: usize, imm: Option<u32>) -> Result<(), SendError> {
        let data = Slice::from(vec![7; bytes]);
        self.near.send.as_mut().unwrap().post(data, 0, imm, self.now).map(drop)
    }
}

fn packet(id: u32, offset: u32) -> u32 {
    PacketImm { id, offset, fragment: 0 }.encode()
}

#[test]
fn a_packet_that_fits_nowhere_changes_nothing() {
    let mut pair = Pair::new();
    let handle = pair.post(200).unwrap();
    let lander = pair.far.receive.as_ref().unwrap().lander();
    let full = [1; 64];
    let cases: [(u8, u32, &[u8], Refused); 7] = [
        (0, packet(2, 0), &full, Refused::Slot),
        (0, packet(1, 0), &full, Refused::Late),
        (1, packet(0, 0), &full, Refused::Late),
        // Short, and not the buffer's end.
        (0, packet(0, 0), &full[..63], Refused::Length),
        // The buffer's last packet has 8 bytes.
        (0, packet(0, 3), &full, Refused::Length),
        (0, packet(0, 4), &full, Refused::Length),
        (0, packet(0, (1 << 18) - 1), &full, Refused::Length),
    ];
    for (generation, imm, payload, refused) in cases {
        assert_eq!(lander.land(generation, imm, payload), Err(refused));
    }
    assert_eq!((handle.arrived(), handle.bitmap().missing().count()), (0, 2));
    assert_eq!(lander.refused(Refused::Length), 4);
    assert_eq!(lander.land(0, packet(0, 2), &full).unwrap().finished, None);
    assert_eq!(lander.land(0, packet(0, 2), &full), Err(Refused::Duplicate));
    assert_eq!(lander.land(0, packet(0, 3), &full[..8]).unwrap().finished, Some(1));
    assert_eq!(handle.packets(1).collect::<Vec<_>>(), [true, true]);
    let Ok(completed) = handle.complete().poll() else { panic!() };
    assert_eq!(completed.chunks, [false, true]);
    assert_eq!(lander.land(0, packet(0, 0), &full), Err(Refused::Late));
    assert!(completed.buffer.as_slice()[..128].iter().all(|byte| *byte == 0));
}

#[test]
fn a_send_beyond_a_bound_is_an_error_by_name() {
    let mut pair = Pair::new();
    assert_eq!(pair.send(64, None), Err(SendError::Retry));
    let _handles = [pair.post(1024).unwrap(), pair.post(1024).unwrap()];
    assert_eq!(pair.post(1024).err(), Some(PostError::Retry));
    assert_eq!(pair.post(0).err(), Some(PostError::Empty));
    assert_eq!(pair.post(1025).err(), Some(PostError::TooLong { len: 1025, most: 1024 }));
    pair.exchange();
    assert_eq!(pair.send(0, None), Err(SendError::Empty));
    assert_eq!(pair.send(1025, None), Err(SendError::TooLong { end: 1025, most: 1024 }));
    assert_eq!(pair.send(448, Some(1)), Err(SendError::Immediate));
    let send = pair.near.send.as_mut().unwrap();
    let mut stream = send.stream(Some(9), pair.now).unwrap();
    stream.write(0, vec![0; 256].into()).unwrap();
    assert_eq!(stream.write(8, vec![0; 1].into()), Err(SendError::TooLong { end: 1025, most: 1024 }));
    assert_eq!(stream.write(u32::MAX, vec![0; 64].into()).err().map(|_| ()), Some(()));
    assert_eq!(stream.end().err(), Some(SendError::Immediate));
    assert_eq!(pair.send(512, Some(1)), Ok(()));
    assert_eq!(pair.send(64, None), Err(SendError::Retry), "two credits");
}

/// An open stream holds its id, whatever credit there is.
#[test]
fn a_slot_is_the_messages_until_it_left() {
    let mut pair = Pair::new();
    let _first = pair.post(64).unwrap();
    let second = pair.post(64).unwrap();
    pair.exchange();
    let mut stream = pair.near.send.as_mut().unwrap().stream(None, pair.now).unwrap();
    assert_eq!(pair.send(64, None), Ok(()));
    pair.exchange();
    drop((_first, second));
    let _third = pair.post(64).unwrap();
    pair.exchange();
    assert_eq!(pair.send(64, None), Err(SendError::Retry));
    stream.write(0, vec![1; 64].into()).unwrap();
    drop(stream);
    assert_eq!(pair.send(64, None), Err(SendError::Retry));
    pair.exchange();
    assert_eq!(pair.send(64, None), Ok(()));
}

/// Tiny messages come round long before their packets are dead: the sender waits, and then goes on.
#[test]
fn an_id_and_generation_come_round_only_when_old_packets_are_dead() {
    let mut pair = Pair::new();
    let generations = pair.near.agreed.generations;
    let mut issued = 0;
    let mut once = |pair: &mut Pair| {
        let handle = pair.post(64).unwrap();
        // The path is instantaneous, so only the pacer's pause is waited for.
        pair.exchange();
        pair.send(64, None)?;
        pair.exchange();
        assert_eq!(handle.number(), issued);
        assert!(handle.bitmap().all(), "message {issued}");
        issued += 1;
        Ok::<(), SendError>(())
    };
    let first_rounds = (generations - 1) * 2;
    for _ in 0..first_rounds {
        assert_eq!(once(&mut pair), Ok(()));
    }
    assert_eq!(once(&mut pair), Err(SendError::Retry));
    pair.now += pair.near.agreed.lifetime - Duration::from_nanos(1);
    assert_eq!(pair.send(64, None), Err(SendError::Retry));
    pair.now += Duration::from_nanos(1);
    assert_eq!(pair.send(64, None), Ok(()));
}

/// A receiver that completes messages before they are sent cannot run away from its sender.
#[test]
fn receives_are_posted_no_further_than_slots_beyond_what_was_issued() {
    let mut pair = Pair::new();
    for _ in 0..2 {
        drop(pair.post(64).unwrap());
    }
    assert_eq!(pair.post(64).err(), Some(PostError::Retry));
    pair.exchange();
    assert_eq!(pair.send(64, None), Ok(()));
    // Told by credit: the packet itself is late.
    pair.now += Duration::from_millis(50);
    pair.exchange();
    assert_eq!(pair.far.receive.as_ref().unwrap().lander().refused(Refused::Late), 1);
    assert_eq!(pair.post(64).map(|handle| handle.number()).ok(), Some(2));
    assert_eq!(pair.post(64).err(), Some(PostError::Retry));
}

#[test]
fn credits_that_the_peer_cannot_have_are_refused() {
    let mut pair = Pair::new();
    let cases = [
        Credit { posted: 3, ..Credit::default() },
        Credit { issued: 1, ..Credit::default() },
        Credit { seen_posted: 1, ..Credit::default() },
        Credit { seen_issued: 1, ..Credit::default() },
    ];
    for credit in cases {
        assert_eq!(pair.near.engine.handle(&credit.encode(), pair.now), Err(Rejected::Implausible));
    }
    assert_eq!(pair.near.engine.stats().implausible, 4);
    assert_eq!(pair.send(64, None), Err(SendError::Retry));
    // Credits that overtake each other, or come twice, take nothing back.
    for posted in [2, 1, 2, 0] {
        let credit = Credit { posted, ..Credit::default() };
        assert_eq!(pair.near.engine.handle(&credit.encode(), pair.now), Ok(()));
    }
    assert_eq!([pair.send(64, None), pair.send(64, None)], [Ok(()), Ok(())]);
    assert_eq!(pair.send(64, None), Err(SendError::Retry));
}

#[test]
fn a_silent_peer_ends_every_handle_within_its_time() {
    let mut pair = Pair::new();
    let handle = pair.post(64).unwrap();
    pair.exchange();
    let stream = pair.near.send.as_mut().unwrap().stream(None, pair.now).unwrap();
    let mut out = [0; 2048];
    let deadline = pair.now + attr().patience;
    for end in [&mut pair.near.engine, &mut pair.far.engine] {
        let mut now = pair.now;
        while now < deadline + Duration::from_millis(1) {
            assert!(!end.has_ended() || now > deadline);
            while end.poll_transmit(now, &mut out).is_some() {}
            now = end.next_timeout(now).max(now + Duration::from_millis(1));
        }
        while end.poll_transmit(now, &mut out).is_some() {}
        assert!(end.has_ended());
    }
    assert!(handle.has_ended() && stream.has_ended());
    assert_eq!(pair.post(64).err(), Some(PostError::Ended));
    assert_eq!(pair.send(64, None), Err(SendError::Ended));
    assert_eq!(pair.near.control.send(b"?"), Err(ControlError::Ended));
    assert!(handle.complete().poll().is_ok(), "the buffer comes back");
}

/// Half a round trip later, to be exact: what it sent before may have been overtaken.
#[test]
fn a_peer_that_closes_is_gone_as_soon_as_its_packets_are() {
    let mut pair = Pair::new();
    let handle = pair.post(64).unwrap();
    pair.exchange();
    pair.near.engine.close();
    pair.exchange();
    assert!(!handle.has_ended());
    let lander = pair.far.receive.as_ref().unwrap().lander();
    assert!(lander.land(0, packet(0, 0), &[1; 64]).is_ok() && handle.bitmap().all());
    let until = pair.far.engine.next_timeout(pair.now);
    assert_eq!(until, pair.now + attr().rtt / 2);
    // Nothing is said to it any more, be it a credit, a word or a packet.
    let _second = pair.post(64).unwrap();
    pair.far.control.send(b"?").unwrap();
    pair.now = until - Duration::from_nanos(1);
    assert_eq!(pair.far.engine.poll_transmit(pair.now, &mut [0; 2048]), None);
    assert!(!handle.has_ended());
    pair.now = until;
    pair.exchange();
    assert!(handle.has_ended() && pair.far.engine.has_ended() && pair.far.control.has_ended());
}

#[test]
fn the_control_path_is_bounded_both_ways() {
    let mut pair = Pair::new();
    assert_eq!(pair.near.control.send(&[0; 1025]), Err(ControlError::TooLong(1025)));
    let mut count = 0;
    while pair.near.control.send(&[1; 1024]).is_ok() {
        count += 1;
    }
    assert_eq!((count, pair.near.control.send(b"x")), (1024, Err(ControlError::Retry)));
    pair.exchange();
    assert_eq!(pair.near.control.send(b"one more"), Ok(()));
    pair.exchange();
    assert_eq!(pair.far.engine.stats().unread, 1);
    assert_eq!(pair.far.control.receive().as_deref(), Some(&[1; 1024][..]));
}

/// Bytes of any kind end in an error or in a packet in place, and never in a panic.
#[test]
fn arbitrary_bytes_do_no_harm() {
    let mut pair = Pair::new();
    let _handle = pair.post(1024).unwrap();
    let mut rng = Pcg64Mcg::seed_from_u64(30);
    for _ in 0..if cfg!(miri) { 300 } else { 100_000 } {
        let mut bytes = [0; 96];
        rng.fill_bytes(&mut bytes);
        let len = (rng.next_u64() % 97) as usize;
        bytes[0] &= 3;
        if rng.next_u64().is_multiple_of(2) {
            bytes[1..4].fill(0);
        }
        let _ = pair.far.engine.handle(&bytes[..len], pair.now);
    }
    assert!(pair.far.engine.stats().malformed > 0);
    let short = [&data_header(0, 0)[..]].concat();
    let result = pair.far.engine.handle(&short, pair.now);
    assert_eq!(result, Err(Rejected::Malformed(Malformed::Length)));
}
