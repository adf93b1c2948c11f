//! The classic BPF program that keeps everything but RoCEv2 out of the receive ring.

use socket2::SockFilter;

use crate::lan::ROCE_PORT;
use crate::steering::{Assembler, Family, Part, reckon};

const ACCEPT_ALL: u32 = 0x4_0000;
const DROP: u32 = 0;

/// What the program's ancillary loads name: `SKF_AD_OFF` plus the field's offset, as the kernel's 32-bit `k`.
const fn ancillary(field: i32) -> u32 {
    (libc::SKF_AD_OFF + field) as u32
}

/// Lets through what arrives for this host's own link-layer address, is untagged or merely priority-tagged (VLAN identifier 0: another
/// identifier belongs to that VLAN's own interface), and is UDP for port 4791 over IPv4 or IPv6, or a *first* fragment of such. Later
/// fragments carry no port and cannot be told from other traffic's; one per datagram is enough to count. Of these, a thread's part.
///
/// Offsets are from the IP header: the socket is `SOCK_DGRAM`, so the link-layer header is no longer there when the program runs.
pub(super) fn roce(part: Part) -> Vec<SockFilter> {
    let mut program = Program::default();
    program.load_word(ancillary(libc::SKF_AD_PKTTYPE));
    program.unless_equal(u32::from(libc::PACKET_HOST), Target::Drop);
    program.load_word(ancillary(libc::SKF_AD_VLAN_TAG));
    program.if_any_set(0x0fff, Target::Drop);
    program.load_word(ancillary(libc::SKF_AD_PROTOCOL));
    program.unless_equal(libc::ETH_P_IP as u32, Target::Ipv6);
    ipv4(&mut program, part);
    program.label(Target::Ipv6);
    program.unless_equal(libc::ETH_P_IPV6 as u32, Target::Drop);
    ipv6(&mut program, part);
    program.label(Target::Drop);
    program.accept(DROP);
    program.finish()
}

type Program = Assembler<Target>;

/// Lets through what is the thread's.
fn take(program: &mut Program, family: Family, part: Part) {
    if part.threads > 1 {
        reckon(program, family, part.threads);
        program.unless_equal(part.thread.into(), Target::Drop);
    }
    program.accept(ACCEPT_ALL);
}

fn ipv4(program: &mut Program, part: Part) {
    program.load_byte(9);
    program.unless_equal(libc::IPPROTO_UDP as u32, Target::Drop);
    program.load_half(6);
    program.if_any_set(0x1fff, Target::Drop);
    program.load_header_length();
    program.load_half_indexed(2);
    program.unless_equal(u32::from(ROCE_PORT), Target::Drop);
    take(program, Family::V4, part);
}

fn ipv6(program: &mut Program, part: Part) {
    program.load_byte(6);
    program.unless_equal(libc::IPPROTO_UDP as u32, Target::Ipv6Fragment);
    program.load_half(42);
    program.unless_equal(u32::from(ROCE_PORT), Target::Drop);
    take(program, Family::V6, part);
    program.label(Target::Ipv6Fragment);
    program.unless_equal(libc::IPPROTO_FRAGMENT as u32, Target::Drop);
    program.load_byte(40);
    program.unless_equal(libc::IPPROTO_UDP as u32, Target::Drop);
    program.load_half(42);
    program.if_any_set(0xfff8, Target::Drop);
    program.load_half(50);
    program.unless_equal(u32::from(ROCE_PORT), Target::Drop);
    take(program, Family::V6, part);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Ipv6,
    Ipv6Fragment,
    Drop,
}
