//! Receives that a device writes to.

use std::io;
use std::time::Instant;

use super::*;
use crate::blob::{BackEnd, Blob};
use crate::memory::Region;
use crate::{Connected, QpAttr, connect};

/// A device that takes all memory, or none.
struct Fake {
    takes: bool,
}

impl Registry for Fake {
    fn register(&self, _: &Region) -> io::Result<usize> {
        if self.takes { Ok(1) } else { Err(io::ErrorKind::OutOfMemory.into()) }
    }
}

fn receiver(takes: bool) -> (RecvQp, Lander, Connected) {
    let rtt = std::time::Duration::from_millis(1);
    let attr = QpAttr { chunk_log: 10, messages_log: 1, in_flight_log: 14, rtt, ..QpAttr::default() };
    let blob = Blob::new(attr, BackEnd::VerbsUc, Vec::new()).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    let mut connected = connect(&blob, &blob, 0, Instant::now()).unwrap();
    let receive = connected.receive.take().unwrap();
    let lander = receive.lander();
    lander.set_registry(Arc::new(Fake { takes }));
    (receive, lander, connected)
}

fn imm(id: u32, offset: u32) -> u32 {
    PacketImm { id, offset, fragment: 0 }.encode()
}

/// Until the device has left, the buffer is not the program's, and packets that it reports late
/// change nothing.
#[test]
fn a_completed_buffer_waits_for_the_device_and_late_packets_change_nothing() {
    let (mut receive, lander, _connected) = receiver(true);
    let handle = receive.post(Buffer::zeroed(4096)).unwrap();
    assert!(lander.placed(None, imm(0, 2), 1024).is_ok());
    assert_eq!(lander.placed(None, imm(0, 2), 1024), Err(Refused::Duplicate));
    assert_eq!(lander.placed(None, imm(0, 3), 1023), Err(Refused::Length));
    let mut closing = handle.complete();
    for offset in 0..2 {
        closing = closing.poll().expect_err("the device is inside");
        assert_eq!(lander.placed(None, imm(0, offset), 1024), Err(Refused::Late));
    }
    lander.0.slot(0).unwrap().device_leaves();
    let Ok(completed) = closing.poll() else { panic!("the device has left") };
    assert_eq!(completed.chunks, [false, false, true, false]);
    assert_eq!(
        (lander.refused(Refused::Late), lander.placed(None, imm(0, 0), 1024)),
        (2, Err(Refused::Late))
    );
}

/// A packet that comes by the queue pairs of another generation fell into the NULL key.
/// The slot has another message by now, and its bits stay as they are.
#[test]
fn a_packet_of_another_generation_is_late_although_the_slot_is_open() {
    let (mut receive, lander, _connected) = receiver(true);
    for number in 0..5u32 {
        let handle = receive.post(Buffer::zeroed(4096)).unwrap();
        let slot = number % 2;
        for generation in (0..4).filter(|generation| *generation != number / 2) {
            assert_eq!(lander.placed(Some(generation), imm(slot, 0), 1024), Err(Refused::Late));
        }
        assert_eq!(handle.arrived(), 0);
        assert!(lander.placed(Some(number / 2), imm(slot, 0), 1024).is_ok());
        assert_eq!(handle.arrived(), 1);
        let closing = handle.complete();
        lander.0.slot(slot).unwrap().device_leaves();
        assert!(closing.poll().is_ok());
    }
}

/// A device that ended holds up nobody: neither handles that are open, nor one that is dropped,
/// nor one that is posted at the same time.
#[test]
fn an_ended_device_frees_every_buffer() {
    let (mut receive, lander, _connected) = receiver(true);
    let (open, dropped) = (receive.post(Buffer::zeroed(1)), receive.post(Buffer::zeroed(1)));
    drop(dropped);
    assert!(!lander.0.slot(1).unwrap().free.load(Acquire));
    lander.device_leaves();
    lander.0.reap(1, lander.0.slot(1).unwrap());
    assert!(lander.0.slot(1).unwrap().free.load(Acquire));
    assert!(open.unwrap().complete().poll().is_ok());
    lander.0.peer.issued.store(2, Release);
    assert!(receive.post(Buffer::zeroed(1)).unwrap().complete().poll().is_ok());
}

#[test]
fn memory_that_the_device_refuses_comes_back() {
    let (mut receive, _, _connected) = receiver(false);
    let unposted = receive.post(Buffer::from(vec![7; 9])).map(|_| ()).unwrap_err();
    assert_eq!((unposted.error, unposted.buffer.as_slice()), (PostError::Device, &[7; 9][..]));
    assert_eq!(receive.posted(), 0);
}
