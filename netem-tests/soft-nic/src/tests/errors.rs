//! How work requests fail, and what else fails with them.

use roce::wire::PathMtu;

use super::*;

fn setup(config: QpConfig) -> (Pair, RegionHandle, RegionHandle) {
    let mut pair = Pair::perfect(config);
    let local = pair.hosts[0].register(pattern(65536, 1), Access::LOCAL);
    let target = pair.hosts[1].register(vec![0; 65536], Access::ALL);
    (pair, local, target)
}

#[test]
fn a_remote_access_error_ends_both_queue_pairs() {
    let (mut pair, local, target) = setup(QpConfig::default());
    let inbox = pair.hosts[1].register(vec![0; 4096], Access::LOCAL);
    pair.hosts[1].post_recv(pair.qpns[1], 70, inbox.slice(0, 4096)).unwrap();
    pair.hosts[1].post_send(pair.qpns[1], 71, inbox.slice(0, 10), None).unwrap();
    let qpn = pair.qpns[0];
    pair.hosts[0].post_write(qpn, 1, local.slice(0, 5000), remote(&target, 0), None).unwrap();
    pair.hosts[0].post_write(qpn, 2, local.slice(0, 5000), remote(&target, 65536 - 4999), None).unwrap();
    pair.hosts[0].post_write(qpn, 3, local.slice(0, 5000), remote(&target, 0), None).unwrap();
    pair.hosts[0].post_recv(qpn, 4, local.slice(0, 5000)).unwrap();
    pair.filter = Box::new(|side, packet| side == 0 || !packet.bth.opcode.is_request());
    pair.run();
    let success = Status::Success;
    let expected = [(1, success), (2, Status::RemoteAccess), (3, Status::Flushed), (4, Status::Flushed)];
    assert_eq!(statuses(&pair.completions(0)), expected);
    assert_eq!(statuses(&pair.completions(1)), [(71, Status::Flushed), (70, Status::Flushed)]);
    assert!(!pair.hosts[0].is_ready(pair.qpns[0]) && !pair.hosts[1].is_ready(pair.qpns[1]));
    assert_eq!(pair.hosts[0].post_send(qpn, 9, local.slice(0, 1), None), Err(HostError::NotReady(qpn)));
    assert!(pair.hosts[1].memory(target.key).unwrap()[5000..].iter().all(|byte| *byte == 0));
}

#[test]
fn each_kind_of_access_needs_its_right() {
    let all = Access::ALL;
    let cases = [
        (Operation::Write, Access { remote_write: false, ..all }),
        (Operation::Read, Access { remote_read: false, ..all }),
        (Operation::FetchAdd, Access { remote_atomic: false, ..all }),
    ];
    for (operation, access) in cases {
        let (mut pair, local, _) = setup(QpConfig::default());
        let target = pair.hosts[1].register(vec![0; 64], access);
        let (host, qpn) = (&mut pair.hosts[0], pair.qpns[0]);
        let (buffer, at) = (local.slice(0, 8), remote(&target, 0));
        match operation {
            Operation::Write => host.post_write(qpn, 1, buffer, at, None),
            Operation::Read => host.post_read(qpn, 1, buffer, at),
            _ => host.post_fetch_add(qpn, 1, buffer, at, 1),
        }
        .unwrap();
        pair.run();
        assert_eq!(statuses(&pair.completions(0)), [(1, Status::RemoteAccess)], "{operation:?}");
        assert_eq!(pair.hosts[1].memory(target.key).unwrap(), [0; 64]);
    }
}

#[test]
fn a_deregistered_region_is_refused_by_its_old_key() {
    let (mut pair, local, target) = setup(QpConfig::default());
    assert_eq!(pair.hosts[1].deregister(target.key).unwrap().len(), 65536);
    let again = pair.hosts[1].register(vec![0; 65536], Access::ALL);
    assert_eq!(again.va, target.va);
    pair.hosts[0].post_read(pair.qpns[0], 1, local.slice(0, 8), remote(&target, 0)).unwrap();
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::RemoteAccess)]);
}

#[test]
fn an_unaligned_atomic_is_an_invalid_request() {
    let (mut pair, local, target) = setup(QpConfig::default());
    pair.hosts[0].post_fetch_add(pair.qpns[0], 1, local.slice(0, 8), remote(&target, 4), 1).unwrap();
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::RemoteInvalidRequest)]);
}

#[test]
fn a_message_longer_than_the_receive_fails_on_both_sides() {
    let (mut pair, local, _) = setup(QpConfig::default());
    let inbox = pair.hosts[1].register(vec![0; 4096], Access::LOCAL);
    pair.hosts[1].post_recv(pair.qpns[1], 5, inbox.slice(0, 2000)).unwrap();
    pair.hosts[1].post_recv(pair.qpns[1], 6, inbox.slice(0, 2000)).unwrap();
    pair.hosts[0].post_send(pair.qpns[0], 1, local.slice(0, 2001), None).unwrap();
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(statuses(&pair.completions(1)), [(5, Status::LocalLength), (6, Status::Flushed)]);
}

#[test]
fn different_path_mtus_are_an_invalid_request() {
    let small = QpConfig { mtu: PathMtu::B512, ..QpConfig::default() };
    let mut pair = Pair::new([QpConfig::default(), small], "delay 1ms", 0);
    let local = pair.hosts[0].register(vec![1; 4096], Access::LOCAL);
    let inbox = pair.hosts[1].register(vec![0; 4096], Access::LOCAL);
    pair.hosts[1].post_recv(pair.qpns[1], 5, inbox.slice(0, 4096)).unwrap();
    pair.hosts[0].post_send(pair.qpns[0], 1, local.slice(0, 4096), None).unwrap();
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(statuses(&pair.completions(1)), [(5, Status::Flushed)]);
}

#[test]
fn retries_run_out_after_as_many_timeouts() {
    let timeout = Duration::from_millis(10);
    let (mut pair, local, target) =
        setup(QpConfig { retry_cnt: 3, timeout: Some(timeout), ..QpConfig::default() });
    pair.filter = Box::new(|_, _| false);
    pair.hosts[0].post_write(pair.qpns[0], 1, local.slice(0, 3000), remote(&target, 0), None).unwrap();
    pair.hosts[0].post_read(pair.qpns[0], 2, local.slice(0, 3000), remote(&target, 0)).unwrap();
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::RetryExceeded), (2, Status::Flushed)]);
    assert_eq!(pair.elapsed(), timeout * 4);
    assert_eq!(pair.hosts[0].stats().timeouts, 4);
    assert_eq!(pair.hosts[0].stats().retransmitted, 3 * 4);
}

#[test]
fn retry_count_seven_never_gives_up_and_progress_resets_a_lower_one() {
    for (retry_cnt, lost) in [(7, 50), (2, 2)] {
        let (mut pair, local, target) =
            setup(QpConfig { retry_cnt, timeout: Some(Duration::from_millis(5)), ..QpConfig::default() });
        let mut seen = 0;
        // Each message loses its first `lost` transmissions.
        pair.filter = Box::new(move |side, _| {
            seen += u32::from(side == 0);
            side == 1 || seen % (lost + 1) == 0
        });
        for id in 0..5 {
            pair.hosts[0]
                .post_write(pair.qpns[0], id, local.slice(0, 100), remote(&target, 0), None)
                .unwrap();
            pair.run();
        }
        let done = pair.completions(0);
        assert_eq!(done.len(), 5);
        assert!(done.iter().all(|completion| completion.status == Status::Success));
    }
}

#[test]
fn rnr_retries_run_out_after_as_many_waits() {
    let (mut pair, local, _) = setup(QpConfig { rnr_retry: 2, ..QpConfig::default() });
    pair.hosts[0].post_send(pair.qpns[0], 1, local.slice(0, 3000), None).unwrap();
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::RnrRetryExceeded)]);
    assert_eq!(pair.hosts[1].stats().rnr_out, 3);
    // Three round trips of 2 ms and two waits of 0.64 ms.
    assert_eq!(pair.elapsed(), Duration::from_micros(3 * 2000 + 2 * 640));
}

#[test]
fn posting_is_bounded_until_completions_are_polled() {
    let (mut pair, local, target) = setup(QpConfig { send_depth: 2, recv_depth: 1, ..QpConfig::default() });
    let qpn = pair.qpns[0];
    let post =
        |pair: &mut Pair, id| pair.hosts[0].post_write(qpn, id, local.slice(0, 8), remote(&target, 0), None);
    assert_eq!(
        [post(&mut pair, 1), post(&mut pair, 2), post(&mut pair, 3)],
        [Ok(()), Ok(()), Err(HostError::Full)]
    );
    pair.run();
    assert_eq!(post(&mut pair, 3), Err(HostError::Full));
    assert_eq!(pair.hosts[0].poll_completion().unwrap().wr_id, 1);
    assert_eq!([post(&mut pair, 3), post(&mut pair, 4)], [Ok(()), Err(HostError::Full)]);
    assert_eq!(pair.hosts[0].post_recv(qpn, 1, local.slice(0, 8)), Ok(()));
    assert_eq!(pair.hosts[0].post_recv(qpn, 2, local.slice(0, 8)), Err(HostError::Full));
}

#[test]
fn bad_calls_are_refused() {
    let (mut pair, local, target) = setup(QpConfig::default());
    let qpn = pair.qpns[0];
    let host = &mut pair.hosts[0];
    let outside = local.slice(65530, 7);
    assert_eq!(host.post_send(qpn, 1, outside, None), Err(HostError::BadBuffer(outside)));
    assert_eq!(host.post_recv(qpn, 1, outside), Err(HostError::BadBuffer(outside)));
    let nine = local.slice(0, 9);
    assert_eq!(host.post_fetch_add(qpn, 1, nine, remote(&target, 0), 1), Err(HostError::BadBuffer(nine)));
    let unknown = Qpn::new(0x12);
    assert_eq!(host.post_send(unknown, 1, local.slice(0, 1), None), Err(HostError::UnknownQp(unknown)));
    let fresh = host.create_qp(QpConfig::default()).unwrap();
    assert_eq!(host.post_send(fresh, 1, local.slice(0, 1), None), Err(HostError::NotReady(fresh)));
    let config = QpConfig { window: 0, ..QpConfig::default() };
    assert_eq!(host.create_qp(config), Err(HostError::Config("window")));
}

#[test]
fn a_failed_pair_connects_again() {
    let (mut pair, local, target) = setup(QpConfig::default());
    let qpns = pair.qpns;
    pair.hosts[0].post_write(qpns[0], 1, local.slice(0, 8), RemoteAddr { va: 0, rkey: 0 }, None).unwrap();
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(1, Status::RemoteAccess)]);
    for side in 0..2 {
        let remote = Remote { ip: ip(2 - side as u8), qpn: qpns[1 - side], psn: Psn::new(5) };
        pair.hosts[side].connect(qpns[side], Psn::new(5), remote).unwrap();
    }
    pair.hosts[0].post_write(qpns[0], 2, local.slice(0, 100), remote(&target, 0), None).unwrap();
    pair.run();
    assert_eq!(statuses(&pair.completions(0)), [(2, Status::Success)]);
    assert_eq!(pair.hosts[1].memory(target.key).unwrap()[..100], pattern(65536, 1)[..100]);
}
