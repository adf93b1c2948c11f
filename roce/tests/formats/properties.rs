//! Random and damaged input. A failing case prints the input it shrank to, and its seed is kept in
//! `proptest-regressions`, from where it is run first.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use roce::cm::{self, Mad, Timeout};
use roce::ip::{self, Datagram};
use roce::wire::*;

use crate::capture;

fn frames() -> Vec<Vec<u8>> {
    capture::all().iter().flat_map(|one| one.frames().map(<[u8]>::to_vec).collect::<Vec<_>>()).collect()
}

/// A captured frame, cut, extended and with some bytes changed.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<Index>(), any::<u8>()), 0..6);
    (select(frames()), changes, any::<Index>(), vec(any::<u8>(), 0..8), any::<bool>()).prop_map(
        |(mut frame, changes, end, tail, cut)| {
            for (at, value) in changes {
                let at = at.index(frame.len());
                frame[at] = value;
            }
            if cut {
                frame.truncate(end.index(frame.len()));
            }
            frame.extend(tail);
            frame
        },
    )
}

/// Everything that reads bytes, on these bytes; what can be read must come out again as it was.
fn read_everything(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(datagram) = Datagram::parse(bytes) {
        let ident = u16::from_be_bytes([bytes[4], bytes[5]]);
        let mut out = vec![0xa5; bytes.len()];
        let length = ip::emit(&datagram.addressing, ident, datagram.transport, &mut out).unwrap();
        prop_assert_eq!(Datagram::parse(&out[..length]), Ok(datagram));
    }
    for start in [0, 28, 48] {
        let transport = bytes.get(start..).unwrap_or_default();
        let transport = &transport[..transport.len() & !3];
        if let Ok(packet) = Packet::parse(transport) {
            re_emit(&packet)?;
            let _ = format!("{:?}", Mad::parse(&packet));
            let mut changed = transport.to_vec();
            cm::raise_ack_timeout(&mut changed, Timeout::new(20));
            cm::clear_vendor_options(&mut changed);
            prop_assert!(Packet::parse(&changed).is_ok());
        }
    }
    Ok(())
}

fn re_emit(packet: &Packet<'_>) -> Result<(), TestCaseError> {
    let mut out = vec![0xa5; packet.bytes.len()];
    prop_assert_eq!(packet.repr().emit(&mut out), Ok(packet.bytes.len()));
    prop_assert_eq!(&out, &without_reserved(packet));
    Ok(())
}

/// The packet's bytes with what is reserved, and so not kept, set to zero.
fn without_reserved(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = packet.bytes.to_vec();
    bytes[4] &= 0xc0;
    bytes[8] &= 0x80;
    if packet.ext.deth().is_some() {
        bytes[16] = 0;
    }
    if packet.ext.aeth().is_some() {
        bytes[12] &= 0x7f;
    }
    let padding = bytes.len() - usize::from(packet.bth.pad);
    bytes[padding..].fill(0);
    bytes
}

fn header() -> impl Strategy<Value = Bth> {
    let flags = any::<[bool; 5]>();
    let numbers = (any::<u16>(), 0..1u32 << 24, 0..1u32 << 24);
    (select(Opcode::ALL), flags, numbers).prop_map(|(opcode, flags, (pkey, qp, psn))| {
        let [solicited, migreq, fecn, becn, ack_req] = flags;
        let bth = Bth::new(opcode, Qpn::new(qp), Psn::new(psn));
        Bth { solicited, migreq, fecn, becn, ack_req, pkey, ..bth }
    })
}

/// Bytes from the BTH to the padding that begin with a sound header.
fn transport() -> impl Strategy<Value = Vec<u8>> {
    (header(), 0..4u8, vec(any::<u8>(), 0..80)).prop_map(|(bth, pad, rest)| {
        let mut bytes = [0; BTH_LEN];
        Bth { pad, ..bth }.emit(&mut bytes);
        [&bytes, rest.as_slice()].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in vec(any::<u8>(), 0..400)) {
        read_everything(&bytes)?;
    }

    #[test]
    fn damaged_frames(bytes in damaged()) {
        read_everything(&bytes)?;
    }

    #[test]
    fn headers_with_anything_behind(bytes in transport()) {
        if let Ok(packet) = Packet::parse(&bytes) {
            re_emit(&packet)?;
        }
    }

    #[test]
    fn headers_both_ways(bth in header(), pad in 0..4u8) {
        let bth = Bth { pad, ..bth };
        let mut bytes = [0xa5; BTH_LEN];
        bth.emit(&mut bytes);
        prop_assert_eq!(Bth::parse(&bytes), Ok(bth));
    }

    #[test]
    fn syndromes_both_ways(bytes in any::<[u8; 4]>()) {
        let [syndrome, m0, m1, m2] = bytes;
        prop_assert_eq!(Aeth::parse(bytes).to_bytes(), [syndrome & 0x7f, m0, m1, m2]);
    }

    #[test]
    fn psn_distance_inverts_addition(start in 0..1u32 << 24, ahead in 0..1u32 << 23) {
        let (start, ahead_signed) = (Psn::new(start), i32::try_from(ahead).unwrap());
        prop_assert_eq!((start + ahead).distance(start), ahead_signed);
        prop_assert_eq!(start.distance(start + ahead), -ahead_signed);
        prop_assert_eq!(start + ahead - ahead, start);
    }
}
