//! Pairing among simulated hosts: queue pairs change their partners, packets are lost, and answers
//! come as late as they may.
//!
//! UDP ports are no input of the pairings, so whatever policy chooses them at either end leads to
//! the same.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use roce::pairing::{
    Candidacy, Config, Event, FlowKey, Flows, Hosts, MOST_PATIENCE, Match, Pairings, Response, Rival, Span,
    Word,
};
use roce::wire::{Psn, Qpn};

use crate::pairing::{Y, start};

/// A target's queue pair, and the flow of its requests.
#[derive(Clone, Copy)]
struct Target {
    key: FlowKey,
    /// Its partner, an index, and which of its lives this is.
    partner: usize,
    life: u32,
    /// Answers nothing.
    dead: bool,
    first: Psn,
    /// Everything before is answered, and everything before has been sent.
    una: Psn,
    high: Psn,
    spoke: Option<Instant>,
    starts: Instant,
    is_open: bool,
    requester: Option<Qpn>,
}

/// On its way from a target: whose, in which life, to whom.
#[derive(Clone, Copy)]
struct Answer {
    at: Instant,
    target: usize,
    life: u32,
    qpn: Qpn,
    psn: Psn,
}

struct Site {
    pairings: Pairings,
    targets: Vec<Target>,
    air: Vec<Answer>,
    lives: u32,
    zero_psn: bool,
    loss: u64,
    random: u64,
}

/// PSNs of one life.
const LONG: u32 = 4;

/// The targets, while a response with this PSN is at hand.
struct Asked<'a> {
    targets: &'a [Target],
    psn: Psn,
    now: Instant,
}

impl Asked<'_> {
    fn awaits(&self, target: &Target) -> bool {
        !self.psn.is_before(target.una) && self.psn.is_before(target.high)
    }

    fn has_asked(&self, target: &Target, patience: Duration) -> bool {
        target.spoke.is_some_and(|at| self.now < at + patience)
    }
}

impl Flows for Asked<'_> {
    fn claim(&self, flow: &FlowKey, patience: Duration) -> Candidacy {
        let target = self.targets.iter().find(|target| target.key == *flow).unwrap();
        let again = self.has_asked(target, patience) && self.psn.is_before(target.high);
        if self.awaits(target) || again { Candidacy::Good } else { Candidacy::None }
    }

    fn rival(&mut self, hosts: Hosts, but: [Option<FlowKey>; 2], patience: Duration) -> Option<Rival> {
        let is_awaited = self.targets.iter().any(|target| {
            let is_other = target.key.hosts() == hosts && !but.contains(&Some(target.key));
            let is_paired = target.is_open && target.requester.is_some();
            is_other && is_paired && self.awaits(target) && self.has_asked(target, patience)
        });
        is_awaited.then_some(Rival::Here)
    }
}

fn requester(index: usize) -> Qpn {
    Qpn::new(0x1000 + u32::try_from(index).unwrap())
}

impl Site {
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    fn new(flows: usize, zero_psn: bool, loss: u64, seed: u64, now: Instant) -> Site {
        let pairings = Pairings::new(Config::default(), now);
        let (targets, air) = (Vec::new(), Vec::new());
        let mut site = Site { pairings, targets, air, lives: 3, zero_psn, loss, random: seed | 1 };
        for i in 0..flows {
            let requester = [10, 0, 0, 1 + (i % 2) as u8].into();
            let key =
                FlowKey { requester, target: Y.into(), target_qpn: Qpn::new(u32::try_from(i).unwrap()) };
            let dead = site.random(5) == 0;
            let first = site.first();
            let starts = now + Duration::from_millis(site.random(60));
            site.targets.push(Target {
                key,
                partner: i,
                life: 0,
                dead,
                first,
                una: first,
                high: first,
                spoke: None,
                starts,
                is_open: false,
                requester: None,
            });
        }
        site
    }

    fn first(&mut self) -> Psn {
        Psn::new(if self.zero_psn { 0 } else { self.random(1 << 24) as u32 })
    }

    fn step(&mut self, now: Instant) {
        for i in 0..self.targets.len() {
            self.request(i, now);
        }
        let (due, later) = std::mem::take(&mut self.air).into_iter().partition(|answer| answer.at <= now);
        self.air = later;
        for answer in due {
            self.respond(answer, now);
        }
        if self.pairings.next_timeout().is_some_and(|at| at <= now) {
            self.pairings.handle_timeout(now);
        }
        while let Some(event) = self.pairings.poll_event() {
            match event {
                // Its partner has another one.
                Event::Unpaired(key) => {
                    let target = self.targets.iter_mut().find(|target| target.key == key).unwrap();
                    target.requester = None;
                }
                Event::Turn(_) | Event::Repeat(_) | Event::InVain(_) => {}
                other => panic!("{other:?}"),
            }
        }
        if self.random(400) == 0 {
            self.mingle(now);
        }
    }

    /// Sends what is outstanding, and what is next, if it may.
    fn request(&mut self, i: usize, now: Instant) {
        let target = self.targets[i];
        let is_due = target.spoke.is_none_or(|at| now >= at + Duration::from_millis(7));
        let end = target.first + LONG;
        if now < target.starts || !is_due || target.una == end {
            return;
        }
        if !target.is_open {
            let known = self.pairings.open(target.key, now).unwrap();
            assert_eq!(known, None);
            self.targets[i].is_open = true;
        }
        let left = end.distance(target.una).unsigned_abs();
        let count = 1 + self.random(u64::from(left)) as u32;
        if !self.pairings.may_send(&target.key, &Span::of(target.una, count), now) {
            return;
        }
        let high = target.una + count;
        let high = if high.is_after(target.high) { high } else { target.high };
        (self.targets[i].spoke, self.targets[i].high) = (Some(now), high);
        // As late as twice the slowest before it, less a step, and not in order. What was asked
        // earlier may come later.
        let at_rest = now + MOST_PATIENCE;
        let patience = self.pairings.patience(target.key.hosts(), at_rest).as_micros() as u64 - 1000;
        for ahead in 0..count {
            let is_heard = !target.dead && self.random(100) >= self.loss;
            let at = now + Duration::from_micros(self.random(patience));
            let (qpn, psn) = (requester(target.partner), target.una + ahead);
            if is_heard {
                self.air.push(Answer { at, target: i, life: target.life, qpn, psn });
            }
        }
    }

    fn respond(&mut self, answer: Answer, now: Instant) {
        let target = self.targets[answer.target];
        let hosts = Hosts { requester: target.key.requester, target: target.key.target };
        let response = Response { hosts, requester_qpn: answer.qpn, psn: answer.psn, word: Word::Ack };
        let mut flows = Asked { targets: &self.targets, psn: answer.psn, now };
        let found = match self.pairings.handle_response(&response, &mut flows, now) {
            Match::Paired(key) => {
                assert_eq!(key, target.key, "the answer to another flow");
                assert_eq!(answer.life, target.life, "the answer to an earlier life");
                self.targets[answer.target].requester = Some(answer.qpn);
                key
            }
            Match::Known(key) => key,
            // It asks again in its time.
            Match::Again(_) | Match::Hint(_) | Match::Ambiguous | Match::Unknown => return,
        };
        let heard = self.targets.iter_mut().find(|target| target.key == found).unwrap();
        assert_eq!(heard.requester, Some(answer.qpn), "told to another requester");
        let reaches = answer.psn.next();
        if reaches.is_after(heard.una) && !reaches.is_after(heard.high) {
            // Elsewhere it says nothing, whoever it is from.
            if found == target.key {
                assert_eq!(answer.life, target.life, "the answer to an earlier life");
            }
            heard.una = reaches;
        }
    }

    /// Two queue pairs of one host change partners, with what is on the way.
    fn mingle(&mut self, now: Instant) {
        let one = self.random(self.targets.len() as u64) as usize;
        let other = self.random(self.targets.len() as u64) as usize;
        if self.lives == 0 || self.targets[one].key.requester != self.targets[other].key.requester {
            return;
        }
        self.lives -= 1;
        let partners = [self.targets[one].partner, self.targets[other].partner];
        for (i, partner) in [(one, partners[1]), (other, partners[0])] {
            let first = self.first();
            let target = self.targets[i];
            if target.is_open {
                let asked = Span::of(target.first, LONG);
                self.pairings.forget(&target.key, target.spoke.map(|at| (asked, at)), now);
            }
            self.targets[i] = Target {
                partner,
                life: target.life + 1,
                first,
                una: first,
                high: first,
                is_open: false,
                requester: None,
                spoke: None,
                ..target
            };
        }
    }

    fn is_done(&self) -> bool {
        let answered = |target: &Target| target.dead || target.una == target.first + LONG;
        self.lives == 0 && self.targets.iter().all(answered) && self.air.is_empty()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever befalls them, no response is taken for another flow's, or for that of an earlier
    /// life, and every flow whose target lives is answered in the end.
    #[test]
    fn every_flow_is_paired_rightly(
        flows in 1..14usize,
        zero_psn in any::<bool>(),
        loss in prop_oneof![Just(0u64), Just(5), Just(30)],
        seed in any::<u64>(),
    ) {
        let mut now = start();
        let mut site = Site::new(flows, zero_psn, loss, seed, now);
        let until = now + Duration::from_secs(120);
        while !site.is_done() {
            now += Duration::from_millis(1);
            prop_assert!(now < until, "{} flows still wait", site.pairings.waiting());
            site.step(now);
        }
    }
}
