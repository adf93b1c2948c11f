//! A whole gateway and the packets of a peer that lies: nothing panics or spins, nothing leaves
//! for other hosts, memory stays bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::site::{self, Site, TOTAL_BUFFER, WAN_PACKET};
use longhaul_fuzz::{Script, epoch, within};
use roce::ip::Datagram;
use splice::SessionEnd;
use splice::record::{FlowId, Head, Opening, Reason};

/// By `docs/configure.md#sizing`: the buffers, as much for what streams send, three eighths for
/// the order of records. Beside these tables of a session.
const BOUND: u64 = (3 * TOTAL_BUFFER + (8 << 20)) as u64;

fuzz_target!(|input: &[u8]| within(BOUND, "a gateway", || run(input)));

fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut now = epoch();
    let mut site = if script.u8() & 1 == 0 { Site::new(0, 2, now) } else { Site::member(0, 2, now) };
    let (mut number, mut sequences) = (0, [0_u64; 8]);
    while !script.is_over() {
        let packet = match script.u8() % 12 {
            0 => {
                let length = script.length(WAN_PACKET);
                script.bytes(length).to_vec()
            }
            1 => path(&mut script),
            2 => control(&mut script),
            3 => piece(&mut script),
            4 => {
                now += script.span();
                site.wait(now);
                members(&mut site);
                Vec::new()
            }
            5 => {
                lan(&mut script, &mut site, now);
                Vec::new()
            }
            6 if script.u8() == 0 => {
                match script.pick(&[Some(SessionEnd::Closed), Some(SessionEnd::Lost), None]) {
                    Some(end) => {
                        site.gateway.session_down(end, now);
                        site.lan(now, |_| {});
                        site.up(now);
                        sequences = [0; 8];
                    }
                    None => {
                        site.gateway.session_lost(now);
                        lan(&mut script, &mut site, now);
                        now += script.span();
                        site.wait(now);
                        site.resume(now);
                    }
                }
                Vec::new()
            }
            _ => data(&mut script, &mut sequences),
        };
        if !packet.is_empty() {
            let bytes = site.gateway.wire_bytes(packet.len());
            let arrival = site::arrival(&mut script, &mut number, bytes);
            site.gateway.handle_wan(&packet, arrival, now);
        }
        site.lan(now, |datagram| assert!(is_here(datagram), "{:?}", datagram.addressing));
        site.wan(now, |_, _| {});
        site.rest(now);
    }
}

/// Takes what the peer has said as a member of a site.
fn members(site: &mut Site) {
    while site.gateway.take_word().is_some() {}
    while site.gateway.take_handed_over().is_some() {}
}

/// From there to here.
fn is_here(datagram: &Datagram<'_>) -> bool {
    let addressing = datagram.addressing;
    let site = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(address) => address.octets()[2],
        std::net::IpAddr::V6(_) => 2,
    };
    site(addressing.src) == 1 && site(addressing.dst) != 1
}

/// A host here speaks: mostly it answers.
fn lan(script: &mut Script<'_>, site: &mut Site, now: std::time::Instant) {
    let addressing = site::addressing(script, 0);
    let transport = site::roce(script);
    site.gateway.handle_lan(&Datagram { addressing, transport: &transport }, now);
}

/// DATA with records of flows.
fn data(script: &mut Script<'_>, sequences: &mut [u64; 8]) -> Vec<u8> {
    let how = script.u8();
    let stream = how & 7;
    let sequence = &mut sequences[usize::from(stream)];
    let here = if how & 0x80 == 0 { *sequence } else { *sequence + u64::from(script.u8()) };
    *sequence = here + 1;
    let mut packet = vec![0x84, stream, 0, 0xff, 0, 0, 0];
    packet.extend((here as u32).to_be_bytes());
    for _ in 0..=how >> 3 & 3 {
        let record = record(script);
        let record = &record[..record.len().min(WAN_PACKET - 60)];
        packet.extend((record.len() as u16 + 1).to_be_bytes());
        packet.extend(record);
    }
    packet.truncate(WAN_PACKET);
    packet
}

fn record(script: &mut Script<'_>) -> Vec<u8> {
    let how = script.u8();
    let flow = FlowId(u32::from(how >> 5));
    let seq = match script.u8() {
        0xff => script.u32(),
        seq => u32::from(seq),
    };
    let reason = [Reason::Stopping, Reason::RequesterGone, Reason::NoRoom, Reason::TooLong]
        [usize::from(seq as u8 & 3)];
    let head = match how & 15 {
        0..5 => {
            let opens = match how & 15 {
                0 => Opening::Short,
                _ if how & 16 == 0 => Opening::Full(site::addressing(script, 1)),
                _ => Opening::Known,
            };
            Head::Request { flow, seq, replay: how & 15 == 4, rested: how & 32 != 0, opens }
        }
        5..8 => Head::Response { flow, seq, is_short: how & 16 != 0 },
        8 => Head::Datagram(site::addressing(script, 1)),
        9 => Head::Ordered { flow, seq, addressing: site::addressing(script, 1) },
        10 => Head::Abort { flow, reason },
        11 => Head::Fail { flow, reason },
        12 => Head::Close { flow, requests: seq },
        13 => Head::Retry { flow },
        14 if how & 16 == 0 => Head::Idle { flow },
        14 => Head::Suspend { flow, count: seq },
        _ => match script.u8() % 8 {
            0 => Head::Word,
            1 => Head::HandedOver,
            2..5 => return lives(script),
            _ => return script.bytes(64).to_vec(),
        },
    };
    let mut record = head.emit().as_ref().to_vec();
    record.extend(site::roce(script));
    record
}

/// LIVES with a flow that may be.
fn lives(script: &mut Script<'_>) -> Vec<u8> {
    let mut record = Head::Lives.emit().as_ref().to_vec();
    for site in [0, 1] {
        let std::net::IpAddr::V4(host) = site::host(site, script.u8()) else { continue };
        record.extend(host.to_ipv6_mapped().octets());
    }
    for number in [0x40 + u32::from(script.u8() & 7), 0x50, u32::from(script.u16())] {
        record.extend(number.to_be_bytes());
    }
    record.extend((0xc000 + u16::from(script.u8() & 3)).to_be_bytes());
    if script.u8() == 0 {
        record.pop();
    }
    record
}

/// A report on the path, mostly with counts that can be.
fn path(script: &mut Script<'_>) -> Vec<u8> {
    let mut packet = vec![4, 2, 0, script.u8() & 1];
    for _ in 0..4 {
        packet.extend(script.u32().to_be_bytes());
    }
    let lost = u64::from(script.u8());
    let arrived = u64::from(script.u16());
    let judged = arrived + lost;
    let rest =
        [judged, judged, lost, lost.min(1), arrived, arrived * 100, 0, 0, arrived, u64::from(script.u8())];
    rest.iter().for_each(|count| packet.extend(count.to_be_bytes()));
    let rest = script.bytes(188 - packet.len());
    packet.extend(rest);
    packet.resize(188, 0);
    packet
}

/// PROBE, MTU or REPORT.
fn control(script: &mut Script<'_>) -> Vec<u8> {
    let how = script.u8();
    let (kind, length) = [(5, 32), (6, 32), (6, 1400), (3, 48)][usize::from(how) & 3];
    let mut packet = vec![kind, how >> 2 & 1, 0, how >> 4];
    packet.extend(script.bytes(44));
    packet.resize(length, 0);
    packet
}

fn piece(script: &mut Script<'_>) -> Vec<u8> {
    let mut packet = vec![7, 0, 0, 0, 0, 0, 0, script.u8()];
    let (total, offset) = (script.length(9000) as u16, script.u16() % 9000);
    packet.extend(total.to_be_bytes());
    packet.extend(offset.to_be_bytes());
    packet.extend([script.u8() & 31, script.u8() & 31, 0, 0]);
    let length = script.length(600);
    packet.extend(script.bytes(length));
    packet
}
