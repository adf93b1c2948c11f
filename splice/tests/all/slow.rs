//! A target that is slow, and lives.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::sites::{STEP, Sites};
use roce::ip::{Addressing, Datagram};
use roce::pairing::source_port;
use roce::wire::{Aeth, Bth, Ext, Nak, Opcode, Packet, Psn, Qpn, Repr, Reth, Syndrome};
use splice::Settings;

const FLOWS: u32 = 8;
/// Packets of a message, and what a requester sends without an ACK.
const PACKETS: u32 = 512;
const WINDOW: u32 = 64;
const MTU: usize = 4096;
/// The target begins after so long, and takes so long for each packet.
const PAUSE: Duration = Duration::from_millis(20);
const TAKES: Duration = Duration::from_micros(60);
/// After as long as that a requester sends again.
const PATIENCE: Duration = Duration::from_millis(5);
const REQUESTER: u32 = 0x1000;
const TARGET: u32 = 0x2000;

/// Sends a WRITE of one packet, and then a long one.
struct Requester {
    number: u32,
    next: u32,
    acknowledged: u32,
    heard: Instant,
}

impl Requester {
    fn addressing(&self, sites: &Sites, site: usize) -> Addressing {
        let src_port = source_port(self.requester(), self.target());
        Addressing { src_port, ..sites.addressing[site] }
    }

    fn requester(&self) -> Qpn {
        Qpn::new(REQUESTER + self.number)
    }

    fn target(&self) -> Qpn {
        Qpn::new(TARGET + self.number)
    }

    fn send(&mut self, sites: &mut Sites) {
        if sites.now - self.heard > PATIENCE {
            (self.next, self.heard) = (self.acknowledged, sites.now);
        }
        let window = if self.acknowledged == 0 { 1 } else { self.acknowledged + WINDOW };
        while self.next < window.min(1 + PACKETS) {
            let (opcode, dma_length) = match self.next {
                0 => (Opcode::WriteOnly, Some(MTU)),
                1 => (Opcode::WriteFirst, Some(PACKETS as usize * MTU)),
                PACKETS => (Opcode::WriteLast, None),
                _ => (Opcode::WriteMiddle, None),
            };
            let reth = |length| Ext::Reth(Reth { virtual_address: 0, rkey: 7, dma_length: length as u32 });
            let bth = Bth { ack_req: true, ..Bth::new(opcode, self.target(), Psn::new(self.next)) };
            let repr = Repr { bth, ext: dma_length.map_or(Ext::None, reth), payload: &[5; MTU] };
            let mut request = vec![0; repr.buffer_len()];
            repr.emit(&mut request).unwrap();
            let datagram = Datagram { addressing: self.addressing(sites, 0), transport: &request };
            sites.gateways[0].handle_lan(&datagram, sites.now);
            self.next += 1;
        }
    }

    fn hear(&mut self, psn: u32, syndrome: Syndrome, now: Instant) {
        match syndrome {
            // One that is repeated may be of a PSN before the first.
            Syndrome::Ack { .. } if psn < 1 << 23 && psn >= self.acknowledged => self.acknowledged = psn + 1,
            Syndrome::Nak(Nak::PsnSequence) => (self.acknowledged, self.next) = (psn, psn),
            Syndrome::Ack { .. } => return,
            other => panic!("{other:?}"),
        }
        self.heard = now;
        self.next = self.next.max(self.acknowledged);
    }

    fn acknowledge(&self, psn: Psn, sites: &mut Sites) {
        let mut bytes = [0; 16];
        let ext = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 1 + u32::from(psn == Psn::new(PACKETS)) });
        let bth = Bth::new(Opcode::Acknowledge, self.requester(), psn);
        Repr { bth, ext, payload: &[] }.emit(&mut bytes).unwrap();
        let datagram = Datagram { addressing: self.addressing(sites, 1), transport: &bytes };
        sites.gateways[1].handle_lan(&datagram, sites.now);
    }
}

/// All have more to send than the target's gateway can hold: they are slowed down, and none is
/// ended.
#[test]
fn flows_to_a_slow_target_wait_for_it() {
    let mut sites = Sites::new(1, |settings| Settings { total_buffer: 4 << 20, ..settings });
    let heard = sites.now;
    let mut requesters: Vec<_> =
        (0..FLOWS).map(|number| Requester { number, next: 0, acknowledged: 0, heard }).collect();
    let (mut arrived, mut next) = (VecDeque::new(), sites.now + PAUSE);
    let end = sites.now + Duration::from_secs(2);
    let mut out = vec![0; 10_000];
    while requesters.iter().any(|requester| requester.acknowledged <= PACKETS) {
        assert!(
            sites.now < end,
            "it takes too long: {:?}",
            sites.gateways.each_mut().map(|gateway| gateway.stats().failed)
        );
        requesters.iter_mut().for_each(|requester| requester.send(&mut sites));
        sites.cross();
        while let Some(bth) = sites.deliver(1) {
            arrived.push_back(bth);
        }
        while next <= sites.now {
            if let Some(bth) = arrived.pop_front()
                && bth.ack_req
            {
                requesters[(bth.dest_qp.get() - TARGET) as usize].acknowledge(bth.psn, &mut sites);
            }
            next += TAKES;
        }
        sites.cross();
        while let Some(len) = sites.gateways[0].poll_lan(sites.now, &mut out) {
            let packet = Packet::parse(Datagram::parse(&out[..len]).unwrap().transport).unwrap();
            // Or a congestion notification.
            let Some(Aeth { syndrome, .. }) = packet.ext.aeth() else { continue };
            let requester = &mut requesters[(packet.bth.dest_qp.get() - REQUESTER) as usize];
            requester.hear(packet.bth.psn.get(), *syndrome, sites.now);
        }
        sites.now += STEP;
    }
    for gateway in &mut sites.gateways {
        assert_eq!(gateway.stats().failed.iter().sum::<u64>(), 0);
    }
}
