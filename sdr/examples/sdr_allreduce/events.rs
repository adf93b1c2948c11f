//! The same ring by events: only chunks that are lost are looked at.
//!
//! It follows the layers' rules and timers; times are in seconds, and nothing is copied.
//! The test `allreduce` holds it against [`crate::packets`] run by run, with the same losses.
//!
//! | layer | a lost chunk comes again |
//! |---|---|
//! | SR RTO | RTO after it left, as often as it is lost |
//! | SR NACK | a reordering time after a later one of its part came; then once a round trip |
//! | | the last ones of a part: as by SR RTO |
//! | EC | if parity does not suffice: after the fallback timeout, all that its part lacks |
//! | | then after 9/8 round trips, and then once a round trip |
//!
//! Repeated chunks are taken to find the link free. Credits, reports and requests are not lost.

use fec::Code;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use sdr::layers::{Scheme, Timing};
use sdr::wire::DATA_HEADER;
use sdr::{QpAttr, Shape};

use crate::ring::{SITES, STEPS};

/// A chunk that did not come whole.
#[derive(Clone, Copy)]
pub(crate) struct Lost {
    pub(crate) chunk: u32,
    /// Packets of it that did not come.
    pub(crate) packets: u32,
}

/// Tells what is lost.
pub(crate) trait Losses {
    /// Puts the chunks of a message that do not come whole at the first attempt into `lost`,
    /// ascending.
    fn first(&mut self, link: usize, message: u32, chunks: u32, lost: &mut Vec<Lost>);

    /// Returns true if a chunk is not whole after a later attempt either, counted from 1. What came
    /// before stays.
    fn again(&mut self, link: usize, message: u32, lost: &mut Lost, attempt: u32) -> bool;
}

/// Independent losses, found by the distances between them.
pub(crate) struct Drawn {
    /// Probability that a packet is lost.
    drop: f64,
    /// Packets of a chunk.
    packets: u32,
    rng: Pcg64Mcg,
}

impl Drawn {
    /// Makes losses of packets, of which a chunk has `packets`.
    pub(crate) fn new(drop: f64, packets: u32, rng: Pcg64Mcg) -> Self {
        Drawn { drop, packets, rng }
    }

    /// Draws from [0, 1).
    fn uniform(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Losses for Drawn {
    fn first(&mut self, _: usize, _: u32, chunks: u32, lost: &mut Vec<Lost>) {
        lost.clear();
        if self.drop <= 0.0 {
            return;
        }
        let log = (-self.drop).ln_1p();
        let end = f64::from(chunks) * f64::from(self.packets);
        let mut at = 0.0;
        loop {
            at += ((-self.uniform()).ln_1p() / log).floor();
            if at >= end {
                return;
            }
            let chunk = at as u32 / self.packets;
            match lost.last_mut() {
                Some(last) if last.chunk == chunk => last.packets += 1,
                _ => lost.push(Lost { chunk, packets: 1 }),
            }
            at += 1.0;
        }
    }

    fn again(&mut self, _: usize, _: u32, lost: &mut Lost, _: u32) -> bool {
        let drop = self.drop;
        lost.packets = (0..lost.packets).filter(|_| self.uniform() < drop).count() as u32;
        lost.packets > 0
    }
}

/// A segment that one site sends to the next one in a step.
pub(crate) struct Hop {
    scheme: Scheme,
    /// Chunks of a segment, and of a full part.
    chunks: u32,
    part: u32,
    /// Parts that have slots at the same time.
    window: usize,
    /// Seconds until a chunk has left.
    chunk: f64,
    rtt: f64,
    rto: f64,
    reorder: f64,
    slack: f64,
    /// Places of lost chunks of a part.
    lost: Vec<Lost>,
    lost_parity: Vec<Lost>,
    /// By part: when it and all before it are there.
    complete: Vec<f64>,
}

impl Hop {
    /// Describes a segment of `bytes` bytes, in whole chunks.
    pub(crate) fn new(attr: &QpAttr, shape: &Shape, scheme: &Scheme, bytes: u64) -> Self {
        let timing = Timing::new(attr.rtt, attr.rate);
        let (part, slots) = match scheme {
            Scheme::SrRto | Scheme::SrNack => (shape.max_message() / shape.chunk(), 1),
            Scheme::Ec(code) => (code.k() as u32, 2),
        };
        let packets = f64::from(shape.packets_per_chunk());
        let bits = (f64::from(shape.mtu()) + DATA_HEADER as f64) * packets * 8.0;
        Hop {
            scheme: scheme.clone(),
            chunks: (bytes / u64::from(shape.chunk())) as u32,
            part,
            window: shape.slots() as usize / slots,
            chunk: bits / attr.rate as f64,
            rtt: attr.rtt.as_secs_f64(),
            rto: timing.rto.as_secs_f64(),
            reorder: timing.reorder.as_secs_f64(),
            slack: timing.slack.as_secs_f64(),
            lost: Vec::new(),
            lost_parity: Vec::new(),
            complete: Vec::new(),
        }
    }

    /// Returns the seconds from a segment's start until the next site has all of it.
    pub(crate) fn time(&mut self, link: usize, step: usize, losses: &mut impl Losses) -> f64 {
        let parts = self.chunks.div_ceil(self.part);
        let (mut last, mut leaves) = (0.0, 0.0);
        self.complete.clear();
        for part in 0..parts {
            // The credit for a slot that was used before comes half a round trip after its part.
            let before = (part as usize).checked_sub(self.window).and_then(|at| self.complete.get(at));
            leaves = f64::max(leaves, before.map_or(0.0, |complete| complete + self.rtt / 2.0));
            let chunks = self.part.min(self.chunks - part * self.part);
            let number = step as u32 * parts + part;
            let complete = match self.scheme.clone() {
                Scheme::SrRto => self.repeated(link, number, (leaves, chunks), false, losses),
                Scheme::SrNack => self.repeated(link, number, (leaves, chunks), true, losses),
                Scheme::Ec(code) => self.coded(link, number, (leaves, chunks), &code, losses),
            };
            last = f64::max(last, complete);
            self.complete.push(last);
            let parity = if let Scheme::Ec(code) = &self.scheme { code.m() as u32 } else { 0 };
            leaves += f64::from(chunks + parity) * self.chunk;
        }
        last
    }

    /// Returns when chunk `at` of a part that starts to leave at `leaves` arrives.
    fn arrival(&self, leaves: f64, at: u32) -> f64 {
        leaves + f64::from(at + 1) * self.chunk + self.rtt / 2.0
    }

    /// Selective repeat of a part.
    fn repeated(
        &mut self,
        link: usize,
        message: u32,
        (leaves, chunks): (f64, u32),
        is_named: bool,
        losses: &mut impl Losses,
    ) -> f64 {
        let mut lost = std::mem::take(&mut self.lost);
        losses.first(link, message, chunks, &mut lost);
        // The last chunk that came: what is lost before it is named.
        let mut seen = i64::from(chunks) - 1;
        for lost in lost.iter().rev() {
            if i64::from(lost.chunk) < seen {
                break;
            }
            seen -= 1;
        }
        let mut complete = self.arrival(leaves, chunks - 1);
        for place in 0..lost.len() {
            let Some(mut one) = lost.get(place).copied() else { break };
            // The next chunk that came tells of it.
            let following = lost.iter().skip(place).zip(one.chunk..);
            let run = following.take_while(|(lost, at)| lost.chunk == *at).count();
            let (first, pause) = match is_named && i64::from(one.chunk) < seen {
                true => (run as f64 * self.chunk + self.reorder + self.rtt, self.rtt),
                false => (self.rto, self.rto),
            };
            let mut arrives = self.arrival(leaves, one.chunk) + first + self.chunk;
            let mut attempt = 1;
            while losses.again(link, message, &mut one, attempt) {
                arrives += pause + self.chunk;
                attempt += 1;
            }
            complete = complete.max(arrives);
        }
        self.lost = lost;
        complete
    }

    /// A part with parity, and selective repeat where that does not suffice.
    fn coded(
        &mut self,
        link: usize,
        part: u32,
        (leaves, chunks): (f64, u32),
        code: &Code,
        losses: &mut impl Losses,
    ) -> f64 {
        let (mut lost, mut parity) = (std::mem::take(&mut self.lost), std::mem::take(&mut self.lost_parity));
        let m = code.m() as u32;
        losses.first(link, 2 * part, chunks, &mut lost);
        losses.first(link, 2 * part + 1, m, &mut parity);
        let lacks = |lost: &[Lost]| {
            let has = |lost: &[Lost], at: usize| lost.iter().all(|lost| lost.chunk as usize != at);
            code.shortfall(chunks as usize, |at| has(lost, at), |at| has(&parity, at))
        };
        let complete = if lost.is_empty() {
            self.arrival(leaves, chunks - 1)
        } else if lacks(&lost) == 0 {
            self.arrival(leaves, chunks + m - 1)
        } else {
            // From the first chunk that came.
            let first = (0..chunks).find(|at| lost.iter().all(|lost| lost.chunk != *at)).unwrap_or(chunks);
            let mut asked = self.arrival(leaves, first) + f64::from(chunks + m) * self.chunk + self.slack;
            let (mut pause, mut attempt) = (self.rtt * 9.0 / 8.0, 1);
            loop {
                let sent = lost.len();
                lost.retain_mut(|lost| losses.again(link, 2 * part, lost, attempt));
                if lacks(&lost) == 0 {
                    break asked + self.rtt + sent as f64 * self.chunk;
                }
                asked += pause;
                pause = self.rtt;
                attempt += 1;
            }
        };
        (self.lost, self.lost_parity) = (lost, parity);
        complete
    }
}

/// One run. Returns the seconds until the last site had all sums.
pub(crate) fn run(hop: &mut Hop, losses: &mut impl Losses) -> f64 {
    let mut ready = [0.0; SITES];
    for step in 0..STEPS {
        let mut next = ready;
        for (link, own) in ready.iter().enumerate() {
            let to = (link + 1) % SITES;
            // The receive that the next site posted gives credit half a round trip later.
            let credit = ready.get(to).copied().unwrap_or_default() + hop.rtt / 2.0;
            let start = f64::max(*own, credit);
            if let Some(next) = next.get_mut(to) {
                *next = start + hop.time(link, step, losses);
            }
        }
        ready = next;
    }
    ready.into_iter().fold(0.0, f64::max)
}
