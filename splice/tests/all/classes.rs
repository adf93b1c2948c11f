//! Classes share the link, and none waits for another's backlog.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::sites::packet;
use config::Policy;
use reliability::stream::{Sender, SenderConfig, StreamId, classify};
use roce::ip::{Addressing, Datagram, emit};
use roce::wire::{Aeth, Ext, Opcode, Packet, Syndrome};
use splice::record::{FlowId, Head};
use splice::{Arrival, Ecn, Gateway, LaneId, Settings};

const MAX_PACKET: usize = 8900;
const POLICY: &str = "
[[class]]
name = \"bulk\"
match = { dscp = [10] }
scheme = \"sr\"
[[class]]
name = \"rest\"
scheme = \"sr\"
";
/// Each class's, and its flow's target queue pair.
const DSCP: [u8; 2] = [10, 0];
const QPNS: [u32; 2] = [0x22, 0x23];

struct Bench {
    now: Instant,
    gateway: Gateway,
    peer: Sender,
    next_psn: [u32; 2],
}

impl Bench {
    /// Two flows of either class whose targets have spoken.
    fn new() -> Self {
        let now = Instant::now();
        let settings = Settings {
            policy: Policy::parse(Path::new("policy.toml"), POLICY).unwrap().into(),
            flow_buffer: Some(256 << 20),
            ..Settings::new(vec!["10.0.1.0/24".parse().unwrap()], 200_000_000, MAX_PACKET)
        };
        let mut gateway = Gateway::new(settings, now);
        gateway.session_up(Duration::from_millis(10), MAX_PACKET, 1, &[], now);
        let peer = Sender::new(SenderConfig::new(StreamId(0), MAX_PACKET), now);
        let mut bench = Self { now, gateway, peer, next_psn: [0; 2] };
        for class in 0..2 {
            bench.request(class, Opcode::SendOnly);
            let aeth = Aeth { syndrome: Syndrome::ACK, msn: 1 };
            let ack = packet(Opcode::Acknowledge, 0x44 + class as u32, 0, Ext::Aeth(aeth), 0);
            let head = Head::Response { flow: FlowId(class as u32), seq: 0, is_short: false };
            bench.peer.push(&[head.emit().as_ref(), &ack], now).unwrap();
        }
        let mut out = [0; MAX_PACKET];
        let mut number = 0;
        while let Some(transmit) = bench.peer.poll_transmit(now, &mut out) {
            let arrival = Arrival { lane: LaneId(0), number, bytes: transmit.len, ecn: Ecn::NotEct };
            bench.gateway.handle_wan(out.get(..transmit.len).unwrap(), arrival, now);
            number += 1;
        }
        bench.heard();
        bench
    }

    /// A packet of the class's requester.
    fn request(&mut self, class: usize, opcode: Opcode) {
        let [psn, qpn] = [self.next_psn.get(class), QPNS.get(class)].map(|value| value.copied().unwrap_or(0));
        let tclass = DSCP.get(class).unwrap() << 2;
        *self.next_psn.get_mut(class).unwrap() += 1;
        let src_port = 0xc000 + class as u16;
        let addressing =
            Addressing { src: [10, 0, 0, 1].into(), dst: [10, 0, 1, 1].into(), src_port, tclass, ttl: 64 };
        let mut bytes = [0; 5000];
        let len = emit(&addressing, 1, &packet(opcode, qpn, psn, Ext::None, 4096), &mut bytes).unwrap();
        self.gateway.handle_lan(&Datagram::parse(bytes.get(..len).unwrap()).unwrap(), self.now);
    }

    /// Queue pairs that something was said to.
    fn heard(&mut self) -> Vec<u32> {
        let mut out = [0; 5000];
        let mut heard = Vec::new();
        while let Some(len) = self.gateway.poll_lan(self.now, &mut out) {
            let datagram = Datagram::parse(out.get(..len).unwrap()).unwrap();
            heard.push(Packet::parse(datagram.transport).unwrap().bth.dest_qp.get());
        }
        heard
    }

    /// Lets a millisecond pass; returns the bytes sent of each class.
    fn drain(&mut self) -> [usize; 2] {
        let mut sent = [0; 2];
        let mut out = [0; MAX_PACKET];
        self.now += Duration::from_millis(1);
        while let Some(len) = self.gateway.poll_wan(self.now, &mut out) {
            let (_, stream) = classify(out.get(..len).unwrap()).unwrap();
            *sent.get_mut(usize::from(stream.0) / 2).unwrap() += len;
        }
        sent
    }

    fn backlogs(&self) -> Vec<usize> {
        self.gateway.classes().map(|class| class.backlog).collect()
    }
}

#[test]
fn no_class_starves_another_and_none_leaves_the_link_idle() {
    let mut bench = Bench::new();
    for class in 0..2 {
        bench.request(class, Opcode::SendFirst);
        (0..500).for_each(|_| bench.request(class, Opcode::SendMiddle));
    }
    let mut sent = [0; 2];
    while bench.backlogs().iter().all(|backlog| *backlog > 0) {
        let [one, two] = bench.drain();
        sent = [sent[0] + one, sent[1] + two];
    }
    assert!(sent[0].abs_diff(sent[1]) <= 4 * MAX_PACKET, "{sent:?}");
    // One alone has all of it: 25 kB in a millisecond.
    (0..500).for_each(|_| bench.request(1, Opcode::SendMiddle));
    let alone: usize = (0..20).map(|_| bench.drain()[1]).sum();
    assert!((450_000..550_000).contains(&alone), "{alone}");
}

#[test]
fn a_class_that_has_drained_goes_on_whatever_the_others_hold() {
    let mut bench = Bench::new();
    // Class 1 is told to wait first, class 0 last, with nearly twice the backlog.
    for (class, packets) in [(1, 1050), (0, 1800)] {
        bench.request(class, Opcode::SendFirst);
        (0..packets).for_each(|_| bench.request(class, Opcode::SendMiddle));
    }
    bench.heard();
    let half = 4 << 20;
    assert!(bench.backlogs().iter().all(|backlog| *backlog > half), "{:?}", bench.backlogs());
    while bench.backlogs().last().is_some_and(|backlog| *backlog >= half) {
        assert_eq!(bench.heard(), [0; 0]);
        bench.drain();
    }
    assert!(bench.backlogs().first().is_some_and(|backlog| *backlog > half));
    assert_eq!(bench.heard(), [0x45], "its requester may send on");
}
