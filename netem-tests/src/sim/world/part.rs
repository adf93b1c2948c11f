//! Whose a packet is: queue pairs have had many lives, with many partners.

use std::cmp::Reverse;

use roce::wire::{Bth, Packet, Psn};

use crate::sim::Broken;
use crate::sim::flow::Flow;
use crate::sim::program::Program;

/// Requests of one end in one life of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) program: usize,
    pub(super) life: usize,
    pub(super) end: usize,
}

impl Part {
    /// The flow of these that a packet with this PSN belongs to: the newest unless it fits an older
    /// one better.
    pub(super) fn flow<'a>(parts: &[Self], psn: Psn, programs: &'a mut [Program]) -> Option<&'a mut Flow> {
        let fit = |part: &Self| {
            let flow = programs[part.program].flow(part.end, part.life)?;
            Some((flow.farness(psn), Reverse(flow.begun)))
        };
        let fits = parts.iter().filter_map(|part| Some((fit(part)?, *part)));
        let (_, part) = fits.min_by_key(|(fit, _)| *fit)?;
        programs[part.program].flow_mut(part.end, part.life)
    }

    /// Returns true for a response so long before all that the newest of these sent that its
    /// requester takes it for an old duplicate, and is told nothing by it.
    pub(super) fn is_long_past(parts: &[Self], psn: Psn, programs: &[Program]) -> bool {
        let newest = parts.iter().filter_map(|part| programs.get(part.program)?.flow(part.end, part.life));
        newest.max_by_key(|flow| flow.begun).is_some_and(|flow| flow.is_long_past(psn))
    }

    /// An atomic has come to its target, which executed it or did not. Of whichever of these it is:
    /// their PSNs may be the same. What is executed was sent by one of them.
    pub(super) fn atomic_arrived(
        parts: &[Self],
        packet: &Packet<'_>,
        executed: bool,
        programs: &mut [Program],
    ) -> Result<(), Broken> {
        let begun = |part: &&Self| programs[part.program].flow(part.end, part.life).map(|flow| flow.begun);
        let mut parts: Vec<_> = parts.iter().filter(|part| begun(part).is_some()).collect();
        parts.sort_by_key(|part| Reverse(begun(part)));
        let arrived = |part: &Self| {
            let flow = programs[part.program].flow_mut(part.end, part.life)?;
            flow.atomic_arrived(packet, executed)
        };
        parts.into_iter().find_map(arrived).unwrap_or_else(|| unknown(packet, executed))
    }
}

fn unknown(packet: &Packet<'_>, executed: bool) -> Result<(), Broken> {
    if !executed {
        return Ok(());
    }
    let Bth { opcode, psn, dest_qp, .. } = packet.bth;
    Err(("I3", format!("{opcode:?} with PSN {psn:?} is executed by {dest_qp:?}, and nobody sent it")))
}

#[cfg(test)]
mod tests {
    use roce::wire::{AtomicEth, Ext, Opcode, Qpn, Repr};

    use super::*;

    #[test]
    fn what_nobody_sent_is_not_executed() {
        let ext = Ext::Atomic(AtomicEth { virtual_address: 0, rkey: 1, swap_or_add: 7, compare: 0 });
        let repr = Repr { bth: Bth::new(Opcode::FetchAdd, Qpn::new(7), Psn::new(3)), ext, payload: &[] };
        let mut bytes = vec![0; repr.buffer_len()];
        repr.emit(&mut bytes).unwrap();
        let packet = Packet::parse(&bytes).unwrap();
        let arrived = |executed| Part::atomic_arrived(&[], &packet, executed, &mut []);
        assert!(matches!(arrived(true), Err(("I3", _))));
        assert!(arrived(false).is_ok());
    }
}
