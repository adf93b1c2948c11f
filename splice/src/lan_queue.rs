//! Packets on their way to the LAN that no flow holds: responses relayed as they came, datagrams, refusals.

use std::collections::VecDeque;

use roce::ip::Addressing;

use crate::pool::Buf;

/// A bounded first-in, first-out queue. At the bound a packet is dropped and counted, as a switch would; RDMA's own retry
/// (the requester's timeout, a repeated READ) brings it back.
#[derive(Debug)]
pub(crate) struct LanQueue {
    packets: VecDeque<(Addressing, Buf)>,
    pub(crate) dropped: u64,
}

/// Packets: four times Soft-RoCE's window for each of 256 busy queue pairs at 4 KiB is more than a LAN drains in 100 ms.
const MOST: usize = 32_768;

impl LanQueue {
    pub(crate) fn new() -> Self {
        Self { packets: VecDeque::new(), dropped: 0 }
    }

    pub(crate) fn push(&mut self, addressing: Addressing, packet: Buf) {
        if self.packets.len() < MOST {
            self.packets.push_back((addressing, packet));
        } else {
            self.dropped += 1;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<(Addressing, Buf)> {
        self.packets.pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }
}
