//! A whole gateway and the packets of its hosts: nothing panics or spins, nothing goes back to a
//! LAN that is not answered, memory stays bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::site::{self, Site, TOTAL_BUFFER};
use longhaul_fuzz::{Script, epoch, within};
use roce::ip::Datagram;
use splice::SessionEnd;

/// As in `gateway_wan`, for the gateway and its peer.
const BOUND: u64 = 2 * (3 * TOTAL_BUFFER + (8 << 20)) as u64;

fuzz_target!(|input: &[u8]| within(BOUND, "two gateways", || run(input)));

fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut now = epoch();
    let mut sites = [Site::new(0, 1, now), Site::new(1, 1, now)];
    while !script.is_over() {
        let how = script.u8();
        let here = how >> 7;
        match how % 8 {
            0 => {
                now += script.span();
                sites.iter_mut().for_each(|site| site.wait(now));
            }
            1 if script.u8() == 0 => renew(&mut script, &mut sites, now),
            2 => {
                let addressing = site::addressing(&mut script, here);
                let length = script.length(300);
                let transport = script.bytes(length);
                sites[usize::from(here)].gateway.handle_lan(&Datagram { addressing, transport }, now);
            }
            _ => {
                let addressing = site::addressing(&mut script, here);
                let transport = site::roce(&mut script);
                sites[usize::from(here)]
                    .gateway
                    .handle_lan(&Datagram { addressing, transport: &transport }, now);
            }
        }
        cross(&mut script, &mut sites, now);
    }
}

/// Delivers what one has for the other, unless the script says that a packet is lost.
fn cross(script: &mut Script<'_>, sites: &mut [Site; 2], now: std::time::Instant) {
    let mut lost = script.u8();
    for from in [0, 1, 0, 1] {
        let mut packets = Vec::new();
        let site = &mut sites[from];
        site.lan(now, |datagram| assert!(datagram.addressing.src != datagram.addressing.dst));
        site.wan(now, |packet, arrival| packets.push((packet.to_vec(), arrival)));
        for (packet, arrival) in packets {
            if lost & 0x81 != 0x81 {
                sites[1 - from].gateway.handle_wan(&packet, arrival, now);
            }
            lost = lost.rotate_left(1);
        }
    }
    sites.iter_mut().for_each(|site| site.rest(now));
}

fn renew(script: &mut Script<'_>, sites: &mut [Site; 2], now: std::time::Instant) {
    let end = script.pick(&[SessionEnd::Closed, SessionEnd::Lost]);
    for site in sites.iter_mut() {
        site.gateway.session_down(end, now);
        site.lan(now, |_| {});
    }
    sites.iter_mut().for_each(|site| site.up(now));
}
