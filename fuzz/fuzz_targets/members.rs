//! One gateway of a site of two, towards a site of two, and whatever members and hosts say:
//! nothing panics or spins, nobody speaks without an agreement, nothing is handed over twice.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::site::{self, TOTAL_BUFFER};
use longhaul_fuzz::{Script, epoch, within};
use splice::Gateway;
use splice::members::wire::Word;
use splice::members::{
    HostPair, LeaseId, MemberId, Message, Process, Reach, Since, Term, Times, Towards,
};
use splice::site::{Ends, Site, SiteConfig, Way};

const TOWARDS: Towards = Towards(7);
/// This member, the other one of its site, and those of the other site.
const IDS: [u32; 4] = [1, 2, 11, 12];
/// Places of the gateways to the other three.
const SIBLING: usize = 0;
const PEERS: [usize; 2] = [1, 2];
/// Three gateways without flows and with little room, and the tables of the site.
const BOUND: u64 = (3 * (3 * TOTAL_BUFFER + (8 << 20))) as u64;

fuzz_target!(|input: &[u8]| {
    read(input);
    within(BOUND, "a site", || run(input));
});

/// Writes what was read, and reads it alike.
fn read(input: &[u8]) {
    let Some(word) = Word::of(input) else {
        assert!(input.len() > Word::LONGEST);
        return;
    };
    let Some((incarnation, message)) = word.read() else { return };
    let again = Word::new(incarnation, &message);
    assert_eq!(again.as_ref().len(), input.len());
    assert_eq!(again.read(), Some((incarnation, message)));
}

struct World {
    site: Site,
    cores: Vec<Gateway>,
    now: Instant,
    /// Beats and claims that were not answered, by the gateway that leads to whom they are for.
    beats: BTreeMap<usize, u64>,
    claims: Vec<(usize, HostPair, Term)>,
    /// Pairs that anybody ever agreed to.
    agreed: BTreeSet<HostPair>,
}

fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let now = epoch();
    let gateway = |_| {
        let settings = splice::Settings { is_member: true, ..site::settings(0, 1) };
        Gateway::new(settings, now)
    };
    let config = SiteConfig {
        me: Process { member: MemberId(IDS[0]), incarnation: 1 },
        others: vec![(MemberId(IDS[1]), SIBLING)],
        peers: PEERS.iter().map(|place| (MemberId(IDS[place + 1]), *place)).collect(),
        towards: TOWARDS,
        remote: site::settings(0, 1).remote,
        times: Times::default(),
        pairs: 8,
    };
    let cores = (0..3).map(gateway).collect();
    let site = Site::new(config, now);
    let mut world =
        World { site, cores, now, beats: BTreeMap::new(), claims: Vec::new(), agreed: BTreeSet::new() };
    while !script.is_over() {
        world.step(&mut script);
        world.rest();
    }
}

impl World {
    fn step(&mut self, script: &mut Script<'_>) {
        match script.u8() % 10 {
            0 => self.now += script.span(),
            1 => {
                let length = script.length(Word::LONGEST);
                if let Some(word) = Word::of(script.bytes(length)) {
                    self.hear(script.u8(), &word);
                }
            }
            2 => {
                let (from, message) = (script.u8(), message(script));
                self.say(from, u64::from(script.u8() & 3), message);
            }
            // A peer that keeps to the rules.
            3 | 4 => {
                let place = script.pick(&PEERS);
                if let Some(sent) = self.beats.remove(&place) {
                    let lease = LeaseId { incarnation: 1, count: 1 };
                    self.say(place as u8, 1, Message::Beaten(sent, Some(lease)));
                }
            }
            5 | 6 => {
                if let Some((place, pair, term)) = self.claims.pop() {
                    let lease = LeaseId { incarnation: 1, count: 1 };
                    let since = Since(u64::from(script.u8() & 1));
                    self.say(place as u8, 1, Message::Agreed(pair, term, lease, since));
                }
            }
            7 => self.site.set_hosts_reached(script.u8() & 3 != 0),
            8 => {
                let ends = ends(script, 0);
                let handed_by = Some(MemberId(IDS[1])).filter(|_| script.u8() & 1 == 0);
                match self.site.arrived(ends, handed_by, self.now) {
                    Way::Here(place) => assert!(PEERS.contains(&place)),
                    Way::HandOver(place) => assert_eq!((place, handed_by), (SIBLING, None)),
                    Way::Dropped => {}
                }
            }
            _ => {
                let (ends, place) = (ends(script, 1), script.pick(&PEERS));
                if self.site.may_speak(ends, place, self.now) {
                    assert!(self.site.speaks(HostPair::new(ends[0], ends[1]), self.now));
                }
            }
        }
    }

    fn say(&mut self, from: u8, incarnation: u64, message: Message) {
        self.hear(from, &Word::new(incarnation, &message));
    }

    fn hear(&mut self, from: u8, word: &Word) {
        let from = MemberId(IDS[usize::from(from % 3) + 1]);
        if let Some((_, Message::Agreed(pair, ..))) = word.read() {
            self.agreed.insert(pair);
        }
        self.site.handle_word(from, word, self.now);
    }

    /// Does what a driver does after each call, and looks.
    fn rest(&mut self) {
        if self.site.next_timeout() <= self.now {
            self.site.handle_timeout(self.now);
        }
        self.site.settle(&mut self.cores, self.now);
        for _ in 0..10_000 {
            let Some((place, word)) = self.site.poll_word() else { break };
            match word.read().expect("it was written").1 {
                Message::Beat(sent) => {
                    self.beats.insert(place, sent);
                }
                Message::Claim(pair, term) if self.claims.len() < 100 => self.claims.push((place, pair, term)),
                _ => {}
            }
        }
        assert!(self.site.poll_word().is_none(), "messages without end");
        for from in 0..4 {
            for to in 0..4 {
                let pair = HostPair::new(host(0, from), host(1, to));
                assert!(!self.site.speaks(pair, self.now) || self.agreed.contains(&pair), "{pair:?}");
            }
        }
        assert!(self.site.take_spoken(self.now).pairs <= 8);
    }
}

fn host(site: u8, number: u8) -> std::net::IpAddr {
    [10, 0, site, 1 + number].into()
}

/// A sender and a receiver of a few hosts, rarely of another site.
fn ends(script: &mut Script<'_>, from: u8) -> Ends {
    let bits = script.u8();
    let to = if bits >> 4 == 15 { 7 } else { 1 - from };
    [host(from, bits & 3), host(to, bits >> 2 & 3)]
}

fn term(script: &mut Script<'_>) -> Term {
    let count = match script.u8() {
        0xff => u64::MAX,
        0xfe => 1 << 63,
        0xfd => script.u64(),
        few => u64::from(few & 7),
    };
    let member = MemberId(script.pick(&IDS));
    Term { count, by: Process { member, incarnation: u64::from(script.u8() & 3) } }
}

fn message(script: &mut Script<'_>) -> Message {
    let [from, to] = ends(script, 0);
    let pair = HostPair::new(from, to);
    let lease = |script: &mut Script<'_>| LeaseId {
        incarnation: u64::from(script.u8() & 3),
        count: u64::from(script.u8() & 3),
    };
    match script.u8() % 10 {
        0 => Message::Alive(TOWARDS, Reach { steadily: script.u8(), lately: script.u8() }),
        1 => Message::Beat(script.u64()),
        2 => Message::Beaten(script.u64(), Some(lease(script)).filter(|lease| lease.count > 0)),
        3 => Message::Claim(pair, term(script)),
        4 => Message::Agreed(pair, term(script), lease(script), Since(u64::from(script.u8()))),
        5 => Message::Outbid(pair, term(script), term(script)),
        6 => Message::Yield(pair, term(script)),
        7 => Message::Yielded(pair, term(script)),
        8 => Message::Release(pair, term(script)),
        _ => Message::Wanted(pair),
    }
}
