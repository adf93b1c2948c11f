//! Erasure codes: what can be recovered is recovered exactly, whatever was damaged is refused or
//! contained.
#![no_main]

use fec::{Code, Decoder, Encoder, Recovered};
use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::{Script, within};

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let (how, k, m) = (script.u8(), usize::from(script.u8() % 40), usize::from(script.u8() % 40));
    let code = if how & 1 == 0 { Code::mds(k, m) } else { Code::xor(k, m) };
    let Ok(code) = code else { return };
    let packets: Vec<Vec<u8>> = (0..1 + usize::from(script.u8()) % k)
        .map(|at| {
            let length = script.length(300);
            let mut packet = script.bytes(length).to_vec();
            packet.resize(length, at as u8);
            packet
        })
        .collect();
    // Every packet and parity at most once, the factors, and the rows.
    within(1 << 20, "a block", || decode(&code, how, &packets, &mut script));
});

fn decode(code: &Code, how: u8, packets: &[Vec<u8>], script: &mut Script<'_>) {
    let mut encoder = Encoder::new(code.clone(), 300);
    for packet in packets {
        encoder.push(packet).expect("there is room");
    }
    let mut parity: Vec<Option<Vec<u8>>> =
        (0..encoder.parity_count()).map(|index| encoder.parity(index).map(<[u8]>::to_vec)).collect();
    let mut data: Vec<_> = packets.iter().map(|packet| Some(packet.clone())).collect();
    for lost in data.iter_mut().chain(&mut parity) {
        if script.u8() & 3 == 0 {
            *lost = None;
        }
    }
    let damaged = how & 2 == 2 && !script.is_over();
    if damaged {
        let pieces = data.len() + parity.len();
        let which = usize::from(script.u8()) % pieces;
        if let Some(Some(piece)) = data.iter_mut().chain(&mut parity).nth(which) {
            let length = script.length(400);
            let bytes = script.rest();
            piece.iter_mut().zip(bytes).for_each(|(byte, with)| *byte ^= with);
            piece.resize(length, 0);
        }
    }
    let missing = data.iter().filter(|packet| packet.is_none()).count();
    let data: Vec<Option<&[u8]>> = data.iter().map(Option::as_deref).collect();
    let parity: Vec<Option<&[u8]>> = parity.iter().map(Option::as_deref).collect();
    let mut recovered = Recovered::new();
    let result = Decoder::new().decode(code, &data, &parity, &mut recovered);
    if let Ok(count) = result {
        assert_eq!((count, recovered.len()), (missing, missing));
        for (index, packet) in recovered.iter() {
            assert!(data[index].is_none());
            assert!(damaged || packet == packets[index], "packet {index} is another");
        }
    } else {
        assert!(recovered.is_empty());
        let at_hand = parity.iter().flatten().count();
        assert!(damaged || how & 1 == 1 || at_hand < missing, "{at_hand} parities for {missing}: {result:?}");
    }
}
