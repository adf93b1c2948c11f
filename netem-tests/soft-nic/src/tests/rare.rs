//! SEND with invalidate, ATOMIC WRITE, FLUSH, and the flags of a request.

use std::cell::RefCell;
use std::rc::Rc;

use roce::wire::PathMtu;

use super::*;

/// The parts of a request that matter here: opcode, SE, MigReq, the address it names.
type Said = (Opcode, bool, bool, Option<u64>);

/// A pair whose requests of host 0 are written down; `lose` is asked of every packet, by its number
/// at that side.
fn recorded(
    config: QpConfig,
    mut lose: impl FnMut(usize, usize) -> bool + 'static,
) -> (Pair, Rc<RefCell<Vec<Said>>>) {
    let mut pair = Pair::perfect(QpConfig { mtu: PathMtu::B256, ..config });
    let log = Rc::new(RefCell::new(Vec::new()));
    let writer = Rc::clone(&log);
    let mut counts = [0; 2];
    pair.filter = Box::new(move |side, packet| {
        let bth = packet.bth;
        if side == 0 {
            let address = packet.ext.reth().map(|reth| reth.virtual_address);
            writer.borrow_mut().push((bth.opcode, bth.solicited, bth.migreq, address));
        }
        counts[side] += 1;
        !lose(side, counts[side] - 1)
    });
    (pair, log)
}

fn post(pair: &mut Pair, wr_id: u64, work: Work, local: Sge) {
    pair.hosts[0].post(pair.qpns[0], wr_id, work, local, true).unwrap();
}

#[test]
fn a_send_with_invalidate_ends_what_its_key_was_good_for() {
    for len in [0, 100, 600] {
        let (mut pair, log) = recorded(QpConfig::default(), |_, _| false);
        let local = pair.hosts[0].register(pattern(600, 1), Access::LOCAL);
        let window = pair.hosts[1].register(vec![0; 64], Access::ALL);
        let inbox = pair.hosts[1].register(vec![0; 600], Access::LOCAL);
        pair.hosts[1].post_recv(pair.qpns[1], 5, inbox.slice(0, 600)).unwrap();
        let at = remote(&window, 0);
        post(&mut pair, 1, Work::Write { remote: at, imm: None }, local.slice(0, 64));
        post(&mut pair, 2, Work::SendInvalidate { rkey: window.key }, local.slice(0, len));
        pair.run();
        assert_eq!(statuses(&pair.completions(0)), [(1, Status::Success), (2, Status::Success)]);
        let received = pair.completions(1)[0];
        assert_eq!((received.wr_id, received.byte_len, received.imm), (5, len, None));
        assert_eq!((received.invalidated, received.solicited), (Some(window.key), true));
        assert_eq!(pair.hosts[1].memory(inbox.key).unwrap()[..len as usize], pattern(600, 1)[..len as usize]);
        let last = if len > 256 { Opcode::SendLastInvalidate } else { Opcode::SendOnlyInvalidate };
        assert_eq!(log.borrow().last().map(|said| said.0), Some(last));
        // The memory is its owner's still, and nobody else's.
        assert_eq!(pair.hosts[1].memory(window.key).unwrap(), &pattern(600, 1)[..64]);
        assert_eq!(pair.hosts[1].access(window.key), Some(Access::LOCAL));
        post(&mut pair, 3, Work::Read { remote: at }, local.slice(0, 1));
        pair.run();
        assert_eq!(statuses(&pair.completions(0)), [(3, Status::RemoteAccess)]);
    }
}

#[test]
fn a_key_that_is_invalid_already_fails_the_target_which_says_nothing() {
    let config = QpConfig { retry_cnt: 1, ..QpConfig::default() };
    let (mut pair, _) = recorded(config, |_, _| false);
    let local = pair.hosts[0].register(vec![1; 8], Access::LOCAL);
    let inbox = pair.hosts[1].register(vec![0; 8], Access::LOCAL);
    for id in 5..7 {
        pair.hosts[1].post_recv(pair.qpns[1], id, inbox.slice(0, 8)).unwrap();
    }
    post(&mut pair, 1, Work::SendInvalidate { rkey: inbox.key }, local.slice(0, 8));
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::RetryExceeded)]);
    assert_eq!(statuses(&pair.completions(1)), [(5, Status::RemoteInvalidRequest), (6, Status::Flushed)]);
    assert_eq!(pair.hosts[1].stats().packets_out, 0);
}

#[test]
fn atomic_writes_and_flushes_run_once_however_often_they_come() {
    for forgets_addresses in [false, true] {
        // All answers but the fourth of each are lost.
        let config = QpConfig { forgets_addresses, ..QpConfig::default() };
        let (mut pair, log) = recorded(config, |side, number| side == 1 && number % 4 != 3);
        let local = pair.hosts[0].register(7_u64.to_ne_bytes().to_vec(), Access::LOCAL);
        let target = pair.hosts[1].register(vec![0; 64], Access::ALL);
        let at = remote(&target, 8);
        for (id, work) in [
            (1, Work::AtomicWrite { remote: at }),
            (2, Work::Flush { remote: at, len: 50, region: false }),
            (3, Work::Flush { remote: at, len: 0, region: true }),
        ] {
            log.borrow_mut().clear();
            let buffer = local.slice(0, if id == 1 { 8 } else { 0 });
            post(&mut pair, id, work, buffer);
            pair.run();
            assert_eq!(statuses(&pair.completions(0)), [(id, Status::Success)]);
            let opcode = if id == 1 { Opcode::AtomicWrite } else { Opcode::Flush };
            let again = if forgets_addresses { 0 } else { at.va };
            let said = |va| (opcode, false, false, Some(va));
            assert_eq!(*log.borrow(), [said(at.va), said(again), said(again), said(again)]);
        }
        let stats = pair.hosts[1].stats();
        assert_eq!((stats.atomics, stats.flushes, stats.duplicates), (1, 2, 9));
        assert_eq!(pair.hosts[1].memory(target.key).unwrap()[8..16], 7_u64.to_ne_bytes());
    }
}

#[test]
fn an_atomic_write_that_was_lost_with_its_address_is_refused() {
    let config = QpConfig { forgets_addresses: true, ..QpConfig::default() };
    let (mut pair, _) = recorded(config, |side, number| side == 0 && number == 0);
    let local = pair.hosts[0].register(vec![7; 8], Access::LOCAL);
    let target = pair.hosts[1].register(vec![0; 8], Access::ALL);
    post(&mut pair, 1, Work::AtomicWrite { remote: remote(&target, 0) }, local.slice(0, 8));
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::RemoteAccess)]);
    assert_eq!(pair.hosts[1].memory(target.key).unwrap(), [0; 8]);
}

/// The target's rights, how far into its region, what is asked of it, and how that ends.
type Case<'a> = (Access, u64, &'a dyn Fn(RemoteAddr) -> Work, Status);

#[test]
fn what_may_not_be_written_or_flushed_is_refused() {
    let all = Access::ALL;
    let write = |remote| Work::AtomicWrite { remote };
    let flush = |len, region| move |remote| Work::Flush { remote, len, region };
    let cases: [Case<'_>; 6] = [
        (Access { remote_write: false, ..all }, 0, &write, Status::RemoteAccess),
        (all, 4, &write, Status::RemoteInvalidRequest),
        (all, 64, &write, Status::RemoteAccess),
        (Access { remote_flush: false, ..all }, 0, &flush(8, false), Status::RemoteAccess),
        (all, 0, &flush(65, false), Status::RemoteAccess),
        (all, 0, &flush(65, true), Status::Success),
    ];
    for (number, (access, offset, work, status)) in cases.into_iter().enumerate() {
        let (mut pair, _) = recorded(QpConfig::default(), |_, _| false);
        let local = pair.hosts[0].register(vec![7; 8], Access::LOCAL);
        let target = pair.hosts[1].register(vec![0; 64], access);
        let work = work(remote(&target, offset));
        post(&mut pair, 1, work, local.slice(0, work.local_len().unwrap()));
        pair.run();
        assert_eq!(statuses(&pair.completions(0)), [(1, status)], "case {number}");
        assert_eq!(pair.hosts[1].memory(target.key).unwrap(), [0; 64]);
    }
}

#[test]
fn events_are_asked_for_by_the_last_packet_of_what_takes_a_receive() {
    let (mut pair, log) = recorded(QpConfig { migreq: true, ..QpConfig::default() }, |_, _| false);
    let local = pair.hosts[0].register(vec![7; 600], Access::LOCAL);
    let target = pair.hosts[1].register(vec![0; 600], Access::ALL);
    for id in 0..2 {
        pair.hosts[1].post_recv(pair.qpns[1], id, target.slice(0, 600)).unwrap();
    }
    let at = remote(&target, 0);
    post(&mut pair, 1, Work::Send { imm: None }, local.slice(0, 600));
    post(&mut pair, 2, Work::Write { remote: at, imm: Some(3) }, local.slice(0, 300));
    post(&mut pair, 3, Work::Write { remote: at, imm: None }, local.slice(0, 9));
    post(&mut pair, 4, Work::Read { remote: at }, local.slice(0, 9));
    pair.run();
    let asked: Vec<_> = log.borrow().iter().map(|(opcode, solicited, ..)| (*opcode, *solicited)).collect();
    let expected = [
        (Opcode::SendFirst, false),
        (Opcode::SendMiddle, false),
        (Opcode::SendLast, true),
        (Opcode::WriteFirst, false),
        (Opcode::WriteLastImmediate, true),
        (Opcode::WriteOnly, false),
        (Opcode::ReadRequest, false),
    ];
    assert_eq!(asked, expected);
    assert!(log.borrow().iter().all(|(_, _, migreq, _)| *migreq));
    assert!(pair.completions(1).iter().all(|completion| completion.solicited));
}
