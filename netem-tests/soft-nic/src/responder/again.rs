//! Requests that come again.

use std::time::Instant;

use roce::wire::{Ext, Kind, Packet, Psn, Reth, Syndrome};

use super::{DuplicateAck, Memory, Reply, Responder, Want};

impl Responder {
    /// SEND and WRITE: an ACK of what it has, or of what its NIC takes for that. READ: run again.
    /// What must not run twice: the saved result.
    pub(super) fn handle_duplicate(&mut self, packet: &Packet<'_>, memory: &Memory, now: Instant) {
        let psn = packet.bth.psn;
        match (packet.bth.opcode.kind(), packet.ext) {
            (Kind::Send | Kind::Write, _) => self.acknowledge_again(now),
            (Kind::Read, Ext::Reth(reth)) => self.read_again(psn, &reth, memory, now),
            (Kind::Atomic | Kind::AtomicWrite | Kind::Flush, _) => {
                let saved = self.answers.iter().find(|(of, _)| *of == psn).copied();
                if let Some((psn, result)) = saved {
                    let aeth = self.aeth(Syndrome::ACK);
                    self.answer(Reply::Once { psn, result, aeth }, true, now);
                }
            }
            _ => {}
        }
    }

    fn acknowledge_again(&mut self, now: Instant) {
        // A NAK that waits to be sent already says where we are.
        if !matches!(self.replies.back(), Some(Reply::Acknowledge { aeth, .. }) if !aeth.syndrome.is_ack()) {
            let next = match self.config.personality.duplicates {
                DuplicateAck::Newest => self.expected,
                DuplicateAck::NewestButReads => self.after_write,
            };
            self.acknowledge(next.prev(), Syndrome::ACK, now);
        }
    }

    /// A duplicate READ: sets the response to where the requester wants it if it is still under
    /// way, else queues it anew.
    fn read_again(&mut self, psn: Psn, reth: &Reth, memory: &Memory, now: Instant) {
        let span = self.config.mtu.psn_span(reth.dma_length);
        let end = psn + span;
        if end.distance(self.expected) > 0
            || !memory.allows(reth.rkey, reth.virtual_address, u64::from(reth.dma_length), Want::Read)
        {
            return;
        }
        let fresh = self.read_reply(psn, reth);
        let mtu = self.config.mtu;
        let pending = self.replies.iter_mut().find(|reply| match reply {
            Reply::Read { psn: at, remaining, .. } => *at + mtu.psn_span(*remaining) == end,
            _ => false,
        });
        match pending {
            Some(reply) => *reply = fresh,
            None => self.answer(fresh, true, now),
        }
    }
}
