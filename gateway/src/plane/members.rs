//! A worker's part in a site of several gateways: which of them speaks for two hosts, and what
//! members say to each other over their sessions. Without several gateways there is nothing of it.

use std::convert::Infallible;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use config::Relation;
use roce::ip::{Received, Reject};
use snapshot::Refused;
use splice::Gateway;
use splice::members::{MemberId, Process, Times, Towards};
use splice::site::{Ends, Gateways, Site, SiteConfig, SiteStats, Spoken, Way};

use super::routes::{Route, Routes};
use super::{MemberCounts, Observer, PeerAddress, PeerSide};
use crate::upgrade::SitePart;

/// This gateway as a member of its site, the same for all threads.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Its site name.
    pub name: String,
    /// Drawn at random when the process starts.
    pub incarnation: u64,
    /// Pairs of hosts at most, towards each site.
    pub pairs: usize,
}

/// A thread's part towards each of the other sites.
pub struct Parts {
    parts: Vec<Part>,
    /// The part that each peer is of, by the peers' places.
    of_peer: Vec<Option<usize>>,
    /// Numbers and names of all members.
    names: Vec<(MemberId, String)>,
    is_leaving: bool,
}

struct Part {
    site: Site,
    /// Its name, or its only gateway's.
    name: String,
    /// The members of this site that took part when that was last told.
    live: Vec<MemberId>,
    /// The counts that were told last.
    told: SiteStats,
}

/// A worker's peers, as places of gateways. Each has as many threads, and so one side.
struct Cores<'a, O>(&'a mut [PeerSide<O>]);

impl<O: Observer> Gateways for Cores<'_, O> {
    fn gateway(&mut self, place: usize) -> Option<&mut Gateway> {
        self.0.get_mut(place).map(PeerSide::core_mut)
    }
}

fn id(name: &str) -> MemberId {
    MemberId(config::member_number(name))
}

impl Parts {
    /// Makes a part for each site that peers are of.
    pub(crate) fn new(me: &Membership, peers: &[PeerAddress], now: Instant) -> Self {
        let new = |config| Ok::<_, Infallible>(Site::new(config, now));
        Self::of(me, peers, new).unwrap_or_else(|never| match never {})
    }

    /// Goes on with the parts of another process, each as it stood at its time.
    ///
    /// # Errors
    /// They are for other sites than those of this process's files.
    pub(crate) fn restore(
        me: &Membership,
        peers: &[PeerAddress],
        kept: &[SitePart],
    ) -> Result<Self, Refused> {
        const KEY: &str = "peer.site";
        let mut kept = kept.iter();
        let parts = Self::of(me, peers, |config| {
            let part = kept.next().ok_or(Refused::Setting(KEY))?;
            Site::restore(config, part.snapshot(), part.then)
        })?;
        if kept.next().is_some() { Err(Refused::Setting(KEY)) } else { Ok(parts) }
    }

    /// Returns all that another process needs to go on with the parts, one by one.
    pub(super) fn snapshot(&self, now: Instant) -> Result<Vec<Vec<u8>>, String> {
        let each = self.parts.iter().map(|part| part.site.snapshot(now).map_err(|error| error.to_string()));
        each.collect()
    }

    /// Tells the other gateways of this site that this one is silent for a while.
    pub(super) fn pause(&mut self, now: Instant) {
        self.parts.iter_mut().for_each(|part| part.site.pause(now));
    }

    /// This gateway was silent since then.
    pub(crate) fn resume(&mut self, since: Instant, now: Instant) {
        self.parts.iter_mut().for_each(|part| part.site.resume(since, now));
    }

    /// A session has begun: whom it leads to is to hear at once that this gateway lives.
    pub(super) fn beat_at_once(&mut self, now: Instant) {
        self.parts.iter_mut().for_each(|part| part.site.beat_at_once(now));
    }

    /// This thread did not run for so long.
    pub(super) fn excuse_pause(&mut self, pause: Duration, now: Instant) {
        self.parts.iter_mut().for_each(|part| part.site.excuse_pause(pause, now));
    }

    fn of<E>(
        me: &Membership,
        peers: &[PeerAddress],
        mut make: impl FnMut(SiteConfig) -> Result<Site, E>,
    ) -> Result<Self, E> {
        let is_sibling = |(_, peer): &(usize, &PeerAddress)| peer.relation == Relation::Sibling;
        let placed = || peers.iter().enumerate();
        let named = |(place, peer): (usize, &PeerAddress)| (id(&peer.name), place);
        let others: Vec<_> = placed().filter(is_sibling).map(named).collect();
        let site_of = |peer: &PeerAddress| match &peer.relation {
            Relation::Sibling => None,
            // Both sites have one gateway.
            Relation::Alone if others.is_empty() => None,
            Relation::Alone => Some(peer.name.clone()),
            Relation::MemberOf(site) => Some(format!("{site} (site)")),
        };
        let (mut parts, mut of_peer): (Vec<Part>, Vec<Option<usize>>) = (Vec::new(), Vec::new());
        for peer in peers {
            let Some(name) = site_of(peer) else {
                of_peer.push(None);
                continue;
            };
            let known = parts.iter().position(|part| part.name == name);
            of_peer.push(Some(known.unwrap_or(parts.len())));
            if known.is_some() {
                continue;
            }
            let is_of_site = |(_, peer): &(usize, &PeerAddress)| site_of(peer).as_ref() == Some(&name);
            let config = SiteConfig {
                me: Process { member: id(&me.name), incarnation: me.incarnation },
                others: others.clone(),
                peers: placed().filter(is_of_site).map(named).collect(),
                towards: Towards(config::member_number(&name)),
                remote: peer.remote.clone(),
                times: Times::default(),
                pairs: me.pairs,
            };
            parts.push(Part { site: make(config)?, name, live: Vec::new(), told: SiteStats::default() });
        }
        let own = std::iter::once((id(&me.name), me.name.clone()));
        let names = own.chain(peers.iter().map(|peer| (id(&peer.name), peer.name.clone()))).collect();
        Ok(Self { parts, of_peer, names, is_leaving: false })
    }

    fn part_of(&mut self, peer: usize) -> Option<&mut Part> {
        let place = self.of_peer.get(peer).copied().flatten()?;
        self.parts.get_mut(place)
    }

    /// Hands a packet of the LAN, for a host behind a peer, to whoever speaks for the hosts.
    /// `handed_by`: the member that handed it over, if one did.
    pub(super) fn arrived<O: Observer>(
        &mut self,
        peers: &mut [PeerSide<O>],
        (peer, handed_by): (usize, Option<MemberId>),
        (received, packet): (&Received<'_>, &[u8]),
        now: Instant,
    ) {
        let Some(part) = self.part_of(peer) else {
            if let Some(peer) = peers.get_mut(peer) {
                peer.handle_lan(received, packet.len(), now);
            }
            return;
        };
        let addressing = &received.datagram.addressing;
        match part.site.arrived([addressing.src, addressing.dst], handed_by, now) {
            Way::Here(place) => {
                if let Some(peer) = peers.get_mut(place) {
                    peer.handle_lan(received, packet.len(), now);
                }
            }
            Way::HandOver(place) => {
                if let Some(peer) = peers.get_mut(place) {
                    peer.core_mut().hand_over(packet, now);
                }
            }
            Way::Dropped => {}
        }
    }

    /// Returns true if a packet of a peer's side may go to its host.
    pub(super) fn may_speak(&mut self, peer: usize, packet: &[u8], now: Instant) -> bool {
        let Some(part) = self.part_of(peer) else { return true };
        hosts_of(packet).is_some_and(|ends| part.site.may_speak(ends, peer, now))
    }

    /// Takes what members have said, moves flows, and says what is to be said.
    pub(super) fn tend<O: Observer>(&mut self, peers: &mut [PeerSide<O>], routes: &Routes, now: Instant) {
        for place in 0..peers.len() {
            self.take_words(peers, place, now);
            self.take_frames(peers, (place, routes), now);
        }
        for part in &mut self.parts {
            if part.site.next_timeout() <= now {
                part.site.handle_timeout(now);
            }
            part.site.settle(&mut Cores(peers), now);
            while let Some((place, word)) = part.site.poll_word() {
                if let Some(peer) = peers.get_mut(place) {
                    peer.core_mut().send_word(&word, now);
                }
            }
        }
    }

    fn take_words<O: Observer>(&mut self, peers: &mut [PeerSide<O>], place: usize, now: Instant) {
        while let Some(word) = peers.get_mut(place).and_then(|peer| peer.core_mut().take_word()) {
            // A sibling's is about all other sites.
            for part in &mut self.parts {
                if let Some(from) = part.site.member_at(place) {
                    part.site.handle_word(from, &word, now);
                }
            }
        }
    }

    fn take_frames<O: Observer>(
        &mut self,
        peers: &mut [PeerSide<O>],
        (place, routes): (usize, &Routes),
        now: Instant,
    ) {
        while let Some(frame) = peers.get_mut(place).and_then(|peer| peer.core_mut().take_handed_over()) {
            let packet = frame.as_ref();
            let from = self.parts.iter().find_map(|part| part.site.other_at(place));
            match (Received::parse(packet), from) {
                (Ok(received), Some(from)) => {
                    if let Route::One(peer) = routes.of(&received.datagram.addressing) {
                        self.arrived(peers, (peer, Some(from)), (&received, packet), now);
                    }
                }
                (Err(reject), _) => refuse(peers, reject, packet),
                (Ok(_), None) => {}
            }
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.parts.iter().map(|part| part.site.next_timeout()).min()
    }

    /// Takes whether the LAN can be used.
    pub(super) fn set_lan_up(&mut self, is_up: bool) {
        self.parts.iter_mut().for_each(|part| part.site.set_hosts_reached(is_up));
    }

    /// The process is about to end.
    pub(super) fn leave(&mut self) {
        if !std::mem::replace(&mut self.is_leaving, true) {
            self.parts.iter_mut().for_each(|part| part.site.leave());
        }
    }

    /// Tells of members that have come or gone, and of hosts whose speaker has changed.
    pub(super) fn tell<O: Observer>(&mut self, peers: &mut [PeerSide<O>], now: Instant) {
        let Self { parts, of_peer, names, .. } = self;
        let mut taking_part = Vec::new();
        for (place, part) in parts.iter_mut().enumerate() {
            let spoken = part.site.take_spoken(now);
            part.tell(names, &spoken, now);
            let counts = MemberCounts {
                live: part.live.len() as u64,
                pairs: spoken.pairs as u64,
                site: part.told,
                ..MemberCounts::default()
            };
            let of_part = of_peer.iter().enumerate().filter(|(_, part)| **part == Some(place));
            for (nth, (peer, _)) in of_part.enumerate() {
                let rest = MemberCounts { live: counts.live, ..MemberCounts::default() };
                if let Some(peer) = peers.get_mut(peer) {
                    peer.set_members(if nth == 0 { counts } else { rest });
                }
            }
            taking_part.extend_from_slice(&part.live);
        }
        for peer in peers.iter_mut().filter(|peer| *peer.relation() == Relation::Sibling) {
            let takes_part = if taking_part.contains(&id(peer.name())) { 2 } else { 1 };
            peer.set_members(MemberCounts { takes_part, ..MemberCounts::default() });
        }
    }
}

impl Part {
    /// Tells of one other site, a line for each kind of change.
    fn tell(&mut self, names: &[(MemberId, String)], spoken: &Spoken, now: Instant) {
        let towards = self.name.as_str();
        let name_of = |member: &MemberId| {
            let known = names.iter().find(|(id, _)| id == member);
            known.map_or("unknown", |(_, name)| name.as_str())
        };
        let list = |members: &[MemberId]| {
            let mut members: Vec<_> = members.iter().map(name_of).collect();
            members.sort_unstable();
            members.join(", ")
        };
        let mut live: Vec<_> = self.site.live(now).collect();
        live.sort();
        if live != self.live {
            let without = |some: &[MemberId], others: &[MemberId]| -> Vec<_> {
                some.iter().filter(|member| !others.contains(member)).copied().collect()
            };
            let (came, gone) = (list(&without(&live, &self.live)), list(&without(&self.live, &live)));
            let members = list(&live);
            tracing::info!(
                towards,
                members,
                came,
                gone,
                pairs = spoken.pairs,
                "the gateways that take part here have changed; so many pairs of hosts are this one's"
            );
            self.live = live;
        }
        let stats = self.site.stats();
        let before = std::mem::replace(&mut self.told, stats);
        let ((begun, one), (ended, other)) = (spoken.begun, spoken.ended);
        let (moved, flows) = (stats.moved - before.moved, stats.flows_moved - before.flows_moved);
        if begun + ended > 0 || moved > 0 {
            let example = one.or(other).map(|pair| pair.ends().map(|host| host.to_string()).join(" and "));
            tracing::info!(
                towards,
                begun,
                ended,
                moved,
                flows,
                pairs = spoken.pairs,
                example = example.as_deref(),
                "the gateway that speaks for pairs of hosts has changed, here or at the peer's site"
            );
        }
    }
}

fn refuse<O: Observer>(peers: &mut [PeerSide<O>], reject: Reject, packet: &[u8]) {
    if let Some(peer) = peers.first_mut() {
        peer.refuse_lan(reject, packet.len());
    }
}

/// How often members that come and go are looked for.
pub(super) const TELL_EVERY: Duration = Duration::from_secs(1);

/// Returns the hosts of a packet by its IP header.
fn hosts_of(packet: &[u8]) -> Option<Ends> {
    match packet.first()? >> 4 {
        4 => {
            let (src, rest) = packet.get(12..)?.split_first_chunk::<4>()?;
            let dst = rest.first_chunk::<4>()?;
            Some([IpAddr::from(*src), IpAddr::from(*dst)])
        }
        6 => {
            let (src, rest) = packet.get(8..)?.split_first_chunk::<16>()?;
            let dst = rest.first_chunk::<16>()?;
            Some([IpAddr::from(*src), IpAddr::from(*dst)])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use roce::ip::{Addressing, Datagram, emit};

    use super::*;

    #[test]
    fn the_hosts_of_a_packet_are_those_of_its_header() {
        let addresses = [("10.0.0.1", "10.0.1.2"), ("fd00::1", "fd01::2")];
        for (src, dst) in addresses {
            let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
            let addressing = Addressing { src, dst, src_port: 9, tclass: 0, ttl: 9 };
            let mut packet = [0; 200];
            let len = emit(&addressing, 1, &[0; 24], &mut packet).unwrap();
            assert_eq!(Datagram::parse(&packet[..len]).unwrap().addressing.src, src);
            assert_eq!(hosts_of(&packet[..len]), Some([src, dst]));
            assert_eq!(hosts_of(&packet[..12]), None);
        }
    }
}
