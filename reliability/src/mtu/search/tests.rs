use std::collections::VecDeque;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::*;
use crate::mtu::{Answerer, LARGEST};

const MS: Duration = Duration::from_millis(1);
const RTT: Duration = Duration::from_millis(20);
const OVERHEAD: usize = 60;
const BASE: usize = 1168;

#[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
fn origin() -> Instant {
    Instant::now()
}

fn config() -> Config {
    Config {
        lane: LaneId(0),
        base: BASE,
        most: LARGEST - OVERHEAD,
        hint: None,
        overhead: OVERHEAD,
        rate: 1_000_000_000,
        rtt: RTT,
    }
}

/// A search, a path that drops longer packets and others at random, and the other end.
struct Path {
    now: Instant,
    search: Search,
    answerer: Answerer,
    /// Longest IP packet.
    mtu: usize,
    loss: f64,
    rng: Pcg64Mcg,
    number: u64,
    there: VecDeque<(Instant, Vec<u8>)>,
    back: VecDeque<(Instant, Vec<u8>)>,
    /// A packet of the length in use is sent every so often.
    traffic: Option<Duration>,
    next: Instant,
    sent: u64,
}

impl Path {
    fn new(config: Config, mtu: usize, loss: f64, seed: u64) -> Self {
        let now = origin();
        Self {
            now,
            search: Search::new(config, now),
            answerer: Answerer::new(LaneId(0)),
            mtu,
            loss,
            rng: Pcg64Mcg::seed_from_u64(seed),
            number: 0,
            there: VecDeque::new(),
            back: VecDeque::new(),
            traffic: None,
            next: now,
            sent: 0,
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
        self.now = end;
    }

    /// How long it takes until the search is over.
    fn complete(&mut self) -> Duration {
        let begin = self.now;
        while self.search.status().state != State::Complete {
            assert!(self.step(begin + 1000 * RTT), "{:?}", self.search);
        }
        self.now - begin
    }

    fn step(&mut self, end: Instant) -> bool {
        let mut out = [0; 10_000];
        while let Some(len) = self.search.poll(self.number, self.now, &mut out) {
            self.number += 1;
            self.sent += 1;
            self.submit(&out[..len]);
        }
        if let Some(every) = self.traffic
            && self.next <= self.now
        {
            self.next = self.now + every;
            self.search.set_used(1000);
            let packet = vec![1; self.search.packet()];
            self.submit(&packet);
        }
        while let Some((_, packet)) = self.there.pop_front_if(|(at, _)| *at <= self.now) {
            self.answerer.arrived(packet.len());
            if let Ok(Message::Probe(probe)) = Message::parse(&packet) {
                self.answerer.handle_probe(&probe);
            }
            if let Some(len) = self.answerer.poll(&mut out)
                && !self.rng.random_bool(self.loss)
            {
                self.back.push_back((self.now + RTT / 2, out[..len].to_vec()));
            }
        }
        while let Some((_, packet)) = self.back.pop_front_if(|(at, _)| *at <= self.now) {
            let Ok(Message::Answer(answer)) = Message::parse(&packet) else { panic!("{packet:?}") };
            self.search.handle_answer(&answer, self.now);
        }
        let traffic = self.traffic.map(|_| self.next);
        let air = [&self.there, &self.back].map(|air| air.front().map(|(at, _)| *at));
        let next = [self.search.next_timeout(), traffic].into_iter().chain(air).flatten().min();
        match next.filter(|next| *next <= end) {
            Some(next) => self.now = self.now.max(next),
            None => return false,
        }
        true
    }

    fn submit(&mut self, packet: &[u8]) {
        if packet.len() + OVERHEAD <= self.mtu && !self.rng.random_bool(self.loss) {
            self.there.push_back((self.now + RTT / 2, packet.to_vec()));
        }
    }

    fn mtu(&self) -> usize {
        self.search.packet() + OVERHEAD
    }
}

#[test]
fn a_common_length_is_in_use_after_a_round_trip_and_any_other_is_found_soon() {
    for (mtu, first) in [
        (1280, 1280),
        (1400, 1400),
        (1450, 1400),
        (1495, 1400),
        (1500, 1500),
        (4000, 1500),
        (9000, 9000),
        (65_536, 9000),
    ] {
        let mut path = Path::new(config(), mtu, 0.0, 1);
        path.run(RTT);
        assert_eq!(path.mtu(), first, "of {mtu} after a round trip");
        let rest = path.complete();
        let found = path.mtu();
        assert_eq!(found, mtu.min(9000));
        // A round takes two round trips and a half at this one.
        assert!(rest <= 12 * (2 * RTT + 11 * MS), "{rest:?} for {mtu}");
        assert!(path.sent <= 50, "{} probes for {mtu}", path.sent);
        println!(
            "{mtu}: {found} after {:.1} round trips, {} probes",
            (rest + RTT).as_secs_f64() / RTT.as_secs_f64(),
            path.sent
        );
    }
}

#[test]
fn random_loss_is_not_mistaken_for_a_small_mtu() {
    let seed = 0x5eed_0001_u64;
    println!("seed {seed}");
    let mut short = 0;
    for run in 0..600 {
        let mtu = [1280, 1400, 1500, 4000, 9000][run % 5];
        let mut path = Path::new(config(), mtu, 0.05, seed.wrapping_add(run as u64));
        path.complete();
        short += usize::from(mtu > path.mtu());
        // Later on it is not doubted, either, whether or not it is used.
        path.traffic = (run % 2 == 0).then_some(30 * MS);
        path.run(Duration::from_secs(300));
        assert_eq!(path.search.status().black_holes, 0, "seed {seed}, run {run}");
        assert!(path.mtu() <= mtu);
    }
    assert!(short <= 1, "{short} of 600 too short, seed {seed}");
}

#[test]
fn the_last_length_found_is_tried_at_once_and_not_believed() {
    for (mtu, expected) in [(1437, 1437), (1436, 1400)] {
        let mut path = Path::new(Config { hint: Some(1437 - OVERHEAD), ..config() }, mtu, 0.0, 1);
        path.run(RTT);
        assert_eq!(path.mtu(), expected);
    }
}

#[test]
fn a_path_that_carries_more_is_found_when_the_search_begins_anew() {
    let mut path = Path::new(config(), 1500, 0.0, 1);
    path.complete();
    path.mtu = 9000;
    path.traffic = Some(100 * MS);
    path.run(RAISE - Duration::from_secs(2));
    assert_eq!(path.mtu(), 1500);
    path.run(Duration::from_secs(3));
    assert_eq!(path.mtu(), 9000);
}

#[test]
fn a_path_that_carries_less_is_noticed_while_it_is_used() {
    for (before, after) in [(9000, 1500), (9000, 1300), (1500, 1280), (1500, 1228)] {
        let mut path = Path::new(config(), before, 0.0, 1);
        path.traffic = Some(MS);
        path.complete();
        path.run(Duration::from_millis(2345));
        path.mtu = after;
        let begin = path.now;
        while path.mtu() > after {
            assert!(path.step(begin + Duration::from_secs(60)));
        }
        let noticed = path.now - begin;
        // An answer may tell of packets that came before.
        let bound = 2 * CONFIRM + (u32::from(BLACK_HOLE) + 1) * (2 * RTT + 11 * MS);
        assert!(noticed <= bound, "{noticed:?} of {bound:?}");
        path.run(2 * RTT);
        path.complete();
        assert_eq!(path.mtu(), after);
        assert_eq!(path.search.status().black_holes, 1);
    }
}

#[test]
fn a_path_below_the_base_is_used_all_the_same() {
    let mut path = Path::new(config(), 1500, 0.0, 1);
    path.traffic = Some(MS);
    path.complete();
    path.mtu = 900;
    path.run(Duration::from_secs(10));
    assert_eq!(path.mtu(), 900);
    assert_eq!(path.search.status().state, State::Error);
}

#[test]
fn an_outage_says_nothing_of_lengths() {
    for at in [Duration::ZERO, 3 * RTT / 2, Duration::from_secs(5)] {
        let mut path = Path::new(config(), 4000, 0.0, 1);
        path.traffic = Some(7 * MS);
        path.run(at);
        path.loss = 1.0;
        let before = (path.mtu(), path.sent);
        path.run(Duration::from_secs(60));
        assert_eq!(path.mtu(), before.0);
        assert!(path.sent - before.1 < 60, "{} probes into silence", path.sent - before.1);
        path.loss = 0.0;
        path.run(Duration::from_secs(10));
        path.complete();
        assert_eq!(path.mtu(), 4000);
        assert_eq!(path.search.status().black_holes, 0);
    }
}

#[test]
fn what_the_machine_itself_refuses_is_given_up_at_once() {
    let mut path = Path::new(config(), 9000, 0.0, 1);
    let mut out = [0; 10_000];
    let mut numbers = Vec::new();
    while let Some(len) = path.search.poll(path.number, path.now, &mut out) {
        // The interface carries 1500 bytes.
        if len + OVERHEAD > 1500 {
            path.search.unsent(&(path.number..path.number + 1), true);
            numbers.push(len + OVERHEAD);
        } else {
            path.submit(&out[..len]);
        }
        path.number += 1;
    }
    assert_eq!(numbers, [4352, 9000]);
    path.mtu = 1500;
    path.complete();
    assert_eq!(path.mtu(), 1500);
    let [sent, arrived] = path.search.take_excused();
    assert_eq!(path.search.status().lost, sent - arrived);
}

/// The peer's session begins a moment later, and the machine's interface refuses long packets: the
/// common lengths are tried again, and one is in use a round trip after the peer is there.
#[test]
fn common_lengths_that_nobody_heard_of_are_tried_again() {
    let mut path = Path::new(config(), 1500, 0.0, 1);
    let mut out = [0; 10_000];
    while let Some(len) = path.search.poll(path.number, path.now, &mut out) {
        if len + OVERHEAD > 1500 {
            path.search.unsent(&(path.number..path.number + 1), true);
        }
        path.number += 1;
    }
    path.now = path.search.next_timeout().unwrap();
    path.run(RTT);
    assert_eq!(path.mtu(), 1500);
    path.complete();
    assert_eq!(path.mtu(), 1500);
}

#[test]
fn an_unused_path_is_left_alone() {
    let mut path = Path::new(config(), 1500, 0.0, 1);
    path.complete();
    path.run(Duration::from_secs(2));
    let before = path.sent;
    path.run(RAISE - Duration::from_secs(10));
    assert_eq!(path.sent, before);
    assert!(path.search.next_timeout().unwrap() > path.now);
    path.search.set_used(500);
    path.run(2 * RTT);
    assert_eq!(path.sent, before, "what is short arrives anyway");
    path.search.set_used(1000);
    path.run(2 * RTT);
    assert_eq!(path.sent, before + 2);
}

#[test]
fn probes_that_were_lost_for_their_length_are_told() {
    let mut path = Path::new(config(), 1500, 0.0, 1);
    path.complete();
    let lost = path.search.status().lost;
    let [sent, arrived] = path.search.take_excused();
    assert!(lost > 5 && sent - arrived == lost, "{sent} sent, {arrived} arrived, {lost} lost");
    assert_eq!(path.search.take_excused(), [0; 2]);
}
