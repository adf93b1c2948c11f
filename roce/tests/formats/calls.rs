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

/// REQ of a caller's queue pair, or REP of a callee's.
fn offer(attribute: u8, ids: [u32; 2], qpn: u32) -> Vec<u8> {
    let mut bytes = mad(CM, attribute, ids, 256, 1);
    let at = 12 + 8 + 24 + if attribute == 0x10 { 32 } else { 12 };
    bytes[at..at + 3].copy_from_slice(&qpn.to_be_bytes()[1..]);
    bytes
}

struct World {
    pairings: Pairings,
    now: std::time::Instant,
}

const CALLEE: [u8; 4] = [10, 0, 1, 1];

impl World {
    fn new() -> Self {
        let now = start();
        World { pairings: Pairings::new(Config { capacity: 900, ..Config::default() }, now), now }
    }

    fn show(&mut self, src: [u8; 4], dst: [u8; 4], bytes: &[u8]) {
        let packet = Packet::parse(bytes).unwrap();
        self.now += std::time::Duration::from_micros(1);
        let mad = Mad::parse(&packet).unwrap();
        self.pairings.handle_cm(src.into(), dst.into(), &mad.message, self.now);
    }

    fn call(&mut self, caller: [u8; 4], id: u32) {
        self.show(caller, CALLEE, &offer(0x10, [id, 0], 0x1000 + id));
    }

    fn reply(&mut self, caller: [u8; 4], id: u32) {
        self.show(CALLEE, caller, &offer(0x13, [id + 1, id], 0x10_0000 + id));
    }

    /// The queue pairs that the flow of this call opens with.
    fn opens(&mut self, caller: [u8; 4], id: u32) -> Option<Qpn> {
        let target_qpn = Qpn::new(0x10_0000 + id);
        let flow = FlowKey { requester: caller.into(), target: CALLEE.into(), target_qpn };
        self.pairings.open(flow, self.now).unwrap()
    }
}

fn name(number: u32) -> [u8; 4] {
    [11, 0, (number / 250) as u8, (number % 250) as u8]
}

const HONEST: [u8; 4] = [10, 0, 0, 1];

/// Requests in invented names fill the table. Those that have a reply give way first, and then the
/// oldest.
#[test]
fn requests_in_invented_names_give_way() {
    for is_restored in [false, true] {
        let mut world = World::new();
        (0..5000).for_each(|number| world.call(name(number), number));
        if is_restored {
            let written = snapshot::write(&world.pairings, world.now).unwrap();
            world.pairings = snapshot::read(&written, world.now).unwrap();
            world.pairings.order();
        }
        for id in 6000..6030 {
            world.call(HONEST, id);
        }
        (7000..7800).for_each(|number| world.call(name(number), number));
        for id in 6000..6030 {
            world.reply(HONEST, id);
            assert_eq!(world.opens(HONEST, id), Some(Qpn::new(0x1000 + id)), "{id} {is_restored}");
        }
    }
}

/// Connections that nobody uses, as somebody makes them in invented names or in one, give way to
/// those that are told later. Those in use stay.
#[test]
fn unused_connections_give_way() {
    for names in [5000, 1] {
        let mut world = World::new();
        for id in 6000..6010 {
            world.call(HONEST, id);
            world.reply(HONEST, id);
        }
        for id in 6000..6005 {
            assert_eq!(world.opens(HONEST, id), Some(Qpn::new(0x1000 + id)));
        }
        for number in 0..5000 {
            world.call(name(number % names), number);
            world.reply(name(number % names), number);
        }
        for id in 6010..6020 {
            world.call(HONEST, id);
            world.reply(HONEST, id);
        }
        for id in (6000..6005).chain(6010..6020) {
            assert_eq!(world.opens(HONEST, id), Some(Qpn::new(0x1000 + id)), "{id} {names}");
        }
        if names == 1 {
            // It is that name's own that have given way.
            assert_eq!(world.opens(HONEST, 6005), Some(Qpn::new(0x1000 + 6005)));
        }
    }
}

/// Flows that have come and gone, of connections that were told, give way as well.
#[test]
fn connections_that_were_used_give_way() {
    let mut world = World::new();
    for id in 0..2000 {
        world.call(name(id), id);
        world.reply(name(id), id);
        assert_eq!(world.opens(name(id), id), Some(Qpn::new(0x1000 + id)));
        let target_qpn = Qpn::new(0x10_0000 + id);
        let flow = FlowKey { requester: name(id).into(), target: CALLEE.into(), target_qpn };
        world.pairings.forget(&flow, None, world.now);
    }
    world.call(HONEST, 6000);
    world.reply(HONEST, 6000);
    assert_eq!(world.opens(HONEST, 6000), Some(Qpn::new(0x1000 + 6000)));
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
