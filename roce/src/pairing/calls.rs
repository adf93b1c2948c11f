//! CM requests and what each says, for what follows to be understood.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::links::step;
use crate::cm::{Offer, Req};
use crate::hosts::Hosts;
use crate::wire::{PathMtu, Qpn};

/// One request.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Call {
    /// The caller's queue pair.
    pub(super) qpn: Qpn,
    pub(super) path_mtu: Option<PathMtu>,
    /// Retries after an ACK timeout.
    pub(super) retries: u8,
    pub(super) offer: Offer,
    /// The callee's queue pair, once it has replied.
    pub(super) answered: Option<Qpn>,
}

impl Call {
    pub(super) const fn new(req: &Req<'_>) -> Call {
        Call {
            qpn: req.qpn(),
            path_mtu: req.path_mtu(),
            retries: req.retry_count(),
            offer: Offer::of_req(req),
            answered: None,
        }
    }
}

/// CM requests by caller, callee and the caller's name for them.
///
/// # Bounds
/// As many as it was made for, and each caller's share of these ([`Hosts`]). One beyond is not
/// remembered, and counted.
#[serde_with::serde_as]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Calls {
    #[serde_as(as = "BTreeMap<_, (_, snapshot::At)>")]
    calls: BTreeMap<CallKey, (Call, Instant)>,
    capacity: usize,
    /// Calls of each caller.
    callers: Hosts,
    refused: u64,
    cursor: Option<CallKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
struct CallKey {
    caller: IpAddr,
    callee: IpAddr,
    /// The caller's.
    comm_id: u32,
}

impl Calls {
    pub(super) fn new(capacity: usize) -> Calls {
        Calls { calls: BTreeMap::new(), capacity, callers: Hosts::default(), refused: 0, cursor: None }
    }

    /// Requests not remembered for want of room.
    pub(super) const fn refused(&self) -> u64 {
        self.refused
    }

    /// One sent again changes nothing but its time, if it says the same.
    pub(super) fn insert(&mut self, caller: IpAddr, callee: IpAddr, comm_id: u32, call: Call, now: Instant) {
        let key = CallKey { caller, callee, comm_id };
        if !self.calls.contains_key(&key) {
            if !self.callers.may_join(caller, self.calls.len(), self.capacity) {
                self.refused += 1;
                return;
            }
            self.callers.join(caller);
        }
        let entry = self.calls.entry(key).or_insert((call, now));
        if entry.0.qpn != call.qpn || entry.0.offer != call.offer {
            entry.0 = call;
        }
        entry.1 = now;
    }

    pub(super) fn get_mut(&mut self, caller: IpAddr, callee: IpAddr, comm_id: u32) -> Option<&mut Call> {
        self.calls.get_mut(&CallKey { caller, callee, comm_id }).map(|(call, _)| call)
    }

    pub(super) fn remove(&mut self, caller: IpAddr, callee: IpAddr, comm_id: u32) -> Option<Call> {
        self.take(CallKey { caller, callee, comm_id })
    }

    fn take(&mut self, key: CallKey) -> Option<Call> {
        let (call, _) = self.calls.remove(&key)?;
        self.callers.leave(key.caller);
        Some(call)
    }

    pub(super) fn touch(&mut self, caller: IpAddr, callee: IpAddr, comm_id: u32, now: Instant) {
        if let Some((_, since)) = self.calls.get_mut(&CallKey { caller, callee, comm_id }) {
            *since = now;
        }
    }

    pub(super) fn sweep(&mut self, budget: usize, lifetime: Duration, now: Instant) -> bool {
        let mut expired = Vec::new();
        let end = step(&self.calls, &mut self.cursor, budget, |key, (_, since)| {
            if now.saturating_duration_since(*since) >= lifetime {
                expired.push(*key);
            }
        });
        for key in expired {
            self.take(key);
        }
        end
    }
}
