//! Packets for destinations whose next hop has not answered the kernel yet.
//!
//! They have places of their own, so that one who sends to addresses where nobody is takes nothing
//! from those whose destinations are known, nor much from others who wait.

use std::array;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::hops::Hop;
use crate::lan::MAX_PACKET;

/// Pairs of source and destination that wait.
const PAIRS: usize = 64;
/// Packets that each of them keeps: the first ones, since what follows is no use without them.
const PACKETS: usize = 4;
/// Nobody waits longer. The answer comes before, if the kernel was asked.
const PATIENCE: Duration = Duration::from_secs(3);

/// The packets. Bounds: 64 pairs of 4 packets. With all places taken, a source that has more than
/// one beyond the newcomer's gives one up.
pub(in crate::lan) struct Waiting {
    /// Each in a slot of [`MAX_PACKET`] bytes, by place and number.
    slots: Box<[u8]>,
    pairs: Box<[Option<Pair>; PAIRS]>,
    taken: usize,
}

struct Pair {
    source: IpAddr,
    destination: IpAddr,
    since: Instant,
    /// Which of its source's pairs it is, from 1.
    nth: usize,
    /// How long the packets are that it keeps.
    lengths: [usize; PACKETS],
    kept: usize,
    /// Those that have gone.
    gone: usize,
    state: State,
}

enum State {
    /// The kernel could not be asked.
    New,
    Asked,
    /// Its packets may go.
    Found(Hop),
}

impl Waiting {
    pub(in crate::lan) fn new() -> Self {
        Self {
            slots: vec![0; PAIRS * PACKETS * MAX_PACKET].into_boxed_slice(),
            pairs: Box::new(array::from_fn(|_| None)),
            taken: 0,
        }
    }

    pub(in crate::lan) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// Packets that wait.
    pub(in crate::lan) fn packets(&self) -> usize {
        self.pairs.iter().flatten().map(|pair| pair.kept - pair.gone).sum()
    }

    /// Returns true if earlier packets of this pair wait, so that another one has to.
    pub(in crate::lan) fn holds(&self, source: IpAddr, destination: IpAddr) -> bool {
        !self.is_empty() && self.place(source, destination).is_some()
    }

    /// Keeps a packet if there is room. Returns how many were dropped, this one or others.
    pub(in crate::lan) fn push(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        packet: &[u8],
        now: Instant,
    ) -> u64 {
        let (place, dropped) = match self.place(source, destination) {
            Some(place) => (place, 0),
            None => match self.begin(source, destination, now) {
                Some(begun) => begun,
                None => return 1,
            },
        };
        let Some(Some(pair)) = self.pairs.get_mut(place) else { return 1 };
        let Some(length) = pair.lengths.get_mut(pair.kept) else { return dropped + 1 };
        let start = (place * PACKETS + pair.kept) * MAX_PACKET;
        let Some(slot) = self.slots.get_mut(start..start + packet.len().min(MAX_PACKET)) else {
            return dropped + 1;
        };
        slot.copy_from_slice(packet.get(..slot.len()).unwrap_or_default());
        *length = slot.len();
        pair.kept += 1;
        dropped
    }

    /// Has `search` ask for the destinations that were not asked for, until it returns false.
    pub(in crate::lan) fn ask(&mut self, mut search: impl FnMut(IpAddr) -> bool) {
        for place in 0..PAIRS {
            let Some(Some(Pair { destination, state: State::New, .. })) = self.pairs.get(place) else {
                continue;
            };
            let destination = *destination;
            let is_asked =
                |pair: &Pair| pair.destination == destination && matches!(pair.state, State::Asked);
            if !self.pairs.iter().flatten().any(is_asked) && !search(destination) {
                return;
            }
            if let Some(Some(pair)) = self.pairs.get_mut(place) {
                pair.state = State::Asked;
            }
        }
    }

    /// The answer of a search: the way there, or `None` if nobody answers. Returns how many packets
    /// were dropped.
    pub(in crate::lan) fn answer(&mut self, destination: IpAddr, hop: Option<&Hop>) -> u64 {
        let mut dropped = 0;
        for place in 0..PAIRS {
            let Some(Some(pair)) = self.pairs.get_mut(place) else { continue };
            if pair.destination != destination {
                continue;
            }
            match hop {
                Some(hop) => pair.state = State::Found(hop.clone()),
                None => dropped += self.end(place),
            }
        }
        dropped
    }

    /// Hands over the packets whose way is found, each pair's in order, as long as `take` takes
    /// them.
    pub(in crate::lan) fn release(&mut self, take: &mut dyn FnMut(&Hop, IpAddr, &[u8]) -> bool) {
        for place in 0..PAIRS {
            let Some(Some(pair)) = self.pairs.get_mut(place) else { continue };
            let State::Found(hop) = &pair.state else { continue };
            while pair.gone < pair.kept {
                let start = (place * PACKETS + pair.gone) * MAX_PACKET;
                let length = pair.lengths.get(pair.gone).copied().unwrap_or(0);
                let packet = self.slots.get(start..start + length).unwrap_or_default();
                if !take(hop, pair.destination, packet) {
                    return;
                }
                pair.gone += 1;
            }
            self.end(place);
        }
    }

    /// Drops those that have waited too long. Returns how many packets.
    pub(in crate::lan) fn expire(&mut self, now: Instant) -> u64 {
        let is_old = |pair: &Pair| now.saturating_duration_since(pair.since) >= PATIENCE;
        (0..PAIRS)
            .filter_map(|place| {
                let is_over = self.pairs.get(place)?.as_ref().is_some_and(is_old);
                is_over.then(|| self.end(place))
            })
            .sum()
    }

    /// Drops all. Returns how many packets.
    pub(in crate::lan) fn clear(&mut self) -> u64 {
        (0..PAIRS).map(|place| self.end(place)).sum()
    }

    fn place(&self, source: IpAddr, destination: IpAddr) -> Option<usize> {
        let is_it = |pair: &Pair| pair.destination == destination && pair.source == source;
        self.pairs.iter().position(|pair| pair.as_ref().is_some_and(is_it))
    }

    /// A place for another pair, and how many packets had to make room. `None`: there is none.
    fn begin(&mut self, source: IpAddr, destination: IpAddr, now: Instant) -> Option<(usize, u64)> {
        let own = self.pairs.iter().flatten().filter(|pair| pair.source == source).count();
        let (place, dropped) = match self.pairs.iter().position(Option::is_none) {
            Some(place) => (place, 0),
            None => {
                let rank = |(place, pair): (usize, &Option<Pair>)| Some((pair.as_ref()?.nth, place));
                let (most, place) = self.pairs.iter().enumerate().filter_map(rank).max()?;
                if most <= own + 1 {
                    return None;
                }
                (place, self.end(place))
            }
        };
        let state = State::New;
        let pair = Pair {
            source,
            destination,
            since: now,
            nth: own + 1,
            lengths: [0; PACKETS],
            kept: 0,
            gone: 0,
            state,
        };
        *self.pairs.get_mut(place)? = Some(pair);
        self.taken += 1;
        Some((place, dropped))
    }

    /// Frees a place. Returns how many packets it still kept.
    fn end(&mut self, place: usize) -> u64 {
        let Some(ended) = self.pairs.get_mut(place).and_then(Option::take) else { return 0 };
        self.taken -= 1;
        for pair in self.pairs.iter_mut().flatten() {
            if pair.source == ended.source && pair.nth > ended.nth {
                pair.nth -= 1;
            }
        }
        (ended.kept - ended.gone) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> IpAddr {
        [10, 0, 1, last].into()
    }

    fn absent(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    /// Hands over what may go.
    fn released(waiting: &mut Waiting, most: usize) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        waiting.release(&mut |_, _, packet| {
            let takes = packets.len() < most;
            if takes {
                packets.push(packet.to_vec());
            }
            takes
        });
        packets
    }

    #[test]
    fn packets_wait_for_the_answer_and_go_in_order() {
        let (now, mut waiting) = (Instant::now(), Waiting::new());
        for number in 0..4 {
            assert_eq!(waiting.push(host(1), absent(9), &[number; 30], now), 0);
        }
        assert_eq!(waiting.push(host(2), absent(9), &[7; 4000], now), 0);
        assert_eq!(waiting.push(host(1), absent(9), &[5; 30], now), 1, "the first ones are kept");
        assert_eq!((waiting.packets(), released(&mut waiting, 9)), (5, vec![]));
        let mut asked = Vec::new();
        for _ in 0..2 {
            waiting.ask(|destination| {
                asked.push(destination);
                true
            });
        }
        assert_eq!(asked, [absent(9)], "once for all");
        assert_eq!(waiting.answer(absent(9), Some(&Hop::Kernel)), 0);
        assert_eq!(released(&mut waiting, 3), [[0; 30], [1; 30], [2; 30]]);
        assert!(waiting.holds(host(1), absent(9)));
        // It comes after those that are left.
        assert_eq!(waiting.push(host(1), absent(9), &[5; 30], now), 1);
        assert_eq!(released(&mut waiting, 9), [vec![3; 30], vec![7; 4000]]);
        assert!(waiting.is_empty() && !waiting.holds(host(1), absent(9)));
    }

    #[test]
    fn a_source_that_fills_it_makes_room_for_others() {
        let (now, mut waiting) = (Instant::now(), Waiting::new());
        let dropped: u64 = (0..200).map(|last| waiting.push(host(1), absent(last), &[1], now)).sum();
        assert_eq!((waiting.packets(), dropped), (PAIRS, 200 - PAIRS as u64));
        // A second one has as much as the first in the end, and the first gets nothing back.
        let dropped: u64 = (0..200).map(|last| waiting.push(host(2), absent(last), &[2], now)).sum();
        assert_eq!(dropped, 200);
        let of = |waiting: &Waiting, last| {
            waiting.pairs.iter().flatten().filter(|pair| pair.source == host(last)).count()
        };
        assert!(of(&waiting, 1).abs_diff(of(&waiting, 2)) <= 2, "{}", of(&waiting, 1));
        for last in 0..200 {
            waiting.push(host(1), absent(last), &[1], now);
        }
        assert!(of(&waiting, 1).abs_diff(of(&waiting, 2)) <= 2);
        // So do third ones, as long as anybody has more than they ask for.
        for source in 3..=255 {
            waiting.push(host(source), absent(source), &[3], now);
        }
        assert!(of(&waiting, 3) == 1 && of(&waiting, 1) >= 1);
        assert_eq!(waiting.taken, PAIRS);
        let mut ranks: Vec<_> = waiting.pairs.iter().flatten().map(|pair| (pair.source, pair.nth)).collect();
        ranks.sort_unstable();
        for pair in ranks.windows(2) {
            assert!(if pair[0].0 == pair[1].0 { pair[1].1 == pair[0].1 + 1 } else { pair[1].1 == 1 });
        }
    }

    #[test]
    fn nobody_waits_for_ever() {
        let (now, mut waiting) = (Instant::now(), Waiting::new());
        waiting.push(host(1), absent(1), &[1], now);
        waiting.push(host(1), absent(1), &[1], now);
        waiting.push(host(1), absent(2), &[1], now + PATIENCE / 2);
        assert_eq!(waiting.answer(absent(3), None), 0);
        assert_eq!((waiting.expire(now + PATIENCE), waiting.packets()), (2, 1));
        assert_eq!((waiting.answer(absent(2), None), waiting.is_empty()), (1, true));
        waiting.push(host(1), absent(1), &[1], now);
        assert_eq!((waiting.clear(), waiting.is_empty()), (1, true));
    }
}
