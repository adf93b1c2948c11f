//! Every interleaving of workers and program on the bitmaps and the gate of a slot, by model
//! checking.
//!
//! Payload stands in loom's cells, which fail on any access that is not ordered before another one.

#![expect(unsafe_code, reason = "the model's cells are reached as the payload is")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sdr::bitmap::Bitmaps;
use sdr::blob::{BackEnd, Blob};
use sdr::imm::{PacketImm, fragment};
use sdr::slot::Gate;
use sdr::{Buffer, Lander, Mtu, QpAttr, RecvHandle, Shape, connect};

/// Chunks of two packets.
fn shape() -> Shape {
    let attr = QpAttr { mtu: Mtu::B64, chunk_log: 7, in_flight_log: 8, messages_log: 1, ..QpAttr::default() };
    Shape::new(&attr).unwrap()
}

/// A slot of two packets, whose payload is a number each.
struct Model {
    shape: Shape,
    gate: Gate,
    bitmaps: Bitmaps,
    payload: [UnsafeCell<u32>; 2],
}

// SAFETY: the cells check each access in the model.
unsafe impl Sync for Model {}
// SAFETY: as above.
unsafe impl Send for Model {}

impl Model {
    fn open() -> Arc<Self> {
        let shape = shape();
        let bitmaps = Bitmaps::new(&shape, 128);
        let gate = Gate::new();
        gate.open(0);
        Arc::new(Model { shape, gate, bitmaps, payload: [UnsafeCell::new(0), UnsafeCell::new(0)] })
    }

    /// Takes in `packet` of message 0, as a worker does. Returns true if it finished the chunk.
    fn take(&self, packet: u32, value: u32) -> bool {
        let Some(_pinned) = self.gate.enter(|number| number == 0) else {
            return false;
        };
        if !self.bitmaps.claim(packet) {
            return false;
        }
        // SAFETY: the packet was claimed and the slot is pinned; loom checks that.
        self.payload[packet as usize].with_mut(|place| unsafe { *place = value });
        self.bitmaps.land(&self.shape, packet, 128).is_some()
    }

    fn read(&self, packet: usize) -> u32 {
        // SAFETY: the chunk's bit was seen, or the gate is vacant; loom checks that.
        self.payload[packet].with(|place| unsafe { *place })
    }
}

/// Two workers with a duplicate between them: one finishes the chunk, once, and who sees its bit
/// sees all bytes.
#[test]
fn the_bit_is_set_once_and_after_all_bytes() {
    loom::model(|| {
        let model = Model::open();
        let worker = |packets: [u32; 2]| {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                packets.map(|packet| u32::from(model.take(packet, packet + 7))).iter().sum::<u32>()
            })
        };
        let workers = [worker([0, 1]), worker([1, 0])];
        if model.bitmaps.chunk(0) {
            assert_eq!([model.read(0), model.read(1)], [7, 8]);
        }
        let finished: u32 = workers.map(|worker| worker.join().unwrap()).iter().sum();
        assert_eq!(finished, 1);
        assert!(model.bitmaps.chunk(0) && model.bitmaps.packet(0) && model.bitmaps.packet(1));
        assert_eq!([model.read(0), model.read(1)], [7, 8]);
    });
}

/// A packet comes while the receive is completed. The gate is vacant on return.
fn complete_beside_a_late_packet(model: &Arc<Model>) -> thread::JoinHandle<bool> {
    let late = {
        let model = Arc::clone(model);
        thread::spawn(move || model.take(0, 7))
    };
    model.gate.close();
    while !model.gate.is_vacant() {
        thread::yield_now();
    }
    late
}

/// A late worker against a program that completes: the buffer does not change once the gate is
/// vacant.
#[test]
fn a_late_packet_changes_no_completed_buffer() {
    loom::model(|| {
        let model = Model::open();
        let late = complete_beside_a_late_packet(&model);
        let there = model.bitmaps.packet(0);
        // The buffer is the program's: it writes, and no worker may be doing the same.
        // SAFETY: the gate is vacant; loom checks that.
        let value = model.payload[0].with_mut(|place| unsafe { std::mem::replace(&mut *place, 1) });
        assert_eq!(value, if there { 7 } else { 0 });
        late.join().unwrap();
        assert_eq!(model.read(0), 1);
    });
}

/// The slot is opened for another message while a late worker passes by: nothing of the old one
/// gets in.
#[test]
fn a_reopened_slot_takes_nothing_of_its_last_message() {
    loom::model(|| {
        let model = Model::open();
        let late = complete_beside_a_late_packet(&model);
        model.bitmaps.clear(&model.shape, 128);
        // SAFETY: the gate is vacant; loom checks that.
        model.payload[0].with_mut(|place| unsafe { *place = 1 });
        model.gate.open(2);
        late.join().unwrap();
        assert!(!model.bitmaps.packet(0) && !model.bitmaps.chunk(0));
        assert_eq!(model.read(0), 1);
    });
}

/// A chunk of two words: the workers of its last two packets, one in each word, finish it once.
#[test]
fn a_chunk_of_several_words_is_finished_once() {
    loom::model(|| {
        let attr =
            QpAttr { mtu: Mtu::B64, chunk_log: 13, in_flight_log: 14, messages_log: 1, ..QpAttr::default() };
        let shape = Shape::new(&attr).unwrap();
        let bitmaps = Arc::new(Bitmaps::new(&shape, 8192));
        for packet in (0..128).filter(|packet| packet % 64 != 63) {
            assert!(bitmaps.claim(packet) && bitmaps.land(&shape, packet, 8192).is_none());
        }
        let worker = |packet| {
            let bitmaps = Arc::clone(&bitmaps);
            thread::spawn(move || {
                u32::from(bitmaps.claim(packet) && bitmaps.land(&shape, packet, 8192).is_some())
            })
        };
        let workers = [worker(63), worker(127)];
        let finished: u32 = workers.map(|worker| worker.join().unwrap()).iter().sum();
        assert_eq!((finished, bitmaps.chunk(0), bitmaps.arrived(128)), (1, true, 128));
    });
}

/// A receive of one chunk of eight packets, and a worker's part of it.
fn posted() -> (RecvHandle, Lander) {
    let attr =
        QpAttr { mtu: Mtu::B64, chunk_log: 9, in_flight_log: 10, messages_log: 1, ..QpAttr::default() };
    let attr = QpAttr { rate: 1_000_000, ..attr };
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    let now = std::time::Instant::now();
    let blob = Blob::new(attr, BackEnd::None, Vec::new()).unwrap();
    let mut receive = connect(&blob, &blob, 0, now).unwrap().receive.unwrap();
    (receive.post(Buffer::zeroed(512)).unwrap(), receive.lander())
}

/// The last packet of a message comes while the program looks: with all bits set, the immediate is
/// there, and completing gives the buffer at once.
#[test]
fn who_sees_all_bits_has_the_immediate_and_the_buffer() {
    const IMM: u32 = 0x89ab_cdef;
    loom::model(|| {
        let (handle, lander) = posted();
        let land = move |offset| {
            let imm = PacketImm { id: 0, offset, fragment: fragment(IMM, offset) }.encode();
            lander.land(0, imm, &[offset as u8; 64]).unwrap()
        };
        (0..7).for_each(|offset| assert_eq!(land(offset).finished, None));
        let worker = thread::spawn(move || land(7));
        while !handle.bitmap().all() {
            thread::yield_now();
        }
        assert_eq!(handle.imm(), Some(IMM));
        let Ok(completed) = handle.complete().poll() else { panic!("no worker writes any more") };
        assert_eq!((completed.is_whole(), completed.imm), (true, Some(IMM)));
        assert_eq!(completed.buffer.as_slice()[448..], [7; 64]);
        assert_eq!(worker.join().unwrap().finished, Some(0));
    });
}

/// The same with a program that completes whenever it likes.
#[test]
fn a_whole_message_completes_with_its_immediate() {
    loom::model(|| {
        let (handle, lander) = posted();
        let land = move |offset| lander.land(0, PacketImm { id: 0, offset, fragment: 1 }.encode(), &[1; 64]);
        (0..7).for_each(|offset| assert!(land(offset).is_ok()));
        let worker = thread::spawn(move || land(7).is_ok());
        let mut closing = handle.complete();
        let completed = loop {
            match closing.poll() {
                Ok(completed) => break completed,
                Err(again) => closing = again,
            }
            thread::yield_now();
        };
        assert_eq!(worker.join().unwrap(), completed.is_whole());
        assert_eq!(completed.imm.is_some(), completed.is_whole());
        assert_eq!(completed.buffer.as_slice()[448], u8::from(completed.is_whole()));
    });
}
