//! Packets on their way to the LAN that no flow holds: responses relayed as they came, datagrams, refusals.

use std::collections::VecDeque;

use roce::ip::Addressing;

use crate::pool::Buf;

/// A first-in, first-out queue, bounded in packets and in bytes. At a bound a packet is dropped and counted, as a switch would; RDMA's own retry
/// (the requester's timeout, a repeated READ) brings it back.
#[derive(Debug)]
pub(crate) struct LanQueue {
    packets: VecDeque<(Addressing, Buf)>,
    bytes: usize,
    max_bytes: usize,
    pub(crate) dropped: u64,
}

/// Packets: four times Soft-RoCE's window for each of 256 busy queue pairs at 4 KiB is more than a LAN drains in 100 ms.
const MOST: usize = 32_768;

impl LanQueue {
    /// A queue of `max_bytes` at most, so that a LAN that takes nothing leaves the flows what they need.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { packets: VecDeque::new(), bytes: 0, max_bytes, dropped: 0 }
    }

    pub(crate) fn push(&mut self, addressing: Addressing, packet: Buf) {
        let len = packet.as_ref().len();
        if self.packets.len() < MOST && self.bytes + len <= self.max_bytes {
            self.bytes += len;
            self.packets.push_back((addressing, packet));
        } else {
            self.dropped += 1;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<(Addressing, Buf)> {
        let (addressing, packet) = self.packets.pop_front()?;
        self.bytes -= packet.as_ref().len();
        Some((addressing, packet))
    }

    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }
}
