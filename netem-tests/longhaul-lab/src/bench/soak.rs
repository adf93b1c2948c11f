//! Hours of changing load: does a gateway keep anything of what has passed?

mod load;
mod verdict;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gateway::admin::Status;
use gateway::requests::Answer;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use testbed::{Plan, Site, Testbed};

use super::process::{open_files, resident};
use super::{BenchError, clean_pair};
use load::{Load, Transfer};
use verdict::{Sample, Verdict};

/// `longhaul-lab bench soak`: rounds of changing load through a pair of gateways, each of which
/// ends with empty gateways.
///
/// Every round has the same steps, random in their details: flows opened and closed in their
/// hundreds, of all operations and both directions; a link that loses, reorders and repeats
/// packets; other policies; the peer stopped or killed and started again. Gateway A lives through
/// all of it.
#[derive(Debug, Clone)]
pub struct Soak {
    /// The `longhaul` program, started as a gateway again and again.
    pub program: PathBuf,
    /// Rounds are begun for so long, and eight at least are run.
    pub seconds: f64,
    /// Seed of everything random.
    pub seed: u64,
}

/// Two to warm up, in which each policy has its turn, and three to compare with three.
const LEAST_ROUNDS: usize = 8;
/// Every so many rounds the peer falls silent, instead of saying that it stops: of such flows a
/// gateway keeps something for half a minute.
const SILENT: usize = 10;
/// Each policy removes, adds, renames or divides classes of the one before.
const POLICIES: [&str; 4] = [
    "[[class]]\nname = \"default\"\nscheme = \"sr\"\n",
    "[[class]]\nname = \"small\"\nmatch = { size = { at_most = \"4 KiB\" } }\nscheme = \"mds\"\nk = 4\nm = 2\npriority = 5\n\
     [[class]]\nname = \"default\"\nscheme = \"hybrid\"\nk = 16\nm = 4\n",
    "[[class]]\nname = \"rest\"\nscheme = \"mds\"\nk = 8\nm = 3\n",
    "[[class]]\nname = \"small\"\nmatch = { size = { at_most = \"4 KiB\" } }\nscheme = \"xor\"\nk = 4\nm = 2\n\
     [[class]]\nname = \"rest\"\nscheme = \"auto\"\n",
];
/// Nothing here takes nearly as long, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(50);
/// How long a load runs before something changes under it.
const STEP: Duration = Duration::from_millis(500);
/// As `peer.dead_after`.
const DEAD_AFTER: Duration = Duration::from_secs(1);
/// A policy is refused while as many classes as there may be still drain.
const STILL_IN_USE: &str = "still in use";

impl Soak {
    /// Runs the rounds, writes a line for each, and what follows from all.
    ///
    /// # Errors
    /// A gateway has kept something, ended, or troubled programs that nothing was done to. See
    /// [`BenchError`].
    pub fn run(&self, out: &mut dyn Write, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        let Self { seconds, seed, .. } = self;
        writeln!(
            out,
            "seed {seed}: `longhaul-lab bench soak --seconds {seconds} --seed {seed}` does the same again\n"
        )?;
        let mut round = Round::start(self, interrupted)?;
        let end = Instant::now() + Duration::from_secs_f64(*seconds);
        let mut samples = Vec::new();
        writeln!(out, "{}", Sample::HEADER)?;
        while samples.len() < LEAST_ROUNDS || Instant::now() < end {
            let sample = round.run()?;
            writeln!(out, "{:>6} {sample}", samples.len() + 1)?;
            out.flush()?;
            samples.push(sample);
        }
        let totals = round.end()?;
        writeln!(out, "\n{totals}")?;
        let verdict = Verdict::of(&samples);
        writeln!(out, "{verdict}")?;
        match verdict.trouble() {
            Some(trouble) => Err(BenchError::Soak(format!("{trouble} (seed {seed})"))),
            None => Ok(()),
        }
    }
}

/// The pair, and what is done to it again and again.
struct Round<'a> {
    testbed: Testbed,
    load: Load,
    random: Pcg64Mcg,
    policies: usize,
    restarts: usize,
    /// The most that gateway A had resident in this round.
    peak: u64,
    interrupted: &'a dyn Fn() -> bool,
}

impl<'a> Round<'a> {
    fn start(soak: &Soak, interrupted: &'a dyn Fn() -> bool) -> Result<Self, BenchError> {
        let mut plan = Plan {
            limits: "idle_flow = \"1 s\"\ntarget_dead = \"2 s\"\ndrain = \"300 ms\"".to_owned(),
            rate: "2 Gbit/s".to_owned(),
            dead_after: format!("{} s", DEAD_AFTER.as_secs()),
            resume_for: "0 s".to_owned(),
            mtu: [1500; 2],
            seed: soak.seed,
            ..clean_pair(&soak.program)
        };
        let load = Load::bind(&mut plan)?;
        let testbed = Testbed::start(&plan, interrupted)?;
        let random = Pcg64Mcg::seed_from_u64(soak.seed);
        Ok(Self { testbed, load, random, policies: 0, restarts: 0, peak: 0, interrupted })
    }

    /// One round, from empty gateways to empty gateways.
    fn run(&mut self) -> Result<Sample, BenchError> {
        self.peak = 0;
        let load = [self.many(Site::A)?, self.any(Site::B)?, self.any(Site::A)?];
        self.change()?;
        self.spend(STEP)?;
        let more = [self.many(Site::B)?, self.any(Site::A)?];
        self.change()?;
        self.complete(load)?;
        self.complete(more)?;
        self.lose_the_peer()?;
        let after = [self.any(Site::A)?, self.any(Site::B)?];
        self.change()?;
        self.complete(after)?;
        self.rest()
    }

    /// Hundreds of flows, as many in each round, so that each round needs as much at once as any
    /// other.
    fn many(&mut self, client: Site) -> Result<Transfer, BenchError> {
        let workload = self.load.many(&mut self.random);
        self.load.start(&self.testbed, client, &workload)
    }

    fn any(&mut self, client: Site) -> Result<Transfer, BenchError> {
        let workload = self.load.any(&mut self.random);
        self.load.start(&self.testbed, client, &workload)
    }

    /// Another link and another policy, under whatever is running.
    fn change(&mut self) -> Result<(), BenchError> {
        self.testbed.set_link(load::link(&mut self.random));
        let policy = POLICIES.get(self.policies % POLICIES.len()).copied().unwrap_or_default();
        self.policies += 1;
        self.testbed.write_policy(policy)?;
        for site in [Site::A, Site::B] {
            let end = Instant::now() + PATIENCE;
            loop {
                let answer: Answer = self.testbed.reload(site)?;
                if answer.adopted {
                    break;
                }
                if !answer.problems.contains(STILL_IN_USE) || Instant::now() > end {
                    return Err(BenchError::Soak(format!("a policy is refused: {}", answer.problems)));
                }
                self.spend(TICK)?;
            }
        }
        Ok(())
    }

    /// Stops or kills gateway B under load, which its programs see, and starts it again.
    fn lose_the_peer(&mut self) -> Result<(), BenchError> {
        let load = [self.any(Site::A)?, self.any(Site::B)?, self.any(Site::A)?];
        self.spend(STEP)?;
        self.restarts += 1;
        if self.restarts.is_multiple_of(SILENT) {
            self.testbed.kill(Site::B)?;
            self.spend(DEAD_AFTER * 2)?;
        } else {
            self.testbed.stop_one(Site::B)?;
            self.spend(STEP)?;
        }
        self.testbed.restart(Site::B)?;
        self.testbed.wait_for_session(self.interrupted)?;
        load.into_iter().try_for_each(|transfer| self.load.abandon(transfer))
    }

    /// Waits for transfers that nothing may happen to.
    fn complete<const N: usize>(&mut self, transfers: [Transfer; N]) -> Result<(), BenchError> {
        for transfer in transfers {
            while transfer.is_running() {
                self.spend(TICK)?;
            }
            self.load.complete(transfer)?;
        }
        Ok(())
    }

    /// Some time passes.
    fn spend(&mut self, time: Duration) -> Result<(), BenchError> {
        let end = Instant::now() + time;
        loop {
            if (self.interrupted)() {
                return Err(BenchError::Interrupted);
            }
            self.testbed.check()?;
            self.peak = self.peak.max(resident(self.testbed.pid(Site::A))?);
            if Instant::now() >= end {
                return Ok(());
            }
            std::thread::sleep(TICK.min(time));
        }
    }

    /// Waits until both gateways hold nothing, and looks at them.
    fn rest(&mut self) -> Result<Sample, BenchError> {
        self.testbed.set_link(load::link(&mut self.random));
        let end = Instant::now() + PATIENCE;
        for site in [Site::A, Site::B] {
            loop {
                let held = verdict::held(&self.testbed.fetch(site, "/metrics")?);
                if held.is_empty() {
                    break;
                }
                if Instant::now() > end {
                    return Err(BenchError::Soak(format!("gateway {site:?} still holds {held}")));
                }
                self.spend(TICK)?;
            }
        }
        let metrics = self.testbed.fetch(Site::A, "/metrics")?;
        let [a, b] = [Site::A, Site::B].map(|site| self.testbed.pid(site));
        Ok(Sample {
            resident: resident(a)?,
            peak: self.peak,
            peer: resident(b)?,
            files: open_files(a)?,
            opened: verdict::sum(&metrics, "longhaul_flows_opened_total").unwrap_or(0),
            remembered: verdict::sum(&metrics, "longhaul_flows_remembered").unwrap_or(0),
        })
    }

    /// Both gateways stop well; what was done to them.
    fn end(self) -> Result<String, BenchError> {
        let Self { testbed, load, policies, restarts, .. } = self;
        let sessions = testbed.status::<Status>(Site::A)?.session.established;
        let lost = testbed.link_stats();
        let lost = lost.a_to_b.link.lost + lost.b_to_a.link.lost;
        testbed.stop()?;
        let totals = format!(
            "{load}; {policies} policies, {restarts} times without the peer, {sessions} sessions, {lost} packets lost"
        );
        let did_all = load.did_all() && restarts > 0 && sessions > restarts as u64 && lost > 0;
        if did_all { Ok(totals) } else { Err(BenchError::Soak(format!("too little was tried: {totals}"))) }
    }
}
