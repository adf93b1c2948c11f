//! Sealed datagrams, delivered in any order, repeated, damaged or made up. Each text arrives at
//! most once and unchanged, and nothing else arrives.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::{Script, within};
use session::schedule::{EXPORTER_BYTES, Role, Secrets};
use session::{Cipher, MOST_LANES, OVERHEAD, Opener, Rejected, Sealer, seal};

const SESSION: u32 = 0x0102_0304;
const MOST_TEXT: usize = 64;
const MOST_DATAGRAMS: usize = 1 << 10;

/// A replay window of 128 KiB for each lane, keys, and the datagrams that are kept.
const BOUND: u64 = MOST_LANES as u64 * (128 << 10) + (512 << 10);

fuzz_target!(|input: &[u8]| within(BOUND, "sealer and opener", || run(&mut Script::new(input))));

/// A datagram that was sealed, and whether its text has arrived.
struct Sent {
    datagram: Vec<u8>,
    text: Vec<u8>,
    has_arrived: bool,
}

fn run(script: &mut Script<'_>) {
    let cipher = script.pick(&Cipher::ALL);
    let packets_per_epoch = script.pick(&[1, 2, 7, 1 << 28]);
    let lanes = 1 + script.u8() % MOST_LANES;
    let exporter = [7; EXPORTER_BYTES];
    let derive = |role| Secrets::derive(&exporter, role, cipher).expect("keys");
    let mut sealer = Sealer::new(SESSION, derive(Role::Dialer).send, packets_per_epoch).expect("a sealer");
    let mut opener = Opener::new(SESSION, derive(Role::Listener).receive, lanes).expect("an opener");
    let mut sent: Vec<Sent> = Vec::new();
    while !script.is_over() {
        match script.u8() % 4 {
            0 if sent.len() < MOST_DATAGRAMS => sent.push(send(&mut sealer, script.u8() % lanes, script)),
            1 | 2 if !sent.is_empty() => {
                let place = usize::from(script.u16()) % sent.len();
                deliver(&mut opener, &mut sent[place]);
            }
            3 if !sent.is_empty() => {
                let place = usize::from(script.u16()) % sent.len();
                damage(&mut opener, &sent[place].datagram, script);
            }
            _ => {
                let length = script.length(2 * OVERHEAD);
                let opened = opener.open(&mut script.bytes(length).to_vec()).is_ok();
                assert!(!opened, "made up");
            }
        }
    }
}

fn send(sealer: &mut Sealer, lane: u8, script: &mut Script<'_>) -> Sent {
    let length = script.length(MOST_TEXT);
    let text = script.bytes(length).to_vec();
    let mut datagram = vec![0; seal::HEADER];
    datagram.extend_from_slice(&text);
    datagram.extend_from_slice(&[0; OVERHEAD - seal::HEADER]);
    assert_eq!(sealer.seal(lane, &mut datagram, text.len()), Ok(datagram.len()));
    Sent { datagram, text, has_arrived: false }
}

fn deliver(opener: &mut Opener, sent: &mut Sent) {
    match opener.open(&mut sent.datagram.clone()) {
        Ok(text) => {
            assert!(!sent.has_arrived, "twice");
            assert_eq!(text, sent.text);
            sent.has_arrived = true;
        }
        Err(Rejected::Replay) => assert!(sent.has_arrived, "no replay"),
        // Its key is not there any more, or not yet; eight epochs back looks like eight ahead.
        Err(error) => assert!(matches!(error, Rejected::Epoch | Rejected::Authentication)),
    }
}

/// Changes one bit of a datagram, or cuts it short.
fn damage(opener: &mut Opener, datagram: &[u8], script: &mut Script<'_>) {
    let mut datagram = datagram.to_vec();
    let place = usize::from(script.u16()) % datagram.len();
    match script.u8() {
        bit @ 0..8 => datagram[place] ^= 1 << bit,
        _ => datagram.truncate(place),
    }
    match opener.open(&mut datagram) {
        Ok(_) => panic!("damaged"),
        Err(error) => assert_ne!(error, Rejected::Replay, "only what is authentic is a replay"),
    }
}
