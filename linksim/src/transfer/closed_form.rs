//! Closed forms from theory, to hold simulations against.

use std::time::Duration;

/// The mean time that `packets` packets of `injection` each take until the last one's
/// acknowledgement, if each is lost with probability `drop` and sent again `timeout` later, for as
/// long as it takes: `E[T_SR]` of "SDR-RDMA" (arXiv 2505.05366). A lower bound where the packets
/// take longer than the timeout, since repairs then compete with them.
#[must_use]
pub fn selective_repeat(
    packets: u64,
    injection: Duration,
    drop: f64,
    timeout: Duration,
    rtt: Duration,
) -> Duration {
    let t = injection.as_secs_f64();
    let again = timeout.as_secs_f64() + t;
    let serialisation = packets as f64 * t;
    // Packets sent early enough for so many repairs by then.
    let sent_before = |by: f64, repairs: i32| {
        let before = ((by - f64::from(repairs) * again) / t).ceil() - 1.0;
        before.clamp(0.0, packets as f64)
    };
    let all_by = |by: f64| {
        let log = |repairs: i32| {
            let exactly = sent_before(by, repairs - 1) - sent_before(by, repairs);
            exactly * (-drop.powi(repairs)).ln_1p()
        };
        (1..64).map(log).sum::<f64>().exp()
    };
    let step = again / 400.0;
    let late = (0..20_000).map(|n| 1.0 - all_by(serialisation + (f64::from(n) + 0.5) * step));
    let later = late.take_while(|late| *late > 1e-9).sum::<f64>() * step;
    rtt + Duration::from_secs_f64(serialisation + later)
}
