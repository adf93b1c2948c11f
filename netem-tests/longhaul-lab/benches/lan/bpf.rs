//! An XDP program, written by hand, that hands UDP for port 4791 to AF_XDP sockets.
#![expect(unsafe_code, reason = "the bpf system call")]

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const XSKMAP: u32 = 17;
const XDP: u32 = 6;
const XDP_ATTACH: u32 = 37;
/// The program copes with packets in several pieces: without it, veth refuses the program at MTUs
/// of more than a page.
const HAS_FRAGS: u32 = 1 << 5;
const XDP_PASS: i32 = 2;
const REDIRECT_MAP: i32 = 51;

/// Where the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// In the stack, on what the driver has handed over.
    Generic = 1 << 1,
    /// In the driver.
    Native = 1 << 2,
}

/// A program on an interface, which goes with this value or with the process.
pub(crate) struct Program {
    _link: OwnedFd,
    _program: OwnedFd,
    _map: OwnedFd,
}

impl Program {
    /// Redirects what comes to the link-layer address `own` by queue 0 to `socket`, and lets all
    /// else pass.
    pub(crate) fn attach(index: u32, own: [u8; 6], mode: Mode, socket: &OwnedFd) -> io::Result<Self> {
        let map = bpf(MAP_CREATE, &[XSKMAP, 4, 4, 1, 0])?;
        let map = map.ok_or(io::ErrorKind::InvalidData)?;
        let (key, value) = (0u32, socket.as_raw_fd());
        let [key, value] =
            [ptr::from_ref(&key).expose_provenance(), ptr::from_ref(&value).expose_provenance()];
        bpf(MAP_UPDATE, &halves(&[map.as_raw_fd() as u64, key as u64, value as u64, 0]))?;
        let program = load(&redirect(own, map.as_raw_fd()))?;
        let link = bpf(LINK_CREATE, &[program.as_raw_fd() as u32, index, XDP_ATTACH, mode as u32])?;
        Ok(Self { _link: link.ok_or(io::ErrorKind::InvalidData)?, _program: program, _map: map })
    }
}

fn load(instructions: &[u64]) -> io::Result<OwnedFd> {
    let mut log = vec![0u8; 65536];
    let license = c"Dual MIT/GPL";
    let address = |pointer: *const u8| pointer.expose_provenance() as u64;
    let (code, license) = (address(instructions.as_ptr().cast()), address(license.as_ptr().cast()));
    let mut attributes = vec![XDP, instructions.len() as u32];
    attributes.extend(halves(&[code, license]));
    attributes.extend([1, log.len() as u32]);
    attributes.extend(halves(&[address(log.as_mut_ptr())]));
    attributes.extend([0, HAS_FRAGS]);
    match bpf(PROG_LOAD, &attributes) {
        Ok(program) => Ok(program.ok_or(io::ErrorKind::InvalidData)?),
        Err(error) => Err(io::Error::other(format!("{error}: {}", String::from_utf8_lossy(&log)))),
    }
}

/// The structure `bpf_attr`, as far as it is needed, in words.
fn halves(doubles: &[u64]) -> Vec<u32> {
    doubles.iter().flat_map(|double| [*double as u32, (double >> 32) as u32]).collect()
}

fn bpf(command: libc::c_int, attributes: &[u32]) -> io::Result<Option<OwnedFd>> {
    // Some fields are 64 bits wide.
    let mut aligned = [0u64; 16];
    for (to, from) in aligned.iter_mut().zip(attributes.chunks(2)) {
        let [low, high] = [0, 1].map(|nth| u64::from(from.get(nth).copied().unwrap_or(0)));
        *to = high << 32 | low;
    }
    // SAFETY: `aligned` is longer than the attributes of these commands and zero behind them; what
    // it points to is alive in the callers.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, aligned.as_mut_ptr(), size_of_val(&aligned)) };
    match libc::c_int::try_from(result) {
        Ok(error) if error < 0 => Err(io::Error::last_os_error()),
        Ok(_) if command == MAP_UPDATE => Ok(None),
        // SAFETY: the other commands answer with a new descriptor.
        Ok(descriptor) => Ok(Some(unsafe { OwnedFd::from_raw_fd(descriptor) })),
        Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn redirect(own: [u8; 6], map: i32) -> Vec<u64> {
    let [a, b, c, d, e, f] = own;
    let mut code = vec![
        MOVE | of(6, 1, 0, 0),
        LOAD_WORD | of(2, 6, 0, 0),
        LOAD_WORD | of(3, 6, 4, 0),
        MOVE | of(4, 2, 0, 0),
        ADD | of(4, 0, 0, 42),
    ];
    // Each leads to the end when it does not hold, which is found when the length is known.
    let checks = [
        (LOAD_WORD, 0, i32::from_le_bytes([a, b, c, d])),
        (LOAD_HALF, 4, u16::from_le_bytes([e, f]).into()),
        (LOAD_HALF, 12, u16::from_le_bytes([0x08, 0x00]).into()),
        (LOAD_BYTE, 14, 0x45),
        (LOAD_BYTE, 23, libc::IPPROTO_UDP),
        (LOAD_HALF, 36, 4791u16.to_be().into()),
    ];
    let hand_over = [
        LOAD_DOUBLE | of(1, 1, 0, map),
        0,
        LOAD_WORD | of(2, 6, 16, 0),
        MOVE_IMMEDIATE | of(3, 0, 0, XDP_PASS),
        CALL | of(0, 0, 0, REDIRECT_MAP),
        EXIT,
    ];
    let end = code.len() + 1 + 2 * checks.len() + hand_over.len();
    let to_end = |at: usize| (end - at - 1) as i16;
    code.push(IF_GREATER | of(4, 3, to_end(code.len()), 0));
    for (load, offset, expected) in checks {
        code.push(load | of(5, 2, offset, 0));
        code.push(UNLESS_EQUAL | of(5, 0, to_end(code.len()), expected));
    }
    code.extend(hand_over);
    code.extend([MOVE_IMMEDIATE | of(0, 0, 0, XDP_PASS), EXIT]);
    code
}

const MOVE: u64 = 0xbf;
const MOVE_IMMEDIATE: u64 = 0xb7;
const ADD: u64 = 0x07;
const LOAD_BYTE: u64 = 0x71;
const LOAD_HALF: u64 = 0x69;
const LOAD_WORD: u64 = 0x61;
const LOAD_DOUBLE: u64 = 0x18;
const IF_GREATER: u64 = 0x2d;
/// Compares 32 bits.
const UNLESS_EQUAL: u64 = 0x56;
const CALL: u64 = 0x85;
const EXIT: u64 = 0x95;

/// An instruction's operands.
fn of(destination: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    u64::from(destination) << 8
        | u64::from(source) << 12
        | u64::from(offset.cast_unsigned()) << 16
        | u64::from(immediate.cast_unsigned()) << 32
}
