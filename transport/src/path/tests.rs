use reliability::estimator::Ecn;
use reliability::stream::{Scheme, Sender, SenderConfig};

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Takes in DATA packets that leave 100 us apart, by lanes with these delays in turn.
fn observed(delays: &[Duration], packets: u32) -> Paths {
    let start = crate::test_clock();
    let lanes = delays.len() as u8;
    let config = Config { lanes, rtt: 100 * MS, ..Config::new(1_000_000_000, 1400) };
    let mut paths = Paths::up(&config, 1400, lanes, None, start);
    let scheme = Scheme::None;
    let mut sender = Sender::new(SenderConfig { scheme, ..SenderConfig::new(StreamId(1), 1400) }, start);
    let mut coming: Vec<_> = (0..packets)
        .map(|number| {
            let (lane, sent) = (number as usize % delays.len(), start + Duration::from_micros(100) * number);
            let mut packet = vec![0; 1400];
            sender.push(&[&[7; 100]], sent).unwrap();
            let len = sender.poll_transmit(sent, &mut packet).unwrap().len;
            packet.truncate(len);
            (sent + delays[lane], lane as u16, u64::from(number) / delays.len() as u64, packet)
        })
        .collect();
    coming.sort();
    for (at, lane, number, packet) in coming {
        let arrival = Arrival { lane: LaneId(lane), number, bytes: packet.len(), ecn: Ecn::NotEct };
        paths.observe(&packet, &arrival, Some(Kind::Data), at);
    }
    paths
}

/// By how much the slowest lane is slower, and not the longest that there may be.
#[test]
fn the_patience_with_lanes_is_their_difference() {
    let waits = observed(&[25 * MS, 27 * MS, 25 * MS, 26 * MS], 4000).reorder_time();
    assert!((2 * MS..=3 * MS).contains(&waits), "{waits:?}");
    assert_eq!(observed(&[25 * MS; 3], 4000).reorder_time(), Duration::ZERO);
}

/// An arrival has a report made when it is due, without anybody looking at all lanes before.
#[test]
fn arrivals_are_reported_and_stir_nothing_else() {
    let start = crate::test_clock();
    let config = Config { lanes: 2, rtt: 100 * MS, ..Config::new(1_000_000_000, 1400) };
    let mut paths = Paths::up(&config, 1400, 2, None, start);
    let mut out = [0; 1400];
    while paths.poll(start, &mut out).is_some() {}
    assert!(!paths.is_stirred);
    let arrive = |paths: &mut Paths, number, at| {
        let arrival = Arrival { lane: LaneId(1), number, bytes: 100, ecn: Ecn::NotEct };
        paths.observe(&[0; 100], &arrival, Some(Kind::Parity), at);
        assert!(!paths.is_stirred);
    };
    arrive(&mut paths, 0, start + MS);
    assert_eq!(paths.next_timeout(), Some(start + MS), "the first one is told of at once");
    assert!(paths.poll(start + MS, &mut out).is_some());
    while paths.poll(start + MS, &mut out).is_some() {}
    arrive(&mut paths, 1, start + 2 * MS);
    let due = paths.next_timeout().unwrap();
    assert!(due > start + 2 * MS && due <= start + 101 * MS, "{:?}", due - start);
    assert!(paths.poll(start + 2 * MS, &mut out).is_none(), "too soon for another");
    assert!(paths.poll(due, &mut out).is_some());
}
