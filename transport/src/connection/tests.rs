//! Two connections over a link in memory.

mod thin;

use std::collections::BTreeMap;

use reliability::estimator::Ecn;
use reliability::stream::Scheme;

use super::*;
use crate::{Group, Place, Repair, Urgency};

const SESSION: Session = Session { rtt: Duration::from_millis(4), max_packet: 1400, lanes: 1 };
const STEP: Duration = Duration::from_micros(50);
const DELAY: Duration = Duration::from_millis(2);

struct OnItsWay {
    due: Instant,
    to: usize,
    packet: Vec<u8>,
    arrival: Arrival,
}

/// Two ends, a millisecond or two apart. The first one sends.
struct World {
    ends: [Connection; 2],
    now: Instant,
    numbers: BTreeMap<(usize, u16), u64>,
    link: Vec<OnItsWay>,
    /// One in so many packets is lost.
    lose: u64,
    sent: u64,
    longest: usize,
    /// Times each record arrived.
    arrived: BTreeMap<u32, u32>,
    pushed: u32,
    out: Vec<u8>,
    /// The way from the second end, if it is thinner than the other.
    back: Option<thin::Way>,
}

impl World {
    fn new(classes: &[Class], config: impl Fn(Config) -> Config) -> Self {
        let now = crate::test_clock();
        let end = || {
            let config = config(Config::new(1_000_000_000, 9000));
            Connection::new(config, classes.to_vec(), now)
        };
        Self {
            ends: [end(), end()],
            now,
            numbers: BTreeMap::new(),
            link: Vec::new(),
            lose: 20,
            sent: 0,
            longest: 0,
            arrived: BTreeMap::new(),
            pushed: 0,
            out: vec![0; 9000],
            back: None,
        }
    }

    /// The same for both ends.
    fn both(&mut self, what: impl Fn(&mut Connection, Instant)) {
        self.ends.iter_mut().for_each(|end| what(end, self.now));
    }

    fn push(&mut self, class: usize, records: u32) {
        for _ in 0..records {
            let record = [&self.pushed.to_be_bytes()[..], &[7; 1000]];
            let place = Place { source: 1, group: Group::main(0), goes_first: false };
            self.ends[0].senders().push(class, Urgency::Bulk, place, &record, self.now).unwrap();
            self.pushed += 1;
        }
    }

    fn step(&mut self) {
        for index in 0..2 {
            let end = &mut self.ends[index];
            if end.next_timeout(self.now).is_some_and(|due| due <= self.now) {
                end.handle_timeout(self.now);
            }
            while let Some(LanePacket { lane, len }) = end.poll_transmit(self.now, &mut self.out) {
                let number = self.numbers.entry((index, lane.0)).or_default();
                let arrival = Arrival { lane, number: *number, bytes: end.wire_bytes(len), ecn: Ecn::NotEct };
                *number += 1;
                self.sent += 1;
                self.longest = self.longest.max(len);
                if !self.sent.is_multiple_of(self.lose) {
                    let packet = self.out[..len].to_vec();
                    let back = self.back.as_mut().filter(|_| index == 1);
                    let left = back.map_or(Some(self.now), |way| way.take(arrival.bytes, self.now));
                    let Some(left) = left else { continue };
                    self.link.push(OnItsWay { due: left + DELAY, to: 1 - index, packet, arrival });
                }
            }
            while end.poll_event().is_some() {}
        }
        self.now += STEP;
        for OnItsWay { to, packet, arrival, .. } in self.link.extract_if(.., |way| way.due <= self.now) {
            let deliver = &mut |record: &[u8], _: &mut Senders| {
                let number = u32::from_be_bytes(*record.first_chunk().unwrap());
                *self.arrived.entry(number).or_default() += 1;
            };
            self.ends[to].handle_datagram(&packet, arrival, self.now, deliver).unwrap();
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// All that is on its way is lost with the path.
    fn park(&mut self) {
        self.both(|end, now| end.park(now));
        self.link.clear();
        self.numbers.clear();
    }

    fn check(&self) {
        assert!(self.ends[0].is_idle());
        let expected: BTreeMap<u32, u32> = (0..self.pushed).map(|record| (record, 1)).collect();
        assert!(self.arrived == expected, "{} of {} records", self.arrived.len(), self.pushed);
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn schemes() -> [Scheme; 4] {
    let (k, m, depth) = (8, 2, 2);
    [Scheme::sr(), Scheme::Xor { k, m, depth }, Scheme::Mds { k, m, depth }, Scheme::Hybrid { k, m, depth }]
}

fn with(scheme: Scheme) -> Class {
    let flush = (scheme != Scheme::sr()).then_some(Duration::from_millis(1));
    Class { repair: Repair::Fixed { scheme, flush }, ..Class::new("default") }
}

#[test]
fn a_parked_session_goes_on_where_it_stood() {
    for scheme in schemes() {
        for pause in [Duration::ZERO, SECOND, 300 * SECOND] {
            let mut world = World::new(&[with(scheme)], |config| config);
            world.both(|end, now| end.begin(&SESSION, now));
            world.push(0, 2000);
            world.run(Duration::from_millis(10));
            let before = world.arrived.len();
            assert!((1..2000).contains(&before), "{before}");
            world.park();
            let sent = world.sent;
            world.push(0, 100);
            world.run(pause.min(SECOND));
            world.now += pause.saturating_sub(SECOND);
            assert_eq!((world.sent, world.arrived.len()), (sent, before), "nothing leaves, nothing is taken");
            assert!(world.ends.iter().all(|end| end.is_parked() && end.next_timeout(world.now).is_none()));
            world.both(|end, now| end.resume(&SESSION, now));
            world.run(SECOND);
            world.check();
        }
    }
}

#[test]
fn what_comes_for_a_parked_session_is_not_taken() {
    let mut world = World::new(&[Class::new("default")], |config| config);
    world.both(|end, now| end.begin(&SESSION, now));
    world.push(0, 10);
    world.step();
    assert!(!world.link.is_empty());
    world.ends[1].park(world.now);
    world.run(2 * DELAY);
    assert!(world.link.is_empty() && world.arrived.is_empty());
}

#[test]
fn a_session_goes_on_over_a_path_with_other_lanes_and_shorter_packets() {
    let mut world = World::new(&[Class::new("default")], |config| Config { lanes: 2, ..config });
    let long = Session { max_packet: 9000, lanes: 2, ..SESSION };
    world.both(|end, now| end.begin(&long, now));
    world.push(0, 2000);
    world.run(Duration::from_millis(10));
    assert!(world.longest > 8000, "{}", world.longest);
    world.park();
    world.longest = 0;
    world.both(|end, now| end.resume(&Session { lanes: 2, ..SESSION }, now));
    world.run(SECOND);
    world.check();
    assert!(
        (1000..=1400).contains(&world.longest),
        "what was built before leaves in pieces: {}",
        world.longest
    );
}

#[test]
fn a_lane_that_has_no_room_is_left_out() {
    let mut world = World::new(&[Class::new("default")], |config| Config { lanes: 2, ..config });
    world.both(|end, now| end.begin(&Session { lanes: 2, ..SESSION }, now));
    world.ends[0].set_full_lanes(1);
    world.push(0, 2000);
    world.run(SECOND);
    world.check();
    let took = |world: &World| [0, 1].map(|lane| world.numbers.get(&(0, lane)).copied().unwrap_or(0));
    let [full, other] = took(&world);
    assert!(full < 100 && other > 1000, "probes and what else is for a lane alone: {full}, {other}");

    world.ends[0].set_full_lanes(0);
    world.push(0, 2000);
    world.run(SECOND);
    world.check();
    let [first, second] = took(&world);
    assert!(first - full > 500 && second - other > 500, "{first}, {second}");
}

#[test]
fn classes_may_change_while_a_session_is_parked() {
    let mut world = World::new(&[Class::new("a"), Class::new("b")], |config| config);
    world.both(|end, now| end.begin(&SESSION, now));
    world.push(0, 500);
    world.push(1, 500);
    world.run(Duration::from_millis(4));
    world.park();
    world.ends[0].set_classes(vec![Class::new("b"), Class::new("c")], world.now).unwrap();
    world.push(1, 100);
    world.both(|end, now| end.resume(&SESSION, now));
    assert!(world.ends[0].draining().1 > 0, "what the class that is gone holds is sent");
    world.run(SECOND);
    world.check();
    assert_eq!(world.ends[0].draining(), (0, 0));
}

#[test]
fn what_a_session_held_is_gone_with_it() {
    let mut world = World::new(&[Class::new("default")], |config| config);
    world.both(|end, now| end.resume(&SESSION, now));
    assert!(world.ends.iter().all(Connection::is_up), "nothing was parked, so one begins");
    world.push(0, 100);
    world.park();
    world.both(|end, now| end.end(now));
    assert!(world.ends.iter().all(|end| !end.is_parked() && end.is_idle()));
    let place = Place { source: 1, group: Group::main(0), goes_first: false };
    let refused = world.ends[0].senders().push(0, Urgency::Bulk, place, &[&[1]], world.now);
    assert!(refused.is_err());
    world.both(|end, now| end.begin(&SESSION, now));
    world.run(SECOND / 10);
    assert!(world.arrived.is_empty());
}
