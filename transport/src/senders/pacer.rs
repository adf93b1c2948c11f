//! The pacer of a session: how much may leave for the peer at a time.

use std::time::{Duration, Instant};

use reliability::pacing::Pacer;

use crate::bounds::{Config, Congestion};

/// Link time that one burst after a pause may take.
const BURST: Duration = Duration::from_micros(500);
/// No less than this at once, or a fast link starves on timer granularity.
const LEAST_BURST: usize = 64 << 10;
/// Link time, and bytes, that one burst may take where the data plane comes back too late for less:
/// what a switch on the way has room for.
const LATE_BURST: Duration = Duration::from_millis(10);
const MOST_LATE_BURST: usize = 1 << 20;
/// Packets that wait for the link leave in batches of this link time, or of a part of the
/// round-trip time where that is less: a system call and a wake-up for each packet cost more than
/// all else.
const QUANTUM: Duration = Duration::from_micros(125);
const QUANTA: u32 = 64;
/// On a slow link a batch may have as many bytes, where that takes longer. Twice that leaves at
/// once after a pause anyway; and as that then stands in the bottleneck's queue, the link does not
/// idle between batches, and no message ends later.
const LEAST_QUANTUM: usize = LEAST_BURST / 2;

/// Bytes that go over a link of so many bit/s in this time.
pub(super) fn link_time(rate: u64, time: Duration) -> usize {
    usize::try_from(u128::from(rate / 8) * time.as_nanos() / 1_000_000_000).unwrap_or(usize::MAX)
}

/// The time that so many bytes take on a link of so many bit/s.
fn time_of(rate: u64, bytes: usize) -> Duration {
    Duration::from_secs_f64(bytes as f64 * 8.0 / rate.max(1) as f64)
}

/// For a session that begins.
pub(super) fn new(config: &Config, now: Instant) -> Pacer {
    let rate = config.rate;
    let (burst, quantum) = match config.congestion {
        Congestion::Fixed => {
            (link_time(rate, BURST).max(LEAST_BURST), QUANTUM.max(time_of(rate, LEAST_QUANTUM)))
        }
        // Where the path is shared, a burst is queued in it.
        Congestion::Adaptive => (link_time(rate, BURST), QUANTUM),
    };
    let late_burst = link_time(rate, LATE_BURST).min(MOST_LATE_BURST);
    Pacer::new(rate, burst, config.packet_overhead, now)
        .with_most_burst(late_burst)
        .with_quantum(quantum.min(config.rtt / QUANTA))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: usize = 8900;

    /// Bytes of each visit while there is always something to send, from when the burst is used up.
    fn visits(rate: u64, rtt: Duration, congestion: Congestion) -> Vec<usize> {
        let start = crate::test_clock();
        let config = Config { rtt, congestion, ..Config::new(rate, PACKET) };
        let mut pacer = new(&config, start);
        let mut now = start;
        let mut visits = Vec::new();
        while now < start + Duration::from_millis(500) {
            let mut sent = 0;
            while pacer.ready(now) {
                pacer.consume(PACKET, now);
                sent += PACKET;
            }
            visits.push(sent);
            pacer.hold(true);
            now = pacer.next_ready();
        }
        visits.remove(0);
        visits
    }

    #[test]
    fn several_packets_leave_at_a_time_and_no_more_than_half_a_burst() {
        let far = Duration::from_millis(25);
        for (rate, rtt, congestion, packets) in [
            (1_000_000_000, far, Congestion::Fixed, 4),
            // A 64th of the round-trip time.
            (200_000_000, far, Congestion::Fixed, 2),
            (200_000_000, far * 4, Congestion::Fixed, 4),
            (1_000_000_000, far / 250, Congestion::Fixed, 1),
            (1_000_000_000, far, Congestion::Adaptive, 2),
            // 125 us.
            (10_000_000_000, far, Congestion::Fixed, 18),
        ] {
            let visits = visits(rate, rtt, congestion);
            let most = visits.iter().copied().max().unwrap_or(0);
            assert_eq!(most.div_ceil(PACKET), packets, "{rate} {rtt:?} {congestion:?}");
            assert!(visits.iter().all(|sent| sent + PACKET >= most), "{visits:?}");
            let share =
                visits.iter().sum::<usize>() as f64 / link_time(rate, Duration::from_millis(500)) as f64;
            assert!((0.97..1.01).contains(&share), "{share}");
        }
    }
}
