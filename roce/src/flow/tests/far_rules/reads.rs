//! READs and atomics: asked for, answered, asked for again.

use super::*;

#[test]
fn a_read_is_asked_for_again_from_its_beginning() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 1000);
    bench.message(104, 1);
    assert_eq!(bench.sent_psns(), [100, 104]);
    let first = read_response(Opcode::ReadResponseFirst, 100, 256, 0);
    assert_eq!(bench.relayed(&first).unwrap(), first);
    let third = read_response(Opcode::ReadResponseMiddle, 102, 256, 0);
    assert_eq!(bench.response(&third), Verdict::Drop(Why::Ahead));
    let sent = bench.sent();
    let again = parse(&sent[0]);
    assert_eq!((again.bth.opcode, again.bth.psn), (Opcode::ReadRequest, Psn::new(100)));
    let reth = again.ext.reth().unwrap();
    assert_eq!((reth.virtual_address, reth.rkey, reth.dma_length), (0x1000, 7, 1000));
    let last = read_response(Opcode::ReadResponseLast, 103, 232, 0);
    assert_eq!(bench.response(&last), Verdict::Drop(Why::Ahead));
    assert!(bench.sent().is_empty(), "asked for once");
    // The target begins anew; the requester is to see it going on.
    assert_eq!(bench.response(&first), Verdict::Drop(Why::Duplicate));
    let second = read_response(Opcode::ReadResponseMiddle, 101, 256, 0);
    assert_eq!(bench.relayed(&second).unwrap(), second);
    assert_eq!(bench.relayed(&third).unwrap(), third);
    assert_eq!(bench.relayed(&last).unwrap(), last);
    assert_eq!(aeth(&bench.relayed(&acknowledge(104, 0x1f, 2)).unwrap()), (104, 0x1f));
    assert!(bench.far.is_idle());
}

#[test]
fn what_is_lost_every_time_is_asked_for_alone() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 500);
    bench.sent();
    let first = read_response(Opcode::ReadResponseFirst, 100, 256, 0);
    bench.response(&first);
    let mut asked = Vec::new();
    while asked.last() != Some(&101) {
        assert!(asked.len() < 20, "{asked:?}");
        bench.wait(Duration::from_millis(1));
        for psn in bench.sent_psns() {
            asked.push(psn);
            assert_eq!(bench.response(&first), Verdict::Drop(Why::Duplicate), "and the second is lost");
        }
    }
    assert_eq!(asked[..8], [100; 8]);
    assert_eq!(asked.len(), 9);
    let only = read_response(Opcode::ReadResponseOnly, 101, 244, 1);
    assert_eq!(bench.relayed(&only).unwrap(), read_response(Opcode::ReadResponseLast, 101, 244, 1));
    assert!(bench.far.is_idle());
}

#[test]
fn a_read_torn_by_gaps_is_asked_for_from_where_it_stands() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 256 * 40);
    assert_eq!(bench.sent_psns(), [100]);
    for (at, response) in responses(100, 0, 256 * 18, 1).iter().enumerate().take(17) {
        assert!(bench.relayed(response).is_some());
        let ahead = read_response(Opcode::ReadResponseMiddle, 130, 256, 0);
        assert_eq!(bench.response(&ahead), Verdict::Drop(Why::Ahead));
        let next = 101 + at as u32;
        assert_eq!(bench.sent_psns(), [if at < 15 { 100 } else { next }], "gap {at}");
    }
}

#[test]
fn responses_that_do_not_fit_are_dropped() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 1000);
    bench.request(Opcode::FetchAdd, 104, 0);
    bench.sent();
    for (opcode, length) in [
        (Opcode::ReadResponseFirst, 200),
        (Opcode::ReadResponseFirst, 1024),
        (Opcode::ReadResponseMiddle, 200),
        (Opcode::ReadResponseLast, 256),
        (Opcode::ReadResponseOnly, 999),
    ] {
        let response = read_response(opcode, 100, length, 0);
        assert_eq!(bench.response(&response), Verdict::Drop(Why::Mismatch), "{opcode:?}");
    }
    assert_eq!(bench.response(&atomic_response(100, 1, 0)), Verdict::Drop(Why::Mismatch));
    bench.response(&read_response(Opcode::ReadResponseFirst, 100, 256, 0));
    let last = read_response(Opcode::ReadResponseLast, 101, 256, 0);
    assert_eq!(bench.response(&last), Verdict::Drop(Why::Mismatch));
    let unknown = read_response(Opcode::ReadResponseFirst, 105, 256, 0);
    assert_eq!(bench.response(&unknown), Verdict::Drop(Why::Ahead));
}

#[test]
fn an_ack_past_a_read_means_its_responses_were_lost() {
    let mut bench = Bench::new();
    bench.message(99, 1);
    bench.request(Opcode::ReadRequest, 100, 10);
    bench.message(101, 1);
    bench.sent();
    assert_eq!(
        bench.response(&acknowledge(101, 0x1f, 3)),
        Verdict::Absorbed,
        "99 and no more is acknowledged"
    );
    assert_eq!(bench.sent_psns(), [100, 101]);
    let only = read_response(Opcode::ReadResponseOnly, 100, 10, 3);
    assert_eq!(bench.relayed(&only).unwrap(), only);
    assert!(bench.relayed(&acknowledge(101, 0x1f, 3)).is_some());
}

#[test]
fn atomics_are_answered_by_their_own_response() {
    let mut bench = Bench::new();
    bench.request(Opcode::FetchAdd, 100, 0);
    bench.request(Opcode::Flush, 101, 10);
    bench.request(Opcode::AtomicWrite, 102, 8);
    bench.sent();
    let value = atomic_response(100, 77, 1);
    assert_eq!(bench.relayed(&value).unwrap(), value);
    assert_eq!(bench.response(&value), Verdict::Drop(Why::Duplicate));
    for psn in [101, 102] {
        assert!(bench.relayed(&read_response(Opcode::ReadResponseOnly, psn, 0, 1)).is_some());
    }
    assert!(bench.far.is_idle());
}

#[test]
fn the_length_asked_for_is_known_by_the_next_response() {
    let mut bench = Bench::new();
    bench.message(100, 2);
    bench.request(Opcode::ReadRequest, 102, 600);
    bench.request(Opcode::ReadRequest, 105, 100);
    assert_eq!(bench.far.read_length(Psn::new(102)), None, "not sent");
    assert_eq!(bench.far.next_read_length(), None, "the message goes first");
    bench.sent();
    assert_eq!(bench.far.next_read_length(), None);
    let lengths = |bench: &Bench| {
        [101, 102, 103, 104, 105].map(|psn| bench.far.read_length(Psn::new(psn)).unwrap_or(0))
    };
    assert_eq!(lengths(&bench), [0, 600, 0, 0, 0]);
    bench.relayed(&read_response(Opcode::ReadResponseFirst, 102, 256, 2)).unwrap();
    assert_eq!(lengths(&bench), [0, 0, 600, 0, 0]);
    bench.relayed(&read_response(Opcode::ReadResponseMiddle, 103, 256, 2)).unwrap();
    bench.relayed(&read_response(Opcode::ReadResponseLast, 104, 88, 2)).unwrap();
    assert_eq!(lengths(&bench), [0, 0, 0, 0, 100]);
    // The first one again, from its middle.
    bench.far.handle_replay(request(Opcode::ReadRequest, 103, 344), bench.now);
    assert_eq!(bench.far.next_read_length(), Some(344));
    bench.sent();
    assert_eq!(lengths(&bench), [0, 0, 344, 0, 100]);
}

#[test]
fn reads_wait_for_depth_and_room() {
    let mut bench = Bench::with(FarConfig { max_reads: 1, ..Bench::config() });
    bench.request(Opcode::ReadRequest, 100, 10);
    bench.request(Opcode::ReadRequest, 101, 10);
    assert_eq!(bench.sent_psns(), [100]);
    bench.far.set_room(9);
    bench.response(&read_response(Opcode::ReadResponseOnly, 100, 10, 1));
    assert!(bench.sent().is_empty());
    bench.wait(Duration::from_secs(60));
    assert!(!bench.far.is_dead(), "that is not the target's fault");
    assert!(bench.far.awaits_room());
    bench.far.set_room(10);
    assert_eq!(bench.sent_psns(), [101]);
}

/// Requests before it have to be answered meanwhile, though its requester may have asked for that
/// only with the READ.
#[test]
fn what_goes_before_a_read_that_waits_for_room_asks_to_be_answered() {
    for (room, asks) in [(9, true), (10, false)] {
        let mut bench = Bench::new();
        bench.far.set_room(room);
        let mut write = request(Opcode::WriteOnly, 100, 256);
        Bth::set_ack_req(write.first_chunk_mut().unwrap(), false);
        assert_eq!(bench.far.handle_request(write, bench.now), Ok(()));
        bench.request(Opcode::ReadRequest, 101, 10);
        let sent = bench.sent();
        assert_eq!((sent.len(), parse(&sent[0]).bth.ack_req), (if asks { 1 } else { 2 }, asks));
    }
}

#[test]
fn a_long_read_is_asked_for_in_pieces_and_shown_as_one() {
    let mut bench = Bench::with(FarConfig { read_piece: 4096, ..Bench::config() });
    bench.request(Opcode::ReadRequest, 100, 10_000);
    bench.message(140, 1);
    let mut shown = Vec::new();
    // Cut so that what is left is a multiple of the piece: 40 packets, of which 8 make the first
    // piece.
    for (msn, from, to) in [(1, 0, 2048), (2, 2048, 6144), (3, 6144, 10_000)] {
        let sent = bench.sent();
        let asked = parse(&sent[0]);
        let reth = asked.ext.reth().unwrap();
        assert_eq!((asked.bth.psn.get(), reth.virtual_address), (100 + from / 256, 0x1000 + u64::from(from)));
        assert_eq!((reth.dma_length, bench.far.awaited()), (to - from, (to - from) as usize));
        assert_eq!(sent.len(), if msn == 3 { 2 } else { 1 }, "nothing overtakes the READ");
        for response in responses(100, from, to, msn) {
            assert!(bench.sent().is_empty(), "one piece at a time");
            shown.push(bench.relayed(&response).unwrap());
        }
        assert_eq!(bench.far.awaited(), 0);
    }
    assert_eq!(shown, responses(100, 0, 10_000, 1), "as a target shows a READ, which is one message");
    let ack = bench.relayed(&acknowledge(140, 0x1f, 4)).unwrap();
    assert_eq!(parse(&ack).ext.aeth().unwrap().msn, 2);
    assert!(bench.far.is_idle());
    // What is asked for again is cut at the same places.
    let mut again = request(Opcode::ReadRequest, 104, 10_000 - 1024);
    again[18] = 0x14;
    bench.far.handle_replay(again, bench.now);
    for (from, to) in [(1024, 2048), (2048, 6144), (6144, 10_000)] {
        let asked = bench.sent();
        assert_eq!(parse(&asked[0]).ext.reth().unwrap().dma_length, to - from);
        responses(100, from, to, 4).iter().for_each(|response| assert!(bench.relayed(response).is_some()));
    }
    assert!(bench.far.is_idle());
}

/// Soft-RoCE is silent to what reaches beyond one request that it has had.
#[test]
fn the_next_flow_cuts_the_rest_of_a_read_where_it_was_cut_before_the_path_mtu_was_known() {
    let mut bench = Bench::with(FarConfig { mtu: None, read_piece: 4096, ..Bench::config() });
    let lengths = |sent: Vec<Vec<u8>>| -> Vec<u32> {
        sent.iter().map(|bytes| parse(bytes).ext.reth().unwrap().dma_length).collect()
    };
    bench.request(Opcode::ReadRequest, 100, 10_000);
    assert_eq!(lengths(bench.sent()), [4096]);
    for (psn, opcode) in [(100, Opcode::ReadResponseFirst), (101, Opcode::ReadResponseMiddle)] {
        assert!(bench.relayed(&read_response(opcode, psn, 256, 1)).is_some());
    }
    for _ in 0..2 {
        bench.far = bench.far.anew(FarConfig { read_piece: 4096, ..Bench::config() }, bench.now);
        bench.request(Opcode::ReadRequest, 102, 10_000 - 512);
        assert_eq!(lengths(bench.sent()), [4096 - 512], "not 1536, as if known from the beginning");
    }
}

#[test]
fn a_piece_lost_or_refused_for_now_is_asked_for_again() {
    let mut bench = Bench::with(FarConfig { read_piece: 4096, ..Bench::config() });
    bench.request(Opcode::ReadRequest, 100, 8192);
    bench.message(132, 1);
    assert_eq!(bench.sent_psns(), [100]);
    responses(100, 0, 4096, 1).iter().for_each(|response| assert!(bench.relayed(response).is_some()));
    assert_eq!(bench.sent_psns(), [116, 132]);
    // It was lost; what came next shows that.
    assert_eq!(bench.response(&acknowledge(116, 0x60, 1)), Verdict::Absorbed);
    assert_eq!(bench.sent_psns(), [116, 132]);
    // The target's memory is not at hand: RNR, 0.01 ms.
    assert_eq!(bench.response(&acknowledge(116, 0x21, 1)), Verdict::Absorbed);
    assert!(bench.sent().is_empty());
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.sent_psns(), [116]);
    responses(100, 4096, 8192, 2).iter().for_each(|response| assert!(bench.relayed(response).is_some()));
    assert_eq!(bench.sent_psns(), [132]);
    assert!(bench.relayed(&acknowledge(132, 0x1f, 3)).is_some());
    assert!(bench.far.is_idle());
}
