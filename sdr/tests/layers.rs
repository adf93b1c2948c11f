//! Reliability layers over a path that loses, repeats, delays and reorders, from seeds.
//!
//! Every message arrives once, in order and unchanged. After the faults cease, all complete within
//! a bound.
//! `SDR_SEEDS=2000 cargo test -p sdr --release --test layers` runs as many seeds, from `SDR_FIRST`
//! on.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod link;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fec::Code;
use link::{Faults, Link};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use sdr::blob::{BackEnd, Blob};
use sdr::layers::{Receiving, Scheme, Sending, Timing};
use sdr::{Buffer, ControlPath, Engine, Mtu, QpAttr, connect, max_datagram};

const STEP: Duration = Duration::from_micros(250);

struct World {
    seed: u64,
    rng: Pcg64Mcg,
    now: Instant,
    engines: [Engine; 2],
    controls: [ControlPath; 2],
    links: [Link; 2],
    sending: Sending,
    receiving: Receiving,
    out: Vec<u8>,
}

fn attr() -> QpAttr {
    QpAttr {
        chunk_log: 10,
        in_flight_log: 17,
        messages_log: 3,
        mtu: Mtu::B256,
        rate: 100_000_000,
        rtt: Duration::from_millis(10),
        patience: Duration::from_secs(3600),
        ..QpAttr::default()
    }
}

fn schemes() -> [Scheme; 4] {
    let codes = [Code::mds(8, 3), Code::xor(8, 4)].map(|code| Scheme::Ec(code.unwrap()));
    let [mds, xor] = codes;
    [Scheme::SrRto, Scheme::SrNack, mds, xor]
}

impl World {
    fn new(seed: u64, scheme: &Scheme, faults: Option<Faults>) -> Self {
        World::timed(seed, scheme, faults, Timing::new(attr().rtt, attr().rate))
    }

    fn timed(seed: u64, scheme: &Scheme, faults: Option<Faults>, timing: Timing) -> Self {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
        let now = Instant::now();
        let faults = faults.unwrap_or_else(|| Faults::drawn(&mut rng));
        let blob = Blob::new(attr(), BackEnd::None, Vec::new()).unwrap();
        let [near, far] = [0, 1].map(|_| connect(&blob, &blob, 0, now).unwrap());
        World {
            seed,
            rng,
            now,
            engines: [near.engine, far.engine],
            controls: [near.control, far.control],
            links: [Link::new(faults), Link::new(faults)],
            sending: Sending::new(near.send.unwrap(), scheme.clone(), timing, now).unwrap(),
            receiving: Receiving::new(far.receive.unwrap(), scheme.clone(), timing, now).unwrap(),
            out: vec![0; max_datagram(&attr())],
        }
    }

    fn step(&mut self) {
        self.sending.poll(&self.controls[0], self.now).unwrap();
        self.receiving.poll(&self.controls[1], self.now).unwrap();
        for (engine, link) in self.engines.iter_mut().zip(&mut self.links) {
            while let Some(packet) = engine.poll_transmit(self.now, &mut self.out) {
                link.send(&self.out[..packet.len], self.now, &mut self.rng);
            }
        }
        for (from, link) in self.links.iter_mut().enumerate() {
            for datagram in link.due(self.now) {
                let _ = self.engines[1 - from].handle(&datagram, self.now);
            }
        }
        self.now += STEP;
    }

    fn message(&mut self) -> Vec<u8> {
        let len = 1 + self.rng.next_u64() % (60 << 10);
        let mut bytes = vec![0; len as usize];
        self.rng.fill_bytes(&mut bytes);
        bytes
    }

    /// Carries messages under faults, then without, and returns how long the last ones took.
    fn run(mut self) -> (Duration, u64, u64) {
        let mut wanted = Vec::new();
        for _ in 0..12 {
            let bytes = self.message();
            self.receiving.expect(bytes.len()).unwrap();
            self.sending.send(&Arc::new(Buffer::from(bytes.clone()))).unwrap();
            wanted.push(bytes);
        }
        let mut got = Vec::new();
        for _ in 0..800 {
            self.step();
            got.extend(std::iter::from_fn(|| self.receiving.take()));
        }
        self.links.iter_mut().for_each(Link::repair);
        let start = self.now;
        while !(self.sending.is_idle() && got.len() == wanted.len()) {
            self.step();
            got.extend(std::iter::from_fn(|| self.receiving.take()));
            let spent = self.now.duration_since(start);
            assert!(spent < Duration::from_millis(600), "seed {}: {} of 12 messages", self.seed, got.len());
        }
        assert!(got == wanted, "seed {}: contents", self.seed);
        (self.now.duration_since(start), self.sending.repeated(), self.receiving.decoded())
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().expect(name))
}

#[test]
fn every_message_arrives_in_order_and_in_time() {
    let (first, seeds) = (number("SDR_FIRST", 0), number("SDR_SEEDS", 150));
    for scheme in schemes() {
        let (mut longest, mut repeated, mut decoded) = (Duration::ZERO, 0, 0);
        for seed in first..first + seeds {
            let (time, again, coded) = World::new(seed, &scheme, None).run();
            longest = longest.max(time);
            repeated += again;
            decoded += coded;
        }
        println!(
            "{scheme:?}: {seeds} seeds from {first} on, at most {longest:?} after the faults, {repeated} repeated, {decoded} decoded"
        );
        if seeds >= 100 {
            assert!(repeated > 0);
            assert_eq!(decoded > 0, matches!(scheme, Scheme::Ec(_)));
        }
    }
}

/// One lost packet: parity costs no round trip, a named chunk costs one, a timeout three.
#[test]
fn each_layer_pays_for_a_loss_what_the_model_says() {
    let times = schemes().map(|scheme| {
        let mut world = World::new(1, &scheme, Some(clean()));
        let bytes = vec![7; 8 << 10];
        world.receiving.expect(bytes.len()).unwrap();
        // Credits first, so that only the message is counted.
        for _ in 0..100 {
            world.step();
        }
        world.links[0].lose_data(3);
        let start = world.now;
        world.sending.send(&Arc::new(Buffer::from(bytes))).unwrap();
        while world.receiving.take().is_none() {
            world.step();
            assert!(world.now.duration_since(start) < Duration::from_secs(1));
        }
        world.now.duration_since(start)
    });
    let [rto, nack, mds, xor] = times;
    println!("RTO {rto:?}, NACK {nack:?}, MDS {mds:?}, XOR {xor:?}");
    let rtt = attr().rtt;
    assert!(mds < rtt && xor < rtt, "half a round trip and the packets");
    assert!(nack > rtt && nack < rtt * 2, "half, and one for the repetition");
    assert!(rto > rtt * 3 && rto < rtt * 5, "half, and three for the timeout, and one for the way");
}

/// A path without faults, of 5 ms each way.
fn clean() -> Faults {
    Faults {
        loss: 0,
        burst: 1,
        twice: 0,
        held: 0,
        delay: Duration::from_millis(5),
        most_held: Duration::ZERO,
    }
}

/// A layer that was told a wrong round trip and rate finds the right ones, and follows them.
/// With timers of the first values, every chunk would be sent several times.
#[test]
fn round_trip_and_rate_are_measured_all_the_time() {
    let wrong = Timing::new(Duration::from_millis(1), 1_000_000_000_000);
    let mut world = World::timed(1, &Scheme::SrRto, Some(clean()), wrong);
    for (delay, rounds) in [(5, 20), (20, 40), (2, 100)] {
        let delay = Duration::from_millis(delay);
        world.links.iter_mut().for_each(|link| link.set_delay(delay));
        let mut last = 0;
        for round in 0..rounds {
            let before = world.sending.repeated();
            let bytes = vec![round as u8; 500 << 10];
            world.receiving.expect(bytes.len()).unwrap();
            world.sending.send(&Arc::new(Buffer::from(bytes.clone()))).unwrap();
            while !world.sending.is_idle() {
                world.step();
            }
            assert_eq!(world.receiving.take(), Some(bytes));
            last = world.sending.repeated() - before;
        }
        assert_eq!(last, 0, "chunks repeated without need at {delay:?}");
        let (near, far) = (world.sending.path(), world.receiving.path());
        println!("{delay:?} each way: {near:?}, {far:?}");
        for path in [near, far] {
            // A look every 250 us on each side adds to the way.
            assert!(path.rtt >= delay * 2 && path.rtt < delay * 2 + STEP * 6, "{delay:?}: {path:?}");
        }
        assert!(near.rate.abs_diff(attr().rate) < attr().rate / 5, "{near:?}");
        assert!(far.rate.abs_diff(attr().rate) < attr().rate / 5, "{far:?}");
    }
}

/// A layer that was told a far too long round trip, and lost all that it sent at first, does not
/// wait by it.
#[test]
fn a_round_trip_that_was_told_too_long_delays_no_repair() {
    let wrong = Timing::new(Duration::from_secs(10), attr().rate);
    for scheme in schemes() {
        let mut world = World::timed(1, &scheme, Some(clean()), wrong);
        world.links[0] = Link::new(Faults { loss: 1, ..clean() });
        let bytes = vec![5; 8 << 10];
        world.receiving.expect(bytes.len()).unwrap();
        world.sending.send(&Arc::new(Buffer::from(bytes.clone()))).unwrap();
        for _ in 0..80 {
            world.step();
        }
        world.links[0].repair();
        let start = world.now;
        let taken = loop {
            world.step();
            if let Some(taken) = world.receiving.take() {
                break taken;
            }
            let spent = world.now.duration_since(start);
            assert!(spent < Duration::from_millis(300), "{scheme:?}: nothing after {spent:?}");
        };
        assert!(taken == bytes);
        println!("{scheme:?}: {:?}", world.now.duration_since(start));
        while !world.sending.is_idle() {
            world.step();
            assert!(world.now.duration_since(start) < Duration::from_millis(300), "{scheme:?}");
        }
    }
}

/// Both sides take another scheme at the same message, while earlier ones are under way.
#[test]
fn both_sides_switch_schemes_between_messages() {
    let mut world = World::new(7, &Scheme::SrRto, None);
    let mut wanted = Vec::new();
    for scheme in schemes().into_iter().cycle().take(12) {
        world.sending.switch(scheme.clone()).unwrap();
        world.receiving.switch(scheme).unwrap();
        let bytes = world.message();
        world.receiving.expect(bytes.len()).unwrap();
        world.sending.send(&Arc::new(Buffer::from(bytes.clone()))).unwrap();
        wanted.push(bytes);
    }
    let too_large = Scheme::Ec(Code::mds(64, 3).unwrap());
    assert!(world.sending.switch(too_large.clone()).is_err() && world.receiving.switch(too_large).is_err());
    let (mut got, mut steps) = (Vec::new(), 0);
    while got.len() < wanted.len() {
        world.step();
        steps += 1;
        if steps == 800 {
            world.links.iter_mut().for_each(Link::repair);
        }
        assert!(steps < 8000, "{} of 12 messages", got.len());
        got.extend(std::iter::from_fn(|| world.receiving.take()));
    }
    assert!(got == wanted);
}
