//! Watches RDMA devices on the LAN's interface and below it, which may take its packets, without
//! ever waiting for them.

use std::collections::BTreeMap;
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
    pub(super) async fn look(&mut self, telemetry: &Telemetry, now: Instant) {
        let Some(interface) = &self.interface else { return };
        if let Some(looking) = self.looking.take_if(|looking| looking.is_finished())
            && let Ok(taken) = looking.await
        {
            for text in self.seen.observe(taken, now) {
                warn!("{text}: {}", rdma::REMEDY);
                let text = format!("{text}: {}", rdma::REMEDY);
                telemetry.events().about_all().push(EventKind::LanMistake, &text);
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

impl Seen {
    /// Returns what is to be told: of a device once, and again once it takes packets.
    fn observe(&mut self, taken: BTreeMap<Device, u64>, now: Instant) -> Vec<String> {
        let mut news = Vec::new();
        let mut seen = BTreeMap::new();
        for (device, count) in taken {
            let (before, mut told) = self.0.get(&device).copied().unwrap_or((count, None));
            let is_new = !self.0.contains_key(&device);
            let is_recent = told.is_some_and(|at| now.saturating_duration_since(at) < AGAIN);
            if is_new {
                news.push(device.warning());
            } else if count > before && !is_recent {
                let more = count - before;
                news.push(format!(
                    "{device} has just taken {more} RoCE packets, which the gateway did not see"
                ));
                told = Some(now);
            }
            seen.insert(device, (count, told));
        }
        self.0 = seen;
        news
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
            let device = |name: &str| Device { name: name.to_owned(), on: "g0".to_owned(), below: None };
            let taken = taken.iter().map(|(name, count)| (device(name), *count)).collect();
            seen.observe(taken, start + Duration::from_secs(second))
        };
        assert!(observe(0, &[]).is_empty());
        let first = observe(10, &[("mlx5_0", 70)]);
        assert!(first.len() == 1 && first[0].contains("mlx5_0 on g0 may take"), "{first:?}");
        assert!(observe(20, &[("mlx5_0", 70)]).is_empty());
        let taken = observe(30, &[("mlx5_0", 75)]);
        assert!(taken.len() == 1 && taken[0].contains("has just taken 5 RoCE packets"), "{taken:?}");
        assert!(observe(40, &[("mlx5_0", 900)]).is_empty(), "it was told of a moment ago");
        assert_eq!(observe(4000, &[("mlx5_0", 901), ("rxe0", 3)]).len(), 2);
        assert!(observe(4010, &[]).is_empty());
        assert_eq!(observe(4020, &[("mlx5_0", 0)]).len(), 1, "it is back");
    }
}
