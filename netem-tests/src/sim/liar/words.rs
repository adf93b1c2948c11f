//! Lies about flows that there are: records that nearly fit, and some that do not.

#![expect(clippy::indexing_slicing, reason = "indices are drawn below the lengths, or are in a header")]

use std::net::IpAddr;

use rand::{Rng, RngExt};
use roce::ip::Addressing;
use roce::wire::Opcode;
use splice::record::{FlowId, Head, Opening, Reason};

use super::overheard::Flow;
use super::{Liar, Lie, Reach};

/// Payload that a packet of the WAN holds.
const MOST_PAYLOAD: usize = 1024;
/// Syndromes: acknowledged, not ready, missing, invalid, no access, failed, reserved, silent.
const SYNDROMES: [u8; 10] = [0x1f, 0x1f, 0x1f, 0x20, 0x21, 0x60, 0x61, 0x62, 0x63, 0x7f];
const RESPONSES: [Opcode; 6] = [
    Opcode::Acknowledge,
    Opcode::AtomicAcknowledge,
    Opcode::ReadResponseFirst,
    Opcode::ReadResponseMiddle,
    Opcode::ReadResponseLast,
    Opcode::ReadResponseOnly,
];

impl Liar {
    /// A word on a flow, and its body.
    pub(super) fn word(&mut self, lie: Lie) -> (Head, Vec<u8>) {
        match lie {
            Lie::Request => self.next_request(),
            Lie::Response => self.next_response(),
            Lie::Carried => self.carried(),
            Lie::Member => self.member(),
            Lie::End => {
                let (flow, known) = self.victim();
                let reason = Reason::ALL[self.rng.random_range(0..Reason::ALL.len())];
                let requests = self.near(known.requests);
                let heads = [
                    Head::Fail { flow, reason },
                    Head::Abort { flow, reason },
                    Head::Close { flow, requests },
                ];
                (heads[self.rng.random_range(0..heads.len())], Vec::new())
            }
            _ => {
                let (flow, known) = self.victim();
                let count = self.near(1);
                let (seq, opens) = (self.near(known.requests), Opening::Short);
                let rested = Head::Request { flow, seq, replay: true, rested: true, opens };
                let heads = [
                    Head::Retry { flow },
                    Head::Suspend { flow, count },
                    Head::Suspend { flow, count: self.sequence as u32 },
                    Head::Idle { flow },
                    rested,
                ];
                (heads[self.rng.random_range(0..heads.len())], vec![0; 8])
            }
        }
    }

    /// One that asks for an answer, and names a flow that nobody knows, or opens one of a host
    /// behind it or behind another peer.
    pub(super) fn word_to_answer(&mut self) -> (Head, Vec<u8>) {
        let flow = FlowId(self.flow(u32::MAX));
        let mut addressing = self.addressing();
        let request = |opens| Head::Request { flow, seq: 0, replay: false, rested: false, opens };
        match self.rng.random_range(0..4) {
            0 => (Head::Idle { flow }, Vec::new()),
            1 => (request(Opening::Known), Vec::new()),
            kind => {
                if kind == 2 {
                    addressing.src = [10, 0, 7, 1].into();
                }
                let to = 0x9000 + self.rng.random_range(0..9000);
                let mut packet = self.rc(Opcode::SendOnly, to, 7);
                packet.truncate(12);
                (request(Opening::Full(addressing)), packet)
            }
        }
    }

    /// A flow that there is, if it may lie about one, or now and then another one.
    fn victim(&mut self) -> (FlowId, Flow) {
        let spared = self.spared;
        // Of one whose hosts are not known it says nothing, should one of them be spared.
        let is_free = |flow: &Flow| match (spared, flow.addressing) {
            (None, _) => true,
            (Some(spared), Some(Addressing { src, dst, .. })) => src != spared && dst != spared,
            (Some(_), None) => false,
        };
        let any = self.overheard.flows().filter(|(_, flow)| is_free(flow));
        let flows: Vec<_> = any.map(|(id, flow)| (FlowId(id), *flow)).collect();
        let may_name = self.reach == Reach::Anything || spared.is_some();
        if flows.is_empty() || !may_name || self.rng.random_bool(0.05) {
            return (FlowId(self.flow(3000)), Flow::default());
        }
        flows[self.rng.random_range(0..flows.len())]
    }

    /// A number nearly like this, or now and then any.
    fn near(&mut self, value: u32) -> u32 {
        match self.rng.random_range(0..20) {
            0 => self.rng.random(),
            1 => value.wrapping_sub(self.rng.random_range(0..1 << 16)),
            2 => value.wrapping_add(self.rng.random_range(0..1 << 16)),
            3..8 => value.wrapping_add(self.rng.random_range(0..64)).wrapping_sub(32),
            _ => value.wrapping_add(self.rng.random_range(0..3)),
        }
    }

    /// The next number of a flow's records, its own included, or now and then another one.
    fn place_of(&mut self, flow: FlowId, next: u32) -> u32 {
        let told = self.overheard.told.entry(flow.0).or_insert(next);
        let place = (*told).max(next);
        *told = place + 1;
        if self.rng.random_bool(0.02) { self.near(place) } else { place }
    }

    fn next_request(&mut self) -> (Head, Vec<u8>) {
        let (flow, known) = self.victim();
        let psn = self.near(known.next_psn() + 1);
        let seq = self.place_of(flow, known.requests + 1);
        let opcode = Opcode::ALL[self.rng.random_range(0..Opcode::ALL.len())];
        let opens = match (self.rng.random_range(0..4), known.addressing) {
            (0, Some(addressing)) => Opening::Full(addressing),
            (1, _) => Opening::Short,
            _ => Opening::Known,
        };
        let to = self.near_queue_pair(known.target_qpn().get());
        let (replay, rested) = (self.rng.random(), self.rng.random_bool(0.2));
        (Head::Request { flow, seq, replay, rested, opens }, self.rc(opcode, to, psn))
    }

    fn next_response(&mut self) -> (Head, Vec<u8>) {
        let (flow, known) = self.victim();
        // What a target has not answered yet, though asked.
        let psn = match self.rng.random_range(0..3) {
            0 => self.near(known.next_psn()),
            1 => self.near(known.next_answer()),
            _ => known.next_psn().wrapping_sub(self.rng.random_range(0..16)),
        };
        let is_short = self.rng.random_bool(0.03);
        // One that is refused leaves a gap.
        let next = known.responses + u32::from(known.response.is_some());
        let seq = if is_short { self.near(next) } else { self.place_of(flow, next) };
        let opcode = RESPONSES[self.rng.random_range(0..RESPONSES.len())];
        let opcode = if self.rng.random() { Opcode::Acknowledge } else { opcode };
        let to = self.near_queue_pair(known.requester_qpn().get());
        let mut packet = self.rc(opcode, to, psn);
        if let Some(syndrome) = packet.get_mut(12) {
            // Mostly what does not end the flow, which then takes more.
            let index =
                if self.rng.random_bool(0.03) { self.rng.random_range(0..SYNDROMES.len()) } else { 0 };
            *syndrome = SYNDROMES[index];
        }
        if is_short {
            packet.drain(..self.rng.random_range(0..packet.len().min(12)));
        }
        (Head::Response { flow, seq, is_short }, packet)
    }

    /// The number of a queue pair, or of one beside it.
    fn near_queue_pair(&mut self, qpn: u32) -> u32 {
        match self.rng.random_range(0..8) {
            0 => qpn ^ 1,
            1 => qpn.wrapping_add(self.rng.random_range(0..16)),
            // Where queue pairs of hosts begin.
            2 => self.rng.random_range(0x10..0x18),
            3 => self.rng.random_range(0..1 << 24),
            _ => qpn,
        }
    }

    /// In the name of one of its hosts to one that it lies to, of flows that it may name.
    fn carried(&mut self) -> (Head, Vec<u8>) {
        let (flow, known) = self.victim();
        let mut addressing = self.addressing();
        let mut to = known.target_qpn().get();
        if let Some(of) = known.addressing {
            let [own, _] = self.sites;
            let is_requesters = matches!(of.src, IpAddr::V4(src) if src.octets()[2] == own);
            (addressing.src, addressing.dst) =
                if is_requesters { (of.src, of.dst) } else { (of.dst, of.src) };
            to = if is_requesters { to } else { known.requester_qpn().get() };
        }
        let psn = if self.rng.random() { known.next_answer() } else { known.next_psn() };
        let psn = self.near(psn);
        let body = match self.rng.random_range(0..4) {
            0 => self.mad(&known),
            _ => {
                let opcode = Opcode::ALL[self.rng.random_range(0..Opcode::ALL.len())];
                let opcode = if self.rng.random() { Opcode::Acknowledge } else { opcode };
                self.rc(opcode, to, psn)
            }
        };
        if self.rng.random() {
            return (Head::Datagram(addressing), body);
        }
        let seq = self.near(self.sequence as u32 % 5000);
        (Head::Ordered { flow, seq, addressing }, body)
    }

    /// A message of connection management: REQ to DREP, of few calls and queue pairs that there
    /// are.
    fn mad(&mut self, known: &Flow) -> Vec<u8> {
        let mut mad = self.rc(Opcode::UdSendOnly, 1, 0);
        mad.truncate(12 + 8);
        let mut body = [0; 256];
        self.rng.fill_bytes(&mut body);
        body[..4].copy_from_slice(&[1, 7, 2, 3]);
        body[16..18].copy_from_slice(&[0, self.rng.random_range(0x10..0x17)]);
        let call = self.rng.random_range(0..16_u32);
        body[24..28].copy_from_slice(&call.to_be_bytes());
        body[28..32].copy_from_slice(&(call ^ self.rng.random_range(0..2)).to_be_bytes());
        // The queue pair of a REQ, and of a REP or a DREQ.
        let qpn = if self.rng.random() { known.target_qpn() } else { known.requester_qpn() };
        for at in [24 + 32, 24 + 12, 24 + 8] {
            body[at..at + 3].copy_from_slice(&qpn.get().to_be_bytes()[1..]);
        }
        mad.extend(body);
        mad
    }

    fn member(&mut self) -> (Head, Vec<u8>) {
        let (_, known) = self.victim();
        let mut noise = vec![0; self.rng.random_range(0..80)];
        self.rng.fill_bytes(&mut noise);
        match self.rng.random_range(0..4) {
            0 => {
                // Of this process, a kind that there is.
                if let Some(kind) = noise.get_mut(8) {
                    *kind = self.rng.random_range(0..14);
                }
                (Head::Word, noise)
            }
            1 => (Head::HandedOver, noise),
            _ => {
                let of = known.addressing.unwrap_or_else(|| {
                    let of = self.addressing();
                    Addressing { src: of.dst, dst: of.src, ..of }
                });
                let mut body = Vec::new();
                for address in [of.src, of.dst] {
                    let IpAddr::V4(address) = address else { continue };
                    body.extend(address.to_ipv6_mapped().octets());
                }
                let [target, requester] =
                    [known.target_qpn(), known.requester_qpn()].map(roce::wire::Qpn::get);
                let psn = self.near(known.next_psn()) & 0xff_ffff;
                for word in [self.near_queue_pair(target), requester, psn] {
                    body.extend(word.to_be_bytes());
                }
                let port = if self.rng.random() { of.src_port } else { self.rng.random() };
                body.extend(port.to_be_bytes());
                (Head::Lives, body)
            }
        }
    }

    /// A packet of this opcode, with headers and payload at random.
    fn rc(&mut self, opcode: Opcode, to: u32, psn: u32) -> Vec<u8> {
        let len = opcode.layout().len();
        let payload = match (self.rng.random_range(0..3), opcode) {
            (_, Opcode::Acknowledge | Opcode::AtomicAcknowledge | Opcode::ReadRequest) => 0,
            (0, _) => MOST_PAYLOAD,
            (1, _) => 256,
            _ => 4 * self.rng.random_range(0..64),
        };
        let [_, q0, q1, q2] = to.to_be_bytes();
        let [_, p0, p1, p2] = psn.to_be_bytes();
        let mut packet = vec![opcode as u8, 0, 0xff, 0xff, 0, q0, q1, q2, 0x80, p0, p1, p2];
        packet.resize(12 + len + payload, 0);
        if let Some(rest) = packet.get_mut(12..12 + len) {
            self.rng.fill_bytes(rest);
        }
        packet
    }
}
