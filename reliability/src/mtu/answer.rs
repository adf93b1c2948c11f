//! The packets of the search, and the end that answers.

use crate::estimator::LaneId;
use crate::stream::wire::{Kind, Reader, Start, Writer};
use crate::stream::{Malformed, StreamId};

/// Shortest MTU packet, and the length of an answer.
pub const MTU_PACKET: usize = 32;
const ANSWER: u8 = 0x01;
/// Probes told of in an answer: the newest and those before it.
const TOLD: u32 = 32;

/// An MTU packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Is to be answered.
    Probe(Probe),
    /// Answers.
    Answer(Answer),
}

/// Its length is what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Counts the probes of a session and direction.
    pub id: u32,
    /// The length that its sender uses for now.
    pub in_use: u16,
}

/// The answer to probes: which of them arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The highest probe.
    pub newest: u32,
    /// Bit `i`: probe `newest - i` has.
    pub arrived: u32,
    /// Length of the longest packet of any kind since the answer before.
    pub longest: u16,
}

impl Message {
    /// Takes an MTU packet apart.
    ///
    /// # Errors
    /// [`Malformed`] if it is none, or ends too early.
    pub fn parse(packet: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(packet);
        let Start { kind, flags, .. } = reader.start()?;
        if kind != Kind::Mtu {
            return Err(Malformed::Direction(kind));
        }
        if packet.len() < MTU_PACKET {
            return Err(Malformed::Truncated);
        }
        let id = reader.u32()?;
        if flags & ANSWER == 0 {
            return Ok(Self::Probe(Probe { id, in_use: reader.u16()? }));
        }
        Ok(Self::Answer(Answer { newest: id, arrived: reader.u32()?, longest: reader.u16()? }))
    }

    /// Writes it, and zeros to the end of `out`.
    pub(super) fn emit(&self, lane: LaneId, out: &mut [u8]) {
        out.fill(0);
        let mut writer = Writer::new(out);
        match self {
            Self::Probe(probe) => {
                writer.start(Kind::Mtu, 0, StreamId(lane.0));
                writer.put(&probe.id.to_be_bytes());
                writer.put(&probe.in_use.to_be_bytes());
            }
            Self::Answer(answer) => {
                writer.start(Kind::Mtu, ANSWER, StreamId(lane.0));
                writer.put(&answer.newest.to_be_bytes());
                writer.put(&answer.arrived.to_be_bytes());
                writer.put(&answer.longest.to_be_bytes());
            }
        }
    }
}

/// Answers the peer's probes: one answer after each batch of packets in which some came, so no more
/// answers than probes. An answer tells of the 32 newest probes, so one that is lost is made up for
/// by the next.
///
/// # Driver contract
/// [`Answerer::arrived`] for every packet, [`Answerer::handle_probe`] for the probes among them;
/// then [`Answerer::poll`].
#[derive(Clone, Debug)]
pub struct Answerer {
    lane: LaneId,
    newest: Option<u32>,
    arrived: u32,
    longest: usize,
    in_use: u16,
    due: bool,
}

impl Answerer {
    /// Nothing has arrived.
    #[must_use]
    pub fn new(lane: LaneId) -> Self {
        Self { lane, newest: None, arrived: 0, longest: 0, in_use: 0, due: false }
    }

    /// An authentic packet of so many bytes.
    pub fn arrived(&mut self, len: usize) {
        self.longest = self.longest.max(len);
    }

    /// It was a probe.
    pub fn handle_probe(&mut self, probe: &Probe) {
        let ahead = self.newest.map_or(TOLD as i32, |newest| probe.id.wrapping_sub(newest) as i32);
        if ahead > 0 {
            self.arrived = self.arrived.checked_shl(ahead.unsigned_abs()).unwrap_or(0) | 1;
            self.newest = Some(probe.id);
            self.in_use = probe.in_use;
        } else {
            self.arrived |= 1_u32.checked_shl(ahead.unsigned_abs()).unwrap_or(0);
        }
        self.due = true;
    }

    /// The length that the peer uses for now, as its last probe says; 0 before the first.
    #[must_use]
    pub fn in_use(&self) -> u16 {
        self.in_use
    }

    /// Writes the answer that is due; its length.
    pub fn poll(&mut self, out: &mut [u8]) -> Option<usize> {
        let newest = self.newest.filter(|_| self.due)?;
        let out = out.get_mut(..MTU_PACKET)?;
        let longest = u16::try_from(std::mem::take(&mut self.longest)).unwrap_or(u16::MAX);
        Message::Answer(Answer { newest, arrived: self.arrived, longest }).emit(self.lane, out);
        self.due = false;
        Some(MTU_PACKET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_packets_stand_on_the_wire_as_written_down() {
        let mut out = [9; 40];
        Message::Probe(Probe { id: 0x0102_0304, in_use: 1440 }).emit(LaneId(7), &mut out);
        assert_eq!(out[..12], [6, 0, 0, 7, 1, 2, 3, 4, 5, 160, 0, 0]);
        let parsed = Message::parse(&out);
        assert_eq!(parsed, Ok(Message::Probe(Probe { id: 0x0102_0304, in_use: 1440 })));
        assert_eq!(Message::parse(&out[..31]), Err(Malformed::Truncated));
        let answer = Answer { newest: 5, arrived: 0x8000_0001, longest: 8940 };
        Message::Answer(answer).emit(LaneId(0), &mut out);
        assert_eq!(out[..16], [6, 1, 0, 0, 0, 0, 0, 5, 128, 0, 0, 1, 0x22, 0xec, 0, 0]);
        assert_eq!(Message::parse(&out), Ok(Message::Answer(answer)));
        out[0] = 5;
        assert_eq!(Message::parse(&out), Err(Malformed::Direction(Kind::Probe)));
    }

    #[test]
    fn an_answer_tells_of_the_newest_probes_whatever_their_order_and_their_copies() {
        let mut answerer = Answerer::new(LaneId(0));
        let mut out = [0; 100];
        assert_eq!(answerer.poll(&mut out), None);
        answerer.arrived(500);
        assert_eq!(answerer.poll(&mut out), None, "nobody asked");
        let mut tell = |ids: &[u32]| {
            for id in ids {
                answerer.arrived(40);
                answerer.handle_probe(&Probe { id: *id, in_use: 9 });
            }
            let Some(MTU_PACKET) = answerer.poll(&mut out) else { panic!("no answer") };
            assert_eq!(answerer.poll(&mut [0; 100]), None, "one answer");
            match Message::parse(&out[..MTU_PACKET]) {
                Ok(Message::Answer(answer)) => (answer.newest, answer.arrived, answer.longest),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(tell(&[u32::MAX]), (u32::MAX, 1, 500));
        assert_eq!(tell(&[1]), (1, 0b101, 40));
        assert_eq!(tell(&[0, 1, u32::MAX - 1]), (1, 0b1111, 40));
        assert_eq!(tell(&[33]), (33, 1, 40), "what is too old is forgotten");
        assert_eq!(tell(&[1, 2]), (33, 0x8000_0001, 40));
    }
}
