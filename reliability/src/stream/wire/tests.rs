//! Golden bytes, both ways. `docs/protocol.md#streams` shows the same layouts.

use super::*;

const STREAM: StreamId = StreamId(0x0102);
const MDS: Shape = Shape { coding: Coding::Mds, k: 32, m: 8, depth: 4 };

/// Emits into a buffer full of 0xa5, so that a byte left out shows.
fn emitted<const N: usize>(emit: impl FnOnce(&mut [u8; N])) -> [u8; N] {
    let mut out = [0xa5; N];
    emit(&mut out);
    out
}

#[test]
fn data() {
    let header = Data {
        flags: FLAG_REPAIR | FLAG_QUIET,
        stream: STREAM,
        timestamp: 0x1112_1314,
        sequence: 0x2122_2324_2526_2728,
        shape: MDS,
        position: 0x007f,
        rtt: 0x4142,
        floor: 0x5152_5354,
    };
    #[rustfmt::skip]
    let bytes = [
        1, 3, 0x01, 0x02,
        0x11, 0x12, 0x13, 0x14,
        0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,
        3, 32, 8, 4,
        0x00, 0x7f, 0x41, 0x42,
        0x51, 0x52, 0x53, 0x54,
    ];
    assert_eq!(emitted(|out| header.emit(out)), bytes);
    let mut packet = bytes.to_vec();
    packet.extend_from_slice(b"frames");
    match ToReceiver::parse(&packet) {
        Ok(ToReceiver::Data(parsed, payload)) => {
            assert_eq!((parsed, payload), (header, &b"frames"[..]));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(classify(&packet), Ok((Kind::Data, STREAM)));
}

#[test]
fn parity() {
    let header = Parity {
        flags: FLAG_QUIET,
        stream: STREAM,
        timestamp: 0x1112_1314,
        base: 0x2122_2324_2526_2728,
        shape: MDS,
        lane: 3,
        index: 5,
        count: 0x0061,
        parities: 7,
    };
    #[rustfmt::skip]
    let bytes = [
        2, 2, 0x01, 0x02,
        0x11, 0x12, 0x13, 0x14,
        0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,
        3, 32, 8, 4,
        3, 5, 0x00, 0x61,
        7, 0,
    ];
    assert_eq!(emitted(|out| header.emit(out)), bytes);
    match ToReceiver::parse(&bytes) {
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
    payload.extend_from_slice(&fragment_header(0x0102_0304, 0x0001_0000, 0x0000_fffe, 2));
    payload.extend_from_slice(b"yz");
    #[rustfmt::skip]
    let bytes = [
        0, 4, b'a', b'b', b'c',
        0, 1,
        0x80, 2, 1, 2, 3, 4, 0, 1, 0, 0, 0, 0, 0xff, 0xfe, b'y', b'z',
    ];
    assert_eq!(payload, bytes);
    payload.extend_from_slice(&[0, 0, 0xff, 0xff]); // Padding: whatever follows is not read.
    let cut = Fragment { id: 0x0102_0304, total: 0x0001_0000, offset: 0xfffe, bytes: b"yz" };
    let frames = Frames::new(&payload).collect::<Result<Vec<_>, _>>();
    assert_eq!(frames.unwrap(), [Frame::Whole(b"abc"), Frame::Whole(b""), Frame::Cut(cut)]);
}

#[test]
fn frames_that_contradict_themselves_are_refused() {
    let empty = fragment_header(0, 10, 5, 0);
    let mut beyond = fragment_header(0, 10, 5, 6).to_vec();
    beyond.extend_from_slice(&[0; 6]);
    for payload in [&empty[..], &beyond, &[0, 9, 1], &[0x80, 2, 0], &[7]] {
        let last = Frames::new(payload).last();
        assert!(matches!(last, Some(Err(_))), "{payload:?}: {last:?}");
    }
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
        ToReceiver::parse(&emitted::<PARITY_HEADER>(|out| header.emit(out))).is_ok()
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
