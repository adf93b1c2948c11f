//! A whole gateway in virtual time, and what its driver must find at every moment.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::ip::{Addressing, Datagram};
use roce::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ext, Feth, Ieth, ImmDt, Layout, Opcode, Packet, Psn, Qpn, Repr,
    Reth, Syndrome,
};
use splice::{Arrival, Ecn, Gateway, LaneId, Settings};

use crate::Script;

/// Longest WAN packet.
pub const WAN_PACKET: usize = 1400;
/// Bytes that all flows may hold.
pub const TOTAL_BUFFER: usize = 1 << 20;

/// A gateway and the numbers of its WAN packets.
pub struct Site {
    /// The gateway.
    pub gateway: Gateway,
    /// The number of the next packet that it sends, by lane.
    numbers: [u64; 8],
    lanes: u8,
    out: Vec<u8>,
}

impl Site {
    /// A gateway at 10.0.`here`.0/24 whose peer stands at 10.0.`1 - here`.0/24, with little room.
    #[must_use]
    pub fn new(here: u8, lanes: u8, now: Instant) -> Self {
        Self::with(settings(here, lanes), lanes, now)
    }

    /// The same, whose peer is one of several gateways of its site.
    #[must_use]
    pub fn member(here: u8, lanes: u8, now: Instant) -> Self {
        Self::with(Settings { is_member: true, ..settings(here, lanes) }, lanes, now)
    }

    fn with(settings: Settings, lanes: u8, now: Instant) -> Self {
        let gateway = Gateway::new(settings, now);
        let mut site = Self { gateway, numbers: [0; 8], lanes, out: vec![0; 10_000] };
        site.up(now);
        site
    }

    /// Another process takes the place of the one that is here, and finds its session lost.
    ///
    /// # Panics
    /// If it would write down something else than it has read.
    pub fn take_over(&mut self, here: u8, now: Instant) {
        let snapshot = self.gateway.snapshot(now).expect("no time lies far away");
        self.gateway = Gateway::restore(settings(here, self.lanes), &snapshot, now).expect("it fits");
        let again = self.gateway.snapshot(now).expect("no time lies far away");
        assert!(again == snapshot, "written otherwise than it was read");
        self.gateway.session_lost(now);
    }

    /// Begins a session, or the next one.
    pub fn up(&mut self, now: Instant) {
        let remembered: Vec<_> = self.gateway.remembered().collect();
        self.numbers = [0; 8];
        self.gateway.session_up(Duration::from_millis(2), WAN_PACKET, self.lanes, &remembered, now);
    }

    /// The session, which was lost, goes on.
    ///
    /// # Panics
    /// If there was none.
    pub fn resume(&mut self, now: Instant) {
        self.numbers = [0; 8];
        let resumed = self.gateway.session_resumed(Duration::from_millis(2), WAN_PACKET, self.lanes, now);
        assert!(resumed, "a session that was lost is gone");
    }

    /// Runs the timers that are due.
    ///
    /// # Panics
    /// If they are due again and again.
    pub fn wait(&mut self, now: Instant) {
        self.gateway.handle_timeout(now);
    }

    /// Takes the packets that it has for its LAN.
    ///
    /// # Panics
    /// If one is none, or goes where it must not.
    pub fn lan(&mut self, now: Instant, mut take: impl FnMut(&Datagram<'_>)) {
        for _ in 0..4096 {
            let Some(len) = self.gateway.poll_lan(now, &mut self.out) else { return };
            let datagram = Datagram::parse(&self.out[..len]).expect("gateways emit packets");
            assert!(datagram.addressing.ttl > 0);
            take(&datagram);
        }
        panic!("packets for the LAN without end");
    }

    /// Takes the packets that it has for its peer, with how they arrive.
    ///
    /// # Panics
    /// If one is too long, or there is no end.
    pub fn wan(&mut self, now: Instant, mut take: impl FnMut(&[u8], Arrival)) {
        for _ in 0..4096 {
            let Some(len) = self.gateway.poll_wan(now, &mut self.out) else { return };
            assert!(len <= WAN_PACKET);
            let lane = self.gateway.wan_lane();
            let number = &mut self.numbers[usize::from(lane.0)];
            let arrival =
                Arrival { lane, number: *number, bytes: self.gateway.wire_bytes(len), ecn: Ecn::Ect };
            *number += 1;
            take(&self.out[..len], arrival);
        }
        panic!("packets for the peer without end");
    }

    /// Checks what holds whenever it has nothing to send.
    ///
    /// # Panics
    /// If timers are due for ever.
    pub fn rest(&mut self, now: Instant) {
        for _ in 0..64 {
            if self.gateway.next_timeout(now).is_none_or(|due| due > now) {
                return;
            }
            self.gateway.handle_timeout(now);
            self.lan(now, |_| {});
            self.wan(now, |_, _| {});
        }
        panic!("timers due for ever");
    }
}

/// The settings of a [`Site`].
#[must_use]
#[expect(clippy::missing_panics_doc, reason = "the prefixes are prefixes")]
pub fn settings(here: u8, lanes: u8) -> Settings {
    Settings {
        total_buffer: TOTAL_BUFFER,
        flow_buffer: Some(256 << 10),
        flows: 32,
        lanes,
        find_mtu: true,
        ..Settings::new(vec![prefix(1 - here)], 20_000_000, WAN_PACKET)
    }
}

fn prefix(site: u8) -> ipnet::IpNet {
    ipnet::IpNet::new([10, 0, site, 0].into(), 24).expect("a prefix")
}

/// One of two hosts of a site.
#[must_use]
pub fn host(site: u8, number: u8) -> IpAddr {
    [10, 0, site, 1 + (number & 1)].into()
}

/// Addresses between two sites' hosts; rarely others.
pub fn addressing(script: &mut Script<'_>, from: u8) -> Addressing {
    let bits = script.u8();
    let (src, dst) = (host(from, bits), host(1 - from, bits >> 1));
    let dst = if bits == 0xff { [224, 0, 0, 9].into() } else { dst };
    let src_port = match bits >> 4 {
        0..8 => 0xc000 + u16::from(bits >> 4 & 3),
        _ => 0x40 + u16::from(bits >> 4),
    };
    Addressing { src, dst, src_port, tclass: script.u8(), ttl: 64 - (bits >> 2 & 1) * 63 }
}

/// How a packet of the peer's arrives.
pub fn arrival(script: &mut Script<'_>, number: &mut u64, bytes: usize) -> Arrival {
    let how = script.u8();
    *number = match how >> 5 {
        0..6 => number.wrapping_add(1),
        6 => number.saturating_sub(u64::from(script.u8())),
        _ => number.saturating_add(u64::from(script.u16())),
    };
    let ecn = [Ecn::NotEct, Ecn::Ect, Ecn::Ce][usize::from(how >> 1) % 3];
    Arrival { lane: LaneId(u16::from(how & 1)), number: *number, bytes, ecn }
}

/// A RoCE packet that may be: few queue pairs and PSNs, so that they meet.
///
/// # Panics
/// Never: headers are those of the opcode.
pub fn roce(script: &mut Script<'_>) -> Vec<u8> {
    let opcode = Opcode::ALL[usize::from(script.u8()) % Opcode::ALL.len()];
    let bits = script.u8();
    let psn = match script.u8() {
        far @ 0xf0.. => u32::from(far) << 16 | u32::from(script.u16()),
        near => u32::from(near),
    };
    let to = if opcode == Opcode::UdSendOnly { 1 } else { 0x40 + u32::from(bits & 7) };
    let mut bth = Bth::new(opcode, Qpn::new(to), Psn::new(psn));
    bth.ack_req = bits & 0x10 != 0;
    let dma_length = if bits & 0x60 == 0x60 { script.u32() } else { u32::from(script.u16()) };
    let reth = Reth { virtual_address: 0, rkey: 7, dma_length };
    let mut aeth = || Aeth { syndrome: Syndrome::from_u8(script.u8()), msn: u32::from(script.u8()) };
    let ext = match opcode.layout() {
        Layout::Bare => Ext::None,
        Layout::Aeth => Ext::Aeth(aeth()),
        Layout::AethAtomicAck => Ext::AtomicAck(aeth(), AtomicAckEth(3)),
        Layout::Reth => Ext::Reth(reth),
        Layout::RethImm => Ext::RethImm(reth, ImmDt([0; 4])),
        Layout::Imm => Ext::Imm(ImmDt([0; 4])),
        Layout::Atomic => Ext::Atomic(AtomicEth { virtual_address: 0, rkey: 7, swap_or_add: 1, compare: 0 }),
        Layout::Deth => Ext::Deth(Deth { qkey: 0, src_qp: Qpn::GSI }),
        Layout::DethImm => Ext::DethImm(Deth { qkey: 0, src_qp: Qpn::GSI }, ImmDt([0; 4])),
        Layout::Ieth => Ext::Ieth(Ieth(9)),
        Layout::FethReth => Ext::Flush(Feth(1), reth),
    };
    let payload = match bits >> 7 {
        0 => vec![bits; 256],
        _ => {
            let length = script.length(1024);
            let mut payload = script.bytes(length.min(300)).to_vec();
            payload.resize(length, 0);
            payload
        }
    };
    for payload in [&payload[..], &payload[..payload.len().min(8)], &[]] {
        let repr = Repr { bth, ext, payload };
        let mut bytes = vec![0; repr.buffer_len()];
        if repr.emit(&mut bytes).is_ok() {
            assert!(Packet::parse(&bytes).is_ok());
            return bytes;
        }
    }
    Vec::new()
}
