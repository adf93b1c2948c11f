//! Scenarios in which sessions are lost and go on, again and again.

use std::time::Duration;

use config::{Policy, Survive};
use linksim::impair::LinkSpec;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::draw::Dice;
use super::scenario::{Connection, Fault, LONGEST_UPGRADE, Op, Scenario};

impl Scenario {
    /// The scenario of a seed, with the link cut and the session replaced at random moments of it.
    /// In five of six, each loss is over within `resume_for`. Where nothing else goes wrong, every
    /// operation must succeed then.
    #[must_use]
    pub fn draw_with_outages(seed: u64) -> Self {
        let mut scenario = Self::draw(seed);
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x0e50_3e05));
        let count = dice.pick(&[1, 1, 2, 3, 5]);
        // Before `target_dead` in all of them, as in the defaults: a target may wait for what only
        // the requester can bring.
        scenario.dead_after = Duration::from_millis(dice.pick(&[300, 600, 1000]));
        let longest = dice.pick(&[1, 5, 5, 20, 100]);
        scenario.resume_for = scenario.outage() + scenario.dead_after * count + Duration::from_secs(longest);
        let latest = dice.pick(&[20.0, 200.0, 200.0, 2000.0]);
        // Most of the time there is a session by then.
        let begin = (scenario.wan[0].delay + scenario.wan[1].delay) * 3 + Duration::from_millis(200);
        for _ in 0..count {
            let at = begin + dice.millis(latest);
            let outage = match dice.range(0, 3) {
                0 => Fault::Reconnect,
                _ => {
                    let time = dice.millis(1e3 * longest as f64 / f64::from(count));
                    Fault::Partition(scenario.dead_after + time)
                }
            };
            scenario.faults.push((at, outage));
        }
        if dice.chance(1.0 / 6.0) {
            let beyond = scenario.dead_after + scenario.resume_for + Duration::from_secs(5);
            scenario.faults.push((begin + dice.millis(latest), Fault::Partition(beyond)));
        }
        let outage = scenario.outage();
        scenario.patience += outage * 2 + scenario.resume_for;
        scenario
    }

    /// The scenario of a seed, with gateways that other processes take the place of: of either site
    /// or of both, one after the other or at once, also while the session is lost or about to go
    /// on. Half of the seeds have outages as well, a quarter changes its policies.
    #[must_use]
    pub fn draw_with_upgrades(seed: u64) -> Self {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x0009_7ade));
        let mut scenario = match dice.range(0, 3) {
            0 | 1 => Self::draw_with_outages(seed),
            2 => Self::draw(seed),
            _ => Self::draw_with_reloads(seed),
        };
        let count = dice.pick(&[1, 2, 2, 5, 20]);
        scenario.resume_for = scenario.resume_for.max(Duration::from_secs(5)) + Duration::from_secs(count);
        let latest = dice.pick(&[20.0, 200.0, 200.0, 2000.0]);
        let begin = (scenario.wan[0].delay + scenario.wan[1].delay) * 2;
        let mut at = begin;
        for _ in 0..count {
            let down = LONGEST_UPGRADE.mul_f64(dice.spread(1e-4, 0.9));
            // In a row, or anywhere.
            let pause = if dice.chance(0.5) { dice.millis(300.0) } else { dice.millis(latest) };
            at = if dice.chance(0.7) { at + down + pause } else { begin + pause };
            let site = dice.range(0, 1);
            scenario.faults.push((at, Fault::Upgrade { site, down }));
            if dice.chance(0.2) {
                scenario.faults.push((at + down.mul_f64(0.5), Fault::Upgrade { site: 1 - site, down }));
            }
        }
        scenario.patience += scenario.resume_for + Duration::from_secs(2 * count);
        scenario
    }

    /// The scenario of a seed, with gateways that stand still, for longer than targets may be
    /// silent in some. Half of the seeds have outages as well. Where nothing else goes wrong, every
    /// operation must succeed.
    #[must_use]
    pub fn draw_with_pauses(seed: u64) -> Self {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x0009_a05e));
        let mut scenario = if dice.chance(0.5) { Self::draw_with_outages(seed) } else { Self::draw(seed) };
        scenario.dead_after = Duration::from_millis(dice.pick(&[300, 600, 1000]));
        let latest = dice.pick(&[20.0, 200.0, 200.0, 2000.0]);
        let count = dice.pick(&[1, 1, 2, 4]);
        let begin = (scenario.wan[0].delay + scenario.wan[1].delay) * 3 + Duration::from_millis(200);
        for _ in 0..count {
            let time = scenario.settings.target_dead.mul_f64(dice.spread(0.1, 3.0));
            let site = dice.range(0, 1);
            scenario.faults.push((begin + dice.millis(latest), Fault::Pause { site, time }));
        }
        let outage = scenario.outage();
        scenario.resume_for =
            scenario.resume_for.max(outage + scenario.dead_after * (count + 2) + Duration::from_secs(5));
        scenario.patience += outage * 2 + scenario.resume_for;
        scenario
    }

    /// The scenario of a seed, with gateways that die and come back with nothing: of either site or
    /// of both, one after the other or at once. In half of the seeds every message fits a packet,
    /// so that requesters have all that their targets have not, and nothing else goes wrong. Of the
    /// rest, one build in ten knows of no flow that outlives a process.
    #[must_use]
    pub fn draw_with_crashes(seed: u64) -> Self {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x000c_4a54));
        let calm = dice.chance(0.5);
        let mut scenario = match dice.range(0, 5) {
            _ if calm => Self::draw(seed),
            0 => Self::draw_with_outages(seed),
            1 => Self::draw_with_upgrades(seed),
            2 => Self::draw_with_reloads(seed),
            _ => Self::draw(seed),
        };
        if calm {
            scenario.fit_packets();
        }
        let count = dice.pick(&[1, 1, 2, 3, 8]);
        let latest = dice.pick(&[20.0, 200.0, 200.0, 2000.0]);
        let away = scenario.crash(&mut dice, count, latest);
        scenario.resume_for = scenario.resume_for.max(Duration::from_secs(5)) + away;
        scenario.survives &= calm || !dice.chance(0.1);
        scenario.patience += scenario.resume_for + away + Duration::from_secs(5 * count);
        scenario
    }

    /// Has gateways die so often. Returns how long they are away in all.
    fn crash(&mut self, dice: &mut Dice, count: u64, latest: f64) -> Duration {
        let begin = (self.wan[0].delay + self.wan[1].delay) * 2;
        let mut at = begin;
        let mut away = Duration::ZERO;
        for _ in 0..count {
            let (down, noticed) = (dice.millis(100.0), dice.millis(100.0));
            let pause = if dice.chance(0.5) { dice.millis(300.0) } else { dice.millis(latest) };
            at = if dice.chance(0.7) { at + down + noticed + pause } else { begin + pause };
            let site = dice.range(0, 1);
            self.faults.push((at, Fault::Crash { site, down, noticed }));
            if dice.chance(0.2) {
                self.faults.push((at + down.mul_f64(0.5), Fault::Crash { site: 1 - site, down, noticed }));
            }
            away += (down + noticed) * 2;
        }
        away
    }

    /// The scenario of a seed, with gateways that die and come back with what they retained, in
    /// room for all or for little, or with classes that need none of it. In three of four nothing
    /// else goes wrong: LANs lose nothing, and receives are there. A NIC that was not ready, or
    /// whose only NAK of a gap was lost, says nothing more of what it expects.
    #[must_use]
    pub fn draw_with_retention(seed: u64) -> Self {
        let mut scenario = Self::draw_with_crashes(seed);
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x0004_e7a1));
        scenario.retained = dice.pick(&[0, 64 << 10, 1 << 20, 1 << 20, 16 << 20, 16 << 20]);
        if dice.chance(0.75) {
            let drawn = Self::draw(seed);
            scenario.faults.clear();
            // Long enough for parts of messages to be under way.
            let delay = dice.millis(40.0);
            scenario.wan.iter_mut().for_each(|link| link.delay = link.delay.max(delay));
            let count = dice.pick(&[1, 4, 16]);
            let away = scenario.crash(&mut dice, count, 200.0);
            scenario.resume_for = Duration::from_secs(5) + away;
            scenario.patience += away + Duration::from_secs(5 * count);
            (scenario.connections, scenario.reloads) = (drawn.connections, Vec::new());
            scenario.settings.policy = drawn.settings.policy;
            scenario.survives = drawn.survives;
            scenario.fit_first_messages();
        }
        if scenario.retained == 0 || dice.chance(0.1) {
            let mut policy = Policy::clone(&scenario.settings.policy);
            policy.survive(Survive::Gateway);
            scenario.settings.policy = policy.into();
        }
        scenario
    }

    /// Leaves out what fails without a crash, has every connection's first message fit a packet,
    /// and every target say what it expects.
    fn fit_first_messages(&mut self) {
        self.lan = LinkSpec { delay: self.lan.delay, rate: self.lan.rate, ..LinkSpec::default() };
        for connection in &mut self.connections {
            connection.fit(|index| index == 0);
            let works = connection.lives.iter_mut().flat_map(|life| &mut life.work);
            works.for_each(|work| (work.receives_after, work.receives_every) = Default::default());
        }
    }

    /// Cuts every message that is sent to one packet, and leaves out what fails without a crash.
    fn fit_packets(&mut self) {
        self.faults.retain(|(_, fault)| matches!(fault, Fault::Tune { .. }));
        for connection in &mut self.connections {
            connection.fit(|_| true);
        }
    }
}

impl Connection {
    /// Leaves out what fails without a crash, and has some of its messages fit a packet, by their
    /// index.
    fn fit(&mut self, is_short: impl Fn(usize) -> bool) {
        self.lives.truncate(1);
        self.qp.forgets_addresses = false;
        (self.qp.retry_cnt, self.qp.rnr_retry) = (7, 7);
        let most = self.qp.mtu.bytes();
        let works = self.lives.iter_mut().flat_map(|life| &mut life.work);
        for (index, op) in works.flat_map(|work| work.ops.iter_mut().enumerate()) {
            if let Op::BadKey(len) = *op {
                *op = Op::Write(len, None);
            }
            if let Op::Send(len, _) | Op::SendInvalidate(len) | Op::Write(len, _) = op
                && is_short(index)
            {
                *len = (*len).min(most);
            }
        }
    }
}
