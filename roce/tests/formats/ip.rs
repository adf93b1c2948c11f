//! Packets that are no RoCEv2 packets, and input that can not be made one.

use std::net::Ipv4Addr;

use roce::ip::{self, Addressing, Datagram, EmitError, Received, Reject};
use roce::wire::{Bth, Ext, Opcode, Packet, Psn, Qpn, Repr, Reth};

use crate::capture;

/// A captured IPv4 packet with something changed and the header checksum made right again.
fn altered(change: impl FnOnce(&mut Vec<u8>)) -> Result<(), Reject> {
    let mut frame = capture::of("rping").frame(4).to_vec();
    change(&mut frame);
    frame[10..12].fill(0);
    let sum: u32 = frame[..20].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[10..12].copy_from_slice(&sum.to_be_bytes());
    Datagram::parse(&frame).map(|_| ())
}

#[test]
fn reasons() {
    assert_eq!(altered(|_| {}), Ok(()));
    assert_eq!(altered(|frame| frame[0] = 0x55), Err(Reject::NotIp));
    assert_eq!(altered(|frame| frame[0] = 0x44), Err(Reject::IpOptions), "header length 16");
    assert_eq!(altered(|frame| frame[9] = 6), Err(Reject::NotUdp));
    assert_eq!(altered(|frame| frame[23] = 0xb8), Err(Reject::NotRoce));
    assert_eq!(altered(|frame| frame[6] |= 0x20), Err(Reject::Fragment));
    assert_eq!(altered(|frame| frame[7] = 1), Err(Reject::Fragment));
    assert_eq!(altered(|frame| frame[25] ^= 4), Err(Reject::UdpLength));
    assert_eq!(altered(|frame| frame[3] -= 4), Err(Reject::UdpLength));
    assert_eq!(altered(|frame| frame[3] = 19), Err(Reject::Truncated));
    assert_eq!(altered(|frame| frame[3] += 1), Err(Reject::Truncated));
    assert_eq!(altered(|frame| *frame.last_mut().unwrap() ^= 1), Err(Reject::BadIcrc));
    let short = |frame: &mut Vec<u8>| {
        (frame[3], frame[25]) = (20 + 8 + 12, 8 + 12);
    };
    assert_eq!(altered(short), Err(Reject::UdpLength), "no room for BTH and ICRC");
    let options = |frame: &mut Vec<u8>| {
        frame.splice(20..20, [1, 1, 1, 0]);
        (frame[0], frame[3]) = (0x46, frame[3] + 4);
    };
    // The checksum above is that of 20 bytes, but options are refused before it counts.
    assert_eq!(altered(options), Err(Reject::IpOptions));
    let mut frame = capture::of("rping").frame(4).to_vec();
    frame[8] -= 1;
    assert_eq!(Datagram::parse(&frame), Err(Reject::IpChecksum));
}

#[test]
fn reasons_over_ipv6() {
    let with_next_header = |next| {
        let mut frame = capture::of("verbs_ipv6").frame(4).to_vec();
        frame[6] = next;
        Datagram::parse(&frame).map(|_| ())
    };
    assert_eq!(with_next_header(17), Ok(()));
    assert_eq!(with_next_header(44), Err(Reject::Fragment));
    assert_eq!([0, 43, 60].map(with_next_header), [Err(Reject::IpOptions); 3]);
    assert_eq!(with_next_header(0x1b), Err(Reject::RoceV1));
    assert_eq!(with_next_header(58), Err(Reject::NotUdp));
}

#[test]
fn other_traffic_is_foreign() {
    assert_eq!(Datagram::parse(&[]), Err(Reject::NotIp));
    let foreign: Vec<Reject> = Reject::ALL.into_iter().filter(|reason| reason.is_foreign()).collect();
    assert_eq!(foreign, [Reject::NotIp, Reject::NotUdp, Reject::NotRoce]);
    for (index, reason) in Reject::ALL.into_iter().enumerate() {
        assert_eq!(reason.index(), index);
        assert!(reason.name().bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')));
    }
}

#[test]
fn what_can_not_be_emitted() {
    let src = Ipv4Addr::new(10, 0, 0, 1).into();
    let to = |dst| Addressing { src, dst, src_port: 0xc000, tclass: 0, ttl: 64 };
    let mut out = vec![0; 70_000];
    let v4 = to(Ipv4Addr::new(10, 0, 1, 1).into());
    assert_eq!(ip::emit(&v4, 1, &[0; 11], &mut out), Err(EmitError::Length));
    assert_eq!(ip::emit(&v4, 1, &vec![0; 65_504], &mut out), Err(EmitError::Length));
    assert_eq!(ip::emit(&v4, 1, &vec![0; 65_500], &mut out), Ok(65_532));
    let v6 = to("fd00::1".parse().unwrap());
    assert_eq!(ip::emit(&v6, 1, &[0; 12], &mut out), Err(EmitError::Families));
}

#[test]
fn identification_is_never_zero() {
    let capture = capture::of("rping");
    let datagram = Datagram::parse(capture.frame(4)).unwrap();
    let mut out = [0; 128];
    let length = ip::emit(&datagram.addressing, 0, datagram.transport, &mut out).unwrap();
    assert_eq!(out[4..8], [0, 1, 0x40, 0]);
    assert_eq!(Datagram::parse(&out[..length]), Ok(datagram));
}

/// The payload's sum is the same whether it follows from the ICRC's check or is made of its bytes.
#[test]
fn a_payload_is_summed_up_once() {
    let [src, dst] = [[10, 0, 0, 1], [10, 0, 1, 1]].map(|host| Ipv4Addr::from(host).into());
    let reth = Ext::Reth(Reth { virtual_address: 7, rkey: 3, dma_length: 5000 });
    for len in [1, 4, 252, 256, 257, 1020, 1024, 2048, 4093, 4096] {
        for (opcode, ext) in [(Opcode::WriteOnly, reth), (Opcode::SendMiddle, Ext::None)] {
            for tclass in [0, 2, 3] {
                let payload: Vec<u8> = (0..len).map(|at| (at * 31 + len) as u8).collect();
                let bth = Bth { ack_req: true, ..Bth::new(opcode, Qpn::new(0x112233), Psn::new(9)) };
                let mut transport = [0; 5000];
                let end = Repr { bth, ext, payload: &payload }.emit(&mut transport).unwrap();
                let addressing = Addressing { src, dst, src_port: 0xc123, tclass, ttl: 64 };
                let mut out = [0; 5000];
                let whole = ip::emit(&addressing, 5, &transport[..end], &mut out).unwrap();
                let received = Received::parse(&out[..whole]).unwrap();
                let packet = Packet::parse(received.datagram.transport).unwrap();
                let mut known = packet;
                known.note_sums(&received.sums);
                let sum = known.payload_crc();
                assert_eq!((sum, packet.payload_crc()), (crc32fast::hash(&payload), sum), "{opcode:?} {len}");
            }
        }
    }
}
