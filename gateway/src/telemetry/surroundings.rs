//! The gateway's two sides on this machine: the LAN's interface, and the way to the peer.
//!
//! Both are judged once a second. Events, /status, metrics and the page show that one judgement.

use std::time::Instant;

use crate::lan::usable::Fault;

/// How a side of the gateway stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Nothing was judged yet.
    #[default]
    Unknown,
    /// Packets can pass.
    Usable,
    /// They cannot.
    Unusable {
        /// In a line.
        why: String,
        /// When that was first seen.
        since: Instant,
    },
}

impl Standing {
    /// Returns why nothing passes, and since when, if that is so.
    #[must_use]
    pub fn unusable(&self) -> Option<(&str, Instant)> {
        match self {
            Self::Unusable { why, since } => Some((why, *since)),
            Self::Unknown | Self::Usable => None,
        }
    }

    /// Returns the state as a metric of [`Unit::Known`](super::Unit::Known) has it.
    pub(super) fn known(&self) -> u64 {
        match self {
            Self::Unknown => 0,
            Self::Unusable { .. } => 1,
            Self::Usable => 2,
        }
    }

    /// Takes a judgement, and returns true if it is news. That a side is usable at first is none.
    fn judge(&mut self, why: Option<String>, now: Instant) -> bool {
        let before = self.unusable();
        let (is_news, next) = match why {
            None => (before.is_some(), Self::Usable),
            Some(why) => {
                let is_news = before.is_none_or(|(known, _)| known != why);
                let since = before.map_or(now, |(_, since)| since);
                (is_news, Self::Unusable { why, since })
            }
        };
        *self = next;
        is_news
    }
}

/// Both sides, and what the LAN's is judged by.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// The interface; socket mode has none.
    pub(super) interface: Option<String>,
    /// The kernel's last word on the interface.
    pub(super) fault: Option<Fault>,
    pub(super) lan: Standing,
    pub(super) wan: Standing,
    /// When the gateway was told to stop.
    pub(super) leaving: Option<Instant>,
    /// Times that the machine's clock was set.
    pub(super) clock_sets: u64,
    /// RDMA devices on the LAN's interface and below it, at the last look.
    pub(super) rdma_devices: u64,
    /// Packets that such devices took since the gateway first saw them.
    pub(super) rdma_packets: u64,
    /// Why nothing outlives the process, if nothing does.
    pub(super) no_retention: Option<String>,
}

impl Surroundings {
    /// Judges the LAN. `link`: as the workers' [`Snapshot::lan_up`](super::Snapshot) has it.
    pub(super) fn judge_lan(&mut self, link: u64, now: Instant) -> Option<&Standing> {
        let name = self.interface.as_deref();
        let why = match (self.fault, name, link) {
            (Some(fault), Some(name), _) => Some(fault.text(name)),
            // The workers find a second later that it is back.
            (None, _, 1) if self.lan.unusable().is_some() => return None,
            (_, Some(name), 1) => Some(format!("{name} is gone, down, or without a carrier")),
            (_, None, 1) => Some("the interface is gone, down, or without a carrier".to_owned()),
            (_, _, 0) => return None,
            _ => None,
        };
        self.lan.judge(why, now).then_some(&self.lan)
    }

    /// Takes why there is no way to the peer, if there is none.
    pub(super) fn judge_wan(&mut self, why: Option<String>, now: Instant) -> Option<&Standing> {
        self.wan.judge(why, now).then_some(&self.wan)
    }
}
