//! Golden bytes, both ways. `docs/protocol.md#streams` shows the same layouts.

use proptest::prelude::*;

use super::*;

const STREAM: StreamId = StreamId(0x0102);
const MDS: Shape = Shape { coding: Coding::Mds, k: 32, m: 8, depth: 4 };

/// Emits into a buffer full of 0xa5, so that a byte left out shows.
fn emitted<const N: usize>(emit: impl FnOnce(&mut [u8; N])) -> [u8; N] {
    let mut out = [0xa5; N];
    emit(&mut out);
    out
}

/// About what the receiver expects in these tests.
const EXPECTED: u64 = 0x2122_2324_2526_0000;

#[test]
fn data() {
    let uncoded = Data {
        flags: FLAG_REPAIR | FLAG_QUIET,
        stream: STREAM,
        timestamp: 0x0012_1314,
        sequence: 0x2122_2324_2526_2728,
        shape: Shape::uncoded(Coding::Sr),
        position: 0,
        rtt: Coarse(0x41),
        floor: Coarse(0x51),
    };
    let coded = Data { flags: 0, shape: MDS, position: 0x007f, ..uncoded };
    let bytes = [0xb5, 0x02, 0x41, 0x51, 0x12, 0x13, 0x14, 0x25, 0x26, 0x27, 0x28];
    let of_block =
        [0x8d, 0x02, 0x41, 0x51, 0x12, 0x13, 0x14, 0x25, 0x26, 0x27, 0x28, 32, 8, 4, 0x00, 0x7f, 0, 0, 0];
    for (header, bytes) in [(uncoded, &bytes[..]), (coded, &of_block)] {
        let mut out = [0xa5; DATA_HEADER];
        assert_eq!(header.emit(&mut out), bytes.len());
        let (head, rest) = out.split_at(bytes.len());
        assert_eq!((head, rest.iter().all(|byte| *byte == 0xa5)), (bytes, true));
        let packet = [bytes, b"frames"].concat();
        match ToReceiver::parse(&packet, EXPECTED) {
            Ok(ToReceiver::Data(parsed, payload)) => {
                assert_eq!((parsed, payload), (header, &b"frames"[..]));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(classify(&packet), Ok((Kind::Data, STREAM)));
        assert_eq!(sending_time(&packet), Some(header.timestamp));
        for end in 0..bytes.len() {
            assert_eq!(ToReceiver::parse(&bytes[..end], EXPECTED).err(), Some(Malformed::Truncated));
        }
    }
    assert!(uncoded.floor() < uncoded.sequence && Data { floor: Coarse(0xff), ..uncoded }.floor() == 0);
}

#[test]
fn a_position_lies_in_its_group_and_not_before_the_first_packet() {
    let parse = |sequence: u8, position: u8, expected| {
        let packet = [0x8c, 7, 0, 0, 0, 0, 0, 0, 0, 0, sequence, 32, 8, 4, 0, position, 0, 0, 0];
        ToReceiver::parse(&packet, expected).is_ok()
    };
    assert!(parse(128, 127, 0) && !parse(128, 128, 0));
    assert!(parse(7, 7, 0) && !parse(6, 7, 0));
    assert!(parse(6, 7, 1 << 32), "the number is another there");
}

#[test]
fn parity() {
    let header = Parity {
        flags: FLAG_QUIET,
        stream: STREAM,
        timestamp: 0x0012_1314,
        base: 0x2122_2324_2526_2728,
        shape: MDS,
        lane: 3,
        index: 5,
        count: 0x0061,
        parities: 7,
    };
    #[rustfmt::skip]
    let bytes = [
        0xdd, 0x02,
        0x12, 0x13, 0x14,
        0x25, 0x26, 0x27, 0x28,
        32, 8, 4,
        3, 5, 0x00, 0x61,
        7,
    ];
    assert_eq!(emitted(|out| header.emit(out)), bytes);
    match ToReceiver::parse(&bytes, EXPECTED) {
        Ok(ToReceiver::Parity(parsed, symbol)) => assert_eq!((parsed, symbol), (header, &[][..])),
        other => panic!("{other:?}"),
    }
}

#[test]
fn report() {
    let header = Report {
        stream: STREAM,
        number: 0x0a0b_0c0d,
        cumulative: 0x2122_2324_2526_2728,
        arrived: 0x3132_3334_3536_3738,
        echo: 0x4142_4344,
        hold: 0x5152_5354,
        window: 0x6162_6364,
        offset: 0x7172_7374,
        reorder_time: 0x8182_8384,
        words: 1,
        nacks: 2,
    };
    #[rustfmt::skip]
    let bytes = [
        3, 0, 0x01, 0x02,
        0x0a, 0x0b, 0x0c, 0x0d,
        0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,
        0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,
        0x41, 0x42, 0x43, 0x44,
        0x51, 0x52, 0x53, 0x54,
        0x61, 0x62, 0x63, 0x64,
        0x71, 0x72, 0x73, 0x74,
        0x81, 0x82, 0x83, 0x84,
        0, 1, 0, 2,
    ];
    assert_eq!(emitted(|out| header.emit(out)), bytes);
    let mut packet = bytes.to_vec();
    packet.extend_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 1]);
    let list = [Nack { first: 3, run: 2, any: false }, Nack { first: 5, run: 1, any: true }];
    packet.extend_from_slice(&[0, 0, 0, 3, 0, 2, 0, 0, 0, 5, 0x80, 1]);
    assert_eq!(packet[REPORT_HEADER + 8..], *list.map(Nack::emit).as_flattened());
    let (parsed, words, nacks) = Report::parse(&packet).unwrap();
    assert_eq!((parsed, words), (header, &[[0x80, 0, 0, 0, 0, 0, 0, 1]][..]));
    assert_eq!(nacks.iter().map(|nack| Nack::parse(*nack)).collect::<Vec<_>>(), list);
}

#[test]
fn nack_ranges_that_overlap_or_are_empty_are_refused() {
    for (second, run) in [(4, 1), (9, 0)] {
        let header = Report {
            stream: STREAM,
            number: 0,
            cumulative: 0,
            arrived: 0,
            echo: 0,
            hold: 0,
            window: 0,
            offset: 0,
            reorder_time: 0,
            words: 0,
            nacks: 2,
        };
        let mut packet = emitted::<REPORT_HEADER>(|out| header.emit(out)).to_vec();
        packet.extend_from_slice(&Nack { first: 3, run: 2, any: false }.emit());
        packet.extend_from_slice(&Nack { first: second, run, any: run == 0 }.emit());
        assert_eq!(Report::parse(&packet).err(), Some(Malformed::Report));
    }
}

#[test]
fn frames() {
    let mut payload = record_header(3).to_vec();
    payload.extend_from_slice(b"abc");
    payload.extend_from_slice(&record_header(0));
    payload.extend_from_slice(Cut::new(2, 0x1234, 0x1232).as_ref());
    payload.extend_from_slice(b"yz");
    payload.extend_from_slice(Cut::new(0, 0x0001_0000, 0).as_ref());
    payload.extend_from_slice(b"0123");
    #[rustfmt::skip]
    let bytes = [
        0, 4, b'a', b'b', b'c',
        0, 1,
        0x82, 0x12, 0x34, 0x12, 0x32, b'y', b'z',
        0x80, 0x80, 0x01, 0, 0, b'0', b'1', b'2', b'3',
    ];
    assert_eq!(payload, bytes);
    let last = Fragment { record: 7, total: 0x1234, offset: 0x1232, bytes: b"yz" };
    let first = Fragment { record: 9, total: 0x0001_0000, offset: 0, bytes: b"0123" };
    let frames = Frames::new(&payload, 9).collect::<Result<Vec<_>, _>>();
    assert_eq!(
        frames.unwrap(),
        [Frame::Whole(b"abc"), Frame::Whole(b""), Frame::Cut(last), Frame::Cut(first)]
    );
    let padded = [0, 2, b'a', 0, 0, 0xff, 0xff]; // Whatever follows padding is not read.
    let frames = Frames::new(&padded, 9).collect::<Result<Vec<_>, _>>();
    assert_eq!(frames.unwrap(), [Frame::Whole(b"a")]);
    let far = Cut::new(0x0102, 100, 99);
    assert_eq!(far.as_ref(), [0xff, 0x01, 0x02, 0, 100, 0, 99]);
    let (payload, piece) =
        ([far.as_ref(), b"z"].concat(), Fragment { record: 1, total: 100, offset: 99, bytes: b"z" });
    assert_eq!(Frames::new(&payload, 0x0103).next(), Some(Ok(Frame::Cut(piece))));
}

#[test]
fn frames_that_contradict_themselves_are_refused() {
    let beyond = [Cut::new(1, 10, 10).as_ref(), &[0; 6]].concat();
    let at_the_beginning = [Cut::new(1, 10, 0).as_ref(), &[0; 6]].concat();
    let before_the_first = [Cut::new(10, 10, 5).as_ref(), &[0; 5]].concat();
    let of_nothing = [Cut::new(0, 0, 0).as_ref(), &[0; 5]].concat();
    let empty = Cut::new(1, 10, 5);
    let cases = [&beyond[..], &at_the_beginning, &before_the_first, &of_nothing, empty.as_ref()];
    for payload in
        cases.into_iter().chain([&[0, 9, 1][..], &[0x80, 2], &[7], &[0x80, 0x40, 1, 1], &[0xff, 0]])
    {
        let last = Frames::new(payload, 9).last();
        assert!(matches!(last, Some(Err(_))), "{payload:?}: {last:?}");
    }
}

proptest! {
    #[test]
    fn a_piece_reads_back_as_it_was_cut(back in 0..=u16::MAX, total in 2..=MAX_RECORD as u32, at in any::<u32>(), sequence in 0_u64..1 << 62) {
        let offset = if back > 0 { 1 + at % (total - 1) } else { 0 };
        let rest = [7; 40];
        let payload = [Cut::new(back, total, offset).as_ref(), &rest].concat();
        let len = rest.len().min((total - offset) as usize);
        let piece = Frames::new(&payload, sequence).next();
        match sequence.checked_sub(back.into()) {
            Some(record) => {
                let bytes = &rest[..len];
                prop_assert_eq!(piece, Some(Ok(Frame::Cut(Fragment { record, total, offset, bytes }))));
            }
            None => prop_assert_eq!(piece, Some(Err(Malformed::Frame))),
        }
    }

    #[test]
    fn a_coarse_number_is_near_and_on_the_side_asked_for(value in prop_oneof![0..100_u64, 0..(1_u64 << 20), any::<u64>()]) {
        let (below, above) = (Coarse::at_most(value).value(), Coarse::at_least(value).value());
        let most = 30 << 14;
        prop_assert_eq!(below.is_some(), value < 31 << 14);
        prop_assert_eq!(above.is_some(), value <= most);
        if let Some(told) = below {
            prop_assert!(told <= value && value - told <= value / 16);
        }
        if let Some(told) = above {
            prop_assert!(told >= value && told - value <= value / 16);
        }
    }

    #[test]
    fn a_number_within_half_the_span_of_its_bits_is_understood(expected in 0_u64..1 << 62, ahead in any::<i32>()) {
        match expected.checked_add_signed(ahead.into()) {
            Some(number) => prop_assert_eq!(nearest(expected, number as u32), Some(number)),
            None => prop_assert_eq!(nearest(expected, (expected as u32).wrapping_add_signed(ahead)), None),
        }
    }

    /// Whatever comes is read or refused, and what was read is written alike.
    #[test]
    fn any_bytes_are_refused_or_read_as_they_would_be_written(
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
        expected in 0_u64..1 << 40,
    ) {
        match ToReceiver::parse(&bytes, expected) {
            Ok(ToReceiver::Data(header, payload)) => {
                let mut out = [0; DATA_HEADER];
                let len = header.emit(&mut out);
                prop_assert_eq!(&bytes[len..], payload);
                let written = [&out[..len], payload].concat();
                let again = ToReceiver::parse(&written, expected);
                prop_assert!(matches!(again, Ok(ToReceiver::Data(again, _)) if again == header));
                Frames::new(payload, header.sequence).for_each(drop);
            }
            Ok(ToReceiver::Parity(header, symbol)) => {
                let out = emitted::<PARITY_HEADER>(|out| header.emit(out));
                prop_assert_eq!(&bytes[PARITY_HEADER..], symbol);
                let again = ToReceiver::parse(&out, expected);
                prop_assert!(matches!(again, Ok(ToReceiver::Parity(again, _)) if again == header));
            }
            Err(_) => {}
        }
    }
}

#[test]
fn coarse_numbers_ascend() {
    let values: Vec<_> = (0..u8::MAX).map(|byte| Coarse(byte).value().unwrap()).collect();
    assert!(values.is_sorted() && values[..33] == (0..32).chain([32]).collect::<Vec<_>>()[..]);
    assert_eq!((values.last(), Coarse(u8::MAX).value()), (Some(&(30 << 14)), None));
}

#[test]
fn impossible_shapes_are_refused() {
    let valid = |coding, k, m, depth| Shape { coding, k, m, depth }.valid();
    assert!(valid(Coding::Mds, 250, 5, 255) && valid(Coding::Xor, 8, 8, 1) && valid(Coding::Sr, 0, 0, 0));
    assert!(!valid(Coding::Mds, 250, 6, 1), "k + m above 255");
    assert!(!valid(Coding::Mds, 0, 6, 1) && !valid(Coding::Mds, 6, 0, 1) && !valid(Coding::Mds, 6, 1, 0));
    assert!(!valid(Coding::Xor, 7, 8, 1), "an idle parity");
    assert!(!valid(Coding::None, 1, 0, 0), "an uncoded block");
}

#[test]
fn further_parities_go_up_to_what_the_code_has() {
    let parse = |coding, index, parities| {
        let shape = Shape { coding, k: 32, m: 8, depth: 1 };
        let header = Parity {
            flags: FLAG_REPAIR,
            stream: STREAM,
            timestamp: 0,
            base: 0,
            shape,
            lane: 0,
            index,
            count: 32,
            parities,
        };
        ToReceiver::parse(&emitted::<PARITY_HEADER>(|out| header.emit(out)), 0).is_ok()
    };
    assert!(parse(Coding::Mds, 8, 9) && parse(Coding::Mds, 222, 223));
    assert!(!parse(Coding::Mds, 222, 224), "more than 255 packets in a block");
    assert!(!parse(Coding::Mds, 9, 9), "an index beyond those sent");
    assert!(parse(Coding::Xor, 7, 8) && !parse(Coding::Xor, 8, 9), "an XOR code has no more");
}

#[test]
fn blocks_of_a_group_that_was_closed_early() {
    let lens = |count| (0..4).map(|lane| MDS.block_len(count, lane)).collect::<Vec<_>>();
    assert_eq!(lens(128), [32, 32, 32, 32]);
    assert_eq!(lens(6), [2, 2, 1, 1]);
    assert_eq!(lens(1), [1, 0, 0, 0]);
}
