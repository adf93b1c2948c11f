//! The classic BPF program that keeps everything but RoCEv2 out of the receive ring.

use std::net::{IpAddr, Ipv6Addr};

use socket2::SockFilter;

use crate::lan::ROCE_PORT;
use crate::steering::{Assembler, Family, Part, append_thread_hash};

/// The Ethertype of RoCE v1.
const ROCE_V1: u32 = 0x8915;
const ACCEPT_ALL: u32 = 0x4_0000;
const DROP: u32 = 0;

/// Returns the name of an ancillary load: `SKF_AD_OFF` plus the field's offset, as the kernel's
/// 32-bit `k`.
const fn ancillary(field: i32) -> u32 {
    (libc::SKF_AD_OFF + field) as u32
}

/// Lets through what arrives for this host's own link-layer address, or for one of the multicast
/// `groups`, is untagged or merely priority-tagged (VLAN identifier 0: another identifier belongs
/// to that VLAN's own interface), and is UDP for port 4791 over IPv4 or IPv6, or a *first* fragment
/// of such. Later fragments carry no port and cannot be told from other traffic's; one per datagram
/// is enough to count. Of these, a thread's part.
///
/// Two common mistakes are let through to be counted, by the first thread: RoCE v1, and IPv6 with
/// an extension header before the UDP header.
///
/// Offsets are from the IP header: the socket is `SOCK_DGRAM`, so the link-layer header is no
/// longer there when the program runs.
pub(super) fn roce(part: Part, groups: &[IpAddr]) -> Vec<SockFilter> {
    let mut program = Program::default();
    program.load_word(ancillary(libc::SKF_AD_PKTTYPE));
    program.if_equal(u32::from(libc::PACKET_HOST), Target::Link);
    if !groups.is_empty() {
        program.if_equal(u32::from(libc::PACKET_MULTICAST), Target::Link);
    }
    program.accept(DROP);
    program.label(Target::Link);
    program.load_word(ancillary(libc::SKF_AD_VLAN_TAG));
    program.if_any_set(0x0fff, Target::Drop);
    program.load_word(ancillary(libc::SKF_AD_PROTOCOL));
    program.if_equal(libc::ETH_P_IP as u32, Target::Ipv4);
    program.if_equal(libc::ETH_P_IPV6 as u32, Target::ToIpv6);
    program.unless_equal(ROCE_V1, Target::Drop);
    program.accept(strangers(part));
    program.label(Target::ToIpv6);
    program.goto(Target::Ipv6);
    program.label(Target::Ipv4);
    ipv4(&mut program);
    program.label(Target::Drop);
    program.accept(DROP);
    program.label(Target::Roce(Family::V4));
    take(&mut program, Family::V4, part, groups);
    program.label(Target::Ipv6);
    ipv6(&mut program, part);
    program.label(Target::Ipv6Drop);
    program.accept(DROP);
    program.label(Target::Roce(Family::V6));
    take(&mut program, Family::V6, part, groups);
    program.finish()
}

type Program = Assembler<Target>;

fn ipv4(program: &mut Program) {
    program.load_byte(9);
    program.unless_equal(libc::IPPROTO_UDP as u32, Target::Drop);
    program.load_half(6);
    program.if_any_set(0x1fff, Target::Drop);
    program.load_header_length();
    program.load_half_indexed(2);
    program.if_equal(u32::from(ROCE_PORT), Target::Roce(Family::V4));
}

/// Accepts on the first thread, which counts for all of them.
fn strangers(part: Part) -> u32 {
    if part.thread == 0 { ACCEPT_ALL } else { DROP }
}

/// Extension headers that may stand before UDP (RFC 8200, 4.1), and tell their length alike.
const EXTENSIONS: [i32; 3] = [libc::IPPROTO_HOPOPTS, libc::IPPROTO_ROUTING, libc::IPPROTO_DSTOPTS];

fn ipv6(program: &mut Program, part: Part) {
    program.load_byte(6);
    program.unless_equal(libc::IPPROTO_UDP as u32, Target::Ipv6Fragment);
    program.load_half(42);
    program.if_equal(u32::from(ROCE_PORT), Target::Roce(Family::V6));
    program.accept(DROP);
    program.label(Target::Ipv6Fragment);
    for extension in EXTENSIONS {
        program.if_equal(extension as u32, Target::Ipv6Extension);
    }
    program.unless_equal(libc::IPPROTO_FRAGMENT as u32, Target::Ipv6Drop);
    program.load_byte(40);
    program.unless_equal(libc::IPPROTO_UDP as u32, Target::Ipv6Drop);
    program.load_half(42);
    program.if_any_set(0xfff8, Target::Ipv6Drop);
    program.load_half(50);
    program.if_equal(u32::from(ROCE_PORT), Target::Roce(Family::V6));
    program.accept(DROP);
    program.label(Target::Ipv6Extension);
    program.load_byte(40);
    program.unless_equal(libc::IPPROTO_UDP as u32, Target::Ipv6Drop);
    // Eight bytes, and as many more as the second byte says.
    program.load_byte(41);
    program.multiply(8);
    program.keep();
    program.load_half_indexed(40 + 8 + 2);
    program.unless_equal(u32::from(ROCE_PORT), Target::Ipv6Drop);
    program.accept(strangers(part));
}

/// Lets through what is the thread's, of what is for our own link-layer address or for one of the
/// groups.
fn take(program: &mut Program, family: Family, part: Part, groups: &[IpAddr]) {
    if !groups.is_empty() {
        program.load_word(ancillary(libc::SKF_AD_PKTTYPE));
        program.if_equal(u32::from(libc::PACKET_MULTICAST), Target::Groups(family));
        program.goto(Target::Ours(family));
        program.label(Target::Groups(family));
        // The kernel makes some twenty instructions of each word loaded from a packet, and before
        // 6.8 has no room for many by default (net.core.optmem_max).
        for (word, at) in (0..family.words()).zip((family.destination()..).step_by(4)) {
            program.load_word(at);
            program.store(word);
        }
        for (number, group) in groups.iter().enumerate() {
            match (family, group) {
                (Family::V4, IpAddr::V4(group)) => is_for(program, family, [group.to_bits()], number),
                (Family::V6, IpAddr::V6(group)) => is_for(program, family, words(*group), number),
                _ => {}
            }
        }
        program.accept(DROP);
        program.label(Target::Ours(family));
    }
    if part.threads > 1 {
        append_thread_hash(program, family, part.threads);
        program.unless_equal(part.thread.into(), Target::Others(family));
    }
    program.accept(ACCEPT_ALL);
    program.label(Target::Others(family));
    program.accept(DROP);
}

/// Goes to [`Target::Ours`] if this is the destination that was stored. With many groups that is
/// farther than a conditional jump reaches.
fn is_for<const N: usize>(program: &mut Program, family: Family, group: [u32; N], number: usize) {
    for (at, word) in (0..).zip(group) {
        program.load_stored(at);
        program.unless_equal(word, Target::Next(family, number));
    }
    program.goto(Target::Ours(family));
    program.label(Target::Next(family, number));
}

fn words(address: Ipv6Addr) -> [u32; 4] {
    [96, 64, 32, 0].map(|shift| (address.to_bits() >> shift) as u32)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// To the right link-layer address.
    Link,
    Ipv4,
    Drop,
    Ipv6,
    /// Too far for a conditional jump.
    ToIpv6,
    Ipv6Fragment,
    Ipv6Extension,
    Ipv6Drop,
    /// RoCEv2.
    Roce(Family),
    /// To one of many.
    Groups(Family),
    /// Not to the group of this number.
    Next(Family, usize),
    /// To us, or a group of ours.
    Ours(Family),
    /// Another thread's.
    Others(Family),
}
