//! WAN packets simulated per second of processor time, at 400 Gbit/s over 25 ms: what
//! `longhaul simulate` costs, and where the cores do work in proportion to the window.
//!
//! `cargo bench -p longhaul-lab --bench transfer [-- SCHEME]`. `SIZE` (bytes per message) and
//! `PACKETS` (data packets per run) are read from the environment.
#![allow(clippy::unwrap_used, reason = "a benchmark may fail")]

use std::time::Duration;

use linksim::impair::Loss;
use linksim::transfer::Transfer;
use rustix::time::{ClockId, clock_gettime};

fn main() {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (size, packets) = (number("SIZE", 128 << 20), number("PACKETS", 500_000));
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    println!(
        "messages of {size} bytes\n{:<12}{:>8}{:>12}{:>12}{:>10}{:>10}{:>9}{:>9}",
        "scheme", "loss", "Mpacket/s", "ns/packet", "mean [ms]", "ideal", "reports", "wire"
    );
    for scheme in ["none", "sr", "sr-rto", "xor:32:8", "mds:32:8", "mds:32:8:4"] {
        if filter.as_ref().is_some_and(|filter| filter != scheme) {
            continue;
        }
        for drop in [0.0, 1e-4, 1e-3, 1e-2] {
            let mut transfer =
                Transfer::new(400_000_000_000, Duration::from_millis(25), scheme.parse().unwrap(), size);
            transfer.messages = (packets / transfer.packets()).max(1);
            transfer.forward.loss = Loss::Random(drop);
            let start = processor_time();
            let outcome = transfer.run(&mut |_| {}).unwrap();
            let (seconds, packets) = ((processor_time() - start).as_secs_f64(), outcome.packets() as f64);
            println!(
                "{scheme:<12}{drop:>8}{:>12.2}{:>12.0}{:>10.2}{:>10.2}{:>9}{:>9.3}",
                packets / seconds / 1e6,
                seconds * 1e9 / packets,
                outcome.completion.mean() * 1e3,
                transfer.ideal().as_secs_f64() * 1e3,
                outcome.backward.packets,
                outcome.wire_bytes_per_byte(),
            );
        }
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
