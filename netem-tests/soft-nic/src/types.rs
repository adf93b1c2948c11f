//! Types that a program hands to a queue pair and gets back from it.

use std::net::IpAddr;
use std::time::Duration;

use roce::wire::{PathMtu, Psn, Qpn, RnrTimer};

use super::personality::Personality;

/// Settings of one queue pair, fixed when it is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpConfig {
    /// Path MTU: the payload of every First and Middle packet.
    pub mtu: PathMtu,
    /// Most PSNs sent and not acknowledged. Soft-RoCE: 128.
    pub window: u32,
    /// Packets of a long message between two requests for an ACK. Soft-RoCE: 64.
    pub ack_every: u32,
    /// Time without progress after which the requester goes back; `None` = never (verbs timeout 0).
    pub timeout: Option<Duration>,
    /// Tries after a timeout or a PSN sequence NAK without progress, 0..=7; 7 = without end, as in
    /// Soft-RoCE.
    pub retry_cnt: u8,
    /// Tries after an RNR NAK without progress, 0..=7; 7 = without end.
    pub rnr_retry: u8,
    /// The wait this responder asks for when it has no receive.
    pub min_rnr_timer: RnrTimer,
    /// READs and atomics this requester keeps outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics this responder accepts at a time.
    pub max_dest_rd_atomic: u8,
    /// Send work requests posted and not yet polled as completed.
    pub send_depth: usize,
    /// Receives posted and not yet polled as completed.
    pub recv_depth: usize,
    /// A gap in READ responses restarts the READ at once (NICs) instead of waiting for the timer
    /// (Soft-RoCE).
    pub restart_reads_on_gap: bool,
    /// An ATOMIC WRITE or FLUSH that is sent again has address 0 (Soft-RoCE up to 6.12,
    /// `req_retry`), so it cannot be executed if the first was lost.
    pub forgets_addresses: bool,
    /// MigReq in every request: path migration's state at rest (NICs). Soft-RoCE: not.
    pub migreq: bool,
    /// IP traffic class of what is sent.
    pub tclass: u8,
    /// IP time to live / hop limit of what is sent.
    pub ttl: u8,
    /// Habits of the NIC. Its `window`, `migreq` and `restart_reads_on_gap` count only through
    /// [`Personality::qp`].
    pub personality: Personality,
}

impl Default for QpConfig {
    /// Soft-RoCE with perftest's settings: window 128, timeout 14 (67 ms), retries without end.
    fn default() -> Self {
        Self {
            mtu: PathMtu::B1024,
            window: 128,
            ack_every: 64,
            timeout: Some(verbs_timeout(14)),
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::new(12),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            send_depth: 128,
            recv_depth: 128,
            restart_reads_on_gap: false,
            forgets_addresses: false,
            migreq: false,
            tclass: 0,
            ttl: 64,
            personality: Personality::SOFT_ROCE,
        }
    }
}

/// The verbs encoding of an ACK timeout: 4.096 us * 2^code. Code 0 means "none" and has no
/// duration; codes above 31 count as 31.
pub fn verbs_timeout(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.min(31))
}

/// The other end of a connection, as exchanged out of band.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Its address; packets from any other are dropped.
    pub ip: IpAddr,
    /// Its queue pair number.
    pub qpn: Qpn,
    /// The PSN it starts sending requests at.
    pub psn: Psn,
}

/// The remote side's rights on a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// RDMA READ.
    pub remote_read: bool,
    /// RDMA WRITE.
    pub remote_write: bool,
    /// Compare-and-swap, fetch-and-add.
    pub remote_atomic: bool,
    /// FLUSH to global visibility. No memory here is persistent.
    pub remote_flush: bool,
}

impl Access {
    /// Local use only.
    pub const LOCAL: Access =
        Access { remote_read: false, remote_write: false, remote_atomic: false, remote_flush: false };
    /// Everything.
    pub const ALL: Access =
        Access { remote_read: true, remote_write: true, remote_atomic: true, remote_flush: true };
}

/// A local buffer: part of one registered region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sge {
    /// Key of the region.
    pub key: u32,
    /// Virtual address of the first byte.
    pub va: u64,
    /// Length in bytes; 0 needs no region.
    pub len: u32,
}

/// Where a one-sided operation goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteAddr {
    /// Virtual address on the remote host.
    pub va: u64,
    /// Its region's key.
    pub rkey: u32,
}

/// The operation of a send work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// SEND, with an immediate or without.
    Send {
        /// The immediate.
        imm: Option<u32>,
    },
    /// SEND that ends what the remote side may do with one of its regions.
    SendInvalidate {
        /// That region's key.
        rkey: u32,
    },
    /// RDMA WRITE, with an immediate (which consumes a receive at the remote side) or without.
    Write {
        /// Where to.
        remote: RemoteAddr,
        /// The immediate.
        imm: Option<u32>,
    },
    /// RDMA READ.
    Read {
        /// Where from.
        remote: RemoteAddr,
    },
    /// Fetch-and-add on eight remote bytes (native byte order); the value before goes to eight
    /// local ones.
    FetchAdd {
        /// Which.
        remote: RemoteAddr,
        /// The value added.
        add: u64,
    },
    /// Compare-and-swap on eight remote bytes (native byte order); the value before goes to eight
    /// local ones.
    CompareSwap {
        /// Which.
        remote: RemoteAddr,
        /// The value that must stand there.
        compare: u64,
        /// The value that stands there then.
        swap: u64,
    },
    /// Eight local bytes written at once.
    AtomicWrite {
        /// Where to; a multiple of 8.
        remote: RemoteAddr,
    },
    /// FLUSH of a range, or of its whole region, to global visibility.
    Flush {
        /// First byte.
        remote: RemoteAddr,
        /// Bytes.
        len: u32,
        /// The whole region, whatever the range.
        region: bool,
    },
}

impl Work {
    pub(super) fn operation(&self) -> Operation {
        match self {
            Work::Send { .. } | Work::SendInvalidate { .. } => Operation::Send,
            Work::Write { .. } => Operation::Write,
            Work::Read { .. } => Operation::Read,
            Work::FetchAdd { .. } => Operation::FetchAdd,
            Work::CompareSwap { .. } => Operation::CompareSwap,
            Work::AtomicWrite { .. } => Operation::AtomicWrite,
            Work::Flush { .. } => Operation::Flush,
        }
    }

    /// Returns true if only a response, not an ACK, completes it.
    pub(super) fn needs_response(&self) -> bool {
        !matches!(self, Work::Send { .. } | Work::SendInvalidate { .. } | Work::Write { .. })
    }

    /// The length that its local buffer must have.
    pub(super) fn local_len(&self) -> Option<u32> {
        match self {
            Work::FetchAdd { .. } | Work::CompareSwap { .. } | Work::AtomicWrite { .. } => Some(8),
            Work::Flush { .. } => Some(0),
            _ => None,
        }
    }

    /// Returns true if the remote side takes a receive for it: only that may ask for an event
    /// there.
    pub(super) fn takes_receive(&self) -> bool {
        matches!(self, Work::Send { .. } | Work::SendInvalidate { .. } | Work::Write { imm: Some(_), .. })
    }
}

/// The operation that a completion is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// SEND, with or without immediate or invalidate.
    Send,
    /// RDMA WRITE, with or without immediate.
    Write,
    /// RDMA READ.
    Read,
    /// Fetch-and-add.
    FetchAdd,
    /// Compare-and-swap.
    CompareSwap,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH.
    Flush,
    /// A receive filled by a SEND.
    Recv,
    /// A receive consumed by a WRITE with immediate.
    RecvWriteImm,
}

impl Operation {
    /// Returns true if it is a receive's.
    #[must_use]
    pub fn is_receive(self) -> bool {
        matches!(self, Self::Recv | Self::RecvWriteImm)
    }
}

/// How a work request ended (the names of verbs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Success,
    /// The QP went to error before this one was done.
    Flushed,
    /// Retries used up without an answer.
    RetryExceeded,
    /// RNR retries used up.
    RnrRetryExceeded,
    /// AETH syndrome 0x61.
    RemoteInvalidRequest,
    /// AETH syndrome 0x62.
    RemoteAccess,
    /// AETH syndrome 0x63.
    RemoteOperation,
    /// A message did not fit the receive, or did not match its own header.
    LocalLength,
    /// The buffer's region is gone.
    LocalProtection,
}

/// One completed work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// As given when posted.
    pub wr_id: u64,
    /// The local queue pair.
    pub qpn: Qpn,
    /// Its operation.
    pub operation: Operation,
    /// How it ended.
    pub status: Status,
    /// Bytes moved (receives: bytes received).
    pub byte_len: u32,
    /// The immediate of a received message.
    pub imm: Option<u32>,
    /// The key that a received message made invalid.
    pub invalidated: Option<u32>,
    /// A received message asked for an event.
    pub solicited: bool,
}

/// Why a call was refused. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// No queue pair has this number.
    #[error("no queue pair {0:?}")]
    UnknownQp(Qpn),
    /// The queue pair is not connected, or is in error.
    #[error("queue pair {0:?} is not ready")]
    NotReady(Qpn),
    /// As many work requests as configured are posted and not polled.
    #[error("work queue full")]
    Full,
    /// The local buffer is not within a registered region, or has the wrong length for the
    /// operation.
    #[error("local buffer {0:?} is invalid")]
    BadBuffer(Sge),
    /// Longer than 2^31 bytes, or than 2^23 packets (InfiniBand's limit on one message).
    #[error("message of {0} bytes is too long")]
    TooLong(u32),
    /// The configuration is impossible.
    #[error("queue pair setting `{0}` is out of range")]
    Config(&'static str),
}

/// Counters of a host. Those of silent drops are the first thing to read when nothing arrives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostStats {
    /// IP packets taken in, good or bad.
    pub packets_in: u64,
    /// IP packets handed out.
    pub packets_out: u64,
    /// Not IP/UDP/4791, bad checksum, bad ICRC.
    pub bad_datagram: u64,
    /// Not a RoCE packet we understand.
    pub bad_packet: u64,
    /// For another address, unknown QP, wrong source, QP not connected or in error.
    pub unmatched: u64,
    /// Request packets executed, each once.
    pub executed: u64,
    /// Requests behind the expected PSN.
    pub duplicates: u64,
    /// Requests ahead of the expected PSN.
    pub out_of_sequence: u64,
    /// Atomics executed, ATOMIC WRITEs among them.
    pub atomics: u64,
    /// FLUSHes executed.
    pub flushes: u64,
    /// PSN sequence NAKs sent.
    pub naks_out: u64,
    /// RNR NAKs sent.
    pub rnr_out: u64,
    /// PSN sequence NAKs received and acted upon.
    pub naks_in: u64,
    /// RNR NAKs received.
    pub rnr_in: u64,
    /// Times a requester went back because of its timer.
    pub timeouts: u64,
    /// Request packets sent more than once.
    pub retransmitted: u64,
    /// Responses that fit nothing outstanding.
    pub stale_responses: u64,
    /// Congestion notifications received. Soft-RoCE does not obey them.
    pub cnps_in: u64,
    /// Congestion notifications sent about marked packets.
    pub cnps_out: u64,
    /// Times a congestion notification slowed a queue pair.
    pub slowed: u64,
}

impl Personality {
    /// A queue pair's settings for this NIC; all else is the default.
    #[must_use]
    pub fn qp(self) -> QpConfig {
        QpConfig {
            window: self.window,
            migreq: self.migreq,
            restart_reads_on_gap: self.restart_reads_on_gap,
            personality: self,
            ..QpConfig::default()
        }
    }
}
