//! Flows that a liar overhears.

use std::collections::BTreeMap;

use roce::ip::Addressing;
use roce::wire::{Bth, Qpn};
use splice::record::{Head, Opening};

/// Flows at most.
const MOST: usize = 256;
const DATA: u8 = 0x80;
const KIND: u8 = 0xc0;

/// A flow, as its records show it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    pub(super) addressing: Option<Addressing>,
    /// Sequence number and header of the last request, and of the last response, that had a whole
    /// header.
    pub(super) request: Option<(u32, Bth)>,
    pub(super) response: Option<(u32, Bth)>,
    /// The highest sequence numbers.
    pub(super) requests: u32,
    pub(super) responses: u32,
}

impl Flow {
    pub(super) fn target_qpn(&self) -> Qpn {
        self.request.map_or(Qpn::new(1), |(_, bth)| bth.dest_qp)
    }

    pub(super) fn requester_qpn(&self) -> Qpn {
        self.response.map_or(Qpn::new(1), |(_, bth)| bth.dest_qp)
    }

    /// About the PSN of the next request, if each request is a message.
    pub(super) fn next_psn(&self) -> u32 {
        self.request.map_or(0, |(seq, bth)| bth.psn.get().wrapping_add(self.requests.wrapping_sub(seq)))
    }

    /// The same of the next response.
    pub(super) fn next_answer(&self) -> u32 {
        self.response.map_or(0, |(seq, bth)| bth.psn.get().wrapping_add(self.responses.wrapping_sub(seq)))
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Overheard {
    flows: BTreeMap<u32, Flow>,
    /// The next number of a lie about a flow.
    pub(super) told: BTreeMap<u32, u32>,
}

impl Overheard {
    /// Every flow, by its number.
    pub(super) fn flows(&self) -> impl ExactSizeIterator<Item = (u32, &Flow)> {
        self.flows.iter().map(|(id, flow)| (*id, flow))
    }

    pub(super) fn hear(&mut self, packet: &[u8]) {
        let Some(&first) = packet.first() else { return };
        if first & KIND != DATA {
            return;
        }
        let header = if first >> 2 & 3 > 1 { 19 } else { 11 };
        let mut frames = packet.get(header..).unwrap_or_default();
        while let Some((record, rest)) = next_record(frames) {
            self.note(record);
            frames = rest;
        }
    }

    /// A record, or its first piece.
    fn note(&mut self, record: &[u8]) {
        let Ok((head, body)) = Head::parse(record) else { return };
        let (Head::Request { flow, .. } | Head::Response { flow, .. }) = head else { return };
        if self.flows.len() >= MOST && !self.flows.contains_key(&flow.0) {
            return;
        }
        let known = self.flows.entry(flow.0).or_default();
        let bth = body.first_chunk().and_then(|bth| Bth::parse(bth).ok());
        match head {
            Head::Request { seq, opens, .. } => {
                known.requests = known.requests.max(seq);
                if let Opening::Full(addressing) = opens {
                    known.addressing = Some(addressing);
                }
                if let Some(bth) = bth.filter(|_| opens != Opening::Short) {
                    known.request = Some((seq, bth));
                }
            }
            Head::Response { seq, is_short, .. } => {
                known.responses = known.responses.max(seq);
                if let Some(bth) = bth.filter(|_| !is_short) {
                    known.response = Some((seq, bth));
                }
            }
            _ => {}
        }
    }
}

/// The first record in these frames, or the piece that it begins with, and what follows it.
fn next_record(frames: &[u8]) -> Option<(&[u8], &[u8])> {
    match frames {
        // It begins in this packet, and goes on to its end.
        [0x80, length, ..] => Some((frames.get(if length >> 6 == 0 { 3 } else { 5 }..)?, &[])),
        [high, low, rest @ ..] if *high < 0x80 => {
            let len = u16::from_be_bytes([*high, *low]).checked_sub(1)?;
            rest.split_at_checked(len.into())
        }
        _ => None,
    }
}
