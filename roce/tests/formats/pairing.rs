//! Pairing, on captured traffic, rule by rule, and in a small simulation.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::cm::{Mad, Message, Terms, Timeout};
use roce::ip::Addressing;
use roce::pairing::{
    Candidacy, Config, Event, FlowKey, Flows, Full, Hosts, Match, Pairings, Response, Rival, Span, Word,
    source_port,
};
use roce::wire::{Bth, Packet, PathMtu, Psn, Qpn, Transport};

use crate::capture;

const X: [u8; 4] = [10, 0, 0, 1];
pub(crate) const Y: [u8; 4] = [10, 0, 1, 1];

#[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
pub(crate) fn start() -> Instant {
    Instant::now()
}

pub(crate) fn flow(target_qpn: u32) -> FlowKey {
    FlowKey { requester: X.into(), target: Y.into(), target_qpn: Qpn::new(target_qpn) }
}

pub(crate) fn back(target_qpn: u32) -> FlowKey {
    FlowKey { requester: Y.into(), target: X.into(), target_qpn: Qpn::new(target_qpn) }
}

/// An ACK.
pub(crate) fn response(requester_qpn: u32, psn: u32) -> Response {
    let hosts = Hosts { requester: X.into(), target: Y.into() };
    Response { hosts, requester_qpn: Qpn::new(requester_qpn), psn: Psn::new(psn), word: Word::Ack }
}

/// The paired flows: how any response may be for them, and whether they await it.
pub(crate) struct All {
    pub(crate) claim: Candidacy,
    pub(crate) rival: Option<Rival>,
}

impl Flows for All {
    fn claim(&self, _: &FlowKey, _: Duration) -> Candidacy {
        self.claim
    }

    fn rival(&mut self, _: Hosts, _: [Option<FlowKey>; 2], _: Duration) -> Option<Rival> {
        self.rival
    }
}

/// No paired flow awaits anything, but each may hear from its target.
pub(crate) fn hears(pairings: &mut Pairings, response: &Response, now: Instant) -> Match {
    pairings.handle_response(response, &mut All { claim: Candidacy::Good, rival: None }, now)
}

/// Returns true if the flow may send one request with this PSN.
pub(crate) fn asks(pairings: &mut Pairings, flow: &FlowKey, psn: u32, now: Instant) -> bool {
    pairings.may_send(flow, &Span::of(Psn::new(psn), 1), now)
}

pub(crate) fn events(pairings: &mut Pairings) -> Vec<Event> {
    std::iter::from_fn(|| pairings.poll_event()).collect()
}

/// Shows a captured packet to the pairings as its owner would, and returns a response's match.
fn show(
    pairings: &mut Pairings,
    addressing: &Addressing,
    packet: &Packet<'_>,
    now: Instant,
) -> Option<(Match, Qpn)> {
    let Addressing { src, dst, .. } = *addressing;
    if let Some(mad) = Mad::parse(packet) {
        pairings.handle_cm(src, dst, &mad.message, now);
    }
    if packet.bth.opcode.transport() != Transport::Rc {
        return None;
    }
    if packet.bth.opcode.is_request() {
        let key = FlowKey { requester: src, target: dst, target_qpn: packet.bth.dest_qp };
        if pairings.open(key, now).unwrap().is_none() {
            let length = packet.ext.reth().map_or(0, |reth| reth.dma_length);
            let span = Span::of(packet.bth.psn, PathMtu::B256.psn_span(length));
            assert!(pairings.may_send(&key, &span.of_kind(packet.bth.opcode.kind()), now));
        }
        return None;
    }
    let hosts = Hosts { requester: dst, target: src };
    let response = Response::of(hosts, packet).unwrap();
    Some((hears(pairings, &response, now), packet.bth.dest_qp))
}

/// Captures leave out the middle of long messages, which their targets got.
fn ask_about_left_out(
    pairings: &mut Pairings,
    last: &mut BTreeMap<FlowKey, Psn>,
    (addressing, packet): (&Addressing, &Packet<'_>),
    now: Instant,
) {
    let Bth { opcode, psn, dest_qp, .. } = packet.bth;
    if opcode.transport() != Transport::Rc || !opcode.is_request() {
        return;
    }
    let key = FlowKey { requester: addressing.src, target: addressing.dst, target_qpn: dest_qp };
    let Some(before) = last.insert(key, psn).filter(|_| !opcode.starts_message()) else { return };
    let left_out = psn.distance(before.next()).unsigned_abs();
    assert!(left_out == 0 || pairings.may_send(&key, &Span::of(before.next(), left_out), now));
}

#[test]
fn every_captured_response_finds_its_flow() {
    let now = start();
    let mut responses = 0;
    for capture in capture::all() {
        let mut pairings = Pairings::new(Config::default(), now);
        let mut last = BTreeMap::new();
        for (number, (addressing, packet)) in capture.packets().enumerate() {
            ask_about_left_out(&mut pairings, &mut last, (&addressing, &packet), now);
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
    assert_eq!(pairings.open(flow(0x34), now), Ok(Some(Qpn::new(0x28))));
    assert_eq!(pairings.open(back(0x28), now), Ok(Some(Qpn::new(0x34))));
    assert_eq!(hears(&mut pairings, &response(0x28, 9), now), Match::Known(flow(0x34)));
    assert_eq!(events(&mut pairings), []);

    let (addressing, dreq) = capture.packets().nth(39).unwrap();
    show(&mut pairings, &addressing, &dreq, now);
    let closing = [Event::Closing(flow(0x34)), Event::Closing(back(0x28))];
    assert_eq!(events(&mut pairings), closing);
    // What is still on its way is understood; a new flow on that queue pair is another connection.
    assert_eq!(hears(&mut pairings, &response(0x28, 9), now), Match::Known(flow(0x34)));
    assert_eq!(pairings.open(flow(0x34), now), Ok(None));
}

#[test]
fn cm_ends_the_wait() {
    let now = start();
    let capture = capture::of("rping");
    let mut pairings = Pairings::new(Config::default(), now);
    assert_eq!(pairings.open(flow(0x34), now), Ok(None));
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
        assert_eq!(pairings.open(flow(0x34), now), Ok(Some(Qpn::new(0x28))));
        assert_eq!(pairings.open(back(0x28), now), Ok(Some(Qpn::new(0x34))));
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

/// The same with other queue pairs.
pub(crate) fn connect_others(pairings: &mut Pairings, requester_qpn: u32, target_qpn: u32, now: Instant) {
    let [id, [_, qpn @ ..], [_, other @ ..]] = [target_qpn, requester_qpn, target_qpn].map(u32::to_be_bytes);
    let req = altered(1, 0x10, |body| {
        body[..4].copy_from_slice(&id);
        body[32..35].copy_from_slice(&qpn);
    });
    let rep = altered(2, 0x13, |body| {
        body[..4].copy_from_slice(&id);
        body[4..8].copy_from_slice(&id);
        body[12..15].copy_from_slice(&other);
    });
    hear(pairings, true, &req, now);
    hear(pairings, false, &rep, now);
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
            (body[47], body[95]) = (20 << 3 | 6, 15 << 3);
            body[44..47].copy_from_slice(&[0, 1, 2]);
            body[50] = 3 << 4 | 6;
        }),
        altered(2, 0x13, |body| {
            (body[24], body[25]) = (8, 5);
            body[20..23].copy_from_slice(&[3, 4, 5]);
            body[26] = 17 << 3;
            body[27] = 7 << 5;
        }),
    ];
    hear(&mut pairings, true, &req, now);
    hear(&mut pairings, false, &rep, now);
    let path_mtu = Some(PathMtu::B1024);
    // The ACK timeout is what the other side names, and retries are the caller's for both.
    let terms = |max_reads, rnr_retry, ack_timeout| {
        let ack_timeout = Timeout::new(ack_timeout);
        Some(Terms { path_mtu, max_reads, rnr_retry, ack_timeout, retries: 6 })
    };
    // What the callee holds of what the caller will have under way, and what it wants of it; and
    // the other way round.
    assert_eq!(pairings.terms(&flow(0x34)), terms(8, 7, 17));
    assert_eq!(pairings.terms(&back(0x28)), terms(4, 6, 15));
    // Each side says where the other begins.
    assert_eq!(pairings.take_first_psn(&flow(0x34)), Some(Psn::new(0x03_0405)));
    assert_eq!(pairings.take_first_psn(&back(0x28)), Some(Psn::new(0x00_0102)));
    hear(&mut pairings, false, &rep, now);
    assert_eq!(pairings.take_first_psn(&flow(0x34)), None, "the flow goes on");
    assert!(pairings.terms(&flow(0x34)).is_some());
    assert_eq!(pairings.terms(&flow(0x35)), None);
}

#[test]
fn a_connection_that_is_rejected_in_the_end_is_over() {
    let now = start();
    let [req, rep] = [1, 2].map(|number| capture::of("rping").packet(number).bytes.to_vec());
    // Like the RTU, but a REJ of the REP; and what the callee rejects after its REP, having heard
    // of no RTU.
    let of_reply = altered(3, 0x12, |body| body[8] = 0x40);
    let of_request = altered(2, 0x12, |body| body[8] = 0);
    for (from_caller, reject) in [(true, &of_reply), (false, &of_request)] {
        let mut pairings = Pairings::new(Config::default(), now);
        hear(&mut pairings, true, &req, now);
        hear(&mut pairings, false, &rep, now);
        assert_eq!(pairings.open(flow(0x34), now), Ok(Some(Qpn::new(0x28))));
        hear(&mut pairings, !from_caller, reject, now);
        assert_eq!(events(&mut pairings), [], "not theirs to say");
        hear(&mut pairings, from_caller, reject, now);
        assert_eq!(events(&mut pairings), [Event::Closing(flow(0x34))]);
        assert_eq!(pairings.open(back(0x28), now), Ok(None), "what comes now is another connection's");
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

/// A packet that names a requester's queue pair and is no response.
#[test]
fn which_queue_pairs_may_be_of_a_flow() {
    let now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    let hosts = Hosts { requester: X.into(), target: Y.into() };
    let others = Hosts { requester: Y.into(), target: X.into() };
    let may = |pairings: &Pairings, qpn| {
        let may =
            |hosts| pairings.of_requester(hosts, Qpn::new(qpn)).is_some() || pairings.has_waiting(hosts);
        assert!(!may(others));
        may(hosts)
    };
    assert!(!may(&pairings, 0x2a));
    for target in [0, 0xff_ffff] {
        pairings.open(flow(target), now).unwrap();
        assert!(may(&pairings, 0x2a) && may(&pairings, 0x2b), "any");
        assert!(asks(&mut pairings, &flow(target), 100, now));
        assert_eq!(hears(&mut pairings, &response(0x2a + target, 100), now), Match::Paired(flow(target)));
        assert!(may(&pairings, 0x2a + target) && !may(&pairings, 0x2b), "its own");
        assert_eq!(pairings.of_requester(hosts, Qpn::new(0x2a + target)), Some(flow(target)));
        pairings.forget(&flow(target), None, now);
        assert!(!may(&pairings, 0x2a + target));
    }
}

/// Connection management also tells of what is no flow here: nothing is known of it but that.
#[test]
fn a_connection_without_flows_has_no_requester() {
    let now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    connect(&mut pairings, 1, 2, now);
    let hosts = Hosts { requester: X.into(), target: Y.into() };
    assert_eq!(pairings.of_requester(hosts, Qpn::new(0x28)), None);
    assert!(!pairings.has_waiting(hosts));
    assert_eq!(pairings.open(flow(0x34), now), Ok(Some(Qpn::new(0x28))));
    assert_eq!(pairings.of_requester(hosts, Qpn::new(0x28)), Some(flow(0x34)));
}

#[test]
fn the_port_of_a_product() {
    assert_eq!(source_port(Qpn::new(0x11), Qpn::new(0x16)), 49_526);
    assert_eq!(source_port(Qpn::new(0x23), Qpn::new(0x28)), 50_552);
    let (one, other) = (Qpn::new(0xabcdef), Qpn::new(0x123456));
    assert_eq!(source_port(one, other), source_port(other, one));
}

/// Knowledge from CM is evidence once. A flow opened later on the same numbers may be another
/// connection's, of which CM said nothing.
#[test]
fn a_connection_by_cm_is_known_to_its_first_flows_only() {
    let now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    connect(&mut pairings, 1, 100, now);
    assert_eq!(pairings.open_near(back(0x28), now), Some(Qpn::new(0x34)));
    assert_eq!(pairings.open(flow(0x34), now), Ok(Some(Qpn::new(0x28))));
    pairings.release(&back(0x28), now);
    pairings.forget(&flow(0x34), None, now);
    assert_eq!(pairings.open_near(back(0x28), now), None);
    assert_eq!(pairings.open(flow(0x34), now), Ok(None));
    assert!(asks(&mut pairings, &flow(0x34), 5, now));
    assert!(pairings.terms(&flow(0x34)).is_some(), "what it agreed on is a good guess");
    assert_eq!(hears(&mut pairings, &response(0x28, 5), now), Match::Paired(flow(0x34)));
    assert_eq!(events(&mut pairings), []);
}

#[test]
fn a_new_connection_takes_its_queue_pairs_over() {
    let now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    connect_others(&mut pairings, 0x70, 0x18, now);
    assert_eq!(pairings.open(flow(0x18), now), Ok(Some(Qpn::new(0x70))));
    assert_eq!(pairings.open_near(back(0x70), now), Some(Qpn::new(0x18)));
    connect_others(&mut pairings, 0x70, 0x19, now);
    let superseded = [Event::Superseded(back(0x70)), Event::Superseded(flow(0x18))];
    assert_eq!(events(&mut pairings), superseded);
    assert_eq!((pairings.flows(), pairings.partner(&flow(0x18))), (0, None));
    assert_eq!(pairings.partner(&flow(0x19)), Some(Qpn::new(0x70)));
}

#[test]
fn the_table_is_bounded() {
    let mut now = start();
    let config = Config { capacity: 9, ..Config::default() };
    let mut pairings = Pairings::new(config, now);
    for target_qpn in 0x18..0x20 {
        assert_eq!(pairings.open(flow(target_qpn), now), Ok(None));
    }
    assert_eq!(pairings.open(flow(0x20), now), Err(Full));
    assert_eq!(pairings.open(flow(0x18), now), Ok(None), "not a new one");
    let other = FlowKey { requester: [10, 0, 0, 2].into(), ..flow(0x18) };
    assert_eq!(pairings.open(other, now), Ok(None), "another host's share");
    pairings.forget(&other, None, now);
    assert!(asks(&mut pairings, &flow(0x18), 0, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 0), now), Match::Paired(flow(0x18)));
    assert_eq!(pairings.open(flow(0x20), now), Err(Full), "pairing makes no room");
    // What may still be answered keeps its place for as long.
    pairings.forget(&flow(0x18), Some((Span::of(Psn::new(0), 1), now)), now);
    assert_eq!(pairings.open(flow(0x20), now), Ok(None));
    assert_eq!(pairings.open(other, now), Err(Full));
    now += pairings.patience(response(0, 0).hosts, now);
    pairings.handle_timeout(now);
    assert_eq!(pairings.open(other, now), Ok(None));
    pairings.forget(&other, None, now);

    for i in 0..20 {
        connect_others(&mut pairings, 0x200 + i, 0x100 + i, now);
    }
    let known =
        |pairings: &Pairings| (0..20).filter(|i| pairings.partner(&flow(0x100 + i)).is_some()).count();
    assert_eq!(known(&pairings), 8);
    // They go with time, and so make room for others; flows stay.
    let until = now + config.lifetime * 2;
    while now < until {
        now = pairings.next_timeout().unwrap();
        pairings.handle_timeout(now);
    }
    assert_eq!((known(&pairings), pairings.flows()), (0, 8));
    connect_others(&mut pairings, 0x200, 0x100, now);
    assert_eq!(known(&pairings), 1);
}

#[test]
fn a_sweep_of_a_large_table_takes_many_small_steps() {
    let mut now = start();
    let config = Config::default();
    let mut pairings = Pairings::new(config, now);
    for i in 0..5_000 {
        connect_others(&mut pairings, 0x10_0000 + i, 0x1000 + i, now);
    }
    assert_eq!(pairings.open(flow(0x1000), now), Ok(Some(Qpn::new(0x10_0000))));
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

/// Any host can send such in another's name. Of 2^32 IDs it does not hit one that counts.
#[test]
fn management_with_unknown_communication_ids_changes_nothing() {
    let now = start();
    let mut pairings = Pairings::new(Config::default(), now);
    connect(&mut pairings, 1, 100, now);
    assert_eq!(pairings.open(flow(0x34), now), Ok(Some(Qpn::new(0x28))));
    assert_eq!(pairings.open_near(back(0x28), now), Some(Qpn::new(0x34)));
    assert_eq!(pairings.open(flow(0x18), now), Ok(None));
    assert!(asks(&mut pairings, &flow(0x18), 5, now));
    assert_eq!(hears(&mut pairings, &response(0x70, 5), now), Match::Paired(flow(0x18)));
    let template = capture::of("rping").packet(1).bytes.to_vec();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..100_000 {
        let mut bytes = template.clone();
        // From the request to connect to the reply to a disconnect.
        bytes[12 + 8 + 17] = 0x10 + (next() % 7) as u8;
        let body = &mut bytes[12 + 8 + 24..];
        for place in body[..224].chunks_exact_mut(8) {
            place.copy_from_slice(&next().to_be_bytes());
        }
        // Nor are they those of each other's requests.
        (body[0], body[4]) = (body[0] & 0x3f | 0x40, body[4] | 0x80);
        let qpn = [0x28, 0x34, 0x18, 0x70][(next() % 4) as usize];
        // In a DREQ, a REP and a REQ.
        for at in [8, 12, 32] {
            body[at..at + 3].copy_from_slice(&[0, 0, qpn]);
        }
        hear(&mut pairings, next() % 2 == 0, &bytes, now);
    }
    assert_eq!(events(&mut pairings), []);
    assert_eq!(pairings.partner(&flow(0x34)), Some(Qpn::new(0x28)));
    assert_eq!(pairings.partner(&flow(0x18)), Some(Qpn::new(0x70)));
}
