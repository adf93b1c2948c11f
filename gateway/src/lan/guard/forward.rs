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
//!         iifname != INTERFACE oifname INTERFACE udp dport 4791 drop
//!     }
//! }
//! ```
//! The first three stand there for each remote prefix. They see first fragments as well: those have
//! the port.
//! A later one has none. It is known by the first one's addresses and identification, so a host
//! whose fragments overtake one another may lose some of them to the WAN unsealed; likewise one
//! that begins more than [`FRAGMENTED`] packets in 30 s.
//! To the hosts, later fragments pass: without the first one nobody can put the packet together.

use std::io;
use std::time::Duration;

use ipnet::IpNet;
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST};
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr};
use rustix::io::Errno;

use crate::lan::ROCE_PORT;

/// NFNL_SUBSYS_NFTABLES: nftables' number among netfilter's subsystems.
const NFTABLES: u8 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = (NFTABLES as u16) << 8;
const DELETE_TABLE: u16 = NEW_TABLE | 2;
const NEW_CHAIN: u16 = NEW_TABLE | 3;
const NEW_RULE: u16 = NEW_TABLE | 6;
const NEW_SET: u16 = NEW_TABLE | 9;
/// The family of tables that see both IPv4 and IPv6.
const INET: u8 = 1;
/// A table with this flag belongs to the socket that made it.
const OWNER: u32 = 2;
const CHAIN: &str = "forward";
const HOOK_FORWARD: u32 = 2;
/// Before whatever an operator's firewall accepts.
const PRIORITY: i32 = -300;
const ACCEPT: u32 = 1;
const DROP: u32 = 0;
const UDP: u8 = 17;
/// Keys of `meta`: the interfaces' names, IPv4 or IPv6, the protocol.
const IN_NAME: u32 = 6;
const OUT_NAME: u32 = 7;
const FAMILY: u32 = 15;
const PROTOCOL: u32 = 16;
/// Registers: one of 16 bytes, and the first of those of 4 bytes, which share its place.
const REGISTER: u32 = 1;
const WORDS: u32 = 8;
const EQUAL: u32 = 0;
const UNEQUAL: u32 = 1;
/// Where payload is counted from.
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
/// Packets in fragments remembered for each family, and for how long: no receiver waits longer for
/// the rest.
const FRAGMENTED: u32 = 65_536;
const REMEMBERED: Duration = Duration::from_secs(30);
const FRAGMENT_HEADER: u8 = 44;

/// The table, for as long as it lives.
#[derive(Debug)]
pub(super) struct Forward {
    socket: Socket,
    sequence: u32,
    table: String,
}

impl Forward {
    /// Makes the table. Needs CAP_NET_ADMIN, and Linux 5.12 with nftables.
    ///
    /// # Errors
    /// The kernel's answer. Then there is no table.
    pub(super) fn install(interface: &str, remote: &[IpNet]) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        let own = socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let mut forward =
            Self { socket, sequence: 0, table: format!("longhaul-{interface}-{}", own.port_number()) };
        let mut table = Attributes::default();
        table.text(1, &forward.table).number(2, OWNER);
        forward.transact(NEW_TABLE, NLM_F_CREATE, &table)?;
        let mut chain = Attributes::default();
        chain.text(1, &forward.table).text(3, CHAIN);
        chain.nested(4, |hook| {
            hook.number(1, HOOK_FORWARD).bytes(2, &PRIORITY.to_be_bytes());
        });
        chain.number(5, ACCEPT).text(7, "filter");
        forward.transact(NEW_CHAIN, NLM_F_CREATE, &chain)?;
        for family in Family::ALL {
            forward.transact(NEW_SET, NLM_F_CREATE, &forward.set(family))?;
        }
        for rule in forward.rules(interface, remote) {
            forward.transact(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, &rule)?;
        }
        Ok(forward)
    }

    fn rules(&self, interface: &str, remote: &[IpNet]) -> Vec<Attributes> {
        let mut rules = Vec::new();
        let mut push = |fill: &dyn Fn(&mut Attributes)| {
            let mut rule = Attributes::default();
            rule.text(1, &self.table).text(2, CHAIN);
            rule.nested(4, fill);
            rules.push(rule);
        };
        for prefix in remote {
            let family = Family::of(prefix);
            // By itself: with a full set this one does not match.
            push(&|list| {
                hosts_packets(list, interface, prefix);
                family.load_key(list);
                expression(list, "dynset", |data| {
                    data.text(1, family.set()).number(3, 0).number(4, WORDS);
                });
            });
            push(&|list| {
                hosts_packets(list, interface, prefix);
                drop_it(list);
            });
            push(&|list| {
                named(list, OUT_NAME, interface, EQUAL);
                within(list, prefix, family.source());
                roce(list);
                drop_it(list);
            });
        }
        for family in Family::ALL {
            push(&|list| {
                named(list, IN_NAME, interface, EQUAL);
                meta(list, FAMILY);
                compare(list, &[family.number()]);
                family.is_later_fragment(list);
                family.load_key(list);
                expression(list, "lookup", |data| {
                    data.text(1, family.set()).number(2, WORDS);
                });
                drop_it(list);
            });
        }
        push(&|list| {
            named(list, IN_NAME, interface, UNEQUAL);
            named(list, OUT_NAME, interface, EQUAL);
            roce(list);
            drop_it(list);
        });
        rules
    }

    fn set(&self, family: Family) -> Attributes {
        const TIMEOUT: u32 = 0x10;
        const BY_RULES: u32 = 0x20;
        let mut set = Attributes::default();
        set.text(1, &self.table).text(2, family.set()).number(3, TIMEOUT | BY_RULES);
        set.number(4, family.key_type()).number(5, family.key_length());
        set.nested(9, |description| {
            description.number(1, FRAGMENTED);
        });
        // Any number but 0: it is for messages of the same transaction.
        set.number(10, 1);
        let timeout = u64::try_from(REMEMBERED.as_millis()).unwrap_or(u64::MAX);
        set.bytes(11, &timeout.to_be_bytes());
        set
    }

    fn remove(&mut self) -> io::Result<()> {
        let mut table = Attributes::default();
        table.text(1, &self.table);
        self.transact(DELETE_TABLE, 0, &table)
    }

    /// Sends one message as a transaction of its own, and waits for the kernel's word on it.
    fn transact(&mut self, kind: u16, flags: u16, body: &Attributes) -> io::Result<()> {
        self.sequence += 1;
        let mut bytes = Vec::new();
        let batch = [0, 0, 0, NFTABLES];
        message(&mut bytes, BATCH_BEGIN, NLM_F_REQUEST, self.sequence, batch, &[]);
        let flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        message(&mut bytes, kind, flags, self.sequence, [INET, 0, 0, 0], &body.0);
        message(&mut bytes, BATCH_END, NLM_F_REQUEST, self.sequence, batch, &[]);
        self.socket.send(&bytes, 0)?;
        loop {
            match self.socket.recv_from_full() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok((answer, _)) => {
                    if let Some(result) = self.read(&answer) {
                        return result;
                    }
                }
            }
        }
    }

    /// The kernel's word in a datagram: an error, which is 0 for an acknowledgement.
    fn read(&self, mut answer: &[u8]) -> Option<io::Result<()>> {
        const ERROR: u16 = 2;
        while let [l0, l1, l2, l3, t0, t1, _, _, s0, s1, s2, s3, _, _, _, _, rest @ ..] = answer {
            let length = u32::from_ne_bytes([*l0, *l1, *l2, *l3]) as usize;
            let is_ours = u32::from_ne_bytes([*s0, *s1, *s2, *s3]) == self.sequence;
            if let (ERROR, true, Some(code)) = (u16::from_ne_bytes([*t0, *t1]), is_ours, rest.first_chunk()) {
                return Some(match i32::from_ne_bytes(*code) {
                    0 => Ok(()),
                    code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                });
            }
            answer = answer.get(length.max(16).next_multiple_of(4)..).unwrap_or_default();
        }
        None
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        // Otherwise the kernel does it when the socket is closed, here and in whatever was forked
        // meanwhile.
        let _ = self.remove();
    }
}

/// True where the kernel has no nftables, or too old ones.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::NOENT | Errno::INVAL | Errno::AFNOSUPPORT)
    )
}

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    const ALL: [Self; 2] = [Self::V4, Self::V6];

    fn of(prefix: &IpNet) -> Self {
        match prefix {
            IpNet::V4(_) => Self::V4,
            IpNet::V6(_) => Self::V6,
        }
    }

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
fn hosts_packets(list: &mut Attributes, interface: &str, prefix: &IpNet) {
    named(list, IN_NAME, interface, EQUAL);
    within(list, prefix, Family::of(prefix).destination());
    roce(list);
}

/// Goes on only if the interface, by which it came or is to leave, is called so, or is not.
fn named(list: &mut Attributes, key: u32, interface: &str, comparison: u32) {
    let mut name = [0; 16];
    name.iter_mut().zip(interface.bytes().take(15)).for_each(|(to, from)| *to = from);
    meta(list, key);
    compare_as(list, comparison, &name);
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

fn drop_it(list: &mut Attributes) {
    expression(list, "immediate", |data| {
        data.number(1, 0);
        data.nested(2, |value| {
            value.nested(2, |verdict| {
                verdict.number(1, DROP);
            });
        });
    });
}

/// Loads what is known of the packet besides its bytes into register 1.
fn meta(list: &mut Attributes, key: u32) {
    expression(list, "meta", |data| {
        data.number(1, REGISTER).number(2, key);
    });
}

/// Loads bytes of the packet, from its network or transport header on, into a register.
fn payload(list: &mut Attributes, register: u32, base: u32, offset: u32, length: u32) {
    expression(list, "payload", |data| {
        data.number(1, register).number(2, base).number(3, offset).number(4, length);
    });
}

/// The same of IPv6's fragment header; goes on only if there is one.
fn fragment_header(list: &mut Attributes, register: u32, offset: u32, length: u32) {
    expression(list, "exthdr", |data| {
        data.number(1, register).bytes(2, &[FRAGMENT_HEADER]).number(3, offset).number(4, length);
    });
}

/// Keeps these bits of register 1.
fn masked(list: &mut Attributes, mask: &[u8]) {
    expression(list, "bitwise", |data| {
        data.number(1, REGISTER).number(2, REGISTER);
        data.number(3, u32::try_from(mask.len()).unwrap_or_default());
        data.nested(4, |value| value.bytes_only(1, mask));
        data.nested(5, |value| value.bytes_only(1, &vec![0; mask.len()]));
    });
}

/// Goes on only if register 1 holds this.
fn compare(list: &mut Attributes, value: &[u8]) {
    compare_as(list, EQUAL, value);
}

fn compare_as(list: &mut Attributes, comparison: u32, value: &[u8]) {
    expression(list, "cmp", |data| {
        data.number(1, REGISTER).number(2, comparison);
        data.nested(3, |wanted| wanted.bytes_only(1, value));
    });
}

fn expression(list: &mut Attributes, name: &str, fill: impl FnOnce(&mut Attributes)) {
    list.nested(1, |element| {
        element.text(1, name);
        element.nested(2, fill);
    });
}

/// Netlink attributes, one after the other.
#[derive(Debug, Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn bytes_only(&mut self, kind: u16, value: &[u8]) {
        self.bytes(kind, value);
    }

    fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes)) {
        const NESTED: u16 = 0x8000;
        let mut inner = Attributes::default();
        fill(&mut inner);
        self.bytes(NESTED | kind, &inner.0);
    }
}

fn message(to: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, head: [u8; 4], body: &[u8]) {
    let length = u32::try_from(16 + head.len() + body.len()).unwrap_or(u32::MAX);
    to.extend_from_slice(&length.to_ne_bytes());
    to.extend_from_slice(&kind.to_ne_bytes());
    to.extend_from_slice(&flags.to_ne_bytes());
    to.extend_from_slice(&sequence.to_ne_bytes());
    to.extend_from_slice(&[0; 4]);
    to.extend_from_slice(&head);
    to.extend_from_slice(body);
}
