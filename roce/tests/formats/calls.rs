//! CM requests that wait for their reply: one host's leave room for another's.

use roce::cm::{self, Mad};
use roce::pairing::{Config, FlowKey, Pairings};
use roce::wire::{Bth, Deth, Ext, Opcode, Packet, Psn, Qpn, Repr};

use crate::pairing::start;

/// A management datagram to queue pair 1 of this length.
fn mad(head: [u8; 4], attribute: u8, ids: [u32; 2], len: usize, to: u32) -> Vec<u8> {
    let mut payload = vec![0; len];
    payload[..4].copy_from_slice(&head);
    payload[17] = attribute;
    payload[24..28].copy_from_slice(&ids[0].to_be_bytes());
    payload[28..32].copy_from_slice(&ids[1].to_be_bytes());
    let ext = Ext::Deth(Deth { qkey: 0x8001_0000, src_qp: Qpn::new(1) });
    let repr = Repr { bth: Bth::new(Opcode::UdSendOnly, Qpn::new(to), Psn::new(0)), ext, payload: &payload };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut bytes).unwrap();
    bytes
}

const CM: [u8; 4] = [1, 7, 2, 3];

#[test]
fn requests_of_one_host_leave_room_for_anothers() {
    const CAPACITY: usize = 900;
    let (now, callee) = (start(), [10, 0, 1, 1].into());
    let mut pairings = Pairings::new(Config { capacity: CAPACITY, ..Config::default() }, now);
    let mut show = |src: [u8; 4], dst: [u8; 4], bytes: &[u8]| {
        let packet = Packet::parse(bytes).unwrap();
        pairings.handle_cm(src.into(), dst.into(), &Mad::parse(&packet).unwrap().message, now);
        pairings.refused_calls()
    };
    let refused =
        (0..200_000).map(|id| show([10, 0, 0, 9], [10, 0, 1, 1], &mad(CM, 0x10, [id, 0], 256, 1))).last();
    assert_eq!(refused, Some(200_000 - 800));
    // Another's is remembered, and its reply ties the queue pairs (0 here, as the messages name
    // none).
    show([10, 0, 0, 1], [10, 0, 1, 1], &mad(CM, 0x10, [5, 0], 256, 1));
    assert_eq!(show([10, 0, 1, 1], [10, 0, 0, 1], &mad(CM, 0x13, [6, 5], 256, 1)), 200_000 - 800);
    let flow = FlowKey { requester: [10, 0, 0, 1].into(), target: callee, target_qpn: Qpn::new(0) };
    assert_eq!(pairings.partner(&flow), Some(Qpn::new(0)));
}

#[test]
fn management_is_told_from_what_only_goes_to_queue_pair_1() {
    let is_management = |bytes: &[u8]| cm::is_management(&Packet::parse(bytes).unwrap());
    let [good, longer, shorter] = [256, 260, 252].map(|len| is_management(&mad(CM, 0x10, [1, 2], len, 1)));
    assert_eq!([good, longer, shorter], [true, false, false]);
    assert!(!is_management(&mad(CM, 0x10, [1, 2], 256, 2)));
    let heads = [
        ([1, 7, 2, 3], true),
        // ClassPortInfo is asked for, and answered.
        ([1, 7, 2, 1], true),
        ([1, 7, 2, 0x81], true),
        ([1, 3, 2, 0x12], true),
        ([1, 4, 1, 1], true),
        ([0, 7, 2, 3], false),
        ([1, 7, 1, 3], false),
        ([1, 7, 2, 0x12], false),
        ([1, 7, 2, 0], false),
        ([1, 0x81, 1, 1], false),
        ([1, 0x30, 1, 1], false),
        ([0; 4], false),
    ];
    for (head, expected) in heads {
        assert_eq!(is_management(&mad(head, 0x10, [1, 2], 256, 1)), expected, "{head:?}");
    }
}
