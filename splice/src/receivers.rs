//! The way in from the peer: a receiver for each of its streams.

use std::time::Instant;

use reliability::stream::{Malformed, Receiver, ReceiverConfig, ReceiverStats, StreamId};

/// Streams a peer may have: two for each of the classes that a policy may have. A packet of any other is refused.
const MOST: usize = 2 * config::MAX_CLASSES;

/// Receivers, made when their stream's first packet comes.
pub(crate) struct Receivers {
    streams: Vec<Option<Receiver>>,
    max_packet: usize,
}

impl Receivers {
    pub(crate) fn new(max_packet: usize) -> Self {
        Self { streams: Vec::new(), max_packet }
    }

    pub(crate) fn handle_packet(
        &mut self,
        stream: StreamId,
        packet: &[u8],
        now: Instant,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Malformed> {
        let index = usize::from(stream.0);
        if index >= MOST {
            return Err(Malformed::Stream(stream));
        }
        if self.streams.len() <= index {
            self.streams.resize_with(index + 1, || None);
        }
        let slot = self.streams.get_mut(index).ok_or(Malformed::Stream(stream))?;
        let receiver =
            slot.get_or_insert_with(|| Receiver::new(ReceiverConfig::new(stream, self.max_packet), now));
        receiver.handle_packet(packet, now, deliver)
    }

    /// The next report that is due.
    pub(crate) fn poll(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        self.streams.iter_mut().flatten().find_map(|receiver| receiver.poll_report(now, out))
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.streams.iter().flatten().filter_map(Receiver::next_timeout).min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for receiver in self.streams.iter_mut().flatten() {
            if receiver.next_timeout().is_some_and(|at| at <= now) {
                receiver.handle_timeout(now);
            }
        }
    }

    /// A class's counters: prompt, bulk, as far as the peer has used them.
    pub(crate) fn stats(&self, class: usize) -> impl Iterator<Item = &ReceiverStats> {
        self.streams.iter().skip(2 * class).take(2).flatten().map(Receiver::stats)
    }
}
