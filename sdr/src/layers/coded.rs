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
    for at in (0..chunk).step_by(column) {
        encoder.reset();
        let short = filled(data, chunk, at, column);
        for packet in data.chunks(chunk) {
            // There are `k` chunks at most, and a column is as long as the encoder allows.
            if encoder.push(packet.get(at..at + column).unwrap_or(&short)).is_err() {
                return out;
            }
        }
        for (parity, out) in out.chunks_mut(chunk).enumerate() {
            let symbol = encoder.parity(parity).and_then(|symbol| symbol.get(PARITY_OVERHEAD..));
            if let (Some(symbol), Some(place)) = (symbol, out.get_mut(at..at + column)) {
                copy(place, symbol);
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
    // Parity's lengths are the same in each column, so they are written once.
    let mut symbols = vec![0; code.m() * (PARITY_OVERHEAD + column)];
    for (i, symbol) in symbols.chunks_mut(PARITY_OVERHEAD + column).enumerate() {
        copy(symbol, &length(code, i, there.len(), column));
    }
    let (mut decoder, mut recovered) = (Decoder::new(), Recovered::new());
    for at in (0..chunk).step_by(column) {
        for (symbol, packet) in symbols.chunks_mut(PARITY_OVERHEAD + column).zip(parity.chunks(chunk)) {
            if let (Some(place), Some(piece)) =
                (symbol.get_mut(PARITY_OVERHEAD..), packet.get(at..at + column))
            {
                copy(place, piece);
            }
        }
        let short = filled(data, chunk, at, column);
        let pieces: Vec<Option<&[u8]>> = data
            .chunks(chunk)
            .zip(there)
            .map(|(packet, there)| there.then(|| packet.get(at..at + column).unwrap_or(&short)))
            .collect();
        let known: Vec<Option<&[u8]>> = symbols
            .chunks(PARITY_OVERHEAD + column)
            .zip(parity_there)
            .map(|(symbol, there)| there.then_some(symbol))
            .collect();
        if decoder.decode(code, &pieces, &known, &mut recovered).is_err() {
            return false;
        }
        for (index, piece) in recovered.iter() {
            let packet = data.chunks_mut(chunk).nth(index).and_then(|packet| packet.get_mut(at..));
            if let Some(packet) = packet {
                copy(packet, piece);
            }
        }
    }
    true
}

/// Returns the column at `at` of the last chunk, filled with zeros; nothing if it is not short.
fn filled(data: &[u8], chunk: usize, at: usize, column: usize) -> Vec<u8> {
    let last = data.chunks(chunk).next_back().unwrap_or_default();
    if last.len() >= at + column {
        return Vec::new();
    }
    let mut short = last.get(at..).unwrap_or_default().to_vec();
    short.resize(column, 0);
    short
}

/// Copies as much as both have.
fn copy(to: &mut [u8], from: &[u8]) {
    let len = to.len().min(from.len());
    if let (Some(to), Some(from)) = (to.get_mut(..len), from.get(..len)) {
        to.copy_from_slice(from);
    }
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
