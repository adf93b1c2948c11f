//! Bounds of a flow, and nonsense.

use super::*;

#[test]
fn the_buffer_is_bounded() {
    let mut bench = Bench::with(FarConfig { max_buffered: 600, ..Bench::config() });
    bench.message(100, 1);
    bench.message(101, 1);
    let more = request(Opcode::SendOnly, 102, 256);
    assert_eq!(bench.far.handle_request(more, bench.now), Err(Refused::Full));
    let long = vec![0; MAX_PACKET + 1];
    assert_eq!(bench.far.handle_request(long, bench.now), Err(Refused::TooLong));
    let ack = acknowledge(1, 0x1f, 0);
    assert_eq!(bench.far.handle_request(ack, bench.now), Err(Refused::Malformed));
}

#[test]
fn an_idle_flow_is_small_and_gives_memory_back() {
    assert!(size_of::<Far<Vec<u8>>>() <= 408, "{}", size_of::<Far<Vec<u8>>>());
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.sent();
    bench.response(&acknowledge(100, 0x1f, 1));
    bench.wait(Duration::from_secs(1));
    assert_eq!(bench.far.next_timeout(), None);
}

#[test]
fn nothing_panics_on_nonsense() {
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let mut bench = Bench::with(FarConfig {
            max_buffered: 20_000,
            target_dead_after: Duration::from_secs(2),
            ..FarConfig::default()
        });
        for _ in 0..300 {
            let opcode = rng.pick(Opcode::ALL);
            let psn = match rng.below(4) {
                0 => rng.next() as u32,
                _ => 0xff_fff0u32.wrapping_add(rng.below(64) as u32),
            };
            let bth = Bth::new(opcode, Qpn::new(1), Psn::new(psn));
            let mut bytes = vec![0; 12 + opcode.layout().len()];
            bytes.iter_mut().for_each(|byte| *byte = rng.next() as u8);
            let mut head = [0; 12];
            bth.emit(&mut head);
            bytes[..12].copy_from_slice(&head);
            if opcode.has_payload() {
                let length = rng.pick(&[8, 16, 256, 1024]);
                bytes.resize(bytes.len() + length, 0);
            }
            match crate::wire::Packet::parse(&bytes) {
                Ok(packet) if rng.chance(600) => {
                    bench.far.handle_response(&packet, bench.now);
                }
                _ if rng.chance(200) => {
                    bench.far.handle_replay(bytes, bench.now);
                }
                _ => {
                    let _ = bench.far.handle_request(bytes, bench.now);
                }
            }
            let mut out = [0; MAX_PACKET];
            while rng.chance(700) && bench.far.poll_transmit(bench.now, &mut out).is_some() {}
            bench.wait(Duration::from_micros(rng.below(50_000)));
            bench.own();
            if rng.chance(2) {
                bench.far.abort(bench.now);
            }
        }
    }
}
