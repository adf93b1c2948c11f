//! Transport headers without what the peer has acknowledged of their flow.
//!
//! Requester side and responder side agree on partition, queue pair and PSN by the requests that
//! open a flow. These say the same, or it is not left out of those that follow. By a flow's first
//! responses they agree likewise: a request that does not open the flow acknowledges one of them.
//!
//! Rules: `docs/protocol.md#rule-short-header`, `docs/protocol.md#rule-short-response`.

use roce::wire::{Aeth, BTH_LEN, Bth, Psn};

/// The bit of the BTH's ninth byte that asks for an ACK.
const ASKS_ACK: u8 = 0x80;
/// In its place in a short header: the PSN follows.
const HAS_PSN: u8 = 0x01;

/// Terms that all packets state which came before the peer had one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Known {
    /// The destination's queue pair. As they stand in a BTH, these take the least room in a flow.
    qpn: [u8; 3],
    pkey: [u8; 2],
    /// PSN less sequence number.
    first_psn: [u8; 3],
}

fn three([_, a, b, c]: [u8; 4]) -> [u8; 3] {
    [a, b, c]
}

fn psn([a, b, c]: [u8; 3]) -> Psn {
    Psn::new(u32::from_be_bytes([0, a, b, c]))
}

impl Known {
    pub(crate) fn new(bth: &Bth, seq: u32) -> Self {
        Self {
            qpn: three(bth.dest_qp.get().to_be_bytes()),
            pkey: bth.pkey.to_be_bytes(),
            first_psn: three((bth.psn - seq).get().to_be_bytes()),
        }
    }

    /// The header that the short one at the front of `body` stands for, and what follows it;
    /// `None` if there is no such.
    pub(crate) fn restore<'a>(&self, body: &'a [u8], seq: u32) -> Option<([u8; BTH_LEN], &'a [u8])> {
        let ([opcode, bits, ack], rest) = body.split_first_chunk()?;
        let ([n0, n1, n2], rest) = match ack & !ASKS_ACK {
            0 => (three((psn(self.first_psn) + seq).get().to_be_bytes()), rest),
            HAS_PSN => rest.split_first_chunk().map(|(psn, rest)| (*psn, rest))?,
            _ => return None,
        };
        let Self { qpn: [q0, q1, q2], pkey: [p0, p1], .. } = *self;
        Some(([*opcode, *bits, p0, p1, 0, q0, q1, q2, ack & ASKS_ACK, n0, n1, n2], rest))
    }

    /// The short header of a packet, if nothing is lost by it. Without `tells_psn` the PSN is left
    /// out where it follows.
    #[inline]
    fn shorten(&self, packet: &[u8], seq: u32, tells_psn: bool) -> Option<Short> {
        let &[opcode, bits, p0, p1, 0, q0, q1, q2, ack, n0, n1, n2] = packet.first_chunk()? else {
            return None;
        };
        if [p0, p1] != self.pkey || [q0, q1, q2] != self.qpn || ack & !ASKS_ACK != 0 {
            return None;
        }
        let follows = !tells_psn && psn(self.first_psn) + seq == psn([n0, n1, n2]);
        let (ack, len) = if follows { (ack, 3) } else { (ack | HAS_PSN, 6) };
        let mut short = Short { len, ..Short::default() };
        *short.bytes.first_chunk_mut()? = [opcode, bits, ack, n0, n1, n2];
        Some(short)
    }
}

/// A short header, and an AETH if one follows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Short {
    bytes: [u8; 6 + Aeth::LEN],
    len: usize,
}

impl Short {
    fn put(&mut self, more: &[u8]) -> Option<()> {
        let end = self.len + more.len();
        self.bytes.get_mut(self.len..end)?.copy_from_slice(more);
        self.len = end;
        Some(())
    }
}

impl AsRef<[u8]> for Short {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Terms that packets have stated before the peer had one of them, whichever it takes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
    /// Notes a packet with a whole header.
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
    #[inline]
    pub(crate) fn shorten(&self, packet: &[u8], seq: u32) -> Option<Short> {
        match self {
            Self::Alike(known) => known.shorten(packet, seq, false),
            Self::AlikeButPsn(known) => known.shorten(packet, seq, true),
            Self::Nothing | Self::Otherwise => None,
        }
    }
}

/// How far the peer knows a flow by the requests, or by the responses, that come from here.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Introduction {
    /// The peer has answered, so it has had one of them.
    pub(crate) answered: bool,
    /// Terms that it knows from those before that.
    pub(crate) said: Said,
}

/// A flow's headers, as far as the gateways know them of each other.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Headers {
    /// Headers that go from here.
    pub(crate) sent: Introduction,
    /// Terms that the first packet to come has stated; `None`: none has.
    pub(crate) came: Option<Known>,
}

impl Introduction {
    /// Replaces the header of a packet in two pieces, of which the first is empty or holds all of
    /// the BTH. Returns the two pieces that the peer needs; `None` if it needs the packet.
    #[inline]
    pub(crate) fn shorten<'a>(&self, [front, back]: [&'a [u8]; 2], seq: u32) -> Option<(Short, &'a [u8])> {
        if !self.answered {
            return None;
        }
        let (packet, back) = if front.is_empty() { (back, back.get(BTH_LEN..)?) } else { (front, back) };
        let mut short = self.said.shorten(packet, seq)?;
        short.put(front.get(BTH_LEN..).unwrap_or_default())?;
        Some((short, back))
    }

    /// Notes such a packet, which was sent as it is.
    pub(crate) fn note(&mut self, [front, back]: [&[u8]; 2], seq: u32) {
        let packet = if front.is_empty() { back } else { front };
        if !self.answered
            && let Some(bth) = packet.first_chunk().and_then(|bth| Bth::parse(bth).ok())
        {
            self.said.note(&bth, seq);
        }
    }
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

    /// An ACK for queue pair 0x112233 and PSN 0x000105.
    const ACK: [u8; 16] = [0x11, 0, 0xff, 0xff, 0, 0x11, 0x22, 0x33, 0, 0, 1, 5, 0x1f, 0, 0, 1];

    #[test]
    fn responses_are_short_once_the_peer_has_had_one() {
        let (head, none): (&[u8], &[u8]) = (&ACK, &[]);
        for parts in [[head, none], [none, head]] {
            let mut told = Introduction::default();
            told.note(parts, 5);
            assert!(told.shorten(parts, 5).is_none(), "it may not have come");
            told.answered = true;
            let (front, back) = told.shorten(parts, 5).unwrap();
            assert_eq!([front.as_ref(), back].concat(), [0x11, 0, 0, 0x1f, 0, 0, 1]);
            // What is sent now comes too late to be the one that the peer has had.
            let mut other = ACK;
            other[7] = 0x34;
            told.note([&other, none], 6);
            assert!(told.shorten([&other, none], 6).is_none());
            let (front, back) = told.shorten(parts, 9).unwrap();
            assert_eq!([front.as_ref(), back].concat(), [0x11, 0, 1, 0, 1, 5, 0x1f, 0, 0, 1]);
        }
    }

    #[test]
    fn a_response_that_says_too_little_or_too_much_stays() {
        let (head, none): (&[u8], &[u8]) = (&ACK, &[]);
        assert!(Introduction { answered: true, said: Said::Nothing }.shorten([head, none], 0).is_none());
        let told = Introduction { answered: true, said: said(&[(&ACK, 5)]) };
        assert!(told.shorten([&head[..4], none], 5).is_none());
        let long = [head, &[0; 7]].concat();
        assert!(told.shorten([&long, none], 9).is_none(), "more headers than an AETH in front");
        let (front, back) = told.shorten([none, &long], 9).unwrap();
        assert_eq!((front.as_ref(), back), (&[0x11, 0, 1, 0, 1, 5][..], &long[12..]));
    }

    proptest! {
        /// A header is restored to what it was, or is not shortened.
        #[test]
        fn nothing_is_lost(bytes in any::<[u8; 12]>(), zeros in any::<bool>(), psn in any::<bool>(), opening in any::<[u8; 7]>(), seq in any::<u32>()) {
            let [pkey @ .., a, b, c, d, e] = opening;
            let mut packet = bytes;
            let known = Known {
                qpn: [a, b, c],
                pkey,
                first_psn: [b, d, e],
            };
            if zeros {
                let [p0, p1] = pkey;
                packet[2..8].copy_from_slice(&[p0, p1, 0, a, b, c]);
                packet[8] &= 0x80;
            }
            if psn {
                let [_, follows @ ..] = (super::psn(known.first_psn) + seq).get().to_be_bytes();
                packet[9..].copy_from_slice(&follows);
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
