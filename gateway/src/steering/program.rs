//! Classic BPF programs.
#![expect(unsafe_code, reason = "a socket option without a safe wrapper")]

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use socket2::SockFilter;

/// Instructions with forward jumps to labels `T`. The accumulator holds what was last loaded or
/// reckoned.
pub(crate) struct Assembler<T> {
    code: Vec<(u32, u32, Option<Jump<T>>)>,
    labels: Vec<(T, usize)>,
}

#[derive(Clone, Copy)]
enum Jump<T> {
    IfTrue(T),
    IfFalse(T),
    Always(T),
}

impl<T> Default for Assembler<T> {
    fn default() -> Self {
        Self { code: Vec::new(), labels: Vec::new() }
    }
}

impl<T: Copy + PartialEq> Assembler<T> {
    pub(crate) fn load_word(&mut self, k: u32) {
        self.push(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, k);
    }

    /// As [`Assembler::load_word`], but counts from the IP header, where a program sees what comes
    /// after it only (`SKF_NET_OFF`).
    pub(crate) fn load_word_of_ip(&mut self, k: u32) {
        self.load_word((libc::SKF_NET_OFF as u32).wrapping_add(k));
    }

    pub(crate) fn load_half(&mut self, k: u32) {
        self.push(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, k);
    }

    pub(crate) fn load_byte(&mut self, k: u32) {
        self.push(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, k);
    }

    /// The index register becomes the IPv4 header's length.
    pub(crate) fn load_header_length(&mut self) {
        self.push(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0);
    }

    pub(crate) fn load_half_indexed(&mut self, k: u32) {
        self.push(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, k);
    }

    /// The index register becomes what the accumulator is.
    pub(crate) fn keep(&mut self) {
        self.push(libc::BPF_MISC | libc::BPF_TAX, 0);
    }

    /// A word of scratch memory becomes what the accumulator is.
    pub(crate) fn store(&mut self, k: u32) {
        self.push(libc::BPF_ST, k);
    }

    /// The accumulator becomes what was stored.
    pub(crate) fn load_stored(&mut self, k: u32) {
        self.push(libc::BPF_LD | libc::BPF_MEM, k);
    }

    /// The index register becomes what was stored.
    pub(crate) fn keep_stored(&mut self, k: u32) {
        self.push(libc::BPF_LDX | libc::BPF_MEM, k);
    }

    pub(crate) fn and(&mut self, k: u32) {
        self.push(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, k);
    }

    pub(crate) fn xor_kept(&mut self) {
        self.push(libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X, 0);
    }

    /// Adds the index register, modulo 2^32.
    pub(crate) fn add_kept(&mut self) {
        self.push(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0);
    }

    /// Modulo 2^32.
    pub(crate) fn add(&mut self, k: u32) {
        self.push(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K, k);
    }

    /// Modulo 2^32.
    pub(crate) fn multiply(&mut self, k: u32) {
        self.push(libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K, k);
    }

    pub(crate) fn shift_right(&mut self, k: u32) {
        self.push(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, k);
    }

    /// By at least 1.
    pub(crate) fn modulo(&mut self, k: u32) {
        self.push(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, k);
    }

    pub(crate) fn unless_equal(&mut self, k: u32, target: T) {
        self.jump(libc::BPF_JEQ, k, Jump::IfFalse(target));
    }

    pub(crate) fn if_equal(&mut self, k: u32, target: T) {
        self.jump(libc::BPF_JEQ, k, Jump::IfTrue(target));
    }

    pub(crate) fn if_any_set(&mut self, k: u32, target: T) {
        self.jump(libc::BPF_JSET, k, Jump::IfTrue(target));
    }

    /// As far as it may be; the others reach 255 instructions.
    pub(crate) fn goto(&mut self, target: T) {
        self.jump(libc::BPF_JA, 0, Jump::Always(target));
    }

    /// Ends with this result.
    pub(crate) fn accept(&mut self, k: u32) {
        self.push(libc::BPF_RET | libc::BPF_K, k);
    }

    /// Ends with what the accumulator is.
    pub(crate) fn accept_kept(&mut self) {
        self.push(libc::BPF_RET | libc::BPF_A, 0);
    }

    pub(crate) fn label(&mut self, target: T) {
        self.labels.push((target, self.code.len()));
    }

    fn push(&mut self, code: u32, k: u32) {
        self.code.push((code, k, None));
    }

    fn jump(&mut self, condition: u32, k: u32, jump: Jump<T>) {
        self.code.push((libc::BPF_JMP | condition | libc::BPF_K, k, Some(jump)));
    }

    pub(crate) fn finish(self) -> Vec<SockFilter> {
        let distance = |at: usize, target: T| {
            let position =
                self.labels.iter().find(|(label, _)| *label == target).map_or(at, |(_, position)| *position);
            // Every label lies ahead of its jumps.
            position.saturating_sub(at + 1)
        };
        let instruction = |(at, &(code, k, jump)): (usize, &(u32, u32, Option<Jump<T>>))| {
            let (jt, jf, k) = match jump {
                None => (0, 0, k),
                Some(Jump::IfTrue(target)) => (distance(at, target), 0, k),
                Some(Jump::IfFalse(target)) => (0, distance(at, target), k),
                Some(Jump::Always(target)) => (0, 0, distance(at, target) as u32),
            };
            match (u8::try_from(jt), u8::try_from(jf)) {
                (Ok(jt), Ok(jf)) => SockFilter::new(code as u16, jt, jf, k),
                // Farther than a byte tells: the kernel is to refuse the program.
                _ => SockFilter::new(u16::MAX, 0, 0, 0),
            }
        };
        self.code.iter().enumerate().map(instruction).collect()
    }
}

/// Has a program choose among the sockets of a port (`SO_ATTACH_REUSEPORT_CBPF`): its result is the
/// socket's number, in the order in which they were bound, and it sees a datagram from its UDP
/// payload on (`net/core/sock_reuseport.c`, `run_bpf_filter`).
pub(super) fn attach_to_group(socket: BorrowedFd<'_>, program: &[SockFilter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // `SockFilter` is the kernel's `struct sock_filter` (socket2 declares it transparent), and the
    // kernel only reads.
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the program and its instructions are alive during the call, of the lengths given, and
    // only read.
    let result = unsafe {
        let length = size_of_val(&program) as libc::socklen_t;
        let value = ptr::from_ref(&program).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, value, length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
