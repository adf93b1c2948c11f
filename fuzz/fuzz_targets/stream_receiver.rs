//! A receiver and packets of a peer that lies: nothing panics, no report is endless, memory stays
//! within the bounds, and a sender that keeps to the rules still gets through.
#![no_main]

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::{Script, epoch, within};
use reliability::stream::{Receiver, ReceiverConfig, StreamId};

const WINDOW: usize = 512;
const MAX_RECORD: usize = 16 << 10;
const JOIN_BUFFER: usize = 64 << 10;
const DECODE_BUFFER: usize = 1 << 20;
/// Bytes that a receiver may hold. By its `ReceiverConfig`: cut records (and two of the longest
/// beside them), copies for decoding. Beside these the tables of the largest group that there may
/// be, a packet's worth of scratch for each that a block may miss, and bookkeeping for each packet
/// of the window.
const BOUND: u64 =
    (JOIN_BUFFER + 2 * MAX_RECORD + DECODE_BUFFER + LARGEST_GROUP + 2 * 255 * MAX_PACKET + WINDOW * 256)
        as u64;
const LARGEST_GROUP: usize = 2 << 20;
const MAX_PACKET: usize = 400;

fuzz_target!(|input: &[u8]| within(BOUND, "a receiver", || run(input)));

fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut now = epoch();
    let config = ReceiverConfig {
        window: WINDOW,
        max_record: MAX_RECORD,
        join_buffer: JOIN_BUFFER,
        decode_buffer: DECODE_BUFFER,
        ..ReceiverConfig::new(StreamId(7), MAX_PACKET)
    };
    let mut receiver = Receiver::new(config, now);
    // Around here.
    let mut sequence = 0;
    while !script.is_over() {
        match script.u8() % 8 {
            0 => {
                now += script.span();
                receiver.handle_timeout(now);
                reports(&mut receiver, now);
            }
            1 => sequence = if script.u8() == 0 { script.u64() } else { u64::from(script.u16()) },
            2 => {
                let length = script.length(MAX_PACKET);
                take(&mut receiver, script.bytes(length), now);
            }
            3 => {
                let packet = parity(&mut script, sequence);
                take(&mut receiver, &packet, now);
            }
            4 => receiver.release_spare(),
            _ => {
                let packet = data(&mut script, sequence);
                take(&mut receiver, &packet, now);
            }
        }
    }
    reports(&mut receiver, now);
}

fn take(receiver: &mut Receiver, packet: &[u8], now: Instant) {
    let before = receiver.stats().malformed;
    let taken =
        receiver.handle_packet(packet, now, &mut |record| assert!(record.len() <= MAX_RECORD.max(0x7ffe)));
    assert_eq!(receiver.stats().malformed - before, u64::from(taken.is_err()));
}

fn reports(receiver: &mut Receiver, now: Instant) {
    let mut out = [0; MAX_PACKET];
    let parts = (0..200).take_while(|_| receiver.poll_report(now, &mut out).is_some()).count();
    assert!(parts < 200, "a report without end");
}

/// Kind with flags and coding, stream.
fn start(kind: u8, coding: u8, script: &mut Script<'_>) -> Vec<u8> {
    vec![kind | script.u8() & 0x30 | (coding & 3) << 2, 7]
}

/// A record's length, or an offset in it.
fn length(value: u32) -> Vec<u8> {
    match value {
        0..0x4000 => (value as u16).to_be_bytes().to_vec(),
        _ => (value | 0x8000_0000).to_be_bytes().to_vec(),
    }
}

/// Mostly a shape that can be.
fn shape(script: &mut Script<'_>) -> [u8; 4] {
    let [kind, k, m, depth] = [script.u8(), script.u8(), script.u8(), script.u8()];
    match kind % 8 {
        0..3 => [1, 0, 0, 0],
        3 => [2, k % 32 + 1, m % (k % 32 + 1) + 1, depth % 8 + 1],
        4 => [3, k % 128 + 1, m % 127 + 1, depth.max(1)],
        5 => [3, k % 8 + 1, m % 4 + 1, depth % 4 + 1],
        6 => [0, 0, 0, 0],
        _ => [kind >> 4 & 3, k, m, depth],
    }
}

fn data(script: &mut Script<'_>, around: u64) -> Vec<u8> {
    let shape = shape(script);
    let mut packet = start(0x80, shape[0], script);
    let sequence = around.wrapping_add(u64::from(script.u8()));
    let packets = u16::from(shape[1]) * u16::from(shape[3]);
    let position = if packets == 0 { 0 } else { script.u16() % packets };
    let floor = if script.u8() == 0 { script.u8() } else { 0xff };
    let times = [script.u8(), floor, script.u8(), 0, script.u8()];
    packet.extend(times);
    packet.extend((sequence as u32).to_be_bytes());
    if shape[0] > 1 {
        packet.extend(&shape[1..]);
        packet.extend(position.to_be_bytes());
        packet.extend([0; 3]);
    }
    for _ in 0..script.u8() % 6 {
        frame(script, &mut packet);
    }
    packet.truncate(MAX_PACKET);
    packet
}

/// A record, or a piece of one.
fn frame(script: &mut Script<'_>, packet: &mut Vec<u8>) {
    let (how, length) = (script.u8(), script.length(120));
    if how & 1 == 0 {
        packet.extend((length as u16 + 1).to_be_bytes());
        packet.resize(packet.len() + length, how);
        return;
    }
    let length = length.max(1);
    let back = if how & 2 == 0 { u16::from(script.u8() & 3) } else { script.u16() };
    let total = if how & 4 == 0 { u32::from(script.u16()) % MAX_RECORD as u32 } else { MAX_RECORD as u32 };
    let offset = match how >> 3 & 3 {
        0 => 0,
        1 => total.saturating_sub(length as u32),
        _ => u32::from(script.u16()) % total.max(1),
    };
    packet.push(0x80 | back.min(0x7f) as u8);
    if back >= 0x7f {
        packet.extend(back.to_be_bytes());
    }
    packet.extend(self::length(total));
    if back > 0 {
        packet.extend(self::length(offset));
    }
    packet.resize(packet.len() + length, how);
}

fn parity(script: &mut Script<'_>, around: u64) -> Vec<u8> {
    let shape = shape(script);
    let mut packet = start(0xc0, shape[0], script);
    let packets = u16::from(shape[1]) * u16::from(shape[3]);
    let count = if packets == 0 { 0 } else { 1 + script.u16() % packets };
    let lane = script.u8() % shape[3].max(1);
    let lane = u16::from(lane).min(count.saturating_sub(1)) as u8;
    let index = script.u8() % shape[2].max(1);
    packet.extend([script.u8(), 0, script.u8()]);
    packet.extend((around.wrapping_add(u64::from(script.u8())) as u32).to_be_bytes());
    packet.extend(&shape[1..]);
    packet.extend([lane, index]);
    packet.extend(count.to_be_bytes());
    packet.push(shape[2].max(index.saturating_add(1)));
    let symbol = script.length(MAX_PACKET - packet.len());
    let bytes = script.bytes(symbol.min(16));
    packet.extend(bytes);
    packet.resize(packet.len() + symbol - bytes.len(), 0);
    packet
}
