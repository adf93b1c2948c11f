//! IP packets: whatever comes is read or refused, and what is written reads back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::Script;
use roce::icrc;
use roce::ip::{self, Addressing, Datagram};

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let how = script.u8();
    let mut packet = script.rest().to_vec();
    if how & 1 == 1 {
        mend(&mut packet, how);
    }
    let Ok(datagram) = Datagram::parse(&packet) else { return };
    let Addressing { src, dst, .. } = datagram.addressing;
    assert_eq!(src.is_ipv4(), dst.is_ipv4());
    let length = ip::buffer_len(&datagram.addressing, datagram.transport.len());
    assert!(length <= packet.len() && datagram.transport.len() >= 12);
    let mut out = vec![0xaa; length];
    assert_eq!(ip::emit(&datagram.addressing, 7, datagram.transport, &mut out), Ok(length));
    assert_eq!(Datagram::parse(&out), Ok(datagram));
    assert!(ip::emit(&datagram.addressing, 7, datagram.transport, &mut out[1..]).is_err());
});

/// Makes lengths, ports, checksum and ICRC right, as far as there is room: by chance they never
/// are.
fn mend(packet: &mut [u8], how: u8) {
    let v6 = how & 2 == 2;
    let (ip, total) = (if v6 { 40 } else { 20 }, packet.len());
    let Some(udp) = total.checked_sub(ip).filter(|udp| *udp >= 8 + 12 + icrc::LEN && total < 1 << 16) else {
        return;
    };
    packet[0] = if v6 { 0x60 } else { 0x45 };
    packet[ip + 2..ip + 4].copy_from_slice(&ip::PORT.to_be_bytes());
    packet[ip + 4..ip + 6].copy_from_slice(&(udp as u16).to_be_bytes());
    let (body, check) = packet.split_at_mut(total - icrc::LEN);
    if v6 {
        body[4..6].copy_from_slice(&(udp as u16).to_be_bytes());
        body[6] = 17;
        let (headers, rest) = body.split_first_chunk().expect("long enough");
        check.copy_from_slice(&icrc::v6(headers, rest));
    } else {
        body[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        (body[6], body[7], body[9]) = (body[6] & 0xc0, 0, 17);
        (body[10], body[11]) = (0, 0);
        let words = body[..20].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        body[10..12].copy_from_slice(&sum.to_be_bytes());
        let (headers, rest) = body.split_first_chunk().expect("long enough");
        check.copy_from_slice(&icrc::v4(headers, rest));
    }
}
