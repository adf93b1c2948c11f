//! Datagrams of a queue pair, as they are before they are sealed. All numbers are big-endian.
//!
//! ```text
//! DATA    01 | generation u8 | 0 u16 | immediate u32 | payload, 1 to MTU bytes
//! CREDIT  02 | flags u8 | 0 u16 | posted u32 | issued u32 | seen posted u32 | seen issued u32
//! KEYS    04 | 0 u8 | 0 u16 | first u32 | for each receive: address u64, key u32
//! CONTROL 03 | 0 u8 | 0 u16 | bytes of the program, 0 to CONTROL_BYTES
//! ```
//!
//! Flag 1 of CREDIT says that the peer has closed the queue pair.

/// Bytes before the payload of DATA.
pub const DATA_HEADER: usize = 8;

/// Bytes of CREDIT.
pub const CREDIT_BYTES: usize = 20;

/// Bytes before those of the program in CONTROL.
pub const CONTROL_HEADER: usize = 4;

/// Most bytes of the program in a CONTROL datagram.
pub const CONTROL_BYTES: usize = 1024;

const DATA: u8 = 1;
const CREDIT: u8 = 2;
const CONTROL: u8 = 3;
const KEYS: u8 = 4;

/// Bytes of a receive in KEYS.
pub const KEY_BYTES: usize = 12;
const CLOSED: u8 = 1;

/// Counts that a side tells of itself, and those of the peer as it knows them. All are modulo 2^32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Credit {
    /// Receives posted.
    pub posted: u32,
    /// Messages issued.
    pub issued: u32,
    /// Receives that the peer posted.
    pub seen_posted: u32,
    /// Messages that the peer issued.
    pub seen_issued: u32,
    /// True if the queue pair was closed.
    pub closed: bool,
}

/// A datagram, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Datagram<'a> {
    /// A packet of a message.
    Data {
        /// The generation of its id.
        generation: u8,
        /// The immediate.
        imm: u32,
        /// Its bytes.
        payload: &'a [u8],
    },
    /// Credits.
    Credit(Credit),
    /// Where receives stand, for a back end whose device writes by itself.
    Keys {
        /// The first receive's number.
        first: u32,
        /// Address and key of each.
        keys: &'a [[u8; KEY_BYTES]],
    },
    /// Bytes for the program.
    Control(&'a [u8]),
}

/// A datagram that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The first byte is none of the kinds.
    #[error("unknown kind of datagram")]
    Kind,
    /// Too short or too long for its kind.
    #[error("wrong length")]
    Length,
    /// Reserved bits are set.
    #[error("reserved bits are set")]
    Reserved,
}

impl<'a> Datagram<'a> {
    /// Takes a datagram apart.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let Some((&[kind, second, r0, r1], rest)) = bytes.split_first_chunk() else {
            return Err(Malformed::Length);
        };
        if (r0, r1) != (0, 0) {
            return Err(Malformed::Reserved);
        }
        match kind {
            DATA => {
                let (imm, payload) = rest.split_first_chunk().ok_or(Malformed::Length)?;
                let imm = u32::from_be_bytes(*imm);
                if payload.is_empty() {
                    return Err(Malformed::Length);
                }
                Ok(Datagram::Data { generation: second, imm, payload })
            }
            CREDIT if second & !CLOSED != 0 => Err(Malformed::Reserved),
            CREDIT => {
                let &[a, b, c, d] = rest.as_chunks::<4>().0 else {
                    return Err(Malformed::Length);
                };
                if rest.len() != 16 {
                    return Err(Malformed::Length);
                }
                Ok(Datagram::Credit(Credit {
                    posted: u32::from_be_bytes(a),
                    issued: u32::from_be_bytes(b),
                    seen_posted: u32::from_be_bytes(c),
                    seen_issued: u32::from_be_bytes(d),
                    closed: second & CLOSED != 0,
                }))
            }
            KEYS if second != 0 => Err(Malformed::Reserved),
            KEYS => {
                let (first, rest) = rest.split_first_chunk().ok_or(Malformed::Length)?;
                let (keys, []) = rest.as_chunks::<KEY_BYTES>() else {
                    return Err(Malformed::Length);
                };
                Ok(Datagram::Keys { first: u32::from_be_bytes(*first), keys })
            }
            CONTROL if second != 0 => Err(Malformed::Reserved),
            CONTROL if rest.len() > CONTROL_BYTES => Err(Malformed::Length),
            CONTROL => Ok(Datagram::Control(rest)),
            _ => Err(Malformed::Kind),
        }
    }
}

/// Returns the header of a DATA datagram.
#[must_use]
pub fn data_header(generation: u8, imm: u32) -> [u8; DATA_HEADER] {
    let [a, b, c, d] = imm.to_be_bytes();
    [DATA, generation, 0, 0, a, b, c, d]
}

/// Returns the header of a KEYS datagram.
#[must_use]
pub fn keys_header(first: u32) -> [u8; 8] {
    let [a, b, c, d] = first.to_be_bytes();
    [KEYS, 0, 0, 0, a, b, c, d]
}

/// Returns a receive's entry in KEYS.
#[must_use]
pub fn key(address: u64, key: u32) -> [u8; KEY_BYTES] {
    let mut out = [0; KEY_BYTES];
    let (head, tail) = out.split_at_mut(8);
    head.copy_from_slice(&address.to_be_bytes());
    tail.copy_from_slice(&key.to_be_bytes());
    out
}

/// Returns address and key of a receive's entry in KEYS.
#[must_use]
pub fn read_key(entry: &[u8; KEY_BYTES]) -> (u64, u32) {
    let [a @ .., k0, k1, k2, k3] = *entry;
    (u64::from_be_bytes(a), u32::from_be_bytes([k0, k1, k2, k3]))
}

/// Returns the header of a CONTROL datagram.
#[must_use]
pub const fn control_header() -> [u8; CONTROL_HEADER] {
    [CONTROL, 0, 0, 0]
}

impl Credit {
    /// Returns the datagram.
    #[must_use]
    pub fn encode(&self) -> [u8; CREDIT_BYTES] {
        let mut out = [0; CREDIT_BYTES];
        let counts = [self.posted, self.issued, self.seen_posted, self.seen_issued];
        let (head, rest) = out.split_at_mut(4);
        head.copy_from_slice(&[CREDIT, u8::from(self.closed), 0, 0]);
        for (place, count) in rest.as_chunks_mut::<4>().0.iter_mut().zip(counts) {
            *place = count.to_be_bytes();
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let credit = Credit { posted: 1, issued: 2, seen_posted: 3, seen_issued: 4, closed: true };
        let bytes = [2, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4];
        assert_eq!(credit.encode(), bytes);
        assert_eq!(Datagram::decode(&bytes), Ok(Datagram::Credit(credit)));
        let data = [&data_header(7, 0x0102_0304)[..], b"x"].concat();
        assert_eq!(data, [1, 7, 0, 0, 1, 2, 3, 4, b'x']);
        let decoded = Datagram::Data { generation: 7, imm: 0x0102_0304, payload: b"x" };
        assert_eq!(Datagram::decode(&data), Ok(decoded));
        assert_eq!(Datagram::decode(&[3, 0, 0, 0, 9]), Ok(Datagram::Control(&[9])));
        let keys = [&keys_header(0x0102_0304)[..], &key(0x1122, 0x3344)].concat();
        assert_eq!(keys, [4, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0x11, 0x22, 0, 0, 0x33, 0x44]);
        let Ok(Datagram::Keys { first: 0x0102_0304, keys: [entry] }) = Datagram::decode(&keys) else {
            panic!("{keys:?}");
        };
        assert_eq!(read_key(entry), (0x1122, 0x3344));
    }

    #[test]
    fn malformed_datagrams_are_named() {
        let long = [&control_header()[..], &[0; CONTROL_BYTES + 1]].concat();
        let cases: [(&[u8], Malformed); 12] = [
            (&[4, 1, 0, 0, 0, 0, 0, 0], Malformed::Reserved),
            (&[4, 0, 0, 0, 0, 0, 0, 0, 1], Malformed::Length),
            (&[], Malformed::Length),
            (&[1, 0, 0], Malformed::Length),
            (&[1, 0, 0, 0, 1, 2, 3], Malformed::Length),
            (&[1, 0, 0, 0, 1, 2, 3, 4], Malformed::Length),
            (&[1, 0, 1, 0, 1, 2, 3, 4, 5], Malformed::Reserved),
            (&[2, 2, 0, 0], Malformed::Reserved),
            (&[2, 0, 0, 0, 0, 0, 0, 0], Malformed::Length),
            (&[3, 1, 0, 0], Malformed::Reserved),
            (&[0, 0, 0, 0], Malformed::Kind),
            (&long, Malformed::Length),
        ];
        for (bytes, error) in cases {
            assert_eq!(Datagram::decode(bytes), Err(error), "{bytes:?}");
        }
        let extra = [&Credit::default().encode()[..], &[0]].concat();
        assert_eq!(Datagram::decode(&extra), Err(Malformed::Length));
    }
}
