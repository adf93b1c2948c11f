//! The target's side of a gateway, with the peer's records and the target's packets made by hand.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::sites::packet;
use config::Policy;
use reliability::stream::{Receiver, ReceiverConfig, Sender, SenderConfig, StreamId, classify};
use roce::ip::{Addressing, Datagram, emit};
use roce::wire::{Aeth, BTH_LEN, Ext, Nak, Opcode, Packet, Psn, Qpn, Reth, Syndrome};
use splice::record::{FlowId, Head, Opening, Reason};
use splice::{Arrival, Ecn, FlowSide, Gateway, LAN_DROPS, LaneId, SessionEnd, Settings, StaleFlow};

const MAX_PACKET: usize = 1400;
const R: Qpn = Qpn::new(0x11);
const FLOW: FlowId = FlowId(5);
/// Traffic class of congestion notifications: DSCP 48, not ECN-capable.
const CNP_TCLASS: u8 = 48 << 2;
const PARTITION: u16 = 0x8012;

/// A gateway at the target's site, and the peer's streams.
struct Bench {
    now: Instant,
    gateway: Gateway,
    sender: Sender,
    receivers: [Receiver; 2],
    /// The next packet number of the peer's.
    number: u64,
    /// Requests that went out on the LAN, as they stand in IP packets.
    sent: Vec<Vec<u8>>,
    /// Records that went to the peer: head, and body, with the whole header.
    told: Vec<(Head, Vec<u8>)>,
    /// The flow's first response: its number, and its header.
    first: Option<(u32, [u8; BTH_LEN])>,
}

fn requester() -> IpAddr {
    [10, 0, 0, 1].into()
}

fn target() -> IpAddr {
    [10, 0, 1, 1].into()
}

fn addressing(tclass: u8) -> Addressing {
    Addressing { src: requester(), dst: target(), src_port: 0xc123, tclass, ttl: 64 }
}

fn arrival(next: &mut u64, bytes: usize) -> Arrival {
    let number = *next;
    *next += 1;
    Arrival { lane: LaneId(0), number, bytes, ecn: Ecn::NotEct }
}

impl Bench {
    fn new(change: impl FnOnce(&mut Settings)) -> Self {
        let now = Instant::now();
        let mut settings = Settings::new(vec!["10.0.0.0/24".parse().unwrap()], 1_000_000_000, MAX_PACKET);
        change(&mut settings);
        let mut gateway = Gateway::new(settings, now);
        gateway.session_up(Duration::from_millis(10), MAX_PACKET, 1, &[], now);
        Self {
            now,
            gateway,
            sender: Sender::new(SenderConfig::new(StreamId(0), MAX_PACKET), now),
            receivers: [0, 1].map(|id| Receiver::new(ReceiverConfig::new(StreamId(id), MAX_PACKET), now)),
            number: 0,
            sent: Vec::new(),
            told: Vec::new(),
            first: None,
        }
    }

    /// A record from the peer.
    fn record(&mut self, head: &Head, body: &[u8]) {
        self.sender.push(&[head.emit().as_ref(), body], self.now).unwrap();
        let mut out = [0; MAX_PACKET];
        while let Some(transmit) = self.sender.poll_transmit(self.now, &mut out) {
            let arrival = arrival(&mut self.number, transmit.len);
            self.gateway.handle_wan(&out[..transmit.len], arrival, self.now);
        }
        self.settle();
    }

    fn request(&mut self, flow: FlowId, seq: u32, open: Option<Addressing>, body: &[u8]) {
        let opens = open.map_or(Opening::Known, Opening::Full);
        self.record(&Head::Request { flow, seq, replay: false, rested: false, opens }, body);
    }

    /// A packet from the target.
    fn response(&mut self, body: &[u8]) {
        self.response_as(&Addressing { src: target(), dst: requester(), ..addressing(0) }, body);
    }

    fn response_as(&mut self, addressing: &Addressing, body: &[u8]) {
        let mut packet = [0; 5000];
        let len = emit(addressing, 7, body, &mut packet).unwrap();
        self.gateway.handle_lan(&Datagram::parse(&packet[..len]).unwrap(), self.now);
        self.settle();
    }

    fn settle(&mut self) {
        let mut out = [0; 9000];
        let mut moved = true;
        while std::mem::take(&mut moved) {
            while let Some(len) = self.gateway.poll_lan(self.now, &mut out) {
                self.sent.push(out[..len].to_vec());
                moved = true;
            }
            while let Some(len) = self.gateway.poll_wan(self.now, &mut out) {
                moved = true;
                let (_, stream) = classify(&out[..len]).unwrap();
                let Some(receiver) = self.receivers.get_mut(usize::from(stream.0)) else { continue };
                let Self { told, first, .. } = self;
                let _ = receiver.handle_packet(&out[..len], self.now, &mut |record| {
                    let (head, body) = Head::parse(record).unwrap();
                    told.push((head, restored(first, &head, body)));
                });
                while let Some(len) = receiver.poll_report(self.now, &mut out) {
                    let arrival = arrival(&mut self.number, len);
                    self.gateway.handle_wan(&out[..len], arrival, self.now);
                }
            }
        }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.gateway.next_timeout(self.now).filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.gateway.handle_timeout(self.now);
            self.settle();
        }
        self.now = end;
    }

    /// Destination queue pair and PSN of each request sent on the LAN since this was last asked.
    fn sent(&mut self) -> Vec<(u32, u32)> {
        let packets = std::mem::take(&mut self.sent);
        let read = |bytes: &Vec<u8>| {
            let datagram = Datagram::parse(bytes).unwrap();
            let bth = Packet::parse(datagram.transport).unwrap().bth;
            (bth.dest_qp.get(), bth.psn.get())
        };
        packets.iter().map(read).collect()
    }

    /// Each response told to the peer since this was last asked: whether its header was short, and
    /// the packet.
    fn packets(&mut self) -> Vec<(bool, Vec<u8>)> {
        let read = |(head, body)| match head {
            Head::Response { is_short, .. } => Some((is_short, body)),
            _ => None,
        };
        std::mem::take(&mut self.told).into_iter().filter_map(read).collect()
    }

    /// PSN and syndrome of each response without payload told to the peer since this was last
    /// asked.
    fn responses(&mut self) -> Vec<(u32, u8)> {
        let told = std::mem::take(&mut self.told);
        let responses = told.iter().filter(|(head, _)| matches!(head, Head::Response { .. }));
        let read = |(_, body): &(Head, Vec<u8>)| {
            let packet = Packet::parse(body).unwrap();
            Some((packet.bth.psn.get(), packet.ext.aeth()?.syndrome.to_u8()))
        };
        responses.filter_map(read).collect()
    }
}

/// The body of a record with the header that it is short of, as the first response has it
/// (docs/protocol.md#rule-short-response).
fn restored(first: &mut Option<(u32, [u8; BTH_LEN])>, head: &Head, body: &[u8]) -> Vec<u8> {
    let &Head::Response { seq, is_short, .. } = head else { return body.to_vec() };
    if !is_short {
        first.get_or_insert((seq, *body.first_chunk().unwrap()));
        return body.to_vec();
    }
    let (first_seq, mut bth) = first.unwrap();
    let psn = u32::from_be_bytes([0, bth[9], bth[10], bth[11]]) + seq - first_seq;
    let (psn, rest) = match body[2] & 1 {
        0 => (psn.to_be_bytes(), &body[3..]),
        _ => ([0, body[3], body[4], body[5]], &body[6..]),
    };
    (bth[0], bth[1], bth[8]) = (body[0], body[1], body[2] & 0x80);
    bth[9..].copy_from_slice(&psn[1..]);
    [&bth, rest].concat()
}

fn send(to: u32, psn: u32) -> Vec<u8> {
    packet(Opcode::SendOnly, to, psn, Ext::None, 8)
}

fn acknowledge(to: Qpn, psn: u32) -> Vec<u8> {
    packet(Opcode::Acknowledge, to.get(), psn, Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 1 }), 0)
}

#[test]
fn a_flow_is_kept_for_as_long_as_the_requesters_gateway_keeps_it() {
    let mut bench = Bench::new(|settings| settings.idle_flow = Duration::from_secs(2));
    bench.request(FLOW, 0, Some(addressing(0)), &send(0x22, 100));
    bench.response(&acknowledge(R, 100));
    assert_eq!((bench.sent(), bench.responses()), (vec![(0x22, 100)], vec![(100, 0x1f)]));
    bench.wait(Duration::from_secs(60));
    let asked = bench.told.iter().filter(|(head, _)| *head == Head::Idle { flow: FLOW }).count();
    assert!((10..=15).contains(&asked), "asked {asked} times");
    bench.told.clear();
    bench.request(FLOW, 1, None, &send(0x22, 101));
    bench.response(&acknowledge(R, 101));
    assert_eq!((bench.sent(), bench.responses()), (vec![(0x22, 101)], vec![(101, 0x1f)]));
    bench.record(&Head::Close { flow: FLOW, requests: 2 }, &[]);
    assert_eq!(bench.gateway.stats().far_flows, 0);
    assert_eq!(bench.gateway.stats().failed, [0; 9]);
}

#[test]
fn a_requesters_gateway_that_knows_no_such_flow_says_so() {
    let mut bench = Bench::new(|_| {});
    bench.record(&Head::Idle { flow: FLOW }, &[]);
    assert_eq!(bench.told, [(Head::Close { flow: FLOW, requests: 0 }, Vec::new())]);
}

#[test]
fn what_comes_after_its_flow_was_closed_opens_no_other() {
    let mut bench = Bench::new(|_| {});
    bench.record(&Head::Close { flow: FLOW, requests: 1 }, &[]);
    bench.request(FLOW, 0, Some(addressing(0)), &send(0x22, 100));
    assert_eq!((bench.sent(), bench.gateway.stats().far_flows), (vec![], 0));
    assert_eq!((bench.gateway.stats().late_records, bench.told.len()), (2, 0));
}

/// docs/protocol.md#rule-short-response
#[test]
fn responses_are_short_once_the_requesters_gateway_has_had_one() {
    let mut bench = Bench::new(|_| {});
    for (psn, open, is_short) in [(100, true, false), (101, true, false), (102, false, true)] {
        bench.request(FLOW, psn - 100, open.then(|| addressing(0)), &send(0x22, psn));
        let ack = acknowledge(R, psn);
        bench.response(&ack);
        assert_eq!(bench.packets(), [(is_short, ack)]);
    }
    let reth = Reth { virtual_address: 0, rkey: 7, dma_length: 512 };
    bench.request(FLOW, 3, None, &packet(Opcode::ReadRequest, 0x22, 103, Ext::Reth(reth), 0));
    let aeth = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 2 });
    let data = [
        packet(Opcode::ReadResponseFirst, R.get(), 103, aeth, 256),
        packet(Opcode::ReadResponseLast, R.get(), 104, aeth, 256),
    ];
    data.iter().for_each(|data| bench.response(data));
    assert_eq!(bench.packets(), data.map(|data| (true, data)));
}

/// docs/protocol.md#rule-short-response
#[test]
fn a_short_response_is_restored_by_the_first_and_refused_before_it() {
    let mut bench = Bench::new(|_| {});
    let lan = Addressing { src: target(), dst: requester(), ..addressing(0) };
    let to = |opcode, psn, ext, len| packet(opcode, 0x33, psn, ext, len);
    let aeth = |msn| [0x1f, 0, 0, msn];
    bench.response_as(&lan, &to(Opcode::SendOnly, 100, Ext::None, 8));
    let flow = bench.told.iter().find_map(|(head, _)| match head {
        Head::Request { flow, .. } => Some(*flow),
        _ => None,
    });
    let head = |seq, is_short| Head::Response { flow: flow.unwrap(), seq, is_short };
    bench.record(&head(0, true), &[&[0x11, 0, 0][..], &aeth(1)].concat());
    assert_eq!((bench.sent(), bench.gateway.stats().bad_records), (vec![], 1), "nothing is known");
    bench.record(&head(0, false), &acknowledge(Qpn::new(0x44), 100));
    assert_eq!(bench.sent(), [(0x44, 100)]);
    bench.response_as(&lan, &to(Opcode::SendOnly, 101, Ext::None, 8));
    bench.record(&head(1, true), &[&[0x11, 0, 0][..], &aeth(2)].concat());
    assert_eq!(bench.sent(), [(0x44, 101)]);
    let reth = Reth { virtual_address: 0, rkey: 7, dma_length: 256 };
    bench.response_as(&lan, &to(Opcode::ReadRequest, 102, Ext::Reth(reth), 0));
    bench.record(&head(2, true), &[&[0x10, 0, 0x82][..], &aeth(3), &[1; 256]].concat());
    assert_eq!((bench.sent(), bench.gateway.stats().bad_records), (vec![], 2), "no such form");
    bench.record(&head(2, true), &[&[0x10, 0, 0x81, 0, 0, 102][..], &aeth(3), &[1; 256]].concat());
    let sent = bench.sent.iter().map(|bytes| Datagram::parse(bytes).unwrap().transport.to_vec());
    let says = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 3 });
    assert_eq!(sent.collect::<Vec<_>>(), [packet(Opcode::ReadResponseOnly, 0x44, 102, says, 256)]);
}

#[test]
fn a_misjudged_read_is_told_at_once() {
    let mut bench = Bench::new(|_| {});
    let reth = Reth { virtual_address: 0, rkey: 7, dma_length: 8192 };
    bench.request(FLOW, 0, Some(addressing(0)), &packet(Opcode::ReadRequest, 0x22, 100, Ext::Reth(reth), 0));
    // As if the path MTU were 512.
    bench.request(FLOW, 1, None, &send(0x22, 116));
    let aeth = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 1 });
    bench.response(&packet(Opcode::ReadResponseFirst, R.get(), 100, aeth, 256));
    assert_eq!(bench.responses(), [(132, 0x60), (100, 0x1f)]);
}

#[test]
fn read_data_asked_for_under_an_earlier_policy_is_taken() {
    let policy = |text: &str| Policy::parse(Path::new("policy.toml"), text).unwrap();
    let mut bench = Bench::new(|settings| {
        settings.total_buffer = 512 << 20;
        settings.policy = policy("[[class]]\nname = \"default\"\nscheme = \"sr\"").into();
    });
    let requester = |n: u8| Addressing { src: [10, 0, 0, n].into(), ..addressing(0) };
    for n in 1..=8 {
        let reth = Reth { virtual_address: 0, rkey: 7, dma_length: 8 << 20 };
        let read = packet(Opcode::ReadRequest, 0x22, 0, Ext::Reth(reth), 0);
        bench.request(FlowId(n.into()), 0, Some(requester(n)), &read);
    }
    let asked = |bytes: &Vec<u8>| {
        let datagram = Datagram::parse(bytes).unwrap();
        let reth = *Packet::parse(datagram.transport).unwrap().ext.reth().unwrap();
        (datagram.addressing.src, reth.dma_length)
    };
    let asked: Vec<_> = bench.sent.iter().map(asked).collect();
    let total: u32 = asked.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!((asked.len(), total), (4, 8 << 20), "as much as there is room for");
    // Another class, with just about as much room as what was asked for takes, without its framing.
    let urgent = "[[class]]\nname = \"urgent\"\nmatch = { dscp = [46] }\nscheme = \"sr\"\npriority = 1\n";
    let changed = policy(&format!("{urgent}[[class]]\nname = \"other\"\nscheme = \"sr\""));
    bench.gateway.set_policy(changed.into(), bench.now).unwrap();
    let aeth = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 1 });
    for (to, bytes) in asked {
        let addressing = Addressing { src: target(), dst: to, ..addressing(0) };
        let last = bytes / 1024 - 1;
        for psn in 0..=last {
            let (opcode, ext) = match psn {
                0 => (Opcode::ReadResponseFirst, aeth),
                _ if psn == last => (Opcode::ReadResponseLast, aeth),
                _ => (Opcode::ReadResponseMiddle, Ext::None),
            };
            bench.response_as(&addressing, &packet(opcode, R.get(), psn, ext, 1024));
        }
    }
    let stats = bench.gateway.stats();
    assert_eq!((stats.responses, stats.lan_drops), (8 << 10, [0; LAN_DROPS]));
}

#[test]
fn more_flows_than_two_sides_have_are_not_remembered_but_counted() {
    let flow = |qpn: u32| StaleFlow {
        requester: target(),
        target: requester(),
        target_qpn: Qpn::new(qpn),
        requester_qpn: R,
        psn: Psn::new(0),
        src_port: 50_000,
        side: FlowSide::Far,
        lives: false,
    };
    for (limit, most) in [(None, 200_000), (Some(10), 20)] {
        let mut bench = Bench::new(|settings| settings.flows = limit.unwrap_or(settings.flows));
        let flows: Vec<_> = (0..most + 7).map(flow).collect();
        bench.gateway.session_up(Duration::from_millis(10), MAX_PACKET, 1, &flows, bench.now);
        let stats = bench.gateway.stats();
        assert_eq!((stats.remembered, stats.forgotten), (u64::from(most), 7));
    }
}

#[test]
fn the_turn_goes_on_with_the_response() {
    let mut bench = Bench::new(|_| {});
    for (id, qp) in [(1, 0x22), (2, 0x23)] {
        bench.request(FlowId(id), 0, Some(addressing(0)), &send(qp, 100));
    }
    assert_eq!(bench.sent(), [(0x22, 100)], "nothing else would tell them apart");
    bench.response(&acknowledge(R, 100));
    assert_eq!((bench.sent(), bench.gateway.stats().unpaired_flows), (vec![(0x23, 100)], 1));
}

/// The PSN in a failure of a flow that begins at 100 and whose target has said nothing.
const UNKNOWN: u32 = (1 << 24) + 100 - (1 << 17);

/// The failure of its flow named no requester, and without its number that cannot be refused.
#[test]
fn a_target_that_speaks_only_at_the_end_names_its_requester() {
    let mut bench = Bench::new(|settings| settings.target_dead = Duration::from_secs(1));
    bench.request(FLOW, 0, Some(addressing(0)), &send(0x22, 100));
    bench.wait(Duration::from_secs(2));
    let read = |told: &mut Vec<(Head, Vec<u8>)>| {
        let responses: Vec<_> = std::mem::take(told)
            .into_iter()
            .filter(|(head, _)| matches!(head, Head::Response { .. }))
            .map(|(_, body)| {
                let packet = Packet::parse(&body).unwrap();
                (packet.bth.dest_qp, packet.bth.psn.get(), packet.ext.aeth().unwrap().syndrome)
            })
            .collect();
        responses
    };
    assert_eq!(read(&mut bench.told), [(Qpn::new(0), UNKNOWN, Syndrome::TARGET_SILENT)]);
    let nak = Aeth { syndrome: Syndrome::Nak(Nak::PsnSequence), msn: 0 };
    bench.response(&packet(Opcode::Acknowledge, R.get(), 100, Ext::Aeth(nak), 0));
    bench.wait(Duration::from_millis(5));
    assert_eq!(read(&mut bench.told), [(R, UNKNOWN, Syndrome::TARGET_SILENT)]);
}

#[test]
fn an_unknown_flow_is_refused() {
    let mut bench = Bench::new(|_| {});
    bench.request(FLOW, 3, None, &send(0x22, 100));
    assert_eq!(bench.told, [(Head::Fail { flow: FLOW, reason: Reason::UnknownFlow }, Vec::new())]);
}

#[test]
fn what_a_switch_marked_is_passed_on_unmarked_and_its_sender_told() {
    let mut bench = Bench::new(|_| {});
    // Marked Congestion Experienced, DSCP 26.
    bench.request(FLOW, 0, Some(addressing(26 << 2 | 3)), &send(0x22, 100));
    let tclass = |bytes: &Vec<u8>| Datagram::parse(bytes).unwrap().addressing.tclass;
    assert_eq!(bench.sent.iter().map(tclass).collect::<Vec<_>>(), [26 << 2 | 2], "ECN-capable as it came");
    bench.sent.clear();
    let marked = Addressing { src: target(), dst: requester(), ..addressing(26 << 2 | 3) };
    let mut answer = acknowledge(R, 100);
    answer[2..4].copy_from_slice(&PARTITION.to_be_bytes());
    bench.response_as(&marked, &answer);
    bench.response_as(&marked, &answer);
    bench.wait(Duration::from_micros(50));
    bench.response_as(&marked, &answer);
    let told = std::mem::take(&mut bench.sent);
    assert_eq!(told.len(), 2, "once in 50 us");
    for bytes in told {
        let datagram = Datagram::parse(&bytes).unwrap();
        let Addressing { src, dst, src_port, tclass, .. } = datagram.addressing;
        assert_eq!((src, dst, src_port, tclass), (requester(), target(), 0xc123, CNP_TCLASS));
        let packet = Packet::parse(datagram.transport).unwrap();
        assert_eq!((packet.bth.opcode, packet.bth.becn, packet.bth.pkey), (Opcode::Cnp, true, PARTITION));
        assert_eq!((packet.bth.dest_qp, packet.payload), (Qpn::new(0x22), &[0; 16][..]));
    }
    let stats = bench.gateway.stats();
    assert_eq!((stats.lan_marked, stats.cnps), (3, 2));
}

#[test]
fn a_requester_is_told_of_congestion_once_it_is_known() {
    let mut bench = Bench::new(|_| {});
    let request = |psn| packet(Opcode::SendOnly, 0x33, psn, Ext::None, 8);
    let marked = Addressing { src: target(), dst: requester(), ..addressing(3) };
    bench.response_as(&marked, &request(100));
    assert!(bench.sent.is_empty(), "whose queue pair?");
    let flow = bench.told.iter().find_map(|(head, _)| match head {
        Head::Request { flow, opens: Opening::Full(addressing), .. } => Some((*flow, addressing.tclass)),
        _ => None,
    });
    let (flow, tclass) = flow.unwrap();
    assert_eq!(tclass, 3, "as the requester sent it");
    let ack = acknowledge(Qpn::new(0x44), 100);
    bench.record(&Head::Response { flow, seq: 0, is_short: false }, &ack);
    bench.response_as(&marked, &request(101));
    let sent = std::mem::take(&mut bench.sent);
    let read = |bytes: &Vec<u8>| {
        let datagram = Datagram::parse(bytes).unwrap();
        let bth = Packet::parse(datagram.transport).unwrap().bth;
        (bth.opcode, bth.dest_qp.get(), datagram.addressing.tclass)
    };
    let sent: Vec<_> = sent.iter().map(read).collect();
    assert_eq!(sent, [(Opcode::Acknowledge, 0x44, 0), (Opcode::Cnp, 0x44, CNP_TCLASS)]);
}

/// DCQCN: the target's NIC tells, and this gateway is the sender that it knows.
#[test]
fn a_flow_slows_down_when_its_target_tells_of_congestion() {
    const PACKETS: u32 = 400;
    let took = |notifications: u32| {
        // 125 MB/s at most.
        let mut bench = Bench::new(|settings| settings.rate = 1_000_000_000);
        bench.request(FLOW, 0, Some(addressing(2)), &send(0x22, 100));
        bench.response(&acknowledge(R, 100));
        bench.sent.clear();
        for _ in 0..notifications {
            bench.response(&packet(Opcode::Cnp, R.get(), 0, Ext::None, 16));
            bench.now += Duration::from_micros(50);
        }
        let begin = bench.now;
        let (mut sent, mut given) = (0, 0);
        while sent < PACKETS {
            // No more than waits at a time.
            while given < PACKETS && given < sent + 32 {
                given += 1;
                let bytes = packet(Opcode::SendOnly, 0x22, 100 + given, Ext::None, 1024);
                bench.request(FLOW, given, None, &bytes);
            }
            let went: Vec<_> = bench.sent.drain(..).collect();
            sent += u32::try_from(went.len()).unwrap();
            if let Some(last) = went.last() {
                let asks = Packet::parse(Datagram::parse(last).unwrap().transport).unwrap().bth;
                bench.response(&acknowledge(R, asks.psn.get()));
            }
            bench.wait(Duration::from_micros(20));
            assert!(bench.now - begin < Duration::from_secs(1));
        }
        let stats = bench.gateway.stats();
        assert_eq!(stats.far.retransmitted, 0);
        assert_eq!((stats.far.slowed, stats.lan_drops.iter().sum::<u64>()), (notifications.into(), 0));
        bench.now - begin
    };
    let times = [0, 1, 3, 5].map(took);
    println!("{times:?}");
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
    // An eighth of the rate at first.
    assert!(times[2] > times[0] + Duration::from_millis(4), "{times:?}");
}

/// Packets that the gateway sends itself are no load that a message finds.
#[test]
fn a_message_alone_finds_an_idle_link() {
    let mut bench = Bench::new(|_| {});
    let lan = Addressing { src: target(), dst: requester(), ..addressing(0) };
    let reth = Reth { virtual_address: 0, rkey: 1, dma_length: 4096 };
    bench.response_as(&lan, &packet(Opcode::WriteOnly, 0x33, 100, Ext::Reth(reth), 4096));
    const PACKETS: u32 = 500;
    for index in 1..=PACKETS {
        let opcode = match index {
            1 => Opcode::SendFirst,
            PACKETS => Opcode::SendLast,
            _ => Opcode::SendMiddle,
        };
        bench.response_as(&lan, &packet(opcode, 0x33, 100 + index, Ext::None, 4096));
    }
    let sizes = bench.gateway.classes().next().unwrap().sizes;
    let sum = |of: fn(&splice::Sent) -> u64| sizes.iter().map(of).sum::<u64>();
    assert_eq!((sum(|sent| sent.messages), sum(|sent| sent.bytes)), (2, u64::from(PACKETS + 1) * 4096));
    // The WRITE may still be under way.
    assert!(sum(|sent| sent.waiting) + sum(|sent| sent.under_way) <= 4500, "{sizes:?}");
}

/// The link takes nothing while the clock stands, so what comes waits.
#[test]
fn a_requester_is_told_to_slow_down_while_much_waits_for_the_link() {
    let told = |notify_backlog: bool| {
        let mut bench = Bench::new(|settings| {
            (settings.total_buffer, settings.notify_backlog) = (32 << 20, notify_backlog);
        });
        let lan = Addressing { src: target(), dst: requester(), ..addressing(0) };
        bench.response_as(&lan, &packet(Opcode::SendOnly, 0x33, 100, Ext::None, 8));
        let flow = bench.told.iter().find_map(|(head, _)| match head {
            Head::Request { flow, .. } => Some(*flow),
            _ => None,
        });
        let head = Head::Response { flow: flow.unwrap(), seq: 0, is_short: false };
        bench.record(&head, &acknowledge(Qpn::new(0x44), 100));
        // Bytes that had come when each notification left.
        let mut told = Vec::new();
        let mut opcode = Opcode::SendFirst;
        for index in 1..2000_u32 {
            bench.now += Duration::from_nanos(1);
            bench.sent.clear();
            bench.response_as(&lan, &packet(opcode, 0x33, 100 + index, Ext::None, 4096));
            opcode = Opcode::SendMiddle;
            let is_told = |bytes: &Vec<u8>| {
                let datagram = Datagram::parse(bytes).unwrap();
                Packet::parse(datagram.transport).unwrap().bth.opcode == Opcode::Cnp
            };
            if bench.sent.iter().any(is_told) {
                told.push(index as usize * 4096);
                // As if each was the first for long.
                bench.now += Duration::from_micros(50);
            }
        }
        let stats = bench.gateway.stats();
        assert_eq!((stats.cnps, stats.lan_marked), (told.len() as u64, 0));
        told
    };
    let bound = 8 << 20;
    let told_at = told(true);
    let first = *told_at.first().unwrap();
    assert!((bound / 8 * 5..bound / 4 * 3).contains(&first), "{first} of {bound}");
    let rising = |eighth: usize| told_at.iter().filter(|at| **at / (bound / 8) == eighth).count();
    assert!(rising(5) < rising(6) && rising(6) > 50, "{told_at:?}");
    assert_eq!(told(false), []);
}

#[test]
fn a_gateway_that_stops_waits_for_its_targets_and_tells_those_left() {
    let mut bench = Bench::new(|_| {});
    bench.request(FLOW, 0, Some(addressing(0)), &send(0x22, 100));
    bench.gateway.stop_accepting();
    assert!(!bench.gateway.is_quiet(), "the target has not answered");
    bench.response(&acknowledge(R, 100));
    bench.wait(Duration::from_millis(5));
    assert!(bench.gateway.is_quiet());
    // Half a message, acknowledged as far as it is there.
    bench.request(FLOW, 1, None, &packet(Opcode::SendFirst, 0x22, 101, Ext::None, 1024));
    bench.response(&acknowledge(R, 101));
    bench.wait(Duration::from_millis(5));
    assert!(!bench.gateway.is_quiet(), "the target waits for the rest");
    bench.told.clear();
    bench.request(FlowId(6), 0, Some(addressing(0)), &send(0x23, 100));
    assert_eq!(bench.told, [(Head::Fail { flow: FlowId(6), reason: Reason::Stopping }, Vec::new())]);
    bench.sent();
    bench.gateway.session_down(SessionEnd::Closed, bench.now);
    bench.settle();
    assert_eq!(bench.sent(), [(0x22, 102)], "what no target takes");
    assert!(!bench.gateway.has_parted(), "it may be lost");
    let refused = Aeth { syndrome: Syndrome::Nak(Nak::InvalidRequest), msn: 1 };
    bench.response(&packet(Opcode::Acknowledge, R.get(), 102, Ext::Aeth(refused), 0));
    bench.wait(Duration::from_millis(1));
    assert!(bench.gateway.has_parted());
}

/// docs/protocol.md#rule-carried-transport
#[test]
fn packets_of_connections_come_in_their_flows_alone() {
    let mut bench = Bench::new(|_| {});
    // A response would end or confirm what no flow here has asked.
    let ack = acknowledge(R, 100);
    let reserved = [&[0x1b], &ack[1..]].concat();
    let bodies = [ack, send(0x22, 100), reserved, Vec::new()];
    let (flow, addressing) = (FLOW, addressing(0));
    for (seq, body) in (0..).zip(&bodies) {
        bench.record(&Head::Datagram(addressing), body);
        bench.record(&Head::Ordered { flow, seq, addressing }, body);
    }
    assert_eq!((bench.sent.len(), bench.gateway.stats().bad_records), (0, 8));
    // XRC.
    let carried = [&[0xa4], &send(0x22, 100)[1..]].concat();
    bench.record(&Head::Datagram(addressing), &carried);
    bench.record(&Head::Ordered { flow, seq: 0, addressing }, &carried);
    assert_eq!((bench.sent.len(), bench.gateway.stats().bad_records), (2, 8));
}

/// docs/protocol.md#rule-address-check
#[test]
fn a_peer_speaks_to_hosts_of_this_site_alone() {
    let mut bench = Bench::new(|settings| settings.local = vec!["10.0.1.0/24".parse().unwrap()]);
    let carried = [&[0xa4], &send(0x22, 100)[1..]].concat();
    // The site of another peer, and nobody.
    for dst in ["10.0.2.1", "255.255.255.255", "127.0.0.1", "0.0.0.0"] {
        let addressing = Addressing { dst: dst.parse().unwrap(), ..addressing(0) };
        bench.record(&Head::Datagram(addressing), &carried);
        bench.request(FLOW, 0, Some(addressing), &send(0x22, 100));
    }
    assert_eq!((bench.sent.len(), bench.gateway.stats().bad_records), (0, 8));
    assert_eq!(bench.gateway.stats().far_flows, 0);
    bench.record(&Head::Datagram(addressing(0)), &carried);
    assert_eq!(bench.sent.len(), 1);
}

/// docs/protocol.md#rule-reply-share
#[test]
fn a_peer_that_names_unknown_flows_has_a_share_of_the_link_for_the_answers() {
    let mut bench = Bench::new(|_| {});
    let third = Addressing { src: [10, 0, 2, 1].into(), ..addressing(0) };
    for number in 0..2000 {
        bench.record(&Head::Idle { flow: FlowId(number) }, &[]);
        bench.request(FlowId(number), 0, None, &send(0x22, 100));
        bench.request(FlowId(number), 0, Some(third), &send(0x22, 100));
    }
    assert!((900..1100).contains(&bench.told.len()), "{}", bench.told.len());
    let is_reply = |(head, _): &(Head, Vec<u8>)| matches!(head, Head::Close { .. } | Head::Fail { .. });
    assert!(bench.told.iter().all(is_reply));
    bench.told.clear();
    bench.wait(Duration::from_secs(1));
    bench.record(&Head::Idle { flow: FLOW }, &[]);
    assert_eq!(bench.told.len(), 1, "who asks again is answered");
}
