//! Neighbours in virtual time: hosts of one site that WRITE to their targets, beside one that
//! floods, or over a peer that lies.
//!
//! All share a class and the link. Requesters and targets are software NICs, and each WRITE's
//! contents are looked at when it completes.
//! A lying peer is a gateway that carries its hosts' WRITEs as it should, and somebody with its
//! keys who says more, to the gateway of the targets or to that of the requesters.
//! Or it is the peer of another gateway at the requesters' site, whose hosts have requests for it.

mod gateways;
mod other;
mod world;
mod writer;

use std::time::Duration;

use crate::flood::FloodKind;
use crate::sim::liar::{Lie, Reach};
use linksim::impair::LinkSpec;
use splice::Settings;
use world::World;

/// Who shares a link, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Neighbours {
    /// Decides the links' dice.
    pub seed: u64,
    /// The most that each gateway sends, bit/s.
    pub rate: u64,
    /// The long link, either way.
    pub wan: LinkSpec,
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
    /// Hosts that WRITE, each to a target of its own.
    pub honest: usize,
    /// All of them WRITE to one target instead.
    pub incast: bool,
    /// The kind of another host's flood, and its rate as a multiple of the link's.
    pub flood: Option<(FloodKind, f64)>,
    /// The flood comes in ever other names, of a network of their own, whose addresses differ in so
    /// many bits; 0: in one.
    pub names: u8,
    /// Lies that a peer tells besides.
    pub lies: Option<Lies>,
    /// The gateways may be members of sites.
    pub members: bool,
    /// Bytes that each gateway may hold for hosts and streams, and flows on each of its sides.
    pub limits: (usize, usize),
    /// Runs whatever the gateway that is lied to does, to count what it allocates. Without lies it
    /// is that of the targets.
    pub meter: Meter,
    /// Before the flood and the lies begin, and not measured.
    pub warm_up: Duration,
    /// Measured.
    pub time: Duration,
}

/// Runs what it is given, once.
pub type Meter = fn(&mut dyn FnMut());

/// The lies of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Lies {
    /// Decides which.
    pub seed: u64,
    /// About what.
    pub reach: Reach,
    /// This one alone.
    pub only: Option<Lie>,
    /// Packets a second.
    pub rate: u32,
    /// Whom they are told.
    pub to: LiedTo,
}

/// The gateway that is lied to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LiedTo {
    /// That of the targets.
    #[default]
    Targets,
    /// That of the requesters. An aside spares the first host and lies about the others.
    Requesters,
    /// One of the requesters' site that has another peer, to which the first host WRITEs as well.
    Other,
}

impl LiedTo {
    /// The site where it is.
    fn site(self) -> usize {
        usize::from(self == Self::Targets)
    }
}

/// Result of a host that WRITEs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Neighbour {
    /// Payload, as a share of the link's rate.
    pub goodput: f64,
    /// Time from posting to completion that 99 % of messages stay within. A message that never
    /// completed counts with the time that it waited.
    pub p99: Duration,
    /// The longest time in which none of its messages completed.
    pub stall: Duration,
    /// Messages completed.
    pub completed: usize,
    /// Requests that ended in errors.
    pub failed: u64,
    /// Messages that completed without being in the target's memory as they were sent.
    pub wrong: u64,
    /// Packets on a LAN that are not from a host behind the peer to one of the site.
    pub stray: u64,
    /// Packets of connections from an other peer's gateway to queue pairs of these hosts that have
    /// none to that peer.
    pub aimed: u64,
}

impl Neighbours {
    /// One host that WRITEs for two seconds over a link like this, beside nobody.
    #[must_use]
    pub fn new(rate: u64, wan: LinkSpec) -> Self {
        let limits = config::Limits::default();
        Self {
            seed: 1,
            rate,
            wan,
            ipv6: false,
            honest: 1,
            incast: false,
            flood: None,
            names: 0,
            lies: None,
            members: false,
            limits: (limits.total_buffer.as_usize(), limits.flows as usize),
            meter: |act| act(),
            warm_up: Duration::from_millis(300),
            time: Duration::from_secs(2),
        }
    }

    /// Returns the number of the target that a host WRITEs to.
    fn target_of(&self, host: usize) -> usize {
        if self.incast { 0 } else { host }
    }

    /// A gateway's settings, whose peer has hosts there.
    #[must_use]
    pub fn settings(&self, remote: ipnet::IpNet) -> Settings {
        let (total_buffer, flows) = self.limits;
        let settings = Settings::new(vec![remote], self.rate, gateways::MAX_WAN);
        Settings { total_buffer, flows, is_member: self.members, ..settings }
    }

    /// Plays it, and says what became of the first host.
    ///
    /// # Errors
    /// What is impossible about it.
    pub fn play(&self) -> Result<Neighbour, String> {
        Ok(self.play_all()?.into_iter().next().unwrap_or_default())
    }

    /// Plays it, and says what became of each host.
    ///
    /// # Errors
    /// What is impossible about it.
    pub fn play_all(&self) -> Result<Vec<Neighbour>, String> {
        let mut world = World::new(self).map_err(|error| error.to_string())?;
        world.run(self.warm_up)?;
        world.begin();
        world.run(self.time)?;
        Ok(world.neighbours(self.time))
    }
}
