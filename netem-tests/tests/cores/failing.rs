//! A flow that cannot go on ends for both programs (`docs/concepts.md#i7`).

use std::time::Duration;

use netem_tests::host::{Operation, QpConfig, Status};
use roce::wire::Opcode;
use splice::record::Reason;

use crate::pair::{FIRST, Pair, QPNS, settings};

#[test]
fn a_gap_given_up_at_one_site_is_an_error_at_the_other() {
    let mut pair = Pair::new([settings(1400), settings(1400)], QpConfig::default());
    let target = &mut pair.hosts[1];
    let buffer = target.register(vec![0; 8192], netem_tests::host::Access::LOCAL);
    target.post_recv(QPNS[1], 7, buffer.slice(0, 8192)).unwrap();
    pair.request(Opcode::SendFirst, FIRST, 1024);
    pair.request(Opcode::SendMiddle, FIRST + 1, 1024);
    pair.run(Duration::from_millis(100));
    // An earlier flow acknowledged more than ever reached the target, so the requester will not go
    // back to what is missing.
    for _ in 0..200 {
        for psn in FIRST + 4..FIRST + 8 {
            pair.request(Opcode::SendMiddle, psn, 1024);
        }
        pair.run(Duration::from_millis(67));
    }
    let refusals = pair.heard(0).into_iter().filter(|(.., syndrome)| *syndrome == Some(0x63));
    assert!(refusals.clone().count() > 0 && refusals.clone().all(|(_, psn, _)| psn == FIRST + 4));
    let told = pair.hosts[1].poll_completion().map(|done| (done.wr_id, done.operation, done.status));
    assert_eq!(
        told,
        Some((7, Operation::Recv, Status::RemoteInvalidRequest)),
        "the target's program waits for ever"
    );
    assert_eq!(pair.gateways[0].stats().failed[Reason::Protocol as usize], 1);
}
