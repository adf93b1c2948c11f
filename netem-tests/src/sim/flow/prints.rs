//! Fingerprints of requests and responses, and what a packet says.

use std::hash::{DefaultHasher, Hasher};

use roce::wire::{BTH_LEN, Ext, Kind, Nak, Opcode, Packet, Syndrome};

/// The PSNs that a response acknowledges.
pub(super) struct Covers {
    /// It acknowledges its own PSN, too.
    pub(super) of_own_psn: bool,
}

/// Returns what a response acknowledges implicitly: everything before its PSN, an ACK its own as
/// well. `None`: no response.
pub(super) fn covers(packet: &Packet<'_>) -> Option<Covers> {
    let of_own_psn = match (packet.bth.opcode.kind(), packet.ext) {
        (Kind::ReadResponse | Kind::AtomicAcknowledge, _) => false,
        (Kind::Acknowledge, Ext::Aeth(aeth)) => match aeth.syndrome {
            Syndrome::Ack { .. } => true,
            Syndrome::Rnr { .. } | Syndrome::Nak(Nak::PsnSequence | _) | Syndrome::Reserved(_) => false,
        },
        _ => return None,
    };
    Some(Covers { of_own_psn })
}

pub(super) fn is_answer(packet: &Packet<'_>) -> bool {
    matches!(packet.bth.opcode.kind(), Kind::ReadResponse | Kind::AtomicAcknowledge)
}

/// Returns the fingerprint of a READ or atomic response's contents, without its opcode: which of a
/// READ's packets is the first depends on where it was resumed.
pub(super) fn answer_print(packet: &Packet<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Ext::AtomicAck(_, value) = packet.ext {
        hasher.write_u64(value.0);
    }
    hasher.write(packet.payload);
    hasher.finish()
}

/// A Middle packet without payload, as no requester sends it.
pub(in crate::sim) fn is_poison(packet: &Packet<'_>) -> bool {
    matches!(packet.bth.opcode, Opcode::SendMiddle | Opcode::WriteMiddle) && packet.payload.is_empty()
}

/// The fingerprints of a request, as it is first sent and as it may be repeated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Print {
    whole: u64,
    /// With address 0, as Soft-RoCE repeats an ATOMIC WRITE or FLUSH.
    astray: u64,
}

impl Print {
    /// Takes those of a request sent for the first time.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut astray = bytes.to_vec();
        let address = match bytes.first().copied().and_then(Opcode::from_u8) {
            Some(Opcode::AtomicWrite) => BTH_LEN..BTH_LEN + 8,
            Some(Opcode::Flush) => BTH_LEN + 4..BTH_LEN + 12,
            _ => 0..0,
        };
        astray.get_mut(address).unwrap_or_default().fill(0);
        Self { whole: fingerprint(bytes), astray: fingerprint(&astray) }
    }

    /// Returns true if this is the same request, sent again or passed on.
    pub(super) fn is_of(self, bytes: &[u8]) -> bool {
        let print = fingerprint(bytes);
        print == self.whole || print == self.astray
    }
}

/// A request's bytes but for what the network (FECN, BECN) and the gateway (AckReq) may change, and
/// for the comparand of a FetchAdd, which means nothing and is another each time that Soft-RoCE
/// sends it.
pub(in crate::sim) fn fingerprint(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Some((head, rest)) = bytes.split_first_chunk::<BTH_LEN>() {
        let mut head = *head;
        head[4] = 0;
        head[8] &= 0x7f;
        hasher.write(&head);
        let changing = if Opcode::from_u8(head[0]) == Some(Opcode::FetchAdd) { 20..28 } else { 0..0 };
        hasher.write(rest.get(..changing.start).unwrap_or_default());
        hasher.write(rest.get(changing.end..).unwrap_or_default());
    }
    hasher.finish()
}
