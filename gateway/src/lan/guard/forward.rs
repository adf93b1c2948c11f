//! Keeps the kernel from forwarding what policy routing rules cannot tell: RoCE that comes by other
//! interfaces, and fragments.
//!
//! A table of nftables that this process owns. Nobody else can change or flush it, and it goes with
//! the process.
//! Its socket's number (mostly the process's) stands in its name, so that one that takes over from
//! another has a table from the start:
//! ```text
//! table inet longhaul-INTERFACE-NUMBER {                                flags owner
//!     set fragments4, fragments6 { source . destination . identification; timeout 30s }
//!     chain forward {
//!         type filter hook forward priority -300; policy accept;
//!         iifname INTERFACE ip daddr PREFIX udp dport 4791 add @fragments4 {...}
//!         iifname INTERFACE ip daddr PREFIX udp dport 4791 drop     hosts' packets
//!         oifname INTERFACE ip saddr PREFIX udp dport 4791 drop     in remote hosts' names
//!         iifname INTERFACE ip frag-off & 0x1fff != 0 ... @fragments4 drop
//!         iifname != INTERFACE sdifname != INTERFACE oifname INTERFACE \
//!             udp dport 4791 drop
//!     }
//! }
//! ```
//! Each rule that wants `iifname` stands there once more with `sdifname`.
//! For a packet of an interface in a VRF, `iifname` is the VRF, and `sdifname` the interface.
//! The first three stand there for each remote prefix. They see first fragments as well: those have
//! the port.
//! A later one has none. It is known by the first one's addresses and identification, so a host
//! whose fragments overtake one another may lose some of them to the WAN unsealed; likewise one
//! that begins more than [`FRAGMENTED`] packets in 30 s.
//! To the hosts, later fragments pass: without the first one nobody can put the packet together.

use std::io;
use std::time::Duration;

use ipnet::IpNet;

use super::nft::{
    Attributes, EQUAL, FAMILY, IN_NAME, INET, Key, NETWORK, PROTOCOL, REGISTER, TRANSPORT, Table, UNEQUAL,
    WORDS, compare, compare_as, drop_it, expression, fragment_header, masked, meta, named, payload,
};
use crate::lan::ROCE_PORT;
use crate::lan::family::Family;

const CHAIN: &str = "forward";
const HOOK_FORWARD: u32 = 2;
/// Before whatever an operator's firewall accepts.
const PRIORITY: i32 = -300;
const UDP: u8 = 17;
/// Key of `meta`: the interface that it is to leave by.
const OUT_NAME: u32 = 7;
/// Key of `meta`: the interface in a VRF that it came by.
const PART_NAME: u32 = 34;
/// The keys by which a packet may be known for one of the interface.
const CAME_BY: [u32; 2] = [IN_NAME, PART_NAME];
/// Packets in fragments remembered for each family, and for how long: no receiver waits longer for
/// the rest.
const FRAGMENTED: u32 = 65_536;
const REMEMBERED: Duration = Duration::from_secs(30);

/// The table, for as long as it lives.
#[derive(Debug)]
pub(super) struct Forward {
    _table: Table,
}

impl Forward {
    /// Makes the table. Needs CAP_NET_ADMIN, and Linux 5.12 with nftables.
    ///
    /// # Errors
    /// The kernel's answer. Then there is no table.
    pub(super) fn install(interface: &str, remote: &[IpNet]) -> io::Result<Self> {
        let mut table = Table::new(INET, interface)?;
        table.add_chain(CHAIN, HOOK_FORWARD, PRIORITY)?;
        for family in Family::ALL {
            let key = Key { kind: family.key_type(), length: family.key_length() };
            table.add_set(family.set(), &key, FRAGMENTED, REMEMBERED)?;
        }
        add_rules(&mut table, interface, remote)?;
        Ok(Self { _table: table })
    }
}

fn add_rules(table: &mut Table, interface: &str, remote: &[IpNet]) -> io::Result<()> {
    let mut push = |fill: &dyn Fn(&mut Attributes)| table.add_rule(CHAIN, fill);
    for prefix in remote {
        let family = Family::of(prefix);
        for by in CAME_BY {
            // By itself: with a full set this one does not match.
            push(&|list| {
                hosts_packets(list, (by, interface), prefix);
                family.load_key(list);
                expression(list, "dynset", |data| {
                    data.text(1, family.set()).number(3, 0).number(4, WORDS);
                });
            })?;
            push(&|list| {
                hosts_packets(list, (by, interface), prefix);
                drop_it(list);
            })?;
        }
        push(&|list| {
            named(list, OUT_NAME, interface, EQUAL);
            within(list, prefix, family.source());
            roce(list);
            drop_it(list);
        })?;
    }
    for (family, by) in Family::ALL.into_iter().flat_map(|family| CAME_BY.map(|by| (family, by))) {
        push(&|list| {
            named(list, by, interface, EQUAL);
            meta(list, FAMILY);
            compare(list, &[family.number()]);
            family.is_later_fragment(list);
            family.load_key(list);
            expression(list, "lookup", |data| {
                data.text(1, family.set()).number(2, WORDS);
            });
            drop_it(list);
        })?;
    }
    push(&|list| {
        CAME_BY.iter().for_each(|by| named(list, *by, interface, UNEQUAL));
        named(list, OUT_NAME, interface, EQUAL);
        roce(list);
        drop_it(list);
    })?;
    Ok(())
}

impl Family {
    /// NFPROTO_IPV4, NFPROTO_IPV6.
    fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    /// The set of packets that come in fragments.
    fn set(self) -> &'static str {
        match self {
            Self::V4 => "fragments4",
            Self::V6 => "fragments6",
        }
    }

    /// Bytes of an address.
    fn address(self) -> u32 {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }

    /// Where the source stands in the header; the destination follows.
    fn source(self) -> u32 {
        match self {
            Self::V4 => 12,
            Self::V6 => 8,
        }
    }

    fn destination(self) -> u32 {
        self.source() + self.address()
    }

    /// The type that `nft` shows, as it numbers them: two addresses and a mark of 32 bits. The
    /// kernel leaves it to who reads it.
    fn key_type(self) -> u32 {
        const MARK: u32 = 19;
        let address = match self {
            Self::V4 => 7,
            Self::V6 => 8,
        };
        address << 12 | address << 6 | MARK
    }

    fn key_length(self) -> u32 {
        2 * self.address() + 4
    }

    /// Loads addresses and identification.
    fn load_key(self, list: &mut Attributes) {
        let words = self.address() / 4;
        payload(list, WORDS, NETWORK, self.source(), self.address());
        payload(list, WORDS + words, NETWORK, self.destination(), self.address());
        match self {
            Self::V4 => payload(list, WORDS + 2 * words, NETWORK, 4, 2),
            Self::V6 => fragment_header(list, WORDS + 2 * words, 4, 4),
        }
    }

    /// Goes on only for fragments that are not the first.
    fn is_later_fragment(self, list: &mut Attributes) {
        let mask = match self {
            Self::V4 => {
                payload(list, REGISTER, NETWORK, 6, 2);
                [0x1f, 0xff]
            }
            Self::V6 => {
                fragment_header(list, REGISTER, 2, 2);
                [0xff, 0xf8]
            }
        };
        masked(list, &mask);
        compare_as(list, UNEQUAL, &[0, 0]);
    }
}

/// Goes on only for what hosts send to RoCE's port of a remote host.
fn hosts_packets(list: &mut Attributes, (by, interface): (u32, &str), prefix: &IpNet) {
    named(list, by, interface, EQUAL);
    within(list, prefix, Family::of(prefix).destination());
    roce(list);
}

/// Goes on only if the address at this place of the header is in the prefix.
fn within(list: &mut Attributes, prefix: &IpNet, offset: u32) {
    let (address, mask): (Vec<u8>, Vec<u8>) = match prefix {
        IpNet::V4(net) => (net.network().octets().into(), net.netmask().octets().into()),
        IpNet::V6(net) => (net.network().octets().into(), net.netmask().octets().into()),
    };
    let family = Family::of(prefix);
    meta(list, FAMILY);
    compare(list, &[family.number()]);
    payload(list, REGISTER, NETWORK, offset, family.address());
    masked(list, &mask);
    compare(list, &address);
}

/// Goes on only for UDP to RoCE's port.
fn roce(list: &mut Attributes) {
    meta(list, PROTOCOL);
    compare(list, &[UDP]);
    payload(list, REGISTER, TRANSPORT, 2, 2);
    compare(list, &ROCE_PORT.to_be_bytes());
}
