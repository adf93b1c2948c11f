//! Sessions: when each gateway is told that one has begun or ended, and what the peer remembered.
//! The part of the control connection.

use std::time::{Duration, Instant};

use splice::{Remembered, SessionEnd};

/// An order to a gateway.
#[derive(Clone, Debug)]
pub(super) enum Order {
    Up { session: u32, remembered: Vec<Remembered> },
    Down(SessionEnd),
}

/// Who has which session, and what comes next.
///
/// Flows to remember are noted every 100 ms of a session and at its end, told when the next one
/// begins, and lost with a crash; a side that is up before the other sends into the void until that
/// one is, too.
#[derive(Debug)]
pub(super) struct Control {
    sessions: u32,
    up: [Option<u32>; 2],
    pub(super) remembered: [Vec<Remembered>; 2],
    note_at: [Instant; 2],
    orders: Vec<(Instant, usize, Order)>,
    /// A new session is on its way.
    planned: bool,
}

const NOTE_EVERY: Duration = Duration::from_millis(100);

impl Control {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            sessions: 0,
            up: [None; 2],
            remembered: [Vec::new(), Vec::new()],
            note_at: [now; 2],
            orders: Vec::new(),
            planned: false,
        }
    }

    pub(super) fn session(&self, site: usize) -> Option<u32> {
        self.up.get(site).copied().flatten()
    }

    /// Sessions so far, the one that is on its way included.
    pub(super) fn sessions(&self) -> u32 {
        self.sessions
    }

    /// Returns true if it is time to note what this side knows.
    pub(super) fn is_note_due(&mut self, site: usize, now: Instant) -> bool {
        let due = self.session(site).is_some() && self.note_at.get(site).is_some_and(|at| *at <= now);
        if let (true, Some(at)) = (due, self.note_at.get_mut(site)) {
            *at = now + NOTE_EVERY;
        }
        due
    }

    /// The session ends for both, for each after its own delay.
    pub(super) fn lose(&mut self, end: SessionEnd, now: Instant, delays: [Duration; 2]) {
        self.orders.retain(|(_, _, order)| matches!(order, Order::Down(_)));
        self.planned = false;
        for (site, delay) in delays.into_iter().enumerate() {
            let going = self.orders.iter().any(|(_, other, _)| *other == site);
            if self.session(site).is_some() && !going {
                self.orders.push((now + delay, site, Order::Down(end)));
            }
        }
    }

    /// A gateway is gone, and all it knew.
    pub(super) fn crashed(&mut self, site: usize) {
        self.orders.retain(|(_, other, order)| *other != site || matches!(order, Order::Up { .. }));
        if let (Some(up), Some(remembered)) = (self.up.get_mut(site), self.remembered.get_mut(site)) {
            *up = None;
            remembered.clear();
        }
    }

    /// A new session may begin: both are without one, and they can talk. The sides learn of it at
    /// their own times.
    pub(super) fn is_session_due(&self) -> bool {
        !self.planned && self.up == [None; 2] && self.orders.is_empty()
    }

    pub(super) fn plan(&mut self, at: [Instant; 2]) {
        self.planned = true;
        self.sessions += 1;
        for (site, at) in at.into_iter().enumerate() {
            let remembered = self.remembered.get(1 - site).cloned().unwrap_or_default();
            self.orders.push((at, site, Order::Up { session: self.sessions, remembered }));
        }
    }

    pub(super) fn next_order(&self) -> Option<Instant> {
        self.orders.iter().map(|(at, _, _)| *at).min()
    }

    /// The next order that is due, already accounted for.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(usize, Order)> {
        let index = self.orders.iter().position(|(at, _, _)| *at <= now)?;
        let (_, site, order) = self.orders.remove(index);
        if let Some(up) = self.up.get_mut(site) {
            *up = match order {
                Order::Up { session, .. } => Some(session),
                Order::Down(_) => None,
            };
        }
        if self.up == [Some(self.sessions); 2] {
            self.planned = false;
        }
        Some((site, order))
    }
}
