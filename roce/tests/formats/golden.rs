//! Both ways through every captured frame.

use std::collections::BTreeSet;

use roce::ip::{self, Datagram, Reject};
use roce::wire::{Bth, Opcode, Packet};

use crate::capture;

/// Nothing a test finds in a buffer may come from what was in it before.
const STALE: u8 = 0xa5;

#[test]
fn every_frame_is_emitted_from_its_fields_as_it_was() {
    let mut frames = 0;
    for capture in capture::all() {
        for (number, frame) in capture.frames().enumerate() {
            let place = format!("{} {}", capture.name, number + 1);
            let datagram = Datagram::parse(frame).unwrap_or_else(|why| panic!("{place}: {why}"));
            let packet = Packet::parse(datagram.transport).unwrap_or_else(|why| panic!("{place}: {why}"));
            let repr = packet.repr();

            let mut transport = [STALE; 2048];
            let length = repr.emit(&mut transport).unwrap();
            assert_eq!(transport[..length], *datagram.transport, "{place}");
            assert_eq!(length, repr.buffer_len(), "{place}");
            assert!(transport[length..].iter().all(|byte| *byte == STALE), "{place}");

            let ident = u16::from_be_bytes([frame[4], frame[5]]);
            let mut whole = [STALE; 2048];
            let length = ip::emit(&datagram.addressing, ident, &transport[..length], &mut whole).unwrap();
            assert_eq!(whole[..length], *frame, "{place}");
            assert!(whole[length..].iter().all(|byte| *byte == STALE), "{place}");
            frames += 1;
        }
    }
    assert_eq!(frames, 235);
}

#[test]
fn a_buffer_one_byte_short_is_refused() {
    for capture in capture::all() {
        for (addressing, packet) in capture.packets() {
            let mut short = vec![0; packet.bytes.len() - 1];
            assert_eq!(packet.repr().emit(&mut short), Err(roce::wire::EmitError::TooSmall));
            let mut short = vec![0; ip::buffer_len(&addressing, packet.bytes.len()) - 1];
            let refused = ip::emit(&addressing, 1, packet.bytes, &mut short);
            assert_eq!(refused, Err(ip::EmitError::TooSmall));
        }
    }
}

/// The programs between them sent every RC request and response but FLUSH, and most of UC and UD.
#[test]
fn the_captures_cover_the_opcodes() {
    let seen: BTreeSet<Opcode> = capture::all().iter().flat_map(|one| one.opcodes()).collect();
    let unseen: Vec<Opcode> = Opcode::ALL.iter().copied().filter(|opcode| !seen.contains(opcode)).collect();
    assert_eq!(
        unseen,
        [
            Opcode::Flush,
            Opcode::UcSendOnly,
            Opcode::UcSendOnlyImmediate,
            Opcode::UcWriteOnly,
            Opcode::UcWriteOnlyImmediate,
            Opcode::Cnp,
        ]
    );
}

#[test]
fn bytes_after_the_ip_packet_are_cut() {
    for capture in capture::all() {
        for frame in capture.frames() {
            let mut padded = frame.to_vec();
            padded.extend([0xee; 13]);
            assert_eq!(Datagram::parse(&padded), Datagram::parse(frame));
        }
    }
}

#[test]
fn every_cut_short_frame_is_refused() {
    for name in ["rping", "verbs_ipv6", "ib_atomic_bw_fetch_and_add"] {
        for frame in capture::of(name).frames() {
            for length in 0..frame.len() {
                let refused = Datagram::parse(&frame[..length]).unwrap_err();
                let expected = if length == 0 { Reject::NotIp } else { Reject::Truncated };
                assert_eq!(refused, expected, "{name} at {length}");
            }
        }
    }
}

/// One wrong bit anywhere is noticed, but for the fields the network may change.
#[test]
fn every_flipped_bit_is_noticed_or_free() {
    for (name, number) in [("ib_atomic_bw_fetch_and_add", 1), ("verbs_ipv6", 4), ("rping", 4)] {
        let capture = capture::of(name);
        let frame = capture.frame(number);
        let (ip_len, mutable_ip): (usize, &[usize]) = match frame[0] >> 4 {
            4 => (20, &[]), // TOS, TTL and checksum are guarded by the checksum
            _ => (40, &[1, 2, 3, 7]),
        };
        let udp_checksum = [ip_len + 6, ip_len + 7];
        for bit in 0..frame.len() * 8 {
            let byte = bit / 8;
            let mut damaged = frame.to_vec();
            damaged[byte] ^= 0x80 >> (bit % 8);
            let is_free = mutable_ip.contains(&byte)
                || udp_checksum.contains(&byte)
                || byte == ip_len + 8 + 4
                || ip_len == 40 && byte == 0 && bit % 8 >= 4;
            assert_eq!(Datagram::parse(&damaged).is_ok(), is_free, "{name} {number}: bit {bit}");
        }
    }
}

/// Fields that the network may change leave the ICRC as it is.
#[test]
fn routing_keeps_the_icrc() {
    for capture in capture::all() {
        for frame in capture.frames() {
            let datagram = Datagram::parse(frame).unwrap();
            let ident = u16::from_be_bytes([frame[4], frame[5]]);
            let mut routed = datagram.addressing;
            (routed.ttl, routed.tclass) = (routed.ttl - 1, 0xb9);
            let mut out = vec![STALE; frame.len()];
            ip::emit(&routed, ident, datagram.transport, &mut out).unwrap();
            assert_eq!(out[out.len() - 4..], frame[frame.len() - 4..]);
            assert_eq!(Datagram::parse(&out).unwrap().addressing, routed);
        }
    }
}

#[test]
fn setters_change_their_field_only() {
    for capture in capture::all() {
        for (_, packet) in capture.packets() {
            let mut bytes = *packet.bytes.first_chunk().unwrap();
            let mut expected = packet.bth;
            Bth::set_ack_req(&mut bytes, !expected.ack_req);
            expected.ack_req = !expected.ack_req;
            assert_eq!(Bth::parse(&bytes), Ok(expected));
            expected.dest_qp = roce::wire::Qpn::new(0xabcdef);
            Bth::set_dest_qp(&mut bytes, expected.dest_qp);
            assert_eq!(Bth::parse(&bytes), Ok(expected));
            expected.psn = roce::wire::Psn::new(0x123456);
            Bth::set_psn(&mut bytes, expected.psn);
            assert_eq!(Bth::parse(&bytes), Ok(expected));
        }
    }
}
