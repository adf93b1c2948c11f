//! Flows that make no progress, although their requesters try.

#![warn(clippy::disallowed_methods, reason = "in virtual time only")]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::ip::{self, Addressing, Datagram};
use roce::wire::{Bth, Ext, Opcode, Psn, Qpn, Repr};
use splice::record::Reason;
use splice::{Gateway, Settings};

/// A SEND as it comes from the LAN.
fn send(psn: u32) -> Vec<u8> {
    let bth = Bth::new(Opcode::SendOnly, Qpn::new(7), Psn::new(psn));
    let repr = Repr { bth, ext: Ext::None, payload: &[1; 64] };
    let mut transport = vec![0; repr.buffer_len()];
    let len = repr.emit(&mut transport).unwrap();
    transport.truncate(len);
    let [src, dst] = [[10, 0, 0, 1], [10, 0, 1, 1]].map(IpAddr::from);
    let addressing = Addressing { src, dst, src_port: 50_000, tclass: 0, ttl: 64 };
    let mut out = vec![0; 2048];
    let total = ip::emit(&addressing, 1, &transport, &mut out).unwrap();
    out.truncate(total);
    out
}

fn drain(gateway: &mut Gateway, now: Instant) {
    let mut out = vec![0; 1 << 16];
    while gateway.poll_lan(now, &mut out).is_some() {}
    while gateway.poll_wan(now, &mut out).is_some() {}
}

/// The peer never answers, and the requester asks again and again, more often than any limit of
/// silence.
#[test]
fn a_requester_that_only_repeats_itself_keeps_no_flow_alive() {
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    let start = Instant::now();
    let settings = Settings {
        idle_flow: Duration::from_secs(20),
        target_dead: Duration::from_secs(2),
        rnr: Duration::from_secs(2),
        ..Settings::new(vec!["10.0.1.0/24".parse().unwrap()], 1_000_000_000, 1400)
    };
    let mut gateway = Gateway::new(settings, start);
    gateway.session_up(Duration::from_millis(10), 1400, 1, &[], start);
    let mut ended = None;
    for tick in 0..650 {
        let now = start + Duration::from_millis(100) * tick;
        let bytes = send(5);
        gateway.handle_lan(&Datagram::parse(&bytes).unwrap(), now);
        if gateway.next_timeout(now).is_some_and(|at| at <= now) {
            gateway.handle_timeout(now);
        }
        drain(&mut gateway, now);
        let stats = gateway.stats();
        assert_eq!(stats.near_opened, 1);
        if stats.failed[Reason::RequesterGone as usize] > 0 {
            ended.get_or_insert(now - start);
        }
    }
    assert_eq!(ended, Some(Duration::from_secs(60)));
}
