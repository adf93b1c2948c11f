//! Which streams messages take, that their order survives it, and what a change of policy does to a
//! flow in the middle of it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Policy;
use reliability::stream::{Kind, StreamId, classify};
use roce::ip::{Addressing, Datagram};
use roce::wire::{Aeth, Bth, Deth, Ext, Opcode, Packet, Psn, Qpn, Repr, Reth, Syndrome};
use splice::{Arrival, Ecn, Gateway, LaneId, Settings};

const MTU: usize = 256;
const REQUESTER: Qpn = Qpn::new(0x11);
const TARGET: Qpn = Qpn::new(0x22);
const MS: Duration = Duration::from_millis(1);

fn policy(classes: &[(&str, &str, &str)]) -> Policy {
    let text: String = classes
        .iter()
        .map(|(name, matches, keys)| {
            let matches =
                if matches.is_empty() { String::new() } else { format!("match = {{ {matches} }}\n") };
            format!("[[class]]\nname = \"{name}\"\n{matches}{keys}\n")
        })
        .collect();
    Policy::parse(Path::new("policy.toml"), &text).unwrap_or_else(|invalid| panic!("{invalid}"))
}

const SR: &str = "scheme = \"sr\"";

/// Up to 1 KiB, and all else.
fn by_size() -> Policy {
    policy(&[("small", "size = { at_most = \"1 KiB\" }", SR), ("large", "", SR)])
}

fn emit(bth: Bth, ext: Ext, payload: &[u8]) -> Vec<u8> {
    let repr = Repr { bth, ext, payload };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut bytes).unwrap();
    bytes
}

/// The gateways of both sites, and the hosts' packets made by hand.
struct Duo {
    /// The requester's, the target's.
    gateways: [Gateway; 2],
    now: Instant,
    /// The requester's next PSN, and its queue pair and that of its target.
    psn: u32,
    qpns: [Qpn; 2],
    /// WAN packets of these streams, from the requester's gateway, wait.
    hold: Vec<u16>,
    held: Vec<(Arrival, Vec<u8>)>,
    /// Numbers of the next WAN packets of either gateway.
    numbers: [u64; 2],
    /// From the gateways to the requester, to the target.
    emitted: [Vec<Vec<u8>>; 2],
}

impl Duo {
    fn new(policy: &Policy) -> Self {
        Self::at_rate(policy, 1_000_000_000)
    }

    fn at_rate(policy: &Policy, rate: u64) -> Self {
        let now = Instant::now();
        let gateway = |remote: &str| {
            let settings = Settings {
                policy: policy.clone().into(),
                flow_buffer: Some(64 << 20),
                ..Settings::new(vec![remote.parse().unwrap()], rate, 1400)
            };
            let mut gateway = Gateway::new(settings, now);
            gateway.session_up(MS, 1400, 1, &[], now);
            gateway
        };
        Self {
            gateways: [gateway("10.0.1.0/24"), gateway("10.0.0.0/24")],
            now,
            psn: 100,
            qpns: [REQUESTER, TARGET],
            hold: Vec::new(),
            held: Vec::new(),
            numbers: [0; 2],
            emitted: Default::default(),
        }
    }

    /// A packet of a host at a site enters its gateway.
    fn lan(&mut self, site: usize, transport: &[u8]) {
        let hosts = ["10.0.0.1", "10.0.1.1"].map(|host| host.parse().unwrap());
        let addressing =
            Addressing { src: hosts[site], dst: hosts[1 - site], src_port: 0xc123, tclass: 0, ttl: 64 };
        self.gateways[site].handle_lan(&Datagram { addressing, transport }, self.now);
    }

    /// Lets packets pass for a while.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut out = vec![0; 10_000];
        while self.now < end {
            for site in 0..2 {
                self.gateways[site].handle_timeout(self.now);
                while let Some(len) = self.gateways[site].poll_lan(self.now, &mut out) {
                    // IPv4, UDP, and the checksum behind.
                    self.emitted[site].push(out[28..len - 4].to_vec());
                }
                while let Some(len) = self.gateways[site].poll_wan(self.now, &mut out) {
                    let packet = &out[..len];
                    let (kind, StreamId(stream)) = classify(packet).unwrap();
                    let bytes = self.gateways[site].wire_bytes(len);
                    let arrival =
                        Arrival { lane: LaneId(0), number: self.numbers[site], bytes, ecn: Ecn::NotEct };
                    self.numbers[site] += 1;
                    if site == 0 && kind != Kind::Report && self.hold.contains(&stream) {
                        self.held.push((arrival, packet.to_vec()));
                    } else {
                        self.gateways[1 - site].handle_wan(packet, arrival, self.now);
                    }
                }
            }
            self.now += MS / 10;
        }
    }

    /// Delivers what was held back.
    fn release(&mut self) {
        self.hold.clear();
        for (arrival, packet) in std::mem::take(&mut self.held) {
            self.gateways[1].handle_wan(&packet, arrival, self.now);
        }
    }

    /// One request packet.
    fn request(&mut self, opcode: Opcode, ext: Ext, payload: usize) {
        let bth =
            Bth { ack_req: opcode.ends_message(), ..Bth::new(opcode, self.qpns[1], Psn::new(self.psn)) };
        self.lan(0, &emit(bth, ext, &vec![self.psn as u8; payload]));
        self.psn += 1;
    }

    /// A message in packets of the path MTU.
    fn message(&mut self, opcodes: [Opcode; 4], reth: Option<u32>, len: usize) {
        let packets = len.div_ceil(MTU).max(1);
        for at in 0..packets {
            let index = match (at, packets - at) {
                (0, 1) => 3,
                (0, _) => 0,
                (_, 1) => 2,
                _ => 1,
            };
            let ext = reth.filter(|_| at == 0).map_or(Ext::None, reth_of);
            self.request(opcodes[index], ext, (len - at * MTU).min(MTU));
        }
    }

    fn write(&mut self, len: usize) {
        let opcodes = [Opcode::WriteFirst, Opcode::WriteMiddle, Opcode::WriteLast, Opcode::WriteOnly];
        self.message(opcodes, Some(len as u32), len);
    }

    fn send(&mut self, len: usize) {
        self.message([Opcode::SendFirst, Opcode::SendMiddle, Opcode::SendLast, Opcode::SendOnly], None, len);
    }

    /// The target acknowledges, and has counted one message for each packet.
    fn acknowledge(&mut self, psn: u32) {
        let bth = Bth::new(Opcode::Acknowledge, self.qpns[0], Psn::new(psn));
        self.lan(1, &emit(bth, Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: psn }), &[]));
    }

    /// The target answers a READ.
    fn answer(&mut self, psn: u32, len: usize) {
        let packets = len.div_ceil(MTU);
        for at in 0..packets {
            let opcode = match (at, packets - at) {
                (0, 1) => Opcode::ReadResponseOnly,
                (0, _) => Opcode::ReadResponseFirst,
                (_, 1) => Opcode::ReadResponseLast,
                _ => Opcode::ReadResponseMiddle,
            };
            let ext = match opcode {
                Opcode::ReadResponseMiddle => Ext::None,
                _ => Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 1 }),
            };
            let bth = Bth::new(opcode, self.qpns[0], Psn::new(psn + at as u32));
            self.lan(1, &emit(bth, ext, &vec![1; (len - at * MTU).min(MTU)]));
        }
    }

    /// Records pushed so far, of each class of a gateway: prompt, bulk.
    fn records(&self, site: usize) -> Vec<[u64; 2]> {
        self.gateways[site].classes().map(|class| class.sent.map(|sent| sent.records)).collect()
    }

    /// PSNs of what a gateway has emitted on its LAN since asked last.
    fn psns(&mut self, site: usize) -> Vec<u32> {
        let packets = std::mem::take(&mut self.emitted[site]);
        packets.iter().map(|bytes| Packet::parse(bytes).unwrap().bth.psn.get()).collect()
    }
}

fn reth_of(dma_length: u32) -> Ext {
    Ext::Reth(Reth { virtual_address: 0x1000, rkey: 7, dma_length })
}

#[test]
fn each_message_takes_the_class_of_its_size() {
    let mut duo = Duo::new(&by_size());
    duo.write(700);
    assert_eq!(duo.records(0), [[0, 3], [0, 0]], "a small WRITE");
    duo.write(1025);
    assert_eq!(duo.records(0), [[0, 3], [0, 5]], "a large one, from its first packet on");
    duo.send(1500);
    assert_eq!(duo.records(0), [[0, 7], [0, 7]], "a SEND is small until it is not");
    duo.send(1024);
    assert_eq!(duo.records(0), [[0, 11], [0, 7]], "and the next one is by itself");
    duo.request(Opcode::ReadRequest, reth_of(1 << 20), 0);
    assert_eq!(duo.records(0), [[0, 11], [0, 8]], "a READ is as large as what it asks for");
    duo.run(10 * MS);
    let before: Vec<u32> = (100..duo.psn).collect();
    // The last one takes 4096 PSNs, and what it answers is not known yet.
    assert_eq!(duo.psns(1), before);
}

#[test]
fn responses_take_the_class_of_what_they_answer() {
    let mut duo = Duo::new(&by_size());
    duo.write(10);
    duo.request(Opcode::ReadRequest, reth_of(600), 0);
    duo.psn += 2;
    duo.request(Opcode::ReadRequest, reth_of(2000), 0);
    duo.run(10 * MS);
    duo.acknowledge(100);
    assert_eq!(duo.records(1), [[1, 0], [0, 0]], "an ACK has no length");
    duo.answer(101, 600);
    assert_eq!(duo.records(1), [[1, 3], [0, 0]]);
    duo.run(10 * MS);
    duo.answer(104, 2000);
    assert_eq!(duo.records(1), [[1, 3], [0, 8]], "all of a READ's responses, also the last, short one");
    duo.run(10 * MS);
    assert_eq!(duo.psns(0), (101..112).collect::<Vec<_>>(), "the first of them acknowledges the WRITE");
}

#[test]
fn messages_of_other_classes_wait_for_one_held_up_and_no_order_is_lost() {
    let mut duo = Duo::new(&by_size());
    duo.hold = vec![3];
    duo.send(100);
    duo.write(3000);
    for _ in 0..50 {
        duo.send(10);
    }
    duo.run(20 * MS);
    assert_eq!(duo.psns(1), [100], "only what was before");
    duo.release();
    duo.run(10 * MS);
    assert_eq!(duo.psns(1), (101..163).collect::<Vec<_>>());
}

#[test]
fn a_policy_changes_in_the_middle_of_a_message() {
    let mut duo = Duo::new(&by_size());
    let reth = reth_of(5 * 256);
    duo.request(Opcode::WriteFirst, reth, 256);
    duo.request(Opcode::WriteMiddle, Ext::None, 256);
    assert_eq!(duo.records(0), [[0, 0], [0, 2]]);
    // What is on its way of the old class is late.
    duo.hold = vec![3];
    duo.run(MS);
    let moved = policy(&[
        ("paired", "qp = [0x22], size = { at_least = \"1 KiB\" }", "scheme = \"mds\"\nk = 2\nm = 1"),
        ("small", "size = { at_most = \"1 KiB\" }", SR),
        ("other", "", SR),
    ]);
    duo.gateways[0].set_policy(Arc::new(moved), duo.now).unwrap();
    assert_eq!(duo.gateways[0].stats().draining_streams, 1);
    duo.request(Opcode::WriteMiddle, Ext::None, 256);
    duo.request(Opcode::WriteMiddle, Ext::None, 256);
    duo.request(Opcode::WriteLast, Ext::None, 256);
    duo.send(10);
    assert_eq!(duo.records(0), [[0, 3], [0, 1], [0, 0]], "the rest of the message, and a new one");
    duo.run(5 * MS);
    assert_eq!(duo.psns(1), [] as [u32; 0]);
    duo.release();
    duo.run(100 * MS);
    assert_eq!(duo.psns(1)[..6], [100, 101, 102, 103, 104, 105]);
    assert_eq!(duo.gateways[0].stats().draining_streams, 0);
    // The target's gateway has the old policy all the time.
    duo.acknowledge(105);
    duo.run(10 * MS);
    let acknowledged = duo.psns(0);
    assert!(acknowledged.contains(&105), "{acknowledged:?}");
    assert_eq!(duo.gateways[0].policy().classes()[0].name, "paired");
}

#[test]
fn what_is_not_terminated_is_judged_by_the_packet() {
    let mut duo = Duo::new(&policy(&[
        ("tiny", "qp = [0x22], size = { at_most = \"100 B\" }", SR),
        ("small", "size = { at_most = \"1 KiB\" }", SR),
        ("default", "", SR),
    ]));
    let datagram = |qp: Qpn, len: usize| {
        let deth = Ext::Deth(Deth { qkey: 1, src_qp: REQUESTER });
        emit(Bth::new(Opcode::UdSendOnly, qp, Psn::new(0)), deth, &vec![0; len])
    };
    duo.lan(0, &datagram(TARGET, 100));
    assert_eq!(duo.records(0), [[0, 1], [0, 0], [0, 0]]);
    duo.lan(0, &datagram(Qpn::new(0x23), 100));
    duo.lan(0, &datagram(TARGET, 101));
    assert_eq!(duo.records(0), [[0, 1], [0, 2], [0, 0]]);
    duo.lan(0, &datagram(TARGET, 1025));
    // A UC packet is no message, and an unknown transport may be anything.
    duo.lan(0, &emit(Bth::new(Opcode::UcSendOnly, TARGET, Psn::new(0)), Ext::None, &[0; 4]));
    let mut unknown = emit(Bth::new(Opcode::UcSendOnly, TARGET, Psn::new(0)), Ext::None, &[0; 4]);
    unknown[0] = 0xa4;
    duo.lan(0, &unknown);
    assert_eq!(duo.records(0), [[0, 1], [0, 2], [0, 3]]);
}

#[test]
fn a_flow_held_back_goes_on_when_its_class_gets_other_streams() {
    // At this rate and with two classes a backlog is 8 MiB, and above half of it nothing is
    // acknowledged inside a message.
    let before = policy(&[("a", "qp = [0x22]", SR), ("b", "", SR)]);
    let mut duo = Duo::at_rate(&before, 10_000_000);
    // All but what keeps requesters waiting, which lies long before.
    let told = |duo: &mut Duo| duo.psns(0).into_iter().filter(|psn| *psn < 1 << 22).collect::<Vec<_>>();
    for qpns in [[0x11, 0x22], [0x13, 0x24]] {
        duo.qpns = qpns.map(Qpn::new);
        duo.send(10);
        duo.run(5 * MS);
        duo.acknowledge(duo.psn - 1);
        duo.run(5 * MS);
        assert_eq!(told(&mut duo), [duo.psn - 1]);
        duo.request(Opcode::WriteFirst, reth_of(7 << 20), 256);
        for _ in 0..18_000 {
            duo.request(Opcode::WriteMiddle, Ext::None, 256);
        }
        // What was at rest is acknowledged inside messages once the target has spoken.
        duo.run(5 * MS);
        duo.acknowledge(101);
        duo.run(5 * MS);
    }
    assert_eq!(told(&mut duo), [] as [u32; 0], "neither is acknowledged");
    assert!(duo.gateways[0].classes().all(|class| class.backlog > 4 << 20));
    // The first flow gets a new class, the second one's is the first now.
    let after = policy(&[("b", "qp = [0x24]", SR), ("new", "", SR)]);
    duo.gateways[0].set_policy(Arc::new(after), duo.now).unwrap();
    duo.run(MS);
    let first = 101 + 18_000;
    assert_eq!(told(&mut duo), [first], "only the first goes on");
    assert!(duo.gateways[0].stats().draining_bytes > 4 << 20);
}
