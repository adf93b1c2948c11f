//! Habits of real NICs, each by name: what a gateway has to bear. `docs/nics.md` has the sources
//! and what becomes of each.

use std::time::Duration;

use super::source_port;
use roce::wire::Qpn;

/// The habits of one NIC and its driver, for both halves of its queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Personality {
    /// Name in `docs/nics.md` and in traces.
    pub name: &'static str,
    /// UDP source port of everything that it sends, requests and responses alike.
    pub port: PortPolicy,
    /// First PSN of a connection.
    pub first_psn: FirstPsn,
    /// Way of sending again what was lost.
    pub repeats: Repeats,
    /// Time at which its responder acknowledges.
    pub acks: AckPolicy,
    /// PSN by which its responder acknowledges a duplicate.
    pub duplicates: DuplicateAck,
    /// Most PSNs sent and not acknowledged.
    pub window: u32,
    /// ACKs carry the number of posted receives; otherwise they carry no credits.
    pub credits: bool,
    /// MigReq in every packet: path migration's state at rest.
    pub migreq: bool,
    /// DCQCN: its packets may be marked, a marked one is told to its sender, and being told halves
    /// its rate.
    pub dcqcn: bool,
    /// A gap in READ responses restarts the READ at once.
    pub restart_reads_on_gap: bool,
}

/// How a queue pair chooses UDP source ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortPolicy {
    /// Derived from the product of both queue pair numbers: the same at both ends.
    Product,
    /// The low 16 bits of its own queue pair number.
    OwnNumber,
    /// One port for all queue pairs.
    Same(u16),
    /// A port for each flow label, and the program of each end chooses a label by itself.
    Label(u8),
    /// Drawn for each connection by each end.
    Random(u16),
    /// Another port with each packet, for a part of the connection's time.
    PerPacket(Spray),
}

/// When a NIC sprays its packets over ports. At other times they have the product's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spray {
    /// Until the first answer.
    Before,
    /// From the first answer on.
    After,
    /// All the time.
    Always,
}

/// A connection's first PSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstPsn {
    /// 0, in every incarnation: NCCL, UCX.
    Zero,
    /// Drawn for each incarnation.
    Random,
}

/// The packets that a requester sends again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeats {
    /// Everything from the oldest PSN that is not acknowledged.
    GoBackN,
    /// As go-back-N, first 2, 4, 8 and 16 ms after it heard nothing, whatever is configured. Those
    /// four tries cost no retry; the configured timeout follows.
    Adaptive,
    /// After a NAK only the PSN that it names, after a timeout everything. Its responder keeps up
    /// to 128 packets that are ahead.
    Selective,
}

/// When a responder acknowledges what asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckPolicy {
    /// At once, if the packet asks for an ACK.
    Asked,
    /// At once, every packet.
    Each,
    /// The first that asks starts this time; one ACK follows at its end.
    Coalesced(Duration),
    /// Every answer comes so late: a busy NIC, or a host whose cores sleep.
    Late(Duration),
}

/// The PSN by which a responder acknowledges a SEND or WRITE that it had before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DuplicateAck {
    /// The last one executed (IBA volume 1, C9-105).
    Newest,
    /// The last one executed that was no READ's. In a queue pair that has had none it is 0xFFFFFF.
    /// A reset leaves it as it was. Soft-RoCE has it (`rxe_resp.c`, `ack_psn`).
    NewestButReads,
}

/// Room for packets ahead of the expected PSN, of a NIC that repeats selectively.
pub(super) const KEPT_AHEAD: usize = 128;

/// The adaptive requester's waits before it turns to the configured timeout.
pub(super) const QUICK: [Duration; 4] =
    [Duration::from_millis(2), Duration::from_millis(4), Duration::from_millis(8), Duration::from_millis(16)];

impl Personality {
    /// No transmit window of its own: mlx5 with `roce_tx_window_en = 0`, its factory setting.
    pub const NO_WINDOW: u32 = (1 << 22) - 1;

    /// Soft-RoCE (rxe): what [`QpConfig::default`] has.
    pub const SOFT_ROCE: Self = Self {
        name: "rxe",
        port: PortPolicy::Product,
        first_psn: FirstPsn::Random,
        repeats: Repeats::GoBackN,
        acks: AckPolicy::Asked,
        duplicates: DuplicateAck::NewestButReads,
        window: 128,
        credits: false,
        migreq: false,
        dcqcn: false,
        restart_reads_on_gap: false,
    };

    /// mlx5 as it comes: adaptive retransmission, no transmit window, DCQCN, MigReq; port of the
    /// product.
    pub const MLX5: Self = Self {
        name: "mlx5",
        repeats: Repeats::Adaptive,
        acks: AckPolicy::Coalesced(Duration::from_micros(20)),
        duplicates: DuplicateAck::Newest,
        window: Self::NO_WINDOW,
        credits: true,
        migreq: true,
        dcqcn: true,
        restart_reads_on_gap: true,
        ..Self::SOFT_ROCE
    };

    /// UCX on mlx5: one port for all, first PSN 0.
    pub const MLX5_UCX: Self = Self {
        name: "mlx5-ucx",
        port: PortPolicy::Same(0xc000),
        first_psn: FirstPsn::Zero,
        repeats: Repeats::GoBackN,
        ..Self::MLX5
    };

    /// NCCL on mlx5: first PSN 0, adaptive retransmission.
    pub const MLX5_NCCL: Self = Self { name: "mlx5-nccl", first_psn: FirstPsn::Zero, ..Self::MLX5 };

    /// mlx5 with flow labels that each end's program chooses.
    pub const MLX5_LABELS: Self =
        Self { name: "mlx5-labels", port: PortPolicy::Label(0), repeats: Repeats::GoBackN, ..Self::MLX5 };

    /// mlx5 with selective repeat forced on, and a transmit window.
    pub const MLX5_SELECTIVE: Self =
        Self { name: "mlx5-selective", repeats: Repeats::Selective, window: 512, ..Self::MLX5 };

    /// A Huawei NIC: the port is the sender's own queue pair number.
    pub const HUAWEI: Self = Self {
        name: "huawei",
        port: PortPolicy::OwnNumber,
        first_psn: FirstPsn::Zero,
        acks: AckPolicy::Late(Duration::from_micros(30)),
        duplicates: DuplicateAck::Newest,
        window: 256,
        dcqcn: true,
        restart_reads_on_gap: true,
        ..Self::SOFT_ROCE
    };

    /// irdma before its ports varied: 0xC000 for all; an ACK for each packet.
    pub const IRDMA: Self = Self {
        name: "irdma",
        port: PortPolicy::Same(0xc000),
        acks: AckPolicy::Each,
        duplicates: DuplicateAck::Newest,
        window: 1024,
        dcqcn: true,
        restart_reads_on_gap: true,
        ..Self::SOFT_ROCE
    };

    /// A NIC whose ports each end draws by itself (xscale; `mlx5dv_modify_qp_udp_sport`).
    pub const RANDOM_PORTS: Self = Self {
        name: "random-ports",
        port: PortPolicy::Random(0),
        acks: AckPolicy::Coalesced(Duration::from_micros(60)),
        duplicates: DuplicateAck::Newest,
        window: 256,
        dcqcn: true,
        restart_reads_on_gap: true,
        ..Self::SOFT_ROCE
    };

    /// A NIC that sprays over paths by port, until it has heard an answer.
    pub const SPRAYING_FIRST: Self = Self {
        name: "spray-first",
        port: PortPolicy::PerPacket(Spray::Before),
        first_psn: FirstPsn::Zero,
        window: 512,
        ..Self::RANDOM_PORTS
    };

    /// A NIC that sprays all the time, and repeats selectively.
    pub const SPRAYING: Self = Self {
        name: "spray",
        port: PortPolicy::PerPacket(Spray::Always),
        repeats: Repeats::Selective,
        ..Self::SPRAYING_FIRST
    };

    /// A NIC that sprays once it has heard an answer.
    pub const SPRAYING_LATER: Self =
        Self { name: "spray-later", port: PortPolicy::PerPacket(Spray::After), ..Self::SPRAYING_FIRST };

    /// A host whose answers come milliseconds late.
    pub const SLOW: Self =
        Self { name: "slow", acks: AckPolicy::Late(Duration::from_millis(3)), ..Self::MLX5_UCX };

    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::SOFT_ROCE,
        Self::MLX5,
        Self::MLX5_UCX,
        Self::MLX5_NCCL,
        Self::MLX5_LABELS,
        Self::MLX5_SELECTIVE,
        Self::HUAWEI,
        Self::IRDMA,
        Self::RANDOM_PORTS,
        Self::SPRAYING_FIRST,
        Self::SPRAYING,
        Self::SPRAYING_LATER,
        Self::SLOW,
    ];
}

impl PortPolicy {
    /// The port of the packet that is number `count` of its queue pair; `answered`: it has heard
    /// from its peer.
    pub(super) fn port(self, own: Qpn, remote: Qpn, count: u64, answered: bool) -> u16 {
        let product = source_port(own, remote);
        match self {
            Self::Product => product,
            Self::OwnNumber => u16::try_from(own.get() & 0xffff).unwrap_or(0).max(1),
            Self::Same(port) => port,
            // The kernel's rule for a label: its low 14 bits, folded with the upper six.
            Self::Label(label) => 0xC000 | u16::from(label),
            Self::Random(drawn) => 0xC000 | drawn,
            Self::PerPacket(Spray::Before) if answered => product,
            Self::PerPacket(Spray::After) if !answered => product,
            Self::PerPacket(_) => {
                let mixed = count.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(own.get());
                0xC000 | u16::try_from((mixed >> 40) & 0x3fff).unwrap_or(0)
            }
        }
    }
}

/// The largest credit code (IBA volume 1, 9.7.7.2) that promises no more than so many receives.
pub(super) fn credit_code(receives: usize) -> u8 {
    // 0 to 4, then one and a half and two times each power of two.
    let value = |code: usize| match code {
        0..=4 => code,
        _ if code % 2 == 1 => 3 << ((code - 3) / 2),
        _ => 4 << ((code - 4) / 2),
    };
    (0..31)
        .take_while(|code| value(*code) <= receives)
        .last()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_coded_as_the_specification_says() {
        for (receives, code) in
            [(0, 0), (1, 1), (4, 4), (5, 4), (6, 5), (8, 6), (12, 7), (16, 8), (128, 14), (1 << 20, 30)]
        {
            assert_eq!(credit_code(receives), code, "{receives}");
        }
    }

    #[test]
    fn ports_are_what_the_policy_says() {
        let (own, other) = (Qpn::new(0x45), Qpn::new(0x46));
        let port = |policy: PortPolicy, count, answered| policy.port(own, other, count, answered);
        assert_eq!(port(PortPolicy::Product, 0, false), PortPolicy::Product.port(other, own, 7, true));
        assert_eq!(port(PortPolicy::OwnNumber, 3, true), 0x45);
        assert_eq!(port(PortPolicy::Same(0xc000), 3, true), 0xc000);
        assert_eq!(port(PortPolicy::Label(7), 3, true), 0xc007);
        let before = PortPolicy::PerPacket(Spray::Before);
        assert_ne!(port(before, 1, false), port(before, 2, false));
        assert_eq!(port(before, 1, true), port(before, 2, true));
        let after = PortPolicy::PerPacket(Spray::After);
        assert_eq!(port(after, 1, false), port(after, 2, false));
        assert_ne!(port(after, 1, true), port(after, 2, true));
    }

    #[test]
    fn names_differ() {
        let names: std::collections::BTreeSet<_> = Personality::ALL.iter().map(|one| one.name).collect();
        assert_eq!(names.len(), Personality::ALL.len());
    }
}
