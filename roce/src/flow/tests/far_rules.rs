//! The far half, rule by rule.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{R, Rng, T, acknowledge, aeth, atomic_response, epoch, parse, read_response, request};
use crate::flow::far::{Failure, Far, FarConfig, MAX_PACKET, Refused, Verdict, Why};
use crate::wire::{Bth, Opcode, PathMtu, Psn, Qpn};

pub(super) struct Bench {
    pub(super) far: Far<Vec<u8>>,
    pub(super) now: Instant,
}

impl Bench {
    pub(super) fn new() -> Bench {
        Bench::with(Bench::config())
    }

    pub(super) fn config() -> FarConfig {
        FarConfig { mtu: Some(PathMtu::B256), rto_initial: Duration::from_millis(10), ..FarConfig::default() }
    }

    pub(super) fn with(config: FarConfig) -> Bench {
        let now = epoch();
        Bench { far: Far::new(config, Arc::default(), now), now }
    }

    pub(super) fn request(&mut self, opcode: Opcode, psn: u32, length: u32) {
        let bytes = request(opcode, psn, length);
        assert_eq!(self.far.handle_request(bytes, self.now), Ok(()));
    }

    pub(super) fn message(&mut self, psn: u32, packets: u32) {
        for at in 0..packets {
            let opcode = match (at, packets - at) {
                (0, 1) => Opcode::SendOnly,
                (0, _) => Opcode::SendFirst,
                (_, 1) => Opcode::SendLast,
                _ => Opcode::SendMiddle,
            };
            self.request(opcode, psn + at, 256);
        }
    }

    /// All that goes to the target.
    pub(super) fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        let mut out = [0; MAX_PACKET];
        while let Some(len) = self.far.poll_transmit(self.now, &mut out) {
            assert_eq!(parse(&out[..len]).bth.dest_qp, T);
            sent.push(out[..len].to_vec());
        }
        sent
    }

    pub(super) fn sent_psns(&mut self) -> Vec<u32> {
        let sent = self.sent();
        sent.iter().map(|bytes| parse(bytes).bth.psn.get()).collect()
    }

    pub(super) fn response(&mut self, bytes: &[u8]) -> Verdict {
        self.far.handle_response(&parse(bytes), self.now)
    }

    /// The record a response is relayed as.
    pub(super) fn relayed(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        match self.response(bytes) {
            Verdict::Relay(passed) => Some(passed.parts(bytes).concat()),
            _ => None,
        }
    }

    pub(super) fn own(&mut self) -> Option<(u32, u8)> {
        self.far.poll_response().map(|reply| aeth(&reply))
    }

    /// Lets timers run for `time`.
    pub(super) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.far.next_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.far.handle_timeout(self.now);
        }
        self.now = end;
    }
}

#[test]
fn requests_go_out_as_they_came_but_for_ack_req() {
    let mut bench = Bench::new();
    bench.message(100, 40);
    let sent = bench.sent();
    assert_eq!(sent.len(), 40);
    for (at, bytes) in sent.iter().enumerate() {
        let place = [Opcode::SendFirst, Opcode::SendMiddle, Opcode::SendLast];
        let opcode = place[usize::from(at > 0) + usize::from(at == 39)];
        let mut expected = request(opcode, 100 + at as u32, 256);
        let asks = parse(bytes).bth.ack_req;
        assert_eq!(asks, at % 16 == 15 || at == 39, "{at}");
        Bth::set_ack_req(expected.first_chunk_mut().unwrap(), asks);
        assert_eq!(*bytes, expected);
    }
}

#[test]
fn the_window_limits_what_is_in_flight() {
    let mut bench = Bench::with(FarConfig { window_packets: 4, ..Bench::config() });
    bench.message(100, 10);
    let sent = bench.sent();
    assert_eq!(sent.len(), 4);
    assert!(parse(&sent[3]).bth.ack_req, "or the window would never open");
    bench.response(&acknowledge(101, 0x1f, 0));
    assert_eq!(bench.sent_psns(), [104, 105]);
    let mut bench = Bench::with(FarConfig { window_bytes: 600, ..Bench::config() });
    bench.message(100, 10);
    assert_eq!(bench.sent_psns(), [100, 101]);
}

#[test]
fn what_is_acknowledged_is_dropped() {
    let mut bench = Bench::new();
    bench.message(100, 2);
    assert_eq!(bench.far.buffered_bytes(), 2 * 268);
    bench.sent();
    bench.response(&acknowledge(100, 0x1f, 0));
    assert_eq!(bench.far.buffered_bytes(), 268);
    bench.response(&acknowledge(101, 0x1f, 1));
    assert_eq!(bench.far.buffered_bytes(), 0);
    assert!(bench.far.is_idle());
}

#[test]
fn progress_is_relayed_where_a_message_ends() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 40);
    bench.sent();
    assert!(bench.relayed(&acknowledge(100, 0x1f, 1)).is_some());
    assert_eq!(bench.response(&acknowledge(110, 0x1f, 1)), Verdict::Absorbed);
    assert!(bench.relayed(&acknowledge(120, 0x1f, 1)).is_some(), "sixteen and more");
    assert_eq!(bench.response(&acknowledge(120, 0x1f, 1)), Verdict::Drop(Why::Duplicate));
    let ack = acknowledge(140, 0x03, 2);
    assert_eq!(bench.relayed(&ack).unwrap(), ack);
    assert!(bench.far.is_idle());
}

#[test]
fn progress_not_worth_a_record_is_relayed_late() {
    let mut bench = Bench::new();
    bench.message(99, 1);
    bench.message(100, 40);
    bench.sent();
    bench.response(&acknowledge(99, 0x1f, 1));
    assert_eq!(bench.response(&acknowledge(103, 0x1f, 1)), Verdict::Absorbed);
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.own(), None);
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.own(), Some((103, 0x1f)));
}

#[test]
fn an_ack_beyond_what_was_sent_counts_for_what_was() {
    // The target had it all before this gateway came to be.
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.sent();
    let relayed = bench.relayed(&acknowledge(150, 0x1f, 9)).unwrap();
    assert_eq!(aeth(&relayed), (100, 0x1f));
    assert_eq!(bench.response(&acknowledge(0x40_0000, 0x1f, 9)), Verdict::Drop(Why::Unexpected));
}

#[test]
fn a_sequence_nak_is_repaired_from_the_buffer() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    bench.message(102, 1);
    bench.sent();
    let relayed = bench.relayed(&acknowledge(101, 0x60, 1)).unwrap();
    assert_eq!(aeth(&relayed), (100, 0x1f), "what it acknowledges, never the NAK");
    assert_eq!(bench.sent_psns(), [101, 102]);
    assert_eq!(bench.response(&acknowledge(101, 0x60, 1)), Verdict::Absorbed);
    assert_eq!(bench.response(&acknowledge(99, 0x60, 1)), Verdict::Drop(Why::Duplicate));
    assert_eq!(bench.response(&acknowledge(104, 0x60, 1)), Verdict::Drop(Why::Unexpected));
}

#[test]
fn silence_is_met_with_retries_and_then_the_end() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    assert_eq!(bench.sent_psns(), [100, 101]);
    bench.wait(Duration::from_millis(10));
    assert_eq!(bench.sent_psns(), [100, 101]);
    bench.wait(Duration::from_millis(19));
    assert_eq!(bench.sent_psns(), Vec::<u32>::new(), "backed off");
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.sent_psns(), [100], "one at a time by now");
    assert_eq!(bench.far.stats().timeouts, 2);
    for _ in 0..200 {
        bench.wait(Duration::from_millis(100));
        bench.sent();
    }
    assert_eq!(bench.far.failure(), Some(Failure::TargetSilent));
    assert_eq!(bench.own(), Some((99, 0x7f)), "below the first: nothing is confirmed");
    assert_eq!(bench.own(), None);
    assert_eq!(bench.far.next_timeout(), None);
    let more = request(Opcode::SendOnly, 102, 1);
    assert_eq!(bench.far.handle_request(more, bench.now), Err(Refused::Dead));
}

#[test]
fn a_target_that_spoke_before_fails_at_the_oldest_psn() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    bench.sent();
    bench.response(&acknowledge(100, 0x1f, 1));
    for _ in 0..200 {
        bench.wait(Duration::from_millis(100));
        bench.sent();
    }
    let reply = bench.far.poll_response().unwrap();
    assert_eq!(aeth(&reply), (101, 0x7f));
    assert_eq!(parse(&reply).bth.dest_qp, R);
}

#[test]
fn the_timeout_follows_the_round_trip() {
    let mut bench = Bench::new();
    for at in 0..20 {
        bench.message(100 + at, 1);
        bench.sent();
        bench.wait(Duration::from_micros(8000));
        bench.response(&acknowledge(100 + at, 0x1f, at));
    }
    assert_eq!(bench.far.rtt(), Some(Duration::from_micros(8000)));
    bench.message(120, 1);
    bench.sent();
    let wait = bench.far.next_timeout().unwrap() - bench.now;
    assert!(wait >= Duration::from_millis(8) && wait < Duration::from_millis(20), "{wait:?}");
}

#[test]
fn a_busy_target_is_measured_and_then_waited_for() {
    let mut bench = Bench::new();
    for at in 0..20 {
        bench.message(100 + at, 1);
        bench.sent();
        bench.wait(Duration::from_millis(1));
        bench.response(&acknowledge(100 + at, 0x1f, at));
    }
    let mut asked = 0;
    for psn in 120..140 {
        bench.request(Opcode::ReadRequest, psn, 256);
        for _ in 0..30 {
            asked += bench.sent().len();
            bench.wait(Duration::from_millis(1));
        }
        bench.response(&read_response(Opcode::ReadResponseOnly, psn, 256, psn - 100));
    }
    // Each more often than that would keep the target busy with what it has answered.
    assert!((20..26).contains(&asked), "{asked} times for 20 READs");
}

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

/// All responses of a READ's bytes `from .. to`, of a target that has counted `msn` messages.
pub(super) fn responses(first: u32, from: u32, to: u32, msn: u32) -> Vec<Vec<u8>> {
    let count = (to - from).div_ceil(256);
    let one = |at: u32| {
        let opcode = match (at, at + 1 == count) {
            (0, true) => Opcode::ReadResponseOnly,
            (0, false) => Opcode::ReadResponseFirst,
            (_, false) => Opcode::ReadResponseMiddle,
            (_, true) => Opcode::ReadResponseLast,
        };
        read_response(opcode, first + from / 256 + at, (to - from - at * 256).min(256), msn)
    };
    (0..count).map(one).collect()
}

#[test]
fn a_long_read_is_asked_for_in_pieces_and_shown_as_one() {
    let mut bench = Bench::with(FarConfig { read_piece: 4096, ..Bench::config() });
    bench.request(Opcode::ReadRequest, 100, 10_000);
    bench.message(140, 1);
    let mut shown = Vec::new();
    // Cut so that what is left is a multiple of the piece: 40 packets, of which 8 make the first piece.
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

#[test]
fn what_the_owner_drops_is_not_the_targets_silence() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 1000);
    for _ in 0..40 {
        bench.sent();
        bench.wait(Duration::from_millis(500));
        bench.far.handle_dropped(bench.now);
    }
    assert!(!bench.far.is_dead());
    for _ in 0..40 {
        bench.sent();
        bench.wait(Duration::from_millis(500));
    }
    assert_eq!(bench.far.failure(), Some(Failure::TargetSilent));
}

#[test]
fn no_room_is_kept_for_a_silent_target() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 1000);
    bench.sent();
    assert_eq!(bench.far.awaited(), 1000);
    bench.wait(Duration::from_millis(12));
    assert_eq!((bench.sent().len(), bench.far.awaited()), (1, 1000));
    bench.wait(Duration::from_millis(25));
    assert_eq!((bench.sent().len(), bench.far.awaited()), (1, 0));
}

#[test]
fn a_target_without_a_receive_is_asked_with_one_packet() {
    let mut bench = Bench::new();
    for psn in 100..110 {
        bench.message(psn, 1);
    }
    assert_eq!(bench.sent().len(), 10);
    bench.response(&acknowledge(103, 0x20 | 1, 3));
    bench.wait(Duration::from_micros(10));
    assert_eq!(bench.sent_psns(), [103]);
    bench.response(&acknowledge(103, 0x1f, 4));
    assert_eq!(bench.sent_psns(), [104, 105, 106, 107, 108, 109]);
}

#[test]
fn a_fatal_nak_is_relayed_and_ends_the_flow() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.message(101, 1);
    bench.sent();
    let nak = acknowledge(101, 0x62, 1);
    assert_eq!(bench.relayed(&nak).unwrap(), nak);
    assert!(matches!(bench.far.failure(), Some(Failure::Refused(_))));
    assert_eq!(bench.far.buffered_bytes(), 0);
    assert_eq!(bench.response(&nak), Verdict::Drop(Why::Dead));
}

#[test]
fn a_fatal_nak_after_a_lost_answer_stops_at_the_read() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 10);
    bench.message(101, 1);
    bench.sent();
    assert_eq!(aeth(&bench.relayed(&acknowledge(101, 0x62, 1)).unwrap()), (100, 0x62));
}

#[test]
fn an_earlier_first_psn_is_reported_and_the_flow_starts_over() {
    let mut bench = Bench::new();
    bench.message(12, 1);
    bench.message(13, 1);
    bench.sent();
    let nak = acknowledge(10, 0x60, 0);
    assert_eq!(bench.relayed(&nak).unwrap(), nak);
    assert_eq!(bench.far.buffered_bytes(), 0);
    bench.message(14, 1); // Sent before the report arrived.
    assert!(bench.sent().is_empty());
    bench.message(10, 1);
    bench.message(11, 1);
    assert_eq!(bench.sent_psns(), [10, 11]);
    let wrong = request(Opcode::SendOnly, 14, 1);
    assert_eq!(bench.far.handle_request(wrong, bench.now), Err(Refused::OutOfOrder));
}

#[test]
fn the_near_side_starts_over_by_itself() {
    let mut bench = Bench::new();
    bench.message(12, 1);
    bench.sent();
    bench.message(10, 1);
    bench.message(11, 1);
    bench.message(12, 1);
    assert_eq!(bench.sent_psns(), [10, 11, 12]);
}

#[test]
fn a_misjudged_read_has_the_near_side_start_over() {
    for answered_before in [false, true] {
        let mut bench = Bench::with(FarConfig::default());
        bench.request(Opcode::ReadRequest, 100, 8192);
        bench.sent();
        let first = read_response(Opcode::ReadResponseFirst, 100, 1024, 0);
        if answered_before {
            assert!(bench.relayed(&first).is_some());
        }
        bench.message(116, 1); // 108 was lost.
        if !answered_before {
            bench.sent();
            assert!(bench.relayed(&first).is_some());
        }
        assert_eq!(bench.own(), Some((108, 0x60)));
        bench.message(117, 1);
        assert!(bench.sent().is_empty());
        bench.message(108, 1);
        assert_eq!(bench.sent_psns(), [108]);
    }
}

#[test]
fn a_replay_does_not_disturb_the_window() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 1000);
    bench.sent();
    for (at, opcode) in
        [(0, Opcode::ReadResponseFirst), (1, Opcode::ReadResponseMiddle), (2, Opcode::ReadResponseMiddle)]
    {
        bench.response(&read_response(opcode, 100 + at, 256, 0));
    }
    bench.response(&read_response(Opcode::ReadResponseLast, 103, 232, 1));
    bench.message(104, 1);
    assert_eq!(bench.sent_psns(), [104]);
    let mut again = request(Opcode::ReadRequest, 101, 744);
    again[18] = 0x11; // 0x1100
    bench.far.handle_replay(again.clone(), bench.now);
    assert_eq!(bench.sent(), std::slice::from_ref(&again));
    let first = read_response(Opcode::ReadResponseFirst, 101, 256, 1);
    assert_eq!(bench.relayed(&first).unwrap(), first, "the requester asked from here");
    bench.response(&acknowledge(104, 0x1f, 2));
    let last = read_response(Opcode::ReadResponseLast, 103, 232, 1);
    assert_eq!(bench.response(&last), Verdict::Drop(Why::Ahead));
    let sent = bench.sent();
    let rest = parse(&sent[0]);
    assert_eq!(rest.bth.psn, Psn::new(101));
    assert_eq!(rest.ext.reth().unwrap().virtual_address, 0x1100);
    assert_eq!(bench.response(&first), Verdict::Drop(Why::Duplicate));
    let second = read_response(Opcode::ReadResponseMiddle, 102, 256, 1);
    assert_eq!(bench.relayed(&second).unwrap(), second);
    assert_eq!(bench.relayed(&last).unwrap(), last);
    assert!(bench.far.is_idle());
    // Never answered before, so no replay.
    bench.far.handle_replay(request(Opcode::ReadRequest, 105, 10), bench.now);
    assert!(bench.far.is_idle());
}

#[test]
fn the_rest_of_a_read_may_begin_with_middle() {
    // Soft-RoCE goes on as if the responses before had just been sent; the requester is to see what it asked for.
    let first = read_response(Opcode::ReadResponseFirst, 101, 256, 5);
    let only = read_response(Opcode::ReadResponseOnly, 103, 232, 6);
    let middle = |psn| read_response(Opcode::ReadResponseMiddle, psn, 256, 0);
    let last = read_response(Opcode::ReadResponseLast, 103, 232, 6);
    // A flow that began anew, and what is asked for again of one that is known.
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.request(Opcode::ReadRequest, 101, 744);
    bench.message(104, 1);
    bench.sent();
    bench.response(&acknowledge(100, 0x1f, 5));
    assert_eq!(bench.relayed(&middle(101)).unwrap(), first);
    assert_eq!(bench.relayed(&middle(102)).unwrap(), middle(102));
    assert_eq!(bench.relayed(&last).unwrap(), last);
    bench.response(&acknowledge(104, 0x1f, 7));
    bench.far.handle_replay(request(Opcode::ReadRequest, 101, 744), bench.now);
    assert_eq!(bench.sent_psns(), [101]);
    let count = |mut packet: Vec<u8>, msn: u8| {
        packet[15] = msn;
        packet
    };
    assert_eq!(bench.relayed(&middle(101)).unwrap(), count(first, 7));
    assert_eq!(bench.relayed(&middle(102)).unwrap(), middle(102));
    assert_eq!(bench.relayed(&last).unwrap(), last);
    bench.far.handle_replay(request(Opcode::ReadRequest, 103, 232), bench.now);
    assert_eq!(bench.sent_psns(), [103]);
    assert_eq!(bench.relayed(&last).unwrap(), only);
    assert!(bench.far.is_idle());
}

#[test]
fn an_unanswered_replay_is_given_up() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 10);
    bench.sent();
    bench.response(&read_response(Opcode::ReadResponseOnly, 100, 10, 1));
    bench.far.handle_replay(request(Opcode::ReadRequest, 100, 10), bench.now);
    let mut tries = 0;
    for _ in 0..100 {
        tries += bench.sent().len();
        bench.wait(Duration::from_millis(100));
    }
    assert!((2..8).contains(&tries), "{tries}");
    assert!(bench.far.is_idle() && !bench.far.is_dead());
}

#[test]
fn a_target_that_answers_but_not_a_replay_is_not_silent() {
    let mut bench = Bench::new();
    bench.request(Opcode::ReadRequest, 100, 10);
    bench.sent();
    bench.response(&read_response(Opcode::ReadResponseOnly, 100, 10, 1));
    for second in 0..30 {
        bench.far.handle_replay(request(Opcode::ReadRequest, 100, 10), bench.now);
        for _ in 0..20 {
            bench.sent();
            bench.wait(Duration::from_millis(50));
            bench.response(&acknowledge(100, 0x1f, 1));
        }
        assert!(!bench.far.is_dead(), "after {second} s");
    }
}

#[test]
fn abort_poisons_the_psn_the_target_expects() {
    let mut bench = Bench::new();
    bench.message(100, 3);
    bench.sent();
    bench.far.abort(bench.now);
    assert_eq!(bench.far.buffered_bytes(), 0);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(parse(&sent[0]).bth.psn, Psn::new(100));
    // The target had one of them: it says so, as it does to any duplicate.
    assert_eq!(bench.response(&acknowledge(100, 0x1f, 0)), Verdict::Absorbed);
    let sent = bench.sent();
    let poison = parse(&sent[0]);
    assert_eq!((poison.bth.opcode, poison.bth.psn), (Opcode::WriteMiddle, Psn::new(101)));
    assert!(poison.payload.is_empty() && poison.bth.ack_req);
    // Should it take that for the middle of a WRITE, a SEND cannot follow.
    bench.response(&acknowledge(101, 0x1f, 0));
    let sent = bench.sent();
    assert_eq!(parse(&sent[0]).bth.opcode, Opcode::SendMiddle);
    assert_eq!(bench.response(&acknowledge(102, 0x61, 0)), Verdict::Absorbed);
    assert_eq!(bench.far.failure(), Some(Failure::Aborted));
}

#[test]
fn abort_gives_up_on_a_silent_target() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.sent();
    bench.far.abort(bench.now);
    let mut tries = 0;
    while !bench.far.is_dead() {
        tries += bench.sent().len();
        bench.wait(Duration::from_secs(1));
    }
    assert_eq!(tries, 12);
    assert_eq!(bench.far.failure(), Some(Failure::AbortUnanswered));
}

#[test]
fn abort_of_an_unknown_flow_finds_the_psn_out() {
    // Three answers a target may have to the first probes: a NAK, an ACK, silence ahead of a gap it has complained about.
    for behaviour in 0..3 {
        let now = epoch();
        let hint = Psn::new(1000);
        let far = Far::abort_unknown(Bench::config(), Arc::default(), T, 0xffff, hint, now);
        let mut bench = Bench { far, now };
        let expected = if behaviour == 1 { 1010 } else { 990 };
        let mut tries = 0;
        while !bench.far.is_dead() {
            for bytes in bench.sent() {
                tries += 1;
                let psn = parse(&bytes).bth.psn;
                match psn.distance(Psn::new(expected)) {
                    0 => bench.response(&acknowledge(expected, 0x61, 0)),
                    1.. if behaviour == 2 => Verdict::Absorbed,
                    1.. => bench.response(&acknowledge(expected, 0x60, 0)),
                    _ => bench.response(&acknowledge(expected - 1, 0x1f, 0)),
                };
            }
            bench.wait(Duration::from_millis(100));
        }
        assert_eq!(bench.far.failure(), Some(Failure::Aborted), "behaviour {behaviour}");
        assert!(tries <= 4, "{tries}");
    }
}

#[test]
fn an_abort_spares_another_life_of_the_queue_pair() {
    for (psn, syndrome) in [(0x70_0000, 0x60), (0x0f_ffff, 0x1f)] {
        let now = epoch();
        let far = Far::abort_unknown(Bench::config(), Arc::default(), T, 0xffff, Psn::new(1000), now);
        let mut bench = Bench { far, now };
        assert_eq!(bench.sent().len(), 1);
        bench.response(&acknowledge(psn, syndrome, 0));
        assert_eq!(bench.far.failure(), Some(Failure::AbortUnanswered));
        assert!(bench.sent().is_empty());
    }
}

#[test]
fn an_abort_before_any_request_is_over_at_once() {
    let mut bench = Bench::new();
    bench.far.abort(bench.now);
    assert_eq!(bench.far.failure(), Some(Failure::Aborted));
    assert!(bench.sent().is_empty());
}

#[test]
fn the_buffer_is_bounded() {
    let mut bench = Bench::with(FarConfig { max_buffered: 600, ..Bench::config() });
    bench.message(100, 1);
    bench.message(101, 1);
    let more = request(Opcode::SendOnly, 102, 256);
    assert_eq!(bench.far.handle_request(more, bench.now), Err(Refused::Full));
    let long = vec![0; MAX_PACKET + 1];
    assert_eq!(bench.far.handle_request(long, bench.now), Err(Refused::TooLong));
    let ack = acknowledge(1, 0x1f, 0);
    assert_eq!(bench.far.handle_request(ack, bench.now), Err(Refused::Malformed));
}

#[test]
fn an_idle_flow_is_small_and_gives_memory_back() {
    assert!(size_of::<Far<Vec<u8>>>() <= 1024, "{}", size_of::<Far<Vec<u8>>>());
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.sent();
    bench.response(&acknowledge(100, 0x1f, 1));
    bench.wait(Duration::from_secs(1));
    assert_eq!(bench.far.next_timeout(), None);
}

#[test]
fn nothing_panics_on_nonsense() {
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let mut bench = Bench::with(FarConfig {
            max_buffered: 20_000,
            target_dead_after: Duration::from_secs(2),
            ..FarConfig::default()
        });
        for _ in 0..300 {
            let opcode = rng.pick(Opcode::ALL);
            let psn = match rng.below(4) {
                0 => rng.next() as u32,
                _ => 0xff_fff0u32.wrapping_add(rng.below(64) as u32),
            };
            let bth = Bth::new(opcode, Qpn::new(1), Psn::new(psn));
            let mut bytes = vec![0; 12 + opcode.layout().len()];
            bytes.iter_mut().for_each(|byte| *byte = rng.next() as u8);
            let mut head = [0; 12];
            bth.emit(&mut head);
            bytes[..12].copy_from_slice(&head);
            if opcode.has_payload() {
                let length = rng.pick(&[8, 16, 256, 1024]);
                bytes.resize(bytes.len() + length, 0);
            }
            match crate::wire::Packet::parse(&bytes) {
                Ok(packet) if rng.chance(600) => {
                    bench.far.handle_response(&packet, bench.now);
                }
                _ if rng.chance(200) => bench.far.handle_replay(bytes, bench.now),
                _ => {
                    let _ = bench.far.handle_request(bytes, bench.now);
                }
            }
            let mut out = [0; MAX_PACKET];
            while rng.chance(700) && bench.far.poll_transmit(bench.now, &mut out).is_some() {}
            bench.wait(Duration::from_micros(rng.below(50_000)));
            bench.own();
            if rng.chance(2) {
                bench.far.abort(bench.now);
            }
        }
    }
}
