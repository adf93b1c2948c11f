//! The Wireshark dissector, run by tshark on a capture of really sealed datagrams.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use reliability::stream::{Sender, SenderConfig, StreamId};
use session::schedule::{EXPORTER_BYTES, Role, Secrets};
use session::{Cipher, HEADER, OVERHEAD, Sealer, ThreadPair, key_log};

const PORT: u16 = 14792;
/// Link type of captures whose packets begin with the IP header.
const RAW_IP: u32 = 101;

/// A capture file in pcap's classic format, one packet a microsecond.
fn capture(datagrams: &[Vec<u8>]) -> Vec<u8> {
    cut_capture(datagrams, usize::MAX)
}

/// The same with so many bytes of each packet at most, as by `tcpdump -s`.
fn cut_capture(datagrams: &[Vec<u8>], most: usize) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(0xa1b2_c3d4_u32.to_le_bytes());
    file.extend([2_u16, 4].map(u16::to_le_bytes).concat());
    file.extend([0, 0, 65_535, RAW_IP].map(u32::to_le_bytes).concat());
    for (index, datagram) in datagrams.iter().enumerate() {
        let length = u16::try_from(20 + 8 + datagram.len()).unwrap();
        let wide = u32::from(length);
        let kept = wide.min(u32::try_from(most).unwrap_or(u32::MAX));
        file.extend([1, u32::try_from(index).unwrap(), kept, wide].map(u32::to_le_bytes).concat());
        let [high, low] = length.to_be_bytes();
        // The IP checksum is not looked at.
        let mut packet = vec![0x45, 0, high, low, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2];
        packet.extend([PORT, PORT, length - 20, 0].map(u16::to_be_bytes).concat());
        packet.extend(datagram);
        packet.truncate(kept as usize);
        file.extend(packet);
    }
    file
}

fn fields(file: &Path, keys: Option<&Path>, fields: &[&str]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/wireshark/longhaul.lua");
    let mut tshark = Command::new("tshark");
    tshark.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(file);
    tshark.args(["-T", "fields", "-E", "separator=/s"]);
    if let Some(keys) = keys {
        tshark.arg("-o").arg(format!("longhaul.keylog:{}", keys.display()));
    }
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.trim_end().to_owned()).collect()
}

#[test]
#[ignore = "needs tshark: test-all has it"]
fn tshark_shows_what_was_sealed() {
    let secret = Secrets::derive(&[7; EXPORTER_BYTES], Role::Dialer, Cipher::Aegis128L).unwrap().send;
    // Two packets to an epoch.
    let mut sealer = Sealer::new(0xdead_beef, secret, 2).unwrap().between(ThreadPair::alike(3));
    let mut datagrams: Vec<Vec<u8>> = [(0, 100), (36, 0), (0, 1400)]
        .into_iter()
        .map(|(lane, length)| {
            let mut buffer = vec![0x5a; length + OVERHEAD];
            assert!(buffer.len() >= HEADER);
            sealer.seal(lane, &mut buffer, length).unwrap();
            buffer
        })
        .collect();
    datagrams.push(vec![0x40; 10]);
    datagrams.push(vec![0xc0; 40]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bulk.pcap");
    std::fs::write(&file, capture(&datagrams)).unwrap();
    let names =
        ["epoch", "thread", "lane", "session", "number", "length"].map(|name| format!("longhaul.{name}"));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let shown = fields(&file, None, &names);
    assert_eq!(shown[..3], ["0 3 0 0xbeef 0 100", "0 3 36 0xbeef 0 0", "1 3 0 0xbeef 1 1400"]);
    let experts = fields(&file, None, &["_ws.expert.message"]);
    assert_eq!(experts, ["", "", "", "Shorter than header and tag", "No bulk datagram"]);
}

/// "Range is out of bounds" (jzwinck/redis-wireshark#3, opendroneid/wireshark-dissector#8,
/// sipcapture/hep-wireshark#9): captures that have the begin of each packet only. What is missing
/// is neither forged nor an error of the dissector.
#[test]
#[ignore = "needs tshark: test-all has it"]
fn tshark_takes_a_cut_packet_for_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (file, keys) = (folder.path().join("bulk.pcap"), folder.path().join("keys"));
    let secret = || Secrets::derive(&[7; EXPORTER_BYTES], Role::Dialer, Cipher::Aegis128L).unwrap().send;
    std::fs::write(&keys, key_log::lines(&secret(), 0xbeef).unwrap()).unwrap();
    let text = data();
    let mut sealer = Sealer::new(0xbeef, secret(), 10).unwrap();
    let mut datagram = vec![0; text.len() + OVERHEAD];
    datagram[HEADER..HEADER + text.len()].copy_from_slice(&text);
    sealer.seal(0, &mut datagram, text.len()).unwrap();
    let whole = 20 + 8 + datagram.len();
    // From the UDP header's end on: around the ends of header, shortest datagram, and this one.
    for kept in [28, 29, 35, 36, 37, 51, 52, 53, 90, whole - 17, whole - 16, whole - 1, whole] {
        std::fs::write(&file, cut_capture(std::slice::from_ref(&datagram), kept)).unwrap();
        let shown = fields(&file, Some(&keys), &["longhaul.length", "longhaul.packet", "_ws.expert.message"]);
        let cut = "The capture has not all of it: it cannot be opened";
        let wanted = match kept {
            // Without a byte of it nobody asks the dissector.
            28 => String::new(),
            ..36 => cut.to_owned(),
            _ if kept == whole => format!("{} DATA", text.len()),
            _ => format!("{} {cut}", text.len()),
        };
        let words: Vec<&str> = shown[0].split_whitespace().collect();
        assert_eq!(words.join(" "), wanted, "{kept} of {whole}");
    }
}

/// A DATA packet of stream 5 with a REQUEST of flow 70, sequence number 7, that holds a SEND only,
/// and a CLOSE of flow 3.
fn data() -> Vec<u8> {
    let now = Instant::now();
    let mut sender = Sender::new(SenderConfig::new(StreamId(5), 1400), now);
    let request = [&[0x01, 0x40, 70, 0, 0, 0, 7, 0x04][..], &[9; 300]].concat();
    sender.push(&[&request], now).unwrap();
    sender.push(&[&[0x06, 3, 0, 0, 0, 9]], now).unwrap();
    let mut out = vec![0; 1400];
    let sent = sender.poll_transmit(now, &mut out).unwrap();
    out.truncate(sent.len);
    out
}

/// With each cipher, in the second epoch too; and with the wrong key, nothing is made up.
#[test]
#[ignore = "needs tshark: test-all has it"]
fn tshark_shows_the_inside_with_a_key_log() {
    let folder = tempfile::tempdir().unwrap();
    let (file, keys) = (folder.path().join("bulk.pcap"), folder.path().join("keys"));
    let names = ["packet", "stream", "coding", "sequence", "record", "flow", "opcode"];
    let names = names.map(|name| format!("longhaul.{name}"));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (mut datagrams, mut log) = (Vec::new(), String::new());
    for (number, cipher) in Cipher::ALL.into_iter().enumerate() {
        // To thread 3, 2 and 1.
        let number = u8::try_from(number).unwrap();
        let session = 0x0001_0a00 + 8 * u32::from(number);
        let threads = ThreadPair { here: 3, there: 3 ^ number };
        let secret = Secrets::derive(&[7; EXPORTER_BYTES], Role::Dialer, cipher).unwrap().send;
        log += &key_log::lines(&secret, session).unwrap();
        let mut sealer = Sealer::new(session, secret, 1).unwrap().between(threads);
        for lane in [1, 34] {
            let text = data();
            let mut buffer = vec![0; text.len() + OVERHEAD];
            buffer[HEADER..HEADER + text.len()].copy_from_slice(&text);
            sealer.seal(lane, &mut buffer, text.len()).unwrap();
            datagrams.push(buffer);
        }
    }
    // A probe, and a packet sealed with another key than the log has.
    let secret =
        |seed| Secrets::derive(&[seed; EXPORTER_BYTES], Role::Dialer, Cipher::Aegis128L).unwrap().send;
    log += &key_log::lines(&secret(8), 0x0b00).unwrap();
    log += &key_log::lines(&secret(8), 0x0b01).unwrap();
    for (session, seed) in [(0x0b00, 8), (0x0b01, 9)] {
        let mut sealer = Sealer::new(session, secret(seed), 10).unwrap();
        let mut buffer = vec![0; 200 + OVERHEAD];
        buffer[HEADER..][..4].copy_from_slice(&[5, 0, 0, 2]);
        sealer.seal(0, &mut buffer, 200).unwrap();
        datagrams.push(buffer);
    }
    std::fs::write(&file, capture(&datagrams)).unwrap();
    std::fs::write(&keys, log).unwrap();
    let shown = fields(&file, Some(&keys), &names);
    for line in &shown[..6] {
        assert_eq!(line, "DATA 5 sr 0 REQUEST,CLOSE 70,3 0x04", "{shown:?}");
    }
    assert_eq!(shown[6..], ["PROBE 2", ""], "{shown:?}");
    let experts = fields(&file, Some(&keys), &["_ws.expert.message"]);
    assert_eq!(experts[6..], ["", "Not sealed with the key of the log"]);
    let unopened = fields(&file, None, &names);
    assert!(unopened.iter().all(String::is_empty), "{unopened:?}");
}
