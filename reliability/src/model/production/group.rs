//! A group of interleaved blocks: what its parity restores, and what it leaves to repair.

use super::protection::Protection;
use crate::model::candidate::{Block, Candidate};
use crate::model::losses::{Losses, Shortfall};
use crate::stream::redundancy;
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
    /// Losses that one of its codes bears.
    pub(super) borne: f64,
    /// How long its parity waits if it is closed before it is full, in packets' time.
    pub(super) pause: f64,
    /// Probability that any data packet is lost ...
    pub(super) any: f64,
    /// ... that something is not restored by parity ...
    pub(super) fail: f64,
    /// ... and that the receiver does not even know what it misses: the last data packet and all parity are lost.
    pub(super) unknown: f64,
    /// Expected number of packets to be sent again, zero where parity suffices.
    pub(super) repairs: f64,
    /// After so many parities of each block, the probability that something is still missing; ascending, the last with all parities.
    pub(super) stages: Vec<(f64, f64)>,
}

/// Codes alike within a group: a Reed-Solomon block, or one parity of an XOR block with its data packets.
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

    /// Whether the last `data` packets of a transfer get any parity.
    pub(super) fn has_parity(&self, data: u32) -> bool {
        let len = data.div_ceil(u32::from(self.block.depth)).min(u32::from(self.block.k));
        self.parities(len as usize, data) > 0
    }

    /// Data packets of a full group.
    pub(super) fn packets(&self) -> u32 {
        u32::from(self.block.k) * u32::from(self.block.depth)
    }

    /// Parities for a block of `len` data packets, in a group of `data` in all; `docs/protocol.md`, Blocks.
    pub(super) fn parities(&self, len: usize, data: u32) -> usize {
        match (len, &self.protection) {
            (0, _) => 0,
            (_, Some(protection)) => protection.parities(len),
            _ => redundancy::parities(self.shape(), len, self.shape().lanes(data)).into(),
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
    /// `flush` after the first packet and `quiet` after the last one in packets' time; `precise`: with all stages, not only the last one.
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
            borne: longest as f64,
            pause,
            any,
            fail: total.probability.min(any),
            unknown: losses.all_of_apart(pause, parity),
            repairs: total.excess,
            stages: Vec::new(),
        };
        group.stages = if !precise {
            vec![(rows as f64, group.fail)]
        } else if layout.xor {
            group.xor_stages(rows)
        } else {
            let stage = |parities| {
                (
                    parities as f64,
                    Self::shortfall(losses, &seen, &codes, (stride, waits), parities).probability,
                )
            };
            let mut stages: Vec<_> = std::iter::successors(Some(1), |parities| Some(parities * 2))
                .take_while(|parities| *parities < longest)
                .map(stage)
                .collect();
            stages.push((longest as f64, group.fail));
            stages
        };
        group
    }

    /// Packets to be sent again when parity does not suffice, at least 1.
    pub(super) fn lost_if_failed(&self) -> f64 {
        if self.fail > 0.0 { (self.repairs / self.fail).max(1.0) } else { 1.0 }
    }

    /// Packets of a code that fell short that are missing: all that were lost, until the last one can be restored.
    pub(super) fn missing_if_failed(&self) -> f64 {
        self.borne + self.lost_if_failed()
    }

    /// Likewise after so many parities of each block.
    pub(super) fn missing_after(&self, parities: f64) -> f64 {
        self.borne.min(parities) + 1.0
    }

    /// Codes with at most `most` of their parities, all together. Clustered losses hit codes that are interleaved at the same time.
    fn shortfall(
        losses: &Losses,
        seen: &Losses,
        codes: &[Code],
        (stride, waits): (f64, f64),
        most: usize,
    ) -> Shortfall {
        let together = losses.cluster().clamp(1.0, stride.max(1.0));
        let (mut log, mut excess) = (0.0, 0.0);
        for code in codes {
            let parity = code.parity.min(most);
            let one = seen.more_than_apart(parity, code.data + parity, (code.data, waits));
            log += code.count * (-one.probability.min(1.0 - f64::EPSILON)).ln_1p();
            excess += code.count * one.excess;
        }
        Shortfall { probability: -(log / together).exp_m1(), excess }
    }

    /// Parities of an XOR block come one after the other, each for its own packets: the time of the one that is needed is uniform.
    fn xor_stages(&self, rows: usize) -> Vec<(f64, f64)> {
        const STAGES: u32 = 4;
        let stage = |stage: u32| {
            let share = f64::from(stage) / f64::from(STAGES);
            (share * rows as f64, self.any + share * (self.fail - self.any))
        };
        (1..=STAGES).map(stage).collect()
    }
}
