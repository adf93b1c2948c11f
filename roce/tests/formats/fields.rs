//! The fields of chosen frames, as the programs and an independent dissector report them.

use std::time::Duration;

use roce::wire::*;

use crate::capture;

#[test]
fn write_first_middle_last_and_its_ack() {
    let capture = capture::of("verbs");
    let first = capture.packet(1);
    assert_eq!(first.bth.opcode, Opcode::WriteFirst);
    assert_eq!((first.bth.dest_qp, first.bth.psn), (Qpn::new(0x16), Psn::new(0xfffffe)));
    assert_eq!((first.bth.pkey, first.bth.pad, first.bth.ack_req), (0xffff, 0, false));
    assert_eq!(first.ext.reth().unwrap().dma_length, 521);
    assert_eq!(first.payload.len(), 256);

    let middle = capture.packet(2);
    assert_eq!((middle.bth.opcode, middle.ext), (Opcode::WriteMiddle, Ext::None));
    assert_eq!(middle.bth.psn, first.bth.psn + 1);

    let last = capture.packet(3);
    assert_eq!((last.bth.opcode, last.bth.pad), (Opcode::WriteLast, 3));
    assert_eq!(last.bth.psn, Psn::new(0));
    assert_eq!(last.payload.len(), 521 - 512);
    assert!(last.bth.ack_req);
    assert_eq!(last.bytes.len(), 24);

    let ack = capture.packet(4);
    assert_eq!((ack.bth.opcode, ack.bth.dest_qp), (Opcode::Acknowledge, Qpn::new(0x11)));
    assert_eq!(ack.bth.psn, last.bth.psn);
    assert_eq!(ack.ext, Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 1 }));
    // The program filled its buffer with i * 7 + 3 from offset 0 on and wrote from 4096 on.
    let sent = [first.payload, middle.payload, last.payload].concat();
    assert!((0..521).all(|i| sent[i] == (i * 7 + 3) as u8));
}

#[test]
fn read_and_its_response() {
    let capture = capture::of("verbs");
    let request = capture.packet(5);
    assert_eq!(request.bth.opcode, Opcode::ReadRequest);
    let length = request.ext.reth().unwrap().dma_length;
    assert_eq!(length, 522);
    assert_eq!(PathMtu::B256.psn_span(length), 3);

    let places = [Place::First, Place::Middle, Place::Last];
    let lengths = [256, 256, 10];
    for (i, (place, length)) in places.into_iter().zip(lengths).enumerate() {
        let response = capture.packet(6 + i);
        assert_eq!(response.bth.opcode.kind(), Kind::ReadResponse);
        assert_eq!(response.bth.opcode.place(), place);
        assert_eq!(response.bth.psn, request.bth.psn + u32::try_from(i).unwrap());
        assert_eq!(response.payload.len(), length);
        assert_eq!(response.ext.aeth().is_some(), place != Place::Middle);
    }
}

#[test]
fn immediate_and_invalidate() {
    let capture = capture::of("verbs");
    let immediate = ImmDt([0xc0, 0xff, 0xee, 0x01]);
    let with_immediate: Vec<Opcode> = capture
        .packets()
        .filter(|(_, packet)| packet.ext.imm() == Some(immediate))
        .map(|(_, packet)| packet.bth.opcode)
        .collect();
    assert_eq!(
        with_immediate,
        [
            Opcode::UdSendOnlyImmediate,
            Opcode::WriteOnlyImmediate,
            Opcode::WriteLastImmediate,
            Opcode::SendOnlyImmediate,
            Opcode::SendLastImmediate,
            Opcode::UcSendLastImmediate,
            Opcode::UcWriteLastImmediate,
        ]
    );
    let only = capture.packet(24);
    assert_eq!((only.bth.opcode, only.payload.len()), (Opcode::SendOnlyInvalidate, 17));
    let rkey = capture.packet(1).ext.reth().unwrap().rkey;
    assert_eq!(only.ext, Ext::Ieth(Ieth(rkey)));
    assert_eq!(capture.packet(27).bth.opcode, Opcode::SendLastInvalidate);
    assert_eq!(capture.packet(27).ext, Ext::Ieth(Ieth(rkey)));
}

#[test]
fn every_kind_of_nak() {
    let capture = capture::of("verbs");
    let syndrome = |number| capture.packet(number).ext.aeth().unwrap().syndrome;
    let bad_rkey = syndrome(32);
    assert_eq!(bad_rkey, Syndrome::Nak(Nak::RemoteAccess));
    assert!(bad_rkey.is_fatal() && !bad_rkey.is_ack());
    assert_eq!(syndrome(34), Syndrome::Nak(Nak::InvalidRequest));
    let not_ready = syndrome(36);
    assert_eq!(not_ready, Syndrome::Rnr { timer: RnrTimer::new(12) });
    assert!(!not_ready.is_fatal() && !not_ready.is_ack());
    let naks: Vec<Syndrome> = capture
        .packets()
        .filter_map(|(_, packet)| packet.ext.aeth().map(|aeth| aeth.syndrome))
        .filter(|syndrome| matches!(syndrome, Syndrome::Nak(_)))
        .collect();
    let expected = [Nak::RemoteAccess, Nak::InvalidRequest, Nak::RemoteOperation];
    assert_eq!(naks, expected.map(Syndrome::Nak));
}

#[test]
fn sequence_naks_name_the_expected_psn() {
    let capture = capture::of("ib_write_bw_loss");
    let nak = capture.packet(9);
    assert_eq!(nak.ext.aeth().unwrap().syndrome, Syndrome::Nak(Nak::PsnSequence));
    assert!(!nak.ext.aeth().unwrap().syndrome.is_fatal());
    assert_eq!(nak.bth.psn, Psn::new(0xcd0a5));
    assert!(nak.bth.psn.is_within(capture.packet(1).bth.psn, 8));
    let ack = capture.packet(11);
    assert_eq!(ack.bth.psn, capture.packet(8).bth.psn);
    assert_eq!(ack.ext.aeth().unwrap().msn, 1);

    let capture = capture::of("ib_send_bw_rnr");
    let kinds: Vec<u8> = capture
        .packets()
        .filter_map(|(_, packet)| packet.ext.aeth().map(|aeth| aeth.syndrome.to_u8()))
        .collect();
    assert_eq!(kinds, [0x1f, 0x1f, 0x1f, 0x2c, 0x2c, 0x2c, 0x60, 0x60, 0x60]);
}

#[test]
fn atomics() {
    let capture = capture::of("ib_atomic_bw_fetch_and_add");
    let request = capture.packet(1);
    assert_eq!(request.bth.opcode, Opcode::FetchAdd);
    let operands: Vec<AtomicEth> = capture
        .packets()
        .filter_map(|(_, packet)| match packet.ext {
            Ext::Atomic(atomic) => Some(atomic),
            _ => None,
        })
        .collect();
    let rkey = 0xd69;
    for (virtual_address, atomic) in (0x5610_3f8a_5000..).step_by(0x40).zip(&operands) {
        assert_eq!(*atomic, AtomicEth { virtual_address, rkey, swap_or_add: 1, compare: 0 });
    }
    let answers: Vec<(Psn, u64)> = capture
        .packets()
        .filter_map(|(_, packet)| match packet.ext {
            Ext::AtomicAck(aeth, original) => {
                assert!(aeth.syndrome.is_ack());
                Some((packet.bth.psn, original.0))
            }
            _ => None,
        })
        .collect();
    assert_eq!((operands.len(), answers.len()), (5, 5));
    assert_eq!(answers[0], (request.bth.psn, 0x4148_680e_1820_429c));
    assert_eq!(answers[1], (request.bth.psn + 1, 0xa222_ec24_2043_f45b));
    let capture = capture::of("ib_atomic_bw_cmp_and_swap");
    assert_eq!(capture.packet(1).bth.opcode, Opcode::CompareSwap);
    let write = capture::of("verbs").packet(49).bth;
    assert_eq!((write.opcode, write.psn), (Opcode::AtomicWrite, Psn::new(0xfffffe)));
    assert_eq!(capture::of("verbs").packet(49).payload, b"12345678");
    assert_eq!(capture::of("verbs").packet(50).bth.opcode, Opcode::ReadResponseOnly);
}

#[test]
fn datagrams_name_their_sender() {
    let capture = capture::of("ibv_ud_pingpong");
    for (_, packet) in capture.packets() {
        let deth = *packet.ext.deth().unwrap();
        assert_eq!(deth, Deth { qkey: 0x11111111, src_qp: Qpn::new(0x19) });
        assert_eq!((packet.payload.len(), packet.bth.pad), (99, 1));
    }
}

#[test]
fn rnr_timers() {
    let of = |code| RnrTimer::new(code).duration();
    assert_eq!(of(0), Duration::from_micros(655_360));
    assert_eq!(of(1), Duration::from_micros(10));
    assert_eq!(of(12), Duration::from_micros(640));
    assert_eq!(of(31), Duration::from_micros(491_520));
    assert!((1..31).all(|code| of(code) < of(code + 1)));
    assert_eq!(RnrTimer::at_least(Duration::from_micros(641)).code(), 13);
    assert_eq!(RnrTimer::at_least(Duration::ZERO).code(), 1);
    assert_eq!(RnrTimer::at_least(Duration::from_millis(492)).code(), 0);
    assert_eq!(RnrTimer::at_least(Duration::from_secs(9)).code(), 0);
}

#[test]
fn spans() {
    for (mtu, bytes) in [(PathMtu::B256, 256), (PathMtu::B1024, 1024), (PathMtu::B4096, 4096)] {
        assert_eq!(PathMtu::from_bytes(bytes as usize), Some(mtu));
        assert_eq!([0, 1, bytes, bytes + 1].map(|length| mtu.psn_span(length)), [1, 1, 1, 2]);
    }
    assert_eq!(PathMtu::from_bytes(1500), None);
    assert_eq!(PathMtu::B256.psn_span(u32::MAX), 1 << 24);
}

#[test]
fn psns_wrap() {
    let last = Psn::new(0xff_ffff);
    assert_eq!(last + 1, Psn::new(0));
    assert_eq!(last.next(), Psn::new(0));
    assert_eq!(Psn::new(0).prev(), last);
    assert_eq!(Psn::new(2) - 3, last);
    assert_eq!(Psn::new(3).distance(last), 4);
    assert_eq!(last.distance(Psn::new(3)), -4);
    assert_eq!(Psn::new(0x80_0000).distance(Psn::new(0)), -(1 << 23));
    assert_eq!(Psn::new(0x7f_ffff).distance(Psn::new(0)), (1 << 23) - 1);
    assert!(Psn::new(1).is_within(last, 3) && !Psn::new(2).is_within(last, 3));
    assert!(!last.prev().is_within(last, 3) && !last.is_within(last, 0));
}

#[test]
fn malformed_packets() {
    let parse = |bytes: &[u8]| Packet::parse(bytes).map(|packet| packet.bth.opcode);
    let capture = capture::of("verbs");
    let mut only = capture.packet(9).bytes.to_vec();
    assert_eq!(parse(&only), Ok(Opcode::SendOnly));
    assert_eq!(parse(&only[..11]), Err(Malformed::Truncated));
    assert_eq!(parse(&only[..14]), Err(Malformed::Padding));
    assert_eq!(parse(&only[..12]), Err(Malformed::Padding), "padding without payload");
    only[1] |= 1;
    assert_eq!(parse(&only), Err(Malformed::Version(1)));
    only[0] = 0x15;
    assert_eq!(parse(&only), Err(Malformed::Opcode(0x15)));
    let ack = [capture.packet(4).bytes, &[0; 4]].concat();
    assert_eq!(parse(&ack), Err(Malformed::Length));
    assert_eq!(parse(&ack[..12]), Err(Malformed::Truncated));
    let atomic_write = capture.packet(49).bytes;
    assert_eq!(parse(&atomic_write[..atomic_write.len() - 4]), Err(Malformed::Length));
    for opcode in [0x15, 0x18, 0x1b, 0x1e, 0x2c, 0x40, 0x63, 0x66, 0x80, 0xa0, 0xff] {
        assert_eq!(Opcode::from_u8(opcode), None);
    }
}

/// IBA volume 1, 9.7.5.1: bit 7 is reserved.
#[test]
fn the_reserved_bit_of_a_syndrome_means_nothing() {
    for code in 0..=0x7f {
        let syndrome = Syndrome::from_u8(code);
        assert_eq!((Syndrome::from_u8(code | 0x80), syndrome.to_u8()), (syndrome, code));
    }
}

/// No program here sends these, so their bytes are written down from the layout.
#[test]
fn cnp_and_flush() {
    let mut cnp = [0; 28];
    cnp[..12].copy_from_slice(&[0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0x11, 0, 0, 0, 0]);
    let packet = Packet::parse(&cnp).unwrap();
    assert!(packet.bth.becn && !packet.bth.fecn);
    assert_eq!((packet.bth.opcode, packet.payload.len()), (Opcode::Cnp, 16));
    assert!(!packet.bth.opcode.is_request() && !packet.bth.opcode.is_response());
    assert_eq!(Packet::parse(&cnp[..24]), Err(Malformed::Length));

    let mut flush = vec![0x1c, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0, 0, 9, 0, 0, 0, 0x12];
    flush.extend([0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 7, 0, 0, 1, 0]);
    let packet = Packet::parse(&flush).unwrap();
    let Ext::Flush(feth, reth) = packet.ext else { panic!("no FETH") };
    assert_eq!((feth.placement(), feth.selectivity()), (2, 1));
    assert_eq!(reth, Reth { virtual_address: 0x1000, rkey: 7, dma_length: 256 });
    let mut out = [0xa5; 32];
    assert_eq!(packet.repr().emit(&mut out), Ok(32));
    assert_eq!(out, *flush);
}

#[test]
fn opcode_properties() {
    for opcode in Opcode::ALL.iter().copied() {
        assert_eq!(Opcode::from_u8(opcode.to_u8()), Some(opcode));
        let code = opcode.to_u8();
        let is_rc = code < 0x20;
        assert_eq!(opcode.transport() == Transport::Rc, is_rc);
        assert_eq!(opcode.is_response(), (0x0d..=0x12).contains(&code));
        assert_eq!(opcode.is_request(), !opcode.is_response() && code != 0x81);
        if (0x20..0x40).contains(&code) {
            let rc = Opcode::from_u8(code - 0x20).unwrap();
            assert_eq!(
                (rc.kind(), rc.place(), rc.layout()),
                (opcode.kind(), opcode.place(), opcode.layout())
            );
        }
    }
    let needs_receive: Vec<u8> = Opcode::ALL
        .iter()
        .filter(|opcode| opcode.needs_receive() && opcode.transport() == Transport::Rc)
        .map(|opcode| opcode.to_u8())
        .collect();
    assert_eq!(needs_receive, [0x00, 0x04, 0x05, 0x09, 0x0b, 0x17]);
    let needs_response: Vec<u8> =
        Opcode::ALL.iter().filter(|opcode| opcode.needs_response()).map(|opcode| opcode.to_u8()).collect();
    assert_eq!(needs_response, [0x0c, 0x13, 0x14, 0x1c, 0x1d]);
    assert!(!Opcode::ReadRequest.has_payload() && Opcode::AtomicWrite.has_payload());
}

#[test]
fn what_does_not_fit_is_not_emitted() {
    let bth = Bth::new(Opcode::SendOnly, Qpn::new(1), Psn::new(1));
    let mut out = [0; 64];
    let wrong = Repr { bth, ext: Ext::Imm(ImmDt([0; 4])), payload: &[] };
    assert_eq!(wrong.emit(&mut out), Err(EmitError::Headers));
    let ack = Bth { opcode: Opcode::Acknowledge, ..bth };
    let ext = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 });
    assert_eq!(Repr { bth: ack, ext, payload: &[1] }.emit(&mut out), Err(EmitError::Length));
    assert_eq!(out, [0; 64]);
}
