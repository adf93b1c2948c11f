//! A stream of messages between two processes of one user, with descriptors beside them.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::uninterrupted::uninterrupted;

/// Longest text.
const MOST_TEXT: usize = 64 << 10;
/// Bytes that a read or a write asks the kernel for at most, so that it ends in time.
const AT_ONCE: usize = 8 << 20;
/// Kind and length.
const HEADER: usize = 9;

/// A message's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Hello = 1,
    Stand = 2,
    Socket = 3,
    Freeze = 4,
    Claim = 5,
    Snapshot = 6,
    Whole = 7,
    HaveIt = 8,
    Yours = 9,
    Running = 10,
    Refused = 11,
    Room = 12,
    CopyAhead = 13,
    Copied = 14,
    InRoom = 15,
    Site = 16,
}

impl Kind {
    const ALL: [Self; 16] = [
        Self::Hello,
        Self::Stand,
        Self::Socket,
        Self::Freeze,
        Self::Claim,
        Self::Snapshot,
        Self::Whole,
        Self::HaveIt,
        Self::Yours,
        Self::Running,
        Self::Refused,
        Self::Room,
        Self::CopyAhead,
        Self::Copied,
        Self::InRoom,
        Self::Site,
    ];

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Why there are no further messages.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The other process is gone.
    #[error("the other process has gone away")]
    Gone,
    /// It takes too long.
    #[error("the other process did not answer in time")]
    Late,
    /// The system's error.
    #[error("talking to the other process")]
    Io(#[source] io::Error),
    /// It breaks the protocol.
    #[error("the other process sent {0}")]
    Protocol(String),
    /// It says no.
    #[error("{0}")]
    Refused(String),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Late,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                Self::Gone
            }
            _ => Self::Io(error),
        }
    }
}

/// A message that has come.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) body: Vec<u8>,
    pub(super) descriptor: Option<OwnedFd>,
}

/// One end. It blocks, until its deadline at most.
///
/// A message's body is as long as the reader allows for its kind, or the other end has broken the
/// protocol. Memory for it grows with what has come.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    deadline: Instant,
}

impl Channel {
    /// Over a connected socket, for so long.
    ///
    /// # Errors
    /// The system refuses to have it block.
    pub fn new(stream: UnixStream, patience: Duration) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        Ok(Self { stream, deadline: Instant::now() + patience })
    }

    /// Gives the other end so long from now.
    pub fn set_patience(&mut self, patience: Duration) {
        self.deadline = Instant::now() + patience;
    }

    fn time_left(&self) -> Result<Duration, Broken> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(Broken::Late) } else { Ok(left) }
    }

    pub(super) fn send(&mut self, kind: Kind, parts: &[&[u8]]) -> Result<(), Broken> {
        self.send_with(kind, parts, None)
    }

    pub(super) fn send_json(
        &mut self,
        kind: Kind,
        value: &impl Serialize,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), Broken> {
        let body = serde_json::to_vec(value).map_err(|error| Broken::Io(error.into()))?;
        self.send_with(kind, &[&body], descriptor)
    }

    fn send_with(
        &mut self,
        kind: Kind,
        parts: &[&[u8]],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), Broken> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut header = [0; HEADER];
        let fields = std::iter::once(kind as u8).chain((len as u64).to_le_bytes());
        header.iter_mut().zip(fields).for_each(|(place, byte)| *place = byte);
        self.stream.set_write_timeout(Some(self.time_left()?))?;
        let sent = match &descriptor {
            None => uninterrupted(|| self.stream.write(&header))?,
            Some(descriptor) => {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut beside = SendAncillaryBuffer::new(&mut space);
                let descriptors = [*descriptor];
                beside.push(SendAncillaryMessage::ScmRights(&descriptors));
                retry_on_intr(|| {
                    sendmsg(&self.stream, &[IoSlice::new(&header)], &mut beside, SendFlags::NOSIGNAL)
                })
                .map_err(io::Error::from)?
            }
        };
        self.write(header.get(sent..).unwrap_or_default())?;
        parts.iter().try_for_each(|part| self.write(part))
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), Broken> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(self.time_left()?))?;
            let some = bytes.get(..AT_ONCE).unwrap_or(bytes);
            let sent = uninterrupted(|| self.stream.write(some))?;
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// Waits for a message. `most`: bytes of its body, for a kind.
    pub(super) fn receive(&mut self, most: impl FnOnce(Kind) -> usize) -> Result<Message, Broken> {
        let mut header = [0; HEADER];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        self.stream.set_read_timeout(Some(self.time_left()?))?;
        let came = {
            let mut room = [IoSliceMut::new(&mut header)];
            retry_on_intr(|| recvmsg(&self.stream, &mut room, &mut beside, RecvFlags::CMSG_CLOEXEC))
                .map_err(io::Error::from)?
        };
        let mut descriptor = None;
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptor = descriptors.last();
            }
        }
        if came.bytes == 0 {
            return Err(Broken::Gone);
        }
        self.read(header.get_mut(came.bytes..).unwrap_or_default())?;
        let [kind, len @ ..] = header;
        let kind = Kind::of(kind).ok_or_else(|| Broken::Protocol(format!("a message of kind {kind}")))?;
        let len = usize::try_from(u64::from_le_bytes(len)).unwrap_or(usize::MAX);
        let most = if kind == Kind::Refused { MOST_TEXT } else { most(kind) };
        if len > most {
            return Err(Broken::Protocol(format!("{kind:?} of {len} bytes, where {most} are allowed")));
        }
        let body = self.read_body(len)?;
        if kind == Kind::Refused {
            return Err(Broken::Refused(String::from_utf8_lossy(&body).into_owned()));
        }
        Ok(Message { kind, body, descriptor })
    }

    fn read_body(&mut self, len: usize) -> Result<Vec<u8>, Broken> {
        let mut body = Vec::new();
        while body.len() < len {
            let before = body.len();
            self.stream.set_read_timeout(Some(self.time_left()?))?;
            let some = (len - before).min(AT_ONCE) as u64;
            // It tries again by itself if a signal interrupts it.
            let came = (&self.stream).take(some).read_to_end(&mut body)?;
            if (came as u64) < some {
                return Err(Broken::Gone);
            }
        }
        Ok(body)
    }

    fn read(&mut self, mut room: &mut [u8]) -> Result<(), Broken> {
        while !room.is_empty() {
            self.stream.set_read_timeout(Some(self.time_left()?))?;
            let came = uninterrupted(|| self.stream.read(room))?;
            if came == 0 {
                return Err(Broken::Gone);
            }
            room = room.get_mut(came..).unwrap_or_default();
        }
        Ok(())
    }

    /// Waits for a message of this kind without a body.
    pub(super) fn expect(&mut self, kind: Kind) -> Result<(), Broken> {
        let message = self.receive(|_| 0)?;
        if message.kind == kind { Ok(()) } else { Err(message.unexpected()) }
    }

    /// Waits for a text of this kind, and returns what is beside it.
    pub(super) fn receive_json<T: DeserializeOwned>(
        &mut self,
        kind: Kind,
    ) -> Result<(T, Option<OwnedFd>), Broken> {
        let message = self.receive(|_| MOST_TEXT)?;
        if message.kind != kind {
            return Err(message.unexpected());
        }
        let value = serde_json::from_slice(&message.body)
            .map_err(|error| Broken::Protocol(format!("{kind:?} that cannot be read: {error}")))?;
        Ok((value, message.descriptor))
    }

    /// Says no. Whoever is to hear it may be gone.
    pub fn refuse(&mut self, why: &str) {
        let text = why.as_bytes();
        let _ = self.send(Kind::Refused, &[text.get(..MOST_TEXT).unwrap_or(text)]);
    }
}

impl Message {
    pub(super) fn unexpected(&self) -> Broken {
        Broken::Protocol(format!("{:?} out of turn", self.kind))
    }
}
