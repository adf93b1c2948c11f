//! Cutting batches, checked against an independent view of what a right packet is.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::super::offload::{Checksums, Missing, Offload, Uncut};

const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;

fn header(flags: u8, gso: u8, size: u16, start: u16, offset: u16) -> [u8; Offload::LEN] {
    let [s0, s1] = size.to_ne_bytes();
    let [c0, c1] = start.to_ne_bytes();
    let [o0, o1] = offset.to_ne_bytes();
    [flags, gso, 0, 0, s0, s1, c0, c1, o0, o1]
}

/// Ethernet, IP, and a transport header whose fields to be fixed hold rubbish.
fn frame(v6: bool, tcp: bool, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
    let protocol = if tcp { 6 } else { 17 };
    if v6 {
        frame.extend([0x60, 0, 0, 0, 9, 9, protocol, 64]);
        frame.extend([0x20; 16]);
        frame.extend([0x21; 16]);
    } else {
        frame.extend([0x45, 0, 9, 9, 0xff, 0xfe, 0x40, 0, 64, protocol, 9, 9, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    if tcp {
        // CWR, ACK, PSH, FIN; twelve bytes of options.
        frame.extend([
            0x12, 0x34, 0x56, 0x78, 0xff, 0xff, 0xff, 0x00, 1, 2, 3, 4, 0x80, 0x99, 1, 1, 9, 9, 0, 0,
        ]);
        frame.extend([1; 12]);
    } else {
        frame.extend([0x12, 0x34, 0x56, 0x78, 9, 9, 9, 9]);
    }
    frame.extend(payload);
    frame
}

/// With all checksums. Those left missing and then computed by whoever hears what is said of them
/// come to the same.
fn undo(header: [u8; Offload::LEN], frame: &[u8]) -> Result<Vec<Vec<u8>>, Uncut> {
    let complete = undo_with(header, frame, Checksums::Complete)?;
    assert!(complete.iter().all(|(_, missing)| *missing == 0));
    let left = undo_with(header, frame, Checksums::Leave)?.into_iter().map(|(packet, missing)| {
        undo_with(Missing::header(missing), &packet, Checksums::Complete).unwrap().remove(0).0
    });
    let complete: Vec<_> = complete.into_iter().map(|(packet, _)| packet).collect();
    assert_eq!(left.collect::<Vec<_>>(), complete);
    Ok(complete)
}

fn undo_with(
    header: [u8; Offload::LEN],
    frame: &[u8],
    checksums: Checksums,
) -> Result<Vec<(Vec<u8>, u32)>, Uncut> {
    let mut packets = Vec::new();
    Offload::parse(&header).undo(
        &mut frame.to_vec(),
        checksums,
        &mut Vec::new(),
        &mut |packet, missing| {
            packets.push((packet.to_vec(), Missing::tag(missing)));
        },
    )?;
    Ok(packets)
}

/// One's complement sum of 16-bit words: 0xffff over anything whose checksum is right.
fn ones_sum(bytes: &[u8]) -> u32 {
    let words =
        bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)));
    let mut sum = 0;
    for word in words {
        sum += word;
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// Checks what a receiver checks: lengths and checksums.
fn assert_right(packet: &[u8], v6: bool, tcp: bool) {
    let ip = &packet[14..];
    let (header, addresses, length) =
        if v6 { (40, 8..40, 40 + word(ip, 4)) } else { (20, 12..20, word(ip, 2)) };
    assert_eq!(usize::from(length), ip.len());
    if !v6 {
        assert_eq!(ones_sum(&ip[..20]), 0xffff);
    }
    let transport = &ip[header..];
    if !tcp {
        assert_eq!(usize::from(word(transport, 4)), transport.len());
    }
    let mut covered = ip[addresses].to_vec();
    covered.extend((transport.len() as u32).to_be_bytes());
    covered.extend([0, 0, 0, if tcp { 6 } else { 17 }]);
    covered.extend(transport);
    assert_eq!(ones_sum(&covered), 0xffff);
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn udp_batches_become_datagrams() {
    for v6 in [false, true] {
        for len in [1000, 1001, 2500, 64_000] {
            let payload = payload(len);
            let packets =
                undo(header(NEEDS_CSUM, GSO_UDP_L4, 1000, 34, 6), &frame(v6, false, &payload)).unwrap();
            let headers = 14 + if v6 { 40 } else { 20 } + 8;
            assert_eq!(packets.len(), len.div_ceil(1000));
            packets.iter().for_each(|packet| assert_right(packet, v6, false));
            assert_eq!(
                packets.iter().flat_map(|packet| &packet[headers..]).copied().collect::<Vec<_>>(),
                payload
            );
            if !v6 {
                let idents: Vec<u16> = packets.iter().map(|packet| word(packet, 18)).collect();
                assert!(idents.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)));
            }
        }
    }
}

#[test]
fn tcp_batches_become_segments() {
    for (v6, gso) in [(false, GSO_TCPV4), (true, GSO_TCPV6 | 0x80)] {
        let payload = payload(3000);
        let packets = undo(header(NEEDS_CSUM, gso, 1400, 34, 16), &frame(v6, true, &payload)).unwrap();
        let transport = 14 + if v6 { 40 } else { 20 };
        packets.iter().for_each(|packet| assert_right(packet, v6, true));
        let bytes: Vec<u8> = packets.iter().flat_map(|packet| &packet[transport + 32..]).copied().collect();
        assert_eq!(bytes, payload);
        let sequences: Vec<u32> = packets
            .iter()
            .map(|packet| u32::from_be_bytes(packet[transport + 4..transport + 8].try_into().unwrap()))
            .collect();
        assert_eq!(
            sequences,
            [0xffff_ff00, 0xffff_ff00u32.wrapping_add(1400), 0xffff_ff00u32.wrapping_add(2800)]
        );
        let flags: Vec<u8> = packets.iter().map(|packet| packet[transport + 13]).collect();
        assert_eq!(flags, [0x90, 0x10, 0x19]);
    }
}

#[test]
fn a_missing_checksum_is_completed() {
    for (tcp, offset) in [(false, 6), (true, 16)] {
        let mut bytes = frame(false, tcp, &payload(333));
        let length = bytes.len() - 34;
        bytes[16..18].copy_from_slice(&((length + 20) as u16).to_be_bytes());
        bytes[24..26].fill(0);
        let checksum = !(ones_sum(&bytes[14..34]) as u16);
        bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
        if !tcp {
            bytes[38..40].copy_from_slice(&(length as u16).to_be_bytes());
        }
        let mut pseudo = bytes[26..34].to_vec();
        pseudo.extend([0, if tcp { 6 } else { 17 }]);
        pseudo.extend((length as u16).to_be_bytes());
        let at = 34 + usize::from(offset);
        bytes[at..at + 2].copy_from_slice(&(ones_sum(&pseudo) as u16).to_be_bytes());
        let packets = undo(header(NEEDS_CSUM, 0, 0, 34, offset), &bytes).unwrap();
        assert_right(&packets[0], false, tcp);
        assert_eq!(undo(header(0, 0, 0, 0, 0), &bytes).unwrap(), [bytes]);
    }
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let tcp = frame(false, true, &payload(3000));
    assert_eq!(undo(header(0, GSO_UDP_L4, 1000, 0, 0), &tcp), Err(Uncut));
    assert_eq!(undo(header(0, 7, 1000, 0, 0), &tcp), Err(Uncut));
    assert_eq!(undo(header(NEEDS_CSUM, 0, 0, 60_000, 6), &tcp), Err(Uncut));
}

#[test]
fn no_input_panics() {
    let seed = 77;
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    for _ in 0..20_000 {
        let mut bytes = frame(rng.random(), rng.random(), &payload(rng.random_range(0..100)));
        for _ in 0..rng.random_range(0..4) {
            let at = rng.random_range(0..bytes.len());
            bytes[at] = rng.random();
        }
        bytes.truncate(rng.random_range(0..=bytes.len()));
        let gso = [0, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, 3][rng.random_range(0..5)];
        let header =
            header(rng.random(), gso, rng.random_range(0..200), rng.random_range(0..150), rng.random());
        let _ = undo(header, &bytes);
    }
}
