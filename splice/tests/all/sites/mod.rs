//! Two gateways with a session, and a WAN between them that neither delays nor loses.

use std::time::{Duration, Instant};

use roce::flow::far::MAX_PACKET;
use roce::ip::{Addressing, Datagram};
use roce::wire::{Aeth, Bth, Ext, Opcode, Packet, Psn, Qpn, Repr, Reth, Syndrome};
use splice::retention::{Age, Memory, Retention};
use splice::{Arrival, Ecn, FlowSide, Gateway, LaneId, Settings, StaleFlow};

pub(crate) const STEP: Duration = Duration::from_micros(20);
const IP_UDP: usize = 28;
const ICRC: usize = 4;
/// The other site's hosts.
const REMOTE: [&str; 2] = ["10.0.1.0/24", "10.0.0.0/24"];

pub(crate) struct Sites {
    /// The requesters' gateway and the targets'.
    pub(crate) gateways: [Gateway; 2],
    /// From the requesters to the targets, and back.
    pub(crate) addressing: [Addressing; 2],
    pub(crate) now: Instant,
    /// Numbers of the next WAN packets of either gateway.
    numbers: [u64; 2],
    out: Vec<u8>,
}

fn gateway(remote: &str, settings: &impl Fn(Settings) -> Settings, now: Instant) -> Gateway {
    let remote = vec![remote.parse().unwrap()];
    Gateway::new(settings(Settings::new(remote, 10_000_000_000, 1400)), now)
}

impl Sites {
    pub(crate) fn new(src_port: u16, settings: impl Fn(Settings) -> Settings) -> Self {
        let now = Instant::now();
        let gateway = |remote| {
            let mut gateway = gateway(remote, &settings, now);
            gateway.session_up(Duration::from_micros(100), 1400, 1, &[], now);
            gateway
        };
        let [a, b] = ["10.0.0.1", "10.0.1.1"].map(|host| host.parse().unwrap());
        let addressing = |src, dst| Addressing { src, dst, src_port, tclass: 0, ttl: 64 };
        Self {
            gateways: REMOTE.map(gateway),
            addressing: [addressing(a, b), addressing(b, a)],
            now,
            numbers: [0; 2],
            out: vec![0; 10_000],
        }
    }

    /// Another session after one that ended.
    pub(crate) fn renew(&mut self) {
        let remembered = [1, 0].map(|peer| self.gateways[peer].remembered().collect::<Vec<_>>());
        for (gateway, remembered) in self.gateways.iter_mut().zip(remembered) {
            gateway.session_up(Duration::from_micros(100), 1400, 1, &remembered, self.now);
        }
        self.numbers = [0; 2];
    }

    /// The session before, which was lost, goes on.
    pub(crate) fn resume(&mut self) {
        for gateway in &mut self.gateways {
            assert!(gateway.session_resumed(Duration::from_micros(100), 1400, 1, self.now));
        }
        self.numbers = [0; 2];
    }

    /// A gateway's process is killed, and another one takes its place a second later, with nothing
    /// but what was retained.
    pub(crate) fn kill(&mut self, site: usize) {
        self.gateways[1 - site].session_lost(self.now);
        let memory = self.gateways[site].take_retention().map(Retention::into_memory);
        self.now += Duration::from_secs(1);
        self.gateways[site] = gateway(REMOTE[site], &|settings| settings, self.now);
        if let Some(memory) = memory {
            self.retain(site, memory);
        }
        let lives = |flow: &StaleFlow| flow.lives && flow.side == FlowSide::Far;
        let awaited: Vec<_> = self.gateways[1 - site].remembered().filter(lives).collect();
        let rtt = Duration::from_micros(100);
        self.gateways[1 - site].session_reborn(rtt, 1400, 1, &[], self.now);
        self.gateways[site].session_up(rtt, 1400, 1, &[], self.now);
        self.gateways[site].await_requesters(&awaited, self.now);
        self.numbers = [0; 2];
    }

    /// A gateway retains from now on, in this memory, and finds what stands there.
    pub(crate) fn retain(&mut self, site: usize, memory: Box<dyn Memory>) {
        let until = self.now + Duration::from_secs(60);
        self.gateways[site].retain(Retention::new(memory, MAX_PACKET, until, |_| Age::Recent));
    }

    /// Timers and the WAN.
    pub(crate) fn cross(&mut self) {
        self.cross_but(|_, _| false);
    }

    /// The same, but packets that are `lost`, by the site that sent them, do not arrive.
    pub(crate) fn cross_but(&mut self, lost: impl Fn(usize, &[u8]) -> bool) {
        for site in 0..2 {
            self.gateways[site].handle_timeout(self.now);
            while let Some(len) = self.gateways[site].poll_wan(self.now, &mut self.out) {
                let bytes = self.gateways[site].wire_bytes(len);
                let arrival =
                    Arrival { lane: LaneId(0), number: self.numbers[site], bytes, ecn: Ecn::NotEct };
                self.numbers[site] += 1;
                if lost(site, &self.out[..len]) {
                    continue;
                }
                self.gateways[1 - site].handle_wan(&self.out[..len], arrival, self.now);
            }
        }
    }

    /// The next packet to a site's hosts, its base transport header.
    pub(crate) fn deliver(&mut self, site: usize) -> Option<Bth> {
        let len = self.gateways[site].poll_lan(self.now, &mut self.out)?;
        Some(Packet::parse(&self.out[IP_UDP..len - ICRC]).unwrap().bth)
    }

    /// The target acknowledges this to a requester's queue pair.
    pub(crate) fn acknowledge(&mut self, requester: Qpn, psn: Psn, msn: u32) {
        self.acknowledge_at(1, requester, psn, msn);
    }

    /// The same, of a target at that site.
    pub(crate) fn acknowledge_at(&mut self, site: usize, requester: Qpn, psn: Psn, msn: u32) {
        let mut bytes = [0; 16];
        let ext = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn });
        Repr { bth: Bth::new(Opcode::Acknowledge, requester, psn), ext, payload: &[] }
            .emit(&mut bytes)
            .unwrap();
        let datagram = Datagram { addressing: self.addressing[site], transport: &bytes };
        self.gateways[site].handle_lan(&datagram, self.now);
    }
}

/// A WRITE of one packet that says to be so long, and asks for an acknowledgement.
pub(crate) fn write_request(target: Qpn, dma_length: u32) -> Vec<u8> {
    let ext = Ext::Reth(Reth { virtual_address: 0, rkey: 7, dma_length });
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::WriteOnly, target, Psn::new(0)) };
    let repr = Repr { bth, ext, payload: &[5; 256] };
    let mut request = vec![0; repr.buffer_len()];
    repr.emit(&mut request).unwrap();
    request
}

/// A packet that asks for an answer, its payload so long.
pub(crate) fn packet(opcode: Opcode, to: u32, psn: u32, ext: Ext, len: usize) -> Vec<u8> {
    let bth = Bth { ack_req: true, ..Bth::new(opcode, Qpn::new(to), Psn::new(psn)) };
    let repr = Repr { bth, ext, payload: &vec![1; len] };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut bytes).unwrap();
    bytes
}

/// The frames of a connection by rdma_cm, as captured.
pub(crate) fn rping() -> Vec<Vec<u8>> {
    let lines = include_str!("../../../../roce/tests/golden/rping.txt").lines();
    let bytes = |line: &str| {
        let digits = line.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
        digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect()
    };
    lines.filter(|line| !line.starts_with('#')).map(bytes).collect()
}
