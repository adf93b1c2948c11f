//! Queue pairs of UC in invented names, numbered up one by one, beside an honest host's.

use super::*;

/// Queue pairs that each gateway keeps in order.
const FLOWS: usize = 900;
/// Packets of a message.
const PARTS: u32 = 4;

/// An honest sender of UC messages, and what comes out of them.
struct Sender {
    target: u32,
    sent: u32,
    came: Vec<u32>,
}

impl Sender {
    fn new(target: u32) -> Self {
        Self { target, sent: 0, came: Vec::new() }
    }

    fn send(&mut self, sites: &mut Sites) {
        let opcode = match self.sent % PARTS {
            0 => Opcode::UcSendFirst,
            place if place == PARTS - 1 => Opcode::UcSendLast,
            _ => Opcode::UcSendMiddle,
        };
        send(sites, host(1), &packet(opcode, self.target, self.sent, Ext::None, &[3; 1024]));
        self.sent += 1;
    }
}

struct Crossing {
    sites: Sites,
    senders: Vec<Sender>,
    /// Queue pairs of strangers so far.
    strangers: u32,
    wan: std::cell::Cell<u32>,
}

impl Crossing {
    fn new() -> Self {
        let sites = Sites::new(0xc123, |settings| Settings { flows: FLOWS, rate: RATE * 10, ..settings });
        Self { sites, senders: Vec::new(), strangers: 0, wan: 0.into() }
    }

    /// One packet of each sender in this time, and so many of strangers, each in the name of
    /// another host and to another queue pair. The link loses a packet in seven, and repairs it.
    fn step(&mut self, strangers: u32) {
        self.senders.iter_mut().for_each(|sender| sender.send(&mut self.sites));
        for _ in 0..strangers {
            let name = host(10 + (self.strangers % 240) as u8);
            let request = packet(Opcode::UcSendOnly, 0x1000 + self.strangers, 0, Ext::None, &[1; 16]);
            send(&mut self.sites, name, &request);
            self.strangers += 1;
        }
        (0..10).for_each(|_| self.cross());
    }

    fn cross(&mut self) {
        let wan = &self.wan;
        self.sites.cross_but(|site, _| {
            wan.set(wan.get() + 1);
            site == 0 && wan.get() % 7 == 3
        });
        while let Some(bth) = self.sites.deliver(1) {
            let to = bth.dest_qp.get();
            if let Some(sender) = self.senders.iter_mut().find(|sender| sender.target == to) {
                sender.came.push(bth.psn.get());
            }
        }
        self.sites.now += STEP * 5;
    }

    /// Has all that is under way arrive: everything came, and in its order.
    fn check(&mut self) {
        (0..2000).for_each(|_| self.cross());
        for sender in &self.senders {
            let expected: Vec<_> = (0..sender.sent).collect();
            let lost = expected.len() - sender.came.len();
            let overtaken = sender.came.windows(2).filter(|two| two[0] > two[1]).count();
            assert_eq!((lost, overtaken), (0, 0), "of {} to {:#x}", sender.sent, sender.target);
        }
    }
}

/// The tables of both gateways are full of queue pairs that nobody uses. They give way to a host's
/// that begin, and none does that is in use.
#[test]
fn queue_pairs_of_uc_in_invented_names_leave_others_their_order() {
    let mut crossing = Crossing::new();
    crossing.senders.push(Sender::new(0x22));
    for _ in 0..20 {
        crossing.step(0);
    }
    // One a tenth of a millisecond: within a tenth of a second the table is full.
    for round in 0..400 {
        crossing.step(10);
        if round % 40 == 39 {
            crossing.senders.push(Sender::new(0x23 + round));
        }
    }
    for sender in &mut crossing.senders {
        let rest = sender.sent.next_multiple_of(PARTS) - sender.sent;
        (0..rest).for_each(|_| sender.send(&mut crossing.sites));
    }
    crossing.check();
    let drops = crossing.sites.gateways[0].stats().lan_drops;
    assert_eq!(drops[LanDrop::Orphan as usize], 0);
}
