//! Which management datagrams go before all payload, and how many.

use std::time::{Duration, Instant};

use crate::hosts::{EACH_KIND, HostGroup};

/// Lets so many bytes per second pass, and more after a pause.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// When all that passed is paid for.
    paid_at: Option<Instant>,
}

/// The share of the link that management datagrams may have before all else: of one host, and of
/// all together.
///
/// The rest is carried with the host's other datagrams, in its turn. Bound: a bucket for each
/// [`HostGroup`].
#[derive(Debug)]
pub(crate) struct Mads {
    hosts: Box<[Bucket]>,
    all: Bucket,
}

/// One host's part of the link's rate, and what it may send at once: the requests of some 200
/// connections.
const HOST_PART: u64 = 64;
const HOST_BURST: u64 = 64 << 10;
/// The same of all hosts.
const PART: u64 = 8;
const BURST: u64 = 256 << 10;

impl Mads {
    pub(crate) fn new() -> Self {
        Self { hosts: vec![Bucket::default(); EACH_KIND].into(), all: Bucket::default() }
    }

    /// Tells whether a datagram of so many bytes goes first, over a link of `rate` bit/s.
    pub(crate) fn take(&mut self, host: HostGroup, bytes: usize, rate: u64, now: Instant) -> bool {
        let Some(own) = self.hosts.get_mut(host.place()) else { return false };
        let (own_after, all_after) = (
            own.after(bytes, rate / HOST_PART, HOST_BURST, now),
            self.all.after(bytes, rate / PART, BURST, now),
        );
        let (Some(own_after), Some(all_after)) = (own_after, all_after) else { return false };
        (own.paid_at, self.all.paid_at) = (Some(own_after), Some(all_after));
        true
    }
}

impl Bucket {
    /// When it would be paid for if so many bytes passed now; `None`: too late.
    fn after(self, bytes: usize, rate: u64, burst: u64, now: Instant) -> Option<Instant> {
        let time = |bytes: u64| Duration::from_nanos(bytes.saturating_mul(8_000_000_000) / rate.max(1));
        let paid_at = self.paid_at.map_or(now, |paid_at| paid_at.max(now));
        let after = paid_at.checked_add(time(bytes as u64))?;
        (after.saturating_duration_since(now) <= time(burst)).then_some(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_its_part_and_a_burst_and_all_have_theirs() {
        let (start, rate) = (crate::test_clock(), 64_000_000);
        let mut mads = Mads::new();
        let group = |host: u8| HostGroup::other([10, 0, 0, host].into());
        let mut pass = |host: u8, at: Duration| {
            (0..1000).filter(|_| mads.take(group(host), 1000, rate, start + at)).count()
        };
        assert_eq!([pass(1, Duration::ZERO), pass(1, Duration::ZERO), pass(2, Duration::ZERO)], [65, 0, 65]);
        // 1 Mbit/s.
        assert_eq!(pass(1, Duration::from_millis(80)), 10);
        let all: usize = (3..60).map(|host| pass(host, Duration::from_millis(80))).sum();
        assert!((150..230).contains(&all), "{all}");
    }
}
