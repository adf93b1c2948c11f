//! Answers that go along with the next message of the other direction.
//!
//! On a network that keeps order, a target's ACK comes before what its program then sends back, and
//! programs rely on it. Across the link the two are records of their own, and either may be lost
//! and repaired later than the other. So the answer is sent again beside that message: whoever gets
//! the message has the answer.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::wire::Qpn;

use crate::record::FlowId;

/// An end of a queue pair's connection.
pub(crate) type End = (IpAddr, Qpn);

/// A queue pair's connection, seen from one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Connection {
    pub(crate) here: End,
    pub(crate) there: End,
}

/// A response without payload, as it was sent to the peer.
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Answer {
    connection: Connection,
    pub(crate) flow: FlowId,
    pub(crate) seq: u32,
    /// It begins with a short header.
    pub(crate) is_short: bool,
    bytes: [u8; LONGEST],
    len: usize,
    #[serde_as(as = "snapshot::At")]
    sent: Instant,
}

impl Answer {
    /// From the BTH on, or from what stands for it.
    pub(crate) fn packet(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The last answer of each connection's target here, until it has been sent twice.
///
/// Bound: [`PLACES`] connections. One that falls on another's place takes it; that other's answer
/// is then sent once, like any record.
///
/// Rule: `docs/protocol.md#rule-response-twice`.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct PiggybackedAcks {
    places: Box<[Option<Answer>]>,
}

/// Some hundred bytes each. Only connections with an answer from the last moments need one.
const PLACES: usize = 1024;

/// An answer sent so long ago has come, or what repairs it brings it as well. Nor has its flow had
/// so many responses since, be they of a READ, that its number could be taken for that of one to
/// come: half of all numbers.
const FRESH: Duration = Duration::from_secs(10);

/// BTH, AETH and what an atomic returns.
const LONGEST: usize = 12 + 4 + 8;

impl PiggybackedAcks {
    pub(crate) fn new() -> Self {
        Self { places: vec![None; PLACES].into() }
    }

    /// This has just been sent. One with payload is none, and brings nothing forward that is not
    /// there yet.
    pub(crate) fn note(
        &mut self,
        connection: Connection,
        (flow, seq, is_short): (FlowId, u32, bool),
        parts: [&[u8]; 2],
        now: Instant,
    ) {
        let [front, back] = parts;
        let len = front.len() + back.len();
        let mut bytes = [0; LONGEST];
        let (Some(first), Some(place)) = (bytes.get_mut(..len), self.place(&connection)) else { return };
        let (left, right) = first.split_at_mut(front.len());
        left.copy_from_slice(front);
        right.copy_from_slice(back);
        *place = Some(Answer { connection, flow, seq, is_short, bytes, len, sent: now });
    }

    /// Takes what is to go along with a message on the connection; each is taken once.
    pub(crate) fn take(&mut self, connection: &Connection, now: Instant) -> Option<Answer> {
        let answer = self.place(connection)?.take_if(|answer| answer.connection == *connection);
        answer.filter(|answer| now.saturating_duration_since(answer.sent) < FRESH)
    }

    fn place(&mut self, connection: &Connection) -> Option<&mut Option<Answer>> {
        let Connection { here: (_, here), there: (host, there) } = connection;
        let host = match host {
            IpAddr::V4(v4) => v4.to_bits(),
            IpAddr::V6(v6) => v6.to_bits() as u32,
        };
        // Queue pairs are mostly numbered one after the other, and so are hosts.
        let mixed =
            (here.get() ^ there.get().rotate_left(8) ^ host.rotate_left(16)).wrapping_mul(0x9e37_79b1);
        self.places.get_mut((mixed >> 22) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
    fn origin() -> Instant {
        Instant::now()
    }

    fn connection(there: u32) -> Connection {
        let end = |host: &str, qpn| (host.parse().unwrap(), Qpn::new(qpn));
        Connection { here: end("10.0.1.1", 0x22), there: end("10.0.0.1", there) }
    }

    #[test]
    fn the_last_answer_goes_along_once() {
        let (mut answers, now) = (PiggybackedAcks::new(), origin());
        answers.note(connection(1), (FlowId(5), 7, false), [&[1; 16], &[]], now);
        answers.note(connection(1), (FlowId(5), 8, true), [&[1; 12], &[2; 4]], now);
        assert!(answers.take(&connection(2), now).is_none());
        let answer = answers.take(&connection(1), now).unwrap();
        assert_eq!((answer.flow, answer.seq, answer.is_short), (FlowId(5), 8, true));
        assert_eq!(answer.packet(), [[1; 12].as_slice(), &[2; 4]].concat());
        assert!(answers.take(&connection(1), now).is_none());
    }

    #[test]
    fn what_is_longer_than_an_answer_is_none() {
        let (mut answers, now) = (PiggybackedAcks::new(), origin());
        answers.note(connection(1), (FlowId(5), 7, false), [&[1; 20], &[2; 5]], now);
        assert!(answers.take(&connection(1), now).is_none());
    }

    #[test]
    fn neighbours_have_places_of_their_own() {
        let (mut answers, now) = (PiggybackedAcks::new(), origin());
        for there in 0..64 {
            answers.note(connection(there), (FlowId(there), 0, false), [&[0; 16], &[]], now);
        }
        let left = (0..64).filter(|there| answers.take(&connection(*there), now).is_some()).count();
        assert!(left > 56, "{left}");
    }
}
