//! Two sites of members in virtual time: links that lose, double and delay, clocks that do not go
//! alike, hosts whose frames come to any member.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

use rand::{RngExt as _, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::super::*;

/// Members of a site.
pub(super) const SIZE: usize = 3;
/// Pairs of hosts.
pub(super) const PAIRS: usize = 12;
/// The longest way of a message, in ticks of a millisecond.
pub(super) const WAY: u64 = 20;
/// Between two frames of a host to its peer, in ticks.
const FRAMES: u64 = 15;

pub(super) const TICK: Duration = Duration::from_millis(1);

pub(super) fn host(site: usize, number: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, u8::try_from(site).unwrap(), u8::try_from(number).unwrap()))
}

pub(super) fn pair(number: usize) -> HostPair {
    HostPair::new(host(0, number), host(1, number))
}

/// A frame or a record from the host of a pair at a site.
pub(super) fn came(site: usize, number: usize, handed_by: Option<MemberId>) -> Came {
    Came { from: host(site, number), handed_by }
}

/// Something on its way to a member.
#[derive(Clone, Copy, Debug)]
pub(super) enum Parcel {
    Word(Process, Message),
    /// A frame of the LAN, or a record of the peer.
    Traffic {
        pair: usize,
        handed_by: Option<MemberId>,
        is_record: bool,
    },
}

/// Counts of frames and records, by their fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) here: u64,
    pub(super) handed: u64,
    pub(super) waited: u64,
    pub(super) strays: u64,
    /// Records that a speaker of the other site took.
    pub(super) across: u64,
}

pub(super) struct Node {
    pub(super) core: Option<Members>,
    pub(super) process: Process,
    /// The core of a process whose place another one takes: its bytes, when they were written, and
    /// the tick at which the other one goes on.
    pub(super) heir: Option<(Vec<u8>, Instant, u64)>,
    /// Beside what its core says it says what it likes.
    pub(super) lies: bool,
    /// The local clock: `boot + rate * ticks`.
    boot: Instant,
    rate: f64,
}

impl Node {
    fn clock(&self, tick: u64) -> Instant {
        self.boot + TICK.mul_f64(tick as f64 * self.rate)
    }
}

pub(super) struct World {
    pub(super) rng: Pcg64Mcg,
    pub(super) tick: u64,
    /// Those of the first site, and then those of the other.
    pub(super) nodes: Vec<Node>,
    queue: BTreeMap<(u64, u64), (usize, Parcel)>,
    serial: u64,
    /// Ways that carry nothing, from and to.
    pub(super) cut: [[bool; 2 * SIZE]; 2 * SIZE],
    /// Members that hosts' frames do not reach.
    pub(super) deaf: [bool; 2 * SIZE],
    /// Where a site's routers lead a pair's frames; `None`: anywhere, each time anew.
    pub(super) ways: [[Option<usize>; PAIRS]; 2],
    /// Messages lost and doubled, in per cent.
    pub(super) loss: u32,
    pub(super) counts: Counts,
    /// Pairs that changed their speaker, so often.
    pub(super) moves: u64,
    last: BTreeMap<(usize, usize), Term>,
    /// Two members of a site that spoke at once, each with a peer that the other does not reach.
    pub(super) islands: u64,
    /// Tables may be full of what liars told until then.
    pub(super) full_until: u64,
    lines: String,
}

fn number(site: usize, place: usize) -> MemberId {
    MemberId(u32::try_from(100 * (site + 1) + place).unwrap())
}

pub(super) fn id(node: usize) -> MemberId {
    number(node / SIZE, node % SIZE)
}

fn node_of(member: MemberId) -> usize {
    let number = member.0 as usize;
    (number / 100 - 1) * SIZE + number % 100
}

pub(super) fn site(site: usize) -> [MemberId; SIZE] {
    std::array::from_fn(|place| number(site, place))
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let start = crate::test_clock();
        let nodes = (0..2 * SIZE).map(|node| Node {
            core: None,
            heir: None,
            process: Process { member: id(node), incarnation: 0 },
            lies: false,
            boot: start + Duration::from_secs(rng.random_range(0..1000)),
            rate: rng.random_range(0.97..1.03),
        });
        let nodes = nodes.collect();
        let mut world = Self {
            rng,
            tick: 0,
            nodes,
            queue: BTreeMap::new(),
            serial: 0,
            cut: [[false; 2 * SIZE]; 2 * SIZE],
            deaf: [false; 2 * SIZE],
            ways: [[None; PAIRS]; 2],
            loss: 0,
            counts: Counts::default(),
            moves: 0,
            last: BTreeMap::new(),
            islands: 0,
            full_until: 0,
            lines: String::new(),
        };
        world.route();
        (0..2 * SIZE).for_each(|node| world.start(node));
        world
    }

    pub(super) fn times() -> Times {
        Times { idle: Duration::from_secs(3), ..Times::default() }
    }

    /// The bound in ticks, by the slowest clock.
    pub(super) fn settled() -> u64 {
        let rtt = TICK * u32::try_from(2 * WAY).unwrap();
        (Self::times().settled_within(rtt).as_millis() as f64 * 1.04) as u64
    }

    pub(super) fn note(&mut self, what: &str) {
        writeln!(self.lines, "{:>6} {what}", self.tick).unwrap();
    }

    pub(super) fn start(&mut self, node: usize) {
        let incarnation = self.rng.random();
        self.nodes[node].process.incarnation = incarnation;
        (self.nodes[node].core, self.nodes[node].heir) = (Some(self.fresh(node)), None);
        self.note(&format!("{:?} starts", id(node)));
    }

    fn fresh(&self, node: usize) -> Members {
        let now = self.nodes[node].clock(self.tick);
        let (own, other) = (node / SIZE, 1 - node / SIZE);
        let limits = (Self::times(), PAIRS);
        let me = (self.nodes[node].process, Towards(7));
        Members::new(me, &site(own), &site(other), limits, now)
    }

    /// Another process takes a member's place. It goes on after so many ticks, in which nothing is
    /// heard nor said.
    pub(super) fn upgrade(&mut self, node: usize, ticks: u64) {
        let now = self.nodes[node].clock(self.tick);
        let Some(core) = &mut self.nodes[node].core else { return };
        core.pause(now);
        self.flush(node);
        let core = self.nodes[node].core.take();
        let kept = snapshot::write(&core.unwrap(), now).unwrap();
        self.nodes[node].heir = Some((kept, now, self.tick + ticks));
        self.note(&format!("{:?} is replaced for {ticks}", id(node)));
    }

    fn go_on(&mut self, node: usize) {
        let tick = self.tick;
        let Some((kept, then, _)) = self.nodes[node].heir.take_if(|(.., at)| *at <= tick) else { return };
        let now = self.nodes[node].clock(tick);
        let read: Members = snapshot::read(&kept, then).unwrap();
        let mut core = read.restored(self.fresh(node)).unwrap();
        assert!(snapshot::write(&core, then).unwrap() == kept, "written otherwise than it was read");
        core.resume(then, now);
        self.nodes[node].core = Some(core);
        self.note(&format!("{:?} goes on", id(node)));
    }

    pub(super) fn kill(&mut self, node: usize) {
        (self.nodes[node].core, self.nodes[node].heir) = (None, None);
        self.note(&format!("{:?} dies", id(node)));
    }

    /// Routers of each site choose anew, each for itself.
    pub(super) fn route(&mut self) {
        for way in self.ways.iter_mut().flatten() {
            *way = Some(self.rng.random_range(0..SIZE));
        }
    }

    fn send(&mut self, from: usize, to: usize, parcel: Parcel) {
        if self.cut[from][to] || self.rng.random_range(0..100) < self.loss {
            return;
        }
        let copies = 1 + u64::from(self.rng.random_range(0..100) < self.loss);
        for _ in 0..copies {
            // Now and then a message comes long after later ones.
            let late = if self.rng.random_range(0..100) < self.loss { 100 } else { 1 };
            let at = self.tick + self.rng.random_range(1..=WAY) * late;
            self.serial += 1;
            self.queue.insert((at, self.serial), (to, parcel));
        }
    }

    pub(super) fn run(&mut self, ticks: u64) {
        for _ in 0..ticks {
            self.step();
            self.check();
        }
    }

    pub(super) fn step(&mut self) {
        self.tick += 1;
        (0..2 * SIZE).for_each(|node| self.go_on(node));
        let later = self.queue.split_off(&(self.tick + 1, 0));
        for (_, (to, parcel)) in std::mem::replace(&mut self.queue, later) {
            match parcel {
                Parcel::Word(from, message) => {
                    let now = self.nodes[to].clock(self.tick);
                    if let Some(core) = &mut self.nodes[to].core {
                        core.handle_message(from, message, now);
                    }
                }
                Parcel::Traffic { pair, handed_by, is_record } => self.arrive(to, pair, handed_by, is_record),
            }
            self.flush(to);
        }
        for number in 0..PAIRS {
            for own in [0, 1] {
                if (self.tick + (number * 7 + own) as u64).is_multiple_of(FRAMES) {
                    let place = self.ways[own][number].unwrap_or_else(|| self.rng.random_range(0..SIZE));
                    let node = own * SIZE + place;
                    if !self.deaf[node] {
                        self.arrive(node, number, None, false);
                    }
                }
            }
        }
        for node in 0..2 * SIZE {
            let now = self.nodes[node].clock(self.tick);
            if let Some(core) = &mut self.nodes[node].core
                && core.next_timeout() <= now
            {
                core.handle_timeout(now);
            }
            self.flush(node);
            if self.nodes[node].lies {
                (0..3).for_each(|_| self.lie(node));
            }
        }
    }

    fn has_liars(&self) -> bool {
        self.nodes.iter().any(|node| node.lies)
    }

    /// Sends a word that a member made up, to anybody.
    fn lie(&mut self, node: usize) {
        let to = self.rng.random_range(0..2 * SIZE);
        let message = self.made_up();
        let mut from = self.nodes[node].process;
        if self.rng.random_bool(0.2) {
            from.incarnation = self.rng.random();
        }
        self.send(node, to, Parcel::Word(from, message));
    }

    fn made_up(&mut self) -> Message {
        let of_others = usize::from(self.rng.random_bool(0.1)) * 100;
        let pair = pair(self.rng.random_range(0..PAIRS) + of_others);
        let (term, other) = (self.made_up_term(), self.made_up_term());
        let small = self.rng.random_range(0..5);
        let incarnation = self.nodes[self.rng.random_range(0..2 * SIZE)].process.incarnation;
        let lease = LeaseId { incarnation, count: small };
        match self.rng.random_range(0..11) {
            10 => Message::Pausing(Towards(7), self.rng.random()),
            0 => Message::Alive(Towards(7), Reach { steadily: self.rng.random(), lately: self.rng.random() }),
            1 => Message::Beat(self.rng.random()),
            2 => Message::Beaten(self.rng.random_range(0..60_000_000_000), Some(lease)),
            3 => Message::Claim(pair, term),
            4 => Message::Agreed(pair, term, lease, Since(small)),
            5 => Message::Outbid(pair, term, other),
            6 => Message::Yield(pair, term),
            7 => Message::Yielded(pair, term),
            8 => Message::Release(pair, term),
            _ => Message::Wanted(pair),
        }
    }

    /// A term of anybody's, near the ends of what there is.
    fn made_up_term(&mut self) -> Term {
        const HALF: u64 = 1 << 63;
        let by = self.nodes[self.rng.random_range(0..2 * SIZE)].process;
        let count = match self.rng.random_range(0..8) {
            0 => u64::MAX,
            1 => HALF,
            2 => HALF - self.rng.random_range(1..4),
            3 => u64::MAX - self.rng.random_range(0..4),
            4 => self.rng.random(),
            _ => self.rng.random_range(0..20),
        };
        Term { count, by }
    }

    fn flush(&mut self, node: usize) {
        while let Some((to, message)) = self.nodes[node].core.as_mut().and_then(Members::poll_transmit) {
            let word = Parcel::Word(self.nodes[node].process, message);
            self.send(node, node_of(to), word);
        }
    }

    fn arrive(&mut self, node: usize, number: usize, handed_by: Option<MemberId>, is_record: bool) {
        let now = self.nodes[node].clock(self.tick);
        let Some(core) = &mut self.nodes[node].core else { return };
        let from = if is_record { 1 - node / SIZE } else { node / SIZE };
        let fate = core.arrived(pair(number), came(from, number, handed_by), now);
        assert_eq!(fate == Fate::Here, core.speaks(pair(number), now), "{fate:?}");
        let towards = core.towards(pair(number), now);
        match fate {
            Fate::Here => {
                self.counts.here += 1;
                self.counts.across += u64::from(is_record);
                if let Some(peer) = towards.filter(|_| !is_record) {
                    let record = Parcel::Traffic { pair: number, handed_by: None, is_record: true };
                    self.send(node, node_of(peer), record);
                }
            }
            Fate::HandOver(to) => {
                assert_eq!(handed_by, None, "handed over twice");
                assert_ne!(to, id(node));
                assert_eq!(node_of(to) / SIZE, node / SIZE, "to the other site");
                self.counts.handed += 1;
                self.send(
                    node,
                    node_of(to),
                    Parcel::Traffic { pair: number, handed_by: Some(id(node)), is_record },
                );
            }
            Fate::NotYet => self.counts.waited += 1,
            Fate::Stray => self.counts.strays += 1,
            Fate::Full => assert!(self.has_liars() || self.tick < self.full_until, "there is room for all"),
        }
        self.flush(node);
    }

    /// Returns the honest members of a site that speak for a pair, and their terms.
    pub(super) fn speakers(&self, own: usize, number: usize) -> Vec<(usize, Term)> {
        let speaks = |node: usize| {
            let each = &self.nodes[node];
            Some((node, each.core.as_ref()?.term(pair(number), each.clock(self.tick))?))
        };
        (own * SIZE..(own + 1) * SIZE).filter(|node| !self.nodes[*node].lies).filter_map(speaks).collect()
    }

    /// Returns the honest peers that a member has the agreement of, if it speaks.
    fn agreeing(&self, node: usize) -> Vec<MemberId> {
        let each = &self.nodes[node];
        let now = each.clock(self.tick);
        let peers = each.core.iter().flat_map(|core| &core.peers);
        let valid = peers.filter(|peer| peer.valid(now).is_some()).map(PeerLease::member);
        valid.filter(|peer| !self.nodes[node_of(*peer)].lies).collect()
    }

    /// No peer agrees with two at a time.
    fn check(&mut self) {
        for own in [0, 1] {
            for number in 0..PAIRS {
                let speakers = self.speakers(own, number);
                for (place, (node, term)) in speakers.iter().enumerate() {
                    let agreeing = self.agreeing(*node);
                    assert!(!agreeing.is_empty() || self.has_liars());
                    assert_eq!(term.by, self.nodes[*node].process, "another's term");
                    for (other, _) in &speakers[place + 1..] {
                        self.islands += 1;
                        let common = self.agreeing(*other).into_iter().find(|peer| agreeing.contains(peer));
                        let (one, other) = (id(*node), id(*other));
                        assert!(common.is_none(), "{one:?} and {other:?} speak for {number}: {common:?}");
                    }
                }
                if let [(_, term)] = speakers[..] {
                    let before = self.last.insert((own, number), term);
                    self.moves += u64::from(before.is_some_and(|before| before.by != term.by));
                }
            }
        }
    }

    /// Returns the owner of a pair among a site's members that run.
    pub(super) fn owner(&self, own: usize, number: usize) -> usize {
        let alive = (own * SIZE..(own + 1) * SIZE).filter(|node| self.nodes[*node].core.is_some());
        node_of(owner(pair(number), alive.map(id)).unwrap())
    }

    /// Each pair has one speaker at each site, its owner; returns the terms.
    pub(super) fn check_settled(&self) -> BTreeMap<(usize, usize), Term> {
        let mut terms = BTreeMap::new();
        for own in [0, 1] {
            for number in 0..PAIRS {
                let speakers = self.speakers(own, number);
                let nodes: Vec<usize> = speakers.iter().map(|(node, _)| *node).collect();
                assert_eq!(
                    nodes,
                    [self.owner(own, number)],
                    "pair {number} at site {own}, tick {}",
                    self.tick
                );
                terms.insert((own, number), speakers[0].1);
            }
        }
        terms
    }

    /// Ends all faults. Who is dead stays dead.
    pub(super) fn heal(&mut self) {
        self.cut = Default::default();
        self.deaf = Default::default();
        self.loss = 0;
        let tick = self.tick;
        self.nodes.iter_mut().flat_map(|node| &mut node.heir).for_each(|(.., at)| *at = tick);
        self.note("faults end");
        for own in [0, 1] {
            for number in 0..PAIRS {
                // Routers find who lives.
                let alive: Vec<usize> =
                    (0..SIZE).filter(|place| self.nodes[own * SIZE + place].core.is_some()).collect();
                let place = self.rng.random_range(0..alive.len());
                self.ways[own][number] = Some(alive[place]);
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}at tick {}", self.lines, self.tick);
        }
    }
}
