//! A way back that is thinner than the way there.

use super::*;
use crate::Congestion;

/// A link of this rate with a queue in front that drops what it does not hold.
pub(super) struct Way {
    /// Bytes a second.
    rate: u64,
    free_at: Instant,
}

impl Way {
    /// The longest that a packet waits in the queue.
    const QUEUE: Duration = Duration::from_millis(50);

    /// When the packet has left, or `None` if it is dropped.
    pub(super) fn take(&mut self, bytes: usize, now: Instant) -> Option<Instant> {
        let begins = self.free_at.max(now);
        if begins - now > Self::QUEUE {
            return None;
        }
        self.free_at = begins + Duration::from_nanos(bytes as u64 * 1_000_000_000 / self.rate);
        Some(self.free_at)
    }
}

const RATE: u64 = 100_000_000;

/// Returns the share of the rate that arrives in records if the way back has so many millionths.
fn goodput(millionths: u64, lose: u64, congestion: Congestion) -> f64 {
    let mut world = World::new(&[Class::new("default")], |config| Config {
        congestion,
        packet_overhead: 78,
        rate: RATE,
        ..config
    });
    world.both(|end, now| end.begin(&SESSION, now));
    world.lose = lose;
    world.back = Some(Way { rate: RATE / 8 * millionths / 1_000_000, free_at: world.now });
    let (warm, seconds) = (Duration::from_secs(2), 3);
    let mut at_begin = 0;
    let begun = world.now;
    while world.now < begun + warm + Duration::from_secs(seconds) {
        if world.now < begun + warm {
            at_begin = world.arrived.len();
        }
        let backlog = world.pushed as usize - world.arrived.len();
        if backlog < 1500 {
            world.push(0, 100);
        }
        world.step();
    }
    let bytes = (world.arrived.len() - at_begin) as u64 * 1004;
    bytes as f64 * 8.0 / (RATE * seconds) as f64
}

/// Reports are thinned to what the way back carries: without that, these are 0.73 and 0.18.
#[test]
fn a_thin_way_back_carries_a_full_way_there() {
    let cases = [
        (Congestion::Adaptive, 1_000_000, 0.9),
        (Congestion::Adaptive, 20_000, 0.9),
        (Congestion::Adaptive, 5_000, 0.8),
        (Congestion::Fixed, 1_000, 0.9),
    ];
    for (congestion, millionths, least) in cases {
        for lose in [u64::MAX, 500] {
            let share = goodput(millionths, lose, congestion);
            assert!(share > least, "{congestion:?}, {millionths} millionths, one in {lose} lost: {share}");
        }
    }
}
