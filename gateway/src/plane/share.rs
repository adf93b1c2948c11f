//! Shares of the link: what the data-plane threads of a gateway may send is together as much as
//! `peer.rate`, whoever has something to send.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use config::Wan;

/// How often a thread that sends looks at the others. So long may they together send more than the
/// rate, when one begins after a pause.
const EVERY: Duration = Duration::from_millis(1);
/// Age at which a thread's wish counts as nothing: it sleeps, for want of anything to send. While
/// the pacer holds it, it wakes for each packet, or for some; so long are that many of the longest.
const STALE: Duration = Duration::from_millis(5);
const STALE_PACKETS: u64 = 16;

/// The share of one thread, and the wishes of all.
///
/// Each thread says what it wants: while it is held back all that its path takes, else what it
/// sends. A thread may send what is left when everyone who wants less than an equal part has what
/// it wants, and the others share the rest (max-min fairness); so what nobody uses is anybody's.
/// There is no lock: each writes a number of its own, and reads those of the others once in a
/// millisecond of sending.
#[derive(Debug)]
pub struct Share {
    all: Arc<Wants>,
    thread: usize,
    /// Sent since `since`, as the pacer counts it.
    bytes: u64,
    since: Instant,
    /// The rate that this thread may send at, bit/s, as last told.
    granted: u64,
}

#[derive(Debug)]
struct Wants {
    /// Bit/s.
    rate: u64,
    began: Instant,
    stale: Duration,
    threads: Vec<Want>,
}

/// No two of them in one cache line, nor in the pair of them that x86 fetches.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Want {
    /// Bit/s.
    rate: AtomicU64,
    /// When that was said, in ns since [`Wants::began`].
    at: AtomicU64,
}

impl Share {
    /// For so many threads, or pairs of threads, that send `rate` bit/s together: up to
    /// [`Wan::MOST_LANES`], since each has a lane.
    pub fn all(rate: u64, threads: u8, now: Instant) -> Vec<Self> {
        let threads = usize::from(threads.clamp(1, Wan::MOST_LANES));
        let packets = STALE_PACKETS * u64::from(Wan::LARGEST) * 8;
        let stale = STALE.max(Duration::from_secs_f64(packets as f64 / rate.max(1) as f64));
        let wants = (0..threads).map(|_| Want::default()).collect();
        let all = Arc::new(Wants { rate, began: now, stale, threads: wants });
        let share = |thread| Self { all: Arc::clone(&all), thread, bytes: 0, since: now, granted: rate };
        (0..threads).map(share).collect()
    }

    /// So many bytes were sent.
    pub fn note(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Returns the rate that the thread may send at from now on in bit/s, if that has changed.
    /// `held`: it would send more than it may, up to so much.
    pub fn settle(&mut self, held: Option<u64>, now: Instant) -> Option<u64> {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < EVERY {
            return None;
        }
        let nanos = elapsed.as_nanos().max(1);
        let sent = u64::try_from(u128::from(self.bytes) * 8_000_000_000 / nanos).unwrap_or(u64::MAX);
        (self.bytes, self.since) = (0, now);
        let at = self.all.clock(now);
        if let Some(want) = self.all.threads.get(self.thread) {
            want.rate.store(held.unwrap_or(sent), Relaxed);
            want.at.store(at, Relaxed);
        }
        let granted = self.all.granted(self.thread, at);
        (std::mem::replace(&mut self.granted, granted) != granted).then_some(granted)
    }
}

impl Want {
    /// As of now. Both numbers may be of different times, a millisecond apart.
    fn rate(&self, now: u64, stale: Duration) -> u64 {
        let age = Duration::from_nanos(now.saturating_sub(self.at.load(Relaxed)));
        if age > stale { 0 } else { self.rate.load(Relaxed) }
    }
}

impl Wants {
    fn clock(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the rate that a thread may send at if it wants all, and the others what they say.
    fn granted(&self, thread: usize, now: u64) -> u64 {
        let mut wants = [0; Wan::MOST_LANES as usize];
        let others = self.threads.iter().enumerate().filter(|(other, _)| *other != thread);
        let mut count = 0;
        for (place, (_, want)) in wants.iter_mut().zip(others) {
            *place = want.rate(now, self.stale);
            count += 1;
        }
        let wants = wants.get_mut(..count).unwrap_or_default();
        wants.sort_unstable();
        let mut left = self.rate;
        for (index, want) in wants.iter().enumerate() {
            // Equal parts for those who want more than who came before, and for this thread.
            let part = left / (count - index + 1) as u64;
            if *want >= part {
                return part;
            }
            left -= want;
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 8_000_000_000;

    /// Returns the shares, in hundredths of the rate, granted to threads that want so much of it;
    /// `None` for all they can get.
    fn granted(wants: &[Option<u64>]) -> Vec<u64> {
        let start = Instant::now();
        let mut shares = Share::all(RATE, wants.len() as u8, start);
        for round in 1..=2 {
            for (share, want) in shares.iter_mut().zip(wants) {
                let bytes = want.unwrap_or(0) * RATE / 8 / 100 / 1000;
                share.note(bytes as usize);
                share.settle(want.is_none().then_some(RATE), start + EVERY * round);
            }
        }
        shares.iter().map(|share| share.granted * 100 / RATE).collect()
    }

    #[test]
    fn who_wants_more_than_an_equal_part_gets_what_the_others_leave() {
        assert_eq!(granted(&[None]), [100]);
        assert_eq!(granted(&[None, None]), [50, 50]);
        assert_eq!(granted(&[None, Some(0)]), [100, 50], "who wants nothing may begin with an equal part");
        assert_eq!(granted(&[None, Some(10)]), [90, 50]);
        assert_eq!(granted(&[None, Some(70)]), [50, 50]);
        // Those who want less are told what they would get if they wanted all.
        assert_eq!(granted(&[None, Some(10), None, Some(20)]), [35, 26, 35, 30]);
        assert_eq!(granted(&[Some(5), Some(5), Some(5), Some(5)]), [85; 4]);
    }

    #[test]
    fn what_those_who_want_all_are_granted_is_the_rate() {
        for threads in 1..=8 {
            let wants = vec![None; threads];
            let sum: u64 = granted(&wants).iter().sum();
            assert!((100 - threads as u64..=100).contains(&sum), "{threads}: {sum}");
        }
    }

    #[test]
    fn it_changes_once_in_a_while_and_only_when_something_has() {
        let start = Instant::now();
        let mut shares = Share::all(RATE, 2, start);
        let [one, other] = shares.as_mut_slice() else { unreachable!() };
        let held = Some(RATE);
        assert_eq!(one.settle(held, start + EVERY / 2), None);
        assert_eq!(one.settle(held, start + EVERY), None, "nobody else wants anything");
        assert_eq!(other.settle(held, start + EVERY), Some(RATE / 2));
        assert_eq!(one.settle(held, start + EVERY), None, "too soon");
        assert_eq!(one.settle(held, start + 2 * EVERY), Some(RATE / 2));
        assert_eq!(one.settle(held, start + 3 * EVERY), None);
        // The other sleeps.
        assert_eq!(one.settle(held, start + EVERY + STALE), None);
        assert_eq!(one.settle(held, start + 3 * EVERY + STALE), Some(RATE));
        // Its path takes no more than a tenth, however much it has.
        assert_eq!(other.settle(Some(RATE / 10), start + 4 * EVERY + STALE), None);
        assert_eq!(one.settle(held, start + 5 * EVERY + STALE), Some(RATE / 10 * 9));
    }

    /// Threads wake up for a packet, send it, and sleep again.
    #[test]
    fn what_is_sent_a_packet_at_a_time_is_not_given_away() {
        const PACKET: usize = 1500;
        let start = Instant::now();
        let mut shares = Share::all(RATE, 2, start);
        // So that it sends two fifths of the rate.
        let pause = Duration::from_nanos(PACKET as u64 * 8 * 1_000_000_000 / RATE * 5 / 2);
        let mut now = start;
        while now < start + 20 * EVERY {
            now += pause;
            let [one, other] = shares.as_mut_slice() else { unreachable!() };
            one.note(PACKET);
            one.settle(None, now);
            other.settle(Some(RATE), now);
        }
        let other = shares[1].granted * 100 / RATE;
        assert!((58..=61).contains(&other), "{other} %");
    }

    /// Where a packet takes longer than everything else, a thread that waits for its time still
    /// wants it.
    #[test]
    fn a_thread_that_is_held_on_a_slow_link_is_not_forgotten() {
        let start = Instant::now();
        let mut shares = Share::all(1_000_000, 2, start);
        let [one, other] = shares.as_mut_slice() else { unreachable!() };
        one.settle(Some(1_000_000), start + EVERY);
        assert_eq!(other.settle(Some(1_000_000), start + Duration::from_millis(300)), Some(500_000));
    }
}
