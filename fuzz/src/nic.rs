//! One direction of an RC connection as NICs do it, and the judge between them: a requester must
//! not complete what its responder has not acknowledged.

use std::collections::VecDeque;

use roce::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Ext, Kind, Nak, Opcode, Packet, Psn, Qpn, Repr, Reth, RnrTimer,
    Syndrome,
};

/// The path MTU of every connection.
pub const MTU: u32 = 256;
/// Messages outstanding, at most.
const MOST_MESSAGES: usize = 16;

/// The operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Needs a receive at the target.
    Send,
    /// Needs none.
    Write,
    /// Is answered with data.
    Read,
    /// Is answered with a value, and must run once.
    FetchAdd,
}

/// A message that is not complete.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    what: What,
    first: Psn,
    /// Packets, or responses of a READ.
    span: u32,
}

impl Message {
    fn end(&self) -> Psn {
        self.first + self.span
    }

    fn holds(&self, psn: Psn) -> bool {
        psn.is_within(self.first, self.span)
    }

    fn is_answered(&self) -> bool {
        matches!(self.what, What::Read | What::FetchAdd)
    }
}

/// The requester's half.
#[derive(Debug)]
pub struct Requester {
    /// Its queue pair and that of its target.
    qpns: [Qpn; 2],
    outstanding: VecDeque<Message>,
    /// Everything before is complete, or acknowledged within the first message.
    una: Psn,
    /// After the last message.
    end: Psn,
    /// The PSN sent next.
    cursor: Psn,
    /// Its queue pair is in error.
    pub is_broken: bool,
    /// Messages completed.
    pub completed: u64,
    /// Results of atomics, in order.
    pub values: VecDeque<u64>,
}

impl Requester {
    /// A queue pair that begins at this PSN.
    #[must_use]
    pub fn new(own: Qpn, target: Qpn, first: Psn) -> Self {
        Self {
            qpns: [own, target],
            outstanding: VecDeque::new(),
            una: first,
            end: first,
            cursor: first,
            is_broken: false,
            completed: 0,
            values: VecDeque::new(),
        }
    }

    /// Returns whether everything is complete.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// Posts a message, if there is room.
    pub fn post(&mut self, what: What, packets: u32) {
        if self.is_broken || self.outstanding.len() >= MOST_MESSAGES {
            return;
        }
        let span = if what == What::FetchAdd { 1 } else { packets.max(1) };
        self.outstanding.push_back(Message { what, first: self.end, span });
        self.end += span;
    }

    /// Begins again with the oldest that is not acknowledged.
    pub fn go_back(&mut self) {
        self.cursor = self.una;
    }

    /// Returns the next packet to send.
    pub fn transmit(&mut self) -> Option<Vec<u8>> {
        if self.is_broken || !self.cursor.is_before(self.end) {
            return None;
        }
        let message = *self.message_at(self.cursor)?;
        let packet = self.packet_at(self.cursor)?;
        self.cursor = if message.is_answered() { message.end() } else { self.cursor.next() };
        Some(packet)
    }

    fn message_at(&self, psn: Psn) -> Option<&Message> {
        self.outstanding.iter().find(|message| message.holds(psn))
    }

    /// Returns the packet with this PSN, if it belongs to what is outstanding.
    #[must_use]
    pub fn packet_at(&self, psn: Psn) -> Option<Vec<u8>> {
        let message = self.message_at(psn)?;
        let index = psn.distance(message.first).unsigned_abs();
        let (starts, ends) = (index == 0, index + 1 == message.span);
        let reth = |length| Reth {
            virtual_address: u64::from(message.first.get()) << 12,
            rkey: 7,
            dma_length: length,
        };
        let (opcode, ext) = match (message.what, starts, ends) {
            (What::Send, true, true) => (Opcode::SendOnly, Ext::None),
            (What::Send, true, false) => (Opcode::SendFirst, Ext::None),
            (What::Send, false, false) => (Opcode::SendMiddle, Ext::None),
            (What::Send, false, true) => (Opcode::SendLast, Ext::None),
            (What::Write, true, true) => (Opcode::WriteOnly, Ext::Reth(reth(message.span * MTU))),
            (What::Write, true, false) => (Opcode::WriteFirst, Ext::Reth(reth(message.span * MTU))),
            (What::Write, false, false) => (Opcode::WriteMiddle, Ext::None),
            (What::Write, false, true) => (Opcode::WriteLast, Ext::None),
            (What::Read, _, _) => {
                let whole = reth((message.span - index) * MTU);
                let virtual_address = whole.virtual_address + u64::from(index * MTU);
                (Opcode::ReadRequest, Ext::Reth(Reth { virtual_address, ..whole }))
            }
            (What::FetchAdd, _, _) => {
                let virtual_address = u64::from(message.first.get()) << 12;
                (
                    Opcode::FetchAdd,
                    Ext::Atomic(AtomicEth { virtual_address, rkey: 7, swap_or_add: 1, compare: 0 }),
                )
            }
        };
        let mut bth = Bth::new(opcode, self.qpns[1], psn);
        bth.ack_req = ends && !message.is_answered();
        let payload = if message.is_answered() { Vec::new() } else { pattern(self.qpns[1], psn).to_vec() };
        Some(emit(bth, ext, &payload))
    }

    /// Takes a response. `responder` is its target, and judges.
    pub fn handle(&mut self, packet: &Packet<'_>, responder: &Responder) {
        assert_eq!(packet.bth.dest_qp, self.qpns[0], "a response for another queue pair");
        if self.is_broken || self.is_idle() {
            return;
        }
        let psn = packet.bth.psn;
        match (packet.bth.opcode.kind(), packet.ext) {
            (Kind::ReadResponse, _) => self.take_answer(packet, What::Read, responder),
            (Kind::AtomicAcknowledge, Ext::AtomicAck(_, value)) => {
                if self.take_answer_at(psn, What::FetchAdd, responder) {
                    self.values.push_back(value.0);
                }
            }
            (Kind::Acknowledge, Ext::Aeth(aeth)) => {
                if psn.is_before(self.una) || !psn.is_before(self.end) {
                    return;
                }
                match aeth.syndrome {
                    Syndrome::Ack { .. } => {
                        self.acknowledge(psn.next(), responder);
                    }
                    Syndrome::Rnr { .. } | Syndrome::Nak(Nak::PsnSequence) => {
                        self.acknowledge(psn, responder);
                        self.go_back();
                    }
                    Syndrome::Nak(_) | Syndrome::Reserved(_) => {
                        if self.acknowledge(psn, responder) {
                            self.is_broken = true;
                        }
                    }
                }
            }
            _ => panic!("not a response: {packet:?}"),
        }
    }

    fn take_answer(&mut self, packet: &Packet<'_>, what: What, responder: &Responder) {
        let psn = packet.bth.psn;
        if self.take_answer_at(psn, what, responder) {
            assert_eq!(packet.payload, &pattern(self.qpns[1], psn)[..], "data of a READ at {psn}");
        }
    }

    /// The oldest message is answered at this PSN. The answer acknowledges all before.
    fn take_answer_at(&mut self, psn: Psn, what: What, responder: &Responder) -> bool {
        if psn.is_before(self.una) || !psn.is_before(self.end) || !self.acknowledge(psn, responder) {
            return false;
        }
        let is_next = self.outstanding.front().is_some_and(|oldest| oldest.what == what) && psn == self.una;
        if is_next {
            self.una = psn.next();
            self.complete(responder);
        }
        is_next
    }

    /// Everything before `to` is acknowledged, up to a READ or atomic without its answer. Returns
    /// whether there is none.
    fn acknowledge(&mut self, to: Psn, responder: &Responder) -> bool {
        while self.una.is_before(to) {
            let Some(oldest) = self.outstanding.front() else { break };
            if oldest.is_answered() {
                return false;
            }
            let end = oldest.end();
            self.una = if end.is_after(to) { to } else { end };
            self.complete(responder);
        }
        if self.cursor.is_before(self.una) {
            self.go_back();
        }
        true
    }

    /// The judge.
    fn complete(&mut self, responder: &Responder) {
        if let Some(oldest) = self.outstanding.front().filter(|oldest| oldest.end() == self.una) {
            assert!(
                !responder.acknowledged.is_before(oldest.end()),
                "{oldest:?} complete, the target has acknowledged up to {}",
                responder.acknowledged
            );
            self.completed += 1;
            self.outstanding.pop_front();
        }
        if self.cursor.is_before(self.una) {
            self.go_back();
        }
    }
}

/// How a responder answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// ACKs as it is asked to.
    Prompt,
    /// ACKs only duplicates and what it must.
    Lazy,
    /// No receive is posted.
    NotReady,
    /// Refuses the next request for good.
    Refusing,
    /// Says nothing.
    Deaf,
}

/// The target's half.
#[derive(Debug)]
pub struct Responder {
    /// Its queue pair and that of its requester.
    qpns: [Qpn; 2],
    expected: Psn,
    /// Everything before it has acknowledged, in whatever way.
    pub acknowledged: Psn,
    first: Psn,
    msn: u32,
    nak_sent: bool,
    /// How it answers.
    pub mood: Mood,
    /// Its queue pair is in error.
    pub is_broken: bool,
    /// Atomics run, by PSN.
    atomics: Vec<Psn>,
    /// Packets for the LAN.
    pub out: VecDeque<Vec<u8>>,
}

impl Responder {
    /// A queue pair that expects this PSN.
    #[must_use]
    pub fn new(own: Qpn, requester: Qpn, first: Psn) -> Self {
        Self {
            qpns: [own, requester],
            expected: first,
            acknowledged: first,
            first,
            msn: 0,
            nak_sent: false,
            mood: Mood::Prompt,
            is_broken: false,
            atomics: Vec::new(),
            out: VecDeque::new(),
        }
    }

    /// Says what it has, unasked.
    pub fn tell(&mut self) {
        if !self.is_broken && self.expected.is_after(self.first) {
            self.say(self.expected.prev(), Syndrome::ACK);
        }
    }

    /// Takes a request packet. `requester` is the one that it must come from.
    pub fn handle(&mut self, packet: &Packet<'_>, requester: &Requester) {
        assert_eq!(packet.bth.dest_qp, self.qpns[0], "a request for another queue pair");
        if self.is_broken || self.mood == Mood::Deaf {
            return;
        }
        let psn = packet.bth.psn;
        match psn.distance(self.expected) {
            0 => self.take(packet, requester),
            1.. => {
                if !std::mem::replace(&mut self.nak_sent, true) {
                    self.say(self.expected, Syndrome::Nak(Nak::PsnSequence));
                }
            }
            _ => self.repeat(packet),
        }
    }

    fn take(&mut self, packet: &Packet<'_>, requester: &Requester) {
        let (psn, opcode) = (packet.bth.psn, packet.bth.opcode);
        self.nak_sent = false;
        let is_poison = packet.payload.is_empty() && opcode.kind() != Kind::Read && opcode.has_payload();
        if is_poison || self.mood == Mood::Refusing {
            self.say(psn, Syndrome::Nak(Nak::RemoteOperation));
            self.is_broken = true;
            return;
        }
        if opcode.needs_receive() && self.mood == Mood::NotReady {
            self.say(psn, Syndrome::Rnr { timer: RnrTimer::new(1) });
            return;
        }
        match opcode.kind() {
            Kind::Read => self.answer_read(packet),
            Kind::Atomic => {
                self.atomics.push(psn);
                self.msn += 1;
                self.expected = psn.next();
                self.answer_atomic(psn, self.atomics.len() as u64 - 1);
            }
            _ => {
                let mut sent = requester.packet_at(psn).unwrap_or_else(|| panic!("nobody sent {psn}"));
                let asks = packet.bth.ack_req;
                Bth::set_ack_req(sent.first_chunk_mut().expect("a header"), asks);
                assert!(packet.bytes == sent, "not what the requester sent at {psn}");
                self.expected = psn.next();
                self.msn += u32::from(opcode.ends_message());
                if asks && self.mood != Mood::Lazy {
                    self.say(psn, Syndrome::ACK);
                }
            }
        }
    }

    fn answer_read(&mut self, packet: &Packet<'_>) {
        let (psn, reth) = (packet.bth.psn, packet.ext.reth().expect("a READ"));
        let span = reth.dma_length.div_ceil(MTU).max(1);
        self.msn += 1;
        self.expected = psn + span;
        self.send_data(psn, span);
    }

    fn send_data(&mut self, psn: Psn, span: u32) {
        for at in 0..span {
            let opcode = match (at == 0, at + 1 == span) {
                (true, true) => Opcode::ReadResponseOnly,
                (true, false) => Opcode::ReadResponseFirst,
                (false, false) => Opcode::ReadResponseMiddle,
                (false, true) => Opcode::ReadResponseLast,
            };
            let ext = match opcode {
                Opcode::ReadResponseMiddle => Ext::None,
                _ => Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: self.msn }),
            };
            let bth = Bth::new(opcode, self.qpns[1], psn + at);
            self.out.push_back(emit(bth, ext, &pattern(self.qpns[0], psn + at)));
        }
        self.has_acknowledged(psn + span);
    }

    fn answer_atomic(&mut self, psn: Psn, value: u64) {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: self.msn };
        let bth = Bth::new(Opcode::AtomicAcknowledge, self.qpns[1], psn);
        self.out.push_back(emit(bth, Ext::AtomicAck(aeth, AtomicAckEth(value)), &[]));
        self.has_acknowledged(psn.next());
    }

    fn repeat(&mut self, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        match packet.bth.opcode.kind() {
            Kind::Read => {
                let length = packet.ext.reth().expect("a READ").dma_length;
                let span = length.div_ceil(MTU).max(1);
                if !(psn + span).is_after(self.expected) {
                    self.send_data(psn, span);
                }
            }
            Kind::Atomic => {
                if let Some(value) = self.atomics.iter().position(|other| *other == psn) {
                    self.answer_atomic(psn, value as u64);
                }
            }
            _ => self.tell(),
        }
    }

    fn say(&mut self, psn: Psn, syndrome: Syndrome) {
        let aeth = Aeth { syndrome, msn: self.msn };
        let bth = Bth::new(Opcode::Acknowledge, self.qpns[1], psn);
        self.out.push_back(emit(bth, Ext::Aeth(aeth), &[]));
        self.has_acknowledged(if syndrome.is_ack() { psn.next() } else { psn });
    }

    fn has_acknowledged(&mut self, to: Psn) {
        if to.is_after(self.acknowledged) {
            self.acknowledged = to;
        }
    }
}

/// The payload of a queue pair's packet with this PSN, both ways.
#[must_use]
pub fn pattern(qpn: Qpn, psn: Psn) -> [u8; MTU as usize] {
    let [_, _, a, b] = psn.get().to_be_bytes();
    let mut payload = [a ^ b; MTU as usize];
    payload[..8].copy_from_slice(&(u64::from(qpn.get()) << 24 | u64::from(psn.get())).to_be_bytes());
    payload
}

/// A packet from the BTH to the padding.
#[must_use]
pub fn emit(bth: Bth, ext: Ext, payload: &[u8]) -> Vec<u8> {
    let repr = Repr { bth, ext, payload };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut bytes).expect("headers that fit");
    bytes
}
