//! The sending end: what the path is like.

use std::ops;
use std::time::{Duration, Instant};

use super::buckets::Counts;
use super::history::History;
use super::interval::{Chain, Range};
use super::path_rtt::PathRtt;
use super::report::PathReport;
use super::sizes::{BySize, SIZES, SentSizes};
use super::summary::{Reordering, Rtt, Summary};
use super::unsent::Unsent;
use super::{Clock, LaneId, stamp};
use crate::stream::Malformed;

/// Delivered bandwidth is averaged over about so long.
const RATE_TIME: f64 = 1e6;
/// The peak is that of the last one to two of these.
const PEAK_TIME: u64 = 30_000_000;
/// Round-trip times beyond this are no measurements.
const LONGEST_RTT: u32 = 30_000_000;

/// How a [`PathEstimate`] is set up.
#[derive(Clone, Copy, Debug)]
pub struct EstimateConfig {
    /// The lane estimated.
    pub lane: LaneId,
    /// The round-trip time assumed until the first measurement.
    pub rtt: Duration,
    /// Age beyond which counts are forgotten, whether the path has changed or not.
    pub memory: Duration,
}

impl EstimateConfig {
    /// For lane 0, with ten minutes of memory.
    #[must_use]
    pub fn new(rtt: Duration) -> Self {
        Self { lane: LaneId(0), rtt, memory: Duration::from_secs(600) }
    }
}

/// An estimate of the path to the peer, from the peer's [`PathReport`]s and from round-trip times.
///
/// # How short and long windows are combined
/// The drop rate and the bursts are those of all packets since the path last *changed*, ten minutes
/// at most. After each report every point of time is tried, in steps that grow with age: if a
/// Gilbert chain for each side of it explains the counts e^16 times better than one for both, the
/// path has changed there and what came before is forgotten. So the window is as long as the path
/// is steady, and as short as it must be. How soon that is, counted in runs of losses to be
/// expected at the higher of the two rates, in the median and at worst of 20 (measured by
/// `tests/all/estimator.rs`):
/// - a rate a hundred times higher 4 and 10, ten times higher 12 and 28, twice as high 120 and 270;
/// - a hundredth of the rate, or nothing at all, 17 and 19; half of it 165 and 390;
///
/// plus about three round trips: half of one for the packet, the observer's patience of one or
/// more, up to one until the next report, half of one for that. Where runs of losses came in
/// clusters before, a change has to outlast them. Where loss comes and goes for longer than some
/// reports the estimate follows each spell; [`Summary::drop_long_run`] is over all of ten minutes.
///
/// Bounds are exact Poisson bounds for as many independent events as would vary as much as the
/// losses do: neighbours' correlation and the scatter between reports widen them. They hold from no
/// loss on where losses come alone; where they come in bursts, from about ten bursts on.
///
/// Numbers that never left this machine ([`PathEstimate::unsent`]) are no losses, nor are as many
/// as the peer's machine dropped ([`PathReport::overrun`]). A loss is taken for congestive if all
/// round-trip times between two of the last reports, eight at least, exceeded their minimum by more
/// than an eighth and more than a millisecond (a queue that stands delays every packet, jitter only
/// some), or if marks of congestion came with it.
///
/// # Driver contract
/// [`PathEstimate::sent`] for every packet number used, in order; [`PathEstimate::handle_report`]
/// for every PATH packet; [`PathEstimate::sample_rtt`] for round-trip times measured elsewhere.
/// `now` must not run backwards; if it does, it is taken as standing still.
///
/// # Bounds
/// Fixed memory, about 60 KiB. Reports overtaken by later ones are ignored; of packet sizes sent
/// longer than 4 million packets ago nothing is known.
#[derive(Debug)]
pub struct PathEstimate {
    config: EstimateConfig,
    clock: Clock,
    now: u64,
    rtt: PathRtt,
    history: History,
    sent: SentSizes,
    sizes: BySizes,
    unsent: Unsent,
    overrun: Overrun,
    /// Packets whose loss is none of the path's: sent since the last report, and those looked for.
    excuses: u64,
    excused: Overrun,
    last: Option<PathReport>,
    /// When it came.
    heard: u64,
    delivered: Delivered,
}

impl PathEstimate {
    /// Knows nothing. `origin` is the session's begin, the same as for the [`super::PathObserver`]
    /// and the [`super::Prober`] at this gateway.
    #[must_use]
    pub fn new(config: EstimateConfig, origin: Instant) -> Self {
        Self {
            clock: Clock::new(origin),
            now: 0,
            rtt: PathRtt::new(config.rtt),
            history: History::new(config.memory),
            sent: SentSizes::new(),
            sizes: BySizes::default(),
            unsent: Unsent::new(),
            overrun: Overrun::default(),
            excuses: 0,
            excused: Overrun::default(),
            last: None,
            heard: 0,
            delivered: Delivered::new(),
            config,
        }
    }

    /// The next packet number was used for a datagram of `bytes`, counted as in
    /// [`super::Arrival::bytes`].
    pub fn sent(&mut self, bytes: usize) {
        self.sent.sent(bytes);
    }

    /// Packet numbers used.
    #[must_use]
    pub fn numbers(&self) -> u64 {
        self.sent.count()
    }

    /// Datagrams of these numbers never left: the socket or its queue dropped them. Ranges must
    /// come in ascending order.
    pub fn unsent(&mut self, numbers: ops::Range<u64>) {
        self.unsent.add(numbers);
    }

    /// So many packets, just sent, may get lost for what they are, as a probe longer than the path
    /// carries is (RFC 8899, section 3): as many of the losses that the next eight reports tell of
    /// are none of the path's.
    pub fn exclude(&mut self, packets: u64) {
        self.excuses += packets;
    }

    /// So many of these did not get lost.
    pub fn include(&mut self, packets: u64) {
        let untold = packets.min(self.excuses);
        self.excuses -= untold;
        self.excused.forget((packets - untold) as f64);
    }

    /// A round-trip time was measured.
    pub fn sample_rtt(&mut self, rtt: Duration, now: Instant) {
        self.now = self.now.max(self.clock.micros(now));
        self.rtt.sample(rtt, self.now);
    }

    /// Smoothed round-trip time; the hint before the first measurement.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.rtt.smoothed()
    }

    /// About how far apart reports are meant to be that [`PathEstimate::handle_report`] is told of,
    /// at this round-trip time.
    #[must_use]
    pub fn report_interval(rtt: Duration) -> Duration {
        super::report_interval(rtt)
    }

    /// Checks that this can be a report on this lane.
    ///
    /// # Errors
    /// It is of another lane, or tells of packets never sent.
    pub fn check(&self, report: &PathReport) -> Result<(), Malformed> {
        let is_known = report.lane == self.config.lane && report.told().next <= self.sent.count();
        if is_known { Ok(()) } else { Err(Malformed::Path) }
    }

    /// A report of the peer.
    ///
    /// # Errors
    /// [`Malformed`], and nothing has changed, if it is of another lane or tells of packets never
    /// sent.
    pub fn handle_report(&mut self, report: &PathReport, now: Instant) -> Result<(), Malformed> {
        self.check(report)?;
        self.now = self.now.max(self.clock.micros(now));
        if self.last.is_some_and(|last| report.number.wrapping_sub(last.number) as i32 <= 0) {
            return Ok(());
        }
        self.take_echo(report);
        let inflated = self.rtt.end_period();
        let last = self.last.replace(*report);
        self.heard = self.now;
        let last = last.unwrap_or_default();
        let steady =
            report.jumps == last.jumps && report.judged >= last.judged && report.arrived >= last.arrived;
        if steady {
            self.delivered.add(&last, report, self.now);
            self.count(&last, report, inflated);
        } else {
            // Not the same numbers as before: what lies between says nothing.
            self.unsent.judged(report.horizon);
            self.sizes.begin(report, &self.sent);
        }
        Ok(())
    }

    fn take_echo(&mut self, report: &PathReport) {
        let Some(echo) = report.echo else { return };
        let rtt = stamp(self.now).wrapping_sub(echo.sent_at).wrapping_sub(echo.held);
        if rtt <= LONGEST_RTT {
            self.rtt.sample(Duration::from_micros(u64::from(rtt)), self.now);
        }
    }

    /// Counts the events between two reports.
    fn count(&mut self, last: &PathReport, report: &PathReport, inflated: bool) {
        // What was dropped here before the observer saw its first number it does not miss.
        self.unsent.judged(report.horizon - report.judged);
        let (unsent, unsent_runs) = self.unsent.judged(report.horizon);
        let grown = |count: fn(&PathReport) -> u64| count(report) as f64 - count(last) as f64;
        let missing = grown(|report| report.lost);
        let (lost, runs) = (missing - unsent as f64, grown(|report| report.runs) - unsent_runs as f64);
        let overrun = self.overrun.take(grown(|report| report.overrun), lost);
        let lost = lost - overrun;
        let excused = self.excused.take(std::mem::take(&mut self.excuses) as f64, lost);
        let lost = lost - excused;
        // A buffer that is full drops what comes next to each other: one run. So are the probes of
        // a round.
        let found = f64::from(overrun > 0.0) + f64::from(excused > 0.0);
        let runs = if found > 0.0 { (runs - found).clamp(0.0, lost) } else { runs };
        let ce = grown(|report| report.ce).max(0.0);
        let counts = Counts {
            chain: Chain { arrived: grown(|report| report.judged) - missing, lost, runs },
            congestive: if inflated || ce > 0.0 { lost } else { 0.0 },
            reordered: grown(|report| report.reordered).max(0.0),
            duplicates: grown(|report| report.duplicates).max(0.0),
            ect: grown(|report| report.ect).max(0.0),
            ce,
        };
        self.history.push(&counts, self.now);
        self.sizes.compare(report, &self.sent, unsent > 0 || overrun > 0.0 || excused > 0.0);
    }

    /// Returns the present estimate.
    #[must_use]
    pub fn summary(&self, now: Instant) -> Summary {
        let now = self.now.max(self.clock.micros(now));
        let (counts, dispersion) = self.history.steady();
        let (all, dispersion_of_all) = self.history.all();
        let Counts { chain, congestive, reordered, duplicates, ect, ce } = counts;
        let spread = all.chain.clumping() * dispersion_of_all;
        let share = |part: f64, whole: f64| if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 };
        let last = self.last.unwrap_or_default();
        Summary {
            drop: chain.drop(dispersion),
            drop_long_run: all.chain.drop(dispersion_of_all),
            burst: chain.burst(),
            gap: chain.gap(),
            longest_burst: last.longest,
            congestive: share(congestive, chain.lost),
            drop_by_size: self.sizes.drop(spread),
            rtt: Rtt {
                minimum: self.rtt.minimum(),
                smoothed: self.rtt.smoothed(),
                variation: self.rtt.variation(),
                samples: self.rtt.samples(),
            },
            delivered: self.delivered.rate(),
            delivered_peak: self.delivered.peak(),
            reordering: Reordering {
                share: share(reordered, chain.arrived),
                packets_p99: last.extents.packets_p99,
                packets_max: last.extents.packets_max,
                time_p99: Duration::from_micros(u64::from(last.extents.micros_p99)),
                time_max: Duration::from_micros(u64::from(last.extents.micros_max)),
            },
            duplicates: share(duplicates, chain.arrived),
            ce: share(ce, ect),
            packets: (chain.arrived + chain.lost).max(0.0),
            unsent: self.unsent.total(),
            overrun: last.overrun,
            changes: self.history.changes(),
            age: self.last.map(|_| Duration::from_micros(now - self.heard)),
        }
    }
}

/// Packets that the peer's machine dropped and that were not found among the losses yet, by the
/// report that told of them, newest first. Those of eight reports ago never were this path's.
#[derive(Debug, Default)]
struct Overrun {
    pending: [f64; 8],
}

impl Overrun {
    /// `more` were dropped, and so many lost: how many of these are the same.
    fn take(&mut self, more: f64, lost: f64) -> f64 {
        self.pending.rotate_right(1);
        let [newest, ..] = &mut self.pending;
        *newest = more.max(0.0);
        let mut left = lost.max(0.0);
        for pending in self.pending.iter_mut().rev() {
            let taken = pending.min(left);
            *pending -= taken;
            left -= taken;
        }
        lost.max(0.0) - left
    }
}

impl Overrun {
    /// So many are not to be looked for, the newest of all.
    fn forget(&mut self, mut packets: f64) {
        for pending in &mut self.pending {
            let taken = pending.min(packets);
            *pending -= taken;
            packets -= taken;
        }
    }
}

/// Losses by packet size.
#[derive(Debug, Default)]
struct BySizes {
    /// Up to here both ends' counts are taken in: the number, and what was sent and had arrived
    /// then.
    base: Option<(u64, BySize, BySize)>,
    /// Numbers below were not all sent.
    tainted: u64,
    sent: BySize,
    arrived: BySize,
}

impl BySizes {
    fn begin(&mut self, report: &PathReport, sent: &SentSizes) {
        let horizon = report.size_horizon;
        self.base = sent.below(horizon).map(|sent| (horizon, sent, report.by_size));
    }

    fn compare(&mut self, report: &PathReport, sent: &SentSizes, unsent: bool) {
        if unsent {
            self.tainted = report.horizon;
        }
        if report.size_horizon < self.tainted {
            return;
        }
        let before = self.base;
        self.begin(report, sent);
        let (Some((from, sent_before, arrived_before)), Some((to, sent, arrived))) = (before, self.base)
        else {
            return;
        };
        if from < self.tainted || to < from {
            return;
        }
        let grow = |total: &mut BySize, now: BySize, before: BySize| {
            for ((total, now), before) in total.iter_mut().zip(now).zip(before) {
                *total = total.wrapping_add(now.wrapping_sub(before));
            }
        };
        grow(&mut self.sent, sent, sent_before);
        grow(&mut self.arrived, arrived, arrived_before);
    }

    fn drop(&self, spread: f64) -> [Range; SIZES] {
        let mut ranges = [Range::default(); SIZES];
        for ((range, sent), arrived) in ranges.iter_mut().zip(self.sent).zip(self.arrived) {
            // What arrives late was counted as lost before: the sum is right in the end.
            let lost = (sent.wrapping_sub(arrived) as i64).max(0) as f64;
            let chain = Chain { arrived: arrived as f64, lost, runs: lost };
            *range = chain.drop(spread);
        }
        ranges
    }
}

/// Delivered bandwidth, in bits per microsecond inside.
#[derive(Debug)]
struct Delivered {
    bits: f64,
    micros: f64,
    /// The highest of this generation and of the last one.
    peaks: [f64; 2],
    began: u64,
}

impl Delivered {
    fn new() -> Self {
        Self { bits: 0.0, micros: 0.0, peaks: [0.0; 2], began: 0 }
    }

    fn add(&mut self, last: &PathReport, report: &PathReport, now: u64) {
        // Before the first report there is no time that the bytes came in.
        if last.arrived == 0 {
            return;
        }
        let elapsed = f64::from(report.sent_at.wrapping_sub(last.sent_at));
        let faded = (-elapsed / RATE_TIME).exp();
        self.bits = self.bits * faded + report.bytes.saturating_sub(last.bytes) as f64 * 8.0;
        self.micros = self.micros * faded + elapsed;
        if now >= self.began + PEAK_TIME {
            self.began = now;
            self.peaks = [0.0, self.peaks[0]];
        }
        // Shorter times say more of the jitter than of the path.
        if self.micros >= RATE_TIME / 10.0 {
            self.peaks[0] = self.peaks[0].max(self.rate());
        }
    }

    /// In bit/s.
    fn rate(&self) -> f64 {
        if self.micros > 0.0 { self.bits / self.micros * 1e6 } else { 0.0 }
    }

    fn peak(&self) -> f64 {
        let [young, old] = self.peaks;
        young.max(old)
    }
}
