//! One bottleneck in virtual time, and those who share it. Everything follows from the seed.

mod adaptive;
mod bbr;
mod cubic;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

pub use adaptive::Adaptive;
pub use bbr::Bbr;
pub use cubic::Cubic;

/// Bytes of every packet on the wire.
pub const PACKET: usize = 1500;
pub const SECOND: u64 = 1_000_000_000;

/// The path that all share.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Bit/s.
    pub rate: f64,
    /// Round-trip time without queues.
    pub rtt: Duration,
    /// The queue's capacity, in bandwidth-delay products of the rate that the world begins with.
    pub buffer: f64,
    /// Share of packets lost behind the bottleneck.
    pub loss: f64,
    /// Queues beyond so many products mark what may be marked.
    pub ecn: Option<f64>,
}

/// A packet on its way, and then what its receiver says of it.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub number: u64,
    pub ce: bool,
}

/// The next action of a sender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    Send,
    /// Ask again then. Beyond all times: when something has come.
    Wait(u64),
}

/// A packet that goes back to a sender.
pub enum Back {
    Ack(Packet),
    Report(Box<[u8]>),
}

/// A sender and its receiver. Times in nanoseconds.
pub trait Flow {
    fn next(&mut self, now: u64) -> Next;
    /// A packet leaves; its number.
    fn sent(&mut self, now: u64) -> u64;
    /// At the receiver, which acknowledges each packet unless it is of another mind.
    fn arrived(&mut self, packet: Packet, _now: u64) -> Option<Back> {
        Some(Back::Ack(packet))
    }
    /// The receiver's timer, if it has one.
    fn receiver_due(&self) -> Option<u64> {
        None
    }
    fn receiver_timer(&mut self, _now: u64) -> Option<Back> {
        None
    }
    fn back(&mut self, back: Back, now: u64);
    /// For the trace.
    fn state(&self) -> String {
        String::new()
    }
}

enum Event {
    Wake(usize),
    Arrive(usize, Packet),
    Receiver(usize),
    Back(usize, Back),
}

struct Entry(u64, u64, Event);
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

struct Member {
    flow: Box<dyn Flow>,
    /// The wakeup that counts.
    wake: u64,
    /// May send; set aside while false, and nothing is lost of it.
    active: bool,
    timer: u64,
    /// When the last answer comes.
    back: u64,
}

/// The counts since [`World::measure`].
#[derive(Clone, Debug)]
pub struct Measured {
    /// Share of the link's capacity that each flow's arrivals took.
    pub shares: Vec<f64>,
    /// Queueing delay in base round trips: the mean of each round trip's least, and the mean of
    /// all.
    pub standing: f64,
    pub mean: f64,
    /// Share of the packets that found the queue full.
    pub dropped: f64,
}

impl Measured {
    pub fn total(&self) -> f64 {
        self.shares.iter().sum()
    }
}

pub struct World {
    pub link: Link,
    pub now: u64,
    members: Vec<Member>,
    heap: BinaryHeap<Reverse<Entry>>,
    made: u64,
    rng: Pcg64Mcg,
    busy_until: u64,
    buffer: f64,
    /// Nothing passes.
    pub black: bool,
    from: u64,
    bytes: Vec<f64>,
    offered: u64,
    dropped: u64,
    window: (u64, f64),
    minima: (f64, u64),
    sum: (f64, u64),
    capacity: f64,
    capacity_at: u64,
    pub trace: bool,
}

impl World {
    pub fn new(link: Link, seed: u64) -> Self {
        let product = link.rate / 8.0 * link.rtt.as_secs_f64();
        Self {
            buffer: (product * link.buffer).max(4.0 * PACKET as f64),
            link,
            now: 0,
            members: Vec::new(),
            heap: BinaryHeap::new(),
            made: 0,
            rng: Pcg64Mcg::seed_from_u64(seed),
            busy_until: 0,
            black: false,
            from: 0,
            bytes: Vec::new(),
            offered: 0,
            dropped: 0,
            window: (0, f64::INFINITY),
            minima: (0.0, 0),
            sum: (0.0, 0),
            capacity: 0.0,
            capacity_at: 0,
            trace: std::env::var_os("TRACE").is_some(),
        }
    }

    /// A flow that begins now.
    pub fn add(&mut self, flow: impl Flow + 'static) {
        self.add_boxed(Box::new(flow));
    }

    pub fn add_boxed(&mut self, flow: Box<dyn Flow>) {
        let index = self.members.len();
        self.members.push(Member { flow, wake: u64::MAX, active: true, timer: u64::MAX, back: 0 });
        self.bytes.push(0.0);
        self.wake(index, self.now);
    }

    /// Sets whether a flow has anything to send.
    pub fn set_active(&mut self, index: usize, active: bool) {
        self.members[index].active = active;
        self.wake(index, self.now);
    }

    pub fn set_rate(&mut self, rate: f64) {
        self.measure_capacity();
        let backlog = self.busy_until.saturating_sub(self.now) as f64 * self.link.rate / rate;
        self.link.rate = rate;
        self.busy_until = self.now + backlog as u64;
    }

    fn measure_capacity(&mut self) {
        self.capacity += (self.now - self.capacity_at) as f64 / 1e9 * self.link.rate / 8.0;
        self.capacity_at = self.now;
    }

    /// Counting begins anew.
    pub fn measure(&mut self) {
        self.measure_capacity();
        self.capacity = 0.0;
        self.bytes.fill(0.0);
        (self.offered, self.dropped) = (0, 0);
        (self.minima, self.sum) = ((0.0, 0), (0.0, 0));
        self.window = (self.now, f64::INFINITY);
        self.from = self.now;
    }

    /// Packets that were sent since [`World::measure`].
    pub fn offered(&self) -> u64 {
        self.offered
    }

    pub fn measured(&mut self) -> Measured {
        self.measure_capacity();
        Measured {
            shares: self.bytes.iter().map(|bytes| bytes / self.capacity).collect(),
            standing: self.minima.0 / self.minima.1.max(1) as f64,
            mean: self.sum.0 / self.sum.1.max(1) as f64,
            dropped: self.dropped as f64 / self.offered.max(1) as f64,
        }
    }

    /// For a time that the seed says.
    pub fn run_for_up_to(&mut self, most: Duration) {
        let time = most.mul_f64(self.rng.random());
        self.run_for(time);
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time.as_nanos() as u64;
        let mut traced = self.now;
        while let Some(Reverse(Entry(at, ..))) = self.heap.peek() {
            if *at > end {
                break;
            }
            let Reverse(Entry(at, _, event)) = self.heap.pop().unwrap();
            self.now = at;
            self.handle(event);
            if self.trace && self.now >= traced + self.link.rtt.as_nanos() as u64 {
                traced = self.now;
                let queue = self.queue() / self.link.rtt.as_secs_f64();
                let states: Vec<_> = self.members.iter().map(|member| member.flow.state()).collect();
                println!("{:8.3} q {queue:5.2} | {}", self.now as f64 / 1e9, states.join(" | "));
            }
        }
        self.now = end;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Wake(index) => {
                if self.members[index].wake == self.now {
                    self.members[index].wake = u64::MAX;
                    self.send(index);
                }
            }
            Event::Arrive(index, packet) => {
                self.bytes[index] += PACKET as f64;
                let back = self.members[index].flow.arrived(packet, self.now);
                self.answer(index, back);
            }
            Event::Receiver(index) => {
                if self.members[index].timer != self.now {
                    return;
                }
                self.members[index].timer = u64::MAX;
                let back = self.members[index].flow.receiver_timer(self.now);
                self.answer(index, back);
            }
            Event::Back(index, back) => {
                self.members[index].flow.back(back, self.now);
                self.send(index);
            }
        }
    }

    fn answer(&mut self, index: usize, back: Option<Back>) {
        if let Some(back) = back.filter(|_| !self.black) {
            // Machines take a moment, never the same, or all depends on who comes first to a queue
            // that is full (Floyd and Jacobson, Traffic Phase Effects, 1991).
            let jitter = self.rng.random_range(0..=(PACKET as f64 * 8.0 / self.link.rate * 1e9) as u64);
            let at = self.now + self.link.rtt.as_nanos() as u64 / 2 + jitter;
            let at = at.max(self.members[index].back);
            self.members[index].back = at;
            self.push(at, Event::Back(index, back));
        }
        let member = &mut self.members[index];
        if let Some(due) = member.flow.receiver_due()
            && due < member.timer
        {
            member.timer = due.max(self.now);
            let at = member.timer;
            self.push(at, Event::Receiver(index));
        }
    }

    fn send(&mut self, index: usize) {
        loop {
            if !self.members[index].active {
                return;
            }
            match self.members[index].flow.next(self.now) {
                Next::Wait(u64::MAX) => return,
                Next::Wait(at) => return self.wake(index, at),
                Next::Send => {
                    let number = self.members[index].flow.sent(self.now);
                    self.enqueue(index, number);
                }
            }
        }
    }

    /// Seconds that a packet would wait.
    fn queue(&self) -> f64 {
        self.busy_until.saturating_sub(self.now) as f64 / 1e9
    }

    fn enqueue(&mut self, index: usize, number: u64) {
        let waits = self.queue();
        let rtt = self.link.rtt.as_secs_f64();
        self.sum = (self.sum.0 + waits / rtt, self.sum.1 + 1);
        self.window.1 = self.window.1.min(waits / rtt);
        if self.now >= self.window.0 + self.link.rtt.as_nanos() as u64 {
            self.minima = (self.minima.0 + self.window.1, self.minima.1 + 1);
            self.window = (self.now, f64::INFINITY);
        }
        self.offered += 1;
        let backlog = waits * self.link.rate / 8.0;
        if backlog + PACKET as f64 > self.buffer {
            self.dropped += 1;
            return;
        }
        let product = self.link.rate / 8.0 * rtt;
        let ce = self.link.ecn.is_some_and(|threshold| backlog > threshold * product);
        self.busy_until = self.busy_until.max(self.now) + (PACKET as f64 * 8.0 / self.link.rate * 1e9) as u64;
        if self.black || self.link.loss > 0.0 && self.rng.random_bool(self.link.loss) {
            return;
        }
        let at = self.busy_until + self.link.rtt.as_nanos() as u64 / 2;
        self.push(at, Event::Arrive(index, Packet { number, ce }));
    }

    fn wake(&mut self, index: usize, at: u64) {
        let at = at.max(self.now);
        // Asked too early a flow tells when to ask again.
        if at >= self.members[index].wake {
            return;
        }
        self.members[index].wake = at;
        self.push(at, Event::Wake(index));
    }

    fn push(&mut self, at: u64, event: Event) {
        self.made += 1;
        self.heap.push(Reverse(Entry(at, self.made, event)));
    }
}
