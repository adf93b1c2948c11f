//! Contents of messages that can be checked without keeping them.

/// Fills a buffer with bytes that only this key gives.
pub fn fill(key: u64, bytes: &mut [u8]) {
    let mut word = key;
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&word.to_le_bytes());
        word = next(word);
    }
    for (to, from) in chunks.into_remainder().iter_mut().zip(word.to_le_bytes()) {
        *to = from;
    }
}

/// Returns true if a buffer holds what [`fill`] writes.
#[must_use]
pub fn holds(key: u64, bytes: &[u8]) -> bool {
    let mut word = key;
    let chunks = bytes.chunks_exact(8);
    let rest = chunks.remainder();
    let mut same = true;
    for chunk in chunks {
        same &= chunk == word.to_le_bytes();
        word = next(word);
    }
    same && rest.iter().zip(word.to_le_bytes()).all(|(found, wanted)| *found == wanted)
}

fn next(word: u64) -> u64 {
    word.wrapping_add(0x9e37_79b9_7f4a_7c15).rotate_left(5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_tell_messages_apart() {
        let mut bytes = [0; 61];
        fill(7, &mut bytes);
        assert!(holds(7, &bytes));
        assert!(!holds(8, &bytes) && !holds(7 << 32, &bytes));
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(!holds(7, &bytes));
            bytes[at] ^= 1;
        }
    }
}
