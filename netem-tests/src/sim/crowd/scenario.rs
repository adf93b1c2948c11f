//! The parts of a crowd, and how it is drawn from a seed.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use roce::wire::PathMtu;
use splice::Settings;

use super::spoofer::Spoofing;
use crate::host::{FirstPsn, Personality, PortPolicy, QpConfig, verbs_timeout};
use crate::sim::draw::Dice;
use linksim::impair::{LinkSpec, Loss};

/// Two hosts, one at each site, whose queue pairs come and go, reconnect with the same numbers and
/// change partners.
#[derive(Clone, Debug)]
pub struct Crowd {
    /// Decides the links' dice.
    pub seed: u64,
    /// Round trip of the long link.
    pub rtt: Duration,
    /// The round-trip time that the session's handshake measured, which may have been another
    /// path's.
    pub session_rtt: Duration,
    /// Each way of the long link.
    pub wan: [LinkSpec; 2],
    /// Between each host and its gateway, both ways.
    pub lan: [LinkSpec; 2],
    /// Both gateways' settings; the prefixes are filled in.
    pub settings: Settings,
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
    /// Number of each host's first queue pair.
    pub first_qpn: [u32; 2],
    /// Settings of each host's queue pairs.
    pub queue_pairs: [Vec<QpConfig>; 2],
    /// In the order in which a queue pair takes part in them.
    pub lives: Vec<CrowdLife>,
    /// The part of the packets towards each host that a switch of its LAN marks, of those that may
    /// be.
    pub marks: [f64; 2],
    /// Somebody on both LANs sends in others' names.
    pub spoofing: Option<Spoofing>,
}

/// One incarnation of a connection.
#[derive(Clone, Debug)]
pub struct CrowdLife {
    /// Index of each end's queue pair.
    pub ends: [usize; 2],
    /// From the moment at which both queue pairs were free.
    pub pause: Duration,
    /// End 1 connects so much later.
    pub skew: Duration,
    /// First PSN of each end's requests.
    pub psn: [u32; 2],
    /// The work that each end asks of the other.
    pub work: [Vec<CrowdOp>; 2],
    /// Requests under way at a time.
    pub depth: usize,
    /// Both queue pairs are reset so long after the begin, whatever is under way.
    pub cut: Option<Duration>,
    /// End 1 never connects: a target that does not answer.
    pub dead: bool,
    /// The programs change their source buffers so often.
    pub restless: Option<Duration>,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrowdOp {
    /// SEND of so many bytes.
    Send(u32),
    /// WRITE of so many bytes.
    Write(u32),
    /// READ of so many bytes.
    Read(u32),
    /// Fetch-and-add on the connection's cell.
    FetchAdd(u64),
}

impl CrowdOp {
    pub(super) fn len(self) -> u32 {
        match self {
            Self::Send(len) | Self::Write(len) | Self::Read(len) => len,
            Self::FetchAdd(_) => 8,
        }
    }
}

impl Crowd {
    /// The crowd of a seed: a personality for each host, links, and lives.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed ^ 0x00c0_30bd));
        let rtt = Duration::from_secs_f64(dice.spread(0.001, 0.1));
        let session_rtt = rtt.mul_f64(dice.pick(&[1.0, 1.0, 0.05, 0.5, 5.0, 20.0]));
        let rate = dice.spread(2e8, 1e10) as u64;
        let nics = [dice.pick(&Personality::ALL), dice.pick(&Personality::ALL)];
        let lossy_lan = dice.chance(0.4);
        let lan = [dice.crowd_lan(lossy_lan), dice.crowd_lan(lossy_lan)];
        let loss = dice.chance(0.4).then(|| dice.spread(1e-3, 0.05));
        let reorders = dice.chance(0.3);
        let wan = LinkSpec {
            delay: rtt / 2,
            rate: Some(rate),
            loss: loss.map_or(Loss::None, Loss::Random),
            reorder: if reorders { 0.01 } else { 0.0 },
            ..LinkSpec::default()
        };
        let mut settings =
            Settings::new(Vec::new(), (rate as f64 * 0.9) as u64, dice.pick(&[1200, 1400, 4000, 8900]));
        settings.rtt = session_rtt;
        settings.flow_buffer = dice.pick(&[None, None, Some(1 << 20), Some(64 << 10)]);
        settings.target_dead = Duration::from_secs(10);
        let alike = dice.chance(0.5);
        let first = dice.pick(&[0x45, 0x11, 0x234, 2]);
        let count = dice.range(1, 6);
        let dead = if dice.chance(0.3) { dice.range(1, 4) } else { 0 };
        let mtu = dice.pick(&[PathMtu::B256, PathMtu::B1024, PathMtu::B4096]);
        let timeout = dice.pick(&[14, 16, 18]);
        let patient = lossy_lan || loss.is_some() || dice.chance(0.7);
        let queue_pairs = nics.map(|nic| {
            let mut one = || dice.crowd_qp(nic, mtu, timeout, patient);
            (0..count + dead).map(|_| one()).collect::<Vec<_>>()
        });
        let mut crowd = Self {
            seed,
            rtt,
            session_rtt,
            wan: [wan; 2],
            lan,
            settings,
            ipv6: false,
            first_qpn: [first, if alike { first } else { first + 1 }],
            queue_pairs,
            lives: Vec::new(),
            marks: [0.0; 2],
            spoofing: None,
        };
        crowd.populate(count, dead, &mut dice);
        crowd.mark(seed);
        crowd
    }

    /// Switches that mark, at some sites. Drawn apart: all else of a seed is as without.
    fn mark(&mut self, seed: u64) {
        let mut dice = Dice(Pcg64Mcg::seed_from_u64(seed ^ 0xdc9c_0ecb));
        self.marks = [(); 2].map(|()| if dice.chance(0.2) { dice.spread(1e-3, 0.3) } else { 0.0 });
    }

    /// Rounds in which every queue pair has a partner, and beside them targets that never answer.
    fn populate(&mut self, count: usize, dead: usize, dice: &mut Dice) {
        let rounds = dice.range(1, 4);
        let changing = dice.chance(0.3);
        let interrupted = dice.chance(0.3);
        let restless = dice.chance(0.3);
        let psn = self.queue_pairs.each_ref().map(|qps| qps.first().map(|qp| qp.personality.first_psn));
        for number in count..count + dead {
            let mut life = self.life([number; 2], psn, dice);
            life.work = [vec![dice.crowd_op(2000)], Vec::new()];
            (life.dead, life.skew) = (true, Duration::ZERO);
            life.cut = Some(Duration::from_millis(200) + dice.millis(800.0));
            self.lives.push(life);
        }
        for round in 0..rounds {
            let turn = if changing && round > 0 { dice.range(0, count - 1) } else { 0 };
            for own in 0..count {
                let mut life = self.life([own, (own + turn) % count], psn, dice);
                if round == 0 {
                    life.pause = dice.millis(10.0);
                }
                life.cut = (interrupted && round + 1 < rounds && dice.chance(0.5))
                    .then(|| self.rtt.mul_f64(dice.spread(0.2, 4.0)));
                life.restless = restless.then(|| Duration::from_micros(dice.range(200, 5000) as u64));
                self.lives.push(life);
            }
        }
    }

    fn life(&self, ends: [usize; 2], psn: [Option<FirstPsn>; 2], dice: &mut Dice) -> CrowdLife {
        let psn = psn.map(|policy| match policy {
            Some(FirstPsn::Random) => dice.range(0, 0xff_ffff) as u32,
            _ => 0,
        });
        let mtu = self.queue_pairs.iter().flatten().map(|qp| qp.mtu.bytes()).min().unwrap_or(256);
        let most = dice.pick(&[64, 3000, 3000, 60_000]).min(60 * mtu);
        let (asks, answers) = (dice.range(1, 6), dice.pick(&[0, 0, 1, 4]));
        let mut ops = |count: usize| (0..count).map(|_| dice.crowd_op(most)).collect::<Vec<_>>();
        let work = [ops(asks), ops(answers)];
        CrowdLife {
            ends,
            pause: self.rtt.mul_f64(dice.spread(0.1, 10.0)),
            skew: if dice.chance(0.3) { self.rtt.mul_f64(dice.spread(0.01, 0.5)) } else { Duration::ZERO },
            psn,
            work,
            depth: dice.pick(&[1, 4, 16]),
            cut: None,
            dead: false,
            restless: None,
        }
    }

    /// The same without any loss or reordering: what plain RC needs at least.
    #[must_use]
    pub fn lossless(&self) -> Self {
        let clean = |link: LinkSpec| LinkSpec { loss: Loss::None, reorder: 0.0, ..link };
        Self { wan: self.wan.map(clean), lan: self.lan.map(clean), ..self.clone() }
    }

    /// Returns true if no packet is lost between hosts and gateways.
    #[must_use]
    pub fn has_clean_lans(&self) -> bool {
        self.lan.iter().all(|lan| lan.loss == Loss::None)
    }
}

impl Dice {
    fn crowd_lan(&mut self, lossy: bool) -> LinkSpec {
        let delay = Duration::from_micros(self.range(2, 60) as u64);
        LinkSpec {
            delay,
            loss: if lossy { Loss::Random(self.spread(1e-3, 0.02)) } else { Loss::None },
            reorder: if lossy && self.chance(0.5) { self.spread(1e-3, 0.03) } else { 0.0 },
            ..LinkSpec::default()
        }
    }

    fn crowd_qp(&mut self, nic: Personality, mtu: PathMtu, timeout: u8, patient: bool) -> QpConfig {
        // What a program or a NIC draws for each queue pair by itself.
        let port = match nic.port {
            PortPolicy::Label(_) => PortPolicy::Label(self.range(1, 8) as u8),
            PortPolicy::Random(_) => PortPolicy::Random(self.range(0, 0x3fff) as u16),
            other => other,
        };
        QpConfig {
            mtu,
            timeout: Some(verbs_timeout(timeout)),
            retry_cnt: if patient { 7 } else { 6 },
            ..Personality { port, ..nic }.qp()
        }
    }

    fn crowd_op(&mut self, most: u32) -> CrowdOp {
        let len = self.range(1, most as usize) as u32;
        match self.range(0, 9) {
            0..=3 => CrowdOp::Write(len),
            4..=6 => CrowdOp::Send(len),
            7 | 8 => CrowdOp::Read(len),
            _ => CrowdOp::FetchAdd(self.0.random_range(1..1000)),
        }
    }
}
