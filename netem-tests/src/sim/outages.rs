//! Scenarios in which sessions are lost and go on, again and again.

use std::time::Duration;

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::draw::Dice;
use super::scenario::{Fault, Scenario};

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
}
