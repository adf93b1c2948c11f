//! The messages: cut into records, followed until they are done.

use std::collections::VecDeque;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use reliability::stream::{Full, RECORD_HEADER, Scheme, Sender};
use std::time::Instant;

use super::record::{self, Form, Head};
use super::times::Times;
use super::{Failure, Pattern, Transfer};

/// Single packets before the first message, one at a time: the round-trip time's variation falls to
/// nothing meanwhile.
const WARM_UP: u64 = 24;

/// Everything in nanoseconds of virtual time.
pub(super) struct Load {
    form: Form,
    packet: usize,
    size: u64,
    depth: usize,
    arrivals: Option<Arrivals>,
    /// Nobody acknowledges: a message has arrived by then after its sending or never will.
    patience: Option<u64>,
    /// Under way, in order; the first one's number is `first`.
    messages: VecDeque<Message>,
    first: u64,
    begun: u64,
    total: u64,
    /// Bytes of the newest message not pushed yet.
    rest: u64,
    record: Vec<u8>,
    unacknowledged: usize,
    /// Message bytes pushed.
    pub(super) bytes: u64,
    pub(super) done: u64,
    pub(super) lost: u64,
    pub(super) repaired: u64,
    pub(super) peak: usize,
    pub(super) completion: Times,
    pub(super) delivery: Times,
}

/// The sequence numbers of a message's packets are consecutive.
struct Message {
    began: u64,
    /// The packets below have been acknowledged, as far as they are the message's.
    acknowledged: u64,
    /// One past the last packet, once all is pushed.
    end: Option<u64>,
    /// Records not yet delivered.
    missing: u64,
    /// When all packets were acknowledged.
    completed: Option<u64>,
    /// Repairs that the sender had sent when it began.
    repairs: u64,
    measured: bool,
}

struct Arrivals {
    rng: Pcg64Mcg,
    mean: f64,
    next: u64,
}

impl Load {
    pub(super) fn new(transfer: &Transfer, form: Form) -> Result<Self, Failure> {
        let (depth, arrivals) = match transfer.pattern {
            Pattern::Closed { depth } => (depth.max(1), None),
            Pattern::Open { load } => {
                let mean = transfer.size as f64 * 8e9 / transfer.rate as f64 / load;
                let rng = Pcg64Mcg::seed_from_u64(transfer.seed ^ 0xa11);
                (usize::MAX, Some(Arrivals { rng, mean, next: 0 }))
            }
        };
        let reach = transfer.rtt() + transfer.forward.jitter * 8;
        let patience = (transfer.repair.scheme == Scheme::None).then_some(reach.as_nanos() as u64);
        Ok(Self {
            form,
            packet: transfer.packet,
            size: transfer.size,
            depth,
            arrivals,
            patience,
            messages: VecDeque::new(),
            first: 0,
            begun: 0,
            total: transfer.messages.saturating_add(WARM_UP),
            rest: 0,
            record: vec![0; form.len(transfer.packet)],
            unacknowledged: 0,
            bytes: 0,
            done: 0,
            lost: 0,
            repaired: 0,
            peak: 0,
            completion: Times::new()?,
            delivery: Times::new()?,
        })
    }

    /// Pushes records until `room` bytes of them wait to be sent, or none is due.
    pub(super) fn push(&mut self, sender: &mut Sender, room: usize, at: u64, now: Instant) {
        while sender.backlog() < room {
            if self.rest == 0 && !self.begin(at, sender) {
                return;
            }
            let len = self.rest.min(self.packet as u64) as usize;
            let bytes = self.form.len(len);
            let Some(record) = self.record.get_mut(..bytes) else { return };
            record::write(Head { message: self.begun - 1, len }, record);
            let (before, backlog) = (sender.last_packet(), sender.backlog());
            let pushed: Result<(), Full> = sender.push(&[record], now);
            if pushed.is_err() {
                return;
            }
            self.rest -= len as u64;
            sender
                .expect(self.rest.div_ceil(self.packet as u64) * (RECORD_HEADER + self.record.len()) as u64);
            self.bytes += len as u64;
            let last = sender.last_packet().unwrap_or(0);
            let whole = sender.backlog() - backlog == RECORD_HEADER + bytes;
            if let Some(message) = self.messages.back_mut() {
                // A record that was cut began in the packet that was open.
                let start = if whole { last } else { before.unwrap_or(last) };
                message.acknowledged = message.acknowledged.min(start);
                message.end = (self.rest == 0).then_some(last + 1);
            }
        }
    }

    /// Begins the next message, if it is its turn.
    fn begin(&mut self, at: u64, sender: &Sender) -> bool {
        let warm_up = self.begun < WARM_UP;
        // The first messages find the link empty.
        let depth = if self.begun <= WARM_UP { 1 } else { self.depth };
        if self.begun >= self.total || self.unacknowledged >= depth {
            return false;
        }
        let mut began = at;
        if !warm_up && let Some(arrivals) = &mut self.arrivals {
            if self.begun == WARM_UP {
                arrivals.next = at;
            }
            if arrivals.next > at {
                return false;
            }
            began = arrivals.next;
            let wait = -(1.0 - arrivals.rng.random::<f64>()).ln() * arrivals.mean;
            arrivals.next = began.saturating_add(wait as u64);
        }
        self.rest = if warm_up { self.size.min(self.packet as u64) } else { self.size };
        self.begun += 1;
        self.unacknowledged += 1;
        self.messages.push_back(Message {
            began,
            acknowledged: u64::MAX,
            end: None,
            missing: self.rest.div_ceil(self.packet as u64),
            completed: None,
            repairs: sender.stats().repairs,
            measured: !warm_up,
        });
        self.peak = self.peak.max(self.messages.len());
        true
    }

    /// When the next message comes. One that has come already waits for the backlog.
    pub(super) fn next_arrival(&self, at: u64) -> Option<u64> {
        let arrivals = self.arrivals.as_ref().filter(|_| self.begun > WARM_UP && self.begun < self.total)?;
        Some(arrivals.next).filter(|next| *next > at)
    }

    /// A record came out.
    pub(super) fn deliver(&mut self, record: &[u8], at: u64) {
        let Some(head) = record::parse(record) else { return };
        let place = head.message.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        let Some(message) = place.and_then(|place| self.messages.get_mut(place)) else { return };
        message.missing = message.missing.saturating_sub(1);
        if message.missing == 0 && message.measured {
            self.delivery.record(at.saturating_sub(message.began));
        }
    }

    /// Sees what the sender knows now.
    pub(super) fn acknowledge(&mut self, sender: &Sender, at: u64) {
        for message in &mut self.messages {
            let Some(end) = message.end else { break };
            if message.completed.is_some() {
                continue;
            }
            if let Some(missing) = sender.first_unacknowledged(message.acknowledged, end) {
                message.acknowledged = missing;
                continue;
            }
            message.completed = Some(at);
            self.unacknowledged -= 1;
            if message.measured {
                if self.patience.is_none() {
                    self.completion.record(at.saturating_sub(message.began));
                }
                self.repaired += u64::from(sender.stats().repairs > message.repairs);
            }
        }
        self.retire(at);
    }

    /// Forgets what is done, in order.
    pub(super) fn retire(&mut self, at: u64) {
        while let Some(message) = self.messages.front()
            && let Some(completed) = message.completed
        {
            let late = self.patience.is_some_and(|patience| completed + patience < at);
            if message.missing > 0 && !late {
                return;
            }
            self.lost += u64::from(message.missing > 0 && message.measured);
            self.done += u64::from(message.measured);
            self.first += 1;
            self.messages.pop_front();
        }
    }

    /// When [`Load::retire`] is due although nothing happens.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        let completed = self.messages.front()?.completed?;
        Some(completed + self.patience? + 1)
    }

    pub(super) fn is_over(&self) -> bool {
        self.begun >= self.total && self.messages.is_empty()
    }
}
