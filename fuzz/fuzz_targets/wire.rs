//! Transport headers: whatever comes is read or refused, and what was read is written as it came.
#![no_main]

use libfuzzer_sys::fuzz_target;
use roce::wire::{Bth, Packet, PathMtu, Repr};

fuzz_target!(|input: &[u8]| {
    let Ok(packet) = Packet::parse(input) else { return };
    let opcode = packet.bth.opcode;
    let (headers, padding) = (opcode.layout().len(), usize::from(packet.bth.pad));
    assert_eq!(packet.bytes, input);
    assert_eq!(12 + headers + packet.payload.len() + padding, input.len());
    let repr = packet.repr();
    let mut out = vec![0xaa; repr.buffer_len()];
    let length = repr.emit(&mut out).expect("what was read can be written");
    assert_eq!(length, out.len());
    let again = Packet::parse(&out).expect("what was written can be read");
    assert_eq!(again.repr(), Repr { bth: Bth { pad: again.bth.pad, ..repr.bth }, ..repr });
    assert!(repr.emit(&mut out[1..]).is_err());
    if let Some(reth) = packet.ext.reth() {
        for bytes in [256, 512, 1024, 2048, 4096] {
            let mtu = PathMtu::from_bytes(bytes).expect("a path MTU");
            let span = mtu.psn_span(reth.dma_length);
            let (span, mtu) = (u64::from(span), u64::from(mtu.bytes()));
            let length = u64::from(reth.dma_length);
            assert!(span * mtu >= length && (span - 1) * mtu <= length);
        }
    }
    let _ = (packet.is_multicast(), packet.ext.aeth(), packet.ext.deth());
    assert!(!(opcode.is_request() && packet.ext.aeth().is_some()));
});
