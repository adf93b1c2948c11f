//! The ring packet by packet, in virtual time, on the real layers. Contents are checked.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use sdr::blob::{BackEnd, Blob};
use sdr::imm::PacketImm;
use sdr::layers::{Scheme, Timing};
use sdr::udp::now;
use sdr::wire::Datagram;
use sdr::{Engine, QpAttr, Shape, connect, max_datagram};

use crate::Result;
use crate::link::{Faults, Link};
use crate::ring::{Ends, SITES, Site, around};

/// Looks at each side in a round trip.
const LOOKS: u32 = 500;

/// Losses by place: the same packet is lost at the same attempt, whoever asks.
#[derive(Clone, Copy)]
pub(crate) struct ByPlace {
    pub(crate) seed: u64,
    /// Probability that a data packet is lost.
    pub(crate) drop: f64,
}

impl ByPlace {
    /// Returns true if the packet at `offset` of a message is lost at its attempt, from 0.
    pub(crate) fn is_lost(&self, link: usize, message: u32, offset: u32, attempt: u32) -> bool {
        let place = [link as u64, message.into(), offset.into(), attempt.into()];
        let drawn = place.into_iter().fold(mix(self.seed), |state, part| mix(state ^ part));
        (drawn >> 11) as f64 / (1u64 << 53) as f64 <= self.drop && self.drop > 0.0
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One link of the ring: both engines, both directions, and what was sent how often.
struct Pair {
    engines: [Engine; 2],
    links: [Link; 2],
    attempts: BTreeMap<(u32, u32), u32>,
}

impl Pair {
    /// Sends all that leaves from `time` on, before `end`.
    fn transmit(
        &mut self,
        place: (usize, &Shape),
        losses: &ByPlace,
        time: Instant,
        end: Instant,
        rng: &mut Pcg64Mcg,
        out: &mut [u8],
    ) {
        for (engine, link) in self.engines.iter_mut().zip(&mut self.links) {
            let mut at = time;
            while at < end {
                let Some(packet) = engine.poll_transmit(at, out) else {
                    // Not earlier, so that time goes on.
                    at = engine.next_timeout(at).max(at + Duration::from_nanos(1));
                    continue;
                };
                let bytes = out.get(..packet.len).unwrap_or_default();
                if !is_lost(&mut self.attempts, bytes, place, losses) {
                    link.send(bytes, at, rng);
                }
            }
        }
    }

    /// Hands over all that arrives by `time`.
    fn deliver(&mut self, time: Instant) {
        for (link, engine) in self.links.iter_mut().zip(self.engines.iter_mut().rev()) {
            for datagram in link.due(time) {
                // Duplicates are refused, and counted.
                let _ = engine.handle(&datagram, time);
            }
        }
    }
}

/// Decides the fate of a datagram. Only data packets are lost.
fn is_lost(
    attempts: &mut BTreeMap<(u32, u32), u32>,
    bytes: &[u8],
    (link, shape): (usize, &Shape),
    losses: &ByPlace,
) -> bool {
    let Ok(Datagram::Data { generation, imm, .. }) = Datagram::decode(bytes) else {
        return false;
    };
    let PacketImm { id, offset, .. } = PacketImm::decode(imm);
    // No run has more messages than ids and generations tell apart.
    let message = u32::from(generation) * shape.slots() + id;
    let attempt = attempts.entry((message, offset)).or_default();
    let lost = losses.is_lost(link, message, offset, *attempt);
    *attempt += 1;
    lost
}

/// One run. Returns when the last site had all sums.
pub(crate) fn run(attr: &QpAttr, scheme: &Scheme, losses: &ByPlace, numbers: usize) -> Result<Duration> {
    let mut rng = Pcg64Mcg::seed_from_u64(losses.seed);
    let start = now();
    let shape = Shape::new(attr)?;
    let faults =
        Faults { loss: 0, burst: 1, twice: 0, held: 0, delay: attr.rtt / 2, most_held: Duration::ZERO };
    let blob = Blob::new(*attr, BackEnd::None, Vec::new())?;
    let (mut near, mut far, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..SITES {
        let (a, b) = (connect(&blob, &blob, 0, start)?, connect(&blob, &blob, 0, start)?);
        near.push((a.send, a.receive, a.control));
        far.push((b.send, b.receive, b.control));
        pairs.push(Pair {
            engines: [a.engine, b.engine],
            links: [Link::new(faults), Link::new(faults)],
            attempts: BTreeMap::new(),
        });
    }
    let mut sites = Vec::new();
    for (index, ((send, _, to_next), (_, receive, from_last))) in around(near, far).enumerate() {
        let (Some(send), Some(receive)) = (send, receive) else { return Err("one direction only".into()) };
        let timing = Timing::new(attr.rtt, attr.rate);
        let ends = Ends { send, to_next, receive, from_last };
        sites.push(Site::new((index, SITES), numbers, scheme, timing, ends, start)?);
    }
    let (mut time, step) = (start, attr.rtt / LOOKS);
    let mut out = vec![0; max_datagram(attr)];
    while !sites.iter().all(|site| site.done_at().is_some()) {
        for site in &mut sites {
            site.poll(time)?;
        }
        for (link, pair) in pairs.iter_mut().enumerate() {
            pair.transmit((link, &shape), losses, time, time + step, &mut rng, &mut out);
        }
        time += step;
        pairs.iter_mut().for_each(|pair| pair.deliver(time));
    }
    if !sites.iter().all(Site::is_right) {
        return Err(format!("seed {}: wrong sums", losses.seed).into());
    }
    let last = sites.iter().filter_map(Site::done_at).max().unwrap_or(time);
    Ok(last - start)
}
