//! A host that floods its gateway with packets of one kind, at a rate of its own.
//!
//! It heeds no answer, and none of what it sends is awaited at the other site.
//! Like [`crate::Host`] it has neither sockets nor a clock: the simulator has it as a resident of
//! virtual time, a thread of the testbed runs it on a socket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use roce::ip::Addressing;
use roce::wire::{Bth, Deth, Ext, Opcode, Psn, Qpn, Repr, Reth};

/// Payload of each packet but a management datagram or a short one.
const PAYLOAD: usize = 4096;
/// That of a short one.
const SHORT: usize = 16;
/// A host that was kept from sending makes up for so much of it at most.
const MOST_LATE: Duration = Duration::from_millis(10);
const GSI: u32 = 1;
const GSI_QKEY: u32 = 0x8001_0000;
/// A queue pair number that no host here has.
const ABSENT: u32 = 0x00f0_0000;

/// A kind of packet that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloodKind {
    /// UD SENDs.
    Ud,
    /// UC WRITEs of a packet.
    Uc,
    /// First packets of UC WRITEs that claim 4 GiB, of ever other queue pairs.
    UcClaims,
    /// XRC SENDs.
    Xrc,
    /// Connection requests, each of another communication ID.
    Cm,
    /// Datagrams to queue pair 1 that are no management datagrams.
    LikeCm,
    /// RC WRITEs to one queue pair that the target's host does not have.
    RcAbsentQueuePair,
    /// RC WRITEs to 3,000 of them.
    RcAbsentQueuePairs,
    /// Short UD SENDs.
    UdShort,
    /// Short UC SENDs.
    UcShort,
    /// Short XRC SENDs.
    XrcShort,
    /// Short RC SENDs, each to another queue pair that the target's host does not have.
    RcShort,
    /// RC READs likewise.
    RcReads,
    /// RC WRITEs to queue pairs of a host that is not there.
    RcAbsentHost,
}

impl FloodKind {
    /// Every kind.
    pub const ALL: [Self; 14] = [
        Self::Ud,
        Self::Uc,
        Self::UcClaims,
        Self::Xrc,
        Self::Cm,
        Self::LikeCm,
        Self::RcAbsentQueuePair,
        Self::RcAbsentQueuePairs,
        Self::UdShort,
        Self::UcShort,
        Self::XrcShort,
        Self::RcShort,
        Self::RcReads,
        Self::RcAbsentHost,
    ];

    /// How tables name it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ud => "UD",
            Self::Uc => "UC, messages of a packet",
            Self::UcClaims => "UC, messages that claim 4 GiB",
            Self::Xrc => "XRC",
            Self::Cm => "connection requests",
            Self::LikeCm => "packets to queue pair 1 that are none",
            Self::RcAbsentQueuePair => "RC to a queue pair that is not there",
            Self::RcAbsentQueuePairs => "RC to 3,000 such",
            Self::UdShort => "short UD",
            Self::UcShort => "short UC",
            Self::XrcShort => "short XRC",
            Self::RcShort => "short RC SENDs, each to another such",
            Self::RcReads => "RC READs, each to another such",
            Self::RcAbsentHost => "RC to a host that is not there",
        }
    }

    /// Returns whether it needs a destination where no host answers.
    #[must_use]
    pub const fn is_to_absent_host(self) -> bool {
        matches!(self, Self::RcAbsentHost)
    }

    fn opcode(self) -> Opcode {
        match self {
            Self::Ud | Self::UdShort | Self::Xrc | Self::XrcShort | Self::Cm | Self::LikeCm => {
                Opcode::UdSendOnly
            }
            Self::Uc => Opcode::UcWriteOnly,
            Self::UcShort => Opcode::UcSendOnly,
            Self::UcClaims => Opcode::UcWriteFirst,
            Self::RcAbsentQueuePair | Self::RcAbsentQueuePairs | Self::RcAbsentHost => Opcode::WriteOnly,
            Self::RcShort => Opcode::SendOnly,
            Self::RcReads => Opcode::ReadRequest,
        }
    }

    /// Destination queue pair and PSN of a packet.
    fn place(self, number: u32) -> (u32, u32) {
        match self {
            Self::Cm | Self::LikeCm => (GSI, number),
            Self::Ud | Self::UdShort | Self::Uc | Self::UcShort => (ABSENT, number),
            Self::Xrc | Self::XrcShort | Self::RcAbsentQueuePair => (ABSENT, number),
            Self::UcClaims => (ABSENT + number % 5000, number / 5000),
            Self::RcAbsentQueuePairs | Self::RcAbsentHost => (ABSENT + number % 3000, number / 3000),
            Self::RcShort | Self::RcReads => (ABSENT | number & !ABSENT & 0xff_ffff, 0),
        }
    }

    fn ext(self) -> Ext {
        let reth = |dma_length| Ext::Reth(Reth { virtual_address: 0, rkey: 7, dma_length });
        match self {
            Self::Ud | Self::UdShort | Self::Xrc | Self::XrcShort => {
                Ext::Deth(Deth { qkey: 5, src_qp: Qpn::new(5) })
            }
            Self::Cm | Self::LikeCm => Ext::Deth(Deth { qkey: GSI_QKEY, src_qp: Qpn::new(GSI) }),
            Self::UcClaims => reth(u32::MAX),
            Self::UcShort | Self::RcShort => Ext::None,
            _ => reth(PAYLOAD as u32),
        }
    }
}

/// A flooding host.
#[derive(Debug)]
pub struct Flood {
    kind: FloodKind,
    /// Bit/s of whole IP packets.
    rate: f64,
    addressing: Addressing,
    /// So many of the last bits of its address are others with each packet.
    names: u8,
    next: Instant,
    sent: u32,
    payload: Box<[u8]>,
    transport: Box<[u8]>,
}

impl Flood {
    /// A host `from` that sends so much to `to`, beginning now.
    #[must_use]
    pub fn new(kind: FloodKind, rate: f64, [from, to]: [IpAddr; 2], now: Instant) -> Self {
        let addressing = Addressing { src: from, dst: to, src_port: 0xc123, tclass: 0, ttl: 64 };
        let payload = vec![6; PAYLOAD].into();
        Self {
            kind,
            rate,
            addressing,
            names: 0,
            next: now,
            sent: 0,
            payload,
            transport: vec![0; PAYLOAD + 64].into(),
        }
    }

    /// The same in ever other names, whose addresses differ in so many of the last bits.
    #[must_use]
    pub fn in_names(self, bits: u8) -> Self {
        Self { names: bits.min(16), ..self }
    }

    /// Returns the name that the next packet is sent in.
    fn name(&self) -> IpAddr {
        let mask = (1_u32 << self.names) - 1;
        // Neighbours in time are none in the address: an odd factor visits each once.
        let number = self.sent.wrapping_mul(0x9e3b) & mask;
        match self.addressing.src {
            IpAddr::V4(own) => Ipv4Addr::from(u32::from(own) & !mask | number).into(),
            IpAddr::V6(own) => {
                Ipv6Addr::from(u128::from(own) & !u128::from(mask) | u128::from(number)).into()
            }
        }
    }

    /// Counts packets sent.
    #[must_use]
    pub const fn sent(&self) -> u32 {
        self.sent
    }

    /// When it sends next.
    #[must_use]
    pub const fn next_timeout(&self) -> Instant {
        self.next
    }

    /// Writes the next packet that is due, a whole IP packet, to the front of `out`, and returns
    /// its length.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        if self.next > now {
            return None;
        }
        let (to, psn) = self.kind.place(self.sent);
        let bth =
            Bth { ack_req: true, ..Bth::new(self.kind.opcode(), Qpn::new(to), Psn::new(psn & 0xff_ffff)) };
        let request = connection_request(self.sent);
        let payload = match self.kind {
            FloodKind::Cm => &request,
            FloodKind::UdShort | FloodKind::UcShort | FloodKind::XrcShort | FloodKind::RcShort => {
                self.payload.get(..SHORT)?
            }
            FloodKind::RcReads => &[],
            _ => &*self.payload,
        };
        let len = Repr { bth, ext: self.kind.ext(), payload }.emit(&mut self.transport).ok()?;
        if matches!(self.kind, FloodKind::Xrc | FloodKind::XrcShort) {
            // XRC SEND Only (IBA 1.6, table 38), with eight bytes of headers like a UD packet.
            *self.transport.first_mut()? = 0xa4;
        }
        let addressing = Addressing { src: self.name(), ..self.addressing };
        let len = roce::ip::emit(&addressing, 1, self.transport.get(..len)?, out).ok()?;
        self.sent += 1;
        let time = Duration::from_secs_f64(len as f64 * 8.0 / self.rate);
        self.next = (self.next + time).max(now.checked_sub(MOST_LATE).unwrap_or(now));
        Some(len)
    }
}

/// A REQ of rdma_cm: base version 1, class 7 (communication management), version 2, method Send,
/// attribute `ConnectRequest`; then the local communication ID (IBA 1.6, 12.6.5).
fn connection_request(id: u32) -> [u8; 256] {
    let mut mad = [0; 256];
    for (to, byte) in mad.iter_mut().zip([1, 7, 2, 3]) {
        *to = byte;
    }
    for (to, byte) in mad.iter_mut().skip(16).zip([0, 0x10]) {
        *to = byte;
    }
    for (to, byte) in mad.iter_mut().skip(24).zip(id.to_be_bytes()) {
        *to = byte;
    }
    mad
}
