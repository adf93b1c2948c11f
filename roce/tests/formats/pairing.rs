//! Pairing, on captured traffic, rule by rule, and in a small simulation.

use std::net::IpAddr;
use std::time::Instant;

use roce::cm::{Mad, Message, Terms};
use roce::ip::Addressing;
use roce::pairing::{Config, Discovery, Event, FlowKey, Full, Hosts, Match, Pairings, Response, source_port};
use roce::wire::{Packet, PathMtu, Psn, Qpn, Transport};

use crate::capture;

const X: [u8; 4] = [10, 0, 0, 1];
pub(crate) const Y: [u8; 4] = [10, 0, 1, 1];
pub(crate) const PORT: u16 = 0xc123;

#[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
pub(crate) fn start() -> Instant {
    Instant::now()
}

fn flow(target_qpn: u32) -> FlowKey {
    FlowKey { requester: X.into(), target: Y.into(), target_qpn: Qpn::new(target_qpn) }
}

fn back(target_qpn: u32) -> FlowKey {
    FlowKey { requester: Y.into(), target: X.into(), target_qpn: Qpn::new(target_qpn) }
}

fn response(requester_qpn: u32, src_port: u16, psn: u32) -> Response {
    let hosts = Hosts { requester: X.into(), target: Y.into() };
    Response { hosts, requester_qpn: Qpn::new(requester_qpn), src_port, psn: Psn::new(psn) }
}

fn events(pairings: &mut Pairings) -> Vec<Event> {
    std::iter::from_fn(|| pairings.poll_event()).collect()
}

/// Shows a captured packet to the pairings as its owner would, and returns a response's match.
fn show(
    pairings: &mut Pairings,
    addressing: &Addressing,
    packet: &Packet<'_>,
    now: Instant,
) -> Option<(Match, Qpn)> {
    let Addressing { src, dst, src_port, .. } = *addressing;
    if let Some(mad) = Mad::parse(packet) {
        pairings.handle_cm(src, dst, &mad.message, now);
    }
    if packet.bth.opcode.transport() != Transport::Rc {
        return None;
    }
    if packet.bth.opcode.is_request() {
        let key = FlowKey { requester: src, target: dst, target_qpn: packet.bth.dest_qp };
        if pairings.open(key, src_port, now).unwrap().is_none() {
            assert!(pairings.may_send(&key));
            let length = packet.ext.reth().map_or(0, |reth| reth.dma_length);
            pairings.sent(&key, packet.bth.psn, PathMtu::B256.psn_span(length));
        }
        return None;
    }
    let hosts = Hosts { requester: dst, target: src };
    let (requester_qpn, psn) = (packet.bth.dest_qp, packet.bth.psn);
    let response = Response { hosts, requester_qpn, src_port, psn };
    Some((pairings.handle_response(&response, now), requester_qpn))
}

#[test]
fn every_captured_response_finds_its_flow() {
    let now = start();
    let mut responses = 0;
    for capture in capture::all() {
        let mut pairings = Pairings::new(Config::default(), now);
        for (number, (addressing, packet)) in capture.packets().enumerate() {
            let Some((found, qpn)) = show(&mut pairings, &addressing, &packet, now) else {
                continue;
            };
            let place = format!("{} {}: {found:?}", capture.name, number + 1);
            let (Match::Known(flow) | Match::Paired(flow)) = found else { panic!("{place}") };
            responses += 1;
            // As the programs print them.
            let expected = match capture.name {
                "rping" if flow.requester == IpAddr::from(X) => 0x28,
                "rping" => 0x34,
                "verbs" => flow.target_qpn.get() - 5,
                "verbs_ipv6" => flow.target_qpn.get() - 10,
                "ib_write_bw_loss" => 0x32,
                "ib_send_bw_rnr" => 0x31,
                _ => qpn.get(),
            };
            assert_eq!(qpn.get(), expected, "{place}");
        }
    }
    assert_eq!(responses, 86);
}

/// CM alone tells rping's queue pairs, and its end.
#[test]
fn cm_pairs_before_the_first_request() {
    let now = start();
    let capture = capture::of("rping");
    let mut pairings = Pairings::new(Config::default(), now);
    for (addressing, packet) in capture.packets().take(2) {
        show(&mut pairings, &addressing, &packet, now);
    }
    assert_eq!(pairings.open(flow(0x34), PORT, now), Ok(Some(Qpn::new(0x28))));
    assert_eq!(pairings.open(back(0x28), PORT, now), Ok(Some(Qpn::new(0x34))));
    assert_eq!(pairings.handle_response(&response(0x28, 1, 9), now), Match::Known(flow(0x34)));
    assert_eq!(events(&mut pairings), []);

    let (addressing, dreq) = capture.packets().nth(39).unwrap();
    show(&mut pairings, &addressing, &dreq, now);
    let closing = [Event::Closing(flow(0x34)), Event::Closing(back(0x28))];
    assert_eq!(events(&mut pairings), closing);
    // What is still on its way is understood; a new flow on that queue pair is another connection.
    assert_eq!(pairings.handle_response(&response(0x28, 1, 9), now), Match::Known(flow(0x34)));
    assert_eq!(pairings.open(flow(0x34), PORT, now), Ok(None));
}

#[test]
fn cm_ends_the_wait() {
    let now = start();
    let capture = capture::of("rping");
    let mut pairings = Pairings::new(Config::default(), now);
    assert_eq!(pairings.open(flow(0x34), PORT, now), Ok(None));
    for (addressing, packet) in capture.packets().take(2) {
        show(&mut pairings, &addressing, &packet, now);
    }
    assert_eq!(events(&mut pairings), [Event::Paired(flow(0x34), Qpn::new(0x28))]);
    assert_eq!((pairings.waiting(), pairings.flows()), (0, 1));
}

/// rping's REQ and REP with other communication IDs, shown as if they passed now.
fn connect(pairings: &mut Pairings, caller: u32, replier: u32, now: Instant) {
    let capture = capture::of("rping");
    for ((addressing, packet), ids) in capture.packets().zip([vec![caller], vec![replier, caller]]) {
        let mut bytes = packet.bytes.to_vec();
        for (at, id) in ids.into_iter().enumerate() {
            // Behind BTH, DETH and the MAD's header.
            bytes[44 + 4 * at..][..4].copy_from_slice(&id.to_be_bytes());
        }
        show(pairings, &addressing, &Packet::parse(&bytes).unwrap(), now);
    }
}

#[test]
fn a_connection_made_anew_supersedes_the_one_of_the_same_queue_pairs() {
    let now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    let open = |pairings: &mut Pairings| {
        assert_eq!(pairings.open(flow(0x34), PORT, now), Ok(Some(Qpn::new(0x28))));
        assert_eq!(pairings.open(back(0x28), PORT, now), Ok(Some(Qpn::new(0x34))));
    };
    let superseded = [Event::Superseded(flow(0x34)), Event::Superseded(back(0x28))];
    connect(&mut pairings, 1, 100, now);
    open(&mut pairings);
    connect(&mut pairings, 1, 100, now);
    assert_eq!(events(&mut pairings), [], "the reply was sent again");
    connect(&mut pairings, 2, 101, now);
    assert_eq!(events(&mut pairings), superseded);
    open(&mut pairings);
    // What takes down the one before is late.
    let (addressing, mut dreq) =
        capture::of("rping").packets().nth(39).map(|(a, p)| (a, p.bytes.to_vec())).unwrap();
    let mut taken_down = |ids: [u32; 2]| {
        for (at, id) in ids.into_iter().enumerate() {
            dreq[44 + 4 * at..][..4].copy_from_slice(&id.to_be_bytes());
        }
        show(&mut pairings, &addressing, &Packet::parse(&dreq).unwrap(), now);
        events(&mut pairings)
    };
    for late in [[1, 100], [100, 1], [2, 100], [101, 1]] {
        assert_eq!(taken_down(late), [], "{late:?}");
    }
    assert_eq!(taken_down([2, 101]), [Event::Closing(flow(0x34)), Event::Closing(back(0x28))]);
    connect(&mut pairings, 2, 101, now);
    assert_eq!(events(&mut pairings), superseded);
    assert_eq!(pairings.partner(&flow(0x34)), Some(Qpn::new(0x28)));
}

/// A message of the capture with another attribute, and its body changed.
fn altered(number: usize, attribute: u8, change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut bytes = capture::of("rping").packet(number).bytes.to_vec();
    bytes[12 + 8 + 17] = attribute;
    change(&mut bytes[12 + 8 + 24..]);
    bytes
}

/// As the captured queue pair of the caller's, 0x28, or the callee's, 0x34, sent it.
fn hear(pairings: &mut Pairings, from_caller: bool, transport: &[u8], now: Instant) {
    let mad = Mad::parse(&Packet::parse(transport).unwrap()).unwrap().message;
    let (src, dst) = if from_caller { (X, Y) } else { (Y, X) };
    pairings.handle_cm(src.into(), dst.into(), &mad, now);
}

#[test]
fn each_direction_has_its_terms() {
    let now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    let [req, rep] = [
        altered(1, 0x10, |body| {
            (body[35], body[39]) = (4, 9);
            body[44..47].copy_from_slice(&[0, 1, 2]);
            body[50] = 3 << 4 | 6;
        }),
        altered(2, 0x13, |body| {
            (body[24], body[25]) = (8, 5);
            body[20..23].copy_from_slice(&[3, 4, 5]);
            body[27] = 7 << 5;
        }),
    ];
    hear(&mut pairings, true, &req, now);
    hear(&mut pairings, false, &rep, now);
    let path_mtu = Some(PathMtu::B1024);
    // What the callee holds of what the caller will have under way, and what it wants of it; and the other way round.
    assert_eq!(pairings.terms(&flow(0x34)), Some(Terms { path_mtu, max_reads: 8, rnr_retry: 7 }));
    assert_eq!(pairings.terms(&back(0x28)), Some(Terms { path_mtu, max_reads: 4, rnr_retry: 6 }));
    // Each side says where the other begins.
    assert_eq!(pairings.take_first_psn(&flow(0x34)), Some(Psn::new(0x03_0405)));
    assert_eq!(pairings.take_first_psn(&back(0x28)), Some(Psn::new(0x00_0102)));
    hear(&mut pairings, false, &rep, now);
    assert_eq!(pairings.take_first_psn(&flow(0x34)), None, "the flow goes on");
    assert!(pairings.terms(&flow(0x34)).is_some());
    pairings.learn(flow(0x35), Qpn::new(0x29), now);
    assert_eq!(pairings.terms(&flow(0x35)), None);
}

#[test]
fn a_connection_that_is_rejected_in_the_end_is_over() {
    let now = start();
    let [req, rep] = [1, 2].map(|number| capture::of("rping").packet(number).bytes.to_vec());
    // Like the RTU, but a REJ of the REP; and what the callee rejects after its REP, having heard of no RTU.
    let of_reply = altered(3, 0x12, |body| body[8] = 0x40);
    let of_request = altered(2, 0x12, |body| body[8] = 0);
    for (from_caller, reject) in [(true, &of_reply), (false, &of_request)] {
        let mut pairings = Pairings::new(Config::default(), now);
        hear(&mut pairings, true, &req, now);
        hear(&mut pairings, false, &rep, now);
        assert_eq!(pairings.open(flow(0x34), PORT, now), Ok(Some(Qpn::new(0x28))));
        hear(&mut pairings, !from_caller, reject, now);
        assert_eq!(events(&mut pairings), [], "not theirs to say");
        hear(&mut pairings, from_caller, reject, now);
        assert_eq!(events(&mut pairings), [Event::Closing(flow(0x34))]);
        assert_eq!(pairings.open(back(0x28), PORT, now), Ok(None), "what comes now is another connection's");
        hear(&mut pairings, false, &rep, now);
        assert_eq!(pairings.partner(&back(0x28)), None, "and this reply is old");
    }
    // A request that was rejected is not answered any more.
    let mut pairings = Pairings::new(Config::default(), now);
    hear(&mut pairings, true, &req, now);
    hear(&mut pairings, false, &of_request, now);
    hear(&mut pairings, false, &rep, now);
    assert_eq!(pairings.partner(&flow(0x34)), None);
}

#[test]
fn who_asks_for_time_has_it() {
    let [req, rep] = [1, 2].map(|number| capture::of("rping").packet(number).bytes.to_vec());
    let more_time = altered(2, 0x11, |body| body[8] = 0);
    for asks in [true, false] {
        let mut now = start();
        let mut pairings = Pairings::new(Config::default(), now);
        let lifetime = Config::default().lifetime;
        let mut pass = |pairings: &mut Pairings, time| {
            let end = now + time;
            while let Some(at) = pairings.next_timeout().filter(|at| *at <= end) {
                now = at;
                pairings.handle_timeout(now);
            }
            now = end;
            now
        };
        hear(&mut pairings, true, &req, start());
        let then = pass(&mut pairings, lifetime * 3 / 4);
        if asks {
            hear(&mut pairings, false, &more_time, then);
        }
        let then = pass(&mut pairings, lifetime * 3 / 4);
        hear(&mut pairings, false, &rep, then);
        assert_eq!(pairings.partner(&flow(0x34)), asks.then_some(Qpn::new(0x28)));
    }
}

#[test]
fn a_reply_without_its_request_is_no_use() {
    let now = start();
    let capture = capture::of("rping");
    let mut pairings = Pairings::new(Config::default(), now);
    let Message::Rep(rep) = Mad::parse(&capture.packet(2)).unwrap().message else { panic!() };
    pairings.handle_cm(Y.into(), X.into(), &Message::Rep(rep), now);
    assert_eq!(pairings.partner(&flow(0x34)), None);
    // Nor is the request of another pair of hosts.
    let Message::Req(req) = Mad::parse(&capture.packet(1)).unwrap().message else { panic!() };
    pairings.handle_cm([10, 0, 0, 2].into(), Y.into(), &Message::Req(req), now);
    pairings.handle_cm(Y.into(), X.into(), &Message::Rep(rep), now);
    assert_eq!(pairings.partner(&flow(0x34)), None);
}

#[test]
fn the_port_of_a_product() {
    assert_eq!(source_port(Qpn::new(0x11), Qpn::new(0x16)), 49_526);
    assert_eq!(source_port(Qpn::new(0x23), Qpn::new(0x28)), 50_552);
    let (one, other) = (Qpn::new(0xabcdef), Qpn::new(0x123456));
    assert_eq!(source_port(one, other), source_port(other, one));
}

/// Two flows whose ports and PSNs agree: only the product tells them apart.
#[test]
fn the_product_decides_between_equal_ports() {
    let now = start();
    let port = source_port(Qpn::new(0x12), Qpn::new(0x18));
    assert_eq!(port, source_port(Qpn::new(0x10), Qpn::new(0x1b)));
    let mut pairings = Pairings::new(Config::default(), now);
    for target_qpn in [0x18, 0x1b] {
        assert_eq!(pairings.open(flow(target_qpn), port, now), Ok(None));
        pairings.sent(&flow(target_qpn), Psn::new(0), 1);
    }
    let found = pairings.handle_response(&response(0x10, port, 0), now);
    assert_eq!(found, Match::Paired(flow(0x1b)));
    let found = pairings.handle_response(&response(0x12, port, 0), now);
    assert_eq!(found, Match::Paired(flow(0x18)));
}

#[test]
fn requests_both_ways_need_no_response() {
    let now = start();
    let port = source_port(Qpn::new(0x12), Qpn::new(0x18));
    let mut pairings = Pairings::new(Config::default(), now);
    assert_eq!(pairings.open(flow(0x18), port, now), Ok(None));
    assert_eq!(pairings.open(back(0x13), port, now), Ok(None), "not the product");
    assert_eq!(pairings.open(back(0x12), port, now), Ok(Some(Qpn::new(0x18))));
    assert_eq!(events(&mut pairings), [Event::Paired(flow(0x18), Qpn::new(0x12))]);
    assert_eq!(pairings.waiting(), 1);
}

/// One flow with the port, whose product does not fit (a flow label was set): the PSN must be near.
#[test]
fn a_port_alone_needs_a_likely_psn() {
    let now = start();
    let with = |psn| {
        let mut pairings = Pairings::new(Config::default(), now);
        pairings.open(flow(0x18), PORT, now).unwrap();
        pairings.sent(&flow(0x18), Psn::new(0), 1);
        pairings.sent(&flow(0x18), Psn::new(1), 4);
        pairings.handle_response(&response(0x77, PORT, psn), now)
    };
    for psn in [0, 4, 5, 0xff_ffff, 60_000] {
        assert_eq!(with(psn), Match::Paired(flow(0x18)), "{psn:#x}");
    }
    for psn in [0xff_fffe, 70_000, 0x80_0000] {
        assert_eq!(with(psn), Match::Unknown, "{psn:#x}");
    }
}

/// After a restart of the gateway the target may be anywhere.
#[test]
fn port_and_product_need_no_psn() {
    let now = start();
    let port = source_port(Qpn::new(0x12), Qpn::new(0x18));
    let mut pairings = Pairings::new(Config::default(), now);
    pairings.open(flow(0x18), port, now).unwrap();
    let found = pairings.handle_response(&response(0x12, port, 0x80_0000), now);
    assert_eq!(found, paired(0x18));
}

#[test]
fn the_psn_decides_where_ports_do_not() {
    let now = start();
    for response_port in [PORT, PORT + 1] {
        let mut pairings = Pairings::new(Config::default(), now);
        for (target_qpn, psn, span) in [(0x18, 0xff_fff0, 40), (0x19, 30, 1), (0x1a, 5, 2)] {
            pairings.open(flow(target_qpn), PORT, now).unwrap();
            pairings.sent(&flow(target_qpn), Psn::new(psn), span);
        }
        let mut answer = |psn| pairings.handle_response(&response(0x70, response_port, psn), now);
        assert_eq!(answer(31), Match::Unknown);
        assert_eq!(answer(6), Match::Ambiguous);
        assert_eq!(answer(0xff_fff0), Match::Paired(flow(0x18)));
        // With the first gone, the PSN that was ambiguous is so no longer.
        let found = pairings.handle_response(&response(0x71, response_port, 6), now);
        assert_eq!(found, Match::Paired(flow(0x1a)));
    }
}

#[test]
fn flows_in_dispute_take_turns() {
    let mut now = start();
    let config = Config::default();
    let hosts = response(0, 0, 0).hosts;
    let mut pairings = Pairings::new(config, now);
    for target_qpn in [0x18, 0x19, 0x1a] {
        pairings.open(flow(target_qpn), PORT, now).unwrap();
        pairings.sent(&flow(target_qpn), Psn::new(0), 1);
    }
    let mine = |pairings: &Pairings| [0x18, 0x19, 0x1a].map(|qpn| pairings.may_send(&flow(qpn)));
    assert_eq!(mine(&pairings), [true; 3]);
    assert_eq!(pairings.handle_response(&response(0x70, PORT, 0), now), Match::Ambiguous);
    assert_eq!((pairings.discovery(hosts), mine(&pairings)), (Discovery::Quiet, [false; 3]));

    // Another response makes the silence start over.
    now += config.quiet / 2;
    pairings.handle_timeout(now);
    assert_eq!(pairings.handle_response(&response(0x71, PORT, 0), now), Match::Ambiguous);
    now += config.quiet / 2;
    pairings.handle_timeout(now);
    assert_eq!(pairings.discovery(hosts), Discovery::Quiet);
    now += config.quiet / 2;
    assert_eq!(pairings.next_timeout(), Some(now));
    pairings.handle_timeout(now);
    assert_eq!(pairings.discovery(hosts), Discovery::Turn(flow(0x18)));
    assert_eq!(mine(&pairings), [true, false, false]);

    // No answer: silence again, then the next one's turn.
    now += config.turn;
    pairings.handle_timeout(now);
    assert_eq!(pairings.discovery(hosts), Discovery::Quiet);
    now += config.quiet;
    pairings.handle_timeout(now);
    assert_eq!(pairings.discovery(hosts), Discovery::Turn(flow(0x19)));
    let found = pairings.handle_response(&response(0x71, PORT, 0), now);
    assert_eq!(found, Match::Paired(flow(0x19)));

    // An answer passes the turn on at once; a flow given up ends its turn in silence.
    assert_eq!(pairings.discovery(hosts), Discovery::Turn(flow(0x1a)));
    assert_eq!(mine(&pairings), [false, true, true]);
    pairings.forget(&flow(0x1a), now);
    assert_eq!(pairings.discovery(hosts), Discovery::Quiet);
    pairings.forget(&flow(0x18), now);
    assert_eq!(pairings.discovery(hosts), Discovery::Free);
}

/// The turn holder is not given an answer to what it has not sent.
#[test]
fn a_turn_is_no_licence() {
    let mut now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    for (target_qpn, psn) in [(0x18, 5), (0x19, 0), (0x1a, 0)] {
        pairings.open(flow(target_qpn), PORT, now).unwrap();
        pairings.sent(&flow(target_qpn), Psn::new(psn), 1);
    }
    let stray = response(0x70, PORT, 0);
    assert_eq!(pairings.handle_response(&stray, now), Match::Ambiguous);
    now = pairings.next_timeout().unwrap();
    pairings.handle_timeout(now);
    assert_eq!(pairings.discovery(stray.hosts), Discovery::Turn(flow(0x18)));
    assert_eq!(pairings.handle_response(&stray, now), Match::Ambiguous);
    let own = pairings.handle_response(&response(0x71, PORT, 5), now);
    assert_eq!(own, paired(0x18));
}

/// A target that never falls silent cannot keep everyone waiting.
#[test]
fn silence_is_not_waited_for_without_end() {
    let mut now = start();
    let config = Config::default();
    let mut pairings = Pairings::new(config, now);
    for target_qpn in [0x18, 0x19] {
        pairings.open(flow(target_qpn), PORT, now).unwrap();
        pairings.sent(&flow(target_qpn), Psn::new(0), 1);
    }
    let hosts = response(0, 0, 0).hosts;
    let began = now;
    loop {
        assert_eq!(pairings.handle_response(&response(0x70, PORT, 0), now), Match::Ambiguous);
        now += config.quiet / 4;
        pairings.handle_timeout(now);
        if pairings.discovery(hosts) != Discovery::Quiet {
            break;
        }
    }
    assert!(now - began <= config.quiet * 16);
}

#[test]
fn a_new_connection_takes_its_queue_pairs_over() {
    let now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    pairings.learn(flow(0x18), Qpn::new(0x70), now);
    assert_eq!(pairings.open(flow(0x18), PORT, now), Ok(Some(Qpn::new(0x70))));
    assert_eq!(pairings.open(back(0x70), PORT, now), Ok(Some(Qpn::new(0x18))));
    pairings.learn(flow(0x19), Qpn::new(0x70), now);
    let superseded = [Event::Superseded(back(0x70)), Event::Superseded(flow(0x18))];
    assert_eq!(events(&mut pairings), superseded);
    assert_eq!((pairings.flows(), pairings.partner(&flow(0x18))), (0, None));
    assert_eq!(pairings.partner(&flow(0x19)), Some(Qpn::new(0x70)));
}

/// As on Soft-RoCE and mlx5, where ports follow from both queue pairs.
fn port(target_qpn: u32, requester_qpn: u32) -> u16 {
    source_port(Qpn::new(target_qpn), Qpn::new(requester_qpn))
}

#[test]
fn a_flow_of_some_time_ago_is_not_another_partners() {
    let now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    for (port_of, partner) in [(0x70, Some(Qpn::new(0x70))), (0x71, None)] {
        assert!(pairings.recall(flow(0x18), Qpn::new(0x70), port(0x18, 0x70), now));
        assert_eq!(pairings.open(flow(0x18), port(0x18, port_of), now), Ok(partner));
        pairings.release(&flow(0x18), now);
    }
}

#[test]
fn a_connection_of_some_time_ago_does_not_take_its_queue_pairs_over() {
    let now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    // The target's queue pair has another partner by now, which has not been answered yet.
    assert_eq!(pairings.open(back(0x70), port(0x71, 0x70), now), Ok(None));
    assert!(!pairings.recall(flow(0x18), Qpn::new(0x70), port(0x18, 0x70), now));
    assert_eq!((pairings.partner(&back(0x70)), events(&mut pairings)), (None, vec![]));
    // Where ports do not follow from the queue pairs, they say nothing.
    assert!(pairings.recall(flow(0x18), Qpn::new(0x70), PORT, now));
    assert_eq!(events(&mut pairings), [Event::Paired(back(0x70), Qpn::new(0x18))]);
}

/// X.0x11 and Y.0x22 are a pair, and then X.0x11 and Y.0x33, of which nobody tells.
#[test]
fn a_requesters_queue_pair_with_another_partner_is_known_by_the_port() {
    let now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    let (old, new) = (port(0x22, 0x11), port(0x33, 0x11));
    assert_eq!(pairings.open(flow(0x22), old, now), Ok(None));
    pairings.sent(&flow(0x22), Psn::new(100), 1);
    assert_eq!(pairings.handle_response(&response(0x11, old, 100), now), Match::Paired(flow(0x22)));
    assert_eq!(pairings.open(flow(0x33), new, now), Ok(None));
    pairings.sent(&flow(0x33), Psn::new(7), 1);
    // One that was late.
    assert_eq!(pairings.handle_response(&response(0x11, old, 100), now), Match::Known(flow(0x22)));
    assert_eq!(pairings.handle_response(&response(0x11, new, 7), now), Match::Paired(flow(0x33)));
    assert_eq!(events(&mut pairings), [Event::Superseded(flow(0x22))]);
    assert_eq!(pairings.handle_response(&response(0x11, new, 8), now), Match::Known(flow(0x33)));
}

/// X.0x11 and Y.0x22 are a pair, both ways, and then X.0x12 and Y.0x22.
#[test]
fn a_targets_queue_pair_with_another_partner_is_known_by_the_port() {
    let now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    let (old, new) = (port(0x22, 0x11), port(0x22, 0x12));
    assert_eq!(pairings.open(flow(0x22), old, now), Ok(None));
    assert_eq!(pairings.open(back(0x11), old, now), Ok(Some(Qpn::new(0x22))));
    assert_eq!(events(&mut pairings), [Event::Paired(flow(0x22), Qpn::new(0x11))]);
    pairings.release(&flow(0x22), now);
    // The connection that there was goes on.
    assert_eq!(pairings.open(flow(0x22), old, now), Ok(Some(Qpn::new(0x11))));
    pairings.release(&flow(0x22), now);
    assert_eq!(pairings.open(flow(0x22), new, now), Ok(None));
    assert_eq!(events(&mut pairings), [Event::Superseded(back(0x11))]);
    pairings.sent(&flow(0x22), Psn::new(7), 1);
    assert_eq!(pairings.handle_response(&response(0x12, new, 7), now), Match::Paired(flow(0x22)));
}

/// Y.0x22 asks X.0x11 for something, which asks for nothing itself; then either has another partner, of whom it asks or who asks of it.
#[test]
fn another_partner_is_known_by_the_port_of_what_the_other_end_asked() {
    let now = start();
    let paired = || {
        let mut pairings = Pairings::new(Config::default(), now);
        let old = port(0x22, 0x11);
        assert_eq!(pairings.open(back(0x11), old, now), Ok(None));
        pairings.sent(&back(0x11), Psn::new(100), 1);
        let hosts = Hosts { requester: Y.into(), target: X.into() };
        let answer = Response { hosts, ..response(0x22, old, 100) };
        assert_eq!(pairings.handle_response(&answer, now), Match::Paired(back(0x11)));
        pairings
    };

    let mut pairings = paired();
    let new = port(0x33, 0x11);
    assert_eq!(pairings.open(flow(0x33), new, now), Ok(None));
    pairings.sent(&flow(0x33), Psn::new(7), 1);
    assert_eq!(pairings.handle_response(&response(0x11, new, 7), now), Match::Paired(flow(0x33)));
    assert_eq!(events(&mut pairings), [Event::Superseded(back(0x11))]);

    let mut pairings = paired();
    let new = port(0x22, 0x12);
    assert_eq!(pairings.open(flow(0x22), new, now), Ok(None));
    assert_eq!(events(&mut pairings), [Event::Superseded(back(0x11))]);
    pairings.sent(&flow(0x22), Psn::new(7), 1);
    assert_eq!(pairings.handle_response(&response(0x12, new, 7), now), Match::Paired(flow(0x22)));
}

/// Some NICs choose their ports otherwise, and may choose others for a connection that lives.
#[test]
fn another_port_alone_parts_nobody() {
    let now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    assert_eq!(pairings.open(flow(0x22), PORT, now), Ok(None));
    pairings.sent(&flow(0x22), Psn::new(100), 1);
    assert_eq!(pairings.handle_response(&response(0x11, PORT, 100), now), Match::Paired(flow(0x22)));
    assert_eq!(pairings.open(flow(0x33), PORT + 1, now), Ok(None));
    pairings.sent(&flow(0x33), Psn::new(7), 1);
    for src_port in [PORT, PORT + 1, PORT + 2] {
        assert_eq!(pairings.handle_response(&response(0x11, src_port, 101), now), Match::Known(flow(0x22)));
    }
    pairings.release(&flow(0x22), now);
    assert_eq!(pairings.open(flow(0x22), PORT + 2, now), Ok(Some(Qpn::new(0x11))));
    assert_eq!(events(&mut pairings), []);
}

/// What CM told is not doubted.
#[test]
fn a_port_does_not_speak_against_cm() {
    let now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    connect(&mut pairings, 1, 100, now);
    let known = Ok(Some(Qpn::new(0x28)));
    assert_eq!(pairings.open(flow(0x34), port(0x34, 0x28), now), known);
    assert_eq!(pairings.open(flow(0x33), port(0x33, 0x28), now), Ok(None));
    pairings.sent(&flow(0x33), Psn::new(7), 1);
    let answer = response(0x28, port(0x33, 0x28), 7);
    assert_eq!(pairings.handle_response(&answer, now), Match::Known(flow(0x34)));
    pairings.release(&flow(0x34), now);
    assert_eq!(pairings.open(flow(0x34), PORT, now), known);
}

#[test]
fn a_late_response_is_nobody_elses() {
    let mut now = start();
    let config = Config::default();
    let mut pairings = Pairings::new(config, now);
    for target_qpn in [0x18, 0x19] {
        pairings.open(flow(target_qpn), PORT, now).unwrap();
    }
    pairings.sent(&flow(0x18), Psn::new(0), 1);
    assert_eq!(pairings.handle_response(&response(0x70, PORT, 0), now), paired(0x18));
    pairings.sent(&flow(0x19), Psn::new(0), 1);
    pairings.forget(&flow(0x18), now);
    assert_eq!(pairings.flows(), 1);
    assert_eq!(pairings.handle_response(&response(0x70, PORT, 0), now), Match::Unknown);
    // After a while the number may belong to another connection.
    now += config.quiet;
    assert_eq!(pairings.handle_response(&response(0x70, PORT, 0), now), paired(0x19));
}

fn paired(target_qpn: u32) -> Match {
    Match::Paired(flow(target_qpn))
}

#[test]
fn the_table_is_bounded() {
    let mut now = start();
    let config = Config { capacity: 3, ..Config::default() };
    let mut pairings = Pairings::new(config, now);
    for (i, target_qpn) in [0x18, 0x19, 0x1a].into_iter().enumerate() {
        let port = PORT + u16::try_from(i).unwrap();
        assert_eq!(pairings.open(flow(target_qpn), port, now), Ok(None));
    }
    assert_eq!(pairings.open(flow(0x1b), PORT, now), Err(Full));
    assert_eq!(pairings.open(flow(0x18), PORT, now), Ok(None), "not a new one");
    pairings.sent(&flow(0x18), Psn::new(0), 1);
    let found = pairings.handle_response(&response(0x70, PORT, 0), now);
    assert_eq!(found, Match::Paired(flow(0x18)));
    assert_eq!(pairings.open(flow(0x1b), PORT, now), Err(Full), "pairing makes no room");
    pairings.release(&flow(0x18), now);
    assert_eq!(pairings.open(flow(0x1b), PORT, now), Ok(None));

    // Unused connections: the released one and two more.
    for i in 0..9 {
        pairings.learn(flow(0x100 + i), Qpn::new(0x200 + i), now);
    }
    let known = |pairings: &Pairings| (0..9).filter(|i| pairings.partner(&flow(0x100 + i)).is_some()).count();
    assert_eq!(known(&pairings), 2);
    assert_eq!(pairings.partner(&flow(0x18)), Some(Qpn::new(0x70)));
    // They go with time, and so makes room for others; flows stay.
    let until = now + config.lifetime * 2;
    while now < until {
        now = pairings.next_timeout().unwrap();
        pairings.handle_timeout(now);
    }
    assert_eq!((known(&pairings), pairings.flows()), (0, 3));
    assert_eq!(pairings.partner(&flow(0x18)), None);
    pairings.learn(flow(0x100), Qpn::new(0x200), now);
    assert_eq!(known(&pairings), 1);
}

#[test]
fn a_sweep_of_a_large_table_takes_many_small_steps() {
    let mut now = start();
    let config = Config::default();
    let mut pairings = Pairings::new(config, now);
    for i in 0..5_000 {
        pairings.learn(flow(0x1000 + i), Qpn::new(0x10_0000 + i), now);
    }
    pairings.open(flow(0x1000), PORT, now).unwrap();
    let (began, mut steps) = (now, 0);
    while now < began + config.lifetime * 2 {
        now = pairings.next_timeout().unwrap();
        pairings.handle_timeout(now);
        steps += 1;
    }
    assert!((80..800).contains(&steps), "{steps}");
    let left = (0..5_000).filter(|i| pairings.partner(&flow(0x1000 + i)).is_some()).count();
    assert_eq!(left, 1, "the one in use");
}
