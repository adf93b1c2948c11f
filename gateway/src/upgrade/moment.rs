//! Points in time that cross exactly: leases depend on them.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of a clock that all processes of the machine share, and that an [`Instant`] follows.
fn clock() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    let time = seconds + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0));
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns a past point in time as all processes know it.
pub(super) fn to_shared(at: Instant) -> u64 {
    let ago = u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX);
    clock().saturating_sub(ago)
}

/// Returns it as this process knows it. `None`: it is still to come.
pub(super) fn from_shared(nanos: u64) -> Option<Instant> {
    let now = Instant::now();
    now.checked_sub(Duration::from_nanos(clock().checked_sub(nanos)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_in_time_crosses_and_one_to_come_does_not() {
        let at = Instant::now().checked_sub(Duration::from_millis(1500)).unwrap();
        let shared = to_shared(at);
        let back = from_shared(shared).unwrap();
        let off = back.max(at) - back.min(at);
        assert!(off < Duration::from_millis(500), "{off:?}");
        assert_eq!(from_shared(shared + 1_000_000_000_000), None);
    }
}
