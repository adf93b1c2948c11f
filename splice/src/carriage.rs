//! State of packets that gateways carry and do not terminate: how many of the small ones go before
//! all payload, and between which hosts any have passed.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::ip::Addressing;
use transport::Group;

use crate::bucket::Bucket;

/// All of it.
#[derive(Debug)]
pub(crate) struct Carriage {
    /// For management datagrams.
    pub(crate) mads: PromptShare,
    /// For congestion notifications.
    pub(crate) cnps: PromptShare,
    pub(crate) replies: ReplyShare,
    pub(crate) came: Came,
}

impl Carriage {
    /// `key`: a number that nobody else knows.
    pub(crate) fn new(key: u64) -> Self {
        let (mads, cnps) = (PromptShare::new(), PromptShare::new());
        Self { mads, cnps, replies: ReplyShare::default(), came: Came::new(key) }
    }
}

/// Between which hosts packets have come from the peer that are not terminated, and when the last
/// of them: who sends none needs no congestion notification about them.
///
/// Bound: a fixed number of places, each of one pair of hosts. Another pair of the same hash takes
/// the place, and its predecessor's notifications are dropped until its next packet.
#[derive(Debug)]
pub(crate) struct Came {
    places: Box<[Option<(IpAddr, IpAddr, Instant)>]>,
    key: u64,
}

/// Places for pairs of hosts.
const PAIRS: usize = 1024;

impl Came {
    fn new(key: u64) -> Self {
        Self { places: vec![None; PAIRS].into(), key }
    }

    fn place(&self, src: IpAddr, dst: IpAddr) -> usize {
        let number = |host| match host {
            IpAddr::V4(host) => u64::from(host.to_bits()),
            IpAddr::V6(host) => (host.to_bits() ^ host.to_bits() >> 64) as u64,
        };
        // Fibonacci hashing (Knuth, volume 3, section 6.4), one address after the other.
        let mix = |hash: u64, host| (hash ^ number(host)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
        (mix(mix(self.key, src), dst).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PAIRS.ilog2())) as usize
    }

    /// A packet came from the peer's host to one here.
    pub(crate) fn note(&mut self, addressing: &Addressing, now: Instant) {
        let Addressing { src, dst, .. } = *addressing;
        let place = self.place(src, dst);
        if let Some(place) = self.places.get_mut(place) {
            *place = Some((src, dst, now));
        }
    }

    /// Tells whether any came between these hosts within `time`, as far as is known.
    pub(crate) fn lately(&self, src: IpAddr, dst: IpAddr, time: Duration, now: Instant) -> bool {
        let place = self.places.get(self.place(src, dst)).copied().flatten();
        let last = place.filter(|(from, to, _)| (*from, *to) == (src, dst)).map(|(_, _, at)| at);
        last.is_some_and(|at| now.saturating_duration_since(at) <= time)
    }
}

/// The share of the link that small packets of one kind may have before all else: of one host, and
/// of all together.
///
/// Bound: a bucket for each [`Group`].
#[derive(Debug)]
pub(crate) struct PromptShare {
    hosts: Box<[Bucket]>,
    all: Bucket,
}

/// One host's part of the link's rate, and what it may send at once: the requests of some 200
/// connections, or 800 notifications.
const HOST_PART: u64 = 64;
const HOST_BURST: u64 = 64 << 10;
/// The same of all hosts.
const PART: u64 = 8;
const BURST: u64 = 256 << 10;

impl PromptShare {
    fn new() -> Self {
        Self { hosts: vec![Bucket::default(); Group::EACH_KIND].into(), all: Bucket::default() }
    }

    /// Tells whether a packet of so many bytes goes first, over a link of `rate` bit/s.
    pub(crate) fn take(&mut self, host: Group, bytes: usize, rate: u64, now: Instant) -> bool {
        let Some(own) = self.hosts.get_mut(host.place()) else { return false };
        let (own_after, all_after) = (
            after(*own, bytes, rate / HOST_PART, HOST_BURST, now),
            after(self.all, bytes, rate / PART, BURST, now),
        );
        let (Some(own_after), Some(all_after)) = (own_after, all_after) else { return false };
        own.pay(own_after);
        self.all.pay(all_after);
        true
    }
}

/// The share of the link that answers have to what the peer says of flows that nobody here knows.
///
/// Such a word is as short as its answer, which goes before all payload. Without a bound a peer
/// that says nothing else would have the whole link for its answers.
#[derive(Debug, Default)]
pub(crate) struct ReplyShare {
    bucket: Bucket,
}

/// Part of the link's rate, and bytes at once: those of 1,000 flows.
const REPLY_PART: u64 = 32;
const REPLY_BURST: u64 = 16 << 10;

impl ReplyShare {
    /// Tells whether an answer of so many bytes may go, over a link of `rate` bit/s.
    pub(crate) fn take(&mut self, bytes: usize, rate: u64, now: Instant) -> bool {
        let after = after(self.bucket, bytes, rate / REPLY_PART, REPLY_BURST, now);
        after.is_some_and(|after| {
            self.bucket.pay(after);
            true
        })
    }
}

/// When it would be paid for if so many bytes passed now, at `rate` bit/s and `burst` bytes at
/// once; `None`: too late.
fn after(bucket: Bucket, bytes: usize, rate: u64, burst: u64, now: Instant) -> Option<Instant> {
    let time = |bytes: u64| Duration::from_nanos(bytes.saturating_mul(8_000_000_000) / rate.max(1));
    bucket.after(time(bytes as u64), time(burst), now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_its_part_and_a_burst_and_all_have_theirs() {
        let (start, rate) = (crate::test_clock(), 64_000_000);
        let mut share = PromptShare::new();
        let group = |host: u8| crate::hosts::Grouping::new(0).other([10, 0, 0, host].into());
        let mut pass = |host: u8, at: Duration| {
            (0..1000).filter(|_| share.take(group(host), 1000, rate, start + at)).count()
        };
        assert_eq!([pass(1, Duration::ZERO), pass(1, Duration::ZERO), pass(2, Duration::ZERO)], [65, 0, 65]);
        // 1 Mbit/s.
        assert_eq!(pass(1, Duration::from_millis(80)), 10);
        let all: usize = (3..60).map(|host| pass(host, Duration::from_millis(80))).sum();
        assert!((150..230).contains(&all), "{all}");
    }

    #[test]
    fn answers_about_unknown_flows_have_a_part_and_a_burst() {
        let (start, rate) = (crate::test_clock(), 32_000_000);
        let mut share = ReplyShare::default();
        let mut pass = |at: Duration| (0..10_000).filter(|_| share.take(16, rate, start + at)).count();
        assert_eq!([pass(Duration::ZERO), pass(Duration::ZERO)], [1024, 0]);
        // 1 Mbit/s.
        assert_eq!(pass(Duration::from_millis(64)), 500);
    }

    #[test]
    fn the_last_pairs_of_hosts_are_known_for_a_time() {
        let (start, time) = (crate::test_clock(), Duration::from_secs(1));
        let pair = |host: u8| {
            let (src, dst) = ([10, 0, 0, host].into(), [10, 0, 1, host / 2].into());
            Addressing { src, dst, src_port: 0, tclass: 0, ttl: 64 }
        };
        let mut came = Came::new(0);
        (0..200).for_each(|host| came.note(&pair(host), start));
        let known = |came: &Came, now| {
            let known = |host: &u8| came.lately(pair(*host).src, pair(*host).dst, time, now);
            (0..200).filter(known).count()
        };
        assert!(known(&came, start + time) > 160, "{}", known(&came, start + time));
        assert_eq!(known(&came, start + time + Duration::from_nanos(1)), 0);
        let back = pair(7);
        assert!(!came.lately(back.dst, back.src, time, start));
        let six = |last: u16| Addressing {
            src: [0xfd00, 0, 0, 1, 0, 0, 0, last].into(),
            dst: [0xfd00, 0, 0, 2, 0, 0, 0, 1].into(),
            ..pair(0)
        };
        came.note(&six(1), start);
        assert!(came.lately(six(1).src, six(1).dst, time, start));
        assert!(!came.lately(six(2).src, six(2).dst, time, start));
    }
}
