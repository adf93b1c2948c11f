//! Addresses that hosts and gateways cannot have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use toml::de::DeValue;

use crate::read::{Wrong, text};

/// Kinds of addresses that no RDMA host and no gateway has, each with its IPv4 and IPv6 prefix.
///
/// Others of IANA's special-purpose registries (RFC 6890) are left: private, shared, benchmarking
/// and documentation prefixes serve in a network of one's own, and 192.0.0.0/24 has hosts in it.
const KINDS: [(&str, Option<Ipv4Net>, Option<Ipv6Net>); 7] = [
    (
        "multicast",
        Some(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4)),
        Some(Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8)),
    ),
    (
        "loopback",
        Some(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
        Some(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
    ),
    (
        "link-local",
        Some(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16)),
        Some(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10)),
    ),
    (
        "unspecified",
        Some(Ipv4Net::new_assert(Ipv4Addr::new(0, 0, 0, 0), 8)),
        Some(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128)),
    ),
    ("broadcast", Some(Ipv4Net::new_assert(Ipv4Addr::BROADCAST, 32)), None),
    // RFC 6666.
    ("discard-only", None, Some(Ipv6Net::new_assert(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64))),
    ("IPv4-mapped", None, Some(Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96))),
];

/// Reads an IP prefix.
pub(crate) fn prefix(value: &DeValue<'_>) -> Result<IpNet, Wrong> {
    let text = text(value, "10.0.1.0/24")?;
    if let Ok(address) = text.parse::<IpAddr>() {
        let length = if address.is_ipv4() { 32 } else { 128 };
        return Err(Wrong::new(
            "is not an IP prefix",
            format!("for this one host write \"{address}/{length}\""),
        ));
    }
    let prefix: IpNet = text
        .parse()
        .map_err(|_| Wrong::new("is not an IP prefix", "such as \"10.0.1.0/24\" or \"fd00:1::/64\""))?;
    if prefix.trunc() != prefix {
        return Err(Wrong::new(
            "is a prefix with host bits set",
            format!("did you mean {:?}?", prefix.trunc().to_string()),
        ));
    }
    Ok(prefix)
}

/// Returns the kind of a prefix that holds no address of a host, and why none is there.
pub(crate) fn impossible(prefix: &IpNet) -> Option<(&'static str, &'static str)> {
    let within = |(_, v4, v6): &&(&str, Option<Ipv4Net>, Option<Ipv6Net>)| match prefix {
        IpNet::V4(prefix) => v4.is_some_and(|kind| kind.contains(prefix)),
        IpNet::V6(prefix) => v6.is_some_and(|kind| kind.contains(prefix)),
    };
    let (kind, ..) = KINDS.iter().find(within)?;
    let why = match *kind {
        "multicast" => "groups are listed in `lan.multicast`",
        "loopback" => "no packet with such an address leaves its machine",
        "link-local" => "no router forwards such addresses, and neither does a gateway",
        "unspecified" => "no host has such an address",
        "broadcast" => "it is all hosts of a network, and no router forwards it",
        "discard-only" => "routers drop what goes there (RFC 6666)",
        _ => "packets carry IPv4 addresses as they are: write the IPv4 prefix",
    };
    Some((kind, why))
}

/// A prefix of RDMA hosts.
pub(crate) fn host_prefix(value: &DeValue<'_>) -> Result<IpNet, Wrong> {
    let prefix = prefix(value)?;
    match impossible(&prefix) {
        Some((kind, why)) => Err(Wrong::new(format!("holds {kind} addresses only, and no host"), why)),
        None => Ok(prefix),
    }
}

/// Refuses an address that a gateway cannot have on the link. Loopback serves tests. `is_zoned`:
/// the file names its interface.
pub(crate) fn on_link(address: SocketAddr, is_zoned: bool) -> Result<SocketAddr, Wrong> {
    let ip = address.ip();
    if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return Err(Wrong::new("is not one machine's address", "write the gateway's own, not a group's"));
    }
    if let Some((kind @ ("unspecified" | "discard-only"), why)) = impossible(&IpNet::from(ip))
        && !ip.is_unspecified()
    {
        return Err(Wrong::new(format!("is {kind}, and no machine's address"), why));
    }
    if let SocketAddr::V6(address) = address {
        if let Some(inner) = address.ip().to_ipv4_mapped() {
            let help = format!("write \"{inner}:{}\"", address.port());
            return Err(Wrong::new("is an IPv4 address mapped into IPv6", help));
        }
        if address.ip().is_unicast_link_local() && address.scope_id() == 0 && !is_zoned {
            let help = format!(
                "name this machine's interface: \"[{}%eth1]:{}\" for eth1",
                address.ip(),
                address.port()
            );
            return Err(Wrong::new("is a link-local address without its interface", help));
        }
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_that_hold_no_host_are_known() {
        for (text, kind) in [
            ("224.0.0.0/4", Some("multicast")),
            ("239.1.0.0/16", Some("multicast")),
            ("ff02::/16", Some("multicast")),
            ("127.0.0.0/8", Some("loopback")),
            ("::1/128", Some("loopback")),
            ("169.254.0.0/16", Some("link-local")),
            ("fe80::/64", Some("link-local")),
            ("::ffff:10.0.0.0/104", Some("IPv4-mapped")),
            ("0.0.0.0/8", Some("unspecified")),
            ("::/128", Some("unspecified")),
            ("255.255.255.255/32", Some("broadcast")),
            ("100::/64", Some("discard-only")),
            // Reserved (RFC 1112, section 4), and unicast to Linux: some networks use it inside.
            ("240.0.0.0/4", None),
            // Legal in a network of one's own.
            ("100.64.0.0/10", None),
            ("192.0.0.0/24", None),
            ("192.0.2.0/24", None),
            ("198.18.0.0/15", None),
            ("64:ff9b:1::/48", None),
            ("2001:db8::/32", None),
            // More than what is reserved.
            ("224.0.0.0/3", None),
            ("10.0.0.0/8", None),
            ("fd00::/8", None),
            ("0.0.0.0/0", None),
            ("::/0", None),
            ("128.0.0.0/1", None),
        ] {
            assert_eq!(impossible(&text.parse().unwrap()).map(|(kind, _)| kind), kind, "{text}");
        }
    }

    #[test]
    fn a_link_local_address_needs_its_interface() {
        let judged = |text: &str| on_link(text.parse().unwrap(), false).is_ok();
        assert!(judged("[fe80::1%3]:14791") && judged("10.9.0.1:14791") && judged("127.0.0.1:14791"));
        // Any of a machine's own addresses.
        assert!(judged("0.0.0.0:14791") && judged("[::]:14791"));
        for text in ["0.0.0.1:14791", "255.255.255.255:14791", "[100::1]:14791"] {
            assert!(!judged(text), "{text}");
        }
        assert!(on_link("[fe80::1]:14791".parse().unwrap(), true).is_ok());
        for text in ["[fe80::1]:14791", "[::ffff:10.9.0.1]:14791", "239.1.1.1:14791", "[ff02::1%3]:14791"] {
            assert!(!judged(text), "{text}");
        }
    }
}
