//! The packets on the wire, one by one.

use std::cell::RefCell;
use std::rc::Rc;

use roce::wire::{AtomicEth, Ext, Feth, Nak, PathMtu, Reth, Syndrome};

use super::*;

/// A packet as seen, with its PSN relative to the first of its requester.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Seen {
    side: usize,
    opcode: Opcode,
    psn: i32,
    ack_req: bool,
    syndrome: Option<Syndrome>,
}

/// A pair with 4 KiB path MTU whose packets are recorded; `lose` picks those that are lost.
fn recorded(
    config: QpConfig,
    mut lose: impl FnMut(&Seen) -> bool + 'static,
) -> (Pair, Rc<RefCell<Vec<Seen>>>) {
    let mut pair = Pair::perfect(QpConfig { mtu: PathMtu::B4096, ..config });
    let log = Rc::new(RefCell::new(Vec::new()));
    let writer = Rc::clone(&log);
    pair.filter = Box::new(move |side, packet| {
        let seen = Seen {
            side,
            opcode: packet.bth.opcode,
            psn: packet.bth.psn.distance(Psn::new(0xff_ffe0)),
            ack_req: packet.bth.ack_req,
            syndrome: packet.ext.aeth().map(|aeth| aeth.syndrome),
        };
        writer.borrow_mut().push(seen);
        !lose(&seen)
    });
    (pair, log)
}

fn of_side(log: &[Seen], side: usize) -> Vec<(Opcode, i32)> {
    log.iter().filter(|seen| seen.side == side).map(|seen| (seen.opcode, seen.psn)).collect()
}

#[test]
fn acks_are_asked_for_as_soft_roce_does_and_the_window_holds() {
    let (mut pair, log) = recorded(QpConfig { timeout: None, ..QpConfig::default() }, |_| false);
    let local = pair.hosts[0].register(vec![7; 200 * 4096], Access::LOCAL);
    let target = pair.hosts[1].register(vec![0; 200 * 4096], Access::ALL);
    pair.hosts[0].post_write(pair.qpns[0], 1, local.slice(0, 200 * 4096), remote(&target, 0), None).unwrap();
    pair.settle();
    assert_eq!(log.borrow().len(), 128, "the window");
    pair.run();
    let asked: Vec<i32> = log.borrow().iter().filter(|seen| seen.ack_req).map(|seen| seen.psn).collect();
    assert_eq!(asked, [63, 127, 191, 199]);
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::Success)]);
}

#[test]
fn one_loss_means_one_nak_and_everything_from_there_again() {
    let mut lost = false;
    let (mut pair, log) = recorded(QpConfig::default(), move |seen| {
        seen.side == 0 && seen.psn == 3 && !std::mem::replace(&mut lost, true)
    });
    let local = pair.hosts[0].register(pattern(10 * 4096, 3), Access::LOCAL);
    let target = pair.hosts[1].register(vec![0; 10 * 4096], Access::ALL);
    pair.hosts[0].post_write(pair.qpns[0], 1, local.slice(0, 10 * 4096), remote(&target, 0), None).unwrap();
    pair.run();
    let log = log.borrow();
    let requests: Vec<i32> = of_side(&log, 0).iter().map(|(_, psn)| *psn).collect();
    assert_eq!(requests, [(0..10).collect::<Vec<_>>(), (3..10).collect()].concat());
    assert_eq!(of_side(&log, 0)[10], (Opcode::WriteMiddle, 3));
    let answers: Vec<_> =
        log.iter().filter(|seen| seen.side == 1).map(|seen| (seen.psn, seen.syndrome)).collect();
    let nak = Some(Syndrome::Nak(Nak::PsnSequence));
    assert_eq!(answers, [(3, nak), (9, Some(Syndrome::ACK))]);
    assert_eq!(pair.hosts[1].memory(target.key).unwrap(), pattern(10 * 4096, 3));
    assert_eq!(pair.hosts[0].stats().timeouts, 0);
}

#[test]
fn a_window_below_the_ack_interval_asks_at_its_end() {
    let config = QpConfig { window: 16, timeout: None, ..QpConfig::default() };
    let (mut pair, log) = recorded(config, |_| false);
    let local = pair.hosts[0].register(vec![7; 40 * 4096], Access::LOCAL);
    let target = pair.hosts[1].register(vec![0; 40 * 4096], Access::ALL);
    let (buffer, at) = (local.slice(0, 40 * 4096), remote(&target, 0));
    pair.hosts[0].post_write(pair.qpns[0], 1, buffer, at, None).unwrap();
    pair.run();
    let log = log.borrow();
    let asked: Vec<i32> = log.iter().filter(|seen| seen.ack_req).map(|seen| seen.psn).collect();
    assert_eq!(asked, [15, 31, 39]);
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::Success)]);
}

#[test]
fn a_second_nak_for_the_same_loss_changes_nothing() {
    let mut lost = false;
    let (mut pair, log) = recorded(QpConfig::default(), move |seen| {
        seen.side == 0 && seen.psn == 3 && !std::mem::replace(&mut lost, true)
    });
    // The copies arrive at different times, the second one while the repair is under way.
    pair.links[1].set_spec("delay 1ms 800us duplicate 100%".parse().unwrap());
    let local = pair.hosts[0].register(pattern(10 * 4096, 3), Access::LOCAL);
    let target = pair.hosts[1].register(vec![0; 10 * 4096], Access::ALL);
    let (buffer, at) = (local.slice(0, 10 * 4096), remote(&target, 0));
    pair.hosts[0].post_write(pair.qpns[0], 1, buffer, at, None).unwrap();
    pair.run();
    assert_eq!(of_side(&log.borrow(), 0).len(), 10 + 7);
    assert_eq!(pair.hosts[0].stats().naks_in, 2);
}

/// A packet as host 0's queue pair would send it, straight to host 1.
fn inject(pair: &mut Pair, opcode: Opcode, offset: u32, ext: Ext, payload: &[u8]) {
    let bth = Bth::new(opcode, pair.qpns[1], Psn::new(0xff_ffe0) + offset);
    let mut transport = vec![0; 4200];
    let len = Repr { bth, ext, payload }.emit(&mut transport).unwrap();
    let addressing = Addressing { src: ip(1), dst: ip(2), src_port: 1, tclass: 0, ttl: 1 };
    let datagram = Datagram { addressing, transport: &transport[..len] };
    pair.hosts[1].handle_datagram(&datagram, pair.now);
}

#[test]
fn what_breaks_the_rules_of_messages_is_an_invalid_request() {
    let full = vec![1; 1024];
    let mut probe = Pair::perfect(QpConfig::default());
    let target = probe.hosts[1].register(vec![0; 8192], Access::ALL);
    let reth = |dma_length| Ext::Reth(Reth { virtual_address: target.va, rkey: target.key, dma_length });
    let atomic =
        Ext::Atomic(AtomicEth { virtual_address: target.va, rkey: target.key, swap_or_add: 1, compare: 0 });
    let Ext::Reth(range) = reth(8) else { unreachable!() };
    let flush = Ext::Flush(Feth(1), range);
    let none = Ext::None;
    let send_first = (Opcode::SendFirst, none, &full[..]);
    let write_first = (Opcode::WriteFirst, reth(2048), &full[..]);
    let cases: Vec<Vec<(Opcode, Ext, &[u8])>> = vec![
        // Continuing what was not begun, or something else.
        vec![(Opcode::SendMiddle, none, &full)],
        vec![(Opcode::WriteLast, none, &full)],
        vec![send_first, (Opcode::WriteMiddle, none, &full)],
        vec![write_first, (Opcode::SendLast, none, &full)],
        // Beginning anew within a message.
        vec![send_first, send_first],
        vec![write_first, (Opcode::SendOnly, none, &full)],
        vec![write_first, (Opcode::ReadRequest, reth(10), &[])],
        vec![send_first, (Opcode::FetchAdd, atomic, &[])],
        // Packets of the wrong length.
        vec![(Opcode::SendFirst, none, &full[..1020])],
        vec![send_first, (Opcode::SendLast, none, &[])],
        // A WRITE that holds more or less than its header says.
        vec![(Opcode::WriteOnly, reth(1000), &full)],
        vec![(Opcode::WriteOnly, reth(1025), &full)],
        vec![write_first, (Opcode::WriteLast, none, &full[..1023])],
        vec![write_first, (Opcode::WriteMiddle, none, &full)],
        vec![(Opcode::AtomicWrite, reth(16), &full[..8])],
        vec![write_first, (Opcode::AtomicWrite, reth(8), &full[..8])],
        vec![send_first, (Opcode::Flush, flush, &[])],
    ];
    for case in cases {
        let name: Vec<Opcode> = case.iter().map(|(opcode, _, _)| *opcode).collect();
        let (mut pair, log) = recorded(QpConfig::default(), |_| false);
        pair.hosts[1] = Host::new(ip(2), 0x1234);
        pair.qpns[1] = pair.hosts[1].create_qp(QpConfig::default()).unwrap();
        let from = Remote { ip: ip(1), qpn: pair.qpns[0], psn: Psn::new(0xff_ffe0) };
        pair.hosts[1].connect(pair.qpns[1], Psn::new(0), from).unwrap();
        assert_eq!(pair.hosts[1].register(vec![0; 8192], Access::ALL), target);
        for id in 0..2 {
            pair.hosts[1].post_recv(pair.qpns[1], id, target.slice(0, 8192)).unwrap();
        }
        let last = case.len() as u32 - 1;
        for (offset, (opcode, ext, payload)) in (0..).zip(case) {
            assert!(pair.hosts[1].is_ready(pair.qpns[1]), "{name:?}");
            inject(&mut pair, opcode, offset, ext, payload);
        }
        pair.settle();
        let nak = Some(Syndrome::Nak(Nak::InvalidRequest));
        let answers: Vec<_> = log.borrow().iter().map(|seen| (seen.psn, seen.syndrome)).collect();
        assert_eq!(answers, [(last as i32, nak)], "{name:?}");
        let flushed = pair.completions(1);
        assert_eq!(flushed.iter().map(|completion| completion.wr_id).collect::<Vec<_>>(), [0, 1]);
        assert!(flushed.iter().all(|completion| completion.status != Status::Success), "{name:?}");
        assert!(!pair.hosts[1].is_ready(pair.qpns[1]), "{name:?}");
    }
}

#[test]
fn ip_identifications_are_never_zero_and_never_repeat_soon() {
    let len = 70_000 * 256;
    let config = QpConfig { mtu: PathMtu::B256, window: 70_000, ..QpConfig::default() };
    let mut pair = Pair::perfect(config);
    let local = pair.hosts[0].register(vec![0; len], Access::LOCAL);
    let target = pair.hosts[1].register(vec![0; len], Access::ALL);
    let buffer = local.slice(0, len as u32);
    pair.hosts[0].post_write(pair.qpns[0], 1, buffer, remote(&target, 0), None).unwrap();
    let mut packet = vec![0; MAX_PACKET];
    let mut idents = Vec::new();
    while pair.hosts[0].poll_transmit(pair.now, &mut packet).is_some() {
        idents.push(u16::from_be_bytes([packet[4], packet[5]]));
    }
    assert_eq!(idents.len(), 70_000);
    assert!(idents.iter().all(|ident| *ident != 0));
    assert!(idents.windows(2).all(|pair| pair[1] == pair[0].checked_add(1).unwrap_or(1)));
}

#[test]
fn a_read_restarts_in_its_middle() {
    for restart_reads_on_gap in [false, true] {
        let mut lost = false;
        let config = QpConfig { restart_reads_on_gap, ..QpConfig::default() };
        let (mut pair, log) = recorded(config, move |seen| {
            seen.side == 1 && seen.psn == 2 && !std::mem::replace(&mut lost, true)
        });
        let local = pair.hosts[0].register(vec![0; 5 * 4096], Access::LOCAL);
        let source = pair.hosts[1].register(pattern(5 * 4096, 4), Access::ALL);
        pair.hosts[0].post_read(pair.qpns[0], 1, local.slice(0, 5 * 4096 - 100), remote(&source, 0)).unwrap();
        pair.run();
        assert_eq!(of_side(&log.borrow(), 0), [(Opcode::ReadRequest, 0), (Opcode::ReadRequest, 2)]);
        let answers = of_side(&log.borrow(), 1);
        assert_eq!(
            answers[5..],
            [(Opcode::ReadResponseFirst, 2), (Opcode::ReadResponseMiddle, 3), (Opcode::ReadResponseLast, 4)]
        );
        assert_eq!(statuses(&pair.completions(0)), [(1, Status::Success)]);
        assert_eq!(
            pair.hosts[0].memory(local.key).unwrap()[..5 * 4096 - 100],
            pattern(5 * 4096, 4)[..5 * 4096 - 100]
        );
        assert_eq!(pair.hosts[0].stats().timeouts, u64::from(!restart_reads_on_gap));
    }
}

#[test]
fn a_lost_atomic_answer_is_replayed_and_not_run_again() {
    let mut lost = 0;
    let (mut pair, _) = recorded(QpConfig::default(), move |seen| {
        let answer = seen.opcode == Opcode::AtomicAcknowledge;
        lost += u32::from(answer);
        answer && lost <= 3
    });
    let local = pair.hosts[0].register(vec![0; 8], Access::LOCAL);
    let counter = pair.hosts[1].register(vec![0; 8], Access::ALL);
    pair.hosts[0].post_fetch_add(pair.qpns[0], 1, local.slice(0, 8), remote(&counter, 0), 5).unwrap();
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::Success)]);
    assert_eq!(pair.hosts[1].stats().duplicates, 3);
    assert_eq!(pair.hosts[0].memory(local.key).unwrap(), 0u64.to_ne_bytes());
    assert_eq!(pair.hosts[1].memory(counter.key).unwrap(), 5u64.to_ne_bytes());
}

#[test]
fn an_ack_past_an_unanswered_read_makes_the_requester_ask_again() {
    let mut lost = false;
    let (mut pair, log) = recorded(QpConfig { timeout: None, ..QpConfig::default() }, move |seen| {
        seen.opcode == Opcode::ReadResponseOnly && !std::mem::replace(&mut lost, true)
    });
    let local = pair.hosts[0].register(vec![0; 8192], Access::LOCAL);
    let source = pair.hosts[1].register(pattern(8192, 5), Access::ALL);
    pair.hosts[0].post_read(pair.qpns[0], 1, local.slice(0, 100), remote(&source, 0)).unwrap();
    pair.hosts[0].post_write(pair.qpns[0], 2, local.slice(4096, 100), remote(&source, 4096), None).unwrap();
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::Success), (2, Status::Success)]);
    let requests = of_side(&log.borrow(), 0);
    assert_eq!(requests[2..4], [(Opcode::ReadRequest, 0), (Opcode::WriteOnly, 1)]);
}

#[test]
fn reads_in_flight_never_exceed_the_depth() {
    let depth = Rc::new(RefCell::new((0i32, 0i32)));
    let counter = Rc::clone(&depth);
    let config = QpConfig { max_rd_atomic: 3, ..QpConfig::default() };
    let (mut pair, _) = recorded(config, move |seen| {
        let (open, most) = &mut *counter.borrow_mut();
        *open += i32::from(seen.opcode == Opcode::ReadRequest)
            - i32::from(seen.opcode == Opcode::ReadResponseOnly);
        *most = (*most).max(*open);
        false
    });
    let local = pair.hosts[0].register(vec![0; 4096], Access::LOCAL);
    let source = pair.hosts[1].register(pattern(4096, 6), Access::ALL);
    for id in 0..20 {
        pair.hosts[0].post_read(pair.qpns[0], id, local.slice(0, 10), remote(&source, 0)).unwrap();
    }
    pair.run();
    assert_eq!(pair.completions(0).len(), 20);
    assert_eq!(depth.borrow().1, 3);
}

#[test]
fn after_an_rnr_nak_the_responder_is_silent_and_the_requester_waits() {
    let (mut pair, log) = recorded(QpConfig::default(), |_| false);
    let local = pair.hosts[0].register(pattern(3 * 4096, 7), Access::LOCAL);
    let inbox = pair.hosts[1].register(vec![0; 3 * 4096], Access::LOCAL);
    pair.hosts[0].post_send(pair.qpns[0], 1, local.slice(0, 3 * 4096), Some(0xfeed)).unwrap();
    while log.borrow().iter().all(|seen| seen.side == 0) {
        pair.step();
    }
    pair.hosts[1].post_recv(pair.qpns[1], 5, inbox.slice(0, 3 * 4096)).unwrap();
    pair.run();
    // There and back, 0.64 ms of waiting, there and back.
    assert_eq!(pair.elapsed(), Duration::from_micros(4640));
    let answers: Vec<_> =
        log.borrow().iter().filter(|seen| seen.side == 1).map(|seen| (seen.psn, seen.syndrome)).collect();
    let timer = QpConfig::default().min_rnr_timer;
    assert_eq!(answers, [(0, Some(Syndrome::Rnr { timer })), (2, Some(Syndrome::ACK))]);
    let received = pair.completions(1)[0];
    assert_eq!((received.status, received.byte_len, received.imm), (Status::Success, 3 * 4096, Some(0xfeed)));
    assert_eq!(pair.hosts[1].memory(inbox.key).unwrap(), pattern(3 * 4096, 7));
}

#[test]
fn foreign_and_damaged_packets_are_counted_and_dropped() {
    let (mut pair, _) = recorded(QpConfig::default(), |_| false);
    let local = pair.hosts[0].register(vec![1; 64], Access::LOCAL);
    let target = pair.hosts[1].register(vec![0; 64], Access::ALL);
    pair.hosts[0].post_write(pair.qpns[0], 1, local.slice(0, 64), remote(&target, 0), None).unwrap();
    let mut buffer = vec![0; MAX_PACKET];
    let now = pair.now;
    let len = pair.hosts[0].poll_transmit(now, &mut buffer).unwrap();
    // Damaged.
    for at in 0..len {
        let mut bad = buffer[..len].to_vec();
        bad[at] ^= 0x10;
        pair.hosts[1].handle_packet(&bad, now);
        pair.hosts[1].handle_packet(&buffer[..at], now);
    }
    // From a stranger: to another address, from another address.
    let datagram = Datagram::parse(&buffer[..len]).unwrap();
    for (src, dst) in [(ip(1), ip(3)), (ip(3), ip(2))] {
        let addressing = Addressing { src, dst, ..datagram.addressing };
        pair.hosts[1].handle_datagram(&Datagram { addressing, ..datagram }, now);
    }
    assert_eq!(pair.hosts[1].stats().unmatched, 2);
    // TOS, TTL, UDP checksum and the FECN byte are not covered; the first two bits checked here
    // change nothing else.
    let applied = pair.hosts[1].memory(target.key).unwrap();
    let stats = *pair.hosts[1].stats();
    assert_eq!(stats.packets_in, 2 * len as u64 + 2);
    assert!(stats.bad_datagram >= 2 * len as u64 - 8);
    assert!(applied == [0; 64] || applied == [1; 64]);
}

#[test]
fn both_directions_carry_the_same_source_port() {
    assert_eq!(source_port(Qpn::new(0x11), Qpn::new(0x1234)), source_port(Qpn::new(0x1234), Qpn::new(0x11)));
    // 17 * 4660 = 0x13574: 0x3574 ^ (0x13574 >> 14 = 4), on top of 0xC000.
    assert_eq!(source_port(Qpn::new(17), Qpn::new(4660)), 0xC000 | (0x3574 ^ 4));
}

#[test]
fn packets_of_several_queue_pairs_take_turns() {
    let mut pair = Pair::perfect(QpConfig::default());
    let local = pair.hosts[0].register(vec![1; 65536], Access::LOCAL);
    let target = pair.hosts[1].register(vec![0; 65536], Access::ALL);
    let second = [0, 1].map(|side| pair.hosts[side].create_qp(QpConfig::default()).unwrap());
    for side in 0..2 {
        let remote = Remote { ip: ip(2 - side as u8), qpn: second[1 - side], psn: Psn::new(0) };
        pair.hosts[side].connect(second[side], Psn::new(0), remote).unwrap();
    }
    for qpn in [pair.qpns[0], second[0]] {
        pair.hosts[0].post_write(qpn, 1, local.slice(0, 65536), remote(&target, 0), None).unwrap();
    }
    let order = Rc::new(RefCell::new(Vec::new()));
    let writer = Rc::clone(&order);
    pair.filter = Box::new(move |side, packet| {
        if side == 0 {
            writer.borrow_mut().push(packet.bth.dest_qp);
        }
        true
    });
    pair.settle();
    let order = order.borrow();
    assert_eq!(order.len(), 128);
    assert!(order.windows(2).all(|pair| pair[0] != pair[1]));
}
