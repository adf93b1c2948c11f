//! One production stream over an impaired link, in virtual time: how long messages take to
//! complete.
//!
//! A [`Transfer`] says everything; [`Transfer::run`] drives
//! [`Sender`](reliability::stream::Sender), [`Receiver`](reliability::stream::Receiver) and
//! [`Pacer`](reliability::pacing::Pacer) over a link in each direction, at any rate and distance,
//! and gives an [`Outcome`]. The same transfer gives the same outcome. [`Ring`] puts hops together
//! to a ring Allreduce. What never may live here: sockets, clocks, threads, checks of contents
//! (that is `sim`'s part).
//!
//! # What is simulated
//! - A message is cut into records of [`Transfer::packet`] bytes, one to a WAN packet as RoCE
//!   packets are at a gateway; a shorter one at its end has a packet of its own. Messages shorter
//!   than a packet share packets where several are under way. What the core carries for a long
//!   record is a short one that fills a short packet: the machines do the same for it, and link and
//!   pacer see the true length.
//! - Reports go back over a link of the same rate, at once (not paced), with their true length.
//! - The sender knows the rate and how much of a message is to come, as a gateway's does; of the
//!   losses it knows what it is [`Told`].
//! - Bursts of losses go by time: while nothing is sent, the link's state changes as if packets
//!   followed one another.
//! - Time goes in steps of at most 1 us and a thousandth of the round trip: what is due within a
//!   step happens at its end, as with the batches of a real gateway. Packets leave the link's
//!   bottleneck to the nanosecond.
//! - Corrupted packets are lost: the seal refuses them.

mod allreduce;
mod closed_form;
mod load;
mod record;
mod repair;
mod replay;
#[cfg(test)]
mod tests;
mod times;
mod way;
mod world;

use std::time::Duration;

use reliability::stream::{ReceiverStats, SenderStats};

pub use allreduce::Ring;
pub use closed_form::selective_repeat;
pub use repair::{Repair, UnknownScheme};
pub use replay::Run;
pub use times::Times;
pub use way::WayStats;

use crate::impair::LinkSpec;
use record::Form;
use world::World;

/// How messages come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// So many are under way at any time, as with a queue pair of that depth: in order, the next
    /// one begins when one is acknowledged.
    Closed {
        /// At least 1 is assumed.
        depth: usize,
    },
    /// As a Poisson process, whatever is under way: this share of the rate, in message bytes. A
    /// message's time counts from its arrival, so what it waits for the ones before it counts.
    Open {
        /// Above 0. From 1 / (1 + headers + parity) on the queue grows for as long as the run
        /// lasts.
        load: f64,
    },
}

/// The losses as a gateway tells them to a stream if it chose its scheme itself; a scheme that the
/// policy names is told nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Told {
    /// Share of packets lost.
    pub drop: f64,
    /// Mean run of losses in packets.
    pub burst: f64,
}

/// One run: a link, a scheme, and messages of one size.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Bits per second of both links and of the pacer.
    pub rate: u64,
    /// From sender to receiver. `rate` and `overhead` of the description are not used, those of the
    /// transfer are.
    pub forward: LinkSpec,
    /// For the reports.
    pub backward: LinkSpec,
    /// A recorded course of losses in place of `forward.loss`, begun at a place drawn from the seed
    /// and repeated at its end. Empty: none.
    pub trace: Vec<Run>,
    /// Message bytes in each full WAN packet, 226 to 32,000. On the wire it is
    /// `DATA_HEADER + 2 + overhead` longer.
    pub packet: usize,
    /// Bytes that seal, UDP, IP and Ethernet add to a WAN packet.
    pub overhead: usize,
    /// How losses are repaired.
    pub repair: Repair,
    /// The sender's knowledge of the losses.
    pub told: Option<Told>,
    /// When a block that finds no more data is closed, after its first packet.
    pub flush: Duration,
    /// Bytes per message, at least 16.
    pub size: u64,
    /// Messages measured, after a few single packets that acquaint the sender with the round-trip
    /// time.
    pub messages: u64,
    /// How they come.
    pub pattern: Pattern,
    /// Packets that may be unacknowledged, and that the receiver takes beyond the first missing
    /// one; `None`: as many as the rate carries in six round trips, at most 2^24.
    pub window: Option<usize>,
    /// Everything random follows from it.
    pub seed: u64,
}

/// Seal 24, UDP 8, IPv4 20, Ethernet 18: as a gateway's pacer counts.
pub const OVERHEAD: usize = 70;

impl Transfer {
    /// 1000 messages of `size` bytes one at a time, 4096 to a packet, over a link without loss.
    #[must_use]
    pub fn new(rate: u64, rtt: Duration, repair: Repair, size: u64) -> Self {
        let link = LinkSpec { delay: rtt / 2, ..LinkSpec::default() };
        Self {
            rate,
            forward: link,
            backward: link,
            trace: Vec::new(),
            packet: 4096,
            overhead: OVERHEAD,
            repair,
            told: None,
            flush: Duration::from_micros(200),
            size,
            messages: 1000,
            pattern: Pattern::Closed { depth: 1 },
            window: None,
            seed: 1,
        }
    }

    /// The sum of both links' delays.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.forward.delay + self.backward.delay
    }

    /// Data packets per message.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.size.div_ceil(self.packet as u64)
    }

    /// Returns the time of a message where nothing is lost and nothing is added: its packets,
    /// headers included, at the rate, and a round trip.
    #[must_use]
    pub fn ideal(&self) -> Duration {
        let bytes = self.size + self.packets() * (record::HEADERS + self.overhead) as u64;
        let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(self.rate.max(1));
        self.rtt() + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Runs to the last message's end; `progress` hears now and then how many are done.
    ///
    /// Memory: about 0.7 kB per packet between its first transmission and its acknowledgement (a
    /// packet's bytes with messages shorter than a packet), that is at most `2^24` packets, the
    /// sender's largest window; 64 bytes per message under way; the histograms.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn run(&self, progress: &mut dyn FnMut(u64)) -> Result<Outcome, Failure> {
        self.check()?;
        World::new(self, Form::of(self))?.run(progress)
    }

    /// Checks that there is such a transfer; [`Transfer::run`] asks first.
    ///
    /// # Errors
    /// [`Failure::Impossible`].
    pub fn check(&self) -> Result<(), Failure> {
        let load = match self.pattern {
            Pattern::Closed { .. } => 1.0,
            Pattern::Open { load } => load,
        };
        let checks = [
            (self.rate > 0, "the rate is 0"),
            (record::PACKETS.contains(&self.packet), "packets hold 226 to 32,000 bytes of a message"),
            (self.size >= record::SHORTEST as u64, "messages have 16 bytes at least"),
            (load > 0.0 && load.is_finite(), "the load is above 0"),
        ];
        match checks.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(Failure::Impossible(rule)),
            None => Ok(()),
        }
    }
}

/// Why a transfer has no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The transfer contradicts itself.
    #[error("no such transfer: {0}")]
    Impossible(&'static str),
    /// Nothing is left to happen, or nothing has completed for an hour of virtual time and a
    /// hundred times as long as it should take.
    #[error(
        "nothing completes any more: {done} messages have, and no other one until {at:.1?} of virtual time"
    )]
    Stuck {
        /// Virtual time since the start.
        at: Duration,
        /// Messages completed.
        done: u64,
    },
    /// A core refused what the other one made: a mistake of this program.
    #[error("a packet was refused: {0}")]
    Refused(#[from] reliability::stream::Malformed),
}

/// The outcome of a transfer.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// From a message's first byte pushed (open loop: its arrival) until the sender knows that all
    /// its packets have arrived; empty for [`Scheme::None`](reliability::stream::Scheme::None),
    /// whose sender never knows.
    pub completion: Times,
    /// From the same moment until the receiver has delivered all of the message.
    pub delivery: Times,
    /// Messages of which something never arrived.
    pub lost: u64,
    /// Messages in whose time something was sent again.
    pub repaired: u64,
    /// Message bytes, those of the packets before the first message included.
    pub bytes: u64,
    /// The sender's counters, the packets before the first message included.
    pub sent: SenderStats,
    /// The receiver's.
    pub received: ReceiverStats,
    /// Counts of the links.
    pub forward: WayStats,
    /// Reports.
    pub backward: WayStats,
    /// Virtual time.
    pub elapsed: Duration,
    /// Most messages under way at a time.
    pub peak_messages: usize,
}

impl Outcome {
    /// Bytes on both links, headers included, per byte of message.
    #[must_use]
    pub fn wire_bytes_per_byte(&self) -> f64 {
        let wire = self.forward.bytes + self.backward.bytes;
        wire as f64 / self.bytes.max(1) as f64
    }

    /// Packets put on the links.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.forward.packets + self.backward.packets
    }
}
