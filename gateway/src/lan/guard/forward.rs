//! Keeps the kernel from forwarding what policy routing rules cannot tell: RoCE that comes by other
//! interfaces, and fragments.
//!
//! A table of nftables that this process owns. Nobody else can change or flush it, and it goes with
//! the process.
//! Its socket's number (mostly the process's) stands in its name, so that one that takes over from
//! another has a table from the start:
//! ```text
//! table inet longhaul-INTERFACE-NUMBER {                                flags owner
//!     chain forward {
//!         type filter hook forward priority -300; policy accept;
//!         iifname INTERFACE ip daddr PREFIX udp dport 4791 drop     hosts' packets
//!         oifname INTERFACE ip saddr PREFIX udp dport 4791 drop     in remote hosts' names
//!     }
//! }
//! ```
//! Both rules stand there for each remote prefix, and take first fragments as well.
//! A later fragment has no port and passes; without the first one nobody can put the packet
//! together.

use std::io;

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
        for prefix in remote {
            for end in [End::FromHosts, End::ToHosts] {
                let rule = forward.rule(interface, prefix, end);
                forward.transact(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, &rule)?;
            }
        }
        Ok(forward)
    }

    fn rule(&self, interface: &str, prefix: &IpNet, end: End) -> Attributes {
        let mut rule = Attributes::default();
        rule.text(1, &self.table).text(2, CHAIN);
        rule.nested(4, |list| matches(list, interface, prefix, end));
        rule
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

/// On which side of the kernel's forwarding the hosts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    FromHosts,
    ToHosts,
}

/// A rule's expressions.
fn matches(list: &mut Attributes, interface: &str, prefix: &IpNet, end: End) {
    let mut name = [0; 16];
    name.iter_mut().zip(interface.bytes().take(15)).for_each(|(to, from)| *to = from);
    let (meta_name, v4_offset, v6_offset) = match end {
        End::FromHosts => (6, 16, 24),
        End::ToHosts => (7, 12, 8),
    };
    meta(list, meta_name);
    compare(list, &name);
    let (family, offset, address, mask): (u8, u32, Vec<u8>, Vec<u8>) = match prefix {
        IpNet::V4(net) => (2, v4_offset, net.network().octets().into(), net.netmask().octets().into()),
        IpNet::V6(net) => (10, v6_offset, net.network().octets().into(), net.netmask().octets().into()),
    };
    meta(list, 15);
    compare(list, &[family]);
    payload(list, 1, offset, address.len());
    expression(list, "bitwise", |data| {
        data.number(1, 1).number(2, 1).number(3, u32::try_from(mask.len()).unwrap_or_default());
        data.nested(4, |value| value.bytes_only(1, &mask));
        data.nested(5, |value| value.bytes_only(1, &vec![0; mask.len()]));
    });
    compare(list, &address);
    meta(list, 16);
    compare(list, &[UDP]);
    payload(list, 2, 2, 2);
    compare(list, &ROCE_PORT.to_be_bytes());
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
        data.number(1, 1).number(2, key);
    });
}

/// Loads bytes of the packet, from its network (1) or transport header (2) on, into register 1.
fn payload(list: &mut Attributes, base: u32, offset: u32, length: usize) {
    expression(list, "payload", |data| {
        data.number(1, 1).number(2, base).number(3, offset);
        data.number(4, u32::try_from(length).unwrap_or_default());
    });
}

/// Goes on only if register 1 holds this.
fn compare(list: &mut Attributes, value: &[u8]) {
    expression(list, "cmp", |data| {
        data.number(1, 1).number(2, 0);
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
