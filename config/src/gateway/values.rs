//! Values that several sections have.

use std::net::SocketAddr;

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

/// An address whose next port exists as well.
pub(super) fn quic_address(value: &DeValue<'_>) -> Result<SocketAddr, Wrong> {
    let address = on_link(socket_address("10.9.0.1:14791")(value)?)?;
    if address.port() == u16::MAX {
        return Err(Wrong::new(
            "has no next port",
            "bulk data uses the next port up, so 65534 is the highest",
        ));
    }
    Ok(address)
}

/// An address that others reach.
pub(super) fn reachable(value: &DeValue<'_>) -> Result<SocketAddr, Wrong> {
    let address = quic_address(value)?;
    if address.ip().is_unspecified() {
        return Err(Wrong::new(
            "is the unspecified address",
            "write the gateway's own address, such as \"10.9.0.2:14791\"",
        ));
    }
    Ok(address)
}
