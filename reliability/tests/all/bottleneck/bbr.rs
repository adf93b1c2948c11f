//! BBR version 1 (draft-cardwell-iccrg-bbr-congestion-control-00), without its reaction to a
//! retransmission timeout but a restart.

use std::collections::VecDeque;

use super::{Back, Flow, Next, PACKET, Packet, SECOND};

const HIGH: f64 = 2.885;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Startup,
    Drain,
    ProbeBw,
    ProbeRtt,
}

#[derive(Clone, Copy)]
struct Out {
    number: u64,
    at: u64,
    /// The state when it was sent: bytes delivered, when the last of them was, and when that was
    /// sent.
    delivered: u64,
    delivered_at: u64,
    first_sent: u64,
    /// True if its arrival tells of the rate no more than what was sent.
    limited: bool,
}

pub struct Bbr {
    mode: Mode,
    number: u64,
    out: VecDeque<Out>,
    delivered: u64,
    delivered_at: u64,
    first_sent: u64,
    /// Most packets a nanosecond of each of the last ten rounds.
    rates: VecDeque<(u64, f64)>,
    round: u64,
    round_end: u64,
    rtprop: u64,
    rtprop_at: u64,
    full: (f64, u32),
    filled: bool,
    cycle: usize,
    cycle_at: u64,
    probe_rtt_until: Option<u64>,
    probe_rtt_round: u64,
    /// Rates up to this delivery are what ProbeRTT sends, and no less than what is known counts of
    /// them.
    limited: u64,
    next_send: u64,
    heard: u64,
    window: f64,
    saved: f64,
}

impl Bbr {
    pub fn new() -> Self {
        Self {
            mode: Mode::Startup,
            number: 0,
            out: VecDeque::new(),
            delivered: 0,
            delivered_at: 0,
            first_sent: 0,
            rates: VecDeque::new(),
            round: 0,
            round_end: 0,
            rtprop: u64::MAX,
            rtprop_at: 0,
            full: (0.0, 0),
            filled: false,
            cycle: 2,
            cycle_at: 0,
            probe_rtt_until: None,
            probe_rtt_round: 0,
            limited: 0,
            next_send: 0,
            heard: 0,
            window: 10.0,
            saved: 10.0,
        }
    }

    fn bandwidth(&self) -> f64 {
        self.rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)
    }

    fn product(&self) -> f64 {
        if self.rtprop == u64::MAX { 10.0 } else { self.bandwidth() * self.rtprop as f64 }
    }

    fn gains(&self) -> (f64, f64) {
        match self.mode {
            Mode::Startup => (HIGH, HIGH),
            Mode::Drain => (1.0 / HIGH, HIGH),
            Mode::ProbeBw => (CYCLE[self.cycle], 2.0),
            Mode::ProbeRtt => (1.0, 1.0),
        }
    }

    fn sample(&mut self, out: &Out, now: u64) {
        let ack = now - out.delivered_at;
        let send = out.at - out.first_sent;
        let rate = (self.delivered - out.delivered) as f64 / ack.max(send).max(1) as f64;
        if out.delivered >= self.round_end {
            self.round += 1;
            self.round_end = self.delivered;
            self.start_round();
        }
        if out.limited && rate < self.bandwidth() {
            return;
        }
        match self.rates.back_mut() {
            Some((round, best)) if *round == self.round => *best = best.max(rate),
            _ => self.rates.push_back((self.round, rate)),
        }
        while self.rates.front().is_some_and(|(round, _)| round + 10 <= self.round) {
            self.rates.pop_front();
        }
    }

    fn start_round(&mut self) {
        if self.filled {
            return;
        }
        let bandwidth = self.bandwidth();
        if bandwidth >= self.full.0 * 1.25 {
            self.full = (bandwidth, 0);
        } else {
            self.full.1 += 1;
            self.filled = self.full.1 >= 3;
        }
    }

    fn advance(&mut self, rtt: u64, lost: bool, now: u64) {
        let in_flight = self.out.len() as f64;
        if self.mode == Mode::Startup && self.filled {
            self.mode = Mode::Drain;
        }
        if self.mode == Mode::Drain && in_flight <= self.product() {
            (self.mode, self.cycle, self.cycle_at) = (Mode::ProbeBw, 2 + (self.number as usize % 6), now);
        }
        let expired = now > self.rtprop_at + 10 * SECOND;
        if rtt <= self.rtprop || expired {
            (self.rtprop, self.rtprop_at) = (rtt, now);
        }
        if self.mode == Mode::ProbeBw {
            let elapsed = now - self.cycle_at > self.rtprop;
            let done = match CYCLE[self.cycle] {
                1.25 => elapsed && (lost || in_flight >= 1.25 * self.product()),
                0.75 => elapsed || in_flight <= self.product(),
                _ => elapsed,
            };
            if done {
                (self.cycle, self.cycle_at) = ((self.cycle + 1) % 8, now);
            }
        }
        if expired && self.mode != Mode::ProbeRtt {
            self.saved = self.window;
            self.mode = Mode::ProbeRtt;
            self.probe_rtt_until = None;
        }
        if self.mode == Mode::ProbeRtt {
            self.limited = self.delivered + self.out.len() as u64;
            match self.probe_rtt_until {
                None if in_flight <= 4.0 => {
                    self.probe_rtt_until = Some(now + SECOND / 5);
                    self.probe_rtt_round = self.round;
                }
                Some(until) if now >= until && self.round > self.probe_rtt_round => {
                    self.rtprop_at = now;
                    self.window = self.window.max(self.saved);
                    self.mode = if self.filled { Mode::ProbeBw } else { Mode::Startup };
                    (self.cycle, self.cycle_at) = (2, now);
                }
                _ => {}
            }
        }
    }

    fn timeout(&self) -> u64 {
        self.heard + 2 * self.rtprop.min(SECOND) + SECOND / 2
    }
}

impl Flow for Bbr {
    fn next(&mut self, now: u64) -> Next {
        if !self.out.is_empty() && now >= self.timeout() {
            self.out.clear();
            self.window = 4.0;
            self.heard = now;
        }
        let window = if self.mode == Mode::ProbeRtt { 4.0 } else { self.window };
        if self.out.len() as f64 >= window {
            return Next::Wait(self.timeout());
        }
        if self.next_send <= now { Next::Send } else { Next::Wait(self.next_send) }
    }

    fn sent(&mut self, now: u64) -> u64 {
        if self.out.is_empty() {
            (self.first_sent, self.delivered_at, self.heard) = (now, now, now);
        }
        let (delivered, delivered_at, first_sent) = (self.delivered, self.delivered_at, self.first_sent);
        let limited = self.delivered <= self.limited && self.limited > 0;
        self.out.push_back(Out {
            number: self.number,
            at: now,
            delivered,
            delivered_at,
            first_sent,
            limited,
        });
        let rate = self.gains().0 * self.bandwidth();
        let gap = if rate > 0.0 { (1.0 / rate) as u64 } else { 0 };
        self.next_send = self.next_send.max(now) + gap;
        self.number += 1;
        self.number - 1
    }

    fn back(&mut self, back: Back, now: u64) {
        let Back::Ack(Packet { number, .. }) = back else { panic!("a report for TCP") };
        self.heard = now;
        let mut lost = false;
        while self.out.pop_front_if(|out| out.number < number).is_some() {
            lost = true;
        }
        let Some(out) = self.out.pop_front_if(|out| out.number == number) else { return };
        self.delivered += 1;
        self.delivered_at = now;
        self.first_sent = out.at;
        self.sample(&out, now);
        self.advance(now - out.at, lost, now);
        let target = self.gains().1 * self.product() + 3.0;
        self.window = if self.filled {
            (self.window + 1.0).min(target)
        } else if self.window < target || self.delivered < 10 {
            self.window + 1.0
        } else {
            self.window
        }
        .max(4.0);
    }

    fn state(&self) -> String {
        let mbit = self.bandwidth() * PACKET as f64 * 8.0 * 1e3;
        format!("bbr {:?} {mbit:6.1}M w{:6.0}", self.mode, self.window)
    }
}
