//! A simulated transfer allocates for its window, and nothing per packet.

use std::time::Duration;

use linksim::impair::Loss;
use linksim::transfer::Transfer;

#[test]
fn a_transfer_takes_memory_for_its_window_and_not_for_its_length() {
    for scheme in ["none", "sr", "xor:32:8", "mds:32:8"] {
        let run = |messages| {
            let rtt = Duration::from_millis(5);
            let mut transfer = Transfer::new(100_000_000_000, rtt, scheme.parse().unwrap(), 1 << 20);
            transfer.messages = messages;
            transfer.forward.loss = Loss::Random(0.01);
            let mut packets = 0;
            let allocated = allocation_counter::measure(|| {
                packets = transfer.run(&mut |_| {}).unwrap().packets();
            });
            (packets, allocated)
        };
        let ((few, short), (many, long)) = (run(100), run(500));
        assert!(many - few > 100_000, "{scheme}: {few} and {many} packets");
        let (before, after) = (short.bytes_max, long.bytes_max);
        assert!(after < before + before / 10, "{scheme}: {before} and {after} bytes");
        let more = long.count_total - short.count_total;
        assert!(more < (many - few) / 1000, "{scheme}: {more} allocations for {} packets", many - few);
    }
}
