//! The sending end: which lengths arrive.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::answer::{Answer, MTU_PACKET, Message, Probe};
use crate::estimator::{Clock, LaneId};

/// IP packets that are common: plain, in tunnels, FDDI, jumbo frames. Tried all at once.
const LADDER: [usize; 5] = [1280, 1400, 1500, 4352, super::LARGEST];
/// Lengths that are tried together between one that arrives and one that does not.
const BETWEEN: usize = 3;
/// The length above the one found has been lost so often. RFC 8899 has 3; with 5, random loss is
/// not mistaken for it.
const MAX_PROBES: u8 = 5;
/// Rounds in which nothing so long as what is in use arrived, while shorter packets did: the path
/// has come to carry less.
const BLACK_HOLE: u8 = 10;
/// Where not even the base arrives: what IP promises to carry (RFC 791).
const LEAST: usize = 576;
/// Time between probes of the length in use while it is used; they take no more than a 200th of the
/// rate.
const CONFIRM: Duration = Duration::from_millis(500);
const CONFIRM_SHARE: u64 = 200;
/// The search begins anew after so long (RFC 8899, section 5.1.1).
const RAISE: Duration = Duration::from_secs(600);
/// Rounds follow silence ever more rarely, up to this.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);
/// Rounds at the session's begin in which all is tried, heard or not: the peer may not be there
/// yet.
const EAGER: u8 = 2;
/// Probes whose length is remembered; an answer tells of as many.
const REMEMBERED: usize = 32;
/// Probes of one round.
const ROUND: usize = 10;
/// Lengths known not to arrive; beyond it the longest is forgotten.
const CEILINGS: usize = 16;

/// The settings of a [`Search`]. Lengths of packets in plaintext.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The lane searched.
    pub lane: LaneId,
    /// The length used at first.
    pub base: usize,
    /// The longest that may be used.
    pub most: usize,
    /// The length found last time; tried at once.
    pub hint: Option<usize>,
    /// Bytes that seal, UDP and IP add.
    pub overhead: usize,
    /// Bit/s: what a probe takes of the link's time.
    pub rate: u64,
    /// Round-trip time until [`Search::set_rtt`].
    pub rtt: Duration,
}

/// Where the search stands (RFC 8899, section 5.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The length in use is given, and nothing is searched.
    #[default]
    Fixed,
    /// Nothing has been answered for the length in use.
    Base,
    /// Longer ones are tried.
    Searching,
    /// The longest is in use.
    Complete,
    /// Not even the base arrives.
    Error,
}

/// For whoever watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Where the search stands.
    pub state: State,
    /// The longest packet in use, in plaintext.
    pub packet: usize,
    /// The IP packet around it.
    pub mtu: usize,
    /// Probes sent.
    pub probes: u64,
    /// Probes lost that were longer than the length in use.
    pub lost: u64,
    /// Times that the path came to carry less.
    pub black_holes: u64,
}

/// Finds the longest packet that arrives, by probes: MTU packets of a length, which the peer
/// answers.
///
/// A *round* is a short probe, which tells whether the path works at all, and some of the lengths
/// in question; it ends when all are answered, or after a timer of about two round trips. A round
/// in which nothing was answered counts for nothing. At first the common lengths are tried
/// together, so one of them is in use after a round trip; then, between the longest that arrived
/// and the shortest that did not, three at a time, down to the byte. A length is given up for one
/// loss, but the one that bounds what was found has been lost five times: so loss costs time, not
/// length. What arrives is used at once.
///
/// What is in use is confirmed every half second while it is used, by a probe or by any packet so
/// long; after ten rounds without, in which short packets arrived, the base is used, and the search
/// begins anew.
///
/// # Driver contract
/// [`Search::poll`] after inputs and at [`Search::next_timeout`], until it returns `None`; use
/// [`Search::packet`] for what is built from then on. `now` must not run backwards; if it does, it
/// is taken as standing still.
///
/// # Bounds
/// Fixed memory. Ten probes a round, one round in about two round trips while it searches, in all
/// some 50 probes; four probes a second later on.
///
/// Rule: `docs/protocol.md#rule-mtu-search`.
#[derive(Debug)]
pub struct Search {
    config: Config,
    clock: Clock,
    now: u64,
    rtt: Duration,
    packet: usize,
    /// Something so long as what is in use has arrived.
    confirmed: bool,
    searching: bool,
    /// Lengths lost, ascending, and how often; all longer than `packet`.
    ceilings: Vec<(usize, u8)>,
    round: Option<Round>,
    /// When the next round may begin.
    start: u64,
    /// Rounds in a row without an answer.
    silent: u8,
    /// Rounds in a row in which nothing so long as what is in use arrived, though something did.
    doubts: u8,
    /// When what is in use is confirmed next, if it is used.
    confirm: u64,
    used: bool,
    raise: u64,
    remembered: [Option<Sent>; REMEMBERED],
    next_id: u32,
    /// Probes longer than what was in use, sent and arrived, that were not told of yet.
    excused: [u64; 2],
    status: Status,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    id: u32,
    /// The packet's number in the session.
    number: u64,
    len: usize,
    /// It was longer than what was in use.
    excused: bool,
}

/// Probes under way together.
#[derive(Clone, Copy, Debug)]
struct Round {
    lens: [usize; ROUND],
    count: usize,
    sent: usize,
    first_id: u32,
    /// Bit by bit: answered, or never left.
    done: u32,
    heard: bool,
    /// Something so long as what was in use at its begin arrived.
    confirmed: bool,
    in_use: usize,
    due: u64,
}

impl Search {
    /// Begins with the base. `origin` is the session's begin.
    #[must_use]
    pub fn new(mut config: Config, origin: Instant) -> Self {
        config.most = config.most.clamp(MTU_PACKET, usize::from(u16::MAX));
        config.base = config.base.min(config.most);
        Self {
            clock: Clock::new(origin),
            now: 0,
            rtt: config.rtt,
            packet: config.base,
            confirmed: false,
            searching: true,
            ceilings: Vec::with_capacity(CEILINGS + 1),
            round: None,
            start: 0,
            silent: 0,
            doubts: 0,
            confirm: 0,
            used: true,
            raise: u64::MAX,
            remembered: [None; REMEMBERED],
            next_id: 0,
            excused: [0; 2],
            status: Status::default(),
            config,
        }
    }

    /// The longest packet to be built from now on, in plaintext.
    #[must_use]
    pub fn packet(&self) -> usize {
        self.packet
    }

    /// The round-trip time as it is known by now.
    pub fn set_rtt(&mut self, rtt: Duration) {
        self.rtt = rtt;
    }

    /// Notes that a packet leaves that is to arrive, of so many bytes on the wire. Short ones
    /// arrive anyway. Returns true if it is the first since the length in use was last confirmed:
    /// [`Search::next_timeout`] may be another then.
    pub fn set_used(&mut self, bytes: usize) -> bool {
        let is_first = !self.used && bytes > LEAST;
        self.used |= is_first;
        is_first
    }

    /// For whoever watches.
    #[must_use]
    pub fn status(&self) -> Status {
        let state = match () {
            () if !self.confirmed => State::Base,
            () if self.packet < self.config.base => State::Error,
            () if self.searching => State::Searching,
            () => State::Complete,
        };
        Status { state, packet: self.packet, mtu: self.packet + self.config.overhead, ..self.status }
    }

    /// Since this was last asked: probes longer than what was in use that were sent, and that
    /// turned out to arrive. The others are no loss of the path's.
    pub fn take_excused(&mut self) -> [u64; 2] {
        std::mem::take(&mut self.excused)
    }

    /// Writes the next probe, which gets this packet number; its length. `out` must hold
    /// [`Config::most`] bytes.
    pub fn poll(&mut self, number: u64, now: Instant, out: &mut [u8]) -> Option<usize> {
        self.advance(now);
        if self.round.is_some_and(|round| round.is_done() || round.is_late(self.now)) {
            self.end_round();
        }
        if self.round.is_none() {
            self.begin_round();
        }
        let round = self.round.as_mut()?;
        let len = round.lens.get(round.sent).copied().filter(|_| round.sent < round.count)?;
        let out = out.get_mut(..len)?;
        let id = self.next_id;
        let in_use = u16::try_from(self.packet).unwrap_or(u16::MAX);
        Message::Probe(Probe { id, in_use }).emit(self.config.lane, out);
        let excused = len > self.packet;
        let [sent, _] = &mut self.excused;
        *sent += u64::from(excused);
        if let Some(place) = self.remembered.get_mut(id as usize % REMEMBERED) {
            *place = Some(Sent { id, number, len, excused });
        }
        self.next_id = id.wrapping_add(1);
        self.status.probes += 1;
        round.sent += 1;
        if round.sent == round.count {
            let bytes = round.lens.iter().take(round.count).map(|len| len + self.config.overhead).sum();
            let due = self.now + self.timer(bytes);
            if let Some(round) = &mut self.round {
                round.due = due;
            }
        }
        Some(len)
    }

    /// When [`Search::poll`] has something to do.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let due = match &self.round {
            Some(round) if round.sent < round.count || round.is_done() => self.now,
            Some(round) => round.due,
            None => self.start.max(self.next_start()),
        };
        (due < u64::MAX).then(|| self.clock.instant(due))
    }

    /// The peer says which probes arrived.
    pub fn handle_answer(&mut self, answer: &Answer, now: Instant) {
        self.advance(now);
        for back in (0..u32::BITS).filter(|back| answer.arrived & 1 << back != 0) {
            let id = answer.newest.wrapping_sub(back);
            let place = self.remembered.get_mut(id as usize % REMEMBERED);
            let Some(sent) = place.and_then(|place| place.take_if(|sent| sent.id == id)) else { continue };
            let [_, arrived] = &mut self.excused;
            *arrived += u64::from(sent.excused);
            self.arrived(sent.len);
            self.note(id, sent.len);
        }
        if let Some(round) = &mut self.round {
            round.confirmed |= usize::from(answer.longest) >= round.in_use;
        }
        if self.round.is_some_and(|round| round.is_done()) {
            self.end_round();
        }
    }

    /// These packet numbers never left; `too_long`: since the machine's own interface does not
    /// carry them.
    pub fn unsent(&mut self, numbers: &Range<u64>, too_long: bool) {
        for place in 0..REMEMBERED {
            let place = self.remembered.get_mut(place);
            let Some(sent) = place.and_then(|place| place.take_if(|sent| numbers.contains(&sent.number)))
            else {
                continue;
            };
            // It is known otherwise that it is no loss.
            let [_, arrived] = &mut self.excused;
            *arrived += u64::from(sent.excused);
            if too_long && sent.len > self.packet {
                self.lose(sent.len, MAX_PROBES);
            }
            if let Some(round) = &mut self.round {
                round.done |= round.bit(sent.id);
            }
        }
    }

    /// A probe of the round was answered.
    fn note(&mut self, id: u32, len: usize) {
        if let Some(round) = &mut self.round
            && round.bit(id) != 0
        {
            round.done |= round.bit(id);
            round.heard = true;
            round.confirmed |= len >= round.in_use;
        }
    }

    fn arrived(&mut self, len: usize) {
        if len > self.packet {
            self.packet = len;
            self.confirmed = true;
            self.ceilings.retain(|(ceiling, _)| *ceiling > len);
        }
    }

    /// A probe longer than what is in use did not arrive.
    fn lose(&mut self, len: usize, times: u8) {
        let place = self.ceilings.partition_point(|(ceiling, _)| *ceiling < len);
        match self.ceilings.get_mut(place) {
            Some((ceiling, losses)) if *ceiling == len => *losses = losses.saturating_add(times),
            _ => self.ceilings.insert(place, (len, times)),
        }
        self.ceilings.truncate(CEILINGS);
    }

    fn end_round(&mut self) {
        let Some(round) = self.round.take() else { return };
        let missing = round.missing().filter(|len| *len > self.packet).count() as u64;
        self.status.lost += missing;
        if !round.heard {
            self.silent = self.silent.saturating_add(1);
            let pause = if self.silent <= EAGER { 0 } else { self.timer(0) << self.silent.min(8) };
            self.start = self.now + pause.min(LONGEST_SILENCE.as_micros() as u64);
            return;
        }
        self.silent = 0;
        for len in round.missing() {
            if len > self.packet {
                self.lose(len, 1);
            }
        }
        self.judge(&round);
    }

    /// Judges the length in use by a round that was heard.
    fn judge(&mut self, round: &Round) {
        if round.confirmed {
            (self.confirmed, self.doubts) = (true, 0);
        } else if round.lens.iter().take(round.count).any(|len| *len == round.in_use) {
            self.doubts += 1;
        }
        let most = if self.confirmed { BLACK_HOLE } else { MAX_PROBES };
        if self.doubts >= most {
            self.fall();
        }
    }

    /// Falls back to a shorter length, as the one in use does not arrive any more.
    fn fall(&mut self) {
        let least = LEAST.saturating_sub(self.config.overhead).max(MTU_PACKET).min(self.config.base);
        self.status.black_holes += u64::from(self.confirmed);
        self.packet = if self.packet > self.config.base { self.config.base } else { least };
        (self.confirmed, self.searching, self.doubts) = (false, true, 0);
        self.ceilings.clear();
        // What was sent before and is answered late says nothing of the path as it is now.
        self.remembered = [None; REMEMBERED];
    }

    fn begin_round(&mut self) {
        if self.start.max(self.next_start()) > self.now {
            return;
        }
        let mut round = Round::new(self.next_id, self.packet);
        round.push(MTU_PACKET);
        if self.raise <= self.now {
            self.ceilings.clear();
            (self.searching, self.raise) = (true, u64::MAX);
        }
        let eager = self.silent <= EAGER;
        if self.searching && eager {
            self.candidates(&mut round);
        }
        if self.searching && eager && round.count == 1 {
            self.searching = false;
            self.raise = self.now + RAISE.as_micros() as u64;
            // Tells the peer what was found.
            self.used = true;
            self.confirm = self.now;
        }
        if !self.searching || !self.confirmed {
            round.push(self.packet);
            self.used = false;
            self.confirm = self.now + self.confirm_interval();
        }
        self.round = Some(round);
    }

    /// When a round is wanted.
    fn next_start(&self) -> u64 {
        match () {
            () if self.searching || !self.confirmed || self.doubts > 0 || self.silent > 0 => 0,
            () => {
                let raise = if self.packet < self.config.most { self.raise } else { u64::MAX };
                if self.used { raise.min(self.confirm) } else { raise }
            }
        }
    }

    /// Lengths to be tried.
    fn candidates(&self, round: &mut Round) {
        let Config { base, most, hint, overhead, .. } = self.config;
        // Below a length that is known not to arrive, those that nobody heard of are left to try.
        let below = self.ceilings.first().map_or(most + 1, |(ceiling, _)| *ceiling);
        let common = LADDER.iter().map(|mtu| mtu.saturating_sub(overhead).min(most));
        for len in common.chain([base, most]).chain(hint) {
            if len > self.packet && len < below {
                round.push(len);
            }
        }
        match self.ceilings.first() {
            None => {}
            Some((ceiling, _)) if ceiling - self.packet > 1 => {
                let gap = ceiling - self.packet;
                for part in 1..=BETWEEN {
                    let len = self.packet + gap * part / (BETWEEN + 1);
                    if len > self.packet {
                        round.push(len);
                    }
                }
            }
            Some((ceiling, losses)) if *losses < MAX_PROBES => round.push(*ceiling),
            Some(_) => {}
        }
    }

    /// An answer comes within that, in microseconds, when so many bytes leave before.
    fn timer(&self, bytes: usize) -> u64 {
        let link = bytes as u64 * 8_000_000 / self.config.rate.max(8000);
        2 * self.rtt.as_micros() as u64 + 10_000 + 2 * link
    }

    fn confirm_interval(&self) -> u64 {
        let packet = (self.packet + self.config.overhead) as u64 * 8_000_000 / self.config.rate.max(8000);
        (CONFIRM.as_micros() as u64).max(packet * CONFIRM_SHARE)
    }

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(self.clock.micros(now));
    }
}

impl Round {
    fn new(first_id: u32, in_use: usize) -> Self {
        Self {
            lens: [0; ROUND],
            count: 0,
            sent: 0,
            first_id,
            done: 0,
            heard: false,
            confirmed: false,
            in_use,
            due: 0,
        }
    }

    /// Adds a length, in ascending order; each once.
    fn push(&mut self, len: usize) {
        let lens = self.lens.get(..self.count).unwrap_or_default();
        if self.count >= ROUND || lens.contains(&len) {
            return;
        }
        if let Some(place) = self.lens.get_mut(self.count) {
            *place = len;
            self.count += 1;
        }
        if let Some(lens) = self.lens.get_mut(..self.count) {
            lens.sort_unstable();
        }
    }

    /// The probe's bit; 0 if it is none of the round.
    fn bit(&self, id: u32) -> u32 {
        let place = id.wrapping_sub(self.first_id);
        if (place as usize) < self.sent { 1 << place } else { 0 }
    }

    fn is_done(&self) -> bool {
        self.sent == self.count && self.done.count_ones() as usize == self.count
    }

    fn is_late(&self, now: u64) -> bool {
        self.sent == self.count && self.due <= now
    }

    /// Lengths that were sent and not answered.
    fn missing(&self) -> impl Iterator<Item = usize> + '_ {
        let lens = self.lens.iter().take(self.sent).enumerate();
        lens.filter(|(place, _)| self.done & 1 << place == 0).map(|(_, len)| *len)
    }
}

#[cfg(test)]
mod tests;
