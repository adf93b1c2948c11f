//! Gateways that are killed while a requester is in the midst of a message, and whichever of its
//! packets is the first to come to the new session.
//!
//! Rules: `docs/protocol.md#rule-reborn`, `rule-retained`.

use std::time::Duration;

use crate::sites::Sites;
use roce::ip::Datagram;
use roce::wire::{Aeth, Bth, Ext, Nak, Opcode, Packet, Psn, Qpn, Repr, Syndrome};

const TARGET: Qpn = Qpn::new(0x34);
const REQUESTER: Qpn = Qpn::new(0x28);
const STEP: Duration = Duration::from_millis(10);
/// Steps after which a requester that heard nothing new begins again.
const TIMEOUT: usize = 30;
/// Packets that it has under way.
const WINDOW: u32 = 24;
/// The first message fits a packet. Packets of each message after that, and the PSN after all.
const LENGTH: u32 = 12;
const END: u32 = 1 + 3 * LENGTH;

fn opcode(psn: u32) -> Opcode {
    match psn.checked_sub(1).map(|psn| psn % LENGTH) {
        None => Opcode::SendOnly,
        Some(0) => Opcode::SendFirst,
        Some(place) if place == LENGTH - 1 => Opcode::SendLast,
        Some(_) => Opcode::SendMiddle,
    }
}

/// Gateways that retain what requesters were acknowledged.
fn retaining() -> Sites {
    let mut sites = Sites::new(49_152, |settings| settings);
    for site in 0..2 {
        sites.retain(site, Box::new(vec![0u8; 1 << 20]));
    }
    sites
}

/// Two NICs as the specification has them: a target tells once of a gap, and a requester goes by
/// nothing that lies before what it was acknowledged.
struct Nics {
    sites: Sites,
    /// The requester was acknowledged all before.
    acknowledged: u32,
    /// The target expects this.
    expected: u32,
    messages: u32,
    has_told: bool,
    /// Incarnation of both queue pairs, which payloads show.
    incarnation: u8,
    /// The LAN loses what the target says.
    is_mute: bool,
}

impl Nics {
    fn new() -> Nics {
        let mut nics = Nics::of(retaining());
        nics.send(0);
        nics.step();
        assert_eq!((nics.acknowledged, nics.expected), (1, 1));
        nics
    }

    /// The same, but for the first message: the next one begins the connection.
    fn fresh() -> Nics {
        Nics { acknowledged: 1, expected: 1, ..Nics::of(retaining()) }
    }

    fn of(sites: Sites) -> Nics {
        Nics {
            sites,
            acknowledged: 0,
            expected: 0,
            messages: 0,
            has_told: false,
            incarnation: 0,
            is_mute: false,
        }
    }

    /// Both programs have reset their queue pairs, and connect them again from this PSN on.
    fn reconnect(&mut self, psn: u32) {
        (self.acknowledged, self.expected, self.messages) = (psn, psn, 0);
        (self.has_told, self.incarnation) = (false, self.incarnation + 1);
    }

    fn payload(&self, psn: u32) -> u8 {
        psn as u8 ^ self.incarnation << 7
    }

    fn send(&mut self, psn: u32) {
        let bth = Bth { ack_req: true, ..Bth::new(opcode(psn), TARGET, Psn::new(psn)) };
        let repr = Repr { bth, ext: Ext::None, payload: &[self.payload(psn); 1024] };
        let mut request = vec![0; repr.buffer_len()];
        repr.emit(&mut request).unwrap();
        let datagram = Datagram { addressing: self.sites.addressing[0], transport: &request };
        self.sites.gateways[0].handle_lan(&datagram, self.sites.now);
    }

    fn answer(&mut self, psn: u32, syndrome: Syndrome) {
        let bth = Bth::new(Opcode::Acknowledge, REQUESTER, Psn::new(psn));
        let repr = Repr { bth, ext: Ext::Aeth(Aeth { syndrome, msn: self.messages }), payload: &[] };
        let mut response = [0; 16];
        repr.emit(&mut response).unwrap();
        let datagram = Datagram { addressing: self.sites.addressing[1], transport: &response };
        if !self.is_mute {
            self.sites.gateways[1].handle_lan(&datagram, self.sites.now);
        }
    }

    fn take(&mut self) -> bool {
        let mut out = [0; 4096];
        let Some(len) = self.sites.gateways[1].poll_lan(self.sites.now, &mut out) else { return false };
        let packet = Packet::parse(Datagram::parse(&out[..len]).unwrap().transport).unwrap();
        let psn = packet.bth.psn.get();
        assert_eq!(packet.bth.opcode, opcode(psn), "PSN {psn}");
        if psn <= self.expected {
            let is_news = psn == self.expected;
            let is_its = packet.payload.iter().all(|byte| *byte == self.payload(psn));
            assert!(is_its || !is_news, "PSN {psn}");
            self.expected += u32::from(is_news);
            self.messages += u32::from(is_news && packet.bth.opcode.ends_message());
            self.has_told &= !is_news;
            if packet.bth.ack_req {
                self.answer(self.expected - 1, Syndrome::ACK);
            }
        } else if !std::mem::replace(&mut self.has_told, true) {
            self.answer(self.expected, Syndrome::Nak(Nak::PsnSequence));
        }
        true
    }

    /// Returns where the requester is told to go on, if it is.
    fn hear(&mut self) -> Option<u32> {
        let (mut out, mut again) = ([0; 4096], None);
        while let Some(len) = self.sites.gateways[0].poll_lan(self.sites.now, &mut out) {
            let packet = Packet::parse(Datagram::parse(&out[..len]).unwrap().transport).unwrap();
            let syndrome = packet.ext.aeth().unwrap().syndrome;
            let at = packet.bth.psn + u32::from(syndrome.is_ack());
            let is_news = !at.is_before(Psn::new(self.acknowledged));
            assert!(!is_news || at.get() <= END, "{at:?}");
            if is_news {
                self.acknowledged = at.get();
            }
            match syndrome {
                Syndrome::Ack { .. } => {}
                Syndrome::Nak(Nak::PsnSequence) => again = again.or(is_news.then_some(at.get())),
                other => panic!("the requester hears {other:?} at {at:?}"),
            }
        }
        again
    }

    fn step(&mut self) -> Option<u32> {
        self.sites.now += STEP;
        self.sites.cross();
        while self.take() {}
        self.sites.cross();
        self.hear()
    }

    /// The requester is acknowledged parts of a message, the last of which go no further.
    fn part_is_ahead(&mut self) {
        for psn in 1..5 {
            self.send(psn);
        }
        self.step();
        assert_eq!((self.acknowledged, self.expected), (5, 5));
        for psn in 5..10 {
            self.send(psn);
        }
        self.hear();
        assert_eq!((self.acknowledged, self.expected), (10, 5));
    }

    /// The requester begins again and again where it was acknowledged, until all is done.
    fn go_on(&mut self) -> bool {
        for _ in 0..40 {
            let mut next = Some(self.acknowledged);
            for _ in 0..TIMEOUT {
                if let Some(from) = next {
                    (from..END.min(from + WINDOW)).for_each(|psn| self.send(psn));
                }
                next = self.step();
            }
        }
        (self.acknowledged, self.expected) == (END, END)
    }
}

/// Whatever comes first to the new session, the requester goes on where it was acknowledged.
#[test]
fn whichever_packet_comes_first_a_requester_goes_on() {
    let mut lost = Vec::new();
    for kills in [&[1][..], &[1, 1], &[1, 1, 1]] {
        for first in 10..10 + WINDOW {
            let mut nics = Nics::new();
            nics.part_is_ahead();
            for site in kills {
                nics.sites.kill(*site);
                nics.send(first);
                nics.step();
            }
            if !nics.go_on() {
                lost.push((kills, first, nics.acknowledged, nics.expected));
            }
        }
    }
    assert!(lost.is_empty(), "{lost:?}");
}

/// A gateway that saw what the target has needs no word of it.
#[test]
fn a_survivor_at_the_requesters_site_asks_nobody() {
    let mut lost = Vec::new();
    for kills in 1..4 {
        for first in 10..10 + WINDOW {
            let mut nics = Nics::new();
            nics.part_is_ahead();
            nics.is_mute = true;
            for _ in 0..kills {
                nics.sites.kill(1);
                nics.send(first);
                nics.step();
            }
            nics.is_mute = false;
            if !nics.go_on() {
                lost.push((kills, first, nics.acknowledged, nics.expected));
            }
        }
    }
    assert!(lost.is_empty(), "{lost:?}");
}

/// Nobody need be asked where a requester's gateway was killed, either: what a target names once,
/// it may have named to a process that has ended.
#[test]
fn whichever_gateways_are_killed_a_requester_goes_on() {
    let mut lost = Vec::new();
    for kills in [&[0][..], &[0, 0], &[0, 1], &[1, 0], &[0, 1, 0], &[1, 0, 1]] {
        for (is_mute, first) in
            [false, true].into_iter().flat_map(|mute| (10..10 + WINDOW).map(move |first| (mute, first)))
        {
            let mut nics = Nics::new();
            nics.part_is_ahead();
            nics.is_mute = is_mute;
            for site in kills {
                nics.sites.kill(*site);
                nics.send(first);
                nics.step();
            }
            nics.is_mute = false;
            if !nics.go_on() {
                lost.push((kills, is_mute, first, nics.acknowledged, nics.expected));
            }
        }
    }
    assert!(lost.is_empty(), "{lost:?}");
}

/// Programs that connect again, with the same numbers and PSNs, are given nothing of what was
/// retained, whatever comes of them first.
#[test]
fn a_later_incarnation_gets_nothing_of_an_earlier_one() {
    let mut lost = Vec::new();
    for (begin, nics) in [(0, Nics::new as fn() -> Nics), (1, Nics::fresh)] {
        for kills in [&[0][..], &[1], &[0, 0], &[0, 1], &[1, 0]] {
            for first in begin..10 + WINDOW {
                let mut nics = nics();
                nics.part_is_ahead();
                nics.reconnect(begin);
                for site in kills {
                    nics.sites.kill(*site);
                    nics.send(first);
                    nics.step();
                }
                if !nics.go_on() {
                    lost.push((begin, kills, first, nics.acknowledged, nics.expected));
                }
            }
        }
    }
    assert!(lost.is_empty(), "{lost:?}");
}
