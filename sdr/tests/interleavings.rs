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
use sdr::slot::Gate;
use sdr::{Mtu, QpAttr, Shape};

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
