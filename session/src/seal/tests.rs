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
        (Cipher::Aes128Gcm, Role::Dialer, "40070304000000007f56402840d9bb23c7e128b8833b060010a5b2eec311ed80", "4205fdfc000000020f04ea4a8b5bf2533dc265ac795529a3"),
        (Cipher::Aes128Gcm, Role::Listener, "4007030400000000c455a2e65a3ee50a75194f8d038e7880e87ab682ff8b86f9", "4205fdfc00000002f8c78ff2154238e9a3a2039d341c2f57"),
        (Cipher::ChaCha20Poly1305, Role::Dialer, "40070304000000005fb23bd5c4abb4a04a4a0c7ce96322a0a0355329a5894012", "4205fdfc00000002292556284ad1869e06e504d297fa58d8"),
        (Cipher::ChaCha20Poly1305, Role::Listener, "4007030400000000640f5770cc50763a2188c1f9728e9c6e5fffa570d5edb92b", "4205fdfc000000022c7030d584fb4b231ae250eff08ac000"),
        (Cipher::Aegis128L, Role::Dialer, "4007030400000000541811b8c6856311739e3195824bb13ace980b4713614606", "4205fdfc00000002b3e5d8936b7ccad2dca3f9074749e0e8"),
        (Cipher::Aegis128L, Role::Listener, "400703040000000082c54aac44ac8bb604692c8e9e2344ff294cddcf5fa2953e", "4205fdfc0000000238a100d8a1a7de18c026c81c61ee930e"),
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

/// From thread 2 to thread 5, computed as the others are.
#[test]
fn known_answers_between_different_threads() {
    use crate::schedule::{Role, Secrets};
    let exporter: [u8; 32] = std::array::from_fn(|index| index as u8);
    #[rustfmt::skip]
    let vectors = [
        (Cipher::Aes128Gcm, "4047030f00000000147954da16297e8c8dda396fbb0482c52a18943b6d9cd484"),
        (Cipher::ChaCha20Poly1305, "4047030f000000003d3703fe5dd2cab6a1b89f713c4e09bf6c18729f38f9306f"),
    ];
    for (cipher, datagram) in vectors {
        let secrets = Secrets::derive(&exporter, Role::Dialer, cipher).unwrap();
        let sealer = Sealer::new(0x0102_0308, secrets.send, 100).unwrap();
        let mut sealer = sealer.between(ThreadPair { here: 2, there: 5 });
        assert_eq!(hex(&sealed(&mut sealer, 7, b"longhaul")), datagram);
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
    assert_eq!(header, Header { epoch: 0, thread: 0, lane: 6, session: SESSION as u16, packet_number: 0 });
    assert_eq!(header.encode(), datagram[..HEADER]);
    assert_eq!(datagram.len(), 4 + OVERHEAD);
    for lane in 0..MOST_LANES {
        let header = Header { epoch: 15, thread: 5, lane, session: 1, packet_number: 2 };
        assert_eq!(Header::parse(&[&header.encode()[..], &[0; TAG]].concat()), Ok(header));
    }
    let beyond = [&[0x60, 0, 0, 0, 0, 0, 0, 0][..], &[0; TAG]].concat();
    assert_eq!(Header::parse(&beyond), Err(Rejected::NotBulk));
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
                match (byte, bit) {
                    (0, 0..4) => assert!(matches!(refused, Rejected::Authentication | Rejected::Epoch)),
                    (0, 4) | (1, _) => assert_eq!(refused, Rejected::Lane),
                    (0, _) => assert_eq!(refused, Rejected::NotBulk),
                    (3, 0..3) => assert_eq!(refused, Rejected::Lane, "of other threads"),
                    (2..4, _) => assert_eq!(refused, Rejected::UnknownSession),
                    (4..8, _) => {
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
    let (_, mut other_number) = pair(SESSION + 8, Cipher::Aes128Gcm, &SEED, 10).unwrap();
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
    opener.lanes[0].window.mark(u64::MAX - 3);
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
        assert_eq!(u64::from(datagram[0]), 0x40 + number / 3 % 16);
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
    moved[1] = 1;
    assert_eq!(opener.open(&mut moved), Err(Rejected::Authentication));
    assert_eq!(opener.open(&mut sealed(&mut sealer, 2, b"x")), Err(Rejected::Lane), "it was not announced");
    assert_eq!(sealer.seal(MOST_LANES, &mut [0; OVERHEAD], 0), Err(SealError::Lane));
}

#[test]
fn each_thread_has_numbers_of_its_own_and_opens_no_others() {
    for cipher in CIPHERS {
        let threads = [0, 1].map(|thread| {
            let (sealer, opener) = lanes(2, cipher, 3);
            (sealer.between(ThreadPair::alike(thread)), opener.between(ThreadPair::alike(thread)))
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
            forged[1] = 1;
            assert_eq!(opens_one.open(&mut forged), Err(Rejected::Authentication));
            assert_eq!(opens_one.open(&mut first.clone()).unwrap(), b"the same text");
            assert_eq!(opens_other.open(&mut second.clone()).unwrap(), b"the same text");
        }
    }
}

/// Rule: `docs/protocol.md#rule-threads`.
#[test]
fn each_pair_of_threads_has_numbers_of_its_own_and_opens_no_others() {
    let all =
        || (0..MOST_THREADS).flat_map(|here| (0..MOST_THREADS).map(move |there| ThreadPair { here, there }));
    let ends: Vec<_> = all()
        .map(|threads| {
            let (sealer, opener) = lanes(1, Cipher::Aes128Gcm, 3);
            let mirrored = ThreadPair { here: threads.there, there: threads.here };
            (sealer.between(threads), opener.between(mirrored))
        })
        .collect();
    let (mut sealers, mut openers): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
    let sealed: Vec<_> = sealers.iter_mut().map(|sealer| sealed(sealer, 0, b"the same text")).collect();
    for (nth, datagram) in sealed.iter().enumerate() {
        assert!(
            sealed.iter().filter(|other| other[HEADER..] == datagram[HEADER..]).count() == 1,
            "one nonce each"
        );
        for (other, opener) in openers.iter_mut().enumerate().filter(|(other, _)| *other != nth) {
            assert_eq!(opener.open(&mut datagram.clone()), Err(Rejected::Lane), "{nth}, {other}");
        }
        assert_eq!(openers[nth].open(&mut datagram.clone()).unwrap(), b"the same text");
        let header = Header::parse(datagram).unwrap();
        let receiver = header.thread ^ (header.session ^ SESSION_SHORT) as u8;
        assert_eq!(
            ThreadPair { here: header.thread, there: receiver },
            all().nth(nth).unwrap(),
            "a kernel can tell"
        );
    }
}

const SESSION_SHORT: u16 = SESSION as u16;

#[test]
fn a_session_of_another_number_is_unknown() {
    let (mut sealer, _) = lanes(1, Cipher::Aes128Gcm, 3);
    let (_, opener) = lanes(1, Cipher::Aes128Gcm, 3);
    let mut opener = Opener { session: opener.session ^ 8, ..opener };
    assert_eq!(opener.open(&mut sealed(&mut sealer, 0, b"x")), Err(Rejected::UnknownSession));
    assert_eq!(session_number(0xffff_ffff) & 0xff, 0xf8);
}

#[test]
fn the_previous_key_outlives_a_lane_that_lags() {
    let (mut sealer, mut opener) = lanes(2, Cipher::Aes128Gcm, u64::MAX);
    let late = [0, 1].map(|lane| sealed(&mut sealer, lane, b"late"));
    sealer.epoch_end = 2;
    opener.open(&mut sealed(&mut sealer, 0, b"epoch 1")).unwrap();
    assert_eq!(opener.open(&mut late[1].clone()).unwrap(), b"late", "of the epoch before, on the other lane");
    sealer.next_numbers = [REPLAY_WINDOW / 2 + 1; MOST_LANES as usize];
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

/// Numbers about which the low half wraps, or the whole ends.
fn edges() -> impl Strategy<Value = u64> {
    let about =
        prop_oneof![0..4_u64, Just(1 << 31), Just(1 << 32), Just(3 << 31), Just(1 << 62), Just(u64::MAX)];
    (about, -3..4_i64).prop_map(|(about, offset)| about.saturating_add_signed(offset))
}

#[test]
fn the_low_half_stands_for_the_nearest_number() {
    assert_eq!(nearest(0xa82f_30ea_0000_0001, 0x9b32_0000), 0xa82f_30e9_9b32_0000);
    assert_eq!(nearest(0xa82f_30ea_0000_0001, 0x7b32_0000), 0xa82f_30ea_7b32_0000);
    assert_eq!(nearest(0xffff_ffff, 0), 1 << 32);
    assert_eq!(nearest(1 << 32, u32::MAX), u64::from(u32::MAX));
    assert_eq!(nearest(1, u32::MAX), u64::from(u32::MAX), "there is none below");
    assert_eq!(nearest(u64::MAX, 0), u64::MAX << 32, "nor one above");
}

/// A datagram from long ago has the low bits of one that may come, and another nonce.
#[test]
fn a_number_from_before_the_wrap_opens_nothing_after_it() {
    for cipher in CIPHERS {
        let (mut sealer, mut opener) = pair(SESSION, cipher, &SEED, u64::MAX).unwrap();
        let old = sealed(&mut sealer, 0, b"old");
        let never_came = sealed(&mut sealer, 0, b"never came");
        assert_eq!(opener.open(&mut old.clone()).unwrap(), b"old");
        for number in [1 << 31, (1 << 32) - 1] {
            sealer.next_numbers[0] = number;
            assert_eq!(opener.open(&mut sealed(&mut sealer, 0, b"new")).unwrap(), b"new");
        }
        for datagram in [&old, &never_came] {
            assert_eq!(opener.open(&mut datagram.clone()), Err(Rejected::Authentication));
        }
        let now = sealed(&mut sealer, 0, b"now");
        assert_eq!(old[..HEADER], now[..HEADER], "their headers are the same");
        let mut copy = now.clone();
        let (origin, text) = opener.open_numbered(&mut copy).unwrap();
        assert_eq!((origin.packet_number, &*text), (1 << 32, &b"now"[..]));
        assert_eq!(opener.open(&mut now.clone()), Err(Rejected::Replay));
    }
}

proptest! {
    #[test]
    fn a_number_within_half_a_window_is_understood(expected in edges(), ahead in any::<bool>(), distance in prop_oneof![0..3_u64, (1_u64 << 31) - 3..(1 << 31)]) {
        let number = if ahead { expected.checked_add(distance) } else { expected.checked_sub(distance) };
        if let Some(number) = number {
            prop_assert_eq!(nearest(expected, number as u32), number);
        }
    }

    #[test]
    fn what_is_understood_has_the_low_bits(expected in any::<u64>(), low in any::<u32>()) {
        let number = nearest(expected, low);
        prop_assert_eq!(number as u32, low);
        let is_at_an_end = !(1 << 32..u64::MAX << 32).contains(&number);
        prop_assert!(is_at_an_end || number.abs_diff(expected) <= 1 << 31);
    }

    /// Whatever was taken in before, a datagram is taken for the one that it is or for none.
    #[test]
    fn a_datagram_is_taken_for_itself_or_for_none(newest in edges(), number in edges(), cipher in 0..3_usize) {
        let (mut sealer, mut opener) = pair(SESSION, CIPHERS[cipher], &SEED, u64::MAX).unwrap();
        opener.lanes[0].window.mark(newest);
        sealer.next_numbers[0] = number.min(u64::MAX - 1);
        let number = sealer.next_numbers[0];
        let mut datagram = sealed(&mut sealer, 0, b"text");
        match opener.open_numbered(&mut datagram) {
            Ok((origin, text)) => prop_assert_eq!((origin.packet_number, &*text), (number, &b"text"[..])),
            Err(Rejected::TooOld) => prop_assert!(newest >= REPLAY_WINDOW),
            Err(Rejected::Replay) => prop_assert_eq!(number, newest),
            Err(other) => {
                prop_assert_eq!(other, Rejected::Authentication);
                prop_assert!(number.abs_diff(newest.saturating_add(1)) >= 1 << 31);
            }
        }
    }

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
                let (sealed_at, datagram, text) = path.swap_remove(rng.below(path.len() as u64) as usize);
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
                let behind = opener.epoch.wrapping_sub((sealed_at / per_epoch) as u8);
                let opens = behind <= 1 || behind >= EPOCHS_AHEAD.wrapping_neg();
                match opener.open(&mut datagram.clone()) {
                    Ok(plain) => {
                        prop_assert!(opens);
                        prop_assert_eq!(&*plain, text.as_slice());
                        prop_assert!(opened.insert(sealed_at));
                        intact += 1;
                    }
                    // Half a turn of its number back, its epoch looks like one to come.
                    Err(Rejected::Authentication) => prop_assert!(behind >= 8 && !opens),
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
            datagram[2..4].copy_from_slice(&(SESSION as u16).to_be_bytes());
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
            other[2] ^= 1;
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
