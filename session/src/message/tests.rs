//! Layout: `docs/protocol.md#control-messages`.

use proptest::prelude::*;

use super::*;

fn encoded(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

impl Hello {
    /// Says what it must, and no more.
    pub(crate) fn plain() -> Self {
        Self {
            site: "a".into(),
            session: 7,
            ciphers: Ciphers::from_wire(3),
            max_datagram: 9000,
            lanes: 1,
            threads: 1,
            resume_for: 0,
            ticket: None,
            build: String::new(),
            remote: Vec::new(),
            takes_living: false,
            begins_again: false,
        }
    }
}

#[test]
fn golden_bytes() {
    let hello = Message::Hello(Hello {
        site: "b1".into(),
        session: 0x0102_0304,
        ciphers: Ciphers { aegis: false, aes: true, chacha: true, hardware_aes: false, hardware_gcm: true },
        max_datagram: 1472,
        lanes: 4,
        threads: 1,
        resume_for: 120_000,
        ticket: Some(Ticket([7; TICKET_BYTES])),
        build: "0.2".into(),
        remote: vec!["10.0.1.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()],
        takes_living: true,
        begins_again: false,
    });
    #[rustfmt::skip]
    assert_eq!(encoded(&hello), [
        0, 0, 0, 77,  1,  0, 14,  1, 2, 3, 4,  0x83,  0x05, 0xc0,  4,  1,  2, b'b', b'1',
        0, 1, 0xd4, 0xc0,  7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
        3, b'0', b'.', b'2',
        2,  4, 24,  10, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        6, 32,  0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        1,
    ]);
    let pairings = Message::Pairings {
        last: true,
        pairings: vec![Pairing {
            direction: Direction::Inbound,
            requester: "10.0.1.2".parse().unwrap(),
            target: "10.0.2.3".parse().unwrap(),
            target_qpn: 0x11,
            requester_qpn: None,
            psn: Some(0xff_ffff),
            src_port: 0xc001,
            lives: false,
        }],
    };
    #[rustfmt::skip]
    assert_eq!(encoded(&pairings), [
        0, 0, 0, 52,  2,  1,  0, 1,
        1, 4,  10, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  10, 0, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0x11,  0xff, 0xff, 0xff, 0xff,  0, 0xff, 0xff, 0xff,  0xc0, 1,
    ]);
    assert_eq!(encoded(&Message::Goodbye(GoodbyeReason::Restart)), [0, 0, 0, 2, 4, 1]);
}

#[test]
fn malformed_messages_are_refused_by_reason() {
    let refused = |bytes: &[u8]| Message::decode(bytes).unwrap_err();
    assert_eq!(refused(&[0, 0, 0, 0]), MessageError::Length(0));
    assert_eq!(refused(&[0, 0x10, 0, 1]), MessageError::Length(MAX_MESSAGE as u32 + 1));
    for unknown in [0, 3, 9] {
        assert_eq!(refused(&[0, 0, 0, 1, unknown]), MessageError::UnknownType(unknown));
    }
    assert_eq!(refused(&[0, 0, 0, 1, 4]), MessageError::Truncated { kind: 4 });
    assert_eq!(refused(&[0, 0, 0, 3, 1, 0, 1]), MessageError::Version { theirs: 1 });
    let hello = |datagram: [u8; 2], lanes, threads| {
        [&[0, 0, 0, 13, 1, 0, 14, 1, 2, 3, 4, 3][..], &datagram, &[lanes, threads, 0]].concat()
    };
    for (lanes, threads) in [(1, 1), (64, 1), (1, 8), (8, 8), (32, 2)] {
        assert!(Message::decode(&hello([0x04, 0xb0], lanes, threads)).unwrap().is_some());
    }
    for (lanes, threads, field) in
        [(0, 1, "lanes"), (65, 1, "lanes"), (33, 2, "lanes"), (1, 0, "threads"), (1, 9, "threads")]
    {
        assert_eq!(refused(&hello([0x04, 0xb0], lanes, threads)), MessageError::Value { field });
    }
    assert_eq!(refused(&hello([0x04, 0xaf], 1, 1)), MessageError::Value { field: "max datagram" });
    assert_eq!(refused(&[0, 0, 0, 4, 2, 2, 0, 0]), MessageError::Value { field: "pairings flags" });
    assert_eq!(refused(&[0, 0, 0, 5, 2, 1, 0, 0, 7]), MessageError::Trailing { kind: 2, bytes: 1 });
    assert_eq!(refused(&[0, 0, 0, 3, 4, 0, 7]), MessageError::Trailing { kind: 4, bytes: 1 });
    assert_eq!(refused(&[0, 0, 0, 4, 2, 1, 0xff, 0xff]), MessageError::TooManyPairings);
}

#[test]
fn fields_that_a_later_revision_adds_are_skipped() {
    let hello = Message::Hello(Hello {
        ciphers: Ciphers { aegis: true, aes: false, chacha: true, hardware_aes: true, hardware_gcm: false },
        ..Hello::plain()
    });
    let mut bytes = encoded(&hello);
    bytes[3] += 2;
    bytes.extend_from_slice(&[1, 2]);
    assert_eq!(Message::decode(&bytes).unwrap(), Some((hello.clone(), bytes.len())));
    // Earlier revisions ended with the prefixes, the build, the ticket, and the site name.
    for fields in [2 + 1, 1, 1, 4 + TICKET_BYTES] {
        bytes.truncate(bytes.len() - fields);
        bytes[3] -= fields as u8;
        assert_eq!(Message::decode(&bytes).unwrap(), Some((hello.clone(), bytes.len())));
    }
}

/// A bit each of the last byte, which earlier revisions ignore.
#[test]
fn habits_are_bits() {
    for (habits, takes_living, begins_again) in
        [(0, false, false), (1, true, false), (2, false, true), (3, true, true)]
    {
        let hello = Hello { takes_living, begins_again, ..Hello::plain() };
        let mut bytes = encoded(&Message::Hello(hello.clone()));
        assert_eq!(bytes.last(), Some(&habits));
        *bytes.last_mut().unwrap() |= 0xfc;
        assert_eq!(Message::decode(&bytes).unwrap(), Some((Message::Hello(hello), bytes.len())));
    }
}

#[test]
fn a_build_that_cannot_be_shown_is_none() {
    let named = |build: &str| {
        let hello = Hello { build: build.into(), ..Hello::plain() };
        match Message::decode(&encoded(&Message::Hello(hello))) {
            Ok(Some((Message::Hello(hello), _))) => hello.build,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(named("1.0.0-rc.1+git_7"), "1.0.0-rc.1+git_7");
    for odd in ["a b", "\u{1b}[2J", "\"}", "\u{e9}"] {
        assert_eq!(named(odd), "");
    }
    assert_eq!(named(&"x".repeat(300)).len(), MAX_BUILD);
}

#[test]
fn prefixes_that_are_none_or_too_many_are_refused() {
    let hello = |remote: &[u8]| {
        let name = [&[1, 0, 14, 1, 2, 3, 4, 3, 0x05, 0xc0, 1, 1, 0][..], &[0; 4 + TICKET_BYTES + 1], remote]
            .concat();
        [&[0, 0, 0, name.len() as u8][..], &name].concat()
    };
    let prefix = |family, length, address: [u8; 4]| {
        let mut bytes = vec![1, family, length];
        bytes.extend_from_slice(&address);
        bytes.extend_from_slice(&[0; 12]);
        bytes
    };
    let told = |bytes: &[u8]| match Message::decode(&hello(bytes)) {
        Ok(Some((Message::Hello(hello), _))) => Ok(hello.remote),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    };
    assert_eq!(told(&prefix(4, 8, [10, 0, 0, 0])), Ok(vec!["10.0.0.0/8".parse().unwrap()]));
    assert_eq!(told(&[0]), Ok(vec![]));
    let wrong = Err(MessageError::Value { field: "prefix" });
    assert_eq!(told(&prefix(4, 33, [10, 0, 0, 0])), wrong);
    assert_eq!(told(&prefix(6, 129, [0x20, 1, 0, 0])), wrong);
    assert_eq!(told(&prefix(4, 8, [10, 0, 0, 1])), wrong);
    assert_eq!(told(&[MOST_PREFIXES as u8 + 1]), wrong);
    assert_eq!(told(&prefix(5, 8, [10, 0, 0, 0])), Err(MessageError::Value { field: "address" }));
    assert_eq!(told(&[1, 4]), Err(MessageError::Truncated { kind: 1 }));
}

#[test]
fn more_prefixes_than_may_be_told_are_not_told() {
    let prefixes = |count: u32| -> Vec<IpNet> {
        (0..count).map(|at| IpNet::new(Ipv4Addr::from(at << 8).into(), 24).unwrap()).collect()
    };
    for (count, told) in [(MOST_PREFIXES as u32, MOST_PREFIXES), (MOST_PREFIXES as u32 + 1, 0)] {
        let mut bytes = Vec::new();
        encode_prefixes(&prefixes(count), &mut bytes);
        let mut body = Body { kind: kind::HELLO, rest: &bytes };
        assert_eq!(decode_prefixes(&mut body).map(|prefixes| prefixes.len()), Ok(told));
        assert_eq!(body.end(), Ok(()));
    }
}

#[test]
fn many_pairings_go_out_in_messages_of_bounded_size() {
    let pairing = |qpn| Pairing {
        direction: Direction::Outbound,
        requester: "2001:db8::1".parse().unwrap(),
        target: "2001:db8::2".parse().unwrap(),
        target_qpn: qpn,
        requester_qpn: Some(1),
        psn: None,
        src_port: 0xffff,
        lives: false,
    };
    for count in [0, 1, PAIRINGS_PER_MESSAGE, PAIRINGS_PER_MESSAGE + 1, MAX_PAIRINGS + 5] {
        let all: Vec<_> = (0..count as u32).map(pairing).collect();
        let mut bytes = Vec::new();
        encode_all_pairings(&all, &mut bytes);
        let mut rest = bytes.as_slice();
        let mut received = Vec::new();
        loop {
            let (message, length) = Message::decode(rest).unwrap().unwrap();
            assert!(length <= LENGTH + MAX_MESSAGE);
            rest = &rest[length..];
            let Message::Pairings { last, pairings } = message else { panic!("{message:?}") };
            received.extend(pairings);
            assert_eq!(last, rest.is_empty());
            if last {
                break;
            }
        }
        assert_eq!(received, all[..count.min(MAX_PAIRINGS)]);
    }
}

#[test]
fn both_sides_agree_on_a_cipher() {
    let all: Vec<_> = (0..32).map(|bits| Ciphers::from_wire(bits & 7 | bits << 3 & 0xc0)).collect();
    for &a in &all {
        for &b in &all {
            assert_eq!(a.agree(b), b.agree(a));
        }
    }
    let all = Ciphers { aegis: true, aes: true, chacha: true, hardware_aes: true, hardware_gcm: true };
    let old = Ciphers { aegis: false, ..all };
    let half = Ciphers { hardware_gcm: false, ..all };
    let without = Ciphers { hardware_aes: false, ..half };
    assert_eq!(all.agree(all), Some(Cipher::Aegis128L));
    assert_eq!(all.agree(half), Some(Cipher::Aegis128L));
    assert_eq!(all.agree(old), Some(Cipher::Aes128Gcm));
    assert_eq!(old.agree(half), Some(Cipher::ChaCha20Poly1305));
    assert_eq!(all.agree(without), Some(Cipher::ChaCha20Poly1305));
    assert_eq!(without.agree(Ciphers { chacha: false, ..all }), Some(Cipher::Aes128Gcm));
    assert_eq!(without.agree(Ciphers { chacha: false, aes: false, ..all }), Some(Cipher::Aegis128L));
    assert_eq!(Ciphers { chacha: false, ..old }.agree(Ciphers { aes: false, ..old }), None);
}

fn any_address() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (a.into(), b.into())),
        any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (a.into(), b.into())),
    ]
}

fn any_pairing() -> impl Strategy<Value = Pairing> {
    let qpn = || 0..=MAX_24_BIT;
    let known = [qpn(), qpn()].map(prop::option::of);
    (any::<bool>(), any_address(), qpn(), known, any::<u16>()).prop_map(
        |(outbound, (requester, target), target_qpn, [requester_qpn, psn], src_port)| Pairing {
            direction: if outbound { Direction::Outbound } else { Direction::Inbound },
            requester,
            target,
            target_qpn,
            requester_qpn,
            psn,
            src_port,
            lives: !outbound && src_port % 2 == 1,
        },
    )
}

fn any_prefix() -> impl Strategy<Value = IpNet> {
    (any::<IpAddr>(), 0..=32_u8).prop_map(|(address, length)| IpNet::new(address, length).unwrap().trunc())
}

fn any_message() -> impl Strategy<Value = Message> {
    let ticket = prop::option::of(prop::array::uniform16(1..=u8::MAX));
    let resume = (any::<u32>(), ticket, "[a-z0-9._+-]{0,64}", prop::collection::vec(any_prefix(), 0..4));
    let hello = (
        "[a-z0-9.-]{0,253}",
        any::<(u32, u8)>(),
        LEAST_DATAGRAM..,
        (1..=MOST_LANES, 1..=MOST_THREADS),
        resume,
    )
        .prop_map(|(site, (session, bits), max_datagram, (lanes, threads), resume)| {
            let (resume_for, ticket, build, remote) = resume;
            // Together they have no more lanes than one thread may have.
            let threads = threads.min(MOST_LANES / lanes);
            Message::Hello(Hello {
                site,
                session,
                ciphers: Ciphers::from_wire(bits),
                max_datagram,
                lanes,
                threads,
                resume_for,
                ticket: ticket.map(Ticket),
                build,
                remote,
                takes_living: bits % 3 == 0,
                begins_again: bits % 5 == 0,
            })
        });
    let pairings = (any::<bool>(), prop::collection::vec(any_pairing(), 0..20))
        .prop_map(|(last, pairings)| Message::Pairings { last, pairings });
    let goodbye = any::<u8>().prop_map(|code| Message::Goodbye(GoodbyeReason::from_wire(code)));
    prop_oneof![hello, pairings, goodbye]
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(message in any_message(), behind in any::<Vec<u8>>()) {
        let mut bytes = encoded(&message);
        let length = bytes.len();
        for cut in 0..length {
            prop_assert_eq!(Message::decode(&bytes[..cut]), Ok(None));
        }
        bytes.extend(behind);
        prop_assert_eq!(Message::decode(&bytes), Ok(Some((message, length))));
    }

    #[test]
    fn any_bytes_are_judged_without_panic(kind in 0_u8..6, body in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = (body.len() as u32 + 1).to_be_bytes().to_vec();
        bytes.push(kind);
        bytes.extend(&body);
        if let Ok(Some((message, length))) = Message::decode(&bytes) {
            prop_assert_eq!(length, bytes.len());
            let again = encoded(&message);
            prop_assert_eq!(Message::decode(&again), Ok(Some((message, again.len()))));
        }
    }
}
