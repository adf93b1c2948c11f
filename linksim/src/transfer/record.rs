//! How a message's bytes stand in the core's packets.

use std::ops::RangeInclusive;

use reliability::stream::{DATA_HEADER, RECORD_HEADER, Transmit, TransmitKind, data_header};

use super::{Pattern, Transfer};

/// Bytes that a DATA packet adds to a record that fills it, at most.
pub(super) const HEADERS: usize = DATA_HEADER + RECORD_HEADER;
/// Message number and length, at the front of every record.
pub(super) const SHORTEST: usize = 16;
/// The shortest packet that a sender makes, and so the room in it.
const STAND_IN: usize = 256 - HEADERS;
/// Bytes of a record that a packet may hold.
pub(super) const PACKETS: RangeInclusive<usize> = STAND_IN..=32_000;

/// The form of records in the core: themselves, or short ones in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As they are: messages may share packets.
    True,
    /// Each fills a packet of the core's shortest kind.
    StandIn,
}

impl Form {
    pub(super) fn of(transfer: &Transfer) -> Self {
        let alone = transfer.pattern == Pattern::Closed { depth: 1 };
        if alone || transfer.size >= transfer.packet as u64 { Self::StandIn } else { Self::True }
    }

    /// The core's packet length for records of `packet` bytes.
    pub(super) fn max_packet(self, packet: usize) -> usize {
        HEADERS + self.len(packet)
    }

    /// Bytes in the core of a record of `len` bytes.
    pub(super) fn len(self, len: usize) -> usize {
        match self {
            Self::True => len,
            Self::StandIn => STAND_IN,
        }
    }

    /// The true length of a packet that the core has made, for messages whose longest record has
    /// `longest` bytes.
    pub(super) fn wire_len(self, transmit: Transmit, packet: &[u8], longest: usize) -> usize {
        match (self, transmit.kind) {
            (Self::True, _) => transmit.len,
            (Self::StandIn, TransmitKind::Parity) => transmit.len.saturating_sub(STAND_IN) + longest,
            (Self::StandIn, _) => {
                let record = packet.get(data_header(packet) + RECORD_HEADER..);
                HEADERS + record.and_then(parse).map_or(0, |head| head.len)
            }
        }
    }
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The message.
    pub(super) message: u64,
    /// The record's true length.
    pub(super) len: usize,
}

pub(super) fn write(head: Head, record: &mut [u8]) {
    if let Some((message, rest)) = record.split_first_chunk_mut()
        && let Some(len) = rest.first_chunk_mut()
    {
        *message = head.message.to_be_bytes();
        *len = (head.len as u64).to_be_bytes();
    }
}

pub(super) fn parse(record: &[u8]) -> Option<Head> {
    let (message, rest) = record.split_first_chunk()?;
    let len = u64::from_be_bytes(*rest.first_chunk()?) as usize;
    Some(Head { message: u64::from_be_bytes(*message), len })
}
