//! Values that several sections have.

use std::net::{IpAddr, SocketAddr};

use toml::de::DeValue;

use crate::hosts::on_link;
use crate::read::{Wrong, socket_address, text};

/// Returns true if a text can be a site's name: a DNS label in lower case, 1 to 63 letters, digits
/// and hyphens, since it stands in the certificate.
pub fn is_site_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len())
        && name.chars().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

pub(super) fn site_name(value: &DeValue<'_>) -> Result<String, Wrong> {
    let name = text(value, "a")?;
    if !is_site_name(name) {
        return Err(Wrong::new(
            "is not a site name",
            "1 to 63 lower-case letters, digits and hyphens, starting and ending with a letter or digit, such as \"zurich-1\"",
        ));
    }
    Ok(name.to_owned())
}

/// Returns true for a name that Linux takes for an interface.
pub(super) fn is_interface_name(name: &str) -> bool {
    let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    (1..=15).contains(&name.len()) && !name.contains(bad) && name != "." && name != ".."
}

/// An address on the link, with the name of its interface if the file has that: "[fe80::1%eth1]:1".
type Zoned = (SocketAddr, Option<String>);

/// Takes the name of an interface out of an address, where other digits would be its index.
fn by_name(text: &str) -> Option<(SocketAddr, &str)> {
    let (address, rest) = text.split_once('%')?;
    let (zone, port) = rest.split_once(']')?;
    // An index stays where it is.
    let is_index = zone.parse::<u32>().is_ok();
    let address = format!("{address}]{port}").parse().ok().filter(|_| !is_index)?;
    Some((address, zone))
}

fn zoned(value: &DeValue<'_>) -> Result<Zoned, Wrong> {
    const EXAMPLE: &str = "10.9.0.1:14791";
    let Some((address, zone)) = by_name(text(value, EXAMPLE)?) else {
        let address = socket_address(EXAMPLE)(value)?;
        return Ok((on_link(address, false)?, None));
    };
    if !is_interface_name(zone) {
        let help = "behind the % stands the interface's name or number: such as \"[fe80::1%eth1]:14791\"";
        return Err(Wrong::new("names no interface", help));
    }
    if !matches!(address.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local()) {
        let help = format!("only link-local addresses need one: write \"{address}\"");
        return Err(Wrong::new("has an interface, and is no link-local address", help));
    }
    if address.port() == 0 {
        return Err(Wrong::new("has port 0", format!("name the port, such as {EXAMPLE:?}")));
    }
    Ok((on_link(address, true)?, Some(zone.to_owned())))
}

/// An address whose next port exists as well.
pub(super) fn quic_address(value: &DeValue<'_>) -> Result<Zoned, Wrong> {
    let (address, zone) = zoned(value)?;
    if address.port() == u16::MAX {
        return Err(Wrong::new(
            "has no next port",
            "bulk data uses the next port up, so 65534 is the highest",
        ));
    }
    Ok((address, zone))
}

/// An address that others reach.
pub(super) fn reachable(value: &DeValue<'_>) -> Result<Zoned, Wrong> {
    let (address, zone) = quic_address(value)?;
    if address.ip().is_unspecified() {
        return Err(Wrong::new(
            "is the unspecified address",
            "write the gateway's own address, such as \"10.9.0.2:14791\"",
        ));
    }
    Ok((address, zone))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(String, Option<String>)> {
        let value = DeValue::String(text.into());
        let (address, zone) = reachable(&value).ok()?;
        Some((address.to_string(), zone))
    }

    #[test]
    fn a_link_local_address_has_its_interface_by_name_or_number() {
        let found = |address: &str, zone: Option<&str>| Some((address.to_owned(), zone.map(str::to_owned)));
        assert_eq!(read("[fe80::1%wan0]:14791"), found("[fe80::1]:14791", Some("wan0")));
        assert_eq!(read("[fe80::1%3]:14791"), found("[fe80::1%3]:14791", None));
        assert_eq!(read("[fe80::1%eth0.100]:14791"), found("[fe80::1]:14791", Some("eth0.100")));
        assert_eq!(read("[fe80::1%3com]:14791"), found("[fe80::1]:14791", Some("3com")));
        assert_eq!(read("[fd00::1]:14791"), found("[fd00::1]:14791", None));
        assert_eq!(read("10.9.0.1:14791"), found("10.9.0.1:14791", None));
        for wrong in [
            "[fe80::1]:14791",
            "[fe80::1%]:14791",
            "[fe80::1%wan0]:0",
            "[fe80::1%wan0]:65535",
            "[fe80::1%wan0]",
            "[fe80::1%wan0:14791",
            "[fe80::1%a b]:14791",
            "[fe80::1%an-interface-too-long]:14791",
            "[fd00::1%wan0]:14791",
            "10.9.0.1%wan0:14791",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
