//! A flow that a gateway names to the one of its requester, in its bytes.
//!
//! Rule: `docs/protocol.md#rule-moved`.

use roce::wire::{Psn, Qpn};

use crate::sixteen::{of_sixteen, to_sixteen};
use crate::stale_flows::{FlowSide, StaleFlow};

/// Bytes of a flow that is named to its requester's gateway.
const NAMED: usize = 16 + 16 + 3 * 4 + 2;

/// Writes a flow of [`Head::Lives`].
pub(crate) fn write_flow(flow: &StaleFlow) -> [u8; NAMED] {
    let mut bytes = [0; NAMED];
    let words = [flow.target_qpn.get(), flow.requester_qpn.get(), flow.psn.get()];
    let fields = [flow.requester, flow.target].map(to_sixteen);
    let (addresses, rest) = bytes.split_at_mut(32);
    for (room, field) in addresses.chunks_exact_mut(16).zip(fields) {
        room.copy_from_slice(&field);
    }
    let (numbers, port) = rest.split_at_mut(12);
    for (room, word) in numbers.chunks_exact_mut(4).zip(words) {
        room.copy_from_slice(&word.to_be_bytes());
    }
    port.copy_from_slice(&flow.src_port.to_be_bytes());
    bytes
}

/// Reads it. `None`: it breaks the format.
pub(crate) fn read_flow(bytes: &[u8]) -> Option<StaleFlow> {
    let bytes: &[u8; NAMED] = bytes.try_into().ok()?;
    let (requester, rest) = bytes.split_first_chunk::<16>()?;
    let (target, rest) = rest.split_first_chunk::<16>()?;
    let (words, port) = rest.as_chunks::<4>();
    let [target_qpn, requester_qpn, psn] = words else { return None };
    let number = |word: &[u8; 4]| Some(u32::from_be_bytes(*word)).filter(|number| *number >> 24 == 0);
    Some(StaleFlow {
        requester: of_sixteen(*requester),
        target: of_sixteen(*target),
        target_qpn: Qpn::new(number(target_qpn)?),
        requester_qpn: Qpn::new(number(requester_qpn)?),
        psn: Psn::new(number(psn)?),
        src_port: u16::from_be_bytes(port.try_into().ok()?),
        side: FlowSide::Far,
        lives: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_read_as_it_was_written() {
        let flow = StaleFlow {
            requester: [10, 0, 0, 1].into(),
            target: "fd00::2".parse().unwrap(),
            target_qpn: Qpn::new(0xff_ffff),
            requester_qpn: Qpn::new(9),
            psn: Psn::new(5000),
            src_port: 0xc001,
            side: FlowSide::Far,
            lives: true,
        };
        let bytes = write_flow(&flow);
        assert_eq!(read_flow(&bytes), Some(flow));
        assert_eq!(read_flow(&bytes[1..]), None);
        let mut too_high = bytes;
        too_high[32] = 1;
        assert_eq!(read_flow(&too_high), None, "a queue pair beyond 24 bits");
    }
}
