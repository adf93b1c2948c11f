//! Responder side: DCQCN's reaction point (Zhu et al., "Congestion Control for Large-Scale RDMA
//! Deployments", SIGCOMM 2015, section 3.2): how fast a flow sends after its target's NIC has told
//! of congestion.

use std::time::{Duration, Instant};

use super::Far;

/// Weight of a notification in the estimate of congestion, and its complement.
const G: f64 = 1.0 / 256.0;
/// Without a notification for this time the estimate decays; the rate rises as often, too (K and
/// the timer T in the paper).
const PERIOD: Duration = Duration::from_micros(55);
/// The rate also rises each time so many bytes are sent (B).
const BYTES: u64 = 10_000_000;
/// Before this step of either counter the rate only comes back to what it was before the cut (F).
const FAST_RECOVERY: u32 = 5;
/// From there on each step raises what the rate aims at by this part of the line rate (R_AI: 40
/// Mbit/s of 40 Gbit/s).
const ADDITIVE: f64 = 0.001;
/// A notification within this time of a cut is about what was sent before it: a notification point
/// sends none sooner (N).
const APART: Duration = Duration::from_micros(50);
/// No flow is slower than this part of the line rate, or than 10 Mbit/s: a packet of 4 KiB must not
/// take as long as its target is waited for.
const LEAST: f64 = 0.001;
const LEAST_BYTES: f64 = 1_250_000.0;
/// From this part of the line rate on nothing is held back.
const RECOVERED: f64 = 0.99;
/// More steps than it takes to get from the least rate to the line's.
const MOST_STEPS: u32 = 2048;
/// Time whose worth of bytes goes at once: a thread of the gateway's sleeps as long.
const BURST: Duration = Duration::from_micros(300);

/// A flow's rate between a notification and its recovery, in bytes per second.
///
/// Timers are looked at when something is sent or a notification comes; of a flow that does neither
/// the rate does not matter.
#[serde_with::serde_as]
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct ReactionPoint {
    line: f64,
    /// R_C.
    current: f64,
    /// R_T: what `current` rises to.
    target: f64,
    /// The estimate of congestion.
    alpha: f64,
    #[serde_as(as = "Option<snapshot::At>")]
    cut: Option<Instant>,
    /// From when the next period of both timers counts.
    #[serde_as(as = "snapshot::At")]
    from: Instant,
    timer_steps: u32,
    byte_steps: u32,
    bytes: u64,
    /// When what was sent is through at this rate, and the next may go if that is to come.
    #[serde_as(as = "snapshot::At")]
    paid_at: Instant,
    #[serde_as(as = "Option<snapshot::At>")]
    held_until: Option<Instant>,
}

impl ReactionPoint {
    /// At line rate.
    fn new(line: u64, now: Instant) -> Self {
        let line = (line as f64).max(LEAST_BYTES);
        Self {
            line,
            current: line,
            target: line,
            alpha: 1.0,
            cut: None,
            from: now,
            timer_steps: 0,
            byte_steps: 0,
            bytes: 0,
            paid_at: now,
            held_until: None,
        }
    }

    /// A notification has come. False if it says nothing new.
    fn notify(&mut self, now: Instant) -> bool {
        if self.cut.is_some_and(|cut| now.saturating_duration_since(cut) < APART) {
            return false;
        }
        self.advance(now);
        self.target = self.current;
        let least = (self.line * LEAST).max(LEAST_BYTES);
        self.current = (self.current * (1.0 - self.alpha / 2.0)).max(least);
        self.alpha = (1.0 - G) * self.alpha + G;
        (self.cut, self.from) = (Some(now), now);
        (self.timer_steps, self.byte_steps, self.bytes) = (0, 0, 0);
        true
    }

    /// So many bytes leave.
    fn sent(&mut self, len: usize, now: Instant) {
        self.advance(now);
        self.bytes += len as u64;
        if self.bytes >= BYTES {
            self.bytes -= BYTES;
            self.byte_steps += 1;
            self.increase();
        }
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        self.paid_at = self.paid_at.max(earliest) + self.time_of(len);
        self.held_until = Some(self.paid_at).filter(|at| now < *at);
    }

    fn advance(&mut self, now: Instant) {
        let periods = periods(self.from, now);
        self.from += PERIOD * periods;
        self.alpha *= (1.0 - G).powi(periods.min(MOST_STEPS).cast_signed());
        for _ in 0..periods.min(MOST_STEPS) {
            self.timer_steps += 1;
            self.increase();
        }
    }

    fn increase(&mut self) {
        if self.timer_steps.max(self.byte_steps) >= FAST_RECOVERY {
            self.target = (self.target + self.line * ADDITIVE).min(self.line);
        }
        self.current = (self.current + self.target) / 2.0;
    }

    /// How long so many bytes take.
    fn time_of(&self, len: usize) -> Duration {
        Duration::from_secs_f64(len as f64 / self.current)
    }

    fn has_recovered(&self) -> bool {
        self.current >= self.line * RECOVERED
    }
}

/// Whole periods between these.
fn periods(from: Instant, now: Instant) -> u32 {
    let periods = now.saturating_duration_since(from).as_nanos() / PERIOD.as_nanos();
    u32::try_from(periods).unwrap_or(u32::MAX)
}

impl<B: AsRef<[u8]>> Far<B> {
    /// The target's NIC has told of congestion on its LAN. False if the flow is over, or was told
    /// just now.
    pub fn slow_down(&mut self, now: Instant) -> bool {
        if self.is_ending() {
            return false;
        }
        let line = self.config.line_rate;
        let reaction = self.reaction.get_or_insert_with(|| Box::new(ReactionPoint::new(line, now)));
        let slowed = reaction.notify(now);
        self.stats.slowed.add(slowed.into());
        slowed
    }

    /// When the rate lets the next packet go, if one waits for that.
    pub(super) fn release_at(&self) -> Option<Instant> {
        let held_until = self.reaction.as_ref()?.held_until?;
        (self.window.unsent(0).is_some() || self.replays.next().is_some()).then_some(held_until)
    }

    pub(super) fn release(&mut self, now: Instant) {
        if let Some(reaction) = &mut self.reaction {
            reaction.held_until = reaction.held_until.filter(|until| now < *until);
        }
    }

    /// Returns true if the target gets no more at the flow's rate for now.
    pub(super) fn is_held(&self, now: Instant) -> bool {
        let until = self.reaction.as_ref().and_then(|reaction| reaction.held_until);
        until.is_some_and(|until| now < until)
    }

    /// Returns true if so many bytes take so long that the ACK they are followed by would not come
    /// in time, if only every [`ack_req_every`](super::FarConfig::ack_req_every)th packet asks for
    /// one.
    pub(super) fn is_slow(&self, len: usize) -> bool {
        let reaction = self.reaction.as_ref();
        reaction.is_some_and(|reaction| {
            reaction.time_of(len) * self.config.ack_req_every >= self.config.rto_min / 2
        })
    }

    pub(super) fn account_bytes(&mut self, len: usize, now: Instant) {
        let Some(reaction) = &mut self.reaction else { return };
        reaction.sent(len, now);
        if reaction.has_recovered() {
            self.reaction = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 1_250_000_000;

    #[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
    fn start() -> Instant {
        Instant::now()
    }

    fn share(reaction: &ReactionPoint) -> f64 {
        reaction.current / LINE as f64
    }

    #[track_caller]
    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found}, expected {expected}");
    }

    #[test]
    fn notifications_cut_by_half_of_the_estimate() {
        let mut now = start();
        let mut reaction = ReactionPoint::new(LINE, now);
        assert!(reaction.notify(now));
        close(share(&reaction), 0.5);
        now += APART - Duration::from_nanos(1);
        assert!(!reaction.notify(now), "about the same");
        close(share(&reaction), 0.5);
        now += Duration::from_nanos(1);
        assert!(reaction.notify(now));
        close(share(&reaction), 0.25);
        // 55 us without one: the estimate decays by a 256th, and the rate recovers half of the cut
        // first.
        now += PERIOD;
        assert!(reaction.notify(now));
        close(reaction.target / LINE as f64, 0.375);
        close(share(&reaction), 0.375 * (1.0 - 255.0 / 256.0 / 2.0));
        close(reaction.alpha, (255.0 / 256.0) * (255.0 / 256.0) + 1.0 / 256.0);
    }

    #[test]
    fn the_rate_comes_back_and_then_rises_by_and_by() {
        let mut now = start();
        let mut reaction = ReactionPoint::new(LINE, now);
        for _ in 0..3 {
            reaction.notify(now);
            now += APART;
        }
        now -= APART;
        close(share(&reaction), 0.125);
        let expected = [0.1875, 0.218_75, 0.234_375, 0.242_187_5, (0.251 + 0.242_187_5) / 2.0];
        for (step, expected) in expected.into_iter().enumerate() {
            now += PERIOD;
            reaction.sent(0, now);
            close(share(&reaction), expected);
            assert_eq!(reaction.timer_steps as usize, step + 1);
        }
        // Bytes count likewise.
        reaction.sent(BYTES as usize, now);
        close(share(&reaction), (0.252 + expected[4]) / 2.0);
        assert!(!reaction.has_recovered());
        now += PERIOD * 760;
        reaction.sent(0, now);
        assert!(reaction.has_recovered());
    }

    #[test]
    fn a_flow_is_never_slower_than_it_may_be_and_a_long_pause_costs_little() {
        let mut now = start();
        let mut reaction = ReactionPoint::new(LINE, now);
        for _ in 0..10_000 {
            reaction.notify(now);
            now += APART;
        }
        close(share(&reaction), LEAST);
        assert!(reaction.alpha > 0.99);
        reaction.sent(0, now + Duration::from_secs(1 << 30));
        assert!(reaction.has_recovered());
        let mut reaction = ReactionPoint::new(0, now);
        (0..100).for_each(|_| reaction.sent(4096, now));
        assert!(reaction.notify(now) && reaction.has_recovered(), "as slow as any");
        assert_eq!(reaction.held_until, Some(now + Duration::from_micros(327_680)));
    }

    /// Flows that share a switch's port with a shallow buffer, as in the paper (section 4): marked
    /// from 5 KB of queue on, one in a hundred at 200 KB, all above; 50 us between a flow's
    /// notifications.
    #[test]
    fn flows_share_a_bottleneck_with_a_short_queue() {
        const PACKET: usize = 1024;
        const FLOWS: usize = 4;
        let begin = start();
        let mut reactions: [Option<ReactionPoint>; FLOWS] = [None; FLOWS];
        let (mut told, mut sent) = ([begin; FLOWS], [0_u64; FLOWS]);
        let (mut queue, mut random, mut longest, mut served) = (0.0_f64, 1_u64, 0.0_f64, 0.0_f64);
        let tick = Duration::from_nanos(820);
        let (mut arrivals, mut carried) = ([0.0; FLOWS], 0.0);
        for step in 0..200_000_u32 {
            let now = begin + tick * step;
            let is_settled = step > 100_000;
            for flow in 0..FLOWS {
                let rate = reactions[flow].map_or(LINE as f64, |reaction| reaction.current);
                arrivals[flow] += rate * tick.as_secs_f64();
                while arrivals[flow] >= PACKET as f64 {
                    arrivals[flow] -= PACKET as f64;
                    queue += PACKET as f64;
                    sent[flow] += u64::from(is_settled);
                    if let Some(reaction) = &mut reactions[flow] {
                        reaction.sent(PACKET, now);
                    }
                    let chance = if queue > 2e5 { 1.0 } else { 0.01 * (queue - 5e3) / 1.95e5 };
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let is_marked = (random >> 11) as f64 / (1_u64 << 53) as f64 <= chance;
                    if is_marked && now >= told[flow] {
                        told[flow] = now + APART;
                        reactions[flow].get_or_insert_with(|| ReactionPoint::new(LINE, now)).notify(now);
                    }
                }
                reactions[flow] = reactions[flow].filter(|reaction| !reaction.has_recovered());
            }
            carried += LINE as f64 * tick.as_secs_f64();
            let leaves = queue.min(LINE as f64 * tick.as_secs_f64());
            queue -= leaves;
            if is_settled {
                served += leaves;
                longest = longest.max(queue);
            }
        }
        let all: u64 = sent.iter().sum();
        let (least, most) = (*sent.iter().min().unwrap_or(&0), *sent.iter().max().unwrap_or(&0));
        println!("use {:.3}, longest {longest:.0}, least {least}, most {most}", served / (carried / 2.0));
        assert!(served / (carried / 2.0) > 0.9, "the port idles: {served} of {}", carried / 2.0);
        assert!(longest < 4e5, "{longest}");
        assert!(least * 2 > most && all > 0, "{sent:?}");
    }
}
