//! The reference model of one direction of a connection: what the requester sent, what the target
//! said, and so what may pass.

mod prints;

use std::collections::BTreeMap;
use std::time::Instant;

use roce::wire::{Ext, Kind, Opcode, Packet, PathMtu, Psn, Reth};

use self::prints::{Covers, Print, answer_print, covers, is_answer};
pub(super) use self::prints::{fingerprint, is_poison};
use super::Broken;
use super::scenario::Op;

/// One message as posted: PSNs `start .. end`, counted from the flow's first.
#[derive(Clone, Copy, Debug)]
struct Message {
    start: u32,
    end: u32,
    /// A READ, with what it asks for.
    read: Option<Reth>,
    /// READ, atomic or FLUSH: only its response completes it.
    answered: bool,
    /// A READ's flags as it was sent.
    flags: Option<Flags>,
    /// Its requester's gateway may say that it is done as soon as it has all of it
    /// (`completion = "local"`).
    local: bool,
    /// Packets that have not come to that gateway.
    missing: u32,
}

/// Further header fields that belong to the message: solicited event, MigReq, partition.
type Flags = (bool, bool, u16);

fn flags(packet: &Packet<'_>) -> Flags {
    (packet.bth.solicited, packet.bth.migreq, packet.bth.pkey)
}

/// Returns true if a target executes it once, and answers from memory if it comes again.
pub(super) fn runs_once(packet: &Packet<'_>) -> bool {
    matches!(packet.bth.opcode.kind(), Kind::Atomic | Kind::AtomicWrite | Kind::Flush)
}

/// The fate of an atomic, or a FLUSH.
#[derive(Clone, Copy, Debug)]
struct Atomic {
    /// In which its requester first sent it.
    session: u32,
    /// The requester sent it again in a later one.
    repeated: bool,
    executed: bool,
    /// It came to its target again after both.
    recognised: bool,
    /// It was executed only after it was repeated.
    late: bool,
}

/// The fates of many atomics and FLUSHes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Atomics {
    /// Executed, each once.
    pub executed: u64,
    /// Sent again by their requesters in a later session of the gateways than at first.
    pub repeated: u64,
    /// Those of the repeated that came to a target which had executed them.
    pub recognised: u64,
    /// Those of the repeated that were executed only then.
    pub late: u64,
}

impl std::ops::AddAssign for Atomics {
    fn add_assign(&mut self, other: Self) {
        self.executed += other.executed;
        self.repeated += other.repeated;
        self.recognised += other.recognised;
        self.late += other.late;
    }
}

/// One direction of one life of a connection.
#[derive(Debug)]
pub(super) struct Flow {
    /// When its life did.
    pub(super) begun: Instant,
    base: Psn,
    mtu: PathMtu,
    messages: Vec<Message>,
    end: u32,
    /// The request packet of each PSN as it was at first, once it was sent.
    sent: Vec<Option<Print>>,
    /// Which of them have come to the requester's gateway.
    heard: Vec<bool>,
    /// The target has acknowledged everything before.
    acked: u32,
    /// The target has answered anything.
    spoke: bool,
    /// Requests from .. to have gone out to the target.
    forwarded: Option<(u32, u32)>,
    /// The last of them was a READ.
    after_read: bool,
    /// Flows the target's gateway had opened when it last emitted one of them.
    opened: u64,
    /// Fingerprints of the READ and atomic responses that the target gave, by PSN.
    answers: BTreeMap<u32, Vec<u64>>,
    /// Those that the requester's gateway passed on.
    passed: Vec<bool>,
    /// By place.
    atomics: BTreeMap<u32, Atomic>,
    /// Both programs are done with it.
    pub(super) over: bool,
}

impl Flow {
    pub(super) fn new(base: Psn, mtu: PathMtu, begun: Instant) -> Self {
        Self {
            begun,
            base,
            mtu,
            messages: Vec::new(),
            end: 0,
            sent: Vec::new(),
            heard: Vec::new(),
            acked: 0,
            spoke: false,
            forwarded: None,
            after_read: false,
            opened: 0,
            answers: BTreeMap::new(),
            passed: Vec::new(),
            atomics: BTreeMap::new(),
            over: false,
        }
    }

    /// The next message was posted; returns its index.
    pub(super) fn post(&mut self, op: Op, va: u64, rkey: u32) -> usize {
        let (answered, read) = match op {
            Op::Read(len) => (true, Some(Reth { virtual_address: va, rkey, dma_length: len })),
            Op::FetchAdd(_) | Op::CompareSwap(_) | Op::AtomicWrite(_) | Op::Flush(_) => (true, None),
            _ => (false, None),
        };
        let start = self.end;
        let span = self.mtu.psn_span(op.len());
        self.end += span;
        self.messages.push(Message {
            start,
            end: self.end,
            read,
            answered,
            flags: None,
            local: false,
            missing: span,
        });
        self.sent.resize(self.end as usize, None);
        self.heard.resize(self.end as usize, false);
        self.passed.resize(self.end as usize, false);
        self.messages.len() - 1
    }

    /// How far a PSN is from this flow's posted ones; 0: it is one of them.
    pub(super) fn farness(&self, psn: Psn) -> u32 {
        match u32::try_from(psn.distance(self.base)) {
            Ok(place) => place.saturating_sub(self.end),
            Err(_) => psn.distance(self.base).unsigned_abs(),
        }
    }

    /// Returns true for a PSN between 2^21 and 2^22 before this flow's first, or as far before its
    /// last: no request has it, and signed differences take it for one of the past.
    pub(super) fn is_long_past(&self, psn: Psn) -> bool {
        let back = -self.place(psn);
        (1 << 21..=1 << 22).contains(&back) || (1 << 21..=1 << 22).contains(&(back + i64::from(self.end)))
    }

    fn place(&self, psn: Psn) -> i64 {
        i64::from(psn.distance(self.base))
    }

    fn request_place(&self, psn: Psn) -> Result<u32, Broken> {
        u32::try_from(self.place(psn))
            .ok()
            .filter(|place| *place < self.end)
            .ok_or_else(|| ("I3", format!("a request with PSN {psn:?}, which was never posted")))
    }

    /// Which message holds a PSN.
    fn index(&self, place: u32) -> usize {
        self.messages.partition_point(|message| message.end <= place)
    }

    fn sent(&self, place: u32) -> Option<Print> {
        self.sent.get(place as usize).copied().flatten()
    }

    fn message(&self, place: u32) -> Option<&Message> {
        self.messages.get(self.index(place))
    }

    /// A request leaves the requester's NIC, in this session of the gateways or before it.
    pub(super) fn request_sent(&mut self, packet: &Packet<'_>, session: u32) -> Result<(), Broken> {
        let place = self.request_place(packet.bth.psn)?;
        if let Some(sent) = self.sent.get_mut(place as usize)
            && !sent.get_or_insert(Print::of(packet.bytes)).is_of(packet.bytes)
        {
            return Err((
                "model",
                format!("the requester sent two different packets with PSN {:?}", packet.bth.psn),
            ));
        }
        let index = self.index(place);
        if let Some(message) = self.messages.get_mut(index) {
            message.flags = Some(flags(packet));
        }
        if runs_once(packet) {
            let fresh = Atomic { session, repeated: false, executed: false, recognised: false, late: false };
            let atomic = self.atomics.entry(place).or_insert(fresh);
            // Before the first session nothing went anywhere.
            atomic.repeated |= session > atomic.session && atomic.session > 0;
        }
        Ok(())
    }

    /// An atomic has come to its target, which executed it or did not. `None`: it is none of this
    /// flow's.
    pub(super) fn atomic_arrived(
        &mut self,
        packet: &Packet<'_>,
        executed: bool,
    ) -> Option<Result<(), Broken>> {
        let place = self.request_place(packet.bth.psn).ok()?;
        let sent = self.sent(place);
        let atomic =
            self.atomics.get_mut(&place).filter(|_| sent.is_some_and(|sent| sent.is_of(packet.bytes)))?;
        if executed && atomic.executed {
            return Some(Err((
                "I2",
                format!("the atomic with PSN {:?} is executed twice: {atomic:?}", packet.bth.psn),
            )));
        }
        atomic.recognised |= atomic.repeated && atomic.executed;
        atomic.late |= atomic.repeated && executed;
        atomic.executed |= executed;
        Some(Ok(()))
    }

    pub(super) fn atomics(&self) -> Atomics {
        let count =
            |of: fn(&Atomic) -> bool| self.atomics.values().filter(|atomic| of(atomic)).count() as u64;
        Atomics {
            executed: count(|atomic| atomic.executed),
            repeated: count(|atomic| atomic.repeated),
            recognised: count(|atomic| atomic.recognised),
            late: count(|atomic| atomic.late),
        }
    }

    /// A request has come to the requester's gateway; `local`: a message that begins with it is of
    /// a class whose messages are done then.
    pub(super) fn request_heard(&mut self, packet: &Packet<'_>, local: bool) {
        let Ok(place) = self.request_place(packet.bth.psn) else { return };
        let index = self.index(place);
        let Some(message) = self.messages.get_mut(index) else { return };
        message.local |= local && place == message.start && !message.answered;
        if let Some(heard) = self.heard.get_mut(place as usize) {
            message.missing -= u32::from(!std::mem::replace(heard, true));
        }
    }

    /// A request leaves the gateway, which (with those before it) has opened so many flows, for the
    /// target's NIC.
    pub(super) fn request_emitted(
        &mut self,
        packet: &Packet<'_>,
        opened: u64,
        benign: bool,
    ) -> Result<(), Broken> {
        if is_poison(packet) {
            // What was asked for again just before its programs went is still to be answered by
            // nobody.
            let wrong = benign && !self.over;
            return if wrong {
                Err(("I7", "a target is put in error for no reason".to_owned()))
            } else {
                Ok(())
            };
        }
        let psn = packet.bth.psn;
        let place = self.request_place(psn)?;
        let Some(message) = self.message(place).copied() else { return Ok(()) };
        let first_sent = self.sent(message.start).is_some();
        let end = match message.read {
            Some(reth) => self.read_emitted(packet, place, &message, reth, first_sent)?,
            None => {
                let sent = self.sent(place);
                if !sent.is_some_and(|sent| sent.is_of(packet.bytes)) {
                    let what = if sent.is_none() { "was never sent" } else { "is not what was sent" };
                    return Err(("I3", format!("request {:?} with PSN {psn:?} {what}", packet.bth.opcode)));
                }
                place + 1
            }
        };
        // A gateway that met the requester anew, after a restart or a pause, begins with what comes
        // first, and the target sets it right.
        let renewed = std::mem::replace(&mut self.opened, opened) != opened;
        let (first, high) =
            self.forwarded.filter(|(_, high)| !renewed || place <= *high).unwrap_or((place, place));
        if place > high {
            // After a READ whose span hangs on a path MTU still unknown, what comes next tells, and
            // if what came next was lost it tells wrongly. The target refuses it, and the gateways
            // start over.
            if self.after_read {
                return Ok(());
            }
            return Err((
                "I3",
                format!("request with PSN {psn:?} goes out while {:?} is next", self.base + high),
            ));
        }
        self.forwarded = Some((first.min(place), high.max(end)));
        self.after_read = message.read.is_some();
        Ok(())
    }

    /// A READ request leaves for the target: all of what was asked, the rest, or a piece of it.
    /// Returns the place after what it asks for.
    fn read_emitted(
        &self,
        packet: &Packet<'_>,
        place: u32,
        message: &Message,
        reth: Reth,
        is_known: bool,
    ) -> Result<u32, Broken> {
        let (psn, mtu) = (packet.bth.psn, self.mtu.bytes());
        let skipped = (place - message.start).saturating_mul(mtu);
        let left = reth.dma_length.saturating_sub(skipped);
        // All that is left, or a piece of it that ends where a packet does.
        let asked = packet.ext.reth().map_or(left, |asked| asked.dma_length);
        let is_piece = asked < left && asked > 0 && asked.is_multiple_of(mtu);
        let wanted = Reth {
            virtual_address: reth.virtual_address.wrapping_add(u64::from(skipped)),
            dma_length: if is_piece { asked } else { left },
            ..reth
        };
        if packet.bth.opcode != Opcode::ReadRequest || packet.ext != Ext::Reth(wanted) || !is_known {
            return Err(("I3", format!("READ with PSN {psn:?} is {:?}, not {wanted:?}", packet.ext)));
        }
        if message.flags != Some(flags(packet)) {
            let what = format!("READ with PSN {psn:?} has {:?}, not {:?}", packet.bth, message.flags);
            return Err(("I3", what));
        }
        Ok(if is_piece { place + asked / mtu } else { message.end })
    }

    /// A response leaves the target's NIC, which by now expects this PSN, if it is not in error. An
    /// ACK of Soft-RoCE's may name another that it had in an earlier incarnation.
    pub(super) fn target_answered(&mut self, packet: &Packet<'_>, expected: Option<Psn>) {
        let Some(covers) = covers(packet) else { return };
        self.spoke = true;
        let to = self.place(packet.bth.psn) + i64::from(covers.of_own_psn || is_answer(packet));
        let to = expected.map_or(to, |expected| to.min(self.place(expected)));
        let to = u32::try_from(to).unwrap_or(0).min(self.end);
        self.acked = self.acked.max(to);
        if is_answer(packet)
            && let Ok(place) = u32::try_from(self.place(packet.bth.psn))
        {
            let print = answer_print(packet);
            let prints = self.answers.entry(place).or_default();
            if !prints.contains(&print) {
                prints.push(print);
            }
        }
    }

    /// A response leaves the gateway for the requester's NIC. If that gateway has `dropped` any for
    /// want of room in its queue, they are lost as on the LAN itself: what follows shows the NIC a
    /// gap, and it asks again.
    pub(super) fn response_emitted(&mut self, packet: &Packet<'_>, dropped: bool) -> Result<(), Broken> {
        let Some(covers) = covers(packet) else {
            return Err(("I8", format!("{:?} goes to a requester", packet.bth.opcode)));
        };
        let psn = packet.bth.psn;
        self.check_cover(&covers, packet, dropped)?;
        if !is_answer(packet) {
            return Ok(());
        }
        let place = u32::try_from(self.place(psn)).unwrap_or(u32::MAX);
        let known = self.answers.get(&place).is_some_and(|prints| prints.contains(&answer_print(packet)));
        if !known {
            return Err((
                "I3",
                format!("{:?} with PSN {psn:?} is none that the target gave", packet.bth.opcode),
            ));
        }
        if let Some(passed) = self.passed.get_mut(place as usize) {
            *passed = true;
        }
        Ok(())
    }

    /// The requester is told that everything before this packet's PSN is done, and an ACK's own.
    fn check_cover(&self, covers: &Covers, packet: &Packet<'_>, dropped: bool) -> Result<(), Broken> {
        let to = self.place(packet.bth.psn) + i64::from(covers.of_own_psn);
        let Ok(to) = u32::try_from(to) else { return Ok(()) };
        let told = || format!("{:?} {:?} with PSN {:?}", packet.bth.opcode, packet.ext, packet.bth.psn);
        if to > self.tellable() {
            let (acked, oldest) = (self.base + self.acked, self.message(self.acked));
            return Err((
                "I4",
                format!("{} although the target is at {acked:?} only, in {oldest:?}", told()),
            ));
        }
        for message in
            self.messages.iter().take_while(|message| message.start < to).filter(|message| message.answered)
        {
            let mut places = message.start..message.end.min(to);
            let passed = |place: u32| self.passed.get(place as usize).copied().unwrap_or(false);
            // What the target answered and nobody passed on is lost as on a LAN: a requester that
            // is given a later answer, or told to go back, asks again. An ACK might complete it.
            let is_lost = |place: u32| !covers.of_own_psn && self.answers.contains_key(&place);
            let answered = places.all(|place| passed(place) || is_lost(place));
            if !answered && !dropped {
                return Err((
                    "I4",
                    format!(
                        "{} goes past the READ or atomic at {:?}, not answered",
                        told(),
                        self.base + message.start
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Up to where (exclusive) the requester may be told that all is done: what the target has
    /// acknowledged, then whole messages that are done locally once the target has said its first
    /// word, and of the next one what does not complete it.
    fn tellable(&self) -> u32 {
        let mut tellable = self.acked;
        for message in self.messages.iter().skip(self.index(self.acked)) {
            if message.answered {
                break;
            }
            if !(message.local && message.missing == 0 && self.spoke) {
                return tellable.max(message.end - 1);
            }
            tellable = message.end;
        }
        tellable
    }

    /// Returns true if the target has acknowledged all of a message.
    pub(super) fn has_arrived(&self, index: usize) -> bool {
        self.messages.get(index).is_none_or(|message| message.end <= self.acked)
    }

    /// The requester's program sees a message succeed.
    pub(super) fn check_success(&self, index: usize) -> Result<(), Broken> {
        let Some(message) = self.messages.get(index) else { return Ok(()) };
        let answered = !message.answered
            || (message.start..message.end)
                .all(|place| self.passed.get(place as usize).copied().unwrap_or(false));
        if message.end > self.tellable() || !answered {
            return Err((
                "I1",
                format!("message {index} {message:?} completes while the target is at {} only", self.acked),
            ));
        }
        Ok(())
    }

    /// Returns true if the target has been given a part of a message and not the rest.
    pub(super) fn is_half_done(&self) -> bool {
        self.message(self.acked).is_some_and(|message| message.read.is_none() && self.acked > message.start)
    }

    /// Returns true if the target has acknowledged anything.
    pub(super) fn target_spoke(&self) -> bool {
        self.acked > 0
    }
}

#[cfg(test)]
mod tests {
    use roce::wire::{Aeth, AtomicAckEth, Bth, Nak, Qpn, Repr, Syndrome};

    use super::*;

    const Q: Qpn = Qpn::new(7);

    fn bytes(opcode: Opcode, psn: u32, ext: Ext, payload: &[u8]) -> Vec<u8> {
        let repr = Repr { bth: Bth::new(opcode, Q, Psn::new(psn)), ext, payload };
        let mut bytes = vec![0; repr.buffer_len()];
        let len = repr.emit(&mut bytes).unwrap();
        bytes.truncate(len);
        bytes
    }

    fn acknowledge(psn: u32, syndrome: Syndrome) -> Vec<u8> {
        bytes(Opcode::Acknowledge, psn, Ext::Aeth(Aeth { syndrome, msn: 0 }), &[])
    }

    fn packet(bytes: &[u8]) -> Packet<'_> {
        Packet::parse(bytes).unwrap()
    }

    fn rule(result: Result<(), Broken>) -> &'static str {
        result.map_or_else(|(rule, _)| rule, |()| "")
    }

    /// SEND of three packets from 100 on, an atomic, a SEND of one.
    fn flow() -> Flow {
        let mut flow = Flow::new(Psn::new(100), PathMtu::B256, Instant::now());
        flow.post(Op::Send(600, None), 0, 0);
        flow.post(Op::FetchAdd(1), 0, 0);
        flow.post(Op::Send(5, None), 0, 0);
        for (psn, opcode, len) in
            [(100, Opcode::SendFirst, 256), (101, Opcode::SendMiddle, 256), (102, Opcode::SendLast, 88)]
        {
            flow.request_sent(&packet(&bytes(opcode, psn, Ext::None, &vec![1; len])), 1).unwrap();
        }
        flow
    }

    #[test]
    fn requests_must_be_what_was_sent_in_its_order() {
        let mut flow = flow();
        let first = bytes(Opcode::SendFirst, 100, Ext::None, &[1; 256]);
        let other = bytes(Opcode::SendFirst, 100, Ext::None, &[2; 256]);
        let last = bytes(Opcode::SendLast, 102, Ext::None, &[1; 88]);
        assert_eq!(rule(flow.request_emitted(&packet(&other), 1, true)), "I3");
        assert_eq!(rule(flow.request_emitted(&packet(&first), 1, true)), "");
        assert_eq!(rule(flow.request_emitted(&packet(&last), 1, true)), "I3", "101 was left out");
        assert_eq!(rule(flow.request_emitted(&packet(&first), 1, true)), "", "again");
        let poison = bytes(Opcode::SendMiddle, 101, Ext::None, &[]);
        assert_eq!(rule(flow.request_emitted(&packet(&poison), 1, true)), "I7");
        assert_eq!(rule(flow.request_emitted(&packet(&poison), 1, false)), "");
    }

    #[test]
    fn nothing_is_acknowledged_before_the_target_did() {
        let mut flow = flow();
        let ack = |psn| acknowledge(psn, Syndrome::ACK);
        let nak = |psn| acknowledge(psn, Syndrome::Nak(Nak::RemoteOperation));
        assert_eq!(rule(flow.response_emitted(&packet(&ack(101)), false)), "", "inside the oldest");
        assert_eq!(rule(flow.response_emitted(&packet(&ack(102)), false)), "I4", "its last packet");
        assert_eq!(rule(flow.response_emitted(&packet(&nak(102)), false)), "");
        assert_eq!(
            rule(flow.response_emitted(&packet(&nak(103)), false)),
            "I4",
            "a NAK acknowledges what is before it"
        );
        assert_eq!(rule(flow.check_success(0)), "I1");
        flow.target_answered(&packet(&ack(102)), None);
        assert_eq!(rule(flow.check_success(0)), "");
        assert_eq!(rule(flow.response_emitted(&packet(&ack(102)), false)), "");
    }

    #[test]
    fn what_is_done_locally_is_told_when_the_gateway_has_it_and_the_target_spoke() {
        let mut flow = flow();
        let packets =
            [(100, Opcode::SendFirst, 256), (101, Opcode::SendMiddle, 256), (102, Opcode::SendLast, 88)]
                .map(|(psn, opcode, len)| bytes(opcode, psn, Ext::None, &vec![1; len]));
        let ack = acknowledge(102, Syndrome::ACK);
        for bytes in &packets[..2] {
            flow.request_heard(&packet(bytes), true);
        }
        flow.target_answered(&packet(&acknowledge(100, Syndrome::ACK)), None);
        assert_eq!(rule(flow.response_emitted(&packet(&ack), false)), "I4", "the last is not here");
        flow.request_heard(&packet(&packets[2]), false);
        assert_eq!(rule(flow.response_emitted(&packet(&ack), false)), "");
        assert!(!flow.has_arrived(0));
        assert_eq!(rule(flow.check_success(0)), "");
        flow.spoke = false;
        assert_eq!(rule(flow.response_emitted(&packet(&ack), false)), "I4", "not before its first word");
        flow.spoke = true;
        // Nor past the atomic, wherever the target is.
        let last = bytes(Opcode::SendOnly, 104, Ext::None, &[1; 5]);
        flow.request_heard(&packet(&last), true);
        assert_eq!(rule(flow.response_emitted(&packet(&acknowledge(104, Syndrome::ACK)), false)), "I4");
    }

    #[test]
    fn what_the_target_answered_may_be_lost_but_not_completed() {
        let mut flow = flow();
        let result = Ext::AtomicAck(Aeth { syndrome: Syndrome::ACK, msn: 2 }, AtomicAckEth(0));
        flow.target_answered(&packet(&acknowledge(102, Syndrome::ACK)), None);
        let nak = acknowledge(104, Syndrome::Nak(Nak::PsnSequence));
        flow.target_answered(&packet(&nak), None);
        assert_eq!(rule(flow.response_emitted(&packet(&nak), false)), "I4", "nobody has its result");
        flow.target_answered(&packet(&bytes(Opcode::AtomicAcknowledge, 103, result, &[])), None);
        assert_eq!(rule(flow.response_emitted(&packet(&nak), false)), "");
        let ack = acknowledge(103, Syndrome::ACK);
        assert_eq!(rule(flow.response_emitted(&packet(&ack), false)), "I4", "it would complete it");
        assert_eq!(rule(flow.check_success(1)), "I1");
    }

    #[test]
    fn an_atomic_is_executed_once() {
        let mut flow = flow();
        let reth = roce::wire::AtomicEth { virtual_address: 0, rkey: 1, swap_or_add: 7, compare: 0 };
        let atomic = bytes(Opcode::FetchAdd, 103, Ext::Atomic(reth), &[]);
        assert!(flow.atomic_arrived(&packet(&atomic), true).is_none(), "nobody sent it");
        flow.request_sent(&packet(&atomic), 1).unwrap();
        assert_eq!(rule(flow.atomic_arrived(&packet(&atomic), true).unwrap()), "");
        flow.request_sent(&packet(&atomic), 2).unwrap();
        assert_eq!(rule(flow.atomic_arrived(&packet(&atomic), false).unwrap()), "");
        assert_eq!(flow.atomics(), Atomics { executed: 1, repeated: 1, recognised: 1, late: 0 });
        assert_eq!(rule(flow.atomic_arrived(&packet(&atomic), true).unwrap()), "I2");
    }

    #[test]
    fn a_lone_request_keeps_its_address_unless_its_requester_forgets_it() {
        let to = |opcode, virtual_address| {
            let reth = Reth { virtual_address, rkey: 1, dma_length: 8 };
            match opcode {
                Opcode::AtomicWrite => bytes(opcode, 100, Ext::Reth(reth), &[5; 8]),
                _ => bytes(opcode, 100, Ext::Flush(roce::wire::Feth(1), reth), &[]),
            }
        };
        for (op, opcode) in [(Op::AtomicWrite(5), Opcode::AtomicWrite), (Op::Flush(8), Opcode::Flush)] {
            let [right, wrong, none] = [0x1000, 0x1008, 0].map(|address| to(opcode, address));
            let mut flow = Flow::new(Psn::new(100), PathMtu::B256, Instant::now());
            flow.post(op, 0x1000, 1);
            flow.request_sent(&packet(&right), 1).unwrap();
            assert_eq!(rule(flow.request_sent(&packet(&wrong), 1)), "model");
            assert_eq!(rule(flow.request_sent(&packet(&none), 1)), "", "again");
            assert_eq!(rule(flow.request_emitted(&packet(&wrong), 1, true)), "I3");
            assert!(flow.atomic_arrived(&packet(&wrong), true).is_none());
            for sent in [&right, &none] {
                assert_eq!(rule(flow.request_emitted(&packet(sent), 1, true)), "");
                assert!(flow.atomic_arrived(&packet(sent), false).is_some());
            }
        }
    }

    #[test]
    fn nothing_goes_past_an_atomic_whose_answer_was_not_passed_on() {
        let mut flow = flow();
        let answer = |value| {
            let aeth = Aeth { syndrome: Syndrome::ACK, msn: 2 };
            bytes(Opcode::AtomicAcknowledge, 103, Ext::AtomicAck(aeth, AtomicAckEth(value)), &[])
        };
        let ack = acknowledge(104, Syndrome::ACK);
        flow.target_answered(&packet(&answer(5)), None);
        flow.target_answered(&packet(&ack), None);
        assert_eq!(rule(flow.response_emitted(&packet(&ack), false)), "I4");
        assert_eq!(rule(flow.check_success(1)), "I1");
        assert_eq!(rule(flow.response_emitted(&packet(&answer(6)), false)), "I3", "another value");
        assert_eq!(rule(flow.response_emitted(&packet(&answer(5)), false)), "");
        assert_eq!(rule(flow.response_emitted(&packet(&ack), false)), "");
        assert_eq!(rule(flow.check_success(1)), "");
    }
}
