//! Sealing and opening of bulk datagrams, in place.
//!
//! ```text
//! 010 | lane, bit 5 | epoch u4 | thread u3 | lane, bits 0 to 4 | session u16 | packet number u32
//! `------------------------- HEADER, authenticated, big-endian --------------------------------'
//! | ciphertext | tag 16
//! ```
//!
//! `thread` is the sender's data-plane thread.
//! `session` is the low half of the number that the receiver chose.
//! Its lowest three bits are XORed with those by which the receiver's thread differs from the
//! sender's. A number that a receiver with several threads chooses has zeros there.
//! Packet numbers count from 0 for each direction, pair of threads and lane, over all epochs.
//! None is used twice. A datagram carries the low 32 of their 64 bits; the nonce has them all.
//! The receiver takes the number next to the one after its newest (RFC 9000, A.3). If that is
//! another than the sender's, the nonce is another, and the datagram is not authentic.

use std::collections::VecDeque;
use std::task::Waker;

use crate::message::{Cipher, MOST_LANES, MOST_THREADS};
use crate::rejected::Rejected;
use crate::replay::{REPLAY_WINDOW, ReplayWindow};
use crate::schedule::{KeyError, PacketKey, TAG, TrafficSecret};
use crate::threads::ThreadPair;

/// Bytes before the ciphertext.
pub const HEADER: usize = 8;

/// Bytes that sealing adds to a plaintext.
pub const OVERHEAD: usize = HEADER + TAG;

/// First byte of a bulk datagram, without the epoch in its low half and the lane's upper bit.
pub const BULK: u8 = 0x40;

/// Bit of the first byte that holds the upper one of the lane.
const UPPER_LANE: u8 = 0x10;

/// Bits of the first byte that say which epoch, modulo 16. What an opener takes spans ten.
const EPOCH_BITS: u8 = 0x0f;

/// Steps, modulo 16, from the current epoch to the one before it.
const ONE_BACK: u8 = EPOCH_BITS;

/// Bits of the second byte that hold the lane's lower ones; the thread stands above them.
pub const LANE_BITS: u32 = 5;
/// Which byte of the header that is.
pub const PATH_BYTE: u32 = 1;

/// Bits of a session's number that are XORed with the difference of the threads' numbers.
pub const DIFFERENCE: u8 = MOST_THREADS - 1;
/// Which byte of the header has them.
pub const SESSION_BYTE: u32 = 3;
const _: () = assert!(MOST_THREADS.is_power_of_two(), "any two threads differ in these bits only");

/// Epochs that the receiver is prepared for beyond the current one. One would do on a path that
/// always works; the others let bulk traffic resume after an outage in which whole epochs of
/// repairs were lost.
const EPOCHS_AHEAD: u8 = 8;

/// Packets after which the sender moves to the next epoch. These are the confidentiality limits of
/// AES-GCM for the given datagram size, in bytes (RFC 9001, B.1.1); the other ciphers have none
/// within reach but follow along.
#[must_use]
pub const fn packets_per_epoch(max_datagram: u16) -> u64 {
    if max_datagram <= 1 << 11 {
        1 << 28
    } else if max_datagram <= 1 << 14 {
        1 << 25
    } else {
        1 << 23
    }
}

/// Forged datagrams after which no key of the session opens anything any more, and the session has
/// to end.
/// These are the integrity limits of RFC 9001, 6.6. AEGIS-128L, whose tags are as long, is held to
/// that of AES-GCM.
#[must_use]
pub const fn most_forgeries(cipher: Cipher) -> u64 {
    match cipher {
        Cipher::ChaCha20Poly1305 => 1 << 36,
        Cipher::Aes128Gcm | Cipher::Aegis128L => 1 << 52,
    }
}

/// The largest bulk datagram (UDP payload, in bytes) on a path with this MTU (size of an IP packet,
/// in bytes).
#[must_use]
pub const fn max_datagram(mtu: u16, ipv6: bool) -> u16 {
    mtu.saturating_sub(if ipv6 { 40 + 8 } else { 20 + 8 })
}

/// The first bytes of a bulk datagram. Nothing in it may be believed before the datagram was
/// opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Key epoch, modulo 16.
    pub epoch: u8,
    /// The sender's data-plane thread, below [`MOST_THREADS`].
    pub thread: u8,
    /// Which of that thread's UDP ports it left by, below [`MOST_LANES`].
    pub lane: u8,
    /// The low half of the receiver's number of the session, XORed with the difference of the
    /// receiver's thread from the sender's.
    pub session: u16,
    /// The low half of the packet's number.
    pub packet_number: u32,
}

impl Header {
    /// Reads the header of a datagram that is long enough to hold a sealed packet.
    ///
    /// # Errors
    /// [`Rejected::NotBulk`] or [`Rejected::Truncated`].
    pub fn parse(datagram: &[u8]) -> Result<Self, Rejected> {
        match datagram.first() {
            None => return Err(Rejected::Truncated),
            Some(first) if first & !(EPOCH_BITS | UPPER_LANE) == BULK => {}
            Some(_) => return Err(Rejected::NotBulk),
        }
        match *datagram {
            [first, path, s0, s1, n0, n1, n2, n3, ref rest @ ..] if rest.len() >= TAG => Ok(Header {
                epoch: first & EPOCH_BITS,
                thread: path >> LANE_BITS,
                lane: path & ((1 << LANE_BITS) - 1) | (first & UPPER_LANE) << 1,
                session: u16::from_be_bytes([s0, s1]),
                packet_number: u32::from_be_bytes([n0, n1, n2, n3]),
            }),
            _ => Err(Rejected::Truncated),
        }
    }

    /// The header as it stands on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let [s0, s1] = self.session.to_be_bytes();
        let [n0, n1, n2, n3] = self.packet_number.to_be_bytes();
        let path = self.thread << LANE_BITS | self.lane & ((1 << LANE_BITS) - 1);
        let first = BULK | self.epoch & EPOCH_BITS | (self.lane >> 1) & UPPER_LANE;
        [first, path, s0, s1, n0, n1, n2, n3]
    }
}

/// Returns the part of a nonce that is not the packet's number. `from` is the sender's thread.
///
/// Rule: `docs/protocol.md#rule-nonce`.
const fn space(from: u8, difference: u8, lane: u8) -> u16 {
    u16::from_be_bytes([from | difference << MOST_THREADS.ilog2(), lane])
}

/// Which of its sender's datagrams an authentic one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Which of the thread's UDP ports it left by.
    pub lane: u8,
    /// The packet's number, unique in session, direction, pair of threads and lane.
    pub packet_number: u64,
}

/// Returns the half of a session's number that datagrams carry.
const fn short_session(session: u32) -> u16 {
    session as u16
}

/// Returns a number for a session from a random one: the threads' difference has its bits alone.
#[must_use]
pub const fn session_number(random: u32) -> u32 {
    random & !(DIFFERENCE as u32)
}

/// Returns the number with these low bits that is nearest to `expected` (RFC 9000, A.3).
///
/// Rule: `docs/protocol.md#rule-number-bits`.
const fn nearest(expected: u64, low: u32) -> u64 {
    const WINDOW: u64 = 1 << 32;
    let candidate = expected & !(WINDOW - 1) | low as u64;
    if candidate.saturating_add(WINDOW / 2) <= expected && candidate <= u64::MAX - WINDOW {
        candidate + WINDOW
    } else if candidate > expected.saturating_add(WINDOW / 2) && candidate >= WINDOW {
        candidate - WINDOW
    } else {
        candidate
    }
}

/// Why a packet could not be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// All 2^64 - 1 packet numbers of the lane are used. The session must be rebuilt.
    #[error("the session has no packet numbers left")]
    Exhausted,
    /// There is no such lane: they are below [`MOST_LANES`].
    #[error("no such lane")]
    Lane,
    /// The buffer cannot hold header, plaintext and tag.
    #[error("the buffer is too small for the sealed packet")]
    TooSmall,
    /// The cryptographic library failed.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Seals the datagrams that a data-plane thread sends to one of the peer's.
///
/// All threads of a session have the same secret.
/// Each sealer counts its own packets, and moves to the next epoch by itself.
/// A sealer reads no clock. It allocates only when the epoch changes.
#[derive(Debug)]
pub struct Sealer {
    session: u16,
    threads: ThreadPair,
    /// By lane.
    next_numbers: [u64; MOST_LANES as usize],
    /// Packets sealed, on all lanes.
    packets: u64,
    epoch: u8,
    /// The epoch ends after so many.
    epoch_end: u64,
    packets_per_epoch: u64,
    secret: TrafficSecret,
    key: PacketKey,
    spent: Waker,
}

impl Sealer {
    /// Makes a sealer for packets to the side that calls this session `session`.
    ///
    /// An epoch has `packets_per_epoch` packets, 1 at least; see [`packets_per_epoch`].
    ///
    /// # Errors
    /// [`KeyError`] if the cryptographic library fails.
    pub fn new(session: u32, secret: TrafficSecret, packets_per_epoch: u64) -> Result<Self, KeyError> {
        let key = secret.key()?;
        let packets_per_epoch = packets_per_epoch.max(1);
        Ok(Sealer {
            session: short_session(session),
            threads: ThreadPair::FIRST,
            next_numbers: [0; MOST_LANES as usize],
            packets: 0,
            epoch: 0,
            epoch_end: packets_per_epoch,
            packets_per_epoch,
            secret,
            key,
            spent: Waker::noop().clone(),
        })
    }

    /// Makes it the sealer between these threads rather than the first of each side.
    #[must_use]
    pub fn between(self, threads: ThreadPair) -> Self {
        Sealer { threads, ..self }
    }

    /// Wakes `spent` when a lane's packet numbers are used up.
    #[must_use]
    pub fn telling(self, spent: Waker) -> Self {
        Sealer { spent, ..self }
    }

    /// Seals the plaintext at `buf[HEADER..HEADER + plaintext_len]` in place.
    ///
    /// The header goes before it, the tag after it.
    /// Returns the datagram's length, `plaintext_len + OVERHEAD`.
    /// A call that fails uses up no packet number.
    ///
    /// # Errors
    /// See [`SealError`].
    pub fn seal(&mut self, lane: u8, buf: &mut [u8], plaintext_len: usize) -> Result<usize, SealError> {
        let (head, rest) = buf.split_first_chunk_mut::<HEADER>().ok_or(SealError::TooSmall)?;
        let (text, rest) = rest.split_at_mut_checked(plaintext_len).ok_or(SealError::TooSmall)?;
        let tag = rest.first_chunk_mut::<TAG>().ok_or(SealError::TooSmall)?;
        let number = *self.next_numbers.get(usize::from(lane)).ok_or(SealError::Lane)?;
        let Some(following) = number.checked_add(1) else {
            self.spent.wake_by_ref();
            return Err(SealError::Exhausted);
        };
        if self.packets >= self.epoch_end {
            self.next_epoch()?;
        }
        let Self { threads, epoch, .. } = *self;
        let difference = threads.difference();
        let session = self.session ^ u16::from(difference);
        // The sender's low bits, as the receiver's newest is not known here.
        let header = Header { epoch, thread: threads.here, lane, session, packet_number: number as u32 };
        *head = header.encode();
        *tag = self.key.seal(space(threads.here, difference, lane), number, head, text)?;
        if let Some(next) = self.next_numbers.get_mut(usize::from(lane)) {
            *next = following;
        }
        self.packets = self.packets.saturating_add(1);
        Ok(plaintext_len + OVERHEAD)
    }

    /// Returns how many packets were sealed so far.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    fn next_epoch(&mut self) -> Result<(), KeyError> {
        let secret = self.secret.next()?;
        self.key = secret.key()?;
        self.secret = secret;
        self.epoch = self.epoch.wrapping_add(1);
        self.epoch_end = self.packets.saturating_add(self.packets_per_epoch);
        Ok(())
    }
}

/// Opens what a data-plane thread receives from one of the peer's.
///
/// It has the keys of the current epoch, of the one before it, and of the eight after it.
/// Those are derived ahead, so that forged packets cannot make it work.
/// The previous epoch's key is dropped once the replay windows, all lanes' together, have moved by
/// one window's length past the first packets of the current epoch.
/// With one lane, each packet that it could open would be too old by then.
///
/// A datagram that is not authentic changes nothing but their count.
/// At its bound ([`Opener::within`]) nothing is opened any more, and the owner is woken.
///
/// Memory is bounded by [`MOST_LANES`] replay windows.
#[derive(Debug)]
pub struct Opener {
    session: u16,
    threads: ThreadPair,
    /// Those that the peer announced.
    lanes: Vec<Received>,
    epoch: u8,
    previous: Option<PacketKey>,
    current: PacketKey,
    ahead: VecDeque<PacketKey>,
    /// The secret of the last key in `ahead`.
    last_secret: TrafficSecret,
    /// Datagrams that may still turn out to be forged, over all epochs.
    forgeries_left: u64,
    spent: Waker,
}

/// Packets of one lane that were taken in.
#[derive(Debug, Default)]
struct Received {
    window: ReplayWindow,
    /// The lowest packet number seen in the current epoch, if any was.
    epoch_start: Option<u64>,
}

impl Received {
    /// How far its numbers have come in the current epoch.
    fn span(&self) -> u64 {
        self.epoch_start.map_or(0, |start| self.window.newest().saturating_sub(start))
    }
}

impl Opener {
    /// Makes an opener for packets that carry `session`, the number that this side chose.
    ///
    /// The peer sends on `lanes` lanes, 1 to [`MOST_LANES`]; a number outside is clamped.
    ///
    /// # Errors
    /// [`KeyError`] if the cryptographic library fails.
    pub fn new(session: u32, secret: TrafficSecret, lanes: u8) -> Result<Self, KeyError> {
        let lanes = lanes.clamp(1, MOST_LANES);
        let mut opener = Opener {
            session: short_session(session),
            threads: ThreadPair::FIRST,
            lanes: (0..lanes).map(|_| Received::default()).collect(),
            epoch: 0,
            previous: None,
            current: secret.key()?,
            ahead: VecDeque::with_capacity(usize::from(EPOCHS_AHEAD)),
            last_secret: secret,
            forgeries_left: u64::MAX,
            spent: Waker::noop().clone(),
        };
        for _ in 0..EPOCHS_AHEAD {
            opener.derive_one_ahead()?;
        }
        Ok(opener)
    }

    /// Makes it the opener between these threads rather than the first of each side.
    #[must_use]
    pub fn between(self, threads: ThreadPair) -> Self {
        Opener { threads, ..self }
    }

    /// Bounds forged datagrams: after so many it opens nothing any more, and wakes `spent`.
    #[must_use]
    pub fn within(self, forgeries: u64, spent: Waker) -> Self {
        Opener { forgeries_left: forgeries, spent, ..self }
    }

    /// Authenticates and decrypts a datagram in place; returns the plaintext.
    ///
    /// Its number is entered into the replay window.
    ///
    /// # Errors
    /// See [`Rejected`]. The datagram's bytes behind the header are then unspecified.
    pub fn open<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a mut [u8], Rejected> {
        self.open_numbered(datagram).map(|(_, text)| text)
    }

    /// Does the same as [`Opener::open`], and tells which datagram it is.
    ///
    /// # Errors
    /// See [`Rejected`].
    pub fn open_numbered<'a>(&mut self, datagram: &'a mut [u8]) -> Result<(Origin, &'a mut [u8]), Rejected> {
        let header = Header::parse(datagram)?;
        let difference = self.threads.difference();
        if (header.session ^ self.session) & !u16::from(DIFFERENCE) != 0 {
            return Err(Rejected::UnknownSession);
        }
        if header.thread != self.threads.there || header.session ^ self.session != difference.into() {
            return Err(Rejected::Lane);
        }
        if self.forgeries_left == 0 {
            return Err(Rejected::Spent);
        }
        let lane = header.lane;
        let window = &self.lanes.get(usize::from(lane)).ok_or(Rejected::Lane)?.window;
        let number = nearest(window.newest().saturating_add(1), header.packet_number);
        let news = window.check(number);
        // That one came before is told as the path's doing, so it has to be true.
        if news == Err(Rejected::TooOld) {
            return Err(Rejected::TooOld);
        }
        let steps = header.epoch.wrapping_sub(self.epoch) & EPOCH_BITS;
        let key = self.key(steps).ok_or(Rejected::Epoch)?;
        let (aad, text) = datagram.split_at_mut_checked(HEADER).ok_or(Rejected::Truncated)?;
        let Ok(text) = key.open(space(header.thread, difference, lane), number, aad, text) else {
            self.forged();
            return Err(Rejected::Authentication);
        };
        news?;
        self.authentic(steps, lane, number);
        Ok((Origin { lane, packet_number: number }, text))
    }

    /// Returns the highest packet number taken in of any lane, 0 if none was.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.window.newest()).max().unwrap_or(0)
    }

    /// Lowers how many datagrams may still turn out to be forged.
    #[cfg(all(test, feature = "quic"))]
    pub(crate) fn allow_forgeries(&mut self, count: u64) {
        self.forgeries_left = count;
    }

    fn forged(&mut self) {
        self.forgeries_left = self.forgeries_left.saturating_sub(1);
        if self.forgeries_left == 0 {
            self.spent.wake_by_ref();
        }
    }

    /// The key of the epoch `steps` after the current one, modulo 16.
    fn key(&self, steps: u8) -> Option<&PacketKey> {
        match steps {
            0 => Some(&self.current),
            ONE_BACK => self.previous.as_ref(),
            _ => self.ahead.get(usize::from(steps) - 1),
        }
    }

    fn authentic(&mut self, steps: u8, lane: u8, number: u64) {
        if !matches!(steps, 0 | ONE_BACK) {
            self.advance(steps);
        }
        if let Some(lane) = self.lanes.get_mut(usize::from(lane)) {
            lane.window.mark(number);
            if steps != ONE_BACK {
                lane.epoch_start = Some(lane.epoch_start.map_or(number, |start| start.min(number)));
            }
        }
        if self.previous.is_some() && self.lanes.iter().map(Received::span).sum::<u64>() >= REPLAY_WINDOW {
            self.previous = None;
        }
    }

    fn advance(&mut self, steps: u8) {
        for _ in 0..steps {
            let Some(next) = self.ahead.pop_front() else {
                return;
            };
            self.previous = Some(std::mem::replace(&mut self.current, next));
            self.epoch = self.epoch.wrapping_add(1);
            // On failure there is one key less ahead, and packets of that epoch will be refused:
            // fail closed.
            let _ = self.derive_one_ahead();
        }
        self.lanes.iter_mut().for_each(|lane| lane.epoch_start = None);
    }

    fn derive_one_ahead(&mut self) -> Result<(), KeyError> {
        let secret = self.last_secret.next()?;
        self.ahead.push_back(secret.key()?);
        self.last_secret = secret;
        Ok(())
    }
}

/// A connected pair for one direction with one lane, for tests and benchmarks of code that seals or
/// opens.
///
/// # Errors
/// [`KeyError`] if the cryptographic library fails.
pub fn pair(
    session: u32,
    cipher: Cipher,
    seed: &[u8; 32],
    packets_per_epoch: u64,
) -> Result<(Sealer, Opener), KeyError> {
    use crate::schedule::{Role, Secrets};
    let sender = Secrets::derive(seed, Role::Dialer, cipher)?;
    let receiver = Secrets::derive(seed, Role::Listener, cipher)?;
    Ok((Sealer::new(session, sender.send, packets_per_epoch)?, Opener::new(session, receiver.receive, 1)?))
}

#[cfg(test)]
mod tests;
