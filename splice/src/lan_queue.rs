//! Packets on their way to the LAN that no flow holds: responses relayed as they came, datagrams,
//! refusals.

use std::collections::VecDeque;

use roce::flow::near::Data;
use roce::ip::Addressing;
use roce::wire::Psn;

use crate::pool::Buf;

/// Time to live of packets made here; relayed ones lose one hop.
pub(crate) const TTL: u8 = 64;

slotmap::new_key_type! {
    /// A flow at its requester's side.
    pub(crate) struct NearKey;
}

/// Which response a packet is that goes to the LAN.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Delivered {
    pub(crate) slot: NearKey,
    pub(crate) psn: Psn,
    pub(crate) data: Data,
    /// The flow's window when it was passed on.
    pub(crate) window: u32,
}

/// One that waits.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Waiting {
    pub(crate) addressing: Addressing,
    pub(crate) packet: Buf,
    /// The response of a READ that is kept for a while once it has gone.
    pub(crate) delivered: Option<Delivered>,
}

/// A first-in, first-out queue, bounded in packets and in bytes. At a bound a packet is dropped and
/// counted, as a switch would; RDMA's own retry (the requester's timeout, a repeated READ) brings
/// it back.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct LanQueue {
    packets: VecDeque<Waiting>,
    bytes: usize,
    max_bytes: usize,
    pub(crate) dropped: u64,
}

/// Packets: four times Soft-RoCE's window for each of 256 busy queue pairs at 4 KiB is more than a
/// LAN drains in 100 ms.
const MOST: usize = 32_768;

impl LanQueue {
    /// A queue of `max_bytes` at most, so that a LAN that takes nothing leaves the flows what they
    /// need.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { packets: VecDeque::new(), bytes: 0, max_bytes, dropped: 0 }
    }

    pub(crate) fn push(&mut self, addressing: Addressing, packet: Buf) {
        self.push_delivered(addressing, packet, None);
    }

    /// As [`push`](Self::push); the packet goes to its flow once it has gone to the LAN.
    pub(crate) fn push_delivered(
        &mut self,
        addressing: Addressing,
        packet: Buf,
        delivered: Option<Delivered>,
    ) {
        let len = packet.as_ref().len();
        if self.packets.len() < MOST && self.bytes + len <= self.max_bytes {
            self.bytes += len;
            self.packets.push_back(Waiting { addressing, packet, delivered });
        } else {
            self.dropped += 1;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.packets.pop_front()?;
        self.bytes -= waiting.packet.as_ref().len();
        Some(waiting)
    }

    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }
}
