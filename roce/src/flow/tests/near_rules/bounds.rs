//! Bounds of a flow, and nonsense.

use super::*;

#[test]
fn a_full_flow_drops_and_has_the_requester_resume() {
    let mut bench = Bench::told(NearConfig { hard_limit: 4 * 268, ..Bench::config() });
    for at in 0..4 {
        bench.message(100 + at, 1);
    }
    assert_eq!(bench.request(Opcode::SendOnly, 104, 256), Verdict::Drop(Why::Full));
    assert_eq!(bench.request(Opcode::SendOnly, 105, 256), Verdict::Drop(Why::Ahead));
    assert_eq!(bench.said(), []);
    bench.ack(100);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.ack(101);
    assert_eq!(bench.said(), [(101, 0x1f), (102, 0x60)]);
    bench.message(104, 1);
    assert!(bench.near.outstanding_bytes() <= 4 * 268);
}

/// There was no room outside the flow, and by the time there is, the target has answered all that
/// came before.
#[test]
fn who_was_refused_is_told_of_room_though_nothing_is_outstanding_any_more() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    let refused = request(Opcode::SendOnly, 101, 256);
    assert!(!bench.near.pause(&parse(&refused), bench.now), "it does not take RNR without end");
    bench.near.set_writable(false, bench.now);
    bench.ack(100);
    assert_eq!(bench.said(), [(100, 0x1f)]);
    bench.wait(Duration::from_millis(10));
    assert!(bench.near.is_refused());
    bench.near.set_writable(true, bench.now);
    assert_eq!(bench.said(), [(101, 0x60)]);
    assert!(!bench.near.is_refused(), "it hears so once");
}

/// There is room for small packets, and for a long time none for the long one before them. Its
/// requester is not to blame.
#[test]
fn who_is_refused_for_long_does_not_fail_of_the_gap() {
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.message(101, 1);
    bench.said();
    let refused = request(Opcode::SendOnly, 102, 256);
    for _ in 0..1500 {
        bench.near.pause(&parse(&refused), bench.now);
        bench.near.set_writable(false, bench.now);
        assert_eq!(bench.request(Opcode::SendOnly, 103, 4), Verdict::Drop(Why::Ahead));
        bench.said();
        bench.wait(Duration::from_millis(20));
    }
    assert!(!bench.near.is_failed());
    // There is room at last.
    assert_eq!(bench.request(Opcode::SendOnly, 102, 256), Verdict::Forward);
    assert_eq!(bench.request(Opcode::SendOnly, 103, 4), Verdict::Forward);
}

/// A NAK confirms all before its PSN, and after a rest nobody knows in which life that was sent.
#[test]
fn who_was_refused_after_a_rest_is_told_nothing() {
    let mut bench = rested();
    bench.wait(Duration::from_millis(10));
    let refused = request(Opcode::SendOnly, 110, 256);
    bench.near.pause(&parse(&refused), bench.now);
    bench.near.set_writable(false, bench.now);
    assert!(!bench.near.is_refused());
    bench.near.set_writable(true, bench.now);
    assert_eq!(bench.said(), []);
}

/// PSNs outstanding stay below a quarter of all, and who has to wait for that is not asked again
/// and again meanwhile.
#[test]
fn a_read_that_does_not_fit_is_asked_for_when_it_does() {
    const HALF: u32 = 1 << 21;
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.said();
    assert_eq!(bench.request(Opcode::ReadRequest, 101, HALF * 256), Verdict::Forward);
    let second = (Opcode::ReadRequest, 101 + HALF, (HALF + 10) * 256);
    assert_eq!(bench.request(second.0, second.1, second.2), Verdict::Drop(Why::Full));
    for psn in 101..110 {
        let opcode = if psn == 101 { Opcode::ReadResponseFirst } else { Opcode::ReadResponseMiddle };
        assert!(is_emitted(bench.response(&read_response(opcode, psn, 256, 2))));
        assert_eq!(bench.said(), [], "{psn}");
    }
    assert_eq!(bench.request(second.0, second.1, second.2), Verdict::Drop(Why::Full));
    assert!(is_emitted(bench.response(&read_response(Opcode::ReadResponseMiddle, 110, 256, 2))));
    assert_eq!(bench.said().len(), 1);
    assert_eq!(bench.request(second.0, second.1, second.2), Verdict::Forward);
}

/// With the MTU known, a READ takes what it takes.
#[test]
fn long_reads_fit_by_the_mtu() {
    let mut bench = Bench::with(NearConfig { mtu: Some(PathMtu::B4096), ..Bench::config() });
    let length = 1 << 30;
    for at in 0..15 {
        let psn = 100 + at * (length / 4096);
        assert_eq!(bench.request(Opcode::ReadRequest, psn, length), Verdict::Forward, "{at}");
    }
}

#[test]
fn an_idle_flow_is_small_and_gives_memory_back() {
    assert!(size_of::<Near>() <= 352, "{}", size_of::<Near>());
    let mut bench = Bench::new();
    bench.message(100, 1);
    bench.ack(100);
    bench.said();
    let mut timers = 0;
    while let Some(at) = bench.near.next_timeout() {
        bench.near.handle_timeout(at);
        timers += 1;
    }
    assert_eq!(timers, 1);
}

#[test]
fn nothing_panics_on_nonsense() {
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let mut bench =
            Bench::with(NearConfig { hard_limit: 10_000, max_messages: 8, ..NearConfig::default() });
        if seed % 2 == 0 {
            bench.near.set_terms(&terms(6 + (seed % 4 / 2) as u8), Some(Psn::new(0xff_fff0)));
        }
        for _ in 0..300 {
            let opcode = rng.pick(Opcode::ALL);
            let psn = match rng.below(4) {
                0 => rng.next() as u32,
                _ => 0xff_fff0u32.wrapping_add(rng.below(64) as u32),
            };
            let mut bth = Bth::new(opcode, Qpn::new(1), Psn::new(psn));
            bth.ack_req = rng.chance(500);
            let mut bytes = vec![0; 12 + opcode.layout().len()];
            bytes.iter_mut().for_each(|byte| *byte = rng.next() as u8);
            let mut head = [0; 12];
            bth.emit(&mut head);
            bytes[..12].copy_from_slice(&head);
            if opcode.has_payload() {
                let length = rng.pick(&[8, 16, 256, 1024]);
                bytes.resize(bytes.len() + length, 0);
            }
            let Ok(packet) = crate::wire::Packet::parse(&bytes) else {
                continue;
            };
            if rng.chance(500) {
                bench.near.handle_request(&packet, bench.now);
            } else {
                bench.near.handle_response(&packet, bench.now);
            }
            bench.wait(Duration::from_micros(rng.below(100_000)));
            if rng.chance(300) {
                while bench.near.poll_transmit(bench.now).is_some() {}
            }
        }
    }
}
