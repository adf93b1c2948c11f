//! Packets sent for their arrival's sake.

use std::time::{Duration, Instant};

use super::report::{PROBE_PACKET, emit_probe};
use super::{Clock, LaneId, stamp};

/// How often a [`Prober`] speaks, and at what length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeConfig {
    /// Most probes a second; 0: none. At most 1000 are sent.
    pub per_second: u32,
    /// Length of a probe in bytes, before sealing. At least [`PROBE_PACKET`].
    pub bytes: usize,
}

impl Default for ProbeConfig {
    /// Four a second, as long as a report.
    fn default() -> Self {
        Self { per_second: 4, bytes: 160 }
    }
}

/// Sends PROBE packets while nothing else is sent, so that the path stays known. Never more than
/// [`ProbeConfig::per_second`].
///
/// Driver: [`Prober::traffic`] for every packet sent that the peer's observer reports on;
/// [`Prober::poll`] after it and at [`Prober::next_timeout`].
#[derive(Clone, Debug)]
pub struct Prober {
    lane: LaneId,
    clock: Clock,
    bytes: usize,
    /// `None`: never.
    spacing: Option<Duration>,
    /// Shorter than that, for a while.
    hurry: Option<Duration>,
    /// When something was sent last.
    last: Instant,
    sent: u64,
}

impl Prober {
    /// The first probe is due after one interval. `origin` as for the [`super::PathEstimate`].
    #[must_use]
    pub fn new(config: ProbeConfig, lane: LaneId, origin: Instant) -> Self {
        let spacing =
            (config.per_second > 0).then(|| Duration::from_secs(1) / config.per_second.clamp(1, 1000));
        Self {
            lane,
            clock: Clock::new(origin),
            bytes: config.bytes.clamp(PROBE_PACKET, usize::from(u16::MAX)),
            spacing,
            hurry: None,
            last: origin,
            sent: 0,
        }
    }

    /// Something else was sent: no probe is needed for a while.
    pub fn traffic(&mut self, now: Instant) {
        self.last = now;
    }

    /// From now on probes are no further apart than this, whatever the configuration says; `None`:
    /// as it says. A millisecond at least.
    pub fn hurry(&mut self, spacing: Option<Duration>) {
        self.hurry = spacing.map(|spacing| spacing.max(Duration::from_millis(1)));
    }

    /// Writes the probe that is due, or as much of its padding as fits; its length.
    pub fn poll(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        self.next_timeout().filter(|due| *due <= now)?;
        let len = self.bytes.min(out.len());
        let out = out.get_mut(..len).filter(|out| out.len() >= PROBE_PACKET)?;
        emit_probe(self.lane, stamp(self.clock.micros(now)), out);
        self.traffic(now);
        self.sent += 1;
        Some(len)
    }

    /// When a probe is due.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let spacing = self.hurry.into_iter().chain(self.spacing).min()?;
        Some(self.last + spacing)
    }

    /// Probes sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
    fn origin() -> Instant {
        Instant::now()
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn probes_fill_silence_and_no_more() {
        let start = origin();
        let mut prober = Prober::new(ProbeConfig::default(), LaneId(0), start);
        let mut out = [1; 1400];
        let mut sent = Vec::new();
        for ms in 0..3000_u32 {
            let now = start + ms * MS;
            if (1000..2000).contains(&ms) && ms % 100 == 0 {
                prober.traffic(now);
            }
            if let Some(len) = prober.poll(now, &mut out) {
                sent.push(ms);
                assert_eq!((len, out[len]), (160, 1));
            }
            assert!(prober.next_timeout().unwrap() > now);
        }
        assert_eq!(sent, [250, 500, 750, 2150, 2400, 2650, 2900]);
        assert_eq!(prober.sent(), 7);
    }

    #[test]
    fn a_rate_of_zero_is_silence_and_the_highest_is_bounded() {
        let start = origin();
        let mut off = Prober::new(ProbeConfig { per_second: 0, bytes: 160 }, LaneId(0), start);
        assert_eq!((off.next_timeout(), off.poll(start + 9999 * MS, &mut [0; 200])), (None, None));
        let mut fast = Prober::new(ProbeConfig { per_second: u32::MAX, bytes: 0 }, LaneId(0), start);
        assert_eq!(fast.next_timeout(), Some(start + MS));
        assert_eq!(fast.poll(start + MS, &mut [0; 31]), None, "no room for a probe");
        assert_eq!(fast.poll(start + MS, &mut [0; 200]), Some(32));
        assert_eq!(fast.poll(start + MS, &mut [0; 200]), None);
    }
}
