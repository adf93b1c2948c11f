//! More records have overtaken one than can wait for it: the flow ends in an error instead of
//! waiting for ever.

use std::time::{Duration, Instant};

use reliability::stream::{Receiver, ReceiverConfig, Sender, SenderConfig, StreamId};
use roce::ip::Addressing;
use roce::wire::{Bth, Ext, Opcode, Psn, Qpn, Repr};
use splice::record::{FlowId, Head, Opening, Reason};
use splice::{Arrival, Ecn, Gateway, LaneId, Settings};

#[test]
fn a_request_that_was_overtaken_by_too_many_fails_its_flow() {
    let now = Instant::now();
    let settings = Settings::new(vec!["10.0.1.0/24".parse().unwrap()], 1_000_000_000, 1400);
    let mut gateway = Gateway::new(settings, now);
    gateway.session_up(Duration::from_millis(1), 1400, 1, &[], now);

    // The peer, by hand: the requests 1 and 8388608 without the request 0.
    let mut peer = Sender::new(SenderConfig::new(StreamId(1), 1400), now);
    let (src, dst) = ("10.0.1.1".parse().unwrap(), "10.0.0.1".parse().unwrap());
    let addressing = Addressing { src, dst, src_port: 0xc123, tclass: 0, ttl: 64 };
    let bth = Bth::new(Opcode::SendOnly, Qpn::new(0x22), Psn::new(7));
    let mut body = [0; 12];
    Repr { bth, ext: Ext::None, payload: &[] }.emit(&mut body).unwrap();
    let flow = FlowId(5);
    let (mut packet, mut number) = ([0; 1400], 0);
    let mut request = |gateway: &mut Gateway, seq: u32| {
        let head =
            Head::Request { flow, seq, replay: false, rested: false, opens: Opening::Full(addressing) };
        peer.push(&[head.emit().as_ref(), &body], now).unwrap();
        let len = peer.poll_transmit(now, &mut packet).unwrap().len;
        let arrival = Arrival { lane: LaneId(0), number, bytes: len, ecn: Ecn::NotEct };
        gateway.handle_wan(&packet[..len], arrival, now);
        number += 1;
    };
    request(&mut gateway, 1);
    assert_eq!((gateway.stats().far_opened, gateway.stats().failed), (1, [0; 9]));
    request(&mut gateway, 1 << 23);
    assert_eq!(gateway.stats().failed[Reason::NoRoom as usize], 1);
    assert_eq!(gateway.stats().bad_records, 0);

    // The peer is told, on the prompt stream.
    let mut ear = Receiver::new(ReceiverConfig::new(StreamId(0), 1400), now);
    let mut told = Vec::new();
    while let Some(len) = gateway.poll_wan(now, &mut packet) {
        // Reports on the peer's own stream come out, too.
        let _ =
            ear.handle_packet(&packet[..len], now, &mut |record| told.push(Head::parse(record).unwrap().0));
    }
    assert_eq!(told, [Head::Fail { flow, reason: Reason::NoRoom }]);
}
