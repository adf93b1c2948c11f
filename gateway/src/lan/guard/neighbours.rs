//! Bounds what hosts add to the kernel's table of neighbours.
//!
//! Whoever asks for this machine's link-layer address (ARP, neighbour solicitation) is entered
//! there under the name that it asks in, be that on this network or not.
//! The table is one for all interfaces: `gc_thresh3`, by default 1024 for each family.
//! With more of them in 5 s than fit, the kernel finds no next hop any more, on the WAN neither.
//! ```text
//! table arp longhaul-INTERFACE-NUMBER {                                 flags owner
//!     set askers { type ether_addr; size 1024; timeout 1m }
//!     chain neighbours {
//!         type filter hook input priority 0; policy accept;
//!         iifname INTERFACE arp operation request \
//!             update @askers { ether saddr limit rate over 10/second burst 30 packets } drop
//!         iifname INTERFACE arp operation request limit rate over 64/second burst 204 packets drop
//!     }
//! }
//! table inet longhaul-INTERFACE-NUMBER { the same for ICMPv6 types 133, 134, 135, 137 }
//! ```
//! The second limit is in proportion to the table, which has to have room for all hosts.
//! Answers pass: they add nobody.
//! One who asks by many link-layer addresses takes the bound for all from its neighbours, but not
//! from other interfaces.

use std::fs;
use std::io;
use std::time::Duration;

use super::nft::{
    ARP, Attributes, EQUAL, FAMILY, IN_NAME, INET, Key, LINK, NETWORK, PROTOCOL, REGISTER, TRANSPORT, Table,
    UNEQUAL, WORDS, compare, compare_as, drop_it, expression, meta, named, payload,
};

const CHAIN: &str = "neighbours";
const ASKERS: &str = "askers";
/// Link-layer addresses remembered, and for how long.
const MOST_ASKERS: u32 = 1024;
const REMEMBERED: Duration = Duration::from_secs(60);
/// Questions of one link-layer address that pass: so many a second, and so many at once.
const OF_ONE: (u64, u32) = (10, 30);
/// The same for all of the interface, as parts of the table. In 5 s these are half of it, which
/// leaves room for the gateway's own searches.
const RATE_OF_ALL: u32 = 16;
const BURST_OF_ALL: u32 = 5;
/// The kernel begins with so many.
const USUAL_TABLE: u32 = 1024;
const LARGEST_TABLE: u32 = 1 << 20;

/// NF_ARP_IN, NF_INET_LOCAL_IN.
const HOOK_ARP_IN: u32 = 0;
const HOOK_LOCAL_IN: u32 = 1;
const PRIORITY: i32 = 0;
/// `ether_addr`, as `nft` numbers it.
const ETHER: Key = Key { kind: 9, length: 6 };
const REQUEST: [u8; 2] = [0, 1];
const IPV6: u8 = 10;
const ICMPV6: u8 = 58;
/// ICMPv6: router solicitation, and the last one of those that are about neighbours, a redirect.
/// All between but the advertisement of a neighbour add one.
const FIRST_TYPE: u8 = 133;
const LAST_TYPE: u8 = 137;
const ADVERTISEMENT: u8 = 136;
/// Comparisons that order.
const AT_MOST: u32 = 3;
const AT_LEAST: u32 = 5;

/// The tables of both families, for as long as it lives.
#[derive(Debug)]
pub(super) struct Neighbours {
    _tables: [Table; 2],
}

impl Neighbours {
    /// Makes the tables. Needs CAP_NET_ADMIN, and Linux 5.12 with nftables for ARP, too.
    ///
    /// # Errors
    /// The kernel's answer. Then there is no table.
    pub(super) fn install(interface: &str) -> io::Result<Self> {
        let arp = install(
            ARP,
            HOOK_ARP_IN,
            &|list| {
                named(list, IN_NAME, interface, EQUAL);
                payload(list, REGISTER, NETWORK, 6, 2);
                compare(list, &REQUEST);
            },
            interface,
        )?;
        let inet = install(
            INET,
            HOOK_LOCAL_IN,
            &|list| {
                named(list, IN_NAME, interface, EQUAL);
                meta(list, FAMILY);
                compare(list, &[IPV6]);
                meta(list, PROTOCOL);
                compare(list, &[ICMPV6]);
                payload(list, REGISTER, TRANSPORT, 0, 1);
                compare_as(list, AT_LEAST, &[FIRST_TYPE]);
                compare_as(list, AT_MOST, &[LAST_TYPE]);
                compare_as(list, UNEQUAL, &[ADVERTISEMENT]);
            },
            interface,
        )?;
        Ok(Self { _tables: [arp, inet] })
    }
}

/// A table whose chain bounds what goes on after `asks`.
fn install(family: u8, hook: u32, asks: &dyn Fn(&mut Attributes), interface: &str) -> io::Result<Table> {
    let of_all = of_all(family);
    let mut table = Table::new(family, interface)?;
    table.add_chain(CHAIN, hook, PRIORITY)?;
    table.add_set(ASKERS, &ETHER, MOST_ASKERS, REMEMBERED)?;
    table.add_rule(CHAIN, &|list| {
        const UPDATE: u32 = 1;
        asks(list);
        payload(list, WORDS, LINK, 6, 6);
        // With a full set this one does not match.
        expression(list, "dynset", |data| {
            data.text(1, ASKERS).number(3, UPDATE).number(4, WORDS);
            data.nested(7, |each| {
                each.text(1, "limit");
                each.nested(2, |data| beyond(data, OF_ONE));
            });
        });
        drop_it(list);
    })?;
    table.add_rule(CHAIN, &|list| {
        asks(list);
        expression(list, "limit", |data| beyond(data, of_all));
        drop_it(list);
    })?;
    Ok(table)
}

/// Questions of all of an interface that pass: so many a second, and so many at once.
fn of_all(family: u8) -> (u64, u32) {
    let version = if family == ARP { "ipv4" } else { "ipv6" };
    // Only the machine's first name space has the file, for all.
    let bound = fs::read_to_string(format!("/proc/sys/net/{version}/neigh/default/gc_thresh3"));
    let bound = bound.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL_TABLE);
    let bound = bound.clamp(USUAL_TABLE, LARGEST_TABLE);
    (u64::from(bound / RATE_OF_ALL), bound / BURST_OF_ALL)
}

/// Goes on only beyond so many packets a second, and so many at once.
fn beyond(data: &mut Attributes, (rate, burst): (u64, u32)) {
    const SECONDS: u64 = 1;
    const PACKETS: u32 = 0;
    const INVERTED: u32 = 1;
    data.bytes(1, &rate.to_be_bytes()).bytes(2, &SECONDS.to_be_bytes());
    data.number(3, burst).number(4, PACKETS).number(5, INVERTED);
}
