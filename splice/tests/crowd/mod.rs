//! Two gateways, and as many queue pairs that write through them as are wanted: for what many flows cost.

use std::time::{Duration, Instant};

use roce::ip::{Addressing, Datagram};
use roce::wire::{Aeth, Bth, Ext, Opcode, Packet, Psn, Qpn, Repr, Reth, Syndrome};
use splice::{Arrival, Ecn, Gateway, Settings};

const STEP: Duration = Duration::from_micros(20);
/// A requester's queue pair is the target's and this.
const REQUESTER: u32 = 0x80_0000;
const IP_UDP: usize = 28;
const ICRC: usize = 4;

/// Every message is one packet, and is acknowledged before the next one is sent.
pub(crate) struct Crowd {
    /// The requesters' gateway and the targets'.
    pub(crate) gateways: [Gateway; 2],
    pub(crate) now: Instant,
    addressing: [Addressing; 2],
    /// Numbers of the next WAN packets of either gateway.
    numbers: [u64; 2],
    request: Vec<u8>,
    out: Vec<u8>,
}

impl Crowd {
    pub(crate) fn new(settings: impl Fn(Settings) -> Settings) -> Self {
        let now = Instant::now();
        let gateway = |remote: &str| {
            let remote = vec![remote.parse().unwrap()];
            let mut gateway = Gateway::new(settings(Settings::new(remote, 10_000_000_000, 1400)), now);
            gateway.session_up(Duration::from_micros(100), 1400, &[], now);
            gateway
        };
        let [a, b] = ["10.0.0.1", "10.0.1.1"].map(|host| host.parse().unwrap());
        let addressing = |src, dst| Addressing { src, dst, src_port: 0xc000, tclass: 0, ttl: 64 };
        let ext = Ext::Reth(Reth { virtual_address: 0, rkey: 7, dma_length: 256 });
        let bth = Bth { ack_req: true, ..Bth::new(Opcode::WriteOnly, Qpn::new(0), Psn::new(0)) };
        let repr = Repr { bth, ext, payload: &[5; 256] };
        let mut request = vec![0; repr.buffer_len()];
        repr.emit(&mut request).unwrap();
        Self {
            gateways: [gateway("10.0.1.0/24"), gateway("10.0.0.0/24")],
            now,
            addressing: [addressing(a, b), addressing(b, a)],
            numbers: [0; 2],
            request,
            out: vec![0; 10_000],
        }
    }

    /// Queue pair `qp` (from 1) sends its message `psn`, and waits for its completion.
    pub(crate) fn write(&mut self, qp: u32, psn: u32) {
        self.request[5..8].copy_from_slice(&qp.to_be_bytes()[1..]);
        Bth::set_psn(self.request.first_chunk_mut().unwrap(), Psn::new(psn));
        let port = 0xc000 | (qp & 0x3fff) as u16;
        let addressing = Addressing { src_port: port, ..self.addressing[0] };
        let datagram = Datagram { addressing, transport: &self.request };
        self.gateways[0].handle_lan(&datagram, self.now);
        for _ in 0..1000 {
            if self.step(qp, psn) {
                return;
            }
        }
        panic!("message {psn} of queue pair {qp:#x} is not acknowledged");
    }

    /// Whether the message has been acknowledged to its requester.
    fn step(&mut self, qp: u32, psn: u32) -> bool {
        self.cross();
        let mut asked = false;
        while let Some(len) = self.gateways[1].poll_lan(self.now, &mut self.out) {
            let bth = Packet::parse(&self.out[IP_UDP..len - ICRC]).unwrap().bth;
            asked |= (bth.dest_qp.get(), bth.psn.get()) == (qp, psn);
        }
        if asked {
            let mut bytes = [0; 16];
            let ext = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: psn + 1 });
            let bth = Bth::new(Opcode::Acknowledge, Qpn::new(REQUESTER | qp), Psn::new(psn));
            Repr { bth, ext, payload: &[] }.emit(&mut bytes).unwrap();
            let datagram = Datagram { addressing: self.addressing[1], transport: &bytes };
            self.gateways[1].handle_lan(&datagram, self.now);
        }
        let mut acknowledged = false;
        while let Some(len) = self.gateways[0].poll_lan(self.now, &mut self.out) {
            let bth = Packet::parse(&self.out[IP_UDP..len - ICRC]).unwrap().bth;
            acknowledged |= bth.opcode == Opcode::Acknowledge && bth.psn.get() == psn;
        }
        self.now += STEP;
        acknowledged
    }

    /// Timers and the WAN.
    fn cross(&mut self) {
        for site in 0..2 {
            self.gateways[site].handle_timeout(self.now);
            while let Some(len) = self.gateways[site].poll_wan(self.now, &mut self.out) {
                let bytes = self.gateways[site].wire_bytes(len);
                let arrival = Arrival { number: self.numbers[site], bytes, ecn: Ecn::NotEct };
                self.numbers[site] += 1;
                self.gateways[1 - site].handle_wan(&self.out[..len], arrival, self.now);
            }
        }
    }

    /// Nobody sends anything for so long.
    pub(crate) fn rest(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let due = self.gateways.iter().filter_map(|gateway| gateway.next_timeout(self.now)).min();
            self.now = due.map_or(end, |due| due.max(self.now + STEP)).min(end);
            self.cross();
            for gateway in &mut self.gateways {
                while gateway.poll_lan(self.now, &mut self.out).is_some() {}
            }
        }
    }

    /// Flows that there are: the requesters' side and the targets'.
    pub(crate) fn flows(&mut self) -> [u64; 2] {
        let [requesters, targets] = &mut self.gateways;
        [requesters.stats().near_flows, targets.stats().far_flows]
    }
}
