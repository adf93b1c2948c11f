//! The flows of a class share the link: what one has waiting does not stand before another's
//! message.

use std::time::Duration;

use crate::sites::{STEP, Sites, write_request};
use reliability::stream::{Kind, Receiver, ReceiverConfig, StreamId, classify};
use roce::ip::Datagram;
use roce::wire::{Bth, Psn, Qpn};
use splice::record::{FlowId, Head};

/// The bulk stream of the only class.
const BULK: StreamId = StreamId(1);

struct World {
    sites: Sites,
    /// Listens to what the requesters' gateway sends.
    ear: Receiver,
}

impl World {
    /// 100 Mbit/s; a message of 256 bytes takes some 25 microseconds.
    fn new() -> Self {
        let sites = Sites::new(0xc123, |settings| splice::Settings { rate: 100_000_000, ..settings });
        let ear = Receiver::new(ReceiverConfig::new(BULK, 1400), sites.now);
        Self { sites, ear }
    }

    /// Messages to these queue pairs come from the LAN; each is a flow.
    fn write(&mut self, target: u32, messages: u32) {
        for psn in 0..messages {
            let mut request = write_request(Qpn::new(target), 256);
            Bth::set_psn(request.first_chunk_mut().unwrap(), Psn::new(psn));
            let datagram = Datagram { addressing: self.sites.addressing[0], transport: &request };
            self.sites.gateways[0].handle_lan(&datagram, self.sites.now);
        }
    }

    /// Lets so much time pass; the flows whose messages left, in order.
    fn run(&mut self, time: Duration) -> Vec<FlowId> {
        let end = self.sites.now + time;
        let mut left = Vec::new();
        while self.sites.now < end {
            self.sites.now += STEP;
            let Self { sites, ear } = self;
            let now = sites.now;
            let ear = std::cell::RefCell::new((ear, &mut left));
            sites.cross_but(|site, packet| {
                if site == 0 && classify(packet) == Ok((Kind::Data, BULK)) {
                    let (ear, left) = &mut *ear.borrow_mut();
                    let mut note = |record: &[u8]| match Head::parse(record) {
                        Ok((Head::Request { flow, .. }, _)) => left.push(flow),
                        other => panic!("{other:?}"),
                    };
                    ear.handle_packet(packet, now, &mut note).unwrap();
                }
                false
            });
            while sites.deliver(1).is_some() {}
        }
        left
    }
}

#[test]
fn a_message_does_not_wait_for_all_that_another_flow_has_waiting() {
    let mut world = World::new();
    world.write(7, 2000);
    let before = world.run(Duration::from_millis(10));
    assert!((200..1000).contains(&before.len()), "{}", before.len());
    world.write(8, 1);
    let after = world.run(Duration::from_millis(10));
    let at = after.iter().position(|flow| *flow != before[0]).unwrap();
    // What its turn lets the other send.
    assert!(at <= (16 << 10) / 256, "after {at} of the other's");
    let rest = world.run(Duration::from_secs(1));
    assert_eq!(before.len() + after.len() + rest.len(), 2001);
}

#[test]
fn flows_get_equal_shares_whatever_they_have_waiting() {
    let mut world = World::new();
    // Far more of the first, and before the others.
    for (target, messages) in [(7, 6000), (8, 1000), (9, 1000)] {
        world.write(target, messages);
    }
    let left = world.run(Duration::from_millis(50));
    let mut counts = std::collections::BTreeMap::new();
    left.iter().for_each(|flow| *counts.entry(*flow).or_insert(0_usize) += 1);
    let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
    assert!(counts.len() == 3 && *least > 300 && most - least <= 2 * (16 << 10) / 256, "{counts:?}");
}
