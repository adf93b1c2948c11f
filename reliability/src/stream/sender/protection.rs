//! How much protection losses call for: parity, interleaving, copies. Pure arithmetic.

use crate::stream::wire::{Coding, Shape};

/// The chance that is taken of losses beyond the protection, for all of a transfer's last packets
/// together.
const RESIDUAL: f64 = 5e-4;
/// Drop rate assumed for repairs while none is known.
const ASSUMED_DROP: f64 = 0.01;
/// Above this nothing helps; and it keeps the sums within a double's range.
const MAX_DROP: f64 = 0.9;
/// Longer bursts no block bears.
const MAX_RUN: f64 = 1e6;
/// Bursts up to this share of them are borne by interleaving.
const BURSTS_BORNE: f64 = 0.99;
/// Deepest interleaving: a group is to be filled, and its copies held at the receiver, in bearable
/// time.
pub(crate) const MAX_DEPTH: u8 = 64;
/// Most extra copies of a repair.
const MAX_COPIES: u8 = 3;
/// Most parities beyond those that a block lacks, at a time.
pub(crate) const MAX_MARGIN: u8 = 8;

/// How packets get lost, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Losses {
    /// Share of packets lost; `None` if not known.
    drop: Option<f64>,
    /// Mean length of a run of lost packets; 1 if they are lost independently.
    run: f64,
}

/// How a group of blocks is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cover {
    pub(crate) depth: u8,
    /// Data packets of a block, as far as known.
    len: usize,
    pub(crate) parities: u8,
}

impl Cover {
    /// Parities per data packet.
    fn overhead(&self) -> f64 {
        f64::from(self.parities) / self.len as f64
    }
}

impl Default for Losses {
    fn default() -> Self {
        Self { drop: None, run: 1.0 }
    }
}

impl Losses {
    /// Sets the drop rate, brought between 0 and [`MAX_DROP`]; NaN for an unknown one.
    pub(crate) fn set_drop(&mut self, drop: f64) {
        self.drop = (!drop.is_nan()).then(|| drop.clamp(0.0, MAX_DROP));
    }

    /// Sets the mean length of a burst, brought between 1 and [`MAX_RUN`]; NaN is taken for 1.
    pub(crate) fn set_run(&mut self, mean: f64) {
        self.run = if mean.is_nan() { 1.0 } else { mean.clamp(1.0, MAX_RUN) };
    }

    /// Mean run of losses.
    pub(crate) fn run(&self) -> f64 {
        self.run
    }

    /// The length that most bursts do not exceed, their lengths being geometrically distributed. In
    /// packets.
    fn burst(&self) -> f64 {
        let end = 1.0 / self.run;
        if end >= 1.0 { 1.0 } else { ((1.0 - BURSTS_BORNE).ln() / (-end).ln_1p()).ceil().max(1.0) }
    }

    /// Depth and parities of the next group, when `coming` data packets are to follow, among
    /// `exposed` ones. The shape's depth is the least, and so is the one at which most bursts take
    /// no more than `m` packets of a block; a deeper one is taken if it spares parity.
    ///
    /// Rule: `docs/protocol.md#rule-tail-depth`.
    pub(crate) fn cover(&self, shape: Shape, coming: u64, exposed: u64) -> Cover {
        let least = (self.burst() / f64::from(shape.m)).ceil().min(f64::from(MAX_DEPTH)) as u8;
        let fills = |depth: u8| u64::from(depth) <= coming.max(1);
        let first = least.max(shape.depth).min(u8::try_from(coming.max(1)).unwrap_or(u8::MAX));
        let deeper = std::iter::successors(Some(first), |depth| depth.checked_mul(2))
            .skip(1)
            .take_while(|&depth| depth <= MAX_DEPTH && fills(depth) && self.run > 1.0);
        let mut best = self.cover_at(shape, first, coming, exposed);
        for depth in deeper {
            let cover = self.cover_at(shape, depth, coming, exposed);
            if cover.overhead() < best.overhead() {
                best = cover;
            }
        }
        best
    }

    fn cover_at(&self, shape: Shape, depth: u8, coming: u64, exposed: u64) -> Cover {
        let len = coming.div_ceil(depth.into()).clamp(1, shape.k.into()) as usize;
        let parities = self.parities(Shape { depth, ..shape }, len, exposed);
        Cover { depth, len, parities }
    }

    /// Parities for each block of `len` data packets, at most the shape's, so that among `exposed`
    /// packets in such blocks none is likely lost for good; without a known drop rate as many as
    /// `mds` would send.
    pub(crate) fn parities(&self, shape: Shape, len: usize, exposed: u64) -> u8 {
        let most = parities(shape, len, shape.depth);
        let Some(drop) = self.drop else { return most };
        let depth = f64::from(shape.depth.max(1));
        // How many bursts begin in a block for each packet that is lost.
        let begins = (depth / self.run).min(1.0);
        if len == 1 && shape.depth <= 1 && self.run > 1.0 {
            // Its parities are copies, which within a burst share its fate.
            let bursts = drop * (begins * exposed as f64 + 1.0 - begins);
            return few_enough(bursts, self.lost_again(1.0), shape.m);
        }
        // How often a burst hits each block it meets, and how many blocks are met together.
        let hits = (self.burst() / depth).ceil() as u32;
        let together = depth.min(self.run);
        let groups = (exposed as f64 / (len.max(1) as f64 * together)).max(1.0);
        let enough = |parities: &u8| {
            let packets = len as u32 + u32::from(*parities);
            // One burst more than begins among them may be under way as the first is sent.
            let met = drop * (begins + (1.0 - begins) / (groups * f64::from(packets)));
            groups * more_than(u32::from(*parities) / hits, packets, met) <= RESIDUAL
        };
        // Against bursts, short blocks may need more than `mds` would send; at most they are
        // doubled.
        let most = if hits > 1 { most.max(shape.m.min(len as u8)) } else { most };
        (0..most).find(enough).unwrap_or(most)
    }

    /// Parities beyond the `lacking` ones, for each of `blocks` blocks in repair, so that none is
    /// likely to fall short again.
    pub(crate) fn margin(&self, lacking: u8, blocks: usize) -> u8 {
        let drop = self.drop.unwrap_or(ASSUMED_DROP);
        let hits = self.hits();
        let enough = |margin: &u8| {
            let packets = u32::from(lacking) + u32::from(*margin);
            let met = drop / self.run;
            blocks as f64 * more_than(u32::from(*margin) / hits, packets, met) <= RESIDUAL
        };
        (0..MAX_MARGIN).find(enough).unwrap_or(MAX_MARGIN)
    }

    /// How often a burst hits the packets of a block in repair.
    pub(crate) fn hits(&self) -> u32 {
        self.burst().min(f64::from(MAX_MARGIN)) as u32
    }

    /// Extra copies of a repair when `waiting` ones are to be sent and `in_flight` packets may call
    /// for more, so that none is likely lost with all its copies.
    pub(crate) fn copies(&self, waiting: usize, in_flight: u64) -> u8 {
        let drop = self.drop.unwrap_or(ASSUMED_DROP);
        let repairs = (waiting as f64).max(drop * in_flight as f64).max(1.0);
        few_enough(repairs * drop, self.lost_again(repairs), MAX_COPIES)
    }

    /// The chance that a copy is lost like what it is a copy of, among so many `repairs`: they
    /// follow one another at the distance of the others, and within a burst they share their fate.
    pub(crate) fn lost_again(&self, repairs: f64) -> f64 {
        let drop = self.drop.unwrap_or(ASSUMED_DROP);
        if repairs < self.burst() { drop.max(1.0 - 1.0 / self.run) } else { drop }
    }
}

/// The fewest copies, `most` at most, that leave hardly a chance of losing all, where so many
/// losses are expected and each copy is lost `again` with that probability.
fn few_enough(losses: f64, again: f64, most: u8) -> u8 {
    (0..most).find(|copies| losses * again.powi((*copies).into()) <= RESIDUAL).unwrap_or(most)
}

/// The chance that more than `most` of `count` independent events of probability `p` come true; `p`
/// at most [`MAX_DROP`].
fn more_than(most: u32, count: u32, p: f64) -> f64 {
    if most >= count {
        return 0.0;
    }
    let odds = p / (1.0 - p);
    let mut term = (f64::from(count) * (-p).ln_1p()).exp();
    let mut sum = 0.0;
    // Summed term by term: the rounding of a difference from 1 is larger than the chances in
    // question.
    for events in 0..=count {
        if events > most {
            sum += term;
            if term < sum * 1e-9 {
                break;
            }
        }
        term *= f64::from(count - events) / f64::from(events + 1) * odds;
    }
    sum.min(1.0)
}

/// Parities for a block of `len` data packets, in a group of `lanes` such blocks.
///
/// The losses among `len` packets spread around their mean by about `sqrt(len)`, so a short block
/// needs more parity than its share `m * len / k`: it gets the least `m'` with
/// `m' >= m * sqrt(len / k)`, at least 2 and at most `m`. That costs nothing others want: a block
/// is short only when the sender has nothing else to send. A short XOR block keeps all parities
/// that protect anything, since the code fixes which packets each one is over.
///
/// Who interleaves expects losses in runs, and a run is not shorter where a group is: a group of
/// few packets has `m` parities at least in all, or an ACK that travels alone would be lost with
/// its two parities in most runs that meet it.
///
/// Rule: `docs/protocol.md#rule-short-block`.
pub(crate) fn parities(shape: Shape, len: usize, lanes: u8) -> u8 {
    let (k, m) = (usize::from(shape.k), usize::from(shape.m));
    let least = if shape.depth > 1 { m.div_ceil(usize::from(lanes.max(1))) } else { 0 }.max(2).min(m);
    let parities = match shape.coding {
        _ if len == 0 => 0,
        Coding::Xor => m.min(len),
        _ => (least..m).find(|p| p * p * k >= m * m * len).unwrap_or(m),
    };
    parities as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Scheme;

    fn losses(drop: f64, run: f64) -> Losses {
        let mut losses = Losses::default();
        losses.set_drop(drop);
        losses.set_run(run);
        losses
    }

    #[test]
    fn the_tail_of_the_binomial_distribution() {
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-6, "{a} {b}");
        close(more_than(0, 1, 0.25), 0.25);
        close(more_than(1, 3, 0.5), 0.5);
        close(more_than(0, 200, 1e-9), 1.999_999_801e-7);
        // 1 - sum_{i<=8} C(40, i) 0.01^i 0.99^(40-i), by exact fractions.
        close(more_than(8, 40, 0.01), 2.066_874_02e-10);
        close(more_than(254, 255, 0.9), 0.9_f64.powi(255));
        assert_eq!((more_than(3, 3, 0.9), more_than(0, 9, 0.0)), (0.0, 0.0));
    }

    #[test]
    fn parity_follows_the_drop_rate_and_the_number_of_blocks() {
        let shape = Scheme::mds(32, 8).shape();
        let parities = |drop, len, exposed| losses(drop, 1.0).parities(shape, len, exposed);
        assert_eq!(
            [1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 5e-2].map(|drop| parities(drop, 32, 8000)),
            [0, 1, 2, 3, 5, 8]
        );
        assert_eq!([1, 32, 1000, 1_000_000].map(|exposed| parities(1e-5, 32, exposed)), [0, 0, 1, 2]);
        assert_eq!([1, 2, 4, 16, 32].map(|len| parities(0.05, len, len as u64)), [2, 2, 3, 5, 8]);
        assert_eq!(parities(f64::NAN, 32, 1), 8, "unknown: all");
        assert_eq!(parities(7.0, 32, 1), 8);
        assert_eq!(parities(-1.0, 32, 1000), 0);
    }

    #[test]
    fn a_lone_packet_has_so_many_copies_that_a_burst_ends_among_them() {
        let shape = Scheme::mds(32, 8).shape();
        let copies = |drop, run| losses(drop, run).parities(shape, 1, 1);
        // 7/8 to the 5th is 0.51, to the 6th 0.45.
        assert_eq!([1e-2, 1e-3, 4e-4].map(|drop| copies(drop, 8.0)), [8, 6, 0]);
        assert_eq!(copies(1e-2, 1.0), 1, "independent losses");
    }

    #[test]
    fn interleaving_bears_nearly_all_bursts() {
        let depth = |drop, run, m, least| {
            let shape = Scheme::Hybrid { k: 32, m, depth: least }.shape();
            losses(drop, run).cover(shape, 100_000, 100_000).depth
        };
        // The 99th percentile of a geometric distribution of mean 10 is 44. With an unknown drop
        // rate, all parities are sent anyway.
        let unknown = |run, m, least| depth(f64::NAN, run, m, least);
        assert_eq!(
            [unknown(1.0, 8, 1), unknown(2.0, 8, 1), unknown(10.0, 8, 1), unknown(10.0, 1, 1)],
            [1, 1, 6, 44]
        );
        assert_eq!([unknown(1e9, 1, 1), unknown(f64::NAN, 8, 3), unknown(0.0, 8, 0)], [64, 3, 1]);
        assert_eq!(depth(0.01, 1.0, 8, 1), 1, "independent losses call for none");
    }

    #[test]
    fn deeper_interleaving_spares_parity_if_there_are_packets_to_fill_it() {
        let shape = Scheme::mds(32, 8).shape();
        let cover = |coming| losses(1e-3, 10.0).cover(shape, coming, coming);
        for coming in [40, 400, 4000, 40_000] {
            let Cover { depth, parities, .. } = cover(coming);
            // A burst takes no more packets than there are.
            assert!(
                u64::from(depth) * u64::from(parities) >= 44.min(coming),
                "{coming}: depth {depth}, {parities} parities"
            );
        }
        assert!(cover(4000).overhead() < 0.13 && cover(4000).depth > cover(40).depth);
        assert_eq!(cover(3).depth, 3, "no more blocks than packets");
        assert_eq!(losses(1e-6, 10.0).cover(shape, 400, 400).parities, 0, "hardly ever a burst");
    }

    #[test]
    fn repairs_are_sent_so_often_that_all_but_few_arrive() {
        let copies = |drop, waiting, in_flight| losses(drop, 1.0).copies(waiting, in_flight);
        assert_eq!([1e-5, 1e-3, 1e-2, 5e-2].map(|drop| copies(drop, 1, 8000)), [0, 1, 2, 3]);
        assert_eq!(copies(1e-2, 1, 10), 1);
        assert!(losses(1e-3, 20.0).copies(1, 10) > copies(1e-3, 1, 10));
    }

    #[test]
    fn further_parity_has_a_margin() {
        let margin = |drop, lacking, blocks| losses(drop, 1.0).margin(lacking, blocks);
        assert_eq!([1e-5, 1e-3, 1e-2, 5e-2].map(|drop| margin(drop, 1, 1)), [0, 1, 1, 2]);
        assert!(margin(1e-2, 6, 100) > margin(1e-2, 1, 1));
        assert_eq!(margin(1.0, 9, 9), MAX_MARGIN);
    }

    #[test]
    fn short_blocks_keep_their_strength() {
        let shape = Scheme::mds(32, 8).shape();
        let parities = [1, 2, 4, 8, 16, 31, 32].map(|len| parities(shape, len, 1));
        assert_eq!(parities, [2, 2, 3, 4, 6, 8, 8]);
    }

    #[test]
    fn a_run_is_borne_by_a_group_of_few_packets_as_well() {
        let shape = Scheme::Mds { k: 32, m: 8, depth: 4 }.shape();
        let lone = [1, 2, 3, 4].map(|lanes| parities(shape, 1, lanes));
        assert_eq!(lone, [8, 4, 3, 2]);
        assert_eq!([2, 8, 32].map(|len| parities(shape, len, 4)), [2, 4, 8], "as without interleaving");
    }

    #[test]
    fn parity_never_exceeds_the_code_nor_misses_a_block() {
        for (k, m) in [(1, 1), (4, 1), (200, 55), (10, 2)] {
            for scheme in [Scheme::mds(k, m), Scheme::xor(k, m)] {
                let shape = scheme.shape();
                for len in 1..=usize::from(shape.k) {
                    assert!((1..=shape.m).contains(&parities(shape, len, 1)), "{scheme:?} {len}");
                }
                assert_eq!(parities(shape, usize::from(shape.k), 1), shape.m);
            }
        }
    }
}
