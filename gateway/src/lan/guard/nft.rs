//! Tables of nftables that this process owns: netlink messages, and the expressions of rules.
//!
//! Nobody else can change or flush such a table, and it goes with the process.

use std::io;
use std::time::Duration;

use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST};
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr};
use rustix::io::Errno;

use crate::uninterrupted::uninterrupted;

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
pub(super) const INET: u8 = 1;
/// The family of tables that see ARP.
pub(super) const ARP: u8 = 3;
/// A table with this flag belongs to the socket that made it.
const OWNER: u32 = 2;
const ACCEPT: u32 = 1;
const DROP: u32 = 0;
/// Keys of `meta`: the interface that it came by, IPv4 or IPv6, the protocol.
pub(super) const IN_NAME: u32 = 6;
pub(super) const FAMILY: u32 = 15;
pub(super) const PROTOCOL: u32 = 16;
/// Registers: one of 16 bytes, and the first of those of 4 bytes, which share its place.
pub(super) const REGISTER: u32 = 1;
pub(super) const WORDS: u32 = 8;
pub(super) const EQUAL: u32 = 0;
pub(super) const UNEQUAL: u32 = 1;
/// The number of IPv6's fragment header.
const FRAGMENT_HEADER: u8 = 44;
/// Where payload is counted from.
pub(super) const LINK: u32 = 0;
pub(super) const NETWORK: u32 = 1;
pub(super) const TRANSPORT: u32 = 2;

/// A table, for as long as it lives.
#[derive(Debug)]
pub(super) struct Table {
    socket: Socket,
    sequence: u32,
    family: u8,
    name: String,
}

/// The key of a set: its type as `nft` numbers them, and its bytes.
pub(super) struct Key {
    pub(super) kind: u32,
    pub(super) length: u32,
}

impl Table {
    /// Makes the table. Needs CAP_NET_ADMIN, and Linux 5.12 with nftables.
    ///
    /// # Errors
    /// The kernel's answer. Then there is no table.
    pub(super) fn new(family: u8, interface: &str) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        let own = socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let name = format!("longhaul-{interface}-{}", own.port_number());
        let mut made = Self { socket, sequence: 0, family, name };
        let mut table = Attributes::default();
        table.text(1, &made.name).number(2, OWNER);
        made.transact(NEW_TABLE, NLM_F_CREATE, &table)?;
        Ok(made)
    }

    /// Adds a chain that lets pass what no rule drops.
    pub(super) fn add_chain(&mut self, name: &str, hook: u32, priority: i32) -> io::Result<()> {
        let mut chain = Attributes::default();
        chain.text(1, &self.name).text(3, name);
        chain.nested(4, |place| {
            place.number(1, hook).bytes(2, &priority.to_be_bytes());
        });
        chain.number(5, ACCEPT).text(7, "filter");
        self.transact(NEW_CHAIN, NLM_F_CREATE, &chain)
    }

    /// Adds a set that rules fill, with so many members at most, each for so long.
    pub(super) fn add_set(&mut self, name: &str, key: &Key, most: u32, timeout: Duration) -> io::Result<()> {
        const TIMEOUT: u32 = 0x10;
        const BY_RULES: u32 = 0x20;
        let mut set = Attributes::default();
        set.text(1, &self.name).text(2, name).number(3, TIMEOUT | BY_RULES);
        set.number(4, key.kind).number(5, key.length);
        set.nested(9, |description| {
            description.number(1, most);
        });
        // Any number but 0: it is for messages of the same transaction.
        set.number(10, 1);
        let timeout = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        set.bytes(11, &timeout.to_be_bytes());
        self.transact(NEW_SET, NLM_F_CREATE, &set)
    }

    /// Appends a rule of these expressions.
    pub(super) fn add_rule(&mut self, chain: &str, fill: &dyn Fn(&mut Attributes)) -> io::Result<()> {
        let mut rule = Attributes::default();
        rule.text(1, &self.name).text(2, chain);
        rule.nested(4, fill);
        self.transact(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, &rule)
    }

    fn remove(&mut self) -> io::Result<()> {
        let mut table = Attributes::default();
        table.text(1, &self.name);
        self.transact(DELETE_TABLE, 0, &table)
    }

    /// Sends one message as a transaction of its own, and waits for the kernel's word on it.
    fn transact(&mut self, kind: u16, flags: u16, body: &Attributes) -> io::Result<()> {
        self.sequence += 1;
        let mut bytes = Vec::new();
        let batch = [0, 0, 0, NFTABLES];
        message(&mut bytes, BATCH_BEGIN, NLM_F_REQUEST, self.sequence, batch, &[]);
        let flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        message(&mut bytes, kind, flags, self.sequence, [self.family, 0, 0, 0], &body.0);
        message(&mut bytes, BATCH_END, NLM_F_REQUEST, self.sequence, batch, &[]);
        self.socket.send(&bytes, 0)?;
        loop {
            let (answer, _) = uninterrupted(|| self.socket.recv_from_full())?;
            if let Some(result) = self.read(&answer) {
                return result;
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

impl Drop for Table {
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

/// Goes on only if the interface, by which it came or is to leave, is called so, or is not.
pub(super) fn named(list: &mut Attributes, key: u32, interface: &str, comparison: u32) {
    let mut name = [0; 16];
    name.iter_mut().zip(interface.bytes().take(15)).for_each(|(to, from)| *to = from);
    meta(list, key);
    compare_as(list, comparison, &name);
}

/// Drops the packet.
pub(super) fn drop_it(list: &mut Attributes) {
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
pub(super) fn meta(list: &mut Attributes, key: u32) {
    expression(list, "meta", |data| {
        data.number(1, REGISTER).number(2, key);
    });
}

/// Loads bytes of the packet, from its link-layer, network or transport header on, into a register.
pub(super) fn payload(list: &mut Attributes, register: u32, base: u32, offset: u32, length: u32) {
    expression(list, "payload", |data| {
        data.number(1, register).number(2, base).number(3, offset).number(4, length);
    });
}

/// The same of IPv6's fragment header; goes on only if there is one.
pub(super) fn fragment_header(list: &mut Attributes, register: u32, offset: u32, length: u32) {
    expression(list, "exthdr", |data| {
        data.number(1, register).bytes(2, &[FRAGMENT_HEADER]).number(3, offset).number(4, length);
    });
}

/// Keeps these bits of register 1.
pub(super) fn masked(list: &mut Attributes, mask: &[u8]) {
    expression(list, "bitwise", |data| {
        data.number(1, REGISTER).number(2, REGISTER);
        data.number(3, u32::try_from(mask.len()).unwrap_or_default());
        data.nested(4, |value| value.bytes_only(1, mask));
        data.nested(5, |value| value.bytes_only(1, &vec![0; mask.len()]));
    });
}

/// Goes on only if register 1 holds this.
pub(super) fn compare(list: &mut Attributes, value: &[u8]) {
    compare_as(list, EQUAL, value);
}

/// The same, or that it does not, or orders so.
pub(super) fn compare_as(list: &mut Attributes, comparison: u32, value: &[u8]) {
    expression(list, "cmp", |data| {
        data.number(1, REGISTER).number(2, comparison);
        data.nested(3, |wanted| wanted.bytes_only(1, value));
    });
}

/// Appends an expression of this name to a rule's list.
pub(super) fn expression(list: &mut Attributes, name: &str, fill: impl FnOnce(&mut Attributes)) {
    list.nested(1, |element| {
        element.text(1, name);
        element.nested(2, fill);
    });
}

/// Netlink attributes, one after the other.
#[derive(Debug, Default)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    pub(super) fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Self {
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

    pub(super) fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    pub(super) fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(super) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes)) {
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
