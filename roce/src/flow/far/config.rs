//! Responder side: settings and counters of a [`Far`](super::Far).

use std::time::Duration;

use crate::flow::counters::counters;
use crate::wire::PathMtu;

/// How a [`Far`](super::Far) behaves. The defaults suit a NIC a few microseconds away.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FarConfig {
    /// The path MTU to assume. What connection management tells and what packets show overrides it.
    pub mtu: Option<PathMtu>,
    /// Packets sent and not acknowledged.
    pub window_packets: usize,
    /// The same in bytes. One packet may always go.
    pub window_bytes: usize,
    /// READs and atomics sent and not answered, where connection management has not told what the
    /// target holds. The requester keeps to that itself.
    pub max_reads: usize,
    /// READ data asked for at a time, in bytes, rounded down to a multiple of 4096, and the same
    /// for all of a connection's life. What a longer READ asks for is asked for in pieces of this
    /// length, each once the one before is answered, so that the target's responder resources
    /// suffice.
    pub read_piece: u32,
    /// Ask the target for an ACK at least every so many packets.
    pub ack_req_every: u32,
    /// Relay progress inside a message every so many PSNs; the end of a message is always relayed.
    /// The requester waits for no such progress: the near side needs it for its account of what is
    /// outstanding, and after an RNR NAK.
    pub relay_every: u32,
    /// Relay progress that was not worth a record of its own after this time.
    pub relay_delay: Duration,
    /// Bytes kept for the target; beyond, requests are refused.
    pub max_buffered: usize,
    /// Packets kept for the target; beyond, requests are refused.
    pub max_packets: usize,
    /// Retransmission timeout before the round-trip time is known.
    pub rto_initial: Duration,
    /// The least retransmission timeout.
    pub rto_min: Duration,
    /// The greatest retransmission timeout, with backoff.
    pub rto_max: Duration,
    /// No progress for this long: the target is dead.
    pub target_dead_after: Duration,
    /// RNR NAKs in a row that are not shown to the requester.
    pub rnr_local_retries: u32,
    /// Nor are those within this time of the first. Once it is shown, each try takes a round trip
    /// between the sites.
    pub rnr_local_time: Duration,
    /// The rate from which the first congestion notification has a flow go down, in bytes per
    /// second.
    pub line_rate: u64,
    /// An idle flow gives its memory back after this time.
    pub compact_after: Duration,
}

impl FarConfig {
    /// [`FarConfig::read_piece`] as it is used: a multiple of the largest path MTU.
    pub(super) const fn piece(&self) -> u32 {
        let whole = self.read_piece & !4095;
        if whole < 4096 { 4096 } else { whole }
    }
}

impl Default for FarConfig {
    fn default() -> FarConfig {
        FarConfig {
            mtu: None,
            window_packets: 64,
            window_bytes: 1 << 20,
            max_reads: 128,
            read_piece: 1 << 20,
            ack_req_every: 16,
            relay_every: 64,
            relay_delay: Duration::from_millis(2),
            max_buffered: 128 << 20,
            max_packets: 1 << 20,
            rto_initial: Duration::from_millis(50),
            rto_min: Duration::from_millis(5),
            rto_max: Duration::from_secs(1),
            target_dead_after: Duration::from_secs(10),
            rnr_local_retries: 2,
            rnr_local_time: Duration::from_millis(100),
            line_rate: 1_250_000_000,
            compact_after: Duration::from_secs(1),
        }
    }
}

counters! {
/// Counters of a [`Far`](super::Far), or of all that share them.
    FarStats in FarCounters {
    /// Request records taken.
    requests,
    /// Request records discarded while the requester starts over.
    discarded,
    /// READs taken for replay.
    replays,
    /// Replays not taken, or given up.
    replays_dropped,
    /// Packets sent to the target.
    sent,
    /// Packets sent to the target again.
    retransmitted,
    /// Retransmission timeouts.
    timeouts,
    /// Sequence NAKs from the target.
    sequence_naks,
    /// RNR NAKs from the target.
    rnr_naks,
    /// Fatal NAKs from the target.
    fatal_naks,
    /// Response records relayed.
    relayed,
    /// ACKs not relayed, as no message ended there.
    coalesced,
    /// Responses that were lost, seen from what came instead.
    response_gaps,
    /// Responses answered before or to nothing sent.
    useless_responses,
    /// READ responses of the wrong size or place.
    mismatched_responses,
    /// Times the near side was told to start over from an earlier PSN.
    rewinds,
    /// Aborts begun.
    aborts,
    /// Times a congestion notification slowed a flow.
    slowed,
}
}
