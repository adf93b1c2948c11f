//! A thread's part in its site, on its way from one process to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use snapshot::{Refused, Unwritable};

use super::{Seat, Site, SiteConfig};
use crate::members::{HostPair, MemberId, Members};

/// The version of what is written.
const VERSION: u16 = 1;

/// A member of either site, and the place of the gateway that leads to it.
type Placed = Vec<(MemberId, usize)>;

/// The state as it is written.
#[derive(Serialize)]
struct StateRef<'a> {
    version: u16,
    others: &'a Placed,
    peers: &'a Placed,
    members: &'a Members,
    seats: &'a BTreeMap<HostPair, Seat>,
    told: &'a BTreeSet<HostPair>,
    moving: &'a BTreeSet<HostPair>,
}

/// The same, as it is read.
#[derive(Deserialize)]
struct State {
    version: u16,
    others: Placed,
    peers: Placed,
    members: Members,
    seats: BTreeMap<HostPair, Seat>,
    told: BTreeSet<HostPair>,
    moving: BTreeSet<HostPair>,
}

/// The gateway file's key for what has to be the same.
const KEY: &str = "site.gateways";

impl Site {
    /// Another process is about to take this one's place, or fails to: says to the members of this
    /// site that this one is silent for a while, and lives.
    pub fn pause(&mut self, now: Instant) {
        self.members.pause(now);
    }

    /// This process was silent since then, and heard nobody.
    pub fn resume(&mut self, since: Instant, now: Instant) {
        self.members.resume(since, now);
    }

    /// Returns all that another process needs to go on as this member, in the same life. Only one
    /// of the two may go on.
    ///
    /// # Errors
    /// See [`snapshot::write()`].
    pub fn snapshot(&self, now: Instant) -> Result<Vec<u8>, Unwritable> {
        let Self { others, peers, members, seats, told, moving, .. } = self;
        snapshot::write(&StateRef { version: VERSION, others, peers, members, seats, told, moving }, now)
    }

    /// A part that goes on where another process's stood at `then`, by this process's clock: in the
    /// same life, with its leases, terms, agreements and seats. Call [`Site::resume`] once that one
    /// has ended. Counts begin anew.
    ///
    /// # Errors
    /// [`Refused`] says what does not fit.
    pub fn restore(config: SiteConfig, snapshot: &[u8], then: Instant) -> Result<Self, Refused> {
        let read: State = snapshot::read(snapshot, then)?;
        let fresh = Self::new(config, then);
        if read.version != VERSION {
            return Err(Refused::Version(read.version));
        }
        if (&read.others, &read.peers) != (&fresh.others, &fresh.peers) {
            return Err(Refused::Setting(KEY));
        }
        let is_peer = |seat: &Seat| read.peers.iter().any(|(_, place)| *place == seat.gateway);
        if read.seats.len() > fresh.pairs {
            return Err(Refused::Setting("limits.flows"));
        }
        if !read.seats.values().all(is_peer) {
            return Err(Refused::Content("seats that there are not".to_owned()));
        }
        let State { members, seats, told, moving, .. } = read;
        let members = members.restored(fresh.members).map_err(Refused::Setting)?;
        Ok(Self { me: members.process(), members, seats, told, moving, ..fresh })
    }
}
