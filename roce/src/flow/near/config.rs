//! Requester side: settings and counters of a [`Near`](super::Near).

use std::time::Duration;

use crate::flow::counters::counters;
use crate::wire::PathMtu;

/// How a [`Near`](super::Near) behaves. The defaults suit a NIC a few microseconds away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearConfig {
    /// The path MTU to assume. What connection management tells and what packets show overrides it.
    pub mtu: Option<PathMtu>,
    /// Acknowledge inside a message after this many packets, also without being asked.
    pub ack_every: u32,
    /// Messages outstanding; beyond, packets are dropped and the requester sends them again later.
    pub max_messages: usize,
    /// Bytes forwarded and not acknowledged by the target above which nothing is acknowledged
    /// inside a message.
    pub mid_ack_limit: usize,
    /// The same above which packets are dropped; the requester is told to resume when half of it is
    /// free.
    pub hard_limit: usize,
    /// A sequence NAK is repeated after this time if packets still come ahead of the gap.
    pub nak_rearm: Duration,
    /// A gap that stays open for this long, while packets ahead of it come and sixteen and more
    /// NAKs went, fails the flow.
    pub gap_limit: Duration,
    /// A replayed READ that made no progress for this long is forgotten.
    pub replay_timeout: Duration,
    /// How far behind a duplicate may lie to be acknowledged again, in PSNs.
    pub recent: u32,
    /// The round trip between the sites as measured now. Payloads that changed are carried once in
    /// so long, and a target that has answered nothing for two of them is silent. An owner that
    /// measures another one hands it in by [`Near::adopt`](super::Near::adopt).
    pub rtt: Duration,
    /// How long a packet and its answer take on the LAN, at most, until that is measured.
    pub lan_turn: Duration,
    /// The shortest time between two fatal NAKs.
    pub fatal_interval: Duration,
    /// How long a requester whose target has fallen silent, or is cut off, gets no answer before it
    /// is refused: its NIC is to give up by itself and say what it says of a silent peer. Longer
    /// than the retries of most take; there are such as retry for ever.
    pub silence: Duration,
    /// How long a failed flow goes on answering.
    pub linger: Duration,
    /// An idle flow gives its memory back after this time.
    pub compact_after: Duration,
    /// While requests wait for the target, a requester that was told nothing for this long gets an
    /// ACK of a PSN long past. It confirms nothing, and a NIC ignores it; but Soft-RoCE restarts
    /// its retransmission timer at every ACK (`rxe_completer`, `reset_retry_timer`) and does not
    /// send its whole window again. Must lie below the ACK timeout of the programs: 67 ms (14) is
    /// perftest's.
    pub keepalive: Duration,
}

impl Default for NearConfig {
    fn default() -> NearConfig {
        NearConfig {
            mtu: None,
            ack_every: 16,
            max_messages: 4096,
            mid_ack_limit: 16 << 20,
            hard_limit: 64 << 20,
            nak_rearm: Duration::from_millis(10),
            gap_limit: Duration::from_secs(10),
            replay_timeout: Duration::from_secs(2),
            recent: 1 << 16,
            rtt: Duration::from_millis(50),
            lan_turn: Duration::from_millis(1),
            fatal_interval: Duration::from_millis(5),
            silence: Duration::from_secs(30),
            linger: Duration::from_secs(60),
            compact_after: Duration::from_secs(1),
            keepalive: Duration::from_millis(20),
        }
    }
}

counters! {
/// Counters of a [`Near`](super::Near), or of all that share them.
    NearStats in NearCounters {
    /// Packets forwarded.
    forwarded,
    /// Bytes forwarded, from the BTH on.
    forwarded_bytes,
    /// READs and atomics forwarded for replay, and payloads that changed.
    replays,
    /// Packets seen before.
    duplicates,
    /// Packets ahead of a gap.
    ahead,
    /// Packets that no message of this flow can use: orphans and stale ones.
    stale,
    /// Packets dropped because too much was outstanding.
    full,
    /// ACKs sent for completed messages.
    acks,
    /// ACKs sent inside a message.
    mid_acks,
    /// ACKs sent again: for duplicates, or to keep the requester waiting.
    repeated_acks,
    /// Sequence NAKs sent.
    sequence_naks,
    /// Flows failed because the requester would not go back to a gap.
    gaps_abandoned,
    /// RNR NAKs passed on, and those for want of room.
    rnr_naks,
    /// Tries of requesters that had been passed on an RNR NAK.
    rnr_retries,
    /// Fatal NAKs sent.
    fatal_naks,
    /// Outstanding requests carried again since their payload had changed. Counted as replays, too.
    renewed,
    /// Sequence NAKs that name what was dropped behind a gap that has closed. Counted as sequence
    /// NAKs, too.
    gaps_named,
    /// READ and atomic responses passed on.
    responses,
    /// READ responses given once more from what was kept of them.
    resent,
    /// Times the expected PSN was set back.
    rewinds,
    /// Replays forgotten for lack of progress.
    replays_expired,
    /// Response records that fit nothing outstanding: ACKs, mostly, that later ones have overtaken.
    odd_responses,
}
}
