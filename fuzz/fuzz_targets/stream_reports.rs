//! A sender in the midst of something and reports of a peer that lies: nothing panics, nothing is
//! sent beyond the window, and honest reports still end it.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::{Script, epoch};
use reliability::stream::{Scheme, Sender, SenderConfig, StreamId};

const MAX_PACKET: usize = 400;
const WINDOW: usize = 300;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let mut now = epoch();
    let scheme = script.pick(&[
        Scheme::sr(),
        Scheme::None,
        Scheme::Xor { k: 6, m: 2, depth: 2 },
        Scheme::Mds { k: 5, m: 2, depth: 3 },
        Scheme::mds(8, 3),
        Scheme::Hybrid { k: 5, m: 2, depth: 3 },
        Scheme::hybrid(32, 8),
    ]);
    let config = SenderConfig { scheme, window: WINDOW, ..SenderConfig::new(StreamId(7), MAX_PACKET) };
    let mut sender = Sender::new(config, now);
    let mut out = [0; MAX_PACKET];
    let mut sent = 0_u64;
    while !script.is_over() {
        match script.u8() % 6 {
            0 => {
                let record = [1; 1000];
                let length = script.length(record.len());
                let _ = sender.push(&[&record[..length]], now);
            }
            1 => {
                for _ in 0..script.u8() {
                    let Some(_) = sender.poll_transmit(now, &mut out) else { break };
                    sent = sent.max(end(&out));
                }
            }
            2 => {
                now += script.span();
                sender.handle_timeout(now);
            }
            3 => {
                let length = script.length(MAX_PACKET);
                let _ = sender.handle_report(script.bytes(length), now);
            }
            _ => {
                let report = report(&mut script, sent);
                let _ = sender.handle_report(&report, now);
            }
        }
        assert!(sender.first_unacknowledged(0, sent).is_none_or(|first| sent - first <= WINDOW as u64));
    }
    finish(sender, now, sent);
});

/// An honest receiver that has all of it.
fn finish(mut sender: Sender, mut now: std::time::Instant, mut sent: u64) {
    let mut out = [0; MAX_PACKET];
    // The lies may have named a number of report that is far ahead: each round goes on from
    // there.
    for round in 0..40_u32 {
        for _ in 0..2000 {
            let Some(_) = sender.poll_transmit(now, &mut out) else { break };
            sent = sent.max(end(&out));
        }
        for quarter in 0..4 {
            let mut report = vec![3, 0, 0, 7];
            report.extend((quarter << 30 | (1 << 29) + round).to_be_bytes());
            report.extend(sent.to_be_bytes());
            report.extend(sent.to_be_bytes());
            report.extend([0; 8]);
            report.extend(100_000_u32.to_be_bytes());
            report.extend([0; 12]);
            let _ = sender.handle_report(&report, now);
        }
        now += Duration::from_millis(50);
        sender.handle_timeout(now);
        if sender.is_idle() {
            return;
        }
    }
    assert!(sender.is_idle(), "{:?}", sender.stats());
}

/// The number after that of a DATA packet; 0 if it is another.
fn end(packet: &[u8]) -> u64 {
    let is_data = packet[0] & 0xc0 == 0x80;
    let low = u32::from_be_bytes(*packet[7..].first_chunk().expect("a header"));
    if is_data { u64::from(low) + 1 } else { 0 }
}

/// A REPORT that may be: near what was sent.
fn report(script: &mut Script<'_>, sent: u64) -> Vec<u8> {
    let mut report = vec![3, 0, 0, 7];
    let number = if script.u8() == 0 { script.u32() } else { u32::from(script.u8()) };
    report.extend(number.to_be_bytes());
    report.extend(sent.saturating_sub(u64::from(script.u8())).to_be_bytes());
    report.extend(u64::from(script.u16()).to_be_bytes());
    report.extend(script.u32().to_be_bytes());
    report.extend(u32::from(script.u16()).to_be_bytes());
    let window = if script.u8() == 0 { script.u32() } else { u32::from(script.u16()) };
    report.extend(window.to_be_bytes());
    report.extend(u32::from(script.u8() % 8).to_be_bytes());
    report.extend(u32::from(script.u16()).to_be_bytes());
    let [words, nacks] = [script.u8() % 8, script.u8() % 8];
    report.extend([0, words, 0, nacks]);
    report.extend(script.bytes(usize::from(words) * 8));
    report.resize(48 + usize::from(words) * 8, 0);
    let mut first = 0_u32;
    for _ in 0..nacks {
        first += u32::from(script.u8());
        let run = script.u8().max(1);
        report.extend(first.to_be_bytes());
        report.extend([script.u8() & 0x80, run]);
        first += u32::from(run);
    }
    report
}
