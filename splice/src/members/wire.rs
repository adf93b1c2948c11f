//! Messages between members, in their bytes (`docs/protocol.md#members`).

use std::net::IpAddr;

use super::{HostPair, LeaseId, MemberId, Message, Process, Reach, Since, Term, Towards};
use crate::sixteen::{of_sixteen, to_sixteen};

/// A message and the life of its sender, in its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    bytes: [u8; Word::LONGEST],
    len: usize,
}

impl AsRef<[u8]> for Word {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Word {
    /// Bytes of the longest one, an agreement.
    pub const LONGEST: usize = 8 + 1 + PAIR + TERM + 3 * 8;

    /// Takes bytes that came. `None`: they are too many.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let mut word = Self { bytes: [0; Self::LONGEST], len: 0 };
        word.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        word.len = bytes.len();
        Some(word)
    }

    /// Writes a message of a process of this incarnation.
    #[must_use]
    pub fn new(incarnation: u64, message: &Message) -> Self {
        let mut out = Self { bytes: [0; Self::LONGEST], len: 0 };
        out.number(incarnation);
        match *message {
            Message::Alive(Towards(site), Reach { steadily, lately }) => {
                out.put(&[1, steadily, lately]);
                out.put(&site.to_be_bytes());
            }
            Message::Pausing(Towards(site), millis) => {
                out.put(&[11]);
                out.put(&millis.to_be_bytes());
                out.put(&site.to_be_bytes());
            }
            Message::Beat(sent) => {
                out.put(&[2]);
                out.number(sent);
            }
            Message::Beaten(sent, lease) => {
                out.put(&[3]);
                out.number(sent);
                if let Some(lease) = lease {
                    out.lease(lease);
                }
            }
            Message::Claim(pair, term) => out.about(4, pair, term),
            Message::Agreed(pair, term, lease, Since(since)) => {
                out.about(5, pair, term);
                out.lease(lease);
                out.number(since);
            }
            Message::Outbid(pair, term, by) => {
                out.about(6, pair, term);
                out.term(by);
            }
            Message::Yield(pair, to) => out.about(7, pair, to),
            Message::Yielded(pair, to) => out.about(8, pair, to),
            Message::Release(pair, term) => out.about(9, pair, term),
            Message::Wanted(pair) => {
                out.put(&[10]);
                out.pair(pair);
            }
        }
        out
    }

    /// Reads it: the sender's incarnation and the message. `None`: it breaks the format.
    #[must_use]
    pub fn read(&self) -> Option<(u64, Message)> {
        let mut rest = Reader(self.as_ref());
        let incarnation = rest.number()?;
        let [kind] = rest.array()?;
        let message = match kind {
            1 => {
                let [steadily, lately] = rest.array()?;
                let towards = Towards(u32::from_be_bytes(rest.array()?));
                Message::Alive(towards, Reach { steadily, lately })
            }
            2 => Message::Beat(rest.number()?),
            3 => {
                let sent = rest.number()?;
                Message::Beaten(sent, if rest.0.is_empty() { None } else { Some(rest.lease()?) })
            }
            4 => Message::Claim(rest.pair()?, rest.term()?),
            5 => Message::Agreed(rest.pair()?, rest.term()?, rest.lease()?, Since(rest.number()?)),
            6 => Message::Outbid(rest.pair()?, rest.term()?, rest.term()?),
            7 => Message::Yield(rest.pair()?, rest.term()?),
            8 => Message::Yielded(rest.pair()?, rest.term()?),
            9 => Message::Release(rest.pair()?, rest.term()?),
            10 => Message::Wanted(rest.pair()?),
            11 => {
                let millis = u32::from_be_bytes(rest.array()?);
                Message::Pausing(Towards(u32::from_be_bytes(rest.array()?)), millis)
            }
            _ => return None,
        };
        rest.0.is_empty().then_some((incarnation, message))
    }

    fn put(&mut self, field: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + field.len()) {
            room.copy_from_slice(field);
            self.len += field.len();
        }
    }

    fn number(&mut self, number: u64) {
        self.put(&number.to_be_bytes());
    }

    fn pair(&mut self, pair: HostPair) {
        for address in [pair.low, pair.high] {
            self.put(&to_sixteen(address));
        }
    }

    fn term(&mut self, Term { count, by }: Term) {
        self.number(count);
        self.put(&by.member.0.to_be_bytes());
        self.number(by.incarnation);
    }

    fn lease(&mut self, LeaseId { incarnation, count }: LeaseId) {
        self.number(incarnation);
        self.number(count);
    }

    fn about(&mut self, kind: u8, pair: HostPair, term: Term) {
        self.put(&[kind]);
        self.pair(pair);
        self.term(term);
    }
}

const PAIR: usize = 2 * 16;
const TERM: usize = 8 + 4 + 8;

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn address(&mut self) -> Option<IpAddr> {
        self.array().map(of_sixteen)
    }

    fn pair(&mut self) -> Option<HostPair> {
        Some(HostPair::new(self.address()?, self.address()?))
    }

    fn term(&mut self) -> Option<Term> {
        let count = self.number()?;
        let member = MemberId(u32::from_be_bytes(self.array()?));
        Some(Term { count, by: Process { member, incarnation: self.number()? } })
    }

    fn lease(&mut self) -> Option<LeaseId> {
        Some(LeaseId { incarnation: self.number()?, count: self.number()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_read_as_it_was_written_and_no_shorter_or_longer_one_is() {
        let pair = HostPair::new([10, 0, 0, 1].into(), "fd00::1".parse().unwrap());
        let term = Term { count: 7, by: Process { member: MemberId(0xa1), incarnation: 1 << 63 } };
        let lease = LeaseId { incarnation: 5, count: 6 };
        let messages = [
            Message::Alive(Towards(0xb0b1_b2b3), Reach { steadily: 1, lately: 2 }),
            Message::Pausing(Towards(0xb0b1_b2b3), 3000),
            Message::Beat(3),
            Message::Beaten(4, None),
            Message::Beaten(4, Some(lease)),
            Message::Claim(pair, term),
            Message::Agreed(pair, term, lease, Since(8)),
            Message::Outbid(pair, term, Term { count: 9, ..term }),
            Message::Yield(pair, term),
            Message::Yielded(pair, term),
            Message::Release(pair, term),
            Message::Wanted(pair),
        ];
        for message in messages {
            let word = Word::new(77, &message);
            assert_eq!(word.read(), Some((77, message)));
            let bytes = word.as_ref();
            let shorter = Word::of(&bytes[..bytes.len() - 1]).unwrap();
            assert_eq!(shorter.read(), None, "{message:?}");
            let longer = Word::of(&[bytes, &[0]].concat());
            assert_eq!(longer.and_then(|longer| longer.read()), None, "{message:?}");
        }
        assert!(Word::of(&[0; Word::LONGEST + 1]).is_none());
    }
}
