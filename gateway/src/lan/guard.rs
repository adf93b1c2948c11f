//! Keeps the kernel from carrying the same packets a second time.
//!
//! AF_PACKET copies: the kernel goes on with the packet, and with forwarding on would route it
//! across the long link by itself, or answer it with an ICMP error for want of a route. For each
//! remote prefix a [`Guard`] therefore installs a policy routing rule,
//!
//! ```text
//! 1: from all to PREFIX iif INTERFACE ipproto udp dport 4791 blackhole proto 76
//! ```
//!
//! which drops them silently, after AF_PACKET has seen them. Nothing else is touched: other traffic
//! to the same prefix is forwarded as before.
//!
//! Such a rule cannot tell a fragment of a RoCE packet, whose port it does not see, nor stand for
//! one interface and against all others.
//! So there is a table of nftables besides ([`forward`]).
//! It drops fragments of RoCE that would leave, and RoCE that would be forwarded to the LAN from
//! other interfaces or in the name of remote hosts: it did not come through the seal.
//!
//! Another table bounds what hosts add to the kernel's own of neighbours ([`neighbours`]).
//!
//! Rules outlive a process that is killed. They are recognised by protocol and interface, taken
//! over or removed at the next start, and by hand `ip rule del pref 1` (and
//! `ip -6 rule del pref 1`) removes one. One gateway per interface: a second one's rules are the
//! same.

mod forward;
mod neighbours;
mod nft;

use std::io;
use std::mem;

use ipnet::IpNet;
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange};
use rtnetlink::packet_route::{AddressFamily, IpProtocol, RouteNetlinkMessage};
use rustix::io::Errno;
use thiserror::Error;

use forward::Forward;
use neighbours::Neighbours;
use nft::is_unsupported;

use super::ROCE_PORT;
use super::netlink::Netlink;

/// Where the rules stand: right behind the look-up of local addresses, before all others.
pub const PRIORITY: u32 = 1;
/// The mark of our rules: a routing protocol number that no routing daemon uses. An `L`.
pub const PROTOCOL: u8 = b'L';

/// Errors of the rules.
#[derive(Debug, Error)]
pub enum GuardError {
    /// No netlink socket, or it failed.
    #[error("talking to the kernel about policy routing rules")]
    Netlink(#[source] io::Error),
    /// The kernel did not take a rule. `EPERM` means that CAP_NET_ADMIN is missing.
    #[error("installing the rule that keeps the kernel from forwarding RoCE to {prefix}")]
    Install {
        /// The rule's prefix.
        prefix: IpNet,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The kernel did not take the table of nftables.
    #[error("installing the nftables rules that keep the kernel from forwarding RoCE around the seal")]
    Forward(#[source] io::Error),
    /// The kernel did not list its rules, or did not remove one.
    #[error("removing rules that keep the kernel from forwarding RoCE")]
    Remove(#[source] io::Error),
}

/// Rules in place, for as long as it lives. Dropping it removes them, and can only log when that
/// fails; [`remove`](Self::remove) says so.
#[derive(Debug)]
pub struct Guard {
    kernel: Netlink,
    interface: String,
    installed: Vec<RuleMessage>,
    /// Every rule that there has to be.
    wanted: Vec<RuleMessage>,
    /// `None` on a kernel that does not know how.
    forward: Option<Forward>,
    /// The same.
    neighbours: Option<Neighbours>,
    /// Rules are another process's as well, and stay.
    is_shared: bool,
}

impl Guard {
    /// Installs a rule for each of the `remote` prefixes against what comes in by `interface`, and
    /// removes rules of an earlier process for that interface that are not among them. At no moment
    /// is a prefix unguarded that was guarded before.
    ///
    /// The interface need not exist yet: a rule goes by its name. Needs CAP_NET_ADMIN. Blocks for
    /// some system calls.
    ///
    /// # Errors
    /// As [`GuardError`] says; then no rule of ours is left.
    pub fn install(interface: &str, remote: &[IpNet]) -> Result<Self, GuardError> {
        let kernel = Netlink::connect().map_err(GuardError::Netlink)?;
        let mut guard = Self {
            kernel,
            interface: interface.to_owned(),
            installed: Vec::new(),
            wanted: Vec::new(),
            forward: None,
            neighbours: None,
            is_shared: false,
        };
        let earlier = earlier_rules(&mut guard.kernel, interface)?;
        // Ours from here on: whatever fails, dropping the guard removes them.
        guard.installed.clone_from(&earlier);
        let wanted: Vec<_> = remote.iter().flat_map(|&prefix| rules(interface, prefix)).collect();
        for (prefix, rule) in &wanted {
            if earlier.iter().any(|old| same(old, rule)) {
                continue;
            }
            match add(&mut guard.kernel, rule) {
                Ok(()) => guard.installed.push(rule.clone()),
                // The operator's own, the same in all but the tag, or a prefix given twice: it
                // guards as well.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::EXIST) => {}
                Err(source) => {
                    return Err(GuardError::Install { prefix: *prefix, source });
                }
            }
        }
        let is_wanted = |rule: &RuleMessage| wanted.iter().any(|(_, wanted)| same(rule, wanted));
        let (kept, stale) = mem::take(&mut guard.installed).into_iter().partition(is_wanted);
        guard.installed = kept;
        delete_all(&mut guard.kernel, stale)?;
        guard.wanted = wanted.iter().map(|(_, rule)| rule.clone()).collect();
        guard.forward = forward(interface, remote)?;
        guard.neighbours = neighbours(interface);
        Ok(guard)
    }

    /// Looks if every rule is there, and puts back what somebody else has removed; about every
    /// second, and when the kernel tells of a change. Returns how many were missing.
    ///
    /// # Errors
    /// The kernel does not list its rules, or does not take one.
    pub fn restore(&mut self) -> Result<u64, GuardError> {
        let mut present = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            present.append(&mut list(&mut self.kernel, family).map_err(GuardError::Remove)?);
        }
        let mut missing = 0;
        for rule in &self.wanted {
            // The operator's own, without our tag, guards as well.
            if present.iter().any(|other| same_but_tag(other, rule)) {
                continue;
            }
            match add(&mut self.kernel, rule) {
                Ok(()) => missing += 1,
                Err(error) if Errno::from_io_error(&error) == Some(Errno::EXIST) => continue,
                Err(source) => {
                    let prefix = destination(rule).unwrap_or_default();
                    return Err(GuardError::Install { prefix, source });
                }
            }
            if !self.installed.iter().any(|other| same(other, rule)) {
                self.installed.push(rule.clone());
            }
        }
        Ok(missing)
    }

    /// Removes rules for the interface that are not among the wanted: the process before may have
    /// put them back until it ended.
    ///
    /// # Errors
    /// The kernel's answer, if it does not list its rules or kept one.
    pub fn remove_stale(&mut self) -> Result<(), GuardError> {
        let mut rules = earlier_rules(&mut self.kernel, &self.interface)?;
        rules.retain(|rule| !self.wanted.iter().any(|wanted| same(rule, wanted)));
        delete_all(&mut self.kernel, rules)
    }

    /// Says if another process has the same rules, which then stay when this is dropped. Its tables
    /// are its own, and go.
    pub fn share(&mut self, is_shared: bool) {
        self.is_shared = is_shared;
    }

    /// Removes the rules.
    ///
    /// # Errors
    /// The kernel's answer, if it kept one. A rule that somebody else removed meanwhile is no
    /// error.
    pub fn remove(mut self) -> Result<(), GuardError> {
        drop(self.forward.take());
        drop(self.neighbours.take());
        delete_all(&mut self.kernel, mem::take(&mut self.installed))
    }
}

/// Removes the rules of an earlier process for an interface on which no gateway works any more.
///
/// # Errors
/// The kernel's answer, if it does not list its rules or kept one.
pub fn remove_earlier(interface: &str) -> Result<(), GuardError> {
    let mut kernel = Netlink::connect().map_err(GuardError::Netlink)?;
    let rules = earlier_rules(&mut kernel, interface)?;
    delete_all(&mut kernel, rules)
}

/// Our rules for this interface, from a process that could not remove them.
fn earlier_rules(kernel: &mut Netlink, interface: &str) -> Result<Vec<RuleMessage>, GuardError> {
    let mut rules = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        rules.append(&mut list(kernel, family).map_err(GuardError::Remove)?);
    }
    rules.retain(|rule| is_ours(rule, interface));
    Ok(rules)
}

/// Returns the prefixes that rules of a gateway guard on an interface now, whichever process made
/// them.
///
/// # Errors
/// The kernel does not list its rules.
pub fn guarded(interface: &str) -> io::Result<Vec<IpNet>> {
    let mut kernel = Netlink::connect()?;
    let mut prefixes = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let rules = list(&mut kernel, family)?;
        prefixes.extend(rules.iter().filter(|rule| is_ours(rule, interface)).filter_map(destination));
    }
    Ok(prefixes)
}

fn destination(rule: &RuleMessage) -> Option<IpNet> {
    let address = rule.attributes.iter().find_map(|attribute| match attribute {
        RuleAttribute::Destination(address) => Some(*address),
        _ => None,
    });
    IpNet::new(address?, rule.header.dst_len).ok()
}

fn forward(interface: &str, remote: &[IpNet]) -> Result<Option<Forward>, GuardError> {
    match Forward::install(interface, remote) {
        Ok(forward) => Ok(Some(forward)),
        Err(error) if is_unsupported(&error) => {
            tracing::warn!(
                interface,
                %error,
                "this kernel has no nftables to keep it from forwarding fragments of RoCE, and RoCE that comes \
                 by other interfaces in the name of remote hosts; where net.ipv4.ip_forward or \
                 net.ipv6.conf.all.forwarding is 1, a firewall has to drop UDP port 4791 there"
            );
            Ok(None)
        }
        Err(source) => Err(GuardError::Forward(source)),
    }
}

fn neighbours(interface: &str) -> Option<Neighbours> {
    let installed = Neighbours::install(interface);
    installed
        .inspect_err(|error| {
            tracing::warn!(
                interface,
                %error,
                "nftables do not bound what hosts add to the kernel's table of neighbours; a larger \
                 net.ipv4.neigh.default.gc_thresh3, and that of IPv6, has them need more for it"
            );
        })
        .ok()
}

impl Drop for Guard {
    fn drop(&mut self) {
        let rules = mem::take(&mut self.installed);
        if self.is_shared {
            return;
        }
        if let Err(error) = delete_all(&mut self.kernel, rules) {
            tracing::warn!(interface = self.interface, %error, "policy routing rules of ours remain");
        }
    }
}

fn delete_all(kernel: &mut Netlink, rules: Vec<RuleMessage>) -> Result<(), GuardError> {
    let mut result = Ok(());
    for rule in rules {
        match delete(kernel, rule) {
            Err(error) if Errno::from_io_error(&error) != Some(Errno::NOENT) => {
                result = Err(GuardError::Remove(error));
            }
            _ => {}
        }
    }
    result
}

/// The rules for a prefix: one, but two halves for a default route, since the kernel takes a rule
/// without a destination for equal to any other, when it is to be added and when it is to be
/// deleted.
fn rules(interface: &str, prefix: IpNet) -> impl Iterator<Item = (IpNet, RuleMessage)> {
    let halves = prefix.subnets(prefix.prefix_len().max(1)).into_iter().flatten();
    halves.map(move |half| (prefix, rule(interface, half)))
}

fn rule(interface: &str, prefix: IpNet) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.family = match prefix {
        IpNet::V4(_) => AddressFamily::Inet,
        IpNet::V6(_) => AddressFamily::Inet6,
    };
    rule.header.dst_len = prefix.prefix_len();
    rule.header.action = RuleAction::Blackhole;
    rule.attributes = vec![
        RuleAttribute::Priority(PRIORITY),
        RuleAttribute::Protocol(RouteProtocol::from(PROTOCOL)),
        RuleAttribute::Iifname(interface.to_owned()),
        RuleAttribute::IpProtocol(IpProtocol::Udp),
        RuleAttribute::DestinationPortRange(RulePortRange { start: ROCE_PORT, end: ROCE_PORT }),
        RuleAttribute::Destination(prefix.network()),
    ];
    rule
}

fn is_ours(rule: &RuleMessage, interface: &str) -> bool {
    let has = |wanted: RuleAttribute| rule.attributes.contains(&wanted);
    has(RuleAttribute::Protocol(RouteProtocol::from(PROTOCOL)))
        && has(RuleAttribute::Iifname(interface.to_owned()))
}

/// Returns true if `listed`, which has attributes besides, is the rule `made`.
fn same(listed: &RuleMessage, made: &RuleMessage) -> bool {
    listed.header.family == made.header.family
        && listed.header.dst_len == made.header.dst_len
        && listed.header.action == made.header.action
        && made.attributes.iter().all(|attribute| listed.attributes.contains(attribute))
}

/// As [`same`], whoever has made the rule.
fn same_but_tag(listed: &RuleMessage, made: &RuleMessage) -> bool {
    let mut untagged = made.clone();
    untagged.attributes.retain(|attribute| !matches!(attribute, RuleAttribute::Protocol(_)));
    same(listed, &untagged)
}

fn add(kernel: &mut Netlink, rule: &RuleMessage) -> io::Result<()> {
    let message = RouteNetlinkMessage::NewRule(rule.clone());
    kernel.request(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL).map(drop)
}

fn delete(kernel: &mut Netlink, rule: RuleMessage) -> io::Result<()> {
    kernel.request(RouteNetlinkMessage::DelRule(rule), NLM_F_ACK).map(drop)
}

fn list(kernel: &mut Netlink, family: AddressFamily) -> io::Result<Vec<RuleMessage>> {
    let mut filter = RuleMessage::default();
    filter.header.family = family;
    let answers = kernel.request(RouteNetlinkMessage::GetRule(filter), NLM_F_DUMP)?;
    let rule = |answer| match answer {
        RouteNetlinkMessage::NewRule(rule) => Some(rule),
        _ => None,
    };
    Ok(answers.into_iter().filter_map(rule).collect())
}

#[cfg(test)]
mod tests;
