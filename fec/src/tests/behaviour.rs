use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{CodeError, DecodeError, PushError, Recovered, RowError, parity_row};

macro_rules! suite {
    ($($module:ident: $kind:expr, $engine:literal;)*) => {$(
        mod $module {
            use super::*;

            fn with(test: impl Fn(Kind, &'static dyn Engine)) {
                if let Some(engine) = engine_or_skip($engine) {
                    test($kind, engine);
                }
            }

            #[test]
            fn recovers_every_pattern_it_can_and_refuses_the_rest() {
                with(exhaustive);
            }

            #[test]
            fn round_trips() {
                with(round_trips_at_random);
            }

            #[test]
            fn survives_garbage() {
                with(survives_garbage_of_any_shape);
            }

            #[test]
            fn encoder_forgets_on_reset() {
                with(forgets_on_reset);
            }

            #[test]
            fn parity_is_readable_while_the_block_grows() {
                with(parity_of_a_growing_block);
            }

            #[test]
            fn a_single_parity_is_the_encoders() {
                with(single_parities_at_random);
            }

            #[test]
            fn refused_packets_leave_no_trace() {
                with(refusals_leave_no_trace);
            }

            #[test]
            fn names_what_is_wrong_with_a_block() {
                with(names_what_is_wrong);
            }
        }
    )*};
}

suite! {
    mds_swar: Kind::Mds, "swar";
    xor_swar: Kind::Xor, "swar";
    mds_portable: Kind::Mds, "portable";
    xor_portable: Kind::Xor, "portable";
}

#[cfg(target_arch = "x86_64")]
suite! {
    mds_gfni_avx512: Kind::Mds, "gfni-avx512";
    xor_gfni_avx512: Kind::Xor, "gfni-avx512";
    mds_gfni_avx2: Kind::Mds, "gfni-avx2";
    xor_gfni_avx2: Kind::Xor, "gfni-avx2";
    mds_avx2: Kind::Mds, "avx2";
    xor_avx2: Kind::Xor, "avx2";
}

#[cfg(target_arch = "aarch64")]
suite! {
    mds_neon: Kind::Mds, "neon";
    xor_neon: Kind::Xor, "neon";
}

fn exhaustive(kind: Kind, engine: &'static dyn Engine) {
    let mut decoder = Decoder::with_engine(engine);
    let mut out = Recovered::new();
    let sizes = (1..=6).flat_map(|k| (1..=4).map(move |m| (k, m)));
    for (k, m) in sizes {
        let Ok(code) = Code::new(kind, k, m) else {
            assert!(kind == Kind::Xor && m > k);
            continue;
        };
        for count in 0..=k {
            let packets: Vec<_> = (0..count).map(|j| noise(j * 37 % 71, j + k * m)).collect();
            let mut encoder = Encoder::with_engine(code.clone(), 71, engine);
            let parity = encode(&mut encoder, &packets);
            for pattern in 0_u32..1 << (count + m) {
                let data = hide(&packets, |j| pattern >> j & 1 == 1);
                let kept = hide(&parity, |i| pattern >> (count + i) & 1 == 1);
                expect_recovery(&mut decoder, &code, &packets, &data, &kept, &mut out);
            }
        }
    }
}

/// Decodes, and compares with what the code's definition says of this pattern, counted here anew.
fn expect_recovery(
    decoder: &mut Decoder,
    code: &Code,
    packets: &[Vec<u8>],
    data: &[Option<&[u8]>],
    parity: &[Option<&[u8]>],
    out: &mut Recovered,
) {
    let missing: Vec<_> = (0..data.len()).filter(|&j| data[j].is_none()).collect();
    let shortfall = match code.kind() {
        Kind::Mds => missing.len().saturating_sub(parity.iter().flatten().count()),
        Kind::Xor => (0..code.m())
            .map(|i| {
                let lost = missing.iter().filter(|&j| j % code.m() == i).count();
                lost.saturating_sub(usize::from(parity.get(i).is_some_and(Option::is_some)))
            })
            .sum(),
    };
    let result = decoder.decode(code, data, parity, out);
    if shortfall == 0 {
        assert_eq!(result, Ok(missing.len()), "{code:?} without {missing:?}");
        let expected: Vec<_> = missing.iter().map(|&j| (j, &packets[j][..])).collect();
        assert_eq!(out.iter().collect::<Vec<_>>(), expected);
        assert_eq!(out.len(), missing.len());
    } else {
        let missing = missing.len();
        assert_eq!(result, Err(DecodeError::Unrecoverable { missing, shortfall }));
        assert!(out.is_empty());
    }
}

/// A code of the kind, with more small ones than large.
fn codes(kind: Kind) -> impl Strategy<Value = Code> {
    let k = prop_oneof![3 => 1..=16_usize, 2 => 17..=64_usize, 1 => 65..=254_usize];
    k.prop_flat_map(move |k| {
        let most = match kind {
            Kind::Mds => 255 - k,
            Kind::Xor => k.min(255 - k),
        };
        (Just(k), 1..=most.min(40))
    })
    .prop_map(move |(k, m)| Code::new(kind, k, m).unwrap())
}

/// A code and a block of it: packet lengths, and an order in which its packets get lost.
fn blocks(kind: Kind) -> impl Strategy<Value = (Code, Vec<usize>, Vec<usize>)> {
    let lengths = prop_oneof![Just(0_usize), 1..=300_usize, Just(257_usize)];
    codes(kind).prop_flat_map(move |code| {
        let order: Vec<usize> = (0..code.k() + code.m()).collect();
        let lengths = vec(lengths.clone(), 1..=code.k());
        (Just(code), lengths, Just(order).prop_shuffle())
    })
}

fn round_trips_at_random(kind: Kind, engine: &'static dyn Engine) {
    let name = format!("round trip of {kind:?} on {}", engine.name());
    check(&name, 128, &blocks(kind), |(code, lengths, order)| {
        let packets: Vec<_> = lengths.iter().enumerate().map(|(j, &len)| noise(len, j)).collect();
        let mut encoder = Encoder::with_engine(code.clone(), 300, engine);
        let parity = encode(&mut encoder, &packets);
        let mut together = Encoder::with_engine(code.clone(), 300, engine);
        let slices: Vec<_> = packets.iter().map(Vec::as_slice).collect();
        for count in [0, 1, 3, 4, 5, 7].into_iter().cycle() {
            let begin = together.len();
            let batch = &slices[begin..slices.len().min(begin + count)];
            prop_assert_eq!(together.push_batch(batch), Ok(begin));
            if together.len() == slices.len() {
                break;
            }
        }
        prop_assert!((0..code.m()).all(|i| together.parity(i) == Some(&parity[i][..])), "pushed in batches");
        let mut decoder = Decoder::with_engine(engine);
        let mut out = Recovered::new();
        for losses in [0, 1, code.m() / 2, code.m(), code.m() + 1] {
            let lost = &order[..losses.min(order.len())];
            let data = hide(&packets, |j| lost.contains(&j));
            let kept = hide(&parity, |i| lost.contains(&(code.k() + i)));
            expect_recovery(&mut decoder, &code, &packets, &data, &kept, &mut out);
        }
        Ok(())
    });
}

fn survives_garbage_of_any_shape(kind: Kind, engine: &'static dyn Engine) {
    let name = format!("garbage for {kind:?} on {}", engine.name());
    let packet = || proptest::option::weighted(0.7, vec(any::<u8>(), 0..40));
    let equal = vec(any::<u8>(), 24);
    let parity = prop_oneof![vec(packet(), 0..12), vec(proptest::option::weighted(0.9, equal), 0..12)];
    let strategy = (codes(kind), vec(packet(), 0..20), parity);
    check(&name, 512, &strategy, |(code, data, parity)| {
        let data: Vec<_> = data.iter().map(Option::as_deref).collect();
        let parity: Vec<_> = parity.iter().map(Option::as_deref).collect();
        let mut out = Recovered::new();
        match Decoder::with_engine(engine).decode(&code, &data, &parity, &mut out) {
            Ok(count) => prop_assert_eq!(count, out.iter().count()),
            Err(error) => prop_assert!(out.is_empty(), "{error}"),
        }
        Ok(())
    });
}

fn forgets_on_reset(kind: Kind, engine: &'static dyn Engine) {
    let code = Code::new(kind, 9, 4).unwrap();
    let mut reused = Encoder::with_engine(code.clone(), 2000, engine);
    for (count, len) in [(9, 2000), (3, 10), (9, 1000), (1, 0), (5, 1999)] {
        let packets: Vec<_> = (0..count).map(|j| noise(len - j.min(len), j)).collect();
        let mut fresh = Encoder::with_engine(code.clone(), 2000, engine);
        assert_eq!(encode(&mut reused, &packets), encode(&mut fresh, &packets));
        assert_eq!(reused.parity_len(), len + 2);
        assert_eq!(reused.len(), count);
        assert_eq!(reused.is_full(), count == 9);
    }
}

fn parity_of_a_growing_block(kind: Kind, engine: &'static dyn Engine) {
    let code = Code::new(kind, 6, 3).unwrap();
    let mut encoder = Encoder::with_engine(code.clone(), 64, engine);
    assert!(encoder.is_empty());
    assert_eq!(encoder.parity_count(), 0);
    for j in 0..6 {
        encoder.push(&noise(10 * j, j)).unwrap();
        let len = 10 * j + 2;
        for i in 0..3 {
            let mut expected = vec![0; len];
            for t in 0..=j {
                let symbol = symbol(&noise(10 * t, t), len);
                kernels::schoolbook(code.coefficient(i, t), &symbol, &mut expected);
            }
            assert_eq!(encoder.parity(i), Some(&expected[..]));
        }
        let protecting = if kind == Kind::Xor { 3.min(j + 1) } else { 3 };
        assert_eq!(encoder.parity_count(), protecting);
        assert_eq!(encoder.parity(3), None);
    }
}

fn single_parities_at_random(kind: Kind, engine: &'static dyn Engine) {
    let name = format!("single parity of {kind:?} on {}", engine.name());
    check(&name, 64, &blocks(kind), |(code, lengths, _)| {
        let packets: Vec<_> = lengths.iter().enumerate().map(|(j, &len)| noise(len, j)).collect();
        let mut encoder = Encoder::with_engine(code.clone(), 300, engine);
        let mut out = noise(400, 9);
        for (i, expected) in encode(&mut encoder, &packets).iter().enumerate() {
            let packets = packets.iter().map(Vec::as_slice);
            let len = parity_row(engine, &code, i, packets, &mut out).unwrap();
            prop_assert_eq!(&out[..len], &expected[..]);
        }
        Ok(())
    });
}

fn refusals_leave_no_trace(kind: Kind, engine: &'static dyn Engine) {
    let mut encoder = Encoder::with_engine(Code::new(kind, 2, 1).unwrap(), 8, engine);
    let too_long = PushError::TooLong { len: 9, max: 8 };
    assert_eq!(encoder.push(&[1; 9]), Err(too_long));
    assert_eq!(encoder.parity(0), Some(&[0, 0][..]));
    assert_eq!(encoder.push_batch(&[&[1; 8][..], &[1; 9]]), Err(too_long));
    assert_eq!(encoder.push_batch(&[&[1; 8][..]; 3]), Err(PushError::Full));
    assert_eq!(encoder.push(&[1; 8]), Ok(0));
    assert_eq!(encoder.push(&[2; 3]), Ok(1));
    let parity = encoder.parity(0).unwrap().to_vec();
    assert_eq!(encoder.push(&[3; 8]), Err(PushError::Full));
    assert_eq!(encoder.push(&[3; 9]), Err(PushError::Full));
    assert_eq!(encoder.parity(0), Some(&parity[..]));
    assert_eq!(encoder.len(), 2);

    let mut huge = Encoder::with_engine(Code::new(kind, 1, 1).unwrap(), usize::MAX, engine);
    let max = crate::MAX_PACKET;
    let len = max + 1;
    assert_eq!(huge.push(&vec![1; len]), Err(PushError::TooLong { len, max }));
    assert_eq!(huge.push(&vec![1; max]), Ok(0));
    assert_eq!(huge.parity_len(), max + 2);
}

fn names_what_is_wrong(kind: Kind, engine: &'static dyn Engine) {
    let code = Code::new(kind, 4, 2).unwrap();
    let mut decoder = Decoder::with_engine(engine);
    let mut out = Recovered::new();
    let mut decode = |data: &[Option<&[u8]>], parity: &[Option<&[u8]>]| {
        decoder.decode(&code, data, parity, &mut out).unwrap_err()
    };
    let some = Some(&[0, 1, 7][..]);
    assert_eq!(decode(&[some; 5], &[]), DecodeError::TooMuchData { data: 5, k: 4 });
    assert_eq!(decode(&[some; 4], &[some; 3]), DecodeError::TooMuchParity { parity: 3, m: 2 });
    assert_eq!(decode(&[None, None], &[some, Some(&[0])]), DecodeError::ParityLength { index: 1, len: 1 });
    assert_eq!(decode(&[None], &[Some(&[])]), DecodeError::ParityLength { index: 0, len: 0 });
    let len = crate::MAX_PACKET + 3;
    assert_eq!(decode(&[None], &[Some(&vec![0; len])]), DecodeError::ParityLength { index: 0, len });
    assert_eq!(
        decode(&[None, Some(&[1, 2])], &[some, some]),
        DecodeError::DataLength { index: 1, len: 2, longest: 1 }
    );
    // With all other packets absent from a block of one, parity 0 is the packet's own multiple.
    let c = code.coefficient(0, 0);
    let times = |bytes: &[u8]| {
        let mut product = vec![0; bytes.len()];
        kernels::schoolbook(c, bytes, &mut product);
        product
    };
    let inconsistent = DecodeError::Inconsistent { index: 0 };
    assert_eq!(decode(&[None], &[Some(&times(&[0, 2, 9]))]), inconsistent);
    assert_eq!(decode(&[None], &[Some(&times(&[255, 255, 9]))]), inconsistent);
    assert_eq!(decode(&[None], &[Some(&times(&[0, 0, 9]))]), inconsistent);
    assert_eq!(decoder.decode(&code, &[None], &[Some(&times(&[0, 1, 9]))], &mut out), Ok(1));
    assert_eq!(out.iter().next(), Some((0, &[9][..])));
    assert_eq!(decoder.decode(&code, &[some; 4], &[], &mut out), Ok(0));
    assert!(out.is_empty());
}

#[test]
fn impossible_codes_are_refused() {
    for kind in [Kind::Mds, Kind::Xor] {
        assert_eq!(Code::new(kind, 0, 1), Err(CodeError::NoData));
        assert_eq!(Code::new(kind, 1, 0), Err(CodeError::NoParity));
        assert_eq!(Code::new(kind, 200, 56), Err(CodeError::TooLarge(256)));
        assert_eq!(Code::new(kind, usize::MAX, 2), Err(CodeError::TooLarge(usize::MAX)));
        assert!(Code::new(kind, 200, 55).is_ok());
    }
    assert_eq!(Code::xor(4, 5), Err(CodeError::IdleParity { k: 4, m: 5 }));
    assert!(Code::mds(1, 254).is_ok());
    assert!(Code::xor(1, 1).is_ok());
}

#[test]
fn a_single_parity_that_cannot_be_is_refused() {
    let code = Code::mds(2, 3).unwrap();
    let mut out = [0; 6];
    let mut row = |index, packets: &[&[u8]], room: usize| {
        parity_row(engine::detect(), &code, index, packets.iter().copied(), &mut out[..room])
    };
    assert_eq!(row(0, &[], 2), Ok(2));
    assert_eq!(row(2, &[&[1; 4], &[2; 1]], 6), Ok(6));
    assert_eq!(row(3, &[&[1; 4]], 6), Err(RowError::NoSuchParity { index: 3, m: 3 }));
    assert_eq!(row(0, &[&[1], &[2], &[3]], 6), Err(RowError::TooMuchData { k: 2 }));
    assert_eq!(row(0, &[&[1; 5]], 6), Err(RowError::TooLong { len: 5 }));
    assert_eq!(row(0, &[], 1), Err(RowError::TooLong { len: 1 }));
    let len = crate::MAX_PACKET + 1;
    assert_eq!(row(0, &[&vec![1; len]], 6), Err(RowError::TooLong { len }));
}

#[test]
fn more_parity_extends_a_block() {
    for k in [1, 7, 32, 100] {
        let few = Code::mds(k, 3).unwrap();
        let many = Code::mds(k, 255 - k).unwrap();
        for i in 0..3 {
            for j in 0..k {
                assert_eq!(few.coefficient(i, j), many.coefficient(i, j));
            }
        }
    }
}
