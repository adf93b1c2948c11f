//! TCP CUBIC (RFC 9438) with HyStart++ (RFC 9406, its delay criterion), selective acknowledgements
//! and one decrease in a round trip.

use std::collections::VecDeque;

use super::{Back, Flow, Next, Packet, SECOND};

const C: f64 = 0.4;
const BETA: f64 = 0.7;
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

pub struct Cubic {
    window: f64,
    threshold: f64,
    most: f64,
    epoch: Option<(u64, f64)>,
    reno: f64,
    number: u64,
    out: VecDeque<(u64, u64)>,
    /// Losses of packets below belong to the decrease that was made.
    recovery: u64,
    base: u64,
    smoothed: f64,
    heard: u64,
    /// HyStart: the round's end, its least round-trip time, the last round's.
    round: (u64, u64, u64),
}

impl Cubic {
    pub fn new() -> Self {
        Self {
            window: 10.0,
            threshold: f64::INFINITY,
            most: 0.0,
            epoch: None,
            reno: 0.0,
            number: 0,
            out: VecDeque::new(),
            recovery: 0,
            base: u64::MAX,
            smoothed: 0.0,
            heard: 0,
            round: (0, u64::MAX, u64::MAX),
        }
    }

    fn timeout(&self) -> u64 {
        self.heard + (2.0 * self.smoothed) as u64 + SECOND / 4
    }

    fn decrease(&mut self) {
        self.most = if self.window < self.most { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.window = (self.window * BETA).max(2.0);
        self.threshold = self.window;
        self.epoch = None;
        self.recovery = self.number;
    }

    fn slow_start(&mut self, number: u64, rtt: u64) {
        self.window += 1.0;
        self.round.1 = self.round.1.min(rtt);
        let (end, least, last) = self.round;
        let bound = (last / 8).clamp(4_000_000, 16_000_000);
        if last != u64::MAX && least > last + bound {
            self.threshold = self.window;
        }
        if number >= end {
            self.round = (self.number, u64::MAX, least);
        }
    }

    fn avoid(&mut self, now: u64) {
        if self.epoch.is_none() {
            self.most = self.most.max(self.window);
            self.epoch = Some((now, ((self.most - self.window) / C).cbrt()));
            self.reno = self.window;
        }
        let (began, back) = self.epoch.unwrap();
        let time = (now - began) as f64 / 1e9 + self.smoothed / 1e9;
        let target = (C * (time - back).powi(3) + self.most).clamp(self.window, 1.5 * self.window);
        self.reno += if self.reno < self.most { ALPHA } else { 1.0 } / self.window;
        if self.reno > target {
            self.window = self.window.max(self.reno);
        } else {
            self.window += (target - self.window) / self.window;
        }
    }
}

impl Flow for Cubic {
    fn next(&mut self, now: u64) -> Next {
        if !self.out.is_empty() && now >= self.timeout() {
            self.decrease();
            self.window = 1.0;
            self.out.clear();
            self.heard = now;
        }
        if (self.out.len() as f64) < self.window.floor() { Next::Send } else { Next::Wait(self.timeout()) }
    }

    fn sent(&mut self, now: u64) -> u64 {
        if self.out.is_empty() {
            self.heard = now;
        }
        self.out.push_back((self.number, now));
        self.number += 1;
        self.number - 1
    }

    fn back(&mut self, back: Back, now: u64) {
        let Back::Ack(Packet { number, .. }) = back else { panic!("a report for TCP") };
        self.heard = now;
        let mut lost = false;
        while let Some((first, _)) = self.out.front().copied()
            && first < number
        {
            lost |= first >= self.recovery;
            self.out.pop_front();
        }
        if lost {
            self.decrease();
        }
        let Some((_, sent)) = self.out.pop_front_if(|(first, _)| *first == number) else { return };
        let rtt = now - sent;
        self.base = self.base.min(rtt);
        self.smoothed =
            if self.smoothed == 0.0 { rtt as f64 } else { self.smoothed * 0.875 + rtt as f64 / 8.0 };
        if number < self.recovery {
            return;
        }
        if self.window < self.threshold { self.slow_start(number, rtt) } else { self.avoid(now) }
    }

    fn state(&self) -> String {
        format!("cubic {:6.0}", self.window)
    }
}
