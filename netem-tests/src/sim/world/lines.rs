//! Words for what happens in the world: lines of its trace, facts for its judges.

#![expect(clippy::indexing_slicing, reason = "sites are numbered by the world that made them")]

use std::time::Instant;

use config::{Completion, Policy, Traffic};
use roce::ip::{Addressing, Datagram};
use roce::wire::Packet;

use crate::host::Host;
use crate::sim::Broken;
use crate::sim::judge::{Judge, Wrong};
use crate::sim::program::End;
use crate::sim::scenario::{Connection, Life};

/// Returns the independent judge's finding as a rule broken.
pub(super) fn broken(Wrong { rule, what, .. }: Wrong) -> Broken {
    ("judge", format!("{rule}: {what}"))
}

/// A packet has come to a host; one that its NIC does not take is nothing to the judge.
pub(super) fn judge_arrival(judge: &mut Judge, host: &Host, bytes: &[u8]) -> Result<(), Broken> {
    let Ok(datagram) = Datagram::parse(bytes) else { return Ok(()) };
    let Ok(packet) = Packet::parse(datagram.transport) else { return Ok(()) };
    if !packet.bth.opcode.is_response() || !host.is_ready(packet.bth.dest_qp) {
        return Ok(());
    }
    let Addressing { src, dst, .. } = datagram.addressing;
    judge.arrives((dst, packet.bth.dest_qp), src, &packet).map_err(broken)
}

/// The queue pairs that a connection has in each of its lives.
pub(super) fn places(number: usize, all: &[Connection], own: &[[End; 2]]) -> Result<Vec<[End; 2]>, String> {
    let Some((connection, own_ends)) = all.get(number).zip(own.get(number)) else { return Ok(Vec::new()) };
    let place = |life: &Life| {
        let mut ends = *own_ends;
        for (site, end) in ends.iter_mut().enumerate() {
            let Some(other) = life.queue_pairs[site] else { continue };
            let of = all.get(other).zip(own.get(other));
            let of = of.filter(|(of, ends)| ends[site].host == end.host && of.qp == connection.qp);
            *end = of
                .ok_or_else(|| format!("connection {number} has no use for a queue pair of {other}'s"))?
                .1[site];
        }
        Ok(ends)
    };
    connection.lives.iter().map(place).collect()
}

/// Returns true if a message that begins with this packet is of a class with
/// `completion = "local"`.
pub(super) fn completes_locally(policy: &Policy, addressing: &Addressing, packet: &Packet<'_>) -> bool {
    let Addressing { src, dst, tclass, .. } = *addressing;
    let traffic = Traffic { src, dst, dscp: tclass >> 2, qp: packet.bth.dest_qp.get() };
    // Of a SEND, what has been seen of it.
    let size = packet.ext.reth().map_or(packet.payload.len() as u64, |reth| reth.dma_length.into());
    let class = policy.classes().get(policy.classify(&traffic, Some(size)));
    class.is_some_and(|class| class.completion == Completion::Local)
}

pub(super) fn trace(
    lines: &mut Option<Vec<String>>,
    start: Instant,
    now: Instant,
    site: usize,
    what: &str,
    datagram: &Datagram<'_>,
    packet: &Packet<'_>,
) {
    if let Some(lines) = lines {
        let site = if site == 0 { 'a' } else { 'b' };
        let (Addressing { dst: to, src_port: port, .. }, bth) = (datagram.addressing, packet.bth);
        let ask = if bth.ack_req { " ackreq" } else { "" };
        lines.push(format!(
            "{:?} {site} {what} {to} qp {} port {port} {:?} psn {} {} bytes{ask} {:?}",
            now - start,
            bth.dest_qp.get(),
            bth.opcode,
            bth.psn.get(),
            packet.payload.len(),
            packet.ext
        ));
    }
}
