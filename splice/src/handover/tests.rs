//! Every interleaving of what happens at both workers and in the queues between them.

use std::collections::BTreeSet;

use super::*;

/// Packets of the LAN are numbers, records letters; a flow is what it has handled.
type Flow = Vec<Event>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Event {
    Packet(u8),
    Record(u8),
}

const PACKETS: u8 = 4;
const RECORDS: u8 = 2;

#[derive(Clone, Debug)]
struct World {
    home: Home<Flow>,
    owner: Owner<Flow, u8>,
    to_owner: VecDeque<ToOwner<Flow, u8, u8>>,
    to_home: VecDeque<ToHome<u8>>,
    packets: u8,
    records: u8,
    bound: usize,
    lost: u8,
    moves: u8,
}

impl World {
    fn new(bound: usize) -> Self {
        Self {
            home: Home::Here(Flow::new()),
            owner: Owner::Elsewhere,
            to_owner: VecDeque::new(),
            to_home: VecDeque::new(),
            packets: 0,
            records: 0,
            bound,
            lost: 0,
            moves: 0,
        }
    }

    /// The next packet of the LAN comes to the queue pair's worker.
    fn packet(mut self) -> Option<Self> {
        self.packets = Some(self.packets + 1).filter(|packet| *packet <= PACKETS)?;
        match self.owner.arrived(self.packets, self.bound) {
            Arrived::Handle(flow, packet) => flow.push(Event::Packet(packet)),
            Arrived::Stray(message) => self.to_home.push_back(message),
            Arrived::Held => {}
            Arrived::Full(_) => self.lost += 1,
        }
        Some(self)
    }

    /// The next record comes to the home worker.
    fn record(mut self) -> Option<Self> {
        self.records = Some(self.records + 1).filter(|record| *record <= RECORDS)?;
        match self.home.record(self.records) {
            Handling::Here(flow, record) => flow.push(Event::Record(record)),
            Handling::There(message) => self.to_owner.push_back(message),
        }
        Some(self)
    }

    /// The next record comes to the flow's worker, which the peer has heard of.
    fn direct_record(mut self) -> Option<Self> {
        self.records = Some(self.records + 1).filter(|record| *record <= RECORDS)?;
        self.owner.flow()?.push(Event::Record(self.records));
        Some(self)
    }

    fn pair(mut self) -> Option<Self> {
        self.to_owner.push_back(self.home.hand_over()?);
        self.moves += 1;
        Some(self)
    }

    fn deliver_home(mut self) -> Option<Self> {
        match self.to_home.pop_front()? {
            ToHome::Stray(packet) => match self.home.stray(packet) {
                Handling::Here(flow, packet) => flow.push(Event::Packet(packet)),
                Handling::There(message) => self.to_owner.push_back(message),
            },
            ToHome::NoMore => self.to_owner.extend(self.home.no_more()),
            ToHome::Over => panic!("it goes on"),
        }
        Some(self)
    }

    fn deliver_owner(mut self) -> Option<Self> {
        let here = "nothing comes before the flow";
        match self.to_owner.pop_front()? {
            ToOwner::Flow(flow) => self.to_home.push_back(self.owner.take_in(flow).unwrap()),
            ToOwner::Returned(packet) => self.owner.flow().expect(here).push(Event::Packet(packet)),
            ToOwner::Record(record) => self.owner.flow().expect(here).push(Event::Record(record)),
            ToOwner::Settled => {
                while let Some((flow, packet)) = self.owner.next_held() {
                    flow.push(Event::Packet(packet));
                }
            }
        }
        Some(self)
    }

    fn next(&self) -> Vec<Self> {
        let steps = [
            Self::packet,
            Self::record,
            Self::direct_record,
            Self::pair,
            Self::deliver_home,
            Self::deliver_owner,
        ];
        steps.iter().filter_map(|step| step(self.clone())).collect()
    }

    /// The flow is in one place, or on its way there.
    fn check(&self) {
        let moving = self.to_owner.iter().filter(|message| matches!(message, ToOwner::Flow(_))).count();
        let at_home = usize::from(matches!(self.home, Home::Here(_)));
        let at_owner = usize::from(!matches!(self.owner, Owner::Elsewhere));
        assert_eq!(moving + at_home + at_owner, 1, "{self:?}");
    }

    /// At the end, all that came was handled, packets in their order.
    fn check_end(&self) {
        assert_eq!((&self.home, self.moves), (&Home::Gone, 1), "{self:?}");
        let Owner::Here(flow) = &self.owner else { panic!("{self:?}") };
        let packets: Vec<u8> = flow
            .iter()
            .filter_map(|event| match event {
                Event::Packet(packet) => Some(*packet),
                Event::Record(_) => None,
            })
            .collect();
        assert!(packets.is_sorted_by(|a, b| a < b), "{self:?}");
        assert_eq!(packets.len() + usize::from(self.lost), usize::from(PACKETS), "{self:?}");
        let mut records: Vec<_> = flow.iter().filter(|event| matches!(event, Event::Record(_))).collect();
        records.sort();
        assert_eq!(records, [&Event::Record(1), &Event::Record(2)], "{self:?}");
    }
}

/// Goes through all that may happen, and returns how many states there are and the most that was
/// lost.
fn explore(bound: usize) -> (usize, u8) {
    let mut seen = BTreeSet::new();
    let mut open = vec![World::new(bound)];
    let mut most_lost = 0;
    while let Some(world) = open.pop() {
        if !seen.insert(format!("{world:?}")) {
            continue;
        }
        world.check();
        let next = world.next();
        if next.is_empty() {
            world.check_end();
            most_lost = most_lost.max(world.lost);
        }
        open.extend(next);
    }
    (seen.len(), most_lost)
}

#[test]
fn a_flow_moves_once_and_nothing_is_reordered_or_lost() {
    let (states, lost) = explore(usize::from(PACKETS));
    assert_eq!(lost, 0);
    assert!(states > 1000, "{states}");
}

#[test]
fn what_is_held_back_beyond_the_bound_is_lost_and_nothing_else() {
    let (_, lost) = explore(1);
    assert!((1..PACKETS).contains(&lost), "{lost}");
}

#[test]
fn a_later_flow_of_the_name_begins_at_home() {
    let mut owner: Owner<&str, u8> = Owner::Here("first");
    assert_eq!(owner.end(), Some(("first", ToHome::Over)));
    assert_eq!((owner.end(), owner.flow()), (None, None));
    // What home had sent before it heard of that.
    assert_eq!(owner.next_held(), None);
    assert_eq!(owner.arrived(7, 1), Arrived::Stray(ToHome::Stray(7)));
    let mut home = Home::Here("second");
    assert_eq!(home.stray::<u8, ()>(7), Handling::Here(&mut "second", 7));
    assert_eq!(home.no_more::<u8, ()>(), None, "of the first one");
    assert_eq!(home.hand_over::<u8, ()>(), Some(ToOwner::Flow("second")));
    assert_eq!(home.hand_over::<u8, ()>(), None);
    assert_eq!(owner.take_in("second"), Ok(ToHome::NoMore));
    assert_eq!(owner.take_in("third"), Err("third"));
}
