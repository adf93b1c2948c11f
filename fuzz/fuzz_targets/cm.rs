//! Connection management: every view of every message, and the fields that are changed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::Script;
use roce::cm::{Mad, Message, Timeout, clear_vendor_options, raise_ack_timeout, set_ack_timeout};
use roce::wire::{Bth, Deth, Ext, Opcode, Packet, Psn, Qpn, Repr};

/// From the BTH to the MAD.
const HEADERS: usize = 12 + 8;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let (how, timeout) = (script.u8(), Timeout::new(script.u8()));
    let mut bytes = if how & 1 == 0 { script.rest().to_vec() } else { mad(how, &mut script) };
    let Ok(packet) = Packet::parse(&bytes) else { return };
    let before = Mad::parse(&packet).map(|mad| describe(&mad));
    let original = bytes.clone();
    let changed = if how & 2 == 0 {
        raise_ack_timeout(&mut bytes, timeout).inspect(|before| assert!(*before < timeout))
    } else {
        set_ack_timeout(&mut bytes, timeout)
    };
    let differing = bytes.iter().zip(&original).filter(|(one, other)| one != other).count();
    assert!(differing <= usize::from(changed.is_some()));
    let after = Mad::parse(&Packet::parse(&bytes).expect("still a packet")).map(|mad| describe(&mad));
    assert_eq!(before.is_some(), after.is_some());
    if let Some(before) = changed {
        assert_eq!(raise_ack_timeout(&mut bytes, timeout), None, "twice");
        assert_eq!(set_ack_timeout(&mut bytes, before), Some(timeout));
        assert_eq!(bytes, original, "only this field");
    }
    clear(original);
});

/// Vendor options are cleared where they stand, and nothing else.
fn clear(mut bytes: Vec<u8>) {
    let original = bytes.clone();
    let cleared = clear_vendor_options(&mut bytes);
    assert_eq!(cleared, bytes != original);
    let packet = Packet::parse(&bytes).expect("still a packet");
    let Some(mad) = Mad::parse(&packet) else { return assert!(!cleared) };
    let (vendor_id, places) = match mad.message {
        Message::Req(req) => (req.vendor_id(), [5, 6, 7]),
        Message::Rep(rep) => (rep.vendor_id(), [15, 19, 23]),
        Message::SidrRep(reply) => (reply.vendor_id(), [6, 7, 11]),
        _ => return assert!(!cleared),
    };
    assert_eq!((vendor_id, mad.attribute_modifier), (0, 0));
    let mut expected = original;
    expected[HEADERS + 20..HEADERS + 24].fill(0);
    places.iter().for_each(|place| expected[HEADERS + 24 + place] = 0);
    assert_eq!(bytes, expected, "only these fields");
    assert!(!clear_vendor_options(&mut bytes), "twice");
}

/// A MAD of the communication management class, made of what the script says.
fn mad(how: u8, script: &mut Script<'_>) -> Vec<u8> {
    let mut payload = [0; 256];
    let attribute = 0x10 + (how >> 2) % 12;
    payload[..4].copy_from_slice(&[1, 7, 2, 3]);
    payload[17] = attribute;
    let body = script.bytes(232);
    payload[24..24 + body.len()].copy_from_slice(body);
    let options = script.bytes(4);
    payload[20..20 + options.len()].copy_from_slice(options);
    let bth = Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0));
    let ext = Ext::Deth(Deth { qkey: 0x8001_0000, src_qp: Qpn::GSI });
    let repr = Repr { bth, ext, payload: &payload };
    let mut bytes = vec![0; HEADERS + payload.len()];
    repr.emit(&mut bytes).expect("a MAD");
    bytes
}

/// Reads every field.
fn describe(mad: &Mad<'_>) -> String {
    let text = format!("{mad:?}");
    match mad.message {
        Message::Req(req) => {
            let port = req.src_port();
            assert!(port.is_none_or(|port| port >= 0xc000));
            let _ = (req.remote_response_timeout().duration(), req.local_response_timeout(), req.path_mtu());
            let _ = (req.local_gid(), req.remote_gid(), req.cma(), req.transport_service(), req.pkey());
            let _ =
                (req.flow_control(), req.srq(), req.max_cm_retries(), req.traffic_class(), req.hop_limit());
            assert_eq!(req.private_data().len(), 92);
        }
        Message::Rep(rep) => {
            let _ = (rep.target_ack_delay().duration(), rep.srq(), rep.rnr_retry_count());
            assert_eq!(rep.private_data().len(), 196);
        }
        Message::Mra(mra) => {
            let _ = (mra.message(), mra.service_timeout().duration());
        }
        Message::Rej(rej) => {
            let _ = (rej.message(), rej.reason());
            assert_eq!(rej.private_data().len(), 148);
        }
        Message::Dreq(dreq) => {
            let _ = dreq.remote_qpn();
        }
        Message::Lap(lap) => {
            let _ = (lap.remote_qpn(), lap.local_gid(), lap.remote_gid(), lap.local_ack_timeout());
        }
        Message::Apr(apr) => {
            let _ = apr.status();
        }
        Message::SidrReq(request) => {
            let _ = (request.pkey(), request.service_id());
            assert_eq!(request.private_data().len(), 216);
        }
        Message::SidrRep(reply) => {
            let _ = (reply.status(), reply.service_id(), reply.qkey());
        }
        Message::Rtu(_) | Message::Drep(_) | Message::Other(_) => {}
    }
    text
}
