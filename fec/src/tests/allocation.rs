use super::*;
use crate::Recovered;

#[test]
fn blocks_allocate_nothing_once_warm() {
    for engine in engine::available() {
        for code in [Code::mds(32, 8).unwrap(), Code::xor(32, 8).unwrap()] {
            let packets: Vec<_> = (0..32).map(|j| noise(1400 - j, j)).collect();
            let mut encoder = Encoder::with_engine(code.clone(), 1400, engine);
            let parity = encode(&mut encoder, &packets);
            let data = hide(&packets, |j| j < 8);
            let kept = hide(&parity, |_| false);
            let mut decoder = Decoder::with_engine(engine);
            let mut out = Recovered::new();
            let mut block = || {
                encoder.reset();
                for packet in &packets {
                    encoder.push(packet).unwrap();
                }
                assert_eq!(encoder.parity_count(), 8);
                assert_eq!(decoder.decode(&code, &data, &kept, &mut out), Ok(8));
                assert!(out.iter().all(|(j, packet)| packet == packets[j]));
            };
            block();
            let counted = allocation_counter::measure(block);
            assert_eq!(counted.count_total, 0, "{code:?} on {engine:?}");
        }
    }
}
