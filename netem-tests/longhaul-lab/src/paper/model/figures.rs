//! The published evaluation, row by row: what was published, what the same formulas give here, and
//! what our own schemes give.
//!
//! 400 Gbit/s and 25 ms, packets of 4 KiB, unless a row says otherwise.

use std::ops::RangeInclusive;
use std::time::Duration;

use rand::Rng;

use reliability::link::Link;
use reliability::model::{Candidate, Completion, Message, Timers, production};

use super::{Code, Ring, SR_NACK, SR_RTO, Transfer};

/// Slack of the fallback timeout.
const BETA: f64 = 1.0;
const MDS: Code = Code::Mds { k: 32, m: 8 };
const XOR: Code = Code::Xor { k: 32, m: 8 };
const PACKET: usize = 4 << 10;
/// The evaluation's larger chunk, 16 packets.
const LARGE: usize = 64 << 10;
const SAMPLES: u32 = 1000;

/// One row.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The quantity measured.
    pub what: &'static str,
    /// The value published.
    pub published: &'static str,
    /// The values that the published formulas give.
    pub reproduced: Vec<Value>,
    /// The values that our own schemes give, where that means something.
    pub ours: Vec<Value>,
    /// Why the two differ, or what has to be known of the row.
    pub note: &'static str,
}

/// A number of a row.
#[derive(Clone, Debug)]
pub struct Value {
    /// The number's name, if the row has several.
    pub of: &'static str,
    /// The number itself.
    pub value: f64,
    /// How it is written.
    pub unit: Unit,
    /// Where it has to lie; everything, where nothing was published to compare with.
    pub accepted: RangeInclusive<f64>,
}

/// How a number is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A ratio: `6.2x`.
    Times,
    /// A probability or share, in per cent.
    Share,
    /// A loss rate, or as small a share of something else.
    Drop,
    /// Bytes.
    Size,
}

impl Value {
    fn new(of: &'static str, unit: Unit, value: f64, accepted: RangeInclusive<f64>) -> Self {
        Self { of, value, unit, accepted }
    }

    fn ours(of: &'static str, unit: Unit, value: f64) -> Self {
        Self::new(of, unit, value, f64::NEG_INFINITY..=f64::INFINITY)
    }

    /// Returns true if it lies where it has to.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.accepted.contains(&self.value)
    }
}

/// All rows. `rng` serves the row that compares with samples.
pub fn figures(rng: &mut impl Rng) -> Vec<Figure> {
    vec![
        sampling(rng),
        wins(),
        slowdown(),
        crossover(),
        nack(),
        xor_falls_back(),
        mds_holds(),
        repeat_slowdown(),
        allreduce(),
    ]
}

fn link(drop: f64) -> Link {
    Link::new(400_000_000_000, Duration::from_millis(25), drop, PACKET)
}

fn transfer(drop: f64, size: u64) -> Transfer {
    Transfer { link: link(drop), size, chunk: PACKET }
}

fn ours(candidate: Candidate, drop: f64, size: u64) -> Completion {
    production::completion(&link(drop), &Timers::default(), candidate, Message::new(size))
}

/// `steps` loss rates to a decade.
fn drops(from: i32, to: i32, steps: i32) -> impl Iterator<Item = f64> + Clone {
    (from * steps..=to * steps).map(move |step| 10.0_f64.powf(f64::from(step) / f64::from(steps)))
}

/// Powers of two.
fn sizes(from: u32, to: u32) -> impl Iterator<Item = u64> + Clone {
    (from..=to).map(|log| 1 << log)
}

fn grid() -> impl Iterator<Item = (f64, u64)> {
    drops(-6, -2, 4).flat_map(|drop| sizes(17, 30).map(move |size| (drop, size)))
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

fn most(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}

fn sampling(rng: &mut impl Rng) -> Figure {
    let mut worst = 0.0_f64;
    for (drop, size) in drops(-6, -2, 1).flat_map(|drop| [17, 22, 27, 30].map(|log| (drop, 1_u64 << log))) {
        let transfer = transfer(drop, size);
        let (mds, xor) = (transfer.ec(MDS, BETA, SR_RTO), transfer.ec(XOR, BETA, SR_RTO));
        let mut compare = |mean: Duration, sample: &mut dyn FnMut() -> Duration| {
            let sampled = (0..SAMPLES).map(|_| sample()).sum::<Duration>() / SAMPLES;
            worst = worst.max((ratio(mean, sampled) - 1.0).abs());
        };
        for rto in [SR_RTO, SR_NACK] {
            compare(transfer.sr(rto).mean(), &mut || transfer.sample_sr(rto, rng));
        }
        compare(mds.mean(), &mut || mds.sample(rng));
        compare(xor.mean(), &mut || xor.sample(rng));
    }
    Figure {
        what: "mean of 1000 samples against the expectation, largest difference",
        published: "within 5 %",
        reproduced: vec![Value::new("", Unit::Share, worst, 0.0..=0.05)],
        ours: Vec::new(),
        note: "SR with both timeouts, MDS and XOR; 128 KiB to 1 GiB, 1e-6 to 1e-2",
    }
}

fn wins() -> Figure {
    let share = |wins: &dyn Fn(f64, u64) -> bool| {
        grid().filter(|&(drop, size)| wins(drop, size)).count() as f64 / grid().count() as f64
    };
    let paper = |drop, size| {
        let transfer = transfer(drop, size);
        transfer.ec(MDS, BETA, SR_RTO).mean() < transfer.sr(SR_RTO).mean()
    };
    let mds =
        |drop, size| ours(Candidate::mds(32, 8), drop, size).mean() < ours(Candidate::Sr, drop, size).mean();
    let hybrid = |drop, size| {
        ours(Candidate::hybrid(32, 8), drop, size).mean() <= ours(Candidate::Sr, drop, size).mean()
    };
    Figure {
        what: "EC(32,8) faster than SR RTO in the mean, 128 KiB to 1 GiB at 1e-6 to 1e-2",
        published: "everywhere",
        reproduced: vec![Value::new("share of the grid", Unit::Share, share(&paper), 1.0..=1.0)],
        ours: vec![
            Value::ours("mds(32,8) against sr", Unit::Share, share(&mds)),
            Value::ours("hybrid(32,8) against sr", Unit::Share, share(&hybrid)),
        ],
        note: "our sr repeats after one round trip, so that parity over all of a large message at a low loss rate costs more than it saves",
    }
}

fn slowdown() -> Figure {
    let worst = |chunk: usize, time: &dyn Fn(&Transfer) -> f64| {
        most(grid().map(|(drop, size)| time(&Transfer { link: link(drop), size, chunk })))
    };
    let mean = |transfer: &Transfer| ratio(transfer.sr(SR_RTO).mean(), transfer.ec(MDS, BETA, SR_RTO).mean());
    let tail = |transfer: &Transfer| {
        ratio(transfer.sr(SR_RTO).percentile(99.9), transfer.ec(MDS, BETA, SR_RTO).percentile(99.9))
    };
    let ours = |candidate, percentile: Option<f64>| {
        let time = |completion: Completion| match percentile {
            Some(percent) => completion.percentile(percent),
            None => completion.mean(),
        };
        let one =
            |(drop, size)| ratio(time(ours(Candidate::Sr, drop, size)), time(ours(candidate, drop, size)));
        most(grid().map(one))
    };
    Figure {
        what: "SR RTO over EC(32,8), worst case, mean and p99.9",
        published: "6.5x and 12.2x",
        reproduced: vec![
            Value::new("mean, 64 KiB chunks", Unit::Times, worst(LARGE, &mean), 5.9..=7.1),
            Value::new("p99.9, 64 KiB chunks", Unit::Times, worst(LARGE, &tail), 11.0..=13.4),
            Value::new("mean, 4 KiB chunks", Unit::Times, worst(PACKET, &mean), 5.9..=7.1),
            Value::new("p99.9, 4 KiB chunks", Unit::Times, worst(PACKET, &tail), 9.0..=13.4),
        ],
        ours: vec![
            Value::ours("sr over mds(32,8), mean", Unit::Times, ours(Candidate::mds(32, 8), None)),
            Value::ours("sr over mds(32,8), p99.9", Unit::Times, ours(Candidate::mds(32, 8), Some(99.9))),
            Value::ours("sr over hybrid(32,8), mean", Unit::Times, ours(Candidate::hybrid(32, 8), None)),
            Value::ours(
                "sr over hybrid(32,8), p99.9",
                Unit::Times,
                ours(Candidate::hybrid(32, 8), Some(99.9)),
            ),
        ],
        note: "loss per packet of 4 KiB; chunks of 64 KiB come closest to what was published, at 3e-3",
    }
}

fn crossover() -> Figure {
    // The size from which on SR is faster, and the loss rate below which it is at 1 GiB.
    let faster = |drop, size| {
        let transfer = transfer(drop, size);
        transfer.sr(SR_RTO).mean() < transfer.ec(MDS, BETA, SR_RTO).mean()
    };
    let ours_faster =
        |drop, size| ours(Candidate::Sr, drop, size).mean() < ours(Candidate::mds(32, 8), drop, size).mean();
    let size = |faster: &dyn Fn(f64, u64) -> bool, drop: f64| {
        let log = (128..=288).find(|log| faster(drop, (f64::from(*log) / 8.0).exp2() as u64));
        log.map_or(f64::INFINITY, |log| (f64::from(log) / 8.0).exp2())
    };
    let rate = |faster: &dyn Fn(f64, u64) -> bool| {
        drops(-9, -2, 16).take_while(|drop| faster(*drop, 1 << 30)).last().unwrap_or(0.0)
    };
    Figure {
        what: "SR RTO faster than EC(32,8): from which size on, and below which loss rate at 1 GiB",
        published: "above 1 GiB, 8 GiB at 1e-5; below 1e-6",
        reproduced: vec![
            Value::new("size at 1e-5", Unit::Size, size(&faster, 1e-5), 4.0e9..=1.8e10),
            Value::new("size at 1e-6", Unit::Size, size(&faster, 1e-6), 1.0e9..=8.6e9),
            Value::new("loss rate at 1 GiB", Unit::Drop, rate(&faster), 1e-7..=1e-6),
        ],
        ours: vec![
            Value::ours("sr against mds(32,8), size at 1e-5", Unit::Size, size(&ours_faster, 1e-5)),
            Value::ours("sr against mds(32,8), loss rate at 1 GiB", Unit::Drop, rate(&ours_faster)),
        ],
        note: "where a quarter more to send takes as long as the repeats it saves",
    }
}

fn nack() -> Figure {
    let worst = |percentile: Option<f64>| {
        let time = |completion: Completion| match percentile {
            Some(percent) => completion.percentile(percent),
            None => completion.mean(),
        };
        let one = |(drop, size)| {
            let transfer = transfer(drop, size);
            ratio(time(transfer.sr(SR_RTO)), time(transfer.sr(SR_NACK)))
        };
        most(grid().map(one))
    };
    Figure {
        what: "SR RTO over SR NACK, mean and p99.9, at most",
        published: "up to 4x",
        reproduced: vec![
            Value::new("mean", Unit::Times, worst(None), 2.2..=3.0),
            Value::new("p99.9", Unit::Times, worst(Some(99.9)), 2.2..=3.0),
        ],
        ours: Vec::new(),
        note: "not reproduced: n repeats take M T + (1 + 3 n) RTT or M T + (1 + n) RTT, so the formulas stay below 3",
    }
}

/// The loss rate at which the fallback's probability reaches `probability`.
fn falls_back(code: Code, probability: f64) -> f64 {
    let reached = |drop: &f64| transfer(*drop, 128 << 20).ec(code, BETA, SR_RTO).fallback() >= probability;
    drops(-6, -1, 64).find(reached).unwrap_or(1.0)
}

fn xor_falls_back() -> Figure {
    Figure {
        what: "128 MiB, XOR(32,8): loss rate at which it falls back",
        published: "about 1e-3",
        reproduced: vec![
            Value::new("in 1 of 10 messages", Unit::Drop, falls_back(XOR, 0.1), 5e-4..=2e-3),
            Value::new("in every other", Unit::Drop, falls_back(XOR, 0.5), 1e-3..=5e-3),
        ],
        ours: vec![Value::ours(
            "of the data sent again at 3e-3",
            Unit::Drop,
            ours(Candidate::xor(32, 8), 3e-3, 128 << 20).overhead() - 0.25,
        )],
        note: "our xor asks for the missing packets of a failed block, not for all of them",
    }
}

fn mds_holds() -> Figure {
    Figure {
        what: "128 MiB, MDS(32,8), chunks of 4 KiB: loss rate up to which it holds",
        published: "beyond 1e-2",
        reproduced: vec![
            Value::new("falls back in 1 of 1000 messages", Unit::Drop, falls_back(MDS, 1e-3), 1e-2..=1e-1),
            Value::new("in every other", Unit::Drop, falls_back(MDS, 0.5), 1e-2..=1e-1),
        ],
        ours: vec![Value::ours(
            "of the data sent again at 1e-2",
            Unit::Drop,
            ours(Candidate::mds(32, 8), 1e-2, 128 << 20).overhead() - 0.25,
        )],
        note: "",
    }
}

fn repeat_slowdown() -> Figure {
    let slow = |drop| {
        let transfer = transfer(drop, 128 << 20);
        ratio(transfer.sr(SR_RTO).mean(), transfer.lossless())
    };
    let least = drops(-4, -2, 16).map(slow).fold(f64::INFINITY, f64::min);
    let ours = |candidate| {
        let slow = |drop| {
            let time = ours(candidate, drop, 128 << 20);
            ratio(time.mean(), transfer(drop, 128 << 20).lossless())
        };
        most(drops(-4, -2, 16).map(slow))
    };
    Figure {
        what: "128 MiB, SR RTO over the time without loss, 1e-4 to 1e-2",
        published: "3x to 10x",
        reproduced: vec![
            Value::new("least", Unit::Times, least, 3.0..=10.0),
            Value::new("most", Unit::Times, most(drops(-4, -2, 16).map(slow)), 3.0..=10.0),
        ],
        ours: vec![
            Value::ours("sr, at most", Unit::Times, ours(Candidate::Sr)),
            Value::ours("mds(32,8), at most", Unit::Times, ours(Candidate::mds(32, 8))),
            Value::ours("hybrid(32,8), at most", Unit::Times, ours(Candidate::hybrid(32, 8))),
        ],
        note: "",
    }
}

fn allreduce() -> Figure {
    const SITES: usize = 4;
    const BUFFER: u64 = 128 << 20;
    let ring = Ring { sites: SITES, compute: Duration::ZERO };
    let part = BUFFER / SITES as u64;
    let p999 = |time: &Completion| {
        ring.time(|percent| time.percentile(percent), |at| time.probability(at)).percentile(99.9)
    };
    let paper = |drop| {
        let transfer = transfer(drop, part);
        let ec = transfer.ec(MDS, BETA, SR_RTO);
        let coded = ring.time(|percent| ec.percentile(percent), |at| ec.probability(at));
        ratio(p999(&transfer.sr(SR_RTO)), coded.percentile(99.9))
    };
    let ours =
        |candidate, drop| ratio(p999(&ours(Candidate::Sr, drop, part)), p999(&ours(candidate, drop, part)));
    Figure {
        what: "ring Allreduce, 4 sites, 128 MiB: p99.9 with SR RTO over that with EC(32,8)",
        published: "3x to more than 6x, growing with the loss rate",
        reproduced: vec![
            Value::new("at 1e-5", Unit::Times, paper(1e-5), 2.5..=4.5),
            Value::new("at 1e-4", Unit::Times, paper(1e-4), 3.0..=5.0),
            Value::new("at 1e-3", Unit::Times, paper(1e-3), 4.0..=6.5),
            Value::new("at 1e-2", Unit::Times, paper(1e-2), 6.0..=9.0),
        ],
        ours: vec![
            Value::ours("sr over mds(32,8) at 1e-5", Unit::Times, ours(Candidate::mds(32, 8), 1e-5)),
            Value::ours("sr over mds(32,8) at 1e-2", Unit::Times, ours(Candidate::mds(32, 8), 1e-2)),
            Value::ours("sr over hybrid(32,8) at 1e-2", Unit::Times, ours(Candidate::hybrid(32, 8), 1e-2)),
        ],
        note: "",
    }
}
