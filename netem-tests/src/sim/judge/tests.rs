//! Planted faults: whatever a gateway could do wrong, the judge finds, and it finds nothing where
//! all is well.

use roce::wire::{Aeth, AtomicAckEth, AtomicEth, Bth, Nak, Repr, RnrTimer};

use super::*;

type Bytes = Vec<u8>;
type Verdict = Result<(), Wrong>;

/// Two hosts and two connections between them; both begin at the same PSN.
struct Court {
    judge: Judge,
    base: u32,
}

/// Queue pairs of the requesters and of their targets.
const A1: u32 = 17;
const A2: u32 = 18;
const B1: u32 = 33;
const B2: u32 = 34;

fn ip(host: u8) -> IpAddr {
    IpAddr::from([10, 0, host, 1])
}

fn place(qpn: u32) -> Place {
    (ip(u8::from(qpn >= B1)), Qpn::new(qpn))
}

fn bytes(opcode: Opcode, to: u32, psn: Psn, ext: Ext, payload: &[u8]) -> Bytes {
    let repr = Repr { bth: Bth::new(opcode, Qpn::new(to), psn), ext, payload };
    let mut bytes = vec![0; repr.buffer_len()];
    let len = repr.emit(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

fn reth(len: u32) -> Reth {
    Reth { virtual_address: 0x1000, rkey: 7, dma_length: len }
}

fn atomic(add: u64) -> Ext {
    Ext::Atomic(AtomicEth { virtual_address: 0x2000, rkey: 7, swap_or_add: add, compare: 0 })
}

fn aeth(syndrome: Syndrome) -> Ext {
    Ext::Aeth(Aeth { syndrome, msn: 0 })
}

impl Court {
    /// Requester A1 has sent all its work to B1, A2 to B2, with other bytes; B1 has run and
    /// acknowledged the first message.
    fn new(base: u32) -> Self {
        let mut court = Self { judge: Judge::default(), base };
        court.connect(1, A1, B1);
        court.connect(2, A2, B2);
        for (from, fill) in [(A1, 1), (A2, 2)] {
            for request in court.work(from, fill) {
                court.send(from, &request);
            }
        }
        for request in &court.work(A1, 1)[..3] {
            court.run(B1, request).unwrap();
        }
        court.answer(B1, &court.ack(A1, 2));
        court
    }

    fn psn(&self, place: u32) -> Psn {
        Psn::new(self.base) + place
    }

    fn connect(&mut self, number: u64, one: u32, other: u32) {
        let psn = [self.psn(0); 2];
        let bond = Bond { number, ends: [place(one), place(other)], psn, mtu: PathMtu::B256 };
        (0..2).for_each(|end| self.judge.connected(bond, end));
    }

    /// WRITE of three packets, SEND, FetchAdd, READ of two packets, SEND.
    fn work(&self, from: u32, fill: u8) -> Vec<Bytes> {
        let to = from + B1 - A1;
        let at = |place| self.psn(place);
        vec![
            bytes(Opcode::WriteFirst, to, at(0), Ext::Reth(reth(600)), &[fill; 256]),
            bytes(Opcode::WriteMiddle, to, at(1), Ext::None, &[fill; 256]),
            bytes(Opcode::WriteLast, to, at(2), Ext::None, &[fill; 88]),
            bytes(Opcode::SendOnly, to, at(3), Ext::None, &[fill; 8]),
            bytes(Opcode::FetchAdd, to, at(4), atomic(fill.into()), &[]),
            bytes(Opcode::ReadRequest, to, at(5), Ext::Reth(reth(512)), &[]),
            bytes(Opcode::SendOnly, to, at(7), Ext::None, &[fill; 9]),
        ]
    }

    fn ack(&self, to: u32, place: u32) -> Bytes {
        self.acknowledge(to, place, Syndrome::ACK)
    }

    fn acknowledge(&self, to: u32, place: u32, syndrome: Syndrome) -> Bytes {
        bytes(Opcode::Acknowledge, to, self.psn(place), aeth(syndrome), &[])
    }

    fn result(&self, to: u32, value: u64) -> Bytes {
        let ext = Ext::AtomicAck(Aeth { syndrome: Syndrome::ACK, msn: 3 }, AtomicAckEth(value));
        bytes(Opcode::AtomicAcknowledge, to, self.psn(4), ext, &[])
    }

    /// READ responses at places 5 and 6.
    fn data(&self, to: u32, fill: u8) -> [Bytes; 2] {
        let ext = aeth(Syndrome::ACK);
        [(5, Opcode::ReadResponseFirst), (6, Opcode::ReadResponseLast)]
            .map(|(place, opcode)| bytes(opcode, to, self.psn(place), ext, &vec![fill + place as u8; 256]))
    }

    fn send(&mut self, from: u32, packet: &Bytes) {
        self.judge.leaves(place(from), &Packet::parse(packet).unwrap());
    }

    fn answer(&mut self, from: u32, packet: &Bytes) {
        self.judge.leaves(place(from), &Packet::parse(packet).unwrap());
    }

    fn run(&mut self, at: u32, packet: &Bytes) -> Verdict {
        self.judge.executed(place(at), &Packet::parse(packet).unwrap())
    }

    /// The requester hears this from its partner's host.
    fn hear(&mut self, at: u32, packet: &Bytes) -> Verdict {
        self.judge.arrives(place(at), ip(u8::from(at < B1)), &Packet::parse(packet).unwrap())
    }

    fn done(&mut self, at: u32) -> Verdict {
        self.judge.completed(place(at))
    }

    /// All of a requester's work runs and is answered at the target's NIC; nobody has heard.
    fn run_all(&mut self, from: u32, to: u32, fill: u8, already: usize) {
        for request in &self.work(from, fill)[already..] {
            self.run(to, request).unwrap();
        }
        self.answer(to, &self.ack(from, 3));
        self.answer(to, &self.result(from, 40));
        for data in self.data(from, fill) {
            self.answer(to, &data);
        }
        self.answer(to, &self.ack(from, 7));
    }
}

#[test]
fn what_is_well_is_found_to_be_well() {
    for base in [0, 0xff_fffd] {
        let mut court = Court::new(base);
        // Inside a message, wherever its target is.
        court.hear(A2, &court.ack(A2, 1)).unwrap();
        court.hear(A1, &court.ack(A1, 2)).unwrap();
        court.done(A1).unwrap();
        court.run_all(A1, B1, 1, 3);
        court.hear(A1, &court.ack(A1, 3)).unwrap();
        court.hear(A1, &court.result(A1, 40)).unwrap();
        for data in court.data(A1, 1) {
            court.hear(A1, &data).unwrap();
        }
        // A NAK and an old ACK, which say no more than is true; and one of what was never sent,
        // which no NIC takes.
        court.hear(A1, &court.acknowledge(A1, 7, Syndrome::Nak(Nak::PsnSequence))).unwrap();
        court.hear(A1, &court.ack(A1, 0)).unwrap();
        court.hear(A1, &court.ack(A1, 8)).unwrap();
        court.hear(A1, &court.ack(A1, 7)).unwrap();
        (1..5).for_each(|_| court.done(A1).unwrap());
        assert!(court.judge.is_answered(1) && !court.judge.is_answered(2));
        assert_eq!(court.judge.checked, 5);
        // Everything again in the next incarnation, with the same numbers and PSNs.
        court.connect(3, A1, B1);
        court.work(A1, 5).iter().for_each(|request| court.send(A1, request));
        court.run_all(A1, B1, 5, 0);
        court.hear(A1, &court.ack(A1, 7)).unwrap();
        (0..5).for_each(|_| court.done(A1).unwrap());
    }
}

#[test]
fn what_completes_early_is_exempt_and_nothing_else_is() {
    let mut court = Court::new(0);
    let request = court.work(A2, 2)[0].clone();
    court.judge.completes_early(ip(0), ip(1), &Packet::parse(&request).unwrap());
    court.hear(A2, &court.ack(A2, 2)).unwrap();
    court.done(A2).unwrap();
    let wrong = court.hear(A2, &court.ack(A2, 3)).unwrap_err();
    assert_eq!((wrong.rule, wrong.bond, wrong.ends), ("told", 2, 1));
    // Once is enough.
    court.hear(A2, &court.ack(A2, 3)).unwrap();
}

#[test]
fn changed_payloads_may_run_in_any_version_that_was_sent() {
    let mut court = Court::new(0);
    let versions = [9, 10].map(|fill| court.work(A1, fill)[3].clone());
    court.send(A1, &versions[0]);
    court.run(B1, &versions[0]).unwrap();
    let mut court = Court::new(0);
    court.send(A1, &versions[0]);
    assert_eq!(court.run(B1, &versions[1]).unwrap_err().rule, "ran");
}

/// A fault, the rule that finds it, and how it is planted.
type Planted = (&'static str, &'static str, fn(&mut Court) -> Verdict);

const PLANTED: [Planted; 28] = [
    ("the ACK of another queue pair's target", "told", |court| court.hear(A2, &court.ack(A2, 2))),
    ("the ACK of the incarnation before", "told", |court| {
        court.connect(3, A1, B1);
        court.work(A1, 1).iter().for_each(|request| court.send(A1, request));
        court.hear(A1, &court.ack(A1, 2))
    }),
    ("an ACK too far", "told", |court| court.hear(A1, &court.ack(A1, 3))),
    ("an ACK much too far, across READ and atomic", "told", |court| court.hear(A1, &court.ack(A1, 7))),
    ("a sequence NAK too far", "told", |court| {
        court.hear(A1, &court.acknowledge(A1, 4, Syndrome::Nak(Nak::PsnSequence)))
    }),
    ("an RNR NAK too far", "told", |court| {
        court.hear(A1, &court.acknowledge(A1, 4, Syndrome::Rnr { timer: RnrTimer::new(8) }))
    }),
    ("a fatal NAK too far", "told", |court| {
        court.hear(A1, &court.acknowledge(A1, 4, Syndrome::Nak(Nak::RemoteOperation)))
    }),
    ("a READ response before what precedes it", "told", |court| court.hear(A1, &court.data(A1, 1)[0])),
    ("an atomic's result before what precedes it", "told", |court| court.hear(A1, &court.result(A1, 40))),
    ("an ACK before its target gave it", "told", |court| {
        let verdict = court.hear(A1, &court.ack(A1, 3));
        court.answer(B1, &court.ack(A1, 3));
        verdict
    }),
    ("an ACK that the requester itself gave, as a target", "told", |court| {
        let from = bytes(Opcode::SendOnly, A1, court.psn(0), Ext::None, &[3; 8]);
        court.send(B1, &from);
        court.run(A1, &from).unwrap();
        court.answer(A1, &court.ack(B1, 3));
        court.hear(A1, &court.ack(A1, 3))
    }),
    ("the ACK of a target that has another partner now", "told", |court| {
        court.connect(3, A1, B2);
        court.connect(4, A2, B1);
        for from in [A1, A2] {
            court.work(from, 6).iter().for_each(|request| court.send(from, request));
        }
        court.answer(B1, &court.ack(A2, 2));
        court.hear(A1, &court.ack(A1, 2))
    }),
    ("a target's ACK of what it had in the incarnation before", "told", |court| {
        court.run_all(A1, B1, 1, 3);
        court.connect(3, A1, B1);
        court.work(A1, 6).iter().for_each(|request| court.send(A1, request));
        court.answer(B1, &court.ack(A1, 3));
        court.hear(A1, &court.ack(A1, 3))
    }),
    ("an atomic's result that is stale", "answer", |court| {
        court.run_all(A1, B1, 1, 3);
        court.hear(A1, &court.result(A1, 39))
    }),
    ("the result that a journal kept of the incarnation before", "answer", |court| {
        court.run_all(A1, B1, 1, 3);
        court.connect(3, A1, B1);
        court.work(A1, 1).iter().for_each(|request| court.send(A1, request));
        court.work(A1, 1)[..4].iter().for_each(|request| court.run(B1, request).unwrap());
        court.answer(B1, &court.ack(A1, 3));
        court.hear(A1, &court.result(A1, 40))
    }),
    ("another queue pair's data", "answer", |court| {
        court.run_all(A1, B1, 1, 3);
        court.run_all(A2, B2, 2, 0);
        court.hear(A1, &court.data(A1, 2)[0])
    }),
    ("a READ's data at the wrong place", "answer", |court| {
        court.run_all(A1, B1, 1, 3);
        let moved = bytes(Opcode::ReadResponseLast, A1, court.psn(6), aeth(Syndrome::ACK), &[6; 256]);
        court.hear(A1, &moved)
    }),
    ("READ data of the incarnation before", "answer", |court| {
        court.run_all(A1, B1, 1, 3);
        court.connect(3, A1, B1);
        court.work(A1, 1).iter().for_each(|request| court.send(A1, request));
        court.work(A1, 1)[..5].iter().for_each(|request| court.run(B1, request).unwrap());
        court.answer(B1, &court.ack(A1, 4));
        court.hear(A1, &court.data(A1, 1)[0])
    }),
    ("a completion without an ACK", "done", |court| {
        court.done(A1).unwrap();
        court.done(A1)
    }),
    ("a completion of what was never sent", "done", |court| {
        court.run_all(A1, B1, 1, 3);
        (0..5).for_each(|_| court.done(A1).unwrap());
        court.done(A1)
    }),
    ("an atomic that runs twice", "twice", |court| {
        court.run_all(A1, B1, 1, 3);
        court.run(B1, &court.work(A1, 1)[4])
    }),
    ("a WRITE that runs twice", "twice", |court| court.run(B1, &court.work(A1, 1)[2])),
    ("a request that runs before its turn", "twice", |court| court.run(B1, &court.work(A1, 1)[4])),
    ("a request that runs at another target", "ran", |court| court.run(B2, &court.work(A1, 1)[0])),
    ("a request of the incarnation before, which was all answered", "ran", |court| {
        court.run_all(A1, B1, 1, 3);
        court.connect(3, A1, B1);
        court.run(B1, &court.work(A1, 1)[0])
    }),
    ("a request of the incarnation before, which was reset with requests under way", OUTLIVED, |court| {
        court.connect(3, A1, B1);
        court.run(B1, &court.work(A1, 1)[0])
    }),
    ("a request whose bytes are others", "ran", |court| {
        let other = bytes(Opcode::SendOnly, B1, court.psn(3), Ext::None, &[1, 1, 1, 1, 1, 1, 1, 0]);
        court.run(B1, &other)
    }),
    ("a READ of another range", "ran", |court| {
        court.run(B1, &court.work(A1, 1)[3]).unwrap();
        court.run(B1, &court.work(A1, 1)[4]).unwrap();
        let other = Reth { virtual_address: 0x1100, ..reth(512) };
        court.run(B1, &bytes(Opcode::ReadRequest, B1, court.psn(5), Ext::Reth(other), &[]))
    }),
];

#[test]
fn planted_faults_are_found() {
    for (what, rule, plant) in PLANTED {
        for base in [0, 0xff_fffd] {
            let verdict = plant(&mut Court::new(base));
            assert_eq!(verdict.as_ref().map_err(|wrong| wrong.rule), Err(rule), "{what}: {verdict:?}");
        }
    }
}
