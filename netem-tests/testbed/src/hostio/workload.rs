//! The work of a client and a server, and what each knows of the other from that alone.

use std::net::IpAddr;
use std::time::Duration;

use roce::wire::{Psn, Qpn};

use super::Role;
use soft_nic::{QpConfig, RegionHandle, Remote};

/// Buffers of contents that are not checked.
const SHARED_SLOTS: u64 = 1024;

/// Bytes that the kernel takes for a datagram beside its payload: its own structure, and what is
/// left of the pages.
const PACKET_OVERHEAD: u64 = 1024;

/// The traffic of one client and its server.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Queue pairs.
    pub qps: u32,
    /// Which operations, in what proportion.
    pub mix: Mix,
    /// Payload bytes per message (atomics: always 8).
    pub message: u32,
    /// When the client stops posting.
    pub limit: Limit,
    /// Messages outstanding per queue pair.
    pub depth: u32,
    /// Bounds what all queue pairs of the client have outstanding together by what the receive
    /// ring of a host holds ([`Workload::cost`]); queue pairs take turns, a message each. For hosts
    /// that share a machine with the gateways: their rings would overrun otherwise.
    pub within_ring: bool,
    /// Not measured: this long from the start.
    pub warmup: Duration,
    /// Fill each message with bytes of its own and check all contents, at both ends. WRITEs are
    /// checked at the end, by reading the memory back.
    pub verify: bool,
    /// Keep when each message was posted and completed ([`super::Report::timeline`]).
    pub timeline: bool,
    /// A client gives up when nothing completed for this long.
    pub patience: Duration,
    /// Seed of the order of operations, the contents and the first PSNs.
    pub seed: u64,
    /// Path MTU, window, timeouts. Depths are set from `depth`.
    pub qp: QpConfig,
}

/// Relative weights of the operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mix {
    /// RDMA WRITE.
    pub write: u32,
    /// RDMA WRITE with immediate.
    pub write_imm: u32,
    /// SEND.
    pub send: u32,
    /// RDMA READ.
    pub read: u32,
    /// Fetch-and-add.
    pub atomic: u32,
}

impl Mix {
    /// Only WRITEs.
    pub const WRITE: Mix = Mix { write: 1, write_imm: 0, send: 0, read: 0, atomic: 0 };
    /// Only SENDs.
    pub const SEND: Mix = Mix { write: 0, send: 1, ..Mix::WRITE };
    /// Only READs.
    pub const READ: Mix = Mix { write: 0, read: 1, ..Mix::WRITE };
    /// A little of everything.
    pub const ALL: Mix = Mix { write: 3, write_imm: 1, send: 3, read: 2, atomic: 1 };

    fn total(&self) -> u64 {
        [self.write, self.write_imm, self.send, self.read, self.atomic].map(u64::from).iter().sum()
    }
}

/// When a client is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// After so many messages per queue pair.
    Messages(u64),
    /// After so long, warm-up included.
    Time(Duration),
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            qps: 1,
            mix: Mix::WRITE,
            message: 65536,
            limit: Limit::Messages(1000),
            depth: 16,
            within_ring: false,
            warmup: Duration::ZERO,
            verify: true,
            timeline: false,
            patience: Duration::from_secs(30),
            seed: 1,
            qp: QpConfig::default(),
        }
    }
}

/// An operation of the mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Write,
    WriteImm,
    Send,
    Read,
    Atomic,
}

impl Op {
    pub(super) fn consumes_receive(self) -> bool {
        matches!(self, Op::WriteImm | Op::Send)
    }
}

impl Workload {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        match self {
            w if !(1..=16_384).contains(&w.qps) => Err("1 to 16384 queue pairs"),
            w if !(1..=1024).contains(&w.depth) => Err("a depth from 1 to 1024"),
            w if w.mix.total() == 0 => Err("a mix of no operations"),
            w if w.message == 0 => Err("messages of no bytes"),
            w if w.slots() * w.slot() > 1 << 32 => Err("more than 4 GiB of buffers"),
            _ => Ok(()),
        }
    }

    /// Bytes from one message buffer to the next.
    pub(super) fn slot(&self) -> u64 {
        u64::from(self.message).next_multiple_of(64)
    }

    /// Buffers of all queue pairs at one end. Where nobody looks at the contents, more than
    /// [`SHARED_SLOTS`] messages share them.
    pub(super) fn slots(&self) -> u64 {
        let outstanding = u64::from(self.qps) * u64::from(self.depth);
        if self.verify { outstanding } else { outstanding.min(SHARED_SLOTS) }
    }

    /// Messages READ from in turn: chosen so that one buffer never gets the same message twice in a
    /// row.
    pub(super) fn sources(&self) -> u64 {
        2 * u64::from(self.depth) + 1
    }

    /// Where the buffer of message `sequence` of queue pair `qp` starts.
    pub(super) fn buffer(&self, qp: u32, sequence: u64) -> u64 {
        let place = u64::from(qp) * u64::from(self.depth) + sequence % u64::from(self.depth);
        place % self.slots() * self.slot()
    }

    /// Bytes of a receive ring that a message may take: its packets with what the kernel needs for
    /// each, and its ACK.
    pub(super) fn cost(&self) -> u64 {
        let packets = u64::from(self.qp.mtu.psn_span(self.message)).max(1);
        u64::from(self.message) + (packets + 1) * PACKET_OVERHEAD
    }

    /// Settings of the queue pairs; enough receives for everything that can be outstanding.
    pub(super) fn qp_config(&self) -> QpConfig {
        let depth = usize::try_from(self.depth).unwrap_or(usize::MAX);
        QpConfig { send_depth: depth, recv_depth: depth, ..self.qp }
    }

    /// The operation that message `sequence` of queue pair `qp` is.
    pub(super) fn operation(&self, qp: u32, sequence: u64) -> Op {
        let Mix { write, write_imm, send, read, atomic } = self.mix;
        let mut at = hash(self.seed ^ 0x6f70, u64::from(qp), sequence) % self.mix.total().max(1);
        let choices = [
            (write, Op::Write),
            (write_imm, Op::WriteImm),
            (send, Op::Send),
            (read, Op::Read),
            (atomic, Op::Atomic),
        ];
        for (weight, op) in choices {
            match at.checked_sub(u64::from(weight)) {
                Some(rest) => at = rest,
                None => return op,
            }
        }
        Op::Write
    }

    /// The connection data of queue pair `qp` at the end with this role.
    pub(super) fn remote(&self, role: Role, ip: IpAddr, qp: u32) -> Remote {
        Remote { ip, qpn: Qpn::new(first_qpn(role) + qp), psn: self.psn(role, qp) }
    }

    pub(super) fn psn(&self, role: Role, qp: u32) -> Psn {
        let psn = hash(self.seed ^ 0x7073, u64::from(qp), u64::from(first_qpn(role)));
        Psn::new(u32::try_from(psn & 0x00ff_ffff).unwrap_or(0))
    }

    /// The server's regions, in the order it registers them.
    pub(super) fn target(&self) -> RegionHandle {
        RegionHandle::of_fresh_host(0, self.slots() * self.slot())
    }

    pub(super) fn source(&self) -> RegionHandle {
        RegionHandle::of_fresh_host(1, self.sources() * self.slot())
    }

    pub(super) fn counters(&self) -> RegionHandle {
        RegionHandle::of_fresh_host(2, u64::from(self.qps) * 8)
    }

    /// Contents of a message.
    pub(super) fn key(&self, qp: u32, sequence: u64) -> u64 {
        hash(self.seed, u64::from(qp), sequence)
    }

    /// Contents of message `index` to be READ.
    pub(super) fn source_key(&self, index: u64) -> u64 {
        hash(self.seed, 1 << 40, index)
    }
}

pub(super) fn first_qpn(role: Role) -> u32 {
    match role {
        Role::Client => 0x1000,
        Role::Server => 0x10_0000,
    }
}

/// Three numbers to one (splitmix64 over them).
fn hash(a: u64, b: u64, c: u64) -> u64 {
    [a, b, c].into_iter().fold(0, |state: u64, value| {
        let mut z = (state ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}
