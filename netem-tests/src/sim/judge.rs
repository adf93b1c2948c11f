//! An independent judge: holds what requesters are told against what their targets' NICs
//! acknowledged.
//!
//! It sees every packet that leaves or reaches a NIC, and knows from the world which queue pairs
//! are partners in which incarnation. Ports mean nothing to it, and it shares no code with the
//! gateways or with the model in `flow.rs`.
//!
//! # Rules
//! | name | what must hold |
//! | --- | --- |
//! | `told` | a response confirms no message end that its target's NIC had not acknowledged to this queue pair in this incarnation |
//! | `done` | a work request succeeds only after that |
//! | `answer` | a READ or atomic response is one that the target's NIC gave for this PSN in this incarnation |
//! | `ran` | a NIC executes only what its partner sent it in this incarnation |
//! | `twice` | a NIC executes no request twice, and none out of order |
//!
//! ACKs inside a message are exempt: they complete nothing. So are messages of a class with
//! `completion = "local"`, which the requester's gateway may confirm as soon as it has them: see
//! [`Judge::completes_early`].

#![expect(clippy::indexing_slicing, reason = "ends are 0 and 1, messages are searched for")]

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use roce::wire::{BTH_LEN, Ext, Kind, Opcode, Packet, PathMtu, Psn, Qpn, Reth, Syndrome};

/// A queue pair.
pub(super) type Place = (IpAddr, Qpn);

/// One incarnation of a connection: two queue pairs that were connected to each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bond {
    /// Differs from that of every other incarnation.
    pub(super) number: u64,
    pub(super) ends: [Place; 2],
    /// First PSN of each end's requests.
    pub(super) psn: [Psn; 2],
    pub(super) mtu: PathMtu,
}

/// A rule that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// Name in the module's table.
    pub(super) rule: &'static str,
    /// Incarnation in which it happened.
    pub(super) bond: u64,
    /// Message ends that were confirmed falsely.
    pub(super) ends: u64,
    pub(super) what: String,
}

/// Everything that NICs said and heard. Memory grows with what was sent: it is for worlds that end.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// Incarnation and end of each connected queue pair.
    live: BTreeMap<Place, (u64, usize)>,
    bonds: BTreeMap<u64, Connection>,
    /// Incarnations by requester's address and target, for [`Judge::completes_early`].
    ways: BTreeMap<(IpAddr, Place), Vec<(u64, usize)>>,
    /// Message ends checked.
    pub(super) checked: u64,
}

/// The rule that is broken by a request of an incarnation that was reset with requests under way.
/// It comes as late as gateways try, or as the link delays it, and plain RC takes it as well.
pub(super) const OUTLIVED: &str = "outlived";

#[derive(Debug)]
struct Connection {
    bond: Bond,
    /// Requests of each end.
    ways: [Way; 2],
}

/// One message as its requester first sent it. Places count from the first PSN and do not wrap.
#[derive(Clone, Copy, Debug)]
struct Message {
    start: u64,
    /// One past its last PSN; `None` until that was sent.
    end: Option<u64>,
    read: Option<Reth>,
    /// Need not be acknowledged: completes early, or its fault is known.
    exempt: bool,
}

/// Requests of one end in one incarnation.
#[derive(Debug, Default)]
struct Way {
    messages: Vec<Message>,
    /// One past the last place sent.
    sent: u64,
    /// All versions of the packet at each place.
    prints: Vec<Vec<u64>>,
    /// The target's NIC has executed and acknowledged everything before.
    given: u64,
    /// READ and atomic responses that the target's NIC gave, by place.
    answers: BTreeMap<u64, Vec<u64>>,
    /// Next place to be executed.
    next: u64,
    /// Work requests that succeeded.
    done: usize,
    /// Messages whose ends were checked.
    told: usize,
}

impl Judge {
    /// One end of a connection is connected. Whatever its queue pair was before, it is no longer.
    pub(super) fn connected(&mut self, bond: Bond, end: usize) {
        self.live.insert(bond.ends[end], (bond.number, end));
        self.bonds.entry(bond.number).or_insert_with(|| Connection { bond, ways: Default::default() });
        let way = self.ways.entry((bond.ends[end].0, bond.ends[1 - end])).or_default();
        if !way.contains(&(bond.number, end)) {
            way.push((bond.number, end));
        }
    }

    /// A queue pair is reset or in error: it hears nothing.
    pub(super) fn reset(&mut self, place: Place) {
        self.live.remove(&place);
    }

    /// The incarnation that a queue pair is in.
    pub(super) fn incarnation(&self, place: Place) -> Option<u64> {
        self.live.get(&place).map(|(number, _)| *number)
    }

    /// A packet leaves the NIC of a queue pair. Returns whether it is a request that was sent
    /// before.
    pub(super) fn leaves(&mut self, from: Place, packet: &Packet<'_>) -> bool {
        let Some((number, end)) = self.live.get(&from).copied() else { return false };
        let Some(Connection { bond, ways }) = self.bonds.get_mut(&number) else { return false };
        if packet.bth.opcode.is_request() {
            return ways[end].request(packet, bond.psn[end], bond.mtu);
        }
        ways[1 - end].acknowledge(packet, bond.psn[1 - end]);
        false
    }

    /// A response has come to the NIC of a queue pair that takes it.
    pub(super) fn arrives(&mut self, at: Place, from: IpAddr, packet: &Packet<'_>) -> Result<(), Wrong> {
        let Some((number, end)) = self.live.get(&at).copied() else { return Ok(()) };
        let Some(Connection { bond, ways }) = self.bonds.get_mut(&number) else { return Ok(()) };
        if packet.bth.opcode.is_request() || from != bond.ends[1 - end].0 {
            return Ok(());
        }
        let way = &mut ways[end];
        let told = way.told;
        let result = way.hear(packet, bond.psn[end]);
        self.checked += (way.told - told) as u64;
        result.map_err(|(rule, ends, what)| Wrong {
            rule,
            bond: number,
            ends,
            what: describe(bond, end, &what),
        })
    }

    /// A queue pair's NIC has executed a request.
    pub(super) fn executed(&mut self, at: Place, packet: &Packet<'_>) -> Result<(), Wrong> {
        let Some((number, end)) = self.live.get(&at).copied() else { return Ok(()) };
        let Some(Connection { bond, ways }) = self.bonds.get_mut(&number) else { return Ok(()) };
        let result = ways[1 - end].execute(packet, bond.psn[1 - end], bond.mtu);
        let Err((rule, what)) = result else { return Ok(()) };
        let (what, from) = (describe(bond, 1 - end, &what), bond.ends[1 - end].0);
        let is_old = rule == "ran" && self.has_outlived(number, (from, at), packet);
        let rule = if is_old { OUTLIVED } else { rule };
        Err(Wrong { rule, bond: number, ends: 0, what })
    }

    /// Returns whether this request is another incarnation's of the same two hosts, which was reset
    /// before its target had acknowledged all.
    fn has_outlived(&self, number: u64, way: (IpAddr, Place), packet: &Packet<'_>) -> bool {
        let ways = self.ways.get(&way).into_iter().flatten().filter(|(other, _)| *other != number);
        let print = request_print(packet);
        ways.filter_map(|(other, end)| Some(&self.bonds.get(other)?.ways[*end]))
            .any(|way| way.sent > way.given && way.prints.iter().any(|prints| prints.contains(&print)))
    }

    /// The next work request of a queue pair succeeds.
    pub(super) fn completed(&mut self, at: Place) -> Result<(), Wrong> {
        let Some((number, end)) = self.live.get(&at).copied() else { return Ok(()) };
        let Some(Connection { bond, ways }) = self.bonds.get_mut(&number) else { return Ok(()) };
        let way = &mut ways[end];
        let index = way.done;
        way.done += 1;
        let given = way.given;
        let Some(message) = way.messages.get_mut(index) else {
            let what = describe(bond, end, "a work request succeeds that was never sent");
            return Err(Wrong { rule: "done", bond: number, ends: 1, what });
        };
        if message.exempt || message.end.is_some_and(|end| end <= given) {
            return Ok(());
        }
        message.exempt = true;
        let what = format!("work request {index} {message:?} succeeds, its target is at {given}");
        Err(Wrong { rule: "done", bond: number, ends: 1, what: describe(bond, end, &what) })
    }

    /// A request has come to its requester's gateway, whose policy says that its message completes
    /// as soon as the gateway has it. The requester's number is not in the packet: every
    /// incarnation is meant whose message begins there.
    pub(super) fn completes_early(&mut self, from: IpAddr, to: IpAddr, packet: &Packet<'_>) {
        let ways = self.ways.get(&(from, (to, packet.bth.dest_qp))).into_iter().flatten();
        for (number, end) in ways {
            let Some(Connection { bond, ways }) = self.bonds.get_mut(number) else { continue };
            let way = &mut ways[*end];
            let Some(place) = way.place(packet.bth.psn, bond.psn[*end]) else { continue };
            if let Ok(index) = way.messages.binary_search_by_key(&place, |message| message.start) {
                way.messages[index].exempt = true;
            }
        }
    }

    /// Returns true if every message that either end sent in an incarnation was acknowledged by its
    /// target.
    pub(super) fn is_answered(&self, number: u64) -> bool {
        let ways = self.bonds.get(&number).map(|connection| &connection.ways);
        ways.is_none_or(|ways| ways.iter().all(|way| way.sent <= way.given))
    }
}

fn describe(bond: &Bond, requester: usize, what: &str) -> String {
    let [own, peer] = [requester, 1 - requester].map(|end| (bond.ends[end].0, bond.ends[end].1.get()));
    format!("incarnation {:#x}, requests of {own:?} to {peer:?}: {what}", bond.number)
}

impl Way {
    /// The place of a PSN among those sent, if it is one: the nearest to the last.
    fn place(&self, psn: Psn, base: Psn) -> Option<u64> {
        let last = base + u32::try_from(self.sent & 0xff_ffff).unwrap_or(0);
        let place = i64::try_from(self.sent).ok()? + i64::from(psn.distance(last));
        u64::try_from(place).ok()
    }

    /// The requester's NIC sends a request. Returns whether it had sent it before.
    fn request(&mut self, packet: &Packet<'_>, base: Psn, mtu: PathMtu) -> bool {
        let Some(place) = self.place(packet.bth.psn, base) else { return false };
        let again = place < self.sent;
        let opcode = packet.bth.opcode;
        let span = match (opcode, packet.ext.reth()) {
            (Opcode::ReadRequest, Some(reth)) => u64::from(mtu.psn_span(reth.dma_length)),
            _ => 1,
        };
        if place >= self.sent {
            self.sent = place + span;
            let read = packet.ext.reth().copied().filter(|_| opcode == Opcode::ReadRequest);
            if opcode.starts_message() {
                self.messages.push(Message { start: place, end: None, read, exempt: false });
            }
            if let Some(message) = self.messages.last_mut().filter(|_| opcode.ends_message()) {
                message.end = Some(place + span);
            }
        }
        let index = usize::try_from(place).unwrap_or(usize::MAX);
        if self.prints.len() <= index {
            self.prints.resize(usize::try_from(self.sent).unwrap_or(usize::MAX), Vec::new());
        }
        let print = request_print(packet);
        if let Some(prints) = self.prints.get_mut(index).filter(|prints| !prints.contains(&print)) {
            prints.push(print);
        }
        again
    }

    /// The target's NIC answers.
    fn acknowledge(&mut self, packet: &Packet<'_>, base: Psn) {
        let (Some(place), Some(covers)) = (self.place(packet.bth.psn, base), covers(packet)) else { return };
        // An ACK of Soft-RoCE's may name what it had in an earlier incarnation.
        let to = (place + u64::from(covers != Covers::Before)).min(self.next);
        self.given = self.given.max(to);
        if covers == Covers::Answer {
            let print = answer_print(packet);
            let prints = self.answers.entry(place).or_default();
            if !prints.contains(&print) {
                prints.push(print);
            }
        }
    }

    /// The requester's NIC hears an answer.
    fn hear(&mut self, packet: &Packet<'_>, base: Psn) -> Result<(), (&'static str, u64, String)> {
        let (Some(place), Some(covers)) = (self.place(packet.bth.psn, base), covers(packet)) else {
            return Ok(());
        };
        // Not of this incarnation's requests: the NIC drops it.
        if place >= self.sent {
            return Ok(());
        }
        let to = place + u64::from(covers == Covers::Own);
        let (given, mut wrong) = (self.given, 0);
        while let Some(message) = self.messages.get_mut(self.told)
            && message.end.is_some_and(|end| end <= to)
        {
            self.told += 1;
            if message.end.is_some_and(|end| end > given) && !std::mem::replace(&mut message.exempt, true) {
                wrong += 1;
            }
        }
        let what = || format!("{:?} {:?} at place {place}", packet.bth.opcode, packet.ext);
        if wrong > 0 {
            return Err(("told", wrong, format!("{}, the target is at {given}", what())));
        }
        if covers == Covers::Answer
            && !self.answers.get(&place).is_some_and(|all| all.contains(&answer_print(packet)))
        {
            let ends = self.messages.iter().any(|message| message.end == Some(place + 1));
            return Err(("answer", u64::from(ends), format!("{}, which the target never gave", what())));
        }
        Ok(())
    }

    /// The target's NIC executes a request.
    fn execute(
        &mut self,
        packet: &Packet<'_>,
        base: Psn,
        mtu: PathMtu,
    ) -> Result<(), (&'static str, String)> {
        let at = i64::from(packet.bth.psn.distance(base + u32::try_from(self.next & 0xff_ffff).unwrap_or(0)));
        let what = || format!("{:?} {:?} with PSN {}", packet.bth.opcode, packet.ext, packet.bth.psn.get());
        if at != 0 {
            return Err(("twice", format!("{} runs, place {} is next", what(), self.next)));
        }
        let place = self.next;
        let read = packet.ext.reth().filter(|_| packet.bth.opcode == Opcode::ReadRequest);
        let was_sent = match read {
            Some(asked) => self.messages.iter().any(|message| message.asks(place, asked, mtu)),
            None => {
                let index = usize::try_from(place).unwrap_or(usize::MAX);
                self.prints.get(index).is_some_and(|prints| prints.contains(&request_print(packet)))
            }
        };
        self.next += read.map_or(1, |reth| u64::from(mtu.psn_span(reth.dma_length)));
        if was_sent {
            Ok(())
        } else {
            Err(("ran", format!("{} runs, which its requester did not send", what())))
        }
    }
}

impl Message {
    /// Returns true if this READ, or a part of it from this place on, is what is asked for.
    fn asks(&self, place: u64, asked: &Reth, mtu: PathMtu) -> bool {
        let (Some(reth), Some(end)) = (self.read, self.end) else { return false };
        let Some(skipped) = place.checked_sub(self.start).filter(|_| place < end) else { return false };
        let bytes = skipped * u64::from(mtu.bytes());
        let left = u64::from(reth.dma_length).saturating_sub(bytes);
        asked.rkey == reth.rkey
            && asked.virtual_address == reth.virtual_address.wrapping_add(bytes)
            && u64::from(asked.dma_length) <= left
    }
}

/// The effect of a response on its own PSN. It always acknowledges everything before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Covers {
    /// NAK, RNR NAK: nothing.
    Before,
    /// ACK: done.
    Own,
    /// READ and atomic responses: this is the result.
    Answer,
}

fn covers(packet: &Packet<'_>) -> Option<Covers> {
    match (packet.bth.opcode.kind(), packet.ext) {
        (Kind::ReadResponse | Kind::AtomicAcknowledge, _) => Some(Covers::Answer),
        (Kind::Acknowledge, Ext::Aeth(aeth)) => match aeth.syndrome {
            Syndrome::Ack { .. } => Some(Covers::Own),
            Syndrome::Rnr { .. } | Syndrome::Nak(_) => Some(Covers::Before),
            Syndrome::Reserved(_) => None,
        },
        _ => None,
    }
}

/// A request, without what the network and gateways may change (ECN, AckReq) and a FetchAdd's
/// meaningless comparand.
fn request_print(packet: &Packet<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let bth = packet.bth;
    (bth.opcode.to_u8(), bth.psn.get(), bth.solicited, bth.pad).hash(&mut hasher);
    let rest = packet.bytes.get(BTH_LEN..).unwrap_or_default();
    let used = if bth.opcode == Opcode::FetchAdd { COMPARAND } else { rest.len() };
    rest.get(..used).hash(&mut hasher);
    hasher.finish()
}

/// Where an AtomicETH's comparand begins.
const COMPARAND: usize = 20;

/// The result that a READ or atomic response carries. Which packet of a READ is the first depends
/// on where it was resumed.
fn answer_print(packet: &Packet<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Ext::AtomicAck(_, value) = packet.ext {
        value.0.hash(&mut hasher);
    }
    packet.payload.hash(&mut hasher);
    hasher.finish()
}
