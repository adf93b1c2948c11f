//! As many queue pairs that write through two gateways as are wanted: for what many flows cost.

use std::time::Duration;

use crate::sites::{STEP, Sites, packet, write_request};
use roce::ip::{Addressing, Datagram};
use roce::wire::{Bth, Ext, Opcode, Psn, Qpn, Reth};
use splice::Settings;

/// A requester's queue pair is the target's and this.
const REQUESTER: u32 = 0x80_0000;

/// Every message is one packet, and is acknowledged before the next one is sent.
pub(crate) struct Crowd {
    pub(crate) sites: Sites,
    request: Vec<u8>,
}

impl Crowd {
    pub(crate) fn new(settings: impl Fn(Settings) -> Settings) -> Self {
        Self { sites: Sites::new(0xc000, settings), request: write_request(Qpn::new(0), 256) }
    }

    /// Queue pair `qp` (from 1) sends its message `psn`, and waits for its completion.
    pub(crate) fn write(&mut self, qp: u32, psn: u32) {
        self.post(qp, psn);
        self.complete(qp, psn);
    }

    /// Waits for the completion of message `psn`.
    pub(crate) fn complete(&mut self, qp: u32, psn: u32) {
        for _ in 0..1000 {
            if self.step(qp, psn) {
                return;
            }
        }
        panic!("message {psn} of queue pair {qp:#x} is not acknowledged");
    }

    /// Queue pair `qp` sends its message `psn`.
    pub(crate) fn post(&mut self, qp: u32, psn: u32) {
        self.request[5..8].copy_from_slice(&qp.to_be_bytes()[1..]);
        Bth::set_psn(self.request.first_chunk_mut().unwrap(), Psn::new(psn));
        let request = std::mem::take(&mut self.request);
        self.send(qp, &request);
        self.request = request;
    }

    /// Queue pair `qp` sends a READ of 256 bytes.
    pub(crate) fn read(&mut self, qp: u32, psn: u32) {
        let reth = Reth { virtual_address: 0, rkey: 1, dma_length: 256 };
        self.send(qp, &packet(Opcode::ReadRequest, qp, psn, Ext::Reth(reth), 0));
    }

    fn send(&mut self, qp: u32, request: &[u8]) {
        let port = 0xc000 | (qp & 0x3fff) as u16;
        let addressing = Addressing { src_port: port, ..self.sites.addressing[0] };
        let datagram = Datagram { addressing, transport: request };
        self.sites.gateways[0].handle_lan(&datagram, self.sites.now);
    }

    /// Takes a step, and returns true if the message has been acknowledged to its requester.
    fn step(&mut self, qp: u32, psn: u32) -> bool {
        self.sites.cross();
        let mut asked = false;
        while let Some(bth) = self.sites.deliver(1) {
            asked |= (bth.dest_qp.get(), bth.psn.get()) == (qp, psn);
        }
        if asked {
            self.sites.acknowledge(Qpn::new(REQUESTER | qp), Psn::new(psn), psn + 1);
        }
        let mut acknowledged = false;
        while let Some(bth) = self.sites.deliver(0) {
            acknowledged |= bth.opcode == Opcode::Acknowledge && bth.psn.get() == psn;
        }
        self.sites.now += STEP;
        acknowledged
    }

    /// Nobody sends anything for so long.
    pub(crate) fn rest(&mut self, time: Duration) {
        let sites = &mut self.sites;
        let end = sites.now + time;
        while sites.now < end {
            let due = sites.gateways.iter().filter_map(|gateway| gateway.next_timeout(sites.now)).min();
            sites.now = due.map_or(end, |due| due.max(sites.now + STEP)).min(end);
            sites.cross();
            for site in 0..2 {
                while sites.deliver(site).is_some() {}
            }
        }
    }

    /// Timers pending, at either gateway.
    pub(crate) fn timers(&mut self) -> [u64; 2] {
        self.sites.gateways.each_mut().map(|gateway| gateway.stats().timers)
    }

    /// Flows that there are: the requesters' side and the targets'.
    pub(crate) fn flows(&mut self) -> [u64; 2] {
        let [requesters, targets] = &mut self.sites.gateways;
        [requesters.stats().near_flows, targets.stats().far_flows]
    }
}
