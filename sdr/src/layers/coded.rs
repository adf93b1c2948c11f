//! Parity chunks of a part, by `fec`.
//!
//! `fec` codes packets with their lengths in front. Chunks all have the same length here.
//! So that length's parity is known on both sides, and only the bytes are sent.
//! Chunks beyond what `fec` carries are coded in columns.

use fec::{Code, Decoder, Encoder, MAX_PACKET, PARITY_OVERHEAD, Recovered};

/// Bytes of a column: the largest power of two that `fec` carries.
const COLUMN: usize = 1 << MAX_PACKET.ilog2();

/// Returns the parity chunks of `data`, one after the other. Its last chunk counts as filled with
/// zeros.
pub(super) fn encode(code: &Code, data: &[u8], chunk: usize) -> Vec<u8> {
    let column = chunk.min(COLUMN);
    let mut out = vec![0; code.m() * chunk];
    let mut encoder = Encoder::new(code.clone(), column);
    let mut filled = vec![0; column];
    for at in (0..chunk).step_by(column) {
        encoder.reset();
        for packet in data.chunks(chunk) {
            let piece = packet.get(at..packet.len().min(at + column)).unwrap_or_default();
            filled.fill(0);
            filled.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
            // There are `k` chunks at most, and a column is as long as the encoder allows.
            if encoder.push(&filled).is_err() {
                return out;
            }
        }
        for (parity, out) in out.chunks_mut(chunk).enumerate() {
            let symbol = encoder.parity(parity).and_then(|symbol| symbol.get(PARITY_OVERHEAD..));
            let place = out.get_mut(at..at + column);
            if let (Some(symbol), Some(place)) = (symbol, place) {
                place.iter_mut().zip(symbol).for_each(|(to, from)| *to = *from);
            }
        }
    }
    out
}

/// Recovers the chunks of `data` that are not `there`. False if parity does not suffice.
pub(super) fn decode(
    code: &Code,
    (data, there): (&mut [u8], &[bool]),
    (parity, parity_there): (&[u8], &[bool]),
    chunk: usize,
) -> bool {
    let column = chunk.min(COLUMN);
    let lengths: Vec<[u8; 2]> = (0..code.m()).map(|i| length(code, i, there.len(), column)).collect();
    let (mut decoder, mut recovered) = (Decoder::new(), Recovered::new());
    for at in (0..chunk).step_by(column) {
        let end = at + column;
        // The last chunk is filled up as it was for encoding.
        let pieces: Vec<Option<Vec<u8>>> = data
            .chunks(chunk)
            .zip(there)
            .map(|(packet, there)| {
                there.then(|| {
                    let mut piece = packet.get(at..packet.len().min(end)).unwrap_or_default().to_vec();
                    piece.resize(column, 0);
                    piece
                })
            })
            .collect();
        let symbols: Vec<Option<Vec<u8>>> = parity
            .chunks(chunk)
            .zip(parity_there)
            .zip(&lengths)
            .map(|((packet, there), length)| {
                let piece = packet.get(at..end).filter(|_| *there)?;
                Some([&length[..], piece].concat())
            })
            .collect();
        let pieces: Vec<Option<&[u8]>> = pieces.iter().map(Option::as_deref).collect();
        let symbols: Vec<Option<&[u8]>> = symbols.iter().map(Option::as_deref).collect();
        if decoder.decode(code, &pieces, &symbols, &mut recovered).is_err() {
            return false;
        }
        for (index, piece) in recovered.iter() {
            let packet = data.chunks_mut(chunk).nth(index).and_then(|packet| packet.get_mut(at..));
            if let Some(packet) = packet {
                packet.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
            }
        }
    }
    true
}

/// Returns the first two bytes of parity `i` over `data` packets of `column` bytes each.
fn length(code: &Code, i: usize, data: usize, column: usize) -> [u8; 2] {
    let sum = (0..data).fold(0, |sum, j| sum ^ code.coefficient(i, j));
    (column as u16).to_be_bytes().map(|byte| multiply(sum, byte))
}

/// Multiplies in GF(2^8) modulo 0x11d, the field of `fec`.
fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = (a << 1) ^ if a & 0x80 != 0 { 0x1d } else { 0 };
        b >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_losses_up_to_the_parity_are_recovered() {
        for (code, chunk, chunks, rest) in [
            (Code::mds(8, 3).unwrap(), 64, 8, 64),
            (Code::mds(8, 3).unwrap(), 1 << 16, 5, 70),
            (Code::xor(6, 2).unwrap(), 256, 6, 1),
            (Code::xor(6, 2).unwrap(), 1 << 17, 3, 100_000),
        ] {
            // The interpreter takes minutes for large chunks.
            if cfg!(miri) && chunk > 256 {
                continue;
            }
            let bytes = (chunks - 1) * chunk + rest;
            let data: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
            let parity = encode(&code, &data, chunk);
            assert_eq!(parity.len(), code.m() * chunk);
            // XOR repairs one loss of each residue.
            let lost = [0, chunks - 1].map(|at| if code.kind() == fec::Kind::Xor { at % 2 } else { at });
            let there: Vec<bool> = (0..chunks).map(|at| !lost.contains(&at)).collect();
            let mut damaged = data.clone();
            for at in lost {
                damaged[at * chunk..bytes.min((at + 1) * chunk)].fill(0xee);
            }
            let all = vec![true; code.m()];
            assert!(decode(&code, (&mut damaged, &there), (&parity, &all), chunk));
            assert_eq!(damaged, data);
            let none = vec![false; code.m()];
            assert!(!decode(&code, (&mut damaged, &there), (&parity, &none), chunk));
        }
    }
}
