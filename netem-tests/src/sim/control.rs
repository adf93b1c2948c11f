//! Sessions: when each gateway is told that one has begun, is lost, goes on or has ended, and what
//! the peer remembered. The part of the control connection.

use std::time::{Duration, Instant};

use splice::{FlowSide, SessionEnd, StaleFlow};

/// An order to a gateway.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// A session has begun, and another one before it is over.
    Up { session: u32, remembered: Vec<StaleFlow>, awaited: Vec<StaleFlow> },
    /// A session has begun with a process that knows no flow: those that wait here go on.
    Reborn { session: u32, ended: Vec<StaleFlow> },
    /// The session is lost, and its flows wait for the next one.
    Lost(SessionEnd),
    /// The peer is the same process as before, and they go on.
    Resumed { session: u32 },
    /// The session is over.
    Down(SessionEnd),
}

/// Where a gateway stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stand {
    /// No session, and nothing left of one.
    #[default]
    Down,
    /// In this session.
    Up(u32),
    /// Its session was lost in this way; its flows wait until then.
    Parked(SessionEnd, Instant),
}

/// Who has which session, and what comes next.
///
/// Flows to remember are noted every 100 ms of a session and at its end, told when the next one
/// begins, and lost with a crash; a side that is up before the other sends into the void until that
/// one is, too.
#[derive(Debug)]
pub(super) struct Control {
    resume_for: Duration,
    sessions: u32,
    /// Sessions that went on with no other's flows.
    fresh: u32,
    stands: [Stand; 2],
    /// The fresh session that each side's streams began with.
    began: [u32; 2],
    pub(super) remembered: [Vec<StaleFlow>; 2],
    note_at: [Instant; 2],
    orders: Vec<(Instant, usize, Order)>,
    /// A new session is on its way.
    planned: bool,
    /// Sides told that they go on.
    resumed: u64,
    /// The gateways speak of flows that outlive the peer's process.
    survives: bool,
    /// Sides whose flows have outlived the peer's process.
    reborn: u64,
}

const NOTE_EVERY: Duration = Duration::from_millis(100);

impl Control {
    pub(super) fn new(resume_for: Duration, survives: bool, now: Instant) -> Self {
        Self {
            resume_for,
            sessions: 0,
            fresh: 0,
            stands: [Stand::Down; 2],
            began: [0; 2],
            remembered: [Vec::new(), Vec::new()],
            note_at: [now; 2],
            orders: Vec::new(),
            planned: false,
            resumed: 0,
            survives,
            reborn: 0,
        }
    }

    fn stand(&self, site: usize) -> Stand {
        self.stands.get(site).copied().unwrap_or_default()
    }

    /// Returns true if the side's session was lost, and may go on.
    pub(super) fn is_parked(&self, site: usize) -> bool {
        matches!(self.stand(site), Stand::Parked(..))
    }

    pub(super) fn session(&self, site: usize) -> Option<u32> {
        match self.stand(site) {
            Stand::Up(session) => Some(session),
            Stand::Down | Stand::Parked(..) => None,
        }
    }

    /// Fresh sessions so far, one that is on its way included: those that went on with another's
    /// flows do not count.
    pub(super) fn fresh_sessions(&self) -> u32 {
        self.fresh
    }

    /// How often a side was told to go on.
    pub(super) fn resumed(&self) -> u64 {
        self.resumed
    }

    /// How often a side's flows have outlived the peer's process.
    pub(super) fn reborn(&self) -> u64 {
        self.reborn
    }

    /// Returns true if it is time to note what this side knows.
    pub(super) fn is_note_due(&mut self, site: usize, now: Instant) -> bool {
        let due = self.stand(site) != Stand::Down && self.note_at.get(site).is_some_and(|at| *at <= now);
        if let (true, Some(at)) = (due, self.note_at.get_mut(site)) {
            *at = now + NOTE_EVERY;
        }
        due
    }

    /// The session is lost to both, to each after its own delay.
    pub(super) fn lose(&mut self, end: SessionEnd, now: Instant, delays: [Duration; 2]) {
        self.orders.retain(|(_, _, order)| matches!(order, Order::Down(_) | Order::Lost(_)));
        self.planned = false;
        for (site, delay) in delays.into_iter().enumerate() {
            let going = self.orders.iter().any(|(_, other, _)| *other == site);
            if self.session(site).is_some() && !going {
                let order = if self.resume_for.is_zero() { Order::Down(end) } else { Order::Lost(end) };
                self.orders.push((now + delay, site, order));
            }
        }
    }

    /// A gateway's process ends, after another one has what it knew. The other side notices later.
    pub(super) fn upgraded(&mut self, site: usize, now: Instant, noticed: Duration) {
        self.orders.retain(|(_, other, _)| *other != site);
        let mut delays = [noticed; 2];
        if let Some(own) = delays.get_mut(site) {
            *own = Duration::ZERO;
        }
        self.lose(SessionEnd::Closed, now, delays);
    }

    /// A gateway is gone, and all it knew.
    pub(super) fn crashed(&mut self, site: usize) {
        self.orders.retain(|(_, other, order)| *other != site || matches!(order, Order::Up { .. }));
        let place =
            self.stands.get_mut(site).zip(self.began.get_mut(site)).zip(self.remembered.get_mut(site));
        if let Some(((stand, began), remembered)) = place {
            (*stand, *began) = (Stand::Down, 0);
            remembered.clear();
        }
    }

    /// A new session may begin: both are without one, and they can talk. The sides learn of it at
    /// their own times.
    pub(super) fn is_session_due(&self) -> bool {
        let none_up = self.stands.iter().all(|stand| !matches!(stand, Stand::Up(_)));
        !self.planned && none_up && self.orders.is_empty()
    }

    /// The greetings have been exchanged: both go on if each holds what the other does.
    pub(super) fn plan(&mut self, at: [Instant; 2]) {
        self.planned = true;
        self.sessions += 1;
        let session = self.sessions;
        let [here, there] = self.began;
        let parked = self.stands.iter().all(|stand| matches!(stand, Stand::Parked(..)));
        let resumes = parked && here == there;
        self.fresh += u32::from(!resumes);
        for (site, at) in at.into_iter().enumerate() {
            let order = if resumes { Order::Resumed { session } } else { self.fresh_order(site, session) };
            self.orders.push((at, site, order));
        }
    }

    /// A side whose flows wait goes on with them if the other has none.
    fn fresh_order(&mut self, site: usize, session: u32) -> Order {
        let other = 1 - site;
        let told = self.remembered.get(other).cloned().unwrap_or_default();
        let (living, ended): (Vec<_>, Vec<_>) = told.into_iter().partition(|flow| flow.lives);
        let survives = |site, other| {
            self.survives && matches!((self.stand(site), self.stand(other)), (Stand::Parked(..), Stand::Down))
        };
        if survives(site, other) {
            self.reborn += 1;
            return Order::Reborn { session, ended: [ended, living].concat() };
        }
        if survives(other, site) {
            let awaited = living.into_iter().filter(|flow| flow.side == FlowSide::Far).collect();
            return Order::Up { session, remembered: ended, awaited };
        }
        Order::Up { session, remembered: [ended, living].concat(), awaited: Vec::new() }
    }

    /// The connection ends after the first side has gone on in it, and before the other has. The
    /// first side finds out a round trip later.
    pub(super) fn tear(&mut self, rtt: Duration) {
        let mut resumed: Vec<_> =
            self.orders.extract_if(.., |(_, _, order)| matches!(order, Order::Resumed { .. })).collect();
        resumed.sort_by_key(|(at, _, _)| *at);
        if let Some((at, site, order)) = resumed.into_iter().next() {
            self.orders.push((at, site, order));
            self.orders.push((at + rtt, site, Order::Lost(SessionEnd::Closed)));
        }
    }

    /// When each side's wait is over: not while it may be about to go on.
    fn expiries(&self) -> impl Iterator<Item = (Instant, usize, SessionEnd)> + '_ {
        let stands = self.stands.iter().enumerate().filter(|_| !self.planned);
        stands.filter_map(|(site, stand)| match stand {
            Stand::Parked(end, until) => Some((*until, site, *end)),
            Stand::Down | Stand::Up(_) => None,
        })
    }

    pub(super) fn next_order(&self) -> Option<Instant> {
        let orders = self.orders.iter().map(|(at, _, _)| *at);
        orders.chain(self.expiries().map(|(at, _, _)| at)).min()
    }

    /// The next order that is due, already accounted for.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(usize, Order)> {
        let expired = self.expiries().find(|(at, _, _)| *at <= now);
        let (site, order) = match self.orders.iter().position(|(at, _, _)| *at <= now) {
            Some(index) => {
                let (_, site, order) = self.orders.remove(index);
                (site, order)
            }
            None => {
                let (_, site, end) = expired?;
                (site, Order::Down(end))
            }
        };
        let (Some(stand), Some(began)) = (self.stands.get_mut(site), self.began.get_mut(site)) else {
            return None;
        };
        match order {
            Order::Up { session, .. } | Order::Reborn { session, .. } => {
                (*stand, *began) = (Stand::Up(session), self.fresh);
            }
            Order::Resumed { session } => *stand = Stand::Up(session),
            Order::Lost(end) => {
                *stand = Stand::Parked(end, now + self.resume_for);
                self.planned = false;
            }
            Order::Down(_) => *stand = Stand::Down,
        }
        self.resumed += u64::from(matches!(order, Order::Resumed { .. }));
        if self.stands == [Stand::Up(self.sessions); 2] {
            self.planned = false;
        }
        Some((site, order))
    }
}
