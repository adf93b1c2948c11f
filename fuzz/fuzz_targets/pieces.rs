//! MTU pieces and probes: packets come whole out of their pieces, and pieces of anybody's making
//! stay within bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::{Script, within};
use reliability::estimator::LaneId;
use reliability::mtu::{Answer, Answerer, Cutter, Joiner, LARGEST, MTU_PACKET, Message, PIECE_HEADER, Probe};

/// 64 packets of the longest are joined at a time.
const BOUND: u64 = 64 * (LARGEST as u64 + 64) + (256 << 10);

fuzz_target!(|input: &[u8]| within(BOUND, "a joiner", || run(input)));

fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let (mut cutter, mut joiner) = (Cutter::default(), Joiner::default());
    let mut answerer = Answerer::new(LaneId(0));
    let mut out = vec![0; LARGEST];
    while !script.is_over() {
        match script.u8() % 4 {
            0 => honest(&mut script, &mut cutter, &mut joiner, &mut out),
            1 => {
                // Any fields, behind the start of a PIECE.
                let length = script.length(400);
                let piece = [&[7, 0, 0, 0], script.bytes(length)].concat();
                if let Ok(Some(whole)) = joiner.handle(&piece) {
                    assert!(whole.len() <= LARGEST);
                }
            }
            2 => {
                let length = script.length(64);
                if let Ok(message) = Message::parse(script.bytes(length)) {
                    probe(message, &mut answerer, &mut out);
                }
            }
            _ => {
                let message = Message::Probe(Probe { id: script.u32(), in_use: script.u16() });
                probe(message, &mut answerer, &mut out);
            }
        }
    }
}

/// A packet cut here and joined there, some of its pieces swapped, doubled or lost.
fn honest(script: &mut Script<'_>, cutter: &mut Cutter, joiner: &mut Joiner, out: &mut [u8]) {
    let (length, longest) = (script.length(LARGEST), 300 + script.length(LARGEST - 300));
    let fill = script.u8();
    let packet: Vec<u8> = (0..length).map(|at| (at as u8).wrapping_mul(7) ^ fill).collect();
    cutter.cut(&packet, LaneId(1), longest);
    let mut pieces = Vec::new();
    while let Some((lane, len)) = cutter.poll(&mut out[..longest]) {
        assert!(lane == LaneId(1) && len <= longest && len > PIECE_HEADER);
        pieces.push(out[..len].to_vec());
    }
    let how = script.u8();
    if how & 1 == 1 {
        pieces.reverse();
    }
    if how & 2 == 2 && pieces.len() > 1 {
        pieces.pop();
    }
    let complete = how & 2 == 0 || pieces.len() <= 1;
    let mut whole = 0;
    for piece in pieces.iter().chain(pieces.first().filter(|_| how & 4 == 4)) {
        if let Some(joined) = joiner.handle(piece).expect("it is an honest piece") {
            assert!(joined == packet, "not the packet that was cut");
            whole += 1;
        }
    }
    // A piece of anybody's making may have taken its number before.
    assert!(whole <= usize::from(complete));
}

fn probe(message: Message, answerer: &mut Answerer, out: &mut [u8]) {
    let Message::Probe(probe) = message else { return };
    answerer.arrived(40);
    answerer.handle_probe(&probe);
    let len = answerer.poll(out).expect("it was asked");
    assert_eq!(len, MTU_PACKET);
    let Ok(Message::Answer(Answer { newest, arrived, .. })) = Message::parse(&out[..len]) else {
        panic!("not an answer");
    };
    let back = newest.wrapping_sub(probe.id);
    assert!(arrived & 1 == 1);
    assert!(back >= 32 || arrived >> back & 1 == 1, "{probe:?}: {newest} {arrived:#x}");
}
