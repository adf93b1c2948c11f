//! Queue pairs that are used again with other partners.

use std::time::Duration;

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use roce::wire::Psn;

use super::draw::Dice;
use super::scenario::{Connection, Fault, Life, Scenario};

impl Scenario {
    /// The scenario of a seed, in which each life joins one of several queue pairs of one end to
    /// one of several of the other, several at a time: numbers come back with other partners, and
    /// at the same PSNs in half of the seeds. All else is as [`Scenario::draw`] has it.
    #[must_use]
    pub fn draw_with_partners(seed: u64) -> Self {
        let mut scenario = Self::draw(seed);
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x09a7_77e2));
        scenario.mingle(&mut dice);
        // Not close below 2^24, where two partners of a queue pair may have the same port with it:
        // nothing would tell them apart.
        scenario.first_qpn = dice.pick(&[2, 17, 0x1234]);
        scenario.shorten();
        let same = dice.chance(0.5);
        let mut psn = [dice.psn(), dice.psn()];
        let rtt = scenario.wan.iter().map(|link| link.delay).sum::<Duration>();
        for life in scenario.connections.iter_mut().flat_map(|connection| &mut connection.lives) {
            // Two programs agree on a connection across the link.
            let most = dice.pick(&[160.0, 8000.0]);
            life.pause = rtt + dice.millis(most);
            if !same {
                psn = psn.map(|psn| psn + (1 << 18) + dice.range(0, 1 << 17) as u32);
            }
            life.psn = psn;
        }
        scenario
    }

    /// Takes out what makes a world of many lives too long: READs all of whose packets overtake
    /// each other, and peers of a host that is gone for good, whose patience ends.
    fn shorten(&mut self) {
        self.lan.jitter = Duration::ZERO;
        for (_, fault) in &mut self.faults {
            if let Fault::Silence { time: time @ None, .. } = fault {
                *time = Some(Duration::from_secs(4));
            }
        }
    }

    /// Two connections at least, which share their queue pairs where they have a host in common,
    /// and live two to four times.
    fn mingle(&mut self, dice: &mut Dice) {
        let alone = dice.chance(0.5);
        let drawn = std::mem::take(&mut self.connections);
        // What was drawn for a longer MTU would be too many packets for a shorter one.
        let Some(qp) = drawn.iter().map(|connection| connection.qp).max_by_key(|qp| qp.mtu.bytes()) else {
            return;
        };
        let count = dice.range(2, MOST_CONNECTIONS as usize);
        self.connections = drawn.into_iter().cycle().take(count).collect();
        if alone {
            self.connections.iter_mut().for_each(|connection| connection.hosts = [0, 0]);
        }
        let hosts: Vec<_> = self.connections.iter().map(|connection| connection.hosts).collect();
        for (number, Connection { lives, qp: own, .. }) in self.connections.iter_mut().enumerate() {
            *own = qp;
            let count = dice.range(2, 4);
            *lives = lives.iter().cycle().take(count).cloned().collect();
            for Life { queue_pairs, work, .. } in lives {
                *queue_pairs = [0, 1].map(|site| {
                    let of = |hosts: &[usize; 2]| hosts.get(site).copied();
                    let here = hosts.get(number).and_then(of);
                    let same: Vec<_> =
                        (0..hosts.len()).filter(|other| hosts.get(*other).and_then(of) == here).collect();
                    Some(dice.pick(&same))
                });
                work.iter_mut().for_each(|work| work.ops.truncate(MOST_OPS));
            }
        }
    }
}

const MOST_CONNECTIONS: u32 = 5;

/// Most operations of each end in each life, so that there is time for many lives.
const MOST_OPS: usize = 20;

impl Dice {
    fn psn(&mut self) -> Psn {
        if self.chance(0.3) { Psn::new(0) } else { Psn::new(self.range(0, 0xff_ffff) as u32) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use roce::pairing::source_port;
    use roce::wire::Qpn;

    use super::*;

    /// Returns the partners in all connections of a world, each queue pair by its host's place and
    /// its own number.
    fn partners(scenario: &Scenario) -> BTreeMap<(usize, usize), Vec<usize>> {
        let mut partners = BTreeMap::<_, Vec<_>>::new();
        for life in scenario.connections.iter().flat_map(|connection| &connection.lives) {
            let [one, other] = life.queue_pairs.map(Option::unwrap);
            for (site, own, partner) in [(0, one, other), (1, other, one)] {
                let known = partners.entry((site, own)).or_default();
                if !known.contains(&partner) {
                    known.push(partner);
                }
            }
        }
        partners
    }

    #[test]
    fn queue_pairs_have_several_partners_and_a_port_with_each() {
        let (mut several, mut all) = (0, 0);
        for scenario in (0..200).map(Scenario::draw_with_partners) {
            for partners in partners(&scenario).values() {
                several += usize::from(partners.len() > 1);
                all += 1;
            }
        }
        assert!(several * 2 > all, "{several} of {all}");
        for first in [2, 17, 0x1234] {
            for own in first..first + MOST_CONNECTIONS {
                let port = |partner| source_port(Qpn::new(own), Qpn::new(partner));
                let ports: std::collections::BTreeSet<_> =
                    (first..first + MOST_CONNECTIONS).map(port).collect();
                assert_eq!(ports.len(), MOST_CONNECTIONS as usize, "{own}");
            }
        }
    }
}
