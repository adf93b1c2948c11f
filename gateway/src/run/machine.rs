//! Watches what others may change of this machine: rules, and interfaces with their addresses.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Interval, interval};

use super::changes::Changes;
use super::guarding::Guarding;
use super::interface::Interface;
use super::zones::Zones;
use crate::telemetry::Telemetry;

/// Between two looks without news.
pub(super) const EVERY: Duration = Duration::from_secs(1);

/// The watched parts. The kernel's news has them looked at early, and nothing depends on that.
pub(super) struct Machine {
    guard: Guarding,
    interface: Interface,
    zones: Zones,
    changes: Changes,
    poll: Interval,
    /// Told when there is news, for whoever looks by itself.
    news: watch::Sender<()>,
}

impl Machine {
    /// Looks `every` so often, and when the kernel tells of a change in this thread's name space.
    pub(super) fn new((guard, interface, zones): (Guarding, Interface, Zones), every: Duration) -> Self {
        let (changes, news) = (Changes::subscribe(), watch::Sender::new(()));
        Self { guard, interface, zones, changes, poll: interval(every), news }
    }

    /// Returns what is told when there is news.
    pub(super) fn news(&self) -> &watch::Sender<()> {
        &self.news
    }

    /// Returns the guard, whose rules stay or go.
    pub(super) fn into_guard(self) -> Guarding {
        self.guard
    }

    /// Goes on looking. May be dropped at any time, and called again.
    pub(super) async fn watch(&mut self, telemetries: &[Arc<Telemetry>]) -> Infallible {
        loop {
            // News that comes during a look may be of later than the look: it waits.
            let is_idle = !self.guard.is_looking() && !self.interface.is_looking();
            tokio::select! {
                () = self.guard.ended(telemetries) => {}
                is_news = self.interface.ended(telemetries) => if is_news {
                    self.news.send_replace(());
                },
                _ = self.poll.tick() => self.look(),
                () = self.changes.next(), if is_idle => {
                    self.look();
                    self.news.send_replace(());
                }
            }
        }
    }

    fn look(&mut self) {
        self.guard.look();
        self.interface.look();
        self.zones.look();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use config::LanMode;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::lan::guard::{Guard, guarded};
    use crate::lan::netns::{Ns, Site};

    /// Within a test, no look comes but the first and those that news is the reason for.
    const HOURS: Duration = Duration::from_secs(10 * 3600);
    /// The test has failed when it takes so long.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Has `work` done in a gateway's name space while its rules and `g0` are watched.
    fn watched(work: impl AsyncFnOnce(&Ns, &Telemetry, watch::Receiver<()>) + Send) {
        let site = Site::new(1500);
        site.gateway.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let text = include_str!("../../../docs/examples/gateway-a.toml");
                let mut lan = config::Gateway::parse(Path::new("a.toml"), text).unwrap().lan;
                lan.mode = LanMode::Packet { interface: "g0".to_owned() };
                let guard = Guard::install("g0", &lan.remote).unwrap();
                let telemetries = [Arc::new(Telemetry::new(std::time::Instant::now()))];
                let interface = Interface::of(&lan, &telemetries);
                let parts = (Guarding::new(Some(guard)), interface, Zones::default());
                let mut machine = Machine::new(parts, HOURS);
                let mut news = machine.news().subscribe();
                let work = async {
                    // The first look is over, with its news.
                    news.changed().await.unwrap();
                    sleep(Duration::from_millis(200)).await;
                    work(&site.gateway, &telemetries[0], news).await;
                };
                tokio::select! {
                    never = machine.watch(&telemetries) => match never {},
                    ended = timeout(PATIENCE, work) => ended.expect("nobody has looked"),
                }
                machine.into_guard().end().await.unwrap().remove().unwrap();
            });
        });
    }

    async fn until(condition: impl Fn() -> bool) {
        while !condition() {
            sleep(Duration::from_millis(1)).await;
        }
    }

    #[test]
    fn a_rule_that_is_removed_is_put_back_for_the_news_of_it() {
        watched(async |ns, telemetry, _| {
            let before = guarded("g0").unwrap();
            let restored = || telemetry.snapshot(std::time::Instant::now()).guard_restored;
            for times in 1..4 {
                ns.ip("rule del pref 1");
                until(|| restored() == times).await;
                assert_eq!(guarded("g0").unwrap(), before);
            }
            assert_eq!(telemetry.events().since(0).events.len(), 3);
        });
    }

    #[test]
    fn a_fault_of_the_interface_is_known_for_the_news_of_it() {
        watched(async |ns, telemetry, mut news| {
            assert!(!telemetry.has_lan_fault());
            let course = [
                ("link set g0 down", "link set g0 up"),
                ("addr del 10.0.0.254/24 dev g0", "addr add 10.0.0.254/24 dev g0"),
                ("link set g0 name g1", "link set g1 name g0"),
            ];
            for (down, up) in course {
                news.mark_unchanged();
                ns.ip(down);
                until(|| telemetry.has_lan_fault()).await;
                news.changed().await.unwrap();
                ns.ip(up);
                until(|| !telemetry.has_lan_fault()).await;
            }
        });
    }
}
