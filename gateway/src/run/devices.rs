//! Watches RDMA devices on the LAN's interface and below it, which may take its packets, without
//! ever waiting for them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::LanMode;
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::warn;

use crate::events::EventKind;
use crate::lan::rdma::{self, Device};
use crate::telemetry::Telemetry;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(10);
/// A device that goes on taking packets is told of again after this time at the earliest.
const AGAIN: Duration = Duration::from_secs(3600);

/// Devices that are looked after.
pub(super) struct Devices {
    /// Packet mode's; socket mode has none.
    interface: Option<String>,
    /// A thread asks the devices, whose drivers may make it wait.
    looking: Option<JoinHandle<BTreeMap<Device, u64>>>,
    next: Instant,
    seen: Seen,
}

impl Devices {
    /// Those on the interface of this LAN, if it has one.
    pub(super) fn of(lan: &LanMode) -> Self {
        let interface = match lan {
            LanMode::Packet { interface } => Some(interface.clone()),
            LanMode::Socket { .. } => None,
        };
        Self { interface, looking: None, next: Instant::now(), seen: Seen::default() }
    }

    /// Takes the result of the last look, and begins the next if it is time; about every second.
    pub(super) async fn look(&mut self, telemetries: &[Arc<Telemetry>], now: Instant) {
        let Some(interface) = &self.interface else { return };
        if let Some(looking) = self.looking.take_if(|looking| looking.is_finished())
            && let Ok(taken) = looking.await
        {
            let seen = self.seen.observe(taken, now);
            for telemetry in telemetries {
                telemetry.rdma_seen(self.seen.0.len() as u64, seen.packets);
            }
            for text in seen.news {
                warn!("{text}");
                if let Some(first) = telemetries.first() {
                    first.events().about_all().push(EventKind::LanMistake, &text);
                }
            }
        }
        if self.looking.is_none() && now >= self.next {
            self.next = now + EVERY;
            let interface = interface.clone();
            self.looking = Some(spawn_blocking(move || rdma::taken(&interface)));
        }
    }
}

/// Devices as they were at the last look, and when each was last told of.
#[derive(Debug, Default)]
struct Seen(BTreeMap<Device, (u64, Option<Instant>)>);

/// The outcome of a look.
#[derive(Debug, Default)]
struct Observed {
    /// Lines to be told: of a device once, and again once it takes packets.
    news: Vec<String>,
    /// Packets taken since the look before.
    packets: u64,
}

impl Seen {
    fn observe(&mut self, taken: BTreeMap<Device, u64>, now: Instant) -> Observed {
        let mut observed = Observed::default();
        let mut seen = BTreeMap::new();
        for (device, count) in taken {
            let (before, mut told) = self.0.get(&device).copied().unwrap_or((count, None));
            let more = count.saturating_sub(before);
            observed.packets = observed.packets.saturating_add(more);
            let is_recent = told.is_some_and(|at| now.saturating_duration_since(at) < AGAIN);
            if !self.0.contains_key(&device) {
                observed.news.push(format!("{}: {}", device.warning(), device.remedy));
            } else if more > 0 && !is_recent {
                let text = "RoCE packets, which the gateway did not see";
                observed.news.push(format!("{device} has just taken {more} {text}: {}", device.remedy));
                told = Some(now);
            }
            seen.insert(device, (count, told));
        }
        self.0 = seen;
        observed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_told_of_once_and_again_when_it_takes_packets() {
        let start = Instant::now();
        let mut seen = Seen::default();
        let mut observe = |second: u64, taken: &[(&str, u64)]| {
            let device = |name: &str| {
                let [name, on, remedy] = [name, "g0", "turn it off"].map(str::to_owned);
                Device { name, on, below: None, remedy }
            };
            let taken = taken.iter().map(|(name, count)| (device(name), *count)).collect();
            seen.observe(taken, start + Duration::from_secs(second))
        };
        assert!(observe(0, &[]).news.is_empty());
        let Observed { news, packets } = observe(10, &[("mlx5_0", 70)]);
        assert!(news.len() == 1 && news[0].contains("mlx5_0 on g0 may take"), "{news:?}");
        assert!(news[0].ends_with(": turn it off") && packets == 0, "what came before is not counted");
        assert!(observe(20, &[("mlx5_0", 70)]).news.is_empty());
        let Observed { news, packets } = observe(30, &[("mlx5_0", 75)]);
        assert!(news.len() == 1 && news[0].contains("has just taken 5 RoCE packets"), "{news:?}");
        assert!(news[0].ends_with(": turn it off") && packets == 5, "{news:?}");
        let Observed { news, packets } = observe(40, &[("mlx5_0", 900)]);
        assert!(news.is_empty() && packets == 825, "it was told of a moment ago");
        assert_eq!(observe(4000, &[("mlx5_0", 901), ("rxe0", 3)]).news.len(), 2);
        assert!(observe(4010, &[]).news.is_empty());
        assert_eq!(observe(4020, &[("mlx5_0", 0)]).news.len(), 1, "it is back");
    }
}
