//! A Longhaul session: controller and pacer here, the real observer there.

use std::time::{Duration, Instant};

use reliability::congestion::{Config, Controller, State};
use reliability::estimator::{
    Activity, Arrival, Ecn, LaneId, ObserverConfig, PATH_PACKET, PathObserver, PathReport,
};
use reliability::pacing::Pacer;

use super::{Back, Flow, Next, PACKET, Packet};
use crate::world::origin;

pub struct Adaptive {
    origin: Instant,
    controller: Controller,
    pacer: Pacer,
    rate: u64,
    number: u64,
    observer: PathObserver,
    ecn: bool,
    pub shown: std::rc::Rc<std::cell::RefCell<Option<State>>>,
}

impl Adaptive {
    /// With this ceiling in bit/s; `hint` is the round-trip time assumed.
    pub fn new(ceiling: f64, hint: Duration, ecn: bool) -> Self {
        let origin = origin();
        let controller = Controller::new(Config { ceiling: ceiling as u64, rtt: hint }, origin);
        let rate = controller.rate();
        Self {
            origin,
            // As the senders of a gateway set it up.
            pacer: Pacer::with_burst_time(rate, Duration::from_micros(500), 0, origin),
            rate,
            controller,
            number: 0,
            observer: PathObserver::new(ObserverConfig::new(hint), origin),
            ecn,
            shown: std::rc::Rc::default(),
        }
    }

    fn at(&self, now: u64) -> Instant {
        self.origin + Duration::from_nanos(now)
    }

    fn since(&self, at: Instant) -> u64 {
        (at - self.origin).as_nanos() as u64
    }

    fn report(&mut self, now: u64) -> Option<Back> {
        let mut out = [0; PATH_PACKET];
        let now = self.at(now);
        self.observer.poll_report(now, &mut out).map(|len| Back::Report(out[..len].into()))
    }
}

impl Flow for Adaptive {
    fn next(&mut self, now: u64) -> Next {
        let at = self.at(now);
        if self.controller.next_timeout().is_some_and(|due| due <= at) {
            self.controller.handle_timeout(at);
        }
        let rate = self.controller.rate();
        if rate != self.rate {
            self.rate = rate;
            self.pacer.set_rate(rate);
        }
        let timeout = self.controller.next_timeout().map_or(u64::MAX, |due| self.since(due));
        if !self.controller.may_send() {
            return Next::Wait(timeout);
        }
        if self.pacer.ready(at) {
            Next::Send
        } else {
            Next::Wait(self.since(self.pacer.next_ready()).min(timeout))
        }
    }

    fn sent(&mut self, now: u64) -> u64 {
        let at = self.at(now);
        self.pacer.consume(PACKET, at);
        self.controller.sent(PACKET, true, at);
        self.number += 1;
        self.number - 1
    }

    fn arrived(&mut self, packet: Packet, now: u64) -> Option<Back> {
        let ecn = match (self.ecn, packet.ce) {
            (false, _) => Ecn::NotEct,
            (true, false) => Ecn::Ect,
            (true, true) => Ecn::Ce,
        };
        let at = self.at(now);
        self.observer.observe(
            &Arrival { lane: LaneId(0), number: packet.number, bytes: PACKET, ecn },
            Activity::Traffic,
            at,
        );
        self.report(now)
    }

    fn receiver_due(&self) -> Option<u64> {
        self.observer.next_timeout().map(|due| self.since(due))
    }

    fn receiver_timer(&mut self, now: u64) -> Option<Back> {
        self.report(now)
    }

    fn back(&mut self, back: Back, now: u64) {
        let Back::Report(bytes) = back else { panic!("an ACK for a session") };
        let report = PathReport::parse(&bytes).unwrap();
        let at = self.at(now);
        self.controller.handle_report(&report, at).unwrap();
        // What goes back with the sender's own reports, here without delay.
        let state = self.controller.state();
        self.observer.set_rtt(state.base);
        self.observer.set_wanted(self.controller.interval().as_micros() as u32);
        *self.shown.borrow_mut() = Some(state);
    }

    fn state(&self) -> String {
        let s = self.controller.state();
        format!(
            "{:?} {:6.1}M w{:6} f{:6} q{:6.2} b{:6.2} d{:6.1}M",
            s.mode,
            s.rate as f64 / 1e6,
            s.window / 1500,
            s.in_flight / 1500,
            s.queueing.as_secs_f64() * 1e3,
            s.base.as_secs_f64() * 1e3,
            s.delivered as f64 / 1e6
        )
    }
}
