//! Ports of a file that the kernel may give to any program that asks for none in particular.

use std::fs;
use std::ops::RangeInclusive;

use config::Gateway;

/// Returns them, in order. A range that the system does not tell is none.
pub(super) fn at_risk(gateway: &Gateway) -> Vec<u16> {
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    among(&ports_of(gateway), &read("ip_local_port_range"), &read("ip_local_reserved_ports"))
}

fn ports_of(gateway: &Gateway) -> Vec<u16> {
    let lanes = (0..gateway.most_thread_pairs()).flat_map(|pair| gateway.wan.lanes_of(pair));
    let admin = gateway.admin.as_ref().and_then(|admin| admin.listen);
    let all = [gateway.wan.listen].into_iter().chain(lanes).chain(admin);
    let mut ports: Vec<_> = all.map(|address| address.port()).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// `given`: two numbers. `reserved`: numbers and ranges, with commas between.
fn among(ports: &[u16], given: &str, reserved: &str) -> Vec<u16> {
    let mut bounds = given.split_whitespace().map_while(|bound| bound.parse().ok());
    let Some((low, high)) = bounds.next().zip(bounds.next()) else { return Vec::new() };
    let reserved: Vec<_> = reserved.split(',').filter_map(range).collect();
    let is_at_risk =
        |port: &u16| (low..=high).contains(port) && !reserved.iter().any(|range| range.contains(port));
    ports.iter().copied().filter(is_at_risk).collect()
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let text = text.trim();
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    Some(low.parse().ok()?..=high.parse().ok()?)
}

/// Shows ports as `net.ipv4.ip_local_reserved_ports` has them.
pub(super) fn shown(ports: &[u16]) -> String {
    let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
    for &port in ports {
        match ranges.last_mut() {
            Some(last) if last.end().checked_add(1) == Some(port) => *last = *last.start()..=port,
            _ => ranges.push(port..=port),
        }
    }
    let one = |range: &RangeInclusive<u16>| match range.start() == range.end() {
        true => range.start().to_string(),
        false => format!("{}-{}", range.start(), range.end()),
    };
    ranges.iter().map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_at_risk_within_the_range_unless_they_are_reserved() {
        let ports = [9464, 14791, 14792, 14793, 14800];
        let risk = |given, reserved| shown(&among(&ports, given, reserved));
        assert_eq!(risk("32768\t60999\n", "\n"), "");
        assert_eq!(risk("1024\t65535\n", "\n"), "9464,14791-14793,14800");
        assert_eq!(risk("10000 65535", ""), "14791-14793,14800");
        assert_eq!(risk("1024 65535", "80,9464,14791-14799\n"), "14800");
        assert_eq!(risk("1024 65535", "14000-15000"), "9464");
        for unknown in ["", "1024", "x y"] {
            assert_eq!(risk(unknown, ""), "", "{unknown}");
        }
        assert_eq!(shown(&[65535]), "65535");
    }
}
