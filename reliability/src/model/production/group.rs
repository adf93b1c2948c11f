//! A group of interleaved blocks: what its parity restores, and what it leaves to repair.

use super::protection::Protection;
use crate::model::candidate::{Block, Candidate};
use crate::model::losses::Losses;
use crate::stream::protection::parities;
use crate::stream::wire::Shape;

/// The arrangement of parities over a group's packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) block: Block,
    pub(super) xor: bool,
    /// No more parity than it calls for.
    protection: Option<Protection>,
}

/// A group with a number of data packets, under a loss process.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// Data packets.
    pub(super) data: f64,
    /// Parities of all its blocks.
    pub(super) parity: f64,
    /// Blocks.
    pub(super) lanes: f64,
    /// How long its parity waits if it is closed before it is full, in packets' time.
    pub(super) pause: f64,
    /// Probability that something is not restored by parity.
    pub(super) fail: f64,
    /// Data packets missing then of the codes that fell short: all that were lost, until the last
    /// one can be restored.
    pub(super) missing: f64,
    /// Expected number of packets to be sent again, zero where parity suffices.
    pub(super) repairs: f64,
    /// The packets restored, by stage: ascending, the last with all parities.
    pub(super) stages: Vec<Stage>,
}

/// After so many parities of each block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    pub(super) parities: f64,
    /// Share of the losses that wait for their own parity still.
    pub(super) single: f64,
    /// Probability that something else is still missing, and how many data packets then.
    pub(super) incomplete: f64,
    pub(super) missing: f64,
}

/// Codes alike within a group: a Reed-Solomon block, or one parity of an XOR block with its data
/// packets.
struct Code {
    count: f64,
    data: usize,
    parity: usize,
}

impl Layout {
    pub(super) fn of(candidate: Candidate, protection: Option<&Protection>) -> Option<Self> {
        let block = protection.map_or(candidate.block()?, Protection::block).valid();
        let xor = matches!(candidate, Candidate::Xor(_));
        let m = if xor { block.m.min(block.k) } else { block.m };
        Some(Self { block: Block { m, ..block }, xor, protection: protection.copied() })
    }

    /// Returns true if the last `data` packets of a transfer get any parity.
    pub(super) fn has_parity(&self, data: u32) -> bool {
        let len = data.div_ceil(u32::from(self.block.depth)).min(u32::from(self.block.k));
        self.parities(len as usize, data) > 0
    }

    /// Data packets of a full group.
    pub(super) fn packets(&self) -> u32 {
        u32::from(self.block.k) * u32::from(self.block.depth)
    }

    /// Parities for a block of `len` data packets, in a group of `data`;
    /// `docs/protocol.md#rule-short-block`.
    pub(super) fn parities(&self, len: usize, data: u32) -> usize {
        match (len, &self.protection) {
            (0, _) => 0,
            (_, Some(protection)) => protection.parities(len),
            _ => parities(self.shape(), len, self.shape().lanes(data)).into(),
        }
    }

    fn shape(&self) -> Shape {
        let candidate = if self.xor { Candidate::Xor(self.block) } else { Candidate::Mds(self.block) };
        candidate.scheme().shape()
    }

    /// The blocks' lengths, and how many have each.
    fn blocks(&self, data: u32) -> [(f64, usize); 2] {
        let depth = u32::from(self.block.depth);
        let (short, longer) = (data / depth, data % depth);
        [(f64::from(longer), short as usize + 1), (f64::from(depth - longer), short as usize)]
    }

    fn codes(&self, data: u32) -> Vec<Code> {
        let mut codes = Vec::with_capacity(4);
        for (count, len) in self.blocks(data) {
            let parity = self.parities(len, data);
            if count == 0.0 || len == 0 {
                continue;
            }
            if self.xor {
                let (short, longer) = (len / parity.max(1), len % parity.max(1));
                codes.push(Code { count: count * longer as f64, data: short + 1, parity: 1 });
                codes.push(Code { count: count * (parity - longer) as f64, data: short, parity: 1 });
            } else {
                codes.push(Code { count, data: len, parity });
            }
        }
        codes.retain(|code| code.count > 0.0);
        codes
    }
}

impl Group {
    /// `flush` after the first packet and `quiet` after the last one in packets' time; `precise`:
    /// with all stages, not only the last one.
    pub(super) fn new(
        losses: &Losses,
        layout: &Layout,
        data: u32,
        [flush, quiet]: [f64; 2],
        precise: bool,
    ) -> Self {
        let codes = layout.codes(data);
        let lanes = f64::from(layout.shape().lanes(data));
        let longest = codes.iter().map(|code| code.parity).max().unwrap_or(0);
        let rows = if layout.xor {
            layout.parities(data.div_ceil(u32::from(layout.block.depth)) as usize, data)
        } else {
            longest
        };
        let stride = if layout.xor { lanes * rows as f64 } else { lanes };
        let seen = losses.every(stride);
        let parity = codes.iter().map(|code| code.count * code.parity as f64).sum();
        let any = losses.any_of(f64::from(data));
        let short = data < layout.packets();
        let pause = if short { (flush - f64::from(data)).clamp(0.0, quiet) } else { 0.0 };
        let waits = pause / stride;
        let total = Self::shortfall(losses, &seen, &codes, (stride, waits), usize::MAX);
        let mut group = Self {
            data: f64::from(data),
            parity,
            lanes,
            pause,
            fail: total.probability.min(any),
            missing: total.missing(),
            repairs: total.excess,
            stages: Vec::new(),
        };
        let all =
            Stage { parities: rows as f64, single: 0.0, incomplete: group.fail, missing: group.missing };
        group.stages = if !precise {
            vec![all]
        } else if layout.xor {
            all.one_by_one().collect()
        } else {
            let stage = |parities| {
                let short = Self::shortfall(losses, &seen, &codes, (stride, waits), parities);
                let parities = parities as f64;
                Stage { parities, single: 0.0, incomplete: short.probability, missing: short.missing() }
            };
            let some = std::iter::successors(Some(1), |parities| Some(parities * 2));
            some.take_while(|parities| *parities < longest).map(stage).chain([all]).collect()
        };
        group
    }

    /// Packets to be sent again when parity does not suffice, at least 1.
    pub(super) fn lost_if_failed(&self) -> f64 {
        if self.fail > 0.0 { (self.repairs / self.fail).max(1.0) } else { 1.0 }
    }

    /// Codes with at most `most` of their parities, all together. Clustered losses hit codes that
    /// are interleaved at the same time.
    fn shortfall(
        losses: &Losses,
        seen: &Losses,
        codes: &[Code],
        (stride, waits): (f64, f64),
        most: usize,
    ) -> Short {
        let together = losses.cluster().clamp(1.0, stride.max(1.0));
        let (mut log, mut excess, mut lost) = (0.0, 0.0, 0.0);
        for code in codes {
            let parity = code.parity.min(most);
            let one = seen.more_than_apart(parity, code.data + parity, (code.data, waits));
            log += code.count * (-one.probability.min(1.0 - f64::EPSILON)).ln_1p();
            excess += code.count * one.excess;
            let data = code.data as f64 / (code.data + parity) as f64;
            lost += code.count * (one.probability * parity as f64 + one.excess) * data;
        }
        Short { probability: -(log / together).exp_m1(), excess, lost }
    }
}

impl Stage {
    /// Parities of an XOR block come one after the other, each for its own packets: the time of the
    /// one that is needed is uniform. `self`: all of them.
    fn one_by_one(self) -> impl Iterator<Item = Self> {
        const STAGES: u32 = 4;
        (1..=STAGES).map(move |stage| {
            let share = f64::from(stage) / f64::from(STAGES);
            let Self { parities, incomplete, .. } = self;
            Self { parities: share * parities, single: 1.0 - share, incomplete: share * incomplete, ..self }
        })
    }
}

/// Codes that fall short.
struct Short {
    /// Probability that any does.
    probability: f64,
    /// Expected number of packets beyond what they bear.
    excess: f64,
    /// Expected number of data packets lost.
    lost: f64,
}

impl Short {
    /// Data packets lost of those that fall short, if any does.
    fn missing(&self) -> f64 {
        if self.probability > 0.0 { (self.lost / self.probability).max(1.0) } else { 1.0 }
    }
}
