//! Policies of many classes, and changes of them on the way.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use config::Policy;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use reliability::stream::Scheme;
use splice::Tuning;

use super::draw::{Dice, HYBRIDS, REFUSALS, SCHEMES};
use super::scenario::{Fault, Scenario};

/// Few, so that classes of the same name come and go.
const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

const FLUSHES: [&str; 4] = ["", "flush = \"200 us\"\n", "flush = \"5 ms\"\n", "flush = \"50 ms\"\n"];

const AUTOS: [&str; 3] = [
    "scheme = \"auto\"",
    "scheme = \"auto\"\nmax_overhead = 0.1",
    "scheme = \"auto\"\nallowed = [\"sr\", \"xor\"]",
];

/// The schemes that may be chosen for a class.
const CHOICES: [Scheme; 4] = [
    Scheme::Sr { alpha: 1.0 },
    Scheme::Mds { k: 16, m: 4, depth: 1 },
    Scheme::Xor { k: 8, m: 2, depth: 2 },
    Scheme::Hybrid { k: 32, m: 8, depth: 1 },
];

impl Scenario {
    /// The scenario of a seed, with policies of several classes that change at random times, at
    /// each site for itself, and schemes that are chosen for them. All else is as
    /// [`Scenario::draw`] has it.
    #[must_use]
    pub fn draw_with_reloads(seed: u64) -> Self {
        let mut scenario = Self::draw(seed);
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x07e1_0ad5));
        scenario.settings.policy = dice.policy().into();
        let latest = dice.pick(&[20.0, 200.0, 2000.0, 20_000.0]);
        let count = dice.pick(&[1, 2, 4, 8, 30]);
        scenario.reloads =
            (0..count).map(|_| (dice.millis(latest), dice.range(0, 1), dice.policy())).collect();
        // Several at once, as an impatient operator does.
        if dice.chance(0.2) {
            let (at, site) = (dice.millis(latest), dice.range(0, 1));
            let burst = (0..4).map(|step| (at + Duration::from_micros(step * 300), site, dice.policy()));
            scenario.reloads.extend(burst.collect::<Vec<_>>());
        }
        let count = dice.pick(&[0, 0, 5, 30]);
        let tunes: Vec<_> = (0..count).map(|_| (dice.millis(latest), dice.tune())).collect();
        scenario.faults.extend(tunes);
        scenario
    }
}

impl Dice {
    fn tune(&mut self) -> Fault {
        let [prompt, bulk] = [(); 2].map(|()| self.pick(&CHOICES));
        let tuning =
            Tuning { prompt, bulk, drop: self.pick(&[f64::NAN, 1e-4, 0.02]), burst: self.pick(&[1.0, 4.0]) };
        Fault::Tune { site: self.range(0, 1), tuning }
    }

    fn policy(&mut self) -> Policy {
        let mut text = String::new();
        let mut names: Vec<&str> = NAMES.into_iter().filter(|_| self.chance(0.4)).collect();
        let turn = self.range(0, names.len());
        names.rotate_left(turn);
        for name in names {
            let matches = self.matches();
            self.class(&mut text, name, &matches);
        }
        // The last one's name changes as well.
        let name = self.pick(&["default", "default", "rest"]);
        self.class(&mut text, name, "");
        let parsed = Policy::parse(Path::new("policy.toml"), &text);
        #[expect(clippy::panic, reason = "a mistake in what stands above")]
        parsed.unwrap_or_else(|invalid| panic!("{invalid}\n{text}"))
    }

    fn class(&mut self, text: &mut String, name: &str, matches: &str) {
        let scheme = match self.range(0, 9) {
            0 => self.pick(&AUTOS),
            1 => self.pick(HYBRIDS),
            _ => self.pick(SCHEMES),
        };
        let has_flush = scheme.contains("k = ") && !scheme.contains("flush");
        let flush = if has_flush { self.pick(&FLUSHES) } else { "" };
        let priority = self.pick(&[0, 0, 0, 1, 3, 7]);
        let completion = self.pick(&["remote", "remote", "remote", "local"]);
        // Not by dice, so that the rest of a seed stays what it was.
        let refuse = REFUSALS.get(text.len() % REFUSALS.len()).copied().unwrap_or_default();
        // Writing to a String never fails.
        let _ = writeln!(
            text,
            "[[class]]\nname = \"{name}\"\n{matches}{scheme}\n{flush}priority = {priority}\ncompletion = \"{completion}\"\n{refuse}"
        );
    }

    /// Conditions that hold for some of what there is: one or two of each kind.
    fn matches(&mut self) -> String {
        let size = self.pick(&["64 B", "256 B", "1000 B", "4 KiB", "64 KiB"]);
        let all = [
            format!("size = {{ at_most = \"{size}\" }}"),
            format!("size = {{ at_least = \"{size}\" }}"),
            format!("size = {{ at_least = \"100 B\", at_most = \"{}\" }}", self.pick(&["1 KiB", "16 KiB"])),
            format!("qp = [{}]", self.pick(&["2", "17, 19", "\"0x1234-0x1236\"", "\"0-0xff\", 0xfffff1"])),
            format!("src = [\"{}\"]", self.pick(&["10.0.0.0/24", "10.0.1.1/32", "fd00::/64"])),
            format!("dst = [\"{}\"]", self.pick(&["10.0.0.2/32", "10.0.1.0/24", "fd00:0:0:1::/64"])),
            "dscp = [0, 8]".to_owned(),
        ];
        let first = self.range(0, all.len() - 1);
        let second = self.range(0, all.len() - 1);
        let key = |index: usize| all.get(index).and_then(|text| text.split_once(' ')).map(|(key, _)| key);
        let mut chosen = vec![first];
        if self.chance(0.4) && key(first) != key(second) {
            chosen.push(second);
        }
        let chosen: Vec<&str> =
            chosen.iter().filter_map(|index| all.get(*index)).map(String::as_str).collect();
        format!("match = {{ {} }}\n", chosen.join(", "))
    }
}
