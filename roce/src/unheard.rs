//! Entries that nobody has answered, and which gives way when there is no room for more.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU64;

use crate::hosts::Hosts;

/// The place of an entry among a host's, by the order in which they were entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(NonZeroU64);

impl Ticket {
    const FIRST: Self = Self(NonZeroU64::MIN);
    const LAST: Self = Self(NonZeroU64::MAX);

    fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Room for one more entry of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room<K> {
    /// There is some.
    Free,
    /// There is some if this entry gives way.
    InPlaceOf(K),
    /// The host has its share.
    None,
}

/// Entries of a table that give way when it is full: flows of which nothing but their first
/// requests is known, and whatever else nobody has answered or used.
///
/// Whoever invents source addresses has a share of the table for each. Nobody answers those, so
/// such entries are what the table is full of. One that gives way is forgotten, as if the network
/// had lost what made it: nobody is told anything, and the next try makes it again. So the order in
/// which they give way decides no more than who has to try again. It is the oldest of the host that
/// has most of them, or of all where none has more than [`FEW`].
///
/// # Cost
/// Nothing per packet. O(log n) for an entry that is made, leaves or gives way.
///
/// Bound: the entries of the table.
#[derive(Debug)]
pub struct Unheard<K> {
    entries: BTreeMap<(IpAddr, Ticket), K>,
    hosts: BTreeMap<IpAddr, Standing>,
    /// The last is the host whose entry gives way next: by its [`rank`] and its oldest.
    order: BTreeSet<(usize, Reverse<Ticket>, IpAddr)>,
    next: Ticket,
}

/// A host that begins no more connections at a time is as good as another.
const FEW: usize = 32;

fn rank(entries: usize) -> usize {
    entries.max(FEW)
}

/// A host's entries.
#[derive(Clone, Copy, Debug)]
struct Standing {
    entries: usize,
    oldest: Ticket,
}

impl<K> Default for Unheard<K> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), hosts: BTreeMap::new(), order: BTreeSet::new(), next: Ticket::FIRST }
    }
}

impl<K: Copy> Unheard<K> {
    /// Enters what this host has begun.
    pub fn enter(&mut self, host: IpAddr, key: K) -> Ticket {
        let ticket = self.next;
        self.enter_as(ticket, host, key);
        ticket
    }

    /// Enters what stands elsewhere with this ticket.
    pub fn enter_as(&mut self, ticket: Ticket, host: IpAddr, key: K) {
        self.next = self.next.max(ticket.next());
        self.entries.insert((host, ticket), key);
        self.stand(host, self.of(host) + 1);
    }

    /// The entry does not give way any more: it is answered, or gone.
    pub fn leave(&mut self, host: IpAddr, ticket: &mut Option<Ticket>) {
        if let Some(ticket) = ticket.take() {
            self.remove(host, ticket);
        }
    }

    /// The entry with this ticket does not give way any more, if it is there.
    pub fn remove(&mut self, host: IpAddr, ticket: Ticket) {
        if self.entries.remove(&(host, ticket)).is_some() {
            self.stand(host, self.of(host) - 1);
        }
    }

    /// Tells whether this host may begin one more, beside the `all` of `most` that there are. What
    /// gives way counts as free. So nobody has more than a share by what others hold, and a host
    /// that is alone has its own to give.
    pub fn room_for(&self, host: IpAddr, hosts: &Hosts, all: usize, most: usize) -> Room<K> {
        let own = self.of(host);
        let others = self.entries.len() - own;
        let loser = if hosts.may_join(host, all - others.min(all), most) {
            if all < most {
                return Room::Free;
            }
            match self.order.last() {
                // With one more it would be the host that has most.
                Some((rank, ..)) if own >= *rank => Some(host),
                Some((.., loser)) => Some(*loser),
                None => None,
            }
        } else {
            Some(host)
        };
        loser.and_then(|loser| self.oldest(loser)).map_or(Room::None, Room::InPlaceOf)
    }

    /// Returns the entry that gives way next.
    pub fn next_to_go(&self) -> Option<K> {
        self.order.last().and_then(|(.., loser)| self.oldest(*loser))
    }

    /// Returns which gives way for one more of this host's: the next of all if the table is full,
    /// and else the host's own oldest.
    pub fn loser(&self, host: IpAddr, is_full: bool) -> Option<K> {
        if is_full { self.next_to_go() } else { self.oldest(host) }
    }

    /// Returns all of this host's, the oldest first.
    pub fn all_of(&self, host: IpAddr) -> impl Iterator<Item = K> {
        self.entries.range((host, Ticket::FIRST)..=(host, Ticket::LAST)).map(|(_, key)| *key)
    }

    /// Returns this host's oldest.
    pub fn oldest(&self, host: IpAddr) -> Option<K> {
        let standing = self.hosts.get(&host)?;
        self.entries.get(&(host, standing.oldest)).copied()
    }

    /// So many entries of this host are there now, the oldest first.
    fn stand(&mut self, host: IpAddr, entries: usize) {
        if let Some(Standing { entries, oldest }) = self.hosts.remove(&host) {
            self.order.remove(&(rank(entries), Reverse(oldest), host));
        }
        let mut own = self.entries.range((host, Ticket::FIRST)..=(host, Ticket::LAST));
        if let Some(((_, oldest), _)) = own.next() {
            self.hosts.insert(host, Standing { entries, oldest: *oldest });
            self.order.insert((rank(entries), Reverse(*oldest), host));
        }
    }

    fn of(&self, host: IpAddr) -> usize {
        self.hosts.get(&host).map_or(0, |standing| standing.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 900;

    fn host(number: u8) -> IpAddr {
        [10, 0, number, 1].into()
    }

    /// A table, and who is in it.
    #[derive(Default)]
    struct Table {
        hosts: Hosts,
        unheard: Unheard<u32>,
        flows: BTreeMap<u32, (IpAddr, Option<Ticket>)>,
        next: u32,
    }

    impl Table {
        fn remove(&mut self, flow: u32) {
            let (host, mut ticket) = self.flows.remove(&flow).unwrap();
            self.hosts.leave(host);
            self.unheard.leave(host, &mut ticket);
        }

        /// One more flow of this host, if there is room, and which it takes the place of.
        fn begin(&mut self, host: IpAddr) -> Room<u32> {
            let room = self.unheard.room_for(host, &self.hosts, self.flows.len(), MOST);
            if let Room::InPlaceOf(flow) = room {
                self.remove(flow);
            }
            if room != Room::None {
                self.hosts.join(host);
                self.flows.insert(self.next, (host, Some(self.unheard.enter(host, self.next))));
                self.next += 1;
            }
            assert!(self.flows.len() <= MOST);
            room
        }

        fn hear(&mut self, flow: u32) {
            let (host, ticket) = self.flows.get_mut(&flow).unwrap();
            self.unheard.leave(*host, ticket);
        }

        fn of(&self, host: IpAddr) -> usize {
            self.flows.values().filter(|(of, _)| *of == host).count()
        }
    }

    #[test]
    fn of_the_host_that_has_most_the_oldest_gives_way() {
        let mut table = Table::default();
        for number in 0..MOST as u32 {
            assert_eq!(table.begin(host((number % 20) as u8)), Room::Free);
        }
        assert_eq!(table.begin(host(201)), Room::InPlaceOf(0));
        assert_eq!(table.begin(host(202)), Room::InPlaceOf(1));
        table.hear(2);
        assert_eq!(table.begin(host(203)), Room::InPlaceOf(3), "it has spoken");
        assert_eq!(table.begin(host(10)), Room::InPlaceOf(10), "it would have most itself");
        assert_eq!(table.begin(host(201)), Room::InPlaceOf(4));
        for _ in 0..4000 {
            assert_ne!(table.begin(host(210)), Room::None);
        }
        assert!(table.of(host(210)) <= 45, "{}", table.of(host(210)));
        (201..204).for_each(|number| assert!(table.of(host(number)) > 0));
    }

    /// Names that were never heard of have nothing but what nobody else wants.
    #[test]
    fn those_that_have_one_each_give_way_in_their_order() {
        let mut table = Table::default();
        let name = |number: u32| IpAddr::from([11, 0, (number / 250) as u8, (number % 250) as u8]);
        for number in 0..5000 {
            table.begin(name(number));
        }
        let oldest = *table.flows.keys().next().unwrap();
        assert_eq!((table.begin(host(1)), oldest), (Room::InPlaceOf(4100), 4100));
        assert_eq!(table.begin(host(1)), Room::InPlaceOf(4101));
        // A host with many connections has its share beside them.
        for number in 0..700 {
            assert!(matches!(table.begin(host(1)), Room::InPlaceOf(_)), "{number}");
            table.hear(table.next - 1);
        }
        assert_eq!(table.of(host(1)), 702);
        assert!((0..5000).all(|number| table.begin(name(number)) != Room::None));
        assert_eq!(table.of(host(1)), 700, "those that were heard stay");
    }

    /// A host that is alone has its own to give, and leaves the others theirs.
    #[test]
    fn one_that_has_its_share_has_its_own_to_give() {
        let mut table = Table::default();
        (0..800).for_each(|_| assert_eq!(table.begin(host(1)), Room::Free));
        assert_eq!((table.begin(host(1)), table.begin(host(1))), (Room::InPlaceOf(0), Room::InPlaceOf(1)));
        assert_eq!(table.of(host(1)), 800);
        let flows: Vec<_> = table.flows.keys().copied().collect();
        flows.into_iter().for_each(|flow| table.hear(flow));
        assert_eq!(table.begin(host(1)), Room::None);
        assert_eq!(table.begin(host(2)), Room::Free);
        assert!(table.unheard.entries.len() == 1 && table.unheard.order.len() == 1);
    }
}
