//! Counters, plain and monotonic, and the gauges taken with them.

use roce::flow::{FarStats, NearStats};

use crate::failures::Cause;
use crate::record::Reason;

/// Why a packet from the LAN went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LanDrop {
    /// Not addressed to anything behind the peer, or to a multicast group that is not shared with
    /// it.
    NotRemote,
    /// Its source lies behind the peer: a loop, or a spoofed address.
    SourceRemote,
    /// Time to live used up.
    TimeToLive,
    /// The BTH or what follows breaks the format.
    Malformed,
    /// An opcode of RC that does not exist; no one could answer for it.
    Opcode,
    /// A congestion notification for a target's queue pair, or for one that may be a flow's.
    Cnp,
    /// No session with the peer.
    NoSession,
    /// No room in the stream: the requester sends it again.
    NoRoom,
    /// As many flows as the settings allow.
    TooManyFlows,
    /// A request in the middle of a message of a flow that is not known.
    Orphan,
    /// A request or response ahead of a gap, or of no known place.
    OutOfSequence,
    /// A request or response that was seen before.
    Duplicate,
    /// A request of a flow that has failed; its requester is told.
    Failed,
    /// A response that answers no question.
    Unpaired,
    /// A response to a question that another flow may have been answered with.
    Ambiguous,
    /// Something else than UD to a multicast group.
    Multicast,
    /// Not RC, and beyond its host's share of what may wait for the link.
    Share,
    /// Its source is no host of this site's: a multicast address, or one beyond
    /// [`crate::Settings::local`].
    SourceNotLocal,
    /// It was not read: most of what its host sends of the kind finds no room.
    Surplus,
}

/// Number of [`LanDrop`] reasons.
pub const LAN_DROPS: usize = 19;

impl LanDrop {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; LAN_DROPS] = [
        Self::NotRemote,
        Self::SourceRemote,
        Self::TimeToLive,
        Self::Malformed,
        Self::Opcode,
        Self::Cnp,
        Self::NoSession,
        Self::NoRoom,
        Self::TooManyFlows,
        Self::Orphan,
        Self::OutOfSequence,
        Self::Duplicate,
        Self::Failed,
        Self::Unpaired,
        Self::Ambiguous,
        Self::Multicast,
        Self::Share,
        Self::SourceNotLocal,
        Self::Surplus,
    ];

    /// A short label for a metric.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotRemote => "not_remote",
            Self::SourceRemote => "source_remote",
            Self::TimeToLive => "ttl",
            Self::Malformed => "malformed",
            Self::Opcode => "opcode",
            Self::Cnp => "cnp",
            Self::NoSession => "no_session",
            Self::NoRoom => "no_room",
            Self::TooManyFlows => "too_many_flows",
            Self::Orphan => "orphan",
            Self::OutOfSequence => "out_of_sequence",
            Self::Duplicate => "duplicate",
            Self::Failed => "failed",
            Self::Unpaired => "unpaired",
            Self::Ambiguous => "ambiguous",
            Self::Multicast => "multicast",
            Self::Share => "share",
            Self::SourceNotLocal => "source_not_local",
            Self::Surplus => "surplus",
        }
    }
}

/// Has as many counters of a table in snapshots as version 1 knew. Those that have come since count
/// anew.
macro_rules! counters_of_version_1 {
    ($module:ident: $known:literal) => {
        mod $module {
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            type Known = [u64; $known];

            pub(super) fn serialize<const N: usize, S: Serializer>(
                all: &[u64; N],
                to: S,
            ) -> Result<S::Ok, S::Error> {
                let mut known = Known::default();
                known.iter_mut().zip(all).for_each(|(known, count)| *known = *count);
                known.serialize(to)
            }

            pub(super) fn deserialize<'de, const N: usize, D>(from: D) -> Result<[u64; N], D::Error>
            where
                D: Deserializer<'de>,
            {
                let mut all = [0; N];
                all.iter_mut().zip(Known::deserialize(from)?).for_each(|(count, known)| *count = known);
                Ok(all)
            }
        }
    };
}

counters_of_version_1!(first_drops: 18);
counters_of_version_1!(first_reasons: 8);

/// The counters of a [`crate::Gateway`] since its start, and what it holds now.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Stats {
    /// Packets from the LAN that were dropped, by [`LanDrop`].
    #[serde(with = "first_drops")]
    pub lan_drops: [u64; LAN_DROPS],
    /// By the halves of flows at their requesters.
    #[serde(skip)]
    pub near: NearStats,
    /// By the halves of flows at their targets.
    #[serde(skip)]
    pub far: FarStats,
    /// Requests carried to the peer.
    pub requests: u64,
    /// Responses carried to the peer.
    pub responses: u64,
    /// Packets carried and not terminated (UD, CM, UC), to the peer.
    pub datagrams: u64,
    /// Packets to queue pair 1 among these that had to wait for their turn: no management
    /// datagrams, or beyond their host's share.
    pub mads_in_turn: u64,
    /// CM messages among these whose vendor options were cleared.
    pub vendor_options: u64,
    /// READs carried again because the requester asked again.
    pub replays: u64,
    /// Packets emitted on the LAN.
    pub lan_emitted: u64,
    /// Packets dropped because the queue to the LAN was full.
    pub lan_queue_dropped: u64,
    /// Packets of flows from the LAN marked Congestion Experienced.
    pub lan_marked: u64,
    /// Packets of requesters' that came while so much waited for the link that their sender is to
    /// be told.
    pub backlog_marked: u64,
    /// Congestion notifications carried to the peer, for what is not terminated.
    pub cnps_carried: u64,
    /// Congestion notifications sent to their senders.
    pub cnps: u64,
    /// Packets dropped because they are longer than the LAN carries.
    pub lan_too_long: u64,
    /// Records from the peer that break the format, name an address not behind it, or a flow not
    /// known.
    pub bad_records: u64,
    /// Records of flows that had just ended.
    pub late_records: u64,
    /// WAN packets that break the format.
    pub bad_packets: u64,
    /// Pieces of records from the peer that contradict others of their record.
    pub contradictions: u64,
    /// Gauge: bytes held for records and blocks from the peer that are not whole.
    pub received_bytes: u64,
    /// Flows opened, near side.
    pub near_opened: u64,
    /// Flows opened, far side.
    pub far_opened: u64,
    /// Flows forgotten because they were idle.
    pub idle_closed: u64,
    /// Near flows forgotten because their requester did not try again after an RNR NAK.
    pub rnr_given_up: u64,
    /// Near flows replaced by a newer queue pair of the same number.
    pub replaced: u64,
    /// Flows that were forgotten early, since as many were there as there may be: near ones that
    /// had failed, and such of either side whose targets had never spoken.
    pub evicted: u64,
    /// Flows ended in an error that the programs see, by [`Reason`] (index: its number). At 0: near
    /// flows that ended by a fatal NAK from the target's side.
    #[serde(with = "first_reasons")]
    pub failed: [u64; Reason::ALL.len() + 1],
    /// Flows ended because their session ended.
    pub session_failed: u64,
    /// Near flows that ended with their session, and whose requesters are refused by silence at
    /// first.
    pub silenced: u64,
    /// Flows that could not go on, since a process of either gateway had ended.
    #[serde(skip)]
    pub process_failed: u64,
    /// Gauge: near flows that are to go on after the end of a process, and have not yet.
    #[serde(skip)]
    pub restoring: u64,
    /// Gauge: of those that the process before this one knew, as the peer says, the requesters that
    /// have not come back yet.
    #[serde(skip)]
    pub awaited: u64,
    /// Near flows that went on after the end of a process.
    #[serde(skip)]
    pub restored: u64,
    /// Flows that were to go on after the end of a process, and ended in an error before.
    #[serde(skip)]
    pub unrestored: u64,
    /// Requests refused for a flow of an earlier session.
    pub doomed: u64,
    /// Flows of ended sessions that were not remembered, since too many were.
    pub forgotten: u64,
    /// CM requests not remembered, since as many were as there may be, of all hosts or of one.
    pub calls_refused: u64,
    /// Pairings found.
    pub paired: u64,
    /// Gauge: flows with their requester here.
    pub near_flows: u64,
    /// Gauge: flows with their target here.
    pub far_flows: u64,
    /// Gauge: flows with their target here whose requester's queue pair is not known yet, or asked
    /// for anew.
    pub unpaired_flows: u64,
    /// Gauge: timer entries.
    pub timers: u64,
    /// Gauge: packet buffers held.
    pub buffers: u64,
    /// Gauge: bytes in them.
    pub buffer_bytes: u64,
    /// Gauge: memory to keep records in order, in bytes, without the records themselves.
    pub reorder_bytes: u64,
    /// Gauge: of it, what is in use.
    pub reorder_bytes_used: u64,
    /// Gauge: packets waiting for the LAN outside flows.
    pub lan_queue: u64,
    /// Gauge: flows remembered from earlier sessions.
    pub remembered: u64,
    /// Gauge: streams of classes that are gone, with something unacknowledged.
    pub draining_streams: u64,
    /// Gauge: bytes in them.
    pub draining_bytes: u64,
    /// Gauge: longest IP packet emitted on the LAN, bytes.
    pub lan_mtu: u64,
}

impl Stats {
    pub(crate) fn drop_lan(&mut self, why: LanDrop) {
        if let Some(count) = self.lan_drops.get_mut(why as usize) {
            *count += 1;
        }
    }

    /// Counts packets that were read and dropped for want of room in a share.
    pub(crate) fn dropped_for_share(&self) -> u64 {
        [LanDrop::NoRoom, LanDrop::Share, LanDrop::TooManyFlows]
            .into_iter()
            .filter_map(|why| self.lan_drops.get(why as usize))
            .sum()
    }

    pub(crate) fn fail(&mut self, why: Cause) {
        let index = match why {
            Cause::Session => {
                self.session_failed += 1;
                return;
            }
            Cause::Process => {
                self.process_failed += 1;
                return;
            }
            Cause::Nak => 0,
            Cause::Given(reason) => reason as usize,
        };
        if let Some(count) = self.failed.get_mut(index) {
            *count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_stands_at_its_own_index() {
        for (index, why) in LanDrop::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, index, "{}", why.name());
        }
    }
}
