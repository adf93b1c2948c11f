//! Scenarios from a seed: every kind of link, program and mishap comes up.

use std::path::Path;
use std::time::Duration;

use config::{Congestion, Policy};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use roce::flow::near::NearConfig;
use roce::wire::{PathMtu, Psn, RnrTimer};
use splice::Settings;

use super::numbers::PREFIX;
use super::scenario::{Burst, Connection, Fault, Life, Op, Scenario, Work, is_local};
use crate::host::{QpConfig, verbs_timeout};
use linksim::impair::{Distribution, LinkSpec, Loss};

pub(super) const SCHEMES: &[&str] = &[
    "scheme = \"sr\"",
    "scheme = \"sr\"\nalpha = 0.5",
    "scheme = \"sr\"\nalpha = 3",
    "scheme = \"mds\"\nk = 32\nm = 8",
    "scheme = \"mds\"\nk = 8\nm = 4\ninterleave = 4",
    "scheme = \"mds\"\nk = 1\nm = 1",
    "scheme = \"mds\"\nk = 100\nm = 20\ninterleave = 2",
    "scheme = \"xor\"\nk = 8\nm = 2",
    "scheme = \"xor\"\nk = 32\nm = 8\ninterleave = 3",
    "scheme = \"xor\"\nk = 3\nm = 3",
];

pub(super) const HYBRIDS: &[&str] = &[
    "scheme = \"hybrid\"\nk = 32\nm = 8",
    "scheme = \"hybrid\"\nk = 8\nm = 4\ninterleave = 4",
    "scheme = \"hybrid\"\nk = 3\nm = 1",
    "scheme = \"hybrid\"\nk = 100\nm = 20\nflush = \"100 us\"",
];

pub(super) const REFUSALS: [&str; 3] = ["", "refuse = \"nak\"", "refuse = \"silence\""];

const MTUS: [PathMtu; 5] = [PathMtu::B256, PathMtu::B512, PathMtu::B1024, PathMtu::B2048, PathMtu::B4096];

impl Scenario {
    /// The scenario of a seed. About half of them are benign ([`Scenario::is_benign`]).
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x51_1e9c));
        Self::draw_refusing(seed, dice.pick(&REFUSALS))
    }

    /// As [`Scenario::draw`], but requesters whose flows end with a session are refused at once.
    #[must_use]
    pub fn draw_with_naks(seed: u64) -> Self {
        Self::draw_refusing(seed, "refuse = \"nak\"")
    }

    fn draw_refusing(seed: u64, refuse: &str) -> Self {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x10e6_4a01));
        let rtt = Duration::from_secs_f64(dice.spread(0.0001, 0.1));
        let rate = dice.spread(1e7, 1e11) as u64;
        let scheme = dice.pick(SCHEMES);
        let mut settings = dice.settings(rtt, rate);
        let scheme = format!("{}\n{refuse}", draw_hybrid(seed).unwrap_or(scheme));
        settings.policy = draw_policy(seed, &scheme).into();
        draw_congestion(seed, &mut settings);
        let mut scenario = Self::new(seed, settings);
        scenario.wan = [dice.wan(rtt, rate), dice.wan(rtt, rate)];
        scenario.lan = dice.lan();
        scenario.ipv6 = dice.chance(0.25);
        scenario.hosts = [dice.pick(&[1, 1, 2]), dice.pick(&[1, 1, 2])];
        scenario.first_qpn = dice.pick(&[2, 17, 0x1234, 0xff_fff0]);
        scenario.dead_after = Duration::from_millis(dice.pick(&[1000, 2500, 5000]));
        scenario.garbage = if dice.chance(0.3) { 0.01 } else { 0.0 };
        let disturbed = dice.chance(0.5);
        // What a slow link carries within a second or two, and a test within a few milliseconds.
        let bytes = (rate / 16).min(400_000) as u32;
        let connections = dice.range(1, 8);
        let mtu = dice.pick(&MTUS);
        scenario.connections = (0..connections)
            .map(|_| {
                let mtu = if dice.chance(0.2) { dice.pick(&MTUS) } else { mtu };
                let most = (bytes / connections as u32).min(mtu.bytes() * 400);
                dice.connection(scenario.hosts, mtu, most, disturbed)
            })
            .collect();
        scenario.bursts = (0..dice.pick(&[0, 0, 1, 4])).map(|_| dice.burst()).collect();
        if disturbed {
            let count = dice.pick(&[1, 1, 2, 3]);
            scenario.faults = (0..count).map(|_| dice.fault(&scenario)).collect();
        }
        if disturbed {
            scenario.tighten();
        }
        scenario.disagree();
        scenario.repeat_lives();
        scenario.vary_verbs();
        scenario.narrow_link();
        scenario.confirm();
        scenario.spread();
        let settings = &scenario.settings;
        let faults: Duration = scenario.faults.iter().map(|(at, _)| *at + Duration::from_secs(10)).sum();
        scenario.patience = settings.idle_flow * 4
            + (settings.target_dead + NearConfig::default().silence) * 4
            + settings.rnr * 2
            + faults
            + Duration::from_secs(60);
        scenario
    }
}

impl Scenario {
    /// Now and then, bounds so narrow that flows end of them. With dice of its own, so that the
    /// rest of a seed stays what it was.
    fn tighten(&mut self) {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(self.seed ^ 0x0715_4781));
        if dice.chance(0.1) {
            self.settings.total_buffer = dice.pick(&[20_000, 100_000, 300_000]);
            self.narrow = true;
        }
        if dice.chance(0.1) {
            self.settings.flows = dice.pick(&[1, 2, 5]);
            self.narrow = true;
        }
        if dice.chance(0.5) {
            self.settings.idle_flow = Duration::from_secs(dice.pick(&[6, 10]));
        }
        if dice.chance(0.2) {
            self.lan.jitter = self.lan.delay.mul_f64(dice.spread(0.01, 1.0));
        }
        if dice.chance(0.1) {
            self.settings.lan_mtu = dice.pick(&[600, 1200, 2200]);
        }
    }
}

impl Scenario {
    /// Now and then, gateways that were told different things of the link. With dice of its own as
    /// well.
    fn disagree(&mut self) {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(self.seed ^ 0x3a21_99c5));
        if dice.chance(0.25) {
            self.max_packet_there = Some(dice.pick(&[1200, 1400, 4000, 8900]));
        }
    }

    /// In three seeds of ten, links that carry less than the gateways would send, which find out;
    /// now and then less or more of it on the way. With dice of its own; none of those seeds that
    /// once broke a rule is among them.
    fn narrow_link(&mut self) {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(self.seed ^ 0x0002_37d0));
        if !matches!(self.seed % 24, 8..=10 | 12..=15) {
            return;
        }
        self.settings.find_mtu = true;
        self.settings.ip_overhead = 52;
        let (base, most) = (self.settings.base_packet, self.max_packet());
        for link in &mut self.wan {
            link.mtu = Some(PREFIX + dice.range(base, most));
        }
        for _ in 0..dice.pick(&[0, 0, 1, 2]) {
            let at = dice.millis(3000.0);
            self.faults.push((at, Fault::Mtu { site: dice.range(0, 1), packet: dice.range(base, most) }));
        }
    }

    /// Where messages are done locally, half of the programs end with a READ, which tells them
    /// whether all before it has arrived.
    fn confirm(&mut self) {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(self.seed ^ 0x00c0_f170));
        if !is_local(self.seed) {
            return;
        }
        let lives = self.connections.iter_mut().flat_map(|connection| &mut connection.lives);
        for work in lives.flat_map(|life| &mut life.work).filter(|work| !work.ops.is_empty()) {
            if dice.chance(0.5) {
                work.ops.push(Op::Read(64));
            }
        }
    }

    /// Half of the connections that live more than once begin every life at the same PSNs, as
    /// programs do that begin at 0. With dice of its own, too.
    fn repeat_lives(&mut self) {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(self.seed ^ 0x2ed1_1fe5));
        let rtt = self.wan[0].delay + self.wan[1].delay;
        for connection in &mut self.connections {
            let Some(first) = connection.lives.first().map(|life| life.psn) else { continue };
            if !dice.chance(0.5) {
                continue;
            }
            for life in connection.lives.iter_mut().skip(1) {
                life.psn = first;
                // Two programs agree on a connection across the link.
                life.pause = rtt + if dice.chance(0.5) { life.pause / 50 } else { life.pause };
            }
        }
    }
}

impl Scenario {
    /// In three seeds of ten, NICs that set MigReq, solicited events, and the rarer operations
    /// instead of some of their like; where things go wrong anyhow, NICs that forget addresses as
    /// well. With dice of its own, and none of those seeds that once broke a rule is among them.
    fn vary_verbs(&mut self) {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(self.seed ^ 0x0e7b_5071));
        if !has_rare_verbs(self.seed) {
            return;
        }
        let benign = self.is_benign();
        for connection in &mut self.connections {
            connection.qp.migreq = dice.chance(0.5);
            connection.qp.forgets_addresses = !benign && dice.chance(0.3);
            for work in connection.lives.iter_mut().flat_map(|life| &mut life.work) {
                work.solicited_every = dice.pick(&[0, 1, 2, 5]);
                for op in &mut work.ops {
                    *op = dice.rarer(*op);
                }
            }
        }
    }

    /// In two seeds of nine, several lanes, which differ in delay and loss; most of the time some
    /// of them die on the way, or become worse, and better again. With dice of its own, and none of
    /// those seeds that once broke a rule is among them.
    fn spread(&mut self) {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(self.seed ^ 0x001a_4e50));
        if !matches!(self.seed % 41, 2..=5 | 14..=18) {
            return;
        }
        let further = dice.pick(&[1, 1, 2, 3, 7]);
        self.settings.lanes = further as u8 + 1;
        self.lanes = (0..further).map(|_| self.wan.map(|link| dice.like(link))).collect();
        let end = dice.pick(&[500.0, 3000.0, 10_000.0]);
        for _ in 0..dice.pick(&[0, 1, 2, 4]) {
            let (site, lane) = (dice.range(0, 1), dice.range(1, further));
            let Some(good) = self.lanes.get(lane - 1).and_then(|lane| lane.get(site)).copied() else {
                continue;
            };
            let bad = match dice.range(0, 2) {
                0 => LinkSpec { loss: Loss::Random(1.0), ..good },
                1 => LinkSpec { loss: Loss::Random(dice.spread(0.02, 0.5)), ..good },
                _ => LinkSpec { delay: good.delay * 3, ..good },
            };
            let at = dice.millis(end);
            self.faults.push((at, Fault::Lane { site, lane, link: bad }));
            if dice.chance(0.7) {
                self.faults.push((at + dice.millis(end), Fault::Lane { site, lane, link: good }));
            }
        }
    }
}

/// In a quarter of the seeds, `hybrid` instead of what was drawn. With dice of its own, whose
/// number leaves those seeds as they were that once broke a rule.
fn draw_hybrid(seed: u64) -> Option<&'static str> {
    let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x1c1d_0000));
    dice.chance(0.25).then(|| dice.pick(HYBRIDS))
}

fn has_rare_verbs(seed: u64) -> bool {
    matches!(seed % 43, 1..=3 | 13..=16 | 26..=31)
}

/// One class of this scheme, or two, of which one completes its messages locally.
fn draw_policy(seed: u64, scheme: &str) -> Policy {
    let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x010c_a100));
    if !is_local(seed) {
        return policy(scheme);
    }
    let local = format!("{scheme}\ncompletion = \"local\"");
    let matches = dice.pick(&["", "", "at_most = \"4 KiB\"", "at_least = \"1000 B\""]);
    if matches.is_empty() {
        return policy(&local);
    }
    parse(&format!(
        "[[class]]\nname = \"early\"\nmatch = {{ size = {{ {matches} }} }}\n{local}\n{}",
        class(scheme)
    ))
}

/// In a quarter of the seeds, rates and windows that the gateways find themselves. With dice of its
/// own.
fn draw_congestion(seed: u64, settings: &mut Settings) {
    let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x00c0_9e57));
    if dice.chance(0.25) {
        settings.congestion = Congestion::Adaptive;
        // More than the link carries, and it is for them to find out.
        settings.rate = (settings.rate as f64 * dice.pick(&[1.0, 1.5, 5.0])) as u64;
    }
}

/// One class, of this scheme.
fn policy(scheme: &str) -> Policy {
    parse(&class(scheme))
}

fn class(scheme: &str) -> String {
    format!("[[class]]\nname = \"default\"\n{scheme}\n")
}

fn parse(text: &str) -> Policy {
    let parsed = Policy::parse(Path::new("policy.toml"), text);
    #[expect(clippy::panic, reason = "a mistake in what stands above")]
    parsed.unwrap_or_else(|invalid| panic!("{invalid}\n{text}"))
}

pub(super) struct Dice(pub(super) Pcg64Mcg);

impl Dice {
    pub(super) fn chance(&mut self, p: f64) -> bool {
        self.0.random_bool(p)
    }

    pub(super) fn range(&mut self, from: usize, to: usize) -> usize {
        self.0.random_range(from..=to)
    }

    pub(super) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        let index = self.0.random_range(0..among.len());
        #[expect(clippy::indexing_slicing, reason = "drawn from its length")]
        among[index]
    }

    /// Between the two, each order of magnitude as likely as the others.
    pub(super) fn spread(&mut self, least: f64, most: f64) -> f64 {
        (self.0.random_range(least.ln()..most.ln())).exp()
    }

    pub(super) fn millis(&mut self, most: f64) -> Duration {
        Duration::from_secs_f64(self.0.random_range(0.0..most / 1e3))
    }

    fn settings(&mut self, rtt: Duration, rate: u64) -> Settings {
        let flow_buffer = self.pick(&[None, Some(16 << 20), Some(1 << 20), Some(128 << 10)]);
        Settings {
            rtt,
            flow_buffer,
            total_buffer: 64 << 20,
            flows: self.pick(&[64, 1000, 100_000]),
            idle_flow: Duration::from_secs(self.pick(&[20, 30, 40])),
            target_dead: Duration::from_millis(self.pick(&[1500, 3000, 10_000])),
            rnr: Duration::from_millis(self.pick(&[2000, 5000])),
            linger: Duration::from_secs(self.pick(&[5, 60])),
            // The link drops what comes faster than it takes.
            ..Settings::new(Vec::new(), (rate as f64 * 0.9) as u64, self.pick(&[1200, 1400, 4000, 8900]))
        }
    }

    fn wan(&mut self, rtt: Duration, rate: u64) -> LinkSpec {
        let delay = rtt / 2;
        let loss = match self.range(0, 5) {
            0 | 1 => Loss::None,
            2 | 3 => Loss::Random(self.spread(0.0001, 0.2)),
            _ => {
                let to_good = self.spread(0.2, 0.8);
                let mean = self.spread(0.001, 0.2);
                Loss::GilbertElliott {
                    to_bad: to_good * mean / (1.0 - mean),
                    to_good,
                    loss_bad: 0.9,
                    loss_good: 0.0,
                }
            }
        };
        LinkSpec {
            delay,
            jitter: if self.chance(0.3) { delay.mul_f64(self.spread(0.001, 0.3)) } else { Duration::ZERO },
            distribution: self.pick(&[Distribution::Uniform, Distribution::Normal]),
            loss,
            duplicate: if self.chance(0.2) { self.spread(0.001, 0.05) } else { 0.0 },
            corrupt: 0.0,
            reorder: if self.chance(0.3) { self.spread(0.001, 0.1) } else { 0.0 },
            gap: 0,
            rate: Some(rate),
            overhead: 0,
            limit_packets: Some(1000),
            limit_bytes: None,
            mtu: None,
        }
    }

    /// Another lane of the same link.
    fn like(&mut self, link: LinkSpec) -> LinkSpec {
        let delay = link.delay.mul_f64(self.pick(&[1.0, 1.0, 1.05, 1.3, 2.0]));
        let loss = if self.chance(0.3) { Loss::Random(self.spread(0.001, 0.1)) } else { link.loss };
        LinkSpec { delay, loss, ..link }
    }

    fn lan(&mut self) -> LinkSpec {
        let bad = self.chance(0.4);
        let mut some = |p: f64, most: f64| if bad && self.chance(p) { self.spread(1e-4, most) } else { 0.0 };
        let (loss, duplicate, corrupt, reorder) =
            (some(0.6, 0.01), some(0.3, 0.01), some(0.3, 0.01), some(0.3, 0.01));
        LinkSpec {
            delay: Duration::from_micros(self.range(1, 60) as u64),
            loss: if loss > 0.0 { Loss::Random(loss) } else { Loss::None },
            duplicate,
            corrupt,
            reorder,
            ..LinkSpec::default()
        }
    }

    fn connection(&mut self, hosts: [usize; 2], mtu: PathMtu, bytes: u32, disturbed: bool) -> Connection {
        let qp = QpConfig {
            mtu,
            window: self.pick(&[16, 128, 128, 512]),
            ack_every: self.pick(&[8, 64]),
            timeout: Some(verbs_timeout(self.pick(&[14, 14, 16, 18]))),
            retry_cnt: if disturbed && self.chance(0.3) { 6 } else { 7 },
            rnr_retry: if disturbed && self.chance(0.2) { 3 } else { 7 },
            min_rnr_timer: RnrTimer::new(self.pick(&[8, 12, 20])),
            max_rd_atomic: self.pick(&[1, 4, 16]),
            restart_reads_on_gap: self.chance(0.5),
            ..QpConfig::default()
        };
        let lives = self.pick(&[1, 1, 1, 2, 3]);
        let bytes = bytes / lives;
        let mut psn = [self.0.random::<u32>(), self.0.random()];
        let lives = (0..lives)
            .map(|life| {
                // Far from the last life's, and often about to wrap.
                psn = psn.map(|psn| psn.wrapping_add((1 << 17) + self.0.random_range(0..1 << 22)));
                if life == 0 && self.chance(0.3) {
                    psn = [0xff_fff0, 0xff_ffff];
                }
                Life {
                    pause: self.millis(if life == 0 { 20.0 } else { 8000.0 }),
                    queue_pairs: [None; 2],
                    psn: psn.map(Psn::new),
                    work: self.both(bytes, disturbed),
                }
            })
            .collect();
        Connection { hosts: hosts.map(|most| self.range(0, most - 1)), qp, lives }
    }

    /// Mostly one end asks; sometimes both do.
    fn both(&mut self, bytes: u32, disturbed: bool) -> [Work; 2] {
        let mut work = match self.range(0, 3) {
            0 => [self.work(bytes, disturbed), self.work(0, disturbed)],
            1 => [self.work(0, disturbed), self.work(bytes, disturbed)],
            _ => [self.work(bytes / 2, disturbed), self.work(bytes / 2, disturbed)],
        };
        if work.iter().all(|work| work.ops.is_empty()) {
            work = work.map(|work| Work { ops: vec![Op::Send(1, None)], ..work });
        }
        work
    }

    fn work(&mut self, bytes: u32, disturbed: bool) -> Work {
        let mut left = bytes;
        let most = self.spread(1.0, 262_145.0) as u32;
        let mix = self.range(0, 5);
        let mut ops = Vec::new();
        while left > 0 && ops.len() < 60 {
            let op = self.op(most.min(left), mix);
            left = left.saturating_sub(op.len().max(256));
            ops.push(op);
        }
        if disturbed && !ops.is_empty() && self.chance(0.1) {
            let at = self.range(0, ops.len());
            ops.insert(at, Op::BadKey(self.range(1, 3000) as u32));
        }
        let late = self.chance(0.15);
        let longest = if disturbed { 8000.0 } else { 900.0 };
        Work {
            ops,
            depth: self.pick(&[1, 2, 8, 32, 64]),
            think: if self.chance(0.2) { self.millis(20.0) } else { Duration::ZERO },
            receives_after: if late { self.millis(longest) } else { Duration::ZERO },
            receives_every: if late { self.millis(2.0) } else { Duration::ZERO },
            solicited_every: 0,
        }
    }

    fn op(&mut self, most: u32, mix: usize) -> Op {
        let len = match self.range(0, 9) {
            0 => 0,
            1 => self.pick(&[1, 255, 256, 257, 1023, 4096, 4097]).min(most),
            _ => self.0.random_range(0..=most),
        };
        let imm = self.chance(0.3).then(|| self.0.random());
        let kind = match mix {
            0 => 0,
            1 => 2,
            2 => 4,
            _ => self.range(0, 6),
        };
        match kind {
            0 | 1 => Op::Send(len, imm),
            2 | 3 => Op::Write(len, imm),
            4 => Op::Read(len),
            5 => Op::FetchAdd(self.0.random()),
            _ => Op::CompareSwap(self.0.random()),
        }
    }

    /// An operation that is answered as this one is, and seldom used.
    fn rarer(&mut self, op: Op) -> Op {
        match op {
            Op::Send(len, _) if self.chance(0.5) => Op::SendInvalidate(len),
            Op::Read(len) if self.chance(0.2) => Op::Flush(len),
            Op::FetchAdd(value) | Op::CompareSwap(value) if self.chance(0.5) => Op::AtomicWrite(value),
            _ => op,
        }
    }

    fn burst(&mut self) -> Burst {
        Burst {
            at: self.millis(2000.0),
            site: self.range(0, 1),
            // UD, UC, RD, XRC, CNP, an RC opcode that does not exist, and those of no one.
            opcode: self.pick(&[0x64, 0x65, 0x24, 0x2a, 0x44, 0xa4, 0x81, 0x1f, 0xc0, 0xff]),
            qpn: self.pick(&[1, 17, 0xabcdef]),
            len: self.range(0, 300) * 4,
            count: self.range(1, 20),
        }
    }

    fn fault(&mut self, scenario: &Scenario) -> (Duration, Fault) {
        let latest = self.pick(&[50.0, 500.0, 3000.0, 15_000.0]);
        let at = self.millis(latest);
        let site = self.range(0, 1);
        let host = self.range(0, scenario.hosts.get(site).map_or(0, |hosts| hosts - 1));
        let dead = scenario.dead_after.as_secs_f64() * 1e3;
        let fault = match self.range(0, 9) {
            0 | 1 => Fault::Partition(self.millis(dead)),
            2 | 3 => Fault::Partition(scenario.dead_after + self.millis(4000.0)),
            4 | 5 => Fault::Crash { site, down: self.millis(6000.0), noticed: self.millis(dead) },
            6 => Fault::Reconnect,
            7 => Fault::Silence { site, host, time: Some(self.millis(4000.0)) },
            8 => Fault::Silence { site, host, time: None },
            _ => Fault::Stop { connection: self.range(0, scenario.connections.len() - 1), site },
        };
        (at, fault)
    }
}

#[cfg(test)]
mod tests {
    use config::Completion;

    use super::*;

    #[test]
    fn every_scheme_comes_up() {
        let names = (0..400).map(|seed| {
            let scenario = Scenario::draw(seed);
            scenario.settings.policy.classes()[0].scheme.name()
        });
        let names: Vec<_> = names.collect();
        for (scheme, least) in [("sr", 60), ("mds", 80), ("xor", 60), ("hybrid", 70)] {
            let count = names.iter().filter(|name| **name == scheme).count();
            assert!(count >= least, "{scheme}: {count} of 400");
        }
    }

    #[test]
    fn lanes_come_up_and_fail() {
        let drawn: Vec<_> = (0..400).map(Scenario::draw).filter(|drawn| drawn.settings.lanes > 1).collect();
        assert!(drawn.len() >= 80, "{}", drawn.len());
        for drawn in &drawn {
            assert_eq!(drawn.lanes.len() + 1, usize::from(drawn.settings.lanes));
        }
        let fails =
            |drawn: &&Scenario| drawn.faults.iter().any(|(_, fault)| matches!(fault, Fault::Lane { .. }));
        let benign = drawn.iter().filter(fails).filter(|drawn| drawn.is_benign()).count();
        assert!(benign >= 20, "{benign}");
    }

    #[test]
    fn local_completion_comes_up_for_all_messages_and_for_some() {
        let local = |seed: u64| {
            let policy = Scenario::draw(seed).settings.policy;
            let local = policy.classes().iter().filter(|class| class.completion == Completion::Local).count();
            (local, policy.classes().len())
        };
        let drawn: Vec<_> = (0..400).map(local).collect();
        for (what, least) in [((1, 1), 30), ((1, 2), 30), ((0, 1), 250)] {
            let count = drawn.iter().filter(|drawn| **drawn == what).count();
            assert!(count >= least, "{what:?}: {count} of 400");
        }
    }

    #[test]
    fn rare_operations_and_flags_come_up() {
        let (mut seen, mut asked, mut migreq, mut forgets) = ([0; 3], 0, 0, 0);
        for drawn in (0..400).map(Scenario::draw) {
            migreq += drawn.connections.iter().filter(|connection| connection.qp.migreq).count();
            forgets += drawn.connections.iter().filter(|connection| connection.qp.forgets_addresses).count();
            let lives = drawn.connections.iter().flat_map(|connection| &connection.lives);
            for work in lives.flat_map(|life| &life.work) {
                asked += usize::from(work.solicited_every > 0);
                for op in &work.ops {
                    match op {
                        Op::SendInvalidate(_) => seen[0] += 1,
                        Op::AtomicWrite(_) => seen[1] += 1,
                        Op::Flush(_) => seen[2] += 1,
                        _ => {}
                    }
                }
            }
        }
        assert!(seen.iter().all(|count| *count > 300), "{seen:?}");
        assert!(asked > 300 && migreq > 150 && forgets > 30, "{asked} {migreq} {forgets}");
    }

    #[test]
    fn the_schemes_are_what_they_say() {
        for text in SCHEMES.iter().chain(HYBRIDS) {
            let name = policy(text).classes()[0].scheme.name();
            assert!(text.starts_with(&format!("scheme = \"{name}\"")), "{text}");
        }
    }
}
