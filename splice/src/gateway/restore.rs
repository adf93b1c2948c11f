//! A gateway on its way from one process to the next.

use std::sync::Arc;
use std::time::{Duration, Instant};

use roce::pairing::Pairings;
use serde::{Deserialize, Serialize};
use snapshot::{Beside, Refused, Segment, Unwritable, Written};
use transport::{Connection, Parked};

use super::Gateway;
use crate::Settings;
use crate::far_side::FarSide;
use crate::lan_queue::LanQueue;
use crate::near_side::NearSide;
use crate::ordered::{Numbering, Ordering};
use crate::piggybacked_acks::PiggybackedAcks;
use crate::session_end::SessionEnd;
use crate::settings::classes;
use crate::stale_flows::StaleFlows;
use crate::stats::Stats;

/// Settings that state was made for.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Sizes {
    max_packet: usize,
    base_packet: usize,
    rate: u64,
    lanes: u8,
    total_buffer: usize,
    flows: usize,
}

impl Sizes {
    fn of(settings: &Settings) -> Self {
        let Settings { max_packet, base_packet, rate, lanes, total_buffer, flows, .. } = *settings;
        Self { max_packet, base_packet, rate, lanes, total_buffer, flows }
    }

    /// The name of the first that is another one here.
    fn differs(&self, here: &Self) -> Option<&'static str> {
        let pairs = [
            ("wan.mtu", self.max_packet == here.max_packet && self.base_packet == here.base_packet),
            ("peer.rate", self.rate == here.rate),
            ("wan.lanes", self.lanes == here.lanes),
            ("limits.total_buffer", self.total_buffer == here.total_buffer),
            ("limits.flows", self.flows == here.flows),
        ];
        pairs.into_iter().find(|(_, same)| !same).map(|(name, _)| name)
    }
}

/// The state in the order in which it is written.
type State = (
    Sizes,
    (NearSide, FarSide, Numbering, Ordering),
    Parked,
    (LanQueue, Pairings, StaleFlows, PiggybackedAcks, Stats),
    (Duration, u64, SessionEnd, u16),
);

/// The same, as it is written.
type StateRef<'a> = (
    Sizes,
    (&'a NearSide, &'a FarSide, &'a Numbering, &'a Ordering),
    &'a Connection,
    (&'a LanQueue, &'a Pairings, &'a StaleFlows, &'a PiggybackedAcks, &'a Stats),
    (Duration, u64, SessionEnd, u16),
);

impl Gateway {
    /// Returns all that a session's going on needs, for another process: [`Gateway::restore`].
    ///
    /// Nothing is lost by it, and this gateway may go on instead of that one. Only blocks under way
    /// are given up, and what is missing of them is repaired packet by packet.
    ///
    /// # Errors
    /// See [`snapshot::write()`].
    pub fn snapshot(&mut self, now: Instant) -> Result<Vec<u8>, Unwritable> {
        self.write_state(|state| snapshot::write(state, now))
    }

    /// The same, with packets in shared memory, where [`Gateway::copy_ahead`] has put most of them.
    /// That memory comes back with it.
    pub fn snapshot_beside(
        &mut self,
        now: Instant,
        beside: Beside,
    ) -> (Result<Written, Unwritable>, Option<Beside>) {
        self.write_state(|state| snapshot::write_beside(state, now, beside))
    }

    fn write_state<T>(&mut self, write: impl FnOnce(&StateRef<'_>) -> T) -> T {
        self.wan.begin_blocks_anew();
        let common = &self.common;
        write(&(
            Sizes::of(&common.settings),
            (&self.near, &self.far, &self.numbering, &self.ordering),
            &self.wan,
            (&common.lan, &common.pairings, &common.stale_flows, &common.answers, &common.stats),
            (common.settings.rtt, self.sessions, self.ended, self.ident),
        ))
    }

    /// A gateway that goes on where another one stood when its [`Gateway::snapshot`] was taken:
    /// `then`, by this process's clock. If that had a session, it is parked: the driver calls
    /// [`Gateway::session_lost`], and what follows that. The policy may be another one.
    ///
    /// Counters go on, but for those of flow halves.
    ///
    /// # Errors
    /// [`Refused`] says what does not fit.
    pub fn restore(settings: Settings, snapshot: &[u8], then: Instant) -> Result<Self, Refused> {
        Self::restore_beside(settings, snapshot, &[], then)
    }

    /// The same of a snapshot whose packets may lie in shared memory. They stay there until they
    /// are acknowledged.
    ///
    /// # Errors
    /// See [`Gateway::restore`].
    pub fn restore_beside(
        settings: Settings,
        snapshot: &[u8],
        segments: &[Arc<Segment>],
        then: Instant,
    ) -> Result<Self, Refused> {
        let policy = settings.policy.clone();
        let mut gateway = Self::new(settings, then);
        let read = || snapshot::read_beside::<State>(snapshot, segments, then);
        let read = gateway.common.pool.while_reading(read);
        let (sizes, flows, parked, common, (rtt, sessions, ended, ident)) = read?;
        if let Some(name) = sizes.differs(&Sizes::of(&gateway.common.settings)) {
            return Err(Refused::Setting(name));
        }
        (gateway.near, gateway.far, gateway.numbering, gateway.ordering) = flows;
        let is_other = *parked.classes() != *classes(&policy);
        gateway.wan = Connection::restore(&gateway.common.settings.wan(), parked, then);
        let into = &mut gateway.common;
        (into.lan, into.pairings, into.stale_flows, into.answers, into.stats) = common;
        into.settings.rtt = rtt;
        // Flows are classified anew.
        into.classes.set(policy.clone());
        (gateway.sessions, gateway.ended, gateway.ident) = (sessions, ended, ident);
        gateway.near.restore(&gateway.common.settings);
        gateway.far.restore();
        gateway.common.pairings.order();
        gateway.near.order();
        gateway.far.order();
        gateway.numbering.order();
        gateway.ordering.order();
        if is_other {
            gateway.set_policy(policy, then).map_err(|_| Refused::Setting("policy"))?;
        }
        Ok(gateway)
    }
}
