//! The ACK extended transport header and its syndromes.

use std::time::Duration;

/// ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Aeth {
    /// The syndrome: what the responder answers.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits: messages, READs and atomics completed.
    pub msn: u32,
}

impl Aeth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads it.
    pub const fn parse(bytes: [u8; Aeth::LEN]) -> Aeth {
        let [syndrome, m0, m1, m2] = bytes;
        Aeth { syndrome: Syndrome::from_u8(syndrome), msn: u32::from_be_bytes([0, m0, m1, m2]) }
    }

    /// The bytes; the MSN's high byte is cut.
    pub const fn to_bytes(self) -> [u8; Aeth::LEN] {
        let [_, m0, m1, m2] = self.msn.to_be_bytes();
        [self.syndrome.to_u8(), m0, m1, m2]
    }
}

/// AETH syndrome: seven bits. Bit 7 of the byte is reserved (InfiniBand Architecture Specification,
/// volume 1, 9.7.5.1): ignored when parsed and zero when emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Syndrome {
    /// Positive acknowledgement.
    Ack {
        /// Encoded end-to-end credit count, 0 to 31; 31 stands for no flow control.
        credits: u8,
    },
    /// Receiver not ready: retry after the timer.
    Rnr {
        /// How long to wait.
        timer: RnrTimer,
    },
    /// Negative acknowledgement.
    Nak(Nak),
    /// A code without meaning today, 0x40 to 0x5f.
    Reserved(u8),
}

impl Syndrome {
    /// Between gateways only, in place of a fatal NAK: the target answers no more. A code that is
    /// reserved on the LAN (0x7f).
    pub const TARGET_SILENT: Syndrome = Syndrome::Nak(Nak::Other(31));

    /// Between gateways only: the wait that the target asked for, not being ready, is over, and
    /// what it was not ready for is left to the requester. The shortest wait there is (10 us).
    pub const WAIT_OVER: Syndrome = Syndrome::Rnr { timer: RnrTimer::new(1) };

    /// A positive acknowledgement without end-to-end credits.
    pub const ACK: Syndrome = Syndrome::Ack { credits: 0x1f };

    /// Reads the byte.
    pub const fn from_u8(code: u8) -> Syndrome {
        match code >> 5 & 3 {
            0 => Syndrome::Ack { credits: code & 0x1f },
            1 => Syndrome::Rnr { timer: RnrTimer::new(code) },
            3 => Syndrome::Nak(Nak::from_code(code)),
            _ => Syndrome::Reserved(code & 0x7f),
        }
    }

    /// The byte on the wire.
    pub const fn to_u8(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::Rnr { timer } => 0x20 | timer.code(),
            Syndrome::Nak(nak) => 0x60 | nak.code(),
            Syndrome::Reserved(code) => code & 0x7f,
        }
    }

    /// Returns true if this is a positive acknowledgement.
    pub const fn is_ack(self) -> bool {
        matches!(self, Syndrome::Ack { .. })
    }

    /// Returns true if it tells how many receives the target has room for.
    pub const fn has_credits(self) -> bool {
        matches!(self, Syndrome::Ack { credits } if credits & 0x1f != 0x1f)
    }

    /// Returns true if it grants more receives than `other` with the same MSN: the codes 0 to 30
    /// stand for ascending numbers (IBA volume 1, 9.7.7.2, end-to-end flow control).
    pub const fn grants_more_than(self, other: Syndrome) -> bool {
        self.has_credits() && other.has_credits() && self.to_u8() > other.to_u8()
    }

    /// Returns true if it moves the requester's queue pair to the error state: every NAK except a
    /// PSN sequence error.
    pub const fn is_fatal(self) -> bool {
        match self {
            Syndrome::Nak(nak) => !matches!(nak, Nak::PsnSequence),
            _ => false,
        }
    }
}

/// NAK codes (the low five bits of a NAK syndrome).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Nak {
    /// 0x60: a PSN is missing; the BTH carries the one expected.
    PsnSequence,
    /// 0x61: invalid request.
    InvalidRequest,
    /// 0x62: remote access error.
    RemoteAccess,
    /// 0x63: remote operational error.
    RemoteOperation,
    /// 0x64: invalid RD request (not for RC).
    InvalidRdRequest,
    /// Reserved codes 5 to 31.
    Other(u8),
}

impl Nak {
    const fn from_code(code: u8) -> Nak {
        match code & 0x1f {
            0 => Nak::PsnSequence,
            1 => Nak::InvalidRequest,
            2 => Nak::RemoteAccess,
            3 => Nak::RemoteOperation,
            4 => Nak::InvalidRdRequest,
            other => Nak::Other(other),
        }
    }

    /// The code, 0 to 31.
    pub const fn code(self) -> u8 {
        match self {
            Nak::PsnSequence => 0,
            Nak::InvalidRequest => 1,
            Nak::RemoteAccess => 2,
            Nak::RemoteOperation => 3,
            Nak::InvalidRdRequest => 4,
            Nak::Other(code) => code & 0x1f,
        }
    }
}

/// Code of the RNR NAK timer, 0 to 31. The codes are not in order of time: 0 is the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The low five bits of `code`.
    pub const fn new(code: u8) -> RnrTimer {
        RnrTimer(code & 0x1f)
    }

    /// The code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The least time the requester waits before it retries.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(match self.0 {
            0 => 655_360,
            1 => 10,
            2 => 20,
            3 => 30,
            4 => 40,
            5 => 60,
            6 => 80,
            7 => 120,
            8 => 160,
            9 => 240,
            10 => 320,
            11 => 480,
            12 => 640,
            13 => 960,
            14 => 1_280,
            15 => 1_920,
            16 => 2_560,
            17 => 3_840,
            18 => 5_120,
            19 => 7_680,
            20 => 10_240,
            21 => 15_360,
            22 => 20_480,
            23 => 30_720,
            24 => 40_960,
            25 => 61_440,
            26 => 81_920,
            27 => 122_880,
            28 => 163_840,
            29 => 245_760,
            30 => 327_680,
            _ => 491_520,
        })
    }

    /// The code of the shortest timer that is not shorter than `wait`, or of the longest there is.
    pub fn at_least(wait: Duration) -> RnrTimer {
        (1..32).map(RnrTimer).find(|timer| timer.duration() >= wait).unwrap_or(RnrTimer(0))
    }
}
