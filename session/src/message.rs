//! Messages of the control connection, encoded and decoded. No I/O.
//!
//! `docs/protocol.md#control-messages` specifies them.
//! A message is `length u32 | type u8 | body`, big-endian; `length` counts type and body and is at
//! most [`MAX_MESSAGE`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Version of the protocol on the control connection and on the bulk path. Gateways of different
/// versions have no session.
pub const VERSION: u16 = 14;

/// Longest message, type and body, in bytes. A longer one ends the connection.
pub const MAX_MESSAGE: usize = 1 << 20;

/// Most pairings that are sent or taken in at the start of a session.
///
/// One takes 48 bytes on the wire and 60 in memory.
/// A sender leaves out the rest; a receiver that is told more ends the connection.
pub const MAX_PAIRINGS: usize = 1 << 18;

/// Smallest limit that a peer may set to bulk datagrams (UDP payload, in bytes).
///
/// Each path of a session carries as much, since it carries QUIC (RFC 9000, 14).
pub const LEAST_DATAGRAM: u16 = 1200;

/// Most lanes that one direction of a session has, over all data-plane threads.
pub const MOST_LANES: u8 = 64;

/// Most data-plane threads of a gateway.
pub const MOST_THREADS: u8 = 8;

/// Most prefixes that a [`Hello`] tells. A gateway with more tells none.
pub const MOST_PREFIXES: usize = 64;

const PAIRINGS_PER_MESSAGE: usize = 1 << 14;
/// As many are told in one: few enough that a slow link shows progress.
const TOLD_PER_MESSAGE: usize = 1 << 10;
const LENGTH: usize = 4;
const MAX_SITE: usize = 253;
const MAX_BUILD: usize = 64;
const NONE: u32 = u32::MAX;
const MAX_24_BIT: u32 = (1 << 24) - 1;

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const PAIRINGS: u8 = 2;
    pub(super) const GOODBYE: u8 = 4;
}

/// One message of the control connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The first message in each direction.
    Hello(Hello),
    /// Flows that the sender remembers of the previous session.
    ///
    /// One or more such messages follow the hello; the last says so.
    Pairings {
        /// No further pairings follow: the session is up.
        last: bool,
        /// At most 16384 of them.
        pairings: Vec<Pairing>,
    },
    /// The sender ends the session on purpose.
    Goodbye(GoodbyeReason),
}

/// Who the sender is and what it can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The sender's site name, equal to the one in its certificate.
    pub site: String,
    /// The session number that the sender expects in bulk datagrams it receives.
    pub session: u32,
    /// Ciphers the sender can use.
    pub ciphers: Ciphers,
    /// Largest bulk datagram (UDP payload, in bytes) that the sender takes in; at least
    /// [`LEAST_DATAGRAM`].
    pub max_datagram: u16,
    /// How many lanes the sender sends on, with each data-plane thread: 1 to [`MOST_LANES`] by
    /// [`Hello::threads`].
    pub lanes: u8,
    /// How many data-plane threads it has: 1 to [`MOST_THREADS`].
    pub threads: u8,
    /// How long its flows wait for a session that is lost, in milliseconds. A peer that does not
    /// say has 0.
    pub resume_for: u32,
    /// Proof that the sender holds the flows of a session that was lost; see
    /// [`crate::resumption`].
    pub ticket: Option<Ticket>,
    /// The sender's build, as its program shows it; empty if it does not say, or in a form that
    /// cannot be shown.
    pub build: String,
    /// Where the receiver's hosts are, as the sender has it: it drops what comes in another name.
    /// At most [`MOST_PREFIXES`]; none if the sender does not say.
    pub remote: Vec<IpNet>,
    /// It takes pairings of flows that outlive its process. Earlier builds do not say.
    pub takes_living: bool,
    /// It takes it for no end of a flow that there was no place for its other half. Earlier builds
    /// do not know of that.
    pub begins_again: bool,
}

/// Bytes of a [`Ticket`].
pub const TICKET_BYTES: usize = 16;

/// A proof that its sender took part in an earlier session; see [`crate::resumption`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(pub [u8; TICKET_BYTES]);

/// The ciphers a side can use, and what its hardware does for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ciphers {
    /// AEGIS-128L.
    pub aegis: bool,
    /// AES-128-GCM.
    pub aes: bool,
    /// ChaCha20-Poly1305.
    pub chacha: bool,
    /// The processor has instructions for AES.
    pub hardware_aes: bool,
    /// And for carry-less multiplication, which GCM needs as well.
    pub hardware_gcm: bool,
}

/// The AEAD of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cipher {
    /// AEGIS-128L: half the AES rounds of AES-128-GCM and no carry-less multiplication. The fastest
    /// where both machines have instructions for AES.
    Aegis128L,
    /// AES-128-GCM: the faster one of the other two where both machines have instructions for it.
    Aes128Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Cipher {
    /// Every cipher.
    pub const ALL: [Cipher; 3] = [Cipher::Aegis128L, Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305];

    /// The cipher's number on the wire.
    #[must_use]
    pub const fn wire(self) -> u8 {
        match self {
            Cipher::Aes128Gcm => 0,
            Cipher::ChaCha20Poly1305 => 1,
            Cipher::Aegis128L => 2,
        }
    }

    /// The name an operator sees.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Cipher::Aes128Gcm => "AES-128-GCM",
            Cipher::ChaCha20Poly1305 => "ChaCha20-Poly1305",
            Cipher::Aegis128L => "AEGIS-128L",
        }
    }
}

impl Ciphers {
    /// Those that `allowed` names, and what this processor can do.
    #[must_use]
    pub fn detect(allowed: &[Cipher]) -> Self {
        let [hardware_aes, hardware_gcm] = hardware();
        Ciphers {
            aegis: allowed.contains(&Cipher::Aegis128L),
            aes: allowed.contains(&Cipher::Aes128Gcm),
            chacha: allowed.contains(&Cipher::ChaCha20Poly1305),
            hardware_aes,
            hardware_gcm,
        }
    }

    /// The cipher of a session between two sides, the same whichever asks: the fastest that both
    /// have hardware for, AEGIS-128L before AES-128-GCM; otherwise ChaCha20-Poly1305, otherwise
    /// whatever both have.
    #[must_use]
    pub fn agree(self, other: Ciphers) -> Option<Cipher> {
        let aegis = self.aegis && other.aegis;
        let aes = self.aes && other.aes;
        if aegis && self.hardware_aes && other.hardware_aes {
            Some(Cipher::Aegis128L)
        } else if aes && self.hardware_gcm && other.hardware_gcm {
            Some(Cipher::Aes128Gcm)
        } else if self.chacha && other.chacha {
            Some(Cipher::ChaCha20Poly1305)
        } else if aes {
            Some(Cipher::Aes128Gcm)
        } else {
            aegis.then_some(Cipher::Aegis128L)
        }
    }

    fn wire(self) -> u8 {
        [self.aes, self.chacha, self.aegis, false, false, false, self.hardware_aes, self.hardware_gcm]
            .into_iter()
            .enumerate()
            .fold(0, |bits, (place, bit)| bits | u8::from(bit) << place)
    }

    fn from_wire(bits: u8) -> Self {
        let bit = |place: u8| bits >> place & 1 == 1;
        Ciphers { aes: bit(0), chacha: bit(1), aegis: bit(2), hardware_aes: bit(6), hardware_gcm: bit(7) }
    }
}

/// Returns whether there are instructions for AES, and for the whole of GCM.
#[cfg(target_arch = "x86_64")]
fn hardware() -> [bool; 2] {
    let aes = std::arch::is_x86_feature_detected!("aes");
    [aes, aes && std::arch::is_x86_feature_detected!("pclmulqdq")]
}

#[cfg(target_arch = "aarch64")]
fn hardware() -> [bool; 2] {
    let aes = std::arch::is_aarch64_feature_detected!("aes");
    [aes, aes && std::arch::is_aarch64_feature_detected!("pmull")]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn hardware() -> [bool; 2] {
    [false; 2]
}

/// Which queue pairs belong together, as one gateway learned it. It outlives the session, so that a
/// gateway that restarted can end the flows it no longer knows with an error that both programs
/// see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pairing {
    /// Where the requester is, seen from the gateway that sends the message.
    pub direction: Direction,
    /// Address of the requester's NIC.
    pub requester: IpAddr,
    /// Address of the target's NIC, of the same family.
    pub target: IpAddr,
    /// The target's queue pair, 24 bits.
    pub target_qpn: u32,
    /// The requester's queue pair, 24 bits, if it is known.
    pub requester_qpn: Option<u32>,
    /// The last packet sequence number seen from the requester, 24 bits, if there was one.
    pub psn: Option<u32>,
    /// The UDP source port that its requests came from.
    pub src_port: u16,
    /// It has not ended, and outlives the receiver's process. Told only where the requester is at
    /// the receiver's site, to a receiver that [takes it](Hello::takes_living).
    pub lives: bool,
}

/// Where a flow's requester is, seen from the gateway that sends the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// At the sender's own site.
    Outbound,
    /// At the site of the message's receiver.
    Inbound,
}

/// Why a side ends the session on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoodbyeReason {
    /// The gateway stops and may not come back.
    Shutdown,
    /// The gateway restarts.
    Restart,
    /// A reason this version does not know.
    Other(u8),
}

impl GoodbyeReason {
    /// The reason's number on the wire.
    #[must_use]
    pub fn wire(self) -> u8 {
        match self {
            GoodbyeReason::Shutdown => 0,
            GoodbyeReason::Restart => 1,
            GoodbyeReason::Other(code) => code,
        }
    }

    /// The reason with this number.
    #[must_use]
    pub fn from_wire(code: u8) -> Self {
        match code {
            0 => GoodbyeReason::Shutdown,
            1 => GoodbyeReason::Restart,
            code => GoodbyeReason::Other(code),
        }
    }
}

impl std::fmt::Display for GoodbyeReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GoodbyeReason::Shutdown => f.write_str("shutdown"),
            GoodbyeReason::Restart => f.write_str("restart"),
            GoodbyeReason::Other(code) => write!(f, "reason {code}"),
        }
    }
}

/// Why bytes from the peer are not a message, or not the one that is due. Each ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// A length of 0, or above [`MAX_MESSAGE`].
    #[error("message length {0} is outside 1..={MAX_MESSAGE}")]
    Length(u32),
    /// A body that ends too early.
    #[error("message type {kind} ends too early")]
    Truncated {
        /// The message's type.
        kind: u8,
    },
    /// A body that is longer than its content.
    #[error("message type {kind} has {bytes} bytes too many")]
    Trailing {
        /// The message's type.
        kind: u8,
        /// Surplus bytes.
        bytes: usize,
    },
    /// A type that this version does not know.
    #[error("unknown message type {0}")]
    UnknownType(u8),
    /// A hello of another protocol version.
    #[error("the peer speaks protocol version {theirs}, this gateway {VERSION}")]
    Version {
        /// The version in the hello.
        theirs: u16,
    },
    /// A field whose value means nothing.
    #[error("invalid {field}")]
    Value {
        /// The field's name.
        field: &'static str,
    },
    /// A message at a point where it may not stand.
    #[error("message type {0} out of order")]
    OutOfOrder(u8),
    /// More than [`MAX_PAIRINGS`] pairings.
    #[error("more than {MAX_PAIRINGS} pairings")]
    TooManyPairings,
}

impl Message {
    /// Appends the message, length first, to `out`. A site name beyond 253 bytes is cut, and only
    /// the first 16384 pairings go out.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH]);
        out.push(self.kind());
        match self {
            Message::Hello(hello) => hello.encode(out),
            Message::Pairings { last, pairings } => encode_pairings(*last, pairings, out),
            Message::Goodbye(reason) => out.push(reason.wire()),
        }
        let length = u32::try_from(out.len() - start - LENGTH).unwrap_or(u32::MAX);
        if let Some(field) = out.get_mut(start..start + LENGTH) {
            field.copy_from_slice(&length.to_be_bytes());
        }
    }

    /// The type's number on the wire.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Message::Hello(_) => kind::HELLO,
            Message::Pairings { .. } => kind::PAIRINGS,
            Message::Goodbye(_) => kind::GOODBYE,
        }
    }

    /// Takes the message at the front of `buffer`, if it is whole. Returns it with the number of
    /// bytes it took.
    ///
    /// # Errors
    /// See [`MessageError`]; the length is judged before the message is whole.
    pub fn decode(buffer: &[u8]) -> Result<Option<(Message, usize)>, MessageError> {
        let Some((length, rest)) = buffer.split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let announced = u32::from_be_bytes(*length);
        let length = usize::try_from(announced)
            .ok()
            .filter(|length| (1..=MAX_MESSAGE).contains(length))
            .ok_or(MessageError::Length(announced))?;
        let Some((&kind, body)) = rest.get(..length).and_then(<[u8]>::split_first) else {
            return Ok(None);
        };
        let mut body = Body { kind, rest: body };
        let message = match kind {
            kind::HELLO => Message::Hello(Hello::decode(&mut body)?),
            kind::PAIRINGS => decode_pairings(&mut body)?,
            kind::GOODBYE => decode_goodbye(&mut body)?,
            unknown => return Err(MessageError::UnknownType(unknown)),
        };
        Ok(Some((message, LENGTH + length)))
    }
}

/// Encodes all pairings as messages of bounded size, the last one marked. Leaves out those beyond
/// [`MAX_PAIRINGS`].
pub fn encode_all_pairings(pairings: &[Pairing], out: &mut Vec<u8>) {
    let pairings = pairings.get(..MAX_PAIRINGS).unwrap_or(pairings);
    let mut chunks = pairings.chunks(TOLD_PER_MESSAGE).peekable();
    if chunks.peek().is_none() {
        Message::Pairings { last: true, pairings: Vec::new() }.encode(out);
    }
    while let Some(chunk) = chunks.next() {
        let last = chunks.peek().is_none();
        Message::Pairings { last, pairings: chunk.to_vec() }.encode(out);
    }
}

/// Bit of a HELLO's habits: see [`Hello::takes_living`].
const TAKES_LIVING: u8 = 1;
/// Another one: see [`Hello::begins_again`].
const BEGINS_AGAIN: u8 = 2;

impl Hello {
    fn encode(&self, out: &mut Vec<u8>) {
        let site = self.site.as_bytes();
        let site = site.get(..MAX_SITE).unwrap_or(site);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&self.session.to_be_bytes());
        out.push(self.ciphers.wire());
        out.extend_from_slice(&self.max_datagram.to_be_bytes());
        out.push(self.lanes);
        out.push(self.threads);
        out.push(u8::try_from(site.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(site);
        out.extend_from_slice(&self.resume_for.to_be_bytes());
        out.extend_from_slice(&self.ticket.map_or([0; TICKET_BYTES], |Ticket(bytes)| bytes));
        let build = self.build.as_bytes();
        let build = build.get(..MAX_BUILD).unwrap_or(build);
        out.push(u8::try_from(build.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(build);
        encode_prefixes(&self.remote, out);
        let habits = [(self.takes_living, TAKES_LIVING), (self.begins_again, BEGINS_AGAIN)];
        out.push(habits.into_iter().filter(|(has, _)| *has).map(|(_, bit)| bit).sum());
    }

    /// Bytes behind the habits are left unread: later revisions of the same version may add fields
    /// there. Earlier ones end with the site name, the ticket, the build, or the prefixes.
    fn decode(body: &mut Body<'_>) -> Result<Self, MessageError> {
        let theirs = body.u16()?;
        if theirs != VERSION {
            return Err(MessageError::Version { theirs });
        }
        let session = body.u32()?;
        let ciphers = Ciphers::from_wire(body.u8()?);
        let max_datagram = body.u16()?;
        if max_datagram < LEAST_DATAGRAM {
            return Err(MessageError::Value { field: "max datagram" });
        }
        let [lanes, threads] = [body.u8()?, body.u8()?];
        for (field, value, most) in [("lanes", lanes, MOST_LANES), ("threads", threads, MOST_THREADS)] {
            if !(1..=most).contains(&value) {
                return Err(MessageError::Value { field });
            }
        }
        if lanes.saturating_mul(threads) > MOST_LANES {
            return Err(MessageError::Value { field: "lanes" });
        }
        let length = usize::from(body.u8()?);
        let site = body.slice(length)?;
        let site =
            std::str::from_utf8(site).map_err(|_| MessageError::Value { field: "site name" })?.to_owned();
        let (resume_for, ticket) = if body.rest.is_empty() { (0, None) } else { decode_resume(body)? };
        let build = if body.rest.is_empty() { String::new() } else { decode_build(body)? };
        let remote = if body.rest.is_empty() { Vec::new() } else { decode_prefixes(body)? };
        let habits = if body.rest.is_empty() { 0 } else { body.u8()? };
        Ok(Hello {
            site,
            session,
            ciphers,
            max_datagram,
            lanes,
            threads,
            resume_for,
            ticket,
            build,
            remote,
            takes_living: habits & TAKES_LIVING != 0,
            begins_again: habits & BEGINS_AGAIN != 0,
        })
    }
}

/// A part of them would make the peer refuse the others' hosts.
fn encode_prefixes(prefixes: &[IpNet], out: &mut Vec<u8>) {
    let told = if prefixes.len() > MOST_PREFIXES { &[] } else { prefixes };
    out.push(u8::try_from(told.len()).unwrap_or_default());
    for prefix in told {
        out.push(if prefix.addr().is_ipv4() { 4 } else { 6 });
        out.push(prefix.prefix_len());
        out.extend_from_slice(&address_bytes(prefix.network()));
    }
}

fn decode_prefixes(body: &mut Body<'_>) -> Result<Vec<IpNet>, MessageError> {
    const WRONG: MessageError = MessageError::Value { field: "prefix" };
    let count = usize::from(body.u8()?);
    if count > MOST_PREFIXES {
        return Err(WRONG);
    }
    let mut prefixes = Vec::with_capacity(count);
    for _ in 0..count {
        let [family, length] = body.array()?;
        let prefix = IpNet::new(address(family, body.array()?)?, length).map_err(|_| WRONG)?;
        if prefix.addr() != prefix.network() {
            return Err(WRONG);
        }
        prefixes.push(prefix);
    }
    Ok(prefixes)
}

fn decode_resume(body: &mut Body<'_>) -> Result<(u32, Option<Ticket>), MessageError> {
    let resume_for = body.u32()?;
    let mut ticket = [0; TICKET_BYTES];
    ticket.copy_from_slice(body.slice(TICKET_BYTES)?);
    Ok((resume_for, (ticket != [0; TICKET_BYTES]).then_some(Ticket(ticket))))
}

/// The build ends up in logs and metrics: what is not plain is not taken.
fn decode_build(body: &mut Body<'_>) -> Result<String, MessageError> {
    let length = usize::from(body.u8()?);
    let build = body.slice(length)?;
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._+-".contains(byte);
    let build = build.get(..length).filter(|build| build.len() <= MAX_BUILD && build.iter().all(is_plain));
    Ok(build.map(String::from_utf8_lossy).unwrap_or_default().into_owned())
}

fn encode_pairings(last: bool, pairings: &[Pairing], out: &mut Vec<u8>) {
    let pairings = pairings.get(..PAIRINGS_PER_MESSAGE).unwrap_or(pairings);
    out.push(u8::from(last));
    out.extend_from_slice(&u16::try_from(pairings.len()).unwrap_or(u16::MAX).to_be_bytes());
    for pairing in pairings {
        pairing.encode(out);
    }
}

fn decode_pairings(body: &mut Body<'_>) -> Result<Message, MessageError> {
    let last = match body.u8()? {
        0 => false,
        1 => true,
        _ => {
            return Err(MessageError::Value { field: "pairings flags" });
        }
    };
    let count = usize::from(body.u16()?);
    if count > PAIRINGS_PER_MESSAGE {
        return Err(MessageError::TooManyPairings);
    }
    let mut pairings = Vec::with_capacity(count);
    for _ in 0..count {
        pairings.push(Pairing::decode(body)?);
    }
    body.end()?;
    Ok(Message::Pairings { last, pairings })
}

fn decode_goodbye(body: &mut Body<'_>) -> Result<Message, MessageError> {
    let reason = GoodbyeReason::from_wire(body.u8()?);
    body.end()?;
    Ok(Message::Goodbye(reason))
}

impl Pairing {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(match (self.direction, self.lives) {
            (Direction::Outbound, _) => 0,
            (Direction::Inbound, false) => 1,
            (Direction::Inbound, true) => 2,
        });
        out.push(if self.requester.is_ipv4() { 4 } else { 6 });
        out.extend_from_slice(&address_bytes(self.requester));
        out.extend_from_slice(&address_bytes(self.target));
        out.extend_from_slice(&self.target_qpn.to_be_bytes());
        out.extend_from_slice(&self.requester_qpn.unwrap_or(NONE).to_be_bytes());
        out.extend_from_slice(&self.psn.unwrap_or(NONE).to_be_bytes());
        out.extend_from_slice(&self.src_port.to_be_bytes());
    }

    fn decode(body: &mut Body<'_>) -> Result<Self, MessageError> {
        let (direction, lives) = match body.u8()? {
            0 => (Direction::Outbound, false),
            1 => (Direction::Inbound, false),
            2 => (Direction::Inbound, true),
            _ => {
                return Err(MessageError::Value { field: "pairing direction" });
            }
        };
        let family = body.u8()?;
        let requester = address(family, body.array()?)?;
        let target = address(family, body.array()?)?;
        let target_qpn = number_24(body.u32()?).ok_or(MessageError::Value { field: "target queue pair" })?;
        let requester_qpn = optional_24(body.u32()?, "requester queue pair")?;
        let psn = optional_24(body.u32()?, "packet sequence number")?;
        let src_port = body.u16()?;
        Ok(Pairing { direction, requester, target, target_qpn, requester_qpn, psn, src_port, lives })
    }
}

/// An IPv4 address stands in the first four bytes, zeros follow.
fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(address) => address.octets(),
    }
}

fn address(family: u8, bytes: [u8; 16]) -> Result<IpAddr, MessageError> {
    match (family, bytes) {
        (4, [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) => Ok(Ipv4Addr::new(a, b, c, d).into()),
        (6, bytes) => Ok(Ipv6Addr::from(bytes).into()),
        _ => Err(MessageError::Value { field: "address" }),
    }
}

fn number_24(value: u32) -> Option<u32> {
    (value <= MAX_24_BIT).then_some(value)
}

fn optional_24(value: u32, field: &'static str) -> Result<Option<u32>, MessageError> {
    if value == NONE {
        return Ok(None);
    }
    number_24(value).map(Some).ok_or(MessageError::Value { field })
}

/// The rest of a message's body.
struct Body<'a> {
    kind: u8,
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    fn slice(&mut self, length: usize) -> Result<&'a [u8], MessageError> {
        let (slice, rest) =
            self.rest.split_at_checked(length).ok_or(MessageError::Truncated { kind: self.kind })?;
        self.rest = rest;
        Ok(slice)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (array, rest) =
            self.rest.split_first_chunk::<N>().ok_or(MessageError::Truncated { kind: self.kind })?;
        self.rest = rest;
        Ok(*array)
    }

    fn u8(&mut self) -> Result<u8, MessageError> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn u16(&mut self) -> Result<u16, MessageError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_be_bytes)
    }

    fn end(&self) -> Result<(), MessageError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(MessageError::Trailing { kind: self.kind, bytes }),
        }
    }
}

#[cfg(test)]
#[path = "message/tests.rs"]
mod tests;
