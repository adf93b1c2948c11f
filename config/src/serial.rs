//! Serial numbers of certificates.

use std::fmt;

/// A certificate's serial number (RFC 5280, 4.1.2.2), without leading zeros.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Serial(Vec<u8>);

impl Serial {
    /// Bytes that a serial number has at most, leading zeros aside.
    pub const LONGEST: usize = 20;

    /// Takes the bytes as they stand in a certificate.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.iter().copied().skip_while(|byte| *byte == 0).collect())
    }

    /// Returns the number's bytes, the most significant first.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads hexadecimal digits, with or without colons between bytes, as browsers and
    /// `openssl x509 -serial` show them; the latter with `serial=` before them.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix("serial=").unwrap_or(text);
        let digits: String = text.chars().filter(|c| *c != ':').collect();
        let is_whole = digits.len().is_multiple_of(2) && (2..=2 * Self::LONGEST).contains(&digits.len());
        if !is_whole || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            return None;
        }
        let byte = |place| u8::from_str_radix(digits.get(place..place + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
        bytes.map(|bytes| Self::new(&bytes))
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("00");
        }
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_the_same_however_it_is_written() {
        let serial = Serial::new(&[0, 0xab, 0xcd, 1]);
        assert_eq!(serial.to_string(), "abcd01");
        for text in ["abcd01", "ABCD01", "00:AB:cd:01", "00abcd01", "serial=ABCD01"] {
            assert_eq!(Serial::parse(text), Some(serial.clone()), "{text}");
        }
        for text in ["", "serial=", "a", "abc", "0x01", "g0", "ab cd", &"ab".repeat(21)] {
            assert_eq!(Serial::parse(text), None, "{text}");
        }
    }
}
