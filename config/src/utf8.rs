//! Bytes of a file as text.

/// Takes the bytes of a file that should be text.
///
/// # Errors
/// A line that says where they are no UTF-8, and what would be right.
pub fn utf8(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| {
        let (right, bytes) = (error.utf8_error().valid_up_to(), error.as_bytes());
        if let [0xff, 0xfe, ..] | [0xfe, 0xff, ..] = bytes {
            return "it is UTF-16 text: save it as UTF-8".to_owned();
        }
        let (before, rest) = bytes.split_at(right.min(bytes.len()));
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let place = before.rsplit(|byte| *byte == b'\n').next().map_or(0, <[u8]>::len) + 1;
        let byte = rest.first().copied().unwrap_or_default();
        format!("byte {place} of line {line} is {byte:#04x}, which is no UTF-8: save it as UTF-8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_utf_8_is_told_with_its_place() {
        assert_eq!(utf8("\u{fc}\n".into()), Ok("\u{fc}\n".to_owned()));
        for (bytes, told) in [
            (&b"a = 1\nb = \"\xfc\"\n"[..], "byte 6 of line 2 is 0xfc, which is no UTF-8: save it as UTF-8"),
            (b"\xc3\xbc\xe9", "byte 3 of line 1 is 0xe9, which is no UTF-8: save it as UTF-8"),
            (b"\n\xc3", "byte 1 of line 2 is 0xc3, which is no UTF-8: save it as UTF-8"),
            (b"\xff\xfea\0", "it is UTF-16 text: save it as UTF-8"),
        ] {
            assert_eq!(utf8(bytes.to_vec()), Err(told.to_owned()));
        }
    }
}
