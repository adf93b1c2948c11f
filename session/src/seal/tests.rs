//! Rules: `docs/protocol.md#rule-nonce`, `rule-epoch`, `rule-forgeries`, `rule-refused`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::time::Instant;

use proptest::prelude::*;

use super::*;

const SEED: [u8; 32] = [7; 32];
const SESSION: u32 = 0x0102_0304;
const CIPHERS: [Cipher; 3] = [Cipher::Aegis128L, Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305];

/// A small deterministic generator (SplitMix64), seeded by the property tests.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

fn sealed(sealer: &mut Sealer, lane: u8, text: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0xee; HEADER];
    buffer.extend_from_slice(text);
    buffer.extend_from_slice(&[0xdd; TAG + 3]);
    let length = sealer.seal(lane, &mut buffer, text.len()).unwrap();
    assert!(buffer[length..].iter().all(|&byte| byte == 0xdd), "nothing is written behind the tag");
    buffer.truncate(length);
    buffer
}

/// State of an opener, for "changes nothing".
fn state(opener: &Opener) -> (u8, Option<u64>, u64, bool, usize) {
    (
        opener.epoch,
        opener.lanes[0].epoch_start,
        opener.newest(),
        opener.previous.is_some(),
        opener.ahead.len(),
    )
}

/// As [`pair`], with so many lanes.
fn lanes(count: u8, cipher: Cipher, per_epoch: u64) -> (Sealer, Opener) {
    use crate::schedule::{Role, Secrets};
    let sender = Secrets::derive(&SEED, Role::Dialer, cipher).unwrap();
    let receiver = Secrets::derive(&SEED, Role::Listener, cipher).unwrap();
    let sealer = Sealer::new(SESSION, sender.send, per_epoch).unwrap();
    (sealer, Opener::new(SESSION, receiver.receive, count).unwrap())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Vectors computed with an independent implementation (Python: hmac; AESGCM and ChaCha20Poly1305
/// of `cryptography`; AEGIS written after the draft and checked against its vectors), for the
/// exporter output 00 01 .. 1f.
#[test]
fn known_answers() {
    use crate::schedule::{Role, Secrets};
    let exporter: [u8; 32] = std::array::from_fn(|index| index as u8);
    #[rustfmt::skip]
    let vectors = [
        (Cipher::Aes128Gcm, Role::Dialer, "010000070102030400000000000000007f56402840d9bb233a2d8498f676386c3b8709622c189454", "01020005fffefdfc000000000000000260d4bf92e8726da359833ad0d2b02f48"),
        (Cipher::Aes128Gcm, Role::Listener, "01000007010203040000000000000000c455a2e65a3ee50a0996466d72f04a8fdc5b5e500ebbfb2d", "01020005fffefdfc00000000000000028c2d16d505515d9c4a6b41275f145331"),
        (Cipher::ChaCha20Poly1305, Role::Dialer, "010000070102030400000000000000005fb23bd5c4abb4a0d9ae86aefbee62a70ff8e1c72eaa1cfe", "01020005fffefdfc0000000000000002ff960c71452c3c392805f306bd57f757"),
        (Cipher::ChaCha20Poly1305, Role::Listener, "01000007010203040000000000000000640f5770cc50763a214ffa4c477eb2dbfe2fd5e5a6488261", "01020005fffefdfc00000000000000020a76e42ac72ff985740e35ddc0cee254"),
        (Cipher::Aegis128L, Role::Dialer, "01000007010203040000000000000000541811b8c6856311aef72de26b5354898198d331952ed58f", "01020005fffefdfc000000000000000226987ad8d227f2c298994e49e8e154c9"),
        (Cipher::Aegis128L, Role::Listener, "0100000701020304000000000000000082c54aac44ac8bb6e5fb712485a141c175a8c32b5020cd33", "01020005fffefdfc0000000000000002b766c9add6ccc767634bb70c231c131a"),
    ];
    for (cipher, role, first, sixth) in vectors {
        let secrets = || Secrets::derive(&exporter, role, cipher).unwrap();
        let mut sealer = Sealer::new(0x0102_0304, secrets().send, 100).unwrap();
        assert_eq!(hex(&sealed(&mut sealer, 7, b"longhaul")), first);
        let mut sealer = Sealer::new(0xfffe_fdfc, secrets().send, 2).unwrap();
        for lane in [0, 5, 0, 5, 0] {
            sealed(&mut sealer, lane, b"");
        }
        assert_eq!(hex(&sealed(&mut sealer, 5, b"")), sixth, "epoch 2, lane 5, packet number 2");
    }
}

#[test]
fn the_two_directions_have_different_keys() {
    use crate::schedule::{Role, Secrets};
    for cipher in CIPHERS {
        let dialer = Secrets::derive(&SEED, Role::Dialer, cipher).unwrap();
        let mut sealer = Sealer::new(SESSION, dialer.send, 10).unwrap();
        let mut own = Opener::new(SESSION, dialer.receive, 1).unwrap();
        assert_eq!(
            own.open(&mut sealed(&mut sealer, 0, b"x")),
            Err(Rejected::Authentication),
            "a reflected packet"
        );
    }
}

#[test]
fn headers_are_read_as_written() {
    let (mut sealer, _) = pair(SESSION, Cipher::Aes128Gcm, &SEED, 10).unwrap();
    let datagram = sealed(&mut sealer, 6, b"text");
    let header = Header::parse(&datagram).unwrap();
    assert_eq!(header, Header { epoch: 0, thread: 0, lane: 6, session: SESSION, packet_number: 0 });
    assert_eq!(header.encode(), datagram[..HEADER]);
    assert_eq!(datagram.len(), 4 + OVERHEAD);
}

#[test]
fn damaged_packets_change_nothing() {
    for cipher in CIPHERS {
        let (mut sealer, mut opener) = pair(SESSION, cipher, &SEED, 2).unwrap();
        for _ in 0..5 {
            opener.open(&mut sealed(&mut sealer, 0, b"before")).unwrap();
        }
        let before = state(&opener);
        let good = sealed(&mut sealer, 0, b"the real one");
        for byte in 0..good.len() {
            for bit in 0..8 {
                let mut forged = good.clone();
                forged[byte] ^= 1 << bit;
                let refused = opener.open(&mut forged).unwrap_err();
                match byte {
                    0 => assert_eq!(refused, Rejected::NotBulk),
                    1 => assert!(matches!(refused, Rejected::Authentication | Rejected::Epoch)),
                    2..4 => assert_eq!(refused, Rejected::Lane),
                    4..8 => assert_eq!(refused, Rejected::UnknownSession),
                    8..16 => {
                        assert_eq!(refused, Rejected::Authentication, "also of a number taken in before");
                    }
                    _ => assert_eq!(refused, Rejected::Authentication),
                }
                assert_eq!(state(&opener), before);
            }
        }
        for length in 0..good.len() {
            let refused = opener.open(&mut good[..length].to_vec()).unwrap_err();
            assert_eq!(
                refused,
                if length < OVERHEAD { Rejected::Truncated } else { Rejected::Authentication }
            );
        }
        assert_eq!(state(&opener), before);
        assert_eq!(opener.open(&mut good.clone()).unwrap(), b"the real one");
        assert_eq!(opener.open(&mut good.clone()), Err(Rejected::Replay));
    }
}

#[test]
fn packets_of_an_earlier_session_are_refused() {
    let (mut old, _) = pair(SESSION, Cipher::Aes128Gcm, &[1; 32], 10).unwrap();
    let (_, mut other_number) = pair(SESSION + 1, Cipher::Aes128Gcm, &SEED, 10).unwrap();
    let (_, mut same_number) = pair(SESSION, Cipher::Aes128Gcm, &SEED, 10).unwrap();
    let stale = sealed(&mut old, 0, b"stale");
    assert_eq!(other_number.open(&mut stale.clone()), Err(Rejected::UnknownSession));
    assert_eq!(same_number.open(&mut stale.clone()), Err(Rejected::Authentication));
}

#[test]
fn buffers_that_are_too_small_are_refused_and_use_up_nothing() {
    let (mut sealer, _) = pair(SESSION, Cipher::Aes128Gcm, &SEED, 10).unwrap();
    for (length, plaintext) in [(0, 0), (HEADER, 0), (OVERHEAD - 1, 0), (OVERHEAD, 1), (100, usize::MAX)] {
        assert_eq!(sealer.seal(0, &mut vec![0; length], plaintext), Err(SealError::TooSmall));
    }
    assert_eq!(sealer.packets(), 0);
    assert_eq!(sealer.seal(0, &mut [0; OVERHEAD], 0), Ok(OVERHEAD));
}

#[test]
fn packet_numbers_run_out() {
    let (mut sealer, mut opener) = pair(SESSION, Cipher::Aes128Gcm, &SEED, u64::MAX).unwrap();
    sealer.next_numbers[0] = u64::MAX - 2;
    let last_but_one = sealed(&mut sealer, 0, b"a");
    let last = sealed(&mut sealer, 0, b"b");
    let mut buffer = [0; 64];
    for _ in 0..2 {
        assert_eq!(sealer.seal(0, &mut buffer, 1), Err(SealError::Exhausted));
    }
    assert_eq!(opener.open(&mut last.clone()).unwrap(), b"b");
    assert_eq!(opener.open(&mut last_but_one.clone()).unwrap(), b"a");
    assert_eq!(opener.open(&mut last.clone()), Err(Rejected::Replay));
}

#[test]
fn epochs_follow_each_other_past_the_wrap_of_their_number() {
    let (mut sealer, mut opener) = pair(SESSION, Cipher::ChaCha20Poly1305, &SEED, 3).unwrap();
    for number in 0..3 * 300_u64 {
        let mut datagram = sealed(&mut sealer, 0, &number.to_be_bytes());
        assert_eq!(u64::from(datagram[1]), number / 3 % 256);
        assert_eq!(opener.open(&mut datagram).unwrap(), number.to_be_bytes());
    }
}

#[test]
fn late_packets_of_the_previous_epoch_open_and_those_before_do_not() {
    let (mut sealer, mut opener) = pair(SESSION, Cipher::Aes128Gcm, &SEED, 2).unwrap();
    let mut packets: Vec<_> = (0..6_u8).map(|number| sealed(&mut sealer, 0, &[number])).collect();
    opener.open(&mut packets[5]).unwrap();
    assert_eq!(opener.open(&mut packets[3]).unwrap(), [3], "of the epoch before");
    assert_eq!(opener.open(&mut packets[1]), Err(Rejected::Epoch), "of the one before that");
    assert_eq!(opener.open(&mut packets[4]).unwrap(), [4]);
    assert_eq!(opener.open(&mut packets[2]).unwrap(), [2]);
}

#[test]
fn an_outage_of_some_epochs_is_survived() {
    let (mut sealer, mut opener) = pair(SESSION, Cipher::Aes128Gcm, &SEED, 2).unwrap();
    let mut packets: Vec<_> = (0..40_u8).map(|number| sealed(&mut sealer, 0, &[number])).collect();
    assert_eq!(opener.open(&mut packets[18]), Err(Rejected::Epoch), "nine epochs ahead");
    assert_eq!(opener.open(&mut packets[16]).unwrap(), [16], "eight epochs ahead");
    assert_eq!(opener.open(&mut packets[32]).unwrap(), [32]);
    assert_eq!(opener.ahead.len(), usize::from(EPOCHS_AHEAD));
}

#[test]
fn the_previous_key_is_dropped_once_its_packets_are_too_old() {
    let (mut sealer, mut opener) = pair(SESSION, Cipher::Aes128Gcm, &SEED, u64::MAX).unwrap();
    let late = sealed(&mut sealer, 0, b"late");
    sealer.epoch_end = 1;
    opener.open(&mut sealed(&mut sealer, 0, b"epoch 1 begins with packet 1")).unwrap();
    sealer.next_numbers[0] = REPLAY_WINDOW;
    opener.open(&mut sealed(&mut sealer, 0, b"")).unwrap();
    assert!(opener.previous.is_some());
    opener.open(&mut sealed(&mut sealer, 0, b"")).unwrap();
    assert!(opener.previous.is_none());
    assert_eq!(opener.open(&mut late.clone()), Err(Rejected::TooOld));
}

#[test]
fn the_first_packet_of_an_epoch_may_come_last() {
    let (mut sealer, mut opener) = pair(SESSION, Cipher::Aes128Gcm, &SEED, 4).unwrap();
    let mut packets: Vec<_> = (0..8_u8).map(|number| sealed(&mut sealer, 0, &[number])).collect();
    for number in [7, 4, 6, 3, 0, 5, 1, 2] {
        assert_eq!(opener.open(&mut packets[number]).unwrap(), [number as u8]);
    }
    assert_eq!(opener.lanes[0].epoch_start, Some(4));
}

#[test]
fn each_lane_has_numbers_and_a_window_of_its_own() {
    let (mut sealer, mut opener) = lanes(2, Cipher::Aes128Gcm, 3);
    let packets = [0, 1, 0, 1].map(|lane| sealed(&mut sealer, lane, &[lane]));
    let header = packets.each_ref().map(|packet| Header::parse(packet).unwrap());
    assert_eq!(header.map(|header| (header.lane, header.packet_number)), [(0, 0), (1, 0), (0, 1), (1, 1)]);
    assert_eq!(header.map(|header| header.epoch), [0, 0, 0, 1], "keys are used up by all lanes together");
    for packet in &packets {
        assert!(opener.open(&mut packet.clone()).is_ok());
        assert_eq!(opener.open(&mut packet.clone()), Err(Rejected::Replay));
    }
    // What was sealed for one lane opens on no other, though the number is the same.
    let mut moved = sealed(&mut sealer, 0, b"x");
    moved[3] = 1;
    assert_eq!(opener.open(&mut moved), Err(Rejected::Authentication));
    assert_eq!(opener.open(&mut sealed(&mut sealer, 2, b"x")), Err(Rejected::Lane), "it was not announced");
    assert_eq!(sealer.seal(8, &mut [0; OVERHEAD], 0), Err(SealError::Lane));
}

#[test]
fn each_thread_has_numbers_of_its_own_and_opens_no_others() {
    for cipher in CIPHERS {
        let threads = [0, 1].map(|thread| {
            let (sealer, opener) = lanes(2, cipher, 3);
            (sealer.of_thread(thread), opener.of_thread(thread))
        });
        let [(mut one, mut opens_one), (mut other, mut opens_other)] = threads;
        for number in 0..10 {
            let [first, second] = [&mut one, &mut other].map(|sealer| sealed(sealer, 1, b"the same text"));
            let headers = [&first, &second].map(|datagram| Header::parse(datagram).unwrap());
            assert_eq!(
                headers.map(|header| (header.thread, header.lane, header.packet_number)),
                [(0, 1, number), (1, 1, number)]
            );
            assert_ne!(first[HEADER..], second[HEADER..], "no nonce is used twice");
            assert_eq!(opens_one.open(&mut second.clone()), Err(Rejected::Lane));
            assert_eq!(opens_other.open(&mut first.clone()), Err(Rejected::Lane));
            let mut forged = second.clone();
            forged[2] = 0;
            assert_eq!(opens_one.open(&mut forged), Err(Rejected::Authentication));
            assert_eq!(opens_one.open(&mut first.clone()).unwrap(), b"the same text");
            assert_eq!(opens_other.open(&mut second.clone()).unwrap(), b"the same text");
        }
    }
}

#[test]
fn the_previous_key_outlives_a_lane_that_lags() {
    let (mut sealer, mut opener) = lanes(2, Cipher::Aes128Gcm, u64::MAX);
    let late = [0, 1].map(|lane| sealed(&mut sealer, lane, b"late"));
    sealer.epoch_end = 2;
    opener.open(&mut sealed(&mut sealer, 0, b"epoch 1")).unwrap();
    assert_eq!(opener.open(&mut late[1].clone()).unwrap(), b"late", "of the epoch before, on the other lane");
    sealer.next_numbers = [REPLAY_WINDOW / 2 + 1; 8];
    opener.open(&mut sealed(&mut sealer, 1, b"")).unwrap();
    opener.open(&mut sealed(&mut sealer, 0, b"")).unwrap();
    assert!(opener.previous.is_some(), "neither lane is half a window into the epoch but one");
    sealer.next_numbers[1] = REPLAY_WINDOW + 1;
    opener.open(&mut sealed(&mut sealer, 1, b"")).unwrap();
    assert!(opener.previous.is_none());
    assert_eq!(opener.open(&mut late[0].clone()), Err(Rejected::Epoch));
}

#[test]
fn no_packet_allocates() {
    for cipher in CIPHERS {
        let (mut sealer, mut opener) = pair(SESSION, cipher, &SEED, 1 << 28).unwrap();
        let mut datagram = [7; 1472];
        let allocations = allocation_counter::measure(|| {
            for _ in 0..1000 {
                let length = sealer.seal(0, &mut datagram, 1472 - OVERHEAD).unwrap();
                opener.open(&mut datagram[..length]).unwrap();
                assert!(opener.open(&mut datagram).is_err());
            }
        });
        assert_eq!(allocations.count_total, 0);
    }
}

#[test]
fn every_reason_has_its_place_and_label() {
    let mut labels = std::collections::BTreeSet::new();
    for (index, reason) in Rejected::ALL.into_iter().enumerate() {
        assert_eq!(reason.index(), index);
        assert!(labels.insert(reason.label()));
    }
}

#[test]
fn epochs_are_shorter_for_longer_datagrams() {
    assert_eq!(packets_per_epoch(max_datagram(1500, false)), 1 << 28);
    assert_eq!(packets_per_epoch(max_datagram(9000, true)), 1 << 25);
    assert_eq!(packets_per_epoch(max_datagram(u16::MAX, false)), 1 << 23);
    assert_eq!(max_datagram(1500, false), 1472);
    assert_eq!(max_datagram(1500, true), 1452);
    assert_eq!(max_datagram(0, true), 0);
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Deliver,
    Drop,
    Twice,
    Corrupt,
}

proptest! {
    /// Over a path that reorders within 64 packets, loses, repeats and corrupts: what opens is what
    /// was sealed, each packet once.
    #[test]
    fn each_packet_opens_at_most_once_and_unchanged(seed in any::<u64>(), per_epoch in 60_u64..200, cipher in 0..2_usize) {
        let mut rng = Rng(seed);
        let (mut sealer, mut opener) = lanes(3, CIPHERS[cipher], per_epoch);
        let mut path = Vec::new();
        let mut opened = std::collections::BTreeSet::new();
        let mut intact = 0;
        for number in 0..600_u64 {
            let text = vec![number as u8; rng.below(80) as usize];
            path.push((number, sealed(&mut sealer, (number % 3) as u8, &text), text));
            while path.len() > 64 || (number == 599 && !path.is_empty()) {
                let (number, datagram, text) = path.swap_remove(rng.below(path.len() as u64) as usize);
                let fault = [Fault::Deliver, Fault::Drop, Fault::Twice, Fault::Corrupt][rng.below(4) as usize];
                let mut copy = datagram.clone();
                if let Fault::Corrupt = fault {
                    let byte = rng.below(copy.len() as u64) as usize;
                    copy[byte] ^= 1 << rng.below(8);
                    prop_assert!(opener.open(&mut copy).is_err());
                }
                if let Fault::Drop = fault {
                    continue;
                }
                // A packet may hang back longer than an epoch stays openable; then, and only then,
                // it is refused.
                let behind = Header::parse(&datagram).unwrap().epoch.wrapping_sub(opener.epoch);
                let opens = behind <= EPOCHS_AHEAD || behind == u8::MAX;
                match opener.open(&mut datagram.clone()) {
                    Ok(plain) => {
                        prop_assert!(opens);
                        prop_assert_eq!(&*plain, text.as_slice());
                        prop_assert!(opened.insert(number));
                        intact += 1;
                    }
                    Err(reason) => prop_assert!(!opens && reason == Rejected::Epoch, "{:?}", reason),
                }
                if let Fault::Twice = fault {
                    prop_assert!(opener.open(&mut datagram.clone()).is_err());
                }
            }
        }
        prop_assert!(intact > 0);
    }

    #[test]
    fn any_bytes_are_refused_and_change_nothing(mut datagram in prop::collection::vec(any::<u8>(), 0..200), ours in any::<bool>()) {
        let (mut sealer, mut opener) = pair(SESSION, Cipher::Aes128Gcm, &SEED, 2).unwrap();
        opener.open(&mut sealed(&mut sealer, 0, b"")).unwrap();
        let before = state(&opener);
        if ours && datagram.len() >= 8 {
            datagram[0] = BULK;
            datagram[4..8].copy_from_slice(&SESSION.to_be_bytes());
        }
        prop_assert!(opener.open(&mut datagram).is_err());
        prop_assert_eq!(state(&opener), before);
    }
}

/// `cargo test --release -p gateway --lib seal -- --ignored --nocapture` prints what one core seals
/// and opens.
#[test]
#[ignore = "a benchmark"]
fn throughput() {
    const PACKETS: u64 = 1_000_000;
    for cipher in CIPHERS {
        for size in [256, 1472, 8972] {
            let (mut sealer, mut opener) = pair(SESSION, cipher, &SEED, 1 << 28).unwrap();
            let mut buffer = vec![0; size];
            let (mut sealing, mut opening) = (0.0, 0.0);
            for _ in 0..PACKETS / 1000 {
                let mut batch = vec![buffer.clone(); 1000];
                let start = Instant::now();
                for datagram in &mut batch {
                    sealer.seal(0, datagram, size - OVERHEAD).unwrap();
                }
                sealing += start.elapsed().as_secs_f64();
                let start = Instant::now();
                for datagram in &mut batch {
                    opener.open(datagram).unwrap();
                }
                opening += start.elapsed().as_secs_f64();
                buffer.copy_from_slice(&batch[0]);
            }
            let rate = |seconds: f64| {
                (PACKETS as f64 / seconds / 1e6, PACKETS as f64 * size as f64 * 8.0 / seconds / 1e9)
            };
            let ((seal_mpps, seal_gbit), (open_mpps, open_gbit)) = (rate(sealing), rate(opening));
            println!(
                "{:<18} {size:>5} B  seal {seal_mpps:.2} M/s {seal_gbit:.1} Gbit/s  open {open_mpps:.2} M/s {open_gbit:.1} Gbit/s",
                cipher.name()
            );
        }
    }
}

/// 2^36 forgeries are a matter of hours at the fastest links; a few will do to see what happens
/// then.
#[test]
fn forgeries_use_the_keys_up() {
    assert_eq!(most_forgeries(Cipher::ChaCha20Poly1305), 1 << 36);
    for cipher in Cipher::ALL {
        let (mut sealer, opener) = lanes(1, cipher, 1 << 28);
        let spent = Arc::<Told>::default();
        let mut opener = opener.within(3, Waker::from(Arc::clone(&spent)));
        let forged = |sealer: &mut Sealer| {
            let mut datagram = sealed(sealer, 0, b"forged");
            *datagram.last_mut().unwrap() ^= 1;
            datagram
        };
        for left in (0..3).rev() {
            // Neither another session's nor a replay is an attempt at the keys.
            let mut other = sealed(&mut sealer, 0, b"other");
            other[4] ^= 1;
            assert_eq!(opener.open(&mut other), Err(Rejected::UnknownSession));
            let good = sealed(&mut sealer, 0, b"good");
            assert_eq!(opener.open(&mut good.clone()).unwrap(), b"good");
            assert_eq!(opener.open(&mut good.clone()), Err(Rejected::Replay));
            assert!(!spent.is_told(), "{left} left");
            assert_eq!(opener.open(&mut forged(&mut sealer)), Err(Rejected::Authentication));
        }
        assert!(spent.is_told());
        let mut good = sealed(&mut sealer, 0, b"good");
        assert_eq!(opener.open(&mut good), Err(Rejected::Spent));
        assert_eq!(opener.open(&mut forged(&mut sealer)), Err(Rejected::Spent));
    }
}

#[test]
fn packet_numbers_that_are_used_up_are_told_of() {
    let spent = Arc::<Told>::default();
    let mut sealer = lanes(1, Cipher::Aes128Gcm, 1 << 28).0.telling(Waker::from(Arc::clone(&spent)));
    sealer.next_numbers[0] = u64::MAX - 1;
    let mut datagram = vec![0; OVERHEAD + 1];
    sealer.seal(0, &mut datagram, 1).unwrap();
    assert!(!spent.is_told());
    assert_eq!(sealer.seal(0, &mut datagram, 1), Err(SealError::Exhausted));
    assert!(spent.is_told());
}

/// The owner of a session, as a waker reaches it.
#[derive(Default)]
struct Told(AtomicBool);

impl Told {
    /// Returns true once if it was told.
    fn is_told(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
