//! BTH opcodes and what each of them implies for the rest of the packet.

/// The transport service an opcode belongs to (its top three bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram; also carries connection management on QP 1.
    Ud,
    /// Congestion notification: no queue pair's request or response.
    Cnp,
}

/// The operation that a packet is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Kind {
    /// Part of a SEND.
    Send,
    /// Part of an RDMA WRITE.
    Write,
    /// RDMA READ request.
    Read,
    /// Compare-and-swap or fetch-and-add.
    Atomic,
    /// FLUSH of earlier writes to memory or persistence.
    Flush,
    /// Eight bytes written atomically.
    AtomicWrite,
    /// Part of the answer to a READ (the Only form also answers FLUSH and ATOMIC WRITE).
    ReadResponse,
    /// ACK, RNR NAK or NAK.
    Acknowledge,
    /// The answer to an atomic.
    AtomicAcknowledge,
    /// Congestion notification packet.
    Cnp,
}

/// Where in its message a packet stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The whole message.
    Only,
}

/// The extension headers between the BTH and the payload, in their order on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// None.
    Bare,
    /// ImmDt.
    Imm,
    /// RETH.
    Reth,
    /// RETH, ImmDt.
    RethImm,
    /// AETH.
    Aeth,
    /// AETH, AtomicAckETH.
    AethAtomicAck,
    /// AtomicETH.
    Atomic,
    /// IETH.
    Ieth,
    /// FETH, RETH.
    FethReth,
    /// DETH.
    Deth,
    /// DETH, ImmDt.
    DethImm,
}

impl Layout {
    /// Length of the extension headers in bytes.
    pub const fn len(self) -> usize {
        match self {
            Layout::Bare => 0,
            Layout::Imm | Layout::Aeth | Layout::Ieth => 4,
            Layout::Deth => 8,
            Layout::AethAtomicAck | Layout::DethImm => 12,
            Layout::Reth => 16,
            Layout::RethImm | Layout::FethReth => 20,
            Layout::Atomic => 28,
        }
    }

    /// Returns true if the payload follows the BTH at once.
    pub const fn is_empty(self) -> bool {
        matches!(self, Layout::Bare)
    }
}

/// The bytes that follow the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// Nothing at all.
    Absent,
    /// A payload of any length and its padding.
    Any,
    /// Exactly so many bytes.
    Exact(usize),
}

/// Codes that a BTH can hold.
const CODES: usize = 256;

/// A table of one property by code: read at each packet, and a load is cheaper than a jump.
#[expect(clippy::indexing_slicing, reason = "the compiler computes it")]
const fn by_code<T: Copy, const N: usize>(known: [(u8, T); N], reserved: T) -> [T; CODES] {
    let mut table = [reserved; CODES];
    let mut at = 0;
    while at < N {
        table[known[at].0 as usize] = known[at].1;
        at += 1;
    }
    table
}

/// One table row per opcode; all properties are read from it.
macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal: $transport:ident $kind:ident $place:ident $layout:ident $body:expr;)*) => {
        /// The known opcodes. Names without prefix are RC's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Opcode { $($(#[$doc])* $name = $code),* }

        impl Opcode {
            /// Every known opcode, ascending.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),*];

            /// The opcode with this code on the wire; `None` for reserved codes and transports not
            /// understood (RD, XRC, ...).
            #[inline]
            pub const fn from_u8(code: u8) -> Option<Opcode> {
                match code { $($code => Some(Opcode::$name),)* _ => None }
            }

            /// That of a packet, by its BTH's first byte; `None` also for an empty one.
            #[inline]
            pub fn of(packet: &[u8]) -> Option<Opcode> {
                packet.first().copied().and_then(Opcode::from_u8)
            }

            /// The transport service.
            #[inline]
            pub const fn transport(self) -> Transport {
                match self { $(Opcode::$name => Transport::$transport),* }
            }

            /// Returns the operation that the packet is part of.
            #[inline]
            #[expect(clippy::indexing_slicing, reason = "a code is a byte")]
            pub const fn kind(self) -> Kind {
                const KINDS: [Kind; CODES] = by_code([$(($code, Kind::$kind)),*], Kind::Send);
                KINDS[self as usize]
            }

            /// Where in its message the packet stands.
            #[inline]
            #[expect(clippy::indexing_slicing, reason = "a code is a byte")]
            pub const fn place(self) -> Place {
                const PLACES: [Place; CODES] = by_code([$(($code, Place::$place)),*], Place::Only);
                PLACES[self as usize]
            }

            /// The extension headers.
            #[inline]
            pub const fn layout(self) -> Layout {
                match self { $(Opcode::$name => Layout::$layout),* }
            }

            #[inline]
            pub(super) const fn body(self) -> Body {
                match self { $(Opcode::$name => $body),* }
            }
        }
    };
}

opcodes! {
    /// SEND, first packet.
    SendFirst = 0x00: Rc Send First Bare Body::Any;
    /// SEND, middle packet.
    SendMiddle = 0x01: Rc Send Middle Bare Body::Any;
    /// SEND, last packet.
    SendLast = 0x02: Rc Send Last Bare Body::Any;
    /// SEND, last packet, with immediate.
    SendLastImmediate = 0x03: Rc Send Last Imm Body::Any;
    /// SEND in one packet.
    SendOnly = 0x04: Rc Send Only Bare Body::Any;
    /// SEND in one packet, with immediate.
    SendOnlyImmediate = 0x05: Rc Send Only Imm Body::Any;
    /// RDMA WRITE, first packet.
    WriteFirst = 0x06: Rc Write First Reth Body::Any;
    /// RDMA WRITE, middle packet.
    WriteMiddle = 0x07: Rc Write Middle Bare Body::Any;
    /// RDMA WRITE, last packet.
    WriteLast = 0x08: Rc Write Last Bare Body::Any;
    /// RDMA WRITE, last packet, with immediate.
    WriteLastImmediate = 0x09: Rc Write Last Imm Body::Any;
    /// RDMA WRITE in one packet.
    WriteOnly = 0x0a: Rc Write Only Reth Body::Any;
    /// RDMA WRITE in one packet, with immediate.
    WriteOnlyImmediate = 0x0b: Rc Write Only RethImm Body::Any;
    /// RDMA READ request.
    ReadRequest = 0x0c: Rc Read Only Reth Body::Absent;
    /// READ response, first packet.
    ReadResponseFirst = 0x0d: Rc ReadResponse First Aeth Body::Any;
    /// READ response, middle packet.
    ReadResponseMiddle = 0x0e: Rc ReadResponse Middle Bare Body::Any;
    /// READ response, last packet.
    ReadResponseLast = 0x0f: Rc ReadResponse Last Aeth Body::Any;
    /// READ response in one packet; also answers FLUSH and ATOMIC WRITE.
    ReadResponseOnly = 0x10: Rc ReadResponse Only Aeth Body::Any;
    /// ACK, RNR NAK or NAK.
    Acknowledge = 0x11: Rc Acknowledge Only Aeth Body::Absent;
    /// Answer to an atomic.
    AtomicAcknowledge = 0x12: Rc AtomicAcknowledge Only AethAtomicAck Body::Absent;
    /// Atomic compare and swap.
    CompareSwap = 0x13: Rc Atomic Only Atomic Body::Absent;
    /// Atomic fetch and add.
    FetchAdd = 0x14: Rc Atomic Only Atomic Body::Absent;
    /// SEND, last packet, with invalidate.
    SendLastInvalidate = 0x16: Rc Send Last Ieth Body::Any;
    /// SEND in one packet, with invalidate.
    SendOnlyInvalidate = 0x17: Rc Send Only Ieth Body::Any;
    /// FLUSH.
    Flush = 0x1c: Rc Flush Only FethReth Body::Absent;
    /// ATOMIC WRITE of eight bytes.
    AtomicWrite = 0x1d: Rc AtomicWrite Only Reth Body::Exact(8);
    /// UC SEND, first packet.
    UcSendFirst = 0x20: Uc Send First Bare Body::Any;
    /// UC SEND, middle packet.
    UcSendMiddle = 0x21: Uc Send Middle Bare Body::Any;
    /// UC SEND, last packet.
    UcSendLast = 0x22: Uc Send Last Bare Body::Any;
    /// UC SEND, last packet, with immediate.
    UcSendLastImmediate = 0x23: Uc Send Last Imm Body::Any;
    /// UC SEND in one packet.
    UcSendOnly = 0x24: Uc Send Only Bare Body::Any;
    /// UC SEND in one packet, with immediate.
    UcSendOnlyImmediate = 0x25: Uc Send Only Imm Body::Any;
    /// UC RDMA WRITE, first packet.
    UcWriteFirst = 0x26: Uc Write First Reth Body::Any;
    /// UC RDMA WRITE, middle packet.
    UcWriteMiddle = 0x27: Uc Write Middle Bare Body::Any;
    /// UC RDMA WRITE, last packet.
    UcWriteLast = 0x28: Uc Write Last Bare Body::Any;
    /// UC RDMA WRITE, last packet, with immediate.
    UcWriteLastImmediate = 0x29: Uc Write Last Imm Body::Any;
    /// UC RDMA WRITE in one packet.
    UcWriteOnly = 0x2a: Uc Write Only Reth Body::Any;
    /// UC RDMA WRITE in one packet, with immediate.
    UcWriteOnlyImmediate = 0x2b: Uc Write Only RethImm Body::Any;
    /// UD SEND.
    UdSendOnly = 0x64: Ud Send Only Deth Body::Any;
    /// UD SEND with immediate.
    UdSendOnlyImmediate = 0x65: Ud Send Only DethImm Body::Any;
    /// Congestion notification packet: sixteen reserved bytes.
    Cnp = 0x81: Cnp Cnp Only Bare Body::Exact(16);
}

impl Opcode {
    /// The code on the wire.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// Returns true if a requester sends it. Neither request nor response: CNP.
    #[inline]
    pub const fn is_request(self) -> bool {
        !self.is_response() && !matches!(self.transport(), Transport::Cnp)
    }

    /// Returns true if a responder sends it: READ responses, ACK and NAK, atomic ACK.
    #[inline]
    pub const fn is_response(self) -> bool {
        matches!(self.kind(), Kind::ReadResponse | Kind::Acknowledge | Kind::AtomicAcknowledge)
    }

    /// First or Only.
    #[inline]
    pub const fn starts_message(self) -> bool {
        matches!(self.place(), Place::First | Place::Only)
    }

    /// Last or Only.
    #[inline]
    pub const fn ends_message(self) -> bool {
        matches!(self.place(), Place::Last | Place::Only)
    }

    /// Returns true if bytes may follow the extension headers.
    #[inline]
    pub const fn has_payload(self) -> bool {
        !matches!(self.body(), Body::Absent)
    }

    /// Returns true if it carries immediate data.
    #[inline]
    pub const fn has_immediate(self) -> bool {
        matches!(self.layout(), Layout::Imm | Layout::RethImm | Layout::DethImm)
    }

    /// Returns true if the responder needs a posted receive to execute it: a SEND's first packet, a
    /// WRITE's with immediate. These are what a responder may answer with RNR NAK.
    #[inline]
    pub const fn needs_receive(self) -> bool {
        match self.kind() {
            Kind::Send => self.starts_message(),
            Kind::Write => self.has_immediate(),
            _ => false,
        }
    }

    /// Returns true if it is answered by responses that carry data or a result (READ, atomics,
    /// FLUSH, ATOMIC WRITE), so that a plain ACK must never go past it.
    #[inline]
    pub const fn needs_response(self) -> bool {
        matches!(self.kind(), Kind::Read | Kind::Atomic | Kind::Flush | Kind::AtomicWrite)
    }
}
