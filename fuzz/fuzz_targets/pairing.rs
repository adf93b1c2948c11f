//! Pairing: responses, connection management and flows in any order; what is paired stays within
//! the bounds and means what it says.
#![no_main]

use std::net::IpAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::{Script, epoch, within};
use roce::cm::Mad;
use roce::pairing::{Candidacy, Config, FlowKey, Flows, Hosts, Match, Pairings, Response, Rival, Span, Word};
use roce::wire::{Bth, Deth, Ext, Kind, Opcode, Packet, Psn, Qpn, Repr};

const CAPACITY: usize = 16;

fuzz_target!(|input: &[u8]| within(1 << 18, "pairings", || run(input)));

fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut now = epoch();
    let mut pairings = Pairings::new(Config { capacity: CAPACITY, ..Config::default() }, now);
    while !script.is_over() {
        let flow = flow(&mut script);
        match script.u8() % 10 {
            0 | 1 => {
                let _ = pairings.open(flow, now);
            }
            2 => {
                let (psn, span) = (psn(&mut script), u32::from(script.u8()) + 1);
                pairings.may_send(&flow, &Span::of(psn, span).of_kind(kind(&mut script)), now);
            }
            3 | 4 => respond(&mut pairings, &mut script, flow, now),
            5 => {
                let (bytes, hosts) = (mad(&mut script), flow);
                let packet = Packet::parse(&bytes).expect("a MAD");
                if let Some(mad) = Mad::parse(&packet) {
                    pairings.handle_cm(hosts.requester, hosts.target, &mad.message, now);
                }
            }
            6 => {
                let asked = Span::of(psn(&mut script), u32::from(script.u8()) + 1);
                pairings.forget(&flow, Some((asked, now)).filter(|_| script.u8() & 1 == 0), now);
            }
            7 if script.u8() & 1 == 0 => {
                pairings.open_near(flow, now);
            }
            7 => pairings.release(&flow, now),
            8 if script.u8() & 1 == 0 => pairings.ask_anew(&flow),
            8 => pairings.pass(&flow, now),
            _ => {
                now += script.span();
                pairings.handle_timeout(now);
            }
        }
        for _ in 0..10 * CAPACITY {
            if pairings.poll_event().is_none() {
                break;
            }
        }
        assert_eq!(pairings.poll_event(), None, "events without end");
        assert!(pairings.flows() <= CAPACITY && pairings.waiting() <= CAPACITY);
    }
}

fn respond(pairings: &mut Pairings, script: &mut Script<'_>, flow: FlowKey, now: std::time::Instant) {
    let hosts = Hosts { requester: flow.requester, target: flow.target };
    let response = Response { hosts, requester_qpn: qpn(script), psn: psn(script), word: word(script) };
    let mut flows = Others { claim: claim(script), rival: rival(script) };
    if let Match::Known(found) | Match::Paired(found) = pairings.handle_response(&response, &mut flows, now) {
        assert_eq!((found.requester, found.target), (hosts.requester, hosts.target));
        assert_eq!(pairings.partner(&found), Some(response.requester_qpn));
        let mut flows = Others { claim: Candidacy::Good, rival: None };
        let again = pairings.handle_response(&response, &mut flows, now);
        assert_eq!(again, Match::Known(found), "and then another");
    }
}

/// The other flows that are paired, all alike.
struct Others {
    claim: Candidacy,
    rival: Option<Rival>,
}

impl Flows for Others {
    fn claim(&self, _: &FlowKey, _: Duration) -> Candidacy {
        self.claim
    }

    fn rival(&mut self, _: Hosts, _: [Option<FlowKey>; 2], _: Duration) -> Option<Rival> {
        self.rival
    }
}

fn rival(script: &mut Script<'_>) -> Option<Rival> {
    match script.u8() & 7 {
        0 => Some(Rival::Here),
        1 => Some(Rival::Elsewhere),
        _ => None,
    }
}

fn claim(script: &mut Script<'_>) -> Candidacy {
    match script.u8() % 3 {
        0 => Candidacy::Good,
        1 => Candidacy::Doubtful,
        _ => Candidacy::None,
    }
}

fn kind(script: &mut Script<'_>) -> Kind {
    [Kind::Write, Kind::Read, Kind::Atomic, Kind::Flush][usize::from(script.u8() & 3)]
}

fn word(script: &mut Script<'_>) -> Word {
    let words = [Word::Ack, Word::SequenceNak, Word::NotReady, Word::Refusal, Word::Read, Word::Atomic];
    words[usize::from(script.u8()) % words.len()]
}

/// Few of each, so that they meet.
fn flow(script: &mut Script<'_>) -> FlowKey {
    let bits = script.u8();
    let host = |bit: u8| IpAddr::from([10, 0, bit & 1, 1]);
    FlowKey { requester: host(bits), target: host(!bits), target_qpn: Qpn::new(u32::from(bits >> 4) + 0x40) }
}

fn qpn(script: &mut Script<'_>) -> Qpn {
    Qpn::new(u32::from(script.u8() & 15) + 0x40)
}

fn psn(script: &mut Script<'_>) -> Psn {
    let psn = u32::from(script.u8());
    Psn::new(if psn & 0x80 == 0 { psn } else { psn << 17 })
}

/// A message of connection management between queue pairs that are about.
fn mad(script: &mut Script<'_>) -> Vec<u8> {
    let mut payload = [0; 256];
    payload[..4].copy_from_slice(&[1, 7, 2, 3]);
    let kind = script.u8();
    payload[17] = 0x10 + (kind & 7);
    let body = &mut payload[24..];
    (body[3], body[7]) = (script.u8() & 3, script.u8() & 3);
    let number = (script.u8() & 15) + 0x40;
    match kind & 7 {
        0 => (body[34], body[46]) = (number, script.u8()),
        3 => (body[14], body[22]) = (number, script.u8()),
        5 => body[10] = number,
        _ => body[8] = script.u8(),
    }
    let bth = Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0));
    let repr = Repr { bth, ext: Ext::Deth(Deth { qkey: 0, src_qp: Qpn::GSI }), payload: &payload };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut bytes).expect("a MAD");
    bytes
}
