//! CM requests and what each says, for what follows to be understood.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::links::step;
use crate::cm::{Offer, Req};
use crate::hosts::Hosts;
use crate::unheard::{Ticket, Unheard};
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
    /// Its place among those that give way.
    #[serde(skip)]
    ticket: Option<Ticket>,
}

impl Call {
    pub(super) const fn new(req: &Req<'_>) -> Call {
        Call {
            qpn: req.qpn(),
            path_mtu: req.path_mtu(),
            retries: req.retry_count(),
            offer: Offer::of_req(req),
            answered: None,
            ticket: None,
        }
    }
}

/// CM requests by caller, callee and the caller's name for them.
///
/// # Bounds
/// As many as it was made for, and each caller's share of these ([`Hosts`]). For one beyond its
/// share a caller's own gives way, and where all places are taken that of the caller who has most,
/// or the oldest ([`Unheard`]). Those that have a reply go first. One that had none is counted.
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
    /// Calls in the order in which they give way.
    #[serde(skip)]
    order: Order,
}

/// Calls that have a reply, and serve to understand a REJ that takes it back, and those that have
/// none.
#[derive(Debug, Default)]
struct Order {
    answered: Unheard<CallKey>,
    open: Unheard<CallKey>,
}

impl Order {
    fn of(&mut self, call: &Call) -> &mut Unheard<CallKey> {
        if call.answered.is_some() { &mut self.answered } else { &mut self.open }
    }

    fn enter(&mut self, key: CallKey, call: &mut Call) {
        call.ticket = Some(self.of(call).enter(key.caller, key));
    }

    fn leave(&mut self, key: CallKey, call: &mut Call) {
        let mut ticket = call.ticket.take();
        self.of(call).leave(key.caller, &mut ticket);
    }
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
        let (calls, callers, order) = (BTreeMap::new(), Hosts::default(), Order::default());
        Calls { calls, capacity, callers, refused: 0, cursor: None, order }
    }

    /// Puts those of a snapshot in the order in which they may give way.
    pub(super) fn order(&mut self) {
        let mut keys: Vec<_> = self.calls.iter().map(|(key, (_, since))| (*since, *key)).collect();
        keys.sort();
        for (_, key) in keys {
            if let Some((call, _)) = self.calls.get_mut(&key) {
                self.order.enter(key, call);
            }
        }
    }

    /// Requests not remembered, or forgotten without a reply, for want of room.
    pub(super) const fn refused(&self) -> u64 {
        self.refused
    }

    /// One sent again changes nothing but its time, if it says the same.
    pub(super) fn insert(&mut self, caller: IpAddr, callee: IpAddr, comm_id: u32, call: Call, now: Instant) {
        let key = CallKey { caller, callee, comm_id };
        if !self.calls.contains_key(&key) {
            if !self.make_room(caller) {
                self.refused += 1;
                return;
            }
            self.callers.join(caller);
            let (call, _) = self.calls.entry(key).or_insert((call, now));
            return self.order.enter(key, call);
        }
        let Some((known, since)) = self.calls.get_mut(&key) else { return };
        if known.qpn != call.qpn || known.offer != call.offer {
            self.order.leave(key, known);
            *known = call;
            self.order.enter(key, known);
        }
        *since = now;
    }

    /// Makes room for one more of this caller's.
    fn make_room(&mut self, caller: IpAddr) -> bool {
        if self.callers.may_join(caller, self.calls.len(), self.capacity) {
            return true;
        }
        let Order { answered, open } = &self.order;
        let is_full = self.calls.len() >= self.capacity;
        let loser = answered.loser(caller, is_full).or_else(|| open.loser(caller, is_full));
        let Some(call) = loser.and_then(|loser| self.take(loser)) else { return false };
        self.refused += u64::from(call.answered.is_none());
        true
    }

    /// The callee has replied. Returns what was asked.
    pub(super) fn answer(
        &mut self,
        (caller, callee): (IpAddr, IpAddr),
        comm_id: u32,
        qpn: Qpn,
    ) -> Option<Call> {
        let key = CallKey { caller, callee, comm_id };
        let (call, _) = self.calls.get_mut(&key)?;
        self.order.leave(key, call);
        call.answered = Some(qpn);
        self.order.enter(key, call);
        Some(*call)
    }

    pub(super) fn remove(&mut self, caller: IpAddr, callee: IpAddr, comm_id: u32) -> Option<Call> {
        self.take(CallKey { caller, callee, comm_id })
    }

    fn take(&mut self, key: CallKey) -> Option<Call> {
        let (mut call, _) = self.calls.remove(&key)?;
        self.callers.leave(key.caller);
        self.order.leave(key, &mut call);
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
