//! Connection management as rdma_cm speaks it.

use std::net::IpAddr;
use std::time::Duration;

use roce::cm::{self, Mad, Message, MessageKind, Timeout};
use roce::ip::{self, Datagram};
use roce::wire::{Packet, PathMtu, Psn, Qpn};

use crate::capture;

const HERE: [u8; 4] = [10, 0, 0, 1];
const THERE: [u8; 4] = [10, 0, 1, 1];

#[test]
fn a_connection_is_set_up_and_taken_down() {
    let capture = capture::of("rping");
    let Message::Req(req) = Mad::parse(&capture.packet(1)).unwrap().message else { panic!() };
    assert_eq!(req.local_comm_id(), 0xf21aeab0);
    assert_eq!(req.service_id(), 0x0106_1c06);
    assert_eq!((req.qpn(), req.starting_psn()), (Qpn::new(0x28), Psn::new(0xff415a)));
    assert_eq!((req.responder_resources(), req.initiator_depth()), (1, 1));
    assert_eq!((req.remote_response_timeout().code(), req.local_response_timeout().code()), (20, 20));
    assert_eq!((req.transport_service(), req.flow_control()), (0, false));
    assert_eq!((req.retry_count(), req.rnr_retry_count(), req.max_cm_retries()), (7, 7, 15));
    assert_eq!((req.pkey(), req.srq()), (0xffff, false));
    assert_eq!(req.path_mtu(), Some(PathMtu::B4096));
    assert_eq!((req.local_gid(), req.remote_gid()), (IpAddr::from(HERE), IpAddr::from(THERE)));
    assert_eq!((req.traffic_class(), req.hop_limit()), (0, 64));
    assert_eq!(req.local_ack_timeout().code(), 17);
    let cma = req.cma().unwrap();
    assert_eq!((cma.port_space, cma.dst_port, cma.src_port), (0x0106, 0x1c06, 0x9236));
    assert_eq!((cma.src, cma.dst), (IpAddr::from(HERE), IpAddr::from(THERE)));
    assert_eq!(req.private_data().len(), 92);

    let Message::Rep(rep) = Mad::parse(&capture.packet(2)).unwrap().message else { panic!() };
    assert_eq!((rep.local_comm_id(), rep.remote_comm_id()), (0xf11aeab0, req.local_comm_id()));
    assert_eq!((rep.qpn(), rep.starting_psn()), (Qpn::new(0x34), Psn::new(0xad6cfc)));
    assert_eq!((rep.responder_resources(), rep.initiator_depth()), (1, 1));
    assert_eq!((rep.target_ack_delay().code(), rep.rnr_retry_count()), (15, 7));
    assert_eq!((rep.srq(), rep.private_data().len()), (false, 196));

    let Message::Rtu(rtu) = Mad::parse(&capture.packet(3)).unwrap().message else { panic!() };
    assert_eq!((rtu.local_comm_id(), rtu.remote_comm_id()), (0xf21aeab0, 0xf11aeab0));

    // The flow starts with the PSNs, queue pairs and port that were agreed on.
    let (addressing, request) = capture.packets().nth(3).unwrap();
    assert_eq!((request.bth.dest_qp, request.bth.psn), (rep.qpn(), rep.starting_psn()));
    assert_eq!(req.src_port(), Some(addressing.src_port));
    assert_eq!(capture.packet(6).bth.psn, req.starting_psn());

    let Message::Dreq(dreq) = Mad::parse(&capture.packet(40)).unwrap().message else { panic!() };
    assert_eq!((dreq.local_comm_id(), dreq.remote_qpn()), (0xf21aeab0, rep.qpn()));
    let Message::Drep(drep) = Mad::parse(&capture.packet(41)).unwrap().message else { panic!() };
    assert_eq!((drep.local_comm_id(), drep.remote_comm_id()), (0xf11aeab0, 0xf21aeab0));
}

#[test]
fn only_mads_are_mads() {
    for capture in capture::all() {
        for (_, packet) in capture.packets() {
            let for_gsi = packet.bth.dest_qp == Qpn::GSI;
            assert_eq!(Mad::parse(&packet).is_some(), for_gsi, "{}", capture.name);
        }
    }
}

#[test]
fn a_rejection() {
    let capture = capture::of("rping_rejected");
    let Message::Req(req) = Mad::parse(&capture.packet(1)).unwrap().message else { panic!() };
    let mad = Mad::parse(&capture.packet(2)).unwrap();
    let Message::Rej(rej) = mad.message else { panic!() };
    assert_eq!(rej.remote_comm_id(), req.local_comm_id());
    assert_eq!((rej.message(), rej.reason()), (MessageKind::Req, 8));
    assert_eq!(rej.private_data().len(), 148);
    assert_eq!((mad.status, mad.src_qp), (0, Qpn::GSI));
    assert_eq!(mad.transaction, Mad::parse(&capture.packet(1)).unwrap().transaction);
}

#[test]
fn a_service_is_resolved() {
    let capture = capture::of("udaddy");
    let Message::SidrReq(req) = Mad::parse(&capture.packet(1)).unwrap().message else { panic!() };
    let Message::SidrRep(rep) = Mad::parse(&capture.packet(2)).unwrap().message else { panic!() };
    assert_eq!(req.request_id(), rep.request_id());
    assert_eq!((req.pkey(), req.service_id() >> 16), (0xffff, 0x0111));
    assert_eq!((rep.status(), rep.service_id()), (0, req.service_id()));
    // The datagrams that follow go to the queue pair and carry the key that were answered.
    let datagram = capture.packet(3);
    assert_eq!(datagram.bth.dest_qp, rep.qpn());
    assert_eq!(datagram.ext.deth().unwrap().qkey, rep.qkey());
}

#[test]
fn ack_timeouts_are_raised_and_never_lowered() {
    for (number, before) in [(1, 17), (2, 15)] {
        let capture = capture::of("rping");
        let original = capture.packet(number).bytes;
        let mut bytes = original.to_vec();
        assert_eq!(cm::raise_ack_timeout(&mut bytes, Timeout::new(before)), None);
        assert_eq!(bytes, original);
        let raised = cm::raise_ack_timeout(&mut bytes, Timeout::new(21));
        assert_eq!(raised, Some(Timeout::new(before)));
        assert_eq!(announced(&bytes), 21);
        let changed: Vec<usize> = (0..bytes.len()).filter(|i| bytes[*i] != original[*i]).collect();
        assert_eq!(changed, [if number == 1 { 44 + 95 } else { 44 + 26 }]);
        assert_eq!(cm::raise_ack_timeout(&mut bytes, Timeout::new(18)), None);
        assert_eq!(cm::set_ack_timeout(&mut bytes, Timeout::new(3)), Some(Timeout::new(21)));
        assert_eq!(announced(&bytes), 3);
    }
}

fn announced(transport: &[u8]) -> u8 {
    match Mad::parse(&Packet::parse(transport).unwrap()).unwrap().message {
        Message::Req(req) => req.local_ack_timeout().code(),
        Message::Rep(rep) => rep.target_ack_delay().code(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_raised_timeout_travels() {
    let capture = capture::of("rping");
    let datagram = Datagram::parse(capture.frame(1)).unwrap();
    let mut transport = datagram.transport.to_vec();
    cm::raise_ack_timeout(&mut transport, Timeout::new(22)).unwrap();
    let mut out = [0; 512];
    let length = ip::emit(&datagram.addressing, 7, &transport, &mut out).unwrap();
    assert_eq!(announced(Datagram::parse(&out[..length]).unwrap().transport), 22);
}

#[test]
fn no_timeout_stays_no_timeout() {
    let mut bytes = capture::of("rping").packet(1).bytes.to_vec();
    cm::set_ack_timeout(&mut bytes, Timeout::new(0)).unwrap();
    assert_eq!(cm::raise_ack_timeout(&mut bytes, Timeout::new(20)), None);
    let mut other = capture::of("rping").packet(3).bytes.to_vec();
    assert_eq!(cm::raise_ack_timeout(&mut other, Timeout::new(20)), None);
    assert_eq!(cm::set_ack_timeout(&mut other, Timeout::new(20)), None);
}

/// From the BTH to the MAD, and to the CM message.
const MAD: usize = 12 + 8;
const BODY: usize = MAD + 24;

/// Places of `include/rdma/ibta_vol1_c12.h` of Linux.
#[test]
fn vendor_options_are_cleared_where_they_stand() {
    let vendor_id = |transport: &[u8]| {
        let mad = Mad::parse(&Packet::parse(transport).unwrap()).unwrap();
        let vendor_id = match mad.message {
            Message::Req(req) => req.vendor_id(),
            Message::Rep(rep) => rep.vendor_id(),
            Message::SidrRep(reply) => reply.vendor_id(),
            other => panic!("{other:?}"),
        };
        (vendor_id, mad.attribute_modifier)
    };
    let messages = [("rping", 1, [5, 6, 7]), ("rping", 2, [15, 19, 23]), ("udaddy", 2, [6, 7, 11])];
    for (name, number, places) in messages {
        let plain = capture::of(name).packet(number).bytes.to_vec();
        assert_eq!(vendor_id(&plain), (0, 0), "Soft-RoCE has none");
        let mut bytes = plain.clone();
        assert!(!cm::clear_vendor_options(&mut bytes));
        assert_eq!(bytes, plain);
        places.iter().zip([0x01, 0x23, 0x45]).for_each(|(place, value)| bytes[BODY + place] = value);
        assert_eq!(vendor_id(&bytes), (0x01_2345, 0));
        assert!(cm::clear_vendor_options(&mut bytes));
        assert_eq!(bytes, plain);
        bytes[MAD + 20..MAD + 24].copy_from_slice(&[0x20, 0, 0, 1]);
        assert_eq!(vendor_id(&bytes), (0, 0x2000_0001));
        assert!(cm::clear_vendor_options(&mut bytes));
        assert_eq!(bytes, plain);
    }
    for (name, number) in [("rping", 3), ("rping", 40), ("udaddy", 1), ("udaddy", 3)] {
        let mut bytes = capture::of(name).packet(number).bytes.to_vec();
        let end = bytes.len().min(BODY + 24);
        bytes[MAD + 20..end].fill(0xa5);
        let before = bytes.clone();
        assert!(!cm::clear_vendor_options(&mut bytes));
        assert_eq!(bytes, before);
    }
}

#[test]
fn messages_not_seen_here() {
    let with_attribute = |attribute: u8, change: &dyn Fn(&mut [u8])| {
        let mut bytes = capture::of("rping").packet(3).bytes.to_vec();
        bytes[12 + 8 + 17] = attribute;
        change(&mut bytes[12 + 8 + 24..]);
        bytes
    };
    let bytes = with_attribute(0x11, &|body| (body[8], body[9]) = (0x40, 20 << 3));
    let Message::Mra(mra) = Mad::parse(&Packet::parse(&bytes).unwrap()).unwrap().message else { panic!() };
    assert_eq!((mra.message(), mra.service_timeout().code()), (MessageKind::Rep, 20));

    let bytes = with_attribute(0x19, &|body| {
        body[12..16].copy_from_slice(&[0, 0x12, 0x34, 0]);
        body[34..40].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        body[63] = 18 << 3;
    });
    let Message::Lap(lap) = Mad::parse(&Packet::parse(&bytes).unwrap()).unwrap().message else { panic!() };
    assert_eq!((lap.remote_qpn(), lap.local_ack_timeout().code()), (Qpn::new(0x1234), 18));
    assert_eq!(lap.local_gid(), IpAddr::from(HERE));
    let mut raised = bytes.clone();
    assert_eq!(cm::raise_ack_timeout(&mut raised, Timeout::new(20)), Some(Timeout::new(18)));
    assert_eq!(cm::set_ack_timeout(&mut raised, Timeout::new(18)), Some(Timeout::new(20)));
    assert_eq!(raised, bytes);

    let bytes = with_attribute(0x1a, &|body| body[9] = 3);
    let Message::Apr(apr) = Mad::parse(&Packet::parse(&bytes).unwrap()).unwrap().message else { panic!() };
    assert_eq!(apr.status(), 3);
    let bytes = with_attribute(0x77, &|_| {});
    let message = Mad::parse(&Packet::parse(&bytes).unwrap()).unwrap().message;
    assert_eq!(message, Message::Other(0x77));
}

#[test]
fn timeouts() {
    assert_eq!(Timeout::new(14).duration(), Duration::from_nanos(67_108_864));
    assert_eq!(Timeout::new(31).duration(), Duration::from_nanos(4096 << 31));
    assert_eq!(Timeout::at_least(Duration::from_millis(67)).code(), 14);
    assert_eq!(Timeout::at_least(Duration::from_millis(68)).code(), 15);
    assert_eq!(Timeout::at_least(Duration::from_secs(1 << 20)).code(), 31);
}
