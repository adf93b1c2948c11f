//! A connection that is written down, as it is when its session is parked, and read elsewhere.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize, Serializer};

use super::Connection;
use crate::bounds::Config;
use crate::class::Class;
use crate::receivers::Receivers;
use crate::senders::Senders;

/// The part of a connection that outlives its path.
#[derive(Serialize, Deserialize)]
struct State<C, S, R> {
    classes: C,
    senders: S,
    receivers: R,
    rtt: Duration,
    max_packet: usize,
    packet: usize,
    longest: usize,
    found: Option<usize>,
    share: u64,
}

/// A connection that was read from a snapshot ([`Connection::restore`]).
#[derive(Deserialize)]
#[serde(transparent)]
pub struct Parked(State<Vec<Class>, Senders, Receivers>);

impl Parked {
    /// The classes that its streams are of.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.0.classes
    }
}

impl Serialize for Connection {
    /// Writes what [`Parked`] reads. Call [`Connection::begin_blocks_anew`] before.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let state = State {
            classes: &self.classes,
            senders: &self.senders,
            receivers: &self.receivers,
            rtt: self.config.rtt,
            max_packet: self.max_packet,
            packet: self.packet,
            longest: self.longest,
            found: self.found,
            share: self.share,
        };
        state.serialize(serializer)
    }
}

impl Connection {
    /// Gives up the blocks under way in both directions: what is missing of them is repaired packet
    /// by packet. A snapshot has no blocks.
    pub fn begin_blocks_anew(&mut self) {
        self.senders.begin_blocks_anew();
        self.receivers.begin_blocks_anew();
    }

    /// Goes on with a connection that was written down, with the settings that it had. If it had a
    /// session, that is parked.
    #[must_use]
    pub fn restore(config: &Config, Parked(state): Parked, now: Instant) -> Self {
        let State { classes, senders, receivers, rtt, max_packet, packet, longest, found, share } = state;
        let fresh = Self::new(Config { rtt, ..config.clone() }, classes, now);
        let mut restored = Self { senders, receivers, max_packet, packet, longest, found, share, ..fresh };
        restored.begin_blocks_anew();
        restored
    }
}
