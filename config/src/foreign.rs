//! Files that an operator never writes by hand: keys and certificates.
//!
//! Nothing of them is ever quoted, since a private key would then stand on the terminal.

/// Says what a file is that is no text of an operator's; `None` if it may be one.
pub(crate) fn kind(content: &[u8]) -> Option<&'static str> {
    let mut kind = is_der(content).then_some("it is a key or certificate (DER)");
    for line in content.split(|byte| matches!(byte, b'\n' | b'\r')) {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
        if !line.starts_with(b"-----BEGIN ") && !line.starts_with(b"-----END ") {
            continue;
        }
        kind = Some(match () {
            () if line.ends_with(b"PRIVATE KEY-----") => return Some("it is a private key (PEM)"),
            () if line.ends_with(b"CERTIFICATE-----") => "it is a certificate (PEM)",
            () => "it is PEM",
        });
    }
    kind.or_else(|| is_binary(content).then_some("it is no text"))
}

/// Returns true for one ASN.1 SEQUENCE that is as long as the content.
fn is_der(content: &[u8]) -> bool {
    let [0x30, first, rest @ ..] = content else { return false };
    let (count, short) = (usize::from(first & 0x7f), usize::from(*first));
    if first & 0x80 == 0 {
        return rest.len() == short;
    }
    let Some((length, rest)) = rest.split_at_checked(count) else { return false };
    (1..=4).contains(&count)
        && length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)) == rest.len()
}

/// Returns true if there is a byte 0, which is in no text but UTF-16.
fn is_binary(content: &[u8]) -> bool {
    !matches!(content, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) && content.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_certificates_are_called_what_they_are() {
        let long = [&[0x30, 0x82, 1, 0][..], &[b'x'; 256]].concat();
        for (content, told) in [
            (&b"-----BEGIN PRIVATE KEY-----\nMC4CAQ\n"[..], Some("it is a private key (PEM)")),
            (b"MC4CAQ\r\n -----END EC PRIVATE KEY-----\r\n", Some("it is a private key (PEM)")),
            (b"\xef\xbb\xbf-----BEGIN PRIVATE KEY-----", Some("it is a private key (PEM)")),
            (b"-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----", Some("it is a private key (PEM)")),
            (b"Bag Attributes\n-----BEGIN CERTIFICATE-----\n", Some("it is a certificate (PEM)")),
            (b"-----BEGIN CERTIFICATE REQUEST-----\n", Some("it is PEM")),
            (b"\x30\x03\x02\x01\x05", Some("it is a key or certificate (DER)")),
            (&long, Some("it is a key or certificate (DER)")),
            (b"\x7fELF\0", Some("it is no text")),
            (b"# -----BEGIN PRIVATE KEY-----\n[site]\n", None),
            (b"0 = 1\n", None),
            (b"\xff\xfea\0", None),
            (b"", None),
        ] {
            assert_eq!(kind(content), told, "{}", content.escape_ascii());
        }
    }
}
