//! Packets that are not terminated.

use std::time::{Duration, Instant};

use roce::cm::{self, Timeout};
use roce::flow::near::NearConfig;
use roce::ip::Addressing;
use roce::pairing::{FlowKey, Hosts};
use roce::wire::{Malformed, Packet, Qpn};
use transport::Urgency;

use super::{Gateway, onward};
use crate::classes::traffic;
use crate::outgoing;
use crate::record::{Head, MAX_HEAD};
use crate::stats::LanDrop;

impl Gateway {
    /// Carries a packet of UD: well-formed management datagrams before all else as far as their
    /// host's share goes ([`PromptShare`](crate::carriage::PromptShare)), and connection management
    /// with ACK timeouts that suit the link and without vendor options.
    pub(super) fn carry_datagram(
        &mut self,
        addressing: &Addressing,
        packet: &Packet<'_>,
        now: Instant,
    ) -> Result<(), LanDrop> {
        let class = self.class_of(addressing, packet.bytes, Some(packet.payload.len() as u64));
        let head = Head::Datagram(onward(addressing));
        if packet.bth.dest_qp != Qpn::GSI {
            return self.carry(class, Urgency::Bulk, &head, packet.bytes, now);
        }
        let bytes = self.wire_bytes(packet.bytes.len());
        let host = self.common.settings.grouping.other(addressing.src);
        let is_prompt =
            cm::is_management(packet) && self.common.carriage.mads.take(host, bytes, self.wan.rate(), now);
        self.common.stats.mads_in_turn += u64::from(!is_prompt);
        let urgency = if is_prompt { Urgency::Prompt } else { Urgency::Bulk };
        let mut mad = [0; LONGEST_MAD];
        let transport = match mad.get_mut(..packet.bytes.len()) {
            Some(mad) => {
                mad.copy_from_slice(packet.bytes);
                cm::raise_ack_timeout(mad, least_ack_timeout(self.wan.rtt()));
                self.common.stats.vendor_options += u64::from(cm::clear_vendor_options(mad));
                mad
            }
            None => packet.bytes,
        };
        self.carry(class, urgency, &head, transport, now)
    }

    /// Heeds a congestion notification about what this gateway has sent to a target, and carries
    /// one to who sends what is carried, before all payload as far as its host's share goes. Beyond
    /// that it is dropped: later it would tell of what is over.
    ///
    /// One for the queue pair of another target is dropped, since what it tells of came from this
    /// gateway. So is one that may be for a flow: while one of these hosts waits to be paired, and
    /// if nothing that is carried has come to the host lately.
    pub(super) fn handle_notification(
        &mut self,
        addressing: &Addressing,
        packet: &Packet<'_>,
        now: Instant,
    ) -> Result<(), LanDrop> {
        let (src, dst, to) = (addressing.src, addressing.dst, packet.bth.dest_qp);
        let hosts = Hosts { requester: dst, target: src };
        if let Some(flow) = self.common.pairings.of_requester(hosts, to) {
            self.far.slow_down(&flow, &mut self.common.context(self.wan.senders(), now));
            return Ok(());
        }
        let came = self.common.carriage.came.lately(dst, src, self.common.settings.idle_flow, now);
        let is_target = self.near.has(&FlowKey { requester: src, target: dst, target_qpn: to });
        if is_target || !came || self.common.pairings.has_waiting(hosts) {
            return Err(LanDrop::Cnp);
        }
        let bytes = self.wire_bytes(MAX_HEAD + packet.bytes.len());
        let host = self.common.settings.grouping.other(src);
        if !self.common.carriage.cnps.take(host, bytes, self.wan.rate(), now) {
            return Err(LanDrop::Share);
        }
        let class = self.class_of(addressing, packet.bytes, None);
        let head = Head::Datagram(onward(addressing));
        self.carry(class, Urgency::Prompt, &head, packet.bytes, now)?;
        self.common.stats.cnps_carried += 1;
        Ok(())
    }

    /// Carries a packet to a multicast group, of UD alone: what else is sent there can be meant for
    /// nobody.
    pub(super) fn carry_to_group(
        &mut self,
        addressing: &Addressing,
        transport: &[u8],
        now: Instant,
    ) -> Result<(), LanDrop> {
        match Packet::parse(transport) {
            Ok(packet) if packet.is_multicast() => self.carry_datagram(addressing, &packet, now),
            Ok(_) | Err(Malformed::Opcode(_)) => Err(LanDrop::Multicast),
            Err(_) => Err(LanDrop::Malformed),
        }
    }

    /// Carries a packet that is not terminated, and that has its place among those to its queue
    /// pair. Where nothing is repaired nothing is worth waiting for.
    pub(super) fn carry_in_order(
        &mut self,
        addressing: &Addressing,
        transport: &[u8],
        uc: Option<&Packet<'_>>,
        now: Instant,
    ) -> Result<(), LanDrop> {
        if !self.wan.is_up() {
            return Err(LanDrop::NoSession);
        }
        let class = self.class_of(addressing, transport, None);
        let is_repaired =
            self.policy().classes().get(class).is_some_and(|class| class.scheme != config::Scheme::None);
        let key = FlowKey {
            requester: addressing.src,
            target: addressing.dst,
            target_qpn: Qpn::new(dest_qp(transport)),
        };
        let numbered = match is_repaired || uc.is_some() {
            true => self.numbering.next(key, &mut self.common.context(self.wan.senders(), now)),
            false => None,
        };
        let Some((slot, flow, seq)) = numbered else {
            return self.carry(class, Urgency::Bulk, &Head::Datagram(onward(addressing)), transport, now);
        };
        let mut addressing = onward(addressing);
        if let Some(packet) = uc {
            let mut ctx = self.common.context(self.wan.senders(), now);
            self.numbering.admit(slot, class, &mut addressing, packet, &mut ctx)?;
        }
        let ordered = Head::Ordered { flow, seq, addressing };
        let head = if is_repaired { ordered } else { Head::Datagram(addressing) };
        let carried = self.carry(class, Urgency::Bulk, &head, transport, now);
        match carried {
            Ok(()) if is_repaired => self.numbering.sent(slot),
            Ok(()) => {}
            Err(_) => self.numbering.cut(slot, &mut self.common.context(self.wan.senders(), now)),
        }
        carried
    }

    pub(super) fn class_of(&self, addressing: &Addressing, transport: &[u8], size: Option<u64>) -> usize {
        self.common.classes.classify(&traffic(addressing, dest_qp(transport)), size)
    }

    /// Carries a packet that is not terminated.
    pub(super) fn carry(
        &mut self,
        class: usize,
        urgency: Urgency,
        head: &Head,
        transport: &[u8],
        now: Instant,
    ) -> Result<(), LanDrop> {
        if !self.wan.is_up() {
            return Err(LanDrop::NoSession);
        }
        if urgency == Urgency::Bulk && !self.wan.senders().has_room(class, transport.len()) {
            let has_share = self.wan.senders().has_share(class, transport.len());
            return Err(if has_share { LanDrop::NoRoom } else { LanDrop::Share });
        }
        outgoing::push(self.wan.senders(), class, urgency, head, [transport, &[]], now)
            .map_err(|_| LanDrop::NoRoom)?;
        self.common.stats.datagrams += 1;
        Ok(())
    }
}

/// BTH, DETH and a MAD.
const LONGEST_MAD: usize = 12 + 8 + 256;

/// Returns the ACK timeout that a NIC is to have: the round trip, that of a repair, and as long
/// again; and longer than it takes the gateway to say, several times, that a request waits for its
/// target.
fn least_ack_timeout(rtt: Duration) -> Timeout {
    Timeout::at_least((4 * rtt).max(6 * NearConfig::default().keepalive))
}

/// The destination queue pair stands in the same place of every transport's BTH; 0 if the packet is
/// too short for it.
pub(super) fn dest_qp(transport: &[u8]) -> u32 {
    match transport {
        [_, _, _, _, _, q0, q1, q2, ..] => u32::from_be_bytes([0, *q0, *q1, *q2]),
        _ => 0,
    }
}
