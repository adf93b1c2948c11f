//! Transport headers of requests, without what the peer has acknowledged of their flow.
//!
//! Requester side and responder side agree on partition, queue pair and PSN by the requests that
//! open a flow. These say the same, or it is not left out of those that follow.
//!
//! Rule: `docs/protocol.md#rule-short-header`.

use roce::wire::{BTH_LEN, Bth, Psn, Qpn};

/// The bit of the BTH's ninth byte that asks for an ACK.
const ASKS_ACK: u8 = 0x80;
/// In its place in a short header: the PSN follows.
const HAS_PSN: u8 = 0x01;

/// Terms that all requests which open a flow state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    target_qpn: Qpn,
    pkey: u16,
    /// PSN less sequence number.
    first_psn: Psn,
}

impl Known {
    pub(crate) fn new(bth: &Bth, seq: u32) -> Self {
        Self { target_qpn: bth.dest_qp, pkey: bth.pkey, first_psn: bth.psn - seq }
    }

    /// The header that the short one at the front of `body` stands for, and what follows it;
    /// `None` if there is no such.
    pub(crate) fn restore<'a>(&self, body: &'a [u8], seq: u32) -> Option<([u8; BTH_LEN], &'a [u8])> {
        let ([opcode, bits, ack], rest) = body.split_first_chunk()?;
        let (psn, rest) = match ack & !ASKS_ACK {
            0 => (self.first_psn + seq, rest),
            HAS_PSN => {
                let ([a, b, c], rest) = rest.split_first_chunk()?;
                (Psn::new(u32::from_be_bytes([0, *a, *b, *c])), rest)
            }
            _ => return None,
        };
        let [p0, p1] = self.pkey.to_be_bytes();
        let [_, q0, q1, q2] = self.target_qpn.get().to_be_bytes();
        let [_, n0, n1, n2] = psn.get().to_be_bytes();
        Some(([*opcode, *bits, p0, p1, 0, q0, q1, q2, ack & ASKS_ACK, n0, n1, n2], rest))
    }

    /// The short header of a packet, if nothing is lost by it. Without `tells_psn` the PSN is left
    /// out where it follows.
    fn shorten(&self, packet: &[u8], seq: u32, tells_psn: bool) -> Option<Short> {
        let &[opcode, bits, _, _, 0, _, _, _, ack, n0, n1, n2] = packet.first_chunk()? else { return None };
        let follows = !tells_psn && self.first_psn + seq == Psn::new(u32::from_be_bytes([0, n0, n1, n2]));
        let short = if follows {
            Short { bytes: [opcode, bits, ack, 0, 0, 0], len: 3 }
        } else {
            Short { bytes: [opcode, bits, ack | HAS_PSN, n0, n1, n2], len: 6 }
        };
        let restored = self.restore(short.as_ref(), seq)?;
        (packet.first_chunk() == Some(&restored.0)).then_some(short)
    }
}

/// A short header in its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    bytes: [u8; 6],
    len: usize,
}

impl AsRef<[u8]> for Short {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Terms that the requests which opened a flow have stated, whichever of them the peer takes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Said {
    /// There were none.
    #[default]
    Nothing,
    /// All the same.
    Alike(Known),
    /// The same, but for PSNs that do not follow their sequence numbers.
    AlikeButPsn(Known),
    /// Other partitions.
    Otherwise,
}

impl Said {
    /// Notes a request that opens the flow.
    pub(crate) fn note(&mut self, bth: &Bth, seq: u32) {
        let said = Known::new(bth, seq);
        *self = match *self {
            Self::Nothing => Self::Alike(said),
            Self::Alike(before) if before == said => *self,
            Self::Alike(before) | Self::AlikeButPsn(before)
                if before == (Known { first_psn: before.first_psn, ..said }) =>
            {
                Self::AlikeButPsn(before)
            }
            Self::Alike(_) | Self::AlikeButPsn(_) | Self::Otherwise => Self::Otherwise,
        };
    }

    /// The short header of a packet, if nothing is lost by it.
    pub(crate) fn shorten(&self, packet: &[u8], seq: u32) -> Option<Short> {
        match self {
            Self::Alike(known) => known.shorten(packet, seq, false),
            Self::AlikeButPsn(known) => known.shorten(packet, seq, true),
            Self::Nothing | Self::Otherwise => None,
        }
    }
}

/// How far the peer knows a flow whose requests come from here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Introduction {
    /// The peer has answered, so it knows the address.
    pub(crate) answered: bool,
    /// Terms that it knows from the requests before that.
    pub(crate) said: Said,
    /// How often it was told whether to ask about what is outstanding: odd if it is not to.
    pub(crate) suspended: u32,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use roce::wire::Packet;

    use super::*;

    /// A SEND of one packet, of queue pair 0x112233 and PSN 0x000105.
    const PACKET: [u8; 16] = [0x04, 0x40, 0xff, 0xff, 0, 0x11, 0x22, 0x33, 0x80, 0, 1, 5, 1, 2, 3, 4];

    fn bth(packet: &[u8]) -> Bth {
        Packet::parse(packet).unwrap().bth
    }

    fn said(packets: &[(&[u8], u32)]) -> Said {
        let mut said = Said::default();
        packets.iter().for_each(|(packet, seq)| said.note(&bth(packet), *seq));
        said
    }

    #[test]
    fn what_follows_from_the_first_request_is_left_out() {
        let said = said(&[(&PACKET, 5)]);
        let Said::Alike(known) = said else { panic!("{said:?}") };
        let mut next = PACKET;
        next[11] = 7;
        let short = said.shorten(&next, 7).unwrap();
        assert_eq!(short.as_ref(), [0x04, 0x40, 0x80]);
        let body = [short.as_ref(), &next[12..]].concat();
        assert_eq!(known.restore(&body, 7), Some((*next.first_chunk().unwrap(), &next[12..])));
        // After a READ of many packets, and over the end of the PSNs.
        let short = said.shorten(&next, 6).unwrap();
        assert_eq!(short.as_ref(), [0x04, 0x40, 0x81, 0, 1, 7]);
        next[9..12].copy_from_slice(&[0, 0, 2]);
        assert_eq!(said.shorten(&next, (1 << 24) - 0x100 + 2).unwrap().as_ref().len(), 3);
    }

    #[test]
    fn what_opening_requests_say_otherwise_stays() {
        let (mut other_psn, mut other_key) = (PACKET, PACKET);
        (other_psn[11], other_key[3]) = (9, 0xfe);
        let (first, later, foreign) = ((&PACKET[..], 5), (&other_psn[..], 6), (&other_key[..], 5));
        assert!(matches!(said(&[first, first]), Said::Alike(_)));
        for packets in [[first, later], [later, first]] {
            let said = said(&packets);
            assert_eq!(said.shorten(&PACKET, 5).unwrap().as_ref(), [0x04, 0x40, 0x81, 0, 1, 5]);
            assert_eq!(said.shorten(&other_key, 5), None);
        }
        assert_eq!(said(&[first, foreign]).shorten(&PACKET, 5), None);
        assert_eq!(said(&[first, later, foreign, first]), Said::Otherwise);
        assert_eq!(Said::default().shorten(&PACKET, 5), None);
    }

    #[test]
    fn truncated_and_unknown_forms_are_refused() {
        let known = Known::new(&bth(&PACKET), 5);
        for body in [&[][..], &[4, 0], &[4, 0, 2], &[4, 0, 1, 0, 0], &[4, 0, 0xff, 1, 2, 3]] {
            assert_eq!(known.restore(body, 5), None, "{body:?}");
        }
    }

    proptest! {
        /// A header is restored to what it was, or is not shortened.
        #[test]
        fn nothing_is_lost(bytes in any::<[u8; 12]>(), zeros in any::<bool>(), psn in any::<bool>(), opening in any::<[u8; 7]>(), seq in any::<u32>()) {
            let [pkey @ .., a, b, c, d, e] = opening;
            let mut packet = bytes;
            let known = Known {
                target_qpn: Qpn::new(u32::from_be_bytes([0, a, b, c])),
                pkey: u16::from_be_bytes(pkey),
                first_psn: Psn::new(u32::from_be_bytes([a, b, d, e])),
            };
            if zeros {
                let [p0, p1] = pkey;
                packet[2..8].copy_from_slice(&[p0, p1, 0, a, b, c]);
                packet[8] &= 0x80;
            }
            if psn {
                packet[9..].copy_from_slice(&(known.first_psn + seq).get().to_be_bytes()[1..]);
            }
            for said in [Said::Alike(known), Said::AlikeButPsn(known)] {
                let short = said.shorten(&packet, seq);
                prop_assert!(short.is_some() || !zeros);
                if let Some(short) = short {
                    let body = [short.as_ref(), b"rest"].concat();
                    prop_assert_eq!(known.restore(&body, seq), Some((packet, &b"rest"[..])));
                }
            }
        }
    }
}
