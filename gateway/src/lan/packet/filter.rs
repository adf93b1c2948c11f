//! The classic BPF program that keeps everything but RoCEv2 out of the receive ring.

use socket2::SockFilter;

use crate::lan::ROCE_PORT;

const ACCEPT_ALL: u32 = 0x4_0000;
const DROP: u32 = 0;

/// What the program's ancillary loads name: `SKF_AD_OFF` plus the field's offset, as the kernel's 32-bit `k`.
const fn ancillary(field: i32) -> u32 {
    (libc::SKF_AD_OFF + field) as u32
}

/// Lets through what arrives for this host's own link-layer address, is untagged or merely priority-tagged (VLAN identifier 0: another
/// identifier belongs to that VLAN's own interface), and is UDP for port 4791 over IPv4 or IPv6, or a *first* fragment of such. Later
/// fragments carry no port and cannot be told from other traffic's; one per datagram is enough to count.
///
/// Offsets are from the IP header: the socket is `SOCK_DGRAM`, so the link-layer header is no longer there when the program runs.
pub(super) fn roce() -> Vec<SockFilter> {
    let mut program = Assembler::default();
    program.load_word(ancillary(libc::SKF_AD_PKTTYPE));
    program.unless_equal(u32::from(libc::PACKET_HOST), Target::Drop);
    program.load_word(ancillary(libc::SKF_AD_VLAN_TAG));
    program.if_any_set(0x0fff, Target::Drop);
    program.load_word(ancillary(libc::SKF_AD_PROTOCOL));
    program.unless_equal(libc::ETH_P_IP as u32, Target::Ipv6);
    ipv4(&mut program);
    program.label(Target::Ipv6);
    program.unless_equal(libc::ETH_P_IPV6 as u32, Target::Drop);
    ipv6(&mut program);
    program.finish()
}

fn ipv4(program: &mut Assembler) {
    program.load_byte(9);
    program.unless_equal(libc::IPPROTO_UDP as u32, Target::Drop);
    program.load_half(6);
    program.if_any_set(0x1fff, Target::Drop);
    program.load_header_length();
    program.load_half_indexed(2);
    program.unless_equal(u32::from(ROCE_PORT), Target::Drop);
    program.accept();
}

fn ipv6(program: &mut Assembler) {
    program.load_byte(6);
    program.unless_equal(libc::IPPROTO_UDP as u32, Target::Ipv6Fragment);
    program.load_half(42);
    program.unless_equal(u32::from(ROCE_PORT), Target::Drop);
    program.accept();
    program.label(Target::Ipv6Fragment);
    program.unless_equal(libc::IPPROTO_FRAGMENT as u32, Target::Drop);
    program.load_byte(40);
    program.unless_equal(libc::IPPROTO_UDP as u32, Target::Drop);
    program.load_half(42);
    program.if_any_set(0xfff8, Target::Drop);
    program.load_half(50);
    program.unless_equal(u32::from(ROCE_PORT), Target::Drop);
    program.accept();
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Ipv6,
    Ipv6Fragment,
    Drop,
}

/// Instructions with forward jumps by name.
#[derive(Default)]
struct Assembler {
    code: Vec<(u32, u32, Option<Jump>)>,
    labels: Vec<(Target, usize)>,
}

#[derive(Clone, Copy)]
enum Jump {
    IfTrue(Target),
    IfFalse(Target),
}

impl Assembler {
    fn load_word(&mut self, k: u32) {
        self.push(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, k, None);
    }

    fn load_half(&mut self, k: u32) {
        self.push(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, k, None);
    }

    fn load_byte(&mut self, k: u32) {
        self.push(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, k, None);
    }

    /// The index register becomes the IPv4 header's length.
    fn load_header_length(&mut self) {
        self.push(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, None);
    }

    fn load_half_indexed(&mut self, k: u32) {
        self.push(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, k, None);
    }

    fn unless_equal(&mut self, k: u32, target: Target) {
        self.push(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k, Some(Jump::IfFalse(target)));
    }

    fn if_any_set(&mut self, k: u32, target: Target) {
        self.push(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, k, Some(Jump::IfTrue(target)));
    }

    fn accept(&mut self) {
        self.push(libc::BPF_RET | libc::BPF_K, ACCEPT_ALL, None);
    }

    fn label(&mut self, target: Target) {
        self.labels.push((target, self.code.len()));
    }

    fn push(&mut self, code: u32, k: u32, jump: Option<Jump>) {
        self.code.push((code, k, jump));
    }

    fn finish(mut self) -> Vec<SockFilter> {
        self.label(Target::Drop);
        self.push(libc::BPF_RET | libc::BPF_K, DROP, None);
        let distance = |at: usize, target: Target| {
            let position =
                self.labels.iter().find(|(label, _)| *label == target).map_or(at, |(_, position)| *position);
            // The program has some forty instructions, and every label lies ahead of its jumps.
            position.saturating_sub(at + 1) as u8
        };
        let instruction = |(at, &(code, k, jump)): (usize, &(u32, u32, Option<Jump>))| {
            let (jt, jf) = match jump {
                None => (0, 0),
                Some(Jump::IfTrue(target)) => (distance(at, target), 0),
                Some(Jump::IfFalse(target)) => (0, distance(at, target)),
            };
            SockFilter::new(code as u16, jt, jf, k)
        };
        self.code.iter().enumerate().map(instruction).collect()
    }
}
