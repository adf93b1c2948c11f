//! A stream's two ends and a path that loses, copies, delays and overtakes: every record comes at
//! most once and as it was, and in the end all come.
#![no_main]

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::{Script, epoch};
use reliability::stream::{Full, Origin, Receiver, ReceiverConfig, Scheme, Sender, SenderConfig, StreamId};

const STREAM: StreamId = StreamId(7);
const MAX_RECORD: usize = 6000;
const MOST_RECORDS: u32 = 300;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let mut pair = Pair::new(&mut script);
    while !script.is_over() {
        pair.step(&mut script);
    }
    pair.finish();
});

struct Pair {
    now: Instant,
    sender: Sender,
    receiver: Receiver,
    /// Packets and reports on their way.
    packets: VecDeque<Vec<u8>>,
    reports: VecDeque<Vec<u8>>,
    longest: usize,
    pushed: u32,
    delivered: BTreeSet<u32>,
    /// Some scheme of those used forgets what it sent.
    forgets: bool,
}

impl Pair {
    fn new(script: &mut Script<'_>) -> Self {
        let now = epoch();
        let scheme = scheme(script);
        let max_packet = 256 + script.length(1200);
        let window = 1 << (script.u8() % 11);
        let config = SenderConfig {
            scheme,
            window,
            max_record: MAX_RECORD,
            max_backlog: 1 << 16,
            max_buffered: 1 << 18,
            rate: (script.u8() & 1 == 1).then_some(100_000_000),
            ..SenderConfig::new(STREAM, max_packet)
        };
        let receiver = ReceiverConfig {
            window: window.max(1 << (script.u8() % 11)),
            max_record: MAX_RECORD,
            decode_buffer: 1 << (12 + script.u8() % 8),
            ..ReceiverConfig::new(STREAM, 1500)
        };
        Self {
            now,
            sender: Sender::new(config, now),
            receiver: Receiver::new(receiver, now),
            packets: VecDeque::new(),
            reports: VecDeque::new(),
            longest: max_packet,
            pushed: 0,
            delivered: BTreeSet::new(),
            forgets: scheme == Scheme::None,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.u8() % 12 {
            0 | 1 => self.push(script),
            2 | 3 => self.transmit(1 + usize::from(script.u8() % 32)),
            4 | 5 => self.carry(script),
            6 => self.report(1 + usize::from(script.u8() % 4)),
            7 => self.answer(script),
            8 => self.wait(script.span()),
            9 => {
                let scheme = scheme(script);
                self.forgets |= scheme == Scheme::None;
                self.sender.set_scheme(scheme);
            }
            10 => {
                let bytes = 256 + script.length(1200);
                self.longest = self.longest.max(bytes);
                self.sender.set_max_packet(bytes);
            }
            _ => self.tune(script),
        }
        assert!(self.sender.backlog() <= (1 << 16) + 2 * MAX_RECORD);
    }

    fn tune(&mut self, script: &mut Script<'_>) {
        match script.u8() % 5 {
            0 => self.sender.set_window(1 << (script.u8() % 11)),
            1 => self.sender.release_spare(),
            2 => self.receiver.release_spare(),
            3 => self.receiver.set_reorder_time(script.span()),
            _ => self.sender.set_flush(script.span()),
        }
    }

    fn push(&mut self, script: &mut Script<'_>) {
        let bits = script.u8();
        let group = [0, 1, 128, 129][usize::from(bits >> 2 & 3)];
        let origin = Origin { source: u64::from(bits % 4), group, is_apart: bits >> 4 & 1 == 1 };
        let goes_first = script.u8() & 1 == 1;
        let length = 4 + script.length(MAX_RECORD - 4);
        if self.pushed == MOST_RECORDS {
            return;
        }
        match self.sender.push_from(origin, goes_first, &[&record(self.pushed, length)], self.now) {
            Ok(()) => self.pushed += 1,
            Err(Full::Oversize) => panic!("{length} bytes are not too many"),
            Err(Full::Backlog | Full::Buffered) => {}
        }
    }

    fn transmit(&mut self, most: usize) {
        let mut out = vec![0; self.longest];
        for _ in 0..most {
            let Some(transmit) = self.sender.poll_transmit(self.now, &mut out) else { return };
            assert!(transmit.len <= self.longest);
            self.packets.push_back(out[..transmit.len].to_vec());
        }
    }

    /// Decides on the packets under way: deliver, lose, copy, put behind the others.
    fn carry(&mut self, script: &mut Script<'_>) {
        let (fates, mut count) = (script.u16(), 0);
        while let Some(packet) = self.packets.pop_front().filter(|_| count < 8) {
            match fates >> (2 * count) & 3 {
                0 => self.receive(&packet),
                1 => {}
                2 => {
                    self.receive(&packet);
                    self.receive(&packet);
                }
                _ => self.packets.push_back(packet),
            }
            count += 1;
        }
    }

    fn receive(&mut self, packet: &[u8]) {
        let (pushed, delivered) = (self.pushed, &mut self.delivered);
        let mut deliver = |bytes: &[u8]| {
            let id = u32::from_be_bytes(*bytes.first_chunk().expect("records have a number"));
            assert!(id < pushed, "record {id} of {pushed}");
            assert!(bytes == record(id, bytes.len()), "record {id} is another");
            assert!(delivered.insert(id), "record {id} comes twice");
        };
        self.receiver.handle_packet(packet, self.now, &mut deliver).expect("an honest packet");
    }

    fn report(&mut self, most: usize) {
        let mut out = [0; 1500];
        for _ in 0..most {
            let Some(len) = self.receiver.poll_report(self.now, &mut out) else { return };
            self.reports.push_back(out[..len].to_vec());
        }
    }

    fn answer(&mut self, script: &mut Script<'_>) {
        let fate = script.u8() % 4;
        let Some(report) = self.reports.pop_front() else { return };
        if fate == 0 {
            return;
        }
        if fate == 1 {
            self.reports.push_back(report);
            return;
        }
        for _ in 1..fate {
            self.sender.handle_report(&report, self.now).expect("an honest report");
        }
    }

    fn wait(&mut self, span: Duration) {
        self.now += span;
        self.sender.handle_timeout(self.now);
        self.receiver.handle_timeout(self.now);
    }

    /// Nothing is lost any more: all that was pushed comes.
    fn finish(mut self) {
        for _ in 0..2000 {
            if self.sender.is_idle() && self.packets.is_empty() {
                break;
            }
            self.transmit(64);
            while let Some(packet) = self.packets.pop_front() {
                self.receive(&packet);
            }
            self.report(100);
            while let Some(report) = self.reports.pop_front() {
                self.sender.handle_report(&report, self.now).expect("an honest report");
            }
            let due = [self.sender.next_timeout(), self.receiver.next_timeout()];
            let due = due.into_iter().flatten().min().unwrap_or(self.now);
            self.wait(due.saturating_duration_since(self.now).max(Duration::from_micros(100)));
        }
        assert!(self.sender.is_idle(), "{:?}, {:?}", self.sender.stats(), self.receiver.stats());
        if !self.forgets {
            assert_eq!(self.delivered.len(), self.pushed as usize, "{:?}", self.receiver.stats());
        }
    }
}

/// The record with this number.
fn record(id: u32, length: usize) -> Vec<u8> {
    let mut record: Vec<u8> = (0..length).map(|at| (at as u8).wrapping_mul(31) ^ id as u8).collect();
    record[..4].copy_from_slice(&id.to_be_bytes());
    record
}

fn scheme(script: &mut Script<'_>) -> Scheme {
    let (kind, k, m, depth) = (script.u8() % 8, script.u8(), script.u8(), script.u8() % 16);
    let (k, m) = if kind & 4 == 0 { (k % 12, m % 6) } else { (k, m) };
    match kind & 3 {
        0 => Scheme::sr(),
        1 if m & 1 == 1 => Scheme::Xor { k, m, depth },
        1 => Scheme::None,
        2 => Scheme::Mds { k, m, depth },
        _ => Scheme::Hybrid { k, m, depth },
    }
}
